"""Embeddings follow sentence-transformers' files, with BERTs, an XLM-R with 8192 tokens like BGE-M3, and a decoder."""

import json
import re
import shutil
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hub_server import MODEL, serve
from tiny_chat import PAD, save_tiny_chat
from tiny_encoder import save_pooling, save_tiny_encoder, save_tiny_xlm_roberta
from tokenizers import Tokenizer, processors
from transformers import AutoModel, AutoTokenizer

from retrieval.encoder import embed_texts, load_encoder
from retrieval.pooling import MEAN, Pooling, choose_pooling
from retrieval.rank_dataset import main
from utils.base.errors import UserError
from utils.models.model_folder import ModelFolder

BGE = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
TEXTS = ["how to play chess", "cat", "", "bread music guitar " * 40, "history of rome in the old town " * 2000]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoders")
    folders = {
        "bert": save_tiny_encoder(folder / "bert"),
        "xlm_roberta": save_tiny_xlm_roberta(folder / "xlm_roberta"),
        "decoder": save_tiny_chat(folder / "decoder"),
        "decoder with an end": save_tiny_chat(folder / "ending"),
    }
    add_end(folders["decoder with an end"])
    return folders


def add_end(folder):
    """Make a decoder's tokenizer put a token after each text, as those of embedding models do."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = processors.TemplateProcessing(single=f"$A {PAD}", special_tokens=[(PAD, tokenizer.token_to_id(PAD))])
    tokenizer.post_processor = end
    tokenizer.save(str(folder / "tokenizer.json"))


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
        row = {"cls": hidden[0], "lasttoken": hidden[-1], "mean": hidden.sum(0) / len(hidden)}[mode]
        rows.append(row / np.sqrt((row**2).sum()) if normalize else row)
    return np.stack(rows)


@pytest.mark.parametrize(
    ("name", "max_length", "mode", "normalize"),
    [
        *(("bert", 512, mode, normalize) for mode in ("mean", "cls", "lasttoken") for normalize in (False, True)),
        ("xlm_roberta", 8192, "cls", True),
        ("xlm_roberta", 8192, "mean", False),
    ],
)
def test_embeddings_match_their_definition(folders, name, max_length, mode, normalize):
    encoder = load_encoder(str(folders[name]), device="cpu", pooling=Pooling(mode, normalize, max_length=max_length))
    ours, num_cut = embed_texts(encoder, TEXTS)
    assert num_cut == 1
    np.testing.assert_allclose(ours, embed_one_by_one(folders[name], TEXTS, max_length, mode, normalize), atol=1e-4)
    if normalize:
        np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["decoder", "decoder with an end"])
def test_a_decoders_last_token_is_not_padding(folders, name, side, tmp_path):
    folder = shutil.copytree(folders[name], tmp_path / "model")
    change(folder / "tokenizer_config.json", padding_side=side)
    save_pooling(folder, "Transformer", "Pooling", "Normalize", pooling_mode_lasttoken=True)
    encoder = load_encoder(str(folder), device="cpu", pooling=choose_pooling(ModelFolder(str(folder)), max_length=64))
    texts = [text or "a" for text in TEXTS]
    ours, num_cut = embed_texts(encoder, texts, batch_size=5)
    assert num_cut == 2
    np.testing.assert_allclose(ours, embed_one_by_one(folder, texts, 64, "lasttoken", normalize=True), atol=1e-5)
    ids = encoder.tokenizer(texts, truncation=True, max_length=64)["input_ids"]
    ends = {row[-1] == encoder.tokenizer.convert_tokens_to_ids(PAD) for row in ids}
    assert ends == {name == "decoder with an end"}  # also after a text that was cut


def test_a_text_without_tokens_has_no_embedding(folders):
    encoder = load_encoder(str(folders["decoder"]), device="cpu", pooling=Pooling("lasttoken"))
    assert (embed_texts(encoder, ["cat", ""])[0] == 0).all(axis=1).tolist() == [False, True]


def test_texts_are_read_in_lower_case_if_the_files_say_so(folder):
    change(folder / "tokenizer_config.json", do_lower_case=False)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 64, "do_lower_case": true}')
    pooling = choose_pooling(ModelFolder(str(folder)))
    assert pooling == Pooling(max_length=64, lower_case=True)
    (lower, upper), _ = embed_texts(load_encoder(str(folder), device="cpu", pooling=pooling), ["old rome", "Old ROME"])
    np.testing.assert_array_equal(lower, upper)
    (lower, upper), _ = embed_texts(load_encoder(str(folder), device="cpu"), ["old rome", "Old ROME"])
    assert np.abs(lower - upper).max() > 0.01


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
        (("Transformer", "Pooling", "Dropout"), {"pooling_mode_lasttoken": True}, Pooling("lasttoken")),
        (("Transformer", "Pooling"), {"pooling_mode": "lasttoken", "include_prompt": False}, Pooling("lasttoken")),
        (("Transformer", "Pooling"), {"pooling_mode": ["cls"], "include_prompt": False}, Pooling("cls")),
    ],
)
def test_the_models_files_are_read(folder, types, config, found):
    save_pooling(folder, *types, **config)
    assert choose_pooling(ModelFolder(str(folder))) == found
    assert choose_pooling(ModelFolder(str(folder)), mode="mean") == Pooling("mean", found.normalize)
    assert choose_pooling(ModelFolder(str(folder)), normalize=False) == Pooling(found.mode, False)


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, "mean_sqrt_len_tokens"),
        ({"pooling_mode": "a_later_one"}, "a_later_one"),
        ({"pooling_mode": ["cls", "mean"]}, "cls and mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, "cls and max"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": True}, "mean and lasttoken"),
    ],
)
def test_other_poolings_are_refused_unless_one_is_given(folder, config, mode, capsys):
    save_pooling(folder, "Transformer", "Pooling", "Normalize", **config)
    problem = f"{folder}: 1_Pooling/config.json: {mode} pooling is not supported\n  use another encoder, such as "
    with pytest.raises(UserError, match=re.escape(problem)) as error:
        choose_pooling(ModelFolder(str(folder)))
    assert "--pooling" not in str(error.value)
    assert choose_pooling(ModelFolder(str(folder)), mode="mean") == Pooling("mean", True)
    assert capsys.readouterr().err == f"note: {folder}: --pooling mean overrides its files (mode: {mode})\n"


@pytest.mark.parametrize("flags", [{}, {"mode": "mean", "normalize": True}])
@pytest.mark.parametrize(
    ("types", "layer"),
    [
        (("Transformer", "Pooling", "Dense"), "Dense"),
        (("WordEmbeddings", "LSTM", "Pooling"), "LSTM"),
        (("WordEmbeddings", "Pooling"), "WordEmbeddings"),
        (("Transformer", "SpladePooling"), "SpladePooling"),
        (("StaticEmbedding", "Normalize"), "StaticEmbedding"),
        (("CLIPModel",), "CLIPModel"),
    ],
)
def test_other_layers_are_refused_whatever_is_given(folder, types, layer, flags):
    save_pooling(folder, *types)
    with pytest.raises(UserError, match=rf"modules\.json: unsupported layer {layer}\n  use another encoder") as error:
        choose_pooling(ModelFolder(str(folder)), **flags)
    assert "--pooling" not in str(error.value)


def test_a_layer_in_the_models_own_code_is_refused(folder):
    save_pooling(folder, "Transformer", "Pooling")
    entries = json.loads((folder / "modules.json").read_text())
    entries[0]["type"] = "custom_st.Transformer"
    (folder / "modules.json").write_text(json.dumps(entries))
    with pytest.raises(UserError, match=r"unsupported layer custom_st\.Transformer"):
        choose_pooling(ModelFolder(str(folder)))


@pytest.mark.parametrize(
    ("prompts", "config", "is_refused"),
    [
        ({"query": "Q: "}, {"pooling_mode": "mean", "include_prompt": False}, True),
        ({"document": "D: "}, {"pooling_mode_cls_token": True, "include_prompt": False}, True),
        ({"query": "Q: "}, {"pooling_mode": "lasttoken", "include_prompt": False}, False),  # not in the prefix
        ({"query": "", "document": ""}, {"pooling_mode": "mean", "include_prompt": False}, False),
        ({"query": "Q: "}, {"pooling_mode": "mean", "include_prompt": True}, False),
    ],
)
def test_pooling_without_the_prefix(folder, prompts, config, is_refused):
    save_pooling(folder, "Transformer", "Pooling", **config)
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    with pytest.raises(UserError, match="without the prefix is not supported") if is_refused else nullcontext():
        choose_pooling(ModelFolder(str(folder)))


@pytest.mark.parametrize(
    ("similarity", "types", "normalize"),
    [
        ("cosine", (), True),
        ("cosine", ("Normalize",), True),
        ("dot", (), False),
        ("dot", ("Normalize",), True),
        (None, (), False),
        ("euclidean", ("Normalize",), True),  # the same order
        ("euclidean", (), None),
        ("manhattan", ("Normalize",), None),
    ],
)
def test_how_embeddings_are_compared(folder, similarity, types, normalize):
    save_pooling(folder, "Transformer", "Pooling", *types)
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"similarity_fn_name": similarity}))
    refused = pytest.raises(UserError, match=f"{similarity} similarity is not supported\n  use another encoder")
    with refused if normalize is None else nullcontext():
        assert choose_pooling(ModelFolder(str(folder))).normalize is normalize
        assert choose_pooling(ModelFolder(str(folder)), normalize=False).normalize is False


@pytest.mark.parametrize(
    ("files", "length"),
    [
        ({}, 512),
        ({"sentence_bert_config.json": {"max_seq_length": 128}}, 128),
        ({"sentence_bert_config.json": {"max_seq_length": 128}, "modules.json": []}, 128),
        ({"sentence_bert_config.json": {"max_seq_length": None}, "modules.json": []}, 300),  # the tokenizer's
        ({"sentence_bert_config.json": {"transformer_task": "feature-extraction"}, "modules.json": []}, 300),
        ({"modules.json": []}, 300),
        ({"modules.json": [], "tokenizer_config.json": {"model_max_length": 10**30}}, 512),
        ({"modules.json": [], "tokenizer_config.json": {"model_max_length": 9000}}, 512),  # more than the model reads
        ({"sentence_xlnet_config.json": {"max_seq_length": 128}}, 512),  # of another architecture
        ({"sentence_roberta_config.json": {"max_seq_length": 128}, "config.json": {"model_type": "roberta"}}, 128),
    ],
)
def test_the_length_at_which_texts_are_cut(folder, files, length, capsys):
    change(folder / "tokenizer_config.json", model_max_length=300)
    for name, content in files.items():
        if (folder / name).exists():
            change(folder / name, **content)
        else:
            (folder / name).write_text(json.dumps(content))
    assert choose_pooling(ModelFolder(str(folder))).max_length == length
    assert choose_pooling(ModelFolder(str(folder)), max_length=7).max_length == 7
    note = f"note: {folder}: --max_length 7 overrides its files (max_length: {length})\n"
    assert capsys.readouterr().err == note or length == 512  # 512 may be the default, which no file states


@pytest.mark.parametrize(
    ("config", "output"),
    [
        ({"transformer_task": "fill-mask"}, "fill-mask"),
        ({"modality_config": {"text": {"method_output_name": "pooler_output"}}}, "pooler_output"),
        ({"modality_config": {"image": {"method_output_name": "last_hidden_state"}}}, "None"),
        ({"modality_config": {"text": {"method_output_name": "last_hidden_state"}}}, None),
    ],
)
def test_what_the_transformer_gives(folder, config, output):
    (folder / "sentence_bert_config.json").write_text(json.dumps(config))
    refused = pytest.raises(UserError, match=f"unsupported output of the transformer: {output}\n  use another encoder")
    with refused if output else nullcontext():
        choose_pooling(ModelFolder(str(folder)))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("modules.json", "[1]"),
        ("modules.json", '[{"type": 1, "path": ""}]'),
        ("1_Pooling/config.json", "[]"),
        ("sentence_bert_config.json", '{"max_seq_length": "long"}'),
        ("sentence_bert_config.json", '{"modality_config": {"text": 1}}'),
        ("tokenizer_config.json", '{"model_max_length": "long"}'),
        ("config.json", "[]1"),
    ],
)
def test_a_damaged_file_is_named(folder, file, content):
    save_pooling(folder, "Transformer", "Pooling", pooling_mode="mean")
    (folder / file).write_text(content)
    with pytest.raises(UserError, match=rf"{re.escape(file)}: damaged\n  repair it$"):
        choose_pooling(ModelFolder(str(folder)))


def change(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


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
    assert f"note: {folder}: --pooling mean overrides its files (mode: cls)\n" in err
    assert f"note: {folder}: --no-normalize overrides its files (normalize: True)\n" in err
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
        ModelFolder(MODEL, cache).checked()
        hub.commit({**files, "1_Pooling/config.json": json.dumps({"pooling_mode": "max"}).encode()})
        assert choose_pooling(ModelFolder(MODEL, cache)) == Pooling("cls", True)
        asked = len(hub.requests)
        assert choose_pooling(ModelFolder(MODEL, cache)) == Pooling("cls", True)
        assert len(hub.requests) == asked  # from the cache
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert choose_pooling(ModelFolder(MODEL, cache)) == Pooling("cls", True)
