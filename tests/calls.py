"""Helpers that send calls through the driver, like the scripts, to an engine of the test."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from utils.base.cli import Arguments
from utils.base.manifest import read_manifest
from utils.benchmarks import tasks
from utils.generation.model import Model
from utils.runs.driver import run_stages
from utils.runs.stage import Stage, StageFile

ARGS = Arguments(seed=0, prompts_dir=None, dry_run=False, overwrite=False, cached_only=False, completions="completions")


class Calls(StageFile):
    """The records of calls, in a new folder."""

    def __init__(self, pieces, unit):
        super().__init__(f"{tempfile.mkdtemp()}/calls.json", {}, ARGS, pieces=pieces)
        self.unit = unit

    def content(self):
        return list(self.pieces.values())


def make_stage(calls, model, pieces, unit="answers", role="generator", after=None):
    """Return a stage that makes these calls; a function among them returns its call when it is due."""

    async def send(call, ask):
        return await ask.steps.send(role, lambda: call() if callable(call) else call)

    def records():
        for number, call in enumerate(calls):
            yield file, call.key if hasattr(call, "key") else (number,), call

    file = Calls(pieces, unit)
    return Stage(next(iter(tasks().values())), records, send, [file], {role: model}, after=after)


def run_calls(open_engine, *stages):
    """Run stages; returns the device of the last one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("utils.runs.runner.open_engines", lambda models, *_: dict.fromkeys(models, open_engine()))
        run_stages(stages, ARGS)
    return read_manifest(Path(stages[-1].files[0].path))["device"]


class Bare(Model):
    """A model whose calls have their own policies and prompts; nothing is loaded."""

    figures, policy = {}, SimpleNamespace(max_retries=3)

    def load(self):
        pass


def make_model(addr, completions):
    return Bare(addr, addr, Arguments(openai=True, price_in=None, price_cached=None), completions)
