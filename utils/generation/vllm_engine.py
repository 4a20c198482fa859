"""vLLM's asynchronous engine, the checks before it loads weights, and its processes: environment, logs, signals, end.

vllm is imported only when an engine opens."""

import asyncio
import logging
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import warnings
from argparse import Namespace
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import psutil

from utils.base.cli import SAMPLED
from utils.base.errors import EngineDiedError, UserError
from utils.base.progress import announce
from utils.generation.requests import Completion, Rendered, Rewarded, Room, Sampling, Scored
from utils.generation.scoring import score_continuations
from utils.generation.thinking import GPT_OSS, NO_PARSER, ThoughtReader, harmony_tag
from utils.models.adapters import ranks_of
from utils.models.devices import ask_nvidia_smi, find_capabilities, has_gpu, settle_dtype
from utils.models.loading import MODEL_FILES, TOKENIZER_FILES, check_weights, loading
from utils.models.machine import Gpu, check_before_fetching, count_gpus, gpu_problems
from utils.models.model_folder import ModelFolder

if TYPE_CHECKING:
    import numpy as np
    from vllm.outputs import PoolingRequestOutput, RequestOutput
    from vllm.sampling_params import SamplingParams

T = TypeVar("T")

ENGINE_LOG = "ENGINE_LOG"  # environment variable: the file that gets the messages of vLLM's processes
# An error in a log, but not one that only says where to look for the cause.
RAISED = re.compile(r"\b\w*(?:Error|Exception): (?!.*(?:root cause|background process)).*")
SOCKETS = "VLLM_RPC_BASE_PATH"  # vLLM's environment variable: the folder of its sockets
LONGEST_FOLDER = 70  # bytes: a socket's path may have 107, and its name has 36
BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"  # vLLM's environment variable
BATCH_INVARIANT_FROM = 8.0  # compute capability; below it vLLM 0.32 silently ignores the variable
AT_A_TIME = 256  # requests per step on a GPU
GONE_SECONDS = 30  # to wait for an engine's process to end


def quiet_libraries(log_level: str) -> None:
    """Show only vLLM's errors, also from its own processes, unless --log_level asks for more."""
    quiet = log_level == "warning"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR" if quiet else log_level.upper())
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])
    if quiet:
        os.environ.setdefault("PYTHONWARNINGS", "ignore")


def cores() -> int:
    return len(os.sched_getaffinity(0))


def set_defaults(on_gpu: bool, engines: int) -> None:
    """Set vLLM's environment variables, unless the user has set them; `engines` is how many share the CPU.

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


class VLLMEngine:
    """Runs one base model, with or without LoRA adapters, request by request."""

    def __init__(self, args: Namespace, models: list[ModelFolder], max_model_len: int, is_pooling: bool = False):
        """Load the base model and the adapters.

        Args:
            args: the flags of `cli.add_engine_arguments`, --seed and --log_level.
            models: the models to serve: a base model, its adapters, or both.
            max_model_len: tokens of prompt and output together; -1: the model's limit, or what fits into the memory.
            is_pooling: only `reward` (of a classifier) or `state` (of any other model) will be called.

        UserError if a GPU cannot be used by torch, has less free memory than --gpu_memory_utilization asks for, or
        does not support VLLM_BATCH_INVARIANT=1.
        """
        announce(f"loading {' and '.join(model.addr for model in models)} (this may take a minute or more)")
        quiet_libraries(args.log_level)
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # vLLM would report every start
        on_gpu, count = has_gpu(), count_gpus(args)
        if is_batch_invariant():
            _check_batch_invariance(count, on_gpu)
        adapters, base = [model for model in models if model.adapter], models[0].base
        if on_gpu:
            _check_gpus(args, base)
        set_defaults(on_gpu, args.data_parallel_size)

        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.lora.request import LoRARequest
        from vllm.platforms import current_platform
        from vllm.tokenizers import cached_tokenizer_from_config
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        settings = engine_settings(args, base, adapters, max_model_len, on_gpu)
        settings |= {"runner": "pooling"} if is_pooling else {}
        addrs = [adapter.addr for adapter in adapters]
        self._adapters = {addr: LoRARequest(addr, n, addr) for n, addr in enumerate(addrs, 1)}
        with loading(settings["model"], *MODEL_FILES, *TOKENIZER_FILES):
            config = AsyncEngineArgs(**settings).create_engine_config(UsageContext.ENGINE_CONTEXT)
            config.model_config.try_get_generation_config()  # here, so that an error names this file
        tokenizer = partial(cached_tokenizer_from_config, config.model_config)
        self._thoughts = ThoughtReader(args.reasoning_parser, tokenizer)
        self._log = tempfile.NamedTemporaryFile(prefix="vllm-")  # noqa: SIM115 (deleted with the engine)
        os.environ[ENGINE_LOG] = self._log.name if args.log_level == "warning" else ""
        tie_engine_processes("spawn" if on_gpu else "fork")
        try:
            self._engine = AsyncLLM.from_vllm_config(config, disable_log_stats=True)
        except RuntimeError as error:
            check_weights(Path(settings["model"]))
            raise self._death(str(error)) from None
        if args.log_level == "warning":  # if the engine dies, vLLM would print a traceback in this process
            logging.getLogger("vllm").setLevel(logging.CRITICAL)
        self._processes = multiprocessing.active_children()
        # Twice as many as the schedulers run at a time, so that a waiting request can follow each finished one.
        self.concurrency = 2 * self._engine.vllm_config.scheduler_config.max_num_seqs * args.data_parallel_size
        name = f"{count} x {current_platform.get_device_name()}" if on_gpu else f"CPU, {cores()} cores"
        self.device = f"{name}, {str(config.model_config.dtype).removeprefix('torch.')}"
        announce(f"loaded on {self.device}")
        self._count = self._scored = 0
        self._copies = args.data_parallel_size
        self._length = self._engine.model_config.max_model_len
        # No more prompts at a time than fit into the KV cache: otherwise, some are evicted before they are scored.
        cache = self._engine.vllm_config.cache_config
        self._room = Room(cache.num_gpu_blocks * cache.block_size)
        self._scored_at_once = asyncio.Semaphore(max(1, self.concurrency // 8))

    async def complete(self, model: str, prompt: Rendered, sampling: Sampling) -> Completion:
        # A schema constrains only what follows the thoughts; gpt-oss's structural tag includes the thoughts.
        thinks = sampling.reasoning_parser not in (None, NO_PARSER, GPT_OSS)
        params = sampling_params(sampling, self._own_sampling)
        params.skip_special_tokens = not self._thoughts.marks_are_special
        result = await self._ask(model, prompt, params, reasoning_ended=not thinks)
        output = result.outputs[0]
        split, reasoning_tokens = self._thoughts.read(output, sampling)
        return Completion(
            text=split.answer,
            reasoning=split.reasoning,
            reasoning_tokens=reasoning_tokens,
            unfinished=split.unfinished,
            finish_reason=output.finish_reason,
            prompt_tokens=len(result.prompt_token_ids),
            cached_tokens=result.num_cached_tokens or 0,
            completion_tokens=len(output.token_ids),
        )

    @cached_property
    def _own_sampling(self) -> dict[str, Any]:
        """The sampling parameters that the model's generation_config.json sets."""
        return self._engine.model_config.get_diff_sampling_param()

    async def score(self, model: str, prompt: array, continuations: Sequence[array]) -> Scored:
        """Return how likely each continuation is after a prompt (all are token ids); no text is generated."""
        tokens = len(prompt) + sum(map(len, continuations))
        async with self._scored_at_once:
            await self._room.wait(tokens)
            with self._room.taken(tokens):
                self._scored += 1
                # All requests go to one copy of the model, because each copy has its own prefix cache.
                rank = self._scored % self._copies if self._copies > 1 else None
                ask = partial(self._ask, model, rank=rank)
                return await score_continuations(ask, prompt, continuations, by_token=model in self._adapters)

    async def reward(self, model: str, prompt: array) -> Rewarded:
        """Return the reward of a whole dialogue: the classifier's only logit at its end."""
        result = await self._pool(model, prompt, task="classify", use_activation=False)
        return Rewarded(result.outputs.data.item(), len(result.prompt_token_ids), result.num_cached_tokens or 0)

    async def state(self, model: str, prompt: array, normalize: bool) -> "np.ndarray":
        """Return the last hidden state at a prompt's last token, float32 (D,); scaled to length 1 with `normalize`."""
        result = await self._pool(model, prompt, task="embed", use_activation=normalize)
        return result.outputs.data.float().numpy()

    async def _pool(self, model: str, prompt: array, **params: Any) -> "PoolingRequestOutput":
        from vllm.pooling_params import PoolingParams

        self._check_length(len(prompt))
        self._count += 1
        request, lora = {"prompt_token_ids": list(prompt)}, self._adapters.get(model)
        results = self._engine.encode(request, PoolingParams(**params), str(self._count), lora_request=lora)
        return await self._final(results)

    async def _ask(
        self,
        model: str,
        token_ids: Sequence[int],
        params: "SamplingParams",
        rank: int | None = None,
        reasoning_ended: bool = True,
    ) -> "RequestOutput":
        """Return the result of one request; `rank` selects a copy of the model, None leaves the choice to vLLM."""
        self._check_length(len(token_ids) + params.max_tokens)
        self._count += 1
        results = self._engine.generate(
            {"prompt_token_ids": list(token_ids)},
            params,
            str(self._count),
            lora_request=self._adapters.get(model),
            data_parallel_rank=rank,
            reasoning_ended=reasoning_ended,
        )
        return await self._final(results)

    def _check_length(self, tokens: int) -> None:
        """Raise UserError for a request that this machine's memory cannot hold; a larger machine may answer it."""
        if tokens > self._length:
            problem = f"a request needs {tokens} tokens, but beside the weights, the memory has room for {self._length}"
            remedy = f"use more or larger GPUs, or skip longer prompts: --max_model_len {self._length}"
            raise UserError(f"{problem}\n  {remedy}")

    async def _final(self, results: AsyncIterator[T]) -> T:
        """Return the final result of a request; EngineDiedError if the engine dies."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            [result] = [result async for result in results]  # FINAL_ONLY: there is one
        except EngineDeadError:
            for process in self._processes:
                process.join(1)
            signals = [-process.exitcode for process in self._processes if (process.exitcode or 0) < 0]
            killed = f"killed by signal {signals[0]}, perhaps for lack of memory" if signals else "without a message"
            raise self._death(killed) from None
        return result

    def _death(self, why: str) -> EngineDiedError:
        """Return the error for an engine that has died, with its last message, or with `why` if it left no message."""
        return EngineDiedError(
            f"vLLM's engine process died: {last_message(self._log.name) or why}\n"
            "  finished work is kept, run the same command again to resume (--log_level info shows all messages)"
        )

    async def close(self) -> None:
        """End vLLM's processes, and wait until their memory is free for another engine."""
        announce("closing the engine")
        processes, workers = multiprocessing.active_children(), []
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # the process may end meanwhile
                workers += psutil.Process(process.pid).children(recursive=True)  # one per GPU, holding its memory
        self._engine.shutdown(timeout=GONE_SECONDS)
        del self._engine
        os.environ[ENGINE_LOG] = ""
        for process in processes:
            process.join(GONE_SECONDS)
        psutil.wait_procs(workers, GONE_SECONDS)


def engine_settings(
    args: Namespace, base: ModelFolder, adapters: list[ModelFolder], max_model_len: int, on_gpu: bool
) -> dict[str, Any]:
    """Return vLLM's engine arguments for a base model with adapters; `args` is as in `VLLMEngine`."""
    return {
        # Never a hub name: vLLM would look for config and tokenizer in Hugging Face's own cache, not in --cache_dir.
        "model": str(base.fetch()),
        "load_format": "safetensors",  # no pickled weights
        "dtype": settle_dtype(args.dtype),
        "tensor_parallel_size": args.tensor_parallel_size,
        "data_parallel_size": args.data_parallel_size,  # vLLM's client sends a request to the least busy engine
        "gpu_memory_utilization": args.gpu_memory_utilization,
        "enforce_eager": args.enforce_eager or not on_gpu,
        "max_model_len": max_model_len,
        # Limits of a step: the defaults of LLM.generate on an A100. The asynchronous engine's defaults are smaller;
        # those of LLM.generate on an H100 are larger and leave less memory for the KV cache (utils/models/machine.py).
        "max_num_seqs": AT_A_TIME if on_gpu else None,
        "max_num_batched_tokens": 8192 if on_gpu else None,
        "seed": args.seed or 0,
        # After a chunk of a prompt, vLLM rewinds a seeded request's generator, which a CPU's generator cannot do.
        "enable_chunked_prefill": None if on_gpu else False,
        "disable_log_stats": True,
        "use_tqdm_on_load": args.log_level != "warning",
        # Small models loop on white space inside constrained JSON until max_tokens.
        "structured_outputs_config": {
            "backend": "xgrammar",
            "disable_any_whitespace": True,
            **({"reasoning_parser": parser} if (parser := args.reasoning_parser) not in (None, NO_PARSER) else {}),
        },
        **_lora_settings(adapters),
    }


def sampling_params(sampling: Sampling, own_sampling: Mapping[str, Any] = MappingProxyType({})) -> "SamplingParams":
    """Return vLLM's sampling parameters; `own_sampling` has the model's default temperature and top_p (1 if absent)."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    defaults = {name: float(own_sampling.get(name, 1)) for name in ("temperature", "top_p")}
    temperature = defaults["temperature"] if sampling.temperature is None else sampling.temperature
    is_harmony = sampling.reasoning_parser == GPT_OSS
    kind = "structural_tag" if is_harmony else "regex" if isinstance(sampling.schema, str) else "json"
    constraint = harmony_tag(sampling.schema) if sampling.schema and is_harmony else sampling.schema
    return SamplingParams(
        temperature=temperature,
        top_p=defaults["top_p"] if sampling.top_p is None else sampling.top_p,
        **{name: value for name, value in sampling.further.items() if name in SAMPLED},
        max_tokens=sampling.max_tokens,
        seed=None if temperature == 0 else sampling.seed,  # greedy decoding draws nothing
        stop=list(sampling.stop) or None,
        stop_token_ids=None if sampling.stop_token is None else [sampling.stop_token],
        output_kind=RequestOutputKind.FINAL_ONLY,
        structured_outputs=constraint and StructuredOutputsParams(**{kind: constraint}),
    )


def is_batch_invariant() -> bool:
    """Return whether VLLM_BATCH_INVARIANT asks vLLM for outputs that do not depend on the other requests in a batch."""
    return os.environ.get(BATCH_INVARIANT, "0") not in ("", "0")


def _check_gpus(args: Namespace, base: ModelFolder) -> None:
    """Raise UserError if there are too few GPUs, or if one is in use by another process or too small for the weights.

    Otherwise, minutes of fetching and loading would end in vLLM's own error.
    """
    lines = ask_nvidia_smi("index,memory.free,memory.total")
    rows = [re.fullmatch(r"(\d+), (\d+), (\d+)", line) for line in lines or []]
    if lines is None or not all(rows):
        return  # part of a GPU (by UUID), or a GPU without its own memory: vLLM checks later
    gpus = [Gpu(int(row[1]), "", int(row[2]) * 2**20, int(row[3]) * 2**20) for row in rows]
    for problem in gpu_problems(gpus, args):
        raise UserError(problem)
    smallest, value_bytes = min(gpu.total for gpu in gpus[: count_gpus(args)]), 4 if args.dtype == "float32" else 2
    limit = {"share": args.gpu_memory_utilization, "remedy": "more GPUs (--tensor_parallel_size)"}
    check_before_fetching(base, value_bytes, smallest, args.tensor_parallel_size, **limit)


def _check_batch_invariance(count: int, on_gpu: bool) -> None:
    """Raise UserError if vLLM does not support VLLM_BATCH_INVARIANT=1 here; on a CPU, its first step would crash."""
    what = f"{BATCH_INVARIANT}=1 needs a GPU of compute capability {BATCH_INVARIANT_FROM} or more"
    if not on_gpu:
        raise UserError(f"{what}; this machine has no GPU")
    # Only a part of a GPU (MIG) reports no capability, and all GPUs with MIG are new enough.
    lowest = min(list(find_capabilities().values())[:count], default=BATCH_INVARIANT_FROM)
    if lowest < BATCH_INVARIANT_FROM:
        raise UserError(f"{what}; this GPU has {lowest}")


def _lora_settings(adapters: list[ModelFolder]) -> dict[str, Any]:
    """Return vLLM's settings for these adapters: their number, and the lowest rank in vLLM that is enough for all."""
    if not adapters:
        return {}
    from vllm.config.lora import MaxLoRARanks

    rank = max(rank for adapter in adapters for rank in ranks_of(adapter.adapter))
    fitting = next(size for size in get_args(MaxLoRARanks) if size >= rank)
    return {"enable_lora": True, "max_lora_rank": fitting, "max_loras": len(adapters)}
