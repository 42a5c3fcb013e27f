"""Replies of a run to test prompts: which pairs, whose persona, and the losses by conversation."""

from contextlib import nullcontext
from dataclasses import replace
from shutil import copytree

import pytest
from small_dialogue import PUBLIC, conversations, write_dialogue, write_reply_model

from homespun.data.source import DataSettings
from homespun.evaluation.conversation_losses import perplexity
from homespun.evaluation.language import ReplyScoring
from homespun.experiments.experiment import Configuration, Experiment, collect, train_all
from homespun.experiments.reply_losses import conversation_losses, other_speakers, untouched_losses
from homespun.experiments.reply_quality import reply_results, score_replies, write_replies
from homespun.experiments.reply_test_set import _comparable, make_reply_test, part_of
from homespun.experiments.results import single_results
from homespun.personalization.replies import BestReply, Search, find_replier
from homespun.personalization.reranking import keep_reranker
from homespun.runs.controls import evaluate_controls
from homespun.runs.evaluate import evaluate
from homespun.runs.training import prepare

SAMPLED_CONTROLS = ("retrieved_sampled", "real_sampled")
SMALL = {"rounds": 2, "workers": 0, "persona_dim": 3, "batch": 8, "new_columns": 1.0, "persona_scale": 3.0}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("talk")
    data = DataSettings(source=str(write_dialogue(place / "talk.jsonl", conversations(60))))
    values = {"base_model": write_reply_model(place / "base", scale=2.0), **SMALL, "evaluate_beam": 4}
    with prepare("fednlg", data.load(), folder=place / "run", settings=values, data=data) as found:
        list(found.rounds())
        yield found


def test_pairs_are_of_test_parts_and_spread_over_users(run):
    test = make_reply_test(run, replies=6)
    assert [one.user for one in test.pairs] == [user for user in run.federation.users for _ in range(2)]
    for one in test.pairs:
        part = part_of(run, one.user, "test")
        rows = list(zip(part.prompts, part.texts, part.conversations.tolist(), strict=True))
        assert (one.prompt, one.reply, one.conversation) in rows
    trained = {int(name) for user in run.federation.users for name in part_of(run, user, "train").conversations}
    assert not trained & {one.conversation for one in test.pairs}


def test_losses_by_conversation_give_the_perplexity_of_the_test_part(run):
    losses = conversation_losses(run)
    assert sum(losses["words"]) == evaluate(run, "test").tokens
    assert perplexity(losses) == pytest.approx(evaluate(run, "test").perplexity, rel=1e-5)
    assert losses["conversation"] == sorted({one.conversation for one in make_reply_test(run, replies=10**6).pairs})


def test_losses_of_the_pretrained_model_are_those_of_the_control(run):
    losses, control = untouched_losses(run), evaluate_controls(run, "test")["untouched"]
    assert sum(losses["words"]) == control.tokens
    assert perplexity(losses) == pytest.approx(control.perplexity, rel=1e-5)
    assert losses["conversation"] == conversation_losses(run)["conversation"]


def test_another_persona_is_the_mean_over_others(run):
    users, broadcast = list(run.federation.users), run.state.broadcast()
    sizes = {user: len(part_of(run, user, "train")) for user in users}
    assignments = other_speakers(run, users)
    assert len(assignments) == len(users) - 1 == 2
    for one in assignments:
        assert sorted(one) == sorted(one.values()) == sorted(users)
        assert all(user != other for user, other in one.items())
    largest = max(users, key=lambda user: sizes[user])
    assert [sizes[one[largest]] for one in assignments] == sorted(sizes.values(), reverse=True)[1:]
    assert {one[user] for one in assignments for user in users} == set(users)
    private, total = run.clients.private(users, broadcast), 0.0
    for one in assignments:
        clients = run.clients.load(users, "test", broadcast, user_set="participants")
        others = [replace(client, private=private[one[client.user]]) for client in clients]
        total += sum(float(output.double().sum()) for output in run.trainer.predict(broadcast, others))
    found = conversation_losses(run, "another")
    assert sum(found["loss"]) == pytest.approx(total / 2, rel=1e-5)
    assert perplexity(found) != pytest.approx(perplexity(conversation_losses(run)))


def test_replies_with_other_personas_take_turns(run, monkeypatch):
    """The prompts of a user are answered with the personas of the others in turn."""
    test, replier, taken = make_reply_test(run, replies=12), find_replier(run), []

    def best_replies(self, asked, *, search):
        taken.extend(speaker.user for _, speaker in asked)
        return [BestReply("", None)] * len(asked)

    monkeypatch.setattr(type(replier), "best_replies", best_replies)
    write_replies(replier, test.pairs, search=Search(beam=4), persona="another")
    users = [one.user for one in test.pairs]
    assert len(taken) == len(users) and all(user != other for user, other in zip(users, taken, strict=True))
    for user in set(users):
        others = [other for own, other in zip(users, taken, strict=True) if own == user]
        assert {others.count(other) for other in set(others)} == {2} and len(set(others)) == 2
    taken.clear()
    one = [pair for pair in test.pairs if pair.user == users[0]]  # only this user has test replies
    write_replies(replier, one, search=Search(beam=4), persona="another")
    assert len(taken) == len(one) and users[0] not in taken


def test_another_row_of_a_table_of_personas(tmp_path):
    data = DataSettings(source=str(write_dialogue(tmp_path / "talk.jsonl", conversations(30))))
    values = {"base_model": write_reply_model(tmp_path / "base", scale=2.0), **SMALL}
    with prepare("central_dialogue", data.load(), folder=tmp_path / "run", settings=values, data=data) as run:
        list(run.rounds())
        own, another = conversation_losses(run), conversation_losses(run, "another")
    assert own["words"] == another["words"] and own["loss"] != another["loss"]


def test_replies_of_the_best_hypothesis(run):
    test, replier = make_reply_test(run, replies=6), find_replier(run)
    written = write_replies(replier, test.pairs, search=Search(beam=4))
    for one, best in zip(test.pairs, written, strict=True):
        assert replier.reply(one.prompt, one.user, n=1, search=Search(beam=4))[0].text == best.likeliest
        assert best.reranked is None


def test_retrieval_answers_with_the_speakers_own_training_reply(run):
    test = make_reply_test(run, replies=9)
    for one in test.asked:
        text = test.nearest[one]
        assert text in part_of(run, one.user, "train").texts


def test_paraphrases_are_different_prompts_to_one_user(run):
    """Two sayings of the corpus have the same words in another order."""
    test = make_reply_test(run, replies=6)
    assert test.similar and test.asked[: len(test.pairs)] == test.pairs
    for one, other in test.similar:
        left, right = test.paraphrased[one], test.paraphrased[other]
        assert left.user == right.user and {left.prompt, right.prompt} == {"the sea is blue.", "is the sea blue?"}


def test_replies_with_exaggerated_personas_are_scored(tmp_path):
    """The strength changes no run: results are made again, without training."""
    made = Experiment(
        name="talk",
        data=DataSettings(source=str(write_dialogue(tmp_path / "talk.jsonl", conversations(30)))),
        settings={**SMALL, "base_model": write_reply_model(tmp_path / "base", scale=2.0)},
        configurations={"fednlg": Configuration(method="fednlg")},
    )
    stronger = made.model_copy(update={"settings": {**made.settings, "evaluate_strength": 5.0}})
    rounds, found = [], []
    for asked in (made, stronger):
        train_all(asked, tmp_path, lambda run, _: nullcontext(lambda event: rounds.append(type(event).__name__)))
        found.append(collect(asked, tmp_path)["configurations"]["fednlg"]["runs"][0]["replies"])
    assert rounds.count("RoundRecord") == SMALL["rounds"]
    first, second = (one["scores"] for one in found)
    assert first["guided"] is None and first["guided_another"] is None and first["sampled"] == second["sampled"]
    assert second["guided"] != second["sampled"] and second["guided_another"] != second["guided"]
    assert found[1]["strength"] == 5.0


def test_results_have_every_score(run):
    found = reply_results(run)
    written = {"own", "another", "sampled", "sampled_another", "retrieved", "real", *SAMPLED_CONTROLS}
    assert {name for name, one in found["scores"].items() if one} == written
    absent = {"reranked", "reranked_another", "guided", "guided_another"}
    assert set(found["scores"]) - written == absent and found["reranker"] is None
    assert found["scores"]["real"]["bleu_4"][0] == 1.0
    assert found["prompts"] == len(make_reply_test(run, replies=200).pairs)
    assert found["samples"]["users"] == list(run.federation.users)
    assert [len(replies) for replies in found["samples"]["replies"]] == [3] * len(found["samples"]["prompts"])
    assert all(len(one) == 3 for name, one in found["scores"]["own"].items() if name.startswith("bleu"))


def test_a_reranker_is_tuned_after_training_and_its_replies_are_scored(tmp_path):
    inverse = write_reply_model(tmp_path / "inverse", scale=2.0, direction="prompts", seed=5)
    data = DataSettings(source=str(write_dialogue(tmp_path / "talk.jsonl", conversations(60))))
    base = write_reply_model(tmp_path / "base", scale=2.0, public=PUBLIC)
    values = {"base_model": base, **SMALL, "evaluate_beam": 16}
    values |= {"evaluate_inverse": inverse, "evaluate_replies": 6}
    with prepare("fednlg", data.load(), folder=tmp_path / "run", settings=values, data=data) as run:
        list(run.rounds())
        (tuned,) = (
            one["runs"][0]["replies"] for one in single_results(run, data, title="some")["configurations"].values()
        )
        reranker = find_replier(run).reranker
        assert tuned["reranker"] == reranker.to_dict() and tuned["scores"]["reranked"]
        keep_reranker(run, replace(reranker, lam=3.0, gamma=5.0))  # prefers long replies
        found, test = reply_results(run), make_reply_test(run, replies=6)
        written = write_replies(find_replier(run), test.pairs, search=Search(beam=16))
        plain = write_replies(find_replier(run, reranked=False), test.pairs, search=Search(beam=16))
    assert [one.likeliest for one in written] == [one.likeliest for one in plain]
    assert (
        found["scores"]["reranked"]["bleu_1"]
        == score_replies(test, [one.reranked for one in written], pairs=test.pairs)["bleu_1"]
    )
    assert found["scores"]["reranked"]["length"][0] > found["scores"]["own"]["length"][0]
    assert found["scores"]["reranked_another"] and found["scores"]["own"] == tuned["scores"]["own"]


def test_right_names_give_the_accuracy(run):
    found = reply_results(run)
    users = [found["asked"]["users"][place] for place in found["asked"]["user"]]
    assert users == [one.user for one in make_reply_test(run, replies=200).pairs]
    for scores in filter(None, found["scores"].values()):
        shares = [
            [right for right, user in zip(scores["right"], users, strict=True) if user == one]
            for one in dict.fromkeys(users)
        ]
        assert scores["speaker"][0] == pytest.approx(sum(sum(one) / len(one) for one in shares) / len(shares))


def test_evaluation_settings_of_a_wrapped_method_train_nothing_again(tmp_path):
    """The base method's settings are a mapping inside the wrapper's."""
    data = DataSettings(source=str(write_dialogue(tmp_path / "talk.jsonl", conversations(30))))
    base = {"base_model": write_reply_model(tmp_path / "base"), "persona": "none", "batch": 8, "evaluate_beam": 2}

    def compared(**evaluated):
        values = {"base_method": "fednlg", "base_settings": {**base, **evaluated}, "rounds": 1, "workers": 0}
        one = Configuration(method="alone", settings=values)
        made, rounds = Experiment(name="x", data=data, configurations={"alone": one}), []
        train_all(made, tmp_path / "runs", lambda run, title: nullcontext(rounds.append))
        (found,) = collect(made, tmp_path / "runs")["configurations"]["alone"]["runs"]
        return found["replies"]["prompts"], len(rounds)

    assert compared(evaluate_replies=3)[0] == 3
    assert compared(evaluate_replies=3) == (3, 0)
    assert compared(evaluate_replies=6) == (6, 0)


def test_no_replies_are_written_if_none_are_asked_for(run, monkeypatch):
    monkeypatch.setattr(type(run), "scoring", ReplyScoring(replies=0))
    assert reply_results(run) is None


def test_paraphrases_are_of_users_with_other_prompts_too():
    """All of bob's prompts are paraphrases of each other: there is nothing to compare their answers with."""
    users = ["ada", "ada", "ada", "bob", "bob"]
    assert _comparable([(0, 1), (3, 4)], users=users) == []  # ada's third prompt is in no pair, so it is not asked
    assert _comparable([(0, 1), (1, 2), (3, 4)], users=users) == [(0, 1), (1, 2)]
    assert _comparable([(0, 1), (0, 2), (1, 2)], users=users) == []


def test_more_prompts_for_sampled_replies(run, tmp_path):
    """Best replies to 3 prompts and sampled replies to 9, each with its own controls."""
    settings = run.method.settings.model_dump()
    values = {**settings, "evaluate_replies": 3, "evaluate_sampled": 9, "evaluate_strength": 2.0}
    with reopened_with(run, tmp_path, values) as more:
        found = reply_results(more)
    count = {part: len(one["right"]) for part, one in found["scores"].items() if one}
    best = {"own", "another", "retrieved", "real"}
    assert count == {part: 3 if part in best else 9 for part in count} and best < count.keys()
    assert {"sampled", "guided", "guided_another", *SAMPLED_CONTROLS} < count.keys()
    assert len(found["asked"]["user"]) == 3 and len(found["asked_sampled"]["user"]) == 9
    assert found["scores"]["real_sampled"]["bleu_1"][0] == 1.0


def reopened_with(run, place, values):
    """A copy of the run's folder, evaluated with other settings."""
    folder = run.vault.path.parent
    copytree(folder, place / "run")
    data = DataSettings(source=str(folder.parent / "talk.jsonl"))
    more = {"rounds": SMALL["rounds"], "workers": 0, **values}
    return prepare("fednlg", data.load(), folder=place / "run", settings=more, data=data)
