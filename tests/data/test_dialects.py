"""A population with known preferences."""

from __future__ import annotations

import copy
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homespun.core.errors import SettingsError, UnknownNameError
from homespun.data import dialects
from homespun.data.dialects import Ceiling, Settings, ceiling, load
from homespun.data.user_names import find_user


def labels_of(federation: dialects.Dialects, users: range) -> np.ndarray:
    return np.concatenate([federation.examples(user).labels for user in users])  # type: ignore[list-item]


def test_the_same_settings_give_the_same_users() -> None:
    one, other = load({"users": 10}), load({"users": 10})
    assert one.fingerprint == other.fingerprint != load({"users": 10, "seed": 1}).fingerprint
    assert list(one.examples(3).texts) == list(other.examples(3).texts)
    assert list(one.examples(3).texts) != list(one.examples(4).texts)
    assert list(one.examples(3).texts) != list(load({"users": 10, "seed": 1}).examples(3).texts)
    # and users do not depend on the number of other users
    assert list(one.examples(3).texts) == list(load({"users": 10**6}).examples(3).texts)
    assert one.group(3) == load({"users": 10**6}).group(3)


def test_the_default_population_is_the_documented_one() -> None:
    # results are published for it: when this fails, raise VERSION and correct docs/data.md
    assert load({}).examples(0).texts[0] == "mamu tag gaze teg teg"
    one, other = ceiling(Settings()), ceiling(Settings(task="binary"))
    assert (one.known, one.unknown) == (pytest.approx(0.9125), pytest.approx(0.378125))
    assert (other.known, other.unknown) == (pytest.approx(0.825, abs=5e-4), pytest.approx(0.677, abs=5e-4))


def test_positions_may_come_from_an_array() -> None:
    federation = load({"users": 10})
    for user in np.array([3, 4]):
        assert list(federation.examples(user).texts) == list(federation.examples(int(user)).texts)
        assert federation.group(user) == federation.group(int(user))


def test_messages_are_short_lower_case_words() -> None:
    federation = load({"users": 20, "words_per_message": 7})
    texts = [text for user in range(20) for text in federation.examples(user).texts]
    assert max(map(len, texts)) <= 41
    assert {len(text.split(" ")) for text in texts} == {7}
    assert {len(word) for text in texts for word in text.split(" ")} == {3, 4, 5}
    assert set("".join(texts)) <= set("abcdefghijklmnopqrstuvwxyz ")


def test_examples_per_user_are_ragged_about_the_mean() -> None:
    ragged, even, single = load({"ragged": 0.5}), load({"ragged": 0}), load({"ragged": 1, "examples": 1})
    counts = [len(ragged.examples(user)) for user in range(800)]
    assert (min(counts), max(counts)) == (32, 96)
    assert np.mean(counts) == pytest.approx(64, abs=3)
    assert {len(even.examples(user)) for user in range(20)} == {64}
    assert {len(single.examples(user)) for user in range(20)} == {1}


def test_a_user_who_follows_the_group_is_right_as_often_as_the_ceiling_says() -> None:
    federation = load({"users": 300})
    opinions = dialects.tables(federation.settings).opinions
    lexicon = dialects.tables(federation.settings).words
    topic_of = {
        word: row // dialects.WORDS_PER_TOPIC for row in range(8 * dialects.WORDS_PER_TOPIC) for word in lexicon[row]
    }
    right, total = 0, 0
    for user in range(300):
        mine = opinions[int(federation.group(user).removeprefix("group-"))]
        examples = federation.examples(user)
        for text, label in zip(examples.texts, examples.labels, strict=True):  # type: ignore[arg-type]
            topics = {topic_of[word] for word in text.split() if word in topic_of}
            assert len(topics) == 1  # a message is about one thing, and says so
            right, total = right + int(mine[topics.pop()] == label), total + 1
    assert right / total == pytest.approx(ceiling(federation.settings).known, abs=0.01)


def test_ceiling_of_a_tiny_case_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # three groups, two topics: on topic 0 two groups agree, on topic 1 all three do
    monkeypatch.setattr(dialects, "_opinions", lambda _: np.array([[0, 1], [0, 1], [1, 1]]))
    settings = Settings(groups=3, classes=2, noise=0.2)
    # noise hits the right one of two labels half the time: 0.8 + 0.1, and 0.8 * (2/3 + 1) / 2 + 0.1
    assert ceiling(settings) == Ceiling("accuracy", pytest.approx(0.9), pytest.approx(0.8 * 5 / 6 + 0.1))


def test_binary_ceiling_of_a_tiny_case_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # one topic; one group likes it with chance 3/4, the other with 1/4
    monkeypatch.setattr(dialects, "_chances", lambda _: np.array([[[0.75]], [[0.25]]]))
    settings = Settings(task="binary", groups=2, noise=0, positive_rate=0.5)
    # knowing the group: 3/4 of positives and 1/4 of negatives are in front; 9/16 + 6/16 / 2
    assert ceiling(settings) == Ceiling("auc", pytest.approx(0.75), pytest.approx(0.5))


def test_strength_sets_the_possible_gain() -> None:
    alike, default, apart = (ceiling(Settings(strength=strength)) for strength in (0, 0.75, 1))
    assert alike.known == alike.unknown == pytest.approx(0.9125)
    assert default.known == apart.known == pytest.approx(0.9125)
    assert default.unknown < 0.4
    assert 0.125 < apart.unknown < default.unknown
    alike, default = (ceiling(Settings(task="binary", strength=strength)) for strength in (0, 0.75))
    assert alike.known == pytest.approx(alike.unknown) and default.known > default.unknown + 0.1


def test_dialect_sets_how_groups_spell() -> None:
    def words(strength: float) -> list[set[str]]:
        federation = load({"users": 200, "dialect": strength, "groups": 2})
        found: dict[str | None, set[str]] = {"group-0": set(), "group-1": set()}
        for user in range(200):
            found[federation.group(user)] |= {w for text in federation.examples(user).texts for w in text.split()}
        return list(found.values())

    lexicon = 8 * dialects.WORDS_PER_TOPIC + dialects.COMMON_WORDS
    one, other = words(1.0)
    assert len(one) == len(other) == lexicon and one != other  # each word in one spelling
    one, other = words(0.3)
    assert one == other and len(one) == 2 * lexicon  # every spelling is heard everywhere


def test_binary_positives_are_rare_and_differ_between_groups() -> None:
    federation = load({"users": 1500, "task": "binary", "ragged": 0})
    assert federation.labels == ("no", "yes")
    rates: dict[str, list[float]] = {}
    for user in range(1500):
        rates.setdefault(federation.group(user), []).append(float(labels_of(federation, range(user, user + 1)).mean()))
    assert np.mean([np.mean(group) for group in rates.values()]) == pytest.approx(0.05, abs=0.006)
    means = [np.mean(group) for group in rates.values()]
    assert max(means) > 3 * min(means)


def test_groups_are_evenly_filled() -> None:
    federation = load({"users": 8000})
    _, counts = np.unique([federation.group(user) for user in range(8000)], return_counts=True)
    assert len(counts) == 8 and counts.min() > 850 and counts.max() < 1150


def test_fresh_users_are_new_and_of_the_same_population() -> None:
    federation = load({"users": 10})
    fresh = federation.fresh(5)
    assert list(fresh.users) == [f"user-{number:06d}" for number in range(10, 15)]
    assert fresh.labels == federation.labels and fresh.fingerprint != federation.fingerprint
    larger = load({"users": 15})
    assert list(fresh.examples(0).texts) == list(larger.examples(10).texts)
    assert fresh.group(4) == larger.group(14)
    assert fresh.examples(4).authors.tolist() == [4] * len(fresh.examples(4))  # type: ignore[union-attr]
    assert list(fresh.fresh(1).users) == ["user-000015"]
    with pytest.raises(SettingsError):
        federation.fresh(0)


def test_a_million_users_cost_nothing() -> None:
    tracemalloc.start()
    start = time.perf_counter()
    federation = load({"users": 10**6})
    assert len(federation.users) == 10**6
    assert federation.users[-1] == "user-999999" and federation.users.index("user-999999") == 999_999
    assert len(federation.examples(999_999)) >= 32
    seconds = time.perf_counter() - start
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 0.5 and peak < 5_000_000
    start = time.perf_counter()
    for user in range(0, 10**6, 10_000):
        federation.examples(user)
    assert (time.perf_counter() - start) / 100 < 0.003  # 0.25 ms on an idle core
    with pytest.raises(IndexError):
        federation.examples(10**6)


@settings(max_examples=50)
@given(st.integers(1, 10**7), st.data())
def test_names_and_positions_are_each_others_inverse(users: int, data: st.DataObject) -> None:
    names = load({"users": users}).users
    position = data.draw(st.integers(0, users - 1))
    assert names.index(names[position]) == position
    assert names[position] in names and names[position] + "x" not in names


def test_finding_a_user_by_name() -> None:
    federation = load({"users": 20})
    assert find_user(federation, "user-000007") == 7
    with pytest.raises(UnknownNameError, match=r"no user 'user-000020' among 20\. Did you mean"):
        find_user(federation, "user-000020")
    assert "user-7" not in federation.users and "user-0000007" not in federation.users


def test_a_federation_can_be_sent_to_a_worker() -> None:
    federation = load({"users": 5})
    federation.examples(0)
    sent = copy.deepcopy(federation)
    assert list(sent.examples(1).texts) == list(federation.examples(1).texts)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"users": 0}, "users"),
        ({"strength": 1.5}, "strength"),
        ({"task": "regression"}, "task"),
        ({"class": 3}, "classes"),
    ],
)
def test_wrong_settings(values: dict[str, object], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        load(values)
