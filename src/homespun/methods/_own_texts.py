"""What OOV Expansion keeps of a user's texts at home: a lexicon of own words and, as a control, a memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from homespun.core.method import Batch, Loss, Predict
from homespun.core.tree import Tree
from homespun.models.next_word import LONGEST_SPELLING, NO_BYTE, SPELLED, UNSCORED, extend, places_in
from homespun.models.vocabulary import UNKNOWN
from homespun.models.word_adapter import adapter_size
from homespun.models.word_batches import frequent_own_words
from homespun.models.word_memory import Memory

# What is tried of a memory: its weight, and the order of a cache or the scale of neighbours' distances
WEIGHTS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7)
SCALES: dict[Memory, tuple[float, ...]] = {"cache": (1.0, 3.0), "neighbours": (0.1, 0.3, 1.0)}


def no_own_texts(*, lexicon: bool, memory: bool, prior: Sequence[int], start: int) -> dict[str, Tensor]:
    """The private parameters of a new user: no own words and no texts yet, and no adapter but the federated one."""
    no_numbers = torch.zeros(0, dtype=torch.int64)
    words = {"own.lexicon": torch.zeros(0, SPELLED, dtype=torch.uint8), "own.counts": no_numbers}
    words["own.unknowns"] = torch.zeros(1, dtype=torch.int64)
    hidden = torch.tensor(prior, dtype=torch.int64)
    adapter = {"own.hidden": hidden, "own.adapter": torch.zeros(0), "own.start": torch.tensor([start])}
    texts = {"own.typed": no_numbers[:, None], "own.memory": torch.zeros(2)}
    return {**(words | adapter if lexicon else {}), **(texts if memory else {})}


def fits(private: Tree, *, like: Tree, cells: int) -> bool:
    """Whether private parameters have the form of a new user's, and lexicon and adapter that of a trained one's."""
    if private.keys() != like.keys():
        return False
    if any(one.dtype != like[name].dtype or one.dim() != like[name].dim() for name, one in private.items()):
        return False
    if "own.lexicon" not in private:
        return True
    lexicon, hidden, adapter = (private[f"own.{name}"] for name in ("lexicon", "hidden", "adapter"))
    if (lexicon.shape[1], len(lexicon)) != (SPELLED, len(private["own.counts"])):
        return False
    if not torch.equal(private["own.start"], like["own.start"]) or private["own.unknowns"].shape != (1,):
        return False
    federated = not len(adapter) and torch.equal(hidden, like["own.hidden"])
    own = [] if hidden.tolist() == UNSCORED else hidden.tolist()
    if not federated and adapter_size(own, cells=cells) != len(adapter):
        return False
    try:
        return bool(lexicon.numpy(force=True).tobytes().decode() or not len(lexicon))
    except UnicodeDecodeError:
        return False


def own_places(parameters: Tree, batch: Batch) -> Tensor:
    """The place of each word in the user's lexicon."""
    return places_in(parameters["own.lexicon"], batch["spelling"])


def with_lexicon(parameters: Tree, spelled: Sequence[Tensor], *, at_most: int, at_least: int = 1) -> Tree:
    """The parameters with the words in these columns [..., bytes] that occur at least so often: the most frequent ones,
    after those that are in the lexicon already. Of too many, the rarest are left out, but none that was added by hand.
    """
    found, counts = frequent_own_words(spelled)
    known = parameters["own.lexicon"]
    place = places_in(found, known)
    new = (counts >= at_least).index_fill(0, place[place >= 0], False)
    counts_and_none = torch.cat((counts, counts.new_zeros(1)))  # a word that was added by hand has the place -1
    lexicon, typed = torch.cat((known, found[new])), torch.cat((counts_and_none[place], counts[new]))
    by_hand_first = torch.where(typed == 0, torch.iinfo(typed.dtype).max, typed)
    kept = torch.argsort(by_hand_first, descending=True, stable=True)[:at_most].sort().values
    unknowns = counts.sum()[None]
    return {**parameters, "own.lexicon": lexicon[kept], "own.counts": typed[kept], "own.unknowns": unknowns}


def counted_in(parameters: Tree, spelling: Tensor) -> Tree:
    """The parameters with the counts of own words in this column [..., bytes] alone."""
    found, counts = frequent_own_words([spelling])
    place = places_in(found, parameters["own.lexicon"])
    counts_and_none = torch.cat((counts, counts.new_zeros(1)))
    return {**parameters, "own.counts": counts_and_none[place], "own.unknowns": counts.sum()[None]}


def own_word_notices(parameters: Tree, texts: Batch) -> list[str]:
    """What a user should know about their lexicon."""
    if "own.lexicon" not in parameters or "spelling" not in texts:
        return []
    spelled = texts["spelling"][..., 0] != NO_BYTE
    known, different = len(parameters["own.lexicon"]), len(frequent_own_words([texts["spelling"]])[0])
    too_long = int(((texts["words"] == UNKNOWN) & ~spelled).sum())
    if not different:
        found = "none, the vocabulary has every word"
    elif not known:
        found = f"none of {different:,} was learned"
    else:
        found = f"the {known:,} most frequent of {different:,}" if known < different else f"{known:,}"
    left_out = f" Too long to be own words, with more than {LONGEST_SPELLING} bytes: {too_long:,}." if too_long else ""
    return [f"Own words: {found}.{left_out}"]


def with_memories(parameters: Tree, texts: Batch, *, kind: Memory) -> list[Tree]:
    """The parameters without a memory of these texts and, unless its kind is none, with every weight and scale."""
    if kind == "none":
        return [parameters]
    typed = texts["words"].long()
    if "own.lexicon" in parameters:
        typed = extend(typed, own_places(parameters, texts), vocabulary=len(parameters["output.bias"]))
    tried = product(WEIGHTS, SCALES[kind])
    return [parameters, *({**parameters, "own.typed": typed, "own.memory": torch.tensor(one)} for one in tried)]


# The federated adapter: own words in a round


def places_in_texts(texts: Batch, *, at_most: int) -> dict[str, Tensor]:
    """Columns [n, T]: the place of each own word among the most frequent ones of these texts, and how often they have
    it."""
    found, counts = frequent_own_words([texts["spelling"]])
    place = places_in(found[:at_most], texts["spelling"])
    return {"place": place, "times": torch.cat((counts[:at_most], counts.new_zeros(1)))[place]}


def lexicon_of_round(parameters: Tree, batch: Batch) -> Tensor:
    """The own words [..., n, words, bytes] of all texts of a client, the same for each text, so that every batch has
    all of them."""
    spelling, (rows, words) = batch["spelling"].flatten(-3, -2), _rows_of_round(parameters, batch)
    found = spelling.new_full((*rows.shape[:-1], words + 1, spelling.shape[-1]), NO_BYTE)
    found.scatter_(-2, rows[..., None].expand_as(spelling), spelling)
    return found[..., None, :words, :].expand(*batch["place"].shape[:-1], words, spelling.shape[-1])


def counts_of_round(parameters: Tree, batch: Batch) -> Tensor:
    """How often each of them occurs [..., n, words]."""
    rows, words = _rows_of_round(parameters, batch)
    found = rows.new_zeros(*rows.shape[:-1], words + 1).scatter_(-1, rows, batch["times"].flatten(-2))
    return found[..., None, :words].expand(*batch["place"].shape[:-1], words)


def _rows_of_round(parameters: Tree, batch: Batch) -> tuple[Tensor, int]:
    """The row of each position in the lexicon of a round, and how many words that has: the row of positions without an
    own word, which is dropped."""
    place = batch["place"].flatten(-2).long()
    words = int(place.max()) + 1 if place.numel() else 0
    return place.where((place >= 0) & (place < words), words), words


def loss_with_own_words(loss: Loss, *, hidden: Sequence[int]) -> Loss:
    """The loss if a client's own words, which no message has, are in the softmax. The shared adapter scores them."""

    def with_own_words(predict: Predict, parameters: Tree, batch: Batch) -> Tensor:
        lexicon = batch["lexicon"][..., 0, :, :]
        adapter = torch.tensor(hidden).expand(*lexicon.shape[:-2], len(hidden))
        own = {"own.lexicon": lexicon, "own.hidden": adapter, "own.counts": batch["counts"][..., 0, :]}
        return loss(predict, {**parameters, **own}, {**batch, "own": batch["place"]})

    return with_own_words
