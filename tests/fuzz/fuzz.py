"""Damaged input for every reader. Case N depends only on N, so a failing case can be run again by its number.

  make fuzz               all cases, in ten minutes or more
  make fuzz CASE=1234     one case, with the command's full output

A case copies a folder of good input, damages one file of it, and runs one command in a process that can be killed. A
command may refuse the file (exit code 2, one to three lines that name a file, nothing changed) or accept it (exit code
0 or 1). Everything else is a finding: a traceback, a hang, another exit code, a changed output although the command
refused, an output that is not JSON, and a silent change. In a silent change, the command accepted a file

  - with the same content (a byte order mark, a link), or
  - with a value dropped, null, NaN or of another type, or not a file of its kind any more,

and gave another output or asked a model more often, with no new line on stdout or stderr or in a table's or report's
notes, and no changed count. A different output is right if a value was replaced by another of its type, if the damaged
value is copied and nothing else differs, and for optional fields (OPTIONAL in readers.py).
"""

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from api_server import ChatServer, serve
from damages import Damage, damage, read, strict_json
from readers import READERS, Reader, is_optional, prepare
from test_bad_input import arguments_of, snapshot
from zygote import LAUNCHED, Run, Zygote

SECONDS = 120  # a run that takes longer hangs
# Files there need not be written to a disk, which takes longer than most runs.
MEMORY_DISK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
MEMORY = 2 << 30  # bytes that a run may take: it is to stop by itself where a file has no end
MODULES = (  # that all runs have at hand; without torch, beside which a run starts five times as slowly
    "openai.resources.chat", "anyio._backends._asyncio", "matplotlib.pyplot", "scipy.stats", "lxml.etree", "bm25s",
    *sorted({reader.command.split()[0].removesuffix(".py").replace("/", ".") for reader in READERS}),
)  # fmt: skip
MODELS = (
    *MODULES, "retrieval.encoder", "transformers.models.auto", "transformers.models.bert.modeling_bert",
    "transformers.models.qwen2.modeling_qwen2", "transformers.models.t5.modeling_t5", "utils.models.base_model",
    "utils.generation.beams",
)  # fmt: skip
# What every run would look up of this machine takes longer than most runs.
SETUP = f"""
import resource
from utils.base import manifest
manifest.versions, manifest._git_commit = dict, lambda: None
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {MEMORY}, used + {MEMORY}))
"""
SAVE_MODELS = """
import os, pathlib, tiny_chat, tiny_encoder, tiny_t5
tiny_encoder.save_tiny_encoder(pathlib.Path("encoder"))
tiny_chat.save_tiny_chat(pathlib.Path("chat"))
tiny_t5.save_tiny_t5(pathlib.Path("t5"))
os._exit(0)
"""
# Outputs that tell of the run itself, or have no bytes of their own.
ASIDE = re.compile(
    r"\.(manifest\.json|lock|tmp|pdf|png|sqlite\S*)$|(^|/)counts\.json$|(^|/)(completions|orders|store)/"
)
VARYING = re.compile(rb"[0-9a-f]{64}|\b[\d.]+ ?/(s|min|h)\b|\b\d+:\d\d:\d\d\b|\"wall_seconds\": [\d.e-]+|\r(?=\n)|\n\Z")


@dataclass(frozen=True)
class Ran:
    """A finished run: its exit code (None if it hung), messages, files, and number of requests to a model."""

    code: int | None
    out: str
    err: str
    outputs: dict[str, bytes]
    counts: str
    asked: int
    changed: list[str]  # files that were there and are other ones now

    def lines(self) -> set[str]:
        """Return its messages, also notes of a table or report, with numbers masked, since figures are not warnings."""
        notes = [content.decode() for name, content in self.outputs.items() if name.endswith(".md")]
        for content in self.outputs.values():
            notes += re.findall(r'"notes":\[.*?\]', content.decode(errors="replace"))
        return {re.sub(r"[\d.]+", "#", line) for text in (self.out, self.err, *notes) for line in text.splitlines()}


@dataclass(frozen=True)
class Case:
    """A finished case; `finding` describes its fault."""

    number: int
    reader: Reader
    damage: Damage
    ran: Ran
    finding: str | None


class Fuzz:
    """The prepared folder, a working copy, the server, and two processes whose forks are the runs."""

    def __init__(self, folder: Path, server: ChatServer, zygote: Zygote, loading: Zygote):
        """`loading` runs the commands that load a model from a folder."""
        self._whole, self._work, self._server = folder / "whole", folder / "work", server
        self._zygotes = {False: zygote, True: loading}
        self._work.mkdir()
        # Where torch is loaded: here it would take seconds.
        words = {"live_in": [str(self._work), dict(os.environ)], "do": SAVE_MODELS}
        assert loading.run("utils/make_table.py", [], **words).wait() == 0
        prepare(self._work, lambda command: self._start(command).wait())
        shutil.copytree(self._work, self._whole)
        self._others = sorted(path for path in self._whole.rglob("*.json*") if path.is_file())
        self._good = snapshot(self._work)

    def _start(self, command: str) -> Run:
        script, words = command.split()[0], arguments_of(command, self._server.url)
        return self._zygotes[" ./" in command].start(
            script, words, live_in=[str(self._work), dict(os.environ)], do=SETUP
        )

    def _run(self, command: str) -> Ran:
        before, asked = snapshot(self._work), len(self._server.requests)
        run = self._start(command)
        try:
            code = run.wait(SECONDS)
        except TimeoutError:
            code = None
        after = snapshot(self._work)
        names = {name: os.path.relpath(name, self._work) for name in after if after[name] != before.get(name)}
        made = {short: after[name] for name, short in names.items() if isinstance(after[name], bytes)}
        outputs = {name: VARYING.sub(b"", one) for name, one in made.items() if not ASIDE.search(name)}
        outputs["stdout"] = VARYING.sub(b"", run.printed.encode())
        counts = sorted(str(re.findall(rb'"(?:num_|count)[^"]*": [^,{]*', content)) for content in made.values())
        counts += [str(content) for name, content in made.items() if name.endswith("counts.json")]
        lost = [name for name, content in before.items() if after.get(name) != content]
        asked = len(self._server.requests) - asked
        self._restore(after)
        return Ran(code, run.printed, run.errors, outputs, str(counts), asked, lost)

    def _restore(self, found: dict[str, str | bytes | None]) -> None:
        """Restore the work folder; `found` are its current files."""
        for name in found:
            if name not in self._good or found[name] != self._good[name]:
                remove(Path(name))
        for name in self._good:
            if found.get(name, "") != self._good[name]:
                shutil.copy2(self._whole / os.path.relpath(name, self._work), name)

    @cache  # noqa: B019 (one object a process)
    def undamaged(self, command: str) -> Ran:
        ran = self._run(command)
        assert ran.code in (0, 1), f"{command}: {ran.err}"
        return ran

    def run(self, number: int) -> Case:
        """Run the case with this number."""
        reader, dice = READERS[number % len(READERS)], random.Random(number)
        good = self.undamaged(reader.command)
        (path,) = self._work.glob(reader.file)
        before = read(path, reader.kind)
        done = damage(path, reader.kind, dice, self._others)
        is_same = before == read(path, reader.kind)
        ran = self._run(reader.command)
        shutil.copy2(self._whole / path.relative_to(self._work), path)  # of the same bytes the date may be another
        return Case(number, reader, done, ran, judge(reader, path.name, done, is_same, ran, good))


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def judge(reader: Reader, name: str, done: Damage, is_same: bool, ran: Ran, good: Ran) -> str | None:
    """Return the fault of a run, None without one; `good` is the run with the original file."""
    if ran.code is None:
        return f"runs for more than {SECONDS} s"
    if "Traceback" in ran.err or ran.code not in (0, 1, 2):
        errors = re.findall(r"(?m)^(?:\w+\.)*\w+(?:Error|Exception|Interrupt)\b.*", ran.err)
        return f"exit code {ran.code}: {''.join(errors[-1:])[:200]}"
    if ran.code == 2:
        return judge_refusal(reader, name, done, ran)
    for output, content in ran.outputs.items():
        if output.endswith(".json") and output != reader.file and not is_json(content):
            return f"{output} is not JSON"
    if ran.outputs == good.outputs and ran.asked <= good.asked:
        return None
    differing = [one for one in ran.outputs | good.outputs if ran.outputs.get(one) != good.outputs.get(one)]
    change = f"asked {ran.asked} times, not {good.asked}; other outputs: {', '.join(differing)}"
    if ran.lines() - good.lines() or ran.counts != good.counts:
        return None
    if is_same:
        return f"same content: {change}"
    optional = is_optional(reader, done.name, done.place)
    return None if done.legitimate or optional or is_carried(done, ran, good) else f"silent: {change}"


def judge_refusal(reader: Reader, name: str, done: Damage, ran: Ran) -> str | None:
    if ran.changed:
        return f"refused, and changed: {', '.join(map(os.path.basename, ran.changed))}"
    lines = re.split(r"(?m)^(?=error: )", ran.err)[-1].splitlines()
    words = {Path(word).name for word in reader.command.split() if not word.startswith("-") and len(word) > 3}
    files = {name.partition(".")[0] if reader.kind == "binary" else name, *words, "--"}
    if "error: " not in ran.err or not 1 <= len(lines) <= 3 or max(map(len, lines)) > 2000:
        return f"refused in {len(lines)} lines: {ran.err[:200]}"
    is_named = any(file in lines[0] for file in files) or is_optional(reader, done.name, done.place)
    # Another file may name a third one, which is not beside it.
    return None if is_named or done.name == "another file" else f"refused, and no file is named: {lines[0][:200]}"


def is_carried(done: Damage, ran: Ran, good: Ran) -> bool:
    """Return whether the outputs differ only in the damaged field, which the command copies without using it."""
    field = next((name for name in reversed(done.place.split(".")) if not name.isdigit()), "")
    if field == "" or done.name == "twice" or ran.asked > good.asked or ran.outputs.keys() != good.outputs.keys():
        return False
    return all(without(field, ran.outputs[name]) == without(field, good.outputs[name]) for name in good.outputs)


def without(field: str, content: bytes) -> Any:
    """Return an output's content without all fields of this name, if it is JSON."""
    text = content.decode(errors="replace")
    try:
        return json.loads(text, object_hook=lambda value: {name: value[name] for name in value if name != field})
    except ValueError:
        return text


def is_json(content: bytes) -> bool:
    try:
        strict_json(content.decode())
    except ValueError:
        return False
    return True


@contextmanager
def open_fuzz() -> Iterator[Fuzz]:
    home = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **LAUNCHED, "SSL_CERT_DIR": os.path.dirname(__file__)}
    # As in conftest.py; the runs have it too, and tests that follow in this process don't.
    with mock.patch.dict(os.environ, home), tempfile.TemporaryDirectory(dir=MEMORY_DISK) as name, serve() as server:
        (folder := Path(name) / "zygote").mkdir()
        zygotes = [Zygote(folder, *modules) for modules in (MODULES, MODELS)]
        try:
            yield Fuzz(Path(name), server, *zygotes)
        finally:
            for zygote in zygotes:
                zygote.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=6600, help="how many to run (%(default)s)")
    parser.add_argument("--case", type=int, help="run this one alone, and show all it says")
    args = parser.parse_args()
    numbers = range(args.cases) if args.case is None else [args.case]
    counts: dict[str, Counter[str]] = {}
    findings = []
    with open_fuzz() as fuzz:
        for number in numbers:
            case = fuzz.run(number)
            counts.setdefault(case.reader.name, Counter())[outcome(case)] += 1
            if case.finding or args.case is not None:
                findings.append(case)
                done = f"{case.reader.name} | {case.damage.name} {case.damage.place}"
                print(f"{number} {outcome(case)} | {done} | {case.finding}", flush=True)
    if args.case is not None:
        print(findings[0].reader.command, findings[0].ran.out, findings[0].ran.err, sep="\n")
    for name, its in sorted(counts.items()):
        print(f"{name}: {its.total()} cases, " + ", ".join(f"{count} {what}" for what, count in sorted(its.items())))
    total = sum(counts.values(), Counter())
    print(f"{total.total()} cases, {len(counts)} readers: {dict(total)}")
    return int(total["finding"] > 0)


def outcome(case: Case) -> str:
    if case.finding:
        return "finding"
    return "refused" if case.ran.code == 2 else "accepted"


if __name__ == "__main__":
    sys.exit(main())
