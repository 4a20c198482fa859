"""combine_scores.py: errors are subtracted, and an answer never loses to none."""

import json

import pytest

from utils import combine_scores
from utils.base.errors import UserError
from utils.base.manifest import describe_run, file_hash, publish


@pytest.fixture
def combine(tmp_path):
    """Write samples by question, {id: [(text or None, score), ...]}, and their scores; return the rewards' file."""

    def run(questions, *flags, strategy="direct", task="LaMP-QA"):
        paths = {name: tmp_path / f"{name}.json" for name in ("response", "score", "output")}
        content = {
            key: [{"output": text, "raw": text or ""} for text, _ in samples] for key, samples in questions.items()
        }
        publish(paths["response"], content, describe_run({}, {}, None))
        entries = [
            {"id": key, "group": None, "subgroup": None, "question_sha256": key, "answered": bool(text),
             "score": score, "details": [{"score": score, "reference": 4.0, "rating": 4.0 + (score or 0)}],
             "samples": [score for _, score in questions[key]]}
            for key, [(text, score), *_] in questions.items()
        ]  # fmt: skip
        whole = {"task": task, "strategy": strategy, "num_unanswered": 0, "per_question_scores": entries}
        publish(paths["score"], whole, describe_run({}, {"responses": file_hash(paths["response"])}, None))
        words = [word for name, path in paths.items() for word in (f"--{name}_addr", path)]
        assert combine_scores.main(list(map(str, [*words, *flags]))) == 0
        return json.loads(paths["output"].read_text())

    return run


@pytest.mark.parametrize("strategy", ["MAE", "RMSE"])
def test_an_error_is_subtracted(combine, strategy, capsys):
    content = combine({"q": [("4", 1.0), ("5", 0.0)]}, strategy=strategy, task="LaMP-3")
    assert content["rewards"] == {"q": [-1.0, 0.0]}
    assert "mean reward -0.5000; means of the terms: score -0.5000" in capsys.readouterr().out


def test_a_missing_answer_has_at_most_the_lowest_reward_of_the_questions_answers(combine, tmp_path):
    """IAP's flags: a long answer with score 0 has -0.1 x 0.5 - 0.01 x 2, and a missing answer would have 0."""
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps({key: [{"output": "a b x y"}] for key in ("q", "r", "t")}))
    samples = {
        "q": [("a b c d", 0.0), (None, 0.0), ("x", 1.0)],
        "r": [(None, 0.0), ("x", 0.5), ("a b c d", 0.0)],
        "t": [(None, 0.0), (None, None), (None, 0.0)],
    }
    flags = ["--contrast", -0.1, "--contrast_addr", plain, "--length_weight", -0.01, "--length_over", 2]
    content = combine(samples, *flags)
    q, r, t = (content["rewards"][key] for key in "qrt")
    assert q == pytest.approx([-0.07, -0.07, 0.96])  # LCS "a b": 2 of 4 words in both; "x": 1 of 1 and of 4
    assert r == pytest.approx([-0.07, 0.46, -0.07]) and t == [0, None, 0]
    assert content["reward"] == pytest.approx((0.96 + 0.46 - 4 * 0.07) / 8)


def test_a_term_of_ones_own(combine, tmp_path, capsys):
    own = tmp_path / "own.py"
    own.write_text("def reward(response):\n    return len(response.pop('output') or '')\n")
    samples = {"q": [("abc", 0.5), ("a", 1.0)]}
    flags = ("--score", 0.5, "--own", -0.1, "--own_addr", own)
    assert combine(samples, *flags)["rewards"]["q"] == pytest.approx([-0.05, 0.4])
    assert "means of the terms: score 0.7500, own 2.0000" in capsys.readouterr().out
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
    samples = {"q": [("Intent: x Answer: y", 0.5), (None, 0.0)]}
    content = combine(samples, "--form", -0.5, "--form_texts", "Intent:", "Answer:")
    assert (content["rewards"], content["reward"]) == ({"q": [0.5, -0.5]}, 0)
