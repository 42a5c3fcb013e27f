"""Dropout draws the same masks in every engine, and different ones for every seed, round, user and step."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_cohort import FEDERATION

from homespun.core import tree
from homespun.core.errors import MethodError
from homespun.core.messages import state_to_bytes
from homespun.core.method import Task, build
from homespun.core.transforms import NO_TRANSFORMS, Transforms
from homespun.data import load_federation
from homespun.engines import single_step
from homespun.engines.client import Client
from homespun.engines.cohort import CohortTrainer
from homespun.engines.loop import LoopTrainer
from homespun.engines.single_step import can_take_single_step
from homespun.privacy.dp import DpMechanism
from homespun.privacy.mechanism import Clip
from homespun.runs.open_run import open_run
from homespun.runs.settings import RunSettings
from homespun.system.method_loading import load_method
from homespun.system.trust import named_by_user

FILE = str(Path(__file__).parent / "dropout_method.py")
PATHS = ["stacked", "sequential", "single step"]


@named_by_user()
def make(**settings):
    return build(load_method(FILE, settings, Task(classes=8, population=12)), seed=0)


def make_clients(made, positions=(0, 3, 4, 8)):
    return [
        Client(
            FEDERATION.users[position],
            made.new_private(FEDERATION.users[position], seed=0),
            made.method.model.encode(FEDERATION.examples(position)),
        )
        for position in positions
    ]


def difference(one, other):
    assert one.update.keyed.keys() == other.update.keyed.keys()
    rows, theirs = one.update.keyed["user.table"], other.update.keyed["user.table"]
    assert torch.equal(rows.index, theirs.index)
    return max(
        tree.max_abs_difference(one.update.federated, other.update.federated),
        float((rows.values - theirs.values).abs().max()),
        *(tree.max_abs_difference(own, other.private[user]) for user, own in one.private.items()),
    )


CLIPS = Transforms((DpMechanism(Clip({"*": 0.5})),))


@pytest.mark.parametrize("chain", [NO_TRANSFORMS, CLIPS], ids=["no transforms", "clipped"])
@pytest.mark.parametrize("path", PATHS)
def test_engines_draw_the_same_masks(path, chain):
    made = make(path=path)
    start, cohort = made.start().broadcast(), make_clients(made)
    assert can_take_single_step(made, cohort) is (path == "single step")
    slow = LoopTrainer(made, 0, chain).train(start, cohort)
    fast = CohortTrainer(made, 0, workers=0, transforms=chain).train(start, cohort)
    assert difference(slow, fast) < 1e-4
    without = LoopTrainer(make(path=path, p=0.0), 0, chain).train(start, cohort)
    assert difference(slow, without) > 0.01  # dropout has an effect


@pytest.mark.parametrize("path", ["stacked", "sequential"])
def test_engines_draw_the_same_masks_when_personalizing(path):
    made = make(path=path)
    start, cohort = made.start().broadcast(), make_clients(made)
    slow, fast = (
        engine.train(start, cohort, mode="personalize").private
        for engine in (LoopTrainer(made, 0), CohortTrainer(made, 0, workers=0))
    )
    for user, own in slow.items():
        assert tree.max_abs_difference(own, fast[user]) < 1e-5


def test_a_cohort_of_one_gradient_takes_a_single_step(monkeypatch):
    monkeypatch.setattr(single_step, "train_clients", None)
    made = make(path="single step")
    CohortTrainer(made, 0, workers=0).train(made.start().broadcast(), make_clients(made))


def keys_of(engine, made, *, round=0, position=0):
    """All keys of a client's training, one list per step."""
    keys = []

    def loss(predict, parameters, batch):
        keys.append(batch["key"].flatten().tolist())
        return made.method.local.loss(predict, parameters, batch)

    phases = tuple(replace(phase, loss=loss) for phase in made.method.local.phases)
    watched = replace(made, method=replace(made.method, local=replace(made.method.local, phases=phases)))
    engine(watched).train(replace(made.start().broadcast(), round=round), make_clients(made, [position]))
    return keys


@pytest.mark.parametrize(
    "engine",
    [lambda made: LoopTrainer(made, 0), lambda made: CohortTrainer(made, 0, workers=0)],
    ids=["loop", "cohort"],
)
@pytest.mark.parametrize("path", PATHS)
def test_every_step_round_user_and_seed_has_different_keys(path, engine):
    """Client 0 has 18 examples: 3 steps on all of them, then 5 steps on 4, 4, 4, 4 and 2, or one step on all."""
    made = make(path=path)
    first = keys_of(engine, made)
    assert [len(keys) for keys in first] == ([18, 18, 18, 18] if path == "single step" else [18, 18, 18, 4, 4, 4, 4, 2])
    another_seed = lambda made: replace(engine(made), seed=1)  # noqa: E731
    others = [keys_of(engine, made, round=1), keys_of(engine, made, position=3), keys_of(another_seed, made)]
    every = [key for keys in (first, *others) for step in keys for key in step]
    assert len(set(every)) == len(every)


def test_predictions_have_no_keys_and_are_deterministic():
    made = make()
    start, cohort = made.start().broadcast(), make_clients(made)
    for engine in (LoopTrainer(made, 0), CohortTrainer(made, 0, workers=0), LoopTrainer(make(p=0.0), 5)):
        for one, other in zip(engine.predict(start, cohort), LoopTrainer(made, 3).predict(start, cohort), strict=True):
            assert torch.allclose(one, other, atol=1e-6)


def test_the_key_column_cannot_name_rows():
    made = make()
    wrong = replace(made.method, model=replace(made.method.model, keys={"user.table": "key"}))
    with pytest.raises(MethodError, match="the column 'key' is reserved for random draws"):
        build(wrong, seed=0)


@pytest.mark.parametrize("engine", ["cohort", "loop"])
def test_a_resumed_run_draws_the_same_numbers(tmp_path, engine):
    @named_by_user()
    def trained(folder, *, rounds):
        settings = RunSettings(rounds=rounds, cohort=3, workers=0, engine=engine)
        federation = load_federation("dialects", settings={"users": 6, "examples": 10})
        with open_run(tmp_path / folder, method=FILE, federation=federation, settings=settings) as run:
            for _ in run.rounds():
                pass
            return state_to_bytes(run.state), {user: run.vault.export(user) for user in run.vault.users()}

    trained("resumed", rounds=1)
    assert trained("resumed", rounds=3) == trained("whole", rounds=3)
