"""--trace: write every call and search behind an output's pieces to `<output>.trace.jsonl`.

A line is one call: `{"id", "sample", "number", "role", "messages", "text", "value", ...}`, or one search: `{"id",
"sample", "number", "search", "ids"}`, with `"no_shared_words": true` if the search compares words and no post shares a
word with the query. `sample` is the number of the answer to the question, and `number` the number of the call or search
for this answer. Answers are in the output's order, and their lines in the order of the method's calls. `temperature` is
the one at which the text was generated, or null for the model's default. A call that several records share was
requested once; each of these records has a line for it, with `"shared": true`.
"""

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from utils.base.errors import UserError
from utils.base.json_files import read_json, read_lines
from utils.base.made import Key, MadeFile, prepare_derived
from utils.base.manifest import describe_run, file_hash, publishing, settings_of
from utils.base.writing import open_whole, write_line
from utils.benchmarks.readers import writable
from utils.runs.ask import Step, Steps

SCRIPT = "utils/runs/trace.py"
# Fields of a call's record that are copied to its line, if the record has them.
FIELDS = ("reason", "reasoning", "finish_reason", "truncated", "temperature", "attempts", "prompt_tokens",
          "completion_tokens", "reasoning_tokens")  # fmt: skip

LONGEST = 1_000  # most characters of a text in `read_turns`; longer texts are cut in the middle

TRACE = ".trace.jsonl"  # the end of a trace's file name

Line = dict[str, Any]


def trace_path(output: str) -> Path:
    return Path(f"{output}{TRACE}")


def has_trace(output: MadeFile) -> bool:
    """Return whether a finished output has its trace; always True for a shard, which has none."""
    path = trace_path(output.path)
    return output.is_shard or (path.exists() and settings_of(path).get("trace_of") == file_hash(output.path))


def check_trace(output: MadeFile) -> None:
    """Raise UserError if the trace cannot be written, or would replace a file that is not a trace."""
    prepare_derived([trace_path(output.path)], SCRIPT, output.overwrite)


class Trace:
    """The lines of an output's trace, kept in a temporary file until `publish`."""

    def __init__(self, output: MadeFile):
        self._output, self._places = output, dict[Key, tuple[int, int]]()
        self._file = tempfile.TemporaryFile(buffering=0, dir=Path(output.path).absolute().parent)  # noqa: SIM115

    def add(self, key: Key, steps: Steps) -> None:
        """Add the lines of a record that has ended with a piece."""
        lines = (json.dumps(line, ensure_ascii=False, default=str, skipkeys=True) for line in lines_of(key, steps))
        text = "".join(f"{writable(line)}\n" for line in lines).encode()
        start = self._file.seek(0, 2)
        write_line(self._file, text, trace_path(self._output.path))
        self._places[key] = start, len(text)

    def publish(self) -> None:
        """Write the trace, with the output's hash in its manifest.

        UserError if the method now makes other pieces than the finished output has.
        """
        path, output = trace_path(self._output.path), self._output
        if output.finished and json.loads(json.dumps(output.content())) != read_json(output.path):
            raise UserError(
                f"{output.path}: the method now makes other {output.unit}\n  add --overwrite to replace the file"
            )
        settings = {"script": SCRIPT, "trace_of": file_hash(output.path)}
        with (
            publishing(path, describe_run(vars(output.args), settings, None)) as staged,
            open_whole(staged, "wb") as file,
        ):
            for key in output.keys:
                if key in self._places:
                    start, length = self._places[key]
                    self._file.seek(start)
                    file.write(self._file.read(length))
        self._file.close()
        print(f"{path}: calls of {len(self._places)} {output.unit}")


def lines_of(key: Key, steps: Steps) -> Iterator[Line]:
    """Yield a record's lines, one for each call and search, in the order in which they were made."""
    question_id, *sample = key
    for number, step in steps.finished:
        line = {"id": question_id, "sample": sample[0] if sample else 0, "number": number}
        if isinstance(step, Step):
            record = step.record
            line |= {"role": step.role, "messages": step.messages, "text": record.get("raw"), "value": record["value"]}
            line |= ({"stop": step.stop} if step.stop else {}) | ({} if step.shared is None else {"shared": True})
            yield line | {name: record[name] for name in FIELDS if name in record}
        else:
            yield line | {("search" if name == "query" else name): value for name, value in step.line.items()}


def read_trace(output: str) -> Iterator[Line]:
    """Yield the lines of an output's trace; UserError if there is no trace, or the output has changed since."""
    path = trace_path(output)
    if not path.is_file():
        raise UserError(f"{path}: no such file; run the command that wrote {output} again, with --trace")
    if settings_of(path).get("trace_of") != file_hash(output):
        problem = f"not the trace of the current {output}"
        raise UserError(f"{path}: {problem}\n  run that file's command again, with --trace, or delete this trace")
    with path.open("rb") as file:
        yield from map(json.loads, read_lines(file))


def read_turns(output: str) -> dict[str, str]:
    """Return, by question id, a text that lists the calls and searches of the first answer; empty without a trace.

    For each call, the text has the last message and the model's reply, both shortened.
    """
    turns: dict[str, list[str]] = defaultdict(list)
    for line in read_trace(output) if trace_path(output).exists() else ():
        if line["sample"] == 0:
            turns[line["id"]].append(describe_step(line))
    return {question_id: "\n\n".join(steps) for question_id, steps in turns.items()}


def describe_step(line: Line) -> str:
    if "search" in line:
        ids = ", ".join(map(str, line["ids"])) or "none"
        ids += " (in the file's order: no post has a word of the query)" if line.get("no_shared_words") else ""
        return f"{line['number'] + 1}. search: {line['search']}\n   ids: {ids}"
    last = line["messages"][-1] if line["messages"] else {"role": "user", "content": ""}
    reply = line["value"] if line["text"] is None else line["text"]  # None: chosen by likelihood
    reply = line.get("reason") if reply is None else _shortened(str(reply))
    return f"{line['number'] + 1}. {line['role']}\n[{last['role']}] {_shortened(last['content'])}\n[reply] {reply}"


def _shortened(text: str) -> str:
    left = len(text) - LONGEST
    return text if left <= 0 else f"{text[: LONGEST // 2]} … ({left:,} characters) … {text[-LONGEST // 2 :]}"
