"""What a server failed to give, from one script to the next: real processes and the real openai client on loopback."""

import json
import os
import re
import subprocess

import pytest
from api_server import Reply, default_reply, serve
from test_evaluate_responses import make_question

from utils.files.manifest import read_manifest

SAME = "the same command asks for it again"


def failing(*texts):
    """A server that fails for ever on prompts that hold one of these texts."""

    def reply(request):
        prompt = request["messages"][1]["content"]
        return Reply("Out of order.", status=500) if any(text in prompt for text in texts) else default_reply(request)

    return reply


class Work:
    """A folder with a dataset of six questions, and the scripts run on it."""

    def __init__(self, folder, server, zygote):
        self.folder, self.server, self._zygote = folder, server, zygote
        self.write("data.json", [make_question(n, category="law", profile=[{"text": f"Post {n}."}]) for n in range(6)])
        self.write("key.txt", "sk-test")

    def write(self, name, value):
        (self.folder / name).write_text(value if isinstance(value, str) else json.dumps(value))

    def read(self, name):
        return json.loads((self.folder / name).read_text())

    def run(self, script, *flags):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
        command = ["--inputs_addr", "data.json"]
        if not script.startswith("utils/"):
            command += ["--openai", "--base_url", self.server.url, "--api_key_addr", "key.txt", "--max_retries", "0"]
        run = self._zygote.run(script, [*command, *flags], live_in=(str(self.folder), environment))
        return subprocess.CompletedProcess(run.pid, run.returncode, run.printed, run.errors)

    def answer(self, *flags, output="rag.json"):
        return self.run("baselines.py", "--model_addr", "m", "--rag", "--unranked", "--output_addr", output, *flags)

    def judge(self, *flags, output="scores.json"):
        words = ["--evaluator_llm", "j", "--response_addr", "rag.json", "--score_addr", output, *flags]
        return self.run("evaluate_responses.py", *words)

    def asked_since(self, number):
        return [request["messages"][1]["content"] for request in self.server.requests[number:]]


@pytest.fixture
def work(tmp_path, warm_api):
    with serve() as server:
        yield Work(tmp_path, server, warm_api)


def test_answers_that_a_server_failed_to_give(work):
    work.server.reply = failing("Question number 3?")
    done = work.answer()
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stdout == (
        "rag.json: 5 questions, 5 answers, 0 without an answer, 0 repaired, 0 truncated, 0 posts left out for length\n"
    )
    assert done.stderr.splitlines()[-1] == f"1 answer is missing because the server failed; {SAME}"
    assert list(work.read("rag.json")) == ["q0", "q1", "q2", "q4", "q5"]
    assert read_manifest(work.folder / "rag.json")["missing"] == 1

    asked = len(work.server.requests)
    refused = work.judge()
    assert (refused.returncode, refused.stderr) == (2, (
        "error: rag.json: 1 answer is missing because the server failed\n"
        "  the command that made the file asks for it again, or --allow_partial scores the rest\n"
    ))  # fmt: skip
    assert len(work.server.requests) == asked and not list(work.folder.glob("scores*"))
    part = work.judge("--allow_partial", output="part.json")
    assert part.returncode == 0, part.stderr
    assert work.read("part.json")["partial"] == {"questions_in_dataset": 6, "questions_judged": 5}

    asked, work.server.reply = len(work.server.requests), default_reply
    done = work.answer()
    assert done.returncode == 0, done.stderr
    [prompt] = work.asked_since(asked)
    assert "Question number 3?" in prompt
    assert list(work.read("rag.json")) == ["q0", "q1", "q2", "q3", "q4", "q5"]
    assert read_manifest(work.folder / "rag.json")["missing"] == 0
    assert work.answer(output="fresh.json").returncode == 0
    assert work.read("fresh.json") == work.read("rag.json")
    assert work.judge().returncode == 0
    assert "partial" not in work.read("scores.json") and read_manifest(work.folder / "scores.json")["missing"] == 0


def test_overwrite_asks_for_everything_and_again_only_for_what_the_server_failed_to_give(work):
    assert work.answer().returncode == 0
    work.server.reply, asked = failing("Question number 3?"), len(work.server.requests)
    assert work.answer("--overwrite").returncode == 1
    assert len(set(work.asked_since(asked))) == 6
    work.server.reply, asked = default_reply, len(work.server.requests)
    assert work.answer("--overwrite").returncode == 0
    assert len(work.asked_since(asked)) == 1 and len(work.read("rag.json")) == 6
    assert "already finished" in work.answer("--overwrite", "changed").stdout
    assert work.answer("--overwrite").returncode == 0
    assert len(work.asked_since(asked)) == 1 + 6


def sometimes(*texts):
    """A server whose model says nothing of use on prompts that hold one of these texts."""

    def reply(request):
        is_bad = any(text in request["messages"][1]["content"] for text in texts)
        return Reply("I would rather not.") if is_bad else default_reply(request)

    return reply


def test_failed_answers_and_verdicts_are_asked_for_again_and_nothing_else(work):
    work.server.reply = sometimes("Question number 2?", "Question number 4?")
    assert work.answer().returncode == 0
    before = work.read("rag.json")
    assert [before[f"q{n}"][0]["output"] is None for n in range(6)] == [False, False, True, False, True, False]
    work.server.reply, asked = sometimes("Question number 4?"), len(work.server.requests)
    done = work.answer("--retry_failed", "--max_retries", "1")
    assert done.returncode == 0, done.stderr
    retried = work.asked_since(asked)
    assert len(retried) == 1 + 2 and all("number 2?" in text or "number 4?" in text for text in retried)
    assert not {request["seed"] for request in work.server.requests[:asked]} & {
        request["seed"] for request in work.server.requests[asked:]
    }
    after = work.read("rag.json")
    assert after["q2"][0]["output"] is not None and after["q2"][0]["attempts"] == 2
    assert (after["q4"][0]["output"], after["q4"][0]["attempts"]) == (None, 3)
    assert all(after[name] == before[name] for name in ("q0", "q1", "q3", "q5"))
    # With another --max_retries, and without the flag, it is finished.
    asked = len(work.server.requests)
    assert "already finished" in work.answer("--max_retries", "7").stdout and not work.asked_since(asked)

    work.server.reply = sometimes("Aspect 1a", "Aspect 3b")
    assert work.judge().returncode == 0
    scores = work.read("scores.json")
    assert (scores["num_unscored"], scores["num_unanswered"]) == (2, 1)
    work.server.reply, asked = default_reply, len(work.server.requests)
    done = work.judge("--retry_failed", "--max_retries", "5")
    assert done.returncode == 0, done.stderr
    assert {re.search(r"Aspect (\w+)", text)[1] for text in work.asked_since(asked)} == {"1a", "3b"}
    found = work.read("scores.json")
    assert (found["num_unscored"], found["num_unanswered"]) == (0, 1)  # no answer is no failure of the judge
    for old, new in zip(scores["per_question_scores"], found["per_question_scores"], strict=True):
        assert old == new or old["id"] in ("q1", "q3")
    asked = len(work.server.requests)
    assert "already finished" in work.judge("--retry_failed").stdout and not work.asked_since(asked)


def test_a_retry_that_ends_early_loses_nothing(work):
    work.server.reply = sometimes("Question number 2?", "Question number 4?")
    assert work.answer().returncode == 0
    work.server.reply = failing("Question number 4?")
    done = work.answer("--retry_failed")
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == (
        f"1 answer is missing because the server failed; {SAME}"
    )
    found = work.read("rag.json")
    assert [found[f"q{n}"][0]["output"] is None for n in range(6)] == [False, False, False, False, True, False]
    assert read_manifest(work.folder / "rag.json")["missing"] == 0  # what there was of it is still there
    work.server.reply, asked = default_reply, len(work.server.requests)
    # As a run that was killed before it wrote the file leaves it: the journal has more than the file.
    assert work.answer("--retry_failed").returncode == 0 and len(work.asked_since(asked)) == 1
    journal, newest = work.folder / "rag.json.journal.jsonl", work.read("rag.json")
    assert sum('"q2"' in line for line in journal.read_text().splitlines()) == 2
    (work.folder / "rag.json").unlink()
    assert work.answer().returncode == 0 and work.read("rag.json") == newest
    assert len(work.asked_since(asked)) == 1


def test_failed_pieces_without_a_journal_cannot_be_asked_for_again(work):
    work.server.reply = sometimes("Question number 2?")
    assert work.answer().returncode == 0
    (work.folder / "rag.json.journal.jsonl").unlink()
    refused = work.answer("--retry_failed")
    assert refused.returncode == 2 and refused.stderr.endswith(
        "error: rag.json: its journal was deleted or emptied, so nothing in it can be asked for again\n"
        "  --overwrite makes it anew, without --retry_failed it is left alone\n"
    )
    assert "already finished" in work.answer().stdout


def test_answers_by_plan_that_a_server_failed_to_give(work):
    answer = ["planpers.py", "--model_addr", "m", "--gold_plan", "--unranked", "--output_addr", "planpers.json"]
    work.server.reply = failing("Question number 0?", "Question number 5?")
    done = work.run(*answer)
    assert done.returncode == 1
    same = "the same command asks for them again"
    assert done.stderr.splitlines()[-1] == f"2 answers are missing because the server failed; {same}"
    assert list(work.read("planpers.json")) == ["q1", "q2", "q3", "q4"]
    assert len(work.read("planpers.json.plans.json")) == 6
    asked, work.server.reply = len(work.server.requests), default_reply
    assert work.run(*answer).returncode == 0
    assert len(work.server.requests) - asked == 2 and len(work.read("planpers.json")) == 6


@pytest.mark.parametrize(
    ("strategy", "missing"), [("aspect", 1), ("direct", 1), ("pairwise", 2)], ids=["aspect", "direct", "pairwise"]
)
def test_verdicts_that_a_server_failed_to_give(work, strategy, missing):
    for name in ("rag.json", "none.json"):
        work.write(name, {f"q{n}": [{"output": f"Response to q{n}."}] for n in range(6)})
    judge = ["--strategy", strategy, *(["--response_addr", "rag.json", "none.json"] if strategy == "pairwise" else [])]
    texts = {"aspect": '{"match_score": 1}', "direct": '{"score": 0.5}', "pairwise": '{"better_response": 1}'}

    def well(request):
        return Reply(texts[strategy])

    def reply(request):
        is_bad = ("Aspect 2b" if strategy == "aspect" else "Question number 2?") in request["messages"][1]["content"]
        return Reply("Out of order.", status=500) if is_bad else well(request)

    work.server.reply = reply
    done = work.judge(*judge)
    assert done.returncode == 1
    some, same = ("1 verdict is", "it") if missing == 1 else ("2 verdicts are", "them")
    assert done.stderr.splitlines()[-1] == (
        f"{some} missing because the server failed; the same command asks for {same} again"
    )
    scores = work.read("scores.json")
    assert [question["id"] for question in scores["per_question_scores"]] == ["q0", "q1", "q3", "q4", "q5"]
    assert scores["partial"] == {"questions_in_dataset": 6, "questions_judged": 5} and scores["num_unscored"] == 0
    assert read_manifest(work.folder / "scores.json")["missing"] == missing

    asked, work.server.reply = len(work.server.requests), well
    assert work.judge(*judge).returncode == 0
    assert len(work.server.requests) - asked == missing
    assert len(work.read("scores.json")["per_question_scores"]) == 6 and "partial" not in work.read("scores.json")
    assert read_manifest(work.folder / "scores.json")["missing"] == 0


def test_shards_with_gaps_are_not_merged(work):
    work.server.reply = failing("Question number 3?")
    shards = [f"{shard}.json" for shard in range(2)]

    def answer():
        runs = [work.answer("--num_shards", "2", "--shard_index", n, output=shards[n]) for n in range(2)]
        return sorted(run.returncode for run in runs)

    merge = ["utils/merge_shards.py", "--shard_addr", *shards, "--output_addr", "rag.json"]
    assert answer() == [0, 1]
    refused = work.run(*merge)
    assert refused.returncode == 2 and "1 of 6 pieces are missing: 'q3'" in refused.stderr
    work.server.reply = default_reply
    assert answer() == [0, 0]
    assert work.run(*merge).returncode == 0 and len(work.read("rag.json")) == 6
    assert "already finished" in work.answer().stdout


def test_response_files_of_before_are_read_as_before(work):
    """Their manifests do not say what is missing, and a null in them is what the model failed to give."""
    work.write("rag.json", {f"q{n}": [{"output": f"Response to q{n}."}] for n in range(5)} | {"q5": [{"output": None}]})
    whole = work.judge()
    assert whole.returncode == 0, whole.stderr
    assert work.answer("--overwrite").returncode == 0
    path = work.folder / "rag.json.manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["missing"], manifest["refused_by_server"]
    path.write_text(json.dumps(manifest))
    assert work.judge("--overwrite").returncode == 0
    assert "already finished" in work.answer().stdout


def test_a_file_that_was_changed_since_is_judged_by_what_it_holds(work):
    work.server.reply = failing("Question number 3?")
    assert work.answer().returncode == 1
    work.write("rag.json", {f"q{n}": [{"output": "Mine."}] for n in range(6)})
    work.server.reply = default_reply
    assert work.judge().returncode == 0
