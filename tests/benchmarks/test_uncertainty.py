"""A judge's uncertainty by hand: expectations, means and Krippendorff's alpha."""

import math

import pytest

from utils.benchmarks.lampqa.aspects import question_score, score_of
from utils.benchmarks.scoring import average, expected_value, no_answer, summarize_drawn


def test_tiny_likelihoods_give_an_expectation():
    sure = expected_value({"0": -3000.0, "1": -2000.0, "2": -1000.0})
    assert (sure["value"], sure["entropy"], sure["outside"]) == (2, 0, 1)
    even = expected_value(dict.fromkeys("012", math.log(1 / 3) + 1e-7))  # as of rounded numbers with a sum above 1
    assert even["value"] == pytest.approx(1) and even["entropy"] == pytest.approx(math.log2(3)) and not even["outside"]


def drawn(*values):
    return [{"value": value} | ({"reason": f"nothing {i}"} if value is None else {}) for i, value in enumerate(values)]


def test_a_mean_covers_only_existing_verdicts():
    assert average(drawn(2, None, 1)) == {"value": 1.5, "drawn": [2, None, 1], "spread": pytest.approx(0.5**0.5)}
    assert average(drawn(None, 1)) == {"value": 1, "drawn": [None, 1], "spread": None}
    missing = {"value": None, "reason": "nothing 0", "drawn": [None, None], "spread": None}
    assert average(drawn(None, None)) == missing
    assert average([no_answer([False])] * 3) == no_answer([False])


def test_fractional_scores_need_weighted_or_sampled_verdicts():
    details = [{"aspect": "a", "score": 1.5, "drawn": [1, 2]}, {"aspect": "b", "score": 0.5, "drawn": [0, 1]}]
    assert score_of(details) == 0.5
    with pytest.raises(ValueError, match=r"^1\.5 is not a verdict: the integer 0, 1 or 2, or None$"):
        score_of([{"aspect": "a", "score": 1.5}])
    for wrong in (2.01, -0.1, True, float("nan"), "1"):
        with pytest.raises(ValueError, match="is not a verdict: a number from 0 to 2, or None"):
            score_of([{"aspect": "a", "score": wrong, "probabilities": {}}])
    with pytest.raises(ValueError, match=r"^a question without aspects has no score$"):
        question_score([])


def alpha(units):
    details = [{"drawn": list(unit), "spread": None} for unit in units]
    return summarize_drawn([{"details": details}], 4)["krippendorff_alpha_interval"]


def test_alpha_matches_hand_arithmetic():
    # Two units, 0 and 1, 2 and 2. Observed: (1 + 1) / 1 and 0. Expected, over all ordered pairs of 0 1 2 2:
    # 2 * (1 + 4 + 4 + 1 + 1 + 0) = 22, so 1 - 3 * 2 / 22.
    assert alpha([[0, 1], [2, 2]]) == pytest.approx(1 - 6 / 22)
    assert alpha([[0, 0, 0], [2, 2, 2]]) == 1
    assert alpha([[0, 1], [1, None], [None, None], [2, 2]]) == alpha([[0, 1], [2, 2]])
    for units in ([], [[1, None], [0]], [[1, 1], [1, 1, 1]]):
        assert alpha(units) is None
