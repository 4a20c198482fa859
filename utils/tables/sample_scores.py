"""Several responses per question as one response file per sample, and the scores of these files."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from utils.cli import UserError
from utils.files.manifest import settings_of
from utils.records.scores import Scores, read_scores
from utils.tables.system_scores import check_same_judge, few

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
    numbers = {hashlib.sha256(encode(sample)).hexdigest(): number for number, sample in enumerate(samples)}
    scores = {path: read_scores(path) for path in paths}
    check_same_judge(scores)
    path_of: dict[int, str] = {}
    for path in scores:
        number = numbers.get(str(settings_of(path).get("responses")))
        if number is None:
            raise UserError(
                f"{path}: not the scores of a sample of {response_addr}, by the manifest beside it\n"
                "  write the samples by --split_dir of utils/select_responses.py, and judge these files"
            )
        if number in path_of:
            raise UserError(f"{path}: scores sample {number}, and so does {path_of[number]}; give one of them")
        path_of[number] = path
    if lacking := [str(number) for number in range(len(samples)) if number not in path_of]:
        raise UserError(f"--score_addr: no scores of sample {few(lacking)} of {response_addr}; judge every sample")
    return {path_of[number]: scores[path_of[number]] for number in range(len(samples))}
