"""The fast encoders are the plain ones, in value and in every gradient, summed or each client's."""

import pytest
import torch
from torch.func import functional_call

from homespun.models.digit_encoder import encode_digits
from homespun.models.preference_network import PreferenceNetwork, diagonal
from homespun.models.speech_encoder import encode_speech
from homespun.models.stacked_layers import weights_are_shared

CLIENTS, COUNT, KINDS = 3, 4, 5
DIGIT, SPEECH = (28, 28), (200, 375)


def make_model(*, size=DIGIT, embedding=28, common=True, double=True):
    torch.manual_seed(0)
    model = PreferenceNetwork(size=size, embedding=embedding, heads=3, kinds=KINDS, common=common)
    with torch.no_grad():
        for value in model.parameters():
            value += 0.1 * torch.randn_like(value)
    return model.double() if double else model


def make_images(size=DIGIT):
    """Integer images, one of them blank."""
    image = torch.randint(256, (CLIENTS, COUNT, *size), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    image[0, 0] = 0
    return image


def make_encoder(model, *, apart):
    values = {name: value.detach() for name, value in model.encoder.named_parameters()}
    return {
        name: (value.expand(CLIENTS, *value.shape) if apart else value).detach().requires_grad_()
        for name, value in values.items()
    }


def encode(model, encoder, image, *, embedding, for_common):
    if model.size == DIGIT:
        return encode_digits(encoder, image, embedding=embedding, for_common=for_common)
    return encode_speech(model.encoder, encoder, image, embedding=embedding, for_common=for_common)


def make_embeddings(size, dtype=torch.float64):
    return torch.rand(CLIENTS, size, dtype=dtype, generator=torch.Generator().manual_seed(2)).requires_grad_()


def plain(model, encoder, image, embeddings):
    """One client at a time, by the layers themselves; `encoder` has a client axis."""
    found = []
    for client in range(CLIENTS):
        inputs = image[client][:, None].to(encoder["0.weight"].dtype) / 255
        if embeddings is not None:
            inputs = torch.cat([inputs, diagonal(embeddings[client], inputs.shape[2:]).expand_as(inputs)], dim=1)
        own = {name: value[client] for name, value in encoder.items()}
        found.append(functional_call(model.encoder, own, (inputs,)).flatten(1))
    return torch.stack(found)


@pytest.mark.parametrize("outputs", ["first", "common", "both", "only one is made"])
@pytest.mark.parametrize("apart", [False, True], ids=["shared", "each client's"])
@pytest.mark.parametrize(
    ("read", "size"), [*((DIGIT, size) for size in (28, 5, 0)), *((SPEECH, size) for size in (200, 5, 0))]
)
def test_fast_equals_plain(read, size, apart, outputs):
    model, image = make_model(size=read, embedding=size), make_images(read)
    encoder, twice = make_encoder(model, apart=apart), outputs != "only one is made"
    embeddings = make_embeddings(size) if size else None
    leaves = [*encoder.values(), *([embeddings] if size else [])]
    found = encode(model, encoder, image, embedding=embeddings, for_common=twice)

    own = {n: v if apart else v.expand(CLIENTS, *v.shape) for n, v in encoder.items()}
    fixed = {name: value.detach() for name, value in own.items()}
    expected = plain(model, own, image, embeddings), plain(model, fixed, image, embeddings)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)

    generator = torch.Generator().manual_seed(3)
    one, other = torch.randn(2, *found[0].shape, dtype=torch.float64, generator=generator)
    one, other = one * (outputs != "common"), other * (outputs in ("common", "both"))
    ours, theirs = (
        torch.autograd.grad((features * one).sum() + (for_common * other).sum(), leaves)
        for features, for_common in (found, expected)
    )
    names = [*encoder, *(["embedding"] if size else [])]
    for name, got, wanted in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-8, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("read", [DIGIT, SPEECH])
def test_in_float32_it_is_as_near_as_the_layers_are(read, apart):
    model, image = make_model(size=read, embedding=min(read), double=False), make_images(read)
    encoder, embeddings = make_encoder(model, apart=apart), make_embeddings(min(read), torch.float32)
    found, _ = encode(model, encoder, image, embedding=embeddings, for_common=False)
    own = {n: v if apart else v.expand(CLIENTS, *v.shape) for n, v in encoder.items()}
    expected = plain(model, own, image, embeddings)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    leaves = [*encoder.values(), embeddings]
    direction = torch.randn(found.shape, generator=torch.Generator().manual_seed(3))
    for ours, theirs in zip(
        *(torch.autograd.grad((some * direction).sum(), leaves) for some in (found, expected)), strict=True
    ):
        assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max() + 1e-5


@pytest.mark.parametrize("way", ["one at a time", "shared", "each client's", "really different"])
@pytest.mark.parametrize("read", [DIGIT, SPEECH])
def test_the_common_head_moves_embedding_and_head_but_not_the_encoder(read, way):
    model, image = make_model(size=read, embedding=28), make_images(read)
    values = {name: value.detach() for name, value in model.named_parameters() if name != "user.embedding"}
    head = torch.zeros(CLIENTS, COUNT, dtype=torch.int64)
    if way == "one at a time":
        leaves = {name: value.requires_grad_() for name, value in values.items()}
        leaves["user.embedding"] = make_embeddings(28)[0].detach().requires_grad_()
        model.float()
        leaves = {name: value.detach().float().requires_grad_() for name, value in leaves.items()}
        output = functional_call(model, leaves, ({"image": image[0], "head": head[0]},))
    else:
        leaves = {
            name: (value if way == "shared" else value.expand(CLIENTS, *value.shape)).detach()
            for name, value in values.items()
        }
        if way == "really different":
            model.float()
            leaves = {name: value.float() + 0.01 * torch.randn(value.shape) for name, value in leaves.items()}
        dtype = leaves["common.bias"].dtype
        leaves = {name: value.requires_grad_() for name, value in leaves.items()}
        leaves["user.embedding"] = make_embeddings(28, dtype)
        encoder = {name: leaves[f"encoder.{name}"] for name, _ in model.encoder.named_parameters()}
        assert weights_are_shared(encoder, model.encoder) == (way != "really different")
        output = model.stacked(leaves, {"image": image, "head": head})
    found = torch.autograd.grad(output[..., -2].square().sum(), list(leaves.values()), allow_unused=True)
    moved = {
        name for name, grad in zip(leaves, found, strict=True) if grad is not None and bool(grad.abs().max() > 1e-12)
    }
    assert moved == {"user.embedding", "common.weight", "common.bias"}


@pytest.mark.parametrize("read", [DIGIT, SPEECH])
def test_at_home_where_only_the_embedding_is_trained_no_weight_gets_a_gradient(read):
    model, image = make_model(size=read, embedding=28), make_images(read)
    values = {name: v.detach().expand(CLIENTS, *v.shape) for name, v in model.named_parameters()}
    values["user.embedding"] = make_embeddings(28)
    batch = {"image": image, "head": torch.zeros(CLIENTS, COUNT, dtype=torch.int64)}
    output = model.stacked(values, batch)
    (got,) = torch.autograd.grad(output.square().sum(), [values["user.embedding"]])
    expected = torch.zeros_like(got)
    for step in range(3):  # along three directions
        direction = torch.zeros_like(got)
        direction[:, step * 9] = 1
        up, down = (
            model.stacked(
                {**values, "user.embedding": values["user.embedding"].detach() + sign * 1e-5 * direction}, batch
            )
            for sign in (1, -1)
        )
        expected[:, step * 9] = ((up.square() - down.square()).sum(dim=(1, 2)) / 2e-5).detach()
        torch.testing.assert_close(got[:, step * 9], expected[:, step * 9], rtol=1e-5, atol=1e-5)


def test_features_are_kept_for_the_same_images_and_forgotten_when_anything_changes():
    """Step after step on a head alone; an embedding moved in place, other images or other weights are seen."""
    model = PreferenceNetwork(size=(28, 28), embedding=28, heads=None, common=True)
    own = {name: value.detach().clone() for name, value in model.named_parameters()}
    given = {**own, "user.embedding": torch.rand(2, 28)}
    image = torch.randint(0, 256, (2, 3, 28, 28), dtype=torch.uint8)

    def fresh(parameters, pixels):
        model._kept = None
        return model.stacked(parameters, {"image": pixels})

    calls = []
    real, model._stacked_features = model._stacked_features, lambda *some: calls.append(1) or real(*some)
    first = model.stacked(given, {"image": image})
    # not to the bit: some processors add the bias within the product, before the last rounding
    higher = model.stacked({**given, "head.bias": given["head.bias"] + 1}, {"image": image})[..., 0]
    torch.testing.assert_close(higher, first[..., 0] + 1)
    assert len(calls) == 1
    given["user.embedding"].add_(0.5)
    torch.testing.assert_close(model.stacked(given, {"image": image}), fresh(given, image))
    other = {**given, "encoder.0.weight": given["encoder.0.weight"] * 2 + 0.1}
    torch.testing.assert_close(model.stacked(other, {"image": image}), fresh(other, image))
    torch.testing.assert_close(model.stacked(other, {"image": image.clone()}), fresh(other, image))
