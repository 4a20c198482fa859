"""Stages and their driver, through scripts as a user writes them: docs/your_own_script.md's runs unchanged."""

import copy
import json
import pickle
import re
import shutil
from pathlib import Path

import pytest
from api_server import Reply, default_reply, serve

import baselines
import evaluate_responses
import planpers
from retrieval import rank_dataset
from utils.base.cli import prepare_run
from utils.base.errors import UserError
from utils.base.manifest import read_manifest
from utils.data.datasets import DatasetFile
from utils.generation import chat
from utils.runs import runner

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests/data/mini_lampqa/test.json"
IDS = [record["id"] for record in json.loads(SAMPLE.read_text())]
[SCRIPT] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/your_own_script.md").read_text(), re.DOTALL)


@pytest.fixture
def server():
    with serve(default_reply) as server:
        yield server


@pytest.fixture
def api(server, tmp_path):
    (tmp_path / "key.txt").write_text("sk-test")
    return ["--openai", "--base_url", server.url, "--api_key_addr", f"{tmp_path}/key.txt"]


@pytest.fixture
def outline(server, api, tmp_path, monkeypatch):
    """Run the page's script; returns the number of requests, of outlines and of answers."""
    module: dict = {"__name__": "outline"}
    exec(compile(SCRIPT, "outline.py", "exec"), module)

    def run(*more, code=0):
        words = ["--model_addr", "m", "--inputs_addr", SAMPLE, "--output_addr", tmp_path / "answers.json", *more]
        monkeypatch.setattr("sys.argv", ["outline.py", *api, *map(str, words)])
        before = len(server.requests)
        assert module["main"]() == code
        users = [str(request["messages"]) for request in server.requests[before:]]
        return [sum(words in user for user in users) for words in ("Outline, in three lines", "Answer by this outline")]

    return run


def test_the_script_on_the_page(outline, tmp_path, capsys):
    assert outline("--dry_run") == [0, 0] and list(tmp_path.glob("*.json")) == []
    assert "answers.json: not counted: " in capsys.readouterr().out
    assert outline() == [len(IDS), len(IDS)]
    answers, outlines = tmp_path / "answers.json", tmp_path / "answers.json.outlines.json"
    assert [*json.loads(answers.read_text())] == [*json.loads(outlines.read_text())] == IDS
    assert outline() == [0, 0] and capsys.readouterr().out.count("already finished; skipped") == 2
    assert outline("--dry_run") == [0, 0]
    assert capsys.readouterr().out.count(": finished, 0 requests\n") == 2
    # A later stage needs the pieces of a finished one: they come from the store, and its file stays.
    content, time = answers.read_bytes(), outlines.stat().st_mtime_ns
    answers.unlink()
    assert outline() == [0, 0] and answers.read_bytes() == content and outlines.stat().st_mtime_ns == time
    capsys.readouterr()
    # A stage after one that is not finished is not finished either.
    outlines.unlink()
    assert outline() == [0, 0] and outlines.exists() and "skipped" not in capsys.readouterr().out
    with pytest.raises(UserError, match=r"outlines.json: was made with other settings: temperature: 0.7, now 0.5"):
        outline("--temperature", 0.5)


def test_records_without_a_piece_of_the_stage_before_are_missing(outline, server, tmp_path, capsys):
    bad = [record["question"] for record in json.loads(SAMPLE.read_text())][3:5]

    def reply(request):
        text = str(request["messages"])
        is_bad = "Outline, in three" in text and any(question in text for question in bad)
        return Reply("no", status=503) if is_bad else default_reply(request)

    server.reply = reply
    assert outline("--max_retries", 0, code=1)[1] == len(IDS) - 2
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert len(answers) == len(IDS) - 2 and "2 answers are missing" in capsys.readouterr().err
    server.reply = default_reply
    assert outline("--max_retries", 0) == [2, 2]


def test_planpers_answers_what_has_a_plan_and_reports_the_rest(server, api, tmp_path, capsys):
    def reply(request):
        is_late = len(server.requests) > 5 and request["model"] == "planner"
        return Reply("no", status=503) if is_late else default_reply(request)

    server.reply = reply
    output = tmp_path / "answers.json"
    words = ["--model_addr", "m", "--planner_model", "planner", "--planner_base_url", server.url, "--unranked"]
    words += ["--planner_api_key_addr", tmp_path / "key.txt", "--inputs_addr", SAMPLE, "--output_addr", output]
    words = [*api, *map(str, words), "--max_retries", "0", "--max_concurrency", "1"]
    assert planpers.main(words) == 1
    made, plans = json.loads(output.read_text()), json.loads(Path(f"{output}.plans.json").read_text())
    assert 0 < len(made) == len(plans) < len(IDS)
    assert capsys.readouterr().err.count(f"{len(IDS) - len(made)} answers are missing") == 1
    server.reply = default_reply
    before = len(server.requests)
    assert planpers.main(words) == 0 and len(server.requests) - before == 2 * (len(IDS) - len(made))


def test_planpers_without_plans_and_store_pays_nothing_unasked(server, api, tmp_path):
    words = ["--model_addr", "m", "--planner_model", "planner", "--planner_base_url", server.url, "--unranked"]
    words += ["--planner_api_key_addr", tmp_path / "key.txt", "--inputs_addr", SAMPLE]
    words = [*api, *map(str, [*words, "--output_addr", tmp_path / "answers.json"])]
    assert planpers.main(words) == 0
    before = len(server.requests)
    (tmp_path / "answers.json.plans.json").unlink()
    shutil.rmtree(tmp_path / "completions")
    for more in ([], ["--dry_run"]):
        with pytest.raises(UserError, match=r"no longer exists, but .*/answers.json must be made"):
            planpers.main([*words, *more])
    assert len(server.requests) == before and planpers.main([*words, "--overwrite"]) == 0


def test_a_finished_command_reads_no_dataset(server, api, tmp_path, monkeypatch, capsys):
    ranked, plans, scores = (tmp_path / name for name in ("ranked.json", "planpers.json", "scores.json"))
    planner = ["--planner_model", "p", "--planner_base_url", server.url, "--planner_api_key_addr", tmp_path / "key.txt"]
    commands = [
        (rank_dataset, ["--ranker", "bm25", "--input_dataset_addr", SAMPLE, "--output_dataset_addr", ranked]),
        (planpers, [*api, "--model_addr", "m", *planner, "--inputs_addr", ranked, "--output_addr", plans]),
        (evaluate_responses, [*api, "--evaluator_llm", "j", "--inputs_addr", ranked, "--response_addr", plans]),
    ]
    commands[-1][1].extend(["--score_addr", scores])
    for script, words in commands:
        assert script.main(list(map(str, words))) == 0
    capsys.readouterr()

    def read(*_, **__):
        pytest.fail("it is read")

    monkeypatch.setattr(DatasetFile, "scan", read)
    monkeypatch.setattr("utils.data.responses.read_json", read)
    for script, words in commands:
        assert script.main(list(map(str, words))) == 0
    assert capsys.readouterr().out.count("already finished") == 4
    # Other questions are noticed although the dataset is the same.
    with pytest.raises(pytest.fail.Exception):
        evaluate_responses.main([*map(str, commands[-1][1]), "--limit", "2"])


def test_a_judge_begins_before_all_prompts_are_rendered(server, api, tmp_path, monkeypatch):
    responses, scores = tmp_path / "responses.json", tmp_path / "scores.json"
    responses.write_text(json.dumps({key: [{"output": "An answer."}] for key in IDS}))
    rendered, most = [], []
    render = chat.APIChat.render
    monkeypatch.setattr(chat.APIChat, "render", lambda self, messages: rendered.append(1) or render(self, messages))

    def reply(request):
        most.append(len(rendered))
        return default_reply(request)

    server.reply = reply
    words = ["--evaluator_llm", "j", "--inputs_addr", SAMPLE, "--response_addr", responses, "--score_addr", scores]
    assert evaluate_responses.main([*api, *map(str, words), "--max_concurrency", "2"]) == 0
    assert read_manifest(scores)["counts"]["num_questions"] == len(IDS)
    # Without an engine, at most 16 are looked for in the store.
    assert most[0] <= 16 + 2 and len(rendered) >= len(most) > 60


def test_answers_are_not_looked_for_while_only_the_planner_is_open(server, api, tmp_path, monkeypatch):
    """Rendering all their prompts would keep the planner's engine, or GPU, waiting."""
    output, rendered, waiting = tmp_path / "answers.json", [], []
    render, open_engines = chat.APIChat.render, runner.open_engines

    def rendering(self, messages):
        rendered.append("titles of the aspects" in str(messages))
        return render(self, messages)

    def opening(models, wanted, *more):
        if wanted[0] == "generator":
            waiting.append(rendered.count(False))
        return open_engines(models, wanted, *more)

    monkeypatch.setattr(chat.APIChat, "render", rendering)
    monkeypatch.setattr(runner, "open_engines", opening)
    monkeypatch.setattr(runner, "AT_ONCE", 1)
    words = ["--model_addr", "m", "--planner_model", "planner", "--planner_base_url", server.url, "--unranked"]
    words += ["--planner_api_key_addr", tmp_path / "key.txt", "--inputs_addr", SAMPLE, "--output_addr", output]
    assert planpers.main([*api, *map(str, words), "--max_concurrency", "1"]) == 0
    assert waiting[0] <= 2


def test_two_models_in_one_role_are_refused(api, tmp_path):
    """The engine of one would answer for the other."""
    words = [*api, "--inputs_addr", str(SAMPLE), "--output_addr", f"{tmp_path}/a.json", "--model_addr", "m"]
    args = prepare_run(baselines.build_parser().parse_args(words), [f"{tmp_path}/a.json"], [])
    stages = [*baselines.prepare(args), *baselines.prepare(args.replaced(model_addr="n"))]
    with pytest.raises(ValueError, match="'generator' has two models, m and n"):
        runner.models_of(stages)


def test_flags_stay_as_they_were_given(api, tmp_path):
    args = baselines.build_parser().parse_args([*api, "--model_addr", "m", "--inputs_addr", "i", "--output_addr", "o"])
    with pytest.raises(AttributeError, match="--max_tokens was parsed and does not change"):
        args.max_tokens = 5
    for other in (args.replaced(max_tokens=5), copy.copy(args), pickle.loads(pickle.dumps(args))):
        with pytest.raises(AttributeError):
            other.seed = 1
        assert other.given == args.given and vars(other) == vars(args) | {"max_tokens": other.max_tokens}
    assert args.max_tokens == 2048


def test_the_manifest_has_the_command_and_what_followed_from_it(server, api, tmp_path, monkeypatch):
    output = tmp_path / "answers.json"
    words = [*api, "--model_addr", "o3-mini", "--inputs_addr", str(SAMPLE), "--output_addr", str(output)]
    monkeypatch.setattr("sys.argv", ["baselines.py", *words])
    assert baselines.main(words) == 0
    manifest = read_manifest(output)
    assert manifest["command"] == f"python baselines.py {' '.join(words)}"
    assert (manifest["arguments"]["max_tokens"], manifest["arguments"]["max_model_len"]) == (2048, None)
    # A model that thinks has room for its thoughts, which its context has room for too.
    assert (manifest["max_tokens"], manifest["max_model_len"]) == (2048 + 25_000, 8192 + 25_000)
    assert {request["max_tokens"] for request in server.requests} <= {2048 + 25_000}


[LAST] = re.findall(r"    then = Stage.*\n", SCRIPT)
THREE_STAGES = SCRIPT.replace("[first, then]", "[first, second, then]").replace(
    LAST,
    """
    path = f"{dataset.output_addr}.drafts.json"
    drafts = ResponseFile(dataset, settings | {"step": "drafts"}, path)
    second = Stage(dataset.task, drafts.records, answer, [drafts], models, after=first)
    then = Stage(dataset.task, answers.records, answer, [answers], models, after=second)
""",
)


def test_the_last_of_three_stages_needs_the_pieces_of_both_before(api, server, tmp_path, monkeypatch, capsys):
    """The middle one's keys may be known only after the first."""
    module: dict = {"__name__": "outline"}
    exec(compile(THREE_STAGES, "outline.py", "exec"), module)
    answers = tmp_path / "answers.json"
    words = [*api, "--model_addr", "m", "--inputs_addr", str(SAMPLE), "--output_addr", str(answers)]

    def run(*more):
        monkeypatch.setattr("sys.argv", ["outline.py", *words, *more])
        before = len(server.requests)
        assert module["main"]() == 0
        return len(server.requests) - before

    number = run()
    files = {path.name: path.read_bytes() for path in tmp_path.glob("answers.json*") if "manifest" not in path.name}
    assert len(files) == 3
    answers.unlink()
    capsys.readouterr()
    assert (
        run("--dry_run") == 0
        and f"answers.json: 0 of {len(IDS)} answers still need requests" in capsys.readouterr().out
    )
    times = {name: (tmp_path / name).stat().st_mtime_ns for name in files if name != "answers.json"}
    assert run() == 0 and answers.read_bytes() == files["answers.json"]
    assert all((tmp_path / name).stat().st_mtime_ns == time for name, time in times.items())
    for name in ("answers.json", "answers.json.outlines.json"):
        (tmp_path / name).unlink()
    assert run() == 0 and all((tmp_path / name).read_bytes() == content for name, content in files.items())
    # Without their completions in the store, the earlier files would have to be paid for again.
    server.reply = lambda request: Reply(f"Now {default_reply(request).text}")
    answers.unlink()
    shutil.rmtree(tmp_path / "completions")
    before = len(server.requests)
    with pytest.raises(UserError, match=r"which is finished|which has to be made again"):
        run()
    assert len(server.requests) == before and run("--overwrite") == number
    outlines = json.loads((tmp_path / "answers.json.outlines.json").read_text())
    assert all(output["output"].startswith("Now ") for [output] in outlines.values())
    capsys.readouterr()
    assert run() == 0 and capsys.readouterr().out.count("already finished; skipped") == 3
