"""Intervals and tests by cluster, compared with matrices and SciPy, and on simulated questions like PersonaMem's."""

import math

import numpy as np
import pytest
import scipy.stats

from utils.benchmarks import tasks
from utils.tables import significance
from utils.tables.columns import interval_words
from utils.tables.significance import interval, permutation_test, robust_mean, share_interval, t_test
from utils.tables.system_scores import System


def by_matrices(values, clusters, strata=None):
    """Return the mean of the strata's means, with CR2 standard error and degrees of freedom by Bell & McCaffrey's
    definition for regressions, here on a 0/1 column per stratum; `strata` has each value's stratum, None for one."""
    values, clusters = np.asarray(values, float), np.asarray(clusters)
    strata = np.zeros(len(values)) if strata is None else np.asarray(strata)
    design = (strata[:, None] == np.unique(strata)).astype(float)
    bread = np.linalg.inv(design.T @ design)
    weights = design @ bread @ np.full(design.shape[1], 1 / design.shape[1])
    residual_maker = np.eye(len(values)) - design @ bread @ design.T
    columns, variance = [], 0.0
    for cluster in dict.fromkeys(clusters.tolist()):
        rows = np.flatnonzero(clusters == cluster)
        eigenvalues, vectors = np.linalg.eigh(residual_maker[np.ix_(rows, rows)])
        adjust = vectors @ np.diag(eigenvalues**-0.5) @ vectors.T
        column = residual_maker[:, rows] @ adjust @ weights[rows]
        variance += (column @ values) ** 2
        columns.append(column)
    gram = np.array(columns) @ np.array(columns).T
    return weights @ values, math.sqrt(variance), np.trace(gram) ** 2 / (gram**2).sum()


def limits_of_the_logit(values, clusters):
    """Use the degrees of freedom by definition, or 2 V² / var(V) - 1 if fewer, where V is a sum over clusters."""
    mean, error, degrees = by_matrices(values, clusters)
    values, clusters = np.asarray(values), np.asarray(clusters)
    members = [values[clusters == one] for one in np.unique(clusters)]
    parts = [sum(its - mean) ** 2 / (1 - len(its) / len(values)) for its in members]
    observed = 2 * sum(parts) ** 2 / max(len(parts) * np.var(parts), 1e-9 * sum(parts) ** 2) - 1
    t = scipy.stats.t.ppf(0.975, min(degrees, max(1, observed)))
    odds, factor = mean / (1 - mean), math.exp(t * error / (mean * (1 - mean)))
    return 1 / (1 + factor / odds), 1 / (1 + 1 / factor / odds)


def unequal(seed, sizes=(1, 2, 2, 5, 9, 14)):
    dice = np.random.default_rng(seed)
    clusters = [str(number) for number, size in enumerate(sizes) for _ in range(size)]
    order = dice.permutation(len(clusters))
    return dice.integers(0, 2, len(clusters)).tolist(), [clusters[place] for place in order]


@pytest.mark.parametrize("seed", range(3))
def test_unequal_clusters_have_the_general_formula(seed):
    values, clusters = unequal(seed)
    its = robust_mean([values], [clusters])
    assert (its.mean, its.error, its.degrees) == pytest.approx(by_matrices(values, clusters))
    assert share_interval(values, clusters) == pytest.approx(limits_of_the_logit(values, clusters))
    differences = [value - (number % 3 == 0) for number, value in enumerate(values)]
    mean, error, degrees = by_matrices(differences, clusters)
    assert t_test([differences], [clusters]) == pytest.approx(2 * scipy.stats.t.sf(abs(mean) / error, degrees))
    half = scipy.stats.t.ppf(0.975, degrees) * error
    assert interval([differences], [clusters]) == pytest.approx((mean - half, mean + half))


@pytest.mark.parametrize("seed", range(3))
def test_strata_that_share_clusters_have_the_general_formula(seed):
    """As in a macro average over categories, if a user asks questions in several."""
    dice = np.random.default_rng(seed)
    strata, clusters = np.repeat([0, 1, 2], [9, 14, 30]), dice.integers(0, 8, 53).astype(str)
    values = dice.beta(2, 6, 53) + dice.normal(size=8)[clusters.astype(int)] / 5
    parts, whose = ([its[strata == one].tolist() for one in range(3)] for its in (values, clusters))
    its, (mean, error, degrees) = robust_mean(parts, whose), by_matrices(values, clusters, strata)
    assert (its.mean, its.error, its.degrees) == pytest.approx((mean, error, degrees))
    assert t_test(parts, whose) == pytest.approx(2 * scipy.stats.t.sf(abs(mean) / error, degrees))
    flips = [values[clusters == one] / np.bincount(strata)[strata[clusters == one]] for one in dict.fromkeys(clusters)]
    expected = significance.permutation_test([[significance.rounded(math.fsum(one)) for one in flips]])
    assert permutation_test(parts, whose) == expected
    assert robust_mean([[1, 0], [1, 0]], [["a", "b"], ["a", "a"]]) is None  # the second stratum is one user's


def test_one_question_a_cluster_is_the_usual_statistic():
    values, clusters = [1, 0, 0, 1, 1, 0, 1, -1], list("abcdefgh")
    expected = scipy.stats.ttest_1samp(values, 0)
    assert t_test([values], [clusters]) == pytest.approx(expected.pvalue)
    assert interval([values], [clusters]) == pytest.approx(tuple(expected.confidence_interval()))
    assert permutation_test([values], [clusters]) == significance.permutation_test([values])
    assert share_interval([1] * 8 + [0] * 2, list("abcdefghij")) == significance.share_interval([1] * 8 + [0] * 2)


@pytest.mark.parametrize(
    ("values", "clusters", "p"),
    [([], [], None), ([1, 0, 1], list("aaa"), None), ([0, 0, 0], list("aaa"), None), ([1, 1, 1], list("aab"), None),
     ([1, 0, 0, 1], list("aabb"), None), ([0, 0, 0], list("aab"), 1.0)],
)  # fmt: skip
def test_undefined_values_are_none(values, clusters, p):
    assert t_test([values], [clusters]) == p
    assert interval([values], [clusters]) is None
    assert share_interval(values, clusters) is (None if values else significance.share_interval([]))


def test_limits_stay_in_range_and_swapping_systems_negates_them():
    low, high = share_interval([1] * 9 + [0], list("aaaaabbbbb"))
    assert 0 < low < 0.9 < high <= 1
    values, clusters = [1, 1, 1, 0, 0], list("aaabb")
    assert interval([values], [clusters], None, -1.0, 1.0) == (-1.0, 1.0)
    values, clusters = unequal(7)
    low, high = interval([values], [clusters])
    negated = [-value for value in values]
    assert interval([negated], [clusters]) == (-high, -low)
    assert t_test([negated], [clusters]) == t_test([values], [clusters])


# Simulated questions: personas of unequal sizes, questions asked in pairs


BETTER = 0.08  # by so much is the third system right more often


def three_systems(dice, personas, questions, spread, share, effect):
    """Return right (1) or wrong answers of three systems, and personas; an answer is right above a latent threshold.

    The share `effect` of the latent variance is the persona's; the pair's part is such that half of it is shared, and
    the rest is the question's. The first two systems are alike and share half of each part; the third is the second
    with a lower threshold. `spread` is the deviation of personas' sizes divided by their mean.
    """
    pairs = math.ceil(questions / 2)
    weights = dice.gamma(1 / spread**2, size=personas)
    owner = np.repeat(np.arange(personas), 1 + dice.multinomial(pairs - personas, weights / weights.sum()))

    def part(variance, *shape):
        return math.sqrt(variance / 2) * (dice.normal(size=shape) + dice.normal(size=(2, *shape)))

    latent = part(effect, personas)[:, owner, None] + part(0.5 - effect, pairs)[:, :, None] + part(0.5, pairs, 2)
    first, second = latent.reshape(2, -1)[:, :questions]
    threshold, lower = scipy.stats.norm.ppf([1 - share, 1 - share - BETTER])
    right = [first > threshold, second > threshold, second > lower]
    return np.array(right, dtype=int), np.repeat(owner, 2)[:questions].tolist()


def simulate(runs, seed, *design, flips=99):
    """Return shares of runs: with the true share in its interval by question, and by persona; with the true difference
    in its interval; with equal systems distinguished by questions' t-test, personas' t-test, and sign flips. Also
    return a pair's correlation.
    """
    dice = np.random.default_rng(seed)
    share, found, pairs = design[3], [], []
    for _ in range(runs):
        (first, second, third), personas = three_systems(dice, *design)
        n, differences = len(first), (second - first).tolist()
        pairs.append([first[: n // 2 * 2 : 2], first[1::2]])
        naive = abs(first.mean() - share) <= 1.96 * math.sqrt(share * (1 - share) / n)  # Wilson's interval holds it
        low, high = share_interval(first.tolist(), personas) or (math.nan, math.nan)
        least, most = interval([(third - first).tolist()], [personas]) or (math.nan, math.nan)
        by_question = abs(np.mean(differences)) > 2 * np.std(differences, ddof=1) / math.sqrt(n)
        by_persona = t_test([differences], [personas])
        flipped = permutation_test([differences], [personas], flips)
        figures = (naive, low <= share <= high, least <= BETTER <= most, by_question)
        found.append((*figures, by_persona is not None and by_persona < 0.05, flipped <= 0.05))
    return [*np.mean(found, axis=0), np.corrcoef(np.hstack(pairs))[0, 1]]


@pytest.mark.parametrize(
    "design",
    [
        (20, 589, 0.5, 0.7, 0.15),
        (14, 57, 0.5, 0.4, 0.05),
    ],
    ids=["589 questions of unequal personas", "a type of 57 questions"],
)
def test_intervals_and_tests_hold_on_questions_like_personamem_s(design):
    """Tests by single questions fail: their intervals are too narrow, and their t-test finds false differences."""
    naive, share, difference, by_question, by_persona, flipped, correlation = simulate(1500, 28, *design)
    assert 0.28 < correlation < 0.42
    assert 0.935 <= share <= 0.965 and 0.935 <= difference <= 0.965
    assert by_persona <= 0.06 and flipped <= 0.06
    assert naive < 0.92 and by_question > 0.065


def share_covered(runs, seed, personas, questions, spread, share, correlation):
    """Return the share of runs with the true share in its interval; personas' shares are beta with this correlation."""
    dice, found = np.random.default_rng(seed), []
    for _ in range(runs):
        weights = dice.gamma(1 / spread**2, size=personas)
        owner = np.repeat(np.arange(personas), 1 + dice.multinomial(questions - personas, weights / weights.sum()))
        own = dice.beta(*(np.array([share, 1 - share]) * (1 / correlation - 1)), personas)
        right = (dice.random(questions) < own[owner]).astype(int)
        low, high = share_interval(right.tolist(), owner.tolist()) or (math.nan, math.nan)
        found.append(low <= share <= high)
    return np.mean(found)


@pytest.mark.parametrize("share", [0.9, 0.95])
def test_the_interval_of_a_high_share_holds_where_personas_differ_much(share):
    """In 93.4 to 96.3% of 3,000 runs each; Wilson's with the effective number in 91 and 85%."""
    assert 0.93 <= share_covered(1000, 4, 20, 589, 0.3, share, 0.4) <= 0.97


@pytest.mark.parametrize(
    ("task", "metric", "users", "expected"),
    [
        ("PersonaMem-32k", "accuracy", "ab", "Wilson intervals"),
        ("PersonaMem-32k", "accuracy", "aa", "cluster-robust intervals by persona_id"),
        ("LaMP-QA", "aspect", "ab", "bootstrap intervals over questions"),
    ],
)
def test_intervals_are_called_by_their_names(task, metric, users, expected):
    task = tasks()[task]
    its = {"group": task.groups[0], "details": [{"score": 2}], "answered": True, "score": 1.0}
    entries = [{**its, "id": str(number), "cluster": user} for number, user in enumerate(users)]
    system = System("S", task, metric, {"s.json": {"per_question_scores": entries}})
    assert interval_words(system) == expected
