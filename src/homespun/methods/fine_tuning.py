"""Fine-tuning: a shared model, trained by any method, of which every client then trains a copy on its own examples.

    w_i = argmin_w f_i(w), for a few epochs from the federated w

The simplest personalization, and the control that a method with private parameters has to be compared with. Rounds are
those of `base_method`. Personalization trains all of its parameters, shared and private; copies of shared parameters
stay on the client. Participants fine-tune after the last round (`final_personalization`), a new user when they join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import NonNegativeFloat, PositiveInt

from homespun.core.method import Method, Phase, Task
from homespun.core.personalize import GradientSteps
from homespun.methods._wrapper import WrapperSettings, load_base


class Settings(WrapperSettings):
    base_method: str = "furl"
    """The method that trains the shared model."""
    fine_tune_epochs: PositiveInt = 1
    """Passes over a client's examples in fine-tuning."""
    fine_tune_lr_factor: NonNegativeFloat = 1.0
    """Factor on the learning rates of the method's local training."""


RUN = {"final_personalization": True}
SMALL = {"base_settings": {"length": 24, "character_dim": 8, "lstm_dim": 12, "hidden_dim": 16, "user_dim": 6}}


def fine_tuning_phases(phases: Sequence[Phase], settings: Settings) -> tuple[Phase, ...]:
    """The phases of a round, for other epochs, with scaled learning rates and without the pull to the shared model."""
    factor = settings.fine_tune_lr_factor
    return tuple(
        replace(
            phase,
            trains={name: replace(one, lr=factor * one.lr) for name, one in phase.trains.items()},
            epochs=settings.fine_tune_epochs,
            steps=None,
            mu=0.0,
        )
        for phase in phases
    )


def method(settings: Settings, task: Task) -> Method:
    base = load_base(settings, task, name="fine_tuning")
    phases = base.phases({*base.head, *base.body, *base.private})
    return replace(
        base.method,
        name="fine_tuning",
        version=1,
        settings=settings,
        personalize=GradientSteps(fine_tuning_phases(phases, settings)),
    )
