"""Imports point one way, so that a reader can start anywhere and read downwards."""

import ast
from pathlib import Path

import homespun

ROOT = Path(homespun.__file__).parent

# A package imports packages of earlier lines only; those of one line do not import each other.
LAYERS = (
    {"core"},
    {"system"},
    {"data", "decoding", "models", "privacy"},
    {"evaluation"},
    {"pretraining"},
    {"methods", "engines"},
    {"runs"},
    {"analysis", "personalization", "testing"},
    {"experiments"},
    {"report"},
    {"cli", "api"},
    {"__init__", "__main__"},
)
LAYER = {package: number for number, packages in enumerate(LAYERS) for package in packages}
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
        assert part in LAYER, f"{part} is new: give it a layer"
        for name in imports(path):
            target = name.split(".")[1] if name.startswith("homespun.") else part
            if target != part and LAYER.get(target, 0) >= LAYER[part]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_every_imported_module_exists():
    """Imports inside functions too: nothing else finds a wrong one before the function is called."""
    root = ROOT.parents[1]
    folders = (ROOT, root / "tests", root / "benchmarks", root / "docs", root / "experiments")
    missing = [
        f"{path.relative_to(root)} imports {name}"
        for folder in folders
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (name := node.module or "").startswith("homespun.")
        if not (module := ROOT.parent / name.replace(".", "/")).with_suffix(".py").exists() and not module.is_dir()
    ]
    assert missing == []


def test_core_does_no_io():
    forbidden = {"homespun.system", "homespun.methods", "os", "pathlib", "subprocess", "socket", "sqlite3", "tempfile"}
    wrong = [
        f"{path.name} imports {name}"
        for path in (ROOT / "core").glob("*.py")
        for name in imports(path)
        if any(name == one or name.startswith(f"{one}.") for one in forbidden)
    ]
    assert wrong == []


def test_no_module_lies_loose_in_the_root():
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py", "api.py"}


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
