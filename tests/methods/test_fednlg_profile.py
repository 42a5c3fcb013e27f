"""FedNLG with profiles: which rows of the table an update moves, and what needs no profile."""

import json
from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pytest
import torch
from small_dialogue import PROFILES, SPEAKERS, conversations, loaded, with_profiles, write_reply_model
from torch.func import functional_call

from homespun.core.method import Task, build
from homespun.core.roles import Role
from homespun.data import Columns
from homespun.data.federation import Examples
from homespun.engines.client import Client
from homespun.engines.cohort import CohortTrainer
from homespun.engines.loop import LoopTrainer
from homespun.methods import central_dialogue, fednlg
from homespun.runs.evaluate import evaluate
from homespun.runs.training import load, reopen, train
from homespun.system.method_loading import load_method

SMALL = {"dropout": 0.0, "clip_norm": 1e6, "persona_dim": 3, "profile_dim": 2, "batch": 100, "new_columns": 1.0}
PLAIN = {**SMALL, "schedule": "joint", "persona_optimizer": "sgd", "persona_lr": 0.5, "lr": 0.5}
TASK = Task(population=3, profile=(3, 4))  # gender: unknown and two; age: unknown and three
# gender and age by number, and the pairs of each speaker
SPOKEN = {"ada": ((1, 2), 2), "bo": ((1, 0), 6)}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_reply_model(tmp_path_factory.mktemp("reply") / "model", scale=2.0)


def examples(user, author=0):
    profile, count = SPOKEN[user]
    return Examples(
        ["yes.", "no, we go."] * (count // 2),
        prompts=["is the sea blue?", "and you?"] * (count // 2),
        authors=np.full(count, author),
        profiles=np.tile(profile, (count, 1)),
    )


def built_fednlg(base, module=fednlg, task=TASK, **settings):
    return build(module.method(module.Settings(base_model=base, **{**PLAIN, **settings}), task), seed=0)


def client(built, user, author=0):
    return Client(user, built.new_private(user, seed=0), built.method.model.encode(examples(user, author)))


def test_profiles_as_rows_of_the_table(base):
    """The rows of gender are 0 to 2, those of age 3 to 6."""
    model = loaded(base)
    assert fednlg.encode(examples("ada"), model, profile=(3, 4))["profile"].tolist() == [[1, 5], [1, 5]]
    without = Examples(["yes."], prompts=["no"])
    assert fednlg.encode(without, model, profile=(3, 4))["profile"].tolist() == [[0, 3]]  # unknown
    assert "profile" not in fednlg.encode(examples("ada"), model)
    assert fednlg.encode(Examples([], prompts=[]), model, profile=(3, 4))["profile"].shape == (0, 2)


def test_a_task_survives_json():
    assert Task(**json.loads(json.dumps(asdict(TASK)))) == TASK and Task().profile == ()


def test_the_behaviour_part_is_private_and_the_table_is_averaged(base):
    built = built_fednlg(base)
    assert built.partition.names(Role.PRIVATE) == ("persona.embedding",)
    assert built.partition.role_of("profile.table") is Role.FEDERATED
    assert built.initial["profile.table"].shape == (7, 2)
    assert built.initial["decoder.0.weight_ih_l0"].shape[1] == 5 + 2 + 3  # words, profile part, behaviour part


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_update_moves_the_rows_of_the_own_values_only(base, optimizer):
    """What docs/threat-model.md says: in the clear, the rows that move are the profile."""
    built = built_fednlg(base, optimizer=optimizer)
    for user, rows in (("ada", [1, 5]), ("bo", [1, 3])):
        update = LoopTrainer(built, 0).train(built.start().broadcast(), [client(built, user)]).update
        assert update.federated["profile.table"].abs().amax(dim=1).nonzero().flatten().tolist() == rows


def test_a_step_of_sgd_and_the_average_by_hand(base):
    """A row moves by the gradient of the profile part; the server divides by all examples, 2 and 6."""
    built = built_fednlg(base)
    state, deltas = built.start(), {}
    clients = {user: client(built, user) for user in SPOKEN}
    for user, one in clients.items():
        table = state.federated["profile.table"].clone().requires_grad_()
        losses = functional_call(
            built.model, {**state.federated, **one.private, "profile.table": table}, (dict(one.data),)
        )
        (gradient,) = torch.autograd.grad(losses.sum() / one.data["length"].sum(), table)
        # Both values are added to the same part, so that their rows have the same gradient.
        first, second = one.data["profile"][0].tolist()
        torch.testing.assert_close(gradient[first], gradient[second])
        assert float(gradient[first].abs().max()) > 1e-3
        deltas[user] = -0.5 * gradient
    update = LoopTrainer(built, 0).train(state.broadcast(), list(clients.values())).update
    found = built.method.server(state, update).federated["profile.table"]
    torch.testing.assert_close(found, (2 * deltas["ada"] + 6 * deltas["bo"]) / 8, rtol=0, atol=1e-6)
    assert found[[0, 2, 4, 6]].abs().max() == 0  # values that none of them has


@pytest.mark.parametrize("persona", ["private", "table"])
def test_the_cohort_engine_equals_the_loop(base, persona):
    settings = {"persona": persona, "local_epochs": 2, "batch": 2, "dropout": 0.2, "clip_norm": 1.0}
    built = build(load_method("fednlg", {"base_model": base, **PLAIN, **settings}, TASK), seed=0)
    broadcast, clients = built.start().broadcast(), [client(built, user, place) for place, user in enumerate(SPOKEN)]
    loop, cohort = (
        engine.train(broadcast, clients) for engine in (LoopTrainer(built, 0), CohortTrainer(built, 0, workers=0))
    )
    for name, value in loop.update.federated.items():
        torch.testing.assert_close(cohort.update.federated[name], value, rtol=0, atol=1e-5)
    for user in SPOKEN if persona == "private" else ():
        ours, theirs = (one.private[user]["persona.embedding"] for one in (cohort, loop))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert float(loop.update.federated["profile.table"].abs().max()) > 1e-3


@pytest.mark.parametrize("settings", [{"profile_dim": 0}, {"persona": "none"}])
def test_profiles_that_are_not_used_change_nothing(base, settings):
    with_profile, without = (built_fednlg(base, task=task, **settings) for task in (TASK, Task(population=3)))
    assert with_profile.initial.keys() == without.initial.keys()
    assert all(torch.equal(value, without.initial[name]) for name, value in with_profile.initial.items())
    assert "profile" not in client(with_profile, "ada").data


def test_a_run_without_profiles_keeps_its_identity():
    assert "profile_dim" not in fednlg.Settings().identity()
    assert fednlg.Settings(profile_dim=8).identity()["profile_dim"] == 8


def test_central_training_has_a_table_of_behaviour_parts(base):
    built = built_fednlg(base, central_dialogue, persona="table")
    assert built.start().keyed["persona.table"].shape == (3, 3)
    parts = [examples(user, place) for place, user in ((0, "ada"), (2, "bo"))]
    joined = Examples(
        [text for one in parts for text in one.texts],
        prompts=[prompt for one in parts for prompt in one.prompts],
        authors=np.concatenate([one.authors for one in parts]),
        profiles=np.concatenate([one.profiles for one in parts]),
    )
    server = Client("server", {}, built.method.model.encode(joined))
    update = LoopTrainer(built, 0).train(built.start().broadcast(), [server]).update
    assert update.keyed["persona.table"].index.tolist() == [0, 2]
    moved = update.federated["profile.table"].abs().amax(dim=1).nonzero().flatten().tolist()
    assert moved == [1, 3, 5]  # gender 1 of both, age unknown and 2


@pytest.mark.parametrize("method", ["fednlg", "central_dialogue"])
def test_a_run_learns_from_profiles_and_is_reopened(base, tmp_path, method):
    data = load(with_profiles(conversations(20)), columns=Columns(profile="gender,age"))
    values = {**SMALL, "optimizer": "adam", "lr": 0.02, "rounds": 8, "evaluate_replies": 0, "workers": 0}
    with train(method, data, base_model=base, folder=tmp_path / "run", **values) as run:
        assert run.method.task.profile == (3, 3) and list(run.federation.users) == list(SPEAKERS)
        after = evaluate(run)
        assert after.headline[1] < 0.9 * next(one for one in run.history() if one["kind"] == "evaluation")["value"]
        moved = run.state.federated["profile.table"].abs().amax(dim=1) > 0
        # gender: female, male; age: unknown (Cy), 36, 50
        assert moved.tolist() == [False, True, True, True, True, True]
        assert len({tuple(one.items()) for one in PROFILES.values()}) == 3
    with reopen(tmp_path / "run", federation=data) as again:
        assert evaluate(again).headline == after.headline


def test_a_new_speaker_without_examples_is_known_by_the_profile(base):
    """Female speakers say yes and male ones no; a speaker who was withheld has a persona that was never trained."""
    gender = {user: ("female", "male")[place % 2] for place, user in enumerate("abcdef")}
    answer = {"female": "yes.", "male": "no."}
    turns = []
    for scene, user in product(range(10), gender):
        said = {"host": ("and you?", None), user: (answer[gender[user]], gender[user])}
        turns += [
            {"user": who, "text": text, "scene": f"{scene} {user}", "gender": value}
            for who, (text, value) in said.items()
        ]
    sizes = {"persona_dim": 8, "profile_dim": 8, "new_columns": 0.1, "dropout": 0.0}
    values = {
        "optimizer": "adam",
        "lr": 0.05,
        "rounds": 30,
        "local_epochs": 5,
        "evaluate_replies": 0,
        "workers": 0,
        "withheld": 0.17,
    }
    with train("fednlg", load(turns, columns=Columns(profile="gender")), base_model=base, **sizes, **values) as run:
        (user,) = run.newcomers.users
        data = run.clients.encode(run.newcomers, 0, "train")
        own = Client(user, run.built.new_private(user, seed=0), data)
        other = replace(own, data={**data, "profile": 3 - data["profile"]})
        right, wrong = (
            float(one.sum(dim=1).mean()) for one in run.trainer.predict(run.state.broadcast(), [own, other])
        )
    assert right < wrong - 1
