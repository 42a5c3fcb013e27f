"""Diverse beam search with Hamming diversity (Vijayakumar et al. 2016, "Diverse Beam Search: Decoding Diverse Solutions
from Neural Sequence Models").

    diverse_beam_search(decoder, decoder.start(questions), beam=20, groups=4, diversity=0.5, max_length=20)

The beam of a question is divided into groups of `beam / groups` hypotheses. At each step, the groups choose their
extensions one after the other. In a group, extensions are ranked by

    log probability - diversity * number of hypotheses of earlier groups that chose this word at this step

and the best stay unfinished. The penalty ranks the extensions of one step only: log probabilities that are carried
over and returned are the model's. Extensions by `end` are finished without a penalty.

Each group has a list of its `n_best / groups` best finished hypotheses. The result joins these lists, each sequence
once, by log probability. With one group, this is `beam_search`. With a diversity of 0, all groups find the same, and
the result is that of `beam_search` with `beam / groups` and `n_best / groups`.

Ties: extensions are ordered by penalized score, then by the rank of the hypothesis that they extend, then by word; the
finished ones of a group as in `beam_search`, and equal ones of several groups by group.

A low score does not remove a hypothesis, since its words count for later groups. A question ends early when none of its
hypotheses can enter its group's list.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from homespun.decoding.beam import Limits, check_limits
from homespun.decoding.division import Blocks, search_in_batches, without_grad
from homespun.decoding.hypotheses import NONE_FINISHED, Hypothesis, Live, read_hypotheses
from homespun.decoding.protocol import (
    Decoder,
    Scratch,
    State,
    count_questions,
    join_rows,
    require,
    select_rows,
    word_log_probs,
)
from homespun.decoding.selection import Extensions, best_of_each, find_extensions, join_extensions


def diverse_beam_search(
    decoder: Decoder,
    state: State,
    *,
    beam: int,
    groups: int,
    diversity: float,
    max_length: int,
    n_best: int | None = None,
    min_length: int = 1,
    threads: int = 1,
) -> list[list[Hypothesis]]:
    """The best finished hypotheses of each question, best first.

    Args:
        groups: Number of groups; divides `beam` and `n_best`.
        diversity: Penalty, in nats, for each hypothesis of an earlier group that chose the same word.

    The other arguments are those of `beam_search`.
    """
    limits = Limits(beam, max(beam, 1) if n_best is None else n_best, min_length, max_length)
    faults = check_limits(decoder, limits, threads=threads)
    if groups < 1:
        faults.append(f"groups is {groups}, expected at least 1.")
    else:
        faults += [
            f"{name} is {value}, expected a multiple of groups = {groups}."
            for name, value in (("beam", limits.beam), ("n_best", limits.n_best))
            if value % groups
        ]
    if not 0 <= diversity < float("inf"):
        faults.append(f"diversity is {diversity}, expected 0 or more.")
    require("diverse beam search", faults)
    each = Limits(limits.beam // groups, limits.n_best // groups, min_length, max_length)
    search = partial(_search, decoder, limits=each, groups=groups, diversity=diversity)
    return search_in_batches(search, state, per_question=beam, threads=threads)


def _search(
    decoder: Decoder, state: State, blocks: Blocks, *, limits: Limits, groups: int, diversity: float
) -> list[list[Hypothesis]]:
    """Search a batch of questions. The hypotheses of group g of question q are unit q * groups + g."""
    questions = count_questions(state)
    units = questions * groups
    live = Live(
        np.arange(units),
        np.zeros(units),
        np.full(units, decoder.begin),
        tuple(part.repeat_interleave(groups, dim=0) for part in state),
    )
    finished, history = NONE_FINISHED, []
    for length in range(limits.max_length + 1):
        log_probs, state = _step(decoder, live, blocks)
        if length >= limits.min_length:
            ends = log_probs[:, decoder.end].double().cpu().numpy()
            finished = finished.add(live, live.score + ends, length=length, n_best=limits.n_best)
        if length == limits.max_length:
            break
        found = _extend(decoder, live, log_probs, count=limits.beam, groups=groups, diversity=diversity)
        # a question stays while one of its hypotheses can enter the list of its group
        unit = live.unit[found.row]
        hopeful = found.score > finished.floor(units=units, n_best=limits.n_best)[unit]
        stays = np.isin(unit // groups, unit[hopeful] // groups)
        if not stays.any():
            break
        found, unit = found.take(stays), unit[stays]
        history.append(found)
        parents = torch.from_numpy(found.row).to(state[0].device)
        live = Live(unit, found.score, found.word, select_rows(state, parents))
    lists = read_hypotheses(finished, history, units=units)
    return [_join(lists[first : first + groups]) for first in range(0, units, groups)]


def _step(decoder: Decoder, live: Live, blocks: Blocks) -> tuple[Tensor, State]:
    """Log probabilities [rows, vocabulary] of the next words of all hypotheses, and the new state."""
    device = live.state[0].device

    def run(part: slice) -> tuple[Tensor, State]:
        logits, state = decoder.step(torch.from_numpy(live.tokens[part]).to(device), select_rows(live.state, part))
        return word_log_probs(decoder, logits, Scratch()), state  # kept until all groups have chosen

    log_probs, states = zip(*blocks.spread(without_grad(run), blocks.cut(len(live.tokens))), strict=True)
    return torch.cat(log_probs), join_rows(list(states))


def _extend(
    decoder: Decoder, live: Live, log_probs: Tensor, *, count: int, groups: int, diversity: float
) -> Extensions:
    """The extensions that stay unfinished, by unit and then by rank."""
    device, question = log_probs.device, live.unit // groups
    present, place = np.unique(question, return_inverse=True)
    penalties = log_probs.new_zeros(len(present), decoder.vocabulary)
    penalties[:, [decoder.end, *decoder.banned]] = torch.inf
    chosen = []
    for group in range(groups):
        rows = np.flatnonzero(live.unit % groups == group)
        if not len(rows):
            continue
        some, asked = torch.from_numpy(rows).to(device), torch.from_numpy(place[rows]).to(device)
        scores = torch.from_numpy(live.score[rows]).to(device)
        ranked = _best(log_probs[some] - penalties[asked], scores, question=place[rows], count=count)
        row, word = rows[ranked.row], ranked.word
        added = log_probs[torch.from_numpy(row).to(device), torch.from_numpy(word).to(device)]
        chosen.append(Extensions(row, word, live.score[row] + added.double().cpu().numpy()))
        where = (torch.from_numpy(place[row]).to(device), torch.from_numpy(word).to(device))
        penalties.index_put_(where, penalties.new_full((len(row),), diversity), accumulate=True)
    found = join_extensions(chosen)
    return found.take(np.argsort(live.unit[found.row], kind="stable"))


def _best(log_probs: Tensor, scores: Tensor, *, question: np.ndarray, count: int) -> Extensions:
    """The best extensions of each question's rows."""
    _, unit = np.unique(question, return_inverse=True)
    units = torch.from_numpy(unit).to(scores.device)
    floor = scores.new_full((int(unit.max()) + 1,), -torch.inf)
    found = find_extensions(log_probs, scores, unit=units, floor=floor, count=count)
    return found.take(best_of_each(unit[found.row], (-found.score, found.row, found.word), count))


def _join(lists: list[list[Hypothesis]]) -> list[Hypothesis]:
    """The hypotheses of all groups of a question, each sequence once, best first."""
    once: dict[tuple[int, ...], Hypothesis] = {}
    for hypotheses in lists:
        for one in hypotheses:
            once.setdefault(one.tokens, one)
    return sorted(once.values(), key=lambda one: -one.log_prob)
