"""The quality of a dialogue run's replies to test prompts: BLEU, diversity, and whether they sound like the speaker.

Perplexity per conversation comes with it, so that runs can be compared by intervals over conversations: a corpus of
few speakers says little about other speakers, but its conversations are many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import comb
from typing import Any, Literal, TypeVar

import numpy as np
from torch import Tensor

from homespun.core.errors import HomespunError, InputError
from homespun.core.method import Batch
from homespun.core.progress import start_count
from homespun.core.words import words
from homespun.data.federation import Examples
from homespun.engines.client import Client
from homespun.evaluation.bleu import sacrebleu_corpus
from homespun.evaluation.conversation_losses import sum_by_conversation
from homespun.evaluation.language import ReplyScoring
from homespun.evaluation.replies import evaluate_replies
from homespun.evaluation.speaker_information import speaker_information
from homespun.evaluation.speakers import (
    SpeakerClassifier,
    answer_agreement,
    fit_classifier,
    naming_accuracy,
    nearest_questions,
    similar_questions,
)
from homespun.models.reply_model import ReplyModel, load_inverse, load_reply_model
from homespun.personalization.replies import BestReply, Replier, Search, find_replier, find_reply_base
from homespun.personalization.reranker_tuning import tune_reranker
from homespun.runs.clients import take_evenly_spaced
from homespun.runs.controls import untouched_replies
from homespun.runs.run import Run

AT_ONCE = 20  # prompts searched together
SAMPLED = Search(decode="sample")  # draws from the model, where the best replies are few and alike
Item = TypeVar("Item")
# Scored replies, their names with another speaker's persona, and both after reranking
ANOTHER = {"own": "another", "sampled": "sampled_another", "guided": "guided_another"}
RERANKED = {"own": "reranked", "another": "reranked_another"}
CONTROLS = ("retrieved", "real", "retrieved_sampled", "real_sampled")
PARTS = (*ANOTHER, *ANOTHER.values(), *RERANKED.values(), *CONTROLS)
OTHERS = 5  # other speakers whose personas a speaker is compared with
SHOWN = 4  # speakers, and prompts, of the samples in a report
SIMILAR = 0.7  # cosine of two questions that count as paraphrases
PARAPHRASES = 50  # pairs of them whose answers are compared


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

    pairs: tuple[TestPair, ...]  # whose best replies are scored
    paraphrased: tuple[TestPair, ...]  # to compare with each other
    similar: tuple[tuple[int, int], ...]  # places in `paraphrased` of two prompts to one user that are paraphrases
    sampled: tuple[TestPair, ...]  # whose sampled replies are scored
    nearest: Mapping[TestPair, str]  # the control: the speaker's answer to the nearest training prompt
    classifier: SpeakerClassifier
    lines: tuple[str, ...]  # that the classifier was trained on

    @property
    def asked(self) -> tuple[TestPair, ...]:
        """All pairs whose prompts a run answers: those to score come first."""
        return (*self.pairs, *self.paraphrased)

    def to_dict(self, pairs: Sequence[TestPair]) -> dict[str, Any]:
        """Whose prompts are scored, and their conversations."""
        users = list(dict.fromkeys(one.user for one in pairs))
        return {
            "users": users,
            "user": [users.index(one.user) for one in pairs],
            "conversation": [one.conversation for one in pairs],
            "speakers": len(self.classifier.users),
        }


def part_of(run: Run, user: str, part: Literal["train", "eval", "test"]) -> Examples:
    examples: Examples = getattr(run.clients.split(run.federation, run.federation.users.index(user)), part)
    return examples


def make_reply_test(run: Run, *, replies: int, sampled: int = 0) -> ReplyTest:
    """About `replies` test pairs, as many of each participant; `sampled` pairs for sampled replies, 0: the same;
    paraphrases among all test prompts; and a classifier of the training parts' lines. It does not see the lines that
    the retrieval control repeats, as it would know them."""
    users = _trained_users(run)
    every = {user: _test_pairs(run, user) for user in users}
    pairs, more = (
        [pair for user in users for pair in _spread(every[user], max(1, round(count / len(users))))]
        for count in (replies, sampled or replies)
    )
    paraphrased, similar = _paraphrases([pair for user in users for pair in every[user]])
    asked = list(dict.fromkeys((*pairs, *paraphrased, *more)))
    nearest = _nearest_training_rows(run, asked)
    repeated = {(pair.user, row) for pair, row in zip(asked, nearest, strict=True)}
    texts = {user: part_of(run, user, "train").texts for user in users}
    unseen = {
        user: [text for row, text in enumerate(own) if (user, row) not in repeated] or list(own)
        for user, own in texts.items()
    }
    return ReplyTest(
        pairs=tuple(pairs),
        paraphrased=tuple(paraphrased),
        similar=tuple(similar),
        sampled=tuple(more),
        nearest={pair: texts[pair.user][row] for pair, row in zip(asked, nearest, strict=True)},
        classifier=fit_classifier(unseen, seed=run.settings.seed),
        lines=tuple(line for own in unseen.values() for line in own),
    )


def _trained_users(run: Run) -> list[str]:
    return [user for user in run.federation.users if len(part_of(run, user, "train"))]


def _test_pairs(run: Run, user: str) -> list[TestPair]:
    test = part_of(run, user, "test")
    rows = zip(test.prompts or (), test.texts, _conversations(test), strict=True)
    return [TestPair(user, prompt or "", text, conversation) for prompt, text, conversation in rows]


def _spread(items: Sequence[Item], count: int) -> list[Item]:
    """All items, or `count` of them, evenly spaced."""
    if len(items) <= count:
        return list(items)
    return [items[place] for place in np.unique(np.linspace(0, len(items) - 1, count).round().astype(np.int64))]


def _paraphrases(pairs: Sequence[TestPair]) -> tuple[list[TestPair], list[tuple[int, int]]]:
    """Pairs whose prompts are paraphrases of each other, to one user, and their places in the list of these."""
    try:
        found = similar_questions([one.prompt for one in pairs], threshold=SIMILAR, users=[one.user for one in pairs])
    except InputError:  # there is no prompt, or none has a word
        return [], []
    chosen = _comparable(_spread(found, PARAPHRASES), users=[one.user for one in pairs])
    places = sorted({place for both in chosen for place in both})
    return [pairs[place] for place in places], [(places.index(one), places.index(other)) for one, other in chosen]


def _comparable(similar: Sequence[tuple[int, int]], *, users: Sequence[str]) -> list[tuple[int, int]]:
    """The pairs of the users who have pairs that are not similar too, with which agreement is compared."""
    asked: dict[str, set[int]] = {}
    for both in similar:
        asked.setdefault(users[both[0]], set()).update(both)
    count = Counter(users[one] for one, _ in similar)
    return [both for both in similar if comb(len(asked[users[both[0]]]), 2) > count[users[both[0]]]]


def _nearest_training_rows(run: Run, asked: Sequence[TestPair]) -> list[int]:
    """For each prompt, the row of its user's training part with the most similar prompt."""
    found: dict[int, int] = {}
    for user in dict.fromkeys(one.user for one in asked):
        known = [prompt or "" for prompt in part_of(run, user, "train").prompts or ()]
        places = [place for place, one in enumerate(asked) if one.user == user]
        found |= dict(zip(places, nearest_questions(known, [asked[place].prompt for place in places]), strict=True))
    return [found[place] for place in range(len(asked))]


def write_replies(
    replier: Replier, pairs: Sequence[TestPair], *, search: Search, persona: Literal["own", "another"] = "own"
) -> list[BestReply]:
    """The best reply to each prompt, by its own speaker, or with other speakers' private parameters in turn."""
    users = list(dict.fromkeys(one.user for one in pairs))
    speakers = {user: replier.speaker(user) for user in users}
    whose = [one.user for one in pairs]
    if persona == "another":
        others, asked = other_speakers(replier.run, users), Counter[str]()
        for place, user in enumerate(whose):
            whose[place] = others[asked[user] % len(others)][user]
            asked[user] += 1
    kind = "sampled replies" if search.decode == "sample" else "replies"
    done = start_count(replier.run.progress, f"{kind}, {persona} persona", total=len(pairs))
    found: list[BestReply] = []
    for start in range(0, len(pairs), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        prompts = [(one.prompt, speakers[user]) for one, user in zip(pairs[some], whose[some], strict=True)]
        found += replier.best_replies(prompts, search=_with_seed(search, start))
        done(len(prompts))
    return found


def _with_seed(search: Search, number: int) -> Search:
    """The search with other random numbers: a search draws the same ones for the first of its prompts every time."""
    return search.model_copy(update={"seed": search.seed + number})


def other_speakers(run: Run, users: Sequence[str]) -> list[dict[str, str]]:
    """For each user another one: several assignments, which together compare a speaker with those who have the next
    smaller numbers of training replies. A single assignment could pair leads with leads or with bit parts."""
    order = sorted(users, key=lambda user: -len(part_of(run, user, "train")))
    most = min(OTHERS, len(order) - 1)
    return [dict(zip(order, [*order[shift:], *order[:shift]], strict=True)) for shift in range(1, most + 1)]


def score_replies(test: ReplyTest, written: Sequence[str], *, pairs: Sequence[TestPair]) -> dict[str, Any]:
    """All metrics of one reply per pair, each with an interval over conversations, and which replies the classifier
    named right. If replies to the paraphrased prompts follow, also how consistent those are."""
    clusters = [one.conversation for one in pairs]
    replies, to_paraphrases = written[: len(pairs)], written[len(pairs) :]
    metrics = evaluate_replies(
        [words(text) for text in replies], [words(one.reply) for one in pairs], clusters=clusters
    )
    said = [(one.user, text) for one, text in zip(pairs, replies, strict=True)]
    named = naming_accuracy(test.classifier, said, clusters=clusters)
    found: dict[str, Any] = {name: [one.value, one.low, one.high] for name, one in metrics.items()}
    found |= {"speaker": [named.macro.value, named.macro.low, named.macro.high], "right": list(named.right)}
    found |= {"sacrebleu": None, "signature": None, "consistency": None}
    with suppress(InputError):  # without the extra `dialogue`
        found["sacrebleu"], found["signature"] = sacrebleu_corpus(list(replies), [one.reply for one in pairs])
    if to_paraphrases and test.similar:
        users = [one.user for one in test.paraphrased]
        with suppress(InputError):  # all pairs of a user are similar
            agreement = answer_agreement(to_paraphrases, test.similar, users=users, corpus=test.lines)
            found["consistency"] = [agreement.similar, agreement.other, agreement.pairs]
    return found


def conversation_losses(run: Run, persona: Literal["own", "another"] = "own") -> dict[str, list[float]]:
    """The loss and the number of words of each conversation in the test parts of all participants, or in the
    `evaluate_examples` of each that evaluations score. With another's persona: the mean over several others."""
    users = list(run.federation.users)
    private = run.clients.private(users, run.state.broadcast())

    def losses_with(speakers: Mapping[str, str]) -> dict[str, list[float]]:
        everyone = (
            Client(user, private[other], _test_data(run, user, speaker=other)) for user, other in speakers.items()
        )
        clients = [client for client in everyone if client.examples]
        outputs = run.trainer.predict(run.state.broadcast(), clients)
        return _by_conversation(run, {client.user: client.data for client in clients}, outputs)

    if persona == "own":
        return losses_with({user: user for user in users})
    found = [losses_with(others) for others in other_speakers(run, users)]
    mean = np.mean([one["loss"] for one in found], axis=0)
    return {**found[0], "loss": [round(loss, 4) for loss in mean.tolist()]}


def untouched_losses(run: Run) -> dict[str, list[float]] | None:
    """The same losses of the pre-trained model; None if the method started from random weights."""
    users = [user for user in run.federation.users if len(part_of(run, user, "test"))]
    data = {user: _test_data(run, user, speaker=user) for user in users}
    outputs = untouched_replies(run, list(data.values()))
    return None if outputs is None else _by_conversation(run, data, outputs)


def _test_data(run: Run, user: str, *, speaker: str) -> Batch:
    """A user's test part, with the row in a table of personas and the profile of `speaker`."""
    test, number = _scored_part(run, user), run.federation.users.index(speaker)
    authors = np.full(len(test), number, dtype=np.int64)
    return run.method.model.encode(replace(test, authors=authors, profiles=_profiles_of(run, speaker, len(test))))


def _scored_part(run: Run, user: str) -> Examples:
    return take_evenly_spaced(part_of(run, user, "test"), run.settings.evaluate_examples)


def _by_conversation(run: Run, data: Mapping[str, Batch], outputs: Sequence[Tensor]) -> dict[str, list[float]]:
    """Losses [replies, words or subwords] of each user's test part, summed by conversation."""
    rows: list[tuple[int, float, float]] = []
    for (user, batch), output in zip(data.items(), outputs, strict=True):
        losses = output.double().sum(dim=1).tolist()
        sizes = batch.get("words", batch["length"])  # a word-level model has a token for each word
        rows += zip(_conversations(_scored_part(run, user)), losses, sizes.tolist(), strict=True)
    found = sum_by_conversation(rows)
    return {**found, "loss": [round(loss, 4) for loss in found["loss"]]}


def _conversations(examples: Examples) -> list[int]:
    assert examples.conversations is not None  # replies have them
    return [int(one) for one in examples.conversations]


def classifier_gains(run: Run, classifier: SpeakerClassifier) -> dict[str, list[float]]:
    """By how much the loss of each conversation could fall, as the classifier estimates; negative as a loss."""
    scored = {user: _scored_part(run, user) for user in classifier.users}
    gains = speaker_information(
        classifier,
        replies={user: len(part_of(run, user, "train")) for user in classifier.users},
        dev=[(user, text) for user in classifier.users for text in part_of(run, user, "eval").texts],
        test=[(user, text) for user, part in scored.items() for text in part.texts],
    )
    conversations = [one for part in scored.values() for one in _conversations(part)]
    found = sum_by_conversation((where, -gain, 0) for where, gain in zip(conversations, gains, strict=True))
    return {**found, "loss": [round(loss, 4) for loss in found["loss"]]}


def loss_results(run: Run, classifier: SpeakerClassifier, *, another: bool) -> dict[str, Any]:
    """Losses by conversation: with the own persona, with another speaker's if there are any, and of the pre-trained
    model; and the gain that a classifier of speakers estimates."""
    own, untouched, gains = conversation_losses(run), untouched_losses(run), classifier_gains(run, classifier)
    return {
        "conversation": own["conversation"],
        "words": own["words"],
        "own": own["loss"],
        "another": conversation_losses(run, "another")["loss"] if another else None,
        "untouched": untouched and untouched["loss"],
        "classifier": gains["loss"] if gains["conversation"] == own["conversation"] else None,
    }


def _profiles_of(run: Run, user: str, count: int) -> np.ndarray | None:
    """The profile of a participant, for this many examples."""
    found = run.federation.examples(run.federation.users.index(user)).profiles
    return None if found is None else np.tile(found[0], (count, 1))


def reply_results(run: Run) -> dict[str, Any] | None:
    """The section `replies` of results.json: scores of a dialogue run's replies to test prompts, of the same replies
    with other speakers' personas, and of two controls; losses by conversation; a few prompts with all replies.

    Every run has the same keys, so that a record can share the values of its runs."""
    scoring = run.scoring
    if not isinstance(scoring, ReplyScoring) or not scoring.replies or len(_trained_users(run)) < 2:
        return None
    test = make_reply_test(run, replies=scoring.replies, sampled=scoring.sampled)
    if not test.pairs:
        return None
    search = Search(beam=scoring.beam, decode=scoring.decode, seed=run.settings.seed)
    replier = find_replier(run)
    personal = any(run.clients.private(list(run.federation.users), run.state.broadcast()).values())
    has_persona = personal or "author" in run.method.model.keys.values()
    written: dict[str, Sequence[str] | None] = dict.fromkeys(PARTS)

    def write(part: str, asked: Sequence[TestPair], search: Search) -> None:
        """Replies with the own personas and, if there are any, with other speakers'; reranked ones beside them."""
        own = write_replies(replier, asked, search=search)
        others = None
        if has_persona:
            others = write_replies(replier, _of(test, part), search=search, persona="another")
        for replies, name in ((own, part), (others, ANOTHER[part])):
            if replies is None:
                continue
            written[name] = [one.likeliest for one in replies]
            if name in RERANKED and replies[0].reranked is not None:
                written[RERANKED[name]] = [one.reranked or "" for one in replies]

    write("own", test.asked, search)
    if scoring.decode == "sample" and test.sampled == test.pairs:
        written |= {
            "sampled": (written["own"] or [])[: len(test.pairs)],
            "sampled_another": written["another"],
        }
    else:
        write("sampled", test.sampled, SAMPLED)
    if scoring.strength != 1 and replier.can_exaggerate(replier.speaker(test.sampled[0].user)):
        write("guided", test.sampled, SAMPLED.model_copy(update={"persona_strength": scoring.strength}))
    for suffix, asked in (("", test.asked), ("_sampled", test.sampled)):
        written |= {
            "retrieved" + suffix: [test.nearest[one] for one in asked],
            "real" + suffix: [one.reply for one in asked],
        }
    return {
        "decode": scoring.decode,
        "beam": scoring.beam,
        "strength": scoring.strength,
        "reranker": replier.reranker and replier.reranker.to_dict(),
        "prompts": len(test.pairs),
        "asked": test.to_dict(test.pairs),
        "asked_sampled": test.to_dict(test.sampled),
        "losses": loss_results(run, test.classifier, another=has_persona),
        "scores": {
            part: texts and score_replies(test, texts, pairs=_of(test, part)) for part, texts in written.items()
        },
        "samples": sample_replies(replier, test.pairs, search=search),
    }


def _of(test: ReplyTest, part: str) -> tuple[TestPair, ...]:
    """The pairs whose replies are scored in a part of the scores."""
    return test.sampled if "sampled" in part or "guided" in part else test.pairs


def require_inverse(run: Run) -> ReplyModel | None:
    """The inverse model that the method's scoring needs after training, if it needs one. Raises if it does not fit:
    better before training than after."""
    scoring, base = run.scoring, find_reply_base(run)
    if not isinstance(scoring, ReplyScoring) or not scoring.replies or not scoring.inverse or base is None:
        return None
    return load_inverse(scoring.inverse, load_reply_model(base.name))


def ensure_reranker(run: Run) -> None:
    """Tune the reranker that the method's scoring asks for, unless the run has it already."""
    inverse, scoring, kept = require_inverse(run), run.scoring, None
    if inverse is None or not isinstance(scoring, ReplyScoring):
        return
    with suppress(HomespunError):  # an earlier one that cannot be used any more
        kept = find_replier(run).reranker
    asked = (inverse.fingerprint, run.state.round, scoring.beam)
    if kept is None or (kept.inverse.fingerprint, kept.round, kept.beam) != asked:
        tune_reranker(run, inverse.name, beam=scoring.beam)


def sample_replies(replier: Replier, pairs: Sequence[TestPair], *, search: Search) -> dict[str, Any]:
    """FedNLG's table 2: the same prompts, answered by several speakers. A rule chooses the prompts: of the first
    participants, the first test prompt of 4 to 10 words that the model knows all. It depends on the vocabulary, the
    split and the number of test prompts, which the runs of a comparison share."""
    users = list(replier.run.federation.users)[:SHOWN]
    speakers = [replier.speaker(user) for user in users]
    first = [
        next((one.prompt for one in pairs if one.user == user and _is_plain(replier, one.prompt)), None)
        for user in users
    ]
    prompts = [prompt for prompt in first if prompt is not None]
    replies = [
        [_shown(replier.best_replies([(prompt, one)], search=_with_seed(search, number))[0]) for one in speakers]
        for number, prompt in enumerate(prompts)
    ]
    return {"prompts": prompts, "users": users, "replies": replies}


def _shown(best: BestReply) -> str:
    return best.likeliest if best.reranked is None else best.reranked


def _is_plain(replier: Replier, prompt: str) -> bool:
    return 4 <= len(words(prompt)) <= 10 and replier.writer.knows(prompt)
