"""Damages to a file as a whole, or to one random value in it.

The effect of a damage is found by reading the file before and after with parsers from outside the project.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MISSING, DEEP, AGAIN = "\0missing", "\0deep", "\0again"  # placeholders: the last two are put in as text
LONG = "long — é " * 20_000


# Kinds of files: how one is read and written


def strict_json(text: str) -> Any:
    """Parse standard JSON: no NaN, no duplicate keys, no half characters."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a name twice")
        return dict(pairs)

    def refuse(name: str) -> None:
        raise ValueError(name)

    value = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def put_in(text: str) -> bytes:
    """Return a dumped text with the placeholders' text; half characters become JSON escapes."""
    deep = "[" * 100_000 + "]" * 100_000
    text = text.replace(json.dumps(DEEP), deep).replace(json.dumps(AGAIN)[1:-1], "").replace(AGAIN, "")
    return text.encode(errors="backslashreplace")


def read_lines(text: str) -> list[Any]:
    return [strict_json(line) for line in text.split("\n") if line.strip()]


def read_log(text: str) -> list[Any]:
    """Read a log without an incomplete last line, whose writer died."""
    return read_lines(text[: text.rfind("\n") + 1])


def write_lines(value: list[Any]) -> bytes:
    return put_in("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in value))


# By kind: from text to a value, and from a value to bytes; None where no part of it is damaged.
KINDS: dict[str, tuple[Callable[[str], Any], Callable[[Any], bytes] | None]] = {
    "json": (strict_json, lambda value: put_in(json.dumps(value, ensure_ascii=False, indent=1))),
    "jsonl": (read_lines, write_lines),
    "log": (read_log, write_lines),
    "text": (str, None),
    "binary": (str, None),
}


def read(path: Path, kind: str) -> Any:
    """Return a file's content, None if it is not of its kind."""
    try:
        if not path.is_file():
            return None
        content = path.read_bytes()
        if kind == "binary":
            return content
        return KINDS[kind][0](content.decode("utf-8-sig").replace("\r\n", "\n"))
    except (ValueError, RecursionError, OSError, TypeError):
        return None


# Damages to a whole file: of its path, its bytes, the dice, and other files of the folder


def flip(path: Path, content: bytes, dice: random.Random, others: list[Path]) -> None:
    if content:
        place = dice.randrange(len(content))
        content = content[:place] + bytes([content[place] ^ 1 << dice.randrange(8)]) + content[place + 1 :]
    path.write_bytes(content)


def become(make: Callable[[bytes, random.Random], bytes]) -> Callable[..., None]:
    return lambda path, content, dice, others: path.write_bytes(make(content, dice))


def swap(make: Callable[[Path], object]) -> Callable[..., None]:
    def damage(path: Path, content: bytes, dice: random.Random, others: list[Path]) -> None:
        path.unlink()
        make(path)

    return damage


def link(path: Path, content: bytes, dice: random.Random, others: list[Path]) -> None:
    (path.parent / "elsewhere").mkdir(exist_ok=True)
    shutil.move(path, path.parent / "elsewhere")
    path.symlink_to(f"elsewhere/{path.name}")


def be_another(path: Path, content: bytes, dice: random.Random, others: list[Path]) -> None:
    path.write_bytes(dice.choice(others).read_bytes())


def spread(content: bytes, dice: random.Random) -> bytes:
    return json.dumps(json.loads(content), indent=dice.choice([None, 3])).encode()


def transcode(content: bytes, dice: random.Random) -> bytes:
    encoding = dice.choice(["utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252"])
    return content.decode(errors="replace").encode(encoding, "replace")


WHOLE: dict[str, Callable[..., None]] = {
    "empty": become(lambda content, dice: b""),
    "zero-filled": become(lambda content, dice: bytes(len(content))),
    "zeros from a place on": become(lambda content, dice: content[: (n := dice.randrange(len(content) + 1))]
                                    + bytes(len(content) - n)),
    "cut short": become(lambda content, dice: content[: dice.randrange(len(content) + 1)]),
    "a flipped bit": flip,
    "a byte order mark": become(lambda content, dice: b"\xef\xbb\xbf" + content),
    "another encoding": become(transcode),
    "no line end": become(lambda content, dice: content.rstrip(b"\r\n")),
    "line ends of Windows": become(lambda content, dice: content.replace(b"\n", b"\r\n")),
    "another file": be_another,
    "a link to it": link,
    "a dangling link": swap(lambda path: path.symlink_to("nowhere")),
    "a link to itself": swap(lambda path: path.symlink_to(path.name)),
    "a pipe": swap(os.mkfifo),
    "a folder": swap(Path.mkdir),
    "gone": swap(lambda path: None),
    "/dev/null": swap(lambda path: path.symlink_to("/dev/null")),
    "/dev/zero": swap(lambda path: path.symlink_to("/dev/zero")),
}  # fmt: skip


# Damages to one value: of the value and the dice, the new one, or MISSING


def retype(value: Any, dice: random.Random) -> Any:
    others = [True, 7, 1.5, "text", "", [], {}, [value], {"a": value}, str(value), "false"]
    return dice.choice([other for other in others if type(other) is not type(value)])


def other_text(value: Any, dice: random.Random) -> Any:
    if isinstance(value, str):
        return dice.choice(["Other — é", " ", LONG, "猫 \u2028\x00 \x1b[2J", value + "\n"])
    return value + dice.choice([1, -10, 10**30, 10**400]) if isinstance(value, int) else -1e308


PARTS: dict[str, Callable[[Any, random.Random], Any]] = {
    "dropped": lambda value, dice: MISSING,
    "null": lambda value, dice: None,
    "NaN": lambda value, dice: dice.choice([float("nan"), float("inf")]),
    "retyped": retype,
    "half a character": lambda value, dice: "half \ud800",
    "too deep": lambda value, dice: DEEP,
    "another value": other_text,
}
# What these make of a file is as good as what it was: another output is right.
LEGITIMATE = {"another value", "a flipped bit", "another file", "twice", "a shorter list", "cut short"}


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """Yield the path to each part of a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way for key, part in items for way in ((*path, key), *places(part, (*path, key)))]


def part(value: Any, way: Iterable[Any]) -> Any:
    for key in way:
        value = value[key]
    return value


@dataclass(frozen=True)
class Damage:
    """A damage: its name, its place in the file, and whether a different output is right."""

    name: str
    place: str
    legitimate: bool


def damage(path: Path, kind: str, dice: random.Random, others: list[Path]) -> Damage:
    """Damage a file, as drawn by a random generator."""
    dump, content = KINDS[kind][1], path.read_bytes()
    if dump is None or dice.random() < 0.4:
        name = dice.choice([*WHOLE])
        WHOLE[name](path, content, dice, others)
        is_torn = kind == "log" and name == "no line end"
        return Damage(name, "", name in LEGITIMATE or is_torn or (kind == "text" and path.is_file()))
    value = read(path, kind)
    *way, last = place = dice.choice(places(value))
    holder = part(value, way)
    old, name = holder[last], dice.choice([*PARTS, "twice"])
    is_legitimate = name in LEGITIMATE
    if name == "twice":
        if isinstance(holder, list):
            holder.insert(last, old)
        else:
            holder[last + AGAIN] = retype(old, dice)
            is_legitimate = False
    elif (new := PARTS[name](old, dice)) == MISSING:
        del holder[last]
        name, is_legitimate = ("a shorter list", True) if isinstance(holder, list) else (name, False)
    else:
        holder[last] = new
    path.write_bytes(dump(value))
    return Damage(name, ".".join(map(str, place)), is_legitimate)
