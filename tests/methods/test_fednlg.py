"""FedNLG: its equations with small numbers, where personas are, what warm starts keep."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from small_dialogue import SPEAKERS, conversations, loaded, write_reply_model
from torch.func import functional_call

from homespun.core.errors import MethodError, RunError, SettingsError
from homespun.core.messages import state_to_bytes
from homespun.core.method import Task, build
from homespun.core.roles import Role
from homespun.data.federation import Examples
from homespun.engines.client import Client
from homespun.engines.cohort import CohortTrainer
from homespun.engines.loop import LoopTrainer
from homespun.methods import central_dialogue, fednlg
from homespun.models.reply_model import load_reply_model
from homespun.models.vocabulary import PADDING, UNKNOWN
from homespun.runs.evaluate import evaluate
from homespun.runs.open_run import open_run
from homespun.runs.settings import RunSettings
from homespun.runs.training import load, reopen, train

PLAIN = {
    "optimizer": "sgd",
    "persona_optimizer": "sgd",
    "lr": 0.5,
    "dropout": 0.0,
    "clip_norm": 1e6,
    "persona_dim": 3,
    "batch": 100,
}
TASK = Task(population=3)
PAIRS = {
    "ada": [("is the sea blue?", "yes."), ("and you?", "no, we go.")],
    "bo": [("we go.", "is the sea blue and the sea blue and the sea?")] + 5 * [("no", "yes and yes")],
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_reply_model(tmp_path_factory.mktemp("reply") / "model", scale=2.0)


def examples(user, author=0):
    prompts, texts = zip(*PAIRS[user], strict=True)
    return Examples(list(texts), prompts=list(prompts), authors=np.full(len(texts), author))


def built_fednlg(base, module=fednlg, **settings):
    return build(module.method(module.Settings(base_model=base, **{**PLAIN, **settings}), TASK), seed=0)


def client(built, user, author=0):
    return Client(user, built.new_private(user, seed=0), built.method.model.encode(examples(user, author)))


def test_examples_as_numbers(base):
    model = loaded(base)
    index = model.vocabulary.index
    batch = fednlg.encode(
        Examples(["yes.", "", "is the sea blue and the sea?"], prompts=["the sea is wide", None, "***"]), model
    )
    the, sea, is_, blue, and_, yes, stop = (index[word] for word in ("the", "sea", "is", "blue", "and", "yes", "."))
    assert batch["question"].tolist() == [
        [the, sea, is_, UNKNOWN, PADDING, PADDING],
        [UNKNOWN, *[PADDING] * 5],
        [UNKNOWN, *[PADDING] * 5],
    ]
    assert batch["question_length"].tolist() == [4, 1, 1]
    assert batch["reply"].tolist() == [
        [yes, stop, *[PADDING] * 4],
        [UNKNOWN, *[PADDING] * 5],
        [is_, the, sea, blue, and_, the],
    ]
    assert batch["length"].tolist() == [3, 2, 6]  # with the end, unless the reply is cut
    assert "author" not in batch
    whole = fednlg.encode(Examples(["the sea is blue and blue"], prompts=["no"]), model)
    assert whole["length"].tolist() == [7]  # exactly six words are not cut
    none = fednlg.encode(Examples([], prompts=[]), model)
    assert none["question"].shape == none["reply"].shape == (0, 6) and none["length"].shape == (0,)


def test_loss_is_the_mean_per_word():
    batch = {"length": torch.tensor([2, 4])}
    losses = torch.tensor([[1.0, 2.0, 0.0, 0.0], [4.0, 3.0, 2.0, 1.0]])
    assert fednlg.loss(lambda *_: losses, {}, batch).tolist() == [1.5, 2.5]


def test_equation_10(base):
    """Shared parameters: the average of the clients' changes, weighted by 2 and 6 examples."""
    built = built_fednlg(base)
    state = built.start()
    clients = [client(built, user) for user in ("ada", "bo")]
    engine = LoopTrainer(built, 0)
    deltas = []
    for one in clients:
        update = engine.train(state.broadcast(), [one]).update
        assert update.weight == one.examples
        deltas.append({name: value / one.examples for name, value in update.federated.items()})
    following = built.method.server(state, engine.train(state.broadcast(), clients).update)
    assert [one.examples for one in clients] == [2, 6]
    for name, value in state.federated.items():
        expected = value + (2 * deltas[0][name] + 6 * deltas[1][name]) / 8
        torch.testing.assert_close(following.federated[name], expected, rtol=0, atol=1e-6)
    assert max(float(one.abs().max()) for one in deltas[0].values()) > 0.01


def objective(built, parameters, data):
    """The mean loss over all words of all replies."""
    losses = functional_call(built.model, parameters, (data,))
    return losses.sum() / data["length"].sum()


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_two_local_steps_with_fedprox_by_hand(base, mu):
    """Step 1 is free of the pull, which is 0 at the broadcast. The persona is never pulled."""
    built = built_fednlg(base, mu=mu, local_epochs=2, persona_lr=2.0, schedule="joint")
    broadcast, own = built.start().broadcast(), client(built, "bo")
    start = {**broadcast.federated, **own.private}
    values = dict(start)
    for _ in range(2):
        leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
        gradients = torch.autograd.grad(objective(built, leaves, own.data), list(leaves.values()))
        values = {
            name: value - 2.0 * gradient
            if name == "persona.embedding"
            else value - 0.5 * (gradient + mu * (value - start[name]))
            for (name, value), gradient in zip(values.items(), gradients, strict=True)
        }
    outcome = LoopTrainer(built, 0).train(broadcast, [own])
    for name, change in outcome.update.federated.items():
        torch.testing.assert_close(change / own.examples, values[name] - start[name], rtol=0, atol=1e-5)
    found = outcome.private["bo"]["persona.embedding"]
    torch.testing.assert_close(found, values["persona.embedding"], rtol=0, atol=1e-5)
    assert not torch.equal(found, own.private["persona.embedding"])


def test_alternating_training_by_hand(base):
    """One step of the persona with the broadcast model, then one step of the others with the new persona."""
    built = built_fednlg(base, persona_lr=2.0, schedule="alternating")
    broadcast, own = built.start().broadcast(), client(built, "bo")
    start = {**broadcast.federated, **own.private}

    def gradients(values):
        leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
        found = torch.autograd.grad(objective(built, leaves, own.data), list(leaves.values()))
        return dict(zip(leaves, found, strict=True))

    persona = start["persona.embedding"] - 2.0 * gradients(start)["persona.embedding"]
    second = gradients({**start, "persona.embedding": persona})
    outcome = LoopTrainer(built, 0).train(broadcast, [own])
    torch.testing.assert_close(outcome.private["bo"]["persona.embedding"], persona, rtol=0, atol=1e-5)
    for name, change in outcome.update.federated.items():
        torch.testing.assert_close(change / own.examples, -0.5 * second[name], rtol=0, atol=1e-5)


def opened(folder, base, *, method="fednlg", rows=None, method_settings=None, **settings):
    return open_run(
        folder,
        method=method,
        federation=load(rows or conversations(20)),
        settings=RunSettings(**{"rounds": 1, "cohort": "all", "workers": 0, "split_by": "conversation", **settings}),
        method_settings={"base_model": base, **PLAIN, **(method_settings or {})},
    )


def uneven():
    """Ada replies in 20 scenes, Bo in 10 and Cy in 5."""
    rows = conversations(20)
    return [
        row for row in rows if not (row["user"] == "Bo Derek" and row["scene"] % 2)
        and not (row["user"] == "Cy Young" and row["scene"] % 4)
    ]  # fmt: skip


def test_equation_11_scales_a_persona_by_its_share_of_the_examples(base, tmp_path):
    def one_round(keeps):
        settings = {"private_update": keeps, "lr": 0.0, "persona_lr": 1.0}
        with opened(tmp_path / keeps, base, rows=uneven(), method_settings=settings) as run:
            before = {user: run.built.new_private(user, seed=0)["persona.embedding"] for user in SPEAKERS}
            list(run.rounds())
            counts = np.array([len(run.clients.population.examples(place)) for place in range(3)])
            found = run.clients.stored_private(SPEAKERS)
            return [found[user]["persona.embedding"] - before[user] for user in SPEAKERS], counts

    (whole, counts), (shares, _) = one_round("all"), one_round("share")
    assert len(set(counts.tolist())) == 3
    for delta, share, count in zip(whole, shares, counts, strict=True):
        assert float(delta.abs().max()) > 1e-4
        torch.testing.assert_close(share, delta * (count / counts.sum()), rtol=0, atol=1e-6)


def test_personas_are_private(base, tmp_path):
    built = built_fednlg(base)
    assert built.partition.names(Role.PRIVATE) == ("persona.embedding",)
    broadcast = built.start().broadcast()
    update = LoopTrainer(built, 0).train(broadcast, [client(built, "ada")]).update
    for message in (broadcast.federated, broadcast.keyed, update.federated, update.keyed):
        assert not [name for name in message if "persona" in name]
    assert any(name.startswith("decoder.0.weight_ih") for name in update.federated)  # the columns that read it
    with opened(tmp_path / "run", base, rounds=2) as run:
        list(run.rounds())
        assert b"persona" not in state_to_bytes(run.state)
        assert sorted(run.vault.users()) == list(SPEAKERS)  # the host never replies
        rounds = [one for one in run.history() if one["kind"] == "round"]
        assert len(rounds) == 2
        for record in rounds:
            assert record["up_bytes"]["private"] == record["down_bytes"]["private"] == 0


def test_new_personas_are_normal_and_differ(base):
    built = built_fednlg(base, persona_dim=2000, persona_scale=0.5)
    ada, bo = (built.new_private(user, seed=0)["persona.embedding"] for user in ("ada", "bo"))
    assert float(ada.std()) == pytest.approx(0.5, rel=0.1) and float(ada.mean()) == pytest.approx(0, abs=0.05)
    assert not torch.equal(ada, bo)
    assert torch.equal(ada, built.new_private("ada", seed=0)["persona.embedding"])


@pytest.mark.parametrize("trainer", [LoopTrainer, partial(CohortTrainer, workers=0)])
def test_personas_of_zero_leave_the_shared_parameters_as_without_personas(base, trainer):
    """Phases of the shared parameters draw the same batches and dropout, so the difference of two runs is due to
    personas."""
    same = {"dropout": 0.3, "batch": 2, "lr": 0.2}
    with_personas = built_fednlg(base, persona_scale=0.0, persona_lr=0.0, **same)
    without = built_fednlg(base, persona="none", **same)
    updates = {}
    for one in (with_personas, without):
        clients = [client(one, "ada"), client(one, "bo")]
        updates[one.method.settings.persona] = trainer(one, seed=0).train(one.start().broadcast(), clients).update
    for name, expected in updates["none"].federated.items():
        found = updates["private"].federated[name]
        columns = expected.shape[-1]
        torch.testing.assert_close(found[..., :columns], expected, rtol=0, atol=1e-6)
        assert not found[..., columns:].any()  # of a persona of zero
    assert any(one.any() for one in updates["none"].federated.values())


def test_a_persona_may_take_fewer_steps_than_the_shared_parameters(base):
    """Two steps of the persona with SGD are two gradients, each times the learning rate; the shared parameters take
    four, one for each batch."""
    built = built_fednlg(base, batch=2, persona_steps=2, persona_lr=0.5, lr=0.0)
    who = Client("bo", {"persona.embedding": torch.zeros(3)}, built.method.model.encode(examples("bo")))
    own, shared = built.method.local.phases
    assert (own.steps, own.epochs, shared.steps, shared.epochs) == (2, None, None, 1)
    outcome = LoopTrainer(built, seed=0).train(built.start().broadcast(), [who])
    assert outcome.update.metrics["examples"] == 2 * 2 + 6


def test_two_phases_with_one_stream_are_rejected(base):
    method = fednlg.method(fednlg.Settings(base_model=base, **PLAIN), TASK)
    own, shared = method.local.phases
    twice = replace(method, local=replace(method.local, phases=(replace(own, stream="shared"), shared)))
    with pytest.raises(MethodError, match="two phases have the stream"):
        build(twice, seed=0)


def test_personas_of_a_table_start_as_private_ones_do(base):
    table = built_fednlg(base, persona="table", persona_dim=200, persona_scale=0.1).initial["persona.table"]
    assert table.std().item() == pytest.approx(0.1, abs=0.01)


def test_without_personas_all_speakers_have_one_model(base, tmp_path):
    built = built_fednlg(base, persona="none", persona_in_question=True)
    assert not built.partition.names(Role.PRIVATE) and built.new_private("ada", seed=0) == {}
    one = client(built, "ada")
    trained = LoopTrainer(built, 0).train(built.start().broadcast(), [one])
    plain = load_reply_model(base).build()
    leaves = {name: value.detach().clone().requires_grad_() for name, value in plain.named_parameters()}
    losses = functional_call(plain, leaves, (one.data,)).sum() / one.data["length"].sum()
    gradients = dict(zip(leaves, torch.autograd.grad(losses, list(leaves.values())), strict=True))
    assert trained.update.federated.keys() == gradients.keys()
    for name, change in trained.update.federated.items():  # it is the pre-trained model, one step of SGD further
        torch.testing.assert_close(change / 2, -0.5 * gradients[name], rtol=0, atol=1e-6)
    with opened(tmp_path / "run", base, method_settings={"persona": "none"}) as run:
        list(run.rounds())
        assert not list(run.vault.users())
        same = [Client(user, {}, one.data) for user in SPEAKERS]
        first, *others = run.trainer.predict(run.state.broadcast(), same)
        assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("persona", ["private", "table", "none"])
def test_a_warm_start_without_new_columns_keeps_the_losses_of_the_base(base, persona):
    data = fednlg.encode(examples("bo", author=1), loaded(base))
    expected = load_reply_model(base).build()(data)
    for new_columns, same in ((0.0, True), (1.0, persona == "none")):
        built = built_fednlg(base, persona=persona, new_columns=new_columns)
        broadcast = built.start().broadcast()
        (found,) = LoopTrainer(built, 0).predict(broadcast, [replace(client(built, "bo"), data=data)])
        assert torch.allclose(found, expected, atol=1e-6) is same


def test_central_training_moves_the_rows_of_authors_only(base):
    built = built_fednlg(base, central_dialogue, persona="table", optimizer="adam")
    assert built.method.local.pooled and built.partition.names(Role.KEYED) == ("persona.table",)
    assert not built.partition.names(Role.PRIVATE)
    state = built.start()
    assert state.keyed["persona.table"].shape == (3, 3)
    joined = Examples(
        [text for user in PAIRS for _, text in PAIRS[user]],
        prompts=[prompt for user in PAIRS for prompt, _ in PAIRS[user]],
        authors=np.array([0] * 2 + [2] * 6),
    )
    server = Client("server", {}, built.method.model.encode(joined))
    update = LoopTrainer(built, 0).train(state.broadcast(), [server]).update
    assert update.keyed["persona.table"].index.tolist() == [0, 2]
    moved = built.method.server(state, update).keyed["persona.table"] - state.keyed["persona.table"]
    assert moved.abs().amax(dim=1).gt(0).tolist() == [True, False, True]


@pytest.mark.parametrize("method", ["fednlg", "central_dialogue"])
def test_a_table_of_personas_is_one_row_per_speaker(base, tmp_path, method):
    with opened(tmp_path / "run", base, method=method, method_settings={"persona": "table"}) as run:
        before = run.state.keyed["persona.table"]
        list(run.rounds())
        moved = (run.state.keyed["persona.table"] - before).abs().amax(dim=1)
        assert moved.shape == (3,) and bool(moved.gt(0).all())
        assert not list(run.vault.users())
        (record,) = (one for one in run.history() if one["kind"] == "round")
        assert record["clients"] == (3 if method == "fednlg" else 1)


def test_training_learns_and_a_run_is_reopened(base, tmp_path):
    folder = tmp_path / "run"
    values = {**PLAIN, "base_model": base, "optimizer": "adam", "lr": 0.02, "workers": 0}
    with train("fednlg", load(conversations(20)), rounds=12, folder=folder, **values) as run:
        after = evaluate(run)
        assert after.headline[1] < 0.7 * next(one for one in run.history() if one["kind"] == "evaluation")["value"]
    with reopen(folder, federation=load(conversations(20))) as again:
        assert evaluate(again).headline == after.headline


def test_a_run_whose_base_model_changed_is_refused(tmp_path):
    base = write_reply_model(tmp_path / "model")
    with opened(tmp_path / "run", base) as run:
        list(run.rounds())
    write_reply_model(tmp_path / "model", seed=2)
    with pytest.raises(RunError, match=r"the reply model '.*' is not the one that this run was trained with"):
        opened(tmp_path / "run", base)
    write_reply_model(tmp_path / "model")
    config = Path(base) / "config.json"
    config.write_text(config.read_text().replace('"length": 6', '"length": 4'))  # texts would be cut elsewhere
    load_reply_model.cache_clear()
    with pytest.raises(RunError, match="its weights or sizes differ"):
        opened(tmp_path / "run", base)


def test_base_models_that_do_not_fit(tmp_path):
    with pytest.raises(SettingsError, match=r"base_model: name the folder .*--base"):
        built_fednlg("")
    back = write_reply_model(tmp_path / "back", direction="prompts")
    with pytest.raises(SettingsError, match="is an inverse model: it writes prompts"):
        built_fednlg(back)


@pytest.mark.parametrize(("optimizer", "cosine"), [("sgd", 1.0), ("adam", math.sqrt(2 / math.pi))])
def test_one_update_in_the_clear_discloses_the_direction_of_a_persona(optimizer, cosine):
    """What docs/threat-model.md says: each decoder step multiplies the persona by the same columns, so the change of
    these columns in one step of SGD is a multiple of it; Adam leaves its signs."""
    settings = {**fednlg.SMALL, "persona_dim": 64, "optimizer": optimizer, "lr": 0.01, "batch": 8, "dropout": 0.0}
    method = fednlg.method(fednlg.Settings(**settings), Task(population=1))
    built = build(method, seed=0)
    examples = Examples(
        texts=["the people of the land", "we must have peace"] * 4, prompts=["the law", "the state"] * 4
    )
    private = built.new_private("ada", seed=0)
    client = Client("ada", private, method.model.encode(examples))
    update = LoopTrainer(built, 0).train(built.start().broadcast(), [client]).update
    columns = update.federated["decoder.0.weight_ih_l0"][:, -64:].double()
    direction = torch.linalg.svd(columns).Vh[0]
    found = torch.nn.functional.cosine_similarity(direction, private["persona.embedding"].double(), dim=0).abs()
    assert float(found) == pytest.approx(cosine, abs=0.05)
