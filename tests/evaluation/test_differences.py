"""Differences between private parameters, computed by hand."""

import pytest

from homespun.evaluation.differences import personal_differences


def evaluation(losses):
    return {"metric": "perplexity", "users": len(losses), "examples": 2, "user_loss": losses, "user_tokens": [10, 10]}


def test_anothers_parameters_cost_what_the_losses_say():
    own, prior, another = evaluation([10.0, 20.0]), evaluation([11.0, 21.0]), evaluation([13.0, 21.0])
    run = {"personal": {"own": own, "prior": prior, "another": another}}
    found = personal_differences({"ours": [run], "shared": [{"personal": None}], "before it was measured": [{}]})
    assert list(found) == ["ours"]
    assert found["ours"]["prior"]["percent"] == pytest.approx(10.517, abs=1e-3)  # e^(2/20) - 1
    assert found["ours"]["another"]["percent"] == pytest.approx(22.140, abs=1e-3)  # e^(4/20) - 1
