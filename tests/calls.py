"""Helpers that send calls through the runner, like the scripts, to an engine of the test."""

import pytest

from utils.benchmarks import tasks
from utils.cli.flags import Arguments
from utils.generation.model import Model
from utils.runs.runner import run_steps
from utils.runs.shared import Role, Shared, Step


def make_step(calls, model, pieces, unit="answers", role="generator", finish=lambda device: None):
    """Return a step that makes these calls; a function among them returns its call when it is due."""

    async def send(call, ask):
        return await ask.send(role, lambda: (model, call() if callable(call) else call, str))

    def records():
        return {call.key if hasattr(call, "key") else (number,): call for number, call in enumerate(calls)}

    return Step(send, records, unit, pieces, role, finish=finish)


def run_calls(open_engine, *steps):
    """Run (role, model, step) triples; returns the device."""
    roles = {role: Role(Arguments(), model) for role, model, _ in steps}
    shared = Shared(next(iter(tasks().values())), roles, 0, 0)

    def open_engines(*_):
        return dict.fromkeys(roles, open_engine())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("utils.runs.runner.open_engines", open_engines)
        return run_steps([step for _, _, step in steps], shared)[0]


def make_model(addr, policy, completions):
    return Model(addr, addr, None, 4096, policy, completions)
