"""The tables show exactly the values of the results."""

from __future__ import annotations

import pytest
from small_results import a_map, a_run, results, single, summarized

from homespun.report import few_shot, score_tables, traffic
from homespun.report.continuation_tables import tables_by_prompt
from homespun.report.projection_plots import projection_plots
from homespun.report.run_metadata import sampled_users, settings_tables
from homespun.report.sections import sections
from homespun.report.table_model import (
    ACCURACY,
    PERPLEXITY,
    Table,
    byte_text,
    finite,
    metric_named,
    percent_text,
    shorten,
)
from homespun.report.tables import markdown, plain_tables


def texts(table: Table | None) -> list[list[str]]:
    assert table is not None
    return [[cell.text for cell in row] for row in table.rows]


def bold(table: Table) -> set[str]:
    return {cell.text for row in table.rows for cell in row if cell.best}


def test_main_table() -> None:
    assert texts(score_tables.main_table(results())) == [
        ["Global Server", "40.00 ± 1.00", "40.00 ± 1.00", "25.00 ± 1.00", "40.00 ± 1.00"],
        ["Global FL", "35.00 ± 1.00", "35.00 ± 1.00", "25.00 ± 1.00", "35.00 ± 1.00"],
        ["Personalized FL", "62.41 ± 1.00", "62.41 ± 1.00", "25.00 ± 1.00", "62.41 ± 1.00"],
        ["Control: majority label", "20.00 ± 1.00", "20.00 ± 1.00", "0.00 ± 1.00", "–"],
        ["Control: own majority label", "30.00 ± 1.00", "30.00 ± 1.00", "25.00 ± 1.00", "–"],
    ]


def test_the_best_of_a_column_and_its_equals_are_marked() -> None:
    found = score_tables.main_table(results())
    assert [row[0].text for row in found.rows if row[1].best] == ["Personalized FL"]
    assert [row[0].text for row in found.rows if not row[3].best] == ["Control: majority label"]


def test_the_heading_names_a_control_that_does_better() -> None:
    found = results()
    assert "## Personalized FL does best: 62.41 % accuracy on the test set\n" in markdown(found)
    found["controls"]["summary"]["own_majority"] = summarized(0.7)
    assert "on the test set, worse than the control “own majority label” (70.00 %)" in markdown(found)


def test_newcomers() -> None:
    found = few_shot.few_shot_table(results(), few_shot.NEWCOMERS)
    assert texts(found) == [
        ["0", "31.00 ± 1.00", "30.00 ± 1.00"],
        ["5", "same", "50.00 ± 1.00"],
        ["20", "same", "–"],
        ["all", "same", "55.00 ± 1.00"],
        ["Participants", "35.00 ± 1.00", "62.41 ± 1.00"],
    ]


def test_the_headings_state_the_findings() -> None:
    found = results()
    assert "## Newcomers reach 50.00 % with 5 examples of their own" in markdown(found)  # 20: not known
    for configuration in found["configurations"].values():
        configuration["title"] = "twin"
    assert "Accuracy on the evaluation set ends between 35.00 % (twin) and 62.41 % (twin)" in [
        section.heading for section in sections(found)
    ]


def test_similarity_is_the_mean_over_seeds() -> None:
    found = score_tables.similarity_table(results())
    assert texts(found) == [["Global Server", "Personalized FL", "0.600 ± 0.141", "2"]]


def test_bytes_by_role_for_a_client_and_for_the_cohort() -> None:
    assert texts(traffic.traffic_table(results()))[:4] == [
        ["Global FL", "federated", "1,000", "1,000", "2,000", "2,000"],
        ["Global FL", "keyed", "0", "0", "0", "0"],
        ["Global FL", "statistics", "0", "24", "0", "48"],
        ["Global FL", "private", "0", "0", "0", "0"],
    ]


def test_central_training_has_no_clients_and_releases_everything() -> None:
    assert set(traffic.federated_traffic(results())) == {"global", "personal"}
    rows = texts(traffic.released_table(results()))
    assert rows[0][:2] == ["all training examples", "Global Server"]
    assert "56,789 characters" in rows[0][2]
    meaning = "the number of examples in all local steps; an example counts each time it is used"
    assert ["examples", "Global FL, Personalized FL", meaning] in rows


def test_a_run_may_state_whether_it_is_pooled() -> None:
    assert traffic.is_pooled({"runs": [a_run("mine", 0, value=0.5, pooled=True)]})
    assert not traffic.is_pooled({"runs": [a_run("central", 0, value=0.5, pooled=False)]})


def test_quantiles_over_users() -> None:
    first = texts(score_tables.user_quantile_table(results()))[0]
    assert first == ["Global Server", "25.00", "25.00", "50.00", "75.00", "75.00", "4"]


def test_one_configuration_and_one_seed() -> None:
    found = score_tables.main_table(single())
    assert texts(found)[0] == ["fedavg", "35.00", "35.00", "25.00", "35.00"]
    report = markdown(single())
    assert "## fedavg: 35.00 % accuracy on the test set" in report
    assert "One seed" in report
    for absent in ("newcomer", "Rank correlation"):
        assert absent not in report.replace("Newcomers, never in training", "")


def test_a_missing_value_is_a_dash() -> None:
    found = single()
    found["configurations"]["fedavg"]["summary"]["test"] = summarized(None, tenth=None)
    assert texts(score_tables.main_table(found))[0] == ["fedavg", "–", "–", "–", "35.00"]
    assert "## No accuracy on the test set could be computed" in markdown(found)


def test_plain_tables_for_a_terminal() -> None:
    (title, columns, rows), (newcomers, *_) = plain_tables(results())
    assert title == "small"
    assert columns == (
        "Configuration",
        "Test accuracy, %",
        "User mean, %",
        "Worst tenth, %",
        "Eval accuracy, %",
    )
    assert rows[2][:2] == ("Personalized FL", "62.41 ± 1.00")
    assert newcomers == "Newcomers"
    assert [title for title, *_ in plain_tables(single())] == ["small"]


def test_a_terminal_shows_more_than_four_configurations_as_rows() -> None:
    found = results()
    for name in ("third", "fourth", "fifth"):
        found["configurations"][name] = {**found["configurations"]["personal"], "title": name}
    _, (_, columns, rows), *_ = plain_tables(found)
    assert columns == ("Own examples", "0", "5", "20", "all", "Participants")
    assert rows[1] == ("Personalized FL, %", "30.00 ± 1.00", "50.00 ± 1.00", "–", "55.00 ± 1.00", "62.41 ± 1.00")


def test_continuations_are_shown_by_prompt() -> None:
    sample = {"opening": "We must", "user": "Ann", "context": "spoken", "used": True, "text": " go\non."}
    drawn = [sample, {**sample, "context": "written", "used": False}, {**sample, "opening": "I"}]
    found = {**results(), "showcase": {"configuration": "personal", "samples": drawn}}
    first, second = tables_by_prompt(found)
    assert (first.caption, second.caption) == ("We must …", "I …")
    assert texts(first) == [["Ann", "spoken", "go on."], ["Ann", "written (never used)", "go on."]]
    assert "no user said this" in markdown(found)
    assert tables_by_prompt(results()) == []


def test_settings_that_differ_stand_side_by_side() -> None:
    found = results()
    for run in found["configurations"]["personal"]["runs"]:
        run["settings"] = {"rate": 0.1, "user_lr": 0.5}
    differing, shared = settings_tables(found)
    assert texts(differing) == [["method.user_lr", "–", "–", "0.5"]]
    assert ["method.rate", "0.1"] in texts(shared)
    assert not any(name == "run.seed" for name, *_ in texts(shared))


def test_sampled_users_are_reported() -> None:
    found = results()
    assert sampled_users(found) == ""
    found["data"]["users"] = 1_000_000
    assert sampled_users(found) == "1,000 of 1,000,000 users, sampled"
    assert "Evaluated on 1,000 of 1,000,000 users, sampled." in markdown(found)


def test_text_from_the_data_does_not_become_markup() -> None:
    found = single()
    found["name"] = "a|b <script>alert(1)</script> *c*\nd"
    found["configurations"]["fedavg"]["title"] = "x | y"
    report = markdown(found)
    assert report.startswith("# a\\|b &lt;script&gt;alert(1)&lt;/script&gt; \\*c\\* d\n")
    assert "| x \\| y | **35.00** |" in report
    assert "<" not in report


def test_a_metric_formats_its_values() -> None:
    assert (ACCURACY.text_with_unit(0.5), ACCURACY.heading("User mean")) == ("50.00 %", "User mean, %")
    assert (PERPLEXITY.text_with_unit(12.345), PERPLEXITY.heading("User mean")) == ("12.35", "User mean")
    assert PERPLEXITY.mean_and_std({"mean": 12.0, "std": 0.5}) == "12.00 ± 0.50"
    assert [sorted([2.0, 1.0], key=metric.sort_key)[0] for metric in (ACCURACY, PERPLEXITY)] == [2.0, 1.0]
    assert [metric_named(name).sentence_title for name in ("auc", "perplexity", "f score")] == [
        "AUC", "Perplexity", "F score",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "50.00"), (1, "100.00"), (None, "–"), (float("nan"), "–"), (float("inf"), "–")]
)
def test_percent(value: float | None, text: str) -> None:
    assert percent_text(value) == text


def test_numbers_are_formatted_for_readers() -> None:
    assert [byte_text(size) for size in (0, 24, 999, 1000, 99_949, 318_976, 2_500_000, None)] == [
        "0 B", "24 B", "999 B", "1.0 kB", "99.9 kB", "319 kB", "2.5 MB", "–",
    ]  # fmt: skip
    assert ACCURACY.mean_and_std(None) == "–"
    assert ACCURACY.mean_and_std({"mean": 0.5, "std": None}) == "50.00"
    assert finite("1") is None
    assert shorten("a\0b\n  c") == "a b c"
    assert len(shorten("x" * 300)) == 60


def test_twenty_groups_have_distinct_marks() -> None:
    results = single()
    (run,) = next(iter(results["configurations"].values()))["runs"][:1]
    run["maps"] = a_map([f"voice {number}" for number in range(20)])
    plot = projection_plots(results)[0]
    marks = {(key.color, key.mark) for key in plot.legend[1:]}
    assert len(marks) == 20 and "other" not in [key.label for key in plot.legend]
    drawn = {(trace.marker.color, trace.marker.symbol) for trace in plot.figure.data}
    assert len(drawn) == 20
