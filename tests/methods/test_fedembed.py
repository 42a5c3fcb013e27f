"""FedEmbed by small exact numbers, and against algorithm 1 written out sample by sample."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from homes import clients_of
from minisom import MiniSom
from torch.nn import functional

from homespun.core.errors import MessageError, SettingsError
from homespun.core.messages import Candidate, Rows, ServerState, Update, update_from_bytes, update_to_bytes
from homespun.core.method import Task, build
from homespun.core.roles import Role
from homespun.core.server import FedAvg
from homespun.data import load_federation
from homespun.engines.client import Client
from homespun.engines.cohort import CohortTrainer
from homespun.engines.loop import LoopTrainer, train_client
from homespun.methods import fedembed
from homespun.models.som import SomRule, map_step, som_statistics
from homespun.runs.open_run import open_run, task_of
from homespun.runs.settings import RunSettings
from homespun.runs.training import prepare, train
from homespun.system.method_loading import load_method


@pytest.fixture(scope="module")
def federation():
    return load_federation("digits", settings={"users": 20})


def made(federation, seed=3, **settings):
    return build(load_method("fedembed", settings, task_of(federation)), seed=seed)


def make_client(built, federation, position=0, rows=slice(None)):
    user = federation.users[position]
    data = {name: column[rows] for name, column in built.method.model.encode(federation.examples(position)).items()}
    return Client(user, private=built.new_private(user, seed=3), data=data)


def test_the_sizes_are_those_of_appendix_b(federation):
    built = made(federation, assignment="type")
    shapes = {name: tuple(value.shape) for name, value in built.initial.items()}
    assert shapes["heads.weight"] == (10, 2, 92) and shapes["common.weight"] == (2, 92)
    assert shapes["kinds.weight"] == (10, 92) and shapes["encoder.0.weight"] == (16, 2, 3, 3)
    assert shapes["user.embedding"] == (28,)
    speech = load_method("fedembed", {"assignment": "type"}, Task(2, 900, 20, (200, 375)))
    large = dict(build(speech, seed=0).initial)
    assert large["heads.weight"].shape == (20, 2, 456) and large["user.embedding"].shape == (200,)


def test_the_speech_network_reads_a_spectrogram():
    built = build(load_method("fedembed", {"assignment": "type"}, Task(2, 900, 20, (200, 375))), seed=0)
    image = torch.randint(0, 256, (3, 200, 375), dtype=torch.uint8)
    data = {
        "image": image,
        "label": torch.tensor([0, 1, 1]),
        "kind": torch.tensor([3, 4, 5]),
        "group": torch.tensor([4] * 3),
    }
    client = Client("ann", built.new_private("ann", seed=0), data)
    slow, fast = (
        engine.predict(built.start().broadcast(), [client])[0]
        for engine in (LoopTrainer(built, 0), CohortTrainer(built, 0, workers=0))
    )
    assert slow.shape == (3, 2 + 20 + 2)
    torch.testing.assert_close(slow, fast, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("assignment", ["type", "prototype", "personal"])
def test_the_global_head_moves_the_embedding_and_itself_and_no_weight_of_the_encoder(federation, assignment):
    built = made(federation, assignment=assignment)
    client = make_client(built, federation)
    given = {
        name: value.clone().requires_grad_()
        for name, value in built.parameters(built.start().broadcast(), client.private).items()
    }
    data = {**client.data, "head": client.data["group"]}
    output = torch.func.functional_call(built.model, given, (data,))
    functional.cross_entropy(output[:, -2:], data["label"]).backward()
    moved = {name for name, value in given.items() if value.grad is not None and value.grad.abs().max() > 0}
    assert moved == {"user.embedding", "common.weight", "common.bias"}


def test_part_of_its_gradient_reaches_the_embedding_through_the_diagonal_channel(federation):
    built = made(federation, assignment="type")
    client = make_client(built, federation)
    given = built.parameters(built.start().broadcast(), client.private)
    embedding = client.private["user.embedding"].clone().requires_grad_()
    data = {**client.data, "head": client.data["group"]}
    output = torch.func.functional_call(built.model, {**given, "user.embedding": embedding}, (data,))
    functional.cross_entropy(output[:, -2:], data["label"]).backward()
    # beside the features it meets the head's last 28 columns only
    shares = output[:, -2:].softmax(dim=1) - functional.one_hot(data["label"], 2)
    beside = (shares.detach() @ given["common.weight"][:, 64:]).mean(dim=0)
    assert (embedding.grad - beside).abs().max() > 1e-4


def literal_algorithm_1(built, broadcast, client, *, rate):
    """Lines 15 to 21: sample by sample, gradients of what is shared summed up, the embedding moved after each."""
    shared = {**broadcast.federated, **broadcast.keyed}
    totals = {name: torch.zeros_like(value) for name, value in shared.items()}
    embedding = client.private["user.embedding"].clone()
    for row in range(client.examples):
        batch = {name: column[row : row + 1] for name, column in client.data.items()}
        batch["head"] = batch["group"]
        leaves = {
            name: value.clone().requires_grad_() for name, value in {**shared, "user.embedding": embedding}.items()
        }
        losses = built.method.local.loss(
            lambda given, some: torch.func.functional_call(built.model, dict(given), (some,)), leaves, batch
        )
        losses.sum().backward()
        for name in shared:
            totals[name] += 0 if leaves[name].grad is None else leaves[name].grad
        embedding = embedding - rate * leaves["user.embedding"].grad.sign()  # Adam's first step
    return totals, embedding


@pytest.mark.parametrize(("rows", "rate"), [(slice(0, 1), 0.01), (slice(0, 12), 0.0)])
def test_one_gradient_per_round_equals_algorithm_1_where_they_are_comparable(federation, rows, rate):
    """With one sample they are the same; with many, as long as the embedding does not move in between."""
    built = made(federation, assignment="type", embedding_lr=rate)
    client, start = make_client(built, federation, rows=rows), built.start().broadcast()
    trained, _ = train_client(built, start, client, mode="round", seed=0)
    totals, embedding = literal_algorithm_1(built, start, client, rate=rate)
    for name, total in totals.items():
        expected = {**start.federated, **start.keyed}[name] - total / client.examples
        torch.testing.assert_close(trained[name], expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(trained["user.embedding"], embedding, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("trained_by", "logits"), [("common", slice(-2, None)), ("assigned", slice(0, 2))])
@pytest.mark.parametrize("kinds_head", [True, False])
def test_trained_by_one_head_only_its_gradient_moves_the_embedding(federation, trained_by, logits, kinds_head):
    """The assigned head's is algorithm 1, line 20, as written."""
    built = made(federation, assignment="type", trained_by=trained_by, kinds_head=kinds_head)
    client = make_client(built, federation)
    given = built.parameters(built.start().broadcast(), client.private)
    embedding = client.private["user.embedding"].clone().requires_grad_()
    data = {**client.data, "head": client.data["group"]}

    def predict(parameters, batch):
        return torch.func.functional_call(built.model, dict(parameters), (batch,))

    built.method.local.loss(predict, {**given, "user.embedding": embedding}, data).mean().backward()
    alone = client.private["user.embedding"].clone().requires_grad_()
    output = predict({**given, "user.embedding": alone}, data)
    functional.cross_entropy(output[:, logits], data["label"]).backward()
    torch.testing.assert_close(embedding.grad, alone.grad)


def test_trained_by_does_not_change_gradients_of_shared_parameters(federation):
    sent = {}
    for trained_by in ("all", "common", "assigned"):
        built = made(federation, assignment="type", trained_by=trained_by)
        outcome = LoopTrainer(built, 0).train(built.start().broadcast(), [make_client(built, federation)])
        sent[trained_by] = outcome.update
        engines = [
            outcome,
            CohortTrainer(built, 0, workers=0).train(built.start().broadcast(), [make_client(built, federation)]),
        ]
        embeddings = [one.private[federation.users[0]]["user.embedding"] for one in engines]
        torch.testing.assert_close(*embeddings, atol=1e-5, rtol=1e-4)
    for trained_by in ("common", "assigned"):
        for name, value in sent["all"].federated.items():
            torch.testing.assert_close(sent[trained_by].federated[name], value, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("assignment", ["prototype", "som", "personal"])
def test_a_new_user_is_personalized_by_the_head_that_trains_embeddings(federation, assignment):
    moved = {}
    for trained_by in ("all", "assigned"):
        built = made(federation, assignment=assignment, trained_by=trained_by, personalize_steps=3)
        client, start = make_client(built, federation), built.start().broadcast()
        moved[trained_by], _ = train_client(built, start, client, mode="personalize", seed=0)
    assert not torch.equal(moved["all"]["user.embedding"], moved["assigned"]["user.embedding"])


def test_the_triplet_loss_equals_a_hand_computed_value():
    """Two kinds, prototypes at (0, 0) and (3, 0), a client at (1, 0) that likes kind 0: 1 - 4 + margin."""
    parameters = {
        "user.embedding": torch.tensor([1.0, 0.0]),
        "places.prototypes": torch.tensor([[0.0, 0.0], [3.0, 0.0]]),
    }
    batch = {"kind": torch.tensor([0, 1, 0]), "label": torch.tensor([1, 0, 1])}
    found = fedembed.triplet(None, parameters, batch, kinds=2, margin=5.0)
    assert found.tolist() == [2.0, 0.0, 2.0]  # what is not liked says nothing
    assert fedembed.triplet(None, parameters, batch, kinds=2, margin=1.0).tolist() == [0.0, 0.0, 0.0]  # the hinge


def test_of_several_prototypes_of_a_kind_the_nearest_attracts_and_the_others_do_not_repel():
    places = torch.tensor([[0.0], [9.0], [2.0], [9.0]])  # rows 0 and 2 like kind 0
    parameters = {"user.embedding": torch.tensor([3.0]), "places.prototypes": places}
    batch = {"kind": torch.tensor([0]), "label": torch.tensor([1])}
    assert fedembed.triplet(None, parameters, batch, kinds=2, margin=40.0).tolist() == [1 - 36 + 40]


def test_a_map_step_equals_that_of_minisom():
    draw = np.random.default_rng(0)
    embedding, nodes = draw.normal(size=6).astype(np.float32), draw.normal(size=(5, 6)).astype(np.float32)
    oracle = MiniSom(1, 5, 6, sigma=0.8, learning_rate=0.4)
    oracle._weights = nodes.reshape(1, 5, 6).astype(float).copy()
    oracle.update(embedding, oracle.winner(embedding), 0, 1000)
    step = map_step(torch.tensor(embedding), torch.tensor(nodes), radius=torch.tensor(0.8), lr=0.4)
    np.testing.assert_allclose(nodes + step.numpy(), oracle.get_weights()[0], atol=1e-6)


def map_state(*, round=4):
    places = {
        "places.map": torch.zeros(3, 2),
        "places.next": torch.ones(3, 2),
        "places.overlap": torch.zeros(3, 3),
        "places.radius": torch.tensor(1.0),
    }
    heads = {"heads.weight": torch.tensor([[1.0], [2.0], [3.0]])}
    return ServerState(round, {}, heads, server=places)


def map_update(state, overlap, best=None, step=0.0):
    statistics = {"places.overlap": torch.tensor(overlap), "places.next": torch.full((3, 2), step)}
    if best is not None:
        del statistics["places.next"]
    nothing = Rows(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 1), torch.zeros(0, dtype=torch.float64))
    candidates = {"places.next": best} if best is not None else {}
    return Update(state.round, {}, {"heads.weight": nothing}, {}, 6.0, 6, statistics, candidates)


def test_heads_are_carried_over_by_greatest_overlap():
    """Of new cluster 0 most came from old 2, of new 1 from old 0, and no client came to new 2."""
    overlap = [[1.0, 2.0, 0.0], [0.0, 0.0, 0.0], [3.0, 0.0, 0.0]]
    state = map_state(round=4)
    after = SomRule(FedAvg(), every=5, radius=1.0, halves=10)(state, map_update(state, overlap))
    assert after.keyed["heads.weight"].flatten().tolist() == [3.0, 1.0, 3.0]
    assert torch.equal(after.server["places.map"], state.server["places.next"])
    assert after.server["places.overlap"].abs().max() == 0
    assert after.server["places.radius"] == pytest.approx(0.5**0.5)


def test_noise_on_the_overlap_is_not_counted_as_members():
    """Five rounds of noise 1 have a deviation of 2.2, so 6 may be noise and 7 is a client."""
    overlap = [[0.0, 6.0, 0.0], [0.0, 0.0, 0.0], [7.0, 0.0, 5.0]]
    state = map_state(round=4)
    update = replace(map_update(state, overlap), noise={"places.overlap": 1.0})
    after = SomRule(FedAvg(), every=5, radius=1.0, halves=10)(state, update)
    assert after.keyed["heads.weight"].flatten().tolist() == [3.0, 2.0, 3.0]


def test_until_the_map_is_replaced_overlaps_add_up_and_heads_stay():
    state = map_state(round=1)
    server = SomRule(FedAvg(), every=5, radius=1.0, halves=10)
    after = server(state, map_update(state, [[1.0, 0.0, 0.0]] * 3, step=6.0))
    after = server(after, map_update(after, [[1.0, 0.0, 0.0]] * 3))
    assert after.server["places.overlap"].tolist() == [[2.0, 0.0, 0.0]] * 3
    assert torch.equal(after.keyed["heads.weight"], state.keyed["heads.weight"])
    assert after.server["places.next"].tolist() == [[2.0, 2.0]] * 3  # the mean step of all clients


def test_the_best_scoring_step_is_applied():
    state = map_state(round=1)
    one, other = (
        Candidate(-2.0, torch.ones(3, 2)),
        Candidate(-1.0, torch.full((3, 2), 7.0)),
    )
    zero = [[0.0] * 3] * 3
    total = map_update(state, zero, best=one) + map_update(state, zero, best=other)
    assert update_from_bytes(update_to_bytes(total)).best["places.next"].score == -1.0
    after = SomRule(FedAvg(), every=5, radius=1.0, halves=10)(state, total)
    assert after.server["places.next"].tolist() == [[8.0, 8.0]] * 3


def opened(folder, federation, **settings):
    run_settings = {"rounds": 3, "cohort": 6, "workers": 0, "engine": "cohort"}
    run_settings |= {name: settings.pop(name) for name in list(settings) if name in RunSettings.model_fields}
    return open_run(
        folder, method="fedembed", federation=federation, settings=RunSettings(**run_settings), method_settings=settings
    )


def test_only_the_prototypical_users_move_prototypes(tmp_path, federation):
    with opened(tmp_path / "run", federation) as run:
        before = run.state.server["places.prototypes"]
        sent = run.trainer.train(run.state.broadcast(), clients_of(run, [0, 1, 2])).update
        assert "places.prototypes" not in {**sent.federated, **sent.statistics, **sent.best}
        run.step()
        after = run.state.server["places.prototypes"]
        assert after.shape == before.shape and (after - before).abs().max(dim=1).values.min() > 0
        held = Client("prototype 3", {"user.embedding": before[3]}, run.server_users.examples[3])
    # what one of them learns is what anybody with these examples would
    built = made(federation, seed=0)
    learned = LoopTrainer(built, 0).train(built.start().broadcast(), [held]).private["prototype 3"]["user.embedding"]
    torch.testing.assert_close(after[3], learned, atol=1e-6, rtol=1e-5)


def test_prototypes_that_diverge_are_an_error_and_nothing_is_released(tmp_path, federation):
    privacy = {"noise_multiplier": 1.0, "delta": 0.01, "insecure": True, "ledger": str(tmp_path / "ledger")}
    empty_cohort = {"cohort": 1, "sampler": "poisson", "privacy": privacy}
    with opened(tmp_path / "run", federation, triplet_lr=1e30, **empty_cohort) as run:
        empty = next(round for round in range(50) if not run.schedule.cohorts.of(round))
        run.state = before = replace(run.state, round=empty)
        with pytest.raises(MessageError, match="updates of prototypical users were rejected, because of NaN"):
            run.step()
        assert run.state is before and not run.dp.account.ledger.spent()


@pytest.mark.parametrize("server", ["fedavg", "fedadam"])
def test_a_cohort_without_members_of_a_sub_population_has_no_gradient_for_its_head(tmp_path, federation, server):
    """Plain averaging then leaves the head unchanged; Adam continues with the gradients of earlier rounds."""
    with opened(tmp_path / "run", federation, assignment="type", cohort=1, rounds=3, server=server) as run:
        seen = []
        for round in range(3):
            before = run.state.keyed["heads.weight"]
            seen.append(int(run.federation.group(run.schedule.cohorts.of(round)[0])))
            run.step()
            moved = (run.state.keyed["heads.weight"] != before).flatten(1).any(dim=1)
            assert moved.nonzero().flatten().tolist() == (seen[-1:] if server == "fedavg" else sorted(set(seen)))
    assert len(set(seen)) > 1


@pytest.mark.parametrize("over", ["cohort", "contributors"])
def test_uploaded_zeros_equal_rows_that_are_not_uploaded_if_averaged_over_the_cohort(federation, over):
    sent = {}
    for sends in ("touched", "all"):
        built = made(federation, assignment="type", upload_rows=sends, row_denominator=over, server="fedavg")
        clients = [make_client(built, federation, position) for position in range(4)]
        update = LoopTrainer(built, 0).train(built.start().broadcast(), clients).update
        sent[sends] = built.method.server(built.start(), update).keyed["heads.weight"]
        assert len(update.keyed["heads.weight"].index) == (
            10 if sends == "all" else len({federation.group(p) for p in range(4)})
        )
    same = torch.allclose(sent["touched"], sent["all"], atol=1e-7)
    assert same == (over == "cohort")


def test_a_map_under_privacy_needs_a_sum(tmp_path, federation):
    private = {"noise_multiplier": 1.0, "delta": 0.01}
    with pytest.raises(SettingsError, match="map_step"):
        opened(tmp_path / "run", federation, assignment="som", sampler="poisson", privacy=private)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"heads": 30, "assignment": "som"}, "30 sub-populations for 20 users"),
        ({"heads": 15}, "multiple of 10"),
        ({"heads": 5, "assignment": "type"}, "5 heads for 10 known sub-populations"),
        ({"embedding_dim": 0}, "method `preference`"),
    ],
)
def test_inconsistent_numbers_of_heads_are_rejected(federation, settings, said):
    with pytest.raises(SettingsError, match=said):
        load_method("fedembed", settings, task_of(federation))


def test_a_method_for_images_rejects_texts_and_vice_versa(tmp_path, federation):
    dialects = load_federation("dialects", settings={"users": 12})
    with pytest.raises(SettingsError, match="reads images, but this corpus has texts"):
        open_run(tmp_path, method="preference", federation=dialects, settings=RunSettings(rounds=1))
    with pytest.raises(SettingsError, match="reads texts, but this corpus has images"):
        open_run(tmp_path, method="furl", federation=federation, settings=RunSettings(rounds=1))


def test_type_assignment_learns_what_one_model_for_all_cannot(tmp_path):
    """The paper's point in a minute: conflicting labels need a head for each sub-population."""
    from homespun.runs.evaluate import evaluate
    from homespun.runs.training import train

    federation = load_federation("digits", settings={"users": 60})
    settings = {"rounds": 12, "cohort": 60, "workers": 0, "evaluate_every": 12}
    with (
        train("fedembed", federation, assignment="type", **settings) as ours,
        train("preference", federation, **settings) as one,
    ):
        assert evaluate(ours, "test").f1 > 0.8 > 0.6 > evaluate(one, "test").f1
        assert set(ours.built.partition.names(Role.PRIVATE)) == {"user.embedding"}
        assert not any("user.embedding" in name for name in ours.state.federated)


def test_invalid_candidates_are_rejected(federation):
    from homespun.core.intake import rejection_reason

    built = made(federation, assignment="som")
    start = built.start().broadcast()
    sent = LoopTrainer(built, 0).train(start, [make_client(built, federation)]).update
    declared = {"statistics": ["places.overlap"], "best": ["places.next"]}
    assert rejection_reason(sent, start, **declared) is None
    step = sent.best["places.next"].value
    for wrong in (
        {},
        {"places.next": Candidate(float("nan"), step)},
        {"places.next": Candidate(5.0, step)},
        {"places.next": Candidate(0.0, torch.zeros(1))},
        {"places.map": Candidate(0.0, step)},
    ):
        assert rejection_reason(replace(sent, best=wrong), start, **declared) is not None


def test_a_round_without_clients_leaves_the_map_where_it_is():
    state = map_state(round=1)
    empty = replace(map_update(state, [[0.0] * 3] * 3), statistics={"places.overlap": torch.zeros(3, 3)}, weight=0.0)
    after = SomRule(FedAvg(), every=5, radius=1.0, halves=10)(state, empty)
    assert torch.equal(after.server["places.next"], state.server["places.next"]) and after.round == 2


def test_the_radius_never_becomes_zero():
    state = map_state(round=100_000)
    after = SomRule(FedAvg(), every=7, radius=1.0, halves=1)(state, map_update(state, [[0.0] * 3] * 3))
    assert float(after.server["places.radius"]) == pytest.approx(0.05)
    step = map_step(torch.ones(2), after.server["places.next"], radius=after.server["places.radius"], lr=0.5)
    assert bool(torch.isfinite(step).all())


def test_an_epoch_is_one_pass_over_all_users_if_batches_hold_all_examples(tmp_path, federation):
    with opened(tmp_path / "run", federation, rounds=None, epochs=3, cohort=5) as run:
        assert (run.schedule.rounds_per_epoch, run.total_rounds) == (4, 12)


def test_heads_are_carried_over_with_their_moments():
    state = replace(map_state(), optimizer={"keyed.first.heads.weight": torch.tensor([[1.0], [2.0], [3.0]])})
    overlap = [[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [3.0, 0.0, 1.0]]
    after = SomRule(FedAvg(), every=5, radius=1.0, halves=10)(state, map_update(state, overlap))
    assert after.optimizer["keyed.first.heads.weight"].flatten().tolist() == [3.0, 1.0, 3.0]


def test_an_embedding_longer_than_the_diagonal_is_rejected(federation):
    with pytest.raises(SettingsError, match="has only 28 pixels"):
        load_method("fedembed", {"embedding_dim": 40}, task_of(federation))


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        ("preference", {"embedding": True, "embedding_dim": 40}, "preference: embedding_dim is 40, but the diagonal"),
        ("preference", {"embedding": True, "embedding_dim": 0}, "For Global, without embeddings"),
        ("fedembed", {"embedding_dim": 40}, "fedembed: embedding_dim is 40, but the diagonal"),
        ("fedembed", {"heads": 70}, "Set heads to 30 at most"),
        ("fedembed", {"assignment": "type", "heads": 31}, "Set heads to 30 at most"),
    ],
)
def test_inconsistent_sizes_are_rejected(method, settings, said):
    with pytest.raises(SettingsError, match=said):
        load_method(method, settings, Task(2, 30, 10, (28, 28)))


def test_non_finite_predictions_are_not_scored():
    with (
        pytest.raises(MessageError, match="Lower the learning rate"),
        train(
            "fedembed",
            load_federation("digits", settings={"users": 20}),
            rounds=1,
            cohort=4,
            server_lr=1e30,
            workers=0,
        ),
    ):
        pass


def test_a_non_finite_server_step_is_an_error_and_leaves_the_state():
    federation = load_federation("digits", settings={"users": 20})
    settings = {"rounds": 1, "cohort": 4, "server": "fedavg", "server_lr": 1e39, "workers": 0}
    with (
        prepare("preference", federation, folder=None, settings=settings) as run,
        pytest.raises(MessageError, match="in the server's step"),
    ):
        run.step()
    assert run.state.round == 0


def on_a_map(embedding, *, old, new):
    """The parameters that a client with this embedding sees; both maps have nodes at these positions of the line."""
    nodes = {"places.map": torch.tensor(old)[:, None], "places.next": torch.tensor(new)[:, None]}
    overlap, radius = torch.zeros(len(old), len(new)), torch.tensor(1.0)
    return {"user.embedding": torch.tensor([embedding]), **nodes, "places.overlap": overlap, "places.radius": radius}


def test_the_client_nearest_to_a_node_has_the_best_score():
    best = som_statistics(lr=0.5, step="best")["places.next"]
    near, far = (best.score(on_a_map(embedding, old=[0.0, 9.0], new=[0.0, 9.0])) for embedding in (8.0, 5.0))
    assert (near, far) == (-1.0, -4.0)


def test_the_overlap_has_rows_for_the_old_map_and_columns_for_the_new_one():
    seen = on_a_map(1.0, old=[5.0, 0.0, 9.0], new=[0.0, 5.0, 9.0])  # node 1 of the old map, node 0 of the new one
    overlap = som_statistics(lr=0.5, step="best")["places.overlap"]
    assert overlap.compute(seen, torch.Generator()).nonzero().tolist() == [[1, 0]]


def test_a_private_head_is_trained_by_its_own_steps_only(federation):
    built = made(federation, assignment="personal", own_steps=1, own_lr=0.5)
    client, start = make_client(built, federation), built.start().broadcast()
    trained, _ = train_client(built, start, client, mode="round", seed=0)
    head = {name: client.private[name].clone().requires_grad_() for name in ("head.weight", "head.bias")}
    given = {**built.parameters(start, client.private), **head}
    logits = torch.func.functional_call(built.model, given, (client.data,))[:, :2]
    functional.cross_entropy(logits, client.data["label"]).backward()
    assert head["head.weight"].grad.abs().max() > 0
    for name, value in head.items():
        torch.testing.assert_close(trained[name], -0.5 * value.grad, atol=1e-6, rtol=1e-5)  # it starts at zero


def test_a_new_user_moves_to_the_prototype_of_what_they_like(federation):
    """Far prototypes and no other step: only the triplet loss can have moved the client to its own."""
    built = made(federation, personalize_steps=1, embedding_lr=0.0, triplet_steps=50)
    start = built.start().broadcast()
    apart = replace(start, server={"places.prototypes": 0.8 * torch.eye(10, 28)})
    for position in (0, 7):
        client = make_client(built, federation, position)
        trained, _ = train_client(built, apart, client, mode="personalize", seed=0)
        distances = (trained["user.embedding"] - apart.server["places.prototypes"]).norm(dim=1)
        assert int(distances.argmin()) == int(federation.group(position)) and distances.min() < 0.5


def test_embeddings_start_uniform_and_differ_between_users(federation):
    built = made(federation, embedding_scale=0.1)
    start = torch.stack([built.new_private(f"user {one}", seed=3)["user.embedding"] for one in range(200)])
    assert start.abs().max() <= 0.1 and start.std() == pytest.approx(0.1 / 3**0.5, rel=0.05)
    assert (start.abs() > 0.05).float().mean() == pytest.approx(0.5, abs=0.03)  # of a normal one of this width: 0.39
    assert len(torch.unique(start[:, 0])) == 200


def test_the_k_way_head_is_trained_on_the_kind_of_the_sample(federation):
    """Section 3.1: not on the sub-population of the user."""
    built = made(federation, assignment="type")
    client, start = make_client(built, federation), built.start().broadcast()
    trained, _ = train_client(built, start, client, mode="round", seed=0)
    given = {**built.parameters(start, client.private)}
    bias = given["kinds.bias"].clone().requires_grad_()
    data = {**client.data, "head": client.data["group"]}
    logits = torch.func.functional_call(built.model, {**given, "kinds.bias": bias}, (data,))[:, 2:12]
    functional.cross_entropy(logits, data["kind"]).backward()
    assert len(data["kind"].unique()) > 2
    torch.testing.assert_close(trained["kinds.bias"], given["kinds.bias"] - bias.grad, atol=1e-6, rtol=1e-5)


def test_bytes_include_a_candidate_step_and_its_score(tmp_path, federation):
    with opened(tmp_path / "run", federation, assignment="som", cohort=3, rounds=1) as run:
        record = run.step()
        step, overlap = (run.state.server[f"places.{name}"].nbytes for name in ("next", "overlap"))
    # weight, loss, examples; the step; its score; the counts
    assert record.up_bytes["statistics"] == 3 * (8 * 3 + step + 8 + overlap)


def test_heads_cannot_be_set_with_private_heads(federation):
    with pytest.raises(SettingsError, match="each user has a private head"):
        made(federation, assignment="personal", heads=5)
