"""Dynamic sampling: cohorts that shrink by exp(-decay t)."""

import json
from math import exp

import pytest

from homespun.core.errors import RunError, SettingsError
from homespun.data import load_federation
from homespun.data.source import DataSettings
from homespun.methods.furl import SMALL
from homespun.runs.cohorts import Cohorts
from homespun.runs.open_run import open_run
from homespun.runs.settings import RunSettings
from homespun.runs.training import prepare, reopen


def sizes(rounds, **values):
    cohorts = Cohorts(**{"users": 40, "size": 20, "sampler": "uniform", "seed": 3, **values})
    return [len(cohorts.of(round)) for round in range(rounds)]


def test_sizes_follow_the_formula():
    # 20 exp(-0.1 t): 20, 18.1, 16.4, 14.8, 13.4, 12.1
    assert sizes(6, decay=0.1) == [20, 18, 16, 15, 13, 12]
    assert sizes(60, decay=0.1)[-1] == 1 and 20 * exp(-5.9) < 0.1  # at least one
    assert sizes(3, decay=1000.0) == [20, 1, 1]
    assert sizes(3, decay=0.0) == [20, 20, 20]


def test_a_pass_that_ends_with_a_small_cohort_shrinks_that():
    # cohorts of 4 of 10 users are 4, 4, 2, 4 before they shrink: 4, 4 exp(-0.3) = 2.96, 2 exp(-0.6) = 1.1, 1.6
    assert sizes(4, users=10, size=4, sampler="shuffled", decay=0.3) == [4, 3, 1, 2]


def test_cohorts_are_parts_of_those_without_decay_and_repeat():
    values = {"users": 40, "size": 20, "sampler": "uniform", "seed": 3}
    whole, shrunk, again = Cohorts(**values), Cohorts(**values, decay=0.2), Cohorts(**values, decay=0.2)
    for round in (5, 0, 3):  # in any order
        found = shrunk.of(round)
        assert found == again.of(round) == sorted(set(found)) and set(found) <= set(whole.of(round))
    assert shrunk.of(0) == whole.of(0)
    assert Cohorts(**{**values, "seed": 4}, decay=0.2).of(3) != shrunk.of(3)
    all_users = Cohorts(users=40, size=40, sampler="shuffled", seed=3, decay=0.5)
    assert len({tuple(all_users.of(round)) for round in range(1, 6)}) == 5  # not always the same users


def test_an_empty_poisson_cohort_stays_empty():
    cohorts = Cohorts(users=5, size=1, sampler="poisson", seed=0, decay=0.5)
    whole = Cohorts(users=5, size=1, sampler="poisson", seed=0)
    counts = [(len(cohorts.of(round)), len(whole.of(round))) for round in range(40)]
    assert any(before == 0 for _, before in counts)
    for round, (after, before) in enumerate(counts):
        assert after == 0 if before == 0 else 1 <= after <= max(1, before * exp(-0.5 * round) + 0.5)


def opened(folder, **settings):
    return open_run(
        folder,
        method="furl",
        federation=load_federation("dialects", settings={"users": 8, "examples": 10}),
        settings=RunSettings(**{"rounds": 6, "cohort": 8, "workers": 0, **settings}),
        method_settings=SMALL,
    )


def test_a_run_trains_with_shrinking_cohorts(tmp_path):
    with opened(tmp_path / "run", cohort_decay=0.4) as run:
        assert [one.clients for one in run.rounds()] == [8, 5, 4, 2, 2, 1]
    with opened(tmp_path / "run", cohort_decay=0.4, rounds=8) as more:
        assert [one.clients for one in more.rounds()] == [1, 1]
    with opened(tmp_path / "poisson", cohort_decay=0.4, sampler="poisson", cohort=1, rounds=10) as run:
        assert 0 in [one.clients for one in run.rounds()]  # a round without clients


def test_without_decay_a_run_has_the_identity_of_older_runs(tmp_path):
    with opened(tmp_path / "run") as run:
        assert "cohort_decay" not in run.vault.identity["run"]
    with pytest.raises(RunError, match="cohort_decay"):
        opened(tmp_path / "run", cohort_decay=0.1)


def test_the_settings_of_an_older_run_are_read(tmp_path):
    corpus = tmp_path / "texts.csv"
    corpus.write_text("user,text,label\n" + "".join(f"u{row % 4},some text {row},l{row % 2}\n" for row in range(40)))
    data = DataSettings(source=str(corpus))
    settings = {"rounds": 1, "workers": 0, **SMALL}
    with prepare("furl", data.load(), folder=tmp_path / "run", settings=settings, data=data) as run:
        list(run.rounds())
    path = tmp_path / "run" / "settings.json"
    saved = json.loads(path.read_text())
    del saved["run"]["cohort_decay"]
    path.write_text(json.dumps(saved))
    with reopen(tmp_path / "run") as again:
        assert again.state.round == 1 and again.settings.cohort_decay == 0


def test_privacy_is_refused():
    privacy = {"clip": 1.0, "noise_multiplier": 1.0}
    with pytest.raises(ValueError, match="the privacy cost of shrinking cohorts is unknown"):
        RunSettings(rounds=1, cohort_decay=0.1, privacy=privacy)
    RunSettings(rounds=1, privacy=privacy)


def test_a_negative_decay_is_refused():
    federation = load_federation("dialects", settings={"users": 8, "examples": 10})
    with pytest.raises(SettingsError, match="cohort_decay"):
        prepare("furl", federation, folder=None, settings={"rounds": 1, "cohort_decay": -0.1})
