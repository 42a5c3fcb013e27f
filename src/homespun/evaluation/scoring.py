"""Which scoring a method has."""

from __future__ import annotations

from homespun.core.method import Method
from homespun.core.scores import Scoring
from homespun.evaluation.classification import LabelScoring
from homespun.evaluation.language import TokenScoring


def scoring_of(method: Method) -> Scoring:
    return TokenScoring() if method.predicts == "text" else LabelScoring(method.task.classes, method.metric)
