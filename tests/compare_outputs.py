"""Check that two checkouts of this project write the same outputs, byte for byte.

  python tests/compare_outputs.py --make CHECKOUT FOLDER [--sections main,lamp]
  python tests/compare_outputs.py FOLDER OTHER_FOLDER

The first form runs tests/data/compare_outputs/commands.txt in a copy of a checkout that has .venv and demo/models. It
writes to FOLDER the outputs, a log of each command (exit code, stdout, stderr) and each section's requests to the
server: all of them, and without repetition. The second form prints a line per file, with a short diff if it differs,
and exits with 1 if any differs. Stored completions and orders are not compared; of a manifest, only the output's hash,
counts and tokens are. Make both folders with the same version of this script. Nothing is imported from a checkout: only
its commands run, on the sample data and tools beside this script.
"""

import argparse
import difflib
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from api_server import ChatServer, Reply, default_reply, running

# Outputs contain paths and the server's address, so these are the same for every checkout.
WORK = Path(tempfile.gettempdir()) / "compare_outputs"
PORT = 18437
URL = f"http://127.0.0.1:{PORT}/v1"
DATA = "tests/data/mini_lampqa"
LEFT_OUT = (".git", ".venv", "demo", "cache", "__pycache__", ".*_cache")  # of the copy
TESTS = Path(__file__).resolve().parent
INPUTS = TESTS / "data/compare_outputs"
SECONDS = 3600  # per command
AT_ONCE = max(2, os.cpu_count() or 1)  # sections: each loads models
ENVIRONMENT = {name: os.environ[name] for name in ("TMPDIR",) if name in os.environ} | {
    "PATH": f"{WORK}/.venv/bin:{os.environ['PATH']}", "HOME": str(WORK), "LC_ALL": "C.UTF-8", "COLUMNS": "100",
    "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2", "VLLM_CPU_KVCACHE_SPACE": "1",
}  # fmt: skip

# The stored form of a run may change, but not its outputs. posts.sqlite has the times of its inputs.
NOT_COMPARED = re.compile(r"\.lock$|(^|/)(completions|orders)/|/posts\.sqlite$")
MANIFEST_FIELDS = ("output_sha256", "counts", "tokens")
VARYING_TEXT = (  # of stdout and stderr, also between two runs of the same code
    (re.compile(r"(?m)^(?!(\d+)/\1 )\d+/\d+ [^,\n]*,.*\n"), ""),  # progress, a line every 30 seconds
    (re.compile(r"\b[\d.]+/(s|min|h)\b"), "RATE"),
    (re.compile(r"\b\d+:\d\d:\d\d\b"), "TIME"),
    (re.compile(r"\b[\d.]+ [GM]B free\b"), "SIZE free"),  # of a disk
)

# The categories of the sample's questions: the hub has a file for each category and split.
CATEGORIES = {"A": "Art_and_Entertainment", "L": "Lifestyle_and_Personal_Development", "S": "Society_and_Culture"}
SPLITS = {"train": "AAAAAAAALLLLLSLLSSSSSLSS", "validation": "AAALLLSSS", "test": "AAAAALLSLSSSL"}


def reply(request: dict[str, Any]) -> Reply:
    """Return an answer or a verdict by a hash of prompt and seed, so that neither order nor concurrency matters.

    Without a schema, one in five is unusable, one needs repair, and one is cut off. One of 12 questions and one of 40
    verdicts never get a usable answer, and one is refused. Answers with a plan are better in each aspect.
    """
    prompt = json.dumps(request["messages"])
    if any(words in prompt for words in ("<final_answer>", "needs_personalization", "enough_details")):
        return default_reply(request)
    drawn = hashlib.sha256(f"{prompt} {request['seed']}".encode()).hexdigest()
    number = int(drawn, 16)
    if "match_score" in prompt:
        value, rare = {"match_score": min(number // 5 % 3 + ("by plan" in prompt), 2)}, 40
    elif "better_response" in prompt:
        value, rare = {"better_response": 1 + number // 5 % 2}, 40
    elif "- score:" in prompt:
        value, rare = {"score": number // 5 % 5 / 4}, 40
    elif "Write only " in prompt:  # answers to LaMP and LongLaMP are plain text
        return Reply(("I'd say 3.", "[1]", "2", "4", f"Title {drawn[:6]} — 猫", "comedy", "")[number % 7])
    else:
        kind = "Answer by plan" if "Aspects expected" in prompt else "Answer"
        value, rare = {"personalized_answer": f"{kind} {drawn}: <b>mind</b> “this” & 猫.\nAnd \\that\\."}, 12
    of_prompt = int(hashlib.sha256(prompt.encode()).hexdigest(), 16) % rare
    if of_prompt == 1:
        return Reply("no", status=400, code="content_filter")
    if of_prompt == 0:
        return Reply("" if number % 2 else "I can't say", "stop" if number % 3 else "length")
    text = json.dumps(value, ensure_ascii=False)
    if "response_format" in request or number % 5 > 2:
        return Reply(text)
    dressed = f"Here it is:\n```json\n{text[:-1]},}}\n```\n"
    return (Reply(f"Hm, {drawn[:6]}."), Reply(dressed), Reply(text[:-9], "length"))[number % 5]


# Making


def make(checkout: Path, folder: Path, sections: list[str]) -> None:
    """Run the commands of these sections in a copy of a checkout at `WORK`, and move their outputs to `folder`."""
    if folder.exists() and not any(folder.glob("*/logs")):
        sys.exit(f"{folder}: exists, and was not made by this script")
    with open(f"{WORK}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # wait for another `--make`
        shutil.rmtree(WORK, ignore_errors=True)
        shutil.copytree(checkout, WORK, ignore=shutil.ignore_patterns(*LEFT_OUT))
        shutil.copytree(TESTS, WORK / "tests", dirs_exist_ok=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        (WORK / "demo").mkdir()
        for name in (".venv", "demo/models"):
            (WORK / name).symlink_to((checkout / name).resolve())
        write_inputs(WORK / "out")
        chains = {section: all_commands()[section] for section in sections}
        with running(ChatServer(reply, PORT)) as server, ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(run_chain, chains, chains.values()))
            write_requests(server, list(chains))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(WORK / "out", folder)
        shutil.rmtree(WORK)


def write_inputs(out: Path) -> None:
    """Write the other inputs of the commands: `INPUTS`, a key, answers, plans, human choices, a hub's files."""
    shutil.copytree(INPUTS, out)
    records = json.loads((WORK / DATA / "test.json").read_text(encoding="utf-8"))
    ids = [record["id"] for record in records]
    answers = [None, "", *(f"My <i>answer</i> {number}." for number in range(2, len(ids) - 2))]  # the last two lack
    titles = [record["rubric_aspects"][0]["aspect"] for record in records]
    plans = [[f"{one} too", "Another aspect"] if number else [] for number, one in enumerate(titles)]
    choices = ("first", "second", "tie", "second")
    files = {
        "main/mine.json": {key: [{"output": answer}] for key, answer in zip(ids, answers, strict=False)},
        "main/plans.json": {key: [{"aspects": plan}] * 2 for key, plan in zip(ids, plans, strict=True)},
        "main/human.json": {key: [choices[n % 4], choices[n % 4 if n % 3 else 2]] for n, key in enumerate(ids[1:])},
        "../openai_key.txt": "sk-study",
        "main/broken.json": [records[0], {**records[1], "profile": [{"id": "p", "text": 3}]}],
    }
    for split, letters in SPLITS.items():
        records = json.loads((WORK / DATA / f"{split}.json").read_text(encoding="utf-8"))
        pairs = list(zip(letters, records, strict=True))
        for letter, category in CATEGORIES.items():
            its = [record for its_letter, record in pairs if its_letter == letter]
            files[f"study/hub/{category}/{split}-00000-of-00001.json"] = its
    for name, content in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        (out / name).write_text(text, encoding="utf-8")


def all_commands() -> dict[str, list[list[str]]]:
    return read_commands((INPUTS / "commands.txt").read_text(encoding="utf-8"))


def read_commands(text: str) -> dict[str, list[list[str]]]:
    """Return the words of each command, by section."""
    variables, chains, section = {"DATA": DATA, "URL": URL}, {}, ""
    for line in text.replace("\n    ", " ").splitlines():
        if re.fullmatch(r"\[\w+\]", line):
            section = line.strip("[]")
            variables["O"] = f"out/{section}"
        elif not section and "=" in line:
            name, _, variables[name] = line.partition("=")
        elif line and not line.startswith("#"):
            while "$" in line:  # a variable's value may contain other variables
                line = string.Template(line).substitute(variables)
            chains.setdefault(section, []).append(shlex.split(line, comments=True))
    return chains


def write_requests(server: ChatServer, sections: list[str]) -> None:
    """Write the requests to the server by section: sorted lines, because their order is random; then each line once.

    A section's API key is its name.
    """
    asked: dict[str, list[str]] = {section: [] for section in sections}
    for key, path, body in zip(server.keys, server.paths, server.requests, strict=True):
        asked[key.removeprefix("sk-")].append(f"{path} {json.dumps(body, sort_keys=True)}")
    for section, lines in asked.items():
        for name, its in (("requests", lines), ("requests_once", set(lines))):
            (WORK / f"out/{section}/{name}.txt").write_text("\n".join(sorted(its)), encoding="utf-8")


def run_chain(name: str, commands: list[list[str]]) -> None:
    """Run commands one after the other, each with a log of its output."""
    (WORK / f"out/{name}/logs").mkdir(parents=True, exist_ok=True)
    (WORK / f"out/{name}/key.txt").write_text(f"sk-{name}")
    for number, words in enumerate(commands, 1):
        started = time.monotonic()
        done = subprocess.run(
            ["env", *words] if "bash" in words else ["python", *words], cwd=WORK, env=ENVIRONMENT,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        texts = f"$ {shlex.join(words)}", f"exit code {done.returncode}", "stdout", done.stdout, "stderr", done.stderr
        script = words[-1] if "bash" in words else words[0]
        log = f"out/{name}/logs/{number:03}_{Path(script).stem}.txt"
        (WORK / log).write_text("\n".join(texts), encoding="utf-8")
        print(f"{log}: exit code {done.returncode}, {time.monotonic() - started:.0f} s", flush=True)


# Comparing


def compare(folder: Path, other: Path) -> int:
    """Print a line per file, and return 1 if any differs, else 0."""
    found = [compared_files(one) for one in (folder, other)]
    differing = 0
    for name in sorted(set.union(*found)):
        if missing := [str(one) for one, names in zip((folder, other), found, strict=True) if name not in names]:
            problem = [f"not in {missing[0]}"]
        else:
            problem = list(describe_difference(comparable(folder / name), comparable(other / name)))
        differing += bool(problem)
        print("\n      ".join([f"{'DIFFERS' if problem else 'same'} {name}", *problem]))
    print(f"{len(set.union(*found))} files, {differing} differ")
    return 1 if differing else 0


def compared_files(folder: Path) -> set[str]:
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return {name for name in names if not NOT_COMPARED.search(name)}


def comparable(path: Path) -> bytes:
    """Return a file's content without the parts that differ between any two runs."""
    content = path.read_bytes()
    if path.parent.name == "logs":
        text = content.decode()
        for pattern, replacement in VARYING_TEXT:
            text = pattern.sub(replacement, text)
        return text.encode()
    if path.name.endswith(".manifest.json"):
        fields = {name: value for name, value in json.loads(content).items() if name in MANIFEST_FIELDS}
        return json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False).encode()
    return content


def describe_difference(content: bytes, other: bytes, most: int = 12, width: int = 150) -> Iterator[str]:
    """Return the first differing lines, of long ones the part where they differ; empty if there are none."""
    if content == other:
        return
    try:
        texts = [one.decode().splitlines() for one in (content, other)]
    except UnicodeDecodeError:
        yield f"{len(content)} bytes, and {len(other)} others"
        return
    lines = [line for line in difflib.unified_diff(*texts, n=0, lineterm="") if line[:3] not in ("---", "+++", "@@ ")]
    pairs = zip(*(next((line[1:] for line in lines if line[0] == sign), "") for sign in "-+"), strict=False)
    alike = next((number for number, (one, another) in enumerate(pairs) if one != another), 0)
    for line in lines[:most]:
        start = max(0, alike - width // 3) if len(line) > width else 0
        yield f"{line[0]} {'…' if start else ''}{line[1:][start : start + width]}"
    if len(lines) > most:
        yield f"and {len(lines) - most} more lines"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", action="store_true", help="run the commands instead of comparing (off)")
    parser.add_argument("first", type=Path, metavar="FOLDER", help="outputs, or with --make a checkout")
    parser.add_argument("second", type=Path, metavar="OTHER_FOLDER", help="outputs, with --make where they go")
    parser.add_argument("--sections", type=lambda names: names.split(","), default=list(all_commands()), metavar="A,B",
                        help="run only these sections, with --make (default: all)")  # fmt: skip
    args = parser.parse_args()
    if unknown := set(args.sections) - set(all_commands()):
        parser.error(f"no section is called {min(unknown)}; there are {', '.join(all_commands())}")
    for path in [args.first] if args.make else [args.first, args.second]:
        if not path.is_dir():
            parser.error(f"{path}: no such folder")
    if args.make:
        make(args.first, args.second, args.sections)
        return 0
    return compare(args.first, args.second)


if __name__ == "__main__":
    sys.exit(main())
