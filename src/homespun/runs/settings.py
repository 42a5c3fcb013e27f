"""The settings of a run, whatever its method."""

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
from homespun.data.splits import part_sizes
from homespun.privacy.settings import Privacy, Sampler

# A file or a command cannot say None.
ExampleLimit: TypeAlias = Annotated[
    PositiveInt | None,
    BeforeValidator(
        lambda given: None if given == "all" else given, json_schema_input_type=PositiveInt | Literal["all"] | None
    ),
]


class RunSettings(Settings):
    """How a federation is trained, whatever the method."""

    rounds: PositiveInt | None = None
    """Rounds to train. Give either rounds or epochs; without both, `homespun train` takes 10 epochs."""
    epochs: PositiveFloat | None = None
    """Instead of rounds: how often every training example is used."""
    cohort: PositiveInt | Literal["all"] = 10
    """Clients in a round; with sampler = poisson, on average."""
    sampler: Sampler = "shuffled"
    """How cohorts are drawn: every client once an epoch in a new order; a new draw of equal size every round; or every
    client independently of the others, which privacy with amplification needs."""
    seed: NonNegativeInt = 0
    """All random draws derive from it."""
    fractions: tuple[PositiveFloat, NonNegativeFloat, NonNegativeFloat] = (0.8, 0.1, 0.1)
    """Shares of a user's examples for training, evaluation and testing."""
    withheld: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the users who never take part. They are tested as new users after training."""
    fold: NonNegativeInt | None = None
    """Which users are withheld: over all folds, each user once. Not set: a random draw."""
    engine: Literal["cohort", "loop"] = "cohort"
    """How clients are trained: many at a time, or one after another in this process (slow, for comparison)."""
    workers: NonNegativeInt | None = None
    """Worker processes. 0: everything in this process. Not set: one for each CPU core."""
    device: str = CPU
    """Where clients are trained: cpu, cuda, cuda:1 or mps. Another one than cpu is used by this process alone, without
    workers."""
    evaluate_every: PositiveInt | None = None
    """Rounds between two evaluations on the evaluation part. Not set: about 20 evaluations in a run."""
    evaluate_users: PositiveInt = 1000
    """Users in an evaluation at most, drawn once for the run; of new users, as many again."""
    evaluate_examples: ExampleLimit = None
    """Examples of each user in an evaluation at most, evenly spaced. Not set: all."""
    commit_every: PositiveInt = 1
    """Rounds between two commits to disk. A killed run repeats the rounds since the last commit."""
    privacy: Privacy | None = None
    """Differential privacy of what clients send, as in privacy.epsilon=8. Not set: no differential privacy."""

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
        return self

    def identity(self) -> dict[str, Any]:
        """What makes two runs different runs: not how long they go on, nor on how many processes."""
        free = {"workers", "evaluate_every", "evaluate_users", "evaluate_examples", "commit_every"}
        if self.privacy is None or self.privacy.epsilon is None:  # else the length says how much noise there is
            free |= {"rounds", "epochs"}
        if self.device == CPU:  # other devices have other numbers; runs that are older than this setting had this one
            free |= {"device"}
        found = self.model_dump(
            mode="json", exclude_none=True, exclude={"privacy": {"budget", "ledger", "public_filters"}}
        )
        found["device"] = self.device.partition(":")[0]  # which of several GPUs it was makes no difference
        return {name: value for name, value in found.items() if name not in free}
