"""What a judge is asked by each --strategy, and how its output is read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prompts import Messages, Prompt
from utils.generation.driver import Parser
from utils.parsing.model_output import (
    LEVEL_SCHEMA,
    PREFERENCE_SCHEMA,
    VERDICT_SCHEMA,
    parse_level,
    parse_preference,
    parse_verdict,
)


@dataclass(frozen=True)
class Strategy:
    """What a judge is asked, and how its output is read; `utils.scoring.SCORINGS` says what it adds up to.

    Attributes:
        needs: fields of the dataset.
        messages: from the prompt, the record, its responses, and the number of the verdict in its key.
    """

    prompt: str
    needs: list[str]
    messages: Callable[[Prompt, dict[str, Any], list[str], int], Messages]
    schema: dict[str, Any]
    parse: Parser


def aspect_messages(prompt: Prompt, record: dict[str, Any], responses: list[str], number: int) -> Messages:
    return judge_messages(prompt, record, responses[0], record["rubric_aspects"][number])


def judge_messages(prompt: Prompt, record: dict[str, Any], response: str, aspect: dict[str, str]) -> Messages:
    """The judge's prompt for one aspect (paper figure 12)."""
    return prompt.messages(
        question=record["question"],
        details=record["narrative"],
        response=response,
        aspect=aspect["aspect"],
        reason=aspect["reason"],
        evidence=aspect["evidence"],
    )


def direct_messages(prompt: Prompt, record: dict[str, Any], responses: list[str], number: int) -> Messages:
    """The prompt for a whole response (paper figure 10)."""
    return prompt.messages(question=record["question"], details=record["narrative"], response=responses[0])


def pairwise_messages(prompt: Prompt, record: dict[str, Any], responses: list[str], number: int) -> Messages:
    """The prompt for two responses (paper figure 11): in the order of their files for 0, swapped for 1."""
    first, second = responses if number == 0 else reversed(responses)
    return prompt.messages(
        question=record["question"], details=record["narrative"], response_1=first, response_2=second
    )


STRATEGIES = {
    "aspect": Strategy("aspect_judge", ["narrative", "rubric_aspects"], aspect_messages, VERDICT_SCHEMA, parse_verdict),
    "direct": Strategy("direct_judge", ["narrative"], direct_messages, LEVEL_SCHEMA, parse_level),
    "pairwise": Strategy("pairwise_judge", ["narrative"], pairwise_messages, PREFERENCE_SCHEMA, parse_preference),
}
