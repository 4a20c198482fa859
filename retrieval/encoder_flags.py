"""The encoder of a command: its flags, pooling and settings, and how to load it."""

import argparse
import re
import sys
from typing import TYPE_CHECKING, Any

from utils.base.cli import positive_int
from utils.base.progress import announce
from utils.models.model_folder import ModelFolder

if TYPE_CHECKING:
    from retrieval.encoder import Encoder
    from retrieval.pooling import Pooling

ENCODER_FLAGS = "--model_name --max_length --pooling --normalize --no-normalize"


def add_encoder_arguments(group: argparse._ActionsContainer) -> None:
    """Add the flags that embeddings depend on (`ENCODER_FLAGS`)."""
    # fmt: off
    add = group.add_argument
    add("--model_name", default="facebook/contriever-msmarco", metavar="MODEL",
        help="BERT-like encoder, by hub name or folder (%(default)s)")
    add("--max_length", type=positive_int, metavar="N",
        help="maximum number of tokens per text; longer texts are cut (default: as in the model's "
        "sentence-transformers files, else 512)")
    add("--pooling", choices=["mean", "cls", "lasttoken"],
        help="a text's embedding: the mean over its tokens, or the first or last token's (default: as for "
        "--max_length, else mean)")
    add("--normalize", action=argparse.BooleanOptionalAction,
        help="scale embeddings to length 1, so that dot products are cosines (default: as for --max_length, else off)")
    # fmt: on


def find_pooling(args: argparse.Namespace) -> "Pooling":
    """Return the encoder's pooling, from the flags and the model's files; UserError if there is no such model."""
    from retrieval.pooling import choose_pooling

    model = ModelFolder(args.model_name, args.cache_dir).checked()
    return choose_pooling(model, args.pooling, args.normalize, args.max_length)


def settings_of_encoder(args: argparse.Namespace, pooling: "Pooling") -> dict[str, Any]:
    """Return the encoder's settings that embeddings depend on."""
    settings = {"pooling": pooling.mode, "normalize": pooling.normalize, "max_length": pooling.max_length}
    settings |= {"model": ModelFolder(args.model_name, args.cache_dir).fingerprint}
    settings |= {"lower_case": True} if pooling.lower_case else {}
    return settings | ({"prefixes": [*pooling.prefixes]} if any(pooling.prefixes) else {})


def open_encoder(args: argparse.Namespace, pooling: "Pooling", device: str, dtype: str) -> "Encoder":
    from retrieval.encoder import load_encoder
    from retrieval.pooling import MEAN

    announce(f"loading {args.model_name} (this may take a minute)")
    if pooling != MEAN:
        print(f"note: {args.model_name}: {pooling}", file=sys.stderr)
    if re.search(r"(?i)\be5\b", args.model_name) and not any(pooling.prefixes):
        problem = "E5 models expect 'query: ' and 'passage: ' before texts, but this model's files define no prompts"
        print(f"note: {args.model_name}: {problem}, so none are added", file=sys.stderr)
    return load_encoder(args.model_name, args.cache_dir, device, dtype, pooling)
