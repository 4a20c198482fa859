"""Which stored tries are reused, with a scripted engine and runs with different settings."""

import asyncio
from array import array

import pytest
from calls import make_model, make_stage, run_calls

from utils.benchmarks.lampqa.answers import ANSWER_SCHEMA
from utils.benchmarks.readers import Parsed
from utils.generation.calls import Call
from utils.generation.completions import Completions, NotStoredError
from utils.generation.model import Policy
from utils.generation.requests import Completion, RefusedError
from utils.generation.store import ModelStore

HELD, FREE = True, False


class Engine:
    """Writes usable text if a try is constrained, or if it is not, according to `usable`."""

    device, concurrency = "script", 2

    def __init__(self, usable, tries=()):
        self.usable, self.tries = usable, list(tries)  # `tries` go first: completions, or errors to raise
        self.asked = []  # of each try its seed, and whether it is held

    async def complete(self, model, prompt, sampling):
        is_held = sampling.schema is not None
        self.asked.append((sampling.seed, is_held))
        if self.tries:
            if isinstance(outcome := self.tries.pop(0), Exception):
                raise outcome
            return outcome
        text = f"{'good' if is_held in self.usable else 'bad'} {'held' if is_held else 'free'}"
        return Completion(text, "stop", prompt_tokens=10, cached_tokens=0, completion_tokens=3)

    async def close(self):
        pass


def parse(text, cut):
    return Parsed(text, "strict", None, cut) if text.startswith("good") else Parsed(None, "none", f"saw {text}")


@pytest.fixture
def ask(tmp_path):
    """Ask one question; return its record, and the engine's tries, constrained or free."""

    def ask(
        *usable, temperature=0.0, max_retries=3, mode="fallback", folder="completions", tries=(), cached_only=False
    ):
        pieces, engine = {}, Engine(usable, tries)
        policy = Policy(temperature, 1.0, 100, 0, max_retries, mode, ANSWER_SCHEMA)
        call = Call(("q1", 0), array("l", [1, 2, 3]), parse, policy)
        completions = Completions(ModelStore(tmp_path / folder, "m", {}), bool(tries) or temperature > 0, cached_only)
        run_calls(lambda: engine, make_stage([call], make_model("m", completions), pieces))
        return pieces["q1", 0], [is_held for _, is_held in engine.asked]

    return ask


@pytest.mark.parametrize("mode", ["fallback", "always", "never"])
@pytest.mark.parametrize("temperature", [0.0, 0.5])
@pytest.mark.parametrize("usable", [[], [HELD], [FREE], [FREE, HELD]])
def test_the_store_gives_the_same_record(ask, usable, temperature, mode):
    """Also for greedy tries, which have no distinguishing seeds: only the first one is requested."""
    settings = {"temperature": temperature, "mode": mode}
    record, sent = ask(*usable, **settings)
    assert ask(*usable, **settings) == (record, []) and sent
    assert ask(*usable, **settings, folder="fresh") == (record, sent)


@pytest.mark.parametrize(("temperature", "mode"), [(0.0, "fallback"), (0.5, "fallback"), (0.5, "never")])
@pytest.mark.parametrize("usable", [HELD, FREE])
@pytest.mark.parametrize("order", [(1, 3), (3, 1), (0, 3), (3, 0)])
def test_what_was_usable_stays_usable_whatever_the_number_of_tries(ask, order, usable, temperature, mode):
    """The last try is constrained, so another number of tries has other tries."""
    before, now = ({"temperature": temperature, "mode": mode, "max_retries": number} for number in order)
    record, _ = ask(usable, **before)
    again, sent = ask(usable, **now)
    if record["value"] is None:
        assert mode == "never" or usable == FREE
    else:
        assert sent == [] and again["raw"] == record["raw"]
    assert ask(usable, **before)[1] == [] and ask(usable, **now) == (again, [])


def test_a_refused_try_does_not_replace_what_was_usable(ask):
    free = Completion("bad free", "stop", prompt_tokens=10, cached_tokens=0, completion_tokens=3)
    record, _ = ask(temperature=0.5, max_retries=3, tries=[free, RefusedError("filtered")])
    assert record["value"] is None
    record, sent = ask(HELD, temperature=0.5, max_retries=1)  # its second and last try is held
    assert sent == [HELD] and record["value"] == "good held"
    assert ask(temperature=0.5, max_retries=3) == (record, [])


def test_tries_of_another_number_are_not_waited_for(ask, capsys):
    record, _ = ask(temperature=0.5, max_retries=1)
    assert record["value"] is None and ask(temperature=0.5, max_retries=1, cached_only=True) == (record, [])
    assert "checking again" not in capsys.readouterr().err


def test_more_retries_ask_only_for_what_is_missing(ask):
    _, sent = ask(temperature=0.5, max_retries=1)
    assert sent == [FREE, HELD]
    record, sent = ask(HELD, temperature=0.5, max_retries=3)
    assert sent == [FREE, FREE, HELD] and record["value"] == "good held" and record["attempts"] == 4
    assert record["prompt_tokens"] == 40
    record, sent = ask(temperature=0.5, max_retries=1)  # fewer take what more have paid for
    assert sent == [] and record["value"] == "good held" and record["attempts"] == 4


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_a_free_try_replaces_only_another_free_one(ask, temperature):
    """The key of a completion is what is sent, whatever the flag is called."""
    assert ask(FREE, HELD, temperature=temperature)[1] == [FREE]
    record, sent = ask(FREE, HELD, temperature=temperature, mode="always")
    assert sent == [HELD] and record["value"] == "good held" and record["constrained"] is True
    record, sent = ask(FREE, HELD, temperature=temperature, mode="never")
    assert sent == [] and record["value"] == "good free" and record["constrained"] is False


def test_cached_only_rereads_the_store_once_for_all_waiting_calls(tmp_path, monkeypatch):
    monkeypatch.setattr("utils.generation.completions.WAIT_SECONDS", 0.1)
    kept, waiting = (
        Completions(ModelStore(tmp_path / "completions", "m", {}), False, is_waiting) for is_waiting in (False, True)
    )
    samplings = [Policy(0.5, 1.0, 100, seed, 0, "never", ANSWER_SCHEMA).sampling(("q1", 0), 0) for seed in range(50)]
    prompt = waiting.hashed(array("l", [1]))
    looks, refresh = [], waiting.store.refresh
    monkeypatch.setattr(waiting.store, "refresh", lambda: looks.append(refresh()))

    def ask(sampling):
        return waiting.complete(None, "m", prompt, sampling)

    async def ask_all():
        waiting_calls = [asyncio.create_task(ask(sampling)) for sampling in samplings]
        await asyncio.sleep(0)
        for sampling in samplings[::2]:  # as another node does
            await kept.complete(Engine([FREE]), "m", prompt, sampling)
        results = await asyncio.gather(*waiting_calls, return_exceptions=True)
        return results, await asyncio.gather(ask(samplings[1]), return_exceptions=True)

    results, [later] = asyncio.run(ask_all())
    assert [type(result) for result in results] == [Completion, NotStoredError] * 25 and type(later) is NotStoredError
    assert len(looks) == 1


def test_stored_completions_yield_to_other_tasks(tmp_path):
    """A signal, and the answers of an engine."""
    completions, engine = Completions(ModelStore(tmp_path / "completions", "m", {}), False, False), Engine([FREE])
    sampling = Policy(0.5, 1.0, 100, 0, 0, "never", ANSWER_SCHEMA).sampling(("q1", 0), 0)
    prompt, turns = completions.hashed(array("l", [1])), []

    async def ask_often():
        other = asyncio.create_task(asyncio.sleep(0))
        other.add_done_callback(lambda _: turns.append("other"))
        for _ in range(5):
            await completions.complete(engine, "m", prompt, sampling)
            turns.append("ours")

    asyncio.run(ask_often())
    assert len(engine.asked) == 1 and "other" in turns[:-1]


def test_each_try_is_sent_with_its_own_seed(tmp_path):
    pieces, engine = {}, Engine([])
    policy = Policy(0.5, 1.0, 100, 0, 3, "never", ANSWER_SCHEMA)
    call = Call(("q1", 0), array("l", [1, 2, 3]), parse, policy)
    completions = Completions(ModelStore(tmp_path / "completions", "m", {}), True, False)
    run_calls(lambda: engine, make_stage([call], make_model("m", completions), pieces))
    assert [seed for seed, _ in engine.asked] == [policy.sampling(call.key, attempt).seed for attempt in range(4)]


class Slow(Engine):
    async def complete(self, model, prompt, sampling):
        await asyncio.sleep(0)
        return await super().complete(model, prompt, sampling)


def test_equal_requests_at_the_same_time_are_sent_once(tmp_path):
    completions, engine = Completions(ModelStore(tmp_path / "completions", "m", {}), True, False), Slow([FREE])
    sampling = Policy(0.5, 1.0, 100, 0, 3, "never", None).sampling(("q1", 0), 0)

    async def both():
        hashed = completions.hashed(array("l", [1, 2, 3]))
        return await asyncio.gather(*(completions.complete(engine, "m", hashed, sampling) for _ in range(2)))

    first, second = asyncio.run(both())
    assert first == second and len(engine.asked) == 1
