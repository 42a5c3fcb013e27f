"""Clipping and noise: the sensitivity of a release to one user."""

from math import inf, sqrt

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from homespun.core.errors import SettingsError
from homespun.core.messages import Broadcast, Rows, Update
from homespun.privacy.mechanism import Clip, clipped, clipped_sum, in_types_of, noised, norms, released_centrally
from homespun.privacy.noise import grid_of, seeded_normal

BROADCAST = Broadcast(3, federated={"a": torch.zeros(2), "b": torch.zeros(1)}, keyed={"rows": torch.zeros(4, 2)})
IN_SUMS = Broadcast(
    3, {name: value.double() for name, value in BROADCAST.federated.items()}, {"rows": torch.zeros(4, 2).double()}
)


def update(a=(0.0, 0.0), b=(0.0,), row=(0.0, 0.0), *, place=1, metrics=(0.0, 0.0)):
    return Update(
        round=3,
        federated={"a": torch.tensor(a), "b": torch.tensor(b)},
        keyed={"rows": Rows(torch.tensor([place]), torch.tensor([row]), torch.ones(1, dtype=torch.float64))},
        metrics=dict(zip(("loss", "examples"), metrics, strict=True)),
        weight=1.0,
        clients=1,
    )


def flat(found: Update) -> torch.Tensor:
    rows = found.keyed["rows"]
    table = torch.zeros(4, 2, dtype=torch.float64).index_copy_(0, rows.index, rows.values.double())
    return torch.cat([found.federated["a"], found.federated["b"], table.flatten()]).double()


def test_an_update_is_clipped_as_one_vector():
    sent = update(a=(2.0, 4.0), b=(5.0,), row=(6.0, 0.0))
    assert norms(sent, Clip({"*": 3.0})) == {"*": 9.0}  # 4 + 16 + 25 + 36 = 81
    found = clipped(sent, Clip({"*": 3.0}))
    torch.testing.assert_close(flat(found), flat(sent) / 3, rtol=2e-6, atol=0)
    assert flat(found).norm() <= 3.0
    short = clipped(sent, Clip({"*": 9.1}))
    assert torch.equal(flat(short), flat(sent))


def test_groups_are_clipped_separately():
    sent = update(a=(3.0, 4.0), b=(1.0,), row=(6.0, 8.0))
    found = clipped(sent, Clip({"a": 1.0, "rows": 5.0, "*": 2.0}))
    torch.testing.assert_close(found.federated["a"], torch.tensor([0.6, 0.8]), rtol=2e-6, atol=0)
    torch.testing.assert_close(found.keyed["rows"].values, torch.tensor([[3.0, 4.0]]), rtol=2e-6, atol=0)
    assert torch.equal(found.federated["b"], torch.tensor([1.0]))
    with pytest.raises(SettingsError, match=r"no pattern matches 'b'.*Add one for"):
        clipped(sent, Clip({"a": 1.0, "rows": 1.0}))


def test_statistics_are_not_sent_without_a_clip_norm():
    sent = update(metrics=(30.0, 40.0))
    assert clipped(sent, Clip({"*": 1.0})).metrics == {"loss": 0.0, "examples": 0.0}
    found = clipped(sent, Clip({"*": 1.0}, metrics=5.0)).metrics
    assert found == pytest.approx({"loss": 3.0, "examples": 4.0}, rel=1e-5)


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(values=st.lists(numbers, min_size=5, max_size=5), norm=st.floats(1e-3, 1e3))
def test_no_user_changes_the_sum_by_more_than_the_clip_norm(values, norm):
    """Not even by rounding errors: sums are in float64."""
    start = in_types_of(IN_SUMS, update())
    others = sum((clipped(update(a=(0.1, 0.2), place=place), Clip({"*": norm})) for place in (0, 2)), start=start)
    last = clipped(update(a=values[:2], b=values[2:3], row=values[3:]), Clip({"*": norm}))
    assert float((flat(others + last) - flat(others)).norm()) <= norm
    assert float(flat(last).norm()) <= norm


@given(
    values=st.lists(st.lists(numbers, min_size=5, max_size=5), min_size=2, max_size=5),
    norm=st.floats(1e-3, 1e3),
)
@example(values=[[0.0, 0.0, 0.0, 0.0, 1.3543975533946154e38], [0.0] * 5], norm=0.0078125)  # a factor of few digits
def test_no_user_changes_a_cohorts_gradient_by_more_than_the_clip_norm(values, norm):
    """The same with all gradients in one tensor; one of them has another memory layout."""
    all_of_them = torch.tensor(values)
    clip, times = Clip({"*": norm}), {"a": -0.5, "b": 1.0, "c": 1.0}

    def total(some):
        gradients = {"a": some[:, 0], "b": some[:, 1:3], "c": some[:, 3:].clone().T.contiguous().T}
        return torch.cat(
            [value.reshape(-1).double() for _, value in sorted(clipped_sum(gradients, clip, times=times).items())]
        )

    moved = float((total(all_of_them) - total(all_of_them[1:])).norm())
    assert moved <= norm


def test_an_update_too_long_to_measure_is_dropped():
    sent = update(a=(3e38, 3e38))
    found = clipped(sent, Clip({"*": 1.0}))
    assert 0.99 < flat(found).norm() <= 1
    double = Update(
        **{**vars(sent), "federated": {"a": torch.tensor([1e200, 1e200], dtype=torch.float64), "b": torch.zeros(1)}}
    )
    assert float(clipped(double, Clip({"*": 1.0})).federated["a"].abs().max()) <= 1.0


@pytest.mark.parametrize(("clip", "expected"), [(Clip({"*": 2.0}), {"a": 6.0, "b": 6.0, "rows": 6.0}), (
    Clip({"a": 2.0, "*": 1.0}, metrics=4.0),
    {"a": 6.0 * sqrt(20 / 9), "b": 3.0 * sqrt(20 / 9), "rows": 3.0 * sqrt(20 / 9), "statistics": 12.0 * sqrt(10)},
)])  # fmt: skip
def test_noise_is_the_multiplier_times_the_norm_in_every_group_and_row(clip, expected):
    draws = [noised(update(), BROADCAST, clip, noise_multiplier=3.0, normal=seeded_normal(seed)) for seed in range(800)]
    found = {name: np.concatenate([one.federated[name].numpy() for one in draws]) for name in ("a", "b")}
    found["rows"] = np.stack([one.keyed["rows"].values.numpy() for one in draws])
    if clip.metrics is None:
        assert {value for one in draws for value in one.metrics.values()} == {0.0}
    else:
        found["statistics"] = np.array([list(one.metrics.values()) for one in draws])
    assert {name: values.std() for name, values in found.items()} == pytest.approx(expected, rel=0.08)
    assert found["rows"].std(axis=(0, 2)) == pytest.approx([expected["rows"]] * 4, rel=0.12)  # touched or not


@pytest.mark.parametrize(
    ("clip", "parameters", "statistics"),
    [
        (Clip({"*": 1.0}), {"a": 1.0, "b": 1.0}, None),
        (Clip({"a": 3.0, "*": 1.0}), {"a": 3 * sqrt(2), "b": sqrt(2)}, None),  # two groups, as much noise as ever
        (Clip({"*": 1.0}, metrics=2.0), {"a": sqrt(10 / 9), "b": sqrt(10 / 9)}, 2 * sqrt(10)),
        (Clip({"a": 3.0, "*": 1.0}, metrics=2.0), {"a": 3 * sqrt(20 / 9), "b": sqrt(20 / 9)}, 2 * sqrt(10)),
    ],
)
@pytest.mark.parametrize("noise_multiplier", [1.0, 0.7])
def test_statistics_have_a_tenth_of_the_budget_and_parameters_the_rest(clip, parameters, statistics, noise_multiplier):
    """By hand, for a multiplier of 1: 0.9 of the squares divided by 10/9, and 2^2 by 40, are 1 together."""
    found = clip.deviations(["a", "b"], noise_multiplier=noise_multiplier)
    assert found == pytest.approx({name: noise_multiplier * one for name, one in parameters.items()})
    norms_of = {"a": clip.norms[clip.group_of("a")], "b": clip.norms[clip.group_of("b")]}
    in_groups = {clip.group_of(name): (norms_of[name] / found[name]) ** 2 for name in found}
    moved = sum(in_groups.values())  # what one user can move, in standard deviations, squared
    if statistics is not None:
        noise = clip.metrics_deviation(noise_multiplier=noise_multiplier)
        assert noise == pytest.approx(noise_multiplier * statistics)
        moved += (2.0 / noise) ** 2
    assert 1 / sqrt(moved) == pytest.approx(noise_multiplier, rel=1e-12)


def test_every_released_number_is_on_the_grid_of_its_noise():
    """Parameters, rows and statistics, each in steps of 2^-16 of the power of two below its standard deviation."""
    clip = Clip({"a": 2.0, "*": 1.0}, metrics=40.0)
    sent = update(a=(0.1, 0.2), b=(0.3,), row=(0.4, 0.5), metrics=(0.7, 3.0))
    found = noised(sent, BROADCAST, clip, noise_multiplier=1.0, normal=seeded_normal(1))
    deviations = clip.deviations(["a", "b", "rows"], noise_multiplier=1.0)
    tensors = {**found.federated, "rows": found.keyed["rows"].values}
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    for name, deviation in deviations.items():
        steps = tensors[name].double() / grid_of(deviation)
        assert torch.equal(steps, steps.round()) and (steps.abs() > 100).any()
    grid = grid_of(clip.metrics_deviation(noise_multiplier=1.0))
    assert all((value / grid).is_integer() and value for value in found.metrics.values())


def test_a_release_does_not_reveal_the_cohort_or_the_touched_rows():
    releases = [
        released_centrally(
            total, BROADCAST, Clip({"*": 1.0}), noise_multiplier=1.0, expected=2.5, normal=seeded_normal(0)
        )
        for total in (update(place=1) + update(place=3), update(place=2))
    ]
    for one in releases:
        assert (one.weight, one.clients) == (2.5, 2)
        rows = one.keyed["rows"]
        assert torch.equal(rows.index, torch.arange(4)) and torch.equal(rows.weight, torch.full((4,), 2.5).double())
        assert (rows.values != 0).all()


@pytest.mark.parametrize("norm", [0, -1, inf, float("nan")])
def test_an_invalid_clip_norm_is_rejected(norm):
    with pytest.raises(SettingsError, match="expected a positive number"):
        Clip({"*": norm})
    with pytest.raises(SettingsError, match="metrics: clip norm"):
        Clip({"*": 1.0}, metrics=norm)
    with pytest.raises(SettingsError, match="no clip norm is given"):
        Clip({})
