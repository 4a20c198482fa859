"""Servers that refuse parameters as today's do, over real HTTP, through whole and repeated runs of 32 at a time."""

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path

import pytest
from api_server import Reply, default_reply, refuse_formats, serve
from test_response_formats import published  # noqa: F401 (fixture)

import baselines
import evaluate_responses
from utils import make_table
from utils.cli import UserError
from utils.files.manifest import read_manifest
from utils.generation import refusals
from utils.generation.refusals import LIMITS, MalformedError, Refusals
from utils.generation.requests import Completion

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests/data/mini_lampqa/test.json"
RECORDS = json.loads(SAMPLE.read_text())
TEMPLATE_KWARGS = '{"enable_thinking": false}'


def openai_error(found):
    """As OpenAI's reasoning models answer: one parameter at a time, named in `param`."""
    name, code, text = found
    return Reply(text, status=400, code=code, param=name)


def gpt5(request):
    """What a reasoning model of OpenAI's does not take: (parameter, code, message); None where it takes all."""
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
    """Azure Foundry: all that it does not know at once, as pydantic tells it."""
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


SERVERS = {  # what it refuses, as which reply, and the names in the order of their refusals
    "gpt-5": (gpt5, openai_error, ["max_tokens", "temperature", "top_p"]),
    "gpt-5 behind Azure": (gpt5, azure, ["max_tokens", "temperature", "top_p"]),
    "gpt-5 behind LiteLLM": (gpt5, litellm, ["max_tokens", "temperature", "top_p"]),
    "gpt-5 behind OpenRouter": (gpt5, openrouter, ["max_tokens", "temperature", "top_p"]),
    "Claude": (claude, azure, ["top_p"]),
    "Gemini": (gemini, lambda body: Reply("", status=400, body=body), ["seed"]),
    "Azure Foundry": (foundry, lambda body: Reply("", status=422, body=body), ["seed"]),
}  # fmt: skip


def seeded(request):
    """The server's usual answer, also without a seed."""
    return default_reply({"seed": 0, **request})


def usable(request):
    """The same, never a text without an output in it."""
    return seeded({**request, "response_format": None})


def refuse(kind, reply=seeded):
    """The reply function of one of SERVERS, which counts what it refuses; and that count."""
    finds, say, _ = SERVERS[kind]
    refused = Counter()

    def answer(request):
        if (found := finds(request)) is None:
            return reply(request)
        refused[kind] += 1
        return say(found)

    return answer, refused


class Case:
    def __init__(self, script, folder, server, published):
        self.script, self.folder, self.server, self.published = script, folder, server, published
        (folder / "key.txt").write_text("sk-test")
        self.flags = ["--openai", "--base_url", server.url, "--api_key_addr", f"{folder}/key.txt"]
        self.flags += ["--inputs_addr", str(SAMPLE), "--max_concurrency", "32"]
        if script == "baselines.py":
            self.flags += ["--model_addr", "m", "--num_generated_outputs", "4", "--output_addr"]
            self.size = 4 * len(RECORDS)
        else:
            responses = {record["id"]: [{"output": "A response."}] for record in RECORDS}
            (folder / "responses.json").write_text(json.dumps(responses))
            self.flags += ["--evaluator_llm", "j", "--response_addr", f"{folder}/responses.json", "--score_addr"]
            self.size = sum(len(record["rubric_aspects"]) for record in RECORDS)

    def run(self, name="out.json", *more):
        main = baselines.main if self.script == "baselines.py" else evaluate_responses.main
        return main([*self.flags, str(self.folder / name), *map(str, more)])

    def records(self, name="out.json"):
        return self.published[str(self.folder / name)]

    def manifest(self, name="out.json"):
        return read_manifest(self.folder / name)


@pytest.fixture(params=["baselines.py", "evaluate_responses.py"])
def script(request):
    return request.param


@pytest.fixture
def case(script, tmp_path, monkeypatch, published):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with serve(seeded, delay=0.01) as server:
        yield Case(script, tmp_path, server, published)


@pytest.fixture
def judging(tmp_path, monkeypatch, published):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with serve(seeded) as server:
        yield Case("evaluate_responses.py", tmp_path, server, published)


def notes(text):
    return [line for line in text.splitlines() if line.startswith("note:") and "the run continues with" in line]


def check(case, names, name="out.json"):
    """Every piece is there and says what it was asked without, and so does the manifest."""
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
    assert refused.total() == len(names)
    assert case.server.most_at_once > 8  # once it is known what is taken
    told = notes(capsys.readouterr().err)
    assert len(told) == len(names)
    ends = [f"with {LIMITS[1]}" if one == "max_tokens" else f"without {one}" for one in names]
    assert [line.partition("the run continues ")[2] for line in told] == ends


@pytest.mark.parametrize("kind", ["gpt-5", "Azure Foundry"])
def test_a_killed_run_goes_on_without_a_refusal(case, kind, warm_api, capsys):
    names = SERVERS[kind][2]
    case.server.reply, refused = refuse(kind)
    case.server.delay = 0.2
    run = warm_api.start(case.script, [*case.flags, case.folder / "out.json"])
    case.server.wait_for(len(names) + 1 + case.size // 2)
    run.send(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL, run.errors
    assert refused.total() == len(names)
    case.server.delay = 0
    assert case.run() == 0
    assert refused.total() == len(names)
    what = " and ".join(sorted(names))
    told = notes(capsys.readouterr().err)
    assert told == [f"note: the API at 127.0.0.1 refused {what} before; the run continues without"]
    check(case, names)


def test_formats_and_parameters_are_refused_by_one_server(case, capsys):
    case.server.reply, refused = refuse("gpt-5", refuse_formats(usable, "json_schema", "json_object"))
    assert case.run("out.json", "--constrained_decoding", "always") == 0
    check(case, SERVERS["gpt-5"][2])
    assert {record["response_format"] for record in case.records().values()} == {"none"}
    assert case.manifest()["refused_by_server"] == ["json_schema", "json_object"]
    held = [body for body in case.server.requests if "response_format" in body]
    assert refused.total() == 3 and len(held) == 3 + 2  # while it named a parameter, and once each
    assert len(notes(capsys.readouterr().err)) == 4


def test_a_format_that_is_refused_first_does_not_hide_a_parameter(case):
    """The server looks at the format before the parameters."""
    parameters, refused = refuse("Gemini", usable)
    case.server.reply = refuse_formats(parameters, "json_schema")
    assert case.run("out.json", "--constrained_decoding", "always") == 0
    check(case, ["seed"])
    assert case.manifest()["refused_by_server"] == ["json_schema"] and refused.total() == 1


def test_a_server_that_is_slow_at_first_is_not_waited_for(case, monkeypatch):
    """Parameters are refused before an answer is begun: who waits longer than that waits for an answer."""
    monkeypatch.setattr(refusals, "FIRST_SECONDS", 0.1)
    case.server.delay = 0.5
    assert case.run() == 0
    assert case.server.most_at_once == 32


@pytest.mark.parametrize(
    "reply",
    [
        Reply("The prompt is not to our taste.", status=400),
        Reply("Invalid value for 'messages': the temperature of it.", status=400, param="messages"),
        Reply("max_tokens is too large: 2048. This model takes max_completion_tokens of 100.", status=400),
    ],
)
def test_what_nothing_can_be_done_about_ends_the_run_as_before(case, reply, capsys):
    case.server.reply = lambda request: reply
    with pytest.raises(UserError) as raised:
        case.run()
    assert str(raised.value) == f"the API at 127.0.0.1 refuses the request: {reply.text}"
    assert notes(capsys.readouterr().err) == []
    case.server.reply = seeded
    assert case.run() == 0 and case.manifest()["refused_parameters"] == {}


@pytest.mark.parametrize("reply", [Reply("No verdict."), Reply("", "length", reasoning_tokens=9)])
@pytest.mark.parametrize(("kind", "greedy"), [("gpt-5", False), ("Gemini", True)])
def test_a_judge_whose_temperature_is_refused_is_not_greedy(judging, kind, greedy, reply):
    """Its tries differ, also those that end inside a thought, so it has all of them."""
    judging.server.reply, _ = refuse(kind, lambda request: reply)
    assert judging.run("out.json", "--limit", 1) == 1
    for record in judging.records().values():
        assert record["attempts"] == (4 if not greedy else 2 if reply.text else 1)
        assert record["constrained"] == (record["attempts"] > 1)
        assert record["temperature"] == (0.0 if greedy else None)
    seeds, held = ([body for body in judging.server.requests if name in body] for name in ("seed", "response_format"))
    prompts = {body["messages"][-1]["content"] for body in judging.server.requests}
    assert len(held) == (0 if greedy and not reply.text else len(prompts))  # the last try alone
    assert greedy or len({body["seed"] for body in seeds}) == 4 * len(prompts)


def test_tries_behind_a_stored_one_are_refused_a_temperature_too(judging):
    """The store has first tries of another process: this one has not met the refusal yet."""
    judging.server.reply, refused = refuse("gpt-5", lambda request: Reply("No verdict."))
    first = ("--limit", 1, "--completions", judging.folder / "store", "--max_concurrency", 1)
    assert judging.run("a/out.json", *first, "--max_retries", 0) == 1
    assert judging.run("b/out.json", *first) == 1
    assert refused.total() == 6  # three parameters each
    records = judging.records("b/out.json").values()
    assert {(record["attempts"], record["temperature"]) for record in records} == {(4, None)}
    assert {tuple(record["refused_parameters"]) for record in records} == {("max_tokens", "temperature", "top_p")}


def test_flags_leave_parameters_out_from_the_start(case):
    case.server.reply, refused = refuse("gpt-5")
    more = ("--temperature", "default", "--top_p", "default", "--seed", "none")
    assert case.run("out.json", *more) == 0
    assert refused.total() == 1  # max_tokens
    assert all(body.keys().isdisjoint({"temperature", "top_p", "seed"}) for body in case.server.requests)
    settings = case.manifest()["settings"]
    assert (settings["temperature"], settings["top_p"], settings["seed"]) == (None, None, None)
    assert {record["temperature"] for record in case.records().values()} == {None}


FURTHER = {
    "--top_k": ("20", "0"),
    "--min_p": ("0", "0.1"),
    "--presence_penalty": ("-1.5", "1"),
    "--reasoning_effort": ("low", "high"),
    "--chat_template_kwargs": (TEMPLATE_KWARGS, '{"enable_thinking": true}'),
    "--extra_body": ('{"provider": {"order": ["a"]}, "logit_bias": {}}', '{"provider": {"order": ["b"]}}'),
}


def test_further_parameters_reach_the_server_and_are_settings(case):
    plain = case.folder / "plain.json"
    assert case.run(plain.name, "--limit", 2) == 0
    sent = {key for body in case.server.requests for key in body}
    assert sent == {"model", "messages", "temperature", "top_p", "seed", "max_tokens", "response_format"} & sent
    case.server.requests.clear()
    words = [word for flag, (value, _) in FURTHER.items() for word in (flag, value)]
    assert case.run("out.json", "--limit", 2, *words) == 0
    told = {"top_k": 20, "min_p": 0, "presence_penalty": -1.5, "reasoning_effort": "low"}
    told["chat_template_kwargs"] = {"enable_thinking": False}
    extra = {"provider": {"order": ["a"]}, "logit_bias": {}}
    for body in case.server.requests:
        assert {name: body.get(name) for name in (*told, *extra)} == {**told, **extra}
    manifest = case.manifest()
    assert {name: manifest["settings"].get(name) for name in (*told, "extra_body")} == {**told, "extra_body": extra}
    # Another value, or none, is another setting: a run does not go on with it.
    for number, (flag, (_, other)) in enumerate(FURTHER.items()):
        for its in (other, None):
            mine = [*words[: 2 * number], *([flag, its] if its else []), *words[2 * number + 2 :]]
            with pytest.raises(UserError, match=flag[2:]):
                case.run("out.json", "--limit", 2, *mine)


def test_a_flag_that_is_refused_is_left_out_and_the_user_s_own_json_is_not(case):
    case.server.reply, refused = refuse("Azure Foundry")
    assert case.run("flag.json", "--top_k", 5, "--reasoning_effort", "low") == 0
    check(case, ["seed", "top_k", "reasoning_effort"], "flag.json")
    assert refused.total() == 3
    for words in (("--extra_body", '{"mine": 1}'), ("--chat_template_kwargs", TEMPLATE_KWARGS)):
        with pytest.raises(UserError, match=r"mine|chat_template_kwargs"):
            case.run("own.json", *words)


def test_likelihoods_are_refused_behind_an_api_before_anything_is_asked(judging):
    with pytest.raises(UserError, match="no API tells how likely a text is"):
        judging.run("out.json", "--verdicts", "probability")
    assert judging.server.requests == []


def table(case, *names):
    systems = [word for name in names for word in ("--system", name, f"{case.folder}/{name}.json")]
    return make_table.main(systems)


def test_judges_that_were_really_sampled_differently_do_not_share_a_table(judging, capsys):
    """Each in a folder of its own, with a store of its own."""
    for name in ("plain", "refused", "again", "default", "part", "renamed"):
        (judging.folder / name).mkdir()
    assert judging.run("plain/a.json") == 0
    judging.server.reply, _ = refuse("gpt-5")
    assert judging.run("refused/a.json") == 0 and judging.run("again/a.json") == 0
    assert judging.run("default/a.json", "--temperature", "default", "--top_p", "default", "--seed", "none") == 0
    judging.server.reply = seeded
    assert judging.run("part/a.json", "--limit", 5) == 0
    judging.server.reply, _ = refuse("gpt-5")
    assert judging.run("part/a.json") == 0

    def rename(request):
        return Reply("No max_tokens here.", status=400) if "max_tokens" in request else seeded(request)

    judging.server.reply = rename
    assert judging.run("renamed/a.json") == 0
    check(judging, ["max_tokens"], "renamed/a.json")
    assert table(judging, "plain/a", "renamed/a") == 0  # one limit by two names
    assert table(judging, "refused/a", "again/a") == 0
    assert table(judging, "refused/a", "default/a") == 0  # what was sent is the same
    with pytest.raises(UserError) as raised:
        table(judging, "plain/a", "refused/a")
    assert "temperature None, not 0.0; top_p None, not 0.95" in str(raised.value)
    with pytest.raises(UserError, match=r"temperature '0.0, but refused for \d+ of \d+', not None"):
        table(judging, "refused/a", "part/a")


def ask(server, *takes):
    """What one request of `Refusals` comes to with a server that takes only these parameters; and what was sent."""
    sent = []

    async def send(body):
        sent.append(body)
        if unknown := [name for name in body if name not in takes]:
            raise MalformedError(f"no {unknown[0]}", unknown[0])
        return Completion("text", "stop", 1, 0, 1)

    return asyncio.run(server.ask({"model": "m", "max_tokens": 5}, None, send)), sent


@pytest.mark.parametrize(("name", "told"), [("max_tokens", f"with {LIMITS[1]}"), ("seed", "without seed")])
def test_requests_that_are_under_way_when_a_refusal_is_met_are_not_refused_again(monkeypatch, capsys, name, told):
    """Theirs is of the way that was given up, and changes nothing more."""
    monkeypatch.setattr(refusals, "FIRST_SECONDS", 0)
    server, sent = Refusals("max_tokens", "API"), []

    async def ask_all(count):
        all_sent = asyncio.Event()

        async def send(body):
            sent.append(name in body)
            if name not in body:
                return Completion("text", "stop", 1, 0, 1)
            if len(sent) == count:
                all_sent.set()
            await all_sent.wait()
            raise MalformedError(f"no {name}", name)

        asked = {"model": "m", "max_tokens": 5, "seed": 1}
        return await asyncio.gather(*(server.ask(asked, None, send) for _ in range(count)))

    completions = asyncio.run(ask_all(5))
    assert sent == [True] * 5 + [False] * 5
    assert {one.refused_parameters for one in completions} == {(name,)}
    assert notes(capsys.readouterr().err) == [f"note: no {name}; the run continues {told}"]


def test_the_limit_is_called_what_the_server_calls_it(capsys):
    for first, other in (LIMITS, LIMITS[::-1]):
        completion, sent = ask(Refusals(first, "API"), "model", other)
        assert [*map(list, sent)] == [["model", first], ["model", other]] and completion.refused_parameters == (first,)
    assert len(notes(capsys.readouterr().err)) == 2
    with pytest.raises(MalformedError, match="no max_completion_tokens"):
        ask(Refusals("max_tokens", "API"), "model")
    assert capsys.readouterr().err == ""


def test_a_limit_s_name_is_found_out_again_where_the_server_has_changed():
    server = Refusals("max_tokens", "API")
    server.recall([{"refused_parameters": ["max_tokens"]}])
    completion, sent = ask(server, "model", "max_tokens")
    assert len(sent) == 2 and completion.refused_parameters == ()


def test_the_addresss_query_goes_with_every_request(tmp_path):
    """Azure's api-version; also behind the list of models, which is asked for first."""
    key = tmp_path / "key.txt"
    key.write_text("sk-test")
    with serve(seeded) as server:
        words = [
            "--model_addr",
            "m",
            "--openai",
            "--api_key_addr",
            str(key),
            "--limit",
            "2",
            "--inputs_addr",
            str(SAMPLE),
        ]
        words += ["--base_url", f"{server.url}?api-version=preview", "--output_addr", str(tmp_path / "out.json")]
        assert baselines.main(words) == 0
        assert set(server.paths) == {"/v1/chat/completions?api-version=preview"} and server.lists_asked > 0


def test_a_field_that_a_refusal_lists_as_allowed_is_not_its_cause():
    """As serde tells it: none of what follows was refused."""
    found = "unknown field `temperature`, expected one of `model`, `messages`, `seed`, `top_p`, `max_tokens`"
    body = {"model": "m", "messages": [], "seed": 1, "top_p": 0.9, "max_tokens": 5, "temperature": 0.1}
    assert refusals._named(MalformedError("refused", None, found), body) == "temperature"
