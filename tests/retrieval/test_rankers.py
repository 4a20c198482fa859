import math
import random
from itertools import pairwise

import numpy as np
import pytest

from retrieval.rankers import (
    BM25Index,
    alternate,
    rank_by_bm25_okapi,
    rank_by_embedding,
    rank_by_recency,
)

POSTS = ["Opening moves in chess", "Baking bread at home", "Chess, chess and more chess", "Bread"]


def test_embedding_order_is_the_dot_product_not_the_cosine():
    embeddings = np.array([[1, 1], [1, 0], [0, 3], [2, 2]], dtype=np.float32)
    # dot products with row 0: row 1 -> 1, row 2 -> 3 (its cosine is only 0.71), row 3 -> 4
    assert rank_by_embedding(embeddings, 0, [1, 2, 3]) == [2, 1, 0]


@pytest.mark.parametrize("size", [2, 3, 17, 101])
def test_posts_of_the_same_text_stay_in_file_order(size):
    embeddings = np.random.default_rng(0).standard_normal((2, 384)).astype(np.float32)
    assert rank_by_embedding(embeddings, 0, [1] * size) == list(range(size))


def test_bm25_puts_shared_words_first_and_ties_in_file_order():
    # "chess" is in posts 0 and 2, three times in 2; posts 1 and 3 share nothing with the question
    assert BM25Index(POSTS).rank("Is CHESS hard?") == [2, 0, 1, 3]


@pytest.mark.parametrize("question", ["the of and", "zebra", "?!", "猫"])
def test_bm25_keeps_file_order_if_no_word_is_known(question):
    assert BM25Index(POSTS).rank(question) == [0, 1, 2, 3]


def okapi_scores(question, posts):
    """Score with the published BM25Okapi formula, one word and post at a time."""
    texts = [post.split() for post in posts]
    vocabulary = {word for text in texts for word in text}
    mean_length = sum(map(len, texts)) / len(texts)

    def idf(word):
        number = sum(word in text for text in texts)
        return math.log((len(texts) - number + 0.5) / (number + 0.5))

    mean_idf = sum(map(idf, vocabulary)) / len(vocabulary)

    def score(word, text):
        weight = idf(word) if idf(word) >= 0 else 0.25 * mean_idf
        frequency = text.count(word)
        return weight * frequency * 2.5 / (frequency + 1.5 * (1 - 0.75 + 0.75 * len(text) / mean_length))

    return [sum(score(word, text) for word in question.split() if word in vocabulary) for text in texts]


def test_bm25_okapi_is_the_published_formula():
    """With few different words, so that many are in most posts and many posts tie; then the last one ranks first."""
    generator, seen = random.Random(0), {"negative": 0, "ties": 0, "no match": 0}
    for _ in range(600):
        words = generator.choice([["a", "b"], ["a", "A", "b,", "b", "the"], [str(n) for n in range(40)]])
        posts = [" ".join(generator.choices(words, k=generator.randrange(9))) for _ in range(generator.randint(1, 30))]
        posts[0] += " a"
        question = " \n".join(generator.choices([*words, "new"], k=generator.randint(1, 6)))
        scores = okapi_scores(question, posts)
        order = rank_by_bm25_okapi(question, posts)
        assert sorted(order) == list(range(len(posts)))
        for one, other in pairwise(order):
            alike = sorted(posts[one].split()) == sorted(posts[other].split()) or scores[one] == scores[other] == 0
            assert one > other if alike else scores[one] > scores[other] - 1e-9, (question, posts)
            seen["ties"] += alike
        seen["negative"] += min(scores) < 0
        seen["no match"] += set(scores) == {0}
    assert min(seen.values()) > 20, seen


@pytest.mark.parametrize("posts", [["one", "two", "three"], ["", " ", "\n"]])
def test_bm25_okapi_ranks_the_last_post_first_if_nothing_matches(posts):
    assert rank_by_bm25_okapi("chess", posts) == [2, 1, 0]
    assert rank_by_bm25_okapi(" ", posts) == [2, 1, 0]


def test_recency_orders_by_date_then_by_file_order():
    dates = [(2014, 3, 6), None, (2015,), (2014, 3, 6), None, (2014, 12, 1), (2015, 1)]
    # 2015-01 says more than 2015; of one date, and of none, the last one in the file comes first
    assert rank_by_recency(dates) == [6, 2, 5, 3, 0, 4, 1]


@pytest.mark.parametrize("k", range(7))
def test_of_the_first_k_each_of_two_orders_gives_half(k):
    generator = random.Random(k)
    first, second = generator.sample(range(6), 6), generator.sample(range(6), 6)
    mixed = alternate(first, second)
    assert sorted(mixed) == list(range(6))
    ours, theirs = [], []  # what a careful reader takes by turns
    for turn in range(k):
        order, its = ((first, ours), (second, theirs))[turn % 2]
        its.append(next(index for index in order if index not in ours + theirs))
    assert set(mixed[:k]) == {*ours, *theirs} and len(ours) - len(theirs) == k % 2
