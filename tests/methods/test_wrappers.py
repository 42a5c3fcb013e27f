"""FedRep, pFedMe and PFedKM: their steps by hand, and over the networks of other methods."""

from dataclasses import replace

import pytest
import torch
from small_dialogue import conversations, write_dialogue, write_reply_model

from homespun.core.errors import HomespunError, RunError, SettingsError
from homespun.core.messages import Rows, ServerState, Update
from homespun.core.method import build
from homespun.core.roles import Role
from homespun.core.server import FedAvg
from homespun.data import load_federation
from homespun.data.source import DataSettings
from homespun.engines.client import Client
from homespun.engines.cohort import CohortTrainer
from homespun.engines.loop import LoopTrainer, train_client
from homespun.experiments.results import single_results
from homespun.methods.pfedkm import LloydRule, split
from homespun.personalization.replies import reply
from homespun.runs.open_run import task_of
from homespun.runs.training import prepare, train_and_evaluate
from homespun.system.method_loading import load_method
from homespun.testing.contract import check_method


@pytest.fixture(scope="module")
def federation():
    return load_federation("digits", settings={"users": 20})


def made(method, federation, **settings):
    built = build(load_method(method, settings, task_of(federation)), seed=3)
    user = federation.users[0]
    return built, Client(user, built.new_private(user, seed=3), built.method.model.encode(federation.examples(0)))


def test_fedrep_keeps_the_head_and_uploads_the_representation(federation):
    built, client = made("fedrep", federation)
    assert built.partition.names(Role.PRIVATE) == ("head.weight", "head.bias")
    sent = LoopTrainer(built, 0).train(built.start().broadcast(), [client])
    assert set(sent.update.federated) == {name for name in built.initial if name.startswith("encoder.")}
    assert not torch.equal(sent.private[client.user]["head.weight"], client.private["head.weight"])


def test_fedrep_trains_the_representation_with_the_trained_head(federation):
    built, client = made("fedrep", federation, head_steps=4)
    start = built.start().broadcast()
    both, _ = train_client(built, start, client, mode="round", seed=0)
    ready = Client(client.user, {name: both[name] for name in client.private}, client.data)
    still = load_method("fedrep", {"head_steps": 4, "head_lr": 0.0}, task_of(federation))
    again, _ = train_client(build(still, seed=3), start, ready, mode="round", seed=0)
    for name in start.federated:
        torch.testing.assert_close(again[name], both[name], atol=1e-7, rtol=1e-5)


def test_pfedme_moves_the_common_head_towards_the_personal_one(federation):
    """w - eta lambda (w - theta), with theta as it is after the personal steps."""
    built, client = made("pfedme", federation, tie=0.5, common_lr=0.4)
    start = built.start().broadcast()
    trained, _ = train_client(built, start, client, mode="round", seed=0)
    for name in ("head.weight", "head.bias"):
        common, own = start.federated[f"model.{name}"], trained[f"own.{name.replace('.', '/')}"]
        torch.testing.assert_close(trained[f"model.{name}"], common - 0.4 * 0.5 * (common - own))
        assert not torch.equal(own, common)


def test_a_stronger_tie_keeps_personal_parameters_closer(federation):
    def distance(tie):
        built, client = made("pfedme", federation, tie=tie, own_steps=20)
        start = built.start().broadcast()
        trained, _ = train_client(built, start, client, mode="round", seed=0)
        return float((trained["own.head/weight"] - start.federated["model.head.weight"]).norm())

    assert distance(10.0) < distance(0.1) < distance(0.0)


def test_the_full_moreau_envelope_averages_nothing_but_common_parameters(federation):
    built, client = made("pfedme", federation, personal="all", local_rounds=2)
    private = set(built.partition.names(Role.PRIVATE))
    assert len(private) == len(built.initial) // 2 and all(name.startswith("own.") for name in private)
    start = built.start().broadcast()
    trained, _ = train_client(built, start, client, mode="round", seed=0)
    assert all(not torch.equal(trained[name], value) for name, value in start.federated.items() if "bias" not in name)


def lloyd(rows, centroids, heads, noise=0.0):
    """`rows`: of some centroids, the sum of their members' steps, and how many there are."""
    members = torch.zeros(len(centroids)).index_copy_(0, rows.index, rows.weight.float())
    steps = torch.zeros_like(centroids).index_copy_(0, rows.index, rows.values)
    update = Update(
        0,
        {},
        {"heads.w": Rows(rows.index, torch.zeros(len(rows.index), 1), rows.weight)},
        {},
        weight=float(rows.weight.sum()),
        clients=int(rows.weight.sum()),
        statistics={"members": members, "centroids": steps},
        noise={"members": noise},
    )
    server = {"members": torch.zeros(len(centroids)), "centroids": centroids}
    return LloydRule(FedAvg())(ServerState(0, {}, {"heads.w": heads}, server=server), update)


def test_a_round_of_pfedkm_is_a_lloyd_step():
    """Two members at 1 and 3 make centroid 0 their mean; one at 8 moves centroid 1 there."""
    centroids, heads = torch.tensor([[0.0], [10.0]]), torch.tensor([[1.0], [2.0]])
    rows = Rows(
        torch.tensor([0, 1]), torch.tensor([[1.0 + 3.0], [-2.0]]), torch.tensor([2.0, 1.0], dtype=torch.float64)
    )
    after = lloyd(rows, centroids, heads)
    assert after.server["centroids"].flatten().tolist() == [2.0, 8.0]
    assert torch.equal(after.keyed["heads.w"], heads)


def test_a_count_that_may_be_noise_moves_no_centroid():
    centroids, heads = torch.tensor([[0.0], [10.0], [20.0]]), torch.tensor([[1.0], [2.0], [3.0]])
    gaps, counts = torch.tensor([[4.0], [4.0], [-2.0]]), torch.tensor([4.0, 4.0, 2.0], dtype=torch.float64)
    rows = Rows(torch.arange(3), gaps, counts)
    assert lloyd(rows, centroids, heads, noise=1.0).server["centroids"].flatten().tolist() == [1.0, 11.0, 20.0]
    assert lloyd(rows, centroids, heads, noise=0.5).server["centroids"].flatten().tolist() == [1.0, 11.0, 19.0]


def test_an_empty_cluster_takes_half_of_the_largest():
    centroids, heads = torch.tensor([[0.0], [10.0], [50.0]]), torch.tensor([[1.0], [2.0], [3.0]])
    rows = Rows(torch.tensor([0, 1]), torch.zeros(2, 1), torch.tensor([5.0, 1.0], dtype=torch.float64))
    after = lloyd(rows, centroids, heads)
    assert after.server["centroids"][:2].flatten().tolist() == [0.0, 10.0]
    assert abs(float(after.server["centroids"][2])) == pytest.approx(0.01) and float(after.keyed["heads.w"][2]) == 1.0
    assert after.server["members"].tolist() == [2.5, 1.0, 2.5]


def test_a_cluster_is_not_deserted_after_one_round_without_members():
    assert split(torch.tensor([5.0, 4.0, 0.8])).tolist() == [0, 1, 2]  # one of them came in the round before
    assert split(torch.tensor([7.0, 1.0, 0.0])).tolist() == [0, 1, 0]
    assert split(torch.tensor([3.0, 3.0, 0.0])).tolist() == [0, 1, 2]  # none has twice the mean


@pytest.mark.parametrize("gradient", ["at zero", "at heads"])
def test_a_users_direction_is_that_of_the_gradient_of_the_reference_head(federation, gradient):
    built, client = made("pfedkm", federation, gradient=gradient)
    share = 0.0 if gradient == "at zero" else 1.0
    start = built.start().broadcast()
    trained, _ = train_client(built, start, client, mode="round", seed=0)
    head = {
        name: (share * start.keyed[f"heads.{name}"].mean(dim=0)).requires_grad_()
        for name in ("head/weight", "head/bias")
    }
    model = {
        f"encoder.{name[14:]}": value for name, value in start.federated.items() if name.startswith("model.encoder.")
    }
    plain, _ = made("preference", federation)
    given = {**model, "head.weight": head["head/weight"], "head.bias": head["head/bias"]}
    logits = torch.func.functional_call(plain.model, given, (client.data,))
    torch.nn.functional.cross_entropy(logits, client.data["label"]).backward()
    gradient = torch.cat([head[name].grad.flatten() for name in ("head/weight", "head/bias")])
    torch.testing.assert_close(trained["user.gradient"], gradient, atol=1e-6, rtol=1e-4)


def test_a_user_of_pfedkm_is_in_the_cluster_that_its_gradient_is_nearest_to(federation):
    built, client = made("pfedkm", federation)
    start = built.start().broadcast()
    trained, _ = train_client(built, start, client, mode="round", seed=0)
    own = trained["user.gradient"] / trained["user.gradient"].norm()
    for cluster in (3, 8):
        centroids = torch.zeros_like(start.server["centroids"])
        centroids[cluster] = 0.5 * own  # the others are twice as far
        there = replace(start, server={**start.server, "centroids": centroids})
        sent = LoopTrainer(built, 0).train(there, [client]).update
        assert sent.keyed["heads.head/weight"].index.tolist() == [cluster]
        assert sent.statistics["members"].nonzero().flatten().tolist() == [cluster]
        torch.testing.assert_close(sent.statistics["centroids"][cluster], 0.5 * own, atol=1e-5, rtol=1e-4)


@pytest.mark.system
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedrep", {"base_method": "furl"}),
        ("pfedme", {"base_method": "furl"}),
        ("pfedme", {"personal": "all"}),
        ("pfedkm", {"base_method": "furl", "clusters": 3}),
        ("preference", {"embedding": True}),
        ("fedembed", {"assignment": "som"}),
        ("fedembed", {"assignment": "som", "map_step": "mean"}),
        ("fedembed", {"assignment": "personal"}),
        ("fedembed", {"assignment": "type", "trained_by": "common", "kinds_head": False}),
    ],
)
def test_wrappers_keep_the_contract_over_other_networks(method, settings):
    assert check_method(method, settings).largest_difference < 1e-5


@pytest.mark.parametrize("of", ["meta_learning", "fedperc"])
@pytest.mark.parametrize("method", ["fedrep", "pfedme", "pfedkm"])
def test_a_base_method_can_be_a_language_model(method, of):
    corpus = load_federation("sotu", settings={"since": 2000})
    inner = {"base_method": of, "base_settings": {"length": 8, "batch": 2, "local_steps": 1}}
    extra = {"clusters": 2} if method == "pfedkm" else {}
    if (method, of) == ("pfedme", "fedperc"):  # the personal embedding is private already; a context's can be personal
        with pytest.raises(SettingsError, match="Set personal to all, or name a shared parameter"):
            load_method(method, inner, task_of(corpus))
        extra = {"head": "context.table"}
    built = build(load_method(method, {**inner, **extra}, task_of(corpus)), seed=0)
    user = corpus.users[0]
    data = built.method.model.encode(corpus.examples(0).take(range(3)))
    start, client = built.start().broadcast(), Client(user, built.new_private(user, seed=0), data)
    slow, fast = (
        engine.train(start, [client]) for engine in (LoopTrainer(built, 0), CohortTrainer(built, 0, workers=0))
    )
    assert not slow.rejected and not fast.rejected
    for name, value in slow.private[user].items():
        torch.testing.assert_close(fast.private[user][name], value, rtol=1e-4, atol=1e-5)
    for name, value in slow.update.federated.items():
        torch.testing.assert_close(fast.update.federated[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"base_method": "prefrence"}, "Did you mean 'preference'"),
        ({"head": ("headd.*",)}, "matches no parameter"),
        ({"base_method": "fedembed"}, "is not a plain network"),
        ({"base_settings": {"embeding": True}}, "embeding"),
    ],
)
def test_an_unsuitable_base_method_is_rejected(federation, settings, said):
    with pytest.raises(HomespunError, match=said):
        load_method("fedrep", settings, task_of(federation))


@pytest.mark.parametrize("name", ["fedrep", "pfedme", "pfedkm"])
def test_a_network_for_images_is_rejected_for_texts(federation, name):
    said = "the network of 'preference' reads images, but this corpus has texts. Set base_method to furl"
    with pytest.raises(SettingsError, match=said):
        load_method(name, {}, replace(task_of(federation), image=None))


def test_pfedkm_rejects_more_clusters_than_users(federation):
    with pytest.raises(SettingsError, match="21 clusters for 20 users"):
        load_method("pfedkm", {"clusters": 21}, task_of(federation))


@pytest.mark.parametrize(
    ("method", "settings"), [("fedrep", {}), ("pfedme", {}), ("pfedme", {"personal": "all"}), ("pfedkm", {})]
)
def test_private_parameters_of_the_base_method_are_trained_in_rounds_and_personalization(federation, method, settings):
    built, client = made(method, federation, base_settings={"embedding": True}, **settings)
    (name,) = [name for name in client.private if name.endswith("user.embedding")]
    for mode in ("round", "personalize"):
        kept = LoopTrainer(built, 0).train(built.start().broadcast(), [client], mode=mode).private[client.user]
        assert not torch.equal(kept[name], client.private[name]), mode


@pytest.mark.parametrize(("method", "settings"), [("pfedme", {}), ("pfedkm", {"clusters": 2})])
def test_replies_of_a_renamed_network_are_scored_and_not_generated(tmp_path, method, settings):
    data = DataSettings(source=str(write_dialogue(tmp_path / "talk.jsonl", conversations(30))))
    base = {"base_model": write_reply_model(tmp_path / "base"), "persona": "none", "batch": 8}
    values = {"base_method": "fednlg", "base_settings": base, "rounds": 1, "workers": 0, **settings}
    with prepare(method, data.load(), folder=tmp_path / "run", settings=values, data=data) as run:
        list(train_and_evaluate(run))
        (found,) = single_results(run, data, title=method)["configurations"][method]["runs"]
        assert found["test"]["metric"] == "perplexity" and found["test"]["value"] > 1
        assert found["replies"] is None
        with pytest.raises(RunError, match=f"{method} does not reply to texts"):
            reply(run, "the sea")
