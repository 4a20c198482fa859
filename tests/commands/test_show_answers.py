import json

import pytest

from utils import show_answers


@pytest.fixture
def files(tmp_path):
    def write(name, value):
        (tmp_path / name).write_text(json.dumps(value))
        return str(tmp_path / name)

    questions = [{"id": "1", "question": "Which one?"}, {"id": "2", "question": "Why?"}]
    answers = {"1": [{"output": "This \x1b[31mone.\n\nIndeed."}], "2": [{"output": None}]}
    scored = {"question_sha256": "x", "answered": True}
    first = [{"aspect": "cost", "score": 2}, {"aspect": "size", "score": 1}]
    entries = [{"id": "1", **scored, "score": 0.75, "details": first}]
    entries += [{"id": "2", **scored, "score": None, "details": [{"aspect": "cause", "score": None}]}]
    scores = write("scores.json", {"num_unanswered": 0, "per_question_scores": entries})
    inputs = ["--inputs_addr", write("inputs.json", questions), "--response_addr", write("answers.json", answers)]
    return [*inputs, "--score_addr", scores]


def test_answers_are_shown_with_their_verdicts(files, capsys):
    assert show_answers.main(files) == 0
    assert capsys.readouterr().out == (
        "Which one?  [1]\n\n  | This \\x1b[31mone.\n  |\n  | Indeed.\n\n"
        "  score 0.75\n    2 very well    cost\n    1 in part      size\n\n"
        "Why?  [2]\n\n  | (no answer)\n\n  score unscored\n    - unscored     cause\n\n"
    )
    show_answers.main([*files, "--num_questions", "1"])
    assert "Why?" not in capsys.readouterr().out
