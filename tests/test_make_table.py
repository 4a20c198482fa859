"""make_table.py on score files written by hand."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from utils.cli import UserError
from utils.make_table import main

ROOT = Path(__file__).resolve().parent.parent
HEADER = (
    "| System | Arts & Entertainment | Lifestyle & Personal Development | Society & Culture | "
    "Average (macro) | Questions | Unscored aspects |"
)


def question(question_id, category, *aspect_scores):
    """An entry as evaluate_responses.py writes it, its score worked out apart from the code under test."""
    score = None
    if aspect_scores and None not in aspect_scores:
        score = sum(aspect_scores) / 2 / len(aspect_scores)
    details = [{"aspect": f"aspect {i}", "score": s} for i, s in enumerate(aspect_scores)]
    return {"id": question_id, "category": category, "score": score, "details": details}


@pytest.fixture
def score_file(tmp_path):
    def write(name, *questions, **more):
        path = tmp_path / name
        path.write_text(json.dumps({"score": 0.5, "per_question_scores": questions, **more}), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def complete(score_file):
    """One file with a question a category: 3/4, 1/2 and 0, macro average 1.25/3."""
    return score_file("a.json", question("1", "rpg", 2, 1), question("2", "diy", 1), question("3", "law", 0))


def refusal(*arguments):
    with pytest.raises(UserError) as error:
        main([str(argument) for argument in arguments])
    return str(error.value)


class TestNumbers:
    def test_files_are_pooled_and_grouped_by_community(self, score_file, capsys):
        first = score_file("1.json", question("a", "music", 2, 2), question("b", "pets", 1, 0, 1))
        second = score_file("2.json", question("c", "anime", 0, 1), question("d", "history", 1))
        third = score_file(
            "3.json",
            question("a", "music", 2),
            question("b", "pets", 2),
            question("c", "anime", 2),
            question("d", "history", 2),
        )
        assert main(["--system", "RAG", first, second, "--system", "Gold plans", third]) == 0
        assert capsys.readouterr().out.splitlines() == [
            HEADER,
            "|:---|---:|---:|---:|---:|---:|---:|",
            # Arts (1 + 1/4) / 2, Lifestyle 2/6, Society 1/2, macro (0.625 + 0.3333 + 0.5) / 3
            "| RAG | 0.6250 | 0.3333 | 0.5000 | 0.4861 | 4 | 0 |",
            "| Gold plans | 1.0000 | 1.0000 | 1.0000 | 1.0000 | 4 | 0 |",
        ]

    def test_an_unscored_aspect_takes_its_question_out_of_the_mean(self, score_file, capsys):
        path = score_file("a.json", question("1", "rpg", 2), question("2", "rpg", 2, None, None, 1))
        main(["--system", "RAG", path])
        assert capsys.readouterr().out.splitlines()[2:] == [
            "| RAG | 1.0000 | – | – | – | 2 | 2 |",
            "",
            "- RAG: 2 aspects without a verdict, in 1 question; these questions are left out of its means.",
        ]

    def test_unscored_as_zero(self, score_file, capsys):
        path = score_file("a.json", question("1", "rpg", 2), question("2", "rpg", 2, None, None, 1))
        main(["--system", "RAG", path, "--unscored_as_zero"])
        assert capsys.readouterr().out.splitlines()[2:] == [
            "| RAG | 0.6875 | – | – | – | 2 | 2 |",  # (1 + 3/8) / 2
            "",
            "- RAG: 2 aspects without a verdict, in 1 question; they count 0.",
        ]

    def test_a_category_whose_questions_all_lack_a_verdict_is_a_dash(self, score_file, capsys):
        path = score_file("a.json", question("1", "rpg", 2), question("2", "diy", None), question("3", "law", 1))
        main(["--system", "RAG", path])
        assert "| RAG | 1.0000 | – | 0.5000 | – | 3 | 1 |" in capsys.readouterr().out


class TestNotes:
    def test_a_complete_table_has_none(self, complete, capsys):
        main(["--system", "RAG", complete])
        assert len(capsys.readouterr().out.splitlines()) == 3

    def test_questions_without_aspects_are_named_and_not_counted(self, score_file, capsys):
        path = score_file("a.json", question("1", "rpg", 2), question("7", "rpg"))
        main(["--system", "RAG", path])
        out = capsys.readouterr().out
        assert "| RAG | 1.0000 | – | – | – | 1 | 0 |" in out
        assert "- RAG: 1 question without aspects, not scored: 7.\n" in out

    def test_partial_files_are_named(self, score_file, capsys):
        path = score_file("part.json", question("1", "rpg", 2), partial={"num_missing": 3})
        main(["--system", "RAG", path])
        assert f"- RAG: scored only in part in {path}.\n" in capsys.readouterr().out

    def test_systems_on_different_questions_draw_a_warning(self, complete, score_file, capsys):
        other = score_file("b.json", question("1", "rpg", 2), question("9", "diy", 2))
        main(["--system", "None", complete, "--system", "RAG", other])
        assert capsys.readouterr().out.splitlines()[-1] == (
            "- Warning: not all systems were scored on the same questions; their numbers do not compare: "
            "None lacks 1 of 4, RAG lacks 2 of 4."
        )


class TestForms:
    def test_latex(self, complete, score_file, capsys):
        other = score_file("b.json", question("1", "rpg", 1), question("2", "diy", None), question("3", "law", 1))
        main(["--system", "No personalization", complete, "--system", "RAG", other, "--format", "latex"])
        assert capsys.readouterr().out.splitlines() == [
            r"% \usepackage{booktabs}",
            r"\begin{tabular}{lrrrrrr}",
            r"\toprule",
            r"{System} & {Arts \& Entertainment} & {Lifestyle \& Personal Development} & "
            r"{Society \& Culture} & {Average (macro)} & {Questions} & {Unscored aspects} \\",
            r"\midrule",
            r"{No personalization} & {0.7500} & {0.5000} & {0.0000} & {0.4167} & {3} & {0} \\",
            r"{RAG} & {0.5000} & {--} & {0.5000} & {--} & {3} & {1} \\",
            r"\bottomrule",
            r"\multicolumn{7}{p{\linewidth}}{\footnotesize RAG: 1 aspect without a verdict, in 1 question; "
            r"these questions are left out of its means.} \\",
            r"\end{tabular}",
        ]

    def test_latex_escapes_every_special_character_and_shields_brackets(self, complete, capsys):
        main(["--system", r"[a] & % $ # _ { } ~ ^ \ <|>", complete, "--format", "latex"])
        name = (
            r"{[a] \& \% \$ \# \_ \{ \} \textasciitilde{} \textasciicircum{} \textbackslash{} "
            r"\textless{}\textbar{}\textgreater{}}"
        )
        assert capsys.readouterr().out.splitlines()[5].startswith(name + " & ")

    def test_markdown_shields_the_column_sign(self, complete, capsys):
        main(["--system", "a|b", complete])
        assert r"| a\|b | 0.7500 |" in capsys.readouterr().out

    def test_csv_holds_full_precision_and_sends_its_notes_to_stderr(self, score_file, capsys):
        path = score_file("a.json", question("1", "rpg", 2, 0, 0), question("2", "law", None))
        main(["--system", 'RAG, "k=10"', path, "--format", "csv"])
        captured = capsys.readouterr()
        rows = list(csv.reader(io.StringIO(captured.out)))
        assert rows[1] == ['RAG, "k=10"', "0.3333333333333333", "", "", "", "2", "1"]
        assert [len(row) for row in rows] == [7, 7]
        assert captured.err.startswith('note: RAG, "k=10": 1 aspect without a verdict')

    def test_output_file_holds_the_table_and_is_not_replaced_unasked(self, complete, tmp_path, capsys):
        output = tmp_path / "table.md"
        arguments = ["--system", "RAG", complete, "--output_addr", str(output)]
        main(arguments)
        table = output.read_text(encoding="utf-8")
        assert table.startswith(HEADER + "\n")
        assert capsys.readouterr().out == ""

        arguments[1] = "PlanPers"
        assert str(output) in refusal(*arguments)
        assert output.read_text(encoding="utf-8") == table
        main([*arguments, "--overwrite"])
        assert output.read_text(encoding="utf-8") == table.replace("RAG", "PlanPers")


class TestRefusals:
    def test_a_name_without_files(self):
        assert refusal("--system", "rag.json") == (
            "--system 'rag.json': no score file; give a name, then one or more files"
        )

    def test_a_name_given_twice(self, complete):
        assert "'RAG' is given twice" in refusal("--system", "RAG", complete, "--system", "RAG", complete)

    def test_a_question_twice_in_one_system_names_both_files(self, complete, score_file):
        other = score_file("b.json", question("3", "law", 2))
        message = refusal("--system", "RAG", complete, other)
        assert "question '3'" in message
        assert f"{complete} and in {other}" in message

    def test_a_community_of_no_category_says_where_to_add_it(self, score_file):
        path = score_file("a.json", question("1", "astrology", 2))
        message = refusal("--system", "RAG", path)
        assert f"{path}: question '1': no category is known for the community 'astrology'" in message
        assert "utils/scoring.py" in message

    @pytest.mark.parametrize("content", ["[]", '{"1": [{"output": "x"}]}', '{"per_question_scores": {}}'])
    def test_a_file_that_is_no_score_file(self, tmp_path, content):
        path = tmp_path / "responses.json"
        path.write_text(content, encoding="utf-8")
        assert f"{path}: not a score file" in refusal("--system", "RAG", path)

    def test_a_missing_file(self, tmp_path):
        assert "no such file" in refusal("--system", "RAG", tmp_path / "gone.json")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"id": 1}, "item 0: not a scored question"),
            ({"category": None}, "community None"),
            ({"category": ["rpg"]}, r"community \['rpg'\]"),
            ({"details": None}, "field 'details'"),
            ({"details": [{"aspect": "x"}]}, "field 'details'"),
            ({"details": [{"aspect": "x", "score": 7}]}, "question '1': 7 is not a verdict"),
            ({"score": 0.75}, "its score is 0.75, but its aspects give 0.5"),
            ({"score": None}, "its score is None, but its aspects give 0.5"),
            ({"details": []}, "its score is 0.5, but its aspects give None"),
        ],
    )
    def test_a_question_that_does_not_hold_together(self, score_file, change, message):
        path = score_file("a.json", question("1", "rpg", 2, 0) | change)
        with pytest.raises(UserError, match=message):
            main(["--system", "RAG", path])


def run_script(*arguments):
    command = [sys.executable, "utils/make_table.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_script_runs_from_the_root(complete):
    result = run_script("--system", "RAG", complete)
    assert (result.returncode, result.stderr) == (0, "")
    assert "| RAG | 0.7500 | 0.5000 | 0.0000 | 0.4167 | 3 | 0 |" in result.stdout


def test_a_user_error_is_one_message_and_exit_code_2():
    result = run_script("--system", "RAG")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: --system 'RAG': no score file; give a name, then one or more files\n"


def test_help_loads_no_model_library():
    code = (
        "import sys; from utils.make_table import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: sys.exit(len({'torch', 'vllm', 'transformers', 'openai'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert "--unscored_as_zero" in result.stdout
