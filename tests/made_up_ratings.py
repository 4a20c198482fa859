"""Results of two raters for a study of utils/human_evaluation.py, drawn by hash and therefore always the same.

`python tests/made_up_ratings.py STUDY_key.json` writes ratings_STUDY_Ann.json and ratings_STUDY_Bo.json beside the key.
"""

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("key_addr", type=Path, metavar="STUDY_key.json", help="the study's key")
    key_addr = parser.parse_args().key_addr
    key = json.loads(key_addr.read_text(encoding="utf-8"))
    for rater, ids in key["raters"].items():
        answers = [rate(key, rater, question_id) for question_id in ids]
        result = {"study": key["study"], "ask": key["ask"], "rater": rater, "answers": answers}
        name = f"ratings_{key_addr.name.replace('_key', f'_{rater}')}"
        key_addr.with_name(name).write_text(json.dumps(result), encoding="utf-8")


def rate(key: dict[str, Any], rater: str, question_id: str) -> dict[str, Any]:
    """Return a rater's decisions on one question."""
    aspects = range(len(key["questions"][question_id]["aspects"]))
    slots = {
        "pairs": {"choice": (0, 1, 2)},
        "verdicts": {str(i): (0, 1, 2) for i in aspects},
        "aspects": {f"{i}.{scale}": (0, 1) for i in aspects for scale in ("valid", "important", "evidence")}
        | {"complete": (1, 2, 3, 4, 5)},
    }[key["ask"]]
    decisions = {}
    for slot, values in slots.items():
        drawn = int(hashlib.sha256(f"{rater} {question_id} {slot}".encode()).hexdigest(), 16)
        decisions[slot] = {"value": values[drawn % len(values)], "seconds": 2.5}
    return {"id": question_id, "decisions": decisions, "comment": "", "changed": 0}


if __name__ == "__main__":
    main()
