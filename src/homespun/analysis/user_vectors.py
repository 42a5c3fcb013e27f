"""Users' private parameters as vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from homespun.core.roles import Role
from homespun.runs.run import Run


def collect_user_vectors(run: Run, positions: Sequence[int], only: Sequence[str] | None = None) -> np.ndarray | None:
    """One row per user with their private parameters, or those named in `only`, or their row of the server's table.

    None if there are none, if their shapes vary, or if they are generated from a text every time and not stored.
    """
    if run.method.personalize.generates or run.method.model.private_varies:
        return None
    if run.built.partition.names(Role.PRIVATE):
        names = [run.federation.users[position] for position in positions]
        private = run.clients.private(names, run.state.broadcast())
        return np.stack(
            [
                np.concatenate([own[key].numpy().ravel() for key in sorted(own) if only is None or key in only])
                for own in (private[name] for name in names)
            ]
        )
    tables = [name for name, column in run.method.model.keys.items() if column == "author"]
    return run.state.keyed[tables[0]][list(positions)].numpy() if tables else None


def embedding_names(run: Run) -> list[str]:
    """The names of the private parameters that are user embeddings."""
    return [name for name in run.built.partition.names(Role.PRIVATE) if name.endswith("user.embedding")]
