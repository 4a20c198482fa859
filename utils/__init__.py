"""The library behind the scripts."""

import sys
from types import TracebackType


def _name_the_environment(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Say in one line that the packages are missing: only the environment of `make setup` has them."""
    if isinstance(error, ModuleNotFoundError) and sys.prefix == sys.base_prefix:
        problem = f"this Python ({sys.executable}) has no package {error.name!r}"
        print(f"error: {problem}; run `source .venv/bin/activate` first, or `make setup`", file=sys.stderr)
        sys.exit(2)
    sys.__excepthook__(kind, error, traceback)


sys.excepthook = _name_the_environment
