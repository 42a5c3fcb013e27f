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
        ["Control: base model", "62.00 ± 0.50", "62.00 ± 0.50", "90.00 ± 0.50", "–"],
    ]
    assert [row[1].best for row in found.rows] == [True, False, False]
    assert "The first three tokens of an utterance are given" in found.note


def test_known_and_withheld_users_by_number_of_own_samples() -> None:
    known, withheld = few_shot.few_shot_tables(text_results())
    assert texts(known) == [
        ["0", "50.00 ± 0.50", "52.00 ± 0.50"],
        ["1", "48.00 ± 0.50", "same"],
        ["5", "45.00 ± 0.50", "same"],
        ["15", "42.50 ± 0.50", "same"],
        ["all", "40.00 ± 0.50", "same"],
        ["Base model", "62.00 ± 0.50", "62.00 ± 0.50"],
    ]
    assert [row[1].best for row in known.rows] == [True] * 5 + [False]
    assert texts(withheld)[-2:] == [
        ["all", "45.00 ± 0.50", "same"],
        ["Base model", "66.00 ± 0.50", "66.00 ± 0.50"],
    ]
    assert (known.caption, withheld.caption) == ("Known users", "Withheld users")


def test_a_method_without_adaptation_has_no_table_of_known_users() -> None:
    found = text_results()
    del found["configurations"]["personal"]
    assert [made.caption for made in few_shot.few_shot_tables(found)] == ["Withheld users"]


def test_differences_are_signed_and_bold_where_the_interval_excludes_zero() -> None:
    found = difference_table(text_results())
    assert texts(found) == [
        ["One prefix", "−3.85 [−5.00, −2.50]", "−1.00 [−2.00, +0.50]", "–"],
        ["Base model", "−19.35 [−25.00, −12.00]", "+1.50", "+3.00 [+1.00, +5.00]"],
    ]
    assert found is not None
    assert [[cell.best for cell in row] for row in found.rows] == [
        [False, True, False, False],
        [False, True, False, True],
    ]
    assert difference_table(single()) is None


def test_a_shared_prefix_is_also_compared_without_adaptation() -> None:
    found = unadapted_table(text_results())
    assert texts(found) == [["One prefix", "−2.00 [−3.00, −1.00]", MISSING]]
    assert unadapted_table(single()) is None


def test_effect_of_own_samples_is_shown_where_it_was_evaluated() -> None:
    found = own_samples_table(text_results())
    assert found is not None and len(found.rows) == 1
    assert [cell.text for cell in found.rows[0]] == [
        "FedPerC", "−15.00 [−20.00, −10.00]", MISSING, "−14.00 [−20.00, +1.00]", "−10.00 [−12.00, −9.00]",
    ]  # fmt: skip
    assert [cell.best for cell in found.rows[0]] == [False, True, False, False, True]
    assert own_samples_table(single()) is None


def test_the_report_shows_privacy_and_marks_insecure_runs() -> None:
    found = text_results()
    assert privacy_table(found) is None
    run = found["configurations"]["personal"]["runs"][0]
    for entry in run["rounds"]:
        entry["up_bytes"]["keyed"] = 100
    assert "Its update reveals which keyed rows it uses." in markdown(found)
    run["privacy"] = {
        "noise": "central", "clip": {"*": 1.0}, "statistics_clip": None, "noise_multiplier": 1.234, "rate": 0.05,
        "releases": 100, "delta": 1e-5, "epsilon": 3.5021, "epsilon_rdp": 4.0389, "insecure": False,
    }  # fmt: skip
    shown = privacy_table(found)
    assert shown is not None
    assert texts(shown)[0] == [
        "FedPerC", "central noise, 1.23 clip norms", "not sent", "never", "3.502 at delta 1e-05 (RDP 4.039)",
        "100 releases at sampling rate 5.00%",
    ]  # fmt: skip
    assert texts(shown)[1][1:5] == ["without noise", "without noise", "never", MISSING]
    later = {**run, "privacy": {**run["privacy"], "releases": 104, "epsilon": 3.6, "epsilon_rdp": 4.1}}
    twice = {**found["configurations"]["personal"], "runs": [run, later, run]}
    costliest = privacy_table({**found, "configurations": {"personal": twice}})
    assert texts(costliest)[0][4:] == ["3.600 at delta 1e-05 (RDP 4.100)", shown.rows[0][5].text.replace("100", "104")]
    assert "Noise on all keyed rows hides which of them it uses, added to the sum" in markdown(found)
    run["privacy"]["noise"] = "local"
    assert "Noise on all keyed rows hides which of them it uses, added before upload" in markdown(found)
    run["privacy"]["insecure"] = True
    assert "INSECURE" in markdown(found) and "INSECURE" in page(found)
    assert "hides nothing" in markdown(found) and "Noise on all keyed rows" not in markdown(found)
    run["privacy"] |= {"clip": {"head.*": 0.5, "*": 1.0}, "statistics_clip": 1.0, "noise_multiplier": 1.0}
    assert texts(privacy_table(found))[0][1] == "local noise, 1.73 clip norms"  # three groups: the root of three
    run["privacy"]["noise_norms"] = {"parameters": 1.4907, "statistics": 3.1623}
    assert texts(privacy_table(found))[0][1:3] == ["local noise, 1.49 clip norms", "local noise, 3.16 clip norms"]


def test_next_to_epsilon_the_report_shows_its_scope_and_the_cost_of_all_runs() -> None:
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
    assert "scores, curves, projections" in one.note and "without noise" in one.note
    assert texts(one)[0][5].endswith("; treated as public: the result of most_frequent_labels")
    found["privacy"] = {**five, "runs": 55, "runs_without_privacy": 12, "epsilon": 74.474, "epsilon_rdp": 92.584}
    several = privacy_table(found)
    assert several is not None and texts(several)[0][6] == "16.856 at delta 1e-05 (RDP 18.706)"
    assert (texts(several)[-1][0], texts(several)[-1][6]) == (
        "All 55 private runs", "74.474 at delta 1e-05 (RDP 92.584)",
    )  # fmt: skip
    assert "All 55 private runs together cost epsilon 74.474" in several.note
    assert "The 12 runs without privacy have no bound." in several.note


def test_rounds_without_a_client_do_not_count_in_bytes_per_client() -> None:
    found = text_results()
    (first, *_) = found["configurations"]["personal"]["runs"][0]["rounds"]
    before = texts(traffic_table(found))
    empty = {**first, "clients": 0, "down_bytes": {"federated": 0}, "up_bytes": {"federated": 0}}
    found["configurations"]["personal"]["runs"][0]["rounds"].append(empty)
    assert [row[2:4] for row in texts(traffic_table(found))] == [row[2:4] for row in before]


def test_a_difference_displayed_as_zero_is_not_bold() -> None:
    results = text_results()
    results["differences"]["configurations"]["shared"]["test"] = {"percent": -0.002, "low": -0.004, "high": -0.001}
    found = difference_table(results)
    assert found is not None
    assert (found.rows[0][1].text, found.rows[0][1].best) == ("0.00 [0.00, 0.00]", False)


def test_values_displayed_equal_are_equally_good() -> None:
    found = text_results()
    found["configurations"]["shared"]["summary"]["test"] = perplexity(50.001)
    assert [row[1].best for row in score_tables.main_table(found).rows] == [True, True, False]


def test_the_headings_of_a_language_report() -> None:
    report = markdown(text_results())
    assert "## FedPerC does best: perplexity 50.00 on the test set\n" in report
    assert "## For the worst-served tenth of users, FedPerC has a perplexity of 90.00\n" in report
    best = "known users 40.00 (FedPerC), withheld users 45.00 (FedPerC)"
    assert f"## Best result with all own samples: {best}\n" in report
    assert "from best to worst served" in report
    for wrong in ("accuracy", "is right", "do not read the text", "Perplexity, %"):
        assert wrong not in report


def test_the_unit_of_replies_in_subwords_is_said() -> None:
    found = text_results()
    assert "The first three tokens of an utterance are given" in markdown(found)
    next(iter(found["configurations"].values()))["runs"][0]["test"]["subwords"] = 7
    assert "Tokens are words, also of models that write parts of words" in markdown(found)
    assert "The first three tokens" not in markdown(found)


def test_a_base_model_that_does_better_is_named() -> None:
    found = text_results()
    found["controls"]["summary"]["untouched"] = perplexity(45.0)
    assert "on the test set, worse than the control “base model” (45.00)" in markdown(found)


def test_every_figure_shows_every_value() -> None:
    drawn = figures(page(text_results()))
    assert list(drawn) == [
        "curves-0",
        "users-0",
        "newcomers-0",
        "newcomers-1",
        "projections-0",
        "projections-1",
        "communication-0",
        "communication-1",
    ]
    assert drawn["curves-0"]["layout"]["yaxis"]["title"]["text"] == "Evaluation perplexity"
    low, high = drawn["users-0"]["layout"]["xaxis"]["range"]
    assert low < 40 and high > 90
    assert drawn["newcomers-0"]["layout"]["yaxis"]["range"] == pytest.approx([39.5 - 1.15, 62.0 + 1.15 + 0.0], abs=0.5)
    assert "type" not in drawn["users-0"]["layout"]["xaxis"]


def test_values_that_differ_by_a_large_factor_get_a_logarithmic_axis() -> None:
    found = text_results()
    for run in found["configurations"]["personal"]["runs"]:
        run["curve"][0]["value"] = 50_000.0
    axis = figures(page(found))["curves-0"]["layout"]["yaxis"]
    assert axis["type"] == "log"
    assert {"50", "500", "50,000"} <= set(axis["ticktext"])
    assert axis["range"][1] == pytest.approx(4.7 + 0.05 * 3, abs=0.1)


def test_projections_are_coloured_by_context_without_labels() -> None:
    text = page(text_results())
    assert "most frequent context" in text
    assert len(figures(text)["projections-0"]["data"]) == 3  # two contexts, and one user without any
    found = text_results()
    found["configurations"]["personal"]["runs"][0]["maps"]["context"] = None
    assert len(figures(page(found))["projections-0"]["data"]) == 1


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
    assert "7 users, each withheld in one of 3 folds" in report
    assert "Each of 3 folds withholds different users" in few_shot.few_shot_tables(found)[1].note


def test_the_terminal_has_the_same_tables() -> None:
    assert [title for title, *_ in plain_tables(text_results())] == [
        "small", "Known users", "Withheld users", "Difference from each configuration",
    ]  # fmt: skip


def test_a_row_for_each_configuration_with_the_base_model_first() -> None:
    known = few_shot.configuration_table(text_results(), few_shot.KNOWN)
    assert known is not None
    assert [column.title for column in known.columns] == ["Configuration", "0", "1", "5", "15", "all"]
    assert texts(known) == [
        ["Base model", "62.00 ± 0.50", "same", "same", "same", "same"],
        ["FedPerC", "50.00 ± 0.50", "48.00 ± 0.50", "45.00 ± 0.50", "42.50 ± 0.50", "40.00 ± 0.50"],
        ["One prefix", "52.00 ± 0.50", "same", "same", "same", "same"],
    ]
    assert [row[0].text for row in known.rows if any(cell.best for cell in row)] == ["FedPerC"]
    withheld = few_shot.configuration_table(text_results(), few_shot.WITHHELD)
    assert texts(withheld)[0][:2] == ["Base model", "66.00 ± 0.50"]


def test_distribution_over_users_with_all_own_samples() -> None:
    found = text_results()
    for run in found["configurations"]["personal"]["runs"]:
        run["adapted"] = {"0": text_evaluation([40.0, 62.5]), "all": text_evaluation([30.0, 50.0])}
    assert texts(few_shot.user_range_table(found, few_shot.KNOWN)) == [
        ["Base model", "62.00 ± 0.50", "60.00 to 64.00", "90.00 ± 0.50"],
        ["FedPerC", "40.00 ± 0.50", "30.00 to 50.00", "90.00 ± 0.50"],
        ["One prefix", "52.00 ± 0.50", "41.00 to 66.00", "90.00 ± 0.50"],  # as trained: nothing to adapt
    ]
    withheld = few_shot.user_range_table(found, few_shot.WITHHELD)
    assert texts(withheld)[0][2] == "–"


def test_sentences_list_which_intervals_exclude_zero() -> None:
    found = text_results()
    assert difference_sentences(found) == [
        "Known users, all own samples: FedPerC is not distinguishable from “One prefix” (interval includes zero).",
        "Withheld users, all own samples: FedPerC is worse than “Base model” (interval above zero).",
    ]
    found["differences"]["configurations"]["shared"]["newcomers"] = {"percent": -1.0, "low": -2.0, "high": -0.004}
    assert (
        "not distinguishable from “One prefix” (interval includes" in difference_sentences(found)[1]
    )  # -0.004 is displayed as 0.00
    found["differences"]["configurations"]["shared"]["newcomers"]["high"] = -0.5
    assert "FedPerC is better than “One prefix” (interval below zero); is worse" in difference_sentences(found)[1]
    assert difference_sentences({}) == []
