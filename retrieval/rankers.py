"""Rankers: pure functions that put the posts of one profile in order, best first.

Each returns a permutation of range(number of posts). Posts with equal scores stay in file order, unless a ranker's
docstring says otherwise.
"""

import itertools
import logging
import math
import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from unicodedata import normalize

import numpy as np
import regex

# Letters and marks of scripts that put no spaces between words: those that Lucene's CJKAnalyzer splits into bigrams,
# and those of Unicode's line breaking class SA (Thai, Lao, Khmer, Burmese, ...).
_CJK = r"[[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{scx=Hira}\p{scx=Kana}]--\p{Inherited}]"
_UNSPACED = rf"[[{_CJK}\p{{Line_Break=SA}}]&&[\p{{L}}\p{{N}}\p{{M}}]]"
# Vowel signs and other marks that belong to the letters of one script; not accents, which scripts share.
_MARK = r"[\p{M}--\p{Inherited}]"
_SYMBOLS = rf"[\p{{L}}--{_UNSPACED}](?:\+\+|#)"  # C++, C#
_RUN = rf"[[\p{{L}}\p{{N}}_{_MARK}]--{_UNSPACED}]{{2,}}"
_WORD = regex.compile(rf"(?V1){_UNSPACED}+|{_SYMBOLS}|{_RUN}")
_BEGINS_UNSPACED = regex.compile(rf"(?V1){_UNSPACED}")
_CHARACTER = regex.compile(r"\X")  # a letter with its marks
# To normalize: full and half width forms, decomposed Hangul, and voicing marks that are separate from their kana.
_WIDE = rf"[{_CJK}\uff00-\uffef\u3099\u309a]"
_NORMALIZED = regex.compile(rf"(?V1){_WIDE}+")
Date = tuple[int, ...]  # such as (year, month, day), the largest unit first; of the same form in a whole profile


def words_of(text: str) -> list[str]:
    """Return a text's words in lower case, without English stop words and without stemming.

    A word is a run of two or more letters, digits, underscores and vowel signs, or a single letter with ++ or #. In
    scripts without spaces between words (Chinese, Japanese, Korean, Thai, Lao, Khmer, Burmese, ...), a run is split
    into bigrams, as in Lucene's CJKAnalyzer; a single character is a word.
    """
    if not text.isascii():
        text = _NORMALIZED.sub(lambda run: normalize("NFKC", run[0]), text)
    words, stop_words = [], _stop_words()
    for word in _WORD.findall(text.lower()):
        if not word.isascii() and _BEGINS_UNSPACED.match(word):
            characters = _CHARACTER.findall(word)
            words += ["".join(pair) for pair in pairwise(characters)] or characters
        elif word not in stop_words:
            words.append(word)
    return words


@cache
def _stop_words() -> frozenset[str]:
    from bm25s.stopwords import STOPWORDS_EN

    return frozenset(STOPWORDS_EN)


def rank_by_embedding(embeddings: np.ndarray, question_row: int, post_rows: Sequence[int]) -> list[int]:
    """Order by the dot product with the question's embedding, as Contriever does (Izacard et al. 2022).

    Args:
        embeddings: one row per distinct text, float32 (T, D).
        question_row: the question's row.
        post_rows: each post's row, in file order; posts with the same text share a row.
    """
    # Each distinct row is scored once: a matrix product may sum equal rows in different orders, so that their scores
    # differ in the last bit and no longer tie. In float64, the order of different rows depends neither on their number
    # nor on the machine.
    rows, position = np.unique(np.asarray(post_rows, dtype=np.intp), return_inverse=True)
    scores = embeddings[rows].astype(np.float64) @ embeddings[question_row].astype(np.float64)
    return best_first(scores[position])


class BM25Index:
    """A profile's index for BM25 (Lucene's variant with the library's defaults, k1 = 1.5 and b = 0.75).

    `words_of` defines words. The paper does not use BM25.
    """

    def __init__(self, posts: Sequence[str]):
        import bm25s

        logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG, regardless of the root logger
        words = list(map(words_of, posts))
        self._vocabulary, self._num_posts = {word for post in words for word in post}, len(posts)
        if self._vocabulary:
            self._index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
            self._index.index(words, show_progress=False)

    def shared_words(self, question: str) -> list[str]:
        """Return the question's words that occur in a post."""
        return [word for word in words_of(question) if word in self._vocabulary]

    def scores(self, question: str) -> np.ndarray:
        """Return the posts' scores (N,); all are 0 if no word of the question occurs in any post."""
        query = self.shared_words(question)
        return self._index.get_scores(query) if query else np.zeros(self._num_posts)

    def rank(self, question: str) -> list[int]:
        """Return the posts' order; they stay in file order if no word of the question occurs in any post."""
        return best_first(self.scores(question))


def rank_by_bm25_okapi(question: str, posts: Sequence[str]) -> list[int]:
    """Order by BM25Okapi as in the library rank_bm25, which LaMP and LongLaMP use (k1 = 1.5, b = 0.75).

    Words are separated by white space and keep their case. If a word is in more than half of the posts, its inverse
    document frequency is negative, and a quarter of the mean over all words replaces it, which may be negative too.
    Posts with equal scores are in reverse file order, as in LaMP's code, even if no word of the question occurs in any
    post.
    """
    words = [Counter(post.split()) for post in posts]
    found_in = Counter(itertools.chain.from_iterable(words))
    scores = np.zeros(len(posts))
    if found_in:
        idf = {word: math.log(len(posts) - n + 0.5) - math.log(n + 0.5) for word, n in found_in.items()}
        floor = 0.25 * sum(idf.values()) / len(idf)
        lengths = np.array([counts.total() for counts in words])
        norm = 1.5 * (0.25 + 0.75 * lengths / lengths.mean())
        for word in filter(idf.get, question.split()):  # a word of weight 0 adds nothing
            counts = np.array([post[word] for post in words])
            scores += (idf[word] if idf[word] > 0 else floor) * (counts * 2.5 / (counts + norm))
    return np.argsort(scores, kind="stable")[::-1].tolist()


def rank_by_recency(dates: Sequence[Date | None]) -> list[int]:
    """Order by date, latest first; items with equal dates are in reverse file order, and undated items come last.

    So a profile without dates is in reverse file order, as in LaMP.
    """
    return sorted(range(len(dates)), key=lambda index: (dates[index] or (), index), reverse=True)


def alternate(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Merge two orders: take the best remaining item of each in turn, beginning with the first order.

    For any k, each order provides half of the first k items; if k is odd, the first order provides one more.
    """
    taken: dict[int, None] = {}
    turns = itertools.cycle((iter(first), iter(second)))
    while len(taken) < len(first):
        taken[next(index for index in next(turns) if index not in taken)] = None
    return list(taken)


def rank_at_random(num_posts: int, seed: int, question_id: str) -> list[int]:
    """Return a random order that depends only on the seed and the question."""
    return random.Random(f"{seed} {question_id}").sample(range(num_posts), num_posts)


def best_first(scores: np.ndarray) -> list[int]:
    """Return the indices of the scores (N,), highest score first; equal scores keep their order."""
    return np.argsort(-scores, kind="stable").tolist()
