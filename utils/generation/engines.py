"""Choose and open a run's engine; the model is identified before anything expensive starts."""

import json
import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from utils.cli import UserError
from utils.cli.environment import OF_API, check_environment
from utils.files.manifest import folder_settings
from utils.files.output import Output
from utils.generation.calls import Prices, describe_cost, describe_counts, describe_records
from utils.generation.chat import PAPER_LENGTH, LocalChat, choose_length, open_chat
from utils.generation.completions import Completions
from utils.generation.model import Model, Policy
from utils.generation.requests import Engine
from utils.generation.store import ModelStore, find_model
from utils.generation.thinking import end_thoughts, find_thoughts, settle_tokens
from utils.generation.vllm_engine import is_batch_invariant
from utils.models.hub import (
    check_model,
    model_file,
    model_fingerprint,
    pinned_source,
    skipping_absent_hub,
    suggesting_openai,
)
from utils.models.loading import adapter_base, loading
from utils.models.machine import Loaded, describe_disk, describe_engine
from utils.parsing.thoughts import UNFINISHED_COUNT, describe_unfinished

# An answer of 2048 tokens takes about 10 kB. The store has its raw text, the output also has the parsed answer, and the
# output is first written under a temporary name.
PIECE_BYTES = 64_000

# Makes an API's engine from flags and key, instead of `APIEngine`; set by utils/batch.py.
make_api_engine: Callable[[Namespace, str], Engine] | None = None


def choose_generator(args: Namespace, identity: str, schema: dict[str, Any] | str, length: int | None = None) -> Model:
    """Return the generator of `args` before it is loaded, and set `args.max_model_len` to its length.

    Args:
        identity: the result of `identify_model`.
        length: the default length, if the model's limit allows it; None for the paper's.
    """
    chat = open_chat(args, args.model_addr)
    thoughts = find_thoughts(args, chat, args.model_addr)
    if vars(args).get("choose"):
        end_thoughts(chat, thoughts)
        room = 0
    else:
        room = settle_tokens(args, thoughts, args.model_addr, chat.model_limit)
    args.max_model_len = choose_length(chat, args.max_model_len, args.max_tokens, (length or PAPER_LENGTH) + room)
    room_for_methods = room or thoughts.room(False, args.max_model_len)
    args.reasoning_parser = thoughts.parser
    policy = Policy.from_arguments(args, schema).for_chat(chat, thoughts)
    completions = open_completions(args, args.model_addr, identity)
    is_adapter = not args.openai and adapter_base(args.model_addr)
    trained = trained_settings(args.model_addr, args.cache_dir) if is_adapter else {}
    return Model(args.model_addr, identity, chat, args.max_model_len, policy, completions, trained, room_for_methods)


def choose_answerer(args: Namespace, identity: str, schema: dict[str, Any] | str, length: int | None = None) -> Model:
    """Return the generator of `args` (`choose_generator`), or an encoder-decoder if the model's config says so."""
    if not args.openai and is_encoder_decoder(args.model_addr, args.cache_dir):
        return import_module("utils.generator.encoder_decoder").choose(args, identity, schema)
    return choose_generator(args, identity, schema, length)


def is_encoder_decoder(model_addr: str, cache_dir: str | None) -> bool:
    """Tell from its config whether a model is an encoder-decoder; adapters never are."""
    if adapter_base(model_addr):
        return False
    from transformers import AutoConfig

    source = pinned_source(model_addr, cache_dir)
    try:
        with skipping_absent_hub(model_addr), loading(model_addr, "config.json"):
            return bool(AutoConfig.from_pretrained(model_addr, **source).is_encoder_decoder)
    except UserError:
        return False  # vLLM may know the model; loading it reports the problem


def trained_settings(model_addr: str, cache_dir: str | None) -> dict[str, Any]:
    """Return the settings that utils/train_generator.py noted beside a model; empty for other models."""
    path = model_file(model_addr, "manifest.json", cache_dir)
    settings = folder_settings(path.parent) if path else {}
    return settings if settings.get("script") == "utils/train_generator.py" else {}


def open_completions(args: Namespace, model_addr: str, identity: str, **settings: Any) -> Completions:
    """Open the store of one model, also identified by `settings`; UserError if nothing could be added to it."""
    described = {"model": identity, **({"api": True} if args.openai else {"dtype": args.dtype}), **settings}
    store = ModelStore(args.completions, model_addr, described)
    if not args.cached_only:
        store.check_writable()
    return Completions(store, args.openai, args.cached_only)


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
        known = find_model(args.completions, server)
        return known or (None if args.cached_only else _report(args, model_addr)) or server
    with suggesting_openai():
        return identify_local_model(model_addr, args.cache_dir)


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


def confirm_model(args: Namespace, model: Model) -> None:
    """Raise UserError if an API now reports another model than the stored completions are from; else record it."""
    if args.model_id is not None or (server := server_of(args, model.addr)) is None:
        return
    store, reported = model.completions.store, _report(args, model.addr)
    if reported is not None and model.identity not in (reported, server):
        raise UserError(
            f"{store.folder}: has completions of {json.dumps(model.identity)}, but the server now reports "
            f"{json.dumps(reported)}\n  give another --completions, or name the model with --model_id"
        )
    store.server = server


def open_api(args: Namespace) -> Engine:
    """Return the engine behind an API."""
    from utils.generation.api_engine import APIEngine  # imports openai

    return (make_api_engine or APIEngine)(args, read_api_key(args.api_key_addr))


def print_machine(args: Namespace, models: Sequence[Model], outputs: Sequence[str], pieces: int) -> None:
    """Print what this machine has and lacks for these models and for `pieces` in all outputs (--dry_run)."""
    loaded, lines = [], []
    for model in models:
        own = model.describe_memory(args)
        if own is not None:
            lines += own
        elif isinstance(model.chat, LocalChat):
            loaded.append(Loaded(model.addr, model.length, model.chat.model_limit))
    lines = [*(describe_engine(args, loaded) if loaded else []), *lines]
    print(*lines, *describe_disk(outputs[0], pieces * PIECE_BYTES), sep="\n")


def share_base(models: Iterable[str], cache_dir: str | None) -> bool:
    """Return whether models have the same base model, with or without adapters."""
    bases = {adapter_base(model) or model for model in models}
    return len({model_fingerprint(base, cache_dir) for base in bases}) == 1


def batch_invariance(device: str | None, openai: bool = False) -> bool | None:
    """Return `is_batch_invariant` for the manifest; None if nothing was computed here.

    Like the device, it is not a setting, so a run may resume on another kind of GPU.
    """
    return None if device is None or openai else is_batch_invariant()


def publish_records(
    output: Output,
    device: str | None,
    counts: dict[str, int],
    openai: bool,
    prices: Prices | None,
    found: dict[str, Any] | None = None,
    **figures: Any,
) -> None:
    """Publish an output with its records' figures in the manifest, and print a summary; a shard writes nothing.

    Args:
        openai: whether an API made it.
        found: goes to `Output.publish`.
    """
    made = {"batch_invariant": batch_invariance(device, openai), "counts": counts}
    made |= describe_records(output.pieces.values())
    cost = {"cost_usd": prices.cost(made["tokens"])} if prices else {}
    if not output.publish(device, found, **made, **cost, **figures):
        return
    told = describe_counts(counts) or "nothing to ask about"
    told += describe_unfinished(made.get(UNFINISHED_COUNT, 0))
    told += f"; {describe_cost(cost['cost_usd'])}" if cost else ""
    print(f"{output.path}: {told}")


def report_shard(args: Namespace, outputs: Sequence[str]) -> None:
    """Print where a shard's completions are and how to write the outputs."""
    if vars(args).get("num_shards", 1) > 1:
        which = f"shard {args.shard_index} of {args.num_shards}"
        print(f"{args.completions}: {which} is stored; run the command without shards to write {', '.join(outputs)}")


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
