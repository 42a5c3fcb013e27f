"""Pre-trains a next-word model in a folder (central_run.py), and writes it with its card."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from homespun.core.settings import Settings
from homespun.data.federation import Federation
from homespun.data.source import DataSettings
from homespun.models.next_word_model import NextWordModel, save_next_word_model
from homespun.models.subwords import learn_subwords
from homespun.models.vocabulary import SPECIAL, most_frequent_words
from homespun.pretraining.central_run import CentralRun, changed_settings, duration, finish, open_central_run
from homespun.pretraining.word_texts import load_corpus, make_corpus, save_corpus
from homespun.pretraining.word_training import NextWordObjective, NextWordPretrainSettings
from homespun.system.json_files import versions

NextWordPretraining: TypeAlias = CentralRun[NextWordObjective]


class NextWordRequest(Settings):
    """The data and settings of a run."""

    data: DataSettings
    """The corpus to train on."""
    vocabulary: DataSettings | None = None
    """The corpus whose most frequent words are the vocabulary. Not set: the same."""
    licence: str = ""
    """Licence of the corpus, for the card."""
    settings: NextWordPretrainSettings = NextWordPretrainSettings()
    """How the model is trained."""

    def command(self) -> str:
        """The equivalent command line, without folders."""
        words = ["homespun", "pretrain", "nextword", "--data", Path(self.data.source).name]
        words += ["--vocabulary", Path(self.vocabulary.source).name] if self.vocabulary else []
        words += ["--licence", self.licence] if self.licence else []
        words += [word for name, value in self.data.columns.items() for word in (f"--{name}-column", value)]
        words += [word for name, value in self.data.settings.items() for word in ("--data-set", f"{name}={value}")]
        words += changed_settings(self.settings)
        return shlex.join(words)


def open_word_run(folder: Path, request: NextWordRequest, *, say: Callable[[str], None]) -> NextWordPretraining:
    """Start a run, or resume the one in the folder."""
    settings = request.settings

    def make(place: Path) -> str:
        say(f"reading {Path(request.data.source).name}")
        federation = request.data.load()
        counted = federation if request.vocabulary is None else request.vocabulary.load()
        corpus = make_corpus(
            federation,
            most_frequent_words(_texts(counted), size=settings.words + SPECIAL),
            length=settings.length,
            dev_share=settings.dev_share,
            seed=settings.seed,
            subwords=learn_subwords(_texts(counted), size=settings.words) if settings.subwords else None,
        )
        say(
            f"{len(corpus.train):,} pieces to train on, {len(corpus.dev):,} held out; "
            f"{len(corpus.vocabulary):,} words, {corpus.unknown:.1%} of all words unknown"
        )
        save_corpus(corpus, place)
        return federation.fingerprint

    def load(place: Path) -> NextWordObjective:
        return NextWordObjective(load_corpus(place), settings)

    return open_central_run(folder, request, make=make, load=load, say=say)


def _texts(federation: Federation) -> Iterator[str]:
    return (text for user in range(len(federation.users)) for text in federation.examples(user).texts)


def finish_word_run(run: NextWordPretraining, request: NextWordRequest) -> dict[str, Any]:
    """Write the model of the best epoch with its card, and return the results."""
    corpus, state, settings = run.objective.corpus, run.state, request.settings
    facts = {
        "command": request.command(),
        "data": Path(request.data.source).name,
        "data_fingerprint": run.fingerprint,
        "vocabulary": Path((request.vocabulary or request.data).source).name,
        "licence": request.licence,
        "pieces": len(corpus.train),
        "held_out_pieces": len(corpus.dev),
        "evaluated_pieces": len(run.objective.evaluated),
        "words": len(corpus.vocabulary) - SPECIAL,
        "unknown": corpus.unknown,
        "subwords": 0 if corpus.subwords is None else len(corpus.subwords.pieces) - SPECIAL,
        "unspelled": corpus.unspelled,
        "seconds": state.seconds,
        "best": run.objective.best(state.history),
        "epochs": state.history,
        "settings": settings.model_dump(mode="json"),
        "versions": versions(),
    }
    folder = run.folder / "model"
    # the fingerprint is computed when it is loaded
    model = NextWordModel(str(folder), corpus.vocabulary, settings.sizes, "", state.best, facts, corpus.subwords)
    save_next_word_model(folder, model, card=render_word_card(facts))
    return finish(run.folder, facts)


def render_word_card(facts: Mapping[str, Any]) -> str:
    """The model card."""
    settings, best, sizes = facts["settings"], facts["best"], facts["settings"]["sizes"]
    if facts["subwords"]:
        predicts = f"{facts['subwords']:,} byte-pair sub-words to predict, so that it can suggest other words too"
        unknown = f" Only {facts['unspelled']:.2%} of the sub-words stand for a word that none of them spell."
        scored = (
            f"Words are ranked among all that sub-words spell, on {facts['evaluated_pieces']:,} of the held-out pieces"
        )
    else:
        predicts, unknown = f"{facts['words']:,} words to suggest", ""
        scored = "A word outside the vocabulary counts as a miss"
    rows = "\n".join(
        f"| {one['epoch']} | {100 * one['emr3']:.1f} | {one['perplexity']:.1f} |" for one in facts["epochs"]
    )
    return f"""---
language: en
library_name: homespun
---

# Next-word model

A character-aware LSTM that suggests the next word: bytes of {sizes["byte_dim"]} numbers, a convolution of \
{sizes["cells"]} channels, {sizes["layers"]} LSTM layer{"s" * (sizes["layers"] > 1)} of {sizes["cells"]} cells, and \
{predicts}. It is the start of homespun's `oov_expansion`.

- Data: `{facts["data"]}`, {facts["pieces"]:,} pieces of at most {settings["length"]} words to train on, \
{facts["held_out_pieces"]:,} held out. Licence: {facts["licence"] or "not stated; ask the owner of the data"}.
- Words: the most frequent ones of `{facts["vocabulary"]}`. {facts["unknown"]:.2%} of the words in the training part \
are not among them.{unknown}
- Training: {duration(facts["seconds"])}, Adam with learning rate {settings["lr"]:g}, batches of {settings["batch"]}.
- Held-out EMR3 **{100 * best["emr3"]:.1f} %**: how often the next word is one of three suggestions. \
{scored}. Chosen: epoch {best["epoch"]}.

| epoch | EMR3, % | perplexity |
|---:|---:|---:|
{rows}

```sh
{facts["command"]}
```

homespun {facts["versions"]["homespun"]}, torch {facts["versions"]["torch"]}.
"""
