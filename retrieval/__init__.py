"""Rank the posts of every profile, once."""

WITH_ENCODER = ("dense", "hybrid")  # values of --ranker that load a model
