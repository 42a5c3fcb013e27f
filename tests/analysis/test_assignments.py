"""Assignments of users to heads or clusters, and the score of each sub-population."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from homespun.analysis.assignments import assignments, purity
from homespun.analysis.projections import project_users
from homespun.analysis.user_vectors import collect_user_vectors
from homespun.data import load_federation
from homespun.data.splits import sample_users
from homespun.evaluation.classification import LabelScoring, summarize
from homespun.evaluation.metrics import macro_f1
from homespun.report.groups import assignment_table, by_share, confusion_plots, share_table
from homespun.runs.training import train


def test_f1_by_hand():
    """Class 1: 2 true positives, 1 miss, 1 false positive; class 0 the same. A constant prediction scores a third."""
    assert macro_f1(np.array([2, 2]), np.array([2, 2])) == pytest.approx(2 / 3)
    assert macro_f1(np.array([0, 1]), np.array([1, 1])) == pytest.approx(1 / 3)
    assert macro_f1(np.array([0, 1]), np.array([0, 0])) == 0.5  # a class that is neither true nor predicted
    truth, predicted = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 1, 1, 1, 0])
    counted = LabelScoring(2).counts(truth, np.eye(2)[predicted], groups=np.empty(0))
    assert counted["true_positives"].tolist() == counted["confused"].tolist() == [2, 2]


def test_a_small_sub_population_counts_as_much_as_a_large_one():
    right, wrong = np.array([[9.0, 0.0], [0.0, 9.0]]), np.array([[0.0, 9.0], [9.0, 0.0]])
    found = summarize([np.array([0, 1])] * 4, [right, right, right, wrong], classes=2, groups=[0, 0, 0, 1], metric="f1")
    assert found.group_f1 == {0: 1.0, 1: 0.0} and found.headline == ("f1", 0.5)
    assert found.to_dict()["group_f1"] == {"0": 1.0, "1": 0.0}
    assert summarize([np.array([0, 1])], [right], classes=2).headline == ("auc", 1.0)


def test_purity_is_the_share_in_the_most_frequent_sub_population():
    assert purity(np.array([[5, 0, 1], [1, 3, 0]])) == 0.9


@pytest.fixture(scope="module")
def federation():
    return load_federation("digits", settings={"users": 40})


def test_a_method_that_is_given_the_types_assigns_all_users_correctly(federation):
    with train("fedembed", federation, assignment="type", rounds=1, cohort=4, workers=0) as run:
        found = assignments(run)
    assert found["recovered"] == 1.0 and found["how"] == "by the method"
    assert np.array_equal(np.array(found["counts"]), 4 * np.eye(10))


def test_embeddings_that_choose_no_head_are_clustered_afterwards(federation):
    with train("preference", federation, embedding=True, rounds=1, cohort=4, workers=0) as run:
        found = assignments(run)
    assert found["how"] == "by k-means afterwards"
    assert np.array(found["counts"]).shape == (10, 10) and np.array(found["counts"]).sum() == 40


def test_a_derived_column_that_chooses_no_head_is_no_assignment():
    """The places of own words in a user's lexicon name no rows of the server's."""
    few = load_federation("dialects", settings={"users": 4, "examples": 6})
    with train("oov_expansion", few, base_model="untrained-small", rounds=1, cohort=2, workers=0) as run:
        assert run.method.model.derived and assignments(run) is None


def test_users_without_test_examples_are_left_out():
    few = load_federation("dialects", settings={"users": 12, "examples": 2})
    with train("pfedkm", few, of="furl", clusters=3, rounds=1, workers=0) as run:
        assert assignments(run) is None


def test_a_projection_of_embeddings_excludes_personal_heads(federation):
    with train("fedembed", federation, assignment="personal", rounds=1, cohort=4, workers=0) as run:
        drawn = project_users(run)
        vectors = collect_user_vectors(run, range(40), only=["user.embedding"])
    spread = PCA(n_components=2, random_state=0).fit_transform(vectors)
    order = np.argsort(sample_users(run.federation, at_most=40, seed=0))
    assert np.allclose(np.abs(np.array(drawn["pca"])[order]), np.abs(spread), atol=1e-3)


def test_without_embeddings_users_are_not_assigned(federation):
    with train("preference", federation, rounds=1, cohort=4, workers=0) as run:
        assert assignments(run) is None


def results():
    run = {"seed": 0, "test": {"group_f1": {"0": 0.9, "1": 0.5, "2": 0.7}}}
    run["assigned"] = {
        "how": "by the method",
        "groups": ["a", "b", "c"],
        "counts": [[6, 0], [0, 3], [1, 2]],
        "recovered": 0.75,
    }
    other = {"seed": 0, "test": {"group_f1": {"0": 0.8, "2": 0.9}}}
    return {
        "data": {"groups": {"a": 6, "b": 3, "c": 3}},
        "configurations": {"one": {"title": "One", "runs": [run]}, "other": {"title": "Other", "runs": [other]}},
    }


def test_tables_by_size_and_of_assignments():
    assert by_share(results()) == {"50 %": [0], "25 %": [1, 2]}
    found = share_table(results())
    assert [[cell.text for cell in row] for row in found.rows] == [
        ["One", "90.00", "60.00"],
        ["Other", "80.00", "90.00"],
    ]
    assert [row[1].best for row in found.rows] == [True, False]
    (row,) = assignment_table(results()).rows
    assert [cell.text for cell in row] == ["One", "by the method", "2", "75.00"]
    assert confusion_plots(results())[0].title == "One, by the method"
    (plot,) = confusion_plots(results())
    assert np.allclose(plot.figure.data[0].z, [[100, 0], [0, 100], [100 / 3, 200 / 3]])


def test_without_differences_in_size_there_is_no_table():
    found = results()
    found["data"]["groups"] = {"a": 4, "b": 4, "c": 4}
    assert share_table(found) is None


def test_sizes_displayed_equal_share_a_column():
    found = results()
    found["data"]["groups"] = {"a": 201, "b": 100, "c": 99}
    assert by_share(found) == {"50 %": [0], "25 %": [1, 2]}
