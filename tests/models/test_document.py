"""`stacked` is `forward` for each client with its own parameters, in value and in every gradient."""

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from homespun.models.document import DocumentModel

CLIENTS, COUNT, LONGEST, POPULATION = 3, 4, 6, 5


def make_model(users: str, *, pooling: str = "final") -> DocumentModel:
    torch.manual_seed(0)
    return DocumentModel(
        vocabulary=9,
        character_dim=3,
        lstm_dim=4,
        hidden_dim=5,
        classes=2,
        user_dim=0 if users == "none" else 2,
        users=users,
        population=POPULATION if users == "table" else 0,
        pooling=pooling,
    ).double()


def make_params(model: DocumentModel) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {
        name: (value.detach() + 0.3 * torch.randn(CLIENTS, *value.shape).double()).requires_grad_()
        for name, value in model.named_parameters()
    }


def make_batch() -> dict[str, Tensor]:
    torch.manual_seed(2)
    length = torch.tensor([[6, 2, 0, 1], [3, 3, 3, 3], [1, 5, 2, 4]])
    text = torch.randint(1, 9, (CLIENTS, COUNT, LONGEST), dtype=torch.uint8)
    return {
        "text": text.masked_fill(torch.arange(LONGEST) >= length[:, :, None], 0),
        "length": length,
        "author": torch.randint(0, POPULATION, (CLIENTS, COUNT)),
        "label": torch.zeros(CLIENTS, COUNT, dtype=torch.int64),
    }


def one_at_a_time(model: DocumentModel, params: dict[str, Tensor], batch: dict[str, Tensor]) -> Tensor:
    return torch.stack(
        [
            functional_call(
                model,
                {name: value[client] for name, value in params.items()},
                ({name: column[client] for name, column in batch.items()},),
            )
            for client in range(len(batch["length"]))
        ]
    )


@pytest.mark.parametrize("pooling", ["final", "max"])
@pytest.mark.parametrize("users", ["none", "private", "table"])
def test_stacked_equals_forward_of_each_client(users, pooling):
    model, batch = make_model(users, pooling=pooling), make_batch()
    params = make_params(model)
    expected, got = one_at_a_time(model, params, batch), model.stacked(params, batch)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    direction = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad((got * direction).sum(), list(params.values())),
        torch.autograd.grad((expected * direction).sum(), list(params.values())),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_one_client():
    model, batch = make_model("private"), {name: column[:1] for name, column in make_batch().items()}
    params = {name: value[:1] for name, value in make_params(model).items()}
    torch.testing.assert_close(model.stacked(params, batch), one_at_a_time(model, params, batch))


def test_parameters_shared_by_all_may_be_views_or_have_no_client_axis():
    model, batch = make_model("table"), make_batch()
    own = {name: value.detach() for name, value in model.named_parameters()}
    views = {name: value.expand(CLIENTS, *value.shape) for name, value in own.items()}
    expected = one_at_a_time(model, views, batch)
    for params in (views, own):
        torch.testing.assert_close(model.stacked(params, batch), expected, rtol=1e-10, atol=1e-10)


def test_training_the_user_embedding_alone_runs_no_lstm_backward(monkeypatch):
    model, batch = make_model("private"), make_batch()
    everything = make_params(model)
    one_at_a_time(model, everything, batch).sum().backward()
    params = {name: value.detach() for name, value in everything.items()}
    params["user.embedding"].requires_grad_()
    monkeypatch.delattr("homespun.models.stacked_lstm._recur_backward")
    model.stacked(params, batch).sum().backward()
    torch.testing.assert_close(params["user.embedding"].grad, everything["user.embedding"].grad)


@pytest.mark.parametrize("pooling", ["final", "max"])
def test_an_empty_text_is_represented_by_zeros(pooling):
    model = make_model("none", pooling=pooling)
    batch = {"text": torch.tensor([[3, 4], [0, 0]]), "length": torch.tensor([2, 0])}
    empty = model.output(torch.relu(model.hidden(torch.zeros(8).double())))
    torch.testing.assert_close(model(batch)[1], empty)


def test_padding_beyond_the_longest_text_changes_nothing():
    model = make_model("none")
    text, length = torch.tensor([[3, 4, 0, 0], [5, 0, 0, 0]]), torch.tensor([2, 1])
    assert torch.equal(model({"text": text, "length": length}), model({"text": text[:, :2], "length": length}))


@pytest.mark.parametrize(
    ("users", "names"), [("none", set()), ("private", {"user.embedding"}), ("table", {"user.table"})]
)
def test_parameter_names(users, names):
    expected = {"characters.weight", "hidden.weight", "hidden.bias", "output.weight", "output.bias"} | names
    found = {name for name, _ in make_model(users).named_parameters()}
    assert {name for name in found if not name.startswith("lstm.")} == expected


def test_faulty_users_are_refused():
    sizes = {"vocabulary": 9, "character_dim": 3, "lstm_dim": 4, "hidden_dim": 5, "classes": 2}
    with pytest.raises(ValueError, match="user_dim"):
        DocumentModel(**sizes, users="private")
    with pytest.raises(ValueError, match="population"):
        DocumentModel(**sizes, users="table", user_dim=2)
    with pytest.raises(ValueError, match="'nobody'"):
        DocumentModel(**sizes, users="nobody", user_dim=2)
