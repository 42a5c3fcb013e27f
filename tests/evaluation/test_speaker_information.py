"""What knowing the speaker could gain, with classifiers whose probabilities are known."""

import math

import numpy as np
import pytest

from homespun.evaluation.speaker_information import speaker_information
from homespun.evaluation.speakers import Judge, SpeakerClassifier, fit_classifier

EQUAL = {"ada": 10, "bo": 10}


class Known:
    """Probabilities of the speakers of each text, given by hand."""

    def __init__(self, probabilities):
        self.probabilities = probabilities

    def predict_log_proba(self, texts):
        return np.log([self.probabilities[text] for text in texts])


def test_by_hand():
    """Said by ada in three of four cases: honest probabilities, so the factor on the scores is 1 and a reply of ada
    gains log(0.75) - log(0.5)."""
    classifier = SpeakerClassifier(("ada", "bo"), (Judge(Known({"x": (0.75, 0.25), "y": (0.25, 0.75)})),))
    dev = [("ada", "x")] * 3 + [("bo", "x")] + [("bo", "y")] * 3 + [("ada", "y")]
    found = speaker_information(classifier, replies=EQUAL, dev=dev, test=[("ada", "x"), ("ada", "y"), ("bo", "y")])
    assert found == pytest.approx([math.log(1.5), math.log(0.5), math.log(1.5)])


def test_a_classifier_that_knows_nothing_is_not_believed():
    """It is sure, and right in half of the cases."""
    classifier = SpeakerClassifier(("ada", "bo"), (Judge(Known({"x": (0.99, 0.01)})),))
    dev = [("ada", "x"), ("bo", "x")]
    assert speaker_information(classifier, replies=EQUAL, dev=dev, test=dev) == pytest.approx([0.0, 0.0])


def test_shares_of_speakers_are_no_information():
    """Ada says nine of ten replies. A model without personas was trained on that mixture, so a classifier that finds
    nothing in a reply gains nothing."""
    classifier = SpeakerClassifier(("ada", "bo"), (Judge(Known({"x": (0.5, 0.5)})),))
    dev = [("ada", "x")] * 9 + [("bo", "x")]
    found = speaker_information(classifier, replies={"ada": 90, "bo": 10}, dev=dev, test=dev)
    assert found == pytest.approx([0.0] * 10)


def test_by_hand_with_shares():
    """p(ada) = 0.8, and x is said twice as often by bo: p(ada|x) = 0.8 / (0.8 + 2 * 0.2) = 2/3."""
    classifier = SpeakerClassifier(("ada", "bo"), (Judge(Known({"x": (1 / 3, 2 / 3), "y": (0.5, 0.5)})),))
    dev = [("ada", "x")] * 2 + [("bo", "x")]  # honest with the factor 1
    found = speaker_information(classifier, replies={"ada": 8, "bo": 2}, dev=dev, test=[("ada", "x"), ("bo", "x")])
    assert found == pytest.approx([math.log(2 / 3 / 0.8), math.log(1 / 3 / 0.2)])


def test_lines_of_real_speakers_give_information_up_to_the_entropy():
    lines = {"ada": ["yes sir", "yes of course", "oh yes"] * 9, "bo": ["no way", "no no", "never no"] * 9}
    classifier = fit_classifier(lines)
    said = [("ada", "yes yes"), ("bo", "no never"), ("ada", "yes sir"), ("bo", "no way")]
    for gain in speaker_information(classifier, replies=EQUAL, dev=said, test=said):
        assert 0.3 < gain < math.log(2)


def test_without_replies_to_choose_by_the_classifier_is_believed():
    classifier = SpeakerClassifier(("ada", "bo"), (Judge(Known({"x": (0.75, 0.25)})),))
    assert speaker_information(classifier, replies=EQUAL, dev=[], test=[("ada", "x")]) == pytest.approx([math.log(1.5)])
    assert speaker_information(classifier, replies=EQUAL, dev=[], test=[]) == []
