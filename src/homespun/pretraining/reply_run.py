"""Pre-trains a reply model in a folder (central_run.py), and writes it with its card."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from homespun.core.settings import Settings
from homespun.data.dialogue import replies
from homespun.data.source import DataSettings
from homespun.models.reply_model import Direction, ReplyModel, save_reply_model
from homespun.models.vocabulary import PADDING
from homespun.pretraining.central_run import CentralRun, changed_settings, duration, finish, open_central_run
from homespun.pretraining.reply_pairs import PairCorpus, load_corpus, make_corpus, save_corpus
from homespun.pretraining.reply_training import ReplyObjective, ReplyPretrainSettings
from homespun.system.json_files import versions

MOST_PAIRS = 2000  # held-out pairs that are stored with a model
ReplyPretraining: TypeAlias = CentralRun[ReplyObjective]


class ReplyRequest(Settings):
    """The data and settings of a run."""

    data: DataSettings
    """The corpus of dialogues."""
    direction: Direction = "replies"
    """What the model writes: replies to prompts, or prompts that fit a reply."""
    licence: str = ""
    """Licence of the corpus, for the card."""
    settings: ReplyPretrainSettings = ReplyPretrainSettings()
    """How the model is trained."""

    def command(self) -> str:
        """The equivalent command line, without folders."""
        words = ["homespun", "pretrain", "seq2seq", "--data", Path(self.data.source).name]
        words += ["--inverse"] if self.direction == "prompts" else []
        words += ["--licence", self.licence] if self.licence else []
        words += [word for name, value in self.data.columns.items() for word in (f"--{name}-column", value)]
        words += [word for name, value in self.data.settings.items() for word in ("--data-set", f"{name}={value}")]
        words += changed_settings(self.settings)
        return shlex.join(words)


def open_reply_run(folder: Path, request: ReplyRequest, *, say: Callable[[str], None]) -> ReplyPretraining:
    """Start a run, or resume the one in the folder."""

    def make(place: Path) -> str:
        corpus, fingerprint = _read(request, say=say)
        save_corpus(corpus, place)
        return fingerprint

    def load(place: Path) -> ReplyObjective:
        return ReplyObjective(load_corpus(place), request.settings)

    return open_central_run(folder, request, make=make, load=load, say=say)


def _read(request: ReplyRequest, *, say: Callable[[str], None]) -> tuple[PairCorpus, str]:
    say(f"reading {Path(request.data.source).name}")
    federation = replies(request.data.load())
    settings = request.settings
    corpus = make_corpus(
        federation,
        words=settings.words,
        sizes=settings.sizes,
        direction=request.direction,
        dev_share=settings.dev_share,
        seed=settings.seed,
    )
    say(
        f"{len(corpus.train):,} pairs to train on, {len(corpus.dev):,} held out, of {corpus.conversations:,} "
        f"conversations; {len(corpus.vocabulary):,} words, {corpus.unknown:.1%} of all words unknown"
    )
    return corpus, federation.fingerprint


def finish_reply_run(run: ReplyPretraining, request: ReplyRequest) -> dict[str, Any]:
    """Write the model of the best epoch with its card, and return the results."""
    corpus, state = run.objective.corpus, run.state
    facts = {
        "command": request.command(),
        "data": Path(request.data.source).name,
        "data_fingerprint": run.fingerprint,
        "licence": request.licence,
        "direction": request.direction,
        "pairs": len(corpus.train),
        "held_out_pairs": len(corpus.dev),
        "conversations": corpus.conversations,
        "words": len(corpus.vocabulary),
        "unknown": corpus.unknown,
        "seconds": state.seconds,
        "best": run.objective.best(state.history),
        "epochs": state.history,
        "settings": request.settings.model_dump(mode="json"),
        "versions": versions(),
    }
    model = ReplyModel(
        str(run.folder / "model"),
        corpus.vocabulary,
        request.settings.sizes,
        request.direction,
        fingerprint="",  # computed when it is loaded
        weights=state.best,
        facts=facts,
    )
    save_reply_model(run.folder / "model", model, card=render_reply_card(facts), pairs=_public_pairs(corpus))
    return finish(run.folder, facts)


def _public_pairs(corpus: PairCorpus) -> dict[str, torch.Tensor]:
    """Some held-out pairs whose replies are not cut, on which a reranker can be tuned."""
    whole = np.flatnonzero(corpus.dev.length > (corpus.dev.reply != PADDING).sum(axis=1))
    some = whole[np.unique(np.linspace(0, len(whole) - 1, min(MOST_PAIRS, len(whole))).round().astype(np.int64))]
    return {name: one.int() for name, one in corpus.dev.batch(some).items()}


def render_reply_card(facts: Mapping[str, Any]) -> str:
    """The model card."""
    settings, best = facts["settings"], facts["best"]
    sizes, metric = settings["sizes"], {"bleu": "BLEU", "perplexity": "perplexity"}[settings["choose_by"]]
    inverse, layers = facts["direction"] == "prompts", f"{sizes['layers']} LSTM layer{'s' * (sizes['layers'] > 1)}"
    writes = "the prompt that a reply answers" if inverse else "a reply to a prompt"
    rows = "\n".join(
        f"| {one['epoch']} | {one['perplexity']:.1f} | {100 * one['bleu']:.2f} |" for one in facts["epochs"]
    )
    return f"""---
language: en
library_name: homespun
---

# {"Inverse reply model" if inverse else "Reply model"}

A sequence-to-sequence model that writes {writes}: {layers} of {sizes["cells"]} cells each for
reading and for writing, {facts["words"]:,} words, texts cut at {sizes["length"]} words. It ignores who speaks. \
{"It scores replies of" if inverse else "It is the start of"} homespun's `fednlg`.

- Data: `{facts["data"]}`, {facts["pairs"]:,} pairs of {facts["conversations"]:,} conversations to train on, \
{facts["held_out_pairs"]:,} held out. Licence: {facts["licence"] or "not stated; ask the owner of the data"}.
- {facts["unknown"]:.2%} of the words in the training part are unknown.
- Training: {duration(facts["seconds"])}, Adam with learning rate {settings["lr"]:g}, batches of \
{settings["batch"]}, dropout {settings["dropout"]:g}.
- Held-out perplexity **{best["perplexity"]:.1f}**, BLEU **{100 * best["bleu"]:.2f}** (greedy replies, BLEU-4 with \
add-one smoothing, percent), after epoch {best["epoch"]}, chosen by {metric}.

| epoch | perplexity | BLEU |
|---:|---:|---:|
{rows}

```sh
{facts["command"]}
```

homespun {facts["versions"]["homespun"]}, torch {facts["versions"]["torch"]}.
"""
