"""LaMP's seven tasks: short answers that suit a user's earlier texts (arXiv 2304.11406).

A record is `{task, id, question, target, profile: [{id, ..., date}]}`. The question is LaMP's unchanged `input`, and
the target its `output`, which only the scorer sees; test sets have no targets. LaMP-2 is movie tagging; files of the
older task of that name, news categories, are refused.
"""

import re
from functools import partial
from pathlib import Path
from typing import Any, Literal

from utils.base.errors import UserError
from utils.benchmarks.checks import Record
from utils.benchmarks.lamp.bare_text import LabelParser, parse_rating, parse_text, words_of
from utils.benchmarks.lamp.originals import after, convert_emails, dated, make_task, to_record
from utils.benchmarks.metric import Output
from utils.benchmarks.published import OnServer, by_setting
from utils.benchmarks.references import check_rating, label_metrics, rating_metrics, text_metrics

REFERENCES = ("[1]", "[2]")
TAGS = (
    "sci-fi", "based on a book", "comedy", "action", "twist ending", "dystopia", "dark comedy", "classic", "psychology",
    "fantasy", "romance", "thought-provoking", "social commentary", "violence", "true story",
)  # fmt: skip

# The server from which public code fetches LaMP (unverified): a folder per task, and in `time` the folders of
# time-based splits. The folder LaMP_2 itself has the news categories, and LaMP-6 has message ids instead of texts.
SERVER = "https://ciir.cs.umass.edu/downloads/LaMP"
FOLDERS = {f"LaMP-{number}": f"LaMP_{number}" for number in range(1, 8)} | {"LaMP-2": "LaMP_2/new"}
LICENSED = ("LaMP-6",)
SPLITS = ("train", "dev", "test")
# Unverified numbers of questions per split of the time-based setting, from memory of the paper. The numbers of the
# user-based setting are unknown.
QUESTIONS = {
    "time/LaMP_1": (6542, 1500, 1500),
    "time/LaMP_2/new": (5073, 1410, 1557),
    "time/LaMP_3": (20000, 2500, 2500),
    "time/LaMP_4": (12500, 1500, 1800),
    "time/LaMP_5": (14682, 1500, 1500),
    "time/LaMP_6": (4821, 1250, 1250),
    "time/LaMP_7": (13437, 1498, 1500),
}

# A title may contain quotes, so the titles are found by the template's numbers.
_CANDIDATES = re.compile(r'\[1\]:\s*"(.*)"\s*\[2\]:\s*"(.*)"\s*\Z', re.DOTALL)


def candidates(text: str) -> str:
    """Return the titles of the two references; ValueError if the text does not end in them."""
    match = _CANDIDATES.search(text)
    if match is None:
        raise ValueError('does not end with the titles to choose from: [1]: "..." [2]: "..."')
    return f"{match[1]} {match[2]}"


def convert_movies(question: dict[str, Any], where: str) -> Record:
    """Return a record of LaMP-2; UserError for a question of the older task of this name, news categories."""
    items = question.get("profile")
    if isinstance(items, list) and any("category" in item for item in items if isinstance(item, dict)):
        raise UserError(
            f"{where}: is from the old version of LaMP-2 (news categories); this task is movie tagging\n"
            "  use the files in the folder LaMP_2/new on LaMP's server"
        )
    return to_record("LaMP-2", question, where)


def published(name: str) -> dict[str, list[OnServer]]:
    at = None if name in LICENSED else SERVER
    folders = {"user": FOLDERS[name], "time": f"time/{FOLDERS[name]}"}
    return by_setting(OnServer, name, at, folders, SPLITS, QUESTIONS, "the paper, from memory,")


CITATION = Output(r"\[[12]\]", LabelParser({f"[{n}]": rf"\[{n}\]|(?<![\w.,\[])\(?{n}\)?(?!\w|[.,]\d)" for n in "12"}))
MOVIE_TAG = Output("|".join(TAGS), LabelParser({tag: words_of(tag) for tag in TAGS}))
RATING = Output("[1-5]", parse_rating)
# The training epochs of the paper's models, from memory; tasks with labels use the default of `Task`, 10.
TEXT_EPOCHS = 20
LINE = Output(r"[^\s][^\n]*", parse_text)  # a title, a subject, or a tweet; not empty

make = partial(
    make_task,
    benchmark="LaMP",
    facts="utils/benchmarks/lamp/task.py",
    join=", and ".join,
    item_date=dated("date"),
    date_field="date",
    user_field="user_id",
    published=published,
    paper_results=Path(__file__).with_name("paper.json"),
)
text_task = partial(make, output=LINE, metrics=text_metrics(), epochs=TEXT_EPOCHS)
# Per task: the prompt, the query, the fields of an item that retrieval compares, and an item's statement in a prompt.
# fmt: off
TASKS = [
    make("LaMP-1", "lamp/citation", candidates, ("title", "abstract"), '"{title}"'.format_map,
         CITATION, label_metrics(REFERENCES), target=Literal[REFERENCES], trimmed="title"),
    make("LaMP-2", "lamp/movie_tag", after("description:"), ("description",),
         'the tag "{tag}" for the movie "{description}"'.format_map,
         MOVIE_TAG, label_metrics(TAGS), target=Literal[TAGS], more=("tag",), convert=convert_movies),
    make("LaMP-3", "lamp/rating", after("review:"), ("text",),
         'the score {score} for the review "{text}"'.format_map,
         RATING, rating_metrics(), checks={"target": check_rating}, more=("score",)),
    text_task("LaMP-4", "lamp/headline", after("article:"), ("title", "text"),
              'the headline "{title}" for the article "{text}"'.format_map),
    text_task("LaMP-5", "lamp/scholarly_title", after("paper:"), ("title", "abstract"),
              'the title "{title}" for the abstract "{abstract}"'.format_map),
    text_task("LaMP-6", "lamp/email_subject", after(":"), ("text",),
              'the subject "{title}" for the email "{text}"'.format_map,
              more=("title",), convert=partial(convert_emails, "LaMP-6")),
    text_task("LaMP-7", "lamp/tweet", after(":"), ("text",), '"{text}"'.format_map),
]
# fmt: on
