"""What is judged together, and where its scores go."""

import os
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.benchmarks.task import Metric, Record, Scale
from utils.cli import UserError
from utils.files.manifest import manifest_of
from utils.files.output import Output
from utils.generation.chat import LocalChat
from utils.generation.scoring import split_shared


@dataclass
class System:
    """What is judged together: one response file, or the two of a pairwise comparison; and where its scores go."""

    response_addrs: list[str]
    responses: list[dict[str, list[dict[str, Any]]]]  # what each of these files holds
    questions: list[Record]  # to be judged, in the dataset's order; each has a response in each file
    metric: Metric
    output: Output  # the score file, whose pieces are the verdicts


def answers_to(responses: list[dict[str, list[dict[str, Any]]]], question_id: str) -> list[str | None]:
    """What each of the response files has for a question: its first response, which is the one that is judged."""
    return [one[question_id][0]["output"] for one in responses]


def are_answered(outputs: Iterable[str | None]) -> list[bool]:
    return [bool(output and output.strip()) for output in outputs]


def verdict_options(scale: Scale, chat: LocalChat) -> tuple[array, dict[str, array]]:
    """What a judge's output has ahead of its number, and how each number goes on, as token ids."""
    return split_shared({str(number): chat.render_option(f"{scale.begin}{number}") for number in scale.values})


def is_finished(system: System) -> bool:
    """`Output.is_finished`; UserError too where the score file is of another response file: its name may be a mistake.

    A response file that has changed is judged again.
    """
    is_finished, path = system.output.is_finished(), system.output.path
    manifest = manifest_of(path) if Path(path).is_file() and not system.output.is_shard else None
    if manifest is None or system.output.args.overwrite:
        return is_finished
    judged, is_alike = manifest["judged"], manifest["fingerprint"]["responses"] == system.output.settings["responses"]
    if not is_alike and [*map(os.path.realpath, judged)] != [*map(os.path.realpath, system.response_addrs)]:
        raise UserError(
            f"{path}: was made from {', '.join(judged)}, not from {', '.join(system.response_addrs)}\n"
            "  give another output, or --overwrite to replace it"
        )
    return is_finished
