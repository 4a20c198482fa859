"""ask.search: a method's own queries, by shared words or by an encoder."""

import asyncio
import json
import random
import resource
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from api_server import Reply
from batch_server import serve_batches
from lamp_samples import CONFIGS, DATA, LAMP, read_sample
from method_runs import IDS, ROOT, SAMPLE
from tiny_encoder import save_tiny_encoder

import baselines
from retrieval import rank_dataset
from retrieval.embeddings import Embeddings
from retrieval.search import Search
from utils import batch, download_datasets
from utils.benchmarks import task_of
from utils.cli import UserError
from utils.files.file_hashes import file_hash
from utils.files.manifest import read_manifest
from utils.generation import batches
from utils.records.datasets import read_dataset

SEARCHES = """
QUERY = "Write a search query ({number}) for the posts of this user.\\n\\n{question}"
ANSWER = "{question}\\n\\nPosts:\\n\\n{profile}"


async def answer(record, ask):
    seen = []
    for number in ("one", "two"):
        query = await ask(QUERY, number=number)
        posts = await ask.search(query, k=2, exclude=seen)
        seen += posts.ids
    return await ask(ANSWER, items=posts)
"""
WORDS = ["cat", "chess", "bread", "music", "guitar", "rome", "town", "mat", "history", "play"]


def reply(request):
    """Return a query of words that depend on the prompt, or a long answer."""
    prompt = request["messages"][-1]["content"]
    if prompt.startswith("Write a search query"):
        return Reply(" ".join(random.Random(prompt).sample(WORDS, 3)))
    return Reply(f"An answer to {prompt}")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return str(save_tiny_encoder(tmp_path_factory.mktemp("model") / "encoder"))


@pytest.fixture
def searching(runs):
    runs.write(SEARCHES)
    runs.server.reply = reply
    return runs


def searches_of(runs):
    return {key: answer["searches"] for key, [answer] in runs.answers.items()}


# The order


def samples(folder):
    """Yield the path of a dataset of each benchmark."""
    yield SAMPLE
    for name in [*LAMP, *CONFIGS]:
        for setting in ("user", "time") if name == "LaMP-3" else ("user",):
            path = folder / f"{name}-{setting}.json"
            path.write_text(json.dumps(read_sample(name)))
            made = {"settings": {"setting": setting}, "output_sha256": file_hash(path)}
            path.with_name(f"{path.name}.manifest.json").write_text(json.dumps(made))
            yield path
    source = ["--source_dir", str(DATA / "mini_personamem"), "--output_dir", str(folder)]
    assert download_datasets.main(["--dataset", "PersonaMem-32k", *source]) == 0
    yield next(path for path in folder.glob("*ersona*.json") if "manifest" not in path.name)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("ranker", ["bm25", "dense"])
def test_the_question_gives_the_order_of_the_ranked_file(ranker, kept, encoder, tmp_path):
    if kept and ranker == "bm25":
        pytest.skip("has no embeddings")
    number, num_orders = 0, 0
    for path in samples(tmp_path):
        for unit in [[], ["--unit", "session"]] if "ersona" in path.name else [[]]:
            number += 1
            ranked = tmp_path / f"ranked{number}" / "ranked.json"
            ranked.parent.mkdir()
            flags = ["--input_dataset_addr", str(path), "--output_dataset_addr", str(ranked), "--ranker", ranker]
            flags += ["--model_name", encoder, *(["--keep_embeddings"] if kept else [])] if ranker == "dense" else []
            assert rank_dataset.main([*flags, *unit]) == 0
            for dataset in [ranked] if unit or kept else [path, ranked]:
                store = tmp_path / f"store{number}" / dataset.stem
                num_orders += check_orders(dataset, ranked, ranker, encoder, store)
            if kept:
                assert not (
                    tmp_path / f"store{number}" / "ranked" / "embeddings"
                ).exists()  # nothing was embedded again
    assert num_orders > 50


def check_orders(dataset, ranked, ranker, encoder, store):
    """Compare each question's search with its ranked profile, and return the number of profiles with several items."""
    args = baselines.build_parser().parse_args([
        "--model_addr", "m", "--inputs_addr", str(dataset), "--output_addr", "o", "--method", "m.py",
        "--search", ranker, "--completions", str(store), *(["--model_name", encoder] if ranker == "dense" else []),
    ])  # fmt: skip
    records = {record["id"]: record for record in read_dataset(str(dataset), needs=["profile"])}
    search, task = Search(args, task_of("", [*records.values()]), str(dataset)), task_of("", [*records.values()])

    async def orders():
        return [await search.order(search.open(record), record["question"]) for record in records.values()]

    for record, order in zip(records.values(), asyncio.run(orders()), strict=True):
        [best] = [other["profile"] for other in read_dataset(str(ranked), ["profile"]) if other["id"] == record["id"]]
        texts = [task.item_text(record["profile"][place]) for place in order]
        assert texts == [task.item_text(item) for item in best][:100]
    search.close()
    return sum(len(record["profile"]) > 1 for record in records.values())


# A method that searches


@pytest.mark.parametrize("search", ["bm25", "dense"])
def test_a_method_searches_with_queries_of_its_own(search, searching, encoder, capsys):
    flags = ["--search", search, *(["--model_name", encoder] if search == "dense" else [])]
    assert searching.run(*flags) == 3 * len(IDS)
    records = {record["id"]: record for record in json.loads(SAMPLE.read_text())}
    for key, (first, second) in searches_of(searching).items():
        profile = {post["id"]: post["text"] for post in records[key]["profile"]}
        assert not {*first["ids"]} & {*second["ids"]} and len(first["ids"]) == min(2, len(profile))
        assert (
            first["query"]
            == searching.server.reply({"messages": [{"content": query_prompt("one", records[key])}]}).text
        )
        last = next(user for user in searching.server.users() if user.startswith(records[key]["question"]))
        assert last.split("Posts:\n\n")[1:] in ([], ["\n\n".join(profile[post_id] for post_id in second["ids"])])
        assert searching.answers[key][0]["posts_shown"] == sorted([*profile].index(i) for i in second["ids"])
    settings = read_manifest(searching.output)["settings"]["search"]
    assert settings["search"] == search and ("model" in settings) == (search == "dense")
    whole = searching.output.read_bytes()
    assert searching.run(*flags) == 0 and searching.output.read_bytes() == whole


def query_prompt(number, record):
    return f"Write a search query ({number}) for the posts of this user.\n\n{record['question']}"


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
    assert rank_dataset.main(["--input_dataset_addr", str(path), "--output_dataset_addr", str(ranked),
                              "--ranker", "bm25"]) == 0  # fmt: skip
    runs.write("""
import re
async def answer(record, ask):
    posts = await ask.search(record["question"], k=5)
    clue = re.search(r"clue\\d+x", await ask("Name the clue: {profile}", items=posts))
    more = await ask.search(clue[0], k=5, exclude=posts.ids)
    return await ask("Answer: {profile}", items=more)
""")
    runs.server.reply = lambda request: Reply(request["messages"][-1]["content"])
    flags = runs.flags()
    flags[flags.index(str(SAMPLE))] = str(ranked)
    assert baselines.main(flags) == 0
    recall = sum(f"evidence{record['id'][1:]}x" in runs.answers[record["id"]][0]["output"] for record in records) / 30
    runs.server.reply = lambda request: Reply(json.dumps({"personalized_answer": request["messages"][-1]["content"]}))
    at = flags.index("--method")
    assert baselines.main([*flags[:at], *flags[at + 2 :], "--rag", "--num_contexts", "5", "--overwrite"]) == 0
    of_rag = sum(f"evidence{record['id'][1:]}x" in runs.answers[record["id"]][0]["output"] for record in records) / 30
    assert recall == 1 and of_rag < 0.3


def test_a_history_is_searched_in_order_of_time(searching, tmp_path):
    source = ["--source_dir", str(DATA / "mini_personamem"), "--output_dir", str(tmp_path)]
    assert download_datasets.main(["--dataset", "PersonaMem-32k", *source]) == 0
    path = next(path for path in tmp_path.glob("*ersona*.json") if "manifest" not in path.name)
    searching.write("""
async def answer(record, ask):
    turns = await ask.search(record["question"], k=3)
    ask.note(roles=[turn["role"] for turn in turns.first(9)], ids=[*turns.ids])
    return await ask("rag", items=turns)
""")
    searching.server.reply = lambda request: Reply("<final_answer>(a)")
    flags = searching.flags("--seed", "0")
    flags[flags.index(str(SAMPLE))] = str(path)
    assert baselines.main(flags) == 0
    for [answer] in searching.answers.values():
        assert answer["notes"]["ids"] == answer["searches"][0]["ids"] and len(answer["notes"]["ids"]) == 3
        assert answer["notes"]["roles"][0] == "system" and len(answer["notes"]["roles"]) >= 4
        assert answer["posts_shown"] == []


# Nothing twice, and nothing made up


def orders_of(runs):
    lines = [
        json.loads(line) for path in runs.output.parent.glob("completions/search-*/*.jsonl") for line in path.open()
    ]
    return [line["key"] for line in lines if "order" in line]


@pytest.mark.slow
def test_killed_at_twenty_moments(searching, encoder):
    flags = ["--search", "dense", "--model_name", encoder]
    searching.run(*flags)
    whole, dice = searching.output.read_bytes(), random.Random(7)
    shutil.rmtree(searching.output.parent)
    searching.server.requests.clear()
    searching.server.delay = 0.1
    command = [sys.executable, "baselines.py", *searching.flags(*flags)]
    kills = 0
    while not searching.output.exists() and kills < 20:
        before = len(searching.server.requests)
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(searching.server.requests) == before:
            time.sleep(0.01)
        time.sleep(dice.uniform(0, 0.3))  # between a query and its search too
        process.kill()
        process.wait()
        kills += 1
    assert kills > 3
    searching.run(*flags)
    assert searching.output.read_bytes() == whole
    assert len(orders_of(searching)) == len({*orders_of(searching)}) == 2 * 12  # one profile is empty
    assert len(searching.server.requests) <= 3 * len(IDS) + 4 * kills  # those in flight


def test_shards_and_a_machine_without_the_encoder(searching, encoder, tmp_path, capsys):
    flags = ["--search", "dense", "--model_name", str(shutil.copytree(encoder, tmp_path / "elsewhere"))]
    for shard in (0, 1):
        searching.run(*flags, "--num_shards", 2, "--shard_index", shard)
    assert not searching.output.exists()
    assert searching.run(*flags, "--cached_only") == 0
    whole = searching.output.read_bytes()
    searching.output.unlink()
    shutil.rmtree(tmp_path / "elsewhere")
    assert searching.run(*flags, "--cached_only") == 0 and searching.output.read_bytes() == whole
    capsys.readouterr()
    searching.write(SEARCHES.replace("k=2", "k=3").replace("ask.search(query", 'ask.search(f"{query} rome"'))
    with pytest.raises(UserError, match=r"lacks the order of .* for .* rome"):
        searching.run(*flags, "--cached_only")


def test_batches(searching, encoder, tmp_path, monkeypatch):
    """The queries are in the first batch, the answers in a later one, and the encoder is not asked again."""
    monkeypatch.setattr(batches, "POLLS", (0.01, 0.02))
    searching.write(SEARCHES.replace('("one", "two")', '("one",)'))
    with serve_batches() as server:
        server.outcome = lambda number, body: reply(body)
        flags = searching.flags("--search", "dense", "--model_name", encoder)
        flags[flags.index(searching.server.url)] = server.url
        assert batch.main(["baselines.py", *flags]) == 0
        assert sum(made["request_counts"]["total"] for made in server.batches) >= 2 * len(IDS) - 2
    assert len(orders_of(searching)) == len({*orders_of(searching)}) == 12
    assert all(answer["output"].startswith("An answer") for [answer] in searching.answers.values())


def test_a_dry_run_counts_what_needs_the_encoder(searching, encoder, capsys):
    flags = ["--search", "dense", "--model_name", encoder]
    searching.write('async def answer(record, ask):\n    posts = await ask.search("cat")\n'
                    '    return await ask("rag", items=posts)\n')  # fmt: skip
    searching.run(*flags, "--dry_run")
    with_posts = sum(bool(record["profile"]) for record in json.loads(SAMPLE.read_text()))
    printed = capsys.readouterr().out
    assert f"search: {with_posts} queries to embed" in printed
    assert f"{len(IDS) - with_posts} requests" in printed and not searching.output.parent.exists()
    searching.run("--dry_run")
    assert f"{len(IDS)} requests" in capsys.readouterr().out and not searching.output.parent.exists()


def test_an_unusable_embedding_ends_the_run(searching, tmp_path):
    import safetensors.torch

    folder = save_tiny_encoder(tmp_path / "damaged")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    place = (folder / "vocab.txt").read_text().split("\n").index("rome")
    weights["embeddings.word_embeddings.weight"][place] = float("nan")
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    searching.write("""
async def answer(record, ask):
    try:
        posts = await ask.search("rome")
        return await ask("rag", items=posts)
    except BaseException:
        return "made up"
""")
    with pytest.raises(UserError, match="no usable embedding for the text 'rome'"):
        searching.run("--search", "dense", "--model_name", str(folder))
    assert not searching.output.exists() and not orders_of(searching)


def test_a_full_disk(searching):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    searching.write("""
async def answer(record, ask):
    try:
        for number in range(9):
            posts = await ask.search(f"{record['question']} {number}")
    except BaseException:
        return "made up"
    finally:
        return "made up"
""")
    command = [sys.executable, "baselines.py", *searching.flags()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, preexec_fn=limit)
    assert done.returncode == 2 and "completions/search-bm25" in done.stderr and "Traceback" not in done.stderr
    assert not searching.output.exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("ask.search(3)", "ask.search: the query is 3; give a text"),
        ('ask.search("a", k=0)', "ask.search: k is 0; give a number from 1 to 100"),
    ],
)
def test_a_mistake_in_a_search_names_its_line(searching, call, message, capsys):
    searching.write(f"async def answer(record, ask):\n    return str(await {call})\n")
    searching.run(code=1)
    assert f"mine.py, line 2: ValueError: {message}" in capsys.readouterr().err


# Kept embeddings


def test_embeddings_are_kept_once(tmp_path):
    rows = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    rows[2] = np.nan
    kept = Embeddings(tmp_path, "some/encoder", {"model": "m"})
    kept.add(["a", "b", "c", "d"], rows)
    kept.add(["a", "e"], rows[:2])
    kept.close()
    again = Embeddings(tmp_path / "new", "another name", {"model": "m"}, also=[tmp_path])
    again.add(["x"], rows[:1])
    found = again.find(["x", "d", "c", "a", "unknown", "e"])
    assert found.keys() == {"x", "d", "a", "e"}  # c is NaN
    assert (found["d"] == rows[3]).all() and (found["e"] == rows[1]).all() and (found["x"] == rows[0]).all()
    assert Embeddings(tmp_path, "some/encoder", {"model": "other"}).find(["a"]) == {}


def test_a_torn_file_of_embeddings_is_read_up_to_its_end(tmp_path):
    rows = np.ones((2, 8), dtype=np.float32)
    kept = Embeddings(tmp_path, "e", {"model": "m"})
    kept.add(["a", "b"], rows)
    kept.close()
    [hashes], [numbers] = kept.folder.glob("*.sha"), kept.folder.glob("*.f32")
    hashes.write_bytes(hashes.read_bytes()[:-3])
    assert Embeddings(tmp_path, "e", {"model": "m"}).find(["a", "b"]).keys() == {"a"}
    numbers.write_bytes(b"\xff" * 64)
    with pytest.raises(UserError, match=r"row 1 is damaged"):
        Embeddings(tmp_path, "e", {"model": "m"}).find(["a"])
    numbers.write_bytes(b"")
    with pytest.raises(UserError, match="it lacks rows"):
        Embeddings(tmp_path, "e", {"model": "m"}).find(["a"])
