"""A model in a run: its policy for sampling and retries, and prompts within its budget.

Every try has another seed. By default (`fallback`), the last try is constrained to the schema; `always` constrains
every try; `never`, the reference code's way, raises the temperature by 0.1 per try, up to 1.
"""

import hashlib
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from prompts import History, Prompt
from utils.cli import UserError
from utils.files.output import Key
from utils.generation.chat import Chat
from utils.generation.completions import Completions
from utils.generation.fitting import Entry, Fitted, fit_items, fit_trimmed
from utils.generation.requests import FURTHER, Engine, Sampling
from utils.generation.thinking import GPT_OSS, Thoughts


@dataclass(frozen=True)
class Policy:
    """How outputs are sampled and requested again (the flags of `cli.add_sampling_arguments`)."""

    temperature: float | None  # None, as for top_p: the default of the model or its server
    top_p: float | None
    max_tokens: int
    seed: int | None
    max_retries: int
    constrained_decoding: str
    schema: dict[str, Any] | str
    further: dict[str, Any] = field(default_factory=dict)  # flags of FURTHER that are given
    reasoning_parser: str | None = None
    opened: bool | None = None  # `Sampling.opened`, by the model's template
    stop_token: int | None = None  # `Sampling.stop_token`, likewise

    @classmethod
    def from_arguments(cls, args: Namespace, schema: dict[str, Any] | str) -> "Policy":
        """Make a policy from flags; UserError if a local model has no seed."""
        if args.seed is None and not args.openai:
            raise UserError("--seed none: only for an API; a local model needs a seed")
        found = ("schema", "further", "opened", "stop_token")
        names = [field.name for field in fields(cls) if field.name not in found]
        further = {name: value for name in FURTHER if (value := vars(args).get(name)) not in (None, {})}
        return cls(**{name: getattr(args, name) for name in names}, schema=schema, further=further)

    def for_chat(self, chat: Chat, thoughts: Thoughts) -> "Policy":
        """Return the policy with what a model's template tells: how it thinks, and which token ends its turn."""
        # gpt-oss ends a turn by channels, which its parser knows.
        stop_token = None if thoughts.parser == GPT_OSS else chat.end_of_turn
        return replace(self, reasoning_parser=thoughts.parser, opened=thoughts.opened, stop_token=stop_token)

    def sampling(self, key: Key, attempt: int, is_sampled: bool = False) -> Sampling:
        """Return the sampling of one try (from 0). Its seed depends only on the key and the try.

        `is_sampled`: the server refuses temperature, so the model is not greedy even at 0.
        """
        temperature = self.temperature
        if self.constrained_decoding == "never" and temperature is not None:
            temperature = max(temperature, min(1.0, round(temperature + 0.1 * attempt, 6)))
        seed = int.from_bytes(hashlib.sha256(repr((self.seed, key, attempt)).encode()).digest()[:4], "big") >> 1
        schema = self.schema if self._is_constrained(attempt, is_sampled) else None
        own = {"reasoning_parser": self.reasoning_parser, "opened": self.opened}
        own["stop_token"] = self.stop_token
        return Sampling(temperature, self.top_p, self.max_tokens, seed, schema, attempt, self.further, **own)

    def is_last(self, attempt: int, is_sampled: bool = False) -> bool:
        """Return whether this is the last try; a greedy constrained try is, because another would repeat it.

        It stays the last one if the server refuses the schema and constrains it less.
        """
        return attempt >= self.max_retries or (self._is_constrained(attempt, is_sampled) and self.is_greedy(is_sampled))

    def is_greedy(self, is_sampled: bool) -> bool:
        return self.temperature == 0 and not is_sampled

    def _is_constrained(self, attempt: int, is_sampled: bool) -> bool:
        if self.constrained_decoding == "fallback":
            # A greedy free try would only repeat itself, so the second try is already constrained.
            return attempt >= self.max_retries or (attempt > 0 and self.is_greedy(is_sampled))
        return self.constrained_decoding == "always"


@dataclass(frozen=True)
class Model:
    """A model as a run uses it."""

    addr: str
    identity: str  # tells it from any other model, for the settings
    chat: Chat
    length: int  # tokens of prompt and output together
    policy: Policy
    completions: Completions | None = None  # its earlier completions; None in a training
    trained: dict[str, Any] = field(default_factory=dict)  # `trained_settings`
    thought_room: int = 0  # tokens to add for thoughts to an output's limit that a method sets

    @property
    def settings(self) -> dict[str, Any]:
        """Further settings that decide its answers; none if vLLM or an API runs the model."""
        return {}

    @property
    def figures(self) -> dict[str, str]:
        """Return prompt settings for the manifest: how tokens are counted, and the date that the template writes."""
        return {"token_counter": self.chat.counter, **self.chat.dated}

    @property
    def saw_in_training(self) -> list[str]:
        """Return the scorer's fields that its training used, by its manifest."""
        return self.trained.get("saw_in_training") or []

    def open_engine(self, args: Namespace) -> Engine | None:
        """Load it on an engine of its own; None if vLLM or an API runs it."""
        return None

    def describe_memory(self, args: Namespace) -> list[str] | None:
        """Describe the memory that such an engine needs (--dry_run)."""
        return None

    def fit(
        self, prompt: Prompt, items: Sequence[str] | History, join: Callable[[list[str]], str], **values: str
    ) -> Fitted | None:
        """Fit a prompt into its length (`fit_items`)."""
        return fit_items(prompt, items, self.chat, self.length - self.policy.max_tokens, join, **values)

    def fit_trimmed(
        self, prompt: Prompt, entries: Sequence[Entry], join: Callable[[list[str]], str], **values: str
    ) -> Fitted | None:
        """Fit a prompt into its length (`fit_trimmed`)."""
        return fit_trimmed(prompt, entries, self.chat, self.length - self.policy.max_tokens, join, **values)
