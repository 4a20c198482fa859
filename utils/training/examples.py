"""What a command trains, and its training examples: prompts and texts as token ids."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prompts import Prompt
from utils.base.cli import Arguments
from utils.base.errors import UserError, count_noun, count_plural, first_five, quote
from utils.benchmarks.checks import Record
from utils.benchmarks.task import Task
from utils.generation.chat import LocalChat, PlainText
from utils.generation.fitting import Fitted, Window
from utils.training.checkpoints import Selection

Texts = dict[str, tuple[str, bool]]  # by question id: the text that the model wrote, and whether it was cut


@dataclass(frozen=True)
class Lesson:
    """What to learn from one question, as texts."""

    record: Record
    values: Mapping[str, str]  # for the prompt
    target: str
    rejected: str | None = None  # dpo: the text that is worse than the target
    notes: str | None = None  # distill: what only the teacher sees
    num_contexts: int | None = None  # distill: posts in the sample's prompt, if known
    is_cut: bool = False  # the target or the rejected text was cut at a token limit when it was written


@dataclass(frozen=True)
class Example:
    """One question with the text to learn."""

    record: Record
    fitted: Fitted
    target: array  # token ids of the text, then the token that ends it
    is_cut: bool = False  # a text to learn was cut: at a token limit when it was written, or to the longest output here
    rejected: Sequence[int] = ()  # dpo: token ids of the worse text
    teacher: Sequence[int] = ()  # distill: token ids of the teacher's prompt
    advantage: float = 0.0  # grpo: the advantage of the call's sample; of a shared call, the sum over its samples
    temperature: float = 1.0  # grpo: the temperature at which the text was sampled

    @property
    def prompt(self) -> Any:
        """The prompt's token ids, or its passages for fusion in decoder."""
        return self.fitted.prompt

    @property
    def length(self) -> int:
        """An upper bound of the tokens in one forward pass: the longest prompt plus the longest text."""
        return max(len(self.prompt), len(self.teacher)) + max(len(self.target), len(self.rejected))


@dataclass(frozen=True)
class Training:
    """What a command trains."""

    args: Arguments
    settings: dict[str, Any]
    description: str  # of the data and the batches
    selection: Selection
    chat: LocalChat | PlainText
    examples: list[Example]
    validation: list[Example]  # if empty, nothing is evaluated
    score: Callable[[Texts], dict[str, float]]  # returns an evaluation's figures
    load_trainer: Callable[[], type]  # imports torch
    notes: Sequence[str] = ()  # for the manifest: what was skipped, and why

    @property
    def value_bytes(self) -> int:
        """Bytes per weight: 2 with an adapter; otherwise 16 for weight, gradient and AdamW's averages in float32."""
        return 2 if self.args.lora_rank else 16


def make_examples(
    task: Task,
    lessons: Sequence[Lesson],
    prompt: Prompt,
    window: Window,
    num_contexts: int,
    trim_items: bool = False,
    teacher: Prompt | None = None,
    cuts_targets: bool = True,
) -> list[Example]:
    """Return an example for each lesson, with the same prompt as in baselines.py or planpers.py.

    Questions whose prompt does not fit into a chat model's window are skipped. For distillation, the student sees the
    same posts as its sample's prompt (UserError if they do not fit), and the teacher as many of these as fit beside the
    rubric.

    Args:
        cuts_targets: whether a text is cut to the longest output that the window allows. If False, texts stay whole,
            and prompts get the rest of the window.
    """
    examples = []
    for lesson in lessons:
        record, teacher_prompt = lesson.record, array("i")
        most_tokens = window.max_tokens if cuts_targets else window.length
        (target, is_cut), (rejected, is_rejected_cut) = (
            render_text(text, window.chat, most_tokens) for text in (lesson.target, lesson.rejected or "")
        )
        room = window if cuts_targets else replace(window, max_tokens=len(target))
        items = task.best_items(record, num_contexts or None)
        if trim_items:
            fitted = room.fit_trimmed(prompt, task.best_entries(record, num_contexts), task.join, **lesson.values)
        else:
            fitted = room.fit(prompt, items, task.join, **lesson.values)
        if teacher is not None and fitted is not None:
            if (number := fitted.num_contexts_used) != (lesson.num_contexts or number):
                problem = f"its sample's prompt had {count_noun(lesson.num_contexts, 'post')}, but {number} fit here"
                remedy = "sample with --max_tokens as large as --max_target_length, and the same --max_model_len"
                raise UserError(f"id {quote(record['id'])}: {problem}\n  {remedy}")
            shown = items[: fitted.num_contexts_used]
            for_teacher = room.fit(teacher, shown, task.join, aspects=lesson.notes, **lesson.values)
            if for_teacher is None:
                continue
            teacher_prompt = for_teacher.prompt
            # Distillation learns each token by itself, so a cut sample is used too, without the end of the turn.
            sample = window.chat.render_reply(lesson.target)[: -1 if lesson.is_cut else None]
            target, is_cut = array("i", sample[:most_tokens]), False
        if fitted is not None:
            is_cut |= is_rejected_cut or (lesson.is_cut and teacher is None)
            examples.append(Example(record, fitted, target, is_cut, rejected, teacher_prompt))
    return examples


def render_text(text: str, chat: LocalChat | PlainText, most_tokens: int) -> tuple[array, bool]:
    """Return the token ids of a text with its end of turn (none for an empty text), and whether the text was cut."""
    if not text:
        return array("i"), False
    [*words, end] = chat.render_reply(text)
    kept = words[: most_tokens - 1]
    return array("i", [*kept, end]), len(kept) < len(words)


def refuse_too_long(flag: str, length: int, path: str, lessons: Sequence[Lesson], examples: Sequence[Example]) -> None:
    """Raise UserError if a question alone is too long for a chat model; for an encoder-decoder it is cut instead."""
    fitting = {example.record["id"] for example in examples}
    if too_long := [lesson.record["id"] for lesson in lessons if lesson.record["id"] not in fitting]:
        raise UserError(
            f"{flag} {length}: too small for {len(too_long)} of {count_noun(len(lessons), 'question')} of {path}\n"
            f"  too long even without posts: {first_five(too_long)}"
        )


def describe_examples(path: str, examples: Sequence[Example], words: str = "questions") -> str:
    """Describe a dataset's examples; `words` is the plural noun after their number."""
    prompts, fitted = [len(example.prompt) for example in examples], [example.fitted for example in examples]
    num_cut = sum(getattr(prompt, "num_contexts_trimmed", 0) or prompt.context_cut for prompt in fitted)
    number = count_plural(len(examples), words)
    return (
        f"{path}: {number}; prompts: {sum(prompts)} tokens, the longest {max(prompts, default=0)}; "
        f"targets: {sum(len(example.target) for example in examples)} tokens; "
        f"the longest example {max((example.length for example in examples), default=0)} tokens\n"
        f"  {count_plural(sum(prompt.num_contexts_used for prompt in fitted), 'posts')}, {num_cut} of them cut; "
        f"{sum(prompt.num_contexts_dropped for prompt in fitted)} left out because of their length; cut at the end: "
        f"{count_plural(sum(getattr(prompt, 'question_cut', False) for prompt in fitted), 'questions')}, "
        f"{count_plural(sum(example.is_cut for example in examples), 'targets')}"
    )
