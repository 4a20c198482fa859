"""Training examples of a generator (the prompts it answers, and the references), and which models can be trained."""

from argparse import Namespace
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prompts import Prompt
from utils.benchmarks.task import Record, Task
from utils.cli import UserError
from utils.generation.engines import is_encoder_decoder
from utils.generation.fitting import Fitted
from utils.generation.model import Model
from utils.models.loading import adapter_base


@dataclass(frozen=True)
class Example:
    """One question with its right answer."""

    record: Record
    fitted: Fitted
    target: array  # token ids of the reference, then the end-of-text token
    is_cut: bool  # the reference was longer than an output may be

    @property
    def prompt(self) -> Any:
        """Return the prompt's token ids, or its passages for fusion in decoder."""
        return self.fitted.prompt

    @property
    def length(self) -> int:
        """Return the number of tokens in prompt and target."""
        return len(self.prompt) + len(self.target)


def build_examples(
    task: Task, records: Sequence[Record], prompt: Prompt, model: Model, num_contexts: int, trim_items: bool
) -> list[Example]:
    """Make an example of each question, with baselines.py's prompt and the reference cut to the longest output allowed.

    Questions whose prompt does not fit a causal model are left out.
    """
    examples = []
    for record in records:
        values = task.values(record)
        if trim_items:
            fitted = model.fit_trimmed(prompt, task.best_entries(record, num_contexts), task.join, **values)
        else:
            fitted = model.fit(prompt, task.best_items(record, num_contexts or None), task.join, **values)
        if fitted is not None:
            [*words, end] = model.chat.render_reply(record["target"])
            target = array("i", [*words[: model.policy.max_tokens - 1], end])
            examples.append(Example(record, fitted, target, len(words) + 1 > len(target)))
    return examples


def describe_examples(path: str, examples: Sequence[Example]) -> str:
    prompts = [len(example.prompt) for example in examples]
    fitted = [example.fitted for example in examples]
    num_trimmed = sum(getattr(one, "num_contexts_trimmed", 0) for one in fitted)
    return (
        f"{path}: {len(examples)} questions; prompts: {sum(prompts)} tokens, the longest {max(prompts, default=0)}; "
        f"targets: {sum(len(example.target) for example in examples)} tokens\n"
        f"  {sum(one.num_contexts_used for one in fitted)} posts, {num_trimmed} of them cut; "
        f"{sum(one.num_contexts_dropped for one in fitted)} left out because of their length; cut at the end: "
        f"{sum(getattr(one, 'question_cut', False) for one in fitted)} questions, "
        f"{sum(example.is_cut for example in examples)} targets"
    )


def check_base(args: Namespace) -> None:
    """Raise UserError if --model_addr is a kind of model that needs --lora_rank, or that cannot be trained with it."""
    is_seq2seq = is_encoder_decoder(args.model_addr, args.cache_dir)
    if args.lora_rank is None and not is_seq2seq:
        hint = "\n  --lora_rank 16 fine-tunes a chat model"
        raise UserError(f"--model_addr {args.model_addr}: not an encoder-decoder such as google/flan-t5-base{hint}")
    if args.lora_rank is not None and (is_seq2seq or adapter_base(args.model_addr)):
        kind = "an encoder-decoder" if is_seq2seq else "an adapter"
        raise UserError(f"--lora_rank: {args.model_addr} is {kind}; give a chat model")
    if args.lora_rank is not None and args.fusion == "decoder":
        raise UserError("--fusion decoder: only for encoder-decoders; leave out --lora_rank or --fusion")
