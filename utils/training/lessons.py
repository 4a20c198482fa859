"""What a generator learns from each question, by --objective.

| objective | learns | from |
|---|---|---|
| sft | to write a text | the dataset's references, or chosen responses (--target_addr) |
| dpo | to prefer one text to another | the best and the worst of several responses (--target_addr, --worst_addr) |
| distill | the distribution of a teacher that sees the rubric, on its own samples (GRASP) | samples (--response_addr) |
| grpo | to raise the scores of its own samples | the calls behind them (--trace_addr), and their scores |
"""

from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prompts import Prompt, load_prompt
from utils.base import cli
from utils.base.errors import UserError, count_noun, first_five, quote
from utils.base.manifest import file_hash, noted_settings
from utils.benchmarks.checks import Record
from utils.benchmarks.task import Task
from utils.data.leaks import find_leaks
from utils.data.responses import are_answered
from utils.data.scores import judges_of
from utils.generation.encoder_decoder import TARGET_TOKENS
from utils.generation.requests import was_cut
from utils.models.model_folder import ModelFolder
from utils.training.examples import Lesson
from utils.training.rounds import ADVANTAGES, read_responses_to, scored_addr


@dataclass(frozen=True)
class Objective:
    """An objective's defaults. Those without a source are guesses."""

    learning_rate: float = 5e-5
    weight_decay: float = 0.0
    warmup: float = 0.1  # share of all steps
    schedule: str = "linear"
    batch: int = 32  # questions per step; with grpo, calls
    is_published: bool = True  # whether `batch` comes from a paper
    epochs: int | None = 1
    target_tokens: int = 2048


REFERENCES = Objective(5e-5, 1e-4, 0.05, batch=64, epochs=None, target_tokens=TARGET_TOKENS)  # LaMP's code
OBJECTIVES = {
    "sft": Objective(epochs=3),  # rate, warm-up and batch of VAC (arXiv 2508.10695)
    "dpo": Objective(5e-6, is_published=False),
    # GRASP trains all weights at 5e-6; a new adapter needs a higher rate.
    "distill": Objective(5e-5, 0.1, schedule="cosine", target_tokens=512),
    "grpo": Objective(1e-5, batch=64, is_published=False),
}


def add_objective_arguments(parser: cli.FlagParser) -> None:
    # fmt: off
    add = parser.add_argument_group("objective").add_argument
    add("--objective", choices=list(OBJECTIVES), default="sft",
        help="what to learn from. sft: texts; dpo: pairs of texts; distill: a teacher that sees the rubric; grpo: the "
        "scores of samples (%(default)s)")
    add("--target_addr", metavar="FILE",
        help="responses to learn, such as utils/select_responses.py writes; with distill, only the questions that have "
        "one are used (default: the dataset's references; with distill all questions)")
    add("--worst_addr", metavar="FILE", help="responses to the same questions that are worse (needed by dpo)")
    add("--prompt", metavar="NAME",
        help="learn to answer this prompt of the benchmark, such as feedback, with the notes of that name in "
        "--target_addr (default: rag, or none without posts, with the responses themselves)")
    add("--beta", type=cli.non_negative_float, default=0.1,
        help="dpo: how strongly to stay close to the initial model (%(default)s)")
    add("--trace_addr", metavar="FILE",
        help="grpo: calls to learn from, a trace of several samples per question (--trace, --num_generated_outputs)")
    add("--response_addr", metavar="FILE",
        help="distill: samples of the model that is trained; grpo: the samples that were scored (default: the trace's "
        "own output)")
    add("--score_addr", metavar="FILE",
        help="grpo: scores of all samples (--samples all), or rewards of utils/combine_scores.py")
    add("--role", default="generator", help="grpo: the role whose calls in the trace are learned (%(default)s)")
    add("--advantage", choices=ADVANTAGES, default="grpo",
        help="grpo: a sample's score relative to its question's other samples, or, as in PR2's public code (deleted "
        "since), relative to the one sample that did not search (%(default)s)")
    add("--kl", type=cli.non_negative_float, default=0.0,
        help="grpo: weight of the divergence from the initial model (%(default)s)")
    add("--keep_cut", action="store_true",
        help="grpo: learn from calls that were cut off too, with reward 0 for their sample (off: leave these calls "
        "out)")
    # fmt: on
    parser.not_a_setting(
        "--target_addr --worst_addr --trace_addr --response_addr --score_addr", "their hashes are settings"
    )
    for flags, objectives in (
        ("--worst_addr --beta", ("dpo",)),
        ("--response_addr", ("distill", "grpo")),
        ("--trace_addr --score_addr --role --advantage --kl --keep_cut", ("grpo",)),
        ("--prompt", ("sft",)),
        ("--target_addr", ("sft", "dpo", "distill")),
    ):
        name = " or ".join(objectives)
        when = lambda args, needed=objectives: args.objective not in needed  # noqa: E731
        parser.without_effect(flags, when, f"without --objective {name}", f"use --objective {name}")


def objective_of(args: Namespace) -> Objective:
    """Return the defaults of the objective that these flags choose."""
    return REFERENCES if uses_references(args) else OBJECTIVES[args.objective]


def uses_references(args: Namespace) -> bool:
    return args.objective == "sft" and args.target_addr is None


def check_objective(args: Namespace) -> None:
    """Raise UserError if flags that the objective needs are missing, or if flags contradict it."""
    needed = {"dpo": ("target_addr", "worst_addr"), "distill": ("response_addr",), "grpo": ("trace_addr", "score_addr")}
    needed = needed.get(args.objective, ())
    if missing := [name for name in needed if getattr(args, name) is None]:
        raise UserError(f"--objective {args.objective}: needs --{' and --'.join(missing)}")
    if args.prompt and args.target_addr is None:
        raise UserError("--prompt: needs --target_addr, which has the texts to learn")
    if uses_references(args):
        return
    if args.lora_rank is None:
        raise UserError(
            f"--objective {args.objective}: trains an adapter on a chat model; set --lora_rank, for example to 16"
        )
    if args.validation_addr:
        raise UserError(
            "--validation_addr: only training on references is evaluated\n"
            "  remove the flag, and choose between trainings with utils/select_model.py"
        )


def lessons_of(args: Namespace, task: Task, records: list[Record], prompt: Prompt) -> tuple[list[Lesson], list[str]]:
    """Return the lessons, at most one per question, and lines that say what was skipped."""
    if uses_references(args):
        return [Lesson(record, task.values(record), record["target"]) for record in records], []
    chosen = _read(args.target_addr, task, records)
    if args.objective == "distill":
        kept = [record for record in records if chosen is None or record["id"] in chosen]
        return distillation_lessons(task, kept, read_responses_to(records, args.response_addr, task))
    worst = _read(args.worst_addr, task, records) or {}
    lessons = []
    for record in records:
        response, worse = chosen.get(record["id"]), worst.get(record["id"])
        if response is None or (args.objective == "dpo" and worse is None):
            continue
        where = f"{args.target_addr}: id {quote(record['id'])}"
        values = task.values(record)
        for name in prompt.placeholders - values.keys() - {"profile"}:  # from notes, or the record's own fields
            values[name] = _note(response, name, where, record.get(name))
        target = _note(response, args.prompt, where) if args.prompt else task.output.write(response["output"])
        is_cut = any(map(was_cut, (response, worse or {})))
        is_cut = args.prompt in response.get("cut_notes", ()) if args.prompt else is_cut
        rejected = worse and task.output.write(worse["output"])
        lessons.append(Lesson(record, values, target, rejected, is_cut=is_cut))
    count = len(records) - len(lessons)
    return lessons, [f"{count_noun(count, 'question')} skipped: no target text"] if count else []


def distillation_lessons(
    task: Task, records: Iterable[Record], samples: Mapping[str, list[dict[str, Any]]]
) -> tuple[list[Lesson], list[str]]:
    """Return a lesson for each sample, with the teacher's notes, and lines that say what was skipped.

    Questions whose profile contains a text that only the scorer may see are skipped (GRASP's filter), because the
    student could copy it. A sample without a readable answer is used too, because it is what the model wrote.
    """
    lessons, leaked, empty = [], [], 0
    for record in records:
        texts = samples.get(record["id"], ())
        if texts and next(find_leaks(task, record), None):
            leaked.append(record["id"])
        elif texts and (hints := task.private_notes(record)):
            for sample in texts:
                if sample.get("reasoning"):
                    where = f"{quote(record['id'])} has thoughts, which training would ignore"
                    raise UserError(f"--response_addr: {where}\n  sample with a model that does not think")
                if text := sample.get("raw"):
                    number, is_cut = sample.get("num_contexts_used"), was_cut(sample)
                    lessons.append(
                        Lesson(record, task.values(record), text, notes=hints, num_contexts=number, is_cut=is_cut)
                    )
                else:
                    empty += 1
    notes = [f"{count_noun(len(leaked), 'question')} skipped: the profile has text that only the scorer may see"]
    notes[0] += f": {first_five(leaked)}" if leaked else ""
    notes += (
        [f"{count_noun(empty, 'sample')} skipped: no field 'raw' with the text that the model wrote"] if empty else []
    )
    return lessons, notes


def check_samples(args: Namespace, prompt: Prompt) -> None:
    """Raise UserError if the samples were made with another prompt than the student's."""
    sampled_with = noted_settings(args.response_addr)
    if sampled_with.get("inputs") not in (None, file_hash(args.inputs_addr)):
        problem = f"was sampled from another dataset than {args.inputs_addr}, or from another ranking of it"
        raise UserError(f"{args.response_addr}: {problem}\n  use the dataset that it was sampled from")
    number = sampled_with.get("num_contexts", args.num_contexts) if sampled_with.get("rag", True) else 0
    if number != args.num_contexts:
        problem = f"was sampled with {count_noun(number, 'post')}, not {args.num_contexts}"
        raise UserError(f"{args.response_addr}: {problem}\n  use --num_contexts {number}")
    if sampled_with.get("prompt", {prompt.name: prompt.digest}) != {prompt.name: prompt.digest}:
        raise UserError(f"{args.response_addr}: was sampled with another {prompt.name} prompt; sample with this one")


def _note(response: dict[str, Any], name: str, where: str, default: Any = None) -> str:
    note = (response.get("notes") or {}).get(name, default)
    if not isinstance(note, str):
        problem = f"neither its notes nor the dataset have a text {name!r}"
        raise UserError(f"{where}: {problem}\n  use answers of --method vac, or the best of them")
    return note


def _read(path: str | None, task: Task, records: list[Record]) -> dict[str, dict[str, Any]] | None:
    """Return the first response to each answered question by id; UserError if one is not in the dataset."""
    if path is None:
        return None
    responses = {key: outputs[0] for key, outputs in read_responses_to(records, path, task).items()}
    # A response with score null was selected without a score.
    return {
        key: response
        for key, response in responses.items()
        if all(are_answered([response["output"]])) and response.get("score", 0) is not None
    }


def seen_in_training(args: Namespace, task: Task, prompt: Prompt, model: ModelFolder) -> list[str]:
    """Return the scorer's fields that this training, the models behind its texts, or an earlier training have seen."""
    files, seen = [args.target_addr, args.worst_addr], set(prompt.placeholders)
    if args.objective == "distill":
        seen |= set(task.gold_plan_needs)
        files.append(args.response_addr)
    if args.objective == "grpo":
        strategy = noted_settings(args.score_addr).get("strategy")
        seen |= set(task.metrics.get(strategy, task.first_metric).needs)
        files.append(scored_addr(args))
    fields = {*(model.made_with.get("saw_in_training") or ()), *(seen & task.hidden_fields)}
    for path in filter(None, files):
        made_with = noted_settings(path)  # even if the file was edited since
        saw = made_with.get("saw") or {}  # what the models and the method behind the texts saw
        selected_by = made_with.get("selected_by") or {}
        fields |= {*saw.get("fields", ()), *saw.get("models_saw", ()), *selected_by.get("saw", ())}
    return sorted(fields)


def judges_of_rewards(args: Namespace, model: ModelFolder) -> list[str]:
    """Return the identities of the judges whose scores were rewards or chose texts, in this or an earlier training."""
    judges = {*model.rewarded_by}
    if args.objective == "grpo":
        judges |= judges_of(noted_settings(args.score_addr))
    for path in filter(None, (args.target_addr, args.worst_addr)):
        made_with = noted_settings(path)
        judges |= {*made_with.get("selected_by", {}).get("judges", ()), *made_with.get("rewarded_by", ())}
    return sorted(judges)


def hashes_of_texts(args: Namespace) -> dict[str, str | None]:
    """Return the hashes of the files to learn from, for the settings."""
    files = {name: getattr(args, name) for name in ("target_addr", "worst_addr")}
    if args.objective == "grpo":
        files |= {"trace": args.trace_addr, "scores": args.score_addr}
    if args.objective in ("distill", "grpo"):
        files["responses"] = scored_addr(args)
    return {name: path and file_hash(path) for name, path in files.items()}


def choose_prompt(args: Namespace, task: Task) -> Prompt:
    """Return the prompt that the model learns to answer."""
    name = args.prompt or ("rag" if args.num_contexts else "none")
    if name not in task.prompts:
        raise UserError(f"--prompt {name}: the prompts of {task.name} are {', '.join(task.prompts)}")
    return load_prompt(task.prompts[name], args.prompts_dir)


def choose_teacher(args: Namespace, task: Task) -> Prompt | None:
    """Return the teacher's prompt; None if the objective has no teacher."""
    if args.objective != "distill":
        return None
    if "teacher" not in task.prompts or task.private_notes is None:
        raise UserError(f"--objective distill: {task.name} has no rubric that a teacher could see")
    return load_prompt(task.prompts["teacher"], args.prompts_dir)


def load_trainer(args: Namespace) -> type:
    """Import the objective's trainer, with torch and perhaps TRL."""
    if args.objective == "dpo":
        from utils.training.pairs import PairTrainer

        return PairTrainer
    from utils.training import trainers

    if args.lora_rank is None:
        return trainers.EncoderDecoderTrainer
    kinds = {"sft": trainers.CausalTrainer, "distill": trainers.DistillationTrainer, "grpo": trainers.ScoreTrainer}
    return kinds[args.objective]
