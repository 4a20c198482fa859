"""A script's flags: the types of their values, flags that have no effect in a mode, and messages about mistakes."""

import argparse
import difflib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from utils.base.errors import USER_ERROR, quote, tells_errors


class Arguments(argparse.Namespace):
    """Parsed command-line flags. They do not change after parsing; `replaced` returns a changed copy.

    Attributes (slots, so that `vars()` does not include them):
        given: names of the flags that are on the command line.
        idle: names of the flags that do not affect an output.
    """

    __slots__ = ("given", "idle", "is_frozen")  # a copy sets them in this order: freezing comes last

    # The values for commands without these flags. As class attributes, they are in no settings and no manifest.
    trace, num_shards, max_retries, num_contexts, set, requests_to = False, 1, 0, 0, None, None
    start_adapter, schedule, lora_alpha, lora_dropout, lora_target_modules = None, "linear", 16, 0.05, None

    def __init__(self, given: frozenset[str] = frozenset(), idle: frozenset[str] = frozenset(), /, **values: Any):
        super().__init__(**values)
        self.given, self.idle = given, idle

    def freeze(self) -> "Arguments":
        self.is_frozen = True
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "is_frozen", False):
            raise AttributeError(f"--{name} was parsed and does not change; use `replaced`")
        super().__setattr__(name, value)

    def replaced(self, **values: Any) -> "Arguments":
        """Return a copy with these values replaced, and with the same `given` and `idle`."""
        return Arguments(self.given, self.idle, **{**vars(self), **values}).freeze()

    def settings(self) -> dict[str, Any]:
        """Return the flags that affect an output: all except those given to `FlagParser.not_a_setting`."""
        return {name: value for name, value in vars(self).items() if name not in self.idle}


Condition = Callable[[argparse.Namespace], bool]


class FlagParser(argparse.ArgumentParser):
    """A parser that reports mistakes in a line or two, and refuses given flags that have no effect (`without_effect`).

    A flag counts as given only if it is on the command line; a default, even from the environment, does not count.
    """

    def __init__(self, **settings: object):
        super().__init__(**settings)
        self._rules: list[tuple[list[str], Condition, str, str]] = []
        self._given: dict[str, None] = {}  # the words of the command line, without `=value`; not all of them are flags
        self._models: dict[str, Condition] = {}
        self.idle: dict[str, str] = {}  # flag that does not affect an output -> the reason

    def without_effect(self, flags: str, when: Condition, why: str, remedy: str = "") -> None:
        """Refuse these flags (separated by spaces) if they are given in a mode in which they have no effect.

        `when` returns, from the parsed flags, whether the mode is on; `why` is said after "has no effect"; `remedy` is
        an alternative to leaving the flags out.
        """
        self._rules.append((flags.split(), when, why, remedy))

    def not_a_setting(self, flags: str, because: str) -> None:
        """Leave these flags (separated by spaces) out of an output's settings; `because` documents the reason."""
        self.idle |= dict.fromkeys(flags.split(), because)

    def names_model(self, flag: str, is_behind_api: Condition = lambda args: False) -> None:
        """Replace a link to a local model's folder by its target: a training may make it link elsewhere at any time."""
        self._models[flag.removeprefix("--")] = is_behind_api

    def parse_args(self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None) -> Arguments:
        parsed = super().parse_args(args, namespace)
        refusals: dict[str, str] = {}  # by flag; the last rule that refuses a flag counts: it says what to add first
        for flags, when, why, remedy in self._rules:
            given = [flag for flag in flags if flag in self._given]
            if given and when(parsed):
                verb, them = ("has", given[0]) if len(given) == 1 else ("have", "these flags")
                leave = f"{remedy}, or leave" if remedy else "leave"
                message = f"{', '.join(given)}: {verb} no effect {why}\n  {leave} {them} out"
                refusals |= dict.fromkeys(given, message)
        if refusals:
            self.refuse(next(iter(refusals.values())))
        for name, is_behind_api in self._models.items():
            if not is_behind_api(parsed):
                setattr(parsed, name, without_link(getattr(parsed, name)))
        return parsed.freeze()

    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[Arguments, list[str]]:
        words = sys.argv[1:] if args is None else args
        self._given = dict.fromkeys(word.partition("=")[0] for word in words)
        for word in words:
            if not is_text(word):  # fail now: a manifest is UTF-8, and is written only at the end of a run
                self.refuse(f"{word!r} is not UTF-8; rename the file, or give another name")
        try:
            words = list(map(at_home, words))
        except argparse.ArgumentTypeError as error:
            self.refuse(str(error))
        parsed, rest = super().parse_known_args(words, namespace)
        actions = self._option_string_actions
        given = frozenset(actions[flag].dest for flag in actions.keys() & self._given.keys())
        idle = frozenset(actions[flag].dest for flag in self.idle)
        return Arguments(given, idle, **vars(parsed)), rest

    def error(self, message: str) -> None:
        """End the process with argparse's message about a mistake, or if a flag is misspelt, with a message on that."""
        looks_like_flag = re.compile(r"--?[^\W\d]\S*").fullmatch  # neither -1 nor a value with spaces
        # The message has no values, because they may be secret.
        if unknown := [
            flag for flag in self._given if looks_like_flag(flag) and flag not in self._option_string_actions
        ]:
            meant = ", ".join(nearest(flag, self._option_string_actions) for flag in unknown)
            self.refuse(f"unrecognized arguments: {', '.join(unknown)}; did you mean {meant}?")
        self.refuse(f"{message}; --help lists the flags")

    def refuse(self, message: str) -> None:
        """End the process with exit code 2 and a message about its command line."""
        self.exit(USER_ERROR, f"error: {message}\n" if tells_errors() else None)


def is_text(word: str) -> bool:
    """Return whether a word can be written as UTF-8; a file name with other bytes cannot."""
    return word.isascii() or not any("\ud800" <= character <= "\udfff" for character in word)


def at_home(word: str) -> str:
    """Return a path, or `--flag=PATH`, with ~ or ~user at the path's beginning expanded, which shells do not always do.

    ArgumentTypeError if there is no such user.
    """
    flag, sign, path = word.partition("=") if word.startswith("--") else ("", "", word)
    expanded = os.path.expanduser(path)
    if path.startswith("~") and "/" in path and expanded == path:
        raise argparse.ArgumentTypeError(f"{path}: no such user; for a folder of this name give ./{path}")
    return flag + sign + expanded


def without_link(path: str | None) -> str | None:
    """Return the real path if `path` is a symbolic link; otherwise, `path` as it is."""
    return os.path.realpath(path) if path and os.path.islink(path.rstrip("/")) else path


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return the choice closest to a misspelt or shortened name."""
    choices = list(choices)
    longer = [choice for choice in choices if choice.startswith(name)]
    return difflib.get_close_matches(name, longer or choices, n=1, cutoff=0)[0]


def value_type(name: str, kind: type, is_valid: Callable[[float], bool], problem: str) -> Callable[[str], float]:
    """Return a flag's `type`: a function of its text that returns a valid number, and otherwise raises for argparse."""

    def read(text: str) -> float:
        if not is_valid(value := kind(text)):
            raise argparse.ArgumentTypeError(f"{text} {problem}")
        return value

    read.__name__ = name  # argparse names it if the text is not a number
    return read


def api_address(text: str) -> str:
    """Return a server's address unchanged, as the `type` of a flag; ArgumentTypeError if it is not valid."""
    if problem := address_problem(text):
        is_default = text == os.environ.get("OPENAI_BASE_URL")
        raise argparse.ArgumentTypeError(f"OPENAI_BASE_URL in the environment: {problem}" if is_default else problem)
    return text


def address_problem(text: str) -> str | None:
    """Return why `text` is not a server's HTTP address, or None; `text` is not repeated, as it may have a password."""
    with suppress(ValueError):  # a port that is not a number, or a bracket that does not close
        parts = urlsplit(text)
        is_complete = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if is_complete and not parts.fragment and text.isprintable() and " " not in text:
            return None
    return "not an address such as http://127.0.0.1:8000/v1 (in a password, write # / ? @ as %23 %2F %3F %40)"


def or_word(word: str, kind: Callable[[str], float]) -> Callable[[str], float | None]:
    """Return a flag's `type` that returns None for this word, and otherwise what `kind` returns."""

    def read(text: str) -> float | None:
        return None if text == word else kind(text)

    read.__name__ = f"{kind.__name__} or {word}"
    return read


def json_object(taken: Sequence[str], why: str) -> Callable[[str], dict[str, Any]]:
    """Return a flag's `type` that accepts a JSON object without the keys in `taken`; `why` is said about such a key."""

    def read(text: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
            is_sound = isinstance(value, dict) and is_text(json.dumps(value, ensure_ascii=False, allow_nan=False))
        except (ValueError, RecursionError):
            is_sound = False
        if not is_sound:
            raise argparse.ArgumentTypeError(f'{quote(text)} is not a JSON object, such as {{"key": true}}')
        if own := sorted(value.keys() & set(taken)):
            raise argparse.ArgumentTypeError(f"{own[0]}: {why}")
        return value

    read.__name__ = "JSON object"
    return read


positive_int = value_type("positive_int", int, lambda value: value >= 1, "is not a positive number")
non_negative_int = value_type("non_negative_int", int, lambda value: value >= 0, "is negative")
non_negative_float = value_type(
    "non_negative_float", float, lambda value: 0 <= value < math.inf, "is not a number from 0 up"
)
LEAST_PRICE = 0.001  # US dollars per million tokens; a lower price is probably that of one token


def price(text: str) -> float:
    """Return a price in US dollars per million tokens; a note says if it looks like the price of one token."""
    value = non_negative_float(text)
    if 0 < value < LEAST_PRICE:
        unit = "prices are in US dollars per million tokens"
        print(f"note: price {text}: {unit}; if this is the price of one token, give {value * 1e6:g}", file=sys.stderr)
    return value


finite_float = value_type("finite_float", float, math.isfinite, "is not a finite number")
penalty = value_type("penalty", float, lambda value: -2 <= value <= 2, "is not between -2 and 2")
share = value_type("share", float, lambda value: 0 <= value <= 1, "is not between 0 and 1")
temperature = value_type("temperature", float, lambda value: 0 <= value <= 2, "is not between 0 and 2")
fraction = value_type("fraction", float, lambda value: 0 < value <= 1, "is not above 0 and at most 1")
