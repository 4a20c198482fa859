"""Servers that refuse parameters or formats like current ones, in complete runs of two scripts over real HTTP."""

import asyncio
import hashlib
import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from api_server import Reply, default_reply, ignore_formats, refuse_formats, serve

import baselines
import evaluate_responses
from utils import make_table
from utils.base.cli import LIMITS
from utils.base.errors import UserError
from utils.base.made import MadeFile
from utils.base.manifest import read_manifest
from utils.benchmarks.choices import VERDICT_SCHEMA
from utils.benchmarks.lampqa.answers import ANSWER_FIELD
from utils.generation import refusals
from utils.generation.api_engine import problem_of
from utils.generation.refusals import MalformedError, Refusals
from utils.generation.requests import Completion, UnavailableError

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests/data/mini_lampqa/test.json"
RECORDS = json.loads(SAMPLE.read_text())


# Parameters


def openai_error(found):
    """Return an error like those of OpenAI's reasoning models: one parameter at a time, named in `param`."""
    name, code, text = found
    return Reply(text, status=400, code=code, param=name)


def gpt5(request):
    """Return (parameter, code, message) of a refusal by OpenAI's reasoning models; None if they accept all."""
    if "max_tokens" in request:
        text = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
        return "max_tokens", "unsupported_parameter", text
    if request.get("temperature", 1) != 1:
        text = "Unsupported value: 'temperature' does not support {} with this model."
        text += " Only the default (1) value is supported."
        return "temperature", "unsupported_value", text.format(request["temperature"])
    for name in ("top_p", "logprobs", "presence_penalty"):
        if name in request:
            return name, "unsupported_parameter", f"Unsupported parameter: '{name}' is not supported with this model."
    return None


def claude(request):
    if "temperature" in request and "top_p" in request:
        text = "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
        return "None", "invalid_request_error", text
    return None


def gemini(request):
    if "seed" not in request:
        return None
    found = 'Invalid JSON payload received. Unknown name "seed": Cannot find field.'
    details = [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [{"description": found}]}]
    return [{"error": {"code": 400, "message": found, "status": "INVALID_ARGUMENT", "details": details}}]


def foundry(request):
    """Azure Foundry: all unknown parameters at once, in pydantic's words."""
    known = {"model", "messages", "temperature", "top_p", "max_tokens", "response_format"}
    unknown = sorted(request.keys() - known)
    said = {"type": "extra_forbidden", "msg": "Extra inputs are not permitted"}
    told = [{**said, "loc": ["body", name], "input": request[name]} for name in unknown]
    return {"detail": told} if unknown else None


def litellm(found):
    text = found[2]
    message = f"litellm.BadRequestError: AzureException BadRequestError - {text}. Received Model Group=gpt-5"
    return Reply(message, status=400, code="400", param="None")


def openrouter(found):
    name, code, text = found
    raw = json.dumps({"error": {"message": text, "type": "invalid_request_error", "param": name, "code": code}})
    metadata = {"raw": raw, "provider_name": "OpenAI"}
    return Reply(
        "", status=400, body={"error": {"message": "Provider returned error", "code": 400, "metadata": metadata}}
    )


def azure(found):
    return Reply(found[2], status=400, code=found[1])


SERVERS = {  # which parameters it refuses, with which reply, and their names in order of refusal
    "gpt-5": (gpt5, openai_error, ["max_tokens", "temperature", "top_p"]),
    "gpt-5 behind Azure": (gpt5, azure, ["max_tokens", "temperature", "top_p"]),
    "gpt-5 behind LiteLLM": (gpt5, litellm, ["max_tokens", "temperature", "top_p"]),
    "gpt-5 behind OpenRouter": (gpt5, openrouter, ["max_tokens", "temperature", "top_p"]),
    "Claude": (claude, azure, ["top_p"]),
    "Gemini": (gemini, lambda body: Reply("", status=400, body=body), ["seed"]),
    "Azure Foundry": (foundry, lambda body: Reply("", status=422, body=body), ["seed"]),
}  # fmt: skip


def seeded(request):
    """Return the server's usual answer, also without a seed."""
    return default_reply({"seed": 0, **request})


def usable(request):
    """The same, but always with a usable output."""
    return seeded({**request, "response_format": None})


def refuse(kind, reply=seeded):
    """Return the reply function of one of SERVERS, and its count of refusals."""
    finds, say, _ = SERVERS[kind]
    refused = Counter()

    def answer(request):
        if (found := finds(request)) is None:
            return reply(request)
        refused[kind] += 1
        return say(found)

    return answer, refused


# Formats


def mumble(request):
    """Return an answer or a verdict; for half of the seeds only if the output is constrained to JSON."""
    drawn = hashlib.sha256(json.dumps([request["messages"], request["seed"]]).encode()).digest()
    if drawn[0] % 2 and "response_format" not in request:
        return Reply("Let me think.")
    return default_reply({**request, "response_format": None})


# The server, which constrains no output, and whether it refuses a schema.
HOLDING = {
    "refuses it": (refuse_formats(mumble, "json_schema"), True),
    "refuses it with 422": (refuse_formats(mumble, "json_schema", status=422), True),
    "ignores it": (ignore_formats(mumble), False),
}


class Case:
    """A script that requests three answers to each question, or verdicts on one."""

    def __init__(self, script, folder, server, published):
        self.script, self.folder, self.server, self.published = script, folder, server, published
        (folder / "key.txt").write_text("sk-test")
        self.flags = ["--openai", "--base_url", server.url, "--api_key_addr", f"{folder}/key.txt"]
        self.flags += ["--inputs_addr", str(SAMPLE), "--max_concurrency", "16"]
        if script == "baselines.py":
            self.flags += ["--model_addr", "m", "--num_generated_outputs", "3", "--output_addr"]
            self.size = 3 * len(RECORDS)
        else:
            responses = {record["id"]: [{"output": "A response."}] for record in RECORDS}
            (folder / "responses.json").write_text(json.dumps(responses))
            self.flags += ["--evaluator_llm", "j", "--response_addr", f"{folder}/responses.json", "--score_addr"]
            self.size = sum(len(record["rubric_aspects"]) for record in RECORDS)

    def run(self, name="out.json", *more):
        main = baselines.main if self.script == "baselines.py" else evaluate_responses.main
        return main([*self.flags, str(self.folder / name), *map(str, more)])

    def records(self, name="out.json"):
        """The pieces that a run of this process has published."""
        return self.published[str(self.folder / name)]

    def manifest(self, name="out.json"):
        return read_manifest(self.folder / name)

    def formats_since(self, number):
        """Count each response_format since the request of this number."""
        return Counter(body.get("response_format", {}).get("type") for body in self.server.requests[number:])


@pytest.fixture
def published(monkeypatch):
    """The pieces of each output that this process has published, by path."""
    found, publish = {}, MadeFile.finish

    def note_and_publish(output, *given, **figures):
        found[output.path] = dict(output.pieces)
        return publish(output, *given, **figures)

    monkeypatch.setattr(MadeFile, "finish", note_and_publish)
    return found


@pytest.fixture(params=["baselines.py", "evaluate_responses.py"])
def case(request, tmp_path, monkeypatch, published):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with serve(seeded, delay=0.01) as server:
        yield Case(request.param, tmp_path, server, published)


def notes(text):
    return [line for line in text.splitlines() if line.startswith("note:") and "the run continues with" in line]


def check(case, names, name="out.json"):
    """Check that every piece exists and, like the manifest, names the dropped parameters."""
    records = case.records(name)
    assert len(records) == case.size
    for record in records.values():
        assert record["value"] is not None and record["refused_parameters"] == sorted(names)
        assert (record["temperature"] is None) == ("temperature" in names)
    assert case.manifest(name)["refused_parameters"] == {one: [case.size, case.size] for one in sorted(names)}


@pytest.mark.parametrize("kind", SERVERS)
def test_every_question_is_answered_and_each_refusal_met_once(case, kind, capsys):
    names = SERVERS[kind][2]
    case.server.reply, refused = refuse(kind)
    assert case.run() == 0
    check(case, names)
    assert refused.total() == len(names)  # only the first request meets them
    told = notes(capsys.readouterr().err)
    assert len(told) == len(names)
    ends = [f"with {LIMITS[1]}" if one == "max_tokens" else f"without {one}" for one in names]
    assert [line.partition("the run continues ")[2] for line in told] == ends


def test_formats_and_parameters_are_refused_by_one_server(case, capsys):
    case.server.reply, refused = refuse("gpt-5", refuse_formats(usable, "json_schema"))
    assert case.run("out.json", "--constrained_decoding", "always") == 0
    check(case, [*SERVERS["gpt-5"][2], "response_format"])
    assert {record["constrained"] for record in case.records().values()} == {False}
    assert refused.total() == 3
    assert len(notes(capsys.readouterr().err)) == 4


def test_a_format_that_is_refused_first_does_not_hide_a_parameter(case):
    """The server checks the format before the parameters."""
    parameters, _ = refuse("Gemini", usable)
    case.server.reply = refuse_formats(parameters, "json_schema")
    assert case.run("out.json", "--constrained_decoding", "always") == 0
    check(case, ["seed", "response_format"])


def test_an_unfixable_refusal_ends_the_run(case, capsys):
    refusal = Reply("Invalid value for 'messages': the temperature.", status=400, param="messages")
    case.server.reply = lambda request: refusal
    with pytest.raises(UserError, match=r"^the API at 127\.0\.0\.1 refuses the request: Invalid value for 'messages'"):
        case.run()
    assert notes(capsys.readouterr().err) == []
    case.server.reply = seeded
    assert case.run() == 0 and case.manifest()["refused_parameters"] == {}


def test_flags_leave_parameters_out_from_the_start(case):
    case.server.reply, refused = refuse("gpt-5")
    more = ("--temperature", "default", "--top_p", "default", "--seed", "none")
    assert case.run("out.json", *more) == 0
    assert refused.total() == 1  # max_tokens
    assert all(body.keys().isdisjoint({"temperature", "top_p", "seed"}) for body in case.server.requests)
    settings = case.manifest()["settings"]
    assert (settings["temperature"], settings["top_p"], settings["seed"]) == (None, None, None)
    assert {record["temperature"] for record in case.records().values()} == {None}


def test_extra_parameters_are_sent_and_are_settings(case):
    plain = case.folder / "plain.json"
    assert case.run(plain.name, "--limit", 2) == 0
    sent = {key for body in case.server.requests for key in body}
    assert sent == {"model", "messages", "temperature", "top_p", "seed", "max_tokens", "response_format"} & sent
    case.server.requests.clear()
    told = {"top_k": 20, "min_p": 0, "presence_penalty": -1.5, "reasoning_effort": "low"}
    words = [word for name, value in told.items() for word in (f"--{name}", value)]
    told["chat_template_kwargs"], extra = {"enable_thinking": False}, {"provider": {"order": ["a"]}, "logit_bias": {}}
    words += ["--chat_template_kwargs", json.dumps(told["chat_template_kwargs"]), "--extra_body", json.dumps(extra)]
    assert case.run("out.json", "--limit", 2, *words) == 0
    for body in case.server.requests:
        assert {name: body.get(name) for name in (*told, *extra)} == {**told, **extra}
    manifest = case.manifest()
    assert {name: manifest["settings"].get(name) for name in (*told, "extra_body")} == {**told, "extra_body": extra}


def test_a_refused_flag_is_dropped_but_not_the_users_json(case):
    case.server.reply, refused = refuse("Azure Foundry")
    assert case.run("flag.json", "--top_k", 5, "--reasoning_effort", "low") == 0
    check(case, ["seed", "top_k", "reasoning_effort"], "flag.json")
    assert refused.total() <= 3
    for words in (("--extra_body", '{"mine": 1}'), ("--chat_template_kwargs", '{"a": 1}')):
        with pytest.raises(UserError, match=r"mine|chat_template_kwargs"):
            case.run("own.json", *words)


def test_judges_sampled_differently_do_not_share_a_table(tmp_path, published):
    with serve(seeded) as server:
        judging = Case("evaluate_responses.py", tmp_path, server, published)
        assert judging.run("plain/a.json") == 0
        judging.server.reply, _ = refuse("gpt-5")
        assert judging.run("refused/a.json") == 0
        assert judging.run("default/a.json", "--temperature", "default", "--top_p", "default", "--seed", "none") == 0
    plain, refused, default = (f"{tmp_path}/{name}/a.json" for name in ("plain", "refused", "default"))
    assert make_table.main(["--system", "A", refused, "--system", "B", default]) == 0  # what was sent is the same
    with pytest.raises(UserError, match=r"temperature None, not 0\.0; top_p None, not 0\.95"):
        make_table.main(["--system", "A", plain, "--system", "B", refused])


def ask(server, *takes):
    """Send a request of `Refusals` to a server that accepts only these parameters; return result and requests."""
    sent = []

    async def send(body):
        sent.append(body)
        if unknown := [name for name in body if name not in takes]:
            raise MalformedError(found := f"no {unknown[0]}", param=unknown[0], details=found)
        return Completion("text", "stop", 1, 0, 1)

    return asyncio.run(server.ask({"model": "m", "max_tokens": 5}, send)), sent


def test_the_token_limit_has_the_servers_parameter_name(capsys):
    for first, other in (LIMITS, LIMITS[::-1]):
        completion, sent = ask(Refusals(first), "model", other)
        assert [*map(list, sent)] == [["model", first], ["model", other]] and completion.refused_parameters == (first,)
    assert len(notes(capsys.readouterr().err)) == 2
    with pytest.raises(MalformedError, match="no max_completion_tokens"):
        ask(Refusals("max_tokens"), "model")
    assert capsys.readouterr().err == ""


def test_the_base_urls_query_is_sent_with_every_request(case):
    """Azure's api-version."""
    case.flags[case.flags.index("--base_url") + 1] += "?api-version=preview"
    assert case.run() == 0
    assert set(case.server.paths) == {"/v1/chat/completions?api-version=preview"}


@pytest.mark.parametrize(
    ("said", "name"),
    [
        # In serde's words; none of the listed fields was refused.
        ("unknown field `temperature`, expected one of `model`, `messages`, `seed`, `top_p`", "temperature"),
        ("temperature is not supported by this model. Parameters supported: seed, top_p", "temperature"),
        ("This model does not support structured outputs.", "response_format"),
        ("Guided decoding is off on this server", "response_format"),
        ("failed to compile the grammar", "response_format"),
        ("JSON schema is not supported", "response_format"),
        ("No.", None),
    ],
)
def test_the_parameter_that_a_refusal_names(said, name):
    body = {"model": "m", "messages": [], "seed": 1, "top_p": 0.9, "temperature": 0.1, "response_format": {}}
    assert refusals.named(MalformedError("refused", details=said), body) == name


def test_another_model_of_the_server_gets_what_the_first_one_refused():
    """Such as a judge behind the same address, which would not be greedy without its temperature."""
    sent, server = [], Refusals("max_tokens")

    async def send(body):
        sent.append(sorted(body))
        if body["model"] == "strict" and "temperature" in body:
            raise MalformedError("no", param="temperature", details="no")
        return Completion("text", "stop", 1, 0, 1)

    for model in ("strict", "mild", "strict"):
        asyncio.run(server.ask({"model": model, "temperature": 0}, send))
    assert sent == [["model", "temperature"], ["model"], ["model", "temperature"], ["model"]]


# Formats


@pytest.fixture(params=HOLDING)
def kind(request):
    return HOLDING[request.param]


def check_run(case, kind, name="out.json"):
    """Check records, manifest and counts; return how many tries were to be constrained."""
    _, is_refused = kind
    records = case.records(name)
    second = {key for key, record in records.items() if record["attempts"] == 2}
    assert len(records) == case.size and 5 < len(second) < case.size - 5
    for key, record in records.items():
        assert record["constrained"] == (key in second and not is_refused)
        assert record.get("refused_parameters") == (["response_format"] if key in second and is_refused else None)
        assert record["value"] is not None or (key in second and record["reason"].endswith("in the text"))
    failed = sum(record["value"] is None for record in records.values())
    assert failed > 0
    manifest, refused = case.manifest(name), {"response_format": [len(second), case.size]}
    assert (manifest["refused_parameters"], manifest["missing"]) == (refused if is_refused else {}, 0)
    counts = manifest["counts"]
    assert counts["without an answer" if "answers" in counts else "num_unscored"] == failed
    return len(second)


def test_a_whole_run(case, kind, capsys):
    reply, is_refused = kind
    case.server.reply, case.server.delay = reply, 0.005
    assert case.run("out.json", "--max_retries", 1) in (0, 1)
    second = check_run(case, kind)
    asked = case.formats_since(0)
    assert asked[None] == case.size + (second if is_refused else 0)  # the first try of each
    assert asked["json_schema"] <= 16 if is_refused else asked["json_schema"] == second  # those under way meet it too
    said = "note: the API at 127.0.0.1 refuses the request: response_format json_schema is not supported; "
    said += "the run continues without response_format"
    assert notes(capsys.readouterr().err) == ([said] if is_refused else [])


def test_a_resumed_run_equals_an_uninterrupted_one(case, kind):
    case.server.reply = kind[0]
    case.run("whole/out.json", "--max_retries", 1)  # with a store of its own
    case.run("out.json", "--limit", 4, "--max_retries", 1)
    asked = len(case.server.requests)
    case.run("out.json", "--max_retries", 1)
    assert len(case.server.requests) > asked
    check_run(case, kind)
    assert case.records() == case.records("whole/out.json")


def test_an_unrelated_refusal_changes_nothing_for_other_prompts(case, capsys):
    refused = set()  # seeds

    def reply(request):
        refused.update([request["seed"]] if "response_format" in request else [])
        return Reply("No.", status=400) if request["seed"] in refused else mumble(request)

    case.server.reply = reply
    case.run()
    lost = [record for record in case.records().values() if record["value"] is None]
    assert {record["reason"] for record in lost} == {"the API at 127.0.0.1 refuses the request: No."}
    assert 0 < len(lost) < case.size and case.formats_since(0)["json_schema"] == 2 * len(lost)
    assert notes(capsys.readouterr().err) == [] and case.manifest()["refused_parameters"] == {}


# Parameters that a server would fill in

NEUTRAL = {"top_k": -1, "min_p": 0, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}


@pytest.mark.parametrize(
    ("owner", "flags", "expected"),
    [
        ("vllm", [], NEUTRAL),
        ("sglang", [], NEUTRAL),
        ("vllm", ["--top_k", 20, "--presence_penalty", 1.5], NEUTRAL | {"top_k": 20, "presence_penalty": 1.5}),
        ("vllm", ["--extra_body", '{"repetition_penalty": 1.1}'], NEUTRAL | {"repetition_penalty": 1.1}),
        ("sglang as another name", [], NEUTRAL),
        ("library", [], {}),
        (None, ["--min_p", 0.1], {"min_p": 0.1}),
    ],
)
def test_a_server_like_vllm_gets_neutral_values_of_what_it_would_fill_in(owner, flags, expected, ask_all):
    case, run = ask_all
    owner, _, other_name = (owner or "").partition(" as ")
    entry = {"id": other_name or "m", **({"owned_by": owner} if owner else {})}
    case.server.list_models = lambda: (200, {"object": "list", "data": [entry]})
    assert run(["question 0?", "question 1?"], *flags) == 0
    for request in case.server.requests:
        assert {name: request[name] for name in NEUTRAL if name in request} == expected
    assert len(case.server.requests) == 2


def test_a_neutral_value_that_is_refused_is_left_out(ask_all):
    case, run = ask_all
    case.server.list_models = lambda: (200, {"data": [{"id": "m", "owned_by": "vllm"}]})
    words = "Unrecognized request argument supplied: repetition_penalty"
    refusal = Reply(words, status=400, param="repetition_penalty")
    case.server.reply = lambda request: refusal if "repetition_penalty" in request else usable(request)
    assert run(["question 0?", "question 1?"]) == 0 and len(case.server.requests) == 3
    assert case.manifest()["refused_parameters"] == {"repetition_penalty": [2, 2]}


def test_a_list_of_models_that_cannot_be_read_is_told_once(ask_all, capsys):
    case, run = ask_all
    case.server.list_models = lambda: (503, {"error": {"message": "busy"}})
    assert run([f"question {number}?" for number in range(8)], "--model_id", "m") == 0
    assert "top_k" not in case.server.requests[0]
    doubt = "if the server is vLLM or SGLang, it may fill in top_k and others from generation_config.json"
    assert capsys.readouterr().err.count(doubt) == 1


# Refusals of one prompt


ONE = "refused alone"
ECHO = [{"type": "value_error", "loc": ["body", "messages"], "msg": "content too long", "input": {"seed": 1, "a": ONE}}]
TOO_LONG = {  # status and wording
    "vLLM": (400, "This model's maximum context length is 40 tokens, but 50 were requested."),
    "SGLang": (400, "The input (3305 tokens) is longer than the model's context length (2048 tokens)."),
    "SGLang, in all": (400, "Requested token count exceeds the model's maximum context length of 4096 tokens."),
    "SGLang, allowed": (400, "Input length (3305 tokens) exceeds the maximum allowed length (2043 tokens)."),
    "llama.cpp": (400, "request (3305 tokens) exceeds the available context size (2048 tokens), try increasing it"),
    "llama.cpp, 500": (500, "Context size has been exceeded."),
    "llama.cpp, older": (400, "the request exceeds the available context size. try increasing the context size"),
    "Ollama": (400, "the input length exceeds the context length"),
    "Ollama, 500": (500, "input length exceeds maximum context length"),
    "TGI": (422, "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 3305 `inputs` tokens"),
    "TGI, inputs": (422, "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000"),
    "Gemini": (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
    "Anthropic": (400, "prompt is too long: 210000 tokens > 200000 maximum"),
    "Anthropic, in all": (400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
    "Bedrock": (400, "Input is too long for requested model."),
    "OpenAI": (400, "Input tokens exceed the configured limit of 272000 tokens. Your messages have 300000 tokens."),
    "Mistral": (400, "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"),
    "Cohere": (400, "too many tokens: size limit exceeded by 120 tokens. Try using shorter or fewer inputs"),
    "xAI": (400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
    "Moonshot": (400, "Invalid request: Your request exceeded model token limit: 8192"),
    "DashScope": (400, "Range of input length should be [1, 30720]"),
    "Groq": (400, "Please reduce the length of the messages or completion."),
    "Vertex": (
        400,
        "Unable to submit request because the input token count is 50099 but model only supports up to 32768",
    ),
    "vLLM, offline": (400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
    "a gateway": (400, "prompt token count of 5000 exceeds the limit of 4096"),
    "another gateway": (400, "Input token length is too long"),
    "an embedding server": (400, "The prompt length 5000 exceeds max_seq_len 4096"),
    "LM Studio": (400, "The model is loaded with a context length of only 4096 tokens, which is not enough"),
}
OUTAGES = [  # failures of a server that mention lengths or limits
    (500, "maximum number of queued requests exceeded"), (503, "the request queue exceeds the maximum allowed length"),
    (500, "out of memory: reduce max_tokens or the context length"), (502, "upstream response too large"),
    (429, "Rate limit exceeded: maximum number of input tokens per minute"), (529, "Overloaded"),
    (504, "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"),
    (500, "rpc error: code = DeadlineExceeded desc = context deadline exceeded"),
    (500, "Database context limit exceeded"), (503, "rate exceeded for this security context"),
]  # fmt: skip
OF_A_PROMPT = {
    "OpenAI": Reply("Invalid prompt: your prompt was flagged.", status=400, code="invalid_prompt"),
    "Alibaba": Reply("Input may contain inappropriate content.", status=400, code="DataInspectionFailed"),
    "DeepSeek": Reply("Content Exists Risk", status=400, code="invalid_request_error"),
    "OpenRouter": Reply("Your input was flagged.", status=403),
    "Groq": Reply("Request too large on tokens per minute: Limit 6000, Requested 9000.", status=413),
    "tokens per minute": Reply("Request too large for m: Limit 10, Requested 12.", status=429, code="tokens"),
    "llama.cpp": Reply(TOO_LONG["llama.cpp, 500"][1], status=500),
    "pydantic, which repeats the body": Reply("", status=422, body={"detail": ECHO}),
}


@pytest.fixture
def ask_all(tmp_path, published, monkeypatch):
    """Answer these questions over a server; return the case, and the exit code of each run."""
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with serve(seeded) as server:
        case = Case("baselines.py", tmp_path, server, published)

        def run(texts, *more):
            records = [{"id": f"q{n}", "question": text, "profile": []} for n, text in enumerate(texts)]
            (tmp_path / "data.json").write_text(json.dumps(records))
            flags = ["--inputs_addr", tmp_path / "data.json", "--num_generated_outputs", 1, *more]
            return case.run("out.json", *flags)

        yield case, run


@pytest.mark.parametrize("place", [0, 5])
@pytest.mark.parametrize("kind", OF_A_PROMPT)
def test_one_refused_prompt_has_no_answer_and_the_others_go_on(ask_all, kind, place):
    case, run = ask_all
    texts = [ONE if number == place else f"question {number}?" for number in range(8)]
    case.server.reply = lambda request: OF_A_PROMPT[kind] if ONE in str(request["messages"]) else usable(request)
    assert run(texts) == 0
    lost = [key for key, record in case.records().items() if record["value"] is None]
    assert lost == [(f"q{place}", 0)] and case.records()[lost[0]]["reason"]
    assert case.manifest()["refused_parameters"] == {} and case.manifest()["missing"] == 0
    # It is stored, so that it is never sent again.
    asked = len(case.server.requests)
    assert run(texts, "--overwrite") == 0 and len(case.server.requests) == asked


@pytest.mark.parametrize("server", TOO_LONG)
def test_a_prompt_that_is_too_long_is_sent_once(server, ask_all, capsys):
    case, run = ask_all
    status, words = TOO_LONG[server]
    reply = Reply(words, status=status)
    case.server.reply = lambda request: reply if ONE in str(request["messages"]) else usable(request)
    assert run(["question 0?", ONE, "question 2?"]) == 0
    [lost] = [record for record in case.records().values() if record["value"] is None]
    remedy = "set --max_model_len to the real limit, or lower --max_tokens"
    assert lost["reason"] == f"the API at 127.0.0.1 refuses a prompt because it is too long: {words}; {remedy}"
    assert len(case.server.requests) == 3 and case.manifest()["refused_parameters"] == {}


@pytest.mark.parametrize(("status", "words"), OUTAGES)
def test_an_outage_is_not_a_prompt_that_is_too_long(status, words):
    problem = problem_of("API", status, None, words, None, words, True)
    assert isinstance(problem, UnavailableError)


@pytest.mark.parametrize("status", [402, 403])
def test_an_allowance_of_tokens_is_not_a_prompt_that_is_too_long(status):
    words = "You exceeded your allowed monthly token limit"
    assert "too long" not in str(problem_of("API", status, None, words, None, words, True))


def test_what_refuses_every_prompt_ends_the_run_at_the_third_one(ask_all):
    case, run = ask_all
    case.server.reply = lambda request: Reply("No.", status=403)
    with pytest.raises(UserError, match=r"No\.\n  3 different prompts were refused in a row, and none was answered"):
        run([f"question {number}?" for number in range(8)])
    assert len({str(body["messages"]) for body in case.server.requests}) == 3
    case.server.reply = usable
    assert run([f"question {number}?" for number in range(8)]) == 0  # none of the refusals was stored
    assert all(record["value"] for record in case.records().values())


def test_what_refuses_every_prompt_later_ends_the_run_and_is_not_stored(ask_all):
    case, run = ask_all
    texts = [f"question {number}?" for number in range(40)]

    def reply(request):
        if len(case.server.requests) <= 9:
            return usable(request)
        time.sleep(0.3)  # so that no answer comes after a refusal
        return Reply("No.", status=403)

    case.server.reply = reply
    with pytest.raises(UserError, match="20 different prompts were refused in a row"):
        run(texts)
    paid = sum(request["messages"] is not None for request in case.server.requests[:9])
    case.server.reply, asked = usable, len(case.server.requests)
    assert run(texts) == 0 and len(case.server.requests) - asked == 40 - paid
    assert all(record["value"] for record in case.records().values())


def test_a_refusal_that_passes_when_repeated_teaches_nothing(ask_all, capsys):
    case, run = ask_all
    seen, lock = Counter(), threading.Lock()

    def reply(request):
        with lock:
            seen[key := json.dumps(request, sort_keys=True)] += 1
        return Reply("Provider returned error", status=400) if seen[key] == 1 else usable(request)

    case.server.reply = reply
    assert run([f"question {number}?" for number in range(8)], "--constrained_decoding", "always") == 0
    assert case.formats_since(0) == {"json_schema": 16} and case.manifest()["refused_parameters"] == {}
    assert "the run continues" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "reply",
    [
        Reply("Incorrect API key provided: $KEY.", status=401, code="invalid_api_key"),
        Reply("The model does not exist.", status=404, code="model_not_found"),
        Reply("Insufficient Balance", status=402),
        Reply("Your credit balance is too low", status=400, code="invalid_request_error"),
        Reply("API key not valid. Please pass a valid API key.", status=400),
        Reply("This account was suspended.", status=403),
    ],
)
def test_a_mistake_about_every_request_costs_one(ask_all, reply):
    case, run = ask_all
    case.server.reply = lambda request: reply
    with pytest.raises(UserError):
        run([f"question {one}?" for one in range(8)])
    assert len({str(body["messages"]) for body in case.server.requests}) == 1


def test_schemas_follow_the_documented_strict_mode(case):
    case.server.reply = mumble
    assert case.run() == 0
    sent = [body["response_format"] for body in case.server.requests if "response_format" in body]
    answer = {"type": "object", "properties": {ANSWER_FIELD: {"type": "string"}}, "required": [ANSWER_FIELD]}
    schema = {**answer, "additionalProperties": False} if case.script == "baselines.py" else VERDICT_SCHEMA
    expected = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema, "strict": True}}
    assert sent and all(one == expected for one in sent)
