"""Encodes utterances, and replies with the questions before them, as batches of tokens.

A batch of utterances holds `tokens` [n, L] and `length` [n]. A batch of replies holds the same of the replies, and
`question` [n, Q] and `question_length` [n]: the tokens that are read before a reply and that no loss is computed of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from homespun.core.errors import SettingsError
from homespun.core.method import Batch, Window
from homespun.core.words import words
from homespun.models.pretrained import Pretrained

PROMPT = 3  # first tokens of an utterance, which are given; the others are scored
SHORTEST = PROMPT + 1  # an utterance needs at least one token to score
# Defaults of language runs. After training every user adapts to several numbers of samples, which takes seconds each
# time; with all users and all their utterances the final evaluation could take longer than the training.
EVALUATION_DEFAULTS = {"evaluate_users": 25, "evaluate_examples": 25}
UtteranceLength: TypeAlias = Annotated[int, Field(ge=SHORTEST)]


def encode(
    texts: Sequence[str], contexts: np.ndarray | None, pretrained: Pretrained, *, length: int, prefix: int
) -> Batch:
    """Encode utterances of at least four tokens, truncated to `length`; shorter ones are left out."""
    _require_positions(pretrained, length=length, prefix=prefix)
    ids = _tokens(texts, pretrained)
    kept = [row for row, some in enumerate(ids) if len(some) >= SHORTEST]
    tokens, sizes = _pad([ids[row][:length] for row in kept], shortest=SHORTEST)
    return {"tokens": tokens, "length": sizes, "context": _contexts(contexts, rows=len(texts))[kept]}


def encode_replies(
    prompts: Sequence[str | None],
    texts: Sequence[str],
    contexts: np.ndarray | None,
    pretrained: Pretrained,
    *,
    length: int,
    prefix: int,
    separator: int,
) -> Batch:
    """Encode replies and the questions before them. A row is read as

        question, separator, reply, separator

    and has at most `length` tokens: a long reply is cut at its end, and the question at its start, to leave room for
    the reply. The separator after a reply ends it and is scored, unless the reply is cut. `words` is the number of
    words that are scored, the end included: the unit of perplexities that do not depend on the tokenizer.
    """
    _require_positions(pretrained, length=length, prefix=prefix)
    questions, replies, counts = [], [], []
    asked, answered = _tokens([one or "" for one in prompts], pretrained), _tokens(texts, pretrained)
    for question, reply, text in zip(asked, answered, texts, strict=True):
        kept = [*reply, separator][: length - 1]
        is_whole = len(kept) > len(reply)
        room = length - 1 - len(kept)
        questions.append([*question[max(0, len(question) - room) :], separator])
        replies.append(kept)
        spoken = len(words(text if is_whole else pretrained.tokenizer.decode(kept)))
        counts.append(max(1, spoken) + int(is_whole))
    before, tokens = _pad(questions, shortest=1), _pad(replies, shortest=1)
    return {
        "question": before[0],
        "question_length": before[1],
        "tokens": tokens[0],
        "length": tokens[1],
        "words": torch.tensor(counts, dtype=torch.int64),
        "context": _contexts(contexts, rows=len(texts)),
    }


def _require_positions(pretrained: Pretrained, *, length: int, prefix: int) -> None:
    if length + prefix > pretrained.positions:
        raise SettingsError(
            f"length: {length} tokens and {prefix} before them exceed the {pretrained.positions} positions of "
            f"{pretrained.name}. Use at most {pretrained.positions - prefix}."
        )


def _pad(rows: Sequence[Sequence[int]], *, shortest: int) -> tuple[Tensor, Tensor]:
    """The rows as one tensor, padded with zeros, and their lengths."""
    tokens = np.zeros((len(rows), max(map(len, rows), default=shortest)), dtype=np.int32)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = row
    return torch.from_numpy(tokens), torch.tensor([len(row) for row in rows], dtype=torch.int64)


def _contexts(contexts: np.ndarray | None, *, rows: int) -> Tensor:
    return torch.from_numpy(np.asarray(np.zeros(rows) if contexts is None else contexts, dtype=np.int64))


class Sequences(NamedTuple):
    """Questions and replies end to end, as a language model reads them."""

    tokens: Tensor  # [n, W]
    length: Tensor  # [n]
    start: Tensor | None  # [n] the first token of the reply; None: no questions, all tokens are scored


def join_questions(batch: Mapping[str, Tensor]) -> Sequences:
    """The sequences of a batch. Without questions, they are the utterances."""
    tokens, length = batch["tokens"].long(), batch["length"]
    if "question" not in batch:
        return Sequences(tokens, length, None)
    question, start = batch["question"].long(), batch["question_length"]
    place = torch.arange(question.shape[1] + tokens.shape[1], device=tokens.device)
    of_question, of_reply = place < start[:, None], _reply_places(place, start, length)
    joined = tokens.new_zeros(len(tokens), len(place))
    joined = joined.masked_scatter(of_question, question[_real(question, start)])
    joined = joined.masked_scatter(of_reply, tokens[_real(tokens, length)])
    longest = int((start + length).max()) if len(length) else 0
    return Sequences(joined[:, :longest], start + length, start)


def select_replies(losses: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """The losses [n, L] of the replies, from those of the sequences [n, W]; zero beyond a reply's length."""
    if "question" not in batch:
        return losses
    tokens, length = batch["tokens"], batch["length"]
    place = torch.arange(losses.shape[1], device=losses.device)
    found = losses[_reply_places(place, batch["question_length"], length)]
    return losses.new_zeros(tokens.shape).masked_scatter(_real(tokens, length), found)


def _reply_places(place: Tensor, start: Tensor, length: Tensor) -> Tensor:
    return (place >= start[:, None]) & (place < (start + length)[:, None])


def _real(tokens: Tensor, length: Tensor) -> Tensor:
    return torch.arange(tokens.shape[1], device=tokens.device) < length[:, None]


def token_window(pretrained: Pretrained, length: int, *, others: int = 0) -> Window:
    """The window of a method that reads at most `length` tokens, `others` of them before and after the text."""
    return Window(
        "length", length, unit="tokens", sizes=lambda texts: [len(some) + others for some in _tokens(texts, pretrained)]
    )


def _tokens(texts: Sequence[str], pretrained: Pretrained) -> list[list[int]]:
    return pretrained.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if len(texts) else []
