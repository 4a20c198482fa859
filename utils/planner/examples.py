"""What the planner learns from: prompts and targets as token ids."""

from array import array
from dataclasses import dataclass

from utils.training import NO_LOSS


@dataclass(frozen=True)
class Example:
    """One question to learn from."""

    prompt: array  # token ids of the planner's prompt, up to where it begins to speak
    target: array  # token ids of the aspects' titles, one a line, and the end of the turn
    aspects: list[str]  # those titles
    num_dropped: int  # posts left out so that prompt and target fit
    is_cut: bool  # the only post was cut at its end

    @property
    def length(self) -> int:
        """Tokens of prompt and target."""
        return len(self.prompt) + len(self.target)

    @property
    def row(self) -> dict[str, list[int]]:
        """What the trainer takes: the whole prompt is labelled with `NO_LOSS`."""
        return {"input_ids": [*self.prompt, *self.target], "labels": [NO_LOSS] * len(self.prompt) + list(self.target)}


def describe_examples(path: str, examples: list[Example]) -> str:
    lengths = [example.length for example in examples]
    return (
        f"{path}: {len(examples)} questions with {sum(len(example.aspects) for example in examples)} aspects; "
        f"{sum(lengths)} tokens, the longest {max(lengths)}, in the targets "
        f"{sum(len(example.target) for example in examples)}\n"
        f"  {sum(example.num_dropped for example in examples)} posts left out for length, "
        f"{sum(example.is_cut for example in examples)} cut at the end"
    )
