"""Greedy decoding and sampling.

    sample(decoder, decoder.start(prompts), samples=3, max_length=20, temperature=0.8, top_p=0.9, seed=1)

Log probabilities of the result are the model's, without temperature, `top_k` and `top_p`, and include that of `end`, as
in beam search. Each sample has its own random generator, derived from the seed, the question's number and the sample's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from homespun.core import seeds
from homespun.decoding.division import Blocks, search_in_batches
from homespun.decoding.hypotheses import Hypothesis
from homespun.decoding.protocol import (
    Decoder,
    State,
    check_lengths,
    check_words,
    count_questions,
    require,
    select_rows,
    word_log_probs,
)


class Filters(Protocol):
    """What shapes the distribution of the next word."""

    @property
    def temperature(self) -> float:
        """Below 1 favours likely words, above 1 unlikely ones. 0: always the likeliest word."""

    @property
    def top_k(self) -> int:
        """Sample from the k likeliest words. 0: from all."""

    @property
    def top_p(self) -> float:
        """Sample from the likeliest words whose total probability reaches this value."""


def choose_tokens(logits: Tensor, filters: Filters, generators: Sequence[torch.Generator]) -> Tensor:
    """Choose a token for each row of logits [samples, vocabulary]; each sample has its own random generator."""
    if filters.temperature == 0:
        return logits.argmax(dim=-1)
    chances = probabilities(logits, filters)
    drawn = [torch.multinomial(row, 1, generator=one) for row, one in zip(chances, generators, strict=True)]
    return torch.cat(drawn)


def probabilities(logits: Tensor, filters: Filters) -> Tensor:
    """Apply temperature, then `top_k`, then `top_p`; at least one token remains."""
    # in double precision and with the maximum at 0, no temperature is too small
    scores = (logits - logits.amax(dim=-1, keepdim=True)).double() / filters.temperature
    if 0 < filters.top_k < scores.shape[-1]:
        fewest = scores.topk(filters.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < fewest, -torch.inf)
    chances = scores.softmax(dim=-1)
    if filters.top_p < 1:
        ordered, order = chances.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered  # total probability of the likelier tokens
        chances = chances.masked_fill((before >= filters.top_p).gather(-1, order.argsort(dim=-1)), 0.0)
    return chances / chances.sum(dim=-1, keepdim=True)


@dataclass(frozen=True)
class Drawing:
    """How words are drawn."""

    temperature: float
    top_k: int
    top_p: float
    min_length: int
    max_length: int

    def faults(self) -> list[str]:
        found = check_lengths(min_length=self.min_length, max_length=self.max_length)
        if not 0 <= self.temperature < float("inf"):
            found.append(f"temperature is {self.temperature}, expected 0 or more.")
        if self.top_k < 0:
            found.append(f"top_k is {self.top_k}, expected 0 (all words) or more.")
        if not 0 < self.top_p <= 1:
            found.append(f"top_p is {self.top_p}, expected more than 0 and at most 1.")
        return found


def greedy(decoder: Decoder, state: State, *, max_length: int, min_length: int = 1) -> list[Hypothesis]:
    """The sequence of each question that takes the likeliest word at each step; in a tie, the smaller one."""
    found = sample(decoder, state, samples=1, max_length=max_length, min_length=min_length, temperature=0.0)
    return [one for (one,) in found]


def sample(
    decoder: Decoder,
    state: State,
    *,
    samples: int,
    max_length: int,
    min_length: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    threads: int = 1,
) -> list[list[Hypothesis]]:
    """Sample sequences for each question, in the order in which they were drawn.

    Args:
        state: `decoder.start(questions)`, one row per question.
        samples: Number of sequences of each question.
        max_length: Maximum number of words; a longer sequence is cut.
        min_length: Minimum number of words; a sequence is shorter if no other word has a positive probability.
        temperature: Below 1 favours likely words, above 1 unlikely ones. 0: always the likeliest word.
        top_k: Sample from the k likeliest words. 0: from all.
        top_p: Sample from the likeliest words whose total probability reaches this value.
        seed: The same seed gives the same sequences.
        threads: Number of threads that share the questions. The result does not depend on it.
    """
    drawing = Drawing(temperature, top_k, top_p, min_length, max_length)
    faults = check_words(decoder) + drawing.faults()
    faults += [
        f"{name} is {n}, expected at least 1." for name, n in (("samples", samples), ("threads", threads)) if n < 1
    ]
    if temperature == 0 and samples > 1:
        faults.append("temperature 0 always gives the same sequence: set samples = 1.")
    require("sampling", faults)
    numbers = torch.arange(count_questions(state), device=state[0].device)
    draw = partial(_sample, decoder, drawing=drawing, samples=samples, seed=seed)
    return search_in_batches(draw, (*state, numbers), per_question=samples, threads=threads)


def _sample(
    decoder: Decoder, state: State, blocks: Blocks, *, drawing: Drawing, samples: int, seed: int
) -> list[list[Hypothesis]]:
    """Sample sequences for a batch of questions, whose numbers are the last part of the state."""
    *parts, numbers = state
    generators = [
        seeds.torch_generator(seed, "sample", question, place)
        for question in numbers.tolist()
        for place in range(samples)
    ]
    repeated = tuple(part.repeat_interleave(samples, dim=0) for part in parts)
    flat = [
        one
        for part in blocks.cut(len(generators))
        for one in _write(decoder, select_rows(repeated, part), blocks, drawing=drawing, generators=generators[part])
    ]
    return [flat[first : first + samples] for first in range(0, len(flat), samples)]


def _write(
    decoder: Decoder, state: State, blocks: Blocks, *, drawing: Drawing, generators: Sequence[torch.Generator]
) -> list[Hypothesis]:
    """One sequence per row; rows that ended leave the batch."""
    device, live = state[0].device, np.arange(len(generators))
    words, scores = np.zeros((len(live), drawing.max_length), np.int64), np.zeros(len(live))
    lengths = np.full(len(live), drawing.max_length)
    tokens = torch.full((len(live),), decoder.begin, device=device)
    for length in range(drawing.max_length + 1):
        logits, state = decoder.step(tokens, state)
        log_probs = word_log_probs(decoder, logits, blocks.scratch)
        if length == drawing.max_length:
            tokens = torch.full_like(tokens, decoder.end)
        else:
            allowed = _allowed(decoder, log_probs, end=length >= drawing.min_length)
            own = [generators[row] for row in live.tolist()]
            tokens = choose_tokens(allowed.cpu(), drawing, own).to(device)  # generators are of the CPU
        scores[live] += log_probs.gather(1, tokens[:, None])[:, 0].double().cpu().numpy()
        written = tokens.cpu().numpy()
        stays = written != decoder.end
        lengths[live[~stays]] = length
        live = live[stays]
        if not len(live):
            break
        words[live, length] = written[stays]
        kept = torch.from_numpy(np.flatnonzero(stays)).to(device)
        tokens, state = tokens[kept], select_rows(state, kept)
    columns = zip(words.tolist(), lengths.tolist(), scores.tolist(), strict=True)
    return [Hypothesis(tuple(line[:length]), score) for line, length, score in columns]


def _allowed(decoder: Decoder, log_probs: Tensor, *, end: bool) -> Tensor:
    """Log probabilities without banned words, and without `end` unless it may follow or nothing else can."""
    banned = torch.tensor([*decoder.banned, decoder.end], device=log_probs.device)
    words = log_probs.index_fill(1, banned, -torch.inf)
    ends = log_probs[:, decoder.end] if end else torch.where(words.amax(dim=1) == -torch.inf, 0.0, -torch.inf)
    words[:, decoder.end] = ends
    return words
