"""Long tasks report their progress to a callback; without one they print nothing."""

from contextlib import nullcontext

import pytest
from language_models import write_gpt2
from spoken_corpus import SMALL, write_corpus

from homespun import evaluate, load, reopen, train
from homespun.core.progress import Progress, start_count
from homespun.data.source import DataSettings
from homespun.experiments.experiment import Experiment, collect, train_all
from homespun.experiments.results import single_results
from homespun.methods import furl
from homespun.report.html import write_report
from homespun.report.prompt_continuations import showcase
from homespun.runs.evaluate import sample_count_text

SIZES = {**furl.SMALL, "personalize_epochs": 1, "cohort": 3, "withheld": 0.4, "workers": 0}


def ends(seen):
    """The tasks in the order in which they started, with the last progress of each."""
    last = {}
    for progress in seen:
        before = last.get(progress.task)
        assert before is None or progress.total == before.total
        assert 0 <= progress.done <= progress.total
        last[progress.task] = progress
    return {task: (one.done, one.total) for task, one in last.items()}


def test_counted_progress():
    seen = []
    done = start_count(seen.append, "new users", total=3)
    done(2)
    done(1)
    assert seen == [Progress("new users", 0, 3), Progress("new users", 2, 3), Progress("new users", 3, 3)]
    assert [str(one) for one in seen] == ["new users: 0 %", "new users: 66 %", "new users: 100 %"]


def test_training_and_evaluating_from_python(tmp_path, capsys):
    seen = []
    federation = load("dialects", users=10, examples=10)
    run = train("furl", federation, folder=tmp_path / "run", rounds=2, progress=seen.append, **SIZES)
    assert ends(seen) == {"eval part": (6, 6), "round 1": (3, 3), "round 2": (3, 3), "training": (2, 2)}
    seen.clear()
    evaluate(run)
    assert ends(seen) == {"test part": (6, 6)} and len(seen) > 1
    run.close()
    with reopen(tmp_path / "run", progress=seen.append) as again:
        seen.clear()
        single_results(again, again.data, title="furl")
    assert ends(seen) == {
        "test part": (6, 6),
        "eval part": (6, 6),
        **{f"new users with {sample_count_text(count)}": (8, 8) for count in (0, 1, 5, 20, "all")},
        "map of users": (1, 1),
    }
    assert capsys.readouterr() == ("", "")


def test_a_language_run_reports_the_progress_of_its_final_evaluation(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("homespun.runs.controls._cached_controls", {})  # filled by another test on the same corpus
    seen = []
    corpus = load(write_corpus(tmp_path / "people.csv"))
    settings = {**SMALL, "base_model": str(write_gpt2(tmp_path / "base")), "withheld": 0.5, "workers": 0}
    capsys.readouterr()  # drop the output of writing the base model
    with train("fedperc", corpus, rounds=1, progress=seen.append, **settings) as run:
        seen.clear()
        single_results(run, run.data, title="fedperc")
        assert ends(seen) == {
            **{f"participants: base model{more}": (2, 2) for more in ("", *contexts())},
            **{f"new users: base model{more}": (2, 2) for more in ("", *contexts())},
            "test part": (2, 2),
            **{f"participants with {sample_count_text(count)}": (4, 4) for count in (1, 5, 15, "all")},
            **{f"private parameters: {whose}": (2, 2) for whose in ("own", "prior", "another")},
            "eval part": (2, 2),
            **{f"new users with {sample_count_text(count)}": (4, 4) for count in (0, 1, 5, 15, "all")},
        }
        seen.clear()
        showcase(run, ["We must", "I"], person="kennedy", people=[], max_tokens=2)
        assert ends(seen) == {"continuations": (4, 4)}
    assert capsys.readouterr() == ("", "")


def contexts():
    return [f" with {sample_count_text(count)}" for count in (1, 5, 15)]


def test_a_comparison_reports_the_progress_of_collecting_results(tmp_path):
    made = Experiment(
        name="small",
        data=DataSettings(source="dialects", settings={"users": 5, "examples": 10}),
        seeds=(0, 1),
        settings={"rounds": 1, **SIZES},
        configurations={"furl": {"method": "furl"}, "again": {"method": "furl", "settings": {"lr": 0.1}}},
    )
    seen = []
    train_all(made, tmp_path, lambda run, title: nullcontext(lambda event: None), progress=seen.append)
    assert "new users with 5 own samples" in ends(seen)
    seen.clear()
    found = collect(made, tmp_path, progress=seen.append)
    assert ends(seen) == {"reading results": (4, 4), "comparing users' vectors": (4, 4), "differences": (1, 1)}
    seen.clear()
    write_report(found, tmp_path, progress=seen.append)
    assert ends(seen) == {"report": (2, 2)}


def test_the_search_for_the_noise_reports_progress(tmp_path):
    pytest.importorskip("dp_accounting")
    seen = []
    federation = load("dialects", users=10, examples=10)
    privacy = {"epsilon": 8.0, "delta": 0.01, "ledger": str(tmp_path / "ledger")}
    settings = {**SIZES, "sampler": "poisson", "privacy": privacy}
    with train("furl", federation, rounds=1, progress=seen.append, **settings) as run:
        found = ends(seen)
        done, total = found["noise for epsilon 8"]
        assert done == total > 5
        assert "round 1" not in found  # the size of the cohort is secret
        seen.clear()
        single_results(run, run.data, title="furl")
        assert ends(seen)["privacy accounting"] == (1, 1)
