"""Read, write, and match the plans of PlanPers, which are lists of aspect titles. Pure.

The model was asked for titles, one per line. Code fences, list marks ("- ", "1. ") and bold face are removed. A first
line that ends in a colon ("Here are the aspects:") is dropped as an introduction, unless another line of the same kind
(list item or not) also ends in a colon: then both are titles. A JSON array of texts is a plan too. A title that repeats
an earlier one (ignoring case) is left out, and so is a last title that max_tokens may have cut, unless it is the only
title.

A plan has one of two forms, both in the planner's target and in the generator's prompt. The paper's form (section 4)
has one title per line, and `lead_in` is None. With --planner_target reference, it has the form of the public code: a
lead-in, then a dash and a title per line. The generator's prompt then has the text exactly as the planner wrote it.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from utils.benchmarks.readers import Parsed, keep_commands, nothing, one_line, unescape, writable

# Constrained decoding allows at most 10 lines, so that every model stops. A line has 3 to 120 characters, and does not
# begin with white space or punctuation.
PLAN_LINE = r"[^\s!-/:-@\[-`{-~][^\n]{2,119}"
PLAN_PATTERN = rf"{PLAN_LINE}(\n{PLAN_LINE}){{0,9}}"

_LIST_MARK = re.compile(r"(?:[-*+•–]|\(?\d{1,2}[.):])(?:\s++|\Z)|[#>]++\s*+")
_FENCE = re.compile(r"```(?:json|text|txt|plaintext|markdown|md)?(?=\s|\Z)")
_ARRAY = re.compile(r"\[\s*+(?=\")")
_ARRAY_TEXT = re.compile(r"\"((?:[^\"\\]|\\.)*+)\"\s*+(?:(,)\s*+)?", re.DOTALL)
WORDS_THRESHOLD = 0.6

# Words that do not distinguish titles, including "user", which many titles have.
_WORD_LIST = """
    a an and are as at be by can do for from how in into is it its of on or s that the their them they this to user
    users was what when where which who why with without your
"""
_FUNCTION_WORDS = frozenset(_WORD_LIST.split())


def parse_plan(text: str, cut: bool = False) -> Parsed:
    """Read the aspect titles of a plan, in the text's order; the value is a list that is not empty, or None.

    cut: the generation ended at max_tokens, so the last title may be incomplete.
    """
    body = text.removeprefix("\ufeff").strip()
    if (array := _ARRAY.search(body)) is not None:
        lines = _array_texts(body, array.end())
        as_asked = array.start() == 0 and body.endswith("]")
        last_is_whole = True  # a title that was cut has no closing quote, so it is not in `lines`
    else:
        lines = body.splitlines()
        is_item = {  # number of a line that ends in a colon -> whether the line is a list item
            number: _LIST_MARK.match(line.strip().replace("**", "")) is not None
            for number, line in enumerate(lines)
            if line.rstrip("*_ ").endswith(":") and _plan_title(line)
        }
        as_asked = 0 not in is_item or list(is_item.values()).count(is_item[0]) > 1
        lines = lines if as_asked else lines[1:]
        last_is_whole = not cut or text.endswith("\n")
    titles: dict[str, str] = {}
    for number, line in enumerate(lines):
        title = _plan_title(line)
        if title and (last_is_whole or not titles or number < len(lines) - 1):
            titles.setdefault(title.casefold(), title)
    if not titles:
        return nothing("no aspect in the text")
    how = "strict" if as_asked and lines == list(titles.values()) else "repaired"
    return Parsed(list(titles.values()), how, None, cut)


def _array_texts(text: str, pos: int) -> list[str]:
    """Return the complete texts of a JSON array whose first text starts at `pos`."""
    texts = []
    while (match := _ARRAY_TEXT.match(text, pos)) is not None:
        texts.append(unescape(keep_commands(match[1])))
        pos = match.end() if match[2] else len(text)
    return texts


def _plan_title(line: str) -> str:
    """Return the title in a line, without list marks, fences and bold face; empty if the line has no word."""
    line = " ".join(writable(line).replace("**", "").split())
    line = _FENCE.sub("", line).replace("```", "").strip()
    start = 0
    while (mark := _LIST_MARK.match(line, start)) is not None:
        start = mark.end()
    title = line[start:].strip()
    return title if re.search(r"[^\W_]", title) else ""


def plan_text(aspects: Sequence[str], lead_in: str | None = None) -> str:
    """Return the text of a plan: in the paper's form, or with a lead-in in the public code's form."""
    if lead_in is None:
        return "\n".join(aspects)
    return lead_in + "".join(f"- {aspect}\n" for aspect in aspects)


def gold_text(titles: Sequence[str], lead_in: str | None = None) -> str:
    """Return the text of a gold plan, as the planner learns to write it.

    In the paper's form, each title is put on one line; in the public code's form, titles stay unchanged.
    """
    return plan_text([one_line(title) for title in titles] if lead_in is None else titles, lead_in)


def gold_plan(titles: Sequence[str], lead_in: str | None) -> dict[str, Any]:
    """Return a gold plan as a piece of the plans file; its value is None if there are no titles."""
    return given_plan(list(titles), "the rubric has no aspects", lead_in, gold_text(titles, lead_in))


def target_settings(lead_in: str | None) -> dict[str, Any]:
    """Return the settings that record --planner_target and the lead-in."""
    return {"planner_target": "paper" if lead_in is None else "reference", "lead_in": lead_in}


def plans_by_key(plans: dict[str, list[dict[str, Any]]], lead_in: str | None) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the content of a plans file as pieces, by (question id, number of the plan)."""
    numbered = {(question_id, i): plan for question_id, samples in plans.items() for i, plan in enumerate(samples)}
    return {
        key: given_plan(plan["aspects"] or [], plan.get("reason") or "an empty plan", lead_in, plan.get("raw"))
        for key, plan in numbered.items()
    }


def given_plan(titles: list[str], reason: str, lead_in: str | None, raw: Any) -> dict[str, Any]:
    """Return a plan as a piece; without titles, its value is None with this `reason`.

    With a lead-in, the piece also has the plan's text: `raw`, or if that is None, the lead-in and the titles.
    """
    if not titles:
        return {"value": None, "reason": reason}
    titles = [one_line(title) for title in titles]
    if lead_in is None:
        return {"value": titles}
    return {"value": titles, "raw": plan_text(titles, lead_in) if raw is None else raw}


def plan_parser(lead_in: str | None) -> Callable[[str, bool], Parsed]:
    """Return the parser of plans; with a lead-in, it removes the lead-in and the dashes before `parse_plan`."""
    if lead_in is None:
        return parse_plan

    def parse(text: str, cut: bool = False) -> Parsed:
        lines = text.lstrip().removeprefix(lead_in.strip())
        return parse_plan(re.sub(r"^- ", "", lines, flags=re.MULTILINE), cut)

    return parse


def plan_pattern(lead_in: str | None) -> str:
    """Return the regular expression that constrained decoding follows for a plan."""
    if lead_in is None:
        return PLAN_PATTERN
    escaped = re.sub(r"[\\^$.|?*+()\[\]{}]", r"\\\g<0>", lead_in).replace("\n", r"\n")
    return rf"{escaped}(- {PLAN_LINE}\n){{1,10}}"


def word_overlap(a: str, b: str) -> float:
    """Return the Dice coefficient of two titles' sets of content words, 2 |A & B| / (|A| + |B|), from 0 to 1."""
    words_a, words_b = _content_words(a), _content_words(b)
    return 2 * len(words_a & words_b) / (len(words_a) + len(words_b))


def aspect_recall(gold: Sequence[str], planned: Sequence[str]) -> float:
    """Return the share of gold titles that match a planned title, from 0 to 1; 0 if there are no gold titles.

    Titles match if their `word_overlap` is at least `WORDS_THRESHOLD`; a planned title may match several gold titles.
    """
    if not gold:
        return 0.0
    return sum(any(word_overlap(title, other) >= WORDS_THRESHOLD for other in planned) for title in gold) / len(gold)


def _content_words(title: str) -> set[str]:
    """Return a title's content words; if it has none, its function words; if it has no words, the title itself."""
    words = set(re.findall(r"\w+", title.casefold()))
    return words - _FUNCTION_WORDS or words or {title}
