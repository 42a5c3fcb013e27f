"""Text generated as a user: the same logits as in training, and the same text for the same seed."""

from itertools import islice

import pytest
import torch
from language_models import write_gpt2, write_llama
from spoken_corpus import train_small
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from homespun import generate
from homespun.core.errors import InputError, RunError, SettingsError, UnknownNameError
from homespun.data import load_federation
from homespun.data.federation import Examples
from homespun.decoding.sampling import choose_tokens, probabilities
from homespun.methods import furl
from homespun.personalization.generation import (
    Sampling,
    draw_tokens,
    find_personal_model,
    sample_continuations,
)
from homespun.runs.training import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with train_small(tmp_path_factory.mktemp("prefixes")) as made:
        yield made


def test_the_same_seed_gives_the_same_texts_and_another_seed_others(run):
    first = generate(run, "We must", user="kennedy", context="written", samples=3, seed=5)
    assert len(first) == 3 and len(set(first)) == 3
    assert all(text.startswith("We must") and len(text) > len("We must") for text in first)
    assert generate(run, "We must", user="John F. Kennedy", context="written", samples=3, seed=5) == first
    assert generate(run, "We must", user="kennedy", context="written", samples=3, seed=6) != first
    assert generate(run, "We must", user="kennedy", context="written", samples=1, seed=5) == first[:1]


def test_users_and_contexts_differ(run):
    def prefix(user, context):
        return find_personal_model(run, user=user, context=context).prefix

    kennedy = prefix("kennedy", "written")
    assert not torch.equal(kennedy, prefix("lincoln", "written"))
    assert not torch.equal(kennedy, prefix("kennedy", "spoken"))
    own = run.vault.private("John F. Kennedy")["personal.embedding"]
    row = run.state.keyed["context.table"][run.federation.contexts.index("written")]
    assert torch.equal(kennedy, own * row)
    assert torch.equal(prefix(None, "written"), run.state.federated["prior.embedding"] * row)
    assert generate(run, "We", user="lincoln", context="spoken")  # he never spoke


def test_generated_prefixes_come_from_training_texts_and_a_new_users_from_no_text(tmp_path):
    with train_small(tmp_path, method="fedperc_generated") as run:
        parameters = run.built.parameters(run.state.broadcast(), run.clients.new_private("", run.state.broadcast()))
        row = run.federation.contexts.index("written")

        def prefix(data):
            made = run.method.personalize.generate(parameters, data)
            return made["personal.embedding"] * made["context.table"][row]

        prefixes = [
            find_personal_model(run, user=user, context="written").prefix for user in ("kennedy", "lincoln", None)
        ]
        people = [run.federation.users.index(name) for name in ("John F. Kennedy", "Abraham Lincoln")]
        texts = [run.clients.encode(run.federation, person, "train") for person in people]
        assert torch.equal(prefixes[0], prefix(texts[0])) and torch.equal(prefixes[1], prefix(texts[1]))
        assert torch.equal(prefixes[2], prefix(run.method.model.encode(Examples([]))))
        assert not any(torch.equal(prefixes[one], prefixes[other]) for one, other in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize(
    ("write", "changed"),
    [
        (write_gpt2, {}),
        (write_llama, {}),
        (write_gpt2, {"layers": "*.1.*"}),
        (write_gpt2, {"lora": 2}),
        (write_gpt2, {"virtual_tokens": 3}),
    ],
)
@pytest.mark.parametrize("prompt", ["We must go", ""])
def test_cached_keys_and_values_give_the_logits_of_a_full_pass(tmp_path, monkeypatch, write, changed, prompt):
    seen = []
    monkeypatch.setattr(
        "homespun.personalization.generation.choose_tokens",
        lambda logits, *rest: seen.append(logits) or choose_tokens(logits, *rest),
    )
    with train_small(tmp_path, base=write(tmp_path / "base"), rounds=1, **changed) as run:
        model = find_personal_model(run, user="lincoln", context="written")
        ids = model.pretrained.tokenizer(prompt)["input_ids"]
        drawn = list(islice(draw_tokens(model, ids, Sampling(samples=2)), 8))
        own = run.clients.private(["Abraham Lincoln"], run.state.broadcast())["Abraham Lincoln"]
        parameters = run.built.parameters(run.state.broadcast(), own)
    context = torch.full((2,), run.federation.contexts.index("written"))
    tokens = torch.cat((torch.tensor([ids, ids], dtype=torch.int64), torch.tensor(drawn).T), dim=1)
    batch = {"tokens": tokens, "length": torch.full((2,), tokens.shape[1]), "context": context}
    with torch.no_grad():  # the logits of training
        losses = torch.func.functional_call(run.built.model, dict(parameters), (batch,))[:, len(ids) :]
    remembered = torch.stack(seen, dim=1).log_softmax(dim=-1).gather(2, torch.tensor(drawn).T[:, :, None])[..., 0]
    assert torch.allclose(-remembered, losses, atol=1e-5)


def test_temperature_top_k_and_top_p_have_their_usual_meaning():
    torch.manual_seed(0)
    logits = 3 * torch.randn(4, 50)
    for temperature, top_k, top_p in [(0.7, 0, 1.0), (1.0, 5, 1.0), (1.3, 0, 0.8), (0.9, 7, 0.6), (1.0, 1, 1.0)]:
        ours = probabilities(logits, Sampling(temperature=temperature, top_k=top_k, top_p=top_p))
        theirs = TemperatureLogitsWarper(temperature)(None, logits)
        theirs = TopKLogitsWarper(top_k)(None, theirs) if top_k else theirs
        theirs = TopPLogitsWarper(top_p)(None, theirs) if top_p < 1 else theirs
        assert torch.allclose(ours.float(), theirs.softmax(dim=-1), atol=1e-6)
    smallest = probabilities(logits, Sampling(temperature=1e-300))
    assert torch.equal(smallest.argmax(dim=-1), logits.argmax(dim=-1)) and smallest.sum() == 4
    assert torch.equal((probabilities(logits, Sampling(top_p=1e-9)) > 0).sum(dim=-1), torch.ones(4, dtype=torch.int64))


def scripted(run, monkeypatch, text, **sampling):
    """The continuation of a prompt if the model generates `text`."""
    model = find_personal_model(run, context="written")
    ids = model.pretrained.tokenizer(text)["input_ids"]
    monkeypatch.setattr("homespun.personalization.generation.draw_tokens", lambda *_: ([token] for token in ids))
    return sample_continuations(model, "We met Mr.", Sampling(max_tokens=len(ids), **sampling))[0]


def test_generation_stops_at_the_end_of_the_sentence_or_of_the_text(run, monkeypatch):
    text = " Smith. He was there. So<|endoftext|> on"
    assert scripted(run, monkeypatch, text) == " Smith."
    assert scripted(run, monkeypatch, text, until="end") == " Smith. He was there. So"
    assert scripted(run, monkeypatch, " Smith\nand his son") == " Smith"
    assert scripted(run, monkeypatch, "\n\nSmith and his son") == "\n\nSmith and his son"
    assert scripted(run, monkeypatch, ' Smith, who said "Go on!" They went') == ' Smith, who said "Go on!"'
    assert scripted(run, monkeypatch, "<|endoftext|> on") == ""
    assert scripted(run, monkeypatch, " \x1b[31mS\xa0ü\x07m") == " [31mS\xa0üm"  # no control characters


def test_an_unambiguous_part_of_a_name_is_enough(run):
    for user, message in [
        ("bush", r"2 users match 'bush': 'George W. Bush', 'George H. W. Bush'. Name one of them"),
        ("kenedy", r"no user 'kenedy'. Did you mean 'John F. Kennedy'\?"),
        ("zzz", r"no user 'zzz'. There are: 'John F. Kennedy', 'Abraham Lincoln'"),
        ("", "no user ''"),
    ]:
        with pytest.raises(UnknownNameError, match=message):
            generate(run, "We", user=user, context="written")
    with pytest.raises(UnknownNameError, match=r"no context 'writen'. Did you mean 'written'\? There are: 'spoken'"):
        generate(run, "We", context="writen")
    with pytest.raises(InputError, match=r"the run has 2 contexts: 'spoken', 'written'. Choose one"):
        generate(run, "We")


def test_invalid_sampling_settings_are_rejected(run):
    for wrong, message in [
        ({"temprature": 1}, "unknown setting 'temprature'. Did you mean 'temperature'"),
        ({"top_p": 0}, "top_p"),
        ({"temperature": -1}, "temperature"),
        ({"until": "dawn"}, "until"),
        ({"samples": 2, "temperature": 0}, "set samples = 1"),
    ]:
        with pytest.raises(SettingsError, match=message):
            generate(run, "We", context="written", **wrong)


def test_a_prompt_may_be_as_long_as_the_model_can_read(run):
    model = find_personal_model(run, context="written")
    most = model.pretrained.positions - 1  # one virtual token before it
    ids = model.pretrained.tokenizer("a" * most)["input_ids"]
    assert len(ids) == most  # each is one token
    assert generate(run, "a" * most, context="written", until="end", max_tokens=99)[0].startswith("a" * most)
    with pytest.raises(InputError, match=rf"prompt: {most + 1} tokens, but .* can read at most {most}\."):
        generate(run, "a" * (most + 1), context="written")


def test_a_single_context_need_not_be_named(tmp_path):
    for columns, name in (("user,text", "none.csv"), ("user,text,context", "one.csv")):
        more = ",here" if "context" in columns else ""
        rows = [f"{user},We must go on to {row}{more}" for user in ("ada", "bob") for row in range(6)]
        (tmp_path / name).write_text(columns + "\n" + "\n".join(rows) + "\n")
        (tmp_path / name[:-4]).mkdir()
        with train_small(tmp_path / name[:-4], corpus=tmp_path / name, rounds=1) as run:
            assert generate(run, "We", user="ada")
            if not more:
                with pytest.raises(InputError, match="has no contexts"):
                    generate(run, "We", user="ada", context="here")


def test_a_run_without_a_language_model_cannot_generate(tmp_path):
    people = load_federation("dialects", settings={"users": 4, "examples": 6})
    with (
        train("furl", people, folder=tmp_path / "run", rounds=1, workers=0, **furl.SMALL) as run,
        pytest.raises(RunError, match="furl does not personalize a language model"),
    ):
        generate(run, "We")


def test_the_controls_generate_too(tmp_path):
    for kind in ("context", "shared", "personal"):
        (tmp_path / kind).mkdir()
        with train_small(tmp_path / kind, rounds=1, prefix=kind) as run:
            named = {"context": "written"} if kind == "context" else {}
            assert generate(run, "We", user="kennedy", **named)
