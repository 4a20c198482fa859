"""An output file, made of pieces: parsed completions, computed values, or rankings of posts.

A command lists its outputs with the keys of their pieces, skips finished outputs, opens the others, fills in their
`pieces`, and publishes them. Completions are in the store, so after a run that died, the next run resumes from there.
"""

import hashlib
import json
import os
import re
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from utils.cli import UserError
from utils.cli.errors import counted, quote
from utils.files.json_files import read_json
from utils.files.locks import Lock, check_free
from utils.files.manifest import describe_run, is_made_alike, manifest_of, publishing, read_manifest
from utils.files.writing import check_could_write, write_json
from utils.parsing.thoughts import THINK_LONGER, UNFINISHED

Key = tuple[str | int, ...]
Piece = dict[str, Any]  # {"value": ... or None, ...}
Pieces = dict[Key, Piece]

INPUTS = ("inputs", "responses", "given_plans", "code")  # settings that are hashes of input files, which may change
QUESTIONS = ("limit", "num_generated_outputs")  # flags that decide, with a dataset, which pieces an output has
NUM_REASONS = 3  # how many reasons of unusable pieces are printed
NO_ANSWER = "the method gave no answer"  # a piece's reason, if a user's own method returned None


def is_failed(piece: Piece) -> bool:
    """Return whether a model gave nothing usable; False for a verdict made without a model (it has `answered`)."""
    return piece["value"] is None and "answered" not in piece


def refuse_other_source(before: Sequence[str], now: Sequence[str]) -> None:
    """Raise UserError if an output was made from other files than now; the message lacks the output's path."""
    if [*map(os.path.realpath, before)] != [*map(os.path.realpath, now)]:
        problem = f"was made from {', '.join(before)}, not from {', '.join(now)}"
        raise UserError(f"{problem}\n  give another output, or --overwrite to replace it")


def keys_hash(keys: Iterable[Key]) -> str:
    """Return a hash of keys that does not depend on their order."""
    return hashlib.sha256(json.dumps(sorted(json.dumps(key) for key in keys)).encode()).hexdigest()


@dataclass(eq=False)
class Output:
    """A final file and the pieces that it is made of.

    A shard (--num_shards) has pieces but no file: its completions go into the store, and nothing else is written.
    """

    path: str
    settings: dict[str, Any]  # what the pieces depend on; known before a tokenizer is loaded
    keys: list[Key] | None  # keys of all pieces that the finished file has; None until they are known
    # Returns the file's content from pieces in the order of `keys`; an iterator's items are written as a list.
    collect: Callable[[Pieces], Any]
    unit: str  # plural noun for the pieces
    args: Namespace  # the command's flags, with --overwrite
    pieces: Pieces = field(default_factory=dict)
    dataset: str | None = None  # a path; a file made from another dataset is only replaced with --overwrite
    # Called with the manifest of a file that is to be replaced without --overwrite. May raise UserError, without path.
    check: Callable[[dict[str, Any]], None] = lambda made: None
    figures: dict[str, Any] = field(default_factory=dict)  # further fields of the manifest
    # From a finished file's content, returns the pieces that a later step needs. If None, these are made again.
    read: Callable[[Any], Pieces] | None = None

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self.finished = False  # the last result of `is_finished`
        self.is_kept = False  # whether `publish` has left an existing file with more answers
        self._lock: Lock | None = None  # held since `open`

    @property
    def noun(self) -> str:
        """`unit` in the singular."""
        return self.unit.removesuffix("s")

    @property
    def is_shard(self) -> bool:
        return vars(self.args).get("num_shards", 1) > 1

    def is_finished(self) -> bool:
        """Return whether this command has finished the file. Changes nothing on disk, so a dry run may call it.

        The file counts as unfinished with --overwrite, if an input has changed, if pieces are missing because a server
        failed, or if pieces are unusable and --max_retries is higher now. It is then made again; only completions that
        the store lacks are requested.

        Raises:
            UserError: the file cannot be written, or another process is writing it. Without --overwrite, also if the
                file was made with other settings or from another dataset, has more pieces than this command makes, or
                was not written by this script.
        """
        if not self.is_shard:
            check_could_write(Path(self.path))
            if self._lock is None:
                check_free(Path(self.path))
            self.finished = self._is_there()
        return self.finished

    def _is_there(self) -> bool:
        """Check an existing file, and return whether it is finished, as `is_finished` describes."""
        path, overwrite = Path(self.path), self.args.overwrite
        is_alike = is_made_alike(path, self.settings, overwrite, INPUTS)
        made = read_manifest(path)
        if overwrite or made is None or not path.exists():
            return False
        is_whole = self._has_all_keys(made) and not made.get("missing")
        most_tries = vars(self.args).get("max_retries", 0)
        has_tried = not made.get("unusable") or made.get("arguments", {}).get("max_retries", 0) >= most_tries
        is_finished = is_alike and is_whole and has_tried
        if not is_finished:
            self._check(made)
        return is_finished

    def _has_all_keys(self, made: dict[str, Any]) -> bool:
        """Return whether the existing file, whose manifest is `made`, was made for the keys of this command."""
        if self.keys is not None:
            return made.get("keys_sha256") == keys_hash(self.keys)
        # The dataset has not been read yet. If its hash is the same, the same flags choose the same questions.
        before, now = made.get("arguments", {}), vars(self.args)
        return self.dataset is not None and all(before.get(name) == now.get(name) for name in QUESTIONS)

    def _check(self, made: dict[str, Any]) -> None:
        """Raise UserError if this command may not replace the existing file, whose manifest is `made`."""
        before, now, number = made.get("dataset"), self.dataset, made.get("pieces", 0)
        try:
            if before and now and made["settings"].get("inputs") != self.settings["inputs"]:
                refuse_other_source([before], [now])
            self.check(made)
            # If `inputs` is not a setting, the keys follow from files of earlier steps, and there may be fewer now.
            is_known = "inputs" in self.settings and self.keys is not None
            if is_known and not made.get("missing") and number > len(self.keys):
                raise UserError(
                    f"has {number} {self.unit}, but this command makes only {len(self.keys)}\n"
                    "  give another output, or --overwrite to replace it; completions are kept"
                )
        except UserError as error:
            raise UserError(f"{self.path}: {error}") from None

    def open(self) -> None:
        """Lock the file; UserError if another process is writing it, or has made it with other settings meanwhile."""
        if not self.is_shard:
            check_could_write(Path(self.path))
            self._lock = Lock(self.path)
            self._is_there()  # another process may have finished it since `is_finished`

    def close(self) -> None:
        """Unlock the file."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def missing(self) -> list[Key]:
        """Return the keys of the missing pieces, in order."""
        return [key for key in self.keys if key not in self.pieces]

    def content(self) -> Any:
        return self.collect({key: self.pieces[key] for key in self.keys if key in self.pieces})

    def load(self) -> None:
        """Add the pieces that `read` returns from the finished file; do nothing if `read` is None."""
        if self.read is not None:
            self.pieces |= self.read(read_json(self.path))

    def publish(self, device: str | None, **figures: Any) -> bool:
        """Write the file and its manifest, and return True; for a shard, which has no file, return False.

        Also return False, with a note, if the existing file has more usable pieces, and either a method's code has
        changed, or all settings are the same and a server failed: the file is kept unless --overwrite is given.
        """
        if self.is_shard:
            return False
        before = None if self.args.overwrite else manifest_of(self.path)
        made, now = (before or {"settings": {}})["settings"], self.settings
        if before and (made.get("code") != now.get("code") or (self.missing() and made == now)):
            number, usable = before.get("pieces", 0) - before.get("unusable", 0), len(self.pieces) - len(self._failed())
            self.is_kept = number > usable
        if self.is_kept:
            problem = f"kept, with its {counted(number, self.noun)}: this run gave {usable}"
            print(f"{self.path}: {problem}\n  --overwrite replaces the file", file=sys.stderr)
            return False
        manifest: dict[str, Any] = {}
        with publishing(self.path, manifest) as staged:
            write_json(staged, self.content())
            figures |= {
                "pieces": len(self.pieces),
                "keys_sha256": keys_hash(self.keys),
                "missing": len(self.missing()),
                "unusable": len(self._failed()),
                **({"dataset": self.dataset} if self.dataset else {}),
                "wall_seconds": round(time.monotonic() - self._began, 3),
            }
            manifest |= describe_run(vars(self.args), self.settings, device, **figures)
        return True

    def report_finished(self) -> None:
        """Print that the file is finished and how many pieces are unusable."""
        print(f"{self.path}: already finished, left alone")
        made = read_manifest(self.path)
        if unusable := made.get("unusable"):
            problem = f"{unusable} of {counted(made['pieces'], self.noun)} unusable"
            print(f"{self.path}: {problem}{self._again()}", file=sys.stderr)

    def report_failed(self) -> int:
        """Return the exit code, and print why pieces are unusable if at least half of the requested ones are.

        The code is 1 in that case, otherwise 0. For beam search it is always 0: a retry would write the same texts.
        """
        pieces, failed = self.pieces, self._failed()
        num_asked = sum("answered" not in piece for piece in pieces.values())
        if not failed or 2 * len(failed) < num_asked:
            return 0
        # A retry may give a usable text, but cannot change a refused or too long prompt, or likelihoods.
        may_differ = any("raw" in pieces[key] and "mean_log_probs" not in pieces[key] for key in failed)
        problem = f"{self.path}: {len(failed)} of {counted(num_asked, self.noun)} unusable"
        print(problem + (self._again() if may_differ else ""), file=sys.stderr)
        print(*self._common_reasons(failed), sep="\n", file=sys.stderr)
        print("  to use other settings, give another output or add --overwrite", file=sys.stderr)
        return 0 if "num_beams" in self.settings else 1  # beam search would write the same texts again

    def _failed(self) -> list[Key]:
        return [key for key in self.keys if key in self.pieces and is_failed(self.pieces[key])]

    def _again(self) -> str:
        """Return a message's end that says how to retry unusable pieces; empty if a retry would give the same."""
        is_greedy = self.settings.get("temperature") == 0 and vars(self.args).get("max_retries", 0) > 0
        return "" if is_greedy or "num_beams" in self.settings else "; a higher --max_retries retries them"

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
