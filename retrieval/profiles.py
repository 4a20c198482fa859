"""Profiles for ranking: whose profile each question gets, and the items' texts and dates."""

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from utils.base.errors import UserError, count_noun
from utils.benchmarks.checks import Item, Record
from utils.benchmarks.personamem.contexts import with_unit
from utils.benchmarks.task import Task
from utils.data.datasets import DatasetFile

if TYPE_CHECKING:
    from retrieval.rankers import Date

WITH_DATES = ("recency", "hybrid")  # rankers that use items' dates


class Source:
    """The questions to rank; with --other_profile, each gets another user's profile.

    They stay on disk, because a file may be larger than the memory.

    Attributes:
        sizes: for each question, the number of posts in its profile.
        undated: for each question, the number of these posts without a date.
        num_texts: the number of questions and posts in the whole dataset.
        by_date: whether the ranker uses dates.
    """

    def __init__(self, args: argparse.Namespace):
        """Check the dataset; UserError if it is invalid, or if --other_profile cannot swap its profiles."""
        path = args.input_dataset_addr
        self.dataset = DatasetFile(path)
        sizes, undated, swapped, users = [], [], [], []
        self._unit = args.unit
        for record in self.dataset.scan(needs=["profile"]):
            record = with_unit(record, args.unit, path)
            sizes.append(len(record["profile"]))
            undated.append(dates_of(self.dataset.task, record).count(None))
            users.append(user_of(self.dataset.task, record))
            if "profile_owner" in record:
                swapped.append(record["id"])
        # For each question, the number of the question whose profile it gets; None: an empty profile.
        self._owners: list[int | None] = list(range(len(sizes)))
        flag = f"--other_profile {args.other_profile}"
        if args.other_profile:
            if self.dataset.task.history is not None:
                raise UserError(
                    f"{path}: {flag}: {self.dataset.task.name}'s questions share histories, so another question's "
                    f"history may be the same user's; remove --other_profile"
                )
            if len(sizes) < 2:
                raise UserError(f"{path}: holds only one question; {flag} needs another user's profile")
            if swapped:
                raise UserError(
                    f"{path}: id {swapped[0]!r}: field 'profile_owner': its profile is already another user's\n"
                    f"  use {flag} with the original dataset"
                )
            if len(set(users)) < 2:
                questions = count_noun(len(users), "question")
                same = f"field {self.dataset.task.user_field!r} is always {users[0][1]!r} ({questions})"
                raise UserError(f"{path}: {same}; {flag} needs another user's profile")
        if args.other_profile == "random":
            self._owners = draw_owners(users, args.seed)
        self._drops_later = args.other_profile == "similar"
        self.num_texts = sum(sizes) + len(sizes)
        self.sizes = [sizes[owner] for owner in self._owners[: args.limit]]
        self.undated = [undated[owner] for owner in self._owners[: args.limit]]
        self.by_date = args.ranker in WITH_DATES and self.dataset.task.item_date is not None

    def assign(self, number: int, owner: int | None) -> None:
        """Set whose profile a question gets: that of the question `owner`, or an empty one."""
        self._owners[number] = owner
        profile = self.read(number)["profile"]
        self.sizes[number] = len(profile)
        self.undated[number] = dates_of(self.dataset.task, {"profile": profile}).count(None)

    def read(self, number: int) -> Record:
        """Return a question with its assigned profile; with --other_profile similar, later posts are dropped."""
        record, owner = self._read(number), self._owners[number]
        if owner == number:
            return record
        if owner is None:
            return {**record, "profile": [], "profile_owner": None}
        other = self._read(owner)
        profile = other["profile"]
        if self._drops_later and (latest := latest_date(self.dataset.task, record)) is not None:
            dated = zip(profile, dates_of(self.dataset.task, other), strict=True)
            profile = [item for item, date in dated if date is None or date <= latest]
        return {**record, "profile": profile, "profile_owner": other["id"]}

    def _read(self, number: int) -> Record:
        return with_unit(self.dataset[number], self._unit, self.dataset.path)


def with_dates(task: Task) -> Task:
    """Return the task with each item's date, if it has one, after its text, as in LaMP's code."""

    def item_text(item: Item) -> str:
        date = f" date: {item[task.date_field]}" if task.item_date(item) else ""
        return task.item_text(item) + date

    return replace(task, item_text=item_text)


def with_prefixes(task: Task, query: str, passage: str) -> Task:
    """Return the task with prefixes before the question and before each item's text."""
    return replace(
        task,
        query=lambda record: query + task.query(record),
        item_text=lambda item: passage + task.item_text(item),
    )


def describe_dates(path: str, counts: dict[str, int]) -> str:
    """Return a note on how many items have a readable date, and how the others are ordered."""
    undated, posts = counts["undated_posts"], counts["posts"]
    if undated == posts:
        return f"note: {path}: no post has a readable date; the last one in each profile counts as the latest"
    behind = f"; {undated} of {count_noun(posts, 'post')} without a readable date, placed last" if undated else ""
    return f"note: {path}: the latest posts are chosen by date{behind}"


def user_of(task: Task, record: Record) -> tuple[str, str]:
    """Return a key for the user who asks a question; each question without a known user counts as its own user."""
    name = record.get(task.user_field) if task.user_field else None
    return ("question", record["id"]) if name is None else ("user", str(name))


def draw_owners(users: Sequence[tuple[str, str]], seed: int) -> list[int]:
    """Return, for each question, the number of another user's question, whose profile it gets.

    The numbers form a random cycle over all questions; if one gives the same user's profile, it is drawn again.

    Args:
        users: the user of each question; at least two differ.
    """
    owners, generator = random_cycle(len(users), seed), random.Random(f"{seed}, drawn again")
    for number, user in enumerate(users):
        while users[owners[number]] == user:
            owners[number] = generator.randrange(len(users))
    return owners


def random_cycle(size: int, seed: int) -> list[int]:
    """Return a random permutation of range(size) that is a single cycle (Sattolo 1986), so that every number moves."""
    generator = random.Random(seed)
    cycle = list(range(size))
    for last in range(size - 1, 0, -1):
        other = generator.randrange(last)  # never `last` itself, unlike a plain shuffle
        cycle[last], cycle[other] = cycle[other], cycle[last]
    return cycle


def texts_of(task: Task, record: Record) -> list[str]:
    """Return the texts to compare: the question, then the profile's items in file order."""
    return [task.query(record), *map(task.item_text, record["profile"])]


def latest_date(task: Task, record: Record) -> "Date | None":
    """Return the latest date in a profile, None if no item has one."""
    return max(filter(None, dates_of(task, record)), default=None)


def dates_of(task: Task, record: Record) -> "list[Date | None]":
    """Return the date of each item of a profile, None where it is unknown."""
    return [task.item_date and task.item_date(item) for item in record["profile"]]
