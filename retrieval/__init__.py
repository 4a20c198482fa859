"""Putting the posts of a profile in order, once."""

WITH_ENCODER = ("dense", "hybrid")  # values of --ranker that load a model
