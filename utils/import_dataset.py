"""Make a dataset in LaMP-QA's form from your own questions and posts in CSV, TSV, JSON Lines or JSON arrays.

  python utils/import_dataset.py --questions questions.csv --posts posts.csv --output_addr data/own_test.json
  python utils/import_dataset.py --questions asked.tsv --posts posts.jsonl --output_addr data/own_test.json \\
      --columns id=qid question=title author=user --post_columns author=user text=body

A question needs the fields id, question and author; a post needs author and text; docs/files.md describes the other
fields. A profile has the author's posts before the question's date, the latest last; without dates, it has all the
author's posts except the question itself.
"""

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils.base import cli
from utils.base.errors import UserError, count_noun, count_plural, kind, quote
from utils.base.made import add_overwrite_argument, derived, prepare_derived
from utils.base.manifest import describe_run, file_hash
from utils.base.progress import announce
from utils.base.writing import write_json
from utils.benchmarks.checks import Record, check_field, check_form, check_id, check_json, comparable
from utils.benchmarks.lampqa.task import TASK
from utils.benchmarks.readers import one_line
from utils.data.datasets import check_record
from utils.data.leaks import contains, is_telling
from utils.data.originals import rows_of

SCRIPT = "utils/import_dataset.py"
OPTIONAL = ("narrative", "rubric_aspects", "category", "date")  # dropped if empty
COUNTS = (
    "questions",
    "posts in profiles",
    "rows of questions read",
    "rows of posts read",
)  # then what was dropped
COMPARED = ("category", "date")
Rows = Iterator[tuple[str, dict[str, Any]]]  # for each row: its file and number (for messages), and its fields


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
    output, counts = Path(args.output_addr), Counter(dict.fromkeys(COUNTS, 0))
    if output.suffix != ".json":
        raise UserError(f"{output}: the dataset is a JSON array; its name must end in .json")
    cli.check_outputs([args.output_addr], [args.questions, args.posts])
    prepare_derived([output], SCRIPT, args.overwrite)
    questions = read_rows(args.questions, args.columns, "--columns", "id", "question", "author")
    posts = read_rows(args.posts, args.post_columns, "--post_columns", "author", "text")
    with derived(output, SCRIPT, args.overwrite).writing(describe_run(vars(args), {}, None)) as (staged, manifest):
        write_json(staged, with_profiles(questions, posts, counts))
        hashes = {path: file_hash(path) for path in (args.questions, args.posts)}
        manifest |= {"settings": {"script": SCRIPT, "inputs": hashes}, "counts": counts}
    print(f"{output}: {', '.join(count_plural(count, what) for what, count in counts.items() if count)}")
    return 0


def read_rows(path: str, columns: list[str] | None, flag: str, *needed: str) -> Rows:
    """Yield a file's rows, with ids, users, categories and dates in a comparable form.

    UserError if a row lacks the column of a `needed` field, or a column that `flag` names.
    """
    names = {field: field for field in needed} | dict(column.partition("=")[::2] for column in columns or ())
    mapped, where = {*names, *names.values()}, None
    for where, row in rows_of(Path(path)):
        check_form(row, dict[str, Any], where)
        if missing := [name for name in names.values() if name not in row]:
            problem = f"{where}: no column {missing[0]!r}, only {', '.join(row)}"
            columns = " ".join(f"{field}=COLUMN" for field in needed)
            raise UserError(f"{problem}\n  name the columns with {flag} {columns}")
        further = {name: value for name, value in row.items() if name not in mapped}
        row = {field: row[name] for field, name in names.items()} | further
        row |= {name: comparable(row[name]) for name in COMPARED if type(row.get(name)) in (str, int, float)}
        empty = [name for name in OPTIONAL if row.get(name) is None or not str(row[name]).strip()]
        yield where, {name: value for name, value in row.items() if name not in empty}
    if where is None:
        raise UserError(f"{path}: has no rows")


def with_profiles(questions: Rows, posts: Rows, counts: Counter[str]) -> Iterator[Record]:
    """Yield the questions with their profiles, checked as in a dataset."""
    posts_of = defaultdict(list)  # by user: pairs of time and post
    for where, post in posts:
        counts["rows of posts read"] += 1
        if post["author"] is None or not str(post["author"]).strip():  # of a deleted user, for example
            counts["posts without a user"] += 1
            continue
        post["author"] = check_id(post["author"], where, "author")
        check_field(post, where, "text")
        check_json(post, where)
        if post.get("id") is not None and str(post["id"]).strip():
            post["id"] = check_id(post["id"], where)
        counts["posts without a date"] += "date" not in post
        posts_of[post.pop("author")].append((time_of(post, where, -math.inf), post))
    seen: dict[str, str] = {}
    questions_by: Counter[str] = Counter()
    for where, record in questions:
        record["author"] = check_id(record["author"], where, "author")
        if clash := {"profile", "task"} & record.keys():
            name = min(clash)
            problem = f"column {name!r} has the name of another field of datasets"
            raise UserError(f"{where}: {problem}; rename it: --columns NAME={name}")
        if "rubric_aspects" in record:
            record["rubric_aspects"] = read_aspects(record["rubric_aspects"], where)
        check_record(record, where, [*(TASK.fields.keys() & record.keys())])
        if (other := seen.setdefault(record["id"], where)) != where:
            raise UserError(f"{other} and {where}: both have id {quote(record['id'])}; ids must be unique")
        questions_by[record["author"]] += 1
        before, profile = time_of(record, where, math.inf), []
        question, narrative = one_line(record["question"]), record.get("narrative", "")
        for time, post in sorted(posts_of.get(record["author"], ()), key=itemgetter(0)):
            is_same = post.get("id") == record["id"] or one_line(post["text"]) == question
            if is_same or (is_telling(narrative) and contains(post["text"], narrative)):
                counts["posts left out as the question itself"] += 1
            elif time >= before:
                counts["posts left out as not older than their question"] += 1
            else:
                profile.append(post)
        counts.update({"questions": 1, "posts in profiles": len(profile), "questions without posts": not profile})
        counts.update({"questions without a date": "date" not in record, "rows of questions read": 1})
        yield {**record, "profile": profile}
    posts_by = Counter({user: len(posts) for user, posts in posts_of.items()})
    counts["posts by users without a question"] = check_users(questions_by, posts_by)


def check_users(questions_by: Counter[str], posts_by: Counter[str]) -> int:
    """Return the number of posts by users who ask nothing; a note says if most questions or posts have no counterpart.

    UserError if no user has both.
    """
    sides = [("question", "post", questions_by, posts_by), ("post", "question", posts_by, questions_by)]
    shares, problems = [], []
    if not posts_by:
        raise UserError("no post has a user\n  name the column with the users: --post_columns author=COLUMN")
    for noun, other, number_by, others in sides:
        alone = [user for user in number_by if user not in others]
        number = sum(number_by[user] for user in alone)
        shares.append(number / number_by.total())
        example = f", such as {quote(alone[0])}" if alone else ""
        problems.append(f"{number} of {count_noun(number_by.total(), noun)} by users without a {other}{example}")
    if min(shares) == 1:
        columns = "--columns author=COLUMN --post_columns author=COLUMN"
        raise UserError(f"no user has questions and posts: {'; '.join(problems)}\n  name the columns: {columns}")
    if max(shares) > 0.5:
        announce(f"note: {'; '.join(problems)}")
    return number


def read_aspects(aspects: Any, where: str) -> Any:
    """Return a list of aspects, from JSON or titles if necessary, else the value; UserError if a text is not JSON."""
    try:
        value = json.loads(aspects) if isinstance(aspects, str) else aspects
    except (ValueError, RecursionError):
        problem = f"{where}: field 'rubric_aspects' is {kind(aspects)}"
        raise UserError(f'{problem}; use a JSON list, such as ["price"] or [{{"aspect": "price"}}]') from None
    return (
        [{"aspect": aspect} if isinstance(aspect, str) else aspect for aspect in value]
        if isinstance(value, list)
        else value
    )


def time_of(row: dict[str, Any], where: str, undated: float) -> float:
    """Return a date as a Unix time (UTC unless it has a zone); for a post without a time of day, the end of the day."""
    if "date" not in row:
        return undated
    try:
        time = datetime.fromisoformat(row["date"] + "T23:59:59.999999" * (undated < 0 and len(row["date"]) <= 10))
    except (ValueError, TypeError):
        problem = f"{where}: field 'date' is {kind(row['date'])}"
        raise UserError(f"{problem}; use 2024-05-31 or 2024-05-31T18:30:00Z (ISO 8601)") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


if __name__ == "__main__":
    cli.run_script(main)
