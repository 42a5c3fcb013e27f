"""Evaluates a run's model: participants, participants who adapt, and new users."""

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

AnyEvaluation: TypeAlias = Evaluation | TextEvaluation


def evaluate(run: Run, part: Part = "test") -> AnyEvaluation:
    """Evaluate the run's model on its participants, each with their own private parameters.

    Progress is reported to the run's `progress`.

    Example:
        >>> with train("furl", load("dialects", users=12), rounds=2, workers=0) as run:
        ...     evaluate(run).headline[0]
        'accuracy'
    """
    if run.method.personalize.generates and part == "train":
        raise SettingsError(
            f"{run.method.name}: private parameters are generated from the training part, so it cannot be evaluated on "
            "that part. Choose eval or test."
        )
    task = f"{'test' if part == 'scored' else part} part"
    return evaluate_users(run, run.federation, EvaluationProtocol(part), task=task)


def evaluate_users(run: Run, federation: Federation, protocol: EvaluationProtocol, *, task: str) -> AnyEvaluation:
    """Evaluate a sample of the users of a federation. `task` names the work in progress reports."""
    users = sample_names(run, federation)
    personalizes = protocol.adapt_to is not None or run.method.personalize.generates
    done = start_count(
        run.progress, task, total=(2 if personalizes else 1) * len(users)
    )  # each is personalized, then scored
    counts = run.engine.evaluate(run.state.broadcast(), users, protocol, done=done)
    found: AnyEvaluation = run.scoring.summarize(list(counts.values()))
    return found


def sample_names(run: Run, federation: Federation) -> list[str]:
    """The names of the users that are evaluated."""
    positions = sample_users(federation, at_most=run.settings.evaluate_users, seed=run.settings.seed)
    return [federation.users[position] for position in positions]


def sample_counts(run: Run) -> tuple[int | None, ...]:
    """The numbers of own examples that users adapt to; None: all."""
    asked = run.settings.evaluate_samples
    return run.scoring.k_shot if asked is None else tuple(None if one == "all" else one for one in asked)


def evaluate_adapted(run: Run, counts: Sequence[int | None] | None = None) -> dict[str, AnyEvaluation]:
    """Participants after they adapt to k new examples of their own. The scored examples are the same for every k.

    Empty if the scoring scores the whole test part and leaves nothing to adapt to.
    """
    if not _participants_adapt(run):
        return {}
    counts, part = counts or sample_counts(run), run.scoring.scored_part
    protocols = {k: EvaluationProtocol(part, adapt_to="adapt", k=k) for k in counts}
    return _evaluate_by_k(run, run.federation, protocols, group="participants")


def evaluate_adapted_reusing(run: Run, test: AnyEvaluation) -> dict[str, AnyEvaluation]:
    """`evaluate_adapted`, with `test`, the evaluation of participants as trained, for k = 0.

    It cannot be reused where private parameters are generated from a text: without one they are not the user's.
    """
    if not _participants_adapt(run) or run.method.personalize.generates:
        return evaluate_adapted(run)
    return {"0": test, **evaluate_adapted(run, [count for count in sample_counts(run) if count != 0])}


def _participants_adapt(run: Run) -> bool:
    return run.method.personalize.adapts and run.scoring.scored_part == "scored"


def evaluate_newcomers(run: Run, counts: Sequence[int | None] | None = None) -> dict[str, AnyEvaluation]:
    """Users who never took part, personalized from k of their own examples.

    The test examples are the same for every k. A method without private parameters has nothing to personalize: its
    model is the same for all k. If users are rows of the server's table, a new user has none, and the result is empty.
    """
    if "author" in run.method.model.keys.values() or not len(run.newcomers.users):
        return {}
    counts, part = (counts or sample_counts(run)) if run.method.personalize.adapts else (0,), run.scoring.scored_part
    protocols = {
        k: EvaluationProtocol(part, user_set="newcomers", adapt_to="train", k=k, private="prior") for k in counts
    }
    return _evaluate_by_k(run, run.newcomers, protocols, group="new users")


def _evaluate_by_k(
    run: Run, federation: Federation, protocols: dict[int | None, EvaluationProtocol], *, group: str
) -> dict[str, AnyEvaluation]:
    found = {}
    for k, protocol in protocols.items():
        name = "all" if k is None else str(k)
        found[name] = evaluate_users(run, federation, protocol, task=f"{group} with {sample_count_text(name)}")
    return found


def sample_count_text(count: int | str) -> str:
    return f"{count} own {'sample' if str(count) == '1' else 'samples'}"
