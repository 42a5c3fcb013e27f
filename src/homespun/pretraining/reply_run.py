"""A pre-training run of a reply model in a folder: starts or resumes it, and writes the model with its card.

RUN/settings.json            the settings it was started with, and the fingerprint of the data
RUN/corpus/                  vocabulary and word numbers; see `reply_pairs`
RUN/checkpoint.safetensors   the state to resume from
RUN/results.json             the results, once the run is finished
RUN/model/                   the reply model; see models/reply_model.py
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from homespun.core.errors import RunError
from homespun.core.settings import Settings
from homespun.data.dialogue import replies
from homespun.data.source import DataSettings
from homespun.models.reply_model import Direction, ReplyModel, save_reply_model
from homespun.models.vocabulary import PADDING
from homespun.pretraining import central
from homespun.pretraining.central import StepProgress, TrainingState
from homespun.pretraining.reply_pairs import PairCorpus, load_corpus, make_corpus, save_corpus
from homespun.pretraining.reply_training import ReplyObjective, ReplyPretrainSettings
from homespun.system.json_files import SCHEMA, read_json, versions, write_json
from homespun.system.machine import cpu_cores

MOST_PAIRS = 2000  # held-out pairs that are stored with a model


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
        given = self.settings.model_dump(exclude_defaults=True)
        given |= {f"sizes.{name}": value for name, value in given.pop("sizes", {}).items()}
        words += [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
        return shlex.join(words)


@dataclass(frozen=True)
class ReplyPretraining:
    """An open run, ready to train."""

    folder: Path
    request: ReplyRequest
    objective: ReplyObjective
    fingerprint: str  # of the data
    state: TrainingState = field(repr=False)

    @property
    def steps(self) -> int:
        return central.total_steps(self.objective)

    def train(self) -> Iterator[StepProgress]:
        return central.train(self.state, self.objective, folder=self.folder)


def open_reply_run(folder: Path, request: ReplyRequest, *, say: Callable[[str], None]) -> ReplyPretraining:
    """Start a run, or resume the one in the folder."""
    if (folder / "results.json").exists():
        raise RunError(
            f"{folder}: this run is finished; its model is in {folder / 'model'}. Name another --folder for a new one."
        )
    torch.set_num_threads(request.settings.threads or cpu_cores())
    place = folder / "settings.json"
    asked = {"schema": SCHEMA, "request": request.model_dump(mode="json")}
    recorded = read_json(place, missing="") if place.exists() else None
    if recorded is not None and {name: recorded.get(name) for name in asked} != asked:
        raise RunError(f"{folder}: holds a run with other settings or data. Name another --folder.")
    if recorded is None:
        corpus, fingerprint = _read(request, say=say)
        save_corpus(corpus, folder / "corpus")
        # last: settings mark a complete corpus
        write_json(place, {**asked, "fingerprint": fingerprint, "versions": versions()})
    else:
        corpus, fingerprint = load_corpus(folder / "corpus"), str(recorded.get("fingerprint"))
    objective, checkpoint = ReplyObjective(corpus, request.settings), folder / central.CHECKPOINT
    if checkpoint.exists():
        state = central.load_checkpoint(checkpoint, objective)
        say(f"{folder}: resuming after step {state.step}")
    else:
        state = central.initial_state(objective)
    return ReplyPretraining(folder, request, objective, fingerprint, state)


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


def finish_reply_run(run: ReplyPretraining) -> dict[str, Any]:
    """Write the model of the best epoch with its card, and return the results."""
    request, corpus, state = run.request, run.objective.corpus, run.state
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
    results = {"schema": SCHEMA, **facts}
    write_json(run.folder / "results.json", results)  # last: it marks the run as finished
    return results


def _public_pairs(corpus: PairCorpus) -> dict[str, torch.Tensor]:
    """Some held-out pairs whose replies are not cut, on which a reranker can be tuned."""
    whole = np.flatnonzero(corpus.dev.length > (corpus.dev.reply != PADDING).sum(axis=1))
    some = whole[np.unique(np.linspace(0, len(whole) - 1, min(MOST_PAIRS, len(whole))).round().astype(np.int64))]
    return {name: one.int() for name, one in corpus.dev.batch(some).items()}


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return "less than a minute" if seconds < 60 else f"{minutes:,} {'minute' if minutes == 1 else 'minutes'}"


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
- Training: {_duration(facts["seconds"])}, Adam with learning rate {settings["lr"]:g}, batches of \
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
