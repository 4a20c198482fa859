"""vLLM in the scripts: its answers, cache, memory use, and that it frees its memory."""

import json
import re
import time
from pathlib import Path

import pytest
from gpu_runs import CHAT, NEAR, SAMPLE, lowest_between_peaks, needs_package

from utils.models.loading import load_config, read_headers
from utils.models.machine import GIB, read_size
from utils.models.model_folder import ModelFolder

pytestmark = needs_package("vllm")

LOADING = re.compile(r"^loading .* \(this may take a minute or more\)$", re.MULTILINE)
CACHE = re.compile(r"KV cache size: ([\d,]+) tokens")  # vLLM's own lines, from --log_level info on
CAPTURED = re.compile(r"Graph capturing finished in .*")
LENGTH = 2048  # tokens of prompt and output in all runs: the size of the KV cache depends on it


def read(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def answers_of(path):
    """Return the first answer to each question, with its complete record."""
    return [samples[0] for samples in read(path).values()]


# Free, constrained and by an adapter, in one engine


@pytest.mark.parametrize("mode", ["graphs", "eager"])
def test_one_engine_plans_with_an_adapter_and_answers_with_its_base(machine, tmp_path, make_model, mode, figure):
    adapter, output, started = make_model("adapter", "chat"), tmp_path / "answers.json", time.monotonic()
    printed = machine.run(
        "planpers.py", "--planner_model", adapter, "--model_addr", CHAT, "--inputs_addr", SAMPLE / "test.json",
        "--output_addr", output, "--limit", machine.pick(12, 4), "--num_contexts", 1, "--temperature", 0,
        "--unranked", "--max_tokens_plan", 24, "--max_tokens", 64, "--max_retries", 1, "--max_model_len", LENGTH,
        "--log_level", "info", *(["--enforce_eager"] if mode == "eager" else []),
    )  # fmt: skip
    figure(f"the whole run took {time.monotonic() - started:.0f} s")
    assert len(LOADING.findall(printed)) == 1
    if machine.num_gpus:
        captured = CAPTURED.findall(printed)  # vLLM's second model runner captures once before, to measure memory
        figure(captured[-1] if captured else "no graphs were captured")
        assert bool(captured) == (mode == "graphs")
    answers = answers_of(output)
    usable = sum(answer["output"] is not None for answer in answers)
    held = [answer for answer in answers if answer["constrained"]]
    figure(f"{usable} of {len(answers)} answers can be used, {len(held)} were held to their schema")
    assert held and all(answer["raw"].startswith('{"personalized_answer":') for answer in held)
    records = {record["id"]: record for record in read(SAMPLE / "test.json")}
    plans = {key: samples[0] for key, samples in read(f"{output}.plans.json").items()}
    free = [(records[key], plan["raw"]) for key, plan in plans.items() if not plan["constrained"]][:4]
    of_adapter, of_base = likeliest_shares(adapter, free)
    figure(f"of the tokens of {len(free)} free plans PEFT finds {of_adapter:.3f} the likeliest, its base {of_base:.3f}")
    assert of_adapter >= 0.9 and of_adapter - of_base >= 0.05


def likeliest_shares(adapter, plans):
    """Return the share of greedy plans' tokens that are PEFT's likeliest, with and without the adapter.

    In fp32 on the CPU. With the adapter not all are, because vLLM computes in 16 bits, and a text may have been written
    in other tokens than it is read in.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from prompts import join_posts, load_prompt
    from utils.generation.chat import LocalChat

    chat = LocalChat(ModelFolder(str(adapter)))
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(CHAT, dtype=torch.float32), adapter).eval()
    hits, total = [0, 0], 0
    for record, text in plans:
        posts = join_posts([post["text"] for post in record["profile"][:1]])
        prompt = list(chat.render(load_prompt("lampqa/planner").messages(question=record["question"], profile=posts)))
        plan = chat.tokenizer.encode(text, add_special_tokens=False)
        ids = torch.tensor([prompt + plan])
        total += len(plan)
        with torch.inference_mode(), model.disable_adapter():
            of_base = model(ids).logits[0, len(prompt) - 1 : -1].argmax(-1)
        with torch.inference_mode():
            of_adapter = model(ids).logits[0, len(prompt) - 1 : -1].argmax(-1)
        for place, likeliest in enumerate((of_adapter, of_base)):
            hits[place] += (likeliest == ids[0, len(prompt) :]).sum().item()
    return hits[0] / total, hits[1] / total


# Two models one after the other, and the memory


@pytest.fixture(scope="module")
def two_models(machine, generator, tmp_path_factory):
    """planpers.py with two base models: (its output, MiB over idle every 0.1 s, its words)."""
    output = tmp_path_factory.mktemp("two_models") / "answers.json"
    words = (
        "planpers.py", "--planner_model", CHAT, "--model_addr", generator, "--inputs_addr", SAMPLE / "test.json",
        "--output_addr", output, "--limit", 2, "--num_contexts", 1, "--max_tokens_plan", 24, "--max_tokens", 16,
        "--unranked", "--constrained_decoding", "always", "--max_model_len", LENGTH, "--log_level", "info",
    )  # fmt: skip
    machine.wait_until_idle()
    with machine.watching() as samples:
        printed = machine.run(*words)
    return printed, [machine.above_idle(used) for used in samples], words


def test_the_first_models_memory_is_free_before_the_second_loads(machine, two_models, figure):
    printed, used, _ = two_models
    assert len(LOADING.findall(printed)) == 2
    if not machine.idle:
        figure("memory is not measured here")
        return
    valley, left = lowest_between_peaks(used), machine.wait_until_idle()
    figure(f"{max(used)} MiB at the peak, {valley} between the two engines, {left} after both")
    assert valley < NEAR and left < NEAR


@pytest.mark.parametrize("which", ["the demo's chat model", "the 7B shape"])
def test_a_token_of_the_kv_cache_takes_what_is_computed(machine, two_models, generator, which, figure):
    printed, *_ = two_models
    folder, place = (CHAT, 0) if which == "the demo's chat model" else (generator, 1)
    of_each = LOADING.split(printed)[1:]  # what each of the two engines said
    compare_caches(machine, folder, CACHE.findall(of_each[place])[-1], figure)


def compare_caches(machine, folder, logged, figure, num_gpus=1):
    """Compare vLLM's KV cache in tokens with the memory that it may take: on a CPU 1 GiB, on a GPU what it has."""
    size = read_size(read_headers(folder), load_config(folder))
    tokens, token_bytes = int(logged.replace(",", "")), size.token_bytes(num_gpus)
    figure(f"{tokens} tokens of {token_bytes} bytes: {tokens * token_bytes / GIB:.1f} GiB")
    if machine.num_gpus:
        import torch

        _, total = torch.cuda.mem_get_info()
        assert tokens * token_bytes + size.weights / num_gpus < total
    else:
        assert tokens * token_bytes == pytest.approx(GIB, rel=0.1)  # VLLM_CPU_KVCACHE_SPACE


def test_two_gpus_share_the_7b_shape(machine, generator, tmp_path, figure):
    if machine.num_gpus < 2:
        pytest.skip("needs two GPUs")
    output = tmp_path / "answers.json"
    words = (
        "baselines.py", "--model_addr", generator, "--inputs_addr", SAMPLE / "test.json", "--output_addr", output,
        "--limit", 2, "--max_tokens", 16, "--constrained_decoding", "always", "--max_model_len", LENGTH,
        "--tensor_parallel_size", 2, "--log_level", "info",
    )  # fmt: skip
    printed = machine.run(*words)
    assert len(answers_of(output)) == 2
    compare_caches(machine, generator, CACHE.findall(printed)[-1], figure, num_gpus=2)


# What must not change with the batch and the device


def answer(machine, output, *more):
    """Return the texts of greedy answers, with a separate store."""
    machine.run(
        "baselines.py", "--model_addr", CHAT, "--inputs_addr", SAMPLE / "test.json", "--output_addr", output,
        "--limit", machine.pick(12, 3), "--max_tokens", machine.pick(64, 8), "--temperature", 0, "--max_retries", 0,
        "--max_model_len", LENGTH, "--completions", f"{output}.completions", *more, one_gpu=True,
    )  # fmt: skip
    return [answer["raw"] for answer in answers_of(output)]


def test_batch_invariant_answers_are_the_same_twice(machine, tmp_path, figure, monkeypatch):
    if not machine.num_gpus:
        pytest.skip("VLLM_BATCH_INVARIANT=1 needs a GPU")
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    whole = answer(machine, tmp_path / "whole.json")
    again = answer(machine, tmp_path / "again.json")
    part = answer(machine, tmp_path / "part.json", "--limit", 3)
    same = [sum(a == b for a, b in zip(whole, other, strict=False)) for other in (again, part)]
    figure(f"{same[0]} of {len(whole)} are the same again, {same[1]} of {len(part)} in a smaller batch")
    assert again == whole and part == whole[:3]


@pytest.mark.parametrize("runner", [None, "0"])
def test_likelihoods_are_those_of_transformers_on_the_cpu(machine, tmp_path, runner, figure):
    """Options after a history, scored by prompt log-probabilities; with both runners."""
    from likelihoods import mean_log_probs

    source = SAMPLE.parent / "mini_personamem"
    machine.run("utils/download_datasets.py", "--dataset", "PersonaMem-32k", "--source_dir", source, "--output_dir",
                tmp_path)  # fmt: skip
    data, output, count = tmp_path / "PersonaMem_32k.json", tmp_path / "out.json", machine.pick(6, 1)
    more = {"VLLM_USE_V2_MODEL_RUNNER": runner} if runner else {}
    printed = machine.run(
        "baselines.py", "--model_addr", CHAT, "--inputs_addr", data, "--output_addr", output, "--choose", "likelihood",
        "--rag", "--num_contexts", 0, "--dtype", "float32", "--max_model_len", LENGTH, "--limit", count, one_gpu=True,
        **more,
    )  # fmt: skip
    figure(
        "some tokens were asked for one by one" if "requested one by one" in printed else "none was asked for singly"
    )
    questions = [
        ([{"role": "user", "content": record["question"]}], dict(enumerate(record["options"])))
        for record in read(data)[:count]
    ]
    off = max(
        abs(ours - theirs)
        for answer, (expected, _) in zip(answers_of(output), mean_log_probs(CHAT, questions), strict=True)
        for ours, theirs in zip(answer["mean_log_probs"].values(), expected.values(), strict=True)
    )
    figure(f"mean log probabilities are at most {off:.1e} off the CPU's")
    assert off < 1e-2


# What a killed run keeps


def num_stored(folder):
    """Return the number of completions in the store, without an incomplete line."""
    return sum(path.read_bytes().count(b"\n") - 1 for path in folder.glob("completions/*/*.jsonl"))


def test_a_killed_run_frees_the_gpu_and_resumes(machine, tmp_path, figure):
    output = tmp_path / "answers.json"
    samples, questions = machine.pick((40, 12), (4, 3))
    command = (
        "baselines.py", "--model_addr", CHAT, "--inputs_addr", SAMPLE / "test.json", "--output_addr", output,
        "--limit", questions, "--num_generated_outputs", samples, "--max_tokens", machine.pick(512, 64),
        "--max_model_len", LENGTH, "--temperature", 1, "--max_retries", 0, "--enforce_eager",
    )  # fmt: skip
    machine.wait_until_idle()
    machine.kill_when(machine.start(*command), lambda: num_stored(tmp_path) > 2)
    left = machine.wait_until_idle()
    kept, total = num_stored(tmp_path), samples * questions
    machine.run(*command)
    figure(f"{kept} of {total} answers were kept; {left} MiB were held when the killed run was gone")
    assert 2 < kept < total == num_stored(tmp_path)  # none was asked for twice
    assert sum(map(len, read(output).values())) == total
    assert left < NEAR
