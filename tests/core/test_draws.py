"""Draws by key: a number depends on its key, its site and its position, and on nothing else."""

import pytest
import torch

from homespun.core.draws import _mix, _mix_int, add_keys, dropout, example_keys, is_at_least, step_key, uniform

MANY = example_keys(torch.tensor([step_key(0, "phases", 0, "ann", phase=0, step=0)]), torch.arange(20_000))


def test_known_numbers():
    """The first outputs of splitmix64 from state 0 (Vigna's reference): draws must never change."""
    assert [_mix_int(0), _mix_int(1)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    golden = torch.tensor([0x9E3779B97F4A7C15 - 2**64])
    assert _mix(golden).item() == 0xE220A8397B1DCDAF - 2**64
    assert step_key(0, "phases", 1, "ann", phase=0, step=2) == -612020283512802130
    keys = example_keys(torch.tensor([1]), torch.arange(2))
    assert uniform(keys, (2,), site=0).flatten().tolist() == pytest.approx(
        [0.78235328, 0.53709263, 0.23498636, 0.04087889], abs=1e-7
    )


def test_numbers_are_uniform():
    numbers = uniform(MANY, (5,), site=0)
    assert numbers.shape == (20_000, 5) and numbers.dtype == torch.float32
    assert numbers.min() >= 0 and numbers.max() < 1
    assert numbers.mean().item() == pytest.approx(0.5, abs=0.004)  # four standard errors: 0.289 / sqrt(100,000)
    assert numbers.var().item() == pytest.approx(1 / 12, abs=0.002)
    counts = torch.histc(numbers, bins=10, min=0, max=1)
    assert (counts - 10_000).abs().max() < 400  # four times sqrt(9,000)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: uniform(MANY, (), site=0), lambda: uniform(MANY, (), site=1)),
        (lambda: uniform(MANY, (2,), site=0)[:, 0], lambda: uniform(MANY, (2,), site=0)[:, 1]),
        (lambda: uniform(MANY, (2, 2), site=0)[:, 0, 1], lambda: uniform(MANY, (2, 2), site=0)[:, 1, 0]),
        (lambda: uniform(MANY[1:], (), site=0), lambda: uniform(MANY[:-1], (), site=0)),
    ],
    ids=["sites", "positions", "axes", "keys"],
)
def test_masks_are_uncorrelated(one, other):
    masks = torch.stack([one() < 0.5, other() < 0.5]).float()
    assert abs(torch.corrcoef(masks)[0, 1].item()) < 0.03  # four standard errors: 1 / sqrt(20,000)


def test_leading_axes_order_and_padding_change_no_number():
    keys = MANY[:6]
    whole = uniform(keys, (3, 5), site=2)
    assert torch.equal(uniform(keys.view(2, 3), (3, 5), site=2), whole.view(2, 3, 3, 5))
    assert torch.equal(uniform(keys.flip(0), (3, 5), site=2).flip(0), whole)
    assert torch.equal(uniform(keys, (2, 4), site=2), whole[:, :2, :4])


def test_a_step_key_depends_on_each_of_its_parts():
    ann = {"phase": 0, "step": 0}
    keys = {
        step_key(0, "phases", 0, "ann", **ann),
        step_key(1, "phases", 0, "ann", **ann),
        step_key(0, "personalize", 0, "ann", **ann),
        step_key(0, "phases", 1, "ann", **ann),
        step_key(0, "phases", 0, "bob", **ann),
        step_key(0, "phases", 0, "ann", phase=1, step=0),
        step_key(0, "phases", 0, "ann", phase=0, step=1),
    }
    assert len(keys) == 7 and all(-(2**63) <= key < 2**63 for key in keys)


def test_the_key_of_an_example_does_not_depend_on_its_batch():
    alone = add_keys({}, [7], torch.tensor([3, 1]))["key"]
    together = add_keys({}, [7, 8], torch.tensor([[1, 3, 0], [1, 0, 0]]))["key"]
    assert alone.tolist() == together[0, [1, 0]].tolist() and together.unique().numel() == 5


def test_dropout_scales_what_it_keeps():
    x = torch.ones(20_000, 4)
    found = dropout(x, MANY, p=0.2, site=0)
    assert set(found.unique().tolist()) == {0.0, 1.25}
    assert (found == 0).float().mean().item() == pytest.approx(0.2, abs=0.006)


def test_dropout_without_a_key_or_with_p_zero_changes_nothing():
    x = torch.randn(3, 4)
    assert dropout(x, None, p=0.5, site=0) is x
    assert dropout(x, MANY[:3], p=0.0, site=0) is x


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_p_must_be_at_least_0_and_below_1(p):
    with pytest.raises(ValueError, match="expected at least 0 and below 1"):
        dropout(torch.ones(2), None, p=p, site=0)


def test_a_key_of_the_wrong_shape_is_an_error():
    with pytest.raises(ValueError, match=r"a key of shape \(3,\) does not match x of shape \(2, 3\)"):
        dropout(torch.ones(2, 3), MANY[:3], p=0.5, site=0)


DRAWN = uniform(MANY[:1], (5,), site=1)[0, 0].item()


@pytest.mark.parametrize("p", [1e-9, 0.2, 0.25, 0.5, 0.7, 1 - 2**-24, 1 - 1e-9, DRAWN, DRAWN + 2**-24])
def test_comparing_bits_equals_comparing_floats(p):
    """Also at a number that is drawn, and where p is 1 as float32: nothing is kept then."""
    assert torch.equal(is_at_least(MANY, (5,), p=p, site=1), (uniform(MANY, (5,), site=1) >= p).long())
