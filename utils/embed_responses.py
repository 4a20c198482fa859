"""Embed responses, their questions and the posts in their prompts, as input for a ranker (utils/train_ranker.py).

  python utils/embed_responses.py --model_addr Qwen/Qwen2.5-7B-Instruct --inputs_addr test_ranked.json \\
      --response_addr samples.json --output_addr samples_states.safetensors

A state is the generator's last hidden state, after the final norm, at the last token of a text; the text stands by
itself, without a chat template. States are stored in `embeddings/` beside the output, so each text is embedded once.
Run the same command again to resume.
"""

import argparse
import asyncio
import json
import sys
from array import array
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from utils.base import cli
from utils.base.errors import UserError, count_noun, exit_on_signal, quote
from utils.base.made import INPUTS, Made, State, say_finished
from utils.base.manifest import describe_run, file_hash, settings_of
from utils.base.progress import Progress
from utils.base.writing import open_whole
from utils.benchmarks.checks import Record
from utils.benchmarks.task import Task
from utils.data.datasets import read_dataset, read_task
from utils.data.responses import are_answered, match_responses, question_hash, read_responses
from utils.data.states import SCRIPT
from utils.generation.chat import load_tokenizer
from utils.generation.vllm_engine import VLLMEngine
from utils.models.loading import longest_sequence
from utils.models.machine import Loaded, describe_engine
from utils.models.model_folder import ModelFolder


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--inputs_addr", required=True, metavar="FILE", help="the dataset that the responses were made from")
    add("--response_addr", required=True, metavar="FILE", help="responses, with any number of samples per question")
    add("--output_addr", required=True, metavar="FILE", help="output file, in safetensors")
    add("--normalize", action=argparse.BooleanOptionalAction, help="scale states to length 1 (off)")
    # fmt: on
    cli.add_loading_arguments(parser, "--model_addr", "the generator: hub name, model folder, or LoRA adapter folder")
    cli.add_overwrite_argument(parser, parser)
    what = "count prompts and tokens, and list what this machine lacks; load no weights"
    cli.add_dry_run_argument(parser, parser, what)
    cli.add_log_argument(parser, parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    cli.set_up_logging(args.log_level)
    cli.set_up_torch(args.log_level)
    cli.check_outputs([args.output_addr], [args.inputs_addr, args.response_addr])
    questions, texts_of = read_texts(args)
    texts = list(dict.fromkeys(text for texts in texts_of.values() for text in texts))
    model = ModelFolder(args.model_addr, args.cache_dir).checked(safetensors_only=True)
    written_by = settings_of(args.response_addr).get("model")
    # A server's model ("NAME at ADDRESS") is not compared, because its files are not known.
    if written_by not in (None, model.identity) and " at " not in written_by:
        problem = f"were written by {written_by}, but --model_addr {args.model_addr} is {model.identity}"
        raise UserError(f"{args.response_addr}: its responses {problem}\n  use the generator itself")
    embedding_settings = {"model": model.identity, "dtype": args.dtype, "normalize": bool(args.normalize)}
    settings = {"script": SCRIPT, **embedding_settings, "inputs": file_hash(args.inputs_addr)}
    output = Made(args.output_addr, settings | {"responses": file_hash(args.response_addr)}, args.overwrite, INPUTS)
    if output.check() is State.CURRENT and not args.dry_run:
        say_finished(args.output_addr)
        return 0
    import numpy as np
    from safetensors.numpy import save

    from retrieval.embeddings import Embeddings

    folder = Path(args.output_addr).parent / "embeddings"
    cache = Embeddings(folder, model.addr, {"states": "last token", **embedding_settings})
    cache.check_writable()
    (tokenizer, config), rows = load_tokenizer(model), cache.find(texts)
    prompts = {text: array("i", tokenizer(text)["input_ids"]) for text in texts if text not in rows}
    longest, limit = max(map(len, prompts.values()), default=0), longest_sequence(config)
    if limit and longest > limit:
        problem = f"a text has {longest} tokens, but {model.addr} reads at most {limit}"
        raise UserError(f"{args.response_addr}: {problem}; remove its question")
    if args.dry_run:
        print(f"{len(prompts)} of {len(texts)} texts to embed, {sum(map(len, prompts.values()))} tokens")
        print(*describe_engine(args, [Loaded(model, longest, args.dtype)]), sep="\n")
        return 0
    run = describe_run(vars(args), {}, None, counts={"texts": len(texts), "texts_embedded": len(prompts)})
    with closing(cache), output.writing(run) as (staged, manifest):
        if prompts:
            with exit_on_signal():
                engine = VLLMEngine(args.replaced(seed=0, reasoning_parser=None), [model], longest, is_pooling=True)
            manifest["device"] = engine.device
            asyncio.run(embed(args, engine, prompts, cache))
        rows |= cache.find(prompts)
        arrays = {kind: np.stack([rows[text] for text in texts]) for kind, texts in texts_of.items()}
        with open_whole(staged, "wb") as file:
            file.write(save(arrays, {"questions": json.dumps(questions)}))
    print(f"{args.output_addr}: states of {count_noun(len(questions), 'question')}; {len(prompts)} texts embedded")
    return 0


def read_texts(args: argparse.Namespace) -> tuple[list[tuple[str, str, int, int]], dict[str, list[str]]]:
    """Return `States.questions` and the texts of each of `States.arrays`; empty texts become a blank, as in the paper.

    UserError if the responses are to other questions, or if the posts in their prompts are unknown.
    """
    task, responses = read_task(args.inputs_addr), read_responses(args.response_addr)
    if task.history is not None:
        raise UserError(f"{args.inputs_addr}: the profiles of {task.name} are conversations, which are not supported")
    if settings_of(args.response_addr).get("inputs") not in (None, file_hash(args.inputs_addr)):
        problem = f"not the dataset of {args.response_addr}, according to the manifest beside it"
        raise UserError(f"{args.inputs_addr}: {problem}\n  use the ranked dataset that they were made from")
    records = read_dataset(args.inputs_addr, lambda task: ["profile", *task.asked_needs])
    ids = [record["id"] for record in records]
    records = match_responses(records, responses, args.response_addr, ids, allow_partial=True)
    questions, texts_of = [], {"x": [record["question"] for record in records], "u": [], "y": []}
    for record in records:
        answers, first = responses[record["id"]], len(texts_of["y"])
        texts_of["u"].append(profile_text(task, record, answers, args.response_addr))
        texts_of["y"] += [answer["output"] or "" for answer in answers]
        questions.append((record["id"], question_hash(record), first, first + len(answers)))
    return questions, {kind: [text if text.strip() else " " for text in texts] for kind, texts in texts_of.items()}


def profile_text(task: Task, record: Record, answers: list[Record], path: str) -> str:
    """Return the posts in the prompts of a question's answers, whole and joined as there; UserError if unknown."""
    shown = {tuple(answer.get("posts_shown", range(answer.get("num_contexts_used") or 0)))
             for answer in answers if all(are_answered([answer["output"]]))}  # fmt: skip
    places = shown.pop() if shown else ()
    if shown or max(places, default=-1) >= len(record["profile"]):
        problem = "its answers had different posts in their prompts, or more than the dataset has"
        remedy = "use answers to one prompt, such as those of baselines.py --rag, and their ranked dataset"
        raise UserError(f"{path}: id {quote(record['id'])}: {problem}\n  {remedy}")
    items = task.arrange([record["profile"][place] for place in places])
    return task.join([(task.item_template or task.item_text)(item) for item in items]) if items else ""


async def embed(args: argparse.Namespace, engine: VLLMEngine, prompts: dict[str, array], cache: Any) -> None:
    """Add the state of each text to `cache`, and close the engine; UserError if a state is not usable."""
    left = iter(prompts.items())

    async def work(progress: Progress) -> None:
        for text, prompt in left:
            row = (await engine.state(args.model_addr, prompt, bool(args.normalize))).astype("<f2")
            cache.add([text], row[None])
            if not cache.find([text]):
                raise UserError(f"{args.model_addr}: its state of {quote(text)} is not usable; use an undamaged model")
            progress.update()

    try:
        with closing(Progress(len(prompts), "texts", at_once=engine.concurrency)) as progress:
            await asyncio.gather(*(work(progress) for _ in range(engine.concurrency)))
    finally:
        await engine.close()


if __name__ == "__main__":
    cli.run_script(main)
