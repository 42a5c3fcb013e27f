"""Workload int8: what 8-bit integers cost users of a next-word run, and what is kept of each of them.

    homespun bench int8 --set run=RUN

The models of the first `users` who have personalized are exported in float32 and in 8-bit integers, and predict the
words of their test texts in onnxruntime: EMR3 of both, in percent. Sizes are means over these users, of the exported
graphs and of what the vault keeps: own words, adapter, and the copy of the shared model.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from homespun.core.method import Batch
from homespun.core.roles import Role
from homespun.core.tree import Tree
from homespun.models.next_word import places_in, shift
from homespun.models.next_word_onnx import STEP, write_next_word_onnx
from homespun.models.suggestion_ranks import NOTHING, SUGGESTED
from homespun.models.vocabulary import SPECIAL, UNKNOWN
from homespun.personalization.suggestions import next_word_model
from homespun.runs.run import Run
from homespun.runs.training import reopen


def measure(rounds: int = 1, run: str = "", users: int = 100) -> dict[str, float | int]:
    """`rounds` has no effect: nothing is timed."""
    if not run:
        raise SystemExit("int8: give the folder of a run whose participants have personalized: --set run=RUN")
    with reopen(run) as opened:
        return measure_run(opened, users=users)


def measure_run(run: Run, *, users: int) -> dict[str, float | int]:
    stored = run.clients.stored_private(run.federation.users)
    personalized = {user: private for user, private in stored.items() if "output.weight" in private}
    if not personalized:
        raise SystemExit("int8: no user of this run has personalized. Train with --set final_personalization=true")
    found = [_of_user(run, user, private) for user, private in islice(personalized.items(), users)]
    words = int(sum(one["words"] for one in found))
    float32, int8 = (100 * sum(one[kind] for one in found) / words for kind in ("float32", "int8"))
    sizes = {name: fmean(one[name] for one in found) for name in found[0] if name.endswith("_kb")}
    hits = {"float32_emr3": float32, "int8_emr3": int8, "lost_points": float32 - int8}
    return {"users": len(found), "words": words, **hits, **sizes}


def _of_user(run: Run, user: str, private: Tree) -> dict[str, float]:
    data = run.clients.encode(run.federation, run.federation.users.index(user), "test")
    parameters = run.built.parameters(run.state.broadcast(), private)
    layers, cells = next_word_model(run).sizes.layers, parameters["output.weight"].shape[1]
    targets = targets_of(data, private.get("own.lexicon"), vocabulary=len(parameters["output.weight"]))
    found: dict[str, float] = {"words": int((targets != NOTHING).sum())}
    for kind in ("float32", "int8"):
        with tempfile.TemporaryDirectory() as folder:
            write_next_word_onnx(Path(folder), next_word_model(run).vocabulary, parameters, int8=kind == "int8")
            step = Path(folder) / STEP
            found[f"{kind}_kb"] = step.stat().st_size / 1000
            found[kind] = count_hits(step, data, targets, state=(2 * layers, cells))
    return found | kept_kilobytes(run, private)


def targets_of(data: Batch, lexicon: Tensor | None, *, vocabulary: int) -> np.ndarray:
    """The numbers of the words in the exported model [n, T]: NOTHING beyond a text, UNKNOWN for a word it lacks."""
    targets = shift(data["words"].long(), data["length"])[1]
    if lexicon is not None and len(lexicon):
        own = places_in(lexicon, data["spelling"])
        targets = torch.where((targets == UNKNOWN) & (own >= 0), vocabulary + own, targets)
    return targets.numpy()


def count_hits(step: Path, data: Batch, targets: np.ndarray, *, state: tuple[int, int]) -> int:
    """How many of the words are among the three likeliest at their place."""
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = runtime.InferenceSession(step, options)
    inputs = shift(data["words"].long(), data["length"])[0].numpy()
    states, hits = np.zeros((len(inputs), *state), np.float32), 0
    for place in range(int(data["length"].max())):
        log_probs, states = session.run(None, {"words": inputs[:, place], "state": states})
        target = targets[:, place]
        known = target >= SPECIAL
        scores = log_probs[known, SPECIAL:]
        score = log_probs[known, target[known]][:, None]
        earlier = np.arange(SPECIAL, log_probs.shape[1]) < target[known][:, None]
        rank = ((scores > score) | ((scores == score) & earlier)).sum(axis=1)
        hits += int((rank < SUGGESTED).sum())
    return hits


def kept_kilobytes(run: Run, private: Mapping[str, Any]) -> dict[str, float]:
    """What the vault keeps of a user."""
    shared = run.built.partition.names(Role.FEDERATED)
    kinds = {
        "lexicon_kb": ("own.lexicon", "own.counts"),
        "adapter_kb": ("own.adapter", "own.hidden"),
        "copy_kb": shared,
    }
    return {
        kind: sum(private[name].numel() * private[name].element_size() for name in names if name in private) / 1000
        for kind, names in kinds.items()
    }
