"""Labels, ratings and complete texts as models write them."""

import pytest

from utils.benchmarks.lamp.bare_text import parse_text
from utils.benchmarks.lamp.task import CITATION, MOVIE_TAG, RATING, TAGS


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1]", "[1]"),
        (" [2]\n", "[2]"),
        ("1", "[1]"),
        ("(2)", "[2]"),
        ("The answer is [2].", "[2]"),
        ("Reference 1.", "[1]"),
        ('[1]: "Streaming verification"', "[1]"),
        ("［２］", "[2]"),
        ("[1] or [2]", None),
        ("Neither.", None),
        ("12", None),
        ("1.5", None),
        ("[3]", None),
        ("", None),
    ],
)
def test_citations(text, value):
    assert CITATION.parse(text, False).value == value


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_is_read_as_itself(tag):
    assert (MOVIE_TAG.parse(tag, False).value, MOVIE_TAG.parse(tag, False).how) == (tag, "strict")
    spelled = MOVIE_TAG.parse(f'Tag: "{tag.upper()}".', False)
    assert (spelled.value, spelled.how) == (tag, "repaired")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("It is a dark  comedy!", "dark comedy"),
        ("Sci fi", "sci-fi"),
        ("thought provoking", "thought-provoking"),
        ("twist-ending", "twist ending"),
        ("comedy or romance", None),
        ("comedy and dark comedy", None),
        ("tragicomedy", None),
        ("reaction", None),
    ],
)
def test_tags(text, value):
    assert MOVIE_TAG.parse(text, False).value == value


@pytest.mark.parametrize(
    ("text", "cut", "value"),
    [
        ("4.0", False, "4"),
        ("４", False, "4"),
        ("4 or 5", False, None),
        ("14", False, None),
        ("4/5", False, "4"),
        ("Score: 4 out of 5", False, "4"),
        ("On a scale of 1 to 5 I say 2.", False, "2"),
        ("4, definitely 4", False, "4"),
        ("-4", False, None),
        ("0", False, None),
        ("", False, None),
        ("4", True, None),
        ("4 stars, beca", True, "4"),
    ],
)
def test_ratings(text, cut, value):
    assert RATING.parse(text, cut).value == value


def test_a_text_is_only_cleaned_at_its_ends():
    parsed = parse_text('\n "A title"\nand more\r\n', False)
    assert (parsed.value, parsed.how, parsed.truncated) == ('"A title"\nand more', "strict", False)
    assert parse_text("half \ud83d", True).value == "half"
    assert parse_text("half", True).truncated
    assert parse_text(" \n\0", False).value is None
