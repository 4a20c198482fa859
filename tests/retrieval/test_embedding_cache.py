"""Embeddings on disk: what went in comes out, whoever wrote it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from retrieval.embedding_cache import EmbeddingCache

ROOT = Path(__file__).resolve().parents[2]


def embeddings_of(texts):
    """One row a text, told apart by the text alone."""
    rows = [np.random.default_rng(list(text.encode())).normal(size=4) for text in texts]
    return np.array(rows, dtype=np.float32).reshape(len(texts), 4)


def test_what_went_in_comes_out_to_the_bit(tmp_path):
    texts = ["chess", "猫 🎸", "", "line\nbreak"]
    cache = EmbeddingCache(tmp_path, "model")
    assert cache.get(texts) == {}
    cache.add(texts[:3], embeddings_of(texts[:3]))
    cache.add(texts[3:], embeddings_of(texts[3:]))
    for reader in (cache, EmbeddingCache(tmp_path, "model")):
        found = reader.get(["unknown", *texts])
        assert list(found) == texts
        assert all((found[text] == row).all() for text, row in zip(texts, embeddings_of(texts), strict=True))


def test_another_encoder_has_its_own(tmp_path):
    EmbeddingCache(tmp_path, "model, 512 tokens").add(["chess"], embeddings_of(["chess"]))
    assert EmbeddingCache(tmp_path, "model, 256 tokens").get(["chess"]) == {}
    assert {path.read_text() for path in tmp_path.glob("*/identity.txt")} == {
        "model, 512 tokens\n", "model, 256 tokens\n"
    }  # fmt: skip


WRITER = """
import sys
sys.path.insert(0, "tests/retrieval")
from retrieval.embedding_cache import EmbeddingCache
from test_embedding_cache import embeddings_of
cache = EmbeddingCache(sys.argv[1], "model")
for n in range(40):
    texts = [f"text {n} {k}" for k in range(5)] + [f"own {sys.argv[2]} {n}"]
    cache.add(texts, embeddings_of(texts))
"""


def test_two_writers_at_once(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, name], cwd=ROOT) for name in "ab"]
    assert [writer.wait(600) for writer in writers] == [0, 0]
    texts = [f"text {n} {k}" for n in range(40) for k in range(5)] + [
        f"own {name} {n}" for name in "ab" for n in range(40)
    ]
    found = EmbeddingCache(tmp_path, "model").get(texts)
    assert all((found[text] == row).all() for text, row in zip(texts, embeddings_of(texts), strict=True))


def test_what_a_killed_writer_left_does_not_count(tmp_path):
    cache = EmbeddingCache(tmp_path, "model")
    cache.add(["chess"], embeddings_of(["chess"]))
    (hashes,) = tmp_path.glob("*/*.hashes.npy")
    hashes.unlink()  # it is written last
    (hashes.parent / "x.embeddings.npy.77.tmp").write_bytes(b"half")
    assert EmbeddingCache(tmp_path, "model").get(["chess"]) == {}


def saved(change):
    """A damage to the array in a file, which is a whole file then too."""

    def damage(path, folder):
        np.save(path, change(np.load(path)))

    return damage


def fifo(path, folder):
    path.unlink()
    os.mkfifo(path)


DAMAGES = {
    "empty": lambda path, folder: path.write_bytes(b""),
    "no array": lambda path, folder: path.write_bytes(b"not an array"),
    "cut short": lambda path, folder: path.write_bytes(path.read_bytes()[:-20]),
    "a pipe": fifo,
    "zeros": saved(np.zeros_like),
    "shuffled": saved(lambda array: array[::-1]),
    "the same bytes as another type": saved(lambda array: array.view(f"i{array.itemsize}")),
    "a row less": saved(lambda array: array[:-1]),
    "another shape": saved(lambda array: array.reshape(-1)),
    "NaN": saved(lambda array: (array * np.float32("nan")).astype(array.dtype)),
    "another encoder's": lambda path, folder: shutil.copy(folder / "other" / path.name, path),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_embeddings_are_named_and_computed_again(tmp_path, capsys, damage):
    texts = ["chess", "rook"]
    EmbeddingCache(tmp_path / "cache", "model").add(texts, embeddings_of(texts))
    EmbeddingCache(tmp_path / "elsewhere", "another model").add(texts, embeddings_of(texts) + 1)
    (other,) = (tmp_path / "elsewhere").iterdir()
    other.rename(tmp_path / "other")
    (path,) = (tmp_path / "cache").glob("*/*.embeddings.npy")
    DAMAGES[damage](path, tmp_path)
    cache = EmbeddingCache(tmp_path / "cache", "model")
    assert cache.get(texts) == {}
    hashes = str(path).replace(".embeddings.", ".hashes.")
    assert capsys.readouterr().err.startswith(f"note: {hashes}: it or its embeddings are damaged\n")
    cache.add(texts, embeddings_of(texts))
    for reader in (cache, EmbeddingCache(tmp_path / "cache", "model")):
        assert np.array_equal(np.stack(list(reader.get(texts).values())), embeddings_of(texts))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("damage", ["empty", "no array", "cut short", "a row less", "another shape", "zeros"])
def test_damaged_hashes_give_no_wrong_embedding(tmp_path, damage):
    EmbeddingCache(tmp_path, "model").add(["chess", "rook"], embeddings_of(["chess", "rook"]))
    (path,) = tmp_path.glob("*/*.hashes.npy")
    DAMAGES[damage](path, tmp_path)
    assert EmbeddingCache(tmp_path, "model").get(["chess", "rook"]) == {}
