"""Parts shared by the tasks of LaMP and LongLaMP, and the conversion of their own files to records and back."""

import json
import re
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from utils.base.errors import UserError, quote
from utils.benchmarks.checks import Identified, Item, Record, check_field, check_id, selection_of
from utils.benchmarks.metric import Metric, Output
from utils.benchmarks.published import AVOCADO
from utils.benchmarks.task import Export, Files, Task

NUMBERS = ("score", "overall")  # fields of an item that may be a number
_DATE = re.compile(r"[0-9]{1,9}(-[0-9]{1,9})*")


def after(anchor: str) -> Callable[[str], str]:
    """Return a function from a question to its text after the first `anchor`; it raises ValueError without one."""

    def query(text: str) -> str:
        _, separator, rest = text.partition(anchor)
        if not separator:
            raise ValueError(f"has no {anchor!r} before its text")
        return rest.strip()

    return query


def dated(field: str) -> Callable[[Item], tuple[int, ...] | None]:
    """Return a function from an item to its date, such as (2014, 3, 6) for 2014-03-06, or None without a date."""

    def date(item: Item) -> tuple[int, ...] | None:
        text = str(item.get(field)).strip()
        return tuple(map(int, text.split("-"))) if _DATE.fullmatch(text) else None

    return date


def to_record(name: str, question: Mapping[str, Any], where: str) -> Record:
    """Return a record of task `name` from a question of the original files, with `output` as its target if known.

    Unknown fields are kept. An item without an id gets the id `<question's id>-<number of the item>`.
    """
    record: Record = {"task": name, "id": check_id(question.get("id"), where)}
    where = f"{where} (id {quote(record['id'])})"
    check_field(question, where, "input", str)
    record["question"] = question["input"]
    if "output" in question:
        check_field(question, where, "output", str)
        record["target"] = question["output"].strip()
    record |= {field: value for field, value in question.items() if field not in ("id", "input", "output", "profile")}
    items = question.get("profile")
    if isinstance(items, list):
        named = enumerate(items)
        items = [{"id": f"{record['id']}-{i}", **item} if isinstance(item, dict) else item for i, item in named]
    return record | {"profile": items}


def write_golds(name: str, records: Sequence[Record], responses: Mapping[str, dict[str, Any]]) -> str:
    """Return a system's answers in the format of LaMP's right answers, `{"task", "golds": [{"id", "output"}]}`.

    An answer that was selected by score keeps its sample number and score, as in a response file.
    """
    firsts = {record["id"]: responses[record["id"]] for record in records}
    golds = [{"id": key, "output": first["output"], **selection_of(first)} for key, first in firsts.items()]
    return json.dumps({"task": original_name(name), "golds": golds}, ensure_ascii=False, indent=2) + "\n"


def original_name(name: str) -> str:
    return name.replace("-", "_")


def convert_emails(name: str, question: dict[str, Any], where: str) -> Record:
    """Return a record of an email task; UserError if the question still has a message id instead of a text."""
    text = question.get("input")
    if isinstance(text, str) and len(text.split()) == 1:
        raise UserError(
            f"{where}: field 'input' is {quote(text)}, a message's id instead of its text\n"
            f"  see {AVOCADO} for how to add the texts, which needs a licence"
        )
    return to_record(name, question, where)


class Original(Task):
    """A benchmark that supports --trim_items, because its public code trims items."""

    async def answer(self, record: Record, ask: Any, args: Namespace) -> dict[str, Any]:
        if not args.trim_items:
            return await super().answer(record, ask, args)
        return await ask.record("rag", items=self.best_entries(record, args.num_contexts))


def make_task(
    name: str,
    prompt: str,
    query: Callable[[str], str],
    compared: Sequence[str],
    item_template: Callable[[Item], str],
    output: Output,
    metrics: Mapping[str, Metric],
    *,
    more: Sequence[str] = (),
    trimmed: str | None = None,
    target: Any = str,
    checks: Mapping[str, Callable[[Record, str], None]] = MappingProxyType({}),
    facts: str = "",
    convert: Callable[[dict[str, Any], str], Record] | None = None,
    published: Callable[[str], Mapping[str, Sequence[Any]]] = lambda name: {},
    paper_results: Path | None = None,
    **others: Any,
) -> Task:
    """Make a task with one group (itself) and one prompt, which leaves out its profile paragraph without a profile.

    Tasks whose prompts are in the same folder share that folder's prompt for plans; the user must supply the plans.

    Args:
        query: returns retrieval's query from the input; a ValueError says which part is missing.
        compared: the fields of an item that retrieval compares, joined by a space.
        item_template: returns the text of an item in a prompt.
        more: further fields of an item, used only in prompts.
        trimmed: the field that --trim_items cuts (default: the last of `compared`).
        target: the type of the target.
        checks: further checks, as in `Task`.
        facts, convert, published, paper_results: as in `Files`; `published` gets the name, and `convert` is `to_record`
            by default.
        others: further fields of the `Task`.
    """

    def query_of(record: Record, where: str | None = None) -> str:
        try:
            return query(record["question"])
        except ValueError as error:
            raise UserError(f"{where or 'id ' + quote(record['id'])}: field 'question' {error}") from None

    kinds = {field: str | int | float if field in NUMBERS else str for field in (*compared, *more)}  # may be ""
    return Original(
        name=name,
        groups=(name,),
        group_of=lambda record: {"group": name},
        group_field="task",
        group_words=("task", "tasks", "part"),
        fields={
            "profile": list[msgspec.defstruct("Item", kinds.items(), bases=(Identified,), kw_only=True)],
            "target": target,
        },
        checks={"profile": query_of, **checks},
        prompts={"none": prompt, "rag": prompt, "planpers": f"{prompt.partition('/')[0]}/planpers"},
        output=output,
        metrics=metrics,
        query=query_of,
        item_text=lambda item: " ".join(str(item[field]) for field in compared),
        item_template=item_template,
        trimmed=trimmed or compared[-1],
        files=Files(
            facts=facts,
            convert=convert or partial(to_record, name),
            published=partial(published, name),
            export=Export(f"{original_name(name)}.json", partial(write_golds, name)),
            paper_results=paper_results,
        ),
        **others,
    )
