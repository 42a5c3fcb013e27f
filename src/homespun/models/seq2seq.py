"""Question -> LSTM layers -> state -> LSTM layers with a persona -> reply: FedNLG's model, word by word.

`forward` computes one client at a time with plain torch; `stacked` computes the same function for many clients, each
with its own weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from homespun.core import draws
from homespun.models.packed_lstm import Packed, lstm_layer, pack
from homespun.models.suggestion_ranks import NOTHING
from homespun.models.vocabulary import BEGIN, END, PADDING
from homespun.models.word_losses import word_losses

Persona = Literal["none", "private", "table"]
State = list[tuple[Tensor, Tensor]]  # hidden and cell state of each layer


class Seq2Seq(nn.Module):
    """A batch holds `question` [n, T] and `question_length` [n], `reply` [n, T] and `length` [n]: the number of words
    to predict. That is one more than the words of the reply, for its end, unless the reply is cut. For a table of
    personas it also holds `author` [n], and for profiles `profile` [n, columns], rows of `profile.table`. Lengths are
    at least 1.

    The persona: "none" has none; "private" is the parameter `persona.embedding`, one per client; "table" is the row of
    `persona.table` of each author. With `profile_values`, the sum of the profile's rows precedes it. At every step the
    persona is joined to the input of the decoder layers in `readers`, not set: of all layers (equation 2 of FedNLG).
    With `in_question` it is also read before the question.
    """

    chunk = 12  # clients that are trained at once: their copies of the word embeddings take most of the memory

    def __init__(
        self,
        *,
        vocabulary: int,
        word_dim: int,
        cells: int,
        layers: int,
        dropout: float = 0.0,
        persona: Persona = "none",
        persona_dim: int = 0,
        persona_scale: float = 1.0,
        readers: Collection[int] | None = None,
        profile_dim: int = 0,
        profile_values: int = 0,
        in_question: bool = False,
        population: int = 0,
    ) -> None:
        super().__init__()
        self.persona_kind, self.in_question, self.dropout = persona, in_question and persona != "none", dropout
        self.words = nn.Embedding(vocabulary, word_dim)
        self.has_profile = persona != "none" and profile_dim > 0 and profile_values > 0
        self.readers = set(range(layers) if readers is None else readers) if persona != "none" else set()
        extra, widths = persona_dim + profile_dim * self.has_profile, [word_dim, *[cells] * (layers - 1)]
        self.encoder = _lstm_layers(widths, cells=cells)
        self.decoder = _lstm_layers(
            [width + extra * (number in self.readers) for number, width in enumerate(widths)], cells=cells
        )
        self.output = nn.Linear(cells, vocabulary)
        if persona == "private":
            self.persona = nn.ParameterDict({"embedding": persona_scale * torch.randn(persona_dim)})
        elif persona == "table":
            self.persona = nn.ParameterDict({"table": persona_scale * torch.randn(population, persona_dim)})
        if self.has_profile:  # zeros: a value that no speaker has contributes nothing
            self.profile = nn.ParameterDict({"table": torch.zeros(profile_values, profile_dim)})
        if self.in_question:
            self.to_word = nn.Linear(extra, word_dim, bias=False)
        self.apply(_initialize)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The loss of each word to predict, [n, T + 1], 0 beyond `length`."""
        own, key = self._persona_rows(batch), batch.get(draws.KEY)
        state = self._encode(batch["question"].long(), batch["question_length"], own, key)
        inputs, targets = teacher_forcing(batch["reply"].long(), batch["length"])
        outputs, _ = self._run(
            self.decoder, self.words(inputs), batch["length"], key, site=len(self.encoder), state=state, own=own
        )
        outputs = self._drop(outputs, key, site=2 * len(self.encoder))
        logits = self.output(outputs)
        losses = functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=NOTHING, reduction="none"
        )
        return losses.view_as(targets)

    def _encode(self, question: Tensor, length: Tensor, own: Tensor | None, key: Tensor | None) -> State:
        read = self.words(question)
        if self.in_question and own is not None:
            read, length = torch.cat((self.to_word(own)[:, None], read), dim=1), length + 1
        return self._run(self.encoder, read, length, key, site=0)[1]

    def _run(
        self,
        layers: nn.ModuleList,
        inputs: Tensor,
        lengths: Tensor,
        key: Tensor | None,
        *,
        site: int,
        state: State | None = None,
        own: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """The states of the last layer at each step, and the final state of every layer."""
        final: State = []
        for number, layer in enumerate(layers):
            inputs = self._drop(inputs, key, site=site + number)
            if own is not None and number in self.readers:
                inputs = torch.cat((inputs, own[:, None].expand(-1, inputs.shape[1], -1)), dim=-1)
            packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
            begin = None if state is None else tuple(one[None] for one in state[number])
            states, (h, c) = layer(packed, begin)
            inputs = pad_packed_sequence(states, batch_first=True, total_length=inputs.shape[1])[0]
            final.append((h[0], c[0]))
        return inputs, final

    def _drop(self, inputs: Tensor, key: Tensor | None, *, site: int) -> Tensor:
        """Dropout on the input of a layer (Zaremba et al., 2014), drawn for each position of each example. Personas
        are not dropped."""
        if key is None:
            return inputs
        keys = draws.example_keys(key[:, None], torch.arange(inputs.shape[1], device=inputs.device))
        return draws.dropout(inputs, keys, p=self.dropout, site=site)

    def _persona_rows(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        if self.persona_kind == "none":
            return None
        private = self.persona_kind == "private"
        own: Tensor = self.persona["embedding"] if private else self.persona["table"][batch["author"]]
        if self.has_profile:
            own = join_profile(self.profile["table"][batch["profile"]], own)
        return own.expand(len(batch["length"]), -1)

    def stacked(self, parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Losses [C, n, T + 1] of C clients: the result of `forward` for each client with its own parameters."""
        own = _stacked_personas(self.persona_kind, parameters, batch)
        shared = {name: parameters[name] for name, _ in self.named_parameters() if not name.startswith("persona.")}
        clients, rows = batch["length"].shape
        if clients > 1 and not torch.is_grad_enabled() and all(one.stride(0) == 0 for one in shared.values()):
            # All clients have the same weights: treat them as one client with all examples.
            merged = {name: column.flatten(0, 1)[None] for name, column in batch.items()}
            whole = None if own is None else own.expand(clients, rows, -1).flatten(0, 1)[None]
            return self._losses({name: one[:1] for name, one in shared.items()}, merged, whole).view(clients, rows, -1)
        return self._losses(shared, batch, own)

    def _losses(self, shared: Mapping[str, Tensor], batch: Mapping[str, Tensor], own: Tensor | None) -> Tensor:
        """`own` is the persona of each example, [C, n, D], or of each client, [C, 1, D]."""
        key, question = batch.get(draws.KEY), batch["question"].long()
        inputs, targets = teacher_forcing(batch["reply"].long(), batch["length"])
        asked, replied = pack(batch["question_length"] + int(self.in_question)), pack(batch["length"])
        if self.in_question:  # the persona takes the place of the first word
            question = functional.pad(question, (1, 0))
        # Both texts are looked up at once, so that there is one gradient of the table, which is large.
        numbers = torch.cat((asked.pack(question), replied.pack(inputs)), dim=1)
        read, written = _embed(shared["words.weight"], numbers).split((asked.positions, replied.positions), dim=1)
        if self.in_question and own is not None:
            first = torch.bmm(own, shared["to_word.weight"].mT).expand(-1, question.shape[1], -1)
            read = torch.cat((asked.rows_of(first), read[:, asked.sizes[0] :]), dim=1)
        state = [
            (asked.final(h), asked.final(c))
            for h, c in self._stacked_layers("encoder", shared, read, layout=asked, key=key)
        ]
        *_, (outputs, _) = self._stacked_layers(
            "decoder", shared, written, layout=replied, key=key, state=state, own=own
        )
        outputs = self._stacked_drop(outputs, key, layout=replied, site=2 * len(self.encoder))
        losses = word_losses(
            outputs,
            weight=shared["output.weight"],
            bias=shared["output.bias"],
            targets=replied.pack(targets).masked_fill(~replied.real, NOTHING),
        )
        return replied.unpack(losses, steps=inputs.shape[2])

    def _stacked_layers(
        self,
        name: str,
        parameters: Mapping[str, Tensor],
        inputs: Tensor,
        *,
        layout: Packed,
        key: Tensor | None,
        state: State | None = None,
        own: Tensor | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The hidden and cell states of each layer at all positions."""
        first_site = 0 if name == "encoder" else len(self.encoder)
        for number in range(len(self.encoder)):
            weights = {one: parameters[f"{name}.{number}.{one}_l0"] for one in _LAYER}
            inputs = self._stacked_drop(inputs, key, layout=layout, site=first_site + number)
            width = inputs.shape[2]
            bias = (weights["bias_ih"] + weights["bias_hh"])[:, None]
            if own is not None and number in self.readers:
                of_persona = torch.bmm(own, weights["weight_ih"][:, :, width:].mT)
                bias = bias + (of_persona if own.shape[1] == 1 else layout.rows_of(of_persona)[:, layout.row])
            found = lstm_layer(
                inputs,
                weight_ih=weights["weight_ih"][:, :, :width],
                weight_hh=weights["weight_hh"],
                bias=bias,
                sizes=layout.sizes,
                start=None if state is None else (layout.rows_of(state[number][0]), layout.rows_of(state[number][1])),
            )
            yield found
            inputs = found[0]

    def _stacked_drop(self, inputs: Tensor, key: Tensor | None, *, layout: Packed, site: int) -> Tensor:
        if key is None:
            return inputs
        keys = draws.example_keys(key.gather(1, layout.sequence()), layout.step)
        return draws.dropout(inputs, keys, p=self.dropout, site=site)


_LAYER = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def teacher_forcing(reply: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """What the decoder reads and predicts, [..., T + 1] each: `begin w1 w2` and `w1 w2 end`, with NOTHING beyond
    `length`. Without the end, `length` is the number of words: the reply is cut."""
    begin = torch.full_like(reply[..., :1], BEGIN)
    inputs = torch.cat((begin, reply), dim=-1)
    targets = functional.pad(reply, (0, 1), value=PADDING)
    targets = targets.masked_fill(targets == PADDING, END)
    steps = torch.arange(targets.shape[-1], device=reply.device)
    return inputs, targets.masked_fill(steps >= length[..., None], NOTHING)


def join_profile(rows: Tensor, own: Tensor) -> Tensor:
    """The whole persona: the profile part, which is the sum of the rows [..., columns, P] of the profile's values, and
    the behaviour part `own` [..., D]."""
    part = rows.sum(dim=-2)
    return torch.cat((part, own.expand(*part.shape[:-1], -1)), dim=-1)


def _embed(table: Tensor, words: Tensor) -> Tensor:
    """Rows [C, P, E] of each client's table [C, V, E]."""
    clients, height, _ = table.shape
    offsets = torch.arange(clients, device=words.device)[:, None] * height
    return functional.embedding(words + offsets, table.reshape(clients * height, -1))


def _stacked_personas(kind: Persona, parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor | None:
    """The persona of each example, [C, n, D], or of each client, [C, 1, D]."""
    if kind == "none":
        return None
    if kind == "private":
        own = parameters["persona.embedding"][:, None]
    else:
        own = _embed(parameters["persona.table"], batch["author"].long())
    if "profile.table" not in parameters:
        return own
    profile = batch["profile"].long()
    rows = _embed(parameters["profile.table"], profile.flatten(1))
    return join_profile(rows.unflatten(1, profile.shape[1:]), own)


def _lstm_layers(widths: Sequence[int], *, cells: int) -> nn.ModuleList:
    """One module per layer, because dropout between layers is drawn by key and personas join at each."""
    return nn.ModuleList(nn.LSTM(width, cells, batch_first=True) for width in widths)


def _initialize(module: nn.Module) -> None:
    """Xavier uniform for matrices and zero for biases, except: inputs of LSTMs have the gain 4, because two
    gates at 1/2 reduce a signal to a quarter in each layer; forget gates start open; word embeddings are normal with
    standard deviation 1. Without them, four layers learn little more than word frequencies for thousands of steps."""
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight)
    elif isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.LSTM):
        for name, value in module.named_parameters():
            if value.dim() > 1:
                nn.init.xavier_uniform_(value, gain=4.0 if name.startswith("weight_ih") else 1.0)
            else:
                nn.init.zeros_(value)
                forget = slice(module.hidden_size, 2 * module.hidden_size)
                nn.init.constant_(value[forget], 1.0 if name.startswith("bias_ih") else 0.0)
