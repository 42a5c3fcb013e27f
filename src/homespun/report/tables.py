"""The report as Markdown, and its first tables as plain text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from homespun.report import score_tables
from homespun.report.differences import difference_table
from homespun.report.few_shot import few_shot_tables
from homespun.report.next_word_systems import systems
from homespun.report.next_word_tables import samples_table, terminal_table
from homespun.report.sections import report_title, sections, subtitle
from homespun.report.table_model import Cell, PlainTable, Table

WIDEST = 5  # columns that fit in a terminal, whatever they hold
WIDTH, GAP = 80, 2  # of a terminal, and between columns


def central_tables(results: Mapping[str, Any]) -> list[tuple[str, Table]]:
    """The main results with their titles: all configurations, by number of own samples, and differences. Of next words,
    scores by number of own samples only if there are more than before and after personalization; without intervals."""
    suggesting = systems(results)
    if suggesting:
        samples = samples_table(results, intervals=False)
        return [
            (report_title(results), terminal_table(suggesting)),
            *([(samples.caption, samples)] if samples else []),
        ]
    differences = difference_table(results)
    return [
        (report_title(results), score_tables.main_table(results)),
        *((made.caption or "Newcomers", made) for made in few_shot_tables(results)),
        *([(differences.caption, differences)] if differences else []),
    ]


def plain_tables(results: Mapping[str, Any]) -> list[PlainTable]:
    """The same tables for a terminal; a wide one is transposed."""
    return [_plain(title, table) for title, table in central_tables(results)]


def _plain(title: str, table: Table) -> PlainTable:
    whole = [tuple(column.title for column in table.columns), *_texts(table)]
    if len(table.columns) > WIDEST and not _fits(table):
        whole = list(zip(*whole, strict=True))
    return title, whole[0], whole[1:]


def _fits(table: Table) -> bool:
    """Whether the table fits in a terminal if titles and names are on several lines."""
    names, *numbers = zip(*[[column.title for column in table.columns], *_texts(table)], strict=True)
    widths = [max(_longest_word(title), *map(len, cells)) for title, *cells in numbers if cells]
    return max(map(_longest_word, names)) + sum(GAP + width for width in widths) <= WIDTH


def _texts(table: Table) -> list[tuple[str, ...]]:
    return [tuple(cell.text for cell in row) for row in table.rows]


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def markdown(results: Mapping[str, Any]) -> str:
    """The whole report without its figures."""
    blocks = [f"# {escape(report_title(results))}", escape(subtitle(results))]
    for section in sections(results):
        if not (section.text or section.tables):  # only figures
            continue
        blocks.append(f"## {escape(section.heading)}")
        blocks += map(escape, section.text)
        for table in section.tables:
            if table.caption:
                blocks.append(f"### {escape(table.caption)}")
            blocks.append(markdown_table(table))
            if table.note:
                blocks.append(escape(table.note))
    return "\n\n".join(blocks) + "\n"


def markdown_table(table: Table) -> str:
    head = [escape(column.title) for column in table.columns]
    rule = ["---:" if column.number else "---" for column in table.columns]
    return "\n".join(_row(cells) for cells in (head, rule, *([_cell(cell) for cell in row] for row in table.rows)))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    return f"**{escape(cell.text)}**" if cell.best else escape(cell.text)


def escape(text: str) -> str:
    """Escape names and labels from the data, which must neither end a cell nor become markup or HTML."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join("\\" + sign if sign in "\\`*_[]|~" else sign for sign in text)
