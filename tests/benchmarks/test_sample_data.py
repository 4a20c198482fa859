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
FIGURE_8 = "parenting_40127"  # printed in the paper, so longer than what we wrote ourselves


def fold(text):
    return " ".join(text.split())


@pytest.mark.parametrize("record", [one for split in SPLITS.values() for one in split], ids=lambda record: record["id"])
def test_evidence_stands_in_the_narrative_and_no_post_gives_it_away(record):
    def normal(text):
        # The paper's figure 8 prints one quotation with other marks than its narrative has.
        return fold(re.sub("[\"'’]", "", text) if record["id"] == FIGURE_8 else text)

    for aspect in record["rubric_aspects"]:
        pieces = [normal(piece) for piece in re.split(r"\[\.\.\.\]|\.\.\.|…", aspect["evidence"])]
        assert any(pieces) and all(piece in normal(record["narrative"]) for piece in pieces), aspect
    profile = fold(" ".join(post["text"] for post in record["profile"]))
    for sentence in re.split(r"(?<=[.!?])\s+", fold(record["narrative"])):
        assert sentence not in profile


@pytest.mark.parametrize("split", SPLITS)
def test_counts_are_the_readmes(split):
    records = SPLITS[split]
    categories = [COMMUNITIES[record["category"]] for record in records]
    posts = sum(len(record["profile"]) for record in records)
    aspects = sum(len(record["rubric_aspects"]) for record in records)
    row = [f"`{split}.json`", len(records), *map(categories.count, CATEGORIES), posts, aspects]
    assert f"| {' | '.join(map(str, row))} |\n" in (FOLDER / "README.md").read_text(encoding="utf-8")
