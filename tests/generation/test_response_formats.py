"""Servers that refuse or ignore `response_format`, through whole and repeated runs of the scripts that ask them."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest
from api_server import Reply, default_reply, ignore_formats, refuse_formats, serve

import baselines
import evaluate_responses
from utils.cli import UserError
from utils.files.manifest import read_manifest
from utils.files.output import Output
from utils.parsing.answers import ANSWER_FIELD
from utils.parsing.choices import VERDICT_SCHEMA

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests/data/mini_lampqa/test.json"
AT_ONCE = 4
RECORDS = json.loads(SAMPLE.read_text())


def mumble(request):
    """An answer or a verdict; for half of the seeds only where the output is held to JSON."""
    drawn = hashlib.sha256(json.dumps([request["messages"], request["seed"]]).encode()).digest()
    if drawn[0] % 2 and "response_format" not in request:
        return Reply("Let me think.")
    return default_reply({**request, "response_format": None})


# The server; which of FORMATS it takes for a schema, what it refuses, and whether it holds outputs to any JSON.
SERVERS = {
    "refuses json_schema": (refuse_formats(mumble, "json_schema"), "json_object", ["json_schema"], True),
    "refuses it with 422": (refuse_formats(mumble, "json_schema", status=422), "json_object", ["json_schema"], True),
    "refuses every one": (
        refuse_formats(mumble, "json_schema", "json_object"), "none", ["json_schema", "json_object"], False,
    ),
    "ignores it": (ignore_formats(mumble), "json_schema", [], False),
}  # fmt: skip


class Case:
    """A script that asks for three answers to each question, or for verdicts on one: two tries each."""

    def __init__(self, script, folder, server, published):
        self.script, self.folder, self.server, self.published = script, folder, server, published
        (folder / "key.txt").write_text("sk-test")
        self.flags = ["--openai", "--base_url", server.url, "--api_key_addr", f"{folder}/key.txt"]
        self.flags += ["--inputs_addr", str(SAMPLE), "--max_concurrency", str(AT_ONCE)]
        if script == "baselines.py":
            self.flags += ["--model_addr", "m", "--num_generated_outputs", "3", "--max_retries", "1", "--output_addr"]
            self.size = 3 * len(RECORDS)
        else:
            responses = {record["id"]: [{"output": "A response."}] for record in RECORDS}
            (folder / "responses.json").write_text(json.dumps(responses))
            self.flags += ["--evaluator_llm", "j", "--response_addr", f"{folder}/responses.json", "--score_addr"]
            self.size = sum(len(record["rubric_aspects"]) for record in RECORDS)

    def run(self, name="out.json", *more):
        main = baselines.main if self.script == "baselines.py" else evaluate_responses.main
        return main([*self.flags, str(self.folder / name), *map(str, more)])

    def fail(self):
        """What the user is told of a run that an error ends."""
        with pytest.raises(UserError) as raised:
            self.run()
        told = str(raised.value)
        return told

    def records(self, name="out.json"):
        """What a run of this process has published, piece by piece."""
        return self.published[str(self.folder / name)]

    def content(self, name="out.json"):
        return json.loads((self.folder / name).read_text())

    def manifest(self, name="out.json"):
        return read_manifest(self.folder / name)

    def formats_since(self, number):
        """How often each response_format was asked for since the request of this number."""
        return Counter(body.get("response_format", {}).get("type") for body in self.server.requests[number:])


@pytest.fixture
def published(monkeypatch):
    """The pieces of each output that this process has published, by its path."""
    found, publish = {}, Output.publish

    def note_and_publish(output, *given, **figures):
        found[output.path] = dict(output.pieces)
        return publish(output, *given, **figures)

    monkeypatch.setattr(Output, "publish", note_and_publish)
    return found


@pytest.fixture(params=["baselines.py", "evaluate_responses.py"])
def case(request, tmp_path, monkeypatch, published):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with serve(mumble) as server:
        yield Case(request.param, tmp_path, server, published)


@pytest.fixture(params=SERVERS)
def kind(request):
    return SERVERS[request.param]


def check_run(case, kind, name="out.json"):
    """Records, manifest and counts say what happened; returns how many tries were to be held to the schema."""
    _, taken, refused, holds = kind
    records = case.records(name)
    second = {key for key, record in records.items() if record["attempts"] == 2}
    assert len(records) == case.size and 5 < len(second) < case.size - 5
    for key, record in records.items():
        assert record["constrained"] == (key in second and not refused)
        assert record.get("response_format") == (taken if key in second and refused else None)
        assert record["value"] is not None or (key in second and record["reason"].endswith("in the text"))
    failed = sum(record["value"] is None for record in records.values())
    assert (failed == 0) == holds
    manifest = case.manifest(name)
    assert (manifest["refused_by_server"], manifest["missing"]) == (refused, 0)
    counts = manifest["counts"]
    assert counts["without an answer" if "answers" in counts else "num_unscored"] == failed
    return len(second)


def notes(text):
    return [line for line in text.splitlines() if line.startswith("note:") and "the run continues without" in line]


def test_a_whole_run(case, kind, capsys):
    reply, taken, refused, _ = kind
    case.server.reply, case.server.delay = reply, 0.005
    assert case.run() == 0
    second = check_run(case, kind)
    asked = case.formats_since(0)
    assert asked[None] == case.size + (second if taken == "none" else 0)  # the first try of each
    if taken != "none":
        assert asked[taken] == second
    # Each of those under way meets the refusal, one finds out what is taken, the others wait.
    assert all(1 <= asked[one] <= (AT_ONCE if one == "json_schema" else 1) for one in refused)
    said = "note: the API at 127.0.0.1 refuses the request: response_format json_schema is not supported; "
    said += f"the run continues without {' and '.join(refused)}"
    assert notes(capsys.readouterr().err) == ([said] if refused else [])


def test_a_run_that_goes_on_is_the_whole_one(case, kind):
    case.server.reply = kind[0]
    assert case.run("whole/out.json") == 0  # with a store of its own
    assert case.run("out.json", "--limit", 4) == 0
    asked = len(case.server.requests)
    assert case.run("out.json") == 0
    assert len(case.server.requests) > asked
    check_run(case, kind)
    assert case.records() == case.records("whole/out.json") and case.content() == case.content("whole/out.json")


def test_a_run_that_ended_at_a_refusal_goes_on(case):
    """Nor does it matter whether the server has learnt it since."""
    refusal = Reply("Not now.", status=400)
    case.server.reply = lambda request: refusal if len(case.server.requests) > 20 else mumble(request)
    assert case.fail() == "the API at 127.0.0.1 refuses the request: Not now."
    assert not (case.folder / "out.json").exists()
    case.server.reply = SERVERS["refuses json_schema"][0]
    assert case.run("out.json", "--limit", 9) == 0
    assert case.manifest()["refused_by_server"] == ["json_schema"]
    part = case.records()
    case.server.reply = mumble
    assert case.run() == 0
    assert case.manifest()["refused_by_server"] == ["json_schema"]
    records = case.records()
    assert {key: records[key] for key in part} == part
    assert len(records) == case.size and None not in [record["value"] for record in records.values()]


def test_a_refusal_of_something_else_ends_the_run_and_teaches_nothing(case, capsys):
    refused = set()  # seeds: with a response_format and without one

    def reply(request):
        if "response_format" in request:
            refused.add(request["seed"])
        is_refused = request["seed"] in refused
        return Reply("The prompt is not to our taste.", status=400) if is_refused else mumble(request)

    case.server.reply = reply
    assert case.fail() == "the API at 127.0.0.1 refuses the request: The prompt is not to our taste."
    assert notes(capsys.readouterr().err) == []
    assert case.formats_since(0)["json_object"] > 0
    asked, case.server.reply = len(case.server.requests), mumble
    assert case.run() == 0
    assert case.formats_since(asked)["json_schema"] > 5 and case.formats_since(asked)["json_object"] == 0
    assert case.manifest()["refused_by_server"] == []


@pytest.mark.parametrize("code", ["content_filter", "context_length_exceeded"])
def test_other_refusals_of_a_constrained_try_mean_what_they_did(case, code):
    def reply(request):
        return Reply("No.", status=400, code=code) if "response_format" in request else mumble(request)

    case.server.reply = reply
    if code == "content_filter":
        assert case.run() == 1
        refused = [record for record in case.records().values() if record["value"] is None]
        assert {record["reason"] for record in refused} == {"content_filter: No."} and len(refused) > 5
        assert case.manifest()["refused_by_server"] == []
    else:
        assert "refuses a prompt as too long" in case.fail()
    assert case.formats_since(0).keys() == {None, "json_schema"}


def test_trouble_while_a_lower_format_is_tried_passes(case, monkeypatch):
    monkeypatch.setattr("utils.generation.api_engine.LONGEST_PAUSE", 0.01)
    refuse, busy = SERVERS["refuses json_schema"][0], Counter()

    def reply(request):
        if request.get("response_format") == {"type": "json_object"} and busy["json_object"] < 6:
            busy["json_object"] += 1
            return Reply("Busy.", status=503)
        return refuse(request)

    case.server.reply = reply
    assert case.run() == 0
    check_run(case, SERVERS["refuses json_schema"])


def test_constrained_decoding_always(case):
    case.server.reply = SERVERS["refuses json_schema"][0]
    assert case.run("out.json", "--constrained_decoding", "always") == 0
    records = case.records().values()
    assert {(record["attempts"], record["constrained"], record["response_format"]) for record in records} == {
        (1, False, "json_object")
    }
    assert case.formats_since(0)["json_object"] == case.size


def test_schemas_have_what_the_strict_mode_documents(case):
    assert case.run() == 0
    sent = [body["response_format"] for body in case.server.requests if "response_format" in body]
    answer = {"type": "object", "properties": {ANSWER_FIELD: {"type": "string"}}, "required": [ANSWER_FIELD]}
    schema = {**answer, "additionalProperties": False} if case.script == "baselines.py" else VERDICT_SCHEMA
    expected = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema, "strict": True}}
    assert sent and all(one == expected for one in sent)
