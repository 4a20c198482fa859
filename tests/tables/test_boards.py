"""Tables of several tasks of a benchmark, each with its metrics, and the paper's numbers beside them."""

import csv
import io
import random
import re

import pytest

from utils import make_figures, make_table
from utils.base.errors import UserError
from utils.base.manifest import publish
from utils.benchmarks import tasks
from utils.benchmarks.lamp.task import TAGS
from utils.benchmarks.scoring import no_answer
from utils.data.scores import score_file
from utils.tables.significance import holm

METRICS = {"LaMP-2": ("accuracy", "f1"), "LaMP-3": ("MAE", "RMSE"), "LaMP-4": ("rouge-1", "rouge-L")}
HEADS = [f"{task}, {metric}" for task, metrics in METRICS.items() for metric in metrics]


class Made:
    """Score files of made-up answers."""

    def __init__(self, folder):
        self.folder = folder

    def scores(self, system, task_name, metric_name, answers, targets, first=0):
        """Write a score file, whose ids count from `first`, and return its path; None means no answer."""
        task = tasks()[task_name]
        metric = task.metrics[metric_name]
        records = [
            {"id": f"{i}", "question": f"{task_name}?", "target": target} for i, target in enumerate(targets, first)
        ]
        verdicts = {
            (record["id"], 0): no_answer([False]) if answer is None else {"value": metric.compute(record, answer)}
            for record, answer in zip(records, answers, strict=True)
        }
        path = self.folder / f"{system}_{task_name}_{metric_name}.json"
        content = score_file(task, metric_name, records, set(), verdicts)
        publish(path, content, {"settings": {"strategy": metric_name, "responses": f"{system} {task_name}"}})
        return str(path)

    def system(self, name, skill, seed, of=METRICS):
        """Return the files of a system whose share of right answers is `skill`; one LaMP-3 answer is missing."""
        dice, paths = random.Random(seed), []
        for task in of:
            same = random.Random(task)  # draws the same targets for every system
            if task == "LaMP-4":
                targets = [" ".join(same.sample(TAGS, 4)) for _ in range(40)]
                answers = [one if dice.random() < skill else " ".join(dice.sample(TAGS, 4)) for one in targets]
            else:
                labels = TAGS if task == "LaMP-2" else "12345"
                targets = [same.choice(labels) for _ in range(40)]
                answers = [one if dice.random() < skill else dice.choice(labels) for one in targets]
            answers = [None, *answers[1:]] if task == "LaMP-3" else answers
            paths += [self.scores(name, task, metric, answers, targets) for metric in METRICS[task]]
        return paths


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Made(tmp_path_factory.mktemp("scores"))


@pytest.fixture(scope="module")
def two(made):
    weak, strong = made.system("No personalization", 0.2, 1), made.system("BM25, k = 1", 0.9, 2)
    return ["--system", "No personalization", *weak, "--system", "BM25, k = 1", *strong]


@pytest.fixture
def table(capsys):
    """Return a function that runs make_table.py, and returns the header, the rows by name, and the notes."""

    def make(*arguments):
        capsys.readouterr()
        assert make_table.main(list(map(str, arguments))) == 0
        lines = capsys.readouterr().out.splitlines()
        rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
        return rows[0], {row[0]: row[1:] for row in rows[2:]}, [line for line in lines if line.startswith("- ")]

    return make


def test_each_column_is_a_task_and_a_metric(two, table):
    heads, rows, notes = table(*two)
    assert heads == ["System", *HEADS, "Questions", "Unanswered", "Unscored responses"]
    assert [cells[-3:] for cells in rows.values()] == [["120", "1", "0"]] * 2  # a question counts once
    missing = "without an answer, which counts as the rating that is farthest off."
    assert notes == [
        f"- LaMP-3: No personalization: 1 question {missing}",
        f"- LaMP-3: BM25, k = 1: 1 question {missing}",
        "- LaMP-3: Scores are errors: lower is better.",
    ]
    bold = [cell.startswith("**") for cell in rows["BM25, k = 1"][:6]]
    assert bold == [True] * 6  # also its errors, which are lower


def test_each_column_equals_the_table_of_its_files_alone(two, table):
    baseline = ["--baseline", "No personalization"]
    paths = [word for word in two if word.endswith(".json")]
    systems = {"No personalization": paths[:6][::-1], "BM25, k = 1": paths[6:][::-1]}
    words = [word for name, its in systems.items() for word in ("--system", name, *its)]
    _, rows, _ = table(*words, *baseline)
    for number in range(6):
        pair = ["--system", "No personalization", paths[number], "--system", "BM25, k = 1", paths[6 + number]]
        _, alone, _ = table(*pair, *baseline)
        assert {name: cells[number] for name, cells in rows.items()} == {name: its[0] for name, its in alone.items()}
    daggers = {head for head, cell in zip(HEADS, rows["BM25, k = 1"], strict=False) if cell.endswith("**†")}
    assert daggers >= {"LaMP-2, accuracy", "LaMP-2, f1", "LaMP-3, MAE", "LaMP-4, rouge-1"}


def test_holms_correction_is_over_all_columns_and_notes_name_the_tests(two, table, capsys):
    def p_values(*flags):
        make_table.main([*two, "--baseline", "No personalization", "--format", "csv", *flags])
        _, row = csv.DictReader(io.StringIO(capsys.readouterr().out))
        assert float(row["LaMP-3, MAE: difference against No personalization"]) < 0
        names = ["permutation p" if head in ("LaMP-2, f1", "LaMP-3, RMSE") else "t-test p" for head in HEADS]
        end = f"{' (Holm)' if flags else ''} against No personalization"
        return [float(row[f"{head}: {name}{end}"]) for head, name in zip(HEADS, names, strict=True)]

    assert p_values("--holm") == pytest.approx(holm(p_values()))
    _, _, notes = table(*two, "--baseline", "No personalization", "--holm")
    expected = "(two-sided paired t-test or permutation test, p < 0.05, Holm's correction over 6 comparisons)."
    assert f"- †: better than No personalization {expected}" in notes
    expected = "- By the permutation test: LaMP-2, f1; LaMP-3, RMSE; their scores are not means over questions."
    assert expected in notes


def test_a_missing_task_is_a_dash_with_a_note(made, two, table):
    some = made.system("Recency", 0.9, 3, of=("LaMP-3",))
    _, rows, notes = table(*two, "--system", "Recency", *some, "--baseline", "No personalization")
    assert rows["Recency"][:2] == ["–", "–"] and rows["Recency"][4:6] == ["–", "–"]
    assert rows["Recency"][2].endswith("†") and rows["Recency"][6] == "40"
    assert "- Recency: no scores of LaMP-2, accuracy; LaMP-2, f1; LaMP-4, rouge-1; LaMP-4, rouge-L." in notes
    # If a baseline has no scores, no system is better than every baseline.
    _, rows, _ = table(*two, "--system", "Recency", *some, "--baseline", "No personalization", "Recency")
    assert [cell.endswith("†") for cell in rows["BM25, k = 1"][:6]] == [False] * 6
    assert make_table.main(["--system", "Recency", *some, *two, "--format", "latex"]) == 0


def refused(*arguments):
    with pytest.raises(UserError) as error:
        make_table.main(list(map(str, arguments)))
    return str(error.value)


def test_other_questions_or_responses_are_refused(made, two):
    paths = [word for word in two if word.endswith(".json")]
    short = made.scores("short", "LaMP-2", "f1", ["comedy"], ["comedy"])
    assert "lacks 39 of 40 questions" in refused("--system", "A", paths[0], "--system", "B", short)
    message = refused("--system", "A", paths[0], paths[7])  # one system's accuracy and the other's F1
    assert message.startswith(f"--system 'A': {paths[7]} has scores of different responses from {paths[0]}\n")
    message = refused("--system", "A", paths[2], paths[2 + 7])
    assert "has scores of different responses from" in message


def test_the_papers_numbers_are_beside_ours_with_their_source(two, table):
    _, rows, notes = table(*two, "--paper", "FlanT5-base", "--paper_table", "user")
    ours, printed, difference = re.fullmatch(r"\**(\S+?)\** \((\S+), (\S+)\)", rows["BM25, k = 1"][3]).groups()
    assert printed == "0.573"
    assert float(difference.replace("−", "-")) == pytest.approx(float(ours) - 0.573, abs=1e-3)
    assert rows["FiD, k = 16 (paper)"] == ["0.642", "0.607", "0.236", "0.539", "0.180", "0.166", "–", "–", "–"]
    others = ["Random, non-personalized", "Random, k = 1", "Contriever, k = 1", "IPA, tuned", "FiD, k = 16"]
    assert list(rows)[2:] == [f"{name} (paper)" for name in others]
    assert (
        "- Beside each mean that is also in the paper: the paper's score and the difference from it. "
        "Source: user-based setting, FlanT5-base." in notes
    )
    [note] = [note for note in notes if note.startswith("- FlanT5-base: fine-tuned on each task's training set. ")]
    assert "only if its model was trained in the same way" in note
    assert refused(*two, "--paper", "FlanT5-base").startswith("--paper_table '2': the paper has no such table; the")


def test_a_figure_has_an_axis_for_errors_and_shows_one_task_and_metric(two, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(make_figures, "render_figure", lambda figure, *_: figures.append(figure) or b"")
    far, near = (word for word in two if word.endswith("LaMP-3_MAE.json"))
    words = ["--figure", "2", "--output_addr", str(tmp_path / "f")]
    assert make_figures.main([*words, "--system", "0", far, "--system", "4", near]) == 0
    assert figures[0].axes[0].get_ylim()[1] > 1.2
    assert figures[0].get_supylabel() == "error (lower is better)"
    systems = ["4" if word.startswith("BM25") else "0" if word.startswith("No p") else word for word in two]
    with pytest.raises(UserError, match=r"scores of LaMP-2, f1, but .* has scores of LaMP-2, accuracy\n  a figure"):
        make_figures.main([*words, *systems])


def test_means_of_all_metrics_are_over_the_same_questions(tmp_path, capsys):
    """For each metric, both systems have the same questions; RMSE has two fewer than MAE."""
    made, answers = Made(tmp_path), ["1", "2", "4", "1", "5"]
    words = []
    for name in ("one", "two"):
        sizes = {"MAE": 5, "RMSE": 3}
        files = [made.scores(name, "LaMP-3", metric, answers[:n], "12345"[:n]) for metric, n in sizes.items()]
        words += ["--system", name, *files]
    make_table.main([*words, "--allow_partial"])
    printed = capsys.readouterr().out
    assert "| one | 0.3333 | 0.5774 | 3 |" in printed
    expected = "Means are over the 3 questions scored for all systems: 2 of 5 lack a score by some metric."
    assert printed.count(f"- LaMP-3: {expected}") == 1


@pytest.mark.parametrize("order", [("MAE", "RMSE"), ("RMSE", "MAE")])
def test_a_metric_without_common_questions_decides_for_all_of_its_task(tmp_path, capsys, order):
    """By MAE, no question was scored for both systems. The order of the files makes no difference."""
    made, words = Made(tmp_path), []
    for name, first in (("one", 0), ("two", 2)):
        files = {"MAE": made.scores(name, "LaMP-3", "MAE", ["1", "2"], "12345"[first : first + 2], first)}
        files["RMSE"] = made.scores(name, "LaMP-3", "RMSE", ["1", "2", "4", "1", "5"], "12345")
        words += ["--system", name, *(files[metric] for metric in order)]
    make_table.main([*words, "--allow_partial"])
    assert capsys.readouterr().out.count("no question was scored for all systems") == 1
