"""Draw the blocks of a persona's history, put them in order and add small talk; seeded, no model.

A block is a period of a topic. A topic's periods are drawn in order (first, week, month, year), so the drawn blocks are
always its first ones. Most questions are about the last block of one topic, the main topic. All draws depend on `key`,
which consists of the seed, the persona and the size.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple

from utils.building.personas.inputs import PERIODS

# Weights of the periods in a draw, by the share of blocks drawn so far; other periods have the weight OTHERWISE.
STAGES = (
    (0.25, {"init": 1.0}),
    (0.5, {"next_week": 1.0, "init": 0.2}),
    (0.75, {"next_month": 1.0, "next_week": 0.2}),
    (math.inf, {"next_year": 1.0, "next_month": 0.2}),
)
OTHERWISE = 0.1
ATTEMPTS = 100  # maximum number of draws until a topic has all periods
NEAR_SHARE = 10  # if the main topic comes first, one in ten of the other topics' blocks is placed between its blocks

CARD = "card"
SMALL_TALK = "small talk"
NO_SMALL_TALK = 15  # up to this many blocks, there is no small talk
FEW_BLOCKS = 30  # from this many on, there is more small talk; above it, fewer questions about other blocks
# Weights of 0, 1, 2, ... pieces of small talk between two blocks; the key says whether there are few blocks.
SMALL_TALK_WEIGHTS = {True: (0.7, 0.2, 0.1), False: (1,) * 19}

CountTokens = Callable[[list[str]], Sequence[int]]  # the number of tokens of each text


class MessageId(NamedTuple):
    """The identity of a message.

    `section` is the date of the section's event, or the section's number if it has no event or the date is taken. It is
    CARD for the persona's card, and the piece's number for small talk.
    """

    topic: str
    period: str
    section: str
    turn: int
    role: str


class Message(NamedTuple):
    id: MessageId
    content: str
    tokens: int


class Block(NamedTuple):
    topic: str
    period: str
    messages: list[Message]
    tokens: int


Topics = dict[str, list[Block]]  # the blocks of each topic, in the order of PERIODS


def make_blocks(card: str, topic: str, conversation: Mapping[str, Any], count_tokens: CountTokens) -> list[Block]:
    """Return a topic's blocks, up to the first period without sections."""
    blocks = []
    for period in PERIODS:
        sections = conversation["periods"].get(period, {}).get("sections")
        if not sections:
            break
        texts = {MessageId(topic, period, CARD, 0, "system"): f"Current user persona: {card}"}
        for number, section in enumerate(sections):
            name = section["event"]
            if name is None or MessageId(topic, period, name, 0, "user") in texts:
                name = str(number)
            for turn, message in enumerate(section["turns"]):
                for role, speaker in zip(("user", "assistant"), conversation["speakers"], strict=True):
                    texts[MessageId(topic, period, name, turn, role)] = f"{speaker}: {message[role]}"
        messages = count_messages(texts, count_tokens)
        blocks.append(Block(topic, period, messages, tokens_of(messages)))
    return blocks


def make_small_talk(small_talk: Mapping[str, Any], count_tokens: CountTokens) -> list[list[Message]]:
    """Return the messages of each piece of small talk, except pieces that could not be made (None)."""
    pieces = []
    for number, turns in sorted((number, turns) for number, turns in small_talk.items() if turns is not None):
        texts = {
            MessageId(SMALL_TALK, "", number, turn, role): f"{role.capitalize()}: {message[role]}"
            for turn, message in enumerate(turns)
            for role in ("user", "assistant")
        }
        pieces.append(count_messages(texts, count_tokens))
    return pieces


def count_messages(texts: Mapping[MessageId, str], count_tokens: CountTokens) -> list[Message]:
    counted = zip(texts.items(), count_tokens(list(texts.values())), strict=True)
    return [Message(message_id, text, tokens) for (message_id, text), tokens in counted]


def tokens_of(parts: Sequence[Message] | Sequence[Block]) -> int:
    return sum(part.tokens for part in parts)


def draw_blocks(topics: Topics, number: int, rng: random.Random) -> Topics:
    """Draw `number` blocks one at a time; all if there are fewer."""
    drawn = dict.fromkeys(sorted(topics), 0)
    number = min(number, sum(map(len, topics.values())))
    for done in range(number):
        weights = next(weights for end, weights in STAGES if done / number < end)
        opened = [topic for topic in drawn if drawn[topic] < len(topics[topic])]
        [topic] = rng.choices(opened, [weights.get(PERIODS[drawn[topic]], OTHERWISE) for topic in opened])
        drawn[topic] += 1
    return {topic: topics[topic][:count] for topic, count in drawn.items() if count}


def choose_blocks(topics: Topics, number: int, limit: int, key: str) -> tuple[Topics, str] | None:
    """Draw blocks until one topic has all periods and is within the limit; return the blocks and this main topic.

    After ATTEMPTS draws, take the first draw that reached the latest period. None if every topic exceeds the limit.
    """
    chosen, latest = None, 0
    for attempt in range(ATTEMPTS):
        drawn = draw_blocks(topics, number, random.Random(f"{key}:blocks:{attempt}"))
        lengths = {topic: len(blocks) for topic, blocks in drawn.items() if tokens_of(blocks) <= limit}
        if lengths and max(lengths.values()) > latest:
            latest = max(lengths.values())
            main = random.Random(f"{key}:T").choice([topic for topic in lengths if lengths[topic] == latest])
            chosen = drawn, main
        if latest == len(PERIODS):
            break
    return chosen


def fit_topics(drawn: Topics, main: str, limit: int, key: str) -> Topics:
    """Drop random whole topics, but never the main topic, until the rest is within the limit."""
    others = [topic for topic in drawn if topic != main]
    random.Random(f"{key}:drop").shuffle(others)
    while sum(tokens_of(drawn[topic]) for topic in [main, *others]) > limit:
        others.pop()
    return {topic: blocks for topic, blocks in drawn.items() if topic in {main, *others}}


def order_blocks(topics: Topics, main: str, comes_first: bool, rng: random.Random) -> list[Block]:
    """Put the main topic's last block at the end or near the beginning; each topic's periods stay in order.

    Other topics' blocks are shuffled within each period. They come just before the main topic's last block. If the main
    topic `comes_first`, they come after all of its blocks, except for a tenth that is spread among the blocks before
    its last one.
    """
    main_blocks, others = topics[main], []
    for period in PERIODS:
        same = [block for topic in topics if topic != main for block in topics[topic] if block.period == period]
        others += rng.sample(same, len(same))
    if not comes_first:
        return [*main_blocks[:-1], *others, main_blocks[-1]]
    near = math.ceil(len(others) / NEAR_SHARE)
    places = set(rng.sample(range(near + len(main_blocks) - 1), near))
    spread, earlier = iter(others[:near]), iter(main_blocks[:-1])
    mixed = [next(spread if place in places else earlier) for place in range(near + len(main_blocks) - 1)]
    return [*mixed, main_blocks[-1], *others[near:]]


def add_small_talk(
    blocks: Sequence[Block], small_talk: list[list[Message]], limit: int, rng: random.Random
) -> tuple[list[Message], Counter[str]]:
    """Return the blocks' messages with small talk between the blocks, and counts of pieces.

    A piece is used again only after all have been used. Pieces that would exceed the limit are skipped.
    """
    gaps, counts, free = len(blocks) - 1, Counter[str](), limit - tokens_of(blocks)
    weights = SMALL_TALK_WEIGHTS[len(blocks) < FEW_BLOCKS]
    numbers = rng.choices(range(len(weights)), weights, k=gaps) if len(blocks) > NO_SMALL_TALK and small_talk else []
    wanted = [gap for gap, number in enumerate(numbers) for _ in range(number)]
    added: dict[int, list[Message]] = {}
    supply = cycle(rng.sample(small_talk, len(small_talk)))
    for gap in rng.sample(wanted, len(wanted)):  # in random order, so that the limit affects all gaps alike
        piece = next(supply)
        if tokens_of(piece) > free:
            counts["pieces of small talk over the limit, left out"] += 1
            continue
        free -= tokens_of(piece)
        added.setdefault(gap, []).extend(piece)
        counts["pieces of small talk"] += 1
    counts["pieces of small talk used again"] = max(0, counts["pieces of small talk"] - len(small_talk))
    return [message for gap, block in enumerate(blocks) for message in (*block.messages, *added.get(gap, ()))], counts
