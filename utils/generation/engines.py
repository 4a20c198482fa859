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
from utils.base.errors import UserError
from utils.generation.completions import Completions
from utils.generation.encoder_decoder import TextModel, beam_settings, refuse_flags
from utils.generation.model import Model
from utils.generation.requests import Engine
from utils.generation.store import ModelStore, models_of_server
from utils.generation.thinking import NO_PARSER
from utils.generation.vllm_engine import VLLMEngine
from utils.models.hub import MissingError
from utils.models.model_folder import ModelFolder

AnyModel = TypeVar("AnyModel", bound=Model)


def find_folder(flags: Namespace, for_api: str = "add --openai") -> ModelFolder | None:
    """Return the checked files of a local `flags.model_addr`; None if it is behind an API.

    UserError if they are missing or refused. If they are missing, the message ends with `for_api`, the way to name an
    API's model.
    """
    if flags.openai:
        return None
    try:
        return ModelFolder(flags.model_addr, flags.cache_dir).checked(safetensors_only=True)
    except MissingError as error:
        raise UserError(f"{error}\n  for an API model {for_api}") from None


def identify_api_model(args: Namespace, model_addr: str) -> str:
    """Return an API model's identity for the settings.

    This is --model_id, if given. For OpenAI's own service, it is the model's name. For other servers, it is the name
    with the path from which the server loaded the model (from the store, or asked now); if that is unknown, the name
    with the server's address.

    UserError if the API's key is missing.
    """
    if args.model_id is not None and not args.model_id.strip():
        raise UserError("--model_id: is empty; set it to the name of the API's model")
    if not args.cached_only:
        read_api_key(args.api_key_addr)
    if args.model_id is not None or (server := server_of(args, model_addr)) is None:
        return args.model_id or model_addr
    stored = next((model["model"] for model in models_of_server(args.completions, server)), None)
    return stored or (None if args.cached_only else _report(args, model_addr)) or server


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
    """Raise UserError if an API's model is not that of the stored completions; otherwise, record its server."""
    if args.model_id is not None or (server := server_of(args, model_addr)) is None:
        return
    reported = _report(args, model_addr)
    if reported is not None and identity not in (reported, server):
        raise UserError(
            f"{store.folder}: has completions of {json.dumps(identity)}, but the server now reports "
            f"{json.dumps(reported)}\n  use another --completions, or name the model with --model_id"
        )
    store.server = server


def read_api_key(path: str | None) -> str:
    """Return the API key from the file `path`, or from OPENAI_API_KEY if that is None; UserError if there is no key."""
    where = "OPENAI_API_KEY" if path is None else f"--api_key_addr {path}"
    if path is None:
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not key:
            flags = "--api_key_addr, for a planner --planner_api_key_addr"
            raise UserError(f"no API key: set OPENAI_API_KEY, or pass the key's file ({flags})")
    elif Path(path).exists() and not Path(path).is_file():  # the file is read twice; a pipe can be read once
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
    folder: ModelFolder | None = None,
    for_api: str = "add --openai",
    **fields: Any,
) -> AnyModel:
    """Return the model that `flags.model_addr` names; nothing is loaded yet.

    Args:
        kind: the class of the model; `fields` are further arguments for it.
        folder: the result of `find_folder`, if the caller has it.
        for_api: as in `find_folder`.

    UserError if the model's files or the API's key are missing, or if a local model is a classifier that does not give
    rewards.
    """
    addr, folder = flags.model_addr, folder or find_folder(flags, for_api)
    identity = folder.identity if folder else identify_api_model(flags, addr)
    if folder and fields.get("gives_rewards"):
        if flags.dtype == "auto" and folder.is_float32:  # vLLM would take float16, which changes its rewards
            flags = flags.replaced(dtype="float32")
    elif folder and folder.is_classifier:
        raise UserError(f"{addr}: is a classifier and cannot generate text; use a chat model")
    return kind(addr, identity, flags, open_completions(flags, addr, identity), folder, **fields)


def choose_answerer(flags: Arguments, **fields: Any) -> Model:
    """Return the model as `choose_model` does; if its config is that of an encoder-decoder, return a `TextModel`."""
    folder, addr = find_folder(flags), flags.model_addr
    if folder is None or not folder.is_encoder_decoder:
        return choose_model(flags, folder=folder, **fields)
    refuse_flags(flags)
    completions = open_completions(flags, addr, folder.identity, **beam_settings(folder.trained))
    return TextModel(addr, folder.identity, flags, completions, folder)


def open_completions(flags: Namespace, model_addr: str, identity: str, **settings: Any) -> Completions:
    """Return one model's completions; completions with other `settings` are stored separately."""
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

    base = model.folder.base.fingerprint
    served = {name: other for name, other in models.items() if other.folder and other.folder.base.fingerprint == base}
    parsers = [other.policy.reasoning_parser for other in served.values()]
    parser = next((name for name in parsers if name not in (None, NO_PARSER)), model.policy.reasoning_parser)
    folders = list(dict.fromkeys(other.folder for other in served.values()))
    lengths = [other.engine_length for other in served.values()]
    length = -1 if -1 in lengths else max(lengths)
    flags = model.flags.replaced(reasoning_parser=parser)
    return dict.fromkeys(served, VLLMEngine(flags, folders, length, model.gives_rewards))
