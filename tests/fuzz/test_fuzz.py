"""Decoding any message or file succeeds or raises a HomespunError.

Small seeds are mutated in a fixed order for `HOMESPUN_FUZZ_S` seconds in total, by default half a minute. A failure
names its case, from which `Target.case` reproduces the bytes. Failures that were found have a test in `test_found.py`
or in `tests/core/test_malformed_messages.py`.
"""

import os
import time

import pytest
from targets import file_targets, reply_targets, wire_targets

from homespun.core.errors import HomespunError

pytestmark = pytest.mark.system

BUDGET_S = float(os.environ.get("HOMESPUN_FUZZ_S", "30"))
SHARES = {"wire": 0.15, "replies": 0.15, "files": 0.7}  # making a report takes as long as decoding 500 messages
SLOWEST_S = 30.0  # limit for one case


def fuzz(name, target, *, budget_s):
    """Decode the seeds, then mutated cases until the time is up; return the number of cases."""
    for seed in target.seeds:
        target.decode(seed)
    ends, number = time.monotonic() + budget_s, 0
    while time.monotonic() < ends:
        data, started = target.case(name, number), time.monotonic()
        try:
            target.decode(data)
        except HomespunError:
            pass
        except Exception as error:
            raise AssertionError(f"{name}, case {number}: {type(error).__name__}: {error}") from error
        assert time.monotonic() - started < SLOWEST_S, f"{name}, case {number}: takes too long"
        number += 1
    return number


@pytest.mark.parametrize("kind", SHARES)
def test_decoders_succeed_or_raise_a_typed_error(kind, tmp_path):
    targets = {"wire": wire_targets, "replies": reply_targets, "files": lambda: file_targets(tmp_path)}[kind]()
    budget_s = SHARES[kind] * BUDGET_S / len(targets)
    assert all(fuzz(name, target, budget_s=budget_s) for name, target in targets.items())


def test_cases_are_reproducible():
    one, other = (wire_targets()["update"] for _ in range(2))
    cases = range(50)
    assert [one.case("update", case) for case in cases] == [other.case("update", case) for case in cases]
