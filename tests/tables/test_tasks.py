"""What hangs on the benchmark in tables, figures and reports: columns, words, and that they don't mix."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_make_table import question, score_file, scored  # noqa: F401

from utils import compare_evaluators, make_figures, make_table, report
from utils.benchmarks import tasks
from utils.benchmarks.lampqa import TASK
from utils.cli import UserError
from utils.records.scores import read_scores

ALONE = replace(
    TASK,
    name="Alone",
    groups=("Everything",),
    place=lambda record: {"group": "Everything"},
    group_words=("topic", "topics", "subtopic"),
    short={},
    paper_results=None,
)


@pytest.fixture
def alone(monkeypatch):
    """A task of one group that has no parts."""
    monkeypatch.setitem(tasks(), "Alone", ALONE)


@pytest.fixture
def two(alone, score_file):
    first = score_file("first.json", *scored("rpg", 0.25, 0.25, 0.5), task="Alone")
    return [first, score_file("second.json", *scored("rpg", 0.5, 0.75, 1.0), task="Alone")]


def test_a_score_file_of_before_and_one_of_now_are_read_alike(score_file):
    now = {"group": "Arts & Entertainment", "subgroup": "rpg"}
    entry = question("1", "rpg", 2)
    old = score_file("old.json", entry)
    del entry["category"]
    new = score_file("new.json", {**entry, **now})
    [was], [found] = (read_scores(path)["per_question_scores"] for path in (old, new))
    assert {name: was[name] for name in found} == found
    assert now.items() <= was.items()
    assert (read_scores(old)["task"], read_scores(old)["strategy"]) == ("LaMP-QA", "aspect")


def test_a_group_that_the_task_has_not_is_refused(score_file):
    path = score_file("a.json", {**question("1", "rpg", 2), "group": "Sports"})
    with pytest.raises(UserError, match=r"a\.json: question '1': field 'group' is 'Sports', not one of LaMP-QA's"):
        read_scores(path)


@pytest.mark.parametrize("subgroup", [None, 5, [], {}])
def test_a_subgroup_that_is_no_text_is_refused(score_file, subgroup):
    path = score_file("a.json", {**question("1", "rpg", 2), "group": "Arts & Entertainment", "subgroup": subgroup})
    with pytest.raises(UserError, match=r"a\.json: question '1': field 'subgroup' is .*, not a text"):
        read_scores(path)


def test_one_group_has_a_column_and_no_average(two, capsys):
    systems = ["--system", "RAG", two[0], "--system", "Ours", two[1], "--baseline", "RAG", "--intervals"]
    make_table.main(systems)
    out = capsys.readouterr().out
    assert out.splitlines()[:4] == [
        "| System | Everything | Questions | Unanswered | Unscored aspects |",
        "|:---|---:|---:|---:|---:|",
        "| RAG | 0.3333 | 3 | 0 | 0 |",
        "| Ours | **0.7500**† | 3 | 0 | 0 |",
    ]
    assert "average" not in out.lower()


def test_one_group_is_one_panel(two, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(make_figures, "render_figure", lambda figure, *_: figures.append(figure) or {})
    systems = ["--system", "1", two[0], "--system", "2", two[1], "--output_addr", str(tmp_path / "f")]
    make_figures.main(["--figure", "2", *systems])
    make_figures.main(["--figure", "3", *systems])
    assert [panel.get_title() for panel in figures[0].axes] == ["Everything"]
    assert len(figures[1].axes[0].get_xticks()) == 1


def test_the_report_says_the_task_s_words(two, tmp_path):
    rpg = {"task": "Alone", "id": "rpg0", "question": "Which?", "profile": [], "narrative": "Because."}
    records = [
        {**rpg, "id": f"rpg{i}", "rubric_aspects": [{"aspect": f"aspect {n}"} for n in (0, 1)]} for i in range(3)
    ]
    (tmp_path / "data.json").write_text(json.dumps(records))
    (tmp_path / "rag.json").write_text(json.dumps({record["id"]: [{"output": "x"}] for record in records}))
    files = ["--inputs_addr", str(tmp_path / "data.json"), "--output_addr", str(tmp_path / "report.html")]
    report.main([*files, "--system", "RAG", str(tmp_path / "rag.json"), two[0]])
    page = (tmp_path / "report.html").read_text()
    assert "<title>Alone report</title>" in page and "<label>Topic <select" in page
    assert "a topic\\u2019s score is the mean over its questions. " in page
    assert "ategor" not in page and "ommunit" not in page and "{{" not in page.replace("{{}", "")


def test_scores_of_two_tasks_do_not_stand_in_one_table(two, score_file, tmp_path):
    other, another = (score_file(f"{name}.json", *scored("rpg", 0.5, 0.5, 0.5)) for name in ("other", "another"))
    message = rf"{other}: scores of LaMP-QA, but {two[0]} has scores of Alone\n"
    with pytest.raises(UserError, match=message):
        make_table.main(["--system", "A", two[0], "--system", "B", other])
    with pytest.raises(UserError, match=message):
        make_table.main(["--system", "A", two[0], other])
    with pytest.raises(UserError, match=message):
        compare_evaluators.main(["--evaluator", "A", *two, "--evaluator", "B", other, another])


def test_words_and_facts_are_the_task_s(alone, score_file, capsys, monkeypatch):
    monkeypatch.setitem(tasks(), "Alone", replace(ALONE, groups=("One", "Two"), place=TASK.place))
    path = score_file("a.json", {**question("1", "x", 2), "group": None, "subgroup": "y"}, task="Alone")
    with pytest.raises(UserError) as error:
        make_table.main(["--system", "A", path])
    assert "no topic is known for the subtopic 'y'" in str(error.value)
    assert str(error.value).endswith(f"add it to the topic it belongs to in {TASK.facts}")
    assert Path(TASK.facts).name == "lampqa_communities.toml"
