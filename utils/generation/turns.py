"""Long conversations as chat templates take them, and their token ids, of which what is met again is remembered."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from prompts import Messages
from utils.cli import UserError

MOST_REMEMBERED = 16_000_000  # characters: a few histories of a million tokens


@dataclass(frozen=True)
class Accepts:
    """What a chat template takes without an error, and without dropping or moving text."""

    system: bool  # a system message at the beginning
    later_system: bool  # one behind others
    repeats: bool  # two messages in a row of one role
    assistant_first: bool  # an assistant's ahead of all user's


def find_accepts(render: Callable[[Messages], str]) -> Accepts:
    """What a template takes, by trying; where it does not, `render` raises what a template may: anything.

    A UserError of `render` ends the run.
    """

    def takes(*roles: str) -> bool:
        messages = [{"role": role, "content": f"c0ffee{number} text"} for number, role in enumerate(roles)]
        try:
            text = render(messages)
        except UserError:
            raise
        except Exception:
            return False
        places = [text.find(message["content"]) for message in messages]
        # Where a single question has its system message is the template's affair.
        return -1 not in places and (len(roles) == 2 or places == sorted(places))

    return Accepts(
        takes("system", "user"),
        takes("system", "user", "assistant", "system", "user"),  # some have the last system message alone, first
        takes("user", "user", "assistant", "assistant", "user"),
        takes("assistant", "user"),
    )


def fold(messages: Messages, accepts: Accepts) -> Messages:
    """Messages as a template takes them, each text in its order.

    A system message that it refuses is put ahead of the next user's text, or stands for a user's where none follows at
    once; an assistant's ahead of all users' stands for a user's too; neighbours of one role become one message.
    """
    folded: Messages = []
    ahead: list[str] = []
    for number, message in enumerate(messages):
        role, content = message["role"], message["content"]
        if role == "system" and not (accepts.system if number == 0 else accepts.later_system):
            ahead.append(content)
            continue
        if role == "user":
            folded.append({"role": role, "content": "\n\n".join([*ahead, content])})
        else:
            folded += [{"role": "user", "content": "\n\n".join(ahead)}] if ahead else []
            folded.append({"role": role, "content": content})
        ahead = []
    if not accepts.assistant_first:
        first = next((message for message in folded if message["role"] != "system"), None)
        if first is not None and first["role"] == "assistant":
            folded[folded.index(first)] = {**first, "role": "user"}
    return folded if accepts.repeats else merge_neighbours(folded)


def merge_neighbours(messages: Messages) -> Messages:
    merged: Messages = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1] = {**message, "content": f"{merged[-1]['content']}\n\n{message['content']}"}
        else:
            merged.append(message)
    return merged


class Remembered:
    """What a function of texts gives for each, found once while not too many others come between."""

    def __init__(self, find: Callable[[list[str]], Sequence[Any]]):
        self._find = find  # of several texts at a time
        self._found: dict[str, Any] = {}
        self._characters = 0

    def of(self, texts: Sequence[str]) -> list[Any]:
        found = self._found
        if new := [text for text in dict.fromkeys(texts) if text not in found]:
            if self._characters > MOST_REMEMBERED:
                found = self._found = {text: found[text] for text in texts if text in found}
                self._characters = sum(map(len, found))
            found.update(zip(new, self._find(new), strict=True))
            self._characters += sum(map(len, new))
        return [found[text] for text in texts]


def encode_lines(text: str, ids_of: Remembered) -> array:
    """Token ids of a text, for a tokenizer that reads what is behind a single line break as a text of its own."""
    whole = array("i")
    for ids in ids_of.of(split_at_lines(text)):
        whole.extend(ids)
    return whole


def split_at_lines(text: str) -> list[str]:
    """The pieces of a text between its single line breaks that have no space beside them, each up to such a one."""
    pieces, begin = [], []
    before, *others = text.split("\n")
    begin.append(before)
    for line in others:
        if before and line and not (before[-1].isspace() or line[0].isspace()):
            pieces.append("\n".join([*begin, ""]))
            begin = []
        begin.append(line)
        before = line
    return [*pieces, "\n".join(begin)]
