"""`fine_tuning`: rounds of the base method, then a copy of everything on each client."""

import torch
from small_dialogue import write_dialogue, write_reply_model

from homespun.core.method import Adam, Phase, Sgd
from homespun.data.source import DataSettings
from homespun.engines.client import Client
from homespun.methods.fine_tuning import Settings, fine_tuning_phases
from homespun.methods.furl import SMALL
from homespun.personalization.new_user import personalize
from homespun.personalization.replies import find_replier
from homespun.personalization.reply_export import export_reply_model
from homespun.runs.training import load, prepare

VALUES = {"rounds": 2, "cohort": 4, "workers": 0}


def test_phases_of_a_round_with_scaled_learning_rates():
    phases = [Phase({"a": Sgd(2.0), "b": Adam(0.5)}, batch=4, steps=7, mu=0.1, clip_norm=5.0, stream="shared")]
    (found,) = fine_tuning_phases(phases, Settings(fine_tune_epochs=3, fine_tune_lr_factor=0.1))
    assert found.trains == {"a": Sgd(0.2), "b": Adam(0.05)}
    assert (found.epochs, found.steps, found.mu, found.clip_norm, found.batch) == (3, None, 0.0, 5.0, 4)


def test_rounds_are_those_of_the_base_method_and_each_client_trains_from_there(tmp_path):
    """One epoch of plain SGD from the federated model, against torch."""
    population = load("dialects", users=6)
    values = {"lr": 0.5, "batch": 100}
    settings = {"base_method": "fedavg", "base_settings": values}
    with prepare("fedavg", population, folder=tmp_path / "base", settings={**VALUES, **values}) as base:
        list(base.rounds())
    with prepare("fine_tuning", population, folder=tmp_path / "run", settings={**VALUES, **settings}) as run:
        list(run.rounds())
        broadcast = run.state.broadcast()
        assert all(torch.equal(value, base.state.federated[name]) for name, value in broadcast.federated.items())
        user = run.federation.users[0]
        kept, data = run.clients.stored_private([user])[user], run.clients.encode(run.clients.population, 0, "train")
        expected = {name: value.clone().requires_grad_() for name, value in broadcast.federated.items()}
        run.method.local.loss(
            lambda some, rows: torch.func.functional_call(run.built.model, some, (rows,)), expected, data
        ).mean().backward()
        for name, value in expected.items():
            torch.testing.assert_close(kept[name], (value - 0.5 * value.grad).detach())


def test_a_new_user_fine_tunes_a_copy(tmp_path):
    settings = {**VALUES, "base_method": "furl", "base_settings": SMALL}
    with prepare("fine_tuning", load("dialects", users=6), folder=tmp_path / "run", settings=settings) as run:
        list(run.rounds())
        broadcast = run.state.broadcast()
        data = run.clients.encode(run.clients.population, 0, "train")
        new = Client("new", private=run.clients.new_private("new", broadcast), data=data)
        (learned,) = run.trainer.train(broadcast, [new], mode="personalize").private.values()
        assert set(learned) == {*broadcast.federated, "user.embedding"}


def test_a_run_without_private_parameters_can_be_personalized(tmp_path):
    settings = {**VALUES, "base_method": "fedavg"}
    with prepare("fine_tuning", load("dialects", users=6), folder=tmp_path / "run", settings=settings) as run:
        list(run.rounds())
        label = run.federation.labels[0]
        ada = personalize(run, "ada", ["mepu basi", "tolo rani"], labels=[label, label])
        assert set(ada.private) == set(run.state.federated)


def test_copies_of_a_speaker_are_their_own(tmp_path):
    """Without personas, all that is personal is a copy of shared parameters: an export of it is private, and a speaker
    whose copy was forgotten is no longer personalized. Parts are those of the wrapped method."""
    data = DataSettings(source=str(write_dialogue(tmp_path / "talk.jsonl")))
    base = {"base_model": write_reply_model(tmp_path / "base"), "persona": "none", "evaluate_strength": 4.0}
    values = {"rounds": 1, "workers": 0, "base_method": "fednlg", "base_settings": base}
    with prepare("fine_tuning", data.load(), folder=tmp_path / "run", settings=values, data=data) as run:
        assert run.settings.split_by == "conversation"
        list(run.rounds())
        replier, user = find_replier(run), run.federation.users[0]
        speaker = replier.speaker(user)
        assert speaker.own and speaker.personalized and not replier.can_exaggerate(speaker)
        assert export_reply_model(run, tmp_path / "exported", user=user).private
        assert not export_reply_model(run, tmp_path / "new").private
        run.vault.forget(user)
        assert not replier.speaker(user).own and not replier.speaker(user).personalized
