"""How a run's model fares: with participants, with those who adapt at home, with newcomers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch

from homespun.core import seeds
from homespun.core.errors import MessageError, SettingsError
from homespun.core.messages import Broadcast
from homespun.core.method import Batch, Method
from homespun.core.progress import Done, counted, silent
from homespun.core.tree import Tree
from homespun.data.federation import Federation
from homespun.data.splits import sample_users
from homespun.engines.engine import Client, Engine
from homespun.evaluation import classification, language
from homespun.evaluation.classification import Evaluation
from homespun.evaluation.language import TextEvaluation
from homespun.run import Part, Run

SHOTS: tuple[int | None, ...] = (0, 1, 5, 20, None)
TEXT_SHOTS: tuple[int | None, ...] = (0, 1, 5, 15, None)
BLOCK = 500  # users encoded and predicted at a time


def evaluate(run: Run, part: Part = "test") -> Evaluation | TextEvaluation:
    """How the run's model fares with its participants, each with their own parameters.

    How far it is goes to the run's `progress`.
    """
    if run.method.generate is not None and part == "train":
        raise SettingsError(
            f"{run.method.name}: parameters are generated from the training part, so they are not tested on it."
        )
    positions = sample_users(run.federation, at_most=run.settings.evaluate_users, seed=run.settings.seed)

    def clients(block: Sequence[int]) -> list[Client]:
        names = [run.federation.users[position] for position in block]
        private: Mapping[str, Tree] = run.private(names)
        if run.method.generate is not None:  # an embedding read off their own training text
            homes = zip(names, block, strict=True)
            private = personalize_many(
                run,
                [Client(name, private[name], run.encode(run.federation, place, "train")) for name, place in homes],
                done=done,
            )
        return [
            Client(name, private=private[name], data=run.encode(run.federation, position, part))
            for name, position in zip(names, block, strict=True)
        ]

    passes = 1 if run.method.generate is None else 2
    done = counted(run.progress, f"{'test' if part == 'scored' else part} part", total=passes * len(positions))
    return judge(run, (clients(block) for block in blocks(positions)), done=done)


def shot_counts(method: Method) -> tuple[int | None, ...]:
    """How many examples of one's own are tried: those of the method's paper."""
    return TEXT_SHOTS if method.predicts == "text" else SHOTS


def evaluate_adapted(run: Run, counts: Sequence[int | None] | None = None) -> dict[str, Evaluation | TextEvaluation]:
    """Participants who adapt at home to so many new examples of their own; the scored ones are always the same."""
    if not adapts(run.method):
        return {}
    positions = sample_users(run.federation, at_most=run.settings.evaluate_users, seed=run.settings.seed)
    private = run.private([run.federation.users[position] for position in positions])
    counts = counts or shot_counts(run.method)
    return _adapted(run, run.federation, positions, counts=counts, learns_from="adapt", private=private)


def adapted_from(run: Run, test: Evaluation | TextEvaluation) -> dict[str, Evaluation | TextEvaluation]:
    """The same, where it is known how participants fare as trained: that is adapting to no example.

    Not so where a person's parameters are read off a text: without one they are somebody else's.
    """
    if not run.method.personalize or run.method.generate is not None:
        return evaluate_adapted(run)
    return {"0": test, **evaluate_adapted(run, [count for count in shot_counts(run.method) if count != 0])}


def evaluate_newcomers(run: Run, counts: Sequence[int | None] | None = None) -> dict[str, Evaluation | TextEvaluation]:
    """Users who never took part, personalized at home from so many of their own examples.

    The test examples are the same for every count. A method without private parameters has nothing to
    personalize: its model is the same for all counts. One whose users are rows of the server's table
    has no row for a newcomer, and gives nothing.
    """
    if "author" in run.method.keys.values() or not len(run.newcomers.users):
        return {}
    positions = sample_users(run.newcomers, at_most=run.settings.evaluate_users, seed=run.settings.seed)
    counts = (counts or shot_counts(run.method)) if adapts(run.method) else (0,)
    new = {run.newcomers.users[position]: run.new_private(run.newcomers.users[position]) for position in positions}
    return _adapted(run, run.newcomers, positions, counts=counts, learns_from="train", private=new)


def _adapted(
    run: Run,
    people: Federation,
    positions: Sequence[int],
    *,
    counts: Sequence[int | None],
    learns_from: Part,
    private: Mapping[str, Tree],
) -> dict[str, Evaluation | TextEvaluation]:
    def clients(block: Sequence[int], count: int | None, done: Done) -> list[Client]:
        homes = [
            Client(
                people.users[position],
                private=private[people.users[position]],
                data=shots(
                    run.encode(people, position, learns_from),
                    count,
                    draw=seeds.numpy_generator(run.settings.seed, "samples", people.users[position]),
                ),
            )
            for position in block
        ]
        learned = personalize_many(run, homes, done=done)
        return [
            Client(home.user, private=learned[home.user], data=run.encode(people, position, tested_part(run)))
            for home, position in zip(homes, block, strict=True)
        ]

    found, whose = {}, "participants" if learns_from == "adapt" else "new users"
    for count in counts:
        name = "all" if count is None else str(count)
        done = counted(run.progress, f"{whose} with {own_samples(name)}", total=2 * len(positions))
        found[name] = judge(run, (clients(block, count, done) for block in blocks(positions)), done=done)
    return found


def own_samples(count: int | str) -> str:
    return f"{count} own {'sample' if str(count) == '1' else 'samples'}"


def adapts(method: Method) -> bool:
    """Whether a home can make more of its own data after training."""
    return bool(method.personalize) or method.generate is not None


def tested_part(run: Run) -> Part:
    """Labels are tested on the whole test part; of texts, half is left to adapt to."""
    return "scored" if run.method.predicts == "text" else "test"


def judge(
    run: Run,
    clients: Iterable[Sequence[Client]],
    *,
    broadcast: Broadcast | None = None,
    engine: Engine | None = None,
    done: Done = silent,
) -> Evaluation | TextEvaluation:
    """Predict for everybody, block by block, and sum up."""
    broadcast, engine = broadcast or run.state.broadcast(), engine or run.engine
    truths: list[np.ndarray] = []
    outputs: list[np.ndarray] = []
    groups: list[int] = []
    truth = "length" if run.method.predicts == "text" else "label"
    for block in clients:
        able = [client for client in block if client.examples]
        truths += [client.data[truth].numpy() for client in able]
        outputs += [output.numpy() for output in engine.predict(broadcast, able, done=done)]
        done(len(block) - len(able))
        groups += [int(client.data["group"][0]) for client in able if "group" in client.data]
    if run.method.predicts == "text":
        return language.summarize(outputs, truths)
    if not all(np.isfinite(output).all() for output in outputs):
        raise MessageError(
            f"after round {run.state.round} what the model says is no number any more. Lower the learning rate, the "
            "clients' or the server's."
        )
    classes = run.method.task.classes
    return classification.summarize(
        truths,
        [output[:, :classes] for output in outputs],  # what else the model says is its own business
        classes=classes,
        groups=groups or None,
        metric=run.method.metric,
    )


def blocks(positions: Sequence[int]) -> Iterator[Sequence[int]]:
    return (positions[start : start + BLOCK] for start in range(0, len(positions), BLOCK))


def shots(data: Batch, count: int | None, *, draw: np.random.Generator) -> Batch:
    """So many examples, drawn; None: all of them. A person's fewer are among their more, in the order of the corpus.

    The first ones would be an opening, a date, a greeting, and often of one setting only.
    """
    if count is None:
        return data
    chosen = np.sort(draw.permutation(len(next(iter(data.values()))))[:count])
    return {name: column[torch.from_numpy(chosen)] for name, column in data.items()}


def personalize_many(run: Run, homes: Sequence[Client], *, done: Done = silent) -> dict[str, Tree]:
    """What each home knows after learning from its examples, on its own; nothing is sent."""
    able = [home for home in homes if home.examples or run.method.generate is not None]
    if not adapts(run.method) or not able:
        done(len(homes))
        return {home.user: home.private for home in homes}
    learned = run.engine.work(run.state.broadcast(), able, work="personalize", done=done).private
    done(len(homes) - len(able))
    return {home.user: learned.get(home.user, home.private) for home in homes}
