"""Training examples of a generator (the prompts it answers, and the references), and which models can be trained."""

from argparse import Namespace
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prompts import Prompt
from utils.benchmarks.checks import Record
from utils.benchmarks.task import Task
from utils.cli import UserError
from utils.generation.engines import is_encoder_decoder
from utils.generation.fitting import Fitted, Window
from utils.models.adapters import adapter_config


@dataclass(frozen=True)
class Lesson:
    """What to learn from one question, as texts."""

    record: Record
    values: Mapping[str, str]  # for the prompt
    target: str = ""  # empty if the model samples its own texts
    rejected: str | None = None  # dpo: the text that is worse than the target
    notes: str | None = None  # distill: what only the teacher sees
    is_cut: bool = False  # target or rejected text ended at a token limit when it was written


@dataclass(frozen=True)
class Example:
    """One question with its right answer."""

    record: Record
    fitted: Fitted
    target: array  # token ids of the reference, then the end-of-text token
    is_cut: bool  # a text to learn is not whole: it ended at a token limit, or is longer than an output may be
    rejected: Sequence[int] = ()  # dpo: token ids of the worse text
    teacher: Sequence[int] = ()  # distill: token ids of the teacher's prompt
    advantage: float = 0.0  # grpo: of the sample that the text is part of

    @property
    def prompt(self) -> Any:
        """Return the prompt's token ids, or its passages for fusion in decoder."""
        return self.fitted.prompt

    @property
    def length(self) -> int:
        """Return the most tokens of a prompt and a text that the model computes at once."""
        return max(len(self.prompt), len(self.teacher)) + max(len(self.target), len(self.rejected))


def build_examples(
    task: Task,
    lessons: Sequence[Lesson],
    prompt: Prompt,
    window: Window,
    num_contexts: int,
    trim_items: bool,
    teacher: Prompt | None = None,
) -> list[Example]:
    """Make an example of each lesson, with baselines.py's prompt and the texts cut to the longest output allowed.

    Questions whose prompt does not fit a causal model are left out. Student and teacher see the same posts.
    """
    examples = []
    for lesson in lessons:
        record, taught = lesson.record, array("i")
        items = task.best_items(record, num_contexts or None)
        if teacher is not None:
            for_teacher = window.fit(teacher, items, task.join, aspects=lesson.notes, **lesson.values)
            if for_teacher is None:
                continue
            taught, items = for_teacher.prompt, items[: for_teacher.num_contexts_used]
        if trim_items:
            fitted = window.fit_trimmed(prompt, task.best_entries(record, num_contexts), task.join, **lesson.values)
        else:
            fitted = window.fit(prompt, items, task.join, **lesson.values)
        if fitted is not None:
            target, is_cut = render_text(lesson.target, window)
            rejected, is_rejected_cut = render_text(lesson.rejected or "", window)
            is_cut |= is_rejected_cut or lesson.is_cut
            examples.append(Example(record, fitted, target, is_cut, rejected, taught))
    return examples


def render_text(text: str, window: Window) -> tuple[array, bool]:
    """Return a text to learn as token ids with the end of the turn, and whether it was cut; none for an empty text."""
    if not text:
        return array("i"), False
    [*words, end] = window.chat.render_reply(text)
    kept = words[: window.max_tokens - 1]
    return array("i", [*kept, end]), len(kept) < len(words)


def describe_examples(path: str, examples: Sequence[Example]) -> str:
    prompts = [len(example.prompt) for example in examples]
    fitted = [example.fitted for example in examples]
    num_trimmed = sum(getattr(prompt, "num_contexts_trimmed", 0) for prompt in fitted)
    return (
        f"{path}: {len(examples)} questions; prompts: {sum(prompts)} tokens, the longest {max(prompts, default=0)}; "
        f"targets: {sum(len(example.target) for example in examples)} tokens\n"
        f"  {sum(prompt.num_contexts_used for prompt in fitted)} posts, {num_trimmed} of them cut; "
        f"{sum(prompt.num_contexts_dropped for prompt in fitted)} left out because of their length; cut at the end: "
        f"{sum(getattr(prompt, 'question_cut', False) for prompt in fitted)} questions, "
        f"{sum(example.is_cut for example in examples)} targets"
    )


def check_base(args: Namespace) -> None:
    """Raise UserError if --model_addr is a kind of model that needs --lora_rank, or that cannot be trained with it."""
    is_seq2seq = is_encoder_decoder(args.model_addr, args.cache_dir)
    if args.lora_rank is None and not is_seq2seq:
        hint = "\n  --lora_rank 16 fine-tunes a chat model"
        raise UserError(f"--model_addr {args.model_addr}: not an encoder-decoder such as google/flan-t5-base{hint}")
    if args.lora_rank is not None and is_seq2seq:
        raise UserError(f"--lora_rank: {args.model_addr} is an encoder-decoder; give a chat model")
    if config := adapter_config(args.model_addr):
        if config["r"] != args.lora_rank:
            raise UserError(f"--lora_rank {args.lora_rank}: the adapter {args.model_addr} has rank {config['r']}")
        if args.objective == "distill":
            raise UserError("--objective distill: starts from a chat model, which is the teacher too; give no adapter")
    if args.lora_rank is not None and args.fusion == "decoder":
        raise UserError("--fusion decoder: only for encoder-decoders; leave out --lora_rank or --fusion")
