"""Finding evidence in a post, splits, and the page of records to read."""

import json
import re
from collections import Counter
from html import unescape
from pathlib import Path

import pytest

from utils.building.candidates import SPLITS, split_of
from utils.building.evidence import OMISSION, find_evidence, keep_found
from utils.building.reading_page import Section, Shown, make_page

SAMPLE = Path(__file__).parents[1] / "data" / "mini_lampqa" / "test.json"
POST = "I don’t own a car.\n\n“Two  weeks” is all I have (or less); it's 5*3 [cm]."


@pytest.mark.parametrize(
    ("evidence", "found"),
    [
        ("  own a car ", ("own a car", "exact")),
        ('I don\'t own a car. "Two weeks" is', ("I don’t own a car.\n\n“Two  weeks” is", "tolerant")),
        ('"is all I have"', ("is all I have", "tolerant")),
        ("‘it’s 5*3 [cm]’", ("it's 5*3 [cm]", "tolerant")),
        ("own\u00a0a  car", ("own a car", "tolerant")),
        ("I do not own a car", ("", "nowhere")),
        ("own a car ... Two weeks", ("own a car [...] Two  weeks", "shortened")),
        ("…own a car[...]it's 5*3 (...)", ("own a car [...] it's 5*3", "shortened")),
        ("Two weeks ... own a car", ("", "nowhere")),  # the other way round
        ("own a car ... three weeks", ("", "nowhere")),
        ("is all ... all I have", ("", "nowhere")),  # the parts may not share a word
        ("own a car. . . . Two weeks (..) [cm]", ("own a car [...] Two  weeks [...] [cm]", "shortened")),
        ("a ... all ... I h", ("", "nowhere")),  # the last part ends inside a word
        ("... [...] …", ("", "nowhere")),
        ('don"t', ("don’t", "tolerant")),
        ("OWN A CAR", ("", "nowhere")),
        ("5.3", ("", "nowhere")),  # not read as a regular expression
        (" \n", ("", "nowhere")),
    ],
)
def test_evidence_quotes_the_post(evidence, found):
    assert find_evidence(evidence, POST) == found
    assert all(part in POST for part in found[0].split(" [...] "))


def test_all_text_on_the_page_is_escaped_and_overlapping_evidence_is_marked_once():
    aspects = [{"aspect": NASTY, "evidence": NASTY, "reason": NASTY}]
    page = make_page([Section(NASTY, NASTY, {NASTY: 1}, [Shown("1", NASTY, f"before {NASTY}.", NASTY, aspects)])], 0)
    assert "<script" not in page and "<img" not in page and page.count("&lt;script&gt;") == 9
    assert re.search(r"before <mark>&lt;/p&gt;.*&gt;</mark>\.", page)
    aspects = [{"aspect": "a", "evidence": text, "reason": "r"} for text in ("one two", "two three", "three", "four")]
    page = make_page([Section("s", "q", {}, [Shown("i", "t", "one two three", "l", aspects)])], 0)
    assert '<p class="post"><mark>one two</mark><mark> three</mark></p>' in page


def test_evidence_is_found_for_the_eleven_aspects_printed_in_the_paper():
    """Figures 8 and 9. Counted by hand, the evidence of five is not a single span, because the model left out words."""
    records = {record["id"]: record for record in json.loads(SAMPLE.read_text())}
    kinds = {}
    for name in ("parenting_40127", "academia_60115"):
        kept, kinds[name] = keep_found(records[name]["rubric_aspects"], records[name]["narrative"])
        assert len(kept) == len(kinds[name])
        record = {**records[name], "rubric_aspects": kept, "profile": []}
        assert all(part in record["narrative"] for aspect in kept for part in aspect["evidence"].split(OMISSION))
        page = make_page([Section("s", "q", {}, [Shown("i", "t", record["narrative"], "l", kept)])], 0)
        assert unescape(page).count("</mark>") == sum(aspect["evidence"].count("[...]") + 1 for aspect in kept)
    assert [Counter(kind) for kind in kinds.values()] == [{"exact": 5, "shortened": 2}, {"exact": 1, "shortened": 3}]


def test_a_split_depends_only_on_author_and_seed():
    drawn = [split_of(f"a{i}", 0, 0.2, 0.1) for i in range(20_000)]
    shares = [drawn.count(split) / len(drawn) for split in SPLITS]
    assert shares == pytest.approx([0.7, 0.2, 0.1], abs=0.01)
    assert drawn != [split_of(f"a{i}", 1, 0.2, 0.1) for i in range(20_000)]
    assert split_of("a", 0, 0.2, 0.1) == split_of("a", 0, 0.2, 0.1)
    # A larger test share keeps every author in test.
    assert all(split_of(f"a{i}", 0, 0.2, 0.3) == "test" for i, split in enumerate(drawn) if split == "test")


NASTY = "</p><script>alert('x')</script> & \"quoted\" <img src=x onerror=alert(1)>"
