"""Neighbouring data sets: the same public list of users, one of whom has no examples (zero-out)."""

import json

import pytest
import torch
from homes import clients_of
from language_models import write_gpt2
from notes import opened, rows, write_csv

from homespun.core.errors import SettingsError
from homespun.core.settings import parse
from homespun.data import load_federation
from homespun.data.splits import withhold
from homespun.data.table import Filters
from homespun.privacy.settings import Privacy, plan_privacy
from homespun.runs.open_run import open_run
from homespun.runs.settings import RunSettings
from homespun.runs.training import summarize_privacy

CLIP = 0.5


@pytest.fixture
def data(tmp_path):
    return write_csv(tmp_path / "notes.csv")


def test_sampling_depends_on_the_list_of_users_alone(tmp_path, data):
    other = [(user, f"other {text}" if user == "u3" else text, label) for user, text, label in rows()]
    neighbours = [load_federation(path) for path in (data, write_csv(tmp_path / "other.csv", other))]
    taking_part = [list(withhold(one, share=0.25, seed=3)[0].users) for one in neighbours]
    assert taking_part[0] == taking_part[1] and len(taking_part[0]) == 6


def test_a_shorter_list_of_users_is_not_a_neighbour():
    """Without one user, the sampling of all others changes, which is why the list has to be public."""
    lists = [load_federation("dialects", settings={"users": users}) for users in (1000, 999)]
    longer, shorter = (set(withhold(one, share=0.1, seed=0)[0].users) for one in lists)
    assert len(longer ^ shorter) == 89


SAMPLERS = {"poisson": {}, "uniform": {"amplification": False}, "shuffled": {"amplification": False}}


@pytest.mark.parametrize(("sampler", "privacy"), SAMPLERS.items())
def test_a_user_without_examples_changes_a_sum_by_one_clip_norm_with_any_sampler(tmp_path, data, sampler, privacy):
    """Neighbours have the same cohorts: no other user replaces one whose update counts as zero."""
    settings = {"sampler": sampler}
    with opened(tmp_path / "run", data, settings=settings, insecure=True, clip=CLIP, **privacy) as run:
        broadcast, cohort = run.state.broadcast(), run.schedule.cohorts.of(0)
        with_user = run.trainer.train(broadcast, clients_of(run, cohort)).update
        without = run.trainer.train(broadcast, clients_of(run, cohort[1:])).update
    moved = [with_user.federated[name] - without.federated[name] for name in with_user.federated]
    length = float(torch.cat([part.flatten() for part in moved]).norm())
    assert 0 < length <= CLIP * (1 + 1e-6)


def test_fixed_cohorts_and_local_noise_have_a_sensitivity_of_two():
    """Two clip norms, so that epsilon also holds if one user's examples are replaced by others."""
    about = {"users": 20, "cohort": 8, "rounds": 1}
    for noise, sampler, counted in (
        ("central", "poisson", 4.0), ("central", "uniform", 2.0), ("local", "poisson", 2.0),
    ):  # fmt: skip
        settings = Privacy(noise=noise, noise_multiplier=4.0, amplification=False)
        assert plan_privacy(settings, sampler=sampler, **about).release.noise_multiplier == counted


def test_ledger_and_results_name_the_adjacency(tmp_path, data):
    with opened(tmp_path / "run", data) as run:
        run.step()
        found = summarize_privacy(run)
    assert (found["adjacency"], found["public_filters"], found["counted_noise"]) == ("zero-out", [], 2.0)
    assert found["epsilon"] == min(found["epsilon_pld"], found["epsilon_rdp"])
    line = json.loads((tmp_path / "notes.csv.privacy.jsonl").read_text().splitlines()[-1])
    assert line["adjacency"] == "zero-out" and "public_filters" not in line


def three_labels():
    return [(user, text, "rare" if text.endswith("0") else label) for user, text, label in rows()]


def test_filters_that_count_all_users_are_rejected_unless_declared_public(tmp_path):
    data, filters = write_csv(tmp_path / "three.csv", three_labels()), {"most_frequent_labels": 2}
    with pytest.raises(
        SettingsError, match=r"most_frequent_labels count the examples of all users.*public_filters=true"
    ):
        opened(tmp_path / "run", data, filters=filters)
    assert not (tmp_path / "run").exists()
    opened(tmp_path / "run", data, filters=filters, private=False).close()


def test_public_filters_are_in_the_ledger_and_the_results(tmp_path):
    data, filters = write_csv(tmp_path / "three.csv", three_labels()), {"most_frequent_labels": 2, "min_examples": 2}
    with opened(tmp_path / "run", data, filters=filters, public_filters=True) as run:
        run.step()
        run.commit()
        assert summarize_privacy(run)["public_filters"] == ["most_frequent_labels"]
    line = json.loads((tmp_path / "three.csv.privacy.jsonl").read_text().splitlines()[-1])
    assert line["public_filters"] == ["most_frequent_labels"]
    with opened(tmp_path / "run", data, filters=filters, public_filters=True, ledger=None) as run:
        assert run.state.round == 1


def test_filters_that_look_at_one_user_alone():
    alone = {"min_examples": 2, "max_examples": 9, "max_users": 5}
    assert parse(Filters, alone, where="data").looks_across == ()
    across = {"most_frequent_labels": 3, "min_context_examples": 2}
    assert parse(Filters, {**alone, **across}, where="data").looks_across == tuple(across)


def test_public_filters_do_not_change_the_identity_of_a_run():
    """Existing runs keep their identity."""
    settings = [RunSettings(rounds=1, privacy={"epsilon": 8.0, **more}) for more in ({}, {"public_filters": True})]
    assert settings[0].identity() == settings[1].identity() and "public_filters" not in str(settings[0].identity())


def test_a_number_of_rounds_computed_from_all_examples_is_rejected(tmp_path):
    privacy = {"noise_multiplier": 4.0, "delta": 0.01, "amplification": False}
    small = {"base_model": str(write_gpt2(tmp_path / "base")), "length": 12, "local_steps": 2, "batch": 3}
    federation = load_federation("dialects", settings={"users": 12, "examples": 10})
    for length, fits in (({"epochs": 2}, False), ({"rounds": 2}, True)):
        asked = RunSettings(cohort="all", workers=0, privacy=privacy, **length)
        about = {"method": "fedperc", "federation": federation, "settings": asked, "method_settings": small}
        if fits:
            open_run(tmp_path / "run", **about).close()
            continue
        with pytest.raises(SettingsError, match="Give rounds instead of epochs"):
            open_run(tmp_path / "run", **about)
