"""A character-aware LSTM that predicts the next word: the model of OOV Expansion, and of Kim et al. (2016).

The bytes of a word pass through a convolution to the word's embedding, embeddings through LSTM layers, and their output
through a linear layer to a score for each word of a closed vocabulary. So an input needs no row in a table: any word
that has a spelling can be read.

A user may have a lexicon of own words, which the vocabulary does not have. Their embeddings, through an adapter, are
more rows of the output layer, and one softmax is over all rows (section 2.4 of the paper). The lexicon and the adapter
are parameters of the user: `own.lexicon` [words, bytes]; `own.counts` [words], how often each was typed;
`own.unknowns`, how many words the user typed that the vocabulary lacks; `own.adapter` and its hidden layers,
`own.hidden`; and `own.start`: rows start from a word's embedding, as in the paper, or from the row of the unknown word.
An own word then starts with a share of its probability, by how often it was typed.
A model with a prior has an `adapter` of its own, for users whose `own.adapter` is empty but has hidden layers.
With a memory (word_memory.py), the texts that the user typed have a say too: `own.typed` [texts, T] are their words,
own ones numbered after the vocabulary, and `own.memory` its weight and its order or scale.

`forward` computes one client at a time with plain torch; `stacked` computes the same function for many clients, each
with its own weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from homespun.models.packed_lstm import Packed, lstm_layer, pack
from homespun.models.suggestion_ranks import NOTHING, Ranking
from homespun.models.vocabulary import BEGIN, END, PADDING, SPECIAL, UNKNOWN, Vocabulary
from homespun.models.word_adapter import adapt, new_adapter
from homespun.models.word_losses import word_losses, word_ranks
from homespun.models.word_memory import (
    BLOCK,
    Memory,
    cache_probabilities,
    contexts_of,
    neighbour_probabilities,
    remembered,
)

BYTES = 256
NO_BYTE, WORD_START, WORD_END = 0, 1, 4  # control characters, which no word has
SPELLINGS = {PADDING: b"", BEGIN: b"\x02", END: b"\x03", UNKNOWN: b"\x1a"}  # of the numbers before the first word
KERNEL = 4  # bytes that the convolution reads at once
LONGEST_SPELLING = 30  # bytes of a word that are read
SPELLED = LONGEST_SPELLING + 2  # with the start and the end
UNSCORED = [0]  # the hidden layers of no adapter: own words are left to a memory
LOWEST_SCORE = -30.0
PRIOR_SCALE = 0.05  # of a shared adapter's start: with 0, only its last bias would have a gradient
FROM_SPELLING, FROM_UNKNOWN = 0, 1  # `own.start`
DISCOUNT = 0.75  # of a count: words that were typed a few times are typed again less often than they were


def spell_words(spellings: Sequence[bytes]) -> Tensor:
    """The bytes [words, SPELLED] of these words between a start and an end, padded with NO_BYTE."""
    rows = np.full((len(spellings), SPELLED), NO_BYTE, dtype=np.uint8)
    for row, spelling in zip(rows, spellings, strict=True):
        framed = bytes((WORD_START, *spelling[:LONGEST_SPELLING], WORD_END))
        row[: len(framed)] = np.frombuffer(framed, dtype=np.uint8)
    return torch.from_numpy(rows)


def read_spelling(row: Tensor) -> bytes:
    """The spelling in a row of `spell_words`."""
    framed = bytes(row.tolist()).rstrip(bytes((NO_BYTE,)))
    return framed[1:-1]


def spell_vocabulary(vocabulary: Vocabulary) -> Tensor:
    """The spelling of every number of a vocabulary."""
    special = [SPELLINGS[number] for number in range(SPECIAL)]
    return spell_words([*special, *(word.encode() for word in vocabulary.known)])


class NextWord(nn.Module):
    """A batch holds `words` [n, T], numbers of a vocabulary padded with PADDING, and `length` [n], at least 1: the
    words that are predicted, each from those before it. With a lexicon, `own` [n, T] has the place in it of each word
    that the vocabulary does not have, or NOTHING.

    The output [n, T, 3] has the loss of each word and, without gradients, its rank among all words that can be
    suggested, from 0, or NO_RANK for a word that cannot, and the number of its letters that suggestions save; with
    gradients, 0."""

    chunk = 12  # clients that are trained at once

    spelling: Tensor

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        byte_dim: int = 100,
        cells: int = 200,
        layers: int = 2,
        lexicon: bool = False,
        memory: Memory = "none",
        prior: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.memory, self.known = memory, vocabulary.known
        self.register_buffer("spelling", spell_vocabulary(vocabulary), persistent=False)
        self.bytes = nn.Embedding(BYTES, byte_dim)
        self.convolution = nn.Conv1d(byte_dim, cells, KERNEL)
        self.lstm = nn.ModuleList(nn.LSTM(cells, cells, batch_first=True) for _ in range(layers))
        self.output = nn.Linear(cells, len(vocabulary))
        self.own = nn.ParameterDict()
        if lexicon:  # a new user has none
            self.own["lexicon"] = nn.Parameter(torch.zeros(0, SPELLED, dtype=torch.uint8), requires_grad=False)
            self.own["counts"] = nn.Parameter(torch.zeros(0, dtype=torch.int64), requires_grad=False)
            self.own["unknowns"] = nn.Parameter(torch.zeros(1, dtype=torch.int64), requires_grad=False)
            self.own["hidden"] = nn.Parameter(torch.zeros(0, dtype=torch.int64), requires_grad=False)
            self.own["adapter"] = nn.Parameter(torch.zeros(0))
            self.own["start"] = nn.Parameter(torch.tensor([FROM_UNKNOWN]), requires_grad=False)
        if memory != "none":
            self.own["typed"] = nn.Parameter(torch.zeros(0, 0, dtype=torch.int64), requires_grad=False)
            self.own["memory"] = nn.Parameter(torch.zeros(2), requires_grad=False)  # weight, and order or scale
        if prior:
            self.adapter = nn.Parameter(new_adapter(prior, cells=cells, scale=PRIOR_SCALE))

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        states, logits, targets, losses = self.score(batch)
        if torch.is_grad_enabled():
            return without_ranks(losses)
        ranking = self.ranking(self.own.get("lexicon", None))
        if self.memory != "none" and len(self.own["typed"]):
            return self._remembered(states, logits, targets, ranking=ranking)
        ranks = ranking(logits.flatten(0, 1), targets.flatten()).unflatten(0, targets.shape)
        return torch.cat((losses[..., None], ranks), dim=-1)

    def score(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """States [n, T, H], scores [n, T, words], targets and losses [n, T]."""
        inputs, targets = shift(batch["words"].long(), batch["length"])
        states = self._read(inputs, batch["length"])
        logits = self.output(states)
        if "lexicon" in self.own and len(self.own["lexicon"]):
            logits = torch.cat((logits, self._own_scores(states)), dim=-1)
            targets = extend(targets, batch["own"], vocabulary=len(self.spelling))
        losses = functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=NOTHING, reduction="none"
        )
        return states, logits, targets, losses.view_as(targets)

    def ranking(self, lexicon: Tensor | None) -> Ranking:
        """Ranks the words of the vocabulary and of a lexicon [words, bytes]."""
        return _ranking_of(self.known, b"" if lexicon is None else lexicon.numpy(force=True).tobytes())

    def _own_scores(self, states: Tensor) -> Tensor:
        lexicon, hidden = self.own["lexicon"], self.own["hidden"].tolist()
        if hidden == UNSCORED:
            return states.new_full((*states.shape[:-1], len(lexicon)), LOWEST_SCORE)
        rows = adapt_words(
            self.embed(lexicon),
            own=self.own["adapter"],
            shared=getattr(self, "adapter", None),
            hidden=hidden,
            unknown=self.output.weight[UNKNOWN] if self.own["start"] == FROM_UNKNOWN else None,
        )
        if self.own["start"] == FROM_SPELLING:
            return states @ rows.T
        shares = log_shares(self.own["counts"], unknowns=self.own["unknowns"])
        return states @ rows.T + self.output.bias[UNKNOWN] + shares

    def _read(self, inputs: Tensor, length: Tensor) -> Tensor:
        """The output of the last LSTM layer [n, T, H] for texts [n, T] as numbers of the vocabulary."""
        states = self.embed(self.spelling[inputs])
        for layer in self.lstm:
            packed = pack_padded_sequence(states, length.cpu(), batch_first=True, enforce_sorted=False)
            states = pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=inputs.shape[1])[0]
        return states

    def _remembered(self, states: Tensor, logits: Tensor, targets: Tensor, *, ranking: Ranking) -> Tensor:
        """The output if the user's texts have a say."""
        typed, (weight, scale), words = self.own["typed"], self.own["memory"], logits.shape[-1]
        keys = after = torch.zeros(0)
        if self.memory == "neighbours":
            known = typed.masked_fill(typed >= len(self.spelling), UNKNOWN)
            inputs, _ = shift(known, length := (typed != PADDING).sum(dim=1).clamp(min=1))
            real = typed >= SPECIAL
            keys, after = self._read(inputs, length)[real], typed[real]
        found = []
        contexts = contexts_of(targets.clamp(min=PADDING)).flatten(0, 1)
        rows = zip(
            contexts.split(BLOCK), *(one.flatten(0, 1).split(BLOCK) for one in (states, logits, targets)), strict=True
        )
        for context, state, logit, target in rows:
            if self.memory == "cache":
                opinion = cache_probabilities(typed, context, order=int(scale), words=words)
            else:
                opinion = neighbour_probabilities(keys, after, state, scale=float(scale), words=words)
            found.append(remembered(logit, target, opinion, weight=weight, ranking=ranking))
        return torch.cat(found).unflatten(0, targets.shape)

    def embed(self, spelling: Tensor) -> Tensor:
        """The embedding of each spelling [..., bytes]: the maximum of the convolution over the word's windows."""
        flat = spelling.flatten(0, -2)
        found = self.convolution(self.bytes(flat.int()).mT)
        inside = windows_inside(flat)
        return found.masked_fill(~inside[:, None], -torch.inf).amax(dim=2).tanh().unflatten(0, spelling.shape[:-1])

    def stacked(self, parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Losses [C, n, T] of C clients: the result of `forward` for each client with its own parameters."""
        if self.memory != "none" and not torch.is_grad_enabled() and parameters["own.typed"].shape[1]:
            one_by_one = (
                ({name: some[one] for name, some in tree.items()} for tree in (parameters, batch))
                for one in range(len(batch["length"]))
            )
            return torch.stack([functional_call(self, own, (data,)) for own, data in one_by_one])
        clients, rows = batch["length"].shape
        shared = all(value.stride(0) == 0 for value in parameters.values())
        if clients > 1 and not torch.is_grad_enabled() and shared:
            # All clients have the same weights: treat them as one client with all examples.
            merged = {name: batch[name].flatten(0, 1)[None] for name in ("words", "length", "own") if name in batch}
            merged_parameters = {name: one[:1] for name, one in parameters.items()}
            return self._losses(merged_parameters, merged).unflatten(1, (clients, rows))[0]
        return self._losses(parameters, batch)

    def _losses(self, parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        scored, steps = self.score_stacked(parameters, batch), batch["words"].shape[2]
        if torch.is_grad_enabled():
            return without_ranks(scored.layout.unpack(scored.losses, steps=steps))
        lexicon, (states, _) = parameters.get("own.lexicon"), scored.layers[-1]
        rankings = [self.ranking(None if lexicon is None else lexicon[client]) for client in range(len(states))]
        weight, bias = parameters["output.weight"], parameters["output.bias"]
        ranks = word_ranks(states, weight=weight, bias=bias, own=scored.own, targets=scored.targets, rankings=rankings)
        found = (scored.losses, *ranks.unbind(dim=-1))
        return torch.stack([scored.layout.unpack(one, steps=steps) for one in found], dim=-1)

    def score_stacked(self, parameters: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Scored:
        """Losses of C clients and what they are computed from, in packed positions."""
        words, layout = batch["words"].long(), pack(batch["length"])
        inputs, targets = shift(words, batch["length"])
        layers, values = [], embed_stacked(parameters, layout.pack(inputs), spelling=self.spelling)
        for number in range(len(self.lstm)):
            layer = f"lstm.{number}."
            values, cells = lstm_layer(
                values,
                weight_ih=parameters[layer + "weight_ih_l0"],
                weight_hh=parameters[layer + "weight_hh_l0"],
                bias=(parameters[layer + "bias_ih_l0"] + parameters[layer + "bias_hh_l0"])[:, None],
                sizes=layout.sizes,
            )
            layers.append((values, cells))
        weight, bias, own = parameters["output.weight"], parameters["output.bias"], None
        lexicon = parameters.get("own.lexicon")
        if lexicon is not None and lexicon.numel():
            own = rows_of_lexicon(parameters)
            targets = extend(targets, batch["own"], vocabulary=len(self.spelling))
        targets = layout.pack(targets).masked_fill(~layout.real, NOTHING)
        losses = word_losses(values, weight=weight, bias=bias, own=own, targets=targets)
        return Scored(layout, layers, own, targets, losses)


class Scored(NamedTuple):
    """Texts of C clients in packed positions."""

    layout: Packed
    layers: list[tuple[Tensor, Tensor]]  # outputs and cells [C, P, H] of each LSTM layer
    own: list[Tensor] | None  # rows of own words
    targets: Tensor  # [C, P]
    losses: Tensor  # [C, P]


def without_ranks(losses: Tensor) -> Tensor:
    return functional.pad(losses[..., None], (0, 2))


@lru_cache(maxsize=64)
def _ranking_of(known: tuple[str, ...], lexicon: bytes) -> Ranking:
    """Indexing a vocabulary takes longer than ranking a user's words."""
    spelled = torch.frombuffer(bytearray(lexicon), dtype=torch.uint8).view(-1, SPELLED) if lexicon else ()
    return Ranking((*known, *(read_spelling(row).decode() for row in spelled)), first=SPECIAL)


def extend(targets: Tensor, own: Tensor, *, vocabulary: int) -> Tensor:
    """Targets of which own words have the numbers after the vocabulary's."""
    return torch.where((own != NOTHING) & (targets != NOTHING), own + vocabulary, targets)


def places_in(lexicon: Tensor, spelling: Tensor) -> Tensor:
    """The place [..., n, T] of each spelling [..., n, T, bytes] in the lexicon [..., words, bytes], or NOTHING."""
    if lexicon.dim() > 2 and lexicon.stride(0) == spelling.stride(0) == 0:  # choices of one user
        return places_in(lexicon[0], spelling[0]).expand(len(lexicon), *spelling.shape[1:-1])
    if lexicon.dim() > 2:
        return torch.stack([places_in(*one) for one in zip(lexicon, spelling, strict=True)])
    found = torch.full(spelling.shape[:-1], NOTHING, dtype=torch.int64)
    spelled = spelling[..., 0] != NO_BYTE
    rows = torch.cat((lexicon, spelling[spelled]))
    if len(lexicon) and len(rows) > len(lexicon):
        number = torch.unique(rows, dim=0, return_inverse=True)[1]
        place = torch.full((len(rows),), NOTHING)
        place[number[: len(lexicon)]] = torch.arange(len(lexicon))
        found[spelled] = place[number[len(lexicon) :]]
    return found


def shift(words: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """What is read and what is predicted: `begin w1 w2` and `w1 w2 w3`, with NOTHING beyond `length` and for padding,
    which is all that a text without words has."""
    begin = torch.full_like(words[..., :1], BEGIN)
    steps = torch.arange(words.shape[-1], device=words.device)
    inputs = torch.cat((begin, words[..., :-1]), dim=-1)
    return inputs, words.masked_fill((steps >= length[..., None]) | (words == PADDING), NOTHING)


def windows_inside(spelling: Tensor) -> Tensor:
    """Whether each window of KERNEL bytes is within its word, [..., windows]; the first one always is."""
    inside = spelling[..., KERNEL - 1 :] != NO_BYTE
    first = torch.zeros_like(inside)
    first[..., 0] = True
    return inside | first


def embed_stacked(parameters: Mapping[str, Tensor], numbers: Tensor, *, spelling: Tensor) -> Tensor:
    """The embeddings [C, P, H] of the words with these numbers [C, P], by each client's own convolution. Each different
    word is computed once."""
    clients, height = len(numbers), len(spelling)
    offsets = torch.arange(clients, device=numbers.device)[:, None]
    different, place = torch.unique(numbers + offsets * height, return_inverse=True)
    spelled = spelling[different % height]
    longest = max(int((spelled != NO_BYTE).sum(dim=1).max()), KERNEL)
    rows = _convolve(parameters, spelled[:, :longest], owner=different // height)
    return functional.embedding(place, rows)


def rows_of_lexicon(parameters: Mapping[str, Tensor]) -> list[Tensor]:
    """The rows [words, H + 1] of the output layer of each client's own words, with their bias in the last column. Their
    adapters have one shape and one start; lexicons [C, words, bytes] of different sizes are padded at the end."""
    lexicon, hidden = parameters["own.lexicon"], parameters["own.hidden"][0].tolist()
    real = lexicon[..., 0] != NO_BYTE
    if hidden == UNSCORED:
        none = parameters["output.weight"].new_zeros(*real.shape, parameters["output.weight"].shape[2] + 1)
        none[..., -1] = LOWEST_SCORE
        return [some[:words] for some, words in zip(none, real.sum(dim=1).tolist(), strict=True)]
    spelled = lexicon[real]
    longest = max(int((spelled != NO_BYTE).sum(dim=1).max()), KERNEL)
    found = _convolve(parameters, spelled[:, :longest], owner=real.nonzero()[:, 0])
    embedded = found.new_zeros(*real.shape, found.shape[1]).index_put((real,), found)
    own, shared = parameters["own.adapter"], parameters.get("adapter")
    if int(parameters["own.start"].flatten()[0]) == FROM_UNKNOWN:  # one for all
        unknown = parameters["output.weight"][:, UNKNOWN : UNKNOWN + 1]
        rows = adapt_words(embedded, own=own, shared=shared, hidden=hidden, unknown=unknown)
        shares = log_shares(parameters["own.counts"], unknowns=parameters["own.unknowns"], real=real)
        bias = parameters["output.bias"][:, UNKNOWN : UNKNOWN + 1] + shares
    else:
        rows = adapt_words(embedded, own=own, shared=shared, hidden=hidden, unknown=None)
        bias = rows.new_zeros(rows.shape[:2])
    found = torch.cat((rows, bias[..., None]), dim=-1)
    return [some[:words] for some, words in zip(found, real.sum(dim=1).tolist(), strict=True)]


def adapt_words(
    embedded: Tensor, *, own: Tensor, shared: Tensor | None, hidden: Sequence[int], unknown: Tensor | None
) -> Tensor:
    """The rows of own words, by the user's adapter or, if there is none with these hidden layers, by the shared one.
    They start from the row of the unknown word or, without one, from the embeddings. Through the shared adapter, own
    words do not train the convolution: they would move it more than all other words."""
    by_prior = shared is not None and not own.shape[-1] and bool(hidden)
    embedded = embedded.detach() if by_prior else embedded
    start = embedded if unknown is None else unknown
    return adapt(embedded, shared if shared is not None and by_prior else own, hidden=hidden, start=start)


def log_shares(counts: Tensor, *, unknowns: Tensor, real: Tensor | None = None) -> Tensor:
    """The logarithm of each own word's share of the unknown word's probability [..., words].

    By how often it was typed, with absolute discounting, among all `unknowns` [..., 1] that were typed, also those that
    are no own words. A word not typed yet counts as typed once. `real` tells words from padding; the sum is below 1."""
    counts = counts.clamp(min=1)
    typed = counts if real is None else counts * real
    total = torch.maximum(unknowns, typed.sum(dim=-1, keepdim=True)) + 1
    return ((counts - DISCOUNT) / total).log()


def _convolve(parameters: Mapping[str, Tensor], spelling: Tensor, *, owner: Tensor) -> Tensor:
    """The embedding [words, H] of each spelling [words, bytes] by the convolution of the client that owns it.

    A window's value is the sum of one row for each of its bytes, from a table [client, offset, byte] of all products of
    a byte's embedding with the kernel: there are far fewer bytes than windows.
    """
    used, place = torch.unique(spelling, return_inverse=True)
    table = torch.einsum("cbe,chek->ckbh", parameters["bytes.weight"][:, used.long()], parameters["convolution.weight"])
    inside = windows_inside(spelling)
    word, window = inside.nonzero(as_tuple=True)
    offset = torch.arange(KERNEL, device=spelling.device)
    row = (owner[word, None] * KERNEL + offset) * len(used) + place[word[:, None], window[:, None] + offset]
    values = functional.embedding_bag(row, table.flatten(0, 2), mode="sum")
    padded = values.new_full((*inside.shape, values.shape[1]), -torch.inf).index_put((word, window), values)
    return (padded.amax(dim=1) + parameters["convolution.bias"][owner]).tanh()
