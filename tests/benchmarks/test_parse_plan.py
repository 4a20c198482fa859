"""parse_plan: a planner's texts, and the exact titles found in them."""

import json
import re

import pytest

from utils.benchmarks.lampqa.plans import PLAN_PATTERN, parse_plan
from utils.benchmarks.readers import Parsed

COST_TIME = ["Cost of the trip", "Time of day"]

WRITTEN_AS_ASKED = [
    ("\n\n  Cost of the trip\nTime of day \n", COST_TIME),
    ("Straße nach Zürich\n音楽の歴史\nПогода 🌧", ["Straße nach Zürich", "音楽の歴史", "Погода 🌧"]),
    ("Cost: the ticket\nThe last thing:", ["Cost: the ticket", "The last thing:"]),  # only a first line introduces
    ("2024 elections\n10.5 mm lens\n100 things", ["2024 elections", "10.5 mm lens", "100 things"]),
    ("well-being\n1.5 litres\n3D printing", ["well-being", "1.5 litres", "3D printing"]),
    ("C# or C++\nA*B", ["C# or C++", "A*B"]),
    ('[\n  "Cost of the trip",\n  "Time of day"\n]\n', COST_TIME),
    (r'["say \"hi\"", "a\\b", "caf\u00e9", "x/y\/z"]', ['say "hi"', "a\\b", "café", "x/y/z"]),
]

REPAIRED = [
    ("  Cost \t of\u00a0\u3000the trip\n\n\n\tTime of day", COST_TIME),
    # list marks and bold face
    ("- 1. Cost of the trip\n- 2. Time of day", COST_TIME),
    ("**1. Cost of the trip**\n- **Time** of day", COST_TIME),
    ("* Cost of the trip\n+ Time of day", COST_TIME),
    ("• Cost of the trip\n– Time of day", COST_TIME),
    ("1) Cost of the trip\n(2) Time of day", COST_TIME),
    ("1: Cost of the trip\n12. Time of day", COST_TIME),
    ("# Cost of the trip\n### Time of day", COST_TIME),
    ("> Cost of the trip\n>> Time of day", COST_TIME),
    # a title occurs once, as first written
    ("- STRASSE\n- Straße\n- 1. strasse", ["STRASSE"]),
    ('["Cost of the trip", "cost of the TRIP", "Time of day"]', COST_TIME),
    # lines without a word
    ("---\nCost of the trip\n**\n🎸\n...\nTime of day\n!!!", COST_TIME),
    ('["Cost of the trip", "", "?!", "Time of day"]', COST_TIME),
    # inside an array
    (r'["- Cost of\nthe trip", "**Time\tof day**"]', COST_TIME),
]

# Titles without repair, whose surroundings are dropped.
AROUND = [
    ("Here are the aspects:\nCost of the trip\nTime of day", COST_TIME),
    ("```text\nCost of the trip\nTime of day\n```\n", COST_TIME),
    ("```\nCost of the trip\nTime of day", COST_TIME),  # half a fence
    ('Here are the aspects:\n```json\n["Cost of the trip", "Time of day"]\n```', COST_TIME),
    ("Here are the aspects:\n```text\nCost of the trip\nTime of day\n```", COST_TIME),
    # how lines end
    ("Cost of the trip\r\nTime of day\r\n", COST_TIME),
    ("Cost of the trip\u2028Time of day", COST_TIME),
    # what can't be written
    ("Cost\0 of the trip\nTime of day", COST_TIME),
    ("Cost \ud83d\nTime", ["Cost \ufffd", "Time"]),
    (r'["Mood \ud83d\ude00", "Mood \ud83d"]', ["Mood 😀", "Mood \ufffd"]),
    # numbers without a title
    ("Cost of the trip\n2.\n3. Time of day", COST_TIME),
    ("Cost of the trip\nTime of day\n(3) ", COST_TIME),
    # an array without its end
    ('["Cost of the trip", "Time of day",', COST_TIME),
    (r'["Cost of the trip", "Time of day", "Weather \"', COST_TIME),
]

NOTHING = [
    "",
    " \n\t\r\n ",
    "- \n- \n",
    "**\n***\n---",
    "!?… 🎸",
    "\0",
    "```json\n```",
    "[",
    '["Cost of the tr',
    '["", "..."]',
]


# A first line that ends in a colon introduces the others, whatever their form.
INTRODUCED = [
    ("Sure, here's a plan:\nCost\nTime", ["Cost", "Time"]),
    ("Aspects:\n- Cost\n- Time", ["Cost", "Time"]),
    ("**Money matters**:\n* Cost\n* Time", ["Cost", "Time"]),
    ("# Money matters:\nCost\nTime", ["Cost", "Time"]),
    ("Here are the aspects:\n1. **Cost:**\n2. **Time:**", ["Cost:", "Time:"]),
]

# Unless another title's line ends in a colon too.
NOT_INTRODUCED = [
    ("Cost:\n- the ticket\nTime:\n- the day", ["Cost:", "the ticket", "Time:", "the day"]),
    ("**Cost:**\nthe ticket\n**Time:**\nthe day", ["Cost:", "the ticket", "Time:", "the day"]),
    ("1. Cost:\n2. Time:", ["Cost:", "Time:"]),
]


@pytest.mark.parametrize(("text", "titles"), INTRODUCED)
def test_an_introductory_first_line_is_dropped(text, titles):
    found = parse_plan(text)
    assert (found.value, found.how) == (titles, "repaired")


@pytest.mark.parametrize(("text", "titles"), NOT_INTRODUCED)
def test_a_first_title_that_ends_in_a_colon_is_kept(text, titles):
    found = parse_plan(text)
    assert found.value == titles
    assert (found.how == "strict") == (text == "\n".join(titles))


@pytest.mark.parametrize("text", ["**Plan:**", "The user cares about:\n", "Aspects:\n- "])
def test_an_introduction_without_titles_is_not_a_plan(text):
    assert parse_plan(text) == Parsed(None, "none", "no aspect in the text")


@pytest.mark.parametrize(("text", "titles"), WRITTEN_AS_ASKED)
def test_a_plan_in_the_requested_format(text, titles):
    assert parse_plan(text) == Parsed(titles, "strict", None, truncated=False)


@pytest.mark.parametrize(("text", "titles"), REPAIRED)
def test_a_plan_that_is_repaired(text, titles):
    assert parse_plan(text) == Parsed(titles, "repaired", None, truncated=False)


@pytest.mark.parametrize(("text", "titles"), AROUND)
def test_text_around_a_plan_is_dropped(text, titles):
    assert parse_plan(text).value == titles


@pytest.mark.parametrize("text", NOTHING)
@pytest.mark.parametrize("cut", [False, True])
def test_no_plan(text, cut):
    assert parse_plan(text, cut) == Parsed(None, "none", "no aspect in the text")


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        ("Cost of the trip\nTime of day\nWeath", COST_TIME),
        ("Here are the aspects:\n1. Cost of the tr", ["Cost of the tr"]),
        ("Cost of the trip\nTime of day\nCost of", COST_TIME),
    ],
)
def test_a_possibly_cut_title_is_dropped(text, titles):
    found = parse_plan(text, cut=True)
    assert (found.value, found.truncated) == (titles, True)


def test_an_array_cut_anywhere_gives_its_complete_titles():
    titles = ["Cost of the trip", 'A "good" time', "C:\\temp", "音楽"]
    text = json.dumps(titles)
    ends = [len(json.dumps(titles[:number])) - 1 for number in range(len(titles) + 1)]  # behind each closing quote
    for length in range(1, len(text) + 1):
        whole = [title for title, end in zip(titles, ends[1:], strict=True) if end <= length]
        assert parse_plan(text[:length], cut=True).value == (whole or None), text[:length]


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("Cost of the trip", True),
        ("Cost of the trip\nTime of day", True),
        ("\n".join(f"{number}x" + "x" * 118 for number in range(10)), True),  # the most and the longest
        ("\n".join(f"{number}xx" for number in range(11)), False),
        ("ab", False),
        ("- Cost of the trip", False),
        ("Cost of the trip\n\nTime of day", False),
    ],
)
def test_the_last_try_is_constrained(text, allowed):
    assert (re.fullmatch(PLAN_PATTERN, text) is not None) == allowed
    if allowed:
        assert parse_plan(text) == Parsed(text.split("\n"), "strict", None)


def test_reading_the_titles_again_changes_nothing():
    for text, titles in WRITTEN_AS_ASKED + REPAIRED + AROUND:
        assert parse_plan("\n".join(titles)).value == titles, text
