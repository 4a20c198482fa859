"""Chat messages as a model reads them: token ids for a local model (local_chat.py), the messages themselves for an API.

`APIChat` leaves rendering to the server. It counts tokens with tiktoken, or estimates their number.
"""

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from prompts import Messages
from utils.base.errors import UserError
from utils.generation.local_chat import Counting, LocalChat
from utils.generation.requests import Rendered

PAPER_LENGTH = 8192  # tokens of prompt and output together, for every generator (paper, appendix E)
VERDICT_TOKENS = 512  # most tokens of a judge's output
TOKENS_PER_MESSAGE = 4  # tokens that OpenAI's chat format adds around each message
FETCH_SECONDS = 20  # to wait for tiktoken's table
BYTES_PER_TOKEN = 3  # a safe estimate without the model's tokenizer (English text has about 4)


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
        with suppress(KeyError, ValueError, OSError):  # unknown model, not the table, no connection
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
            f"  give a smaller {flag}"
        )
    return length


def limit_length(chat: Chat, flag: str, length: int | None, wanted: int) -> int:
    """Return `length` (UserError if it exceeds the model's limit); if it is None, `wanted`, at most that limit."""
    limit = chat.model_limit
    if length and limit and length > limit:
        raise UserError(f"{flag} {length}: the model supports at most {limit} tokens")
    return length or min(wanted, limit or wanted)
