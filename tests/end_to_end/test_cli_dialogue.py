"""The commands of dialogue methods: trained and talked to in real processes, the rest in this one."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from small_dialogue import SPEAKERS, conversations, write_dialogue, write_reply_model
from typer.testing import CliRunner

from homespun.cli import app, console
from homespun.core.errors import InputError, RunError, SettingsError, UnknownNameError
from homespun.models.reply_decoder import ReplyDecoder
from homespun.models.reply_model import load_inverse, load_reply_model
from homespun.personalization.replies import find_replier
from homespun.personalization.reranking import Reranker, keep_reranker
from homespun.runs.training import reopen
from homespun.system.terminal import Terminal

pytestmark = pytest.mark.system

SMALL = ["--set", "persona_dim=3", "--set", "batch=8", "--set", "lr=0.01", "--set", "workers=0", "--rounds", 2]
PROMPT = "is the sea blue?"


def start(*arguments, **options):
    command = [sys.executable, "-m", "homespun", *map(str, arguments)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, text=True, **pipes, **options)


def homespun(*arguments, error=None, typed=None):
    """The command in this process."""
    done = CliRunner().invoke(app, list(map(str, arguments)), input=typed)
    if error is None:
        assert done.exit_code == 0, done.output + repr(done.exception)
        return done
    assert isinstance(done.exception, error), repr(done.exception)
    return str(done.exception)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("talk")
    write_dialogue(place / "talk.jsonl", conversations(20))
    write_reply_model(place / "base", scale=2.0)
    write_reply_model(place / "inverse", scale=2.0, direction="prompts", seed=5)
    started = start("train", "fednlg", "--data", "talk.jsonl", "--base", "base", *SMALL, "--folder", "run", cwd=place)
    printed, errors = started.communicate(timeout=120)
    assert started.returncode == 0, printed + errors
    assert "Control: base model" in printed and "Report: run/report.html" in printed
    return place


@pytest.fixture
def run(folder):
    return folder / "run"


def test_training_writes_results_and_a_report(folder, run):
    results = json.loads((run / "results.json").read_text())
    settings = json.loads((run / "settings.json").read_text())
    assert settings["method_settings"]["base_model"] == str(folder / "base")  # absolute, for other working directories
    assert settings["run"]["split_by"] == "conversation"
    (one,) = results["configurations"]["fednlg"]["runs"]
    assert one["test"]["metric"] == "perplexity" and len(one["rounds"]) == 2
    (controls,) = results["controls"]["runs"]
    assert controls["untouched"]["tokens"] == one["test"]["tokens"]
    report, text = (run / "report.html").read_text(), (run / "report.md").read_text()
    assert "<html" in report and "fednlg" in report and "Base model" in text
    (run / "report.html").unlink()
    assert "report.html" in homespun("report", run).stdout and (run / "report.html").exists()


def test_evaluate_scores_replies(run):
    printed = homespun("evaluate", run).stdout
    assert "replies to test prompts, in %" in printed and "right" in printed and "real replies" in printed
    scores = json.loads(homespun("evaluate", run, "--json").stdout)["replies"]["scores"]
    assert scores["real"]["bleu_1"][0] == 1.0 > scores["own"]["bleu_1"][0]


def test_the_base_model_is_a_control(folder, run):
    """The losses of the pre-trained model itself, on the replies that the method is tested on."""
    with reopen(run) as opened:
        network, total, words = load_reply_model(str(folder / "base")).build(), 0.0, 0
        for position in range(len(SPEAKERS)):
            data = opened.clients.encode(opened.federation, position, "scored")
            total, words = total + float(network(data).detach().sum()), words + int(data["length"].sum())
    found = json.loads(homespun("evaluate", run, "--json").stdout)["evaluations"]
    assert found["Base model"]["tokens"] == found["fednlg"]["tokens"] == words
    assert found["Base model"]["loss"] == pytest.approx(total / words, abs=1e-5)
    shown = homespun("evaluate", run).stdout
    assert re.search(r"fednlg +\d+\.\d+ .*3$", shown, re.M) and "Base model" in shown


def test_an_untrained_base_is_no_control(folder):
    done = homespun("train", "central_dialogue", "--data", folder / "talk.jsonl", "--base", "untrained-small", *SMALL)
    assert "Report: runs/central_dialogue-talk/report.html" in done.stdout and "base model" not in done.stdout


def test_base_is_the_setting_base_model(folder):
    data = ["--data", folder / "talk.jsonl"]
    said = homespun("train", "furl", "--base", "x", error=SettingsError)
    assert said == "--base: furl has no base model (no setting base_model). Leave it out."
    both = homespun("train", "fednlg", *data, "--base", "x", "--set", "base_model=y", error=SettingsError)
    assert "cannot be combined" in both
    assert "--base FOLDER" in homespun("train", "fednlg", *data, error=SettingsError)
    assert "no such folder" in homespun("train", "fednlg", *data, "--base", "nowhere", error=InputError)
    write_reply_model(folder / "pretrained" / "model")
    said = homespun("train", "fednlg", *data, "--base", folder / "pretrained", error=InputError)
    assert f"Did you mean '{folder / 'pretrained' / 'model'}'?" in said


def test_a_finished_run_is_left_alone_and_may_go_on(folder, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = ["train", "fednlg", "--data", folder / "talk.jsonl", "--base", folder / "base", *SMALL[:-1]]
    homespun(*asked, 1, "--folder", "own")
    assert "this run is finished (1 rounds)" in homespun(*asked, 1, "--folder", "own", error=RunError)
    assert "own: resuming after round 1" in homespun(*asked, 2, "--folder", "own").stdout
    whole, parts = (json.loads((place / "results.json").read_text()) for place in (run, tmp_path / "own"))
    scores = [one["configurations"]["fednlg"]["runs"][0]["test"]["value"] for one in (whole, parts)]
    assert scores[0] == scores[1]  # two rounds at once, or one and one


def test_reply(run):
    first = homespun("reply", run, "--as", "bo", PROMPT, "-n", 3, "--json").stdout
    found = json.loads(first)
    assert (found["prompt"], found["notes"]) == (PROMPT, [])
    (bo,) = found["replies"]
    assert (bo["user"], bo["own"], len(bo["list"])) == ("Bo Derek", True, 3)
    assert bo["list"][0].keys() == {"text", "log_prob", "words", "log_prob_of_prompt", "score", "rank"}
    assert homespun("reply", run, "--as", "Bo Derek", PROMPT, "-n", 3, "--json").stdout == first
    several = json.loads(homespun("reply", run, "--as", "cy, bo,CY", PROMPT, "--json").stdout)["replies"]
    assert [one["user"] for one in several] == ["Cy Young", "Bo Derek"]  # each once
    new = homespun("reply", run, "the sea is zebra", "-n", 1)
    assert new.stdout.startswith("a new user\nreply") and new.stderr == "note: 1 of 4 words not known to the model\n"


@pytest.mark.parametrize("width", [80, 50])
def test_long_replies_wrap(run, monkeypatch, width):
    monkeypatch.setattr(console, "out", Terminal(highlight=False, markup=False, soft_wrap=True, width=width))
    shown = homespun("reply", run, "--as", "ada,bo", PROMPT, "-n", 4, "--decode", "sample", "--temperature", 5).stdout
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if re.search(r" -\d+\.\d\d +\d+$", line)]
    continued = len(lines) - (8 + 2 * 2 + 1)  # without replies, names, headings, and a blank line
    assert len(rows) == 8 and (continued > 0 or width == 80)
    assert lines[0] == "Ada Lovelace" and "\n\nBo Derek\n" in shown


def test_a_reranked_table(folder, tmp_path):
    asked = ["train", "fednlg", "--data", folder / "talk.jsonl", "--base", folder / "base", *SMALL[:-1], 1]
    homespun(*asked, "--folder", tmp_path / "run")
    with reopen(tmp_path / "run", read_only=False) as opened:
        inverse = load_inverse(str(folder / "inverse"), find_replier(opened).base)
        keep_reranker(opened, Reranker(inverse, 0.5, 2.0))
    shown = homespun("reply", tmp_path / "run", "--as", "ada", PROMPT, "-n", 3).stdout.splitlines()
    assert max(map(len, shown)) <= 80
    *_, first, _, _ = (line for line in shown if re.search(r" \d+$", line))
    log_prob, words, of_prompt, score, _ = map(float, first.split()[-5:])
    assert all(name in " ".join(shown[:3]) for name in ("reply", "log p", "words", "p(text)", "score", "before"))
    assert score == pytest.approx(log_prob + 0.5 * of_prompt + 2 * words, abs=0.02)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (["--as", "addda", PROMPT], UnknownNameError, "Did you mean 'Ada Lovelace'?"),
        (["--as", " , ", PROMPT], InputError, "--as: no name given"),
        ([""], InputError, "it has no word"),
        (["zebra"], InputError, "knows none of its words"),
        ([PROMPT, "-n", 0], InputError, "Ask for at least one"),
        ([PROMPT, "--beam", 0], SettingsError, "beam"),
        ([PROMPT, "--decode", "best"], SettingsError, "'beam', 'greedy', 'sample' or 'diverse'"),
        ([PROMPT, "--decode", "diverse", "--beam", 7], SettingsError, "Set it to 5 or 10"),
    ],
)
def test_what_reply_refuses(run, arguments, error, said):
    assert said in homespun("reply", run, *arguments, error=error)


def test_chat_ends_at_an_empty_line_or_the_end_of_input(run):
    hello = "You are talking to Bo Derek, Cy Young. Ctrl-D ends the chat.\n"
    for typed in (f"{PROMPT}\nzebra\nthe sea\n\nnever read\n", f"{PROMPT}\nzebra\nthe sea"):
        done = homespun("chat", run, "--as", "bo,cy", typed=typed)
        assert re.fullmatch(re.escape(hello) + r"(bo> .+\ncy> .+\n){2}Bye\.\n", done.stdout), done.stdout
        assert "(prompt: the model knows none of its words (zebra)." in done.stderr
    assert homespun("chat", run, typed="").stdout == "You are talking to a new user. Ctrl-D ends the chat.\nBye.\n"
    assert "\nnew user> " in homespun("chat", run, "--decode", "greedy", typed=PROMPT).stdout
    assert homespun("chat", run, typed=b"the \xff sea\n").stdout.count("new user> ") == 1  # not UTF-8


def test_ctrl_c_stops_a_search_and_the_chat_goes_on(run, monkeypatch):
    step, calls = ReplyDecoder.step, []

    def interrupted(*given):
        calls.append(given)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return step(*given)

    monkeypatch.setattr(ReplyDecoder, "step", interrupted)
    done = homespun("chat", run, "--as", "bo", typed=f"{PROMPT}\nthe sea\n")
    assert re.search(r"\n\(stopped\)\nbo> .+\nBye\.\n$", done.stdout), done.stdout


def test_a_chat_in_a_process(run):
    chat = start("chat", run, "--as", "ada")
    assert chat.stdout.readline() == "You are talking to Ada Lovelace. Ctrl-D ends the chat.\n"
    for line in (PROMPT, "the sea"):
        chat.stdin.write(f"{line}\n")
        chat.stdin.flush()
        assert chat.stdout.readline().startswith("ada> ")  # before the next line is typed
    time.sleep(0.5)  # until it waits for the next line
    chat.send_signal(signal.SIGINT)
    assert chat.wait(timeout=60) == 0  # with the input still open
    assert chat.communicate() == ("Bye.\n", "")


def test_names_in_a_chat(folder, tmp_path):
    rows = conversations(6, speakers=("Dr. A", "Dr. B", "tv/"))
    write_dialogue(tmp_path / "doctors.jsonl", rows)
    homespun("train", "fednlg", "--data", tmp_path / "doctors.jsonl", "--base", folder / "base", *SMALL[:-1], 1)
    run = "runs/fednlg-doctors"
    both = homespun("chat", run, "--as", "dr. a,dr. b", typed="the sea").stdout  # the same first name
    assert "\nDr. A> " in both and "\nDr. B> " in both
    assert "\ntv/> " in homespun("chat", run, "--as", "tv", typed="the sea").stdout


def test_a_participant_without_private_parameters_is_warned_about(folder):
    asked = ["--data", folder / "talk.jsonl", "--base", folder / "base", *SMALL[:-1], 1, "--set", "cohort=1"]
    homespun("train", "fednlg", *asked)
    done = homespun("reply", "runs/fednlg-talk", "--as", ",".join(SPEAKERS), PROMPT, "--json")
    assert done.stderr.count("using those of a new user") == 2
    assert sorted(one["own"] for one in json.loads(done.stdout)["replies"]) == [False, False, True]


def test_personalize_then_reply(folder, tmp_path):
    asked = ["--data", folder / "talk.jsonl", "--base", folder / "base", *SMALL[:-1], 1]
    homespun("train", "fednlg", *asked, "--folder", tmp_path / "run")
    mine = write_dialogue(tmp_path / "mine.jsonl", conversations(10, speakers=("ada",)))
    done = homespun("personalize", tmp_path / "run", mine, "--user", "ada")
    assert "ada: personalized by gradient steps from 10 examples; nothing was uploaded." in done.stdout
    assert "On 2 held-out examples perplexity went from" in done.stdout
    found = json.loads(homespun("reply", tmp_path / "run", "--as", "ada", PROMPT, "--json").stdout)
    assert (found["replies"][0]["user"], found["replies"][0]["own"]) == ("ada", True)  # not Ada Lovelace
    again = homespun("personalize", tmp_path / "run", mine, "--user", "ada", error=RunError)
    assert "already has private parameters" in again
    assert "no user 'eve'" in homespun("personalize", tmp_path / "run", mine, "--user", "eve", error=UnknownNameError)
    (tmp_path / "mine.txt").write_text("Hello.")
    plain = homespun("personalize", tmp_path / "run", tmp_path / "mine.txt", "--user", "eve", error=Exception)
    assert "learns from replies" in plain
    assert "ada" in homespun("vault", "list", tmp_path / "run").stdout


def test_other_commands_name_the_one_that_fits(run):
    assert "use `homespun reply`" in homespun("generate", run, "We must", error=RunError)
    assert "use `homespun reply`" in homespun("predict", run, "--user", "Ada Lovelace", "We must", error=RunError)


def test_data_check(folder):
    method = ["--method", "fednlg", "--set", f"base_model={folder / 'base'}"]
    shown = homespun("data", "check", folder / "talk.jsonl", *method).stdout
    assert re.search(r"truncated by fednlg +\d+ % of the texts are longer than sizes.length = 6 words", shown)
    assert "base_model=FOLDER" in homespun("data", "check", folder / "talk.jsonl", *method[:2], error=SettingsError)
