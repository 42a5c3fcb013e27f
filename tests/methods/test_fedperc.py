"""FedPerC: what precedes an utterance, who holds it, and where a new user starts."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from homes import clients_of
from language_models import TEXT, write_gpt2, write_llama
from spoken_corpus import train_small

from homespun.core.errors import InputError, SettingsError
from homespun.core.messages import update_to_tensors
from homespun.core.method import Sgd, Task, build
from homespun.core.roles import Role
from homespun.data.federation import Examples
from homespun.engines.client import Client
from homespun.engines.loop import LoopTrainer, model_output, predict_client, train_phase
from homespun.models.generator import with_evidence
from homespun.models.losses import padded_losses
from homespun.models.pretrained import load_pretrained
from homespun.system.method_loading import load_method
from homespun.system.trust import named_by_user
from homespun.testing.contract import check_method

EXAMPLES = Examples(TEXT * 2, contexts=np.array([0, 1, 0, 0, 1, 1]))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return str(write_gpt2(tmp_path_factory.mktemp("gpt2"), width=16))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return str(write_llama(tmp_path_factory.mktemp("llama")))


def made(base, method="fedperc", contexts=3, **settings):
    small = {"base_model": base, "length": 12, "local_steps": 2, "batch": 3, "lr": 0.01}
    more = {"personalize_steps": 2} if method == "fedperc" else {}
    return build(load_method(method, {**small, **more, **settings}, Task(contexts=contexts)), seed=0)


def make_client(built, user="ada", examples=EXAMPLES, **private):
    data = built.method.model.encode(examples)
    return Client(user, private={**built.new_private(user, seed=0), **private}, data=data)


def losses_after_bos(base, data):
    pretrained = load_pretrained(base)
    rows, tokens = len(data["length"]), data["tokens"].long()
    ids = torch.cat((torch.full((rows, 1), pretrained.bos), tokens), dim=1)
    real = torch.arange(tokens.shape[1]) < data["length"][:, None]
    mask = torch.cat((torch.ones(rows, 1, dtype=torch.bool), real), dim=1)
    with torch.no_grad():
        logits = pretrained.model(input_ids=ids, attention_mask=mask.long()).logits[:, :-1]
    picked = logits.log_softmax(-1).gather(2, tokens[:, :, None])[:, :, 0]
    return (-picked).masked_fill(~real, 0)


@pytest.mark.parametrize("kind", ["personal x context", "context", "shared", "personal"])
def test_untrained_it_equals_the_base_model_after_bos(gpt2, kind):
    built = made(gpt2, prefix=kind)
    client = make_client(built)
    expected = losses_after_bos(gpt2, client.data)
    torch.testing.assert_close(predict_client(built, built.start().broadcast(), client), expected, rtol=1e-5, atol=1e-5)


def test_untrained_generators_equal_the_base_model_with_and_without_evidence(gpt2):
    built = made(gpt2, "fedperc_generated")
    client = make_client(built)
    broadcast = built.start().broadcast()
    expected = losses_after_bos(gpt2, client.data)
    outcome = LoopTrainer(built, 0).train(broadcast, [client], mode="personalize")
    later = Client("ada", private=outcome.private["ada"], data=client.data)
    torch.testing.assert_close(predict_client(built, broadcast, later), expected, rtol=1e-5, atol=1e-5)
    trained = built.method.local.loss(
        lambda given, batch: model_output(built, given, batch), built.parameters(broadcast, client.private), client.data
    )
    torch.testing.assert_close(trained, expected.sum(1) / client.data["length"], rtol=1e-5, atol=1e-5)


def test_llama_reads_the_prefix_as_one_more_token(llama):
    built = made(llama)
    client = make_client(built)
    expected = losses_after_bos(llama, client.data)
    torch.testing.assert_close(predict_client(built, built.start().broadcast(), client), expected, rtol=1e-5, atol=1e-5)


def test_the_prefix_is_the_product_of_personal_and_context_embedding(gpt2):
    built = made(gpt2, virtual_tokens=2)
    personal, table = torch.randn(2, 16), torch.randn(3, 2, 16)
    parameters = {**built.initial, "personal.embedding": personal, "context.table": table}
    data = make_client(built).data
    expected = padded_losses(
        load_pretrained(gpt2).model, personal * table[data["context"]], tokens=data["tokens"], length=data["length"]
    )
    torch.testing.assert_close(model_output(built, parameters, data), expected)


def test_a_client_uploads_the_contexts_it_used_and_keeps_its_personal_embedding(gpt2):
    built = made(gpt2)
    outcome = LoopTrainer(built, 0).train(built.start().broadcast(), [make_client(built)])
    assert outcome.update.keyed["context.table"].index.tolist() == [0, 1]
    assert set(outcome.update.federated) == {"prior.embedding"}
    assert set(outcome.private["ada"]) == {"personal.embedding"}
    assert not torch.equal(outcome.private["ada"]["personal.embedding"], torch.ones(1, 16))


def test_a_round_counts_the_bytes_that_its_clients_would_upload(tmp_path):
    with train_small(tmp_path, rounds=1) as run:
        (recorded,) = [entry["up_bytes"] for entry in run.history() if entry["kind"] == "round"]
        engine, start = LoopTrainer(run.built, 0), run.built.start().broadcast()
        sent = [
            update_to_tensors(engine.train(start, [one]).update)[1]
            for one in clients_of(run, run.schedule.cohorts.of(0))
        ]
    for role in ("federated", "keyed"):
        assert recorded[role] == sum(
            tensor.nbytes for message in sent for name, tensor in message.items() if name.startswith(f"{role}/")
        )
    assert recorded["keyed"] == 7 * (16 + 16 * 4)  # three users write and speak, one writes


def test_a_new_user_starts_from_the_prior(gpt2):
    built = made(gpt2)
    state = built.method.server(
        built.start(), LoopTrainer(built, 0).train(built.start().broadcast(), [make_client(built)]).update
    )
    prior = state.federated["prior.embedding"]
    assert not torch.equal(prior, torch.ones(1, 16))
    assert torch.equal(built.new_private("eve", seed=0, broadcast=state.broadcast())["personal.embedding"], prior)


def test_the_noisy_average_is_optional_and_clipped(gpt2):
    built = made(gpt2, prior="average", average_clip=0.5, average_noise=0.0)
    assert [one.label for one in built.method.local.statistics.values()] == ["personal embedding, clipped and noised"]
    assert not made(gpt2).method.local.statistics and "prior.embedding" not in built.start().federated
    near, far = torch.ones(1, 16) + 0.01, torch.ones(1, 16) * 3
    still = {"lr": 0.0, "personal_lr": 0.0}
    built = made(gpt2, prior="average", average_clip=0.5, average_noise=0.0, **still)
    clients = [
        make_client(built, "ada", **{"personal.embedding": near}),
        make_client(built, "bob", **{"personal.embedding": far}),
    ]
    state = built.method.server(built.start(), LoopTrainer(built, 0).train(built.start().broadcast(), clients).update)
    # ada is 0.04 away and uploads all of it, 0.01 everywhere; bob is 8 away and uploads 0.5, 0.125 everywhere
    expected = torch.full((1, 16), 1 + (0.01 + 0.125) / 2)
    torch.testing.assert_close(state.server["prior.embedding"], expected)
    noisy = made(gpt2, prior="average", average_noise=0.2, **still)
    step = (
        LoopTrainer(noisy, 0)
        .train(noisy.start().broadcast(), [make_client(noisy)])
        .update.statistics["prior.embedding"]
    )
    assert 0.1 < float(step.std()) < 0.3


def test_clients_have_equal_weight_and_utterances_are_weighted_by_tokens(gpt2):
    built = made(gpt2)
    assert [built.method.local.client_weight(count) for count in (0, 1, 500)] == [0, 1, 1]
    client = make_client(built, examples=EXAMPLES.take([0, 2]))  # twelve tokens and fewer
    losses = built.method.local.loss(
        lambda given, batch: model_output(built, given, batch),
        built.parameters(built.start().broadcast(), client.private),
        client.data,
    )
    tokens = client.data["length"].double()
    assert tokens[0] > tokens[1]
    per_token = predict_client(built, built.start().broadcast(), client).double().sum() / tokens.sum()
    assert float((losses * tokens).sum() / tokens.sum()) == pytest.approx(float(per_token))


def test_personalization_uploads_nothing_and_copies_only_what_it_changed(gpt2):
    built = made(gpt2)
    outcome = LoopTrainer(built, 0).train(built.start().broadcast(), [make_client(built)], mode="personalize")
    assert outcome.update.clients == 0 and not len(outcome.update.keyed["context.table"].index)
    assert set(outcome.private["ada"]) == {"personal.embedding", "context.table"}


def test_utterances_of_fewer_than_four_tokens_are_skipped(gpt2):
    built = made(gpt2)
    data = built.method.model.encode(Examples(["I", TEXT[0], ""], contexts=np.array([0, 2, 1])))
    assert data["context"].tolist() == [2] and data["length"].tolist() == [12]
    assert len(built.method.model.encode(Examples([]))["length"]) == 0


def test_losses_do_not_depend_on_later_tokens(gpt2):
    """Change one token: the losses before it stay, with generated embeddings too."""
    built = made(gpt2, "fedperc_generated")
    parameters = {name: value + 0.05 * torch.randn(value.shape) for name, value in built.initial.items()}
    plain = made(gpt2).method.model.encode(EXAMPLES)
    row, place = 4, 5
    changed = {**plain, "tokens": plain["tokens"].clone()}
    changed["tokens"][row, place] = 7
    # evidence is drawn again from the changed text: it must not hold what is scored
    data, changed = (with_evidence(some, counts=(1, 5, 15), words=64) for some in (plain, changed))
    seen = []

    def spy(given, batch):
        seen.append(model_output(built, given, batch))
        return seen[-1]

    for some in (data, changed):
        built.method.local.loss(spy, parameters, some)
    assert torch.equal(seen[0][row, :place], seen[1][row, :place])
    assert not torch.equal(seen[0][row, place:], seen[1][row, place:])


def test_fedprox_applies_to_shared_and_not_to_private_parameters(gpt2):
    """Without a gradient of the loss the pull alone moves; plain steps of 0.1 at mu 1 bring a tenth back."""
    built = made(gpt2, prefix="personal x context", local_steps=1, mu=1.0)
    (joint, _) = built.method.local.phases
    still = replace(joint, trains={name: Sgd(0.1) for name in joint.trains}, loss=lambda predict, given, batch: sum(
        0.0 * given[name].sum() for name in ("personal.embedding", "context.table")
    ).expand(len(batch["length"])))  # fmt: skip
    start = built.start().broadcast()
    client = make_client(built)
    anchor = built.parameters(start, client.private)
    moved = {**anchor, **{name: anchor[name] + 1 for name in ("personal.embedding", "context.table")}}
    found, _ = train_phase(built, still, moved, anchor=anchor, batches=[client.data])
    torch.testing.assert_close(found["personal.embedding"], moved["personal.embedding"])
    torch.testing.assert_close(found["context.table"], moved["context.table"] - 0.1)


def test_evidence_is_earlier_utterances_of_the_same_user():
    tokens = torch.arange(1, 41, dtype=torch.int32).view(10, 4)
    data = {"tokens": tokens, "length": torch.tensor([4, 3] * 5), "context": torch.arange(10)}
    found = with_evidence(data, counts=(2,), words=6)
    assert not found["evidence"][0].any() and (found["evidence_context"][0] == -1).all()
    for row in range(1, 10):
        of = found["evidence_context"][row]
        there = of >= 0
        assert (of[there] < row).all()
        assert torch.equal((found["evidence"][row][there] - 1) // 4, of[there].int())
        assert len(of[there].unique()) == min(row, 2)
    assert int(found["length"][1]) == 3 and 8 not in found["evidence"]  # padding is not evidence


def test_more_evidence_lowers_the_weight_of_the_no_evidence_key(gpt2):
    built = made(gpt2, "fedperc_generated")
    parameters = {
        name: value + 0.3 * torch.randn(value.shape) if name.startswith("generators") else value
        for name, value in built.initial.items()
    }
    empty = built.method.model.encode(Examples([]))
    once, often = (built.method.model.encode(Examples([TEXT[0]] * count)) for count in (1, 50))
    nothing, one, many = (
        built.method.personalize.generate(parameters, data)["personal.embedding"] for data in (empty, once, often)
    )
    assert (many - nothing).norm() > (one - nothing).norm() > 0


def test_chosen_layers_or_an_adapter_can_be_federated(gpt2):
    layers = made(gpt2, layers="transformer.h.1.mlp.*")
    assert set(layers.partition.names(Role.FEDERATED)) == {
        "prior.embedding",
        *(
            f"backbone.transformer.h.1.mlp.{name}"
            for name in ("c_fc.weight", "c_fc.bias", "c_proj.weight", "c_proj.bias")
        ),
    }
    adapter = made(gpt2, lora=2)
    names = adapter.partition.names(Role.FEDERATED)
    assert len(names) == 1 + 2 * 2 and sum("lora_" in name for name in names) == 2 * 2
    for built in (layers, adapter):
        client = make_client(built)
        before = predict_client(built, built.start().broadcast(), client)
        torch.testing.assert_close(before, losses_after_bos(gpt2, client.data), rtol=1e-5, atol=1e-5)
        update = LoopTrainer(built, 0).train(built.start().broadcast(), [client]).update
        assert any(bool(delta.abs().max() > 0) for name, delta in update.federated.items() if "backbone" in name)


def test_unknown_layers_are_rejected_with_the_kinds_of_layers_there_are(gpt2):
    with pytest.raises(SettingsError, match=r"'lm_head\*' matches no parameter of .*transformer\.h\.N\.mlp") as error:
        made(gpt2, layers="lm_head*")
    assert "h.0" not in str(error.value) and "Its head is tied to its word embeddings" in str(error.value)


def test_predictions_use_the_current_values_of_trained_layers(gpt2):
    built = made(gpt2, layers="transformer.h.*", lr=0.05)
    client = make_client(built)
    broadcast = built.start().broadcast()
    update = LoopTrainer(built, 0).train(broadcast, [client]).update
    trained = replace(
        broadcast, federated={name: value + update.federated[name] for name, value in broadcast.federated.items()}
    )
    parameters = built.parameters(trained, client.private)
    backbone = copy.deepcopy(load_pretrained(gpt2).model)
    weights = {name.removeprefix("backbone."): value for name, value in parameters.items()}
    backbone.load_state_dict(weights, strict=False)  # the head is tied, and embeddings are not its own
    prefix = (parameters["context.table"] * parameters["personal.embedding"])[client.data["context"]]
    tokens, length = client.data["tokens"], client.data["length"]
    with torch.no_grad():
        expected = padded_losses(backbone, prefix, tokens=tokens, length=length)
    found = predict_client(built, trained, client)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert (found - predict_client(built, broadcast, client)).abs().max() > 1e-2


def test_the_error_for_a_missing_base_model_says_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # or it tries for most of a minute
    with named_by_user(), pytest.raises(InputError, match=r"no such folder.*make smollm2"):
        load_pretrained("no/such-model")
    with pytest.raises(InputError, match=r"config\.json, model\.safetensors, tokenizer\.json missing"):
        load_pretrained(str(tmp_path))


def test_a_length_beyond_the_models_positions_is_rejected(gpt2):
    with pytest.raises(SettingsError, match="Use at most 63"):
        made(gpt2, length=64).method.model.encode(EXAMPLES)


@pytest.mark.system
@pytest.mark.parametrize("method", ["fedperc", "fedperc_generated"])
def test_the_contract_holds_on_another_architecture(llama, method):
    check_method(method, {"base_model": llama})
