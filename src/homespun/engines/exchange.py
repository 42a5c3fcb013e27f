"""Messages between a trainer and its worker processes: clients to workers, outcomes and outputs back.

Users are addressed by their position in a chunk, because a user's name must not become part of a tensor's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from homespun.core.errors import MessageError, MethodError
from homespun.core.messages import (
    Broadcast,
    add_prefix,
    pack,
    require_valid,
    strip_prefix,
    update_from_tensors,
    update_to_tensors,
)
from homespun.core.method import BuiltMethod, Method
from homespun.core.roles import SHARED
from homespun.core.statistics import bests, sums
from homespun.core.transforms import Transforms
from homespun.core.tree import Tree
from homespun.engines.client import Client, Outcome, private_names
from homespun.engines.remote import bytes_from_json
from homespun.privacy.dp import DpMechanism, dp_from_dict


def clients_to_tensors(clients: Sequence[Client]) -> dict[str, Tensor]:
    """Encode clients. Tensors that all clients have with the same dtype and row shape are concatenated into one,
    because the overhead per tensor can exceed the time to train a small client."""
    found: dict[str, Tensor] = {}
    for kind in ("private", "data"):
        trees: list[Tree] = [getattr(client, kind) for client in clients]
        for name in sorted({name for tree in trees for name in tree}):
            values = [tree[name] for tree in trees if name in tree]
            forms = {(value.dtype, value.dim(), value.shape[1:]) for value in values}
            if len(values) == len(clients) and len(forms) == 1 and values[0].dim():
                found[f"rows/{kind}/{name}"] = torch.tensor([len(value) for value in values])
                found[f"joined/{kind}/{name}"] = torch.cat(values)
            else:
                found |= {f"{kind}/{place}/{name}": tree[name] for place, tree in enumerate(trees) if name in tree}
    return found


def clients_from_tensors(users: Sequence[str], tensors: Tree) -> list[Client]:
    parts = {
        name: joined.split(tensors[f"rows/{name}"].tolist()) for name, joined in strip_prefix("joined", tensors).items()
    }
    apart = {name: value for name, value in tensors.items() if not name.startswith(("joined/", "rows/"))}

    def of(kind: str, place: int) -> dict[str, Tensor]:
        own = {name.partition("/")[2]: each[place] for name, each in parts.items() if name.startswith(f"{kind}/")}
        return {**own, **strip_prefix(f"{kind}/{place}", apart)}

    return [Client(user, of("private", place), of("data", place)) for place, user in enumerate(users)]


def outcome_to_bytes(outcome: Outcome, users: Sequence[str]) -> bytes:
    header, tensors = update_to_tensors(outcome.update)
    places = {user: position for position, user in enumerate(users)}
    for user, kept in outcome.private.items():
        tensors |= add_prefix(f"private/{places[user]}", kept)
    header["rejected"] = {places[user]: reason for user, reason in outcome.rejected.items()}
    header["sent_bytes"] = dict(outcome.sent_bytes)
    return pack(header, tensors)


def outcome_from_reply(
    header: Mapping[str, Any], tensors: Tree, *, built: BuiltMethod, broadcast: Broadcast, clients: Sequence[Client]
) -> Outcome:
    """Decode a chunk's outcome; raise MessageError unless it belongs to this broadcast and these clients."""
    sent = {name: tensor for name, tensor in tensors.items() if not name.startswith("private/")}
    update = update_from_tensors(header, sent)
    declared = built.method.local.statistics
    require_valid(update, broadcast, statistics=sums(declared), best=bests(declared))
    rejected, kept = _rejected_users(header.get("rejected"), clients), strip_prefix("private", tensors)
    private = {
        client.user: strip_prefix(str(position), kept)
        for position, client in enumerate(clients)
        if client.user not in rejected
    }
    if sum(map(len, private.values())) != len(kept):
        raise MessageError("reply with private parameters of a rejected client, or of one that is not in the chunk")
    for client in clients:
        if client.user in private:
            _require_kept(private[client.user], built, client)
    return Outcome(update, private, rejected, bytes_from_json(header.get("sent_bytes")))


def _rejected_users(found: Any, clients: Sequence[Client]) -> dict[str, str]:
    places = {str(position): client.user for position, client in enumerate(clients)}
    if not isinstance(found, dict) or not found.keys() <= places.keys():
        raise MessageError("reply without a valid list of rejected clients")
    return {places[position]: str(reason) for position, reason in found.items()}


def _require_kept(kept: Tree, built: BuiltMethod, client: Client) -> None:
    """Require all private parameters, and at most copies of shared ones, with the client's shapes and dtypes."""
    private, shared = set(private_names(built, client.private)), set(built.partition.names(*SHARED))
    if built.method.model.private_varies:  # personalization may add names and change shapes
        private |= set(private_names(built, kept))
    if not private <= kept.keys() <= private | shared:
        raise MessageError(f"reply with private parameters {sorted(kept)}, expected {sorted(private)}")
    before = {**built.initial, **client.private}
    if built.method.model.private_varies:
        before = {name: value for name, value in before.items() if name in shared}
        kept = {name: value for name, value in kept.items() if name in shared}
    for name, value in kept.items():
        if value.shape != before[name].shape or value.dtype != before[name].dtype:
            raise MessageError(f"reply with {name!r} of another form: {tuple(value.shape)} {value.dtype}")


def transforms_to_list(transforms: Transforms, method: Method) -> list[dict[str, Any]]:
    """Encode the client halves that a worker does not get from the method itself."""
    others = [one for one in transforms.client_side if one not in method.transforms]
    unknown = [type(one).__name__ for one in others if not isinstance(one, DpMechanism)]
    if unknown:
        raise MethodError(f"{', '.join(unknown)}: a method's own transforms must be listed in Method.transforms")
    return [one.to_dict() for one in others if isinstance(one, DpMechanism)]


def transforms_from_list(found: Sequence[Mapping[str, Any]], method: Method) -> Transforms:
    return Transforms((*map(dp_from_dict, found), *method.transforms))


def outputs_to_bytes(outputs: Sequence[Tensor]) -> bytes:
    return pack({}, {str(position): output for position, output in enumerate(outputs)})


def outputs_from_reply(tensors: Tree, clients: Sequence[Client]) -> list[Tensor]:
    """Decode the model's outputs, one row per example of a client."""
    if tensors.keys() != {str(position) for position in range(len(clients))}:
        raise MessageError(f"reply with outputs {sorted(tensors)} for {len(clients)} clients")
    outputs = [tensors[str(position)] for position in range(len(clients))]
    for output, client in zip(outputs, clients, strict=True):
        if not output.is_floating_point() or output.dim() == 0 or len(output) != client.examples:
            raise MessageError(
                f"reply with an output of {tuple(output.shape)} {output.dtype} for {client.examples} examples"
            )
    return outputs
