"""Choose a run's models, and open their engines.

Models with the same base model share an engine, and so do models of one API with one key.
"""

import json
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from utils.cli.flags import Arguments
from utils.generation.completions import Completions
from utils.generation.encoder_decoder import TextModel, beam_settings, refuse_flags
from utils.generation.identity import confirm_model, identify_model, read_api_key, share_base, trained_settings
from utils.generation.model import Model
from utils.generation.requests import Engine
from utils.generation.store import ModelStore
from utils.generation.thinking import NO_PARSER
from utils.generation.vllm_engine import VLLMEngine
from utils.models.hub import model_file
from utils.models.loading import adapter_base

AnyModel = TypeVar("AnyModel", bound=Model)
OpenAPI = Callable[[Namespace, str], Engine]  # from flags and key; utils/batch.py has its own


def choose_model(
    flags: Arguments, kind: type[AnyModel] = Model, identity: str | None = None, **fields: Any
) -> AnyModel:
    """Return the model that `flags.model_addr` names; nothing is loaded yet.

    Args:
        kind: the class of the model, with further `fields`.
        identity: of `identify_model`, if it is known.

    UserError if the model's files or the API's key are missing.
    """
    addr = flags.model_addr
    identity = identity or identify_model(flags, addr)
    is_adapter = not flags.openai and adapter_base(addr)
    trained = trained_settings(addr, flags.cache_dir) if is_adapter else {}
    return kind(addr, identity, flags, open_completions(flags, addr, identity), trained, **fields)


def choose_answerer(flags: Arguments, **fields: Any) -> Model:
    """Return a model as `choose_model` does, or an encoder-decoder if its config says so."""
    addr = flags.model_addr
    identity = identify_model(flags, addr)
    if flags.openai or not is_encoder_decoder(addr, flags.cache_dir):
        return choose_model(flags, identity=identity, **fields)
    refuse_flags(flags)
    trained = trained_settings(addr, flags.cache_dir)
    completions = open_completions(flags, addr, identity, **beam_settings(trained))
    return TextModel(addr, identity, flags, completions, trained)


def is_encoder_decoder(model_addr: str, cache_dir: str | None) -> bool:
    """Tell from its config.json whether a model is an encoder-decoder; adapters never are."""
    if adapter_base(model_addr) or (config := model_file(model_addr, "config.json", cache_dir)) is None:
        return False
    try:
        return json.loads(config.read_text(encoding="utf-8")).get("is_encoder_decoder") is True
    except (ValueError, AttributeError, RecursionError):
        return False  # loading it reports the problem


def open_completions(flags: Namespace, model_addr: str, identity: str, **settings: Any) -> Completions:
    """Return the completions of one model, also identified by `settings`."""
    described = {"model": identity, **({"api": True} if flags.openai else {"dtype": flags.dtype}), **settings}
    return Completions(ModelStore(flags.completions, model_addr, described), flags.openai, flags.cached_only)


def open_api(flags: Namespace, api_key: str) -> Engine:
    """Return the engine behind an API."""
    from utils.generation.api_engine import APIEngine  # imports openai

    return APIEngine(flags, api_key)


def open_engines(models: Mapping[str, Model], wanted: Sequence[str], open_api: OpenAPI) -> dict[str, Engine]:
    """Return engines by role: those of the API models in `wanted`, and one for its first role's local model.

    That one also serves all other models with the same base.
    """
    by_api: dict[tuple[str | None, str | None], Engine] = {}
    engines: dict[str, Engine] = {}
    for role in wanted:
        if (flags := (model := models[role]).flags).openai:
            place = flags.base_url, flags.api_key_addr
            confirm_model(flags, model.addr, model.identity, model.completions.store)
            if place not in by_api:
                by_api[place] = open_api(flags, read_api_key(flags.api_key_addr))
            engines[role] = by_api[place]
    return engines if wanted[0] in engines else engines | _load(models, wanted[0])


def _load(models: Mapping[str, Model], role: str) -> dict[str, Engine]:
    """Open one engine for a role's model and all models that can share it."""
    model = models[role]
    if (own := model.open_engine()) is not None:
        return {role: own}
    served = {
        name: other
        for name, other in models.items()
        if name == role or (not other.flags.openai and share_base([model.addr, other.addr], model.flags.cache_dir))
    }
    parsers = [other.policy.reasoning_parser for other in served.values()]
    parser = next((name for name in parsers if name not in (None, NO_PARSER)), model.policy.reasoning_parser)
    addrs = list(dict.fromkeys(other.addr for other in served.values()))
    length = max(other.window.length for other in served.values())
    return dict.fromkeys(served, VLLMEngine(model.flags.replaced(reasoning_parser=parser), addrs, length))
