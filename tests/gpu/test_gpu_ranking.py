"""Ranking on all visible GPUs compared with the CPU: the demo's encoder, and random weights in Contriever's shape."""

import json
import os

import numpy as np
import pytest
from gpu_runs import ENCODER, NEAR, SAMPLE

TOP = 10
# Of the largest score, how far the scores of two posts may be apart that change places: what fp32 rounds away is a
# hundredth of it, what TF32 would is more.
TIE = 1e-4


@pytest.fixture(scope="module", params=["the demo's encoder", "Contriever's shape"])
def ranking(request, machine, make_model, tmp_path_factory):
    """(folder of an encoder, dataset, its records, the CPU's scores by question): each question has all posts."""
    shape = machine.pick("contriever", "tiny")
    encoder = ENCODER if request.param == "the demo's encoder" else make_model("encoder", shape)
    records = json.loads((SAMPLE / "validation.json").read_text(encoding="utf-8"))
    posts = list({post["text"]: post for record in records for post in record["profile"]}.values())
    records = [{**record, "profile": posts} for record in records]
    dataset = tmp_path_factory.mktemp("ranking") / "all_posts.json"
    dataset.write_text(json.dumps(records), encoding="utf-8")
    return encoder, dataset, records, score_on_cpu(encoder, records)


def score_on_cpu(encoder, records):
    """{question id: {post id: score}} in fp32."""
    import torch

    from retrieval.encoder import embed_texts, load_encoder
    from retrieval.pooling import choose_pooling
    from utils.models.model_folder import ModelFolder

    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # tests/conftest.py has one for each of several processes
    posts = records[0]["profile"]
    texts = [*(post["text"] for post in posts), *(record["question"] for record in records)]
    pooling = choose_pooling(ModelFolder(str(encoder)), None, None)
    embeddings, _ = embed_texts(load_encoder(str(encoder), device="cpu", pooling=pooling), texts)
    torch.set_num_threads(before)
    scores = embeddings[len(posts) :] @ embeddings[: len(posts)].T
    rows = zip(records, scores.tolist(), strict=True)
    return {record["id"]: dict(zip((post["id"] for post in posts), row, strict=True)) for record, row in rows}


def rank(machine, ranking, dtype, output):
    """Return the post ids of every question in the order of rank_dataset.py, and its manifest."""
    encoder, dataset, *_ = ranking
    machine.run(
        "retrieval/rank_dataset.py", "--model_name", encoder, "--input_dataset_addr", dataset,
        "--output_dataset_addr", output, "--device", machine.device, "--dtype", dtype,
    )  # fmt: skip
    ranked = json.loads(output.read_text(encoding="utf-8"))
    orders = {record["id"]: [post["id"] for post in record["profile"]] for record in ranked}
    return orders, json.loads(output.with_name(f"{output.name}.manifest.json").read_text())


def test_fp32_ranks_as_the_cpu_does_and_uses_all_gpus(machine, ranking, tmp_path, figure):
    *_, scores = ranking
    machine.wait_until_idle()
    with machine.watching() as samples:
        orders, manifest = rank(machine, ranking, "float32", tmp_path / "ranked.json")
    misplaced = {key: largest_rise(order, scores[key]) for key, order in orders.items()}
    same = sum(order == sorted(order, key=lambda post: -scores[key][post]) for key, order in orders.items())
    largest = max(abs(score) for of_question in scores.values() for score in of_question.values())
    figure(
        f"{same} of {len(orders)} orders of {len(next(iter(orders.values())))} posts are the CPU's; posts that change "
        f"places are {max(misplaced.values()) / largest:.1e} of the largest score apart"
    )
    figure(f"on {manifest['device']}")
    assert max(misplaced.values()) <= TIE * largest
    assert manifest["device"] == (", ".join(f"cuda:{number}" for number in range(machine.num_gpus)) or "cpu")
    if machine.idle:
        peaks = [max(used) - idle for used, idle in zip(zip(*samples, strict=True), machine.idle, strict=True)]
        figure(f"{', '.join(map(str, peaks))} MiB at the peak of each GPU")
        assert min(peaks) > 0
        assert machine.wait_until_idle() < NEAR


def largest_rise(order, score_of):
    """Return the largest score difference by which a post beats an earlier one."""
    scores = np.array([score_of[post] for post in order])
    return max(0.0, float((np.maximum.accumulate(scores[::-1])[::-1] - scores).max()))
