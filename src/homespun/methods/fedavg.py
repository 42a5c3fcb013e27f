"""FedAvg (McMahan et al., 2017): one model for all users. FURL's "Global FL".

FURL's document model without a user embedding; every parameter is federated.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from homespun.core.method import Method, Task
from homespun.methods import furl

PAPER_RUN = furl.PAPER_RUN
SMALL = furl.SMALL


class Settings(furl.Settings):
    users: Literal["none"] = "none"
    """FedAvg has no user embeddings."""


def method(settings: Settings, task: Task) -> Method:
    return replace(furl.method(settings, task), name="fedavg")
