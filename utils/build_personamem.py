"""Build data like PersonaMem's: personas, their conversations over the years, and questions (arXiv 2504.14225).

  python utils/build_personamem.py --model_addr Qwen/Qwen2.5-32B-Instruct --output_dir built --n_persona 2 \\
      --topics therapy travelPlanning
  python utils/build_personamem.py --model_addr gpt-4o --model small=gpt-4o-mini --openai --api_key_addr key.txt \\
      --output_dir built --personas_addr personas.jsonl --topics_addr topics.toml --size 128k --filter_questions

Steps (--step) and their files in --output_dir: `conversations` (personas.json, conversations.json), `small_talk`
(small_talk.json), `questions` (questions.json), and `assemble`, which needs no model. It writes questions_<size>.csv
and its histories, shared_contexts_<size>.jsonl, for utils/download_datasets.py --source_dir; validity_<size>.json,
with figures such as how many questions can be answered without a history; and to_read_<size>.html, a sample of the
questions. Run the same command again to resume; nothing is requested twice.
"""

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from prompts import Prompt, digests, load_prompt
from utils.base import cli
from utils.base.errors import UserError, count_noun, count_plural, quote
from utils.base.json_files import read_json
from utils.base.made import ALL_BUT_SCRIPT, Key, Made, Piece, Pieces, State, say_finished
from utils.base.manifest import describe_run, file_hash, noted_settings, publish, publishing
from utils.base.writing import Lock
from utils.benchmarks import tasks
from utils.building.personas import assembly, conversations, inputs
from utils.building.personas.asking import PROMPTS, SMALL, Asking
from utils.building.personas.inputs import PERIODS
from utils.building.personas.questions import make_questions
from utils.building.personas.validity import describe, measure, sections_of
from utils.building.reading_page import make_page
from utils.building.steps import format_counts
from utils.generation.chat import APIChat, load_tokenizer
from utils.models.model_folder import ModelFolder
from utils.runs.ask import Ask
from utils.runs.driver import are_complete, run_stages
from utils.runs.own_method import choose_models, named_model
from utils.runs.runner import sum_calls
from utils.runs.stage import Stage, StageFile, cost_in_words

SCRIPT = "utils/build_personamem.py"
STEPS = ("conversations", "small_talk", "questions", "assemble")
MOST_REASONS = 5  # to print

Records = dict[str, dict[str, Any]]  # by id
Make = Callable[[Asking, dict[str, Any]], Awaitable[Any]]  # returns a record's value, None if nothing is usable


class Part(NamedTuple):
    """A file that is made with a model."""

    make: Make
    unit: str  # plural noun for its records
    flag: str | None  # the flag of the user's file that it is made from
    made_from: str | None  # the earlier file that it is made from


PARTS = {
    "personas": Part(conversations.make_persona, "personas", "personas_addr", None),
    "conversations": Part(conversations.make_conversations, "topics", "topics_addr", "personas"),
    "small_talk": Part(conversations.make_small_talk, "small talks", "small_talk_addr", None),
    "questions": Part(make_questions, "question sets", None, "conversations"),
}


def build_parser() -> cli.FlagParser:
    # fmt: off
    parser = cli.make_parser(__doc__)
    add = parser.add_argument
    add("--step", nargs="+", choices=STEPS,
        help="steps to run, always in this order (default: all)")
    add("--output_dir", required=True, metavar="DIR", help="folder for the files of all steps")
    add("--personas_addr", metavar="FILE",
        help='JSON Lines of {"persona": "one sentence"} (default: 8 made-up ones)')
    add("--topics_addr", metavar="FILE",
        help="TOML with a table per topic: `about`, optional `speakers` and example `conversation` (default: 3 topics)")
    add("--small_talk_addr", metavar="FILE",
        help="questions for small talk between conversations, one per line (default: 8 made-up ones)")
    add("--topics", nargs="+", metavar="NAME", help="topics to use, from --topics_addr (default: all)")
    add("--n_persona", type=cli.positive_int, metavar="N", help="stop before this persona (default: after the last)")
    add("--s_persona", type=cli.non_negative_int, default=0, metavar="N", help="first persona, from 0 (%(default)s)")
    add("--time", nargs="+", choices=PERIODS, help="periods with events to ask about (default: all)")
    add("--size", default="32k", choices=list(assembly.SIZES), help="length of histories in tokens (%(default)s)")
    add("--n_blocks", type=cli.positive_int, metavar="N",
        help="conversations per history (default: 10 for 32k, 20 for 128k, 60 for 1M)")
    add("--n_variants", type=cli.positive_int, default=2, metavar="N",
        help="number of orders of each persona's conversations; every question is asked once per order (%(default)s)")
    add("--filter_questions", action="store_true",
        help="drop questions answered correctly without a history in more than one of three attempts (off)")
    add("--tokenizer", metavar="MODEL", help="hub name or folder of the tokenizer that counts lengths "
        "(default: --model_addr)")
    add("--model", type=named_model, action="append", metavar="small=MODEL[@URL][,FLAG=VALUE]",
        help="smaller model that expands conversations and answers without a history (default: --model_addr)")
    cli.add_engine_arguments(parser, "--model_addr", "hub name, model folder, LoRA adapter folder, or API model")
    cli.add_sampling_arguments(
        parser, temperature_default=0.7, max_tokens=8192, max_model_len="56000, or the model's limit if less"
    )
    cli.add_run_arguments(parser, shards=False)
    parser.not_a_setting("--model", "the identities of the models are settings")
    parser.not_a_setting("--step --output_dir --topics --n_persona --s_persona", "they only select records")
    parser.not_a_setting("--personas_addr --topics_addr --small_talk_addr", "their content is in the prompts")
    parser.not_a_setting("--time", "it only selects questions, and is a setting of their file")
    parser.not_a_setting(
        "--size --n_blocks --n_variants --filter_questions --tokenizer", "they are settings of the assembled files"
    )
    # fmt: on
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    folder = Path(args.output_dir)
    args = args.replaced(
        step=args.step or [*STEPS],
        time=args.time or [*PERIODS],
        personas_addr=args.personas_addr or str(inputs.SAMPLES / "personas.jsonl"),
        topics_addr=args.topics_addr or str(inputs.SAMPLES / "topics.toml"),
        small_talk_addr=args.small_talk_addr or str(inputs.SAMPLES / "small_talk.txt"),
    )
    addresses = [args.personas_addr, args.topics_addr, args.small_talk_addr]
    args = cli.prepare_run(args, [str(folder / f"{name}.json") for name in assembly.FILES], addresses)
    code = 0
    if args.step == ["assemble"] and args.dry_run:
        print("assemble: needs no model, 0 requests")
        return code
    if {*args.step} & {*STEPS[:3]}:
        stages = make_stages(args)
        code = run_stages(stages, args)
        if args.dry_run or not are_complete(stages):
            return code
    if "assemble" in args.step:
        assemble(args)
    return code


def make_stages(args: cli.Arguments) -> list[Stage]:
    """Return the stages of the wanted steps, in order."""
    records_of = read_records(args)
    if unknown := [role for role, *_ in args.model or () if role not in ("generator", SMALL)]:
        raise UserError(f"--model {unknown[0]}=...: unknown name; the only name is {SMALL}")
    task = replace(tasks()["PersonaMem-32k"], prompts=PROMPTS, values=lambda record: {})
    models = choose_models(args, task)
    prompts = {name: load_prompt(prompt, args.prompts_dir) for name, prompt in PROMPTS.items()}
    settings = args.settings() | {"script": SCRIPT, "prompt": digests(prompts.values())}
    settings["models"] = {role: model.identity for role, model in models.items()}
    stages: dict[str, Stage] = {}
    for name in [part for part in PARTS if part in args.step or (part == "personas" and "conversations" in args.step)]:
        part = PARTS[name]
        part_settings = {"step": name, "inputs": {"given": file_hash(vars(args)[part.flag])} if part.flag else {}}
        part_settings |= {"time": args.time} if name == "questions" else {}
        file = PartFile(args, settings | part_settings, name, records_of[name])
        method = partial(_answer, args, prompts, part.make)
        stages[name] = Stage(task, file.records, method, [file], models, after=stages.get(part.made_from))
    return [*stages.values()]


class PartFile(StageFile):
    """A file of values made by a step: `{id: {"value", "dropped", "calls", ...}}`."""

    many_calls = True

    def __init__(self, args: cli.Arguments, settings: dict[str, Any], name: str, records: Records):
        """`records`: by id, without the values of the earlier file."""
        self._part, self._records = PARTS[name], records
        keys = None if self._part.made_from else [(record_id,) for record_id in records]
        super().__init__(str(Path(args.output_dir, f"{name}.json")), settings, args, keys)
        self.unit = self._part.unit

    def records(self) -> Iterator[tuple[StageFile, Key, dict[str, Any]]]:
        """Yield the records, each with the earlier file's value as `made_from`; records without that value are skipped.

        The hash of the earlier file is added to the settings.
        """
        earlier = self._part.made_from
        if earlier:
            path = Path(self.path).with_name(f"{earlier}.json")
            values = inputs.read_values(path)
            self.settings["inputs"] |= {path.name: file_hash(path)}
        for record_id, record in self._records.items():
            if not earlier:
                yield self, (record_id,), {"id": record_id, **record}
            elif value := values.get(record["drawn"]["id"] if earlier == "personas" else record_id):
                yield self, (record_id,), {"id": record_id, **record, "made_from": value}

    def content(self) -> dict[str, Piece]:
        return {record_id: piece for (record_id,), piece in self.in_order().items()}

    def pieces_in_file(self) -> Pieces:
        return {(record_id,): piece for record_id, piece in read_json(self.path).items()}

    def check_replaced(self, made: dict[str, Any]) -> None:
        """Refuse to replace a file with records that this command does not make, such as those of other personas."""
        path = Path(self.path)
        if path.exists() and (lost := inputs.read_values(path).keys() - self._records.keys()):
            problem = (
                f"has {count_noun(len(lost), 'record')} that this command does not make, such as {quote(min(lost))}"
            )
            remedy = "choose another --output_dir, or add --overwrite to replace it; completions are kept"
            raise UserError(f"{problem}\n  {remedy}")

    def counts(self, content: dict[str, Piece]) -> dict[str, int]:
        """Count the values, and by reason what was dropped."""
        dropped = Counter[str]()
        for piece in content.values():
            dropped.update(piece["dropped"])
        return {self.unit: sum(piece["value"] is not None for piece in content.values()), **dropped}

    def line(self, content: dict[str, Piece], figures: Mapping[str, Any]) -> str:
        dropped = Counter(figures["counts"])
        number = dropped.pop(self.unit)
        counts = f"{count_noun(number, self.noun)}, {count_plural(dropped.total(), 'replies or parts dropped')}"
        line = f"{self.path}: {counts}{cost_in_words(figures)}"
        return "\n".join([line, *(f"  {number}: {reason}" for reason, number in dropped.most_common(MOST_REASONS))])


def read_records(args: cli.Arguments) -> dict[str, Records]:
    """Return each file's records by id, without values of earlier files; UserError if a file or flag is wrong."""
    sentences = inputs.read_personas(Path(args.personas_addr))
    end = len(sentences) if args.n_persona is None else args.n_persona
    if not args.s_persona < end <= len(sentences):
        limit = f"{args.personas_addr} has {count_noun(len(sentences), 'persona')}"
        bounds = f"--s_persona must be below --n_persona, and --n_persona at most {len(sentences)}"
        raise UserError(f"--s_persona {args.s_persona} --n_persona {end}: {limit}; {bounds}")
    personas = inputs.draw_personas(sentences, args.s_persona, end, args.seed)
    topics = inputs.read_topics(Path(args.topics_addr), args.topics)
    small_talk = inputs.read_small_talk(Path(args.small_talk_addr))
    pairs = {
        f"{drawn['id']}/{name}": {"drawn": drawn, "topic": topic, "name": name, "periods": args.time}
        for drawn in personas
        for name, topic in topics.items()
    }
    return {
        "personas": {drawn["id"]: {"drawn": drawn} for drawn in personas},
        "conversations": pairs,
        "small_talk": {str(number): {"question": question} for number, question in enumerate(small_talk)},
        "questions": pairs,
    }


async def _answer(
    args: cli.Arguments,
    prompts: Mapping[str, Prompt],
    make: Make,
    record: dict[str, Any],
    ask: Ask,
    before: Piece | None = None,
) -> Piece:
    """Return a record's value, the counts of dropped parts, and the figures of its calls."""
    asking = Asking(ask, args, prompts)
    value = await make(asking, record)
    roles = dict.fromkeys(role for role, _ in ask.steps.calls)
    calls = {role: sum_calls(call for name, call in ask.steps.calls if name == role) for role in roles}
    piece = {"value": value or None, "dropped": dict(sorted(asking.dropped.items())), "calls": calls}
    if not value:  # for the report on unusable records
        piece["reason"] = next(iter(asking.dropped), "nothing usable was left")
        piece |= {name: ask.steps.calls[-1][1].get(name) for name in ("attempts", "raw")}
    return piece


def assemble(args: cli.Arguments) -> None:
    """Write the table, histories, validity figures and page for --size."""
    folder, size, addr = Path(args.output_dir), args.size, args.tokenizer or args.model_addr
    names = (f"questions_{size}.csv", f"shared_contexts_{size}.jsonl", f"validity_{size}.json", f"to_read_{size}.html")
    table, contexts, validity, page = paths = [folder / name for name in names]
    settings = {name: vars(args)[name] for name in ("size", "n_blocks", "n_variants", "seed", "filter_questions")}
    settings["n_blocks"] = args.n_blocks or assembly.SIZES[size][1]
    table_settings = {"script": SCRIPT, **settings, "tokenizer": addr}
    table_settings["inputs"] = {f"{name}.json": inputs.hash_of_step(folder / f"{name}.json") for name in assembly.FILES}
    for name, earlier in ((name, f"{part.made_from}.json") for name, part in PARTS.items() if part.made_from):
        hashes = noted_settings(folder / f"{name}.json").get("inputs", {})
        if hashes.get(earlier) != table_settings["inputs"][earlier]:
            raise UserError(f"{folder / name}.json: was made from a different {earlier}; run --step {name} again")
    files = [Made(path, table_settings, bool(args.overwrite), ALL_BUT_SCRIPT) for path in paths]
    if {file.check() for file in files} == {State.CURRENT}:
        say_finished(table)
        return
    locks = [Lock(path) for path in paths]
    run = {**describe_run(vars(args), {}, None), "settings": table_settings}
    values, count_tokens = assembly.read_inputs(folder), token_counter(args, addr)
    counts, rows = assembly.write_files(assembly.assemble(values, settings, count_tokens), table, contexts, run)
    print(f"{table}: {format_counts(counts)}")
    if args.filter_questions:  # measure all questions: of the remaining ones, the filter itself decides some figures
        unfiltered = {**settings, "filter_questions": False}
        rows = [row for part in assembly.assemble(values, unfiltered, count_tokens) for row in part.rows]
    figures = measure(rows)
    publish(validity, figures, run)
    with publishing(page, run) as staged:
        staged.write_text(make_page(sections_of(rows), args.seed), encoding="utf-8")
    for lock in locks:
        lock.release()
    print(describe(figures))
    if args.filter_questions:
        print("these figures include the questions that the filter drops")


def token_counter(args: cli.Arguments, addr: str) -> Callable[[list[str]], list[int]]:
    """Return a function that counts texts' tokens, with --tokenizer or the generator's tokenizer."""
    if args.tokenizer is None and args.openai:
        chat = APIChat(addr)
        return lambda texts: list(map(chat.count, texts))
    tokenizer, _ = load_tokenizer(ModelFolder(addr, args.cache_dir))
    return lambda texts: [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]] if texts else []


if __name__ == "__main__":
    cli.run_script(main)
