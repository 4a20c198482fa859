"""Contexts: long histories that many questions' profiles refer to, one per line of a file beside the dataset.

A line is `{context id: [{"role", "content"}, ...]}`. A profile that refers to a context is `{"contexts": the file's
path relative to the dataset's folder, "sha256": the file's hash, "context": the id, "end": the number of messages
before the question}`. In a ranked dataset it also has `{"unit": "message" or "session", "order": the items' numbers,
best first}`. Once opened, such a profile is a sequence of items like any other; its messages are decoded when needed. A
system message begins a session. System messages have the persona card and are not items.
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
from utils.base.errors import UserError, count_noun, quote
from utils.base.json_files import read_lines
from utils.base.writing import open_whole, real_path
from utils.benchmarks.checks import Item, Record

UNITS = ("message", "session")
CARD = "system"  # the role of the messages that open a session
AT_HAND = 4  # most decoded contexts in memory; questions on the same context are adjacent in a dataset


class _Message(TypedDict):
    role: Literal["system", "user", "assistant"]
    content: str


_Messages = Annotated[list[_Message], msgspec.Meta(min_length=1)]


class ContextsFile:
    """A file of contexts, in memory as raw lines; contexts are decoded when needed, and only the last few are kept.

    Attributes:
        sha256: the file's hash, in hex.
    """

    def __init__(self, path: Path):
        """Read the file; UserError if it does not exist, or if a line has no contexts."""
        self.path, digest = path, hashlib.sha256()
        self._lines: dict[str, tuple[str, msgspec.Raw]] = {}  # by id: file and line for errors, and the raw messages
        # Returns a context's messages and each message's session number; UserError if they are invalid.
        self.read = lru_cache(AT_HAND)(self._read)
        if not path.is_file():
            raise UserError(f"{path}: no such file; copy the histories together with their dataset")
        with path.open("rb") as file:
            for number, line in enumerate(read_lines(file), 1):
                digest.update(line)
                if not line.strip():
                    continue
                for context_id, messages in _decode(line, dict[str, msgspec.Raw], f"{path}: line {number}").items():
                    if context_id in self._lines:
                        raise UserError(
                            f"{path}: line {number}: id {quote(context_id)} is repeated from an earlier line"
                        )
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
    """The items of a history up to a question: messages or sessions, each `{id, text, session, places}`.

    `places` are the indices of the item's messages in `messages`. An item that is a message also has its `role`.
    """

    def __init__(self, file: ContextsFile, reference: dict[str, Any], where: str):
        """Store the reference; errors begin with `where`."""
        self.reference, self._file, self._where = reference, file, where

    @property
    def messages(self) -> Messages:
        """Return all messages before the question; UserError if the context has fewer than `end`."""
        messages, end = self._file.read(self.reference["context"])[0], self.reference["end"]
        if end > len(messages):
            raise UserError(
                f"{self._where}: its 'end' is {end}, but its context has {count_noun(len(messages), 'message')}"
            )
        return messages[:end]

    def by(self, unit: str) -> "Profile":
        """Return the same history divided into items of this unit, in chronological order."""
        reference = {name: value for name, value in self.reference.items() if name not in ("unit", "order")}
        return Profile(self._file, {**reference, "unit": unit}, self._where)

    def reordered(self, order: Sequence[int], folder: Path) -> dict[str, Any]:
        """Return the reference to store in a dataset in `folder` for this profile with its items in the given order."""
        contexts = os.path.relpath(os.path.realpath(self._file.path), os.path.realpath(folder))
        return {
            **self.reference,
            "contexts": contexts,
            "unit": self._unit,
            "order": [self._order[number] for number in order],
        }

    def beginning_with(self, numbers: Sequence[int]) -> "Profile":
        """Return the same history with the items of these numbers first, then the other items."""
        others = sorted(set(range(len(self))).difference(numbers))
        order = [self._order[number] for number in (*numbers, *others)]
        return Profile(self._file, {**self.reference, "order": order}, self._where)

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
        """Each item's message indices, in chronological order; UserError if `order` has more or fewer items."""
        sessions = self._file.read(self.reference["context"])[1]
        groups: dict[int, list[int]] = {}
        for place, message in enumerate(self.messages):
            if message["role"] != CARD:
                groups.setdefault(place if self._unit == "message" else sessions[place], []).append(place)
        if len(self.reference.get("order", groups)) != len(groups):
            held = f"{count_noun(len(self.reference['order']), 'item')}, but its history has {len(groups)}"
            raise UserError(f"{self._where}: its 'order' has {held}")
        return list(map(tuple, groups.values()))

    def _item(self, number: int) -> Item:
        context_id, places = self.reference["context"], self._items[number]
        messages, sessions = self._file.read(context_id)
        session = sessions[places[0]]
        item = {"text": "\n".join(messages[place]["content"] for place in places), "session": session}
        if self._unit == "message":
            return {"id": f"{context_id}:{places[0]}", "role": messages[places[0]]["role"], **item, "places": places}
        return {"id": f"{context_id}:s{session}", **item, "places": places}


def open_profile(record: Record, dataset: Path) -> Profile:
    """Return the profile that a record of this dataset refers to; UserError if its context is missing or invalid."""
    reference, where = record["profile"], f"{dataset}: id {quote(record['id'])}: field 'profile'"
    beside = [path.parent / reference["contexts"] for path in (real_path(dataset).absolute(), dataset.absolute())]
    file = _contexts_file(beside[0] if beside[0].exists() else beside[1])  # [1]: beside the link itself
    if reference.get("sha256", file.sha256) != file.sha256:
        raise UserError(f"{file.path}: not the file that {dataset} was made with; restore that file")
    if reference["context"] not in file:
        raise UserError(f"{where}: {file.path} has no context {quote(reference['context'])}")
    if sorted(order := reference.get("order", [])) != [*range(len(order))]:
        raise UserError(f"{where}: its 'order' must have each item's number exactly once")
    return Profile(file, reference, where)


@lru_cache(maxsize=8)
def _contexts_file(path: Path) -> ContextsFile:
    """Return the file, which is read once for all records that refer to it."""
    return ContextsFile(path)


def with_unit(record: Record, unit: str | None, dataset: str | Path) -> Record:
    """Return the record with its history divided into this unit; UserError if its profile is a list of items."""
    if unit is None:
        return record
    if not isinstance(record["profile"], Profile):
        raise UserError(f"--unit {unit}: the profiles of {dataset} are lists of items; remove the flag")
    return {**record, "profile": record["profile"].by(unit)}


def reordered(profile: Sequence[Item], order: Sequence[int], dataset: Path) -> list[Item] | dict[str, Any]:
    """Return the profile with its items in this order, in the form that `dataset` stores: a list or a reference."""
    if isinstance(profile, Profile):
        return profile.reordered(order, real_path(dataset).absolute().parent)
    return [profile[number] for number in order]


def first_items(profile: Sequence[Item], numbers: Sequence[int]) -> Sequence[Item]:
    """Return a profile that begins with these items; a profile that is a list then has only these items."""
    if isinstance(profile, Profile):
        return profile.beginning_with(numbers)
    return [profile[number] for number in numbers]


def refer(records: Iterable[Record], file: ContextsFile, name: str, skip_invalid: bool) -> tuple[list[Record], int]:
    """Return the records with profiles that refer to contexts in the file `name`, and the number of records left out.

    Records of the same context are adjacent and sorted by `end`, so that an engine computes their shared prefix once.
    UserError if a context is missing, or if a record's end lies outside its context; `skip_invalid` leaves out records
    with such an end.
    """
    numbers = {context_id: number for number, context_id in enumerate(file)}
    placed = []
    for record in records:
        context_id, end = record["profile"]["context"], record["profile"]["end"]
        if context_id not in file:
            raise UserError(f"id {quote(record['id'])}: {file.path} has no context {quote(context_id)}")
        placed.append((numbers[context_id], end, record))
    placed.sort(key=lambda candidate: candidate[:2])
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
                f"has {count_noun(most, 'message')}\n  add --skip_invalid to skip and count such questions"
            )
    return referring, len(placed) - len(referring)


def _decode(text: bytes, form: Any, where: str) -> Any:
    try:
        return msgspec.json.decode(text, type=form)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UserError(f"{where}: {error}") from None


def _sessions_of(messages: Messages) -> list[int]:
    """Return each message's session number, from 0; several system messages in a row open one session."""
    roles = ["", *(message["role"] for message in messages)]
    opens = ((role == CARD and before != CARD) or not before for before, role in pairwise(roles))
    return [number - 1 for number in accumulate(opens)]


def write_contexts(histories: Mapping[str, Path], key: str, path: Path) -> None:
    """Write the messages of JSON files as contexts; UserError if a message's content is not a text.

    A file is a list of messages, or an object with this list under `key`; without `key`, the first list in it is used.
    """
    with open_whole(path, "wb") as file:
        for context_id, history in sorted(histories.items()):
            messages = _decode(history.read_bytes(), _Messages | dict[str, msgspec.Raw], str(history))
            if isinstance(messages, dict):
                lists = [content for content in messages.values() if bytes(content).startswith(b"[")]
                if key not in messages and not lists:
                    raise UserError(f"{history}: has no list of messages, such as {key!r}")
                messages = _decode(messages.get(key, *lists[:1]), _Messages, f"{history}: {key}")
            line = json.dumps({context_id: messages}, ensure_ascii=False)
            file.write(f"{line}\n".encode())
