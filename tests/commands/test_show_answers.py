import json
from pathlib import Path

import pytest

from utils import report, show_answers
from utils.base.errors import UserError
from utils.base.manifest import describe_run, file_hash, publish


@pytest.fixture
def files(tmp_path):
    def write(name, value):
        (tmp_path / name).write_text(json.dumps(value))
        return str(tmp_path / name)

    shown = {"profile": [], "rubric_aspects": []}
    questions = [{"id": "1", "question": "Which one?", **shown}, {"id": "2", "question": "Why?", **shown}]
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


def test_answers_are_shown_without_scores_and_by_id(files, capsys):
    assert show_answers.main(files[:4]) == 0
    whole = "Which one?  [1]\n\n  | This \\x1b[31mone.\n  |\n  | Indeed.\n\nWhy?  [2]\n\n  | (no answer)\n\n"
    assert capsys.readouterr().out == whole
    show_answers.main([*files, "--ids", "2", "1"])
    assert [line[-3:] for line in capsys.readouterr().out.splitlines() if line.endswith("]")] == ["[2]", "[1]"]
    with pytest.raises(UserError, match=r"^--ids: not in .*answers\.json: '3'$"):
        show_answers.main([*files[:4], "--ids", "3"])


def test_the_worst_answers_come_first(files, capsys):
    """Of equal scores the first in the file; unscored ones are last."""
    inputs, answers, scores = (json.loads(Path(files[place]).read_text()) for place in (1, 3, 5))
    values = {"1": 2, "2": None, "3": 1, "4": 0, "5": 1}
    content = []
    for key, value in values.items():
        entry = {"id": key, "question_sha256": "x", "answered": True, "score": None if value is None else value / 2}
        content.append({**entry, "details": [{"aspect": "cost", "score": value}]})
    questions = [{**inputs[0], "id": key} for key in values]
    texts = dict.fromkeys(values, answers["1"])
    for place, value in ((1, questions), (3, texts), (5, {**scores, "per_question_scores": content})):
        Path(files[place]).write_text(json.dumps(value))
    show_answers.main([*files, "--worst", "--num_questions", "5"])
    shown = [line[-2] for line in capsys.readouterr().out.splitlines() if line.startswith("Which one?")]
    assert shown == ["4", "3", "5", "1", "2"]


@pytest.mark.parametrize("script", ["show_answers", "report"])
def test_scores_of_other_answers_are_refused(files, script, tmp_path, capsys):
    """Of another file, or of these answers before they changed; the manifest beside the scores knows."""
    _, inputs, _, answers, _, scores = files
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"1": [{"output": "Another answer."}]}))

    def show(responses):
        if script == "show_answers":
            words = ["--inputs_addr", inputs, "--response_addr", str(responses), "--score_addr", scores]
            return show_answers.main(words)
        words = ["--inputs_addr", inputs, "--output_addr", str(tmp_path / "page.html")]
        return report.main([*words, "--system", "A", str(responses), scores])

    content = json.loads(Path(scores).read_text())
    publish(scores, content, describe_run({}, {"responses": file_hash(answers)}, None))
    if script == "show_answers":
        assert show(answers) == 0
    with pytest.raises(UserError, match=r"scores\.json: not the scores of .*other\.json, according to the manifest"):
        show(other)
    with open(answers, "a") as file:
        file.write("\n")
    with pytest.raises(UserError, match=r"not the scores of .*answers\.json.*\n  use the scores of these"):
        show(answers)
    assert not (tmp_path / "page.html").exists()
