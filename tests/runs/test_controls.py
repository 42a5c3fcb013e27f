"""The controls of language: the base model at its best start, own sentences in its context, another user's state."""

import json

import numpy as np
import pytest
import torch
from language_models import write_gpt2

from homespun.core import seeds
from homespun.core.errors import SettingsError
from homespun.data.table import Collector, Filters, build_table
from homespun.engines.simulation import k_shot
from homespun.models.in_context import in_context_losses
from homespun.models.pretrained import load_pretrained
from homespun.runs.controls import STARTS, choose_start, evaluate_controls, evaluate_personal_share, newcomer_controls
from homespun.runs.evaluate import evaluate
from homespun.runs.open_run import identity_of
from homespun.runs.training import prepare, train

WORDS = ["the people ask what we must go on with", "my fellow citizens, I think so", "we must, we must, we must go"]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(write_gpt2(tmp_path_factory.mktemp("base") / "model", positions=96))


@pytest.fixture(scope="module")
def federation():
    collected = Collector()
    for user in range(6):
        for row in range(20):
            words = WORDS[(user + row) % 3].split()
            collected.add(f"user {user}", " ".join(words[row % 4 :] + words[: row % 4]), label=None, context="speech")
    return build_table(collected, name="said", fingerprint="said", filters=Filters())


def small(base, **more):
    return {"base_model": base, "rounds": 2, "length": 12, "local_steps": 2, "withheld": 0.34, "workers": 0, **more}


def test_the_base_model_is_evaluated_after_the_start_that_is_best_on_the_evaluation_part(base, federation):
    """Before any round FedPerC's prefix is its start, so that its own evaluation says what each start is worth."""
    losses, scored = {}, {}
    for start in STARTS:
        with prepare("fedperc", federation, folder=None, settings=small(base, start=start)) as run:
            losses[start], scored[start] = evaluate(run, "eval").loss, evaluate(run, "scored").loss
    assert len(set(losses.values())) == len(STARTS)
    best = min(STARTS, key=lambda start: losses[start])
    with prepare("fedperc", federation, folder=None, settings=small(base)) as run:
        assert choose_start(run, load_pretrained(base)) == best
        assert evaluate_controls(run)["untouched"].loss == pytest.approx(scored[best])


def test_sentences_in_context_are_those_that_a_client_adapts_to(base, federation):
    """By hand: with one sentence, every scored utterance of a user is read after that sentence and a line break."""
    pretrained = load_pretrained(base)
    with prepare("fedperc", federation, folder=None, settings=small(base)) as run:
        found = evaluate_controls(run)
        assert list(found) == ["untouched", "in_context_1", "in_context_5", "in_context_15"]
        (line,) = pretrained.tokenizer("\n", add_special_tokens=False)["input_ids"]
        start, expected = pretrained.start(choose_start(run, pretrained)), []
        for position, user in enumerate(run.federation.users):
            draw = seeds.numpy_generator(run.settings.seed, "samples", user)
            own = k_shot(run.clients.encode(run.federation, position, "adapt"), 1, draw=draw)
            sentence = own["tokens"][0, : int(own["length"][0])].tolist()
            scored = run.clients.encode(run.federation, position, "scored")
            losses = in_context_losses(pretrained.model, [start, *sentence, line], scored)
            expected.append(float(losses[:, 3:].double().sum()))
        np.testing.assert_allclose(found["in_context_1"].user_loss, expected, rtol=1e-5)
        new = newcomer_controls(run)
        assert list(new) == list(found) and new["in_context_5"].users == len(run.newcomers.users)


def test_another_users_parameters_are_worse_than_the_users_own(base, federation):
    with train("fedperc", federation, **small(base, lr=0.05, personal_lr=0.5, rounds=6)) as run:
        found = evaluate_personal_share(run)
        assert found["own"].user_loss == evaluate(run, "scored").user_loss
        prior = run.clients.new_private("", run.state.broadcast())
        assert not torch.equal(
            run.clients.private(["user 0"], run.state.broadcast())["user 0"]["personal.embedding"],
            prior["personal.embedding"],
        )
        assert found["own"].loss != found["prior"].loss != found["another"].loss


def test_without_private_parameters_there_is_no_personal_share(base, federation):
    with prepare("meta_learning", federation, folder=None, settings=small(base)) as run:
        assert evaluate_personal_share(run) is None


def test_generated_parameters_are_from_the_users_text_no_text_and_another_users_text(base, federation):
    settings = small(base, heads=4, evidence_words=16)
    with train("fedperc_generated", federation, **{**settings, "local_steps": 1, "rounds": 3, "lr": 5.0}) as run:
        found = evaluate_personal_share(run)
        assert found["own"].user_loss == pytest.approx(evaluate(run, "scored").user_loss)
        assert len({round(one.loss, 9) for one in found.values()}) == 3


def test_heads_use_the_start_in_the_settings(base, federation):
    losses = {}
    for start in ("", "."):
        with prepare("split_learning", federation, folder=None, settings=small(base, start=start)) as run:
            losses[start] = evaluate(run, "scored").loss
        with prepare("fedperc", federation, folder=None, settings=small(base, start=start)) as run:
            assert evaluate(run, "scored").loss == pytest.approx(losses[start], rel=1e-5)
    assert losses[""] != losses["."]


def test_a_start_of_several_tokens_is_rejected(base, federation):
    with pytest.raises(SettingsError, match=r"start: 'the people' is \d+ tokens"):
        prepare("fedperc", federation, folder=None, settings=small(base, start="the people"))


def test_a_setting_added_later_does_not_change_the_identity_of_older_runs(base, federation):
    with prepare("fedperc", federation, folder=None, settings=small(base)) as run:
        assert "start" not in identity_of(run.method, federation, run.settings)["method_settings"]
    with prepare("fedperc", federation, folder=None, settings=small(base, start=".")) as run:
        assert json.dumps(identity_of(run.method, federation, run.settings)["method_settings"]["start"]) == '"."'


def test_configurations_on_the_same_utterances_share_cached_controls(base, federation, monkeypatch):
    monkeypatch.setattr("homespun.runs.controls._cached_controls", {})
    read = []
    monkeypatch.setattr(
        "homespun.runs.controls.in_context_losses", lambda *given: read.append(1) or in_context_losses(*given)
    )
    with prepare("fedperc", federation, folder=None, settings=small(base)) as run:
        first = evaluate_controls(run)
    once = len(read)
    with prepare("meta_learning", federation, folder=None, settings=small(base)) as run:
        assert evaluate_controls(run) == first and len(read) == once > 0
    for other in (small(base, seed=1), small(base, length=8)):
        with prepare("fedperc", federation, folder=None, settings=other) as run:
            assert evaluate_controls(run) != first
    assert len(read) > 2 * once
