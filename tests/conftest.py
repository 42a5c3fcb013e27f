"""Tests share the machine: one thread each, and never the outside world's run folders."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "homespun's own"))
