"""Each benchmark of `make bench` runs to its end, at its smallest size; nothing is said about its figures."""

import json

import engine
import finished
import pytest
import ranking
import store
import training
from tiny_chat import save_tiny_chat
from tiny_encoder import save_tiny_encoder


def figures_of(benchmark, folder, *words):
    path = folder / "figures.json"
    assert benchmark.main([*map(str, words), "--runs", "1", "--json_addr", str(path)]) == 0
    return json.loads(path.read_text())


def test_ranking(tmp_path):
    encoder = save_tiny_encoder(tmp_path / "encoder")
    figures = figures_of(ranking, tmp_path, "--model_name", encoder, "--posts", 20)
    assert figures["posts"] == 20 and figures["runs"][0]["same"]["plain loop"] == ranking.NUM_QUESTIONS


def test_the_store(tmp_path):
    assert figures_of(store, tmp_path, "--num_completions", 10).keys() == {"written", "indexed", "looked up", "memory"}


def test_finished_commands(tmp_path):
    assert figures_of(finished, tmp_path, "--num_questions", 3).keys() == {"ranking", "answering", "scoring"}


def test_training(tmp_path):
    chat = save_tiny_chat(tmp_path / "chat")
    assert figures_of(training, tmp_path, "--model_addr", chat, "--mean_tokens", 20, "--max_seq_length", 64)


@pytest.mark.long
@pytest.mark.engine
def test_the_engine(tmp_path):
    assert figures_of(engine, tmp_path, "--model_addr", "demo/models/chat", "--questions", 1, "--max_tokens", 4)
