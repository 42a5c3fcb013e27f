"""A run records the CPU type and versions that trained its rounds, and warns if it resumes with others."""

import torch

from homespun.data import load_federation
from homespun.runs.open_run import open_run
from homespun.runs.settings import RunSettings
from homespun.system import machine as machine_module
from homespun.system.json_files import versions
from homespun.system.machine import machine, machine_changes

SMALL = {"length": 24, "character_dim": 8, "lstm_dim": 8, "hidden_dim": 8, "user_dim": 4}


def train(folder, rounds):
    federation = load_federation("dialects", settings={"users": 6, "examples": 10})
    settings = RunSettings(rounds=rounds, cohort=2, workers=0)
    with open_run(folder, method="furl", federation=federation, settings=settings, method_settings=SMALL) as run:
        for _ in run.rounds():
            pass
        known = [entry for entry in run.history() if entry["kind"] == "machine"]
        return [(entry["round"], entry["cpu"]) for entry in known], run.vault.identity


def test_resuming_on_another_cpu_warns_once_and_is_recorded(tmp_path, monkeypatch, capfd):
    here = machine()
    assert train(tmp_path / "run", 1)[0] == [(0, here["cpu"])]
    assert train(tmp_path / "run", 2)[0] == [(0, here["cpu"])]
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(machine_module, "machine", lambda: {**here, "cpu": "Abacus 7", "torch": "2.99"})
    assert train(tmp_path / "run", 3)[0] == [(0, here["cpu"]), (2, "Abacus 7")]
    said = capfd.readouterr().err
    assert f"cpu {here['cpu']!r} -> 'Abacus 7', torch {here['torch']!r} -> '2.99'" in said and said.count("\n") == 1
    assert "not bit-identical" in said
    train(tmp_path / "run", 3)  # finished: nothing is trained, nothing is said
    train(tmp_path / "run", 4)
    assert capfd.readouterr().err == ""


def test_the_machine_is_not_part_of_the_identity_of_a_run(tmp_path):
    _, identity = train(tmp_path / "run", 1)
    assert "cpu" not in str(identity)


def test_what_is_recorded(monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    found = machine()
    assert found["instructions"] == torch.backends.cpu.get_cpu_capability() and found["MKL_CBWR"] == "COMPATIBLE"
    assert found["cpu"] and versions().items() >= found.items()


def test_a_cpu_without_a_name_has_its_architecture(monkeypatch):
    monkeypatch.setattr(machine_module, "Path", lambda _: _Missing())
    monkeypatch.setattr(machine_module.platform, "machine", lambda: "riscv64")
    assert machine_module.cpu_name() == "riscv64"


class _Missing:
    def read_text(self, **_):
        raise FileNotFoundError


def test_a_history_without_a_machine_gives_no_changes():
    assert machine_changes([{"kind": "round", "round": 1}], {"cpu": "a"}) is None
    assert machine_changes([{"kind": "machine", "round": 0, "cpu": "a"}], {"cpu": "a"}) == []
    assert machine_changes([{"kind": "machine", "round": 0, "cpu": "a"}], {"cpu": "a", "MKL_CBWR": "AVX"}) == [
        "MKL_CBWR None -> 'AVX'"
    ]
