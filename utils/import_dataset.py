"""Make a LaMP-QA dataset of your own questions and posts, from CSV, TSV, JSON Lines or JSON arrays.

  python utils/import_dataset.py --questions questions.csv --posts posts.csv --output_addr data/own_test.json
  python utils/import_dataset.py --questions asked.tsv --posts posts.jsonl --output_addr data/own_test.json \\
      --columns id=qid question=title author=user --post_columns author=user text=body

A question needs id, question and author, a post author and text; docs/files.md describes the other fields. A profile
has the author's posts before the question's date, the latest last; without dates, all but the question itself.
"""

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils import cli
from utils.benchmarks.checks import Record, Text, check_field, check_form, check_json
from utils.benchmarks.lampqa import TASK
from utils.cli import UserError
from utils.cli.errors import kind, named, quote
from utils.files.derived_files import add_overwrite_argument, prepare_derived
from utils.files.file_hashes import file_hash
from utils.files.locks import locked
from utils.files.manifest import describe_run, publishing
from utils.files.writing import write_json
from utils.records.datasets import check_record
from utils.records.leaks import padded
from utils.records.originals import rows_of
from utils.records.stream import is_table

SCRIPT = "utils/import_dataset.py"
OPTIONAL = ("narrative", "rubric_aspects", "category", "date")
Rows = Iterator[tuple[str, dict[str, Any]]]  # for each row, its file and number, for messages; and its fields


def build_parser() -> argparse.ArgumentParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--questions", required=True, metavar="FILE", help="*.csv, *.tsv, *.jsonl or a JSON array")
    add("--posts", required=True, metavar="FILE", help="the posts of all users, in one of these formats")
    for flag, file in (("--columns", "--questions"), ("--post_columns", "--posts")):
        add(flag, nargs="+", metavar="FIELD=COLUMN",
            help=f"columns of {file} that are not named after their fields (default: none)")
    add("--output_addr", required=True, metavar="FILE", help="the dataset, *.json")
    # fmt: on
    add_overwrite_argument(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    output, counts = Path(args.output_addr), Counter({"questions": 0, "posts in profiles": 0})
    if output.suffix != ".json":
        raise UserError(f"{output}: the dataset is a JSON array; give a name that ends in .json")
    cli.check_outputs([args.output_addr], [args.questions, args.posts])
    prepare_derived([output], SCRIPT, args.overwrite)
    questions = read_rows(args.questions, args.columns, "--columns", "id", "question", "author")
    posts = read_rows(args.posts, args.post_columns, "--post_columns", "author", "text")
    run: dict[str, Any] = {}
    with locked(output), publishing(output, run) as staged:
        with TemporaryFile(dir=output.parent) as file:  # posts may take more than the memory
            write_json(staged, with_profiles(questions, posts, file, counts))
        settings = {"script": SCRIPT, "inputs": {path: file_hash(path) for path in (args.questions, args.posts)}}
        run |= describe_run(vars(args), settings, None, counts=counts)
    print(f"{output}: {', '.join(named(count, what) for what, count in counts.items() if count)}")
    return 0


def read_rows(path: str, columns: list[str] | None, flag: str, *needed: str) -> Rows:
    """Yield a file's rows; UserError if one lacks the column of a `needed` field, or one that `flag` names."""
    names = {field: field for field in needed} | dict(column.partition("=")[::2] for column in columns or ())
    number, taken = 0, {*names, *names.values()}
    for number, row in enumerate(rows_of(Path(path)), 2 if is_table(path) else 1):  # as a spreadsheet counts
        where = f"{path}: row {number}"
        check_form(row, dict[str, Any], where)
        if absent := [name for name in names.values() if name not in row]:
            problem = f"{where}: no column {absent[0]!r}, only {', '.join(row)}"
            columns = " ".join(f"{field}=COLUMN" for field in needed)
            raise UserError(f"{problem}\n  name the columns with {flag} {columns}")
        others = {name: value for name, value in row.items() if name not in taken}
        row = {field: row[name] for field, name in names.items()} | others
        check_field(row, where, "author", Text | int)
        yield where, {name: value for name, value in row.items() if value not in ("", None) or name not in OPTIONAL}
    if not number:
        raise UserError(f"{path}: has no rows")


def with_profiles(questions: Rows, posts: Rows, file: IO[bytes], counts: Counter[str]) -> Iterator[Record]:
    """Yield the questions with their profiles, checked as in a dataset; `file` holds the posts meanwhile."""
    places = defaultdict(list)  # by author: each post's time, and its offset and length in the file
    for where, post in posts:
        check_field(post, where, "text")
        check_json(post, where)
        counts["posts without a date"] += "date" not in post
        author_posts = places[str(post.pop("author"))]
        author_posts.append((time_of(post, where, -math.inf), file.tell(), file.write(json.dumps(post).encode())))
    seen: dict[str, str] = {}
    for where, record in questions:
        if clash := {"profile", "task"} & record.keys():
            name = min(clash)
            problem = f"column {name!r} has the name of another field of datasets"
            raise UserError(f"{where}: {problem}; rename it: --columns NAME={name}")
        if "rubric_aspects" in record:
            record["rubric_aspects"] = read_aspects(record["rubric_aspects"], where)
        check_record(record, where, [*(TASK.fields.keys() & record.keys())])
        if (other := seen.setdefault(record["id"], where)) != where:
            raise UserError(f"{other} and {where}: both have id {quote(record['id'])}; ids must be unique")
        before, profile = time_of(record, where, math.inf), []
        question, narrative = padded(record["question"]), padded(record.get("narrative", ""))
        for time, offset, length in sorted(places[str(record["author"])], key=lambda place: place[0]):
            file.seek(offset)
            post = json.loads(file.read(length))
            text = padded(post["text"])
            if str(post.get("id")) == record["id"] or text == question or ("narrative" in record and narrative in text):
                counts["posts left out as the question itself"] += 1
            elif time >= before:
                counts["posts left out as not older than their question"] += 1
            else:
                profile.append(post)
        counts.update({"questions": 1, "posts in profiles": len(profile), "questions without posts": not profile})
        counts["questions without a date"] += "date" not in record
        yield {**record, "profile": profile}


def read_aspects(aspects: Any, where: str) -> Any:
    """Return a list of aspects, also from JSON and from titles, else the value; UserError if a text is not JSON."""
    try:
        value = json.loads(aspects) if isinstance(aspects, str) else aspects
    except (ValueError, RecursionError):
        problem = f"{where}: field 'rubric_aspects' is {kind(aspects)}"
        raise UserError(f'{problem}; give a JSON list, such as ["price"] or [{{"aspect": "price"}}]') from None
    return (
        [{"aspect": aspect} if isinstance(aspect, str) else aspect for aspect in value]
        if isinstance(value, list)
        else value
    )


def time_of(row: dict[str, Any], where: str, undated: float) -> float:
    """Return a date in seconds since 1970, in UTC without a zone; of a post without a time, the end of its day."""
    if "date" not in row:
        return undated
    try:
        time = datetime.fromisoformat(row["date"] + "T23:59:59.999999" * (undated < 0 and len(row["date"]) <= 10))
    except (ValueError, TypeError):
        problem = f"{where}: field 'date' is {kind(row['date'])}"
        raise UserError(f"{problem}; give 2024-05-31 or 2024-05-31T18:30:00Z (ISO 8601)") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


if __name__ == "__main__":
    cli.run_script(main)
