"""Does the driver keep vLLM busy? Judging and generation compared with LLM.generate on the same prompts.

  python tests/speed/engine.py --model_addr demo/models/chat

The bare engine is vLLM's own LLM class with the same settings, which gets all rendered prompts in one list. The naive
judge is another engine without a prefix cache, which writes 15 tokens of free text, a verdict's usual length. All
engines are loaded once; each run starts with an empty prefix cache.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from measure import CHAT, parse_flags, peak_memory, print_spread, write_figures

import baselines
import evaluate_responses
from utils.base.cli import Arguments, set_up_torch
from utils.base.errors import run_script
from utils.benchmarks.lampqa.task import TASK
from utils.data.datasets import read_dataset
from utils.generation.calls import Call
from utils.generation.engines import choose_model
from utils.generation.model import Model
from utils.generation.vllm_engine import VLLMEngine, engine_settings, sampling_params
from utils.models.model_folder import ModelFolder
from utils.runs.ask import Ask
from utils.runs.judging import JudgedDataset, JudgeModel, ScoreFile, choose_judge, requests_to
from utils.runs.rendering import Asked, Prompts, make_call
from utils.runs.runner import Pass, Servers
from utils.runs.stage import Stage, StageFile
from utils.runs.tally import Tally
from utils.tables.notes import describe_scores

SAMPLE = Path(__file__).resolve().parent.parent / "data/mini_lampqa"
MODEL_LENGTH = 4096  # tokens
VERDICT_TOKENS = 15  # of a free-form verdict
KV_SPACE = "1"  # GiB, on a CPU, of each engine
GPU_SHARE = "0.28"  # of a GPU's memory, of each engine: three are loaded at a time
METRIC = TASK.metrics["aspect"]


def main(argv: list[str] | None = None) -> int:
    numbers = {"questions": (12, "how many are judged"), "max_tokens": (64, "tokens of an answer")}
    args = parse_flags(__doc__, argv, model_addr=CHAT, **numbers)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", KV_SPACE)
    set_up_torch("warning")  # like the scripts; for the bare engines too
    figures = asyncio.run(measure(args))
    write_figures(args.json_addr, figures)
    return 0


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        judging = judge_arguments(args)
        answering = answer_arguments(args)
        engines: list[Any] = []
        try:
            engines.append(VLLMEngine(judging, [ModelFolder(args.model_addr)], MODEL_LENGTH))
            engines += [load_bare(judging, args.model_addr, prefix_cache) for prefix_cache in (True, False)]
            rows = []
            for run in range(args.runs + 1):
                row = await one_run(args, judging, answering, engines, Path(folder) / str(run))
                if run == 0:  # compiles grammars, among others
                    continue
                rows.append(row)
                print(f"run {run}: " + ", ".join(f"{name} {value:.3g}" for name, value in row.items()), flush=True)
            processes = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
            memory = sum(peak_memory(process) for process in processes)
            print(f"peak memory at most {memory / 1e9:.2f} GB, of the three engines together")
        finally:
            for engine in engines[1:]:  # else this process may wait for their end
                engine.llm_engine.engine_core.shutdown()
            for engine in engines[:1]:
                await engine.close()

    def ours_to(other: str, what: str = "verdicts/s") -> list[float]:
        return [row[f"our {what}"] / row[f"{other} {what}"] for row in rows]

    answers = "tokens a second of answers, ours / LLM.generate"
    return {
        "model": args.model_addr,
        "runs": rows,
        "peak_memory": memory,
        "judging_to_bare": print_spread("verdicts a second, ours / LLM.generate", ours_to("bare"), 0.95),
        "judging_to_naive": print_spread("verdicts a second, ours / the naive way", ours_to("naive"), 1.7),
        "cached": print_spread("share of prompt tokens from the cache", [row["cached"] for row in rows], 0.65),
        "generation_to_bare": print_spread(answers, ours_to("bare", "tokens/s"), 0.95),
    }


async def one_run(
    args: argparse.Namespace, judging: Arguments, answering: Arguments, engines: Any, folder: Path
) -> dict[str, float]:
    """Return the rates of all three on the same prompts; the first one changes between runs."""
    from vllm import SamplingParams

    ours, bare, naive = engines
    folder.mkdir()
    figures: dict[str, float] = {}
    judge = choose_judge(judging.replaced(completions=str(folder / "judge"), max_model_len=MODEL_LENGTH), METRIC.judge)
    verdicts = judge_calls(judging, judge, folder)
    for who in ("ours", "bare", "naive") if int(folder.name) % 2 == 0 else ("naive", "bare", "ours"):
        if who == "ours":
            seconds, tokens = await timed(ours, judge, verdicts)
            figures["our verdicts/s"] = len(verdicts) / seconds
            figures["cached"] = sum(t["cached_tokens"] for t in tokens) / sum(t["prompt_tokens"] for t in tokens)
        elif who == "bare":
            params = [sampling_params(call.policy.sampling(call.key, 0)) for call in verdicts]
            figures["bare verdicts/s"] = len(verdicts) / timed_bare(bare, verdicts, params)[0]
        else:
            free_text = SamplingParams(temperature=0, max_tokens=VERDICT_TOKENS, min_tokens=VERDICT_TOKENS)
            figures["naive verdicts/s"] = len(verdicts) / timed_bare(naive, verdicts, [free_text] * len(verdicts))[0]
    model = choose_model(answering.replaced(completions=str(folder / "completions")))
    answers = answer_calls(model)
    for who in ("ours", "bare") if int(folder.name) % 2 == 0 else ("bare", "ours"):
        if who == "ours":
            seconds, written = await timed(ours, model, answers)
            figures["our tokens/s"] = sum(one["completion_tokens"] for one in written) / seconds
        else:
            params = [sampling_params(call.policy.sampling(call.key, 0)) for call in answers]
            seconds, outputs = timed_bare(bare, answers, params)
            figures["bare tokens/s"] = sum(len(output.outputs[0].token_ids) for output in outputs) / seconds
    return figures


def judge_arguments(args: argparse.Namespace) -> Arguments:
    parser = evaluate_responses.build_parser()
    command = ["--evaluator_llm", args.model_addr, "--inputs_addr", str(SAMPLE / "train.json"), "--response_addr", "-"]
    command += ["--score_addr", "-", "--limit", str(args.questions), "--max_tokens", "32"]
    command += ["--gpu_memory_utilization", GPU_SHARE]
    return parser.parse_args([*command, "--constrained_decoding", "always", "--max_retries", "0"])


def answer_arguments(args: argparse.Namespace) -> Arguments:
    parser = baselines.build_parser()
    command = ["--model_addr", args.model_addr, "--inputs_addr", str(SAMPLE / "train.json"), "--output_addr", "-"]
    command += ["--rag", "--num_contexts", "2", "--max_tokens", str(args.max_tokens)]
    command += ["--max_model_len", str(MODEL_LENGTH)]
    return parser.parse_args([*command, "--constrained_decoding", "always", "--max_retries", "0"])


def judge_calls(judging: Arguments, judge: JudgeModel, folder: Path) -> list[Call]:
    """Return a call for every aspect of the first questions; responses consist of the user's posts."""
    records = read_dataset(SAMPLE / "train.json", needs=["narrative", "rubric_aspects"])[: judging.limit]
    responses = {r["id"]: [{"output": " ".join(post["text"] for post in r["profile"])[:2500]}] for r in records}
    path = folder / "responses.json"
    path.write_text(json.dumps(responses))
    dataset = JudgedDataset(judging.inputs_addr, TASK, "aspect", judging)
    scores = ScoreFile(dataset, [str(path)], str(folder / "scores.json"), {}, describe_scores)
    form, requests = METRIC.judge.output, requests_to([scores], records)
    policy = replace(judge.policy, schema=form.schema)
    prompts = [(key, judge.chat.render(judge.messages(request))) for _, key, request in requests]
    return [Call(key, prompt, form.parse, policy) for key, prompt in prompts]


def answer_calls(model: Model) -> list[Call]:
    records, prompts = read_dataset(SAMPLE / "train.json", needs=["profile"]), Prompts(TASK, None)
    return [
        make_call(Asked("rag", TASK.best_items(record, 2)), record, (record["id"], 0), model, prompts)
        for record in records
    ]


def load_bare(judging: argparse.Namespace, model: str, prefix_cache: bool) -> Any:
    from vllm import LLM
    from vllm.platforms import current_platform

    settings = engine_settings(judging, ModelFolder(model), [], MODEL_LENGTH, on_gpu=not current_platform.is_cpu())
    return LLM(**settings, enable_prefix_caching=prefix_cache)


async def timed(engine: VLLMEngine, model: Model, calls: list[Call]) -> tuple[float, list[dict[str, Any]]]:
    """Return the seconds for these calls through the runner, and their records."""

    async def send(call: Call, ask: Ask) -> dict[str, Any]:
        return await ask.steps.send("generator", lambda: call)

    file = StageFile(f"{tempfile.mkdtemp()}/calls.json", {}, model.flags, [call.key for call in calls])
    file.unit = "calls"
    stage = Stage(TASK, lambda: ((file, call.key, call) for call in calls), send, [file], {"generator": model})
    await engine._engine.reset_prefix_cache()
    started = time.perf_counter()
    await Pass(Tally(stage), {"generator": engine}, Servers(), model.flags).go()
    return time.perf_counter() - started, list(file.pieces.values())


def timed_bare(engine: Any, calls: Sequence[Call], params: list[Any]) -> tuple[float, list[Any]]:
    engine.reset_prefix_cache()
    prompts = [{"prompt_token_ids": list(call.prompt)} for call in calls]
    started = time.perf_counter()
    outputs = engine.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - started, outputs


if __name__ == "__main__":
    run_script(main)
