"""FedDrop's selective masking: what is kept, what is counted as sent, in both engines and over worker processes."""

from dataclasses import replace

import pytest
import torch
from small_dialogue import SPEAKERS, conversations, write_reply_model

from homespun.core.intake import Intake
from homespun.core.messages import METRICS, Broadcast, Update
from homespun.core.transforms import Transforms, message_bytes
from homespun.methods._largest_changes import LargestChanges
from homespun.runs.training import load, train


def masked(values, share):
    return LargestChanges(share).mask({"w": torch.tensor(values)})["w"].tolist()


def test_the_largest_changes_by_absolute_value():
    assert masked([1.0, -3.0, 2.0, 0.5], 0.5) == [0.0, -3.0, 2.0, 0.0]
    assert masked([1.0, -3.0, 2.0, 0.5], 0.01) == [0.0, -3.0, 0.0, 0.0]  # at least one
    assert masked([1.0, -3.0, 2.0, 0.5], 0.51) == [1.0, -3.0, 2.0, 0.0]  # rounded up
    assert masked([[1.0, -3.0], [2.0, 0.5]], 0.5) == [[0.0, -3.0], [2.0, 0.0]]
    assert masked(5.0, 0.3) == 5.0


def test_ties_do_not_send_more():
    kept = masked([2.0, -2.0, 2.0, 2.0], 0.5)
    assert sum(one != 0 for one in kept) == 2 and set(kept) <= {0.0, 2.0, -2.0}
    assert masked([0.0, 0.0, 0.0], 0.5) == [0.0, 0.0, 0.0]


def test_every_parameter_has_its_own_mask():
    found = LargestChanges(0.5).mask({"small": torch.tensor([0.1, 0.2]), "large": torch.tensor([10.0, 20.0])})
    assert found["small"].tolist() == [0.0, pytest.approx(0.2)] and found["large"].tolist() == [0.0, 20.0]


def test_a_share_of_one_changes_nothing():
    values = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    assert LargestChanges(1.0).mask({"w": values})["w"] is values


BROADCAST = Broadcast(round=0, federated={"w": torch.zeros(10), "b": torch.zeros(3)}, keyed={})


def update(w, b=(1.0, 2.0, 3.0), weight=2.0):
    federated = {"w": torch.as_tensor(w), "b": torch.as_tensor(b)}
    return Update(round=0, federated=federated, keyed={}, metrics=dict.fromkeys(METRICS, 1.0), weight=weight, clients=1)


def test_a_number_and_its_position_are_counted():
    mask, sent = LargestChanges(0.2), update([1.0] * 10)
    assert message_bytes(sent)["federated"] == 13 * 4
    found = mask.bytes_sent(sent, message_bytes(sent))
    assert found["federated"] == 2 * 8 + 1 * 8  # 2 of 10 numbers and 1 of 3, of 4 bytes each with a position of 4
    assert {name: one for name, one in found.items() if name != "federated"} == {
        name: one for name, one in message_bytes(sent).items() if name != "federated"
    }
    # sent in full if that is smaller
    assert LargestChanges(0.9).bytes_sent(sent, message_bytes(sent))["federated"] == 13 * 4
    empty = replace(sent, federated={})
    assert mask.bytes_sent(empty, message_bytes(empty))["federated"] == 0


def test_the_bytes_of_a_cohort_are_the_sum_over_its_clients():
    mask, sent = LargestChanges(0.2), update([1.0] * 10)
    whole = {**message_bytes(sent), "federated": 3 * 13 * 4}
    assert mask.bytes_sent(sent, whole)["federated"] == 3 * 24
    total = Update(0, {name: torch.zeros_like(one) for name, one in sent.federated.items()}, {}, {}, 0.0, 0)
    intake, transforms = Intake(BROADCAST, replace(total, metrics=dict.fromkeys(METRICS, 0.0))), Transforms((mask,))
    for place, user in enumerate("abc"):
        values = [0.0] * 10
        values[place], values[9] = 5.0, -4.0
        assert intake.add(user, update([0.5 + one for one in values]), transforms=transforms)
    assert intake.sent_bytes["federated"] == 3 * 24
    assert intake.total.federated["w"].tolist() == [5.5, 5.5, 5.5, 0, 0, 0, 0, 0, 0, -10.5]
    assert intake.total.federated["b"].tolist() == [0.0, 0.0, 9.0]


def test_a_malformed_update_is_rejected_and_does_not_stop_the_round():
    intake = Intake(BROADCAST, replace(update([0.0] * 10), clients=0, weight=0.0))
    wrong = replace(update([1.0] * 10), federated={"w": [1.0] * 10, "b": torch.zeros(3)})
    assert not intake.add("eve", wrong, transforms=Transforms((LargestChanges(0.2),)))
    assert intake.rejected["eve"] == "'w' that is not a tensor" and intake.sent_bytes["federated"] == 0


@pytest.mark.system
def test_both_engines_and_worker_processes_agree(tmp_path):
    """With SGD: the first steps of Adam are all equal, and which of them are the largest is a matter of rounding."""
    base = write_reply_model(tmp_path / "model", scale=2.0)

    def trained(**settings):
        values = {"base_model": base, "persona_dim": 3, "batch": 8, "keep_share": 0.3, "rounds": 2}
        values |= {"optimizer": "sgd", "lr": 0.1, **settings}
        with train("fednlg", load(conversations(12)), **values) as run:
            private = run.clients.stored_private(SPEAKERS)
            sent = [one["up_bytes"] for one in run.history() if one["kind"] == "round"]
            return {**run.state.federated, **{u: private[u]["persona.embedding"] for u in SPEAKERS}}, sent

    (slow, counted), (fast, sent), (spread, over_pipes) = (
        trained(engine="loop"), trained(workers=0), trained(workers=2)
    )  # fmt: skip
    assert counted == sent == over_pipes
    numbers = {name: value.numel() for name, value in fast.items() if name not in SPEAKERS}
    assert sent[0]["federated"] == 3 * sum(8 * -(-3 * count // 10) for count in numbers.values())
    for name, value in fast.items():
        assert torch.equal(value, spread[name]), name
        torch.testing.assert_close(value, slow[name], rtol=0, atol=1e-5)
