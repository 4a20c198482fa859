"""Read the prompts of LaMP-QA's public code from a clone of it, into a folder for --prompts_dir.

  git clone https://github.com/LaMP-Benchmark/LaMP-QA
  git -C LaMP-QA checkout 504410d
  python utils/import_prompts.py --code_dir LaMP-QA --output_dir prompts_paper

The clone's files are read as text: nothing of them is imported or run. With --prompts_dir prompts_paper, baselines.py,
train_planner.py, planpers.py and evaluate_responses.py (for aspects) then ask what that code asks, character for
character; train_planner.py --planner_target reference also learns that code's targets. A note names the prompts that
are not as in that commit.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import argparse
import ast
import os

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


def is_finished(output: Path, files: dict[str, str]) -> bool:
    """Say whether the folder holds these files; UserError where it holds anything else."""
    paths = {output / f"{name}.txt": text for name, text in files.items()}
    if all(path.is_file() and read_text(path) == text for path, text in paths.items()):
        return True
    if os.path.lexists(output) and not (output.is_dir() and not any(output.iterdir())):
        raise UserError(f"{output}: exists, and does not hold these prompts\n  give another --output_dir, or delete it")
    return False


# From code to prompt files


def read_prompts(code_dir: Path) -> dict[str, str]:
    """Read the text of each prompt's file, by the prompt's name; UserError where the code has another shape."""
    sources = {path: Source(code_dir, path) for path in (FORMATTERS, EVALUATOR)}
    return {name: read_prompt(name, sources[path], function) for name, (path, function) in FUNCTIONS.items()}


def read_prompt(name: str, source: "Source", function_name: str) -> str:
    """Read one prompt; our placeholders have the names of the records' fields in the public code."""
    function = source.function(function_name)
    parts = {role: source.message(function, role) for role in ("system", "user")}
    if name == "planner":  # its target is a lead-in and the variable that collects the lines of the plan
        parts["assistant"] = source.message(function, "assistant").rpartition("{")[0] + "{plan}"
    text = "".join(f"[{role}]\n{content}\n" for role, content in parts.items()) + "[end]\n"
    parse_prompt(f"lampqa/{name}", text, f"{source.path}: what {function_name} builds")
    return text


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

    def message(self, function: ast.FunctionDef, role: str) -> str:
        """Return the content of the one chat message of a role that a function writes out."""
        values = assigned(self.tree) | assigned(function)
        found = []
        for node in ast.walk(function):
            if isinstance(node, ast.Dict):
                entries = {
                    getattr(key, "value", None): value for key, value in zip(node.keys, node.values, strict=True)
                }
                if getattr(entries.get("role"), "value", None) == role and "content" in entries:
                    found.append(entries["content"])
        if len(found) != 1:
            raise self.refusal(f"{function.name} has {len(found)} messages of the role {role}, not one", function)
        return self.text(found[0], values)

    def text(self, node: ast.expr, values: dict[str, ast.expr]) -> str:
        """Return the text that an expression builds, with `{name}` for each field or variable that is filled in."""
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.JoinedStr(values=parts):
                return "".join(self.text(part, values) for part in parts)
            case ast.FormattedValue(value=value):
                return self.text(value, values)
            case ast.Name(id=name) if name in values:  # within it, itself is what it was before
                return self.text(values[name], {other: value for other, value in values.items() if other != name})
            case ast.Name(id=name) if not name.isupper():
                return f"{{{name}}}"
            case ast.Name(id=name):
                raise self.refusal(f"has no constant {name}")
            case ast.Subscript(slice=ast.Constant(value=str(name))):
                return f"{{{name}}}"
            case ast.Subscript(value=ast.Subscript() as column):  # data["question"][i]
                return self.text(column, values)
            case ast.Call(func=ast.Attribute(value=template, attr="format"), args=[], keywords=keywords):
                filled = {str(keyword.arg): self.text(keyword.value, values) for keyword in keywords}
                try:
                    return self.text(template, values).format(**filled)
                except (LookupError, ValueError) as error:
                    raise self.refusal(f"a text that str.format does not fill: {error!r}", node) from None
        raise self.refusal("a text that cannot be read without running the code", node)


def assigned(scope: ast.FunctionDef | ast.Module) -> dict[str, ast.expr]:
    """Return the constants of a module by name, or a function's variables that are texts with fields."""
    is_module = isinstance(scope, ast.Module)
    nodes = [node for node in (scope.body if is_module else ast.walk(scope)) if isinstance(node, ast.Assign)]
    values = {target.id: node.value for node in nodes for target in node.targets if isinstance(target, ast.Name)}
    kept = ast.expr if is_module else ast.JoinedStr | ast.Subscript
    return {name: value for name, value in values.items() if isinstance(value, kept)}


if __name__ == "__main__":
    cli.run_script(main)
