"""The Gaussian mechanism on updates: clip each client's, add noise to the sum (central) or to each (local).

An update is clipped as one vector: all federated parameters and all keyed rows together. With several groups each is
clipped to its own norm C_g and has noise of standard deviation sigma_g. Divided by its sigma_g, each group moves by at
most C_g / sigma_g with one user, so that all of it is one Gaussian mechanism with noise multiplier z where
1 / z^2 = sum of (C_g / sigma_g)^2. The G groups of parameters have equal parts of this sum: sigma_g = z C_g sqrt(G).
Statistics, where they are sent, have a tenth of it and the parameters the rest, so that parameters have 5 % more noise
with statistics than without: a sum of two numbers stays readable with more noise than a model does.

Everybody weighs 1, and a central sum is divided by the cohort that is expected, not by the one that came: how many
came is somebody's secret too. For the same reason all rows of a keyed parameter get noise, touched or not.

Clipped updates are added in float64. The sum of n of them is off by at most n^2 2^-53 clip norms, with a user and
without, which is less than the part of a clip norm that `BELOW` leaves free while n is at most 60,000. A sum of float32
would be off by up to n^2 2^-24: by 5 % of a clip norm with 900 clients. Noise is added in float64 too, and what is
released lies on a grid that the noise decides (see `noise`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import hypot, inf, isfinite, sqrt

import torch
from torch import Tensor

from homespun.core.errors import SettingsError, raise_faults
from homespun.core.messages import Broadcast, Rows, Update
from homespun.core.roles import first_match
from homespun.privacy.noise import Normal, with_noise

# Clipped a little below the norm, so that rounding does not carry an update, or what it adds to a sum, above it.
BELOW = 1 - 1e-6
METRICS_SHARE = 0.1  # of 1 / z^2
BLOCK = 2**18  # numbers that are converted to float64 at a time, so that the copy stays in the cache


@dataclass(frozen=True)
class Clip:
    """Norms by glob, first match first; and that of the statistics, which are not sent at all where it is None."""

    norms: Mapping[str, float]
    metrics: float | None = None

    def __post_init__(self) -> None:
        named = {**self.norms, **({} if self.metrics is None else {"metrics": self.metrics})}
        faults = [
            f"{group}: a clip norm of {norm} was given, expected a positive number"
            for group, norm in named.items()
            if not (norm > 0 and isfinite(norm))
        ]
        faults += [] if self.norms else ["no clip norm was given"]
        if faults:
            raise_faults(SettingsError, "clip", faults)

    def group_of(self, name: str) -> str:
        group = first_match(name, self.norms)
        if group is None:
            raise SettingsError(f"clip: no norm covers {name!r} (norms for: {', '.join(self.norms)}). Add one for '*'.")
        return group

    @property
    def noise(self) -> float:
        """On parameters, in clip norms of their group, where the noise multiplier is 1."""
        return sqrt(len(self.norms) / (1.0 if self.metrics is None else 1.0 - METRICS_SHARE))

    @property
    def metrics_noise(self) -> float:
        """On statistics, in their clip norm, where the noise multiplier is 1."""
        return sqrt(1 / METRICS_SHARE)

    def deviations(self, names: Iterable[str], *, noise_multiplier: float) -> dict[str, float]:
        """Of the noise on each of these parameters."""
        norms = {name: self.norms[self.group_of(name)] for name in names}
        return {name: noise_multiplier * norm * self.noise for name, norm in norms.items()}

    def metrics_deviation(self, *, noise_multiplier: float) -> float:
        """Of the noise on each statistic, where they are sent."""
        assert self.metrics is not None
        return noise_multiplier * self.metrics * self.metrics_noise


def norms(update: Update, clip: Clip) -> dict[str, float]:
    """The length of every group of parameters; in float64, so that nothing overflows."""
    squares = dict.fromkeys(clip.norms, 0.0)
    for name, tensor in _tensors(update).items():
        squares[clip.group_of(name)] += float(torch.linalg.vector_norm(tensor.double())) ** 2
    return {group: sqrt(square) for group, square in squares.items()}


def clipped(update: Update, clip: Clip) -> Update:
    """One client's update, no longer than it may be. Shorter ones stay as they are."""
    factors = {group: _factor(norm, clip.norms[group]) for group, norm in norms(update, clip).items()}

    def scaled(name: str, tensor: Tensor) -> Tensor:
        factor = factors[clip.group_of(name)]
        return tensor if factor == 1 else (factor * tensor.double()).to(tensor.dtype)

    return replace(
        update,
        federated={name: scaled(name, tensor) for name, tensor in update.federated.items()},
        keyed={name: replace(rows, values=scaled(name, rows.values)) for name, rows in update.keyed.items()},
        metrics=_clipped_metrics(update.metrics, clip.metrics),
        statistics={name: scaled(name, tensor) for name, tensor in update.statistics.items()},
    )


def clipped_sum(
    gradients: Mapping[str, Tensor], clip: Clip, *, times: Mapping[str, float] | None = None
) -> dict[str, Tensor]:
    """The sum of many clients' clipped updates, in float64; what is not there is zero.

    An update is a gradient, each tensor [clients, ...], times a number, if one is given for its name: they are large,
    and are gone over no more than twice.
    """
    whole = {name: tensor if tensor.dim() > 1 else tensor[:, None] for name, tensor in gradients.items()}  # numbers too
    stored = {name: _as_stored(tensor) for name, tensor in whole.items()}
    times = {name: 1.0 if times is None else times[name] for name in gradients}
    squares: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        length = times[name] * _lengths(tensor.flatten(1))
        group = clip.group_of(name)
        squares[group] = squares.get(group, torch.zeros_like(length)) + length**2
    factors = {
        group: torch.tensor(
            [_factor(sqrt(square), clip.norms[group]) for square in squared.tolist()], dtype=torch.float64
        )
        for group, squared in squares.items()
    }
    found = {}
    for name, tensor in stored.items():
        factor = times[name] * factors[clip.group_of(name)]
        columns = tensor.flatten(1).split(max(1, BLOCK // len(tensor)), dim=1)
        total = torch.cat([factor @ some.double() for some in columns]).view(tensor.shape[1:])
        found[name] = total.permute(*_back(whole[name])).view(gradients[name].shape[1:])
    return found


def _lengths(rows: Tensor) -> Tensor:
    """In float64, which is a copy: of as many rows at a time as stay in the cache."""
    some = rows.split(max(1, 2**16 // rows.shape[1]))
    return torch.cat([torch.linalg.vector_norm(few, dim=1, dtype=torch.float64) for few in some])


def _order(tensor: Tensor) -> list[int]:
    """The axes but for the first, by how far apart in memory their neighbours are."""
    return sorted(range(1, tensor.dim()), key=tensor.stride, reverse=True)


def _as_stored(tensor: Tensor) -> Tensor:
    """With its axes in the order of memory, so that it can be flattened without being copied."""
    return tensor.permute(0, *_order(tensor))


def _back(tensor: Tensor) -> list[int]:
    order = _order(tensor)
    return [order.index(axis) for axis in range(1, tensor.dim())]


def clipped_metrics(metrics: Mapping[str, Tensor], norm: float | None) -> dict[str, Tensor]:
    """Many clients' metrics, each [clients], clipped one by one."""
    each = [
        dict(zip(metrics, values, strict=True)) for values in zip(*(v.tolist() for v in metrics.values()), strict=True)
    ]
    short = [_clipped_metrics(values, norm) for values in each]
    return {name: torch.tensor([values[name] for values in short], dtype=torch.float64) for name in metrics}


def _factor(length: float, norm: float) -> float:
    return 1.0 if length <= norm * BELOW else norm * BELOW / length if length < inf else 0.0


def _clipped_metrics(metrics: Mapping[str, float], norm: float | None) -> dict[str, float]:
    if norm is None:
        return dict.fromkeys(metrics, 0.0)
    length = hypot(*metrics.values())
    return {name: _factor(length, norm) * value for name, value in metrics.items()}


def noised(update: Update, broadcast: Broadcast, clip: Clip, *, noise_multiplier: float, normal: Normal) -> Update:
    """The same with noise on every number that may be told, also on rows that nobody touched."""

    deviations = clip.deviations(_tensors(update), noise_multiplier=noise_multiplier)

    def noise(name: str, tensor: Tensor) -> Tensor:
        return with_noise(tensor, normal, deviation=deviations[name])

    metrics = dict(update.metrics)
    if clip.metrics is not None:
        deviation = clip.metrics_deviation(noise_multiplier=noise_multiplier)
        exact = {name: torch.tensor(value, dtype=torch.float64) for name, value in metrics.items()}
        metrics = {name: float(with_noise(value, normal, deviation=deviation)) for name, value in exact.items()}
    # by name, so that a seeded source gives the same noise in every process
    whole = sorted({**update.federated, **update.statistics}.items())
    drawn = {name: noise(name, tensor) for name, tensor in whole}
    noisy = replace(
        update,
        federated={name: drawn[name] for name in update.federated},
        keyed={
            name: replace(rows, values=noise(name, rows.values))
            for name, rows in sorted(whole_tables(update, broadcast).items())
        },
        metrics=metrics,
        statistics={name: drawn[name] for name in update.statistics},
    )
    return in_types_of(broadcast, noisy)


def in_types_of(broadcast: Broadcast, update: Update) -> Update:
    """A sum of float64 in the types that the parameters have."""
    return replace(
        update,
        federated={name: tensor.to(broadcast.federated[name].dtype) for name, tensor in update.federated.items()},
        keyed={
            name: replace(rows, values=rows.values.to(broadcast.keyed[name].dtype))
            for name, rows in update.keyed.items()
        },
        statistics={name: tensor.to(broadcast.server[name].dtype) for name, tensor in update.statistics.items()},
    )


def whole_tables(update: Update, broadcast: Broadcast) -> dict[str, Rows]:
    """Keyed parameters with all their rows, each with the weight of the whole update: who touched what is not told."""
    found = {}
    for name, table in broadcast.keyed.items():
        rows = update.keyed[name]
        values = rows.values.new_zeros(table.shape).index_copy_(0, rows.index, rows.values)
        weight = torch.full((len(table),), update.weight, dtype=torch.float64)
        found[name] = Rows(torch.arange(len(table)), values, weight)
    return found


def released_centrally(
    total: Update, broadcast: Broadcast, clip: Clip, *, noise_multiplier: float, expected: float, normal: Normal
) -> Update:
    """A cohort's sum of clipped updates as it may be told; an empty cohort's too."""
    anonymous = replace(total, weight=expected, clients=max(1, round(expected)))
    return noised(anonymous, broadcast, clip, noise_multiplier=noise_multiplier, normal=normal)


def _tensors(update: Update) -> dict[str, Tensor]:
    rows = {name: rows.values for name, rows in update.keyed.items()}
    return {**update.federated, **rows, **update.statistics}
