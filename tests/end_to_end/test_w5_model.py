"""The benchmarks w5 and w5-search train the model of their reference, and find the same."""

import sys
from pathlib import Path

import pytest
import torch

from homespun.models.next_word_model import NextWordSizes

WORKLOADS = {"w5", "w5_search", "reference_w5", "alternating", "rounds", "gemm", "memory"}


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    before = set(sys.modules)
    import reference_w5
    import w5
    import w5_search

    for name, value in {"VOCABULARY": 300, "BYTE_DIM": 6, "CELLS": 8, "USERS": 3, "TEXTS": 16}.items():
        monkeypatch.setattr(reference_w5, name, value)
    yield w5, w5_search
    for name in WORKLOADS - before:
        sys.modules.pop(name, None)


def test_a_round_gives_the_weights_of_the_reference(benchmarks, monkeypatch):
    w5, _ = benchmarks
    monkeypatch.setattr(w5.Alternating, "figures", lambda self, **found: found)
    found = w5.measure(rounds=1)
    assert found["max_abs_difference"] < 1e-5
    # 2 layers of 8 cells read 8 numbers and 8 states; 8 cells score 304 words; backward is twice forward
    data, _ = w5.make_data("")
    assert found["flop"] == data.flop() == 6 * int(data.length.sum()) * (2 * 32 * 16 + 8 * 304)


def test_the_search_finds_what_the_reference_finds(benchmarks, monkeypatch):
    _, w5_search = benchmarks
    grid = {
        "personalize_lrs": (0.1, 3.0),
        "adapter_scales": (0.0, 0.1),
        "adapters": ((4,), (6, 3)),
        "personalize_epochs": 3,
        "own_start": "spelling",
    }
    monkeypatch.setattr(w5_search, "GRID", grid)
    found = w5_search.measure(texts=24)
    assert found["settings"] == 8 and found["own_words"] > 10 and found["epochs"] > 8
    assert found["winner"] == found["loop_winner"] and found["emr3"] == found["loop_emr3"]
    assert found["loss_difference"] < 1e-4 and torch.get_num_threads() == 1


def test_a_keystroke_is_timed(benchmarks, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import keystroke

    monkeypatch.setattr(keystroke, "NextWordSizes", lambda: NextWordSizes(byte_dim=6, cells=8))
    monkeypatch.setattr(keystroke, "OWN_WORDS", 20)
    monkeypatch.setattr(keystroke, "TEXTS", 2)
    found = keystroke.measure(rounds=1)
    sys.modules.pop("keystroke")
    assert found["keys"] > 20 and 0 < found["key_ms"] <= found["key_p95_ms"] <= found["key_max_ms"]
    assert 0 < found["int8_mb"] < found["float32_mb"] and found["onnx_int8_p95_ms"] > 0
