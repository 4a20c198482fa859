"""Set up the processes of vLLM: environment variables, logs, signals, and how they end."""

import logging
import os
import re
import signal
import sys
import tempfile
import warnings
from pathlib import Path

ENGINE_LOG = "ENGINE_LOG"  # environment variable: the file that gets the messages of vLLM's processes
# An error in a log, but not one that only says where to look for the cause.
RAISED = re.compile(r"\b\w*(?:Error|Exception): (?!.*(?:root cause|background process)).*")
SOCKETS = "VLLM_RPC_BASE_PATH"  # vLLM's environment variable: the folder of its sockets
LONGEST_FOLDER = 70  # bytes: a socket's path may have 107, and its name has 36


def quiet_libraries(log_level: str) -> None:
    """Keep vLLM silent below errors, in its own processes too, unless --log_level asks for more."""
    quiet = log_level == "warning"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR" if quiet else log_level.upper())
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])
    if quiet:
        os.environ.setdefault("PYTHONWARNINGS", "ignore")


def cores() -> int:
    return len(os.sched_getaffinity(0))


def set_defaults(on_gpu: bool, engines: int) -> None:
    """Set vLLM's environment variables, unless the user has set them; `engines` share this machine's CPU.

    On a GPU, FlashInfer's sampler and all-reduce are switched off: they need nvcc and ninja, and vLLM 0.32 crashes
    without checking for them. Our requests do not use that sampler, and vLLM has its own all-reduce.

    On a CPU, vLLM would bind its threads to a single core of a virtual machine, and reserve a fixed share of the memory
    for its KV cache. Without binding, an engine can run in this process, where it starts in 10 instead of 30 seconds.
    """
    if len(os.fsencode(os.environ.get(SOCKETS) or tempfile.gettempdir())) > LONGEST_FOLDER:
        os.environ[SOCKETS] = "/tmp"
    if on_gpu:
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
        os.environ.setdefault("VLLM_ALLREDUCE_USE_FLASHINFER", "0")
        return
    from vllm.utils.cpu_resource_utils import get_memory_node_info

    free = get_memory_node_info().available_memory / 2**30  # respects a container's limit
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // engines)))
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(max(1, min(8, int(free / 4 / engines)))))  # GiB


def last_message(log: str) -> str | None:
    """Return the last error in a log of vLLM's processes, in one line; None if there is none."""
    errors = RAISED.findall(Path(log).read_text(encoding="utf-8", errors="replace"))
    return errors[-1][:300] if errors else None


def tie_engine_processes(method: str) -> None:
    """Set how vLLM starts its processes, and have forked ones call `_set_up_fork` first.

    A forked process inherits the imports that a spawned one must repeat, but no process may fork after CUDA has
    started. On a CPU, forking is safe as long as no torch operation has used several threads.
    """
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = method
    if method == "fork":
        os.register_at_fork(after_in_child=_set_up_fork)  # a second engine repeats this, which is harmless


def _set_up_fork() -> None:
    """Set up a forked process, and reset the signals, warnings and threads that it inherits from the script."""
    import torch

    set_up_engine_process()  # first, because the rest may fail and leave the process behind
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    # vLLM 0.32 looks for its kernels in all modules, and fails at one of numba, which a search may have imported.
    sys.modules.pop("llvmlite.binding.ffi", None)
    if os.environ.get("PYTHONWARNINGS") == "ignore":
        warnings.simplefilter("ignore")
    threads = os.environ["OMP_NUM_THREADS"].split(",")[0]  # a user may give one number per nesting level
    torch.set_num_threads(int(threads))


def set_up_engine_process() -> None:
    """Have the kernel kill this process when its parent ends, so that a killed run leaves no GPU occupied.

    The process gets its own process group, so signals of a terminal or scheduler do not reach it: the script ends it.
    vLLM is silenced here, before it sets up its own logging; its messages go to the file that `ENGINE_LOG` names.
    """
    import ctypes

    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgrp()
    if path := os.environ.get(ENGINE_LOG):
        log = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2)
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])


# Python's spawn imports the script, and so this file, in each of vLLM's processes.
if "--multiprocessing-fork" in sys.orig_argv and "VLLM_LOGGING_LEVEL" in os.environ:
    set_up_engine_process()
