"""Records of finished runs: moved to another machine, and back into a comparison."""

import importlib.util
import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from language_models import write_gpt2
from spoken_corpus import SMALL, write_corpus

from homespun.core.errors import RunError
from homespun.experiments.experiment import collect, read_experiment, train_all
from homespun.experiments.results import write_results

FILE = Path(__file__).parents[2] / "docs" / "records.py"


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
    """An experiment, written to the file that records read."""
    values = {"rounds": 1, "workers": 0, "withheld": 0.5, "base_model": base(), **SMALL, **settings}
    lines = [
        "folds = 2",
        f"data.source = {json.dumps(str(write_corpus(Path('people.csv')).resolve()))}",
        *(f"settings.{name} = {json.dumps(value)}" for name, value in values.items()),
        'configurations.ours-too.method = "fedperc"',
        'configurations.context = { method = "fedperc", title = "Context", settings = { prefix = "context" } }',
    ]
    Path("experiments").mkdir(exist_ok=True)
    Path("experiments/some.toml").write_text("\n".join(lines), encoding="utf-8")
    return read_experiment(Path("experiments/some.toml"))


def test_runs_restored_from_a_record_are_not_trained_again(records):
    made, folder = experiment(), Path("runs/some")
    trained = []

    def following(run, title):
        trained.append(title)
        return nullcontext(lambda event: None)

    train_all(made, folder, following)
    before = collect(made, folder)
    assert records.keep("some") == 4
    text = Path("docs/results/some.json").read_text(encoding="utf-8")
    assert str(Path.cwd()) not in text and '"pca"' not in text
    assert records.lay("some") == 0  # existing folders are kept

    shutil.rmtree(folder)
    assert records.lay("some") == 4
    train_all(made, folder, following)
    assert len(trained) == 4
    after = collect(made, folder)
    assert records.comparison("some") == after  # straight from the record
    one, other = (
        found["configurations"]["ours-too"]["summary"]["newcomers"]["all"]["value"]["mean"] for found in (before, after)
    )
    assert other == pytest.approx(one, rel=1e-6)
    assert after["differences"]["controls"]["untouched"]["newcomers"]["users"] == 4
    assert after["data"]["folds"] == 2 and after["data"]["newcomers"] == 4
    assert records.keep("some") == 4
    assert Path("docs/results/some.json").read_text(encoding="utf-8") == text  # the same runs, the same bytes
    assert records.controls("some") == 4
    assert Path("docs/results/some.json").read_text(encoding="utf-8") == text  # recomputed without a change
    copied = experiment(base_model=shutil.copytree(base(), "other-place"))
    train_all(copied, folder, following)  # the same base model under another name
    with pytest.raises(RunError, match=r"method_settings\.lr: 0\.05 in the folder, 0\.5 asked for"):
        train_all(experiment(lr=0.5), folder, following)


def run_of(value, seed=0, **more):
    """A run with the minimum that a record keeps, and values that it omits."""
    evaluation = {"metric": "accuracy", "value": value, "auc": 0.5, "user_values": [1 / 3]}
    entry = {
        "clients": 2,
        "seconds": 1.23456,
        "down_bytes": {"federated": 8},
        "up_bytes": {"federated": 8},
        "loss": 1.0,
    }
    return {
        "method": "furl", "seed": seed, "fold": None, "identity": {"rate": 1 / 3}, "run": {"epochs": 1 / 3},
        "rounds": [entry, {**entry, "clients": 3}], "curve": [{"round": 0, "epoch": 0.0, "value": value, "loss": 1.0}],
        "eval": evaluation, "test": {**evaluation, "group_f1": {"0": value}}, "adapted": {},
        "newcomers": {"0": evaluation}, "maps": {"tsne": [[0.0, 1.0]], "pca": [[0.0, 1.0]], "label": ["a"]}, **more,
    }  # fmt: skip


def write_run(key, run):
    """Write a run to the folder that `homespun compare` uses."""
    place = Path(f"runs/some/runs/{key}/seed-{run['seed']}")
    place.mkdir(parents=True, exist_ok=True)
    single = {
        "schema": 1, "name": key, "versions": {"python": "3.11"},
        "data": {"source": "/somewhere/corpus.csv", "settings": {"groups": 12345678}},
        "configurations": {"furl": {"runs": [run]}},
        "controls": {"runs": [{"majority": {"metric": "accuracy", "value": None, "user_values": [0.5]}}]},
    }  # fmt: skip
    write_results(place, single)


def write_experiment(*keys, seeds=(0, 1)):
    Path("experiments").mkdir(exist_ok=True)
    lines = [
        f"seeds = {list(seeds)}",
        'data.source = "dialects"',
        *(f'configurations.{key}.method = "furl"' for key in keys),
    ]
    Path("experiments/some.toml").write_text("\n".join(lines), encoding="utf-8")


def test_values_that_no_page_needs_are_omitted(records):
    write_experiment("one", seeds=[0])
    write_run("one", run_of(0.12345678))
    assert records.keep("some") == 1
    found = records.read_record(Path("docs/results/some.json"))
    assert found.data["seed-0"] == {"source": "corpus.csv", "settings": {"groups": 12345678}}
    assert found.controls["seed-0"] == {"majority": {"metric": "accuracy", "value": None}}
    short, entry = {"metric": "accuracy", "value": 0.1234568}, {"clients": 2, "seconds": 1.235}
    entry |= {"down_bytes": {"federated": 8}, "up_bytes": {"federated": 8}}
    assert found.runs["one", "seed-0"] == {
        "method": "furl", "seed": 0, "fold": None, "identity": {"rate": 1 / 3}, "run": {"epochs": 1 / 3},
        "rounds": [entry, {**entry, "clients": 3}], "curve": [{"round": 0, "epoch": 0.0, "value": 0.1234568}],
        "eval": short, "test": {**short, "group_f1": {"0": 0.1234568}}, "adapted": {},
        "newcomers": {"0": {**short, "user_values": [0.3333333]}},
    }  # fmt: skip
    assert found.maps == {}


def test_results_of_replies_are_kept_with_five_digits(records):
    losses = {"conversation": [3, 12345678], "words": [10, 200], "own": [36.889412, 1234.5678], "another": None}
    replies = {"losses": losses, "scores": {"own": {"bleu_1": [0.12345678, None, 0.2], "right": [1, 0]}}}
    write_experiment("one", seeds=[0])
    write_run("one", run_of(0.5, replies=replies))
    records.keep("some")
    kept = records.read_record(Path("docs/results/some.json")).runs["one", "seed-0"]["replies"]
    assert kept["losses"] == {**losses, "own": [36.889, 1234.6]}
    assert kept["scores"] == {"own": {"bleu_1": [0.12346, None, 0.2], "right": [1, 0]}}


def test_a_projection_is_kept_for_the_page_that_shows_it(records):
    write_experiment("one")
    for seed in (0, 1):
        write_run("one", run_of(0.5, seed))
    page = Path("docs/methods/page.md")
    page.parent.mkdir(parents=True)
    page.write_text("<!-- maps: some -->\n<!-- end -->\n")
    alike = [{"left": "one", "right": "two", "seed": 0, "correlation": 0.25}]
    everything = {"schema": 1, "name": "some", "data": {}, "configurations": {}, "controls": {}, "similarity": alike}
    write_results(Path("runs/some"), everything)
    records.keep("some")
    found = records.read_record(Path("docs/results/some.json"))
    drawn = {"tsne": [[0.0, 1.0]], "group": None, "label": ["a"], "positive_rate": None}
    assert found.maps == {"one": drawn} and found.similarity == alike
    shutil.rmtree("runs")
    write_run("one", run_of(0.75, 1))  # another machine has the vectors
    assert records.keep("some") == 1
    found = records.read_record(Path("docs/results/some.json"))
    assert found.maps == {"one": drawn} and found.similarity == alike
    assert [run["eval"]["value"] for run in found.runs.values()] == [0.5, 0.75]


def test_runs_are_added_and_obsolete_ones_removed(records):
    write_experiment("one", "two")
    write_run("one", run_of(0.5))
    assert records.keep("some") == 1
    with pytest.raises(RunError, match=r"no runs of one, seed-1; two, seed-0; two, seed-1\. Finish `homespun compare"):
        records.comparison("some")
    write_run("two", run_of(0.25, 1))
    assert records.keep("some") == 2
    found = records.read_record(Path("docs/results/some.json"))
    assert {key: run["test"]["value"] for key, run in found.runs.items()} == {
        ("one", "seed-0"): 0.5, ("two", "seed-1"): 0.25,
    }  # fmt: skip
    write_experiment("two")
    records.keep("some")
    found = records.read_record(Path("docs/results/some.json"))
    assert list(found.runs) == [("two", "seed-1")] and found.titles == {"two": "two"}


def test_a_started_run_is_kept_and_a_missing_name_is_reported(records, monkeypatch):
    write_experiment("no-seed-decay", seeds=[0])
    write_run("no-seed-decay", run_of(0.5))
    records.keep("some")
    begun = Path("runs/some/runs/no-seed-decay/seed-0")
    (begun / "results.json").unlink()
    assert records.lay("some") == 0
    begun.rmdir()
    monkeypatch.setattr(records, "assemble", lambda title, data, **more: {"schema": 1})
    assert records.lay("some") == 1 and (begun / "results.json").exists()
    monkeypatch.setattr("sys.argv", ["records.py", "keep", "sum"])
    with pytest.raises(SystemExit, match="sum: nothing with this name to keep"):
        records.main()


def test_a_value_is_written_once_for_the_runs_that_share_it(records):
    import record_file  # docs/records.py has put its folder on the path

    tables = {
        "5": [[5, 5], [5, 5]],
        '{"by draw": [0, 1]}': [[0, 1], [0, 1]],
        '{"by configuration": [1, true]}': [[1, 1], [True, True]],
        '{"by run": [[1, 2], [3, 3]]}': [[1, 2], [3, 3]],
        '{"a": 1, "b": {"by draw": [[], {}]}}': [[{"a": 1, "b": []}, {"a": 1, "b": {}}]] * 2,
        '{"by configuration": [null, {"a": {"by draw": [1, 2]}}]}': [[None, None], [{"a": 1}, {"a": 2}]],
        '{"by configuration": [{"by draw": [null, {"a": 1}]}, {"b": 1}]}': [[None, {"a": 1}], [{"b": 1}, {"b": 1}]],
    }
    for text, table in tables.items():
        folded = record_file.deduplicated(table)
        assert json.dumps(folded) == text
        found = [[record_file.value_at(folded, place, draw) for draw in (0, 1)] for place in (0, 1)]
        assert json.dumps(found) == json.dumps(table)
    with pytest.raises(RunError, match="cannot hold the key by draw"):
        record_file.deduplicated([[{"by draw": 1}]])
    for entries in (
        [],
        [{"a": 1}],
        [{"a": 1}, {"a": 1}],
        [{"a": {"b": 1}, "c": 1}, {"a": {"b": 2}, "c": 1}],
        [{}, {"a": 1}],
    ):
        assert record_file.as_entries(json.loads(json.dumps(record_file.as_columns(entries)))) == entries
    with pytest.raises(RunError, match="not a record"):
        Path("bad.json").write_text('{"schema": 1}')
        record_file.read_record(Path("bad.json"))
