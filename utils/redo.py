"""The flags for what is there already: make it anew, or ask again for what failed."""

import argparse


def add_overwrite_argument(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--overwrite",
        nargs="?",
        const="all",
        choices=["all", "changed"],
        help="make the output anew from nothing, also a finished one; interrupted, the same command goes on. With "
        "`changed` only what was made with other settings or from other files (default: replace nothing)",
    )


def add_redo_arguments(group: argparse._ActionsContainer) -> None:
    """For scripts that ask a model."""
    add_overwrite_argument(group)
    group.add_argument(
        "--retry_failed",
        action="store_true",
        help="ask again for what the model gave no usable output for, also in a finished output, with new seeds; "
        "everything else is kept (off)",
    )
