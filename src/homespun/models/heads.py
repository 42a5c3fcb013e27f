"""Output heads over a frozen language model: [start ++ utterance] -> the loss of every token.

A batch holds `tokens` [n, L], `length` [n] and, where it matters, `context` [n]; the output is [n, L], as in
`models/prefix_language.py`. Two optimizations: the backbone is frozen, so the features of an utterance are computed
once and cached; and heads see only real tokens, all of a batch as one matrix [T, width] without padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from homespun.core import settings as core_settings
from homespun.core.errors import InputError
from homespun.core.server import FedAdam, FedAvg, RowDenominator, ServerName, rule_from_settings
from homespun.core.settings import Paper
from homespun.models.pretrained import BaseName, Pretrained
from homespun.models.token_batches import UtteranceLength

# Batches have a fixed shape, so that the bits of an utterance's features do not depend on the rest of its batch.
# Whether features come from the cache then does not affect any result.
GROUP, STRIDE = 4, 8  # utterances per batch; their padded length is a multiple of STRIDE
MEMO_BYTES = 2**30  # of cached features per process: a million tokens at width 256
# Most words have almost no probability at most positions, so most of a head's gradient is rounding error. With torch's
# default of 1e-8, Adam would scale that up to full steps.
ADAM_EPSILON = 1e-6
ROWS = 128  # tokens whose logits are computed at a time: 4 MB with 8192 words


class HeadSettings(core_settings.Settings):
    """Settings shared by methods that train output heads. Names and values follow FedPerC."""

    added_later = ("start", "server_weight_decay", "server_bias_correction")

    base_model: Annotated[BaseName, Paper("DistilGPT2")] = "tiny"
    """The pre-trained language model: tiny, smollm2, a folder, or a name on the Hugging Face hub."""
    start: str = ""
    """Token before every text. Empty: the model's own BOS."""
    length: UtteranceLength = 64
    """Tokens of an utterance that are read; the rest is truncated."""

    # Local training (appendix B)
    local_steps: Annotated[PositiveInt, Paper(10)] = 10
    """Gradient steps that a client takes in a round."""
    batch: Annotated[PositiveInt, Paper(15)] = 15
    """Utterances in a local batch."""
    lr: Annotated[NonNegativeFloat, Paper(0.001)] = 1e-3
    """Learning rate of local Adam, for the shared head or heads."""
    mu: Annotated[NonNegativeFloat, Paper(1.0)] = 1.0
    """FedProx's mu, on the shared parameters."""

    # The server
    server: Annotated[ServerName, Paper("fedadam")] = "fedavg"
    """How the server applies the averaged update."""
    server_lr: Annotated[NonNegativeFloat | None, Paper(1)] = None
    """Learning rate of the server. Not set: 1 for fedavg, 0.01 for fedadam."""
    server_weight_decay: NonNegativeFloat = 0.0
    """Weight decay of fedadam, subtracted from the averaged update. The published FedAdam has none."""
    server_bias_correction: bool = False
    """Whether fedadam corrects its moments for their start at zero. The published FedAdam does not."""
    row_denominator: Annotated[RowDenominator, Paper("cohort")] = "cohort"
    """A context's update is averaged over the whole cohort, or over the clients with examples in that context."""

    # Personalization after training
    personalize_steps: Annotated[PositiveInt, Paper(15)] = 15
    """Gradient steps of a client in personalization, after training."""
    personalize_lr_factor: NonNegativeFloat = 1.0
    """Factor on the learning rates in personalization."""

    def rule(self) -> FedAvg | FedAdam:
        return rule_from_settings(self, row_denominator=self.row_denominator)


class SharedHead(nn.Module):
    """One head shared by all users: Meta-Learning."""

    def __init__(self, pretrained: Pretrained, *, start: str = "") -> None:
        super().__init__()
        require_plain_head(pretrained)
        self.backbone = pretrained.model.base_model
        self.reader = FeatureReader(pretrained.start(start), pretrained.positions)
        self.head = nn.ParameterDict({"weight": output_head(pretrained)})

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        read = self.reader.read(self.backbone, batch)
        return read.spread(token_losses(read.hidden, self.head["weight"], targets=read.targets))


class SplitHeads(nn.Module):
    """A private head and one head per context, with averaged logits: Split-Learning."""

    def __init__(self, pretrained: Pretrained, *, contexts: int, start: str = "") -> None:
        super().__init__()
        require_plain_head(pretrained)
        self.backbone = pretrained.model.base_model
        self.reader = FeatureReader(pretrained.start(start), pretrained.positions)
        head = output_head(pretrained)
        self.personal = nn.ParameterDict({"head": head})
        self.context = nn.ParameterDict({"heads": head.expand(contexts, -1, -1)})

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        read = self.reader.read(self.backbone, batch)
        context = batch["context"].long().repeat_interleave(batch["length"])  # of every token
        losses, places = [], []
        for one in context.unique().tolist():
            rows = (context == one).nonzero()[:, 0]
            # Averaging logits is averaging heads: h A' / 2 + h B' / 2 = h ((A + B) / 2)'. One product instead of two.
            head = (self.personal["head"] + self.context["heads"][one]) / 2
            losses.append(token_losses(read.hidden[rows], head, targets=read.targets[rows]))
            places.append(rows)
        return read.spread(torch.cat(losses)[torch.cat(places).argsort()] if losses else read.hidden[:, 0])


def output_head(pretrained: Pretrained) -> Tensor:
    """A copy of the pre-trained head [vocabulary, width], no longer tied to the word embeddings."""
    return pretrained.model.get_output_embeddings().weight.detach().clone()


def require_plain_head(pretrained: Pretrained) -> None:
    """Raise unless the logits are the product of the last hidden state and the output head."""
    model, first = pretrained.model, torch.tensor([[pretrained.bos]])
    with torch.no_grad():
        expected = model(input_ids=first).logits
        found = model.base_model(input_ids=first).last_hidden_state @ model.get_output_embeddings().weight.T
    if not torch.allclose(found, expected, rtol=1e-3, atol=1e-3):
        raise InputError(
            f"base model {pretrained.name!r}: its logits are not just its last hidden state times its output head "
            "(there is a bias, a scale or a cap), so the head cannot be replaced. Use another base model."
        )


@dataclass(frozen=True)
class TokenFeatures:
    """The real tokens of a batch as one row, without padding."""

    hidden: Tensor  # [T, width]: last hidden state before each token
    targets: Tensor  # [T]: the token
    real: Tensor  # [n, L]: mask of real tokens in the batch

    def spread(self, losses: Tensor) -> Tensor:
        """Losses [T] -> [n, L], zero at padding."""
        return losses.new_zeros(self.real.shape).masked_scatter(self.real, losses)


@dataclass
class FeatureReader:
    """Computes and caches the features of utterances. Every call must pass the same frozen backbone.

    When the cache is full, nothing is evicted and other features are recomputed every time: examples come in cycles, so
    evicting the oldest would drop exactly the ones needed next.
    """

    start: int  # the token before every text
    positions: int
    limit_bytes: int = MEMO_BYTES
    kept: dict[bytes, Tensor] = field(default_factory=dict)
    kept_bytes: int = 0

    def __deepcopy__(self, _: Any) -> FeatureReader:
        """A copy has an empty cache: it is made for a backbone on another device."""
        return FeatureReader(self.start, self.positions, self.limit_bytes)

    def read(self, backbone: Any, batch: Mapping[str, Tensor]) -> TokenFeatures:
        tokens, length = batch["tokens"], batch["length"]
        real = torch.arange(tokens.shape[1], device=tokens.device) < length[:, None]
        texts = [row[:count] for row, count in zip(tokens.cpu().numpy(), length.tolist(), strict=True)]
        keys = [text.tobytes() for text in texts]
        unseen = {key: torch.from_numpy(text) for key, text in zip(keys, texts, strict=True) if key not in self.kept}
        new = dict(zip(unseen, self._features(backbone, list(unseen.values()), tokens.device), strict=True))
        self._keep(new)
        hidden = [new[key] if key in new else self.kept[key] for key in keys]
        width = backbone.get_input_embeddings().weight.shape[1]
        none = torch.zeros(0, width, device=tokens.device)
        return TokenFeatures(torch.cat(hidden) if hidden else none, tokens[real].long(), real)

    def _keep(self, features: Mapping[bytes, Tensor]) -> None:
        for key, hidden in features.items():
            size = hidden.nbytes + len(key)
            if self.kept_bytes + size <= self.limit_bytes:
                self.kept[key] = hidden
                self.kept_bytes += size

    def _features(self, backbone: Any, texts: Sequence[Tensor], device: torch.device) -> list[Tensor]:
        """The last hidden states [length, width] of [start ++ all but the last token], for each text."""
        found: dict[int, Tensor] = {}
        room = [min(-(-len(text) // STRIDE) * STRIDE, self.positions) for text in texts]
        for longest in sorted(set(room)):
            places = [place for place, size in enumerate(room) if size == longest]
            for start in range(0, len(places), GROUP):
                some = places[start : start + GROUP]
                inputs = torch.zeros(GROUP, longest, dtype=torch.int64)
                inputs[:, 0] = self.start
                for row, place in enumerate(some):
                    inputs[row, 1 : len(texts[place])] = texts[place][:-1]
                # No mask is needed: in a causal model padding at the end does not affect the states before it.
                with torch.no_grad():
                    states = backbone(input_ids=inputs.to(device), use_cache=False).last_hidden_state
                found |= {place: states[row, : len(texts[place])].clone() for row, place in enumerate(some)}
        return [found[place] for place in range(len(texts))]


def token_losses(hidden: Tensor, head: Tensor, *, targets: Tensor) -> Tensor:
    """-log softmax(hidden head')[target] [T], with gradients for the head only."""
    losses: Tensor = _TokenLosses.apply(hidden, head, targets)
    return losses


class _TokenLosses(torch.autograd.Function):
    """Cross-entropy over a head, a few rows at a time, so that logits stay in the CPU cache and evaluation never holds
    those of all tokens. Training keeps each row's probabilities for the backward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
        trains = ctx.needs_input_grad[1]
        losses, kept = hidden.new_empty(len(hidden)), []
        for rows in _blocks(len(hidden)):
            scores = hidden[rows] @ head.T
            scores.sub_(scores.amax(dim=1, keepdim=True))
            picked = scores.gather(1, targets[rows, None])
            scores.exp_()
            total = scores.sum(dim=1, keepdim=True)
            losses[rows] = (total.log() - picked)[:, 0]
            if trains:
                kept.append(scores.div_(total))
        ctx.save_for_backward(hidden, targets, *kept)
        return losses

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[None, Tensor | None, None]:
        # d loss / d head = (p - [target])' hidden
        hidden, targets, *kept = ctx.saved_tensors
        gradient: Tensor | None = None
        for rows, probabilities in zip(_blocks(len(hidden)), kept, strict=True):
            outer = upstream[0][rows, None]
            scores = (probabilities * outer).scatter_add_(1, targets[rows, None], -outer)
            if gradient is None:
                gradient = scores.T @ hidden[rows]
            else:
                gradient.addmm_(scores.T, hidden[rows])
        return None, gradient, None


def _blocks(count: int) -> list[slice]:
    return [slice(start, start + ROWS) for start in range(0, count, ROWS)]
