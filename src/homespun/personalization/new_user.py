"""A new user from examples of their own: learned or generated at home, nothing uploaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from homespun.core import seeds
from homespun.core.errors import DataError, InputError, RunError, UnknownNameError, nearest, raise_faults
from homespun.core.messages import state_to_bytes
from homespun.core.method import Batch, Method, Phase, optimizers
from homespun.core.personalize import Generated, GradientSteps, Personalization
from homespun.core.roles import Role
from homespun.core.spelling import readings
from homespun.core.tree import Tree
from homespun.data.columns import look_like_names
from homespun.data.federation import Examples, Federation
from homespun.data.source import DataSettings
from homespun.data.text_files import is_text_file, read_text_file
from homespun.data.user_names import match_name
from homespun.engines.client import Client
from homespun.engines.loop import LoopEngine
from homespun.engines.simulation import score_clients
from homespun.evaluation.classification import Evaluation
from homespun.evaluation.language import TextEvaluation
from homespun.models.token_batches import SHORTEST
from homespun.personalization.generation import find_context
from homespun.personalization.user import Person, require_texts
from homespun.runs.run import Run
from homespun.runs.training import label_indices, reopen
from homespun.system.trust import Names

Scores: TypeAlias = Evaluation | TextEvaluation
Way: TypeAlias = Literal[
    "gradient steps", "the generator alone", "the generator and gradient steps", "a way of its own"
]

HELD_OUT = 5  # every fifth example shows what personalizing brought


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
    """Personalize for the examples of one user in a file and keep the result in the run's vault."""
    with reopen(folder, read_only=False, trust=trust) as run:
        require_texts(run)
        engine = home_engine(run, steps=steps, generated=generated)
        name, examples, unknown = reader_of(run).read(run, source, user=user, context=context)
        require_new(run, name)
        data = run.method.encode(examples)
        home = Client(name, private=run.clients.new_private(name, run.state.broadcast()), data=data)
        require_utterances(home, len(examples), where=source.source)
        before, after = held_out_gain(run, engine, home)
        run.vault.stage({name: learned_at_home(run, engine, home)})
        run.vault.commit(round=run.state.round, state=state_to_bytes(run.state))
    left_out = {
        f"with fewer than {SHORTEST} tokens": len(examples) - home.examples,
        "with labels unknown to the run": unknown,
    }
    return _outcome(name, home.examples, by=way(engine.built.method), left_out=left_out, gain=(before, after))


def personalize(
    run: Run,
    user: str,
    texts: Sequence[str],
    labels: Sequence[str] | None = None,
    *,
    context: str | None = None,
    steps: int | None = None,
    generated: bool = False,
) -> Person:
    """A new user, from examples of their own: texts with labels or, for a language method, texts of one context.

    By `steps` gradient steps (None: as the run was set), or with `generated` by the method's generator alone. Nothing
    is uploaded, the shared model does not change, and the vault is not written.
    """
    require_texts(run)
    engine = home_engine(run, steps=steps, generated=generated)
    examples = reader_of(run).take(run, texts, labels=labels, context=context)
    home = Client(user, private=run.clients.new_private(user, run.state.broadcast()), data=run.method.encode(examples))
    if "generate" in run.scoring.offers:
        require_utterances(home, len(examples), where="texts")
    return Person(run, user, learned_at_home(run, engine, home))


def _outcome(
    user: str, examples: int, *, by: Way, left_out: Mapping[str, int], gain: tuple[Scores | None, Scores | None]
) -> dict[str, Any]:
    before, after = gain
    went = "" if after is None or before is None else f" {_went(before, after)}"
    rest = "".join(f" ({count} {reason} left out)" for reason, count in left_out.items() if count)
    return {
        "user": user,
        "examples": examples,
        "by": by,
        "before": None if before is None else before.to_dict(),
        "after": None if after is None else after.to_dict(),
        "uploaded_bytes": 0,
        "left_out": sum(left_out.values()),
        "message": f"{user}: personalized by {by} from {examples} examples{rest}; nothing was uploaded.{went}",
    }


def _went(before: Scores, after: Scores) -> str:
    if isinstance(before, Evaluation) and isinstance(after, Evaluation):
        change = f"accuracy went from {100 * before.accuracy:.1f} % to {100 * after.accuracy:.1f} %"
    else:
        change = f"perplexity went from {before.headline[1]:.1f} to {after.headline[1]:.1f}"
    return f"On {after.examples} held-out examples {change}."


# Whose examples, and which


def own_labelled(run: Run, source: DataSettings, *, user: str | None, context: str | None) -> tuple[str, Examples, int]:
    """One user's examples with labels, and how many have a label that the run lacks."""
    if context is not None:
        raise InputError(f"{run.method.name} learns labels, in no context. Leave --context out.")
    if is_text_file(Path(source.source)):
        raise DataError(
            f"{source.source}: {run.method.name} learns labels, which a plain text does not have. "
            "Give a file with a label column."
        )
    given = source.model_copy(update={"columns": {**_run_columns(run), **source.columns}}).load()
    return labelled_examples(given, user, labels=run.federation.labels)


def own_utterances(
    run: Run, source: DataSettings, *, user: str | None, context: str | None
) -> tuple[str, Examples, int]:
    """One user's utterances in contexts of the run: a plain text, or the rows of a table."""
    path = Path(source.source)
    if is_text_file(path):
        sentences = read_text_file(path)
        if user is None:
            raise InputError(f"{path}: say whose text it is with --user.")
        return user, _in_context(run, Examples(sentences), context), 0
    columns = {name: column for name, column in _run_columns(run).items() if name != "label"}
    if context is not None:
        columns.pop("context", None)
    given = source.model_copy(update={"columns": {**columns, **source.columns}}).load()
    name, examples = one_users_examples(given, user)
    if examples.contexts is None or not run.federation.contexts:
        return name, _in_context(run, examples, context), 0
    if context is not None:
        raise InputError(f"{path}: has contexts of its own. Leave --context out, or the column.")
    return name, replace(examples, contexts=context_indices(run, given, examples.contexts)), 0


def given_labelled(run: Run, texts: Sequence[str], *, labels: Sequence[str] | None, context: str | None) -> Examples:
    if labels is None or len(labels) != len(texts) or context is not None:
        raise InputError(f"{run.method.name} learns labels, in no context: give one for each of the texts.")
    return Examples(list(texts), labels=label_indices(labels, run.federation.labels))


def given_utterances(run: Run, texts: Sequence[str], *, labels: Sequence[str] | None, context: str | None) -> Examples:
    if labels is not None:
        raise InputError(f"labels: {run.method.name} learns none. Leave them out.")
    return _in_context(run, Examples(list(texts)), context)


@dataclass(frozen=True)
class Reader:
    """How a user's own examples become examples of the run."""

    read: Callable[..., tuple[str, Examples, int]]  # from a file: the user, examples, how many cannot be learned from
    take: Callable[..., Examples]  # as given in Python


def reader_of(run: Run) -> Reader:
    """By what the run can do for a user."""
    readers = {"predict": Reader(own_labelled, given_labelled), "generate": Reader(own_utterances, given_utterances)}
    found = [reader for offer, reader in readers.items() if offer in run.scoring.offers]
    if not found:
        raise RunError(f"{run.vault.path.parent}: {run.method.name} does not learn from a user's own texts.")
    return found[0]


def _run_columns(run: Run) -> Mapping[str, str]:
    return run.data.columns if run.data is not None else {}


def _in_context(run: Run, examples: Examples, context: str | None) -> Examples:
    position = find_context(run, context)
    return replace(examples, contexts=np.full(len(examples), position or 0))


def context_indices(run: Run, given: Federation, contexts: np.ndarray) -> np.ndarray:
    """A file's contexts as the run numbers them; all that it does not know are named at once."""
    known, unknown, faults = run.federation.contexts, [], []
    places = np.zeros(len(given.contexts), dtype=np.int64)
    for place in np.unique(contexts):
        try:
            found = match_name(given.contexts[place], known, kind="context", where="the run")
            places[place] = known.index(found)
        except UnknownNameError as error:
            unknown.append(given.contexts[place])
            faults.append(str(error))
    if not look_like_names(unknown):
        raise DataError(
            f"{given.name}: {len(unknown)} of its contexts are unknown to the run. They do not look like names and are "
            f"not shown. The run knows {', '.join(map(repr, known))}."
        )
    if faults:
        raise_faults(DataError, given.name, faults)
    return places[contexts]


def labelled_examples(given: Federation, user: str | None, *, labels: tuple[str, ...]) -> tuple[str, Examples, int]:
    """The one user's examples, with labels numbered as the run numbers them, and how many have a label it lacks."""
    name, examples = one_users_examples(given, user)
    if examples.labels is None:
        raise DataError(f"{given.name}: its examples have no label. Name the column with --label-column.")
    named = [given.labels[label] for label in examples.labels]
    known = [row for row, label in enumerate(named) if label in labels] or range(len(named))  # none: the error says so
    indices = label_indices([named[row] for row in known], labels)
    return name, replace(examples.take(list(known)), labels=indices), len(named) - len(known)


def one_users_examples(given: Federation, user: str | None) -> tuple[str, Examples]:
    users = list(given.users)
    if user is None and len(users) > 1:
        raise DataError(f"{given.name}: has {len(users)} users. Say which one with --user.")
    name = users[0] if user is None else next((one for one in readings(user) if one in users), user)
    if name not in users:
        raise UnknownNameError(f"{given.name}: no user {name!r}.{nearest(name, users)}")
    return name, given.examples(users.index(name))


def require_utterances(home: Client, given: int, *, where: str) -> None:
    if not home.examples:
        raise DataError(
            f"{where}: none of its {given} utterances has {SHORTEST} tokens or more. Give a text with longer sentences."
        )


def require_new(run: Run, user: str) -> None:
    if not user.strip():
        raise InputError("user: a name has to have letters or digits.")
    if user in run.federation.users:
        raise RunError(f"user {user!r} takes part in this run: train it further instead.")
    if run.vault.private(user) is not None:
        raise RunError(
            f"user {user!r} has private parameters in this run already. `homespun vault forget` removes them."
        )


# Learning at home


def home_engine(run: Run, *, steps: int | None = None, generated: bool = False) -> LoopEngine:
    """One person in this process, by the steps that newcomers are evaluated with: what is measured is what is kept.

    Of a shared parameter that they change the home keeps its own copy. A method that generates does so before any of
    its steps, and `generated` means without them.
    """
    method = replace(run.method, personalize=chosen_way(run, steps=steps, generated=generated))
    return LoopEngine(replace(run.built, method=method), run.settings.seed, device=run.settings.device)


def chosen_way(run: Run, *, steps: int | None, generated: bool) -> Personalization:
    """The method's personalization, with this many gradient steps or by its generator alone."""
    way, name = run.method.personalize, run.method.name
    private = list(run.built.partition.names(Role.PRIVATE))
    learns = any(optimizers(phase, private) for phase in way.phases)
    if not isinstance(way, GradientSteps | Generated):
        if steps is not None or generated:
            raise InputError(f"{name} personalizes in a way of its own. Leave steps and generated out.")
        return way
    if isinstance(way, GradientSteps) and not learns:
        raise RunError(f"{run.vault.path.parent}: {name} keeps nothing private, so there is nothing to personalize.")
    if generated and not isinstance(way, Generated):
        raise InputError(
            f"generated: {name} has no generator, it personalizes by gradient steps. Leave it out, or train a "
            "method that generates, such as fedperc_generated."
        )
    if steps is not None and not learns:
        raise InputError(f"steps: {name} personalizes by its generator alone. Leave them out.")
    if steps is not None and generated:
        raise InputError("steps: the generator alone takes none. Give steps or generated.")
    if steps is not None and steps < 1:
        raise InputError(f"steps: {steps}. At least one gradient step is needed.")
    return replace(way, phases=() if generated or not learns else [_with_steps(phase, steps) for phase in way.phases])


def way(method: Method) -> Way:
    """How this method makes private parameters at home."""
    if not method.personalize.generates:
        return "gradient steps" if isinstance(method.personalize, GradientSteps) else "a way of its own"
    return "the generator and gradient steps" if method.personalize.phases else "the generator alone"


def _with_steps(phase: Phase, steps: int | None) -> Phase:
    return phase if steps is None else replace(phase, steps=steps, epochs=None)


def learned_at_home(run: Run, engine: LoopEngine, home: Client) -> Tree:
    """What a home keeps of its examples: private parameters, and copies of the shared ones that it changed."""
    return engine.work(run.state.broadcast(), [home], work="personalize").private[home.user]


def held_out_gain(run: Run, engine: LoopEngine, home: Client) -> tuple[Scores | None, Scores | None]:
    """Before and after, on a fifth of the examples that is not learned from; before means with no examples."""
    order = seeds.numpy_generator(run.settings.seed, "held out", home.user).permutation(home.examples)
    held = home.examples // HELD_OUT
    if held == 0:
        return None, None
    tested = _rows(home.data, order[:held])

    def scores(rows: np.ndarray) -> Scores:
        private = learned_at_home(run, engine, replace(home, data=_rows(home.data, rows)))
        known = replace(home, private=private, data=tested)
        counts = score_clients(run.scoring, engine, run.state.broadcast(), [known])
        found: Scores = run.scoring.summarize(list(counts.values()))
        return found

    return scores(order[:0]), scores(order[held:])


def _rows(data: Batch, rows: np.ndarray) -> Batch:
    return {name: column[np.sort(rows)] for name, column in data.items()}
