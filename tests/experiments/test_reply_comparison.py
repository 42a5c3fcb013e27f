"""A comparison of dialogue runs: all answer the same prompts, and new speakers are scored by number of own samples."""

from contextlib import nullcontext

import pytest
from small_dialogue import conversations, write_dialogue, write_reply_model

from homespun.data.source import DataSettings
from homespun.experiments.experiment import Experiment, collect, train_all
from homespun.report.few_shot import WITHHELD, configuration_table
from homespun.report.reply_tables import prompt_table, reply_tables


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    place = tmp_path_factory.mktemp("compared")
    talk = write_dialogue(place / "talk.jsonl", conversations(60, speakers=("ada", "bo", "cy")))
    model = {"base_model": write_reply_model(place / "base", scale=2.0), "persona_dim": 3, "persona_scale": 3.0}
    model |= {"batch": 8, "new_columns": 1.0, "evaluate_beam": 4, "personalize_epochs": 2}
    alone = {"base_method": "fednlg", "base_settings": {**model, "persona": "none"}, "split_by": "conversation"}
    experiment = Experiment(
        name="some",
        data=DataSettings(source=str(talk)),
        settings={"rounds": 1, "workers": 0, "withheld": 0.34},
        configurations={
            "fedavg": {"method": "fednlg", "settings": model},
            "seq2seq-fl": {"method": "fednlg", "settings": {**model, "persona": "none"}},
            "persona": {"method": "central_dialogue", "settings": model},
            "alone": {"method": "alone", "settings": alone},
        },
    )
    train_all(experiment, place / "runs", lambda run, title: nullcontext(lambda event: None))
    return collect(experiment, place / "runs")


def test_every_run_answers_the_same_prompts(compared):
    found = [one["runs"][0]["replies"] for one in compared["configurations"].values()]
    for part in ("asked", "beam", "prompts"):
        assert all(one[part] == found[0][part] for one in found)
    for part in ("prompts", "users"):
        assert found[0]["samples"][part] and all(one["samples"][part] == found[0]["samples"][part] for one in found)
    for part in ("conversation", "words", "untouched"):
        assert all(one["losses"][part] == found[0]["losses"][part] for one in found)
    for part in ("retrieved", "real"):
        assert all(one["scores"][part] == found[0]["scores"][part] for one in found)


def test_only_runs_with_something_personal_have_another_persona(compared):
    found = {key: one["runs"][0]["replies"] for key, one in compared["configurations"].items()}
    assert [key for key, one in found.items() if one["losses"]["another"]] == ["fedavg", "persona", "alone"]
    assert [key for key, one in found.items() if one["scores"]["another"]] == ["fedavg", "persona", "alone"]
    assert len({tuple(one) for one in found.values()}) == 1  # the same keys, for records


def test_new_speakers_by_number_of_own_samples(compared):
    by_key = {key: one["runs"][0]["newcomers"] for key, one in compared["configurations"].items()}
    every = ["0", "1", "5", "20", "all"]
    assert {key: list(one) for key, one in by_key.items()} == {
        "fedavg": every, "seq2seq-fl": ["0"], "persona": [], "alone": every,
    }  # fmt: skip
    fednlg = [one["value"] for one in by_key["fedavg"].values()]
    assert len(set(fednlg)) == 5  # each number of samples gives another persona
    untouched = compared["configurations"]["fedavg"]["runs"][0]["newcomers_untouched"]
    assert by_key["alone"]["0"]["value"] == pytest.approx(untouched["value"], rel=1e-5)  # the base model
    table = configuration_table(compared, WITHHELD)
    assert [column.title for column in table.columns] == ["Configuration", *every]
    assert [row[0].text for row in table.rows] == ["Base model", "fedavg", "seq2seq-fl", "alone"]
    assert compared["from_samples"]["fedavg"]["newcomers"]["0"]["percent"] == pytest.approx(
        100 * (by_key["fedavg"]["20"]["value"] / by_key["fedavg"]["0"]["value"] - 1)
    )


def test_tables_of_the_comparison(compared):
    assert [len(table.rows) for table in reply_tables(compared)] == [6, 6, 6, 6]
    assert prompt_table(compared).rows
