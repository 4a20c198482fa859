"""The score files of the systems that are compared: read, and checked for what must be alike."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from utils.cli import UserError
from utils.plans import one_line
from utils.records import first_five, quote, read_scores
from utils.run_files import file_hash, read_manifest
from utils.scoring import COMMUNITIES, question_score_unscored_as_zero

JUDGE_SETTINGS = ("strategy", "judge", "prompt")  # of a score file's fingerprint: who judged, and asked what


@dataclass
class System:
    """A row's name and everything its score files hold."""

    name: str
    paths: list[str]
    questions: list[dict[str, Any]] = field(default_factory=list)
    partial_files: list[str] = field(default_factory=list)

    def asked_ids(self) -> set[str]:
        return {question["id"] for question in self.questions if question["details"]}

    def unscored(self) -> list[int]:
        """How many verdicts are missing, for every question where any is."""
        missing = [sum(d["score"] is None for d in question["details"]) for question in self.questions]
        return [count for count in missing if count]


def read_systems(arguments: list[list[str]], unscored_as_zero: bool) -> list[System]:
    """Read the score files of every `[name, file, ...]`.

    Args:
        unscored_as_zero: give the questions that lack a verdict the score that they have if it counts 0.

    Raises:
        UserError: a name given twice or without files, a file of two systems, a file that is not a score file or
            holds no questions, a question that stands twice in a system, a community that no category is known for.
    """
    _check_arguments(arguments)
    systems = [_read_system(one_line(name), paths) for name, *paths in arguments]
    if unscored_as_zero:
        for question in (question for system in systems for question in system.questions if question["details"]):
            if question["score"] is None:
                question["score"] = question_score_unscored_as_zero([d["score"] for d in question["details"]])
    return systems


def _check_arguments(arguments: list[list[str]]) -> None:
    names: set[str] = set()
    system_of: dict[str, str] = {}
    for name, *paths in arguments:
        if not paths:
            raise UserError(f"--system {name!r}: no score file; give a name, then one or more files")
        if one_line(name) in names:
            raise UserError(f"--system {name!r} is given twice; put all its files behind one --system")
        names.add(one_line(name))
        for path in paths:
            if system_of.setdefault(os.path.realpath(path), name) != name:
                raise UserError(
                    f"{path}: stands behind --system {system_of[os.path.realpath(path)]!r} and --system {name!r}\n"
                    "  give each system its own score files"
                )


def _read_system(name: str, paths: list[str]) -> System:
    system = System(name, paths)
    file_of: dict[str, str] = {}
    for path in paths:
        scores = read_scores(path)
        if not scores["per_question_scores"]:
            raise UserError(f"{path}: holds no questions; leave it out, or judge the responses again")
        for question in scores["per_question_scores"]:
            _check_community(question, f"{path}: question {quote(question['id'])}")
            if question["id"] in file_of:
                raise UserError(
                    f"--system {name!r}: question {quote(question['id'])} stands in {file_of[question['id']]} "
                    f"and in {path}; a question counts once"
                )
            file_of[question["id"]] = path
        system.questions += scores["per_question_scores"]
        if scores.get("partial"):
            system.partial_files.append(path)
    return system


def _check_community(question: dict[str, Any], where: str) -> None:
    """Raise UserError unless a category is known for it."""
    community = question.get("category")
    if not isinstance(community, str) or community not in COMMUNITIES:
        raise UserError(
            f"{where}: no category is known for the community {quote(community)}\n"
            "  add it to the category it belongs to at the top of utils/scoring.py"
        )


# What must be alike


def check_same_judge(paths: Iterable[str]) -> list[str]:
    """Compare how score files were judged, by the manifests beside them.

    Returns:
        The files of which that is not known: without a manifest, or changed since.

    Raises:
        UserError: two of them have another judge, prompt or strategy.
    """
    unknown: list[str] = []
    first: tuple[str, dict[str, Any]] | None = None
    for path in paths:
        settings = _judge_settings(path)
        if settings is None:
            unknown.append(path)
            continue
        first = first or (path, settings)
        differing = [name for name in JUDGE_SETTINGS if settings[name] != first[1][name]]
        if differing:
            pairs = "; ".join(f"{name} {quote(settings[name])}, not {quote(first[1][name])}" for name in differing)
            raise UserError(
                f"{path}: judged in another way than {first[0]}\n  {pairs}\n"
                "  scores of different judges or prompts do not compare: judge both alike, or keep them apart"
            )
    return unknown


def _judge_settings(path: str) -> dict[str, Any] | None:
    manifest = read_manifest(path)
    if manifest is None or manifest["output_sha256"] != file_hash(path):
        return None
    return {name: manifest["fingerprint"].get(name) for name in JUDGE_SETTINGS}


def check_same_questions(systems: list[System]) -> None:
    """Raise UserError unless all systems were scored on the same questions; names the first that lacks one."""
    all_ids = set().union(*(system.asked_ids() for system in systems))
    for system in systems:
        if lacking := sorted(all_ids - system.asked_ids()):
            raise UserError(
                f"--system {system.name!r} ({', '.join(system.paths[:5])}{', ...' if len(system.paths) > 5 else ''}) "
                f"lacks {len(lacking)} of the {len(all_ids)} questions of all systems: {first_five(lacking)}\n"
                "  give score files of the same questions, or --allow_partial to compare what is there"
            )
