"""The journal, the final file and its manifest, as a run leaves them however it ends."""

import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest

from utils.cli import UserError
from utils.files.fingerprints import differences
from utils.files.journal import Journal
from utils.files.journal_lines import read_journal
from utils.files.lock import Lock
from utils.files.manifest import (
    describe_run,
    file_hash,
    manifest_of,
    prepare_output,
    publish,
    read_folder_manifest,
    read_manifest,
    refuse_unranked,
    without_password,
    write_folder_manifest,
)
from utils.files.outputs import OutputFile, overwrite_run
from utils.files.writing import write_atomically

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"model": "small", "temperature": 0.1, "prompt": {"rag": "ab12"}, "num_contexts": None}
OTHER = {**SETTINGS, "model": "large"}
MODEL_DIFFERS = 'model: "small", now "large"'
# Keys and values as the scripts have them, and what a file format might stumble over.
ENTRIES = {
    ("q1", 0): {"value": "two\nlines", "attempts": 1},
    ("q1", 1): {"value": None, "reason": "refused"},
    ("日本-’\u2028", 0): {"value": "🎸 \u2028\u0085 naïve"},
}


@pytest.fixture
def output(tmp_path):
    return tmp_path / "answers.json"


def journal_of(output):
    return Path(f"{output}.journal.jsonl")


def message(call, *args):
    """What a UserError says. Nothing keeps the exception, so what it holds open is closed when this returns."""
    try:
        call(*args)
    except UserError as error:
        return str(error)
    pytest.fail("no UserError")


def write_journal(output, entries=ENTRIES, settings=SETTINGS):
    journal = Journal(output, settings)
    for key, value in entries.items():
        journal.add(key, value)
    journal.close()
    return journal_of(output)


def output_file(output, settings, overwrite, keys):
    return OutputFile(str(output), settings, list(keys), None, "changed" if overwrite else None)


def check_journal(output, settings, overwrite, keys):
    output_file(output, settings, overwrite, keys).check()


def open_journal(output, settings, overwrite, keys, run=None):
    opened = output_file(output, settings, overwrite, keys)
    opened.open(run)
    return opened.journal


def read_entries(output, settings=SETTINGS):
    journal = Journal(output, settings)
    journal.close()
    return journal.entries


def finish(output, data="first", settings=SETTINGS):
    publish(output, data, {"fingerprint": settings})


def names_in(folder):
    return {path.name for path in folder.iterdir()}


# The journal


def test_a_new_journal_is_empty(output):
    journal = Journal(output, SETTINGS)
    assert (journal.entries, journal.resumed, journal.published) == ({}, 0, False)


def test_a_piece_is_in_the_file_the_moment_it_is_added(output):
    journal = Journal(output, SETTINGS)
    journal.add(("q1", 0), {"value": "猫"})
    header, line = journal_of(output).read_text(encoding="utf-8").splitlines()  # the journal is still open
    assert json.loads(header) == {"fingerprint": SETTINGS}
    assert json.loads(line).items() >= {"key": ["q1", 0], "value": {"value": "猫"}}.items()
    assert "猫" in line  # readable as it stands


def test_the_next_run_resumes(output):
    write_journal(output)
    journal = Journal(output, SETTINGS)
    assert journal.entries == ENTRIES
    assert journal.resumed == 3
    journal.add(("q2", 0), {"value": "new"})
    journal.close()
    assert journal.resumed == 3  # of earlier runs
    assert read_entries(output) == {**ENTRIES, ("q2", 0): {"value": "new"}}


def test_a_piece_that_was_done_again_replaces_the_first(output):
    write_journal(output, {("q1", 0): "old"})
    write_journal(output, {("q1", 0): "new"})
    assert read_entries(output) == {("q1", 0): "new"}


ONE, OTHER_HASH = "0a1b2c3d4e5f" + "0" * 52, "f5e4d3c2b1a0" + "0" * 52
PLACE = "/home/somebody/projects/personalization/lampqa/models"


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        (0.1, 0.5, "0.1, now 0.5"),
        (None, "a", 'null, now "a"'),
        (ONE, OTHER_HASH, "other content (SHA-256 0a1b2c3d4e5f…, now f5e4d3c2b1a0…)"),
        (None, ONE, 'null, now "0a1b2c3d4e5f…"'),
        (ONE, ONE[:-1] + "1", "0001)"),  # not that there would be two such
        (
            {"rag": ONE, "same": ONE},
            {"rag": OTHER_HASH, "same": ONE},
            "s: rag: other content (SHA-256 0a1b2c3d4e5f…, now f5e4d3c2b1a0…)",
        ),
        ({"rag": "a"}, {"planpers": "a"}, 'rag: "a", now null; s: planpers: null, now "a"'),
        ([ONE, ONE], [ONE, OTHER_HASH], '["0a1b2c3d4e5f…", "0a1b2c3d4e5f…"], now ["0a1b2c3d4e5f…", "f5e4d3c2b1a0…"]'),
        (
            f"{PLACE}/run_1/best",
            f"{PLACE}/run_2/best",
            '…n/lampqa/models/run_1/best", now …n/lampqa/models/run_2/best"',
        ),
        (f"sha256:{ONE} on a/b@{ONE[:40]}", f"sha256:{ONE} on a/b@{OTHER_HASH[:40]}", "a/b@0a1b2c3d4e5f…"),
        (f"sha256:{ONE} on a/b@{ONE[:40]}", f"sha256:{ONE} on a/b@{OTHER_HASH[:40]}", "a/b@f5e4d3c2b1a0…"),
        ("x" * 100, "x" * 101, f'…{"x" * 20}", now …{"x" * 20}x"'),
        ("y" * 90, "z" * 90, f'"{"y" * 59}…, now "{"z" * 59}…'),
        ("x" * 50 + "y" * 90 + "z" * 50, "x" * 50 + "z" * 50, f"…{'x' * 20}{'y' * 40}…, now …{'x' * 20}{'z' * 20}…"),
    ],
)
def test_of_a_setting_what_differs_is_shown(old, new, shown):
    text = differences({"s": old, "same": 1}, {"s": new, "same": 1})
    assert text.startswith("s: ") and shown in text
    assert len(text) < 160


def test_of_many_settings_the_first_five_are_shown():
    old, new = ({"a": {str(i): i for i in range(4)}, "b": sign, "c": sign, "d": 1} for sign in (1, -1))
    new["a"] = dict.fromkeys(new["a"])
    assert differences(old, new) == (
        "a: 0: 0, now null; a: 1: 1, now null; a: 2: 2, now null; a: 3: 3, now null; b: 1, now -1; and 1 more"
    )
    assert differences(old, {**old, "e": None}) == ""


def test_a_journal_cut_off_anywhere_loses_only_what_was_not_whole(output):
    path = write_journal(output)
    whole = path.read_bytes()
    written = list(ENTRIES.items())
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        num_whole = max(0, whole[:length].count(b"\n") - 1)  # the first line is the header
        journal = Journal(output, SETTINGS)
        assert list(journal.entries.items()) == written[:num_whole], length
        journal.add(("added", 0), "after the cut")
        journal.close()
        assert read_entries(output) == {**dict(written[:num_whole]), ("added", 0): "after the cut"}, length


@pytest.mark.parametrize(
    "damage", [b'{"key": ["q1", 1', b"\0" * 40, b'{"key": ["q1", 1]}', b"[]", b"5", b"\xff\xfe", b""]
)
def test_a_damaged_line_before_the_last_is_named(output, damage):
    path = write_journal(output)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], damage, *lines[3:]]))
    before = path.read_bytes()
    assert message(Journal, output, SETTINGS) == (
        f"{path}: line 3 is damaged\n  delete that line to have its piece done again, or the file to begin anew"
    )
    assert path.read_bytes() == before
    path.write_bytes(b"\n".join([*lines[:2], *lines[3:]]))  # the remedy
    assert list(read_entries(output)) == [("q1", 0), ("日本-’\u2028", 0)]


@pytest.mark.parametrize("header", [b"{}", b"{", b"[1]", b'{"key": ["q1", 0], "value": 1}'])
def test_a_damaged_header_is_named(output, header):
    path = write_journal(output)
    path.write_bytes(header + b"\n" + path.read_bytes().split(b"\n", 1)[1])
    assert message(Journal, output, SETTINGS) == (
        f"{path}: line 1 is damaged\n  every other line's checksum includes it: delete the file to begin anew"
    )
    path.unlink()  # the remedy
    write_journal(output)


def test_other_settings_are_refused_by_name_with_both_values(output):
    path = write_journal(output)
    before = path.read_bytes()
    changed = {"model": "large", "temperature": 0.1, "prompt": {"rag": "cd34"}, "num_contexts": 10, "new": "x" * 90}
    assert message(Journal, output, changed) == (
        f'{path}: an unfinished run with other settings: {MODEL_DIFFERS}; prompt: rag: "ab12", now "cd34"; '
        f'num_contexts: null, now 10; new: null, now "{"x" * 59}…\n'
        "  repeat that run's command, give another output, or --overwrite to begin anew"
    )
    assert path.read_bytes() == before


def test_overwrite_begins_anew_for_other_settings(output):
    write_journal(output)
    journal = Journal(output, OTHER, overwrite=True)
    assert (journal.entries, journal.resumed) == ({}, 0)
    journal.add(("q9", 0), "new")
    journal.close()
    assert read_entries(output, OTHER) == {("q9", 0): "new"}


def test_overwrite_keeps_what_the_same_settings_made(output):
    write_journal(output)
    journal = Journal(output, SETTINGS, overwrite=True)
    assert journal.entries == ENTRIES


def test_a_second_run_on_the_same_output_is_refused_while_the_first_lives(output):
    write_journal(output)
    with start(HOLD_JOURNAL, output) as first:
        before = journal_of(output).read_bytes()
        for settings, overwrite in ((SETTINGS, False), (OTHER, True)):
            assert message(Journal, output, settings, overwrite) == in_use(output, first.pid)
        assert journal_of(output).read_bytes() == before
        first.kill()
        first.wait()
        assert read_entries(output) == {**ENTRIES, ("held", 0): 1}  # a killed run leaves nothing locked behind


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*")}


def test_a_check_refuses_an_output_that_another_run_writes(output):
    write_journal(output)
    with start(HOLD_JOURNAL, output) as first:
        before = snapshot(output.parent)
        assert message(check_journal, output, SETTINGS, True, []) == in_use(output, first.pid)
        assert snapshot(output.parent) == before


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("with_journal", [False, True])
@pytest.mark.parametrize("settings", [SETTINGS, OTHER])
@pytest.mark.parametrize("keys", [list(ENTRIES), [("q1", 0)]])
def test_a_check_refuses_what_a_run_would(output, interrupted, with_journal, settings, keys):
    """Also where a run died between the manifest and the final file, which the next one puts in place first."""
    journal = Journal(output, SETTINGS)
    for key, value in ENTRIES.items():
        journal.add(key, value)
    journal.publish({"q1": "the answers"}, {}, None)
    journal.close()
    if not with_journal:
        journal_of(output).unlink()
    if interrupted:
        output.rename(f"{output}.tmp")
        output.write_text("an earlier run's")
    before = snapshot(output.parent)
    told = []
    for call in (check_journal, open_journal):
        try:
            opened = call(output, settings, False, keys)
        except UserError as error:
            told.append(str(error))
        else:
            told.append(None)
            assert opened is None or opened.close() is None
        if call is check_journal:
            assert snapshot(output.parent) == before
    assert told == told[:1] * 2
    assert (told[0] is None) == (settings == SETTINGS and (with_journal or len(keys) > 1))


@pytest.mark.parametrize("begun", [False, True])
def test_a_journal_lets_its_output_go(output, begun):
    if begun:
        write_journal(output)
    journal = Journal(output, SETTINGS)
    assert lock_of(output).exists()
    journal.close()
    assert not lock_of(output).exists()
    journal = Journal(output, SETTINGS)
    del journal  # forgotten
    assert not lock_of(output).exists()
    assert read_entries(output) == (ENTRIES if begun else {})


def test_a_run_that_is_publishing_is_left_alone(output, tmp_path):
    first = Journal(output, SETTINGS)
    first.add(("q1", 0), "a")
    finish(tmp_path / "other.json")
    (tmp_path / "other.json").rename(f"{output}.tmp")  # written, and about to be renamed
    (tmp_path / "other.json.manifest.json").rename(f"{output}.manifest.json")
    assert message(open_journal, output, SETTINGS, False, ENTRIES) == in_use(output, os.getpid())
    assert not output.exists() and Path(f"{output}.tmp").exists()
    first.close()


def test_a_refused_journal_lets_its_output_go(output):
    path = write_journal(output)
    assert MODEL_DIFFERS in message(Journal, output, OTHER)
    path.write_bytes(path.read_bytes() + b"{}\n")
    assert "line 5 is damaged" in message(Journal, output, SETTINGS)
    assert names_in(output.parent) == {"answers.json.journal.jsonl"}


def test_a_journal_is_begun_with_its_first_piece(output):
    path = write_journal(output)
    before = path.read_bytes()
    journal = Journal(output, OTHER, overwrite=True)
    journal.close()
    assert path.read_bytes() == before  # a run that was refused, or died, before it had anything
    assert read_entries(output) == ENTRIES
    journal = Journal(output, OTHER, overwrite=True)
    assert path.read_bytes() == before
    journal.add(("q9", 0), "new")
    header, line = path.read_text().splitlines()
    assert json.loads(header) == {"fingerprint": OTHER}
    assert json.loads(line).items() >= {"key": ["q9", 0], "value": "new"}.items()


def test_a_finished_run_without_any_piece_has_its_own_journal(output):
    write_journal(output)
    finish(output)
    journal = open_journal(output, OTHER, overwrite=True, keys=[])
    journal.publish({}, {}, None)
    journal.close()
    journal = open_journal(output, OTHER, overwrite=False, keys=[])
    assert (journal.entries, journal.published) == ({}, True)
    assert read_journal(journal_of(output)) == (OTHER, {})


def test_a_new_journal_has_no_header_before_its_first_piece(output):
    journal = Journal(output, SETTINGS)
    assert journal_of(output).read_bytes() == b""
    journal.close()
    assert read_entries(output, OTHER) == {}  # of no settings yet


def test_two_outputs_do_not_meet(tmp_path):
    first, second = Journal(tmp_path / "a.json", SETTINGS), Journal(tmp_path / "b.json", OTHER)
    first.add(("q1", 0), "first")
    second.add(("q1", 0), "second")
    first.close()
    second.close()
    assert read_entries(tmp_path / "a.json", SETTINGS) == {("q1", 0): "first"}
    assert read_entries(tmp_path / "b.json", OTHER) == {("q1", 0): "second"}


# A journal that is only read


def test_a_journal_is_read_as_it_was_written_and_stays(output):
    path = write_journal(output)
    before = path.read_bytes()
    assert read_journal(path) == (SETTINGS, ENTRIES)
    assert read_journal(str(path)) == (SETTINGS, ENTRIES)
    assert path.read_bytes() == before
    assert names_in(output.parent) == {path.name}


def test_a_journal_is_read_while_a_run_writes_it(output):
    write_journal(output)
    with start(HOLD_JOURNAL, output):
        assert read_journal(journal_of(output)) == (SETTINGS, {**ENTRIES, ("held", 0): 1})


def test_a_journal_cut_off_anywhere_is_read_as_far_as_it_is_whole(output):
    path = write_journal(output)
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        if (num_lines := whole[:length].count(b"\n")) == 0:
            assert message(read_journal, path) == f"{path}: holds nothing yet"
        else:
            assert read_journal(path) == (SETTINGS, dict(list(ENTRIES.items())[: num_lines - 1])), length
        assert path.read_bytes() == whole[:length]  # a torn last line may still be in the writing


def test_the_last_of_two_values_counts(output):
    write_journal(output, {("q1", 0): "old"})
    assert read_journal(write_journal(output, {("q1", 0): "new"})) == (SETTINGS, {("q1", 0): "new"})


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (1, "every other line's checksum includes it: delete the file to begin anew"),
        (3, "delete that line to have its piece done again, or the file to begin anew"),
    ],
)
def test_a_damaged_line_of_a_journal_that_is_only_read_is_named(output, number, remedy):
    path = write_journal(output)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[: number - 1], b"{}", *lines[number:]]))
    assert message(read_journal, path) == f"{path}: line {number} is damaged\n  {remedy}"


def test_what_cannot_be_read_is_no_journal(tmp_path):
    assert (
        message(read_journal, tmp_path / "a.jsonl") == f"{tmp_path}/a.jsonl: cannot be read: No such file or directory"
    )
    assert message(read_journal, tmp_path) == f"{tmp_path}: not a regular file; move it away, or give another output"


# May the output be written?


def test_an_absent_output_is_free_and_its_folder_is_made(tmp_path):
    output = tmp_path / "new" / "folder" / "answers.json"
    assert prepare_output(output, SETTINGS, overwrite=False) is False
    assert names_in(output.parent) == set()  # trying it out left nothing


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_finished_output_is_left_alone(output, overwrite):
    finish(output)
    before = {path: path.read_bytes() for path in output.parent.iterdir()}
    assert prepare_output(output, dict(SETTINGS), overwrite) is True
    assert {path: path.read_bytes() for path in output.parent.iterdir()} == before


def made_with_other_settings(output):
    finish(output, settings=SETTINGS)


def written_by_something_else(output):
    output.write_text("a user's own file")


def changed_since(output):
    finish(output, settings=OTHER)
    output.write_text(output.read_text() + " ")


def with_a_broken_manifest(output):
    finish(output, settings=OTHER)
    Path(f"{output}.manifest.json").write_text("[]")


UNKNOWN = "exists, and was not written by this script or was changed since"


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (made_with_other_settings, f"was made with other settings: {MODEL_DIFFERS}"),
        (written_by_something_else, f"{UNKNOWN}: answers.json.manifest.json is not beside it"),
        (changed_since, UNKNOWN),
        (with_a_broken_manifest, UNKNOWN),
    ],
)
def test_an_output_that_is_not_this_runs_is_refused_unless_overwritten(output, make, problem):
    make(output)
    before = output.read_bytes()
    assert message(prepare_output, output, OTHER, False) == (
        f"{output}: {problem}\n  give another output, or --overwrite to replace it"
    )
    assert prepare_output(output, OTHER, overwrite=True) is False
    assert output.read_bytes() == before  # it stays until there is something to replace it with


def test_an_output_under_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file.txt").write_text("x")
    for output in (tmp_path / "file.txt" / "answers.json", tmp_path / "file.txt" / "more" / "answers.json"):
        assert message(prepare_output, output, SETTINGS, True).startswith(f"{output}: cannot be written: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_in_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    output = tmp_path / "answers.json"
    refused = message(prepare_output, output, SETTINGS, True)
    assert refused.startswith(f"{output}: cannot be written: Permission denied\n  have it made writable, or ")


def test_a_folder_is_no_output(tmp_path):
    expected = f"{tmp_path}: is a folder; give the name of a file in it"
    assert message(prepare_output, tmp_path, SETTINGS, True) == expected
    assert message(overwrite_run, "all", [tmp_path]) == expected


# Output and journal together


def test_an_unfinished_run_goes_on(output):
    write_journal(output)
    journal = open_journal(output, SETTINGS, overwrite=False, keys=ENTRIES)
    assert (journal.resumed, journal.published) == (3, False)


def test_a_finished_run_can_be_added_to_while_its_journal_is_there(output):
    write_journal(output)
    finish(output)
    journal = open_journal(output, SETTINGS, overwrite=False, keys=ENTRIES)
    assert (journal.resumed, journal.published) == (3, True)


def test_a_finished_run_without_its_journal_is_closed(output):
    write_journal(output)
    journal = Journal(output, SETTINGS)
    journal.publish(["all"], {}, None)
    journal.close()
    journal_of(output).unlink()
    assert open_journal(output, SETTINGS, overwrite=False, keys=list(reversed(ENTRIES))) is None
    for keys in ([*ENTRIES, ("q9", 0)], list(ENTRIES)[:-1], [("q9", 0), *list(ENTRIES)[1:]]):
        found = f"holds 3 pieces, others than the {len(keys)} of this run, and its journal was deleted"
        assert found in message(open_journal, output, SETTINGS, False, keys)
    assert not journal_of(output).exists()


@pytest.mark.parametrize("damage", [b"", b'{"fingerprint": {"mod', b'{"fingerprint": {}}', b"\0", b"\0" * 5000])
def test_a_journal_without_a_first_line_beside_a_finished_output_is_as_good_as_deleted(output, damage):
    write_journal(output)
    journal = Journal(output, SETTINGS)
    journal.publish(["all"], {}, None)
    journal.close()
    journal_of(output).write_bytes(damage)
    assert open_journal(output, SETTINGS, overwrite=False, keys=list(ENTRIES)) is None
    found = "holds 3 pieces, others than the 4 of this run, and its journal was deleted or emptied"
    assert found in message(open_journal, output, SETTINGS, False, [*ENTRIES, ("q9", 0)])
    assert journal_of(output).read_bytes() == damage


@pytest.mark.parametrize("ending", [".journal.jsonl", ".lock"])
def test_a_link_in_place_of_a_file_of_ours_is_refused_and_its_target_kept(output, ending):
    target = output.with_name("target")
    target.write_text("somebody else's")
    Path(f"{output}{ending}").symlink_to(target)
    assert f"{output}{ending}: a symbolic link; move it away" in message(Journal, output, SETTINGS)
    assert target.read_text() == "somebody else's"


@pytest.mark.parametrize("ending", ["", ".manifest.json"])
def test_a_link_in_place_of_a_file_that_is_being_written_is_replaced_and_its_target_kept(output, ending):
    target = output.with_name("target")
    target.write_text("somebody else's")
    Path(f"{output}{ending}.tmp").symlink_to(target)
    journal = Journal(output, SETTINGS)
    journal.publish(["all"], {}, None)
    assert target.read_text() == "somebody else's"
    assert not output.is_symlink() and json.loads(output.read_text()) == ["all"]


@pytest.mark.parametrize("ending", [".lock", ".journal.jsonl"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_a_folder_in_place_of_a_lock_or_a_journal_is_refused(output, make, ending):
    make(f"{output}{ending}")
    assert f"{output}{ending}: not a regular file" in message(Journal, output, SETTINGS)


def test_a_finished_run_of_other_settings_keeps_its_journal_until_overwritten(output):
    path = write_journal(output)
    finish(output)
    before = path.read_bytes()
    assert MODEL_DIFFERS in message(open_journal, output, OTHER, False, ENTRIES)
    assert path.read_bytes() == before
    journal = open_journal(output, OTHER, overwrite=True, keys=ENTRIES)
    assert (journal.entries, journal.published) == ({}, False)


# Made anew


def write_finished(output, run=None, settings=SETTINGS, **figures):
    """Make an output of all entries, or what `run` has left to do of it."""
    journal = open_journal(output, settings, run is not None, ENTRIES, run)
    for key in [key for key in ENTRIES if key not in journal.entries]:
        journal.add(key, ENTRIES[key])
    journal.publish(["all"], {}, None, **figures)
    journal.close()


def test_a_run_that_makes_an_output_anew_goes_on_until_it_is_finished(output):
    write_finished(output)
    before = output.read_bytes(), Path(f"{output}.manifest.json").read_bytes()
    run = overwrite_run("all", [output])
    journal = open_journal(output, SETTINGS, True, ENTRIES, run)
    assert (journal.entries, journal.published) == ({}, False)
    journal.add(("q1", 0), "new")
    journal.close()  # killed
    assert (output.read_bytes(), Path(f"{output}.manifest.json").read_bytes()) == before
    assert overwrite_run("all", [output]) == run
    journal = open_journal(output, SETTINGS, True, ENTRIES, run)
    assert journal.entries == {("q1", 0): "new"}
    assert not journal.published
    journal.close()
    write_finished(output, run)  # the bytes may well be the same
    assert (output.read_bytes(), read_manifest(output)["overwrite"]) == (before[0], run)
    again = overwrite_run("all", [output])
    assert again != run
    assert open_journal(output, SETTINGS, True, ENTRIES, again).entries == {}


@pytest.mark.parametrize("value", [None, "changed"])
def test_only_all_is_made_anew(output, value):
    write_finished(output)
    assert overwrite_run(value, [output]) is None
    journal = open_journal(output, SETTINGS, bool(value), ENTRIES, None)
    assert (journal.resumed, journal.published) == (3, True)


def test_what_a_run_finished_before_it_was_killed_is_not_made_anew_with_the_rest(tmp_path):
    outputs = [tmp_path / "a.json", tmp_path / "b.json"]
    for output in outputs:
        write_finished(output)
    run = overwrite_run("all", outputs)
    write_finished(outputs[0], run)  # killed before the other one is begun
    assert overwrite_run("all", outputs) == run
    assert overwrite_run("all", outputs[:1]) != run  # another command
    first, second = (open_journal(output, SETTINGS, True, ENTRIES, run) for output in outputs)
    assert (first.published, first.resumed, second.published, second.resumed) == (True, 3, False, 0)
    first.close()
    second.close()
    write_finished(outputs[1], run)
    assert overwrite_run("all", outputs) != run


def test_what_a_server_failed_to_give_does_not_begin_a_run_anew(output):
    write_finished(output, missing=1)
    journal = open_journal(output, SETTINGS, True, ENTRIES, overwrite_run("all", [output]))
    assert journal.resumed == 3
    journal.close()
    run = overwrite_run("all", [output])
    write_finished(output, run, missing=1)
    assert overwrite_run("all", [output]) == run


def test_a_run_that_is_to_replace_an_output_of_other_settings_goes_on(output):
    """As --overwrite left it before runs had names."""
    write_finished(output)
    journal_of(output).unlink()
    write_journal(output, {("q1", 0): "a"}, OTHER)
    journal = open_journal(output, OTHER, True, ENTRIES, overwrite_run("all", [output]))
    assert (journal.resumed, journal.published) == (1, False)


def test_an_interrupted_run_is_ended_without_the_flag_too(output):
    write_finished(output)
    run = overwrite_run("all", [output])
    journal = open_journal(output, SETTINGS, True, ENTRIES, run)
    for key, value in ENTRIES.items():
        journal.add(key, value)
    journal.close()
    journal = open_journal(output, SETTINGS, False, ENTRIES)
    journal.publish(["all"], {}, None)
    journal.close()
    assert overwrite_run("all", [output]) != run


# The final file


def test_publish_puts_down_the_file_and_a_manifest_with_its_hash(output):
    publish(output, {"q1": [{"output": "日本 \u2028"}]}, {"fingerprint": SETTINGS, "counts": {"answers": 1}})
    assert json.loads(output.read_text(encoding="utf-8")) == {"q1": [{"output": "日本 \u2028"}]}
    assert "日本" in output.read_text(encoding="utf-8")
    assert read_manifest(output) == {
        "fingerprint": SETTINGS,
        "counts": {"answers": 1},
        "output_sha256": file_hash(output),
    }
    assert names_in(output.parent) == {"answers.json", "answers.json.manifest.json"}


# Publishes in folders 0, 1, ..., each time in a process that is gone, as after kill -9, at the next file operation.
KILLED = """
import builtins, io, json, os, sys
from pathlib import Path
from utils.files.manifest import publish

older, newer = json.loads(sys.argv[2])
left, really_open = 0, open

def step():
    global left
    if left == 0:
        os._exit(9)
    left -= 1

def counted(operation):
    return lambda *args, **more: (step(), operation(*args, **more))[1]

class HalfwayFile:
    def __init__(self, path, *args, **more):
        step()
        self.file = really_open(path, *args, **more)
    def __enter__(self):
        return self
    def __exit__(self, *error):
        self.file.close()
    def __getattr__(self, name):
        return getattr(self.file, name)
    def write(self, text):
        for part in (text[: len(text) // 2], text[len(text) // 2 :]):
            step()
            self.file.write(part)
            self.file.flush()

for folder in (Path(sys.argv[1]) / str(number) for number in range(100)):
    folder.mkdir()
    if child := os.fork():
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            break
        continue
    if older:
        publish(folder / "answers.json", older[0], {"fingerprint": older[1]})
    os.replace, os.fsync, os.open = counted(os.replace), counted(os.fsync), counted(os.open)
    builtins.open = io.open = HalfwayFile
    left = int(folder.name)
    publish(folder / "answers.json", newer[0], {"fingerprint": newer[1]})
    os._exit(0)
"""
OLDER, NEWER = ["older text " * 20, SETTINGS], ["newer text " * 30, OTHER]


@pytest.mark.parametrize(
    ("older", "newer"),
    [(None, NEWER), (OLDER, NEWER), ([OLDER[0], OTHER], NEWER)],
    ids=["fresh", "in place of other settings", "more of the same settings"],
)
def test_a_process_killed_while_it_publishes_leaves_nothing_half_done(tmp_path, older, newer):
    subprocess.run([sys.executable, "-c", KILLED, tmp_path, json.dumps([older, newer])], cwd=ROOT, check=True)
    folders = sorted(tmp_path.iterdir(), key=lambda folder: int(folder.name))
    assert len(folders) >= 12  # two files written and synced, two renames and two synced folders, and the end
    texts = {None if data is None else json.dumps(data[0], indent=2) + "\n" for data in (older, newer)}
    seen = set()
    for folder in folders:
        output = folder / "answers.json"
        seen.add(output.read_text() if output.exists() else None)
        copy = Path(shutil.copytree(folder, f"{folder}-copy"))
        check_what_the_older_command_finds(copy / "answers.json", older, newer)
        finished = prepare_output(output, newer[1], overwrite=older is not None and older[1] != newer[1])
        assert not finished or read_manifest(output)["output_sha256"] == file_hash(output)
        finish(output, *newer)
        assert json.loads(output.read_text()) == newer[0]
        assert prepare_output(output, newer[1], overwrite=False) is True
        assert names_in(folder) == {"answers.json", "answers.json.manifest.json"}
    assert seen == texts  # nothing else was ever to be seen under the final name, and both were


def check_what_the_older_command_finds(output, older, newer):
    """Its own output whole, or the newer one whole: never one that looks changed by hand."""
    if older is None:
        return
    try:
        assert prepare_output(output, older[1], overwrite=False) is True
    except UserError as error:
        assert "was made with other settings" in str(error)
        assert json.loads(output.read_text()) == newer[0]
    assert read_manifest(output)["output_sha256"] == file_hash(output)


def test_write_atomically_replaces_a_file_whole(tmp_path):
    path = tmp_path / "table.md"
    for text in ("a longer first text\n", "日本\n"):
        write_atomically(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert names_in(tmp_path) == {"table.md"}


# The manifest


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"[]", b"null", b'{"fingerprint": {}}', b'{"output_sha256": ""}', b"\xff"]
)
def test_what_is_no_manifest_is_none(output, content):
    if content is not None:
        Path(f"{output}.manifest.json").write_bytes(content)
    assert read_manifest(output) is None


@pytest.mark.parametrize("damage", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path.name), lambda path: None])
def test_a_manifest_tells_nothing_of_what_is_no_file(output, damage):
    publish(output, {}, {"fingerprint": SETTINGS})
    output.unlink()
    damage(output)
    assert read_manifest(output) is not None and manifest_of(output) is None


def test_file_hash_is_sha256(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-4's example
    assert file_hash(tmp_path / "abc") == expected
    with pytest.raises(UserError, match=r"^/dev/null: not a regular file"):  # /dev/zero would never end
        file_hash("/dev/null")


def test_a_run_is_described_with_versions_and_figures():
    arguments = {"model_addr": "small", "temperature": 0.1, "score_addr": ["a", "b"], "base_url": None}
    manifest = describe_run(arguments, SETTINGS, "CPU, 2 cores", counts={"answers": 3}, wall_seconds=1.5)
    assert manifest["arguments"] == arguments
    assert manifest["fingerprint"] == SETTINGS
    assert (manifest["device"], manifest["counts"], manifest["wall_seconds"]) == ("CPU, 2 cores", {"answers": 3}, 1.5)
    assert manifest["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert manifest["versions"]["numpy"] == metadata.version("numpy")
    assert json.loads(json.dumps(manifest)) == manifest


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://user:secret@host:8000/v1", "https://host:8000/v1"),
        ("https://secret@host/v1", "https://host/v1"),
        ("https://user:se@cret@host/v1", "https://host/v1"),
        ("http://host/v1/user@place", "http://host/v1/user@place"),
        ("http://host?mail=a@b", "http://host?mail=a@b"),
        ("someone@host.org", "someone@host.org"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        (8000, 8000),
        (None, None),
    ],
)
def test_an_address_is_kept_without_its_password(address, expected):
    assert without_password(address) == expected
    assert describe_run({"base_url": address}, {}, None)["arguments"] == {"base_url": expected}


@pytest.mark.skipif(shutil.which("git") is None, reason="no git here")
def test_the_commit_is_named_and_marked_where_files_differ(tmp_path):
    for room in ("cli", "files"):
        shutil.copytree(ROOT / "utils" / room, tmp_path / "utils" / room, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "utils/__init__.py").touch()
    assert commit_in(tmp_path) == "None"
    git(tmp_path, "init", "-q")
    assert commit_in(tmp_path) == "None"  # no commit yet
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert re.fullmatch("[0-9a-f]{40}", commit)
    (tmp_path / "answers.json").write_text("{}")  # not tracked: no change of the code
    assert commit_in(tmp_path) == commit
    with open(tmp_path / "utils/cli/errors.py", "a") as file:
        file.write("# changed\n")
    assert commit_in(tmp_path) == f"{commit}+"


def git(folder, *arguments):
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def commit_in(folder):
    code = "from utils.files.manifest import describe_run; print(describe_run({}, {}, None)['git_commit'])"
    command = [sys.executable, "-B", "-c", code]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


# What a journal holds and publishes


def never(pieces):
    pytest.fail("nothing is to be compared")


def open_output(output, keys, collect):
    opened = OutputFile(str(output), SETTINGS, list(keys), collect)
    opened.open()
    return opened


def test_what_is_missing_is_told_in_order(output):
    write_journal(output)
    opened = open_output(output, [("q2", 0), ("q1", 0), ("q1", 2)], never)
    assert opened.missing() == opened.left() == [("q2", 0), ("q1", 2)]
    assert not opened.holds_pieces()


def test_an_unpublished_journal_holds_nothing_however_full(output):
    write_journal(output)
    opened = open_output(output, ENTRIES, never)
    assert opened.missing() == []
    assert opened.holds_pieces() is False


def test_a_published_output_holds_its_pieces_and_no_others(output):
    write_journal(output)
    finish(output, {"q1": ["two\nlines", None]})
    opened = open_output(output, ENTRIES, lambda pieces: {"q1": ["two\nlines", None]})
    assert opened.holds_pieces() is True
    opened.keys = [("q1", 0)]
    assert opened.holds_pieces() is True
    opened.keys, opened.collect = [*ENTRIES, ("q2", 0)], never
    assert opened.holds_pieces() is False


def test_a_run_that_died_before_its_second_publishing_is_not_finished(output):
    def collect(pieces):
        return [piece["value"] for piece in pieces.values()]

    write_journal(output, {("q1", 0): {"value": "a"}})
    finish(output, ["a"])
    write_journal(output, {("q2", 0): {"value": "b"}})
    opened = open_output(output, [("q1", 0), ("q2", 0)], collect)
    assert opened.missing() == [] and opened.holds_pieces() is False
    opened.publish({}, None)
    opened.journal.close()
    assert open_output(output, [("q1", 0), ("q2", 0)], collect).holds_pieces() is True


def test_a_journal_publishes_with_what_the_run_took(output):
    write_journal(output, {("q1", 0): "a", ("q1", 1): "b"})
    started = time.monotonic()
    journal = Journal(output, SETTINGS)
    journal.add(("q2", 0), "猫")
    journal.publish({"answers": ["a", "b", "猫"]}, {"seed": 3}, "CPU, 2 cores", counts={"answers": 3})
    took = time.monotonic() - started
    journal.close()
    assert json.loads(output.read_text(encoding="utf-8")) == {"answers": ["a", "b", "猫"]}
    manifest = read_manifest(output)
    assert (manifest["pieces"], manifest["resumed"], manifest["counts"]) == (3, 2, {"answers": 3})
    assert (manifest["arguments"], manifest["device"]) == ({"seed": 3}, "CPU, 2 cores")
    assert 0 <= manifest["wall_seconds"] <= round(took, 3)
    assert manifest["fingerprint"] == SETTINGS
    assert manifest["output_sha256"] == file_hash(output)
    assert prepare_output(output, SETTINGS, overwrite=False) is True


# Locks. Here a process is one that was started for the test.


def lock_of(output):
    return Path(f"{output}.lock")


def in_use(output, pid, host=None):
    """What the second of two processes is told."""
    return f"{output}: process {pid} on {host or socket.gethostname()} is writing it; wait for it, or end it"


def name_of(output):
    """Who a lock file says it belongs to: (host, pid)."""
    holder = json.loads(lock_of(output).read_text())
    return holder["host"], holder["pid"]


US = (socket.gethostname(), os.getpid())

HOLD = """
import sys
from utils.files.lock import Lock
lock = Lock(sys.argv[1])
print("ready", flush=True)
input()
"""
HOLD_JOURNAL = f"""
import sys
from utils.files.journal import Journal
journal = Journal(sys.argv[1], {SETTINGS!r})
journal.add(("held", 0), 1)
print("ready", flush=True)
input()
"""


@contextmanager
def start(code, *arguments):
    """A process that has come to its `print("ready")`; it is killed in the end."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_a_lock_keeps_others_out_until_it_is_let_go(tmp_path):
    output, other = tmp_path / "a.json", tmp_path / "b.json"
    lock, elsewhere = Lock(output), Lock(str(other))
    assert name_of(output) == name_of(other) == US
    assert message(Lock, output) == in_use(output, os.getpid())
    lock.release()
    assert names_in(tmp_path) == {"b.json.lock"}
    lock.release()  # once more changes nothing
    again = Lock(output)
    lock.release()
    assert message(Lock, output) == in_use(output, os.getpid())
    del again, elsewhere  # forgotten
    assert names_in(tmp_path) == set()


def test_a_living_holder_is_named_and_keeps_its_lock(output):
    with start(HOLD, output) as holder:
        for _ in range(3):
            assert message(Lock, output) == in_use(output, holder.pid)
        assert name_of(output) == (socket.gethostname(), holder.pid)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_what_a_process_that_was_ended_left_is_taken_over(output, end):
    with start(HOLD, output) as holder:
        holder.send_signal(end)
        holder.wait()
        if end == signal.SIGKILL:
            assert name_of(output) == (socket.gethostname(), holder.pid)
        lock = Lock(output)
        assert name_of(output) == US
        lock.release()
    assert names_in(output.parent) == set()


def test_a_lock_goes_with_its_process(output):
    with start(HOLD, output) as holder:
        holder.communicate("\n")
        assert holder.returncode == 0
    assert names_in(output.parent) == set()


def test_an_interrupted_script_leaves_no_lock_file(output):
    script = (
        "from utils.cli import run_script\ndef main():\n " + HOLD.strip().replace("\n", "\n ") + "\nrun_script(main)"
    )
    with start(script, output) as holder:
        holder.terminate()
        holder.wait()
        assert holder.returncode == 130
    assert names_in(output.parent) == set()


FORK = """
import os, sys
from utils.files.lock import Lock
lock = Lock(sys.argv[1])
child = os.fork()
if child == 0:
    {ending}
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("ready", flush=True)
input()
"""


@pytest.mark.parametrize("ending", ["sys.exit()", "lock.release(); sys.exit()", "del lock; os._exit(0)"])
def test_a_fork_of_the_holder_does_not_let_go(output, ending):
    with start(FORK.format(ending=ending), output) as holder:
        assert message(Lock, output) == in_use(output, holder.pid)
        holder.communicate("\n")
    assert names_in(output.parent) == set()


SURVIVED = """
import os, signal, sys
from utils.files.lock import Lock
lock = Lock(sys.argv[1])
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.write(writing, b".")  # the fork is whole
    signal.pause()
os.read(reading, 1)
print("ready", child, sep="\\n", flush=True)
input()
"""


def test_what_a_killed_process_left_is_taken_over_from_its_fork_too(output):
    with start(SURVIVED, output) as holder:
        child = int(holder.stdout.readline())
        holder.kill()
        holder.wait()
        try:
            Lock(output).release()
        finally:
            os.kill(child, signal.SIGKILL)


RACE = """
import os, sys
from utils.cli import UserError
from utils.files.lock import Lock
output, rounds = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
input()
while rounds:
    try:
        lock = Lock(output)
    except UserError:
        continue
    os.close(os.open(output + ".inside", os.O_CREAT | os.O_EXCL))  # fails where another process is inside too
    os.unlink(output + ".inside")
    lock.release()
    rounds -= 1
print("done", flush=True)
"""


def test_of_processes_that_race_for_a_lock_one_has_it_at_a_time(output):
    with start(RACE, output, 200) as first, start(RACE, output, 200) as second:
        for process in (first, second):
            process.stdin.write("\n")
            process.stdin.flush()
        assert (first.stdout.read(), second.stdout.read()) == ("done\n", "done\n")
    assert names_in(output.parent) == set()


def test_a_lock_file_that_is_deleted_while_it_is_looked_at_is_made_anew(output, monkeypatch):
    really, looks = Path.stat, []

    def stat(path, **more):
        if path == lock_of(output):
            looks.append(path)
            if len(looks) == 1:
                path.unlink()  # as a holder does that lets go
        return really(path, **more)

    monkeypatch.setattr(Path, "stat", stat)
    lock = Lock(output)
    assert name_of(output) == US
    lock.release()


# Where the file system knows no locks


@pytest.fixture
def no_locks(monkeypatch):
    def refuse(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)


def leave_lock(output, host, pid):
    lock_of(output).write_text(json.dumps({"host": host, "pid": pid}) + "\n")


def test_without_locks_the_name_in_the_file_keeps_others_out(output, no_locks):
    lock = Lock(output)
    assert name_of(output) == US
    expected = f"{output}: process {os.getpid()} on {socket.gethostname()} is writing it\n"
    assert message(Lock, output) == expected + f"  if that process is gone, delete {output}.lock"
    lock.release()
    assert names_in(output.parent) == set()
    Lock(output).release()


def test_without_locks_a_living_process_of_this_host_refuses(output, no_locks):
    with start("print('ready', flush=True); input()") as other:
        leave_lock(output, socket.gethostname(), other.pid)
        before = lock_of(output).read_bytes()
        assert message(Lock, output) == (
            f"{output}: process {other.pid} on {socket.gethostname()} is writing it\n"
            f"  if that process is gone, delete {output}.lock"
        )
        assert lock_of(output).read_bytes() == before
        other.kill()
        other.wait()
        Lock(output).release()  # it is gone


def test_without_locks_any_other_host_refuses_until_its_file_is_deleted(output, no_locks):
    with start("print('ready', flush=True); input()") as process:
        gone = process.pid
    leave_lock(output, "elsewhere", gone)
    assert message(Lock, output) == (
        f"{output}: process {gone} on elsewhere is writing it\n  if that process is gone, delete {output}.lock"
    )
    lock_of(output).unlink()  # the remedy
    lock = Lock(output)
    assert name_of(output) == US
    lock.release()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b'{"pid": 1}', b"\xff"])
@pytest.mark.parametrize("locks", [True, False])
def test_a_lock_file_without_a_name_is_taken_over(output, content, locks, request):
    if not locks:
        request.getfixturevalue("no_locks")
    lock_of(output).write_bytes(content)
    lock = Lock(output)
    assert name_of(output) == US
    lock.release()


def test_without_locks_a_journal_is_still_one_runs_alone(output, no_locks):
    journal = Journal(output, SETTINGS)
    journal.add(("q1", 0), "a")
    assert f"process {os.getpid()} on " in message(Journal, output, SETTINGS)
    journal.close()
    assert read_entries(output) == {("q1", 0): "a"}


def test_a_holder_that_has_not_written_its_name_yet_is_another_process(output):
    with start(HOLD, output):
        lock_of(output).write_text("")
        assert message(Lock, output) == f"{output}: another process is writing it; wait for it, or end it"


# A folder's manifest


def test_a_folders_manifest_is_read_as_it_was_written(tmp_path):
    assert read_folder_manifest(tmp_path) is None
    assert read_folder_manifest(tmp_path / "missing") is None
    for step in (250, 500):  # the second replaces the first
        manifest = {"fingerprint": SETTINGS, "step": step, "name": "日本"}
        write_folder_manifest(str(tmp_path), manifest)
        assert read_folder_manifest(str(tmp_path)) == manifest
        assert names_in(tmp_path) == {"manifest.json"}
    assert "日本" in (tmp_path / "manifest.json").read_text(encoding="utf-8")


def test_a_folders_manifest_cut_off_anywhere_is_none(tmp_path):
    write_folder_manifest(tmp_path, {"fingerprint": SETTINGS, "name": "猫"})
    whole = (tmp_path / "manifest.json").read_bytes()
    for length in range(len(whole) - 1):  # without the last line break it is whole
        (tmp_path / "manifest.json").write_bytes(whole[:length])
        assert read_folder_manifest(tmp_path) is None


@pytest.mark.parametrize("content", ["[]", "null", "{}", '{"output_sha256": ""}', '"fingerprint"'])
def test_what_is_no_folders_manifest_is_none(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    assert read_folder_manifest(tmp_path) is None


# Ranked or not


@pytest.mark.parametrize(
    "fingerprint",
    [None, {"dataset_name": "a folder", "commit": None}, {"script": "utils/build_dataset.py", "split": "test"}],
    ids=["no manifest", "downloaded", "built"],
)
def test_a_dataset_that_is_not_ranked_is_refused_unless_that_is_meant(fingerprint, tmp_path, capsys):
    path = tmp_path / "train.json"
    path.write_text("[]")
    if fingerprint:
        publish(path, [], {"fingerprint": fingerprint})
    problem = f"{path}: not ranked: no manifest of retrieval/rank_dataset.py beside it"
    with pytest.raises(UserError) as error:
        refuse_unranked(path, False)
    remedy = "rank it first, or add --unranked to take its posts in the order of the file"
    assert str(error.value) == f"{problem}\n  {remedy}"
    refuse_unranked(path, True)
    assert capsys.readouterr() == ("", f"note: {problem}; its posts are used in the order of the file\n")


@pytest.mark.parametrize("unranked", [True, False])
def test_a_ranked_dataset_is_taken(unranked, tmp_path, capsys):
    publish(tmp_path / "train.json", [], {"fingerprint": {"ranker": "bm25"}})
    refuse_unranked(tmp_path / "train.json", unranked)
    assert capsys.readouterr() == ("", "")
