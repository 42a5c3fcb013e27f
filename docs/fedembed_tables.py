"""FedEmbed's tables 2 to 5: our measurements next to the paper's values.

An experiment NAME has an imbalanced counterpart NAME-imbalanced. In each, a configuration KEY (no privacy) has a
counterpart KEY-private (Gaussian noise).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from homespun.experiments.spending import total_privacy_cost
from homespun.report.groups import by_share, share_scores
from homespun.report.score_tables import title_of
from homespun.report.table_model import MISSING, Cell, Column, Table, make_table, mean

PRIVATE = "-private"
PRIVACY = {"": "none", PRIVATE: "Gaussian"}

# Tables 2 and 3: balanced without and with noise, imbalanced without and with noise
SCORES = {
    "mnist": {
        "fedrep": (0.78, 0.51, 0.78, 0.53),
        "pfedme": (0.76, 0.50, 0.76, 0.50),
        "pfedkm": (0.48, 0.49, 0.55, 0.48),
        "global": (0.40, 0.38, 0.55, 0.38),
        "global-plus": (0.39, 0.36, 0.54, 0.34),
        "personal": (0.76, 0.52, 0.73, 0.52),
        "som": (0.60, 0.47, 0.69, 0.53),
        "prototype": (0.88, 0.69, 0.87, 0.69),
        "type": (0.88, 0.72, 0.88, 0.77),
    },
    "voices": {
        "fedrep": (0.52, 0.49, 0.65, 0.49),
        "pfedme": (0.57, 0.49, 0.57, 0.49),
        "pfedkm": (0.49, 0.49, 0.49, 0.49),
        "global": (0.34, 0.38, 0.44, 0.34),
        "global-plus": (0.35, 0.33, 0.42, 0.33),
        "personal": (0.63, 0.44, 0.68, 0.49),
        "som": (0.51, 0.47, 0.54, 0.47),
        "prototype": (0.78, 0.61, 0.63, 0.53),
        "type": (0.78, 0.60, 0.76, 0.56),
    },
}
# Tables 4 and 5: by share of the users, largest first
BY_SHARE = {
    "mnist": {
        "": {
            "pfedme": (0.77, 0.79, 0.74, 0.76),
            "pfedkm": (0.66, 0.57, 0.49, 0.43),
            "fedrep": (0.80, 0.79, 0.75, 0.77),
            "global": (0.82, 0.43, 0.38, 0.36),
            "global-plus": (0.83, 0.40, 0.41, 0.36),
            "personal": (0.72, 0.75, 0.74, 0.74),
            "som": (0.91, 0.69, 0.61, 0.45),
            "prototype": (0.82, 0.86, 0.85, 0.89),
            "type": (0.92, 0.91, 0.84, 0.83),
        },
        PRIVATE: {
            "pfedme": (0.49, 0.50, 0.49, 0.48),
            "pfedkm": (0.49, 0.47, 0.48, 0.48),
            "fedrep": (0.55, 0.49, 0.51, 0.50),
            "global": (0.39, 0.37, 0.38, 0.37),
            "global-plus": (0.33, 0.34, 0.34, 0.34),
            "personal": (0.51, 0.49, 0.50, 0.50),
            "som": (0.65, 0.49, 0.49, 0.45),
            "prototype": (0.85, 0.59, 0.69, 0.69),
            "type": (0.79, 0.90, 0.72, 0.67),
        },
    },
    "voices": {
        "": {
            "pfedme": (0.66, 0.62, 0.54),
            "pfedkm": (0.49, 0.49, 0.48),
            "fedrep": (0.65, 0.52, 0.55),
            "global": (0.57, 0.49, 0.38),
            "global-plus": (0.51, 0.53, 0.38),
            "personal": (0.78, 0.68, 0.65),
            "som": (0.65, 0.60, 0.50),
            "prototype": (0.79, 0.71, 0.54),
            "type": (0.73, 0.92, 0.73),
        },
        PRIVATE: {
            "pfedme": (0.49, 0.49, 0.49),
            "pfedkm": (0.50, 0.50, 0.48),
            "fedrep": (0.47, 0.50, 0.49),
            "global": (0.34, 0.34, 0.35),
            "global-plus": (0.33, 0.33, 0.33),
            "personal": (0.49, 0.50, 0.49),
            "som": (0.50, 0.49, 0.45),
            "prototype": (0.52, 0.55, 0.48),
            "type": (0.54, 0.60, 0.48),
        },
    },
}


def keys_of(results: Mapping[str, Any]) -> list[str]:
    return [key for key in results["configurations"] if not key.endswith(PRIVATE)]


def spread_of(results: Mapping[str, Any] | None, key: str, places: Sequence[int] | None = None) -> dict[str, Any]:
    found = ((results or {}).get("configurations") or {}).get(key)
    if found is None:
        return {"mean": None, "std": None}
    return share_scores(found["runs"], places or [int(place) for place in found["runs"][0]["test"]["group_f1"]])


def with_paper_value(spread: Mapping[str, Any], papers: float | None) -> str:
    here = MISSING if spread["mean"] is None else f"{spread['mean']:.2f}"
    here += "" if spread["std"] is None else f" ± {spread['std']:.2f}"
    return f"{here} ({MISSING if papers is None else f'{papers:.2f}'})"


def scores(name: str, balanced: Mapping[str, Any], imbalanced: Mapping[str, Any] | None) -> Table:
    """Tables 2 and 3."""
    rows = []
    for key in keys_of(balanced):
        papers = SCORES[name].get(key, (None,) * 4)
        cells = [
            with_paper_value(spread_of(results, key + twin), papers[2 * place + other])
            for place, results in enumerate((balanced, imbalanced))
            for other, twin in enumerate(PRIVACY)
        ]
        rows.append([Cell(title_of(balanced, key)), *map(Cell, cells)])
    headings = [f"{data}, {privacy}" for data in ("Balanced", "Imbalanced") for privacy in PRIVACY.values()]
    return make_table([Column("Method"), *(Column(heading, number=True) for heading in headings)], rows)


def shares(name: str, imbalanced: Mapping[str, Any], twin: str) -> Table:
    """Tables 4 and 5."""
    places = by_share(imbalanced)
    rows = []
    for key in keys_of(imbalanced):
        papers = BY_SHARE[name][twin].get(key, (None,) * len(places))
        cells = [
            with_paper_value(spread_of(imbalanced, key + twin, some), paper)
            for some, paper in zip(places.values(), papers, strict=True)
        ]
        rows.append([Cell(title_of(imbalanced, key)), *map(Cell, cells)])
    return make_table([Column("Method"), *(Column(f"{share} of users", number=True) for share in places)], rows)


def privacy_text(results: Mapping[str, Any]) -> str:
    """The privacy cost of the private configurations, from their runs."""
    found = {
        (
            round(private["epsilon"], 2),
            private["delta"],
            round(private["noise_multiplier"], 3),
            clip_text(private["clip"]),
        )
        for configuration in results["configurations"].values()
        for run in configuration["runs"]
        if (private := run.get("privacy"))
    }
    return "; ".join(
        f"epsilon {epsilon:g} at delta {delta:g} for one run (noise {noise:g} times the clip norm, clip {clip})"
        for epsilon, delta, noise, clip in sorted(found)
    )


def total_privacy_cost_text(*several: Mapping[str, Any] | None) -> str:
    """The total privacy cost of the private runs of one configuration, of one table and of all tables."""
    found = [results for results in several if results is not None]
    runs = [[run for one in results["configurations"].values() for run in one["runs"]] for results in found]
    first = [one["runs"] for key, one in found[0]["configurations"].items() if key.endswith(PRIVATE)][:1]
    sets = [*first, runs[0], *([[run for some in runs for run in some]] if len(runs) > 1 else [])]
    costs = [
        cost
        for some in sets
        if (cost := total_privacy_cost(some, users=found[0]["data"]["users"])) and cost["runs"] > 1
    ]
    if not costs:
        return ""
    said = ", ".join(dict.fromkeys(f"{cost['runs']} runs {cost['epsilon']:.1f}" for cost in costs))
    return f" Together they cost more, since all of them use the same images: {said}."


def clip_text(clip: Mapping[str, float]) -> str:
    """The clip norm, with the parameters it applies to unless it applies to all together."""
    return ", ".join(f"{norm:g}" if names == "*" else f"{norm:g} for {names}" for names, norm in clip.items())


def seconds_text(results: Mapping[str, Any]) -> str:
    """Mean seconds per round, over rounds and seeds, of each configuration without noise."""
    return "; ".join(
        f"{title_of(results, key)} "
        f"{mean(entry['seconds'] for run in results['configurations'][key]['runs'] for entry in run['rounds']):.1f}"
        for key in keys_of(results)
    )
