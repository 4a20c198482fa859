"""File systems that lack an operation, or space."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from utils.base.errors import UserError
from utils.base.manifest import publish, read_manifest
from utils.base.writing import check_could_write, write_atomically
from utils.generation.store import ModelStore


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


@pytest.mark.parametrize("when", [is_folder, lambda file: True], ids=["folders", "all files"])
def test_without_fsync_all_is_written(tmp_path, monkeypatch, when):
    refuse(monkeypatch, "fsync", errno.EINVAL, when)
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


def test_a_folder_that_cannot_be_listed(tmp_path, monkeypatch):
    refuse(monkeypatch, "open", errno.EACCES, lambda path, flags, *mode: path == tmp_path)
    write_atomically(tmp_path / "a.json", "text")
    assert (tmp_path / "a.json").read_text() == "text"


def test_a_full_disk_is_found_before_anything_is_paid_for(tmp_path, monkeypatch):
    before = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=before.f_blocks, f_bavail=0))
    with pytest.raises(UserError, match=r"completions/m-.*: cannot be written: No space left on device"):
        ModelStore(tmp_path / "completions", "m", {"model": "m"}).check_writable()
