"""Reference metrics equal those of established libraries, with LaMP's rules for unreadable answers."""

import math
import random

import nltk.data
import pytest
from nltk.tokenize import word_tokenize
from nltk.translate.meteor_score import single_meteor_score
from nltk_data import write_nltk_data
from rouge_score.rouge_scorer import RougeScorer
from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error, root_mean_squared_error

from utils.benchmarks import tasks
from utils.benchmarks.lamp.task import TAGS
from utils.benchmarks.references import long_text_metrics, rating_metrics
from utils.benchmarks.scoring import ROOT_MEAN_SQUARE, macro_f1, no_answer

PAIRS = 500
LISTED = (
    "the a of Bread loaf cat street road buy bought big large walked walking stroll e.g. Dr. don't naïve Überraşung "
    'l\'été 漢字 😀 3.5 1,000 -- "quoted" (so) half-way U.S. İstanbul'
)
ODD = ["\u2028", "\u00a0", "\0", "\ufb01ne"]


def made_up_texts(seed):
    """Return pairs of texts that share some words, including empty ones."""
    rng = random.Random(seed)

    def text():
        sentences = [
            " ".join(rng.choices(LISTED.split() + ODD, k=rng.randrange(1, 12))) for _ in range(rng.randrange(5))
        ]
        return rng.choice([". ", ".\n\n", "! "]).join(sentences)

    pairs = [(text(), text()) for _ in range(PAIRS)]
    assert sum(not response for _, response in pairs) > 50
    return pairs


def summary(metric, references_and_responses):
    """Return the head of a score file and its entries; a response of None is a missing answer."""
    entries = []
    for target, response in references_and_responses:
        record = {"id": "1", "question": "?", "target": target}
        verdict = no_answer([False]) if response is None else {"value": metric.compute(record, response)}
        entry = {"id": "1", **metric.entry(record, [verdict])}
        assert metric.score_of(entry["details"], False) == entry["score"]
        entries.append(entry)
    return metric.summarize(entries), entries


@pytest.fixture(scope="module")
def nltk_folder(tmp_path_factory):
    folder = write_nltk_data(tmp_path_factory.mktemp("nltk"))
    nltk.data.path.insert(0, str(folder))
    yield folder
    nltk.data.path.remove(str(folder))


@pytest.mark.parametrize(("name", "kind"), [("rouge-1", "rouge1"), ("rouge-L", "rougeL")])
def test_rouge_matches_rouge_score(name, kind):
    metric, scorer = tasks()["LaMP-4"].metrics[name], RougeScorer([kind], use_stemmer=False)
    pairs = made_up_texts(seed=1)
    expected = [scorer.score(*pair)[kind].fmeasure for pair in pairs]
    head, entries = summary(metric, pairs)
    assert [entry["score"] for entry in entries] == pytest.approx(expected, abs=1e-9)
    assert len({round(score, 6) for score in expected}) > 50
    assert head["score"] == pytest.approx(sum(expected) / PAIRS, abs=1e-9)  # a plain mean


def test_meteor_matches_nltk(nltk_folder):
    metric = long_text_metrics()["meteor"]
    pairs = made_up_texts(seed=2)
    expected = [
        single_meteor_score(word_tokenize(reference), word_tokenize(response), alpha=0.9, beta=3, gamma=0.5)
        for reference, response in pairs
    ]
    head, entries = summary(metric, pairs)
    assert [entry["score"] for entry in entries] == pytest.approx(expected, abs=1e-9)
    assert len({round(score, 6) for score in expected}) > 50
    assert head["score"] == pytest.approx(sum(expected) / PAIRS, abs=1e-9)


@pytest.mark.parametrize("name", ["LaMP-1", "LaMP-2"])
def test_label_metrics_match_scikit_learn(name):
    labels = {"LaMP-1": ("[1]", "[2]"), "LaMP-2": TAGS}[name]
    rng = random.Random(3)
    others = ["", "  ", "Comedy", "comedy.", "1", "漢字", "none of them"]
    spelled = [*labels, *(f" {label}\n" for label in labels), *others]
    golds = rng.choices(labels[:-3] or labels, k=PAIRS)  # of some labels there is none
    pairs = [(gold, gold if rng.random() < 0.4 else rng.choice(spelled)) for gold in golds]
    numbers = {label: number for number, label in enumerate(labels)}
    expected = [numbers[gold] for gold in golds]
    found = [numbers.get(response.strip(), -1) for _, response in pairs]
    assert found.count(-1) > 30
    metrics = tasks()[name].metrics
    for official in ("accuracy-official", "f1-official"):  # told apart by what they read alone
        head, _ = summary(metrics[official], pairs)
        assert head == summary(metrics[official.removesuffix("-official")], pairs)[0] | {"strategy": official}
        assert metrics[official].reads == "raw"
    accuracy = summary(metrics["accuracy"], pairs)[0]
    assert accuracy["score"] == pytest.approx(accuracy_score(expected, found), abs=1e-9)
    f1, entries = summary(metrics["f1"], pairs)
    whole = range(len(labels))
    assert f1["score"] == pytest.approx(
        f1_score(expected, found, labels=whole, average="macro", zero_division=0), abs=1e-9
    )
    assert [entry["score"] for entry in entries] == [int(a == b) for a, b in zip(expected, found, strict=True)]
    assert f1["strategy"] == "f1"


def test_rating_metrics_match_scikit_learn():
    rng = random.Random(4)
    spelled = ["1", "2", " 3 ", "4.0", "5", "2.5", "7", "-1", "1e0", "٣", "", "four", "4/5", "3 stars", "nan", "*4*"]
    pairs = [(str(rng.randrange(1, 6)), rng.choice(spelled)) for _ in range(PAIRS)]

    def lamp_reads(gold, response):
        try:
            number = float(response)
        except ValueError:
            number = math.nan
        return number if math.isfinite(number) else 5.0 if abs(1 - gold) <= abs(5 - gold) else 1.0

    golds = [float(gold) for gold, _ in pairs]
    found = [lamp_reads(gold, response) for gold, (_, response) in zip(golds, pairs, strict=True)]
    metrics = rating_metrics()
    head, entries = summary(metrics["MAE"], pairs)
    assert head["score"] == pytest.approx(mean_absolute_error(golds, found), abs=1e-9)
    assert summary(metrics["RMSE"], pairs)[0]["score"] == pytest.approx(root_mean_squared_error(golds, found), abs=1e-9)
    errors = [abs(one - other) for one, other in zip(golds, found, strict=True)]
    assert [entry["score"] for entry in entries] == pytest.approx(errors, abs=1e-9)
    for gold, error in ((1, 4), (3, 2), (5, 4)):  # a missing answer too is the farther end
        assert summary(metrics["MAE"], [(str(gold), None)])[0]["score"] == error


def test_a_missing_answer_has_the_lowest_score_and_is_counted():
    for name, target in (("LaMP-1", "[1]"), ("LaMP-2", "comedy"), ("LaMP-4", "A headline")):
        for metric in tasks()[name].metrics.values():
            head, [one, other] = summary(metric, [(target, target), (target, None)])
            assert (one["score"], other["score"], other["answered"]) == (1, 0, False)
            assert (head["num_unanswered"], head["num_unscored"], head["num_scored_questions"]) == (1, 0, 2)
    head, _ = summary(rating_metrics()["RMSE"], [("5", "5"), ("5", None)])
    assert head["score"] == pytest.approx(math.sqrt(8))
    assert head["num_unanswered"] == 1


def test_a_label_that_is_nowhere_counts_zero_and_without_answers_there_is_no_mean():
    assert macro_f1("abc").score([("a", "a"), ("b", "b")]) == pytest.approx(2 / 3)
    assert macro_f1("abc").score([]) is None and ROOT_MEAN_SQUARE.score([]) is None
