"""A results object small enough to check by hand."""

from __future__ import annotations

from typing import Any

import numpy as np


def spread(mean: float | None, std: float | None = None) -> dict[str, Any]:
    return {"mean": mean, "std": std}


def summarized(value: float | None, *, std: float | None = 0.01, tenth: float | None = 0.25) -> dict[str, Any]:
    return {
        "metric": "accuracy",
        "value": spread(value, std),
        "user_mean": spread(value, std),
        "user_worst_tenth": spread(tenth, std),
        "loss": spread(1.0, std),
    }


def evaluation(value: float | None) -> dict[str, Any]:
    return {"users": 2, "examples": 4, "metric": "accuracy", "value": value, "user_values": [0.25, 0.75]}


def a_round(number: int, *, clients: int) -> dict[str, Any]:
    return {
        "kind": "round",
        "round": number,
        "clients": clients,
        "examples": 8,
        "loss": 1.0,
        "seconds": 0.5,
        "down_bytes": {"federated": 1000 * clients, "keyed": 0, "private": 0},
        "up_bytes": {"federated": 1000 * clients, "keyed": 0, "statistics": 24 * clients, "private": 0},
    }


def a_map(groups: list[str | None]) -> dict[str, Any]:
    points = [[float(place), float(-place)] for place in range(len(groups))]
    return {
        "users": len(groups),
        "of": len(groups),
        "pca": points,
        "tsne": points,
        "group": groups,
        "label": ["red"] * len(groups),
        "positive_rate": None,
    }


def a_run(method: str, seed: int, *, value: float, clients: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "method": method,
        "seed": seed,
        "settings": {"rate": 0.1},
        "run": {"epochs": 2.0, "seed": seed, "evaluate_users": 1000},
        "rounds": [a_round(1, clients=clients), a_round(2, clients=clients)],
        "curve": [{"round": 0, "epoch": 0.0, "value": 0.1}, {"round": 2, "epoch": 2.0, "value": value}],
        "eval": evaluation(value),
        "test": evaluation(value),
        "newcomers": {},
        "released": ["parameter updates", "weight", "loss", "examples"],
        "maps": None,
        **more,
    }


def configuration(title: str, summary: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"title": title, "method": runs[0]["method"], "summary": summary, "runs": runs}


def summary(
    value: float | None, *, std: float | None = 0.01, newcomers: dict[str, Any] | None = None
) -> dict[str, Any]:
    whole = summarized(value, std=std)
    return {
        "eval": whole,
        "test": whole,
        "newcomers": newcomers or {},
        "rounds": 2,
        "seconds_per_round": spread(0.5, std),
    }


def results() -> dict[str, Any]:
    """Central, global and personalized, over two seeds, with two newcomers."""
    shots = {"0": summarized(0.3), "5": summarized(0.5), "20": summarized(None), "all": summarized(0.55)}
    groups: list[str | None] = ["north", "south", "north", "south", "east"]
    return {
        "schema": 1,
        "name": "small",
        "versions": {"homespun": "0.1.0", "python": "3.11.9"},
        "data": {
            "source": "dialects",
            "name": "dialects",
            "fingerprint": "abc",
            "labels": ["red", "blue"],
            "contexts": 0,
            "users": 5,
            "newcomers": 2,
            "check": {"examples": 1234, "labels": 2, "characters": 56789, "own_majority_share": 0.4},
        },
        "configurations": {
            "server": configuration(
                "Global Server",
                summary(0.4),
                [a_run("central", seed, value=0.4, clients=1) for seed in (0, 1)],
            ),
            "global": configuration(
                "Global FL",
                summary(0.35, newcomers={"0": summarized(0.31)}),
                [a_run("fedavg", seed, value=0.35) for seed in (0, 1)],
            ),
            "personal": configuration(
                "Personalized FL",
                summary(0.62414, newcomers=shots),
                [a_run("furl", seed, value=0.62414, maps=a_map(groups)) for seed in (0, 1)],
            ),
        },
        "controls": {
            "runs": [{"majority": evaluation(0.2), "own_majority": evaluation(0.3)}] * 2,
            "summary": {"majority": summarized(0.2, tenth=0.0), "own_majority": summarized(0.3)},
        },
        "similarity": [
            {"left": "server", "right": "personal", "seed": 0, "correlation": 0.5},
            {"left": "server", "right": "personal", "seed": 1, "correlation": 0.7},
        ],
    }


def single() -> dict[str, Any]:
    """One configuration, one seed; no newcomers, maps or similarity."""
    found = results()
    run = a_run("fedavg", 0, value=0.35)
    found["configurations"] = {"fedavg": configuration("fedavg", summary(0.35, std=None), [run])}
    found["controls"]["runs"] = found["controls"]["runs"][:1]
    found["data"]["newcomers"] = 0
    return found | {"similarity": []}


def perplexity(value: float | None, *, std: float | None = 0.5, tenth: float | None = 90.0) -> dict[str, Any]:
    return {**summarized(value, std=std, tenth=tenth), "metric": "perplexity"}


def text_evaluation(values: list[float]) -> dict[str, Any]:
    """Ten tokens a user."""
    return {
        "users": len(values),
        "examples": 2 * len(values),
        "metric": "perplexity",
        "value": float(np.exp(np.mean(np.log(values)))) if values else None,
        "loss": float(np.mean(np.log(values))) if values else None,
        "user_mean": float(np.mean(values)) if values else None,
        "user_worst_tenth": max(values, default=None),
        "user_values": values,
        "tokens": 10 * len(values),
        "user_loss": [10 * float(np.log(value)) for value in values],
        "user_tokens": [10] * len(values),
    }


def text_run(method: str, seed: int, *, values: list[float], **more: Any) -> dict[str, Any]:
    found = text_evaluation(values)
    curve = [{"round": 0, "epoch": 0.0, "value": 60.0}, {"round": 2, "epoch": 2.0, "value": found["value"]}]
    changed = {"eval": found, "test": found, "adapted": {}, "newcomers_untouched": None, "curve": curve}
    return a_run(method, seed, value=0.0, **{**changed, **more})


def text_results() -> dict[str, Any]:
    """A personalized and a shared prefix before a frozen language model, over two seeds, no labels."""
    shots = {"0": 50.0, "1": 48.0, "5": 45.0, "15": 42.5, "all": 40.0}
    known = {number: perplexity(value) for number, value in shots.items()}
    withheld = {number: perplexity(value + 5) for number, value in shots.items()}
    drawn = {**a_map([None] * 5), "label": None, "context": ["spoken", "written", "written", "spoken", None]}
    ours = {
        **summary(None),
        "eval": perplexity(49.0),
        "test": perplexity(50.0),
        "newcomers_untouched": perplexity(66.0),
    }
    theirs = {**ours, "test": perplexity(52.0), "adapted": {}, "newcomers": {"0": perplexity(56.0)}}
    base = text_evaluation([60.0, 64.0])
    found = results()
    found["data"] |= {"name": "sotu", "labels": [], "contexts": 2}
    found["data"]["check"] |= {"labels": 0, "users_with_several_contexts": 3, "own_majority_share": None}
    return found | {
        "configurations": {
            "personal": configuration(
                "FedPerC",
                {**ours, "adapted": known, "newcomers": withheld},
                [text_run("fedperc", seed, values=[40.0, 62.5], maps=drawn) for seed in (0, 1)],
            ),
            "shared": configuration(
                "One prefix", theirs, [text_run("fedperc", seed, values=[41.0, 66.0]) for seed in (0, 1)]
            ),
        },
        "controls": {"runs": [{"untouched": base}] * 2, "summary": {"untouched": perplexity(62.0)}},
        "differences": {
            "ours": "personal",
            "configurations": {
                "shared": {
                    "test": {"percent": -3.85, "low": -5.0, "high": -2.5, "users": 2},
                    "adapted": {"percent": -1.0, "low": -2.0, "high": 0.5, "users": 2},
                    "newcomers": None,
                }
            },
            "controls": {
                "untouched": {
                    "test": {"percent": -19.35, "low": -25.0, "high": -12.0, "users": 2},
                    "adapted": {"percent": 1.5, "low": None, "high": None, "users": 1},
                    "newcomers": {"percent": 3.0, "low": 1.0, "high": 5.0, "users": 2},
                }
            },
            "unadapted": {
                "shared": {"adapted": {"percent": -2.0, "low": -3.0, "high": -1.0, "users": 2}, "newcomers": None}
            },
        },
        "from_samples": {
            "personal": {
                "adapted": {"0": {"percent": -15.0, "low": -20.0, "high": -10.0, "users": 2}, "1": None},
                "newcomers": {
                    "0": {"percent": -14.0, "low": -20.0, "high": 1.0, "users": 2},
                    "1": {"percent": -10.0, "low": -12.0, "high": -9.0, "users": 2},
                },
            },
            "shared": {"adapted": {"0": None, "1": None}, "newcomers": {"0": None, "1": None}},
        },
        "similarity": [],
    }
