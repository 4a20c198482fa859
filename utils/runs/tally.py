"""A tally: the state of a stage's records over all passes."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from utils.base.cli import Arguments
from utils.base.errors import count_noun
from utils.base.made import Piece, is_failed
from utils.generation.calls import Call, prices_of
from utils.generation.model import Model
from utils.runs.ask import Step, Steps
from utils.runs.stage import Place, Stage, StageFile
from utils.runs.trace import Trace

# Flags that each line of --requests_to contains, so that the request can be sent and its completion stored later.
REACHED_BY = ("completions", "base_url", "api_key_addr", "model_id", "seed", "max_retries", "request_timeout",
              "max_concurrency")  # fmt: skip


@dataclass
class Lacking:
    """Requests to one model whose completions the store lacks."""

    model: Model
    lengths: list[int] = field(default_factory=list)  # of the prompts, in tokens
    num_options: int = 0  # texts whose likelihood is requested
    num_dropped: int = 0  # posts left out for length
    num_cut: int = 0  # prompts in which a post or the question was cut
    most_requests: int = 0  # the number of requests if every call needs all its retries
    most_tokens: int = 0  # output tokens of all requests together, without retries

    def add(self, call: Call) -> None:
        self.lengths.append(self.model.chat.length(call.prompt))
        self.num_options += len(call.options or ())
        self.num_dropped += call.record.get("num_contexts_dropped", 0)
        self.num_cut += bool(call.record.get("num_contexts_trimmed", 0) or call.record.get("context_cut", False))
        writes = not (call.options or call.is_rewarded)
        self.most_requests += call.policy.max_retries + 1 if writes else 1
        self.most_tokens += call.policy.max_tokens if writes else 0

    @property
    def length(self) -> int:
        """The window that the model's engine needs: tokens of prompt and output together."""
        window = self.model.window
        if self.model.engine_length == -1:
            return min(window.length, max(self.lengths, default=0) + window.max_tokens)
        return window.length

    def cost(self) -> tuple[float, float] | None:
        """Return the cost in US dollars of the prompts, and of prompts and longest outputs; None without prices."""
        if (prices := prices_of(self.model.flags)) is None:
            return None
        prompts = sum(self.lengths) * prices.input / 1e6
        return prompts, prompts + self.most_tokens * prices.output / 1e6

    def describe(self, role: str, least: str) -> str:
        """Return a line on the requests; `least` is "at least " if more may follow, which depend on the answers."""
        number, longest = len(self.lengths), max(self.lengths, default=0)
        text = f"  {role}: {least}{count_noun(number, 'request')}, {least}{sum(self.lengths)} prompt tokens"
        text += f" ({self.model.chat.counter})"
        if not number:
            return text
        text += f", longest prompt {longest}"
        if self.num_options:
            return f"{text}; {count_noun(self.num_options, 'option')} to score, no text is generated"
        if not self.most_tokens:
            return f"{text}; {count_noun(number, 'dialogue')} to score, no text is generated"
        text += f"; at most {round(self.most_tokens / number)} tokens per output"
        text += "" if least else f", {count_noun(self.most_requests, 'request')} with retries"
        if (cost := self.cost()) is not None:
            text += f"\n    {least}{cost[0]:.4f} USD for the prompts"
            with_retries = cost[1] * self.most_requests / number
            text += "" if least else f", at most {cost[1]:.4f} with the outputs, {with_retries:.4f} with retries"
        return text


class Tally:
    """The state of a stage's records.

    Attributes:
        made: the stage's `made`, once it has begun. A finished file is never written again.
        left: the records that have not ended, by place; None before the stage begins.
        needs: the role whose engine each waiting record needs, by place.
        missing: the server's error for each record that it failed to answer, by place.
        raised: the line and the error for each record on which a user's method failed, by place.
        total: the number of all records.
        calls: role and record (without texts) of each finished record's calls, by place; a shared call is listed once.
        num_unusable: how many of the new pieces have no value.
        call_hashes: hashes of the calls of each record that has run but not ended, by place.
        asked_otherwise: places of records that did not repeat all their calls when they ran again.
        requested: the number of completions that the stage has requested.
        devices: the devices of the engines used; a dict, to keep their order.
        lacking: the requests that the store cannot answer, by role (--dry_run).
        noted: lines for the file of --requests_to, by the keys of the requests.
        lacking_searches: the number of searches that need the encoder (--dry_run).
    """

    def __init__(self, stage: Stage):
        self.stage = stage
        self.made: list[StageFile] = []
        self.left: dict[Place, Any] | None = None
        self.needs: dict[Place, str] = {}
        self.missing: dict[Place, str] = {}
        self.raised: dict[Place, str] = {}
        self.total = self.num_unusable = self.requested = self.lacking_searches = 0
        self.calls: dict[Place, list[tuple[str, Piece]]] = {}
        self.call_hashes: dict[Place, set[int]] = {}
        self.asked_otherwise: set[Place] = set()
        self.devices: dict[str, None] = {}
        self.lacking = {role: Lacking(model) for role, model in stage.models.items()}
        self.noted: dict[str, dict[str, Any]] = {}
        self._traces: dict[StageFile, Trace] = {}
        self._counted: set[int] = set()  # shared calls that are already in `calls` or `lacking`
        self._lacking_keys: set[str] = set()  # of requests in `lacking`: equal ones are sent once

    def begin(self, args: Arguments) -> None:
        """Find the records that have no piece yet, now that the stage before this one has ended."""
        stage, before = self.stage, self.stage.after
        absent = {key for file in before.files for key in file.missing()} if before else ()
        unknown = [file for file in stage.files if file.keys is None]
        records = {place: record for place, record in stage.expect().items() if place[1] not in absent}
        for file in unknown:
            if file.is_finished():
                file.load()
        stage.refuse_deleted_store(unknown, args)
        self.made, self.total = stage.made, len(records)
        self.left = {
            (file, key): record
            for (file, key), record in records.items()
            if key not in file.pieces and file in self.made
        }
        if args.trace and not args.dry_run:
            self._traces = {file: Trace(file) for file in self.made if not file.is_shard}

    @property
    def is_open(self) -> bool:
        """Whether more requests may follow the counted ones, depending on their answers (--dry_run)."""
        return bool(self.left) and self.stage.many_calls

    @property
    def is_traced(self) -> bool:
        return bool(self._traces)

    def awaits(self, is_local: bool = False) -> str | None:
        """Return the role whose engine most records wait for; in a tie, the first such role; None if there is none.

        With `is_local`, only roles with a local model count.
        """
        waiting = Counter(role for role in self.needs.values() if not is_local or self.stage.models[role].is_local)
        return max(
            (role for role in self.stage.models if role in waiting), key=lambda role: waiting[role], default=None
        )

    def add(self, place: Place, piece: Piece, steps: Steps) -> None:
        """Add the piece of a record that has ended."""
        file, key = place
        file.add(key, piece)
        self.num_unusable += is_failed(piece)
        self.calls[place] = [
            (step.role, step.record if step.record is piece else without_texts(step.record))
            for _, step in steps.finished
            if isinstance(step, Step) and self._counts(step.shared)
        ]
        self.call_hashes.pop(place)
        if file in self._traces:
            self._traces[file].add(key, steps)

    def add_lacking(self, steps: Steps) -> None:
        """Count the completions that a record lacks, except those already counted for another record."""
        for role, call, lack in steps.missing_calls:
            if call is None:
                self.lacking_searches += 1
            elif (lack is None or lack.key not in self._lacking_keys) and self._counts(call.shared):
                self._lacking_keys |= {lack.key} if lack else set()
                self.lacking[role].add(call)

    def note_requests(self, steps: Steps) -> None:
        """Note the requests to APIs that a record lacks, as lines for the file of --requests_to."""
        for role, _, lack in steps.missing_calls:
            if lack is not None and not (model := self.stage.models[role]).is_local:
                line = {"model": model.addr, "identity": model.identity, "described": model.completions.store.described}
                line |= {name: getattr(model.flags, name) for name in REACHED_BY}
                self.noted[lack.key] = line | {**lack._asdict(), "sampling": vars(lack.sampling)}

    def _counts(self, shared: int | None) -> bool:
        """Return whether to count a call: a shared call is counted only for the first record that makes it."""
        is_counted = shared in self._counted
        self._counted |= {shared} - {None}
        return not is_counted

    def calls_of(self, file: StageFile) -> Iterator[tuple[str, Piece]]:
        """Yield role and record of each call behind a file's new pieces."""
        return (call for (its_file, _), calls in self.calls.items() if its_file is file for call in calls)

    def publish_trace(self, file: StageFile) -> None:
        if file in self._traces and not file.is_kept:
            self._traces[file].publish()

    def stand_in(self) -> None:
        """Add each file's stand-in for its missing pieces, so that later stages can be counted (--dry_run)."""
        for file, key in self.left:
            if file.stand_in:
                file.add(key, file.stand_in)

    def drop_ended(self) -> None:
        """Remove the records that have a piece or a problem from `left`."""
        self.left = {
            (file, key): record
            for (file, key), record in self.left.items()
            if key not in file.pieces and (file, key) not in self.missing and (file, key) not in self.raised
        }
        self.needs = {place: role for place, role in self.needs.items() if place in self.left}


def without_texts(record: Piece) -> Piece:
    """Return a call's record with "" in place of its long texts, because the answer's record has them."""
    return {name: "" if name in ("value", "raw", "reasoning") and value else value for name, value in record.items()}
