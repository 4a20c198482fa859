"""What is judged together, and which verdicts on it are there already.

A verdict belongs to a question, an aspect and an answer (or two): its record in a score file's journal holds the hash
of these (`of`). So a response file or a dataset may change, and only what changed in it is judged again; and a score
file takes over what the journals beside it know, by the same judge under the same key, which the seed hangs on.
"""

import hashlib
import json
import os
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.benchmarks.task import Metric, Record, Scale
from utils.cli import UserError
from utils.cli.progress import announce
from utils.files.fingerprints import differences
from utils.files.journal_lines import Key, read_header, read_lines
from utils.files.manifest import manifest_of
from utils.files.outputs import OutputFile, is_failed
from utils.files.writing import check_could_write
from utils.generation.chat import LocalChat
from utils.generation.driver import THOUGHT_COUNT, TOKEN_COUNTS
from utils.generation.scoring import split_shared
from utils.scoring.verdicts import Verdict

MADE_FROM = ("inputs", "responses")  # of a score file's fingerprint what doesn't tell its judge


@dataclass
class System:
    """What is judged together: one response file, or the two of a pairwise comparison; and where its scores go."""

    response_addrs: list[str]
    responses: list[dict[str, list[dict[str, Any]]]]  # what each of these files holds
    questions: list[Record]  # to be judged, in the dataset's order; each has a response in each file
    metric: Metric
    belongs: dict[Key, str]  # `what_of` each verdict has to be, of every question that has a response
    output: OutputFile  # the score file, whose pieces are the verdicts
    pending: set[Key]  # verdicts still to be asked for


def answers_to(responses: list[dict[str, list[dict[str, Any]]]], question_id: str) -> list[str | None]:
    """What each of the response files has for a question: its first response, which is the one that is judged."""
    return [one[question_id][0]["output"] for one in responses]


def are_answered(outputs: Iterable[str | None]) -> list[bool]:
    return [bool(output and output.strip()) for output in outputs]


def verdict_options(scale: Scale, chat: LocalChat) -> tuple[array, dict[str, array]]:
    """What a judge's output has ahead of its number, and how each number goes on, as token ids."""
    return split_shared({str(number): chat.render_option(f"{scale.begin}{number}") for number in scale.values})


def what_verdicts_belong_to(
    records: list[Record], responses: list[dict[str, list[dict[str, Any]]]], metric: Metric
) -> dict[Key, str]:
    """Of each verdict a hash of all that it hangs on; where an answer is missing, which of them are there."""
    belongs: dict[Key, str] = {}
    for record in records:
        if not all(record["id"] in one for one in responses):
            continue
        outputs = answers_to(responses, record["id"])
        answered = are_answered(outputs)
        shown = hashlib.sha256(json.dumps([*metric.shown(record), outputs]).encode())
        parts = metric.parts(record) if metric.parts else None
        for key in metric.keys(record):
            whole = shown.copy()
            if parts is not None:
                whole.update(json.dumps(parts[key[1]]).encode())
            belongs[key] = whole.hexdigest() if all(answered) else str(answered)
    return belongs


def counts(key: Key, verdict: Verdict, system: System) -> bool:
    """Is it a verdict on what is judged now?"""
    of = str(verdict["answered"]) if "answered" in verdict else verdict.get("of")
    return key in system.belongs and of == system.belongs[key]


def drop_others(system: System) -> None:
    """Verdicts in a system's journal on other questions, aspects or answers than it has now no longer count."""
    journal = system.output.journal
    journal.drop([key for key, one in journal.entries.items() if not counts(key, one, system)])


def refuse_other_responses(system: System) -> None:
    """Raise UserError where the score file was made from another response file: its name may be a mistake.

    Or it cannot be written.
    """
    path, fingerprint = system.output.path, system.output.fingerprint
    if system.output.overwrite:
        return
    check_could_write(Path(path))
    manifest = manifest_of(path) if Path(path).is_file() else None
    if manifest is None or differences(manifest["fingerprint"], fingerprint, MADE_FROM):
        return  # opening it tells
    if not (differing := differences(manifest["fingerprint"], fingerprint, ("inputs",))):
        return
    judged = _judged_files(manifest, path)
    if judged is None:
        problem = f"was made with other settings: {differing}"
    elif [*map(os.path.realpath, judged)] != [*map(os.path.realpath, system.response_addrs)]:
        problem = f"was made from {', '.join(judged)}, not from {', '.join(system.response_addrs)}"
    else:
        return
    raise UserError(f"{path}: {problem}\n  give another output, or --overwrite to replace it")


def _judged_files(manifest: dict[str, Any], score_addr: str) -> list[str] | None:
    """The response files that a score file was made from; None where the shards it was merged from don't say so."""
    if "judged" in manifest:
        return manifest["judged"]
    arguments = manifest.get("arguments", {})
    responses, scores = arguments.get("response_addr"), [*map(os.path.realpath, arguments.get("score_addr", []))]
    if os.path.realpath(score_addr) not in scores:
        return None
    return responses if len(scores) == 1 else [responses[scores.index(os.path.realpath(score_addr))]]


def take_over(systems: list[System]) -> None:
    """Add the verdicts that the journals beside the score files have, and say how many; each journal is read once.

    A verdict that the judge failed to give is none. The tokens of what another score file paid for are not counted
    again.
    """
    folders = {Path(system.output.path).parent for system in systems if system.pending}
    for path in sorted(path for folder in folders for path in folder.glob("*.journal.jsonl") if path.is_file()):
        try:
            found = _find_verdicts(path, systems)
        except (UserError, OSError) as error:
            announce(f"note: its verdicts are not looked through: {error}")
            continue
        for number, verdicts in found.items():
            system = systems[number]
            for key, verdict in verdicts.items():
                if path != system.output.journal.path:
                    counted = (*TOKEN_COUNTS, THOUGHT_COUNT)
                    verdict = {name: value for name, value in verdict.items() if name not in counted}
                    verdict["taken_from"] = path.name
                system.output.journal.add(key, verdict)
            system.pending -= verdicts.keys()
            print(f"note: {system.output.path}: {len(verdicts)} verdicts are in {path} already", file=sys.stderr)


def _find_verdicts(path: Path, systems: list[System]) -> dict[int, dict[Key, Verdict]]:
    """Of a journal the verdicts that systems, by their number, lack; also what was replaced or no longer counts."""
    found: dict[int, dict[Key, Verdict]] = {}
    with open(path, "rb") as file:
        header, header_sum = read_header(file, path)
        begun_with = header["fingerprint"] if header else {}
        alike = {
            number: system
            for number, system in enumerate(systems)
            if header and system.pending and not differences(begun_with, system.output.fingerprint, MADE_FROM)
        }
        for line, _ in read_lines(file, path, header_sum) if alike else ():
            key, verdict = tuple(line.get("key", ())), line.get("value")
            for number, system in alike.items():
                if key in system.pending and not is_failed(verdict) and counts(key, verdict, system):
                    found.setdefault(number, {})[key] = {**verdict, "of": system.belongs[key]}
    return found
