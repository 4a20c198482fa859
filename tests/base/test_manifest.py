"""The manifest beside an output: its validity, content, and differences of settings."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from utils.base import manifest as manifests
from utils.base.errors import UserError
from utils.base.manifest import differences, publish, refuse_unranked

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"model": "small", "temperature": 0.1}


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://user:secret@host:8000/v1", "https://host:8000/v1"),
        ("https://secret@host/v1", "https://host/v1"),
        ("https://user:se@cret@host/v1", "https://host/v1"),
        ("http://host/v1/user@place", "http://host/v1/user@place"),
        ("http://host?mail=a@b", "http://host?mail=a@b"),
        ("m@http://host/v1?api-version=1&Api_Key=a%2Fb&n=1", "m@http://host/v1?api-version=1&Api_Key=***&n=1"),
        ("what?key=value", "what?key=value"),
        ("someone@host.org", "someone@host.org"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        (8000, 8000),
        (None, None),
    ],
)
def test_an_address_is_recorded_without_its_password(address, expected):
    assert manifests.without_password(address) == expected
    assert manifests.describe_run({"base_url": address}, {}, None)["arguments"] == {"base_url": expected}


def test_the_command_is_recorded_as_given(monkeypatch):
    """Not the values that a run derives: pasted again, it gives the same flags."""
    words = ["baselines.py", "--rag", "--extra_body", '{"a": "b c"}', "--base_url", "http://me:secret@host/v1"]
    monkeypatch.setattr("sys.argv", words)
    command = manifests.describe_run({"max_tokens": 512}, {}, None)["command"]
    assert shlex.split(command) == ["python", *words[:-1], "http://host/v1"]


@pytest.mark.skipif(shutil.which("git") is None, reason="no git here")
def test_the_commit_is_recorded_and_marked_if_files_differ(tmp_path):
    shutil.copytree(ROOT / "utils/base", tmp_path / "utils/base", ignore=shutil.ignore_patterns("__pycache__"))
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
    with open(tmp_path / "utils/base/errors.py", "a") as file:
        file.write("# changed\n")
    assert commit_in(tmp_path) == f"{commit}+"


def git(folder, *arguments):
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def commit_in(folder):
    code = "from utils.base.manifest import describe_run; print(describe_run({}, {}, None)['git_commit'])"
    command = [sys.executable, "-B", "-c", code]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


# Settings


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
        ({"rag": ONE, "same": ONE}, {"rag": OTHER_HASH, "same": ONE}, "s: rag: other content (SHA-256 0a1b2c3d4e5f…, "),
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
    ],
)
def test_only_the_difference_of_a_setting_is_shown(old, new, shown):
    text = differences({"s": old, "same": 1}, {"s": new, "same": 1})
    assert text.startswith("s: ") and shown in text
    assert len(text) < 160


# Ranked or not


@pytest.mark.parametrize(
    "settings",
    [None, {"dataset_name": "a folder", "commit": None}, {"script": "utils/build_dataset.py", "split": "test"}],
    ids=["no manifest", "downloaded", "built"],
)
def test_an_unranked_dataset_is_refused_without_the_flag(settings, tmp_path, capsys):
    path = tmp_path / "train.json"
    path.write_text("[]")
    if settings:
        publish(path, [], {"settings": settings})
    problem = f"{path}: not ranked: it has no manifest from retrieval/rank_dataset.py"
    with pytest.raises(UserError) as error:
        refuse_unranked(path, False)
    remedy = "rank it first, or add --unranked to use its posts in the file's order"
    assert str(error.value) == f"{problem}\n  {remedy}"
    refuse_unranked(path, True)
    assert capsys.readouterr() == ("", f"note: {problem}; its posts are used in the file's order\n")
