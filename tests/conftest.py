"""How the tests share the machine: `make test` runs them in one process a core (pytest-xdist).

The tests of a file run one after the other in one of these processes, so that they share what its fixtures made. Those
with a language model are one group, and so run one at a time. What takes longest comes first.
"""

import os
import signal

import pytest

# Every process of a run has a core to itself, and so do the processes it starts: more threads would only wait for each
# other. Set before anything imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# More processes than this would be through long before the longest group.
MOST_PROCESSES = 16
# By file, the parameter whose values make groups of their own: these files would be through last.
SPLIT = {"test_crashes": "case", "test_damage": "case"}


def pytest_configure():
    # A shell has its background jobs ignore Ctrl-C, and what a test starts would inherit that; tests send that signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One for each core that this process may use, which can be fewer than the machine has."""
    return min(len(os.sched_getaffinity(0)), MOST_PROCESSES)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks at the groups
def pytest_collection_modifyitems(config, items):
    if not hasattr(config, "workerinput"):
        return  # not one of several processes
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)))
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("engine", "slow")])


def group_of(item):
    if item.get_closest_marker("engine"):
        return "engine"
    name = item.path.stem
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return f"{name}-{params[SPLIT[name]]}" if SPLIT.get(name) in params else name
