"""Files of a model that a library reads or runs: whatever it raises over them is told as a fault of the files."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from utils.cli import UserError
from utils.cli.errors import printable, quote

TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")
MODEL_FILES = ("config.json", "generation_config.json", "weights")


@contextmanager
def loading(name: str | Path, *files: str) -> Iterator[None]:
    """For a library's call that reads these files of a model, and for nothing else: our own faults are no user's.

    Raises:
        UserError: the library raises anything; the message names the first file that is no JSON object, else all.
    """

    def what() -> str:
        damaged = [file for file in files if not _may_be_right(Path(name) / file)]
        return f"{name}: its {' or '.join(damaged[:1] or files)} cannot be loaded"

    with blaming(what):
        yield


@contextmanager
def blaming(what: Callable[[], str]) -> Iterator[None]:
    """Within this, whatever a library raises is a UserError: `what`, and the library's words in one line."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # that of tokenizers' Rust
            raise
        raise UserError(f"{what()}: {in_short(error)}") from error


def check_special_tokens(tokenizer: Any, config: Any, *names: str) -> None:
    """UserError if a loaded tokenizer lacks one of these tokens, which a padded batch needs, or its model does."""
    size = getattr(config, "vocab_size", None)
    for name in names:
        if (token := getattr(tokenizer, name)) is None:
            raise UserError(f"{tokenizer.name_or_path}: its tokenizer_config.json names no {name}")
        if type(size) is int and tokenizer.convert_tokens_to_ids(token) >= size:
            raise UserError(
                f"{tokenizer.name_or_path}: its tokenizer_config.json has {quote(token)} as {name}, which is not among "
                f"the {size} tokens of its model"
            )


def in_short(error: BaseException) -> str:
    """A library's error in one line that is fit for a terminal; its kind where it has no words."""
    lines = [line.strip() for line in printable(str(error)).strip().splitlines()] or [type(error).__name__]
    is_title = lines[0].endswith(":") or "validation error" in lines[0]  # the latter is pydantic's
    return " ".join(lines[: 2 if is_title else 1])[:300]


def _may_be_right(path: Path) -> bool:
    """It is a JSON object, or none, or not here."""
    try:
        return path.suffix != ".json" or not path.is_file() or isinstance(json.loads(path.read_bytes()), dict)
    except (OSError, ValueError, RecursionError):
        return False
