"""Results of next-word runs that are small enough to check by hand: six new users in two folds, 100 words each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from homespun.evaluation.next_words import COUNTS, NextWordEvaluation
from homespun.experiments.results import assemble

TITLES = {"ours": "OOV Expansion", "unk": "OOV-as-UNK", "oracle": "OOV-oracle"}
DATA = {"name": "chat", "users": 3, "newcomers": 6, "folds": 2, "check": {"users": 6, "examples": 60}}
PARAMETERS = {"frozen": 0, "federated": 1_754_804, "keyed": 0, "private": 0}
# Of each user, in the order of COUNTS: words, hits, OOV words, those that are hits, covered ones, keys, saved keys
A_ROUND = {
    "kind": "round", "round": 1, "clients": 2, "examples": 8, "loss": 1.0, "seconds": 0.5,
    "down_bytes": {"federated": 1000}, "up_bytes": {"federated": 1000},
}  # fmt: skip
BEFORE = (100, 20, 10, 0, 0, 500, 100)
AFTER = {
    "unk": (100, 24, 10, 0, 0, 500, 120),
    "ours": (100, 26, 10, 3, 5, 500, 140),
    "oracle": (100, 25, 6, 0, 0, 500, 125),
}


def evaluation(users: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    counts = dict(zip(COUNTS, zip(*users, strict=True), strict=True))
    return NextWordEvaluation(counts, loss_sum=300.0).to_dict()


def run_of(key: str, fold: int, *, seed: int = 0, more: int = 0, **changed: Any) -> dict[str, Any]:
    """`more`: hits of each user in addition."""
    before = (100, 19, 6, 0, 0, 500, 95) if key == "oracle" else BEFORE
    after = (100, AFTER[key][1] + more, *AFTER[key][2:])
    test = evaluation([before] * 3)
    return {
        "method": "oov_expansion",
        "seed": seed,
        "fold": fold,
        "settings": {"base_model": "nextword"},
        "run": {"cohort": 2, "withheld": 0.5, "evaluate_users": 1000, "evaluate_examples": None},
        "identity": {},
        "parameters": {**PARAMETERS, "added_at_home": 366_000 if key == "ours" else 0},
        "rounds": [A_ROUND],
        "curve": [{"round": 1, "epoch": 1.0, "value": test["value"]}],
        "eval": test,
        "test": test,
        "adapted": {},
        "newcomers": {"0": evaluation([before] * 3), "all": evaluation([after] * 3)},
        "positions": {
            "participants": [3, 4, 5] if fold == 0 else [0, 1, 2],
            "newcomers": [3 * fold + n for n in range(3)],
        },
        "released": ["parameter updates"],
        **changed,
    }


def results(keys: Sequence[str] = tuple(TITLES), **changed: Any) -> dict[str, Any]:
    configurations = {key: (TITLES[key], [run_of(key, fold, **changed) for fold in (0, 1)]) for key in keys}
    return assemble("words", DATA, configurations=configurations, controls=[{}, {}])
