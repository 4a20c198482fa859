"""Studies with human raters: their kinds, the drawing of questions, and each rater's share. Pure.

For each question, a rater fills a list of slots, with these keys in result files: "choice" for a pair of answers; "0",
"1", ... for the verdicts on an answer's aspects; "0.valid" and so on for the ratings of each aspect, and "complete" for
all aspects together.
"""

import hashlib
import random
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from utils.show.pages import to_json

Slot = tuple[str, str, int | None]  # key, name of the scale, and index of the aspect; None if not about one aspect


NUM_SYSTEMS = {"pairs": 2, "aspects": 0, "verdicts": 1}  # by kind of study
_TEXTS = tomllib.loads(Path(__file__).with_name("rating_texts.toml").read_text(encoding="utf-8"))
# Per scale: the question to the rater, the possible values in the order of the page's buttons, and whether the values
# are ordered steps (0 is closer to 1 than to 2).
SCALES = {
    name: {"asks": scale["asks"], "choices": dict(scale["choices"]), "steps": scale.get("steps", True)}
    for name, scale in _TEXTS["scales"].items()
}


def slots_of(ask: str, num_aspects: int) -> list[Slot]:
    """Return the slots of a question with this many aspects."""
    if ask == "pairs":
        return [("choice", "choice", None)]
    if ask == "verdicts":
        return [(str(i), "covered", i) for i in range(num_aspects)]
    rated = [(f"{i}.{scale}", scale, i) for i in range(num_aspects) for scale in ("valid", "important", "evidence")]
    return [*rated, ("complete", "complete", None)]


def draw(group_of: Mapping[str, str | None], number: int, seed: int) -> list[str]:
    """Draw at most `number` ids; every prefix of the list represents the groups proportionally (Webster's method).

    The order of the questions in the files has no effect. Each question's random number depends only on seed and id, so
    studies of different systems with the same seed draw the same questions, unless an answer is missing.
    """
    chance = {question_id: random.Random(f"{seed} {question_id}").random() for question_id in group_of}
    ranked = []
    for group in set(group_of.values()):
        ids = sorted((chance[question_id], question_id) for question_id in group_of if group_of[question_id] == group)
        ranked += [((i + 0.5) / len(ids), *chance_and_id) for i, chance_and_id in enumerate(ids)]
    return [question_id for *_, question_id in sorted(ranked)][:number]


def share_out(drawn: list[str], raters: list[str], overlap: int, seed: int) -> dict[str, list[str]]:
    """Return each rater's questions in random order: the first `overlap` drawn ones, and a part of the others."""
    rng, shares = random.Random(f"{seed} shares"), {}
    for number, rater in enumerate(raters):
        shares[rater] = [*drawn[:overlap], *drawn[overlap + number :: len(raters)]]
        rng.shuffle(shares[rater])
    return shares


def draw_swapped(drawn: list[str], group_of: Mapping[str, str | None], seed: int) -> set[str]:
    """Draw the questions where the second system's answer is shown first: a random half of each group."""
    rng, swapped = random.Random(f"{seed} sides"), set()
    for group in sorted({group_of[question_id] for question_id in drawn}, key=str):
        ids = [question_id for question_id in drawn if group_of[question_id] == group]
        rng.shuffle(ids)
        swapped.update(ids[rng.randrange(2) :: 2])  # a random one of the two halves, which may differ by one
    return swapped


def make_content(
    ask: str, questions: list[dict[str, Any]], shares: Mapping[str, list[str]], has_post_detail: bool
) -> dict[str, Any]:
    """Return the page's content, which does not name the systems; its hash identifies the study."""
    place = {question["id"]: i for i, question in enumerate(questions)}
    questions = [{**question, "slots": slots_of(ask, len(question["aspects"]))} for question in questions]
    used = {scale for question in questions for _, scale, _ in question["slots"]}
    instruction = ask if ask != "pairs" or has_post_detail else "pairs_without_post_detail"
    # Choices are a list, because JavaScript would sort an object's keys that are numbers.
    shown = {name: scale for name, scale in SCALES.items() if name in used}
    scales = {name: scale | {"choices": list(scale["choices"].items())} for name, scale in shown.items()}
    content = {
        "ask": ask,
        "instruction": _TEXTS["instructions"][instruction],
        "scales": scales,
        "shares": [[rater, [place[question_id] for question_id in ids]] for rater, ids in shares.items()],
        "questions": questions,
    }
    return {"study": hashlib.sha256(to_json(content).encode()).hexdigest(), **content}


def make_key(
    content: dict[str, Any], systems: list[dict[str, Any]], groups: Mapping[str, str | None], swapped: set[str]
) -> dict[str, Any]:
    """Return the study's key, which is not part of the page; raters' files are checked against it."""
    questions = {
        question["id"]: {
            "question": question["question"],
            "group": groups[question["id"]],
            "swapped": question["id"] in swapped,
            "aspects": [title for title, *_ in question["aspects"]],
        }
        for question in content["questions"]
    }
    ids = list(questions)
    shares = {rater: [ids[place] for place in places] for rater, places in content["shares"]}
    head = {"study": content["study"], "ask": content["ask"]}
    return {**head, "systems": systems, "raters": shares, "questions": questions}
