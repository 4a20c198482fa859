"""Make a `Call` from a method's arguments: check them, choose prompt and parser, and fit the prompt into the window."""

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from prompts import History, Prompt, load_prompt, own_prompt
from utils.base.made import Key
from utils.benchmarks.checks import Record, is_unicode
from utils.benchmarks.metric import Judge, Parser
from utils.benchmarks.readers import Parsed, nothing, writable
from utils.benchmarks.task import Entries, Task
from utils.benchmarks.thoughts import CLOSING
from utils.generation.calls import Call, MistakeError, fitted_call
from utils.generation.model import Model
from utils.generation.thinking import opening_of
from utils.runs.loop import BRANCH

# Names that no placeholder can have, because they are parameters of `Ask.__call__`.
TAKEN = {"self", "prompt", "items", "parse", "model", "n", "max_tokens", "temperature", "stop"}


class Prompts:
    """The prompts of a run: the benchmark's by name, and a method's own by text. Each prompt is read only once."""

    def __init__(self, task: Task, prompts_dir: str | None):
        to_choose = task.options.prompts.values() if task.options else ()
        self.task, self._prompts_dir = task, prompts_dir
        self._files = {**task.prompts, **{file: file for file in to_choose}}
        self._read: dict[str, Prompt] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __getitem__(self, name: str) -> Prompt:
        """Return the prompt of this name, or of this text; ValueError if `name` is neither a known name nor a text."""
        if name not in self._read:
            if name in self._files or re.fullmatch(r"\w+/\w+", name):  # a benchmark's, or FOLDER/NAME
                self._read[name] = load_prompt(self._files.get(name, name), self._prompts_dir)
            elif re.search(r"[\s{]", name):
                self._read[name] = own_prompt(name)
            else:
                names = ", ".join(self._files)
                raise ValueError(f"ask: unknown prompt {name!r}; the prompts are {names}, or pass a text")
        return self._read[name]


def call_for_reward(model: Model, key: Key, judge: Judge, prompt: Prompt, record: Record, response: str) -> Call:
    """Return a call for a reward model's number for a dialogue that ends with the response.

    The profile's last posts are left out until the dialogue fits; `num_contexts_used` counts the posts that are kept.
    The call has no prompt if the dialogue does not fit even without posts.
    """
    if not model.is_local:
        _note_padding(model.addr)
    for number in range(len(record["profile"]), -1, -1):
        messages = judge.messages(prompt, {**record, "profile": record["profile"][:number]}, [response], 0)
        rendered = model.chat.render_dialogue(messages)
        if model.chat.length(rendered) < model.window.length:
            break
    else:
        rendered = None
    fields = {"num_contexts_used": number}
    return Call(key, rendered, writable, model.policy, fields, messages, is_rewarded=True)


@functools.cache
def _note_padding(addr: str) -> None:
    what = "if its padding token ends a dialogue, the server's rewards differ from those of a local model"
    print(f"note: {addr}: {what}, which are those of transformers (docs/evaluation.md)", file=sys.stderr)


@dataclass(frozen=True)
class Asked:
    """The arguments of a call.

    Attributes:
        prompt: the name of one of the benchmark's prompts, or a prompt's text.
        items: texts for {profile}, or the turns of a history, which come before the prompt.
        values: texts for the other placeholders.
        parse: a parser to use instead of the benchmark's parser of answers.
        overrides: max_tokens and temperature, which override the flags, and `stop`.
        schema: a schema for the output, instead of the benchmark's.
        options: texts by name; the call chooses the likeliest of them instead of generating text.
        fields: additional fields for the call's record.
    """

    prompt: str
    items: Sequence[Any] | History = ()
    values: Mapping[str, str] = field(default_factory=dict)
    parse: Parser | Callable[[str], Any] | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    schema: Mapping[str, Any] | str | None = None
    options: Mapping[str, str] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


def make_call(asked: Asked, record: Record, key: Key, model: Model, prompts: Prompts) -> Call:
    """Return the call with this key; ValueError if the method's arguments are invalid."""
    task, items, overrides, schema, parse = prompts.task, asked.items, dict(asked.overrides), asked.schema, asked.parse
    _check(items, parse, overrides)
    prompt, is_named = prompts[asked.prompt], asked.prompt in prompts
    filled = task.values(record) | asked.values
    _check_filled(prompt, filled, asked.values, items)
    filled = {placeholder: str(value) for placeholder, value in filled.items() if placeholder in prompt.placeholders}
    overrides["max_tokens"] = model.limit(overrides.get("max_tokens"))
    if schema is None and is_named and parse is None:
        schema = task.output.schema
    if schema is None:
        # Without a schema, nothing is constrained; `never` would only raise the temperature on each retry.
        overrides["constrained_decoding"] = "fallback"
    tokens = {option: model.chat.render_option(text) for option, text in (asked.options or {}).items()}
    if tokens:
        overrides["max_tokens"] = max(map(len, tokens.values())) + 1  # vLLM always generates one token
    policy = replace(model.policy, schema=schema, **overrides | {"stop": tuple(overrides.get("stop", ()))})
    if is_named and parse is None:
        parse = task.output.parse
    window = replace(model.window, max_tokens=policy.max_tokens)
    fit = window.fit_trimmed if isinstance(items, Entries) else window.fit
    fitted = fit(prompt, items, task.join, **filled)
    if policy.opened and fitted is not None and fitted.messages[-1]["role"] == "assistant":
        # The model continues this message. Templates open a thought before it only if the message ends that thought.
        begun = fitted.messages[-1]["content"]
        before = (model.chat.prompt_end if model.is_local else "<think>") if CLOSING.search(begun) else ""
        policy = replace(policy, opened=opening_of(before + begun) is not None)
    call = fitted_call(key, fitted, reader(parse), policy, **asked.fields)
    return replace(call, options=tokens) if tokens else call


def _check(items: Any, parse: Any, overrides: Mapping[str, Any]) -> None:
    if isinstance(items, str):
        raise ValueError("ask: items is a single text; pass a list of texts")
    tokens, temperature = overrides.get("max_tokens", 1), overrides.get("temperature", 0)
    if not isinstance(tokens, int) or tokens < 1:
        raise ValueError(f"ask: max_tokens is {tokens!r}; it must be a whole number, 1 or more")
    if not isinstance(temperature, float | int) or not 0 <= temperature < inf:  # also not NaN
        raise ValueError(f"ask: temperature is {temperature!r}; it must be a number, 0 or more")
    stop = overrides.get("stop", ["text"])
    is_list = isinstance(stop, list | tuple) and len(stop) > 0
    if not is_list or not all(isinstance(text, str) and text and is_unicode(text) for text in stop):
        raise ValueError(f"ask: stop is {stop!r}; it must be a list of texts")
    if inspect.iscoroutinefunction(parse):
        raise ValueError("ask: parse is async; use a plain function of the text")


def _check_filled(prompt: Prompt, filled: Mapping, values: Mapping, items: Sequence[Any] | History) -> None:
    def in_braces(names: set[str]) -> str:
        return ", ".join(f"{{{name}}}" for name in sorted(names))

    if taken := sorted(prompt.placeholders & TAKEN):
        raise ValueError(f"ask: {{{taken[0]}}} is a parameter of ask; rename the placeholder")
    if not isinstance(items, History) and len(items) and "profile" not in prompt.placeholders:
        raise ValueError("ask: items need {profile}, which is not in the prompt")
    if isinstance(items, History) and "profile" in prompt.placeholders:
        raise ValueError("ask: these items are turns of a history, which come before the prompt; remove {profile}")
    if missing := prompt.placeholders - filled.keys() - {"profile"}:
        raise ValueError(f"ask: the prompt has {in_braces(missing)}, but no value was passed for it")
    if unused := values.keys() - prompt.placeholders:
        raise ValueError(f"ask: a value was passed for {in_braces(unused)}, which is not in the prompt")


def reader(parse: Parser | Callable[[str], Any] | None) -> Parser:
    """Return a `Parser` for a method's `parse`: the same object if it is one of this project's parsers.

    If `parse` is None, the parser's value is the text itself.
    """

    branch = BRANCH.get()

    def read(text: str, cut: bool) -> Parsed:
        token = BRANCH.set(branch)  # the parser must obey the same limits as its method
        try:
            value = (writable(text).strip() or None) if parse is None else parse(text)
        except (Exception, SystemExit) as error:
            raise MistakeError from error
        finally:
            BRANCH.reset(token)
        return (
            nothing("the method's parser found nothing usable") if value is None else Parsed(value, "strict", None, cut)
        )

    return parse if (getattr(parse, "__module__", None) or "").startswith("utils.") else read
