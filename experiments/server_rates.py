"""Choose server rules and rates: python experiments/server_rates.py EXPERIMENT [--rates fedadam=0.01 fedavg=1 ...]

Trains every configuration of an experiment on a corpus of preferences with each rule, on other and fewer users (the
corpus's seed 100), and evaluates it on their validation examples: no data of the experiment's own users are read. The
noise of private configurations is scaled down with the cohort, so that the mean update is as noisy as in the
experiment. The cost of private trials is recorded in the data's ledger, as for every other run.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import process_time

from homespun.core.errors import MessageError
from homespun.experiments.experiment import Configuration, Experiment, read_experiment
from homespun.privacy.settings import Privacy, plan_privacy
from homespun.runs.evaluate import evaluate
from homespun.runs.training import load, prepare, train_and_evaluate

RATES = ["fedadam=0.003", "fedadam=0.01", "fedadam=0.03", "fedavg=0.3", "fedavg=1", "fedavg=3"]


def noise_multiplier(experiment: Experiment, configuration: Configuration, *, users: int) -> float:
    """The noise that the experiment itself adds, in clip norms."""
    run = {**experiment.settings, **configuration.settings}
    return plan_privacy(
        Privacy(**run["privacy"]),
        users=users,
        cohort=run["cohort"],
        sampler=run["sampler"],
        rounds=run["rounds"],
    ).noise_multiplier


def settings_for(experiment: Experiment, name: str, rule: str, *, users: int, whole: int) -> dict[str, object]:
    """Settings of one trial with `users` users, where the experiment has `whole`."""
    share = users / whole
    configuration = experiment.configurations[name]
    server, rate = rule.split("=")
    found = {**experiment.settings, **configuration.settings}
    under_rule = {"server": server, "server_lr": float(rate)}
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
    asked.add_argument("--only", nargs="+", help="configurations; default: all")
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
                    for _ in train_and_evaluate(run):
                        pass
                    shown = f"{evaluate(run, 'eval').f1:.3f}"
            except MessageError:  # every client's update was rejected as not finite
                shown = "diverged"
            print(f"{shown} ({process_time() - begun:3.0f} s)".rjust(16), end="", flush=True)
        print(flush=True)


if __name__ == "__main__":
    main()
