"""Run a command that uses an API model through OpenAI's batch interface, at half the price.

  python utils/batch.py baselines.py --openai --api_key_addr key.txt --model_addr gpt-4o-mini \\
      --inputs_addr test.json --output_addr none.json

The command is baselines.py, planpers.py, evaluate_responses.py, utils/build_dataset.py or utils/build_personamem.py,
with its own flags. It runs with --requests_to, so it sends no requests: it writes those that the store lacks to a file.
These are sent in batches, and their answers are stored. Then the command runs again, until the store has all answers.
Each batch takes up to a day. Run the same command again to wait for batches already sent; no batch is sent twice.
"""

import asyncio
import json
import sys
import tempfile
from argparse import Namespace
from contextlib import ExitStack, closing
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python finds only utils/

from utils.base import cli
from utils.base.errors import UserError
from utils.generation.completions import Completions, Lack
from utils.generation.engines import confirm_model, read_api_key
from utils.generation.requests import Sampling, UnavailableError
from utils.generation.store import ModelStore
from utils.runs.tally import REACHED_BY

COMMANDS = ("baselines.py", "planpers.py", "evaluate_responses.py", "utils/build_dataset.py",
            "utils/build_personamem.py")  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    parser = cli.make_parser(__doc__)
    parser.parse_args(words if words and words[0].startswith("-") else [])
    if not words or words[0] not in COMMANDS:
        parser.refuse(f"needs a command to run: {', '.join(COMMANDS)}; see --help")
    if "--openai" not in words:
        raise UserError(f"{words[0]}: batches need an API; add --openai, or run the command without utils/batch.py")
    command = import_module(words[0].removesuffix(".py").replace("/", "."))
    engines: dict[tuple[str, ...], Any] = {}  # a `BatchEngine` for each API
    models: dict[str, Completions] = {}
    asked: set[str] = set()
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        path = Path(folder) / "requests.jsonl"
        try:
            while True:
                path.write_text("")
                code = command.main([*words[1:], "--requests_to", str(path)])
                lines = {line["key"]: line for line in map(json.loads, path.read_text(encoding="utf-8").splitlines())}
                if not lines:
                    return code
                if lines.keys() <= asked:  # all were sent before, and got no answer in a batch
                    return command.main(words[1:])
                asked |= lines.keys()
                answer(lines, engines, models, runner)
        finally:
            for engine in engines.values():
                runner.run(engine.close())


def answer(
    lines: dict[str, dict[str, Any]],
    engines: dict[tuple[str, ...], Any],
    models: dict[str, Completions],
    runner: asyncio.Runner,
) -> None:
    """Store the answers to the requests that a run has written; `engines` and `models` keep what is opened."""
    from utils.generation.batches import BatchEngine, Wanted  # imports openai

    by_api: dict[tuple[str, ...], dict[str, Wanted]] = {}
    for key, line in lines.items():
        flags = Namespace(**{name: line[name] for name in REACHED_BY})
        if (model := json.dumps(line["described"])) not in models:
            store = ModelStore(flags.completions, line["model"], line["described"])
            confirm_model(flags, line["model"], line["identity"], store)
            models[model] = Completions(store, is_greedy_seeded=True, cached_only=False)
        api = (flags.base_url, flags.api_key_addr)
        if api not in engines:
            engines[api] = BatchEngine(flags, read_api_key(flags.api_key_addr))
        sampling = Sampling(**line["sampling"] | {"stop": tuple(line["sampling"]["stop"])})
        lack = Lack(key, line["prompt"], sampling, line["fields"])
        by_api.setdefault(api, {})[key] = Wanted(line["model"], models[model], lack)
    with ExitStack() as closes:
        for completions in models.values():
            closes.enter_context(closing(completions.store))
        for api, wanted in by_api.items():
            try:
                runner.run(engines[api].answer(wanted))
            except UnavailableError as error:
                raise UserError(f"{error}\n  run the same command again to wait for the batches already sent") from None


if __name__ == "__main__":
    cli.run_script(main)
