"""baselines.py through the real openai client, against a server on loopback."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from api_server import Reply, default_reply, serve

import baselines
from prompts import load_prompt
from retrieval import rank_dataset
from utils.cli import UserError
from utils.generation.chat import APIChat
from utils.generation.model import Policy
from utils.parsing.answers import ANSWER_SCHEMA

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data/mini_lampqa"
SAMPLE = DATA / "test.json"
IDS = [record["id"] for record in json.loads(SAMPLE.read_text())]
KEY = "sk-test-0123456789abcdef"
# ANSWER_SCHEMA with no more than OpenAI's strict mode documents.
SENT_SCHEMA = {**ANSWER_SCHEMA, "properties": {"personalized_answer": {"type": "string"}}}
HEAVY = ("torch", "transformers", "vllm", "pandas", "scipy", "datasets")


def answer(text):
    return Reply(json.dumps({"personalized_answer": text}))


def hold_first(server, count):
    """With two requests at a time: the first question's first answer comes when all `count` have been asked for."""
    first_seed = Policy(0.1, 0.95, 2048, 0, 3, "fallback", ANSWER_SCHEMA).sampling((IDS[0], 0), 0).seed

    def reply(request):
        if request["seed"] == first_seed:
            server.wait_for(count)
        return answer(f"Drawn with {request['seed']}.")

    return reply


@pytest.fixture
def server():
    with serve(lambda request: answer("An answer.")) as server:
        yield server


@pytest.fixture
def flags(tmp_path, server, monkeypatch):
    """The engine's flags, and no key but the file's."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    (tmp_path / "key.txt").write_text(KEY + "\n")
    return ["--openai", "--model_addr", "some-model", "--base_url", server.url, "--api_key_addr", f"{tmp_path}/key.txt"]


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out" / "answers.json"


def run(flags, output, *more, data=SAMPLE, code=0):
    """Run the script in this process; the answers it wrote."""
    assert baselines.main([*flags, "--inputs_addr", str(data), "--output_addr", str(output), *map(str, more)]) == code
    return json.loads(output.read_text())


def run_process(*arguments, **environment):
    environment = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "baselines.py", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True,
        env=environment, timeout=600,
    )  # fmt: skip


def rank(*arguments):
    rank_dataset.main([*map(str, arguments), "--ranker", "recency"])


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_json(path, value):
    path.write_text(json.dumps(value))
    return path


def make_question(number, **fields):
    return {"id": f"q{number}", "question": f"Question number {number}?", "profile": [], **fields}


def without_modules(folder, names):
    """A folder for PYTHONPATH in which importing any of `names` fails."""
    folder.mkdir()
    for name in names:
        (folder / f"{name}.py").write_text(f"raise RuntimeError('{name} was imported')\n")
    return str(folder)


# Answers


def test_one_answer_a_question(server, flags, output, capsys):
    server.reply = hold_first(server, len(IDS))
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
    assert run(flags, output, data=data) == {
        "q1": [
            {
                "output": "Because of the rain.",
                "num_contexts_used": 0,
                "num_contexts_dropped": 0,
                "context_cut": False,
                "raw": '{"personalized_answer": "Because of the rain."}',
                "parsed": "strict",
                "truncated": False,
                "finish_reason": "stop",
                "attempts": 1,
                "constrained": False,
                "temperature": 0.1,
                "prompt_tokens": words,  # the server counts words
                "cached_tokens": words // 2,
                "completion_tokens": 5,
            }
        ]
    }


def test_manifest(server, flags, output, monkeypatch):
    run(flags, output, "--limit", 2)
    manifest = json.loads(Path(f"{output}.manifest.json").read_text())
    assert manifest["settings"]["model"] == "some-model"
    assert manifest["arguments"]["base_url"] == server.url
    assert manifest["settings"]["max_model_len"] is None  # as given
    assert manifest["arguments"]["max_model_len"] == 8192
    assert manifest["settings"]["prompt"].keys() == {"no_personalization"}
    assert manifest["counts"]["answers"] == manifest["pieces"] == 2
    assert manifest["tokens"]["completion_tokens"] == 2 * 3
    assert manifest["device"] == "API at 127.0.0.1" and manifest["batch_invariant"] is None
    assert manifest["token_counter"] == "estimate: 1 token per 3 bytes"
    # An address from the environment is the same server, and the same run.
    place = flags.index("--base_url")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    asked = len(server.requests)
    run(flags[:place] + flags[place + 2 :], output, "--limit", 2)
    assert len(server.requests) == asked


def test_rag_puts_the_best_ranked_posts_into_the_prompt(server, flags, output, capsys):
    answers = run(flags, output, "--rag", "--unranked", "--num_contexts", 3, "--max_concurrency", 1)
    assert "not ranked: no manifest" in capsys.readouterr().err
    for record, request in zip(json.loads(SAMPLE.read_text()), server.requests, strict=True):
        posts = [item["text"] for item in record["profile"]]
        expected = load_prompt("lampqa/rag").messages(question=record["question"], profile="\n\n".join(posts[:3]))
        assert request["messages"] == expected
        figures = answers[record["id"]][0]
        used = 0 if record["id"] == "gaming_28873" else 3  # its profile is empty
        assert (figures["num_contexts_used"], figures["num_contexts_dropped"]) == (used, 0)
        assert figures["output"] == "An answer."


def test_an_unranked_file_is_refused_before_anything_is_asked(server, flags, output):
    asked = len(server.requests)
    with pytest.raises(
        UserError, match=r"mini_lampqa/test\.json: not ranked: .*\n  rank it first, or add --unranked to"
    ):
        run(flags, output, "--rag")
    assert len(server.requests) == asked and not output.exists()
    run(flags, output, "--rag", "--num_contexts", 0)  # no posts are used


def test_ranked_file_is_read_without_a_remark(flags, output, tmp_path, capsys):
    ranked = tmp_path / "ranked.json"
    rank("--input_dataset_addr", SAMPLE, "--output_dataset_addr", ranked)
    assert list(run(flags, output, "--rag", data=ranked)) == IDS
    assert "no manifest" not in capsys.readouterr().err


def test_several_answers_a_question_differ_in_their_seeds(server, flags, output):
    server.reply = hold_first(server, 39)
    answers = run(flags, output, "--num_generated_outputs", 3, "--max_concurrency", 2)
    assert list(answers) == IDS and {len(outputs) for outputs in answers.values()} == {3}
    texts = {output["output"] for outputs in answers.values() for output in outputs}
    assert len(texts) == 39
    # The seed hangs on question and number alone: fewer answers are the first of more.
    server.reply = lambda request: answer(f"Drawn with {request['seed']}.")
    fewer = run(flags, output.with_name("fewer.json"), "--num_generated_outputs", 2, "--limit", 5)
    assert fewer == {question_id: outputs[:2] for question_id, outputs in list(answers.items())[:5]}


def test_ids_may_be_numbers(flags, output, tmp_path):
    data = write_json(tmp_path / "data.json", [make_question(1, id=7), make_question(2, id="x")])
    assert list(run(flags, output, data=data)) == ["7", "x"]


def test_json_lines(flags, output, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps(make_question(1)) + "\n\n" + json.dumps(make_question(2)) + "\n")
    assert list(run(flags, output, data=data)) == ["q1", "q2"]


def test_shards_cover_the_set(server, flags, output):
    server.reply = default_reply
    whole = run(flags, output)
    asked, parts = len(server.requests), output.parent.parent / "parts"
    command = [*flags, "--inputs_addr", str(SAMPLE), "--output_addr", str(parts / "answers.json")]
    for shard in range(3):
        assert baselines.main([*command, "--num_shards", "3", "--shard_index", str(shard)]) == 0
        assert [path.name for path in parts.iterdir()] == ["completions"]
    assert sorted(map(str, server.requests[asked:])) == sorted(map(str, server.requests[:asked]))
    assert run(flags, parts / "answers.json", "--cached_only") == whole and len(server.requests) == 2 * asked


def test_own_prompts(server, flags, output, tmp_path):
    own = tmp_path / "prompts"
    own.mkdir()
    (own / "no_personalization.txt").write_text("[system]\nBe brief.\n[user]\nAsked: {question}\n")
    data = write_json(tmp_path / "data.json", [make_question(1, question="Who is {question} and {profile}?")])
    run(flags, output, "--prompts_dir", own, data=data)
    assert server.requests[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Asked: Who is {question} and {profile}?"},
    ]


def test_requests_under_way_are_bounded(server, flags, output):
    server.delay = 0.01
    run(flags, output, "--max_concurrency", 3)
    assert server.most_at_once == 3


# Unusable outputs


def test_unusable_outputs_are_asked_for_again_and_the_last_try_is_held_to_the_schema(server, flags, output):
    server.reply = lambda request: answer("At last.") if "response_format" in request else Reply("I'd rather not.")
    found = run(flags, output, "--limit", 1)[IDS[0]][0]
    assert (found["output"], found["attempts"], found["constrained"]) == ("At last.", 4, True)
    assert len({request["seed"] for request in server.requests}) == 4
    assert [request["temperature"] for request in server.requests] == [0.1] * 4
    assert ["response_format" in request for request in server.requests] == [False, False, False, True]
    assert server.requests[3]["response_format"]["type"] == "json_schema"
    assert server.requests[3]["response_format"]["json_schema"]["schema"] == SENT_SCHEMA
    assert found["completion_tokens"] == 3 * 3 + 3  # "I'd rather not." three times, and the answer's three words


def test_usable_second_try_is_taken(server, flags, output):
    server.reply = lambda request: answer("Yes.") if len(server.requests) == 2 else Reply("{}")
    found = run(flags, output, "--limit", 1)[IDS[0]][0]
    assert (found["output"], found["attempts"], found["constrained"]) == ("Yes.", 2, False)


def test_output_that_stays_unusable_is_null_with_its_reason(server, flags, output, capsys):
    stubborn = json.loads(SAMPLE.read_text())[1]["question"]
    server.reply = lambda request: Reply("No.") if stubborn in request["messages"][1]["content"] else answer("Yes.")
    answers = run(flags, output, "--max_retries", 1)
    found = answers.pop(IDS[1])[0]
    assert (found["output"], found["reason"], found["raw"]) == (None, "no personalized_answer in the text", "No.")
    assert found["attempts"] == 2
    assert {outputs[0]["output"] for outputs in answers.values()} == {"Yes."}
    assert "12 answers, 1 without an answer" in capsys.readouterr().out


def refusing(number):
    """A reply that fails for so many of the sample's 13 questions: the first two are refused for their content."""
    questions = [record["question"] for record in json.loads(SAMPLE.read_text())]

    def reply(request):
        place = next(i for i, text in enumerate(questions) if text in request["messages"][1]["content"])
        if place < 2:
            return Reply("Not this.", status=400, code="content_filter")
        return Reply(f"I'd rather not, {place}.") if place < number else answer("Yes.")

    return reply


def test_a_run_in_which_at_least_half_fails_says_why_and_ends_with_1(server, flags, output, capsys):
    server.reply = refusing(6)  # of 13: not half
    run(flags, output, "--max_retries", 0)
    assert "unusable" not in capsys.readouterr().err
    run(flags, output, "--max_retries", 0)  # said by a run that has nothing to do
    told = f"{output}: 6 of 13 answers are unusable; a higher --max_retries asks for them again\n"
    assert capsys.readouterr().err == told
    server.reply = refusing(7)
    again = output.parent.parent / "again" / "answers.json"
    told = f"{again}: 7 of 13 answers are unusable; a higher --max_retries asks for them again\n"
    run(flags, again, "--max_retries", 1, code=1)
    assert capsys.readouterr().err.endswith(
        f"{told}"
        f"  5: no personalized_answer in the text; such as '{IDS[2]}': \"I'd rather not, 2.\"\n"
        "     try another model, or a prompt of your own by --prompts_dir\n"
        f"  2: content_filter: Not this.; such as '{IDS[0]}'\n"
        "     try another model or server: this one refuses what these prompts are about\n"
        "  with other settings, give another output or --overwrite\n"
    )
    run(flags, again, "--max_retries", 1, "--overwrite")
    assert capsys.readouterr() == (f"{again}: already finished, left alone\n", told)
    server.reply, asked = lambda request: answer("Yes."), len(server.requests)
    assert sum(found["output"] is None for [found] in run(flags, again, "--max_retries", 2).values()) == 2
    assert len(server.requests) - asked == 5  # a refusal is kept


def test_what_to_try_goes_with_how_the_outputs_failed(server, flags, tmp_path, capsys):
    long = "Ring \x07 \u202e the bell. " * 40

    def told(name, reply, *more):
        server.reply = reply
        run(flags, tmp_path / name / "answers.json", "--max_retries", 0, "--max_concurrency", 1, *more, code=1)
        return capsys.readouterr().err

    def truncated(request):
        return Reply(long, finish_reason="length")

    printed = told("truncated", truncated)
    sample = repr(long)[:97]
    assert f"such as '{IDS[0]}': {sample}...\n     try a higher --max_tokens, with a --max_model_len" in printed
    assert "\x07" not in printed and "\u202e" not in printed
    printed = told("too_long", truncated, "--max_model_len", 60, "--max_tokens", 59)
    assert "answers.json: 13 of 13 answers are unusable\n  13: the prompt is longer" in printed
    assert "\n     try a higher --max_model_len" in printed
    never = ["--constrained_decoding", "never"]
    assert "\n     try a higher --max_tokens" in told("never", truncated, *never)
    printed = told("free", lambda request: Reply("No."), *never)
    assert "\n     try --constrained_decoding fallback, or another model\n" in printed
    printed = told("mixed", lambda request: Reply("No.", "length" if len(server.requests) % 2 else "stop"))
    # Not one reason.
    assert {int(count) for count in re.findall(r"  (\d+): no personalized_answer", printed)} == {6, 7}


def test_an_address_without_v1_is_told(server, flags, output):
    flags = [flag.removesuffix("/v1") for flag in flags]
    with pytest.raises(UserError, match=r"answers 404: .*\n  --base_url usually ends in /v1; this one has no path$"):
        run(flags, output, "--limit", 1)


def test_constrained_always(server, flags, output):
    server.reply = lambda request: Reply("No.")
    run(flags, output, "--limit", 1, "--constrained_decoding", "always", "--max_retries", 2, code=1)
    assert len(server.requests) == 3
    assert all(request["response_format"]["json_schema"]["schema"] == SENT_SCHEMA for request in server.requests)


def test_constrained_never_raises_the_temperature_up_to_one(server, flags, output):
    server.reply = lambda request: Reply("No.")
    found = run(flags, output, "--limit", 1, "--constrained_decoding", "never", "--max_retries", 11, code=1)[IDS[0]][0]
    temperatures = [request["temperature"] for request in server.requests]
    assert temperatures == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0]
    assert not any("response_format" in request for request in server.requests)
    assert (found["output"], found["temperature"]) == (None, 1.0)


def test_truncated_answer_is_kept_and_flagged(server, flags, output, capsys):
    server.reply = lambda request: Reply('```json\n{"personalized_answer": "First of all, the', "length")
    found = run(flags, output, "--limit", 1)[IDS[0]][0]
    assert (found["output"], found["truncated"], found["parsed"]) == ("First of all, the", True, "repaired")
    assert (found["finish_reason"], found["attempts"]) == ("length", 1)
    assert "1 truncated" in capsys.readouterr().out


def test_half_a_character_does_not_stop_the_run(server, flags, output):
    server.reply = lambda request: answer("Half \ud83d.") if len(server.requests) == 1 else answer("Yes.")
    answers = run(flags, output, "--max_concurrency", 1)
    assert answers[IDS[0]][0]["output"].startswith("Half ") and len(answers) == 13


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (Reply("", "content_filter"), "content_filter"),
        (Reply("Not about this.", status=400, code="content_filter"), "content_filter: Not about this."),
    ],
)
def test_refused_prompt_is_null_and_the_run_goes_on(server, flags, output, refusal, reason):
    question = json.loads(SAMPLE.read_text())[2]["question"]
    server.reply = lambda request: refusal if question in request["messages"][1]["content"] else answer("Yes.")
    answers = run(flags, output)
    found = answers.pop(IDS[2])[0]
    assert (found["output"], found["reason"], found["attempts"]) == (None, reason, 1)
    assert {outputs[0]["output"] for outputs in answers.values()} == {"Yes."}
    assert len(server.requests) == 13


# Errors of the server


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_trouble_is_tried_again(server, flags, output, status):
    trouble = Reply("Busy.", status=status)
    server.reply = lambda request: trouble if len(server.requests) <= 3 else answer("Yes.")
    found = run(flags, output, "--limit", 1)[IDS[0]][0]
    assert (found["output"], found["attempts"]) == ("Yes.", 1)
    assert len(server.requests) == 4 and len({request["seed"] for request in server.requests}) == 1


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply("Incorrect API key provided: $KEY.", status=401), "answers 401: Incorrect API key provided: ***."),
        (Reply("No model `some-model`.", status=404, code="model_not_found"), "answers 404: No model `some-model`."),
        (Reply("top_p is not supported", status=400), "refuses the request: top_p is not supported"),
        (Reply("Not for you.", status=403), "answers 403: Not for you."),
        (Reply("Pay first.", status=429, code="insufficient_quota"), "answers 429: Pay first."),
        (
            Reply("10000 tokens", status=400, code="context_length_exceeded"),
            "refuses a prompt as too long: 10000 tokens\n"
            "  give its real length as --max_model_len, or a smaller --max_tokens",
        ),
    ],
)
def test_lasting_trouble_ends_the_run_with_one_line(server, flags, output, reply, message):
    server.reply = lambda request: reply
    with pytest.raises(UserError) as raised:
        run(flags, output)
    assert str(raised.value) == f"the API at 127.0.0.1 {message}"
    assert not [path for path in output.parent.iterdir() if path.suffix != ".lock"]  # `raised` keeps the lock


def test_run_that_an_error_ended_goes_on(server, flags, output):
    expired = Reply("Expired.", status=401)
    server.reply = lambda request: default_reply(request) if len(server.requests) <= 5 else expired
    done = run_process(*flags, "--inputs_addr", SAMPLE, "--output_addr", output, "--max_concurrency", 1)
    assert done.returncode == 2 and "401: Expired" in done.stderr
    assert not output.exists() and len(server.requests) == 6
    server.reply = default_reply
    answers = run(flags, output)
    assert list(answers) == IDS
    assert len(server.requests) == 1 + sum(outputs[0]["attempts"] for outputs in answers.values())
    assert answers == run(flags, output.parent.parent / "fresh" / "answers.json")


def test_wrong_path_in_the_address(server, flags, output):
    flags[flags.index(server.url)] = server.url.removesuffix("/v1")
    with pytest.raises(UserError, match="answers 404: no such path: /chat/completions"):
        run(flags, output)


def test_refused_key_ends_the_process_with_one_line(server, flags, output):
    server.reply = lambda request: Reply("Incorrect API key provided: $KEY.", status=401)
    done = run_process(*flags, "--inputs_addr", SAMPLE, "--output_addr", output)
    assert done.returncode == 2 and done.stdout == ""
    progress, error = done.stderr.splitlines()
    assert progress == "0/13 answers"
    assert error == "error: the API at 127.0.0.1 answers 401: Incorrect API key provided: ***."


# What is never sent, and never written


def sentences(record):
    """Every sentence that only the judge may see: of the narrative, and of the aspects' evidence and reason."""
    texts = [record["narrative"]]
    texts += [aspect[field] for aspect in record["rubric_aspects"] for field in ("evidence", "reason")]
    parts = [part for text in texts for part in re.split(r"(?<=[.!?。!?])\s+|(?<=[。!?])|\n+|\.\.\.", text)]
    return [part.strip() for part in parts if len(part.split()) >= 3 or len(part.strip()) >= 15]


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_narrative_and_aspects_are_never_in_a_generators_prompt(server, flags, output, split, tmp_path):
    data = DATA / f"{split}.json"
    records = json.loads(data.read_text())
    other = tmp_path / "random.json"
    rank("--input_dataset_addr", data, "--output_dataset_addr", other, "--random_profile")
    run(flags, output, data=data)
    run(
        flags,
        output.with_name("rag.json"),
        "--rag",
        "--unranked",
        "--num_contexts",
        1000,
        "--max_model_len",
        10**6,
        data=data,
    )
    run(
        flags,
        output.with_name("other.json"),
        "--rag",
        "--unranked",
        "--num_contexts",
        1000,
        "--max_model_len",
        10**6,
        data=other,
    )
    prompts = "\n".join(message["content"] for request in server.requests for message in request["messages"])
    assert len(server.requests) == 3 * len(records)
    assert all(record["question"] in prompts for record in records)
    assert all(item["text"] in prompts for record in records for item in record["profile"])
    secret = [sentence for record in records for sentence in sentences(record)]
    assert len(secret) > 15 * len(records)
    assert [sentence for sentence in secret if sentence in prompts] == []


def test_key_is_never_shown_nor_written(server, flags, tmp_path):
    def reply(request):
        if len(server.requests) <= 2:
            return Reply("Slow down, $KEY.", status=429)
        if len(server.requests) == 3:
            return Reply("$KEY said something.", status=400, code="content_filter")
        return default_reply(request) if len(server.requests) < 10 else Reply("Bad key $KEY.", status=401)

    server.reply = reply
    output = tmp_path / "answers.json"
    arguments = [*flags, "--inputs_addr", SAMPLE, "--output_addr", output, "--max_concurrency", 1]
    arguments += ["--log_level", "debug"]
    failed = run_process(*arguments)
    assert failed.returncode == 2 and "Bad key ***." in failed.stderr
    server.reply = default_reply
    done = run_process(*arguments)
    assert done.returncode == 0, done.stderr
    assert "HTTP" in done.stderr  # the client's own messages, headers and all
    assert set(server.keys) == {KEY}
    shown = failed.stdout + failed.stderr + done.stdout + done.stderr
    written = {path.name: text.decode() for path, text in files(tmp_path).items() if path.name != "key.txt"}
    assert sum(name.endswith(".jsonl") for name in written) == 2
    assert {"answers.json", "answers.json.manifest.json", "model.json"} < written.keys()
    assert "content_filter: *** said something." in written["answers.json"]
    assert KEY not in shown and not any(KEY in text for text in written.values())


def test_key_from_the_environment(server, flags, output):
    place = flags.index("--api_key_addr")
    arguments = flags[:place] + flags[place + 2 :]
    done = run_process(*arguments, "--inputs_addr", SAMPLE, "--output_addr", output, "--limit", 1, OPENAI_API_KEY=KEY)
    assert done.returncode == 0, done.stderr
    assert server.keys == [KEY]
    assert not any(KEY.encode() in content for content in files(output.parent).values())


def test_nothing_heavy_is_imported_for_an_api(flags, output, tmp_path):
    blocked = without_modules(tmp_path / "blocked", HEAVY)
    arguments = ["--inputs_addr", SAMPLE, "--output_addr", output, "--rag", "--unranked", "--limit", 2]
    done = run_process(*flags, *arguments, PYTHONPATH=blocked)
    assert done.returncode == 0, done.stderr


# The token budget


def test_over_the_budget_the_lowest_ranked_posts_go(server, flags, output, tmp_path, capsys):
    question = "What " + "should " * 30 + "I do?"
    posts = [f"Post {i}: ".ljust(300, "x") for i in range(5)]
    profile = [{"text": post} for post in posts]
    data = write_json(tmp_path / "data.json", [make_question(1, question=question, profile=profile)])
    without_posts = APIChat("some-model").length(load_prompt("lampqa/rag").messages(question=question, profile=""))
    # 300 bytes are 100 tokens: two posts take 201 (with the blank line between them), three 302.
    limit = without_posts + 250 + 64
    found = run(flags, output, "--rag", "--unranked", "--max_tokens", 64, "--max_model_len", limit, data=data)["q1"][0]
    assert (found["num_contexts_used"], found["num_contexts_dropped"], found["context_cut"]) == (2, 3, False)
    expected = load_prompt("lampqa/rag").messages(question=question, profile=f"{posts[0]}\n\n{posts[1]}")
    assert server.requests[0]["messages"] == expected
    assert server.requests[0]["max_tokens"] == 64
    assert "3 posts left out for length" in capsys.readouterr().out


def test_only_post_that_is_too_long_is_cut_at_its_end(server, flags, output, tmp_path):
    post = "".join(f"{i:05} " for i in range(2000))
    data = write_json(tmp_path / "data.json", [make_question(1, profile=[{"text": post}, {"text": "Second."}])])
    found = run(flags, output, "--rag", "--unranked", "--max_tokens", 64, "--max_model_len", 1500, data=data)["q1"][0]
    assert (found["num_contexts_used"], found["num_contexts_dropped"], found["context_cut"]) == (1, 1, True)
    messages = server.requests[0]["messages"]
    assert APIChat("some-model").length(messages) == 1500 - 64  # not a token is given away
    assert "Question number 1?" in messages[1]["content"] and "Second." not in messages[1]["content"]
    assert "00000 00001 00002 " in messages[1]["content"]


def test_question_that_is_too_long_is_not_asked(server, flags, output, tmp_path):
    records = [make_question(1, question="why " * 3000), make_question(2)]
    data = write_json(tmp_path / "data.json", records)
    answers = run(flags, output, "--max_tokens", 64, "--max_model_len", 1000, data=data, code=1)
    assert answers["q1"] == [{"output": None, "reason": "the prompt is longer than the model takes"}]
    assert answers["q2"][0]["output"] == "An answer."
    assert len(server.requests) == 1


def test_no_room_for_the_prompt(server, flags, output):
    with pytest.raises(UserError, match="--max_tokens 8192 leaves no room for the prompt"):
        run(flags, output, "--max_tokens", 8192)


# What a run leaves alone


def test_dry_run_asks_and_writes_nothing(server, flags, output, capsys):
    arguments = [*flags, "--inputs_addr", str(SAMPLE), "--output_addr", str(output), "--rag", "--unranked", "--dry_run"]
    assert baselines.main([*arguments, "--num_generated_outputs", "2"]) == 0
    said = capsys.readouterr().out
    assert "26 prompts" in said and "26 calls, at most 104 with retries" in said
    assert server.requests == [] and not output.parent.exists()


def test_finished_run_is_left_alone(server, flags, output, capsys):
    run(flags, output)
    before = files(output.parent)
    run(flags, output, "--max_concurrency", 2)
    assert len(server.requests) == 13
    assert files(output.parent) == before
    assert "already finished, left alone" in capsys.readouterr().out


def test_more_questions_ask_only_for_what_is_missing(server, flags, output):
    server.reply = default_reply
    run(flags, output, "--limit", 3)
    asked = len(server.requests)
    whole = run(flags, output)
    again = [request for request in server.requests[asked:] if request in server.requests[:asked]]
    assert again == [] and list(whole) == IDS
    fresh = output.parent.parent / "fresh" / "answers.json"
    run(flags, fresh)
    assert output.read_bytes() == fresh.read_bytes()


def test_lost_output_is_made_from_the_store(server, flags, output):
    run(flags, output)
    before = output.read_bytes()
    output.unlink()
    run(flags, output)
    assert output.read_bytes() == before and len(server.requests) == 13


def test_output_of_other_settings_is_named_and_kept(server, flags, output):
    run(flags, output, "--limit", 2)
    before = files(output.parent)
    with pytest.raises(UserError, match=r"made with other settings: temperature: 0\.1, now 0\.5\n.*--overwrite"):
        run(flags, output, "--limit", 2, "--temperature", 0.5)
    with pytest.raises(UserError, match="rag: false, now true"):
        run(flags, output, "--limit", 2, "--rag", "--unranked")
    assert files(output.parent) == before and len(server.requests) == 2
    run(flags, output, "--limit", 2, "--temperature", 0.5, "--overwrite")
    assert [request["temperature"] for request in server.requests] == [0.1, 0.1, 0.5, 0.5]


def test_foreign_output_is_kept(server, flags, output):
    output.parent.mkdir()
    output.write_text("my notes")
    with pytest.raises(UserError, match="was not written by this script or was changed since"):
        run(flags, output)
    assert output.read_text() == "my notes" and server.requests == []
    assert [path.name for path in output.parent.iterdir()] == ["answers.json"]


# Bad input

GOOD = make_question(1)
BAD_DATASETS = {
    "empty": ("", [], "the file is empty"),
    "not JSON": ("id,question\n1,why", [], "not JSON: Expecting value at line 1, column 1"),
    "cut short": (json.dumps([GOOD])[:-20], [], "the JSON breaks off at line 1, column 27: the file is cut short"),
    "an object": ('{"q1": []}', [], "holds an object; a dataset is a JSON array"),
    "no questions": ("[]", [], "holds no questions"),
    "no id": ([GOOD, {"question": "why"}], [], "record 1: field 'id' is missing or null"),
    "an empty id": ([make_question(1, id="")], [], "record 0: field 'id' is an empty text"),
    "the same id twice": ([GOOD, make_question(2), GOOD], [], "records 0 and 2 both have id 'q1'"),
    "no question": ([GOOD, {"id": "q2"}], [], "record 1 (id 'q2'): field 'question' is missing or null"),
    "no profile": ([{"id": "q1", "question": "why"}], ["--rag"], "record 0 (id 'q1'): field 'profile' is missing"),
    "post without a text": (
        [make_question(1, profile=[{"text": "fine"}, {"id": "p9"}])],
        ["--rag"],
        "record 0 (id 'q1'): field 'profile', item 1 (id 'p9'): field 'text' is missing or null",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_DATASETS)
def test_bad_dataset(server, flags, output, tmp_path, name):
    content, more, message = BAD_DATASETS[name]
    data = tmp_path / "data.json"
    data.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError) as raised:
        run(flags, output, *more, data=data)
    assert f"{data}: {message}" in str(raised.value)
    assert str(raised.value).count("\n") <= 2
    assert server.requests == [] and not output.parent.exists()


def test_what_rag_needs_is_not_asked_of_others(flags, output, tmp_path):
    data = write_json(tmp_path / "data.json", [{"id": "q1", "question": "why"}])
    assert run(flags, output, data=data)["q1"][0]["output"] == "An answer."


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--shard_index", "3", "--num_shards", "3"], "--shard_index 3 is out of range: with --num_shards 3 it goes"),
        (["--shard_index", "-1"], "--shard_index -1 is out of range"),
        (["--num_shards", "0"], "out of range"),
        (["--api_key_addr", "/nowhere/key.txt"], "--api_key_addr /nowhere/key.txt: cannot be read: No such file"),
        (["--prompts_dir", "/nowhere"], "--prompts_dir /nowhere: no such folder"),
        (["--inputs_addr", "/nowhere/test.json"], "/nowhere/test.json: no such file"),
    ],
)  # fmt: skip
def test_bad_flags(server, flags, output, more, message):
    with pytest.raises(UserError, match=re.escape(message)):
        run(flags, output, *more)
    assert server.requests == [] and not output.parent.exists()


def test_output_that_cannot_be_written(server, flags, tmp_path):
    (tmp_path / "file").write_text("here")
    with pytest.raises(UserError, match=r"file/answers\.json: cannot be written: "):
        run(flags, tmp_path / "file" / "answers.json")
    with pytest.raises(UserError, match="is a folder; give the name of a file in it"):
        run(flags, tmp_path)
    assert server.requests == []


def test_output_that_is_the_input(server, flags, tmp_path):
    data = write_json(tmp_path / "data.json", [GOOD])
    with pytest.raises(UserError, match=r"data\.json: is an input too"):
        run(flags, tmp_path / "." / "data.json", "--overwrite", data=data)
    assert json.loads(data.read_text()) == [GOOD] and server.requests == []


def test_no_api_key(server, flags, output):
    place = flags.index("--api_key_addr")
    with pytest.raises(UserError, match=r"--openai needs a key: --api_key_addr FILE, or OPENAI_API_KEY"):
        run(flags[:place] + flags[place + 2 :], output)
    assert server.requests == []


def test_bad_input_ends_the_process_with_code_2_and_changes_nothing(server, flags, output, tmp_path):
    run(flags, output, "--limit", 1)
    before = files(output.parent)
    data = tmp_path / "cut.json"
    data.write_bytes(SAMPLE.read_bytes()[:5000])
    done = run_process(*flags, "--inputs_addr", data, "--output_addr", output, "--overwrite")
    assert done.returncode == 2 and done.stdout == ""
    message = rf"error: {data}: the JSON breaks off at line \d+, column \d+: the file is cut short\n"
    assert re.fullmatch(message, done.stderr)
    assert files(output.parent) == before and len(server.requests) == 1


def test_model_folder_that_is_not_there_is_named_before_anything_is_loaded(output, tmp_path):
    blocked = without_modules(tmp_path / "blocked", HEAVY)
    arguments = ["--model_addr", "./no/such/model", "--inputs_addr", SAMPLE, "--output_addr", output]
    done = run_process(*arguments, PYTHONPATH=blocked)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: no/such/model: no such folder; ") and done.stderr.count("\n") == 1
    assert not output.parent.exists()
