"""A causal language model behind a learned prefix: [prefix ++ utterance] -> the loss of every token.

A batch holds `tokens` [n, L], `length` [n] and, where it matters, `context` [n]. The output is [n, L]: the
negative log-likelihood of every token given the prefix and the tokens before it, zero beyond a text's length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from homespun.models.frozen_gpt2 import FrozenGpt2, is_plain_gpt2, prefix_losses, prepare
from homespun.models.packed import can_pack, packed_losses

Prefix = Literal["personal x context", "context", "shared", "personal"]
GROUP = 5  # utterances of about the same length that are read together: more are padded more


class PreferenceModel(nn.Module):
    """FedPerC's figure 2: the preference embedding, personal x context, before the words.

    The other kinds of prefix are what it is to be compared with: the context's alone, one that everybody
    shares, the person's alone. All start where the prefix is the `start` embedding, so that before any
    training this is the pre-trained model itself.

    A GPT-2 is read by `frozen_gpt2`, which gives the same numbers, wherever no weight of it wants a gradient: always,
    if it is frozen, else in prediction, at home and while the prior is trained. Everything else by its own code, in
    one row for a batch where that code can keep utterances apart.
    """

    def __init__(
        self, backbone: nn.Module, *, start: Tensor, contexts: int, tokens: int, kind: Prefix, frozen: bool = True
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.is_gpt2 = is_plain_gpt2(backbone)
        self.frozen_gpt2 = prepare(backbone) if frozen and self.is_gpt2 else None
        self.losses = packed_losses if self.frozen_gpt2 is None and can_pack(backbone) else token_losses
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

    def prefix(self, context: Tensor) -> Tensor:
        """The virtual tokens [n, tokens, width] before utterances of these contexts."""
        if self.kind == "personal":
            return (self.personal["embedding"] * self.start).expand(len(context), -1, -1)
        rows = self.context["table"][torch.zeros_like(context) if self.kind == "shared" else context]
        return rows * self.personal["embedding"] if self.kind == "personal x context" else rows

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        prefix = self.prefix(batch["context"].long())
        if (gpt2 := self._gpt2()) is not None:
            return prefix_losses(gpt2, prefix, tokens=batch["tokens"].long(), lengths=batch["length"])
        return self.losses(self.backbone, prefix, tokens=batch["tokens"], length=batch["length"])

    def _gpt2(self) -> FrozenGpt2 | None:
        """The weights as they are now, unless a gradient of theirs is wanted."""
        if self.frozen_gpt2 is not None or not self.is_gpt2:
            return self.frozen_gpt2
        wanted = torch.is_grad_enabled() and any(weight.requires_grad for weight in self.backbone.parameters())
        return None if wanted else prepare(self.backbone)


def token_losses(backbone: nn.Module, prefix: Tensor, *, tokens: Tensor, length: Tensor) -> Tensor:
    """-log p(token | prefix, tokens before it) [n, L]. Neighbours in length are read together, to pad little."""
    losses = []
    order = length.argsort(stable=True)
    for rows in order.split(GROUP):
        longest = max(int(length[rows].max()), 1)
        some = _losses(backbone, prefix[rows], tokens=tokens[rows, :longest].long(), length=length[rows])
        losses.append(functional.pad(some, (0, tokens.shape[1] - longest)))
    return torch.cat(losses)[order.argsort()] if losses else torch.zeros(tokens.shape)


def _losses(backbone: Any, prefix: Tensor, *, tokens: Tensor, length: Tensor) -> Tensor:
    real = torch.arange(tokens.shape[1]) < length[:, None]
    words = backbone.get_input_embeddings()(tokens)
    mask = torch.cat((real.new_ones(prefix.shape[:2]), real), dim=1)
    logits = backbone(inputs_embeds=torch.cat((prefix, words), dim=1), attention_mask=mask.long()).logits
    # the position before a token says what it expects there; the last one has nothing left to expect
    expected = logits[:, prefix.shape[1] - 1 : -1]
    losses = functional.cross_entropy(expected.flatten(0, 1), tokens.flatten(), reduction="none").view_as(tokens)
    return losses.masked_fill(~real, 0)
