"""Extract the prompts of LaMP-QA's public code from a clone into a folder for --prompts_dir.

  git clone https://github.com/LaMP-Benchmark/LaMP-QA
  git -C LaMP-QA checkout 504410d
  python utils/import_prompts.py --code_dir LaMP-QA --output_dir prompts_paper

The clone's files are read as text, and never imported or run. With --prompts_dir prompts_paper, baselines.py,
train_planner.py, planpers.py and evaluate_responses.py (for aspects) use the public code's prompts, character for
character. train_planner.py --planner_target reference also learns its targets. A note names the prompts that differ
from those of the commit above.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import argparse
import ast
import os
from collections.abc import Iterable

from prompts import load_prompt, parse_prompt
from utils.base import cli
from utils.base.errors import UserError
from utils.base.json_files import read_text
from utils.base.made import say_finished
from utils.base.writing import fill_folder
from utils.benchmarks.lampqa.task import PUBLIC_CODE

COMMIT = "504410d"
FORMATTERS, EVALUATOR = "data/formetters.py", "evaluation/evaluator.py"
FUNCTIONS = {  # by our prompt's name: the file and the function that build its messages
    "no_personalization": (FORMATTERS, "get_baseline_no_rag_formatter"),
    "rag": (FORMATTERS, "get_baseline_rag_formatter"),
    "planpers": (FORMATTERS, "get_generation_with_plan_rag_formatter"),
    "planner": (FORMATTERS, "get_planner_formatter"),
    "aspect_judge": (EVALUATOR, "create_eval_prompt"),
}


def build_parser() -> argparse.ArgumentParser:
    parser = cli.make_parser(__doc__)
    parser.add_argument("--code_dir", required=True, metavar="DIR", help="your clone of the public code")
    parser.add_argument("--output_dir", required=True, metavar="DIR", help="new folder for the prompt files")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    if not Path(args.code_dir).is_dir():
        raise UserError(f"{args.code_dir}: no such folder\n  clone the public code first (docs/deviations.md)")
    files = {name: read_prompt(name, Path(args.code_dir), *place) for name, place in FUNCTIONS.items()}
    output = Path(args.output_dir)
    if is_finished(output, files):
        say_finished(output)
    else:
        with fill_folder(output.resolve()) as folder:
            for name, text in files.items():
                (folder / f"{name}.txt").write_text(text, encoding="utf-8")
        print(f"{output}: {', '.join(files)}")
    if differing := [name for name in files if load_prompt(f"lampqa/{name}", output).digest != PUBLIC_CODE[name]]:
        print(f"note: wording differs from commit {COMMIT}: {', '.join(differing)}", file=sys.stderr)
    return 0


def is_finished(output: Path, files: dict[str, str]) -> bool:
    """Return whether the folder holds these files; UserError if it holds anything else."""
    paths = {output / f"{name}.txt": text for name, text in files.items()}
    if all(path.is_file() and read_text(path) == text for path, text in paths.items()):
        return True
    if os.path.lexists(output) and not (output.is_dir() and not any(output.iterdir())):
        raise UserError(
            f"{output}: exists, but does not have these prompts\n  choose another --output_dir, or delete it"
        )
    return False


# From code to prompt files


def read_prompt(name: str, code_dir: Path, path: str, function_name: str) -> str:
    """Return one prompt's text; its placeholders are the public code's field names."""
    try:
        messages = read_messages(read_text(code_dir / path), function_name)
        parts = {role: messages[role] for role in ("system", "user")}
        if name == "planner":  # its target is a lead-in, then the variable with the plan's lines
            parts["assistant"] = messages["assistant"].rpartition("{")[0] + "{plan}"
    except (UserError, LookupError, SyntaxError, ValueError) as error:
        what = f"{code_dir / path}: cannot read the prompt of {function_name} without running the code: {error!r}"
        what = str(error) if isinstance(error, UserError) else what
        remedy = f"use the supported commit: git -C {code_dir} checkout {COMMIT}"
        raise UserError(f"{what}\n  {remedy}") from None
    text = "".join(f"[{role}]\n{content}\n" for role, content in parts.items()) + "[end]\n"
    parse_prompt(f"lampqa/{name}", text, f"{code_dir / path}: prompt of {function_name}")
    return text


def read_messages(source: str, function_name: str) -> dict[str, str]:
    """Return, by role, the content of the messages that a function builds; LookupError or ValueError if unreadable."""
    tree = ast.parse(source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function_name]
    if not functions:
        raise LookupError(f"has no function {function_name}")
    constants = {name: value for name, value in assigned(tree.body).items() if isinstance(value, ast.expr)}
    in_function = assigned(ast.walk(functions[0]))
    variables = {name: value for name, value in in_function.items() if isinstance(value, ast.JoinedStr | ast.Subscript)}
    messages: dict[str, ast.expr] = {}
    for node in (node for node in ast.walk(functions[0]) if isinstance(node, ast.Dict)):
        entries = {getattr(key, "value", None): value for key, value in zip(node.keys, node.values, strict=True)}
        if "content" in entries and isinstance(role := getattr(entries.get("role"), "value", None), str):
            if role in messages:
                raise LookupError(f"{function_name} has two messages of the role {role}")
            messages[role] = entries["content"]
    values = constants | variables
    return {role: text_of(node, values) for role, node in messages.items()}


def assigned(nodes: Iterable[ast.AST]) -> dict[str, ast.expr]:
    """Return the last value assigned to each name."""
    assignments = [node for node in nodes if isinstance(node, ast.Assign)]
    return {target.id: node.value for node in assignments for target in node.targets if isinstance(target, ast.Name)}


def text_of(node: ast.expr, values: dict[str, ast.expr]) -> str:
    """Return the text that an expression builds, with `{name}` for each field or variable in it."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part, values) for part in parts)
        case ast.FormattedValue(value=value):
            return text_of(value, values)
        case ast.Name(id=name) if name in values:  # within its own new value, a name has its earlier value
            return text_of(values[name], {other: value for other, value in values.items() if other != name})
        case ast.Name(id=name) if not name.isupper():
            return f"{{{name}}}"
        case ast.Name(id=name):
            raise LookupError(f"has no constant {name}")
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return f"{{{name}}}"
        case ast.Subscript(value=ast.Subscript() as column):  # data["question"][i]
            return text_of(column, values)
        case ast.Call(func=ast.Attribute(value=template, attr="format"), args=[], keywords=keywords):
            filled = {str(keyword.arg): text_of(keyword.value, values) for keyword in keywords}
            return text_of(template, values).format(**filled)
    raise ValueError(f"line {node.lineno} is not a text")


if __name__ == "__main__":
    cli.run_script(main)
