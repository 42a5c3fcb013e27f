"""Generated embeddings against appendix A as published: a new prefix for every word of the utterance."""

from math import exp, log, sqrt
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from language_models import TEXT, write_gpt2
from torch import nn

from homespun.core.method import Task, build
from homespun.data.federation import Examples
from homespun.engines.loop import model_output
from homespun.models.generator import EmbeddingGenerator, attend
from homespun.models.losses import padded_losses
from homespun.personalization.generation import with_parameters
from homespun.system.method_loading import load_method

# The oracle: slow and obvious


def word_by_word(generator, start, words, *, chained=True):
    """e_0 ... e_T, where e_t has read the first t words [T, d]. `chained`: its query is e_{t-1}, as in the paper;
    otherwise always `start`, as ours."""
    embeddings, query = [], start
    for t in range(len(words) + 1):
        embeddings.append(generator(query[None], words[None, :t], torch.ones(1, t, dtype=torch.bool))[0])
        query = embeddings[-1] if chained else start
    return embeddings


def losses_word_by_word(backbone, generators, starts, tokens, *, chained=True):
    """Each token's loss behind the prefix that is generated from the tokens before it."""
    words = backbone.get_input_embeddings()(tokens)
    own, setting = (
        word_by_word(generators[which], starts[which], words, chained=chained) for which in ("personal", "context")
    )
    length = torch.tensor([len(tokens)])
    rows = [
        padded_losses(backbone, (own[t] * setting[t])[None], tokens=tokens[None], length=length)[0, t]
        for t in range(len(tokens))
    ]
    return torch.stack(rows)


# By hand, in four dimensions: u and v are orthogonal, and layer normalization leaves both as they are

U, V = torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.tensor([1.0, -1.0, 1.0, -1.0])
C = log(2) / 2
WORDS = torch.stack((C * U, 8 / 3 * C * V, torch.zeros(4), torch.zeros(4)))


def generator_by_hand():
    """Projections that change nothing, and a feed-forward part that gives sqrt(5) times what it gets."""
    made = EmbeddingGenerator(torch.zeros(4), heads=1)
    rows = torch.eye(16, 4)
    values = {
        "attention.in_proj_weight": torch.eye(4).repeat(3, 1),
        "attention.out_proj.weight": torch.eye(4),
        "last.weight": torch.ones(4),
        "feed_forward.0.weight": rows,
        "feed_forward.0.bias": torch.full((16,), 20.0),  # where GELU is a straight line
        "feed_forward.2.weight": sqrt(5) * rows.T,
        "feed_forward.2.bias": torch.full((4,), -20 * sqrt(5)),
    }
    made.load_state_dict({**made.state_dict(), **values})
    for part in made.children():
        if isinstance(part, nn.LayerNorm):
            part.eps = 1e-12
    return made.requires_grad_(False)


def test_a_step_by_hand():
    made = generator_by_hand()
    # Nothing read, or C u alone: all that is added up lies along u.
    # C u and 8/3 C v: their scores with u are 4 C / sqrt(4) = log 2 and 0, and that of having seen nothing is 0,
    # so they weigh 2/4, 1/4, 1/4. Attended is C/2 u + 2/3 C v, normalized 0.6 u + 0.8 v; with u it is 1.6 u + 0.8 v,
    # normalized (2 u + v) / sqrt(5), fed forward 2 u + v; with u again it is 3 u + v, normalized by sqrt(10).
    expected = [U, U, (3 * U + V) / sqrt(10)]
    for chained in (True, False):
        found = word_by_word(made, U[None], WORDS[:2], chained=chained)
        torch.testing.assert_close(torch.cat(found), torch.stack(expected), rtol=0, atol=1e-5)
    # A third word that is zero turns nothing; but the chain now asks with another query.
    third, chained = (word_by_word(made, U[None], WORDS[:3], chained=some)[3][0] for some in (False, True))
    torch.testing.assert_close(third, expected[2], rtol=0, atol=1e-5)
    assert (chained - third).norm() > 0.1


def test_asking_first_is_attention():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(12, 3, bias=False, batch_first=True).double()
    query, words = torch.randn(4, 2, 12).double(), torch.randn(4, 5, 12).double()
    is_word = torch.arange(5) < torch.tensor([5, 3, 1, 0])[:, None]
    nothing = torch.randn(12).double().requires_grad_()
    everything = torch.cat((nothing.expand(4, 1, -1), words), dim=1)
    ignored = torch.cat((torch.zeros(4, 1, dtype=torch.bool), ~is_word), dim=1)
    expected, _ = attention(query, everything, everything, key_padding_mask=ignored)
    found = attend(attention, query, nothing, words, is_word=is_word)
    torch.testing.assert_close(found, expected)
    wanted = [nothing, attention.in_proj_weight, attention.out_proj.weight]
    for one, other in zip(*(torch.autograd.grad(some.sin().sum(), wanted) for some in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


class PrefixAlone(nn.Module):
    """A language model whose logits at every position are the first prefix vector."""

    def get_input_embeddings(self):
        return nn.Embedding.from_pretrained(WORDS)

    def forward(self, inputs_embeds, attention_mask):
        return SimpleNamespace(logits=inputs_embeds[:, :1].expand_as(inputs_embeds))


def test_losses_by_hand():
    generators = {"personal": generator_by_hand(), "context": EmbeddingGenerator(torch.full((4,), 2.0), heads=1)}
    starts = {"personal": U[None], "context": torch.zeros(1, 4)}
    with torch.no_grad():
        found = losses_word_by_word(PrefixAlone(), generators, starts, torch.tensor([0, 1, 3]))
    # The context's half is 2 throughout. Prefixes before the three tokens: 2 u, 2 u, 2 (3 u + v) / sqrt(10).
    both = log(2 * exp(2) + 2 * exp(-2))
    last = [2 * one / sqrt(10) for one in (4, 2, -2, -4)]
    expected = [both - 2, both - 2, log(sum(map(exp, last))) - last[3]]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=0, atol=1e-5)


# With a language model and the method's own generators, moved away from where they start


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    base = str(write_gpt2(tmp_path_factory.mktemp("gpt2")))
    return build(load_method("fedperc_generated", {"base_model": base, "length": 12}, Task(contexts=2)), seed=0)


@pytest.fixture(scope="module")
def parameters(built):
    draw = torch.Generator().manual_seed(0)
    return {
        name: value if name.startswith("backbone") else value + 0.3 * torch.randn(value.shape, generator=draw)
        for name, value in built.initial.items()
    }


@pytest.fixture(scope="module")
def oracle(built, parameters):
    model = with_parameters(built.model, parameters)
    starts = {"personal": parameters["prior.embedding"], "context": parameters["context.table"][1]}

    @torch.no_grad()
    def losses(tokens, **options):
        return losses_word_by_word(model.backbone, model.generators, starts, tokens, **options)

    @torch.no_grad()
    def prefixes(tokens, **options):
        words = model.backbone.get_input_embeddings()(tokens)
        made = {which: word_by_word(model.generators[which], starts[which], words, **options) for which in starts}
        return made["personal"], made["context"]

    return SimpleNamespace(losses=losses, prefixes=prefixes, backbone=model.backbone)


@pytest.fixture(scope="module")
def data(built):
    return built.method.model.encode(Examples(TEXT[:2], contexts=np.array([1, 1])))


@pytest.mark.parametrize("chained", [True, False])
def test_a_token_changes_no_loss_before_it(oracle, data, chained):
    tokens = data["tokens"][0].long()
    before = oracle.losses(tokens, chained=chained)
    for place in range(len(tokens)):
        changed = tokens.clone()
        changed[place] = 7
        after = oracle.losses(changed, chained=chained)
        assert torch.equal(before[:place], after[:place])
        assert (before[place:] != after[place:]).all()


def test_a_prefix_does_not_know_the_token_it_is_for(oracle, data):
    tokens, place = data["tokens"][0].long()[:2], 1
    chances = []
    for token in range(oracle.backbone.config.vocab_size):
        tokens[place] = token
        chances.append(exp(-oracle.losses(tokens)[place]))
    assert sum(chances) == pytest.approx(1, abs=1e-5)  # over all tokens that it could be


def test_all_at_once_is_the_step_that_has_read_the_same_words(built, parameters, oracle, data):
    said, later = (data["tokens"][row].long()[: data["length"][row]] for row in (0, 1))
    own, setting = oracle.prefixes(said, chained=False)
    with torch.no_grad():
        found = built.method.personalize.generate(parameters, {name: column[:1] for name, column in data.items()})
    torch.testing.assert_close(found["personal.embedding"], own[len(said)], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found["context.table"][1], setting[len(said)], rtol=1e-5, atol=1e-5)
    assert (own[len(said)] - own[len(said) - 1]).norm() > 1e-3  # its last word counted

    # and in training, where the first utterance is the evidence for the second
    batch = {name: column[1:] for name, column in data.items()}
    evidence, of = torch.zeros(1, 256, dtype=torch.int32), torch.full((1, 256), -1)
    evidence[0, : len(said)], of[0, : len(said)] = said.int(), 1
    batch = {**batch, "evidence": evidence, "evidence_context": of}
    with torch.no_grad():
        (loss,) = built.method.local.loss(lambda given, some: model_output(built, given, some), parameters, batch)
        prefix = (own[len(said)] * setting[len(said)])[None]
        expected = padded_losses(oracle.backbone, prefix, tokens=later[None], length=torch.tensor([len(later)]))
    torch.testing.assert_close(loss, expected.mean(), rtol=1e-5, atol=1e-5)
