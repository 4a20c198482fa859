"""The disk that trainings of all weights need for their checkpoints. Adapters take megabytes, and are not counted."""

from pathlib import Path
from shutil import disk_usage

from utils.files.writing import probe_folder
from utils.models.hub import find_headers
from utils.models.memory import count_weights

# At its peak a training has four checkpoints with AdamW's averages: the best, the last, an interim one and the next.
# Of the best and the last the weights stay. All are float32.
PEAK_BYTES, KEPT_BYTES = 4 * 12, 2 * 4  # a parameter


def training_room(model: str, cache_dir: str | None, output_dir: str) -> tuple[int, int] | None:
    """Bytes that a training adds to the disk, at its peak and in the end; None where the model's size is not known.

    What its folder holds already is taken off.
    """
    if not (headers := find_headers(model, cache_dir)):
        return None
    parameters = count_weights(headers, 4, without_head=False)[0]
    there = sum(path.stat().st_size for path in Path(output_dir).glob("checkpoint-*/*") if path.is_file())
    return max(0, PEAK_BYTES * parameters - there), max(0, KEPT_BYTES * parameters - there)


def free_bytes(folder: str) -> int:
    """Of the disk where a folder is, or is going to be made."""
    return disk_usage(probe_folder(Path(folder) / "manifest.json")).free
