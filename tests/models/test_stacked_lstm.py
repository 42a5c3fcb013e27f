"""The stacked BiLSTM is nn.LSTM on packed sequences, for every client with its own weights."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from homespun.models.stacked_lstm import WEIGHT_NAMES, stacked_bilstm

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def make(clients: int, *, vocabulary: int = 7, dim: int = 3, hidden: int = 4, dtype: torch.dtype = torch.float64):
    """A table and weights, different for every client."""
    torch.manual_seed(3)
    table = torch.randn(clients, vocabulary, dim, dtype=dtype, requires_grad=True)
    one = nn.LSTM(dim, hidden, bidirectional=True)
    weights = {
        name: torch.randn(clients, *getattr(one, name).shape, dtype=dtype).mul_(0.7).requires_grad_()
        for name in WEIGHT_NAMES
    }
    return table, weights


def make_text(lengths: Tensor, longest: int, *, vocabulary: int = 7) -> Tensor:
    torch.manual_seed(4)
    return torch.randint(0, vocabulary, (*lengths.shape, longest))


def packed_states(
    table: Tensor, text: Tensor, *, lengths: Tensor, weights: dict[str, Tensor], pooling: str = "final"
) -> Tensor:
    """The result of nn.LSTM, one client at a time; zeros for an empty text."""
    states = []
    for client in range(len(table)):
        lstm = nn.LSTM(table.shape[2], weights["weight_hh_l0"].shape[2], batch_first=True, bidirectional=True)
        there = lengths[client] > 0
        packed = pack_padded_sequence(
            table[client][text[client][there]], lengths[client][there], batch_first=True, enforce_sorted=False
        )
        own = {name: value[client] for name, value in weights.items()}
        states_of_text, (final, _) = torch.func.functional_call(lstm.to(table.dtype), own, (packed,))
        both = final.transpose(0, 1).flatten(1)
        if pooling == "max":
            both = pad_packed_sequence(states_of_text, batch_first=True, padding_value=-math.inf)[0].amax(1)
        states.append(both.new_zeros(len(there), both.shape[1]).index_put((there,), both))
    return torch.stack(states)


def values_and_grads(function, table: Tensor, text: Tensor, *, weights: dict[str, Tensor], **options):
    states = function(table, text, weights=weights, **options)
    torch.manual_seed(5)
    leaves = [table, *weights.values()]
    return [states.detach(), *torch.autograd.grad((states * torch.randn_like(states)).sum(), leaves)]


FULL = [[6, 6], [6, 6], [6, 6]]
RAGGED = [[6, 2], [1, 5], [3, 3]]
SHORTER_THAN_THE_TEXT = [[4, 2], [1, 4], [3, 3]]
WITH_EMPTY = [[6, 0], [0, 2], [1, 0]]


@pytest.mark.parametrize("lengths", [FULL, RAGGED, SHORTER_THAN_THE_TEXT, WITH_EMPTY])
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("pooling", ["final", "max"])
def test_equals_lstm_on_packed_sequences(lengths, clients, dtype, pooling):
    table, weights = make(clients, dtype=dtype)
    lengths = torch.tensor(lengths[:clients])
    text = make_text(lengths, 6)
    expected = values_and_grads(packed_states, table, text, lengths=lengths, weights=weights, pooling=pooling)
    got = values_and_grads(stacked_bilstm, table, text, lengths=lengths, weights=weights, pooling=pooling)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_a_table_larger_than_the_text_gives_the_same():
    table, weights = make(2, vocabulary=50)
    lengths = torch.tensor([[3, 1], [2, 0]])
    text = make_text(lengths, 3, vocabulary=50)
    expected = values_and_grads(packed_states, table, text, lengths=lengths, weights=weights)
    got = values_and_grads(stacked_bilstm, table, text, lengths=lengths, weights=weights)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_gradcheck():
    table, weights = make(2, vocabulary=3, dim=2, hidden=2)
    lengths = torch.tensor([[3, 1], [0, 2]])
    text = make_text(lengths, 3, vocabulary=3)

    def function(table: Tensor, *values: Tensor) -> Tensor:
        return stacked_bilstm(table, text, lengths=lengths, weights=dict(zip(WEIGHT_NAMES, values, strict=True)))

    assert torch.autograd.gradcheck(function, (table, *weights.values()))


def test_two_steps_of_one_unit_by_hand():
    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    def step(x: float, h: float, c: float) -> tuple[float, float]:
        # The weights below, gates i, f, g, o: input 0.1 to 0.4; hidden 0.5 to 0.8; both biases 0.05.
        i, f, o = (sigmoid(w * x + u * h + 0.1) for w, u in ((0.1, 0.5), (0.2, 0.6), (0.4, 0.8)))
        c = f * c + i * math.tanh(0.3 * x + 0.7 * h + 0.1)
        return o * math.tanh(c), c

    table = torch.tensor([[[1.0], [-2.0]]], dtype=torch.float64)
    each = {
        "weight_ih_l0": [[0.1], [0.2], [0.3], [0.4]],
        "weight_hh_l0": [[0.5], [0.6], [0.7], [0.8]],
        "bias_ih_l0": [0.05] * 4,
        "bias_hh_l0": [0.05] * 4,
    }
    weights = {name: torch.tensor([each[name.removesuffix("_reverse")]], dtype=torch.float64) for name in WEIGHT_NAMES}
    states = stacked_bilstm(table, torch.tensor([[[0, 1], [1, 0]]]), lengths=torch.tensor([[2, 1]]), weights=weights)
    forward, _ = step(-2.0, *step(1.0, 0.0, 0.0))
    backward, _ = step(1.0, *step(-2.0, 0.0, 0.0))
    alone, _ = step(-2.0, 0.0, 0.0)
    expected = torch.tensor([[[forward, backward], [alone, alone]]], dtype=torch.float64)
    torch.testing.assert_close(states, expected, rtol=1e-14, atol=1e-14)


def test_texts_all_empty_have_zero_states_and_zero_gradients():
    table, weights = make(2)
    got = values_and_grads(
        stacked_bilstm,
        table,
        torch.zeros(2, 3, 5, dtype=torch.uint8),
        lengths=torch.zeros(2, 3).long(),
        weights=weights,
    )
    assert all(not value.any() for value in got)


def test_what_follows_the_end_of_a_text_changes_nothing():
    table, weights = make(1)
    lengths = torch.tensor([[2, 4]])
    one, other = torch.tensor([[[1, 2, 0, 0], [1, 2, 3, 4]]]), torch.tensor([[[1, 2, 6, 5], [1, 2, 3, 4]]])
    assert torch.equal(
        stacked_bilstm(table, one, lengths=lengths, weights=weights),
        stacked_bilstm(table, other, lengths=lengths, weights=weights),
    )


def test_weights_shared_by_all_clients_may_be_expanded_views():
    table, weights = make(1)
    lengths = torch.tensor(RAGGED)
    text = make_text(lengths, 6)
    shared = {name: value.expand(3, *value.shape[1:]) for name, value in weights.items()}
    with_grad = stacked_bilstm(table.expand(3, -1, -1), text, lengths=lengths, weights=shared)
    with torch.no_grad():
        without = stacked_bilstm(table.expand(3, -1, -1), text, lengths=lengths, weights=shared)
    expected = packed_states(table.expand(3, -1, -1), text, lengths=lengths, weights=shared)
    torch.testing.assert_close(with_grad, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(without, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("trained", WEIGHT_NAMES)
def test_only_the_gradients_asked_for(trained):
    table, weights = make(2)
    lengths = torch.tensor(RAGGED[:2])
    text = make_text(lengths, 6)
    expected = dict(
        zip(
            WEIGHT_NAMES,
            values_and_grads(stacked_bilstm, table, text, lengths=lengths, weights=weights)[2:],
            strict=True,
        )
    )
    frozen = {name: value.detach().requires_grad_(name == trained) for name, value in weights.items()}
    states = stacked_bilstm(table.detach(), text, lengths=lengths, weights=frozen)
    torch.manual_seed(5)
    (grad,) = torch.autograd.grad((states * torch.randn_like(states)).sum(), [frozen[trained]])
    torch.testing.assert_close(grad, expected[trained], rtol=1e-12, atol=1e-12)


def test_no_backward_where_nothing_is_trained():
    table, weights = make(2)
    lengths = torch.tensor(RAGGED[:2])
    frozen = {name: value.detach() for name, value in weights.items()}
    states = stacked_bilstm(table.detach(), make_text(lengths, 6), lengths=lengths, weights=frozen)
    assert not states.requires_grad
