"""Which outputs of a study are up to date, by the manifests that the scripts leave beside them: a study has no other.

One rule holds for all: an output is up to date when the hashes in its manifest are those of its inputs now, and the
settings there are those that the script's own `make_fingerprint` gives for the step's flags. Flags that are not in it,
such as those for memory or speed, change no output. What cannot be told is left to the command, which finds itself
finished.
"""

import functools
import json
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from utils.benchmarks import tasks
from utils.checks.commands import model_of, module_of, parser_of
from utils.cli import UserError
from utils.files.derived_files import is_own
from utils.files.fingerprints import UNTOLD, differences
from utils.files.journal_lines import read_journal
from utils.files.manifest import NOT_OURS, file_hash, not_ours, read_folder_manifest, read_manifest
from utils.files.writing import staged_path
from utils.generation.chat import LocalChat
from utils.generation.cost import prices_of
from utils.generation.templates import template_variables
from utils.generation.thinking import find_thoughts
from utils.models.hub import cached_commit, is_folder, model_fingerprint
from utils.records.datasets import read_dataset
from utils.studies.plan import DRAWN, Step
from utils.training.checkpoints import is_unevaluated

# Of an encoder-decoder's answers, which beam search writes: decided by the model's own files.
OF_BEAM_SEARCH = ("num_beams", "fusion", "temperature", "top_p", "seed", "max_tokens", "constrained_decoding")


class State(NamedTuple):
    """What is to be done about an output."""

    reason: str | None  # why it has to be made; None where it is up to date
    overwrite: bool  # something made otherwise is in its place
    refusal: str | None = None  # why it may not be made unless the user says so


class Pending(NamedTuple):
    """A step that has to be run, or may have to be."""

    step: Step
    reasons: dict[str, str]  # of each output that is not up to date
    overwrite: bool  # something made otherwise is in the place of one of them
    refusals: dict[str, str]  # of outputs that may not be replaced unless the user says so

    def words(self) -> list[str]:
        """The command without the interpreter."""
        return self.step.words(list(self.reasons), self.overwrite)

    def arguments(self) -> Namespace:
        return parse(self.step, list(self.step.outputs))


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


def state_of(step: Step, output: str, place: str | None = None) -> State:
    """One output, or the shard of it at `place`, as its files are now.

    Inputs that are not there are left out: they are about to be made.
    """
    path = place or output
    inputs = [one for one in step.outputs[output] if Path(one).exists()]
    files = files_of(step, path)
    made, is_whole = how_made(step, path, None if place else inputs)
    if made is None and Path(path).exists():
        return State(not_ours(path), True, not_ours(path))
    planned = None
    if step.script == "planpers.py":
        planned = how_made(step, str(files[1]))[0]
        if planned is None and files[1].exists():
            problem = f"its plans: {not_ours(files[1])}"
            return State(problem, True, problem)
    if made is None:
        return State("missing", bool(planned and changed_inputs(planned, inputs)))
    settings, changed = differing_settings(step, output, made), changed_inputs(made, inputs)
    reason = None
    if settings:
        reason = f"other settings: {settings}"
    elif not all(file.exists() for file in files):
        reason = "missing"
    elif not is_whole:
        reason = "unfinished"
    elif changed:
        reason = f"inputs changed: {', '.join(changed)}"
    if step.kind in DRAWN:  # what is not its script's is refused only once it has to be made again
        is_foreign = any(file.exists() and not is_own(file, step.script) for file in files)
        return State(reason, is_foreign, NOT_OURS if is_foreign else None)
    return State(reason, bool(settings or changed), f"was made with other settings: {settings}" if settings else None)


def files_of(step: Step, output: str) -> list[Path]:
    """An output with what its script writes beside it."""
    path, files = Path(output), [Path(output)]
    if step.script == "planpers.py":
        files.append(Path(f"{output}.plans.json"))
    elif step.kind == "figure":
        files.append(path.with_suffix(".pdf"))
    elif step.script == "train_planner.py":  # finished by its last checkpoint
        files.append(path.with_name(f"checkpoint-{parse(step, [output]).max_steps}") / "manifest.json")
    return files


def how_made(step: Step, path: str, inputs: list[str] | None = None) -> tuple[dict[str, Any] | None, bool]:
    """The settings and hashes of what is there, or of what is under way, and whether it is whole.

    None where there is nothing, or nothing that says how it was made.
    """
    manifest = read_folder_manifest(Path(path).parent) if step.kind == "train" else read_manifest(path)
    if manifest is not None:
        if step.script == "utils/train_generator.py":
            return manifest["fingerprint"], bool(manifest.get("finished"))
        if step.kind == "train":
            return manifest["fingerprint"], not is_unevaluated(files_of(step, path)[1].parent)
        if step.kind in DRAWN:  # whose flags all count
            return {**manifest["arguments"], **manifest["fingerprint"], "overwrite": False}, True
        # A run may have died between putting the manifest in place and the output itself.
        for file, is_whole in ((Path(path), is_of_all_questions(manifest, inputs)), (staged_path(path), False)):
            if file.exists() and hash_of(str(file)) == manifest["output_sha256"]:
                return manifest["fingerprint"], is_whole
    journal = Path(f"{path}.journal.jsonl")
    if not Path(path).exists() and journal.exists():
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
    return bool(inputs) and counts.get("questions", counts.get("num_questions")) == len(read_dataset(inputs[0]))


def changed_inputs(made: dict[str, Any], inputs: list[str]) -> list[str]:
    """Those of the inputs whose hash, or planner's identity, is not in a fingerprint."""
    hashes = made["inputs"].values() if isinstance(made.get("inputs"), dict) else made.values()
    known = [value for value in hashes if isinstance(value, str)]
    return [path for path in inputs if not any(value.startswith(hash_of(path)) for value in known)]


def hash_of(path: str) -> str:
    """What the manifests of later steps call this file, or the model in this folder; computed once as it is."""
    files = sorted(Path(path).iterdir()) if Path(path).is_dir() else [Path(path)]
    stats = [file.stat() for file in files]
    return _hash_of(path, *((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats))


@functools.cache
def _hash_of(path: str, *stats: tuple[int, ...]) -> str:
    return model_fingerprint(path) if Path(path).is_dir() else file_hash(path)


def describe_cost(steps: list[Step]) -> str:
    """What all that the steps have made took of APIs whose prices are given; empty without any.

    By the tokens of the manifests and the study's prices: what was made before these were given counts too.
    """
    costs = []
    for step in (step for step in steps if step.kind in ("answer", "judge")):
        args = parse(step, list(step.outputs))
        for path, whose in ((path, whose) for path in step.outputs for whose in ("", "planner_")):
            manifest = read_manifest(f"{path}.plans.json" if whose else path)
            if manifest is not None and (prices := prices_of(args, whose)):
                costs.append(prices.cost(manifest["tokens"]))
    total, unknown = sum(cost for cost in costs if cost is not None), costs.count(None)
    more = f", without {unknown} outputs whose tokens the API did not report" if unknown else ""
    return f"cost: {total:.4f} USD{more}" if costs else ""


def parse(step: Step, outputs: list[str]) -> Namespace:
    """The flags of a step as its script reads them."""
    return parser_of(step.script).parse_args(step.words(outputs, overwrite=False)[1:])


def differing_settings(step: Step, output: str, made: dict[str, Any]) -> str:
    """The settings in which what is there differs from the step's command, empty where none does."""
    args = parse(step, [output])
    if step.kind in DRAWN:  # whose flags all count; the default of one is worked out
        flags = {
            name: value for name, value in vars(args).items() if name in made and (name, value) != ("baseline", None)
        }
        return differences({name: made[name] for name in flags}, flags)
    expected = settings_of(step, args, made)
    told = {name: value for name, value in made.items() if expected.get(name) is not UNTOLD}
    return differences(told, {name: value for name, value in expected.items() if value is not UNTOLD})


def settings_of(step: Step, args: Namespace, made: dict[str, Any]) -> dict[str, Any]:
    """The script's fingerprint for these flags; UNTOLD where it takes a file's hash or what the model's files say."""
    expected = module_of(step.script).make_fingerprint(args, tasks()[step.task])
    if "num_beams" in made:
        expected |= dict.fromkeys(OF_BEAM_SEARCH, UNTOLD)
    expected |= dict.fromkeys(left_to_thoughts(args, made), UNTOLD)
    for name in expected.keys() & {"model", "judge"}:
        named = getattr(args, "model_id", None) or model_of(args)
        expected[name] = UNTOLD if name in made and is_model(made[name], named, args) else named
    return expected


def left_to_thoughts(args: Namespace, made: dict[str, Any]) -> list[str]:
    """Settings of a model that thinks which the user leaves to its files, or to its name behind an API."""
    flags = {"max_tokens": "max_tokens", "plan_max_tokens": "max_tokens_plan"}
    names = [name for name, flag in flags.items() if flag in args and flag not in args.given]
    if vars(args).get("openai") and find_thoughts(args, None, model_of(args)).thinks:
        return names
    if vars(args).get("reasoning_parser") is None:
        names += ["reasoning_parser", "plan_reasoning_parser"]
    elif "reasoning_parser" not in made and not is_parsed(args):
        return ["reasoning_parser"]
    return names if {"reasoning_parser", "plan_reasoning_parser"} & made.keys() else []


def is_parsed(args: Namespace) -> bool:
    """Does a run use its --reasoning_parser? Not where the model's template or training leaves no thoughts to read.

    False also for a model whose files are not here, or damaged: its command is asked no sooner than it has to be.
    """
    model = model_of(args)
    if vars(args).get("openai"):
        return True
    with suppress(UserError):
        if Path(model).is_dir() or cached_commit(model, args.cache_dir):
            chat = chat_of(model, args.cache_dir, json.dumps(template_variables(args)))
            return find_thoughts(args, chat, model).parser is not None
    return False


@functools.cache
def chat_of(model: str, cache_dir: str | None, variables: str) -> LocalChat:
    """A model's chat; its template's variables are JSON."""
    return LocalChat(model, cache_dir, json.loads(variables))


def is_model(identity: str, model: str, args: Namespace) -> bool:
    """Is this what a fingerprint calls the model? Of a hub model that is not cached any commit will do."""
    if getattr(args, "openai", False):
        return identity == model
    if is_folder(model):
        return Path(model).is_dir() and identity.startswith(hash_of(model))
    commit = cached_commit(model, args.cache_dir)
    return identity == f"{model}@{commit}" if commit else identity.startswith(f"{model}@")
