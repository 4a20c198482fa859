"""compare_evaluators.py on score files and human choices written by hand."""

import hashlib
import json
import math
from functools import partialmethod

import pytest

from utils.base.errors import UserError
from utils.compare_evaluators import main
from utils.people.agreement import majority

ASPECTS = {0: (0, 0), 0.25: (1, 0), 0.5: (1, 1), 0.75: (2, 1), 1: (2, 2), None: (2, None)}  # two a question
ORDERS = {"win": ["first"] * 2, "loss": ["second"] * 2, "tie": ["first", "second"], None: ["first", None]}  # preferred


class Study:
    """A folder with score files, choices and the script's results."""

    def __init__(self, folder, capsys):
        self.folder, self.capsys = folder, capsys
        self.output = folder / "evaluators.json"

    def write(self, name, content, **fingerprint):
        """Write a JSON file, and a manifest beside it if the judge is given."""
        path = self.folder / name
        path.write_text(json.dumps(content), encoding="utf-8")
        if fingerprint:
            manifest = {"settings": fingerprint, "output_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            (self.folder / f"{name}.manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        return path

    def scores(self, strategy, name, found, **judged):
        """Write a score file from scores, or from results of pairs, by question; questions have two aspects."""
        details = {
            "aspect": lambda one: [{"aspect": f"aspect {i}", "score": its} for i, its in enumerate(ASPECTS[one])],
            "direct": lambda one: [{"score": one}],
            "pairwise": lambda one: [{"preferred": system} for system in ORDERS[one]],
        }[strategy]
        pairs = strategy == "pairwise"
        shared = {"category": "law", "answered": [True, True] if pairs else True}
        entries = [
            {"id": i, "question_sha256": f"hash of {i}", "result" if pairs else "score": one, "details": details(one)}
            for i, one in found.items()
        ]
        content = {"strategy": strategy, "num_unanswered": [0, 0] if pairs else 0}
        return self.write(name, {**content, "per_question_scores": [shared | entry for entry in entries]}, **judged)

    aspect = partialmethod(scores, "aspect")
    direct = partialmethod(scores, "direct")
    pairwise = partialmethod(scores, "pairwise")

    def human(self, choices):
        return self.write("human.json", choices)

    def change(self, path, question_id, **more):
        """Change one question's entry."""
        scores = json.loads(path.read_text())
        next(entry for entry in scores["per_question_scores"] if entry["id"] == question_id).update(more)
        path.write_text(json.dumps(scores))
        return path

    def run(self, *arguments):
        """Return the printed output and the figures."""
        arguments = [*map(str, arguments), "--output_addr", str(self.output), "--overwrite"]
        assert main(arguments) == 0
        return self.capsys.readouterr().out, json.loads(self.output.read_text(encoding="utf-8"))

    def row(self, human, *files):
        """Return the figures of one evaluator against the humans."""
        [row] = self.run("--human_addr", human, "--evaluator", "A", *files)[1]["evaluators"]
        return row


@pytest.fixture
def study(tmp_path, capsys):
    return Study(tmp_path, capsys)


def refusal(*arguments):
    with pytest.raises(UserError) as error:
        main([str(argument) for argument in arguments])
    return str(error.value)


# Eight questions by hand. The evaluator's outcomes: first, first, tie, second | second, first | tie, first.
HUMAN = dict(zip("abcdefgh", ["first"] * 4 + ["second"] * 2 + ["tie"] * 2, strict=True))
FIRST = dict(zip("abcdefgh", [0.75, 0.5, 0.5, 0.25, 0, 0.75, 0, 1], strict=True))
SECOND = dict(zip("abcdefgh", [0.25, 0.25, 0.5, 0.5, 0.5, 0.5, 0, 0.5], strict=True))
# They agree on a, b, e and g. Chance: first 4 * 4, second 2 * 2 and tie 2 * 2 of 8 * 8.
KAPPA = (4 / 8 - 24 / 64) / (1 - 24 / 64)
# Ranks, less their mean 4.5. The humans': second 1.5, tie 3.5, first 6.5. The evaluator's differences 0.5, 0.25, 0,
# -0.25, -0.5, 0.25, 0, 0.5 have the ranks 7.5, 5.5, 3.5, 2, 1, 5.5, 3.5, 7.5.
HUMAN_RANKS = [2, 2, 2, 2, -3, -3, -1, -1]
OWN_RANKS = [3, 1, -1, -2.5, -3.5, 1, -1, 3]
# Products 6 + 2 - 2 - 5 + 10.5 - 3 + 1 - 3, squares 4 * 4 + 2 * 9 + 2 and 9 + 1 + 1 + 6.25 + 12.25 + 1 + 1 + 9.
SPEARMAN = 6.5 / math.sqrt(36 * 40.5)
Z = 1.959963984540054  # 97.5% of a normal distribution are below
WILSON = (  # of 4 in 8
    (4 + Z**2 / 2 - Z * math.sqrt(4 * 4 / 8 + Z**2 / 4)) / (8 + Z**2),
    (4 + Z**2 / 2 + Z * math.sqrt(4 * 4 / 8 + Z**2 / 4)) / (8 + Z**2),
)


class TestByHand:
    @pytest.mark.parametrize("strategy", ["aspect", "direct"])
    def test_scores_against_the_humans(self, study, strategy):
        write = getattr(study, strategy)
        row = study.row(study.human(HUMAN), write("first.json", FIRST), write("second.json", SECOND))
        assert row == {
            **{"name": "A", "strategy": strategy, "num_questions": 8, "not_in_files": 0, "unscored": 0, "not_rated": 0},
            "accuracy": 4 / 8,
            "accuracy_interval": pytest.approx(WILSON),
            "num_human_decided": 6,  # a to f: a, b and e are right, and c is a tie of the evaluator's
            "accuracy_ties_half": 3.5 / 6,
            "accuracy_ties_wrong": 3 / 6,
            "kappa": pytest.approx(KAPPA),
            "spearman": pytest.approx(SPEARMAN),
            # 0.75 + 0.5 + 0.5 + 0.25 + 0.75 + 1 = 3.75 and 0.25 + 0.25 + 5 * 0.5 = 3
            "mean_score": 6.75 / 16,
            "position_swap_rate": None,
        }
        assert sum(map(math.prod, zip(HUMAN_RANKS, OWN_RANKS, strict=True))) == 6.5
        assert [sum(rank**2 for rank in ranks) for ranks in (HUMAN_RANKS, OWN_RANKS)] == [36, 40.5]

    def test_the_tables(self, study):
        files = [study.aspect("first.json", FIRST), study.aspect("second.json", SECOND)]
        pairs = study.pairwise("pairs.json", dict.fromkeys("abcdefgh", "tie"))
        human = study.human(HUMAN)
        out, _ = study.run("--human_addr", human, "--evaluator", "A|1", *files, "--evaluator", "P", pairs)
        rows = [line for line in out.splitlines() if line.startswith("| ")]
        assert rows[1:3] == [
            r"| A\|1 | aspect | 8 | 0 | 0.5000 | [0.2152, 0.7848] | 6 | 0.5833 | 0.5000 | +0.2000 | +0.1702 | 0.4219 "
            "| – |",
            # two ties are right of 8; by chance 2 of 8 are too
            "| P | pairwise | 8 | 0 | 0.2500 | [0.0715, 0.5907] | 6 | 0.5000 | 0.0000 | +0.0000 | – | – | 1.0000 |",
        ]
        # c and g are ties of both. Of four and two right answers one is common: three and one remain. Of 16 throws of
        # four coins 10 are as uneven.
        assert rows[4] == r"| A\|1 | P | 8 | 0 | 0.2500 | +0.0000 | – | 3 | 1 | 0.6250 |"
        told = "- Sign test (exact, two-sided, without ties): first 4, second 2, p = 0.6875; share of first 0.6667"
        assert told in out
        assert "- Humans, 1 rater: first 4, second 2, tie 2.\n" in out
        unknown = ", ".join(map(str, [*files, pairs]))
        assert f"- Judge and prompt unknown: {unknown} (no manifest, or" in out

    def test_evaluators_with_each_other(self, study):
        one = study.pairwise("one.json", dict(zip("abcdx", ["win", "win", "tie", "loss", "win"], strict=True)))
        first = study.direct("first.json", {"a": 1, "b": 0, "c": 0, "d": 0.25, "y": 0.5, "z": None})
        second = study.direct("second.json", {"a": 0, "b": 0.25, "c": 0, "d": 1, "y": 0.5, "z": 1})
        out, figures = study.run("--evaluator", "one", one, "--evaluator", "other", first, second)
        # x and y are scored by only one. Win, win, tie, loss and 1, -0.25, 0, -0.75: three agree; chance 2 * 1 + 1 * 1
        # + 1 * 2 of 16. Ranks less 2.5: 1, 1, -0.5, -1.5 and 1.5, -0.5, 0.5, -1.5; products 1.5 - 0.5 - 0.25 + 2.25,
        # squares 4.5 and 5: (12 - 5) / (16 - 5), and 3 / sqrt(4.5 * 5).
        assert "| one | other | 4 | 2 | 0.7500 | +0.6364 | +0.6325 |\n" in out
        assert figures["human"] is None


def test_skipped_questions_are_counted_and_shown(study):
    # Compared: a. b lacks the second's score, c is only in the first's file, d and e in none; f is not rated.
    human = study.human({"a": "first", "b": "first", "c": "second", "d": "tie", "e": "tie"})
    files = [study.aspect("1.json", {"a": 1, "b": 1, "c": 1, "f": 0.5})]
    files += [study.aspect("2.json", {"a": 0, "b": None, "f": 1})]
    out, figures = study.run("--human_addr", human, "--evaluator", "A", *files)
    [row] = figures["evaluators"]
    assert [row[name] for name in ("num_questions", "unscored", "not_in_files", "not_rated")] == [1, 2, 2, 1]
    assert (row["accuracy"], row["kappa"], row["spearman"]) == (1, None, None)
    assert row["mean_score"] == pytest.approx((1 + 1 + 1 + 0.5 + 0 + 1) / 6)
    told = "- A: questions left out: 2 rated but not in the files, 2 rated but without a score of both systems, "
    assert told in out
    _, figures = study.run("--human_addr", human, "--evaluator", "A", *files, "--unscored_as_zero")
    [row] = figures["evaluators"]  # b: two verdicts of 2 and none, so 2 and none count 1/2 against 1
    assert (row["num_questions"], row["unscored"], row["accuracy"]) == (2, 1, 1)


class TestHumans:
    @pytest.mark.parametrize(
        ("raters", "said"),
        [
            (["Ann", "Bo"], "Humans, 2 raters: first 1, second 1, tie 3; 2 of the ties because there is no majority. "
             "Cohen's kappa of the two raters: +0.4118 (the paper's two raters: 0.726)."),
            (["Ann", "Bo", "Cy"], "Humans, 3 raters, at most 2 per question: first 1, second 1, tie 3; 2 of the ties "
             "because there is no majority. Raters differ by question: utils/human_evaluation.py --collect prints the "
             "agreement of each pair."),
        ],
    )  # fmt: skip
    def test_two_raters_get_a_kappa_and_a_tie_if_they_disagree(self, study, raters, said):
        files = [study.direct("1.json", {**dict.fromkeys("abce", 0.5), "d": 0})]
        files += [study.direct("2.json", dict.fromkeys("abcde", 0.5))]
        choices = ["first first", "first tie", "tie tie", "second second", "second first"]
        choices = {i: its.split() for i, its in zip("abcde", choices, strict=True)}
        human = study.human({"choices": choices, "responses": [[], []], "raters": raters})
        out, figures = study.run("--human_addr", human, "--evaluator", "A", *files)
        assert f"- {said}\n" in out
        # The raters agree on 3 of 5; chance: first 2 * 2, second 2 * 1, tie 1 * 2 of 25.
        assert figures["human"]["kappa"] == (pytest.approx((15 - 8) / (25 - 8)) if len(raters) == 2 else None)
        # One of two: the exact limits are 1 - sqrt(0.975) and its root.
        root = math.sqrt(0.975)
        limits = [pytest.approx(1 - root), pytest.approx(root)]
        assert figures["human"]["sign_test"] == {"share": 0.5, "interval": limits, "p": 1}
        assert figures["evaluators"][0]["accuracy"] == 4 / 5  # b and e are ties like c


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("HUMANS --evaluator a.json", "--evaluator 'a.json': needs a name, then its score files"),
        ("HUMANS --evaluator A a.json", "--evaluator 'A': found a.json of strategy aspect, expected one pair"),
        ("HUMANS --evaluator A p.json q.json", "--evaluator 'A': found p.json and q.json of strategy pairwise, "),
        ("AB --evaluator A p.json", "--evaluator 'A': found p.json of strategy aspect and pairwise, expected "),
        ("HUMANS --evaluator A a.json j.json", "j.json: judged differently from a.json\n  judge "),
        ("AB --evaluator A x.json y.json", "x.json: question 'c' is repeated in the files of --evaluator 'A'"),
        ("HUMANS --evaluator A a.json link.json", "link.json: appears twice; pass each file once"),
        ("HUMANS --evaluator A a.json other.json", "other.json: has different questions from a.json with the same ids"),
        ("--human_addr others.json --evaluator A a.json b.json",
         "others.json: has no question in common with --evaluator 'A' (a.json, b.json)\n  use human choices"),
        ("--human_addr none.json --evaluator A a.json b.json", "none.json: must be a non-empty object {question id: "),
        ("--evaluator A a.json b.json", "--evaluator: a single evaluator has nothing to be compared with; add another"),
        ("AB --evaluator P p.json", "p.json: its system 1 is system 2 in b.json\n  list "),
    ],
)  # fmt: skip
def test_a_mistake_is_named_and_the_output_is_unchanged(study, monkeypatch, words, message):
    monkeypatch.chdir(study.folder)
    for name, scores in {"x": {"x": 1, "c": None}, "y": {"x": 1}}.items():
        study.aspect(f"{name}.json", scores)
    study.aspect("a.json", FIRST, judge="j", responses="aa")
    study.aspect("b.json", SECOND, judge="j", responses="bb")
    study.aspect("j.json", SECOND, judge="other", responses="bb")
    study.change(study.aspect("other.json", SECOND), "a", question_sha256="another")
    for name in "pq":
        study.pairwise(f"{name}.json", {"a": None}, judge="j", responses=["bb", "aa"])
    for name, content in (("human", HUMAN), ("others", {"nobody's": "first"}), ("none", {})):
        study.write(f"{name}.json", content)
    (study.folder / "link.json").symlink_to("a.json")
    study.output.write_text("mine")
    words = words.replace("AB", "HUMANS --evaluator A a.json b.json").replace("HUMANS", "--human_addr human.json")
    assert refusal(*words.split(), "--output_addr", study.output, "--overwrite").startswith(message)
    assert study.output.read_text() == "mine"


@pytest.mark.parametrize(
    ("choices", "expected"),
    [("1", "1"), ("00", "0"), ("12", None), ("121", "1"), ("120", None), ("1120", None)],  # half is not more than half
)
def test_the_majority_is_more_than_half(choices, expected):
    assert majority(choices) == expected


def test_a_pair_with_a_missing_answer_is_a_preference_without_swap(study):
    pairs = study.pairwise("pairs.json", {"a": "win", "b": "tie", "c": "tie"})
    study.change(pairs, "c", answered=[False, False], details=[])
    human = study.human({"a": "first", "b": "tie", "c": "tie"})
    row = study.row(human, pairs)
    assert (row["num_questions"], row["accuracy"], row["position_swap_rate"]) == (3, 1.0, 0.5)
