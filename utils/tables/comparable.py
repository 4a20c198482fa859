"""Check that score files are comparable: judged in the same way, on the same questions."""

from collections.abc import Iterable
from typing import Any

from utils.base.cli import FURTHER, LIMITS
from utils.base.errors import UserError, first_five
from utils.base.manifest import differing_names, manifest_of, short_diff
from utils.benchmarks import tasks
from utils.data.scores import Entry, Scores, strategy_in_words
from utils.tables.formats import few

# The settings of a score file that influence the verdicts.
JUDGE_SETTINGS = (
    "judge", "prompt", "temperature", "top_p", *FURTHER, "max_tokens",
    "constrained_decoding", "reasoning_parser", "dtype", "shots",
)  # fmt: skip


def refuse_other_benchmarks(scores: dict[str, Scores], alike: str = "benchmark") -> None:
    """Raise UserError if score files, by path, are of different benchmarks (with `alike` "task": different tasks)."""
    path_of: dict[str, str] = {}
    for path, content in scores.items():
        benchmark = tasks()[content["task"]].benchmark if alike == "benchmark" else None
        path_of.setdefault(benchmark or content["task"], path)
    if len(path_of) > 1:
        first, other = list(path_of.values())[:2]
        raise UserError(
            f"{other}: has scores of {scores[other]['task']}, but {first} has scores of {scores[first]['task']}\n"
            f"  a table can have only one {alike}: make a table for each"
        )


def check_same_judge(files: dict[str, Scores]) -> None:
    """Raise UserError if the files or their manifests show that the responses were judged in different ways."""
    judged = {path: {"strategy": strategy_in_words(scores)} | _judge_settings(path) for path, scores in files.items()}
    first = max(judged, key=lambda path: len(judged[path]))  # a file whose judge is known, if any
    for path, settings in judged.items():
        differing = [name for name in differing_names(judged[first], settings) if name in settings]
        if differing:
            other = judged[first]
            both = [(name, short_diff(repr(settings[name]), repr(other[name]), length=100)) for name in differing]
            pairs = "; ".join(f"{name} {value}, not {first_value}" for name, (value, first_value) in both)
            raise UserError(
                f"{path}: judged differently from {first}\n  {pairs}\n"
                "  these scores are not comparable: judge both in the same way, or do not compare them"
            )


def _judge_settings(path: str) -> dict[str, Any]:
    """Return a file's `JUDGE_SETTINGS`, None for a parameter that the server refused; empty without a manifest."""
    if (manifest := manifest_of(path)) is None:
        return {}
    settings = {name: manifest["settings"].get(name) for name in JUDGE_SETTINGS}
    settings["answered_by"] = sorted(manifest.get("answered_by", ()))  # empty if only the requested model answered
    for name, (num_without, num_verdicts) in (manifest.get("refused_parameters") or {}).items():
        name = "constrained_decoding" if name == "response_format" else name
        if name in JUDGE_SETTINGS and name not in LIMITS:
            refused = f"{settings[name]}, but refused for {num_without} of {num_verdicts} verdicts"
            settings[name] = None if num_without == num_verdicts else refused
    return settings


def check_same_content(questions: Iterable[tuple[Entry, Iterable[str]]]) -> None:
    """Raise UserError if files have different questions with the same id, such as from two datasets.

    Args:
        questions: entries of score files, each with the paths of its system's files.
    """
    seen: dict[str, tuple[tuple[Any, ...], Iterable[str]]] = {}
    differing, conflict = [], None
    for question, paths in questions:
        content = tuple(question.get(name) for name in ("question_sha256", "subgroup", "group", "cluster"))
        first, first_paths = seen.setdefault(question["id"], (content, paths))
        if content != first:
            differing.append(question["id"])
            conflict = conflict or (paths, first_paths)
    if conflict is not None:
        raise UserError(
            f"{few(conflict[0])}: has different questions from {few(conflict[1])} with the same ids: "
            f"{first_five(differing)}\n"
            "  the question or what the judge sees with it differs (another commit of the dataset?); judge both on the "
            "same dataset"
        )
