"""Models that transformers loads to train or to answer: missing files are reported in one line."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_chat import save_tiny_chat
from tiny_t5 import save_tiny_t5

from utils.base.errors import UserError
from utils.models.base_model import load_base, load_encoder_decoder
from utils.models.loading import check_weights


def load_chat(folder):
    return load_base(str(folder), {}, torch.float32, "eager")


def load_t5(folder):
    return load_encoder_decoder(str(folder), {}, torch.float32)


@pytest.mark.parametrize(("save", "load"), [(save_tiny_chat, load_chat), (save_tiny_t5, load_t5)])
def test_weights_that_lack_a_tensor_are_refused(tmp_path, save, load):
    """transformers would continue with random ones, and a warning that may not be shown."""
    weights = save(tmp_path) / "model.safetensors"
    load(tmp_path)
    whole = load_file(weights)
    lost = next(name for name in whole if "norm" in name)
    save_file({name: tensor for name, tensor in whole.items() if name != lost}, weights, {"format": "pt"})
    with pytest.raises(UserError, match=rf"^{tmp_path}: its weights lack {lost}; use a complete model$"):
        load(tmp_path)


def test_what_an_engine_could_not_load_is_named(tmp_path):
    weights = save_tiny_chat(tmp_path) / "model.safetensors"
    check_weights(tmp_path)
    whole, (name, *_) = load_file(weights), [name for name in load_file(weights) if "q_proj.weight" in name]
    save_file({**whole, name: whole[name][:5].clone()}, weights, {"format": "pt"})
    said = rf"{name} has shape \[5, 128\], but config\.json implies \[128, 128\]"
    with pytest.raises(UserError, match=rf"^{tmp_path}: its weights do not match its config\.json: {said}$"):
        check_weights(tmp_path)
    save_file({**whole, "model.other": whole[name].clone()}, weights, {"format": "pt"})
    with pytest.raises(
        UserError, match=r"its weights do not match its config\.json, which does not include model\.other$"
    ):
        check_weights(tmp_path)


@pytest.mark.parametrize("token", [None, "half", -1, 10**6])
def test_an_encoder_decoder_needs_a_token_to_begin_with(tmp_path, token):
    save_tiny_t5(tmp_path)
    for file in ("config.json", "generation_config.json"):
        config = json.loads((tmp_path / file).read_text())
        (tmp_path / file).write_text(json.dumps({**config, "decoder_start_token_id": token}))
    with pytest.raises(UserError) as error:
        load_t5(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}: its ") and len(str(error.value).splitlines()) == 1
