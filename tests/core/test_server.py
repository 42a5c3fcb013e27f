import pytest
import torch

from homespun.core.errors import SettingsError
from homespun.core.messages import Rows, ServerState, Update, state_from_bytes, state_to_bytes
from homespun.core.server import FedAdam, FedAvg, server_rule

STATE = ServerState(0, {"w": torch.tensor([1.0])}, {"t": torch.tensor([[0.0], [5.0], [9.0]])})


def update(weight=4.0):
    """Two clients, c = 1 and 3, with deltas 2 and -2: the sum of c times delta is -4. Both touched row 0 by 1;
    the second touched row 2 by 2."""
    rows = Rows(torch.tensor([0, 2]), torch.tensor([[4.0], [6.0]]), torch.tensor([4.0, 3.0], dtype=torch.float64))
    return Update(0, {"w": torch.tensor([-4.0])}, {"t": rows}, {}, weight, 2)


def test_fedavg_by_hand():
    after = FedAvg()(STATE, update())
    assert after.round == 1
    assert after.federated["w"].tolist() == [0.0]  # 1 + (1 * 2 + 3 * -2) / 4
    assert after.keyed["t"].tolist() == [[1.0], [5.0], [10.5]]  # row 2: 9 + 3 * 2 / 4


def test_keyed_rows_averaged_over_their_contributors():
    assert FedAvg(row_denominator="contributors")(STATE, update()).keyed["t"].tolist() == [[1.0], [5.0], [11.0]]


def test_the_server_learning_rate_scales_the_step():
    assert FedAvg(lr=0.5)(STATE, update()).federated["w"].tolist() == [0.5]


def test_fedadam_by_hand():
    rule = FedAdam(lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3)
    once = rule(STATE, update())
    # delta -1: m = -0.1, v = 0.01, step = 0.1 * -0.1 / (0.1 + 0.001)
    assert once.federated["w"].item() == pytest.approx(1 - 0.01 / 0.101, abs=1e-7)
    twice = rule(once, update())
    # m = -0.19, v = 0.0199
    assert twice.federated["w"].item() == pytest.approx(1 - 0.01 / 0.101 - 0.019 / (0.0199**0.5 + 0.001), abs=1e-6)
    assert once.keyed["t"][1].item() == 5.0  # untouched


def test_fedadam_with_bias_correction_by_hand():
    """delta -1 twice: m / (1 - 0.9^t) = -1 and v / (1 - 0.99^t) = 1, so that every step is 0.1 / 1.001."""
    rule = FedAdam(lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3, bias_correction=True)
    once = rule(STATE, update())
    assert once.federated["w"].item() == pytest.approx(1 - 0.1 / 1.001, abs=1e-6)
    between = rule(once, update(weight=0.0))  # a round without a step is not counted
    twice = rule(state_from_bytes(state_to_bytes(between)), update())  # and the count is part of the state
    assert twice.federated["w"].item() == pytest.approx(1 - 0.2 / 1.001, abs=1e-6)
    assert once.keyed["t"][1].item() == 5.0  # untouched


def test_fedadam_with_weight_decay_by_hand():
    """delta -1 - 0.5 * 1 = -1.5: m = -0.15, v = 0.0225; an untouched row of 5 has -2.5: m = -0.25, v = 0.0625."""
    once = FedAdam(lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3, weight_decay=0.5)(STATE, update())
    assert once.federated["w"].item() == pytest.approx(1 - 0.015 / 0.151, abs=1e-6)
    assert once.keyed["t"][1].item() == pytest.approx(5 - 0.025 / 0.251, abs=1e-6)


def test_fedadam_as_published_stores_only_the_moments():
    assert sorted(FedAdam()(STATE, update()).optimizer) == [
        "federated.first.w",
        "federated.second.w",
        "keyed.first.t",
        "keyed.second.t",
    ]


def test_a_rule_by_its_name_and_options():
    found = server_rule("fedadam", lr=0.5, row_denominator="cohort", weight_decay=0.1, bias_correction=True)
    assert found == FedAdam(lr=0.5, weight_decay=0.1, bias_correction=True)
    assert server_rule("fedavg", lr=None, row_denominator="cohort") == FedAvg()
    with pytest.raises(SettingsError, match="options of server = fedadam"):
        server_rule("fedavg", lr=None, row_denominator="cohort", weight_decay=0.1)


@pytest.mark.parametrize("rule", [FedAvg(), FedAdam()])
def test_a_cohort_of_weight_zero_changes_only_the_round(rule):
    after = rule(STATE, update(weight=0.0))
    assert (after.round, after.federated, after.keyed) == (1, STATE.federated, STATE.keyed)
