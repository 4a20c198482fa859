"""The curve of best of N against enumeration of all choices, and its figure from score files."""

import random
from itertools import combinations
from statistics import fmean

import pytest
from scipy.stats import bootstrap

from utils import make_figures
from utils.benchmarks.lampqa.task import CATEGORIES
from utils.tables.best_of_n import expected_best, make_curve, shares_of_headroom


@pytest.mark.parametrize("number", [1, 2, 3, 5, 8])
def test_the_expectation_is_that_over_all_choices(number):
    """A missing answer is chosen only if there is nothing else; of equal scores the first wins."""
    judged, chosen_by = [0.2, 0.9, 0.5, 0.1, 0.0], [1.5, -2.0, 1.5, 3.0, None]

    def best(choice):
        return max(choice, key=lambda sample: (chosen_by[sample] is not None, chosen_by[sample] or 0, -sample))

    chosen = [judged[best(choice)] for choice in combinations(range(5), min(number, 5))]
    assert expected_best(judged, chosen_by, number) == pytest.approx(fmean(chosen), abs=1e-12)


def curve_of(scores, place=lambda key: {"group": CATEGORIES[key < 4]}, sign=1):
    """Return the curve of questions 0 to 9, of two groups, whose samples are chosen by these scores themselves."""
    entries = [{"id": str(key), **place(key), "score": samples[0]} for key, samples in enumerate(scores)]
    by_id = {str(key): samples for key, samples in enumerate(scores)}
    chosen_by = {key: [one if one is None else sign * one for one in row] for key, row in by_id.items()}
    return make_curve({"task": "LaMP-QA", "per_question_scores": entries}, by_id, chosen_by)


def test_own_categories_count_and_questions_without_one_do_not():
    """As in a table's macro average."""
    drawn = random.Random(0)
    judged = [[drawn.random() for _ in range(4)] for _ in range(24)]
    categories = [*(["ice"] * 8), *(["sea"] * 6), *([None] * 2)]

    def place(key):
        known = {"group": CATEGORIES[0], "subgroup": "rpg"}
        return known if key >= 16 else {"group": None, "subgroup": categories[key]}

    curve = curve_of(judged, place)
    for number, best in ((0, fmean), (2, max)):
        values = list(map(best, judged))
        assert curve.means[number] == pytest.approx(fmean(map(fmean, (values[:8], values[8:14], values[16:]))))


def test_the_curve_is_the_mean_over_groups_with_intervals_over_questions():
    drawn = random.Random(0)
    judged = [[drawn.random() for _ in range(4)] for _ in range(10)]
    judged[9][2] = None  # without a verdict
    curve = curve_of(judged)
    assert (curve.numbers, curve.num_fewer) == ([1, 2, 4], 1)
    known = [[score for score in samples if score is not None] for samples in judged]
    for place, best in ((0, fmean), (2, max)):
        values = list(map(best, known))
        mean = fmean([fmean(values[:4]), fmean(values[4:])])
        assert curve.means[place] == pytest.approx(mean)
        low, high = curve.intervals[place]
        average = lambda one, other, axis: (one.mean(axis) + other.mean(axis)) / 2  # noqa: E731
        found = bootstrap((values[:4], values[4:]), average, method="percentile", random_state=1).confidence_interval
        assert low == pytest.approx(found.low, abs=0.02) and high == pytest.approx(found.high, abs=0.02)


def test_the_share_of_the_headroom():
    """Of a perfect scorer all, of one that prefers the worst the (negative) loss, of equal scores none."""
    judged = [[0.1, 0.4, 0.7], [0.9, 0.3, 0.2]] * 5
    best, worst = curve_of(judged), curve_of(judged, sign=-1)
    mean, high, low = (fmean(fmean(map(of, combinations(row, 2))) for row in judged) for of in (fmean, max, min))
    assert shares_of_headroom(best, best) == [None, pytest.approx(1)]
    assert shares_of_headroom(worst, best) == [None, pytest.approx((low - mean) / (high - mean))]
    equal = curve_of([[0.1, 0.1, 0.1]] * 10)
    assert shares_of_headroom(equal, equal) == [None, None]


def test_of_errors_the_lowest_is_the_best():
    """`read_rewards` makes them negative."""
    assert curve_of([[3.0, 1.0, 2.0, 4.0]] * 10, sign=-1).means == [2.5, pytest.approx(10 / 6), 1]


def test_other_input_is_refused(tmp_path, capsys):
    words = ["--figure", "best_of_n", "--response_addr", "x.json", "--output_addr", str(tmp_path / "figure")]
    with pytest.raises(make_figures.UserError, match="--figure best_of_n: needs --score_addr, --system"):
        make_figures.main(words)
