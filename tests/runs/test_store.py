"""The store's files with several processes, and with damage."""

import json
import os
import random
import signal
import subprocess
import sys

import pytest

from utils.base import writing
from utils.base.errors import UserError
from utils.generation import store as module
from utils.generation.store import ModelStore, line_of

ROOT = module.__file__.removesuffix("utils/generation/store.py")
DESCRIBED = {"model": "a" * 64, "dtype": "auto"}
TEXTS = ["", "an answer", 'two\nlines \u2028 and "quotes"', "日本語 😀", "a\x00b\x1f", "x" * 100_000]


def key_of(number):
    return f"{number + 1:032x}"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "completions"


@pytest.fixture(autouse=True)
def reading_at_once(monkeypatch):
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)


def open_store(folder, **described):
    return ModelStore(folder, "org/Some-Model", {**DESCRIBED, **described})


def fill(folder, numbers):
    store = open_store(folder)
    for number in numbers:
        store.add(key_of(number), {"text": f"text {number}"})
    store.close()
    [path] = set(store.folder.glob("*.jsonl")) - fill.seen
    fill.seen.add(path)
    return path


fill.seen = set()


def test_stored_completions_are_found_by_this_process_and_the_next(folder):
    store = open_store(folder)
    assert store.get(key_of(1)) is None and not folder.exists()  # no file is made before the first completion
    for number, text in enumerate(TEXTS):
        store.add(key_of(number), {"text": text, "id": "q1", "prompt_tokens": 7})
        assert store.get(key_of(number))["text"] == text
    store.close()
    again = open_store(folder)
    assert [again.get(key_of(number))["text"] for number in range(len(TEXTS))] == TEXTS
    assert again.get(key_of(99)) is None
    first = json.loads(next(again.folder.glob("*.jsonl")).read_bytes().splitlines()[0])
    assert first["host"] and first["versions"]["python"]
    assert json.loads((again.folder / "model.json").read_text()) == DESCRIBED


def test_every_model_and_dtype_has_its_own_folder(folder):
    fill(folder, [1])
    assert open_store(folder).get(key_of(1))
    assert open_store(folder, dtype="float16").get(key_of(1)) is None
    assert open_store(folder, model="b" * 64).get(key_of(1)) is None
    assert ModelStore(folder, "../..", DESCRIBED).folder.parent == folder


def test_two_writers_and_a_reader(folder):
    """Lines of other processes are found during writing; none is lost or mixed with another."""
    code = f"""
import sys
sys.path.insert(0, {ROOT!r})
from utils.generation.store import ModelStore
store = ModelStore({str(folder)!r}, "org/Some-Model", {DESCRIBED!r})
for number in range(int(sys.argv[1]), 4000, 2):
    store.add(f"{{number + 1:032x}}", {{"text": f"text {{number}} " * 50}})
store.close()
"""
    writers = [subprocess.Popen([sys.executable, "-c", code, str(first)]) for first in (0, 1)]
    reader, seen = open_store(folder), set()
    while any(writer.poll() is None for writer in writers):
        for number in random.sample(range(4000), 50):
            if (found := reader.get(key_of(number))) is not None:
                assert found["text"] == f"text {number} " * 50
                seen.add(number)
    assert [writer.wait() for writer in writers] == [0, 0] and seen
    assert all(reader.get(key_of(number)) for number in range(4000))


def test_a_killed_writer_loses_a_torn_line_at_most(folder):
    code = f"""
import sys, itertools
sys.path.insert(0, {ROOT!r})
from utils.generation.store import ModelStore
store = ModelStore({str(folder)!r}, "org/Some-Model", {DESCRIBED!r})
for number in itertools.count():
    store.add(f"{{number + 1:032x}}", {{"text": "x" * 5000}})
    print(number, flush=True)
"""
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(random.randrange(20, 200)):
            told = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert all(open_store(folder).get(key_of(number)) for number in range(told + 1))


@pytest.mark.parametrize("size", [1, 20, 60, 77])
def test_a_torn_last_line_is_ignored(folder, size):
    path = fill(folder, [1, 2])
    content = path.read_bytes()
    last = content.rindex(b"\n", 0, -1) + 1
    assert size < len(content) - last
    path.write_bytes(content[: last + size])
    store = open_store(folder)
    assert store.get(key_of(1)) and store.get(key_of(2)) is None
    store.add(key_of(2), {"text": "again"})  # to a file of its own
    store.close()
    assert open_store(folder).get(key_of(2))["text"] == "again"


def test_every_flipped_bit_is_named_by_file_and_line(folder):
    """In text, key, checksum and line breaks, also of the last line."""
    path = fill(folder, [1, 2])
    content = path.read_bytes()
    starts = [0, *(place + 1 for place in range(len(content)) if content[place] == ord("\n"))]
    for place in range(len(content)):
        line = sum(start <= place for start in starts)
        for bit in (0, 3, 5):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
            with pytest.raises(UserError, match=rf"^{path}: line {line} is damaged\n  delete that line"):
                open_store(folder).get(key_of(1))
    path.write_bytes(content)
    lines = content.splitlines(keepends=True)
    for gone, left in ((1, [2]), (0, [1, 2])):
        path.write_bytes(b"".join(lines[:gone] + lines[gone + 1 :]))  # as the message says
        store = open_store(folder)
        assert [number for number in (1, 2) if store.get(key_of(number))] == left


def test_a_line_replaced_by_another_valid_line_is_detected(folder):
    path = fill(folder, [1, 2])
    store = open_store(folder)
    assert store.get(key_of(1))
    head, first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(head + second + first)
    with pytest.raises(UserError, match="changed while this run used it"):
        store.get(key_of(1))


def test_lines_that_arrive_late_are_waited_for(folder, monkeypatch):
    """As on a network file system, where a file's end may arrive before its middle."""
    path = fill(folder, [1, 2])
    content = path.read_bytes()
    hole = content.index(b"text 1")
    path.write_bytes(content[:hole] + b"\0" * 20 + content[hole + 20 :])
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) == 3:
            path.write_bytes(content)

    monkeypatch.setattr(module.time, "sleep", sleep)
    store = open_store(folder)
    assert [store.get(key_of(number))["text"] for number in (1, 2)] == ["text 1", "text 2"] and len(looks) == 3


def test_two_processes_that_create_a_folder_at_once(folder, monkeypatch):
    """Like tasks of an array: one creates everything while the other is halfway."""
    stores, fsync, turns = [open_store(folder), open_store(folder)], os.fsync, []

    def fsync_late(file):
        fsync(file)
        if not turns:
            turns.append("other")
            with monkeypatch.context() as patch:
                patch.setattr(writing, "OWN", "0" * 8)  # of the other process
                stores[1].add(key_of(1), {"text": "other"})

    monkeypatch.setattr(os, "fsync", fsync_late)
    stores[0].add(key_of(0), {"text": "first"})
    assert turns and all(open_store(folder).get(key_of(number)) for number in (0, 1))
    assert sorted(path.suffix for path in stores[0].folder.iterdir()) == [".json", ".jsonl", ".jsonl"]


def test_a_store_of_many_files_opens_few_at_a_time(folder):
    """A process may open about a thousand; a store has one for each run that added to it."""
    number = module.OPEN_FILES + 50
    path = fill(folder, [0])
    head = path.read_bytes().splitlines(keepends=True)[0]
    for place in range(1, number):
        path.with_name(f"{place}.jsonl").write_bytes(head + line_of(key_of(place), {"text": f"text {place}"}))
    store = open_store(folder)
    for _ in range(2):
        for place in random.sample(range(number), number):
            assert store.get(key_of(place))["text"] == f"text {place}"
        opened = [os.readlink(file) for file in map("/proc/self/fd/{}".format, os.listdir("/proc/self/fd"))
                  if os.path.exists(file)]  # fmt: skip
        assert 0 < sum(name.startswith(str(folder)) for name in opened) <= module.OPEN_FILES
    store.close()


@pytest.mark.parametrize("can_truncate", [True, False])
def test_a_partly_written_line_does_no_harm(folder, monkeypatch, can_truncate):
    store = open_store(folder)
    store.add(key_of(0), {"text": "first"})

    class FullDisk:
        def __init__(self, file):
            self._file, self.name, self._taken = file, file.name, False

        def write(self, line):
            if self._taken:
                raise OSError(28, "No space left on device")
            self._taken = True
            return self._file.write(line[:30])

        def truncate(self, size):
            if not can_truncate:
                raise OSError(5, "Input/output error")
            return self._file.truncate(size)

    really = store._own
    store._own = FullDisk(really)
    with pytest.raises(OSError, match="No space left on device") as raised:
        store.add(key_of(1), {"text": "lost"})
    assert raised.value.filename == really.name
    store._own = store._own and really
    store.add(key_of(2), {"text": "later"})
    for one in (store, open_store(folder)):
        assert [number for number in range(3) if one.get(key_of(number))] == [0, 2]
    store.close()


def test_a_file_of_another_model_is_refused(folder):
    store, other = open_store(folder), open_store(folder, dtype="float32")
    for one in (store, other):
        one.add(key_of(1), {"text": "its own"})
        one.close()
    [path] = other.folder.glob("*.jsonl")
    (store.folder / path.name).write_bytes(path.read_bytes())
    with pytest.raises(UserError, match=r"has completions of another model, \{.*float32.*\n  move it back"):
        open_store(folder).get(key_of(1))
