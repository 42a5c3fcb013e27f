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
