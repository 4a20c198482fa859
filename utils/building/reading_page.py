"""The page for reading what each step kept, as the paper's authors did: static HTML, in which all text is escaped."""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from utils.building.evidence import OMISSION

NUM_DRAWN = 30  # records a step
TEMPLATE = Path(__file__).with_name("reading_page.html")


class Shown(NamedTuple):
    """A record as the page has it."""

    id: str
    title: str
    body: str
    licence: str
    aspects: Sequence[Mapping[str, str]] = ()


class Section(NamedTuple):
    """A step with its counts and the records it kept."""

    title: str
    question: str  # the question for the reader of each record
    counts: Mapping[str, int]
    kept: Sequence[Shown]


def make_page(sections: Sequence[Section], seed: int) -> str:
    """Return the page, with records of each step drawn by the seed."""
    from jinja2 import Environment

    shown = []
    for section in sections:
        places = range(len(section.kept))
        drawn = random.Random(f"{seed}:{section.title}").sample(places, min(NUM_DRAWN, len(places)))
        shown.append({**section._asdict(), "drawn": [section.kept[place] for place in sorted(drawn)]})
    page = Environment(autoescape=True, keep_trailing_newline=True).from_string(TEMPLATE.read_text(encoding="utf-8"))
    return page.render(sections=shown, marked=marked)


def marked(shown: Shown) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a record's text, and whether an aspect quotes them there first; quotations may overlap."""
    end = 0
    for begin, stop in sorted(span for aspect in shown.aspects for span in _spans(shown.body, aspect["evidence"])):
        begin = max(begin, end)
        if stop > begin:
            yield shown.body[end:begin], False
            yield shown.body[begin:stop], True
            end = stop
    yield shown.body[end:], False


def _spans(text: str, quoted: str) -> Iterator[tuple[int, int]]:
    """Return begin and end of a quote in the text: of the whole, or of its parts one after another."""
    end = 0
    for part in [quoted] if quoted in text else quoted.split(OMISSION):
        begin = text.find(part, end)
        if begin != -1:
            end = begin + len(part)
            yield begin, end
