"""The model card of a trained planner: what it says, and what stays markup-free and unsaid."""

import shlex
from functools import partial

import pytest
from huggingface_hub import ModelCard

import planpers
from train_planner import BEST
from utils.planner.trainer import CARD
from utils.training.card import code
from utils.training.card import make_card as make

make_card = partial(make, CARD, BEST)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def manifest_of(model="Qwen/Qwen2.5-7B-Instruct", identity=None, **arguments):
    """As train_planner.py leaves it beside the adapter."""
    arguments = {
        "model_addr": model, "inputs_addr": "/home/ann/data/train_ranked.json", "validation_addr": None,
        "output_dir": "/home/ann/planner", "cache_dir": "/home/ann/cache", "num_contexts": 10, "prompts_dir": None,
        **arguments,
    }  # fmt: skip
    fingerprint = {
        "model": identity or f"{model}@{COMMIT}", "inputs": "12ab", "validation": "34cd", "learning_rate": 5e-5,
        "lora_rank": 16, "lora_target_modules": ["q_proj", "v_proj"], "effective_batch_size": 32, "warmup_steps": 0,
        "script": "train_planner.py",
    }  # fmt: skip
    return {
        "arguments": arguments, "settings": fingerprint, "device": "1 x GPU", "git_commit": "fedcba+",
        "versions": {"python": "3.11.9", "torch": "2.13.0", "peft": "0.21.2"}, "step": 500, "best_step": 250,
    }  # fmt: skip


LOG = [
    {"step": 250, "loss": 1.5},
    {"step": 250, "eval_loss": 1.25, "eval_aspect_recall": 0.5, "eval_plans": 32},
    {"step": 500, "eval_loss": float("nan")},
]


def test_a_hub_model_is_named_with_its_commit_and_no_path_of_the_machine():
    text = make_card("best", manifest_of(validation_addr="/home/ann/data/validation_ranked.json"), LOG)
    card = ModelCard(text)
    assert card.data.to_dict() == {
        "base_model": "Qwen/Qwen2.5-7B-Instruct", "library_name": "peft", "pipeline_tag": "text-generation",
        "tags": ["lora", "personalization"],
    }  # fmt: skip
    assert f"`Qwen/Qwen2.5-7B-Instruct` (commit `{COMMIT}`)" in text
    assert "ann" not in text.replace("planner", "").replace("planned", "")
    for line in (
        "- training data: `train_ranked.json` (sha256 `12ab`)",
        "- validation data: `validation_ranked.json` (sha256 `34cd`)",
        "- learning_rate: `5e-05`",
        "- warmup_steps: `0`",
        "- lora_target_modules: `q_proj v_proj`",
        "| 250 (best checkpoint) | 1.2500 | 0.500 of 32 plans |",
        "| 500 | nan |  |",
        "Up to step 500, with train_planner.py on 1 x GPU: torch 2.13.0, peft 0.21.2.",
    ):
        assert f"\n{line}\n" in text
    assert "(commit `fedcba`, with changes)" in text


@pytest.mark.parametrize("more", [{}, {"prompts_dir": "/home/ann/prompts_paper"}])
def test_the_command_is_one_that_planpers_takes(more):
    text = make_card("checkpoint-500", manifest_of(**more), [])
    (line,) = [line for line in text.splitlines() if line.startswith("python ")]
    python, script, *words = shlex.split(line)
    assert (python, script) == ("python", "planpers.py")
    args = planpers.build_parser().parse_args(words)
    assert (args.model_addr, args.planner_model) == ("Qwen/Qwen2.5-7B-Instruct", "$PLANNER/checkpoint-500")
    assert (args.num_contexts, args.rag, args.prompts_dir) == (10, True, "$PROMPTS" if more else None)
    assert "nothing was evaluated" in text


@pytest.mark.parametrize("name", ['a: "b" # c', "x`y``z", "<b>|[1](2)", "two\nlines"])
def test_names_are_no_markup(name, tmp_path):
    (tmp_path / name).mkdir()
    manifest = manifest_of(str(tmp_path / name), "sha256:ab", inputs_addr=f"/data/{name}")
    text = make_card("", manifest, LOG)
    assert ModelCard(text).data.to_dict().keys() == {"library_name", "pipeline_tag", "tags"}
    assert f"a folder {code(name)} (`sha256:ab`)" in text and f"- training data: {code(name)} (" in text
    assert str(tmp_path) not in text and "--model_addr $MODEL --planner_model $PLANNER --inputs" in text
    for hub_name in ("null", "1e3", "yes"):  # one value each, as YAML is read
        assert ModelCard(make_card("", manifest_of(hub_name), [])).data.base_model == hub_name
