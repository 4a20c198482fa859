"""Fixtures of the tests of methods."""

from method_runs import runs, server  # noqa: F401
