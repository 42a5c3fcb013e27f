"""Replies as a user: their order and scores against all replies of a tiny model, reranking, and what is refused.

(`tests/evaluation/test_replies.py` has the metrics of replies.)
"""

from itertools import product

import pytest
import torch
from small_dialogue import SPEAKERS, WORDS, conversations, write_dialogue, write_reply_model
from spoken_corpus import train_small
from torch.func import functional_call

from homespun import generate
from homespun.core.errors import InputError, RunError, SettingsError, UnknownNameError
from homespun.data.source import DataSettings
from homespun.models.reply_model import load_inverse, load_reply_model
from homespun.models.vocabulary import SPECIAL, Vocabulary
from homespun.personalization.new_user import personalize
from homespun.personalization.replies import Search, find_replier, reply
from homespun.personalization.reranking import Reranker, keep_reranker
from homespun.personalization.user import load_user_model
from homespun.runs.training import load, prepare, reopen, train

SMALL = {"rounds": 2, "workers": 0, "persona_dim": 3, "batch": 8, "new_columns": 1.0, "persona_scale": 3.0}
PROMPT = "is the sea blue?"
ADA, BO, CY = SPEAKERS
NUMBERS = range(SPECIAL, len(WORDS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("talk")
    write_dialogue(place / "talk.jsonl", conversations(12))
    write_reply_model(place / "base", scale=2.0)
    write_reply_model(place / "inverse", scale=2.0, direction="prompts", seed=5)
    return place


def trained(place, name, **settings):
    """A run after its rounds, still open."""
    data = DataSettings(source=str(place / "talk.jsonl"))
    values = {"base_model": str(place / "base"), **SMALL, **settings}
    run = prepare("fednlg", data.load(), folder=place / name, settings=values, data=data)
    list(run.rounds())
    return run


@pytest.fixture
def run(folder, tmp_path):
    with trained(folder, tmp_path / "run") as found:
        yield found


def sequence_log_prob(network, parameters, question, words):
    """log p(words, end | question) with plain torch."""
    batch = {
        "question": torch.tensor([question]),
        "question_length": torch.tensor([len(question)]),
        "reply": torch.tensor([words]),
        "length": torch.tensor([len(words) + 1]),
    }
    with torch.no_grad():
        return -float(functional_call(network, parameters, (batch,)).double().sum())


def all_replies(run, user, *, prompt=PROMPT, most=2):
    """Every reply of at most this many words with its log probability, best first."""
    private = run.clients.private([user], run.state.broadcast())[user]
    parameters = run.built.parameters(run.state.broadcast(), private)
    sequences = [one for size in range(1, most + 1) for one in product(NUMBERS, repeat=size)]
    question = WORDS.encode(prompt)
    scored = [(sequence_log_prob(run.built.model, parameters, question, list(one)), one) for one in sequences]
    return sorted(scored, reverse=True)


def test_the_best_of_all_replies(run):
    """With as many hypotheses as words, the search over two words is exhaustive."""
    for user in (ADA, BO):
        found = reply(run, PROMPT, user=user, n=8, beam=16, max_words=2)
        expected = all_replies(run, user)[:8]
        assert [one.tokens for one in found] == [words for _, words in expected]
        for one, (log_prob, words) in zip(found, expected, strict=True):
            assert one.log_prob == one.score == pytest.approx(log_prob, abs=1e-4)
            assert (one.words, one.text) == (len(words), WORDS.decode(words))
        assert [one.rank for one in found] == list(range(1, 9))
        assert all(one.log_prob_of_prompt is None for one in found)
    ada, bo = ([one.log_prob for one in reply(run, PROMPT, user=user, beam=16)] for user in (ADA, BO))
    assert ada != bo  # the persona is read


def test_reranking_is_equation_7(run, folder):
    inverse = load_inverse(str(folder / "inverse"), find_replier(run).base)
    network, question = inverse.build(), WORDS.encode(PROMPT)
    candidates = all_replies(run, ADA)[:16]  # those that the search lists
    before = [words for _, words in candidates]
    for lam, gamma in ((0.0, 0.0), (0.7, -2.0), (2.0, 5.0)):
        keep_reranker(run, Reranker(inverse, lam, gamma))
        scored = {}
        for log_prob, words in candidates:
            of_prompt = sequence_log_prob(network, dict(network.named_parameters()), list(words), question)
            scored[words] = (log_prob + lam * of_prompt + gamma * len(words), of_prompt)
        expected = sorted(scored, key=lambda words: -scored[words][0])
        found = reply(run, PROMPT, user=ADA, n=5, beam=16, max_words=2)
        assert [one.tokens for one in found] == expected[:5]
        for one in found:
            assert one.score == pytest.approx(scored[one.tokens][0], abs=1e-4)
            assert one.log_prob_of_prompt == pytest.approx(scored[one.tokens][1], abs=1e-4)
            assert one.rank == 1 + before.index(one.tokens)
    assert expected[:5] != before[:5]
    diverse = reply(run, PROMPT, user=ADA, n=1, decode="diverse", beam=15, max_words=2)
    alike = reply(run, PROMPT, user=ADA, n=9, decode="diverse", beam=15, max_words=2)
    assert diverse[0] == alike[0]  # all candidates are reranked, however many are shown


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seed": 7}, "its weights have changed since the run's reranker was tuned"),
        ({"direction": "replies"}, "writes replies, not prompts"),
        ({"vocabulary": Vocabulary(WORDS.known[:5])}, "its vocabulary of 9 numbers is not that of the base model"),
    ],
)
def test_an_inverse_model_that_changed_is_refused(run, tmp_path, values, message):
    same = {"scale": 2.0, "direction": "prompts", "seed": 5}
    place = write_reply_model(tmp_path / "inverse", **same)
    keep_reranker(run, Reranker(load_inverse(place, find_replier(run).base), 0.5, 0.1))
    write_reply_model(tmp_path / "inverse", **{**same, **values})
    with pytest.raises((RunError, InputError), match=message):
        reply(run, PROMPT)
    write_reply_model(tmp_path / "inverse", **same)
    assert reply(run, PROMPT)[0].log_prob_of_prompt is not None


def test_numbers_of_replies_and_hypotheses(run):
    assert len(reply(run, PROMPT, n=1, beam=4)) == 1
    assert len(reply(run, PROMPT, n=10, beam=4, max_words=3)) == 10  # more than hypotheses
    assert len(reply(run, PROMPT, n=30, beam=4, max_words=1)) == 4  # no more than there are
    # more hypotheses than words, as is the default, are as many as words
    assert reply(run, PROMPT, max_words=2) == reply(run, PROMPT, beam=len(WORDS), max_words=2)
    for n in (0, -1):
        with pytest.raises(InputError, match="Ask for at least one"):
            reply(run, PROMPT, n=n)
    for wrong in ({"beam": 0}, {"max_words": 0}, {"decode": "best"}, {"beem": 3}, {"top_p": 0}):
        with pytest.raises(SettingsError, match=next(iter(wrong))):
            reply(run, PROMPT, **wrong)


def test_prompts_that_cannot_be_read(run):
    for empty in ("", "   ", "***", "\n"):
        with pytest.raises(InputError, match="prompt: it has no word"):
            reply(run, empty)
    with pytest.raises(InputError, match="prompt: None is not a text"):
        reply(run, None)
    with pytest.raises(InputError, match=r"knows none of its words \(zebra, quagga\)"):
        reply(run, "Zebra quagga")
    read = find_replier(run).read
    assert read(PROMPT).notes == []
    assert read("zebra sea").notes == ["1 of 2 words not known to the model"]
    long = read("the sea is blue and you and we")
    assert long.tokens == tuple(WORDS.encode("the sea is blue and you"))
    assert long.notes == ["2 words after the first 6 not read"]
    assert read("the sea is blue and you go").notes == ["1 word after the first 6 not read"]
    cut, short = (reply(run, text, beam=4) for text in ("the sea is blue and you and we", "the sea is blue and you"))
    assert cut == short


def test_names_of_users(run):
    replier = find_replier(run)
    assert [replier.speaker(name).user for name in (ADA, "ada", "BO derek")] == [ADA, ADA, BO]
    for name, message in (
        ("addda", "Did you mean 'Ada Lovelace'"),
        ("o", "3 users match 'o'"),
        ("host", "no user 'host'"),  # who never replies
        ("", "no user ''"),
    ):
        with pytest.raises(UnknownNameError, match=message):
            replier.speaker(name)
    new = replier.speaker(None)
    assert (new.user, new.personalized) == (None, True)
    assert torch.equal(new.persona, run.built.new_private("", seed=0)["persona.embedding"])
    assert repr(new) == "<Speaker None>"


def test_a_participant_who_never_took_part(folder, tmp_path):
    with trained(folder, tmp_path / "run", cohort=1, rounds=1) as run:
        (took_part,) = run.vault.users()
        speakers = {user: find_replier(run).speaker(user) for user in SPEAKERS}
        assert {user for user, one in speakers.items() if one.personalized} == {took_part}
        other = next(user for user in SPEAKERS if user != took_part)
        start = run.built.new_private(other, seed=0)["persona.embedding"]
        assert torch.equal(speakers[other].persona, start)


def test_a_table_of_personas_and_none(folder, tmp_path):
    with trained(folder, tmp_path / "table", persona="table") as run:
        table, replier = run.state.keyed["persona.table"], find_replier(run)
        assert torch.equal(replier.speaker(BO).persona, table[1])
        assert torch.equal(replier.speaker(None).persona, table.mean(dim=0))
        assert reply(run, PROMPT, user=BO, beam=4) != reply(run, PROMPT, user=ADA, beam=4)
    with trained(folder, tmp_path / "none", persona="none") as run:
        assert find_replier(run).speaker(ADA).persona is None and find_replier(run).speaker(ADA).personalized
        assert reply(run, PROMPT, user=BO, beam=4) == reply(run, PROMPT, user=ADA, beam=4) == reply(run, PROMPT, beam=4)


def test_a_persona_in_the_question(folder, tmp_path):
    with trained(folder, tmp_path / "run", persona_in_question=True) as run:
        found = reply(run, PROMPT, user=CY, n=4, beam=16, max_words=2)
        assert [one.tokens for one in found] == [words for _, words in all_replies(run, CY)[:4]]


def test_several_speakers_at_once_are_each_alone(run):
    replier, search = find_replier(run), Search(beam=8, max_words=4)
    speakers = [replier.speaker(user) for user in (BO, None, ADA)]
    for speaker, found in zip(speakers, replier.reply_as(PROMPT, speakers, n=3, search=search), strict=True):
        (alone,) = replier.reply_as(PROMPT, [speaker], n=3, search=search)
        assert [one.tokens for one in found] == [one.tokens for one in alone]
        assert [one.log_prob for one in found] == pytest.approx([one.log_prob for one in alone], abs=1e-5)


def test_greedy_takes_the_likeliest_word_at_each_step(run):
    (found,) = reply(run, PROMPT, user=ADA, n=5, decode="greedy", max_words=2)
    speaker, steps = find_replier(run).speaker(ADA), []
    decoder = speaker.decoder
    state, token = decoder.start([WORDS.encode(PROMPT)], speaker.persona[None]), torch.tensor([decoder.begin])
    for _ in range(2):
        logits, state = decoder.step(token, state)
        logits[:, list(decoder.banned)] = -torch.inf
        if not steps:
            logits[:, decoder.end] = -torch.inf
        token = logits.argmax(dim=1)
        if int(token) == decoder.end:
            break
        steps.append(int(token))
    assert found.tokens == tuple(steps) and found.rank == 1
    assert reply(run, PROMPT, user=ADA, n=3, decode="sample", temperature=0, max_words=2) == [found]


def test_samples_are_ranked_by_log_probability(run):
    found = reply(run, PROMPT, n=6, decode="sample", seed=3, max_words=4)
    assert len(found) == 6 and [one.rank for one in found] == [1, 2, 3, 4, 5, 6]
    assert [one.log_prob for one in found] == sorted((one.log_prob for one in found), reverse=True)
    assert found == reply(run, PROMPT, n=6, decode="sample", seed=3, max_words=4)
    assert found != reply(run, PROMPT, n=6, decode="sample", seed=4, max_words=4)


def test_diverse_beams(run):
    found = reply(run, PROMPT, decode="diverse", n=5, beam=10, max_words=3)
    assert len({one.tokens[0] for one in found}) > 1
    assert len(reply(run, PROMPT, decode="diverse", n=5, max_words=3)) == 5  # 200 hypotheses for 16 words
    for beam, fitting in ((7, "Set it to 5 or 10"), (3, "Set it to 5")):
        with pytest.raises(SettingsError, match=f"{beam} hypotheses make no 5 equal groups. {fitting}"):
            reply(run, PROMPT, decode="diverse", beam=beam)
    assert reply(run, PROMPT, decode="diverse", beam=7, groups=7, max_words=3)


def test_a_new_user_in_python(run):
    eve = personalize(run, "eve", ["yes yes."] * 6, prompts=[PROMPT] * 6, steps=30)
    assert sorted(eve.private) == ["persona.embedding"]
    found = eve.reply(PROMPT, n=3, beam=8, max_words=3)
    assert len(found) == 3 and found != reply(run, PROMPT, n=3, beam=8, max_words=3)
    with pytest.raises(InputError, match="needs 1 of them for 1 texts"):
        personalize(run, "eve", ["yes."])
    with pytest.raises(SettingsError, match="beem"):
        eve.reply(PROMPT, beem=3)


def test_methods_that_do_not_reply(run, tmp_path):
    with train("fedavg", load("dialects", users=3), rounds=1, workers=0) as other:
        with pytest.raises(RunError, match=r"fedavg does not reply to texts.*homespun train fednlg"):
            reply(other, PROMPT)
        with pytest.raises(SettingsError, match="beam"):
            reply(other, PROMPT, beam=0)
    (tmp_path / "prefixes").mkdir()
    with (
        train_small(tmp_path / "prefixes", rounds=1) as other,
        pytest.raises(RunError, match=r"fedperc does not reply to texts.*homespun generate"),
    ):
        reply(other, PROMPT)
    with pytest.raises(RunError, match=r"fednlg does not personalize a language model.*homespun reply"):
        generate(run, "We must")
    with pytest.raises(RunError, match=r"fednlg does not predict labels. To reply to a text, use `homespun reply`"):
        load_user_model(run, ADA).predict(["We must"])


def test_methods_over_the_network_of_fednlg(folder):
    """FedRep keeps the network, and users have their own output layers; pFedMe has copies of parameters."""
    data, base = load(folder / "talk.jsonl"), {"base_model": str(folder / "base"), "persona_dim": 3, "batch": 8}
    with train("fedrep", data, base_method="fednlg", base_settings=base, rounds=1, workers=0) as over:
        found = reply(over, PROMPT, user=CY, n=4, beam=16, max_words=2)
        assert [one.tokens for one in found] == [words for _, words in all_replies(over, CY)[:4]]
    with (
        train("pfedme", data, base_method="fednlg", base_settings=base, rounds=1, workers=0) as over,
        pytest.raises(RunError, match=r"pfedme does not reply to texts.*homespun train fednlg"),
    ):
        reply(over, PROMPT, user=CY)


def test_a_base_model_that_changed_is_refused(folder, tmp_path):
    write_reply_model(tmp_path / "base", seed=9)
    with trained(folder, tmp_path / "run", base_model=str(tmp_path / "base"), rounds=1):
        pass
    write_reply_model(tmp_path / "base", seed=10)
    with pytest.raises(RunError, match="is not the one that this run was trained with"):
        reopen(tmp_path / "run")
    load_reply_model.cache_clear()


def test_a_persona_is_exaggerated(run):
    """Of one word: logits are those of a persona of zeros plus twice what the persona changes."""
    replier = find_replier(run)
    speaker = replier.speaker(ADA)
    decoder, zeros = speaker.decoder, torch.zeros_like(speaker.persona)
    tokens = torch.full((1,), decoder.begin)
    own, neutral = (
        decoder.step(tokens, decoder.start([WORDS.encode(PROMPT)], persona[None]))[0][0]
        for persona in (speaker.persona, zeros)
    )
    assert not torch.allclose(own, neutral)
    expected = (2 * own - neutral).log_softmax(dim=0)
    guided = replier._guided(speaker.decoder, 2.0)
    found = guided.step(tokens, guided.start([WORDS.encode(PROMPT)], speaker.persona[None]))[0][0].log_softmax(dim=0)
    torch.testing.assert_close(found, expected)

    def listed(user, strength):
        found = reply(run, PROMPT, user=user, n=8, beam=16, max_words=2, persona_strength=strength)
        return [(one.tokens, one.log_prob) for one in found]

    assert listed(ADA, 1.0) == [
        (one.tokens, one.log_prob) for one in reply(run, PROMPT, user=ADA, n=8, beam=16, max_words=2)
    ]
    assert listed(ADA, 3.0) != listed(ADA, 1.0)
    # Nobody's persona is not that of a new user, which is random.
    for (tokens_of_ada, ada), (tokens_of_new, new_user) in zip(listed(ADA, 0.0), listed(None, 0.0), strict=True):
        assert tokens_of_ada == tokens_of_new and ada == pytest.approx(new_user, abs=1e-5)
    assert listed(None, 0.0) != listed(None, 1.0)


def test_without_personas_there_is_nothing_to_exaggerate(folder, tmp_path):
    with trained(folder, tmp_path / "run", persona="none") as run, pytest.raises(InputError, match="Leave it at 1"):
        reply(run, PROMPT, persona_strength=2.0)


def test_a_beam_beyond_the_vocabulary_is_an_error(run):
    with pytest.raises(InputError, match="beam: 5,000, but the vocabulary has 16 words"):
        reply(run, PROMPT, user=ADA, beam=5000)
    assert reply(run, PROMPT, user=ADA)  # the default is lowered
