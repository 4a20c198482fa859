import json

import pytest

from utils import show_answers


@pytest.fixture
def files(tmp_path):
    def write(name, value):
        (tmp_path / name).write_text(json.dumps(value))
        return str(tmp_path / name)

    return [
        "--inputs_addr", write("inputs.json", [{"id": "1", "question": "Which one?"}, {"id": "2", "question": "Why?"}]),
        "--response_addr", write(
            "answers.json", {"1": [{"output": "This \x1b[31mone.\n\nIndeed."}], "2": [{"output": None}]}
        ),
        "--score_addr", write("scores.json", {"num_unanswered": 0, "per_question_scores": [
            {"id": "1", "question_sha256": "x", "answered": True, "score": 0.75, "details": [
                {"aspect": "cost", "score": 2}, {"aspect": "size", "score": 1},
            ]},
            {"id": "2", "question_sha256": "x", "answered": True, "score": None, "details": [
                {"aspect": "cause", "score": None},
            ]},
        ]}),
    ]  # fmt: skip


def test_answers_stand_with_their_verdicts(files, capsys):
    assert show_answers.main(files) == 0
    assert capsys.readouterr().out == (
        "Which one?  [1]\n\n  | This \\x1b[31mone.\n  |\n  | Indeed.\n\n"
        "  score 0.75\n    2 very well    cost\n    1 in part      size\n\n"
        "Why?  [2]\n\n  | (no answer)\n\n  score unscored\n    - unscored     cause\n\n"
    )


def test_as_many_as_asked(files, capsys):
    show_answers.main([*files, "--num_questions", "1"])
    assert "Why?" not in capsys.readouterr().out
