"""make_table.py --length, compared with a regression by matrices, and on answers whose length or content counts."""

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest

from utils import make_table
from utils.base.errors import UserError
from utils.tables.significance import at_equal_length


def by_matrices(strata, ratios):
    """Return the mean of the strata's intercepts and the slope of a weighted least-squares fit."""
    rows, values, weights = [], [], []
    for number, (ds, xs) in enumerate(zip(strata, ratios, strict=True)):
        for d, x in zip(ds, xs, strict=True):
            rows.append([*(float(number == other) for other in range(len(strata))), x])
            values.append(d)
            weights.append(len(ds) ** -0.5)
    scaled = np.array(weights)[:, None]
    fitted = np.linalg.lstsq(np.array(rows) * scaled, np.array(values) * scaled[:, 0], rcond=None)[0]
    return fitted[:-1].mean(), fitted[-1]


@pytest.mark.parametrize("sizes", [(40,), (10, 25, 60)])
def test_the_difference_at_equal_length_is_that_of_a_regression(sizes):
    dice = np.random.default_rng(len(sizes))
    ratios = [dice.normal(0.3, 0.4, size).tolist() for size in sizes]
    strata = [(0.1 * number + 0.2 * np.array(xs) + dice.normal(0, 0.2, len(xs))).tolist()
              for number, xs in enumerate(ratios)]  # fmt: skip
    found = at_equal_length(strata, ratios)
    expected, slope = by_matrices(strata, ratios)
    assert (found.difference, found.per_doubling) == pytest.approx((expected, slope * math.log(2)))
    assert found.interval[0] < found.difference < found.interval[1]


def simulated(dice, content, of_length, users=None):
    """Return the score differences and log ratios of 120 questions whose first answers are 50% longer."""
    number = 120
    words = 100 * np.exp(dice.normal(0, 0.3, (2, number)) + np.array([[math.log(1.5)], [0]]))
    noise = dice.normal(0, 0.15, (2, number))
    scores = of_length * np.log(words) + noise + np.array([[content], [0]])
    if users is not None:
        scores[0] += dice.normal(0, 0.15, 30)[users]
    return (scores[0] - scores[1]).tolist(), np.log(words[0] / words[1]).tolist()


@pytest.mark.parametrize("content", [0.0, 0.08])
@pytest.mark.parametrize("of_length", [0.0, 0.2])
@pytest.mark.parametrize("by_user", [False, True])
def test_intervals_hold_the_effect_of_content(content, of_length, by_user):
    """In 95% of simulations the interval should hold it; with 400, 92% to 98% is within three standard errors."""
    dice, held = np.random.default_rng(7), 0
    users = np.repeat(np.arange(30), 4) if by_user else None
    for _ in range(400):
        differences, ratios = simulated(dice, content, of_length, users)
        clusters = [list(map(str, users))] if by_user else None
        low, high = at_equal_length([differences], [ratios], clusters).interval
        held += low <= content <= high
    assert 0.92 <= held / 400 <= 0.98


def test_a_figure_that_cannot_be_computed_is_none():
    assert at_equal_length([[]], [[]]) is None
    assert at_equal_length([[0.1, 0.2, 0.3]], [[0.5, 0.5, 0.5]]) is None
    assert at_equal_length([[0.1, 0.2]], [[0.0, 0.5]]).interval is None


def files(tmp_path):
    """Two systems whose scores depend only on word counts; the first writes twice as much. The third has no counts."""
    dice, paths = np.random.default_rng(1), []
    for name, factor in (("long", 2), ("short", 1), ("older", 0)):
        entries = []
        for number in range(60):
            count = int(80 * max(factor, 1) * math.exp(dice.normal(0, 0.4)))
            total = min(8, max(0, round(1.2 * (math.log(count) - 2) + dice.normal(0, 0.7))))
            details = [{"aspect": f"A{n}", "score": min(2, max(0, total - 2 * n))} for n in range(4)]
            entries.append({"id": f"q{number}", "group": "Society & Culture", "question_sha256": "0", "answered": True,
                            "score": sum(one["score"] for one in details) / 8, "details": details})  # fmt: skip
            entries[-1] |= {"words": count} if factor else {}
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"num_unanswered": 0, "per_question_scores": entries}))
        paths.append(str(path))
    return paths


def test_a_difference_due_to_length_vanishes_at_equal_length(tmp_path, capsys):
    long, short, older = files(tmp_path)
    flags = ["--system", "Long", long, "--system", "Short", short, "--baseline", "Short", "--allow_partial"]
    assert make_table.main([*flags, "--length"]) == 0
    printed = capsys.readouterr().out
    head, _, first, second = printed.splitlines()[:4]
    assert "†" in first and " Words |" in head
    words = [int(line.split(" | ")[-4]) for line in (first, second)]
    assert words[0] == pytest.approx(2 * words[1], rel=0.1)
    assert "- Mean words per answer: Long " in printed and "At equal length: the mean difference if both" in printed
    assert make_table.main([*flags, "--length", "--format", "csv"]) == 0
    row = next(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    figures = {name.split(": ")[1]: float(value) for name, value in row.items() if " against Short" in name and
               name.startswith("Society") and value}  # fmt: skip
    assert figures["difference against Short"] > 0.05 and float(row["Words"]) == words[0]
    low, high = (figures[f"at equal length, 95% interval, {side} against Short"] for side in ("low", "high"))
    assert low < 0 < high and figures["per doubling against Short"] > 0.05
    with pytest.raises(UserError, match=r"--length: .*older\.json has no words of answers, like files of older"):
        make_table.main(["--system", "Long", long, "--system", "Older", older, "--baseline", "Older", "--length"])


def test_raw_json_is_counted(tmp_path, capsys):
    path = files(tmp_path)[0]
    content = json.loads(Path(path).read_text()) | {"num_raw_json": 3}
    (tmp_path / "raw.json").write_text(json.dumps(content))
    assert make_table.main(["--system", "Raw", str(tmp_path / "raw.json")]) == 0
    assert "Raw: 3 answers left as JSON, which has more words than the text inside" in capsys.readouterr().out
