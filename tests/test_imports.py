"""Imports point one way, so that a reader can start anywhere and read downwards."""

import ast
from pathlib import Path

import homespun

ROOT = Path(homespun.__file__).parent

# What each part of the package may import of the others, beside itself.
ALLOWED = {
    "core": set(),
    "disk": {"core"},
    "data": {"core", "disk"},
    "models": {"core"},
    "privacy": {"core", "disk"},
    "vault_file": {"core", "disk"},
    "vault_db": {"core", "vault_file"},
    "vault_entries": {"core"},
    "vault": {"core", "disk", "vault_db", "vault_entries", "vault_file"},
    "machine": {"core", "terminal"},
    "terminal": {"core"},
    "evaluation": {"core", "data", "models"},
    "methods": {"core", "data", "evaluation", "models", "privacy"},
    "engines": {"terminal", "core", "data", "models", "privacy"},
    "cohorts": {"core", "privacy"},
    "runs": {"cohorts", "core", "data", "engines", "evaluation", "machine", "privacy", "vault"},
    "judging": {"core", "data", "engines", "evaluation", "runs"},
    "controls": {"core", "data", "engines", "evaluation", "judging", "models", "runs"},
    "files": {"core", "data", "disk", "machine"},
    "opening": {"core", "data", "files", "privacy", "runs", "vault"},
    "training": {"controls", "core", "data", "evaluation", "files", "judging", "opening", "privacy", "runs"},
    "notices": {"core", "data", "privacy", "runs"},
    "assignments": {"core", "data", "runs", "training"},
    "maps": {"core", "data", "evaluation", "runs", "training"},
    "generation": {"core", "data", "models", "runs"},
    "samples": {"core", "data", "experiment", "generation", "report", "runs", "terminal", "training"},
    "adapter": {"core", "disk", "generation", "models", "runs"},
    "person": {"core", "data", "engines", "generation", "runs"},
    "newcomer": {
        "core",
        "data",
        "engines",
        "evaluation",
        "files",
        "generation",
        "models",
        "person",
        "runs",
        "training",
    },
    "spending": {"core", "privacy"},
    "results": {
        "assignments",
        "controls",
        "core",
        "data",
        "evaluation",
        "files",
        "judging",
        "maps",
        "runs",
        "spending",
        "training",
    },
    "experiment": {"core", "data", "files", "maps", "opening", "results", "runs", "training", "vault"},
    "catalogue": {"core", "data", "runs", "training"},
    "testing": {"core", "data", "engines", "evaluation", "opening", "privacy", "runs"},
    "bench": {"core"},
    "pretraining": {"core", "data", "disk", "files"},
    "report": {"core", "disk", "evaluation", "experiment", "results"},
    "console": {"core", "notices", "report", "runs", "terminal", "training"},
}
ANYTHING = {"cli", "__init__", "__main__"}  # at the top
OUTSIDE = {"flwr": {"engines/flower.py"}}  # who alone may import a heavy library


def imports(path):
    """Every module a file imports, absolute names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (
                [f"homespun.{alias.name}" for alias in node.names] if node.module == "homespun" else [node.module]
            )


def part_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_imports_point_one_way():
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        part = part_of(path)
        if part in ANYTHING:
            continue
        assert part in ALLOWED, f"{part} is new: say here what it may import"
        for name in imports(path):
            target = name.split(".")[1] if name.startswith("homespun.") else part
            if target != part and target not in ALLOWED[part]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_heavy_libraries_stay_where_they_belong():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in ROOT.rglob("*.py")
        for name in imports(path)
        if name.split(".")[0] in OUTSIDE and str(path.relative_to(ROOT)) not in OUTSIDE[name.split(".")[0]]
    ]
    assert wrong == []


def test_nothing_is_unpickled():
    forbidden = ("pickle.load", "torch.load", "allow_pickle", "import pickle", "marshal.load", "yaml.load")
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in ROOT.rglob("*.py")
        for word in forbidden
        if word in path.read_text(encoding="utf-8")
    ]
    assert found == []


def test_a_method_file_stays_readable():
    too_long = {
        path.name: lines
        for path in (ROOT / "methods").glob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 300
    }
    assert too_long == {}
