"""Sub-populations: how well each is served, and whether those who belong together were put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from homespun.report.figure_style import Plot, empty_figure, plain
from homespun.report.score_tables import first_of_several, over_seeds, title_of
from homespun.report.table_model import ACCURACY, F1, Cell, Column, Table, finite, mark_best, table


def group_sizes(results: Mapping[str, Any]) -> dict[str, int]:
    """Users of every known sub-population."""
    return dict((results.get("data") or {}).get("groups") or {})


def by_share(results: Mapping[str, Any]) -> dict[str, list[int]]:
    """Sub-populations of the same size together, largest first: a share of all users -> their places."""
    sizes = list(group_sizes(results).values())
    shares = [f"{100 * size / sum(sizes):.0f} %" for size in sizes]
    largest_first = sorted(set(shares) - {"0 %"}, key=lambda share: -float(share.split()[0]))
    return {share: [place for place, other in enumerate(shares) if other == share] for share in largest_first}


def share_scores(runs: Sequence[Mapping[str, Any]], places: Sequence[int]) -> dict[str, float | None]:
    """Mean and deviation over seeds of the mean F1 of some sub-populations."""
    found = [run["test"].get("group_f1") or {} for run in runs]
    tested = [[scores[str(place)] for place in places if str(place) in scores] for scores in found]
    values = [np.mean(scores) for scores in tested if scores]
    if not values:
        return {"mean": None, "std": None}
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else None}


def share_table(results: Mapping[str, Any]) -> Table | None:
    """F1 by how large a sub-population is; nothing where all are of one size."""
    shares = by_share(results)
    if len(shares) < 2 or len(shares) > 8:
        return None
    return scores_table(results, shares, caption="F1 by size of the sub-population")


def scores_table(results: Mapping[str, Any], shares: Mapping[str, Sequence[int]], *, caption: str) -> Table:
    keys = list(results["configurations"])
    columns = [[Cell(title_of(results, key)) for key in keys]]
    for places in shares.values():
        spreads = [share_scores(results["configurations"][key]["runs"], places) for key in keys]
        means = [finite(spread["mean"]) for spread in spreads]
        columns.append(mark_best([Cell(F1.spread(spread)) for spread in spreads], means, F1))
    headings = [Column("Configuration"), *(Column(f"{share} of users", number=True) for share in shares)]
    note = (
        f"Macro-F1 over the two labels of each sub-population, the mean over those of one size. {over_seeds(results)}"
    )
    return table(headings, zip(*columns, strict=True), caption=caption, note=note)


def _assigned(results: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    found = {
        key: [run["assigned"] for run in configuration["runs"] if run.get("assigned")]
        for key, configuration in results.get("configurations", {}).items()
    }
    return {key: some for key, some in found.items() if some}


def assignment_table(results: Mapping[str, Any]) -> Table | None:
    """The share of users who were put where their sub-population is the most frequent one."""
    found = _assigned(results)
    if not found:
        return None
    rows = []
    for key, runs in found.items():
        shares = [float(run["recovered"]) for run in runs]
        spread = {"mean": float(np.mean(shares)), "std": float(np.std(shares, ddof=1)) if len(shares) > 1 else None}
        used = [sum(any(row[place] for row in run["counts"]) for place in range(len(run["counts"][0]))) for run in runs]
        rows.append([title_of(results, key), runs[0]["how"], _range(used), ACCURACY.spread(spread)])
    headings = [
        Column("Configuration"),
        Column("Users were put together"),
        Column("Places in use", number=True),
        Column(ACCURACY.column("With their own"), number=True),
    ]
    note = (
        "With their own: users whose sub-population is the most frequent one where they are; with more places it is "
        "easier to have. A method that is told "
        "everybody's sub-population, or everybody's favourite kind, has it for the asking."
    )
    return table(headings, rows, caption="Who was put together", note=note)


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def confusion_plots(results: Mapping[str, Any]) -> list[Plot]:
    """Sub-populations against the places they were put in, of every configuration's first seed."""
    of_run = first_of_several(results)
    return [_confusion(title_of(results, key), runs[0], of_run) for key, runs in _assigned(results).items()]


def _confusion(title: str, found: Mapping[str, Any], of_run: str) -> Plot:
    counts = np.asarray(found["counts"], dtype=float)
    order = _order(counts)
    shares = 100 * counts[:, order] / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    names = [plain(name) for name in found["groups"]]
    figure = empty_figure(height=360)
    figure.add_heatmap(
        z=shares, y=names, x=[f"{place}" for place in order], zmin=0, zmax=100, colorscale="Blues",
        colorbar={"title": {"text": "%"}, "thickness": 10, "outlinewidth": 0}, xgap=1, ygap=1,
        hovertemplate="%{z:.0f} % of those who are %{y} are in place %{x}<extra></extra>",
    )  # fmt: skip
    figure.update_xaxes(title_text="Place", type="category", showgrid=False)
    figure.update_yaxes(title_text="Sub-population", type="category", autorange="reversed", showgrid=False)
    return Plot(figure, f"Sub-populations and where {title} put them", title=f"{title}, {found['how']}{of_run}")


def _order(counts: np.ndarray) -> list[int]:
    """Places by the sub-population that fills them, so that a good assignment is a diagonal."""
    return sorted(range(counts.shape[1]), key=lambda place: (int(counts[:, place].argmax()), -counts[:, place].max()))
