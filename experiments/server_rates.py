"""Which server rule and rate: python experiments/server_rates.py EXPERIMENT [--rates fedadam=0.01 fedavg=1 ...]

Every configuration of an experiment on a corpus of preferences is trained with each rule, on other users (the corpus's
seed 100) and fewer of them, and judged on their validation examples: nothing of the experiment's own users is read. The
noise of private configurations shrinks with the cohort, so that it blurs the mean update as much as it will there. What
private trials cost is written into the ledger of the data, as that of every other run.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import process_time

from homespun.experiment import Configuration, Experiment, read_experiment
from homespun.judging import evaluate
from homespun.training import load, prepare, training

from homespun.core.errors import MessageError
from homespun.privacy.settings import Privacy, plan_privacy

RATES = ["fedadam=0.003", "fedadam=0.01", "fedadam=0.03", "fedavg=0.3", "fedavg=1", "fedavg=3"]


def noise_multiplier(experiment: Experiment, configuration: Configuration, *, users: int) -> float:
    """How much noise the experiment itself will add, in clip norms."""
    run = {**experiment.settings, **configuration.settings}
    return plan_privacy(
        Privacy(**run["privacy"]),
        users=users,
        cohort=run["cohort"],
        sampler=run["sampler"],
        rounds=run["rounds"],
    ).noise_multiplier


def settings_for(experiment: Experiment, name: str, rule: str, *, users: int, whole: int) -> dict[str, object]:
    """Of one trial, with so many users where the experiment has the whole."""
    share = users / whole
    configuration = experiment.configurations[name]
    server, rate = rule.split("=")
    found = {**experiment.settings, **configuration.settings}
    under_rule = {"server": server, "server_rate": float(rate)}
    if "inner" in found:
        found["inner"] = {**found["inner"], **under_rule}
    else:
        found |= under_rule
    if "privacy" in found:
        noise = noise_multiplier(experiment, configuration, users=whole) * share
        kept = {key: value for key, value in found["privacy"].items() if key != "epsilon"}
        found["privacy"] = {**kept, "noise_multiplier": noise, "delta": 1e-5}
    return found | {"cohort": round(found["cohort"] * share), "evaluate_users": 1000, "workers": 0}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("experiment", type=Path)
    asked.add_argument("--rates", nargs="+", default=RATES)
    asked.add_argument("--users", type=int, default=3000)
    asked.add_argument("--only", nargs="+", help="configurations; all of them otherwise")
    given = asked.parse_args()
    experiment = read_experiment(given.experiment)
    whole = len(load(experiment.data.source, **experiment.data.settings).users)
    federation = load(experiment.data.source, **{**experiment.data.settings, "users": given.users, "seed": 100})
    width = max(map(len, experiment.configurations)) + 2
    print(" " * width + "".join(f"{rule:>16}" for rule in given.rates), flush=True)
    for name in given.only or experiment.configurations:
        print(f"{name:<{width}}", end="", flush=True)
        for rule in given.rates:
            settings = settings_for(experiment, name, rule, users=given.users, whole=whole)
            begun = process_time()
            try:
                with prepare(experiment.configurations[name].method, federation, folder=None, settings=settings) as run:
                    for _ in training(run):
                        pass
                    shown = f"{evaluate(run, 'eval').f1:.3f}"
            except MessageError:  # numbers that are not finite were refused until nobody was left
                shown = "diverged"
            print(f"{shown} ({process_time() - begun:3.0f} s)".rjust(16), end="", flush=True)
        print(flush=True)


if __name__ == "__main__":
    main()
