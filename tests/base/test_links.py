"""Outputs behind links: a folder on a scratch disk, and a link to a file."""

import json
import os
import shutil
from pathlib import Path

import pytest
from test_derived_files import folder, run  # noqa: F401 (fixture)

from retrieval import rank_dataset
from utils import download_datasets, select_model
from utils.base.errors import UserError
from utils.base.manifest import manifest_of
from utils.base.writing import Lock, replace_link
from utils.data.datasets import read_dataset
from utils.runs.own_method import named_model

PERSONAMEM = Path(__file__).parents[1] / "data/mini_personamem"


@pytest.fixture
def out(tmp_path):
    """A link to a folder at another depth."""
    (tmp_path / "scratch/of/user").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "scratch/of/user")
    return tmp_path / "out"


def rank(dataset, output):
    words = ["--ranker", "bm25", "--input_dataset_addr", dataset, "--output_dataset_addr", output]
    assert rank_dataset.main(list(map(str, words))) == 0


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_ranked_file_finds_its_histories_by_either_name(tmp_path, out, kind):
    words = ["--dataset", "PersonaMem-32k", "--source_dir", PERSONAMEM, "--output_dir", tmp_path / "data"]
    (tmp_path / "data").mkdir()
    leftovers = [tmp_path / f"data/PersonaMem_32k{end}.{'0' * 16}.tmp" for end in (".json", "_contexts.jsonl")]
    for leftover in leftovers:  # of a killed process
        leftover.touch()
    assert download_datasets.main(list(map(str, words))) == 0
    assert not any(leftover.exists() for leftover in leftovers)
    path, real = out / "ranked.json", tmp_path / "scratch/of/user/ranked.json"
    if kind == "file":
        path = tmp_path / "ranked.json"
        path.symlink_to(real)
    rank(tmp_path / "data/PersonaMem_32k.json", path)
    assert path.is_symlink() == (kind == "file")
    texts = [[record["profile"][0] for record in read_dataset(name, needs=["profile"])] for name in (path, real)]
    assert texts[0] == texts[1] and manifest_of(path) == manifest_of(real) is not None
    rank(path, out / "again.json")  # a reference that is read by one link and written by another
    assert len(read_dataset(out / "again.json", needs=["profile"])[0]["profile"]) > 0


def test_the_best_model_is_found_by_a_link_in_a_linked_folder(tmp_path, out):
    entry = {"id": "a", "category": "law", "question_sha256": "0", "answered": True, "score": 0.5,
             "details": [{"aspect": "A", "score": 1}]}  # fmt: skip
    (tmp_path / "model").mkdir()
    scores = {"score": 0.5, "num_unanswered": 0, "per_question_scores": [entry]}
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    words = ["--model_addr", tmp_path / "model", "--score_addr", tmp_path / "scores.json", "--link_addr", out / "best"]
    assert select_model.main(list(map(str, words))) == 0
    assert (out / "best").resolve() == tmp_path / "model" and (out / "best").is_dir()
    assert select_model.main([*map(str, words[:-1]), str(out / "new/folder/best")]) == 0
    assert (out / "new/folder/best").resolve() == tmp_path / "model"
    shutil.rmtree(out / "new")
    replace_link(out / "best", "nowhere")  # the link itself is replaced
    assert os.readlink(out / "best") == "nowhere" and [path.name for path in out.iterdir()] == ["best"]


def test_a_link_that_is_an_output_stays_one(folder, out):
    for name in ("t.md", "c.json"):
        Path(name).symlink_to(out / name)
        lock = Lock(out / name)
        with pytest.raises(UserError, match="is writing it"):
            Lock(name)
        lock.release()
        assert run(name) == 0 == run(name)
        assert Path(name).is_symlink() and (out / name).read_bytes() and manifest_of(name) == manifest_of(out / name)
        (out / name).write_text("mine")
        with pytest.raises(UserError, match="was changed since"):
            run(name)
        assert run(name, "--overwrite") == 0 and (out / name).read_text() != "mine"
    assert len(list(out.iterdir())) == 4  # with two manifests


def test_an_at_sign_is_part_of_a_path_where_the_file_is_there(tmp_path, monkeypatch):
    (tmp_path / "model@best").mkdir()
    monkeypatch.chdir(tmp_path)
    assert named_model("critic=model@best")[:2] == ("critic", "model@best")
    assert named_model("critic=m@http://host/v1")[1:] == ("m", {"base_url": "http://host/v1"})
