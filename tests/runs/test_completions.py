"""Which tries count that the store has: by a scripted engine, with the settings of one run after those of another."""

import asyncio
import itertools
import time
from array import array

import pytest

from utils.files.journal import Journal
from utils.generation.completions import Completions, NotStoredError
from utils.generation.driver import Policy, Request, Stage, generate
from utils.generation.requests import Completion
from utils.generation.store import ModelStore
from utils.parsing import Parsed
from utils.parsing.answers import ANSWER_SCHEMA

HELD, FREE = True, False


class Engine:
    """Writes what is usable if a try is held to its schema, or is not, as `usable` has it."""

    device, concurrency = "script", 2

    def __init__(self, usable):
        self.usable = usable
        self.asked = []  # of each try its seed, and whether it is held

    async def complete(self, model, prompt, sampling):
        is_held = sampling.schema is not None
        self.asked.append((sampling.seed, is_held))
        text = f"{'good' if is_held in self.usable else 'bad'} {'held' if is_held else 'free'}"
        return Completion(text, "stop", prompt_tokens=10, cached_tokens=0, completion_tokens=3)

    async def close(self):
        pass


def parse(text, cut):
    return Parsed(text, "strict", None, cut) if text.startswith("good") else Parsed(None, "none", f"saw {text}")


@pytest.fixture
def ask(tmp_path):
    """Asks one question; returns its record, and which tries the engine was asked for, held or free."""
    numbers = itertools.count()

    def ask(*usable, temperature=0.0, max_retries=3, mode="fallback", store=True):
        journal = Journal(tmp_path / f"{next(numbers)}.json", {})
        policy = Policy(temperature, 1.0, 100, 0, max_retries, mode, ANSWER_SCHEMA)
        request = Request(("q1", 0), array("l", [1, 2, 3]), journal)
        completions = Completions(ModelStore(tmp_path / "completions", "m", {}), False, False) if store else None
        engine = Engine(usable)
        generate(lambda _: engine, Stage("m", [request], policy, parse, "answers", 1, completions=completions))
        journal.close()
        return journal.entries["q1", 0], [is_held for _, is_held in engine.asked]

    return ask


@pytest.mark.parametrize("mode", ["fallback", "always", "never"])
@pytest.mark.parametrize("temperature", [0.0, 0.5])
@pytest.mark.parametrize("usable", [[], [HELD], [FREE], [FREE, HELD]])
def test_an_empty_store_changes_no_record(ask, usable, temperature, mode):
    """Greedy tries too, which have no seeds that would tell one from the next."""
    settings = {"temperature": temperature, "mode": mode}
    record, asked = ask(*usable, **settings, store=False)
    assert ask(*usable, **settings) == (record, asked) and asked
    assert ask(*usable, **settings) == (record, [])


def test_an_unusable_free_try_does_not_stand_for_one_that_is_held(ask):
    _, asked = ask(HELD, temperature=0.5, max_retries=3)
    assert asked == [FREE, FREE, FREE, HELD]
    record, asked = ask(HELD, temperature=0.5, max_retries=1)
    assert asked == [HELD] and record["value"] == "good held" and record["attempts"] == 2
    assert record["prompt_tokens"] == 20


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_a_free_try_never_stands_for_one_that_is_held(ask, temperature):
    """Else a comparison of the modes would compare one with itself."""
    assert ask(FREE, HELD, temperature=temperature)[1] == [FREE]
    record, asked = ask(FREE, HELD, temperature=temperature, mode="always")
    assert asked == [HELD] and record["value"] == "good held" and record["constrained"] is True
    assert ask(FREE, HELD, temperature=temperature, mode="never")[1] == [FREE]


def test_cached_only_waits_by_the_clock(tmp_path, monkeypatch):
    """Not once for each of those that wait, and not longer for their number."""
    monkeypatch.setattr("utils.generation.completions.WAIT_SECONDS", 0.5)
    monkeypatch.setattr("utils.generation.completions.LOOK_SECONDS", 0.1)
    completions = Completions(ModelStore(tmp_path / "completions", "m", {}), False, True)
    sampling = [Policy(0.5, 1.0, 100, seed, 0, "never", ANSWER_SCHEMA).sampling(("q1", 0), 0) for seed in range(50)]
    looks = []
    monkeypatch.setattr(completions.store, "refresh", lambda: looks.append(time.monotonic()))

    async def ask_all():
        asked = (completions.complete(None, "m", array("l", [1]), one) for one in sampling)
        return await asyncio.gather(*asked, return_exceptions=True)

    assert {type(one) for one in asyncio.run(ask_all())} == {NotStoredError}
    assert len(looks) >= 3 * len(sampling) and looks[-1] - looks[0] < 0.5  # each of them looked until the end


def test_what_the_store_has_leaves_others_their_turn(tmp_path):
    """A signal, and the answers of an engine."""
    completions, engine = Completions(ModelStore(tmp_path / "completions", "m", {}), False, False), Engine([FREE])
    sampling = Policy(0.5, 1.0, 100, 0, 0, "never", ANSWER_SCHEMA).sampling(("q1", 0), 0)
    turns = []

    async def ask_often():
        other = asyncio.create_task(asyncio.sleep(0))
        other.add_done_callback(lambda _: turns.append("other"))
        for _ in range(5):
            await completions.complete(engine, "m", array("l", [1]), sampling)
            turns.append("ours")

    asyncio.run(ask_often())
    assert len(engine.asked) == 1 and "other" in turns[:-1]
