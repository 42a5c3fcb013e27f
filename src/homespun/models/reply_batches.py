"""Prompts, replies and profiles as batches of a reply model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from homespun.models.reply_model import ReplyModel
from homespun.models.vocabulary import UNKNOWN, pad_rows


def encode_texts(prompts: Sequence[str | None], replies: Sequence[str], base: ReplyModel) -> dict[str, Tensor]:
    """Prompts and replies as word numbers, cut at the model's length. A text without words is one unknown word."""
    length = base.sizes.length
    asked = [base.vocabulary.encode(prompt or "") or [UNKNOWN] for prompt in prompts]
    said = [base.vocabulary.encode(text) or [UNKNOWN] for text in replies]
    return {
        "question": _padded(asked, length),
        "question_length": torch.tensor([min(len(one), length) for one in asked], dtype=torch.int64),
        "reply": _padded(said, length),
        # The end of a reply is predicted too, unless it is cut.
        "length": torch.tensor([len(one) + 1 if len(one) <= length else length for one in said], dtype=torch.int64),
    }


def profile_rows(numbers: np.ndarray | None, sizes: tuple[int, ...], *, examples: int) -> Tensor:
    """The rows [examples, columns] of `profile.table` for values with these numbers. `sizes` is how many values each
    column has: the rows of the first column come first. The first row of a column is for unknown, as is None."""
    known = np.zeros((examples, len(sizes)), dtype=np.int64) if numbers is None else numbers
    return torch.as_tensor(known + np.cumsum((0, *sizes[:-1])), dtype=torch.int64)


def _padded(rows: list[list[int]], length: int) -> Tensor:
    return torch.tensor(pad_rows(rows, length=length), dtype=torch.int32).view(-1, length)
