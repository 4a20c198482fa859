"""The download from a local copy in the hub's layout; the hub itself cannot be reached in a test."""

import json
import os

import pytest

from utils import download_datasets
from utils.cli import UserError

RECORD = {
    "id": "1",
    "question": "Which?",
    "narrative": "I wonder.",
    "category": "music",
    "rubric_aspects": [{"aspect": "a", "evidence": "I wonder.", "reason": "because"}],
    "profile": [{"id": "p", "text": 'Earlier? {"x": 1}', "category": "music"}],
}


@pytest.fixture
def copy(tmp_path):
    """A folder laid out as the dataset on the hub: data/<category>/<split>/<split>.json and a card with the configs."""
    lines = ["---", "configs:"]
    for category in sorted({category for category, _ in download_datasets.QUESTIONS}):
        lines += [f"- config_name: {category}", "  data_files:"]
        for split in ("train", "validation", "test"):
            file = f"data/{category}/{split}/{split}.json"
            lines += [f"  - split: {split}", f"    path: {file}"]
            path = tmp_path / "copy" / file
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps([{**RECORD, "id": f"{category}-{split}"}]))
    (tmp_path / "copy" / "README.md").write_text("\n".join([*lines, "---", ""]))
    return tmp_path / "copy"


def download(tmp_path, name):
    return download_datasets.main(
        ["--dataset_save_directory", str(tmp_path / "data"), "--cache_dir", str(tmp_path / "cache"),
         "--dataset_name", str(name)]
    )  # fmt: skip


def test_nine_files_with_the_records_as_they_are(copy, tmp_path, capsys):
    assert download(tmp_path, copy) == 0
    files = sorted((tmp_path / "data").iterdir())
    assert len(files) == 9
    assert json.loads((tmp_path / "data/Society_and_Culture_test.json").read_text()) == [
        {**RECORD, "id": "Society_and_Culture-test"}
    ]
    assert "1 questions; the paper's Table 1 says 1074" in capsys.readouterr().out


def test_a_second_run_fetches_only_what_is_missing(copy, tmp_path, capsys):
    download(tmp_path, copy)
    kept, gone = sorted((tmp_path / "data").iterdir())[:2]
    kept.write_text("[]")
    gone.unlink()
    capsys.readouterr()
    download(tmp_path, copy)
    assert kept.read_text() == "[]" and gone.exists()
    assert capsys.readouterr().out.count("left alone") == 8


def test_a_dataset_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere.*cannot be downloaded"):
        download(tmp_path, tmp_path / "nowhere")
    assert not any((tmp_path / "data").iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_named(copy, tmp_path):
    (tmp_path / "data").mkdir(mode=0o500)
    with pytest.raises(UserError, match="cannot be written"):
        download(tmp_path, copy)
