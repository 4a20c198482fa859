"""What the HTML pages share: the report, and the page on which people rate."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from utils.benchmarks.task import Record, Task
from utils.cli import UserError
from utils.cli.errors import first_five

HELPERS = Path(__file__).with_name("page_helpers.js")  # how every page shows models' and users' texts


def fill_template(template: Path, words: dict[str, str]) -> str:
    """Make a page without its data; its policy allows only its own style and script."""
    page = template.read_text(encoding="utf-8")
    for name, text in {"helpers": HELPERS.read_text(encoding="utf-8").removesuffix("\n"), **words}.items():
        page = page.replace(f"{{{{{name}}}}}", text)
    style, script = (re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1] for tag in ("style", "script"))
    policy = f"default-src 'none'; style-src '{source_hash(style)}'; script-src '{source_hash(script)}'; "
    return page.replace("{{policy}}", policy + "base-uri 'none'; form-action 'none'")


def source_hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def to_json(value: Any) -> str:
    """Return JSON that no HTML parser sees a tag, an end of a script or a comment in: pure ASCII without < > &."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def as_text(value: Any) -> str | None:
    """Return a field that may hold anything, for others' files do, as a text."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def add_new(whole: dict[str, Any], part: dict[str, Any], path: str) -> None:
    """Add a file's questions to a system's; UserError if one is in two files."""
    if twice := whole.keys() & part.keys():
        raise UserError(f"{path}: another file of this system has {first_five(sorted(twice))} too")
    whole.update(part)


def rubric_parts(task: Task) -> Callable[[Record], list[Any]] | None:
    return next((metric.parts for metric in task.metrics.values() if metric.parts), None)


def rubric(task: Task, record: Record) -> list[list[str]]:
    """Return what verdicts are on, title first; nothing where they are on whole answers."""
    parts = rubric_parts(task)
    return parts(record) if parts else []


def unseen_texts(task: Task, record: Record) -> dict[str, str | None]:
    """Return by field what only the scorer sees of a question, besides its aspects and its cluster."""
    needed = dict.fromkeys(name for metric in task.metrics.values() for name in metric.needs)
    shown_elsewhere = (*task.gold_plan_needs, task.user_field)
    return {name: as_text(record.get(name)) for name in needed if name not in shown_elsewhere}
