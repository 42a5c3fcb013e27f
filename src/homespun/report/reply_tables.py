"""Tables of a dialogue method's replies: perplexity, overlap with the real replies, speakers, and the same prompts
answered by several speakers.

Differences are stated from the configurations named `seq2seq-fl` (no personas) and `persona` (central training with
personas), as far as a comparison has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from homespun.evaluation.conversation_losses import Losses, compare_losses, estimate_perplexity, perplexity, pool_losses
from homespun.evaluation.intervals import Estimate
from homespun.evaluation.speakers import compare_naming, macro_accuracy
from homespun.experiments.reply_losses import OTHERS
from homespun.experiments.reply_quality import ANOTHER
from homespun.report import score_tables
from homespun.report.continuation_tables import GENERATED_NOTICE, LONGEST_TEXT
from homespun.report.differences import interval_cell
from homespun.report.reply_systems import Replies, System, asked_of, naming, systems, with_controls, with_variants
from homespun.report.score_tables import seed_note, summary_mean
from homespun.report.table_model import (
    MISSING,
    Cell,
    Column,
    Table,
    finite,
    make_table,
    shorten,
)

WITHOUT_PERSONA, CENTRAL_PERSONA, CENTRAL = "seq2seq-fl", "persona", "seq2seq"  # names of configurations
ESTIMATE = "Estimate: speakers known as by a classifier"
BASE_MODEL = score_tables.CONTROLS["untouched"]
OVERLAP = (
    ("sacrebleu", "BLEU", 100),
    ("bleu_1", "BLEU-1", 100),
    ("bleu_2", "BLEU-2", 100),
    ("sentence_bleu", "Sentence BLEU", 100),
    ("distinct_1", "distinct-1", 100),
    ("distinct_2", "distinct-2", 100),
    ("most_frequent", "Most frequent reply", 100),
    ("length", "Words", 1),
)
BRACKETS = (
    "In brackets the 95 % bootstrap interval over conversations, each drawn with all its replies in all runs: it "
    "reflects the choice of conversations, not the randomness of training."
)
INTERVALS = f"{BRACKETS} Bold: it excludes zero."


def reply_tables(results: Mapping[str, Any]) -> list[Table]:
    """FedNLG's table 1 in four parts: perplexity, overlap and diversity, speakers of the best replies and of sampled
    ones. Empty without replies."""
    if not systems(results):
        return []
    return [
        perplexity_table(results),
        overlap_table(results),
        speaker_table(results),
        speaker_table(results, part="sampled"),
    ]


def perplexity_table(results: Mapping[str, Any]) -> Table:
    """Perplexity of all test replies, against the reference configurations and with another speaker's persona."""
    every = systems(results)
    references = {key: every[key] for key in (WITHOUT_PERSONA, CENTRAL_PERSONA) if key in every}
    first = next(iter(every.values()))
    rows = [_perplexity_row(one, references) for one in every.values()]
    if first.losses("untouched"):
        rows.insert(0, _perplexity_row(replace(first, title=BASE_MODEL), references, part="untouched"))
    if first.losses("classifier") and WITHOUT_PERSONA in every:
        rows.append(_classifier_row(every[WITHOUT_PERSONA], references))
    columns = [
        Column("Configuration"),
        Column("Perplexity", number=True),
        *(Column(f"Against {one.title}, %", number=True) for one in references.values()),
        Column("Another speaker's persona", number=True),
        Column("Own against another's, %", number=True),
    ]
    conversations = len(pool_losses(first.losses() or [])["conversation"])
    note = (
        f"All words of the test replies and their ends, {conversations} conversations; scores by number of own samples "
        "are of half of them, as users adapt to the other half. Another speaker's persona: "
        "scored with the personas of other participants or, if each speaker has a model of their own, with their "
        f"models; the mean over {_others(first)}. {ESTIMATE}: the gain log p(i|R) - log p(i) of a classifier that "
        "reads the reply R, added to the model without personas; p(i) is the speaker's share of the training replies. "
        f"It shows how much there is to gain from knowing the speaker. {seed_note(results)} {INTERVALS}"
    )
    return make_table(columns, rows, caption="Perplexity of test replies", note=note)


def _others(system: System) -> str:
    count = min(OTHERS, system.runs[0]["asked"]["speakers"] - 1)
    return "the other one" if count == 1 else f"{count} others with similar numbers of training replies"


def _classifier_row(without: System, references: Mapping[str, System]) -> list[str | Cell]:
    """The model without personas, if it knew of the speaker what a classifier does."""
    plain, gains = without.losses() or [], without.losses("classifier") or []
    known: list[Losses] = [
        {**one, "loss": [sum(both) for both in zip(one["loss"], gain["loss"], strict=True)]}
        for one, gain in zip(plain, gains, strict=True)
    ]
    differences = (_loss_difference(known, one.losses()) for one in references.values())
    return [ESTIMATE, _perplexity_text(without, known), *differences, MISSING, MISSING]


def _perplexity_row(system: System, references: Mapping[str, System], *, part: str = "own") -> list[str | Cell]:
    own, another = system.losses(part), system.losses("another") if part == "own" else None
    return [
        system.title,
        _perplexity_text(system, own),
        *(_loss_difference(own, None if one is system else one.losses()) for one in references.values()),
        _perplexity_text(system, another),
        _loss_difference(own, another),
    ]


def _perplexity_text(system: System, losses: Sequence[Losses] | None) -> str:
    """Perplexity; of a single run with its interval, of several seeds with their standard deviation."""
    if losses is None:
        return MISSING
    text = system.over_seeds([perplexity(one) for one in losses], digits=2)
    found = estimate_perplexity(losses[0]) if len(losses) == 1 else None
    if found is None or found.low is None or found.high is None:
        return text
    return f"{text} [{found.low:.2f}, {found.high:.2f}]"


def _loss_difference(ours: Sequence[Losses] | None, theirs: Sequence[Losses] | None) -> Cell:
    if ours is None or theirs is None:
        return Cell(MISSING)
    left, right = pool_losses(ours), pool_losses(theirs)
    if (left["conversation"], left["words"]) != (right["conversation"], right["words"]):  # another base model
        return Cell(MISSING)
    return _difference_cell(compare_losses(left, right), digits=2)


def overlap_table(results: Mapping[str, Any]) -> Table:
    """BLEU against the real replies, diversity and length."""
    shown = with_controls(with_variants(systems(results).values()))
    rows = [[one.title, *(_score_text(one, name, factor) for name, _, factor in OVERLAP)] for one in shown]
    scores = shown[0].scores() or [{}]
    signature = scores[0].get("signature")
    note = (
        f"{_how(list(systems(results).values()))} {_reranking_note(results)}All but the words in %. "
        + (f"BLEU: corpus BLEU-4 by sacrebleu, {signature}. " if signature else "")
        + "BLEU-1, BLEU-2: corpus BLEU of lower-case words, without smoothing. Sentence BLEU: mean BLEU of single "
        "replies with add-one smoothing, of the orders up to 4 that a reply has. distinct-n: different n-grams per "
        f"n-gram of all replies. Words: mean length of a reply. {seed_note(results)}"
        + (f" {BRACKETS}" if len(shown[0].runs) == 1 else "")
    )
    columns = [Column("Configuration"), *(Column(title, number=True) for _, title, _ in OVERLAP)]
    return make_table(columns, rows, caption="Overlap with the real replies, and diversity", note=note)


def speaker_table(results: Mapping[str, Any], *, part: Literal["own", "sampled"] = "own") -> Table:
    """How often a classifier names the speaker, and how consistent the answers of a speaker are."""
    every = {key: replace(one, part=part) for key, one in systems(results).items()}
    reference = every.get(WITHOUT_PERSONA)
    shown = with_controls(with_variants(every.values()))
    rows: list[list[str | Cell]] = []
    for one in shown:
        other = replace(one, part=ANOTHER.get(one.part or ""))
        # reranked replies against reranked ones
        without = reference and replace(reference, part="reranked" if one.part == "reranked" else part)
        rows.append(
            [
                one.title,
                _naming_cell(one),
                *([] if without is None else [_naming_difference(one, without)]),
                _naming_cell(other),
                _naming_difference(one, other),
                *(_consistency_text(one, place) for place in ((0, 1) if part == "own" else ())),
            ]
        )
    columns = [
        Column("Configuration"),
        Column("Right speaker, %", number=True),
        *([] if reference is None else [Column(f"Minus {reference.title}", number=True)]),
        Column("Another speaker's persona, %", number=True),
        Column("Own minus another's", number=True),
        *(Column(f"Agreement, {kind} prompts", number=True) for kind in ("similar", "other") if part == "own"),
    ]
    kind = "sampled replies" if part == "sampled" else "the best replies"
    caption = f"Whether {kind} sound like the speaker"
    return make_table(columns, rows, caption=caption, note=_speaker_note(list(every.values())))


def _speaker_note(every: Sequence[System]) -> str:
    first = every[0]
    asked = first.runs[0]["asked"]
    found = (first.scores() or [{}])[0].get("consistency")
    agreement = (
        f"Agreement: mean cosine of the TF-IDF vectors of a speaker's replies to {found[2]} pairs of similar prompts, "
        "and to other prompts; a consistent speaker has a larger first value. "
        if found
        else ""
    )
    guided = (
        "Strength s: what the persona changes of the logits, times s. "
        if any(replace(one, part="guided").scores() for one in every) and first.part == "sampled"
        else ""
    )
    seeds = len(set(first.seeds))
    pooled = f"The replies of {seeds} seeds are pooled; agreement is the mean ± standard deviation over seeds. "
    return (
        f"{_how(every)} Right speaker: how often a classifier of characters names the speaker, mean over speakers; "
        f"guesses are right in {100 / asked['speakers']:.1f} %, and a model without personas may be above that. It "
        "was trained on real lines of the training parts, twice, on half of them each; where a reply repeats a line, "
        "only the one that has not read it counts (both, if both have). With another speaker's persona, the speaker of "
        "the real reply "
        "counts as right. Differences in percentage points. "
        f"{guided}{agreement}{pooled if seeds > 1 else ''}{INTERVALS}"
    )


PART_TITLES = {
    "own": "replies",
    "another": "another speaker's persona",
    "reranked": "reranked",
    "retrieved": "nearest training question's answer",
}
SHORT = ("sacrebleu", "bleu_1", "bleu_2", "distinct_2", "length")


def score_rows(replies: Replies) -> tuple[str, list[str], list[list[str]]]:
    """One run's replies for a terminal: title, header and rows."""
    columns = [one for one in OVERLAP if one[0] in SHORT]
    rows = []
    for part, name in {**PART_TITLES, "real": "real replies"}.items():
        scores = replies["scores"][part]
        if scores:
            shown = [*((scores[key], factor) for key, _, factor in columns), (scores["speaker"], 100)]
            rows.append([name, *(_one_score(value, factor) for value, factor in shown)])
    title = f"{replies['prompts']} replies to test prompts, in %"
    return title, ["", *(title.lower() for _, title, _ in columns), "right speaker"], rows


def prompt_table(results: Mapping[str, Any]) -> Table | None:
    """FedNLG's table 2: the same prompts answered by several speakers, in the first run of some configurations."""
    every = systems(results)
    if not every:
        return None
    shown = [every[key] for key in side_by_side(results)]
    replies = [_sampled(one.runs[0]["samples"]) for one in shown]
    rows, before = [], None
    for prompt, user in replies[0]:
        texts = (shorten(one.get((prompt, user), MISSING), LONGEST_TEXT) for one in replies)
        rows.append(["" if prompt == before else shorten(prompt, LONGEST_TEXT), shorten(user), *texts])
        before = prompt
    if not rows:
        return None
    columns = [Column("Prompt"), Column("Speaker"), *(Column(one.title) for one in shown)]
    note = (
        "A rule chose the prompts: for each of the first speakers, the first of the test prompts to them that has 4 to "
        f"10 words and marks, all in the vocabulary. Replies: {_decoding(shown)}{_whether_reranked(shown)}. "
        f"{GENERATED_NOTICE}"
    )
    return make_table(columns, rows, caption="The same prompts, answered by several speakers", note=note)


def side_by_side(results: Mapping[str, Any]) -> list[str]:
    """The configurations whose replies are shown: central training without and with personas, and FedNLG with the best
    evaluation perplexity. Without one of them, all configurations."""
    every = systems(results)
    federated = [
        key
        for key, one in every.items()
        if results["configurations"][key]["method"] == "fednlg" and one.losses("another")
    ]
    reached = {key: summary_mean(results["configurations"][key]["summary"]["eval"]) for key in federated}
    known = {key: value for key, value in reached.items() if value is not None}
    if not known or not {CENTRAL, CENTRAL_PERSONA} <= every.keys():
        return list(every)
    return [CENTRAL, CENTRAL_PERSONA, min(known, key=lambda key: known[key])]


def _sampled(samples: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    return {
        (prompt, user): reply
        for prompt, replies in zip(samples["prompts"], samples["replies"], strict=True)
        for user, reply in zip(samples["users"], replies, strict=True)
    }


def _reranking_note(results: Mapping[str, Any]) -> str:
    """The weights of equation 7, of every run."""
    weights, tuned_on = [], ""
    for one in systems(results).values():
        found = [run["reranker"] for run in one.runs if run.get("reranker")]
        if found:
            tuned_on = found[0]["tuned_on"]
            texts = (
                f"lambda {tuned['lambda']:.2f}, gamma {tuned['gamma']:.2f}, BLEU {100 * tuned['bleu']:.2f}"
                for tuned in found
            )
            weights.append(f"{one.title}: {' and '.join(texts)}")
    if not weights:
        return ""
    return f"Weights of the reranker, and BLEU in % on the {tuned_on} they were tuned on. {'; '.join(weights)}. "


def _decoding(every: Sequence[System]) -> str:
    """How replies were generated."""
    names = {"greedy": "the likeliest token at each step", "sample": "one sampled reply to each"}
    found: dict[str, list[str]] = {}
    for one in every:
        run = one.runs[0]
        decode = "sample" if one.part == "sampled" else run["decode"]
        how = names.get(decode, f"best reply of a beam of {run['beam']}")
        found.setdefault(how, []).append(one.title)
    return "; ".join(how if len(found) == 1 else f"{how} ({', '.join(titles)})" for how, titles in found.items())


def _how(every: Sequence[System]) -> str:
    prompts = len(every[0].runs[0][asked_of(every[0])]["user"])
    of_each = " of each seed" if len(set(every[0].seeds)) > 1 else ""
    return f"{prompts} test prompts{of_each}, {_decoding(every)}; not reranked, unless the row says so."


def _whether_reranked(shown: Sequence[System]) -> str:
    reranked = [one.title for one in shown if one.runs[0].get("reranker")]
    if len(reranked) == len(shown):
        return ", reranked"
    return f"; reranked: {', '.join(reranked)}" if reranked else ", without reranking"


def _one_score(value: Any, factor: int) -> str:
    number = finite(value[0] if isinstance(value, list) else value)
    return MISSING if number is None else f"{factor * number:.1f}"


def _score_text(system: System, name: str, factor: int) -> str:
    """A score; of a single run with its interval, of several seeds with their standard deviation."""
    values = [one.get(name) for one in system.scores() or []]
    numbers = [finite(one[0] if isinstance(one, list) else one) for one in values]
    scaled = [None if number is None else factor * number for number in numbers]
    digits = 1 if factor == 1 else 2
    text = system.over_seeds(scaled, digits=digits)
    bounds = [finite(bound) for bound in values[0][1:]] if len(values) == 1 and isinstance(values[0], list) else []
    low_high = [f"{factor * bound:.{digits}f}" for bound in bounds if bound is not None]
    return f"{text} [{', '.join(low_high)}]" if len(low_high) == 2 else text


def _naming_cell(system: System) -> Cell:
    named = naming(system)
    if named is None:
        return Cell(MISSING)
    found = macro_accuracy(named.users, named.right, clusters=named.conversations)
    interval = "" if found.low is None or found.high is None else f" [{100 * found.low:.1f}, {100 * found.high:.1f}]"
    return Cell(f"{100 * found.value:.1f}{interval}")


def _same_texts(ours: System, theirs: System) -> bool:
    return (ours.runs, ours.part) == (theirs.runs, theirs.part)


def _naming_difference(ours: System, theirs: System) -> Cell:
    left, right = naming(ours), None if _same_texts(ours, theirs) else naming(theirs)
    if left is None or right is None or (left.users, left.conversations) != (right.users, right.conversations):
        return Cell(MISSING)
    found = compare_naming(left.users, left.right, right.right, clusters=left.conversations)
    return _difference_cell(found, digits=1, factor=100)


def _consistency_text(system: System, place: int) -> str:
    found = [one["consistency"] for one in system.scores() or []]
    return system.over_seeds([one and one[place] for one in found], digits=3)


def _difference_cell(found: Estimate, *, digits: int, factor: float = 1) -> Cell:
    low, high = (None if bound is None else factor * bound for bound in (found.low, found.high))
    return interval_cell(factor * found.value, low, high, digits=digits)
