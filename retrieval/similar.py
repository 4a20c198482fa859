"""--other_profile similar: the profile of another asker of the same category whose posts are most like the question.

With the asker's own profile and a random one, it tells knowing the person from knowing the topic. A profile's likeness
is the mean score of its best `BEST` posts, by the ranker that also orders them: dot products, or BM25 over all posts of
the category. Ties are broken by the seed.
"""

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import numpy as np

from retrieval.profiles import Source, dates_of, latest_date, texts_of, user_of
from retrieval.rankers import BM25Index
from utils.base.progress import Progress
from utils.benchmarks.checks import Record
from utils.benchmarks.task import Task

BEST = 10  # as many as RAG shows by default
DECIMALS = 6  # scores that differ less are ties: the last bits depend on the machine

Scores = Callable[[str], np.ndarray]  # of all posts of a category, (P,), for a question's text
ScoresOf = Callable[[Sequence[str]], Scores]


def by_bm25(posts: Sequence[str]) -> Scores:
    return BM25Index(posts).scores


class Rows:
    """The embeddings of a dataset's texts, in memory: float32 (T, D)."""

    def __init__(self, texts: Sequence[str], embeddings: np.ndarray):
        self._row_of, self._embeddings = {text: row for row, text in enumerate(texts)}, embeddings

    def find(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """As `Embeddings.find`."""
        return {text: self._embeddings[self._row_of[text]] for text in texts}

    def add(self, texts: Sequence[str], rows: np.ndarray) -> None:
        """As `Embeddings.add`: nothing to do, because all texts are here."""

    def scores_of(self, posts: Sequence[str]) -> Scores:
        rows = self._embeddings[[self._row_of[post] for post in posts]]
        return lambda query: (rows @ self._embeddings[self._row_of[query]]).astype(np.float64)


def all_texts(source: Source, task: Task) -> list[str]:
    """Return the distinct questions and posts of a dataset."""
    numbers = range(len(source.dataset.ids))
    return list(dict.fromkeys(text for number in numbers for text in texts_of(task, source.dataset[number])))


def find_similar(
    source: Source, task: Task, args: argparse.Namespace, scores_of: ScoresOf
) -> Iterator[tuple[int, int]]:
    """Yield the number of each question that is ranked, and that of the question whose profile it gets.

    Left out are profiles of the same user, and those with a post that the asker's own profile has too. If posts have
    dates, posts later than the asker's latest one do not count (and are not shown, see `Source.read`).

    Args:
        scores_of: returns the function that scores a category's posts.

    """
    records = [source.dataset[number] for number in range(len(source.dataset.ids))]
    groups: dict[str, list[int]] = {}
    for number, record in enumerate(records):
        groups.setdefault(task.group_of(record)["group"], []).append(number)
    with closing(Progress(len(source.sizes), "profiles")) as progress:
        for numbers in groups.values():
            if any(number < len(source.sizes) for number in numbers):
                yield from _in_group(source, task, args, scores_of, records, numbers, progress)


def _in_group(
    source: Source,
    task: Task,
    args: argparse.Namespace,
    scores_of: ScoresOf,
    records: list[Record],
    numbers: list[int],
    progress: Progress,
) -> Iterator[tuple[int, int | None]]:
    texts = {number: texts_of(task, records[number]) for number in numbers}
    posts = [post for number in numbers for post in texts[number][1:]]
    ends = np.cumsum([0, *(len(texts[number]) - 1 for number in numbers)])
    places = {number: slice(ends[i], ends[i + 1]) for i, number in enumerate(numbers)}
    dates = [date for number in numbers for date in dates_of(task, records[number])]
    having: dict[str, set[int]] = {}
    for number in numbers:
        for post in texts[number][1:]:
            having.setdefault(post, set()).add(number)
    score = scores_of(posts) if posts else None
    for number in (number for number in numbers if number < len(source.sizes)):
        query, *own = texts[number]
        shared = {number}.union(*(having[post] for post in own))
        others = [other for other in numbers if other not in shared and len(texts[other]) > 1
                  and user_of(task, records[other]) != user_of(task, records[number])]  # fmt: skip
        scores = score(query) if others else np.empty(0)
        if (latest := latest_date(task, records[number])) is not None:
            scores = np.where([date is not None and date > latest for date in dates], -np.inf, scores)
        likeness = {other: best for other in others if (best := _best(scores[places[other]])) > -np.inf}
        progress.update()
        if not likeness:
            yield number, None
            continue
        top = max(likeness.values())
        equal = sorted((other for other in likeness if likeness[other] == top), key=lambda other: records[other]["id"])
        yield number, random.Random(f"{args.seed} {records[number]['id']}").choice(equal)


def _best(scores: np.ndarray) -> float:
    """Return the mean of the best `BEST` scores, or of all if there are fewer, rounded."""
    scores = scores[scores > -np.inf]
    best = np.partition(scores, -BEST)[-BEST:] if len(scores) > BEST else scores
    return round(float(best.mean()), DECIMALS) if len(best) else -np.inf
