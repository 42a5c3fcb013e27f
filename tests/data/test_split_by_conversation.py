"""Splits by conversation: all turns of a conversation are in one part, for every user and for pooled data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homespun.core.errors import DataError, SettingsError
from homespun.data import load_federation
from homespun.data.federation import Examples
from homespun.data.splits import (
    PartName,
    conversation_parts,
    pool_users,
    require_conversations,
    select_part,
    split,
    withhold,
)

PARTS: tuple[PartName, ...] = ("train", "eval", "test")


def corpus(scenes: int = 40) -> Any:
    """In each scene, all three users say two things."""
    return load_federation(
        [
            {"user": user, "text": f"{scene} {turn} {user}", "scene": scene}
            for scene in range(scenes)
            for turn in range(2)
            for user in ("ann", "bob", "cy")
        ]
    )


def by_conversation(federation: Any, name: PartName, *, seed: int = 3) -> Any:
    return select_part(federation, name, seed=seed, split_by="conversation")


def conversations(federation: Any) -> list[set[int]]:
    return [set(federation.examples(user).conversations.tolist()) for user in range(len(federation.users))]


def test_all_turns_of_a_conversation_are_in_one_part() -> None:
    federation = corpus()
    found = {name: conversations(by_conversation(federation, name)) for name in PARTS}
    for some in found.values():
        assert some[0] == some[1] == some[2]
    assert {name: len(some[0]) for name, some in found.items()} == {"train": 32, "eval": 4, "test": 4}
    assert set.union(*(some[0] for some in found.values())) == set(range(40))
    torn = [set(select_part(federation, "test", seed=3).examples(user).conversations.tolist()) for user in range(3)]  # type: ignore[union-attr]
    assert torn[0] != torn[1]  # by example, users are split independently


def test_ten_consecutive_conversations_have_the_shares() -> None:
    parts = conversation_parts(1000, seed=5)
    assert (np.sort(parts.reshape(-1, 10), axis=1) == [0] * 8 + [1, 2]).all()
    assert len(set(map(tuple, parts.reshape(-1, 10).tolist()))) > 50  # at random places
    odd = conversation_parts(10_000, seed=5, fractions=(0.75, 0.05, 0.2))
    assert np.abs(np.bincount(odd) / 10_000 - [0.75, 0.05, 0.2]).max() < 0.005
    assert conversation_parts(100, seed=5, fractions=(1.0, 0.0, 0.0)).tolist() == [0] * 100


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 5))
def test_the_part_of_a_conversation_depends_on_nothing_else(few: int, more: int, seed: int) -> None:
    few, more = sorted((few, more))
    assert conversation_parts(more, seed=seed)[:few].tolist() == conversation_parts(few, seed=seed).tolist()
    assert len(conversation_parts(few, seed=seed)) == few


def test_seeds_differ() -> None:
    assert conversation_parts(100, seed=0).tolist() != conversation_parts(100, seed=1).tolist()


def test_pooled_and_withheld_users_have_the_same_parts() -> None:
    federation = corpus()
    test = conversations(by_conversation(federation, "test"))[0]
    participants, newcomers = withhold(federation, count=1, seed=0)
    for some in (participants, newcomers):
        assert conversations(by_conversation(some, "test")) == [test] * len(some.users)
    assert conversations(by_conversation(pool_users(federation), "test")) == [test]
    pooled = pool_users(by_conversation(federation, "train")).examples(0)
    assert set(pooled.conversations.tolist()) == conversations(by_conversation(federation, "train"))[0]  # type: ignore[union-attr]
    filtered = load_federation(
        [{"user": user, "text": "x", "scene": scene} for scene in range(40) for user in ("ann", "bob")],
        settings={"max_users": 1},
    )
    assert conversations(by_conversation(filtered, "test")) == [test]  # numbered before filters


def test_examples_without_a_conversation_are_split_by_example() -> None:
    rows = Examples([str(row) for row in range(20)], conversations=np.array([-1, 0] * 10))
    parts = split(rows, seed=0, user="ann", split_by="conversation")
    alone = [sum(int(text) % 2 == 0 for text in part.texts) for part in parts]
    assert alone == [8, 1, 1]
    assert sorted(sum(int(text) % 2 for text in part.texts) for part in parts) == [0, 0, 10]


def test_parts_of_the_corpus_come_first() -> None:
    rows = Examples(["a", "b"], conversations=np.array([0, 0]), parts=np.array([2, 0]))
    assert [list(part.texts) for part in split(rows, seed=0, user="ann", split_by="conversation")] == [["b"], [], ["a"]]


def test_fingerprints_of_parts_differ() -> None:
    federation = corpus()
    assert by_conversation(federation, "train").fingerprint != select_part(federation, "train", seed=3).fingerprint


def test_a_corpus_without_conversations_cannot_be_split_by_them() -> None:
    plain = load_federation([{"user": "ann", "text": "x", "place": 1}])
    with pytest.raises(DataError, match=r"split_by = conversation.*--conversation-column.*'place'"):
        require_conversations(plain)
    require_conversations(corpus(2))
    with pytest.raises(SettingsError, match="no conversations"):
        split(plain.examples(0), seed=0, user="ann", split_by="conversation")
