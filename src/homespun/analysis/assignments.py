"""Users' known sub-populations against the heads or clusters that they were assigned to."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from homespun.analysis.user_vectors import collect_user_vectors, embedding_names
from homespun.core.method import ModelSpec
from homespun.core.threads import one_thread
from homespun.data.splits import sample_users
from homespun.runs.run import Run

LARGEST_VECTOR = 1000  # users with longer vectors, such as personal heads, are not clustered


def assignments(run: Run) -> dict[str, Any] | None:
    """Counts of users by sub-population and head, or by cluster of embeddings if the method does not choose a head."""
    sampled = sample_users(run.federation, at_most=run.settings.evaluate_users, seed=run.settings.seed)
    if any(run.federation.group(position) is None for position in sampled):
        return None
    positions = [
        position
        for position in sampled
        if len(next(iter(run.clients.encode(run.federation, position, "test").values())))
    ]
    if not positions:
        return None
    groups = [run.federation.group(position) for position in positions]
    names = sorted({str(group) for group in groups}, key=lambda name: (len(name), name))
    column = _chosen_column(run.method.model)
    found = _chosen(run, positions, column) if column else _clustered(run, positions, clusters=len(names))
    if found is None:
        return None
    how, assigned = found
    counts = np.zeros((len(names), int(assigned.max()) + 1), dtype=np.int64)
    for group, index in zip(groups, assigned, strict=True):
        counts[names.index(str(group)), index] += 1
    return {"how": how, "groups": names, "counts": counts.tolist(), "recovered": purity(counts)}


def purity(counts: np.ndarray) -> float:
    """The share of users whose sub-population is the most frequent one in their head or cluster."""
    return float(counts.max(axis=0).sum() / counts.sum())


def _chosen_column(model: ModelSpec) -> str | None:
    """The derived column with the head or cluster of each user, which names rows of keyed parameters."""
    return next((column for column in model.derived if column in model.keys.values()), None)


@one_thread()
def _chosen(run: Run, positions: list[int], column: str) -> tuple[str, np.ndarray] | None:
    derive = run.method.model.derived[column]
    names = [run.federation.users[position] for position in positions]
    broadcast, private = run.state.broadcast(), run.clients.private(names, run.state.broadcast())
    assigned = []
    with torch.no_grad():
        for name, position in zip(names, positions, strict=True):
            data = run.clients.encode(run.federation, position, "test")
            assigned.append(int(derive(run.built.parameters(broadcast, private[name]), data)[0]))
    return "by the method", np.array(assigned)


def _clustered(run: Run, positions: list[int], *, clusters: int) -> tuple[str, np.ndarray] | None:
    embeddings = embedding_names(run)
    if not embeddings or len(positions) < 2 * clusters:  # too few to be meaningful
        return None
    vectors = collect_user_vectors(run, positions, only=embeddings)
    if vectors is None or vectors.shape[1] > LARGEST_VECTOR:
        return None
    from sklearn.cluster import KMeans  # slow to import, and only finished runs need it

    means = KMeans(n_clusters=clusters, n_init=10, random_state=run.settings.seed)
    with threadpool_limits(limits=1):  # the same clusters for any number of threads
        return "by k-means afterwards", means.fit_predict(vectors)
