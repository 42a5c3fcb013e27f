"""How a run's model fares: with participants, with those who adapt at home, with newcomers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from homespun.core.errors import SettingsError
from homespun.core.progress import start_count
from homespun.core.scoring import Part
from homespun.data.federation import Federation
from homespun.data.splits import sample_users
from homespun.engines.protocol import EvaluationProtocol
from homespun.evaluation.classification import Evaluation
from homespun.evaluation.language import TextEvaluation
from homespun.runs.run import Run

Evaluated: TypeAlias = Evaluation | TextEvaluation


def evaluate(run: Run, part: Part = "test") -> Evaluated:
    """How the run's model fares with its participants, each with their own parameters.

    How far it is goes to the run's `progress`.
    """
    if run.method.personalize.generates and part == "train":
        raise SettingsError(
            f"{run.method.name}: parameters are generated from the training part, so they are not tested on it."
        )
    task = f"{'test' if part == 'scored' else part} part"
    passes = 2 if run.method.personalize.generates else 1
    return evaluate_users(run, run.federation, EvaluationProtocol(part), task=task, passes=passes)


def evaluate_users(
    run: Run, people: Federation, protocol: EvaluationProtocol, *, task: str, passes: int = 1
) -> Evaluated:
    """A sample of these people. `passes` is how often each of them is worked on."""
    users = sampled(run, people)
    done = start_count(run.progress, task, total=passes * len(users))
    counts = run.engine.evaluate(run.state.broadcast(), users, protocol, done=done)
    found: Evaluated = run.scoring.summarize(list(counts.values()))
    return found


def sampled(run: Run, people: Federation) -> list[str]:
    """The users who are evaluated, by name."""
    positions = sample_users(people, at_most=run.settings.evaluate_users, seed=run.settings.seed)
    return [people.users[position] for position in positions]


def evaluate_adapted(run: Run, counts: Sequence[int | None] | None = None) -> dict[str, Evaluated]:
    """Participants who adapt at home to k new examples of their own; the scored ones are always the same."""
    if not run.method.personalize.adapts:
        return {}
    counts, part = counts or run.scoring.k_shot, run.scoring.scored_part
    protocols = {k: EvaluationProtocol(part, adapt_to="adapt", k=k) for k in counts}
    return _by_k(run, run.federation, protocols, whose="participants")


def adapted_from(run: Run, test: Evaluated) -> dict[str, Evaluated]:
    """The same, where it is known how participants fare as trained: that is adapting to no example.

    Not so where a person's parameters are read off a text: without one they are somebody else's.
    """
    if not run.method.personalize.adapts or run.method.personalize.generates:
        return evaluate_adapted(run)
    return {"0": test, **evaluate_adapted(run, [count for count in run.scoring.k_shot if count != 0])}


def evaluate_newcomers(run: Run, counts: Sequence[int | None] | None = None) -> dict[str, Evaluated]:
    """Users who never took part, personalized at home from k of their own examples.

    The test examples are the same for every k. A method without private parameters has nothing to
    personalize: its model is the same for all k. One whose users are rows of the server's table
    has no row for a newcomer, and gives nothing.
    """
    if "author" in run.method.model.keys.values() or not len(run.newcomers.users):
        return {}
    counts, part = (counts or run.scoring.k_shot) if run.method.personalize.adapts else (0,), run.scoring.scored_part
    protocols = {
        k: EvaluationProtocol(part, user_set="newcomers", adapt_to="train", k=k, private="prior") for k in counts
    }
    return _by_k(run, run.newcomers, protocols, whose="new users")


def _by_k(
    run: Run, people: Federation, protocols: dict[int | None, EvaluationProtocol], *, whose: str
) -> dict[str, Evaluated]:
    found = {}
    for k, protocol in protocols.items():
        name = "all" if k is None else str(k)
        found[name] = evaluate_users(run, people, protocol, task=f"{whose} with {own_samples(name)}", passes=2)
    return found


def own_samples(count: int | str) -> str:
    return f"{count} own {'sample' if str(count) == '1' else 'samples'}"
