"""Why pieces of an output are unusable, and what to try."""

import re

from utils.cli.errors import quote
from utils.files.output import NO_ANSWER, Key, Output, Piece
from utils.parsing.thoughts import THINK_LONGER, UNFINISHED

NUM_REASONS = 3  # reasons to print


def common_reasons(output: Output, failed: list[Key]) -> list[str]:
    """Return two lines for each of the most common reasons: the count with a sample, and a remedy."""
    alike: dict[tuple[str, str], list[Key]] = {}
    for key in failed:
        piece = output.pieces[key]
        reason = re.sub(r"\d+", "0", str(piece.get("reason")))
        alike.setdefault((reason, _what_to_try(output, piece)), []).append(key)
    lines = []
    # Ties keep the order in which the reasons appeared.
    for (_, remedy), keys in sorted(alike.items(), key=lambda item: len(item[1]), reverse=True)[:NUM_REASONS]:
        first = output.pieces[keys[0]]
        text = first.get("raw") or first.get("reasoning", first.get("raw"))
        wrote = f": {quote(text)}" if text is not None else ""
        lines.append(f"  {len(keys)} × {quote(first.get('reason'))[1:-1]}, such as {quote(keys[0][0])}{wrote}")
        lines.append(f"     try {remedy}")
    return lines


def _what_to_try(output: Output, piece: Piece) -> str:
    """Return a remedy for a failed piece, by how far the model got."""
    if piece.get("reason") == NO_ANSWER:
        return "changing the method: it returned None or an empty text although its calls succeeded"
    if "attempts" not in piece:  # the prompt was too long to be sent
        return "a higher --max_model_len, or fewer posts or shorter texts in the prompt"
    if "mean_log_probs" in piece:
        return "another model, or generated text (without --choose likelihood or --verdicts probability)"
    if "raw" not in piece and "too long" in str(piece.get("reason")):
        return "the server's limit as --max_model_len, or fewer posts"
    if "raw" not in piece:
        return "another model or server: this one refuses these prompts"
    if piece.get("reason") == UNFINISHED:
        return THINK_LONGER
    if piece.get("finish_reason") == "length" and output.unit == "plans":
        return "a higher --max_tokens_plan, with a --max_model_len that has room for it"
    if piece.get("finish_reason") == "length":
        return "a higher --max_tokens, with a --max_model_len that has room for it"
    if output.settings.get("constrained_decoding") == "never":
        return "--constrained_decoding fallback, or another model"
    return "another model, or a prompt of your own by --prompts_dir"
