"""The same opening continued by one person in every setting, and by several people in one (FedPerC's table 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from homespun.core.progress import Show, counted, each, silent
from homespun.core.settings import parse
from homespun.data.splits import withhold
from homespun.data.user_names import match_name
from homespun.experiments.experiment import Experiment, run_folder
from homespun.personalization.generation import (
    Sampling,
    continuations,
    find_context,
    find_person,
    find_voice,
    language_model_of,
)
from homespun.report.cells import Column, table
from homespun.report.tables import markdown_table
from homespun.report.voices import NEVER_USED, NOBODY_SAID_THIS, setting_text
from homespun.runs.run import Run
from homespun.runs.settings import RunSettings
from homespun.runs.training import reopen, separate_settings
from homespun.system.terminal import Terminal

PEOPLE = 3  # others who continue the same opening
WIDTH = 80


@dataclass(frozen=True)
class Sample:
    """One continuation."""

    opening: str
    user: str
    context: str
    used: bool  # whether the corpus has examples of this person in this context
    text: str  # what follows the opening

    @property
    def setting(self) -> str:
        return setting_text(self.context, used=self.used)


def showcase(
    run: Run,
    openings: Sequence[str],
    *,
    person: str | None = None,
    people: Sequence[str] | None = None,
    context: str | None = None,
    **sampling: Any,
) -> list[Sample]:
    """For every opening: `person` in every context, then each of `people` in one.

    Left out, the person is the first participant who never used one of the contexts, the people are the first
    others, and the context is the one that the person uses most.
    """
    language_model_of(run)
    settings = parse(Sampling, sampling, where="sampling")
    names = run.federation.contexts
    one = _first_with_a_new_context(run) if person is None else find_person(run, person)
    others = _first_others(run, one) if people is None else [find_person(run, name) for name in people]
    shared = _usual_context(run, one) if context is None else find_context(run, context)
    pairs = [(one, place) for place in range(max(len(names), 1))] + [(other, shared or 0) for other in others]
    samples = []
    done = counted(run.progress, "continuations", total=len(openings) * len(pairs))
    for opening in openings:
        for user, place in each(pairs, done):
            voice = find_voice(run, user=user, context=names[place] if names else None)
            used = not names or bool(_uses(run, user)[place])
            for text in continuations(voice, opening, settings):
                samples.append(Sample(opening, user, names[place] if names else "", used, text))
    return samples


def check_showcase(experiment: Experiment) -> None:
    """Find a wrong name or a wrong way to draw before training, not after it."""
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


def experiment_showcase(experiment: Experiment, folder: Path, *, progress: Show = silent) -> list[Sample]:
    """What a finished experiment was asked to show, of its first seed; nothing if it was not asked."""
    asked = experiment.showcase
    if asked is None:
        return []
    with reopen(run_folder(folder, asked.configuration, experiment.draws[0]), progress=progress) as run:
        return showcase(
            run, asked.openings, person=asked.person, people=asked.people, context=asked.context, **asked.sampling
        )


def showcase_results(experiment: Experiment, samples: Sequence[Sample]) -> dict[str, Any]:
    """The samples as `results.json` has them."""
    if experiment.showcase is None:
        return {}
    shown = {"configuration": experiment.showcase.configuration, "samples": [asdict(sample) for sample in samples]}
    return {"showcase": shown}


def _uses(run: Run, user: str) -> np.ndarray:
    """How many examples of a participant are in each context; of somebody who never took part, none are known."""
    count = max(len(run.federation.contexts), 1)
    if user not in run.federation.users:
        return np.zeros(count, dtype=np.int64)
    found = run.federation.examples(run.federation.users.index(user)).contexts
    return np.zeros(count, dtype=np.int64) if found is None else np.bincount(found, minlength=count)


def _first_with_a_new_context(run: Run) -> str:
    users = run.federation.users
    return next((user for user in users if not _uses(run, user).all()), users[0])


def _first_others(run: Run, person: str) -> list[str]:
    return [user for user in run.federation.users[: PEOPLE + 1] if user != person][:PEOPLE]


def _usual_context(run: Run, person: str) -> int:
    return int(_uses(run, person).argmax())


def showcase_table(samples: Sequence[Sample], *, opening: str) -> Table:
    """The samples of one opening, for a terminal of 80 columns."""
    made = Table(
        title=f"{opening} ...", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0), width=WIDTH
    )
    for name, widest in (("who", 20), ("setting", 16), ("continues", None)):
        made.add_column(name, overflow="fold", max_width=widest, vertical="top")
    for sample in samples:
        if sample.opening == opening:
            setting = sample.context if sample.used else f"{sample.context}\n({NEVER_USED})"
            made.add_row(sample.user, setting, " ".join(sample.text.split()))
    return made


def print_showcase(samples: Sequence[Sample], console: Terminal | None = None) -> None:
    """One table for every opening."""
    # names and texts are data: square brackets in them are no markup
    console = console or Terminal(highlight=False, markup=False)
    for opening in dict.fromkeys(sample.opening for sample in samples):
        console.print(showcase_table(samples, opening=opening))
        console.print()
    if samples:
        console.print(NOBODY_SAID_THIS)


def showcase_markdown(samples: Sequence[Sample]) -> str:
    rows = [(one.user, one.setting, one.opening, " ".join(one.text.split())) for one in samples]
    return markdown_table(table([Column(name) for name in ("who", "setting", "opening", "continues")], rows)) + "\n"
