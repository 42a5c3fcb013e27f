"""Suggestions of a next-word model for one user, word by word and keystroke by keystroke.

Everything that does not depend on the text is computed once: the embedding of every word that is read, and the output
row of every word that can be suggested. A new word then costs one LSTM step and one product with the output layer; a
keystroke within a word only chooses among the words that begin with what is typed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from homespun.core.tree import Tree
from homespun.models.next_word import (
    FROM_UNKNOWN,
    embed_stacked,
    read_spelling,
    rows_of_lexicon,
    spell_vocabulary,
    spell_words,
)
from homespun.models.vocabulary import BEGIN, SPECIAL, UNKNOWN, Vocabulary


class Suggestion(NamedTuple):
    """A word that may follow."""

    word: str
    probability: float  # among the words that begin with what is typed
    own: bool  # whether it is one of the user's own words


class Typed(NamedTuple):
    """What a suggester has read."""

    states: tuple[tuple[Tensor, Tensor], ...]  # of each LSTM layer
    log_probs: np.ndarray  # of every word that can follow


class Suggester:
    def __init__(self, vocabulary: Vocabulary, parameters: Tree) -> None:
        self._vocabulary, self._parameters = vocabulary, parameters
        stacked = {name: value[None] for name, value in parameters.items()}
        self._index = vocabulary.index
        numbers = torch.arange(len(vocabulary))[None]
        with torch.no_grad():
            self._read = embed_stacked(stacked, numbers, spelling=spell_vocabulary(vocabulary))[0]
            weight, bias = parameters["output.weight"][SPECIAL:], parameters["output.bias"][SPECIAL:]
            lexicon = parameters.get("own.lexicon", torch.zeros(0))
            if len(lexicon):
                rows = rows_of_lexicon(stacked)[0]
                weight, bias = torch.cat((weight, rows[:, :-1])), torch.cat((bias, rows[:, -1]))
        self._weight, self._bias = weight.contiguous(), bias
        layers = sum(name.endswith("weight_hh_l0") for name in parameters)
        self._layers = [_layer(parameters, f"lstm.{number}.") for number in range(layers)]
        own = [read_spelling(row).decode(errors="replace") for row in lexicon]
        self.words = (*vocabulary.known, *own)
        self._known = len(vocabulary.known)
        order = sorted(range(len(self.words)), key=self.words.__getitem__)
        self._order, self._sorted = np.array(order), [self.words[place] for place in order]
        self.start = self._step(None, BEGIN)

    @property
    def learns(self) -> bool:
        """Whether new words can be suggested at once: they start from the unknown word, or there is an adapter."""
        own = {name: self._parameters.get(name) for name in ("own.start", "own.adapter")}
        if own["own.start"] is None or own["own.adapter"] is None:
            return False
        return int(own["own.start"]) == FROM_UNKNOWN or bool(own["own.adapter"].numel())

    def with_words(self, words: Sequence[str], *, counts: Sequence[int]) -> Suggester:
        """The same with more own words, and how often each was typed."""
        lexicon = torch.cat((self._parameters["own.lexicon"], spell_words([word.encode() for word in words])))
        typed = torch.cat((self._parameters["own.counts"], torch.tensor(counts, dtype=torch.int64)))
        return Suggester(self._vocabulary, {**self._parameters, "own.lexicon": lexicon, "own.counts": typed})

    def read(self, typed: Typed, word: str) -> Typed:
        """After one more word. A word outside the vocabulary is read as unknown, as in training."""
        return self._step(typed, self._index.get(word, UNKNOWN))

    def read_all(self, words: Sequence[str]) -> Typed:
        typed = self.start
        for word in words:
            typed = self.read(typed, word)
        return typed

    def suggest(self, typed: Typed, prefix: str = "", *, k: int = 3) -> list[Suggestion]:
        """The likeliest words that begin with `prefix`; of equally likely ones, the first in the vocabulary."""
        places = self._beginning_with(prefix)
        scores = typed.log_probs[places]
        total = np.logaddexp.reduce(scores) if len(scores) else 0.0
        best = np.argpartition(-scores, k)[:k] if len(scores) > k else np.arange(len(scores))
        if len(scores) > k:  # all words as likely as the last one compete for its place
            best = np.flatnonzero(scores >= scores[best].min())
        ranked = sorted(best, key=lambda place: (-scores[place], places[place]))[:k]
        return [
            Suggestion(self.words[places[one]], float(np.exp(scores[one] - total)), bool(places[one] >= self._known))
            for one in ranked
        ]

    def _beginning_with(self, prefix: str) -> np.ndarray:
        if not prefix:
            return np.arange(len(self.words))
        first = bisect_left(self._sorted, prefix)
        last = bisect_left(self._sorted, prefix + chr(0x10FFFF), lo=first)
        return np.sort(self._order[first:last])

    @torch.no_grad()
    def _step(self, typed: Typed | None, number: int) -> Typed:
        value, states = self._read[number], []
        for place, (weight_ih, weight_hh, bias) in enumerate(self._layers):
            gates = torch.addmv(bias, weight_ih, value)
            if typed is not None:
                gates = gates.addmv(weight_hh, typed.states[place][0])
            enter, forget, cell, leave = gates.chunk(4)
            memory = enter.sigmoid() * cell.tanh()
            if typed is not None:
                memory = memory + forget.sigmoid() * typed.states[place][1]
            value = leave.sigmoid() * memory.tanh()
            states.append((value, memory))
        scores = torch.addmv(self._bias, self._weight, value)
        return Typed(tuple(states), scores.log_softmax(dim=0).numpy())


def _layer(parameters: Tree, prefix: str) -> tuple[Tensor, Tensor, Tensor]:
    bias = parameters[prefix + "bias_ih_l0"] + parameters[prefix + "bias_hh_l0"]
    return parameters[prefix + "weight_ih_l0"], parameters[prefix + "weight_hh_l0"], bias
