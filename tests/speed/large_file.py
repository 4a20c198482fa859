"""Does ranking a file of a gigabyte take more memory than a small one, and more time than its size says?

  python tests/speed/large_file.py
  python tests/speed/large_file.py --questions 100 300 1000

Each size is ranked by a process of its own, as a user would: 110 posts of about 1,000 characters a question, no text
twice. The encoder is a tiny one with random weights, for it is reading, blocks and writing that are measured; with a
real one the embeddings of a block are larger (50 MB for Contriever's 768 numbers a text) and the model comes on top.
"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import ROOT, parse_flags, write_figures
from tiny_encoder import WORDS, save_tiny_encoder

from utils.cli import positive_int, run_script
from utils.files.writing import write_array

POSTS, WORDS_A_POST = 110, 165
MOST_MEMORY = 1.5e9  # bytes
RANK = (
    "import sys; from retrieval.rank_dataset import main; main(sys.argv[1:]); "
    "sys.path.insert(0, 'tests/speed'); from measure import peak_memory; print(peak_memory())"
)


def main(argv: list[str] | None = None) -> int:
    sizes = {"type": positive_int, "nargs": "+", "default": [1000, 3000, 10_000], "help": "sizes (%(default)s)"}
    args = parse_flags(__doc__, argv, runs=None, questions=sizes)
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        encoder = save_tiny_encoder(Path(folder) / "encoder")
        for number in args.questions:
            figures.append(one_size(number, encoder, Path(folder)))
            print(", ".join(f"{name} {value:,}" for name, value in figures[-1].items()), flush=True)
    rates = [entry["posts"] / entry["seconds"] for entry in figures]
    peak = max(entry["peak_bytes"] for entry in figures)
    print(f"posts a second, by size: {', '.join(f'{rate:.0f}' for rate in rates)}")
    print(f"most memory {peak / 1e9:.2f} GB; the bar is {MOST_MEMORY / 1e9} GB: ", end="")
    print("met" if peak <= MOST_MEMORY else "NOT met")
    write_figures(args.json_addr, {"sizes": figures, "posts_a_second": rates})
    return 0


def one_size(number: int, encoder: Path, folder: Path) -> dict[str, int | float]:
    source, output = folder / "data.json", folder / f"ranked_{number}.json"
    write_array(source, (make_question(index) for index in range(number)), indent=4)
    command = ["--input_dataset_addr", source, "--output_dataset_addr", output, "--model_name", encoder]
    command += ["--max_length", 32]
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", RANK, *map(str, command)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    seconds = round(time.perf_counter() - started, 1)
    output.unlink()
    figures = {"questions": number, "posts": number * POSTS, "bytes": source.stat().st_size, "seconds": seconds}
    return figures | {"peak_bytes": int(done.stdout.split()[-1])}


def make_question(index: int) -> dict[str, object]:
    rng = random.Random(index)
    words = WORDS.split()
    texts = (f"{index} {n} " + " ".join(rng.choices(words, k=WORDS_A_POST)) for n in range(POSTS))
    posts = [{"id": f"p{index}_{n}", "text": text} for n, text in enumerate(texts)]
    return {"id": f"q{index}", "question": " ".join(rng.choices(words, k=11)), "profile": posts}


if __name__ == "__main__":
    run_script(main)
