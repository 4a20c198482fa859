"""Means corrected by people's scores: by hand, against SciPy, and how often their intervals hold the truth."""

import math

import numpy as np
import pytest
import scipy.stats

from utils.tables.prediction_powered import corrected, further_to_halve, half_width, mean_of, plain_mean

# By hand


# Three times the same four questions, of which two differ: a judge counts where five do.
HUMAN, JUDGED, OTHERS = (
    np.array([0.0, 0.5, 0.5, 1.0] * 3),
    np.array([0.25, 0.5, 1.0, 1.0] * 3),
    np.array([0.5, 1.0] * 3),
)


def test_the_estimate_by_hand():
    # Around the judge's mean of four, 11/16, the products with people's scores add up to 3/8 and the squares to 27/64.
    # So the slope is 8/9, and lambda a third of it, for n / N = 2.
    part = corrected(HUMAN, JUDGED, OTHERS)
    assert part.weight == pytest.approx(8 / 27)
    assert part.mean == pytest.approx(0.5 + 8 / 27 * (3 / 4 - 11 / 16))
    residuals = HUMAN - 8 / 27 * JUDGED
    first = sum((residuals - residuals.mean()) ** 2) / (12 - 2) / 12
    every = [*JUDGED, *OTHERS]
    second = (8 / 27) ** 2 * sum((f - sum(every) / 18) ** 2 for f in every) / 17 / 6
    assert part.variances == [(pytest.approx(first), 10), (pytest.approx(second), 17)]
    degrees = (first + second) ** 2 / (first**2 / 10 + second**2 / 17)
    assert half_width([part]) == pytest.approx(scipy.stats.t.ppf(0.975, degrees) * math.sqrt(first + second))


def test_the_mean_is_that_of_the_authors_code_at_the_same_weight():
    """ppi-python 0.2.3: ppi_mean_pointestimate(Y, f, u, lam=...)."""
    human = np.array([1, 0.75, 0.5, 0.5, 0.25, 0, 0.625, 1, 0.375, 0.5])
    judged = np.array([1, 1, 0.75, 0.5, 0.5, 0.25, 0.625, 1, 0.25, 0.875])
    others = [0.5, 0.75, 1, 1, 0.25, 0.375, 0.5, 0.75, 0.875, 1, 0.625, 0.5, 0.75, 1, 0, 0.25, 0.5, 0.75, 0.75, 1]
    part = corrected(human, judged, np.array(others))
    assert part.weight == pytest.approx(0.6005291005291002)
    assert part.mean == pytest.approx(0.53874008, abs=5e-9)
    # Its interval, by normal quantiles and sums of squares over n, is [0.40589479, 0.67158537]: narrower than by t.
    residuals, whole = human - part.weight * judged, (0.67158537 - 0.40589479) / 2
    assert whole == pytest.approx(1.959964 * math.sqrt(residuals.var() / 10 + part.weight**2 * np.var(others) / 20))
    assert half_width([part]) > 1.1 * whole


def test_where_people_scored_all_it_is_their_mean():
    part = corrected(HUMAN, JUDGED, np.array([]))
    low, high = scipy.stats.ttest_1samp(HUMAN, 0).confidence_interval()
    assert part.weight == 0
    assert (part.mean - half_width([part]), part.mean + half_width([part])) == pytest.approx((low, high))


@pytest.mark.parametrize(
    ("judged", "weight"), [(np.full(12, 0.5), 0), (1 - HUMAN, 0), (HUMAN / 9 + np.array([0, 0.01] * 6), 1)]
)
def test_the_weight_stays_between_people_alone_and_the_judge_s_mean(judged, weight):
    """A judge that says always the same, the contrary, or nearly the same on a smaller scale."""
    part = corrected(HUMAN, judged, np.array([0.5, 1.0, 0.0, 0.25] * 10))
    assert part.weight == weight
    assert part.mean == pytest.approx(0.5 if weight == 0 else 0.5 + 0.4375 - judged.mean())


def test_the_mean_over_strata_is_unweighted():
    parts = [plain_mean(np.array([0.1, 0.2, 0.6])), plain_mean(np.array([-0.1, -0.1]))]
    assert mean_of(parts) == pytest.approx(0.1)
    assert half_width(parts) == pytest.approx(half_width(parts[:1]) / 2)
    assert half_width(parts[1:]) == 0


def test_what_has_no_answer_counts_0():
    part, whole = corrected(HUMAN, JUDGED, OTHERS), corrected(HUMAN, JUDGED, OTHERS, unanswered=6)
    assert whole.mean == pytest.approx(part.mean * 6 / 8)
    *scaled, (between, freedom) = whole.variances
    assert [variance for variance, _ in scaled] == pytest.approx([its * 36 / 64 for its, _ in part.variances])
    assert (between, freedom) == (pytest.approx(part.mean**2 * 6 / 8 * 2 / 8 / 24), 23)
    # And no question that people score takes from that.
    assert (whole.shrinking, whole.fixed) == pytest.approx((part.shrinking * 36 / 64, part.fixed * 36 / 64 + between))


# Simulated studies. A question is easy or hard; people's verdict on each of its four aspects is drawn by that.

STUDIES = 2000
EASE = [(2, 3), (3, 2), (1, 3)]  # by stratum, of a beta distribution


def judge_fairly(human, ease, dice):
    return np.where(dice.random(human.shape) < 0.8, human, dice.binomial(2, ease, human.shape))


def judge_leniently(human, ease, dice):
    return np.minimum(2, human + (dice.random(human.shape) < 0.4))


def judge_noisily(human, ease, dice):
    return np.where(dice.random(human.shape) < 0.3, human, dice.integers(0, 3, human.shape))


JUDGES = [judge_fairly, judge_leniently, judge_noisily]


def made_up(judge, stratum, questions, dice, studies=STUDIES):
    """People's and the judge's scores, a row a study."""
    ease = dice.beta(*EASE[stratum], (studies, questions, 1))
    human = dice.binomial(2, ease, (studies, questions, 4))
    return human.mean(axis=-1) / 2, judge(human, ease, dice).mean(axis=-1) / 2


def true_mean(strata):
    return sum(a / (a + b) for a, b in EASE[:strata]) / strata


def true_bias(judge, strata):
    dice = np.random.default_rng(1)
    scores = (made_up(judge, stratum, 1000, dice, studies=1000) for stratum in range(strata))
    return np.mean([judged.mean() - human.mean() for human, judged in scores])


ONE = [[(100, 400)], [(30, 400)], [(100, 150)]]  # questions that people scored, of all
SEVERAL = [[(15, 100)] * 3, [(20, 60), (30, 90), (40, 60)]]


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("sizes", [*ONE, *SEVERAL], ids=str)
def test_an_interval_of_95_percent_holds_the_truth_in_95_percent_of_studies(sizes, judge):
    dice = np.random.default_rng(19)
    parts, differences, people = [], [], []
    for stratum, (seen, questions) in enumerate(sizes):
        human, judged = made_up(judge, stratum, questions, dice)
        parts.append(corrected(human[:, :seen], judged[:, :seen], judged[:, seen:]))
        differences.append(plain_mean(judged[:, :seen] - human[:, :seen]))
        people.append(plain_mean(human[:, :seen]))
    assert coverage(parts, true_mean(len(sizes))) == pytest.approx(0.95, abs=0.015)
    assert coverage(differences, true_bias(judge, len(sizes))) == pytest.approx(0.95, abs=0.015)
    assert mean_of(parts).mean() == pytest.approx(true_mean(len(sizes)), abs=0.003)
    narrower = half_width(parts).mean() / half_width(people).mean()
    assert narrower < (1 if judge is judge_noisily else 0.9)  # a judge does not harm, and a good one helps


def coverage(parts, truth):
    return np.mean(abs(mean_of(parts) - truth) <= half_width(parts))


def test_the_judge_s_own_mean_is_none_of_these():
    _, judged = made_up(judge_leniently, 0, 400, np.random.default_rng(19))
    assert coverage([plain_mean(judged)], true_mean(1)) == 0


def test_questions_without_an_answer_are_in_the_interval_too():
    """One in four of 200; people saw 40 of the others."""
    dice = np.random.default_rng(19)
    hits = 0
    for answered in dice.binomial(200, 0.75, STUDIES):
        [human], [judged] = made_up(judge_fairly, 0, answered, dice, studies=1)
        part = corrected(human[:40], judged[:40], judged[40:], 200 - answered)
        hits += abs(part.mean - 0.75 * true_mean(1)) <= half_width([part])
    assert hits / STUDIES == pytest.approx(0.95, abs=0.015)


# A judge that errs rarely and one way, on 1,000 questions: whoever sees a few of them sees a perfect judge


def overrate_aspects(human, dice):
    """One aspect in twenty gets one more."""
    return np.minimum(2, human + (dice.random(human.shape) < 0.05))


def overrate_questions(human, dice):
    """One question in twenty gets full marks."""
    return np.where(dice.random((*human.shape[:2], 1)) < 0.05, 2, human)


def by_the_formula(human, judged, others):
    """PPI++ and its interval by t, as the module says, but for any judge: does it contain the mean, 0.4?"""
    seen, unseen = human.shape[-1], others.shape[-1]
    covariances = [np.cov(its) for its in np.stack([human, judged], axis=1)]
    slopes = np.array([both[0, 1] / both[1, 1] if both[1, 1] else 0 for both in covariances])
    weights = np.clip(slopes / (1 + seen / unseen), 0, 1)[:, None]
    estimates = (human - weights * judged).mean(axis=-1) + weights[:, 0] * others.mean(axis=-1)
    first = (human - weights * judged).var(axis=-1) / (seen - 2)
    second = weights[:, 0] ** 2 * others.var(axis=-1) / unseen
    with np.errstate(invalid="ignore"):  # all scores seen are alike
        degrees = (first + second) ** 2 / (first**2 / (seen - 2) + second**2 / (seen + unseen - 1))
    return np.mean(abs(estimates - 0.4) <= scipy.stats.t.ppf(0.975, degrees) * np.sqrt(first + second))


@pytest.mark.parametrize(
    ("errs", "trusted"), [(overrate_aspects, {5: 0.67, 10: 0.85}), (overrate_questions, {5: 0.26, 10: 0.42, 30: 0.75})]
)
def test_what_a_judge_gets_wrong_rarely_is_in_the_interval(errs, trusted):
    dice = np.random.default_rng(0)
    human = dice.binomial(2, dice.beta(2, 3, (STUDIES, 1000, 1)), (STUDIES, 1000, 4))
    human, judged = human.mean(axis=-1) / 2, errs(human, dice).mean(axis=-1) / 2
    for seen in (5, 10, 20, 30, 50, 100, 200):
        its = human[:, :seen], judged[:, :seen], judged[:, seen:]
        part = corrected(*its)
        assert coverage([part], 0.4) == pytest.approx(0.95, abs=0.02)
        if seen in trusted:  # without the rule of five
            assert by_the_formula(*its) == pytest.approx(trusted[seen], abs=0.02)
        if seen == 100:
            assert by_the_formula(*its) > 0.91
            assert (part.weight > 0).mean() > 0.4


def test_the_difference_of_two_systems_that_one_judge_rates_differently():
    """Alike to people; the judge overrates one aspect in twenty of the first system's answers alone."""
    dice = np.random.default_rng(0)
    human = dice.binomial(2, dice.beta(2, 3, (1, STUDIES, 1000, 1)), (2, STUDIES, 1000, 4))
    judged = np.stack([overrate_aspects(human[0], dice), human[1]])
    human, judged = ((first - second).mean(axis=-1) / 2 for first, second in (human, judged))
    for seen in (5, 10, 30, 100):
        part = corrected(human[:, :seen], judged[:, :seen], judged[:, seen:])
        assert coverage([part], 0) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("differing", [0, 4, 5])
def test_a_judge_counts_where_it_differs_on_five_questions(differing):
    human = np.tile([0.25, 0.5, 0.75, 1.0], 15)
    judged = np.concatenate([human[:differing] - 0.125, human[differing:]])
    part = corrected(human, judged, np.tile(human, 10))
    low, high = scipy.stats.ttest_1samp(human, 0).confidence_interval()
    alone = (part.mean - half_width([part]), part.mean + half_width([part])) == pytest.approx((low, high))
    assert alone == (part.weight == 0) == (differing < 5)


@pytest.mark.parametrize("judged", [HUMAN + 0.25, 2 * HUMAN - 0.5])
def test_nor_does_a_judge_count_whose_scores_are_people_s_on_another_scale(judged):
    """On what people saw it looks perfect, however often it differs."""
    assert corrected(HUMAN, judged, np.tile(judged, 10)).weight == 0


# How many more


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("sizes", [[(60, 4000)], [(40, 2000), (60, 3000), (50, 2500)]], ids=str)
def test_with_so_many_more_the_interval_is_half_as_wide(sizes, judge):
    dice = np.random.default_rng(19)
    ratios = []
    for _ in range(60):
        now, then = [], []
        drawn = [made_up(judge, stratum, total, dice, studies=1) for stratum, (_, total) in enumerate(sizes)]
        for (human, judged), (seen, _) in zip(drawn, sizes, strict=True):
            now.append(corrected(human[0, :seen], judged[0, :seen], judged[0, seen:]))
        further = further_to_halve(now, sizes)
        times = 1 + further / sum(seen for seen, _ in sizes)
        for (human, judged), (seen, _) in zip(drawn, sizes, strict=True):
            more = round(seen * times)
            then.append(corrected(human[0, :more], judged[0, :more], judged[0, more:]))
        ratios.append(half_width(then) / half_width(now))
    assert np.mean(ratios) == pytest.approx(0.5, abs=0.03)


def test_more_than_there_are_is_none():
    human, judged = made_up(judge_fairly, 0, 100, np.random.default_rng(19), studies=1)
    part = corrected(human[0, :30], judged[0, :30], judged[0, 30:])
    assert further_to_halve([part], [(30, 100)]) is None
    assert further_to_halve([corrected(human[0], judged[0], judged[0, :0])], [(100, 100)]) is None


def test_without_a_judge_that_helps_four_times_as_many():
    part = corrected(HUMAN, np.full(12, 0.5), np.full(96, 0.5))
    assert further_to_halve([part], [(12, 100)]) == 36
    assert further_to_halve([part], [(12, 47)]) is None
    assert further_to_halve([part, part], [(12, 100), (12, 48)]) == 72
