"""Is what a model quotes from a post really there? Pure."""

import re

_QUOTES = {"'": "'‘’‚‛′`´", '"': '"“”„‟″«»'}
_CLASSES = {mark: f"[{marks}]" for marks in _QUOTES.values() for mark in marks}
_ANY = "".join(_QUOTES.values())


def find_evidence(evidence: str, post: str) -> tuple[str, str]:
    """The post's own words for a quotation, and how they were found: "exact", "tolerant", or with no words "nowhere".

    Tolerated are other white space, other quotation marks of the same kind, and marks around the whole.
    """
    evidence = evidence.strip()
    if evidence and evidence in post:
        return evidence, "exact"
    for text in (evidence, evidence.strip(_ANY).strip()):
        if text and (found := re.search(_tolerant(text), post)):
            return found[0], "tolerant"
    return "", "nowhere"


def _tolerant(text: str) -> str:
    words = ["".join(_CLASSES.get(mark, re.escape(mark)) for mark in word) for word in text.split()]
    return r"\s+".join(words)


def keep_found(aspects: list[dict[str, str]], post: str) -> tuple[list[dict[str, str]], list[str]]:
    """The aspects whose evidence is in the post, with its words for it; and of all how theirs was found."""
    found = [find_evidence(aspect["evidence"], post) for aspect in aspects]
    kept = [{**aspect, "evidence": text} for aspect, (text, _) in zip(aspects, found, strict=True) if text]
    return kept, [how for _, how in found]
