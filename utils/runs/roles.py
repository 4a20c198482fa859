"""The engines of a run: models on one base model share one, and so do those behind one API with one key."""

from collections.abc import Iterable, Mapping, Sequence

from utils.files.output import Pieces
from utils.generation.encoder_decoder import TextModel, TransformersEngine
from utils.generation.engines import confirm_model, open_api, share_base
from utils.generation.requests import Engine
from utils.generation.thinking import NO_PARSER
from utils.generation.vllm_engine import VLLMEngine
from utils.runs.ask import Role


def open_engines(
    roles: Mapping[str, Role], known: Mapping[str, Iterable[Pieces]], asked: Sequence[str], waiting: Mapping[str, int]
) -> dict[str, Engine]:
    """Engines by role: for those of `asked` that are behind an API, and for the first with all on the same base model.

    Args:
        known: by role, existing pieces; parameters that an API refused for them are left out from the start.
        waiting: by role, how many records wait for it.
    """
    by_api: dict[tuple[str | None, str | None], Engine] = {}
    engines: dict[str, Engine] = {}
    for name, its in roles.items():
        if its.args.openai and name in asked:
            place = its.args.base_url, its.args.api_key_addr
            confirm_model(its.args, its.model.addr, its.model.completions)
            if place not in by_api:
                by_api[place] = open_api(its.args, known.get(name, ()))
            engines[name] = by_api[place]
    if asked[0] not in engines:
        engines |= _load(roles, asked[0], waiting)
    return engines


def _load(roles: Mapping[str, Role], role: str, waiting: Mapping[str, int]) -> dict[str, Engine]:
    """One engine for a role's model and all that can run on it."""
    its = roles[role]
    if isinstance(its.model, TextModel):
        return {role: TransformersEngine(its.args, its.model)}
    here = {name: one for name, one in roles.items() if not one.args.openai}
    served = {
        name: one.model
        for name, one in here.items()
        if name == role or share_base([its.model.addr, one.model.addr], its.args.cache_dir)
    }
    parsers = [model.policy.reasoning_parser for model in served.values()]
    parser = next((one for one in parsers if one not in (None, NO_PARSER)), its.model.policy.reasoning_parser)
    addrs = list(dict.fromkeys(model.addr for model in served.values()))
    outputs = sum(waiting.get(name, 0) for name in served)
    # The engine notes what it chooses in the flags it is given.
    args = its.args if its.args.reasoning_parser == parser else its.args.replaced(reasoning_parser=parser)
    engine = VLLMEngine(args, addrs, max(model.length for model in served.values()), outputs)
    return dict.fromkeys(served, engine)
