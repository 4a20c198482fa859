"""Scores of all samples of a response file: its score file (--samples all), or rewards that were made from that."""

from typing import Any

from utils.base.errors import UserError, quote
from utils.base.json_files import read_json
from utils.base.manifest import manifest_of
from utils.data.responses import Responses
from utils.data.scores import Scores, metric_behind, read_scores, refuse_scores_of_others

COMBINED = "utils/combine_scores.py"  # the script that writes rewards

SampleScores = dict[str, list[float | None]]  # by question id, in the order of the samples; None: no score


def read_sample_scores(path: str, responses: Responses, response_addr: str) -> tuple[Scores, SampleScores]:
    """Return a score file's content and the scores of all samples of these responses.

    UserError unless the file has a score, or null, for each sample of its questions, and was made from this file.
    """
    _check_source(path, response_addr)
    return _read(path, responses)


def read_rewards(path: str, responses: Responses, response_addr: str) -> SampleScores:
    """Return the rewards of all samples, higher is better, from a score file or a file of rewards.

    A score that is an error, such as LaMP-3's, counts as negative. UserError as in `read_sample_scores`.
    """
    if _check_source(path, response_addr)["settings"].get("script") == COMBINED:
        return read_json(path)["rewards"]
    scores, samples = _read(path, responses)
    if not metric_behind(scores).lower_is_better:
        return samples
    return {key: [None if score is None else -score for score in row] for key, row in samples.items()}


def _check_source(path: str, response_addr: str) -> dict[str, Any]:
    """Return the manifest of scores or rewards; UserError unless they are of this response file, and complete."""
    made = manifest_of(path)
    if made is None or "responses" not in made["settings"]:
        raise UserError(f"{path}: has no manifest beside it that names the responses; judge them again")
    if made.get("missing"):
        raise UserError(f"{path}: verdicts are missing because the server failed; run the judge's command again")
    refuse_scores_of_others(path, [response_addr])
    return made


def _read(path: str, responses: Responses) -> tuple[Scores, SampleScores]:
    scores = read_scores(path)
    samples = {entry["id"]: entry.get("samples", [entry["score"]]) for entry in scores["per_question_scores"]}
    for question_id, of_question in samples.items():
        if len(of_question) != (number := len(responses.get(question_id, ()))):
            raise UserError(
                f"{path}: id {quote(question_id)}: has {len(of_question)} of {number} samples' scores\n"
                "  judge the responses with --samples all"
            )
    return scores, samples
