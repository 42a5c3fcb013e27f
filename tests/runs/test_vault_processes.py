"""kill -9 at named points and at random times, and the lock between real processes.

A kill shows that what SQLite handed to the kernel is whole. It does not show that the disk has it: only a
loss of power would.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from committer import IDENTITY, USERS, rows

from homespun.core.errors import RunError
from homespun.runs.vault import Vault

pytestmark = pytest.mark.system


class Committer:
    """The other process; see `committer.py`."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("committer.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, **job: object) -> int:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return int(self.expect("started"))

    def expect(self, word: str) -> str:
        assert self.process.stdout
        first, _, rest = self.process.stdout.readline().strip().partition(" ")
        assert first == word
        return rest

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        assert self.expect("ended") == str(int(signal.SIGKILL))


@pytest.fixture(scope="module")
def committer() -> Iterator[Committer]:
    other = Committer()
    yield other
    other.process.stdin.close()
    try:
        other.process.wait(timeout=10)
    except subprocess.TimeoutExpired:  # a test failed and left its job running
        other.process.kill()
        other.process.wait()
    other.process.stdout.close()


def whole_round(folder: Path) -> int:
    """The round that the folder holds, after checking that it holds all of that round and nothing else."""
    with Vault.open(folder, identity=IDENTITY) as vault:
        round = vault.round
        assert vault.state == (b"%d" % round * 3000 if round else None)
        assert [record["round"] for record in vault.history()] == list(range(1, round + 1))
        assert vault.count == (USERS + round if round else 0)
        expected = {user: tree["e"].tolist() for past in range(1, round + 1) for user, tree in rows(past).items()}
        found = vault.private_many([*expected, f"u{USERS + round + 1}"])
        assert {user: tree["e"].tolist() for user, tree in found.items()} == expected
        assert vault.quarantined() == []
        assert vault._query("PRAGMA integrity_check") == [(b"ok",)]
        return round


@pytest.mark.parametrize(
    ("at", "left"),
    [
        ("before stage", 2),
        ("after stage", 2),
        ("statement BEGIN", 2),
        ("statement INSERT INTO private", 2),
        ("statement INSERT INTO history", 2),
        ("statement INSERT OR REPLACE INTO run", 2),
        ("statement COMMIT", 2),
        ("after commit", 3),
    ],
)
def test_a_kill_at_a_given_point_leaves_complete_rounds(
    committer: Committer, tmp_path: Path, at: str, left: int
) -> None:
    committer.start(folder=str(tmp_path), at=at, round=3)
    assert committer.expect("ended") == str(int(signal.SIGKILL))
    assert whole_round(tmp_path) == left


def test_kills_at_random_times_leave_complete_rounds(committer: Committer, tmp_path: Path) -> None:
    chosen, reached = random.Random(), [0]
    for _ in range(20):
        pid = committer.start(folder=str(tmp_path / "run"))
        time.sleep(chosen.uniform(0.0, 0.12))  # from before the vault is made, or opened, on
        committer.kill(pid)
        reached.append(whole_round(tmp_path / "run"))
    assert reached == sorted(reached)  # no committed round is ever lost
    assert reached[-1] > 10


def test_a_kill_while_the_vault_is_created_leaves_a_complete_one_or_none(committer: Committer, tmp_path: Path) -> None:
    for number in range(10):
        folder = tmp_path / str(number)
        pid = committer.start(folder=str(folder))
        while not folder.exists():
            time.sleep(0.0005)
        time.sleep(random.uniform(0.0, 0.02))
        committer.kill(pid)
        whole_round(folder)


def test_a_second_process_is_rejected_until_the_first_has_ended(committer: Committer, tmp_path: Path) -> None:
    pid = committer.start(folder=str(tmp_path), hold=True)
    committer.expect("holding")
    with pytest.raises(RunError, match=f"in use by process {pid}"):
        Vault.open(tmp_path, identity=IDENTITY)
    with Vault.open(tmp_path, read_only=True) as reader:
        assert reader.round == 0
    committer.kill(pid)
    with Vault.open(tmp_path, identity=IDENTITY) as vault:
        assert vault.round == 0


def test_a_reader_sees_complete_rounds_beside_a_writer(committer: Committer, tmp_path: Path) -> None:
    pid = committer.start(folder=str(tmp_path))
    seen: set[int] = set()
    deadline = time.monotonic() + 30
    while len(seen) < 5 and time.monotonic() < deadline:
        if not (tmp_path / "vault.sqlite").exists():
            continue
        with Vault.open(tmp_path, read_only=True) as reader:
            for _ in range(20):
                with reader.snapshot():
                    if round := reader.round:
                        assert reader.state == b"%d" % round * 3000
                        assert reader.private("u0")["e"].tolist() == rows(round)["u0"]["e"].tolist()
                        assert reader.count == USERS + round
                        seen.add(round)
                assert reader.state is None or len(reader.history()) >= round
    committer.kill(pid)
    assert len(seen) >= 5


def test_a_child_process_does_not_inherit_the_lock(tmp_path: Path) -> None:
    with Vault.open(tmp_path, identity=IDENTITY):
        worker = subprocess.Popen(["sleep", "60"], close_fds=False)  # as a worker that outlives its parent
    try:
        with Vault.open(tmp_path, identity=IDENTITY) as vault:
            assert vault.round == 0
    finally:
        worker.kill()
        worker.wait()
