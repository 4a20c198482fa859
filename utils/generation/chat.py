"""Chat messages as a model reads them: token ids for a local model, the messages themselves for an API.

A local model's ids are made by its chat template and tokenizer; the engine adds no tokens (no second BOS). `PlainText`
is for an encoder-decoder, which has no chat template. `APIChat` leaves rendering to the server. It counts tokens with
tiktoken, or estimates their number.
"""

import math
import re
import sys
import threading
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import date
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from prompts import Messages
from utils.base.errors import UserError, quote
from utils.base.progress import announce
from utils.benchmarks.thoughts import CLOSING, OPENING
from utils.generation.requests import Rendered
from utils.generation.thinking import own_parser
from utils.models.loading import (
    TOKENIZER_FILES,
    blaming,
    check_special_tokens,
    check_tokens,
    loading,
    longest_sequence,
)
from utils.models.model_folder import ModelFolder

COUNTED = 50_000  # messages whose lengths are cached
# Tokens that count as control tokens even if the tokenizer does not mark them as special (DeepSeek: full-width bars).
CONTROL = re.compile(r"<[|｜][^|｜]+[|｜]>|</?(?:think|tool_\w+)>")
BREAK = "\ufdd0"  # a Unicode noncharacter; put into a control token's text so that it is read as ordinary text
# Some templates write today's date. They always get this one, the default of Llama 3's templates, so that prompts are
# the same on every day, and in training and answering.
TEMPLATE_DATE = "2024-07-26"
CLOCK = "strftime_now"  # a template's function for today's date
# The roles of a dialogue to test a template with; some templates refuse this order.
PROBE = ("system", "assistant", "user", "user", "assistant", "assistant", "system", "user")
PAPER_LENGTH = 8192  # tokens of prompt and output together, for every generator (paper, appendix E)
VERDICT_TOKENS = 512  # maximum length of a judge's output
TOKENS_PER_MESSAGE = 4  # tokens that OpenAI's chat format adds around each message
FETCH_SECONDS = 20  # to wait for tiktoken's table
BYTES_PER_TOKEN = 3  # a safe estimate without the model's tokenizer (English text has about 4)


def find_form(render: Callable[[Messages], str]) -> tuple[float, bool]:
    """Return arguments (num_systems, alternates) with which `fold` makes messages that a template renders correctly.

    The template must not drop or move a text, except for a system message at the beginning (Mistral's template moves it
    to the last user message). `render` may raise any exception; only a UserError ends the run.
    """
    forms = [(PROBE, num_systems, alternates) for alternates in (False, True) for num_systems in (math.inf, 1, 0)]
    forms.append((("system", "user"), 1, True))  # for templates that take a single question
    for roles, num_systems, alternates in forms:
        messages = [{"role": role, "content": f"c0ffee{number} text"} for number, role in enumerate(roles)]
        try:
            text = render(fold(messages, num_systems, alternates))
        except UserError:
            raise
        except Exception:  # the template refuses this form
            continue
        first, *others = (text.find(message["content"]) for message in messages)
        if -1 not in (first, *others) and others == sorted(others):
            return num_systems, alternates
    return 0, True


def fold(messages: Messages, num_systems: float, alternates: bool) -> Messages:
    """Convert messages to a form that a template accepts, keeping the order of the texts.

    Args:
        num_systems: system messages are kept among this many first messages. A later system message becomes a user
            message, and is merged with a user message that follows it.
        alternates: user and assistant must alternate, beginning with the user. If the assistant's message comes first,
            it becomes a user message; consecutive messages of the same role are merged.
    """
    folded: Messages = []
    is_refused = False  # whether the previous message is a system message that became a user message
    for number, message in enumerate(messages):
        role, content = message["role"], message["content"]
        merges, is_refused = is_refused or alternates, role == "system" and number >= num_systems
        if is_refused or (alternates and role == "assistant" and all(kept["role"] == "system" for kept in folded)):
            role = "user"
        if merges and folded and folded[-1]["role"] == role:
            content = f"{folded.pop()['content']}\n\n{content}"
        folded.append({"role": role, "content": content})
    return folded


def open_local_chat(model: ModelFolder, *args: Any, **settings: Any) -> "LocalChat":
    """Announce and load a local model's chat; the first call takes seconds, because it imports transformers."""
    announce(f"loading the tokenizer of {model.addr}")
    return LocalChat(model, *args, **settings)


def load_tokenizer(model: ModelFolder) -> tuple[Any, Any]:
    """Return a model's tokenizer and config; for an adapter, its own tokenizer if it has one, else its base model's.

    UserError if they are missing or damaged.
    """
    from transformers import AutoConfig, AutoTokenizer

    base, source = model.base.addr, model.base.source
    tokenizer_addr = model.addr if (Path(model.addr) / "tokenizer_config.json").is_file() else base
    with loading(base, "config.json"):
        config = AutoConfig.from_pretrained(base, **source).get_text_config()
    with loading(tokenizer_addr, *TOKENIZER_FILES):
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_addr, **source)
        tokenizer("text")  # checks some fields that loading does not
    if not tokenizer.encode("text", add_special_tokens=False):
        raise UserError(f"{tokenizer_addr}: its tokenizer has no vocabulary; is tokenizer.json missing?")
    return tokenizer, config


class Counting:
    """The base class of chats: defaults, and a cached version of the subclass's `count`."""

    count: Callable[[str], int]
    date: str | None = None  # the date that the template writes
    end_of_turn: int | None = None

    @property
    def dated(self) -> dict[str, str]:
        """Return the date as a field of manifests; empty if the template writes none."""
        return {"template_date": self.date} if self.date else {}

    @cached_property
    def count_again(self) -> Callable[[str], int]:
        """`count` with a cache, for the messages of a history that several questions share."""
        return lru_cache(COUNTED)(self.count)


class LocalChat(Counting):
    """Renders messages with a model's chat template.

    Attributes:
        model_limit: the longest sequence the model was made for, in tokens; None if its config does not say.
        counter: how tokens are counted, for the manifest.
        num_tokens: the size of the model's vocabulary; None if its config does not say.
        variables: values for the template's variables, besides the messages.
        date: the date that the template writes as today's, YYYY-MM-DD; None if it writes none.
        prompt_end: the text that the template adds after the user's text.
        own_parser: the name of vLLM's reasoning parser for this model, found in its files; None if it needs none.

    Raises:
        UserError: model files are damaged; the chat template is missing, fails, or drops the user's text; there are
            several templates and none is the default; or the template does not know one of the `variables` (with
            `only_known`, such variables are ignored). Rendering also raises it if the model lacks a token of the text.

    A control token in a message is rendered as characters, so that no text can end its turn. There is one
    exception: if the last message is the assistant's, it is the beginning of the reply, and marks in it that close a
    thought stay control tokens.
    """

    counter = "the model's tokenizer"
    behind = ""  # a text that is added to the end of each prompt
    _clock: dict[str, Callable[[str], str]] = {}  # noqa: RUF012 (never changed)

    def __init__(
        self,
        model: ModelFolder,
        variables: dict[str, Any] | None = None,
        only_known: bool = False,
    ):
        self.tokenizer, config = load_tokenizer(model)
        self.num_tokens = getattr(config, "vocab_size", None)
        if not (template := self.tokenizer.chat_template):
            raise UserError(f"{self.tokenizer.name_or_path}: has no chat template; use an instruction-tuned model")
        if isinstance(template, dict) and "default" not in template:
            raise UserError(
                f"{self.tokenizer.name_or_path}: none of its chat templates ({', '.join(template)}) is named default\n"
                "  in a copy of its folder, save the one to use as chat_template.jinja"
            )
        self.model_limit, self._padding = longest_sequence(config), getattr(config, "pad_token_id", None)
        self.variables = self._choose_variables(variables or {}, only_known)
        if CLOCK in self.tokenizer.get_chat_template():
            self.date = str(self.variables.get(CLOCK, TEMPLATE_DATE))
            try:
                self._clock = {CLOCK: date.fromisoformat(self.date).strftime}
            except ValueError:
                raise UserError(f"--chat_template_kwargs: {CLOCK} is {self.date}, not a date (YYYY-MM-DD)") from None
        self.prompt_end = self._check_template()
        if self.prompt_end.strip() and self._marks.search(self.prompt_end) is None:
            end = quote(self.prompt_end.strip())
            problem = f"its chat template ends the user's turn with plain text, {end}, which a post may contain too"
            print(f"note: {model.addr}: {problem}", file=sys.stderr)
        self.own_parser = own_parser(getattr(config, "model_type", None), self.tokenizer)

    def _choose_variables(self, variables: dict[str, Any], only_known: bool) -> dict[str, Any]:
        """Return the variables that the template knows; UserError for any other, because the template ignores it."""
        text = self.tokenizer.get_chat_template()
        chosen = {name: value for name, value in variables.items() if re.search(rf"\b{re.escape(name)}\b", text)}
        unknown = sorted(variables.keys() - chosen.keys())
        if unknown and not only_known:
            name = unknown[0]
            flag = name if name == "reasoning_effort" else f"chat_template_kwargs: {name}"
            remedy = "remove it, or check the name in the model card"
            raise UserError(f"--{flag}: {self._template} has no such variable\n  {remedy}")
        return chosen

    def _check_template(self) -> str:
        """Check the template, and return the text that it adds after the user's text."""
        question = "c0ffee question"
        with self._blaming_template():
            text = self._apply([{"role": "user", "content": question}])
            self._encode_all([text])
        if question not in text:
            raise UserError(f"{self._template} drops the user's text; use another model")
        return text.rpartition(question)[2]

    def render(self, messages: Messages) -> array:
        """Return a prompt's token ids, up to the assistant's reply; the last message may be the reply's beginning."""
        return self._encode_all([self._text(messages)])[0]

    def render_dialogue(self, messages: Messages) -> array:
        """Return the token ids of a whole dialogue, with the end of the assistant's last turn, for a reward model.

        Padding tokens at its end are left off. vLLM reads the reward at the last token; transformers and the model's
        training read it at the last token that is not padding (GenericForSequenceClassification).
        """
        with self._blaming_template():
            texts = [{**message, "content": self._as_text(message["content"])} for message in messages]
            ids = self._encode_all([self._apply(fold(texts, *self._form), asks=False)])[0]
        while len(ids) > 1 and ids[-1] == self._padding:
            ids.pop()
        return ids

    def _text(self, messages: Messages) -> str:
        """Return a prompt's text. If the last message begins the reply, the template renders it as a turn to continue.

        A beginning that ends a thought is not rendered, because templates leave out thoughts of earlier turns. It is
        appended to the rendered prompt, which may already open the thought.
        """
        begun = ""
        is_continued = messages[-1]["role"] == "assistant" and not CLOSING.search(messages[-1]["content"])
        if messages[-1]["role"] == "assistant" and not is_continued:
            *messages, last = messages
            said = last["content"]
            if (opening := OPENING.match(said)) and self.prompt_end.rstrip().endswith(opening[0]):
                said = said[opening.end() :].lstrip("\n")  # the template has opened this thought
            parts = re.split(f"({CLOSING.pattern})", said)
            begun = "".join(part if CLOSING.fullmatch(part) else self._as_text(part) for part in parts)
        with self._blaming_template():
            texts = [{**message, "content": self._as_text(message["content"])} for message in messages]
            if is_continued:
                return self._apply(fold(texts, *self._form), asks=False, continue_final_message=True)
            return self._apply(fold(texts, *self._form)) + self.behind + begun

    def _apply(self, messages: Messages, asks: bool = True, **more: bool) -> str:
        """Return the template's text for messages; with `asks`, it ends where the assistant's turn begins."""
        variables = {"add_generation_prompt": asks, "tokenize": False, **more, **self.variables, **self._clock}
        return self.tokenizer.apply_chat_template(messages, **variables)

    def _blaming_template(self) -> AbstractContextManager[None]:
        return blaming(lambda: f"{self._template} fails")

    @property
    def _template(self) -> str:
        folder = self.tokenizer.name_or_path
        files = ("chat_template.jinja", "tokenizer_config.json")
        return f"{folder}: its chat template ({next((f for f in files if (Path(folder) / f).is_file()), files[1])})"

    def _as_text(self, text: str) -> str:
        """Return a text with a `BREAK` in each control token, so that `_encode_all` reads them as characters."""
        text = text.replace(BREAK, "")
        while self._marks.search(text):  # repeated, because marks may overlap, as in <<s>>
            text = self._marks.sub(lambda mark: mark[0][0] + BREAK + mark[0][1:], text)
        return text

    @cached_property
    def _marks(self) -> re.Pattern[str]:
        """The texts that the tokenizer reads as control tokens."""
        marks = {
            token.content: number
            for number, token in self.tokenizer.added_tokens_decoder.items()
            if len(token.content) > 1 and (token.special or CONTROL.fullmatch(token.content))
        }
        broken = self._encode_all([mark[0] + BREAK + mark[1:] for mark in marks])
        unknown = self.tokenizer.unk_token
        if stuck := [mark for mark, ids in zip(marks, broken, strict=True) if marks[mark] in ids and mark != unknown]:
            problem = f"its tokenizer reads {stuck[0]} as a control token in any text"
            print(f"note: {self.tokenizer.name_or_path}: {problem}", file=sys.stderr)
        longest_first = sorted(marks, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def _encode_all(self, texts: list[str]) -> list[array]:
        """Return the token ids of texts, encoding the parts around each `BREAK` separately, without special tokens."""
        if not texts:
            return []
        if any(BREAK in text for text in texts):
            parts = [text.split(BREAK) for text in texts]
            encoded = iter(self._encode_all([*chain.from_iterable(parts)]))
            return [array("i", chain.from_iterable(next(encoded) for _ in pieces)) for pieces in parts]
        if backend := getattr(self.tokenizer, "backend_tokenizer", None):
            backend.no_truncation()
            backend.no_padding()
            encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
            return [self._checked(encoding.ids) for encoding in encodings]
        return [self._checked(ids) for ids in self.tokenizer(texts, add_special_tokens=False)["input_ids"]]

    def _checked(self, ids: Sequence[int]) -> array:
        """Return token ids as an array; UserError if the model lacks one of these tokens."""
        check_tokens(ids, self.tokenizer, self.num_tokens)
        return array("i", ids)

    @cached_property
    def _form(self) -> tuple[float, bool]:
        """The result of `find_form`: some templates refuse the system role (Gemma 2), others silently drop its text."""
        return find_form(self._apply)

    def render_reply(self, text: str) -> array:
        """Return the token ids of the assistant's reply to a prompt of `render`, with the token that ends the turn."""
        if self.end_of_turn is None:
            problem = "does not end the assistant's turn, and its tokenizer_config.json has no eos_token"
            raise UserError(f"{self._template} {problem}; use another model")
        return self._checked([*self.render_option(text), self.end_of_turn])

    def render_option(self, text: str) -> array:
        """Return the token ids of a possible beginning of the assistant's reply to a prompt of `render`.

        The prompt ends where the reply begins, so the text has the same tokens after the prompt as on its own.
        """
        return self._encode_all([self._as_text(text)])[0]

    @cached_property
    def end_of_turn(self) -> int:
        """The token that the template puts after the assistant's text, else the EOS token; generation stops there."""
        marker = "c0ffee reply"
        messages = [{"role": "user", "content": "question"}, {"role": "assistant", "content": marker}]
        with self._blaming_template():
            after = self._apply(messages, asks=False).rpartition(marker)[2]
        added = self.tokenizer.added_tokens_decoder
        ids = self.tokenizer.encode(after, add_special_tokens=False)
        special = (token for token in ids if token in added and added[token].special)
        return next(special, self.tokenizer.eos_token_id)

    def length(self, rendered: Rendered) -> int:
        return len(rendered)

    def count(self, text: str) -> int:
        """Return the number of tokens of a text within a message."""
        return len(self._encode_all([self._as_text(text)])[0])


class PlainText(LocalChat):
    """Renders only the last message of a prompt, without a template, and adds the end-of-text token, as in training."""

    def __init__(self, model: ModelFolder):
        self.tokenizer, config = load_tokenizer(model)
        self.num_tokens = getattr(config, "vocab_size", None)
        self.model_limit = None  # T5's positions are relative
        check_special_tokens(self.tokenizer, config, "pad_token", "eos_token")

    def render(self, messages: Messages) -> array:
        return self.render_reply(messages[-1]["content"])

    @property
    def end_of_turn(self) -> int:
        return self.tokenizer.eos_token_id


class APIChat(Counting):
    """Passes messages to an API. Counts tokens with tiktoken if tiktoken knows the model; otherwise, estimates them."""

    model_limit = None

    def __init__(self, model: str):
        self._encode = _tiktoken_encoder(model)
        self.counter = "tiktoken" if self._encode else f"estimate: 1 token per {BYTES_PER_TOKEN} bytes"

    def render(self, messages: Messages) -> Messages:
        return messages

    render_dialogue = render

    def length(self, rendered: Rendered) -> int:
        count = self.count_again if len(rendered) > 2 else self.count
        return sum(TOKENS_PER_MESSAGE + count(message["content"]) for message in rendered)

    def count(self, text: str) -> int:
        """Return the number of tokens of a text, or an estimate."""
        return len(self._encode(text)) if self._encode else math.ceil(len(text.encode()) / BYTES_PER_TOKEN)


Chat = LocalChat | APIChat


def _tiktoken_encoder(model: str) -> Callable[[str], list[int]] | None:
    """Return tiktoken's encoder for a model; None if tiktoken does not know it or cannot fetch its table in time."""
    import tiktoken

    encodings: list[Any] = []

    def fetch() -> None:
        with suppress(KeyError, ValueError, OSError):  # unknown model, invalid table, no connection
            encodings.append(tiktoken.encoding_for_model(model))

    # In a thread, because tiktoken sets no time limit: behind some firewalls, its request would hang forever.
    thread = threading.Thread(target=fetch, daemon=True)
    thread.start()
    thread.join(FETCH_SECONDS)
    return (lambda text: encodings[0].encode(text, disallowed_special=())) if encodings else None


def choose_length(
    chat: Chat, max_model_len: int | None, max_tokens: int, wanted: int, flag: str = "--max_tokens"
) -> int:
    """Return the length of prompt and output together, in tokens: the user's, or `wanted` up to the model's limit.

    UserError if the user's length exceeds that limit or leaves no room for the prompt.
    """
    length = limit_length(chat, "--max_model_len", max_model_len, wanted)
    if max_tokens >= length:
        raise UserError(
            f"{flag} {max_tokens} leaves no room for the prompt: prompt and output share {length} tokens\n"
            f"  lower {flag}"
        )
    return length


def limit_length(chat: Chat, flag: str, length: int | None, wanted: int) -> int:
    """Return `length`; if it is None, return `wanted` or the model's limit, whichever is less.

    UserError if `length` exceeds the model's limit.
    """
    limit = chat.model_limit
    if length and limit and length > limit:
        raise UserError(f"{flag} {length}: the model supports at most {limit} tokens")
    return length or min(wanted, limit or wanted)
