"""Sub-populations: the score of each, and whether its users were assigned to the same head or cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from homespun.report.figure_style import Plot, empty_figure, plotly_text
from homespun.report.score_tables import seed_note, shown_run_suffix, title_of
from homespun.report.table_model import ACCURACY, F1, Cell, Column, Table, finite, make_table, mark_best


def group_sizes(results: Mapping[str, Any]) -> dict[str, int]:
    """The number of users in each known sub-population."""
    return dict((results.get("data") or {}).get("groups") or {})


def by_share(results: Mapping[str, Any]) -> dict[str, list[int]]:
    """Sub-populations by their share of all users, largest first: share -> positions of the sub-populations."""
    sizes = list(group_sizes(results).values())
    shares = [f"{100 * size / sum(sizes):.0f} %" for size in sizes]
    largest_first = sorted(set(shares) - {"0 %"}, key=lambda share: -float(share.split()[0]))
    return {share: [place for place, other in enumerate(shares) if other == share] for share in largest_first}


def share_scores(runs: Sequence[Mapping[str, Any]], places: Sequence[int]) -> dict[str, float | None]:
    """Mean and standard deviation over seeds of the mean F1 of some sub-populations."""
    found = [run["test"].get("group_f1") or {} for run in runs]
    tested = [[scores[str(place)] for place in places if str(place) in scores] for scores in found]
    values = [np.mean(scores) for scores in tested if scores]
    if not values:
        return {"mean": None, "std": None}
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else None}


def share_table(results: Mapping[str, Any]) -> Table | None:
    """F1 by size of the sub-population; None if all have the same size, or if no run is scored by F1."""
    shares = by_share(results)
    runs = [run for one in results["configurations"].values() for run in one["runs"]]
    scored = any(finite(share_scores(runs, places)["mean"]) is not None for places in shares.values())
    if len(shares) < 2 or len(shares) > 8 or not scored:
        return None
    return scores_table(results, shares, caption="F1 by size of the sub-population")


def scores_table(results: Mapping[str, Any], shares: Mapping[str, Sequence[int]], *, caption: str) -> Table:
    keys = list(results["configurations"])
    columns = [[Cell(title_of(results, key)) for key in keys]]
    for places in shares.values():
        spreads = [share_scores(results["configurations"][key]["runs"], places) for key in keys]
        means = [finite(spread["mean"]) for spread in spreads]
        columns.append(mark_best([Cell(F1.mean_and_std(spread)) for spread in spreads], means, F1))
    headings = [Column("Configuration"), *(Column(f"{share} of users", number=True) for share in shares)]
    note = f"Macro-F1 of each sub-population, averaged over sub-populations of the same size. {seed_note(results)}"
    return make_table(headings, zip(*columns, strict=True), caption=caption, note=note)


def _assigned(results: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    found = {
        key: [run["assigned"] for run in configuration["runs"] if run.get("assigned")]
        for key, configuration in results.get("configurations", {}).items()
    }
    return {key: some for key, some in found.items() if some}


def assignment_table(results: Mapping[str, Any]) -> Table | None:
    """The purity of the heads or clusters that users were assigned to."""
    found = _assigned(results)
    if not found:
        return None
    rows = []
    for key, runs in found.items():
        purity = [float(run["recovered"]) for run in runs]
        spread = {"mean": float(np.mean(purity)), "std": float(np.std(purity, ddof=1)) if len(purity) > 1 else None}
        used = [sum(any(row[place] for row in run["counts"]) for place in range(len(run["counts"][0]))) for run in runs]
        rows.append([title_of(results, key), runs[0]["how"], _range(used), ACCURACY.mean_and_std(spread)])
    headings = [
        Column("Configuration"),
        Column("Assigned"),
        Column("Heads or clusters in use", number=True),
        Column(ACCURACY.heading("Purity"), number=True),
    ]
    note = (
        "Purity: the share of users whose sub-population is the most frequent one in their head or cluster. More heads "
        "or clusters make a high purity easier to reach. A method that is given each user's sub-population or "
        "favourite kind reaches it without learning anything."
    )
    return make_table(headings, rows, caption="Assignment of users to heads or clusters", note=note)


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def confusion_plots(results: Mapping[str, Any]) -> list[Plot]:
    """Sub-populations against the heads or clusters of their users, for every configuration's first seed."""
    of_run = shown_run_suffix(results)
    return [_confusion(title_of(results, key), runs[0], of_run) for key, runs in _assigned(results).items()]


def _confusion(title: str, found: Mapping[str, Any], of_run: str) -> Plot:
    counts = np.asarray(found["counts"], dtype=float)
    order = _order(counts)
    shares = 100 * counts[:, order] / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    names = [plotly_text(name) for name in found["groups"]]
    figure = empty_figure(height=360)
    figure.add_heatmap(
        z=shares, y=names, x=[f"{place}" for place in order], zmin=0, zmax=100, colorscale="Blues",
        colorbar={"title": {"text": "%"}, "thickness": 10, "outlinewidth": 0}, xgap=1, ygap=1,
        hovertemplate="%{z:.0f} % of sub-population %{y} are in head or cluster %{x}<extra></extra>",
    )  # fmt: skip
    figure.update_xaxes(title_text="Head or cluster", type="category", showgrid=False)
    figure.update_yaxes(title_text="Sub-population", type="category", autorange="reversed", showgrid=False)
    return Plot(
        figure,
        f"Sub-populations and the heads or clusters that {title} assigned them to",
        title=f"{title}, {found['how']}{of_run}",
    )


def _order(counts: np.ndarray) -> list[int]:
    """Heads or clusters by their most frequent sub-population, so that a good assignment is a diagonal."""
    return sorted(range(counts.shape[1]), key=lambda place: (int(counts[:, place].argmax()), -counts[:, place].max()))
