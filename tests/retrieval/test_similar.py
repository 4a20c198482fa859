"""--other_profile similar: whose profile each question gets, against a plain count, and what stays out of it."""

import json

import numpy as np
import pytest
from test_rank_dataset import encoder_folder, load, manifest, rank, write  # noqa: F401

from utils.base.errors import UserError


def record(name, question, *posts, category="boardgames", **more):
    profile = [{"id": f"{name}{n}", "text": text} for n, text in enumerate(posts)]
    return {"id": name, "question": question, "category": category, "profile": profile, **more}


def owners(path):
    return {entry["id"]: entry["profile_owner"] for entry in load(path)}


RECORDS = [
    record("chess", "how to play chess", "bread is old", "the town"),
    record("town", "chess in the old town", "chess in the town", "play chess"),
    record("cat", "the cat on the mat", "the cat", "the mat is old"),
    record("rome", "rome is old", "guitar music", "rome is the old town", category="diy"),
    record("wood", "guitar wood", "rome and music", category="diy"),
]


def test_bm25_gives_the_profile_that_shares_most(tmp_path):
    """Chess gets town's posts, which name chess; town itself and other categories are out of the question."""
    source, output = write(tmp_path / "in.json", RECORDS), tmp_path / "out.json"
    assert rank(source, output, "--other_profile", "similar", "--ranker", "bm25") == 0
    given = owners(output)
    assert given["chess"] == "town" and given["cat"] in ("chess", "town")
    assert (given["rome"], given["wood"]) == ("wood", "rome")
    [first, *_] = load(output)
    assert {item["id"] for item in first["profile"]} == {"town0", "town1"} and first["question"] == "how to play chess"
    made = manifest(output)
    assert made["settings"]["other_profile"] == "similar" and made["settings"]["seed"] == 0
    assert made["counts"]["posts"] == sum(len(entry["profile"]) for entry in load(output))


def test_dense_gives_the_profile_with_the_best_mean_product(tmp_path, encoder_folder):
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(encoder_folder), AutoModel.from_pretrained(encoder_folder).eval()

    def embed(text):
        return model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).detach().numpy()

    records = [record(f"q{n}", text, *posts) for n, (text, posts) in enumerate([
        ("how to play chess", ["bread is old", "the town", "rome"]), ("the cat", ["chess", "play music", "the mat"]),
        ("rome is old", ["guitar", "the old town"]), ("why is the cat on the mat", ["cat and mat", "bread"]),
    ])]  # fmt: skip
    source, output = write(tmp_path / "in.json", records), tmp_path / "out.json"
    flags = ["--other_profile", "similar", "--model_name", encoder_folder, "--device", "cpu"]
    assert rank(source, output, *flags) == 0
    for entry in records:
        means = {other["id"]: np.mean([embed(entry["question"]) @ embed(post["text"]) for post in other["profile"]])
                 for other in records if other is not entry}  # fmt: skip
        assert owners(output)[entry["id"]] == max(means, key=means.get)
    made, whole = manifest(output), output.read_bytes()
    assert (
        made["counts"]["texts_embedded"] == len({e["question"] for e in records}) + 10
        and "texts_kept" not in made["counts"]
    )
    # The same with embeddings that are kept, and then found again.
    for folder, embedded in (("kept", made["counts"]["texts_embedded"]), ("again", 0)):
        other = tmp_path / "more" / f"{folder}.json"
        assert rank(source, other, *flags, "--keep_embeddings", "--seed", 0) == 0
        assert other.read_bytes() == whole
        counts = manifest(other)["counts"]
        assert (counts["texts_embedded"], counts["texts_kept"] > 0) == (embedded, True)
    # Again, from the store of orders, without an encoder.
    output.unlink()
    assert rank(source, output, *flags) == 0
    assert output.read_bytes() == whole and "texts_embedded" not in manifest(output)["counts"]


def test_posts_of_ones_own_and_later_ones_stay_out(tmp_path):
    """The same post in another profile shows the same user; a post after the asker's last one could not be known."""
    dates = ["2020-01-01", "2021-01-01", "2022-01-01"]

    def user(name, *posts):
        profile = [{"id": f"{name}{n}", "text": text, "date": date} for n, (text, date) in enumerate(posts)]
        return {"id": name, "task": "LaMP-7", "question": "Paraphrase: chess", "user_id": name, "profile": profile}

    records = [
        user("a", ("bread", dates[1])),
        user("b", ("bread", dates[0]), ("chess chess", dates[0])),  # has a post of a's
        user("c", ("chess", dates[2]), ("old chess", dates[0])),  # its first post is later than a's
    ]
    source, output = write(tmp_path / "in.json", records), tmp_path / "out.json"
    assert rank(source, output, "--other_profile", "similar", "--ranker", "bm25") == 0
    [first, *_] = load(output)
    assert first["profile_owner"] == "c" and [item["id"] for item in first["profile"]] == ["c1"]
    assert manifest(output)["counts"]["posts"] == sum(len(entry["profile"]) for entry in load(output))


def test_ties_are_broken_by_the_seed(tmp_path):
    records = [record(f"q{n}", "chess", f"chess {n}") for n in range(8)]
    source, drawn = write(tmp_path / "in.json", records), []
    for seed in (0, 0, 1):
        output = tmp_path / f"{len(drawn)}/out.json"
        rank(source, output, "--other_profile", "similar", "--ranker", "bm25", "--seed", seed)
        drawn.append(owners(output))
    assert drawn[0] == drawn[1] != drawn[2] and not any(key == owner for key, owner in drawn[0].items())


def test_without_another_profile_there_is_none(tmp_path, capsys):
    """The only other profile has the asker's own post; also read again from the store."""
    source = write(tmp_path / "in.json", [record("a", "chess", "chess"), record("b", "rome", "chess")])
    for _ in range(2):
        rank(source, tmp_path / "out.json", "--other_profile", "similar", "--ranker", "bm25")
        assert [(e["profile"], e["profile_owner"]) for e in load(tmp_path / "out.json")] == [([], None)] * 2
        assert "2 questions without a profile, because every other profile of their category" in capsys.readouterr().err
        (tmp_path / "out.json").unlink()


def test_what_cannot_be_done_is_refused(tmp_path):
    source = write(tmp_path / "in.json", [record("a", "chess", "chess"), record("b", "rome", "chess")])
    with pytest.raises(UserError, match="--other_profile similar: needs --ranker dense or bm25"):
        rank(source, tmp_path / "out.json", "--other_profile", "similar", "--ranker", "random")
    assert json.loads(source.read_text()) and not (tmp_path / "out.json").exists()
