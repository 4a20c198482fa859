"""Rounds of sampling, judging and learning from scores, with a tiny model behind a loopback API."""

import json
import random
import re
from contextlib import contextmanager
from statistics import fmean

import made_up_lessons as made_up
from api_server import Reply, serve

import baselines
import evaluate_responses
from utils import combine_scores, train_generator
from utils.base.manifest import file_hash
from utils.benchmarks.lampqa.answers import write_answer
from utils.models.model_folder import ModelFolder

TWO_CALLS = """
async def answer(record, ask):
    first = await ask("{question}", parse=lambda text: text)
    return await ask("rag", items=record.best(1))
"""


@contextmanager
def served(folder, adapter, verdict):
    """Serve the beginner, perhaps with an adapter, as "policy", and as "judge" what `verdict` says of a response."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, GenerationConfig

    from utils.generation.chat import LocalChat

    chat = LocalChat(ModelFolder(str(folder / "beginner")))
    model = AutoModelForCausalLM.from_pretrained(folder / "beginner", dtype=torch.float32).eval()
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter).eval()

    @torch.no_grad()
    def reply(request):
        if request["model"] == "judge":
            return judge(request, verdict)
        ids = torch.tensor([list(chat.render(request["messages"]))])
        torch.manual_seed(request["seed"])
        config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=40,
                                  eos_token_id=chat.end_of_turn, pad_token_id=chat.tokenizer.pad_token_id)  # fmt: skip
        tokens = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)[0, ids.shape[1] :]
        is_cut = bool(tokens[-1] != chat.end_of_turn)
        text = chat.tokenizer.decode(tokens, skip_special_tokens=True)
        return Reply(text, finish_reason="length" if is_cut else "stop")

    with serve(reply) as server:
        yield server


def judge(request, verdict):
    response = re.search(r"response:\n(.*)\n\naspect:", request["messages"][-1]["content"], re.DOTALL)[1]
    return Reply(json.dumps({"match_score": verdict(response)}))


@contextmanager
def scripted(verdict):
    """Serve what a beginner would write, drawn by prompt and seed, and the judge's verdicts."""

    def reply(request):
        if request["model"] == "judge":
            return judge(request, verdict)
        drawn = random.Random(json.dumps([request["messages"], request["seed"]]))
        text = f"Look {drawn.randrange(10, 18)} steps away."
        if request["messages"][0]["role"] == "system":
            return Reply(write_answer(text))
        return Reply(text)

    with serve(reply) as server:
        yield server


def sample(folder, server, output, *more, method=TWO_CALLS, number=8):
    """Sample and judge answers to the last ten questions; return the trace and the scores."""
    output.mkdir(parents=True)
    (output / "mine.py").write_text(method)
    (output / "ten.json").write_text(json.dumps(made_up.records()[30:]))
    api = ["--openai", "--base_url", server.url, "--api_key_addr", folder / "key.txt", "--max_concurrency", 1]
    common = [*api, "--prompts_dir", folder / "prompts", "--inputs_addr", output / "ten.json"]
    answers = output / "answers.json"
    run(baselines, *common, "--model_addr", "policy", "--method", output / "mine.py", "--unranked", "--trace",
        "--output_addr", answers, "--num_generated_outputs", number, "--max_retries", 0,
        "--constrained_decoding", "never", "--temperature", 1, "--max_tokens", 40, *more)  # fmt: skip
    scores = output / "scores.json"
    run(evaluate_responses, *api, "--inputs_addr", output / "ten.json", "--evaluator_llm", "judge",
        "--samples", "all", "--response_addr", answers, "--score_addr", scores)  # fmt: skip
    return output / "answers.json.trace.jsonl", scores


def learn(folder, start, output, trace, scores, *more):
    """Train on a round, and return the new adapter and the log."""
    run(train_generator, "--model_addr", start, "--objective", "grpo", "--inputs_addr", trace.parent / "ten.json",
        "--trace_addr", trace, "--score_addr", scores, "--output_dir", output, "--lora_rank", 64,
        "--no-gradient_checkpointing", *more)  # fmt: skip
    log = [json.loads(line) for line in (output / "training_log.jsonl").read_text().splitlines()]
    return output / "last", log


def run(script, *words):
    code = script.main([str(word) for word in words])
    assert code == 0 or script is baselines  # most texts of a beginner may be unusable


def shuffled(scores):
    """Return a file of rewards, in which each question's samples have each other's scores."""
    rewards, drawn = scores.with_name("rewards.json"), random.Random(0)
    run(combine_scores, "--response_addr", scores.with_name("answers.json"), "--score_addr", scores,
        "--output_addr", rewards)  # fmt: skip
    content = json.loads(rewards.read_text())
    content["rewards"] = {key: drawn.sample(row, len(row)) for key, row in content["rewards"].items()}
    rewrite(rewards, json.dumps(content))
    return rewards


def rewrite(path, text):
    """Change a file and the hash in its manifest."""
    path.write_text(text)
    manifest = path.with_name(f"{path.name}.manifest.json")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"output_sha256": file_hash(path)}))


def mean_score(scores):
    entries = json.loads(scores.read_text())["per_question_scores"]
    return fmean(score for entry in entries for score in entry["samples"])


def make_beginner(folder, steps=200):
    """Write a copy of the model that has learnt, with all its weights, to answer with any of eight numbers."""
    import torch
    from transformers import AutoModelForCausalLM

    from prompts import load_prompt
    from utils.generation.chat import LocalChat

    chat, prompt = LocalChat(ModelFolder(str(folder / "model"))), load_prompt("lampqa/rag", folder / "prompts")
    model, drawn = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32), random.Random(0)

    def rows_of_step():
        rows = []
        for record in drawn.sample(made_up.records(), 8):
            shown = prompt.messages(question=record["question"], profile="I lose things.")
            asked = [shown, [{"role": "user", "content": record["question"]}]][drawn.randrange(2)]
            text = f"Look {drawn.randrange(10, 18)} steps away."
            reply = write_answer(text) if asked is shown else text
            rows.append((list(chat.render(asked)), list(chat.render_reply(reply))))
        return rows

    return made_up.learn_rows(model, chat, rows_of_step, steps, folder / "beginner")
