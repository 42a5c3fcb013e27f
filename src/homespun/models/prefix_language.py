"""A causal language model with a learned prefix: [prefix ++ utterance] -> the loss of every token.

A batch holds `tokens` [n, L], `length` [n] and, where it matters, `context` [n]. The output is [n, L]: the
negative log-likelihood of every token given the prefix and the tokens before it, zero beyond a text's length. A batch
of replies (models/token_batches.py) is read as [prefix ++ question ++ reply]; the output is that of the replies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from homespun.models.frozen_gpt2 import FrozenGpt2, is_plain_gpt2, prefix_losses, prepare
from homespun.models.losses import can_pack, packed_losses, padded_losses
from homespun.models.token_batches import join_questions, select_replies

Prefix = Literal["personal x context", "context", "shared", "personal"]


class PrefixLanguageModel(nn.Module):
    """FedPerC's figure 2: a preference embedding, personal x context, before the words.

    The other kinds of prefix are baselines: context only, one prefix shared by all users, personal only. The prefix is
    initialized with the `start` embedding, so that before training this is the pre-trained model itself.

    `frozen_gpt2` computes the losses of a GPT-2, with the same results, whenever no weight of it needs a gradient:
    always if it is frozen, else in prediction, in personalization and while the prior is trained. Any other model runs
    its own code, with a whole batch packed into one row if that code supports it.
    """

    def __init__(
        self, backbone: nn.Module, *, start: Tensor, contexts: int, tokens: int, kind: Prefix, frozen: bool = True
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.is_gpt2 = is_plain_gpt2(backbone)
        self.frozen_gpt2 = prepare(backbone) if frozen and self.is_gpt2 else None
        self.losses = packed_losses if self.frozen_gpt2 is None and can_pack(backbone) else padded_losses
        self.kind = kind
        first = start.expand(tokens, -1)
        rows = {"context": contexts, "personal x context": contexts, "shared": 1, "personal": 0}[kind]
        if kind in ("personal x context", "personal"):
            self.personal = nn.ParameterDict({"embedding": torch.ones_like(first)})
            self.prior = nn.ParameterDict({"embedding": torch.ones_like(first)})
        if rows:
            self.context = nn.ParameterDict({"table": first.expand(rows, -1, -1).clone()})
        else:
            self.register_buffer("start", first.clone(), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """When the module moves to another device, the tensors that `frozen_gpt2` holds move too."""
        moved = super()._apply(fn, recurse)
        if self.frozen_gpt2 is not None:
            self.frozen_gpt2 = prepare(self.backbone)
        return moved

    def prefix(self, context: Tensor) -> Tensor:
        """The virtual tokens [n, tokens, width] for utterances of these contexts."""
        if self.kind == "personal":
            return (self.personal["embedding"] * self.start).expand(len(context), -1, -1)
        rows = self.context["table"][torch.zeros_like(context) if self.kind == "shared" else context]
        return rows * self.personal["embedding"] if self.kind == "personal x context" else rows

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        prefix = self.prefix(batch["context"].long())
        tokens, length, start = join_questions(batch)
        if (gpt2 := self._gpt2()) is not None:
            losses = prefix_losses(gpt2, prefix, tokens=tokens, lengths=length, starts=start)
        else:
            losses = self.losses(self.backbone, prefix, tokens=tokens, length=length, start=start)
        return select_replies(losses, batch)

    def _gpt2(self) -> FrozenGpt2 | None:
        """The current weights, or None if one of them needs a gradient."""
        if self.frozen_gpt2 is not None or not self.is_gpt2:
            return self.frozen_gpt2
        wanted = torch.is_grad_enabled() and any(weight.requires_grad for weight in self.backbone.parameters())
        return None if wanted else prepare(self.backbone)
