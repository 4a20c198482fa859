"""What is common to the kinds of files that stages make: counts, the printed line, and a report of unusable pieces."""

import re
import sys
from collections.abc import Mapping
from typing import Any

from utils.base.errors import counted, quote
from utils.base.output import Key, MadeFile, Piece
from utils.benchmarks.thoughts import THINK_LONGER, UNFINISHED, UNFINISHED_COUNT, describe_unfinished
from utils.generation.calls import describe_cost, describe_counts

NUM_REASONS = 3  # how many reasons of unusable pieces are printed
NO_ANSWER = "the method gave no answer"  # a piece's reason, if a user's own method returned None


class StageFile(MadeFile):
    """A file that a stage makes.

    Attributes:
        stand_in: with --dry_run, the piece that is used in place of each piece that does not exist yet.
        stand_in_note: with --dry_run, the text that is printed if later stages are counted with stand-ins.
        many_calls: whether a method may make several calls for a piece.
    """

    stand_in: Piece | None = None
    stand_in_note = ""
    many_calls = False

    def counts(self, content: Any) -> dict[str, int]:
        """Return counts for the manifest and the printed line."""
        return {self.unit: sum(piece["value"] is not None for piece in self.pieces.values())}

    def line(self, content: Any, figures: Mapping[str, Any]) -> str:
        """Return the line to print about the new file; `figures` are the manifest's."""
        counts = describe_counts(figures["counts"]) or "nothing to ask about"
        unfinished = describe_unfinished(figures.get(UNFINISHED_COUNT, 0))
        return f"{self.path}: {counts}{unfinished}{cost_in_words(figures)}"

    def report_failed(self) -> int:
        """Return the exit code, and print why pieces are unusable if at least half of the requested ones are.

        The code is 1 in that case, otherwise 0. For beam search it is always 0: a retry would write the same texts.
        """
        pieces, failed = self.pieces, self.failed()
        num_asked = sum("answered" not in piece for piece in pieces.values())
        if not failed or 2 * len(failed) < num_asked:
            return 0
        # A retry may give a usable text, but cannot change a refused or too long prompt, or likelihoods.
        may_differ = any("raw" in pieces[key] and "mean_log_probs" not in pieces[key] for key in failed)
        problem = f"{self.path}: {len(failed)} of {counted(num_asked, self.noun)} unusable"
        print(problem + (self.again() if may_differ else ""), file=sys.stderr)
        print(*self._common_reasons(failed), sep="\n", file=sys.stderr)
        print("  to use other settings, give another output or add --overwrite", file=sys.stderr)
        return 0 if "num_beams" in self.settings else 1  # beam search would write the same texts again

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
        """Return a remedy for a failed piece; it depends on how far the model got."""
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
