"""Tables of next words, with numbers worked out by hand."""

import numpy as np
import pytest
from small_next_words import AFTER, TITLES, evaluation, results, run_of

from homespun.experiments.results import assemble
from homespun.report.html import page
from homespun.report.next_word_systems import systems
from homespun.report.next_word_tables import evaluation_rows, heading, next_word_tables, samples_table
from homespun.report.sections import sections
from homespun.report.tables import central_tables, markdown, plain_tables


def rows_of(table):
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


def tables_of(results):
    return next_word_tables(results, systems(results))


def test_scores_before_and_after_personalization():
    """Six users of 100 words each: 26 of 100 are 26 % in every resample, and 23 of the 90 known words."""
    table = tables_of(results())[0]
    assert [column.title for column in table.columns] == [
        "Configuration", "EMR3, %", "Minus OOV-as-UNK", "KEMR3, %", "OOV words, %", "OOV rate, %", "OOV rate left, %",
        "Keystrokes saved, %", "Parameters, million",
    ]  # fmt: skip
    rows = rows_of(table)
    assert list(rows) == [
        "OOV Expansion, not personalized", "OOV Expansion", "OOV-as-UNK", "OOV-oracle, not personalized", "OOV-oracle",
    ]  # fmt: skip
    assert rows["OOV Expansion"] == [
        "26.00 [26.00, 26.00]", "+2.00 [+2.00, +2.00]", "25.56 [25.56, 25.56]", "30.00 [30.00, 30.00]",
        "10.00", "5.00 [5.00, 5.00]", "28.00 [28.00, 28.00]", "2.12",
    ]  # fmt: skip
    before = rows["OOV Expansion, not personalized"]
    assert before[:2] == ["20.00 [20.00, 20.00]", "−4.00 [−4.00, −4.00]"]
    assert before[-3:] == ["10.00 [10.00, 10.00]", "20.00 [20.00, 20.00]", "1.75"]
    assert rows["OOV-as-UNK"][1] == "–" and rows["OOV-as-UNK"][3] == "0.00 [0.00, 0.00]"
    assert [cell.best for cell in table.rows[1]] == [False, False, True, *[False] * 6]
    assert (
        "each withheld in one of 2 folds, after personalization on all their own samples: 6 users, 600 words."
        in table.note
    )


def test_differences_need_the_same_words():
    """The oracle has a larger vocabulary: fewer words are unknown, so that accuracies on them are not comparable."""
    table = tables_of(results())[1]
    assert table.caption == "Difference from OOV-as-UNK"
    rows = rows_of(table)
    assert rows["OOV Expansion"] == [
        "−1.11 [−1.11, −1.11]", "+30.00 [+30.00, +30.00]", "−5.00 [−5.00, −5.00]", "+4.00 [+4.00, +4.00]",
    ]  # fmt: skip
    assert rows["OOV-oracle"] == ["–", "–", "−4.00 [−4.00, −4.00]", "+1.00 [+1.00, +1.00]"]
    assert "OOV-as-UNK" not in rows


def test_without_a_configuration_unk_the_first_is_the_reference():
    table = tables_of(results(("oracle", "ours")))[0]
    assert table.columns[2].title == "Minus OOV-oracle"
    assert rows_of(table)["OOV Expansion"][1] == "+1.00 [+1.00, +1.00]"


def test_seeds_of_a_user_are_one_unit():
    """In the second seed, other users are withheld together, and each has 28 hits: with 26 before, 54 of 200 words."""

    def seeds(key):
        found = [run_of(key, fold) for fold in (0, 1)]
        for fold, users in enumerate(([5, 0, 3], [1, 2, 4])):
            again = run_of(key, fold, seed=1, more=2)
            found.append({**again, "positions": {**again["positions"], "newcomers": users}})
        return found

    made = assemble("words", {}, configurations={key: (TITLES[key], seeds(key)) for key in TITLES}, controls=[{}] * 4)
    (ours,) = (one for one in systems(made) if one.key == "ours")
    assert ours.counts.users == 6 and ours.counts.words == 1200
    assert ours.counts.of_users[:, :2].tolist() == [[200, 54]] * 6
    assert rows_of(tables_of(made)[0])["OOV Expansion"][0] == "27.00 [27.00, 27.00]"
    assert "6 users, 1,200 words over 2 seeds." in tables_of(made)[0].note


def test_one_training_has_one_model_before_personalization():
    found = [one.title for one in systems(results(("ours", "unk")))]
    assert found == ["Not personalized", "OOV Expansion", "OOV-as-UNK"]


def test_one_configuration_is_compared_with_its_model_before_personalization():
    only = results(("ours",))
    assert rows_of(tables_of(only)[0])["Not personalized"][1] == "−6.00 [−6.00, −6.00]"
    assert heading(systems(only)) == (
        "OOV Expansion: 26.00 % of the next words are suggested, +6.00 [+6.00, +6.00] points against “Not personalized”"
    )


def test_participants_are_scored_if_nobody_was_withheld():
    only = results(("ours",), newcomers={})
    (table,) = tables_of(only)
    assert rows_of(table)["OOV Expansion"][:2] == [
        "20.00 [20.00, 20.00]",
        "22.22 [22.22, 22.22]",
    ]
    assert "Participants: 6 users, 600 words." in table.note and "Minus" not in table.note
    assert heading(systems(only)) == "OOV Expansion: 20.00 % of the next words are suggested"


def test_by_number_of_own_samples_if_there_are_more():
    assert samples_table(results()) is None
    found = results()
    for run in found["configurations"]["ours"]["runs"]:
        run["newcomers"] = {"5": evaluation([(100, 21, 10, 0, 1, 500, 1)] * 3), **run["newcomers"]}
    rows = rows_of(samples_table(found))
    assert rows["OOV Expansion"] == ["20.00 [20.00, 20.00]", "21.00 [21.00, 21.00]", "26.00 [26.00, 26.00]"]
    assert rows["OOV-as-UNK"] == ["20.00 [20.00, 20.00]", "–", "24.00 [24.00, 24.00]"]
    assert [row[0].text for row in tables_of(found)[0].rows][:2] == [
        "OOV Expansion, not personalized",
        "OOV Expansion",
    ]


def test_few_users_have_no_interval_and_no_unknown_words_no_accuracy():
    """Three users in one fold, none with a word outside the vocabulary."""
    counts = {"0": (100, 20, 0, 0, 0, 500, 100), "all": (100, 26, 0, 0, 0, 500, 140)}
    run = run_of("ours", 0, newcomers={number: evaluation([one] * 3) for number, one in counts.items()})
    made = assemble("words", {}, configurations={"ours": ("Ours", [run])}, controls=[{}])
    assert rows_of(tables_of(made)[0])["Ours"][:4] == ["26.00", "–", "26.00", "–"]


def test_tables_are_in_the_report_and_in_the_terminal():
    found = results()
    first, *others = sections(found)
    assert first.heading == (
        "OOV Expansion: 26.00 % of the next words are suggested, +2.00 [+2.00, +2.00] points against “OOV-as-UNK”"
    )
    assert others[0].heading.startswith("Participants of the training: ")
    text = markdown(found)
    assert text.count("### Suggestions of the next word") == 1 and "did not personalize" in text
    assert '<strong>+2.00</strong> <span class="interval">[+2.00, +2.00]</span></td>' in page(found)
    ((title, columns, rows),) = plain_tables(found)
    assert title == "words" and columns[:3] == ("Configuration", "EMR3, %", "Minus OOV-as-UNK")  # fits into 80 columns
    assert rows[1] == ("OOV Expansion", "26.00", "+2.00 [+2.00, +2.00]", "25.56", "30.00", "5.00", "28.00")
    assert len(central_tables(results(("ours",)))) == 1


def test_evaluations_of_one_run():
    after = evaluation([AFTER["ours"]] * 2)
    _, header, rows = evaluation_rows({"ours": after})
    assert header == ("", "EMR3", "KEMR3", "OOV words", "OOV rate", "OOV rate left", "Keystrokes saved")
    assert rows == [("ours", "26.00", "25.56", "30.00", "10.00", "5.00", "28.00")]
    assert evaluation_rows({"ours": after, "other": {"metric": "accuracy"}}) is None


@pytest.mark.parametrize("key", AFTER)
def test_the_summary_pools_folds(key):
    value = results()["configurations"][key]["summary"]["newcomers"]["all"]["value"]
    assert value == {"mean": pytest.approx(AFTER[key][1] / 100), "std": None} and np.isfinite(value["mean"])
