"""`baselines.py --method FILE`: a user's own method, an async function of a question and an `Ask`, gives the answers.

    async def answer(record, ask):
        summary = await ask("Summarize what this user cares about.\\n\\n{profile}", items=record.best(20))
        return await ask("rag", items=[summary] if summary else record.best(10))

`answer` is called for every question. If a call needs an engine that is not open yet, `answer` is called again later,
and the calls that it repeats are answered from the store."""

import argparse
import ast
import asyncio
import copy
import importlib.util
import inspect
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from prompts import History, digests, load_prompt
from retrieval.search import Search, add_search_arguments
from utils.base import cli
from utils.base.cli import Arguments
from utils.base.errors import UserError, count_noun
from utils.base.made import Piece, refuse_other_source
from utils.base.manifest import file_hash, noted_settings, without_password
from utils.benchmarks.checks import Record
from utils.benchmarks.readers import writable
from utils.benchmarks.task import Task
from utils.generation.calls import THOUGHT_COUNT, TOKEN_COUNTS, describe_counts, prices_of
from utils.generation.chat import PAPER_LENGTH
from utils.generation.engines import choose_model, find_folder
from utils.generation.model import Model, settings_by_scores
from utils.generation.requests import was_cut
from utils.runs.answers import Dataset, ResponseFile, check_ranked, read_datasets
from utils.runs.ask import Ask, MethodError, NotNow, Steps
from utils.runs.loop import EXITED, begin_branch
from utils.runs.runner import sum_calls
from utils.runs.stage import NO_ANSWER, Stage, cost_in_words

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "utils/methods"
OWN_PACKAGES = ("prompts", "retrieval", "utils")


class HiddenFieldError(Exception):
    """A method has read a field that only the scorer may see."""


class Question(Mapping):
    """A record as a method sees it: `record["question"]`, `record["profile"]`, and the dataset's other fields.

    The profile's best items come first if the dataset is ranked. Fields that only the scorer may see are hidden.
    """

    def __init__(self, record: Record, task: Task, shown: Sequence[str] = ()):
        """`shown`: fields of the scorer that this method may see anyway (--show_fields)."""
        self._record, self._task, self._hidden = record, task, task.hidden_fields.difference(shown)
        self._copies: dict[str, Any] = {}

    def best(self, number: int | None) -> list[str] | History:
        """Return the texts of the best `number` items, in the order of the benchmark's prompts.

        With None, return all messages of a history in chronological order, or [] if the profile is a list.
        """
        return self._task.best_items(self._record, number)

    def __getitem__(self, name: str) -> Any:
        if name in self._hidden:
            raise HiddenFieldError(
                f"record[{name!r}]: only the scorer may see it; a method sees {', '.join(self)}, and what "
                "--show_fields names"
            )
        if name not in self._copies:  # a method may change its copy, and must get the original when it runs again
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
        """Return the method's file, the loaded modules below its folder, and the modules there that these import."""
        file = self.path.resolve()
        files, left = set(), [file]
        if not ROOT.is_relative_to(file.parent):  # loaded modules may be imported in ways that the source does not show
            loaded = real_paths(filter(None, map(_path_of, [*sys.modules.values()])))
            left += [
                path
                for path in loaded
                if path.is_relative_to(file.parent) and not _is_in_installation(path, file.parent)
            ]
        while left:
            path = left.pop()
            if path not in files:
                files.add(path)
                left += imported_files(path, file.parent)
        return sorted(files)

    async def __call__(self, record: Record, ask: Ask, task: Task, shown: Sequence[str] = ()) -> Piece:
        """Return an answer's record; MethodError with the line of the method if it fails."""
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
            if ask.steps.ended is not None:  # the record's run has ended, so this error is a consequence
                raise
            while isinstance(error, BaseExceptionGroup):  # from a TaskGroup
                error = error.exceptions[0]
            raise MethodError(f"{self.place_of(error)}: {type(error).__name__}: {error}") from None
        return piece_of(value, ask.steps, record)

    def place_of(self, error: BaseException) -> str:
        """Return `FILE, line N` for the innermost line of an error's traceback that is in the method's file.

        Without such a line, the innermost line in the file's folder, or else the innermost of all.
        """
        file = self.path.resolve()
        frames = traceback.extract_tb(error.__traceback__)
        is_above_root = ROOT.is_relative_to(file.parent)  # our own modules are below this folder

        def is_beside(path: Path) -> bool:
            return path.parent == file.parent if is_above_root else path.is_relative_to(file.parent)

        in_file = [frame for frame in frames if Path(frame.filename) == file]
        in_file = in_file or [frame for frame in frames if is_beside(Path(frame.filename))] or frames
        return f"{in_file[-1].filename}, line {in_file[-1].lineno}" if in_file else str(self.path)


def load_method(path: str) -> Method:
    """Return the method in the file `path`, or the included method of that name in utils/methods.

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


def _is_in_installation(path: Path, folder: Path) -> bool:
    """Return whether a file belongs to the Python installation, which may be in a method's folder."""
    homes = {Path(home).resolve() for home in (sys.prefix, sys.base_prefix)}
    is_below = any(path.is_relative_to(home) and not folder.is_relative_to(home) for home in homes)
    return is_below or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def real_paths(paths: Iterable[str]) -> Iterator[Path]:
    """Yield paths with all links resolved; each folder is resolved only once, because many modules share a folder."""
    folders: dict[str, Path] = {}
    for path in paths:
        folder, name = os.path.split(path)
        if os.path.islink(path):
            yield Path(path).resolve()
            continue
        if folder not in folders:
            folders[folder] = Path(folder).resolve()
        yield folders[folder] / name


def _path_of(module: Any) -> str | None:
    path = getattr(module, "__file__", None)
    return path if isinstance(path, str) and path.endswith(".py") else None


def imported_files(path: Path, folder: Path) -> Iterator[Path]:
    """Yield the files of the modules in `folder` or below that a Python file imports, also inside functions.

    This project's own packages are left out. A file that is not valid Python yields nothing; importing it will fail.
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
    """Return an answer's record: its value, the fields of the last call with this value, notes, and figures by role."""
    calls, notes = steps.calls, steps.notes
    value = value if value is not None and value.strip() else None
    fields = next(
        (call for _, call in reversed(calls) if isinstance(call["value"], str | None) and call["value"] == value), {}
    )
    fields = {name: field for name, field in fields.items() if name not in ("value", THOUGHT_COUNT, *TOKEN_COUNTS)}
    if value is None:
        fields = {"reason": NO_ANSWER, **fields}
    # Notes that are a text of the model that was cut at its token limit; training leaves these notes out.
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


ROLE_FLAGS = {  # FLAG in --model NAME=MODEL,FLAG=VALUE -> the function that parses its value
    "base_url": cli.api_address,
    "api_key_addr": cli.at_home,
    "model_id": str,
    "price_in": cli.price,
    "price_out": cli.price,
    "price_cached": cli.price,
    "max_model_len": cli.positive_int,
}


def stage_of_method(args: Arguments) -> Stage:
    """Return the stage that answers the questions with --method."""
    method = load_method(args.method)
    if len(args.inputs_addr) + len(args.output_addr) > 2:
        raise UserError("--method: takes only one --inputs_addr and one --output_addr")
    shown = tuple(args.show_fields or ())
    [dataset] = read_datasets(args, lambda task: ["profile", *task.asked_needs, *shown], None, args.asking)
    check_ranked(args, [dataset])
    task = dataset.task
    check_shown(shown, task)
    note_unknown_names(args, method)
    models, search = choose_models(args, task), Search(args, task, dataset.path)
    settings = settings_of_method(args, task, models) | {"code": method.code(), "search": search.settings}
    answers = MethodFile(dataset, settings, method.path, models)
    return Stage(task, answers.records, partial(method, task=task, shown=shown), [answers], models, search=search)


class MethodFile(ResponseFile):
    """Answers by a user's own method."""

    many_calls = True

    def __init__(self, dataset: Dataset, settings: dict[str, Any], path: Path, models: Mapping[str, Model]):
        """`path`: the method's file."""
        super().__init__(dataset, settings, method_path=str(path.resolve()))
        self._method, self._models = path, models
        self._earlier_code = noted_settings(self.path).get("code")  # None if there is no file to replace

    def check_replaced(self, made: Mapping[str, Any]) -> None:
        """Refuse to replace the answers of another method's file, unless it has the same code."""
        if "method_path" in made and made["settings"].get("code") != self.settings["code"]:
            refuse_other_source([made["method_path"]], [self.figures["method_path"]])

    def line(self, content: Any, figures: Mapping[str, Any]) -> str:
        """Also print a note if the method's code has changed, or if a record's second run made different calls."""
        requested, reused = figures["completions"]["requested"], figures["completions"]["from_store"]
        earlier, code = self._earlier_code, self.settings["code"]
        if earlier not in (None, code):
            changed = sorted(name for name in {*earlier, *code} if earlier.get(name) != code.get(name))
            again = f"{requested} of {count_noun(requested + reused, 'completion')} requested"
            print(f"note: {self._method.parent / changed[0]} has changed: {again}", file=sys.stderr)
        if number := figures["asked_otherwise"]:
            problem = f"on {count_noun(number, 'record')} its second run made different calls"
            remedy = "every run pays for its new calls; use ask.random for all randomness"
            print(f"note: {self._method} is not deterministic: {problem}\n  {remedy}", file=sys.stderr)
        line = f"{self.path}: {describe_counts(figures['counts'])}"
        for role, calls in figures["calls"].items():
            if "unusable" in calls:
                line += f"; {calls['unusable']} of {count_noun(calls['num_calls'], 'call')} of {role} unusable"
        line += f"; {count_noun(requested, 'completion')} requested, {reused} from the store{cost_in_words(figures)}"
        unpriced = [role for role, model in self._models.items() if prices_of(model.flags) is None]
        return line + (f" without {', '.join(unpriced)}" if "cost_usd" in figures and unpriced else "")


def note_unknown_names(args: Arguments, method: Method) -> None:
    """Print a note on names in --set and --model that the method's file does not contain; they may be misspelled."""
    text = method.path.read_text(encoding="utf-8", errors="replace")
    in_settings = " ".join(value for _, value in args.set or ())  # a setting may name a model
    for flag, pairs, places in (("--set", args.set, text), ("--model", args.model, f"{text} {in_settings}")):
        if unknown := [name for name, *_ in pairs or () if not re.search(rf"\b{name}\b", places)]:
            names = ", ".join(unknown)
            print(f"note: {method.path} does not contain the name {names}, given with {flag}", file=sys.stderr)


def check_shown(shown: Sequence[str], task: Task) -> None:
    """Raise UserError if --show_fields names a field that is not reserved for the scorer."""
    hidden = task.hidden_fields
    if unknown := [name for name in shown if name not in hidden]:
        raise UserError(
            f"--show_fields {unknown[0]}: not a field that only the scorer sees; those of {task.name} are "
            f"{', '.join(sorted(hidden))}"
        )


def flags_of_roles(args: Arguments) -> dict[str, Arguments]:
    """Return each role's flags: the command's own for the generator; each --model overrides some of them."""
    flags = {"generator": args.replaced()}
    for role, addr, own_flags in args.model or []:
        if role in flags:
            raise UserError(f"--model {role}={addr}: the name is taken; choose another")
        if args.openai and "base_url" not in own_flags and Path(addr).is_dir():
            raise UserError(
                f"--model {role}={addr}: is a folder here, but with --openai this model runs at the generator's API\n"
                f"  use the name of one of the API's models; if that is its name, add the address: {role}={addr}@URL"
            )
        if args.openai and own_flags.keys() & {"base_url", "api_key_addr"} == {"base_url"}:
            url = without_password(own_flags["base_url"])
            raise UserError(f"--model {role}={addr}@{url}: needs a key: append ,api_key_addr=FILE")
        none = dict.fromkeys(("model_id", "price_in", "price_out", "price_cached"))
        openai = args.openai or "base_url" in own_flags
        addr = addr if openai else cli.without_link(addr)
        flags[role] = args.replaced(model_addr=addr, openai=openai, **{**none, **own_flags})
    return flags


def choose_models(args: Arguments, task: Task) -> dict[str, Model]:
    """Return the models by role; roles that have the same model share one `Completions`."""
    models: dict[str, Model] = {}
    for role, flags in flags_of_roles(args).items():
        is_generator = not models
        for_api = f"add an address: --model {role}={flags.model_addr}@https://api.openai.com/v1"
        local = find_folder(flags, "add --openai" if is_generator else for_api)
        if local and local.is_encoder_decoder:
            raise UserError(f"{local.addr}: is an encoder-decoder; use a chat model")
        gives_rewards = not is_generator and local is not None and local.is_classifier
        length = task.prompt_length or PAPER_LENGTH
        model = choose_model(flags, folder=local, wanted_length=length, gives_rewards=gives_rewards)
        folder = model.completions.store.folder
        same = (other.completions for other in models.values() if other.completions.store.folder == folder)
        models[role] = replace(model, completions=next(same, model.completions))
    return models


def settings_of_method(args: Arguments, task: Task, models: dict[str, Model]) -> dict[str, Any]:
    """Return the settings of the answers, without the method's code."""
    names = [*task.prompts.values()]
    if "reward" in task.metrics and any(model.gives_rewards for model in models.values()):
        names.append(task.metrics["reward"].judge.prompt)
    prompts = [load_prompt(name, args.prompts_dir) for name in dict.fromkeys(names)]
    learnt = sorted({name for model in models.values() for name in model.saw_in_training})
    saw = {"when": "training", "fields": learnt}
    if args.show_fields:
        saw = {"when": "test", "fields": args.show_fields, "models_saw": learnt}
    return args.settings() | {
        "script": "baselines.py",
        "method": Path(args.method).stem,
        "model": models["generator"].identity,
        "models": {role: model.identity for role, model in models.items()},
        "inputs": file_hash(args.inputs_addr[0]),
        "prompt": digests(prompts),
        "set": dict(args.set or []),
        **({"saw": saw} if saw["fields"] else {}),
        **settings_by_scores(list(models.values()), file_hash(args.inputs_addr[0])),
    }


def add_method_arguments(parser: cli.FlagParser) -> None:
    # fmt: off
    add = parser.add_argument_group("method of your own").add_argument
    add("--method", metavar="FILE",
        help="Python file with `async def answer(record, ask)`, or the name of a method in utils/methods")
    add("--model", type=named_model, action="append", metavar="NAME=MODEL[@URL][,FLAG=VALUE]",
        help="additional model for ask(..., model=NAME). @URL: address of its API. FLAG: its api_key_addr, model_id, "
        "price_in, price_out, price_cached or max_model_len; repeatable (default: none)")
    add("--set", type=named, action="append", metavar="NAME=VALUE",
        help="setting for --method, read as ask.settings[NAME]; repeatable (default: none)")
    add("--show_fields", nargs="+", metavar="FIELD",
        help="fields that only the scorer should see and --method may read, to make training data; tables call its "
        "scores an upper bound (default: none)")
    # fmt: on
    add_search_arguments(parser)
    parser.not_a_setting("--model", "the identities of the models are settings")
    parser.without_effect(
        "--rag --choose --trim_items",
        lambda args: args.method is not None,
        "with --method, because the method itself decides what to ask",
    )
    parser.without_effect(
        "--model --set --show_fields --search", lambda args: args.method is None, "without --method", "add --method"
    )


def named(text: str) -> tuple[str, str]:
    """Return the name and the value in a NAME=VALUE of --set; ArgumentTypeError if the text is not of this form."""
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{json.dumps(without_password(text))} is not NAME=VALUE")
    return name, value


def named_model(text: str) -> tuple[str, str, dict[str, Any]]:
    """Return the role, the model's address and its own flags from --model NAME=MODEL[@URL][,FLAG=VALUE...]."""
    role, rest = named(text)
    rest, *parts = re.split(f",(?=(?:{'|'.join(ROLE_FLAGS)})=)", rest)
    model, _, url = (rest, "", "") if Path(cli.at_home(rest)).exists() else rest.partition("@")
    flags = {"base_url": cli.api_address(url)} if url else {}
    for name, _, value in (part.partition("=") for part in parts):
        try:
            flags[name] = ROLE_FLAGS[name](value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{name}={value}: {error}") from None
    return role, cli.at_home(model), flags
