"""Files of a generator's hidden states, from utils/embed_responses.py.

A file has three float16 arrays in safetensors format: `x` (Q, D) has the states of the questions, `u` (Q, D) those of
the posts in their prompts, and `y` (R, D) those of the responses. The metadata lists, for each question, its id, its
hash, and where the rows of its responses begin and end.
"""

import json
from collections.abc import Collection
from typing import Any, NamedTuple

from utils.base.errors import UserError
from utils.base.manifest import differences, file_hash, settings_of
from utils.data.responses import are_answered, read_responses
from utils.data.scores import read_rewards

SCRIPT = "utils/embed_responses.py"
RANKER = "ranker.safetensors"  # in a ranker's folder
MODEL = ("model", "dtype", "normalize")  # settings that a state depends on, besides the text
Pool = tuple[int, list[int], list[float]]  # a question's number, and the rows and scores of its scored answers


class States(NamedTuple):
    path: str
    settings: dict[str, Any]
    questions: list[tuple[str, str, int, int]]
    arrays: dict[str, Any]


Scored = tuple[list[Pool], States]


def read_states(path: str, response_addr: str) -> States:
    """Return a file's content; UserError unless it has the states of these responses."""
    from safetensors import safe_open

    settings, expected = settings_of(path), {"script": SCRIPT, "responses": file_hash(response_addr)}
    if not expected.items() <= settings.items():
        problem = f"not made from the current {response_addr}, according to the manifest beside it"
        raise UserError(f"{path}: {problem}\n  run {SCRIPT} on these responses")
    with safe_open(path, "numpy") as file:
        arrays = {kind: file.get_tensor(kind) for kind in "xuy"}
        return States(path, settings, json.loads(file.metadata()["questions"]), arrays)


def read_pools(response_addr: str, score_addr: str, states_addr: str) -> Scored:
    """Return the responses that have an answer and a score (higher is better), and all states.

    UserError if no question has two such responses.
    """
    responses, states, pools = read_responses(response_addr), read_states(states_addr, response_addr), []
    rewards = read_rewards(score_addr, responses, response_addr)
    for number, (question_id, _, first, _) in enumerate(states.questions):
        answered = are_answered(response["output"] for response in responses[question_id])
        scores = {row: score for row, score in enumerate(rewards.get(question_id, ()), first) if score is not None}
        scores = {row: score for row, score in scores.items() if answered[row - first]}
        pools += [(number, [*scores], [*scores.values()])] if scores else []
    if max((len(rows) for _, rows, _ in pools), default=0) < 2:
        remedy = "sample several (--num_generated_outputs 16 --temperature 1), and judge all of them (--samples all)"
        raise UserError(f"{response_addr}: no question has two answers with a score\n  {remedy}")
    return pools, states


def refuse_states(states: States, settings: dict[str, Any], hashes: Collection[str], learner: str) -> None:
    """Raise UserError if a ranker does not fit these states, or was trained or chosen on their questions.

    Args:
        settings: the settings of the states on which the ranker was trained.
        hashes: the hashes of the questions on which the ranker was trained or chosen.
        learner: the ranker's name, for messages.
    """
    if differing := differences(*({name: both[name] for name in MODEL} for both in (settings, states.settings))):
        problem = f"not made like the states on which {learner} was trained: {differing}"
        raise UserError(f"{states.path}: {problem}\n  embed all responses in the same way, by the same model")
    if number := sum(digest in hashes for _, digest, *_ in states.questions):
        problem = f"{learner} was trained or chosen on {number} of this file's {len(states.questions)} questions"
        raise UserError(f"{states.path}: {problem}\n  use responses to other questions, or train a ranker on others")
