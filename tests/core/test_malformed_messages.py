"""Decoding a malformed message raises MessageError and no other exception."""

import json
import struct

import pytest
import torch

from homespun.core import tree
from homespun.core.errors import MessageError
from homespun.core.messages import broadcast_from_bytes, pack, state_from_bytes, unpack, update_from_bytes

INDEX, VALUES = torch.tensor([0, 2]), torch.ones(2, 1)
WEIGHT = torch.full((2,), 3.0, dtype=torch.float64)
HEADER = {"round": 3, "metrics": {"loss": 0.5}, "weight": 3.0, "clients": 1, "scores": {}}
TENSORS = {
    "federated/w": torch.ones(2),
    "keyed/t/index": INDEX,
    "keyed/t/values": VALUES,
    "keyed/t/weight": WEIGHT,
}


def framed(header: bytes, tensors: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + tensors


def update(*, without=(), tensors=None, **changes):
    kept = {name: tensor for name, tensor in TENSORS.items() if name not in without}
    return pack({**HEADER, **changes}, {**kept, **(tensors or {})})


def without_field(name):
    return pack({key: value for key, value in HEADER.items() if key != name}, TENSORS)


def with_type(name: str) -> bytes:
    """A tensor of a type that safetensors supports and torch does not."""
    head = json.dumps({"federated/w": {"dtype": name, "shape": [2], "data_offsets": [0, 1]}}).encode()
    return framed(json.dumps({"round": 3}).encode(), struct.pack("<Q", len(head)) + head + b"\0")


BAD_UPDATES = {
    "no round": without_field("round"),
    "no metrics": without_field("metrics"),
    "no scores": without_field("scores"),
    "no weight": without_field("weight"),
    "no clients": without_field("clients"),
    "a round that is text": update(round="3"),
    "a round that is true": update(round=True),
    "a negative round": update(round=-1),
    "a fractional round": update(round=3.5),
    "a round of 400 digits": update(round=10**400),
    "metrics as a list": update(metrics=[0.5]),
    "a metric that is text": update(metrics={"loss": "low"}),
    "a metric that is null": update(metrics={"loss": None}),
    "a metric of 400 digits": update(metrics={"loss": 10**400}),
    "a metric that is NaN": update(metrics={"loss": float("nan")}),
    "a weight that is text": update(weight="3"),
    "a weight of 400 digits": update(weight=10**400),
    "an infinite weight": update(weight=float("inf")),
    "a fractional number of clients": update(clients=0.5),
    "rows without an index": update(without=["keyed/t/index"]),
    "rows without weights": update(without=["keyed/t/weight"]),
    "rows with an extra tensor": update(tensors={"keyed/t/age": INDEX.clone()}),
    "rows without a name": update(tensors={"keyed/index": INDEX.clone()}),
    "rows that are floats": update(tensors={"keyed/t/index": INDEX.float()}),
    "rows in two dimensions": update(tensors={"keyed/t/index": INDEX[None].clone()}),
    "rows that descend": update(tensors={"keyed/t/index": torch.tensor([2, 0])}),
    "a negative row": update(tensors={"keyed/t/index": torch.tensor([-1, 0])}),
    "fewer values than rows": update(tensors={"keyed/t/values": torch.ones(1, 1)}),
    "a value without rows": update(tensors={"keyed/t/values": torch.tensor(1.0)}),
    "complex row weights": update(tensors={"keyed/t/weight": WEIGHT.to(torch.complex64)}),
    "more weights than rows": update(tensors={"keyed/t/weight": torch.cat([WEIGHT, WEIGHT])}),
    "row weights that are NaN": update(tensors={"keyed/t/weight": WEIGHT * float("nan")}),
    "a candidate without a score": update(tensors={"best/w": torch.ones(2)}),
    "a score without a candidate": update(scores={"w": -1.0}),
    "a score that is text": update(scores={"w": "best"}, tensors={"best/w": torch.ones(2)}),
    "a prefix that messages do not have": update(tensors={"private/user.embedding": torch.ones(2)}),
    "a tensor without a prefix": update(tensors={"w": torch.ones(2)}),
}
BAD_FRAMES = {
    "a header that is a list": framed(b"[3]", tree.to_bytes({})),
    "a header that is null": framed(b"null", tree.to_bytes({})),
    "a header nested 100,000 deep": framed(b"[" * 100_000, tree.to_bytes({})),
    "a number of 5,000 digits": framed(b'{"round": ' + b"9" * 5000 + b"}", tree.to_bytes({})),
    "a header longer than the message": struct.pack("<Q", 2**63) + b"{}",
    "a type that torch does not have": with_type("F4"),
    "another type that torch does not have": with_type("F8_E8M0"),
    "tensors that are cut off": pack({"round": 3}, TENSORS)[:-1],
    "an empty tensor of a full shape": framed(
        b'{"round": 3}', struct.pack("<Q", 64) + b'{"w":{"dtype":"F32","shape":[],"data_offsets":[0,0]}}'.ljust(64)
    ),
}


@pytest.mark.parametrize("data", BAD_UPDATES.values(), ids=BAD_UPDATES)
def test_a_malformed_update(data):
    with pytest.raises(MessageError):
        update_from_bytes(data)


@pytest.mark.parametrize("data", BAD_FRAMES.values(), ids=BAD_FRAMES)
@pytest.mark.parametrize("decode", [unpack, update_from_bytes, broadcast_from_bytes, state_from_bytes])
def test_a_malformed_frame(decode, data):
    with pytest.raises(MessageError):
        decode(data)


@pytest.mark.parametrize("decode", [broadcast_from_bytes, state_from_bytes])
@pytest.mark.parametrize("header", [{}, {"round": None}, {"round": -1}, {"round": 10**400}, {"round": 3.0}])
def test_a_broadcast_or_state_without_a_round(decode, header):
    with pytest.raises(MessageError, match="round"):
        decode(pack(header, {"federated/w": torch.ones(2)}))


@pytest.mark.parametrize("decode", [broadcast_from_bytes, state_from_bytes])
@pytest.mark.parametrize("name", ["private/user.embedding", "w", "federated/"])
def test_a_broadcast_or_state_with_an_unexpected_tensor(decode, name):
    with pytest.raises(MessageError):
        decode(pack({"round": 3}, {name: torch.ones(2)}))
