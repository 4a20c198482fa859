"""Evidence and where it stands, splits, and the page to read."""

import re

import pytest

from utils.building.evidence import find_evidence, keep_found
from utils.building.reading_page import NUM_DRAWN, Section, Shown, make_page
from utils.building.splitting import SPLITS, split_of

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
        ("own a car ... Two weeks", ("", "nowhere")),
        ("OWN A CAR", ("", "nowhere")),
        ("5.3", ("", "nowhere")),  # no regular expression
        ('don"t', ("", "nowhere")),
        ("", ("", "nowhere")),
        ("''", ("", "nowhere")),
        (" \n", ("", "nowhere")),
    ],
)
def test_evidence_is_the_posts_own_words(evidence, found):
    assert find_evidence(evidence, POST) == found
    assert found[0] in POST


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
