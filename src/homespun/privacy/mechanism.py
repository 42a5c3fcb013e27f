"""The Gaussian mechanism on updates: clip each client's update, and add noise to the sum (central) or to each (local).

An update is clipped as one vector: all federated parameters and all keyed rows together. With several groups, each is
clipped to its own norm C_g and gets noise of standard deviation sigma_g. In units of sigma_g, one user changes a group
by at most C_g / sigma_g, so that all groups together are one Gaussian mechanism with noise multiplier z, where
1 / z^2 = sum of (C_g / sigma_g)^2. The G groups of parameters have equal shares of this sum: sigma_g = z C_g sqrt(G).
Statistics, if they are sent, have a tenth of it and the parameters the rest, so that parameters have 5 % more noise
with statistics than without: a sum of two numbers remains useful with more noise than a model does.

All clients have weight 1, and a central sum is divided by the expected cohort size, not by the actual one, because the
actual size depends on who took part. For the same reason all rows of a keyed parameter get noise, touched or not.

Clipped updates are added in float64. The rounding error of a sum of n updates, with or without a user, is at most
n^2 2^-53 clip norms, which is below the margin that `BELOW` leaves for n up to 60,000. In float32 the error would be up
to n^2 2^-24: 5 % of a clip norm with 900 clients. Noise is added in float64 too, and released numbers are rounded to a
grid that depends on the noise (see `noise`).
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

# Clip slightly below the norm, so that rounding does not push an update, or its part of a sum, above it.
BELOW = 1 - 1e-6
METRICS_SHARE = 0.1  # of 1 / z^2
BLOCK = 2**18  # elements converted to float64 at a time, so that the copy stays in the cache


@dataclass(frozen=True)
class Clip:
    """Clip norms by glob pattern, of which the first match counts, and the norm of the metrics (None: not sent)."""

    norms: Mapping[str, float]
    metrics: float | None = None

    def __post_init__(self) -> None:
        named = {**self.norms, **({} if self.metrics is None else {"metrics": self.metrics})}
        faults = [
            f"{group}: clip norm {norm}: expected a positive number"
            for group, norm in named.items()
            if not (norm > 0 and isfinite(norm))
        ]
        faults += [] if self.norms else ["no clip norm is given"]
        if faults:
            raise_faults(SettingsError, "clip", faults)

    def group_of(self, name: str) -> str:
        group = first_match(name, self.norms)
        if group is None:
            raise SettingsError(f"clip: no pattern matches {name!r} ({', '.join(self.norms)}). Add one for '*'.")
        return group

    @property
    def noise(self) -> float:
        """Standard deviation on parameters, in clip norms of their group, for a noise multiplier of 1."""
        return sqrt(len(self.norms) / (1.0 if self.metrics is None else 1.0 - METRICS_SHARE))

    @property
    def metrics_noise(self) -> float:
        """Standard deviation on metrics, in their clip norm, for a noise multiplier of 1."""
        return sqrt(1 / METRICS_SHARE)

    def deviations(self, names: Iterable[str], *, noise_multiplier: float) -> dict[str, float]:
        """Standard deviation of the noise on each of these parameters."""
        norms = {name: self.norms[self.group_of(name)] for name in names}
        return {name: noise_multiplier * norm * self.noise for name, norm in norms.items()}

    def metrics_deviation(self, *, noise_multiplier: float) -> float:
        """Standard deviation of the noise on each metric, if they are sent."""
        assert self.metrics is not None
        return noise_multiplier * self.metrics * self.metrics_noise


def norms(update: Update, clip: Clip) -> dict[str, float]:
    """The L2 norm of each group of parameters, in float64 to avoid overflow."""
    squares = dict.fromkeys(clip.norms, 0.0)
    for name, tensor in _tensors(update).items():
        squares[clip.group_of(name)] += float(torch.linalg.vector_norm(tensor.double())) ** 2
    return {group: sqrt(square) for group, square in squares.items()}


def clipped(update: Update, clip: Clip) -> Update:
    """Clip one client's update. Updates within the norm are unchanged."""
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
    """The sum of many clients' clipped updates, in float64; missing entries count as zero.

    An update is a gradient, each tensor [clients, ...], scaled by `times` if given. The tensors are large, so that each
    is read at most twice.
    """
    whole = {name: tensor if tensor.dim() > 1 else tensor[:, None] for name, tensor in gradients.items()}  # scalars too
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
    """L2 norms of the rows in float64, computed in blocks that fit the cache."""
    some = rows.split(max(1, 2**16 // rows.shape[1]))
    return torch.cat([torch.linalg.vector_norm(few, dim=1, dtype=torch.float64) for few in some])


def _order(tensor: Tensor) -> list[int]:
    """All axes except the first, by decreasing stride."""
    return sorted(range(1, tensor.dim()), key=tensor.stride, reverse=True)


def _as_stored(tensor: Tensor) -> Tensor:
    """Permute the axes into memory order, so that the tensor can be flattened without a copy."""
    return tensor.permute(0, *_order(tensor))


def _back(tensor: Tensor) -> list[int]:
    order = _order(tensor)
    return [order.index(axis) for axis in range(1, tensor.dim())]


def clipped_metrics(metrics: Mapping[str, Tensor], norm: float | None) -> dict[str, Tensor]:
    """Clip the metrics of many clients, each [clients], client by client."""
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
    """Add noise to all disclosed numbers, including keyed rows that no client touched."""

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
    """Cast a float64 sum to the dtypes of the parameters."""
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
    """Keyed parameters with all rows, each with the weight of the update, to hide which rows were touched."""
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
    """Turn a cohort's sum of clipped updates into its noisy release; an empty cohort's too."""
    anonymous = replace(total, weight=expected, clients=max(1, round(expected)))
    return noised(anonymous, broadcast, clip, noise_multiplier=noise_multiplier, normal=normal)


def _tensors(update: Update) -> dict[str, Tensor]:
    rows = {name: rows.values for name, rows in update.keyed.items()}
    return {**update.federated, **rows, **update.statistics}
