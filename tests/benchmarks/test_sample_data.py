"""The sample in tests/data/mini_lampqa is what its README says it is."""

import json
import re
from pathlib import Path

import pytest

from utils.benchmarks.lampqa import CATEGORIES, COMMUNITIES

FOLDER = Path(__file__).resolve().parents[1] / "data" / "mini_lampqa"
SPLITS = {
    name: json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")) for name in ("train", "validation", "test")
}
RECORDS = [record for split in SPLITS.values() for record in split]
BY_ID = {record["id"]: record for record in RECORDS}
FIGURE_8 = "parenting_40127"  # printed in the paper, so longer than what we wrote ourselves

each_record = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])


def types(record):
    return {name: type(value) for name, value in record.items()}


def fold(text):
    return " ".join(text.split())


@each_record
def test_schema(record):
    text_fields = dict.fromkeys(("id", "question", "narrative", "category"), str)
    assert types(record) == {**text_fields, "rubric_aspects": list, "profile": list}
    for aspect in record["rubric_aspects"]:
        assert types(aspect) == {"aspect": str, "evidence": str, "reason": str}
        assert all(value.strip() for value in aspect.values())
    for post in record["profile"]:
        assert types(post) == {"id": str, "text": str, "category": str}
        assert all(value.strip() for value in post.values())
    assert record["question"].strip()
    assert record["id"].startswith(record["category"] + "_")


@each_record
def test_sizes(record):
    if record["id"] != "gaming_28873":
        assert 6 <= len(record["profile"]) <= 25
    if record["id"] != FIGURE_8:
        assert 60 <= len(record["narrative"].split()) <= 250
        assert 3 <= len(record["rubric_aspects"]) <= 6


@each_record
def test_evidence_stands_in_the_narrative_piece_by_piece(record):
    def normal(text):
        # The paper's figure 8 prints one quotation with other marks than its narrative has.
        return fold(re.sub("[\"'’]", "", text) if record["id"] == FIGURE_8 else text)

    for aspect in record["rubric_aspects"]:
        pieces = [normal(piece) for piece in re.split(r"\[\.\.\.\]|\.\.\.|…", aspect["evidence"])]
        assert any(pieces), aspect
        for piece in pieces:
            assert piece in normal(record["narrative"])


@each_record
def test_the_profile_does_not_give_the_narrative_away(record):
    profile = fold(" ".join(post["text"] for post in record["profile"]))
    for sentence in re.split(r"(?<=[.!?])\s+", fold(record["narrative"])):
        assert sentence not in profile


def test_ids_are_unique_over_all_splits():
    ids = [record["id"] for record in RECORDS]
    assert len(set(ids)) == len(ids)
    post_ids = [post["id"] for record in RECORDS for post in record["profile"]]
    assert len(set(post_ids)) == len(post_ids)


@pytest.mark.parametrize(
    ("split", "questions", "in_each_category"), [("train", 24, 8), ("validation", 9, 3), ("test", 12, 4)]
)
def test_counts_are_large_enough_and_the_readmes(split, questions, in_each_category):
    records = SPLITS[split]
    categories = [COMMUNITIES[record["category"]] for record in records]
    counts = [categories.count(category) for category in CATEGORIES]
    assert len(records) >= questions
    assert min(counts) >= in_each_category

    posts = sum(len(record["profile"]) for record in records)
    aspects = sum(len(record["rubric_aspects"]) for record in records)
    row = [f"`{split}.json`", len(records), *counts, posts, aspects]
    assert f"| {' | '.join(map(str, row))} |\n" in (FOLDER / "README.md").read_text(encoding="utf-8")


class TestAwkwardRecords:
    def test_an_empty_profile(self):
        assert [record["id"] for record in RECORDS if not record["profile"]] == ["gaming_28873"]

    def test_a_very_long_post(self):
        words = sorted(len(post["text"].split()) for post in BY_ID["history_77855"]["profile"])
        assert words[-1] > 1500
        assert words[-2] < 100

    def test_braces_quotes_and_backslashes(self):
        record = BY_ID["rpg_17352"]
        for text in (record["narrative"], " ".join(post["text"] for post in record["profile"])):
            assert '{"hp": ' in text
        assert any("\\n" in post["text"] and '"' in post["text"] for post in record["profile"])
        assert any("{" in post["text"] and "\\o/" in post["text"] for post in record["profile"])

    def test_cjk_and_emoji(self):
        record = BY_ID["anime_26318"]
        posts = " ".join(post["text"] for post in record["profile"])
        for text in (record["narrative"], posts):
            assert re.search("[\u3040-\u30ff]", text)  # kana
            assert re.search("[\u4e00-\u9fff]", text)  # kanji
            assert re.search("[\U0001f300-\U0001faff]", text)  # emoji

    def test_the_largest_profile(self):
        assert len(BY_ID["interpersonal_50730"]["profile"]) == 22
        assert max(len(record["profile"]) for record in RECORDS) == 22

    def test_the_papers_examples(self):
        figure_8, figure_9 = BY_ID[FIGURE_8], BY_ID["academia_60115"]
        assert figure_8["question"].startswith("Introducing English to toddler later than planned.")
        assert len(figure_8["rubric_aspects"]) == 7
        assert len(figure_8["narrative"].split()) == 332
        assert figure_9["question"] == "How narrow or broad should I look for undergraduate research?"
        assert len(figure_9["rubric_aspects"]) == 4
