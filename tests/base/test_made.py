"""Whether a file is there and as the command makes it: absent, current, stale or foreign."""

import json
from contextlib import contextmanager

import pytest

from utils.base.errors import UserError
from utils.base.made import ALL_BUT_SCRIPT, Made, State, publish_together
from utils.base.manifest import manifest_path, read_manifest

SETTINGS = {"script": "a.py", "seed": 1, "inputs": "a" * 64}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file.json"
    publish_together({Made(path, SETTINGS, overwrite=False): [1, 2]}, {"command": "a.py"})
    assert json.loads(path.read_text()) == [1, 2] and read_manifest(path)["settings"] == SETTINGS
    return path


CASES = [
    (SETTINGS, (), State.CURRENT),
    ({**SETTINGS, "inputs": "b" * 64}, ("inputs",), State.STALE),
    ({**SETTINGS, "inputs": "b" * 64}, (), State.FOREIGN),
    ({**SETTINGS, "seed": 2}, ("inputs",), State.FOREIGN),
    ({**SETTINGS, "seed": 2}, ALL_BUT_SCRIPT, State.STALE),
    ({**SETTINGS, "script": "b.py"}, ALL_BUT_SCRIPT, State.FOREIGN),
]


@pytest.mark.parametrize(("settings", "may_change", "state"), CASES)
def test_the_state_follows_from_the_settings(path, settings, may_change, state):
    assert Made(path, settings, False, may_change).state is state
    assert Made(path, settings, True, may_change).check() is state
    if state is State.FOREIGN:
        with pytest.raises(UserError, match="choose another output, or add --overwrite to replace it"):
            Made(path, settings, False, may_change).check()


@pytest.mark.parametrize("may_change", [(), ALL_BUT_SCRIPT])
def test_a_file_that_was_changed_or_has_no_manifest_is_foreign(path, may_change):
    made = Made(path, SETTINGS, False, may_change)
    path.write_text("[3]\n")
    assert made.state is State.FOREIGN
    manifest_path(path).unlink()
    assert made.state is State.FOREIGN
    path.unlink()
    assert made.check() is State.ABSENT


def test_what_another_process_wrote_before_it_let_go_of_the_lock_is_not_overwritten(path, monkeypatch):
    @contextmanager
    def locked(*paths):  # another process writes while this one waits
        path.write_text("[3]\n")
        yield

    monkeypatch.setattr("utils.base.made.locked", locked)
    with pytest.raises(UserError, match="was changed since"):
        publish_together({Made(path, SETTINGS, False): [4]}, {})
    assert path.read_text() == "[3]\n"


def test_files_that_belong_together_are_written_all_or_not_at_all(path, tmp_path):
    other = Made(tmp_path / "other.json", SETTINGS, False)
    with pytest.raises(UserError, match=r"file.json: was made with other settings: seed: 1, now 2"):
        publish_together({other: [], Made(path, {**SETTINGS, "seed": 2}, False): []}, {})
    assert other.state is State.ABSENT and json.loads(path.read_text()) == [1, 2]
