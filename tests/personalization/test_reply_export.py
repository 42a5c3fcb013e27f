"""An exported reply model, without the run, gives the replies and log probabilities of the run."""

import contextlib
import io
import json
import re
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import homespun
from homespun.cli import app
from homespun.core.errors import InputError, RunError, UnknownNameError
from homespun.models.reply_decoder import ReplyDecoder
from homespun.models.reply_model import ReplyModel, Sizes, save_reply_model, untrained
from homespun.models.vocabulary import Vocabulary
from homespun.personalization.replies import find_replier, reply
from homespun.personalization.reply_export import export_reply_model

onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")

TEXT = "what are you doing ? i am tired . no yes we were on a break ! ,"
WORDS = Vocabulary(tuple(TEXT.split()))
SIZES = Sizes(word_dim=6, cells=7, layers=2, length=8)
LINES = ("What are you doing?", "I am tired.", "No. We were on a break!", "Yes, you are.")
QUESTIONS = ("What are you doing?", "no", "I am tired. Are you?", "We were on a break")
USERS = ("Ross Geller", "Rachel Green", "Monica Geller")
ROUNDS = 2


def write_base(folder):
    """A model with large random weights, so that its replies depend on the question."""
    torch.manual_seed(3)
    drawn = untrained(WORDS, SIZES).build().named_parameters()
    weights = {
        name: torch.randn(value.shape) * (0.3 if value.dim() == 1 else 3 / value.shape[-1] ** 0.5)
        for name, value in drawn
    }
    save_reply_model(folder, ReplyModel("made", WORDS, SIZES, "replies", "", weights), card="")
    return str(folder)


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Trained runs, by their settings."""
    base, runs = write_base(tmp_path_factory.mktemp("base") / "model"), {}

    def trained(**settings):
        key = tuple(sorted(settings.items()))
        if key not in runs:
            rows = [
                {"user": USERS[(scene + turn) % len(USERS)], "text": text, "scene": scene}
                for scene in range(6)
                for turn, text in enumerate(LINES)
            ]
            values = {
                "persona_dim": 5,
                "new_columns": 0.3,
                "lr": 0.01,
                "rounds": ROUNDS,
                "workers": 0,
                "seed": 1,
                **settings,
            }
            folder = tmp_path_factory.mktemp("run") / "run"
            runs[key] = homespun.train("fednlg", homespun.load(rows), base_model=base, folder=folder, **values)
        return runs[key]

    yield trained
    for run in runs.values():
        run.close()


def greedy_replies(folder, questions):
    """Words and log probabilities of greedy replies, with nothing but the exported files, numpy and onnxruntime."""
    config = json.loads((folder / "config.json").read_text())
    encoder, decoder = (runtime.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "decoder_step"))
    lengths = np.array([len(one) for one in questions])
    padded = np.array([[*one, *[9] * (max(lengths) - len(one))] for one in questions])  # padding is not read
    (state,) = encoder.run(None, {"question": padded, "length": lengths})
    end, tokens = config["special"]["end"], np.full(len(questions), config["special"]["begin"])
    written, scores, ended = [[] for _ in questions], np.zeros(len(questions)), np.zeros(len(questions), bool)
    for step in range(config["sizes"]["length"] + 1):
        log_probs, state = decoder.run(None, {"tokens": tokens, "state": state})
        allowed = log_probs.copy()
        allowed[:, config["banned"] + [end] * (step == 0)] = -np.inf
        tokens = np.full_like(tokens, end) if step == config["sizes"]["length"] else allowed.argmax(axis=1)
        scores += np.where(ended, 0, log_probs[np.arange(len(tokens)), tokens])
        ended |= tokens == end
        for row in np.flatnonzero(~ended):
            written[row].append(int(tokens[row]))
    return list(zip(map(tuple, written), scores, strict=True))


def greedy_in_run(run, user):
    length = SIZES.length
    found = [reply(run, one, user=user, n=1, decode="greedy", max_words=length)[0] for one in QUESTIONS]
    return [(one.tokens, one.log_prob) for one in found]


VARIANTS = [{}, {"persona_in_question": True}, {"persona": "table", "persona_layers": "first"}, {"persona": "none"}]


@pytest.mark.parametrize("settings", VARIANTS)
def test_onnx_gives_the_replies_of_the_run(train, tmp_path, settings):
    run = train(**settings)
    found = {}
    for user in ("ross", "rachel", None):
        exported = export_reply_model(run, tmp_path / str(user), user=user, onnx=True)
        found[user] = greedy_replies(exported.folder, [find_replier(run).read(one).tokens for one in QUESTIONS])
        expected = greedy_in_run(run, user)
        assert [words for words, _ in found[user]] == [words for words, _ in expected]
        assert [score for _, score in found[user]] == pytest.approx([score for _, score in expected], abs=1e-4)
    assert len({words for words, _ in found["ross"]}) > 2, "the replies do not depend on the question"
    personas = settings.get("persona") != "none"
    assert (found["ross"] != found["rachel"]) == (found["ross"] != found[None]) == personas


@pytest.mark.parametrize("settings", VARIANTS)
def test_the_parameters_give_the_logits_of_the_run(train, tmp_path, settings):
    run = train(**settings)
    exported = export_reply_model(run, tmp_path / "out", user="rachel")
    parameters = load_file(exported.folder / "model.safetensors")
    persona = parameters.get("persona.embedding")
    kind = "none" if persona is None else "private"
    config = json.loads((exported.folder / "config.json").read_text())
    network = untrained(WORDS, Sizes(**config["sizes"])).build(
        persona=kind,
        persona_dim=config["persona"]["dim"],
        readers=config["persona"]["layers"],
        in_question=config["persona"]["in_question"],
    )
    network.load_state_dict(parameters)  # raises if a name is missing or unknown
    speaker = find_replier(run).speaker("rachel")
    questions, tokens = [[4, 5, 6], [9]], torch.tensor([1, 7])
    logits = []
    for decoder, own in (
        (speaker.decoder, speaker.persona),
        (ReplyDecoder(parameters, config["sizes"]["layers"]), persona),
    ):
        state = decoder.start(questions, None if own is None else own.expand(2, -1))
        logits.append(decoder.step(tokens, state)[0])
    assert torch.equal(*logits)


def test_the_folder(train, tmp_path):
    run = train()
    exported = export_reply_model(run, tmp_path / "out", user="ross", onnx=True)
    names = ["README.md", "config.json", "decoder_step.onnx", "encoder.onnx", "model.safetensors", "words.txt"]
    assert sorted(path.name for path in exported.folder.iterdir()) == names
    assert exported.file_bytes == {name: (exported.folder / name).stat().st_size for name in names}
    assert (exported.user, exported.personalized, exported.private) == ("Ross Geller", True, True)
    assert exported.folder.stat().st_mode & 0o77 == 0
    assert json.loads((exported.folder / "config.json").read_text()) == {
        "kind": "homespun reply model of a user",
        "user": "Ross Geller",
        "private": True,
        "method": "fednlg",
        "rounds": ROUNDS,
        "sizes": {"word_dim": 6, "cells": 7, "layers": 2, "length": 8},
        "vocabulary": 22,
        "special": {"padding": 0, "begin": 1, "end": 2, "unknown": 3},
        "banned": [0, 1, 3],
        "persona": {"kind": "private", "dim": 5, "layers": [0, 1], "in_question": False},
        "base_model_sha256": find_replier(run).base.fingerprint,
        "onnx": "float32",
    }
    assert (exported.folder / "words.txt").read_text() == WORDS.to_lines()
    card = (exported.folder / "README.md").read_text()
    assert card.startswith("# How Ross Geller replies\n") and "Keep it private" in card


@pytest.mark.parametrize(
    ("settings", "user", "private"),
    [({}, "ross", True), ({}, None, False), ({"persona": "none"}, "ross", False), ({"persona": "table"}, "ross", True)],
)
def test_the_card_says_whether_it_is_private(train, tmp_path, settings, user, private):
    exported = export_reply_model(train(**settings), tmp_path / "out", user=user)
    card = (tmp_path / "out" / "README.md").read_text()
    assert exported.private == ("Keep it private" in card) == ("starting point" not in card) == private
    assert "onnx" not in card


def test_a_table_of_personas_is_not_exported(train, tmp_path):
    run = train(persona="table")
    table = run.state.broadcast().keyed["persona.table"]
    assert table.shape == (3, 5)
    export_reply_model(run, tmp_path / "out", user="monica")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert [name for name in stored if name.startswith("persona.")] == ["persona.embedding"]
    assert torch.equal(stored["persona.embedding"], table[run.federation.users.index("Monica Geller")])


@pytest.mark.parametrize("settings", VARIANTS)
def test_the_code_of_the_card_works(train, tmp_path, monkeypatch, settings):
    run = train(**settings)
    export_reply_model(run, tmp_path / "out", user="ross", onnx=True)
    monkeypatch.chdir(tmp_path / "out")
    printed = []
    for code in re.findall(r"```python\n(.*?)```", (tmp_path / "out" / "README.md").read_text(), flags=re.DOTALL):
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            exec(code, {})
        printed.append(shown.getvalue().splitlines())
    searched, greedy = printed
    best = reply(run, "What are you doing?", user="ross", n=5, beam=20, max_words=SIZES.length)
    assert searched == [f"{one.log_prob:.2f} {one.text}" for one in best]
    (likeliest,) = reply(run, "What are you doing?", user="ross", n=1, decode="greedy", max_words=SIZES.length)
    assert greedy == [" ".join(WORDS.spell(likeliest.tokens))]


def test_int8_files_are_close_and_use_standard_operators(train, tmp_path):
    run = train(persona_in_question=True)
    log_probs = []
    for int8 in (False, True):
        folder = export_reply_model(run, tmp_path / str(int8), user="ross", onnx=True, int8=int8).folder
        encoder, decoder = (runtime.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "decoder_step"))
        (state,) = encoder.run(None, {"question": np.array([[4, 5, 6], [9, 0, 0]]), "length": np.array([3, 1])})
        log_probs.append(decoder.run(["log_probs"], {"tokens": np.array([1, 7]), "state": state})[0])
    assert 0 < np.abs(log_probs[0] - log_probs[1]).max() < 0.2 < np.std(log_probs[0])
    model = onnx.load(tmp_path / "True" / "decoder_step.onnx")
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}
    assert sum(node.op_type == "MatMulInteger" for node in model.graph.node) == 3  # two layers and the output
    assert "words.weight" not in {one.name for one in model.graph.initializer}  # it is stored as int8
    assert len(list((tmp_path / "True").iterdir())) == 6  # no intermediate files


def test_a_user_without_private_parameters_is_exported_as_a_new_user(tmp_path):
    base = write_base(tmp_path / "model")
    rows = [{"user": user, "text": text, "scene": 1} for text in LINES for user in USERS]
    with homespun.train("fednlg", homespun.load(rows), base_model=base, rounds=1, workers=0) as run:
        run.vault.forget("Ross Geller")
        exported = export_reply_model(run, tmp_path / "out", user="ross")
    assert not exported.personalized and not exported.private


def test_mistakes_are_reported_before_anything_is_written(train, tmp_path, monkeypatch):
    run, out = train(), tmp_path / "out"
    with pytest.raises(UnknownNameError, match=r"no user 'rachle'\. Did you mean 'Rachel Green'\?"):
        export_reply_model(run, out, user="rachle")
    with pytest.raises(UnknownNameError, match="2 users match 'geller'"):
        export_reply_model(run, out, user="geller")
    with pytest.raises(InputError, match="Set onnx as well"):
        export_reply_model(run, out, user="ross", int8=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=re.escape("onnx and onnxruntime. Install the extra onnx: pip install 'home")):
        export_reply_model(run, out, user="ross", onnx=True)
    assert list(tmp_path.iterdir()) == []
    out.mkdir()
    with pytest.raises(InputError, match="already exists"):
        export_reply_model(run, out, user="ross")


def test_a_run_of_another_method_has_no_reply_model(tmp_path):
    trained = homespun.train("fedavg", homespun.load("dialects", users=6), rounds=1, workers=0, folder=tmp_path / "run")
    with trained as run, pytest.raises(RunError, match="fedavg does not reply to texts"):
        export_reply_model(run, tmp_path / "out")
    plain = CliRunner().invoke(app, ["export", "run", "-o", "out"])
    assert isinstance(plain.exception, RunError) and "does not personalize a language model" in str(plain.exception)
    done = CliRunner().invoke(app, ["export", "run", "-o", "out", "--onnx"])
    assert "this is a run of fedavg" in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path):
    rows = [{"user": user, "text": text, "scene": 1} for text in LINES for user in USERS]
    (tmp_path / "scene.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = homespun.load(str(tmp_path / "scene.jsonl"))
    homespun.train("fednlg", data, base_model="untrained", rounds=1, workers=0, folder=tmp_path / "run").close()
    done = CliRunner().invoke(app, ["export", "run", "--user", "monica", "-o", "out", "--onnx", "--int8"])
    assert done.exit_code == 0, done.exception
    title, *sizes = done.stdout.splitlines()
    assert title == "out: Monica Geller; it contains private parameters: keep it private"
    shown = {line.split()[0]: float(line.split()[1]) for line in sizes}
    assert shown["encoder.onnx"] == round((tmp_path / "out" / "encoder.onnx").stat().st_size / 1e6, 2)
    assert shown["encoder.onnx"] + shown["decoder_step.onnx"] < shown["model.safetensors"] and sizes[0].endswith(" MB")
    again = CliRunner().invoke(app, ["export", "run", "--user", "monica", "-o", "out"])
    assert "already exists" in str(again.exception)
    for more, said in ((["--context", "written"], "has no contexts"), (["--int8"], "Add --onnx")):
        refused = CliRunner().invoke(app, ["export", "run", "-o", "other", *more])
        assert isinstance(refused.exception, InputError) and said in str(refused.exception)
    assert not (tmp_path / "other").exists()


def test_no_onnx_package_is_loaded_without_the_option(train, tmp_path, monkeypatch):
    for name in ("onnx", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)  # an import raises
    export_reply_model(train(), tmp_path / "out", user="ross")
