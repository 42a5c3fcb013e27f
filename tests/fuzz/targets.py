"""All decoders of messages and files, each with a few small seeds to mutate."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from mutations import Mutation, mutate_json_text, mutate_lines, mutate_message, mutate_tensors

from homespun.core import tree
from homespun.core.intake import Intake
from homespun.core.messages import (
    Candidate,
    Rows,
    ServerState,
    Update,
    broadcast_from_bytes,
    broadcast_to_bytes,
    state_from_bytes,
    state_to_bytes,
    unpack,
    update_from_bytes,
    update_to_bytes,
)
from homespun.core.method import Task, build
from homespun.data.source import DataSettings
from homespun.engines.client import Client
from homespun.engines.exchange import outcome_from_reply, outcome_to_bytes, outputs_from_reply, outputs_to_bytes
from homespun.engines.loop import LoopTrainer
from homespun.experiments.results import RESULTS_FILE, single_results, write_results
from homespun.methods.furl import SMALL
from homespun.privacy.accounting import Release
from homespun.privacy.ledger import Ledger
from homespun.report.html import rewrite_report
from homespun.runs.training import SETTINGS_FILE, reopen, train
from homespun.system.method_loading import load_method

SIZES = {"length": 24, "character_dim": 4, "lstm_dim": 4, "hidden_dim": 4, "user_dim": 4}
CORPUS = tuple(path.read_bytes() for path in sorted((Path(__file__).parent / "corpus").glob("results-*.json")))
DATA = DataSettings(source="dialects", settings={"users": 6, "examples": 10})


@dataclass(frozen=True)
class Target:
    """A decoder and its seeds."""

    decode: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    mutate: Mutation

    def case(self, name: str, number: int) -> bytes:
        """Return the mutated seed of this number, which is always the same."""
        random = Random(f"{name} {number}")
        return self.mutate(random.choice(self.seeds), random, others=self.seeds)


def wire_targets() -> dict[str, Target]:
    """Messages between server and clients, and the tensors in them."""
    moments, server = {"federated.first.w": torch.ones(2)}, {"m": torch.ones(2)}
    state = ServerState(5, {"w": torch.ones(2)}, {"t": torch.zeros(3, 1)}, moments, server)
    rows = Rows(torch.tensor([0, 2]), torch.ones(2, 1), torch.full((2,), 3.0, dtype=torch.float64))
    update = Update(5, {"w": torch.ones(2)}, {"t": rows}, {"loss": 0.5, "examples": 3.0}, weight=3.0, clients=1)
    candidate = {"m": Candidate(-1.0, torch.ones(2))}
    disclosed = Update(5, {"w": torch.ones(2)}, {}, {}, 1.0, 1, {"m": torch.ones(2)}, candidate)
    no_rows = Rows(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 1), torch.zeros(0, dtype=torch.float64))
    empty = Update(5, {"w": torch.zeros(2)}, {"t": no_rows}, {"loss": 0.0, "examples": 0.0}, weight=0.0, clients=0)

    def add(data):
        """As the server does: reject the update with a reason, or add it."""
        return Intake(state.broadcast(), empty).add("ann", update_from_bytes(data))

    plain = {"a": torch.ones(2, 2), "b": torch.tensor([1, 2]), "c": torch.tensor(0.5, dtype=torch.float64)}
    return {
        "broadcast": Target(broadcast_from_bytes, (broadcast_to_bytes(state.broadcast()),), mutate_message),
        "update": Target(add, (update_to_bytes(update), update_to_bytes(disclosed)), mutate_message),
        "state": Target(state_from_bytes, (state_to_bytes(state),), mutate_message),
        "tensors": Target(tree.from_bytes, (tree.to_bytes(plain), tree.to_bytes({})), mutate_tensors),
    }


def reply_targets() -> dict[str, Target]:
    """Replies of worker processes."""
    federation, made = DATA.load(), {}
    for users in ("private", "table"):
        built = build(load_method("furl", {**SMALL, **SIZES, "users": users}, Task(classes=8, population=6)), seed=0)
        clients = [
            Client(user, built.new_private(user, seed=0), built.method.model.encode(federation.examples(place)))
            for place, user in enumerate(federation.users[:3])
        ]
        start, engine = built.start().broadcast(), LoopTrainer(built, 0)
        outcomes = [engine.train(start, clients), engine.train(start, clients, mode="personalize")]

        def outcome(data, built=built, start=start, clients=clients):
            return outcome_from_reply(*unpack(data), built=built, broadcast=start, clients=clients)

        def outputs(data, clients=clients):
            return outputs_from_reply(unpack(data)[1], clients)

        seeds = tuple(outcome_to_bytes(one, [client.user for client in clients]) for one in outcomes)
        made[f"outcome, {users}"] = Target(outcome, seeds, mutate_message)
    predicted = outputs_to_bytes(engine.predict(start, clients))
    return {**made, "outputs": Target(outputs, (predicted,), mutate_message)}


def file_targets(folder: Path) -> dict[str, Target]:
    """Files of a run folder, and the ledger beside the data."""
    place = folder / "run"
    with train("furl", DATA.load(), folder=place, rounds=2, cohort=3, workers=0, withheld=0.2, **SIZES) as run:
        run.data = DATA
        write_results(place, single_results(run, DATA, title="furl"))
    settings = json.loads((place / SETTINGS_FILE).read_text())
    (place / SETTINGS_FILE).write_text(json.dumps({**settings, "data": DATA.model_dump(mode="json")}))
    ledger = Ledger(folder / "ledger.jsonl", "dialects")
    for run_name in ("one", "two"):
        ledger.debit(Release(0.5, 1.0), run=run_name)
    ledger.reset("dialects", reason="all agreed")
    ledger.debit(Release(1.0, 2.0), run="three", insecure=True)

    def open_again(data):
        (place / SETTINGS_FILE).write_bytes(data)
        with reopen(place) as found:
            return found.history(), found.total_rounds, found.schedule.cohorts

    def report_again(data):
        (place / RESULTS_FILE).write_bytes(data)
        return rewrite_report(place)

    def read_ledger(data):
        path = folder / "mutated.jsonl"
        path.write_bytes(data)
        found = Ledger(path, "dialects")
        return found.spent(), found.insecure(), found.debits(run="one"), found.reset("dialects")

    return {
        SETTINGS_FILE: Target(open_again, ((place / SETTINGS_FILE).read_bytes(),), mutate_json_text),
        RESULTS_FILE: Target(report_again, ((place / RESULTS_FILE).read_bytes(), *CORPUS), mutate_json_text),
        "ledger": Target(read_ledger, (ledger.path.read_bytes(),), mutate_lines),
    }
