"""The quality of a dialogue run's replies to test prompts: BLEU, diversity, and whether they sound like the speaker.

Perplexity per conversation comes with it (`reply_losses`), so that runs can be compared by intervals over
conversations: a corpus of few speakers says little about other speakers, but its conversations are many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

from homespun.core.errors import HomespunError, InputError
from homespun.core.progress import start_count
from homespun.core.words import words
from homespun.evaluation.bleu import sacrebleu_corpus
from homespun.evaluation.language import ReplyScoring
from homespun.evaluation.replies import evaluate_replies
from homespun.evaluation.speakers import answer_agreement, naming_accuracy
from homespun.experiments.reply_losses import loss_results, other_speakers
from homespun.experiments.reply_test_set import ReplyTest, TestPair, make_reply_test, trained_users
from homespun.models.reply_model import ReplyModel, load_inverse, load_reply_model
from homespun.personalization.replies import BestReply, Replier, Search, find_replier, find_reply_base
from homespun.personalization.reranker_tuning import tune_reranker
from homespun.runs.run import Run

AT_ONCE = {"beam": 20, "diverse": 20, "sample": 200, "greedy": 200}  # prompts searched together
SAMPLED = Search(decode="sample")  # draws from the model, where the best replies are few and alike
# Scored replies, their names with another speaker's persona, and both after reranking
ANOTHER = {
    "own": "another",
    "reranked": "reranked_another",
    "sampled": "sampled_another",
    "guided": "guided_another",
}
RERANKED = {"own": "reranked", "another": "reranked_another"}
CONTROLS = ("retrieved", "real", "retrieved_sampled", "real_sampled")
PARTS = (*ANOTHER, *ANOTHER.values(), *CONTROLS)
SHOWN = 4  # speakers, and prompts, of the samples in a report


def write_replies(
    replier: Replier, pairs: Sequence[TestPair], *, search: Search, persona: Literal["own", "another"] = "own"
) -> list[BestReply]:
    """The best reply to each prompt, by its own speaker, or with other speakers' private parameters in turn."""
    whose = [one.user for one in pairs]
    if persona == "another":
        others, asked = other_speakers(replier.run, trained_users(replier.run)), Counter[str]()
        for place, user in enumerate(whose):
            whose[place] = others[asked[user] % len(others)][user]
            asked[user] += 1
    speakers = {user: replier.speaker(user) for user in dict.fromkeys(whose)}
    kind = "sampled replies" if search.decode == "sample" else "replies"
    done = start_count(replier.run.progress, f"{kind}, {persona} persona", total=len(pairs))
    found: list[BestReply] = []
    for start in range(0, len(pairs), AT_ONCE[search.decode]):
        some = slice(start, start + AT_ONCE[search.decode])
        prompts = [(one.prompt, speakers[user]) for one, user in zip(pairs[some], whose[some], strict=True)]
        found += replier.best_replies(prompts, search=_with_seed(search, start))
        done(len(prompts))
    return found


def _with_seed(search: Search, number: int) -> Search:
    """The search with other random numbers: a search draws the same ones for the first of its prompts every time."""
    return search.model_copy(update={"seed": search.seed + number})


def score_replies(test: ReplyTest, written: Sequence[str], *, pairs: Sequence[TestPair]) -> dict[str, Any]:
    """All metrics of one reply per pair, each with an interval over conversations, and which replies the classifier
    named right. If replies to the paraphrased prompts follow, also how consistent those are."""
    clusters = [one.conversation for one in pairs]
    replies, to_paraphrases = written[: len(pairs)], written[len(pairs) :]
    metrics = evaluate_replies(
        [words(text) for text in replies], [words(one.reply) for one in pairs], clusters=clusters
    )
    said = [(one.user, text) for one, text in zip(pairs, replies, strict=True)]
    named = naming_accuracy(test.classifier, said, clusters=clusters)
    found: dict[str, Any] = {name: [one.value, one.low, one.high] for name, one in metrics.items()}
    found |= {"speaker": [named.macro.value, named.macro.low, named.macro.high], "right": list(named.right)}
    found |= {"sacrebleu": None, "signature": None, "consistency": None}
    with suppress(InputError):  # without the extra `dialogue`
        found["sacrebleu"], found["signature"] = sacrebleu_corpus(list(replies), [one.reply for one in pairs])
    if to_paraphrases and test.similar:
        users = [one.user for one in test.paraphrased]
        with suppress(InputError):  # all pairs of a user are similar
            agreement = answer_agreement(to_paraphrases, test.similar, users=users, corpus=test.lines)
            found["consistency"] = [agreement.similar, agreement.other, agreement.pairs]
    return found


def reply_results(run: Run) -> dict[str, Any] | None:
    """The section `replies` of results.json: scores of a dialogue run's replies to test prompts, of the same replies
    with other speakers' personas, and of two controls; losses by conversation; a few prompts with all replies.

    Every run has the same keys, so that a record can share the values of its runs."""
    scoring = run.scoring
    if not isinstance(scoring, ReplyScoring) or not scoring.replies or len(trained_users(run)) < 2:
        return None
    test = make_reply_test(run, replies=scoring.replies, sampled=scoring.sampled)
    if not test.pairs:
        return None
    search = Search(beam=scoring.beam, decode=scoring.decode, seed=run.settings.seed)
    replier = find_replier(run)
    personal = any(run.clients.private(list(run.federation.users), run.state.broadcast()).values())
    has_persona = personal or "author" in run.method.model.keys.values()
    written: dict[str, Sequence[str] | None] = dict.fromkeys(PARTS)

    def write(part: str, asked: Sequence[TestPair], search: Search) -> None:
        """Replies with the own personas and, if there are any, with other speakers'; reranked ones beside them."""
        own = write_replies(replier, asked, search=search)
        others = None
        if has_persona:
            others = write_replies(replier, _of(test, part), search=search, persona="another")
        for replies, name in ((own, part), (others, ANOTHER[part])):
            if replies is None:
                continue
            written[name] = [one.likeliest for one in replies]
            if name in RERANKED and replies[0].reranked is not None:
                written[RERANKED[name]] = [one.reranked or "" for one in replies]

    write("own", test.asked, search)
    if scoring.decode == "sample" and test.sampled == test.pairs:
        written |= {
            "sampled": (written["own"] or [])[: len(test.pairs)],
            "sampled_another": written["another"],
        }
    else:
        write("sampled", test.sampled, SAMPLED)
    if scoring.strength != 1 and replier.can_exaggerate(replier.speaker(test.sampled[0].user)):
        write("guided", test.sampled, SAMPLED.model_copy(update={"persona_strength": scoring.strength}))
    for suffix, asked in (("", test.asked), ("_sampled", test.sampled)):
        written |= {
            "retrieved" + suffix: [test.nearest[one] for one in asked],
            "real" + suffix: [one.reply for one in asked],
        }
    return {
        "decode": scoring.decode,
        "beam": scoring.beam,
        "strength": scoring.strength,
        "reranker": replier.reranker and replier.reranker.to_dict(),
        "prompts": len(test.pairs),
        "asked": test.to_dict(test.pairs),
        "asked_sampled": test.to_dict(test.sampled),
        "losses": loss_results(run, test.classifier, another=has_persona),
        "scores": {
            part: texts and score_replies(test, texts, pairs=_of(test, part)) for part, texts in written.items()
        },
        "samples": sample_replies(replier, test.pairs, search=search),
    }


def _of(test: ReplyTest, part: str) -> tuple[TestPair, ...]:
    """The pairs whose replies are scored in a part of the scores."""
    return test.sampled if "sampled" in part or "guided" in part else test.pairs


def require_inverse(run: Run) -> ReplyModel | None:
    """The inverse model that the method's scoring needs after training, if it needs one. Raises if it does not fit:
    better before training than after."""
    scoring, base = run.scoring, find_reply_base(run)
    if not isinstance(scoring, ReplyScoring) or not scoring.replies or not scoring.inverse or base is None:
        return None
    return load_inverse(scoring.inverse, load_reply_model(base.name))


def ensure_reranker(run: Run) -> None:
    """Tune the reranker that the method's scoring asks for, unless the run has it already."""
    inverse, scoring, kept = require_inverse(run), run.scoring, None
    if inverse is None or not isinstance(scoring, ReplyScoring):
        return
    with suppress(HomespunError):  # an earlier one that cannot be used any more
        kept = find_replier(run).reranker
    asked = (inverse.fingerprint, run.state.round, scoring.beam)
    if kept is None or (kept.inverse.fingerprint, kept.round, kept.beam) != asked:
        tune_reranker(run, inverse.name, beam=scoring.beam)


def sample_replies(replier: Replier, pairs: Sequence[TestPair], *, search: Search) -> dict[str, Any]:
    """FedNLG's table 2: the same prompts, answered by several speakers. A rule chooses the prompts: of the first
    participants, the first test prompt of 4 to 10 words that the model knows all. It depends on the vocabulary, the
    split and the number of test prompts, which the runs of a comparison share."""
    users = list(replier.run.federation.users)[:SHOWN]
    speakers = [replier.speaker(user) for user in users]
    first = [
        next((one.prompt for one in pairs if one.user == user and _is_plain(replier, one.prompt)), None)
        for user in users
    ]
    prompts = [prompt for prompt in first if prompt is not None]
    replies = [
        [_shown(replier.best_replies([(prompt, one)], search=_with_seed(search, number))[0]) for one in speakers]
        for number, prompt in enumerate(prompts)
    ]
    return {"prompts": prompts, "users": users, "replies": replies}


def _shown(best: BestReply) -> str:
    return best.likeliest if best.reranked is None else best.reranked


def _is_plain(replier: Replier, prompt: str) -> bool:
    return 4 <= len(words(prompt)) <= 10 and replier.writer.knows(prompt)
