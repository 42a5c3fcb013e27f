"""Personalizes the shared model for a new user from their own examples. Nothing is uploaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from homespun.core import seeds
from homespun.core.errors import DataError, InputError, RunError
from homespun.core.messages import state_to_bytes
from homespun.core.method import Batch, Method, Phase, optimizers
from homespun.core.personalize import Generated, GradientSteps, Personalization
from homespun.core.roles import Role
from homespun.core.tree import Tree
from homespun.data.source import DataSettings
from homespun.engines.client import Client
from homespun.engines.cohort import CohortTrainer
from homespun.engines.loop import LoopTrainer
from homespun.engines.simulation import score_clients
from homespun.evaluation.classification import Evaluation
from homespun.evaluation.language import TextEvaluation
from homespun.evaluation.next_words import NextWordEvaluation
from homespun.models.token_batches import SHORTEST
from homespun.personalization.own_words import stage_dates
from homespun.personalization.profiles import Profile, assign_profile, assigned_profile, stage_profile
from homespun.personalization.user import UserModel, require_text_method
from homespun.personalization.user_examples import choose_reader, with_prompts
from homespun.runs.run import Run
from homespun.runs.training import reopen
from homespun.system.trust import Names

Scores: TypeAlias = Evaluation | TextEvaluation | NextWordEvaluation
PersonalizedBy: TypeAlias = Literal[
    "gradient steps", "the generator alone", "the generator and gradient steps", "a custom procedure"
]

LocalEngine: TypeAlias = CohortTrainer | LoopTrainer

HELD_OUT = 5  # one in five examples is held out to measure the gain


def personalize_from_file(
    folder: Path | str,
    source: DataSettings,
    *,
    user: str | None,
    context: str | None = None,
    steps: int | None = None,
    generated: bool = False,
    trust: Names = (),
) -> dict[str, Any]:
    """Personalize from one user's examples in a file and store the result in the run's vault."""
    with reopen(folder, read_only=False, trust=trust) as run:
        require_text_method(run)
        engine = build_local_engine(run, steps=steps, generated=generated)
        name, examples, unknown = choose_reader(run).read(run, source, user=user, context=context)
        require_new(run, name)
        data = run.method.model.encode(examples)
        client = Client(name, private=run.clients.new_private(name, run.state.broadcast()), data=data)
        require_utterances(client, len(examples), where=source.source)
        before, after = evaluate_held_out(run, engine, client)
        learned, profile = learn_locally(run, engine, client), assigned_profile(run, examples)
        notices = notices_of(run, client, learned)
        stage_profile(run, name, profile)
        stage_dates(run, name, learned)
        run.vault.stage({name: learned})
        run.vault.commit(round=run.state.round, state=state_to_bytes(run.state))
    left_out = {
        f"with fewer than {SHORTEST} tokens": len(examples) - client.examples,
        "with labels unknown to the run": unknown,
    }
    return _summarize(
        name,
        client.examples,
        by=describe_personalization(engine.built.method),
        left_out=left_out,
        gain=(before, after),
        profile=profile,
        notices=notices,
    )


def personalize(
    run: Run,
    user: str,
    texts: Sequence[str],
    labels: Sequence[str] | None = None,
    *,
    prompts: Sequence[str] | None = None,
    profile: Profile | None = None,
    context: str | None = None,
    steps: int | None = None,
    generated: bool = False,
) -> UserModel:
    """Personalize for a new user from their own texts: with labels or, for a language method, in one context. For a
    method that reads replies, `prompts` has the prompt of each text, and `profile` the user's value in columns of the
    run's profile: {"gender": "female"}.

    This takes `steps` gradient steps (None: as in the run's settings) or, with `generated`, one pass of the method's
    generator. Nothing is uploaded, the shared model does not change, and the vault is not written.

    Example:
        >>> with train("furl", load("dialects", users=12), rounds=1, workers=0) as run:
        ...     ada = personalize(run, "ada", ["mepu basi", "tolo rani"], labels=["label-0", "label-3"])
        ...     sorted(ada.private)
        ['user.embedding']
    """
    require_text_method(run)
    require_newcomer(run, user)
    if not len(texts):
        raise InputError("texts: there are none. Give at least one text of the user.")
    engine = build_local_engine(run, steps=steps, generated=generated)
    examples = with_prompts(run, choose_reader(run).convert(run, texts, labels=labels, context=context), prompts)
    examples = assign_profile(run, examples, profile or {})
    client = Client(
        user, private=run.clients.new_private(user, run.state.broadcast()), data=run.method.model.encode(examples)
    )
    if "generate" in run.scoring.offers:
        require_utterances(client, len(examples), where="texts")
    learned, profile = learn_locally(run, engine, client), assigned_profile(run, examples)
    return UserModel(run, user, learned, profile=profile, notices=notices_of(run, client, learned))


def _summarize(
    user: str,
    examples: int,
    *,
    by: PersonalizedBy,
    left_out: Mapping[str, int],
    gain: tuple[Scores | None, Scores | None],
    profile: Profile,
    notices: Sequence[str],
) -> dict[str, Any]:
    before, after = gain
    gained = "" if after is None or before is None else f" {_describe_gain(before, after)}"
    rest = "".join(f" ({count} {reason} left out)" for reason, count in left_out.items() if count)
    values = ", ".join(f"{name} {value or 'unknown'}" for name, value in profile.items())
    gained += f" Profile: {values}." if values else ""
    gained += "".join(f" {notice}" for notice in notices)
    count = "1 example" if examples == 1 else f"{examples} examples"
    return {
        "user": user,
        "examples": examples,
        "by": by,
        "before": None if before is None else before.to_dict(),
        "after": None if after is None else after.to_dict(),
        "uploaded_bytes": 0,
        "left_out": sum(left_out.values()),
        "notices": list(notices),
        **({"profile": dict(profile)} if profile else {}),
        "message": f"{user}: personalized by {by} from {count}{rest}; nothing was uploaded.{gained}",
    }


def _describe_gain(before: Scores, after: Scores) -> str:
    name, change = before.headline[0], f"from {before.headline[1]:.1f} to {after.headline[1]:.1f}"
    held_out = f"{after.examples} held-out examples"
    if isinstance(before, Evaluation) and isinstance(after, Evaluation):
        name, change = "accuracy", f"from {100 * before.accuracy:.1f} % to {100 * after.accuracy:.1f} %"
    if isinstance(before, NextWordEvaluation) and isinstance(after, NextWordEvaluation):
        change, held_out = f"from {100 * before.emr3:.1f} % to {100 * after.emr3:.1f} %", f"{after.examples} words"
    return f"On {held_out} {name} went {change}."


# Checks


def require_utterances(client: Client, given: int, *, where: str) -> None:
    if not client.examples:
        raise DataError(
            f"{where}: all {given} utterances have fewer than {SHORTEST} tokens. Give a text with longer sentences."
        )


def require_newcomer(run: Run, user: str) -> None:
    if not user.strip():
        raise InputError("user: the name must not be blank.")
    if user in run.federation.users:
        raise RunError(f"user {user!r} is a participant of this run. To improve their parameters, train more rounds.")


def require_new(run: Run, user: str) -> None:
    require_newcomer(run, user)
    if run.vault.private(user) is not None:
        raise RunError(
            f"user {user!r} already has private parameters in this run. To remove them, use `homespun vault forget`."
        )


# Learning on the client


def build_local_engine(run: Run, *, steps: int | None = None, generated: bool = False) -> LocalEngine:
    """An engine of the run's kind for one client, in this process: it personalizes as the evaluation of new users does.

    If personalization changes a shared parameter, the client keeps its own copy. A generator runs before any gradient
    steps; `generated` omits these steps.
    """
    method = replace(run.method, personalize=choose_personalization(run, steps=steps, generated=generated))
    built, seed, device = replace(run.built, method=method), run.settings.seed, run.settings.device
    if run.settings.engine == "loop":
        return LoopTrainer(built, seed, device=device)
    return CohortTrainer(built, seed, workers=0, device=device)


def choose_personalization(run: Run, *, steps: int | None, generated: bool) -> Personalization:
    """The method's personalization, with this many gradient steps or with its generator alone."""
    method_default, name = run.method.personalize, run.method.name
    # a keyed parameter, such as a context's prefix, is not a user's own
    names = list(run.built.partition.names(Role.PRIVATE, Role.FEDERATED))
    learns = any(optimizers(phase, names) for phase in method_default.phases)
    if not isinstance(method_default, GradientSteps | Generated):
        if steps is not None or generated:
            raise InputError(f"{name} has a custom personalization procedure. Leave out steps and generated.")
        return method_default
    if isinstance(method_default, GradientSteps) and not learns:
        raise RunError(f"{run.vault.path.parent}: {name} has no private parameters, so it cannot be personalized.")
    if generated and not isinstance(method_default, Generated):
        raise InputError(
            f"generated: {name} has no generator and personalizes by gradient steps. Leave it out, or train a "
            "method with a generator, such as fedperc_generated."
        )
    if steps is not None and not learns:
        raise InputError(f"steps: {name} personalizes by its generator alone. Leave out steps.")
    if steps is not None and generated:
        raise InputError("steps: with generated there are no gradient steps. Give either steps or generated.")
    if steps is not None and steps < 1:
        raise InputError(f"steps: {steps}: expected at least 1")
    phases = () if generated or not learns else [_with_steps(phase, steps) for phase in method_default.phases]
    return replace(method_default, phases=phases)


def describe_personalization(method: Method) -> PersonalizedBy:
    """How this method computes private parameters on the client."""
    if not method.personalize.generates:
        return "gradient steps" if isinstance(method.personalize, GradientSteps) else "a custom procedure"
    return "the generator and gradient steps" if method.personalize.phases else "the generator alone"


def _with_steps(phase: Phase, steps: int | None) -> Phase:
    return phase if steps is None else replace(phase, steps=steps, epochs=None)


def learn_locally(run: Run, engine: LocalEngine, client: Client) -> Tree:
    """What a client learns from its examples: private parameters, and copies of shared ones that it changed."""
    return engine.train(run.state.broadcast(), [client], mode="personalize").private[client.user]


def notices_of(run: Run, client: Client, learned: Tree) -> tuple[str, ...]:
    """What this client should know about what it learned."""
    before = run.built.parameters(run.state.broadcast(), client.private)
    return tuple(run.method.personalize.notices(before, {**before, **learned}, client.data))


def evaluate_held_out(run: Run, engine: LocalEngine, client: Client) -> tuple[Scores | None, Scores | None]:
    """Scores on a held-out fifth of the examples, personalized without any examples and with all others."""
    order = seeds.numpy_generator(run.settings.seed, "held out", client.user).permutation(client.examples)
    held = client.examples // HELD_OUT
    if held == 0:
        return None, None
    tested = _rows(client.data, order[:held])

    def scores(rows: np.ndarray) -> Scores:
        private = learn_locally(run, engine, replace(client, data=_rows(client.data, rows)))
        known = replace(client, private=private, data=tested)
        counts = score_clients(run.scoring, engine, run.state.broadcast(), [known])
        found: Scores = run.scoring.summarize(list(counts.values()))
        return found

    return scores(order[:0]), scores(order[held:])


def _rows(data: Batch, rows: np.ndarray) -> Batch:
    return {name: column[np.sort(rows)] for name, column in data.items()}
