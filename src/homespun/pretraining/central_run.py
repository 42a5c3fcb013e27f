"""A central training run in a folder: starts it, or resumes it after an interruption.

RUN/settings.json            the request it was started with, and the fingerprint of the data
RUN/corpus/                  vocabulary and word numbers
RUN/checkpoint.safetensors   the state to resume from
RUN/results.json             the results, once the run is finished
RUN/model/                   the model
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch

from homespun.core.errors import RunError
from homespun.core.settings import Settings
from homespun.pretraining import central
from homespun.pretraining.central import CentralSettings, Objective, StepProgress, TrainingState
from homespun.system.json_files import SCHEMA, read_json, versions, write_json
from homespun.system.machine import cpu_cores

RESULTS = "results.json"
TrainedObjective = TypeVar("TrainedObjective", bound=Objective)


class Request(Protocol):
    """The data and settings of a run: a `Settings` with settings of central training."""

    @property
    def settings(self) -> CentralSettings: ...

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


@dataclass(frozen=True)
class CentralRun(Generic[TrainedObjective]):
    """An open run, ready to train."""

    folder: Path
    objective: TrainedObjective
    fingerprint: str  # of the data
    state: TrainingState = field(repr=False)

    @property
    def steps(self) -> int:
        return central.total_steps(self.objective)

    def train(self) -> Iterator[StepProgress]:
        return central.train(self.state, self.objective, folder=self.folder)


def open_central_run(
    folder: Path,
    request: Request,
    *,
    make: Callable[[Path], str],
    load: Callable[[Path], TrainedObjective],
    say: Callable[[str], None],
) -> CentralRun[TrainedObjective]:
    """Start a run, or resume the one in the folder. `make` writes the corpus into a folder and returns the fingerprint
    of the data; `load` reads it."""
    if (folder / RESULTS).exists():
        raise RunError(
            f"{folder}: this run is finished; its model is in {folder / 'model'}. Name another --folder for a new one."
        )
    torch.set_num_threads(request.settings.threads or cpu_cores())
    place = folder / "settings.json"
    asked = {"schema": SCHEMA, "request": request.model_dump(mode="json")}
    recorded = read_json(place, missing="") if place.exists() else None
    if recorded is not None and {name: recorded.get(name) for name in asked} != asked:
        raise RunError(f"{folder}: holds a run with other settings or data. Name another --folder.")
    if recorded is None:
        fingerprint = make(folder / "corpus")
        # last: settings mark a complete corpus
        write_json(place, {**asked, "fingerprint": fingerprint, "versions": versions()})
    else:
        fingerprint = str(recorded.get("fingerprint"))
    objective, checkpoint = load(folder / "corpus"), folder / central.CHECKPOINT
    if checkpoint.exists():
        state = central.load_checkpoint(checkpoint, objective)
        say(f"{folder}: resuming after step {state.step}")
    else:
        state = central.initial_state(objective)
    return CentralRun(folder, objective, fingerprint, state)


def finish(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Write the results, which mark the run as finished: after the model."""
    results = {"schema": SCHEMA, **facts}
    write_json(folder / RESULTS, results)
    return results


def changed_settings(settings: Settings) -> list[str]:
    """Settings that are not the default, as --set options."""
    given = settings.model_dump(exclude_defaults=True)
    given |= {f"sizes.{name}": value for name, value in given.pop("sizes", {}).items()}
    return [word for name, value in given.items() for word in ("--set", f"{name}={value}")]


def duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return "less than a minute" if seconds < 60 else f"{minutes:,} {'minute' if minutes == 1 else 'minutes'}"
