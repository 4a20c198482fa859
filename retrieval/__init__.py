"""Rank the posts of every profile once, for all later commands."""

WITH_ENCODER = ("dense", "hybrid")  # values of --ranker that load a model
BY_WORDS = ("bm25", "bm25-okapi")  # values that compare words
FULL_LENGTH = 512  # tokens: where an encoder cuts texts, unless its files say otherwise; also the unit of --batch_size
# Version of `rankers.words_of`. It is part of the identity of orders of texts that version 1 split into other words.
WORDS_VERSION = 2
WITHOUT_TEXTS = ("recency", "random")  # values that read no texts
