"""The federated adapter of OOV Expansion: a new user's first own words are suggested without training."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_oov_expansion import OWN, VALUES, chats
from torch.nn import functional

from homespun.core.errors import SettingsError
from homespun.core.method import Task, build
from homespun.core.roles import Role
from homespun.core.transforms import Transforms
from homespun.data import load_federation
from homespun.data.federation import Examples
from homespun.engines.client import Client
from homespun.engines.cohort import CohortTrainer
from homespun.engines.loop import LoopTrainer
from homespun.methods._own_texts import counts_of_round, lexicon_of_round
from homespun.methods._own_words_at_home import Choice, choices
from homespun.methods.oov_expansion import SMALL, Settings
from homespun.models.next_word import embed_stacked, read_spelling, spell_words
from homespun.models.suggestion_ranks import NOTHING
from homespun.models.word_adapter import adapter_size
from homespun.personalization.live_text import LiveText
from homespun.personalization.own_words import add_words, own_words
from homespun.personalization.suggestions import find_suggester, suggest
from homespun.runs.evaluate import evaluate, evaluate_newcomers
from homespun.runs.training import prepare, summarize_privacy
from homespun.system.method_loading import load_method
from homespun.testing.contract import LOCAL_DP, check_method
from homespun.testing.subject import SEED

PRIOR = {"adapter_prior": "federated", "prior_adapter": (8,)}
COLD = {**PRIOR, "personalize_trains": "nothing", "final_personalization": False}


def trained(folder, **changed):
    run = prepare("oov_expansion", chats(), folder=folder, settings={**VALUES, "rounds": 20, **COLD, **changed})
    list(run.rounds())
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One of the four users never takes part."""
    with trained(tmp_path_factory.mktemp("run"), withheld=0.25) as made:
        yield made


def built(**changed):
    return build(load_method("oov_expansion", {**SMALL, **PRIOR, **changed}, Task()), seed=0)


def client(made, user, texts):
    return Client(user, made.new_private(user, seed=0), made.method.model.encode(Examples(tuple(texts))))


def test_one_text_of_a_new_user_is_enough(run):
    found = evaluate_newcomers(run, [0, 1])
    assert found["0"].oov_accuracy == 0 and found["0"].oov_rate_left == pytest.approx(1 / 11)
    assert found["1"].oov_accuracy == 1 and found["1"].oov_rate_left == 0
    assert found["1"].kemr3 == found["0"].kemr3


def test_a_word_that_is_added_is_suggested_at_once(tmp_path):
    with trained(tmp_path) as run:
        assert add_words(run, "ada", ["flimjab"]) == ["flimjab"]
        assert [one.word for one in suggest(run, "we need", user="ada") if one.own] == ["flimjab"]
        assert not any(one.own for one in suggest(run, "we need flimjab and now we should", user="ada"))
        assert not any(one.own for one in suggest(run, "we need", user="bo"))


def test_a_word_typed_twice_is_suggested_while_typing(run):
    live = LiveText(find_suggester(run), learn_after=2)
    found = []
    for line in ("we need flimjab", "now we need flimjab", "we need quibnor and quibnor"):
        found.append([one.word for one in live.suggestions("we need ") if one.own])
        live.enter(line)
    assert found == [[], [], ["flimjab"]]
    assert [one.word for one in live.suggestions("we need q")] == ["quibnor"]
    live = LiveText(find_suggester(run))  # never
    live.enter("we need flimjab and flimjab")
    assert not any(one.own for one in live.suggestions("we need "))


def test_words_typed_once_may_be_no_own_words(tmp_path):
    rows = [{"user": user, "text": f"{user}word and once{n}"} for user in ("ada", "bo") for n in range(20)]
    changed = {**VALUES, **COLD, "own_words_typed": 2, "rounds": 1, "final_personalization": True}
    with prepare("oov_expansion", load_federation(rows), folder=tmp_path, settings=changed) as run:
        list(run.rounds())
        assert [(one.word, one.count) for one in own_words(run, "ada")] == [("adaword", 17)]


def test_rounds_leave_nothing_with_the_client_and_upload_deltas_only(run):
    stored = run.clients.stored_private(run.federation.users)
    assert all(len(one["own.lexicon"]) == len(one["own.adapter"]) == 0 for one in stored.values())
    federated = run.state.broadcast().federated
    assert federated["adapter"].shape == (adapter_size((8,), cells=8),)
    assert run.built.partition.role_of("own.lexicon") is Role.PRIVATE and not any("own" in name for name in federated)
    sent = b"".join(value.numpy().tobytes() for value in federated.values())
    assert not any(own.encode() in sent for own in OWN.values())


def test_the_own_words_of_a_round():
    """The most frequent ones of all texts, ties in alphabetical order, for every text."""
    made = built(prior_words=2)
    data = client(made, "ada", ["we need zorblax", "quibnor and quibnor", "wumpfel"]).data
    assert data["place"][:, :3].tolist() == [[NOTHING] * 3, [0, NOTHING, 0], [1, NOTHING, NOTHING]]
    lexicon = lexicon_of_round(made.initial, data)
    assert lexicon.shape == (3, 2, 32) and lexicon.stride(0) == 0
    assert [read_spelling(row) for row in lexicon[0]] == [b"quibnor", b"wumpfel"]
    assert counts_of_round(made.initial, data).tolist() == [[2, 1]] * 3
    both = {name: torch.stack((column, column.flip(0))) for name, column in data.items()}
    assert torch.equal(lexicon_of_round(made.initial, both), torch.stack((lexicon, lexicon)))
    none = {name: column[:0] for name, column in data.items()}
    assert lexicon_of_round(made.initial, none).shape == (0, 0, 32)
    assert counts_of_round(made.initial, none).shape == (0, 0)


def test_both_engines_train_clients_with_different_numbers_of_own_words():
    texts = {
        "ada": ["we need zorblax and quibnor", "zorblax", "we do"] * 4,
        "bo": ["we need wumpfel"] * 7,
        "cy": ["we do more"] * 9,  # no own word
        "dee": ["yiktang and yiktang"],
    }
    made = built(lr=1.0, batch=4)
    clients, broadcast = [client(made, *one) for one in texts.items()], made.start().broadcast()
    loop = LoopTrainer(made, 0).train(broadcast, clients).update
    cohort = CohortTrainer(made, 0, workers=0).train(broadcast, clients).update
    assert loop.federated["adapter"].abs().max() > 0.01
    for name, value in loop.federated.items():
        torch.testing.assert_close(cohort.federated[name], value, rtol=1e-4, atol=1e-5)
    assert cohort.metrics["loss"] == pytest.approx(loop.metrics["loss"], rel=1e-5)
    only_cy = LoopTrainer(made, 0).train(broadcast, [clients[2]]).update
    assert only_cy.federated["adapter"].abs().max() == 0


def test_the_search_at_home_starts_from_the_federated_adapter_too():
    grid = {"personalize_lrs": (0.1, 1.0), "adapter_scales": (0.0, 0.1), "adapters": ((4,),), **PRIOR}
    prior = Choice(0.1, None, (8,))
    assert choices(Settings(**grid))[:3] == [prior, Choice(0.1, 0.0, (4,)), Choice(0.1, 0.1, (4,))]
    assert len(choices(Settings(**grid))) == 6
    assert choices(Settings(**{**grid, "adapter_scales": ()})) == [prior, prior._replace(lr=1.0)]
    assert choices(Settings(**grid, personalize_trains="nothing")) == []


def test_training_at_home_is_optional(tmp_path):
    """A choice that training does not improve stays the federated adapter; else the user keeps a copy of it."""
    changed = {"personalize_trains": "all", "adapter_scales": (), "final_personalization": True, "rounds": 4}
    for lr, kept in ((0.0, False), (0.3, True)):
        with trained(tmp_path / str(lr), personalize_lrs=(lr,), **changed) as run:
            found, stored = evaluate(run), run.clients.stored_private(["ada"])["ada"]
        assert found.oov_rate_left == 0 and stored["own.hidden"].tolist() == [8] and not stored["own.adapter"].numel()
        assert ("adapter" in stored) == ("lstm.0.weight_ih_l0" in stored) == kept


@pytest.mark.system
@pytest.mark.parametrize("more", [{}, {"personalize_trains": "nothing"}, {"own_words": "all"}])
def test_the_contract(more):
    report = check_method("oov_expansion", {**PRIOR, "prior_adapter": (4, 6), **more})
    assert report.largest_difference < 1e-5


def test_without_the_setting_nothing_of_it_is_there():
    made = built(adapter_prior="none")
    assert "adapter" not in made.initial and list(made.method.model.derived) == ["own"]
    assert "place" not in client(made, "ada", ["zorblax"]).data
    assert made.method.local.phases[0].loss is None and not made.new_private("ada", seed=0)["own.hidden"].numel()


def test_settings_that_exclude_each_other():
    for wrong, message in (
        ({"own_words": "none"}, "adapter_prior = federated needs own words with an adapter"),
        ({"own_start": "spelling"}, "adapter_prior = federated needs own_start = unknown"),
        (
            {"adapter_prior": "none", "own_scores": "identity", "personalize_trains": "nothing"},
            "nothing needs own words with own_start = unknown",
        ),
        ({"adapter_prior": "none", "adapter_scales": ()}, "adapter_scales and adapters need a value each"),
    ):
        with pytest.raises(SettingsError, match=message):
            built(**wrong)


# Differential privacy


@pytest.mark.parametrize("prior", [{}, PRIOR])
def test_a_private_run(tmp_path, prior):
    """Its rounds cost what was asked for; users still learn their own words at home, where there is no noise."""
    privacy = {"epsilon": 8.0, "delta": 0.1, "clip": 0.5, "insecure": True, "ledger": str(tmp_path / "ledger")}
    private = {"sampler": "poisson", "cohort": 2, "rounds": 4, "privacy": privacy, "final_personalization": True}
    with prepare("oov_expansion", chats(), folder=tmp_path / "run", settings={**VALUES, **private, **prior}) as run:
        list(run.rounds())
        found, spent = evaluate(run), summarize_privacy(run)
        assert 7 < spent["epsilon"] <= 8 and run.state.round == 4
        assert found.oov_rate_left == 0 and found.oov_accuracy > 0.5 and np.isfinite(found.emr3)
        assert ("adapter" in run.state.federated) == bool(prior)
        if prior:
            noise = run.state.federated["adapter"] - run.built.initial["adapter"]
            assert float(noise.std()) > 0.1  # of a thousand numbers


def test_noise_hides_that_no_client_has_own_words():
    """In the clear, the adapter moves only if some client has own words."""
    made = built(lr=1.0)
    clients, broadcast = [client(made, "cy", ["we do more"] * 9)], made.start().broadcast()
    for noise, moves in (((), False), ((LOCAL_DP,), True)):
        sent = LoopTrainer(made, SEED, Transforms(noise)).train(broadcast, clients).update
        assert bool(sent.federated["adapter"].abs().max()) == moves


# What an update of the adapter discloses

GUESSES = [f"{start}{end}" for start in ("zor", "quib", "wum", "yik", "flim") for end in ("blax", "nor", "pfel", "jab")]


def distances_from_update(broadcast, update, *, hidden):
    """An attack: how far each guessed word is from what the last layer of the adapter learned from.

    A step of SGD moves this layer by a sum of g a^T over the client's own words, with a the activation before the layer
    that belongs to a word's spelling. So a of every own word is in the row space, and a of other words is not.
    """
    start, cells = broadcast.parameters, broadcast.parameters["output.weight"].shape[1]
    stacked, spelled = (
        {name: value[None] for name, value in start.items()},
        spell_words([one.encode() for one in GUESSES]),
    )
    embedded = embed_stacked(stacked, torch.arange(len(GUESSES))[None], spelling=spelled)[0]
    normal = functional.layer_norm(embedded, (cells,))  # its gain is 1 and its bias 0 at the start
    first, last = 2 * cells, 2 * cells + (cells + 1) * hidden
    weight, bias = start["adapter"][first : first + cells * hidden].view(hidden, cells), start["adapter"][:last]
    activations = (normal @ weight.T + bias[-hidden:]).relu().double()
    moved = update.federated["adapter"][last : last + hidden * cells].view(cells, hidden).double()
    _, sizes, rows = torch.linalg.svd(moved, full_matrices=False)
    rows = rows[sizes > 1e-4 * sizes[0]]
    return (activations - activations @ rows.T @ rows).norm(dim=1) / activations.norm(dim=1)


def test_an_update_in_the_clear_tells_which_guessed_words_are_own_words():
    """As the threat model says: exactly, from one step. Local noise hides it."""
    made = built(prior_adapter=(64,), batch=8, lr=1.0)
    start, draws = made.start(), torch.Generator().manual_seed(0)
    trained = {  # at the start, the model says nearly the same after all words
        name: value + (name != "adapter") * 0.5 * torch.randn(value.shape, generator=draws)
        for name, value in start.federated.items()
    }
    broadcast = replace(start, federated=trained).broadcast()
    mine = [GUESSES[place] for place in (3, 8, 11, 17)]
    texts = ("we need {}", "it is the people of {}", "{} now", "do more and more in {} for the people")
    known = client(made, "ada", [text.format(word) for text, word in zip(texts, mine, strict=True)])
    distances = {}
    for noise in ((), (LOCAL_DP,)):
        sent = LoopTrainer(made, SEED, Transforms(noise)).train(broadcast, [known]).update
        distances[bool(noise)] = distances_from_update(broadcast, sent, hidden=64)
    is_own = torch.tensor([word in mine for word in GUESSES])
    print(distances)
    assert distances[False][is_own].max() < 1e-3 < 0.1 < distances[False][~is_own].min()
    assert distances[True][is_own].max() > distances[True][~is_own].min()
