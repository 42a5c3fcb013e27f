"""Split-Learning: which heads are trained, which are private, and where they start."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from language_models import write_gpt2

from homespun.core import tree
from homespun.core.messages import broadcast_to_bytes, state_to_bytes, update_to_bytes
from homespun.core.method import Task, build
from homespun.data.federation import Examples
from homespun.engines.client import Client
from homespun.engines.cohort import CohortTrainer
from homespun.engines.loop import LoopTrainer
from homespun.system.method_loading import load_method
from homespun.testing.contract import check_method

TEXTS = (
    "We must go on together, my fellow citizens.",
    "The people ask what the state of the union is.",
    "I think so, and the people think so too.",
    "Together we ask the citizens what they think.",
)
SMALL = {"length": 12, "local_steps": 3, "batch": 2, "personalize_steps": 2, "lr": 0.01}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(write_gpt2(tmp_path_factory.mktemp("base") / "model"))


@pytest.fixture(scope="module")
def built(base):
    return build(load_method("split_learning", {**SMALL, "base_model": base}, Task(contexts=3)), seed=0)


def client(built, user="ada", contexts=(1, 1, 1, 1)):
    data = built.method.model.encode(Examples(list(TEXTS), labels=None, contexts=np.array(contexts)))
    return Client(user, private=built.new_private(user, seed=0), data=data)


@pytest.mark.parametrize("engine", [LoopTrainer, lambda *given: CohortTrainer(*given, workers=0)])
def test_only_the_heads_of_used_contexts_move(built, engine):
    start = built.start()
    outcome = engine(built, 0).train(start.broadcast(), [client(built, contexts=(0, 2, 2, 0))])
    rows = outcome.update.keyed["context.heads"]
    assert rows.index.tolist() == [0, 2] and all(values.any() for values in rows.values)
    after = built.method.server(start, outcome.update).keyed["context.heads"]
    before = start.keyed["context.heads"]
    assert [torch.equal(one, other) for one, other in zip(after, before, strict=True)] == [False, True, False]


def test_the_two_engines_agree(built):
    state = built.start()
    clients = [
        client(built, "ada", (0, 2, 2, 0)),
        client(built, "ben", (1, 1, 1, 1)),
        client(built, "cy", (2, 1, 0, 2)),
    ]
    for mode in ("round", "personalize"):
        slow = LoopTrainer(built, 0).train(state.broadcast(), clients, mode=mode)
        fast = CohortTrainer(built, 0, workers=0).train(state.broadcast(), clients, mode=mode)
        for user in slow.private:
            assert tree.max_abs_difference(slow.private[user], fast.private[user]) < 1e-5
        one, other = slow.update.keyed["context.heads"], fast.update.keyed["context.heads"]
        assert torch.equal(one.index, other.index) and torch.equal(one.weight, other.weight)
        assert not len(one.index) or float((one.values - other.values).abs().max()) < 1e-5
        assert slow.update.metrics == pytest.approx(fast.update.metrics, rel=1e-5)


def test_a_private_head_is_in_no_message(built):
    start = built.start()
    ada = client(built)
    own = ada.private["personal.head"] + 0.01 * torch.randn(300, 16, generator=torch.Generator().manual_seed(0))
    outcome = LoopTrainer(built, 0).train(start.broadcast(), [replace(ada, private={"personal.head": own})])
    kept = outcome.private["ada"]["personal.head"]
    assert set(outcome.private["ada"]) == {"personal.head"} and not torch.equal(kept, own)
    state = built.method.server(start, outcome.update)
    for message in (update_to_bytes(outcome.update), broadcast_to_bytes(state.broadcast()), state_to_bytes(state)):
        assert b"personal.head" not in message
        assert all(row.numpy().tobytes() not in message for head in (own, kept) for row in head)


def test_personalization_changes_nothing_shared(built):
    state = built.start()
    before = state_to_bytes(state)
    outcome = CohortTrainer(built, 0, workers=0).train(state.broadcast(), [client(built)], mode="personalize")
    assert state_to_bytes(state) == before
    assert outcome.update.clients == 0 and not len(outcome.update.keyed["context.heads"].index)
    mine = outcome.private["ada"]
    assert set(mine) == {"personal.head", "context.heads"}  # a copy of the context heads, with the used one changed
    changed = [not torch.equal(mine["context.heads"][row], state.keyed["context.heads"][row]) for row in range(3)]
    assert changed == [False, True, False]


@pytest.mark.parametrize("method", ["split_learning", "meta_learning"])
def test_untrained_methods_equal_the_base_model(base, built, method):
    settings, task = {"base_model": base, "length": 12}, Task(contexts=3)
    losses = []
    for name in ("fedperc", method):
        other = build(load_method(name, settings, task), seed=0)
        (output,) = LoopTrainer(other, 0).predict(other.start().broadcast(), [client(other, contexts=(0, 1, 2, 0))])
        losses.append(output)
    assert float((losses[0] - losses[1]).abs().max()) < 1e-5
    assert float(losses[0].max()) > 1  # there is something to agree about


def test_both_heads_have_their_own_learning_rates(base):
    settings = {**SMALL, "base_model": base, "lr": 0.0, "personal_lr": 0.01}
    built = build(load_method("split_learning", settings, Task(contexts=3)), seed=0)
    outcome = LoopTrainer(built, 0).train(built.start().broadcast(), [client(built)])
    assert not outcome.update.keyed["context.heads"].values.any()
    assert not torch.equal(outcome.private["ada"]["personal.head"], client(built).private["personal.head"])


@pytest.mark.system
@pytest.mark.parametrize("method", ["split_learning", "meta_learning"])
def test_the_contract(base, method):
    report = check_method(method, {"base_model": base})
    assert len(report.passed) == 12 and report.largest_difference < 1e-5
