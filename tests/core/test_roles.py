import pytest
import torch

from homespun.core.errors import PartitionError
from homespun.core.roles import Role, partition

NAMES = ["user.embedding", "lstm.weight", "lstm.bias", "head.bias"]


def test_first_rule_that_matches_decides():
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


def test_an_uncovered_name_is_an_error_that_names_the_remedy():
    rules = [("user.*", Role.PRIVATE), ("lstm.*", Role.FEDERATED)]
    with pytest.raises(PartitionError) as caught:
        partition(NAMES, rules, method="furl")
    assert str(caught.value) == (
        "furl: no rule covers 'head.bias' (rules: 'user.*' -> private, 'lstm.*' -> federated). "
        "Add ('head.*', FEDERATED)."
    )


def test_a_rule_that_covers_nothing_is_an_error():
    with pytest.raises(PartitionError, match=r"rule 'usr.\*' covers nothing"):
        partition(NAMES, [("usr.*", Role.PRIVATE), ("*", Role.FEDERATED)], method="furl")


def test_a_rule_behind_one_that_covers_all_of_it_is_an_error():
    with pytest.raises(PartitionError, match=r"'user.\*' decides nothing: '\*' before it covers 'user.embedding'"):
        partition(NAMES, [("*", Role.FEDERATED), ("user.*", Role.PRIVATE)], method="furl")


def test_all_faults_come_at_once():
    with pytest.raises(PartitionError, match="3 faults"):
        partition(["a", "b"], [("c", Role.FROZEN)], method="m")


def test_select_wants_every_name():
    found = partition(["a", "b"], [("a", Role.PRIVATE), ("b", Role.FEDERATED)], method="m")
    assert list(found.select({"a": torch.ones(1), "b": torch.ones(1)}, Role.PRIVATE)) == ["a"]
    with pytest.raises(KeyError):
        found.select({"b": torch.ones(1)}, Role.PRIVATE)
