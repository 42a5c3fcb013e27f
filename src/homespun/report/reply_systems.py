"""The systems that tables of replies compare: configurations, reranked ones, and controls, with their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from homespun.evaluation.conversation_losses import Losses
from homespun.report.score_tables import title_of
from homespun.report.table_model import mean, mean_std_text, sample_std

Replies: TypeAlias = Mapping[str, Any]  # the section `replies` of a run

CONTROLS = {"retrieved": "Control: own answer to the nearest training question", "real": "The real replies"}


@dataclass(frozen=True)
class System:
    """A configuration, or a control, with its reply results of every run."""

    title: str
    seeds: tuple[int, ...]  # of each run
    runs: tuple[Replies, ...]
    part: str | None = "own"  # of the scores; None: there are none

    def scores(self) -> list[Mapping[str, Any]] | None:
        """The scores of each run; None if a run has none."""
        found = [run["scores"].get(self.part) for run in self.runs]
        return found if all(found) else None

    def losses(self, part: str = "own") -> list[Losses] | None:
        """The losses by conversation of each run; None if a run has none."""
        found: list[Losses] = [{**run["losses"], "loss": run["losses"][part]} for run in self.runs]
        return found if all(one["loss"] for one in found) else None

    def over_seeds(self, values: Sequence[float | None], *, digits: int) -> str:
        """Mean ± standard deviation over seeds of a value of each run; the folds of a seed are averaged."""
        of_seed = [
            mean(value for value, own in zip(values, self.seeds, strict=True) if own == seed)
            for seed in dict.fromkeys(self.seeds)
        ]
        known = [value for value in of_seed if value is not None]
        return mean_std_text(mean(of_seed), sample_std(known), digits=digits)


def systems(results: Mapping[str, Any]) -> dict[str, System]:
    """The configurations whose replies were scored."""
    found = {}
    for key, one in results.get("configurations", {}).items():
        runs = [run for run in one["runs"] if run.get("replies")]
        if runs:
            seeds = tuple(run["seed"] for run in runs)
            found[key] = System(title_of(results, key), seeds, tuple(run["replies"] for run in runs))
    return found


def with_variants(every: Iterable[System]) -> list[System]:
    """Each system and, after it, the variant of its replies if there is one: reranked best replies, or sampled replies
    with exaggerated personas."""
    found: list[System] = []
    for one in every:
        if one.part == "sampled":
            other = replace(one, title=f"{one.title}, strength {one.runs[0].get('strength') or 1:g}", part="guided")
        else:
            other = replace(one, title=f"{one.title}, reranked", part="reranked")
        found += [one, other] if other.scores() else [one]
    return found


def with_controls(shown: list[System]) -> list[System]:
    """These systems and, from the first of them, the controls, on the same prompts."""
    suffix = "_sampled" if asked_of(shown[0]) == "asked_sampled" else ""
    return [*shown, *(replace(shown[0], title=title, part=part + suffix) for part, title in CONTROLS.items())]


def asked_of(system: System) -> str:
    """Where a run keeps whose prompts were answered: there may be more prompts to sample replies to. Earlier results
    have the same prompts for both."""
    sampled = "sampled" in (system.part or "") or "guided" in (system.part or "")
    return "asked_sampled" if sampled and all("asked_sampled" in run for run in system.runs) else "asked"


@dataclass(frozen=True)
class Naming:
    """The texts of all runs of a system: whose they are, in which conversation, and which were named right."""

    users: tuple[str, ...]
    conversations: tuple[int, ...]
    right: tuple[int, ...]


def naming(system: System) -> Naming | None:
    scores = system.scores()
    if scores is None:
        return None
    asked = [run[asked_of(system)] for run in system.runs]
    return Naming(
        users=tuple(one["users"][place] for one in asked for place in one["user"]),
        conversations=tuple(conversation for one in asked for conversation in one["conversation"]),
        right=tuple(right for one in scores for right in one["right"]),
    )
