"""How much faster than a plain loop does the planner train, with how much memory, and how close to the limit?

  python tests/speed/training.py --model_addr demo/models/chat

Both train once on the same made-up sequences: a prompt of log-normal length and a target of 60 tokens. The plain loop
uses random order, pads every batch to its longest, and computes the logits of all positions. Useful work counts the
operations that LoRA needs: forward and backward through the frozen weights on the sequences' tokens, causal attention,
and the output layer at the targets; nothing for padding or recomputation.
"""

import argparse
import contextlib
import gc
import io
import json
import os
import random
import tempfile
import time
from array import array
from pathlib import Path

import measure
from measure import log_normal, matrix_rate, peak_memory, print_spread, reset_peak_memory

import train_planner
from utils.base.errors import run_script
from utils.base.manifest import describe_run
from utils.generation.chat import LocalChat
from utils.generation.fitting import Fitted
from utils.models.model_folder import ModelFolder
from utils.training.checkpoints import Run
from utils.training.examples import Example, Training

TARGET = 60  # tokens
LOG_SPREAD = 0.5

FLAGS = {
    "model_addr": measure.CHAT,
    "mean_tokens": (300, "of a prompt"), "max_seq_length": (1024, "of the longest"),
    "batch_size": (4, "sequences per batch"), "accumulated": (4, "batches per step"), "steps": (1, "steps a run"),
    "gradient_checkpointing": {"action": "store_true", "help": "compute activations twice (off)"},
}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    args = measure.parse_flags(__doc__, argv, **FLAGS)
    from utils.models.devices import check_devices, has_bf16

    check_devices()
    chat = LocalChat(ModelFolder(args.model_addr))
    examples = make_examples(args, chat.tokenizer.vocab_size)
    work = operations(args, examples)
    dtype = "bfloat16" if has_bf16() else "float32"
    print(f"{len(examples)} sequences, {work / 1e12:.2f} Tflop of useful work, {dtype}", flush=True)
    rows = [one_run(args, chat, examples, dtype, run) for run in range(args.runs)]
    faster = [row["plain"] / row["ours"] for row in rows]
    of_limit = [work / row["ours"] / row["limit"] for row in rows]
    memory = [row["our bytes"] / row["plain bytes"] for row in rows]
    figures = {
        "ours_to_plain": print_spread("training, times the plain loop", faster),
        "of_limit": print_spread(f"share of the {dtype} matrix product's rate", of_limit),
        "memory_to_plain": print_spread("peak memory, share of the plain loop's", memory),
    }
    print(f"peak memory {max(row['our bytes'] for row in rows) / 1e9:.2f} GB")
    figures |= {"model": args.model_addr, "dtype": dtype, "useful_flop": work, "runs": rows}
    measure.write_figures(args.json_addr, figures)
    return 0


def make_examples(args: argparse.Namespace, vocabulary: int) -> list[Example]:
    rng = random.Random(0)
    examples = []
    for _ in range(args.steps * args.batch_size * args.accumulated):
        length = min(args.max_seq_length - TARGET, max(1, log_normal(rng, args.mean_tokens, LOG_SPREAD)))
        prompt, target = (array("i", (rng.randrange(vocabulary) for _ in range(n))) for n in (length, TARGET))
        examples.append(Example({}, Fitted(prompt, 0, 0), target))
    return examples


def operations(args: argparse.Namespace, examples: list[Example]) -> float:
    """Return the floating-point operations: 4 per weight and token (forward, and backward to the activations only).

    Attention needs 2n² in each layer per unit of the queries' width (half of 4n², because it is causal), and twice
    that backward. The adapter's operations, about a hundredth, are not counted.
    """
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(args.model_addr)
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config)
    import torch

    linear = {name: part for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)}
    vocabulary = linear.pop("lm_head").weight.numel()
    weights = sum(part.weight.numel() for part in linear.values())
    width = next(part.out_features for name, part in linear.items() if name.endswith("q_proj"))
    lengths = [example.length for example in examples]
    attention = sum(3 * 2 * n**2 * width * config.num_hidden_layers for n in lengths)
    return 4 * weights * sum(lengths) + attention + 4 * vocabulary * TARGET * len(examples)


def one_run(
    args: argparse.Namespace, chat: LocalChat, examples: list[Example], dtype: str, run: int
) -> dict[str, float]:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    row: dict[str, float] = {}
    before = matrix_rate(dtype, device)
    for name in ("ours", "plain") if run % 2 else ("plain", "ours"):
        reset_peak_memory()
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        row[name] = (our_training if name == "ours" else plain_training)(args, chat, examples)
        peak = torch.cuda.max_memory_allocated() if device == "cuda" else peak_memory()
        row["our bytes" if name == "ours" else "plain bytes"] = peak
        gc.collect()
    row["limit"] = (before + matrix_rate(dtype, device)) / 2
    print(f"run {run + 1}: ours {row['ours']:.2f} s, plain {row['plain']:.2f} s", flush=True)
    return row


def planner_flags(args: argparse.Namespace, output: str) -> argparse.Namespace:
    command = ["--inputs_addr", "-", "--output_dir", output, "--model_addr", args.model_addr]
    command += ["--max_steps", args.steps, "--save_steps", args.steps, "--max_seq_length", args.max_seq_length]
    command += ["--per_device_train_batch_size", args.batch_size, "--gradient_accumulation_steps", args.accumulated]
    command += [] if args.gradient_checkpointing else ["--no-gradient_checkpointing"]
    flags = train_planner.build_parser().parse_args(list(map(str, command)))
    flags = train_planner.with_defaults(flags)
    return flags


def our_training(args: argparse.Namespace, chat: LocalChat, examples: list[Example]) -> float:
    """Return the seconds of train_planner.py's training, including saving the last checkpoint."""
    from utils.training.trainer import PlannerTrainer, train

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        run, flags = Run(Path(folder), None, None, []), planner_flags(args, folder)
        manifest = describe_run(vars(flags), {"model": args.model_addr, "inputs": "-"}, None)
        with contextlib.redirect_stdout(io.StringIO()):
            load = lambda: PlannerTrainer  # noqa: E731
            train(Training(flags, {}, "", train_planner.BEST, chat, examples, [], None, load), run, manifest, {})
        lines = (Path(folder) / "training_log.jsonl").read_text().splitlines()
    return next(figures["train_runtime"] for figures in map(json.loads, lines) if "train_runtime" in figures)


def plain_training(args: argparse.Namespace, chat: LocalChat, examples: list[Example]) -> float:
    import torch
    from peft import get_peft_model

    from utils.models.base_model import choose_attention, load_base, make_lora_config
    from utils.models.devices import has_bf16
    from utils.training.trainer import CausalTrainer

    flags = planner_flags(args, "-")
    dtype = torch.bfloat16 if has_bf16() else torch.float32
    model = load_base(args.model_addr, {}, dtype, choose_attention(has_bf16(), args.model_addr, {}))
    model = get_peft_model(model, make_lora_config(flags, model)).train()
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    if args.gradient_checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=flags.learning_rate)
    order = random.Random(0).sample(examples, len(examples))
    started = time.perf_counter()
    for step in range(args.steps):
        for batch in range(args.accumulated):
            first = (step * args.accumulated + batch) * args.batch_size
            inputs = CausalTrainer.collate(order[first : first + args.batch_size], chat.tokenizer.pad_token_id)
            with torch.autocast(model.device.type, dtype, enabled=dtype == torch.bfloat16):
                output = model(**{name: tensor.to(model.device) for name, tensor in inputs.items()}, use_cache=False)
            (output.loss / args.accumulated).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


if __name__ == "__main__":
    run_script(main)
