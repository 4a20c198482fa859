"""The readers: which command reads which file. `prepare` writes all files into a folder.

To add a reader, add a line to READERS; if its file is new too, add it to `prepare`.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from made_up_dump import make_dumps
from test_bad_input import API, COMMANDS, OUTPUTS, PROMPT_OF, RECORDS, SCORED, WITH_MANIFEST, make_whole, write
from test_import_prompts import EVALUATOR, EVALUATOR_TEXT, FORMATTERS, FORMATTERS_TEXT

from utils.people.rating_study import slots_of

DATA = Path(__file__).resolve().parents[1] / "data"


@dataclass(frozen=True)
class Reader:
    """A command, and the prepared file that is damaged before it runs.

    Attributes:
        file: its name, or a pattern that matches one file.
        kind: the file's format, a key of KINDS in damages.py.
    """

    command: str
    file: str
    kind: str

    @property
    def name(self) -> str:
        words = self.command.split()
        modes = [word for word in words if word in MODES or words[words.index(word) - 1] in MODE_FLAGS]
        return " ".join([Path(words[0]).stem, *modes, self.file])


MODES = ("--rag", "--gold_plan", "--collect")
MODE_FLAGS = ("--strategy", "--ask", "--figure", "--step", "--dataset", "--choose", "--ranker")


def kind_of(file: str) -> str:
    return Path(file).suffix[1:].replace("csv", "text")


def fresh(command: str) -> str:
    """Return the command with an output that does not exist yet."""
    return re.sub(r"(--(?:output|score|output_dataset)_addr )(?:made|drawn)/", r"\1new/", command)


DENSE = (
    "retrieval/rank_dataset.py --ranker contriever --model_name ./encoder "
    "--input_dataset_addr data.json --output_dataset_addr made/dense.json"
)
BUILD = (
    f"utils/build_dataset.py {API} --model_addr m --communities_addr communities.toml --min_profile_posts 2 "
    "--posts_addr dumps/cooking.stackexchange.com/Posts.xml dumps/travel.stackexchange.com/Posts.xml sepqa.jsonl "
    "--output_dir made/built"
)
RATE = "utils/human_evaluation.py --inputs_addr data.json --raters Ann --output_addr made/{0}.html --ask {0}"
RATED = {
    "pairs": f"{RATE.format('pairs')} --system A responses.json --system B made/rag.json",
    "verdicts": f"{RATE.format('verdicts')} --system A responses.json",
    "aspects": RATE.format("aspects"),
}
COLLECT = (
    "utils/human_evaluation.py --collect ann_{0}.json --key_addr made/{0}_key.json --output_addr made/said_{0}.json"
)
REPORT = (
    "utils/report.py --inputs_addr data.json --system RAG responses.json made/scores.json plans.json "
    "--output_addr made/report.html"
)
COUNTED = "utils/dataset_statistics.py --inputs_addr data.json"
CONTROLS = "utils/make_controls.py --inputs_addr data.json --response_addr responses.json --output_dir new"
EVERY_SAMPLE = COMMANDS["evaluate"].replace("responses.json", "sampled_responses.json") + " --samples all"
CLONE = "utils/import_prompts.py --code_dir clone --output_dir new"
GET = "utils/download_datasets.py --dataset {} --source_dir originals --output_dir made"
ANSWER = f"baselines.py {API} --model_addr m --inputs_addr made/{{0}}.json --output_addr made/answers_{{0}}.json"
ANSWERED = "--inputs_addr made/{0}.json --response_addr made/answers_{0}.json"
JUDGE = f"evaluate_responses.py {ANSWERED} --score_addr made/{{1}}.json"
TABLE = "utils/make_table.py --system RAG made/{0}.json --output_addr made/table_{0}.md"
EXPORT = f"utils/export_predictions.py {ANSWERED} --output_dir new"
GIVEN = "evaluate_responses.py --inputs_addr made/{}.json --response_addr {} --score_addr new/given.json"
MEMORY, RATING, TOPIC = "PersonaMem_32k", "LaMP-3_user_dev", "LongLaMP-topic_user_val"
STORED = f"{COMMANDS['none']} --completions store"
CHAT = "baselines.py --rag --model_addr ./chat --inputs_addr data.json --output_addr new/rag.json --dry_run"
T5 = f"baselines.py --model_addr ./t5 --max_tokens 4 --inputs_addr made/{RATING}.json --output_addr made/t5.json"
STRATEGIES = {MEMORY: "accuracy", RATING: "MAE", TOPIC: "rouge-1"}
ORIGINALS = {
    "LaMP-3": ("LaMP_3/dev_questions.json", "LaMP_3/dev_outputs.json", "LaMP_3/train_questions.json"),
    "LaMP-2": ("LaMP_2/dev_questions.json", "LaMP_2/dev_outputs.json"),
    "LongLaMP-topic": ("topic_writing_user/val.json",),
    "LongLaMP-email": ("email_user/dev_questions.json", "email_user/dev_outputs.json"),
    "PersonaMem-32k": ("questions_32k.csv", "shared_contexts_32k.jsonl"),
}
SPLITS = ("train", "validation", "test")
CATEGORIES = ("Art_and_Entertainment", "Lifestyle_and_Personal_Development", "Society_and_Culture")
# The files that the commands of test_bad_input.py read.
TOLD = {
    "data.json": ("none", "rag", "planpers", "gold", "evaluate", "rank", "show", "figure 5"),
    "responses.json": ("evaluate", "show"),
    "plans.json": ("planpers",),
    "scores.json": ("table", "show", "compare", "figure 2"),
    "pairs.json": ("compare",),
    "humans.json": ("compare",),
    "made/evaluators.json": ("figure 4",),
}

READERS = [
    *(Reader(fresh(COMMANDS[name]), file, "json") for file, names in TOLD.items() for name in names),
    *(
        Reader(fresh(COMMANDS[name].replace("data.json", "data.jsonl")), "data.jsonl", "jsonl")
        for name in ("rag", "rank")
    ),
    Reader(COUNTED, "data.json", "json"),
    *(Reader(CONTROLS, file, "json") for file in ("data.json", "responses.json")),
    Reader(fresh(EVERY_SAMPLE), "sampled_responses.json", "json"),
    *(
        Reader(fresh(REPORT), file, "json")
        for file in ("data.json", "responses.json", "made/scores.json", "plans.json")
    ),
    *(Reader(fresh(RATED[ask]), "data.json", "json") for ask in RATED),
    *(Reader(fresh(RATED[ask]), "responses.json", "json") for ask in ("pairs", "verdicts")),
    *(Reader(fresh(COLLECT.format(ask)), f"ann_{ask}.json", "json") for ask in RATED),
    *(Reader(fresh(COLLECT.format(ask)), f"made/{ask}_key.json", "json") for ask in RATED),
    *(
        Reader(fresh(f"{COMMANDS[name]} --prompts_dir prompts"), f"prompts/{PROMPT_OF[name]}.txt", "text")
        for name in ("none", "rag", "planpers", "evaluate")
    ),
    Reader(fresh(COMMANDS["rag"]), "key.txt", "text"),
    *(Reader(COMMANDS[name], f"{OUTPUTS[name]}.manifest.json", "json") for name in WITH_MANIFEST),
    Reader(fresh(STORED), "store/*/*.jsonl", "log"),
    Reader(COMMANDS["training curve"].replace("drawn", "new"), "planner/training_log.jsonl", "log"),
    *(Reader("utils/download_datasets.py --dataset_name copy --cache_dir new --output_dir new", file, kind)
      for file, kind in (("copy/train.json", "json"), ("copy/README.md", "text"))),
    *(Reader(CLONE, f"clone/{file}", "text") for file in (FORMATTERS, EVALUATOR)),
    *(
        Reader(GET.format(name).replace("made", "new"), f"originals/{file}", kind_of(file))
        for name, files in ORIGINALS.items() for file in files
    ),
    *(Reader(fresh(ANSWER.format(name)), f"made/{name}.json", "json") for name in STRATEGIES),
    *(Reader(fresh(ANSWER.format(name) + " --rag --unranked"), f"made/{name}.json", "json") for name in STRATEGIES),
    Reader(fresh(ANSWER.format(MEMORY)), f"made/{MEMORY}_contexts.jsonl", "jsonl"),
    Reader(fresh(ANSWER.format(MEMORY)) + " --rag --unranked", f"made/{MEMORY}_contexts.jsonl", "jsonl"),
    *(
        Reader(fresh(JUDGE.format(name, strategy)), f"made/{file}{name}.json", "json")
        for name, strategy in STRATEGIES.items() for file in ("", "answers_")
    ),
    Reader(GIVEN.format(RATING, "originals/LaMP_3/dev_outputs.json"), "originals/LaMP_3/dev_outputs.json", "json"),
    Reader(GIVEN.format(MEMORY, f"made/export/{MEMORY}_results.csv"), f"made/export/{MEMORY}_results.csv", "text"),
    *(Reader(fresh(TABLE.format(strategy)), f"made/{strategy}.json", "json") for strategy in STRATEGIES.values()),
    *(Reader(EXPORT.format(name), f"made/{file}{name}.json", "json") for name in STRATEGIES for file in ("", "answers_")
      if name != TOPIC),
    *(Reader(BUILD.replace("made/", "new/"), file, kind) for file, kind in (
        ("dumps/cooking.stackexchange.com/Posts.xml", "text"), ("dumps/cooking.stackexchange.com/Users.xml", "text"),
        ("sepqa.jsonl", "jsonl"), ("communities.toml", "text"))),
    *(Reader(BUILD, f"made/built/{step}.json", "json") for step in ("candidates", "factoid_filter", "splits")),
    Reader(BUILD, "made/built/posts.sqlite", "binary"),
    *(Reader(fresh(DENSE), file, kind) for file, kind in (
        ("encoder/tokenizer_config.json", "json"), ("encoder/vocab.txt", "text"))),
    *(Reader(command, f"{folder}/{file}", kind)
      for folder, command in (("chat", CHAT), ("t5", fresh(T5)))
      for file, kind in (("generation_config.json", "json"), ("tokenizer.json", "json"),
                         ("tokenizer_config.json", "json"), ("model.safetensors", "binary"))),
]  # fmt: skip

# What may be missing, or null: damages to these values change an output rightly. Patterns of file, damage and place.
OPTIONAL = (
    "*.json dropped *.reason", "*.json dropped *.evidence", "*.json * *.category",
    # An answer that is none is null, so null may become a text, and no other value is taken.
    "*responses.json null *.output", "*answers_*.json null *.output", "*answers_*.json retyped *.output",
    "*responses.json dropped q?",
    "plans.json null *.aspects", "made/scores.json dropped *.parsed",
    f"made/{MEMORY}.json * *.distance_to_ref*", "ann_* null *.seconds",
    # Columns that the exported table only repeats.
    f"made/{MEMORY}.json * *.num_irrelevant_tokens", f"made/{MEMORY}.json * *.context_length*",
    f"made/{MEMORY}.json retyped *.topic", f"made/{MEMORY}.json * *.group",
    "data.json dropped *.narrative",
    "data.json null *.narrative", f"made/{TOPIC}.json retyped *.id",
    "*answers_*.json null *.raw", "*answers_*.json dropped *.raw",  # as in answers that were chosen, not written
    "ann_* dropped *.decisions.*",  # not made yet, as the table's counts say
    "ann_* dropped *.comment", "data.json retyped *.id",  # none is needed; a number is an id too
)  # fmt: skip


def is_optional(reader: Reader, damage: str, place: str) -> bool:
    return any(fnmatch(f"{reader.file} {damage} {place}", pattern) for pattern in OPTIONAL)


def prepare(folder: Path, run: Callable[[str], int]) -> None:
    """Fill the folder with good input of every kind; `run` runs a command in it and returns the exit code.

    It already has the model of tests/tiny_encoder.py.
    """
    make_whole(folder, run)
    write(
        folder / "data.jsonl", "".join(f"{json.dumps(one)}\n" for one in json.loads((folder / "data.json").read_text()))
    )
    shutil.copy(folder / "data.json.manifest.json", folder / "data.jsonl.manifest.json")  # ranked, it says
    sampled = {record["id"]: [{"output": "Rye — é."}, {"output": "Wheat."}] for record in SCORED}
    write(folder / "sampled_responses.json", sampled)
    for name, text in ((FORMATTERS, FORMATTERS_TEXT), (EVALUATOR, EVALUATOR_TEXT)):
        (folder / "clone" / name).parent.mkdir(parents=True)
        write(folder / "clone" / name, text)
    for mini in ("mini_lamp", "mini_longlamp", "mini_personamem"):
        shutil.copytree(DATA / mini, folder / "originals", dirs_exist_ok=True)
    make_dumps(folder / "dumps", 60, communities=("cooking", "travel"))
    write(folder / "communities.toml", '[Home]\ncategory = "Home — é"\ncommunities = ["cooking", "travel", "law"]\n')
    write(folder / "sepqa.jsonl", "".join(f"{json.dumps(sepqa(number))}\n" for number in range(8)))
    (folder / "copy").mkdir()
    write(folder / "copy/README.md", "---\n" + json.dumps({"configs": [
        {"config_name": one, "data_files": [{"split": split, "path": f"{split}.json"} for split in SPLITS]}
        for one in CATEGORIES]}) + "\n---\n")  # fmt: skip
    for split in SPLITS:
        write(folder / f"copy/{split}.json", [record | {"id": f"{split} {record['id']}"} for record in RECORDS])
    (folder / "new").mkdir()
    names = {"LaMP-3": RATING, "LongLaMP-topic": TOPIC, "PersonaMem-32k": MEMORY}
    commands = [BUILD, DENSE, *map(GET.format, names), *RATED.values()]
    commands += [ANSWER.format(name) for name in STRATEGIES] + [STORED.replace("none.json", "stored.json")]
    commands += [EXPORT.format(MEMORY).replace("new", "made/export")]
    commands += [JUDGE.format(name, strategy) + f" --strategy {strategy}" for name, strategy in STRATEGIES.items()]
    for command in commands:
        assert run(command) in (0, 1), command  # 1: of few made-up answers most may be unusable
    for ask in RATED:
        write(folder / f"ann_{ask}.json", rating(json.loads((folder / f"made/{ask}_key.json").read_text())))


def sepqa(number: int) -> dict[str, object]:
    text = f"I bake bread number {number} every Sunday, and my small oven is too hot for it. " * 4
    date = 1_600_000_000 + number * 86400
    return {"id": f"law_{number}", "user_id": 7, "timestamp": date, "title": f"Bread {number}?", "text": text}


def rating(key: dict) -> dict[str, object]:
    """Return the result of a rater who always gives the value 1."""
    decisions = {slot: {"value": 1, "seconds": 2.5} for slot, *_ in slots_of(key["ask"], 1)}
    answers = [{"id": one, "decisions": decisions, "comment": "good — é", "changed": 0} for one in key["questions"]]
    return {"study": key["study"], "ask": key["ask"], "rater": "Ann", "answers": answers}
