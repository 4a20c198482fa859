"""vLLM's environment before it starts: settings for GPUs and CPUs, its log, and the end of its processes."""

import logging
import os
import signal
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


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
    """Set vLLM's variables for this number of engines, unless the user has set them.

    On a GPU without what FlashInfer compiles at each start: for that it needs nvcc and ninja, which vLLM 0.32 looks for
    before its other uses of FlashInfer, but not before these two: it would die of it. The sampler serves only requests
    with neither a seed nor greedy decoding, which are none of ours but those of vLLM's warm-up; the all-reduce several
    Hoppers, which have vLLM's own as well.

    On a CPU its own thread binding uses a single core of a virtual machine; its own KV cache takes a fixed share of all
    memory whether that is free or not. It starts a process of its own for each engine's work, to bind its threads:
    nothing is bound here, and a start that is a fork with one process less takes 10 seconds instead of 30.
    """
    if on_gpu:
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
        os.environ.setdefault("VLLM_ALLREDUCE_USE_FLASHINFER", "0")
        return
    from vllm.utils.cpu_resource_utils import get_memory_node_info

    free = get_memory_node_info().available_memory / 2**30  # heeds a container's limit
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // engines)))
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(max(1, min(8, int(free / 4 / engines)))))  # GiB


def tie_engine_processes(method: str) -> None:
    """Have vLLM start its processes so, and these set themselves up first.

    A fork has imported what a spawned process imports again, but must not come after CUDA's start. vLLM's own config
    says spawn on a CPU; a fork of it is safe where no operation of torch has run on more threads than one before.
    """
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = method
    if method == "fork":
        os.register_at_fork(after_in_child=_set_up_fork)  # twice, for a second engine, does no harm


def _set_up_fork() -> None:
    """`set_up_engine_process`, after removing what a fork inherits from the script."""
    import torch

    set_up_engine_process()  # first, because the rest may fail, and no process may be left over
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    if os.environ.get("PYTHONWARNINGS") == "ignore":
        warnings.simplefilter("ignore")
    threads = os.environ["OMP_NUM_THREADS"].split(",")[0]  # a user may give one number a level of nesting
    torch.set_num_threads(int(threads))


def set_up_engine_process() -> None:
    """Have the kernel kill this process when its parent is gone, so a killed run leaves no GPU occupied.

    In a process group of its own it does not get the signals that a terminal or a scheduler sends to all: the script
    ends it. And vLLM is to be quiet here too before it has set up its own logging.
    """
    import ctypes

    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgrp()
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])
