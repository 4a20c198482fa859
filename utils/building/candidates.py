"""Choose the posts that may become questions: long enough, and by an author with enough earlier posts."""

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from utils.building.index import PostIndex
from utils.building.posts import Post

# A repost shares many runs of words with another post. The paper drops none, so both numbers are guesses.
SHINGLE = 5  # words per run
MOST = 0.5  # share of the shorter post's runs
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Terms:
    """Which posts are candidates."""

    min_words: int  # in the body, separated by white space
    min_posts: int  # earlier ones by the author
    per_author: int  # most candidates per author: the newest ones, because they have the longest profiles


def choose(index: PostIndex, communities: Collection[str], terms: Terms) -> tuple[list[int], Counter[str]]:
    """Return the candidates' places in the index (by author, newest first), and counts by what became of posts."""
    chosen, counts = [], Counter(candidates=0)
    for _, posts in groupby(index.authors_posts(), key=lambda row: row[1]):
        posts = list(posts)
        dates = [date for _, _, date, _, _, is_copy in posts if not is_copy]
        remaining = terms.per_author
        for place, _, date, community, words, is_copy in reversed(posts):
            if is_copy:
                why = "copies of earlier posts"
            elif community not in communities:
                why = "in communities without a category"
            elif words < terms.min_words:
                why = f"with fewer than {terms.min_words} words"
            elif bisect_left(dates, date) < terms.min_posts:
                why = f"with fewer than {terms.min_posts} earlier posts by the author"
            elif remaining == 0:
                why = f"over the limit of {terms.per_author} per author"
            else:
                why, remaining = "candidates", remaining - 1
                chosen.append(place)
            counts[why] += 1
    return chosen, counts


def draw_order(posts: Iterable[Post]) -> list[Post]:
    """Return the posts in the order of their ids' hashes, so that the first N are a random sample of all."""
    return sorted(posts, key=lambda post: hashlib.sha256(post.id.encode()).digest())


def profile_of(index: PostIndex, author: str, date: str, body: str, most: int) -> tuple[list[dict[str, Any]], int]:
    """Return the profile for a question with this author, date and body, and the number of dropped reposts.

    The profile has the newest `most` of the author's earlier posts, the latest last. A repost, such as the question's
    first version, would reveal what only the judge may see.
    """
    words, posts = shingles(body), index.earlier(author, date, most)
    kept = [post for post in posts if not is_repost(words, shingles(post.body))]
    items = [
        {
            "id": post.id,
            "text": f"{post.title} {post.body}".strip(),
            "category": post.community,
            "date": post.date,
            "licence": post.licence,
        }
        for post in kept
    ]
    return items, len(posts) - len(kept)


def shingles(text: str) -> set[tuple[str, ...]]:
    """Return all runs of `SHINGLE` words in a text, ignoring case."""
    words = text.casefold().split()
    return set(zip(*(words[start:] for start in range(SHINGLE)), strict=False))


def is_repost(first: set[tuple[str, ...]], second: set[tuple[str, ...]]) -> bool:
    """Return whether two posts share most of the shorter one, by their shingles."""
    return len(first & second) > MOST * min(len(first), len(second))


def text_key(record_id: str, *texts: str) -> tuple[str, int]:
    """Return the key of a model's output about a post, which changes with the post's text."""
    digest = hashlib.sha256("\0".join(texts).encode()).digest()
    return record_id, int.from_bytes(digest[:6], "big")  # exact as a float, which JSON readers may use


def split_of(author: str, seed: int, validation_share: float, test_share: float) -> str:
    """Draw an author's split from a hash of seed and author, so that it stays the same when data are added."""
    digest = hashlib.sha256(f"{seed}:{author}".encode()).digest()
    drawn = int.from_bytes(digest[:8], "big") / 2**64
    if drawn < test_share:
        return "test"
    return "validation" if drawn < test_share + validation_share else "train"
