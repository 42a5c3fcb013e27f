"""A new user from their own text: learned on the client, stored in the vault, the shared model unchanged."""

import numpy as np
import pytest
import torch
from language_models import write_gpt2
from safetensors.torch import load_file, save_file
from spoken_corpus import MINE, train_small

from homespun import generate, personalize, reopen, train
from homespun.core.errors import DataError, HomespunError, InputError, RunError, UnknownNameError
from homespun.data import load_federation
from homespun.data.federation import Examples
from homespun.data.source import DataSettings
from homespun.data.text_files import read_text_file, text_sentences
from homespun.engines.client import Client
from homespun.engines.simulation import personalize_clients
from homespun.methods import furl
from homespun.personalization.generation import find_personal_model
from homespun.personalization.new_user import personalize_from_file


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("people")
    train_small(made).close()
    return made / "run"


def personalized(folder, path, content, *, user="ada", **options):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return personalize_from_file(folder, DataSettings(source=str(path)), user=user, **options)


def test_a_plain_text_becomes_an_embedding(folder, tmp_path):
    with reopen(folder) as run:
        state, before = run.vault.state, find_personal_model(run, context="spoken").prefix
    found = personalized(folder, tmp_path / "mine.txt", MINE * 4 + "So.\n", context="written")
    assert (found["user"], found["examples"], found["left_out"], found["uploaded_bytes"]) == ("ada", 12, 1, 0)
    assert found["before"]["examples"] == found["after"]["examples"] == 2
    assert (
        "ada: personalized by gradient steps from 12 examples (1 with fewer than 4 tokens left out); nothing"
        in found["message"]
    )
    assert "On 2 held-out examples perplexity went from" in found["message"]
    with reopen(folder) as run:
        assert run.vault.state == state
        assert set(run.vault.private("ada")) == {"personal.embedding", "context.table"}  # its own copy of the contexts
        model = find_personal_model(run, user="ada", context="spoken")  # a context that she did not write in
        assert not torch.equal(model.prefix, before)
        assert generate(run, "We", user="ad", context="spoken")
    with pytest.raises(RunError, match="'ada' already has private parameters in this run"):
        personalized(folder, tmp_path / "mine.txt", MINE, context="written")


def test_more_steps_change_the_embedding_more(folder, tmp_path):
    def distance(user, steps):
        personalized(folder, tmp_path / "mine.txt", MINE, user=user, context="written", steps=steps)
        with reopen(folder) as run:
            started = run.clients.new_private(user, run.state.broadcast())["personal.embedding"]
            return float((run.vault.private(user)["personal.embedding"] - started).norm())

    assert 0 < distance("one", 1) < distance("default", None) < distance("twenty", 20)
    with pytest.raises(InputError, match="steps: 0"):
        distance("none", 0)


@pytest.fixture(scope="module")
def generating(tmp_path_factory):
    made = tmp_path_factory.mktemp("generating")
    train_small(made, method="fedperc_generated").close()
    return made / "run"


def test_a_generator_computes_an_embedding_without_gradient_steps(generating, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "backward", None)
    mine = tmp_path / "mine.txt"
    found = personalized(generating, mine, MINE * 4, context="written", generated=True)
    assert (found["by"], found["examples"], found["uploaded_bytes"]) == ("the generator alone", 12, 0)
    assert "ada: personalized by the generator alone from 12 examples; nothing was uploaded. On 2" in found["message"]
    assert found["before"]["value"] != found["after"]["value"]
    default = personalized(generating, mine, MINE * 4, user="eve", context="written")  # the generator is the default
    assert default["by"] == "the generator alone"
    with reopen(generating) as run:
        kept = run.vault.private("ada")
        data = run.method.model.encode(Examples(read_text_file(mine), contexts=np.ones(12, dtype=np.int64)))
        made = run.method.personalize.generate(
            run.built.parameters(run.state.broadcast(), run.clients.new_private("ada", run.state.broadcast())), data
        )
        assert kept.keys() == made.keys() == {"personal.embedding", "context.table"}
        assert all(torch.equal(kept[name], made[name]) for name in made)
        assert all(torch.equal(kept[name], run.vault.private("eve")[name]) for name in made)
        model = find_personal_model(run, user="ada", context="written")
        assert torch.equal(model.prefix, made["personal.embedding"] * made["context.table"][1])
        assert not torch.equal(model.prefix, find_personal_model(run, context="written").prefix)


def test_steps_or_a_generator_that_the_method_lacks_are_rejected(folder, generating, tmp_path):
    for run, options, message in [
        (folder, {"generated": True}, "fedperc has no generator and .* such as fedperc_generated"),
        (folder, {"generated": True, "steps": 3}, "fedperc has no generator"),
        (generating, {"steps": 3}, "steps: fedperc_generated personalizes by its generator alone"),
        (generating, {"steps": 3, "generated": True}, "steps: fedperc_generated personalizes by its generator alone"),
    ]:
        with pytest.raises(InputError, match=message):
            personalized(run, tmp_path / "mine.txt", MINE, user="leo", context="written", **options)


BOTH = """
from dataclasses import replace
from homespun.methods import fedperc, fedperc_generated

Settings, RUN = fedperc_generated.Settings, fedperc_generated.RUN

def method(settings, task):
    learned = fedperc.Settings(base_model=settings.base_model, length=settings.length, lr=0.05)
    (steps,) = fedperc.method(learned, task).personalize.phases
    made = fedperc_generated.method(settings, task)
    return replace(made, personalize=replace(made.personalize, phases=(replace(steps, loss=fedperc.loss),)))
"""


def test_a_method_with_a_generator_and_steps_generates_first(tmp_path):
    (tmp_path / "both.py").write_text(BOTH)
    train_small(tmp_path, method=tmp_path / "both.py").close()

    def kept(user, **options):
        found = personalized(tmp_path / "run", tmp_path / "mine.txt", MINE, user=user, context="written", **options)
        with reopen(tmp_path / "run") as run:
            return found["by"], run.vault.private(user)

    (alone, generated), (both, learned) = kept("ada", generated=True), kept("eve", steps=1)
    assert (alone, both) == ("the generator alone", "the generator and gradient steps")
    step = learned["personal.embedding"] - generated["personal.embedding"]
    assert float(step.abs().median()) == pytest.approx(0.05, abs=1e-5)  # Adam's first, rate 0.05:
    assert step.abs().min() > 0 and step.abs().max() < 0.05 + 1e-6  # less where a gradient is near its epsilon
    moved = learned["context.table"] - generated["context.table"]  # its own copy, in the one context of the text
    assert [float(row.abs().median()) for row in moved] == pytest.approx([0.0, 0.05], abs=1e-5)
    with pytest.raises(InputError, match="Give either steps or generated"):
        kept("leo", steps=1, generated=True)


def test_from_python_the_result_is_the_same_and_nothing_is_stored(folder, generating, tmp_path):
    texts = text_sentences(MINE)
    for place, way in ((folder, {"steps": 4}), (generating, {"generated": True})):
        personalized(place, tmp_path / "mine.txt", MINE, user="zoe", context="written", **way)
        with reopen(place) as run:
            model = personalize(run, "zoe", texts, context="written", **way)
            kept = run.vault.private("zoe")
            assert kept.keys() == model.private.keys()
            assert all(torch.equal(kept[name], model.private[name]) for name in kept)
            said = model.generate("We must", context="spoken", samples=2)
            assert said == generate(run, "We must", user="zoe", context="spoken", samples=2)
            assert run.vault.private(personalize(run, "max", texts, context="spoken").user) is None
            for options, error, message in [
                ({"labels": ["a", "b", "c"]}, InputError, "labels: fedperc.* does not use labels"),
                ({}, InputError, "the run has 2 contexts"),
            ]:
                with pytest.raises(error, match=message):
                    personalize(run, "leo", texts, **options)
            with pytest.raises(DataError, match="texts: all 1 utterances have fewer than 4 tokens"):
                personalize(run, "leo", ["So."], context="written")


def test_a_method_that_predicts_labels_needs_them(tmp_path):
    federation = load_federation("dialects", settings={"users": 4, "examples": 5})
    with train("furl", federation, rounds=1, workers=0, **furl.SMALL) as run:
        assert personalize(run, "ada", ["mepu basi"], ["label-0"]).predict(["mepu"])[0] in federation.labels
        for labels in (None, ["label-0"] * 2):
            with pytest.raises(InputError, match="furl predicts labels and has no contexts: give one label per text"):
                personalize(run, "ada", ["mepu basi"], labels)


def test_personalizing_on_repeated_sentences_lowers_the_perplexity(tmp_path):
    base = write_gpt2(tmp_path / "base")
    weights = load_file(base / "model.safetensors")  # so small that a prefix hardly matters: made larger
    weights = {name: 10 * weight if weight.ndim == 2 else weight for name, weight in weights.items()}
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    train_small(tmp_path, base=base, rounds=1).close()
    found = personalized(tmp_path / "run", tmp_path / "mine.txt", MINE * 10, context="written", steps=60)
    assert found["after"]["value"] < 0.95 * found["before"]["value"]  # the same three sentences over and over


def test_a_table_needs_no_labels_and_uses_the_contexts_of_the_run(folder, tmp_path):
    rows = [f"eve,{'Written' if row % 2 else 'SPOKEN'},We must go on to {row}" for row in range(10)]
    found = personalized(folder, tmp_path / "a.csv", "user,context,text\n" + "\n".join(rows), user=None)
    assert (found["user"], found["examples"]) == ("eve", 10)
    plain = "user,text\nmia,We must go on\nmia,The people must go on\n"
    assert personalized(folder, tmp_path / "b.csv", plain, user="mia", context="spok")["examples"] == 2
    with pytest.raises(InputError, match=r"the run has 2 contexts: 'spoken', 'written'. Choose one"):
        personalized(folder, tmp_path / "c.csv", plain.replace("mia", "leo"), user=None)
    with pytest.raises(InputError, match="the table has a context column"):
        personalized(
            folder, tmp_path / "d.csv", "user,context,text\nleo,spoken,We go on\n", user=None, context="written"
        )
    wrong = "user,context,text\nleo,writen,We must go on\nleo,sung,We must go on\n"
    with pytest.raises(DataError, match=r"2 faults(.|\n)*no context 'sung'(.|\n)*'writen'. Did you mean 'written'"):
        personalized(folder, tmp_path / "e.csv", wrong, user=None)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", DataError, "contains no sentence"),
        (b"\n \n", DataError, "contains no sentence"),
        (b"We must\0go on.", DataError, "a binary file, not a text"),
        (b"We must.\nG\xfcnther goes on.", DataError, "line 2 is not UTF-8"),
        (b"So.\nGo.\n", DataError, "all 2 utterances have fewer than 4 tokens"),
    ],
)
def test_unusable_texts_are_rejected(folder, tmp_path, content, error, message):
    with pytest.raises(error, match=message):
        personalized(folder, tmp_path / "mine.txt", content, user="leo", context="written")
    with reopen(folder) as run:
        assert run.vault.private("leo") is None


def test_other_invalid_input_is_rejected(folder, tmp_path):
    for options, error, message in [
        ({"user": None, "context": "written"}, InputError, "name the author with --user"),
        ({"user": "Abraham Lincoln", "context": "written"}, RunError, "is a participant of this run"),
        ({"user": "leo", "context": "sung"}, UnknownNameError, "no context 'sung'"),
        ({"user": "leo"}, InputError, "the run has 2 contexts"),
    ]:
        with pytest.raises(error, match=message):
            personalized(folder, tmp_path / "mine.txt", MINE, **options)
    with pytest.raises(DataError, match=r"no such file. Did you mean 'mine.txt'\?"):
        personalize_from_file(folder, DataSettings(source=str(tmp_path / "mien.txt")), user="leo", context="written")


def test_a_method_without_private_parameters_cannot_be_personalized(tmp_path):
    train_small(tmp_path, rounds=1, prefix="context").close()
    with pytest.raises(RunError, match="has no private parameters"):
        personalized(tmp_path / "run", tmp_path / "mine.txt", MINE, context="written")


def test_short_lines_are_messages_of_their_own():
    messages = [
        "hello zorblax",
        "we need it now",
        "bye",
        "this one is longer than the others, and they stay apart from",
        "it",
    ]
    assert text_sentences("\n".join(messages)) == [*messages[:3], f"{messages[3]} it"]
    assert text_sentences("\n".join(messages[:3])) == messages[:3]


def test_wrapped_lines_of_prose_are_joined_and_markup_is_removed():
    wrapped = "We must go on together until the work is done, and we\r\nwill. And\nso we do.\n\nA title\nThe end"
    assert text_sentences(wrapped) == [
        "We must go on together until the work is done, and we will.", "And", "so we do.", "A title", "The end",
    ]  # fmt: skip
    text = "# Me\n\n- I *am* [here](http://x.y).\n\n```\ncode = 1\n```\n> **So** it is, snake_case too.\n"
    assert text_sentences(text, markdown=True) == ["Me", "I am here.", "So it is, snake_case too."]


def test_a_new_user_is_personalized_exactly_as_in_the_evaluation(folder):
    """The same steps on the same utterances give the same embedding and the same local copy of the contexts."""
    with reopen(folder) as run:
        texts = ["we must ask what the people think of it", "my fellow citizens, go on together"]
        model = personalize(run, "zoe", texts, context="spoken")
        examples = Examples(texts, contexts=np.full(2, run.federation.contexts.index("spoken")))
        client = Client(
            "zoe", private=run.clients.new_private("zoe", run.state.broadcast()), data=run.method.model.encode(examples)
        )
        (evaluated,) = personalize_clients(run.method, run.trainer, run.state.broadcast(), [client])
        assert model.private.keys() == evaluated.keys() == {"personal.embedding", "context.table"}
        for name, value in evaluated.items():
            torch.testing.assert_close(model.private[name], value)


@pytest.mark.parametrize(
    ("user", "texts", "said"),
    [
        ("Abraham Lincoln", ["We must go on."], "is a participant of this run"),
        (" ", ["We must go on."], "must not be blank"),
        ("ada", [], "texts: there are none"),
    ],
)
def test_personalize_in_python_refuses(folder, user, texts, said):
    with reopen(folder) as run, pytest.raises(HomespunError, match=said):
        personalize(run, user, texts, context="spoken")
