"""Tables of replies, with numbers worked out by hand."""

import pytest
from small_replies import CONTROLS, DATA, RIGHT, TITLES, evaluation, replies, run_of, scores

from homespun.experiments.results import assemble
from homespun.report.html import page
from homespun.report.reply_tables import prompt_table, reply_tables, side_by_side


def results(keys=tuple(TITLES), seeds=(0, 1), **more):
    configurations = {key: (TITLES[key], [run_of(key, seed, **more) for seed in seeds]) for key in keys}
    return assemble("some", DATA, configurations=configurations, controls=[CONTROLS] * len(seeds))


def rows_of(table):
    return [[cell.text for cell in row] for row in table.rows]


def test_perplexities_and_their_differences():
    """50 against 40 is -20 % in every resample; 40 / sqrt(30 * 36) = 1.2172, and a resample is between 40/36 and 40/30.
    Persona: the mean of 30 and 36, with the standard deviation 3 sqrt(2)."""
    table = reply_tables(results())[0]
    assert [column.title for column in table.columns] == [
        "Configuration", "Perplexity", "Against SEQ2SEQ + FL, %", "Against Persona, %", "Another speaker's persona",
        "Own against another's, %",
    ]  # fmt: skip
    base, fednlg, without, persona, _, estimate = rows_of(table)
    assert estimate[1:3] == ["40.00 ± 0.00", "−20.00 [−20.00, −20.00]"]  # 0.8 x 50
    assert base[:3] == ["Base model", "64.00 ± 0.00", "+28.00 [+28.00, +28.00]"] and base[4:] == ["–", "–"]
    assert fednlg[:3] == ["FedNLG", "40.00 ± 0.00", "−20.00 [−20.00, −20.00]"]
    value, low, high = (float(one.strip("[],")) for one in fednlg[3].replace("−", "-").split())
    assert value == 21.72 and 11.11 <= low < value < high <= 33.34
    assert fednlg[4:] == ["44.00 ± 0.00", "−9.09 [−9.09, −9.09]"]
    assert without[:3] == ["SEQ2SEQ + FL", "50.00 ± 0.00", "–"] and without[4:] == ["–", "–"]
    assert persona[:2] == ["Persona", "33.00 ± 4.24"] and persona[3] == "–"
    assert table.rows[1][2].best and not table.rows[1][1].best
    assert "9 conversations" in table.note and "over 2 seeds" in table.note


def test_overlap_with_the_real_replies():
    """BLEU of 10 and 12 %: the mean 11, the standard deviation sqrt(2)."""
    table = reply_tables(results())[1]
    assert rows_of(table)[0] == ["FedNLG", *["11.00 ± 1.41"] * 7, "4.0 ± 0.0"]
    assert [row[0] for row in rows_of(table)[-2:]] == [
        "Control: own answer to the nearest training question", "The real replies",
    ]  # fmt: skip
    assert "12 test prompts of each seed, best reply of a beam of 7" in table.note
    assert "sacrebleu, nrefs:1|version:2." in table.note
    assert "In brackets" not in table.note


def test_overlap_of_one_seed_has_intervals():
    one = reply_tables(results(seeds=(0,)))[1]
    assert rows_of(one)[0] == ["FedNLG", "10.00", *["10.00 [9.00, 11.00]"] * 6, "4.0 [3.0, 5.0]"]
    assert "12 test prompts, best" in one.note and "In brackets" in one.note


def test_right_speakers_and_their_differences():
    """The model without personas is always named ada: right for one of two speakers."""
    table = reply_tables(results())[2]
    rows = {row[0]: row[1:] for row in rows_of(table)}
    assert rows["FedNLG"] == [
        "100.0 [100.0, 100.0]", "+50.0 [+50.0, +50.0]", "0.0 [0.0, 0.0]", "+100.0 [+100.0, +100.0]",
        "0.500 ± 0.000", "0.250 ± 0.000",
    ]  # fmt: skip
    assert rows["SEQ2SEQ + FL"][:4] == ["50.0 [50.0, 50.0]", "–", "–", "–"]
    assert rows["The real replies"][:4] == ["100.0 [100.0, 100.0]", "+50.0 [+50.0, +50.0]", "–", "–"]
    assert "guesses are right in 50.0 %" in table.note and "3 pairs of similar prompts" in table.note


def test_reranked_replies_have_rows_of_their_own():
    """Two configurations have a reranker: 20 % BLEU instead of 10, and always the right speaker."""
    found = results(seeds=(0,))
    for key in ("fedavg", "seq2seq-fl"):
        made = found["configurations"][key]["runs"][0]["replies"]
        made["reranker"] = {"lambda": 0.5, "gamma": 1.25, "bleu": 0.006, "tuned_on": "public held-out pairs"}
        made["scores"] |= {"reranked": scores(0, RIGHT[key], 0.2), "reranked_another": None}
    _, overlap, speakers, sampled = reply_tables(found)
    titles = [row[0] for row in rows_of(overlap)]
    assert titles[:4] == ["FedNLG", "FedNLG, reranked", "SEQ2SEQ + FL", "SEQ2SEQ + FL, reranked"]
    assert rows_of(overlap)[1][1] == "20.00"
    weights = "lambda 0.50, gamma 1.25, BLEU 0.60"
    tuned = f"FedNLG: {weights}; SEQ2SEQ + FL: {weights}."
    assert f"BLEU in % on the public held-out pairs they were tuned on. {tuned}" in overlap.note
    rows = {row[0]: row[1:] for row in rows_of(speakers)}
    assert rows["FedNLG, reranked"][:2] == ["100.0 [100.0, 100.0]", "+50.0 [+50.0, +50.0]"]  # of reranked ones
    assert rows["SEQ2SEQ + FL, reranked"][1] == "–"
    assert "FedNLG, reranked" not in [row[0] for row in rows_of(sampled)]
    assert "; reranked: FedNLG." in prompt_table(found).note


def test_right_speakers_of_sampled_replies():
    """With another persona, the classifier always names ada."""
    table = reply_tables(results())[3]
    rows = {row[0]: row[1:] for row in rows_of(table)}
    assert rows["FedNLG"] == [
        "100.0 [100.0, 100.0]", "+50.0 [+50.0, +50.0]", "50.0 [50.0, 50.0]", "+50.0 [+50.0, +50.0]",
    ]  # fmt: skip
    assert "one sampled reply to each" in table.note and "similar prompts" not in table.note


def test_exaggerated_personas_have_rows_of_their_own():
    """Against the sampled replies of the model without personas, and against another's exaggerated persona."""
    found = results(seeds=(0,))
    made = found["configurations"]["fedavg"]["runs"][0]["replies"]
    made["strength"] = 4.0
    made["scores"] |= {"guided": scores(0, RIGHT["fedavg"], 0.2), "guided_another": scores(0, RIGHT["seq2seq-fl"], 0.2)}
    _, overlap, best, sampled = reply_tables(found)
    rows = {row[0]: row[1:] for row in rows_of(sampled)}
    assert rows["FedNLG, strength 4"] == [
        "100.0 [100.0, 100.0]", "+50.0 [+50.0, +50.0]", "50.0 [50.0, 50.0]", "+50.0 [+50.0, +50.0]",
    ]  # fmt: skip
    assert "Strength s:" in sampled.note and "Strength s:" not in best.note
    assert not any("strength" in row[0] for row in (*rows_of(overlap), *rows_of(best)))


def test_without_the_references_no_differences_are_shown():
    tables = reply_tables(results(keys=("fedavg", "seq2seq")))
    assert [len(table.columns) for table in tables] == [4, 9, 6, 4]
    assert reply_tables(results(replies=None)) == [] and prompt_table(results(replies=None)) is None


def test_other_test_conversations_are_not_compared():
    """A run whose prompts and conversations are those of another split."""
    found = results(seeds=(0,))
    found["configurations"]["fedavg"]["runs"][0]["replies"] = replies("fedavg", 1)
    perplexities, _, speakers, _ = reply_tables(found)
    assert rows_of(perplexities)[1][2] == "–" and rows_of(speakers)[0][2] == "–"
    assert rows_of(perplexities)[1][5] == "−9.09 [−9.09, −9.09]"  # own against another's, in the same run


def test_the_same_prompts_answered_by_several_speakers():
    """Central training without and with personas, and the best of the federated ones."""
    found = results()
    assert side_by_side(found) == ["seq2seq", "persona", "fedavg"]
    table = prompt_table(found)
    assert [column.title for column in table.columns] == ["Prompt", "Speaker", "SEQ2SEQ", "Persona", "FedNLG"]
    assert rows_of(table) == [
        ["How are you?", "ada", "seq2seq ada fine", "persona ada fine", "fedavg ada fine"],
        ["", "bo", "seq2seq bo fine", "persona bo fine", "fedavg bo fine"],
        ["Where is it?", "ada", "seq2seq ada there", "persona ada there", "fedavg ada there"],
        ["", "bo", "seq2seq bo there", "persona bo there", "fedavg bo there"],
    ]
    assert side_by_side(results(keys=("fedavg", "seq2seq"))) == ["fedavg", "seq2seq"]


def test_the_federated_configuration_with_the_best_evaluation_perplexity_is_shown():
    runs = {key: (TITLES[key], [run_of(key, 0)]) for key in TITLES}
    runs["fedprox"] = ("FedProx", [run_of("fedavg", 0, eval=evaluation(39.0))])
    found = assemble("some", DATA, configurations=runs, controls=[CONTROLS])
    assert side_by_side(found) == ["seq2seq", "persona", "fedprox"]


@pytest.mark.parametrize("text", ["Perplexity of test replies", "−9.09</strong>", "[−9.09, −9.09]", "persona ada fine"])
def test_the_report_has_these_tables(text):
    assert text in page(results())
