"""PersonaMem's tables: a question's topic and distance, and a run's results in the public code's format.

A record keeps the columns of the table of questions unchanged, as texts; older tables may lack some of them.
"""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from utils.base.errors import UserError, quote
from utils.benchmarks.checks import Record, check_id, is_unicode, number_in
from utils.benchmarks.personamem.letters import LETTERS, parse_letter
from utils.benchmarks.thoughts import split_thoughts

NOT_GIVEN = "not given"

# Bins for the number of tokens between a question and the place that it refers to; each upper edge is twice the one
# before. All sizes have the same bins, so that they are comparable. "4k-8k tokens" means above 4,096 and up to 8,192.
LENGTH, TOKENS = "context_length_in_tokens", "distance_to_ref_in_tokens"
_EDGES = ("0", "1k", "2k", "4k", "8k", "16k", "32k", "64k", "128k", "256k", "512k", "1M")
_LAST = f"above {_EDGES[-1]} tokens"
DISTANCES = (*(f"{low}-{high} tokens" for low, high in pairwise(_EDGES)), _LAST, NOT_GIVEN)

# The columns of the result table, in the public code's order; older tables also have `OLDER`.
_ASKED = ("persona_id", "question_id", "user_question_or_message", "question_type", "topic")
_LENGTHS = (
    LENGTH,
    "context_length_in_letters",
    "distance_to_ref_in_blocks",
    TOKENS,
    "num_irrelevant_tokens",
    "distance_to_ref_proportion_in_context",
)
_ANSWER = ("model_response", "len_of_model_response", "predicted_answer", "correct_answer")
OLDER = "stereotypical"
# Columns with a run's answer; the first that exists is read: the model's text, its part after the marker, or the letter
# of the public retrieval baselines. These have the right letter in the column `answer`, so it is never read.
RESPONSE_COLUMNS = ("model_response", "predicted_answer", "p")
_LETTER = re.compile(r"\s*\(?([a-d])\)?\s*", re.IGNORECASE)


# How questions are divided


def text_in(record: Record, column: str) -> str:
    text = record.get(column)
    return text.strip() if isinstance(text, str) and text.strip() else NOT_GIVEN


def distance_of(record: Record) -> str:
    """Return the record's bin, one of `DISTANCES`."""
    tokens = number_in(record, TOKENS)
    if tokens is None:
        return NOT_GIVEN
    number = max(0, math.ceil(math.log2(tokens / 1024))) if tokens > 0 else 0
    return DISTANCES[min(number, DISTANCES.index(_LAST))]


def evidence_position(record: Record) -> float | None:
    """Return the share of the history, 0 to 1, that comes before the place of the reference; None if unknown."""
    distance, length = (number_in(record, name) for name in (TOKENS, LENGTH))
    if distance is not None and length:
        return max(0.0, 1 - distance / length)
    percent = number_in(record, "distance_to_ref_proportion_in_context")
    return None if percent is None else max(0.0, 1 - percent / 100)


# The public code's results


def write_results(records: Sequence[Record], responses: Mapping[str, dict[str, Any]]) -> str:
    """Return the result table, with a row per question; without an answer, the score is False."""
    older = [OLDER] if any(OLDER in record for record in records) else []
    columns = ["score", *_ASKED, *older, *_LENGTHS, *_ANSWER]
    text = io.StringIO()
    table = csv.DictWriter(text, columns, extrasaction="ignore", restval="")
    table.writeheader()
    for record in records:
        response = responses[record["id"]]
        letter = response["output"].strip()
        predicted = f"({letter})" if letter else ""
        wrote = response.get("raw") or predicted  # --choose likelihood generates no text
        names = {"question_id": record["id"], "user_question_or_message": record["question"]}
        answer = (wrote, len(wrote), predicted, f"({record['target']})")
        score = {"score": letter == record["target"]}
        table.writerow({**record, **score, **names, **dict(zip(_ANSWER, answer, strict=True))})
    return text.getvalue()


def read_answer(row: Mapping[str, str], where: str) -> tuple[str, dict[str, Any]]:
    """Return a question's id and a run's answer, without reading the right letter, which many tables have too.

    A model's text is parsed like a text of baselines.py; without a letter, the answer is missing. The column `p` must
    have a letter or be empty. UserError if the row is malformed.
    """
    if not row.get("question_id"):
        raise UserError(f"{where}: no column 'question_id'")
    question_id = check_id(row["question_id"], where)
    where = f"{where} (id {quote(question_id)})"
    column = next((name for name in RESPONSE_COLUMNS if name in row), None)
    if column is None:
        raise UserError(
            f"{where}: has none of the columns with a run's answer: {', '.join(RESPONSE_COLUMNS)}\n"
            "  column 'answer' is not read, because the public code's tables have the right letter there"
        )
    text = row[column]
    if not is_unicode(text):
        raise UserError(f"{where}: column {column!r} has half a character (a lone surrogate)")
    if column != "p":
        parsed = parse_letter(split_thoughts(text).answer)
        reason = {} if parsed.value else {"reason": parsed.reason}
        return question_id, {"output": parsed.value, "raw": text, **reason}
    letter = _LETTER.fullmatch(text)
    if letter is None and text.strip():
        raise UserError(f"{where}: column 'p' is {quote(text)}, not one of the letters {', '.join(LETTERS)}")
    if letter is None:
        return question_id, {"output": None, "reason": "no letter in the table"}
    return question_id, {"output": letter[1].lower()}
