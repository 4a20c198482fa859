"""The flags for what is there already: make it anew, or ask again for what failed."""

import argparse
from typing import Any


def add_overwrite_argument(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--overwrite",
        nargs="?",
        const="all",
        choices=["all", "changed"],
        help="make the output anew from nothing, also where it is finished; interrupted, the same command goes on. With "
        "`changed` only what was made with other settings or from other files (default: replace nothing)",
    )
