"""A method that reads replies, end to end: training, reopening, new users, comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from reply_length import encode
from typer.testing import CliRunner, Result

from homespun.cli import app
from homespun.core.errors import DataError, InputError, RunError, SettingsError
from homespun.data import Columns
from homespun.experiments.experiment import read_experiment, train_all
from homespun.personalization.new_user import personalize
from homespun.runs.evaluate import evaluate
from homespun.runs.training import load, reopen, train
from homespun.testing.contract import check_method

METHOD = str(Path(__file__).parent / "reply_length.py")
SPEAKERS = ("ann", "bob", "cy", "dee")


def dialogue(speakers: tuple[str, ...] = SPEAKERS, scenes: int = 20) -> list[dict[str, Any]]:
    """In each scene all speakers say something in turn; the host opens the scene and never replies. Counted with the
    full stop, the host says 4 words, the first speaker 3, the next one 4 and so on."""
    return [
        {"user": user, "text": "so " * words + "yes.", "act": scene // 5, "place": scene % 5}
        for scene in range(scenes)
        for user, words in [("host", 2), *((user, 1 + speakers.index(user)) for user in speakers)]
    ]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "talk.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in dialogue()), encoding="utf-8")
    return path


COLUMNS = Columns(conversation="act,place")


def test_examples_have_prompts() -> None:
    federation = load(dialogue(), columns=COLUMNS)
    with train(METHOD, federation, rounds=1, workers=0) as run:
        assert list(run.federation.users) == list(SPEAKERS)  # the host never replies
        assert run.method.task.population == 4
        bob = run.federation.examples(1)
        assert set(bob.prompts or ()) == {"so yes."} and set(bob.texts) == {"so so yes."}
        assert encode(bob)["prompt"].tolist() == [3.0] * 20 and encode(bob)["reply"].tolist() == [4.0] * 20


def test_both_engines_learn_the_same() -> None:
    def trained(**settings: Any) -> Any:
        with train(METHOD, load(dialogue(), columns=COLUMNS), rounds=5, cohort="all", **settings) as run:
            private = run.clients.stored_private(list(run.federation.users))
            return run.state.federated["slope"], torch.cat([private[user]["offset"] for user in SPEAKERS]), run

    slow, fast = trained(engine="loop"), trained(workers=0)
    torch.testing.assert_close(fast[0], slow[0])
    torch.testing.assert_close(fast[1], slow[1])
    assert float(fast[0]) > 0.5 and fast[1][0] < 0 < min(fast[1][1:])  # only the first one says less than was said


def test_a_run_is_reopened_by_its_folder(corpus: Path, tmp_path: Path) -> None:
    federation = load(corpus, columns=COLUMNS, max_words=5)
    with train(METHOD, federation, rounds=2, workers=0, folder=tmp_path / "run") as run:
        before = evaluate(run).headline
        assert list(run.federation.users) == ["ann", "bob", "cy"]  # dee says six words
    saved = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert saved["data"]["columns"] == {"conversation": "act,place"} and saved["data"]["settings"] == {"max_words": 5}
    with reopen(tmp_path / "run", trust=[METHOD]) as again:
        assert evaluate(again).headline == before
    with train(METHOD, federation, rounds=3, workers=0, folder=tmp_path / "run") as more:
        assert more.state.round == 3
    corpus.write_text(corpus.read_text().replace('"place": 4', '"place": 3'))
    with pytest.raises(RunError, match="has changed since the run was trained on it"):
        reopen(tmp_path / "run", trust=[METHOD])


def test_conversations_in_memory_are_part_of_a_run(tmp_path: Path) -> None:
    rows = [{**row, "scene": 5 * row["act"] + row["place"]} for row in dialogue()]
    with train(METHOD, load(rows), rounds=1, workers=0, folder=tmp_path / "run"):
        pass
    other = [{**row, "scene": row["place"]} for row in rows]
    assert load(other).fingerprint == load(rows).fingerprint
    with reopen(tmp_path / "run", federation=load(rows), trust=[METHOD]) as run:
        assert run.state.round == 1
    with pytest.raises(RunError, match="has changed since the run was trained on it"):
        reopen(tmp_path / "run", federation=load(other), trust=[METHOD])


def test_corpora_without_replies_are_rejected() -> None:
    with pytest.raises(DataError, match=r"no conversations.*--conversation-column.*'act', 'place'"):
        train(METHOD, load(dialogue()), rounds=1, workers=0)
    with pytest.raises(SettingsError, match=r"this corpus has images\. Try a file with conversations"):
        train(METHOD, load("digits", users=10), rounds=1, workers=0)


def cli(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_new_user_is_personalized_from_a_file(corpus: Path, tmp_path: Path) -> None:
    options = ["--conversation-column", "act,place"]
    trained = cli("train", METHOD, "--data", str(corpus), *options, "--rounds", "2", "--folder", str(tmp_path / "run"))
    assert trained.exit_code == 0, trained.exception
    mine = tmp_path / "mine.jsonl"
    mine.write_text("".join(json.dumps(row) + "\n" for row in dialogue(("eve",), scenes=10)), encoding="utf-8")
    found = cli("personalize", str(tmp_path / "run"), str(mine), "--user", "eve", "--json", "--trust", METHOD)
    assert found.exit_code == 0, found.exception
    summary = json.loads(found.stdout)
    assert summary["examples"] == 10 and "held-out examples squared error went from" in summary["message"]
    with reopen(tmp_path / "run", trust=[METHOD]) as run:
        assert run.clients.stored_private(["eve"]).keys() == {"eve"}
    (tmp_path / "mine.txt").write_text("Hello.")
    plain = cli("personalize", str(tmp_path / "run"), str(tmp_path / "mine.txt"), "--user", "fay", "--trust", METHOD)
    assert isinstance(plain.exception, DataError) and "learns from replies" in str(plain.exception)


def test_a_new_user_is_personalized_in_python() -> None:
    with train(METHOD, load(dialogue(), columns=COLUMNS), rounds=1, workers=0) as run:
        eve = personalize(run, "eve", ["yes so yes."] * 5, prompts=["yes."] * 5)
        assert float(eve.private["offset"]) > 0
        with pytest.raises(InputError, match="needs 5 of them for 5 texts"):
            personalize(run, "eve", ["yes so yes."] * 5)
    with train("fedavg", load("dialects", users=3), rounds=1, workers=0) as run, pytest.raises(InputError):
        personalize(run, "eve", ["a"], ["label-0"], prompts=["b"])


def test_a_comparison_trains_it_in_folds(corpus: Path, tmp_path: Path) -> None:
    # 5 users in the file, 4 of whom reply: with withheld = 0.25 there are 5 folds of the file, but 4 of the replies
    text = f"""
folds = 4
data.source = {str(corpus)!r}
data.columns.conversation = "act,place"
settings = {{ rounds = 1, withheld = 0.25, workers = 0 }}
configurations.length.method = {METHOD!r}
"""
    (tmp_path / "folds.toml").write_text(text)
    experiment = read_experiment(tmp_path / "folds.toml")
    (tmp_path / "five.toml").write_text(text.replace("folds = 4", "folds = 5"))
    with pytest.raises(SettingsError, match="Withholding 1 of 4 users makes 4"):
        train_all(read_experiment(tmp_path / "five.toml"), tmp_path / "five", lambda run, title: None)  # type: ignore
    assert experiment.draws[-1].fold == 3


def test_a_run_splits_by_conversation(tmp_path: Path) -> None:
    """The method's default: no conversation of the test part is in the training part of any user."""
    federation = load(dialogue(scenes=40), columns=COLUMNS)
    with train(METHOD, federation, rounds=1, workers=0, folder=tmp_path / "run") as run:
        assert run.settings.split_by == "conversation"
        assert run.vault.identity["run"]["split_by"] == "conversation"
        parts = [run.clients.split(run.federation, user) for user in range(4)]
        test, training = ({c for one in parts for c in getattr(one, name).conversations} for name in ("test", "train"))
        assert not test & training and len(test) == 4 and len(training) == 32
        population = run.clients.population
        assert {c for user in range(4) for c in population.examples(user).conversations} == training  # type: ignore
    with pytest.raises(RunError, match='split_by: "conversation" in the folder, nothing asked for'):
        train(METHOD, federation, rounds=1, workers=0, folder=tmp_path / "run", split_by="example")


def test_methods_that_read_texts_may_be_split_by_conversation() -> None:
    rows = [{**row, "label": row["user"]} for row in dialogue()]
    with train("fedavg", load(rows, columns=COLUMNS), rounds=1, workers=0, split_by="conversation") as run:
        assert len(run.federation.users) == 5 and "split_by" in run.settings.identity()
    with train("fedavg", load(rows, columns=COLUMNS), rounds=1, workers=0) as run:
        assert "split_by" not in run.settings.identity()  # as in runs before there was this setting
    with pytest.raises(DataError, match=r"split_by = conversation.*--conversation-column"):
        train("fedavg", load(rows), rounds=1, workers=0, split_by="conversation")


def test_users_without_training_examples_take_part() -> None:
    rows = [
        {"user": user, "text": "so yes.", "scene": scene} for scene in range(20) for user in ("host", f"guest {scene}")
    ]
    with train(METHOD, load(rows), rounds=20, cohort=1, workers=0) as run:
        counts = sorted(entry["examples"] for entry in run.history() if entry["kind"] == "round")
        assert counts == [0] * 4 + [1] * 16 and float(run.state.federated["slope"]) > 0


@pytest.mark.system
def test_it_keeps_its_contract() -> None:
    assert {"engines", "resume", "newcomer"} <= set(check_method(METHOD).passed)
