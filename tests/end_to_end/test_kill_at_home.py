"""A search at home killed with SIGKILL: users who are done keep what they learned, and the same command finishes
bit-identical."""

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest

from homespun.methods.oov_expansion import SMALL
from homespun.personalization.own_words import own_words
from homespun.runs.run import PERSONALIZED_USERS, SEARCHES_PER_WORKER
from homespun.runs.training import reopen
from homespun.runs.vault import VAULT_FILE, Vault

pytestmark = pytest.mark.system

USERS = [f"user-{number:02}" for number in range(20)]
VALUES = {
    **SMALL, "rounds": 1, "cohort": "all", "evaluate_users": 2, "lr": 1.0, "batch": 2, "server": "fedavg",
    "server_lr": 1.0, "personalize_lrs": [0.3, 1.0], "personalize_epochs": 3,
}  # fmt: skip

# Runs a command of homespun. It kills itself in the search, or before the commit, of this number; at the end it prints
# how many searches there were.
SCRIPT = """
import os, signal, sys
from homespun.cli import app
from homespun.methods import _choices_at_home as at_home
from homespun.runs.vault import Vault

place, at, words = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
counts = {"search": 0, "commit": 0}

def dies(name, original):
    def wrapped(*given, **named):
        counts[name] += 1
        if place == name and counts[name] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*given, **named)
    return wrapped

at_home.split_rows = dies("search", at_home.split_rows)
Vault.commit = dies("commit", Vault.commit)
app(words, standalone_mode=False)
print(counts["search"], "searches")
"""


def start(*words, place="never", at=0):
    command = [sys.executable, "-c", SCRIPT, place, str(at), *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(*words):
    process = start(*words)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0, printed
    return int(printed.split()[-2])


def killed(*words, place, at):
    process = start(*words, place=place, at=at)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, printed


def train(corpus, folder, *, workers=0):
    settings = [f"--set={name}={json.dumps(value)}" for name, value in {**VALUES, "workers": workers}.items()]
    return ["train", "oov_expansion", "--data", corpus, "--folder", folder, *settings]


def personalize(folder, text):
    return ["personalize", folder, text, "--user", "eve"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "chat.jsonl"
    rows = [
        {"user": user, "text": f"we need {user}zorblax and now more {('time', 'peace')[number % 2]}"}
        for user in USERS
        for number in range(8)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert finish(*train(corpus, folder)) == len(USERS)
    return folder


def rows(folder):
    with Vault.open(folder, read_only=True) as vault:
        return {user: vault.export(user) for user in vault.users()}


def learned(folder):
    """Users with own words; the rounds leave rows without any."""
    return [user for user, row in rows(folder).items() if b"zorblax" in row]


def counted(folder):
    """The number of users who are done, as the run knows it; 0 before there is a run."""
    if not (folder / VAULT_FILE).exists():
        return 0
    with Vault.open(folder, read_only=True) as vault:
        return int.from_bytes(vault.artefact(PERSONALIZED_USERS) or b"", "big")


@pytest.mark.parametrize(("place", "at", "kept"), [("search", 3, 0), ("search", 14, 8), ("commit", 5, 16)])
def test_the_final_personalization_keeps_users_who_are_done(corpus, whole, tmp_path, place, at, kept):
    """Three steps of at most 8 users. Two commits are of the round and its evaluation."""
    assert SEARCHES_PER_WORKER == 8
    command = train(corpus, tmp_path / "run")
    killed(*command, place=place, at=at)
    assert learned(tmp_path / "run") == USERS[:kept] and counted(tmp_path / "run") == kept
    assert finish(*command) == len(USERS) - kept
    assert rows(tmp_path / "run") == rows(whole) and counted(tmp_path / "run") == len(USERS)


def test_killed_with_workers(corpus, whole, tmp_path):
    """Killed as soon as users are done, and resumed with another number of workers."""
    process = start(*train(corpus, tmp_path / "run", workers=2))
    while process.poll() is None and not counted(tmp_path / "run"):
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL and learned(tmp_path / "run") == USERS[:16]
    assert finish(*train(corpus, tmp_path / "run")) == 4
    assert rows(tmp_path / "run") == rows(whole)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "mine.txt"
    path.write_text("We need wumpfel and now more time.\n" * 12)
    return path


@pytest.fixture(scope="module")
def with_eve(whole, text, tmp_path_factory):
    folder = shutil.copytree(whole, tmp_path_factory.mktemp("eve") / "run")
    finish(*personalize(folder, text))
    return folder


@pytest.mark.parametrize(("place", "at"), [("search", 2), ("commit", 1)])
def test_a_killed_personalize_is_repeated(whole, with_eve, text, tmp_path, place, at):
    """The first search measures the gain; what the second one finds is kept."""
    folder = shutil.copytree(whole, tmp_path / "run")
    killed(*personalize(folder, text), place=place, at=at)
    with reopen(folder) as run:
        assert rows(folder) == rows(whole) and run.vault.artefact("own words", user="eve") is None
    finish(*personalize(folder, text))
    assert rows(folder) == rows(with_eve) and "eve" in rows(folder)
    with reopen(folder) as run:
        assert [one.word for one in own_words(run, "eve")] == ["wumpfel"]
