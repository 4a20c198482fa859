"""The calls of each step (--dry_run). Tokens are estimates, since most calls continue earlier replies."""

from collections.abc import Callable, Iterator, Sequence

from utils.personas.conversations import GENERAL_EVENTS, LATER_EVENTS, TOPIC_EVENTS
from utils.personas.inputs import PERIODS
from utils.personas.questions import TRIES

NUM_LATER = len(PERIODS) - 1
CHANGES = 6  # a guess: of ten later events that many change an earlier one, as the prompts ask
AGAIN = 2  # a guess: that many of these change an event that was itself a change

# By step and prompt: calls per record, and tokens in and out per call besides the prompt's own, which are guesses.
Costs = dict[str, tuple[int, int, int]]
COSTS: dict[str, Costs] = {
    "personas": {
        "persona": (1, 50, 150),
        "general_history": (1, 400, 60 * GENERAL_EVENTS),
        "general_later": (NUM_LATER, 2000, 80 * LATER_EVENTS),
    },
    "conversations": {
        "hobbies": (1, 1500, 400),
        "topic_history": (1, 2200, 80 * TOPIC_EVENTS),
        "topic_later": (NUM_LATER, 5500, 100 * LATER_EVENTS),
        "warm_up": (1, 300, 100),
        "conversation": (len(PERIODS), 6000, 2500),
        "section": (TOPIC_EVENTS + NUM_LATER * LATER_EVENTS + len(PERIODS), 250, 450),
    },
    "small_talk": {"small_talk": (2, 400, 500), "follow_up": (1, 600, 40)},
}


def costs_of_questions(periods: Sequence[str]) -> Costs:
    """The calls for questions about one topic's events in these periods."""
    later = len({*periods} - {PERIODS[0]})
    events = TOPIC_EVENTS * (PERIODS[0] in periods) + LATER_EVENTS * later
    numbers = dict.fromkeys(("facts", "latest", "recommendation"), events)
    numbers |= dict.fromkeys(("ideas", "evolution", "scenario", "reasons"), CHANGES * later)
    lines = {"reasons_line": AGAIN * later}
    wrong = {f"{name}_wrong": number for name, number in numbers.items()}
    wrong["reasons_wrong"] += lines["reasons_line"]
    costs = {name: (number, 300, 150) for name, number in {**numbers, **lines}.items()}
    costs |= {name: (number, 250, 250) for name, number in wrong.items()}
    return costs | {"blind": (TRIES * sum(wrong.values()), 350, 10)}


def describe_step(
    step: str, records: int, periods: Sequence[str], length: Callable[[str], int]
) -> Iterator[tuple[str, int, int, int]]:
    """Of each kind of call its prompt, how many, and tokens in and out; `length` is of a prompt's own text."""
    for prompt, (per_record, read, written) in (COSTS.get(step) or costs_of_questions(periods)).items():
        number = records * per_record
        yield prompt, number, number * (length(prompt) + read), number * written
