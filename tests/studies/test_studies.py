"""The studies in utils/studies: the commands they stand for, whole runs, what resumes them, and their SLURM jobs."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from api_server import Reply, default_reply, serve, text_of
from test_readme import parser_of as make_parser
from tiny_chat import save_tiny_chat
from tiny_encoder import save_tiny_encoder

from retrieval import rank_dataset
from utils import download_datasets, draw_questions, study_costs
from utils.base.errors import UserError
from utils.base.manifest import refuse_unranked
from utils.benchmarks.lampqa.task import COMMUNITIES
from utils.data.datasets import read_dataset
from utils.generation.chat import APIChat

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "utils/studies"
SAMPLE = ROOT / "tests/data/mini_lampqa"
SOCIETY = "Society_and_Culture"
SHARED = ("steps.sh", "lampqa_steps.sh", "lamp_steps.sh", "beyond_steps.sh")  # which the studies source
STUDIES = sorted(path.stem for path in FOLDER.glob("*.sh") if path.name not in SHARED)
PRINT = "#!/bin/sh\n{ printf '%s\\0' \"$@\"; printf '\\1'; } >> $WORDS\n"
FAKES = {"python": PRINT, "accelerate": PRINT, "sbatch": f"{PRINT}echo $(tr -dc '\\1' < $WORDS | wc -c)\n"}
READ = ("inputs_addr", "input_dataset_addr", "validation_addr", "response_addr", "system", "model_addr",
        "planner_model", "evaluator", "agreement_addr", "target_addr", "trace_addr", "contrast_addr",
        "round_files", "states_addr", "ranker")  # fmt: skip
MADE = ("output_addr", "output_dataset_addr", "output_dir", "score_addr", "link_addr")
TRACE_END = re.compile(r"(\.plans\.json)?\.trace\.jsonl$")  # after the name of the answers


def study(name, timeout=1200, **variables):
    """Run a study as a user does, in an environment that has `python` on its path."""
    command, environment = ["bash", f"utils/studies/{name}.sh"], environment_with(variables)
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)


def environment_with(variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH"))}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    return environment | {name: str(value) for name, value in variables.items()}


@pytest.fixture
def commands_of(tmp_path):
    """A function that returns the commands of a study: their words, without any of them being run."""
    for name, text in FAKES.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def commands(name, **variables):
        (tmp_path / "words").write_text("")
        variables = {"OUT": tmp_path / "out", "WORDS": tmp_path / "words", **variables}
        done = study(name, PATH=f"{tmp_path}:{os.environ['PATH']}", **variables)
        assert done.returncode == 0, done.stderr
        return [words.rstrip("\0").split("\0") for words in (tmp_path / "words").read_text().rstrip("\1").split("\1")]

    return commands


parser_of = cache(make_parser)


def parse(words):
    script = next(number for number, word in enumerate(words) if word.endswith(".py"))
    return words[script], vars(parser_of(words[script]).parse_args(words[script + 1 :]))


def paths_in(value):
    if isinstance(value, list):
        return [path for item in value for path in paths_in(item)]
    return [value] if isinstance(value, str) and "/" in value else []


def files(args, names):
    """The paths behind these flags: of a training, its checkpoints; of a ranker, its folder."""
    paths = {path for name in names for path in paths_in(args.get(name))}
    if (folder := args.get("output_dir")) in paths and "inputs_addr" in args:
        paths = paths - {folder} | {f"{folder}/best", f"{folder}/last"}
    return {TRACE_END.sub("", path) for path in paths}


# The commands: with 3 categories and models; 3 is of the tables and figures of each model or judge.
COUNTS = {
    "table2": 12 + 3 + 36 + 3 + 3, "table3": 9 + 3 + 36 + 3 + 3, "random_profiles": 6 + 18 + 3 + 3,
    "figure2": 9 + 3 + 54 + 3 + 6, "figure16": 6 + 3 + 54 + 3 + 6, "figure3": 9 + 3 + 6 + 3 + 2,
    "figure4": 9 + 3 + 6 + 12 + 4 + 2,
    "offline_rl": 3 * (3 + 3 * 6 + 1 + 3 + 1) + 1, "vac": 3 * (3 + 3 * 8 + 1 + 3 + 1) + 1,
    "grasp": 3 * (3 + 8 * 6 + 3 + 3 + 1) + 1,
    "pr2": 3 * (3 + 3 * 6 + 2 + 3 + 1) + 1, "iap": 3 * (3 + 3 * 8 + 2 + 3 + 1) + 1,
    "planner_rl": 3 * (3 + 1 + 3 * 6 + 2 + 4 + 1) + 1, "rl": 3 * (3 + 3 * 6 + 2 + 4 + 1) + 1,
    "beyond": 3 * (3 + 1 + 19 + 25 + (8 * 6 + 3) + 17 + 3 * 7 + 2 + 3 * 5 + 2 + 3 + 11 + 4 + 1) + 1,
    "bespoke": 2 + 2 + 3 * 3 + 2, "ranker": 3 * (3 + 2 + 7 + 1) + 1,
    "lamp": 56 + 14 * 9 + 28 + 2, "longlamp": 32 + 8 * 9 + 24 + 2, "lamp_flant5": 14 * (10 + 8 * 2 + 2) + 2,
}  # fmt: skip


@pytest.mark.parametrize("name", STUDIES)
def test_every_command_is_one_its_script_takes_and_reads_what_was_made_before(commands_of, tmp_path, name):
    """On four GPUs."""
    made = set()
    (tmp_path / "mine.py").write_text("")
    commands = commands_of(name, GPUS=4, HUMANS="people.json", METHOD=tmp_path / "mine.py")
    for words in commands:
        script, args = parse(words)
        missing = {path for path in files(args, READ) if path.startswith(str(tmp_path))} - made
        assert not missing, words
        made |= files(args, MADE)
        is_local = script.startswith(("baselines", "planpers", "evaluate")) and not args.get("openai")
        is_local &= args.get("evaluator_llm") is not None or script != "evaluate_responses.py"
        if script in ("train_planner.py", "utils/train_generator.py"):
            assert words[:5] == ["launch", "--multi_gpu", "--num_processes", "4", "--main_process_port"]
            step = 4 * args["per_device_train_batch_size"] * args["gradient_accumulation_steps"]
            assert step == (64 if name == "lamp_flant5" or args.get("objective") == "grpo" else 32)
        elif is_local and name != "lamp_flant5":  # an encoder-decoder runs on one
            assert args["data_parallel_size"] == 4
    assert len(commands) == COUNTS[name]


def test_what_no_study_can_do_is_refused(tmp_path):
    done = study("figure3", OUT=tmp_path, GPUS=3, DRY_RUN=1)
    assert done.returncode == 2
    assert "error: GPUS=3 cannot share a step of 32 questions evenly; use 2, 4 or 8\n" in done.stderr
    done = study("table2", OUT=tmp_path, MODELS="", OPENAI_MODELS="")
    assert (done.returncode, done.stderr) == (2, "error: MODELS and OPENAI_MODELS are both empty\n")
    for name in ("steps", "table2", "lamp", "lamp_flant5"):  # elsewhere than in the root
        done = subprocess.run(["bash", FOLDER / f"{name}.sh"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and done.stdout == "", name


def test_rows_have_the_papers_names_and_daggers_are_against_the_baselines(commands_of):
    tables = [parse(words)[1] for words in commands_of("table2") if "utils/make_table.py" in words]
    rows = ["No personalization", "RAG (random profile)", "RAG (asker's profile)", "PlanPers"]
    for args in tables:
        assert [system[0] for system in args["system"]] == rows and args["baseline"] == rows[:3]
    seeded = parse(commands_of("table2", SEEDS="0 1")[-1])[1]
    assert seeded["seeds"][3] == ["PlanPers", "PlanPers, seed 0", "PlanPers, seed 1"]
    assert seeded["system"][7][1].endswith("/Art_and_Entertainment/planpers_seed1_scores.json")
    [first, _] = [parse(words)[1] for words in commands_of("lamp") if "utils/make_table.py" in words]
    assert [system[0] for system in first["system"]][::2] == [
        "No personalization", "Random, k = 4", "BM25, k = 4", "Contriever, k = 4", "Recency, k = 4"
    ]  # fmt: skip
    assert (first["baseline"], first["paper"], first["paper_table"]) == (rows[:1], "FlanT5-base", "user")
    of_t5 = parse(commands_of("lamp_flant5", IPA_POSTS="4 8")[-1])[1]
    titles = ["Random, k = 1", "BM25, k = 1", "Contriever, k = 1", "Recency, k = 1", "IPA, k = 4", "IPA, k = 8"]
    assert [system[0] for system in of_t5["system"]] == [rows[0], "Random, non-personalized", *titles, "FiD, k = 16"]


def test_a_cell_of_table_2_is_chosen_by_categories_models_and_methods(commands_of, tmp_path):
    cell = {"CATEGORIES": SOCIETY, "MODELS": "my/model", "OPENAI_MODELS": ""}
    commands = [parse(words) for words in commands_of("table2", METHODS="planpers none", **cell)]
    made = {path.removeprefix(f"{tmp_path}/out/") for _, args in commands for path in files(args, MADE)}
    answers = {f"model/test/{SOCIETY}/{name}.json" for name in ("none", "none_scores", "planpers", "planpers_scores")}
    ranked = {f"ranked/{SOCIETY}_{split}.json" for split in ("train", "validation", "test")}
    planner = {f"planner/{SOCIETY}/{name}" for name in ("best", "last")}
    assert made == answers | ranked | planner | {"model/test/table2.md"}
    table = commands[-1][1]
    assert [system[0] for system in table["system"]] == ["PlanPers", "No personalization"]
    assert table["baseline"] == ["No personalization"]
    assert len(commands_of("table2", METHODS="none", **cell)) == 3  # nothing is ranked or trained
    baselines = {
        "best_of_n": None, "none": None, "none rag": ["No personalization"],
        "none rag best_of_n": ["No personalization", "RAG (asker's profile)"],
    }  # fmt: skip
    for methods, names in baselines.items():
        assert parse(commands_of("table2", METHODS=methods, **cell)[-1])[1]["baseline"] == names
    with_seeds = parse(commands_of("table2", METHODS="none rag", **cell | {"SEEDS": "0 1"})[-1])[1]["baseline"]
    assert with_seeds == ["No personalization, seed 0", "No personalization, seed 1"]


@pytest.mark.parametrize("name", ["table2", "table3", "pr2", "beyond", "lamp", "longlamp"])
def test_methods_that_a_study_does_not_know_are_refused_before_it_begins(tmp_path, name):
    (tmp_path / "rag.py").write_text("")
    (tmp_path / "a").mkdir()
    for path in ("mine.py", "a/mine.py"):
        (tmp_path / path).write_text("")
    for methods, message in (
        ("none mine", "METHODS: mine: unknown; use a Python file (mine.py), or some of: none "),
        ("none no/such.py", "METHODS: no/such.py: no such file\n"),
        (
            f"none {tmp_path}/rag.py",
            f"METHODS: {tmp_path}/rag.py: rag is the name of an included method",
        ),
        (f"{tmp_path}/mine.py {tmp_path}/a/mine.py", "METHODS: two are called mine\n"),
        ("", "METHODS is empty; use some of: none "),
    ):
        done = study(name, OUT=tmp_path / "out", METHODS=methods)
        assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith(f"error: {message}")


def test_a_method_of_ones_own_is_a_row_of_each_study(commands_of, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("")
    more = {"METHODS": f"none {mine}", "METHOD_FLAGS": "--set n=3", "MODELS": "my/model", "OPENAI_MODELS": ""}
    for name, rows in (
        ("table2", ["No personalization", "mine"]),
        ("pr2", ["No personalization", "mine"]),
        ("lamp", ["No personalization", "mine, BM25, k = 4"]),
    ):
        small = {"CATEGORIES": SOCIETY, "TASKS": "LaMP-4", "SETTINGS": "user", "RANKERS": "bm25-okapi", "POSTS": 4}
        commands = [parse(words) for words in commands_of(name, **more, **small)]
        assert [system[0] for system in commands[-1][1]["system"]] == rows, name
        [args] = [args for script, args in commands if script == "baselines.py" and args["method"] is not None]
        assert (args["method"], args["set"]) == (str(mine), [("n", "3")])
        assert "/ranked/" in args["inputs_addr"][0] and Path(args["output_addr"][0]).name.startswith("mine")


def test_the_tables_judge_may_differ_from_the_one_that_rewards(commands_of):
    more = {"CATEGORIES": SOCIETY, "MODELS": "my/model", "ROUNDS": 1, "TABLE_JUDGE": "other/judge", "JUDGE": "my/judge"}
    commands = [parse(words) for words in commands_of("beyond", METHODS="none offline_rl rubric_best", **more)]
    by_judge = {"my/judge": [], "other/judge": []}
    for script, args in commands:
        if script == "evaluate_responses.py":
            by_judge[args["evaluator_llm"]] += [Path(path).name for path in args["score_addr"]]
    assert by_judge["my/judge"] == ["samples_scores.json", "validation_scores.json"]
    table = [f"{name}_scores_judge.json" for name in ("none", "offline_rl", "rubric_best")]
    assert by_judge["other/judge"] == ["rubric_scores.json", *table]
    assert commands[-1][1]["system"][0][1].endswith("none_scores_judge.json")


def test_a_second_table_judges_the_same_answers_directly(commands_of):
    more = {"CATEGORIES": SOCIETY, "MODELS": "my/model", "OPENAI_MODELS": "", "METHODS": "none"}
    runs = {}
    for strategy in ("aspect", "direct"):
        runs[strategy] = dict(map(parse, commands_of("table2", **more, TABLE_STRATEGY=strategy)))
    of_aspects, direct = (run["evaluate_responses.py"] for run in runs.values())
    assert (of_aspects["strategy"], direct["strategy"]) == ("aspect", "direct")
    assert direct["response_addr"] == of_aspects["response_addr"]
    assert direct["score_addr"] == [
        path.replace("_scores.json", "_scores_direct.json") for path in of_aspects["score_addr"]
    ]
    assert runs["direct"]["utils/make_table.py"]["output_addr"].endswith("table2_direct.md")
    assert runs["direct"]["utils/make_table.py"]["system"] == [["No personalization", *direct["score_addr"]]]


def test_a_method_of_ones_own_is_trained_in_its_role(commands_of, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("")
    more = {
        "METHOD": mine,
        "CATEGORIES": SOCIETY,
        "MODELS": "my/model",
        "ROUNDS": 2,
        "N": 3,
        "METHOD_FLAGS": "--set n=3",
    }
    commands = [parse(words) for words in commands_of("rl", ROLE="search", REWARD="--length_weight -0.1", **more)]
    folder = f"{tmp_path}/out/model/train/{SOCIETY}/mine_rl"
    samples = [args for _, args in commands if args.get("trace")]
    policies = ["my/model", f"{folder}/round_1/policy/last"]
    assert [args["model"] for args in samples] == [[("search", policy, {})] for policy in policies]
    assert all(args["model_addr"] == "my/model" and args["set"] == [("n", "3")] for args in samples)
    assert [args["temperature"] for args in samples] == [1, 1]
    trained = [args for script, args in commands if script == "utils/train_generator.py"]
    assert [args["model_addr"] for args in trained] == policies
    assert all(args["role"] == "search" and args["score_addr"].endswith("/samples_rewards.json") for args in trained)
    [table] = [args for script, args in commands if script == "utils/rounds_table.py"]
    assert [paths[1] for paths in table["round_files"]] == [args["score_addr"] for args in trained]
    assert table["output_addr"] == f"{folder}/rounds.md"
    names = ["No personalization", "RAG (asker's profile)", "mine, untrained", "mine, trained"]
    assert [system[0] for system in commands[-1][1]["system"]] == names
    answers = [
        args for _, args in commands if (args.get("output_addr") or [""])[0].endswith(("/mine.json", "/mine_rl.json"))
    ]
    assert [args["model"] for args in answers] == [[("search", path, {})] for path in ("my/model", f"{folder}/best")]
    # Without ROLE, the command's own model learns.
    samples = [args for _, args in map(parse, commands_of("rl", **more)) if args.get("trace")]
    assert [(args["model"], args["model_addr"]) for args in samples] == [(None, policy) for policy in policies]
    for name in ("planner.py", "offline.py", "nope.py"):
        if name != "nope.py":
            (tmp_path / name).write_text("")
        done = study("rl", METHOD=tmp_path / name, OUT=tmp_path / "x")
        assert done.returncode == 2 and done.stderr.startswith(f"error: METHOD={tmp_path}/{name}: ")
    assert study("rl", OUT=tmp_path / "x").stderr.startswith("error: METHOD=: must be the file of a method")
    (tmp_path / "mine.py").touch()
    done = study("rl", METHOD=tmp_path / "mine.py", OUT=tmp_path / "x", REWARD="--own 1 --own_addr no.py --score 0")
    assert (done.returncode, done.stderr) == (2, "error: REWARD: --own_addr no.py: no such file\n")


@pytest.mark.slow
def test_a_study_with_a_method_of_ones_own_ends_with_its_table(small, server, tmp_path):
    """On files of one's own, which are named after their category."""
    mine = tmp_path / "mine.py"
    mine.write_text('async def answer(record, ask):\n    return await ask("rag", items=record.best(2))\n')
    for split in ("train", "validation", "test"):
        (tmp_path / f"data/{SOCIETY}_{split}.json").rename(tmp_path / f"data/forum_{split}.json")
    server.reply = usable_reply
    own = small | {"METHODS": f"none {mine}", "CATEGORIES": "forum", "ENCODER": save_tiny_encoder(tmp_path / "encoder")}
    done = study("table2", **own)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "out/tiny/test/table2.md"
    assert done.stdout.endswith(f"\n\n{path.read_text().rstrip()}\n{path}\n")
    assert re.findall(r"^\| \**([^|*]+?)\** \|", path.read_text(), re.MULTILINE)[1:] == ["No personalization", "mine"]
    printed = study("table2", DRY_RUN=1, **own).stdout
    assert str(path) not in printed.rpartition("counted: ")[2]


@pytest.mark.parametrize("name", ["table2", "lamp", "offline_rl"])
def test_prices_reach_models_behind_an_api_alone(commands_of, name):
    priced = {"ANSWER_FLAGS": "--price_in 0.15 --max_tokens 9 --price_out=0.6", "PLANPERS_FLAGS": "--price_cached 0.07"}
    models = {"MODELS": "my/model", "OPENAI_MODELS": "gpt"}
    answered = [
        parse(words)[1] for words in commands_of(name, **priced, **models) if words[0].startswith(("base", "planp"))
    ]
    for args in answered:
        assert args["price_in"] == (0.15 if args["openai"] else None) and args["max_tokens"] in (9, 2048)
        assert args["price_cached"] in ((0.07, None) if args["openai"] else (None,))
    assert {args["openai"] for args in answered} == ({False} if name == "offline_rl" else {False, True})


def test_slashes_at_the_end_name_nothing_else(commands_of, tmp_path):
    plain = commands_of("figure3", MODELS="models/my")
    assert commands_of("figure3", MODELS="models/my/", OUT=f"{tmp_path}/out/") == plain


# Whole studies, which ask a server on this machine


@pytest.fixture
def server():
    with serve() as server:
        yield server


@pytest.fixture
def small(tmp_path, server):
    """Variables of a study of LaMP-QA's sample in one category; the planner is trained, its plans are the server's."""
    (tmp_path / "data").mkdir()
    for split in ("train", "validation", "test"):
        records = read_dataset(SAMPLE / f"{split}.json")
        records = [record for record in records if COMMUNITIES[record["category"]] == "Society & Culture"]
        (tmp_path / f"data/{SOCIETY}_{split}.json").write_text(json.dumps(records[:4]))
    (tmp_path / "key.txt").write_text("sk-test")
    api = f"--openai --api_key_addr {tmp_path}/key.txt"
    return {
        "DATA": tmp_path / "data", "OUT": tmp_path / "out", "CATEGORIES": SOCIETY, "MODELS": "",
        "OPENAI_MODELS": "tiny", "KEY": tmp_path / "key.txt", "ENCODER": ROOT / "demo/models/encoder",
        "JUDGE_FLAGS": api, "PLANNER_BASE": tmp_path / "chat", "OPENAI_BASE_URL": server.url,
        "TRAIN_FLAGS": "--max_steps 1 --num_contexts 1 --gradient_accumulation_steps 1 --eval_generate 0",
        "PLANPERS_FLAGS": f"--planner_model plans --planner_base_url {server.url} --planner_api_key_addr "
        f"{tmp_path}/key.txt",
    }  # fmt: skip


def outputs(folder):
    """What the outputs hold, without the files that tell of the run."""
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.json")}
    return {name: content for name, content in contents.items() if not name.endswith(".manifest.json")}


def usable_reply(request):
    """Answer as the server does by default, but never unusably, and in about 400 tokens."""
    text = default_reply({**request, "seed": None}).text
    filled = " ".join(["a line of words that fills an answer"] * 45)
    return Reply(text.replace("Answer ", f"{filled} ") if "personalized_answer" in text else text)


def total_of(stdout):
    """Return a dry run's sums: requests, prompt tokens, dollars, and how many steps wait."""
    [line] = re.findall(r"^counted: .*", stdout, re.MULTILINE)
    form = r"counted: (\d+) requests, (\d+) prompt tokens(?:, (.+) to (.+) USD without retries)?(?:; .*: (\d+))?"
    return [float(number or 0) for number in re.fullmatch(form, line).groups()]


def test_a_dry_run_counts_what_the_run_asks(small, server, tmp_path):
    """Requests, prompt tokens and dollars; and the same command makes nothing again."""
    server.reply = usable_reply
    small |= {"METHODS": "none", "ANSWER_FLAGS": "--price_in 1 --price_out 1000"}
    requests, tokens, least, most, waiting = total_of(study("table2", DRY_RUN=1, **small).stdout)
    assert (requests, waiting, server.requests) == (4, 1, [])  # the judge waits
    assert study("table2", **small).returncode == 0
    asked = [request["messages"] for request in server.requests]
    asked = [messages for messages in asked if "match_score" not in text_of(messages[0])]
    assert (len(asked), tokens) == (4, sum(map(APIChat("tiny").length, asked)))
    assert (least, most) == pytest.approx((tokens / 1e6, tokens / 1e6 + 4 * 2048 * 1000 / 1e6), abs=1e-4)
    before, number = outputs(tmp_path / "out"), len(server.requests)
    again = study("table2", **small)
    assert again.stdout.count("already finished; skipped") == 2
    assert len(server.requests) == number and outputs(tmp_path / "out") == before


@pytest.mark.long
@pytest.mark.slow
def test_a_dry_run_of_table_2_counts_what_the_run_asks(small, server, tmp_path):
    """As far as inputs are made. Both sides count tokens as the scripts do for a model without a known tokenizer."""
    save_tiny_chat(tmp_path / "chat")
    server.reply = usable_reply
    small |= {"ANSWER_FLAGS": "--price_in 1 --price_out 1000"}
    done = study("table2", DRY_RUN=1, **small)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "out").exists() and server.requests == []
    assert len(re.findall(r"^\$ ", done.stdout, re.MULTILINE)) == 4 + 1 + 4 + 1 + 1
    assert f"waits for planner/{SOCIETY}, ranked/{SOCIETY}_test: not counted\n" in done.stdout
    assert "no such file" not in done.stderr
    first = total_of(done.stdout)
    assert (first[0], first[-1]) == (4, 5)  # without a profile; not the planner, three other methods and the judge

    def run(**more):
        """Run the study, and return the prompt tokens of each answer and plan."""
        before = len(server.requests)
        done = study("table2", **small | more)
        assert done.returncode == 0, done.stderr
        asked = [request["messages"] for request in server.requests[before:]]
        asked = [messages for messages in asked if "match_score" not in text_of(messages[0])]
        return list(map(APIChat("tiny").length, asked))

    assert first[1] == sum(run(METHODS="none"))
    assert first[2:4] == pytest.approx([first[1] / 1e6, first[1] / 1e6 + 4 * 2048 * 1000 / 1e6], abs=1e-4)
    run()

    # The table is made, and the same command makes nothing again.
    table = (tmp_path / "out/tiny/test/table2.md").read_text()
    rows = [line.split(" | ")[0] for line in table.replace("**", "").splitlines()[2:6]]
    assert rows == ["| No personalization", "| RAG (random profile)", "| RAG (asker's profile)", "| PlanPers"]
    before, requests = outputs(tmp_path / "out"), len(server.requests)
    again = study("table2", **small)
    assert again.returncode == 0, again.stderr
    # Rankings, the planner, plans, answers and scores.
    assert again.stdout.count("already finished; skipped") == 4 + 1 + 1 + 4 + 4
    assert len(server.requests) == requests and outputs(tmp_path / "out") == before
    assert (tmp_path / "out/tiny/test/table2.md").read_text() == table

    # With another seed: plans and answers, for which everything is made, and the judge, who waits for them.
    second = total_of(study("table2", DRY_RUN=1, SEEDS="0 1", **small).stdout)
    assert (second[0], second[-1]) == (4 * 4 + 4, 1)
    lengths = run(SEEDS="0 1")
    assert len(lengths) == second[0] and second[1] == pytest.approx(sum(lengths), rel=0.02)  # plans of five aspects


@pytest.mark.parametrize("name", STUDIES)
def test_the_table_of_the_docs_counts_what_the_commands_ask(commands_of, tmp_path, name):
    """Per question of each split: how often it is answered, with how many posts, and how often that is judged."""
    if f"{name}.sh" not in study_costs.STUDIES:
        assert name in ("beyond", "bespoke", "rl", "lamp", "lamp_flant5", "longlamp")
        return
    asked, judged, samples = Counter(), Counter(), {}  # samples of a question by response file
    for script, args in map(parse, commands_of(name)):
        split = re.search(r"_(train|validation|test)[_.]", str(args.get("inputs_addr")))
        if script in ("baselines.py", "planpers.py") and "/plain" not in args["output_addr"][0]:
            asked[split[1]] += args["num_generated_outputs"] / 3
            samples[args["output_addr"][0]] = args["num_generated_outputs"]
        elif script == "evaluate_responses.py":
            files = args["response_addr"]
            judged[split[1]] += sum(samples[path] for path in files) / 3 if args["samples"] else len(files) / 3
    systems = study_costs.STUDIES[f"{name}.sh"]
    of_round = {"train": 24_333 / 3000} if name in ("grasp", "pr2", "iap", "planner_rl") else {}
    for counted, field in ((asked, "asked"), (judged, "judged")):
        told = Counter()
        for system in systems:
            told[system.split] += getattr(system, field) * of_round.get(system.split, 1)
        if field == "asked" and name in ("vac", "pr2", "iap"):  # their answers take several calls
            told["train"] = counted["train"]
        assert dict(told) == pytest.approx(dict(counted)), field


def test_the_table_of_the_docs_by_hand():
    printed = subprocess.run([sys.executable, "utils/study_costs.py"], cwd=ROOT, capture_output=True, text=True).stdout
    assert printed in (ROOT / "docs/studies_and_slurm.md").read_text()
    verdicts = 767 * 4.6 + 989 * 5.1 + 1074 * 4.8
    assert "| `figure3.sh` | 35,900 | 27,500 |" in printed and 3 * 2830 + 2 * verdicts == pytest.approx(35_944.6)
    requests, judged, _, written, _ = study_costs.cost_of(study_costs.System("planpers"))
    assert (requests, judged) == pytest.approx((2 * 2830 + verdicts, verdicts))
    assert written == pytest.approx(2830 * 450 + 15 * verdicts)
    none = study_costs.cost_of(study_costs.System("none", paid=1, judged=0))
    words = len((ROOT / "prompts/lampqa/no_personalization.txt").read_text().split())
    tokens = (767 * (words + 10) + 989 * (words + 11.6) + 1074 * (words + 12.9)) * 4 / 3
    assert none == pytest.approx((2830, 0, tokens, 2830 * 400, (tokens * 0.15 + 2830 * 400 * 0.6) / 1e6))


@pytest.mark.slow
def test_lamp_is_scored_by_each_metric_of_its_tasks(small, tmp_path):
    for task in ("LaMP-3", "LaMP-4"):
        get = ["--dataset", task, "--source_dir", "tests/data/mini_lamp", "--output_dir", str(tmp_path / "data")]
        assert download_datasets.main(get) == 0
    own = {"TASKS": "LaMP-3 LaMP-4", "SETTINGS": "user", "RANKERS": "bm25-okapi", "POSTS": "1", "PAPER": ""}
    done = study("lamp", **small | own)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "out/tiny/user_dev/lamp.md").read_text()
    for column in ("3, MAE", "3, RMSE", "4, rouge-1", "4, rouge-L"):
        assert f"LaMP-{column}" in table.splitlines()[0]
    rows = [line.split(" | ")[0] for line in table.replace("**", "").splitlines()[2:4]]
    assert rows == ["| No personalization", "| BM25, k = 1"]


def test_a_study_of_lamp_without_rankers_compares_nothing(commands_of):
    tables = [words for words in commands_of("lamp", RANKERS="", SETTINGS="user", TASKS="LaMP-3")
              if "utils/make_table.py" in words]  # fmt: skip
    assert len(tables) == 1 and "--system" in tables[0] and "--baseline" not in tables[0]


# SLURM


@pytest.mark.parametrize("name", STUDIES)
def test_every_job_waits_for_those_that_make_what_it_reads(commands_of, tmp_path, name):
    (tmp_path / "mine.py").write_text("")
    more = {"HUMANS": "people.json", "METHOD": tmp_path / "mine.py"}
    jobs = commands_of(name, SBATCH="--partition=gpu --gres=gpu:a100:1", **more)
    makers: dict[str, int] = {}
    for number, words in enumerate(jobs, 1):
        place = words.index("utils/slurm/job.sbatch")
        options, (script, args) = words[:place], parse(words[place + 1 :])
        waits = next(word for word in options if word.startswith("--dependency=")).removeprefix("--dependency=")
        assert waits.endswith("singleton")
        ids = set(map(int, re.findall(r"\d+", waits)))
        assert {makers[path] for path in files(args, READ) if path in makers} <= ids
        needs_none = (args.get("openai") and not args.get("planner_model")) or script.startswith("utils/make")
        needs_none = needs_none or (script == "evaluate_responses.py" and args["evaluator_llm"] is None)
        needs_none = needs_none or script.startswith(("utils/select", "utils/combine", "utils/draw", "utils/rounds"))
        needs_none = needs_none or args.get("ranker") in ("random", "bm25-okapi", "recency")
        needs_none = needs_none or script == "utils/train_ranker.py"
        gpus = [word for word in options if word.startswith("--gres=")]
        assert gpus[-1] == ("--gres=none" if needs_none or "compare_evaluators" in script else "--gres=gpu:a100:1")
        makers |= dict.fromkeys(files(args, MADE), number)
    names = [next(word for word in words if word.startswith("--job-name=")) for words in jobs]
    assert len(jobs) == len(set(names)) == COUNTS[name] and not any("/" in name for name in names)
    assert (tmp_path / "out/logs").is_dir()


@pytest.mark.parametrize("printed", ["", "  Welcome!\\n--> Verifying ...OK\\n\\n", "2 jobs of yours wait\\n"])
@pytest.mark.parametrize("cluster", ["", ";west"])
def test_a_jobs_id_is_the_last_line_that_sbatch_prints(commands_of, tmp_path, printed, cluster):
    count = "$(tr -dc '\\1' < $WORDS | wc -c)"
    (tmp_path / "sbatch").write_text(f"{PRINT}printf '{printed}'; echo \"{count}{cluster}\"\n")
    jobs = commands_of("random_profiles", SBATCH="")
    waits = [word for words in jobs for word in words if word.startswith("--dependency=")]
    assert "--dependency=singleton" in waits and "--dependency=afterok:1,singleton" in waits
    assert all(re.fullmatch(r"--dependency=(afterok(:\d+)+,)?singleton", word) for word in waits)


@pytest.mark.parametrize("last", ["Submitted batch job", "--> See you soon"])
def test_a_study_ends_where_sbatch_prints_no_id(commands_of, tmp_path, last):
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\necho 7\necho '{last}'\n")
    done = study("random_profiles", OUT=tmp_path / "out", SBATCH="", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 2 and done.stderr == f"error: sbatch printed no job id, but: {last}\n"


def test_a_dry_run_submits_nothing_and_hides_passwords(commands_of, tmp_path):
    url = "http://me:cret@127.0.0.1:1/v1"
    flags = {"ANSWER_FLAGS": f"--planner_base_url {url}", "DATA": tmp_path}
    done = study("figure3", OUT=tmp_path / "out", SBATCH="", DRY_RUN=1, **flags)
    assert done.returncode == 2  # there are no data
    assert done.stdout.count("$ sbatch --parsable ") == COUNTS["figure3"]
    assert done.stdout.endswith("\ncounted: 0 requests, 0 prompt tokens; steps that wait for others, not counted: 12\n")
    assert "http://127.0.0.1:1/v1" in done.stdout and "cret" not in done.stdout
    assert not (tmp_path / "out").exists()


def test_a_step_that_fails_ends_the_study(small, server):
    server.reply = lambda request: Reply("no", status=401)
    done = study("random_profiles", **small)
    assert done.returncode == 2 and "evaluate_responses.py" not in done.stdout
    end = f"tiny/test/{SOCIETY}/rag_random ended with exit code 2; run the study again to resume"
    assert done.stderr.splitlines()[-1] == end


# After PlanPers


def test_dpo_shares_the_first_samples_and_nothing_else_with_offline_rl(commands_of, tmp_path):
    made = []
    for objective in ("sft", "dpo"):
        commands = [parse(words) for words in commands_of("offline_rl", OBJECTIVE=objective)]
        for _, args in commands:
            assert (args.get("worst_addr") is None) or args.get("objective") in (None, "dpo")
        paths = {path for _, args in commands for path in files(args, MADE) if "/train/" in path}
        made.append({path for path in paths if "/rag/" not in path})
        assert any(path.endswith("/rag/samples.json") for path in paths)
        table = commands[-1][1]
        assert table["system"][-1][0] == {"sft": "Offline RL", "dpo": "DPO"}[objective]
    assert len(made[0]) == len(made[1]) and not made[0] & made[1]
    assert study("offline_rl", OUT=tmp_path, OBJECTIVE="ppo").stderr == "error: OBJECTIVE=ppo: must be sft or dpo\n"


def test_the_planners_flags_are_not_the_policies(commands_of):
    flags = {"TRAIN_FLAGS": "--eval_generate 7", "LEARN_FLAGS": "--epochs 5"}
    for script, args in map(parse, commands_of("beyond", **flags)):
        assert script != "train_planner.py" or args["eval_generate"] == 7
        assert script != "utils/train_generator.py" or args["epochs"] == 5


def test_the_upper_bound_has_one_row_however_many_seeds(commands_of, tmp_path):
    commands = [parse(words)[1] for words in commands_of("beyond", SEEDS="0 1")]
    made = {path for args in commands for path in files(args, MADE)}
    assert {path for path in files(commands[-1], READ) if path.startswith(str(tmp_path))} <= made
    assert [name for name, *_ in commands[-1]["system"]][-4:] == [
        "PlanPers (planner by RL), seed 0",
        "PlanPers (planner by RL), seed 1",
        "Best of 16 by a ranker",
        "Best of 16 by the rubric",
    ]
    assert ["GRASP", "GRASP, seed 0", "GRASP, seed 1"] in commands[-1]["seeds"]


def test_the_upper_bound_is_chosen_by_the_metric_of_the_table(commands_of):
    """Only training samples may be judged in the cheaper way."""
    judged = [parse(words)[1] for words in commands_of("beyond", STRATEGY="direct") if words[0].startswith("evaluate")]
    of = {name: [args for args in judged if name in args["response_addr"][0]] for name in ("/rubric", "/train/")}
    assert {args["strategy"] for args in of["/rubric"]} == {"aspect"}
    assert {args["strategy"] for args in of["/train/"] if args["samples"]} == {"direct"}


def test_all_questions_are_drawn_before_any_is_drawn_again(tmp_path):
    ids = [record["id"] for record in read_dataset(SAMPLE / "train.json")]
    ranked, drawn, size = tmp_path / "ranked.json", [], len(ids) // 2 + 1
    words = ["--input_dataset_addr", str(SAMPLE / "train.json"), "--output_dataset_addr", str(ranked)]
    assert rank_dataset.main([*words, "--ranker", "recency"]) == 0

    def draw(number, size=size):
        words = ["--input_dataset_addr", ranked, "--questions_per_round", size, "--round", number]
        words += ["--output_dataset_addr", tmp_path / f"{number}.json"]
        assert draw_questions.main(list(map(str, words))) == 0

    for number in (1, 2):
        draw(number)
        drawn += [record["id"] for record in read_dataset(tmp_path / f"{number}.json")]
        refuse_unranked(tmp_path / f"{number}.json", unranked=False)
    assert len(drawn) == 2 * size and {*drawn} == {*ids} and drawn[:size] != ids[:size]
    made = (tmp_path / "1.json.manifest.json").read_bytes()
    draw(1)
    assert (tmp_path / "1.json.manifest.json").read_bytes() == made
    with pytest.raises(
        UserError, match=rf"1\.json: was made with other settings: drawn: questions_per_round: {size}, now 2"
    ):
        draw(1, 2)
    with pytest.raises(UserError, match=f"has only {len(ids)} questions"):
        draw(3, len(ids) + 1)


def test_drawn_questions_keep_their_histories_in_another_folder(tmp_path):
    source = str(SAMPLE.parent / "mini_personamem")
    words = ["--dataset", "PersonaMem-32k", "--source_dir", source, "--output_dir", str(tmp_path)]
    assert download_datasets.main(words) == 0
    whole = {record["id"]: record for record in read_dataset(tmp_path / "PersonaMem_32k.json", ["profile"])}
    (tmp_path / "rounds").mkdir()
    drawn = tmp_path / "rounds/1.json"
    words = ["--input_dataset_addr", tmp_path / "PersonaMem_32k.json", "--output_dataset_addr", drawn]
    assert draw_questions.main(list(map(str, [*words, "--questions_per_round", 5]))) == 0
    records = read_dataset(drawn, ["profile"])
    assert len(records) == 5
    for record in records:
        assert [*record["profile"]] == [*whole[record["id"]]["profile"]]


@pytest.fixture
def trained(small, tmp_path):
    """The same sample for a policy that is trained here, on few and short texts."""
    save_tiny_chat(tmp_path / "chat", max_positions=8192)
    for path in (tmp_path / "data").glob("*.json"):
        records = json.loads(path.read_text())
        for record in records:
            record["profile"] = [{**post, "text": post["text"][:200]} for post in record["profile"][:2]]
        path.write_text(json.dumps(records))
    flags = "--max_tokens 48 --max_model_len 4096"
    return small | {
        "MODELS": tmp_path / "chat", "OPENAI_MODELS": "", "JUDGE": "judge", "LORA": "4", "TAU": "0",
        "LEARN_FLAGS": "--gradient_accumulation_steps 2 --max_target_length 16", "SAMPLE_FLAGS": flags,
        "ANSWER_FLAGS": flags,
    }  # fmt: skip


@pytest.mark.long
def test_a_dry_run_names_the_steps_that_make_what_is_missing(trained, tmp_path):
    """A trained model in its folder, samples and the trace of their calls too; what a step makes is not missing."""
    done = study("planner_rl", DRY_RUN=1, N=3, ROUNDS=1, **trained)
    assert done.returncode == 0 and "error" not in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()
    blocks = [block.split("\n") for block in done.stdout.split("\n# ")[1:]]
    waits = {name.partition(", after")[0]: last for name, _, last, *_ in blocks}
    folder = f"chat/train/{SOCIETY}/planner_rl"
    assert waits[f"ranked/{SOCIETY}_train"].startswith("4 questions with ")
    name, drawn = f"{folder}/round_1/samples", f"ranked/{SOCIETY}_train_round_1"
    assert waits[name] == f"waits for planner/{SOCIETY}, {drawn}: not counted"
    scores = ", ".join(f"{name}{end}" for end in ("", "_scores"))
    assert waits[f"{folder}/round_1/policy"] == f"waits for planner/{SOCIETY}, {drawn}, {scores}: not counted"
    assert waits[f"chat/test/{SOCIETY}/planner_rl"] == f"waits for {folder}/best, ranked/{SOCIETY}_test: not counted"


def test_a_dry_run_without_the_data_names_each_mistake_and_goes_on(trained, tmp_path):
    """At the end each once, with the number of steps that have it, also a model that only waiting steps need."""
    lacking = {"DATA": tmp_path / "nothing", "JUDGE": "no/judge", "JUDGE_FLAGS": "", "HF_HUB_OFFLINE": 1}
    done = study("grasp", DRY_RUN=1, **trained | lacking)
    reasons = re.findall(r"\n\d+ step\(s\): (.*)", done.stderr)
    assert len(reasons) == len(set(reasons)) and reasons[-1].startswith("no/judge: no such folder")
    assert f"{tmp_path}/nothing/{SOCIETY}_train.json: no such file" in reasons
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"error: {tmp_path}/nothing/{SOCIETY}_train.json: no such file\n" in done.stderr
    assert "# chat/train/" in done.stdout and "/grasp/best, after" in done.stdout
    assert total_of(done.stdout)[:4] == [0, 0, 0, 0]


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.slow
def test_grasp_is_run_from_ranking_to_its_row(trained, server, tmp_path):
    """With vLLM and a training; the teacher's prompt alone shows the rubric, and a second run makes nothing."""
    done = study("grasp", GRASP_ROUNDS=1, **trained)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "out/chat/test/grasp_judge.md").read_text()
    assert [line.split(" | ")[0] for line in table.replace("**", "").splitlines()[2:5]][-1] == "| GRASP"
    assert "- GRASP: saw narrative, rubric_aspects in training." in table and "RAG (asker's profile): saw" not in table
    before, num_requests = outputs(tmp_path / "out"), len(server.requests)
    again = study("grasp", GRASP_ROUNDS=1, **trained)
    assert again.returncode == 0, again.stderr
    assert len(server.requests) == num_requests and outputs(tmp_path / "out") == before
    assert (tmp_path / "out/chat/test/grasp_judge.md").read_text() == table


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.slow
def test_a_ranker_is_run_from_ranking_to_its_row(trained, server, tmp_path):
    """With vLLM's states; a second run makes nothing."""
    done = study("ranker", N=3, **trained)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "out/chat/test/ranker_judge.md").read_text()
    assert [line.split(" | ")[0] for line in table.splitlines()[2:5]][-1] == "| Best of 3 by a ranker (best by ranker)"
    assert "saw narrative, rubric_aspects in training." in table and "bound" not in table
    before, num_requests = outputs(tmp_path / "out"), len(server.requests)
    again = study("ranker", N=3, **trained)
    assert again.returncode == 0, again.stderr
    assert len(server.requests) == num_requests and outputs(tmp_path / "out") == before
