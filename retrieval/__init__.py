"""Rank the posts of every profile, once."""

WITH_ENCODER = ("dense", "hybrid")  # values of --ranker that load a model
FULL_LENGTH = 512  # tokens at which an encoder cuts a text, unless its files say otherwise; one unit of --batch_size
WORDS_VERSION = 2  # of the rule in `rankers.words_of`: orders of another version are not those of this one
WITHOUT_TEXTS = ("recency", "random")  # values that read no texts
