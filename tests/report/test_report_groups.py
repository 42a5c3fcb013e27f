"""Tables by sub-population appear only where there is something to show."""

from homespun.report.groups import share_table


def results(**test):
    runs = [{"test": {"metric": "accuracy", **test}, "seed": 0}]
    return {
        "data": {"groups": {"small": 5, "large": 15}},
        "configurations": {"ours": {"title": "Ours", "runs": runs}},
    }


def test_scores_by_size_need_a_score_of_each_sub_population():
    assert share_table(results()) is None
    table = share_table(results(group_f1={"0": 0.25, "1": 0.75}))
    assert table is not None and [cell.text for cell in table.rows[0]][0] == "Ours"
