"""What can be had without the method, on the examples that the method is tested on; and how much of it is personal.

Of labels, their frequencies. Of text, the pre-trained model as it came: behind its best start, alone or with k of a
user's own sentences in its context. The second needs no training and no server; a method has to beat it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import singledispatch
from typing import Any

import torch

from homespun.core import seeds
from homespun.core.method import Artefact
from homespun.core.progress import Done, each, silent, start_count
from homespun.core.roles import Role
from homespun.core.scoring import Part, Scoring
from homespun.core.threads import one_thread
from homespun.data.federation import Federation
from homespun.data.splits import sample_users
from homespun.engines.protocol import EvaluationProtocol
from homespun.engines.simulation import k_shot
from homespun.evaluation import classification, language
from homespun.evaluation.classification import Evaluation, LabelScoring
from homespun.evaluation.language import TextEvaluation, TokenScoring
from homespun.models.in_context import in_context_losses, join_sentences
from homespun.models.prefix_language import PrefixLanguageModel
from homespun.models.pretrained import Pretrained, load_pretrained
from homespun.runs.clients import spaced
from homespun.runs.evaluate import evaluate_users, own_samples, sampled
from homespun.runs.run import Run

STARTS = ("", ".", "\n", " ")  # what may stand before a text: BOS, and what ends another one
BETWEEN = "\n"  # after each of a user's own sentences
CHOSEN_ON = (8, 25)  # users and utterances of the evaluation part that choose the start
IN_CONTEXT = "in_context_"  # with the number of sentences, the name of a control


def evaluate_controls(run: Run, part: Part | None = None) -> Mapping[str, Any]:
    """What participants would have without the method, on the same examples as `evaluate`."""
    return controls(run.scoring, run, run.federation, part=part or run.scoring.scored_part, learns_from="adapt")


def newcomer_controls(run: Run) -> Mapping[str, Any]:
    """The same for users who never took part, where users are compared one by one."""
    if not run.scoring.by_user or not len(run.newcomers.users):
        return {}
    return controls(run.scoring, run, run.newcomers, part=run.scoring.scored_part, learns_from="train")


@singledispatch
def controls(scoring: Scoring, run: Run, people: Federation, *, part: Part, learns_from: Part) -> Mapping[str, Any]:
    """The controls of a kind of scoring; another kind registers its own with `controls.register`."""
    return {}


@controls.register
def _label_controls(
    scoring: LabelScoring, run: Run, people: Federation, *, part: Part, learns_from: Part
) -> dict[str, Evaluation]:
    splits = [run.clients.split(people, position) for position in _positions(run, people)]
    tested = [spaced(getattr(split, part), run.settings.evaluate_examples) for split in splits]
    return classification.controls(splits, tested, scoring)


def _positions(run: Run, people: Federation) -> list[int]:
    return sample_users(people, at_most=run.settings.evaluate_users, seed=run.settings.seed)


@controls.register
@one_thread()
def _token_controls(
    scoring: TokenScoring, run: Run, people: Federation, *, part: Part, learns_from: Part
) -> dict[str, TextEvaluation]:
    """The pre-trained model by number of a user's own sentences in its context: the ones that a method adapts to."""
    if run.method.base_model is None:
        return {}
    positions = _positions(run, people)
    key = _digest(run, people, positions, (part, learns_from))
    if key not in _worked_out:
        _worked_out[key] = _text_controls(run, people, positions, part=part, learns_from=learns_from)
    return _worked_out[key]


# The configurations of a comparison have the same controls; working them out once saves minutes.
_worked_out: dict[str, dict[str, TextEvaluation]] = {}


def _digest(run: Run, people: Federation, positions: Sequence[int], parts: Sequence[Part]) -> str:
    """Of all that controls depend on: the base model, whose samples are drawn, and the tokens of every part."""
    found = hashlib.sha256(f"{_base_model(run).fingerprint} {run.settings.seed} {parts}".encode())
    chooses = sample_users(run.federation, at_most=CHOSEN_ON[0], seed=run.settings.seed)
    read: list[tuple[Federation, int, Part]] = [(run.federation, position, "eval") for position in chooses]
    read += [(people, position, part) for position in positions for part in parts]
    for whose, position, part in read:
        data = run.clients.encode(whose, position, part)
        found.update(f"{whose.users[position]!r} {part} {tuple(data['tokens'].shape)}".encode())
        found.update(data["tokens"].numpy().tobytes() + data["length"].numpy().tobytes())
    return found.hexdigest()


def _base_model(run: Run) -> Artefact:
    assert run.method.base_model is not None
    return run.method.base_model


def _text_controls(
    run: Run, people: Federation, positions: Sequence[int], *, part: Part, learns_from: Part
) -> dict[str, TextEvaluation]:
    pretrained = load_pretrained(_base_model(run).name)
    whose = "participants" if learns_from == "adapt" else "new users"
    done = start_count(run.progress, f"{whose}: base model", total=len(positions))
    start = best_start(run, pretrained)
    found = {"untouched": untouched(run, people, positions, part=part, pretrained=pretrained, start=start, done=done)}
    for count in run.scoring.k_shot:
        if count:
            done = start_count(run.progress, f"{whose}: base model with {own_samples(count)}", total=len(positions))
            found[f"{IN_CONTEXT}{count}"] = _in_context(
                run,
                people,
                positions,
                part=part,
                learns_from=learns_from,
                count=count,
                start=pretrained.start(start),
                done=done,
            )
    return found


def best_start(run: Run, pretrained: Pretrained) -> str:
    """The start with the lowest perplexity on participants' evaluation parts; a BOS that a model hardly met in training
    would handicap it."""
    users, examples = CHOSEN_ON
    positions = sample_users(run.federation, at_most=users, seed=run.settings.seed)
    data = [run.clients.encode(run.federation, position, "eval") for position in positions]
    some = [{name: column[:examples] for name, column in one.items()} for one in data]
    if not any(len(one["length"]) for one in some):
        return STARTS[0]
    readable = [text for text in STARTS if len(pretrained.tokenizer(text, add_special_tokens=False)["input_ids"]) <= 1]
    return min(readable, key=lambda text: _behind(pretrained, text, some).loss)


def untouched(
    run: Run,
    people: Federation,
    positions: Sequence[int],
    *,
    part: Part,
    pretrained: Pretrained,
    start: str,
    done: Done = silent,
) -> TextEvaluation:
    """The pre-trained model with nothing but a start before every utterance."""
    return _behind(pretrained, start, [run.clients.encode(people, position, part) for position in positions], done=done)


def _behind(
    pretrained: Pretrained, start: str, data: Sequence[Mapping[str, torch.Tensor]], *, done: Done = silent
) -> TextEvaluation:
    model = PrefixLanguageModel(
        pretrained.model, start=pretrained.embeddings[pretrained.start(start)], contexts=1, tokens=1, kind="shared"
    )
    with torch.no_grad():
        losses = [model(one).numpy() for one in each(data, done)]
    return language.summarize(losses, [one["length"].numpy() for one in data])


def _in_context(
    run: Run,
    people: Federation,
    positions: Sequence[int],
    *,
    part: Part,
    learns_from: Part,
    count: int,
    start: int,
    done: Done,
) -> TextEvaluation:
    """Behind `count` sentences of the user's own, drawn as those that a home adapts to; as many as can be read."""
    pretrained = load_pretrained(_base_model(run).name)
    between = pretrained.tokenizer(BETWEEN, add_special_tokens=False)["input_ids"]
    losses, lengths = [], []
    for position in each(positions, done):
        draw = seeds.numpy_generator(run.settings.seed, "samples", people.users[position])
        own, data = (
            k_shot(run.clients.encode(people, position, learns_from), count, draw=draw),
            run.clients.encode(people, position, part),
        )
        sentences = [row[:size].tolist() for row, size in zip(own["tokens"], own["length"].tolist(), strict=True)]
        room = pretrained.positions - data["tokens"].shape[1]
        before = join_sentences(sentences, start=start, between=between, room=room)
        losses.append(in_context_losses(pretrained.model, before, data).numpy())
        lengths.append(data["length"].numpy())
    return language.summarize(losses, lengths)


def personal_share(run: Run) -> dict[str, TextEvaluation] | None:
    """How much is personal: participants' perplexity with their own private parameters, with those a new user starts
    from, and with another participant's. None where nothing is private, or there is no other participant.

    Where private parameters are generated from a text, they are from a user's own training text, from none, and from
    another's.
    """
    private = bool(run.built.partition.names(Role.PRIVATE)) or run.method.personalize.generates
    if not run.scoring.by_user or not private or len(sampled(run, run.federation)) < 2:
        return None
    own = EvaluationProtocol(run.scoring.scored_part)
    prior = replace(own, private="prior")
    states = {
        "own": own,
        "prior": replace(prior, adapt_to="train", k=0) if run.method.personalize.generates else prior,
        "another": replace(own, private="another"),
    }
    found = {
        name: evaluate_users(
            run,
            run.federation,
            protocol,
            task=f"private parameters: {name}",
            passes=2 if run.method.personalize.generates else 1,
        )
        for name, protocol in states.items()
    }
    return {name: one for name, one in found.items() if isinstance(one, TextEvaluation)}
