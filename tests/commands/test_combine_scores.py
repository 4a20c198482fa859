"""combine_scores.py: errors are subtracted, and an answer never loses to none."""

import json

import pytest

from utils import combine_scores
from utils.cli import UserError
from utils.files.file_hashes import file_hash
from utils.files.manifest import describe_run, publish


@pytest.fixture
def combine(tmp_path):
    """Write responses and scores of samples, each {question id: (text or None, score)}; return the rewards."""

    def run(samples, *flags, strategy="direct", task="LaMP-QA"):
        paths = {name: [str(tmp_path / f"{name}_{i}.json") for i in range(len(samples))] for name in ("r", "s", "o")}
        for sample, responses, scores in zip(samples, paths["r"], paths["s"], strict=True):
            content = {key: [{"output": text, "raw": text or ""}] for key, (text, _) in sample.items()}
            publish(responses, content, describe_run({}, {}, None))
            entries = [
                {"id": key, "group": None, "subgroup": None, "question_sha256": key, "answered": bool(text),
                 "score": score, "details": [{"score": score, "reference": 4.0, "rating": 4.0 + (score or 0)}]}
                for key, (text, score) in sample.items()
            ]  # fmt: skip
            whole = {"task": task, "strategy": strategy, "num_unanswered": 0, "per_question_scores": entries}
            publish(scores, whole, describe_run({}, {"responses": file_hash(responses)}, None))
        words = ["--response_addr", *paths["r"], "--score_addr", *paths["s"], "--output_addr", *paths["o"], *flags]
        assert combine_scores.main(list(map(str, words))) == 0
        return [json.loads(open(path).read()) for path in paths["o"]]

    return run


@pytest.mark.parametrize("strategy", ["MAE", "RMSE"])
def test_an_error_is_subtracted(combine, strategy, capsys):
    content, other = combine([{"q": ("4", 1.0)}, {"q": ("5", 0.0)}], strategy=strategy, task="LaMP-3")
    assert (content["rewards"], other["rewards"]) == ({"q": -1.0}, {"q": 0.0})
    assert "mean reward -1.0000; means of the terms: score -1.0000" in capsys.readouterr().out


def test_a_missing_answer_has_at_most_the_lowest_reward_of_the_questions_answers(combine, tmp_path):
    """IAP's flags: a long answer with score 0 has -0.1 x 0.5 - 0.01 x 2, and a missing answer would have 0."""
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps({key: [{"output": "a b x y"}] for key in ("q", "r", "t")}))
    samples = [
        {"q": ("a b c d", 0.0), "r": (None, 0.0), "t": (None, 0.0)},
        {"q": (None, 0.0), "r": ("x", 0.5), "t": (None, None)},
        {"q": ("x", 1.0), "r": ("a b c d", 0.0), "t": (None, 0.0)},
    ]
    flags = ["--contrast", -0.1, "--contrast_addr", plain, "--length", -0.01, "--length_over", 2]
    first, second, third = (content["rewards"] for content in combine(samples, *flags))
    assert first == pytest.approx({"q": -0.07, "r": -0.07, "t": 0})  # LCS "a b": 2 of 4 words in both
    assert second["q"] == pytest.approx(-0.07) and second["t"] is None
    assert second["r"] > third["r"] == pytest.approx(-0.07) and third["q"] > 0.9


def test_a_term_of_ones_own(combine, tmp_path, capsys):
    own = tmp_path / "own.py"
    own.write_text("def reward(response):\n    return len(response.pop('output') or '')\n")
    samples = [{"q": ("abc", 0.5)}, {"q": ("a", 1.0)}]
    flags = ("--score", 0.5, "--own", -0.1, "--own_addr", own)
    assert [content["rewards"]["q"] for content in combine(samples, *flags)] == pytest.approx([-0.05, 0.4])
    assert "means of the terms: score 0.5000, own 3.0000" in capsys.readouterr().out
    for code, message in (
        ("def reward(response): return None", "id 'q': reward returned None, not a finite number"),
        ("def reward(response): return float('nan')", "id 'q': reward returned nan, not a finite number"),
        ("def reward(response): return response['x']", "id 'q': reward raised KeyError: 'x'"),
        ("def other(response): return 1", "has no function `reward"), ("1 +", "cannot be loaded: SyntaxError"),
    ):  # fmt: skip
        own.write_text(code)
        with pytest.raises(UserError, match=message):
            combine(samples, *flags, "--overwrite")


def test_what_a_missing_answer_has_is_not_raised(combine):
    """As with PR2's penalty for a wrong form."""
    samples = [{"q": ("Intent: x Answer: y", 0.5)}, {"q": (None, 0.0)}]
    first, second = combine(samples, "--form", -0.5, "--form_texts", "Intent:", "Answer:")
    assert (first["rewards"], second["rewards"], second["reward"]) == ({"q": 0.5}, {"q": -0.5}, -0.5)
