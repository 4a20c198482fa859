"""LaMP's and LongLaMP's profiles in the order of every ranker: complete items, dates, and items without one."""

import json
import shutil
from itertools import pairwise

import pytest
from test_lamp import CONFIGS, DATA, read_sample, save
from tiny_encoder import save_tiny_encoder

from retrieval import rank_dataset
from utils import download_datasets
from utils.base.manifest import read_manifest
from utils.benchmarks import tasks
from utils.data.datasets import read_dataset

RANKERS = ["contriever", "bm25", "bm25-okapi", "recency", "random", "hybrid"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_tiny_encoder(tmp_path_factory.mktemp("encoder"))


def rank(records, folder, ranker, *more):
    """Return the ranked dataset."""
    source, output = save(records, folder / "dev.json"), folder / f"{ranker}.json"
    arguments = ["--input_dataset_addr", source, "--output_dataset_addr", output, "--ranker", ranker, *more]
    assert rank_dataset.main([str(argument) for argument in arguments]) == 0
    return read_dataset(output, ["profile", "target"])


def counts(folder, ranker):
    return read_manifest(folder / f"{ranker}.json")["counts"]


@pytest.mark.parametrize("name", ["LaMP-3", "LongLaMP-review"])
@pytest.mark.parametrize("ranker", RANKERS)
def test_every_ranker_keeps_every_item_whole(name, ranker, encoder, tmp_path):
    more = ["--model_name", encoder, "--device", "cpu"] if ranker in ("contriever", "hybrid") else []
    records = read_sample(name)
    ranked = rank(records, tmp_path, ranker, *more)
    for before, after in zip(records, ranked, strict=True):
        assert {**before, "profile": None} == {**after, "profile": None}
        assert sorted(map(json.dumps, before["profile"])) == sorted(map(json.dumps, after["profile"]))
    assert ranked[-1]["profile"] == []
    assert counts(tmp_path, ranker)["empty_profiles"] == 1


def test_valid_dates():
    given = {"2014-03-06": (2014, 3, 6), " 2014-3-6 ": (2014, 3, 6), 2014: (2014,), "": None, "2014-03-06T10:00": None}
    given |= {"٢٠١٤": None, "9" * 5000: None, None: None}
    assert {value: tasks()["LaMP-3"].item_date({"date": value}) for value in given} == given
    assert tasks()["LaMP-3"].item_date({}) is None


@pytest.mark.parametrize("name", ["LaMP-4", "LongLaMP-topic"])
def test_latest_items_come_first_and_undated_items_last(name, tmp_path, capsys):
    task, records = tasks()[name], read_sample(name)
    ranked = rank(records, tmp_path, "recency")
    if name in CONFIGS:  # LongLaMP's code uses the end of the file, whatever the years of papers
        for before, after in zip(records, ranked, strict=True):
            assert after["profile"] == before["profile"][::-1]
        assert "recency" not in read_manifest(tmp_path / "recency.json")["settings"]
        return
    for before, after in zip(records, ranked, strict=True):
        dates = [task.item_date(item) for item in after["profile"]]
        known = [date for date in dates if date is not None]
        assert dates == known + [None] * (len(dates) - len(known))
        assert all(newer >= older for newer, older in pairwise(known))
        unknown = [item["id"] for item in before["profile"] if task.item_date(item) is None]
        assert [item["id"] for item in after["profile"]][len(known) :] == unknown[::-1]
    posts = sum(len(record["profile"]) for record in records)
    assert counts(tmp_path, "recency")["undated_posts"] == 2
    told = f"the latest posts are chosen by date; 2 of {posts} posts without a readable date, placed last\n"
    assert told in capsys.readouterr().err


def test_the_hybrid_is_half_by_meaning_and_half_by_date(encoder, tmp_path):
    records = read_sample("LaMP-7", "train")
    more = ["--model_name", encoder, "--device", "cpu"]
    orders = {ranker: [[item["id"] for item in record["profile"]] for record in rank(records, tmp_path, ranker, *more)]
              for ranker in ("contriever", "hybrid")}  # fmt: skip
    orders["recency"] = [[item["id"] for item in record["profile"]] for record in rank(records, tmp_path, "recency")]
    for near, late, mixed in zip(orders["contriever"], orders["recency"], orders["hybrid"], strict=True):
        assert mixed[0] == near[0]
        assert mixed[1] == next(item for item in late if item != near[0])
    assert orders["hybrid"] not in (orders["contriever"], orders["recency"])
    found = read_manifest(tmp_path / "hybrid.json")
    assert found["settings"]["ranker"] == "hybrid" and found["settings"]["model"].startswith("sha256:")
    assert found["counts"]["texts_embedded"]


@pytest.fixture
def timed(tmp_path):
    """LaMP-3 of the time setting, as downloaded; its questions have dates of reviews."""
    originals = tmp_path / "originals/time/LaMP_3"
    shutil.copytree(DATA / "mini_lamp/LaMP_3", originals)
    questions = json.loads((originals / "dev_questions.json").read_text())
    for question in questions:
        question["input"] += " 2014-06-15 2014-04-09 date: 2014-06-15"
    (originals / "dev_questions.json").write_text(json.dumps(questions))
    flags = ["--dataset", "LaMP-3", "--setting", "time", "--source_dir", tmp_path / "originals"]
    assert download_datasets.main([*map(str, flags), "--output_dir", str(tmp_path / "data")]) == 0
    return tmp_path / "data/LaMP-3_time_dev.json"


def order_of(source, output, *flags):
    named = ["--input_dataset_addr", source, "--output_dataset_addr", output]
    assert rank_dataset.main([str(word) for word in (*named, *flags)]) == 0
    return [[item["id"] for item in record["profile"]] for record in read_dataset(output, ["profile"])]


@pytest.mark.parametrize("ranker", ["contriever", "bm25-okapi"])
def test_dates_are_part_of_ranked_texts_in_lamps_time_setting(ranker, timed, encoder, tmp_path, capsys):
    flags = ["--ranker", ranker]
    flags += ["--model_name", encoder, "--device", "cpu"] if ranker == "contriever" else []
    dated = order_of(timed, tmp_path / "dated.json", *flags)
    posts = sum(map(len, dated))
    assert f"dates are part of the ranked texts; 2 of {posts} posts without a readable date" in capsys.readouterr().err
    records = read_dataset(timed, ["profile"])
    ranked = read_dataset(tmp_path / "dated.json", ["profile"])
    for before, after in zip(records, ranked, strict=True):  # only the ranker sees the dates
        assert sorted(map(json.dumps, before["profile"])) == sorted(map(json.dumps, after["profile"]))
    for item in (item for record in records for item in record["profile"] if "date" in item):
        item["text"] = f"{item['text']} date: {item['date']}"
    written = save(records, tmp_path / "written.json")
    assert order_of(written, tmp_path / "by_hand.json", *flags) == dated
    assert order_of(timed, tmp_path / "plain.json", *flags, "--no-use_date") != dated
    assert not read_manifest(tmp_path / "plain.json")["settings"]["use_date"]
