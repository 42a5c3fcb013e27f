"""A next-word model that reads and predicts pieces of words (subwords.py): the control of the closed vocabulary.

The network is `NextWord` over pieces in place of words, with as many rows. Its scores are those of words: the loss of a
word is the sum of its pieces' losses, and its rank is that among all words that pieces can spell (subword_ranks.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor

from homespun.core.words import words
from homespun.models.next_word import NextWord, Scored, embed_stacked, without_ranks
from homespun.models.subword_ranks import SubwordRanking, Target
from homespun.models.subwords import MARK, Subwords
from homespun.models.suggestion_ranks import NO_RANK
from homespun.models.vocabulary import PADDING, SPECIAL, UNKNOWN, pad_rows

BLOCK = 256  # words that are ranked at once


def encode_subwords(texts: Sequence[str], subwords: Subwords, *, length: int) -> dict[str, Tensor]:
    """Columns beside those of `encode_texts`: the `pieces` [n, L] of the first `length` words of each text, and their
    number `piece_count` [n], at least 1."""
    rows = [[number for word in words(text)[:length] for number in subwords.split(word)] for text in texts]
    longest = max([1, *map(len, rows)])
    return {
        "pieces": torch.tensor(pad_rows(rows, length=longest), dtype=torch.int32).view(-1, longest),
        "piece_count": torch.tensor([max(len(row), 1) for row in rows], dtype=torch.int64),
    }


class NextSubword(NextWord):
    """A batch holds the columns of `encode_texts` and `encode_subwords`. The output [n, T, 3] is that of `NextWord`, by
    word; the rank of a word that is not suggested is SUGGESTED, or NO_RANK if it is unknown."""

    ends: Tensor

    def __init__(self, subwords: Subwords, *, byte_dim: int = 100, cells: int = 200, layers: int = 2) -> None:
        super().__init__(subwords.pieces, byte_dim=byte_dim, cells=cells, layers=layers)
        self.subword_ranking = SubwordRanking(subwords)
        ends = [number == UNKNOWN for number in range(SPECIAL)] + [one.endswith(MARK) for one in self.known]
        self.register_buffer("ends", torch.tensor(ends), persistent=False)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        if torch.is_grad_enabled():
            *_, losses = self.score(as_words(batch))
            return without_ranks(self._sum_by_word(losses, batch))
        parameters = {name: value[None] for name, value in self.named_parameters()}
        return self.stacked(parameters, {name: column[None] for name, column in batch.items()})[0]

    def stacked(self, parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        if torch.is_grad_enabled():
            scored = self.score_stacked(parameters, as_words(batch))
            return without_ranks(self._sum_by_word(_unpack(scored, scored.losses, batch), batch))
        clients = len(batch["pieces"])
        one_by_one = (
            ({name: some[one : one + 1] for name, some in tree.items()} for tree in (parameters, batch))
            for one in range(clients)
        )
        return torch.cat([self._ranked(own, data) for own, data in one_by_one])

    def _sum_by_word(self, losses: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """The losses [..., n, T] of words from those [..., n, L] of their pieces."""
        word_of = self._word_of(batch).clamp(max=batch["words"].shape[-1] - 1)  # what is clamped is padding
        return losses.new_zeros(batch["words"].shape).scatter_add(-1, word_of, losses)

    def _word_of(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The word [..., n, L] that each piece belongs to."""
        ends = self.ends[batch["pieces"].long()].long()
        return ends.cumsum(dim=-1) - ends

    def _ranked(self, parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """The output [1, n, T, 3] of one client. Parameters and columns have a client axis."""
        scored = self.score_stacked(parameters, as_words(batch))
        losses = self._sum_by_word(_unpack(scored, scored.losses, batch), batch)[0]
        place_of = _unpack(scored, torch.arange(scored.layout.positions)[None], batch)[0]
        states = torch.stack([one[0] for layer in scored.layers for one in layer], dim=1)
        found = torch.cat((losses[..., None], losses.new_zeros(*losses.shape, 2)), dim=-1)
        places, origins, targets = [], [], []
        for row, word, first, pieces in words_of(batch["pieces"][0], self._word_of(batch)[0]):
            if pieces == (UNKNOWN,):
                found[row, word, 1] = NO_RANK
                continue
            spelled = "".join(self.known[number - SPECIAL] for number in pieces).removesuffix(MARK)
            places.append((row, word))
            origins.append(int(place_of[row, first]))
            targets.append(Target(spelled, -float(losses[row, word])))
        model = PieceSteps(parameters, spelling=self.spelling)
        for start in range(0, len(places), BLOCK):
            some = slice(start, start + BLOCK)
            rows, numbers = zip(*places[some], strict=True)
            ranked = self.subword_ranking(model, states[origins[some]], targets[some])
            found[list(rows), list(numbers), 1:] = torch.from_numpy(ranked).to(found)
        return found[None]


class PieceSteps:
    """The network of one client, one piece at a time. States [m, 2 layers, H] are outputs and cells by layer."""

    def __init__(self, parameters: Mapping[str, Tensor], *, spelling: Tensor) -> None:
        self.parameters, self.spelling = parameters, spelling

    def advance(self, states: Tensor, pieces: Tensor) -> Tensor:
        value = embed_stacked(self.parameters, pieces[None], spelling=self.spelling)[0]
        after = []
        for number in range(states.shape[1] // 2):
            names = (f"lstm.{number}.{name}_l0" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            weight_ih, weight_hh, bias_ih, bias_hh = (self.parameters[name][0] for name in names)
            value, cell = torch.lstm_cell(
                value, (states[:, 2 * number], states[:, 2 * number + 1]), weight_ih, weight_hh, bias_ih, bias_hh
            )
            after += [value, cell]
        return torch.stack(after, dim=1)

    def log_probs(self, states: Tensor) -> Tensor:
        weight, bias = self.parameters["output.weight"][0], self.parameters["output.bias"][0]
        return torch.addmm(bias, states[:, -2], weight.T).log_softmax(dim=1)


def as_words(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Pieces as the words of a `NextWord`."""
    return {"words": batch["pieces"], "length": batch["piece_count"]}


def _unpack(scored: Scored, packed: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    return scored.layout.unpack(packed, steps=batch["pieces"].shape[-1])


def words_of(pieces: Tensor, word_of: Tensor) -> Iterator[tuple[int, int, int, tuple[int, ...]]]:
    """The row, the word, the first step and the pieces of each word of a batch [n, L]."""
    for row, (numbers, owners) in enumerate(zip(pieces.tolist(), word_of.tolist(), strict=True)):
        real = [(owner, step) for step, owner in enumerate(owners) if numbers[step] != PADDING]
        for word, group in groupby(real, key=lambda one: one[0]):
            steps = [step for _, step in group]
            yield row, word, steps[0], tuple(numbers[step] for step in steps)
