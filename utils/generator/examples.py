"""What a generator learns from: inputs as at answering, and right answers, as token ids."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prompts import Prompt
from utils.benchmarks.task import Record, Task
from utils.generation.chat import Fitted
from utils.generation.engines import Model
from utils.generation.plain_text import num_trimmed


@dataclass(frozen=True)
class Example:
    """One question with its right answer."""

    record: Record
    prompt: Any  # token ids, or the passages of fusion in decoder
    target: array  # token ids of the reference, and the end of the text
    fitted: Fitted
    is_cut: bool  # the reference is longer than what is written

    @property
    def length(self) -> int:
        """Tokens of prompt and target."""
        return len(self.prompt) + len(self.target)


def build_examples(
    task: Task, records: Sequence[Record], prompt: Prompt, model: Model, num_contexts: int, trim_items: bool
) -> list[Example]:
    """An example a question, with the very prompt that baselines.py asks; its target is cut to what is written.

    Where a prompt doesn't fit a causal model there is none.
    """
    examples = []
    for record in records:
        values = task.values(record)
        if trim_items:
            fitted = model.fit_trimmed(prompt, task.best_entries(record, num_contexts), task.join, **values)
        else:
            items = task.best_items(record, num_contexts or None)
            fitted = model.fit(prompt, items, task.join, **values)
        if fitted is None:
            continue
        [*words, end] = model.chat.render_reply(record["target"])
        target = array("i", [*words[: model.policy.max_tokens - 1], end])
        examples.append(Example(record, fitted.prompt, target, fitted, len(words) + 1 > len(target)))
    return examples


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
