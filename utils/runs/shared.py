"""The models and prompts that all records of a run share, and the making of calls."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prompts import History, Prompt, load_prompt, own_prompt
from utils.benchmarks.task import Parser, Record, Task, Variant
from utils.cli.flags import Arguments
from utils.files.output import Key, Pieces
from utils.generation.calls import Call, fitted_call
from utils.generation.model import Model
from utils.parsing import Parsed, nothing, writable

# Names that no placeholder can have: parameters of `Ask.__call__`.
TAKEN = {"self", "prompt", "items", "parse", "model", "n", "max_tokens", "temperature"}


class ParserError(Exception):
    """A method's own parser raised an exception, which is the cause."""


@dataclass(frozen=True)
class Role:
    """A model that a method asks by name."""

    args: Arguments  # the flags that apply to this model
    model: Model


def _noting(lookup: Callable) -> Callable:
    """Return a method of `dict` that also adds the name it is called with, or else all names, to `read`."""

    def call(self: "Settings", *args: Any) -> Any:
        self.read.update(args[:1] or dict.keys(self))
        return lookup(self, *args)

    return call


class Settings(dict[str, str]):
    """A record's copy of --set NAME=VALUE; `read` gets each name that is looked up, and a loop adds all names."""

    def __init__(self, settings: Mapping[str, str], read: set[str]):
        super().__init__(settings)
        self.read = read

    # Because of `__iter__`, `dict(settings)` and `**settings` also go through these.
    __getitem__, __contains__ = _noting(dict.__getitem__), _noting(dict.__contains__)
    get, pop, setdefault = _noting(dict.get), _noting(dict.pop), _noting(dict.setdefault)
    __iter__, keys, items, values = map(_noting, (dict.__iter__, dict.keys, dict.items, dict.values))


@dataclass(frozen=True)
class Shared:
    """Models, prompts and settings that all records of a run share.

    Attributes:
        roles: the models by role; "generator" answers.
        prompts: the benchmark's prompts by name (default: the task's).
        values: returns a record's values for the prompts (default: the task's).
        readers: parsers for the prompts' outputs, by role (default: the task's parser of answers).
        settings: --set NAME=VALUE.
        settings_read: the names in `settings` that a record has looked up; filled during the run.
        shown: --show_fields, fields that only the scorer should see and a method may read.
        own_prompts: prompts that were used, by name or text; filled during the run.
    """

    task: Task
    roles: dict[str, Role]
    seed: int | None
    num_contexts: int
    prompts_dir: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    shown: tuple[str, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    values: Callable[[Record], dict[str, str]] | None = None
    readers: dict[str, Parser] = field(default_factory=dict)
    own_prompts: dict[str, Prompt] = field(default_factory=dict)
    settings_read: set[str] = field(default_factory=set)

    def make(
        self,
        record: Record,
        key: Key,
        role: str,
        name: str,
        items: Sequence[Any] | History,
        values: Mapping[str, str],
        *,
        parse: Parser | Callable[[str], Any] | None = None,
        own: Mapping[str, Any] | None = None,
        schema: Mapping[str, Any] | None = None,
        options: Mapping[str, str] | None = None,
        variant: Variant | None = None,
        trimmed: bool = False,
        told: Mapping[str, Any] | None = None,
    ) -> tuple[Model, Call, Callable[[], str]]:
        """Return the model, the call for `key`, and a function that returns a text to tell the call from others.

        Args:
            own: max_tokens and temperature, which override the flags.
            schema: the JSON schema for the output, instead of the task's.
            options: texts by name; the likeliest is chosen.
            variant: another form of the question, with its own values and parser.
            trimmed: the items are `Task.best_entries`, which are cut to fit.
            told: further fields of the call's record.

        ValueError if a method's call is invalid.
        """
        is_named = name in (prompts := self.prompts or self.task.prompts)
        self._check(role, name, is_named, prompts, items, parse, own or {})
        model, prompt = self.roles[role].model, self._prompt(name, prompts.get(name))
        known = (self.values or self.task.values)(record) | (variant.values if variant else {}) | values
        self._check_filled(prompt, known, values, items)
        known = {one: str(value) for one, value in known.items() if one in prompt.placeholders}
        policy = replace(model.policy, **(own or {}))
        if "max_tokens" in (own or {}):
            policy = replace(policy, max_tokens=policy.max_tokens + model.thought_room)
        if schema is not None:
            policy = replace(policy, schema=schema)
        elif not is_named or parse is not None:
            # The output has no schema, and the temperature does not rise with the tries.
            policy = replace(policy, schema=None, constrained_decoding="fallback")
        if is_named and parse is None:
            parse = variant.parse if variant else self.readers.get(role, self.task.output.parse)
        tokens = {one: model.chat.render_option(text) for one, text in options.items()} if options else None
        if tokens:
            policy = replace(policy, max_tokens=max(map(len, tokens.values())) + 1)  # vLLM generates a token
        model = replace(model, policy=policy)
        fit = model.fit_trimmed if trimmed else model.fit
        fitted = fit(prompt, items, self.task.join, **known)
        call = fitted_call(key, fitted, reader(parse), **(variant.record if variant else {}), **(told or {}))

        def its() -> str:
            shown = items if isinstance(items, History) else list(items)
            return repr((role, prompt.digest, known, shown, own, options))

        return model, replace(call, options=tokens), its

    def _check(
        self, role: str, name: str, is_named: bool, prompts: Mapping[str, str], items: Any, parse: Any, own: Mapping
    ) -> None:
        if role not in self.roles:
            there = f"the models are {', '.join(self.roles)} (add one with --model NAME=ADDRESS)"
            raise ValueError(f"ask: unknown model {role!r}; {there}")
        if isinstance(items, str):
            raise ValueError("ask: items is a single text; give a list of texts")
        for flag, value, kinds in (
            ("max_tokens", own.get("max_tokens", 1), int),
            ("temperature", own.get("temperature", 0), float | int),
        ):
            if not isinstance(value, kinds) or value < (flag == "max_tokens"):
                raise ValueError(f"ask: {flag} is {value!r}; give a number")
        if inspect.iscoroutinefunction(parse):
            raise ValueError("ask: parse is async; give a plain function of the text")
        if not is_named and not re.search(r"[\s{]", name):
            raise ValueError(f"ask: unknown prompt {name!r}; the prompts are {', '.join(prompts)}, or give a text")

    def _check_filled(self, prompt: Prompt, known: Mapping, values: Mapping, items: Sequence[Any] | History) -> None:
        if taken := sorted(prompt.placeholders & TAKEN):
            raise ValueError(f"ask: {{{taken[0]}}} is a parameter of ask; give the placeholder another name")
        if not isinstance(items, History) and len(items) and "profile" not in prompt.placeholders:
            raise ValueError("ask: items need {profile}, which is not in the prompt")
        if missing := prompt.placeholders - known.keys() - {"profile"}:
            raise ValueError(f"ask: no value for {', '.join(f'{{{one}}}' for one in sorted(missing))} of the prompt")
        if unused := values.keys() - prompt.placeholders:
            raise ValueError(f"ask: the prompt has no {', '.join(f'{{{one}}}' for one in sorted(unused))}")

    def _prompt(self, name: str, file: str | None) -> Prompt:
        if name not in self.own_prompts:
            self.own_prompts[name] = load_prompt(file, self.prompts_dir) if file else own_prompt(name)
        return self.own_prompts[name]


def reader(parse: Parser | Callable[[str], Any] | None) -> Parser:
    """Return a parser of (text, cut) from a method's function of the text; without one, the value is the text."""

    def read(text: str, cut: bool) -> Parsed:
        try:
            value = (writable(text).strip() or None) if parse is None else parse(text)
        except Exception as error:
            raise ParserError from error
        return (
            nothing("the method's parser found nothing usable") if value is None else Parsed(value, "strict", None, cut)
        )

    return parse if (getattr(parse, "__module__", None) or "").startswith("utils.") else read


@dataclass(eq=False)
class Step:
    """Records that go through a method.

    Attributes:
        method: a user's (`Method`), or our own async function of a record and an `Ask` that returns a piece. Ours are
            trusted to make the same calls each time.
        records: returns the method's first arguments, by key; called when the step begins, after earlier steps.
        unit: plural noun for its pieces.
        pieces: filled with the results.
        role: the only model that our own function asks, once per record; None if any model may be asked any number of
            times.
        finish: called when everything is answered, with the device if something was requested.
        after: the step that must be complete before this one begins.
        done: the number of pieces that already exist.
        is_shown: whether its progress is shown.
    """

    method: Any
    records: Callable[[], Mapping[Key, Any]]
    unit: str
    pieces: Pieces
    role: str | None = None
    finish: Callable[[str | None], None] = lambda device: None
    after: "Step | None" = None
    done: int = 0
    is_shown: bool = True
