"""Parts of a user's examples, subsets of users, and all users pooled."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homespun.core.errors import SettingsError
from homespun.data import dialects
from homespun.data.federation import Examples
from homespun.data.splits import Split, part_sizes, pool_users, select_part, split, withhold


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (0, (0, 0, 0)),
        (1, (1, 0, 0)),
        (4, (4, 0, 0)),
        (5, (3, 1, 1)),
        (14, (12, 1, 1)),
        (15, (11, 2, 2)),
        (45, (35, 5, 5)),
        (100, (80, 10, 10)),
        (274, (220, 27, 27)),
    ],
)
def test_sizes_of_the_parts(count: int, sizes: tuple[int, int, int]) -> None:
    assert part_sizes(count) == sizes


@given(st.integers(1, 300), st.integers(0, 9))
def test_training_is_never_empty(count: int, tenths: int) -> None:
    sizes = part_sizes(count, ((10 - tenths) / 10, tenths / 20, tenths / 20))
    assert sum(sizes) == count and sizes[0] >= 1 and min(sizes) >= 0


@pytest.mark.parametrize("fractions", [(0.8, 0.1, 0.2), (1.2, -0.1, -0.1), (0.0, 0.5, 0.5)])
def test_invalid_fractions_are_rejected(fractions: tuple[float, float, float]) -> None:
    with pytest.raises(SettingsError, match="three shares for train, eval and test that sum to 1"):
        part_sizes(10, fractions)
    with pytest.raises(SettingsError, match="three shares for train, eval and test that sum to 1"):
        select_part(dialects.load({}), "train", seed=0, fractions=fractions)


def numbered(count: int) -> Examples:
    return Examples(texts=[str(i) for i in range(count)], labels=np.arange(count))


def test_a_split_by_order_tests_on_the_last_examples():
    parts = split(numbered(10), seed=3, user="ada", split_by="order")
    assert [list(each.texts) for each in parts] == [[*"01234567"], ["8"], ["9"]]
    assert [len(each) for each in split(numbered(4), seed=3, user="ada", split_by="order")] == [4, 0, 0]


@given(st.integers(0, 60), st.integers(0, 5), st.text(max_size=5))
def test_a_split_deals_every_example_once(count: int, seed: int, user: str) -> None:
    parts = split(numbered(count), seed=seed, user=user)
    dealt = [int(text) for each in parts for text in each.texts]
    assert sorted(dealt) == list(range(count))
    for each in parts:
        assert each.labels is not None
        assert [int(text) for text in each.texts] == sorted(each.labels.tolist())


def test_a_split_depends_on_seed_and_name_only() -> None:
    def test_rows(seed: int, user: str) -> list[str]:
        return list(split(numbered(50), seed=seed, user=user).test.texts)

    assert test_rows(1, "a") == test_rows(1, "a")
    assert test_rows(1, "a") != test_rows(2, "a")
    assert test_rows(1, "a") != test_rows(1, "A")


def test_parts_are_views() -> None:
    federation = dialects.load({"users": 5})
    views = [select_part(federation, name, seed=3) for name in ("train", "eval", "test")]
    assert views[0] == select_part(federation, "train", seed=3)
    for user in range(5):
        texts = [text for view in views for text in view.examples(user).texts]
        assert sorted(texts) == sorted(federation.examples(user).texts)
        assert views[0].group(user) == federation.group(user)
    assert views[0].examples(2).authors.tolist() == [2] * len(views[0].examples(2))  # type: ignore[union-attr]
    prints = {view.fingerprint for view in views} | {select_part(federation, "train", seed=4).fingerprint}
    assert len(prints | {federation.fingerprint}) == 5
    assert views[2].labels == federation.labels and list(views[2].users) == list(federation.users)


def test_withheld_users_never_take_part() -> None:
    federation = dialects.load({"users": 25})
    participants, newcomers = withhold(federation, share=0.1, seed=0)
    assert (len(participants.users), len(newcomers.users)) == (22, 3)  # 2.5 rounds up
    assert sorted([*participants.users, *newcomers.users]) == list(federation.users)
    assert list(withhold(federation, count=3, seed=0)[1].users) == list(newcomers.users)
    assert list(withhold(federation, count=3, seed=1)[1].users) != list(newcomers.users)
    name = newcomers.users[1]
    assert newcomers.users.index(name) == 1 and name not in participants.users
    original = federation.users.index(name)
    assert list(newcomers.examples(1).texts) == list(federation.examples(original).texts)
    assert newcomers.examples(1).authors.tolist() == [1] * len(newcomers.examples(1))  # type: ignore[union-attr]
    assert newcomers.group(1) == federation.group(original)
    assert len({participants.fingerprint, newcomers.fingerprint, federation.fingerprint}) == 3
    with pytest.raises(IndexError):
        newcomers.examples(3)


def test_a_split_is_the_same_for_a_withheld_view() -> None:
    federation = dialects.load({"users": 25})
    _, newcomers = withhold(federation, count=3, seed=0)
    original = federation.users.index(newcomers.users[0])
    here, there = (
        select_part(newcomers, "test", seed=9).examples(0),
        select_part(federation, "test", seed=9).examples(original),
    )
    assert list(here.texts) == list(there.texts)


@pytest.mark.parametrize("wrong", [{}, {"share": 0.5, "count": 1}, {"share": 1.0}, {"count": -1}, {"count": 25}])
def test_invalid_numbers_of_withheld_users_are_rejected(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match="withhold"):
        withhold(dialects.load({"users": 25}), seed=0, **wrong)  # type: ignore[arg-type]


def test_withholding_from_a_million() -> None:
    federation = dialects.load({"users": 10**6})
    tracemalloc.start()
    start = time.perf_counter()
    participants, newcomers = withhold(federation, count=100, seed=0)
    assert len(participants.users) == 999_900 and len(select_part(newcomers, "train", seed=0).examples(99)) >= 25
    assert participants.users.index(participants.users[500_000]) == 500_000
    assert time.perf_counter() - start < 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40_000_000


def test_pooled_is_one_user_with_the_examples_of_all() -> None:
    federation = dialects.load({"users": 4})
    train = select_part(federation, "train", seed=1)
    server = pool_users(train)
    assert list(server.users) == ["server"]
    everything = server.examples(0)
    assert everything.authors is not None and everything.labels is not None
    assert everything.contexts is None
    for user in range(4):
        mine = everything.take(np.flatnonzero(everything.authors == user))
        assert list(mine.texts) == list(train.examples(user).texts)
        assert np.array_equal(mine.labels, train.examples(user).labels)  # type: ignore[arg-type]
    assert server.labels == federation.labels and server.group(0) is None
    assert server.fingerprint != train.fingerprint
    with pytest.raises(IndexError):
        server.examples(1)


def test_a_conversation_is_adapted_to_or_scored():
    conversations = np.array([4, 4, 7, -1, -1, 4, 9, 7])  # the fourth and the fifth are in none
    test = Examples(list("abcdefgh"), conversations=conversations, prompts=[None] * 8)
    parts = Split(test, test, test)
    assert list(parts.adapt.texts) == list("abdfg") and list(parts.scored.texts) == list("ceh")


@given(count=st.integers(0, 60), seed=st.integers(0, 5))
def test_adaptation_examples_are_never_scored(count, seed):
    examples = Examples([str(number) for number in range(count)])
    found = split(examples, seed=seed, user="ann", fractions=(0.6, 0.2, 0.2))
    parts = [found.train, found.eval, found.adapt, found.scored]
    together = [text for some in parts for text in some.texts]
    assert sorted(together, key=int) == list(examples.texts)  # everything once
