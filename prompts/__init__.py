"""Prompts: one text file per prompt, with a `[system]` and a `[user]` part; README.md says where they come from.

Each benchmark has a folder of prompts, and a prompt's name includes the folder: `lampqa/rag`. The `{names}` in the
shipped file are its placeholders, each exactly once; a user's own file must have the same placeholders.

If the user's history is a conversation, a line `[history]` before the `[user]` part is replaced by the history's turns;
the `[system]` part is then optional, and another `[system]` part may follow the `[user]` part.

A paragraph that begins with `[after "title"]` is inserted into the other text after the first "title", or at the end
if the text has no "title": LaMP puts the titles of a user's papers there.

A file whose last line is `[end]` is used exactly as it is: nothing is stripped, no paragraph is left out, and only the
prompt's own placeholders are replaced. Values are inserted unchanged, whatever they contain.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from utils.base.errors import UserError
from utils.base.json_files import read_text

Messages = list[dict[str, str]]

FOLDER = Path(__file__).parent

_NAME = re.compile(r"\{([A-Za-z_]\w*)\}")
_INSERTED = re.compile(r'\[after "([^"\n]+)"\](.*)', re.DOTALL)
_TURNS_PARTS = re.compile(r"(?:\[system\]\n(.*)\n)?\[history\]\n\[user\]\n(.*?)(?:\n\[system\]\n(.*))?", re.DOTALL)
_PARTS = re.compile(r"\[system\]\n(.*)\n\[user\]\n(.*)", re.DOTALL)
_PART = re.compile(r"^\[(system|user|assistant)\](?:\n|\Z)", re.MULTILINE)  # of a user's own text
_EXACT_PARTS = re.compile(r"\[system\]\n(.*)\n\[user\]\n(.*?)(?:\n\[assistant\]\n(.*))?\n\[end\]", re.DOTALL)


@dataclass(frozen=True)
class History:
    """Turns of earlier conversations for a prompt, with the items that may be left out.

    Attributes:
        messages: all turns, in the prompt's order.
        fixed: indices of the messages that are never left out.
        items: indices of each item's messages, which are left out together; the first item is kept longest.
        ids: the items' ids, best first, if a search has found them.
        places: the place of each message in the whole history, if this is a part of one.
    """

    messages: Messages
    fixed: Sequence[int]
    items: Sequence[Sequence[int]]
    ids: Sequence[str | int] = ()
    places: Sequence[int] = ()

    def first(self, number: int) -> Messages:
        """Return the turns of the first `number` items, and the fixed turns, in the prompt's order."""
        kept = sorted([*self.fixed, *(place for item in self.items[:number] for place in item)])
        return [self.messages[place] for place in kept]


@dataclass(frozen=True)
class Prompt:
    """A prompt's parts, and the SHA-256 of its file."""

    name: str
    system: str | None  # None if the prompt begins with the history's turns
    user: str
    digest: str
    placeholders: frozenset[str]  # the names of its placeholders
    exact: bool = False  # the file ends with `[end]`, so paragraphs with empty placeholders stay
    lead_in: str | None = None  # the beginning of the planner's target in the public code, from the `[assistant]` part
    # Further messages: roles and texts. If the last message is the assistant's, the model continues it.
    further: tuple[tuple[str, str], ...] = ()

    def messages(self, *, turns: Messages = (), **values: str) -> Messages:
        """Return the chat messages with all placeholders replaced in one pass, and `turns` before the user's message.

        A paragraph whose placeholders are all empty, such as the one with past posts if there are none, is left out
        with its heading, except in an exact prompt. A user's or assistant's part without text is left out, except the
        last user's part, which is what the model answers; the parts around it, if of one role, are joined.
        """
        assert values.keys() == self.placeholders, f"{self.name} takes {sorted(self.placeholders)}"

        def substitute(text: str) -> str:
            return _NAME.sub(lambda match: values.get(match[1], match[0]), text)

        def fill(part: str) -> str:
            if self.exact:
                return substitute(part)
            paragraphs = [(text, _NAME.findall(text)) for text in part.split("\n\n")]
            kept = [text for text, names in paragraphs if not names or any(values[name] for name in names)]
            filled = substitute("\n\n".join(text for text in kept if not _INSERTED.fullmatch(text)))
            for anchor, text in (inserted.groups() for inserted in map(_INSERTED.fullmatch, kept) if inserted):
                before, anchor, after = filled.partition(anchor)
                filled = before + anchor + substitute(text) + after
            return filled

        system = [] if self.system is None else [{"role": "system", "content": fill(self.system)}]
        parts = [("user", self.user), *self.further]
        last_user = max(number for number, (role, _) in enumerate(parts) if role == "user")
        messages, is_left_out = [], False  # is_left_out: the part before
        for number, (role, text) in enumerate(parts):
            content, was_left_out = fill(text), is_left_out
            is_left_out = not content.strip() and number != last_user
            if was_left_out and not is_left_out and messages and messages[-1]["role"] == role:
                messages[-1]["content"] += f"\n\n{content}"
            elif not is_left_out:
                messages.append({"role": role, "content": content})
        return [*system, *turns, *messages]


def digests(prompts: Iterable[Prompt]) -> dict[str, str]:
    """Return the prompts' hashes by name, for the settings of an output."""
    return {prompt.name: prompt.digest for prompt in prompts}


def load_prompt(name: str, prompts_dir: str | Path | None = None) -> Prompt:
    """Read a prompt from `prompts_dir` if that folder has a file of this name, otherwise the shipped prompt.

    Args:
        name: path of the shipped file without .txt, absolute or relative to this folder.

    Raises:
        UserError: `prompts_dir` is missing, has no prompts, or has a .txt file that is not named like a prompt; or the
            prompt's file lacks a part or a placeholder, or has an unknown placeholder.
    """
    path = FOLDER / f"{name}.txt"
    if prompts_dir is not None:
        _check_folder(Path(prompts_dir), path.parent)
        users_file = Path(prompts_dir) / path.name
        if os.path.lexists(users_file):  # a broken link too, so that it is reported
            path = users_file
    return parse_prompt(name, read_text(path), str(path))


def parse_prompt(name: str, text: str, where: str) -> Prompt:
    """Return a prompt from its file's text; UserError, beginning with `where`, as in `load_prompt`."""
    placeholders = _placeholders(name)
    ending = text.rstrip("\n")
    has_turns = _has_turns(name)
    exact = None if has_turns else _EXACT_PARTS.fullmatch(ending)
    parts = _TURNS_PARTS.fullmatch(ending) if has_turns else exact or _PARTS.fullmatch(ending)
    target = exact and exact[3]
    if parts is None or (target is not None and Path(name).name != "planner"):
        begin = "an optional [system] line with its text, a [history] line" if has_turns else None
        begin = begin or "a [system] line with its text"
        raise UserError(f"{where}: must have {begin}, then a [user] line with its text")
    last = parts[3] if has_turns else None  # of a [system] part after the user's
    _check_placeholders(f"{parts[1] or ''}\n{parts[2]}\n{last or ''}", placeholders, where, exact is not None)
    if target is not None:
        _check_placeholders(target, {"plan"}, f"{where}: its [assistant] part", True)
        if not target.endswith("{plan}"):
            raise UserError(f"{where}: its [assistant] part must end with {{plan}}")
    lead_in = target and target.removesuffix("{plan}")
    digest = hashlib.sha256(text.encode()).hexdigest()
    further = (("system", last),) if last else ()
    return Prompt(Path(name).name, parts[1], parts[2], digest, placeholders, exact is not None, lead_in, further)


def own_prompt(text: str) -> Prompt:
    """Return a prompt from a user's text, in which all `{names}` are placeholders.

    A text may have parts: [system], then [user], then further [assistant] and [user] parts. A text that does not begin
    with such a line is all [user]. ValueError if parts are missing or in another order.
    """
    begin, *rest = _PART.split(text.strip("\n"))
    parts = list(zip(rest[::2], rest[1::2], strict=True)) if not begin else [("user", text.strip("\n"))]
    system = parts.pop(0)[1].removesuffix("\n") if parts[0][0] == "system" else None
    roles = [role for role, _ in parts]
    if roles[:1] != ["user"] or "system" in roles:
        raise ValueError("ask: a prompt has [system] (optional), then [user], then any [assistant] and [user] parts")
    (_, user), *further = [(role, part.removesuffix("\n")) for role, part in parts]
    digest, names = hashlib.sha256(text.encode()).hexdigest(), frozenset(_NAME.findall(text))
    return Prompt("own", system, user, digest, names, further=tuple(further))


@cache
def _has_turns(name: str) -> bool:
    """Return whether the shipped file of this name has a place for turns."""
    return _TURNS_PARTS.fullmatch(read_text(FOLDER / f"{name}.txt").rstrip("\n")) is not None


@cache
def _placeholders(name: str) -> frozenset[str]:
    """Return the placeholders of the shipped file of this name."""
    return frozenset(_NAME.findall(read_text(FOLDER / f"{name}.txt")))


def _check_placeholders(text: str, names: Set[str], where: str, exact: bool) -> None:
    in_text = [name for name in _NAME.findall(text) if not exact or name in names]
    if sorted(in_text) != sorted(names):
        wanted = ", ".join(f"{{{name}}}" for name in sorted(names))
        others = "" if exact else " and no other name in braces"
        raise UserError(f"{where}: must contain each of {wanted} exactly once{others}")


def choose_lead_in(planner_target: str, planner: Prompt | None) -> str | None:
    """Return the lead-in of plans for --planner_target; None for `paper`, whose plans are titles alone.

    UserError if the planner's prompt has no lead-in.
    """
    if planner_target == "paper":
        return None
    if planner.lead_in is None:
        raise UserError(
            "--planner_target reference: planner.txt has no [assistant] part with the lead-in of a plan\n"
            "  run `python utils/import_prompts.py --code_dir LaMP-QA --output_dir prompts_paper` (see its --help), "
            "then add --prompts_dir prompts_paper"
        )
    return planner.lead_in


def join_posts(texts: list[str]) -> str:
    """Return the profile block of a prompt: the posts, best first, separated by blank lines."""
    return "\n\n".join(texts)


def _check_folder(folder: Path, shipped: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"--prompts_dir {folder}: no such folder")
    known_names = {path.name for path in shipped.glob("*.txt")}
    names = {file.name for file in folder.glob("*.txt")}
    if not names or names - known_names:
        problem = f"{min(names - known_names)} is not the name of a prompt" if names else "has no prompts"
        raise UserError(f"--prompts_dir {folder}: {problem}; the names are {', '.join(sorted(known_names))}")
