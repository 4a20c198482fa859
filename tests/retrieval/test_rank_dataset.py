import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_encoder import VOCABULARY, save_pooling, save_tiny_encoder
from tiny_t5 import save_tiny_t5

from retrieval.profiles import draw_owners, random_cycle
from retrieval.rank_dataset import main
from utils.base.errors import UserError
from utils.base.manifest import refuse_unranked

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory):
    return save_tiny_encoder(tmp_path_factory.mktemp("encoder"))


def make_records():
    """Return three questions: with four posts with permuted ids (two with the same text), none, and one."""
    return [
        {
            "id": "q1",
            "question": "how to play chess",
            "narrative": "the old town",
            "category": "boardgames",
            "rubric_aspects": [{"aspect": "rules", "evidence": "play", "reason": "new"}],
            "profile": [
                {"id": "p9", "text": "bread is old", "category": "food"},
                {"id": "p2", "text": "chess in the town", "category": "boardgames", "votes": 3},
                {"id": "p7", "text": "猫 🎸 music", "category": "music"},
                {"id": "p1", "text": "bread is old", "category": "history"},
            ],
            "posted": {"year": 2014},
        },
        {"id": "q2", "question": "why is the cat on the mat", "profile": []},
        {"id": 3, "question": "rome", "profile": [{"id": "p5", "text": "guitar"}]},
    ]


def write(path, records):
    path.write_text(json.dumps(records, ensure_ascii=False), encoding="utf-8")
    return path


def rank(source, output, *more):
    return main(["--input_dataset_addr", str(source), "--output_dataset_addr", str(output), *map(str, more)])


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def manifest(path):
    return load(path.with_name(path.name + ".manifest.json"))


def test_ranked_file_holds_the_same_items_best_first(tmp_path, encoder_folder, capsys):
    records = make_records()
    output = tmp_path / "new" / "ranked.json"
    assert rank(write(tmp_path / "in.json", records), output, "--model_name", encoder_folder, "--device", "cpu") == 0
    ranked = load(output)
    assert [record["id"] for record in ranked] == ["q1", "q2", "3"]
    for before, after in zip(records, ranked, strict=True):
        rest = {key: value for key, value in after.items() if key != "profile"}
        assert rest == {**{key: value for key, value in before.items() if key != "profile"}, "id": str(before["id"])}
        assert list(after) == list(before)  # fields in their order too
        by_id = {item["id"]: item for item in before["profile"]}
        assert {item["id"]: item for item in after["profile"]} == by_id
    ids = [item["id"] for item in ranked[0]["profile"]]
    assert ids.index("p1") == ids.index("p9") + 1  # the same text: side by side, in file order
    assert ids == naive_order(records[0], encoder_folder)
    assert f"{output}: ranked 3 questions with 5 posts\n" == capsys.readouterr().out
    made = manifest(output)  # of three questions and five posts, two with the same text
    counts = {"questions": 3, "posts": 5, "empty_profiles": 1, "texts_embedded": 7, "texts_cut": 0}
    assert (made["counts"], made["device"]) == (counts, "cpu") and made["settings"]["model"].startswith("sha256:")


def naive_order(record, folder):
    """Return post ids by dot product, one text at a time."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    def embed(text):
        return model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).detach().numpy()

    scores = np.array([embed(item["text"]) @ embed(record["question"]) for item in record["profile"]])
    return [record["profile"][index]["id"] for index in np.argsort(-scores, kind="stable")]


def test_contriever_is_another_spelling_of_dense(tmp_path, encoder_folder, capsys):
    source, output = write(tmp_path / "in.json", make_records()), tmp_path / "out.json"
    encoder = ["--model_name", encoder_folder, "--device", "cpu"]
    rank(source, output, *encoder, "--ranker", "contriever")
    made = manifest(output)
    assert (made["settings"]["ranker"], made["arguments"]["ranker"]) == ("dense", "dense")
    assert made["arguments"]["model_name"] == str(encoder_folder)
    for flags in ([], ["--ranker", "dense"], ["--ranker", "contriever"]):
        rank(source, output, *encoder, *flags)
    assert capsys.readouterr().out.count("already finished; skipped") == 3


def test_random_order_does_not_depend_on_the_files_order(tmp_path):
    posts = [{"id": str(number), "text": f"post {number}"} for number in range(20)]
    records = [{"id": f"q{number}", "question": "why", "profile": posts} for number in range(4)]
    rank(write(tmp_path / "a.json", records), tmp_path / "a_out.json", "--ranker", "random", "--seed", 5)
    rank(write(tmp_path / "b.json", records[::-1]), tmp_path / "b_out.json", "--ranker", "random", "--seed", 5)
    first, second = load(tmp_path / "a_out.json"), load(tmp_path / "b_out.json")
    assert first == second[::-1]
    assert first[0]["profile"] != first[1]["profile"] != posts
    assert manifest(tmp_path / "a_out.json")["settings"]["seed"] == 5


def test_owners_form_one_cycle_if_no_user_repeats():
    for size in range(2, 51):
        cycle = random_cycle(size, 7)
        assert draw_owners([("question", str(n)) for n in range(size)], 7) == cycle
        assert sorted(cycle) == list(range(size)) and all(owner != index for index, owner in enumerate(cycle))
    assert random_cycle(20, 0) != random_cycle(20, 1)


@pytest.mark.parametrize(
    ("task", "field", "item"),
    [
        (None, "author", {"text": "post"}),
        ("LaMP-7", "user_id", {"text": "tweet"}),
        ("LongLaMP-abstract", "name", {"title": "T", "abstract": "A", "year": 2020}),
        ("LongLaMP-review", "reviewerId", {"overall": 4, "summary": "S", "description": "D", "reviewText": "R"}),
        ("LongLaMP-topic", "author", {"summary": "S", "content": "C"}),
        ("LongLaMP-email", "user_id", {"title": "T", "text": "X"}),
    ],
)
def test_random_profile_knows_the_users_of_each_benchmark(tmp_path, task, field, item):
    records = [
        {"id": f"q{n}", "question": "items: a", field: user, "profile": [{"id": f"of {user}", **item}]}
        | ({"task": task} if task else {})
        for n, user in enumerate(["A", "A", "A", "A", 2, 2, "C"])
    ]
    options = ["--ranker", "recency", "--other_profile", "random"]
    for seed in range(5):
        rank(write(tmp_path / "in.json", records), tmp_path / f"{seed}.json", *options, "--seed", seed)
        assert all(record["profile"][0]["id"] != f"of {record[field]}" for record in load(tmp_path / f"{seed}.json"))
    source = write(tmp_path / "one.json", records[:4])
    with pytest.raises(UserError) as refused:
        rank(source, tmp_path / "out.json", *options)
    message = (
        f"{source}: field '{field}' is always 'A' (4 questions); --other_profile random needs another user's profile"
    )
    assert str(refused.value) == message and not (tmp_path / "out.json").exists()


def test_random_profile_needs_two_questions_and_the_original_file(tmp_path):
    options = ["--ranker", "recency", "--other_profile", "random"]
    with pytest.raises(UserError, match=r"one\.json: holds only one question"):
        rank(write(tmp_path / "one.json", make_records()[:1]), tmp_path / "out.json", *options)
    source = write(tmp_path / "in.json", make_records())
    rank(source, tmp_path / "swapped.json", *options)
    with pytest.raises(UserError, match=r"swapped\.json: id 'q1': field 'profile_owner'"):
        rank(tmp_path / "swapped.json", tmp_path / "out.json", *options)
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("ranker", ["bm25", "dense"])
def test_a_dry_run_ranks_and_writes_nothing(tmp_path, encoder_folder, monkeypatch, capsys, ranker):
    monkeypatch.setattr("retrieval.encoder.load_encoder", lambda *_: pytest.fail("weights are loaded"))
    source, output = write(tmp_path / "in.json", make_records()), tmp_path / "new/out.json"
    flags = ["--model_name", encoder_folder] if ranker == "dense" else []
    rank(source, output, "--ranker", ranker, "--dry_run", *flags)
    posts = sum(len(record["profile"]) for record in make_records())
    lines = [f"3 questions with {posts} posts, ranked by {ranker}"]
    if ranker == "dense":
        lines += [
            f"up to {posts + 3} texts to embed, cut at 512 tokens",
            "note: there is no GPU here, so GPU memory could not be checked",
        ]
        lines += [f"{encoder_folder}: 0.0 GB of weights per GPU, plus activations"]
    assert capsys.readouterr().out.splitlines() == lines
    assert list(tmp_path.iterdir()) == [source]


def many_records(number):
    """Return questions with two posts each, none repeated."""
    return [
        {
            "id": f"q{n}",
            "question": f"how to play chess {n}",
            "profile": [{"text": f"bread is old {n}"}, {"text": f"chess in town {n}"}],
        }
        for n in range(number)
    ]


def watch_texts(monkeypatch, stop_at=None):
    """Record the texts of each embedding call; interrupt the run at call number `stop_at`."""
    from retrieval import encoder

    embedded = []
    embed_texts = encoder.embed_texts

    def embed(loaded, texts, *more):
        if len(embedded) == stop_at:
            raise KeyboardInterrupt
        embedded.append(list(texts))
        return embed_texts(loaded, texts, *more)

    monkeypatch.setattr("retrieval.encoder.embed_texts", embed)
    return embedded


def test_the_orders_of_an_encoder_are_found_under_another_name(tmp_path, encoder_folder, monkeypatch):
    source = write(tmp_path / "in.json", make_records())
    rank(source, tmp_path / "out.json", "--model_name", encoder_folder)
    (tmp_path / "other").symlink_to(encoder_folder)
    monkeypatch.setattr("retrieval.rank_dataset.open_encoder", None)
    rank(source, tmp_path / "again.json", "--model_name", tmp_path / "other")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "out.json").read_bytes()


def test_an_interrupted_ranking_resumes_with_the_missing_questions(tmp_path, encoder_folder, monkeypatch):
    source, output = write(tmp_path / "in.json", many_records(8)), tmp_path / "out.json"
    options = ["--model_name", encoder_folder, "--device", "cpu"]
    rank(source, tmp_path / "whole/ranked.json", *options)
    monkeypatch.setattr("retrieval.ordering.BLOCK", 6)  # two questions
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        watch_texts(patch, stop_at=2)
        rank(source, output, *options)
    assert not output.exists()
    embedded = watch_texts(monkeypatch)
    rank(source, output, *options)
    assert [len(texts) for texts in embedded] == [6, 6]
    assert embedded[0][0] == "how to play chess 4"
    assert output.read_bytes() == (tmp_path / "whole/ranked.json").read_bytes()
    rank(source, tmp_path / "again.json", *options)  # beside the same orders
    assert len(embedded) == 2 and (tmp_path / "again.json").read_bytes() == output.read_bytes()


# Other encoders


@pytest.fixture
def encoder(tmp_path, encoder_folder):
    """A copy of the encoder, to change."""
    return shutil.copytree(encoder_folder, tmp_path / "e5-small")


def rank_by(encoder, *more, records=None):
    """Rank the three questions, or others, and return the output."""
    source, output = write(encoder.parent / "in.json", records or make_records()), encoder.parent / "out.json"
    rank(source, output, "--model_name", encoder, *more)
    return output


@pytest.mark.parametrize(
    ("weight", "row", "value", "flags", "place"),
    [
        ("encoder.layer.1.output.dense.weight", slice(None), float("nan"), [], "id 'q1': its question"),
        ("word_embeddings.weight", VOCABULARY.index("guitar"), float("nan"), [], r"id '3': item 1 .* \(id 'p5'\)"),
        ("word_embeddings.weight", VOCABULARY.index("[UNK]"), float("inf"), [], r"id 'q1': item 3 .* \(id 'p7'\)"),
        ("layer.1.output.LayerNorm.weight", slice(None), 1e25, ["--normalize"], "id 'q1': its question"),
        ("layer.1.output.LayerNorm.weight", slice(None), 0, ["--ranker", "hybrid"], "id 'q1': its question"),
    ],
)
def test_a_text_without_numbers_is_named_and_not_ranked(encoder, weight, row, value, flags, place):
    """NaN from the weights or from one token; finite numbers whose products overflow; and only zeros."""
    path = encoder / "model.safetensors"
    tensors = load_file(path)
    tensors[next(name for name in tensors if name.endswith(weight))][row] = value
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(UserError, match=rf"^{place}: .* no usable embedding for this text .*\n.* are kept$"):
        rank_by(encoder, *flags)
    assert not (encoder.parent / "out.json").exists()


def save_slow_tokenizer(folder):
    """Replace an encoder's tokenizer by one that is written in Python alone."""
    for path in (*folder.glob("tokenizer*"), *folder.glob("vocab*")):
        path.unlink()
    (folder / "vocab.txt").write_text("".join(f"{letter}</w> 9\n" for letter in "abcdefghijklmnopqrstuvwxyz"))
    (folder / "bpe.codes").write_text("#version: 0.2\na b 10\n")
    names = {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "unk", "pad", "mask", "cls", "sep")}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PhobertTokenizer", **names}))


def save_bart(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "bart", "is_encoder_decoder": True}))


def save_dense_t5(folder):
    save_pooling(save_tiny_t5(folder), "Transformer", "Pooling", "Dense", pooling_mode="mean")


@pytest.mark.parametrize("dry", [[], ["--dry_run"]])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (save_dense_t5, "encoder-decoder models cannot be used for ranking"),
        (save_bart, "encoder-decoder models cannot be used for ranking"),
        (save_slow_tokenizer, r"its tokenizer \(PhobertTokenizer\) has no fast version"),
    ],
)
def test_an_encoder_of_another_kind_is_refused(encoder, change, message, dry):
    change(encoder)
    with pytest.raises(UserError, match=message):
        rank_by(encoder, *dry)


def test_a_text_with_tokens_that_the_encoder_lacks_is_refused(encoder):
    """Only if there is one: some tokenizers have tokens that no text contains."""
    (encoder / "vocab.txt").write_text("\n".join([*VOCABULARY, "zebra"]) + "\n", encoding="utf-8")
    records = make_records()
    rank_by(encoder).unlink()
    records[2]["profile"][0]["text"] = "a zebra"
    for dry in ([], ["--dry_run"]):
        with pytest.raises(UserError, match=rf"returns token {len(VOCABULARY)} \('zebra'\), but the model has"):
            rank_by(encoder, *dry, records=records)


@pytest.mark.parametrize(
    ("settings", "query", "passage"),
    [
        ({"prompts": {"query": "why is ", "passage": "the history of "}}, "why is ", "the history of "),
        ({"prompts": {"document": "bread ", "corpus": "rome "}}, "", "bread "),
        ({"prompts": {"query": "cat ", "task": "sat on "}, "default_prompt_name": "task"}, "cat ", "sat on "),
        ({"prompts": {"classification": "cat "}, "default_prompt_name": None}, "", ""),
    ],
)
def test_an_encoders_own_prefixes_are_put_before_texts(encoder, capsys, settings, query, passage):
    (encoder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    [record, *_] = make_records()
    output = rank_by(encoder, "--device", "cpu", records=[record])
    errors = capsys.readouterr().err
    posts = [{**post, "text": passage + post["text"]} for post in record["profile"]]
    prefixed = {**record, "question": query + record["question"], "profile": posts}
    [ranked] = load(output)
    assert [post["id"] for post in ranked["profile"]] == naive_order(prefixed, encoder)
    assert {post["text"] for post in ranked["profile"]} == {post["text"] for post in record["profile"]}
    has_prefixes = bool(query or passage)
    assert (f"mean pooling, {query!r} before questions, {passage!r} before posts" in errors) == has_prefixes
    assert ("E5 models expect 'query: ' and 'passage: '" in errors) != has_prefixes
    assert manifest(output)["settings"].get("prefixes") == ([query, passage] if has_prefixes else None)
    rank_by(encoder, "--device", "cpu", records=[record])
    assert "already finished" in capsys.readouterr().out


@pytest.mark.parametrize("damaged", ['{"prompts": {"query": 1}}', '{"default_prompt_name": "query"}', "[]"])
def test_damaged_prefixes(encoder, damaged):
    (encoder / "config_sentence_transformers.json").write_text(damaged)
    with pytest.raises(UserError, match=r"config_sentence_transformers\.json: damaged\n  repair it$"):
        rank_by(encoder)


def test_a_ranking_older_than_its_dataset_is_told_where_it_is_read(tmp_path, capsys):
    data, ranked = tmp_path / "data.json", tmp_path / "ranked.json"
    record = {"id": "1", "question": "Why?", "profile": [{"id": "p", "text": "A post."}]}
    data.write_text(json.dumps([record]))
    words = ["--ranker", "bm25", "--input_dataset_addr", str(data), "--output_dataset_addr", str(ranked)]
    assert main(words) == 0
    os.utime(data, (time.time() + 5, time.time() + 5))
    capsys.readouterr()
    refuse_unranked(ranked, False)
    assert capsys.readouterr().err == ""  # the same content
    data.write_text(json.dumps([record | {"question": "How?"}]))
    os.utime(data, (time.time() + 5, time.time() + 5))
    refuse_unranked(ranked, False)
    assert capsys.readouterr().err == f"note: {ranked}: was ranked before {data} changed; rank it again\n"


CHESS = ["Baking bread", "Opening moves in chess"]
UNMATCHED = [
    ("chess", CHESS, True),
    ("CHESS?", CHESS, True),
    ("the of and", CHESS, False),
    ("zebra", CHESS, False),
    ("象棋", CHESS, False),
    ("象棋", ["面包", "下象棋"], True),
    ("?", CHESS, False),
    ("zebra", [], True),  # no posts, so nothing to share
]


def write_unmatched(path):
    posts = [[{"text": text} for text in texts] for _, texts, _ in UNMATCHED]
    questions = [question for question, *_ in UNMATCHED]
    pairs = zip(questions, posts, strict=True)
    return write(
        path, [{"id": f"q{i}", "question": text, "profile": profile} for i, (text, profile) in enumerate(pairs)]
    )


@pytest.mark.parametrize(
    ("ranker", "number", "order"),
    [("bm25", 4, "the file's order"), ("bm25-okapi", 6, "the file's order, reversed")],  # okapi: spaces, case
)
def test_questions_without_a_shared_word_are_counted(tmp_path, ranker, number, order, capsys):
    source, output = write_unmatched(tmp_path / "in.json"), tmp_path / "out.json"
    told = f"{number} of 8 questions share no word with any of their posts, which stay in {order}\n"
    for name in ("out.json", "again.json"):  # the second time, the orders are stored
        rank(source, tmp_path / name, "--ranker", ranker)
        assert told in capsys.readouterr().err
        assert manifest(tmp_path / name)["counts"]["questions_without_shared_words"] == number
    for record, (_, texts, is_shared) in zip(load(output), UNMATCHED, strict=True):
        if ranker == "bm25" and not is_shared:
            assert [post["text"] for post in record["profile"]] == texts


@pytest.mark.parametrize("ranker", ["bm25", "bm25-okapi", "random", "recency"])
def test_shared_words_are_not_mentioned_if_all_share_some(tmp_path, ranker, capsys):
    records = [{"id": "q", "question": "chess", "profile": [{"text": text} for text in CHESS]}]
    rank(write(tmp_path / "in.json", records), tmp_path / "out.json", "--ranker", ranker)
    assert "share" not in capsys.readouterr().err
    assert "questions_without_shared_words" not in manifest(tmp_path / "out.json")["counts"]


@pytest.mark.parametrize(("ranker", "version"), [("bm25", 2), ("bm25-okapi", None), ("random", None)])
def test_a_ranking_has_the_version_of_its_words(tmp_path, ranker, version):
    records = [{"id": "q", "question": "bread", "profile": [{"text": "bread"}]}]
    rank(write(tmp_path / "in.json", records), tmp_path / "out.json", "--ranker", ranker)
    assert manifest(tmp_path / "out.json")["settings"].get("words") == version
