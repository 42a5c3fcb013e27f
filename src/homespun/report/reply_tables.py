"""Tables of a dialogue method's replies: their scores, and the same prompts answered by several speakers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from homespun.report.continuation_tables import GENERATED_NOTICE, LONGEST_TEXT
from homespun.report.score_tables import title_of
from homespun.report.table_model import MISSING, Cell, Column, Table, finite, make_table, mean, shorten

METRICS = (
    ("bleu_1", "BLEU-1", 100),
    ("bleu_2", "BLEU-2", 100),
    ("bleu_4", "BLEU-4", 100),
    ("distinct_1", "distinct-1", 100),
    ("distinct_2", "distinct-2", 100),
    ("most_frequent", "most frequent reply", 100),
    ("length", "words", 1),
    ("speaker", "right speaker", 100),
)
ROWS = {"own": "{}", "another": "{}, another speaker's persona"}
CONTROLS = {"retrieved": "Control: own answer to the nearest training question", "real": "The real replies"}


def quality_table(results: Mapping[str, Any]) -> Table | None:
    """Scores of the replies of every configuration and of the controls."""
    runs = _runs(results)
    if not runs:
        return None
    rows = []
    for key, found in runs.items():
        titled = {name: title.format(title_of(results, key)) for name, title in ROWS.items()}
        rows += [_row(title, found, name) for name, title in titled.items() if name in found[0]["scores"]]
    first = next(iter(runs.values()))
    rows += [_row(title, first, name) for name, title in CONTROLS.items() if name in first[0]["scores"]]
    prompts, beam = first[0]["prompts"], first[0]["beam"]
    note = (
        f"{prompts} test prompts, best reply of a beam of {beam}, without reranking; all but the words in %. Right "
        "speaker: how often a classifier of characters, trained on real lines, names the speaker whose persona "
        "replied or, for another speaker's persona, should have replied."
    )
    columns = [Column(""), *(Column(title, number=True) for _, title, _ in METRICS)]
    return make_table(columns, rows, caption="Replies to test prompts", note=note)


def prompt_tables(results: Mapping[str, Any]) -> list[Table]:
    """One table per prompt: a row per speaker, a column per configuration, for the first seed."""
    runs = _runs(results)
    if not runs:
        return []
    titles = [title_of(results, key) for key in runs]
    replies = {
        key: {(one["prompt"], one["user"]): one["reply"] for one in found[0]["samples"]} for key, found in runs.items()
    }
    pairs = list(next(iter(replies.values())))
    tables = []
    for prompt in dict.fromkeys(prompt for prompt, _ in pairs):
        rows = [
            [
                Cell(shorten(user)),
                *(Cell(shorten(one.get((prompt, user), MISSING), LONGEST_TEXT)) for one in replies.values()),
            ]
            for asked, user in pairs
            if asked == prompt
        ]
        columns = [Column("Speaker"), *(Column(title) for title in titles)]
        tables.append(make_table(columns, rows, caption=f"“{shorten(prompt)}”"))
    return tables


NOTICE = f"The prompts are the first plain ones of the test parts. {GENERATED_NOTICE}"


def _runs(results: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The reply results of the runs of each configuration that has them."""
    found = {
        key: [run["replies"] for run in one["runs"] if run.get("replies")]
        for key, one in results.get("configurations", {}).items()
    }
    return {key: runs for key, runs in found.items() if runs}


def _row(title: str, runs: Sequence[Mapping[str, Any]], name: str) -> list[str | Cell]:
    cells: list[str | Cell] = [title]
    for metric, _, factor in METRICS:
        values = [run["scores"][name].get(metric) for run in runs]
        average = mean([one[0] if isinstance(one, list) else one for one in values])
        number = finite(average)
        cells.append(MISSING if number is None else f"{factor * number:.{1 if factor == 1 else 2}f}")
    return cells
