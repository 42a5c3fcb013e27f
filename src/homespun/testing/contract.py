"""What every method must keep, checked on the method's own file: `check_method("furl")`.

roles             every parameter has exactly one; none is missing, no rule is idle
zero rates        with every learning rate 0, nothing moves
frozen            what is frozen keeps its bits
order             the cohort's order does not matter
repeat            same seed, same bits
resume            stopped and resumed equals uninterrupted, bit for bit
engines           cohort gives loop's numbers, with users of 1 and of 500 examples
transforms        cohort gives loop's numbers with the method's transforms and with noise at the client
newcomer          somebody unseen can be personalized, and what is shared does not change
wire              no tensor with a private name, and no private byte, in anything that is serialized
last bits         under differential privacy, what is released lies on the grid of its noise
fedavg            with nothing private or keyed and plain averaging, it is FedAvg
inversion         how much of a private embedding one client's update gives away (reported, not judged)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch

from homespun.core import seeds, tree
from homespun.core.errors import MethodError
from homespun.core.messages import (
    ServerState,
    broadcast_from_bytes,
    broadcast_to_bytes,
    state_from_bytes,
    state_to_bytes,
    update_from_bytes,
    update_to_bytes,
)
from homespun.core.method import BuiltMethod, LocalPhase, Method, Phase, build, no_private
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role
from homespun.core.server import FedAvg
from homespun.core.statistics import bests
from homespun.core.transforms import Transforms, UpdateTransform
from homespun.data import load_federation
from homespun.data.federation import Federation
from homespun.engines.client import Client, Trainer
from homespun.engines.cohort import CohortTrainer
from homespun.engines.loop import LoopTrainer, train_client
from homespun.engines.simulation import SimulationEngine
from homespun.engines.staging import MemoryClients
from homespun.privacy.dp import DpMechanism
from homespun.privacy.mechanism import Clip
from homespun.privacy.noise import grid_of
from homespun.runs.open_run import open_run, task_of
from homespun.runs.prototypes import make_prototypical_users
from homespun.runs.round import run_round
from homespun.runs.settings import RunSettings
from homespun.system.method_loading import load_method, method_module
from homespun.system.trust import named_by_user
from homespun.testing.attack import Inversion, attack_updates

SIZES = (1, 3, 8, 17, 20, 500)  # examples per user: a single one, partial last batches, very many
USERS = len(SIZES)
TOLERANCE = 2e-4  # float32 sums of some hundred steps in another order; typical differences are below 1e-5
SEED = 7
LOCAL_DP = DpMechanism(Clip({"*": 1.0}), 1.0, local=True, insecure_seed=SEED)  # epsilon 10.0 a round at delta 1e-5


class _BrokenPromise(Exception):
    pass


def _require(kept: bool, otherwise: str) -> None:
    """Not `assert`: the contract also holds under `python -O`."""
    if not kept:
        raise _BrokenPromise(otherwise)


@dataclass(frozen=True)
class ContractReport:
    method: str
    passed: tuple[str, ...]
    largest_difference: float  # between the two engines
    inversions: tuple[Inversion, ...]
    guarded: tuple[Inversion, ...]  # the same attack on updates that are clipped and noised at home

    def lines(self) -> list[str]:
        lines = [f"{self.method}: kept: {', '.join(self.passed)}"]
        lines.append(f"{self.method}: loop and cohort differ by at most {self.largest_difference:.1e}")
        if not self.inversions:
            lines.append(f"{self.method}: inversion: it has no private embedding to recover")
        lines += [
            f"{self.method}: inversion: one update of a client with {attack.examples} examples gives its private "
            f"embedding away to within {100 * attack.relative_error:.1f} % (cosine {attack.cosine:.3f}), "
            f"with local noise to within {100 * guarded.relative_error:.0f} % (cosine {guarded.cosine:.3f})"
            for attack, guarded in zip(self.inversions, self.guarded, strict=True)
        ]
        return lines


@dataclass(frozen=True)
class Subject:
    """The method under test with a small cohort of very different sizes."""

    built: BuiltMethod
    federation: Federation
    clients: tuple[Client, ...]
    busy: Client  # one who has very many examples; only where that is the point, since it takes long

    @property
    def method(self) -> Method:
        return self.built.method


@named_by_user()
def check_method(origin: str, settings: Mapping[str, Any] | None = None) -> ContractReport:
    """Check the whole contract; raise `MethodError` with every broken promise."""
    subject = _subject(origin, settings or {})
    broken: list[str] = []
    passed = ["roles"]  # building it has checked them
    for name, check in _CHECKS.items():
        try:
            check(subject)
            passed.append(name)
        except _BrokenPromise as error:
            broken.append(f"{name}: {error}")
    if broken:
        raise MethodError(f"{origin} breaks its contract:\n" + "\n".join(f"  - {line}" for line in broken))
    everybody = [*subject.clients, subject.busy]
    return ContractReport(
        origin,
        tuple(passed),
        _engine_difference(subject),
        attack_updates(subject.built, everybody, seed=SEED),
        attack_updates(subject.built, everybody, seed=SEED, transforms=Transforms((LOCAL_DP,))),
    )


def _subject(origin: str, settings: Mapping[str, Any]) -> Subject:
    small = getattr(method_module(origin), "SMALL", {})
    corpus = getattr(
        method_module(settings.get("base_method", origin)), "CORPUS", {"source": "dialects", "users": USERS}
    )
    federation = load_federation(corpus["source"], settings={"users": corpus["users"]})
    method = load_method(origin, {**small, **settings}, task_of(federation))
    built = build(method, seed=SEED)
    clients = []
    for position, size in enumerate(SIZES):
        user = federation.users[position]
        pool = federation.examples(position)
        data = method.model.encode(pool.take(np.arange(size) % len(pool)))  # over and over, where that is not enough
        clients.append(Client(user, private=built.new_private(user, seed=SEED), data=data))
    return Subject(built, federation, tuple(clients[:-1]), clients[-1])


MakeTrainer: TypeAlias = Callable[[BuiltMethod, Transforms], Trainer]


def _loop(built: BuiltMethod, transforms: Transforms) -> Trainer:
    return LoopTrainer(built, SEED, transforms)


def _cohort(built: BuiltMethod, transforms: Transforms) -> Trainer:
    return CohortTrainer(built, SEED, workers=0, transforms=transforms)


def _advance(
    subject: Subject,
    make: MakeTrainer,
    rounds: int = 2,
    clients: Sequence[Client] | None = None,
    more: tuple[UpdateTransform, ...] = (),
) -> tuple[ServerState, dict[str, Any]]:
    """Some rounds with all clients: the server's state and what each client holds. `more` are transforms beside the
    method's own."""
    built, state = subject.built, subject.built.start()
    store = MemoryClients(built, clients or subject.clients, seed=SEED)
    transforms = Transforms((*built.method.transforms, *more))
    engine = SimulationEngine(built, store, make(built, transforms), built.method.scoring, SEED, transforms)
    server_users = make_prototypical_users(built, subject.federation, seed=SEED)
    for _ in range(rounds):
        state, _ = run_round(
            built, engine, state, list(store.clients), transforms=transforms, server_users=server_users
        )
    return state, {user: client.private for user, client in store.clients.items()}


def _same_bits(left: tuple[ServerState, Any], right: tuple[ServerState, Any]) -> bool:
    homes = all(tree.to_bytes(left[1][user]) == tree.to_bytes(right[1][user]) for user in left[1])
    return homes and state_to_bytes(left[0]) == state_to_bytes(right[0])


def _without_rates(phases: Sequence[LocalPhase]) -> tuple[LocalPhase, ...]:
    """Gradient steps of rate 0; what is computed without a gradient is left out."""
    return tuple(
        replace(phase, trains={glob: replace(optimizer, lr=0.0) for glob, optimizer in phase.trains.items()})
        for phase in phases
        if isinstance(phase, Phase)
    )


def _check_zero_rates(subject: Subject) -> None:
    local = replace(subject.method.local, phases=_without_rates(subject.method.local.phases))
    still = replace(subject.method, local=local)
    if local.statistics:  # what clients disclose does not depend on learning rates, nor what the server makes of it
        still = replace(still, local=replace(local, statistics={}), server=FedAvg())
    subject = replace(subject, built=replace(subject.built, method=still))
    state, homes = _advance(subject, _loop, rounds=1)
    start = subject.built.start()
    _require(tree.max_abs_difference(state.federated, start.federated) == 0, "a federated parameter moved")
    _require(tree.max_abs_difference(state.keyed, start.keyed) == 0, "a keyed parameter moved")
    for client in subject.clients:
        _require(tree.max_abs_difference(homes[client.user], client.private) == 0, "a private parameter moved")


def _check_frozen(subject: Subject) -> None:
    names = subject.built.partition.names(Role.FROZEN)
    broadcast = subject.built.start().broadcast()
    trained, _ = train_client(subject.built, broadcast, subject.clients[2], mode="round", seed=SEED)
    for name in names:
        _require(torch.equal(trained[name], subject.built.initial[name]), f"{name} is frozen and moved")


def _check_order(subject: Subject) -> None:
    turned = [subject.clients[position] for position in (3, 0, 1, 4, 2)]
    same = _same_bits(_advance(subject, _cohort), _advance(subject, _cohort, clients=turned))
    _require(same, "the order changed the bits")


def _check_repeat(subject: Subject) -> None:
    _require(_same_bits(_advance(subject, _cohort), _advance(subject, _cohort)), "the same seed gave other bits")


def _check_resume(subject: Subject) -> None:
    def trained(stops: Sequence[int]) -> tuple[bytes, dict[str, bytes]]:
        with tempfile.TemporaryDirectory() as folder:
            for stop in stops:
                with open_run(
                    folder,
                    method=subject.method.origin,
                    federation=subject.federation,
                    settings=RunSettings(rounds=stop, cohort=3, seed=SEED, workers=0),
                    method_settings=subject.method.settings.model_dump(),
                ) as run:
                    for _ in run.rounds():
                        pass
                    users = run.vault.users()
                    final = state_to_bytes(run.state), {user: run.vault.export(user) for user in users}
        return final

    _require(trained([4]) == trained([1, 3, 4]), "a resumed run differs from an uninterrupted one")


def _engine_difference(subject: Subject) -> float:
    everybody = [*subject.clients, subject.busy]
    slow, fast = (_advance(subject, make, clients=everybody) for make in (_loop, _cohort))
    differences = _differences(slow, fast)
    broadcast = slow[0].broadcast()
    outputs = [
        engine.predict(broadcast, subject.clients)
        for engine in (LoopTrainer(subject.built, SEED), CohortTrainer(subject.built, SEED, workers=0))
    ]
    differences += [float((one - other).abs().max()) for one, other in zip(*outputs, strict=True)]
    return max(differences)


def _differences(one: tuple[ServerState, Any], other: tuple[ServerState, Any]) -> list[float]:
    return [
        tree.max_abs_difference(one[0].federated, other[0].federated),
        tree.max_abs_difference(one[0].keyed, other[0].keyed),
        *(tree.max_abs_difference(one[1][user], other[1][user]) for user in one[1]),
    ]


def _check_transforms(subject: Subject) -> None:
    """A round with the method's own transforms and, where its updates are sums, with differential privacy."""
    private = () if bests(subject.method.local.statistics) else (LOCAL_DP,)
    slow, fast = (_advance(subject, make, rounds=1, more=private) for make in (_loop, _cohort))
    difference = max(_differences(slow, fast))
    _require(difference <= TOLERANCE, f"loop and cohort differ by {difference:.1e}")
    _require(bool(fast[1]), "no client kept anything")


def _check_engines(subject: Subject) -> None:
    difference = _engine_difference(subject)
    _require(difference <= TOLERANCE, f"loop and cohort differ by {difference:.1e}")


def _check_newcomer(subject: Subject) -> None:
    engine = CohortTrainer(subject.built, SEED, workers=0)
    state, _ = _advance(subject, _cohort, rounds=1)
    client = replace(
        subject.clients[3], user="somebody new", private=subject.built.new_private("somebody new", seed=SEED)
    )
    before = tree.to_bytes({**state.federated, **state.keyed})
    if subject.method.personalize.adapts:
        outcome = engine.train(state.broadcast(), [client], mode="personalize")
        client = replace(client, private=outcome.private[client.user])
        moved = tree.max_abs_difference(outcome.update.federated, tree.zeros_like(state.federated))
        _require(moved == 0, "personalizing somebody produced something to upload")
    (output,) = engine.predict(state.broadcast(), [client])
    _require(bool(torch.isfinite(output).all()), "the newcomer's predictions are not finite")
    _require(tree.to_bytes({**state.federated, **state.keyed}) == before, "personalizing changed what is shared")


def _check_wire(subject: Subject) -> None:
    names = subject.built.partition.names(Role.PRIVATE)
    start = subject.built.start()
    generator = seeds.torch_generator(SEED, "searched on the wire")
    for client in subject.clients:
        # Nobody else's numbers: what starts as zeros, or as a copy of something public, could not be told apart.
        own = {
            name: value + 0.01 * torch.randn(value.shape, generator=generator) for name, value in client.private.items()
        }
        client = replace(client, private=own)
        outcome = LoopTrainer(subject.built, SEED).train(start.broadcast(), [client])
        state = subject.method.server(start, outcome.update)
        wires = update_to_bytes(outcome.update), broadcast_to_bytes(state.broadcast()), state_to_bytes(state)
        sent = _names_sent(*wires)
        for name in names:
            _require(name not in sent, f"the name {name} is in a message")
            for private in (client.private, outcome.private[client.user]):
                content = private[name].numpy().tobytes()[:16]
                _require(not any(content in wire for wire in wires), f"the content of {name} is in a message")


def _names_sent(update: bytes, broadcast: bytes, state: bytes) -> set[str]:
    """What every tensor of these messages is called. Whole names: `bias` is not `net.output.bias`."""
    up, down, kept = update_from_bytes(update), broadcast_from_bytes(broadcast), state_from_bytes(state)
    sent = (up.federated, up.keyed, up.statistics, up.best)
    trees = (*sent, down.parameters, kept.federated, kept.keyed, kept.server, kept.optimizer)
    return {name for tensors in trees for name in tensors}


def _check_last_bits(subject: Subject) -> None:
    start = subject.built.start().broadcast()
    central = replace(LOCAL_DP, local=False, expected=float(len(subject.clients)))
    clipping = CohortTrainer(subject.built, SEED, workers=0, transforms=Transforms((central,)))
    noising = LoopTrainer(subject.built, SEED, Transforms((LOCAL_DP,)))
    released = {
        "central": central.on_server(clipping.train(start, subject.clients).update, start),
        "local": noising.train(start, subject.clients[:1]).update,
    }
    for noise, update in released.items():
        rows = {name: rows.values for name, rows in update.keyed.items()}
        tensors = {**update.federated, **rows, **update.statistics}
        for name, tensor in tensors.items():
            steps = tensor.double() / grid_of(1.0)  # clip norm and multiplier are 1
            _require(torch.equal(steps, steps.round()), f"{name} is not on the grid of its noise, {noise}")


def _check_fedavg(subject: Subject) -> None:
    """McMahan's average of whole models (Eq. 4 of FURL) against homespun's sum of deltas (Eq. 5)."""
    phases = tuple(phase for phase in subject.method.local.phases if isinstance(phase, Phase))
    plain = replace(
        subject.method,
        model=replace(subject.method.model, roles=[("*", Role.FEDERATED)], keys={}, new_private=no_private),
        local=replace(subject.method.local, phases=phases, statistics={}),
        personalize=GradientSteps(),
        server=FedAvg(),
    )
    built = build(plain, seed=SEED)
    clients = [replace(client, private={}) for client in subject.clients]
    start = built.start()
    ours = plain.server(start, CohortTrainer(built, SEED, workers=0).train(start.broadcast(), clients).update)
    models = [train_client(built, start.broadcast(), client, mode="round", seed=SEED)[0] for client in clients]
    weights = [plain.local.client_weight(client.examples) for client in clients]
    for name in start.federated:
        average = sum(weight * model[name].double() for weight, model in zip(weights, models, strict=True)) / sum(
            weights
        )
        difference = float((average - ours.federated[name]).abs().max())
        _require(difference <= TOLERANCE, f"{name} differs from FedAvg by {difference:.1e}")


_CHECKS: dict[str, Callable[[Subject], None]] = {
    "zero rates": _check_zero_rates,
    "frozen": _check_frozen,
    "order": _check_order,
    "repeat": _check_repeat,
    "resume": _check_resume,
    "engines": _check_engines,
    "transforms": _check_transforms,
    "newcomer": _check_newcomer,
    "wire": _check_wire,
    "last bits": _check_last_bits,
    "fedavg": _check_fedavg,
}
