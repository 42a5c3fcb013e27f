"""Simple controls on the examples that the method is tested on, and how much of its result is personal.

For labels: their frequencies. For text: the unmodified base model after its best start, alone or with k of the user's
own sentences in its context. The latter needs no training and no server, and a method has to beat it. For replies: the
same after the question, with the user's own replies and their questions in the context; of a reply model, only the
unmodified model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import singledispatch
from typing import Any

import torch

from homespun.core import seeds
from homespun.core.method import Artefact, Batch
from homespun.core.progress import Done, each, silent, start_count
from homespun.core.roles import Role
from homespun.core.scoring import Part, Scoring
from homespun.core.threads import one_thread
from homespun.data.federation import Federation
from homespun.data.splits import sample_users
from homespun.engines.protocol import EvaluationProtocol
from homespun.engines.simulation import k_shot
from homespun.evaluation import classification
from homespun.evaluation.classification import Evaluation, LabelScoring
from homespun.evaluation.language import ReplyScoring, SubwordReplyScoring, TextEvaluation, TokenScoring
from homespun.models.in_context import in_context_losses, join_sentences
from homespun.models.prefix_language import PrefixLanguageModel
from homespun.models.pretrained import Pretrained, load_pretrained
from homespun.models.reply_model import load_reply_model
from homespun.models.token_batches import join_questions
from homespun.runs.clients import take_evenly_spaced
from homespun.runs.evaluate import evaluate_users, sample_count_text, sample_counts, sample_names
from homespun.runs.run import Run

STARTS = ("", ".", "\n", " ")  # candidates for the text before an utterance: BOS, and what may end a sentence
SEPARATOR = "\n"  # after each sentence in the context
START_USERS, START_UTTERANCES = 8, 25  # of the evaluation part, on which the start is chosen
BASE_MODEL = "untouched"  # name of the control without sentences in the context, in results.json
IN_CONTEXT = "in_context_"  # prefix of the others; the number of sentences follows


def evaluate_controls(run: Run, part: Part | None = None) -> Mapping[str, Any]:
    """The controls of participants, on the same examples as `evaluate`."""
    return compute_controls(run.scoring, run, run.federation, part=part or run.scoring.scored_part, learns_from="adapt")


def newcomer_controls(run: Run) -> Mapping[str, Any]:
    """The controls of new users, if the scoring compares users one by one."""
    if not run.scoring.by_user or not len(run.newcomers.users):
        return {}
    return compute_controls(run.scoring, run, run.newcomers, part=run.scoring.scored_part, learns_from="train")


@singledispatch
def compute_controls(
    scoring: Scoring, run: Run, federation: Federation, *, part: Part, learns_from: Part
) -> Mapping[str, Any]:
    """The controls of a kind of scoring, by name. Another kind registers its own with `compute_controls.register`."""
    return {}


@compute_controls.register
def _compute_label_controls(
    scoring: LabelScoring, run: Run, federation: Federation, *, part: Part, learns_from: Part
) -> dict[str, Evaluation]:
    splits = [run.clients.split(federation, position) for position in _positions(run, federation)]
    tested = [take_evenly_spaced(getattr(split, part), run.settings.evaluate_examples) for split in splits]
    return classification.controls(splits, tested, scoring)


def _positions(run: Run, federation: Federation) -> list[int]:
    return sample_users(federation, at_most=run.settings.evaluate_users, seed=run.settings.seed)


@compute_controls.register
@one_thread()
def _compute_token_controls(
    scoring: TokenScoring, run: Run, federation: Federation, *, part: Part, learns_from: Part
) -> dict[str, TextEvaluation]:
    """The base model, by the number of the user's own sentences in its context: those that a method adapts to."""
    if run.method.base_model is None:
        return {}
    positions = _positions(run, federation)
    key = _cache_key(run, federation, positions, (part, learns_from))
    if key not in _cached_controls:
        _cached_controls[key] = _evaluate_text_controls(run, federation, positions, part=part, learns_from=learns_from)
    return _cached_controls[key]


@compute_controls.register
def _compute_reply_controls(
    scoring: ReplyScoring, run: Run, federation: Federation, *, part: Part, learns_from: Part
) -> dict[str, TextEvaluation]:
    """The pre-trained reply model, which knows no speakers; none if the method started from random weights."""
    encoded = [run.clients.encode(federation, position, part) for position in _positions(run, federation)]
    data = [one for one in encoded if len(one["length"])]
    losses = untouched_replies(run, data)
    if losses is None:
        return {}
    return {BASE_MODEL: _summarize(scoring, data, losses)}


@one_thread()
def untouched_replies(run: Run, data: Sequence[Batch]) -> list[torch.Tensor] | None:
    """The losses [replies, words or tokens] of the pre-trained model for each user; None without one. A language model
    reads its best start and the question."""
    if run.method.base_model is not None:
        pretrained = load_pretrained(run.method.base_model.name)
        return _losses_after_start(pretrained, choose_start(run, pretrained), data)
    named = next((one for one in run.method.artefacts if one.kind == "reply model"), None)
    base = None if named is None else load_reply_model(named.name)
    if base is None or not base.weights:
        return None
    network = base.build()
    parameters = {name: value.detach()[None] for name, value in network.named_parameters()}
    with torch.no_grad():
        return [network.stacked(parameters, {name: one[None] for name, one in user.items()})[0] for user in data]


def _summarize(scoring: Scoring, data: Sequence[Batch], losses: Sequence[torch.Tensor]) -> TextEvaluation:
    found: TextEvaluation = scoring.summarize([scoring.score(*one) for one in zip(data, losses, strict=True)])
    return found


compute_controls.register(SubwordReplyScoring, _compute_token_controls)


# All configurations of a comparison have the same controls: computing them once saves minutes.
_cached_controls: dict[str, dict[str, TextEvaluation]] = {}


def _cache_key(run: Run, federation: Federation, positions: Sequence[int], parts: Sequence[Part]) -> str:
    """A digest of everything that controls depend on: the base model, the seed, the numbers of sentences, the users and
    their tokens."""
    counts = sample_counts(run)
    found = hashlib.sha256(f"{_base_model(run).fingerprint} {run.settings.seed} {parts} {counts}".encode())
    for_start = sample_users(run.federation, at_most=START_USERS, seed=run.settings.seed)
    read: list[tuple[Federation, int, Part]] = [(run.federation, position, "eval") for position in for_start]
    read += [(federation, position, part) for position in positions for part in parts]
    for source, position, part in read:
        data = run.clients.encode(source, position, part)
        tokens, length, first = join_questions(data)
        found.update(f"{source.users[position]!r} {part} {tuple(tokens.shape)}".encode())
        for column in (tokens, length) if first is None else (tokens, length, first):
            found.update(column.numpy().tobytes())
    return found.hexdigest()


def _base_model(run: Run) -> Artefact:
    assert run.method.base_model is not None
    return run.method.base_model


def _evaluate_text_controls(
    run: Run, federation: Federation, positions: Sequence[int], *, part: Part, learns_from: Part
) -> dict[str, TextEvaluation]:
    pretrained = load_pretrained(_base_model(run).name)
    group = "participants" if learns_from == "adapt" else "new users"
    done = start_count(run.progress, f"{group}: base model", total=len(positions))
    start = choose_start(run, pretrained)
    data = [run.clients.encode(federation, position, part) for position in positions]
    found = {BASE_MODEL: _evaluate_after_start(run.scoring, pretrained, start, data, done=done)}
    for count in sample_counts(run):
        if count:
            done = start_count(
                run.progress, f"{group}: base model with {sample_count_text(count)}", total=len(positions)
            )
            found[f"{IN_CONTEXT}{count}"] = _evaluate_in_context(
                run,
                federation,
                positions,
                part=part,
                learns_from=learns_from,
                count=count,
                start=pretrained.start(start),
                done=done,
            )
    return found


def choose_start(run: Run, pretrained: Pretrained) -> str:
    """The start with the lowest perplexity on participants' evaluation parts: a BOS that hardly occurred in the base
    model's training would handicap it."""
    positions = sample_users(run.federation, at_most=START_USERS, seed=run.settings.seed)
    data = [run.clients.encode(run.federation, position, "eval") for position in positions]
    some = [{name: column[:START_UTTERANCES] for name, column in one.items()} for one in data]
    if not any(len(one["length"]) for one in some):
        return STARTS[0]
    readable = [text for text in STARTS if len(pretrained.tokenizer(text, add_special_tokens=False)["input_ids"]) <= 1]
    return min(readable, key=lambda text: _evaluate_after_start(run.scoring, pretrained, text, some).loss)


def _evaluate_after_start(
    scoring: Scoring, pretrained: Pretrained, start: str, data: Sequence[Batch], *, done: Done = silent
) -> TextEvaluation:
    """The base model with only a start before every utterance, or before a question and its reply."""
    return _summarize(scoring, data, _losses_after_start(pretrained, start, data, done=done))


def _losses_after_start(
    pretrained: Pretrained, start: str, data: Sequence[Batch], *, done: Done = silent
) -> list[torch.Tensor]:
    model = PrefixLanguageModel(
        pretrained.model, start=pretrained.embeddings[pretrained.start(start)], contexts=1, tokens=1, kind="shared"
    )
    with torch.no_grad():
        return [model(one) for one in each(data, done)]


def _evaluate_in_context(
    run: Run,
    federation: Federation,
    positions: Sequence[int],
    *,
    part: Part,
    learns_from: Part,
    count: int,
    start: int,
    done: Done,
) -> TextEvaluation:
    """The base model after `count` of the user's own sentences, or as many as fit: those that a client adapts to."""
    pretrained = load_pretrained(_base_model(run).name)
    losses, tested = [], []
    for position in each(positions, done):
        draw = seeds.numpy_generator(run.settings.seed, "samples", federation.users[position])
        own, data = (
            k_shot(run.clients.encode(federation, position, learns_from), count, draw=draw),
            run.clients.encode(federation, position, part),
        )
        before = _own_sentences(pretrained, own, start=start, room=pretrained.positions - _longest(data))
        losses.append(in_context_losses(pretrained.model, before, data))
        tested.append(data)
    return _summarize(run.scoring, tested, losses)


def _longest(data: Batch) -> int:
    return int(join_questions(data).tokens.shape[1])


def _own_sentences(pretrained: Pretrained, own: Batch, *, start: int, room: int) -> list[int]:
    """`start` and these sentences, each with a line break behind it; of replies, each with its question before it, and
    with the separator that is between question and reply."""
    tokens, length, first = join_questions(own)
    sentences = [row[:size].tolist() for row, size in zip(tokens, length.tolist(), strict=True)]
    if first is None or not sentences:
        between = pretrained.tokenizer(SEPARATOR, add_special_tokens=False)["input_ids"]
    else:
        separator = int(tokens[0, first[0] - 1])
        between = [separator]
        sentences = [one[:-1] if one[-1] == separator else one for one in sentences]
    return join_sentences(sentences, start=start, between=between, room=room)


def evaluate_personal_share(run: Run) -> dict[str, TextEvaluation] | None:
    """How much of a language model is personal: participants' perplexity with their own private parameters, with those
    that a new user starts from, and with another participant's. None if nothing is private, there is no other
    participant, or the method is no language model.

    Generated private parameters are generated from the user's own training text, from no text, and from another user's.
    """
    private = bool(run.built.partition.names(Role.PRIVATE)) or run.method.personalize.generates
    if not isinstance(run.scoring, TokenScoring) or not private or len(sample_names(run, run.federation)) < 2:
        return None
    own = EvaluationProtocol(run.scoring.scored_part)
    prior = replace(own, private="prior")
    states = {
        "own": own,
        "prior": replace(prior, adapt_to="train", k=0) if run.method.personalize.generates else prior,
        "another": replace(own, private="another"),
    }
    found = {
        name: evaluate_users(run, run.federation, protocol, task=f"private parameters: {name}")
        for name, protocol in states.items()
    }
    return {name: one for name, one in found.items() if isinstance(one, TextEvaluation)}
