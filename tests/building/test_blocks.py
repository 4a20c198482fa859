"""The drawing of blocks, their order, the limit and small talk."""

import random
from collections import Counter
from itertools import pairwise

import pytest

from utils.building.personas.blocks import (
    SMALL_TALK,
    Block,
    Message,
    MessageId,
    add_small_talk,
    choose_blocks,
    draw_blocks,
    fit_topics,
    make_blocks,
    order_blocks,
)
from utils.building.personas.inputs import PERIODS


def topics_of(lengths, tokens=10):
    """Return topics with these numbers of blocks, each with one message."""
    topics = {}
    for topic, length in lengths.items():
        ids = [MessageId(topic, period, "x", 0, "user") for period in PERIODS[:length]]
        topics[topic] = [
            Block(topic, message_id.period, [Message(message_id, "x", tokens)], tokens) for message_id in ids
        ]
    return topics


def exact(drawn, number, done=0):
    """Return the probability of each number of blocks per topic, from the specified weights."""
    if done == number:
        return {drawn: 1.0}
    p, first = done / number, (1.0, 0.1, 0.1, 0.1)
    later = [(0.25, first), (0.5, (0.2, 1.0, 0.1, 0.1)), (0.75, (0.1, 0.2, 1.0, 0.1)), (2, (0.1, 0.1, 0.2, 1.0))]
    weights = next(weights for end, weights in later if p < end)
    opened = [topic for topic, depth in enumerate(drawn) if depth < 4]
    total, shares = sum(weights[drawn[topic]] for topic in opened), Counter()
    for topic in opened:
        deeper = tuple(depth + (other == topic) for other, depth in enumerate(drawn))
        for state, share in exact(deeper, number, done + 1).items():
            shares[tuple(sorted(state))] += share * weights[drawn[topic]] / total
    return shares


@pytest.mark.parametrize("number", [2, 7])
def test_blocks_are_drawn_with_the_weights_of_their_periods(number):
    topics = topics_of({"a": 4, "b": 4, "c": 4})
    draws = [draw_blocks(topics, number, random.Random(seed)) for seed in range(4000)]
    counts = Counter(tuple(sorted(len(drawn.get(topic, ())) for topic in topics)) for drawn in draws)
    for state, share in exact((0, 0, 0), number).items():
        assert counts[state] / len(draws) == pytest.approx(share, abs=0.03), state
    few = topics_of({"a": 2, "b": 3, "c": 0})  # fewer than asked for are all drawn
    assert draw_blocks(few, 10, random.Random(0)) == {"a": few["a"], "b": few["b"]}


def test_t_has_all_periods_or_the_latest_one_and_fits_the_limit():
    topics = topics_of({"a": 4, "b": 4, "c": 4, "d": 4})
    chosen = [choose_blocks(topics, 5, 100, str(key)) for key in range(60)]
    assert all(len(drawn[far]) == 4 for drawn, far in chosen)  # 5 draws alone seldom reach a last period
    assert {far for _, far in chosen} == set(topics)
    assert choose_blocks(topics_of({"a": 1, "b": 3, "c": 2}), 6, 100, "")[1] == "b"
    too_long = topics_of({"a": 4}, tokens=30) | topics_of({"b": 2})
    assert choose_blocks(too_long, 6, 100, "")[1] == "b"
    assert choose_blocks(topics_of({"a": 1}), 6, 9, "") is None
    assert choose_blocks({}, 6, 9, "") is None


def test_whole_random_topics_other_than_t_are_dropped_until_the_rest_fits():
    topics = topics_of({"a": 2, "b": 2, "c": 2, "d": 1})
    kept = [fit_topics(topics, "b", 60, str(key)) for key in range(40)]
    assert all(topics["b"] == fitted["b"] and fitted[topic] == topics[topic] for fitted in kept for topic in fitted)
    assert {frozenset(fitted) for fitted in kept} == {frozenset("abc"), frozenset("abd"), frozenset("bcd")}
    assert fit_topics(topics, "b", 70, "") == topics


def test_t_is_put_far_back_or_far_forward_and_periods_stay_in_order():
    topics = topics_of({"a": 4, "b": 4, "c": 3, "d": 4, "e": 4, "f": 4, "g": 1})
    backs, forwards = ([order_blocks(topics, "b", first, random.Random(seed)) for seed in range(60)]
                       for first in (False, True))  # fmt: skip
    for order in backs + forwards:
        assert sorted(order) == sorted(block for blocks in topics.values() for block in blocks)
        assert all([block for block in order if block.topic == topic] == topics[topic] for topic in topics)
        others = [PERIODS.index(block.period) for block in order if block.topic != "b"]
        assert others == sorted(others)
    assert all(order[:3] + order[-1:] == topics["b"] for order in backs)
    assert all(order[5] == topics["b"][-1] for order in forwards)  # 4 blocks of T and a tenth of 20 others, two
    assert len({tuple(block.topic == "b" for block in order) for order in forwards}) == 10  # two among the first five
    assert len({str(order) for order in backs}) > 50


def pieces(number, tokens=10):
    ids = [MessageId(SMALL_TALK, "", str(piece), 0, "user") for piece in range(number)]
    return [[Message(message_id, "x", tokens)] for message_id in ids]


@pytest.mark.parametrize(("blocks", "least", "most", "mean"), [(15, 0, 0, 0), (29, 0, 2, 0.4), (30, 0, 18, 9)])
def test_small_talk_is_put_between_the_blocks_of_longer_histories(blocks, least, most, mean):
    order = [block for group in topics_of({str(number): 1 for number in range(blocks)}).values() for block in group]
    numbers = []
    for seed in range(100):
        messages, counts = add_small_talk(order, pieces(1000), 10**6, random.Random(seed))
        own = [place for place, message in enumerate(messages) if message.id.topic != SMALL_TALK]
        assert [messages[place] for place in own] == [block.messages[0] for block in order]
        assert own[-1] == len(messages) - 1 and counts["pieces of small talk"] == len(messages) - blocks
        numbers += [after - before - 1 for before, after in pairwise(own)]
    assert (min(numbers), max(numbers)) == (least, most)
    assert sum(numbers) / len(numbers) == pytest.approx(mean, abs=0.2)


def test_small_talk_keeps_to_the_limit_and_is_used_again_only_when_all_is_used():
    order = [block for group in topics_of({str(number): 1 for number in range(40)}).values() for block in group]
    messages, counts = add_small_talk(order, pieces(10), 700, random.Random(0))
    for_one = [add_small_talk(order, pieces(10), 410, random.Random(seed))[0] for seed in range(5)]
    drawn = {message.id for run in for_one for message in run if message.id.topic == SMALL_TALK}
    assert len(drawn) > 1
    assert sum(message.id.topic == SMALL_TALK for message in messages[35:]) > 10  # the limit thins all gaps
    used = Counter(message.id.section for message in messages if message.id.topic == SMALL_TALK)
    assert sum(message.tokens for message in messages) == 700 and [*used.values()] == [3] * 10
    assert counts["pieces of small talk used again"] == 20
    assert counts["pieces of small talk over the limit, left out"] > 200
    assert add_small_talk(order, [], 10**6, random.Random(0))[0] == [
        message for block in order for message in block.messages
    ]


def test_a_topic_ends_before_the_first_period_without_sections_and_each_message_has_its_own_id():
    turn, counted = {"user": "u", "assistant": "a"}, []
    sections = [{"event": name, "turns": [turn, turn]} for name in (None, "2001-01-01", "2001-01-01")]
    periods = {"init": {"sections": sections}, "next_week": {"sections": []}, "next_month": {"sections": sections}}
    talk = {"speakers": ["Patient", "Therapist"], "periods": periods}
    [block] = make_blocks("A card.", "therapy", talk, lambda texts: counted.extend(texts) or [1] * len(texts))
    said = [(message.id.section, message.id.turn, message.id.role, message.content) for message in block.messages]
    assert said[0] == ("card", 0, "system", "Current user persona: A card.")
    assert said[1:3] == [("0", 0, "user", "Patient: u"), ("0", 0, "assistant", "Therapist: a")]
    assert [parts[0] for parts in said[1:]] == ["0"] * 4 + ["2001-01-01"] * 4 + ["2"] * 4
    assert len({message.id for message in block.messages}) == len(counted) == block.tokens == 13
