"""Count what a study would need: utils/studies/steps.sh runs this for each of its commands if DRY_RUN is set.

  python utils/study_costs.py --folder FOLDER --step NAME --waits "NAMES" -- python baselines.py --rag ...
  python utils/study_costs.py --folder FOLDER

The first line runs a step's command with --dry_run, with stand-ins for the inputs that earlier steps will make: for a
ranked dataset the dataset itself, for answers texts of 400 tokens, for a trained model its base. The second prints a
table of all steps.
"""

import json
import math
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python finds only utils/

from utils import cli
from utils.cli import UserError
from utils.cli.errors import counted, printable
from utils.models.adapters import adapter_base
from utils.models.hub import cached_folder, find_headers
from utils.models.loading import load_config
from utils.models.machine import ModelSize, count_bytes, read_size
from utils.records.datasets import DatasetFile

Row = dict[str, Any]  # of the file of --dry_run FILE
Flags = dict[str, list[str]]  # a command's flags with their values
Step = dict[str, Any]  # the names it `waits` for, its `flags`, the `rows` of its dry run, and whether it `is_unknown`
Made = dict[str, tuple[str, str | None]]  # by path: the step that will make it, and its stand-in

# Flags of what a command makes, with the flag of what takes its place until then.
MAKES = {"--output_dataset_addr": "--input_dataset_addr", "--output_dir": "--model_addr", "--link_addr": "--model_addr",
         "--output_addr": "--response_addr", "--worst_addr": "--response_addr", "--split_dir": "--response_addr",
         "--score_addr": None}  # fmt: skip
ENGINE = (("--tensor_parallel_size", 1), ("--gpu_memory_utilization", 0.9))
TOKENS = {"answers": 400, "plans": 50, "verdicts": 15}  # written per request
ANSWER = "This is a plain line of the text that takes the place of an answer. " * 25  # of 16 tokens each
ANSWERS = "answers of 400 tokens"  # a folder of files with them
TRACES = (".trace.jsonl", ".plans.json.trace.jsonl")
UNKNOWN = "nothing, because its output is unknown"
# docs/speed_and_hardware.md: operations per second for prompts, in training, and for ranking by bytes per weight.
PROMPTS, TRAINING, RANKING = 0.5 * 312e12, 0.4 * 312e12, {4: 0.85 * 19.5e12, 2: 0.5 * 312e12}
UNCACHED = {"verdicts": 0.25}  # share of the prompts' tokens that is not in the prefix cache
SMALL, LARGE = (7.6e9, 3000), (32.8e9, 1000)  # parameters, and written tokens per second
SLOPE = math.log(SMALL[1] / LARGE[1]) / math.log(LARGE[0] / SMALL[0])  # the speed is a power of the parameters
COLUMNS = ("", "step", "waits for", "prompts", "tokens in", "tokens out", "verdicts", "USD", "GPU GB", "A100 hours")
ASSUMED = """\
Computed, not measured (docs/speed_and_hardware.md). Written: 400 tokens per answer, 50 per plan, 15 per verdict. Hours
on one A100: half of 312 TFLOP/s for prompts, 0.4 in training, three quarters of a judge's prompts cached, 3,000 (7B) or
1,000 (32B) written tokens per second, without loading. GPU GB: for one sequence in vLLM; + without activations.
>=: requests that depend on the answers to these are not counted. A model without a known tokenizer: 3 bytes per prompt
token, which counts too many. Requests that two steps share are in both, and are paid once."""


class Figures(NamedTuple):
    """What a command would need; None where there is no price or no local model, or where it is not known."""

    prompts: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    verdicts: int = 0
    usd: float | None = None
    gpu_bytes: float | None = None
    hours: float | None = None


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    place = words.index("--") if "--" in words else len(words)
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--folder", required=True, metavar="DIR", help="folder of the study's figures")
    add("--step", metavar="NAME", help="count this step, whose command follows `--` (default: print the table)")
    add("--waits", metavar="NAMES", help="names of the steps that this one waits for (default: none)")
    add("--drawn", action="store_true", help="the command has no --dry_run: only note what it makes (off)")
    args = parser.parse_args(words[:place])
    path = Path(args.folder, "study.json")
    study = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"steps": {}, "made": {}}
    if args.step is None:
        print_table(study["steps"])
        return 0
    code = count_step(args, words[place + 1 :], **study)
    path.write_text(json.dumps(study), encoding="utf-8")
    return code


# One step


def count_step(args: cli.Arguments, command: list[str], steps: dict[str, Step], made: Made) -> int:
    """Add a step and what it makes to the study; return the exit code of its dry run."""
    command, is_whole = with_stand_ins(command, made, is_silent=args.drawn)
    flags, path, code, rows = flags_of(command), Path(args.folder, f"{len(steps)}.json"), 0, []
    if is_whole and not args.drawn:
        code = subprocess.run([*command, "--dry_run", str(path)]).returncode
        code = code if code >= 0 else 128 - code  # a signal ended it
        rows = [] if code else json.loads(path.read_text(encoding="utf-8"))
    is_unknown = bool(code) or not is_whole
    stand_ins = dict.fromkeys(path for flag in MAKES for path in flags.get(flag, ()))
    if (is_whole and not code) or "--output_dir" in flags:  # a training that is not counted still has a base model
        stand_ins |= stand_ins_of(flags, path.parent / ANSWERS / path.name)
    step = {"waits": (args.waits or "").split(), "flags": flags, "rows": rows}
    steps[args.step] = step | {"is_unknown": is_unknown and not args.drawn}
    made |= {path: (args.step, stand_in) for path, stand_in in stand_ins.items()}
    return code


def with_stand_ins(command: list[str], made: Made, is_silent: bool) -> tuple[list[str], bool]:
    """Return a command with stand-ins for its missing inputs, and whether each of them has one."""
    words, flag, makers = [], "", {}
    for word in command:
        flag = word if word.startswith("--") else flag
        name, sign, path = word.partition("=") if flag == "--model" else ("", "", word)
        maker, stand_in = made.get(path) or made.get(os.path.dirname(path)) or ("", None)  # a checkpoint, a sample
        if not maker or flag in MAKES or os.path.exists(path):
            words.append(word)
            continue
        shown = UNKNOWN if stand_in is None else ANSWERS if ANSWERS in stand_in else stand_in
        makers.setdefault(shown, {})[maker] = None
        words.append(f"{name}{sign}{stand_in}")
        words += ["--unranked"] if flag in ("--inputs_addr", "--validation_addr") and "--unranked" not in words else []
    for shown, names in makers.items() if not is_silent else ():
        print(f"waits for: {', '.join(names)}; counted with {printable(shown)}", flush=True)
    return words, UNKNOWN not in makers


def flags_of(command: list[str]) -> Flags:
    flags, values = {}, []
    for word in command:
        if word.startswith("--"):
            name, sign, value = word.partition("=")
            values = flags.setdefault(name, [])
            values += [value] if sign else []
        else:
            values.append(word)
    return flags


def stand_ins_of(flags: Flags, answers: Path) -> dict[str, str | None]:
    """Return the stand-ins for what a command makes, by path, None where there is none.

    `answers` is the file to write if it answers.
    """
    stand_ins = {
        path: flags[source][0] for flag, source in MAKES.items() if source in flags for path in flags.get(flag, ())
    }
    if "--inputs_addr" in flags and "--output_addr" in flags:
        limit = int(flags.get("--limit", [0])[-1]) or None
        ids = [record["id"] for record in DatasetFile(flags["--inputs_addr"][0]).scan()][:limit]
        answer = {"output": ANSWER, "notes": {"answer": ANSWER, "feedback": ANSWER}}  # notes of utils/methods/vac.py
        answers.parent.mkdir(exist_ok=True)
        answers.write_text(json.dumps({question_id: [answer] for question_id in ids}), encoding="utf-8")
        stand_ins[flags["--output_addr"][0]] = str(answers)
        traces = TRACES if "--trace" in flags else ()
        stand_ins |= {f"{flags['--output_addr'][0]}{end}": None for end in traces}
    return stand_ins


# The table


def print_table(steps: dict[str, Step]) -> None:
    """Print what the steps that ask, train or embed would take, and the sums."""
    listed = [name for name, step in steps.items() if step["rows"] or step["is_unknown"]]
    numbers = {name: number for number, name in enumerate(listed, 1)}

    def waited(name: str) -> set[int]:
        """Return the numbers of the steps that a step waits for, also through steps that are not listed."""
        waits = [{numbers[other]} if other in numbers else waited(other) for other in steps[name]["waits"]]
        return set().union(*waits)

    lines, every = [COLUMNS], []
    for name, number in numbers.items():
        step, waits = steps[name], ", ".join(map(str, sorted(waited(name))))
        every.append(total([figures_of(row, step["flags"]) for row in step["rows"]]))
        cells = ["?"] * 7 if step["is_unknown"] else cells_of(every[-1], step["rows"], step["flags"])
        lines.append([str(number), name, waits, *cells])
    lines.append(
        ["", "total", "", *cells_of(total(every), [], {flag: [] for name in listed for flag in steps[name]["flags"]})]
    )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print()
    for line in lines:
        padded = [str.ljust, str.ljust, str.ljust, *[str.rjust] * 7]
        print("  ".join(pad(*cell) for pad, *cell in zip(padded, line, widths, strict=True)).rstrip())
    if count := sum(steps[name]["is_unknown"] for name in listed):
        print(f"The sums leave out {counted(count, 'step')} that could not be counted (?).")
    print(ASSUMED)


def cells_of(figures: Figures, rows: list[Row], flags: Flags) -> list[str]:
    *counts, usd, gpu_bytes, hours = figures
    asks = not rows or "requests" in rows[0]  # else it embeds or trains
    return [
        *(f"{'>=' if '--method' in flags and count else ''}{count:,}" if asks else "-" for count in counts),
        "-" if usd is None else f"{usd:,.4f}",
        "-" if gpu_bytes is None else f"{gpu_bytes / 1e9:.1f}{'' if asks else '+'}",
        "-" if hours is None else f"{hours:,.2f}",
    ]


def total(figures: list[Figures]) -> Figures:
    """Return the sums, and the largest memory."""
    columns = [[value for value in column if value is not None] for column in zip(Figures(), *figures, strict=True)]
    sums = [sum(column) if column else None for column in columns]
    return Figures(*sums)._replace(gpu_bytes=max(columns[5], default=None))


def figures_of(row: Row, flags: Flags) -> Figures:
    """Return what a row of a dry run would take."""
    params, size = size_of(row["model"], *flags.get("--cache_dir", [])[-1:]) if row.get("is_local", True) else (0, None)
    unit, usd, gpu_bytes, hours = row["unit"], None, None, None
    if "requests" not in row:  # it embeds or trains
        speed = RANKING[row["value_bytes"]] / 2 if unit == "texts" else TRAINING / 6
        hours = params * row["tokens"] / speed / 3600 if params and row["tokens"] else None
        return Figures(gpu_bytes=params * row["value_bytes"] or None, hours=hours)
    requests, tokens, most = (row[name] for name in ("requests", "prompt_tokens", "most_output_tokens"))
    written = min(TOKENS.get(unit, TOKENS["answers"]) * requests, most)
    if cost := row["cost_usd"]:
        usd = cost["prompts"] + (cost["most"] - cost["prompts"]) * written / max(most, 1)
    if params and requests:
        speed = SMALL[1] * (SMALL[0] / params) ** SLOPE
        hours = (tokens * UNCACHED.get(unit, 1) * 2 * params / PROMPTS + written / speed) / 3600
    if size and requests:
        num_gpus, share = (flags.get(flag, [default])[-1] for flag, default in ENGINE)
        gpu_bytes = size.gpu_bytes(row["max_model_len"], float(share), int(num_gpus))
    return Figures(requests, tokens, written, requests if unit == "verdicts" else 0, usd, gpu_bytes, hours)


@cache
def size_of(model: str, cache_dir: str | None = None) -> tuple[float, ModelSize | None]:
    """Return a model's number of parameters (0 if unknown), and its size in vLLM, from its files or the hub's."""
    base = adapter_base(model) or model
    try:
        headers, folder = find_headers(base, cache_dir), cached_folder(base, cache_dir)
        size = read_size(headers, load_config(folder)) if folder else None
    except UserError:
        return 0, None
    return count_bytes(headers, 2, without_head=False) / 2, size


if __name__ == "__main__":
    cli.run_script(main)
