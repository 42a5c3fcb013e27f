"""Reads the examples of a new user as the method of a run reads them: from a file, or from lists of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from homespun.core.errors import DataError, InputError, RunError, UnknownNameError, nearest, raise_faults
from homespun.core.escaping import name_candidates
from homespun.data.columns import look_like_names
from homespun.data.dialogue import as_read
from homespun.data.federation import Examples, Federation
from homespun.data.profiles import Profiles
from homespun.data.source import DataSettings
from homespun.data.text_files import is_text_file, read_text_file
from homespun.data.user_names import match_name
from homespun.personalization.generation import find_context
from homespun.personalization.profiles import Profile, assign_profile
from homespun.runs.run import Run


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
    examples = assign_profile(run, examples, _profile_in(given, name))
    reads_contexts = "context" in run.method.model.keys.values()
    if examples.contexts is None or not run.federation.contexts or not reads_contexts:
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


def with_prompts(run: Run, examples: Examples, prompts: Sequence[str] | None) -> Examples:
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
    """The reader for what the run's scoring offers: predict, generate, reply or suggest."""
    readers = {
        "predict": Reader(read_labelled_file, convert_labelled_texts),
        "generate": Reader(read_utterance_file, convert_utterances),
        "reply": Reader(read_utterance_file, convert_utterances),
        "suggest": Reader(read_utterance_file, convert_utterances),
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
        columns.pop("profile", None)
    return columns


def _profile_in(given: Federation, user: str) -> Profile:
    profiles: Profiles | None = getattr(given, "profiles", None)
    return {} if profiles is None else profiles.named(profiles.number_of[given.users.index(user)])


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
