"""The commands of language methods in a real process."""

import json
import subprocess
import sys

import pytest
from spoken_corpus import MINE, train_small

pytestmark = pytest.mark.system


def homespun(*arguments, code=0):
    command = [sys.executable, "-m", "homespun", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spoken")
    train_small(folder).close()
    return folder / "run"


def test_generate(run):
    voice = ["--user", "kennedy", "--context", "written"]
    first = homespun("generate", run, *voice, "We must", "--seed", 3, "--top-p", 0.9, "--json").stdout
    found = json.loads(first)
    assert (found["user"], found["context"], found["prompt"]) == ("John F. Kennedy", "written", "We must")
    assert found["texts"][0].startswith("We must")
    assert homespun("generate", run, *voice, "We must", "--seed", 3, "--top-p", 0.9, "--json").stdout == first
    assert homespun("generate", run, "--context", "spoken", "We must", "--greedy").stdout.startswith("We must")
    done = homespun("generate", run, "--user", "bush", "--context", "spoken", "We must", code=2)
    assert "UnknownNameError" in done.stderr and "'George W. Bush', 'George H. W. Bush'" in done.stderr
    assert "Traceback" not in done.stderr


def test_personalize_then_generate_then_export(run, tmp_path):
    (tmp_path / "mine.txt").write_text(MINE * 3)
    done = homespun("personalize", run, tmp_path / "mine.txt", "--user", "ada", "--context", "written", "--steps", 5)
    assert "ada: personalized by gradient steps from 9 examples; nothing was uploaded." in done.stdout
    assert "On 1 held-out examples perplexity went from" in done.stdout
    refused = ["--user", "eve", "--context", "written", "--generated"]
    assert "such as fedperc_generated" in homespun("personalize", run, tmp_path / "mine.txt", *refused, code=2).stderr
    assert homespun("generate", run, "--user", "ada", "--context", "spoken", "We").stdout.startswith("We")
    folder = ["--context", "written", "--output", tmp_path / "ada"]
    assert homespun("export", run, "--user", "ada", *folder).stdout == f"{tmp_path / 'ada'}: ada, written\n"
    assert "already" in homespun("export", run, "--user", "ada", *folder, code=2).stderr
    done = homespun("predict", run, "--user", "ada", "some text", code=2)
    assert "fedperc does not predict labels. To continue a text, use `homespun generate`." in done.stderr
