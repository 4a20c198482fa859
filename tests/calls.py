"""Helpers that send calls through the runner, like the scripts, to an engine of the test."""

from types import SimpleNamespace

import pytest

from utils.benchmarks import tasks
from utils.cli.flags import Arguments
from utils.files.output import Output
from utils.generation.model import Model
from utils.runs.runner import make_pieces
from utils.runs.stage import Stage

ARGS = Arguments(seed=0, prompts_dir=None, dry_run=False)


def make_stage(calls, model, pieces, unit="answers", role="generator", after=None):
    """Return a stage that makes these calls; a function among them returns its call when it is due."""

    async def send(call, ask):
        return await ask.send(role, lambda: call() if callable(call) else call)

    def records():
        return {call.key if hasattr(call, "key") else (number,): call for number, call in enumerate(calls)}

    output = Output("", {}, [], None, unit, ARGS, pieces)
    return Stage(next(iter(tasks().values())), records, send, [output], {role: model}, after=after)


def run_calls(open_engine, *stages):
    """Run stages; returns the device of the last one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("utils.runs.runner.open_engines", lambda models, *_: dict.fromkeys(models, open_engine()))
        return make_pieces(stages, ARGS, None, is_inner=True)[-1].device


def make_model(addr, completions):
    """Return a model whose calls have their own policies and prompts."""
    model = Model(addr, addr, Arguments(), completions)
    vars(model)["policy"] = SimpleNamespace(max_retries=3)
    return model
