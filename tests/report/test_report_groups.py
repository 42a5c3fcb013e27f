"""Tables by sub-population appear only where there is something to show."""

from homespun.report.few_shot import KNOWN, NEWCOMERS, WITHHELD, evaluated_users
from homespun.report.groups import share_table
from homespun.report.score_tables import metric_of


def results(**test):
    runs = [{"test": {"metric": "accuracy", **test}, "seed": 0}]
    return {
        "data": {"groups": {"small": 5, "large": 15}},
        "configurations": {"ours": {"title": "Ours", "runs": runs}},
    }


def test_scores_by_size_need_a_score_of_each_sub_population():
    assert share_table(results()) is None
    table = share_table(results(group_f1={"0": 0.25, "1": 0.75}))
    assert table is not None and table.rows[0][0].text == "Ours"


def test_a_scoring_that_is_not_built_in_says_how_it_is_shown():
    found = results(metric="word error rate", value=12.5)
    found["configurations"]["ours"]["summary"] = {"test": {"metric": "word error rate"}}
    run = found["configurations"]["ours"]["runs"][0]
    assert metric_of(found).percent and evaluated_users(found) == (NEWCOMERS,)  # results that do not say
    run["scoring"] = {"percent": False, "lower_is_better": True}
    assert (metric_of(found).text(12.5), metric_of(found).lower_is_better) == ("12.50", True)
    found["configurations"]["ours"]["summary"]["adapted"] = {"0": {}, "all": {}}
    assert evaluated_users(found) == (KNOWN, WITHHELD)
