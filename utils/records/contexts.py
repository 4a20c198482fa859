"""Contexts: long histories, a line each of a file beside a dataset, that the profiles of many questions refer to.

A line is `{context id: [{"role", "content"}, ...]}`. A profile that refers to one is `{"contexts": the file, from the
dataset's folder, "sha256": its hash, "context": the id, "end": the number of messages before the question}`, of a
ranked dataset also `{"unit": "message" or "session", "order": the numbers of the items, best first}`. Read, it is a
sequence of items like any other profile, with messages that are read from the file when needed. A system
message begins a session; these messages, with the persona card, are not items.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from prompts import Messages
from utils.benchmarks.task import Item, Record
from utils.cli import UserError
from utils.cli.errors import quote
from utils.files.json_files import read_lines
from utils.files.writing import open_whole

UNITS = ("message", "session")
CARD = "system"  # the role of the messages that open a session
AT_HAND = 4  # contexts in memory: questions of one stand next to each other


class _Message(TypedDict):
    role: Literal["system", "user", "assistant"]
    content: str


_Messages = Annotated[list[_Message], msgspec.Meta(min_length=1)]


class ContextsFile:
    """A file of contexts in memory; each is decoded when needed, and a few stay decoded.

    Attributes:
        sha256: of the file, in hex.
    """

    def __init__(self, path: Path):
        """Read the file; UserError if it does not exist, or a line is not a context."""
        self.path, digest = path, hashlib.sha256()
        self._lines: dict[str, tuple[str, msgspec.Raw]] = {}  # by id where it stands, and its messages
        # The messages of a context, and of each the number of its session; UserError where they are none.
        self.read = lru_cache(AT_HAND)(self._read)
        if not path.is_file():
            raise UserError(f"{path}: no such file; it holds the histories of the dataset beside it, copy it there too")
        with path.open("rb") as file:
            for number, line in enumerate(read_lines(file), 1):
                digest.update(line)
                if not line.strip():
                    continue
                for context_id, messages in _decode(line, dict[str, msgspec.Raw], f"{path}: line {number}").items():
                    if context_id in self._lines:
                        raise UserError(f"{path}: line {number}: id {quote(context_id)} is an earlier line's too")
                    self._lines[context_id] = f"{path}: line {number}", messages
        self.sha256 = digest.hexdigest()

    def __contains__(self, context_id: str) -> bool:
        return context_id in self._lines

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def _read(self, context_id: str) -> tuple[Messages, list[int]]:
        where, line = self._lines[context_id]
        messages = _decode(line, _Messages, where)
        return messages, _sessions_of(messages)


class Profile(Sequence):
    """The items of a history that ends before a question: messages or sessions, each `{id, text, session, places}`.

    `places` are the numbers, in `messages`, of those that the item holds; a message has its `role` too.
    """

    def __init__(self, file: ContextsFile, reference: dict[str, Any], where: str):
        """`where` is what an error begins with."""
        self.reference, self._file, self._where = reference, file, where

    @property
    def messages(self) -> Messages:
        """Return all messages before the question; UserError if the context has fewer."""
        found, end = self._file.read(self.reference["context"])[0], self.reference["end"]
        if end > len(found):
            raise UserError(f"{self._where}: its 'end' is {end}, but its context has {len(found)} messages")
        return found[:end]

    def by(self, unit: str) -> "Profile":
        """Return the same history in the order of time, with such items."""
        reference = {name: value for name, value in self.reference.items() if name not in ("unit", "order")}
        return Profile(self._file, {**reference, "unit": unit}, self._where)

    def reordered(self, order: Sequence[int], folder: Path) -> dict[str, Any]:
        """Return the reference to these items in another order, from a dataset in that folder."""
        contexts = os.path.relpath(self._file.path, folder)
        return {
            **self.reference,
            "contexts": contexts,
            "unit": self._unit,
            "order": [self._order[number] for number in order],
        }

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        numbers = self._order[index]
        return self._item(numbers) if isinstance(index, int) else list(map(self._item, numbers))

    @property
    def _unit(self) -> str:
        return self.reference.get("unit", UNITS[0])

    @property
    def _order(self) -> Sequence[int]:
        return self.reference.get("order", range(len(self)))

    @cached_property
    def _items(self) -> list[tuple[int, ...]]:
        """By item, in the order of time, the places of its messages; UserError where `order` is of others."""
        sessions = self._file.read(self.reference["context"])[1]
        groups: dict[int, list[int]] = {}
        for place, message in enumerate(self.messages):
            if message["role"] != CARD:
                groups.setdefault(place if self._unit == "message" else sessions[place], []).append(place)
        if len(self.reference.get("order", groups)) != len(groups):
            held = f"{len(self.reference['order'])} items, but its history has {len(groups)}"
            raise UserError(f"{self._where}: its 'order' is of {held}")
        return list(map(tuple, groups.values()))

    def _item(self, number: int) -> Item:
        context_id, places = self.reference["context"], self._items[number]
        messages, sessions = self._file.read(context_id)
        session = sessions[places[0]]
        found = {"text": "\n".join(messages[place]["content"] for place in places), "session": session}
        if self._unit == "message":
            return {"id": f"{context_id}:{places[0]}", "role": messages[places[0]]["role"], **found, "places": places}
        return {"id": f"{context_id}:s{session}", **found, "places": places}


def open_profile(record: Record, dataset: Path) -> Profile:
    """Return the profile that a record of this dataset refers to; UserError where it cannot be had."""
    reference, where = record["profile"], f"{dataset}: id {quote(record['id'])}: field 'profile'"
    file = _contexts_file(dataset.absolute().parent / reference["contexts"])
    if reference.get("sha256", file.sha256) != file.sha256:
        raise UserError(f"{file.path}: not the file that {dataset} was made with; put that one there")
    if reference["context"] not in file:
        raise UserError(f"{where}: {file.path} has no context {quote(reference['context'])}")
    if sorted(order := reference.get("order", [])) != [*range(len(order))]:
        raise UserError(f"{where}: its 'order' must hold each item's number once")
    return Profile(file, reference, where)


@lru_cache(maxsize=8)
def _contexts_file(path: Path) -> ContextsFile:
    """One for all the records that refer to it."""
    return ContextsFile(path)


def with_unit(record: Record, unit: str | None, dataset: str | Path) -> Record:
    """A record with the items that are asked for in its profile; UserError where that holds items of one kind."""
    if unit is None:
        return record
    if not isinstance(record["profile"], Profile):
        raise UserError(f"--unit {unit}: the profiles of {dataset} are lists of items; leave the flag out")
    return {**record, "profile": record["profile"].by(unit)}


def reordered(profile: Sequence[Item], order: Sequence[int], dataset: Path) -> list[Item] | dict[str, Any]:
    """A profile with whole items in this order, as that dataset holds it: ids, texts and other fields stay together."""
    if isinstance(profile, Profile):
        return profile.reordered(order, dataset.absolute().parent)
    return [profile[number] for number in order]


def refer(records: Iterable[Record], file: ContextsFile, name: str, skip_invalid: bool) -> tuple[list[Record], int]:
    """Return records with profiles that refer to contexts in the file `name`, and how many were left out.

    Those of one context are adjacent, by growing ends, so that an engine computes their shared prefix once.
    UserError where a context is not there, or an end is none of it; with `skip_invalid` the latter is left out.
    """
    numbers = {context_id: number for number, context_id in enumerate(file)}
    placed = []
    for record in records:
        context_id, end = record["profile"]["context"], record["profile"]["end"]
        if context_id not in file:
            raise UserError(f"id {quote(record['id'])}: {file.path} has no context {quote(context_id)}")
        placed.append((numbers[context_id], end, record))
    placed.sort(key=lambda one: one[:2])
    referring = []
    for _, end, record in placed:
        context_id = record["profile"]["context"]
        most = len(file.read(context_id)[0])
        end = most if end is None else end  # the whole history
        if 0 < end <= most:
            profile = {"contexts": name, "sha256": file.sha256, "context": context_id, "end": end}
            referring.append({**record, "profile": profile})
        elif not skip_invalid:
            raise UserError(
                f"id {quote(record['id'])}: end_index_in_shared_context is {end}, but its context in {file.path} "
                f"has {most} messages\n  --skip_invalid leaves such questions out and counts them"
            )
    return referring, len(placed) - len(referring)


def _decode(text: bytes, form: Any, where: str) -> Any:
    try:
        return msgspec.json.decode(text, type=form)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UserError(f"{where}: {error}") from None


def _sessions_of(messages: Messages) -> list[int]:
    """Of each message the number of its session, from 0; several system messages in a row open one."""
    roles = ["", *(message["role"] for message in messages)]
    opens = ((role == CARD and before != CARD) or not before for before, role in pairwise(roles))
    return [number - 1 for number in accumulate(opens)]


def write_contexts(histories: Mapping[str, Path], key: str, path: Path) -> None:
    """Writes the messages under this key of JSON files, by context id; UserError if these are not plain texts."""
    form = msgspec.defstruct("History", [(key, _Messages)])
    with open_whole(path, "wb") as file:
        for context_id, history in sorted(histories.items()):
            messages = getattr(_decode(history.read_bytes(), form, str(history)), key)
            line = json.dumps({context_id: messages}, ensure_ascii=False)
            file.write(f"{line}\n".encode())
