"""A process that commits rounds until it is killed. Run by `test_vault_processes.py`.

Importing torch takes seconds, so one process imports and then forks a child for each job read from its
standard input; the child alone opens the vault. Each line of input is a JSON job, answered by a line
`started PID`, lines from the child, and `ended SIGNAL`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from homespun.runs.vault import Vault

IDENTITY = {"method": "committer", "seed": 1}
USERS = 20


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


class Dying(Vault):
    """A vault that kills its process right after a commit, before anything else can run."""

    dies_after_commit = False

    @contextmanager
    def _transaction(self) -> Iterator:
        with super()._transaction() as db:
            yield db
        if self.dies_after_commit:
            die()


def rows(round: int) -> dict[str, dict[str, torch.Tensor]]:
    """Every user's row, with the round in it; one user in each round is new, and rows change their size."""
    users = [*range(USERS), USERS + round]
    return {f"u{user}": {"e": torch.full((10 + 97 * (round + user) % 300,), float(round))} for user in users}


def commit_rounds(job: dict, *, parent: int) -> None:
    vault = Dying.open(job["folder"], identity=IDENTITY)
    if job.get("hold"):
        print("holding", flush=True)
        time.sleep(60)
    for round in range(vault.round + 1, 10**6):
        if os.getppid() != parent:  # a failed test leaves no orphan
            return
        at = job.get("at") if round == job.get("round") else None
        if at == "before stage":
            die()
        vault.stage(rows(round))
        if at == "after stage":
            die()
        if at and at.startswith("statement "):  # SQLite traces each statement before it runs it
            vault._db.set_trace_callback(lambda sql, at=at: sql.startswith(at.removeprefix("statement ")) and die())
        vault.dies_after_commit = at == "after commit"
        vault.commit(round=round, state=b"%d" % round * 3000, records=[{"round": round}])


def main() -> None:
    for line in sys.stdin:
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            try:
                commit_rounds(json.loads(line), parent=parent)
            finally:
                os._exit(1)
        print("started", pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print("ended", os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
