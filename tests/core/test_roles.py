import pytest
import torch

from homespun.core.errors import PartitionError
from homespun.core.roles import Role, partition

NAMES = ["user.embedding", "lstm.weight", "lstm.bias", "head.bias"]


def test_the_first_matching_rule_decides():
    found = partition(NAMES, [("user.*", Role.PRIVATE), ("*", Role.FEDERATED)], method="furl")
    assert found.roles == {
        "user.embedding": Role.PRIVATE,
        "lstm.weight": Role.FEDERATED,
        "lstm.bias": Role.FEDERATED,
        "head.bias": Role.FEDERATED,
    }
    assert found.names(Role.PRIVATE) == ("user.embedding",)


def test_the_same_glob_twice_is_decided_by_the_first():
    assert partition(["a.x"], [("a.*", Role.FROZEN), ("a.*", Role.PRIVATE)], method="m").roles == {"a.x": Role.FROZEN}


def test_a_name_without_a_rule_is_an_error_that_names_the_remedy():
    rules = [("user.*", Role.PRIVATE), ("lstm.*", Role.FEDERATED)]
    with pytest.raises(PartitionError) as caught:
        partition(NAMES, rules, method="furl")
    assert str(caught.value) == (
        "furl: no rule matches 'head.bias' (rules: 'user.*' -> private, 'lstm.*' -> federated). "
        "Add ('head.*', FEDERATED)."
    )


def test_a_rule_that_matches_nothing_is_an_error():
    with pytest.raises(PartitionError, match=r"rule 'usr.\*' matches nothing"):
        partition(NAMES, [("usr.*", Role.PRIVATE), ("*", Role.FEDERATED)], method="furl")


def test_a_rule_shadowed_by_an_earlier_one_is_an_error():
    with pytest.raises(
        PartitionError, match=r"'user.\*' has no effect: the earlier rule '\*' matches 'user.embedding'"
    ):
        partition(NAMES, [("*", Role.FEDERATED), ("user.*", Role.PRIVATE)], method="furl")


def test_all_faults_are_reported_together():
    with pytest.raises(PartitionError, match="3 faults"):
        partition(["a", "b"], [("c", Role.FROZEN)], method="m")


def test_select_requires_every_name():
    found = partition(["a", "b"], [("a", Role.PRIVATE), ("b", Role.FEDERATED)], method="m")
    assert list(found.select({"a": torch.ones(1), "b": torch.ones(1)}, Role.PRIVATE)) == ["a"]
    with pytest.raises(KeyError):
        found.select({"b": torch.ones(1)}, Role.PRIVATE)
