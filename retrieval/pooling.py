"""How an encoder makes one embedding of a text, according to a model's sentence-transformers files.

`modules.json` lists the layers (Transformer, Pooling, Normalize); `1_Pooling/config.json` sets the pooling;
`config_sentence_transformers.json` has prefixes for questions and posts, and how embeddings are compared;
`sentence_bert_config.json` or the tokenizer has the length at which texts are cut. A model without these files is
mean-pooled, like Contriever (Izacard et al. 2022), not normalized, without prefixes, and cut at 512 tokens. A model
whose files name something that this module does not support is refused, because its embeddings would be wrong.
"""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from retrieval import FULL_LENGTH
from utils.base.errors import UserError
from utils.models.model_folder import ModelFolder

MODES = ("mean", "cls", "lasttoken")
MODULES = {"Transformer", "Pooling", "Normalize", "Dropout"}  # dropout is for training only
LIBRARY = "sentence_transformers."  # prefix of the library's own module types; other types need the model's own code
WITHOUT_FILES = ("facebook/contriever", "facebook/contriever-msmarco")  # known, so the hub is not asked
INSTEAD = "use another encoder, such as facebook/contriever-msmarco or BAAI/bge-m3"
HIDDEN_STATES, FEATURES = "last_hidden_state", "feature-extraction"  # the transformer's output to pool, and its task
LONGEST = 1_000_000  # tokens; a tokenizer's larger limit means that it has none
# Names of the prompts for questions and documents in config_sentence_transformers.json, as in sentence-transformers.
QUERY, PASSAGE = ("query",), ("document", "passage", "corpus")

T = TypeVar("T")


@dataclass(frozen=True)
class Pooling:
    """The prefix of a text, where it is cut, and how its hidden states (T, D) become an embedding (D,)."""

    mode: str = "mean"  # over all tokens; "cls": the first token's state; "lasttoken": the last token's
    normalize: bool = False  # to length 1, so that a dot product is a cosine
    prefixes: tuple[str, str] = ("", "")  # before a question, and before a post
    max_length: int = FULL_LENGTH  # tokens, including special tokens
    lower_case: bool = False  # whether to lowercase texts before the tokenizer does anything

    def __str__(self) -> str:
        query, passage = self.prefixes
        pooling = f"{self.mode} pooling" + (", normalized" if self.normalize else "")
        pooling += f", {query!r} before questions, {passage!r} before posts" if query or passage else ""
        pooling += ", in lower case" if self.lower_case else ""
        return pooling + (f", cut at {self.max_length} tokens" if self.max_length != FULL_LENGTH else "")


MEAN = Pooling()  # as Contriever has it


def choose_pooling(
    model: ModelFolder,
    mode: str | None = None,
    normalize: bool | None = None,
    max_length: int | None = None,
) -> Pooling:
    """Return the user's pooling, completed from the model's files. Call `ModelFolder.checked` first.

    Prints a note for each value of the user that differs from the files.

    Raises:
        UserError: the files are damaged, or name something that is not supported (an unsupported pooling is accepted if
            `mode` is set); the model is an encoder-decoder; or the hub fails.
    """
    given = {"mode": mode, "normalize": normalize, "max_length": max_length}
    given = {field: value for field, value in given.items() if value is not None}
    stated = {} if model.addr in WITHOUT_FILES else _stated_fields(model, mode is not None)
    flags = {
        "mode": f"--pooling {mode}",
        "normalize": "--normalize" if normalize else "--no-normalize",
        "max_length": f"--max_length {max_length}",
    }
    for field in given:
        if stated.get(field, given[field]) != given[field]:
            print(f"note: {model.addr}: {flags[field]} overrides its files ({field}: {stated[field]})", file=sys.stderr)
    return Pooling(**stated | given)


def _stated_fields(model: ModelFolder, has_mode: bool) -> dict[str, Any]:
    """Return the fields of a `Pooling` that the model's files state; with `has_mode`, any `mode` is accepted."""
    name, config = model.addr, _read(model, "config.json", dict) or {}
    if config.get("is_encoder_decoder"):
        raise UserError(
            f"{name}: encoder-decoder models cannot be used for ranking\n  use a BERT-like encoder as --model_name"
        )
    stated: dict[str, Any] = {}
    file = "config_sentence_transformers.json"
    comparison = _read(model, file, lambda config: (_prefixes_of(config), config.get("similarity_fn_name")))
    stated["prefixes"], similarity = comparison or (MEAN.prefixes, None)

    def kinds_and_paths(entries: list[dict[str, str]]) -> list[tuple[str, str]]:
        # Only a class's name is the same in all versions of the library; its Python module is not.
        kinds = (entry["type"].rpartition(".") for entry in entries)
        kinds = [kind if module.startswith(LIBRARY) else f"{module}.{kind}" for module, _, kind in kinds]
        return list(zip(kinds, (entry["path"] for entry in entries), strict=True))

    modules = _read(model, "modules.json", kinds_and_paths)
    if modules is not None:
        kinds = [kind for kind, _ in modules]
        if other := sorted(set(kinds) - MODULES):
            raise UserError(f"{name}: modules.json: unsupported layer {other[0]}\n  {INSTEAD}")
        paths = [path for kind, path in modules if kind == "Pooling"]
        stated |= {"normalize": "Normalize" in kinds, "mode": MEAN.mode}
        stated |= _stated_mode(model, paths[0], has_mode, any(stated["prefixes"])) if paths else {}
    if similarity == "cosine":
        stated["normalize"] = True
    elif similarity not in (None, "dot") and not (similarity == "euclidean" and stated.get("normalize")):
        raise UserError(f"{name}: {file}: {similarity} similarity is not supported\n  {INSTEAD}")
    # Old models have the architecture in the file's name.
    for file in dict.fromkeys(["sentence_bert_config.json", f"sentence_{config.get('model_type')}_config.json"]):
        if (settings := _read(model, file, _transformer_of)) is not None:
            output, fields = settings
            if output != HIDDEN_STATES:
                raise UserError(f"{name}: {file}: unsupported output of the transformer: {output}\n  {INSTEAD}")
            stated |= fields
            break
    if modules is not None and "max_length" not in stated:
        most = _read(model, "tokenizer_config.json", lambda config: int(config.get("model_max_length") or LONGEST))
        if most is not None and most < LONGEST:
            stated["max_length"] = min(most, config.get("max_position_embeddings") or most)
    return stated


def _transformer_of(config: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Return the transformer's output to pool, and fields of a `Pooling`."""
    text = (config.get("modality_config") or {"text": {}}).get("text", {"method_output_name": None})
    output = text.get("method_output_name", HIDDEN_STATES)
    if (task := config.get("transformer_task", FEATURES)) != FEATURES:
        output = task
    fields = {"max_length": int(config["max_seq_length"])} if config.get("max_seq_length") else {}
    return output, fields | ({"lower_case": True} if config.get("do_lower_case") else {})


def _prefixes_of(config: dict[str, Any]) -> tuple[str, str]:
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")

    def prefix(words: tuple[str, ...]) -> str:
        named = (name for word in words for name in prompts if re.search(rf"(?:^|[_.-]){word}$", name.lower()))
        name = next((word for word in words if word in prompts), None) or next(named, default)
        return "" if name is None else "" + prompts[name]

    return prefix(QUERY), prefix(PASSAGE)


def _stated_mode(model: ModelFolder, path: str, has_mode: bool, has_prefixes: bool) -> dict[str, str]:
    """Return the field `mode` from a pooling layer's config."""
    file = f"{path}/config.json"
    pooling = _read(model, file, lambda config: (_modes_of(config), config.get("include_prompt", True)))
    if pooling is None:
        if has_mode:
            return {}
        raise UserError(
            f"{model.addr}: has no {file}, although its modules.json names it\n  restore the file, or set --pooling"
        )
    mode, includes_prefix = " and ".join(pooling[0]), pooling[1]
    if has_prefixes and not includes_prefix and mode != "lasttoken":
        raise UserError(f"{model.addr}: {file}: pooling without the prefix is not supported\n  {INSTEAD}")
    if not has_mode and mode not in MODES:
        raise UserError(f"{model.addr}: {file}: {mode} pooling is not supported\n  {INSTEAD}")
    return {"mode": mode}


def _modes_of(config: dict[str, Any]) -> list[str]:
    """Return the pooling modes in a config: current files name them, older ones have one boolean field per mode."""
    named = config.get("pooling_mode")
    if named is not None:
        return [str(mode) for mode in ([named] if isinstance(named, str) else named)]
    on = [field for field, value in config.items() if field.startswith("pooling_mode_") and value is True]
    return [re.sub("^pooling_mode_|_tokens?$", "", field) for field in on] or [MEAN.mode]


def _read(model: ModelFolder, file: str, read: Callable[[Any], T]) -> T | None:
    """Return `read` applied to one of the model's JSON files; None if there is no such file."""
    path = model.file(file)
    if path is None:
        return None
    try:
        return read(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError(f"{path}: damaged\n  repair it") from None
