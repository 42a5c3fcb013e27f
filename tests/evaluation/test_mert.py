"""Minimum error rate training: by hand, and against dense scans."""

import math

import numpy as np
import pytest

from homespun.core.errors import InputError
from homespun.evaluation.bleu import bleu_counts, corpus_bleu
from homespun.evaluation.mert import grid_counts, line_search, tune, tune_on_grid

COORDINATES = [(1.0, 0.0), (0.0, 1.0)]


def slow_choice(features, lam, gamma):
    """The candidate of highest score; the first of equals; -inf never wins against a number."""
    best, highest = 0, -math.inf
    for place, (first, inverse, length) in enumerate(features):
        score = -math.inf if math.inf in (-first, -inverse, -length) else (first + lam * inverse) + gamma * length
        if score > highest:
            best, highest = place, score
    return best


def slow_bleu(features, counts, lam, gamma, *, order=4, smoothing="exp"):
    total = sum(other[slow_choice(one, lam, gamma)] for one, other in zip(features, counts, strict=True))
    return float(corpus_bleu(total, order=order, smoothing=smoothing))


def slow_corners(features, origin, direction):
    """All steps at which two candidates of a question have the same score."""
    found = set()
    for one in features:
        one = one[np.isfinite(one).all(axis=1)]
        height, rise = one @ (1.0, *origin), one @ (0.0, *direction)
        for a in range(len(one)):
            for b in range(a):
                if rise[a] != rise[b]:
                    found.add((height[b] - height[a]) / (rise[a] - rise[b]))
    return sorted(found)


def problem(seed, *, questions=6, candidates=7, words=4, ragged=True):
    """Random replies over few words, with random log probabilities."""
    draw = np.random.default_rng(seed)
    features, counts = [], []
    for _ in range(questions):
        reference = [f"w{word}" for word in draw.integers(0, words, draw.integers(1, 8))]
        size = int(draw.integers(1, candidates + 1)) if ragged else candidates
        replies = [[f"w{word}" for word in draw.integers(0, words, draw.integers(0, 9))] for _ in range(size)]
        length = np.array([len(reply) for reply in replies], dtype=float)
        features.append(np.stack([-2 * length + draw.normal(0, 3, size), draw.normal(-9, 3, size), length], axis=1))
        counts.append(np.array([bleu_counts(reply, reference) for reply in replies]))
    return features, counts


def two_questions():
    """Along λ at γ = 0, the first question changes its reply at λ = 2, and the second at λ = 1 and λ = 4.

    First: -1 - 3λ, -3 - 2λ. Second: 0 - 4λ, -1 - 3λ, -9 - λ. Words that match, of 4: 1, 3 and 1, 2, 0.
    """

    def matching(count):
        return bleu_counts(["a"] * count + ["x"] * (4 - count), ["a", "a", "a", "b"])

    features = [np.array([[-1.0, -3, 4], [-3, -2, 4]]), np.array([[0.0, -4, 4], [-1, -3, 4], [-9, -1, 4]])]
    counts = [np.array([matching(1), matching(3)]), np.array([matching(1), matching(2), matching(0)])]
    return features, counts


def test_a_line_by_hand():
    """Matches of 8 words: 2 below 1, 3 up to 2, 5 up to 4, then 3. The middle of the best interval is 3."""
    features, counts = two_questions()
    scan = [slow_bleu(features, counts, lam, 0, order=1) for lam in (0.5, 1.5, 3, 5)]
    assert scan == pytest.approx([2 / 8, 3 / 8, 5 / 8, 3 / 8])
    found = line_search(features, counts, origin=(0, 0), direction=(1, 0), order=1)
    assert found == pytest.approx((3, 5 / 8))
    assert line_search(features, counts, origin=(0, 0), direction=(2, 0), order=1) == pytest.approx((1.5, 5 / 8))
    assert line_search(features, counts, origin=(5, 0), direction=(-1, 0), order=1) == pytest.approx((2, 5 / 8))
    within = line_search(features, counts, origin=(0, 0), direction=(1, 0), low=0, high=1.5, order=1)
    assert within == pytest.approx((1.25, 3 / 8))
    below = line_search(features, counts, origin=(0, 0), direction=(1, 0), low=-1, high=0.5, order=1)
    assert below == pytest.approx((-0.25, 2 / 8))
    assert tune(features, counts, order=1).bleu == pytest.approx(5 / 8)


def test_the_grid_by_hand():
    """At λ = 1, 2 and 4 two candidates tie, and the first of them wins."""
    features, counts = two_questions()
    total = grid_counts(features, counts, lambdas=[0, 1, 1.5, 2, 3, 4, 5], gammas=[0, -1])
    assert total.shape == (7, 2, 10)
    assert total[:, 0, 0].tolist() == total[:, 1, 0].tolist() == [2, 2, 3, 3, 5, 5, 3]
    assert total[:, 0, 8:].tolist() == [[8, 8]] * 7
    found = tune_on_grid(total, lambdas=[0, 1, 1.5, 2, 3, 4, 5], gammas=[0, -1], order=1)
    assert (found.lam, found.gamma, found.bleu) == (3, 0, pytest.approx(5 / 8))  # of four equals: smallest weights


def test_an_unbounded_best_interval_ends_one_beyond_its_corner():
    """The longer reply wins for γ > 2; the other interval is as good for a reference that matches neither better."""
    features = [np.array([[0.0, 0, 1], [-2, 0, 2]])]
    worse, better = bleu_counts(["x"], ["a", "b"]), bleu_counts(["a", "b"], ["a", "b"])
    upwards = line_search(features, [np.array([worse, better])], origin=(0, 0), direction=(0, 1), order=1)
    assert upwards == (3, 1)
    downwards = line_search(features, [np.array([better, worse])], origin=(0, 0), direction=(0, 1), order=1)
    assert downwards == (1, 1)
    assert line_search(features, [np.array([better, better])], origin=(0, 0), direction=(0, 1)).step == 1


def test_of_equally_good_intervals_the_widest_wins_and_then_the_lowest():
    """The reply changes at γ = 1 and γ = 2; the first and the last are equally good."""
    features = [np.array([[0.0, 0, 0], [-1, 0, 1], [-3, 0, 2]])]
    good, bad = bleu_counts(["a"], ["a"]), bleu_counts(["x"], ["a"])
    for high, expected in ((5, 3.5), (3, 0.5), (2.5, 0.5)):
        found = line_search(
            features, [np.array([good, bad, good])], origin=(0, 0), direction=(0, 1), low=0, high=high, order=1
        )
        assert found == (expected, 1)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("rounded", [False, True])
def test_a_line_search_is_a_dense_scan(seed, rounded):
    """Rounded features have parallel and equal lines, and corners that several candidates and questions share."""
    features, counts = problem(seed)
    if rounded:
        features = [np.round(one) for one in features]
    draw = np.random.default_rng(seed)
    origin, direction = tuple(draw.normal(size=2)), tuple(draw.normal(size=2))
    for low, high in ((-np.inf, np.inf), (-0.7, 1.3), (0.2, np.inf)):
        found = line_search(features, counts, origin=origin, direction=direction, low=low, high=high)

        def bleu_at(step, along=direction, start=origin):
            lam, gamma = (one + step * other for one, other in zip(start, along, strict=True))
            return slow_bleu(features, counts, lam, gamma)

        corners = [one for one in slow_corners(features, origin, direction) if low < one < high]
        scan = [side for one in corners for side in (one - 1e-7, one + 1e-7) if low < side < high]
        ends = [one for one in (low, high) if np.isfinite(one)] + [-100.0, 100.0]
        scan += [one for one in [*np.linspace(-3, 3, 101), *ends] if low <= one <= high]
        assert low <= found.step <= high
        assert found.bleu == bleu_at(found.step) == pytest.approx(max(map(bleu_at, scan)), abs=1e-12)
        nearest = min((abs(one - found.step) for one in corners), default=1.0)
        assert nearest > 1e-9  # inside an interval


@pytest.mark.parametrize(("questions", "seed"), [(8, 0), (8, 1), (8, 2), (40, 14), (40, 23)])
def test_tuning_is_at_least_as_good_as_a_dense_grid(questions, seed):
    """Of 40 questions, the lines of the default grid alone miss the best point."""
    features, counts = problem(seed, questions=questions, candidates=8 if questions == 8 else 20, words=questions // 5)
    lambdas, gammas = np.linspace(0, 5, 401), np.linspace(-5, 5, 401)
    total = grid_counts(features, counts, lambdas=lambdas, gammas=gammas)
    on_grid = corpus_bleu(total, smoothing="exp")
    found = tune(features, counts)
    assert found.bleu >= on_grid.max()
    assert found.bleu == slow_bleu(features, counts, found.lam, found.gamma)
    assert 0 <= found.lam <= 5 and -5 <= found.gamma <= 5


@pytest.mark.parametrize("seed", range(4))
def test_a_coarse_grid_covers_its_lines(seed):
    features, counts = problem(seed, questions=10, candidates=9)
    lambdas, gammas = [0.0, 2.5], [-1.0, 0.5]
    found = tune(features, counts, lambdas=lambdas, gammas=gammas)
    rows = grid_counts(features, counts, lambdas=[0, *lambdas], gammas=np.linspace(-5, 5, 997))
    columns = grid_counts(features, counts, lambdas=np.linspace(0, 5, 997), gammas=[0, *gammas])
    for total in (rows, columns):
        assert found.bleu >= corpus_bleu(total, smoothing="exp").max()


@pytest.mark.parametrize("seed", range(3))
def test_grid_counts_are_those_of_the_slow_choice_and_add_up(seed):
    """Rounded features tie often."""
    features, counts = problem(seed)
    features = [np.round(one) for one in features]
    lambdas, gammas = [0, 0.5, 1, 2], [-2, -1, 0, 0.5, 2]
    total = grid_counts(features, counts, lambdas=lambdas, gammas=gammas)
    for row, lam in enumerate(lambdas):
        for column, gamma in enumerate(gammas):
            chosen = [slow_choice(one, lam, gamma) for one in features]
            expected = sum(other[place] for place, other in zip(chosen, counts, strict=True))
            assert total[row, column].tolist() == expected.tolist()
    clients = [
        grid_counts(features[part], counts[part], lambdas=lambdas, gammas=gammas)
        for part in (slice(0, 1), slice(1, 4), slice(4, None))
    ]
    assert np.array_equal(sum(clients), total)
    assert tune(features, counts, lambdas=lambdas, gammas=gammas).bleu >= corpus_bleu(total, smoothing="exp").max()


def test_a_tie_on_a_grid_point_counts():
    """At λ = 1 both questions tie and take their first replies, a combination that no other weight has."""
    good, bad = bleu_counts(["a"], ["a"]), bleu_counts(["x"], ["a"])
    features = [np.array([[-1.0, 0, 1], [0, -1, 1]]), np.array([[0.0, -1, 1], [-1, 0, 1]])]
    counts = [np.array([good, bad]), np.array([good, bad])]
    assert line_search(features, counts, origin=(0, 0), direction=(1, 0), order=1).bleu == pytest.approx(1 / 2)
    found = tune(features, counts, lambdas=[0, 1, 2], gammas=[0], order=1)
    assert (found.lam, found.gamma, found.bleu) == (1, 0, 1)


def test_impossible_candidates_never_win():
    good, bad = bleu_counts(["a"], ["a"]), bleu_counts(["x"], ["a"])
    features = [np.array([[-np.inf, 0, 9], [-1, -np.inf, 9], [-50, -50, 1]])]
    counts = [np.array([good, good, bad])]
    for direction in COORDINATES:
        assert line_search(features, counts, origin=(0, 0), direction=direction, order=1).bleu == 0
    assert tune(features, counts, order=1).bleu == 0
    nothing = [np.full((2, 3), -np.inf)]
    assert (
        grid_counts(nothing, [np.array([good, bad])], lambdas=[0, 1], gammas=[0])[:, 0].tolist() == [good.tolist()] * 2
    )
    assert tune([*features, *nothing], [*counts, np.array([good, bad])], order=1).bleu == pytest.approx(1 / 2)


def test_one_candidate_and_identical_candidates_leave_nothing_to_choose():
    good, bad = bleu_counts(["a"], ["a"]), bleu_counts(["x"], ["a"])
    one = tune([np.array([[-1.0, -2, 1]])], [good[None]], order=1)
    assert (one.lam, one.gamma, one.bleu) == (0, 0, 1)
    same = [np.tile([-1.0, -2.0, 3.0], (4, 1))]
    assert tune(same, [np.array([bad, good, good, good])], order=1).bleu == 0  # the first wins
    for direction in COORDINATES:
        assert line_search(same, [np.array([good, bad, bad, bad])], origin=(0, 0), direction=direction, order=1) == (
            0,
            1,
        )


def test_a_range_of_zero_switches_a_term_off():
    features, counts = problem(3, questions=10)
    found = tune(features, counts, lam_range=(0, 0))
    along = line_search(features, counts, origin=(0, 0), direction=(0, 1), low=-5, high=5)
    assert found.lam == 0 and found.bleu == along.bleu > slow_bleu(features, counts, 0, 0)
    free = tune(features, counts)
    assert free.bleu > found.bleu


def test_tuning_is_deterministic_and_reports_its_progress():
    features, counts = problem(1, questions=10)
    shown = []
    found = tune(features, counts, lambdas=[0, 1], gammas=[0, 1, 2], progress=shown.append)
    assert [one.done for one in shown] == sorted(one.done for one in shown)
    assert (shown[0].done, shown[-1].done, shown[-1].total) == (0, 26, 26)  # a grid, five lines, twenty starts
    assert found == tune(features, counts, lambdas=[0, 1], gammas=[0, 1, 2])


def test_wrong_input_is_rejected():
    features, counts = problem(0)
    for wrong in ([], features[:-1]):
        with pytest.raises(InputError, match="Expected as many, and at least one"):
            tune(wrong, [] if not wrong else counts)
    with pytest.raises(
        InputError, match=r"2 faults(.|\n)*question 0: no candidates(.|\n)*question 1: features that are"
    ):
        tune([np.zeros((0, 3)), np.full((1, 3), np.nan)], [np.zeros((0, 10)), np.zeros((1, 10))])
    with pytest.raises(InputError, match=r"question 0: features of shape \(2, 2\)"):
        grid_counts([np.zeros((2, 2))], [np.zeros((2, 10))], lambdas=[0], gammas=[0])
    with pytest.raises(InputError, match="include 0"):
        tune(features, counts, lam_range=(1, 2))
    with pytest.raises(InputError, match=r"lambdas from 0.0 to 9.0"):
        tune(features, counts, lambdas=[0, 9])
    with pytest.raises(InputError, match="direction other than zero"):
        line_search(features, counts, origin=(0, 0), direction=(0, 0))
    with pytest.raises(InputError, match="use the grid of"):
        tune_on_grid(np.zeros((2, 2, 10)), lambdas=[0], gammas=[0, 1])
