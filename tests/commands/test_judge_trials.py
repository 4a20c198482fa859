"""compare_evaluators.py --preferred and --systems: made-up pairs with known shares, and ranks against SciPy."""

import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import cohen_kappa_score
from test_clusters import limits_of_the_logit
from test_compare_evaluators import refusal, study  # noqa: F401

from utils.benchmarks.lampqa import task as lampqa
from utils.people.evaluator_tables import rank_correlations

PLACES = ["rpg", "law", "parenting"]  # a community of each category, in this order by question
GROUPS = {place: lampqa.COMMUNITIES[place] for place in PLACES}


def write(study, name, scores, strategy="direct", author=None, **judged):
    """Write scores, None for a missing verdict, by question number; `author` is how many questions share one."""
    entries = [
        {
            "id": f"q{number}", "question_sha256": f"hash of {number}", "answered": True, "score": score,
            "details": [{"aspect": "a", "score": 2 * score, "probabilities": {}} if strategy == "aspect"
                        else {"score": score}],
            "category": PLACES[number % 3], **({"cluster": f"user {number // author}"} if author else {}),
        }
        for number, score in enumerate(scores)
    ]  # fmt: skip
    head = {"strategy": strategy, "num_unanswered": 0}
    head |= {"verdicts": "probability"} if strategy == "aspect" else {}
    return study.write(name, {**head, "per_question_scores": entries}, **judged)


def wilson(share, number):
    """Return the roots of (p - share)² = z² p (1 - p) / n, by definition."""
    z = scipy.stats.norm.ppf(0.975) ** 2 / number
    return sorted(np.roots([1 + z, -2 * share - z, share**2]).real)


def made_up(seed, number=90):
    """Return chosen and rejected scores of five levels, with ties and missing verdicts."""
    dice = np.random.default_rng(seed)
    levels = [dice.integers(lowest, 5, number) / 4 for lowest in (1, 0)]
    return [[None if dice.random() < 0.05 else float(level) for level in row] for row in levels]


def rights_of(chosen, rejected):
    """Return 1, 0.5 or 0 by the number of each pair with both verdicts."""
    pairs = enumerate(zip(chosen, rejected, strict=True))
    return {i: 0.5 + 0.5 * np.sign(pair[0] - pair[1]) for i, pair in pairs if None not in pair}


@pytest.mark.parametrize("author", [None, 4])
def test_shares_and_intervals_are_those_of_independent_code(study, author):
    chosen, rejected = made_up(0)
    files = [write(study, f"{i}.json", scores, author=author) for i, scores in enumerate((chosen, rejected))]
    out, figures = study.run("--preferred", "Judge", *files)
    [row], rights = figures["judges"], rights_of(chosen, rejected)
    assert len({*rights.values()}) == 3 and len(rights) < 90
    assert (row["num_pairs"], row["num_left_out"]) == (len(rights), 90 - len(rights))
    assert row["num_ties"] == [*rights.values()].count(0.5)
    parts = {None: list(rights)} | {GROUPS[place]: [i for i in rights if i % 3 == n] for n, place in enumerate(PLACES)}
    for group, members in parts.items():
        part, values = row["groups"][group] if group else row, [rights[i] for i in members]
        assert part["share"] == pytest.approx(np.mean(values))
        users = [i // author for i in members] if author else None
        expected = limits_of_the_logit(values, users) if users else wilson(np.mean(values), len(values))
        assert part["interval"] == pytest.approx(list(expected))
    assert ("where no author is repeated" in out) is (author is not None)
    assert f"| Judge | direct | narrative (upper bound) | {len(rights)} | " in out
    assert "- Published: 75.94% by the best reward model (arXiv 2604.07343" in out
    assert "; that share counts ties as losses; here, they count half.\n" in out


def test_own_categories_are_columns_of_their_own(study, monkeypatch):
    """And a pair without a category is in no column but the first ones."""
    monkeypatch.setattr("test_judge_trials.PLACES", ["ice", "law", None])
    files = [write(study, f"{i}.json", scores) for i, scores in enumerate(([1, 1, 0.5, 0], [0, 1, 0.5, 0.25]))]
    out, figures = study.run("--preferred", "Judge", *files)
    [row] = figures["judges"]
    assert {group: part["num_pairs"] for group, part in row["groups"].items()} == {GROUPS["law"]: 1, "ice": 2}
    assert row["num_pairs"] == 4 and f"| 95% interval | {GROUPS['law']} | ice | Swap rate |" in out


def test_one_table_of_pointwise_pairwise_and_probable_verdicts(study, monkeypatch):
    """Only a judge that reads the rubric is an upper bound; files of one name are pooled."""
    monkeypatch.setitem(lampqa.METRICS, "blind", replace(lampqa.METRICS["direct"], needs=()))
    arguments = [
        ["Levels", write(study, "1", [1, 1, 0.5, 0]), write(study, "2", [0, 1, 0.5, 0.25])],
        ["Blind", write(study, "3", [1, 1, 0.5, 0], "blind"), write(study, "4", [0, 1, 0.5, 0.25], "blind")],
        ["Means", write(study, "5", [0.7, 0.61], "aspect"), write(study, "6", [0.2, 0.6], "aspect")],
        ["Orders", study.pairwise("7", {"q0": "win", "q1": "tie", "q2": "win"})],
        ["Orders", study.pairwise("8", {"q3": "loss", "q4": None, "q5": "tie"})],
    ]
    out, figures = study.run(*(word for words in arguments for word in ("--preferred", *words)))
    names = ("name", "saw", "num_pairs", "num_left_out", "num_ties", "share", "position_swap_rate")
    assert [[row[name] for name in names] for row in figures["judges"]] == [
        ["Levels", ["narrative"], 4, 0, 2, 0.5, None],
        ["Blind", [], 4, 0, 2, 0.5, None],
        ["Means", ["narrative", "rubric_aspects"], 2, 0, 0, 1, None],
        ["Orders", ["narrative"], 5, 1, 2, 0.6, 0.4],
    ]
    assert "| Blind | blind | – | 4 | 0 | 2 | 0.5000 | " in out
    assert "| Means | aspect, probability | narrative, rubric_aspects (upper bound) | 2 | 0 | 0 | 1.0000 | " in out
    assert "| – | – | 0.6000 [0.2307, 0.8824] | 0.4000 |\n" in out  # of each category, and the swap rate


def test_an_error_is_better_if_it_is_lower(study):
    head = {"task": "LaMP-3", "strategy": "MAE", "num_unanswered": 0}
    entry = {"id": "q", "question_sha256": "h", "answered": True, "group": None}
    files = [
        study.write(f"{error}.json", {**head, "per_question_scores": [
            {**entry, "score": error, "details": [{"reference": 3, "rating": 3 + error, "score": error}]}]})
        for error in (1, 2)
    ]  # fmt: skip
    assert study.run("--preferred", "Errors", *files)[1]["judges"][0]["share"] == 1


# Ranks of systems


def scores_of(seed, number=60, systems=5):
    """Return two judges' scores (question, system), which agree in part; some systems may tie."""
    dice = np.random.default_rng(seed)
    quality = dice.integers(0, 3, systems) / 4
    return [quality + dice.integers(0, 3, (number, systems)) / 4 for _ in range(2)]


@pytest.mark.parametrize("seed", range(5))
def test_rank_correlations_equal_scipys(seed):
    first, second = scores_of(seed, number=4)
    figures = rank_correlations(np.stack([first, second], axis=1), list("abcd"))
    means = first.mean(axis=0), second.mean(axis=0)
    assert figures["spearman"] == pytest.approx(scipy.stats.spearmanr(*means).statistic)
    assert figures["kendall"] == pytest.approx(scipy.stats.kendalltau(*means).statistic)


@pytest.mark.parametrize("size", [1, 4])
def test_intervals_equal_those_of_whole_resamples(size):
    """Draw questions, or users with all of their questions, one resample after the other."""
    first, second = scores_of(11)
    figures = rank_correlations(np.stack([first, second], axis=1), [str(i // size) for i in range(60)])
    dice, drawn = np.random.default_rng(1), []
    for _ in range(1000):
        rows = (dice.integers(0, 60 // size, 60 // size)[:, None] * size + np.arange(size)).ravel()
        means = first[rows].mean(axis=0).round(12), second[rows].mean(axis=0).round(12)
        drawn.append([scipy.stats.spearmanr(*means).statistic, scipy.stats.kendalltau(*means).statistic])
    for name, values in zip(("spearman", "kendall"), np.transpose(drawn), strict=True):
        assert figures[f"{name}_interval"] == pytest.approx(np.quantile(values, [0.025, 0.975]), abs=0.07)


def test_a_judge_without_an_order_has_no_correlation():
    figures = rank_correlations(np.array([[[1, 1, 1], [0, 0.5, 1]]] * 3), list("abc"))
    assert {*figures.values()} == {None}


def test_judges_of_systems_from_files(study):
    first, second = scores_of(3)
    files = [
        [write(study, f"{name}{i}.json", scores, strategy, author=2, responses=f"answers {i}", judge=name)
         for i, scores in enumerate(by_system.tolist())]
        for name, strategy, by_system in (("Level", "direct", first.T), ("Aspect", "aspect", second.T))
    ]  # fmt: skip
    entries = json.loads(files[0][2].read_text())
    entries["per_question_scores"][7] |= {"score": None, "details": [{"score": None}]}
    files[0][2].write_text(json.dumps(entries))
    out, figures = study.run("--systems", "Levels", *files[0], "--systems", "Aspects", *files[1])
    kept = [i for i in range(60) if i != 7]
    expected = scipy.stats.spearmanr(first[kept].mean(axis=0), second[kept].mean(axis=0)).statistic
    [pair] = figures["pairs"]
    assert (pair["judges"], pair["spearman"]) == (["Levels", "Aspects"], pytest.approx(expected))
    assert (figures["num_questions"], figures["num_left_out"], figures["num_clusters"]) == (59, 1, 30)
    means = [scores[kept].mean(axis=0) for scores in (first, second)]
    assert np.array(pair["means"]) == pytest.approx(np.array(means))
    assert f"- Levels and Aspects: Spearman's correlation {expected:+.4f} [" in out.replace("−", "-")
    assert "percentile bootstrap over 30 values of author with all their questions" in out
    assert f"| Level0 | {first[kept, 0].mean():.4f} | {second[kept, 0].mean():.4f} |\n" in out


def test_verdicts_of_two_judges_agree_as_sklearn_says(study):
    """Two judges' levels of two named systems; where one gave no verdict, there is none to compare."""
    dice = np.random.default_rng(4)
    files, levels = [], dice.integers(0, 5, (2, 2, 40)) / 4  # judge, system, question
    levels[1] = np.where(dice.random((2, 40)) < 0.7, levels[0], levels[1])
    for judge, by_system in zip("AB", levels, strict=True):
        scores = [[None if judge == "A" and i == 3 else float(x) for i, x in enumerate(row)] for row in by_system]
        files.append([write(study, f"{judge}{i}.json", row, judge=judge, responses=f"answers {i}")
                      for i, row in enumerate(scores)])  # fmt: skip
    out, figures = study.run("--systems", "A", files[0][0], f"RAG={files[0][1]}", "--systems", "B", *files[1])
    [pair] = figures["pairs"]
    verdicts, kept = pair["verdicts"], [i for i in range(40) if i != 3]
    first, second = ((4 * judge[:, kept]).astype(int).ravel() for judge in levels)
    assert (verdicts["num_questions"], verdicts["num_verdicts"]) == (39, 78)
    assert verdicts["same"] == pytest.approx((first == second).mean())
    assert verdicts["kappa"] == pytest.approx(cohen_kappa_score(first, second, weights="quadratic"))
    assert verdicts["kappa_interval"][0] < verdicts["kappa"] < verdicts["kappa_interval"][1]
    assert verdicts["alpha"] == pytest.approx(verdicts["kappa"], abs=0.02)  # both have nearly the same marginals
    assert figures["systems"] == ["A0", "RAG"] and "spearman" not in pair and "| RAG | " in out
    assert "Verdicts that both judges gave on the same part of the same response." in out and "Spearman" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--systems A 0.json 1.json 2.json", "--systems: a single evaluator has nothing to be compared with; add"),
        ("--systems A 0.json 1.json 2.json --systems B 3.json", "--systems 'B': has 1 file, but 'A' has 3; each"),
        ("--systems A 0.json 1.json 2.json --systems B 3.json 5.json 4.json", "5.json: its system 2 is system 3 in 2"),
        ("--systems A 0.json 1.json 2.json --systems B 3.json 4.json 6.json", "6.json: scores different answers from"),
        ("--systems A 0.json 1.json 2.json --systems B 3.json 4.json none.json", "--systems: no question has a score "),
        ("--systems A p.json 1.json 2.json --systems B 3.json 4.json 5.json", "p.json: its strategy is 'pairwise', wh"),
        ("--preferred A 0.json", "--preferred 'A': found 0.json of strategy direct, expected one pairwise file, "),
        ("--preferred A 0.json 1.json --preferred B 4.json 3.json", "4.json: its system 1 is system 2 in 1.json\n"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(study, monkeypatch, words, message):
    monkeypatch.chdir(study.folder)
    for i in range(6):
        write(study, f"{i}.json", [0.5, 1], judge="j", responses=f"answers {i % 3}")
    write(study, "6.json", [0.5, 1], judge="j", responses="others")
    write(study, "none.json", [None, None], judge="j", responses="answers 2")
    study.pairwise("p.json", {"q0": "win"})
    assert refusal(*words.split()).startswith(message)
