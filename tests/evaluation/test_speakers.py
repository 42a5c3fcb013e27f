"""Speakers of invented lines: the classifier, agreement of answers by hand, and retrieval."""

import math

import numpy as np
import pytest

from homespun.core.errors import InputError
from homespun.evaluation.intervals import cluster_numbers, expanded_percentiles, resampled_sums
from homespun.evaluation.speakers import (
    Judge,
    NamingAccuracy,
    SpeakerClassifier,
    answer_agreement,
    compare_naming,
    fit_classifier,
    naming_accuracy,
    nearest_questions,
    similar_questions,
)

LINES = {
    "ada": ["Splendid, a bridge!", "What a splendid day.", "Splendid work on the bridge."],
    "bob": ["Meh.", "Meh, not today.", "Not my bridge, meh.", "Meh again.", "Meh, meh.", "So meh."],
}


class Fixed:
    """Names ada for a text with an a."""

    def predict(self, texts):
        return np.array([0 if "a" in text else 1 for text in texts])


FIXED = SpeakerClassifier(("ada", "bob"), (Judge(Fixed()),))


def test_the_classifier_names_the_speaker():
    found = fit_classifier(LINES)
    assert found.users == ("ada", "bob")
    assert found.right([("ada", "splendid bridge!"), ("bob", "meh ."), ("ada", "Meh, I say.")]) == [1, 1, 0]


def test_frequent_speakers_do_not_win_by_their_number():
    """Both say the same, one of them twenty times as often."""
    for judge in fit_classifier({"ada": ["ab"] * 3, "bob": ["ab"] * 60}).judges:
        assert judge.pipeline.predict_proba(["ab"])[0] == pytest.approx([0.5, 0.5], abs=1e-3)


def test_judges_are_trained_on_half_of_the_lines_each():
    one, other = fit_classifier({"ada": ["A", "b", "c"], "bob": ["d", "e"], "cy": ["f"]}).judges
    assert one.lines == {"a", "b", "d", "f"} and other.lines == {"c", "e", "f"}


class Always:
    def __init__(self, label):
        self.label = label

    def predict(self, texts):
        return np.full(len(texts), self.label)


def test_a_judge_that_has_read_a_text_does_not_judge_it():
    """One judge names ada always, the other bob. Both have read "all", so both judge it."""
    judges = (Judge(Always(0), frozenset({"x", "all"})), Judge(Always(1), frozenset({"y", "all"})))
    classifier = SpeakerClassifier(("ada", "bob"), judges)
    assert classifier.right([("ada", text) for text in ("new", "X", "y", "All")]) == [0.5, 0, 1, 0.5]


def test_accuracy_by_hand():
    """ada: 2 of 3, bob: 1 of 1; the mean over users is 5/6, over texts 3/4."""
    said = [("ada", "a"), ("ada", "xa"), ("ada", "x"), ("bob", "x")]
    found = naming_accuracy(FIXED, said, clusters=[1, 1, 2, 2])
    assert isinstance(found, NamingAccuracy) and found.chance == 1 / 2
    assert found.macro.value == pytest.approx(5 / 6) and found.macro.low is None
    assert {user: one.value for user, one in found.users.items()} == pytest.approx({"ada": 2 / 3, "bob": 1})
    assert found.right == (1, 1, 0, 1)


def test_a_difference_of_accuracies_by_hand():
    """ada: 2 of 2 against 1 of 2; bob: 0 of 1 against 1 of 1; the mean of +1/2 and -1 is -1/4."""
    found = compare_naming(["ada", "ada", "bob"], [1, 1, 0], [0, 1, 1], clusters=[0, 1, 1])
    assert found.value == -1 / 4 and found.low is None  # two conversations
    users, clusters = ["ada", "bob"] * 6, range(12)
    always = compare_naming(users, [1] * 12, [0] * 12, clusters=clusters)
    assert (always.value, always.low, always.high) == (1, 1, 1)
    same = compare_naming(users, [1, 0, 0] * 4, [1, 0, 0] * 4, clusters=clusters)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    with pytest.raises(InputError, match=r"2, 2, 1, 2\. Expected as many"):
        compare_naming(["ada", "bob"], [1, 1], [1], clusters=[0, 1])


def test_the_difference_is_that_of_the_accuracies_in_each_resample():
    """The oracle counts how often each resample draws each conversation, and computes both accuracies from it."""
    draw = np.random.default_rng(1)
    users = draw.choice(["ada", "bob", "cy"], 40).tolist()
    ours, theirs, clusters = (draw.integers(0, high, 40) for high in (2, 2, 9))
    numbers = cluster_numbers(clusters.tolist())

    def macro(right, times):
        weight = times[numbers]
        shares = [
            (weight * right)[there].sum() / weight[there].sum()
            for there in (np.array(users) == user for user in ("ada", "bob", "cy"))
            if weight[there].sum()
        ]
        return sum(shares) / len(shares)

    resamples = resampled_sums(np.eye(9), seed=0)
    many = np.array([macro(ours, times) - macro(theirs, times) for times in resamples])
    found = compare_naming(users, ours.tolist(), theirs.tolist(), clusters=clusters.tolist())
    assert found.value == pytest.approx(macro(ours, np.ones(9)) - macro(theirs, np.ones(9)))
    assert (found.low, found.high) == pytest.approx(expanded_percentiles(many, units=9))


def test_accuracy_of_a_user_is_resampled_over_the_users_conversations():
    said = [("ada", "a"), ("ada", "x")] * 10 + [("bob", "x")] * 3
    found = naming_accuracy(FIXED, said, clusters=[*range(20), 0, 1, 2])
    assert found.users["ada"].low == pytest.approx(0.25, abs=0.06) and found.users["ada"].high < 0.76
    assert found.users["bob"].low is None  # three conversations
    assert found.macro.value == 0.75 and found.macro.low < 0.75 < found.macro.high


def test_a_resample_without_a_user_leaves_the_user_out():
    """bob speaks in one of six conversations: a third of the resamples are without him."""
    found = naming_accuracy(FIXED, [("ada", "a")] * 6 + [("bob", "x")], clusters=[0, 1, 2, 3, 4, 5, 0])
    assert (found.macro.value, found.macro.low, found.macro.high) == (1, 1, 1)


def test_unknown_speakers_are_rejected():
    with pytest.raises(InputError, match="users eve: the classifier does not know them"):
        naming_accuracy(FIXED, [("eve", "x")], clusters=[0])
    with pytest.raises(InputError, match="1 texts and 2 clusters"):
        naming_accuracy(FIXED, [("ada", "x")], clusters=[0, 1])
    with pytest.raises(InputError, match=r"ada: 1, bob: 0"):
        fit_classifier({"ada": ["a"], "bob": []})


def test_similar_questions_by_hand():
    """All words weigh the same, so that the cosine of two words each is the share of common words."""
    questions = ["red sun", "sun moon", "red moon!", "Moon, RED?"]
    corpus = ["red sun moon"]
    assert similar_questions(questions, threshold=0.5, corpus=corpus) == [
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 2),
        (1, 3),
        (2, 3),
    ]
    assert similar_questions(questions, threshold=0.51, corpus=corpus) == [(2, 3)]
    assert similar_questions(questions, threshold=1, corpus=corpus) == [(2, 3)]
    pairs = similar_questions(questions, threshold=0.5, corpus=corpus, users=["ada", "bob", "bob", "ada"])
    assert pairs == [(0, 3), (1, 2)]


def test_the_same_question_is_no_paraphrase():
    assert similar_questions(["who is it?", "Who is it ?", "is it who?"], threshold=0.9) == [(0, 2), (1, 2)]


def test_blocks_find_the_same_pairs(monkeypatch):
    draw = np.random.default_rng(0)
    questions = [" ".join(f"w{word}" for word in draw.integers(0, 9, 4)) for _ in range(40)]
    whole = similar_questions(questions, threshold=0.6)
    nearest = nearest_questions(questions[:20], questions[20:])
    monkeypatch.setattr("homespun.evaluation.speakers.BLOCK", 7)
    assert len(whole) > 20 and similar_questions(questions, threshold=0.6) == whole == sorted(whole)
    assert nearest_questions(questions[:20], questions[20:]) == nearest


def test_agreement_by_hand():
    """All words weigh the same. "red sun" and "red moon" have the cosine 1/2, "red sun" and "red" 1/√2."""
    answers = ["red sun", "red moon", "red", "moon"]
    found = answer_agreement(answers, [(0, 1)], corpus=["red sun moon"])
    assert (found.pairs, found.similar) == (1, pytest.approx(1 / 2))
    half = 1 / math.sqrt(2)
    assert found.other == pytest.approx((half + 0 + half + half + 0) / 5)  # (0,2) (0,3) (1,2) (1,3) (2,3)
    assert found.gap == pytest.approx(1 / 2 - 3 * half / 5)


def test_always_the_same_answer_has_no_gap():
    found = answer_agreement(["I see."] * 6, [(0, 1), (2, 4)])
    assert found.similar == pytest.approx(1) and found.other == pytest.approx(1)
    assert found.gap == pytest.approx(0)


def test_users_weigh_the_same_in_both_means():
    """ada says the same to everything and has two of three pairs; bob never repeats a word."""
    answers = ["red"] * 4 + ["sun", "moon", "star"]
    users = ["ada"] * 4 + ["bob"] * 3
    found = answer_agreement(answers, [(0, 1), (2, 3), (4, 5)], users=users)
    assert (found.similar, found.other) == pytest.approx((2 / 3, 2 / 3))


def test_agreement_needs_pairs_of_a_user():
    with pytest.raises(InputError, match="Lower the threshold"):
        answer_agreement(["a", "b"], [])
    with pytest.raises(InputError, match="pairs of different users"):
        answer_agreement(["a", "b"], [(0, 1)], users=["ada", "bob"])
    with pytest.raises(InputError, match="all answers are to similar questions"):
        answer_agreement(["a", "b"], [(0, 1)])
    with pytest.raises(InputError, match="have no words"):
        answer_agreement(["!", "?", "."], [(0, 1)])
    with pytest.raises(InputError, match="threshold of similarity 0"):
        similar_questions(["a"], threshold=0)


def test_the_nearest_training_question():
    known = ["red sun", "blue moon", "moon blue", "green"]
    questions = ["a blue MOON?", "sun", "nothing known", "green, red"]
    assert nearest_questions(known, questions) == [1, 0, 0, 3]
    assert nearest_questions(known, []) == []
    assert nearest_questions(["...", ""], questions) == [0] * len(questions)  # no word to compare
    with pytest.raises(InputError, match="no training pairs"):
        nearest_questions([], ["a"])
