"""What a vault gives back is a method's private parameters by name, shape and type, or it is refused."""

import pytest
import torch

from homespun import load, train
from homespun.core.errors import VaultError
from homespun.methods.furl import SMALL
from homespun.personalization.user import load_user_model

ROW = "user.embedding"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows") / "run"
    with train("furl", load("dialects", users=4, examples=10), folder=folder, rounds=1, workers=0, **SMALL) as run:
        yield run


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"user.other": torch.zeros(6)}, r"missing \['user.embedding'\], unexpected \['user.other'\]"),
        ({}, r"missing \['user.embedding'\]"),
        ({ROW: torch.zeros(6), "output.bias": torch.zeros(3)}, r"unexpected \['output.bias'\]"),
        ({ROW: torch.zeros(5)}, r"expected shape \(6,\), got \(5,\)"),
        ({ROW: torch.zeros(6, dtype=torch.float64)}, r"expected torch.float32, got torch.float64"),
    ],
)
def test_a_row_of_another_method_is_rejected(run, row, said):
    user = run.federation.users[0]
    good = run.vault.private(user)
    run.vault.stage({user: row})  # commits as a forger's own program would, with the right checksum
    run.vault.commit(round=1)
    try:
        for use in (
            lambda: run.clients.private([user], run.state.broadcast()),
            lambda: run.step(),
            lambda: load_user_model(run, user),
        ):
            with pytest.raises(VaultError, match=rf"the entry of user '{user}' does not fit this run: .*{said}"):
                use()
    finally:
        run.vault.stage({user: good})
        run.vault.commit(round=1)
    assert torch.equal(run.clients.private([user], run.state.broadcast())[user][ROW], good[ROW])


def test_all_wrong_rows_are_reported_at_once(run):
    users = run.federation.users[:2]
    good = run.vault.private_many(users)
    run.vault.stage({user: {"x": torch.zeros(1)} for user in users})
    try:
        with pytest.raises(VaultError, match=rf"(?s)2 faults:.*'{users[0]}' does not fit.*'{users[1]}' does not fit"):
            run.clients.private(users, run.state.broadcast())
    finally:
        run.vault.stage(good)
