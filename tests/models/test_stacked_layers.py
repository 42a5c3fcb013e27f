"""Stacked layers for many clients against torch's layers for each client."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from homespun.models.preference_network import PreferenceNetwork
from homespun.models.stacked_layers import Geometry, stacked_sequential

CLIENTS, ROWS = 3, 4


def layers(channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 5, (3, 4), stride=(2, 3), padding=(1, 0)),
        nn.AvgPool2d((2, 3)),
        nn.LayerNorm([5, 5, 4]),
        nn.Conv2d(5, 6, 2, stride=2),
        nn.Flatten(1),
        nn.Linear(24, 7),
    )


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("weights", ["shared", "shared, gradients apart", "own"])
def test_stacked_layers_give_what_torch_gives_and_the_same_gradients(channels: int, weights: str):
    torch.manual_seed(0)
    network = layers(channels).double()
    start = {name: value.detach() for name, value in network.named_parameters()}
    each = {name: value.expand(CLIENTS, *value.shape) for name, value in start.items()}
    if weights == "own":
        each = {name: value + 0.1 * torch.randn(CLIENTS, *value.shape[1:]).double() for name, value in each.items()}
    inputs = torch.randn(CLIENTS, ROWS, channels, 20, 40).double().requires_grad_()
    target = torch.randn(CLIENTS, ROWS, 7).double()

    own = {name: [value[place].clone().requires_grad_() for place in range(CLIENTS)] for name, value in each.items()}
    outputs = torch.stack(
        [
            functional_call(network, {name: values[place] for name, values in own.items()}, (inputs[place],))
            for place in range(CLIENTS)
        ]
    )
    flat = [value for values in own.values() for value in values]
    found = torch.autograd.grad(((outputs - target) ** 2).sum(), [inputs, *flat])
    wanted = {
        name: torch.stack(found[1 + place * CLIENTS : 1 + (place + 1) * CLIENTS]) for place, name in enumerate(own)
    }
    if weights == "shared":
        wanted = {name: value.sum(dim=0) for name, value in wanted.items()}

    given = {name: (start if weights == "shared" else each)[name].detach().requires_grad_() for name in start}
    stacked = stacked_sequential(network, given, inputs.movedim(2, -1))
    torch.testing.assert_close(stacked, outputs)
    gradients = torch.autograd.grad(((stacked - target) ** 2).sum(), [inputs, *given.values()])
    torch.testing.assert_close(gradients[0], found[0])
    torch.testing.assert_close(dict(zip(given, gradients[1:], strict=True)), wanted)


def test_the_mean_of_a_convolution_is_one_with_a_wider_weight():
    weight = torch.tensor([[2.0, 4.0]])  # slides by one, and two places are averaged: (2 a + 4 b + 2 b + 4 c) / 2
    geometry = Geometry((1, 1), (0, 0), (1, 2))
    assert geometry.widened(weight).tolist() == [[1.0, 3.0, 2.0]] and geometry.steps == (1, 2)
    assert geometry.narrowed(torch.tensor([[1.0, 10.0, 100.0]]), weight.shape).tolist() == [[5.5, 55.0]]
    of_bytes = geometry._replace(unit=10.0)  # inputs that are ten times as large
    torch.testing.assert_close(of_bytes.widened(weight), torch.tensor([[0.1, 0.3, 0.2]]))
    torch.testing.assert_close(
        of_bytes.narrowed(torch.tensor([[1.0, 10.0, 100.0]]), weight.shape), torch.tensor([[0.55, 5.5]])
    )


@pytest.mark.parametrize("weights_are", ["shared", "each client's", "really different"])
def test_speech_is_read_together_as_one_by_one(weights_are: str):
    torch.manual_seed(0)
    model = PreferenceNetwork(size=(200, 375), embedding=200, heads=3, kinds=20, common=True)
    image = torch.randint(0, 256, (2, 3, 200, 375), dtype=torch.uint8)
    head, embeddings = torch.tensor([[0, 2, 1], [1, 1, 0]]), 0.1 * torch.randn(2, 200)
    shared = {name: value.detach() for name, value in model.named_parameters() if name != "user.embedding"}
    apart = weights_are != "shared"
    if apart:
        shared = {name: value.expand(2, *value.shape) for name, value in shared.items()}
    if weights_are == "really different":
        shared = {name: value + 0.1 * torch.randn(value.shape) for name, value in shared.items()}
    given = {name: value.detach().requires_grad_() for name, value in {**shared, "user.embedding": embeddings}.items()}
    stacked = model.stacked(given, {"image": image, "head": head})
    weights = torch.randn(stacked.shape)
    together = dict(zip(given, torch.autograd.grad((stacked * weights).sum(), list(given.values())), strict=True))
    each = []
    for place in range(2):
        with torch.no_grad():
            for name, value in model.named_parameters():
                own = given[name].detach()
                value.copy_(own[place] if apart or name == "user.embedding" else own)
        outputs = model({"image": image[place], "head": head[place]})
        torch.testing.assert_close(stacked[place], outputs, rtol=1e-4, atol=1e-4)
        found = torch.autograd.grad((outputs * weights[place]).sum(), list(model.parameters()))
        each.append(dict(zip([name for name, _ in model.named_parameters()], found, strict=True)))
    for name, value in together.items():
        wanted = torch.stack([one[name] for one in each])
        if not apart and name != "user.embedding":
            wanted = wanted.sum(dim=0)
        assert (value - wanted).norm() < 1e-4 * wanted.norm(), name
