"""Workload keystroke: suggestions while a text is typed, with a user's 1,000 own words, on one core.

    homespun bench keystroke --set data=gitter.jsonl.gz

Texts are typed letter by letter, and after each key the best three words are asked for, as `homespun type` does. A key
that ends a word makes the model read it; one within a word only chooses among the words that begin with its letters.
The exported model is timed in onnxruntime, a word at a time, in float32 and in 8-bit integers, with the sizes of its
files. Weights are random: they change neither time nor size.
"""

from __future__ import annotations

import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

import reference_w5 as reference
import w5

from homespun.core.tree import Tree
from homespun.models.next_word import FROM_UNKNOWN, spell_words
from homespun.models.next_word_model import NextWordSizes, untrained
from homespun.models.next_word_onnx import STEP, write_next_word_onnx
from homespun.models.suggester import Suggester
from homespun.models.vocabulary import Vocabulary
from homespun.models.word_adapter import new_adapter
from homespun.personalization.live_text import LiveText
from homespun.personalization.next_word_export import measure_steps

OWN_WORDS, HIDDEN, TEXTS = 1000, (256, 512, 256), 40


def measure(rounds: int = 3, data: str = "") -> dict[str, float | int]:
    texts = [text for some in w5.texts_of_users(data) for text in some]
    vocabulary = w5.make_vocabulary(texts)
    parameters = user_parameters(vocabulary)
    torch.set_num_threads(1)
    suggester = Suggester(vocabulary, parameters)
    keys = [one for _ in range(rounds) for text in islice(texts, TEXTS) for one in time_keys(suggester, text)]
    found: dict[str, float | int] = {"keys": len(keys), "own_words": OWN_WORDS, **percentiles("key", keys)}
    for name, int8 in (("float32", False), ("int8", True)):
        with tempfile.TemporaryDirectory() as folder:
            write_next_word_onnx(Path(folder), vocabulary, parameters, int8=int8)
            sizes = {"vocabulary": len(vocabulary), "sizes": {"layers": reference.LAYERS, "cells": reference.CELLS}}
            median, high = measure_steps(Path(folder) / STEP, sizes)
            files = sum(path.stat().st_size for path in Path(folder).iterdir())
            found |= {f"onnx_{name}_ms": median, f"onnx_{name}_p95_ms": high, f"{name}_mb": files / 1e6}
    return found


def user_parameters(vocabulary: Vocabulary) -> Tree:
    """A model with random weights, own words and an adapter."""
    network = untrained(vocabulary, NextWordSizes()).build()
    cells = reference.CELLS
    own = spell_words([f"word{number}".encode() for number in range(OWN_WORDS)])
    adapter = new_adapter(HIDDEN, cells=cells, scale=0.1, generator=torch.Generator().manual_seed(0))
    lexicon = {"own.lexicon": own, "own.hidden": torch.tensor(HIDDEN), "own.adapter": adapter}
    lexicon |= {"own.counts": torch.ones(len(own), dtype=torch.int64), "own.start": torch.tensor([FROM_UNKNOWN])}
    lexicon["own.unknowns"] = torch.tensor([len(own)])
    return {**{name: value.detach() for name, value in network.named_parameters()}, **lexicon}


def time_keys(suggester: Suggester, text: str) -> list[float]:
    """Milliseconds for the suggestions after each key of a text."""
    live, took = LiveText(suggester), []
    for end in range(1, len(text) + 1):
        start = time.perf_counter()
        live.suggestions(text[:end])
        took.append(1000 * (time.perf_counter() - start))
    return took


def percentiles(name: str, took: list[float]) -> dict[str, float]:
    median, high = np.percentile(took, [50, 95])
    return {f"{name}_ms": float(median), f"{name}_p95_ms": float(high), f"{name}_max_ms": max(took)}
