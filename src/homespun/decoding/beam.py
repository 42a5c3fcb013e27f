"""Beam search, exact and batched (Li et al. 2016, "A Diversity-Promoting Objective Function for Neural Conversation
Models").

    for hypotheses in beam_search(decoder, decoder.start(questions), beam=200, max_length=20):
        best = hypotheses[0].tokens

At each step, every unfinished hypothesis of a question is extended by every word. An extension by `end` is finished;
its log probability includes that of `end`. The `beam` best other extensions stay unfinished. After `max_length` words,
only `end` follows. The result is the `n_best` best finished hypotheses of each question.

A hypothesis that scores no better than the `n_best`-th finished one is dropped, since it can only lose by growing. This
changes no result: what takes its place in the beam scores no better.

Ties: extensions of one step are ordered by score, then by the rank of the hypothesis that they extend, then by word.
Finished hypotheses are ordered by score, then by number of words, then by rank. Scores are float64 sums of float32 log
probabilities, hardly ever rounded, so that the same log probabilities in another order tie.

The rows of a step are divided into blocks of bounded size. The division does not depend on the number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from homespun.decoding.division import Blocks, search_in_batches, without_grad
from homespun.decoding.hypotheses import NONE_FINISHED, Hypothesis, Live, read_hypotheses
from homespun.decoding.protocol import (
    Decoder,
    State,
    check_lengths,
    check_words,
    count_questions,
    join_rows,
    require,
    select_rows,
    word_log_probs,
)
from homespun.decoding.selection import Extensions, best_of_each, find_extensions, join_extensions


@dataclass(frozen=True)
class Limits:
    """The settings of a search."""

    beam: int
    n_best: int
    min_length: int
    max_length: int


def beam_search(
    decoder: Decoder,
    state: State,
    *,
    beam: int,
    max_length: int,
    n_best: int | None = None,
    min_length: int = 1,
    threads: int = 1,
) -> list[list[Hypothesis]]:
    """The best finished hypotheses of each question, best first.

    Args:
        state: `decoder.start(questions)`, one row per question.
        beam: Number of unfinished hypotheses of a question.
        max_length: Maximum number of words of a hypothesis.
        n_best: Number of hypotheses that are returned for each question, fewer if the search finds fewer. Default:
            `beam`.
        min_length: Minimum number of words; 0 allows empty sequences.
        threads: Number of threads that share the questions, or the rows of a single question. The result does not
            depend on it.
    """
    limits = Limits(beam, max(beam, 1) if n_best is None else n_best, min_length, max_length)
    require("beam search", check_limits(decoder, limits, threads=threads))
    search = partial(_search, decoder, limits=limits)
    return search_in_batches(search, state, per_question=beam, threads=threads)


def check_limits(decoder: Decoder, limits: Limits, *, threads: int) -> list[str]:
    """The faults of a search's settings."""
    faults = check_words(decoder) + check_lengths(min_length=limits.min_length, max_length=limits.max_length)
    if limits.beam > decoder.vocabulary:
        faults.append(
            f"beam is {limits.beam}, larger than the vocabulary of {decoder.vocabulary}. "
            f"Set beam to {decoder.vocabulary} or less."
        )
    return faults + [
        f"{name} is {value}, expected at least 1."
        for name, value in (("beam", limits.beam), ("n_best", limits.n_best), ("threads", threads))
        if value < 1
    ]


def _search(decoder: Decoder, state: State, blocks: Blocks, *, limits: Limits) -> list[list[Hypothesis]]:
    """Search a batch of questions."""
    questions = count_questions(state)
    live = Live(np.arange(questions), np.zeros(questions), np.full(questions, decoder.begin), state)
    finished, floor, history = NONE_FINISHED, np.full(questions, -np.inf), []
    for length in range(limits.max_length + 1):
        more = limits.beam if length < limits.max_length else 0
        ends, extensions, state = _advance(decoder, live, floor=floor, count=more, blocks=blocks)
        if length >= limits.min_length:
            finished = finished.add(live, live.score + ends, length=length, n_best=limits.n_best)
            floor = finished.floor(units=questions, n_best=limits.n_best)
        question = live.unit[extensions.row]
        chance = np.flatnonzero(extensions.score > floor[question])
        extensions, question = extensions.take(chance), question[chance]
        best = best_of_each(question, (-extensions.score, extensions.row, extensions.word), limits.beam)
        if not len(best):
            break
        extensions = extensions.take(best)
        history.append(extensions)
        parents = torch.from_numpy(extensions.row).to(state[0].device)
        live = Live(question[best], extensions.score, extensions.word, select_rows(state, parents))
    return read_hypotheses(finished, history, units=questions)


def _advance(
    decoder: Decoder, live: Live, *, floor: np.ndarray, count: int, blocks: Blocks
) -> tuple[np.ndarray, Extensions, State]:
    """One step of all hypotheses: log probabilities of `end`, at least the `count` best extensions of each question
    above its floor, and the new state."""
    device = live.state[0].device
    forbidden = torch.tensor([decoder.end, *decoder.banned], device=device)

    def run(part: slice) -> tuple[np.ndarray, Extensions, State]:
        logits, state = decoder.step(torch.from_numpy(live.tokens[part]).to(device), select_rows(live.state, part))
        log_probs = word_log_probs(decoder, logits, blocks.scratch)
        ends = log_probs[:, decoder.end].double().cpu().numpy()
        if not count:
            return ends, Extensions(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)), state
        log_probs.index_fill_(1, forbidden, -torch.inf)
        present, unit = np.unique(live.unit[part], return_inverse=True)
        found = find_extensions(
            log_probs,
            _on(device, live.score[part]),
            unit=_on(device, unit),
            floor=_on(device, floor[present]),
            count=count,
        )
        return ends, Extensions(found.row + part.start, found.word, found.score), state

    ends, extensions, states = zip(*blocks.spread(without_grad(run), blocks.cut(len(live.tokens))), strict=True)
    return np.concatenate(ends), join_extensions(extensions), join_rows(list(states))


def _on(device: torch.device, values: np.ndarray) -> Tensor:
    return torch.from_numpy(values).to(device)
