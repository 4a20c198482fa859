"""Run scripts as forks of one process that already has their imports: hundreds of starts per minute.

`Zygote` starts this process, which forks one run after another: real processes with their own arguments, output files
and exit codes, that differ from `python script.py` only in the time of their imports.
"""

import asyncio
import atexit
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
# As a launcher of one process sets them; train_planner.py then need not ask torch how many GPUs there are.
LAUNCHED = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
SECONDS = 3600  # for a run to end; a longer one hangs, even on a very busy machine


class Zygote:
    """Runs one script at a time."""

    def __init__(self, folder: Path, *modules: str, **environment: str):
        """Import `modules` once, with these variables; inputs and output streams of the runs are in `folder`."""
        self.folder = folder
        self._streams = {name: folder / name for name in ("stdin", "stdout", "stderr")}
        command = [sys.executable, __file__, *modules]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | environment, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(SECONDS)
        self._process.stdout.close()

    def start(self, script: str, arguments: Sequence[object], stdin: str = "", **setup: Any) -> "Run":
        """Start a script (its path from the root, or its module), after calling functions of this file."""
        module = script.removesuffix(".py").replace("/", ".")
        words = list(map(str, arguments))
        self._streams["stdin"].write_text(stdin)
        streams = {name: str(path) for name, path in self._streams.items()}
        line = json.dumps({"module": module, "arguments": words, "setup": setup, **streams})
        self._process.stdin.write(line.encode() + b"\n")
        return Run(int(self._read()), self._read, self._streams)

    def run(self, script: str, arguments: Sequence[object], stdin: str = "", **setup: Any) -> "Run":
        """Start a run and wait for its end."""
        run = self.start(script, arguments, stdin, **setup)
        run.wait()
        return run

    def _read(self, seconds: float = SECONDS) -> bytes:
        """Return the zygote's next line."""
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise TimeoutError(f"no answer in {seconds} s")
        return self._process.stdout.readline()


class Run:
    """A running script.

    Attributes:
        returncode: as in subprocess, negative for a signal; None before `wait`.
        printed, errors: its stdout and stderr, after `wait`.
    """

    def __init__(self, pid: int, read: Any, streams: dict[str, Path]):
        self.pid, self._read, self._streams = pid, read, streams
        self.returncode: int | None = None

    def send(self, signum: int) -> None:
        with suppress(ProcessLookupError):  # it may have ended by itself
            os.kill(self.pid, signum)

    def wait(self, seconds: float = SECONDS) -> int:
        """Return the exit code once it has ended; after `seconds`, kill it and raise TimeoutError."""
        if self.returncode is not None:
            return self.returncode
        try:
            self.returncode = os.waitstatus_to_exitcode(int(self._read(seconds)))
        except TimeoutError:
            self.send(signal.SIGKILL)
            self._read()
            raise
        return self.returncode

    @property
    def printed(self) -> str:
        return self._streams["stdout"].read_text(encoding="utf-8")

    @property
    def errors(self) -> str:
        return self._streams["stderr"].read_text(encoding="utf-8")


# In the zygote


def main() -> None:
    sys.path.insert(0, str(ROOT))
    for name in sys.argv[1:]:
        import_module(name)
    gc.freeze()  # so that forks copy no pages only because of garbage collection
    for line in sys.stdin:
        run = json.loads(line)
        if (pid := os.fork()) == 0:
            become(run)
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)
    os._exit(0)


def become(run: dict[str, Any]) -> NoReturn:
    """Run the script in this process, and exit."""
    for number, path, flags in (
        (0, run["stdin"], os.O_RDONLY),
        (1, run["stdout"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, run["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = [run["module"], *run["arguments"]]
    script = import_module(run["module"])
    from utils.base import cli

    # It should exit by itself; on a busy machine, the alarm could come first.
    cli.LEAVE_SECONDS = SECONDS
    for name, argument in run["setup"].items():
        globals()[name](argument)
    try:
        cli.run_script(script.main)
    except SystemExit as end:
        # Exit like the interpreter, but without tearing down modules, which takes longer than most runs.
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(end.code)


# Changes to a run before it begins


def live_in(place: tuple[str, dict[str, str]]) -> None:
    """Change the working folder and environment. Values that imported modules already read stay."""
    folder, environment = place
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)


def do(code: str) -> None:
    """Do what a surrounding script would do."""
    exec(code, {})


def be_two(_: None) -> None:
    """Become two connected processes, as torch's launcher starts them; the first ends after the second."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    second = os.fork()
    rank = str(int(second == 0))
    os.environ.update(address, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", RANK=rank, LOCAL_RANK=rank)
    if second:
        atexit.register(lambda: os.waitpid(second, 0)[1] == 0 or os._exit(1))


def look_at_models(_: None) -> None:
    """Let vLLM inspect a model's class in this process, not in one per architecture, which it uses to avoid CUDA."""
    import_module("vllm.model_executor.models.registry")._run_in_subprocess = lambda look: look()


def limit_file_size(size: int) -> None:
    """Limit files to `size` bytes, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def obey_modes(_: None = None) -> list[int]:
    """Drop all capabilities, so that file modes apply to root too, and return the previous ones."""
    held = _call_on_capabilities("capget", [0] * 6)
    set_capabilities([0, *held[1:3], 0, *held[4:]])  # 32 of them in effect, permitted, inherited; then the other 32
    return held


def set_capabilities(held: list[int]) -> None:
    _call_on_capabilities("capset", held)


def _call_on_capabilities(name: str, values: list[int]) -> list[int]:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # the version of the call that knows 64 of them; this thread
    data = (ctypes.c_uint32 * 6)(*values)
    failed = getattr(ctypes.CDLL(None, use_errno=True), name)(header, data)
    assert not failed, os.strerror(ctypes.get_errno())
    return list(data)


def take_time(seconds: float) -> None:
    """Slow down each line of a store, because some scripts would finish between two checks of it."""
    store = import_module("utils.generation.store").ModelStore
    add = store.add

    def add_later(*arguments: Any) -> None:
        time.sleep(seconds)
        add(*arguments)

    store.add = add_later


def embed_in_blocks(size: int) -> None:
    """Let rank_dataset.py embed this many texts at a time."""
    import_module("retrieval.rank_dataset").BLOCK = size


def signal_itself(moments: list[tuple[str, int, int]]) -> None:
    """Send train_planner.py a signal at each moment: when this method of its trainer is called after this step.

    A repeated method and step means the next call. 0 means no signal; no signal counts as the echo of another.
    """
    import_module("utils.training.recorder").SAME_SIGNAL = -1
    trainer, left = import_module("utils.training.trainer").PlannerTrainer, list(map(tuple, moments))

    def signalled(name: str) -> Any:
        method = getattr(trainer, name)

        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            moment = next((one for one in left if one[:2] == (name, self.state.global_step)), None)
            if moment is not None:
                left.remove(moment)
                os.kill(os.getpid(), moment[2])
            return method(self, *arguments, **named)

        return call

    for name in {name for name, *_ in moments}:
        setattr(trainer, name, signalled(name))


def plan_by_server(flags: dict[str, str]) -> None:
    """Let planpers.py plan with the API server in these flags instead of vLLM."""
    import_module("utils.generation.engines").VLLMEngine = partial(ServerPlanner, flags)


class ServerPlanner:
    """A planner whose plans are an API server's answers."""

    def __init__(self, flags: dict[str, str], args: Any, models: list[Any], max_model_len: int, gives_rewards: bool):
        from transformers import AutoTokenizer

        from utils.generation.api_engine import APIEngine
        from utils.generation.engines import read_api_key

        self._tokenizer = AutoTokenizer.from_pretrained(models[0].addr)
        self._api = APIEngine(args.replaced(openai=True, **flags), read_api_key(flags["api_key_addr"]))
        self.concurrency, self.device = args.max_concurrency, "planner"

    async def complete(self, model: str, prompt: Any, sampling: Any) -> Any:
        messages = [{"role": "user", "content": self._tokenizer.decode(list(prompt))}]
        completion = await self._api.complete(model, messages, sampling)
        await asyncio.sleep(0)
        is_plan = not completion.text.startswith("Let me think")
        return completion if is_plan else replace(completion, text="...")

    async def close(self) -> None:
        await self._api.close()


if __name__ == "__main__":
    main()
