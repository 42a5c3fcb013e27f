"""Compares two commits bit by bit: runs a matrix of small runs and digests their results.

    python benchmarks/same_bits.py keep before.json          run the matrix, write one digest for every part of each run
    python benchmarks/same_bits.py compare before.json       run it again and list every part that differs

The matrix has every method and assignment, both engines, with and without differential privacy, participants and
new users, uninterrupted and resumed. Runs use the command line and are read from their files, so that commits with
different internals can be compared: a tensor is found by its name, whatever its role. Where a small tensor differs, the
largest difference is shown. Bits depend on the CPU type and on the version of torch: compare on one machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sqlite3
import struct
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from homespun.cli import app

FURL = {"length": 24, "character_dim": 8, "lstm_dim": 12, "hidden_dim": 16, "user_dim": 6}
OOV = {
    "base_model": "untrained-small",
    "length": 12,
    "lr": 0.3,
    "adapters": "[[8], [4, 6]]",
    "personalize_epochs": 2,
    "final_personalization": False,
}
DIALECTS: tuple[str, dict[str, Any]] = ("dialects", {"users": 14})
DIGITS: tuple[str, dict[str, Any]] = ("digits", {"users": 20})
TEXT: tuple[str, dict[str, Any]] = ("sotu", {})
SHORT_TEXT = {"rounds": 2, "cohort": 2, "withheld": 0.9, "evaluate_users": 2, "evaluate_examples": 4}
PRIVATE = {"privacy.noise_multiplier": 0.5, "privacy.insecure": True}
VARIABLE = {"seconds", "versions", "machine", "cpu", "ledger"}  # keys of results and records that vary between runs


def _cases() -> dict[str, tuple[str, tuple[str, dict[str, Any]], dict[str, Any]]]:
    cases: dict[str, tuple[str, tuple[str, dict[str, Any]], dict[str, Any]]] = {}
    over_furl = {"base_method": "furl", **{f"base_settings.{name}": value for name, value in FURL.items()}}
    labels: dict[str, tuple[str, dict[str, Any]]] = {
        "furl": ("furl", FURL),
        "furl-table": ("furl", {**FURL, "users": "table"}),
        "furl-share": ("furl", {**FURL, "private_update": "share", "mu": 0.1}),
        "furl-fedadam": ("furl", {**FURL, "server": "fedadam", "sampler": "uniform"}),
        "fedavg": ("fedavg", {k: v for k, v in FURL.items() if k != "user_dim"}),
        "central": ("central", {**FURL, "users": "table"}),
        "fedrep-furl": ("fedrep", over_furl),
        "pfedme-furl": ("pfedme", over_furl),
        "pfedkm-furl": (
            "pfedkm",
            {**over_furl, "clusters": 3},
        ),
    }
    images: dict[str, tuple[str, dict[str, Any]]] = {
        "fedembed": ("fedembed", {}),
        "fedembed-som": ("fedembed", {"assignment": "som", "map_every": 2}),
        "fedembed-som-mean": ("fedembed", {"assignment": "som", "map_step": "mean", "map_every": 2}),
        "fedembed-type": ("fedembed", {"assignment": "type", "upload_rows": "all"}),
        "fedembed-personal": ("fedembed", {"assignment": "personal"}),
        "fedembed-line20": ("fedembed", {"trained_by": "assigned", "row_denominator": "contributors"}),
        "preference": ("preference", {}),
        "fedrep": ("fedrep", {}),
        "pfedme": ("pfedme", {}),
        "pfedkm": ("pfedkm", {}),
        "pfedkm-heads": ("pfedkm", {"gradient": "at heads"}),
    }
    texts: dict[str, tuple[str, dict[str, Any]]] = {
        "fedperc": ("fedperc", {}),
        "fedperc-average": ("fedperc", {"prior": "average"}),
        "fedperc-generated": ("fedperc_generated", {}),
        "split-learning": ("split_learning", {}),
        "meta-learning": ("meta_learning", {}),
        "fedrep-fedperc": ("fedrep", {"base_method": "fedperc"}),
    }
    words: dict[str, tuple[str, dict[str, Any]]] = {
        "oov-expansion": ("oov_expansion", OOV),
        "oov-expansion-all": ("oov_expansion", {**OOV, "own_words": "all"}),
        "oov-expansion-unknown": ("oov_expansion", {**OOV, "own_words": "none"}),
        "oov-expansion-cache": ("oov_expansion", {**OOV, "memory": "cache", "own_scores": "memory"}),
    }
    for engine in ("cohort", "loop"):
        for name, (method, values) in words.items():
            run = {"rounds": 3, "cohort": 4, "withheld": 0.2, "engine": engine, "workers": 0}
            cases[f"{name}/{engine}"] = (method, DIALECTS, {**run, **values})
            # not resumed: participants personalize after the last round
            cases[f"{name}/{engine}/final"] = (method, DIALECTS, {**run, **values, "final_personalization": True})
        for name, (method, values) in labels.items():
            run = {"rounds": 4, "cohort": 5, "withheld": 0.2, "engine": engine, "workers": 0}
            cases[f"{name}/{engine}"] = (method, DIALECTS, {**run, **values})
        for name, (method, values) in images.items():
            run = {"rounds": 4, "cohort": 8, "withheld": 0.2, "engine": engine, "workers": 0, "evaluate_every": 4}
            cases[f"{name}/{engine}"] = (method, DIGITS, {**run, **values})
        for name, (method, values) in texts.items():
            cases[f"{name}/{engine}"] = (method, TEXT, {**SHORT_TEXT, "engine": engine, "workers": 0, **values})
    for name in ("furl/cohort", "fedembed/cohort", "fedperc/cohort"):  # worker processes must give the same numbers
        method, data, values = cases[name]
        cases[f"{name}/workers"] = (method, data, {**values, "workers": 2})
    for name in ("furl", "furl-table", "furl-share", "fedavg", "fedrep-furl", "pfedkm-furl"):
        for engine in ("cohort", "loop"):
            method, data, values = cases[f"{name}/{engine}"]
            central = {**values, **PRIVATE, "sampler": "poisson", "privacy.metrics_clip": 5.0}
            cases[f"{name}/{engine}/central"] = (method, data, central)
            cases[f"{name}/{engine}/local"] = (method, data, {**values, **PRIVATE, "privacy.noise": "local"})
    for name in ("fedembed", "fedembed-som-mean", "fedembed-personal", "preference", "fedrep", "pfedme", "pfedkm"):
        method, data, values = cases[f"{name}/cohort"]
        cases[f"{name}/cohort/central"] = (method, data, {**values, **PRIVATE, "sampler": "poisson"})
        cases[f"{name}/cohort/local"] = (method, data, {**values, **PRIVATE, "privacy.noise": "local"})
    method, data, values = cases["fedperc/cohort"]
    cases["fedperc/cohort/central"] = (method, data, {**values, **PRIVATE, "sampler": "poisson"})
    return cases


def _call(*arguments: str) -> None:
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        try:
            app(list(arguments), standalone_mode=False)
        except SystemExit as stop:
            if stop.code:
                raise RuntimeError(f"{arguments}: {quiet.getvalue()}") from None


def _train(folder: Path, method: str, data: tuple[str, dict[str, Any]], values: Mapping[str, Any]) -> None:
    source, corpus = data
    more = {"privacy.ledger": str(folder.parent / f"{folder.name}.ledger")} if PRIVATE.keys() <= values.keys() else {}
    settings = [f"--set={name}={value}" for name, value in {**values, **more}.items()]
    chosen = [f"--data-set={name}={value}" for name, value in corpus.items()]
    _call("train", method, "--data", source, "--folder", str(folder), *settings, *chosen)


SMALL = 20_000  # largest tensor that is kept whole beside its digest


def _digests(tensors: bytes) -> dict[str, Any]:
    """A digest of each tensor, by name without its role in a server's state: `federated/output.bias`."""
    found: dict[str, Any] = {}
    for name, value in safetensors.numpy.load(tensors).items():
        short = name
        for role in ("federated/", "keyed/", "server/"):
            short = short.removeprefix(role)
        found[short] = {"digest": hashlib.sha256(value.tobytes()).hexdigest()[:16]}
        if value.size <= SMALL:
            found[short]["values"] = value.ravel().tolist()
    return found


def _state(message: bytes) -> dict[str, Any]:
    """Tensors of a server's state: a JSON header, then safetensors."""
    (length,) = struct.unpack_from("<Q", message)
    return _digests(message[8 + length :])


def _steady(value: Any) -> Any:
    """Drops the keys that differ from run to run."""
    if isinstance(value, dict):
        return {key: _steady(inner) for key, inner in value.items() if key not in VARIABLE}
    return [_steady(inner) for inner in value] if isinstance(value, list) else value


def _parts(folder: Path) -> dict[str, Any]:
    """Digests of the server's state and of each private row; scores unchanged."""
    with contextlib.closing(sqlite3.connect(folder / "vault.sqlite")) as vault:
        (state,) = vault.execute("SELECT value FROM run WHERE key = 'state'").fetchone()
        rows = vault.execute("SELECT user, data FROM private ORDER BY user").fetchall()
        records = [json.loads(row) for (row,) in vault.execute("SELECT record FROM history ORDER BY id")]
    results = json.loads((folder / "results.json").read_text())
    (only,) = results["configurations"].values()
    (run,) = only["runs"]
    scores = ("eval", "test", "adapted", "newcomers", "newcomers_untouched", "newcomers_in_context", "personal")
    return {
        "state": _state(state),
        "private": {user.hex() if isinstance(user, bytes) else user: _digests(data) for user, data in rows},
        "rounds": _steady([record for record in records if record["kind"] == "round"]),
        "curve": _steady([record for record in records if record["kind"] == "evaluation"]),
        "scores": _steady({name: run.get(name) for name in scores}),
        "controls": _steady(results["controls"]),
        "released": run["released"],
        "privacy": _steady(run["privacy"]),
    }


def matrix(only: str = "") -> dict[str, dict[str, Any]]:
    found = {}
    for name, (method, data, values) in _cases().items():
        if only not in name:
            continue
        with tempfile.TemporaryDirectory() as place:
            os.environ["XDG_DATA_HOME"] = place  # the register of ledgers, which is shared otherwise
            folder = Path(place) / "run"
            _train(folder, method, data, values)
            found[name] = _parts(folder)
            if name.count("/") == 1:  # stopped after a round, then resumed to the end
                again = Path(place) / "resumed"
                for rounds in (1, values["rounds"]):
                    _train(again, method, data, {**values, "rounds": rounds})
                found[f"{name}/resumed"] = {key: _parts(again)[key] for key in ("state", "private", "scores")}
        print(name, flush=True)
    return found


def differences(before: Any, after: Any, where: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        if before.keys() == after.keys() == {"digest", "values"} and before["digest"] != after["digest"]:
            left, right = (np.array(one["values"], dtype=np.float64) for one in (before, after))
            largest = float(np.abs(left - right).max()) if left.shape == right.shape else float("inf")
            return [f"{where}: differs by {largest:.1e} at most"]
        names = sorted(before.keys() | after.keys())
        return [line for n in names for line in differences(before.get(n), after.get(n), f"{where}/{n}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [line for n, (one, other) in pairs for line in differences(one, other, f"{where}/{n}")]
    return [] if before == after or (before != before and after != after) else [f"{where}: {before} -> {after}"]


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[1] not in ("keep", "compare"):
        sys.exit(__doc__)
    path, only = Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""
    found = matrix(only)
    if sys.argv[1] == "keep":
        path.write_text(json.dumps(found))
        return
    before = {name: parts for name, parts in json.loads(path.read_text()).items() if name in found}
    listed = differences(before, json.loads(json.dumps(found)))
    print("\n".join(listed) or f"{len(found)} runs: every digest and every score is the same")
    sys.exit(1 if listed else 0)


if __name__ == "__main__":
    main()
