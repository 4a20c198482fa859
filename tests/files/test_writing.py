"""File systems that lack an operation, or space: written like any other, or refused before a run begins."""

import errno
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from utils.cli import Arguments, UserError
from utils.files.locks import fill_folder
from utils.files.manifest import publish, read_manifest
from utils.files.output import MadeFile
from utils.files.writing import check_could_write, write_atomically
from utils.generation.store import ModelStore

ABSENT = [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.ENOTTY]


def refuse(monkeypatch, name, number, when=lambda *arguments: True):
    """Let a function of `os` raise an error when it gets such arguments."""
    function = getattr(os, name)

    def call(*arguments, **more):
        if when(*arguments):
            raise OSError(number, os.strerror(number))
        return function(*arguments, **more)

    monkeypatch.setattr(os, name, call)


def is_folder(file):
    return Path(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}").resolve().is_dir()


@pytest.mark.parametrize("number", ABSENT)
@pytest.mark.parametrize("when", [is_folder, lambda file: True], ids=["folders", "all files"])
def test_without_fsync_all_is_written(tmp_path, monkeypatch, number, when):
    refuse(monkeypatch, "fsync", number, when)
    path = tmp_path / "new" / "a.json"
    check_could_write(path)
    path.parent.mkdir()
    publish(path, [1], {"settings": {}})
    assert path.read_text() == "[\n  1\n]\n" and read_manifest(path) is not None
    for text in ("first", "second"):
        store = ModelStore(tmp_path / "completions", "m", {"model": "m"})
        store.check_writable()
        store.add(f"{len(text):032x}", {"text": text})
        store.close()
    assert [store.get(f"{len(text):032x}")["text"] for text in ("first", "second")] == ["first", "second"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_what_a_disk_did_not_keep_is_an_error(tmp_path, monkeypatch, number):
    refuse(monkeypatch, "fsync", number)
    with pytest.raises(OSError, match=os.strerror(number)):
        write_atomically(tmp_path / "a.json", "text")


@pytest.mark.parametrize(
    ("name", "number", "when"),
    [
        ("replace", errno.ENOSYS, lambda *paths: True),
        ("replace", errno.EPERM, lambda *paths: True),
        ("open", errno.ENOTSUP, lambda path, flags, *mode: flags & os.O_APPEND),
        ("fsync", errno.EDQUOT, lambda file: True),
        ("open", errno.EROFS, lambda path, flags, *mode: flags & os.O_CREAT),
    ],
)
def test_what_cannot_be_written_is_found_first(tmp_path, monkeypatch, name, number, when):
    refuse(monkeypatch, name, number, when)
    path = tmp_path / "a.json"
    output = MadeFile(str(path), {}, Arguments(overwrite=False))
    store = ModelStore(tmp_path / "completions", "m", {"model": "m"})
    for check in (lambda: check_could_write(path), output.open, store.check_writable):
        with pytest.raises(UserError, match=f"cannot be written: {os.strerror(number)}"):
            check()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_listed_or_has_no_links(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    refuse(monkeypatch, "open", errno.EACCES, lambda path, flags, *mode: path == tmp_path)
    write_atomically(path, "text")
    check_could_write(path, links=True)
    refuse(monkeypatch, "symlink", errno.EPERM)
    check_could_write(path)
    with pytest.raises(UserError, match="symbolic links cannot be made there"):
        check_could_write(path, links=True)
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_is_full_while_a_tokenizer_is_saved_is_an_os_error(tmp_path):
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*\.model\.partial'$"),
        fill_folder(tmp_path / "model"),
    ):
        Tokenizer(WordLevel({"a": 0})).save("/dev/full")
