"""baselines.py with the real openai client and a loopback server."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from api_server import Reply, default_reply, serve

import baselines
import evaluate_responses
from prompts import load_prompt
from retrieval import rank_dataset
from utils import make_table
from utils.base.errors import UserError
from utils.benchmarks.lampqa.answers import ANSWER_SCHEMA
from utils.data.responses import question_hash
from utils.generation.chat import APIChat
from utils.generation.model import Policy

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests/data/mini_lampqa/test.json"
IDS = [record["id"] for record in json.loads(SAMPLE.read_text())]
KEY = "sk-test-0123456789abcdef"
# ANSWER_SCHEMA with no more than OpenAI's strict mode documents.
SENT_SCHEMA = {**ANSWER_SCHEMA, "properties": {"personalized_answer": {"type": "string"}}}


def answer(text):
    return Reply(json.dumps({"personalized_answer": text}))


def hold_second(server, count):
    """With two concurrent requests: answer the second question's first request when all `count` have arrived."""
    held_seed = Policy(0.1, 0.95, 2048, 0, 3, "fallback", ANSWER_SCHEMA).sampling((IDS[1], 0), 0).seed

    def reply(request):
        if request["seed"] == held_seed:
            server.wait_for(count)
        return answer(f"Drawn with {request['seed']}.")

    return reply


@pytest.fixture
def server():
    with serve(lambda request: answer("An answer.")) as server:
        yield server


@pytest.fixture
def flags(tmp_path, server, monkeypatch):
    """The engine's flags, and no API key except the file's."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    (tmp_path / "key.txt").write_text(KEY + "\n")
    return ["--openai", "--model_addr", "some-model", "--base_url", server.url, "--api_key_addr", f"{tmp_path}/key.txt"]


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out" / "answers.json"


def run(flags, output, *more, data=SAMPLE, code=0):
    """Run the script in this process; return its answers."""
    assert baselines.main([*flags, "--inputs_addr", str(data), "--output_addr", str(output), *map(str, more)]) == code
    return json.loads(output.read_text())


def test_named_questions_do_not_replace_a_larger_output(flags, output, tmp_path, server):
    (tmp_path / "ids.txt").write_text(f"{IDS[3]}\n{IDS[1]}\n")
    named = ["--ids_addr", tmp_path / "ids.txt"]
    assert list(run(flags, output, *named)) == [IDS[1], IDS[3]] and len(server.requests) == 2
    (tmp_path / "ids.txt").write_text(f"{IDS[3]}\n{IDS[1]}\n{IDS[0]}\n")  # the same name, but one more
    assert list(run(flags, output, *named)) == [IDS[0], IDS[1], IDS[3]] and len(server.requests) == 3
    assert list(run(flags, output)) == IDS and len(server.requests) == len(IDS)
    with pytest.raises(UserError, match=f"has {len(IDS)} answers, but this command makes only 3"):
        run(flags, output, *named)


def write_json(path, value):
    path.write_text(json.dumps(value))
    return path


def make_question(number, **fields):
    return {"id": f"q{number}", "question": f"Question number {number}?", "profile": [], **fields}


# Answers


def test_one_answer_per_question(server, flags, output, capsys, monkeypatch):
    server.reply = hold_second(server, len(IDS))
    answers = run(flags, output, "--max_concurrency", 2)
    assert list(answers) == IDS
    assert "13 questions, 13 answers, 0 without an answer" in capsys.readouterr().out
    record = json.loads(SAMPLE.read_text())[0]
    first = next(request for request in server.requests if record["question"] in request["messages"][1]["content"])
    assert first["messages"] == load_prompt("lampqa/no_personalization").messages(question=record["question"])
    sampling = {name: first[name] for name in ("model", "temperature", "top_p", "max_tokens")}
    assert sampling == {"model": "some-model", "temperature": 0.1, "top_p": 0.95, "max_tokens": 2048}
    assert set(server.paths) == {"/v1/chat/completions"} and set(server.keys) == {KEY}


def test_fields_of_an_answer(server, flags, output):
    server.reply = lambda request: answer("Because of the rain.")
    data = write_json(output.parent.parent / "data.json", [make_question(1, extra="kept by us, sent to nobody")])
    messages = load_prompt("lampqa/no_personalization").messages(question="Question number 1?")
    words = sum(len(message["content"].split()) for message in messages)
    expected = {
        "output": "Because of the rain.", "raw": '{"personalized_answer": "Because of the rain."}', "parsed": "strict",
        "num_contexts_used": 0, "num_contexts_dropped": 0, "context_cut": False, "truncated": False,
        "finish_reason": "stop", "attempts": 1, "constrained": False, "temperature": 0.1,
        "prompt_tokens": words, "cached_tokens": words // 2, "completion_tokens": 5,  # the server counts words
        "question_hash": hashlib.sha256(b'["Question number 1?", null]').hexdigest()[:16],
    }  # fmt: skip
    assert run(flags, output, data=data) == {"q1": [expected]}


def test_manifest(server, flags, output, monkeypatch):
    run(flags, output, "--limit", 2)
    manifest = json.loads(Path(f"{output}.manifest.json").read_text())
    address = server.url.removeprefix("http://")
    assert manifest["settings"]["model"] == f"some-model at {address}"
    assert manifest["arguments"]["base_url"] == server.url
    assert (manifest["settings"]["max_model_len"], manifest["arguments"]["max_model_len"]) == (None, None)  # as given
    assert manifest["max_model_len"] == 8192
    assert manifest["settings"]["prompt"].keys() == {"no_personalization"}
    assert manifest["counts"]["answers"] == manifest["pieces"] == 2
    assert manifest["tokens"]["completion_tokens"] == 2 * 3
    assert manifest["device"] == "API at 127.0.0.1" and manifest["batch_invariant"] is None
    # An address from the environment is the same server, and the same run.
    place = flags.index("--base_url")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    run(flags[:place] + flags[place + 2 :], output, "--limit", 2)
    assert len(server.requests) == 2


def test_rag_puts_the_best_ranked_posts_into_the_prompt(server, flags, output):
    answers = run(flags, output, "--rag", "--unranked", "--num_contexts", 3, "--max_concurrency", 1)
    for record, request in zip(json.loads(SAMPLE.read_text()), server.requests, strict=True):
        posts = [item["text"] for item in record["profile"]]
        expected = load_prompt("lampqa/rag").messages(question=record["question"], profile="\n\n".join(posts[:3]))
        assert request["messages"] == expected
        figures = answers[record["id"]][0]
        used = 0 if record["id"] == "gaming_28873" else 3  # its profile is empty
        assert (figures["num_contexts_used"], figures["num_contexts_dropped"]) == (used, 0)
        assert figures["output"] == "An answer."


def test_rag_for_users_without_posts_is_counted_and_noted(server, flags, output, tmp_path, capsys):
    """In the run, in its manifest, and under the table: these answers are made from the question alone."""
    records = json.loads(SAMPLE.read_text())
    for record in records[:2]:
        record["profile"] = []
    bare = sum(not record["profile"] for record in records)
    assert 1 < bare < len(records)
    data = write_json(tmp_path / "data.json", records)
    run(flags, output, "--rag", "--unranked", data=data)
    counts = json.loads(output.with_name("answers.json.manifest.json").read_text())["counts"]
    assert counts["answers for users without a profile"] == bare
    assert f", {bare} answers for users without a profile" in capsys.readouterr().out
    scores, out = tmp_path / "scores.json", output.with_name("none.json")
    server.reply = lambda request: Reply('{"match_score": 1}')
    judging = ["--inputs_addr", str(data), "--score_addr", str(scores), "--evaluator_llm", *flags[2:3], *flags[3:]]
    evaluate_responses.main(["--openai", *judging, "--response_addr", str(output)])
    capsys.readouterr()
    make_table.main(["--system", "RAG", str(scores)])
    assert (
        f"- RAG: {bare} answers for users without a profile, made from the question alone.\n" in capsys.readouterr().out
    )
    server.reply = lambda request: answer("An answer.")
    run(flags, out, data=data)  # without posts there is nothing to count
    assert "without a profile" not in out.with_name("none.json.manifest.json").read_text()


def test_an_unranked_file_is_refused_before_any_request(server, flags, output):
    num_requests = len(server.requests)
    with pytest.raises(UserError, match=r"mini_lampqa/test\.json: not ranked: .*\n  rank it first, or add --unran"):
        run(flags, output, "--rag")
    assert len(server.requests) == num_requests and not output.exists()
    run(flags, output, "--rag", "--num_contexts", 0)  # no posts are used


def test_several_answers_per_question_have_different_seeds(server, flags, output, monkeypatch):
    server.reply = hold_second(server, 39)
    answers = run(flags, output, "--num_generated_outputs", 3, "--max_concurrency", 2)
    assert list(answers) == IDS and {len(outputs) for outputs in answers.values()} == {3}
    texts = {output["output"] for outputs in answers.values() for output in outputs}
    assert len(texts) == 39
    # The seed depends on question and number only: fewer answers are the first of more.
    server.reply = lambda request: answer(f"Drawn with {request['seed']}.")
    fewer = run(flags, output.with_name("fewer.json"), "--num_generated_outputs", 2, "--limit", 5)
    assert fewer == {question_id: outputs[:2] for question_id, outputs in list(answers.items())[:5]}


def test_requests_in_flight_are_bounded(server, flags, output):
    server.delay = 0.1
    run(flags, output, "--max_concurrency", 3)
    assert server.most_at_once == 3


# Unusable outputs


def test_unusable_outputs_are_retried_and_the_last_try_is_constrained(server, flags, output):
    server.reply = lambda request: answer("At last.") if "response_format" in request else Reply("I'd rather not.")
    sample = run(flags, output, "--limit", 1)[IDS[0]][0]
    assert (sample["output"], sample["attempts"], sample["constrained"]) == ("At last.", 4, True)
    assert len({request["seed"] for request in server.requests}) == 4
    assert [request["temperature"] for request in server.requests] == [0.1] * 4
    assert ["response_format" in request for request in server.requests] == [False, False, False, True]
    assert server.requests[3]["response_format"]["type"] == "json_schema"
    assert server.requests[3]["response_format"]["json_schema"]["schema"] == SENT_SCHEMA
    assert sample["completion_tokens"] == 3 * 3 + 3  # "I'd rather not." three times, and the answer's three words


@pytest.mark.parametrize(
    ("reply", "reason", "attempts"),
    [(Reply("No."), "no personalized_answer in the text", 2), (Reply("", "content_filter"), "content_filter", 1)],
)
def test_an_unusable_or_refused_output_is_null_with_its_reason(server, flags, output, capsys, reply, reason, attempts):
    stubborn = json.loads(SAMPLE.read_text())[1]["question"]
    server.reply = lambda request: reply if stubborn in request["messages"][1]["content"] else answer("Yes.")
    answers = run(flags, output, "--max_retries", 1)
    sample = answers.pop(IDS[1])[0]
    expected = (None, reason, reply.text, attempts)
    assert (sample["output"], sample["reason"], sample.get("raw", ""), sample["attempts"]) == expected
    assert {outputs[0]["output"] for outputs in answers.values()} == {"Yes."}
    assert "12 answers, 1 without an answer" in capsys.readouterr().out


def test_a_run_with_half_failures_says_why_and_exits_with_1(server, flags, output, capsys):
    questions = [record["question"] for record in json.loads(SAMPLE.read_text())]

    def reply(request):
        place = next(i for i, text in enumerate(questions) if text in request["messages"][1]["content"])
        if place < 2:
            return Reply("Not this.", status=400, code="content_filter")
        return Reply(f"Ring \x07 \u202e the bell, {place}.") if place < 7 else answer("Yes.")

    server.reply = reply
    message = f"{output}: 7 of 13 answers unusable; a higher --max_retries retries them\n"
    run(flags, output, "--max_retries", 1, code=1)
    printed = capsys.readouterr().err
    assert message in printed and f"  2 × content_filter: Not this., such as '{IDS[0]}'\n" in printed
    assert f"5 × no personalized_answer in the text, such as '{IDS[2]}': 'Ring \\x07 \\u202e the bell, 2.'\n" in printed
    run(flags, output, "--max_retries", 1)  # message of a run that has nothing to do
    assert capsys.readouterr() == (f"{output}: already finished; skipped\n", message)
    server.reply, num_requests = lambda request: answer("Yes."), len(server.requests)
    assert sum(sample["output"] is None for [sample] in run(flags, output, "--max_retries", 2).values()) == 2
    assert len(server.requests) - num_requests == 5  # a refusal is stored


@pytest.mark.parametrize(("mode", "temperatures"), [("always", [0.1] * 3), ("never", [0.1, 0.2, 0.3])])
def test_constrained_always_or_never(server, flags, output, mode, temperatures):
    server.reply = lambda request: Reply("No.")
    run(flags, output, "--limit", 1, "--constrained_decoding", mode, "--max_retries", 2, code=1)
    assert [request["temperature"] for request in server.requests] == temperatures
    formats = [request.get("response_format", {"json_schema": {}})["json_schema"] for request in server.requests]
    assert [form.get("schema") for form in formats] == [SENT_SCHEMA if mode == "always" else None] * 3


def test_an_address_without_v1_gets_a_hint(server, flags, output):
    flags = [flag.removesuffix("/v1") for flag in flags]
    with pytest.raises(UserError, match=r"answers 404: .*\n  --base_url has no path; it usually ends in /v1$"):
        run(flags, output, "--limit", 1)


def test_truncated_answer_is_kept_and_flagged(server, flags, output, capsys):
    server.reply = lambda request: Reply('```json\n{"personalized_answer": "First of all, the', "length")
    sample = run(flags, output, "--limit", 1)[IDS[0]][0]
    assert (sample["output"], sample["truncated"], sample["parsed"]) == ("First of all, the", True, "repaired")
    assert (sample["finish_reason"], sample["attempts"]) == ("length", 1)
    assert "1 truncated" in capsys.readouterr().out


# Errors of the server


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply("No model `some-model`.", status=404, code="model_not_found"), "answers 404: No model `some-model`."),
        (Reply("top_p is not supported", status=400), "refuses the request: top_p is not supported"),
        (Reply("Pay first.", status=429, code="insufficient_quota"), "answers 429: Pay first."),
        (
            Reply("10000 tokens", status=400, code="context_length_exceeded"),
            "refuses a prompt because it is too long: 10000 tokens\n"
            "  set --max_model_len to the real limit, or lower --max_tokens",
        ),
    ],
)
def test_a_lasting_error_ends_the_run_with_one_line(server, flags, output, reply, message):
    server.reply = lambda request: reply
    with pytest.raises(UserError) as raised:
        run(flags, output)
    assert str(raised.value).startswith(f"the API at 127.0.0.1 {message}")
    # A fault that may be of one prompt ends the run at the third one.
    assert ("3 different prompts were refused" in str(raised.value)) == (reply.status == 400)
    assert len({json.dumps(request["messages"]) for request in server.requests}) == (3 if reply.status == 400 else 1)
    assert not [path for path in output.parent.iterdir() if path.suffix != ".lock"]  # `raised` keeps the lock


# Texts that are never sent, and never written


def sentences(record):
    """Return every sentence that only the judge may see: narrative, and the aspects' evidence and reason."""
    texts = [record["narrative"]]
    texts += [aspect[field] for aspect in record["rubric_aspects"] for field in ("evidence", "reason")]
    parts = [part for text in texts for part in re.split(r"(?<=[.!?。!?])\s+|(?<=[。!?])|\n+|\.\.\.", text)]
    return [part.strip() for part in parts if len(part.split()) >= 3 or len(part.strip()) >= 15]


def test_narrative_and_aspects_are_never_in_a_generators_prompt(server, flags, output, tmp_path):
    records, other = json.loads(SAMPLE.read_text()), tmp_path / "random.json"
    files = ["--input_dataset_addr", str(SAMPLE), "--output_dataset_addr", str(other), "--other_profile", "random"]
    rank_dataset.main([*files, "--ranker", "recency"])
    all_posts = ["--rag", "--unranked", "--num_contexts", 1000, "--max_model_len", 10**6]
    run(flags, output)
    run(flags, output.with_name("rag.json"), *all_posts)
    run(flags, output.with_name("other.json"), *all_posts, data=other)
    prompts = "\n".join(message["content"] for request in server.requests for message in request["messages"])
    assert len(server.requests) == 3 * len(records)
    assert all(record["question"] in prompts for record in records)
    assert all(item["text"] in prompts for record in records for item in record["profile"])
    secret = [sentence for record in records for sentence in sentences(record)]
    assert len(secret) > 15 * len(records)
    assert [sentence for sentence in secret if sentence in prompts] == []


WITH_AN_API = """
baselines.py --model_addr m --rag --unranked --output_addr {0}/answers.json
planpers.py --model_addr m --gold_plan --unranked --output_addr {0}/planned.json
evaluate_responses.py --evaluator_llm m --response_addr {0}/responses.json --score_addr {0}/scores.json
"""


def test_nothing_heavy_is_imported_for_an_api(server, flags, tmp_path):
    """The key comes from the environment. All in one process, which an import would end."""
    server.reply = default_reply
    (tmp_path / "blocked").mkdir()
    for name in ("torch", "transformers", "vllm", "pandas", "scipy", "datasets", "peft"):
        (tmp_path / f"blocked/{name}.py").write_text(f"raise RuntimeError('{name} was imported')\n")
    write_json(tmp_path / "responses.json", {question_id: [{"output": "Yes."}] for question_id in IDS})
    common, calls = f" --limit 2 --inputs_addr {SAMPLE} --openai {' '.join(flags[3:5])}", ""
    for command in WITH_AN_API.format(tmp_path).strip().splitlines():
        script, words = (command + common).split(".py ")
        calls += f"import {script}; assert {script}.main({words.split()}) == 0\n"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "blocked"), "OPENAI_API_KEY": KEY}
    done = subprocess.run([sys.executable, "-c", calls], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# The token budget


def test_a_long_prompt_loses_its_last_posts_or_is_skipped(server, flags, output, tmp_path, capsys):
    posts = [{"text": f"Post {i}: ".ljust(300, "x")} for i in range(5)]
    records = [make_question(1, profile=posts), make_question(2, question="why " * 3000)]
    without_posts = load_prompt("lampqa/rag").messages(question=records[0]["question"], profile="")
    # 300 bytes are 100 tokens: two posts take 201 (with the blank line between them), three 302.
    lengths = ["--max_tokens", 64, "--max_model_len", APIChat("some-model").length(without_posts) + 250 + 64]
    data = write_json(tmp_path / "data.json", records)
    answers = run(flags, output, "--rag", "--unranked", *lengths, data=data, code=1)
    sample = answers["q1"][0]
    assert (sample["num_contexts_used"], sample["num_contexts_dropped"], sample["context_cut"]) == (2, 3, False)
    profile = f"{posts[0]['text']}\n\n{posts[1]['text']}"
    expected = load_prompt("lampqa/rag").messages(question=records[0]["question"], profile=profile)
    assert [request["messages"] for request in server.requests] == [expected]
    unanswered = {"output": None, "reason": "the prompt does not fit into the model's context"}
    assert answers["q2"] == [unanswered | {"question_hash": question_hash(records[1])}]
    assert "3 posts left out for length" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["https://example.org/" + "a-very-long-address/" * 60, "天气很好" * 200])
def test_the_mock_server_counts_long_words_as_several_tokens(server, flags, output, capsys, text):
    """Otherwise a prompt of addresses, or in a script without spaces, would count as cut by the server."""
    data = write_json(output.parent.parent / "data.json", [make_question(1, question=text)])
    run(flags, output, data=data)
    assert "the server read less than half" not in capsys.readouterr().err
