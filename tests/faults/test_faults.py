"""Whatever input or output call of a short `homespun train` goes wrong, the same command then finishes the run.

Every write, truncation, sync, rename and unlink below the run's folder is counted, Python's and SQLite's. Then one of
them goes wrong: the disk is full from there on (`full`, `torn`: after half a write), the call alone fails (`error`), or
the process is killed (`killed`, a write half done). Afterwards the same command has to end with the bits of a run that
nothing happened to, with its results and its report.

All calls take some minutes: `make faults`. `make test` takes some of them, evenly spaced.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from injector import left_behind

from homespun.core.errors import HomespunError
from homespun.runs.vault import Vault

pytestmark = pytest.mark.system

HERE = Path(__file__).parent
EVERY = 1 if os.environ.get("HOMESPUN_FAULTS") == "all" else 17  # call; a prime, so that no kind of call is missed
FINISHED = "this run is finished (2 rounds)"


class Trainer:
    """The other process; see `trainer.py`. Without a C compiler it counts and fails in Python alone."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        preload = {}
        if compiler is not None:
            library = folder / "faults.so"
            subprocess.run([compiler, "-shared", "-fPIC", "-o", library, HERE / "faults.c", "-ldl"], check=True)
            preload = {"LD_PRELOAD": str(library)}
        self.preloaded = bool(preload)
        self.folder = folder / "run"
        self.process = subprocess.Popen(
            [sys.executable, HERE / "trainer.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **preload},
        )

    def train(self, how: str = "count", nth: int = 0, *, preloaded: bool | None = None) -> dict[str, Any]:
        by = self.preloaded if preloaded is None else preloaded
        job = {"folder": str(self.folder), "how": how, "nth": nth, "preloaded": by}
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def again(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    other = Trainer(tmp_path_factory.mktemp("faults"))
    yield other
    other.process.communicate()  # ends with its input


def without_times(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: without_times(value) for name, value in found.items() if "seconds" not in name}
    return [without_times(value) for value in found] if isinstance(found, list) else found


def content(folder: Path) -> dict[str, Any]:
    """All that a finished run holds, without how long it took."""
    with Vault.open(folder, read_only=True) as vault:
        kept = {
            "state": vault.state,
            "rows": {user: vault.export(user) for user in vault.users()},
            "history": without_times(vault.history()),
        }
    results = without_times(json.loads((folder / "results.json").read_text()))
    settings = json.loads((folder / "settings.json").read_text())
    whole = (folder / "report.html").read_text().endswith("</html>\n") and (folder / "report.md").stat().st_size
    return {**kept, "results": results, "settings": settings, "report": bool(whole)}


@pytest.fixture(scope="module")
def expected(trainer: Trainer) -> dict[str, Any]:
    assert trainer.train()["code"] == 0
    found = content(trainer.folder)
    assert len(found["rows"]) == 4 and found["report"]
    assert [entry["round"] for entry in found["history"] if entry["kind"] == "round"] == [1, 2]
    return found


def survives(trainer: Trainer, expected: dict[str, Any], *, how: str, nth: int, **options: Any) -> str | None:
    """None, or what is wrong after the n-th call went wrong and the command was given again."""
    trainer.again()
    first = trainer.train(how, nth, **options)
    if how == "killed" and first["code"] != -signal.SIGKILL:
        return f"not killed, but ended with {first['code']}"
    if how != "killed" and (first["code"] not in (0, 1, 2) or "Traceback" in first["said"]):
        return f"no typed error: {first['said'][-2000:]}"
    second = trainer.train()
    if second["code"] != 0 and FINISHED not in second["said"]:
        return f"after {first['said'][-500:]!r}: {second['said'][-2000:]}"
    try:
        found = content(trainer.folder)
    except (OSError, HomespunError) as error:
        return f"not finished: {error}"
    if found != expected:
        return f"other content: {[name for name in expected if found[name] != expected[name]]}"
    return None if how == "killed" else ", ".join(left_behind(trainer.folder)) or None


@pytest.mark.parametrize("how", ["full", "error", "torn", "killed"])
@pytest.mark.timeout(3600)
def test_the_same_command_finishes_a_run_after_a_fault(trainer: Trainer, expected: dict[str, Any], how: str) -> None:
    trainer.again()
    calls = trainer.train()["calls"]
    assert calls > (100 if trainer.preloaded else 30)
    first = 1 + ["full", "error", "torn", "killed"].index(how) * EVERY // 4  # each kind of fault at calls of its own
    faults = {nth: survives(trainer, expected, how=how, nth=nth) for nth in range(first, calls + 1, EVERY)}
    assert {nth: fault for nth, fault in faults.items() if fault} == {}


@pytest.mark.parametrize("how", ["error", "killed"])
def test_the_way_without_a_compiler(trainer: Trainer, expected: dict[str, Any], how: str) -> None:
    trainer.again()
    calls = trainer.train(preloaded=False)["calls"]
    assert calls > 30
    places = range(5, calls + 1, 1 if EVERY == 1 else calls // 3)
    faults = {nth: survives(trainer, expected, how=how, nth=nth, preloaded=False) for nth in places}
    assert {nth: fault for nth, fault in faults.items() if fault} == {}
