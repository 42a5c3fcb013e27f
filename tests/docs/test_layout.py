"""docs/layout.md has a line for every file of the package, and none for a file that does not exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "homespun"


def listed_files():
    """Paths of the fenced trees below `## src/homespun`, with the folder of their heading."""
    tree = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8").split("## `src/homespun`")[1]
    folder = ""
    for line in tree.splitlines():
        if heading := re.match(r"### `(\w+)`", line):
            folder = f"{heading[1]}/"
        elif entry := re.match(r"(\w+(?:\.py|\.toml|/)) +\S", line):
            yield folder + entry[1]


def test_layout_lists_every_file_once():
    listed = sorted(listed_files())
    assert listed == sorted(set(listed))
    files = {path.relative_to(PACKAGE).as_posix() for end in ("py", "toml") for path in PACKAGE.rglob(f"*.{end}")}
    named = {name for name in files if not name.endswith("/__init__.py")}
    assert named - set(listed) == set(), "files without a line"
    assert {name for name in listed if not (PACKAGE / name).exists()} == set(), "lines without a file"
