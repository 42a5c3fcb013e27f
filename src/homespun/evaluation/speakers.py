"""Do generated replies sound like the person, and is the person consistent?

- Is it the person? A classifier of speakers, trained on real lines, names the speaker of a reply: `fit_classifier`,
  `naming_accuracy`, `compare_naming`. Compare with its accuracy on real held-out lines, and with `chance`. A model, or
  retrieval, may repeat a training line, which a classifier that was trained on it would recognize. So there are two,
  trained on half of the lines each, and only those that have not read a text judge it.
- Is the person consistent? The answers of one speaker to similar questions should be more similar than the answers to
  other questions: `similar_questions`, `answer_agreement`. A model that always gives the same answer has a similarity
  of 1 in both cases, and a gap of 0.
- Retrieval control: the speaker's answer to the most similar question of the training data: `nearest_questions`.

Texts are compared by lower-case words, so that "I know ." and "i know." are the same text. Similarity is the cosine of
TF-IDF word vectors.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from homespun.core.errors import InputError
from homespun.evaluation.intervals import Estimate, cluster_numbers, estimate, resampled_sums

WORD = r"\w+(?:'\w+)*"
TOKEN = re.compile(WORD + r"|[^\w\s]")
CHARACTERS = (1, 4)  # lengths of the classifier's character n-grams
INVERSE_PENALTY = 1.0
MAX_STEPS = 1_000
BLOCK = 512  # questions compared with all others at once
ROUNDING = 1e-9


@dataclass(frozen=True)
class Judge:
    """A classifier of texts, and the lines that it was trained on."""

    pipeline: Any  # scikit-learn
    lines: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SpeakerClassifier:
    """Names the speaker of a text."""

    users: tuple[str, ...]
    judges: tuple[Judge, ...]

    def right(self, said: Sequence[tuple[str, str]]) -> list[float]:
        """The share of the judges who name the right user, for each (user, text). A judge that has read a text counts
        only if all have."""
        texts, labels = _normalized([text for _, text in said]), [self.users.index(user) for user, _ in said]
        named = np.array([judge.pipeline.predict(texts) == np.array(labels) for judge in self.judges], dtype=np.float64)
        fresh = np.array([[text not in judge.lines for text in texts] for judge in self.judges])
        fresh |= ~fresh.any(axis=0)
        shares: list[float] = ((named * fresh).sum(axis=0) / fresh.sum(axis=0)).tolist()
        return shares

    def scores(self, texts: Sequence[str]) -> np.ndarray:
        """Unnormalized log probabilities [texts, users] of the speakers, who are equally likely beforehand."""
        return np.mean([judge.pipeline.predict_log_proba(_normalized(texts)) for judge in self.judges], axis=0)


@dataclass(frozen=True)
class NamingAccuracy:
    """How often the classifier names the right speaker, with intervals over conversations."""

    macro: Estimate  # mean over users
    users: Mapping[str, Estimate]
    chance: float  # macro accuracy of guessing
    right: tuple[float, ...]  # for each text the share of judges who name its speaker


@dataclass(frozen=True)
class Agreement:
    """Mean similarity of a speaker's answers to similar questions, and to other questions."""

    pairs: int
    similar: float
    other: float

    @property
    def gap(self) -> float:
        return self.similar - self.other


def fit_classifier(lines: Mapping[str, Sequence[str]], *, seed: int = 0) -> SpeakerClassifier:
    """Train two classifiers, each on half of the lines of every user: TF-IDF of character n-grams within words,
    logistic regression, users weighted equally.

    The halves are the first and the second, so that most conversations are in one of them.
    """
    if len(lines) < 2 or not all(lines.values()):
        sizes = ", ".join(f"{user}: {len(said)}" for user, said in lines.items())
        raise InputError(f"lines of speakers ({sizes}). Expected at least two users, each with at least one line.")
    middle = {user: (len(said) + 1) // 2 for user, said in lines.items()}
    first = {user: said[: middle[user]] for user, said in lines.items()}
    second = {user: said[middle[user] :] or said for user, said in lines.items()}
    return SpeakerClassifier(tuple(lines), tuple(_fit_judge(half, seed=seed) for half in (first, second)))


def _fit_judge(lines: Mapping[str, Sequence[str]], *, seed: int) -> Judge:
    from sklearn.feature_extraction.text import TfidfVectorizer  # slow to import, and few evaluations need it
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    labels = [label for label, said in enumerate(lines.values()) for _ in said]
    texts = _normalized([line for said in lines.values() for line in said])
    pipeline = make_pipeline(
        TfidfVectorizer(analyzer="char_wb", ngram_range=CHARACTERS, sublinear_tf=True),
        LogisticRegression(C=INVERSE_PENALTY, class_weight="balanced", max_iter=MAX_STEPS, random_state=seed),
    )
    return Judge(pipeline.fit(texts, labels), frozenset(texts))


def naming_accuracy(
    classifier: SpeakerClassifier, said: Sequence[tuple[str, str]], *, clusters: Sequence[Hashable], seed: int = 0
) -> NamingAccuracy:
    """The share of (user, text) pairs whose user the judges name. `clusters` names the conversation of each.

    The bootstrap draws conversations; for a single user, those in which the user speaks.
    """
    if not said or len(said) != len(clusters):
        raise InputError(f"{len(said)} texts and {len(clusters)} clusters. Expected as many, and at least one.")
    unknown = sorted({user for user, _ in said} - set(classifier.users))
    if unknown:
        raise InputError(f"users {', '.join(unknown)}: the classifier does not know them. Train it on their lines too.")
    users = [user for user, _ in said]
    right = classifier.right(said)

    def accuracy(rows: Sequence[int]) -> Estimate:
        where = [clusters[row] for row in rows]
        return macro_accuracy([users[row] for row in rows], [right[row] for row in rows], clusters=where, seed=seed)

    return NamingAccuracy(
        macro=accuracy(range(len(said))),
        users={
            user: accuracy([row for row, name in enumerate(users) if name == user]) for user in dict.fromkeys(users)
        },
        chance=1 / len(classifier.users),
        right=tuple(right),
    )


def macro_accuracy(
    users: Sequence[str], right: Sequence[float], *, clusters: Sequence[Hashable], seed: int = 0
) -> Estimate:
    """The mean over users of the share of their texts that are named right, from a number from 0 to 1 for each."""
    return _macro_estimate(users, [right], clusters=clusters, seed=seed)


def compare_naming(
    users: Sequence[str],
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    clusters: Sequence[Hashable],
    seed: int = 0,
) -> Estimate:
    """The difference ours - theirs in macro accuracy on the same questions, by a paired bootstrap."""
    return _macro_estimate(users, [ours, theirs], clusters=clusters, seed=seed)


def _macro_estimate(
    users: Sequence[str], sides: Sequence[Sequence[float]], *, clusters: Sequence[Hashable], seed: int
) -> Estimate:
    """Macro accuracy of the first side, minus that of the second if there is one. A resample without a user leaves the
    user out."""
    if not users or any(len(one) != len(users) for one in (*sides, clusters)):
        sizes = ", ".join(str(len(one)) for one in (users, *sides, clusters))
        raise InputError(f"users, texts that are named right and clusters: {sizes}. Expected as many, at least one.")
    numbers, columns = cluster_numbers(clusters), cluster_numbers(users)
    gain = np.asarray(sides[0], dtype=np.float64) - (np.asarray(sides[1]) if len(sides) > 1 else 0)
    right, texts = np.zeros((2, int(numbers.max()) + 1, int(columns.max()) + 1))
    np.add.at(right, (numbers, columns), gain)
    np.add.at(texts, (numbers, columns), 1)
    many_right, many_texts = np.split(resampled_sums(np.hstack([right, texts]), seed=seed), 2, axis=1)
    accuracies = np.where(many_texts > 0, many_right / np.maximum(many_texts, 1), 0.0)
    resampled = accuracies.sum(axis=1) / (many_texts > 0).sum(axis=1)
    return estimate(float(np.mean(right.sum(axis=0) / texts.sum(axis=0))), resampled, units=len(texts))


def similar_questions(
    questions: Sequence[str],
    *,
    threshold: float,
    users: Sequence[Hashable] | None = None,
    corpus: Sequence[str] | None = None,
) -> list[tuple[int, int]]:
    """Pairs (i, j) of questions, i < j, whose similarity is at least `threshold`, in ascending order.

    With `users`, only questions to the same user are paired. Questions of the same words are not: any deterministic
    model answers them alike. `corpus` has the texts for the word weights, by default the questions.
    """
    if not 0 < threshold <= 1:
        raise InputError(f"threshold of similarity {threshold}: expected a number above 0, at most 1.")
    asked = _one_user(users, questions)
    words = [tuple(re.findall(WORD, question.lower())) for question in questions]
    vectors = _word_vectors(corpus if corpus is not None else questions, questions)
    found = []
    for begin, similarity in _similarity_blocks(vectors, vectors):
        for row, other in zip(*np.nonzero(similarity >= threshold - ROUNDING), strict=True):
            one = begin + int(row)
            if one < other and asked[one] == asked[other] and words[one] != words[other]:
                found.append((one, int(other)))
    return found


def answer_agreement(
    answers: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    *,
    users: Sequence[Hashable] | None = None,
    corpus: Sequence[str] | None = None,
) -> Agreement:
    """The similarity of the answers of `pairs`, and of all other pairs of answers of the same user.

    Users weigh the same in both means, by their share of `pairs`. `corpus` has the texts for the word weights: give two
    systems the same, for instance the training lines. An answer without a word of the corpus is similar to none.
    """
    said = _one_user(users, answers)
    if not pairs:
        raise InputError("no pairs of similar questions. Lower the threshold, or ask more questions.")
    if any(said[one] != said[other] or one == other for one, other in pairs):
        raise InputError("pairs of different users, or of a question with itself: use `similar_questions` with users.")
    vectors = _word_vectors(corpus if corpus is not None else answers, answers)
    left, right = np.array(pairs).T
    similar = np.asarray(vectors[left].multiply(vectors[right]).sum(axis=1)).ravel()
    other = 0.0
    for user in dict.fromkeys(said[one] for one in left):
        ours = np.array([said[one] == user for one in left])
        own = vectors[[place for place, one in enumerate(said) if one == user]]
        number = own.shape[0] * (own.shape[0] - 1) / 2 - ours.sum()
        if number < 1:
            raise InputError(f"user {user!r}: all answers are to similar questions. Raise the threshold.")
        together = np.asarray(own.sum(axis=0)).ravel()
        everything = (together @ together - own.multiply(own).sum()) / 2
        other += ours.mean() * (everything - similar[ours].sum()) / number
    return Agreement(len(pairs), float(similar.mean()), float(other))


def nearest_questions(known: Sequence[str], questions: Sequence[str]) -> list[int]:
    """For every question, the place of the most similar one among `known`; the first of equals, also if no word is
    shared, or if none has a word."""
    if not known:
        raise InputError("no training pairs to retrieve an answer from. Leave the speaker out.")
    if not any(re.search(WORD, text) for text in known):
        return [0] * len(questions)
    if not questions:
        return []
    blocks = _similarity_blocks(_word_vectors(known, questions), _word_vectors(known, known))
    # rounded, as the order of additions makes equal similarities differ
    nearest = np.concatenate([np.round(similarity, 9).argmax(axis=1) for _, similarity in blocks])
    return [int(place) for place in nearest]


def _one_user(users: Sequence[Hashable] | None, texts: Sequence[str]) -> Sequence[Hashable]:
    found = users if users is not None else [None] * len(texts)
    if len(found) != len(texts) or not texts:
        raise InputError(f"{len(texts)} texts of {len(found)} users. Expected as many, and at least one.")
    return found


def _normalized(texts: Sequence[str]) -> list[str]:
    return [" ".join(TOKEN.findall(text.lower())) for text in texts]


def _word_vectors(corpus: Sequence[str], texts: Sequence[str]) -> Any:
    """Sparse TF-IDF vectors [texts, words] of length 1, with the word weights of a corpus."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    if not any(re.search(WORD, text) for text in corpus):
        raise InputError("the texts that word weights are taken from have no words.")
    return TfidfVectorizer(token_pattern=WORD, lowercase=True).fit(corpus).transform(texts)


def _similarity_blocks(rows: Any, columns: Any) -> Iterator[tuple[int, np.ndarray]]:
    """Cosines [some rows, columns], with the number of the first row."""
    edges = [*range(0, rows.shape[0], BLOCK), rows.shape[0]]
    for begin, end in pairwise(edges):
        yield begin, (rows[begin:end] @ columns.T).toarray()
