"""Notices before and after a run."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import pytest

import homespun
from homespun.cli.console import Reporter
from homespun.cli.notices import after, before
from homespun.core.settings import parse
from homespun.methods.furl import SMALL
from homespun.privacy.mechanism import Clip
from homespun.privacy.settings import Privacy, noise_to_clip_ratio, plan_privacy
from homespun.runs.open_run import open_run
from homespun.runs.run import Run
from homespun.runs.settings import RunSettings
from homespun.runs.training import prepare, train_and_evaluate


def opened(folder: Path, *, privacy: dict[str, Any] | None = None, cohort: Any = 8, **method_settings: Any) -> Run:
    ledger = {"ledger": str(folder / "ledger.jsonl"), "delta": 0.01}
    return open_run(
        folder / "run",
        method="furl",
        federation=homespun.load("dialects", users=20, examples=5),
        settings=RunSettings(
            rounds=2, cohort=cohort, sampler="poisson", workers=0, privacy=privacy and parse_privacy(ledger | privacy)
        ),
        method_settings={**SMALL, **method_settings},
    )


def parse_privacy(values: dict[str, Any]) -> Privacy:
    return parse(Privacy, values, where="privacy")


def test_a_plain_run_without_truncated_texts_has_no_notices(tmp_path: Path) -> None:
    with opened(tmp_path, length=60) as run:
        assert before(run) == after(run) == []


def test_a_corpus_without_a_test_part_is_reported(tmp_path: Path) -> None:
    settings = RunSettings(rounds=1, workers=0)
    few = homespun.load([{"user": who, "text": "the sea", "label": label} for who in "abc" for label in "xxyy"])
    with open_run(
        tmp_path / "run", method="furl", federation=few, settings=settings, method_settings={**SMALL, "length": 60}
    ) as run:
        assert before(run) == [
            "warning: no user has enough examples for a test part, so this run will not be evaluated"
        ]


def test_truncated_texts_are_reported(tmp_path: Path) -> None:
    with opened(tmp_path, length=2) as run:
        assert before(run) == ["100 % of the texts are longer than length = 2 characters and are truncated"]


def test_a_private_run_reports_its_epsilon_before_and_after(tmp_path: Path) -> None:
    with opened(tmp_path, privacy={"noise_multiplier": 1.0, "clip": 1.0}, length=60) as run:
        cost, loud = before(run)
        assert cost == "privacy: 2 rounds cost epsilon 1.72 at delta 0.01 (noise 1.00 x clip)"
        assert loud.startswith("warning: the noise on a round's average update is 7.")
        assert "times the clip norm (1)." in loud
        assert "cohort" in loud and "epsilon" in loud
        assert after(run) == ["privacy: spent epsilon 0.00 at delta 0.01 in 0 rounds"]
        for _ in run.rounds():
            pass
        assert after(run) == ["privacy: spent epsilon 1.72 at delta 0.01 in 2 rounds"]


def test_little_noise_gives_no_warning(tmp_path: Path) -> None:
    tiny = {"character_dim": 1, "lstm_dim": 1, "hidden_dim": 1}
    with opened(tmp_path, privacy={"noise_multiplier": 1.0}, cohort="all", length=60, **tiny) as run:
        numbers = sum(value.numel() for value in run.state.federated.values())
        assert numbers < 400  # noise with a norm of sqrt(400) on a sum of 20 updates
        assert len(before(run)) == 1


@pytest.mark.parametrize(("noise", "ratio"), [("central", 2 * sqrt(2) * 10 / 4), ("local", 2 * sqrt(2) * 10 / 2)])
def test_noise_to_clip_ratio_by_hand(noise: str, ratio: float) -> None:
    """Two groups multiply the noise by sqrt(2). Central noise is divided by the cohort size, local noise by its square
    root."""
    settings = parse_privacy(
        {
            "noise": noise,
            "noise_multiplier": 2.0,
            "clip": {"head": 0.5, "*": 3.0},
            "amplification": False,
            "delta": 1e-3,
        }
    )
    plan = plan_privacy(settings, users=4, cohort=4, sampler="poisson", rounds=1)
    assert plan.clip == Clip({"head": 0.5, "*": 3.0})
    group, found = noise_to_clip_ratio(plan, {"head": 100, "body": 81})
    assert (group, found) == ("head", pytest.approx(ratio))


def test_the_reporter_prints_notices_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter()
    with opened(tmp_path, privacy={"noise_multiplier": 1.0}, length=2) as run, reporter.following(run, "furl") as show:
        for event in train_and_evaluate(run):
            show(event)
    said = capsys.readouterr().err
    assert "furl: 100 % of the texts are longer than length = 2 characters and are truncated\n" in said
    assert "furl: privacy: 2 rounds cost epsilon 1.72 at delta 0.01" in said
    assert "furl: privacy: spent epsilon" in said
    with opened(tmp_path, privacy={"noise_multiplier": 1.0}, length=2) as run, reporter.following(run, "furl"):
        pass
    assert capsys.readouterr().err.count("are cut") == 0  # said once


def test_users_who_do_not_take_part_are_reported(tmp_path: Path) -> None:
    rows = [
        {"user": who, "text": f"the people {who}", "scene": scene} for scene in range(20) for who in ("ada", "bo", "cy")
    ]
    rows += [{"user": "dee", "text": "I speak first, so I never reply", "scene": 99}]
    federation = homespun.load(rows)
    values = {"base_model": "untrained-small", "rounds": 1, "workers": 0}
    with prepare("fednlg", federation, folder=tmp_path / "run", settings=values) as run:
        (notice,) = before(run)
    assert notice == "Left out: 2 users with no reply, 21 examples with no prompt"
