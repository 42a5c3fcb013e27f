"""An exported next-word model, without the run, suggests what the run suggests."""

import contextlib
import io
import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

import homespun
from homespun.cli import app
from homespun.core.errors import InputError, RunError
from homespun.core.words import words
from homespun.methods.oov_expansion import SMALL
from homespun.personalization.next_word_export import export_next_word_model
from homespun.personalization.own_words import add_words
from homespun.personalization.suggestions import suggest

onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")

TEXTS = ("we need", "and now zorblax", "the other time we should", "i do")
VALUES = {
    **SMALL, "rounds": 4, "cohort": "all", "workers": 0, "lr": 1.0, "batch": 2, "server": "fedavg", "server_lr": 1.0,
    "adapters": ((4, 6),), "validation_share": 0.3,
}  # fmt: skip


def rows_of(user, own):
    return [{"user": user, "text": f"we need {own} and now we should do more in time"} for _ in range(12)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    file, folder = tmp_path_factory.mktemp("data") / "chat.jsonl", tmp_path_factory.mktemp("run") / "run"
    rows = [*rows_of("ada", "zorblax"), *rows_of("bo", "zürichseeweg")]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with homespun.train("oov_expansion", homespun.load(str(file)), folder=folder, **VALUES) as made:
        add_words(made, "ada", ["ad"])  # shorter than a window of the convolution
        yield made


def log_probs_of(folder, text):
    """With nothing but the exported files, numpy and onnxruntime."""
    config = json.loads((folder / "config.json").read_text())
    listed = (folder / "words.txt").read_text(encoding="utf-8").splitlines()
    known = {word: number for number, word in enumerate(listed[: config["vocabulary"] - 4], start=4)}
    session = runtime.InferenceSession(folder / "next_word_step.onnx")
    state = np.zeros((1, 2 * config["sizes"]["layers"], config["sizes"]["cells"]), np.float32)
    for number in [config["special"]["begin"]] + [
        known.get(word, config["special"]["unknown"]) for word in words(text)
    ]:
        log_probs, state = session.run(None, {"words": np.array([number]), "state": state})
    scores = log_probs[0, 4:]
    return dict(zip(listed, scores - np.logaddexp.reduce(scores), strict=True))


@pytest.mark.parametrize("user", ["ada", "bo", None])
def test_onnx_suggests_what_the_run_suggests(run, tmp_path, user):
    exported = export_next_word_model(run, tmp_path / "model", user=user)
    assert exported.own_words == {"ada": 2, "bo": 1, None: 0}[user] and exported.private == (user is not None)
    for text in TEXTS:
        found = log_probs_of(exported.folder, text)
        expected = suggest(run, text, user=user, k=len(found))
        assert {one.word: one.probability for one in expected} == pytest.approx(
            {word: float(np.exp(score)) for word, score in found.items()}, rel=1e-3
        )
        assert [one.word for one in expected[:3]] == sorted(found, key=lambda word: -found[word])[:3]


def test_8_bit_files_are_smaller_and_nearly_the_same(run, tmp_path):
    whole, small = (
        export_next_word_model(run, tmp_path / name, user="ada", int8=name == "small") for name in ("whole", "small")
    )
    assert json.loads((small.folder / "config.json").read_text())["onnx"] == "int8"
    kinds = {one.op_type for one in onnx.load(small.folder / "next_word_step.onnx").graph.node}
    assert "MatMulInteger" in kinds and "MatMul" not in kinds
    one, other = (log_probs_of(exported.folder, "we need") for exported in (whole, small))
    assert max(abs(one[word] - other[word]) for word in one) < 0.1


def test_the_code_on_the_card_runs(run, tmp_path, monkeypatch):
    export_next_word_model(run, tmp_path / "model", user="ada")
    monkeypatch.chdir(tmp_path / "model")
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "model" / "README.md").read_text(), re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    expected = [one.word for one in suggest(run, "we should meet at the", user="ada")]
    assert printed.getvalue().strip() == str(expected)


def test_from_the_command_line(run, tmp_path):
    folder = run.vault.path.parent
    found = CliRunner().invoke(app, ["export", str(folder), "--user", "ada", "-o", str(tmp_path / "ada")])
    assert found.exit_code == 0, found.output
    assert "keep it private" in found.output and re.search(r"2 own words; a word is read in \d", found.output)
    assert (tmp_path / "ada").stat().st_mode & 0o777 == 0o700
    found = CliRunner().invoke(app, ["export", str(folder), "-o", str(tmp_path / "shared"), "--int8"])
    assert (
        found.exit_code == 0
        and "private" not in found.output
        and "zorblax" not in (tmp_path / "shared" / "words.txt").read_text()
    )


def test_what_cannot_be_exported(run, tmp_path):
    with pytest.raises(InputError, match="already exists"):
        export_next_word_model(run, tmp_path)
    labels = [{"user": who, "text": "one two", "label": who} for who in ("ada", "bo")] * 6
    with (
        homespun.train("furl", homespun.load(labels), rounds=1, workers=0) as other,
        pytest.raises(RunError, match="does not suggest"),
    ):
        export_next_word_model(other, tmp_path / "furl")
