import numpy as np
import pytest

from homespun.core import seeds
from homespun.core.batches import plan_batches
from homespun.core.errors import MethodError
from homespun.core.method import Phase, Sgd


def phase(**changes):
    return Phase(trains={"*": Sgd(0.1)}, batch=4, **changes)


def test_a_key_depends_on_all_of_its_parts_and_on_nothing_else():
    keys = {
        seeds.derive(1, "batches", 2, "ann"),
        seeds.derive(2, "batches", 2, "ann"),
        seeds.derive(1, "private", 2, "ann"),
        seeds.derive(1, "batches", 3, "ann"),
        seeds.derive(1, "batches", 2, "bob"),
        seeds.derive(1, "batches", "2", "ann"),
    }
    assert len(keys) == 6
    assert seeds.derive(1, "batches", 2, "ann") == seeds.derive(1, "batches", 2, "ann")
    assert seeds.derive(0, "known") == 1038489589173456628


def test_any_text_is_a_valid_part():
    assert len({seeds.derive(0, "x", user) for user in ("../../x", "\0", "\ud800", "a" * 300, "A" * 300)}) == 5
    assert seeds.derive(0, "x", "a", "b") != seeds.derive(0, "x", 'a", "b')


def test_an_epoch_uses_every_example_once_and_may_end_short():
    batches = plan_batches(10, phase(epochs=2), np.random.default_rng(0))
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4, 2]
    assert sorted(np.concatenate(batches[:3])) == list(range(10))
    assert sorted(np.concatenate(batches[3:])) == list(range(10))
    assert list(np.concatenate(batches[:3])) != list(np.concatenate(batches[3:]))


def test_steps_continue_over_epochs():
    assert [len(batch) for batch in plan_batches(6, phase(steps=5), np.random.default_rng(0))] == [
        4,
        2,
        4,
        2,
        4,
    ]


def test_without_examples_there_are_no_batches():
    assert plan_batches(0, phase(steps=5), np.random.default_rng(0)) == []


@pytest.mark.parametrize("wrong", [{}, {"epochs": 1, "steps": 1}])
def test_a_phase_has_either_epochs_or_steps(wrong):
    with pytest.raises(MethodError, match="either epochs or steps"):
        phase(**wrong)
