"""A symbolic link in place of the ledger is not followed."""

import pytest

from homespun.core.errors import DiskError
from homespun.privacy.accounting import Release
from homespun.privacy.ledger import Ledger


def test_a_symbolic_link_is_rejected(tmp_path):
    victim = tmp_path / "key"
    victim.write_bytes(b"a secret without a newline")  # what an unfinished line would look like
    ledger = Ledger(tmp_path / "votes.csv.privacy.jsonl", "votes")
    ledger.path.symlink_to(victim)
    with pytest.raises(DiskError, match=r"votes\.csv\.privacy\.jsonl: a symbolic link, .* Remove the link"):
        ledger.debit(Release(0.1, 2.0), run="a")
    assert victim.read_bytes() == b"a secret without a newline"
