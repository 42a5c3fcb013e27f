"""Losses of a dialogue run's test replies by conversation: with the own persona, with other speakers' personas, of the
pre-trained model, and how much there is to gain from knowing the speaker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from torch import Tensor

from homespun.core.method import Batch
from homespun.data.federation import Examples
from homespun.engines.client import Client
from homespun.evaluation.conversation_losses import sum_by_conversation
from homespun.evaluation.speaker_information import speaker_information
from homespun.evaluation.speakers import SpeakerClassifier
from homespun.experiments.reply_test_set import conversations_of, part_of
from homespun.runs.clients import take_evenly_spaced
from homespun.runs.controls import untouched_replies
from homespun.runs.run import Run

OTHERS = 5  # other speakers whose personas a speaker is compared with


def other_speakers(run: Run, users: Sequence[str]) -> list[dict[str, str]]:
    """For each user another one: several assignments, which together compare a speaker with those who have the next
    smaller numbers of training replies. A single assignment could pair leads with leads or with bit parts."""
    order = sorted(users, key=lambda user: -len(part_of(run, user, "train")))
    most = min(OTHERS, len(order) - 1)
    return [dict(zip(order, [*order[shift:], *order[:shift]], strict=True)) for shift in range(1, most + 1)]


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
        rows += zip(conversations_of(_scored_part(run, user)), losses, sizes.tolist(), strict=True)
    found = sum_by_conversation(rows)
    return {**found, "loss": [round(loss, 4) for loss in found["loss"]]}


def classifier_gains(run: Run, classifier: SpeakerClassifier) -> dict[str, list[float]]:
    """By how much the loss of each conversation could fall, as the classifier estimates; negative as a loss."""
    scored = {user: _scored_part(run, user) for user in classifier.users}
    gains = speaker_information(
        classifier,
        replies={user: len(part_of(run, user, "train")) for user in classifier.users},
        dev=[(user, text) for user in classifier.users for text in part_of(run, user, "eval").texts],
        test=[(user, text) for user, part in scored.items() for text in part.texts],
    )
    conversations = [one for part in scored.values() for one in conversations_of(part)]
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
