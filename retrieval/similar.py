"""--other_profile similar: another asker's profile from the same category, with the posts most similar to the question.

This control shows whether knowing the topic helps as much as knowing the person. The similarity of a profile to the
question is the mean score of its best `BEST` posts, by the ranker that also orders them: dot products, or BM25 over all
posts of the category. The seed breaks ties.
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

BEST = 10  # the number of posts that RAG shows by default
DECIMALS = 6  # closer scores are ties, because the last bits depend on the machine

Scores = Callable[[str], np.ndarray]  # returns, for a question's text, the scores (P,) of all posts of a category
ScoresOf = Callable[[Sequence[str]], Scores]


def by_bm25(posts: Sequence[str]) -> Scores:
    return BM25Index(posts).scores


def by_embeddings(row_of: dict[str, int], embeddings: np.ndarray) -> ScoresOf:
    """Return a function that scores by dot products; `row_of` has the row of each text in `embeddings` (T, D)."""

    def scores_of(posts: Sequence[str]) -> Scores:
        rows = embeddings[[row_of[post] for post in posts]]
        return lambda query: (rows @ embeddings[row_of[query]]).astype(np.float64)

    return scores_of


def find_similar(
    source: Source, task: Task, args: argparse.Namespace, records: list[Record], scores_of: ScoresOf
) -> Iterator[tuple[int, int | None]]:
    """Yield each question's number, and the number of the question whose profile it gets (None: no profile is left).

    A profile is excluded if it belongs to the same user, or shares a post with the asker's own profile. If posts have
    dates, posts later than the asker's latest one do not count (and are not shown, see `Source.read`).

    Args:
        records: all questions, with their own profiles.
        scores_of: returns the function that scores a category's posts.
    """
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
    numbers_with: dict[str, set[int]] = {}  # by post text, the questions whose profile has it
    for number in numbers:
        for post in texts[number][1:]:
            numbers_with.setdefault(post, set()).add(number)
    score = scores_of(posts) if posts else None
    for number in (number for number in numbers if number < len(source.sizes)):
        query, *own = texts[number]
        excluded = {number}.union(*(numbers_with[post] for post in own))
        others = [other for other in numbers if other not in excluded and len(texts[other]) > 1
                  and user_of(task, records[other]) != user_of(task, records[number])]  # fmt: skip
        scores = score(query) if others else np.empty(0)
        if (latest := latest_date(task, records[number])) is not None:
            scores = np.where([date is not None and date > latest for date in dates], -np.inf, scores)
        similarity = {other: best for other in others if (best := _best(scores[places[other]])) > -np.inf}
        progress.update()
        if not similarity:
            yield number, None
            continue
        top = max(similarity.values())
        ties = sorted(
            (other for other in similarity if similarity[other] == top), key=lambda other: records[other]["id"]
        )
        yield number, random.Random(f"{args.seed} {records[number]['id']}").choice(ties)


def _best(scores: np.ndarray) -> float:
    """Return the rounded mean of the best `BEST` scores, or of all if there are fewer."""
    scores = scores[scores > -np.inf]
    best = np.partition(scores, -BEST)[-BEST:] if len(scores) > BEST else scores
    return round(float(best.mean()), DECIMALS) if len(best) else -np.inf
