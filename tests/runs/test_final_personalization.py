"""Participants personalize after the last round: what they keep, what the server sees, and a run that was stopped."""

import pytest
import torch

from homespun.core.errors import RunError, SettingsError
from homespun.core.messages import pack, state_to_bytes, unpack
from homespun.engines.remote import RemoteEngine, answer
from homespun.engines.simulation import SimulationEngine
from homespun.methods.furl import SMALL
from homespun.personalization.user import load_user_model
from homespun.runs.training import load, prepare

SETTINGS = {**SMALL, "rounds": 2, "cohort": 4, "workers": 0}


def open_furl(folder, **settings):
    return prepare("furl", load("dialects", users=8), folder=folder, settings={**SETTINGS, **settings})


def private_of(run):
    return {user: dict(row) for user, row in run.clients.stored_private(list(run.federation.users)).items()}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for user, row in ours.items():
        assert all(torch.equal(value, theirs[user][name]) for name, value in row.items())


def test_participants_personalize_as_new_users_do_and_the_model_stays(tmp_path):
    with open_furl(tmp_path / "plain") as plain:
        list(plain.rounds())
        users = list(plain.federation.users)
        clients = plain.clients.load(users, "train", plain.state.broadcast(), user_set="population")
        expected = plain.trainer.train(plain.state.broadcast(), clients, mode="personalize").private
        before = private_of(plain)
    with open_furl(tmp_path / "run", final_personalization=True) as run:
        list(run.rounds())
        found, history = private_of(run), run.history()
        assert state_to_bytes(run.state) == state_to_bytes(plain.state)
    assert_same(found, expected)
    assert any(not torch.equal(row["user.embedding"], found[user]["user.embedding"]) for user, row in before.items())
    assert history[-1] == {"kind": "personalized", "round": 2}
    assert [entry["kind"] for entry in history].count("personalized") == 1


def test_a_run_that_was_stopped_before_it_personalizes_once(tmp_path):
    with open_furl(tmp_path / "run") as run:
        list(run.rounds())
    for number in range(2):  # the second time there is nothing left to do
        with open_furl(tmp_path / "run", final_personalization=True) as resumed:
            assert resumed.finished == bool(number)
            assert list(resumed.rounds()) == [] and resumed.finished
            found, history = private_of(resumed), resumed.history()
    with open_furl(tmp_path / "whole", final_personalization=True) as whole:
        list(whole.rounds())
        assert_same(found, private_of(whole))
    assert [entry["kind"] for entry in history].count("personalized") == 1


def test_a_personalized_run_is_not_trained_further(tmp_path):
    with open_furl(tmp_path / "run", final_personalization=True) as run:
        list(run.rounds())
    with open_furl(tmp_path / "run", rounds=3) as longer, pytest.raises(RunError, match="cannot be trained further"):
        list(longer.rounds())


def test_participants_who_are_done_are_kept_step_by_step(tmp_path, monkeypatch):
    """Eight participants, three at a time; the second three fail."""
    monkeypatch.setattr("homespun.runs.run.BLOCK", 3)
    with open_furl(tmp_path / "whole", final_personalization=True) as whole:
        list(whole.rounds())
        expected = private_of(whole)
    original, steps = SimulationEngine.personalize, []

    def personalize(engine, broadcast, users, **options):
        steps.append(list(users))
        if len(steps) == 2:
            raise OSError
        original(engine, broadcast, users, **options)

    monkeypatch.setattr(SimulationEngine, "personalize", personalize)
    with open_furl(tmp_path / "run", final_personalization=True) as run, pytest.raises(OSError):
        list(run.rounds())
    with open_furl(tmp_path / "run", rounds=3) as longer, pytest.raises(RunError, match="cannot be trained further"):
        list(longer.rounds())
    with open_furl(tmp_path / "run") as resumed:  # what has begun is finished, even if it is no longer asked for
        assert not resumed.finished and list(resumed.rounds()) == [] and resumed.finished
        users = list(resumed.federation.users)
        assert_same(private_of(resumed), expected)
        assert resumed.history()[-1] == {"kind": "personalized", "round": 2}
    assert steps == [users[:3], users[3:6], users[3:6], users[6:]]


def test_nothing_private_crosses_a_byte_pipe(tmp_path):
    with open_furl(tmp_path / "run") as run:
        list(run.rounds())
        replies = []

        def ask(message):
            replies.append(answer(run.engine, message))
            return replies[-1]

        broadcast, before = run.state.broadcast(), private_of(run)
        remote = RemoteEngine(ask)
        remote.personalize(broadcast, list(run.federation.users))
        remote.confirm(broadcast.round, weight=0.0)
        run.commit()
        assert not all(
            torch.equal(row["user.embedding"], private_of(run)[user]["user.embedding"]) for user, row in before.items()
        )
    assert replies == [pack({}, {})] * 2 and unpack(replies[0]) == ({}, {})


def test_a_method_without_private_parameters_has_nothing_to_do(tmp_path):
    values = {"rounds": 1, "workers": 0, "final_personalization": True}
    with prepare("fedavg", load("dialects", users=8), folder=tmp_path / "run", settings=values) as run:
        list(run.rounds())
        assert [entry["kind"] for entry in run.history()].count("personalized") == 0


def test_copies_of_shared_parameters_are_kept_and_used(tmp_path):
    values = {"base_method": "furl", "base_settings": SMALL, "rounds": 1, "workers": 0}
    with prepare("fine_tuning", load("dialects", users=8), folder=tmp_path / "run", settings=values) as run:
        assert run.settings.final_personalization
        list(run.rounds())
        broadcast, users = run.state.broadcast(), list(run.federation.users)
        rows = run.clients.stored_private(users)
        assert all(set(row) == {*broadcast.federated, "user.embedding"} for row in rows.values())
        clients = run.clients.load(users, "test", broadcast, user_set="participants")
        outputs = run.trainer.predict(broadcast, clients)
        own = {**broadcast.parameters, **rows[users[0]]}
        alone = torch.func.functional_call(run.built.model, own, (clients[0].data,))
        torch.testing.assert_close(outputs[0], alone)
        model = load_user_model(run, users[0])
        assert all(torch.equal(value, rows[users[0]][name]) for name, value in model.private.items())
    with pytest.raises(RunError, match="cannot be trained further"), reopen_longer(tmp_path / "run", values) as longer:
        list(longer.rounds())


def reopen_longer(folder, values):
    return prepare("fine_tuning", load("dialects", users=8), folder=folder, settings={**values, "rounds": 2})


def test_generated_parameters_are_not_kept(tmp_path):
    values = {"rounds": 1, "workers": 0, "final_personalization": True, "base_model": "tiny"}
    with pytest.raises(SettingsError, match="generates private parameters anew"):
        prepare("fedperc_generated", load("sotu"), folder=tmp_path / "run", settings=values)
