"""Tests share the machine: one thread each, and never the outside world's run folders or homespun's own files."""

import os
import tempfile

import pytest
import torch

torch.set_num_threads(1)
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="homespun-tests-")  # of fixtures that several tests share


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.MonkeyPatch.context() as own:  # which a test that undoes its patches leaves alone
        own.setenv("XDG_DATA_HOME", str(tmp_path / ".own"))
        yield
