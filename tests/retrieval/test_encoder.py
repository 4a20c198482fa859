import copy
import json
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_pooling import embed_one_by_one
from tiny_encoder import save_tiny_encoder

from retrieval.encoder import Encoder, batches_by_length, embed_texts, load_encoder
from retrieval.pooling import Pooling
from utils.base.errors import UserError

TEXTS = [
    "How to play chess in the old town?",
    ".",
    "\u200b",  # becomes no tokens but the special ones
    "cat " * 700,  # cut at 512 tokens
    "猫 と 音楽, 猫",
    "🎸 guitar 🎸🎸",
    "How to play chess in the old town?",
    "why is bread old " * 90,
    "a",
    "the history of rome, " * 30,
]
QUESTION = "why play the guitar"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def encoder(folder):
    return load_encoder(str(folder), device="cpu")


@pytest.mark.parametrize("batch_size", [None, 1, 64])
def test_scores_and_order_match_a_naive_loop(encoder, folder, batch_size):
    naive = embed_one_by_one(folder, [QUESTION, *TEXTS], 512, "mean", normalize=False)
    ours, num_cut = embed_texts(encoder, [QUESTION, *TEXTS], batch_size)
    assert ours.shape == (11, 32)
    assert ours.dtype == np.float32
    assert num_cut == 1
    naive_scores, our_scores = naive[1:] @ naive[0], ours[1:] @ ours[0]
    np.testing.assert_allclose(our_scores, naive_scores, atol=1e-3)
    gaps = np.diff(np.unique(np.delete(naive_scores, 6)))  # text 6 repeats text 0
    assert gaps.min() > 2e-3  # so that the order below is not a matter of rounding
    keep = np.delete(np.arange(10), 6)
    assert np.argsort(-our_scores[keep]).tolist() == np.argsort(-naive_scores[keep]).tolist()


def test_batches_hold_similar_lengths_within_the_budget():
    # longest first: 9 alone, because 2 x 9 > 12; 4 and 4 without 3, which would be padded; 3; 2 and 2; 1
    assert list(batches_by_length([2, 4, 9, 3, 4, 1, 2], budget=12)) == [[2], [1, 4], [3], [0, 6], [5]]
    # padding is accepted until a quarter of the budget is used: 2 x 9 < 24, and 3 x 9 > 24
    assert list(batches_by_length([9, 8, 7, 6], budget=96)) == [[0, 1, 2], [3]]
    assert [len(batch) for batch in batches_by_length([8] * 14, budget=96)] == [12, 2]  # 12 x 8 is the budget
    assert list(batches_by_length([20, 1], budget=12)) == [[0], [1]]  # over the budget: a batch of its own


def test_replicas_share_the_batches_and_give_the_same_embeddings(encoder, monkeypatch):
    monkeypatch.setattr("retrieval.encoder.WINDOW", 70)
    used, all_at_work = [], threading.Barrier(3)

    class Replica(torch.nn.Module):
        def __init__(self, name):
            super().__init__()
            self.name, self.model = name, copy.deepcopy(encoder.model)
            self.device, self.config = self.model.device, self.model.config

        def forward(self, **inputs):
            if self.name not in used:
                used.append(self.name)
                all_at_work.wait(600)  # else one could do all the work before the others begin
            return self.model(**inputs)

    encoder = replace(encoder, pooling=Pooling(max_length=80))
    several = Encoder(Replica("a"), encoder.tokenizer, (Replica("b"), Replica("c")), encoder.pooling)
    texts = [f"{number} " + "word " * (number % 100) for number in range(500)]
    exact, num_cut = embed_texts(encoder, texts, batch_size=1)
    shared, num_cut_shared = embed_texts(several, texts, batch_size=1)
    np.testing.assert_array_equal(shared, exact)
    assert num_cut_shared == num_cut > 0
    assert sorted(used) == ["a", "b", "c"]
    assert several.device == "cpu, cpu, cpu"


def test_a_failure_on_a_replica_is_not_lost(encoder):
    class Broken(torch.nn.Module):
        device, config = encoder.model.device, encoder.model.config

        def forward(self, **inputs):
            raise RuntimeError("out of memory")

    several = replace(encoder, replicas=(Broken(),))
    with pytest.raises(RuntimeError, match="out of memory"):
        embed_texts(several, [f"{number} word" * (number % 50 + 1) for number in range(300)], batch_size=1)


class Small(torch.nn.Module):
    """An encoder on a device without memory for batches over `room` padded tokens."""

    def __init__(self, model, room, error):
        super().__init__()
        self.model, self.room, self.error = model, room, error
        self.device, self.config = model.device, model.config

    def forward(self, input_ids, attention_mask):
        if input_ids.numel() > self.room:
            raise self.error
        return self.model(input_ids=input_ids, attention_mask=attention_mask)


@pytest.mark.parametrize("several", [False, True])
def test_an_out_of_memory_error_suggests_a_batch_size(encoder, monkeypatch, several):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    exact, _ = embed_texts(encoder, TEXTS, batch_size=1)
    small = Small(encoder.model, 1500, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB."))
    encoder = replace(encoder, model=small, replicas=(small, small) if several else ())
    texts = [text for text in TEXTS for _ in range(4)]
    with pytest.raises(UserError) as error:
        embed_texts(encoder, texts, batch_size=4)
    assert str(error.value) == (
        "out of memory: 4 texts of up to 512 tokens at a time, on cpu\n"
        "  lower --batch_size to 2; finished rankings are kept"
    )
    np.testing.assert_allclose(embed_texts(encoder, texts, batch_size=2)[0], np.repeat(exact, 4, axis=0), atol=1e-4)


def test_bfloat16_is_close_and_comes_back_as_float32(encoder, folder):
    exact, _ = embed_texts(encoder, TEXTS[:2])
    rough_encoder = load_encoder(str(folder), device="cpu", dtype="bfloat16")
    assert rough_encoder.model.dtype == torch.bfloat16
    rough, _ = embed_texts(rough_encoder, TEXTS[:2])
    assert rough.dtype == np.float32
    assert not np.array_equal(rough, exact)
    np.testing.assert_allclose(rough, exact, atol=0.1)


def test_a_model_with_only_pickled_weights_is_loaded(encoder, folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    torch.save(load_file(folder / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    embeddings, _ = embed_texts(load_encoder(str(tmp_path), device="cpu"), TEXTS[:1])
    np.testing.assert_allclose(embeddings, embed_texts(encoder, TEXTS[:1])[0], atol=1e-5)


def test_more_tokens_than_the_model_reads_are_refused(tmp_path):
    save_tiny_encoder(tmp_path, max_positions=64)
    with pytest.raises(UserError, match="at most 64 tokens; use --max_length 64 or less"):
        load_encoder(str(tmp_path), device="cpu")
    assert embed_texts(load_encoder(str(tmp_path), device="cpu", pooling=Pooling(max_length=64)), TEXTS)[1] == 3


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"intermediate_size": ""}, "config.json cannot be loaded: Validation error for field"),
        ("config.json", b"{", "its config.json cannot be loaded"),
        ("tokenizer_config.json", {"tokenizer_class": 1}, "tokenizer_config.json or tokenizer.json or vocab.txt can"),
        ("tokenizer_config.json", {"pad_token": None}, "its tokenizer_config.json has no pad_token"),
        ("vocab.txt", b"\xff", "tokenizer_config.json or tokenizer.json or vocab.txt cannot be loaded: "),
    ],
)
def test_a_damaged_file_is_reported_in_one_line(folder, tmp_path, file, change, message):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / file
    path.write_bytes(
        change if isinstance(change, bytes) else json.dumps(json.loads(path.read_text()) | change).encode()
    )
    with pytest.raises(UserError) as error:
        load_encoder(str(tmp_path), device="cpu")
    assert str(error.value).startswith(f"{tmp_path}: ") and message in str(error.value)
    assert len(str(error.value).splitlines()) == 1
