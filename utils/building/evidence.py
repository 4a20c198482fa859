"""Check that a model's quotations are in the post. No side effects."""

import re

OMISSION = " [...] "  # between the parts of a shortened quotation
_QUOTES = frozenset("'‘’‚‛′`´\"“”„‟″«»")
_ELLIPSIS = re.compile(r"[\[(]?(?:\.{3,}|\.(?:\s\.){2,}|…)[\])]?|[\[(]\.\.[\])]")


def find_evidence(evidence: str, post: str) -> tuple[str, str]:
    """Return the post's own words for a quotation, and how they were found.

    "exact": verbatim. "tolerant": ignoring white space and quotation marks. "shortened": the parts between the
    quotation's ellipses (..., […], [..], . . . and the like) are found tolerantly in the post, in this order; the
    post's words for the parts are joined by `OMISSION`. "nowhere": not found; the words are empty. Except for "exact",
    only whole words match: "in" is not found in "within".
    """
    evidence = evidence.strip()
    if evidence and evidence in post:
        return evidence, "exact"
    if whole := _find_in_order([evidence], post):
        return whole[0], "tolerant"
    parts = _find_in_order(_ELLIPSIS.split(evidence), post)
    return (OMISSION.join(parts), "shortened") if parts else ("", "nowhere")


def _find_in_order(parts: list[str], post: str) -> list[str]:
    """Return the post's words for each part that has a word; empty if a part is missing or out of order."""
    text, places = _simplify(post)
    quoted, begin = [], 0
    for part in (_simplify(part)[0].strip() for part in parts):
        if not re.search(r"\w", part):  # punctuation alone is in every post
            continue
        match = re.compile(rf"(?:\b|(?=\W)){re.escape(part)}(?:\b|(?<=\W))").search(text, begin)
        if match is None:
            return []
        begin = match.end()
        quoted.append(post[places[match.start()] : places[begin - 1] + 1])
    return quoted


def _simplify(text: str) -> tuple[str, list[int]]:
    """Return the text without quotation marks and repeated white space, and the original index of each character."""
    kept = [(" " if mark.isspace() else mark, place) for place, mark in enumerate(text) if mark not in _QUOTES]
    kept = [after for before, after in zip([("", 0), *kept], kept, strict=False) if (before[0], after[0]) != (" ", " ")]
    return "".join(mark for mark, _ in kept), [place for _, place in kept]


def keep_found(aspects: list[dict[str, str]], post: str) -> tuple[list[dict[str, str]], list[str]]:
    """Return the aspects with evidence in the post, in the post's words, and how each aspect's evidence was found."""
    quotations = [find_evidence(aspect["evidence"], post) for aspect in aspects]
    kept = [{**aspect, "evidence": text} for aspect, (text, _) in zip(aspects, quotations, strict=True) if text]
    return kept, [how for _, how in quotations]
