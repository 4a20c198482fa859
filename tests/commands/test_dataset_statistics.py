"""dataset_statistics.py on hand-written datasets; the figure's bars are compared with the counts."""

import json
from collections import Counter
from pathlib import Path

import pytest

from utils.base.errors import UserError
from utils.benchmarks.lampqa.task import CATEGORIES, COMMUNITIES, TASK
from utils.dataset_statistics import main
from utils.show.dataset_counts import Column
from utils.show.paper_figures import communities_figure

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests" / "data" / "mini_lampqa"
METHOD = (
    "Mean ± population standard deviation over a file's questions; words are separated by white space. "
    "The paper does not say which standard deviation it prints, nor the unit of its lengths."
)


def record(number, words=3, narrative_words=5, posts=1, aspects=2, category="rpg", **more):
    """Return a question with fields of these sizes."""
    return {
        "id": f"q{number}",
        "question": " ".join(["Why"] * words),
        "narrative": " ".join(["because"] * narrative_words),
        "category": category,
        "rubric_aspects": [{"aspect": f"a{i}", "evidence": "", "reason": ""} for i in range(aspects)],
        "profile": [{"id": f"p{i}", "text": "Earlier post", "category": "law"} for i in range(posts)],
        **more,
    }


TWO = [
    record(1, words=3, narrative_words=10, posts=0, aspects=2),
    record(2, words=6, narrative_words=40, posts=5, aspects=5),
]
# Means (3 + 6) / 2, (10 + 40) / 2, (0 + 5) / 2, (2 + 5) / 2; of two numbers the deviation is half their distance.
TWO_CELLS = ["2", "3.5 ± 1.5", "2.5 ± 2.5", "4.5 ± 1.5", "25.0 ± 15.0"]


@pytest.fixture
def dataset(tmp_path):
    def write(name, *records):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        lines = [json.dumps(record, ensure_ascii=False) for record in records]
        path.write_text("\n".join(lines) if path.suffix == ".jsonl" else f"[{', '.join(lines)}]", encoding="utf-8")
        return str(path)

    return write


def table(capsys, *arguments):
    """Return the header, the rows by label (the paper's by position), and the notes of the Markdown table."""
    capsys.readouterr()
    assert main(["--inputs_addr", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    empty = lines.index("")
    head, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in [lines[0], *lines[2:empty]]]
    return head, rows, [line.removeprefix("- ") for line in lines[empty + 1 :]]


def refusal(*arguments):
    with pytest.raises(UserError) as error:
        main(["--inputs_addr", *map(str, arguments)])
    return str(error.value)


def test_posts_that_leak_judged_texts_are_counted(dataset, capsys):
    """By hand: posts 0, 1 and 4 contain the narrative, posts 3 and 4 a reason; 4 has both reasons and counts once."""
    reasons = ["They have a dog.", "It is their first time."]
    posts = [
        "Which flat? I need  a quiet\nflat. They have", "Where? So: I need a quiet flat. Thanks", "I need a quiet",
        "They have a dog.", "I need a quiet flat. They have a dog. It is their first time.", "I need a quiet flat.s",
    ]  # fmt: skip
    own = record(1, posts=0) | {
        "narrative": "I need a quiet flat.",
        "rubric_aspects": [{"aspect": "a", "evidence": "quiet", "reason": reason} for reason in reasons],
        "profile": [{"id": str(i), "text": text} for i, text in enumerate(posts)],
    }
    # Another question's narrative, empty texts and invalid values do not count.
    other = record(2, narrative="", rubric_aspects=["a"], profile=[{"text": posts[0]}, {"text": 5}, "I need"])
    _, _, notes = table(capsys, dataset("own.json", own, other))
    assert [note for note in notes if "word for word" in note] == [
        "own.json: 3 of 9 profile posts contain the narrative word for word, though only the judge may see it.",
        "own.json: 2 of 9 profile posts contain an aspect's reason word for word, though only the judge may see it.",
    ]


def test_missing_fields_are_left_out_of_the_mean_and_empty_ones_count_0(dataset, capsys):
    bare = {"id": 3, "question": "What is this?"}
    nulls = {"id": 4, "question": "Is it so?", "narrative": None, "category": None, "rubric_aspects": []}
    _, rows, notes = table(capsys, dataset("own.json", *TWO, bare, nulls))
    # Aspects (2 + 5 + 0) / 3, squares (1/9 + 64/9 + 49/9) / 3 = 38/9, root 2.05; words (3 + 6 + 3 + 3) / 4, root of
    # (0.5625 * 3 + 5.0625) / 4 = 1.6875, which is 1.30; posts and narratives as without these two.
    assert [row[1] for row in rows] == ["4", "2.3 ± 2.1", "2.5 ± 2.5", "3.8 ± 1.3", "25.0 ± 15.0"]
    assert notes[1:] == [
        "own.json: 1 of 4 questions without 'rubric_aspects', left out of the mean.",
        "own.json: 1 of 4 questions with an empty 'rubric_aspects', counted as 0.",
        "own.json: 2 of 4 questions without 'profile', left out of the mean.",
        "own.json: 1 of 4 questions with an empty 'profile', counted as 0.",
        "own.json: 2 of 4 questions without 'narrative', left out of the mean.",
        "own.json: 2 of 4 questions without 'category'.",
    ]


def test_a_file_counts_once(dataset):
    path = dataset("own.json", *TWO)
    assert refusal(path, path) == f"--inputs_addr {path}: appears twice; pass each file once"


LABELS = ["Questions (users)", "Aspects per question", "Profile size (posts)", "Question length (words)",
          "Narrative length (words)"]  # fmt: skip


def test_means_and_deviations_are_above_the_papers(dataset, capsys):
    own = dataset("own.json", *TWO)
    path = dataset(
        "Society_and_Culture_test.json", *(r | {"category": c} for r, c in zip(TWO, ("law", "diy"), strict=True))
    )
    head, rows, notes = table(capsys, own, path)
    assert head == ["", "Society & Culture, test", "own.json"]
    printed = ["1074", "4.8 ± 1.0", "115.8 ± 203.6", "12.9 ± 5.4", "167.9 ± 143.4"]
    assert rows[::2] == [[label, cell, cell] for label, cell in zip(LABELS, TWO_CELLS, strict=True)]
    assert rows[1::2] == [["– in the paper", cell, ""] for cell in printed]
    assert notes[0] == METHOD
    assert notes[1] == "Society & Culture, test: 2 questions; the paper's Table 1 says 1074."
    assert "own.json: 1 of 2 questions with an empty 'profile', counted as 0." in notes
    other = "utils/benchmarks/lampqa/communities.toml has another category for 'diy'."
    assert f"Society & Culture, test: {other}" in notes


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("profile", {"p1": "text"}, "field 'profile' is {'p1': 'text'}; it must be a list or missing"),
        ("narrative", ["a", "b"], "field 'narrative' is ['a', 'b']; it must be a text or missing"),
    ],
)
def test_a_field_of_the_wrong_type_is_refused(dataset, field, value, expected):
    path = dataset("own.json", TWO[0], record(2, **{field: value}))
    assert refusal(SAMPLE / "test.json", path) == f"{path}: record 1 (id 'q2'): {expected}"


def test_the_bars_are_the_counts_grouped_and_largest_first():
    columns = []
    for name, counts in (
        ("train", Counter({"law": 1200, "rpg": 30, "anime": 30, "astrology": 2})),
        ("test", Counter({"law": 5, "music": 9, "anime": 1})),
    ):
        group_of = {community: COMMUNITIES.get(community) for community in counts}
        columns.append(Column(TASK, name, {}, counts.total(), {}, counts, group_of))
    figure = communities_figure(columns)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    groups = CATEGORIES[0], CATEGORIES[2], "Communities without a category"
    assert labels == [groups[0], "anime", "rpg", "music", groups[1], "law", groups[2], "astrology"]
    assert [
        {labels[round(bar.get_y() + bar.get_height() / 2)]: int(bar.get_width()) for bar in panel.patches}
        for panel in figure.axes
    ] == [
        {"anime": 30, "rpg": 30, "music": 0, "law": 1200, "astrology": 2},
        {"anime": 1, "rpg": 0, "music": 9, "law": 5, "astrology": 0},
    ]
