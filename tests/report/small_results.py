"""A results object small enough to check by hand."""

from __future__ import annotations

from typing import Any


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
