"""A pre-training run in a folder: starts or resumes it, and writes the model with its card at the end.

RUN/settings.json            the settings it was started with, and the number of steps
RUN/corpus/                  vocabulary and token ids; see `corpus`
RUN/checkpoint.safetensors   the state to resume from
RUN/results.json             the results, once the run is finished
RUN/model/                   the model in Hugging Face format, with its card
"""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from homespun.core.errors import RunError
from homespun.core.settings import Settings
from homespun.pretraining import training
from homespun.pretraining.card import render_card, write_model
from homespun.pretraining.corpus import Corpus, build_corpus, load_corpus, save_corpus
from homespun.pretraining.sources import SOURCES, evaluated_sentences, read_source, read_user_file, select_sources
from homespun.pretraining.training import LossTotal, PretrainSettings, Progress
from homespun.system.json_files import SCHEMA, read_json, versions, write_json

CACHE = Path.home() / ".cache" / "homespun" / "packages"


class PretrainRequest(Settings):
    """The settings and texts of a run."""

    settings: PretrainSettings = PretrainSettings()
    """How the model is trained."""
    without: tuple[str, ...] = ()
    """Sources of the table that are left out."""
    texts: tuple[str, ...] = ()
    """The user's own text files."""

    def command(self) -> str:
        """The equivalent command line."""
        words = ["homespun", "pretrain", "tiny"]
        if len(self.without) == len(SOURCES):
            words.append("--only-text")
        else:
            words += [word for name in self.without for word in ("--without", name)]
        words += [word for name in self.texts for word in ("--text", Path(name).name)]
        given = self.settings.model_dump(exclude_defaults=True)
        for section in ("corpus", "network"):
            given |= {f"{section}.{name}": value for name, value in given.pop(section, {}).items()}
        for name in ("minutes", "steps", "seed"):
            if given.get(name) is not None:
                words += [f"--{name}", f"{given.pop(name):g}"]
        words += [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
        return shlex.join(words)


@dataclass(frozen=True)
class Pretraining:
    """An open run, ready to train."""

    folder: Path
    request: PretrainRequest
    corpus: Corpus
    state: training.State

    def train(self) -> Iterator[Progress]:
        return training.train(self.state, self.corpus, self.request.settings, folder=self.folder)


def open_run(folder: Path, request: PretrainRequest, *, cache: Path, say: Callable[[str], None]) -> Pretraining:
    """Start a run, or resume the one in the folder."""
    torch.set_num_threads(1)  # for reproducible bits
    if (folder / "results.json").exists():
        raise RunError(
            f"{folder}: this run is finished; its model is in {folder / 'model'}. Name another --folder for a new one."
        )
    given = {
        name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in request.texts if Path(name).is_file()
    }
    asked = {"schema": SCHEMA, "request": request.model_dump(mode="json"), "texts": given}
    place = folder / "settings.json"
    recorded = read_json(place, missing="") if place.exists() else None
    if recorded is not None and {name: recorded.get(name) for name in asked} != asked:
        raise RunError(f"{folder}: holds a run with other settings or texts. Name another --folder.")
    if recorded is None:  # a corpus without recorded settings may be incomplete or have other settings
        corpus = _make_corpus(request, cache=cache, say=say)
        save_corpus(corpus, folder / "corpus")
    else:
        corpus = load_corpus(folder / "corpus")
    steps = recorded.get("steps") if recorded else None
    if steps is None:
        # written before the steps are known too, so that a run stopped now need not read the texts again
        write_json(place, {**asked, "steps": None})
        steps = training.count_steps(corpus, request.settings)
        write_json(place, {**asked, "steps": steps, "fingerprint": corpus.fingerprint, "versions": versions()})
    checkpoint = folder / training.CHECKPOINT
    if checkpoint.exists():
        state = training.load_checkpoint(checkpoint, corpus, request.settings)
        say(f"{folder}: resuming after step {state.step}")
    else:
        state = training.initial_state(corpus, request.settings, steps=steps)
    return Pretraining(folder, request, corpus, state)


def _make_corpus(request: PretrainRequest, *, cache: Path, say: Callable[[str], None]) -> Corpus:
    texts = [read_user_file(Path(name)) for name in request.texts]  # first, so that their faults are reported at once
    for source in select_sources(request.without):
        say(f"reading {source.name}: {source.package}")
        texts.append(read_source(source, cache))
    say("measuring overlap with evaluated text, tokenizing")
    corpus = build_corpus(texts, evaluated_sentences(), settings=request.settings.corpus, seed=request.settings.seed)
    tokens = sum(one.tokens for one in corpus.facts)
    say(f"{tokens:,} tokens; overlap with evaluated sentences {corpus.overlap.share:.3%}")
    return corpus


def finish(run: Pretraining, *, say: Callable[[str], None]) -> dict[str, Any]:
    """Evaluate the model as it will be stored (float16), write it with its card, and return the results."""
    say("evaluating")
    state, corpus = run.state, run.corpus
    network = state.network.to(torch.float16).to(torch.float32).eval()
    by_source = {name: training.measure_documents(network, rows) for name, rows in corpus.held_out.items()}
    by_source["all"] = _pooled(list(by_source.values()))
    evaluated = training.measure_documents(network, corpus.evaluated)
    results = {
        "schema": SCHEMA,
        "command": run.request.command(),
        "settings": run.request.settings.model_dump(mode="json"),
        "steps": state.steps,
        "tokens": state.tokens,
        "seconds": state.seconds,
        "network": {
            **run.request.settings.network.model_dump(),
            "positions": network.config.n_positions,
            "vocabulary": network.config.vocab_size,
            "parameters": sum(one.numel() for one in network.parameters()),
        },
        "sources": [asdict(one) for one in corpus.facts],
        "overlap": asdict(corpus.overlap),
        "overlap_before": asdict(corpus.overlap_before),
        "held_out": {name: _figures(one) for name, one in by_source.items()},
        "evaluated": {
            **_figures(evaluated),
            "sentences": len(corpus.evaluated),
            "bits_per_byte": evaluated.loss / math.log(2) / max(1, corpus.evaluated_bytes),
        },
        "versions": versions(),
    }
    write_model(run.folder / "model", network=network, corpus=corpus, card=render_card(results))
    write_json(run.folder / "results.json", results)  # last: it marks the run as finished
    return results


def _pooled(measured: Sequence[LossTotal]) -> LossTotal:
    return LossTotal(sum(one.loss for one in measured), sum(one.tokens for one in measured))


def _figures(measured: LossTotal) -> dict[str, float]:
    return {"tokens": measured.tokens, "perplexity": measured.perplexity}
