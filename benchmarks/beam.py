"""Workload beam: beam search against a frozen search of one question at a time, alternating in one run.

    homespun bench beam

Both sides search the same decoder, a 4-layer LSTM of 100 cells with 12,000 words and random weights, with a beam of 200
and up to 20 words. The reference is slow, so that it searches only `compared` questions in each round, other ones each
time; times are seconds per question. It is timed with one thread and with two; the better one counts. Shares are
relative to the GEMM peak (all cores) measured in the same run, in nominal FLOPs of the steps that were made.

Two lists are the same if they hold the same sequences in the same order, except for the order of sequences whose log
probabilities differ by less than 1e-4. Both sides compute in float32; with these weights, the log probabilities of
either side differ from those of a float64 computation by up to about 1e-4.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

import reference_beam as reference
from alternating import timed
from gemm import gemm_peak_gflops
from memory import peak_rss_mb

from homespun.core.errors import SettingsError
from homespun.decoding.beam import beam_search
from homespun.decoding.hypotheses import Hypothesis
from homespun.decoding.protocol import State
from homespun.system.machine import cpu_cores

LATENCY_BEAMS = (200, 20)
LATENCY_QUESTIONS = 5
ROUNDING = 1e-4


class LSTMDecoder:
    """The reference's model as a decoder; a state is (hidden, cell), [rows, layers, cells] each."""

    begin = reference.BEGIN
    end = reference.END
    banned = reference.BANNED
    vocabulary = reference.VOCABULARY

    def __init__(self, model: reference.Model, cells: Sequence[nn.LSTMCell]) -> None:
        self.model, self.cells = model, cells
        self.rows: list[int] = []  # of each step, to count operations

    def start(self, inputs: tuple[Tensor, Tensor]) -> State:
        return tuple(part.transpose(0, 1).contiguous() for part in inputs)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        self.rows.append(len(tokens))
        hidden, cell, out = [], [], self.model.words(tokens)
        for layer, one in enumerate(self.cells):
            out, memory = one(out, (state[0][:, layer], state[1][:, layer]))
            hidden.append(out)
            cell.append(memory)
        return self.model.output(out), (torch.stack(hidden, dim=1), torch.stack(cell, dim=1))


def make_decoder(model: reference.Model) -> LSTMDecoder:
    cells = []
    for layer in range(reference.LAYERS):
        cell = nn.LSTMCell(reference.CELLS, reference.CELLS)
        cell.load_state_dict({name: model.lstm.get_parameter(f"{name}_l{layer}") for name in cell.state_dict()})
        cells.append(cell.requires_grad_(False))
    return LSTMDecoder(model, cells)


def reference_search(
    model: reference.Model, questions: tuple[Tensor, Tensor], some: range
) -> list[list[reference.Hypothesis]]:
    return [reference.search(model, *(part[:, one : one + 1] for part in questions)) for one in some]


@dataclass(frozen=True)
class Agreement:
    """How far the lists of both sides are the same."""

    same: int  # lists with the same sequences, in the same order up to rounding
    same_order: int  # lists with the same sequences in exactly the same order
    max_abs_difference: float  # of log probabilities of sequences that both sides found


def compare(ours: list[list[Hypothesis]], theirs: list[list[reference.Hypothesis]]) -> Agreement:
    same, same_order, largest = 0, 0, 0.0
    for our, their in zip(ours, theirs, strict=True):
        our_scores, their_scores = ({one.tokens: one.log_prob for one in some} for some in (our, their))
        same += our_scores.keys() == their_scores.keys() and _is_descending([our_scores[one] for one in their_scores])
        same_order += list(our_scores) == list(their_scores)
        both = our_scores.keys() & their_scores.keys()
        largest = max(largest, *(abs(our_scores[one] - their_scores[one]) for one in both))
    return Agreement(same, same_order, largest)


def _is_descending(scores: list[float]) -> bool:
    """Whether no score exceeds an earlier one by more than rounding."""
    lowest = accumulate(scores, min)
    return all(score < before + ROUNDING for score, before in zip(scores[1:], lowest, strict=False))


def measure(rounds: int = 5, questions: int = 100, compared: int = 4) -> dict[str, float | int]:
    if compared * rounds > questions:
        raise SettingsError(f"rounds x compared is {compared * rounds}: set questions to at least that.")
    model, asked = reference.Model(), reference.make_questions(questions)
    decoder, threads = make_decoder(model), cpu_cores()
    state = decoder.start(asked)
    ours = partial(beam_search, decoder, beam=reference.BEAM, max_length=reference.LENGTH, threads=threads)
    ours(tuple(part[:2] for part in state))  # warm up
    reference_s: dict[int, list[float]] = {1: [], 2: []}  # per question, by number of threads
    ours_s: list[float] = []
    found: list[list[Hypothesis]] = []
    peaks, theirs = [], []
    for place in range(rounds):
        some = range(place * compared, (place + 1) * compared)
        for count, seconds in reference_s.items():
            torch.set_num_threads(count)
            took, lists = timed(partial(reference_search, model, asked, some))
            seconds.append(took / compared)
        theirs += lists
        torch.set_num_threads(1)
        decoder.rows.clear()
        took, found = timed(partial(ours, state))
        ours_s.append(took / questions)
        peaks.append(gemm_peak_gflops(threads))
    rows = sum(decoder.rows) / questions
    agreement = compare(found[: len(theirs)], theirs)
    return (
        {"rounds": rounds, "questions": questions, "threads": threads, "rows_per_question": rows}
        | speeds(ours_s, reference_s, peak=max(peaks), flop=reference.step_flop(1) * rows)
        | latencies(decoder, state, threads=threads)
        | {
            "compared_lists": len(theirs),
            "same_lists": agreement.same,
            "lists_in_same_order": agreement.same_order,
            "max_abs_difference": agreement.max_abs_difference,
            "shortest_reply": min(len(one.tokens) for hypotheses in found for one in hypotheses),
            "mean_reply": statistics.mean(len(one.tokens) for hypotheses in found for one in hypotheses),
            "longest_reply": max(len(one.tokens) for hypotheses in found for one in hypotheses),
            "distinct_best_replies": len({hypotheses[0].tokens for hypotheses in found}),
            "peak_rss_mb": peak_rss_mb(),
        }
    )


def speeds(ours_s: list[float], reference_s: dict[int, list[float]], *, peak: float, flop: float) -> dict[str, Any]:
    """Medians over rounds of seconds per question, which takes this number of nominal operations."""
    by_threads = {threads: statistics.median(seconds) for threads, seconds in reference_s.items()}
    threads = min(by_threads, key=lambda number: by_threads[number])
    ours, theirs = statistics.median(ours_s), by_threads[threads]
    return {
        "reference_s_per_question": theirs,
        "reference_threads": threads,
        "beam_s_per_question": ours,
        "ratio": theirs / ours,
        "gemm_peak_gflops": peak,
        "gemm_share": flop / ours / 1e9 / peak,
        "reference_gemm_share": flop / theirs / 1e9 / peak,
    }


def latencies(decoder: LSTMDecoder, state: State, *, threads: int) -> dict[str, float]:
    """Median seconds of a search for one question alone."""
    found = {}
    for beam in LATENCY_BEAMS:
        seconds = [
            timed(
                partial(
                    beam_search,
                    decoder,
                    tuple(part[one : one + 1] for part in state),
                    beam=beam,
                    max_length=reference.LENGTH,
                    threads=threads,
                )
            )[0]
            for one in range(LATENCY_QUESTIONS)
        ]
        found[f"latency_s_beam_{beam}"] = statistics.median(seconds)
    return found
