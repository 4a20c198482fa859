"""Thoughts and the answer after them: how each kind of output is parsed, also with an unfinished thought."""

import pytest

from utils.benchmarks.choices import parse_level, parse_preference, parse_verdict
from utils.benchmarks.lamp.task import CITATION, LINE, MOVIE_TAG, RATING
from utils.benchmarks.lampqa.answers import parse_answer
from utils.benchmarks.lampqa.plans import parse_plan
from utils.benchmarks.longlamp import TEXT
from utils.benchmarks.personamem.letters import parse_letter
from utils.benchmarks.thoughts import Split, split_thoughts
from utils.building.asking import parse_needs

DRAFT = 'Okay, the format is {"personalized_answer": "..."} . Maybe start with {"match_score": 1}, label [1], 3 or '
DRAFT += "comedy. <final_answer>(b)? Let me see"
KINDS = {  # by kind of output its reader, a text that it reads, and the value
    "answer": (parse_answer, '{"personalized_answer": "real"}', "real"),
    "verdict": (parse_verdict, '{"match_score": 2}', 2),
    "level": (parse_level, '{"score": 0.5}', 0.5),
    "preference": (parse_preference, '{"better_response": 2}', 2),
    "needs": (parse_needs, '{"needs_personalization": false}', False),
    "citation": (CITATION.parse, "[2]", "[2]"),
    "tag": (MOVIE_TAG.parse, "romance", "romance"),
    "rating": (RATING.parse, "4", "4"),
    "line": (LINE.parse, "A title", "A title"),
    "text": (TEXT.parse, "A text", "A text"),
    "letter": (parse_letter, "<final_answer>(c)", "c"),
    "plan": (parse_plan, "Cost of the trip\nTime of day", ["Cost of the trip", "Time of day"]),
}


def read(parse, text, cut=False, opened=None):
    split = split_thoughts(text, cut, opened)
    return None if split.unfinished else parse(split.answer, cut).value


# Texts before an answer, and whether the prompt opened the thought.
CLOSED = [
    ("<think>{}</think>\n", None), ("<think>{}</think>\n\n", False), ("\n<think>\n{}\n</think>", False),
    ("{}</think>", None), ("{}\n</think>\n\n", True), ("<think>{}</think>", True), ("</think>", True),
    ("<think>\n\n</think>\n\n", None), ("<think>{0}</think>{0}<think>{0}</think>", False),
    ("[THINK]{}[/THINK]", None), ("[THINK]{}[/THINK]", False), ("{}[/THINK]", True),
    ("<think>{0}<think>{0}</think>{0}</think>", None), ("Sure.\n<think>{}</think>", False),
    ("analysis{}assistantfinal", None), ("analysis {}assistantfinal", None),
    ("analysis{0}assistantcommentary{0}assistantfinal", None),
    ("<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>", None),
    ("<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>", False),
    ("<|channel|>final<|message|>", False),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "opened"), CLOSED)
def test_an_answer_after_closed_thoughts_is_read(kind, before, opened):
    parse, answer, value = KINDS[kind]
    assert read(parse, before.replace("{}", DRAFT).replace("{0}", DRAFT) + answer, opened=opened) == value


# Texts that end inside a thought, and whether the prompt opened it.
OPEN = [
    ("{}", True), ("<think>{}", None), ("<think>\n{}", False), ("\n <think>{}", None), ("<think>{}", True),
    ("Sure.\n<think>{}", None), ("Sure. <think>{}", None), ('{{"personalized_answer": "x"}}\n<think>{}', None),
    ("<think>{0}</think>{0}<think>{0}", False), ("[THINK]{}", None), ("[THINK]{}", False), ("{}", True),
    ("analysis{}", None), ("analysis {}", None), ("analysis{0}assistantcommentary{0}", None),
    ("<|channel|>analysis<|message|>{}", None), ("<|channel|>analysis<|message|>{}<|end|>", False),
    ("<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>fin", False), ("<|channel|>analys", False),
    ("<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>commentary<|message|>{}", None),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "opened"), OPEN)
def test_an_unfinished_thought_is_not_an_answer(kind, before, opened):
    parse, answer, _ = KINDS[kind]
    for draft in (DRAFT, answer, f"{DRAFT}\n{answer}\n"):
        text = before.replace("{}", draft).replace("{0}", draft).replace("{{", "{").replace("}}", "}")
        assert read(parse, text, cut=True, opened=opened) is None


SPLIT = [
    # (text, cut, opened, answer, reasoning, unfinished)
    ("", False, None, "", "", False),
    ("hi", True, None, "hi", "", False),
    ("hi", False, True, "", "hi", True),  # the model ended its turn inside the thought
    ("a</think>b", False, False, "a</think>b", "", False),  # no thought was open
    ("the tag <think> opens", True, None, "", "the tag  opens", True),
    ("a</think>", False, True, "", "a", False),  # closed, with nothing after it
    ("<think>a</think>b", True, None, "b", "a", False),
    ("<think>a", False, None, "", "a", True),
    ("the tag <think> opens", False, None, "the tag <think> opens", "", False),
    ('{"a": "<think> and </think>"}', False, None, '{"a": "<think> and </think>"}', "", False),
    ('<think>a</think>{"a": "<think>"}', True, None, '{"a": "<think>"}', "a", False),
    ('{"a": 1}', True, True, "", '{"a": 1}', True),
    ("[THINK]a[/THINK]b", False, None, "b", "a", False),
    ("[THINK]a", True, None, "", "a", True),
    ("analysisWe think.assistantfinalb", False, None, "b", "We think.", False),
    ('analysis {"a": 1} assistantfinal{"a": 2}', False, None, '{"a": 2}', '{"a": 1}', False),
    ("analysisWe think", False, None, "", "We think", True),
    ("analysis of variance", False, None, "analysis of variance", "", False),
    ("analysis of variance", True, None, "", "of variance", True),
    ("analysis of variance", True, False, "analysis of variance", "", False),
    ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>", False, None,
     "b", "a", False),
    ("<|channel|>final<|message|>b", True, False, "b", "", False),
    ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>", False, None, "", "{}", True),
]  # fmt: skip


@pytest.mark.parametrize(("text", "cut", "opened", "answer", "reasoning", "unfinished"), SPLIT)
def test_split(text, cut, opened, answer, reasoning, unfinished):
    assert split_thoughts(text, cut, opened) == Split(answer, reasoning, unfinished)


CUT = [
    # (kind, text that max_tokens cut and that has no marks, value)
    ("answer", 'Sure:\n```json\n{"personalized_answer": "It is', "It is"),
    ("answer", '```json\n{"personalized_answer": "It is"}\n```\nI hope', "It is"),
    ("verdict", 'The format is {"match_score": 1}. But wait', None),
    ("verdict", 'match_score: 1\nwhich', 1),
    ("verdict", 'The response covers it: {"match_score": 1}', 1),
    ("level", 'It could be {"score": 0.5}, or', None),
    ("tag", "comedy", None),  # it may continue
    ("tag", '"comedy", for', "comedy"),
    ("tag", "comedy or romance, for", None),
    ("citation", "[1]", "[1]"),  # a schema, and a small --max_tokens
    ("citation", "Okay, [1] is about graphs, and", None),
    ("citation", "[1] is about graphs", "[1]"),
    ("rating", "Okay, a 4 would be", None),
    ("rating", "4", None),
    ("rating", "4\n\nThe review", "4"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "value"), CUT)
def test_a_cut_text_without_marks_is_judged_by_its_beginning(kind, text, value):
    assert read(KINDS[kind][0], text, cut=True) == value
