"""The search at home, with a model of one number whose best value is known."""

from dataclasses import replace
from functools import partial

import torch

from homespun.core.method import Phase, Sgd
from homespun.core.personalize import GradientSteps, Home
from homespun.methods._choices_at_home import ChoicesAtHome, split_rows


def home_of(examples=10):
    def train_each(phases, starts, data):
        """A step to 1 of length lr."""
        return [{"w": one["w"] + phase.trains["w"].lr} for phase, one in zip(phases, starts, strict=True)]

    return Home(
        "ada", {"w": torch.zeros(())}, {"x": torch.arange(float(examples))}, torch.Generator().manual_seed(1),
        train=None, train_each=train_each, losses=None, predict_each=lambda each, data: [one["w"] for one in each],
    )  # fmt: skip


def search_of(choices, *, epochs=10, best=1.0, seen=None):
    def score(check, output):
        if seen is not None:
            seen.append(round(float(output), 4))
        return (-abs(float(output) - best),)

    return ChoicesAtHome(
        choices,
        starts=lambda home, fit, choices: [home.parameters] * len(choices),
        phase=lambda lr: Phase({"w": Sgd(lr)}, batch=4, epochs=1),
        score=score,
        epochs=epochs,
        validation_share=0.2,
    )


def test_every_choice_stops_when_its_score_does_not_improve():
    """0.4 reaches 0.8 and 1.2, which are equally near to 1; 0.6 reaches 0.6 and then 1.2."""
    seen = []
    found = search_of([0.4, 0.6], seen=seen)(home_of())
    assert seen == [0, 0, 0.4, 0.6, 0.8, 1.2, 1.2, 1.8]
    assert round(float(found["w"]), 4) == 0.8


def test_the_first_of_equal_choices_wins():
    found = search_of([0.8, 1.2])(home_of())
    assert round(float(found["w"]), 4) == 0.8


def test_successive_halving_trains_the_better_half_on():
    """After one step, 0.1 and 0.2 are worst; after two, 0.3 is worse than 0.4, which reaches 0.8 and then 1.2."""
    seen = []
    search = replace(search_of([0.1, 0.2, 0.3, 0.4], seen=seen), survivors=0.5)
    assert round(float(search(home_of())["w"]), 4) == 0.8
    assert seen == [0] * 4 + [0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2]


def test_a_limited_number_of_epochs():
    assert round(float(search_of([0.1], epochs=3)(home_of())["w"]), 4) == 0.3


def test_a_choice_that_gets_worse_stays_at_its_start():
    for lr in (5.0, float("nan")):
        home = home_of()
        assert search_of([lr])(home) is home.parameters


def test_if_no_score_is_finite_the_parameters_stay():
    home = home_of()
    search = replace(search_of([0.1, 0.2]), starts=lambda home, fit, choices: [{"w": torch.tensor(torch.nan)}] * 2)
    assert search(home) is home.parameters


def test_a_start_that_is_worse_than_no_choice_is_kept_only_if_training_improves_it():
    """Without a choice the parameter is 0 and its score -1. Steps from 5 lead away; those from 2.5 to 1.5 and 0.5."""
    for first, lr, reached in ((5.0, 1.0, 0.0), (0.5, 9.0, 0.5), (2.5, -1.0, 1.5)):
        search = search_of([lr])
        search = replace(search, starts=lambda home, fit, choices, first=first: [{"w": torch.tensor(first)}])
        assert search(home_of())["w"] == reached


def test_what_a_user_is_to_know():
    search = replace(search_of([0.1]), describe=lambda parameters, data: [f"w is {float(parameters['w']):g}."])
    zero, one, data = {"w": torch.zeros(())}, {"w": torch.ones(())}, {"x": torch.zeros(2)}
    as_it_was = "The shared model is kept as it was: "
    assert search.notices(zero, one, data) == ["w is 1."]
    assert search.notices(zero, zero, data) == [
        as_it_was + "training improved it with none of the settings.",
        "w is 0.",
    ]
    few = {"x": torch.zeros(1)}
    assert search.notices(zero, zero, few)[0] == as_it_was + "one example is too few to choose settings by."
    assert replace(search, choices=[]).notices(zero, zero, data) == ["w is 0."]  # nothing was to be trained
    assert GradientSteps().notices(zero, zero, data) == []


def test_a_user_with_one_example_has_nothing_to_choose_by():
    home = home_of(1)
    assert search_of([0.5])(home) is home.parameters
    assert search_of([0.5])(home_of(2))["w"] == 1


def test_the_parts_of_a_split():
    split = partial(split_rows, generator=torch.Generator().manual_seed(3))
    fit, check = split({"x": torch.arange(18)}, 1 / 9)
    assert len(fit["x"]) == 16 and len(check["x"]) == 2
    assert sorted([*fit["x"].tolist(), *check["x"].tolist()]) == list(range(18))
    assert [len(one["x"]) for one in split({"x": torch.arange(0)}, 0.5)] == [0, 0]
