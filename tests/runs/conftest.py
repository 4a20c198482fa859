"""Fixtures of the tests of methods."""

from method_runs import personamem, runs, searching, server  # noqa: F401
