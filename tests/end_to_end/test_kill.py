"""A run killed with SIGKILL at any time resumes and finishes bit-identical."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from language_models import write_gpt2

from homespun.privacy.ledger import Ledger
from homespun.runs.vault import Vault

pytestmark = pytest.mark.system

# The run under test. A named point, if given, kills the process there, in the round of that number.
SCRIPT = """
import json, os, signal, sys
import torch
torch.set_num_threads(1)
from homespun.data import load_federation
from homespun.engines import cohort
from homespun.runs.open_run import open_run
from homespun.runs.run import Run
from homespun.runs.settings import RunSettings
from homespun.runs.training import train_and_evaluate
from homespun.runs.vault import Vault

folder, workers, point, at, rounds = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])

def die_in(owner, name, when):
    original = getattr(owner, name)
    def wrapped(self, *args, **kwargs):
        here = run.state.round == at
        if here and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(self, *args, **kwargs)
        if here and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(owner, name, wrapped)

POINTS = {
    "none": lambda: None,
    "before local work": lambda: die_in(cohort.CohortTrainer, "train", "before"),
    "after local work": lambda: die_in(cohort.CohortTrainer, "train", "after"),
    "before staging": lambda: die_in(Vault, "stage", "before"),
    "after staging": lambda: die_in(Vault, "stage", "after"),
    "before the commit": lambda: die_in(Vault, "commit", "before"),
    "after the commit": lambda: die_in(Vault, "commit", "after"),
}
method, small = "furl", {"length": 24, "character_dim": 8, "lstm_dim": 8, "hidden_dim": 8, "user_dim": 4}
if len(sys.argv) > 6:
    method, small = "fedperc", {"base_model": sys.argv[6], "length": 12, "local_steps": 2, "batch": 3}
guarded = {"privacy": json.loads(os.environ["PRIVACY"])} if "PRIVACY" in os.environ else {}
settings = RunSettings(rounds=rounds, cohort=4, workers=workers, evaluate_every=rounds // 3, withheld=0.1, **guarded)
federation = load_federation("dialects", settings={"users": 12, "examples": 10})
with open_run(folder, method=method, federation=federation, settings=settings, method_settings=small) as run:
    POINTS[point]()
    for event in train_and_evaluate(run):
        print(event.round, flush=True)
"""


def train(folder, *, point="none", at=0, workers=0, rounds=6, base=None, privacy=None, own=None):
    command = [sys.executable, "-c", SCRIPT, str(folder), str(workers), point, str(at), str(rounds)]
    command += [] if base is None else [str(base)]
    guarded = {} if privacy is None else {"PRIVACY": json.dumps(privacy)}
    guarded |= {} if own is None else {"XDG_DATA_HOME": str(own)}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **guarded}
    )


def finish(folder, **options):
    process = train(folder, **options)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors


def content(folder):
    """The content of a finished run, without times."""
    with Vault.open(folder, read_only=True) as vault:
        history = [{key: value for key, value in entry.items() if key != "seconds"} for entry in vault.history()]
        return vault.state, {user: vault.export(user) for user in vault.users()}, history


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(folder)
    state, users, history = content(folder)
    assert len([entry for entry in history if entry["kind"] == "round"]) == 6
    assert [entry["round"] for entry in history if entry["kind"] == "evaluation"] == [0, 2, 4, 6]
    assert len(users) == 11  # of 12, one withheld; all others trained
    return state, users, history


@pytest.mark.parametrize(
    ("point", "at"),
    [
        ("before local work", 3),
        ("after local work", 3),
        ("before staging", 3),
        ("after staging", 3),
        ("before the commit", 3),
        ("after the commit", 3),
        ("after the commit", 6),
    ],
)
def test_killed_at_a_named_point(tmp_path, uninterrupted, point, at):
    victim = train(tmp_path / "run", point=point, at=at)
    victim.communicate(timeout=120)
    assert victim.returncode == -signal.SIGKILL
    finish(tmp_path / "run")
    assert content(tmp_path / "run") == uninterrupted


def test_a_language_method_killed_between_a_rounds_two_halves(tmp_path):
    """The private parameters and the server's context table belong to the same round."""
    base = write_gpt2(tmp_path / "base")
    finish(tmp_path / "whole", base=base)
    victim = train(tmp_path / "run", point="after staging", at=3, base=base)
    victim.communicate(timeout=120)
    assert victim.returncode == -signal.SIGKILL
    finish(tmp_path / "run", base=base)
    assert content(tmp_path / "run") == content(tmp_path / "whole")


@pytest.mark.parametrize(("noise", "debits"), [("central", 7), ("local", 3)])
def test_a_private_run_is_debited_again_for_rounds_lost_to_a_kill(tmp_path, noise, debits):
    """Six rounds; with local noise two passes of three rounds, of which the resumed one counts twice."""
    privacy = {"noise": noise, "noise_multiplier": 5.0, "delta": 0.01, "amplification": False, "insecure": True}
    # as on another machine, where the same data have another ledger
    finish(tmp_path / "whole", privacy={**privacy, "ledger": str(tmp_path / "whole.jsonl")}, own=tmp_path / "other")
    guarded = {**privacy, "ledger": str(tmp_path / "ledger.jsonl")}
    victim = train(tmp_path / "run", point="after staging", at=3, privacy=guarded)
    victim.communicate(timeout=120)
    assert victim.returncode == -signal.SIGKILL
    finish(tmp_path / "run", privacy=guarded)
    assert content(tmp_path / "run") == content(tmp_path / "whole")
    assert Ledger(tmp_path / "whole.jsonl", "dialects").spent().total() == (6 if noise == "central" else 2)
    assert Ledger(tmp_path / "ledger.jsonl", "dialects").spent().total() == debits


def workers_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            return [int(child) for child in children.read().split()]
    except FileNotFoundError:
        return []


def test_killed_at_random_times_with_workers(tmp_path):
    """Several kills of one run at random times; no process outlives its parent."""
    long = 150  # enough rounds for all kills
    finish(tmp_path / "whole", rounds=long)
    draw, orphans = random.Random(0), set()
    for attempt in range(6):
        process = train(tmp_path / "run", workers=2, rounds=long)
        if attempt % 2:  # during startup, or during training
            time.sleep(draw.uniform(0.0, 3.0))
        else:
            any("loss" in line for line in process.stdout)  # a round, not the evaluation before the first
            time.sleep(draw.uniform(0.0, 0.4))
        orphans.update(workers_of(process.pid))
        process.kill()
        process.communicate()
    with Vault.open(tmp_path / "run", read_only=True) as vault:
        assert vault.round > 0
    finish(tmp_path / "run", workers=2, rounds=long)
    assert content(tmp_path / "run") == content(tmp_path / "whole")
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in orphans) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [pid for pid in orphans if os.path.exists(f"/proc/{pid}")] == []


def test_a_second_process_is_rejected(tmp_path):
    first = train(tmp_path / "run")
    assert first.stdout.readline()  # it is training
    first.send_signal(signal.SIGSTOP)
    second = train(tmp_path / "run")
    _, errors = second.communicate(timeout=120)
    first.send_signal(signal.SIGCONT)
    first.communicate(timeout=120)
    assert second.returncode != 0 and f"in use by process {first.pid}" in errors
    assert first.returncode == 0
