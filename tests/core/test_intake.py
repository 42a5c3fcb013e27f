"""An invalid update is rejected as a whole; the others are summed."""

import re
from dataclasses import replace
from math import inf, nan

import pytest
import torch

from homespun.core.intake import Intake
from homespun.core.messages import Broadcast, Candidate, Rows, Update
from homespun.core.transforms import Transforms, UpdateTransform

BROADCAST = Broadcast(3, federated={"w": torch.zeros(2)}, keyed={"t": torch.zeros(4, 1)}, server={"m": torch.zeros(2)})


def rows(index=(1,), values=((1.0,),), weight=(2.0,)):
    return Rows(torch.tensor(index, dtype=torch.int64), torch.tensor(values), torch.tensor(weight, dtype=torch.float64))


METRICS = {"loss": 0.5, "examples": 2.0}
GOOD = Update(3, {"w": torch.tensor([1.0, 2.0])}, {"t": rows()}, METRICS, weight=2.0, clients=1)
EMPTY = Update(
    3, {"w": torch.zeros(2)}, {"t": rows((), torch.zeros(0, 1).tolist(), ())}, {"loss": 0.0, "examples": 0.0}, 0.0, 0
)


def empty():
    none = Rows(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 1), torch.zeros(0, dtype=torch.float64))
    return Intake(BROADCAST, replace(EMPTY, keyed={"t": none}))


BAD = {
    "NaN": ({"federated": {"w": torch.tensor([1.0, nan])}}, "NaN, infinity or numbers beyond 2e\\+09 in 'w'"),
    "infinity": ({"federated": {"w": torch.tensor([1.0, -inf])}}, "NaN, infinity .* in 'w'"),
    "finite, but their sum would not be": ({"federated": {"w": torch.tensor([1.0, 3e38])}}, "beyond 2e\\+09 in 'w'"),
    "a step of 9e29": ({"federated": {"w": torch.tensor([1.0, 9e29])}}, "beyond 2e\\+09 in 'w'"),
    "a row's step of 9e29": ({"keyed": {"t": rows(values=((9e29,),))}}, "beyond 2e\\+09 in 't'"),
    "a step with weight zero": ({"weight": 0.0, "keyed": {"t": rows(weight=(0.0,))}}, "beyond 0 in 'w'"),
    "NaN in a row": ({"keyed": {"t": rows(values=((nan,),))}}, "NaN, infinity .* in 't'"),
    "NaN in a metric": ({"metrics": {"loss": nan, "examples": 1.0}}, "NaN, infinity .* in its metrics"),
    "a huge metric": ({"metrics": {"loss": 1e308, "examples": 1.0}}, "beyond 1e\\+300 in its metrics"),
    "shape": ({"federated": {"w": torch.zeros(3)}}, r"shape \(3,\) where \(2,\)"),
    "a shape that would broadcast": ({"federated": {"w": torch.zeros(1)}}, r"shape \(1,\) where \(2,\)"),
    "scalar": ({"federated": {"w": torch.tensor(1.0)}}, r"shape \(\) where \(2,\)"),
    "shape of a row": ({"keyed": {"t": rows(values=((1.0, 2.0),))}}, "'t' of shape"),
    "dtype": ({"federated": {"w": torch.zeros(2, dtype=torch.float64)}}, "torch.float64 where torch.float32"),
    "integers": ({"federated": {"w": torch.zeros(2, dtype=torch.int64)}}, "torch.int64 where"),
    "missing": ({"federated": {}}, r"missing \['w'\]"),
    "extra": ({"federated": {"w": torch.zeros(2), "v": torch.zeros(2)}}, r"unexpected \['v'\]"),
    "missing table": ({"keyed": {}}, r"keyed parameters missing \['t'\]"),
    "extra metric": ({"metrics": {**METRICS, "age": 41.0}}, "where .* were expected"),
    "extra statistic": ({"statistics": {"m": torch.zeros(2)}}, r"statistics missing \[\], unexpected \['m'\]"),
    "huge weight": ({"weight": 1e12}, "a weight of 1000000000000.0"),
    "negative weight": ({"weight": -1.0}, "a weight of -1.0"),
    "no weight": ({"weight": None}, "a weight of None"),
    "a weight that is text": ({"weight": "1"}, "a weight of '1'"),
    "weight of a billion examples": ({"weight": 1e9}, "a weight of 1000000000.0"),
    "weight of 400 digits": ({"weight": 10**400}, "a weight of more than 18 digits"),
    "weight of 5,000 digits": ({"weight": 10**5000}, "a weight of more than 18 digits"),
    "complex weight": ({"weight": 2 + 0j}, r"a weight of \(2\+0j\)"),
    "round of 5,000 digits": ({"round": 10**5000}, "an update of round more than 18 digits"),
    "clients of 5,000 digits": ({"clients": 10**5000}, "an update of more than 18 digits clients"),
    "metric of 400 digits": ({"metrics": {"loss": 10**400, "examples": 1.0}}, "beyond 1e\\+300 in its metrics"),
    "complex weights of rows": (
        {"keyed": {"t": replace(rows(), weight=torch.tensor([2 + 0j]))}},
        "weights of rows of 't'",
    ),
    "weights of rows that are integers": (
        {"keyed": {"t": replace(rows(), weight=torch.tensor([2]))}},
        "weights of rows of 't'",
    ),
    "rows that are not tensors": ({"keyed": {"t": Rows([1], [[1.0]], [2.0])}}, "rows of 't' that are not tensors"),
    "a metric that is text": ({"metrics": {"loss": "low", "examples": 1.0}}, "metrics that are not numbers"),
    "not a tensor": ({"federated": {"w": [1.0, 2.0]}}, "'w' that is not a tensor"),
    "NaN weight": ({"weight": nan}, "a weight of nan"),
    "negative weight of a row": ({"keyed": {"t": rows(weight=(-2.0,))}}, "weights of rows of 't'"),
    "weights of too many rows": ({"keyed": {"t": rows(weight=(1.0, 1.0))}}, "weights of rows of 't'"),
    "a row beyond the table": ({"keyed": {"t": rows(index=(4,))}}, "rows of 't' that do not exist"),
    "a row before the table": ({"keyed": {"t": rows(index=(-1,))}}, "rows of 't' that do not exist"),
    "a row twice": ({"keyed": {"t": rows((1, 1), ((1.0,), (1.0,)), (1.0, 1.0))}}, "not ascending"),
    "stale": ({"round": 2}, "an update of round 2 in round 3"),
    "early": ({"round": 4}, "an update of round 4 in round 3"),
    "several clients": ({"clients": 7}, "an update of 7 clients"),
}


@pytest.mark.parametrize(("wrong", "reason"), BAD.values(), ids=BAD)
def test_an_invalid_update_changes_nothing_and_is_recorded(wrong, reason):
    intake = empty()
    assert intake.add("ann", GOOD)
    before = intake.total
    assert not intake.add("bob", replace(GOOD, **wrong))
    assert intake.total is before and intake.accepted == {"ann"}
    assert re.search(reason, intake.rejected["bob"])
    assert intake.add("cem", GOOD)
    assert intake.total.federated["w"].tolist() == [2.0, 4.0] and intake.total.clients == 2


def test_a_second_update_of_the_same_client_is_rejected():
    intake = empty()
    assert intake.add("ann", GOOD) and not intake.add("ann", GOOD)
    assert intake.rejected == {"ann": "a second update in one round"}
    assert (intake.total.weight, intake.total.clients) == (2.0, 1)


class Half(UpdateTransform):
    def on_client(self, update, broadcast, user):
        assert user == "ann"
        return replace(update, federated={"w": update.federated["w"] / 2})

    def bytes_sent(self, update, sent):
        return {**sent, "federated": sent["federated"] // 2}


def test_updates_are_checked_before_they_are_transformed():
    intake, chain = empty(), Transforms((Half(), Half()))
    assert intake.add("ann", GOOD, transforms=chain)
    assert not intake.add("bob", replace(GOOD, weight=nan), transforms=chain)
    assert intake.total.federated["w"].tolist() == [0.25, 0.5]
    assert intake.sent_bytes["federated"] == 2 * (2 * 4 // 4)  # a rejected update was sent too
    assert intake.sent_bytes["statistics"] > 0


def test_halves_run_in_order_on_clients_and_in_reverse_on_the_server():
    class Named(UpdateTransform):
        def __init__(self, name):
            self.name = name

        def on_client(self, update, broadcast, user):
            return [*update, self.name]

        def on_server(self, total, broadcast):
            return [*total, self.name.upper()]

    chain = Transforms((Named("a"), UpdateTransform(), Named("b")))
    assert chain.on_server(chain.on_client([], None, "ann"), None) == ["a", "b", "B", "A"]
    assert len(chain.client_side) == 2 and not chain.sums_clients
    assert Transforms().on_client([], None, "ann") == [] and Transforms().sums_clients


def test_if_clients_are_equal_another_weight_is_rejected():
    intake = replace(empty(), weight=1.0)
    even = replace(GOOD, weight=1.0, keyed={"t": rows(weight=(1.0,))})
    assert intake.add("ann", even) and not intake.add("bob", GOOD)
    assert intake.rejected == {"bob": "a weight of 2.0 where all clients must have 1"} and intake.total.weight == 1.0


def test_a_negative_number_of_examples_is_rejected():
    intake = empty()
    assert not intake.add("ann", replace(GOOD, metrics={"loss": 0.5, "examples": -3.0}))
    assert intake.rejected == {"ann": "-3 examples"}


def test_statistics_are_bounded_and_shaped_like_their_parameter():
    total = replace(EMPTY, statistics={"m": torch.zeros(2)})
    intake = replace(empty(), total=replace(total, keyed=empty().total.keyed), statistics=["m"])
    for wrong in (torch.tensor([0.0, 9e29]), torch.tensor([0.0, nan]), torch.zeros(3), torch.zeros(2).double()):
        assert not intake.add("ann", replace(GOOD, statistics={"m": wrong}))
    assert not intake.add("ann", GOOD) and intake.rejected["ann"] == "statistics missing ['m'], unexpected []"
    assert intake.add("ann", replace(GOOD, statistics={"m": torch.tensor([1.0, 3.0])}))
    assert intake.add("bob", replace(GOOD, statistics={"m": torch.tensor([1.0, 1.0])}))
    assert intake.total.statistics["m"].tolist() == [2.0, 4.0]


def test_the_first_candidate_with_the_highest_score_is_kept_and_all_are_bounded():
    intake = replace(empty(), best=["m"])
    for value in (9e29, nan):
        candidate = Candidate(-1.0, torch.tensor([0.0, value]))
        assert not intake.add("ann", replace(GOOD, best={"m": candidate}))
        assert "beyond 1e+09 in 'm'" in intake.rejected["ann"]
    for score in (-(10**400), nan, 0.5, "high"):
        assert not intake.add("ann", replace(GOOD, best={"m": Candidate(score, torch.zeros(2))}))
        assert "a score of" in intake.rejected["ann"]
    for user, score, value in (("ann", -2.0, 1.0), ("bob", -1.0, 2.0), ("cem", -1.0, 3.0), ("dan", -3.0, 4.0)):
        assert intake.add(user, replace(GOOD, best={"m": Candidate(score, torch.full((2,), value))}))
    assert intake.total.best["m"].value.tolist() == [2.0, 2.0]


def test_the_largest_weight_and_step_are_accepted():
    heavy = replace(GOOD, weight=1e8, keyed={"t": rows(weight=(1e8,))}, federated={"w": torch.tensor([1e17, 0.0])})
    assert empty().add("ann", heavy)
