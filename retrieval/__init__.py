"""Rank the posts of every profile, once."""

WITH_ENCODER = ("dense", "hybrid")  # values of --ranker that load a model
BY_WORDS = ("bm25", "bm25-okapi")  # values that compare words
FULL_LENGTH = 512  # tokens at which an encoder cuts a text, unless its files say otherwise; one unit of --batch_size
# Of the rule in `words.words_of`, for the identities of orders of texts that version 1 read otherwise.
WORDS_VERSION = 2
WITHOUT_TEXTS = ("recency", "random")  # values that read no texts
