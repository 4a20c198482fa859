"""gpu_report.md: why checks failed, each check with its figures, and the machine; to be pasted into an issue.

gpu_report.tar.gz beside it has every command's whole output, gpu_report/NN.log.
"""

import re
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_machine import describe_machine

ENDS = 15, 25  # lines of what a failed check said: the first and the last ones
OVER = "the time was over"  # why a check was skipped that was not reached
CAUSES = 5  # that come first in the report
WIDTH = 300  # characters of a cause
# What stands in front of a line by vLLM ("(EngineCore pid=12) ERROR 11-23 18:30:00 [core.py:9] "), torch and pytest.
BEFORE = re.compile(r"(\((?:\w+ )*\w*pid=\d+\) *|ERROR \d\d-\d\d [\d:]+ \[[^\]]*\] ?|\[rank\d+\]: ?|E {2,})*")
EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Failed|Timeout|Refused|Unreachable)(:|$)")
OTHERS = re.compile(
    r"error: |\S+: (fatal )?error: |FATAL|Fatal Python error|Segmentation fault|CUDA error|Killed$"
    r"|\S+( \[\d+\])? NCCL WARN"
)
SECOND_HAND = ("Engine core initialization failed", "vLLM's engine process died", "EngineDeadError")  # of a cause above


@dataclass(eq=False)
class Check:
    """One check.

    Attributes:
        result: "pass", "fail" or "skip".
        reason: why it was skipped, or all that a failure has said.
        figures: what was measured, also by a check that failed afterwards.
        logs: the files of what its commands printed.
    """

    name: str
    result: str = "pass"
    reason: str = ""
    figures: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    seconds: float = 0.0


def describe_check(name: str) -> str:
    """A test's name as a line of words: `test_a_b[c]` is `a b: c`."""
    test, _, case = name.removeprefix("test_").partition("[")
    return test.replace("_", " ") + (f": {case.removesuffix(']')}" if case else "")


def find_cause(text: str) -> str:
    """The first line of an output that names an error, without what processes put in front; else its last line.

    In a chain of tracebacks the first exception is what caused the others. What says itself that it is the cause, is.
    """
    if text.startswith("cause: "):
        return text.partition("\n")[0].removeprefix("cause: ")
    lines = [line[BEFORE.match(line).end() :].rstrip() for line in text.splitlines()]
    named = [line for line in lines if EXCEPTION.match(line) or OTHERS.match(line)]
    firsthand = [line for line in named if not any(words in line for words in SECOND_HAND)]
    left = [line for line in lines if line]
    return ((firsthand or named or left[-1:] or ["nothing was printed"])[0])[:WIDTH]


def both_ends(text: str) -> list[str]:
    """The first and the last lines of a text, and how many were left out."""
    lines, (first, last) = text.rstrip().splitlines(), ENDS
    if len(lines) <= first + last:
        return lines
    return [*lines[:first], f"[... {len(lines) - first - last} lines ...]", *lines[-last:]]


def make_report(checks: list[Check], left: list[str], machine: dict[str, str], texts: dict[str, str]) -> str:
    """The report in Markdown.

    Args:
        checks: those that have run, or were skipped.
        left: names of those that were not reached.
        machine: a table, a row an item.
        texts: what programs say of the machine, by the program.
    """
    counts = {result: sum(check.result == result for check in checks) for result in ("pass", "fail", "skip")}
    lines = [
        "# GPU report",
        "",
        f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped, {len(left)} not reached, "
        f"in {sum(check.seconds for check in checks) / 60:.1f} minutes. Whole outputs: gpu_report.tar.gz",
        *list_causes(checks),
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {cell(text)} |" for name, text in machine.items()),
        "",
        "| check | figures | result | seconds | logs |",
        "|---|---|---|---:|---|",
    ]
    for check in checks:
        result = f"skip: {check.reason}" if check.result == "skip" else check.result
        figures, logs = cell("; ".join(check.figures)), " ".join(check.logs)
        lines.append(f"| {check.name} | {figures} | {cell(result)} | {check.seconds:.0f} | {logs} |")
    if left:
        lines += ["", f"Not reached: {'; '.join(left)}."]
    for check in checks:
        if check.result == "fail":
            lines += ["", f"**{check.name}**", "", "```", *both_ends(check.reason), "```"]
    for name, text in texts.items():
        lines += ["", f"**{name}**", "", "```", *text.rstrip().splitlines(), "```"]
    return "\n".join(lines) + "\n"


def list_causes(checks: list[Check]) -> list[str]:
    """A line for each cause of failures, with the checks that it failed."""
    failed: dict[str, list[Check]] = {}
    for check in checks:
        if check.result == "fail":
            failed.setdefault(find_cause(check.reason), []).append(check)
    lines = []
    for cause, its in list(failed.items())[:CAUSES]:
        more = f" and {len(its) - 1} more" if len(its) > 1 else ""
        logs = "".join(f", {log}" for log in its[0].logs[-1:])
        lines.append(f"- `{cause.replace('`', chr(39))}` ({its[0].name}{logs}{more})")
    return lines + ([f"- and {len(failed) - CAUSES} other causes"] if len(failed) > CAUSES else [])


def cell(text: str) -> str:
    """A text that stays within its cell."""
    return " ".join(text.split()).replace("|", "\\|")


class Reporter:
    """As a plugin of pytest: writes the report anew after each check, so that it is whole whenever the run ends."""

    def __init__(self, folder: Path, device: str, items: list[Any]):
        self.folder = folder  # of the logs; the report and the archive are named after it
        self._path = folder.with_name(f"{folder.name}.md")
        self._archive = folder.with_name(f"{folder.name}.tar.gz")
        self._machine, self._texts = describe_machine(device)
        self._checks = {item.nodeid: Check(describe_check(item.name)) for item in items}
        self._done: list[Check] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        check = self._checks.get(report.nodeid)
        if check is None:
            return
        check.seconds += report.duration
        if report.skipped and report.longrepr[2].endswith(OVER):
            check.result = "left"
        elif report.skipped:
            check.result, check.reason = "skip", report.longrepr[2].removeprefix("Skipped: ")
        elif report.failed:
            check.result, check.reason = "fail", report.longreprtext
        if report.when == "teardown" and check.result != "left":
            for name, values in (("figure", check.figures), ("log", check.logs)):
                values += [text for of, text in report.user_properties if of == name]
            self._done.append(check)
            self._write()

    def _write(self) -> None:
        left = [check.name for check in self._checks.values() if check not in self._done]
        self._path.write_text(make_report(self._done, left, self._machine, self._texts), encoding="utf-8")
        with tarfile.open(self._archive, "w:gz") as archive:
            archive.add(self._path, self._path.name)
            if self.folder.is_dir():
                archive.add(self.folder, self.folder.name)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_line(f"the report is {self._path}; attach {self._archive} to an issue")
