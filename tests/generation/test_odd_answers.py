"""Answers of undocumented shapes with status 200: each is parsed or retried, and none ends a run."""

import copy
import json
import re
from collections import Counter

import pytest
from api_server import running
from faulty_server import FaultyServer
from test_api_engine import answer, questions, quick, reply_to  # noqa: F401 (fixtures)
from test_baselines import flags, output  # noqa: F401 (fixtures)

from utils.base.manifest import read_manifest
from utils.generation.api_engine import ask_for_root

DEEP = 100_000
NO_COUNT = [None, True, "12", "many", -1, 1.5, float("nan"), float("inf"), 10**30, [], {}]
ESCAPES = "\x1b[2J\x1b]0;title\x07\udcff"


def put(*path_and_value):
    """Return a change to a completion: this value at this path."""
    *path, value = path_and_value

    def change(completion):
        place = completion
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value(place[path[-1]]) if callable(value) else value

    return change


def drop(*path):
    def change(completion):
        place = completion
        for name in path[:-1]:
            place = place[name]
        del place[path[-1]]

    return change


def parts(*kinds):
    """Return the text as a list of two parts."""

    def split(text):
        halves = [text[: len(text) // 2], text[len(text) // 2 :]]
        return [{"type": kind, "text": half} for kind, half in zip(kinds, halves, strict=True)]

    return put(*MESSAGE, "content", split)


CHOICE = ("choices", 0)
MESSAGE = (*CHOICE, "message")
USAGE = ("usage",)

# Changes that keep the text: parsed at once.
READ = {
    "parts of text": parts("text", "text"),
    "content is an object": put(*MESSAGE, "content", lambda text: {"text": text}),
    "texts as parts": put(*MESSAGE, "content", lambda text: [text[:9], text[9:]]),
    "a part of thoughts ahead": put(
        *MESSAGE, "content", lambda text: [{"type": "thinking", "thinking": []}, {"type": "text", "text": text}]
    ),
    "further keys": put("new", {"a": [1]}),
    "two choices": put("choices", lambda choices: choices * 2),
    "a second choice that is null": put("choices", lambda choices: [*choices, None]),
    "no role": drop(*MESSAGE, "role"),
    "no index": drop(*CHOICE, "index"),
    "no model": drop("model"),
    "usage is null": put(*USAGE, None),
    "usage is missing": drop(*USAGE),
    "usage is a text": put(*USAGE, "12 tokens"),
    "usage is a list": put(*USAGE, [1, 2]),
    "details is a list": put(*USAGE, "prompt_tokens_details", [1]),
    "details is a text": put(*USAGE, "prompt_tokens_details", "none"),
    "finish_reason is null": put(*CHOICE, "finish_reason", None),
    "finish_reason is missing": drop(*CHOICE, "finish_reason"),
    "finish_reason is a number": put(*CHOICE, "finish_reason", 3),
    "finish_reason is an object": put(*CHOICE, "finish_reason", {"type": "stop"}),
    "finish_reason steers the terminal": put(*CHOICE, "finish_reason", ESCAPES),
    "system_fingerprint is a number": put("system_fingerprint", 7),
    "system_fingerprint is a list": put("system_fingerprint", ["fp"]),
    "system_fingerprint steers the terminal": put("system_fingerprint", ESCAPES),
    "created is a text": put("created", "now"),
    "id is a list": put("id", []),
    **{f"prompt_tokens is {count!r}": put(*USAGE, "prompt_tokens", count) for count in NO_COUNT},
    **{f"completion_tokens is {count!r}": put(*USAGE, "completion_tokens", count) for count in NO_COUNT},
    **{f"cached_tokens is {count!r}": put(*USAGE, "prompt_tokens_details", {"cached_tokens": count})
       for count in NO_COUNT},
}  # fmt: skip

# Changes that remove the text: retried.
NO_TOKENS = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def empty(content, finish_reason, usage):
    """Return a change to a completion: a choice without text, with this `usage`."""
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": finish_reason}
    return lambda completion: completion.update(choices=[choice], usage=usage)


ASKED_AGAIN = {
    "no text and no tokens, as Ollama's failures": empty(None, "stop", NO_TOKENS),
    "no text, tokens of the prompt alone": empty("", "stop", {**NO_TOKENS, "prompt_tokens": 20}),
    "white space without tokens": empty(" \n", None, NO_TOKENS),
    "no text after an error": empty([], "error", NO_TOKENS),
    "no text, DeepSeek is overloaded": empty("", "insufficient_system_resource", NO_TOKENS),
    "no text, Zhipu's network": empty("", "network_error", NO_TOKENS),
    "no text and no output_tokens": empty("", "end_turn", {"input_tokens": 12, "output_tokens": 0}),
    "choices is an object": put("choices", lambda choices: {"0": choices[0]}),
    "choices is a text": put("choices", "none"),
    "choices is a number": put("choices", 1),
    "choices is null": put("choices", None),
    "choices is missing": drop("choices"),
    "a choice is a text": put(*CHOICE, "answer"),
    "message is a text": put(*MESSAGE, "answer"),
    "message is a list": put(*MESSAGE, ["answer"]),
    "content is a number": put(*MESSAGE, "content", 7),
    "content is true": put(*MESSAGE, "content", True),
}

# Changes that leave an empty text: completions that are unusable, as is the same answer to each other try.
UNUSABLE = {
    "content is an empty list": put(*MESSAGE, "content", []),
    "content is a list of numbers": put(*MESSAGE, "content", [1, None]),
    "content is a list of images": put(*MESSAGE, "content", [{"type": "image_url", "image_url": {"url": "x"}}]),
    "a part's text is a number": put(*MESSAGE, "content", [{"type": "text", "text": 7}]),
    "a part of thoughts alone": put(*MESSAGE, "content", [{"type": "thinking", "thinking": "Let me see."}]),
    "choices is empty": put("choices", []),
    "a choice is null": put(*CHOICE, None),
    "message is null": put(*MESSAGE, None),
    "message is missing": drop(*MESSAGE),
    "content is null": put(*MESSAGE, "content", None),
    "no text, and a token": empty("", "stop", {**NO_TOKENS, "completion_tokens": 1}),
    "no text, and no counts": empty("", "stop", None),
    "no text and no tokens, for a reason": empty("", "SAFETY", NO_TOKENS),
    "a tool call": put("choices", [{"message": {"content": None, "tool_calls": [{}]}, "finish_reason": "tool_calls"}]),
}  # fmt: skip

# Whole bodies.
BODIES = {
    "an error alone": {"error": {"message": ESCAPES, "code": ["x"]}},
    "a text": "answer",
    "a number": 12,
    "null": None,
    "a list": [1, 2],
    "NaN": b"NaN",
    "nothing": b"",
    "only a byte order mark": b"\xef\xbb\xbf",
    "UTF-16": json.dumps({}).encode("utf-16"),
    "bytes that are not UTF-8": b'{"choices": "\xff\xfe"}',
    "two values": b'{"choices": []} {"choices": []}',
    "a zero byte": b"\x00" * 50,
    "nested lists": b"[" * DEEP + b"]" * DEEP,
    "nested objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "a number of 6,000 digits": b'{"usage": {"prompt_tokens": ' + b"9" * 6000 + b"}}",
    "a web page": b"<html><body>\x1b[31mJust a moment...</body></html>",
}


def changed(change):
    def make(completion):
        completion = copy.deepcopy(completion)
        change(completion)
        return completion

    return make


SHAPES = {**{name: changed(change) for name, change in {**READ, **ASKED_AGAIN, **UNUSABLE}.items()}, **BODIES}


@pytest.fixture
def server():
    with running(FaultyServer(reply_to)) as server:
        yield server


def test_every_shape_is_parsed_or_retried(server, flags, output, questions, quick, capfd):
    """Each shape is the first answer to one question."""
    names = list(SHAPES)
    server.faults = lambda body, times: "other JSON" if times == 0 else None

    def other(completion):
        shape = SHAPES[names[number_in(completion["choices"][0]["message"]["content"])]]
        return shape(completion) if callable(shape) else shape

    server.body = other
    code, answers = answer(flags, output, "--max_concurrency", 8, data=questions(len(SHAPES)))
    texts = [outputs[0]["output"] for outputs in answers.values()]
    assert code == 0 and [text and number_in(text) for text in texts] == [
        None if name in UNUSABLE else number for number, name in enumerate(names)
    ]
    asked = Counter(names[number_in(body["messages"][-1]["content"])] for body in server.requests)
    # Readable answers were not requested again, and an unusable one was as often as any unusable text.
    assert asked == {name: 1 if name in READ else 4 if name in UNUSABLE else 2 for name in names}
    assert "\x1b" not in capfd.readouterr().err
    for [one] in answers.values():
        counts = [one[name] for name in ("prompt_tokens", "completion_tokens", "cached_tokens")]
        assert all(count is None or (type(count) is int and count >= 0) for count in counts)


@pytest.mark.parametrize(
    ("reason", "text", "is_cut"),
    [
        ("stop", "A whole text", False), ("STOP", "A whole text", False), ("eos", "A whole text", False),
        ("end_turn", "A whole text", False), (None, "A whole text", False), ("", "A whole text", False),
        ("error", "A half", True), ("MAX_TOKENS", "A half", True), ("SAFETY", "A half", True),
        ("abort", "A half", True), ("tool_calls", "A half", True), (2, "A half", True),
        ("content_filter: PROHIBITED", None, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["text", "object"])
def test_a_text_is_whole_only_if_the_server_says_so(server, flags, output, questions, reason, text, is_cut, kind):
    """A text that is read as it is, or the string of a JSON object without its end."""
    data = questions(1)
    if kind == "text":
        headline = {"task": "LaMP-4", "id": "q0", "question": "Generate a headline.", "target": "x", "profile": []}
        data.write_text(json.dumps([headline]))
    written = text if kind == "text" else f'{{"personalized_answer": "{text}' + ("" if is_cut else '"}')
    server.faults = lambda body, times: "other JSON"
    server.body = changed(put("choices", [{"message": {"content": written}, "finish_reason": reason}]))
    code, answers = answer(flags, output, data=data)
    [one] = answers["q0"]
    assert code == (1 if text is None else 0)
    assert (one["output"], one.get("truncated", False)) == (text, is_cut)


def test_a_failure_inside_a_choice_and_a_refusal(server, flags, output, questions):
    server.faults = lambda body, times: "other JSON"
    server.body = changed(put(*CHOICE, "error", {"code": 502, "message": "Upstream ended"}))
    _, answers = answer(flags, output, data=questions(1))
    assert answers["q0"][0]["finish_reason"] == "error"
    server.body = changed(put(*MESSAGE, {"content": None, "refusal": "I can't help."}))
    _, answers = answer(flags, output.parent.with_name("refused") / "answers.json", data=questions(1))
    assert (answers["q0"][0]["output"], answers["q0"][0]["reason"]) == (None, "refusal: I can't help.")


def test_thoughts_in_the_content_are_kept_beside_an_empty_field(server, flags, output, questions):
    """Some servers send both, and `reasoning` as null."""
    server.faults = lambda body, times: "other JSON"
    thought, text = {"type": "thinking", "thinking": "Let me see."}, {"type": "text", "text": "A"}
    server.body = changed(put(*MESSAGE, {"reasoning": None, "reasoning_content": "", "content": [thought, text]}))
    answer(flags, output, data=questions(1))
    [stored] = output.parent.glob("completions/*/*.jsonl")
    assert '"reasoning":"Let me see."' in stored.read_text()


def number_in(text):
    return int(re.search(r"number (\d+)\?", text)[1])


@pytest.mark.parametrize("name", ["choices is an object", "nested lists", "a number of 6,000 digits"])
def test_a_question_with_only_odd_answers_is_counted(server, flags, output, questions, quick, capsys, name):
    server.faults = lambda body, times: "other JSON" if "number 7?" in body["messages"][-1]["content"] else None
    server.body = SHAPES[name]
    code, answers = answer(flags, output, "--max_retries", 1, data=questions(20))
    assert (code, len(answers)) == (1, 19) and "q7" not in answers
    assert "1 answer is missing because the server failed" in capsys.readouterr().err


def test_missing_token_counts_are_reported_as_unknown(server, flags, output, questions):
    server.faults, server.body = lambda body, times: "other JSON", SHAPES["prompt_tokens is -1"]
    assert answer(flags, output, data=questions(3))[0] == 0
    assert read_manifest(output)["tokens"]["prompt_tokens"] is None
    assert read_manifest(output)["tokens"]["completion_tokens"] == 18


@pytest.mark.parametrize(
    "listed",
    [
        {"data": {"id": "m", "root": "/weights"}},
        {"data": [{"id": "m", "root": ["/weights"]}]},
        {"data": [{"id": "m", "root": "/weights\x1b[2J"}]},
        {"data": [None, 7, "m", []]},
        None,
    ],
)
def test_malformed_model_lists_are_ignored(server, listed):
    server.list_models = lambda: (200, listed)
    assert ask_for_root("m", server.url, "key") is None and server.lists_asked == 1


@pytest.mark.parametrize("listed", [b"[" * DEEP, b"<html></html>", b'{"data": [1, {"id": [1], "owned_by": {}}]}'])
def test_a_list_of_models_that_cannot_be_read_is_as_good_as_none(server, flags, output, questions, listed):
    server.list_models = lambda: (200, listed)
    assert answer(flags, output, data=questions(1))[0] == 0 and server.lists_asked


def test_an_error_that_is_nested_deeply_is_one_prompts(server, flags, output, questions, capsys):
    """The client library can read it; it is one line, without what is inside."""
    server.faults = lambda body, times: "nested error" if "number 7?" in body["messages"][-1]["content"] else None
    server.body = b'{"error":' * 900 + b"1" + b"}" * 900
    code, answers = answer(flags, output, data=questions(20))
    assert code == 0 and [key for key, [one] in answers.items() if one["output"] is None] == ["q7"]
    assert "refuses the request: {'error': {'error': " in answers["q7"][0]["reason"]
