"""Trainers give the same numbers for any number of processes."""

import numpy as np
import pytest
import torch
from small_cohort import built, clients

from homespun.core import tree
from homespun.core.method import Adam, Phase, Sgd
from homespun.engines.client import Client, client_update
from homespun.engines.cohort import CohortTrainer, split_chunks
from homespun.engines.local_step import Stepper
from homespun.engines.loop import LoopTrainer, torch_optimizer
from homespun.engines.stacked import pad_rows, stack_data
from homespun.methods.furl import SMALL


def differences(one, other):
    private = [tree.max_abs_difference(one.private[user], other.private[user]) for user in one.private]
    keyed = [float((one.update.keyed[n].values - other.update.keyed[n].values).abs().max()) for n in one.update.keyed]
    return max(tree.max_abs_difference(one.update.federated, other.update.federated), *private, *keyed, 0.0)


@pytest.mark.parametrize(
    "settings",
    [
        {"users": "private"},
        {"users": "table"},
        {"users": "none"},
        {"mu": 1.0, "local_epochs": 2},
        {"user_lr": 0.0},
        {"lr": 0.0},
    ],
)
def test_stacked_equals_loop(settings):
    made = built(**settings)
    broadcast = made.start().broadcast()
    slow = LoopTrainer(made, 0).train(broadcast, clients(made))
    fast = CohortTrainer(made, 0, workers=0).train(broadcast, clients(made))
    assert differences(slow, fast) < 1e-4  # the update is weighted by examples: sums of about 100
    assert slow.update.metrics["loss"] == pytest.approx(fast.update.metrics["loss"], rel=1e-5)
    assert slow.update.metrics["examples"] == fast.update.metrics["examples"]
    assert (slow.update.weight, slow.update.clients) == (fast.update.weight, fast.update.clients)


def test_a_client_without_examples_changes_nothing():
    made = built()
    cohort = clients(made, [0, 1, 2])
    empty = Client(
        "empty",
        private=made.new_private("empty", seed=0),
        data={k: v[:0] for k, v in cohort[0].data.items()},
    )
    broadcast = made.start().broadcast()
    for engine in (LoopTrainer(made, 0), CohortTrainer(made, 0, workers=0)):
        without, with_them = engine.train(broadcast, cohort), engine.train(broadcast, [*cohort, empty])
        assert tree.max_abs_difference(without.update.federated, with_them.update.federated) < 1e-6
        assert with_them.update.weight == without.update.weight
        assert tree.max_abs_difference(with_them.private["empty"], empty.private) == 0
        assert engine.train(broadcast, [empty]).update.weight == 0


@pytest.mark.parametrize("optimizer", [Sgd(0.1), Sgd(0.1, momentum=0.9), Adam(0.01)])
def test_stacked_steps_are_torch_steps_while_clients_finish(optimizer):
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(4, 3, 5, generator=generator)  # steps, clients, parameters
    active = [3, 3, 2, 1]
    stacked, stepper = torch.ones(3, 5), Stepper(optimizer)
    for step, count in enumerate(active):
        stepper.step(stacked, gradients[step, :count])
    for client in range(3):
        alone = torch.ones(5, requires_grad=True)
        theirs = torch_optimizer(optimizer, [alone])
        for step, count in enumerate(active):
            if client < count:
                alone.grad = gradients[step, client].clone()
                theirs.step()
        assert torch.allclose(stacked[client], alone, atol=1e-7)


def test_an_empty_cohort():
    made = built()
    engine = CohortTrainer(made, 0, workers=0)
    assert engine.predict(made.start().broadcast(), []) == []
    assert engine.train(made.start().broadcast(), []).update.clients == 0


@pytest.mark.parametrize(("clients_in_cohort", "sizes"), [(1, [1]), (10, [5, 5]), (50, [25, 25]), (60, [15] * 4)])
def test_chunks_are_even(clients_in_cohort, sizes):
    some = [Client(str(number), {}, {}) for number in range(clients_in_cohort)]
    assert [len(chunk) for chunk in split_chunks(some)] == sizes
    assert [client for chunk in split_chunks(some) for client in chunk] == some


def test_padding():
    rows, valid = pad_rows([np.array([4, 2]), np.array([7])])
    assert rows.tolist() == [[4, 2], [7, 0]]
    assert valid.tolist() == [[1, 1], [1, 0]]
    data = stack_data(
        [
            Client("a", {}, {"x": torch.tensor([1, 2])}),
            Client("b", {}, {"x": torch.tensor([], dtype=torch.int64)}),
        ]
    )
    assert data["x"].tolist() == [[1, 2], [1, 1]]


def test_rows_of_different_sizes_are_padded_with_zeros():
    sizes = {"ada": (2, 1), "bo": (1, 3), "cy": (0, 2)}  # rows and their length
    data = stack_data([Client(user, {}, {"x": torch.ones(*size)}) for user, size in sizes.items()])
    assert data["x"].tolist() == [[[1, 0, 0], [1, 0, 0]], [[1, 1, 1], [1, 1, 1]], [[1, 0, 0], [1, 0, 0]]]


def test_predictions_are_in_the_order_of_clients():
    made = built()
    cohort = clients(made)
    broadcast = made.start().broadcast()
    slow = LoopTrainer(made, 0).predict(broadcast, cohort)
    fast = CohortTrainer(made, 0, workers=0).predict(broadcast, cohort)
    for one, other, client in zip(slow, fast, cohort, strict=True):
        assert one.shape == other.shape == (client.examples, 8)
        assert torch.allclose(one, other, atol=1e-5)


def test_a_phase_trains_only_what_its_globs_match():
    """Here only the output layer is trained, with Adam."""
    from dataclasses import replace

    made = built()
    phase = Phase(trains={"output.*": Adam(0.01)}, batch=4, steps=3)
    made = replace(made, method=replace(made.method, local=replace(made.method.local, phases=(phase,))))
    broadcast = made.start().broadcast()
    slow = LoopTrainer(made, 0).train(broadcast, clients(made))
    fast = CohortTrainer(made, 0, workers=0).train(broadcast, clients(made))
    assert differences(slow, fast) < 1e-4
    assert slow.update.federated["hidden.weight"].abs().max() == 0
    assert slow.update.federated["output.weight"].abs().max() > 0


@pytest.mark.system
def test_the_number_of_workers_does_not_change_a_bit():
    made = built()
    broadcast = made.start().broadcast()
    outcomes = [CohortTrainer(made, 0, workers=workers).train(broadcast, clients(made)) for workers in (0, 1, 2)]
    for other in outcomes[1:]:
        assert tree.to_bytes(outcomes[0].update.federated) == tree.to_bytes(other.update.federated)
        assert all(
            tree.to_bytes(outcomes[0].private[user]) == tree.to_bytes(other.private[user]) for user in other.private
        )


@pytest.mark.system
def test_unusual_user_names_reach_workers_and_come_back():
    made = built()
    names = ["../../x", "a" * 300, "\0", "A", "a", "\ud800"]
    some = [Client(name, made.new_private(name, seed=0), clients(made, [0])[0].data) for name in names]
    outcome = CohortTrainer(made, 0, workers=2).train(made.start().broadcast(), some)
    assert set(outcome.private) == set(names)


@pytest.mark.parametrize("workers", [None, 0, pytest.param(2, marks=pytest.mark.system)])
def test_a_client_whose_training_diverged_is_left_out_and_keeps_its_parameters(workers):
    made = built()
    engine = LoopTrainer(made, 0) if workers is None else CohortTrainer(made, 0, workers=workers)
    start, cohort = made.start().broadcast(), clients(made)
    broken = cohort[3]
    spoiled = Client(broken.user, {name: value * float("nan") for name, value in broken.private.items()}, broken.data)
    found = engine.train(start, [*cohort[:3], spoiled, *cohort[4:]])
    assert list(found.rejected) == [broken.user] and "NaN, infinity" in found.rejected[broken.user]
    assert broken.user not in found.private and len(found.private) == 11
    without = engine.train(start, [*cohort[:3], *cohort[4:]])
    assert found.update.clients == 11 and differences(without, found) < 1e-6


def test_a_clients_update_by_hand():
    """Three examples: weight 3 times delta, of touched rows only, and no private parameters."""
    made = built(users="table")
    start = made.start().broadcast()
    (client,) = clients(made, [2])
    data = {name: column[:3] for name, column in client.data.items()}
    trained = {name: value + 0.5 for name, value in {**start.federated, **start.keyed}.items()}
    metrics = {"loss": 6.0, "examples": 3.0}
    update = client_update(made, start, Client("ann", {}, data), trained=trained, metrics=metrics, seed=0)
    assert (update.weight, update.clients, update.metrics) == (3.0, 1, metrics)
    assert torch.allclose(update.federated["output.bias"], torch.full((8,), 1.5))
    rows = update.keyed["user.table"]
    assert (rows.index.tolist(), rows.weight.tolist()) == ([2], [3.0])
    assert torch.allclose(rows.values, torch.full((1, SMALL["user_dim"]), 1.5))
