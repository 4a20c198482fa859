"""LaMP's and LongLaMP's profiles put in order by every ranker: whole items, dates, and what has none."""

import json
from itertools import pairwise

import pytest
from test_lamp import CONFIGS, each_task, read_sample, save
from tiny_encoder import save_tiny_encoder

from retrieval import rank_dataset
from utils.benchmarks import tasks
from utils.checks.commands import model_of
from utils.files.manifest import read_manifest
from utils.records.datasets import read_dataset

RANKERS = ["contriever", "bm25", "bm25-okapi", "recency", "random", "hybrid"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_tiny_encoder(tmp_path_factory.mktemp("encoder"))


def rank(records, folder, ranker, *more):
    """The dataset, ranked."""
    source, output = save(records, folder / "dev.json"), folder / f"{ranker}.json"
    arguments = ["--input_dataset_addr", source, "--output_dataset_addr", output, "--ranker", ranker, *more]
    assert rank_dataset.main([str(argument) for argument in arguments]) == 0
    return read_dataset(output, ["profile", "target"])


def counts(folder, ranker):
    return read_manifest(folder / f"{ranker}.json")["counts"]


@each_task
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


@each_task
def test_the_latest_comes_first_and_what_has_no_date_last(name, tmp_path, capsys):
    task, records = tasks()[name], read_sample(name)
    ranked = rank(records, tmp_path, "recency")
    if name in CONFIGS:  # LongLaMP's code takes the end of the file whatever the years of papers are
        for before, after in zip(records, ranked, strict=True):
            assert after["profile"] == before["profile"][::-1]
        assert "recency" not in read_manifest(tmp_path / "recency.json")["fingerprint"]
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
    told = f"the latest posts by their dates; of 2 of {posts} posts none can be read: they stand behind all others\n"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "date"),
    [
        ("2014-03-06", (2014, 3, 6)),
        (" 2014-3-6 ", (2014, 3, 6)),
        ("2014", (2014,)),
        (2014, (2014,)),
        ("", None),
        ("-", None),
        ("2014-", None),
        ("03/06/2014", None),
        ("2014-03-06T10:00", None),
        ("٢٠١٤", None),
        ("9" * 5000, None),
        (2014.5, None),
        (None, None),
        (True, None),
        (["2014"], None),
    ],
)
def test_what_is_a_date(value, date):
    assert tasks()["LaMP-3"].item_date({"date": value}) == date
    assert tasks()["LaMP-3"].item_date({}) is None


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
    assert (found["fingerprint"]["ranker"], found["fingerprint"]["recency"]) == ("hybrid", "date, then file order")
    assert found["fingerprint"]["model"].startswith("sha256:") and found["counts"]["texts_embedded"]
    arguments = ["--input_dataset_addr", "a", "--output_dataset_addr", "b", "--ranker"]
    for ranker, model in (("hybrid", "facebook/contriever-msmarco"), ("recency", None)):
        assert model_of(rank_dataset.build_parser().parse_args([*arguments, ranker])) == model


def test_lamp_qa_knows_of_no_dates(encoder, tmp_path, capsys):
    """Its ranked files and manifests are what they were, also of items that happen to have a field of this name."""
    posts = [{"id": str(number), "text": f"post {number}", "date": f"20{number:02}-01-01"} for number in range(4)]
    records = [{"id": "q", "question": "why", "target": "", "profile": posts}]
    [ranked] = rank(records, tmp_path, "recency")
    assert ranked["profile"] == posts[::-1]
    assert counts(tmp_path, "recency") == {"questions": 1, "posts": 4, "empty_profiles": 0}
    assert "recency" not in read_manifest(tmp_path / "recency.json")["fingerprint"]
    assert "note:" not in capsys.readouterr().err
