import json
from pathlib import Path

import pytest

from utils import report, show_answers
from utils.cli import UserError
from utils.files.file_hashes import file_hash
from utils.files.manifest import describe_run, publish


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
    with pytest.raises(UserError, match=r"not the scores of .*answers\.json.*\n  give the scores of these"):
        show(answers)
    assert not (tmp_path / "page.html").exists()
