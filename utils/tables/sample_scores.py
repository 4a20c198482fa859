"""Several responses per question as one response file per sample, and the scores of these files."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from utils.cli import UserError
from utils.files.json_files import read_json
from utils.files.manifest import differences, noted_settings, settings_of
from utils.records.scores import Scores, read_scores
from utils.tables.system_scores import check_same_judge, few

COMBINED = "utils/combine_scores.py"

Responses = dict[str, list[dict[str, Any]]]


def split(responses: Responses) -> list[Responses]:
    """Return one response file per sample; a question with fewer samples is missing from the last files."""
    count = max(map(len, responses.values()), default=0)
    return [
        {key: [{**outputs[number], "sample": number}] for key, outputs in responses.items() if number < len(outputs)}
        for number in range(count)
    ]


def encode(responses: Responses) -> bytes:
    text = json.dumps(responses, ensure_ascii=False, indent=2) + "\n"
    return text.encode(errors="backslashreplace")  # lone surrogates in other people's fields stay escaped


def read_sample_scores(paths: Sequence[str], samples: list[Responses], response_addr: str) -> dict[str, Scores]:
    """Read the score files in the samples' order; UserError unless each sample has one and all were judged alike."""
    scores = {path: read_scores(path) for path in paths}
    check_same_judge(scores)
    return {path: scores[path] for path in in_order(paths, samples, response_addr)}


def in_order(paths: Sequence[str], samples: list[Responses], response_addr: str) -> list[str]:
    """Return the files with the samples' scores in the samples' order; UserError unless each sample has just one."""
    numbers = {hashlib.sha256(encode(sample)).hexdigest(): number for number, sample in enumerate(samples)}
    path_of: dict[int, str] = {}
    for path in paths:
        number = numbers.get(str(settings_of(path).get("responses")))
        if number is None:
            raise UserError(
                f"{path}: not the scores of a sample of {response_addr}, by the manifest beside it\n"
                "  write the samples with utils/select_responses.py --split_dir, and judge these files"
            )
        if number in path_of:
            raise UserError(f"{path}: scores sample {number}, and so does {path_of[number]}; give one of them")
        path_of[number] = path
    if lacking := [str(number) for number in range(len(samples)) if number not in path_of]:
        raise UserError(f"--score_addr: no scores of sample {few(lacking)} of {response_addr}; judge every sample")
    return [path_of[number] for number in range(len(samples))]


def are_rewards(paths: Sequence[str]) -> bool:
    """Return whether files are rewards of utils/combine_scores.py; UserError if only some are."""
    are = {path: noted_settings(path).get("script") == COMBINED for path in paths}
    if len(set(are.values())) > 1:
        mixed = next(path for path, is_reward in are.items() if not is_reward)
        raise UserError(f"{mixed}: has no rewards of {COMBINED}, but other files have; combine all, or none")
    return all(are.values())


def read_rewards(paths: Sequence[str]) -> list[dict[str, float | None]]:
    """Return each file's rewards by question id; UserError if they were combined differently."""
    first, *others = paths
    for path in others:
        if differing := differences(noted_settings(first), noted_settings(path), ("responses", "scores")):
            raise UserError(f"{path}: was combined with other settings than {first}: {differing}")
    return [read_json(path)["rewards"] for path in paths]
