from dataclasses import replace

import pytest
import torch

from homespun.core.errors import MessageError
from homespun.core.messages import (
    Broadcast,
    Candidate,
    Rows,
    ServerState,
    Update,
    broadcast_from_bytes,
    broadcast_to_bytes,
    require_finite,
    require_valid,
    state_from_bytes,
    state_to_bytes,
    unpack,
    update_from_bytes,
    update_to_bytes,
)


def rows(index, values, weight):
    return Rows(torch.tensor(index), torch.tensor(values), torch.tensor(weight, dtype=torch.float64))


def update(value, index, weight, **changes):
    made = Update(
        round=3,
        federated={"w": torch.tensor([value, -value])},
        keyed={"t": rows(index, [[value]] * len(index), [weight] * len(index))},
        metrics={"loss": value, "examples": 1.0},
        weight=weight,
        clients=1,
    )
    return replace(made, **changes)


def test_adding_updates_sums_everything_and_joins_rows():
    total = update(1.0, [0, 2], 2.0) + update(10.0, [1, 2], 3.0)
    assert total.federated["w"].tolist() == [11.0, -11.0]
    assert total.keyed["t"].index.tolist() == [0, 1, 2]
    assert total.keyed["t"].values.tolist() == [[1.0], [10.0], [11.0]]
    assert total.keyed["t"].weight.tolist() == [2.0, 3.0, 5.0]
    assert (total.metrics, total.weight, total.clients) == ({"loss": 11.0, "examples": 2.0}, 5.0, 2)


def test_updates_of_different_rounds_cannot_be_added():
    with pytest.raises(MessageError, match="rounds 3 and 4"):
        update(1.0, [0], 1.0) + update(1.0, [0], 1.0, round=4)


def test_every_message_survives_encoding():
    best = {"m": Candidate(-0.5, torch.tensor([3.0]))}
    sent = update(1.5, [0, 2], 2.0, statistics={"n": torch.tensor([7.0])}, best=best)
    got = update_from_bytes(update_to_bytes(sent))
    assert got.federated["w"].tolist() == [1.5, -1.5]
    assert got.keyed["t"].index.tolist() == [0, 2]
    assert got.statistics["n"].tolist() == [7.0]
    assert (got.best["m"].score, got.best["m"].value.tolist()) == (-0.5, [3.0])
    assert (got.round, got.metrics, got.weight, got.clients) == (3, {"loss": 1.5, "examples": 1.0}, 2.0, 1)
    server = {"n": torch.ones(4)}
    state = ServerState(5, {"w": torch.ones(2)}, {"t": torch.zeros(3, 1)}, {"m.w": torch.ones(2)}, server)
    again = state_from_bytes(state_to_bytes(state))
    assert (again.round, list(again.federated), list(again.keyed), list(again.optimizer)) == (
        5,
        ["w"],
        ["t"],
        ["m.w"],
    )
    down = broadcast_from_bytes(broadcast_to_bytes(state.broadcast()))
    assert (down.keyed["t"].shape, down.server["n"].shape, again.server["n"].shape) == ((3, 1), (4,), (4,))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"round": 4}, "update of round 4 arrived in round 3"),
        ({"federated": {"v": torch.zeros(2)}}, "missing"),
        ({"federated": {"w": torch.zeros(1)}}, "expected shape"),
        ({"federated": {"w": torch.tensor([1.0, float("nan")])}}, "w became infinite or NaN"),
        ({"keyed": {"t": rows([0], [[float("inf")]], [1.0])}}, "t became infinite or NaN"),
        ({"federated": {"w": torch.zeros(2, dtype=torch.float16)}}, "'w' is torch.float16, not torch.float32"),
        ({"federated": {"w": torch.zeros(2).to(torch.float8_e5m2)}}, "'w' is torch.float8_e5m2"),
        ({"keyed": {}}, "keyed parameters"),
        ({"keyed": {"t": rows([3], [[1.0]], [1.0])}}, "'t' has no row 3"),
        ({"keyed": {"t": rows([0], [[1.0, 2.0]], [1.0])}}, r"rows of 't': .* \(1, 2\)"),
        ({"keyed": {"t": rows([0], [[1]], [1.0])}}, "'t' is torch.int64"),
        ({"metrics": {"age": 41.0}}, "metrics: expected"),
        ({"statistics": {"m": torch.zeros(2)}}, "statistics: declared"),
        ({"best": {"m": Candidate(-1.0, torch.zeros(2))}}, "statistics: declared"),
    ],
)
def test_an_invalid_update_is_rejected(wrong, message):
    broadcast = Broadcast(3, {"w": torch.zeros(2)}, {"t": torch.zeros(3, 1)})
    require_valid(update(1.0, [0], 1.0), broadcast)
    with pytest.raises(MessageError, match=message):
        require_valid(update(1.0, [0], 1.0, **wrong), broadcast)


@pytest.mark.parametrize("data", [b"", b"1234", b"\xff" * 40, b"\x02\0\0\0\0\0\0\0{}garbage"])
def test_random_bytes_are_rejected(data):
    with pytest.raises(MessageError):
        unpack(data)


def test_a_server_step_that_is_not_finite_is_an_error() -> None:
    state = ServerState(round=3, federated={"x": torch.tensor([1.0, torch.inf])}, keyed={})
    with pytest.raises(MessageError, match="round 2: x became infinite or NaN in the server's step"):
        require_finite(state)
