"""The page for reading what each step kept, as the paper's authors did: static HTML, in which all text is escaped."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from utils.benchmarks.lampqa import OMISSION

NUM_DRAWN = 30  # records a step

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Records to read</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 0 auto; padding: 1rem; }
article { border-top: 1px solid gray; padding: .5rem 0 1rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; }
td { padding: 0 1rem 0 0; vertical-align: top; }
td:first-child { text-align: right; }
.post { white-space: pre-wrap; }
.quiet { color: gray; font-size: .85rem; }
</style>
</head>
<body>
<h1>Records to read</h1>
"""


@dataclass(frozen=True)
class Shown:
    """A record as the page has it."""

    id: str
    title: str
    body: str
    licence: str
    aspects: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True)
class Section:
    """A step: what it did with how many, and what it kept."""

    title: str
    question: str  # what a reader is to ask of each record
    counts: Mapping[str, int]
    kept: Sequence[Shown]


def draw(kept: Sequence[Shown], seed: int, step: str) -> list[Shown]:
    """The records of a step that are to be read, in the order of its file."""
    places = random.Random(f"{seed}:{step}").sample(range(len(kept)), min(NUM_DRAWN, len(kept)))
    return [kept[place] for place in sorted(places)]


def make_page(sections: Sequence[Section], seed: int) -> str:
    return _HEAD + "".join(_section(section, seed) for section in sections) + "</body>\n</html>\n"


def _section(section: Section, seed: int) -> str:
    rows = "".join(f"<tr><td>{count}</td><td>{escape(name)}</td></tr>\n" for name, count in section.counts.items())
    drawn = draw(section.kept, seed, section.title)
    articles = "".join(map(_article, drawn))
    head = f"<h2>{escape(section.title)}</h2>\n<table>\n{rows}</table>\n"
    task = f"<p>{len(drawn)} drawn of what is kept. {escape(section.question)}</p>\n"
    return f"<section>\n{head}{task}{articles}</section>\n"


def _article(shown: Shown) -> str:
    head = f"<h3>{escape(shown.title)}</h3>\n"
    post = f'<p class="post">{_marked(shown.body, [aspect["evidence"] for aspect in shown.aspects])}</p>\n'
    items = "".join(
        f"<li><b>{escape(aspect['aspect'])}</b>: {escape(aspect['reason'])}<br>“{escape(aspect['evidence'])}”</li>\n"
        for aspect in shown.aspects
    )
    aspects = f"<ol>\n{items}</ol>\n" if items else ""
    source = f'<p class="quiet">{escape(shown.id)}: {escape(shown.licence)}</p>\n'
    return f"<article>\n{head}{post}{aspects}{source}</article>\n"


def _marked(text: str, evidence: Sequence[str]) -> str:
    """The text with what is quoted from it marked, at its first occurrence; quotations may overlap."""
    spans = sorted(span for quoted in evidence for span in _spans(text, quoted))
    parts, end = [], 0
    for begin, stop in spans:
        begin = max(begin, end)
        if stop > begin:
            parts += [escape(text[end:begin]), f"<mark>{escape(text[begin:stop])}</mark>"]
            end = stop
    return "".join([*parts, escape(text[end:])])


def _spans(text: str, quoted: str) -> Iterator[tuple[int, int]]:
    """Begin and end in the text of what is quoted: the whole, or its parts one behind the other."""
    end = 0
    for part in [quoted] if quoted in text else quoted.split(OMISSION):
        begin = text.find(part, end)
        if begin != -1:
            end = begin + len(part)
            yield begin, end
