"""The benchmark int8 predicts the same words as the run that it exports."""

import sys
from pathlib import Path

import pytest

import homespun
from homespun.methods.oov_expansion import SMALL

TEXTS = ("we need {own} now", "{own} is here and we need peace", "the {own} of the people")


@pytest.fixture
def int8(monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import int8

    yield int8
    sys.modules.pop("int8")


def trained(folder, **changed):
    rows = [
        {"user": user, "text": TEXTS[number % 3].format(own=own)}
        for user, own in {"ada": "zorblax", "bo": "quibnor"}.items()
        for number in range(30)
    ]
    settings = {
        **SMALL, "rounds": 1, "workers": 0, "personalize_lrs": (1.0,), "adapter_scales": (0.1,), "adapters": ((8,),),
        "final_personalization": True, **changed,
    }  # fmt: skip
    return homespun.train("oov_expansion", homespun.load(rows), folder=folder, **settings)


def test_float32_predicts_what_the_run_predicts(int8, tmp_path):
    with trained(tmp_path / "run") as run:
        expected = homespun.evaluate(run).to_dict()
        found = int8.measure_run(run, users=10)
        copy = sum(value.numel() for name, value in run.built.initial.items() if not name.startswith("own."))
    assert found["users"] == 2
    assert found["float32_emr3"] == pytest.approx(100 * expected["value"])
    assert found["lost_points"] == pytest.approx(found["float32_emr3"] - found["int8_emr3"])
    assert found["int8_kb"] < found["float32_kb"]
    assert found["copy_kb"] == pytest.approx(4 * copy / 1000)


def test_a_run_without_personalized_users_is_rejected(int8, tmp_path):
    with trained(tmp_path / "run", final_personalization=False) as run, pytest.raises(SystemExit, match="personalized"):
        int8.measure_run(run, users=10)
