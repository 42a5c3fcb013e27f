"""How much the perplexity of replies could fall if the speaker is known, estimated with a classifier of speakers.

By Bayes' rule, what knowing speaker i adds to the log probability of a reply R is what reading R adds to that of i:

    log p(R|i) - log p(R) = log p(i|R) - log p(i)

The right side is measured on held-out replies. p(i) is the speaker's share of the training replies, because the model
without personas, whose p(R) this is compared with, was trained on that mixture. It is neither a lower nor an upper
bound of what a persona gains: a better classifier would find more, and the classifier reads the reply alone, while a
persona also knows the prompt Q, from which a part of the speaker may be known already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import log_softmax

from homespun.evaluation.speakers import SpeakerClassifier

FACTORS = tuple(np.linspace(0, 2, 41).round(2).tolist())

Said = Sequence[tuple[str, str]]  # user and text of each reply


def speaker_information(
    classifier: SpeakerClassifier, *, replies: Mapping[str, int], dev: Said, test: Said
) -> list[float]:
    """log p(i|R) - log p(i) of each test reply, in nats. p(i) is proportional to `replies`, the number of training
    replies of each user.

    The classifier weighs users equally. The factor on its scores, which makes its probabilities honest, is chosen on
    `dev`; without any, it is 1.
    """
    prior = np.log([replies[user] for user in classifier.users]) - np.log(sum(replies.values()))
    if not test:
        return []
    factor, (scores, speakers) = 1.0, _read(classifier, test)
    if dev:
        dev_scores, dev_speakers = _read(classifier, dev)
        factor = max(FACTORS, key=lambda one: float(_gains(one * dev_scores, dev_speakers, prior=prior).mean()))
    return [float(one) for one in _gains(factor * scores, speakers, prior=prior)]


def _read(classifier: SpeakerClassifier, said: Said) -> tuple[np.ndarray, np.ndarray]:
    """The classifier's scores [replies, users], and the number of each reply's user."""
    speakers = np.array([classifier.users.index(user) for user, _ in said])
    return classifier.scores([text for _, text in said]), speakers


def _gains(scores: np.ndarray, speakers: np.ndarray, *, prior: np.ndarray) -> np.ndarray:
    found: np.ndarray = log_softmax(scores + prior, axis=1)[np.arange(len(scores)), speakers]
    return found - prior[speakers]
