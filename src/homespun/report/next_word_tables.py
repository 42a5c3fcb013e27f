"""Tables of next words: scores of configurations and of models before personalization, differences from the reference,
and EMR3 by number of own samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from homespun.evaluation.intervals import Estimate
from homespun.evaluation.next_word_intervals import PooledCounts, difference, resample, share
from homespun.evaluation.next_words import SUGGESTED
from homespun.report.differences import interval_cell
from homespun.report.few_shot import in_order
from homespun.report.next_word_systems import (
    METRIC,
    NO_SAMPLES,
    System,
    configurations,
    counts_of,
    most_samples,
    reference_of,
    sample_numbers,
)
from homespun.report.score_tables import folds_of, seeds_of, title_of
from homespun.report.table_model import (
    MISSING,
    Cell,
    Column,
    PlainTable,
    Table,
    count_text,
    make_table,
    percent_text,
)

SHOWN = {
    "emr3": METRIC,
    "kemr3": "KEMR3",
    "oov_accuracy": "OOV words",
    "oov_rate": "OOV rate",
    "oov_rate_left": "OOV rate left",
    "keystrokes_saved": "Keystrokes saved",
}
COMPARED = ("kemr3", "oov_accuracy", "oov_rate_left", "keystrokes_saved")  # EMR3 is in the first table
BRACKETS = (
    "In brackets the 95 % bootstrap interval over users, each drawn with all words of all runs: it reflects the choice "
    "of users, not the randomness of training."
)


def next_word_tables(results: Mapping[str, Any], shown: Sequence[System]) -> list[Table]:
    """The scores and, if there is something to compare, differences."""
    return [score_table(results, shown), *([difference_table(shown)] if len(shown) > 1 else [])]


def score_table(results: Mapping[str, Any], shown: Sequence[System]) -> Table:
    """The paper's table 1 and the numbers of its figures 3 to 5."""
    scores = _scores(shown, list(SHOWN), intervals=True)
    parameters = (MISSING if one.parameters is None else f"{one.parameters / 1e6:.3g}" for one in shown)
    rows = [(*row, Cell(count)) for row, count in zip(scores.rows, parameters, strict=True)]
    columns = [*scores.columns, Column("Parameters, million", number=True)]
    return make_table(columns, rows, caption="Suggestions of the next word", note=_score_note(results, shown))


def terminal_table(shown: Sequence[System]) -> Table:
    """The main scores, of which only the difference has an interval, for a terminal."""
    return _scores(shown, [name for name in SHOWN if name != "oov_rate"], intervals=False)


def evaluation_rows(evaluations: Mapping[str, Mapping[str, Any]]) -> PlainTable | None:
    """Single evaluations for a terminal: title, header and rows; None unless they are of next words."""
    if not evaluations or any(one["metric"] != METRIC for one in evaluations.values()):
        return None
    keys = {"emr3": "value"}  # the metric's name in an evaluation
    rows = [(name, *(percent_text(one[keys.get(key, key)]) for key in SHOWN)) for name, one in evaluations.items()]
    return "Next words, in %", ("", *SHOWN.values()), rows


def _scores(shown: Sequence[System], names: Sequence[str], *, intervals: bool) -> Table:
    """These scores, and the difference of the first from the reference if there is another system."""
    reference, (first, *others) = reference_of(shown), names
    compared = len(shown) > 1
    rows = [
        [
            Cell(one.title),
            share_cell(share(one.counts, first), interval=intervals),
            *([difference_cell(one, reference, first)] if compared else []),
            # an interval of the rate left says more than one of both
            *(share_cell(share(one.counts, name), interval=intervals and name != "oov_rate") for name in others),
        ]
        for one in shown
    ]
    columns = [
        Column("Configuration"),
        Column(f"{SHOWN[first]}, %", number=True),
        *([Column(f"Minus {reference.title}", number=True)] if compared else []),
        *(Column(f"{SHOWN[name]}, %", number=True) for name in others),
    ]
    return make_table(columns, rows)


def _score_note(results: Mapping[str, Any], shown: Sequence[System]) -> str:
    reference = reference_of(shown)
    minus = f"Minus {reference.title}: difference in percentage points; bold: its interval excludes zero. "
    return (
        f"{about_users(results, reference.counts)} {METRIC}: the share of their test words, punctuation included, that "
        f"are one of {SUGGESTED} suggested words; a word that the model does not have is a miss. "
        f"{minus if len(shown) > 1 else ''}KEMR3: the same of words in the vocabulary; OOV words: of all others, so "
        "that these are different words for another vocabulary. OOV rate: the share of words outside the vocabulary; "
        "left: outside the vocabulary and the user's own words. Keystrokes saved: if each word is taken as soon as it "
        "is suggested, also while it is being typed. Parameters: of a user's model with the largest adapter that the "
        f"device tries. {BRACKETS}"
    )


def about_users(results: Mapping[str, Any], counts: PooledCounts) -> str:
    """Who is scored, on how many words, after personalization on how many samples."""
    every, folds, seeds = configurations(results), folds_of(results), len(seeds_of(results))
    most = most_samples(next(iter(every.values())))
    size = f"{count_text(counts.users)} users, {count_text(counts.words)} words"
    over = f" over {seeds} seeds" if seeds > 1 else ""
    if most is None:
        return f"Participants: {size}{over}."
    withheld = f", each withheld in one of {folds} folds" if folds else ""
    samples = {"all": "all their own samples", NO_SAMPLES: "no samples"}.get(most, f"{most} of their own samples")
    return f"New users, who never took part{withheld}, after personalization on {samples}: {size}{over}."


def about_participants(results: Mapping[str, Any]) -> str:
    """What scores of participants are of, beside those of new users; empty if these are not scored."""
    every = configurations(results)
    if not any(sample_numbers(runs) for runs in every.values()):
        return ""
    personalized = any(run["run"].get("final_personalization") for runs in every.values() for run in runs)
    how = "after they personalized" if personalized else "who did not personalize, with the models as trained"
    return f"These scores are of participants, {how}; those above are of new users."


def difference_table(shown: Sequence[System]) -> Table:
    """The other scores against the reference."""
    reference = reference_of(shown)
    rows = [
        [Cell(one.title), *(difference_cell(one, reference, name) for name in COMPARED)]
        for one in shown
        if one is not reference
    ]
    columns = [Column("Configuration"), *(Column(SHOWN[name], number=True) for name in COMPARED)]
    note = (
        "In percentage points, with the 95 % bootstrap interval over users; bold: it excludes zero. "
        f"{MISSING}: not scored on the same words, as KEMR3 with another vocabulary."
    )
    return make_table(columns, rows, caption=f"Difference from {reference.title}", note=note)


def samples_table(results: Mapping[str, Any], *, intervals: bool = True) -> Table | None:
    """EMR3 by number of own samples; None if no more were scored than none and one other number."""
    numbers = {key: sample_numbers(runs) for key, runs in configurations(results).items()}
    every = in_order({number for found in numbers.values() for number in found})
    if len(every) < 3:
        return None
    places = [(key, number) for key, found in numbers.items() for number in found]
    pooled = resample([counts_of(configurations(results)[key], number) for key, number in places])
    cells = {
        place: share_cell(share(counts, "emr3"), interval=intervals)
        for place, counts in zip(places, pooled, strict=True)
    }
    rows = [
        [Cell(title_of(results, key)), *(cells.get((key, number), Cell(MISSING)) for number in every)]
        for key in numbers
    ]
    columns = [Column("Configuration"), *(Column(number, number=True) for number in every)]
    note = (
        f"{METRIC} of new users who personalize on this many of their own samples; the tested words are the same "
        f"for each number. {BRACKETS}"
    )
    return make_table(columns, rows, caption=f"{METRIC} in %, by number of own samples", note=note)


def heading(shown: Sequence[System]) -> str:
    """The best configuration and how far it is from the reference, or from the model before personalization."""
    reached = [(found.value, one) for one in shown if one.key and (found := share(one.counts, "emr3"))]
    if not reached:
        return "No next word could be scored"
    value, best = max(reached, key=lambda item: item[0])
    before = next((one for one in shown if not one.key), best)
    other = before if best is reference_of(shown) else reference_of(shown)
    minus = difference_cell(best, other, "emr3").text
    against = "" if minus == MISSING else f", {minus} points against “{other.title}”"
    return f"{best.title}: {100 * value:.2f} % of the next words are suggested{against}"


def share_cell(found: Estimate | None, *, interval: bool = True) -> Cell:
    if found is None:
        return Cell(MISSING)
    if not interval or found.low is None or found.high is None:
        return Cell(f"{100 * found.value:.2f}")
    return Cell(f"{100 * found.value:.2f} [{100 * found.low:.2f}, {100 * found.high:.2f}]")


def difference_cell(one: System, reference: System, name: str) -> Cell:
    found = None if one is reference else difference(one.counts, reference.counts, name)
    if found is None:
        return Cell(MISSING)
    value, low, high = (None if part is None else 100 * part for part in (found.value, found.low, found.high))
    return interval_cell(value, low, high)
