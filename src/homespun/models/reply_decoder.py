"""A `Seq2Seq` model as a step-wise decoder, for beam search and sampling (package `decoding`).

Rows may belong to different users: the persona's part of each layer's gates is computed once per row and is part of
the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from homespun.models import products
from homespun.models.packed_lstm import lstm_layer, pack
from homespun.models.vocabulary import BEGIN, END, PADDING, UNKNOWN

DecoderState = tuple[Tensor, ...]  # the persona's part of all gates, then hidden and cell state of each layer


@dataclass(frozen=True)
class ReplyDecoder:
    """The decoder of one model. `parameters` are those of a `Seq2Seq`, without a client axis."""

    parameters: Mapping[str, Tensor]
    layers: int

    begin: ClassVar[int] = BEGIN
    end: ClassVar[int] = END
    banned: ClassVar[tuple[int, ...]] = (PADDING, BEGIN, UNKNOWN)

    @property
    def vocabulary(self) -> int:
        return len(self.parameters["output.weight"])

    @torch.no_grad()
    def start(self, questions: Sequence[Sequence[int]], personas: Tensor | None = None) -> DecoderState:
        """The state after reading these questions, one row each. `personas` [rows, D] are those of the speakers who
        reply."""
        words = self.parameters["words.weight"]
        in_question = "to_word.weight" in self.parameters and personas is not None
        lengths = torch.tensor([[len(one) + int(in_question) for one in questions]])
        layout = pack(lengths)
        numbers = torch.zeros(1, len(questions), layout.longest, dtype=torch.int64)
        for row, one in enumerate(questions):
            numbers[0, row, int(in_question) : int(in_question) + len(one)] = torch.tensor(one, dtype=torch.int64)
        inputs = words[layout.pack(numbers)]
        if in_question and personas is not None:
            first = (personas @ self.parameters["to_word.weight"].T)[None]
            inputs = torch.cat((layout.rows_of(first), inputs[:, layout.sizes[0] :]), dim=1)
        state: list[Tensor] = [self._persona_gates(personas, rows=len(questions))]
        for number in range(self.layers):
            weights = self._layer("encoder", number)
            hidden, cell = lstm_layer(
                inputs,
                weight_ih=weights["weight_ih"][None],
                weight_hh=weights["weight_hh"][None],
                bias=(weights["bias_ih"] + weights["bias_hh"])[None, None],
                sizes=layout.sizes,
            )
            state += [layout.final(hidden)[0], layout.final(cell)[0]]
            inputs = hidden
        return tuple(state)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Logits [rows, vocabulary] of the word after `tokens` [rows], and the state that follows."""
        features, state = self.features(tokens, state)
        return products.addmm(self.parameters["output.bias"], features, self.parameters["output.weight"].T), state

    def features(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """The input of the output layer, and the state that follows."""
        of_persona, *layers = state
        following: list[Tensor] = [of_persona]
        added = dict(zip(self._readers, of_persona.chunk(max(1, len(self._readers)), dim=1), strict=False))
        inputs = self.parameters["words.weight"][tokens]
        for number, (weights, bias) in enumerate(self._decoder_layers):
            hidden, cell = layers[2 * number], layers[2 * number + 1]
            gates = torch.addmm(bias, torch.cat((inputs, hidden), dim=1), weights)
            if number in added:
                gates += added[number]
            i, f, g, o = gates.chunk(4, dim=1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            inputs = o.sigmoid() * cell.tanh()
            following += [inputs, cell]
        return inputs, tuple(following)

    @cached_property
    def _decoder_layers(self) -> list[tuple[Tensor, Tensor]]:
        """The weights [inputs + cells, 4 cells] of each layer, without the persona's, and its bias."""
        found = []
        for number in range(self.layers):
            weights = self._layer("decoder", number)
            of_input = weights["weight_ih"][:, : self._width(number)]
            joined = torch.cat((of_input, weights["weight_hh"]), dim=1).T.contiguous()
            found.append((joined, weights["bias_ih"] + weights["bias_hh"]))
        return found

    @cached_property
    def _readers(self) -> list[int]:
        """The decoder layers that read the persona."""
        return persona_readers(self.parameters, layers=self.layers)

    def _width(self, number: int) -> int:
        """The columns of a decoder layer's input without the persona: the encoder reads none."""
        return self._layer("encoder", number)["weight_ih"].shape[1]

    def _persona_gates(self, personas: Tensor | None, *, rows: int) -> Tensor:
        """The persona's part of the gates of all layers that read it, [rows, layers that read x 4 cells]."""
        weights = {number: self._layer("decoder", number)["weight_ih"] for number in self._readers}
        if personas is None or not weights:
            return self.parameters["words.weight"].new_zeros(rows, sum(len(one) for one in weights.values()))
        return personas @ torch.cat([one[:, self._width(number) :] for number, one in weights.items()]).T

    def _layer(self, name: str, number: int) -> dict[str, Tensor]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return {one: self.parameters[f"{name}.{number}.{one}_l0"] for one in names}


def persona_readers(parameters: Mapping[str, Tensor], *, layers: int) -> list[int]:
    """The decoder layers with columns for a persona."""
    columns = {
        name: [parameters[f"{name}.{number}.weight_ih_l0"].shape[1] for number in range(layers)]
        for name in ("encoder", "decoder")
    }
    return [number for number in range(layers) if columns["decoder"][number] > columns["encoder"][number]]
