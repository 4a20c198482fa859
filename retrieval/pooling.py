"""How an encoder makes one embedding of a text's tokens, which the files of sentence-transformers beside it say.

`modules.json` lists what a text goes through (Transformer, Pooling, Normalize), `1_Pooling/config.json` says how it is
pooled. A model without them is pooled by the mean, as Contriever is (Izacard et al. 2022), and not normalized.
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
WITHOUT_FILES = ("facebook/contriever", "facebook/contriever-msmarco")  # that is known, also where no hub is
OVERRIDE = "--pooling mean or --pooling cls pools it so all the same"

T = TypeVar("T")


@dataclass(frozen=True)
class Pooling:
    """From hidden states (T, D) to an embedding (D,)."""

    mode: str = "mean"  # of all tokens, or "cls": the first token's
    normalize: bool = False  # to length 1, so that a dot product is a cosine

    def __str__(self) -> str:
        return f"{self.mode} pooling" + (", normalized" if self.normalize else "")


MEAN = Pooling()  # Contriever's


def choose_pooling(
    name: str, cache_dir: str | None = None, mode: str | None = None, normalize: bool | None = None
) -> Pooling:
    """Return the pooling that the user asks for, or else that of the model's files; call `check_model` first.

    Raises:
        UserError: they are damaged, or say what `Pooling` cannot do and `mode` does not replace; or the hub is in
            trouble.
    """
    if name in WITHOUT_FILES or (mode is not None and normalize is not None):
        return Pooling(mode or MEAN.mode, bool(normalize))
    modules = _read(name, "modules.json", cache_dir, lambda found: [(_kind(one), one["path"]) for one in found])
    if modules is None:
        return Pooling(mode or MEAN.mode, bool(normalize))
    kinds = [kind for kind, _ in modules]
    if mode is None:
        if other := sorted(set(kinds) - MODULES):
            raise UserError(f"{name}: modules.json: its {other[0]} layer is not known here\n  {OVERRIDE}")
        paths = [path for kind, path in modules if kind == "Pooling"]
        mode = _read_mode(name, paths[0], cache_dir) if paths else MEAN.mode
    return Pooling(mode, "Normalize" in kinds if normalize is None else normalize)


def _kind(module: dict[str, str]) -> str:
    """`sentence_transformers.models.Pooling` -> `Pooling`; where such classes stand has changed with the versions."""
    return module["type"].rpartition(".")[2]


def _read_mode(name: str, path: str, cache_dir: str | None) -> str:
    file = f"{path}/config.json"
    modes = _read(name, file, cache_dir, _modes_of)
    if modes is None:
        raise UserError(f"{name}: lacks {file}, which its modules.json names\n  {OVERRIDE}")
    if len(modes) > 1:
        raise UserError(f"{name}: {file}: joins {' and '.join(modes)} pooling, which is not done here\n  {OVERRIDE}")
    if modes[0] not in MODES:
        raise UserError(f"{name}: {file}: {modes[0]} pooling, which is not done here\n  {OVERRIDE}")
    return modes[0]


def _modes_of(config: dict[str, Any]) -> list[str]:
    """Return the ways that are switched on: by name in files of today, before that each by a field of its own."""
    named = config.get("pooling_mode")
    if named is not None:
        return [str(mode) for mode in ([named] if isinstance(named, str) else named)]
    on = [field for field, value in config.items() if field.startswith("pooling_mode_") and value is True]
    return [re.sub("^pooling_mode_|_tokens?$", "", field) for field in on] or [MEAN.mode]


def _read(name: str, file: str, cache_dir: str | None, read: Callable[[Any], T]) -> T | None:
    """Return `read` of a JSON file of the model, None if it has no such file."""
    path = model_file(name, file, cache_dir)
    if path is None:
        return None
    try:
        return read(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError(f"{path}: damaged\n  mend it; or give --pooling and --normalize, or --no-normalize") from None
