"""Tuning a reranker: on public pairs and on sums of clients' counts, resumed after a kill, never on the test part."""

from pathlib import Path

import numpy as np
import pytest
from small_dialogue import PUBLIC, SPEAKERS, WORDS, conversations, write_dialogue, write_reply_model

from homespun.core.errors import InputError, RunError
from homespun.data.source import DataSettings
from homespun.evaluation.bleu import corpus_bleu
from homespun.evaluation.mert import grid_counts
from homespun.models.reply_model import load_inverse, load_public_pairs, load_reply_model
from homespun.personalization import reranker_tuning
from homespun.personalization.replies import Search, find_replier, reply
from homespun.personalization.reranker_tuning import (
    GAMMAS,
    LAMBDAS,
    UNFINISHED,
    client_counts,
    score_candidates,
    tune_reranker,
)
from homespun.personalization.reranking import Reranker, load_reranker
from homespun.runs.training import collect_results, prepare

SMALL = {"rounds": 2, "workers": 0, "persona_dim": 3, "batch": 8, "new_columns": 1.0, "persona_scale": 3.0}


@pytest.fixture
def run(tmp_path):
    write_dialogue(tmp_path / "talk.jsonl", conversations(20))
    write_reply_model(tmp_path / "inverse", scale=2.0, direction="prompts", seed=5)
    write_reply_model(tmp_path / "base", scale=2.0, public=PUBLIC)
    data = DataSettings(source=str(tmp_path / "talk.jsonl"))
    values = {"base_model": str(tmp_path / "base"), **SMALL}
    with prepare("fednlg", data.load(), folder=tmp_path / "run", settings=values, data=data) as found:
        list(found.rounds())
        yield found


def inverse_of(run):
    return str(run.vault.path.parent.parent / "inverse")


def test_public_pairs_are_whole_replies(run):
    base = find_replier(run).base
    assert load_public_pairs(base) == [(WORDS.encode(asked), WORDS.encode(said)) for asked, said in PUBLIC]


def test_a_base_without_pairs_cannot_tune(tmp_path):
    write_reply_model(tmp_path / "plain", scale=2.0)
    with pytest.raises(InputError, match="no held-out pairs"):
        load_public_pairs(load_reply_model(str(tmp_path / "plain")))


def test_tuned_on_public_pairs_no_grid_point_is_better(run):
    tuned = tune_reranker(run, inverse_of(run), beam=8)
    assert tuned.tuned_on == "public held-out pairs"
    replier = find_replier(run, reranked=False)
    pairs = load_public_pairs(replier.base)
    lists = list(score_candidates(replier, tuned, replier.speaker(None), pairs, search=Search(beam=8)))
    features, counts = [one for one, _ in lists], [one for _, one in lists]
    grid = grid_counts(features, counts, lambdas=np.linspace(0, 5, 51), gammas=np.linspace(-5, 5, 51))
    assert tuned.bleu >= corpus_bleu(grid, smoothing="exp").max() - 1e-12


def test_the_reranker_is_kept_and_used(run):
    before = reply(run, "is the sea blue?", user=SPEAKERS[0], beam=8)
    assert all(one.log_prob_of_prompt is None for one in before)
    tuned = tune_reranker(run, inverse_of(run), beam=8)
    kept = load_reranker(run, find_replier(run).base)
    assert (kept.lam, kept.gamma, kept.bleu) == (tuned.lam, tuned.gamma, tuned.bleu)
    after = reply(run, "is the sea blue?", user=SPEAKERS[0], beam=8)
    assert all(one.log_prob_of_prompt is not None for one in after)


def test_a_reranker_whose_inverse_model_changed_can_be_tuned_again(run):
    tune_reranker(run, inverse_of(run), beam=8)
    write_reply_model(Path(inverse_of(run)), scale=2.0, direction="prompts", seed=6)
    with pytest.raises(RunError, match="Tune again"):
        find_replier(run)
    again = tune_reranker(run, inverse_of(run), beam=8)
    assert find_replier(run).reranker.inverse.fingerprint == again.inverse.fingerprint


def test_federated_tuning_adds_up_the_counts_of_clients(run):
    replier = find_replier(run, reranked=False)
    untuned = Reranker(load_inverse(inverse_of(run), replier.base), 0.0, 0.0)
    users = list(run.federation.users)
    sent = [client_counts(replier, untuned, user, questions=2, search=Search(beam=8)) for user in users]
    assert all(one.shape == (len(LAMBDAS), len(GAMMAS), 10) for one in sent)
    tuned = tune_reranker(run, inverse_of(run), federated=True, questions=2 * len(users), beam=8)
    best = corpus_bleu(sum(sent), smoothing="exp")
    assert tuned.bleu == pytest.approx(best.max())
    at = (LAMBDAS.index(tuned.lam), GAMMAS.index(tuned.gamma))
    assert best[at] == pytest.approx(best.max())
    (entry,) = [one for one in run.history() if one["kind"] == "reranking"]
    assert "BLEU counts" in collect_results(run)["released"]
    assert entry["clients"] == len(users) and entry["numbers"] == len(LAMBDAS) * len(GAMMAS) * 10


@pytest.mark.parametrize("federated", [False, True])
def test_an_interrupted_tuning_resumes(run, federated, monkeypatch):
    monkeypatch.setattr(reranker_tuning, "AT_ONCE", 1)
    expected = tune_reranker(run, inverse_of(run), federated=federated, questions=6, beam=8)
    searched = []
    keep = reranker_tuning._keep

    def killed(some_run, finished):
        keep(some_run, finished)
        searched.append(1)
        if len(searched) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(reranker_tuning, "_keep", killed)
    with pytest.raises(KeyboardInterrupt):
        tune_reranker(run, inverse_of(run), federated=federated, questions=6, beam=8)
    assert run.vault.artefact(UNFINISHED) is not None
    again = tune_reranker(run, inverse_of(run), federated=federated, questions=6, beam=8)
    assert (again.lam, again.gamma, again.bleu) == (expected.lam, expected.gamma, expected.bleu)
    assert len(searched) == 3  # two lists or clients were finished before, of three
    assert run.vault.artefact(UNFINISHED) is None


def test_other_settings_do_not_resume(run, monkeypatch):
    monkeypatch.setattr(reranker_tuning, "AT_ONCE", 1)
    monkeypatch.setattr(reranker_tuning, "tune", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tune_reranker(run, inverse_of(run), beam=8)
    monkeypatch.undo()
    finished = reranker_tuning._finished
    found = []
    monkeypatch.setattr(reranker_tuning, "_finished", lambda *some: found.append(finished(*some)) or found[-1])
    tune_reranker(run, inverse_of(run), beam=4)
    assert "features/0" in found[0]  # of its own search, added after it was opened empty
    assert len(found) == 1 and len(found[0]["sizes/0"]) == len(PUBLIC)


def test_a_private_run_is_not_tuned_on_its_clients(tmp_path):
    data = DataSettings(source=str(write_dialogue(tmp_path / "talk.jsonl", conversations(40))))
    privacy = {"epsilon": 8.0, "clip": 1.0, "delta": 0.1, "amplification": False}
    values = {**SMALL, "base_model": write_reply_model(tmp_path / "base", public=PUBLIC), "privacy": privacy}
    inverse = write_reply_model(tmp_path / "inverse", direction="prompts")
    with (
        prepare("fednlg", data.load(), folder=tmp_path / "run", settings=values, data=data) as run,
        pytest.raises(RunError, match="sent without noise"),
    ):
        tune_reranker(run, inverse, federated=True, beam=4)
