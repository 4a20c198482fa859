"""Which model: its identity in settings and stores, found before anything expensive starts."""

import json
import os
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from utils.cli import UserError
from utils.cli.environment import OF_API, check_environment
from utils.files.manifest import folder_settings
from utils.generation.store import ModelStore, find_model
from utils.models.hub import check_model, model_file, model_fingerprint, suggesting_openai
from utils.models.loading import adapter_base


def identify_model(args: Namespace, model_addr: str) -> str:
    """Return the model's identity for the settings.

    An API model's is --model_id, or else its name, with the model that the server reports or the server's address. The
    server is asked if the store does not know it. OpenAI's own models have only their names.

    UserError if the model's files or the API's key are missing, before anything expensive starts.
    """
    if args.model_id is not None and not args.model_id.strip():
        raise UserError("--model_id: is empty; give the name of the API's model")
    if args.openai:
        if not args.cached_only:
            read_api_key(args.api_key_addr)
        check_environment(OF_API)
        if args.model_id is not None or (server := server_of(args, model_addr)) is None:
            return args.model_id or model_addr
        stored = find_model(args.completions, server)
        return stored or (None if args.cached_only else _report(args, model_addr)) or server
    with suggesting_openai():
        return identify_local_model(model_addr, args.cache_dir)


def trained_settings(model_addr: str, cache_dir: str | None) -> dict[str, Any]:
    """Return the settings that utils/train_generator.py noted beside a model; empty for other models."""
    path = model_file(model_addr, "manifest.json", cache_dir)
    settings = folder_settings(path.parent) if path else {}
    return settings if settings.get("script") == "utils/train_generator.py" else {}


def identify_local_model(model_addr: str, cache_dir: str | None) -> str:
    """Return the identity of a local model; an adapter's includes its base model."""
    check_model(model_addr, cache_dir, safetensors_only=True)
    identity = model_fingerprint(model_addr, cache_dir)
    if base := adapter_base(model_addr):
        identity += f" on {model_fingerprint(base, cache_dir)}"
    return identity


def server_of(args: Namespace, model_addr: str) -> str | None:
    """Return "NAME at ADDRESS" for a model behind --base_url; None for OpenAI's own service."""
    address = urlsplit(args.base_url or os.environ.get("OPENAI_BASE_URL", ""))
    if address.hostname in (None, "", "api.openai.com"):
        return None
    return f"{model_addr} at {address.netloc.rpartition('@')[2]}{address.path.rstrip('/')}"


def _report(args: Namespace, model_addr: str) -> str | None:
    """Return the identity of the model that an API reports to have loaded under a name; None if it does not say."""
    from utils.generation.api_engine import ask_for_root  # imports openai

    root = ask_for_root(model_addr, args.base_url, read_api_key(args.api_key_addr))
    return root and f"{model_addr} ({root})"


def confirm_model(args: Namespace, model_addr: str, identity: str, store: ModelStore) -> None:
    """Raise UserError if an API now reports another model than the stored completions are from; else record it."""
    if args.model_id is not None or (server := server_of(args, model_addr)) is None:
        return
    reported = _report(args, model_addr)
    if reported is not None and identity not in (reported, server):
        raise UserError(
            f"{store.folder}: has completions of {json.dumps(identity)}, but the server now reports "
            f"{json.dumps(reported)}\n  give another --completions, or name the model with --model_id"
        )
    store.server = server


def share_base(models: Iterable[str], cache_dir: str | None) -> bool:
    """Return whether models have the same base model, with or without adapters."""
    bases = {adapter_base(model) or model for model in models}
    return len({model_fingerprint(base, cache_dir) for base in bases}) == 1


def read_api_key(path: str | None) -> str:
    """Return the API key from a file, or from OPENAI_API_KEY without one; UserError if there is no key."""
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
