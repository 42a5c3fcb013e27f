"""Private parameters that the model does not have, of any type and shape, stay with their user in every engine."""

from pathlib import Path

import pytest
import torch

from homespun.core.messages import state_to_bytes
from homespun.runs.training import load, train

LEXICON = str(Path(__file__).parent / "private_lexicon.py")
CORPUS = load("dialects", users=8, examples=10)
SIZES = {"length": 24, "character_dim": 8, "lstm_dim": 8, "hidden_dim": 8, "user_dim": 4}


def trained(**settings):
    with train(LEXICON, CORPUS, rounds=2, cohort="all", **{"workers": 0, **SIZES, **settings}) as run:
        users = list(run.federation.users)
        new = {user: run.clients.new_private(user, run.built.start().broadcast()) for user in users}
        return new, run.clients.stored_private(users), state_to_bytes(run.state)


@pytest.mark.parametrize("keeps", ["all", "share"])
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize(
    "engine",
    [{"engine": "loop"}, {"engine": "cohort"}, pytest.param({"workers": 2}, marks=pytest.mark.system)],
    ids=["loop", "cohort", "workers"],
)
def test_private_integers_are_stored_unchanged_and_embeddings_are_trained(engine, alike, keeps):
    new, kept, _ = trained(alike=alike, private_update=keeps, **engine)
    counts = {len(private["lexicon.words"]) for private in kept.values()}
    assert len(kept) == 8 and (len(counts) == 1) is alike
    for user, private in kept.items():
        assert torch.equal(private["lexicon.words"], new[user]["lexicon.words"])
        assert private["lexicon.words"].dtype == torch.uint8
        assert not torch.equal(private["user.embedding"], new[user]["user.embedding"])


def test_stacked_clients_equal_sequential_ones():
    _, alike, _ = trained(alike=True)
    _, loop, _ = trained(alike=True, engine="loop")
    for user, private in alike.items():
        torch.testing.assert_close(private["user.embedding"], loop[user]["user.embedding"], atol=1e-6, rtol=1e-4)
