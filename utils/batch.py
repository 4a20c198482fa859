"""Run a command that uses an API model through OpenAI's batch interface, at half the price.

  python utils/batch.py baselines.py --openai --api_key_addr key.txt --model_addr gpt-4o-mini \\
      --inputs_addr test.json --output_addr none.json

The command is baselines.py, planpers.py, evaluate_responses.py, utils/build_dataset.py or utils/build_personamem.py,
with its own flags. It runs once to record its requests, which are sent in batches, and then again with the answers,
until it is finished. Each batch takes up to a day. Run the same command again to wait for batches already sent; none is
sent twice.
"""

import asyncio
import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python finds only utils/

from utils import cli
from utils.cli import UserError
from utils.generation.requests import UnavailableError
from utils.runs.runner import NotedError

COMMANDS = ("baselines.py", "planpers.py", "evaluate_responses.py", "utils/build_dataset.py",
            "utils/build_personamem.py")  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    parser = cli.make_parser(__doc__)
    parser.parse_args(words if words and words[0].startswith("-") else [])
    if not words or words[0] not in COMMANDS:
        parser.refuse(f"give a command to run: {', '.join(COMMANDS)}; see --help")
    if "--openai" not in words:
        raise UserError(f"{words[0]}: batches need an API; give --openai, or run the command without utils/batch.py")
    return run(words[0], words[1:])


def run(script: str, words: list[str]) -> int:
    """Run a command again until it notes no more requests, and return its exit code."""
    from utils.generation.batches import Asked, BatchEngine  # imports openai

    command = import_module(script.removesuffix(".py").replace("/", "."))
    by_api: dict[tuple[str | None, str | None], tuple[Namespace, str, Asked]] = {}

    def open_batches(flags: Namespace, api_key: str) -> BatchEngine:
        return BatchEngine(*by_api.setdefault((flags.base_url, flags.api_key_addr), (flags, api_key, Asked())))

    async def answer_noted() -> None:
        for flags, api_key, requests in by_api.values():
            engine = BatchEngine(flags, api_key, requests)
            try:
                await engine.answer_noted()
            except UnavailableError as error:
                raise UserError(f"{error}\n  run the same command again to wait for the batches already sent") from None
            finally:
                await engine.close()

    while True:
        try:
            return command.main(words, open_batches)
        except NotedError:
            asyncio.run(answer_noted())


if __name__ == "__main__":
    cli.run_script(main)
