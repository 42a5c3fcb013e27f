"""Comparisons of several configurations, seeds and folds."""

import json
import math
import shutil

import numpy as np
import pytest
from language_models import write_gpt2
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr

from homespun.analysis.projections import known_attributes, project_users, reduce_dimensions
from homespun.analysis.user_vectors import collect_user_vectors
from homespun.core.errors import RunError, SettingsError
from homespun.data.federation import Examples
from homespun.data.source import DataSettings
from homespun.evaluation.differences import differences, sample_gains
from homespun.evaluation.metrics import mean_and_deviation
from homespun.experiments.experiment import Draw, Experiment, collect, run_folder, similarities, train_all
from homespun.experiments.results import by_seed, only_run, read_results, single_results
from homespun.experiments.shared_training import adopt_training
from homespun.methods.furl import SMALL
from homespun.report.tables import markdown
from homespun.runs.training import prepare, reopen, train_and_evaluate


class Silent:
    def __init__(self):
        self.titles = []

    def __call__(self, run, title):
        self.titles.append(title)
        return self

    def __enter__(self):
        return lambda event: None

    def __exit__(self, *problem):
        return None


def experiment(**more):
    return Experiment(
        name="small",
        data=DataSettings(source="dialects", settings={"users": 5, "examples": 10}),
        settings={"rounds": 1, "workers": 0, "withheld": 2 / 5},
        configurations={"furl": {"method": "furl", "settings": {**SMALL, "personalize_epochs": 1}}},
        **more,
    )


def evaluation(losses):
    return {
        "metric": "perplexity", "value": float(np.exp(np.mean(losses) / 10)), "loss": float(np.mean(losses) / 10),
        "user_mean": 1.0, "user_worst_tenth": 1.0, "users": len(losses), "examples": len(losses),
        "user_loss": losses, "user_tokens": [10] * len(losses),
    }  # fmt: skip


def a_run(losses, *, seed=0, adapted=None, **more):
    own = evaluation(losses)
    return {
        "seed": seed, "method": "x", "eval": own, "test": own, "newcomers": {}, "newcomers_untouched": None,
        "adapted": {} if adapted is None else {"0": own, "all": evaluation(adapted)},
        "rounds": [{"seconds": 1.0}], **more,
    }  # fmt: skip


def test_run_folders_with_and_without_folds(tmp_path):
    assert experiment(seeds=(3, 4)).draws == [Draw(3), Draw(4)]
    assert run_folder(tmp_path, "furl", Draw(3)) == tmp_path / "runs" / "furl" / "seed-3"
    assert run_folder(tmp_path, "furl", Draw(3, 0)) == tmp_path / "runs" / "furl" / "seed-3-fold-0"
    assert by_seed([3, 3, 4], "abc") == [["a", "b"], ["c"]]


def test_a_finished_run_is_reused_only_if_it_is_the_requested_one(tmp_path):
    made = experiment()
    train_all(made, tmp_path, Silent())
    written = (run_folder(tmp_path, "furl", made.draws[0]) / "results.json").stat().st_mtime_ns
    train_all(made, tmp_path, Silent())
    results = run_folder(tmp_path, "furl", made.draws[0]) / "results.json"
    assert results.stat().st_mtime_ns == written

    fewer = made.model_copy(update={"settings": {**made.settings, "evaluate_users": 2}})
    train_all(fewer, tmp_path, Silent())
    (only,) = read_results(results.parent)["configurations"].values()
    assert only["runs"][0]["test"]["users"] == 2
    assert list(only["runs"][0]["newcomers"]) == ["0", "1", "5", "20", "all"]

    others = made.model_copy(update={"settings": {**made.settings, "evaluate_samples": [0, 2, "all"]}})
    train_all(others, tmp_path, Silent())
    run = only_run(results.parent)
    assert list(run["newcomers"]) == ["0", "2", "all"] and len(run["rounds"]) == 1

    longer = made.model_copy(update={"settings": {**made.settings, "rounds": 2}})
    train_all(longer, tmp_path, Silent())
    with pytest.raises(RunError, match="this run has 2 rounds, but 1 are requested"):
        train_all(made, tmp_path, Silent())


def test_a_run_from_another_machine_needs_only_its_results(tmp_path):
    made, shown = experiment(seeds=(0, 1)), Silent()
    train_all(made.model_copy(update={"seeds": (0,)}), tmp_path / "there", shown)
    place = run_folder(tmp_path / "here", "furl", Draw(0))
    place.mkdir(parents=True)
    shutil.copy(run_folder(tmp_path / "there", "furl", Draw(0)) / "results.json", place)
    train_all(made, tmp_path / "here", shown)
    assert shown.titles == ["furl, seed 0", "furl, seed 1"]
    assert [path.name for path in place.iterdir()] == ["results.json"]
    assert [run["seed"] for run in collect(made, tmp_path / "here")["configurations"]["furl"]["runs"]] == [0, 1]

    written = json.loads((place / "results.json").read_text())
    run = written["configurations"]["furl"]["runs"][0]
    for broken in ({"identity": None}, {"rounds": []}, {"run": {}}):
        kept = {**run, **broken}
        damaged = {**written, "configurations": {"furl": {**written["configurations"]["furl"], "runs": [kept]}}}
        (place / "results.json").write_text(json.dumps(damaged))
        with pytest.raises(RunError, match="not the results of one run"):
            train_all(made, tmp_path / "here", shown)
    del run["run"]["evaluate_samples"]  # as written before this setting
    (place / "results.json").write_text(json.dumps(written))
    train_all(made, tmp_path / "here", shown)
    assert len(shown.titles) == 2
    for changed in ({"rounds": 2}, {"evaluate_users": 2}, {"batch": 7}):
        other = made.model_copy(update={"settings": {**made.settings, **changed}})
        ((name, value),) = changed.items()
        with pytest.raises(RunError, match=rf"different run:\n  - \S*{name}: .* in the folder, {value} asked for"):
            train_all(other, tmp_path / "here", shown)


def test_similarity_is_spearmans_correlation_of_distances(tmp_path, monkeypatch):
    made = experiment()
    (furl,) = made.configurations.values()
    pair = {"one": furl, "other": furl.model_copy(update={"settings": {**furl.settings, "user_dim": 3}})}
    made = made.model_copy(update={"configurations": pair, "settings": {**made.settings, "withheld": 0.0}})
    train_all(made, tmp_path, Silent())
    distances = []
    for name in pair:
        with reopen(run_folder(tmp_path, name, Draw(0))) as run:
            distances.append(pdist(collect_user_vectors(run, range(len(run.federation.users)))))
    loads = []
    monkeypatch.setattr(DataSettings, "load", lambda own, load=DataSettings.load: loads.append(own) or load(own))
    (found,) = similarities(made, tmp_path)
    assert (found["left"], found["right"], found["seed"]) == ("one", "other", 0)
    assert found["correlation"] == pytest.approx(spearmanr(*distances).statistic, abs=1e-12)
    assert abs(found["correlation"]) < 1 and len(loads) == 1


def test_over_the_folds_each_user_is_withheld_once(tmp_path):
    chosen, shown = experiment(seeds=(0, 1), folds=3), Silent()
    train_all(chosen, tmp_path, shown)
    assert shown.titles[:2] == ["furl, seed 0, fold 0", "furl, seed 0, fold 1"]
    assert sorted(place.name for place in (tmp_path / "runs" / "furl").iterdir()) == [
        f"seed-{seed}-fold-{fold}" for seed in (0, 1) for fold in range(3)
    ]
    found = collect(chosen, tmp_path)
    assert (found["data"]["newcomers"], found["data"]["folds"]) == (5, 3)
    runs = found["configurations"]["furl"]["runs"]
    assert [(run["seed"], run["fold"]) for run in runs] == [(seed, fold) for seed in (0, 1) for fold in range(3)]

    def over_all_newcomers(seed):
        of_each = [run["newcomers"]["all"] for run in runs if run["seed"] == seed]
        assert sum(one["users"] for one in of_each) == 5
        return sum(one["value"] * one["examples"] for one in of_each) / sum(one["examples"] for one in of_each)

    made = found["configurations"]["furl"]["summary"]
    mean, deviation = mean_and_deviation([over_all_newcomers(0), over_all_newcomers(1)])
    assert made["newcomers"]["all"]["value"] == {"mean": pytest.approx(mean), "std": pytest.approx(deviation)}
    tested = [np.mean([run["test"]["value"] for run in runs if run["seed"] == seed]) for seed in (0, 1)]
    assert made["test"]["value"]["mean"] == pytest.approx(np.mean(tested))
    assert found["differences"] is None  # labels
    assert "5 newcomers · 3 folds · 2 seeds" in markdown(found)
    train_all(chosen, tmp_path, shown)
    assert len(shown.titles) == 6  # nothing is trained again


def test_too_many_folds_are_rejected_before_training(tmp_path):
    with pytest.raises(SettingsError, match="there is no fold 3"):
        train_all(experiment(folds=4), tmp_path, Silent())
    assert list(tmp_path.iterdir()) == []


def test_differences_are_over_users_of_all_seeds():
    positions = [{"participants": [0, 1, 2, 5]}, {"participants": [1, 2, 3, 5]}]
    losses = np.array([10.0, 20.0, 30.0, 40.0])
    ours = [a_run(losses, seed=seed, positions=positions[seed], adapted=losses - 2) for seed in (0, 1)]
    theirs = [a_run(losses + 1, seed=seed, positions=positions[seed]) for seed in (0, 1)]
    controls = [{"untouched": evaluation(losses)}] * 2
    found = differences({"ours": ours, "theirs": theirs}, controls)
    test = found["configurations"]["theirs"]["test"]
    # Every user has 0.1 less per token, so the interval has no width.
    assert test["users"] == 5
    assert [test[name] for name in ("percent", "low", "high")] == pytest.approx([100 * (math.exp(-0.1) - 1)] * 3)
    # Theirs does not adapt and is compared as trained: 0.3 less per token.
    assert found["configurations"]["theirs"]["adapted"]["percent"] == pytest.approx(100 * (math.exp(-0.3) - 1))
    assert found["controls"]["untouched"]["test"]["percent"] == 0.0
    assert found["controls"]["untouched"]["newcomers"] is None
    # Against theirs as trained, also 0.3 less; against theirs after adaptation, 0.3 more.
    adapting = [{**run, "adapted": {"0": run["test"], "all": evaluation(losses - 5)}} for run in theirs]
    found = differences({"ours": ours, "theirs": adapting}, controls)
    assert found["unadapted"]["theirs"]["adapted"]["percent"] == pytest.approx(100 * (math.exp(-0.3) - 1))
    assert found["configurations"]["theirs"]["adapted"]["percent"] == pytest.approx(100 * (math.exp(0.3) - 1))
    assert found["unadapted"]["theirs"]["newcomers"] is None


def test_the_effect_of_own_samples_is_within_a_configuration():
    losses = np.array([10.0, 20.0, 30.0, 40.0, 50.0])
    by_count = {"0": evaluation(losses), "1": evaluation(losses + 1), "15": evaluation(losses - 1)}
    runs = [{**a_run(losses), "newcomers": by_count}]
    found = sample_gains({"ours": runs})["ours"]
    # Ten tokens each: with 15 samples 0.1 less per token than with 0, and 0.2 less than with 1.
    for few, less in (("0", 0.1), ("1", 0.2)):
        percent = [found["newcomers"][few][name] for name in ("percent", "low", "high")]
        assert percent == pytest.approx([100 * (math.exp(-less) - 1)] * 3)
    assert found["adapted"] == {"0": None, "1": None}  # not evaluated


def test_scores_on_different_tokens_are_not_compared():
    other = a_run([1.0, 2.0])
    other["test"] = {**other["test"], "user_tokens": [10, 11]}
    controls = [{"untouched": evaluation([1.0, 2.0])}]
    found = differences({"ours": [a_run([1.0, 2.0])], "theirs": [other]}, controls)
    assert found["configurations"]["theirs"]["test"] is None
    alone = differences({"ours": [a_run([1.0])]}, [{"untouched": evaluation([2.0])}])
    assert (alone["controls"]["untouched"]["test"]["low"], alone["configurations"]) == (None, {})


class Unlabelled:
    """Two users and two contexts; no labels."""

    labels, contexts = (), ("spoken", "written")

    def examples(self, user):
        return Examples(["a", "b", "c"], contexts=np.array([1, 1, 0]) if user else np.empty(0, dtype=np.int64))

    def group(self, user):
        return None


def test_attributes_without_labels_have_the_context():
    assert known_attributes(Unlabelled(), [0, 1]) == {
        "group": [None, None], "label": None, "context": [None, "written"], "positive_rate": None,
    }  # fmt: skip


def utterances(path):
    """Three users with twenty utterances each, in the contexts home and work, without labels."""
    lines = [
        {"user": user, "text": f"{user} says what the people ask {place}", "context": ("home", "work")[place % 2]}
        for user in ("ann", "bob", "cem")
        for place in range(20)
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return DataSettings(source=str(path))


def test_a_language_model_from_training_to_report(tmp_path):
    data = utterances(tmp_path / "u.jsonl")
    settings = {
        "base_model": str(write_gpt2(tmp_path / "base")), "rounds": 1, "length": 8, "local_steps": 1,
        "personalize_steps": 1, "workers": 0, "withheld": 1 / 3,
    }  # fmt: skip
    with prepare("fedperc", data.load(), folder=tmp_path / "run", settings=settings) as run:
        for _ in train_and_evaluate(run):
            pass
        assert project_users(run) is None  # two participants
        found = single_results(run, data, title="fedperc")
    only = found["configurations"]["fedperc"]
    known, new = (only["runs"][0]["positions"][who] for who in ("participants", "newcomers"))
    assert (len(known), len(new), sorted(known + new)) == (2, 1, [0, 1, 2])
    assert set(only["summary"]["adapted"]) == {"0", "1", "5", "15", "all"}
    assert only["summary"]["newcomers_untouched"]["metric"] == "perplexity"
    base = found["differences"]["controls"]["untouched"]
    assert [base[who]["users"] for who in ("test", "adapted", "newcomers")] == [2, 2, 1]
    assert "### Withheld users" in markdown(found)
    assert found["data"]["check"]["users_with_several_contexts"] == 2


def test_reducing_dimensions_preserves_distances():
    points = np.random.default_rng(0).normal(size=(4, 50)).astype(np.float32)
    turned = reduce_dimensions(points)
    assert turned.shape == (4, 4)
    apart = [np.linalg.norm(some[:, None] - some[None], axis=-1) for some in (points, turned)]
    np.testing.assert_allclose(*apart, atol=1e-5)
    few = points[:, :3]
    assert reduce_dimensions(few) is few


NEXT_WORDS = {
    "base_model": "untrained-small", "length": 12, "lr": 0.5, "batch": 4, "personalize_lrs": [0.3],
    "adapters": [[4]], "adapter_scales": [0.1], "personalize_epochs": 2, "validation_share": 0.3,
}  # fmt: skip


def next_word_experiment(file):
    rows = [
        {"user": f"u{user}", "text": f"we need word{user} and now we should do more"}
        for user in range(5)
        for _ in range(12)
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Experiment(
        name="words",
        data=DataSettings(source=str(file)),
        settings={**NEXT_WORDS, "rounds": 2, "cohort": 2, "workers": 0, "withheld": 0.4},
        configurations={
            "unknown": {"method": "oov_expansion", "settings": {"own_words": "none"}},
            "own": {"method": "oov_expansion", "settings": {}},
            "other-lr": {"method": "oov_expansion", "settings": {"lr": 0.25}},
        },
    )


def test_runs_that_differ_in_personalization_train_once(tmp_path):
    """The second run takes the rounds of the first; its results are those of a run that trains for itself."""
    made, observed = next_word_experiment(tmp_path / "chat.jsonl"), []

    class Rounds(Silent):
        def __enter__(self):
            return lambda event: observed.append((self.titles[-1], event.round)) if hasattr(event, "clients") else None

    train_all(made, tmp_path / "both", Rounds())
    assert [title for title, _ in observed] == ["unknown, seed 0"] * 2 + ["other-lr, seed 0"] * 2
    alone = made.model_copy(update={"configurations": {"own": made.configurations["own"]}})
    train_all(alone, tmp_path / "alone", Silent())
    one, other = (only_run(run_folder(tmp_path / name, "own", Draw(0))) for name in ("both", "alone"))
    for part in ("test", "newcomers"):
        assert one[part] == other[part]
    known, new = (one["positions"][who] for who in ("participants", "newcomers"))
    assert (len(known), len(new), sorted(known + new)) == (3, 2, [0, 1, 2, 3, 4])
    assert one["adapted"] == {} and one["personal"] is None  # a search at home for each participant and number
    assert not any("user_counts" in point or "user_values" in point for point in one["curve"])
    assert one["newcomers"]["all"]["oov_rate_left"] == 0 and [entry["round"] for entry in one["rounds"]] == [1, 2]


def test_a_private_run_is_not_copied(tmp_path):
    made = next_word_experiment(tmp_path / "chat.jsonl")
    private = {"privacy": {"epsilon": 8, "clip": 1.0, "delta": 0.1, "amplification": False}}
    made = made.model_copy(update={"settings": {**made.settings, **private}})
    with (
        prepare("oov_expansion", made.data.load(), folder=tmp_path / "one", settings=made.settings) as one,
        prepare("oov_expansion", made.data.load(), folder=tmp_path / "two", settings=made.settings) as two,
    ):
        list(one.rounds())
        assert not adopt_training(two, [tmp_path / "one"]) and two.state.round == 0
