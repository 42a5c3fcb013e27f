"""The two kinds of models that write replies: FedNLG's, word by word, and a language model with a learned prefix.

A `Writer` gives a replier (personalization/replies.py) what differs between them: how a prompt is read, the decoder,
and the persona of a user, which for a language model is the prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol
from unicodedata import category

import numpy as np
import torch
from torch import Tensor

from homespun.core.errors import InputError
from homespun.core.tree import Tree
from homespun.core.words import words
from homespun.data.federation import Examples
from homespun.decoding.guided import ReplyingDecoder
from homespun.models.prefix_decoder import PrefixDecoder
from homespun.models.pretrained import Pretrained, load_pretrained
from homespun.models.reply_decoder import ReplyDecoder
from homespun.models.reply_model import ReplyModel
from homespun.models.seq2seq import join_profile
from homespun.models.vocabulary import UNKNOWN, Vocabulary
from homespun.personalization.generation import find_context, with_parameters
from homespun.personalization.profiles import Profile, assign_profile, profile_of
from homespun.runs.run import Run


@dataclass(frozen=True)
class ReadPrompt:
    """A prompt as the model reads it."""

    tokens: tuple[int, ...]
    unknown: int = 0  # words that the vocabulary does not have
    cut: int = 0  # words beyond the model's length, or tokens before it
    unit: str = "word"  # words are cut at the end, tokens at the start

    @property
    def notes(self) -> list[str]:
        read, found = len(self.tokens), []
        if self.cut:
            kept = f"after the first {read}" if self.unit == "word" else f"before the last {read}"
            found.append(f"{self.cut} {self.unit}{'' if self.cut == 1 else 's'} {kept} not read")
        if self.unknown:
            found.append(f"{self.unknown} of {read} words not known to the model")
        return found


class Writer(Protocol):
    """What a replier needs to know of the model that writes its replies."""

    @property
    def personal(self) -> frozenset[str]:
        """Private parameters that are part of the persona, not of the decoder."""

    @property
    def longest(self) -> int | None:
        """The maximum number of tokens of a reply. None: no limit of its own."""

    def decoder(self, private: Tree) -> ReplyingDecoder:
        """The decoder of a user with these private parameters."""

    def persona(self, user: str | None, private: Tree, profile: Profile | None = None) -> Tensor | None:
        """The persona of a user with these private parameters. Without a profile, it is the one that the run knows."""

    def neutral(self) -> Tensor | None:
        """The persona of nobody in particular, from which `persona_strength` moves away."""

    def read(self, prompt: str) -> ReadPrompt:
        """A prompt as tokens. Raises if there is nothing to read."""

    def read_any(self, prompt: str) -> ReadPrompt:
        """The same without raising."""

    def knows(self, prompt: str) -> bool:
        """Whether the model knows all words of a prompt."""

    def write(self, tokens: Sequence[int]) -> tuple[str, int]:
        """The text of these tokens, and its number of words."""


@dataclass(frozen=True, repr=False)
class WordWriter:
    """FedNLG's model."""

    run: Run
    base: ReplyModel

    personal: ClassVar[frozenset[str]] = frozenset({"persona.embedding"})
    longest: ClassVar[int | None] = None

    @property
    def vocabulary(self) -> Vocabulary:
        return self.base.vocabulary

    def decoder(self, private: Tree) -> ReplyDecoder:
        return ReplyDecoder(self.run.built.parameters(self.run.state.broadcast(), private), self.base.sizes.layers)

    def persona(self, user: str | None, private: Tree, profile: Profile | None = None) -> Tensor | None:
        behaviour = self._behaviour(user, private)
        table = self.decoder(private).parameters.get("profile.table")
        if behaviour is None or table is None:
            return behaviour
        known = profile_of(self.run, user) if profile is None else profile
        example = assign_profile(self.run, Examples([""], prompts=[""]), known)
        (rows,) = self.run.method.model.encode(example)["profile"]
        return join_profile(table[rows], behaviour)

    def _behaviour(self, user: str | None, private: Tree) -> Tensor | None:
        if "persona.embedding" in private:
            return private["persona.embedding"]
        table = self.run.state.broadcast().keyed.get("persona.table")
        if table is None:
            return None
        return table.mean(dim=0) if user is None else table[self.run.federation.users.index(user)]

    def neutral(self) -> Tensor | None:
        """Zero, the mean of new personas: a single new persona is random."""
        found = self.persona(None, self.run.clients.new_private("", self.run.state.broadcast()))
        return None if found is None else torch.zeros_like(found)

    def read(self, prompt: str) -> ReadPrompt:
        tokens, length = self.vocabulary.encode(prompt), self.base.sizes.length
        if not tokens:
            raise InputError("prompt: it has no word. Write something to reply to.")
        read = tuple(tokens[:length])
        if all(token == UNKNOWN for token in read):
            shown = ", ".join(words(prompt)[:5])
            raise InputError(f"prompt: the model knows none of its words ({shown}). Use more common words.")
        return ReadPrompt(read, sum(token == UNKNOWN for token in read), len(tokens) - len(read))

    def read_any(self, prompt: str) -> ReadPrompt:
        """A prompt without a known word is read as one unknown word."""
        return ReadPrompt(tuple((self.vocabulary.encode(prompt) or [UNKNOWN])[: self.base.sizes.length]))

    def knows(self, prompt: str) -> bool:
        return UNKNOWN not in self.vocabulary.encode(prompt)

    def write(self, tokens: Sequence[int]) -> tuple[str, int]:
        return self.vocabulary.decode(tokens), len(tokens)


@dataclass(frozen=True, repr=False)
class TokenWriter:
    """A language model with a learned prefix. Half of the method's length is for the prompt, half for the reply.

    `context` is a name or a part of it. Without one it is the only context, or the one that the user used most often in
    the training part.
    """

    run: Run
    base_model: str
    context: str | None = None

    personal: ClassVar[frozenset[str]] = frozenset({"personal.embedding", "prior.embedding", "context.table"})

    @cached_property
    def pretrained(self) -> Pretrained:
        return load_pretrained(self.base_model)

    @cached_property
    def separator(self) -> int:
        return self._encode("")[-1]

    @property
    def length(self) -> int:
        window = self.run.method.model.window
        assert window is not None
        return window.length

    @property
    def longest(self) -> int | None:
        return self.length // 2

    def decoder(self, private: Tree) -> PrefixDecoder:
        return PrefixDecoder(self._network(private).backbone, self.separator, self._banned)

    @cached_property
    def _banned(self) -> tuple[int, ...]:
        """Special tokens, numbers without a token, and tokens that contain the separator."""
        tokenizer, rows = self.pretrained.tokenizer, len(self.pretrained.embeddings)
        texts = tokenizer.batch_decode([[number] for number in range(len(tokenizer))])
        mark = texts[self.separator]
        containing = {number for number, text in enumerate(texts) if mark and mark in text}
        found = {*tokenizer.all_special_ids, *range(len(tokenizer), rows), *containing}
        return tuple(sorted(found - {self.separator}))

    def persona(self, user: str | None, private: Tree, profile: Profile | None = None) -> Tensor | None:
        """The prefix [vectors, width] of a user."""
        with torch.no_grad():
            prefix: Tensor = self._network(private).prefix(torch.tensor([self._context_of(user)]))[0]
        return prefix.detach().clone()

    def neutral(self) -> Tensor | None:
        """A new user's prefix: a prefix of zeros is no text that the model knows."""
        return self.persona(None, {})

    def _network(self, private: Tree) -> Any:
        run, broadcast = self.run, self.run.state.broadcast()
        private = {**run.clients.new_private("", broadcast), **private}
        return with_parameters(run.built.model, run.built.parameters(broadcast, private))

    def _context_of(self, user: str | None) -> int:
        run = self.run
        users, names = run.federation.users, run.federation.contexts
        if self.context is None and len(names) > 1 and user is not None and user in users:
            contexts = run.clients.split(run.federation, users.index(user)).train.contexts
            return int(np.bincount(np.asarray(contexts, dtype=np.int64)).argmax())
        return find_context(run, self.context) or 0

    def _encode(self, prompt: str) -> list[int]:
        """The tokens of a prompt and of the separator, as the method encodes them."""
        data = self.run.method.model.encode(Examples([""], prompts=[prompt]))
        return [int(token) for token in data["question"][0, : int(data["question_length"][0])]]

    def read(self, prompt: str) -> ReadPrompt:
        if not words(prompt):
            raise InputError("prompt: it has no word. Write something to reply to.")
        return self.read_any(prompt)

    def read_any(self, prompt: str) -> ReadPrompt:
        whole = self.pretrained.tokenizer(prompt, add_special_tokens=False)["input_ids"] if prompt else []
        room = self.length - 1 - self.length // 2
        read = tuple(self._encode(prompt)[:-1][-room:])
        return ReadPrompt(read, cut=len(whole) - len(read), unit="token")

    def knows(self, prompt: str) -> bool:
        return True

    def write(self, tokens: Sequence[int]) -> tuple[str, int]:
        decoded = self.pretrained.tokenizer.decode(list(tokens), skip_special_tokens=True)
        # without an incomplete character at the end, and without control characters
        text = "".join(sign for sign in decoded.rstrip("\ufffd") if category(sign) != "Cc").strip()
        return text, len(words(text))
