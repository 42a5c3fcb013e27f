"""The steps of the fast trainers are torch's: checked by hand for each optimizer, and against the oracle in rounds."""

from dataclasses import replace

import pytest
import torch
from small_cohort import built, clients

from homespun.core import tree
from homespun.core.errors import MethodError
from homespun.core.method import Adam, AdamW, Phase, Sgd
from homespun.core.personalize import GradientSteps
from homespun.engines.cohort import CohortTrainer
from homespun.engines.local_step import FusedStepper, LocalStep, Stepper, clip_by_norm
from homespun.engines.loop import LoopTrainer
from homespun.engines.sequential import select_used_rows
from homespun.engines.single_step import can_take_single_step
from homespun.models.document import DocumentModel

OPTIMIZERS = {
    "sgd": Sgd(0.1),
    "momentum": Sgd(0.05, momentum=0.9),
    "sgd decay": Sgd(0.1, momentum=0.5, weight_decay=0.1),
    "adam": Adam(0.01, eps=1e-4),
    "adam decay": Adam(0.01, eps=1e-4, weight_decay=0.3),
    "adamw": AdamW(0.01, eps=1e-4, weight_decay=0.5),
}


def phases(made, *some):
    local = replace(made.method.local, phases=some)
    return replace(made, method=replace(made.method, local=local, personalize=GradientSteps(some)))


class Unstackable(DocumentModel):
    stacked = None


def unstackable(made):
    """The same method with a model that cannot be stacked."""
    made.model.__class__ = Unstackable
    return made


def agree(slow, fast):
    assert slow.update.keyed.keys() == fast.update.keyed.keys()
    for name, rows in slow.update.keyed.items():
        theirs = fast.update.keyed[name]
        assert torch.equal(rows.index, theirs.index) and torch.equal(rows.weight, theirs.weight)
        assert torch.allclose(rows.values, theirs.values, atol=1e-4)
    # the update is weighted by examples: sums of about 100
    assert tree.max_abs_difference(slow.update.federated, fast.update.federated) < 3e-4
    for user, private in slow.private.items():
        assert private.keys() == fast.private[user].keys()
        assert tree.max_abs_difference(private, fast.private[user]) < 3e-5


# By hand: w = 2, gradients 3 and then 1


BY_HAND = {
    # 2 - 0.1 * 3 = 1.7;  1.7 - 0.1 * 1
    "sgd": (Sgd(0.1), [1.7, 1.6]),
    # 3 + 0.5 * 2 = 4: 2 - 0.4 = 1.6;  1 + 0.5 * 1.6 = 1.8, 0.9 * 4 + 1.8 = 5.4: 1.6 - 0.54
    "sgd with momentum and decay": (Sgd(0.1, momentum=0.9, weight_decay=0.5), [1.6, 1.06]),
    # the first step is the learning rate for any gradient;
    # then m = 0.5 * 1.5 + 0.5 * 1 = 1.25, over 0.75; v = 0.5 * 4.5 + 0.5 * 1 = 2.75, over 0.75
    "adam": (Adam(0.1, beta1=0.5, beta2=0.5, eps=0.0), [1.9, 1.9 - 0.1 * (1.25 / 0.75) / (2.75 / 0.75) ** 0.5]),
    # 3 + 0.5 * 2 = 4, and 1 + 0.5 * 1.9 = 1.95: m = 0.5 * 2 + 0.975, v = 0.5 * 8 + 0.5 * 1.95^2
    "adam with decay": (
        Adam(0.1, beta1=0.5, beta2=0.5, eps=0.0, weight_decay=0.5),
        [1.9, 1.9 - 0.1 * (1.975 / 0.75) / ((4 + 0.5 * 1.95**2) / 0.75) ** 0.5],
    ),
    # 2 * (1 - 0.1 * 0.5) = 1.9, less 0.1
    "adamw": (
        AdamW(0.1, beta1=0.5, beta2=0.5, eps=0.0, weight_decay=0.5),
        [1.8, 1.8 * 0.95 - 0.1 * (1.25 / 0.75) / (2.75 / 0.75) ** 0.5],
    ),
}


@pytest.mark.parametrize("kind", [Stepper, FusedStepper])
@pytest.mark.parametrize(("optimizer", "expected"), BY_HAND.values(), ids=BY_HAND)
def test_two_steps_by_hand(optimizer, expected, kind):
    value, stepper = torch.tensor([2.0]), kind(optimizer)
    for gradient, after in zip((3.0, 1.0), expected, strict=True):
        stepper.step(value, torch.tensor([gradient]))
        assert value.item() == pytest.approx(after, abs=1e-6)


def test_a_finished_client_does_not_change_while_others_continue():
    """Two clients with w = 2 and the same gradients, of which the second takes one step only."""
    value, stepper = torch.tensor([2.0, 2.0]), Stepper(BY_HAND["adam"][0])
    stepper.step(value, torch.tensor([3.0, 3.0]))
    stepper.step(value, torch.tensor([1.0]))
    assert value.tolist() == pytest.approx([BY_HAND["adam"][1][1], 1.9], abs=1e-6)


# Clipping


def test_the_norm_is_over_all_parameters_and_separate_for_each_client():
    """Client 0 has the gradient (3, 0, 4), of norm 5: a fifth of it is left. Client 1 has (0.6, 0, 0): all is left."""
    gradients = {"a": torch.tensor([[3.0, 0.0], [0.6, 0.0]]), "b": torch.tensor([4.0, 0.0])}
    found = clip_by_norm(gradients, 1.0, stacked=True)
    assert found["a"].flatten().tolist() == pytest.approx([0.6, 0.0, 0.6, 0.0], abs=1e-6)
    assert found["b"].tolist() == pytest.approx([0.8, 0.0], abs=1e-6)
    one = clip_by_norm({"a": torch.tensor([3.0, 0.0]), "b": torch.tensor(4.0)}, 1.0, stacked=False)
    assert one["a"].tolist() == pytest.approx([0.6, 0.0], abs=1e-6) and one["b"].item() == pytest.approx(0.8, abs=1e-6)


def test_the_fedprox_term_is_added_before_clipping():
    """w = 5 with its anchor at 1 and mu = 1: 3 + 4 = 7, clipped to 2. Clipped before the pull it would be 2 + 4."""
    phase = Phase(trains={"w": Sgd(1.0)}, batch=1, steps=1, mu=1.0, clip_norm=2.0)
    steps = LocalStep(phase, {"w": Sgd(1.0)}, frozenset(["w"]), {"w": torch.tensor([[1.0]])}, stacked=True)
    values = {"w": torch.tensor([[5.0]])}
    steps.take(values, {"w": torch.tensor([[3.0]])}, active=1)
    assert values["w"].item() == pytest.approx(3.0, abs=1e-5)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan")])
def test_clip_norm_must_be_above_zero(wrong):
    with pytest.raises(MethodError, match="clip_norm must be above 0"):
        Phase(trains={"*": Sgd(0.1)}, batch=1, steps=1, clip_norm=wrong)


# Whole rounds against the oracle: clients have 11, 15 and 18 examples, so that they take 3 to 5 steps


@pytest.mark.parametrize("path", ["stacked", "sequential"])
@pytest.mark.parametrize("clip_norm", [None, 0.2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_engines_agree(optimizer, clip_norm, path):
    phase = Phase(trains={"*": optimizer}, batch=4, epochs=1, mu=0.5, clip_norm=clip_norm)
    made = phases(built(users="table"), phase)
    start = made.start().broadcast()
    cohort = clients(made, [0, 5, 8])
    assert len({client.examples for client in cohort}) == 3
    slow = LoopTrainer(made, 0).train(start, cohort)
    slow_personalized = LoopTrainer(made, 0).train(start, cohort, mode="personalize")
    if path == "sequential":
        made = unstackable(made)
    agree(slow, CohortTrainer(made, 0, workers=0).train(start, cohort))
    agree(slow_personalized, CohortTrainer(made, 0, workers=0).train(start, cohort, mode="personalize"))


def test_clipping_changes_the_round():
    """The comparison above would also hold if no engine clipped."""
    made = built()
    start, cohort = made.start().broadcast(), clients(made, [0, 1])
    plain, clipped = (
        phases(made, Phase(trains={"*": Sgd(0.3)}, batch=4, epochs=1, clip_norm=norm)) for norm in (None, 0.2)
    )
    moved = [LoopTrainer(one, 0).train(start, cohort).update.federated["output.weight"] for one in (plain, clipped)]
    assert moved[1].norm() < 0.5 * moved[0].norm()


def test_every_phase_starts_with_a_fresh_optimizer():
    phase = Phase(trains={"*": Adam(0.01, eps=1e-4)}, batch=4, steps=2)
    made = phases(built(), phase, phase)
    start, cohort = made.start().broadcast(), clients(made, [0, 1])
    agree(LoopTrainer(made, 0).train(start, cohort), CohortTrainer(made, 0, workers=0).train(start, cohort))


def test_rows_that_a_client_does_not_use_are_left_out_without_weight_decay():
    made = unstackable(built(users="table"))
    start, (client,) = made.start().broadcast(), clients(made, [3])
    assert select_used_rows(made, start, client).broadcast.keyed["user.table"].shape[0] == 1
    decaying = phases(made, Phase(trains={"*": Sgd(0.1, weight_decay=0.1)}, batch=2, steps=1))
    assert select_used_rows(decaying, start, client).broadcast.keyed["user.table"].shape[0] == 12


# A cohort as one gradient


@pytest.mark.parametrize(
    ("optimizer", "changes", "summed"),
    [
        (Sgd(1.0), {}, True),
        (Sgd(1.0, momentum=0.9), {}, False),
        (Sgd(1.0, weight_decay=0.1), {}, False),
        (Adam(0.01, eps=1e-3), {}, False),
        (AdamW(0.01, eps=1e-3), {}, False),
        (Sgd(1.0), {"clip_norm": 1.0}, False),
        (Sgd(1.0), {"batch": 3}, False),
        (Sgd(1.0), {"steps": 2}, False),
    ],
)
def test_only_one_plain_step_is_trained_as_one_gradient(optimizer, changes, summed):
    phase = replace(Phase(trains={"*": optimizer}, batch=100, steps=1), **changes)
    made = phases(built(), phase)
    cohort = clients(made, [0, 3])
    assert can_take_single_step(made, cohort) is summed
    start = made.start().broadcast()
    agree(LoopTrainer(made, 0).train(start, cohort), CohortTrainer(made, 0, workers=0).train(start, cohort))
