"""What a generator learns from: which models, inputs as at answering, and right answers, as token ids."""

import ctypes
import multiprocessing
import os
import signal
from argparse import Namespace
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from prompts import Prompt
from utils.benchmarks.task import Record, Task
from utils.cli import UserError
from utils.generation.encoder_decoder import is_encoder_decoder
from utils.generation.fitting import Fitted
from utils.generation.model import Model
from utils.generation.plain_text import num_trimmed
from utils.models.adapters import adapter_base
from utils.training.launch import num_processes

WORTH_A_PROCESS = 500  # items of profiles: these take about a second to tokenize
PR_SET_PDEATHSIG = 1

Built = tuple[Fitted, array, bool]  # an example without its record


@dataclass(frozen=True)
class Example:
    """One question with its right answer."""

    record: Record
    prompt: Any  # token ids, or the passages of fusion in decoder
    fitted: Fitted
    target: array  # token ids of the reference, and the end of the text
    is_cut: bool  # the reference is longer than what is written

    @property
    def length(self) -> int:
        """Tokens of prompt and target."""
        return len(self.prompt) + len(self.target)


def build_examples(
    task: Task, records: Sequence[Record], prompt: Prompt, model: Model, num_contexts: int, trim_items: bool
) -> list[Example]:
    """An example a question, with the very prompt that baselines.py asks; its target is cut to what is written.

    Where a prompt doesn't fit a causal model there is none. Many are built by as many processes as there are cores.
    """
    build = partial(_build, task, records, prompt, model, num_contexts, trim_items)
    cores = len(os.sched_getaffinity(0)) // num_processes()  # each process of a training builds all
    workers = min(cores, len(records) * max(num_contexts, 1) // WORTH_A_PROCESS)
    if workers > 1:
        # A fork has records and tokenizer already. Nothing has started CUDA yet.
        with multiprocessing.get_context("fork").Pool(workers, _begin_worker, (build,)) as pool:
            built = pool.map(_build_in_worker, range(len(records)), chunksize=32)
    else:
        built = list(map(build, range(len(records))))
    return [Example(record, one[0].prompt, *one) for record, one in zip(records, built, strict=True) if one]


def _build(
    task: Task,
    records: Sequence[Record],
    prompt: Prompt,
    model: Model,
    num_contexts: int,
    trim_items: bool,
    number: int,
) -> Built | None:
    record = records[number]
    values = task.values(record)
    if trim_items:
        fitted = model.fit_trimmed(prompt, task.best_entries(record, num_contexts), task.join, **values)
    else:
        items = task.best_items(record, num_contexts or None)
        fitted = model.fit(prompt, items, task.join, **values)
    if fitted is None:
        return None
    [*words, end] = model.chat.render_reply(record["target"])
    target = array("i", [*words[: model.policy.max_tokens - 1], end])
    return fitted, target, len(words) + 1 > len(target)


def _begin_worker(build: Callable[[int], Built | None]) -> None:
    """Keep what to build; a worker ends with its parent, and leaves signals to it."""
    global _worker_builds
    _worker_builds = build
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a tokenizer's threads are not in a fork
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _build_in_worker(number: int) -> Built | None:
    return _worker_builds(number)


def describe_examples(path: str, examples: Sequence[Example]) -> str:
    prompts = [len(example.prompt) for example in examples]
    fitted = [example.fitted for example in examples]
    return (
        f"{path}: {len(examples)} questions; {sum(prompts)} tokens, the longest {max(prompts, default=0)}, and in the "
        f"targets {sum(len(example.target) for example in examples)}\n"
        f"  {sum(one.num_contexts_used for one in fitted)} posts, of which {sum(map(num_trimmed, fitted))} trimmed; "
        f"{sum(one.num_contexts_dropped for one in fitted)} left out for length; cut at the end: "
        f"{sum(getattr(one, 'question_cut', False) for one in fitted)} questions, "
        f"{sum(example.is_cut for example in examples)} targets"
    )


def check_base(args: Namespace) -> None:
    """Raise UserError where --model_addr is none of the kind that is trained with --lora_rank, or without it."""
    is_text_model = is_encoder_decoder(args.model_addr, args.cache_dir)
    if args.lora_rank is None and not is_text_model:
        hint = "\n  --lora_rank 16 fine-tunes a chat model"
        raise UserError(f"--model_addr {args.model_addr}: no encoder-decoder, such as google/flan-t5-base{hint}")
    if args.lora_rank is not None and (is_text_model or adapter_base(args.model_addr)):
        kind = "an encoder-decoder" if is_text_model else "an adapter"
        raise UserError(f"--lora_rank: {args.model_addr} is {kind}; give a chat model")
    if args.lora_rank is not None and args.fusion == "decoder":
        raise UserError("--fusion decoder: is for an encoder-decoder; leave out --lora_rank, or this")
