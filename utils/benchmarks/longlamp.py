"""LongLaMP's four tasks: long texts in the user's style (arXiv 2407.11016).

A record is `{task, id, question, target, profile: [...]}`. The question is the unchanged `input`, and the target the
`output`, which only the scorer sees. Rows on the hub and reviews in a profile have no ids, so they get ids when read.
"""

from functools import partial
from pathlib import Path

from utils.benchmarks.checks import Item
from utils.benchmarks.lamp.bare_text import parse_text
from utils.benchmarks.lamp.originals import after, convert_emails, make_task
from utils.benchmarks.metric import Output
from utils.benchmarks.published import OnHub, OnServer, by_setting
from utils.benchmarks.references import long_text_metrics

# LongLaMP on the hub has two configs per task: new users, and later texts of the same users. The emails are from a
# corpus that needs a license; LongLaMP's builder writes them to files like LaMP's.
HUB = "LongLaMP/LongLaMP"
CONFIGS = {
    "LongLaMP-abstract": "abstract_generation",
    "LongLaMP-review": "product_review",
    "LongLaMP-topic": "topic_writing",
    "LongLaMP-email": "email",
}
LICENSED = ("LongLaMP-email",)
SPLITS = ("train", "val", "test")
# Unverified numbers of rows, from other sources than the paper.
QUESTIONS = {
    "product_review_user": (14745, 1826, 1822),
    "topic_writing_user": (11442, 2453, 2452),
    "email_user": (3286, 958, 823),
}

ABSTRACT_WORDS = 750  # words of an abstract in a prompt, split at white space; the rest is cut

STATED_REVIEW = "rating: {overall}\nproduct: {description}\nsummary: {summary}\nreview: {reviewText}"
TEXT = Output(r"[^\s][\s\S]*", parse_text)  # not empty


def state_abstract(item: Item) -> str:
    return f'"{" ".join(item["abstract"].split()[:ABSTRACT_WORDS])}" is the abstract for the title "{item["title"]}"'


def published(name: str) -> dict[str, list[OnHub | OnServer]]:
    kind, at = (OnServer, None) if name in LICENSED else (OnHub, HUB)
    configs = {setting: f"{CONFIGS[name]}_{setting}" for setting in ("user", "temporal")}
    return by_setting(kind, name, at, configs, SPLITS, QUESTIONS, "an unverified count")


make = partial(
    make_task,
    output=TEXT,
    metrics=long_text_metrics(),
    facts="utils/benchmarks/longlamp.py",
    benchmark="LongLaMP",
    epochs=30,  # as in its public code
    paper_results=Path(__file__).with_name("longlamp_paper.json"),
    published=published,
)
# Per task: the prompt, the query, the fields of an item that retrieval compares, and an item's statement in a prompt.
# fmt: off
TASKS = [
    make("LongLaMP-abstract", "longlamp/abstract", after("items:"), ("title", "abstract"), state_abstract,
         user_field="name"),
    make("LongLaMP-review", "longlamp/review", str, ("overall", "summary", "description", "reviewText"),
         STATED_REVIEW.format_map, user_field="reviewerId"),
    make("LongLaMP-topic", "longlamp/topic", str, ("summary", "content"),
         "summary: {summary}\npost: {content}".format_map, user_field="author"),
    make("LongLaMP-email", "longlamp/email", after(":"), ("text",), "subject: {title}\nemail: {text}".format_map,
         more=("title",), user_field="user_id", convert=partial(convert_emails, "LongLaMP-email")),
]
# fmt: on
