"""A run that fills the disk keeps its last checkpoint and resumes when there is space again."""

import pytest

from homespun.core.errors import VaultError
from homespun.data import load_federation
from homespun.methods.furl import SMALL
from homespun.runs.open_run import open_run
from homespun.runs.settings import RunSettings
from homespun.runs.vault import Vault


def opened(folder, rounds=12):
    return open_run(
        folder,
        method="furl",
        federation=load_federation("dialects", settings={"users": 300, "examples": 4}),
        settings=RunSettings(rounds=rounds, cohort=25, workers=0),
        method_settings={**SMALL, "user_dim": 64},
    )


def test_a_full_disk(tmp_path, monkeypatch):
    real = Vault.open
    monkeypatch.setattr(Vault, "open", lambda *args, **options: real(*args, **options, max_pages=40))
    with opened(tmp_path / "run") as run, pytest.raises(VaultError, match="full"):
        for record in run.rounds():
            last = record.round
    monkeypatch.undo()
    with opened(tmp_path / "run") as run:
        assert run.state.round == last >= 1
        list(run.rounds())
        state = run.vault.state
    with opened(tmp_path / "other") as whole:
        list(whole.rounds())
        assert whole.vault.state == state
