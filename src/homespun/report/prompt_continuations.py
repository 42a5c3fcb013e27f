"""The same prompt continued by one user in every context, and by several users in one (FedPerC's table 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from homespun.core.progress import Show, each, silent, start_count
from homespun.core.settings import parse
from homespun.data.splits import withhold
from homespun.data.user_names import match_name
from homespun.experiments.experiment import Experiment, run_folder
from homespun.personalization.generation import (
    Sampling,
    find_context,
    find_personal_model,
    match_user,
    require_language_model,
    sample_continuations,
)
from homespun.report.continuation_tables import GENERATED_NOTICE, NEVER_USED, context_text
from homespun.report.table_model import Column, make_table
from homespun.report.tables import markdown_table
from homespun.runs.run import Run
from homespun.runs.settings import RunSettings
from homespun.runs.training import reopen, separate_settings
from homespun.system.terminal import Terminal

OTHER_USERS = 3  # who continue the same prompt
WIDTH = 80


@dataclass(frozen=True)
class Continuation:
    """A prompt and the text that one user's model generates after it."""

    prompt: str
    user: str
    context: str
    used: bool  # whether the corpus has examples of this user in this context
    text: str  # what follows the prompt

    @property
    def context_text(self) -> str:
        return context_text(self.context, used=self.used)


def showcase(
    run: Run,
    openings: Sequence[str],
    *,
    person: str | None = None,
    people: Sequence[str] | None = None,
    context: str | None = None,
    **sampling: Any,
) -> list[Continuation]:
    """Continue each prompt of `openings` as `person` in every context, then as each of `people` in one context.

    By default, the person is the first participant who has a context without examples, the people are the first other
    participants, and the context is the person's most frequent one.
    """
    require_language_model(run)
    settings = parse(Sampling, sampling, where="sampling")
    names = run.federation.contexts
    one = _first_with_an_unused_context(run) if person is None else match_user(run, person)
    others = _first_others(run, one) if people is None else [match_user(run, name) for name in people]
    shared = _most_frequent_context(run, one) if context is None else find_context(run, context)
    pairs = [(one, index) for index in range(max(len(names), 1))] + [(other, shared or 0) for other in others]
    generated = []
    done = start_count(run.progress, "continuations", total=len(openings) * len(pairs))
    for prompt in openings:
        for user, index in each(pairs, done):
            model = find_personal_model(run, user=user, context=names[index] if names else None)
            used = not names or bool(_examples_by_context(run, user)[index])
            for text in sample_continuations(model, prompt, settings):
                generated.append(Continuation(prompt, user, names[index] if names else "", used, text))
    return generated


def check_showcase(experiment: Experiment) -> None:
    """Find an unknown name or a wrong sampling option before training, not after it."""
    asked = experiment.showcase
    if asked is None:
        return
    parse(Sampling, asked.sampling, where="showcase: sampling")
    chosen, draw = experiment.configurations[asked.configuration], experiment.draws[0]
    values = {**experiment.settings, **chosen.settings, **draw.settings}
    settings = parse(RunSettings, separate_settings(chosen.method, values)[0], where="showcase")
    federation = experiment.data.load()
    participants, _ = withhold(federation, share=settings.withheld, seed=settings.seed, fold=settings.fold)
    for name in (asked.person, *(asked.people or ())):
        if name is not None:
            match_name(name, participants.users, kind="participant", where="showcase")
    if asked.context is not None:
        match_name(asked.context, federation.contexts, kind="context", where="showcase")


def experiment_showcase(experiment: Experiment, folder: Path, *, progress: Show = silent) -> list[Continuation]:
    """The showcase of a finished experiment, from its first seed; empty if the experiment has no showcase."""
    asked = experiment.showcase
    if asked is None:
        return []
    with reopen(run_folder(folder, asked.configuration, experiment.draws[0]), progress=progress) as run:
        return showcase(
            run, asked.openings, person=asked.person, people=asked.people, context=asked.context, **asked.sampling
        )


def showcase_results(experiment: Experiment, shown: Sequence[Continuation]) -> dict[str, Any]:
    """The continuations in the form that `results.json` stores."""
    if experiment.showcase is None:
        return {}
    samples = [
        {"opening": one.prompt, "user": one.user, "context": one.context, "used": one.used, "text": one.text}
        for one in shown
    ]
    return {"showcase": {"configuration": experiment.showcase.configuration, "samples": samples}}


def _examples_by_context(run: Run, user: str) -> np.ndarray:
    """How many examples a participant has in each context; zeros for a user who never took part."""
    count = max(len(run.federation.contexts), 1)
    if user not in run.federation.users:
        return np.zeros(count, dtype=np.int64)
    found = run.federation.examples(run.federation.users.index(user)).contexts
    return np.zeros(count, dtype=np.int64) if found is None else np.bincount(found, minlength=count)


def _first_with_an_unused_context(run: Run) -> str:
    users = run.federation.users
    return next((user for user in users if not _examples_by_context(run, user).all()), users[0])


def _first_others(run: Run, person: str) -> list[str]:
    return [user for user in run.federation.users[: OTHER_USERS + 1] if user != person][:OTHER_USERS]


def _most_frequent_context(run: Run, user: str) -> int:
    return int(_examples_by_context(run, user).argmax())


def showcase_table(shown: Sequence[Continuation], *, prompt: str) -> Table:
    """The continuations of one prompt, for a terminal of 80 columns."""
    made = Table(
        title=f"{prompt} ...", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0), width=WIDTH
    )
    for name, widest in (("user", 20), ("context", 16), ("continuation", None)):
        made.add_column(name, overflow="fold", max_width=widest, vertical="top")
    for one in shown:
        if one.prompt == prompt:
            context = one.context if one.used else f"{one.context}\n({NEVER_USED})"
            made.add_row(one.user, context, " ".join(one.text.split()))
    return made


def print_showcase(shown: Sequence[Continuation], console: Terminal | None = None) -> None:
    """Print one table for each prompt."""
    # Names and texts are data: square brackets in them are not markup.
    console = console or Terminal(highlight=False, markup=False)
    for prompt in dict.fromkeys(one.prompt for one in shown):
        console.print(showcase_table(shown, prompt=prompt))
        console.print()
    if shown:
        console.print(GENERATED_NOTICE)


def showcase_markdown(shown: Sequence[Continuation]) -> str:
    rows = [(one.user, one.context_text, one.prompt, " ".join(one.text.split())) for one in shown]
    columns = [Column(name) for name in ("User", "Context", "Prompt", "Continuation")]
    return markdown_table(make_table(columns, rows)) + "\n"
