"""The settings of a run, for every method."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from homespun.core.devices import CPU
from homespun.core.errors import SettingsError
from homespun.core.settings import Settings
from homespun.data.splits import SplitBy, part_sizes
from homespun.privacy.settings import Privacy, Sampler

# A file or a command has no way to write None.
ExampleLimit: TypeAlias = Annotated[
    PositiveInt | None,
    BeforeValidator(
        lambda given: None if given == "all" else given, json_schema_input_type=PositiveInt | Literal["all"] | None
    ),
]

SampleCount: TypeAlias = NonNegativeInt | Literal["all"]


class RunSettings(Settings):
    """How a federation is trained, with any method."""

    rounds: PositiveInt | None = None
    """Number of rounds. Give either rounds or epochs; without both, `homespun train` trains for 10 epochs."""
    epochs: PositiveFloat | None = None
    """Instead of rounds: number of passes over all training examples."""
    cohort: PositiveInt | Literal["all"] = 10
    """Clients in a round; with sampler = poisson, the mean number."""
    sampler: Sampler = "shuffled"
    """How cohorts are drawn. shuffled: every client once in each pass over all clients; uniform: an independent draw of
    fixed size in every round; poisson: every client independently, which privacy amplification requires."""
    cohort_decay: NonNegativeFloat = 0.0
    """Rate at which cohorts shrink (dynamic sampling, Ji et al., 2020): round t, counted from 0, has a share of
    exp(-cohort_decay * t) of the clients it would have, at least one."""
    seed: NonNegativeInt = 0
    """All random draws derive from it."""
    fractions: tuple[PositiveFloat, NonNegativeFloat, NonNegativeFloat] = (0.8, 0.1, 0.1)
    """Shares of a user's examples for training, evaluation and testing."""
    split_by: SplitBy = "example"
    """What is assigned to a part. example: each example of a user; conversation: all turns of a conversation, so that
    no tested reply has its conversation in training (the shares are then those of conversations); order: a user's first
    examples train and the last ones test, for a corpus in the order of time."""
    withheld: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the users who never take part. They are tested as new users after training."""
    fold: NonNegativeInt | None = None
    """Number of the fold whose users are withheld: over all folds, each user once. Not set: a random draw."""
    engine: Literal["cohort", "loop"] = "cohort"
    """How clients are trained. cohort: many at a time; loop: one by one in this process (slow, a reference)."""
    workers: NonNegativeInt | None = None
    """Number of worker processes. 0: train in this process. Not set: one per CPU core."""
    device: str = CPU
    """Device on which clients are trained: cpu, cuda, cuda:1 or mps. Devices other than cpu are used without worker
    processes."""
    evaluate_every: PositiveInt | None = None
    """Rounds between two evaluations on the evaluation part. Not set: about 20 evaluations in a run."""
    evaluate_users: PositiveInt = 1000
    """Maximum number of participants in an evaluation, drawn once for the run, and likewise of new users."""
    evaluate_examples: ExampleLimit = None
    """Maximum number of examples per user in an evaluation, evenly spaced. Not set: all."""
    evaluate_samples: Annotated[tuple[SampleCount, ...], Field(min_length=1)] | None = None
    """Numbers of own samples that new users adapt to before they are tested, such as [0, 5, "all"]. Participants do
    likewise if the method evaluates how they adapt. Not set: the method's numbers."""
    final_personalization: bool = False
    """Whether participants personalize after the last round, on their training parts and with the final model, as new
    users do. Private parameters are otherwise those of each user's last round. Nothing is uploaded."""
    commit_every: PositiveInt = 1
    """Rounds between two commits to disk. A killed run repeats the rounds since the last commit."""
    privacy: Privacy | None = None
    """Differential privacy of what clients upload, as in privacy.epsilon=8. Not set: no differential privacy."""

    @field_validator("fractions")
    @classmethod
    def _shares_of_one(cls, fractions: tuple[float, float, float]) -> tuple[float, float, float]:
        try:
            part_sizes(0, fractions)
        except SettingsError as error:
            raise ValueError(str(error)) from None
        return fractions

    @model_validator(mode="after")
    def _one_length(self) -> RunSettings:
        if (self.rounds is None) == (self.epochs is None):
            raise ValueError("give either rounds or epochs")
        if self.cohort_decay and self.privacy is not None:
            raise ValueError("cohort_decay: the privacy cost of shrinking cohorts is unknown. Leave it at 0")
        return self

    def identity(self) -> dict[str, Any]:
        """The settings that identify a run. Its length and the number of processes do not."""
        free = {
            "final_personalization",
            "workers",
            "evaluate_every",
            "evaluate_users",
            "evaluate_examples",
            "evaluate_samples",
            "commit_every",
        }
        if self.privacy is None or self.privacy.epsilon is None:  # else the noise depends on the length
            free |= {"rounds", "epochs"}
        if not self.cohort_decay:  # runs older than this setting had none
            free |= {"cohort_decay"}
        if self.split_by == "example":  # runs older than this setting had no other way
            free |= {"split_by"}
        if self.device == CPU:  # other devices give other numbers; runs older than this setting used the CPU
            free |= {"device"}
        found = self.model_dump(
            mode="json", exclude_none=True, exclude={"privacy": {"budget", "ledger", "public_filters"}}
        )
        found["device"] = self.device.partition(":")[0]  # which of several GPUs does not matter
        return {name: value for name, value in found.items() if name not in free}
