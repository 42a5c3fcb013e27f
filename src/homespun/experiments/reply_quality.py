"""The quality of a dialogue run's replies to test prompts: BLEU, diversity, and whether they sound like the speaker.

Perplexity per conversation comes with it, so that runs can be compared by intervals over conversations: a corpus of
few speakers says little about other speakers, but its conversations are many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np

from homespun.core import seeds
from homespun.core.errors import InputError
from homespun.core.progress import start_count
from homespun.core.roles import Role
from homespun.core.words import words
from homespun.data.federation import Examples
from homespun.engines.client import Client
from homespun.evaluation.bleu import sacrebleu_corpus
from homespun.evaluation.intervals import Estimate, estimate, resampled_sums
from homespun.evaluation.language import ReplyScoring
from homespun.evaluation.replies import evaluate_replies
from homespun.evaluation.speakers import (
    SpeakerClassifier,
    answer_agreement,
    fit_classifier,
    naming_accuracy,
    nearest_answer,
    similar_questions,
)
from homespun.models.vocabulary import UNKNOWN
from homespun.personalization.replies import Replier, Search, Speaker, find_replier
from homespun.runs.run import Run

AT_ONCE = 20  # prompts searched together
Who = TypeVar("Who", str, Speaker)
SHOWN = 4  # speakers, and prompts, of the samples in a report
SIMILAR = 0.7  # cosine of two questions that count as paraphrases


@dataclass(frozen=True)
class TestPair:
    """A prompt of a user's test part and the reply they gave."""

    __test__ = False  # not a test class

    user: str
    prompt: str
    reply: str
    conversation: int


@dataclass(frozen=True)
class ReplyTest:
    """What replies of runs on one corpus and split are compared with."""

    pairs: tuple[TestPair, ...]
    classifier: SpeakerClassifier

    @property
    def clusters(self) -> list[int]:
        return [one.conversation for one in self.pairs]


def part_of(run: Run, user: str, part: Literal["train", "test"]) -> Examples:
    examples: Examples = getattr(run.clients.split(run.federation, run.federation.users.index(user)), part)
    return examples


def make_reply_test(run: Run, *, replies: int) -> ReplyTest:
    """About `replies` test pairs, as many of each participant, and a classifier of the training parts' lines."""
    users = list(run.federation.users)
    pairs = []
    for user in users:
        test = part_of(run, user, "test")
        count = min(len(test), max(1, round(replies / len(users))))
        for row in np.unique(np.linspace(0, len(test) - 1, count).round().astype(np.int64)) if count else ():
            prompts, conversations = test.prompts or (), test.conversations
            conversation = -1 if conversations is None else int(conversations[row])
            pairs.append(TestPair(user, prompts[row] or "", test.texts[row], conversation))
    lines = {user: part_of(run, user, "train").texts for user in users}
    return ReplyTest(tuple(pairs), fit_classifier(lines, seed=run.settings.seed))


def write_replies(
    replier: Replier, pairs: Sequence[TestPair], *, search: Search, persona: Literal["own", "another"] = "own"
) -> list[str]:
    """The best reply to each prompt, by its own speaker, or with another speaker's private parameters."""
    users = list(dict.fromkeys(one.user for one in pairs))
    speakers = {user: replier.speaker(user) for user in users}
    if persona == "another":
        speakers = dict(
            zip(users, _shuffled([speakers[user] for user in users], replier.run.settings.seed), strict=True)
        )
    done = start_count(replier.run.progress, f"replies, {persona} persona", total=len(pairs))
    found: list[str] = []
    for start in range(0, len(pairs), AT_ONCE):
        some = pairs[start : start + AT_ONCE]
        found += replier.best_replies([(one.prompt, speakers[one.user]) for one in some], search=search)
        done(len(some))
    return found


def _shuffled(speakers: Sequence[Who], seed: int) -> list[Who]:
    """The speakers in another order, in which none keeps their place."""
    order = seeds.numpy_generator(seed, "shuffled personas").permutation(len(speakers))
    following = dict(zip(order.tolist(), np.roll(order, 1).tolist(), strict=True))
    return [speakers[following[place]] for place in range(len(speakers))]


def score_replies(test: ReplyTest, written: Sequence[str]) -> dict[str, Any]:
    """All metrics of one reply per test pair, each with an interval over conversations."""
    pairs, clusters = test.pairs, test.clusters
    spoken = [words(text) for text in written]
    metrics = evaluate_replies(spoken, [words(one.reply) for one in pairs], clusters=clusters)
    users = [one.user for one in pairs]
    named = naming_accuracy(test.classifier, list(zip(users, written, strict=True)), clusters=clusters)
    similar = similar_questions([one.prompt for one in pairs], threshold=SIMILAR, users=users)
    found: dict[str, Any] = {name: [one.value, one.low, one.high] for name, one in metrics.items()}
    found["speaker"] = [named.macro.value, named.macro.low, named.macro.high]
    with suppress(InputError):  # without the extra `dialogue`
        found["sacrebleu"], found["signature"] = sacrebleu_corpus(list(written), [one.reply for one in pairs])
    if similar:
        agreement = answer_agreement(written, similar, users=users)
        found["consistency"] = [agreement.similar, agreement.other, agreement.pairs]
    return found


def retrieved_replies(run: Run, pairs: Sequence[TestPair]) -> list[str]:
    """The control: the speaker's own answer to the nearest training prompt."""
    found: dict[int, str] = {}
    for user in dict.fromkeys(one.user for one in pairs):
        train = part_of(run, user, "train")
        known = [(prompt or "", text) for prompt, text in zip(train.prompts or (), train.texts, strict=True)]
        rows = [row for row, one in enumerate(pairs) if one.user == user]
        found |= dict(zip(rows, nearest_answer(known, [pairs[row].prompt for row in rows]), strict=True))
    return [found[row] for row in range(len(pairs))]


def conversation_losses(run: Run, persona: Literal["own", "another"] = "own") -> dict[str, list[float]]:
    """The loss and the number of words of each conversation in the test parts of all participants."""
    users = list(run.federation.users)
    private = run.clients.private(users, run.state.broadcast())
    speaker = dict(zip(users, users, strict=True))  # whose persona is used
    if persona == "another":
        speaker = dict(zip(users, _shuffled(users, run.settings.seed), strict=True))
    clients, conversations = [], []
    for user in users:
        test = part_of(run, user, "test")
        author = np.full(len(test), users.index(speaker[user]), dtype=np.int64)  # of a table of personas
        data = run.method.model.encode(replace(test, authors=author))
        clients.append(Client(user, private[speaker[user]], data))
        conversations.append(test.conversations if test.conversations is not None else np.arange(len(test)))
    clients_with = [one for one in clients if one.examples]
    outputs = run.trainer.predict(run.state.broadcast(), clients_with)
    loss: dict[int, float] = {}
    count: dict[int, float] = {}
    for client, output, names in zip(clients_with, outputs, [c for c in conversations if len(c)], strict=True):
        per_example = output.double().sum(dim=1).tolist()
        for name, one, length in zip(names.tolist(), per_example, client.data["length"].tolist(), strict=True):
            loss[name] = loss.get(name, 0.0) + one
            count[name] = count.get(name, 0.0) + length
    order_of = sorted(loss)
    return {"loss": [round(loss[one], 4) for one in order_of], "words": [count[one] for one in order_of]}


def reply_results(run: Run) -> dict[str, Any] | None:
    """The section `replies` of results.json: scores of a dialogue run's replies to test prompts, of the same replies
    with other speakers' personas, and of two controls; losses by conversation; a few prompts with all replies."""
    scoring = run.scoring
    if not isinstance(scoring, ReplyScoring) or not scoring.replies or len(run.federation.users) < 2:
        return None
    test = make_reply_test(run, replies=scoring.replies)
    if not test.pairs:
        return None
    search, replier = Search(beam=scoring.beam), find_replier(run, reranked=False)
    written = {
        "own": write_replies(replier, test.pairs, search=search),
        "retrieved": retrieved_replies(run, test.pairs),
        "real": [one.reply for one in test.pairs],
    }
    found: dict[str, Any] = {"beam": scoring.beam, "prompts": len(test.pairs), "losses": conversation_losses(run)}
    if run.built.partition.names(Role.PRIVATE) or "author" in run.method.model.keys.values():
        written["another"] = write_replies(replier, test.pairs, search=search, persona="another")
        found["losses_another"] = conversation_losses(run, "another")
    scores = {name: score_replies(test, texts) for name, texts in written.items()}
    return {**found, "scores": scores, "samples": sample_replies(replier, test.pairs, search=search)}


def sample_replies(replier: Replier, pairs: Sequence[TestPair], *, search: Search) -> list[dict[str, str]]:
    """FedNLG's table 2: the same prompts, answered by several speakers. A rule chooses the prompts: of the first
    participants, the first test prompt of 4 to 10 words that the model knows all."""
    users = list(replier.run.federation.users)[:SHOWN]
    speakers = [replier.speaker(user) for user in users]
    prompts = []
    for user in users:
        known = (one.prompt for one in pairs if one.user == user and _is_plain(replier, one.prompt))
        prompts += [prompt for prompt in [next(known, None)] if prompt is not None]
    found = []
    for prompt in prompts:
        for speaker in speakers:
            (text,) = replier.best_replies([(prompt, speaker)], search=search)
            found.append({"prompt": prompt, "user": speaker.user or "", "reply": text})
    return found


def _is_plain(replier: Replier, prompt: str) -> bool:
    numbers = replier.vocabulary.encode(prompt)
    return 4 <= len(numbers) <= 10 and UNKNOWN not in numbers


def perplexity(losses: Mapping[str, Sequence[float]]) -> float:
    return float(np.exp(sum(losses["loss"]) / sum(losses["words"])))


def compare_losses(ours: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]]) -> Estimate:
    """The difference in perplexity in percent, by a paired bootstrap over conversations."""
    if list(ours["words"]) != list(theirs["words"]):
        raise ValueError("the two sides were not scored on the same conversations")
    gap = np.subtract(ours["loss"], theirs["loss"])
    total = resampled_sums(np.stack([gap, np.asarray(ours["words"], dtype=np.float64)], axis=1), seed=0)
    value = 100 * float(np.expm1(gap.sum() / sum(ours["words"])))
    return estimate(value, 100 * np.expm1(total[:, 0] / total[:, 1]), units=len(gap))
