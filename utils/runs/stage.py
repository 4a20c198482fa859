"""A stage: a method makes the pieces of one or more files from records. `StageFile` is the files' base class."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retrieval.search import Search
from utils.base.cli import Arguments
from utils.base.errors import UserError, count_noun, quote
from utils.base.made import Key, MadeFile, Piece
from utils.base.manifest import manifest_of
from utils.benchmarks.task import Task
from utils.benchmarks.thoughts import THINK_LONGER, UNFINISHED, UNFINISHED_COUNT, describe_unfinished
from utils.generation.calls import describe_cost, describe_counts
from utils.generation.model import Model

NUM_REASONS = 3  # most reasons for unusable pieces to print
NO_ANSWER = "the method gave no answer"  # a piece's reason, if a user's own method returned None


class StageFile(MadeFile):
    """A file that a stage makes.

    Attributes:
        stand_in: with --dry_run, a made-up piece to use in place of each piece that does not exist yet.
        stand_in_note: with --dry_run, the text to print if later stages are counted with stand-ins.
        many_calls: whether a method may make several calls for a piece.
    """

    stand_in: Piece | None = None
    stand_in_note = ""
    many_calls = False

    def counts(self, content: Any) -> dict[str, int]:
        """Return counts for the manifest and the printed line."""
        return {self.unit: sum(piece["value"] is not None for piece in self.pieces.values())}

    def so_far(self) -> str:
        """Return a text on the pieces so far for the progress bar; "" for none."""
        return ""

    def line(self, content: Any, figures: Mapping[str, Any]) -> str:
        """Return the line to print about the new file; `figures` are the manifest's."""
        counts = describe_counts(figures["counts"]) or "nothing to ask about"
        unfinished = describe_unfinished(figures.get(UNFINISHED_COUNT, 0))
        return f"{self.path}: {counts}{unfinished}{cost_in_words(figures)}"

    def report_failed(self) -> int:
        """Return 1 if at least half of the requested pieces are unusable, and print the reasons; otherwise return 0.

        With beam search, also return 0: a retry would generate the same texts.
        """
        pieces, failed = self.pieces, self.failed()
        num_asked = sum("answered" not in piece for piece in pieces.values())
        if not failed or 2 * len(failed) < num_asked:
            return 0
        # A retry may generate a usable text, unless the prompt is refused or too long, or an option is chosen.
        may_differ = any("raw" in pieces[key] and "mean_log_probs" not in pieces[key] for key in failed)
        problem = f"{self.path}: {len(failed)} of {count_noun(num_asked, self.noun)} unusable"
        print(problem + (self.again() if may_differ else ""), file=sys.stderr)
        print(*self._common_reasons(failed), sep="\n", file=sys.stderr)
        print("  to use other settings, choose another output or add --overwrite", file=sys.stderr)
        return 0 if "num_beams" in self.settings else 1

    def _common_reasons(self, failed: list[Key]) -> list[str]:
        """Return two lines for each of the most common reasons: one with the count and a sample, one with a remedy."""
        alike: dict[tuple[str, str], list[Key]] = {}
        for key in failed:
            piece = self.pieces[key]
            reason = re.sub(r"\d+", "0", str(piece.get("reason")))
            alike.setdefault((reason, self._what_to_try(piece)), []).append(key)
        lines = []
        # Ties keep the order in which the reasons appeared.
        for (_, remedy), keys in sorted(alike.items(), key=lambda item: len(item[1]), reverse=True)[:NUM_REASONS]:
            first = self.pieces[keys[0]]
            text = first.get("raw") or first.get("reasoning", first.get("raw"))
            wrote = f": {quote(text)}" if text is not None else ""
            lines.append(f"  {len(keys)} × {quote(first.get('reason'))[1:-1]}, such as {quote(keys[0][0])}{wrote}")
            lines.append(f"     try {remedy}")
        return lines

    def _what_to_try(self, piece: Piece) -> str:
        """Return a remedy for a failed piece, which depends on where it failed."""
        if piece.get("reason") == NO_ANSWER:
            return "changing the method: it returned None or an empty text although its calls succeeded"
        if "attempts" not in piece:  # the prompt was too long to be sent
            return "a higher --max_model_len, or fewer posts or shorter texts in the prompt"
        if "mean_log_probs" in piece:
            return "another model, or generated text (without --choose likelihood or --verdicts probability)"
        if "raw" not in piece and "too long" in str(piece.get("reason")):
            return "the server's limit as --max_model_len, or fewer posts"
        if "raw" not in piece:
            return "another model or server: this one fails on these prompts"
        if piece.get("reason") == UNFINISHED:
            return THINK_LONGER
        if piece.get("finish_reason") == "length" and self.unit == "plans":
            return "a higher --max_tokens_plan, with a --max_model_len that has room for it"
        if piece.get("finish_reason") == "length":
            return "a higher --max_tokens, with a --max_model_len that has room for it"
        if self.settings.get("constrained_decoding") == "never":
            return "--constrained_decoding fallback, or another model"
        return "another model, or a prompt of your own (--prompts_dir)"


def cost_in_words(figures: Mapping[str, Any]) -> str:
    return f"; {describe_cost(figures['cost_usd'])}" if "cost_usd" in figures else ""


Place = tuple[StageFile, Key]  # identifies a piece: its file, and its key there


@dataclass(eq=False)
class Stage:
    """A method, the records that it runs on, and the files of its pieces.

    Attributes:
        task: the task whose prompts, values and parser `ask` uses.
        records: yields file, key and record of each piece; called once the stages before this one have ended.
        method: an async function that returns a piece for a record and its `Ask`. In a stage `after` another, its third
            argument is the other stage's piece of the same key, or None.
        files: the files that are made of the pieces.
        models: the models by role, the name that `ask` takes; the first is the default.
        after: the stage whose pieces this one needs; records whose piece is missing there are left out.
        search: finds items for `ask.search`.
    """

    task: Task
    records: Callable[[], Iterable[tuple[StageFile, Key, Any]]]
    method: Callable
    files: Sequence[StageFile]
    models: Mapping[str, Model]
    after: "Stage | None" = None
    search: Search | None = None

    @property
    def is_finished(self) -> bool:
        """Whether all files are finished; a finished stage runs again only for missing traces or for a later stage."""
        return all(file.finished for file in self.files)

    @property
    def made(self) -> list[StageFile]:
        """The files whose pieces the stage makes when it runs: the unfinished ones, or all if all are finished."""
        return [file for file in self.files if not file.finished or self.is_finished]

    @property
    def unit(self) -> str:
        """The plural noun for the stage's pieces."""
        return self.files[0].unit

    @property
    def many_calls(self) -> bool:
        """Whether the method may make several calls for a record."""
        return any(file.many_calls for file in self.files)

    def requested(self, role: str | None = None) -> int:
        """Return how many completions this process has requested from a role's model, or from all models."""
        models = self.models.values() if role is None else [self.models[role]]
        return sum(completions.requested for completions in {model.completions for model in models})

    def refuse_deleted_store(self, files: Iterable[StageFile], args: Arguments) -> None:
        """Raise UserError if a file must be made again but its store is empty: its completions would be paid for twice.

        A file whose keys are not known yet is not refused, because it may turn out to be finished.
        """
        if args.overwrite or args.cached_only:
            return
        for file in files:
            is_known = not (file.finished or file.is_shard or file.keys is None)
            made = manifest_of(file.path) if is_known else None
            if made is None or made.get("tokens", {}).get("prompt_tokens") == 0:
                continue
            calls = made.get("calls")
            for role, model in self.models.items():
                # The number of prompt tokens is None if the server does not report it.
                asked = calls is None or calls.get(role, {}).get("prompt_tokens", 0) != 0
                if asked and (store := model.completions.store).is_empty:
                    problem = f"no longer exists, but {file.path} must be made again from its completions"
                    remedy = (
                        "pass the folder that has them (--completions), or add --overwrite to request all of them again"
                    )
                    raise UserError(f"{store.folder}: {problem}\n  {remedy}")

    def close(self) -> None:
        """Close the stores and the search."""
        for model in self.models.values():
            model.completions.store.close()
        if self.search is not None:
            self.search.close()

    def expect(self) -> dict[Place, Any]:
        """Return the records by place, and set the keys of files that do not know them yet."""
        records = {(file, key): record for file, key, record in self.records()}
        for file in self.files:
            if file.keys is None:
                file.expect(key for its_file, key in records if its_file is file)
        return records


def models_of(stages: Sequence[Stage]) -> dict[str, Model]:
    """Return the stages' models by role; ValueError if a role has two models, because each role has one engine."""
    models: dict[str, Model] = {}
    for role, model in (pair for stage in stages for pair in stage.models.items()):
        if models.setdefault(role, model).identity != model.identity:
            raise ValueError(f"{role!r} has two models, {models[role].addr} and {model.addr}; each needs its own role")
    return models
