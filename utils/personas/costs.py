"""What the steps are about to ask (--dry_run): calls by count, tokens by guesses, since each call builds on others."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from utils.personas.conversations import GENERAL_EVENTS, LATER_EVENTS, PERIODS, TOPIC_EVENTS
from utils.personas.questions import TRIES

# A guess: of ten later events six change an earlier one, as the prompts ask; three of ten questions on a real line.
EVENTS = TOPIC_EVENTS + (len(PERIODS) - 1) * LATER_EVENTS
UPDATES = (len(PERIODS) - 1) * 6
QUESTIONS = {"all": 3 * EVENTS, "updates": 4 * UPDATES}


class Cost(NamedTuple):
    """Calls of one kind: how many a record, and tokens that each has beside its prompt's own, a guess."""

    step: str
    prompt: str
    number: int
    input: int
    output: int


COSTS = [
    Cost("personas", "persona", 1, 50, 150),
    Cost("personas", "general_history", 1, 400, 60 * GENERAL_EVENTS),
    Cost("personas", "general_later", 3, 2000, 80 * LATER_EVENTS),
    Cost("conversations", "hobbies", 1, 1500, 400),
    Cost("conversations", "topic_history", 1, 2200, 80 * TOPIC_EVENTS),
    Cost("conversations", "topic_later", 3, 5500, 100 * LATER_EVENTS),
    Cost("conversations", "warm_up", 1, 300, 100),
    Cost("conversations", "conversation", 4, 6000, 2500),
    Cost("conversations", "section", EVENTS + len(PERIODS), 250, 450),
    Cost("small_talk", "small_talk", 2, 400, 500),
    Cost("small_talk", "follow_up", 1, 600, 40),
    Cost("questions", "facts", EVENTS, 300, 150),
    Cost("questions", "facts_wrong", EVENTS, 150, 250),
    Cost("questions", "latest", EVENTS, 300, 150),
    Cost("questions", "latest_wrong", EVENTS, 250, 250),
    Cost("questions", "recommendation", EVENTS, 300, 150),
    Cost("questions", "recommendation_wrong", EVENTS, 150, 250),
    Cost("questions", "ideas", UPDATES, 300, 150),
    Cost("questions", "ideas_wrong", UPDATES, 350, 250),
    Cost("questions", "evolution", UPDATES, 250, 120),
    Cost("questions", "evolution_wrong", UPDATES, 250, 350),
    Cost("questions", "scenario", UPDATES, 80, 150),
    Cost("questions", "scenario_wrong", UPDATES, 250, 250),
    Cost("questions", "reasons", UPDATES, 80, 150),
    Cost("questions", "reasons_wrong", UPDATES, 200, 250),
    Cost("questions", "blind", TRIES * (3 * EVENTS + 4 * UPDATES), 350, 10),
]


def describe_step(step: str, records: int, length: Callable[[str], int]) -> Iterator[tuple[str, int, int, int]]:
    """Of each kind of call its prompt, how many, and tokens in and out; `length` is of a prompt's own text."""
    for cost in COSTS:
        if cost.step == step:
            number = records * cost.number
            yield cost.prompt, number, number * (length(cost.prompt) + cost.input), number * cost.output
