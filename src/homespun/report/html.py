"""The report as one HTML file: no network, no server, tables readable without JavaScript."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from homespun.core.errors import HomespunError, RunError
from homespun.core.progress import Show, counted, silent
from homespun.experiments.results import RESULTS_FILE, read_results
from homespun.report.figure_style import Key, Plot
from homespun.report.plots import plots
from homespun.report.sections import Section, report_title, sections, subtitle
from homespun.report.stylesheet import STYLE
from homespun.report.table_model import Cell, Column, Table
from homespun.report.tables import markdown
from homespun.system.disk import make_folder, write_whole

# Figures are data blocks, which no browser executes; this one script of our own reads them.
DRAW = """
for (const place of document.querySelectorAll(".canvas")) {
  const figure = JSON.parse(document.getElementById(place.dataset.figure).textContent);
  place.style.minHeight = figure.layout.height + "px";
  // With a mouse, drawing a box zooms; a finger scrolls the page.
  figure.layout.dragmode = matchMedia("(pointer: fine)").matches ? "zoom" : false;
  Plotly.newPlot(place, figure.data, figure.layout, {responsive: true, displayModeBar: false});
}
"""

REPORT_FILES = ("report.md", "report.html")


def write_report(results: Mapping[str, Any], folder: Path, *, progress: Show = silent) -> Path:
    """Write `report.html` and `report.md`, each whole or not at all; returns the page."""
    make_folder(folder)
    done = counted(progress, "report", total=2)
    write_whole(folder / "report.md", markdown(results))
    done(1)
    written = write_whole(folder / "report.html", page(results))
    done(1)
    return written


def rewrite_report(folder: Path, *, progress: Show = silent) -> Path:
    """Write the report again from a folder's `results.json`, which may have been edited or damaged since."""
    found = read_results(folder)
    try:
        return write_report(found, folder, progress=progress)
    except (HomespunError, OSError):
        raise
    except Exception as error:  # whatever a section misses in the file is the file's fault
        raise RunError(
            f"{folder / RESULTS_FILE}: no report can be made of it ({type(error).__name__}: {error}). It was edited or "
            "damaged, or another version of homespun wrote it. Restore it from a copy, or train again to the end."
        ) from error


def page(results: Mapping[str, Any]) -> str:
    title, drawn, parts = escape(report_title(results)), plots(results), sections(results)
    library = get_plotlyjs() if any(drawn.values()) else ""
    contents = " ".join(f'<a href="#{part.key}">{escape(part.short)}</a>' for part in parts)
    body = "\n".join(_section(part, drawn.get(part.key, [])) for part in parts)
    scripts = [library, DRAW] if library else []
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p class="subtitle">{escape(subtitle(results))}</p>
<nav>{contents}</nav>
<noscript><p class="note">The figures need JavaScript; the tables have the numbers.</p></noscript>
</header>
<main>
{body}
</main>
<footer>Made by homespun from results.json; report.md has the same tables. Draw a box in a figure to see it
larger, double-click to go back.</footer>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def _policy(scripts: Sequence[str]) -> str:
    """Nothing is loaded and only our own scripts run, even if text from the data slipped through."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes) or "'none'"
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _section(section: Section, drawn: Sequence[Plot]) -> str:
    parts = [f'<section id="{section.key}">', f"<h2>{escape(section.heading)}</h2>"]
    parts += [f"<p>{escape(line)}</p>" for line in (*section.text, section.about_figures) if line]
    parts.append(_figures(section.key, drawn))
    parts += [_table(table) for table in section.tables]
    return "\n".join([*parts, "</section>"])


def _figures(key: str, drawn: Sequence[Plot]) -> str:
    """One figure over the whole width, or pairs side by side where the screen is wide enough."""
    if not drawn:
        return ""
    # One legend serves all figures of a section if they agree on it.
    legends = [plot.legend for plot in drawn]
    widest = max(legends, key=len)
    inside = [_figure(f"{key}-{place}", plot) for place, plot in enumerate(drawn)]
    kind = "figures pairs" if len(drawn) > 1 else "figures"
    return "\n".join([_legend(widest), f'<div class="{kind}">', *inside, "</div>"])


def _figure(name: str, plot: Plot) -> str:
    title = f"<figcaption>{escape(plot.title)}</figcaption>" if plot.title else ""
    label = f'role="img" aria-label="{escape(plot.description)}"'
    data = f'<script type="application/json" id="{name}">{_harmless(plot.figure.to_json() or "{}")}</script>'
    return f'<figure>{title}<div class="canvas" data-figure="{name}" {label}></div>{data}</figure>'


def _harmless(json_text: str) -> str:
    """JSON that cannot end the script element it stands in."""
    return json_text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _legend(keys: Sequence[Key]) -> str:
    if not keys:
        return ""
    return f'<ul class="legend">{"".join(_key(key) for key in keys)}</ul>'


def _key(key: Key) -> str:
    swatch = f'<span class="swatch {key.mark}" style="color:{key.color}"></span>' if key.color else ""
    return f"<li>{swatch}{escape(key.label)}</li>"


def _table(table: Table) -> str:
    head = "".join(f"<th{_align(column)}>{escape(column.title)}</th>" for column in table.columns)
    rows = "\n".join(
        f"<tr>{''.join(_cell(cell, column) for cell, column in zip(row, table.columns, strict=True))}</tr>"
        for row in table.rows
    )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    whole = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"
    inside = f'<div class="scroll">{whole}</div>{note}'
    if table.folded:
        return f"<details><summary>{escape(table.caption)}</summary>{inside}</details>"
    return (f"<h3>{escape(table.caption)}</h3>" if table.caption else "") + inside


def _cell(cell: Cell, column: Column) -> str:
    text = escape(cell.text)
    return f"<td{_align(column)}>{f'<strong>{text}</strong>' if cell.best else text}</td>"


def _align(column: Column) -> str:
    return ' class="number"' if column.number else ""
