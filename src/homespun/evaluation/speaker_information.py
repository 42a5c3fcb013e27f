"""How much the perplexity of replies could fall if the speaker is known, estimated with a classifier of speakers.

By Bayes' rule, what knowing speaker i adds to the log probability of a reply R is what reading R adds to that of i:

    log p(R|i) - log p(R) = log p(i|R) - log p(i)

The right side is measured on held-out replies. It is neither a lower nor an upper bound of what a persona gains: a
better classifier would find more, and the classifier reads the reply alone, while a persona also knows the prompt Q,
from which a part of the speaker may be known already.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import log_softmax

from homespun.evaluation.speakers import SpeakerClassifier

FACTORS = tuple(np.linspace(0, 2, 41).round(2).tolist())

Said = Sequence[tuple[str, str]]  # user and text of each reply


def speaker_information(classifier: SpeakerClassifier, *, dev: Said, test: Said) -> list[float]:
    """log p(i|R) - log p(i) of each test reply, in nats. p(i) is uniform.

    The factor on the classifier's scores, which makes its probabilities honest, is chosen on `dev`.
    """
    (dev_scores, dev_speakers), (scores, speakers) = _read(classifier, dev), _read(classifier, test)
    factor = max(FACTORS, key=lambda one: float(_gains(one * dev_scores, dev_speakers).mean()))
    return [float(one) for one in _gains(factor * scores, speakers)]


def _read(classifier: SpeakerClassifier, said: Said) -> tuple[np.ndarray, np.ndarray]:
    """The classifier's scores [replies, users], and the number of each reply's user."""
    speakers = np.array([classifier.users.index(user) for user, _ in said])
    return classifier.scores([text for _, text in said]), speakers


def _gains(scores: np.ndarray, speakers: np.ndarray) -> np.ndarray:
    found: np.ndarray = log_softmax(scores, axis=1)[np.arange(len(scores)), speakers]
    return found + np.log(scores.shape[1])
