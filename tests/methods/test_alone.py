"""`alone`: the network of any method, trained by every user alone."""

import torch

from homespun.runs.training import load, train

SMALL = {"length": 12, "local_steps": 2, "batch": 3, "personalize_steps": 2}
ROWS = [
    {"user": user, "text": f"the people of {user} say number {number} and more"}
    for user in ("ada", "bo", "cy")
    for number in range(10)
]


def test_private_parameters_that_start_from_shared_ones():
    """FedPerC's personal embedding starts at a shared one, which is private here and never broadcast."""
    with train("alone", load(ROWS), base_method="fedperc", base_settings=SMALL, rounds=1, workers=0) as run:
        broadcast = run.state.broadcast()
        assert not broadcast.parameters
        new = run.clients.new_private("dan", broadcast)
        torch.testing.assert_close(new["personal.embedding"], new["prior.embedding"])
        found = run.clients.private(["ada", "bo"], broadcast)
    assert not torch.equal(found["ada"]["personal.embedding"], found["bo"]["personal.embedding"])
