"""Personalizes the shared model for a new user from their own examples. Nothing is uploaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from homespun.core import seeds
from homespun.core.errors import DataError, InputError, RunError, UnknownNameError, nearest, raise_faults
from homespun.core.escaping import name_candidates
from homespun.core.messages import state_to_bytes
from homespun.core.method import Batch, Method, Phase, optimizers
from homespun.core.personalize import Generated, GradientSteps, Personalization
from homespun.core.roles import Role
from homespun.core.tree import Tree
from homespun.data.columns import look_like_names
from homespun.data.dialogue import as_read
from homespun.data.federation import Examples, Federation
from homespun.data.source import DataSettings
from homespun.data.text_files import is_text_file, read_text_file
from homespun.data.user_names import match_name
from homespun.engines.client import Client
from homespun.engines.loop import LoopTrainer
from homespun.engines.simulation import score_clients
from homespun.evaluation.classification import Evaluation
from homespun.evaluation.language import TextEvaluation
from homespun.models.token_batches import SHORTEST
from homespun.personalization.generation import find_context
from homespun.personalization.user import UserModel, require_text_method
from homespun.runs.run import Run
from homespun.runs.training import reopen
from homespun.system.trust import Names

Scores: TypeAlias = Evaluation | TextEvaluation
PersonalizedBy: TypeAlias = Literal[
    "gradient steps", "the generator alone", "the generator and gradient steps", "a custom procedure"
]

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
        run.vault.stage({name: learn_locally(run, engine, client)})
        run.vault.commit(round=run.state.round, state=state_to_bytes(run.state))
    left_out = {
        f"with fewer than {SHORTEST} tokens": len(examples) - client.examples,
        "with labels unknown to the run": unknown,
    }
    return _summarize(
        name, client.examples, by=describe_personalization(engine.built.method), left_out=left_out, gain=(before, after)
    )


def personalize(
    run: Run,
    user: str,
    texts: Sequence[str],
    labels: Sequence[str] | None = None,
    *,
    prompts: Sequence[str] | None = None,
    context: str | None = None,
    steps: int | None = None,
    generated: bool = False,
) -> UserModel:
    """Personalize for a new user from their own texts: with labels or, for a language method, in one context. For a
    method that reads replies, `prompts` has the prompt of each text.

    This takes `steps` gradient steps (None: as in the run's settings) or, with `generated`, one pass of the method's
    generator. Nothing is uploaded, the shared model does not change, and the vault is not written.

    Example:
        >>> with train("furl", load("dialects", users=12), rounds=1, workers=0) as run:
        ...     ada = personalize(run, "ada", ["mepu basi", "tolo rani"], labels=["label-0", "label-3"])
        ...     sorted(ada.private)
        ['user.embedding']
    """
    require_text_method(run)
    engine = build_local_engine(run, steps=steps, generated=generated)
    examples = _with_prompts(run, choose_reader(run).convert(run, texts, labels=labels, context=context), prompts)
    client = Client(
        user, private=run.clients.new_private(user, run.state.broadcast()), data=run.method.model.encode(examples)
    )
    if "generate" in run.scoring.offers:
        require_utterances(client, len(examples), where="texts")
    return UserModel(run, user, learn_locally(run, engine, client))


def _summarize(
    user: str,
    examples: int,
    *,
    by: PersonalizedBy,
    left_out: Mapping[str, int],
    gain: tuple[Scores | None, Scores | None],
) -> dict[str, Any]:
    before, after = gain
    gained = "" if after is None or before is None else f" {_describe_gain(before, after)}"
    rest = "".join(f" ({count} {reason} left out)" for reason, count in left_out.items() if count)
    return {
        "user": user,
        "examples": examples,
        "by": by,
        "before": None if before is None else before.to_dict(),
        "after": None if after is None else after.to_dict(),
        "uploaded_bytes": 0,
        "left_out": sum(left_out.values()),
        "message": f"{user}: personalized by {by} from {examples} examples{rest}; nothing was uploaded.{gained}",
    }


def _describe_gain(before: Scores, after: Scores) -> str:
    name, change = before.headline[0], f"from {before.headline[1]:.1f} to {after.headline[1]:.1f}"
    if isinstance(before, Evaluation) and isinstance(after, Evaluation):
        name, change = "accuracy", f"from {100 * before.accuracy:.1f} % to {100 * after.accuracy:.1f} %"
    return f"On {after.examples} held-out examples {name} went {change}."


# Reading examples


def read_labelled_file(
    run: Run, source: DataSettings, *, user: str | None, context: str | None
) -> tuple[str, Examples, int]:
    """One user's labelled examples, and the number of those left out because the run lacks their label."""
    if context is not None:
        raise InputError(f"{run.method.name} predicts labels and has no contexts. Leave out --context.")
    if is_text_file(Path(source.source)):
        raise DataError(
            f"{source.source}: {run.method.name} predicts labels, which a plain text does not have. "
            "Give a table with a label column."
        )
    given = _load(run, source, columns=_run_columns(run))
    return select_labelled_examples(given, user, labels=run.federation.labels)


def read_utterance_file(
    run: Run, source: DataSettings, *, user: str | None, context: str | None
) -> tuple[str, Examples, int]:
    """One user's utterances in contexts of the run, from a plain text or the rows of a table."""
    path = Path(source.source)
    if is_text_file(path):
        if run.method.model.reads == "replies":
            raise DataError(f"{path}: {run.method.name} learns from replies. Give a table with all turns of dialogues.")
        sentences = read_text_file(path)
        if user is None:
            raise InputError(f"{path}: name the author with --user.")
        return user, _assign_context(run, Examples(sentences), context), 0
    columns = {name: column for name, column in _run_columns(run).items() if name != "label"}
    if context is not None:
        columns.pop("context", None)
    given = _load(run, source, columns=columns)
    name, examples = select_user_examples(given, user)
    if examples.contexts is None or not run.federation.contexts:
        return name, _assign_context(run, examples, context), 0
    if context is not None:
        raise InputError(f"{path}: the table has a context column. Leave out --context, or remove the column.")
    return name, replace(examples, contexts=context_indices(run, given, examples.contexts)), 0


def convert_labelled_texts(
    run: Run, texts: Sequence[str], *, labels: Sequence[str] | None, context: str | None
) -> Examples:
    if labels is None or len(labels) != len(texts) or context is not None:
        raise InputError(f"{run.method.name} predicts labels and has no contexts: give one label per text.")
    return Examples(list(texts), labels=label_indices(labels, run.federation.labels))


def convert_utterances(
    run: Run, texts: Sequence[str], *, labels: Sequence[str] | None, context: str | None
) -> Examples:
    if labels is not None:
        raise InputError(f"labels: {run.method.name} does not use labels. Leave them out.")
    return _assign_context(run, Examples(list(texts)), context)


def _with_prompts(run: Run, examples: Examples, prompts: Sequence[str] | None) -> Examples:
    needed = len(examples) if run.method.model.reads == "replies" else 0
    if len(prompts or ()) != needed:
        raise InputError(f"prompts: {run.method.name} needs {needed} of them for {len(examples)} texts.")
    return replace(examples, prompts=list(prompts)) if prompts else examples


@dataclass(frozen=True)
class Reader:
    """How the texts of a new user become examples of the run."""

    read: Callable[..., tuple[str, Examples, int]]  # from a file: the user, their examples, how many were left out
    convert: Callable[..., Examples]  # from Python lists


def choose_reader(run: Run) -> Reader:
    """The reader for what the run's scoring offers: predict, generate or reply."""
    readers = {
        "predict": Reader(read_labelled_file, convert_labelled_texts),
        "generate": Reader(read_utterance_file, convert_utterances),
        "reply": Reader(read_utterance_file, convert_utterances),
    }
    found = [reader for offer, reader in readers.items() if offer in run.scoring.offers]
    if not found:
        raise RunError(f"{run.vault.path.parent}: {run.method.name} cannot be personalized from texts.")
    return found[0]


def _load(run: Run, source: DataSettings, *, columns: Mapping[str, str]) -> Federation:
    """The corpus in a user's file, as the run's method reads it."""
    reads, settings = run.method.model.reads, {}
    if reads == "replies" and run.data is not None and "max_words" in run.data.settings:
        settings["max_words"] = run.data.settings["max_words"]
    given = source.model_copy(update={"columns": {**columns, **source.columns}, "settings": settings})
    return as_read(given.load(), reads)


def _run_columns(run: Run) -> Mapping[str, str]:
    columns: dict[str, str] = {} if run.data is None else dict(run.data.columns)
    if run.method.model.reads != "replies":
        columns.pop("conversation", None)
    return columns


def _assign_context(run: Run, examples: Examples, context: str | None) -> Examples:
    position = find_context(run, context)
    return replace(examples, contexts=np.full(len(examples), position or 0))


def context_indices(run: Run, given: Federation, contexts: np.ndarray) -> np.ndarray:
    """Map the contexts of a file to the indices of the run. One error names all unknown contexts."""
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
            f"{given.name}: the run does not know {len(unknown)} of its contexts. They do not look like names and are "
            f"not shown. The run knows {', '.join(map(repr, known))}."
        )
    if faults:
        raise_faults(DataError, given.name, faults)
    return places[contexts]


def select_labelled_examples(
    given: Federation, user: str | None, *, labels: tuple[str, ...]
) -> tuple[str, Examples, int]:
    """One user's examples with the run's label indices, and the number of those whose label the run lacks."""
    name, examples = select_user_examples(given, user)
    if examples.labels is None:
        raise DataError(f"{given.name}: the examples have no labels. Name their column with --label-column.")
    named = [given.labels[label] for label in examples.labels]
    known = [row for row, label in enumerate(named) if label in labels] or range(len(named))  # else it raises
    indices = label_indices([named[row] for row in known], labels)
    return name, replace(examples.take(list(known)), labels=indices), len(named) - len(known)


def select_user_examples(given: Federation, user: str | None) -> tuple[str, Examples]:
    users = list(given.users)
    if user is None and len(users) > 1:
        raise DataError(f"{given.name}: contains {len(users)} users. Choose one with --user.")
    name = users[0] if user is None else next((one for one in name_candidates(user) if one in users), user)
    if name not in users:
        raise UnknownNameError(f"{given.name}: no user {name!r}.{nearest(name, users)}")
    return name, given.examples(users.index(name))


def require_utterances(client: Client, given: int, *, where: str) -> None:
    if not client.examples:
        raise DataError(
            f"{where}: all {given} utterances have fewer than {SHORTEST} tokens. Give a text with longer sentences."
        )


def require_new(run: Run, user: str) -> None:
    if not user.strip():
        raise InputError("user: the name must not be blank.")
    if user in run.federation.users:
        raise RunError(f"user {user!r} is a participant of this run. To improve their parameters, train more rounds.")
    if run.vault.private(user) is not None:
        raise RunError(
            f"user {user!r} already has private parameters in this run. To remove them, use `homespun vault forget`."
        )


# Learning on the client


def build_local_engine(run: Run, *, steps: int | None = None, generated: bool = False) -> LoopTrainer:
    """An engine for one client in this process, which personalizes exactly as the evaluation of new users does.

    If personalization changes a shared parameter, the client keeps its own copy. A generator runs before any gradient
    steps; `generated` omits these steps.
    """
    method = replace(run.method, personalize=choose_personalization(run, steps=steps, generated=generated))
    return LoopTrainer(replace(run.built, method=method), run.settings.seed, device=run.settings.device)


def choose_personalization(run: Run, *, steps: int | None, generated: bool) -> Personalization:
    """The method's personalization, with this many gradient steps or with its generator alone."""
    method_default, name = run.method.personalize, run.method.name
    private = list(run.built.partition.names(Role.PRIVATE))
    learns = any(optimizers(phase, private) for phase in method_default.phases)
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


def learn_locally(run: Run, engine: LoopTrainer, client: Client) -> Tree:
    """What a client learns from its examples: private parameters, and copies of shared ones that it changed."""
    return engine.train(run.state.broadcast(), [client], mode="personalize").private[client.user]


def evaluate_held_out(run: Run, engine: LoopTrainer, client: Client) -> tuple[Scores | None, Scores | None]:
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


def label_indices(labels: Sequence[str], known: Sequence[str]) -> np.ndarray:
    positions = {label: position for position, label in enumerate(known)}
    unknown = sorted({label for label in labels if label not in positions})
    if unknown and not look_like_names(unknown):
        raise DataError(
            f"labels: {len(unknown)} of them are unknown to the run. They do not look like names and are not shown."
        )
    if unknown:
        raise_faults(
            DataError,
            "labels",
            [f"the run knows no label {label!r}.{nearest(label, known)}" for label in unknown],
        )
    return np.array([positions[label] for label in labels], dtype=np.int64)
