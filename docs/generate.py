"""Write results into a documentation page, between `<!-- results: NAME -->` and `<!-- end -->`.

    python docs/generate.py docs/methods/furl.md

Each NAME is the folder `runs/NAME` of a finished `homespun compare experiments/NAME.toml`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from homespun.experiment import read_results
from homespun.report.outcomes import folds_of, seeds_of
from homespun.report.tables import central_tables, markdown_table

MARKED = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)


def section(name: str) -> str:
    results = read_results(Path("runs") / name)
    parts = [f"**{title}**\n\n{markdown_table(table)}" for title, table in central_tables(results)]
    if results["similarity"]:
        values = [one["correlation"] for one in results["similarity"]]
        pair = f"{results['similarity'][0]['left']} and {results['similarity'][0]['right']}"
        shown = ", ".join(f"{value:.3f}" for value in values)
        parts.append(f"Rank correlation of the distances between users, {pair}, by seed: {shown}.")
    folds = folds_of(results)
    runs = f"{len(seeds_of(results))} seeds" + (f" of {folds} folds" if folds else "")
    facts = results["data"]["check"]
    parts.append(
        f"{facts['users']} participants, {facts['examples']} examples, {runs}; "
        + ", ".join(f"{key} {value}" for key, value in results["versions"].items())
        + "."
    )
    return "\n\n".join(parts)


def main() -> None:
    for page in map(Path, sys.argv[1:]):
        text = page.read_text(encoding="utf-8")
        made = MARKED.sub(lambda match: f"{match[1]}{section(match[2])}\n{match[3]}", text)
        page.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
