"""Table tests of the lenient parser: texts of models, and their values."""

import json

import pytest

from utils.benchmarks.choices import parse_verdict
from utils.benchmarks.lampqa.answers import parse_answer

A = "personalized_answer"
NONE = "none"
CODE = 'Try this:\n```python\nprint("hi")\n```\nand {"a": "b"}\nor ```json\n{"c": 1}\n``` too.'

# Turns that models make up, in the forms of Llama 3 (without its special tokens), Llama 2, ChatML, Gemma, and others.
TURNS = ["user\nWhy?\nassistant\n", "[INST] Why? [/INST]", "<|im_start|>user\nWhy?", "<start_of_turn>user\nWhy?",
         "\n### Instruction:\nWhy?\n", "\nHuman: Why?\nAssistant: ", "\nQuestion: Why?\nAnswer: "]  # fmt: skip

ANSWERS = [
    # One JSON object as asked.
    ('{"personalized_answer": "hi"}', "hi", "strict"),
    ('\ufeff{"personalized_answer":\r\n"a\\r\\nb"}', "a\nb", "strict"),
    (r'{"personalized_answer": "\ud83d\ude00 \u4e2d \\n \/ \""}', '😀 中 \\n / "', "strict"),
    (r'{"personalized_answer": "a \ude00\ud83d"}', "a \ufffd\ufffd", "strict"),
    ('{"personalized_answer": "a \ud83d b"}', "a \ufffd b", "strict"),
    (r'{"personalized_answer": "a\u0000b"}', "ab", "strict"),
    ('```\n{"personalized_answer": "hi"}\n```', "hi", "strict"),
    (json.dumps({A: CODE}), CODE, "strict"),
    (f"```json\n{json.dumps({A: CODE}, indent=2)}\n```", CODE, "strict"),
    # Text around a valid object.
    ('{"personalized_answer": "one"}\n{"personalized_answer": "two"}', "two", "repaired"),
    ('{"personalized_answer": "one"}\nuser: And now?\n{"personalized_answer": "two"}', "one", "repaired"),
    *((f'{{"personalized_answer": "one"}}{turn}{{"personalized_answer": "two"}}', "one", "repaired") for turn in TURNS),
    ('{"personalized_answer": "one"}\n{"personalized_answer": null}', "one", "repaired"),
    ('{"personalized_answer": ["one"]} {"personalized_answer": ["two"]}', "two", "repaired"),
    ("{not JSON} " * 60 + '{"personalized_answer": "one"} {"note": {}}', "one", "repaired"),
    ('Here is the answer:\n```json\n{"personalized_answer": "hi"}\n```\nHope it helps!', "hi", "repaired"),
    ('{"personalized_answer": "one", "personalized_answer": "two"}', "two", "strict"),
    # Echoes of the schema or of a form.
    ('{"properties": {"personalized_answer": {"type": "string"}}}\n{"personalized_answer": "hi"}', "hi", "repaired"),
    ('{"personalized_answer": {"type": "string", "minLength": 1}} {"personalized_answer": "hi"}', "hi", "repaired"),
    ('{"personalized_answer": "one"} Format: {"personalized_answer": "Write your answer here"}', "one", "repaired"),
    ('{"personalized_answer": "<the answer>"} {"personalized_answer": "hi"}', "hi", "repaired"),
    ('{"personalized_answer": "hi"}\nas in {"personalized_answer": "..."}', "hi", "repaired"),
    ('{"properties": {"personalized_answer": {"type": "string"}}}', None, NONE),
    ('{"personalized_answer": "<your answer>"}', None, NONE),
    ('{"personalized_answer": "[insert your answer here]"', None, NONE),
    ('{"personalized_answer": "I hope that you find the answer"}', "I hope that you find the answer", "strict"),
    # Commands of LaTeX, which are escapes in JSON.
    (
        r'{"personalized_answer": "\frac{1}{2}, \theta, \nabla, \times, \rho, \beta\nnot \tone\fall"}',
        "\\frac{1}{2}, \\theta, \\nabla, \\times, \\rho, \\beta\nnot \tone\\fall",
        "strict",
    ),
    (r'{"personalized_answer": "C:\\new\\theta and \\frac"}', r"C:\new\theta and \frac", "strict"),
    (r'{"personalized_answer": "say "\frac" and \alpha ok"}', r'say "\frac" and \alpha ok', "repaired"),
    # Another spelling of the name.
    ('{"PERSONALIZED-ANSWER": "hi"}', "hi", "repaired"),
    (r'{"personalized\_answer": "hi"}', "hi", "repaired"),
    # No braces.
    ('personalized_answer: "hi"\njson', "hi", "repaired"),
    ('json\npersonalized_answer = "hi"', "hi", "repaired"),
    ('**Personalized Answer:** "hi"', "hi", "repaired"),
    ('"personalized_answer": "hi" /json', "hi", "repaired"),
    # Inside the string: raw newlines, tabs, quotes, fences, braces.
    ('{"personalized_answer": ""Dune" is great, "really""}', '"Dune" is great, "really"', "repaired"),
    ('{"personalized_answer": "I like "a", "b", and "c"."}\n```', 'I like "a", "b", and "c".', "repaired"),
    (f'```json\n{{\n"personalized_answer": "{CODE}"\n}}\n```', CODE, "repaired"),
    ('{"personalized_answer": "say "x" :-{ ok"}\n/json', 'say "x" :-{ ok', "repaired"),
    ('{"personalized_answer": "say "x" ok", "confidence": 0.9}', 'say "x" ok', "repaired"),
    (r'{"personalized_answer": "it\'s \(x\) \*b\*"}', r"it's \(x\) \*b\*", "repaired"),
    ('{"personalized_answer": "say "x" :-} {"a": "b"} ok"}', 'say "x" :-} {"a": "b"} ok', "repaired"),
    # Not quite JSON.
    # A brace or a quote is missing.
    ('{"personalized_answer": "say "x" ok"\n```', 'say "x" ok', "repaired"),
    ('{"personalized_answer": "hi}', "hi", "repaired"),
    ('{"personalized_answer": "hi\n}\n```', "hi", "repaired"),
    (r'{"personalized_answer": "hi\"}', "hi", "repaired"),
    # Lists and dicts become text.
    ('{"personalized_answer": ["a", "b, c", ["d"]]}', "a\nb, c\nd", "repaired"),
    ('{"personalized_answer": {"n": 3, "steps": ["a: b", "c"]}}', "n: 3\nsteps:\na: b\nc", "repaired"),
    # Nothing usable.
    ("", None, NONE),
    ('{"impersonalized_answer": "hi"}', None, NONE),
    ('{"personalized_answer": " \\n "}', None, NONE),
    ('{"personalized_answer": true}', None, NONE),
    ('My personalized answer: "rest" and then more.', None, NONE),
]

CUT = [
    # (text that max_tokens ended, value, truncated)
    ('{"personalized_answer": "one\\', "one", True),
    ('{"personalized_answer": "one\\u00', "one", True),
    ('{"personalized_answer": "one\\u', "one", True),
    ('{"personalized_answer": "one \\ud83d', "one", True),
    ('{"personalized_answer": "one \\ud83d\\ude', "one", True),
    ('{"personalized_answer": "one \ufffd', "one", True),
    ('{"personalized_answer": "Say "hi"', 'Say "hi"', True),
    ('{"personalized_answer": "Say "hi" and {"a": "b"}', 'Say "hi" and {"a": "b"}', True),
    ('{"personalized_answer": "Try:\n```\nx = "1"\n```', 'Try:\n```\nx = "1"\n```', True),
    ('{"personalized_answer": "one", "no', "one", False),
    ('{"personalized_answer": "', None, False),
]

VERDICTS = [
    ('{"match_score": 0}', 0, "strict"),
    ('{"match_score": 2.0}', 2, "strict"),
    # Several objects: the last complete one decides.
    ('{"match_score": 2}\n{"match_score": 2.0}', 2, "repaired"),
    ('The response claims {"match_score": 2}. It is off topic. {"match_score": 0}', 0, "repaired"),
    ('{"match_score": 2}\nuser: Rate this final answer.\n{"match_score": 0}', 2, "repaired"),
    ('{"match_score": 1, "match_score": 2}', 2, "strict"),
    ("{\"match_score\": 2} {'match_score': 0}", 2, "repaired"),
    ('{"match_score": 2}\nWait, it misses the price. {"match_score": 1}', 1, "repaired"),
    ("{'match_score': 2}\nOn reflection: {'match_score': 1}", 1, "repaired"),
    ('{"match_score": <0-2>}\n{"match_score": 2}', 2, "repaired"),
    ('{"match_score": {"type": "integer"}} {"match_score": 2}', 2, "repaired"),
    ('{"match_score": ２}', 2, "strict"),
    ("match_score： １", 1, "repaired"),
    ('{"output": "{\\"match_score\\": 1}"}', 1, "repaired"),
    ('{"why": "not {\'match_score\': 1}", "match_score": 2} /json', 2, "repaired"),
    ('{"why": "not\n{\'match_score\': 1}", "match_score": 2} /json', 2, "repaired"),
    ("Levels: match_score: 0 is poor, match_score: 2 is good.\n{'match_score': 1}", 1, "repaired"),
    # Not quite JSON.
    ('{"match-score": 1}', 1, "repaired"),
    # No braces.
    ('```json\n"match_score": 1\n```', 1, "repaired"),
    ("match_score = **2**.", 2, "repaired"),
    ("match_score：0", 0, "repaired"),
    # The same number with a decimal point.
    ('```json\n{"match_score": 0.0}\n```', 0, "strict"),
    ('{"match_score": 1.000} /json', 1, "repaired"),
    ("**Match Score:** 1.0.", 1, "repaired"),
    # The only number, among the remains of a fence, an object or quotes.
    ("2", 2, "repaired"),
    ("json\n\n2", 2, "repaired"),
    ("json\n\n2\n\njson", 2, "repaired"),
    ("json\n\n2\nendif", 2, "repaired"),
    ("json\n1\n</json>", 1, "repaired"),
    ("```json 1", 1, "repaired"),
    ("```json\n{\n1\n```", 1, "repaired"),
    ("/json\n0.0\n/json\n/json", 0, "repaired"),
    ('"2"}', 2, "repaired"),
    ('{"1"}', 1, "repaired"),
    ("1” }}/json", 1, "repaired"),
    ("2json", 2, "repaired"),
    ("json2", 2, "repaired"),
    # The name in prose, and text after the value.
    ("The match_score is 1.", 1, "repaired"),
    ("It covers the price, so match_score: 2, because it names one.", 2, "repaired"),
    ("match_score: 2 (very well)", 2, "repaired"),
    ("match_score: 1 /json", 1, "repaired"),
    ("match_score: 0</json>", 0, "repaired"),
    ("matchScore: 2", 2, "repaired"),
    ('{"matchscore": 2}', 2, "repaired"),
    ('{"match_score": 1 // partly\n}', 1, "repaired"),
    ('{"match_score": 2 "}', 2, "repaired"),
    ('{"match_score": 1; "why": "so"}', 1, "repaired"),
    ('{"match_score": 0 "why": "so"}', 0, "repaired"),
    ('{\\n  "match_score": 2\\n}', 2, "repaired"),
    ("The match_score is 2: it covers all. So match_score: 2 it is.", 2, "repaired"),
    # Another turn that the model makes up.
    ('{"match_score": 2}\n```\nassistant\n{"match_score": 0}', 2, "repaired"),
    ('{"match_score": 2 "}\nassistant\n{"match_score": 0}', 2, "repaired"),
    ("match_score: 2\nuser: Rate this, too.\nassistant: match_score: 0", 2, "repaired"),
    ("**Match Score:** 0 would mean no.\n\nQuestion: Is it there? Yes.\n\n**Match Score:** 2", 2, "repaired"),
    ("**Match Score:** 0 would mean no.\n\n- User: Is it there?\n\n**Match Score:** 2", 2, "repaired"),
    ("**Match Score:** 0 would mean no.\n\n**User**\n\n**Match Score:** 2", 2, "repaired"),
    ('{"match_score": null}\nassistant:\n{"match_score": 2}', 2, "repaired"),
    ("match_score: ?\nQuestion: How?\nmatch_score: 2", 2, "repaired"),
    ("{'match_score': 2, 'why': 'so'}\nassistant\n{'match_score': 0}", 2, "repaired"),
]

REFUSED = [
    # (text, what the reason must say)
    ("{'match_score': '2'}", "match_score is '2', not an integer 0-2"),
    ('{"match_score": "\\ud83d"}', 'match_score is "\ufffd", not an integer 0-2'),
    ('{"match_score": 7}', "match_score is 7, not an integer 0-2"),
    ('{"match_score": 1.5}', "match_score is 1.5, not an integer 0-2"),
    ('{"match_score": NaN}', "match_score is NaN, not an integer 0-2"),
    ('{"match_score": true}', "match_score is true, not an integer 0-2"),
    ("match_score: 1,5", "match_score is 1,5, not an integer 0-2"),
    ("match_score: 2.0/2", "match_score is 2.0/2, not an integer 0-2"),
    ("match_score: 1.0-2.0", "match_score is 1.0-2.0, not an integer 0-2"),
    ('{"match_score": ' + "1" * 5000 + "}", "match_score is 11111111111111111111, not an integer 0-2"),
    ('{"match_score": [2]}', "match_score is a list, not an integer 0-2"),
    ('{"match_score": {"score": 2}}', "match_score is an object, not an integer 0-2"),
    ('{"match_score":', "match_score is empty, not an integer 0-2"),
    ('{"match_score": 0|1|2}', "match_score is 0|1|2, not an integer 0-2"),
    ('{"match_score": 2/2}', "match_score is 2/2, not an integer 0-2"),
    ("match_score: 1 (out of 2)", "match_score is 1 (out of 2), not an integer 0-2"),
    ("match_score: 1-2", "match_score is 1-2, not an integer 0-2"),
    ("match_score: 1 or 2", "match_score is 1 or 2, not an integer 0-2"),
    ("match_score: 0, 1, or 2", "match_score is 0, 1, or 2, not an integer 0-2"),
    ("{}", "no match_score in the text"),
    ("json\n\n2\n1", "no match_score in the text"),
    ("2/2}", "no match_score in the text"),
    ("2} is my verdict", "no match_score in the text"),
    ("The match_score is 1 or 2.", "match_score is 1 or 2., not an integer 0-2"),
    ("A match_score is 1 if it is partly covered.", "match_score is 1 if it is partly co, not an integer 0-2"),
    ("match_score: 1 point out of 2", "match_score is 1 point out of 2, not an integer 0-2"),
    ("match_score: 0 is poor, match_score: 2 is good.", "match_score is contradictory: 0 and 2"),
    ("The match_score is 1. On reflection, the match_score is 2.", "match_score is contradictory: 1 and 2"),
    (
        '{"match_score": 0,\n\nassistant\n\n{"match_score": 2}',
        "match_score is contradictory: another turn interrupts an object",
    ),
    ("match_score is 1? No, 2.", "match_score is contradictory: 1 and 2"),
    ("match_score is 1, maybe 2", "match_score is contradictory: 1 and 2"),
    ("match_score is 1 (or 2)", "match_score is contradictory: 1 and 2"),
    ("The match_score is 0 - but wait, it names a price, so 1.", "match_score is contradictory: 0 and 1"),
    ("I would give this a 2.", "no match_score in the text"),
    ('"2"', "no match_score in the text"),
    ("'2.0'", "no match_score in the text"),
    ('```json\n"2"\n```', "no match_score in the text"),
    ("```\n```", "the text is empty"),
    (" \r\n\ufeff", "the text is empty"),
]


@pytest.mark.parametrize(("text", "value", "how"), ANSWERS)
def test_answer(text, value, how):
    found = parse_answer(text)
    assert (found.value, found.how, found.truncated) == (value, how, False)
    assert (found.reason is None) == (value is not None)


@pytest.mark.parametrize(("text", "value", "truncated"), CUT)
def test_cut_answer(text, value, truncated):
    found = parse_answer(text, cut=True)
    assert (found.value, found.truncated) == (value, truncated)


@pytest.mark.parametrize(("text", "value", "how"), VERDICTS)
def test_verdict(text, value, how):
    found = parse_verdict(text)
    assert (found.value, found.how, found.reason) == (value, how, None)
    assert type(found.value) is int


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_refused_verdict(text, reason):
    found = parse_verdict(text)
    assert (found.value, found.how) == (None, NONE) and found.reason.endswith(reason)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # A number at the end may continue.
        ("json 2 ", None),
        ("json\n\n2", None),
        ("match_score: 1 o", None),
        ("The match_score is 1, because it cov", None),
        ("Let me see: match_score is 1 where one part is covered, and\n", None),
        ("match_score: 1.", None),
        ("match_score: 1 ", None),
        ("match_score: **1**", None),
        ("match_score: 1/", None),
        ('{"match_score": 1.', None),
        ('{"match_score": 1,', None),
        # The text after it shows that it has ended.
        ("{'match_score': 1}\nuser: 1. And 2.", 1),
        ("match_score: 1\nuser: of these 7.", 1),
        ("match_score: 1, because the price is covered and", 1),
        ("2}", 2),
        ('2.0"', 2),
    ],
)
def test_a_verdict_that_max_tokens_may_have_cut(text, value):
    assert parse_verdict(text, cut=True).value == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"personalized_answer": ""}', "personalized_answer is empty"),
        ('{"personalized_answer": null}', "personalized_answer is null, not a text"),
        ('{"personalized_answer": 42, "x": 1}', "personalized_answer is 42, not a text"),
        ('{"personalized_answer": ["one", "tw', "personalized_answer is a list, not a text"),
        ("{“personalized_answer”: “hi”}", "personalized_answer is “hi”, not a text"),
    ],
)
def test_reason_why_there_is_no_answer(text, reason):
    assert parse_answer(text).reason == reason


@pytest.mark.parametrize(
    "value",
    [
        "Try:\n```\nx = {1}\n```",
        "use {x}",
    ],
)
def test_string_that_stops_without_reaching_max_tokens(value):
    found = parse_answer('{"personalized_answer": "' + value)
    assert (found.value, found.truncated) == (value, True)


@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_a_cut_anywhere_keeps_a_beginning_of_the_answer(ensure_ascii):
    answer = CODE + ' C:\\new\\"x" 中文 😀 é\ttab }{ ]["'
    text = "```json\n" + json.dumps({A: answer, "note": "x"}, ensure_ascii=ensure_ascii) + "\n```"
    opened = text.index('": "') + len('": "')
    closed = text.index('", "note"') + 1
    for end in range(len(text) + 1):
        found = parse_answer(text[:end], cut=True)
        if end <= opened:
            assert found.value is None
        else:
            assert answer.startswith(found.value)
            assert found.truncated == (end < closed)
        # At most one escape, here a pair of \uXXXX, is lost at the cut, and the white space before it.
        if opened < end < closed:
            whole = json.dumps(found.value, ensure_ascii=ensure_ascii)[1:-1]
            assert end - opened - len(whole) <= 12 + 2 * len("\\n")


@pytest.mark.parametrize("answer", [CODE, "a\\b", 'x"', '"', "{", "}{", "```", "'", "a\n\nb", "😀中", "// no", "a,"])
@pytest.mark.parametrize("around", ["{x} %s", "json %s}", "%s\nuser: {", "[%s, %s]", "```json\n{}%s\n``` /json"])
def test_the_tolerant_scanner_agrees_with_json(answer, around):
    found = parse_answer(around.replace("%s", json.dumps({A: answer, "note": "y"})))
    assert (found.value, found.how) == (answer, "repaired")


@pytest.mark.parametrize("text", [row[0] for row in ANSWERS + CUT + VERDICTS + REFUSED])
def test_parsed_values_can_be_written_as_utf8(text):
    for found in (parse_answer(text), parse_answer(text, cut=True), parse_verdict(text)):
        assert (found.value is None) == (found.how == NONE) == (found.reason is not None)
        f"{found.value} {found.reason}".encode()


def test_a_long_answer_is_kept_whole():
    answer = 'He said "so" and\nleft. ' * 8000
    found = parse_answer(f'{{"personalized_answer": "{answer}"}}')
    assert found.value == answer.strip()
    assert parse_answer(f'{{"personalized_answer": "{answer}', cut=True).value == answer.strip()
