"""The report shows when a control wins, and what private parameters contribute."""

from typing import Any

from small_results import perplexity, text_results
from test_report_tables import texts

from homespun.report import few_shot, score_tables
from homespun.report.differences import difference_table, personal_table
from homespun.report.tables import markdown


def with_own_sentences() -> dict[str, Any]:
    """The base model has 41 with 15 own sentences in its context: less than FedPerC's 42.5 with as many samples."""
    found = text_results()
    found["controls"]["summary"] |= {f"in_context_{count}": perplexity(56.0 - count) for count in (1, 5, 15)}
    for configuration in found["configurations"].values():
        configuration["summary"]["newcomers_in_context"] = {
            count: perplexity(58.0 - int(count)) for count in ("1", "5", "15")
        }
    found["differences"]["controls"]["in_context_15"] = {
        "test": {"percent": 21.95, "low": 15.0, "high": 30.0, "users": 2}, "adapted": None, "newcomers": None,
    }  # fmt: skip
    return found


def test_own_sentences_in_context_are_a_column_and_bold_where_they_are_best() -> None:
    known, withheld = few_shot.few_shot_tables(with_own_sentences())
    assert known.columns[-1].title == "Base model, own sentences in context"
    assert [row[-1] for row in texts(known)] == [
        "62.00 ± 0.50", "55.00 ± 0.50", "51.00 ± 0.50", "41.00 ± 0.50", "–", "62.00 ± 0.50",
    ]  # fmt: skip
    assert [row[-1].best for row in known.rows] == [False, False, False, True, False, False]
    assert texts(withheld)[3][-1] == "43.00 ± 0.50" and "a control without any training" in known.note


def test_the_result_says_that_a_control_is_ahead() -> None:
    found = with_own_sentences()
    assert texts(score_tables.main_table(found))[-1][:2] == [
        "Control: base model, 15 own sentences in context", "41.00 ± 0.50",
    ]  # fmt: skip
    said = "on the test set, worse than the control “base model, 15 own sentences in context” (41.00)"
    assert said in markdown(found)
    compared = difference_table(found)
    assert compared is not None
    assert texts(compared)[-1] == ["Base model, 15 own sentences in context", "+21.95 [+15.00, +30.00]", "–", "–"]


def test_contribution_of_private_parameters() -> None:
    found = with_own_sentences()
    assert personal_table(found) is None
    found["configurations"]["personal"]["summary"]["personal"] = {
        "own": perplexity(50.0), "prior": perplexity(51.0), "another": perplexity(53.0),
    }  # fmt: skip
    found["personal"] = {
        "personal": {
            "prior": {"percent": 2.0, "low": 1.0, "high": 3.0, "users": 2},
            "another": {"percent": 6.0, "low": -1.0, "high": 9.0, "users": 2},
        }
    }
    made = personal_table(found)
    assert made is not None
    assert texts(made) == [
        ["FedPerC", "50.00 ± 0.50", "51.00 ± 0.50", "53.00 ± 0.50", "+2.00 [+1.00, +3.00]", "+6.00 [−1.00, +9.00]"]
    ]
    assert "### Contribution of private parameters" in markdown(found)
