"""Which verdicts are asked for and which are there already: real runs, a real server on loopback that is counted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from api_server import Reply, serve
from test_evaluate_responses import aspect_of, make_question, respond

import evaluate_responses
from utils import merge_shards
from utils.cli import UserError
from utils.files.journal_lines import read_journal
from utils.files.manifest import read_manifest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ("match_score", "better_response", "score")  # what the judge is asked for, one a strategy


class Judging:
    """A folder with four questions of two aspects, two systems' responses, and runs whose requests are counted."""

    def __init__(self, folder, server):
        self.folder, self.server = folder, server
        self.questions = [make_question(number) for number in range(4)]
        self.responses = {name: respond(self.questions, q0=f"Of {name}.") for name in ("one", "two")}
        self.write()

    def write(self):
        (self.folder / "key.txt").write_text("sk-test")
        (self.folder / "data.json").write_text(json.dumps(self.questions))
        for name, responses in self.responses.items():
            (self.folder / f"{name}.json").write_text(json.dumps(responses))

    def answer(self, name, **outputs):
        self.responses[name] |= {question: [{"output": output}] for question, output in outputs.items()}
        self.write()

    def command(self, name, score, *more, strategy="aspect"):
        names = name if isinstance(name, list) else [name]
        command = ["--openai", "--base_url", self.server.url, "--api_key_addr", self.folder / "key.txt"]
        command += ["--evaluator_llm", "judge", "--inputs_addr", self.folder / "data.json", "--strategy", strategy]
        command += ["--response_addr", *(self.folder / f"{one}.json" for one in names), "--score_addr"]
        command += [*(self.path(one) for one in (score if isinstance(score, list) else [score])), *more]
        return [*map(str, command)]

    def run(self, name, score, *more, strategy="aspect", code=0):
        """Judge a system; what was asked, `1a` for aspect 1a."""
        asked = len(self.server.requests)
        assert evaluate_responses.main(self.command(name, score, *more, strategy=strategy)) == code
        requests = self.server.requests[asked:]
        if strategy == "aspect":
            return sorted(aspect_of(request) for request in requests)
        return sorted(next(n for n in "0123" if f"number {n}?" in str(request)) for request in requests)

    def path(self, score):
        return self.folder / "scores" / f"{score}.json"

    def read(self, score):
        return json.loads(self.path(score).read_text())

    def is_as_fresh(self, name, score, strategy="aspect"):
        """A score file that was judged in a folder of its own holds the same."""
        self.run(name, f"fresh/{score}", "--overwrite", strategy=strategy)
        return self.read(f"fresh/{score}") == self.read(score)


def verdict_by_hash(request):
    """The verdict hangs on all that the judge reads."""
    text = json.dumps(request["messages"])
    field = next(name for name in RESULTS if name in text)
    value = sum(text.encode()) % 2
    return Reply(json.dumps({field: value + 1 if field == "better_response" else value}))


@pytest.fixture
def judging(tmp_path):
    with serve(verdict_by_hash) as server:
        yield Judging(tmp_path, server)


ALL = [f"{number}{letter}" for number in range(4) for letter in "ab"]


def test_one_changed_answer(judging):
    assert judging.run("one", "one") == ALL
    before = read_manifest(judging.path("one"))["fingerprint"]
    judging.answer("one", q2="Another answer.")
    assert judging.run("one", "one") == ["2a", "2b"]
    after = read_manifest(judging.path("one"))["fingerprint"]
    assert {name for name in after if after[name] != before[name]} == {"responses"}
    assert judging.is_as_fresh("one", "one")
    assert judging.run("one", "one") == []
    judging.answer("one", q2="Response to q2.")  # as it was
    assert judging.run("one", "one") == [] and judging.is_as_fresh("one", "one")
    assert read_manifest(judging.path("one"))["fingerprint"] == before
    judging.answer("one", q3=None)
    assert judging.run("one", "one") == [] and judging.read("one")["num_unanswered"] == 1
    judging.answer("one", q3="Response to q3.")
    assert judging.run("one", "one") == [] and judging.read("one")["num_unanswered"] == 0


def test_a_file_that_holds_the_same_is_not_judged_again(judging):
    judging.run("one", "one")
    path = judging.folder / "one.json"
    path.write_text(path.read_text() + "\n")
    assert judging.run("one", "one") == []
    assert read_manifest(judging.path("one"))["missing"] == 0
    before = judging.path("one").stat().st_mtime_ns
    assert judging.run("one", "one") == [] and judging.path("one").stat().st_mtime_ns == before  # it is up to date


def test_a_changed_dataset(judging):
    judging.run("one", "one")
    judging.questions[1]["narrative"] = "Another narrative."
    judging.questions[3]["rubric_aspects"][0]["reason"] = "another reason"
    judging.questions[2]["category"] = "law"
    judging.questions[2]["profile"] = [{"text": "A post."}]
    judging.write()
    assert judging.run("one", "one") == ["1a", "1b", "3a"]
    assert judging.is_as_fresh("one", "one")
    assert judging.read("one")["per_question_scores"][2]["subgroup"] == "law"
    judging.questions.append(make_question(4))
    judging.answer("one", q4="Response to q4.")
    assert judging.run("one", "one") == ["4a", "4b"]
    judging.questions.pop(0)
    del judging.responses["one"]["q0"]
    judging.write()
    assert judging.run("one", "one") == [] and judging.is_as_fresh("one", "one")


def test_another_system_takes_over_verdicts_on_the_same_answers(judging, capsys):
    judging.run("one", "one")
    spent = read_manifest(judging.path("one"))["tokens"]
    capsys.readouterr()
    assert judging.run("two", "two") == ["0a", "0b"]
    where = judging.path("one")
    assert capsys.readouterr().err.startswith(
        f"note: {judging.path('two')}: 6 verdicts are in {where}.journal.jsonl already\n"
    )
    assert judging.is_as_fresh("two", "two")
    manifest = read_manifest(judging.path("two"))
    assert manifest["taken_over"] == 6 and manifest["tokens"]["prompt_tokens"] < spent["prompt_tokens"] / 2
    assert judging.run("two", "two") == []
    # Of several score files each gets its own, and what no journal has is asked.
    judging.answer("two", q1="New.")
    (judging.folder / "three.json").write_text(json.dumps(judging.responses["two"]))
    assert judging.run(["one", "three"], ["again", "three"]) == ["1a", "1b"]


def test_verdicts_of_another_judge_or_folder_are_not_taken_over(judging):
    judging.run("one", "one")
    assert judging.run("one", "seed", "--seed", 1) == ALL
    assert judging.run("one", "model", "--evaluator_llm", "other") == ALL
    assert judging.run("one", "elsewhere/one") == ALL
    assert judging.run("one", "direct", strategy="direct") == list("0123")
    assert judging.run("one", "one copy") == []


def test_failed_verdicts_are_not_taken_over_and_a_damaged_journal_is_named(judging, capsys):
    judging.server.reply = lambda request: Reply("No." if aspect_of(request) == "1a" else '{"match_score": 1}')
    judging.run("one", "one")
    assert judging.run("one", "copy") == ["1a", "1a"]
    for name in ("one", "copy"):
        path = Path(f"{judging.path(name)}.journal.jsonl")
        path.write_bytes(path.read_bytes().replace(b'"value":1', b'"value":2'))
    capsys.readouterr()
    assert len(judging.run("one", "third")) == len(ALL) + 1
    assert f"looked through: {judging.path('one')}.journal.jsonl: line 2 is damaged" in capsys.readouterr().err


def test_overwrite_asks_for_all(judging):
    judging.run("one", "one")
    judging.run("one", "other")
    assert judging.run("one", "one", "--overwrite") == ALL
    judging.answer("one", q2="Another answer.")
    assert judging.run("one", "one", "--overwrite") == ALL
    assert judging.is_as_fresh("one", "one")


def test_another_response_file_needs_overwrite(judging):
    judging.run("one", "one")
    with pytest.raises(UserError, match=r"was made from .*one\.json, not from .*two\.json\n"):
        judging.run("two", "one")
    assert judging.run("two", "one", "--overwrite", "changed") == ["0a", "0b"]
    assert judging.is_as_fresh("two", "one")
    (judging.folder / "copy.json").write_bytes((judging.folder / "two.json").read_bytes())
    assert judging.run("copy", "one") == []  # another name of the same answers


@pytest.mark.parametrize(("strategy", "times"), [("direct", 1), ("pairwise", 2)])
def test_one_changed_answer_of_other_strategies(judging, strategy, times):
    names = "one" if strategy == "direct" else ["two", "one"]
    assert judging.run(names, "scores", strategy=strategy) == sorted("0123" * times)
    judging.answer("one", q2="Another answer.")
    assert judging.run(names, "scores", strategy=strategy) == ["2"] * times
    assert judging.is_as_fresh(names, "scores", strategy)
    if strategy == "pairwise":
        with pytest.raises(UserError, match="was made from"):
            judging.run(names[::-1], "scores", strategy=strategy)


def test_an_update_that_ends_early_goes_on(judging):
    """What it has not judged again yet is missing, and never an old verdict on a new answer."""
    judging.run("one", "one")
    judging.answer("one", q1="Another answer.", q2="Another answer.")

    def reply(request):
        return Reply("Broken.", status=500) if aspect_of(request) == "2b" else verdict_by_hash(request)

    judging.server.reply = reply
    asked = judging.run("one", "one", "--max_retries", 0, code=1)
    assert set(asked) == {"1a", "1b", "2a", "2b"}
    fingerprint, pieces = read_journal(f"{judging.path('one')}.journal.jsonl")
    assert len(pieces) == 7 and ("q2", 1) not in pieces
    assert fingerprint == read_manifest(judging.path("one"))["fingerprint"]
    assert judging.read("one")["partial"] == {"questions_in_dataset": 4, "questions_judged": 3}
    judging.server.reply = verdict_by_hash
    assert judging.run("one", "one") == ["2b"]
    assert judging.is_as_fresh("one", "one")


@pytest.mark.parametrize("flags", [[], ["--overwrite"]])
def test_a_killed_update_pays_for_nothing_twice(judging, flags):
    judging.run("one", "one")
    before = judging.path("one").read_bytes()
    if not flags:
        judging.answer("one", q0="New.", q1="New.", q2="New.", q3="New.")
    asked, judging.server.delay = len(judging.server.requests), 0.02
    command = [*judging.command("one", "one", *flags), "--max_concurrency", "1"]
    process = subprocess.Popen([sys.executable, ROOT / "evaluate_responses.py", *command], stderr=subprocess.DEVNULL)
    judging.server.wait_for(asked + 5)
    process.kill()
    process.wait()
    pieces = read_journal(f"{judging.path('one')}.journal.jsonl")[1]
    assert 4 <= len(pieces) < 8 and judging.path("one").read_bytes() == before
    done = {f"{question[1:]}{'ab'[number]}" for question, number in pieces}
    assert judging.run("one", "one", *flags) == [one for one in ALL if one not in done]
    assert judging.is_as_fresh("one", "one")


# Shards


def test_shards_of_changed_answers_are_merged(judging):
    def shards(*indices):
        return [
            one
            for index in indices or range(2)
            for one in judging.run("one", f"part{index}", "--num_shards", 2, "--shard_index", index)
        ]

    def merge(*more):
        arguments = ["--inputs_addr", judging.folder / "data.json", "--output_addr", judging.path("merged")]
        arguments += ["--shard_addr", judging.path("part0"), judging.path("part1"), *more]
        assert merge_shards.main([*map(str, arguments)]) == 0

    assert sorted(shards()) == ALL
    merge()
    judging.answer("one", q0="Another answer.", q1="Another answer.", q2="Another answer.", q3="Another answer.")
    first = shards(0)
    with pytest.raises(UserError, match=r"made with other settings than .*: responses: "):
        merge("--overwrite")
    assert sorted(first + shards(1)) == ALL
    with pytest.raises(UserError, match="other settings: responses: "):
        merge()
    merge("--overwrite")
    assert judging.is_as_fresh("one", "merged")
    # The command without shards goes on from the merged file.
    assert judging.run("one", "merged") == []
    judging.answer("one", q1="A third one.")
    assert judging.run("one", "merged") == ["1a", "1b"]


def test_failed_verdicts_that_a_shard_asked_for_again_are_merged(judging):
    judging.server.reply = lambda request: Reply("No." if aspect_of(request) == "1a" else '{"match_score": 1}')
    parts = [["--num_shards", 2, "--shard_index", index] for index in range(2)]
    for index, flags in enumerate(parts):
        judging.run("one", f"part{index}", *flags, code=1 - index)  # of the first one's two verdicts one fails
    arguments = ["--inputs_addr", judging.folder / "data.json", "--output_addr", judging.path("merged")]
    arguments = [*map(str, [*arguments, "--shard_addr", judging.path("part0"), judging.path("part1")])]
    assert merge_shards.main(arguments) == 0 and judging.read("merged")["num_unscored"] == 1
    judging.server.reply = lambda request: Reply('{"match_score": 1}')
    asked = [judging.run("one", f"part{index}", *flags, "--retry_failed") for index, flags in enumerate(parts)]
    assert sorted(asked) == [[], ["1a"]]
    assert merge_shards.main(arguments) == 0 and judging.read("merged")["num_unscored"] == 0
