"""Two-dimensional projections of users' vectors, for the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from homespun.analysis.user_vectors import collect_user_vectors, embedding_names
from homespun.core.progress import start_count
from homespun.data.federation import Federation
from homespun.data.splits import sample_users
from homespun.evaluation.metrics import majority
from homespun.runs.run import Run

MAX_PROJECTED_USERS = 500  # larger federations are sampled


def project_users(run: Run) -> dict[str, Any] | None:
    """Project users' vectors by PCA and t-SNE; the result also has the attributes to colour them by."""
    positions = sample_users(run.federation, at_most=MAX_PROJECTED_USERS, seed=run.settings.seed)
    vectors = collect_user_vectors(
        run, positions, only=embedding_names(run) or None
    )  # embeddings without a personal head
    if vectors is None or len(vectors) < 5 or not np.ptp(vectors, axis=0).any():  # all at one point
        return None
    done = start_count(run.progress, "map of users", total=1)
    from sklearn.decomposition import PCA  # slow to import, and only finished runs need it
    from sklearn.manifold import TSNE

    with threadpool_limits(limits=1):  # the same projection for any number of threads
        vectors = reduce_dimensions(vectors)
        perplexity = min(30.0, (len(vectors) - 1) / 3)
        flat = TSNE(perplexity=perplexity, random_state=run.settings.seed, init="pca").fit_transform(vectors)
        spread = PCA(n_components=min(2, vectors.shape[1]), random_state=0).fit_transform(vectors)
    if spread.shape[1] == 1:
        spread = np.column_stack([spread, np.zeros(len(spread))])
    done(1)
    return {
        "users": len(positions),
        "of": len(run.federation.users),
        "pca": np.round(spread, 4).tolist(),
        "tsne": np.round(flat, 4).tolist(),
        **known_attributes(run.federation, positions),
    }


def reduce_dimensions(vectors: np.ndarray) -> np.ndarray:
    """Rotate the points so that they need no more coordinates than there are points; distances are preserved.

    A personal head has millions of coordinates: without this, projecting a dozen users would take half a minute.
    """
    if vectors.shape[1] <= len(vectors):
        return vectors
    centred = vectors - vectors.mean(axis=0)
    squares, directions = np.linalg.eigh((centred @ centred.T).astype(np.float64))
    return directions * np.sqrt(squares.clip(min=0))


def known_attributes(federation: Federation, positions: Sequence[int]) -> dict[str, Any]:
    """Each user's group and most frequent label and context; None for what the corpus does not have."""
    examples = [federation.examples(position) for position in positions]
    labels = [one.labels for one in examples]
    two = len(federation.labels) == 2
    return {
        "group": [federation.group(position) for position in positions],
        "label": most_frequent(labels, federation.labels),
        "context": most_frequent([one.contexts for one in examples], federation.contexts),
        "positive_rate": [None if one is None else float(np.mean(one == 1)) for one in labels] if two else None,
    }


def most_frequent(columns: Sequence[np.ndarray | None], names: Sequence[str]) -> list[str | None] | None:
    if not names:
        return None
    return [
        names[majority(column, classes=len(names))] if column is not None and len(column) else None
        for column in columns
    ]
