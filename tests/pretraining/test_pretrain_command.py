"""`homespun pretrain tiny` as a process: a kill, its files, its card, its exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_text import prose

from homespun.cli import main
from homespun.core.errors import RunError
from homespun.pretraining.run import PretrainRequest, open_run

pytestmark = pytest.mark.system

HOMESPUN = [sys.executable, "-m", "homespun", "pretrain", "tiny"]
SMALL = [
    "--only-text", "--text", "mine.txt", "--steps", "300",
    "--set", "network.layers=1", "--set", "network.width=16", "--set", "network.heads=2",
    "--set", "corpus.vocabulary=300", "--set", "corpus.sequence=16", "--set", "corpus.evaluated_sentences=20",
    "--set", "corpus.held_out=0.1", "--set", "batch=4", "--set", "checkpoint_steps=7",
]  # fmt: skip


def pretrain(*arguments, code=0, cwd):
    done = subprocess.run([*HOMESPUN, *map(str, arguments)], capture_output=True, text=True, timeout=120, cwd=cwd)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("pretraining")
    (place / "mine.txt").write_text("\n\n".join(prose(80)))
    done = pretrain(*SMALL, "--folder", "whole", cwd=place)
    assert "tiny: step 300/300, loss" in done.stdout
    return place


def test_a_killed_run_resumes_and_finishes_bit_identical(folder):
    killed = subprocess.Popen([*HOMESPUN, *SMALL, "--folder", "killed"], cwd=folder, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (folder / "killed" / "checkpoint.safetensors").exists() and time.monotonic() < until:
        time.sleep(0.002)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not (folder / "killed" / "results.json").exists()
    done = pretrain(*SMALL, "--folder", "killed", cwd=folder)
    assert "killed: resuming after step" in done.stdout
    whole, killed = (folder / name / "model" / "model.safetensors" for name in ("whole", "killed"))
    assert whole.read_bytes() == killed.read_bytes()


def test_the_run_holds_its_settings_its_figures_and_a_card_with_them(folder):
    run = folder / "whole"
    settings = json.loads((run / "settings.json").read_text())
    assert settings["steps"] == 300
    assert settings["request"]["settings"]["network"]["width"] == 16
    results, card = json.loads((run / "results.json").read_text()), (run / "model" / "README.md").read_text()
    for figure in (
        f"{results['tokens']:,} tokens in 300 steps",
        f"**{results['held_out']['all']['perplexity']:.1f}**",
        f"**{results['evaluated']['perplexity']:.1f}**",
        "**0 (0.000%)** share 13 words",
        "| `mine.txt` | given as a file |",
        "homespun pretrain tiny --only-text --text mine.txt --steps 300",
    ):
        assert figure in card
    assert results["held_out"]["all"]["perplexity"] < 100 < results["evaluated"]["perplexity"]


def test_a_finished_run_is_left_alone_and_other_settings_are_refused(folder, tmp_path):
    def again(place, **changes):
        recorded = json.loads((folder / "whole" / "settings.json").read_text())["request"]
        request = PretrainRequest.model_validate({**recorded, "settings": {**recorded["settings"], **changes}})
        open_run(place, request, cache=tmp_path, say=print)

    with pytest.raises(RunError, match="this run is finished"):
        again(folder / "whole")
    (tmp_path / "settings.json").write_bytes((folder / "whole" / "settings.json").read_bytes())
    with pytest.raises(RunError, match="holds a run with other settings or texts"):
        again(tmp_path, seed=1)


def test_a_missing_text_file_ends_with_2_and_writes_nothing(folder, monkeypatch, capsys):
    arguments = ["homespun", "pretrain", "tiny", "--only-text", "--text", "nowhere.txt", "--folder", "new"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "nowhere.txt: cannot be read" in capsys.readouterr().err
    assert not Path("new").exists()


def test_ctrl_c_exits_with_130_and_the_run_can_be_resumed(folder):
    started = subprocess.Popen(
        [*HOMESPUN, *SMALL, "--folder", "stopped"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    until = time.monotonic() + 60
    while not (folder / "stopped" / "checkpoint.safetensors").exists() and time.monotonic() < until:
        time.sleep(0.002)
    started.send_signal(signal.SIGINT)
    _, printed = started.communicate(timeout=60)
    assert started.returncode == 130
    assert b"Run the same command again to resume" in printed
    assert not (folder / "stopped" / "results.json").exists()
