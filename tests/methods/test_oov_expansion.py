"""OOV Expansion: own words are suggested at home, and only there."""

import pytest
import torch

from homespun.core.errors import RunError, SettingsError
from homespun.core.method import Task
from homespun.core.roles import Role
from homespun.data import load_federation
from homespun.data.federation import Examples
from homespun.methods._own_words_at_home import Choice, choices
from homespun.methods.oov_expansion import SMALL, Settings
from homespun.models.next_word import read_spelling
from homespun.personalization.new_user import personalize
from homespun.personalization.suggestions import suggest
from homespun.runs.evaluate import evaluate, evaluate_newcomers
from homespun.runs.training import prepare
from homespun.system.method_loading import load_method

OWN = {"ada": "zorblax", "bo": "quibnor", "cy": "wumpfel", "dee": "yiktang"}
VALUES = {
    **SMALL, "rounds": 8, "cohort": "all", "workers": 0, "lr": 1.0, "batch": 2, "server": "fedavg", "server_lr": 1.0,
    "personalize_lrs": (0.3, 1.0, 3.0), "adapters": ((8,),), "adapter_scales": (0.1,), "personalize_epochs": 20,
    "validation_share": 0.3,
}  # fmt: skip


def chats():
    """Everybody's third word is a word of their own."""
    return load_federation(
        [
            {"user": user, "text": f"we need {own} and now we should do more in {('time', 'peace')[number % 2]}"}
            for user, own in OWN.items()
            for number in range(30)
        ]
    )


def test_the_grid_of_the_paper():
    grid = {"personalize_lrs": (1e-4, 1e-3, 1e-2, 0.1, 1, 10), "adapter_scales": (0, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1)}
    adapters = ((960,), (128, 256, 128), (256, 512, 256))
    found = choices(Settings(**grid, adapters=adapters))
    assert len(found) == 6 * 7 * 3 - 6 * 2  # with sigma 0, one form of the adapter is enough
    assert [one.hidden for one in found if (one.lr, one.scale) == (0.1, 0)] == [(960,)]
    assert len({one for one in found if one.scale}) == 6 * 6 * 3
    assert (
        choices(Settings(**grid, own_words="none"))[1] == Choice(1e-3) and len(choices(Settings(own_words="none"))) == 2
    )


def test_the_parameters_that_personalization_adds():
    """The adapter (256, 512, 256): 400 of the normalization, and 51,456 + 131,584 + 131,328 + 51,400 of its layers."""

    def added(**values):
        return load_method("oov_expansion", {"base_model": "untrained", **values}, Task()).personalize.adds_at_most

    assert added() == 366_168 and added(own_words="none") == added(own_scores="identity") == 0
    assert added(adapters=((256, 512, 256), (960,))) == 400 + 201 * 960 + 961 * 200


def trained(folder, **changed):
    run = prepare("oov_expansion", chats(), folder=folder, settings={**VALUES, **changed})
    list(run.rounds())
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with trained(tmp_path_factory.mktemp("run")) as made:
        yield made


def test_own_words_are_learned_at_home(run, tmp_path):
    with trained(tmp_path / "unknown", own_words="none") as other:
        without = evaluate(other)
    found = evaluate(run)
    assert without.oov_accuracy == 0 and without.oov_rate_left == without.oov_rate == pytest.approx(1 / 11)
    assert found.oov_rate == without.oov_rate and found.oov_rate_left == 0
    assert found.oov_accuracy == 1 and found.emr3 > without.emr3


def test_a_lexicon_is_private_and_holds_only_own_words(run):
    stored = run.clients.stored_private(list(OWN))
    for user, own in OWN.items():
        assert [read_spelling(row).decode() for row in stored[user]["own.lexicon"]] == [own]
        assert stored[user]["own.hidden"].tolist() == [8]
    assert {run.built.partition.role_of(f"own.{name}") for name in ("lexicon", "hidden", "adapter")} == {Role.PRIVATE}
    sent = b"".join(value.numpy().tobytes() for value in run.state.broadcast().federated.values())
    assert not any(own.encode() in sent for own in OWN.values())


def test_new_users_learn_theirs(tmp_path):
    with trained(tmp_path, withheld=0.25, final_personalization=False) as run:
        found = evaluate_newcomers(run, [0, None])
    assert found["0"].oov_rate_left > 0 and found["0"].oov_accuracy == 0
    assert found["all"].oov_rate_left == 0 and found["all"].oov_accuracy == 1


def test_a_text_without_words_costs_nothing(run):
    data = run.method.model.encode(run.federation.examples(0).take([0]))
    empty = run.method.model.encode(Examples(("", ":)")))
    output = torch.zeros(2, SMALL["length"], 3)
    counts = run.scoring.score(empty, output)
    assert int(counts["words"]) == 0 and data["length"].tolist() == [11]


def test_an_adapter_that_starts_at_zero_learns_the_same_with_any_hidden_layers():
    found = []
    for hidden in ((8,), (4, 6)):
        grid = {"personalize_lrs": (0.3,), "adapter_scales": (0.0,), "adapters": (hidden,), "personalize_epochs": 3}
        with trained(None, rounds=2, **grid) as run:
            found.append((evaluate(run).to_dict(), run.clients.stored_private(["ada"])["ada"]))
    (one, ada), (other, ada_too) = found
    assert one == other
    assert len(ada["own.adapter"]) != len(ada_too["own.adapter"]) and torch.equal(
        ada["own.adapter"][-8:], ada_too["own.adapter"][-8:]
    )


def test_both_engines_choose_and_train_alike():
    """The fast engine trains choices of one shape stacked; the oracle, one after the other."""
    grid = {"personalize_lrs": (0.1, 0.3), "adapter_scales": (0.0, 0.1), "adapters": ((8,), (4, 6))}
    found = {}
    for engine in ("loop", "cohort"):
        with trained(None, engine=engine, rounds=2, personalize_epochs=3, **grid) as run:
            found[engine] = run.clients.stored_private(list(OWN))
    for user in OWN:
        one, other = (found[engine][user] for engine in ("loop", "cohort"))
        assert one.keys() == other.keys() and "output.weight" in one
        for name, value in one.items():
            torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-5)


def test_threads_share_the_choices_of_one_user(monkeypatch):
    """With the bits of one thread: a user who is personalized alone has all cores."""
    grid = {"personalize_lrs": (0.1, 0.3, 1.0), "adapter_scales": (0.0, 0.1), "personalize_epochs": 2}
    with trained(None, rounds=1, final_personalization=False, **grid) as run:
        found = []
        for cores in (1, 3):
            monkeypatch.setattr("homespun.engines.cohort.cpu_cores", lambda cores=cores: cores)
            found.append(personalize(run, "eve", ["we need frobnix and now we should do more"] * 6).private)
    one, other = found
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_users_whose_longest_texts_differ_train_together():
    texts = {"ada": "we need zorblax", "bo": "we need it and now we should do more"}
    rows = [{"user": user, "text": text} for user, text in texts.items() for _ in range(10)]
    with prepare("oov_expansion", load_federation(rows), folder=None, settings={**VALUES, "rounds": 1}) as run:
        list(run.rounds())
        assert evaluate(run).users == 2


def test_all_own_words_may_be_known(tmp_path):
    """A word of the test part alone is a row of the lexicon, as the paper assumes, or is not."""
    rows = [{"user": user, "text": f"we need {user}word{number}"} for user in ("ada", "bo") for number in range(20)]
    for own_words, left in (("all", 0.0), ("training", 1 / 3)):
        changed = {
            **VALUES,
            "own_words": own_words,
            "rounds": 1,
            "personalize_epochs": 1,
            "final_personalization": True,
        }
        with prepare("oov_expansion", load_federation(rows), folder=tmp_path / own_words, settings=changed) as run:
            list(run.rounds())
            assert evaluate(run).oov_rate_left == pytest.approx(left)


def test_a_memory_suggests_own_words_without_training(tmp_path):
    """Nothing is trained at home: the cache alone knows which word is the third."""
    changed = {"own_scores": "memory", "memory": "cache", "personalize_lrs": (0.0,)}
    with trained(tmp_path / "cache", **changed) as run, trained(tmp_path / "plain", own_words="none") as plain:
        found, without = evaluate(run), evaluate(plain)
        stored = run.clients.stored_private(["ada"])["ada"]
        with pytest.raises(RunError, match="Train with memory = none"):
            suggest(run, "we need", user="ada")
    assert found.oov_accuracy == 1 and found.emr3 > without.emr3
    assert stored["own.typed"].shape == (25, 12) and float(stored["own.memory"][0]) > 0
    assert "output.weight" not in stored  # the shared model as it is


@pytest.mark.parametrize(
    "changed", [{"own_scores": "identity"}, {"memory": "neighbours"}, {"personalize_trains": "adapter"}]
)
def test_controls_of_the_adapter(tmp_path, changed):
    with trained(tmp_path, **changed) as run:
        found, stored = evaluate(run), run.clients.stored_private(["ada"])["ada"]
    identity = "own_scores" in changed
    assert found.oov_rate_left == 0 and (found.oov_accuracy > 0 or identity)
    assert bool(len(stored["own.adapter"])) == (not identity)
    assert ("output.weight" in stored) == ("personalize_trains" not in changed)


def test_own_words_may_be_known_without_training_with_them(tmp_path):
    """The copy of the model is that of OOV-as-UNK, bit for bit."""
    with trained(tmp_path / "none", own_words="none") as run:
        without = run.clients.stored_private(["ada"])["ada"]
    with trained(tmp_path / "unknown", own_scores="unknown") as run:
        known, found = run.clients.stored_private(["ada"])["ada"], evaluate(run)
    assert "output.weight" in without and all(torch.equal(known[name], value) for name, value in without.items())
    assert [read_spelling(row).decode() for row in known["own.lexicon"]] == [OWN["ada"]]
    assert found.oov_rate_left == 0 and found.oov_accuracy > 0


@pytest.mark.parametrize("engine", ["loop", "cohort"])
def test_a_user_without_own_words_has_no_adapter_to_train(engine):
    rows = [
        {"user": user, "text": f"we need {OWN[user] if user == 'ada' else 'more'}"} for user in OWN for _ in range(9)
    ]
    settings = {**VALUES, "rounds": 1, "personalize_trains": "adapter", "engine": engine}
    with prepare("oov_expansion", load_federation(rows), folder=None, settings=settings) as run:
        list(run.rounds())
        found = run.clients.stored_private(list(OWN))
    assert len(found["ada"]["own.lexicon"]) == 1 and not len(found["bo"]["own.lexicon"])


def test_settings_that_exclude_each_other():
    wrong = {"own_scores": "memory", "personalize_trains": "adapter", "base_model": "untrained-small"}
    with pytest.raises(SettingsError, match=r"(?s)own_scores = memory needs.*personalize_trains = adapter needs"):
        load_method("oov_expansion", wrong, Task())


def test_words_of_held_out_texts_are_known_in_the_end(tmp_path):
    """Each text has a word of its own; the device trains on some texts and chooses by others, and keeps all words."""
    rows = [{"user": user, "text": f"we need {user}word{number}"} for user in ("ada", "bo") for number in range(20)]
    with prepare(
        "oov_expansion", load_federation(rows), folder=tmp_path, settings={**VALUES, "final_personalization": True}
    ) as run:
        list(run.rounds())
        stored = run.clients.stored_private(["ada"])["ada"]
    assert len(stored["own.lexicon"]) == 17 and stored["own.counts"].tolist() == [1] * 17


def test_users_with_different_numbers_of_own_words_train_together(tmp_path):
    """With own_words = all, examples come with the own words of the user's other parts, however many these are."""
    rows = [
        {"user": user, "text": " ".join(f"{user}{number}x{place}" for place in range(words))}
        for user, words in (("ada", 1), ("bo", 11), ("cy", 1), ("dee", 11))
        for number in range(10)
    ]
    values = {**VALUES, "own_words": "all", "rounds": 1, "personalize_epochs": 1}
    with prepare("oov_expansion", load_federation(rows), folder=tmp_path, settings=values) as run:
        list(run.rounds())
        assert evaluate(run).users == 4
