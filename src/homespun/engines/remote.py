"""An engine behind a byte pipe.

`RemoteEngine` is the server's end: it encodes calls as messages. `answer` is the clients' end: it decodes a message,
calls an engine and encodes the result. Messages are JSON and safetensors; nothing is unpickled, and there is no field
for a private parameter or an example. Scores are counts; for a two-label task they include a histogram of the model's
scores (see `LabelScoring`) and, if the corpus has it, the user's sub-population.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from homespun.core.errors import HomespunError, MessageError, WorkerError
from homespun.core.messages import (
    Broadcast,
    broadcast_from_tensors,
    broadcast_to_tensors,
    pack,
    strip_prefix,
    unpack,
    update_from_tensors,
    update_to_tensors,
)
from homespun.core.progress import Done, silent
from homespun.core.scoring import Counts
from homespun.core.transforms import NOTHING_SENT
from homespun.core.tree import Tree
from homespun.engines.protocol import Engine, EvaluationProtocol, Trained


@dataclass(frozen=True)
class RemoteEngine:
    """The engine at the other end of `ask`, which sends a message and returns the reply."""

    ask: Callable[[bytes], bytes]

    def train(self, broadcast: Broadcast, users: Sequence[str], *, done: Done = silent) -> Trained:
        header, tensors = self._request({"ask": "train", "users": list(users)}, broadcast)
        done(len(users))
        return trained_from_tensors(header, tensors)

    def personalize(self, broadcast: Broadcast, users: Sequence[str], *, done: Done = silent) -> None:
        self._request({"ask": "personalize", "users": list(users)}, broadcast)
        done(len(users))

    def confirm(self, round: int, *, weight: float) -> None:
        _reply(self.ask(pack({"ask": "confirm", "round": round, "weight": weight}, {})))

    def evaluate(
        self, broadcast: Broadcast, users: Sequence[str], protocol: EvaluationProtocol, *, done: Done = silent
    ) -> dict[str, Counts]:
        asked = {"ask": "evaluate", "users": list(users), "protocol": asdict(protocol)}
        found = scores_from_tensors(*self._request(asked, broadcast))
        unasked = sorted(found.keys() - set(users))
        if unasked:
            raise MessageError(f"reply with scores of {len(unasked)} users that were not requested")
        done(len(users))
        return found

    def close(self) -> None:
        """Do nothing: the other end closes its engine."""

    def _request(self, header: Mapping[str, Any], broadcast: Broadcast) -> tuple[dict[str, Any], Tree]:
        sent, tensors = broadcast_to_tensors(broadcast)
        return _reply(self.ask(pack({**header, **sent}, tensors)))


def answer(engine: Engine, message: bytes) -> bytes:
    """Return an engine's reply to one message of a `RemoteEngine`. A HomespunError is returned as a reply."""
    try:
        header, tensors = unpack(message)
        asked = header.get("ask")
        if asked == "confirm":
            round, weight = _round(header), _weight(header)
            engine.confirm(round, weight=weight)
            return pack({}, {})
        users, broadcast = _users(header), broadcast_from_tensors(header, tensors)
        if asked == "train":
            return pack(*trained_to_tensors(engine.train(broadcast, users)))
        if asked == "personalize":
            engine.personalize(broadcast, users)
            return pack({}, {})
        if asked == "evaluate":
            protocol = _protocol(header)
            return pack(*scores_to_tensors(engine.evaluate(broadcast, users, protocol)))
        raise MessageError(f"unknown request {str(asked)[:40]!r}")
    except HomespunError as error:
        return pack({"error": str(error)}, {})


def _reply(message: bytes) -> tuple[dict[str, Any], Tree]:
    header, tensors = unpack(message)
    if "error" in header:
        raise WorkerError(str(header["error"]))
    return header, tensors


def trained_to_tensors(trained: Trained) -> tuple[dict[str, Any], Tree]:
    header, tensors = update_to_tensors(trained.update)
    return {**header, "rejected": list(trained.rejected), "sent_bytes": dict(trained.sent_bytes)}, tensors


def trained_from_tensors(header: Mapping[str, Any], tensors: Tree) -> Trained:
    rejected, sent = header.get("rejected"), header.get("sent_bytes")
    if not isinstance(rejected, list) or not all(isinstance(reason, str) for reason in rejected):
        raise MessageError("reply without a valid list of rejected updates")
    return Trained(update_from_tensors(header, tensors), tuple(rejected), bytes_from_json(sent))


def bytes_from_json(found: Any) -> dict[str, int]:
    """Decode bytes by role."""
    counts = found.values() if isinstance(found, dict) and found.keys() == NOTHING_SENT.keys() else [None]
    if any(type(count) is not int or not 0 <= count < 2**53 for count in counts):
        raise MessageError("reply without valid `sent_bytes`")
    return dict(found)


def scores_to_tensors(scores: Mapping[str, Counts]) -> tuple[dict[str, Any], Tree]:
    """Encode scores. Users are addressed by position, because their names must not become part of a tensor's name."""
    tensors = {
        f"{place}/{name}": torch.from_numpy(value.copy())
        for place, counts in enumerate(scores.values())
        for name, value in counts.items()
    }
    return {"users": list(scores)}, tensors


def scores_from_tensors(header: Mapping[str, Any], tensors: Tree) -> dict[str, Counts]:
    found = {
        user: {name: value.numpy() for name, value in strip_prefix(str(place), tensors).items()}
        for place, user in enumerate(_users(header))
    }
    if sum(map(len, found.values())) != len(tensors):
        raise MessageError("reply with scores of a user that it does not name")
    return found


def _users(header: Mapping[str, Any]) -> list[str]:
    users = header.get("users")
    if not isinstance(users, list) or not all(isinstance(user, str) for user in users):
        raise MessageError("users must be a list of names")
    return users


def _round(header: Mapping[str, Any]) -> int:
    round = header.get("round")
    if type(round) is not int or round < 0:
        raise MessageError("round must be a non-negative integer")
    return round


def _weight(header: Mapping[str, Any]) -> float:
    weight = header.get("weight")
    if type(weight) not in (int, float) or not 0 <= weight < 2**53:  # type: ignore[operator]
        raise MessageError("weight must be a non-negative number")
    return float(weight)  # type: ignore[arg-type]


def _protocol(header: Mapping[str, Any]) -> EvaluationProtocol:
    """Decode a protocol, checked field by field, because it decides which examples of a client are read."""
    given = header.get("protocol")
    if not isinstance(given, dict) or given.keys() != asdict(EvaluationProtocol("test")).keys():
        raise MessageError("protocol: missing or unknown fields")
    allowed = {
        "part": ("train", "eval", "test", "scored"),
        "user_set": ("participants", "newcomers"),
        "adapt_to": ("train", "adapt", None),
        "private": ("own", "prior"),  # "another" would need other clients' parameters
    }
    wrong = [name for name, values in allowed.items() if given[name] not in values]
    if wrong or not (given["k"] is None or (type(given["k"]) is int and given["k"] >= 0)):
        raise MessageError(f"protocol: invalid {wrong[0] if wrong else 'k'}")
    return EvaluationProtocol(**given)
