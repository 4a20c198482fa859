"""Read the prompts of LaMP-QA's public code from a clone of it, into a folder for --prompts_dir.

  git clone https://github.com/LaMP-Benchmark/LaMP-QA
  git -C LaMP-QA checkout 504410d
  python utils/import_prompts.py --code_dir LaMP-QA --output_dir prompts_paper

The clone's files are read as text: nothing of them is imported or run. With --prompts_dir prompts_paper, baselines.py,
train_planner.py, planpers.py and evaluate_responses.py (for aspects) then ask what that code asks, character for
character; train_planner.py --planner_target reference also learns that code's targets.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import argparse
import ast
import os
from collections.abc import Iterable
from string import Formatter
from typing import NamedTuple

from prompts import load_prompt, parse_prompt
from utils import cli
from utils.benchmarks.lampqa import PUBLIC_CODE
from utils.cli import UserError
from utils.files.json_files import read_text
from utils.files.writing import fill_folder, write_synced

COMMIT = "504410d"
FORMATTERS, EVALUATOR = "data/formetters.py", "evaluation/evaluator.py"
FUNCTIONS = {  # which function of which file builds the messages of each of our prompts
    "no_personalization": (FORMATTERS, "get_baseline_no_rag_formatter"),
    "rag": (FORMATTERS, "get_baseline_rag_formatter"),
    "planpers": (FORMATTERS, "get_generation_with_plan_rag_formatter"),
    "planner": (FORMATTERS, "get_planner_formatter"),
    "aspect_judge": (EVALUATOR, "create_eval_prompt"),
}


def build_parser() -> argparse.ArgumentParser:
    parser = cli.make_parser(__doc__)
    parser.add_argument("--code_dir", required=True, metavar="DIR", help="your clone of the public code")
    parser.add_argument("--output_dir", required=True, metavar="DIR", help="where the prompt files go: a new folder")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    files = read_prompts(Path(args.code_dir))
    output = Path(args.output_dir)
    if is_finished(output, files):
        print(f"{output}: holds these prompts already, left alone")
    else:
        with fill_folder(output.resolve()) as folder:
            for name, text in files.items():
                write_synced(folder / f"{name}.txt", text)
        print(f"{output}: {', '.join(files)}")
    if differing := [name for name in files if load_prompt(f"lampqa/{name}", output).digest != PUBLIC_CODE[name]]:
        print(f"note: not in the words of commit {COMMIT}: {', '.join(differing)}", file=sys.stderr)
    return 0


# From code to prompt files


def read_prompts(code_dir: Path) -> dict[str, str]:
    """The text of each prompt's file, by the prompt's name; UserError where anything is of another shape than meant."""
    if not code_dir.is_dir():
        raise UserError(f"--code_dir {code_dir}: no such folder")
    try:
        sources = {path: Source(code_dir, path) for path in (FORMATTERS, EVALUATOR)}
        return {name: read_prompt(name, sources[path], function) for name, (path, function) in FUNCTIONS.items()}
    except RecursionError:
        raise UserError(f"--code_dir {code_dir}: a text in it is nested too deeply, or made from itself") from None


def read_prompt(name: str, source: "Source", function_name: str) -> str:
    function = source.function(function_name)
    parts = {}
    for role in ("system", "user"):  # our placeholders are called as the records' fields are in the public code
        pieces = source.message(function, role)
        parts[role] = "".join(piece if isinstance(piece, str) else f"{{{piece.name}}}" for piece in pieces)
    if "{profile}" in parts["user"]:
        source.check_posts(function)
    if name == "planner":
        parts["assistant"] = source.lead_in(function) + "{plan}"
    text = "".join(f"[{role}]\n{content}\n" for role, content in parts.items()) + "[end]\n"
    prompt = parse_prompt(f"lampqa/{name}", text, f"{source.path}: what {function_name} builds")
    if (prompt.system, prompt.user) != (parts["system"], parts["user"]) or "\r" in text:
        problem = f"{function_name} has a text with a line [user] or the like, or a carriage return"
        raise source.refusal(problem, function)
    return text


def is_finished(output: Path, files: dict[str, str]) -> bool:
    """Whether the folder holds these files; UserError where it holds anything else."""
    paths = {output / f"{name}.txt": text for name, text in files.items()}
    if output.is_dir() and all(path.is_file() and read_text(path) == text for path, text in paths.items()):
        return True
    if (output.is_dir() and any(output.iterdir())) or (os.path.lexists(output) and not output.is_dir()):
        raise UserError(f"{output}: exists, and does not hold these prompts\n  give another --output_dir, or delete it")
    return False


# What stands in the public code


class Field(NamedTuple):
    """What is filled into a text: a field of a record, or a variable."""

    name: str


Pieces = list[str | Field]


class Source:
    """A Python file of the clone, taken apart and never run."""

    def __init__(self, code_dir: Path, name: str):
        self.code_dir, self.path = code_dir, code_dir / name
        if not self.path.is_file():
            raise self.refusal("no such file")
        try:
            self.tree = ast.parse(read_text(self.path))
        except (SyntaxError, ValueError) as error:
            raise self.refusal(f"cannot be read as Python: {error}") from None

    def refusal(self, problem: str, node: ast.AST | None = None) -> UserError:
        line = f", line {node.lineno}" if node is not None else ""
        return UserError(
            f"{self.path}{line}: {problem}\n"
            f"  the prompts are read as they stand in commit {COMMIT}: git -C {self.code_dir} checkout {COMMIT}"
        )

    def function(self, name: str) -> ast.FunctionDef:
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return node
        raise self.refusal(f"has no function {name}")

    def constant(self, name: str) -> str:
        """The text of a name of the module."""
        values = _assigned(self.tree.body, name)
        if not values:
            raise self.refusal(f"has no constant {name}")
        pieces = self.pieces(values[-1], self.tree)
        if not _is_fixed(pieces) or _grows(self.tree.body, name):
            raise self.refusal(f"{name} is not a text that stands there as a whole", values[-1])
        return "".join(pieces)

    def pieces(self, node: ast.expr, scope: ast.FunctionDef | ast.Module) -> Pieces:
        """A text as an expression builds it: from strings, f-strings, sums, names, and calls of str.format."""
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=values):
                return [piece for value in values for piece in self.pieces(value, scope)]
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return self.pieces(value, scope)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.pieces(left, scope) + self.pieces(right, scope)
            case ast.Name(id=name):
                return self.variable(name, scope)
            case ast.Subscript(slice=ast.Constant(value=str(name))):
                return [Field(name)]
            case ast.Subscript(value=ast.Subscript() as column):  # data["question"][i]
                return self.pieces(column, scope)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="format"), args=[], keywords=keywords):
                values = {str(keyword.arg): self.pieces(keyword.value, scope) for keyword in keywords}
                return self.filled(name, values, node)
        raise self.refusal("a text that cannot be read without running the code", node)

    def variable(self, name: str, scope: ast.FunctionDef | ast.Module) -> Pieces:
        if name.isupper():
            return [self.constant(name)]
        values = _assigned(ast.walk(scope), name)
        if len(values) == 1 and isinstance(values[0], ast.JoinedStr | ast.Subscript):
            return self.pieces(values[0], scope)
        return [Field(name)]

    def filled(self, name: str, values: dict[str, Pieces], node: ast.expr) -> Pieces:
        """The pieces of a constant as str.format fills it: `{{` is a brace."""
        try:
            parsed = list(Formatter().parse(self.constant(name)))
        except ValueError as error:
            raise self.refusal(f"{name} is no text for str.format: {error}", node) from None
        pieces: Pieces = []
        for text, field, spec, conversion in parsed:
            pieces.append(text)
            if field is not None:
                if field not in values or spec or conversion:
                    raise self.refusal(f"{name} has a placeholder {{{field}}} that is not simply filled in", node)
                pieces += values[field]
        if missing := values.keys() - {field for _, field, _, _ in parsed}:
            raise self.refusal(f"{name} lacks the placeholder {{{min(missing)}}}", node)
        return pieces

    def message(self, function: ast.FunctionDef, role: str) -> Pieces:
        """The content of the one chat message of a role that a function writes out."""
        found = []
        for node in ast.walk(function):
            if isinstance(node, ast.Dict):
                entries = dict(zip(map(_text, node.keys), node.values, strict=True))
                if _text(entries.get("role")) == role and "content" in entries:
                    found.append(entries["content"])
        if len(found) != 1:
            raise self.refusal(f"{function.name} has {len(found)} messages of the role {role}, not one", function)
        return self.pieces(found[0], function)

    def check_posts(self, function: ast.FunctionDef) -> None:
        """Raise UserError where posts are joined otherwise than `prompts.join_posts` does."""
        joined = [node.value for node in ast.walk(function) if isinstance(node, ast.Attribute) and node.attr == "join"]
        if [text for text in map(_text, joined) if text is not None] != ["\n\n"]:
            raise self.refusal(f"{function.name} joins the posts otherwise than by an empty line", function)

    def lead_in(self, function: ast.FunctionDef) -> str:
        """What the planner's target begins with; UserError unless `- title` and a line break for each aspect follow."""
        *before, aspects = self.message(function, "assistant")
        lines = [node for node in ast.walk(function) if isinstance(node, ast.AugAssign)]
        is_list = isinstance(aspects, Field) and _grows(lines, aspects.name) and len(lines) == 1
        if not is_list or self.pieces(lines[0].value, function) != ["- ", Field("aspect"), "\n"]:
            raise self.refusal(f"{function.name}: the target does not end in a line '- title' an aspect", function)
        if not _is_fixed(before):
            raise self.refusal(f"{function.name}: the target's lead-in is not a fixed text", function)
        return "".join(before)


def _is_fixed(pieces: Pieces) -> bool:
    return all(isinstance(piece, str) for piece in pieces)


def _text(node: ast.AST | None) -> str | None:
    """The text of a string; None for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _assigned(nodes: Iterable[ast.AST], name: str) -> list[ast.expr]:
    """The values that a name is given, in their order."""
    assignments = [node for node in nodes if isinstance(node, ast.Assign)]
    return [node.value for node in assignments for target in node.targets if getattr(target, "id", None) == name]


def _grows(nodes: Iterable[ast.AST], name: str) -> bool:
    return any(isinstance(node, ast.AugAssign) and getattr(node.target, "id", None) == name for node in nodes)


if __name__ == "__main__":
    cli.run_script(main)
