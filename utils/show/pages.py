"""Code shared by the two HTML pages: the report, and the page for human raters."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from utils.base.errors import UserError, first_five
from utils.benchmarks.checks import Record
from utils.benchmarks.task import Task

HELPERS = Path(__file__).with_name("page_helpers.js")  # functions that show models' and users' texts on every page


def fill_template(template: Path, words: dict[str, str]) -> str:
    """Return the page, still without data. Its security policy allows only its own style and script."""
    page = template.read_text(encoding="utf-8")
    for name, text in {"helpers": HELPERS.read_text(encoding="utf-8").removesuffix("\n"), **words}.items():
        page = page.replace(f"{{{{{name}}}}}", text)
    style, script = (re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1] for tag in ("style", "script"))
    policy = f"default-src 'none'; style-src '{source_hash(style)}'; script-src '{source_hash(script)}'; "
    return page.replace("{{policy}}", policy + "base-uri 'none'; form-action 'none'")


def source_hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def to_json(value: Any) -> str:
    """Return JSON in ASCII without < > &, so that an HTML parser finds no tag or comment in it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def as_text(value: Any) -> str | None:
    """Return a field's value as a text, because files of other origins may have any JSON value there."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def add_new(whole: dict[str, Any], part: dict[str, Any], path: str) -> None:
    """Add a file's questions to a system's; UserError if the system already has one of them."""
    if twice := whole.keys() & part.keys():
        raise UserError(
            f"{path}: also in another file of this system: {first_five(sorted(twice))}; each may appear only once"
        )
    whole.update(part)


def rubric_parts(task: Task) -> Callable[[Record], list[Any]] | None:
    return next((metric.parts for metric in task.metrics.values() if metric.parts), None)


def rubric(task: Task, record: Record) -> list[list[str]]:
    """Return the parts that get verdicts, each with its title first; empty if whole answers get verdicts."""
    parts = rubric_parts(task)
    return parts(record) if parts else []


def unseen_texts(task: Task, record: Record) -> dict[str, str | None]:
    """Return, by field, the texts of a question that only the scorer sees, except the aspects."""
    needed = dict.fromkeys(name for metric in task.metrics.values() for name in metric.needs)
    return {name: as_text(record.get(name)) for name in needed if name in task.hidden_fields - {*task.gold_plan_needs}}
