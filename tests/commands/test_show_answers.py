import json
import re
import subprocess
import sys
import urllib.request
from importlib import import_module
from pathlib import Path

import pytest
from api_server import serve
from crash_cases import NUM_QUESTIONS, make_case, make_data

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


# A command that is not finished


def lines_in(folder):
    return [line for path in folder.glob("completions/*/*.jsonl") for line in path.read_bytes().splitlines()[1:]]


def test_a_running_command_shows_its_answers_so_far(tmp_path, capsys):
    """Without its API key, and while it holds the lock of the output; what is shown is in the output later."""
    make_data(tmp_path)
    words = [sys.executable, "tests/api_server.py", "--port", "0", "--delay", "0.3"]
    server = subprocess.Popen(words, cwd=Path(__file__).parents[2], text=True, stdout=subprocess.PIPE)
    try:
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        case = make_case("baselines", tmp_path, tmp_path, f"{url}/v1")
        words = ["baselines.py", *case.arguments, "--max_concurrency", "1"]
        assert show_answers.main(words) == 0
        assert (
            capsys.readouterr().out
            == f"{case.outputs[0]}: 0 of {NUM_QUESTIONS} answers so far, in {case.folder}/completions\n\n"
        )
        case.arguments += ["--max_concurrency", "1"]
        run = case.start_plain()
        case.wait_for(3)
        (tmp_path / "key.txt").unlink()
        least, before = len(lines_in(case.folder)), sorted(case.folder.rglob("*"))
        assert show_answers.main(["--num_questions", "99", *words]) == 0
        most = len(lines_in(case.folder))
        assert run.poll() is None and sorted(case.folder.rglob("*")) == before
        shown = capsys.readouterr().out
        number = int(re.search(rf"answers\.json: (\d+) of {NUM_QUESTIONS} answers so far, in", shown)[1])
        assert 0 < number <= most < NUM_QUESTIONS and least <= most
        run.communicate()
        answers = [entry["output"] for [entry] in json.loads(case.outputs[0].read_text()).values()]
        assert re.findall(r"  \| (.*)", shown) == answers[:number]
        with urllib.request.urlopen(f"{url}/requests") as requests:
            assert len(json.load(requests)) == len(lines_in(case.folder))  # none was for the reader
    finally:
        server.terminate()
        server.communicate()


METHOD = """
async def answer(record, ask):
    posts = await ask.search(record["question"], 2)
    summary = await ask("Summarize what this user cares about.\\n\\n{profile}", items=posts)
    return await ask("Answer {question} for a user who cares about {summary}", summary=summary)
"""


@pytest.mark.parametrize("kind", ["planpers", "method", "two datasets"])
def test_a_stopped_command_shows_its_answers_so_far(kind, tmp_path, capsys):
    """Here the command of a shard, which has about half of the answers."""
    make_data(tmp_path)
    with serve() as server:
        case = make_case("planpers gold" if kind == "planpers" else "baselines", tmp_path, tmp_path, server.url)
        if kind == "planpers":
            case.arguments.remove("--gold_plan")
            case.arguments += ["--planner_model", "p", "--planner_base_url", server.url]
            case.arguments += ["--planner_api_key_addr", f"{tmp_path}/key.txt"]
        elif kind == "method":
            (tmp_path / "mine.py").write_text(METHOD)
            case.arguments += ["--method", f"{tmp_path}/mine.py", "--unranked", "--search", "bm25"]
        else:
            (tmp_path / "more.json").write_bytes((tmp_path / "data.json").read_bytes())
            case.arguments += ["--inputs_addr", f"{tmp_path}/data.json", f"{tmp_path}/more.json"]
            case.arguments += ["--output_addr", *(f"{case.folder}/{name}.json" for name in ("answers", "more"))]
        command = import_module(case.module)
        assert command.main([*case.arguments, "--num_shards", "2", "--shard_index", "0"]) == 0
        asked = len(server.requests)
        capsys.readouterr()
        assert show_answers.main([f"{case.module}.py", *case.arguments]) == 0
        shown = capsys.readouterr().out
        numbers = re.findall(rf"(\w+)\.json: (\d+) of {NUM_QUESTIONS} answers so far", shown)
        assert [name for name, _ in numbers] == ["answers", "more"][: 1 + (kind == "two datasets")]
        assert all(0 < int(number) < NUM_QUESTIONS for _, number in numbers)
        assert shown.count("?  [q") == 3 * len(numbers) and len(server.requests) == asked
        with pytest.raises(UserError, match=r"^--ids: not in .*answers\.json so far: 'q99'$"):
            show_answers.main(["--ids", "q99", f"{case.module}.py", *case.arguments])
        assert [path.name for path in case.folder.iterdir()] == ["completions"]


def test_a_command_names_the_files_itself(files, capsys):
    with pytest.raises(SystemExit):
        show_answers.main([*files[:2], "--worst", "baselines.py", "--model_addr", "m"])
    said = "error: --inputs_addr, --worst: with baselines.py, only --ids and --num_questions can be given\n"
    assert capsys.readouterr().err == said
