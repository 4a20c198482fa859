"""A model in a run: its policy for sampling and retries, and the lengths of its prompts and outputs.

Every try has a different seed. With --constrained_decoding `fallback`, the default, the last try is constrained to the
schema; with `always`, every try is. With `never`, as in the reference code, each retry raises the temperature by 0.1,
up to 1.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from utils.base.cli import FURTHER, Arguments
from utils.base.errors import UserError
from utils.base.made import Key
from utils.base.progress import announce
from utils.generation.chat import PAPER_LENGTH, APIChat, Chat, choose_length, open_local_chat
from utils.generation.completions import Completions
from utils.generation.fitting import Window
from utils.generation.requests import Engine, Sampling
from utils.generation.thinking import GPT_OSS, Thoughts, end_thoughts, find_thoughts, template_variables
from utils.models.model_folder import ModelFolder


@dataclass(frozen=True)
class Policy:
    """How outputs are sampled and requested again (the flags of `cli.add_sampling_arguments`)."""

    temperature: float | None  # None, here and for top_p: the default of the model or its server
    top_p: float | None
    max_tokens: int
    seed: int | None
    max_retries: int
    constrained_decoding: str
    schema: dict[str, Any] | str | None = None  # set by each call
    further: dict[str, Any] = field(default_factory=dict)  # flags of FURTHER that are given
    reasoning_parser: str | None = None
    opened: bool | None = None  # `Sampling.opened`, according to the model's template
    stop_token: int | None = None  # `Sampling.stop_token`, according to the model's template
    stop: tuple[str, ...] = ()  # `Sampling.stop`, set by each call

    def sampling(self, key: Key, attempt: int) -> Sampling:
        """Return the sampling of the try `attempt` (from 0). Its seed depends only on --seed, the key and the try."""
        temperature = self.temperature
        if self.constrained_decoding == "never" and temperature is not None:
            temperature = max(temperature, min(1.0, round(temperature + 0.1 * attempt, 6)))
        seed = int.from_bytes(hashlib.sha256(repr((self.seed, key, attempt)).encode()).digest()[:4], "big") >> 1
        schema = self.schema if self._is_constrained(attempt) else None
        others = (self.reasoning_parser, self.opened, self.stop_token, self.stop)
        return Sampling(temperature, self.top_p, self.max_tokens, seed, schema, attempt, self.further, *others)

    def is_last(self, attempt: int) -> bool:
        """Return whether this is the last try. A greedy constrained try is the last, because another would repeat it.

        This rule also applies if the server refuses the schema or the temperature 0.
        """
        return attempt >= self.max_retries or (self._is_constrained(attempt) and self.temperature == 0)

    def _is_constrained(self, attempt: int) -> bool:
        if self.constrained_decoding == "fallback":
            # A greedy free try would only repeat itself, so the second try is already constrained.
            return attempt >= self.max_retries or (attempt > 0 and self.temperature == 0)
        return self.constrained_decoding == "always"


@dataclass(frozen=True)
class Model:
    """A model as a run uses it.

    Its tokenizer is loaded when it is first needed, so that a finished command does not wait for it.
    """

    addr: str
    identity: str  # distinguishes it from all other models, for the settings
    flags: Arguments  # how this model is loaded or reached, and sampled
    completions: Completions  # gives its stored and new completions
    folder: ModelFolder | None = None  # the model's files; None if it is behind an API
    wanted_length: int = PAPER_LENGTH  # tokens of prompt and output together, unless flags or the model limit them
    max_tokens_flag: str = "--max_tokens"  # the name of the flag whose value is `flags.max_tokens`
    only_scores: bool = False  # whether it only scores how likely given texts are, and writes no text
    gives_rewards: bool = False  # whether it is a classifier, which gives a dialogue a number and writes no text

    @property
    def is_local(self) -> bool:
        return not self.flags.openai

    @property
    def settings(self) -> dict[str, Any]:
        """Further settings on which the model's answers depend; empty if vLLM or an API runs the model."""
        return {}

    @property
    def figures(self) -> dict[str, Any]:
        """Values that flags leave open, for the manifest: lengths, parser, token counter, and the template's date."""
        lengths = {"max_tokens": self.window.max_tokens, "max_model_len": self.window.length}
        parser = {"reasoning_parser": self.policy.reasoning_parser} if self.policy.reasoning_parser else {}
        return {**lengths, **parser, "token_counter": self.chat.counter, **self.chat.dated}

    @property
    def made_with(self) -> dict[str, Any]:
        """The settings of the training that made the model; empty if that is unknown."""
        return self.folder.made_with if self.folder else {}

    @property
    def trained(self) -> dict[str, Any]:
        """The settings of the training, if utils/train_generator.py made the model; otherwise empty."""
        return self.folder.trained if self.folder else {}

    @property
    def saw_in_training(self) -> list[str]:
        """The scorer's fields that the model's training used, according to its manifest."""
        return self.trained.get("saw_in_training") or []

    @property
    def rewarded_by(self) -> list[str]:
        """The identities of the judges whose scores trained the model, chose its texts, or chose it among models."""
        return self.folder.rewarded_by if self.folder else []

    @property
    def trained_on(self) -> list[str]:
        """The hashes of the datasets that trained or chose this model, or the model that its training began with."""
        return self.folder.trained_on if self.folder else []

    def load(self) -> None:
        """Load the tokenizer, and check lengths and store: a mistake ends the run before an engine opens."""
        if not self.flags.cached_only:
            self.completions.store.check_writable()
        _ = self.policy

    @cached_property
    def chat(self) -> Chat:
        chat = self._open_chat()
        if self.only_scores:
            end_thoughts(chat, find_thoughts(self.flags, chat, self.addr, self.made_with))
        return chat

    def _open_chat(self) -> Chat:
        if self.is_local:
            return open_local_chat(self.folder, template_variables(self.flags))
        return APIChat(self.addr)

    @cached_property
    def thoughts(self) -> Thoughts:
        return find_thoughts(self.flags, self.chat, self.addr, self.made_with)

    @cached_property
    def window(self) -> Window:
        max_tokens, room = self._reserve()
        wanted = self.wanted_length + room
        length = choose_length(self.chat, self.flags.max_model_len, max_tokens, wanted, self.max_tokens_flag)
        return Window(self.chat, length, max_tokens)

    @property
    def engine_length(self) -> int:
        """The engine's limit on tokens of prompt and output together; -1: whatever fits into the memory."""
        return self.window.length

    def _reserve(self) -> tuple[int, int]:
        """Return the tokens to reserve for an output, and how many of them were added for thoughts."""
        if self.only_scores or self.gives_rewards:
            return 1, 0  # each call reserves what its options need
        room = self._room_by_flags
        tokens = self.flags.max_tokens + room
        if self.thoughts.thinks:
            parser = f" (--reasoning_parser {self.thoughts.parser})" if self.thoughts.parser else ""
            what = f"including {room} for its thoughts (a guess)" if room else "its thoughts included"
            announce(f"{self.addr} is a reasoning model{parser}: {self.max_tokens_flag} {tokens}, {what}")
        return tokens, room

    @property
    def _room_by_flags(self) -> int:
        is_given = self.max_tokens_flag.removeprefix("--") in self.flags.given
        return self.thoughts.room(is_given, self.flags.max_model_len, self.chat.model_limit)

    def limit(self, max_tokens: int | None) -> int:
        """Return the most tokens of an output, thoughts included; `max_tokens` is a method's own limit, or None.

        Room for thoughts is added to a method's limit, and to the flag's value unless the user gave it.
        """
        if max_tokens is None:
            return self.window.max_tokens
        return max_tokens + (self._room_by_flags or self.thoughts.room(False, self.window.length))

    @cached_property
    def policy(self) -> Policy:
        """How outputs are sampled and requested again; UserError if a local model has no seed."""
        flags, thoughts = self.flags, self.thoughts
        if flags.seed is None and self.is_local:
            raise UserError("--seed none: only for an API; a local model needs a seed")
        return Policy(
            flags.temperature,
            flags.top_p,
            self.window.max_tokens,
            flags.seed,
            flags.max_retries,
            flags.constrained_decoding,
            further=self._further(),
            reasoning_parser=thoughts.parser,
            opened=thoughts.opened,
            # gpt-oss ends a turn by channels, which its parser knows.
            stop_token=None if thoughts.parser == GPT_OSS else self.chat.end_of_turn,
        )

    def _further(self) -> dict[str, Any]:
        return {name: value for name in FURTHER if (value := getattr(self.flags, name)) not in (None, {})}

    def open_engine(self) -> Engine | None:
        """Return an engine that runs only this model; None if vLLM or an API runs it."""
        return None

    def describe_memory(self) -> list[str] | None:
        """Return lines on the memory that `open_engine`'s engine needs (--dry_run); None if there is no such engine."""
        return None


def settings_by_scores(models: Sequence[Model], inputs: str, before: Iterable[str] = ()) -> dict[str, Any]:
    """Return the settings of an output that say which scores trained or chose its models.

    Args:
        inputs: the answered dataset's hash; the models may have been trained or chosen on it.
        before: judges whose scores trained or chose the models behind texts that these models read.
    """
    chosen = {"chose_checkpoint": True} if any(inputs in model.trained_on for model in models) else {}
    judges = sorted({*before, *(judge for model in models for judge in model.rewarded_by)})
    return chosen | ({"rewarded_by": judges} if judges else {})
