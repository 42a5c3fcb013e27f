"""Central training: the server has everybody's examples. FURL's "Global Server" and "Personalized Server".

A federation of one. Its only client, the server, holds all training examples, each with its author;
one round is one epoch of SGD. With `users = "table"` the server also holds everybody's embedding.
There is nothing private here; this is what the federated methods are compared with.
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
    made = furl.method(settings, task)
    return replace(made, name="central", local=replace(made.local, pooled=True))
