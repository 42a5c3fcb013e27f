"""Reproducible mutations of messages and files."""

import json
import struct
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Any, Protocol

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 2**31, 2**53 + 1, 2**64, -(2**63), 10**400, 0.5, -0.0, 1e-320, 1e30, 1e308, -1e308,
    float("nan"), float("inf"), "", "x", "0", "nan", "\0", "\x1b[2J", "../x", ".", "é\u202e", "\ud800", "x" * 5000,
    "x" * 300 + ".csv", "federated", "F4", "F64", "C64", "BF16", "I64", "dialects", "furl", [], {}, [[]], [None],
    [1, "a", {}], {"": None}, {"mean": None}, [0, 0], [2**40], [-1], [1e308, 1e308],
)  # fmt: skip


class Mutation(Protocol):
    def __call__(self, data: bytes, random: Random, *, others: Sequence[bytes]) -> bytes: ...


def mutate_bytes(data: bytes, random: Random, *, others: Sequence[bytes]) -> bytes:
    """Flip bits, overwrite, cut, repeat, or splice with another seed; one to four times."""
    made = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        place = random.randrange(len(made) + 1)
        end = min(len(made), place + random.choice((1, 2, 8, 64)))
        kind = random.randrange(6)
        if kind == 0 and place < len(made):
            made[place] ^= 1 << random.randrange(8)
        elif kind == 1:
            made[place:end] = random.randbytes(end - place)
        elif kind == 2:
            made = made[:place] if random.random() < 0.5 else made[place:]
        elif kind == 3:
            made[place:place] = made[place:end] * random.randint(1, 3)
        elif kind == 4:
            other = random.choice(others)
            made[place:] = other[random.randrange(len(other) + 1) :]
        else:
            made[place:end] = random.choice((b"", b"\0" * 8, b"\xff" * 8, b"{}", b"[[[[", b"9" * 5000, b'"'))
    return bytes(made)


def mutate_json(value: Any, random: Random) -> Any:
    """Replace, remove, rename, repeat or exchange parts of a JSON value; one to three times."""
    made = json.loads(json.dumps(value))
    for _ in range(random.choice((1, 1, 2, 3))):
        places = list(_places(made))
        if not places:
            return deepcopy(random.choice(VALUES))
        holder, key = random.choice(places)
        kind = random.randrange(6)
        if kind <= 2:
            holder[key] = deepcopy(random.choice(VALUES))
        elif kind == 3:
            del holder[key]
        elif kind == 4 and isinstance(holder, dict):
            holder[random.choice(("", "x", "schema", "round", str(key) + "x"))] = holder.pop(key)
        elif kind == 4:
            holder.insert(key, holder[key])
        else:  # a copy, so that a value does not contain itself
            other, name = random.choice(places)
            holder[key] = deepcopy(other[name])
    return made


def _places(value: Any) -> Any:
    """Yield every part of a JSON value as its container and key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)


def mutate_json_text(data: bytes, random: Random, *, others: Sequence[bytes]) -> bytes:
    if random.random() < 0.25:
        return mutate_bytes(data, random, others=others)
    return json.dumps(mutate_json(json.loads(data), random)).encode()


def mutate_lines(data: bytes, random: Random, *, others: Sequence[bytes]) -> bytes:
    """Mutate a file of one JSON value per line."""
    if random.random() < 0.25:
        return mutate_bytes(data, random, others=others)
    lines = [line for line in data.split(b"\n") if line]
    place = random.randrange(len(lines))
    lines[place] = mutate_json_text(lines[place], random, others=others)
    if random.random() < 0.2:
        random.shuffle(lines)
    return b"".join(line + b"\n" for line in lines)


def mutate_tensors(data: bytes, random: Random, *, others: Sequence[bytes]) -> bytes:
    """Mutate a safetensors file: its JSON header, or all of it."""
    if random.random() < 0.3:
        return mutate_bytes(data, random, others=others)
    (length,) = struct.unpack_from("<Q", data)
    header = json.dumps(mutate_json(json.loads(data[8 : 8 + length]), random)).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def mutate_message(data: bytes, random: Random, *, others: Sequence[bytes]) -> bytes:
    """Mutate a message: a JSON header, then safetensors."""
    kind = random.random()
    if kind < 0.2:
        return mutate_bytes(data, random, others=others)
    (length,) = struct.unpack_from("<Q", data)
    header, tensors = data[8 : 8 + length], data[8 + length :]
    if kind < 0.6:
        header = mutate_json_text(header, random, others=others)
    if kind > 0.5:
        tensors = mutate_tensors(tensors, random, others=[tensors])
    return struct.pack("<Q", len(header)) + header + tensors
