"""Central training of a dialogue model, where the server has the conversations of all speakers: FedNLG's SEQ2SEQ and
+ Persona (Li et al., 2016).

A federation with one client, the server, which holds all training examples, each with its speaker; one round is one
epoch. With `persona = "table"` the server also holds the personas of all speakers. Nothing is private: this is the
baseline that FedNLG is compared with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from homespun.core.method import Method, Task
from homespun.methods import fednlg

PAPER_RUN = {"epochs": fednlg.PAPER_RUN["epochs"]}
RUN = {name: value for name, value in fednlg.RUN.items() if name != "cohort"}
SMALL = fednlg.SMALL


class Settings(fednlg.Settings):
    persona: Literal["table", "none"] = "table"
    """Whether the model has personas, in a table on the server. none: the paper's SEQ2SEQ."""


def method(settings: Settings, task: Task) -> Method:
    federated = fednlg.method(settings, task)
    return replace(federated, name="central_dialogue", local=replace(federated.local, pooled=True))
