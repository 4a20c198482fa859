"""--dry_run: a run without engines counts the completions that the store lacks and the command would pay for."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from utils.cli.errors import counted, named, printable
from utils.files.output import Piece
from utils.generation.calls import Call, prices_of
from utils.generation.local_chat import LocalChat
from utils.generation.model import Model
from utils.models.machine import Loaded, describe_disk, describe_engine
from utils.runs.stage import Place, Stage

# Disk space per token: an answer of 2048 tokens has about 10 kB, the store and the output keep its raw text, the output
# also the parsed answer, and the output is first written under a temporary name. Higher token limits are for thoughts,
# which are rarely so long, so at most 2048 tokens are counted.
TOKEN_BYTES, MOST_TOKENS = 32, 2048
FIELDS_BYTES = 1000  # of a piece, without its texts
NUM_IDS = 5  # how many ids of questions with too long prompts are printed


@dataclass
class Lacking:
    """Requests to one model that the store has no completions for."""

    model: Model
    lengths: list[int] = field(default_factory=list)  # of the prompts, in tokens
    num_options: int = 0  # texts whose likelihood is asked for
    num_dropped: int = 0  # posts left out for length
    num_cut: int = 0  # prompts whose last post, or question, was cut
    most_requests: int = 0  # if every call needs all its retries
    most_tokens: int = 0  # of all outputs together, without retries

    def add(self, call: Call) -> None:
        self.lengths.append(self.model.chat.length(call.prompt))
        self.num_options += len(call.options or ())
        self.num_dropped += call.record.get("num_contexts_dropped", 0)
        self.num_cut += bool(call.record.get("num_contexts_trimmed", 0) or call.record.get("context_cut", False))
        writes = not (call.options or call.is_rewarded)
        self.most_requests += call.policy.max_retries + 1 if writes else 1
        self.most_tokens += call.policy.max_tokens if writes else 0

    def cost(self) -> tuple[float, float] | None:
        """Return the US dollars for the prompts, and the most for prompts and outputs; None if no prices are given."""
        if (prices := prices_of(self.model.flags)) is None:
            return None
        prompts = sum(self.lengths) * prices.input / 1e6
        return prompts, prompts + self.most_tokens * prices.output / 1e6

    def row(self, role: str, unit: str, paths: list[str]) -> dict[str, Any]:
        """Return the figures for the file of --dry_run FILE."""
        flags, cost = self.model.flags, self.cost()
        return {
            "outputs": paths,
            "unit": unit,
            "role": role,
            "model": self.model.addr,
            "is_local": not flags.openai,
            "requests": len(self.lengths),
            "prompt_tokens": sum(self.lengths),
            "longest_prompt": max(self.lengths, default=0),
            "most_output_tokens": self.most_tokens,
            "options": self.num_options,
            "max_model_len": self.model.window.length,
            "cost_usd": cost and {"prompts": cost[0], "most": cost[1]},
        }

    def describe(self, role: str) -> str:
        number, longest = len(self.lengths), max(self.lengths, default=0)
        text = f"  {role}: {counted(number, 'request')}, {sum(self.lengths)} prompt tokens ({self.model.chat.counter})"
        if not number:
            return text
        text += f", longest prompt {longest}"
        if self.num_options:
            return f"{text}; {counted(self.num_options, 'option')} to score, no text is generated"
        if not self.most_tokens:
            return f"{text}; {counted(number, 'dialogue')} to score, no text is generated"
        most = round(self.most_tokens / number)
        text += f"; at most {most} tokens per output, {counted(self.most_requests, 'request')} with retries"
        if (cost := self.cost()) is not None:
            text += f"\n    {cost[0]:.4f} USD for the prompts, at most {cost[1]:.4f} with the outputs"
            text += f", {cost[1] * self.most_requests / number:.4f} with retries"
        return text


def describe_run(
    stage: Stage,
    lacking: Mapping[str, Lacking],
    lacking_searches: int,
    calls: Mapping[Place, Sequence[tuple[str, Piece]]],
    num_records: int,
    num_left: int,
) -> None:
    """Print what a stage lacks, after a run without engines.

    Args:
        lacking: the requests to each role's model.
        lacking_searches: the number of searches that would need the encoder.
        calls: role and call record of each call that needs no request, by the record's place.
        num_left: how many of the records need requests.
    """
    names = ", ".join(file.path for file in stage.files)
    print(f"{names}: {num_left} of {counted(num_records, stage.files[0].noun)} to request")
    for role, requests in lacking.items():
        print(requests.describe(role))
    if lacking_searches:
        queries = counted(lacking_searches, "query")
        print(f"  search: {queries} to embed with the encoder; requests after them are not counted")
    dropped, cut = (
        sum(getattr(requests, name) for requests in lacking.values()) for name in ("num_dropped", "num_cut")
    )
    if dropped or cut:
        print(f"  {named(dropped, stage.task.item_words)} left out for length, {counted(cut, 'prompt')} cut at the end")
    unsent = [key for (_, key), pairs in calls.items() for _, record in pairs if "attempts" not in record]
    if too_long := [str(question_id) for question_id, *_ in unsent]:
        print(printable(f"  {counted(len(too_long), 'prompt')} too long, skipped: {', '.join(too_long[:NUM_IDS])}"))
    if stage.many_calls and num_left:
        print("  requests that depend on the answers to these are not counted")


def describe_machine(flags: Namespace, models: Sequence[Model], path: str, stages: Sequence[Stage]) -> None:
    """Print whether this machine has the memory and disk space for a run; `path` is an output on the disk to check."""
    loaded, lines, needed = [], [], 0
    for model in models:
        if (memory_lines := model.describe_memory()) is not None:
            lines += memory_lines
        elif isinstance(model.chat, LocalChat):
            loaded.append(Loaded(model.addr, model.window.length, model.chat.model_limit, model.flags.dtype))
    for stage in stages:
        tokens = max((model.window.max_tokens for model in stage.models.values()), default=0)
        num_pieces = sum(len(file.keys or ()) for file in stage.files)
        needed += num_pieces * (FIELDS_BYTES + TOKEN_BYTES * min(tokens, MOST_TOKENS))
    lines = [*(describe_engine(flags, loaded) if loaded else []), *lines]
    print(*lines, *describe_disk(path, needed), sep="\n")
