"""The same prompt continued by one user in every context and by several users in one, deterministically."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console
from spoken_corpus import train_small, write_corpus

from homespun.core.errors import SettingsError, UnknownNameError
from homespun.core.settings import parse
from homespun.experiments.experiment import Experiment, with_settings
from homespun.report.prompt_continuations import check_showcase, print_showcase, showcase, showcase_markdown
from homespun.runs.evaluate import evaluate, evaluate_adapted, evaluate_adapted_reusing


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with train_small(tmp_path_factory.mktemp("continuations")) as made:
        yield made


def test_one_user_in_every_context_and_several_users_in_one(run):
    shown = showcase(run, ["We must", "The people"], max_tokens=12)
    found = [(one.prompt, one.user, one.context, one.used) for one in shown[:5]]
    assert found == [
        ("We must", "Abraham Lincoln", "spoken", False),  # the only one who never used a context
        ("We must", "Abraham Lincoln", "written", True),
        ("We must", "John F. Kennedy", "written", True),
        ("We must", "George W. Bush", "written", True),
        ("We must", "George H. W. Bush", "written", True),
    ]
    assert [one.prompt for one in shown] == ["We must"] * 5 + ["The people"] * 5
    assert shown == showcase(run, ["We must", "The people"], max_tokens=12)
    chosen = showcase(run, ["We"], person="kennedy", people=["lincoln"], context="spoken", max_tokens=3)
    assert [(one.user, one.context) for one in chosen] == [
        ("John F. Kennedy", "spoken"), ("John F. Kennedy", "written"), ("Abraham Lincoln", "spoken"),
    ]  # fmt: skip


def test_it_fits_80_columns_and_becomes_markdown(run):
    shown = showcase(run, ["We must"], max_tokens=60, until="end")
    stream = io.StringIO()
    print_showcase(shown, Console(file=stream, width=80, markup=False))
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("We must ...") and max(map(cell_len, lines)) <= 80
    assert "(never used)" in stream.getvalue()
    markdown = showcase_markdown(shown).splitlines()
    assert markdown[:2] == ["| User | Context | Prompt | Continuation |", "| --- | --- | --- | --- |"]
    assert len(markdown) == 2 + 5 and markdown[2].startswith("| Abraham Lincoln | spoken (never used) | We must |")


def experiment(folder, **showcase):
    values = {
        "name": "small",
        "data": {"source": str(write_corpus(folder / "people.csv"))},
        "settings": {"rounds": 1, "withheld": 0.25},
        "configurations": {"fedperc": {"method": "fedperc"}},
        "showcase": {"configuration": "fedperc", "openings": ["We"], **showcase},
    }
    return parse(Experiment, values, where="test")


def test_an_impossible_showcase_is_rejected_before_training(tmp_path):
    check_showcase(experiment(tmp_path, person="George W. Bush", context="spoken"))
    for wrong in ({"person": "Washington"}, {"people": ["Lincoln", "Washington"]}, {"context": "sung"}):
        with pytest.raises(UnknownNameError, match="showcase: no"):
            check_showcase(experiment(tmp_path, **wrong))
    with pytest.raises(SettingsError, match="unknown setting 'top_q'"):
        check_showcase(experiment(tmp_path, sampling={"top_q": 1}))
    with pytest.raises(SettingsError, match=r"no configuration 'fedprec'\. Did you mean 'fedperc'"):
        experiment(tmp_path, configuration="fedprec")


def test_only_participants_can_be_shown(tmp_path):
    one = experiment(tmp_path)
    shown = []
    for person in ("Kennedy", "Lincoln", "George W. Bush", "George H. W. Bush"):
        try:
            check_showcase(one.model_copy(update={"showcase": one.showcase.model_copy(update={"person": person})}))
            shown.append(person)
        except UnknownNameError:
            pass
    assert len(shown) == 3  # of four, one is withheld


def test_settings_of_every_run_override_those_of_a_configuration(tmp_path):
    one = with_settings(experiment(tmp_path), {"lr": 0.5})
    assert one.configurations["fedperc"].settings == {"lr": 0.5}


def test_adapting_to_zero_examples_equals_the_test_as_trained(run):
    test = evaluate(run, "scored")
    found = {count: one.to_dict() for count, one in evaluate_adapted_reusing(run, test).items()}
    assert found == {count: one.to_dict() for count, one in evaluate_adapted(run).items()}
    assert list(found) == ["0", "1", "5", "15", "all"]
