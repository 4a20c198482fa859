import asyncio
import json
from pathlib import Path

import calls as sending
import pytest
from calls import make_model, run_calls

from utils.base.errors import UserError
from utils.benchmarks.lampqa.answers import ANSWER_SCHEMA
from utils.benchmarks.readers import Parsed
from utils.generation.calls import Call
from utils.generation.completions import Completions
from utils.generation.model import Policy
from utils.generation.requests import Completion, Sampling, UnavailableError
from utils.generation.store import ModelStore


def make_policy(temperature=0.1, max_retries=3, constrained_decoding="fallback", seed=0):
    return Policy(temperature, 0.95, 100, seed, max_retries, constrained_decoding, ANSWER_SCHEMA)


class ScriptedEngine:
    """Answers each prompt with its next text, and fails when they are used up.

    A text may be an exception to raise, or a coroutine function that returns the text.
    """

    device = "script"

    def __init__(self, texts, concurrency=2):
        self.texts = {name: list(its_texts) for name, its_texts in texts.items()}
        self.concurrency = concurrency
        self.calls: list[tuple[str, Sampling]] = []
        self.models: list[str] = []
        self.finished: list[str] = []
        self.at_once = self.most_at_once = 0
        self.closed = False

    async def complete(self, model, prompt, sampling):
        name = prompt[0]["content"]
        self.models.append(model)
        self.calls.append((name, sampling))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            text = self.texts[name].pop(0)  # IndexError: asked more often than the script expects
            if isinstance(text, BaseException):
                raise text
            text = await text() if callable(text) else text
            for _ in range(3):
                await asyncio.sleep(0)  # the others get their turn
        finally:
            self.at_once -= 1
        self.finished.append(name)
        reason = "length" if text.startswith("long") else "stop"
        return Completion(text, reason, prompt_tokens=10, cached_tokens=4, completion_tokens=3)

    async def close(self):
        self.closed = True


def parse(text, cut):
    """Parse a text, which is usable unless it contains `bad`; flag a cut one."""
    if text.startswith("bad"):
        return Parsed(None, "none", f"saw {text}")
    return Parsed(text, "strict", None, cut)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    """Return completions with their store in completions/."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def pieces():
    return {}


def make_call(name, policy=None, **record):
    return Call((name, 0), [{"role": "user", "content": name}], parse, policy or make_policy(), record)


def run(engine, calls, pieces):
    return run_calls(lambda: engine, make_stage(calls, pieces))


def make_stage(calls, pieces, model="m", role="generator", unit="answers", after=None):
    model = make_model(model, Completions(ModelStore("completions", model, {}), True, False))
    return sending.make_stage(calls, model, pieces, unit, role, after)


def kept():
    """Return the requests that are answered in the store."""
    lines = [line for path in Path("completions").glob("*/*.jsonl") for line in path.read_text().splitlines()[1:]]
    return {json.loads(line)["id"] for line in lines}


# Sampling


@pytest.mark.parametrize(
    ("mode", "temperature", "max_retries", "expected"),
    [  # (temperature, held to the schema) of every try up to the last one
        ("fallback", 0.1, 3, [(0.1, False), (0.1, False), (0.1, False), (0.1, True)]),
        ("fallback", 0.1, 0, [(0.1, True)]),
        ("fallback", 0.0, 3, [(0.0, False), (0.0, True)]),
        ("fallback", 0.0, 1, [(0.0, False), (0.0, True)]),
        ("fallback", 0.0, 0, [(0.0, True)]),
        ("always", 0.1, 2, [(0.1, True), (0.1, True), (0.1, True)]),
        ("always", 0.0, 3, [(0.0, True)]),
        ("never", 0.1, 3, [(0.1, False), (0.2, False), (0.3, False), (0.4, False)]),
        ("never", 0.0, 2, [(0.0, False), (0.1, False), (0.2, False)]),
        ("never", 0.8, 4, [(0.8, False), (0.9, False), (1.0, False), (1.0, False), (1.0, False)]),
        ("never", 1.5, 2, [(1.5, False), (1.5, False), (1.5, False)]),  # what the user set is not lowered
        ("never", 0.1, 0, [(0.1, False)]),
    ],
)
def test_tries(mode, temperature, max_retries, expected):
    policy = make_policy(temperature, max_retries, mode)
    tries = [policy.sampling(("q", 0), attempt) for attempt in range(len(expected))]
    assert [(one.temperature, one.schema is not None) for one in tries] == expected
    assert all(one.schema in (None, ANSWER_SCHEMA) for one in tries)
    assert all((one.top_p, one.max_tokens) == (0.95, 100) for one in tries)
    assert [policy.is_last(attempt) for attempt in range(len(expected))] == [False] * (len(expected) - 1) + [True]


def test_seeds_differ_by_key_try_and_run_and_by_nothing_else():
    cases = [(seed, key, attempt) for seed in (0, 1) for key in (("q", 0), ("q", 1), ("p", 0)) for attempt in range(4)]
    seeds = [make_policy(seed=seed).sampling(key, attempt).seed for seed, key, attempt in cases]
    assert len(set(seeds)) == len(cases)
    assert all(0 <= seed < 2**31 for seed in seeds)
    again = [make_policy(seed=seed).sampling(key, attempt).seed for seed, key, attempt in reversed(cases)]
    assert again == seeds[::-1]
    assert make_policy(0.7, 5, "never").sampling(("q", 0), 0).seed == make_policy().sampling(("q", 0), 0).seed


# Calls through the runner


@pytest.mark.parametrize(("most", "at_once"), [(8, 2), (1, 1), (1000, 4)])
def test_prompts_in_flight_are_bounded(pieces, monkeypatch, most, at_once):
    """By their tokens, about a quarter of their characters: prompts are made if there is room; one always may."""
    monkeypatch.setattr("utils.runs.ask.UNDER_WAY", most)
    engine = ScriptedEngine({"x" * 16 + str(n): ["fine"] for n in range(12)}, concurrency=4)
    made, opened = [], []

    def making(name):
        def make():
            made.append(name)
            assert not opened or len(made) - len(engine.finished) <= at_once
            return make_call(name)

        return make

    def open_engine():
        opened.append(made.clear())  # the first ones were made without an engine, to look for them in the store
        return engine

    run_calls(open_engine, make_stage([making(name) for name in engine.texts], pieces))
    assert engine.most_at_once == at_once and len(pieces) == 12


def test_a_slow_request_does_not_delay_others(pieces):
    names = [f"q{i}" for i in range(10)]
    all_others = asyncio.Event()

    async def wait_for_all_others():
        await asyncio.wait_for(all_others.wait(), 600)
        return "slow"

    async def set_event():
        all_others.set()
        return "last"

    engine = ScriptedEngine({name: ["fine"] for name in names})
    engine.texts |= {"q0": [wait_for_all_others], "q9": [set_event]}
    run(engine, [make_call(name) for name in names], pieces)
    assert engine.finished == [*names[1:], "q0"]
    assert [key for key, _ in pieces] == [*names[1:], "q0"]  # in the order they finish


@pytest.mark.parametrize("error", [UserError("the key is wrong"), RuntimeError("a bug"), KeyboardInterrupt()])
def test_an_error_stops_the_run_and_keeps_finished_work(pieces, error):
    """Requests in flight are awaited, because they are paid for."""
    answered = asyncio.Event()

    async def late():
        await asyncio.wait_for(answered.wait(), 600)
        return "late"

    async def fail():
        asyncio.get_running_loop().call_later(0.05, answered.set)
        raise error

    engine = ScriptedEngine({"a": ["fine"], "b": [late], "c": ["fine"], "d": [fail], "e": []}, concurrency=2)
    with pytest.raises(type(error)) as raised:
        run(engine, [make_call(name) for name in "abcde"], pieces)
    assert raised.value is error or isinstance(error, KeyboardInterrupt)
    assert kept() == {"a", "b", "c"} or isinstance(error, KeyboardInterrupt)
    assert engine.closed
    assert [name for name, _ in engine.calls] == list("abcd")


GONE = UnavailableError("503")


def test_a_late_answer_does_not_undo_an_early_end(pieces, capsys):
    """The last answer arrives when the step has ended: the record that was not begun is missing, not forgotten."""

    async def late():
        await asyncio.sleep(0.3)
        return "fine"

    run(ScriptedEngine({"kept": ["fine"]}), [make_call("kept")], {})
    engine = ScriptedEngine({"slow": [late], **{f"q{n}": [GONE] for n in range(4)}}, concurrency=2)
    run(engine, [make_call(name) for name in ("kept", "slow", *engine.texts)], pieces)
    assert {key for key, _ in pieces} == {"kept", "slow"} and "no longer answers" in capsys.readouterr().err


def test_steps_of_one_server_share_its_state(capsys):
    """An answer to one shows that the address is right; if the server is gone, the others use only the store."""
    first, second = {}, {}
    engine = ScriptedEngine({"a": ["fine"], "kept": ["fine"]} | {f"q{n}": [GONE] for n in range(20)}, concurrency=1)
    run(engine, [make_call("kept")], {})
    asked = len(engine.calls)
    before = make_stage([make_call(name) for name in ("a", *(f"q{n}" for n in range(9)))], first)
    calls = [make_call(name) for name in (*(f"q{n}" for n in range(9, 15)), "kept")]
    after = sending.make_stage(calls, before.models["generator"], second)
    run_calls(lambda: engine, before, after)
    assert [key for key, _ in first] == ["a"] and [key for key, _ in second] == ["kept"]
    assert len(engine.calls) - asked == 1 + 3 and capsys.readouterr().err.count("note: 503;") == 1


def test_a_stage_answered_by_the_store_has_no_device():
    engine = ScriptedEngine({"a": ["fine"], "b": ["fine"]})
    run(engine, [make_call("b")], {})
    first = make_stage([make_call("a")], {})
    then = sending.make_stage([make_call("b")], first.models["generator"], {})
    assert run_calls(lambda: engine, first) == "script" and run_calls(lambda: engine, first, then) is None
