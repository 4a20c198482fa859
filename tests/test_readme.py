"""Every command of README and docs is accepted by its script: a shell parses it, and only the script is not run."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from api_server import serve

from utils import batch
from utils.benchmarks.lampqa.task import TASK
from utils.data.datasets import read_dataset
from utils.generation.chat import VERDICT_TOKENS
from utils.tables.paper_numbers import read_paper

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = "\n".join([README, *(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("docs/*.md")))])
BLOCKS = re.findall(r"```shell\n(.*?)```", PAGES, re.DOTALL)
COMMANDS = [block for block in BLOCKS if re.search(r"^ *(python|accelerate) (?!tests/)", block, re.MULTILINE)]
LINKED = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *ROOT.glob("prompts/*.md")]
VARIABLES = "".join(block for block in BLOCKS if block.startswith("DATA=data"))


def commands_of(block: str, variables: str = VARIABLES) -> list[list[str]]:
    """Return the words of each command as a shell expands them: variables, loops, joined lines, quotes.

    The shell finds no programs, so a block that would run another one fails here.
    """
    block = re.sub(r"^accelerate launch --multi_gpu --num_processes \d+ ", "python ", block, flags=re.MULTILINE)
    script = f"{variables}\ngit() {{ :; }}\npython() {{ printf '%s\\0' \"$@\"; printf '\\1'; }}\n{block}"
    done = subprocess.run(
        ["/bin/sh", "-eu", "-c", script], capture_output=True, text=True, check=True, env={"PATH": ""}
    )
    found = [command.rstrip("\0").split("\0") for command in done.stdout.rstrip("\1").split("\1")]
    # utils/batch.py and utils/show_answers.py take a command
    starts = [next((place for place, word in enumerate(words) if word in batch.COMMANDS), 0) for words in found]
    return [words[start:] for words, start in zip(found, starts, strict=True)]


def parser_of(script: str):
    spec = importlib.util.spec_from_file_location(Path(script).stem, ROOT / script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build_parser()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.split()[1:4]))
def test_the_script_accepts_the_command(command):
    assert not command.rstrip().endswith("\\"), "a dangling backslash swallows the next line pasted"
    for script, *arguments in commands_of(command):
        if script == "mine.py":  # the README's own example, which a test below runs
            continue
        if arguments != ["--help"]:
            parser_of(script).parse_args(arguments)


@pytest.mark.parametrize("block", COMMANDS, ids=lambda command: " ".join(command.split()[1:4]))
def test_a_repeated_block_gives_the_same_commands(block):
    """A variable that is set from itself must not grow, as in OUT=$OUT/own."""
    once = commands_of(block)
    assert commands_of(f"{block}\n{block}") == once * 2


@pytest.mark.parametrize(("demo", "least"), [("lamp", 21), ("personamem", 8)])
def test_demo_commands_are_valid(demo, least, tmp_path):
    words, stand_in = tmp_path / "words", tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\n{{ printf '%s\\0' \"$@\"; printf '\\1'; }} >> {words}\n")
    stand_in.chmod(0o755)
    subprocess.run(
        ["sh", f"utils/demo/{demo}.sh"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHON": str(stand_in)},
    )
    commands = [command.rstrip("\0").split("\0") for command in words.read_text().rstrip("\1").split("\1")]
    for script, *arguments in commands:
        parser_of(script).parse_args(arguments)
    assert len(commands) >= least


def test_every_script_has_a_command():
    folders = (ROOT, ROOT / "retrieval", ROOT / "utils")
    scripts = {str(path.relative_to(ROOT)) for folder in folders for path in folder.glob("*.py")
               if "def build_parser" in path.read_text(encoding="utf-8")}  # fmt: skip
    shown = {script for command in COMMANDS for script, *_ in commands_of(command)}
    assert scripts - {"utils/prepare_demo_models.py"} == shown  # `make models` runs that one


def test_the_sample_replaces_the_dataset(tmp_path):
    (block,) = (block for block in BLOCKS if block.startswith("DATA=demo/"))
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    shown = 'echo "$DATA/$SPLIT.json" "$DATA"/*_train.json "$DATA"/*_validation.json "$DATA"/*_test.json "$KEY"'
    script = f"{VARIABLES}\npython() {{ echo; }}\n{block}\nwait\n{shown}"
    done = subprocess.run(["sh", "-eu", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    *files, key = done.stdout.split()
    assert len({*files}) == 3 and all(read_dataset(tmp_path / path) for path in files)
    assert (tmp_path / key).read_text().strip()


def test_flags_that_save_time_come_before_the_sample_and_are_accepted():
    before = README.partition("DATA=demo/")[0].rpartition("```\n")[2]
    assert "over an hour" in before
    flags = dict(zip(("baselines.py", "planpers.py", "evaluate_responses.py", "train_planner.py"),
                     re.findall("`(--[^`]+)`", before), strict=True))  # fmt: skip
    commands = {words[0]: words for block in reversed(COMMANDS) if block in README for words in commands_of(block)}
    parsed = {name: parser_of(name).parse_args([*commands[name][1:], *its.split()]) for name, its in flags.items()}
    assert parsed["train_planner.py"].eval_generate == 0  # generated plans take most of its time


def test_api_commands_work_with_the_mock_server(tmp_path):
    (sample,) = (block for block in BLOCKS if block.startswith("DATA=demo/"))
    found = re.findall(
        r"^python (?:.*\\\n)*.*\n", "\n".join(re.findall(r"```shell\n(.*?)```", README, re.DOTALL)), re.MULTILINE
    )
    commands = [command for command in found if "--openai" in command]
    assert [command.split()[1] for command in commands] == ["baselines.py", "evaluate_responses.py"]
    for path in ROOT.iterdir():
        if path.name != "demo":
            (tmp_path / path.name).symlink_to(path)
    with serve() as server:
        sample = sample.replace("http://127.0.0.1:8000/v1", server.url).replace("python tests/api_server.py", ": ")
        script = f'{VARIABLES}\npython() {{ {sys.executable} "$@"; }}\n{sample}\n{"".join(commands)}'
        subprocess.run(["sh", "-eu", "-c", script], cwd=tmp_path, check=True, capture_output=True)
        assert len(server.requests) > 80
        assert {request["max_tokens"] for request in server.requests} == {2048, VERDICT_TOKENS}  # by default
    scores = json.loads((tmp_path / "demo/try/none_api_scores.json").read_text())
    assert (scores["num_questions"], scores["num_unscored"]) == (13, 0)


def test_it_prints_the_papers_table_2():
    rows = re.findall(r"^\| ([^|]+) \| ([.\d ]+) \| ([.\d ]+) \| ([.\d ]+) \|$", README, re.MULTILINE)
    for column, model in enumerate(("Gemma 2 9B", "Qwen 2.5 7B", "GPT-4o-mini"), 1):
        paper = read_paper(TASK, "aspect", model, "2", ["PlanPers"])
        assert [row[0] for row in rows] == paper.methods
        printed = [float(score) for row in rows for score in row[column].split()]
        assert printed == list(paper.scores.values())


def test_the_readme_fits_a_page():
    assert README.count("\n") <= 230


def anchors_of(page: Path) -> set[str]:
    """Return GitHub's anchors for a page's headings: lower case, no punctuation, a dash for each space."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = [title.strip().lower() for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    anchors = {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}
    assert len(anchors) == len(titles), f"{page}: two headings of one name"
    return anchors


def links_of(page: Path) -> list[tuple[Path, str]]:
    """Return the file and the anchor, if any, of each link within this repository."""
    text = page.read_text(encoding="utf-8")
    links = [link.partition("#") for link in re.findall(r"\]\((?!https?://)([^)\s]+)\)", text)]
    return [((page.parent / path).resolve() if path else page, anchor) for path, _, anchor in links]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for target, anchor in links_of(page):
        assert target.is_relative_to(ROOT) and target.exists(), target
        assert not anchor or anchor in anchors_of(target), f"{target.name}#{anchor}"


def test_the_readme_leads_to_every_page():
    assert {*ROOT.glob("docs/*")} <= {target for target, _ in links_of(ROOT / "README.md")}


def test_files_it_names_exist():
    theirs = "vllm|flashinfer|xgrammar|torch|transformers|accelerate"  # read in the sources of these packages
    for name in set(re.findall(rf"`((?!(?:{theirs})/|mine|gpu_report)[\w/]+\.(?:py|txt|md))`", PAGES)):
        assert (ROOT / name).exists(), name


def test_the_helpers_in_tests_that_are_named_have_help():
    texts = [
        path.read_text(encoding="utf-8") for path in (ROOT / "README.md", ROOT / "Makefile", *ROOT.glob("docs/*.md"))
    ]
    helpers = {name for text in texts for name in re.findall(r"tests/\w+\.py", text)} - {
        "tests/conftest.py",
        "tests/FILE.py",
    }
    assert helpers == {"tests/api_server.py", "tests/made_up_ratings.py", "tests/update_readme.py"}
    for name in helpers:
        done = subprocess.run([sys.executable, name, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and done.stdout.startswith("usage: "), name
