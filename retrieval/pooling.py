"""How an encoder makes one embedding of a text, according to a model's sentence-transformers files.

`modules.json` lists the layers (Transformer, Pooling, Normalize); `1_Pooling/config.json` sets the pooling;
`config_sentence_transformers.json` has prefixes for questions and posts. A model without these files is mean-pooled,
like Contriever (Izacard et al. 2022), not normalized, and without prefixes.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from utils.cli import UserError
from utils.models.hub import model_file

MODES = ("mean", "cls")
MODULES = {"Transformer", "Pooling", "Normalize"}
WITHOUT_FILES = ("facebook/contriever", "facebook/contriever-msmarco")  # so that the hub need not be asked
OVERRIDE = "--pooling mean or --pooling cls overrides this file"
# Names of prompts in config_sentence_transformers.json, by sentence-transformers' rule for questions and documents.
QUERY, PASSAGE = ("query",), ("document", "passage", "corpus")

T = TypeVar("T")


@dataclass(frozen=True)
class Pooling:
    """What is put before a text, and how hidden states (T, D) become an embedding (D,)."""

    mode: str = "mean"  # over all tokens, or "cls", the first token's state
    normalize: bool = False  # to length 1, so that a dot product is a cosine
    prefixes: tuple[str, str] = ("", "")  # of a question and of a post

    def __str__(self) -> str:
        query, passage = self.prefixes
        pooling = f"{self.mode} pooling" + (", normalized" if self.normalize else "")
        return pooling + (f", {query!r} before questions, {passage!r} before posts" if query or passage else "")


MEAN = Pooling()  # Contriever's


def choose_pooling(
    name: str, cache_dir: str | None = None, mode: str | None = None, normalize: bool | None = None
) -> Pooling:
    """Return the user's pooling, completed from the model's files; call `check_model` first.

    Raises:
        UserError: the files are damaged; they name an unsupported layer or pooling, and `mode` is not given; the model
            is an encoder-decoder; or the hub fails.
    """
    if name in WITHOUT_FILES:
        return Pooling(mode or MEAN.mode, bool(normalize))
    if _read(name, "config.json", cache_dir, lambda config: config.get("is_encoder_decoder")):
        raise UserError(
            f"{name}: encoder-decoder models cannot be used for ranking\n  give a BERT-like encoder as --model_name"
        )
    prefixes = _read(name, "config_sentence_transformers.json", cache_dir, _prefixes_of) or MEAN.prefixes
    modules = None
    if mode is None or normalize is None:

        def kinds_and_paths(entries: list[dict[str, str]]) -> list[tuple[str, str]]:
            # Only a class's name is the same in all versions of the library; its Python module is not.
            return [(entry["type"].rpartition(".")[2], entry["path"]) for entry in entries]

        modules = _read(name, "modules.json", cache_dir, kinds_and_paths)
    if modules is None:
        return Pooling(mode or MEAN.mode, bool(normalize), prefixes)
    kinds = [kind for kind, _ in modules]
    if mode is None:
        if other := sorted(set(kinds) - MODULES):
            raise UserError(f"{name}: modules.json: unsupported layer {other[0]}\n  {OVERRIDE}")
        paths = [path for kind, path in modules if kind == "Pooling"]
        mode = _read_mode(name, paths[0], cache_dir) if paths else MEAN.mode
    return Pooling(mode, "Normalize" in kinds if normalize is None else normalize, prefixes)


def _prefixes_of(config: dict[str, Any]) -> tuple[str, str]:
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")

    def prefix(words: tuple[str, ...]) -> str:
        named = (name for word in words for name in prompts if re.search(rf"(?:^|[_.-]){word}$", name.lower()))
        name = next((word for word in words if word in prompts), None) or next(named, default)
        return "" if name is None else "" + prompts[name]

    return prefix(QUERY), prefix(PASSAGE)


def _read_mode(name: str, path: str, cache_dir: str | None) -> str:
    file = f"{path}/config.json"
    modes = _read(name, file, cache_dir, _modes_of)
    if modes is None:
        raise UserError(f"{name}: lacks {file}, which its modules.json names\n  {OVERRIDE}")
    if len(modes) > 1:
        raise UserError(f"{name}: {file}: combines {' and '.join(modes)} pooling, which is not supported\n  {OVERRIDE}")
    if modes[0] not in MODES:
        raise UserError(f"{name}: {file}: {modes[0]} pooling is not supported\n  {OVERRIDE}")
    return modes[0]


def _modes_of(config: dict[str, Any]) -> list[str]:
    """Return the pooling modes in a config: named in current files, one boolean field per mode in older ones."""
    named = config.get("pooling_mode")
    if named is not None:
        return [str(mode) for mode in ([named] if isinstance(named, str) else named)]
    on = [field for field, value in config.items() if field.startswith("pooling_mode_") and value is True]
    return [re.sub("^pooling_mode_|_tokens?$", "", field) for field in on] or [MEAN.mode]


def _read(name: str, file: str, cache_dir: str | None, read: Callable[[Any], T]) -> T | None:
    """Return `read` applied to one of the model's JSON files; None if there is no such file."""
    path = model_file(name, file, cache_dir)
    if path is None:
        return None
    try:
        return read(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        way = "" if file.startswith("config") else ", or give --pooling and --[no-]normalize"
        raise UserError(f"{path}: damaged\n  repair it{way}") from None
