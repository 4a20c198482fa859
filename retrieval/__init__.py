"""Rank the posts of every profile, once."""

WITH_ENCODER = ("dense", "hybrid")  # values of --ranker that load a model
WITHOUT_TEXTS = ("recency", "random")  # values that read no texts
