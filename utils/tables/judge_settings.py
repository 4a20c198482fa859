"""Whether verdicts were had alike: by one judge, asked the same, and really sampled in one way."""

from collections.abc import Iterable
from typing import Any

from utils.cli import UserError
from utils.files.manifest import REPORTED, differing_names, manifest_of, tell_apart
from utils.generation.requests import FURTHER, LIMITS

# Of a score file's settings what changes a verdict: who judged, asked what, and how the verdict was drawn.
JUDGE_SETTINGS = (
    "strategy", "verdicts", "num_verdicts", "judge", REPORTED, "prompt", "temperature", "top_p", *FURTHER, "max_tokens",
    "constrained_decoding", "reasoning_parser", "dtype",
)  # fmt: skip


def check_same_judge(paths: Iterable[str]) -> list[str]:
    """Compare how score files were judged, by the manifests beside them.

    Returns:
        The files of which that is not known: without a manifest, or changed since.

    Raises:
        UserError: two of them differ in one of `JUDGE_SETTINGS`.
    """
    told, unknown = {}, []
    for path in paths:
        if (manifest := manifest_of(path)) is None:
            unknown.append(path)
        else:
            told[path] = {name: manifest["settings"].get(name) for name in JUDGE_SETTINGS} | unsent_settings(manifest)
    # All are compared with one, which knows what its judge's server reported where any does.
    first = max(told, key=lambda path: told[path][REPORTED] is not None, default=None)
    for path, settings in told.items():
        if differing := differing_names(told[first], settings):
            both = [(name, tell_apart(repr(settings[name]), repr(told[first][name]), length=100)) for name in differing]
            pairs = "; ".join(f"{name} {its}, not {first_ones}" for name, (its, first_ones) in both)
            raise UserError(
                f"{path}: judged differently from {first}\n  {pairs}\n"
                "  scores of different judges, prompts or settings do not compare: judge both alike, or keep them apart"
            )
    return unknown


def unsent_settings(manifest: dict[str, Any]) -> dict[str, Any]:
    """How a judge was really asked where its server refused a setting: None, as where a flag leaves it to that."""
    found = {}
    for name, (without, outputs) in (manifest.get("refused_parameters") or {}).items():
        if name not in LIMITS:
            told = manifest["settings"].get(name)
            found[name] = None if without == outputs else f"{told}, but refused for {without} of {outputs}"
    return {name: value for name, value in found.items() if name in JUDGE_SETTINGS}
