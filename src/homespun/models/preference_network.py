"""Predicts whether a user likes an image: FedEmbed's network (Silva et al., 2022, figure 2 and appendix B).

    image, diag(e) -> encoder -> features ++ e -> the assigned head      liked or not, for this sub-population
                                               -> the kinds head        the kind of the image
                                               -> the common head       liked or not, for all users

The common head gives all personal embeddings a common space. Users disagree, so its gradient must not reach the
encoder's weights (section 3.2): it reaches only the embedding, through the encoder, and the head itself.

There are no activation functions, as the appendix lists none; only the layer norms are not linear.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from homespun.core.errors import MethodError
from homespun.core.tree import Tree
from homespun.models.digit_encoder import diagonal, encode_digits
from homespun.models.speech_encoder import encode_speech
from homespun.models.stacked_layers import Geometry, conv, geometry, linear, stacked_sequential, weights_are_shared

CLASSES = 2  # not liked, liked
DIGIT = (28, 28)
FEATURES = {DIGIT: 64, (200, 375): 256}  # of the encoder, by image size


def digit_encoder(channels: int) -> nn.Sequential:
    """Appendix B.1."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, stride=2, padding=1),
        nn.LayerNorm([16, 14, 14]),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.LayerNorm([32, 7, 7]),
        nn.Conv2d(32, 64, 7),
        nn.LayerNorm([64, 1, 1]),
    )


def speech_encoder(channels: int) -> nn.Sequential:
    """Appendix B.2. Without padding, the input of the first layer norm would be [16, 49, 41] and not fit."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, (3, 5), stride=(2, 3), padding=(1, 0)),
        nn.AvgPool2d((2, 3)),
        nn.LayerNorm([16, 50, 41]),
        nn.Conv2d(16, 32, (5, 5), stride=(2, 2)),
        nn.AvgPool2d(3, 3),
        nn.LayerNorm([32, 7, 6]),
        nn.Conv2d(32, 64, (3, 2), stride=(2, 2)),
        nn.LayerNorm([64, 3, 3]),
        nn.Flatten(1),
        nn.Linear(576, 256),
        nn.LayerNorm([256]),
    )


class PreferenceNetwork(nn.Module):
    """A batch holds `image` [n, height, width] as bytes and, with several heads, `head` [n].

    The output is [n, 2 + kinds + 2]: the logits of the assigned head and, if present, of the kinds head and the common
    head. `embedding` is the size of the personal embedding, 0 for none; `heads` is the number of assignable heads, None
    for a single head. `places` are parameters that no logit depends on: the positions of sub-populations.
    """

    takes_shared_weights = True

    def __init__(
        self,
        *,
        size: tuple[int, int],
        embedding: int,
        heads: int | None,
        kinds: int = 0,
        common: bool = False,
        places: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._kept: tuple[Tensor, list[Any], list[Tensor], tuple[Tensor, Tensor]] | None = None
        if size not in FEATURES:
            known = " or ".join(f"{height} x {width}" for height, width in FEATURES)
            raise MethodError(f"images must be {known}, not {size[0]} x {size[1]}")
        self.size = size
        # Clients per chunk; measured, see docs/decisions/0006-preferences.md.
        self.chunk = 50 if size == DIGIT else 5
        channels = 1 if embedding == 0 else 2
        self.encoder = digit_encoder(channels) if size == DIGIT else speech_encoder(channels)
        if embedding:
            self.user = nn.ParameterDict({"embedding": torch.rand(embedding)})
        inputs = FEATURES[size] + embedding
        first = nn.Linear(inputs, CLASSES)
        if heads is None:
            self.head = first
        else:
            each = [first, *(nn.Linear(inputs, CLASSES) for _ in range(heads - 1))]
            self.heads = nn.ParameterDict(
                {
                    "weight": torch.stack([head.weight.detach() for head in each]),
                    "bias": torch.stack([head.bias.detach() for head in each]),
                }
            )
        if kinds:
            self.kinds = nn.Linear(inputs, kinds)
        if common:
            self.common = nn.Linear(inputs, CLASSES)
        if places:
            self.places = nn.ParameterDict(dict(places))

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        features = self._features(batch["image"], dict(self.encoder.named_parameters()))
        if hasattr(self, "heads"):
            weight, bias = self.heads["weight"][batch["head"]], self.heads["bias"][batch["head"]]
            logits = [(weight @ features[..., None])[..., 0] + bias]
        else:
            logits = [self.head(features)]
        if hasattr(self, "kinds"):
            logits.append(self.kinds(features))
        if hasattr(self, "common"):
            if any(value.requires_grad for value in self.encoder.parameters()):
                encoder = {name: value.detach() for name, value in self.encoder.named_parameters()}
                features = self._features(batch["image"], encoder)
            logits.append(self.common(features))
        return torch.cat(logits, dim=-1)

    def _features(self, image: Tensor, encoder: Mapping[str, Tensor]) -> Tensor:
        pixels = image[:, None].float() / 255
        if not hasattr(self, "user"):
            return functional_call(self.encoder, dict(encoder), (pixels,)).flatten(1)
        embedding = self.user["embedding"]
        second = diagonal(embedding, pixels.shape[2:]).expand_as(pixels)
        features = functional_call(self.encoder, dict(encoder), (torch.cat([pixels, second], dim=1),)).flatten(1)
        return torch.cat([features, embedding.expand(len(features), -1)], dim=1)

    def stacked(self, parameters: Tree, batch: Mapping[str, Tensor]) -> Tensor:
        """The same for C clients: every batch column is [C, n, ...]. Parameters without a client axis are shared by all
        clients; the embedding always has one."""
        encoder = {name: parameters[f"encoder.{name}"] for name, _ in self.encoder.named_parameters()}
        features, for_common = self._kept_features(parameters, batch["image"], encoder)
        if hasattr(self, "heads"):
            # Compute all heads and pick one: separate products per row would take longer.
            weight, bias = parameters["heads.weight"].flatten(-3, -2), parameters["heads.bias"].flatten(-2)
            every = linear(features, weight, bias).unflatten(-1, (-1, CLASSES))
            chosen = batch["head"].long()[..., None, None].expand(*features.shape[:2], 1, CLASSES)
            logits = [every.gather(2, chosen)[:, :, 0]]
        else:
            logits = [linear(features, parameters["head.weight"], parameters["head.bias"])]
        if hasattr(self, "kinds"):
            logits.append(linear(features, parameters["kinds.weight"], parameters["kinds.bias"]))
        if hasattr(self, "common"):
            logits.append(linear(for_common, parameters["common.weight"], parameters["common.bias"]))
        return torch.cat(logits, dim=-1)

    def _kept_features(self, parameters: Tree, image: Tensor, encoder: Tree) -> tuple[Tensor, Tensor]:
        """Cached features, for when only a head is trained step after step on the same images.

        The inputs are kept alive, so that no other tensor can reuse their memory addresses.
        """
        known = [*encoder.values(), *([parameters["user.embedding"]] if hasattr(self, "user") else [])]
        if any(value.requires_grad for value in known):
            return self._stacked_features(parameters, image, encoder)
        state = [(value.data_ptr(), value._version, value.shape, value.stride()) for value in known]
        if self._kept is None or self._kept[0] is not image or self._kept[1] != state:
            self._kept = image, state, known, self._stacked_features(parameters, image, encoder)
        return self._kept[3]

    def _stacked_features(self, parameters: Tree, image: Tensor, encoder: Tree) -> tuple[Tensor, Tensor]:
        """Features, and a second copy for the common head if the encoder is trained."""
        twice = hasattr(self, "common") and any(value.requires_grad for value in encoder.values())
        in_bytes = self.size == DIGIT or image.dtype == torch.uint8  # the speech kernel sums spectrograms as integers
        if weights_are_shared(encoder, self.encoder) and in_bytes:
            embedding = parameters["user.embedding"] if hasattr(self, "user") else None
            if self.size == DIGIT:
                found = encode_digits(encoder, image, embedding=embedding, for_common=twice)
            else:
                found = encode_speech(self.encoder, encoder, image, embedding=embedding, for_common=twice)
            if embedding is None:
                return found
            beside = embedding[:, None].expand(-1, image.shape[1], -1)
            features = torch.cat([found[0], beside], dim=2)
            return features, torch.cat([found[1], beside], dim=2) if twice else features
        of_pixels = self._of_pixels(image, encoder)
        features = self._layer_by_layer(parameters, of_pixels, encoder)
        if not twice:
            return features, features
        fixed = {name: value.detach() for name, value in encoder.items()}
        return features, self._layer_by_layer(parameters, of_pixels.detach(), fixed)

    def _of_pixels(self, image: Tensor, encoder: Tree) -> Tensor:
        """The first layer on the pixel channel only. A convolution is a sum over input channels, and the second channel
        is the same for all rows of a client."""
        weight, bias = encoder["0.weight"], encoder["0.bias"]
        first = weight.narrow(weight.dim() - 3, 0, 1)
        return conv(image[..., None], first, bias, self._first._replace(unit=255.0))

    def _layer_by_layer(self, parameters: Tree, first: Tensor, encoder: Tree) -> Tensor:
        """All layers, given the first layer's output on the pixel channel."""
        if not hasattr(self, "user"):
            return stacked_sequential(self.encoder, encoder, first, after=1).flatten(2)
        embedding, weight = parameters["user.embedding"], encoder["0.weight"]
        second = diagonal(embedding, self.size)[:, None, ..., None]
        own = weight.narrow(weight.dim() - 3, 1, 1)
        of_embedding = conv(second, own, None, self._first)
        features = stacked_sequential(self.encoder, encoder, first + of_embedding, after=1).flatten(2)
        return torch.cat([features, embedding[:, None].expand(-1, features.shape[1], -1)], dim=2)

    @property
    def _first(self) -> Geometry:
        return geometry(self.encoder[0], self.encoder[1])
