"""The report of language models: perplexity, where lower is better."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from small_results import perplexity, single, text_evaluation, text_results
from test_report_tables import texts

from homespun.report import few_shot, html, score_tables
from homespun.report.differences import difference_sentences, difference_table, own_samples_table, unadapted_table
from homespun.report.html import page
from homespun.report.run_metadata import data_table
from homespun.report.table_model import MISSING
from homespun.report.tables import markdown, plain_tables
from homespun.report.traffic import privacy_table, traffic_table


@pytest.fixture(autouse=True)
def small_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "get_plotlyjs", lambda: "/* plotly.js */")


def figures(text: str) -> dict[str, Any]:
    blocks = re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</script>', text, re.DOTALL)
    return {name: json.loads(block) for name, block in blocks}


def test_perplexity_is_plain_and_the_lowest_is_best() -> None:
    found = score_tables.main_table(text_results())
    assert [column.title for column in found.columns][1:] == [
        "Test perplexity", "User mean", "Worst tenth", "Eval perplexity",
    ]  # fmt: skip
    assert texts(found) == [
        ["FedPerC", "50.00 ± 0.50", "50.00 ± 0.50", "90.00 ± 0.50", "49.00 ± 0.50"],
        ["One prefix", "52.00 ± 0.50", "52.00 ± 0.50", "90.00 ± 0.50", "49.00 ± 0.50"],
        ["Control: base model untouched", "62.00 ± 0.50", "62.00 ± 0.50", "90.00 ± 0.50", "–"],
    ]
    assert [row[1].best for row in found.rows] == [True, False, False]
    assert "The first three tokens of an utterance are given" in found.note


def test_known_and_withheld_users_by_number_of_own_samples() -> None:
    known, withheld = few_shot.sample_tables(text_results())
    assert texts(known) == [
        ["0", "50.00 ± 0.50", "52.00 ± 0.50"],
        ["1", "48.00 ± 0.50", "same"],
        ["5", "45.00 ± 0.50", "same"],
        ["15", "42.50 ± 0.50", "same"],
        ["all", "40.00 ± 0.50", "same"],
        ["Base model untouched", "62.00 ± 0.50", "62.00 ± 0.50"],
    ]
    assert [row[1].best for row in known.rows] == [True] * 5 + [False]
    assert texts(withheld)[-2:] == [
        ["all", "45.00 ± 0.50", "same"],
        ["Base model untouched", "66.00 ± 0.50", "66.00 ± 0.50"],
    ]
    assert (known.caption, withheld.caption) == ("Known users", "Withheld users")


def test_a_method_that_nobody_adapts_has_no_table_of_known_users() -> None:
    found = text_results()
    del found["configurations"]["personal"]
    assert [made.caption for made in few_shot.sample_tables(found)] == ["Withheld users"]


def test_differences_are_signed_and_bold_where_the_interval_excludes_zero() -> None:
    found = difference_table(text_results())
    assert texts(found) == [
        ["One prefix", "−3.85 [−5.00, −2.50]", "−1.00 [−2.00, +0.50]", "–"],
        ["Base model untouched", "−19.35 [−25.00, −12.00]", "+1.50", "+3.00 [+1.00, +5.00]"],
    ]
    assert found is not None
    assert [[cell.best for cell in row] for row in found.rows] == [
        [False, True, False, False],
        [False, True, False, True],
    ]
    assert difference_table(single()) is None


def test_a_shared_prefix_is_also_shown_as_everybody_shares_it() -> None:
    found = unadapted_table(text_results())
    assert texts(found) == [["One prefix", "−2.00 [−3.00, −1.00]", MISSING]]
    assert unadapted_table(single()) is None


def test_what_own_samples_change_is_shown_where_somebody_tried() -> None:
    found = own_samples_table(text_results())
    assert found is not None and len(found.rows) == 1
    assert [cell.text for cell in found.rows[0]] == [
        "FedPerC", "−15.00 [−20.00, −10.00]", MISSING, "−14.00 [−20.00, +1.00]", "−10.00 [−12.00, −9.00]",
    ]  # fmt: skip
    assert [cell.best for cell in found.rows[0]] == [False, True, False, False, True]
    assert own_samples_table(single()) is None


def test_the_report_says_what_privacy_there_was_and_stamps_what_is_none() -> None:
    found = text_results()
    assert privacy_table(found) is None
    run = found["configurations"]["personal"]["runs"][0]
    for entry in run["rounds"]:
        entry["up_bytes"]["keyed"] = 100
    assert "Which keyed rows it uses is plain to see in its update." in markdown(found)
    run["privacy"] = {
        "noise": "central", "clip": {"*": 1.0}, "statistics_clip": None, "noise_multiplier": 1.234, "rate": 0.05,
        "releases": 100, "delta": 1e-5, "epsilon": 3.5021, "epsilon_rdp": 4.0389, "insecure": False,
    }  # fmt: skip
    shown = privacy_table(found)
    assert shown is not None
    assert texts(shown)[0] == [
        "FedPerC", "central noise, 1.23 clip norms", "not sent", "never", "3.502 at delta 1e-05 (RDP 4.039)",
        "100 releases, counted with 5.00% of the users drawn",
    ]  # fmt: skip
    assert texts(shown)[1][1:5] == ["as they are", "as they are", "never", MISSING]
    later = {**run, "privacy": {**run["privacy"], "releases": 104, "epsilon": 3.6, "epsilon_rdp": 4.1}}
    twice = {**found["configurations"]["personal"], "runs": [run, later, run]}
    costliest = privacy_table({**found, "configurations": {"personal": twice}})
    assert texts(costliest)[0][4:] == ["3.600 at delta 1e-05 (RDP 4.100)", shown.rows[0][5].text.replace("100", "104")]
    assert "hidden by noise on all of them, in the sum" in markdown(found)
    run["privacy"]["noise"] = "local"
    assert "hidden by noise on all of them, before it leaves" in markdown(found)
    run["privacy"]["insecure"] = True
    assert "INSECURE" in markdown(found) and "INSECURE" in page(found)
    assert "which hides nothing" in markdown(found) and "is hidden by noise" not in markdown(found)
    run["privacy"] |= {"clip": {"head.*": 0.5, "*": 1.0}, "statistics_clip": 1.0, "noise_multiplier": 1.0}
    assert texts(privacy_table(found))[0][1] == "local noise, 1.73 clip norms"  # three groups: the root of three
    run["privacy"]["noise_norms"] = {"parameters": 1.4907, "statistics": 3.1623}
    assert texts(privacy_table(found))[0][1:3] == ["local noise, 1.49 clip norms", "local noise, 3.16 clip norms"]


def test_beside_epsilon_the_report_says_what_it_covers_and_what_all_runs_cost() -> None:
    found = text_results()
    private = {
        "noise": "central", "clip": {"*": 1.0}, "statistics_clip": None, "noise_multiplier": 0.769, "rate": 0.1,
        "releases": 40, "delta": 1e-5, "epsilon": 7.998, "epsilon_rdp": 8.6, "insecure": False,
        "public_filters": ["most_frequent_labels"],
    }  # fmt: skip
    five = {"runs": 5, "runs_without_privacy": 0, "delta": 1e-5, "epsilon": 16.856, "epsilon_rdp": 18.706}
    personal = found["configurations"]["personal"]
    personal |= {"runs": [{**run, "privacy": private} for run in personal["runs"]], "privacy": five}
    one = privacy_table(found)
    assert one is not None and len(one.columns) == 6 and "zero-out" in one.note and "the same list of users" in one.note
    assert "scores, curves, maps" in one.note and "without noise" in one.note
    assert texts(one)[0][5].endswith("; public: what most_frequent_labels left")
    found["privacy"] = {**five, "runs": 55, "runs_without_privacy": 12, "epsilon": 74.474, "epsilon_rdp": 92.584}
    several = privacy_table(found)
    assert several is not None and texts(several)[0][6] == "16.856 at delta 1e-05 (RDP 18.706)"
    assert (texts(several)[-1][0], texts(several)[-1][6]) == (
        "All 55 private runs", "74.474 at delta 1e-05 (RDP 92.584)",
    )  # fmt: skip
    assert "All 55 private runs together cost epsilon 74.474" in several.note
    assert "The 12 runs without privacy have no bound." in several.note


def test_rounds_without_a_client_say_nothing_of_what_one_sends() -> None:
    found = text_results()
    (first, *_) = found["configurations"]["personal"]["runs"][0]["rounds"]
    before = texts(traffic_table(found))
    empty = {**first, "clients": 0, "down_bytes": {"federated": 0}, "up_bytes": {"federated": 0}}
    found["configurations"]["personal"]["runs"][0]["rounds"].append(empty)
    assert [row[2:4] for row in texts(traffic_table(found))] == [row[2:4] for row in before]


def test_a_difference_that_reads_as_zero_is_none() -> None:
    results = text_results()
    results["differences"]["configurations"]["shared"]["test"] = {"percent": -0.002, "low": -0.004, "high": -0.001}
    found = difference_table(results)
    assert found is not None
    assert (found.rows[0][1].text, found.rows[0][1].best) == ("0.00 [0.00, 0.00]", False)


def test_values_that_read_the_same_are_equally_good() -> None:
    found = text_results()
    found["configurations"]["shared"]["summary"]["test"] = perplexity(50.001)
    assert [row[1].best for row in score_tables.main_table(found).rows] == [True, True, False]


def test_the_headings_read_right() -> None:
    report = markdown(text_results())
    assert "## FedPerC does best: perplexity 50.00 on the test set\n" in report
    assert "## For the worst-served tenth of users, FedPerC has a perplexity of 90.00\n" in report
    best = "known users 40.00 (FedPerC), withheld users 45.00 (FedPerC)"
    assert f"## With all samples of their own, at best: {best}\n" in report
    assert "from best to worst served" in report
    for wrong in ("accuracy", "is right", "do not read the text", "Perplexity, %"):
        assert wrong not in report


def test_a_base_model_that_does_better_is_named() -> None:
    found = text_results()
    found["controls"]["summary"]["untouched"] = perplexity(45.0)
    assert "on the test set, more than the control “base model untouched” (45.00)" in markdown(found)


def test_every_figure_shows_every_value() -> None:
    drawn = figures(page(text_results()))
    assert list(drawn) == [
        "curves-0",
        "users-0",
        "newcomers-0",
        "newcomers-1",
        "maps-0",
        "maps-1",
        "homes-0",
        "homes-1",
    ]
    assert drawn["curves-0"]["layout"]["yaxis"]["title"]["text"] == "Evaluation perplexity"
    low, high = drawn["users-0"]["layout"]["xaxis"]["range"]
    assert low < 40 and high > 90
    assert drawn["newcomers-0"]["layout"]["yaxis"]["range"] == pytest.approx([39.5 - 1.15, 62.0 + 1.15 + 0.0], abs=0.5)
    assert "type" not in drawn["users-0"]["layout"]["xaxis"]


def test_values_that_differ_by_a_large_factor_stand_on_a_logarithmic_axis() -> None:
    found = text_results()
    for run in found["configurations"]["personal"]["runs"]:
        run["curve"][0]["value"] = 50_000.0
    axis = figures(page(found))["curves-0"]["layout"]["yaxis"]
    assert axis["type"] == "log"
    assert {"50", "500", "50,000"} <= set(axis["ticktext"])
    assert axis["range"][1] == pytest.approx(4.7 + 0.05 * 3, abs=0.1)


def test_maps_are_coloured_by_context_where_there_are_no_labels() -> None:
    text = page(text_results())
    assert "most frequent context" in text
    assert len(figures(text)["maps-0"]["data"]) == 3  # two contexts, and one user without any
    found = text_results()
    found["configurations"]["personal"]["runs"][0]["maps"]["context"] = None
    assert len(figures(page(found))["maps-0"]["data"]) == 1


def test_a_corpus_without_labels() -> None:
    facts = dict(texts(data_table(text_results())))
    assert (facts["Labels"], facts["Contexts"], facts["Users with several contexts"]) == ("none", "2", "3")
    assert not any("frequent label" in name for name in facts)


def test_the_folds_of_a_seed_count_once() -> None:
    found = text_results()
    found["data"] |= {"folds": 3, "newcomers": 7}
    for configuration in found["configurations"].values():
        configuration["runs"] = [{**run, "fold": fold} for run in configuration["runs"] for fold in range(3)]
    report = markdown(found)
    assert "7 newcomers · 3 folds · 2 seeds" in report
    assert "Mean ± standard deviation over 2 seeds." in report
    assert "7 people were withheld in one of 3 folds each" in report
    assert "Each of 3 folds withholds others" in few_shot.sample_tables(found)[1].note


def test_the_terminal_has_the_same_tables() -> None:
    assert [title for title, *_ in plain_tables(text_results())] == [
        "small", "Known users", "Withheld users", "Difference to each configuration",
    ]  # fmt: skip


def test_a_row_for_each_configuration_with_the_base_model_first() -> None:
    known = few_shot.configuration_table(text_results(), few_shot.KNOWN)
    assert known is not None
    assert [column.title for column in known.columns] == ["Configuration", "0", "1", "5", "15", "all"]
    assert texts(known) == [
        ["Base model untouched", "62.00 ± 0.50", "same", "same", "same", "same"],
        ["FedPerC", "50.00 ± 0.50", "48.00 ± 0.50", "45.00 ± 0.50", "42.50 ± 0.50", "40.00 ± 0.50"],
        ["One prefix", "52.00 ± 0.50", "same", "same", "same", "same"],
    ]
    assert [row[0].text for row in known.rows if any(cell.best for cell in row)] == ["FedPerC"]
    withheld = few_shot.configuration_table(text_results(), few_shot.WITHHELD)
    assert texts(withheld)[0][:2] == ["Base model untouched", "66.00 ± 0.50"]


def test_users_one_by_one_with_all_own_samples() -> None:
    found = text_results()
    for run in found["configurations"]["personal"]["runs"]:
        run["adapted"] = {"0": text_evaluation([40.0, 62.5]), "all": text_evaluation([30.0, 50.0])}
    assert texts(few_shot.served_table(found, few_shot.KNOWN)) == [
        ["Base model untouched", "62.00 ± 0.50", "60.00 to 64.00", "90.00 ± 0.50"],
        ["FedPerC", "40.00 ± 0.50", "30.00 to 50.00", "90.00 ± 0.50"],
        ["One prefix", "52.00 ± 0.50", "41.00 to 66.00", "90.00 ± 0.50"],  # as trained: nothing to adapt
    ]
    nobody = few_shot.served_table(found, few_shot.WITHHELD)
    assert texts(nobody)[0][2] == "–"


def test_sentences_say_which_intervals_exclude_zero() -> None:
    found = text_results()
    assert difference_sentences(found) == [
        "Known users, all own samples: the interval is on both sides of zero, so that neither is shown to be better, "
        "against “One prefix”.",
        "Withheld users, all own samples: the interval is above zero, worse for FedPerC, against “Base model "
        "untouched”.",
    ]
    found["differences"]["configurations"]["shared"]["newcomers"] = {"percent": -1.0, "low": -2.0, "high": -0.004}
    assert "on both sides" in difference_sentences(found)[1]  # -0.004 reads as zero
    found["differences"]["configurations"]["shared"]["newcomers"]["high"] = -0.5
    assert "below zero, better for FedPerC, against “One prefix”; above" in difference_sentences(found)[1]
    assert difference_sentences({}) == []
