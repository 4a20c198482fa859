"""Rank the posts of every profile once, for all later commands."""

WITH_ENCODER = ("dense", "hybrid")  # values of --ranker that load a model
FULL_LENGTH = 512  # tokens: where an encoder cuts texts, unless its files say otherwise; also the unit of --batch_size
WORDS_VERSION = 2  # of `rankers.words_of`; orders by another version are not reused
WITHOUT_TEXTS = ("recency", "random")  # values of --ranker that read no texts
