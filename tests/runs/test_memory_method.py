"""The included method that reads a history into a memory."""

import json
import signal
import subprocess
import sys

import pytest
from api_server import Reply
from method_runs import ROOT, SAMPLE, draw

from prompts import History
from utils.base.errors import count_noun
from utils.base.manifest import read_manifest
from utils.benchmarks import tasks
from utils.data.datasets import read_dataset
from utils.methods.memory import SHOWN, chunks_of, texts_of
from utils.runs.trace import read_trace

SIZE = 2000  # characters of a chunk


def is_reading(request):
    return "The next part:" in request["messages"][-1]["content"]


def reply(request):
    if is_reading(request):
        return Reply(f"Notes {draw(request)} [user] {{question}}")
    return Reply("<final_answer>(a)" if "<final_answer>" in str(request) else '{"personalized_answer": "Yes."}')


@pytest.fixture
def remembering(runs):
    runs.name, runs.server.reply, runs.server.delay = "memory", reply, 0.01
    return runs


@pytest.fixture
def version_2(tmp_path):
    """Return the path of twenty questions about one history, whose session fills four chunks."""
    messages = [{"role": "system", "content": "A card."}]
    messages += [{"role": "user", "content": f"Text {number} {'x ' * 800}"} for number in (1, 2, 3, 4)]
    (tmp_path / "contexts.jsonl").write_text(json.dumps({"one": messages}))
    shared = {"task": "PersonaMem-v2-32k", "options": [*"pqrs"], "target": "a", "group": "sensitive_info"}
    shared |= {"persona_id": "1", "profile": {"contexts": "contexts.jsonl", "context": "one", "end": len(messages)}}
    records = [{**shared, "id": f"q{number}", "question": f"What suits me, number {number}?"} for number in range(20)]
    (tmp_path / "v2.json").write_text(json.dumps(records))
    return tmp_path / "v2.json"


@pytest.mark.parametrize("data", ["personamem", "version_2"])
def test_questions_on_one_history_pay_for_its_memory_once(remembering, data, request, capsys):
    dataset, server = request.getfixturevalue(data), remembering.server
    records, best = read_dataset(str(dataset), ["profile"]), tasks()["PersonaMem-32k"].best_items
    chunks = {record["id"]: chunks_of(texts_of(best(record, None)), SIZE) for record in records}
    memories = {tuple(texts[:end]) for texts in chunks.values() for end in range(1, len(texts) + 1)}
    flags = ["--set", f"chunk={SIZE}", "--max_concurrency", 16]
    remembering.run(*flags, "--dry_run", dataset=dataset)
    first = count_noun(len({texts[0] for texts in chunks.values()}), "request")
    assert f"generator: at least {first}, " in capsys.readouterr().out
    assert remembering.run(*flags, dataset=dataset) == len(memories) + len(records)
    reading = [request["messages"][-1]["content"] for request in server.requests if is_reading(request)]
    assert len(reading) == len({*reading}) == len(memories) and server.most_at_once > 1
    for record in records:
        [answer], messages = remembering.answers[record["id"]], [request["messages"] for request in server.requests]
        [[notes, _]] = [own for own in messages if record["question"] in str(own)]  # only the last call's
        assert notes == {"role": "system", "content": SHOWN + answer["notes"]["memory"]} and answer["output"] == "a"
        num_chunks = answer["notes"]["num_chunks"]
        assert num_chunks == len(chunks[record["id"]]) == answer["calls"]["generator"]["num_calls"] - 1 > 0
    manifest = read_manifest(remembering.output)
    assert manifest["calls"]["generator"]["num_calls"] == len(server.requests)
    assert manifest["completions"] == {"requested": len(server.requests), "from_store": 0}
    remembering.run(*flags, "--trace", dataset=dataset)
    lines = [line for line in read_trace(str(remembering.output)) if line.get("shared")]
    assert len({line["text"] for line in lines}) == len(memories) and len(lines) == sum(map(len, chunks.values()))
    assert all("The next part:" in line["messages"][-1]["content"] for line in lines)


def test_a_killed_or_repeated_run_asks_only_for_what_is_missing(remembering, personamem):
    flags = ["--set", f"chunk={SIZE}"]
    command = [sys.executable, "baselines.py", *remembering.flags(*flags, dataset=personamem)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    remembering.server.wait_for(8)
    process.send_signal(signal.SIGKILL)
    process.wait()
    remembering.run(*flags, dataset=personamem)
    sent = [json.dumps(request) for request in remembering.server.requests]
    assert len(sent) <= len({*sent}) + 4  # those in flight
    remembering.output.unlink()
    assert remembering.run(*flags, dataset=personamem) == 0


def test_chunks_are_counted_from_the_beginning_and_a_card_is_read_once():
    texts = ["a" * 4, "b" * 4, "c" * 25, "d", "e" * 10]
    whole = chunks_of(texts, 10)
    assert whole == ["aaaa\n\nbbbb", "c" * 10, "c" * 10, "ccccc\n\nd", "e" * 10]
    for end in range(len(texts)):
        *full, _ = chunks_of(texts[: end + 1], 10)
        assert full == whole[: len(full)]
    roles = {"s": "system", "u": "user"}
    messages = [{"role": roles[text[0]], "content": text} for text in ("s1", "u1", "s1", "u1", "s2")]
    assert texts_of(History(messages, [], [])) == ["[system] s1", "[user] u1", "[user] u1", "[system] s2"]


def test_other_benchmarks_posts_are_the_history(remembering):
    remembering.run("--set", "chunk=9000")
    users = remembering.server.users()
    for record in json.loads(SAMPLE.read_text()):
        [answer], [last] = remembering.answers[record["id"]], [text for text in users if record["question"] in text]
        assert answer["output"] == "Yes." and answer["posts_shown"] == [*range(len(record["profile"]))]
        assert answer["notes"]["memory"] in last and "The next part:" not in last


@pytest.mark.parametrize("text", ["Half a", ""])
def test_a_cut_memory_is_used_and_a_failed_one_keeps_the_one_before(remembering, version_2, text):
    def end_third(request):
        return Reply(text, "length") if "[user] Text 3" in str(request) else reply(request)

    remembering.server.reply = end_third
    remembering.run("--set", f"chunk={SIZE}", "--max_retries", 0, dataset=version_2)
    _, _, third, fourth = [text for text in remembering.server.users() if "The next part:" in text]
    notes, counts = (text or third.split("\n")[1]), {"num_chunks": 4, "num_cut_chunks": 0}
    assert notes.startswith("Notes" if not text else "Half") and f"so far:\n{notes}\n\n" in fourth
    counts |= {"num_cut_memories": int(bool(text)), "num_failed_memories": int(not text)}
    for [answer] in remembering.answers.values():
        assert counts.items() <= answer["notes"].items()
