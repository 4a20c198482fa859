"""Separate a model's thoughts from its answer by the marks in the text. Pure.

Marks are <think> and </think>, [THINK] and [/THINK] (Mistral), and the channels of gpt-oss, whose final channel is the
answer. If a server drops special tokens, the channels look like `analysis...assistantfinal...`.

If a thought does not end, there is no answer: text before the thought does not count. In a text that was not cut, an
opening mark counts only at the beginning of a line, because an answer may mention the mark. In a text that is one JSON
object, marks are part of the content.
"""

import json
import re
from dataclasses import dataclass

OPENING = re.compile(r"<think>|\[THINK\]")
CLOSING = re.compile(r"</think>|\[/THINK\]")
_OPENS_LINE = re.compile(rf"^[^\S\n]*+(?:{OPENING.pattern})", re.MULTILINE)
_CHANNEL = re.compile(r"<\|channel\|>(\w++)[^<]*+(?:<\|constrain\|>[^<]*+)?<\|message\|>")
_ENDS_MESSAGE = re.compile(r"<\|(?:end|return|call)\|>(?:<\|start\|>assistant)?")
_DROPPED_ANALYSIS = re.compile(r"\s*+analysis(?![a-z])")
_DROPPED_FINAL = "assistantfinal"
_ANALYSIS_ALONE = re.compile(r"\s*+analysis(?![\w\s:,.;-])|\s*+analysis[A-Z0-9]")  # the channel's name, not the word
_FENCE = re.compile(r"\A\s*+```(?:json)?|```\s*+\Z", re.IGNORECASE)
THINK_LONGER = "a higher --max_tokens (for plans --max_tokens_plan) and --max_model_len"
UNFINISHED = f"unfinished thought: try {THINK_LONGER}"  # a piece's reason, if its thoughts do not end
UNFINISHED_COUNT = "unfinished_thoughts"  # a manifest's count of pieces with that reason


@dataclass(frozen=True)
class Split:
    """A text split into answer and thoughts."""

    answer: str  # unchanged; empty if the thoughts do not end
    reasoning: str = ""  # the thoughts, without marks and outer white space; empty if there are none
    unfinished: bool = False  # whether the text ends inside a thought


def split_thoughts(text: str, cut: bool = False, opened: bool | None = None) -> Split:
    """Split a text into answer and thoughts.

    Args:
        cut: the text ended at max_tokens.
        opened: whether the prompt ended inside a thought, which the text continues. If this is unknown (None), a
            closing mark ends a thought even without an opening mark.
    """
    if not opened and _is_object(text):
        return Split(text)
    if not opened and "<|channel|>" in text:
        return _split_channels(text)
    if opened is None and (begin := _DROPPED_ANALYSIS.match(text)) is not None:
        reasoning, final, answer = text[begin.end() :].rpartition(_DROPPED_FINAL)
        if final:
            return Split(answer, reasoning.strip())
        if cut or _ANALYSIS_ALONE.match(text) is not None:
            return Split("", answer.strip(), unfinished=True)
    closings = list(CLOSING.finditer(text))
    if closings and opened is False and OPENING.search(text, 0, closings[-1].start()) is None:
        closings = []
    behind = text[closings[-1].end() :] if closings else text
    reopened = (OPENING if cut else _OPENS_LINE).search(behind) is not None and not _is_object(behind)
    if reopened or (opened and not closings):
        return Split("", _without_marks(text), unfinished=True)
    return Split(behind, _without_marks(text[: closings[-1].start()]) if closings else "")


def describe_unfinished(count: int) -> str:
    """Return the part of a summary line about unfinished thoughts; empty if there are none."""
    return f"; {count} unfinished thought{'s' if count > 1 else ''}: try {THINK_LONGER}" if count else ""


def _split_channels(text: str) -> Split:
    """Split a text with gpt-oss's channels. The last channel is the answer if it is called "final"."""
    _, *parts = _CHANNEL.split(text)  # channel names and messages, alternating
    names, messages = parts[::2], [_ENDS_MESSAGE.split(message)[0] for message in parts[1::2]]
    reasoning = "\n".join(message.strip() for name, message in zip(names, messages, strict=True) if name != "final")
    if names and names[-1] == "final":
        return Split(messages[-1], reasoning)
    return Split("", reasoning, unfinished=True)


def _without_marks(text: str) -> str:
    return CLOSING.sub("", OPENING.sub("", text)).strip()


def _is_object(text: str) -> bool:
    """Return whether the text is one JSON object, in a fence or not; marks inside it are part of its content."""
    body = _FENCE.sub("", text).strip()
    if not (body.startswith("{") and body.endswith("}")):
        return False
    try:
        json.loads(body, strict=False)
    except (ValueError, RecursionError):
        return False
    return True
