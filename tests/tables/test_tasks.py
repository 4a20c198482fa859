"""The parts of tables that depend on the benchmark: columns and groups, which are never mixed."""

from dataclasses import replace

import pytest
from test_make_table import question, score_file, scored  # noqa: F401

from utils import compare_evaluators, make_table
from utils.base.errors import UserError
from utils.benchmarks import tasks
from utils.benchmarks.lampqa.task import TASK
from utils.data.scores import read_scores
from utils.tables.columns import columns_of
from utils.tables.groups import with_own_groups

ALONE = replace(
    TASK,
    name="Alone",
    groups=("Everything",),
    group_of=lambda record: {"group": "Everything"},
    group_words=("topic", "topics", "subtopic"),
    short={},
    files=replace(TASK.files, paper_results=None),
)


@pytest.fixture
def alone(monkeypatch):
    """A task with one group and no subgroups."""
    monkeypatch.setitem(tasks(), "Alone", ALONE)


@pytest.fixture
def two(alone, score_file):
    first = score_file("first.json", *scored("rpg", 0.25, 0.25, 0.5), task="Alone")
    return [first, score_file("second.json", *scored("rpg", 0.5, 0.75, 1.0), task="Alone")]


def test_old_and_new_score_files_are_read_alike(score_file):
    now = {"group": "Arts & Entertainment", "subgroup": "rpg"}
    entry = question("1", "rpg", 2)
    old = score_file("old.json", entry)
    del entry["category"]
    new = score_file("new.json", {**entry, **now})
    [was], [found] = (read_scores(path)["per_question_scores"] for path in (old, new))
    assert {name: was[name] for name in found} == found
    assert now.items() <= was.items()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"group": "Sports"}, "field 'group' is 'Sports', not a group of LaMP-QA"),
        ({"group": "Arts & Entertainment", "subgroup": 5}, "field 'subgroup': Expected `str`, got `int`"),
    ],
)
def test_a_group_unknown_to_the_task_is_refused(score_file, wrong, told):
    path = score_file("a.json", {**question("1", "rpg", 2), **wrong})
    with pytest.raises(UserError, match=rf"a\.json: question '1': {told}"):
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


def test_scores_of_two_tasks_do_not_share_a_table(two, score_file, tmp_path):
    other, another = (score_file(f"{name}.json", *scored("rpg", 0.5, 0.5, 0.5)) for name in ("other", "another"))
    message = rf"{other}: has scores of LaMP-QA, but {two[0]} has scores of Alone\n"
    with pytest.raises(UserError, match=message):
        make_table.main(["--system", "A", two[0], "--system", "B", other])
    with pytest.raises(UserError, match=message):
        make_table.main(["--system", "A", two[0], other])
    with pytest.raises(UserError, match=message):
        compare_evaluators.main(["--evaluator", "A", *two, "--evaluator", "B", other, another])


def test_a_question_without_a_group_beside_others_is_among_all_questions_alone():
    entries = [{"id": "1", "group": "LaMP-4"}, {"id": "2", "group": None}]
    task, _ = with_own_groups(tasks()["LaMP-4"], {"scores.json": {"per_question_scores": entries}})
    assert columns_of(task) == ["LaMP-4", "All questions"]
