"""Choose the learning rate of personalization: python experiments/personalize_lr_factor.py RUN... [--paces 0.2 1 5]

Participants of finished runs adapt to one half of their evaluation part, at several paces (factors on the learning
rates), and are scored on the other half: perplexity by number of own samples. The test part is not read. Use the pace
that is best with all samples as an experiment's `personalize_lr_factor`.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import torch

from homespun.core import seeds
from homespun.core.tree import Tree
from homespun.data.splits import sample_users
from homespun.engines.client import Client
from homespun.engines.loop import LoopTrainer
from homespun.engines.simulation import k_shot, score_clients
from homespun.runs.run import Run
from homespun.runs.training import reopen
from homespun.system.method_loading import load_method

COUNTS: tuple[int | None, ...] = (1, 5, 15, None)


def halves(run: Run, position: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Every other utterance of the evaluation part to adapt to, and the rest to score."""
    whole = run.method.encode(run.clients.split(run.federation, position).eval)
    scored = {name: column[1::2] for name, column in whole.items()}
    most = run.settings.evaluate_examples or len(scored["length"])
    return {name: column[0::2] for name, column in whole.items()}, {
        name: column[:most] for name, column in scored.items()
    }


def perplexities(run: Run, pace: float) -> list[float]:
    settings = {**run.method.settings.model_dump(mode="json"), "personalize_lr_factor": pace}
    method = load_method(run.method.origin, settings, run.method.task)
    engine, broadcast = LoopTrainer(replace(run.built, method=method), run.settings.seed), run.state.broadcast()
    positions = sample_users(run.federation, at_most=run.settings.evaluate_users, seed=run.settings.seed)
    users = [run.federation.users[position] for position in positions]
    private = run.clients.private(users, broadcast)
    parts = {user: halves(run, position) for user, position in zip(users, positions, strict=True)}
    found = []
    for count in COUNTS:
        draws = {user: seeds.numpy_generator(run.settings.seed, "samples", user) for user in users}
        clients = [Client(user, private[user], k_shot(parts[user][0], count, draw=draws[user])) for user in users]
        learned: dict[str, Tree] = dict(engine.train(broadcast, clients, mode="personalize").private)
        clients = [Client(user, learned[user], parts[user][1]) for user in users]
        counts = score_clients(run.scoring, engine, broadcast, clients)
        found.append(float(np.exp(run.scoring.summarize(list(counts.values())).loss)))
    return found


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("runs", nargs="+")
    asked.add_argument("--paces", nargs="+", type=float, default=[0.1, 0.2, 0.5, 1.0, 2.0, 5.0])
    given = asked.parse_args()
    print("samples      " + "".join(f"{'all' if count is None else count:>10}" for count in COUNTS))
    for folder in given.runs:
        with reopen(folder) as run:
            print(f"{folder}: {run.method.name}, {run.state.round} rounds")
            for pace in given.paces:
                print(f"pace {pace:<8g}" + "".join(f"{value:10.2f}" for value in perplexities(run, pace)), flush=True)


if __name__ == "__main__":
    main()
