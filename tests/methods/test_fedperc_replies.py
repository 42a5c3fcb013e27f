"""FedPerC as a dialogue method: what it reads and scores, its controls, and the replies it writes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from language_models import write_gpt2, write_llama
from small_dialogue import SPEAKERS, conversations, write_dialogue

from homespun.core import seeds
from homespun.core.errors import DataError, InputError, RunError, SettingsError
from homespun.core.method import Task
from homespun.core.words import words
from homespun.data.federation import Examples
from homespun.data.source import DataSettings
from homespun.engines.simulation import k_shot
from homespun.evaluation.conversation_losses import perplexity
from homespun.evaluation.language import SubwordReplyScoring, TokenScoring
from homespun.experiments import reply_quality
from homespun.experiments.reply_losses import conversation_losses, untouched_losses
from homespun.experiments.reply_quality import reply_results, write_replies
from homespun.experiments.reply_test_set import make_reply_test, part_of
from homespun.models.in_context import in_context_losses
from homespun.models.pretrained import load_pretrained
from homespun.personalization.adapter import export_adapter
from homespun.personalization.generation import generate
from homespun.personalization.new_user import personalize
from homespun.personalization.replies import Search, find_replier, reply
from homespun.personalization.reranker_tuning import tune_reranker
from homespun.report.reply_tables import overlap_table, prompt_table, speaker_table
from homespun.runs.controls import choose_start, evaluate_controls, evaluate_personal_share
from homespun.runs.evaluate import evaluate
from homespun.runs.training import load, prepare, reopen, train
from homespun.system.method_loading import load_method
from homespun.testing.contract import check_method

PROMPT = "is the sea blue?"
ADA, BO, CY = SPEAKERS
SMALL = {
    "reads": "replies", "rounds": 3, "length": 40, "local_steps": 3, "batch": 8, "lr": 0.05, "personal_lr": 0.5,
    "mu": 0, "split_by": "conversation", "workers": 0, "evaluate_replies": 9,
}  # fmt: skip

SAMPLED_CONTROLS = ("retrieved_sampled", "real_sampled")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(write_gpt2(tmp_path_factory.mktemp("base") / "model", positions=96))


@pytest.fixture(scope="module")
def place(base, tmp_path_factory):
    """A folder with a dialogue and a finished run on it."""
    folder = tmp_path_factory.mktemp("talk")
    data = DataSettings(source=str(write_dialogue(folder / "talk.jsonl", conversations(60))))
    settings = {**SMALL, "base_model": base}
    with prepare("fedperc", data.load(), folder=folder / "run", settings=settings, data=data) as run:
        list(run.rounds())
    return folder


@pytest.fixture
def run(place):
    with reopen(place / "run") as found:
        yield found


def test_the_method_reads_replies_and_scores_words(base):
    method = load_method("fedperc", {"base_model": base, "reads": "replies", "evaluate_decode": "greedy"}, Task())
    assert method.model.reads == "replies" and method.scoring == SubwordReplyScoring(200, decode="greedy")
    (line,) = load_pretrained(base).tokenizer("\n")["input_ids"]
    data = method.model.encode(Examples(["yes."], prompts=["go on"]))
    assert (int(data["question"][0, -1]), int(data["tokens"][0, -1]), int(data["words"][0])) == (line, line, 3)
    plain = load_method("fedperc", {"base_model": base}, Task())
    assert plain.model.reads == "texts" and type(plain.scoring) is TokenScoring
    assert "reads" not in plain.settings.identity() and "separator" not in plain.settings.identity()


def test_the_separator_is_one_token_and_eos_by_default(base):
    pretrained = load_pretrained(base)
    assert pretrained.end() == pretrained.tokenizer.eos_token_id
    with pytest.raises(SettingsError, match=r"separator: 'zq' is 2 tokens of .* Use one"):
        load_method("fedperc", {"base_model": base, "reads": "replies", "separator": "zq"}, Task())


def test_a_corpus_without_conversations_is_refused(base):
    rows = [{"user": "ada", "text": "the sea is blue"}] * 4
    with pytest.raises(DataError, match="the corpus has no conversations, so it has no replies"):
        train("fedperc", load(rows), base_model=base, reads="replies", rounds=1, workers=0)


def test_perplexity_is_per_word_and_the_loss_that_of_replies(run):
    found = evaluate(run, "test")
    users = run.federation.users
    texts = [text for user in users for text in part_of(run, user, "test").texts]
    assert found.tokens == sum(len(words(text)) + 1 for text in texts)
    data = {user: run.method.model.encode(part_of(run, user, "test")) for user in users}
    assert found.subwords == sum(int(one["length"].sum()) for one in data.values()) > found.tokens
    private, broadcast = run.clients.private(list(users), run.state.broadcast()), run.state.broadcast()
    total = 0.0
    for user in users:
        network, parameters = run.built.model, run.built.parameters(broadcast, private[user])
        with torch.no_grad():
            total += float(torch.func.functional_call(network, parameters, (data[user],)).double().sum())
    assert found.perplexity == pytest.approx(math.exp(total / found.tokens), rel=1e-5)
    assert found.subword_perplexity == pytest.approx(math.exp(total / found.subwords), rel=1e-5)
    assert found.to_dict()["subword_perplexity"] == found.subword_perplexity
    losses = conversation_losses(run)
    assert sum(losses["words"]) == found.tokens and perplexity(losses) == pytest.approx(found.perplexity, rel=1e-5)
    # FedNLG counts the same words, so that the two can be compared
    fednlg = load_method("fednlg", {"base_model": "untrained"}, Task(population=3))
    for user in users:
        assert torch.equal(fednlg.model.encode(part_of(run, user, "test"))["length"], data[user]["words"])


def test_questions_change_the_losses(run):
    test = part_of(run, ADA, "test")
    broadcast = run.state.broadcast()
    parameters = run.built.parameters(broadcast, run.clients.private([ADA], broadcast)[ADA])
    encode = run.method.model.encode
    with torch.no_grad():
        own, other = (
            torch.func.functional_call(run.built.model, parameters, (encode(one),)).sum(dim=1)
            for one in (test, replace(test, prompts=["zebra" if prompt else prompt for prompt in test.prompts]))
        )
    assert bool(((own - other).abs() > 1e-4).all())


def test_controls_read_the_question_too(run, base):
    """One own reply in the context, by hand: start, its question, line, reply, line; then question, line, reply."""
    pretrained, found = load_pretrained(base), evaluate_controls(run)
    assert list(found) == ["untouched", "in_context_1", "in_context_5", "in_context_15"]
    start = pretrained.start(choose_start(run, pretrained))
    untouched, with_one = [], []
    for position, user in enumerate(run.federation.users):
        draw = seeds.numpy_generator(run.settings.seed, "samples", user)
        own = k_shot(run.clients.encode(run.federation, position, "adapt"), 1, draw=draw)
        pair = [
            *own["question"][0, : int(own["question_length"][0])].tolist(),
            *own["tokens"][0, : int(own["length"][0])].tolist(),
        ]
        scored = run.clients.encode(run.federation, position, "scored")
        for before, losses in (([start], untouched), ([start, *pair], with_one)):
            losses.append(float(in_context_losses(pretrained.model, before, scored).double().sum()))
    np.testing.assert_allclose(found["untouched"].user_loss, untouched, rtol=1e-5)
    np.testing.assert_allclose(found["in_context_1"].user_loss, with_one, rtol=1e-5)
    personal = evaluate_personal_share(run)
    assert {one.tokens for one in (*found.values(), *personal.values())} == {personal["own"].tokens}
    assert len({one.perplexity for one in personal.values()}) == 3


def test_replies_have_the_log_probability_that_the_model_is_trained_on(run):
    network, broadcast = run.built.model, run.state.broadcast()
    for user in (ADA, BO):
        parameters = run.built.parameters(broadcast, run.clients.private([user], broadcast)[user])
        found = reply(run, PROMPT, user=user, n=3, beam=6, max_words=4)
        assert len(found) == 3
        for one in found:
            data = run.method.model.encode(Examples([""], prompts=[PROMPT]))
            tokens = [*one.tokens, find_replier(run).writer.separator]
            batch = {**data, "tokens": torch.tensor([tokens]), "length": torch.tensor([len(tokens)])}
            with torch.no_grad():
                loss = float(torch.func.functional_call(network, parameters, (batch,)).double().sum())
            assert one.log_prob == one.score == pytest.approx(-loss, abs=1e-4)
            assert one.words == len(words(one.text)) and "\n" not in one.text
    ada, bo = ([one.log_prob for one in reply(run, PROMPT, user=user, beam=4, max_words=3)] for user in (ADA, BO))
    assert ada != bo  # the prefix is read


def test_prompts_and_replies_share_the_length(run):
    """Of 40 tokens, 20 are for the reply, one is the separator, and 19 are left for the prompt."""
    read = find_replier(run).read
    whole = run.method.model.encode(Examples([""], prompts=[PROMPT * 4]))["question"][0].tolist()[:-1]
    assert read(PROMPT).notes == [] and len(whole) > 20
    long = read(PROMPT * 4)
    assert list(long.tokens) == whole[-19:]
    assert long.notes[0].endswith("tokens before the last 19 not read")
    for empty in ("", "***"):
        with pytest.raises(InputError, match="prompt: it has no word"):
            read(empty)
    (sampled,) = reply(run, PROMPT, decode="sample", n=1, temperature=5, max_words=100)
    assert len(sampled.tokens) <= 20


def test_speakers_are_searched_together_as_if_alone(run):
    replier, search = find_replier(run), Search(beam=4, max_words=4)
    speakers = [replier.speaker(user) for user in (BO, None, ADA)]
    assert len({id(one.decoder) for one in speakers}) == 1
    for speaker, found in zip(speakers, replier.reply_as(PROMPT, speakers, n=2, search=search), strict=True):
        (alone,) = replier.reply_as(PROMPT, [speaker], n=2, search=search)
        assert [one.tokens for one in found] == [one.tokens for one in alone]


def test_results_have_the_scores_of_replies(run):
    found = reply_results(run)
    assert found["decode"] == "sample" and found["prompts"] == 9
    scored = {name for name, one in found["scores"].items() if one is not None}
    assert scored == {"own", "another", "sampled", "sampled_another", "retrieved", "real", *SAMPLED_CONTROLS}
    assert found["reranker"] is None and found["scores"]["reranked"] is None
    losses, prompts = found["losses"], len(found["samples"]["prompts"])
    assert len({tuple(losses[name]) for name in ("own", "another", "untouched")}) == 3
    assert found["samples"]["users"] == list(SPEAKERS) and len(found["samples"]["replies"]) == prompts
    own = {"seed": 0, "replies": found}
    results = {"configurations": {"ours": {"title": "Ours", "method": "fedperc", "runs": [own]}}}
    assert (
        "9 test prompts, one sampled reply to each; not reranked, unless the row says so" in overlap_table(results).note
    )
    other = {"seed": 0, "replies": {**found, "decode": "beam"}}
    results["configurations"]["theirs"] = {"title": "Theirs", "method": "fedperc", "runs": [other]}
    how = "one sampled reply to each (Ours); best reply of a beam of 20 (Theirs)"
    assert all(how in table.note for table in (overlap_table(results), speaker_table(results), prompt_table(results)))


def test_losses_of_the_base_model_by_conversation(run, base):
    """Those of the control, on the whole test part."""
    pretrained = load_pretrained(base)
    start, total = pretrained.start(choose_start(run, pretrained)), 0.0
    for user in run.federation.users:
        data = run.method.model.encode(part_of(run, user, "test"))
        total += float(in_context_losses(pretrained.model, [start], data).double().sum())
    found = untouched_losses(run)
    assert sum(found["loss"]) == pytest.approx(total, rel=1e-5) and found["words"] == conversation_losses(run)["words"]


def test_every_prompt_has_its_own_random_numbers(run, monkeypatch):
    """Otherwise all replies would start alike."""
    replier, search = find_replier(run), Search(decode="sample", max_words=8)
    pair = make_reply_test(run, replies=3).pairs[0]
    for at_once in (1, 20):
        monkeypatch.setattr(reply_quality, "AT_ONCE", {"sample": at_once})
        found = write_replies(replier, [pair] * 3, search=search)
        assert len(set(found)) == 3 and found == write_replies(replier, [pair] * 3, search=search)


def test_replies_are_written_as_plain_text(run, base):
    tokens = load_pretrained(base).tokenizer(" Yes\x0c, we go. \u00e9")["input_ids"]
    write = find_replier(run).writer.write
    assert write(tokens) == ("Yes, we go. \u00e9", 6)
    assert write(tokens[:-1]) == ("Yes, we go.", 5)  # the last character is incomplete


def test_fewer_test_examples_are_scored_by_conversation_if_evaluations_have_fewer(place, base):
    settings = {**SMALL, "base_model": base, "evaluate_examples": 2}
    with prepare("fedperc", load(place / "talk.jsonl"), folder=None, settings=settings) as run:
        test = [part_of(run, user, "test") for user in run.federation.users]
        kept = [one.take([0, len(one) - 1]).texts for one in test]
        assert sum(conversation_losses(run)["words"]) == sum(len(words(text)) + 1 for some in kept for text in some)


def test_a_new_user(run):
    eve = personalize(run, "eve", ["yes yes."] * 6, prompts=[PROMPT] * 6, steps=20)
    assert eve.reply(PROMPT, n=1, beam=4, max_words=3) != reply(run, PROMPT, n=1, beam=4, max_words=3)


def test_contexts_of_speakers(base):
    """Ada speaks on the set most often; a new user has to choose."""
    rows = [
        {"user": who, "text": text, "conversation": scene, "context": "set" if scene % 3 else "street"}
        for scene in range(20)
        for who, text in (("ada", "the sea is blue and you"), ("bo", "no, we go on"), ("ada", "yes. we go"))
    ]
    settings = {**SMALL, "base_model": base, "rounds": 1, "row_denominator": "contributors"}
    with prepare("fedperc", load(rows), folder=None, settings=settings) as run:
        list(run.rounds())
        named = {name: find_replier(run, context=name).speaker("ada").persona for name in ("set", "street")}
        assert torch.equal(find_replier(run).speaker("ada").persona, named["set"])
        assert not torch.equal(named["set"], named["street"])
        with pytest.raises(InputError, match=r"the run has 2 contexts: .* Choose one"):
            reply(run, PROMPT)
        assert reply(run, PROMPT, context="street", beam=2, max_words=2)


def test_what_such_a_run_does_not_do(run, tmp_path):
    for use in (lambda: generate(run, "We must"), lambda: export_adapter(run, tmp_path / "out", user=ADA)):
        with pytest.raises(RunError, match=r"replies to texts and does not continue them. Use `homespun reply`"):
            use()
    with pytest.raises(RunError, match="Reranking and export are for runs of fednlg"):
        tune_reranker(run, "nowhere", federated=False, questions=2, beam=2)


@pytest.mark.system
@pytest.mark.parametrize("write", [write_gpt2, write_llama])
def test_the_contract_holds(write, tmp_path):
    settings = {"base_model": str(write(tmp_path / "base")), "reads": "replies", "length": 24, "evaluate_replies": 0}
    assert check_method("fedperc", settings).largest_difference < 1e-5
