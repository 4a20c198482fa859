"""A user's own method: an async function of one question and an `Ask`.

    async def answer(record, ask):
        summary = await ask("Summarize what this user cares about.\\n\\n{profile}", items=record.best(20))
        return await ask("rag", items=[summary] if summary else record.best(10))

`answer` is called for every question. If a call needs an engine that is not open yet, `answer` is called again later;
the calls that it then repeats are answered from the store.
"""

import ast
import asyncio
import copy
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prompts import History
from utils.base.errors import UserError
from utils.base.file_hashes import file_hash
from utils.base.output import Piece
from utils.benchmarks.checks import Record
from utils.benchmarks.readers import writable
from utils.benchmarks.task import Task
from utils.generation.calls import THOUGHT_COUNT, TOKEN_COUNTS
from utils.generation.requests import was_cut
from utils.runs.ask import Ask
from utils.runs.files import NO_ANSWER
from utils.runs.loop import EXITED, begin_branch
from utils.runs.publishing import sum_calls
from utils.runs.steps import MethodError, NotNow, Steps

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "utils/methods"
OWN_PACKAGES = ("prompts", "retrieval", "utils")


class HiddenFieldError(Exception):
    """A method reads a field that only the scorer may see."""


class Question(Mapping):
    """A record as a method sees it: `record["question"]`, `record["profile"]`, and the dataset's other fields.

    The profile's best items come first if the dataset is ranked. Fields that only the scorer may see are hidden.
    """

    def __init__(self, record: Record, task: Task, shown: Sequence[str] = ()):
        """`shown`: fields for the scorer that this method may see nevertheless (--show_fields)."""
        self._record, self._task, self._hidden = record, task, task.hidden_fields.difference(shown)
        self._copies: dict[str, Any] = {}

    def best(self, number: int | None) -> list[str] | History:
        """Return the texts of the best `number` items, in the order that the benchmark's prompts use.

        With None, return all messages of a history in order of time, or [] if the profile is a list.
        """
        return self._task.best_items(self._record, number)

    def __getitem__(self, name: str) -> Any:
        if name in self._hidden:
            raise HiddenFieldError(
                f"record[{name!r}]: only the scorer may see it; a method sees {', '.join(self)}, and what "
                "--show_fields names"
            )
        if name not in self._copies:  # a copy, because a method may change it and run again
            self._copies[name] = copy.deepcopy(self._record[name])
        return self._copies[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._record if name not in self._hidden)

    def __len__(self) -> int:
        return len(list(iter(self)))


@dataclass(frozen=True)
class Method:
    """A method's file and function."""

    path: Path
    answer: Callable[[Question, Ask], Any]

    def code(self) -> dict[str, str]:
        """Return the SHA-256 of each of `code_files`, by name."""
        folder = self.path.resolve().parent
        return {str(path.relative_to(folder)): file_hash(path) for path in self.code_files()}

    def code_files(self) -> list[Path]:
        """Return the method's file, the modules below its folder that are loaded, and those that these import."""
        file = self.path.resolve()
        files, left = set(), [file]
        if not ROOT.is_relative_to(file.parent):  # these may be imported in a way that the file's text does not show
            loaded = [Path(path).resolve() for module in [*sys.modules.values()] if (path := _path_of(module))]
            left += [path for path in loaded if path.is_relative_to(file.parent) and not _is_pythons(path, file.parent)]
        while left:
            path = left.pop()
            if path not in files:
                files.add(path)
                left += imported_files(path, file.parent)
        return sorted(files)

    async def __call__(self, record: Record, ask: Ask, task: Task, shown: Sequence[str] = ()) -> Piece:
        """Return an answer's record; MethodError, which names a line of the method, if the method fails."""
        begin_branch()
        try:
            value = await self.answer(Question(record, task, shown), ask)
            if not isinstance(value, str | None):
                raise TypeError(f"answer returned {type(value).__name__}, not a text or None")
        except SystemExit:
            raise UserError(EXITED) from None
        except (asyncio.CancelledError, KeyboardInterrupt, NotNow):
            raise
        except BaseException as error:  # a method's own error
            if ask.steps.ended is not None:  # the record's run has ended: nobody reads the error
                raise
            while isinstance(error, BaseExceptionGroup):  # from a TaskGroup
                error = error.exceptions[0]
            raise MethodError(f"{self.place_of(error)}: {type(error).__name__}: {error}") from None
        return piece_of(value, ask.steps, record)

    def place_of(self, error: BaseException) -> str:
        """Return `FILE, line N` for the innermost line of an error's traceback that is in the method's file.

        If there is none, the innermost line in the file's folder is taken, else the innermost of all.
        """
        file = self.path.resolve()
        frames = traceback.extract_tb(error.__traceback__)
        is_around_ours = ROOT.is_relative_to(file.parent)  # our own modules are below this folder

        def is_beside(path: Path) -> bool:
            return path.parent == file.parent if is_around_ours else path.is_relative_to(file.parent)

        in_file = [frame for frame in frames if Path(frame.filename) == file]
        in_file = in_file or [frame for frame in frames if is_beside(Path(frame.filename))] or frames
        return f"{in_file[-1].filename}, line {in_file[-1].lineno}" if in_file else str(self.path)


def load_method(path: str) -> Method:
    """Return the method in the file `path`, or the method of that name in utils/methods.

    UserError if the file cannot be imported, or has no `async def answer(record, ask)`.
    """
    file = Path(path) if Path(path).is_file() else SHIPPED / f"{path}.py"
    if not file.is_file():
        names = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.py")))
        raise UserError(f"--method {path}: no such file, and not one of the included methods: {names}")
    folder = file.resolve().parent
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(f"method_{file.stem}", file.resolve())
    if spec is None:
        raise UserError(f"--method {path}: not a Python file; its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's mistake
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{error.filename}, line {error.lineno}" if isinstance(error, SyntaxError) else f"line {last.lineno}"
        raise UserError(f"--method {path}: {where}: {type(error).__name__}: {error}") from None
    answer = getattr(module, "answer", None)
    if not inspect.iscoroutinefunction(answer):
        raise UserError(f"--method {path}: has no `async def answer(record, ask)`")
    try:
        inspect.signature(answer).bind(None, None)
    except TypeError:
        raise UserError(f"--method {path}: `answer` must take two arguments, record and ask") from None
    return Method(file, answer)


def _is_pythons(path: Path, folder: Path) -> bool:
    """Return whether a file belongs to the Python installation, which may be below a method's folder."""
    homes = {Path(home).resolve() for home in (sys.prefix, sys.base_prefix)}
    is_below = any(path.is_relative_to(home) and not folder.is_relative_to(home) for home in homes)
    return is_below or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def _path_of(module: Any) -> str | None:
    path = getattr(module, "__file__", None)
    return path if isinstance(path, str) and path.endswith(".py") else None


def imported_files(path: Path, folder: Path) -> Iterator[Path]:
    """Yield the files of the modules in `folder` or below that a Python file imports, at its top or later.

    Our own packages are left out. Nothing is yielded if the file is not Python: the method fails when it imports it.
    """
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        base, names = folder, []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = path.parents[min(node.level, len(path.parents)) - 1] if node.level else folder
            if not base.is_relative_to(folder):
                continue
            names = [f"{node.module or ''}.{alias.name}".strip(".") for alias in node.names]
        for first, *rest in (name.split(".") for name in names):
            place = base / first
            for name in [None, *rest] if base != ROOT or first not in OWN_PACKAGES else ():
                place = place / name if name else place
                yield from (file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file())


def piece_of(value: str | None, steps: Steps, record: Record) -> Piece:
    """Return an answer's record: its value, fields of the last call with this value, notes, and figures by role."""
    calls, notes = steps.calls, steps.notes
    value = value if value is not None and value.strip() else None
    fields = next(
        (call for _, call in reversed(calls) if isinstance(call["value"], str | None) and call["value"] == value), {}
    )
    fields = {name: field for name, field in fields.items() if name not in ("value", THOUGHT_COUNT, *TOKEN_COUNTS)}
    if value is None:
        fields = {"reason": NO_ANSWER, **fields}
    # Names of notes that are a whole text of the model, cut at its token limit: trainings leave these notes out.
    cut = {call["value"] for _, call in calls if was_cut(call) and isinstance(call["value"], str)}
    cut_notes = [name for name, note in notes.items() if isinstance(note, str) and note in cut]
    fields |= {"cut_notes": cut_notes} if cut_notes else {}
    figures = {
        role: sum_calls(call for name, call in calls if name == role)
        for role in dict.fromkeys(name for name, _ in calls)
    }
    shown = {"posts_shown": posts_shown(steps, record), "notes": dict(notes)}
    shown |= {"searches": steps.searches} if steps.searches else {}
    return {"value": value and writable(value), **fields, **shown, "calls": figures}


def posts_shown(steps: Steps, record: Record) -> list[int]:
    """Return the indexes of the profile's posts whose texts were in the prompts, in ascending order."""
    profile = record.get("profile")
    if not isinstance(profile, list):  # a history that many questions share
        return []
    shown, task = "\n".join(steps.shown), steps.around.stage.task
    forms = [form for form in (task.item_template, task.item_text) if form]
    texts = [[text for form in forms if (text := form(item).strip())] for item in profile]
    return [place for place, forms in enumerate(texts) if any(text in shown for text in forms)]
