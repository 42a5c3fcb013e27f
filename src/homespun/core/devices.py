"""The devices that torch can use on this machine, by the names that the setting `device` accepts."""

from __future__ import annotations

import torch

from homespun.core.errors import SettingsError

CPU = "cpu"


def available_devices() -> tuple[str, ...]:
    found = [CPU]
    if torch.cuda.is_available():
        found += ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        found.append("mps")
    return tuple(found)


def require_device(name: str) -> str:
    """Return `name` if torch can use this device, otherwise raise SettingsError."""
    available = available_devices()
    if name not in available:
        raise SettingsError(f"device: torch has no {name!r} on this machine. It has: {', '.join(available)}.")
    return name
