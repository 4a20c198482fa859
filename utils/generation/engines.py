"""Choose and identify a run's models, before anything expensive starts, and open their engines.

Local models with the same base model share an engine, and so do models behind the same API with the same key.
"""

import json
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from utils.base.cli import Arguments
from utils.base.environment import OF_API, check_environment
from utils.base.errors import UserError
from utils.base.manifest import folder_settings
from utils.generation.completions import Completions
from utils.generation.encoder_decoder import TextModel, beam_settings, refuse_flags
from utils.generation.model import Model
from utils.generation.requests import Engine
from utils.generation.store import ModelStore, models_of_server
from utils.generation.thinking import NO_PARSER
from utils.generation.vllm_engine import VLLMEngine
from utils.models.adapters import adapter_base
from utils.models.hub import MissingError, find_headers, identify_local_model, model_file, model_fingerprint

AnyModel = TypeVar("AnyModel", bound=Model)


def identify_model(args: Namespace, model_addr: str, for_api: str = "add --openai") -> str:
    """Return the model's identity for the settings.

    For an API model, it is --model_id, if given; for a model of OpenAI's own service, its name; for others, its name
    with the path that the server reports to have loaded (from the store, or asked now), or with the server's address.

    UserError if the model's files or the API's key are missing; for missing files, the message ends with `for_api`,
    which says how to name an API model.
    """
    if args.model_id is not None and not args.model_id.strip():
        raise UserError("--model_id: is empty; give the name of the API's model")
    if args.openai:
        if not args.cached_only:
            read_api_key(args.api_key_addr)
        check_environment(OF_API)
        if args.model_id is not None or (server := server_of(args, model_addr)) is None:
            return args.model_id or model_addr
        stored = next((model["model"] for model in models_of_server(args.completions, server)), None)
        return stored or (None if args.cached_only else _report(args, model_addr)) or server
    try:
        return identify_local_model(model_addr, args.cache_dir)
    except MissingError as error:
        raise UserError(f"{error}\n  for an API model {for_api}") from None


def trained_settings(model_addr: str, cache_dir: str | None) -> dict[str, Any]:
    """Return the settings that utils/train_generator.py noted beside a model; empty for other models."""
    path = model_file(model_addr, "manifest.json", cache_dir)
    settings = folder_settings(path.parent) if path else {}
    return settings if settings.get("script") == "utils/train_generator.py" else {}


def server_of(args: Namespace, model_addr: str) -> str | None:
    """Return "NAME at ADDRESS" for a model behind --base_url; None for OpenAI's own service."""
    address = urlsplit(args.base_url or os.environ.get("OPENAI_BASE_URL", ""))
    if address.hostname in (None, "", "api.openai.com"):
        return None
    return f"{model_addr} at {address.netloc.rpartition('@')[2]}{address.path.rstrip('/')}"


def _report(args: Namespace, model_addr: str) -> str | None:
    """Return a model's identity, "NAME (PATH)", with the path that its server reports; None if it reports none."""
    from utils.generation.api_engine import ask_for_root

    root = ask_for_root(model_addr, args.base_url, read_api_key(args.api_key_addr))
    return root and f"{model_addr} ({root})"


def confirm_model(args: Namespace, model_addr: str, identity: str, store: ModelStore) -> None:
    """Raise UserError if an API now reports another model than that of the stored completions; else note its server."""
    if args.model_id is not None or (server := server_of(args, model_addr)) is None:
        return
    reported = _report(args, model_addr)
    if reported is not None and identity not in (reported, server):
        raise UserError(
            f"{store.folder}: has completions of {json.dumps(identity)}, but the server now reports "
            f"{json.dumps(reported)}\n  give another --completions, or name the model with --model_id"
        )
    store.server = server


def read_api_key(path: str | None) -> str:
    """Return the API key from the file `path`, or from OPENAI_API_KEY if that is None; UserError if there is no key."""
    where = "OPENAI_API_KEY" if path is None else f"--api_key_addr {path}"
    if path is None:
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not key:
            raise UserError("--openai: no API key; give --api_key_addr FILE or set OPENAI_API_KEY")
    elif Path(path).exists() and not Path(path).is_file():  # it is read twice, which a pipe cannot be
        raise UserError(f"{where}: not a regular file; write the key to a file, or set OPENAI_API_KEY")
    else:
        try:
            key = Path(path).read_text(encoding="utf-8-sig").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{where}: cannot be read: {getattr(error, 'strerror', 'not text')}") from None
    # The key is sent in an HTTP header, which takes printable ASCII.
    if not key.isascii() or not key.isprintable() or " " in key or not key:
        raise UserError(f"{where}: must contain only the key")
    return key


def choose_model(
    flags: Arguments,
    kind: type[AnyModel] = Model,
    identity: str | None = None,
    for_api: str = "add --openai",
    **fields: Any,
) -> AnyModel:
    """Return the model that `flags.model_addr` names; nothing is loaded yet.

    Args:
        kind: the class of the model; `fields` are further arguments for it.
        identity: the result of `identify_model`, if the caller has it.
        for_api: as in `identify_model`.

    UserError if the model's files or the API's key are missing, or if a local model is a classifier that does not give
    rewards.
    """
    addr = flags.model_addr
    identity = identity or identify_model(flags, addr, for_api)
    if not flags.openai and fields.get("gives_rewards"):
        flags = flags.replaced(dtype=dtype_of_rewards(flags))
    elif not flags.openai and is_classifier(addr, flags.cache_dir):
        raise UserError(f"{addr}: is a classifier, which writes no text; give a chat model")
    is_adapter = not flags.openai and adapter_base(addr)
    trained = trained_settings(addr, flags.cache_dir) if is_adapter else {}
    return kind(addr, identity, flags, open_completions(flags, addr, identity), trained, **fields)


def choose_answerer(flags: Arguments, **fields: Any) -> Model:
    """Return the model as `choose_model` does; if its config is that of an encoder-decoder, return a `TextModel`."""
    addr = flags.model_addr
    identity = identify_model(flags, addr)
    if flags.openai or not is_encoder_decoder(addr, flags.cache_dir):
        return choose_model(flags, identity=identity, **fields)
    refuse_flags(flags)
    trained = trained_settings(addr, flags.cache_dir)
    completions = open_completions(flags, addr, identity, **beam_settings(trained))
    return TextModel(addr, identity, flags, completions, trained)


def is_encoder_decoder(model_addr: str, cache_dir: str | None) -> bool:
    """Return whether a model's config.json says that it is an encoder-decoder; False for adapters."""
    return not adapter_base(model_addr) and _read_config(model_addr, cache_dir).get("is_encoder_decoder") is True


def is_classifier(model_addr: str, cache_dir: str | None) -> bool:
    """Return whether a local model's config.json says that it is a sequence classifier.

    UserError if the classifier has several labels, because a reward model has one.
    """
    config = _read_config(model_addr, cache_dir)
    try:
        kinds = [str(kind) for kind in config.get("architectures") or ()]
        num_labels = config.get("num_labels") or len(config.get("id2label") or "ab")  # transformers' default is two
    except TypeError:
        return False  # loading it reports the problem
    is_one = any(kind.endswith("ForSequenceClassification") for kind in kinds)
    if is_one and num_labels != 1:
        raise UserError(f"{model_addr}: has {num_labels} labels; a reward model has one")
    return is_one


def dtype_of_rewards(flags: Namespace) -> str:
    """Return --dtype for a local reward model: with `auto`, float32 if that is the model's own type.

    Otherwise vLLM would run such a classifier in float16, which changes its rewards.
    """
    if flags.dtype != "auto":
        return flags.dtype
    config = _read_config(flags.model_addr, flags.cache_dir)
    parts = [part for part in (config, config.get("text_config")) if isinstance(part, dict)]
    own = next((part[name] for part in parts for name in ("dtype", "torch_dtype") if part.get(name)), None)
    if own is None:  # then, as in vLLM, the weights decide
        headers = find_headers(adapter_base(flags.model_addr) or flags.model_addr, flags.cache_dir)
        own = "float32" if not headers or any(kind == "F32" for _, kind in headers.values()) else None
    return "float32" if own == "float32" else "auto"


def pads_with_end(model_addr: str, cache_dir: str | None) -> bool:
    """Return whether a dialogue may end with a local model's padding token: its config.json has one.

    Which token ends a turn is up to the template: it need not be the config's end token.
    """
    config = _read_config(model_addr, cache_dir)
    text_config = config.get("text_config")
    configs = [config, text_config] if isinstance(text_config, dict) else [config]
    return any(part.get("pad_token_id") is not None for part in configs)


def _read_config(model_addr: str, cache_dir: str | None) -> dict[str, Any]:
    """Return the config.json of a model, or of an adapter's base model.

    Empty if it is missing, or damaged (loading the model will report that).
    """
    path = model_file(adapter_base(model_addr) or model_addr, "config.json", cache_dir)
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path else {}
    except (ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def open_completions(flags: Namespace, model_addr: str, identity: str, **settings: Any) -> Completions:
    """Return one model's completions; completions with other `settings` are kept apart."""
    described = {"model": identity, **({"api": True} if flags.openai else {"dtype": flags.dtype}), **settings}
    waits = flags.cached_only and not flags.dry_run  # a dry run counts what is missing now
    return Completions(ModelStore(flags.completions, model_addr, described), flags.openai, waits)


def open_engines(models: Mapping[str, Model], wanted: Sequence[str]) -> dict[str, Engine]:
    """Return engines by role: for all API models in `wanted`, and for the first role's model if that is local.

    The local model's engine also serves all other models with the same base model.
    """
    by_api: dict[tuple[str | None, str | None], Engine] = {}
    engines: dict[str, Engine] = {}
    for role in wanted:
        if not (model := models[role]).is_local:
            flags = model.flags
            place = flags.base_url, flags.api_key_addr
            confirm_model(flags, model.addr, model.identity, model.completions.store)
            if place not in by_api:
                from utils.generation.api_engine import APIEngine  # imports openai

                by_api[place] = APIEngine(flags, read_api_key(flags.api_key_addr))
            engines[role] = by_api[place]
    return engines if wanted[0] in engines else engines | _load(models, wanted[0])


def _load(models: Mapping[str, Model], role: str) -> dict[str, Engine]:
    """Return one new engine, by the roles that it serves: the role's model, and all models with the same base model."""
    model = models[role]
    if (engine := model.open_engine()) is not None:
        return {role: engine}

    def base(other: Model) -> str:
        return model_fingerprint(adapter_base(other.addr) or other.addr, model.flags.cache_dir)

    served = {
        name: other for name, other in models.items() if name == role or (other.is_local and base(other) == base(model))
    }
    parsers = [other.policy.reasoning_parser for other in served.values()]
    parser = next((name for name in parsers if name not in (None, NO_PARSER)), model.policy.reasoning_parser)
    addrs = list(dict.fromkeys(other.addr for other in served.values()))
    lengths = [other.engine_length for other in served.values()]
    length = -1 if -1 in lengths else max(lengths)
    flags = model.flags.replaced(reasoning_parser=parser)
    return dict.fromkeys(served, VLLMEngine(flags, addrs, length, model.gives_rewards))
