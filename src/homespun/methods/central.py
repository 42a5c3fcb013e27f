"""Central training, where the server has the examples of all users. FURL's "Global Server" and "Personalized Server".

A federation with one client, the server, which holds all training examples, each with its author; one round is one
epoch of SGD. With `users = "table"` the server also holds the embeddings of all users. Nothing is private: this is the
baseline that federated methods are compared with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from homespun.core.method import Method, Task
from homespun.methods import furl

PAPER_RUN = {"epochs": furl.PAPER_RUN["epochs"]}
SMALL = furl.SMALL


class Settings(furl.Settings):
    users: Literal["table", "none"] = "table"
    """Whether the model has user embeddings, in a table on the server."""


def method(settings: Settings, task: Task) -> Method:
    federated = furl.method(settings, task)
    return replace(federated, name="central", local=replace(federated.local, pooled=True))
