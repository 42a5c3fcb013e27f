"""What OOV Expansion says to input that it cannot use, or not as it is given."""

import json
import shutil
import time
from dataclasses import replace

import pytest
import torch

from homespun.core.errors import DataError, InputError, RunError
from homespun.core.words import words
from homespun.data import load_federation
from homespun.data.federation import Examples
from homespun.data.source import DataSettings
from homespun.engines.cohort import CohortTrainer
from homespun.engines.loop import LoopTrainer
from homespun.methods._own_texts import with_lexicon
from homespun.methods.oov_expansion import SMALL
from homespun.models.next_word import places_in, read_spelling, spell_words
from homespun.models.next_word_model import NextWordSizes, load_next_word_model, save_next_word_model, untrained
from homespun.models.vocabulary import Vocabulary
from homespun.personalization.new_user import build_local_engine, personalize, personalize_from_file
from homespun.personalization.own_words import add_words, forget_words, own_words
from homespun.personalization.suggestions import suggest
from homespun.runs.evaluate import evaluate
from homespun.runs.training import prepare, reopen
from homespun.runs.vault import VAULT_FILE, Vault

VALUES = {
    **SMALL, "rounds": 1, "cohort": "all", "workers": 0, "length": 50, "lr": 1.0, "batch": 8, "server": "fedavg",
    "server_lr": 1.0, "personalize_lrs": (0.3,), "adapters": ((4,),),
}  # fmt: skip
AS_IT_WAS = "The shared model is kept as it was: "


def chat(folder):
    path = folder / "chat.jsonl"
    texts = {"ada": "we need zorblax and now we should do more", "bo": "we need quibnor and now we should do more"}
    path.write_text("".join(json.dumps({"user": user, "text": text}) + "\n" for user, text in texts.items()) * 10)
    return DataSettings(source=str(path)).resolved()


def trained(folder, **changed):
    data = chat(folder)
    with prepare("oov_expansion", data.load(), folder=folder / "run", settings={**VALUES, **changed}, data=data) as run:
        list(run.rounds())
    return folder / "run"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


def learn(folder, texts, user="eve"):
    """Personalize from a table; returns what the command says after its first sentence, and the own words."""
    path = folder.parent / "mine.jsonl"
    path.write_text("".join(json.dumps({"user": user, "text": text}) + "\n" for text in texts))
    found = personalize_from_file(folder, DataSettings(source=str(path)).resolved(), user=None)
    with reopen(folder) as run:
        return " ".join(found["notices"]), {one.word: one.count for one in own_words(run, user)}


# Users


def test_a_user_without_own_words(folder):
    said, known = learn(folder, ["we need more time", "we should do more"] * 10)
    assert said.endswith("Own words: none, the vocabulary has every word.") and known == {}
    with reopen(folder) as run:
        assert len(suggest(run, "we need", user="eve")) == 3


def test_a_user_with_one_text(folder):
    said, known = learn(folder, ["we need zorblax"])
    assert said == AS_IT_WAS + "one example is too few to choose settings by. Own words: 1."
    with reopen(folder) as run:
        assert known == {"zorblax": 1}
        eve, new = ([(one.word, one.own) for one in suggest(run, "we need", user=who, k=999)] for who in ("eve", None))
        assert [one for one in eve if one != ("zorblax", True)] == new


def test_a_participant_with_one_text_keeps_the_shared_model(tmp_path):
    rows = [{"user": "ada", "text": "we need zorblax now"}] * 10 + [{"user": "bo", "text": "we need quibnor"}]
    with prepare("oov_expansion", load_federation(rows), folder=None, settings=VALUES) as run:
        list(run.rounds())
        assert evaluate(run).users == 1
        stored = run.clients.stored_private(["ada", "bo"])
    assert "output.weight" in stored["ada"] and "output.weight" not in stored["bo"]


def test_a_user_with_100_000_own_words(folder, tmp_path):
    """In 2,000 texts of 50 words, all different but one in each text, and 999 that occur twice. The choice of 1,000 is
    fast; what takes time is training, as with any other words."""
    different = [f"zor{number}blax" for number in range(98_000)]
    texts = ["zorblax " + " ".join(different[49 * place : 49 * place + 49]) for place in range(2000)]
    texts += [" ".join(different[49 * place : 49 * place + 49]) for place in range(20)] + [" ".join(different[980:999])]
    with reopen(folder) as run:
        start = time.process_time()
        data = run.method.model.encode(Examples(texts))
        private = run.built.new_private("eve", seed=0)
        known = with_lexicon(private, [data["spelling"]], at_most=1000)
        places = places_in(known["own.lexicon"], data["spelling"])
        assert time.process_time() - start < 10  # takes 0.4 s
    assert known["own.counts"].tolist() == [2000, *[2] * 999]
    assert int((places >= 0).sum()) == 2000 + 2 * 999
    shutil.rmtree(folder)
    quick = trained(tmp_path, batch=500, personalize_epochs=1, personalize_lrs=(0.01,))
    said, known = learn(quick, texts)
    assert said.endswith("Own words: the 1,000 most frequent of 98,001.")
    assert known == {"zorblax": 2000, **dict.fromkeys(different[:999], 2)}  # also those that were held out at first


def test_too_many_own_words_and_some_added_by_hand():
    """Two words by hand, one of which is typed once; then a learned one and two new ones."""
    by_hand, typed = [b"flimjab", b"yiktang"], 3 * [b"zorblax"] + [b"yiktang"] + 2 * [b"quibnor"] + 3 * [b"wumpfel"]
    known = {"own.lexicon": spell_words([*by_hand, b"quibnor"]), "own.counts": torch.tensor([0, 0, 2])}

    def most(at_most):
        found = with_lexicon(known, [spell_words(typed)], at_most=at_most)
        spelled = [read_spelling(row).decode() for row in found["own.lexicon"]]
        return dict(zip(spelled, found["own.counts"].tolist(), strict=True))

    assert list(most(9).items()) == [("flimjab", 0), ("yiktang", 1), ("quibnor", 2), ("wumpfel", 3), ("zorblax", 3)]
    assert list(most(4).items()) == [("flimjab", 0), ("quibnor", 2), ("wumpfel", 3), ("zorblax", 3)]
    assert list(most(2)) == ["flimjab", "wumpfel"]


def test_texts_without_words(folder):
    said, known = learn(folder, [":)", "we need zorblax now", "", "\u200f", "we need zorblax time", "👍🏽"])
    assert known == {"zorblax": 2} and "Own words: 1." in said
    said, known = learn(folder, [":)", "👍🏽", ":)"], user="dee")
    assert known == {} and said.endswith("Own words: none, the vocabulary has every word.")
    empty = folder.parent / "empty.txt"
    empty.write_text(" \n:)\n")
    with pytest.raises(DataError, match=r"empty\.txt: contains no sentence"):
        personalize_from_file(folder, DataSettings(source=str(empty)).resolved(), user="flo")


def test_participants_whose_texts_have_no_words(tmp_path):
    rows = [
        {"user": user, "text": text} for user, text in (("ada", "we need zorblax"), ("bo", ":)")) for _ in range(10)
    ]
    with prepare("oov_expansion", load_federation(rows), folder=None, settings=VALUES) as run:
        list(run.rounds())
        found = evaluate(run)
        assert found.users == 1 and found.oov_rate_left == 0


# Words


@pytest.mark.parametrize("word", ["q\u0308uux", "हिन्दी", "שָׁלוֹם", "مرحبا", "zörblax", "z" * 30, "ab\u0301\u0323c"])
def test_words_of_any_script_can_be_learned_typed_and_forgotten(folder, word):
    texts = [f"We need {word.upper()} 👍🏽 now.", f"we need ({word})"] * 5
    assert learn(folder, texts)[1] == {words(word)[0]: 10}
    own = words(word)[0]
    with reopen(folder, read_only=False) as run:
        assert [one.word for one in suggest(run, "we need", user="eve", prefix=own[:2])] == [own]
        assert forget_words(run, "eve", [word]) == [own] and own_words(run, "eve") == []
        assert add_words(run, "eve", [f" {word} "]) == [own]
    assert own.encode() in b"".join(path.read_bytes() for path in folder.glob(f"{VAULT_FILE}*"))


def test_words_that_are_too_long(folder):
    said, known = learn(folder, [f"we need {'z' * 10_000} now", f"we need {'हि' * 6} zorblax now"] * 5)
    assert known == {"zorblax": 5}
    assert said.endswith("Own words: 1. Too long to be own words, with more than 30 bytes: 10.")
    with reopen(folder, read_only=False) as run:
        shown = r"words of 'eve': 'z{40}'\.\.\. \(10,000 characters\) is longer than 30 bytes\.$"
        with pytest.raises(InputError, match=shown):
            add_words(run, "eve", ["z" * 10_000])
        with pytest.raises(InputError, match=r"'z{40}'\.\.\. \(10,000 characters\) is not in the lexicon"):
            forget_words(run, "eve", ["z" * 10_000])


def test_words_that_are_no_own_words(folder):
    """All faults at once, and nothing is added."""
    with reopen(folder, read_only=False) as run:
        with pytest.raises(InputError) as caught:
            add_words(run, "ada", ["flimjab", "we", "", "two words", "👍🏽", "We"])
        assert own_words(run, "ada")[1:] == []
    one_word = "expected one word, as in `ada` or `don't`."
    assert str(caught.value).splitlines() == [
        "words of 'ada': 5 faults:",
        "  - 'we': the shared vocabulary has it already.",
        f"  - '': {one_word}",
        f"  - 'two words': {one_word}",
        f"  - '👍🏽': {one_word}",
        "  - 'we': the shared vocabulary has it already.",
    ]


def test_forgetting_a_word_that_is_not_there(folder):
    with reopen(folder, read_only=False) as run:
        with pytest.raises(InputError, match=r"'zorblaks' is not in the lexicon\. Did you mean 'zorblax'\?$"):
            forget_words(run, "ada", ["zorblax", "Zorblaks"])
        with pytest.raises(InputError, match=r"'' is not in the lexicon\.$"):
            forget_words(run, "ada", [""])
        assert [one.word for one in own_words(run, "ada")] == ["zorblax"]
        assert forget_words(run, "ada", ["ZORBLAX ", "zorblax"]) == ["zorblax"]


def test_forgetting_that_was_interrupted_can_be_repeated(folder, monkeypatch):
    """It ends after its commit, before the file is rewritten. The word is unknown then, but the file is rewritten."""
    ended, original = [KeyboardInterrupt], Vault.rewrite

    def rewrite(vault, *given):
        if ended:
            raise ended.pop()
        original(vault, *given)
        rewritten.append(vault.path)

    rewritten = []
    monkeypatch.setattr(Vault, "rewrite", rewrite)
    with reopen(folder, read_only=False) as run, pytest.raises(KeyboardInterrupt):
        forget_words(run, "ada", ["zorblax"])
    with reopen(folder, read_only=False) as run, pytest.raises(InputError, match="'zorblax' is not in the lexicon"):
        forget_words(run, "ada", ["zorblax"])
    assert rewritten == [folder / VAULT_FILE]
    assert not any(b"zorblax" in path.read_bytes() for path in folder.glob(f"{VAULT_FILE}*"))


def test_a_memory_forgets_too(tmp_path):
    folder = trained(tmp_path, own_scores="memory", memory="cache", personalize_lrs=(0.0,))
    learn(folder, ["flimjab we need wumpfel"] * 10)
    with reopen(folder, read_only=False) as run:
        assert [one.word for one in own_words(run, "eve")] == ["flimjab", "wumpfel"]
        vocabulary = len(load_next_word_model("untrained-small").vocabulary)
        before = run.clients.stored_private(["eve"])["eve"]["own.typed"]
        forget_words(run, "eve", ["flimjab"])
        after = run.clients.stored_private(["eve"])["eve"]["own.typed"]
    assert before[0, [0, 3]].tolist() == [vocabulary, vocabulary + 1]
    assert after[0, [0, 3]].tolist() == [3, vocabulary] and torch.equal(before[:, 1:3], after[:, 1:3])


# The search and the base model


@pytest.mark.parametrize("scale", [0.0, 3.0])
def test_a_search_that_diverges_keeps_the_model_and_says_so(tmp_path, scale):
    folder = trained(tmp_path, personalize_lrs=(1e10, 1e20), adapter_scales=(scale,))
    said, known = learn(folder, [f"we need zorblax and more {('time', 'peace')[n % 2]}" for n in range(20)])
    assert said.startswith(AS_IT_WAS + "training improved it with none of the settings.")
    with reopen(folder) as run:
        broadcast = run.state.broadcast().federated
        kept = run.clients.stored_private(["eve"])["eve"]
        assert not broadcast.keys() & kept.keys()
        model = personalize(run, "dee", ["we need zorblax and more time"] * 20)
        assert model.notices[0].startswith(AS_IT_WAS)
        words_of_eve = [one.word for one in suggest(run, "we need", user="eve")]
    assert len(words_of_eve) == 3 and set(known) <= {"zorblax"}


def test_without_training_at_home_own_words_are_known(tmp_path):
    folder = trained(tmp_path, adapter_prior="federated", prior_adapter=(4,), personalize_trains="nothing")
    said, known = learn(folder, ["we need zorblax and more time"] * 3)
    assert (said, known) == ("Own words: 1.", {"zorblax": 3})
    said, known = learn(folder, ["we need quibnor"], user="dee")
    assert (said, known) == ("Own words: 1.", {"quibnor": 1})


def write_base(folder, words):
    """A model with these words, and the weights that come with the seed."""
    torch.manual_seed(1)
    model = untrained(Vocabulary(words), NextWordSizes(byte_dim=6, cells=8))
    weights = {name: value.detach() for name, value in model.build().named_parameters()}
    save_next_word_model(folder, replace(model, weights=weights), card="")
    load_next_word_model.cache_clear()
    return str(folder)


def test_a_base_model_that_is_not_that_of_the_run(tmp_path):
    base = write_base(tmp_path / "base", ("we", "need", "now"))
    folder = trained(tmp_path, base_model=base)
    write_base(tmp_path / "base", ("we", "need", "more"))
    with pytest.raises(RunError, match=r"the next-word model '.*base' is not the one that this run was trained with"):
        reopen(folder)
    (tmp_path / "base" / "words.txt").write_text("we\nneed\n")
    load_next_word_model.cache_clear()
    with pytest.raises(InputError, match=r"does not fit config\.json and words\.txt: output\.bias, output\.weight"):
        reopen(folder)
    (tmp_path / "base" / "words.txt").write_text("we\nwe\nneed\n")
    with pytest.raises(InputError, match="vocabulary: its words must be different and not blank"):
        reopen(folder)
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(InputError, match="no such folder"):
        reopen(folder)
    write_base(tmp_path / "base", ("we", "need", "now"))
    reopen(folder).close()


def test_personalize_uses_the_engine_of_the_run(folder, tmp_path):
    texts = [f"we need zorblax and more {('time', 'peace')[number % 2]}" for number in range(10)]
    with reopen(folder) as run:
        assert isinstance(build_local_engine(run), CohortTrainer)
        fast = personalize(run, "eve", texts).private
    with reopen(trained(tmp_path, engine="loop")) as run:
        assert isinstance(build_local_engine(run), LoopTrainer)
        slow = personalize(run, "eve", texts).private
    assert fast.keys() == slow.keys()
    for name, value in fast.items():
        torch.testing.assert_close(slow[name], value, rtol=1e-4, atol=1e-5)
