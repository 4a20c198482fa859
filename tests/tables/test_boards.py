"""Tables over several tasks of one benchmark, each by its metrics, and the paper's numbers beside them."""

import csv
import io
import json
import random
import re
import shutil
import subprocess

import pytest

from utils import make_figures, make_table
from utils.benchmarks import tasks
from utils.benchmarks.lamp import TAGS
from utils.cli import UserError
from utils.files.manifest import publish
from utils.records.scores import score_file
from utils.scoring.verdicts import no_answer
from utils.tables.paper_results import read_paper
from utils.tables.significance import holm

METRICS = {"LaMP-2": ("accuracy", "f1"), "LaMP-3": ("MAE", "RMSE"), "LaMP-4": ("rouge-1", "rouge-L")}
HEADS = [f"{task}, {metric}" for task, metrics in METRICS.items() for metric in metrics]


class Made:
    """Score files of made-up answers."""

    def __init__(self, folder):
        self.folder = folder

    def scores(self, system, task_name, metric_name, answers, targets):
        """A file's path; None is no answer."""
        task = tasks()[task_name]
        metric = task.metrics[metric_name]
        records = [{"id": f"{i}", "question": f"{task_name}?", "target": target} for i, target in enumerate(targets)]
        verdicts = {
            (record["id"], 0): no_answer([False]) if answer is None else {"value": metric.compute(record, answer)}
            for record, answer in zip(records, answers, strict=True)
        }
        path = self.folder / f"{system}_{task_name}_{metric_name}.json"
        content = score_file(task, metric_name, records, set(), verdicts)
        publish(path, content, {"settings": {"strategy": metric_name, "responses": f"{system} {task_name}"}})
        return str(path)

    def system(self, name, skill, seed, of=METRICS):
        """The files of a system that is right as often as `skill` says; one LaMP-3 answer is missing."""
        dice, paths = random.Random(seed), []
        for task in of:
            same = random.Random(task)  # of all systems
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
    """The rows by name, and the rest of what make_table.py prints."""

    def make(*arguments):
        capsys.readouterr()
        assert make_table.main(list(map(str, arguments))) == 0
        lines = capsys.readouterr().out.splitlines()
        rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
        return rows[0], {row[0]: row[1:] for row in rows[2:]}, [line for line in lines if line.startswith("- ")]

    return make


def test_a_column_is_a_task_by_a_metric(two, table):
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
    assert bold == [True] * 6  # also of errors, of which its are lower


@pytest.mark.parametrize("order", [1, -1])
def test_each_column_is_what_the_table_of_its_files_alone_has(two, table, order):
    baseline = ["--baseline", "No personalization"]
    paths = [word for word in two if word.endswith(".json")]
    systems = {"No personalization": paths[:6][::order], "BM25, k = 1": paths[6:][::order]}
    words = [word for name, its in systems.items() for word in ("--system", name, *its)]
    _, rows, _ = table(*words, *baseline)
    for number in range(6):
        pair = ["--system", "No personalization", paths[number], "--system", "BM25, k = 1", paths[6 + number]]
        _, alone, _ = table(*pair, *baseline)
        assert {name: cells[number] for name, cells in rows.items()} == {name: its[0] for name, its in alone.items()}
    daggers = {head for head, cell in zip(HEADS, rows["BM25, k = 1"], strict=False) if cell.endswith("**†")}
    assert daggers >= {"LaMP-2, accuracy", "LaMP-2, f1", "LaMP-3, MAE", "LaMP-4, rouge-1"}


def test_the_notes_say_which_test_a_dagger_is_by(two, table):
    _, _, notes = table(*two, "--baseline", "No personalization", "--holm")
    assert (
        "- †: better than No personalization (two-sided paired t-test or permutation test, p < 0.05, "
        "Holm's correction over 6 comparisons)."
    ) in notes
    by_permutation = (
        "- By the permutation test: LaMP-2, f1; LaMP-3, RMSE; their scores are no means of their questions'."
    )
    assert by_permutation in notes


def test_holms_correction_is_over_all_columns(two, capsys):
    def p_values(*flags):
        make_table.main([*two, "--baseline", "No personalization", "--format", "csv", *flags])
        _, row = csv.DictReader(io.StringIO(capsys.readouterr().out))
        names = ["permutation p" if head in ("LaMP-2, f1", "LaMP-3, RMSE") else "t-test p" for head in HEADS]
        corrected = " (Holm)" if "--holm" in flags else ""
        keys = [
            f"{head}: {name}{corrected} against No personalization" for head, name in zip(HEADS, names, strict=True)
        ]
        return [float(row[key]) for key in keys]

    assert p_values("--holm") == pytest.approx(holm(p_values()))


def test_intervals_and_csv_name_their_columns(two, table, capsys):
    _, rows, notes = table(*two, "--baseline", "No personalization", "--intervals")
    assert rows["BM25, k = 1"][:2] == ["No personalization", "LaMP-4, rouge-L"]  # the last line of all
    assert any("10,000 sign flips or swaps of the two answers, two-sided." in note for note in notes)
    paired = [note for note in notes if "paired questions; left out" in note]
    assert [note[2:8] for note in paired] == list(METRICS)  # once a task
    make_table.main([*two, "--baseline", "No personalization", "--format", "csv"])
    weak, strong = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert list(weak)[:8] == ["System", *HEADS, "Questions"]
    assert float(strong["LaMP-3, MAE: difference against No personalization"]) < 0
    assert strong["LaMP-2: Left out against No personalization: scored here only"] == "0"


def test_a_missing_task_is_a_dash_and_said(made, two, table):
    some = made.system("Recency", 0.9, 3, of=("LaMP-3",))
    _, rows, notes = table(*two, "--system", "Recency", *some, "--baseline", "No personalization")
    assert rows["Recency"][:2] == ["–", "–"] and rows["Recency"][4:6] == ["–", "–"]
    assert rows["Recency"][2].endswith("†") and rows["Recency"][6] == "40"
    assert "- Recency: no scores of LaMP-2, accuracy; LaMP-2, f1; LaMP-4, rouge-1; LaMP-4, rouge-L." in notes
    # Where a baseline has no scores nothing is better than every baseline.
    _, rows, _ = table(*two, "--system", "Recency", *some, "--baseline", "No personalization", "Recency")
    assert [cell.endswith("†") for cell in rows["BM25, k = 1"][:6]] == [False] * 6
    # In LaTeX a table of its own may have nothing of a row.
    words = ["--system", "Recency", *some, *two, "--format", "latex"]
    assert make_table.main(words) == 0
    one = made.system("One", 0.9, 4, of=("LaMP-2",))[1:]  # by one of two metrics
    _, rows, _ = table("--system", "One", *one, *two)
    assert rows["One"] == ["–", rows["One"][1], "–", "–", "–", "–", "40", "0", "0"]


def test_latex_has_the_task_above_its_metrics(two, capsys):
    make_table.main([*two, "--format", "latex"])
    text = capsys.readouterr().out
    assert r"\multicolumn{2}{c}{LaMP-2} & \multicolumn{2}{c}{LaMP-3} & \multicolumn{3}{c}{}" in text
    assert "{accuracy} & {f1} & {MAE} & {RMSE} & {Qns.}" in text
    assert r"\multicolumn{2}{c}{LaMP-4} & " in text and "{rouge-1} & {rouge-L} & {Qns.}" in text  # in the next one
    assert text.count(r"\begin{tabular}") == 2 and text.count("lower is better") == 1


def typeset(document, folder):
    program = shutil.which("pdflatex") or shutil.which("tectonic")
    if program is None:
        pytest.skip("neither pdflatex nor tectonic is installed")
    preamble = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n\\noindent\n"
    (folder / "table.tex").write_text(f"{preamble}{document}\\end{{document}}\n", encoding="utf-8")
    flags = ["-halt-on-error", "-interaction=nonstopmode"] if program.endswith("pdflatex") else ["--keep-logs"]
    done = subprocess.run([program, *flags, "table.tex"], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:]
    return folder


def test_latex_fits_a_page(two, capsys, tmp_path):
    words = [*two, "--baseline", "No personalization", "--paper", "FlanT5-base", "--paper_table", "user"]
    make_table.main([*words, "--intervals", "--format", "latex"])
    log = (typeset(capsys.readouterr().out, tmp_path) / "table.log").read_text(encoding="utf-8", errors="replace")
    assert r"Overfull \hbox" not in log


# What is refused


def refused(*arguments):
    with pytest.raises(UserError) as error:
        make_table.main(list(map(str, arguments)))
    return str(error.value)


def test_other_questions_or_responses_are_refused(made, two):
    paths = [word for word in two if word.endswith(".json")]
    short = made.scores("short", "LaMP-2", "f1", ["comedy"], ["comedy"])
    assert "lacks 39 of the 40 questions" in refused("--system", "A", paths[0], "--system", "B", short)
    message = refused("--system", "A", paths[0], paths[7])  # one system's accuracy and the other's F1
    assert message.startswith(f"--system 'A': {paths[7]} has scores of other responses than {paths[0]}\n")
    message = refused("--system", "A", paths[2], paths[2 + 7])
    assert "has scores of other responses than" in message


def test_of_other_answers_without_manifests_are_refused_too(made, tmp_path):
    targets = ["3"] * 4
    first = made.scores("x", "LaMP-3", "MAE", ["3", None, "3", "3"], targets)
    other = made.scores("y", "LaMP-3", "RMSE", ["3", "3", "3", "3"], targets)
    for path in (first, other):
        (made.folder / f"{path}.manifest.json").unlink()
    assert "has scores of other responses than" in refused("--system", "A", first, other)


def test_a_figure_shows_one_task_by_one_metric(two, tmp_path):
    systems = ["4" if word.startswith("BM25") else "0" if word.startswith("No p") else word for word in two]
    with pytest.raises(
        UserError, match=r"scores of LaMP-2, f1, but .* has scores of LaMP-2, accuracy\n  a figure shows"
    ):
        make_figures.main(["--figure", "2", "--output_addr", str(tmp_path / "f"), *systems])


def test_an_axis_of_errors_does_not_stop_at_1(two, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(make_figures, "render_figure", lambda figure, *_: figures.append(figure) or {})
    far, near = (word for word in two if word.endswith("LaMP-3_MAE.json"))
    for figure in "23":
        systems = ["--system", "0", far, "--system", "4", near, "--output_addr", str(tmp_path / "f")]
        assert make_figures.main(["--figure", figure, *systems]) == 0
    by_posts, side_by_side = figures
    assert by_posts.axes[0].get_ylim()[1] > 1.2
    assert by_posts.get_supylabel() == side_by_side.axes[0].get_ylabel() == "error (lower is better)"


# The paper's numbers


def test_the_paper_s_numbers_stand_beside_ours_and_say_whose_they_are(two, table):
    paper = ["--paper", "FlanT5-base", "--paper_table", "user"]
    _, rows, notes = table(*two, *paper)
    assert re.fullmatch(r"(\*\*)?0\.\d{4}(\*\*)? \(0\.468, [+−]0\.\d{3}\)", rows["No personalization"][0])
    ours, (printed, difference) = (
        rows["BM25, k = 1"][3].split(" (")[0],
        rows["BM25, k = 1"][3][:-1].split("(")[1].split(", "),
    )
    assert printed == "0.573"
    assert float(difference.replace("−", "-")) == pytest.approx(float(ours.strip("*")) - 0.573, abs=1e-3)
    assert rows["FiD, k = 16 (paper)"] == ["0.642", "0.607", "0.236", "0.539", "0.180", "0.166", "–", "–", "–"]
    others = ["Random, non-personalized", "Random, k = 1", "Contriever, k = 1", "IPA, tuned", "FiD, k = 16"]
    assert list(rows)[2:] == [f"{name} (paper)" for name in others]
    assert "- With each mean: the paper's user-based setting, FlanT5-base, and the difference to it." in notes
    [told] = [note for note in notes if note.startswith("- FlanT5-base: fine-tuned on each task's training set. ")]
    assert "only where its model was trained in the same way" in told and "another model" not in told
    assert notes[-1].startswith("- Wording of the answers' prompts: ")
    assert "judge" not in notes[-1]


def test_also_beside_one_column_and_in_csv(two, table, capsys):
    path = next(word for word in two if word.endswith("LaMP-3_RMSE.json"))
    paper = ["--paper", "FlanT5-base", "--paper_table", "time"]
    heads, rows, _ = table("--system", "No personalization", path, *paper)
    assert heads[1] == "LaMP-3" and "(0.615, " in rows["No personalization"][0]
    assert rows["Recency, k = 1 (paper)"][0] == "0.608"
    make_table.main([*two, *paper, "--format", "csv"])
    lines = {row["System"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert lines["No personalization"]["LaMP-2, f1: paper"] == "0.443"
    assert lines["FiD, k = 16 (paper)"]["LaMP-2, f1: paper"] == "0.624"
    assert lines["FiD, k = 16 (paper)"]["LaMP-2, f1"] == ""


def test_a_table_or_task_that_the_paper_has_not_is_said(made, two):
    paper = ["--paper", "FlanT5-base"]
    assert refused(*two, *paper) == "--paper_table '2': the paper has no such table; name one: user, time"
    topic = made.scores("topic", "LongLaMP-topic", "rouge-1", ["a"], ["a"])
    message = refused("--system", "No personalization", topic, *paper, "--paper_table", "user")
    assert message == "--paper: the paper has no numbers on LongLaMP-topic, which these scores are of; leave it out"


@pytest.mark.parametrize("name", ["LaMP-QA", "LaMP-1", "LongLaMP-email"])
def test_the_files_of_printed_numbers_are_whole(name):
    task = tasks()[name]
    data = json.loads(task.paper_results.read_text(encoding="utf-8"))
    family = [one for one in tasks().values() if one.benchmark and one.benchmark == task.benchmark]
    known = {f"{one.name}, {metric}" for one in family for metric in one.metrics}
    assert not family or set(data["columns"]) <= known
    for table, printed in data["tables"].items():
        for model, methods in printed["models"].items():
            paper = read_paper(task, model, table, list(methods)[:1])
            assert paper.methods == list(methods) and paper.title
            assert all(0 < score < 1 for score in paper.scores.values())
            assert bool(paper.other_model) == bool(family)
            assert {len(method["scores"]) for method in methods.values()} == {len(data["columns"])}
    printed = {column for column in known if not column.endswith("-official")}  # the paper's own rule needs no name
    assert name != "LaMP-1" or set(data["columns"]) == printed - {"LaMP-1, f1"}  # of which the paper has accuracy alone
