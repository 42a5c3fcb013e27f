"""Differences between private parameters, computed by hand."""

import pytest

from homespun.evaluation.differences import most_samples, personal_differences, sample_gains


def evaluation(losses):
    return {"metric": "perplexity", "users": len(losses), "examples": 2, "user_loss": losses, "user_tokens": [10, 10]}


def test_anothers_parameters_cost_what_the_losses_say():
    own, prior, another = evaluation([10.0, 20.0]), evaluation([11.0, 21.0]), evaluation([13.0, 21.0])
    run = {"personal": {"own": own, "prior": prior, "another": another}}
    found = personal_differences({"ours": [run], "shared": [{"personal": None}], "before it was measured": [{}]})
    assert list(found) == ["ours"]
    assert found["ours"]["prior"]["percent"] == pytest.approx(10.517, abs=1e-3)  # e^(2/20) - 1
    assert found["ours"]["another"]["percent"] == pytest.approx(22.140, abs=1e-3)  # e^(4/20) - 1


def test_the_largest_number_of_samples_is_compared_with_fewer():
    """20 samples for replies; `all` is no number. The loss falls by 4 of 20 tokens: e^(-4/20) - 1."""
    by_count = {"0": evaluation([12.0, 22.0]), "5": evaluation([9.0, 9.0]), "20": evaluation([10.0, 20.0])}
    run = {"test": evaluation([12.0, 22.0]), "adapted": {}, "newcomers": {**by_count, "all": evaluation([1.0, 1.0])}}
    fixed = {"test": evaluation([12.0, 22.0]), "adapted": {}, "newcomers": {"0": evaluation([12.0, 22.0])}}
    assert most_samples([fixed, run]) == "20" and most_samples([{}]) == "0"
    found = sample_gains({"ours": [run], "shared": [fixed]})
    assert found["ours"]["newcomers"]["0"]["percent"] == pytest.approx(-18.127, abs=1e-3)
    assert found["ours"]["newcomers"]["1"] is None and found["ours"]["adapted"] == {"0": None, "1": None}
    assert found["shared"]["newcomers"] == {"0": None, "1": None}
    assert sample_gains({"shared": [fixed]})["shared"]["newcomers"] == {"0": None, "1": None}  # not 0 against 0
