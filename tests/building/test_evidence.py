"""Evidence and where it stands, splits, and the page to read."""

import json
import re
from collections import Counter
from html import unescape
from pathlib import Path

import pytest

from utils.benchmarks.lampqa import built_faults
from utils.building.evidence import find_evidence, keep_found
from utils.building.reading_page import NUM_DRAWN, Section, Shown, make_page
from utils.building.splitting import SPLITS, split_of

SAMPLE = Path(__file__).parents[1] / "data" / "mini_lampqa" / "test.json"
POST = "I don’t own a car.\n\n“Two  weeks” is all I have (or less); it's 5*3 [cm]."


@pytest.mark.parametrize(
    ("evidence", "found"),
    [
        ("I don’t own a car.", ("I don’t own a car.", "exact")),
        ("  own a car ", ("own a car", "exact")),
        ('I don\'t own a car. "Two weeks" is', ("I don’t own a car.\n\n“Two  weeks” is", "tolerant")),
        ('"is all I have"', ("is all I have", "tolerant")),
        ("‘it’s 5*3 [cm]’", ("it's 5*3 [cm]", "tolerant")),
        ("own a\u00a0car", ("own a car", "tolerant")),
        ("own\n\n a  car", ("own a car", "tolerant")),
        ("I do not own a car", ("", "nowhere")),
        ("own a car ... Two weeks", ("own a car [...] Two  weeks", "shortened")),
        ("…own a car[...]it's 5*3 (...)", ("own a car [...] it's 5*3", "shortened")),
        ("...'own  a car.'....", ("own a car.", "shortened")),
        ("Two weeks ... own a car", ("", "nowhere")),  # the other way round
        ("own a car ... three weeks", ("", "nowhere")),
        ("is all ... all I have", ("", "nowhere")),  # a word is not there twice
        ("own a car .. Two weeks", ("", "nowhere")),
        ("own a car [..] Two weeks", ("own a car [...] Two  weeks", "shortened")),
        ("own a car. . . . Two weeks (..) [cm]", ("own a car [...] Two  weeks [...] [cm]", "shortened")),
        ("own ... is ... or", ("own [...] is [...] or", "shortened")),
        ("a ... all ... I h", ("", "nowhere")),  # the beginning of a word
        ("ow ... ess", ("", "nowhere")),
        ("nothing ... .", ("", "nowhere")),
        ("... [...] …", ("", "nowhere")),
        ("dont", ("don’t", "tolerant")),
        ('don"t', ("don’t", "tolerant")),
        ("OWN A CAR", ("", "nowhere")),
        ("5.3", ("", "nowhere")),  # no regular expression
        ("", ("", "nowhere")),
        ("''", ("", "nowhere")),
        (" \n", ("", "nowhere")),
    ],
)
def test_evidence_is_the_posts_own_words(evidence, found):
    assert find_evidence(evidence, POST) == found
    assert all(part in POST for part in found[0].split(" [...] "))


def test_an_ellipsis_of_the_post_itself_is_exact():
    assert find_evidence("a ... b", "say a ... b") == ("a ... b", "exact")


def test_the_eleven_aspects_that_the_paper_prints_have_evidence():
    """Figures 8 and 9: counted by hand, five are no span of the post, for the model left out some of it."""
    records = {record["id"]: record for record in json.loads(SAMPLE.read_text())}
    hows = {}
    for name in ("parenting_40127", "academia_60115"):
        kept, hows[name] = keep_found(records[name]["rubric_aspects"], records[name]["narrative"])
        assert len(kept) == len(hows[name])
        record = {**records[name], "rubric_aspects": kept, "profile": []}
        assert [*built_faults(record)] == []
        page = make_page([Section("s", "q", {}, [Shown("i", "t", record["narrative"], "l", kept)])], 0)
        assert unescape(page).count("</mark>") == sum(aspect["evidence"].count("[...]") + 1 for aspect in kept)
    assert [Counter(how) for how in hows.values()] == [{"exact": 5, "shortened": 2}, {"exact": 1, "shortened": 3}]


def test_evidence_whose_part_is_not_in_the_post_is_a_fault():
    record = {"narrative": "a b c", "profile": [], "rubric_aspects": [{"evidence": "a [...] d"}]}
    assert [*built_faults(record)] == ["evidence that its post does not hold: 'a [...] d'"]


def test_aspects_keep_what_was_found():
    aspects = [{"aspect": "a", "evidence": "don't", "reason": "r"}, {"aspect": "b", "evidence": "x y", "reason": ""}]
    assert keep_found(aspects, POST) == ([{**aspects[0], "evidence": "don’t"}], ["tolerant", "nowhere"])


def test_a_split_hangs_on_author_and_seed_alone():
    drawn = [split_of(f"a{i}", 0, 0.2, 0.1) for i in range(20_000)]
    shares = [drawn.count(split) / len(drawn) for split in SPLITS]
    assert shares == pytest.approx([0.7, 0.2, 0.1], abs=0.01)
    assert drawn != [split_of(f"a{i}", 1, 0.2, 0.1) for i in range(20_000)]
    assert split_of("a", 0, 0.2, 0.1) == split_of("a", 0, 0.2, 0.1)
    # More for test takes nobody out of it.
    assert all(split_of(f"a{i}", 0, 0.2, 0.3) == "test" for i, split in enumerate(drawn) if split == "test")


NASTY = "</p><script>alert('x')</script> & \"quoted\" <img src=x onerror=alert(1)>"


def test_all_text_of_a_page_is_escaped():
    shown = Shown(
        "law_1", NASTY, f"before {NASTY} after", NASTY, [{"aspect": NASTY, "evidence": NASTY, "reason": NASTY}]
    )
    page = make_page([Section(NASTY, NASTY, {NASTY: 1}, [shown])], 0)
    assert "<script" not in page and "<img" not in page and page.count("&lt;script&gt;") == 9
    assert re.search(r"before <mark>&lt;/p&gt;.*&gt;</mark> after", page)


def test_overlapping_evidence_is_marked_once():
    aspects = [{"aspect": "a", "evidence": text, "reason": "r"} for text in ("one two", "two three", "three", "four")]
    page = make_page([Section("s", "q", {}, [Shown("i", "t", "one two three", "l", aspects)])], 0)
    assert '<p class="post"><mark>one two</mark><mark> three</mark></p>' in page


def test_thirty_are_drawn_by_the_seed():
    section = Section("s", "q", {}, [Shown(str(i), f"t{i}", "b", "l") for i in range(100)])
    titles = [re.findall(r"<h3>(t\d+)</h3>", make_page([section], seed)) for seed in (0, 0, 1)]
    assert titles[0] == titles[1] != titles[2] and len({*titles[0]}) == NUM_DRAWN
    assert titles[0] == sorted(titles[0], key=lambda title: int(title[1:]))
