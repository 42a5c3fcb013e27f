"""The contract of a method. `check_method("furl")` and `homespun check furl` run these checks on a method file.

The checks use a small corpus and clients with 1 to 500 examples. A method file can define `SMALL`, settings that make
its model small, and `CORPUS`, the corpus to use: `{"source": name, "users": number}`, by default `dialects`.

    roles       Each parameter has exactly one role, and every rule matches a parameter.
    zero rates  With all learning rates 0, no federated, keyed or private parameter changes.
    frozen      Training does not change frozen parameters.
    order       The result of a round does not depend on the order of the cohort.
    repeat      Two trainings with the same seed are bit-identical.
    resume      A run that is stopped and resumed is bit-identical to an uninterrupted one.
    engines     The cohort engine agrees with the loop engine up to rounding, in training and in prediction.
    transforms  The two engines agree with the method's own transforms and local differential privacy.
    newcomer    A new user can be personalized. Nothing is uploaded, shared parameters do not change, and the
                predictions are finite.
    wire        Updates, broadcasts and the server's state contain neither the name nor the content of a private
                parameter.
    last bits   Under differential privacy, released values lie on the grid of the noise, so that their last bits
                disclose nothing.
    fedavg      With all parameters federated and without statistics, a round with FedAvg is the weighted mean of the
                clients' models.

`check_method` raises `MethodError` with all checks that fail. The report also has an attack that does not pass or fail:

    inversion   How closely a server can reconstruct a private embedding from one client's update, with and without
                local noise (`testing/attack.py`).

If a check fails, look here first:

    zero rates, frozen   a model that changes its parameters in `forward`, or a loss with side effects
    repeat, resume       random numbers that do not come from the given generator or from `core/draws.py`, or state
                         that is kept in a Python object instead of the server's state or private parameters
    engines, transforms  a `stacked` function that mixes clients, or a loss that is not one value per example
    wire                 a statistic that is a copy of a private parameter, or a private name used for a shared one
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from homespun.core import seeds, tree
from homespun.core.errors import MethodError
from homespun.core.messages import (
    broadcast_from_bytes,
    broadcast_to_bytes,
    state_from_bytes,
    state_to_bytes,
    update_from_bytes,
    update_to_bytes,
)
from homespun.core.method import LocalPhase, Phase, build, no_private
from homespun.core.personalize import GradientSteps
from homespun.core.roles import Role
from homespun.core.server import FedAvg
from homespun.core.statistics import bests
from homespun.core.transforms import Transforms
from homespun.engines.cohort import CohortTrainer
from homespun.engines.loop import LoopTrainer, train_client
from homespun.privacy.dp import DpMechanism
from homespun.privacy.mechanism import Clip
from homespun.privacy.noise import grid_of
from homespun.runs.open_run import open_run
from homespun.runs.settings import RunSettings
from homespun.system.trust import named_by_user
from homespun.testing.attack import Inversion, attack_updates
from homespun.testing.subject import (
    SEED,
    Subject,
    are_bit_identical,
    cohort_trainer,
    differences,
    loop_trainer,
    make_subject,
    run_rounds,
)

PIECES = 64  # of a private tensor that are searched for in messages
TOLERANCE = 2e-4  # float32 sums of hundreds of steps in another order; typically below 1e-5
LOCAL_DP = DpMechanism(Clip({"*": 1.0}), 1.0, local=True, insecure_seed=SEED)  # epsilon 10.0 per round at delta 1e-5


class _ContractViolation(Exception):
    pass


def _require(holds: bool, violation: str) -> None:
    """Used instead of `assert`, which `python -O` removes."""
    if not holds:
        raise _ContractViolation(violation)


@dataclass(frozen=True)
class ContractReport:
    """The checks that a method passed, and the results of the attack on its updates."""

    method: str
    passed: tuple[str, ...]
    largest_difference: float  # between the loop and the cohort engine
    inversions: tuple[Inversion, ...]
    guarded: tuple[Inversion, ...]  # the same attack on updates with local differential privacy

    def lines(self) -> list[str]:
        lines = [f"{self.method}: passed: {', '.join(self.passed)}"]
        lines.append(f"{self.method}: loop and cohort differ by at most {self.largest_difference:.1e}")
        if not self.inversions:
            lines.append(f"{self.method}: inversion: not measured, there is no trained private embedding")
        lines += [
            f"{self.method}: inversion: one update of a client with {attack.examples} examples discloses its private "
            f"embedding to within {100 * attack.relative_error:.1f} % (cosine {attack.cosine:.3f}), "
            f"with local noise to within {100 * guarded.relative_error:.0f} % (cosine {guarded.cosine:.3f})"
            for attack, guarded in zip(self.inversions, self.guarded, strict=True)
        ]
        return lines


@named_by_user()
def check_method(origin: str, settings: Mapping[str, Any] | None = None) -> ContractReport:
    """Run all checks on a method; raise `MethodError` with every check that fails.

    Example:
        >>> report = check_method("fedavg")
        >>> "wire" in report.passed
        True
    """
    subject = make_subject(origin, settings or {})
    failed: list[str] = []
    passed = ["roles"]  # checked when the method was built
    for name, check in _CHECKS.items():
        try:
            check(subject)
            passed.append(name)
        except _ContractViolation as error:
            failed.append(f"{name}: {error}")
    if failed:
        raise MethodError(f"{origin} violates the contract of methods:\n" + "\n".join(f"  - {line}" for line in failed))
    all_clients = [*subject.clients, subject.large_client]
    return ContractReport(
        origin,
        tuple(passed),
        subject.engine_difference,
        attack_updates(subject.built, all_clients, seed=SEED),
        attack_updates(subject.built, all_clients, seed=SEED, transforms=Transforms((LOCAL_DP,))),
    )


def _without_rates(phases: Sequence[LocalPhase]) -> tuple[LocalPhase, ...]:
    """Set all learning rates to 0; phases without gradient steps are left out."""
    return tuple(
        replace(phase, trains={glob: replace(optimizer, lr=0.0) for glob, optimizer in phase.trains.items()})
        for phase in phases
        if isinstance(phase, Phase)
    )


def _check_zero_rates(subject: Subject) -> None:
    local = replace(subject.method.local, phases=_without_rates(subject.method.local.phases))
    method = replace(subject.method, local=local)
    if local.statistics:  # these change the server's parameters even with learning rates of 0
        method = replace(method, local=replace(local, statistics={}), server=FedAvg())
    subject = replace(subject, built=replace(subject.built, method=method))
    state, private = run_rounds(subject, loop_trainer, rounds=1)
    start = subject.built.start()
    _require(tree.max_abs_difference(state.federated, start.federated) == 0, "a federated parameter changed")
    _require(tree.max_abs_difference(state.keyed, start.keyed) == 0, "a keyed parameter changed")
    for client in subject.clients:
        _require(tree.max_abs_difference(private[client.user], client.private) == 0, "a private parameter changed")


def _check_frozen(subject: Subject) -> None:
    names = subject.built.partition.names(Role.FROZEN)
    broadcast = subject.built.start().broadcast()
    trained, _ = train_client(subject.built, broadcast, subject.clients[2], mode="round", seed=SEED)
    for name in names:
        _require(torch.equal(trained[name], subject.built.initial[name]), f"{name} is frozen, but changed")


def _check_order(subject: Subject) -> None:
    permuted = [subject.clients[position] for position in (3, 0, 1, 4, 2)]
    same = are_bit_identical(run_rounds(subject, cohort_trainer), run_rounds(subject, cohort_trainer, clients=permuted))
    _require(same, "the result depends on the order of clients")


def _check_repeat(subject: Subject) -> None:
    same = are_bit_identical(run_rounds(subject, cohort_trainer), run_rounds(subject, cohort_trainer))
    _require(same, "two trainings with the same seed differ")


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


def _check_transforms(subject: Subject) -> None:
    """A round with the method's own transforms and, unless it declares a `Best`, with local differential privacy."""
    privacy = () if bests(subject.method.local.statistics) else (LOCAL_DP,)
    slow, fast = (run_rounds(subject, make, rounds=1, more=privacy) for make in (loop_trainer, cohort_trainer))
    difference = max(differences(slow, fast))
    _require(difference <= TOLERANCE, f"loop and cohort differ by {difference:.1e}")
    _require(bool(fast[1]), "no client has private state after the round")


def _check_engines(subject: Subject) -> None:
    difference = subject.engine_difference
    _require(difference <= TOLERANCE, f"loop and cohort differ by {difference:.1e}")


def _check_newcomer(subject: Subject) -> None:
    trainer = CohortTrainer(subject.built, SEED, workers=0)
    state, _ = run_rounds(subject, cohort_trainer, rounds=1)
    client = replace(subject.clients[3], user="a new user", private=subject.built.new_private("a new user", seed=SEED))
    before = tree.to_bytes({**state.federated, **state.keyed})
    if subject.method.personalize.adapts:
        outcome = trainer.train(state.broadcast(), [client], mode="personalize")
        client = replace(client, private=outcome.private[client.user])
        moved = tree.max_abs_difference(outcome.update.federated, tree.zeros_like(state.federated))
        _require(moved == 0, "personalization produced an update")
    (output,) = trainer.predict(state.broadcast(), [client])
    _require(bool(torch.isfinite(output).all()), "the predictions for a new user are not finite")
    _require(tree.to_bytes({**state.federated, **state.keyed}) == before, "personalization changed shared parameters")


def _check_wire(subject: Subject) -> None:
    names = subject.built.partition.names(Role.PRIVATE)
    start = subject.built.start()
    generator = seeds.torch_generator(SEED, "searched on the wire")
    for client in subject.clients:
        # Random values: initial ones, such as zeros or copies of shared parameters, may be in a message legitimately.
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
                found = any(piece in wire for piece in _pieces(private[name]) for wire in wires)
                _require(not found, f"the content of {name} is in a message")


def _pieces(value: Tensor) -> list[bytes]:
    """Up to `PIECES` runs of 16 bytes from all parts of a tensor; a run of one repeated number says nothing."""
    content = value.contiguous().numpy().tobytes()
    places = np.linspace(0, max(len(content) - 16, 0), PIECES).astype(int) // 16 * 16
    pieces = {content[place : place + 16] for place in places.tolist()}
    return [piece for piece in pieces if len({piece[at : at + 4] for at in range(0, len(piece), 4)}) > 1]


def _names_sent(update: bytes, broadcast: bytes, state: bytes) -> set[str]:
    """Return the whole names of all tensors in these messages: `bias` is not `net.output.bias`."""
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
            _require(torch.equal(steps, steps.round()), f"{name} is not on the grid of its {noise} noise")


def _check_fedavg(subject: Subject) -> None:
    """McMahan's average of whole models (Eq. 4 of FURL) against homespun's sum of deltas (Eq. 5)."""
    phases = tuple(phase for phase in subject.method.local.phases if isinstance(phase, Phase))
    integers = [name for name, value in subject.built.initial.items() if not value.is_floating_point()]
    roles = [*((name, Role.FROZEN) for name in integers), ("*", Role.FEDERATED)]  # an average has no integers
    plain = replace(
        subject.method,
        model=replace(subject.method.model, roles=roles, keys={}, new_private=no_private),
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
        difference = max((average - ours.federated[name]).abs().flatten().tolist(), default=0.0)
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
