"""A process that trains a tiny run again and again, each time in a fork. Run by `test_faults.py`.

Importing torch takes seconds, so one process imports everything and then forks a child for each job read from its
standard input. A job is a line of JSON: the folder, what goes wrong (`how`), at which call (`nth`), and whether the
preloaded library sees to it or Python alone. The answer is a line of JSON: the exit code (negative: the signal), how
many calls there were, and what the command printed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import torch
from injector import Patched, Preloaded

from homespun import cli
from homespun.methods.furl import SMALL
from homespun.report import html

CORPUS = ("--data", "dialects", "--data-set", "users=4", "--data-set", "examples=6")
SETTINGS = {**SMALL, "cohort": 2, "workers": 0, "evaluate_every": 1, "personalize_epochs": 1}


def command(folder: str) -> list[str]:
    chosen = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    return ["homespun", "train", "furl", *CORPUS, *chosen, "--rounds", "2", "--folder", folder]


def train(folder: str) -> int:
    """The exit code of `homespun train`; 70 when it ends with a traceback."""
    sys.argv = command(folder)
    try:
        cli.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


def in_a_fork(job: dict, said: Path) -> dict:
    pid = os.fork()
    if pid:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        text, _, calls = said.read_text(errors="replace").partition("\ncalls: ")
        return {"code": code, "said": text, "calls": int(calls or 0)}
    printed = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(printed, stream)
    faults = Preloaded(os.environ["LD_PRELOAD"]) if job["preloaded"] else Patched()
    faults.arm(job["folder"], how=job["how"], nth=job["nth"])
    code = train(job["folder"])
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(1, f"\ncalls: {faults.counted}".encode())
    os._exit(code)


def main() -> None:
    torch.set_num_threads(1)
    html.plots = lambda _: {}  # to draw figures takes longer than all the rest, and writes nothing
    with tempfile.TemporaryDirectory() as folder:
        with redirect_stdout(StringIO()):
            train(f"{folder}/first")  # imports what a command imports when it is called
        for line in sys.stdin:
            print(json.dumps(in_a_fork(json.loads(line), Path(folder) / "said")), flush=True)


if __name__ == "__main__":
    main()
