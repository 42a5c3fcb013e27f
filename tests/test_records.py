"""Records of finished runs: from one machine to another, and back into a comparison."""

import importlib.util
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from language_models import write_gpt2
from spoken_corpus import SMALL, write_corpus

from homespun.core.errors import RunError
from homespun.experiment import Experiment, collect, train_all
from homespun.files import DataSettings

FILE = Path(__file__).parents[1] / "docs" / "records.py"


@pytest.fixture
def records(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("docs_records", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def base():
    return str(write_gpt2(Path("base").resolve()))


def experiment(**settings):
    return Experiment(
        name="some",
        data=DataSettings(source=str(write_corpus(Path("people.csv")).resolve())),
        folds=2,
        settings={"rounds": 1, "workers": 0, "withheld": 0.5, "base": base(), **SMALL, **settings},
        configurations={"ours-too": {"method": "fedperc"}},
    )


def test_kept_and_laid_again_nothing_is_trained_twice(records):
    made, folder = experiment(), Path("runs/some")
    trained = []

    def following(run, title):
        trained.append(title)
        return nullcontext(lambda event: None)

    train_all(made, folder, following)
    before = collect(made, folder)
    kept = records.keep("some")
    assert [path.as_posix() for path in kept] == [
        f"docs/results/some/ours-too-seed-0-fold-{fold}.json" for fold in (0, 1)
    ]
    text = kept[0].read_text(encoding="utf-8")
    assert str(Path.cwd()) not in text and "maps" not in text
    assert records.lay("some") == []  # what is there stays

    shutil.rmtree(folder)
    assert len(records.lay("some")) == 2
    train_all(made, folder, following)
    assert len(trained) == 2
    after = collect(made, folder)
    one, other = (
        found["configurations"]["ours-too"]["summary"]["newcomers"]["all"]["value"]["mean"] for found in (before, after)
    )
    assert other == pytest.approx(one, rel=1e-6)
    assert after["differences"]["controls"]["untouched"]["newcomers"]["users"] == 4
    copied = experiment(base=shutil.copytree(base(), "other-place"))
    train_all(copied, folder, following)  # the same base model under another name
    with pytest.raises(RunError, match=r"method_settings\.rate: 0\.05 in the folder, 0\.5 asked for"):
        train_all(experiment(rate=0.5), folder, following)


def test_what_no_page_needs_is_left_out(records):
    many, few = {"user_values": [0.5] * 1001}, {"user_values": [1 / 3]}
    run = {"test": many, "eval": few, "maps": {}, "run": {"epochs": 1 / 3}, "identity": {"rate": 1 / 3}}
    results = {
        "data": {"source": "/somewhere/corpus.csv", "settings": {"groups": 12345678}},
        "configurations": {"ours": {"runs": [run]}},
        "controls": {"runs": [{"majority": {"value": None}}]},
    }
    found = records.shortened(results)
    assert found["data"] == {"source": "corpus.csv", "settings": {"groups": 12345678}}
    assert found["configurations"]["ours"]["runs"] == [
        {"test": {}, "eval": {"user_values": [0.3333333]}, "run": {"epochs": 1 / 3}, "identity": {"rate": 1 / 3}}
    ]


def test_what_was_begun_here_goes_on_and_what_is_not_there_is_said(records, monkeypatch):
    begun = Path("runs/some/runs/no-seed-decay/seed-0")
    begun.mkdir(parents=True)
    record = Path("docs/results/some/no-seed-decay-seed-0.json")
    record.parent.mkdir(parents=True)
    record.write_text('{"schema": 1}')
    assert records.lay("some") == []
    begun.rmdir()
    assert records.lay("some") == [begun / "results.json"]
    monkeypatch.setattr("sys.argv", ["records.py", "keep", "sum"])
    with pytest.raises(SystemExit, match="sum: nothing of that name to keep"):
        records.main()
