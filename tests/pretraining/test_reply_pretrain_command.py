"""`homespun pretrain seq2seq` as a process: a kill, its files, its card, its exit codes."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from safetensors import safe_open
from small_dialogue import conversations, write_dialogue
from typer.testing import CliRunner

from homespun.cli import app, main
from homespun.core.errors import DataError, RunError, SettingsError
from homespun.models.reply_model import load_reply_model

pytestmark = pytest.mark.system

HOMESPUN = [sys.executable, "-m", "homespun", "pretrain", "seq2seq"]
SIZES = [
    "--set", "sizes.cells=8", "--set", "sizes.word_dim=8", "--set", "sizes.layers=1", "--set", "sizes.length=6",
    "--set", "words=20", "--set", "batch=8", "--set", "dev_share=0.1", "--set", "checkpoint_minutes=0.0",
]  # fmt: skip
SMALL = ["--data", "talk.jsonl", *SIZES]
EPOCHS = ["--epochs", "12", "--licence", "CC BY 4.0"]  # of 7 steps each


CORE = max(os.sched_getaffinity(0))


def one_core():
    os.sched_setaffinity(0, {CORE})


def start(*arguments, cwd, **pipes):
    return subprocess.Popen([*HOMESPUN, *map(str, arguments)], cwd=cwd, preexec_fn=one_core, text=True, **pipes)


def in_process(*arguments):
    return CliRunner().invoke(app, ["pretrain", *map(str, arguments)])


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {0})
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("replies")
    data = ["--data", write_dialogue(place / "talk.jsonl", conversations(20))]
    done = in_process("seq2seq", *data, *SIZES, *EPOCHS, "--folder", place / "whole")
    assert done.exit_code == 0, done.exception
    assert "54 pairs to train on, 6 held out, of 20 conversations; 17 words, 0.0% of all words unknown" in done.stdout
    assert "epoch 12: held-out perplexity" in done.stdout and "best epoch " in done.stdout
    return place


def wait_for_steps(folder, *, more_than):
    """Until the checkpoint in the folder is after more than these steps; returns its steps."""
    until, path = time.monotonic() + 60, folder / "checkpoint.safetensors"
    while time.monotonic() < until:
        if path.exists():
            # safe_open reads the size and the content separately, and the file may be replaced in between
            with suppress(RuntimeError), safe_open(path, framework="pt") as file:
                if (steps := int(file.metadata()["step"])) > more_than:
                    return steps
        time.sleep(0.002)
    raise AssertionError("no checkpoint")


def test_a_run_killed_and_interrupted_resumes_and_finishes_bit_identical(folder, monkeypatch):
    killed = start(*SMALL, *EPOCHS, "--folder", "stopped", cwd=folder, stdout=subprocess.DEVNULL)
    steps = wait_for_steps(folder / "stopped", more_than=0)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    interrupted = start(*SMALL, *EPOCHS, "--folder", "stopped", cwd=folder, **pipes)
    wait_for_steps(folder / "stopped", more_than=steps)
    interrupted.send_signal(signal.SIGINT)
    printed, errors = interrupted.communicate(timeout=60)
    assert interrupted.returncode == 130 and "stopped: resuming after step" in printed
    assert errors.strip() == "Interrupted. Committed work is kept. Run the same command again to resume."
    assert not (folder / "stopped" / "results.json").exists()
    monkeypatch.chdir(folder)
    done = in_process("seq2seq", *SMALL, *EPOCHS, "--folder", "stopped")
    assert done.exit_code == 0 and "stopped: resuming after step" in done.stdout
    whole, stopped = (folder / name / "model" / "model.safetensors" for name in ("whole", "stopped"))
    assert whole.read_bytes() == stopped.read_bytes()


def test_the_model_and_its_card(folder):
    run = folder / "whole"
    results, card = json.loads((run / "results.json").read_text()), (run / "model" / "README.md").read_text()
    best = results["best"]
    assert best["perplexity"] == min(one["perplexity"] for one in results["epochs"]) and len(results["epochs"]) == 12
    for stated in (
        "- Data: `talk.jsonl`, 54 pairs of 20 conversations to train on, 6 held out. Licence: CC BY 4.0.",
        "1 LSTM layer of 8 cells",
        "17 words, texts cut at 6 words",
        "- Training: less than a minute, Adam with learning rate 0.003, batches of 8, dropout 0.2.",
        f"Held-out perplexity **{best['perplexity']:.1f}**, BLEU **{100 * best['bleu']:.2f}**",
        f"after epoch {best['epoch']}, chosen by perplexity.",
        "homespun pretrain seq2seq --data talk.jsonl --licence 'CC BY 4.0' --set epochs=12 --set batch=8 --set",
        "--set sizes.cells=8",
    ):
        assert stated in card
    assert card.count("\n| ") == 13  # the heading, and one line for each epoch
    model = load_reply_model(str(run / "model"))
    assert (model.direction, model.sizes.cells, model.facts["licence"]) == ("replies", 8, "CC BY 4.0")
    assert model.facts["data_fingerprint"] == json.loads((run / "settings.json").read_text())["fingerprint"]


def test_its_command_makes_the_same_run(folder, tmp_path, monkeypatch):
    """The card's command, in a folder with the data, finds the run that it made."""
    command = json.loads((folder / "whole" / "results.json").read_text())["command"]
    monkeypatch.chdir(folder)
    made = in_process(*shlex.split(command)[2:], "--folder", tmp_path)
    assert made.exit_code == 0, made.exception
    request, again = (json.loads((p / "settings.json").read_text())["request"] for p in (folder / "whole", tmp_path))
    assert request == again


def test_a_finished_run_and_other_settings_are_refused(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    refused = in_process("seq2seq", *SMALL, *EPOCHS, "--folder", "whole")
    assert isinstance(refused.exception, RunError) and "this run is finished; its model is in" in str(refused.exception)
    (tmp_path / "settings.json").write_bytes((folder / "whole" / "settings.json").read_bytes())
    for other in (["--epochs", "5"], ["--inverse"], ["--set", "seed=1"], ["--data-set", "max_words=3"]):
        found = in_process("seq2seq", *SMALL, *EPOCHS, *other, "--folder", tmp_path)
        assert isinstance(found.exception, RunError), other
        assert "holds a run with other settings or data" in str(found.exception)


def test_an_inverse_model_has_the_same_vocabulary(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    made = in_process("seq2seq", *SMALL, "--epochs", 1, "--inverse", "--folder", tmp_path / "back", "--json")
    assert made.exit_code == 0, made.exception
    results = json.loads(made.stdout)
    assert results["direction"] == "prompts" and results["command"].startswith("homespun pretrain seq2seq --data talk")
    inverse = load_reply_model(str(tmp_path / "back" / "model"))
    assert inverse.vocabulary == load_reply_model(str(folder / "whole" / "model")).vocabulary
    card = (tmp_path / "back" / "model" / "README.md").read_text()
    assert "# Inverse reply model" in card and "Licence: not stated" in card and "--inverse" in card


def test_data_that_cannot_be_used_write_nothing(folder, monkeypatch):
    write_dialogue(Path("plain.jsonl"), [{"user": "a", "text": "hello"}, {"user": "b", "text": "you"}])
    found = in_process("seq2seq", "--data", "plain.jsonl", *SIZES, "--folder", "new")
    assert isinstance(found.exception, DataError) and "--conversation-column" in str(found.exception)
    write_dialogue(Path("one.jsonl"), conversations(1))
    found = in_process("seq2seq", "--data", "one.jsonl", *SIZES, "--folder", "new")
    assert isinstance(found.exception, DataError) and "one conversation only" in str(found.exception)
    found = in_process("seq2seq", "--data", "one.jsonl", "--set", "cells=8", "--folder", "new")
    assert isinstance(found.exception, SettingsError) and "cells" in str(found.exception)
    monkeypatch.setattr(sys, "argv", ["homespun", "pretrain", "seq2seq", "--data", "nowhere.jsonl", "--folder", "new"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert not Path("new").exists()


def test_pretrain_alone_lists_both_models():
    listed = in_process()
    assert "tiny" in listed.output and "seq2seq" in listed.output
