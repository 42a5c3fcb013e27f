"""Exports a user's next-word model as a folder that works without the run.

FOLDER/next_word_step.onnx   reads a word and scores the next one, with onnxruntime alone
FOLDER/words.txt             the words that can be suggested, one per line; the first has number 4
FOLDER/config.json           sizes, special words, user, method and base model
FOLDER/README.md             the card: how to use it, and whether it is private

A user's own words follow the vocabulary in words.txt; `own_words` in config.json counts them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from homespun.core.errors import InputError
from homespun.models.next_word import read_spelling
from homespun.models.next_word_model import NextWordModel
from homespun.models.next_word_onnx import STEP, write_next_word_onnx
from homespun.models.onnx_graph import require_onnx
from homespun.models.vocabulary import BEGIN, END, PADDING, SPECIAL, UNKNOWN
from homespun.personalization.adapter import plain_name
from homespun.personalization.generation import match_user
from homespun.personalization.suggestions import next_word_model, private_of, require_no_memory
from homespun.runs.run import Run
from homespun.system.disk import draft_folder

PRIVATE_NOTE = (
    "**Keep it private.** It contains the user's own words and a copy of the model that learned from their texts."
)
GENERIC_NOTE = "It contains no private parameters of any user: it is the shared model."
STEPS = 200  # words that are read to measure the latency

CARD = """\
# The next word, for {who}

A model that suggests the next word, trained with homespun's `{method}`. {whose}

It reads lower-case words, with punctuation marks as words. The word in line n of `words.txt` has number n + {before};
the last {own_words:,} of its {words:,} lines are own words. Read a word outside the vocabulary, and an own word, as
{unknown}; start a text with {begin}. Do not suggest the numbers below {first}.

```python
import numpy as np
import onnxruntime

words = [""] * {first} + open("words.txt", encoding="utf-8").read().splitlines()
vocabulary = {{word: number for number, word in enumerate(words[:{vocabulary}])}}
session = onnxruntime.InferenceSession("{step}")

state = np.zeros((1, {states}, {cells}), np.float32)
for number in [{begin}] + [vocabulary.get(word, {unknown}) for word in "we should meet at the".split()]:
    log_probs, state = session.run(None, {{"words": np.array([number]), "state": state}})
best = {first} + np.argsort(-log_probs[0, {first}:], kind="stable")[:3]
print([words[number] for number in best])
```

While a word is being typed, choose among the words that begin with its letters: `log_probs` does not change.
{weights}
The base model has the SHA-256 `{fingerprint}`.
"""
ROUNDED = "\nMatrices are 8-bit integers: scores differ a little from those of the run.\n"


@dataclass(frozen=True)
class ExportedNextWordModel:
    """An exported folder."""

    folder: Path
    user: str | None  # None: a new user
    personalized: bool  # False: the run has no parameters of this user, so that it is a new user's model
    private: bool  # whether it contains private parameters of the user
    own_words: int
    file_bytes: Mapping[str, int]  # the size of each file
    step_ms: tuple[float, float]  # to read a word and score the next, on one core: median and 95th percentile


def export_next_word_model(
    run: Run, output: Path | str, *, user: str | None = None, int8: bool = False
) -> ExportedNextWordModel:
    """Write the next-word model of a user to a new folder; all of its files or none. Needs the extra `onnx`.

    Args:
        run: A run of a next-word method, for instance `oov_expansion`.
        output: The new folder. Only its owner can read it.
        user: A name or an unambiguous part of it. Without one, the shared model, without own words.
        int8: Store the matrices as 8-bit integers: about a third of the size, less exact.
    """
    output = Path(output)
    if os.path.lexists(output):
        raise InputError(f"{output}: already exists. Choose another path.")
    require_onnx()
    base = next_word_model(run)
    require_no_memory(run)
    name = None if user is None else match_user(run, user)
    stored = {} if name is None else run.clients.stored_private([name]).get(name) or {}
    private = private_of(run, name)
    own = [read_spelling(row).decode() for row in private.get("own.lexicon", ())]
    config = next_word_config(run, base, user=name, private=bool(stored), own_words=len(own), int8=int8)
    with draft_folder(output) as draft:
        write_next_word_onnx(draft, base.vocabulary, run.built.parameters(run.state.broadcast(), private), int8=int8)
        (draft / "words.txt").write_text(
            base.vocabulary.to_lines() + "".join(f"{word}\n" for word in own), encoding="utf-8"
        )
        (draft / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (draft / "README.md").write_text(_card(config), encoding="utf-8")
        file_bytes = {path.name: path.stat().st_size for path in sorted(draft.iterdir())}
        step_ms = measure_steps(draft / STEP, config)
    return ExportedNextWordModel(output, name, bool(stored), bool(stored), len(own), file_bytes, step_ms)


def next_word_config(
    run: Run, base: NextWordModel, *, user: str | None, private: bool, own_words: int, int8: bool
) -> dict[str, Any]:
    """The `config.json` of an exported next-word model."""
    return {
        "kind": "homespun next-word model of a user",
        "user": user,
        "private": private,
        "method": run.method.name,
        "rounds": run.state.round,
        "sizes": base.sizes.model_dump(),
        "vocabulary": len(base.vocabulary),
        "own_words": own_words,
        "special": {"padding": PADDING, "begin": BEGIN, "end": END, "unknown": UNKNOWN},
        "base_model_sha256": base.fingerprint,
        "onnx": "int8" if int8 else "float32",
    }


def measure_steps(path: Path, config: Mapping[str, Any]) -> tuple[float, float]:
    """Milliseconds of a step on one core: median and 95th percentile."""
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = runtime.InferenceSession(path, options)
    state = np.zeros((1, 2 * config["sizes"]["layers"], config["sizes"]["cells"]), np.float32)
    took = []
    for step in range(STEPS):
        word = np.array([SPECIAL + step % (config["vocabulary"] - SPECIAL)])
        start = time.perf_counter()
        _, state = session.run(None, {"words": word, "state": state})
        took.append(1000 * (time.perf_counter() - start))
    median, high = np.percentile(took, [50, 95])
    return float(median), float(high)


def _card(config: Mapping[str, Any]) -> str:
    sizes = config["sizes"]
    return CARD.format(
        **config["special"],
        who=plain_name(config["user"] or "a new user"),
        method=config["method"],
        whose=PRIVATE_NOTE if config["private"] else GENERIC_NOTE,
        first=SPECIAL,
        before=SPECIAL - 1,
        words=config["vocabulary"] - SPECIAL + config["own_words"],
        own_words=config["own_words"],
        vocabulary=config["vocabulary"],
        step=STEP,
        states=2 * sizes["layers"],
        cells=sizes["cells"],
        weights=ROUNDED if config["onnx"] == "int8" else "",
        fingerprint=config["base_model_sha256"],
    )
