"""Pooling follows sentence-transformers' files, with BERTs and an XLM-R with 8192 tokens like BGE-M3."""

import json
import shutil

import numpy as np
import pytest
import torch
from hub_server import MODEL, serve
from tiny_encoder import save_pooling, save_tiny_encoder, save_tiny_xlm_roberta
from transformers import AutoModel, AutoTokenizer

from retrieval.encoder import embed_texts, load_encoder
from retrieval.pooling import MEAN, Pooling, choose_pooling
from retrieval.rank_dataset import main
from utils.cli import UserError
from utils.models.hub import check_model

BGE = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
TEXTS = ["how to play chess", "cat", "", "bread music guitar " * 40, "history of rome in the old town " * 2000]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoders")
    return {
        "bert": save_tiny_encoder(folder / "bert"),
        "xlm_roberta": save_tiny_xlm_roberta(folder / "xlm_roberta"),
    }


@pytest.fixture
def folder(folders, tmp_path):
    """A separate BERT, for files beside it."""
    return shutil.copytree(folders["bert"], tmp_path / "model")


def embed_one_by_one(folder, texts, max_length, mode, normalize):
    """The definition in numpy: one text at a time, no padding."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in texts:
        inputs = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        with torch.no_grad():
            hidden = model(**inputs).last_hidden_state[0].numpy()
        row = hidden[0] if mode == "cls" else hidden.sum(0) / len(hidden)
        rows.append(row / np.sqrt((row**2).sum()) if normalize else row)
    return np.stack(rows)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("mode", ["mean", "cls"])
@pytest.mark.parametrize(("name", "max_length"), [("bert", 512), ("xlm_roberta", 8192)])
def test_embeddings_match_their_definition(folders, name, max_length, mode, normalize):
    encoder = load_encoder(str(folders[name]), device="cpu", pooling=Pooling(mode, normalize, max_length=max_length))
    ours, num_cut = embed_texts(encoder, TEXTS)
    assert num_cut == 1
    np.testing.assert_allclose(ours, embed_one_by_one(folders[name], TEXTS, max_length, mode, normalize), atol=1e-4)
    if normalize:
        np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-5)


def test_a_text_of_8192_tokens_is_read_to_its_end(folders):
    encoder = load_encoder(str(folders["xlm_roberta"]), device="cpu", pooling=Pooling("cls", True, max_length=8192))
    words = ["cat"] * 8190  # with the two special tokens 8192
    texts = [" ".join(words), " ".join([*words[:-1], "rome"]), " ".join([*words, "rome"])]
    (whole, other, longer), num_cut = embed_texts(encoder, texts)
    assert num_cut == 1
    np.testing.assert_array_equal(longer, whole)
    assert np.abs(other - whole).max() > 1e-6


@pytest.mark.parametrize(
    ("types", "config", "found"),
    [
        (("Transformer", "Pooling", "Normalize"), BGE, Pooling("cls", True)),
        (("Transformer", "Pooling"), {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, MEAN),
        (("Transformer", "Pooling", "Normalize"), {"pooling_mode": "cls"}, Pooling("cls", True)),
        (("Transformer", "Pooling", "Normalize"), {"embedding_dimension": 32}, Pooling("mean", True)),
        (("Transformer", "Normalize"), {}, Pooling("mean", True)),
    ],
)
def test_the_models_files_are_read(folder, types, config, found):
    save_pooling(folder, *types, **config)
    assert choose_pooling(str(folder)) == found
    assert choose_pooling(str(folder), mode="mean") == Pooling("mean", found.normalize)
    assert choose_pooling(str(folder), normalize=False) == Pooling(found.mode, False)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"pooling_mode_max_tokens": True}, r"1_Pooling/config\.json: max pooling is not supported"),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, "mean_sqrt_len_tokens pooling"),
        ({"pooling_mode": ["cls", "mean"]}, "combines cls and mean pooling"),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, "combines cls and max pooling"),
    ],
)
def test_other_poolings_are_refused_unless_one_is_given(folder, config, told):
    save_pooling(folder, "Transformer", "Pooling", "Normalize", **config)
    with pytest.raises(UserError, match=told) as error:
        choose_pooling(str(folder))
    assert str(error.value).endswith("\n  --pooling mean or --pooling cls overrides this file")
    assert choose_pooling(str(folder), mode="mean") == Pooling("mean", True)


def write_records(path):
    posts = ["bread is old", "chess in the old town", "music", "play the guitar"]
    profile = [{"id": str(i), "text": text} for i, text in enumerate(posts)]
    path.write_text(json.dumps([{"id": "q", "question": "how to play chess", "profile": profile}]))
    return str(path)


def test_ranking_says_how_it_pooled(folder, tmp_path, capsys):
    command = ["--input_dataset_addr", write_records(tmp_path / "in.json"), "--model_name", str(folder)]

    def rank(name, *flags):
        main([*command, "--device", "cpu", "--output_dataset_addr", str(tmp_path / name), *flags])
        settings = json.loads((tmp_path / f"{name}.manifest.json").read_text())["settings"]
        return settings["pooling"], settings["normalize"], capsys.readouterr().err

    *told, err = rank("plain.json")
    assert told == ["mean", False] and "note" not in err
    save_pooling(folder, "Transformer", "Pooling", "Normalize", **BGE)
    *told, err = rank("bge.json")
    assert told == ["cls", True] and f"note: {folder}: cls pooling, normalized\n" in err
    *told, err = rank("again/ranked.json", "--pooling", "mean", "--no-normalize")
    assert told == ["mean", False]
    with pytest.raises(UserError, match=r"bge\.json: was made with other settings: .*pooling"):
        rank("bge.json", "--pooling", "mean")


def use_hub(monkeypatch, url):
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


def test_a_hub_models_files_are_those_of_its_commit(folder, tmp_path, monkeypatch):
    save_pooling(folder, "Transformer", "Pooling", "Normalize", **BGE)
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    cache = str(tmp_path / "cache")
    with serve(files) as hub:
        use_hub(monkeypatch, hub.url)
        check_model(MODEL, cache)
        hub.commit({**files, "1_Pooling/config.json": json.dumps({"pooling_mode": "max"}).encode()})
        assert choose_pooling(MODEL, cache) == Pooling("cls", True)
        asked = len(hub.requests)
        assert choose_pooling(MODEL, cache) == Pooling("cls", True)
        assert len(hub.requests) == asked  # from the cache
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert choose_pooling(MODEL, cache) == Pooling("cls", True)
