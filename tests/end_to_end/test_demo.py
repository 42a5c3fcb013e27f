"""The command `homespun demo` with small settings."""

import json
import os
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from language_models import write_gpt2

from homespun.experiments.experiment import check_settings, read_experiment
from homespun.report.prompt_continuations import check_showcase

TINY = {
    "rounds": 1, "cohort": 2, "local_steps": 1, "personalize_steps": 1, "batch": 2, "length": 8, "workers": 0,
    "evaluate_examples": 2, "evaluate_users": 2,
}  # fmt: skip


def test_the_settings_are_valid_and_the_shown_users_are_participants():
    demo = read_experiment(Path(str(files("homespun") / "demo.toml")))
    check_settings(demo)
    check_showcase(demo)
    assert list(demo.configurations) == [
        "fedperc", "context", "shared", "personal", "split-learning", "meta-learning",
    ]  # fmt: skip


@pytest.mark.system
def test_the_demo_compares_generates_and_reports(tmp_path):
    settings = {**TINY, "base": write_gpt2(tmp_path / "base")}
    overrides = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "homespun", "demo", "--folder", tmp_path / "demo", *overrides]
    small = {**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=small)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = done.stdout
    trained = re.findall(r"^(.*), seed 0: round 1/1", shown, flags=re.MULTILINE)
    assert trained == [
        "FedPerC", "Context alone", "One prefix for all", "Each user alone", "Split-Learning", "Meta-Learning",
    ]  # fmt: skip
    assert all(says in shown for says in ("Known users", "Withheld users", "(never used)", "no user said this"))
    assert max(map(len, shown.splitlines()[6:-1])) <= 80  # between progress and the report's path
    found = json.loads((tmp_path / "demo" / "results.json").read_text())
    assert found["showcase"]["configuration"] == "fedperc"
    voices = [(one["user"], one["context"], one["used"]) for one in found["showcase"]["samples"]]
    assert voices[:3] == [
        ("Ronald Reagan", "spoken", True),
        ("Ronald Reagan", "written", False),
        ("Woodrow Wilson", "spoken", True),
    ]
    assert 'id="continuations"' in (tmp_path / "demo" / "report.html").read_text()
    assert "Ronald Reagan | written (never used)" in (tmp_path / "demo" / "report.md").read_text()
