"""Every command of the README is one its script takes: pasted into a shell, with only the script itself left out."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```shell\n(.*?)```", README, re.DOTALL)
COMMANDS = [block for block in BLOCKS if block.startswith(("python ", "accelerate "))]
VARIABLES = next(block for block in BLOCKS if block.startswith("DATA="))


def words_of(command: str) -> list[str]:
    """What a shell makes of a command: variables filled in, lines joined, quotes gone."""
    command = re.sub(r"^accelerate launch --num_processes \d+ ", "python ", command)
    script = f"{VARIABLES}\npython() {{ printf '%s\\0' \"$@\"; }}\n{command}"
    done = subprocess.run(["sh", "-eu", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.rstrip("\0").split("\0")


def parser_of(script: str):
    spec = importlib.util.spec_from_file_location(Path(script).stem, ROOT / script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build_parser()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.split()[1:4]))
def test_the_script_takes_the_command(command):
    assert not command.rstrip().endswith("\\"), "a dangling backslash swallows the next line pasted"
    script, *arguments = words_of(command)
    if arguments != ["--help"]:
        parser_of(script).parse_args(arguments)


def test_every_script_has_a_command():
    scripts = {str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.py"), *ROOT.glob("*/*.py"))
               if "def build_parser" in path.read_text(encoding="utf-8") and path.parent.name != "tests"}  # fmt: skip
    shown = {words_of(command)[0] for command in COMMANDS}
    assert scripts - {"utils/prepare_demo_models.py"} == shown  # `make models` runs that one


def test_files_it_names_exist():
    for name in set(re.findall(r"`([\w/]+\.(?:py|txt|md))`", README)):
        assert (ROOT / name).exists(), name
