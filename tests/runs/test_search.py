"""ask.search: a method's own queries, by shared words or by an encoder."""

import asyncio
import json
import random
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from api_server import Reply
from batch_server import serve_batches
from lamp_samples import CONFIGS, LAMP, read_sample
from method_runs import IDS, ROOT, SAMPLE, SEARCHES, search_reply
from tiny_encoder import save_tiny_encoder

import baselines
from retrieval import rank_dataset
from retrieval.embeddings import Embeddings
from retrieval.search import Search
from utils import batch
from utils.base.errors import UserError
from utils.base.manifest import file_hash, read_manifest
from utils.benchmarks import task_of
from utils.data.datasets import read_dataset
from utils.generation import batches
from utils.runs.trace import read_turns

ASKS_FIRST = """
async def answer(record, ask):
    text = await ask("{question}")
    posts = await ask.search("cat")
    return text
"""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return str(save_tiny_encoder(tmp_path_factory.mktemp("model") / "encoder"))


@pytest.fixture
def dense(encoder):
    return ["--search", "dense", "--model_name", encoder]


def rank(path, ranked, ranker, *flags):
    addresses = ["--input_dataset_addr", str(path), "--output_dataset_addr", str(ranked)]
    assert rank_dataset.main([*addresses, "--ranker", ranker, *flags]) == 0


# The order


def write_sample(path, name, setting):
    path.write_text(json.dumps(read_sample(name)))
    made = {"settings": {"setting": setting}, "output_sha256": file_hash(path)}
    path.with_name(f"{path.name}.manifest.json").write_text(json.dumps(made))
    return path


@pytest.mark.parametrize(("ranker", "kept"), [("bm25", False), ("dense", False), ("dense", True)])
def test_the_question_gives_the_order_of_the_ranked_file(ranker, kept, encoder, personamem, tmp_path):
    datasets = [(SAMPLE, []), (personamem, []), (personamem, ["--unit", "session"])]
    datasets += [(write_sample(tmp_path / f"{name}.json", name, "user"), []) for name in [*LAMP, *CONFIGS]]
    datasets.append((write_sample(tmp_path / "LaMP-3-time.json", "LaMP-3", "time"), []))
    own = ["--model_name", encoder, *(["--keep_embeddings"] if kept else [])] if ranker == "dense" else []
    num_orders = 0
    for number, (path, unit) in enumerate(datasets):
        ranked, store = tmp_path / f"ranked{number}" / "ranked.json", tmp_path / f"store{number}"
        ranked.parent.mkdir()
        rank(path, ranked, ranker, *own, *unit)
        for dataset in [ranked] if unit or kept else [path, ranked]:
            num_orders += check_orders(dataset, ranked, ranker, encoder, store / dataset.stem)
        assert not kept or not (store / "ranked" / "embeddings").exists()  # nothing was embedded again
    assert num_orders > 50


def test_a_file_ranked_without_texts_is_searched_with_its_datasets_dates(encoder, tmp_path):
    path, recent, ranked = write_sample(tmp_path / "time.json", "LaMP-3", "time"), tmp_path / "a", tmp_path / "b"
    rank(path, recent, "recency")
    rank(recent, ranked, "dense", "--model_name", encoder, "--use_date")
    assert check_orders(recent, ranked, "dense", encoder, tmp_path / "store") > 3


def check_orders(dataset, ranked, ranker, encoder, store):
    """Compare each question's search with its ranked profile, and return the number of profiles with several items."""
    args = baselines.build_parser().parse_args([
        "--model_addr", "m", "--inputs_addr", str(dataset), "--output_addr", "o", "--method", "m.py",
        "--search", ranker, "--completions", str(store), *(["--model_name", encoder] if ranker == "dense" else []),
    ])  # fmt: skip
    records = {record["id"]: record for record in read_dataset(str(dataset), needs=["profile"])}
    task = task_of("", [*records.values()])
    search = Search(args, task, str(dataset))

    async def orders():
        return [(await search.order(search.open(record), record["question"]))[0] for record in records.values()]

    best = {record["id"]: record["profile"] for record in read_dataset(str(ranked), ["profile"])}
    for record, order in zip(records.values(), asyncio.run(orders()), strict=True):
        texts = [task.item_text(record["profile"][place]) for place in order]
        assert texts == [task.item_text(item) for item in best[record["id"]]][:100]
    search.close()
    return sum(len(record["profile"]) > 1 for record in records.values())


# A method that searches


@pytest.mark.parametrize("search", ["bm25", "dense"])
def test_a_method_searches_with_queries_of_its_own(search, searching, dense):
    flags = dense if search == "dense" else []
    assert searching.run(*flags) == 3 * len(IDS)
    for record in json.loads(SAMPLE.read_text()):
        [answer], profile = searching.answers[record["id"]], {post["id"]: post["text"] for post in record["profile"]}
        first, second = answer["searches"]
        assert not {*first["ids"]} & {*second["ids"]} and len(first["ids"]) == min(2, len(profile))
        last = next(user for user in searching.server.users() if user.startswith(record["question"]))
        assert last.split("Posts:\n\n")[1:] in ([], ["\n\n".join(profile[post_id] for post_id in second["ids"])])
        assert answer["posts_shown"] == sorted([*profile].index(post_id) for post_id in second["ids"])
    settings = read_manifest(searching.output)["settings"]["search"]
    assert settings["search"] == search and ("model" in settings) == (search == "dense")
    whole = searching.output.read_bytes()
    assert searching.run(*flags) == 0 and searching.output.read_bytes() == whole


def test_a_second_query_reaches_the_evidence(runs, tmp_path):
    """The evidence shares no word with the question; it shares one with a post that the first query finds."""
    draw, records = random.Random(5), []
    for number in range(30):
        fillers = [" ".join(f"w{draw.randrange(500)}" for _ in range(12)) for _ in range(40)]
        profile = [*(f"topic{number} {text}" for text in fillers[:12]), *fillers[12:]]
        profile += [f"topic{number} topic{number} is like clue{number}x", f"clue{number}x evidence{number}x"]
        draw.shuffle(profile)
        posts = [{"id": f"{number}-{i}", "text": text, "category": "c"} for i, text in enumerate(profile)]
        records.append({"id": f"q{number}", "question": f"topic{number} topic{number}", "narrative": "n",
                        "category": "travel.stackexchange.com", "rubric_aspects": [], "profile": posts})  # fmt: skip
    path, ranked = tmp_path / "made.json", tmp_path / "ranked.json"
    path.write_text(json.dumps(records))
    rank(path, ranked, "bm25")
    runs.write("""
import re
async def answer(record, ask):
    posts = await ask.search(record["question"], k=5)
    clue = re.search(r"clue\\d+x", await ask("Name the clue: {profile}", items=posts))
    more = await ask.search(clue[0], k=5, exclude=posts.ids)
    return await ask("Answer: {profile}", items=more)
""")
    runs.server.reply = lambda request: Reply(request["messages"][-1]["content"])
    assert runs.run(dataset=ranked) == 60
    for number in range(30):
        assert f"evidence{number}x" in runs.answers[f"q{number}"][0]["output"]
    first_five = [str(record["profile"][:5]) for record in json.loads(ranked.read_text())]  # those of --rag
    assert sum(f"evidence{number}x" in posts for number, posts in enumerate(first_five)) < 0.3 * 30


def test_a_history_is_searched_in_order_of_time(runs, personamem):
    runs.write("""
async def answer(record, ask):
    turns = await ask.search(record["question"], k=3)
    none = await ask.search("cat", exclude=[item["id"] for item in record["profile"]])
    ask.note(others=(await ask.search(record["question"], k=100, exclude=turns)).ids)
    ask.note(roles=[turn["role"] for turn in turns.first(9)], ids=[*turns.ids], none=[none.first(9), [*none.ids]])
    return await ask("rag", items=turns)
""")
    runs.server.reply = lambda request: Reply("<final_answer>(a)")
    runs.run("--seed", "0", dataset=personamem)
    for [answer] in runs.answers.values():
        notes = answer["notes"]
        assert notes["ids"] == answer["searches"][0]["ids"] and len(notes["ids"]) == 3
        assert notes["roles"][0] == "system" and len(notes["roles"]) >= 4
        assert notes["none"] == [[], []]  # as record.best(0)
        assert notes["others"] and not {*notes["ids"]} & {*notes["others"]}


def test_a_history_without_ids_excludes_nothing_silently(runs, personamem, capsys):
    runs.write("""
async def answer(record, ask):
    await ask.search("cat", exclude=await ask.search("cat", k=1))
    await ask.search("cat", exclude=record.best(0))
    return str(await ask.search("cat", exclude=record.best(2)))
""")
    runs.run(dataset=personamem, code=1)
    told = "line 5: ValueError: ask.search: exclude: not the result of a search; pass ids of items"
    assert told in capsys.readouterr().err


def test_odd_queries_at_once(runs, dense):
    runs.write("""
import asyncio
QUERIES = ["", "x " * 99_999, "\\ud800 cat", "{question}"]
async def answer(record, ask):
    results = await asyncio.gather(*(ask.search(query, k=100) for query in [*QUERIES, record["question"], "", ""]))
    return f"{[len(posts) for posts in results]}"
""")
    runs.run(*dense)
    for record in json.loads(SAMPLE.read_text()):
        assert runs.answers[record["id"]][0]["output"] == str([len(record["profile"])] * 7)
    assert len(orders_of(runs)) == len({*orders_of(runs)}) == 12 * 5


# Nothing twice, and nothing made up


def orders_of(runs):
    paths = runs.output.parent.glob("completions/search-*/*.jsonl")
    lines = [json.loads(line) for path in paths for line in path.open()]
    return [line["key"] for line in lines if "order" in line]


@pytest.mark.slow
@pytest.mark.parametrize("most", [4, pytest.param(20, marks=pytest.mark.long)])
def test_killed_at_several_moments(searching, dense, most):
    searching.run(*dense)
    whole, dice, kills = searching.output.read_bytes(), random.Random(7), 0
    shutil.rmtree(searching.output.parent)
    searching.server.requests.clear()
    searching.server.delay = 0.1
    command = [sys.executable, "baselines.py", *searching.flags(*dense)]
    while not searching.output.exists() and kills < most:
        before = len(searching.server.requests)
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(searching.server.requests) == before:
            time.sleep(0.01)
        time.sleep(dice.uniform(0, 0.3))  # between a query and its search too
        process.kill()
        process.wait()
        kills += 1
    assert kills > 3
    searching.run(*dense)
    assert searching.output.read_bytes() == whole
    assert len(orders_of(searching)) == len({*orders_of(searching)}) == 2 * 12  # one profile is empty
    assert len(searching.server.requests) <= 3 * len(IDS) + 4 * kills  # those in flight


def test_shards_and_a_machine_without_the_encoder(searching, encoder, tmp_path):
    flags = ["--search", "dense", "--model_name", str(shutil.copytree(encoder, tmp_path / "away" / "encoder"))]
    for shard in (0, 1):
        searching.run(*flags, "--num_shards", 2, "--shard_index", shard)
    assert not searching.output.exists()
    assert searching.run(*flags, "--cached_only") == 0
    whole, store = searching.output.read_bytes(), searching.output.parent / "completions"
    searching.output.unlink()
    shutil.rmtree(tmp_path / "away")
    (store / "search-a-model").mkdir()
    (store / "search-a-model" / "model.json").write_text('{"model": "search-a-model"}')
    assert searching.run(*flags, "--cached_only") == 0 and searching.output.read_bytes() == whole
    searching.write(SEARCHES.replace("k=2", "k=3").replace("ask.search(query", 'ask.search(f"{query} rome"'))
    with pytest.raises(UserError, match=r"has no search of record .* for .* rome"):
        searching.run(*flags, "--cached_only")
    other = save_tiny_encoder(tmp_path / "other" / "encoder", seed=1)
    searching.run("--search", "dense", "--model_name", other, "--completions", store, output=tmp_path / "other.json")
    with pytest.raises(UserError, match="has searches by 2 encoders named encoder"):
        searching.run(*flags, "--cached_only")


def test_cached_only_stores_no_order(runs):
    runs.write(ASKS_FIRST)
    runs.run()
    before = orders_of(runs)
    runs.write(ASKS_FIRST.replace("cat", "chess"))
    assert runs.run("--cached_only") == 0 and orders_of(runs) == before


def test_batches(searching, dense, monkeypatch):
    """The queries are in the first batch, the answers in a later one, and the encoder is not asked again."""
    monkeypatch.setattr(batches, "POLLS", (0.01, 0.02))
    searching.write(SEARCHES.replace('("one", "two")', '("one",)'))
    with serve_batches() as server:
        server.outcome = lambda number, body: search_reply(body)
        flags = searching.flags(*dense)
        flags[flags.index(searching.server.url)] = server.url
        assert batch.main(["baselines.py", *flags]) == 0
        assert sum(made["request_counts"]["total"] for made in server.batches) >= 2 * len(IDS) - 2
    assert len(orders_of(searching)) == len({*orders_of(searching)}) == 12
    assert all(answer["output"].startswith("An answer") for [answer] in searching.answers.values())


def test_a_dry_run_counts_what_needs_the_encoder(runs, dense, capsys):
    runs.write('async def answer(record, ask):\n    return await ask("rag", items=await ask.search("cat"))\n')
    for flags, expected in ((dense, ["search: 12 queries to embed", "1 request,"]), ([], [f"{len(IDS)} requests"])):
        runs.run(*flags, "--dry_run")
        printed = capsys.readouterr().out
        assert all(text in printed for text in expected) and not runs.output.parent.exists()


def test_an_unusable_embedding_ends_the_run(runs, tmp_path):
    import safetensors.torch

    folder = save_tiny_encoder(tmp_path / "damaged")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    place = (folder / "vocab.txt").read_text().split("\n").index("rome")
    weights["embeddings.word_embeddings.weight"][place] = float("nan")
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    runs.write("""
async def answer(record, ask):
    try:
        return await ask("rag", items=await ask.search("rome"))
    except BaseException:
        return "made up"
""")
    with pytest.raises(UserError, match="no usable embedding for the text 'rome'"):
        runs.run("--search", "dense", "--model_name", str(folder))
    assert not runs.output.exists() and not orders_of(runs)


def test_an_encoder_that_fails_is_asked_once(searching, dense, monkeypatch):
    loads = []

    def fail(*_):
        loads.append(1)
        raise UserError("too little memory")

    monkeypatch.setattr("retrieval.search.open_encoder", fail)
    monkeypatch.setattr("retrieval.search.AT_ONCE", 2)
    with pytest.raises(UserError, match="too little memory"):
        searching.run(*dense, "--max_concurrency", 16)
    assert loads == [1]


def test_what_a_search_lacks_is_found_before_a_request(runs, dense, monkeypatch):
    runs.write(ASKS_FIRST)
    monkeypatch.setattr("retrieval.search.has_gpu", lambda: False)
    with pytest.raises(UserError, match="--search_device cuda: torch finds no GPU"):
        runs.run(*dense, "--search_device", "cuda")
    runs.output.parent.joinpath("completions").mkdir(parents=True)
    runs.output.parent.joinpath("completions/embeddings").touch()
    with pytest.raises(UserError, match=r"embeddings/.*: cannot be written"):
        runs.run(*dense)
    assert runs.server.requests == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("await ask.search(3)", "line 2: ValueError: ask.search: the query is 3; it must be a text"),
        (
            'await ask.search("a", k=0)',
            "line 2: ValueError: ask.search: k is 0; it must be a whole number from",
        ),
        ('await ask.search("a", exclude="id")', "line 2: ValueError: ask.search: exclude is a single text"),
        ('await ask.search("a", exclude=[""])', "line 2: ValueError: ask.search: exclude: '' is not the id of a post"),
        (
            'await ask.search("a", exclude=[None])',
            "line 2: ValueError: ask.search: exclude: None is not the id of a post",
        ),
        (  # texts instead of ids
            'await ask.search("a", exclude=list(await ask.search("basil")))',
            "is not the id of a post; use the .ids of a search result",
        ),
        ('[await ask.search("a") for _ in range(10_001)]', "more than 10,000 calls and searches"),
    ],
)
def test_a_mistake_in_a_search_is_reported(runs, body, message, capsys):
    runs.write(f"async def answer(record, ask):\n    return str({body})\n")
    runs.run("--limit", 1, code=1)
    assert message in capsys.readouterr().err


# Kept embeddings


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_embeddings_are_kept_once(tmp_path, kind):
    rows = np.random.default_rng(0).standard_normal((4, 8)).astype(kind)
    rows[2] = np.nan
    kept = Embeddings(tmp_path, "some/encoder", {"model": "m"})
    kept.add(["a", "b", "c", "d"], rows)
    kept.add(["a", "e"], rows[:2])
    kept.close()
    again = Embeddings(tmp_path / "new", "another name", {"model": "m"}, read_only=[tmp_path])
    again.add(["x"], rows[:1])
    kept_rows = again.find(["x", "d", "c", "a", "unknown", "e"])
    assert kept_rows.keys() == {"x", "d", "a", "e"}  # c is NaN
    assert all(row.dtype == kind for row in kept_rows.values())
    assert (kept_rows["d"] == rows[3]).all() and (kept_rows["e"] == rows[1]).all() and (kept_rows["x"] == rows[0]).all()
    assert Embeddings(tmp_path, "some/encoder", {"model": "other"}).find(["a"]) == {}


def test_damaged_embeddings(tmp_path):
    kept = Embeddings(tmp_path, "e", {"model": "m"})
    kept.add(["a", "b"], np.ones((2, 8), dtype=np.float32))
    kept.close()
    [hashes], [numbers] = kept.folder.glob("*.sha"), kept.folder.glob("*.f32")
    hashes.write_bytes(hashes.read_bytes()[:-3])
    assert kept.find(["a", "b"]).keys() == {"a"}  # a torn file is read up to its end
    for content, message in ((b"\xff" * 64, "f32: is damaged"), (b"", "f32: is damaged: rows are missing")):
        kept.close()
        numbers.write_bytes(content)
        with pytest.raises(UserError, match=message):
            kept.find(["a"])


def test_a_finished_ranking_keeps_its_embeddings_later(encoder, tmp_path):
    """The folder may have only some of them, of a killed run or another ranking."""
    ranked, flags = tmp_path / "ranked.json", ["--model_name", encoder]
    rank(SAMPLE, ranked, "dense", *flags)
    whole = ranked.read_bytes()
    rank(SAMPLE, tmp_path / "first.json", "dense", *flags, "--keep_embeddings", "--limit", "3")
    for _ in range(2):  # the second time, it is finished
        rank(SAMPLE, ranked, "dense", *flags, "--keep_embeddings")
        counts = read_manifest(ranked)["counts"]
        assert counts["texts_kept"] == 136 and 0 < counts["texts_embedded"] < 136
    assert ranked.read_bytes() == whole


# Posts without an id of their own

TWICE = """
async def answer(record, ask):
    first = await ask.search("herbs basil", k=1)
    second = await ask.search("herbs basil", k=9, exclude=first.ids)
    third = await ask.search("herbs basil", k=9, exclude=[*first.ids, *second.ids])
    ask.note(texts=[*first, *second], num_left=len(third))
    return "done"
"""
HERBS = ["My basil herbs died.", "Basil grows herbs everywhere, why?", "Herbs bolt in May.", "Which stove?"]


def write_posts(path, ids, texts=HERBS):
    """Write a dataset of one question; a post whose id is `...` has none."""
    profile = [{"id": post_id, "text": text} for post_id, text in zip(ids, texts, strict=True)]
    profile = [{name: value for name, value in post.items() if value is not ...} for post in profile]
    record = {"id": "q", "question": "How do I keep herbs?", "narrative": "n", "category": "c", "rubric_aspects": []}
    path.write_text(json.dumps([record | {"profile": profile}]))
    return path


@pytest.mark.parametrize(
    ("ids", "first_id", "texts"),
    [
        (["a", "b", "c", "d"], "a", HERBS),
        ([17, 18, 19, 20], "17", HERBS),
        ([..., ..., ..., ...], 0, HERBS),
        ([None, None, None, None], 0, HERBS),
        (["", " ", "\t", ""], 0, HERBS),
        (["same", "same", "same", "same"], 0, HERBS),
        (["same", "b", "same", "d"], 0, HERBS),
        (["a", "same", " same", "same "], "a", HERBS),
        ([7, "7", "c", "d"], 0, HERBS),
        ([1, ..., "", None], "1", HERBS),
        ([..., 0, "0", ""], 0, HERBS),
        (["", "", "x", "x"], 0, ["Herbs bolt in May."] * 3 + ["Which stove?"]),
    ],
)
def test_excluding_a_post_leaves_out_no_other(runs, tmp_path, ids, first_id, texts):
    runs.write(TWICE)
    runs.run(dataset=write_posts(tmp_path / "posts.json", ids, texts))
    [answer] = runs.answers["q"]
    assert answer["notes"] == {"texts": texts, "num_left": 0}
    first, second, third = (search["ids"] for search in answer["searches"])
    assert [type(first[0]), first[0]] == [type(first_id), first_id]
    assert len({*first, *second}) == 4 and third == []


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        ("first", HERBS[1:]),  # posts that a search has found
        ('["same"]', HERBS[2:]),  # all posts with this id in the dataset
        ("[7]", [*HERBS[:2], HERBS[3]]),
        ('["7", 3]', HERBS[:2]),  # the last post has no id
    ],
)
def test_what_can_be_excluded(runs, tmp_path, exclude, left):
    runs.write(f"""
async def answer(record, ask):
    first = await ask.search("basil", k=1)
    ask.note(left=list(await ask.search("basil", k=9, exclude={exclude})))
    return "done"
""")
    runs.run(dataset=write_posts(tmp_path / "posts.json", ["same", "same", 7, ...]))
    assert runs.answers["q"][0]["notes"]["left"] == left


# Queries that share no word with a post

SEARCHES_EACH = """
QUERIES = ["basil", "zebra", "薄荷", "the", "c++", "?"]

async def answer(record, ask):
    for query in QUERIES:
        await ask.search(query, k=1)
    return "done"
"""


def test_queries_without_a_shared_word_are_counted(runs, tmp_path, capsys):
    texts = ["My basil died.", "阳台上的薄荷枯萎", "I write C++", "Which stove?"]
    path = write_posts(tmp_path / "posts.json", "abcd", texts)
    runs.write(SEARCHES_EACH)
    for _ in range(2):  # the second time, the orders are stored
        runs.run("--trace", "--overwrite", dataset=path)
        printed = capsys.readouterr().out
        assert "0 posts left out for length, 3 queries without a shared word" in printed
        assert read_manifest(runs.output)["counts"]["queries without a shared word"] == 3
        searches = runs.answers["q"][0]["searches"]
        assert [search["ids"] for search in searches] == [["a"], ["a"], ["b"], ["a"], ["c"], ["a"]]
        assert [search["query"] for search in searches if "no_shared_words" in search] == ["zebra", "the", "?"]
        lines = [json.loads(line) for line in runs.output.with_name("answers.json.trace.jsonl").open()]
        assert [line.get("no_shared_words", False) for line in lines] == [False, True, False, True, False, True]
    assert read_turns(str(runs.output))["q"].count("no post has a word of the query") == 3


def test_nothing_is_said_where_words_are_shared_or_not_compared(runs, dense, tmp_path, capsys):
    runs.write(SEARCHES_EACH.replace('"zebra", "薄荷", "the", "c++", "?"', '"stove"'))
    runs.run(dataset=write_posts(tmp_path / "posts.json", "abcd"))
    runs.write(SEARCHES_EACH)
    runs.run(*dense, dataset=write_posts(tmp_path / "posts.json", "abcd"), output=tmp_path / "dense.json")
    empty = write_posts(tmp_path / "empty.json", "", "")
    runs.run(dataset=empty, output=tmp_path / "empty_answers.json")
    assert "shared word" not in capsys.readouterr().out
