"""FedNLG's model: the stacked form equals plain torch for each client; losses worked out by hand."""

import math

import pytest
import torch
from torch.func import functional_call

from homespun.models.packed_lstm import pack
from homespun.models.seq2seq import Seq2Seq, join_profile, teacher_forcing
from homespun.models.suggestion_ranks import NOTHING
from homespun.models.vocabulary import BEGIN, END
from homespun.models.word_losses import word_losses

CLIENTS, ROWS, WORDS, VOCABULARY, AUTHORS = 3, 5, 6, 37, 8
VALUES = (3, 4)  # of two columns of a profile


def network(persona="none", in_question=False, dropout=0.2, readers=None, profile=False):
    torch.manual_seed(0)
    found = Seq2Seq(
        vocabulary=VOCABULARY,
        word_dim=7,
        cells=6,
        layers=3,
        dropout=dropout,
        persona=persona,
        persona_dim=4,
        population=AUTHORS,
        in_question=in_question,
        readers=readers,
        profile_dim=5,
        profile_values=sum(VALUES) if profile else 0,
    ).double()
    if found.has_profile:
        torch.nn.init.normal_(found.profile["table"])
    return found


def batch(generator, keyed=True):
    def texts():
        sizes = torch.randint(1, WORDS + 1, (CLIENTS, ROWS), generator=generator)
        found = torch.randint(4, VOCABULARY, (CLIENTS, ROWS, WORDS), generator=generator)
        return found.masked_fill(torch.arange(WORDS) >= sizes[..., None], 0), sizes

    (question, question_length), (reply, words) = texts(), texts()
    cut = torch.rand(CLIENTS, ROWS, generator=generator) < 0.2
    found = {
        "question": question,
        "question_length": question_length,
        "reply": reply,
        "length": torch.where(cut, words, words + 1),
        "author": torch.randint(AUTHORS, (CLIENTS, ROWS), generator=generator),
    }
    numbers = [torch.randint(count, (CLIENTS, ROWS), generator=generator) for count in VALUES]
    found["profile"] = torch.stack((numbers[0], VALUES[0] + numbers[1]), dim=-1)
    if keyed:
        found["key"] = torch.randint(2**62, (CLIENTS, ROWS), generator=generator)
    return found


def own_parameters(model, generator):
    def shifted(value):
        noise = torch.randn(CLIENTS, *value.shape, generator=generator, dtype=value.dtype)
        return (value.detach() + 0.1 * noise).requires_grad_()

    return {name: shifted(value) for name, value in model.named_parameters()}


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("profile", [True, False])
@pytest.mark.parametrize(
    ("persona", "in_question", "readers"),
    [
        ("none", False, None),
        ("private", False, None),
        ("private", True, [0]),
        ("table", False, [2]),
        ("table", True, None),
    ],
)
def test_stacked_equals_each_client_alone(persona, in_question, readers, profile, keyed):
    generator = torch.Generator().manual_seed(1)
    model = network(persona, in_question, readers=readers, profile=profile)
    data, parameters = batch(generator, keyed), own_parameters(model, generator)
    stacked = model.stacked(parameters, data)
    alone = torch.stack(
        [
            functional_call(
                model,
                {name: value[client] for name, value in parameters.items()},
                ({name: column[client] for name, column in data.items()},),
            )
            for client in range(CLIENTS)
        ]
    )
    torch.testing.assert_close(stacked, alone, rtol=0, atol=1e-12)
    weights = torch.randn(stacked.shape, generator=generator, dtype=torch.float64)
    tensors = list(parameters.values())
    for ours, theirs in zip(
        torch.autograd.grad((stacked * weights).sum(), tensors),
        torch.autograd.grad((alone * weights).sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("profile", [True, False])
@pytest.mark.parametrize(("persona", "in_question"), [("none", False), ("private", True), ("table", False)])
def test_shared_weights_are_computed_as_one_client(persona, in_question, profile):
    generator, model = torch.Generator().manual_seed(2), network(persona, in_question, profile=profile)
    data = batch(generator, keyed=False)
    shared = {name: value.detach().expand(CLIENTS, *value.shape) for name, value in model.named_parameters()}
    if persona == "private":
        shared["persona.embedding"] = torch.randn(CLIENTS, 4, generator=generator, dtype=torch.float64)
    copied = {name: value.contiguous().clone() for name, value in shared.items()}
    with torch.no_grad():
        torch.testing.assert_close(model.stacked(shared, data), model.stacked(copied, data), rtol=0, atol=1e-12)


def test_a_persona_is_the_profile_part_and_the_behaviour_part():
    rows = torch.tensor([[[1.0, 2.0], [10.0, 20.0]], [[1.0, 2.0], [30.0, 40.0]]])  # of two speakers, two columns
    assert join_profile(rows, torch.tensor([5.0])).tolist() == [[11.0, 22.0, 5.0], [31.0, 42.0, 5.0]]
    assert join_profile(rows, torch.tensor([[5.0], [6.0]])).tolist() == [[11.0, 22.0, 5.0], [31.0, 42.0, 6.0]]
    assert join_profile(rows[0], torch.tensor([5.0])).tolist() == [11.0, 22.0, 5.0]


@pytest.mark.parametrize("in_question", [True, False])
def test_a_model_with_profiles_is_one_with_the_joined_persona(in_question):
    generator, model = torch.Generator().manual_seed(3), network("private", in_question, profile=True)
    data = {name: column[0] for name, column in batch(generator, keyed=False).items()}
    plain = Seq2Seq(
        vocabulary=VOCABULARY, word_dim=7, cells=6, layers=3, persona="private", persona_dim=9, in_question=in_question
    ).double()
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    table, own = parameters.pop("profile.table"), parameters.pop("persona.embedding")
    losses = model(data)
    assert losses.shape == (ROWS, WORDS + 1)
    for row, (gender, age) in enumerate(data["profile"].tolist()):
        whole = torch.cat((table[gender] + table[age], own))
        alone = {name: column[row : row + 1] for name, column in data.items()}
        found = functional_call(plain, {**parameters, "persona.embedding": whole}, (alone,))
        torch.testing.assert_close(losses[row : row + 1], found, rtol=0, atol=1e-12)
    assert data["profile"].unique(dim=0).shape[0] > 1


def test_profiles_without_a_persona_are_not_read():
    assert not network("none", profile=True).has_profile
    assert [name for name, _ in network("private").named_parameters() if "profile" in name] == []
    start = Seq2Seq(vocabulary=9, word_dim=2, cells=2, layers=1, persona="private", persona_dim=1, profile_dim=3,
                    profile_values=4)  # fmt: skip
    assert start.profile["table"].tolist() == [[0.0] * 3] * 4  # a value that no speaker has contributes nothing


def test_dropout_needs_a_key_and_depends_on_it():
    generator, model = torch.Generator().manual_seed(3), network(dropout=0.5)
    data = {name: column[0] for name, column in batch(generator).items()}
    other = {**data, "key": data["key"] + 1}
    without = {name: column for name, column in data.items() if name != "key"}
    assert torch.equal(model(data), model(data))
    assert not torch.equal(model(data), model(other))
    assert torch.equal(model(without), network(dropout=0.0)(data))


def test_an_example_has_the_same_loss_in_any_batch():
    generator, model = torch.Generator().manual_seed(4), network("private")
    data = {name: column[0] for name, column in batch(generator).items()}
    whole = model(data)
    for row in range(ROWS):
        alone = model({name: column[row : row + 1] for name, column in data.items()})
        torch.testing.assert_close(whole[row : row + 1], alone, rtol=0, atol=1e-12)


def test_teacher_forcing_predicts_the_end_unless_the_reply_is_cut():
    inputs, targets = teacher_forcing(torch.tensor([[8, 9, 0], [5, 6, 7]]), torch.tensor([3, 3]))
    assert inputs.tolist() == [[BEGIN, 8, 9, 0], [BEGIN, 5, 6, 7]]
    assert targets.tolist() == [[8, 9, END, NOTHING], [5, 6, 7, NOTHING]]


def test_an_untaught_output_layer_gives_every_word_the_same_loss():
    model = network()
    with torch.no_grad():
        model.output.weight.zero_()
    data = {name: column[0] for name, column in batch(torch.Generator().manual_seed(5)).items()}
    losses = model(data)
    assert losses.shape == (ROWS, WORDS + 1)
    expected = math.log(VOCABULARY) * data["length"].double()
    torch.testing.assert_close(losses.sum(dim=1), expected)


def test_word_losses_by_hand():
    # Two words with logits 0 and log 3: probabilities 1/4 and 3/4.
    states = torch.tensor([[[1.0], [1.0]]], requires_grad=True)
    weight = torch.tensor([[[0.0], [math.log(3.0)]]], requires_grad=True)
    bias = torch.zeros(1, 2, requires_grad=True)
    losses = word_losses(states, weight=weight, bias=bias, targets=torch.tensor([[0, NOTHING]]))
    assert losses.tolist() == [[pytest.approx(math.log(4)), 0.0]]
    of_states, of_weight, of_bias = torch.autograd.grad(losses.sum(), [states, weight, bias])
    assert of_bias.tolist() == [[pytest.approx(-0.75), pytest.approx(0.75)]]
    assert of_weight.flatten().tolist() == [pytest.approx(-0.75), pytest.approx(0.75)]
    assert of_states.flatten().tolist() == [pytest.approx(0.75 * math.log(3)), 0.0]


def test_packing_keeps_only_running_rows():
    layout = pack(torch.tensor([[1, 3, 2], [2, 1, 1]]))
    assert layout.sizes == (3, 2, 1)  # the first client has most running rows
    assert layout.order.tolist() == [[1, 2, 0], [0, 1, 2]]
    values = torch.arange(1, 19).view(2, 3, 3)
    packed = layout.pack(values)
    assert packed[0].tolist() == [4, 7, 1, 5, 8, 6]
    assert layout.real[1].tolist() == [True, True, True, True, False, False]
    assert layout.unpack(packed, steps=3).tolist() == [
        [[1, 0, 0], [4, 5, 6], [7, 8, 0]],
        [[10, 11, 0], [13, 0, 0], [16, 0, 0]],
    ]
    assert layout.final(packed[..., None]).squeeze(-1).tolist() == [[1, 6, 8], [11, 13, 16]]


def test_word_losses_of_a_word_that_is_all_but_impossible():
    """Logits 0 and 300: the probability e^-300 is 0 as a float, its loss is 300."""
    states = torch.tensor([[[1.0]]], requires_grad=True)
    weight = torch.tensor([[[0.0], [300.0]]], requires_grad=True)
    losses = word_losses(states, weight=weight, bias=torch.zeros(1, 2), targets=torch.tensor([[0]]))
    assert losses.item() == 300
    (of_weight,) = torch.autograd.grad(2 * losses.sum(), [weight])
    assert of_weight.flatten().tolist() == [-2.0, 2.0]
