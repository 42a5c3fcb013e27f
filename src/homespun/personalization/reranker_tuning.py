"""Tunes the weights of equation 7 of FedNLG by Minimum Error Rate Training on BLEU, on one of two sources of pairs.

Public: held-out pairs of the base model's public data, answered with the persona of a new user. The server can do this
alone, and finds the exact optimum along lines.

Federated: each client answers prompts of its evaluation part with its own persona and sends one statistic: BLEU counts,
summed over its pairs, at every point of a grid of weights. The server adds them up and chooses the best point.

The test part is never used. N-best lists take most of the time; what is finished is kept in the vault, so that a killed
command resumes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from safetensors.numpy import load, save

from homespun.core.errors import RunError
from homespun.core.progress import start_count
from homespun.core.settings import parse
from homespun.evaluation.bleu import SIZE, bleu_counts
from homespun.evaluation.mert import Weights, grid_counts, tune, tune_on_grid
from homespun.models.reply_model import ReplyModel, load_inverse, load_public_pairs
from homespun.models.vocabulary import PADDING
from homespun.personalization.replies import Replier, Search, Speaker, find_replier
from homespun.personalization.reranking import Reranker, keep_reranker
from homespun.runs.run import Run

UNFINISHED = "unfinished reranker"  # the artefact that holds finished lists
AT_ONCE = 20  # prompts searched together
LAMBDAS = tuple(np.linspace(0, 5, 26).round(3).tolist())
GAMMAS = tuple(np.linspace(-2, 5, 36).round(3).tolist())

NumberPair = tuple[Sequence[int], Sequence[int]]  # of a prompt and its reply


@dataclass(frozen=True)
class Tuning:
    """What a reranker is tuned on and how."""

    federated: bool
    questions: int  # in total
    search: Search

    @property
    def source(self) -> str:
        return "sums of clients' BLEU counts" if self.federated else "public held-out pairs"


def tune_reranker(
    run: Run, inverse: str, *, federated: bool = False, questions: int = 500, beam: int = 200
) -> Reranker:
    """Tune a reranker with the inverse model in a folder, and keep it in the run's vault."""
    replier = find_replier(run, reranked=False)  # an earlier reranker may be unusable
    tuning = Tuning(federated, questions, parse(Search, {"beam": beam}, where="search"))
    untuned = Reranker(load_inverse(inverse, replier.base), lam=0.0, gamma=0.0)
    weights = (_tune_federated if federated else _tune_public)(replier, untuned, tuning)
    tuned = replace(
        untuned,
        lam=weights.lam,
        gamma=weights.gamma,
        bleu=weights.bleu,
        tuned_on=tuning.source,
        round=run.state.round,
        beam=beam,
    )
    keep_reranker(run, tuned)
    run.vault.drop_artefact(UNFINISHED)
    return tuned


def _tune_public(replier: Replier, reranker: Reranker, tuning: Tuning) -> Weights:
    pairs = _evenly(load_public_pairs(replier.base), tuning.questions)
    speaker, run = replier.speaker(None), replier.run
    finished = _finished(run, replier.base, reranker, tuning)
    done = start_count(run.progress, "n-best lists", total=len(pairs))
    for start in range(0, len(pairs), AT_ONCE):
        some = pairs[start : start + AT_ONCE]
        if f"features/{start}" not in finished:
            lists = list(score_candidates(replier, reranker, speaker, some, search=tuning.search))
            finished[f"sizes/{start}"] = np.array([len(features) for features, _ in lists])
            finished[f"features/{start}"] = np.concatenate([features for features, _ in lists])
            finished[f"counts/{start}"] = np.concatenate([counts for _, counts in lists])
            _keep(run, finished)
        done(len(some))
    features: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    for start in range(0, len(pairs), AT_ONCE):
        cuts = np.cumsum(finished[f"sizes/{start}"])[:-1]
        features += np.split(finished[f"features/{start}"], cuts)
        counts += np.split(finished[f"counts/{start}"], cuts)
    return tune(features, counts, progress=run.progress)


def _tune_federated(replier: Replier, reranker: Reranker, tuning: Tuning) -> Weights:
    run = replier.run
    if run.settings.privacy is not None:
        raise RunError(
            f"{run.vault.path.parent}: this run has differential privacy, and clients' BLEU counts would be sent "
            "without noise. Tune on public pairs, without --federated."
        )
    users = list(run.federation.users)
    each = max(1, tuning.questions // len(users))
    finished = _finished(run, replier.base, reranker, tuning)
    done = start_count(run.progress, "clients", total=len(users))
    for position, user in enumerate(users):
        if f"client/{position}" not in finished:
            finished[f"client/{position}"] = client_counts(
                replier, reranker, user, questions=each, search=tuning.search
            )
            _keep(run, finished)
        done(1)
    total = sum(finished[f"client/{position}"] for position in range(len(users)))
    if not np.asarray(total).any():
        raise RunError(f"{run.vault.path.parent}: no client has pairs in its evaluation part to tune on.")
    sent = {"kind": "reranking", "round": run.state.round, "clients": len(users), "statistic": "BLEU counts"}
    run.record({**sent, "numbers": int(np.asarray(total).size)})
    run.commit()
    return tune_on_grid(np.asarray(total), lambdas=LAMBDAS, gammas=GAMMAS)


def client_counts(replier: Replier, reranker: Reranker, user: str, *, questions: int, search: Search) -> np.ndarray:
    """What one client sends: BLEU counts [lambdas, gammas, 10], summed over some pairs of its evaluation part."""
    run = replier.run
    data = run.clients.encode(run.federation, run.federation.users.index(user), "eval")
    rows = zip(*(data[name].tolist() for name in ("question", "question_length", "reply", "length")), strict=True)
    whole = []
    for question, asked, reply, length in rows:
        spoken = [word for word in reply if word != PADDING]
        if length > len(spoken):  # not cut: its end is predicted too
            whole.append((question[:asked], spoken))
    pairs = _evenly(whole, questions)
    if not pairs:
        return np.zeros((len(LAMBDAS), len(GAMMAS), SIZE))
    lists = list(score_candidates(replier, reranker, replier.speaker(user), pairs, search=search))
    features, counts = [one for one, _ in lists], [one for _, one in lists]
    return grid_counts(features, counts, lambdas=LAMBDAS, gammas=GAMMAS)


def score_candidates(
    replier: Replier, reranker: Reranker, speaker: Speaker, pairs: Sequence[NumberPair], *, search: Search
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each pair, the features [candidates, 3] of equation 7 and the BLEU counts of its n-best list."""
    found = replier.search([prompt for prompt, _ in pairs], [speaker] * len(pairs), search, n=search.beam)
    for (prompt, reply), candidates in zip(pairs, found, strict=True):
        reverse = reranker.log_probs([prompt] * len(candidates), candidates)
        forward = np.array([one.log_prob for one in candidates])
        lengths = np.array([len(one.tokens) for one in candidates], dtype=np.float64)
        reference = _as_words(reply)
        counts = np.stack([bleu_counts(_as_words(one.tokens), reference) for one in candidates])
        yield np.stack([forward, reverse, lengths], axis=1), counts


def _as_words(numbers: Sequence[int]) -> list[str]:
    """Numbers as words: an unknown word of a reference equals no word of a candidate."""
    return [str(number) for number in numbers]


def _evenly(pairs: Sequence[NumberPair], at_most: int) -> list[NumberPair]:
    places = np.unique(np.linspace(0, len(pairs) - 1, min(at_most, len(pairs))).round().astype(np.int64))
    return [pairs[place] for place in places.tolist()]


def _finished(run: Run, base: ReplyModel, reranker: Reranker, tuning: Tuning) -> dict[str, np.ndarray]:
    """Finished work of an interrupted tuning with the same models and settings."""
    key = [base.fingerprint, reranker.inverse.fingerprint, run.state.round, tuning.federated, tuning.questions]
    identity = np.frombuffer(json.dumps([*key, tuning.search.model_dump()]).encode(), dtype=np.uint8)
    stored = run.vault.artefact(UNFINISHED)
    found = {} if stored is None else load(stored)
    same = "identity" in found and np.array_equal(found["identity"], identity)
    return found if same else {"identity": identity.copy()}


def _keep(run: Run, finished: dict[str, np.ndarray]) -> None:
    run.vault.keep_artefact(UNFINISHED, save(finished))
