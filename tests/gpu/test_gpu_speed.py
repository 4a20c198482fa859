"""Short runs of the benchmarks in tests/speed on one GPU, limited by its rate; `make bench` takes longer."""

import json

from gpu_runs import CHAT, ENCODER, needs_package


def measure(machine, tmp_path, script, runs, *flags):
    """Return a benchmark's figures; on a CPU, of one run."""
    output = tmp_path / "figures.json"
    machine.run(
        f"tests/speed/{script}.py", "--json_addr", output, "--runs", machine.pick(runs, 1), *flags, one_gpu=True
    )
    return json.loads(output.read_text())


def note(figure, figures, names):
    """Record the median of each figure, and its limit on a CPU, if any."""
    for name, words in names.items():
        bar = f" (bar {figures[name]['bar']:g})" if "bar" in figures[name] else ""
        figure(f"{words} {figures[name]['median']:.3g}{bar}")


def test_ranking_beside_the_plain_loop_and_the_cards_rate(machine, tmp_path, figure):
    shape = ["--contriever_shape"] if machine.num_gpus else []
    figures = measure(
        machine, tmp_path, "ranking", 3, "--model_name", ENCODER, "--posts", machine.pick(2000, 40), *shape
    )  # fmt: skip
    names = {
        "fp32_to_plain": "fp32: times the plain loop",
        "fp32_of_limit": "share of a matrix product's rate",
        "bf16_to_plain": "bf16: times the plain loop",
        "bf16_of_limit": "share of a product's rate in bf16",
        "bf16_overlap": "same of the ten best",
    }
    note(figure, figures, names)
    rates = {name: max(run["limit"][name] for run in figures["runs"]) / 1e12 for name in ("float32", "bfloat16")}
    figure("a matrix product's rate: " + ", ".join(f"{rate:.1f} TFLOP/s in {name}" for name, rate in rates.items()))
    assert figures["fp32_to_plain"]["median"] > 1


@needs_package("vllm")
def test_judging_and_answering_beside_vllms_own_generate(machine, tmp_path, figure):
    sizes = machine.pick((24, 128), (1, 8))
    figures = measure(
        machine, tmp_path, "engine", 5, "--model_addr", CHAT, "--questions", sizes[0], "--max_tokens", sizes[1]
    )  # fmt: skip
    names = {
        "judging_to_bare": "verdicts a second: times LLM.generate's",
        "judging_to_naive": "times the naive way's",
        "cached": "share of the prompts from the cache",
        "generation_to_bare": "answers' tokens a second: times LLM.generate's",
    }
    note(figure, figures, names)
    figure(f"{max(run['our verdicts/s'] for run in figures['runs']):.0f} verdicts a second")
    figure(f"{max(run['our tokens/s'] for run in figures['runs']):.0f} tokens a second")
    assert min(figures[name]["median"] for name in ("judging_to_bare", "generation_to_bare")) > 0.5


def test_training_beside_a_plain_loop_and_the_cards_rate(machine, generator, tmp_path, figure):
    mean, longest = machine.pick((1500, 2048), (60, 256))
    figures = measure(
        machine, tmp_path, "training", 2, "--model_addr", generator, "--batch_size", 1, "--accumulated", 4,
        "--mean_tokens", mean, "--max_seq_length", longest, "--gradient_checkpointing",
    )  # fmt: skip
    names = {
        "ours_to_plain": "times a plain loop",
        "of_limit": f"share of a matrix product's rate in {figures['dtype']}",
        "memory_to_plain": "memory, share of the plain loop's",
    }
    note(figure, figures, names)
    figure(f"{max(run['our bytes'] for run in figures['runs']) / 1e9:.1f} GB at the peak")
    assert figures["ours_to_plain"]["median"] > 0.5
