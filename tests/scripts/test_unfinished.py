"""Missing answers of a server, from one script to the next: real processes and the real openai client on loopback."""

import json
import os
import subprocess

import pytest
from api_server import Reply, default_reply, serve
from test_evaluate_responses import make_question

from utils.base.manifest import read_manifest


def failing(*texts):
    """Return a server that always fails on prompts with one of these texts."""

    def reply(request):
        prompt = request["messages"][1]["content"]
        return Reply("Out of order.", status=500) if any(text in prompt for text in texts) else default_reply(request)

    return reply


class Work:
    """A folder with a dataset of six questions, and runs of the scripts."""

    def __init__(self, folder, server, zygote):
        self.folder, self.server, self._zygote = folder, server, zygote
        self.write("data.json", [make_question(n, category="law", profile=[{"text": f"Post {n}."}]) for n in range(6)])
        self.write("key.txt", "sk-test")

    def write(self, name, value):
        (self.folder / name).write_text(value if isinstance(value, str) else json.dumps(value))

    def read(self, name):
        return json.loads((self.folder / name).read_text())

    def run(self, script, *flags):
        """Run a script; return the process, and the prompts that it sent."""
        asked = len(self.server.requests)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
        command = ["--inputs_addr", "data.json", "--openai", "--base_url", self.server.url, "--api_key_addr", "key.txt"]
        place = (str(self.folder), environment)
        run = self._zygote.run(script, [*command, "--max_retries", "0", *flags], live_in=place)
        done = subprocess.CompletedProcess(run.pid, run.returncode, run.printed, run.errors)
        return done, [request["messages"][1]["content"] for request in self.server.requests[asked:]]

    def answer(self, *flags):
        return self.run("baselines.py", "--model_addr", "m", "--rag", "--unranked", "--output_addr", "rag.json", *flags)

    def judge(self, *flags, output="scores.json"):
        words = ["--evaluator_llm", "j", "--response_addr", "rag.json", "--score_addr", output, *flags]
        return self.run("evaluate_responses.py", *words)


@pytest.fixture
def work(tmp_path, warm_api):
    with serve() as server:
        yield Work(tmp_path, server, warm_api)


def test_answers_that_a_server_failed_to_give(work):
    work.server.reply = failing("Question number 3?")
    done, _ = work.answer()
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stdout.startswith("rag.json: 5 questions, 5 answers, 0 without an answer, ")
    assert "\n1 answer is missing because the server failed; run the same command again to retry it\n" in done.stderr
    assert list(work.read("rag.json")) == ["q0", "q1", "q2", "q4", "q5"]
    assert read_manifest(work.folder / "rag.json")["missing"] == 1

    refused, asked = work.judge()
    assert (refused.returncode, refused.stderr) == (2, (
        "error: rag.json: 1 answer is missing because the server failed\n"
        "  run the command that made the file again to retry it, or add --allow_partial to score the rest\n"
    ))  # fmt: skip
    assert not asked and not list(work.folder.glob("scores*"))
    part, _ = work.judge("--allow_partial", output="part.json")
    assert part.returncode == 0, part.stderr
    assert work.read("part.json")["partial"] == {"questions_in_dataset": 6, "questions_judged": 5}

    work.server.reply = default_reply
    done, [prompt] = work.answer()
    assert done.returncode == 0 and "Question number 3?" in prompt, done.stderr
    assert list(work.read("rag.json")) == ["q0", "q1", "q2", "q3", "q4", "q5"]
    assert read_manifest(work.folder / "rag.json")["missing"] == 0
    assert work.judge()[0].returncode == 0
    assert "partial" not in work.read("scores.json") and read_manifest(work.folder / "scores.json")["missing"] == 0


def test_answers_by_plan_that_a_server_failed_to_give(work):
    answer = ["planpers.py", "--model_addr", "m", "--gold_plan", "--unranked", "--output_addr", "planpers.json"]
    work.server.reply = failing("Question number 0?", "Question number 5?")
    done, _ = work.run(*answer)
    assert done.returncode == 1
    assert list(work.read("planpers.json")) == ["q1", "q2", "q3", "q4"]
    assert len(work.read("planpers.json.plans.json")) == 6
    work.server.reply = default_reply
    done, asked = work.run(*answer)
    assert done.returncode == 0 and len(asked) == 2 and len(work.read("planpers.json")) == 6


@pytest.mark.parametrize(("strategy", "missing"), [("aspect", 1), ("pairwise", 2)])
def test_verdicts_that_a_server_failed_to_give(work, strategy, missing):
    for name in ("rag.json", "none.json"):
        work.write(name, {f"q{n}": [{"output": f"Response to q{n}."}] for n in range(6)})
    judge = ["--strategy", strategy, *(["--response_addr", "rag.json", "none.json"] if strategy == "pairwise" else [])]
    well = Reply('{"match_score": 1, "better_response": 1}')
    bad = "Aspect 2b" if strategy == "aspect" else "Question number 2?"
    work.server.reply = lambda request: failing(bad)(request) if bad in request["messages"][1]["content"] else well
    done, _ = work.judge(*judge)
    assert done.returncode == 1 and " missing because the server failed; run the same" in done.stderr.splitlines()[-1]
    scores = work.read("scores.json")
    assert [question["id"] for question in scores["per_question_scores"]] == ["q0", "q1", "q3", "q4", "q5"]
    assert scores["partial"] == {"questions_in_dataset": 6, "questions_judged": 5} and scores["num_unscored"] == 0
    assert read_manifest(work.folder / "scores.json")["missing"] == missing

    work.server.reply = lambda request: well
    done, asked = work.judge(*judge)
    assert done.returncode == 0 and len(asked) == missing
    assert len(work.read("scores.json")["per_question_scores"]) == 6 and "partial" not in work.read("scores.json")
    assert read_manifest(work.folder / "scores.json")["missing"] == 0
