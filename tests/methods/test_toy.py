"""A method in one file that needs everything a method may bring; nothing in the package was changed for it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from toy import WIDTHS, Mask, TopTwo

from homespun.cli import app
from homespun.core.errors import RunError
from homespun.core.messages import state_to_bytes
from homespun.personalization.new_user import personalize
from homespun.runs.evaluate import evaluate, evaluate_newcomers
from homespun.runs.training import load, reopen, train
from homespun.system.trust import vouched_for
from homespun.testing.contract import check_method

TOY = str(Path(__file__).parent / "toy.py")
SETTINGS = {"rounds": 3, "cohort": 4, "withheld": 0.3}


@pytest.fixture
def corpus():
    return load("dialects", users=12, examples=20)


@pytest.mark.system
def test_it_keeps_its_contract():
    report = check_method(TOY)
    assert {"engines", "resume", "newcomer", "wire", "transforms"} <= set(report.passed)


def test_private_shapes_differ_between_users(corpus, tmp_path):
    with train(TOY, corpus, folder=tmp_path / "run", workers=0, **SETTINGS) as run:
        rows = run.clients.stored_private(list(run.federation.users))
        widths = {len(row["own.adapter"]) for row in rows.values()}
        assert len(rows) == 8 and len(widths) > 1 and widths <= set(WIDTHS)
        assert evaluate(run).headline[0] == "top two" and 0.2 < evaluate(run).value <= 1
        assert list(evaluate_newcomers(run)) == ["0", "5", "all"]
        ada = personalize(run, "ada", ["mepu basi", "tolo rani"] * 8, ["label-0", "label-3"] * 8)
        assert ada.private.keys() == {"own.adapter"} and len(ada.predict(["mepu"])) == 1
    with reopen(tmp_path / "run", federation=corpus, trust=[TOY]) as again:
        assert (
            again.state.round == 3 and again.clients.stored_private(list(again.federation.users)).keys() == rows.keys()
        )


@pytest.mark.system
def test_workers_and_the_loop_agree(corpus):
    def final(**settings):
        with train(TOY, corpus, **{**SETTINGS, **settings}) as run:
            new = {k: found.to_dict() for k, found in evaluate_newcomers(run).items()}
            return run.state, run.clients.stored_private(list(run.federation.users)), str(new)

    here, there = final(workers=0), final(workers=2)
    assert state_to_bytes(here[0]) == state_to_bytes(there[0]) and here[2] == there[2]
    slow = final(engine="loop")
    for name, value in slow[0].federated.items():
        torch.testing.assert_close(here[0].federated[name], value, atol=1e-5, rtol=1e-4)


def test_a_mask_hides_each_update_and_cancels_in_the_sum(corpus):
    with train(TOY, corpus, workers=0, **{**SETTINGS, "rounds": 1}) as run:
        broadcast = run.built.start().broadcast()
        users = list(run.federation.users)[:2]
        clients = run.clients.load(users, "train", broadcast, user_set="population")
        plain = type(run.trainer)(run.built, 0, workers=0).train(broadcast, clients).update
        masked = run.trainer.train(broadcast, clients).update
        assert (plain.federated["words.weight"] - masked.federated["words.weight"]).abs().mean() > 0.5
        unmasked = Mask().on_server(masked, broadcast)
        torch.testing.assert_close(unmasked.federated, dict(plain.federated), atol=1e-5, rtol=1e-4)


def test_it_starts_from_an_artefact_of_the_run(corpus, tmp_path):
    start = tmp_path / "start.safetensors"
    save_file({"words.weight": torch.ones(8, 24), "words.bias": torch.zeros(8)}, start)
    with train(TOY, corpus, folder=tmp_path / "run", workers=0, start=str(start), **SETTINGS) as run:
        assert torch.equal(run.built.start().federated["words.weight"], torch.ones(8, 24))
    save_file({"words.weight": torch.zeros(8, 24), "words.bias": torch.zeros(8)}, start)
    with pytest.raises(RunError, match=r"the start '.*' is not the one that this run"), vouched_for([TOY]):
        train(TOY, corpus, folder=tmp_path / "run", workers=0, start=str(start), **{**SETTINGS, "rounds": 5})


def test_the_commands_work_with_an_unknown_scoring(tmp_path, capsys):
    def call(*arguments):
        app(list(arguments), standalone_mode=False)
        return capsys.readouterr().out

    data = ["--data", "dialects", "--data-set", "users=12", "--data-set", "examples=20"]
    short = ["--set", "cohort=4", "--set", "workers=0", "--set", "withheld=0.3"]
    assert "top two" in call("train", TOY, *data, "--rounds", "2", *short, "--folder", str(tmp_path / "run"))
    assert (tmp_path / "run" / "report.html").exists()
    assert "top two" in call("evaluate", str(tmp_path / "run"))
    assert TopTwo().offers == {"predict"}
