from math import inf, nan

import pytest
import torch

from homespun.core import tree
from homespun.core.errors import MessageError

ONE = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(3.0)}
TWO = {"a": torch.tensor([10.0, 20.0]), "b": torch.tensor(30.0)}


def test_arithmetic():
    assert tree.add(ONE, TWO)["a"].tolist() == [11.0, 22.0]
    assert tree.max_abs_difference(ONE, TWO) == 27.0
    assert tree.byte_count(ONE) == 12


def test_names_of_tensors_with_numbers_that_are_not_finite():
    """In any place of a tensor, of any dtype; an empty tensor is finite."""

    def with_one(value, dtype=torch.float32):
        one = torch.zeros(1000, dtype=dtype)
        one[500] = value
        return one

    some = {"nan": with_one(nan), "low": with_one(-inf), "high": with_one(inf, torch.float64), "fine": with_one(1e38)}
    others = {"empty": torch.zeros(0), "half": with_one(nan, torch.float16), "integers": torch.arange(3)}
    assert tree.non_finite({**some, **others}) == ["half", "high", "low", "nan"]


def test_names_are_strict():
    with pytest.raises(MessageError, match=r"missing \['b'\], unexpected \['c'\]"):
        tree.add(ONE, {"a": ONE["a"], "c": ONE["b"]})


def test_nothing_broadcasts():
    with pytest.raises(MessageError, match=r"'a': expected shape \(2,\), got \(1,\)"):
        tree.add(ONE, {"a": torch.ones(1), "b": torch.tensor(1.0)})


def test_bytes_do_not_depend_on_the_order_and_decode_to_the_same_tree():
    turned = dict(reversed(ONE.items()))
    assert tree.to_bytes(ONE) == tree.to_bytes(turned)
    assert tree.max_abs_difference(tree.from_bytes(tree.to_bytes(ONE)), ONE) == 0


def test_bytes_that_are_not_a_tree_are_rejected():
    with pytest.raises(MessageError, match="not a tree of tensors"):
        tree.from_bytes(b"\x80\x04K\x01.")
