"""The command line in a real process: output, exit codes and files."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

HOMESPUN = [sys.executable, "-m", "homespun"]
SMALL = [
    "--set", "length=24", "--set", "character_dim=8", "--set", "lstm_dim=8", "--set", "hidden_dim=8",
    "--set", "user_dim=4",
    "--set", "workers=0", "--set", "withheld=0.2",
]  # fmt: skip
DATA = ["--data", "dialects", "--data-set", "users=10", "--data-set", "examples=10"]


def homespun(*arguments, code=0, **options):
    done = subprocess.run([*HOMESPUN, *map(str, arguments)], capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "a run"
    done = homespun("train", "furl", *DATA, *SMALL, "--rounds", 4, "--folder", folder)
    assert "furl: round 4/4, loss" in done.stdout and "report.html" in done.stdout
    return folder


def test_a_run_folder_has_the_stated_files(run):
    assert {path.name for path in run.iterdir()} >= {
        "vault.sqlite", "settings.json", "results.json", "report.html", "report.md",
    }  # fmt: skip
    results = json.loads((run / "results.json").read_text())
    assert results["schema"] == 1
    assert len(results["configurations"]["furl"]["runs"][0]["rounds"]) == 4
    assert json.loads((run / "settings.json").read_text())["method"] == "furl"


def test_training_a_finished_run_again_is_an_error(run):
    before = (run / "results.json").read_bytes()
    done = homespun("train", "furl", *DATA, *SMALL, "--rounds", 4, "--folder", run, code=2)
    assert "this run is finished (4 rounds)" in done.stderr
    assert (run / "results.json").read_bytes() == before


def test_a_rejected_command_changes_no_file(run):
    before = (run / "settings.json").read_bytes()
    homespun("train", "furl", *DATA, *SMALL, "--rounds", 4, "--set", "evaluate_users=5", "--folder", run, code=2)
    assert (run / "settings.json").read_bytes() == before


def test_training_into_another_run_shows_the_difference(run):
    done = homespun("train", "furl", *DATA, *SMALL, "--rounds", 4, "--set", "lr=0.7", "--folder", run, code=2)
    assert "different run" in done.stderr and "lr" in done.stderr and "0.7" in done.stderr


def test_json_is_one_object_on_stdout_and_progress_is_on_stderr(tmp_path):
    done = homespun("train", "furl", *DATA, *SMALL, "--rounds", 2, "--folder", tmp_path / "run", "--json")
    assert json.loads(done.stdout)["configurations"]["furl"]["summary"]["test"]["metric"] == "accuracy"
    assert "round 2/2" in done.stderr and "furl: final evaluation" in done.stderr


def test_evaluate(run):
    found = json.loads(homespun("evaluate", run, "--json").stdout)
    assert found["round"] == 4
    assert {"furl", "Majority label", "newcomers, 0 examples", "newcomers, all examples"} <= set(found["evaluations"])
    assert "worst tenth" in homespun("evaluate", run).stdout


def test_personalize_and_predict_a_new_user(run, tmp_path):
    mine = tmp_path / "mine.csv"
    labels = json.loads((run / "results.json").read_text())["data"]["labels"]
    rows = [f"ada,message number {row},{labels[row % 2]}" for row in range(10)]
    mine.write_text("who,words,answer\n" + "\n".join(rows) + "\n")
    columns = ["--user-column", "who", "--text-column", "words", "--label-column", "answer"]
    state_before = subprocess.run(["sha256sum", run / "results.json"], capture_output=True).stdout
    done = homespun("personalize", run, mine, *columns)
    assert (
        "ada: personalized by gradient steps from 10 examples; nothing was uploaded. On 2 held-out examples"
        in done.stdout
    )
    assert subprocess.run(["sha256sum", run / "results.json"], capture_output=True).stdout == state_before
    label, text = homespun("predict", run, "--user", "ada", "message number 3").stdout.strip().split("\t")
    assert label in labels and text == "message number 3"
    assert "already" in homespun("personalize", run, mine, *columns, code=2).stderr
    assert "Did you mean 'ada'?" in homespun("predict", run, "--user", "adda", "x", code=2).stderr
    assert "ada" in homespun("vault", "list", run).stdout
    exported = tmp_path / "ada.safetensors"
    homespun("vault", "export", run, "ada", "-o", exported)
    assert exported.stat().st_mode & 0o777 == 0o600 and exported.stat().st_size > 16
    homespun("vault", "forget", run, "ada")
    assert "no private parameters of user 'ada'" in homespun("vault", "forget", run, "ada", code=2).stderr


def test_personalize_uses_the_columns_of_the_run_and_leaves_out_unknown_labels(tmp_path):
    rows = [
        f"{user},message {row} of {user},{'yes' if (row + user) % 2 else 'no'}"
        for user in range(6)
        for row in range(12)
    ]
    (tmp_path / "all.csv").write_text("who,words,answer\n" + "\n".join(rows) + "\n")
    columns = ["--user-column", "who", "--text-column", "words", "--label-column", "answer"]
    homespun("train", "furl", "--data", "all.csv", *columns, *SMALL[:-2], "--rounds", 1, "-f", "run", cwd=tmp_path)
    (tmp_path / "mine.csv").write_text("who,words,answer\n[/b]ada,hello,yes\n[/b]ada,hm,maybe\n")
    done = homespun("personalize", tmp_path / "run", tmp_path / "mine.csv")  # from another folder
    assert (
        "[/b]ada: personalized by gradient steps from 1 example (1 with labels unknown to the run left out)"
        in done.stdout
    )
    (tmp_path / "known.csv").write_text("who,words,answer\n3,hello,yes\n")
    assert (
        "is a participant of this run"
        in homespun("personalize", tmp_path / "run", tmp_path / "known.csv", code=2).stderr
    )


def test_a_corpus_in_which_no_user_can_be_evaluated(tmp_path):
    (tmp_path / "one.csv").write_text(
        "user,text,label\n" + "\n".join(f"{user},hi,{user % 2}" for user in range(6)) + "\n"
    )
    done = homespun("train", "furl", "--data", tmp_path / "one.csv", *SMALL[:-2], "--rounds", 2, "-f", tmp_path / "run")
    assert "nan" not in done.stdout and (tmp_path / "run" / "report.html").exists()


def test_a_label_the_run_does_not_know(run, tmp_path):
    (tmp_path / "bad.csv").write_text("user,text,label\nada,hello,labl-1\n")
    done = homespun("personalize", run, tmp_path / "bad.csv", code=2)
    assert "the run knows no label 'labl-1'" in done.stderr


def test_report_again(run):
    (run / "report.html").unlink()
    homespun("report", run)
    assert (run / "report.html").stat().st_size > 1_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "frul"], "no method 'frul'. Did you mean 'furl'?"),
        (["train", "furl", "--set", "lrr=1"], "unknown setting 'lrr'. Did you mean 'lr'?"),
        (["train", "furl", "--set", "lr=fast"], "lr: input should be a valid number"),
        (["train", "furl", "--data-set", "usres=3"], "Did you mean 'users'?"),
        (["train", "furl", "--data", "dialect"], "Did you mean 'dialects'?"),
        (["train", "furl", "--data", "missing.csv"], "missing.csv"),
        (["train", "furl", "--data", "sotu"], "needs a label with at least two values"),
        (["train", "furl", "--rounds", "1", "--epochs", "2"], "--rounds and --epochs cannot be combined"),
        (["train", "./missing.py"], "no method file"),
        (["evaluate", "nowhere"], "no run here"),
        (["report", "nowhere"], "no results.json in this folder"),
        (["vault", "list", "nowhere"], "no run here"),
        (["bench", "w9"], "no workload 'w9'"),
        (["compare", "nowhere.toml"], "no experiment file"),
        (["train"], "Missing argument"),
        (["train", "furl", "--epochs", "0"], "epochs: input should be greater than 0"),
        (
            ["train", "furl", "--rounds", "2", "--set", "fractions=[0.8,0.1,0.2]"],
            "three shares for train, eval and test that sum to 1",
        ),
        (["compare", "."], "cannot be read as TOML"),
    ],
)
def test_wrong_input_exits_with_2_and_writes_nothing(arguments, message, tmp_path):
    done = homespun(*arguments, code=2, cwd=tmp_path)
    assert message in re.sub(r"\s+", " ", done.stderr), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    ["train", "compare", "demo", "evaluate", "personalize", "predict", "generate", "export", "report", "check", "bench",
     "settings", "data settings",
     "data show", "data check", "data voices", "vault list", "vault export", "vault forget"],
)  # fmt: skip
def test_every_help_has_an_example(command):
    assert f"Example: homespun {command}" in homespun(*command.split(), "--help").stdout


def test_a_run_resumes_after_ctrl_c(tmp_path):
    command = [
        "train",
        "furl",
        *DATA,
        *SMALL[:-4],
        "--set",
        "workers=2",
        "--rounds",
        "200",
        "--folder",
        str(tmp_path / "run"),
    ]
    process = subprocess.Popen([*HOMESPUN, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)  # fmt: skip
    assert any("round 10/200" in line for line in process.stdout)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes at once
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Run the same command again to resume" in errors and "Traceback" not in errors
    done = homespun(*command)
    assert "resuming after round" in done.stdout and "round 200/200" in done.stdout


def test_data_commands():
    assert "dialects: 1,000 users" in homespun("data", "show", "dialects").stdout
    assert json.loads(homespun("data", "check", "dialects", "--data-set", "users=20", "--json").stdout)["users"] == 20


def test_control_characters_in_names_and_texts_are_escaped(tmp_path):
    posts = tmp_path / "posts.csv"
    posts.write_text("user,text\nann\x1b[2J,caf\u00e9 \x1b]0;mine\x07\nann\x1b[2J,tea\n", encoding="utf-8")
    shown = homespun("data", "show", posts, env={**os.environ, "PYTHONIOENCODING": "ascii"}).stdout
    assert "\x1b" not in shown and r"ann\x1b[2J (2 examples)" in shown and r"caf\xe9 \x1b]0;mine\x07" in shown


def test_compare_trains_once_and_a_second_call_only_reads_the_results(tmp_path):
    experiment = tmp_path / "small.toml"
    experiment.write_text("""
        seeds = [0, 1]
        [data]
        source = "dialects"
        settings = { users = 10, examples = 10 }
        [settings]
        rounds = 2
        workers = 0
        length = 24
        character_dim = 8
        lstm_dim = 8
        hidden_dim = 8
        [configurations.global-fl]
        title = "Global FL"
        method = "fedavg"
        [configurations.personalized-fl]
        method = "furl"
        [configurations.personalized-server]
        method = "central"
    """)
    first = homespun("compare", experiment, "--folder", tmp_path / "out", "--json")
    found = json.loads(first.stdout)
    assert found["configurations"]["global-fl"]["summary"]["test"]["value"]["std"] is not None
    assert {(one["left"], one["right"]) for one in found["similarity"]} == {("personalized-fl", "personalized-server")}
    begun = time.monotonic()
    second = homespun("compare", experiment, "--folder", tmp_path / "out", "--json")
    assert json.loads(second.stdout) == found and "round" not in second.stderr
    assert time.monotonic() - begun < 60
    assert Path(tmp_path / "out" / "runs" / "global-fl" / "seed-1" / "vault.sqlite").exists()
    experiment.write_text(experiment.read_text().replace("rounds = 2", "rounds = 3"))
    third = json.loads(homespun("compare", experiment, "--folder", tmp_path / "out", "--json").stdout)
    assert {one["summary"]["rounds"] for one in third["configurations"].values()} == {3}
    experiment.write_text(experiment.read_text() + "settings = { rat = 1 }\n")
    done = homespun("compare", experiment, "--folder", tmp_path / "new", code=2)
    assert "unknown setting 'rat'" in done.stderr and not (tmp_path / "new").exists()
