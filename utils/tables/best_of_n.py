"""The curve of best of N: the judge's score of the sample that another scorer scores highest, for growing numbers N.

With M samples of a question, the expectation over all subsets of N samples is exact: the sample with the i-th highest
of M scores, i from 0, is the best of N with probability C(M - 1 - i, N - 1) / C(M, N).
"""

import hashlib
import json
from collections.abc import Sequence
from math import comb
from typing import NamedTuple

from utils.benchmarks import tasks
from utils.cli import UserError
from utils.files.json_files import read_json
from utils.files.manifest import differences, noted_settings, settings_of
from utils.records.responses import Responses
from utils.records.scores import Scores, read_scores
from utils.tables.comparable import check_same_judge
from utils.tables.formats import few
from utils.tables.groups import with_own_groups

RESAMPLES = 9_999


class Curve(NamedTuple):
    """Means over questions for each N, with 95% intervals, and the number of questions that lack usable samples."""

    numbers: list[int]
    means: list[float]
    intervals: list[tuple[float, float]]
    num_fewer: int


def expected_best(judged: Sequence[float], chosen_by: Sequence[float | None], number: int) -> float:
    """Return the expected score of the best of `number` random samples of a question, or of all if there are fewer.

    Args:
        judged: the judge's score of each sample.
        chosen_by: each sample's score by which the best is chosen; None, for a missing answer, is the lowest. Among
            equal scores, the first sample is the best.
    """
    keys = [(score is None, -(score or 0)) for score in chosen_by]
    order, most = sorted(range(len(judged)), key=keys.__getitem__), min(number, len(judged))
    ways = [comb(len(judged) - 1 - place, most - 1) for place in range(len(judged))]
    return sum(way * judged[sample] for way, sample in zip(ways, order, strict=True)) / comb(len(judged), most)


def make_curve(judged: Sequence[Scores], chosen_by: Sequence[Scores], lower_is_better: bool = False) -> Curve:
    """Return the curve for N = 1, 2, 4, ... up to the number of samples, from both scorers' files in the same order.

    The best sample has the highest score in `chosen_by`, or the lowest if `lower_is_better`. The mean is over the means
    of groups, as in a table's macro average. Intervals resample the questions of each group. Samples without a verdict
    of the judge are left out; UserError if no sample is left.
    """
    import numpy as np

    task = tasks()[judged[0]["task"]]
    task, placed = with_own_groups(task, dict(enumerate(judged)))  # by sample
    by_question: dict[str, list[tuple[float, float | None]]] = {}
    groups: dict[str, str] = {}
    for content, other in zip(placed.values(), chosen_by, strict=True):
        scores = {entry["id"]: entry["score"] for entry in other["per_question_scores"]}
        if lower_is_better:
            scores = {key: None if score is None else -score for key, score in scores.items()}
        for entry in content["per_question_scores"]:
            if entry["score"] is not None and entry["group"] in task.groups and entry["id"] in scores:
                by_question.setdefault(entry["id"], []).append((entry["score"], scores[entry["id"]]))
                groups[entry["id"]] = entry["group"]
    if not by_question:
        raise UserError("--figure best_of_n: no sample has both a verdict and a score to choose by")
    numbers = [2**power for power in range(len(judged).bit_length()) if 2**power <= len(judged)]
    values = np.array([[expected_best(*zip(*samples, strict=True), number) for number in numbers]
                       for samples in by_question.values()])  # fmt: skip
    of_group = [values[[groups[key] == group for key in by_question]] for group in dict.fromkeys(groups.values())]
    means = np.mean([rows.mean(axis=0) for rows in of_group], axis=0)
    drawn, generator = np.zeros((RESAMPLES, len(numbers))), np.random.default_rng(0)
    for rows in of_group:
        times = generator.multinomial(len(rows), [1 / len(rows)] * len(rows), RESAMPLES)
        drawn += times @ rows / len(rows) / len(of_group)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    fewer = sum(len(samples) < len(judged) for samples in by_question.values())
    return Curve(numbers, means.tolist(), list(zip(low.tolist(), high.tolist(), strict=True)), fewer)


COMBINED = "utils/combine_scores.py"


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
    """Return score files by path in the samples' order; UserError unless each sample has one, all judged alike."""
    scores = {path: read_scores(path) for path in paths}
    check_same_judge(scores)
    return {path: scores[path] for path in in_order(paths, samples, response_addr)}


def in_order(paths: Sequence[str], samples: list[Responses], response_addr: str) -> list[str]:
    """Return the score files' paths in the order of their samples; UserError unless each sample has exactly one."""
    numbers = {hashlib.sha256(encode(sample)).hexdigest(): number for number, sample in enumerate(samples)}
    path_of: dict[int, str] = {}
    for path in paths:
        number = numbers.get(str(settings_of(path).get("responses")))
        if number is None:
            raise UserError(
                f"{path}: not the scores of a sample of {response_addr}, according to the manifest beside it\n"
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
