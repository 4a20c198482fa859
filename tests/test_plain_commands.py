"""Run commands of README and docs unchanged, with default flags on a real engine; only --limit 1 is added.

The models are the demo's; the chat model is changed to stop early.
"""

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest
from api_server import serve
from early_chat import save_early_chat
from made_up_dump import make_dumps
from test_readme import COMMANDS, README, ROOT, VARIABLES, commands_of
from tiny_t5 import save_tiny_t5

from utils import download_datasets
from utils.base.manifest import read_manifest
from utils.generation.chat import VERDICT_TOKENS

pytestmark = pytest.mark.engine
PART = "Lifestyle_and_Personal_Development"
# What an output of these scripts may contain by default.
TOKENS = {
    "baselines.py": 2048,
    "planpers.py": 2048,
    "evaluate_responses.py": VERDICT_TOKENS,
    "utils/build_dataset.py": 2048,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The targets of the README's variables: sample data, models, and a few training questions."""
    folder = tmp_path_factory.mktemp("plain")
    save_early_chat(folder / "chat")
    (folder / "data").mkdir()
    for part, count in (("train", 2), ("validation", 1), ("test", None)):
        records = json.loads((ROOT / f"tests/data/mini_lampqa/{part}.json").read_text())
        (folder / f"data/{PART}_{part}.json").write_text(json.dumps(records[:count]))
    (folder / "key.txt").write_text("any")
    return folder


@pytest.fixture(scope="module")
def read(folder):
    """Return a function that returns the commands of a page, in order."""
    own = {"DATA": "data", "OUT": "out", "MODEL": "chat", "JUDGE": "chat", "PLANNER": "planner", "KEY": "key.txt"}
    variables = "\n".join([VARIABLES, *(f"{name}={folder}/{place}" for name, place in own.items())])
    variables += f"\nENCODER={ROOT}/demo/models/encoder\n"

    def commands(text):
        return [words for block in COMMANDS if block in text for words in commands_of(block, variables)]

    return commands


@pytest.fixture(scope="module")
def do(warm_engine):
    """Return a function that runs a command; a command with a model gets only the first question."""

    def run(words, *more, code=0):
        script, *flags = words
        limit = ["--limit", 1] if script in TOKENS else []
        done = warm_engine.run(script, [*flags, *limit, *more], look_at_models=None)
        assert done.returncode == code, f"{words}\n{done.errors}"
        return done

    return run


def download(page, name, folder):
    """Make a dataset of the sample files of a page's benchmark, instead of the published ones."""
    which = {"personamem": ["PersonaMem-32k"], "bespoke": ["BESPOKE"]}.get(page, [name, "--setting", "user"])
    source = ["--source_dir", f"{ROOT}/tests/data/mini_{page}", "--output_dir", f"{folder}/data"]
    assert download_datasets.main(["--dataset", *which, *source]) == 0


def value_of(words, flag):
    return words[words.index(flag) + 1]


def check_outputs(words):
    """Check that everything is answered or judged, within the default token limit."""
    judges = words[0] == "evaluate_responses.py"
    start = words.index("--score_addr" if judges else "--output_addr") + 1
    paths = list(itertools.takewhile(lambda word: not word.startswith("--"), words[start:]))
    assert paths
    for path in paths:
        if "--choose" not in words and "--verdicts" not in words:  # which generate no text
            manifest = read_manifest(path)
            assert "--max_tokens" not in shlex.split(manifest["command"])  # as the run's default, it is not given
            assert manifest["settings"]["max_tokens"] == manifest["arguments"]["max_tokens"] == TOKENS[words[0]]
        content = json.loads(Path(path).read_text())
        if judges:
            assert content["num_questions"] == 1 and content["num_unscored"] == content["num_unanswered"] == 0
            outputs = [detail["score"] for entry in content["per_question_scores"] for detail in entry["details"]]
        else:
            (answers,) = content.values()
            outputs = [answer["output"] for answer in answers]
        assert outputs and None not in outputs


@pytest.fixture(scope="module")
def pipeline(read, do):
    """Run the local commands of the README's section "Use", from ranking to the report."""
    section = README.partition("\n## Use\n")[2].partition("\n## ")[0]
    elsewhere = {"--openai", "utils/download_datasets.py"}
    commands = [words for words in read(section) if elsewhere.isdisjoint(words)]
    for words in commands:
        do(words, *(["--max_steps", 1] if words[0] == "train_planner.py" else []))
    return commands


def test_the_readmes_pipeline(pipeline, folder):
    scripts = [Path(words[0]).stem for words in pipeline]
    assert scripts == [
        *("rank_dataset",) * 3, "baselines", "baselines", "train_planner", "planpers", "evaluate_responses",
        "make_table", "report",
    ]  # fmt: skip
    for words in pipeline:
        if words[0] in TOKENS:
            check_outputs(words)
    plans = read_manifest(folder / "out/planpers.json.plans.json")
    assert plans["settings"]["max_tokens_plan"] == 512
    assert "<html" in (folder / "out/report.html").read_text()


def test_a_local_planner_and_answers_from_a_server(pipeline, do, folder):
    """The README's command for PlanPers, with the generator behind an API."""
    [words] = [words for words in pipeline if words[0] == "planpers.py"]
    output = f"{folder}/out/planpers_api.json"
    words = [output if word == value_of(words, "--output_addr") else word for word in words]
    with serve() as server:
        do(words, "--model_addr", "gpt-4o-mini", "--openai", "--api_key_addr", folder / "key.txt",
           "--base_url", server.url)  # fmt: skip
        assert {request["max_tokens"] for request in server.requests} == {2048}
    check_outputs(words)
    assert read_manifest(f"{output}.plans.json")["settings"]["max_tokens_plan"] == 512
    ((answer,),) = json.loads(Path(output).read_text()).values()
    assert answer["plan"]


@pytest.mark.parametrize(
    ("page", "asked"),
    [
        ("lamp", []), ("longlamp", []),
        ("personamem", ["--rag"]), ("personamem", ["whole"]), ("personamem", ["--choose"]),
        ("planpers", ["--gold_plan"]), ("evaluation", []), ("trusting_the_judge", ["--verdicts"]),
        ("your_own_method", []), ("bespoke", ["--rag"]), ("bespoke", ["--score_addr"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)  # fmt: skip
def test_a_command_of_a_page(page, asked, pipeline, read, do, folder):
    """The first command with a local model that matches all patterns in `asked`."""
    text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
    commands = [words for words in read(text) if words[0] in TOKENS and f"{folder}/chat" in words]
    words = next(words for words in commands if all(re.search(word, " ".join(words)) for word in asked))
    name = Path(value_of(words, "--inputs_addr")).name
    if page in ("lamp", "longlamp", "personamem", "bespoke"):
        download(page, name.split("_")[0], folder)
        if page == "bespoke":  # the commands before it
            for before in itertools.takewhile(lambda others: others != words, read(text)):
                if before[0] in ("retrieval/rank_dataset.py", "baselines.py"):
                    do(before)
    if "mine.py" in words:
        program = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
        (folder / "mine.py").write_text(program)
        words = [str(folder / word) if word == "mine.py" else word for word in words]
    do(words)
    check_outputs(words)


def test_both_prompts_of_a_dataset_are_asked(read, do, folder):
    """This model names no aspect of the post, so no question is left."""
    words, *_ = read((ROOT / "docs/building_a_dataset.md").read_text(encoding="utf-8"))
    make_dumps(folder / "dumps", 300)
    for name in ("cooking", "law"):  # the page uses their short names
        (folder / "dumps" / f"{name}.stackexchange.com").rename(folder / "dumps" / name)
    places = {"google/gemma-2-27b-it": str(save_early_chat(folder / "builder", ends_lists=True))}
    words = [places.get(word, re.sub("^dumps/", f"{folder}/dumps/", word)) for word in words]
    done = do(words, code=2)
    assert "\n1/1 filter outputs, " in done.errors and "\n1/1 aspect outputs, " in done.errors
    assert "no question is left: 1 need personalization; " in done.errors.splitlines()[-2]
    for name in ("factoid_filter", "aspects"):
        assert read_manifest(folder / f"out/built/{name}.json")["settings"]["max_tokens"] == 2048


@pytest.mark.long
def test_lamps_generators_are_trained_and_answer(read, do, folder):
    """All commands of the section on FlanT5, with a tiny T5 instead; a single epoch for a chat model."""
    download("lamp", "LaMP-3", folder)
    section = (ROOT / "docs/lamp.md").read_text(encoding="utf-8").partition("\n## FlanT5, fine-tuned\n")[2]
    commands = read(section.partition("\n## ")[0])
    places = {"google/flan-t5-base": str(save_tiny_t5(folder / "t5"))}
    answers = []
    for words in commands:
        do([places.get(word, word) for word in words], *(["--epochs", 1] if "--lora_rank" in words else []))
        if words[0] == "baselines.py":
            answers += json.loads(Path(value_of(words, "--output_addr")).read_text()).values()
    scripts = [Path(words[0]).stem for words in commands]
    assert scripts == [
        *("rank_dataset",) * 2, "train_generator", "train_generator", "baselines", "baselines", "make_figures",
        "train_generator", "baselines",
    ]  # fmt: skip
    assert all(isinstance(answer["raw"], str) for [answer] in answers)  # a random T5 writes no rating
    assert len(answers) == 3 and answers[-1][0]["output"] in ["1", "2", "3", "4", "5"]
