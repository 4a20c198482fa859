"""--trace: every call and search behind an output."""

import json
import shutil

import pytest
from api_server import Reply
from method_runs import IDS, SAMPLE, SEARCHES, search_reply
from tiny_t5 import save_tiny_t5

import baselines
import evaluate_responses
import planpers
from utils import report, show_answers
from utils.base.errors import UserError
from utils.runs.trace import read_trace


def lines_by_question(path):
    lines = {}
    for line in read_trace(str(path)):
        lines.setdefault(line["id"], []).append(line)
    return lines


def test_a_trace_has_every_request_in_order_and_nothing_that_only_the_scorer_may_see(searching):
    searching.run("--trace", "--num_generated_outputs", 2)
    trace = lines_by_question(searching.output)
    assert list(trace) == IDS
    prompts = [line["messages"] for lines in trace.values() for line in lines if "messages" in line]
    sent = [request["messages"] for request in searching.server.requests]
    assert sorted(map(json.dumps, prompts)) == sorted(map(json.dumps, sent))
    for question_id, lines in trace.items():
        assert [line["sample"] for line in lines] == [0] * 5 + [1] * 5
        assert [line["number"] for line in lines] == [*range(5)] * 2
        assert ["search" in line for line in lines] == [False, True, False, True, False] * 2
        for sample, answer in enumerate(searching.answers[question_id]):
            query, search, *_, last = lines[5 * sample : 5 * sample + 5]
            expected = {
                "query": query["value"],
                **{name: search[name] for name in ("ids", "no_shared_words") if name in search},
            }
            assert expected == answer["searches"][0]
            assert search["search"] == query["value"]
            assert last["value"] == answer["output"] and last["finish_reason"] == "stop" and last["attempts"] == 1
    written = searching.output.with_name("answers.json.trace.jsonl").read_text()
    for record in json.loads(SAMPLE.read_text()):
        for secret in [record["narrative"], *(aspect["reason"] for aspect in record["rubric_aspects"])]:
            assert json.dumps(secret, ensure_ascii=False)[1:-1] not in written


@pytest.mark.parametrize(
    ("flags", "refused", "temperatures"),
    [
        (["--temperature", 0.8], False, [0.8, 0.3, 0.8]),
        (["--temperature", "default"], False, [None, 0.3, None]),
        (["--temperature", 0.8], True, [None, None, None]),
    ],
)
def test_a_call_has_the_temperature_of_its_text(searching, flags, refused, temperatures):
    """The flag's, or the method's own; null if the server chose it."""
    method = SEARCHES.replace("number=number)", "number=number, temperature=own)", 1)
    searching.write(method.replace("        query", "        own = 0.3 if number == 'two' else None\n        query", 1))
    unknown = Reply("Unsupported value: 'temperature' does not support 0.8 with this model.", status=400)
    searching.server.reply = lambda request: unknown if refused and "temperature" in request else search_reply(request)
    searching.run("--trace", "--limit", 2, *flags)
    for lines in lines_by_question(searching.output).values():
        assert [line["temperature"] for line in lines if "messages" in line] == temperatures


def test_a_trace_is_made_from_the_store_and_by_shards(searching):
    searching.run()
    whole = searching.output.read_bytes()
    assert searching.run("--trace") == 0 and searching.output.read_bytes() == whole
    path = searching.output.with_name("answers.json.trace.jsonl")
    trace = path.read_bytes()
    assert searching.run("--trace") == 0 and path.read_bytes() == trace
    shutil.rmtree(searching.output.parent)
    for shard in (0, 1):
        searching.run("--trace", "--num_shards", 2, "--shard_index", shard)
        assert not path.exists()
    assert searching.run("--trace") == 0 and path.read_bytes() == trace
    searching.output.write_text(searching.output.read_text() + "\n")
    with pytest.raises(UserError, match=r"not the trace of the current "):
        next(read_trace(str(searching.output)))


def test_planpers_and_rag_have_traces(runs, tmp_path):
    flags = runs.flags("--trace")
    del flags[flags.index("--method") : flags.index("--method") + 2]
    assert baselines.main([*flags, "--rag"]) == 0
    for question_id, lines in lines_by_question(runs.output).items():
        assert [line["value"] for line in lines] == [runs.answers[question_id][0]["output"]]
    gold = tmp_path / "gold.json"
    flags[flags.index(str(runs.output))] = str(gold)
    for _ in range(2):  # the plans are there the second time
        assert planpers.main([*flags, "--gold_plan"]) == 0
        trace = lines_by_question(gold)
        assert list(trace) == IDS and all(len(lines) == 1 for lines in trace.values())
    assert lines_by_question(f"{gold}.plans.json") == {}
    flags[flags.index(str(gold))] = str(tmp_path / "own.json")
    (tmp_path / "own.json.trace.jsonl").write_text("another program's")
    with pytest.raises(UserError, match="was not written by this script"):
        planpers.main([*flags, "--gold_plan"])
    assert not (tmp_path / "own.json.plans.json").exists()  # refused before the first stage


def test_an_encoder_decoder_reads_only_the_last_message(tmp_path):
    output, model = tmp_path / "answers.json", save_tiny_t5(tmp_path / "t5")
    flags = ["--model_addr", str(model), "--inputs_addr", str(SAMPLE), "--output_addr", str(output), "--unranked"]
    baselines.main([*flags, "--rag", "--trace", "--max_tokens", "4", "--limit", "2"])
    assert [[message["role"] for message in line["messages"]] for line in read_trace(str(output))] == [["user"]] * 2


def test_answers_and_report_show_the_steps(searching, tmp_path, capsys):
    searching.write(SEARCHES.replace("Write a search query", "Write a search query<b>"))
    searching.server.reply = lambda request: (
        Reply('{"match_score": 1}') if "match_score" in str(request) else Reply("cat " + "long " * 600)
    )
    searching.run("--trace")
    scores = tmp_path / "scores.json"
    judge = ["--evaluator_llm", "judge", "--openai", "--base_url", searching.server.url]
    judge += ["--api_key_addr", f"{searching.folder}/key.txt", "--inputs_addr", str(SAMPLE)]
    judge += ["--response_addr", str(searching.output), "--score_addr", str(scores)]
    assert evaluate_responses.main(judge) == 0
    capsys.readouterr()
    shown = ["--inputs_addr", str(SAMPLE), "--response_addr", str(searching.output)]
    assert show_answers.main([*shown, "--score_addr", str(scores), "--num_questions", "1"]) == 0
    printed = capsys.readouterr().out
    assert "1. generator" in printed and "2. search: cat long" in printed and "characters) …" in printed
    page = tmp_path / "page.html"
    assert report.main(["--inputs_addr", str(SAMPLE), "--system", "mine", str(searching.output), "--output_addr",
                        str(page)]) == 0  # fmt: skip
    text = page.read_text()
    assert "2. search: cat long" in text and "query<b>" not in text
