"""`homespun bench step-times`: all methods do the same work, and memory is the size of the parameters."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from language_models import make_tokenizer, write_gpt2

from homespun.cli.workloads import load_workload, run_workload, tables_of, workloads
from homespun.core.errors import SettingsError
from homespun.models.heads import FeatureReader

WIDTH = 16
VECTOR = 4 * WIDTH  # bytes


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    base = write_gpt2(tmp_path_factory.mktemp("base"), width=WIDTH)
    return run_workload("step-times", rounds=3, settings={"base_model": str(base), "length": 8})


def test_every_step_of_every_method_is_timed(found):
    assert "step-times" in workloads()
    rows = [(one["title"], one["features"], tuple(one["step_times"])) for one in found["methods"]]
    whole = ("update", "round", "adapt", "test")
    assert rows == [
        ("FedPerC", "", whole),
        ("FedPerC (Frozen)", "", ("update", "round", "test")),
        ("FedPerC (Generated)", "", whole),
        ("Split-Learning", "computed", whole),
        ("Split-Learning", "kept", whole),
        ("Meta-Learning", "computed", whole),
        ("Meta-Learning", "kept", whole),
    ]
    for one in found["methods"]:
        assert all(0 < time["low_s"] <= time["median_s"] <= time["high_s"] for time in one["step_times"].values())
        assert one["step_times"]["round"]["median_s"] > one["step_times"]["update"]["median_s"]
    assert found["wall_ratio"] > 0 and json.dumps(found)


def test_memory_is_the_size_of_the_parameters(found):
    held = {one["title"]: one["memory"] for one in found["methods"]}
    head = len(make_tokenizer()) * VECTOR
    contexts = 2  # Coolidge, the third to have a turn, wrote and spoke
    prefix = {"private_bytes": VECTOR, "context_bytes": VECTOR, "person_bytes": (1 + contexts) * VECTOR}
    assert held["FedPerC"] == held["FedPerC (Frozen)"] == {**prefix, "shared_bytes": VECTOR}  # the prior
    # of a generator: nothing, attention, four norms and the feed-forward layers
    numbers = WIDTH + 4 * WIDTH**2 + 4 * 2 * WIDTH + 8 * WIDTH**2 + 5 * WIDTH
    assert held["FedPerC (Generated)"] == {**prefix, "shared_bytes": VECTOR + 2 * 4 * numbers}
    assert held["Split-Learning"] == {
        "private_bytes": head, "context_bytes": head, "person_bytes": (1 + contexts) * head, "shared_bytes": 0,
    }  # fmt: skip
    # Adapting makes a copy of the shared head.
    assert held["Meta-Learning"] == {
        "private_bytes": 0, "context_bytes": 0, "person_bytes": head, "shared_bytes": head,
    }  # fmt: skip


def test_the_tables(found):
    found = {**found, "methods": found["methods"][:4]}
    times, memory = tables_of("step-times", found)
    assert [column.title for column in times.columns] == [
        "Time, ms", "features", "1 update", "10 updates", "adapt", "test",
    ]  # fmt: skip
    assert [row[1].text for row in times.rows] == ["–", "–", "–", "computed"]
    assert times.rows[1][4].text == "–"  # frozen
    assert [cell.text for cell in memory.rows[0]] == [
        "FedPerC", "64 B", "64 B", f"{found['methods'][0]['memory']['person_bytes']} B", "64 B",
    ]  # fmt: skip
    module = load_workload("step-times")
    assert module.milliseconds({"median_s": 0.0412, "low_s": 0.040, "high_s": 0.044}) == "41.2 ± 2.0"
    assert module.milliseconds({"median_s": 1.25, "low_s": 1.2, "high_s": 1.4}) == "1250 ± 100"
    assert module.milliseconds({"median_s": 0.02, "low_s": 0.02, "high_s": 0.02}) == "20.0"  # of one round


def test_features_are_dropped_only_where_computing_them_is_timed():
    module = load_workload("step-times")
    reader = FeatureReader(start=0, positions=8, kept={b"text": torch.zeros(2, 4)}, kept_bytes=36)
    built = SimpleNamespace(model=SimpleNamespace(reader=reader))
    module.timed(module.Side("Split-Learning", "split_learning", features="kept"), built, lambda: None)
    assert (len(reader.kept), reader.kept_bytes) == (1, 36)
    module.timed(module.Side("Split-Learning", "split_learning", features="computed"), built, lambda: None)
    assert (len(reader.kept), reader.kept_bytes) == (0, 0)


def test_the_spread_is_the_interquartile_range():
    module = load_workload("step-times")
    assert module.spread([3.0]) == {"median_s": 3.0, "low_s": 3.0, "high_s": 3.0}
    assert module.spread([1.0, 2.0, 3.0, 4.0, 5.0]) == {"median_s": 3.0, "low_s": 2.0, "high_s": 4.0}


def test_an_unknown_setting_is_rejected():
    with pytest.raises(SettingsError, match=r"unknown setting 'base_modl'\. Did you mean 'base_model'"):
        run_workload("step-times", rounds=1, settings={"base_modl": "tiny"})


@pytest.mark.system
@pytest.mark.parametrize("workload", ["w3", "w3-clipped"])
def test_the_two_sides_of_w3_take_the_same_steps(workload, monkeypatch):
    """On a small cohort; `measure` raises if the shared parameters differ."""
    module = load_workload(workload)
    monkeypatch.setattr(sys.modules["reference_w3"], "COHORT", 12)
    found = module.measure(rounds=1)
    assert found["max_abs_difference"] < 1e-5 and found["clients"] == 12
