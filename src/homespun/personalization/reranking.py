"""Reranks candidate replies by equation 7 of FedNLG, and tunes its two weights.

    log p(R|Q, i) + lambda log p(Q|R) + gamma |R|

p(Q|R) comes from an inverse model, which knows no speakers. lambda and gamma are tuned by Minimum Error Rate Training
on BLEU (evaluation/mert.py). The reranker is kept in the run's vault.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from homespun.core.errors import InputError, RunError
from homespun.decoding.hypotheses import Hypothesis
from homespun.models.reply_model import ReplyModel, load_inverse
from homespun.models.seq2seq import Seq2Seq
from homespun.models.vocabulary import pad_rows
from homespun.runs.run import Run

ARTEFACT = "reranker"
ROWS = 256  # candidates scored at once


@dataclass(frozen=True, repr=False)
class Reranker:
    """An inverse model and the weights of equation 7."""

    inverse: ReplyModel
    lam: float
    gamma: float
    bleu: float | None = None  # on the pairs it was tuned on, as a fraction
    tuned_on: str = ""
    round: int = 0  # of the run when it was tuned
    beam: int = 0  # of the search for the replies it was tuned on

    def __repr__(self) -> str:
        return f"<Reranker lambda={self.lam:.3g}, gamma={self.gamma:.3g}, {self.inverse!r}>"

    @cached_property
    def _network(self) -> Seq2Seq:
        return self.inverse.build().requires_grad_(False)

    def to_dict(self) -> dict[str, float | str | None]:
        return {
            "lambda": self.lam,
            "gamma": self.gamma,
            "bleu": self.bleu,
            "tuned_on": self.tuned_on,
            "round": self.round,
            "beam": self.beam,
        }

    def log_probs(self, prompts: Sequence[Sequence[int]], candidates: Sequence[Hypothesis]) -> np.ndarray:
        """log p(Q|R) of each prompt given the candidate beside it."""
        parameters = {name: value[None] for name, value in self._network.named_parameters()}
        found = []
        with torch.no_grad():
            for start in range(0, len(candidates), ROWS):
                some = slice(start, start + ROWS)
                batch = _reverse_batch(prompts[some], [one.tokens for one in candidates[some]])
                found.append(-self._network.stacked(parameters, batch)[0].sum(dim=1).double().numpy())
        return np.concatenate(found) if found else np.zeros(0)


def _reverse_batch(prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    def padded(rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(pad_rows(rows, length=max(len(row) for row in rows)))[None]

    return {
        "question": padded(replies),
        "question_length": torch.tensor([[len(row) for row in replies]]),
        "reply": padded(prompts),
        "length": torch.tensor([[len(row) + 1 for row in prompts]]),
    }


def keep_reranker(run: Run, reranker: Reranker) -> None:
    """Store the reranker's weights, and the name and fingerprint of its inverse model, in the run's vault."""
    content = {"inverse": reranker.inverse.name, "fingerprint": reranker.inverse.fingerprint, **reranker.to_dict()}
    run.vault.keep_artefact(ARTEFACT, json.dumps(content).encode())


def load_reranker(run: Run, base: ReplyModel) -> Reranker | None:
    """The run's reranker, if it has one."""
    stored = run.vault.artefact(ARTEFACT)
    if stored is None:
        return None
    content = json.loads(stored)
    try:
        inverse = load_inverse(content["inverse"], base)
    except InputError as error:
        raise RunError(
            f"the run's reranker needs its inverse model. {error} Restore the folder, tune again with `homespun rerank "
            "RUN --inverse FOLDER`, or reply without a reranker after `homespun rerank RUN --off`."
        ) from None
    if inverse.fingerprint != content["fingerprint"]:
        raise RunError(
            f"{inverse.name}: its weights have changed since the run's reranker was tuned. Tune again with "
            "`homespun rerank RUN --inverse FOLDER`."
        )
    return Reranker(
        inverse,
        content["lambda"],
        content["gamma"],
        content["bleu"],
        content["tuned_on"],
        round=content.get("round", 0),
        beam=content.get("beam", 0),
    )
