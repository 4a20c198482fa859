"""Which outputs of a study are there and up to date, by the manifests that the scripts leave beside them.

An output is up to date when it was made from its inputs as they are now, whose hashes stand in its manifest, and with
the settings of the step's command; a table or a figure is, when it is younger than what it shows.
"""

import argparse
import importlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prompts import load_prompt
from utils.cli import UserError
from utils.cli.flags import FlagParser, drop_flags
from utils.files.derived_files import is_own
from utils.files.fingerprints import differences
from utils.files.journal_lines import read_journal
from utils.files.manifest import NOT_OURS, file_hash, read_folder_manifest, read_manifest
from utils.files.writing import staged_path
from utils.models.hub import cached_commit, is_folder, model_fingerprint
from utils.planner.checkpoints import is_unevaluated
from utils.records.datasets import read_dataset
from utils.studies.plan import Step

DRAWN = ("table", "agreement", "figure")  # kinds of outputs that are made again without asking
MODEL_FLAGS = {  # in a fingerprint: the flag that names the model
    "retrieval/rank_dataset.py": ("model", "model_name"),
    "train_planner.py": ("model", "model_addr"),
    "baselines.py": ("model", "model_addr"),
    "planpers.py": ("model", "model_addr"),
    "evaluate_responses.py": ("judge", "evaluator_llm"),
}
FILLED_IN = ("max_model_len", "max_seq_length", "warmup_steps")  # flags whose default the scripts work out


@dataclass(frozen=True)
class State:
    """What is to be done about an output.

    Attributes:
        reason: why it has to be made; None where it is up to date.
        overwrite: something made otherwise is in its place.
        refusal: why it may not be made unless the user says so.
    """

    reason: str | None = None
    overwrite: bool = False
    refusal: str | None = None


@dataclass(frozen=True)
class Pending:
    """A step that has to be run, or may have to be.

    Attributes:
        reasons: why, for each output that is not up to date.
        overwrite: something made otherwise is in the place of one of them.
        refusals: for outputs that may not be replaced unless the user says so, what is in their place.
    """

    step: Step
    reasons: dict[str, str]
    overwrite: bool
    refusals: dict[str, str]

    def words(self) -> list[str]:
        """The command without the interpreter."""
        return self.step.words(list(self.reasons), self.overwrite)


def find_pending(steps: list[Step]) -> list[Pending]:
    """The steps that have to be run, and those that may have to because what they read is made again."""
    pending, remade = [], set()
    for step in steps:
        if (found := look_at(step, remade)) is not None:
            pending.append(found)
            remade |= found.reasons.keys()
    return pending


def look_at(step: Step, remade: set[str] = frozenset()) -> Pending | None:
    """A step as its files are now, None where all is up to date; `remade` are outputs that will be made again."""
    reasons, refusals, overwrite = {}, {}, False
    for output, inputs in step.outputs.items():
        state = state_of(step, output)
        if state.reason is not None:
            reasons[output] = state.reason
            overwrite |= state.overwrite
        elif upstream := [path for path in inputs if path in remade]:
            reasons[output] = f"if {upstream[0]} changes"
            overwrite |= step.kind not in DRAWN or state.overwrite
        if state.refusal is not None:
            refusals[output] = state.refusal
    return Pending(step, reasons, overwrite, refusals) if reasons else None


def state_of(step: Step, output: str) -> State:
    """One output as its files are now. Inputs that are not there are left out: they are about to be made."""
    inputs = [path for path in step.outputs[output] if Path(path).exists()]
    there = all(path.exists() for path in files_of(step, output))
    if step.kind in DRAWN:
        return drawn_state(step, output, inputs, there)
    fingerprint, is_whole = read_fingerprint(step, output)
    if fingerprint is None and Path(output).exists():
        return State(NOT_OURS, True, NOT_OURS)
    plans = f"{output}.plans.json"
    if step.script == "planpers.py" and Path(plans).exists() and read_fingerprint(step, plans)[0] is None:
        return State(f"its plans: {NOT_OURS}", True, f"its plans: {NOT_OURS}")
    if fingerprint is None:
        return State("missing", changed_plans(step, output, inputs))
    if settings := differing_settings(step, output, fingerprint):
        return State(f"other settings: {settings}", True, f"was made with other settings: {settings}")
    changed = changed_inputs(fingerprint, inputs)
    if not (there and is_whole):
        return State("missing" if not there else "unfinished", bool(changed))
    return State(f"inputs changed: {', '.join(changed)}", True) if changed else State()


def drawn_state(step: Step, output: str, inputs: list[str], there: bool) -> State:
    """A table or figure; what is in its place and not its script's is refused once it has to be made again."""
    is_foreign = any(path.exists() and not is_own(path, step.script) for path in files_of(step, output))
    made = Path(output).stat().st_mtime_ns if there else 0
    younger = [path for path in inputs if Path(path).stat().st_mtime_ns > made]
    reason = "missing" if not there else f"inputs changed: {younger[0]}" if younger else None
    return State(reason, is_foreign, NOT_OURS if is_foreign else None)


def changed_inputs(fingerprint: dict[str, Any], inputs: list[str]) -> list[str]:
    """Those of the inputs whose hash, or planner's identity, is not in the fingerprint."""
    known = [value for value in fingerprint.values() if isinstance(value, str)]
    return [path for path in inputs if not any(value.startswith(hash_of(path)) for value in known)]


def changed_plans(step: Step, output: str, inputs: list[str]) -> bool:
    """Of answers by PlanPers that are still to be begun: were their plans made from other inputs?"""
    if step.script != "planpers.py":
        return False
    fingerprint, _ = read_fingerprint(step, f"{output}.plans.json")
    return fingerprint is not None and bool(changed_inputs(fingerprint, inputs))


def files_of(step: Step, output: str) -> list[Path]:
    """An output with what its script writes beside it."""
    if step.script == "planpers.py":
        return [Path(output), Path(f"{output}.plans.json")]
    if step.kind == "figure":
        return [Path(output), Path(output).with_suffix(".pdf")]
    if step.kind == "train":  # finished by its last checkpoint
        last = f"checkpoint-{parse(step, [output]).max_steps}"
        return [Path(output), Path(output).with_name(last) / "manifest.json"]
    return [Path(output)]


def read_fingerprint(step: Step, output: str) -> tuple[dict[str, Any] | None, bool]:
    """The settings and hashes that an output was made with, and True; those of an unfinished one, and False.

    None where there is nothing, or nothing that says how it was made.
    """
    if step.kind == "train":
        manifest = read_folder_manifest(Path(output).parent)
        _, last = files_of(step, output)
        return manifest and manifest["fingerprint"], manifest is not None and not is_unevaluated(last.parent)
    manifest = read_manifest(output)
    if manifest is not None:
        # A run may have died between putting the manifest in place and the output itself.
        of_all = is_of_all_questions(manifest, step.outputs.get(output))
        for path, is_whole in ((Path(output), of_all), (staged_path(output), False)):
            if path.exists() and hash_of(str(path)) == manifest["output_sha256"]:
                return manifest["fingerprint"], is_whole
    journal = Path(f"{output}.journal.jsonl")
    if not Path(output).exists() and journal.exists():
        with suppress(UserError):  # not begun, or damaged: the script says what to do
            return read_journal(journal)[0], False
    return None, False


def is_of_all_questions(manifest: dict[str, Any], inputs: list[str] | None) -> bool:
    """Was it made without --limit, of more than a shard, and by a server that did not fail? The script adds the rest.

    Where it has as many questions as the dataset, the first of the inputs, a limit or shard left none out.
    """
    if manifest.get("missing"):
        return False
    arguments, counts = manifest.get("arguments", {}), manifest.get("counts", {})
    if arguments.get("limit") is None and arguments.get("num_shards", 1) == 1:
        return True
    if inputs is None or not Path(inputs[0]).exists():
        return False
    return counts.get("questions", counts.get("num_questions")) == len(read_dataset(inputs[0]))


_hashes: dict[tuple[object, ...], str] = {}


def hash_of(path: str) -> str:
    """What the manifests of later steps call this file, or the model in this folder; computed once as it is."""
    is_folder = Path(path).is_dir()
    files = sorted(Path(path).iterdir()) if is_folder else [Path(path)]
    stats = [(str(file), file.stat()) for file in files]
    key = (path, *((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats))
    if key not in _hashes:
        _hashes[key] = model_fingerprint(path) if is_folder else file_hash(path)
    return _hashes[key]


# Settings


def parser_of(script: str) -> FlagParser:
    return importlib.import_module(script.removesuffix(".py").replace("/", ".")).build_parser()


def parse(step: Step, outputs: list[str], error: Callable[[str], None] | None = None) -> argparse.Namespace:
    """The flags of a step as its script reads them; `error` is called with what is wrong with them."""
    parser = parser_of(step.script)
    if error is not None:
        parser.refuse = error
    return parser.parse_args(step.words(outputs, overwrite=False)[1:])


def without_idle_flags(step: Step, error: Callable[[str], None]) -> tuple[Step, dict[str, str]]:
    """A step without the flags that have no effect in it, and those with what the script would say of them.

    A study's flags are for several steps: what is said of the engine has none where the model is behind an API.
    """
    parser = parser_of(step.script)
    parser.refuse = error
    idle = parser.idle_flags(step.words(list(step.outputs), overwrite=False)[1:])
    named = {flag: value for flag, value in step.named.items() if flag not in idle}
    return replace(step, named=named, flags=drop_flags(step.flags, idle)), idle


def differing_settings(step: Step, output: str, fingerprint: dict[str, Any]) -> str:
    """The settings in which what is there differs from the step's command, empty where none does."""
    if step.script in ("train_planner.py", "planpers.py"):
        fingerprint = {"planner_target": "paper", **fingerprint}  # which says nothing of the default
    expected = expected_settings(step.script, parse(step, [output]), fingerprint)
    return differences({name: fingerprint[name] for name in expected}, expected)


def expected_settings(script: str, args: argparse.Namespace, fingerprint: dict[str, Any]) -> dict[str, Any]:
    """Those of a fingerprint's entries that a command decides, as it decides them."""
    values = {**vars(args), "script": script}
    if script == "train_planner.py":
        values["effective_batch_size"] = args.per_device_train_batch_size * args.gradient_accumulation_steps
    if script == "planpers.py":
        values["plan_max_tokens"] = args.max_tokens_plan
        if args.gold_plan:
            values |= {"plans": "gold", "lead_in": load_prompt("lampqa/planner", args.prompts_dir).lead_in}
        if args.planner_target is None:  # as the planner was trained, whose identity is compared
            values["planner_target"] = "paper" if args.gold_plan else fingerprint["planner_target"]
    if script == "baselines.py" and not args.rag:
        values["num_contexts"] = None
    if script != "evaluate_responses.py":  # which keeps them as they are given
        values = {name: value for name, value in values.items() if name not in FILLED_IN or value is not None}
    for name in ("prompt", "plan_prompt"):
        digests = fingerprint.get(name, {})
        values[name] = {prompt: load_prompt(f"lampqa/{prompt}", args.prompts_dir).digest for prompt in digests}
    model, flag = MODEL_FLAGS[script]
    if model in fingerprint:
        named = getattr(args, "model_id", None) or getattr(args, flag)
        values[model] = fingerprint[model] if is_model(fingerprint[model], named, args) else named
    return {name: value for name, value in values.items() if name in fingerprint}


def is_model(identity: str, model: str, args: argparse.Namespace) -> bool:
    """Is this what a fingerprint calls the model? Of a hub model that is not cached any commit will do."""
    if getattr(args, "openai", False):
        return identity == model
    if is_folder(model):
        return Path(model).is_dir() and identity.startswith(hash_of(model))
    commit = cached_commit(model, args.cache_dir)
    return identity == f"{model}@{commit}" if commit else identity.startswith(f"{model}@")
