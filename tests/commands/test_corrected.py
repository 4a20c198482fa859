"""compare_evaluators.py --corrected: scores corrected by people's verdicts on some answers, on simulated judges."""

import json

import numpy as np
import pytest

from utils.base.errors import UserError
from utils.compare_evaluators import main
from utils.people.corrected import Rated, corrected_figures

ASPECTS = 4


def rated(entries, verdicts):
    by_people = {key: sum(values) / (2 * len(values)) for key, values in verdicts.items()}
    return Rated("A", entries, verdicts, by_people, "aspect")


def simulated(dice, number=400, num_rated=80, per_user=1, bias=0.15, lost=0.1):
    """Return a system's mean score by people in the population, and a sample with a judge who is too kind.

    Of the answers, a share of `lost` is missing. A user's questions are alike.
    """
    quality = 0.5 + 0.1 * np.repeat(dice.normal(size=number // per_user), per_user)
    people = dice.binomial(2, np.clip(quality, 0, 1)[:, None], (number, ASPECTS))
    kind = (dice.random((number, ASPECTS)) < 2 * bias) & (people < 2)
    answered = dice.random(number) >= lost
    entries = [
        {"id": f"q{i}", "group": "law", "answered": bool(answered[i]), "cluster": f"u{i // per_user}",
         "score": float((people[i] + kind[i]).sum()) / 8 if answered[i] else 0,
         "details": [{"score": int(value)} for value in people[i] + kind[i]]}
        for i in range(number)
    ]  # fmt: skip
    of_answers = np.flatnonzero(answered)
    drawn = dice.choice(of_answers, num_rated, replace=False)
    return 0.5 * (1 - lost), rated(entries, {f"q{i}": people[i].tolist() for i in drawn})


@pytest.mark.parametrize("per_user", [1, 4])
def test_intervals_hold_the_truth_where_the_judge_is_biased(per_user):
    """Of 600 simulations, 95% are expected; 93% to 97% is within 2.3 standard errors."""
    dice, corrected, uncorrected = np.random.default_rng(3), 0, 0
    for _ in range(600):
        truth, system = simulated(dice, per_user=per_user)
        figures = corrected_figures(system)
        (low, high), (lowest, highest) = figures["corrected_interval"], figures["uncorrected_interval"]
        corrected += low <= truth <= high
        uncorrected += lowest <= truth <= highest
    assert 0.93 <= corrected / 600 <= 0.97 and uncorrected / 600 < 0.5


def test_figures_by_hand():
    """Of four questions, the judge gives 1, .5, .5 and no answer 0; people give the first two .5 and .5."""

    def entry(i, score, answered=True):
        return {"id": f"q{i}", "group": "law", "answered": answered, "score": score, "details": [{"score": 2 * score}]}

    system = rated([entry(1, 1), entry(2, 0.5), entry(3, 0.5), entry(4, 0, False)], {"q1": [1], "q2": [1]})
    figures = corrected_figures(system)
    # Three of four have an answer, so the gap of -1/4 on answers is one of -3/16 on all.
    assert figures["uncorrected"] == 0.5 and figures["corrected"] == pytest.approx(0.5 - 3 / 16)
    assert figures["judge_minus_people"] == pytest.approx(3 / 16)
    # Of all four: f - 1/2 - 1/4 (A - 3/4); of the two rated ones: 3/4 (d + 1/4).
    of_all = np.array([1 / 2 - 1 / 16, -1 / 16, -1 / 16, -1 / 2 + 3 / 16]) / 4 * np.sqrt(4 / 3)
    of_rated = np.array([-3 / 16, 3 / 16, 0, 0]) / 2 * np.sqrt(2)
    width = figures["corrected_interval"][1] - figures["corrected"]
    t = 12.7062  # with 1 degree of freedom
    assert width == pytest.approx(t * np.sqrt(((of_all + of_rated) ** 2).sum()), rel=1e-4)
    system.by_people["q2"] = 0
    assert corrected_figures(system)["corrected_interval"] is None  # all gaps are equal


@pytest.fixture
def study(tmp_path):
    _, system = simulated(np.random.default_rng(0), number=60, num_rated=30)
    for entry in system.entries:
        entry |= {"question_sha256": "0", "category": "law"}
        entry["details"] = [{"aspect": str(n), **detail} for n, detail in enumerate(entry["details"])]
        if not entry["answered"]:
            entry["details"] = [{**detail, "score": 0} for detail in entry["details"]]
        del entry["group"]
    paths = tmp_path / "scores.json", tmp_path / "people.json"
    paths[0].write_text(json.dumps({"num_unanswered": 0, "per_question_scores": system.entries}))
    slots = {key: {f"aspect {n}": value for n, value in enumerate(values)} for key, values in system.verdicts.items()}
    paths[1].write_text(json.dumps({"responses": "h", "verdicts": slots}))
    return [*map(str, paths)], system


def test_files_become_tables(study, tmp_path, capsys):
    paths, _ = study
    output = tmp_path / "corrected.json"
    assert main(["--corrected", "A", *paths, "--output_addr", str(output)]) == 0
    [figures] = json.loads(output.read_text())["systems"]
    assert figures["corrected"] < figures["uncorrected"] and figures["num_rated"] == 30
    printed = capsys.readouterr().out
    assert (
        f"| A | 60 | 30 | {figures['uncorrected']:.4f} | [" in printed and "| A | Society & Culture | 30 | " in printed
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"verdicts": {}}, "people.json: fewer than two of its questions have a score and an answer in "),
        ({"choices": {}, "verdicts": None}, "people.json: has no verdicts; use the output of human_evaluation.py"),
        ({"one": {"aspect 0": 1}}, ": must have one verdict of 0, 1, 2 on each aspect, 4 in all"),
    ],
)
def test_other_files_are_refused(study, change, told):
    (scores, people), system = study
    content = json.loads(open(people, encoding="utf-8").read())  # noqa: SIM115
    one = change.pop("one", None)
    content |= change | ({"verdicts": {next(iter(system.verdicts)): one}} if one else {})
    with open(people, "w", encoding="utf-8") as file:
        json.dump(content, file)
    with pytest.raises(UserError) as error:
        main(["--corrected", "A", scores, people])
    assert told in str(error.value)
