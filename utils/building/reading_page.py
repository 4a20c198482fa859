"""A static HTML page to read a sample of each step's records, as the paper's authors did; all text is escaped."""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from utils.building.evidence import OMISSION

NUM_DRAWN = 30  # records per step
TEMPLATE = Path(__file__).with_name("reading_page.html")


class Shown(NamedTuple):
    """A record on the page."""

    id: str
    title: str
    body: str
    licence: str
    aspects: Sequence[Mapping[str, str]] = ()


class Section(NamedTuple):
    """A step, with its counts and the records that it kept."""

    title: str
    question: str  # what the reader decides about each record
    counts: Mapping[str, int]
    kept: Sequence[Shown]


def make_page(sections: Sequence[Section], seed: int) -> str:
    """Return the page, with a seeded sample of each step's records."""
    from jinja2 import Environment

    rendered = []
    for section in sections:
        places = range(len(section.kept))
        drawn = random.Random(f"{seed}:{section.title}").sample(places, min(NUM_DRAWN, len(places)))
        rendered.append({**section._asdict(), "drawn": [section.kept[place] for place in sorted(drawn)]})
    page = Environment(autoescape=True, keep_trailing_newline=True).from_string(TEMPLATE.read_text(encoding="utf-8"))
    return page.render(sections=rendered, marked=marked)


def marked(record: Shown) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a record's text, each with whether an aspect's evidence quotes it; quotations may overlap."""
    end = 0
    for begin, stop in sorted(span for aspect in record.aspects for span in _spans(record.body, aspect["evidence"])):
        begin = max(begin, end)
        if stop > begin:
            yield record.body[end:begin], False
            yield record.body[begin:stop], True
            end = stop
    yield record.body[end:], False


def _spans(text: str, quoted: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of a quotation's first occurrence in the text, or of its parts' in order."""
    end = 0
    for part in [quoted] if quoted in text else quoted.split(OMISSION):
        begin = text.find(part, end)
        if begin != -1:
            end = begin + len(part)
            yield begin, end
