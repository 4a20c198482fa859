"""The layout: a file in utils/ is a command, a folder is a library, and imports go one way."""

import ast
import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

from utils.benchmarks.lampqa import task as lampqa

ROOT = Path(__file__).resolve().parent.parent
FLOORS = [  # from the bottom up; a library imports from those below it, and from itself
    ("utils.base",),
    ("prompts",),
    ("utils.models", "utils.benchmarks"),
    ("utils.data",),
    ("utils.generation", "utils.tables"),
    ("retrieval", "utils.show"),
    ("utils.people",),
    ("utils.runs", "utils.methods"),
    ("utils.training", "utils.building"),
]
LEVELS = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
SCRIPTS = ("baselines", "planpers", "train_planner", "evaluate_responses", "retrieval.rank_dataset")


def modules() -> dict[str, Path]:
    """Return the project's modules outside tests/ and docs/, by name."""
    done = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [Path(line) for line in done.stdout.splitlines() if not line.startswith(("docs/", "tests/"))]
    return {".".join(path.with_suffix("").parts).removesuffix(".__init__"): ROOT / path for path in paths}


MODULES = modules()


def imports_of(name: str) -> set[str]:
    """Return the project's modules that a module imports, also inside functions."""
    imported = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    named = imported & MODULES.keys() - {"utils"}
    return {module for module in named if not any(other.startswith(f"{module}.") for other in named)} - {name}


IMPORTS = {name: imports_of(name) for name in MODULES}


def is_command(name: str) -> bool:
    return name in SCRIPTS or (name.count(".") == 1 and name.startswith("utils.") and f"{name}.py" in paths())


def paths() -> set[str]:
    return {str(path.relative_to(ROOT)).replace("/", ".") for path in MODULES.values()}


def room_of(name: str) -> str | None:
    return next((room for room in LEVELS if name == room or name.startswith(f"{room}.")), None)


def test_every_library_has_a_level():
    rooms = {str(path.parent.relative_to(ROOT)).replace("/", ".") for path in MODULES.values()}
    assert {".".join(room.split(".")[:2]) for room in rooms} - {"", ".", "utils"} == LEVELS.keys()


def test_a_file_in_utils_is_a_command():
    for name in filter(is_command, MODULES):
        assert '__name__ == "__main__"' in MODULES[name].read_text(encoding="utf-8"), name


@pytest.mark.parametrize("name", [name for name in MODULES if room_of(name) and not is_command(name)])
def test_a_library_imports_only_from_its_own_level_and_below(name):
    level = LEVELS[room_of(name)]
    above = {other for other in IMPORTS[name] if room_of(other) != room_of(name)
             and LEVELS.get(room_of(other), len(FLOORS)) >= level}  # fmt: skip
    assert above == set()


def test_no_command_imports_another():
    commands = {name for name in MODULES if is_command(name)}
    assert {name: IMPORTS[name] & commands for name in commands if IMPORTS[name] & commands} == {}


def test_there_are_no_import_cycles():
    left = {name: set(others) for name, others in IMPORTS.items()}
    while free := {name for name, others in left.items() if not others}:
        left = {name: others - free for name, others in left.items() if name not in free}
    assert left == {}


def test_trainings_after_planpers_are_imported_in_one_place():
    parts = {f"utils.training.{name}" for name in ("lessons", "pairs", "rounds", "trainers")}
    assert {name for name, others in IMPORTS.items() if others & parts} - parts == {"utils.train_generator"}


CORE = (
    *SCRIPTS, "utils.download_datasets", "utils.dataset_statistics", "utils.make_table", "utils.make_figures",
    *(name for name in MODULES if name.startswith("utils.benchmarks.")),
)  # fmt: skip
EXTRAS = (  # data of one's own, people, the report, batches, and encoder-decoders
    "utils.building", "utils.generation.batches", "utils.people", "utils.show.pages", "utils.show.report_page",
)  # fmt: skip


def test_the_core_imports_no_extras():
    core, todo = set(), list(CORE)
    while todo:
        if (name := todo.pop()) not in core:
            core.add(name)
            todo += IMPORTS[name]
    assert all(any(name.startswith(extra) for name in MODULES) for extra in EXTRAS)
    assert {name for name in core if name.startswith(EXTRAS)} == set()


# The builder and the import make datasets in LaMP-QA's form, some methods make training data from its fields, and the
# costs are those of its studies.
BUILDER = (
    "utils.benchmarks.lampqa.task", "utils.build_dataset", "utils.building", "utils.import_dataset", "utils.methods",
    "utils.study_costs",
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith(BUILDER)])
def test_lampqa_names_are_only_in_its_file_and_builder(name):
    """No line has its fields, including comments and messages, and no string its groups, their parts and files."""
    source = MODULES[name].read_text(encoding="utf-8")
    names = {*lampqa.CATEGORIES, *lampqa.COMMUNITIES, *lampqa.paper_files()}
    names -= {"history"} if ".bespoke." in name else set()  # a column of its tables
    constants = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
    words = {*re.findall(r"rubric_aspects|narrative", source, re.IGNORECASE), *(names & constants)}
    assert words == set()


STIFF = re.compile(  # phrases of translated English
    r"\b(anew|hangs? on|of before|Where what|what is told|of which"
    r"|(stands?|stood|standing) (in|beside|behind|at|twice|ahead|among|alone|there)"
    r"|(is|are|was|were|be) told(?! apart)|goes on|go on|gone on|(?<!there )(is|are) no (?!longer|more|such)[a-z]+)\b",
    re.IGNORECASE,
)
WRITTEN = subprocess.run(
    ["git", "ls-files", "*.py", "*.md", "*.sh", "*.sbatch", "*.html"],
    cwd=ROOT, capture_output=True, text=True, check=True,
).stdout.split()  # fmt: skip


def sentences_of(path: Path) -> str:
    """Return the strings and comments of a Python file, or all of another file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return source
    kinds = (tokenize.COMMENT, tokenize.STRING)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n".join(token.string for token in tokens if token.type in kinds)


@pytest.mark.parametrize("name", [name for name in WRITTEN if not name.startswith(("tests/data/", "tests/test_house"))])
def test_the_english_is_plain(name):
    stiff = [line for line in sentences_of(ROOT / name).splitlines() if STIFF.search(line)]
    assert stiff == [], f"{name}: say it plainly"
