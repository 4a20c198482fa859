"""make_controls.py: its files and their scores."""

import json
import re

import pytest
from api_server import Reply
from test_strategies import judging, make_question  # noqa: F401

from utils.base.errors import UserError
from utils.base.manifest import read_manifest
from utils.make_controls import draw_others, halve, main

NAMES = ("question", "other_answer", "half", "ceiling", "orders", "mention")
TEXT = "The first sentence is short. The second one is a little longer than that! And here is a third, which ends it."


def make(folder, *more, data="data.json", responses="a.json"):
    words = ["--inputs_addr", folder / data, "--response_addr", folder / responses, "--output_dir", folder / "controls"]
    assert main(list(map(str, [*words, *more]))) == 0
    return {name: json.loads((folder / f"controls/{name}.json").read_text()) for name in NAMES}


@pytest.fixture
def study(judging):
    posts = [{"id": f"p{i}", "text": f"Title {i} of {' '.join('abcdefghijklm')}\nThe body."} for i in range(9)]
    judging.write("data.json", [make_question(i, profile=posts if i != 4 else []) for i in range(1, 6)])
    judging.responses("a", q1=TEXT, q2="Yes.", q3=None, q4="One two three four five six.", q5="  ")
    return judging


def test_each_control_is_what_its_name_says(study, capsys):
    found = make(study.folder)
    record = make_question(2)
    assert {name: list(its) for name, its in found.items()} == {name: [f"q{i}" for i in range(1, 6)] for name in NAMES}
    assert found["question"]["q2"] == [{"output": record["question"]}]
    assert found["ceiling"]["q2"] == [{"output": record["narrative"]}]
    missing = [{"output": None, "reason": "the system has no answer"}]
    assert found["half"]["q3"] == found["other_answer"]["q5"] == missing
    assert found["half"]["q1"] == [{"output": "The first sentence is short.", "cut_at": "sentence"}]
    assert found["half"]["q4"] == [{"output": "One two three", "cut_at": "word"}]
    answers = {"q1": TEXT, "q2": "Yes.", "q4": "One two three four five six."}
    others = {key: its for key, [its] in found["other_answer"].items() if key in answers}
    assert all(its["output"] == answers[its["answer_to"]] and its["answer_to"] != key for key, its in others.items())
    assert {its["answer_to"] for its in others.values()} == answers.keys()
    titles = [found["mention"][key][0]["output"] for key in ("q1", "q2")]
    assert re.fullmatch(r"I remember that you once wrote about “Title \d of a b c d e f g h i”\. Yes\.", titles[1])
    assert titles[0].endswith(f"”. {TEXT}") and found["mention"]["q3"] == missing
    assert found["mention"]["q4"] == [{"output": None, "reason": "the asker has no posts"}]
    assert make(study.folder, "--seed", "1")["other_answer"] != found["other_answer"]
    said = capsys.readouterr().out
    assert (
        "controls/half.json: 3 answers, 1 cut at a sentence, 1 cut at a character, 1 cut at a word, 2 without" in said
    )


def judge(request):
    """A sound judge: 2 for what the asker wants, 1 for a complete answer and for half of a long one."""
    user = request["messages"][1]["content"]
    details = user.partition("details:\n")[2].partition("\n")[0]
    response = user.partition("response:\n")[2].partition("\n\naspect:")[0]
    return Reply(json.dumps({"match_score": 2 if response == details else int(response.endswith((".", "four")))}))


def test_controls_are_judged_like_any_system(study):
    study.server.reply = judge
    study.responses("a", **{f"q{i}": f"{TEXT} {i}." for i in range(1, 6)})
    make(study.folder)
    paths = [study.folder / f"controls/{name}.json" for name in NAMES]
    for path in [study.folder / "a.json", *paths]:
        study.run(None, [path], to=f"{path.stem}_scores.json")
    scores = {name: json.loads((study.folder / f"{name}_scores.json").read_text())["score"] for name in ("a", *NAMES)}
    assert scores == {
        "a": 0.5, "question": 0, "other_answer": 0.5, "half": 0.5, "ceiling": 1, "orders": 0, "mention": 0.4
    }  # fmt: skip
    assert read_manifest(paths[0])["settings"]["script"] == "utils/make_controls.py"


@pytest.mark.parametrize(
    ("answer", "half", "cut_at"),
    [
        ("One. Two three four five six seven eight.", "One. Two three four", "word"),  # the sentence is too short
        ("First line\nand the second one, longer", "First line", "sentence"),
        ("漢字の文。次の文も同じ。", "漢字の文。", "sentence"),
        ("漢字漢字漢字", "漢字漢", "character"),
        ("x", "x", "character"),
    ],
)
def test_half_an_answer_ends_where_a_reader_would_end_it(answer, half, cut_at):
    assert halve(answer) == {"output": half, "cut_at": cut_at}


def test_no_question_has_its_own_answer_and_a_seed_draws_others():
    ids = [f"q{i}" for i in range(50)]
    drawn = [draw_others(ids, seed) for seed in range(20)]
    assert all(sorted(its) == sorted(its.values()) == sorted(ids) for its in drawn)
    assert not any(one == other for its in drawn for one, other in its.items())
    assert draw_others(ids, 0) == drawn[0] != drawn[1]


def test_impossible_controls_are_refused(study):
    study.responses("one", q1=TEXT)
    with pytest.raises(UserError, match=r"one\.json: answers 1 question; swapping answers needs at least two"):
        make(study.folder, responses="one.json")
    assert not (study.folder / "controls").exists()
