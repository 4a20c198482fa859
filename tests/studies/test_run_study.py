"""utils/run_study.py: what a study stands for, what of it is up to date, and whole studies that run, stop and go on."""

import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from io import StringIO
from itertools import product
from pathlib import Path

import pytest
from api_server import Reply, default_reply, serve
from slurm_cluster import start_cluster
from test_slurm import clean_environment, on_a_cluster, read_jobs, recorder, submit  # noqa: F401 (a fixture)
from tiny_chat import sample_records, save_tiny_chat
from tiny_encoder import save_tiny_encoder
from zygote import ServerPlanner

import baselines
from utils import run_study
from utils.benchmarks.lampqa import CATEGORIES as TITLES
from utils.benchmarks.lampqa import COMMUNITIES
from utils.cli import UserError
from utils.files.journal import Journal
from utils.files.journal_lines import read_journal
from utils.files.manifest import read_folder_manifest, read_manifest, write_folder_manifest
from utils.records.datasets import read_dataset
from utils.studies.jobs import make_jobs, prefetch_command
from utils.studies.plan import Answers, answer_step, plan_study, train_step
from utils.studies.state import differing_settings, find_pending, parser_of
from utils.studies.study import ARGUMENTS, CATEGORIES, SLURM, Study, read_study

ROOT = Path(__file__).resolve().parents[2]
STUDIES = sorted((ROOT / "utils/studies").glob("*.toml"))
SAMPLE = ROOT / "tests/data/mini_lampqa"
ART, LIFE, SOCIETY = CATEGORIES


def write_study(folder, text, name="study.toml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def study_of(folder, text=""):
    return read_study(write_study(folder, text))


# The file


def test_an_empty_study_is_the_papers_table_2_for_one_model(tmp_path):
    study = study_of(tmp_path)
    assert study.models == ("Qwen/Qwen2.5-7B-Instruct",) and study.openai_models == ()
    assert study.methods == ("none", "rag_random", "rag", "planpers")
    assert (study.num_contexts, study.seeds, study.splits, study.categories) == ((10,), (0,), ("test",), CATEGORIES)
    assert study.judges == ("Qwen/Qwen2.5-32B-Instruct",)
    assert study.arguments == {"rank": [], "train": [], "answer": [], "planpers": [], "judge": []}


def test_the_categories_are_the_datasets():
    files = json.loads((ROOT / "utils/benchmarks/lampqa_table1.json").read_text())["files"]
    assert set(files) == {f"{category}_{split}" for category in CATEGORIES for split in ("train", "validation", "test")}


def test_slurms_defaults_are_those_of_submit_table2():
    text = (ROOT / "utils/slurm/submit_table2.sh").read_text()
    for key, value in SLURM.items():
        found = re.search(rf"^{key.upper()}=\$\{{{key.upper()}:-(.*?)\}}", text, re.MULTILINE)[1]
        assert found == (str(value) if isinstance(value, int) else " ".join(value))


def test_only_api_models(tmp_path):
    assert study_of(tmp_path, 'openai_models = ["gpt-4o-mini"]').models == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modles = ['m']", "key: there is no 'modles'; did you mean 'models'?"),
        ("num_context = [4]", "key: there is no 'num_context'; did you mean 'num_contexts'?"),
        ("path = 'p'", "key: there is no 'path'; did you mean 'data'?"),
        ("methods = ['rag', 'planper']", "methods: there is no 'planper'; did you mean 'planpers'?"),
        ("categories = ['Society']", "categories: there is no 'Society'; did you mean 'Society_and_Culture'?"),
        ("splits = ['tests']", "splits: there is no 'tests'; did you mean 'test'?"),
        ("data = 3", "data: found 3, expected a text"),
        ("output = ' '", "output: found ' ', expected a text"),
        ("models = 'm'", "models: found 'm', expected a list of texts"),
        ("models = []", "models: found [], expected a list of texts"),
        ("openai_models = []", "openai_models: found [], expected a list of texts"),
        ("models = ['m', 3]", "models, item 2: found 3, expected a text"),
        ("methods = ['rag', 'rag']", "methods: found 'rag twice', expected every item once"),
        ("num_contexts = 4", "num_contexts: found 4, expected a list of whole numbers from 0 up"),
        ("num_contexts = [4, '6']", "num_contexts, item 2: found '6', expected a whole number from 0 up"),
        ("num_contexts = [true, 2]", "num_contexts, item 1: found True, expected a whole number from 0 up"),
        ("num_contexts = [-1, 2]", "num_contexts, item 1: found -1, expected a whole number from 0 up"),
        ("seeds = [0, 0]", "seeds: found '0 twice', expected every item once"),
        ("seeds = [0.5, 1]", "seeds, item 1: found 0.5, expected a whole number from 0 up"),
        ("models = ['a/m', 'b/m']", "models: found 'a/m', expected one model named m: its files bear that name"),
        ("models = ['m']\nopenai_models = ['x/m']", "models: found 'm', expected one model named m"),
        ("judges = ['a/j', 'b/j']", "judges: found 'a/j', expected one model named j: its files bear that name"),
        ("judges = ['j']\nopenai_judges = ['x/j']", "judges: found 'j', expected one model named j: its files bear"),
        ("openai_judges = 'j'", "openai_judges: found 'j', expected a list of texts"),
        ("figure = 5", "figure: found 5, expected one of the figures 2, 3, 4 and 16, as a number"),
        ("figure = '2'", "figure: found '2', expected one of the figures 2, 3, 4 and 16, as a number"),
        ("figure = 3", "methods: found ['none', 'rag_random', 'rag', 'planpers'], expected 'planpers_gold' among them"),
        ("figure = 2", "num_contexts: found [10], expected two or more: figure 2 shows them"),
        ("figure = 4", "judges: found ['Qwen/Qwen2.5-32B-Instruct'], expected two or more: figure 4 shows them"),
        ("figure = 2\nnum_contexts = [0, 2]\nseeds = [0, 1]", "seeds: found [0, 1], expected one: a figure shows one"),
        ("human_addr = 'h.json'", "human_addr: found 'h.json', expected it only with figure = 4"),
        ("arguments = ['--limit']", "arguments: found ['--limit'], expected a table of lists"),
        ("[arguments]\nranks = []", "arguments: there is no 'ranks'; did you mean 'rank'?"),
        (
            "[arguments]\nrank = '--ranker bm25'",
            "arguments.rank: found '--ranker bm25', expected a list of texts, such",
        ),
        ("[arguments]\nanswer = ['--max_tokens', 9]", "arguments.answer: found ['--max_tokens', 9], expected a list"),
        ("unscored_as_zero = 1", "unscored_as_zero: found 1, expected true or false"),
        ("[slurm]\nshards = 2", "slurm: there is no 'shards'; did you mean 'judge_shards'?"),
        ("[slurm]\njudge_shards = 0", "slurm.judge_shards: found 0, expected a number from 1 up"),
        (
            "[slurm]\nsbatch_args = '--account=lab'",
            "slurm.sbatch_args: found '--account=lab', expected a list of texts",
        ),
        ("models = [", "not TOML: "),
    ],
)
def test_a_mistake_in_the_file_is_named_in_one_line(tmp_path, capsys, text, message):
    path = write_study(tmp_path, text)
    with pytest.raises(UserError) as refused:
        run_study.main(["--study_addr", path])
    assert str(refused.value).startswith(f"{path}: {message}") and "\n" not in str(refused.value)
    assert [one.name for one in tmp_path.iterdir()] == ["study.toml"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            'answer = ["--temprature", "1"]',
            "arguments, baselines.py: unrecognized arguments: --temprature; did you mean --temperature?",
        ),
        ('answer = ["--temperature", "hot"]', "arguments, baselines.py: argument --temperature: invalid"),
        ('answer = ["--max_tokens_plan", "9"]', "arguments, baselines.py: unrecognized arguments"),
        ('planpers = ["--top"]', "arguments, planpers.py: unrecognized arguments: --top"),
        ('answer = ["--seed", "3"]', "arguments, baselines.py: found '--seed', expected none of the flags"),
        ('answer = ["--num_contexts=3"]', "arguments, baselines.py: found '--num_contexts=3', expected none of"),
        ('answer = ["--limit", "3"]', "arguments, baselines.py: found '--limit', expected none of the flags"),
        ('judge = ["--strategy", "direct"]', "arguments, evaluate_responses.py: found '--strategy', expected none"),
        ('judge = ["--score_addr", "x"]', "arguments, evaluate_responses.py: found '--score_addr', expected none"),
        ('rank = ["--help"]', "arguments, rank_dataset.py: found '--help', expected none of the flags"),
        ('train = ["--output_dir", "x"]', "arguments, train_planner.py: found '--output_dir', expected none"),
    ],
)
def test_flags_that_a_script_does_not_take_or_the_study_sets_are_refused(tmp_path, arguments, message):
    path = write_study(tmp_path, f"[arguments]\n{arguments}\n")
    with pytest.raises(UserError) as refused:
        run_study.main(["--study_addr", path, "--dry_run"])
    assert str(refused.value).startswith(f"{path}: {message}")


def test_a_flag_goes_to_the_steps_in_which_it_has_an_effect(tmp_path, capsys):
    """The study's flags for answers are for several steps; its own for ranking are of an encoder."""
    text = """
models = ["a/local"]
openai_models = ["far"]
methods = ["none", "rag", "planpers"]
categories = ["Society_and_Culture"]
[arguments]
rank = ["--ranker", "bm25"]
answer = ["--gpu_memory_utilization", "0.8", "--max_concurrency=3", "--temperature", "0.5"]
"""
    with pytest.raises(UserError, match="no such file"):  # there are no data
        run_study.main(["--study_addr", write_study(tmp_path, text), "--dry_run"])
    commands = [line.split() for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    ranking = [words for words in commands if "retrieval/rank_dataset.py" in words]
    assert len(ranking) == 3
    for words in ranking:
        assert words[-2:] == ["--ranker", "bm25"]
        assert not {"--model_name", "--embedding_cache"}.intersection(words)
    ends = {}
    for words in commands:
        if "--model_addr" in words and "--seed" in words:
            method = Path(words[words.index("--output_addr") + 1]).stem
            ends[words[words.index("--model_addr") + 1], method] = words[words.index("--seed") + 2 :]
    here, there = ["--gpu_memory_utilization", "0.8"], ["--max_concurrency=3"]
    hotter = ["--temperature", "0.5"]
    assert ends == {
        ("a/local", "none"): [*here, *hotter],
        ("a/local", "rag"): [*here, *hotter],
        ("a/local", "planpers"): [*here, *hotter],
        ("far", "none"): ["--openai", *there, *hotter],
        ("far", "rag"): ["--openai", *there, *hotter],
        ("far", "planpers"): ["--openai", *here, *there, *hotter],  # its planner runs here
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[arguments]\nanswer = ["--max_concurrency", "3"]',
            "planpers.py: --max_concurrency: has no effect without --openai, for the model runs here\n"
            "  give --openai, or leave it out",
        ),
        (
            'openai_models = ["far"]\nmethods = ["none", "rag"]\n[arguments]\nanswer = ["--dtype=float32"]',
            "baselines.py: --dtype: has no effect with --openai, for no model is loaded here\n  leave it out",
        ),
        (
            'methods = ["none"]\n[arguments]\nanswer = ["--num_contexts", "3"]',
            "baselines.py: --num_contexts: has no effect without --rag, for the prompt has no posts\n"
            "  give --rag, or leave it out",
        ),
    ],
)
def test_a_flag_without_effect_in_any_step_is_refused(tmp_path, text, message):
    path = write_study(tmp_path, text)
    with pytest.raises(UserError) as refused:
        run_study.main(["--study_addr", path, "--dry_run"])
    assert str(refused.value) == f"{path}: arguments, {message}"


def test_a_missing_dataset_is_named_in_a_dry_run_behind_the_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path, "methods = ['none']\ncategories = ['Society_and_Culture']")
    for flags, printed in (([], 0), (["--dry_run"], 3)):
        with pytest.raises(
            UserError, match=r"^data/Society_and_Culture_test\.json: no such file; the dataset is fetch"
        ):
            run_study.main(["--study_addr", "study.toml", *flags])
        assert capsys.readouterr().out.count("# step ") == printed
    assert [one.name for one in tmp_path.iterdir()] == ["study.toml"]


def test_only_judges_behind_an_api(tmp_path):
    study = study_of(tmp_path, 'openai_judges = ["gpt-4o-mini"]')
    assert (study.judges, study.all_judges) == ((), ("gpt-4o-mini",))


# The plan


def outputs_of(study, kind):
    return [output for step in plan_study(study) if step.kind == kind for output in step.outputs]


def count(study):
    found = {}
    for step in plan_study(study):
        found[step.kind] = found.get(step.kind, 0) + 1
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 3 categories: test, another user's, train and validation. 3 models x 4 methods x 3 categories.
        ("table2", {"rank": 12, "train": 3, "answer": 36, "judge": 3, "table": 3}),
        ("table3", {"rank": 9, "train": 3, "answer": 36, "judge": 3, "table": 3}),
        # 3 models x 6 numbers of posts x 3 categories.
        ("figure2", {"rank": 9, "train": 3, "answer": 54, "judge": 3, "table": 3, "figure": 3}),
        ("figure16", {"rank": 6, "train": 3, "answer": 54, "judge": 3, "table": 3, "figure": 3}),
        ("figure3", {"rank": 9, "train": 3, "answer": 6, "judge": 3, "table": 1, "figure": 1}),
        # 4 judges x 3 categories.
        ("figure4", {"rank": 9, "train": 3, "answer": 6, "judge": 12, "table": 4}),
        ("random_profiles", {"rank": 6, "answer": 18, "judge": 3, "table": 3}),
    ],
)
def test_the_shipped_studies(name, expected):
    assert count(read_study(str(ROOT / f"utils/studies/{name}.toml"))) == expected


@pytest.mark.parametrize("name", ["table2", "figure2", "figure3"])
def test_unscored_as_zero_is_chosen_for_tables_and_figures_alike(tmp_path, name):
    text = (ROOT / f"utils/studies/{name}.toml").read_text()
    for more, expected in (("", False), ("unscored_as_zero = true\n", True)):
        steps = plan_study(study_of(tmp_path, more + text))
        assert {"--unscored_as_zero" in s.flags for s in steps if s.kind in ("table", "figure")} == {expected}
        assert not any("--unscored_as_zero" in s.flags for s in steps if s.kind not in ("table", "figure"))


def test_unscored_as_zero_holds_for_the_evaluators_of_figure_4(tmp_path):
    text = "unscored_as_zero = true\nhuman_addr = 'h.json'\n" + (ROOT / "utils/studies/figure4.toml").read_text()
    steps = plan_study(study_of(tmp_path, text))
    assert ["--unscored_as_zero" in s.flags for s in steps if s.kind == "agreement"] == [True]


def test_all_shipped_studies_are_counted_above():
    assert len(STUDIES) == 7


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_command_is_one_its_script_takes(path):
    study = read_study(str(path))
    for step in plan_study(study):
        outputs = list(step.outputs)
        parser_of(step.script).parse_args(step.words(outputs, overwrite=step.kind not in ("table", "figure"))[1:])


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_step_stands_behind_those_that_make_what_it_reads(path):
    steps = plan_study(read_study(str(path)))
    made = {output for step in steps for output in step.outputs}
    assert len(made) == sum(len(step.outputs) for step in steps)  # no output twice
    seen = set()
    for step in steps:
        needed = {file for inputs in step.outputs.values() for file in inputs} | set(step.after)
        assert needed & made <= seen
        seen |= step.outputs.keys()
    assert len({step.job for step in steps}) == len(steps)


def test_one_piece_of_work_has_one_name_in_all_studies():
    makers = {}
    for path in STUDIES:
        for step in plan_study(read_study(str(path))):
            if step.kind in ("rank", "train", "answer"):
                for output in step.outputs:
                    makers.setdefault(output, set()).add(tuple(step.words([output], overwrite=False)))
    for output, commands in makers.items():
        settings = {tuple(word for word in words if word != "--embedding_cache") for words in commands}
        distinct = {tuple(w for w in words if not w.endswith("/embeddings")) for words in settings}
        assert len(distinct) == 1, output
    figure2 = read_study(str(ROOT / "utils/studies/figure2.toml"))
    names = [Path(output).name for output in outputs_of(replace(figure2, categories=(ART,)), "answer")]
    assert names[:6] == [f"planpers{k}.json" for k in ("_k0", "_k2", "_k4", "_k6", "_k8", "")]


def test_where_submit_table2_puts_things(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(
        ["bash", "utils/slurm/submit_table2.sh", "--dry_run"],
        cwd=ROOT, env={"PATH": os.environ["PATH"], "PREFETCH": "0"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    words = set(done.stdout.replace("\\", "").replace("OUTPUT=", "").replace(")", "").split())
    study = study_of(tmp_path)
    assert set(outputs_of(study, "rank")) | set(outputs_of(study, "answer")) <= words
    assert set(outputs_of(study, "judge")) <= words
    assert {output.removesuffix("/best") for output in outputs_of(study, "train")} <= words
    assert set(jobs_of(study)) - {"table.Qwen2.5-7B-Instruct.test.study"} <= {
        word.partition("--job-name=table2.")[2] for word in words
    }


def jobs_of(study):
    return [job.name for job in make_jobs(study, find_pending(plan_study(study)))]


def test_names_of_seeds_numbers_of_posts_and_judges(tmp_path):
    study = study_of(
        tmp_path,
        "models = ['lab/m/']\nmethods = ['none', 'rag']\nnum_contexts = [0, 10]\nseeds = [0, 1]\n"
        "categories = ['Society_and_Culture']\njudges = ['Qwen/Qwen2.5-32B-Instruct', 'lab/small']\noutput = 'o'",
    )
    folder = f"o/m/test/{SOCIETY}/"
    names = ["none", "none_seed1", "rag_k0", "rag_k0_seed1", "rag", "rag_seed1"]  # no posts, so none is there once
    assert outputs_of(study, "answer") == [f"{folder}{name}.json" for name in names]
    scores = [f"{folder}{name}_scores{judge}.json" for judge in ("", "_small") for name in names]
    assert outputs_of(study, "judge") == scores
    assert outputs_of(study, "table") == ["o/m/test/study.md", "o/m/test/study_small.md"]
    judges = [step for step in plan_study(study) if step.kind == "judge"]
    words = judges[1].words(scores[6:], overwrite=False)
    assert words[words.index("--score_addr") + 1 :] == scores[6:]
    assert words[words.index("--response_addr") + 1 : words.index("--score_addr")] == [
        f"{folder}{name}.json" for name in names
    ]


def test_the_table_compares_planpers_with_the_others(tmp_path):
    def baselines_of(methods):
        table = next(s for s in plan_study(study_of(tmp_path, f"methods = {methods}")) if s.kind == "table")
        words = table.flags
        return words[words.index("--baseline") + 1 :] if "--baseline" in words else []

    assert baselines_of(["none", "rag", "planpers"]) == ["No personalization", "RAG (asker's profile)"]
    # Without PlanPers RAG is the method, and the control with another user's profile where there is no RAG either.
    assert baselines_of(["none", "rag"]) == baselines_of(["rag", "none"]) == ["No personalization"]
    assert baselines_of(["none", "rag_random"]) == ["No personalization"]
    assert baselines_of(["none", "rag_random", "rag"]) == ["No personalization", "RAG (random profile)"]
    assert baselines_of(["rag"]) == baselines_of(["planpers", "planpers_gold"]) == []


def test_figure_4_is_drawn_where_people_have_chosen(tmp_path):
    text = "figure = 4\nmethods = ['planpers', 'rag']\njudges = ['j/a', 'j/b']\ncategories = ['Society_and_Culture']\n"
    assert [s.kind for s in plan_study(study_of(tmp_path, text))][-1] == "table"
    steps = plan_study(study_of(tmp_path, text + "human_addr = 'h.json'\noutput = 'o'"))
    assert [step.kind for step in steps[-2:]] == ["agreement", "figure"]
    folder = f"o/Qwen2.5-7B-Instruct/test/{SOCIETY}"
    args = parser_of(steps[-2].script).parse_args(steps[-2].words(list(steps[-2].outputs), False)[1:])
    assert args.evaluator == [[j, f"{folder}/planpers_scores_{j}.json", f"{folder}/rag_scores_{j}.json"] for j in "ab"]
    assert args.human_addr == "h.json"
    drawn = parser_of(steps[-1].script).parse_args(steps[-1].words(list(steps[-1].outputs), False)[1:])
    assert (drawn.figure, drawn.agreement_addr) == ("4", args.output_addr)


def test_figure_2_has_a_system_for_each_number_of_posts():
    study = read_study(str(ROOT / "utils/studies/figure2.toml"))
    step = next(step for step in plan_study(study) if step.kind == "figure")
    args = parser_of(step.script).parse_args(step.words(list(step.outputs), False)[1:])
    assert [system[0] for system in args.system] == ["0", "2", "4", "6", "8", "10"]
    assert {len(system) for system in args.system} == {1 + 3}  # its name, and a file a category
    assert step.named["--output_addr"] == "output/table2/gemma-2-9b-it/test/figure2.png"


# Whole studies. The scripts ask a server on this machine; most are run in this process, which spares their imports.


TEXT = """
output = "out"
openai_models = ["tiny"]
api_key_addr = "key.txt"
base_url = "{url}"
judges = ["Qwen2.5-32B-Instruct"]
methods = ["none", "rag_random", "planpers_gold"]
categories = ["Art_and_Entertainment", "Society_and_Culture"]
[arguments]
rank = ["--ranker", "bm25"]
judge = ["--openai", "--api_key_addr", "key.txt", "--base_url", "{url}"]
"""
FOLDER = "out/tiny/test"
TABLE = f"{FOLDER}/study.md"
# For each of 2 categories: 2 rankings, 3 answers, 3 scores (in 1 command); then the table.
NUM_OUTPUTS, NUM_STEPS = 2 * (2 + 3 + 3) + 1, 2 * (2 + 3 + 1) + 1


@pytest.fixture(scope="module")
def server():
    with serve() as server:
        yield server


def make_data(folder, url):
    (folder / "data").mkdir(parents=True)
    (folder / "key.txt").write_text("sk-test")
    records = read_dataset(SAMPLE / "test.json")
    for title, category in zip(TITLES, CATEGORIES, strict=True):
        mine = [record for record in records if COMMUNITIES[record["category"]] == title]
        (folder / f"data/{category}_test.json").write_text(json.dumps(mine, ensure_ascii=False))
    write_study(folder, TEXT.format(url=url))
    return folder


def run_study_in(folder, *flags):
    command = [sys.executable, ROOT / "utils/run_study.py", "--study_addr", "study.toml", *flags]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def finished(server, tmp_path_factory):
    """A folder with a study that has run, and in `printed` what it said."""
    folder = make_data(tmp_path_factory.mktemp("study") / "finished", server.url)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.chdir(folder)
        patch.setattr(run_study, "run", run_here)
        assert run_study.main(["--study_addr", "study.toml"]) == 0
    (folder / "printed").write_text(printed.getvalue())
    return folder


def snapshot(folder):
    """Every file with its inode, time and content."""
    return {
        str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def contents(folder):
    """What the outputs hold, without the files that tell of the run."""
    files = {path: file[2] for path, file in snapshot(folder / "out").items()}
    return {path: text for path, text in files.items() if not path.endswith((".manifest.json", ".journal.jsonl"))}


@dataclass
class Work:
    """A copy of the finished study, and the scripts that were run in it."""

    folder: Path
    server: object
    ran: list[list[str]]

    def run(self, *flags):
        self.ran.clear()
        return run_study.main(["--study_addr", "study.toml", *flags])

    def scripts(self):
        return [Path(words[0]).name for words in self.ran]

    def outputs(self):
        """The outputs that commands were run for."""
        found = []
        for words in self.ran:
            args = vars(parser_of(script_of(words[0])).parse_args(words[1:]))
            made = args.get("score_addr") or [args.get("output_dataset_addr") or args["output_addr"]]
            found += [path.removeprefix(f"{FOLDER}/").removeprefix("out/") for path in made]
        return found

    def edit(self, old, new):
        path = self.folder / "study.toml"
        assert old in path.read_text()
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        path.write_text(path.read_text().replace(old, new))
        os.utime(path, ns=times)  # what follows is to be of the settings, not of the file's age


def script_of(word):
    return str((Path.cwd() / word).resolve().relative_to(ROOT))


def run_here(words):
    """In place of `run_study.run`: the script's main in this process, with the exit code it would have."""
    module = importlib.import_module(script_of(words[0]).removesuffix(".py").replace("/", "."))
    try:
        return module.main(words[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


@pytest.fixture
def work(finished, server, tmp_path, monkeypatch):
    folder = shutil.copytree(finished, tmp_path / "work")
    monkeypatch.chdir(folder)
    ran = []

    def run(words):
        ran.append(words)
        return run_here(words)

    monkeypatch.setattr(run_study, "run", run)
    return Work(folder, server, ran)


def check_whole(folder, printed):
    assert re.findall(r"^# step (\d+) of (\d+), 0:\d\d:\d\d so far$", printed, re.MULTILINE) == [
        (str(number), str(NUM_STEPS)) for number in range(1, NUM_STEPS + 1)
    ]
    assert len(re.findall(r"^# missing: ", printed, re.MULTILINE)) == NUM_OUTPUTS
    assert re.fullmatch(rf"done: {NUM_STEPS} steps, 0:0\d:\d\d; table: {TABLE}", printed.splitlines()[-1])
    table = (folder / TABLE).read_text()
    for row in ("No personalization", "RAG (random profile)", "PlanPers (gold plans)"):
        assert f"| {row} |" in table.replace("**", "")
    assert table.count("| 9 |") == 3  # of the sample's 13 questions, 5 in one category and 4 in the other
    assert f"out/tiny/test/{ART}/none_scores.json: score" in printed  # the scripts' own output passes through


def test_a_whole_study_runs(finished):
    check_whole(finished, (finished / "printed").read_text())


@pytest.mark.slow
def test_a_whole_study_runs_in_processes_of_their_own(finished, server, tmp_path):
    folder = make_data(tmp_path / "other", server.url)
    done = run_study_in(folder)
    assert done.returncode == 0, done.stderr
    check_whole(folder, done.stdout)
    assert contents(folder) == contents(finished)


def test_a_second_run_does_nothing(finished, server):
    before, asked = snapshot(finished), len(server.requests)
    done = run_study_in(finished)
    expected = f"everything is there: {NUM_OUTPUTS} outputs; table: {TABLE}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")
    assert snapshot(finished) == before and len(server.requests) == asked


def test_nothing_is_started_where_all_is_there(work):
    assert work.run() == work.run("--overwrite") == 0
    assert work.ran == []


def test_a_dry_run_prints_commands_that_can_be_pasted(server, tmp_path, finished):
    folder = make_data(tmp_path / "dry", server.url)
    before = snapshot(folder)
    done = run_study_in(folder, "--dry_run")
    assert (done.returncode, done.stderr) == (0, "") and snapshot(folder) == before
    commands = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert len(commands) == NUM_STEPS
    ran = [line for line in (finished / "printed").read_text().splitlines() if line.startswith("python ")]
    root, name = os.path.relpath(ROOT, folder), os.path.relpath(ROOT, finished)
    assert [line.replace(root, "") for line in commands] == [line.replace(name, "") for line in ran]
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True).returncode == 0
    none = f"data/{ART}_test.json --output_addr {FOLDER}/{ART}/none.json --seed 0 --openai"
    assert any(none in line for line in commands)
    assert any("--system 'RAG (random profile)'" in line for line in commands)


@pytest.mark.parametrize("journal_too", [False, True])
def test_a_deleted_answer_is_made_again_and_what_reads_it_is_not(work, journal_too, capsys):
    whole, asked = contents(work.folder), len(work.server.requests)
    answers = work.folder / FOLDER / ART / "rag_random.json"
    answers.unlink()
    if journal_too:
        Path(f"{answers}.journal.jsonl").unlink()
    assert work.run("--dry_run") == 0
    printed = capsys.readouterr().out
    assert f"# missing: {FOLDER}/{ART}/rag_random.json\n" in printed
    assert f"# if {FOLDER}/{ART}/rag_random.json changes: {FOLDER}/{ART}/rag_random_scores.json\n" in printed
    assert f"# if {FOLDER}/{ART}/rag_random_scores.json changes: {TABLE}\n" in printed
    assert "# step 3 of 3\n" in printed and "none" not in printed.partition("utils/make_table")[0]
    assert work.ran == []
    assert work.run() == 0
    assert work.outputs() == [f"{ART}/rag_random.json"]  # the same bytes: neither scores nor table are made again
    assert capsys.readouterr().out.count("# not needed: ") == 2
    assert contents(work.folder) == whole
    assert (len(work.server.requests) > asked) == journal_too
    assert work.run() == 0 and work.ran == []


def test_a_deleted_ranking_is_made_again_alone(work):
    (work.folder / f"out/ranked/{ART}_test.json").unlink()
    assert work.run() == 0
    assert work.outputs() == [f"ranked/{ART}_test.json"]


@pytest.mark.parametrize("file", ["planpers_gold.json.plans.json", "planpers_gold.json.manifest.json"])
def test_what_stands_beside_an_output_is_a_part_of_it(work, file):
    (work.folder / FOLDER / ART / file).unlink()
    if file.endswith(".plans.json"):
        assert work.run() == 0
        assert work.outputs() == [f"{ART}/planpers_gold.json"]
    else:
        with pytest.raises(UserError, match=r"planpers_gold\.json: exists, and was not written by this script or was"):
            work.run()
    assert (work.folder / FOLDER / ART / "planpers_gold.json.plans.json").exists()


def test_a_deleted_score_file_is_made_again_with_the_table(work):
    whole, asked = contents(work.folder), len(work.server.requests)
    (work.folder / FOLDER / ART / "none_scores.json").unlink()
    assert work.run() == 0
    assert work.outputs() == [f"{ART}/none_scores.json", "study.md"]  # of the three that are judged together, one
    assert contents(work.folder) == whole and len(work.server.requests) == asked
    assert work.run() == 0 and work.ran == []


def test_a_deleted_table_is_made_again_alone(work):
    (work.folder / TABLE).unlink()
    assert work.run() == 0
    assert work.scripts() == ["make_table.py"]


@pytest.mark.parametrize("manifest", ["", ".manifest.json"])
def test_a_table_that_was_edited_is_refused_before_anything_runs(work, manifest, capsys):
    """Or that has no manifest, as one of before it had any. While it is up to date nobody minds."""
    path = work.folder / TABLE
    if manifest:
        Path(f"{path}{manifest}").unlink()
    else:
        path.write_text(path.read_text() + "\nMy notes.\n")
    edited = path.read_bytes()
    assert work.run() == 0 and work.ran == []
    (work.folder / FOLDER / ART / "none_scores.json").unlink()
    with pytest.raises(UserError) as refused:
        work.run()  # what the table waits for is missing, so it will be made again
    assert str(refused.value) == (
        f"{TABLE}: exists, and was not written by this script or was changed since\n"
        "  set the study back, give another output, or --overwrite to redo it"
    )
    assert work.ran == [] and path.read_bytes() == edited
    capsys.readouterr()
    assert work.run("--overwrite", "--dry_run") == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(" --overwrite")  # the table's command, as it will be run
    assert work.run("--overwrite") == 0
    assert work.outputs() == [f"{ART}/none_scores.json", "study.md"]
    assert "My notes" not in path.read_text()
    assert work.run() == 0 and work.ran == []


def test_a_changed_study_file_makes_the_table_anew(work):
    path = work.folder / "study.toml"
    path.write_text(path.read_text().replace('"rag_random", ', ""))
    assert work.run() == 0
    assert work.scripts() == ["make_table.py"]
    assert "random" not in (work.folder / TABLE).read_text()


def test_a_changed_dataset_changes_all_that_comes_from_it(work, capsys):
    path = work.folder / f"data/{ART}_test.json"
    records = json.loads(path.read_text())
    path.write_text(json.dumps(records[:-1]))
    assert work.run() == 0
    answers = ["none", "rag_random", "planpers_gold"]
    assert work.outputs() == [
        f"ranked/{ART}_test.json", f"ranked/{ART}_test_random.json", *(f"{ART}/{one}.json" for one in answers),
        *(f"{ART}/{one}_scores.json" for one in answers), "study.md",
    ]  # fmt: skip
    assert all("--overwrite" in words for words in work.ran[:-1])
    assert "--overwrite" not in work.ran[-1]  # a table is made again without
    assert f"# inputs changed: data/{ART}_test.json: " in capsys.readouterr().out
    assert "| 8 |" in (work.folder / TABLE).read_text()
    assert work.run() == 0 and work.ran == []


def test_of_a_changed_question_alone_the_answers_are_judged_again(work):
    path, asked = work.folder / f"data/{ART}_test.json", len(work.server.requests)
    records = json.loads(path.read_text())
    records[0]["narrative"] += " More."
    path.write_text(json.dumps(records))
    assert work.run() == 0
    prompts = [request["messages"] for request in work.server.requests[asked:]]
    judged = [user["content"] for system, user in prompts if "match_score" in system["content"]]
    assert judged and all(records[0]["question"] in prompt for prompt in judged)
    assert work.run() == 0 and work.ran == []


def test_a_dataset_that_changes_where_nobody_looks_changes_no_answer(work):
    """A line break more: another file, and so what reads it is made again; what reads the ranked files is not."""
    (work.folder / f"out/ranked/{ART}_test.json").unlink()
    path = work.folder / f"data/{ART}_test.json"
    path.write_text(path.read_text() + "\n")
    assert work.run() == 0
    assert work.outputs() == [
        f"ranked/{ART}_test.json", f"ranked/{ART}_test_random.json", f"{ART}/none.json",
        *(f"{ART}/{one}_scores.json" for one in ("none", "rag_random", "planpers_gold")), "study.md",
    ]  # fmt: skip


def test_other_settings_are_refused_before_anything_runs_and_redone_on_demand(work):
    before = snapshot(work.folder / "out")
    work.edit("[arguments]\n", '[arguments]\nanswer = ["--temperature", "0.5"]\n')
    with pytest.raises(UserError) as refused:
        work.run()
    assert str(refused.value) == (
        f"{FOLDER}/{ART}/none.json: was made with other settings: temperature: 0.1, now 0.5\n"
        "  set the study back, give another output, or --overwrite to redo it and 5 other outputs"
    )
    with pytest.raises(UserError):
        work.run("--dry_run")
    assert work.ran == [] and snapshot(work.folder / "out") == before
    assert work.run("--overwrite") == 0
    answers = [f"{category}/{m}.json" for category in (ART, SOCIETY) for m in ("none", "rag_random", "planpers_gold")]
    assert work.outputs()[:6] == answers
    assert json.loads((work.folder / FOLDER / answers[0]).read_text())  # of the new temperature
    manifest = json.loads(Path(f"{FOLDER}/{answers[0]}.manifest.json").read_text())
    assert manifest["fingerprint"]["temperature"] == 0.5
    assert work.run() == 0 and work.ran == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "[arguments]\n",
            '[arguments]\nplanpers = ["--max_tokens_plan", "9"]\n',
            "planpers.py: --max_tokens_plan: has no effect without --planner_model",  # gold plans have none
        ),
        ("[arguments]\n", '[arguments]\nplanpers = ["--max_tokens", "99"]\n', "gold.json: {} max_tokens: 2048, now 99"),
        (
            "[arguments]\n",
            '[arguments]\nplanpers = ["--planner_target", "reference", "--prompts_dir", "p"]\n',
            'gold.json: {} planner_target: "paper", now "reference"',
        ),
        ('"bm25"', '"recency"', '_test.json: {} ranker: "bm25", now "recency"'),
        (
            'judges = ["Qwen2.5-32B-Instruct"]',
            'judges = ["x/Qwen2.5-32B-Instruct"]',
            'scores.json: {} judge: "Qwen2.5-32B-Instruct", now "x/Qwen2.5-32B-Instruct"',
        ),
        ('openai_models = ["tiny"]', 'openai_models = ["x/tiny"]', '/none.json: {} model: "tiny", now "x/tiny"'),
        ('judge = ["--openai"', 'judge = ["--model_id", "32B", "--openai"', '", now "32B"'),
        ('judge = ["--openai"', 'judge = ["--model_id", "Qwen2.5-32B-Instruct", "--openai"', None),
        (
            'judge = ["--openai"',
            'judge = ["--max_model_len", "99", "--openai"',
            ".json: {} max_model_len: null, now 99",
        ),
        ('rank = ["--ranker"', 'answer = ["--prompts_dir", "p"]\nrank = ["--ranker"', ".json: {} prompt: "),
        ('rank = ["--ranker"', 'answer = ["--max_concurrency", "2"]\nrank = ["--ranker"', None),  # changes no answer
    ],
)
def test_every_setting_that_counts_is_compared(work, old, new, message):
    (work.folder / "p").mkdir()
    text = (ROOT / "prompts/lampqa/no_personalization.txt").read_text()
    (work.folder / "p/no_personalization.txt").write_text(text.replace("[user]\n", "[user]\nPlease. "))
    work.edit(old, new)
    if message is None:
        assert work.run() == 0 and work.ran == []
    else:
        with pytest.raises(UserError) as refused:
            work.run()
        assert message.format("was made with other settings:") in str(refused.value)


@pytest.mark.parametrize(
    ("method", "flags", "made_with", "differing"),
    [
        ("train", [], None, ""),  # made before there was another target, or with the default since
        ("train", ["--planner_target", "reference"], None, 'planner_target: "paper", now "reference"'),
        ("train", ["--planner_target", "reference"], "reference", ""),
        ("train", [], "reference", 'planner_target: "reference", now "paper"'),
        ("planpers", [], "reference", ""),  # as its planner was trained, whose identity is compared
        ("planpers", [], None, ""),
        ("planpers", ["--planner_target", "reference"], None, 'planner_target: "paper", now "reference"'),
        ("planpers_gold", [], "reference", 'planner_target: "reference", now "paper"'),
        ("planpers_gold", [], None, ""),
    ],
)
def test_plans_of_another_form_are_seen(method, flags, made_with, differing):
    arguments = {**{key: [] for key in ARGUMENTS}, "train": flags, "planpers": flags}
    study = Study("study.toml", models=("m",), arguments=arguments)
    step = train_step(study, ART)
    if method != "train":
        step = answer_step(study, Answers("m", "test", ART, method, 10, 0))
    fingerprint = {"script": step.script} | ({"planner_target": made_with} if made_with else {})
    assert differing_settings(step, next(iter(step.outputs)), fingerprint) == differing


def test_a_study_whose_servers_moved_is_up_to_date_and_asks_nobody(work):
    asked, lists = len(work.server.requests), work.server.lists_asked
    for key in ("base_url = ", '"--base_url", '):
        work.edit(f'{key}"{work.server.url}"', f'{key}"http://127.0.0.1:9/v1"')
    assert work.run() == 0 and work.ran == []
    assert (len(work.server.requests), work.server.lists_asked) == (asked, lists)


def test_a_study_that_was_run_when_addresses_counted_is_up_to_date(work):
    """The fingerprints of an earlier version: in the manifests of what is finished, in the journal of what is not."""
    unfinished = work.folder / FOLDER / ART / "none.json"
    for path in (work.folder / FOLDER).glob("*/*.manifest.json"):
        manifest = json.loads(path.read_text())
        for name in {"model", "judge"} & manifest["fingerprint"].keys():
            manifest["fingerprint"][name] += f" at {work.server.url}"
        path.write_text(json.dumps(manifest))
    assert work.run() == 0 and work.ran == []
    manifest, entries = read_manifest(unfinished), read_journal(f"{unfinished}.journal.jsonl")[1]
    forget(unfinished)
    journal = Journal(unfinished, {**manifest["fingerprint"], "model": "tiny at http://old/v1"})
    for key in list(entries)[:-1]:
        journal.add(key, entries[key])
    journal.close()
    asked = len(work.server.requests)
    assert work.run() == 0
    assert work.outputs() == [f"{ART}/none.json"] and "--overwrite" not in work.ran[0]
    assert len({body["messages"][-1]["content"] for body in work.server.requests[asked:]}) == 1


def test_files_that_were_ranked_when_every_encoder_was_contriever_are_up_to_date(work):
    """As the paper's --ranker, and as the default."""
    encoder = save_tiny_encoder(work.folder / "encoder")
    work.edit('judges = ["Qwen', f'encoder = "{encoder}"\njudges = ["Qwen')
    work.edit('methods = ["none", "rag_random", "planpers_gold"]', 'methods = ["rag"]')
    work.edit('rank = ["--ranker", "bm25"]', 'rank = ["--ranker", "contriever"]')
    assert work.run("--overwrite") == 0
    ranked = list((work.folder / "out/ranked").glob("*_test.json.manifest.json"))
    for path in ranked:
        manifest = json.loads(path.read_text())
        assert (manifest["fingerprint"]["ranker"], manifest["arguments"]["ranker"]) == ("dense", "dense")
        assert manifest["arguments"]["model_name"] == str(encoder)
        manifest["fingerprint"]["ranker"] = manifest["arguments"]["ranker"] = "contriever"
        path.write_text(json.dumps(manifest))
    assert len(ranked) == 2
    for old, new in (('"contriever"', '"dense"'), ('rank = ["--ranker", "dense"]', "rank = []")):
        assert work.run() == 0 and work.ran == []
        work.edit(old, new)
    assert work.run() == 0 and work.ran == []


def test_an_output_that_was_edited_is_refused(work):
    path = work.folder / FOLDER / ART / "none.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(
        UserError, match=r"none\.json: exists, and was not written by this script or was changed since\n"
    ):
        work.run()
    assert work.run("--overwrite") == 0
    assert work.outputs() == [f"{ART}/none.json"]  # as it was, so the scores are right


def test_a_second_judge_and_more_posts_add_to_what_is_there(work):
    work.edit('judges = ["Qwen2.5-32B-Instruct"]', 'judges = ["Qwen2.5-32B-Instruct", "other"]\nnum_contexts = [10, 2]')
    assert work.run() == 0
    made = work.outputs()
    assert set(made) == {
        *(f"{c}/{m}_k2.json" for c in (ART, SOCIETY) for m in ("rag_random", "planpers_gold")),
        *(f"{c}/{m}_k2_scores.json" for c in (ART, SOCIETY) for m in ("rag_random", "planpers_gold")),
        *(f"{c}/{m}_scores_other.json" for c in (ART, SOCIETY)
          for m in ("none", "rag_random", "rag_random_k2", "planpers_gold", "planpers_gold_k2")),
        "study.md", "study_other.md",
    }  # fmt: skip
    assert work.scripts().count("evaluate_responses.py") == 4  # 2 judges, 2 categories
    assert "RAG (random profile), k = 2" in (work.folder / FOLDER / "study_other.md").read_text()


def test_a_step_that_fails_ends_the_run(work, capsys):
    (work.folder / TABLE).unlink()
    scores = work.folder / FOLDER / ART / "none_scores.json"
    scores.unlink()
    scores.mkdir()
    with pytest.raises(UserError):
        work.run()
    scores.rmdir()
    journal = Path(f"{scores}.journal.jsonl")
    journal.write_bytes(journal.read_bytes().replace(b'"value"', b'"valve"', 1))
    assert work.run() == 2
    assert work.scripts() == ["evaluate_responses.py"]
    assert capsys.readouterr().err.endswith("step 1 of 2 ended with exit code 2; the same command goes on from here\n")
    journal.unlink()
    assert work.run() == 0
    assert work.scripts() == ["evaluate_responses.py", "make_table.py"]


def test_answers_that_a_server_failed_to_give_end_the_run_and_the_same_command_asks_for_them(work, monkeypatch, capsys):
    path = work.folder / FOLDER / ART / "none.json"
    whole = path.read_text()
    for name in (path, f"{path}.journal.jsonl", f"{path}.manifest.json"):
        Path(name).unlink()
    gap = json.loads((work.folder / f"data/{ART}_test.json").read_text())[1]

    def reply(request):
        is_gap = gap["question"] in request["messages"][1]["content"]
        return Reply("Out of order.", status=500) if is_gap else default_reply(request)

    monkeypatch.setattr(work.server, "reply", reply)
    monkeypatch.setattr("utils.generation.api_engine.LONGEST_PAUSE", 0.05)
    assert work.run() == 1
    assert work.scripts() == ["baselines.py"] and gap["id"] not in json.loads(path.read_text())
    assert capsys.readouterr().err.endswith(
        "1 answer is missing because the server failed; the same command asks for it again\n"
        "step 1 of 3 ended with exit code 1; the same command goes on from here\n"
    )
    monkeypatch.setattr(work.server, "reply", default_reply)
    assert work.run("--dry_run") == 0
    assert f"# unfinished: {FOLDER}/{ART}/none.json\n" in capsys.readouterr().out
    asked = len(work.server.requests)
    assert work.run() == 0
    assert {gap["question"] in body["messages"][1]["content"] for body in work.server.requests[asked:]} == {True}
    assert work.scripts() == ["baselines.py"]  # it came out as it was, so the scores are right
    assert path.read_text() == whole


def answer_by_hand(work, *flags):
    """The study's first answers, by a command of one's own; returns its exit code."""
    words = ["--model_addr", "tiny", "--inputs_addr", f"data/{ART}_test.json", "--openai", "--api_key_addr", "key.txt"]
    words += ["--base_url", work.server.url, "--output_addr", f"{FOLDER}/{ART}/none.json"]
    return baselines.main([*words, *flags])


def test_a_part_made_by_hand_is_completed(work):
    """Of --limit or a shard nothing stands in the fingerprint: the manifest's arguments tell."""
    whole = contents(work.folder)
    for part in (["--limit", "2"], ["--num_shards", "2", "--shard_index", "1"]):
        forget(work.folder / FOLDER / ART / "none.json")
        assert answer_by_hand(work, *part) == 0
        assert len(json.loads(Path(f"{FOLDER}/{ART}/none.json").read_text())) < 5
        assert work.run() == 0
        assert work.outputs() == [f"{ART}/none.json"] and "--overwrite" not in work.ran[0]
        assert contents(work.folder) == whole


def test_a_limit_that_left_nothing_out_is_no_part(work):
    forget(work.folder / FOLDER / ART / "none.json")
    assert answer_by_hand(work, "--limit", "100") == 0
    assert work.run() == 0
    assert work.ran == []


def test_plans_that_were_edited_are_refused(work):
    path = work.folder / FOLDER / ART / "planpers_gold.json.plans.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(UserError, match=r"planpers_gold\.json: its plans: exists, and was not written by this script"):
        work.run()
    assert path.read_text().endswith(" ")


def test_judges_behind_an_api_have_a_key_of_their_own(work):
    """What they make is what flags of [arguments] made."""
    work.edit("judges = ", "openai_judges = ")
    work.edit(f'judge = ["--openai", "--api_key_addr", "key.txt", "--base_url", "{work.server.url}"]', "")
    assert work.run() == 0 and work.ran == []
    work.edit('["Qwen2.5-32B-Instruct"]', '["Qwen2.5-32B-Instruct", "other"]')
    assert work.run() == 0
    assert work.scripts() == ["evaluate_responses.py", "evaluate_responses.py", "make_table.py"]
    assert (work.folder / FOLDER / "study_other.md").is_file()


def make_rag(folder):
    """A study that ranks with an encoder, answers with posts, and judges here: two models in folders."""
    text = (folder / "study.toml").read_text().replace('rank = ["--ranker", "bm25"]', "")
    text = re.sub(r"(?m)^judge = .*$", "", text)
    text = text.replace('["Qwen2.5-32B-Instruct"]', '["./judge"]\nencoder = "./encoder"')
    (folder / "study.toml").write_text(text)
    save_tiny_encoder(folder / "encoder")
    save_tiny_chat(folder / "judge")


def in_study(old, new):
    def change(folder):
        path = folder / "study.toml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))

    return change


def in_data(change, category=ART):
    def change_file(folder):
        path = folder / f"data/{category}_test.json"
        records = json.loads(path.read_text())
        change(records)
        path.write_text(json.dumps(records))

    return change_file


def share_an_id(folder):
    other = json.loads((folder / f"data/{SOCIETY}_test.json").read_text())[2]["id"]
    in_data(lambda records: records[0].update(id=other))(folder)


MISTAKES = {  # each would be met by a later step, some by the last but one
    "no key": (Path.unlink, "key.txt", r"--api_key_addr key\.txt: no such file"),
    "no key at all": (in_study('api_key_addr = "key.txt"', ""), "", "--openai needs a key: --api_key_addr FILE, or"),
    "two words for a key": (lambda path: path.write_text("sk test"), "key.txt", r"--api_key_addr key\.txt: must hold"),
    "an output below a file": (in_study('"out"', '"key.txt/out"'), "", r"key\.txt/out/ranked/.*: cannot be written: "),
    "no prompts": (
        in_study("[arguments]", '[arguments]\nanswer = ["--prompts_dir", "nowhere"]'), "", "--prompts_dir nowhere: ",
    ),
    "no encoder": (in_study('"./encoder"', '"./nowhere"'), "", r"study\.toml: encoder: nowhere: no such folder"),
    "no judge": (in_study('"./judge"', '"./nowhere"'), "", r"study\.toml: judges: nowhere: no such folder"),
    "a judge that is cut short": (
        lambda path: path.write_bytes(path.read_bytes()[:-9]), "judge/model.safetensors", r"study\.toml: judges: judge",
    ),
    "a judge without a chat template": (
        Path.unlink, "judge/chat_template.jinja", r"study\.toml: judges: \./judge: .*chat template",
    ),
    "a judge that is behind an API": (
        in_study('"./judge"', '"gpt-4o-mini"'), "",
        r"(?s)study\.toml: judges: gpt-4o-mini: .*\n  a model behind an API stands in openai_judges$",
    ),
    "a model that is behind an API": (
        in_study('openai_models = ["tiny"]', 'models = ["gpt-4o-mini"]'), "",
        r"(?s)study\.toml: models: gpt-4o-mini: .*\n  a model behind an API stands in openai_models$",
    ),
    "no narrative": (in_data(lambda records: records[1].update(narrative=None)), "", ".* field 'narrative' is missing"),
    "no title": (
        in_data(lambda records: records[1]["rubric_aspects"][0].pop("aspect")), "", ".* field 'aspect' is missing or",
    ),
    "a profile that is a text": (
        in_data(lambda records: records[1].update(profile="posts"), SOCIETY), "", r"data/.* field 'profile' is the",
    ),
    "an id in two categories": (
        share_an_id, "", rf"data/{ART}_test\.json and data/{SOCIETY}_test\.json: an id stands in both: '",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def unbegun(server, tmp_path_factory):
    folder = make_data(tmp_path_factory.mktemp("unbegun") / "study", server.url)
    make_rag(folder)
    return folder


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_before_anything_runs(unbegun, server, tmp_path, monkeypatch, capsys, mistake):
    """In a dry run, behind its commands, with the same words."""
    folder = shutil.copytree(unbegun, tmp_path / "work")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    ran = []
    monkeypatch.setattr(run_study, "run", lambda words: ran.append(words) or 2)
    assert run_study.main(["--study_addr", "study.toml", "--dry_run"]) == 0
    commands = capsys.readouterr().out.count("# step ")
    change, place, expected = MISTAKES[mistake]
    change(folder / place)
    before, asked, told = snapshot(folder), len(server.requests), []
    for flags in ([], ["--dry_run"]):
        with pytest.raises(UserError) as refused:
            run_study.main(["--study_addr", "study.toml", *flags])
        told.append(str(refused.value))
        assert capsys.readouterr().out.count("# step ") == (commands if flags else 0)
    assert re.match(expected, told[0]) and told[0] == told[1] and told[0].count("\n") <= 2
    assert ran == [] and snapshot(folder) == before and len(server.requests) == asked


def test_where_all_is_there_nothing_is_checked(work, monkeypatch, capsys):
    """That takes no time, and a key that is gone is not needed."""
    (work.folder / "key.txt").unlink()

    def scan(*_):
        raise AssertionError("a dataset was read")

    monkeypatch.setattr("utils.records.stream.DatasetFile.scan", scan)
    for flags in ([], ["--dry_run"], ["--sbatch"]):
        monkeypatch.setattr(run_study, "ROOT", work.folder)
        assert work.run(*flags) == 0
        assert capsys.readouterr().out == f"everything is there: {NUM_OUTPUTS} outputs; table: {TABLE}\n"


def test_the_last_line_names_all_tables_and_figures(tmp_path):
    text = (ROOT / "utils/studies/figure2.toml").read_text()
    steps = plan_study(study_of(tmp_path, text))
    folders = [f"output/table2/{name}/test" for name in ("gemma-2-9b-it", "Qwen2.5-7B-Instruct", "gpt-4o-mini")]
    tables, figures = (", ".join(f"{folder}/study.{end}" for folder in folders) for end in ("md", "png"))
    assert run_study.describe_results(steps) == f"; tables: {tables}; figures: {figures}"


def test_a_missing_key_is_told_before_anything_runs(work):
    (work.folder / "key.txt").unlink()
    work.edit('methods = ["none",', 'methods = ["none", "rag",')
    with pytest.raises(UserError, match=r"^--api_key_addr key\.txt: no such file$"):
        work.run()
    assert work.ran == []


def test_peoples_choices_are_read_before_anything_runs(work):
    work.edit('methods = ["none", "rag_random", "planpers_gold"]',
              'methods = ["planpers", "rag"]\nfigure = 4\nhuman_addr = "humans.json"')  # fmt: skip
    work.edit('judges = ["Qwen2.5-32B-Instruct"]', 'judges = ["Qwen2.5-32B-Instruct", "other"]')
    (work.folder / "humans.json").write_text('{"q1": "the first"}')
    with pytest.raises(UserError, match=r'^humans\.json: id .*"first", "second" or "tie" belongs'):
        work.run("--dry_run")


@pytest.mark.parametrize("flags", [["--dry_run"], ["--dry_run", "--sbatch"]])
def test_no_password_of_an_address_is_printed(work, monkeypatch, capsys, flags):
    monkeypatch.setattr(run_study, "ROOT", work.folder)
    monkeypatch.setattr(run_study, "command_of", lambda one: one.words())  # ROOT is not the scripts' here
    forget(work.folder / FOLDER / ART / "none.json")
    for key in ("base_url = ", '"--base_url", '):
        work.edit(f'{key}"{work.server.url}"', f'{key}"{work.server.url.replace("//", "//me:hunter2@")}"')
    assert work.run(*flags) == 0
    printed = capsys.readouterr()
    assert work.server.url in printed.out
    assert "hunter2" not in printed.out + printed.err


def test_a_jobs_log_has_no_password(tmp_path):
    """The line of utils/slurm/common.sh that writes a command into the log."""
    (line,) = [text for text in (ROOT / "utils/slurm/common.sh").read_text().splitlines() if "printf '\\n$" in text]
    script = f"set -- python baselines.py --base_url http://me:hunter2@host/v1 --model_addr a@b\n{line}"
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "\n$ python baselines.py --base_url http://host/v1 --model_addr a@b\n"


def test_plans_of_answers_that_were_never_begun_are_replaced(work):
    path = work.folder / FOLDER / ART / "planpers_gold.json"
    for suffix in ("", ".manifest.json", ".journal.jsonl"):
        path.with_name(path.name + suffix).unlink()
    dataset = work.folder / f"data/{ART}_test.json"
    records = json.loads(dataset.read_text())
    dataset.write_text(json.dumps([{**record, "question": record["question"] + " Thanks!"} for record in records]))
    assert work.run() == 0
    assert f"{ART}/planpers_gold.json" in work.outputs()


def test_an_unfinished_run_with_other_settings_is_refused_too(work):
    path = work.folder / FOLDER / ART / "none.json"
    for suffix in ("", ".manifest.json"):
        path.with_name(path.name + suffix).unlink()
    work.edit("[arguments]\n", '[arguments]\nanswer = ["--temperature", "0.5"]\n')
    with pytest.raises(UserError, match=r"none\.json: was made with other settings: temperature: 0\.1, now 0\.5\n"):
        work.run()
    work.edit('answer = ["--temperature", "0.5"]\n', "")
    assert work.run() == 0
    assert work.outputs() == [f"{ART}/none.json"]


def test_figure_4_ends_at_the_scores_where_nobody_has_chosen(work, capsys):
    work.edit('methods = ["none", ', 'planner_base = "chat"\nfigure = 4\nmethods = ["none", "rag", "planpers", ')
    work.edit('judges = ["Qwen2.5-32B-Instruct"]', 'judges = ["Qwen2.5-32B-Instruct", "other"]')
    save_tiny_chat(work.folder / "chat")
    for split in ("train", "validation"):
        for category in (ART, SOCIETY):
            shutil.copy(f"data/{category}_test.json", f"data/{category}_{split}.json")
    capsys.readouterr()
    assert work.run("--dry_run") == 0
    printed, errors = capsys.readouterr()
    assert "make_figures" not in printed and printed.count("evaluate_responses.py ") == 4
    assert errors.startswith("note: figure 4 is not drawn: human_addr, ")


# Ended by a signal


def processes_in(folder):
    """Ids of the processes that work in a folder, this one aside."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            if Path(os.readlink(link)) == folder and int(link.parent.name) != os.getpid():
                found.append(int(link.parent.name))
    return found


def wait_until(condition):
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.02)


def forget(path):
    """Delete an output with all that stands beside it."""
    for one in path.parent.glob(f"{path.name}*"):
        one.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("place", ["none.json", "none_scores.json"])
def test_a_killed_study_goes_on(work, signum, place):
    whole = contents(work.folder)
    manifest = read_manifest(work.folder / FOLDER / ART / "none_scores.json")
    for name in (place, "none_scores.json"):
        forget(work.folder / FOLDER / ART / name)
    hold, asked = threading.Event(), len(work.server.requests)

    def reply(request):
        if len(work.server.requests) > asked + 3:
            hold.wait()
        return default_reply(request)

    work.server.reply = reply
    try:
        command = [sys.executable, ROOT / "utils/run_study.py", "--study_addr", "study.toml"]
        with subprocess.Popen(command, cwd=work.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            work.server.wait_for(asked + 5)
            assert len(processes_in(work.folder)) == 2
            process.send_signal(signum)
            _, errors = process.communicate(timeout=600)
        assert process.returncode == (-signum if signum == signal.SIGKILL else 130)
        if signum != signal.SIGKILL:
            assert errors.decode().count("interrupted; what is finished is kept, run the same command again\n") == 2
        wait_until(lambda: not processes_in(work.folder))
    finally:
        hold.set()
        work.server.reply = default_reply
    assert not (work.folder / FOLDER / ART / place).exists()
    assert work.run() == 0
    expected = ["baselines.py", "evaluate_responses.py"] if place == "none.json" else ["evaluate_responses.py"]
    assert work.scripts() == [*expected, "make_table.py"]
    assert contents(work.folder) == whole
    assert read_manifest(work.folder / FOLDER / ART / "none_scores.json")["fingerprint"] == manifest["fingerprint"]
    assert work.run() == 0 and work.ran == []


STUBBORN = """
import signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "3600"])
print("ready", child.pid, flush=True)
time.sleep(3600)
"""


def test_a_command_that_does_not_leave_is_killed_with_its_children(tmp_path):
    code = (
        "import sys; from utils import cli, run_study; run_study.CHILD_SECONDS = 0.5; "
        "cli.run_script(lambda: run_study.run(['-c', sys.argv[1]]))"
    )
    command = [sys.executable, "-c", code, STUBBORN]
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline().startswith("ready")
        assert len(processes_in(tmp_path)) == 3
        process.terminate()
        assert process.wait(600) == 130
    wait_until(lambda: not processes_in(tmp_path))


@pytest.mark.parametrize(
    ("code", "expected"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137), ("pass", 0)]
)
def test_the_exit_code_of_a_command(code, expected):
    assert run_study.run(["-c", code]) == expected


@pytest.mark.slow
def test_two_at_once_are_kept_apart_by_the_locks(work):
    forget(work.folder / FOLDER / ART / "none.json")
    hold, asked = threading.Event(), len(work.server.requests)

    def reply(request):
        hold.wait()
        return default_reply(request)

    work.server.reply = reply
    command = [sys.executable, ROOT / "utils/run_study.py", "--study_addr", "study.toml"]
    try:
        with subprocess.Popen(command, cwd=work.folder, stdout=subprocess.DEVNULL) as first:
            work.server.wait_for(asked + 1)
            second = run_study_in(work.folder)
            hold.set()
            assert first.wait(600) == 0
    finally:
        hold.set()
        work.server.reply = default_reply
    assert second.returncode == 2
    assert "is writing it; wait for it, or end it\nstep 1 of 3 ended with exit code 2; the same" in second.stderr
    assert work.run() == 0 and work.ran == []


def test_a_run_that_died_while_it_put_a_file_in_place_is_ended(work):
    """Between the manifest, which holds the new file's hash, and the renaming the old file is still there."""
    path = work.folder / f"data/{ART}_test.json"
    path.write_text(json.dumps(json.loads(path.read_text())[:-1]))
    answers = work.folder / FOLDER / ART / "none.json"
    old = answers.read_bytes()
    assert work.run() == 0
    new = answers.read_bytes()
    answers.with_name("none.json.tmp").write_bytes(new)
    answers.write_bytes(old)
    assert work.run() == 0
    assert work.outputs() == [f"{ART}/none.json"] and answers.read_bytes() == new


# On a cluster


CLUSTER = """
data = "{folder}/data"
output = "{folder}/t2"
[slurm]
sbatch_args = ["--account=lab"]
"""


def sbatch(*flags, environment=None):
    return subprocess.run(
        [sys.executable, "utils/run_study.py", "--sbatch", *flags],
        cwd=ROOT, env=environment or clean_environment(), capture_output=True, text=True, timeout=600,
    )  # fmt: skip


@pytest.fixture
def cluster_data(tmp_path):
    (tmp_path / "data").mkdir()
    for category, split in product(CATEGORIES, ("train", "validation", "test")):
        record = sample_records("test", 1)[0] | {"id": f"{category} {split}"}
        (tmp_path / f"data/{category}_{split}.json").write_text(json.dumps([record]))
    return tmp_path


def test_the_jobs_are_those_of_submit_table2(recorder, cluster_data):
    path = write_study(cluster_data, CLUSTER.format(folder=cluster_data))
    done = sbatch("--study_addr", path, environment=clean_environment(**recorder))
    assert done.returncode == 0, done.stderr
    ours = read_jobs(recorder["CALLS"])
    recorder["CALLS"].unlink()
    variables = {"OUT": cluster_data / "t2", "DATA": cluster_data / "data", "PREFETCH": 0}
    assert submit(**recorder, **variables, SBATCH_ARGS="--account=lab").returncode == 0
    theirs = read_jobs(recorder["CALLS"])
    assert ours.pop("table.Qwen2.5-7B-Instruct.test.study").options["job-name"] == (
        "t2.table.Qwen2.5-7B-Instruct.test.study"
    )
    table = theirs.pop("table.Qwen2.5-7B-Instruct.test")
    assert len(table.after) == 3
    assert ours.keys() == theirs.keys() and len(ours) == len(done.stdout.splitlines()) - 1
    for name, job in ours.items():
        same = theirs[name]
        assert job.variables == same.variables, name
        assert (job.file, sorted(job.after)) == (same.file, sorted(same.after)), name
        options = {option: value for option, value in job.options.items() if option != "dependency"}
        assert options == {option: value for option, value in same.options.items() if option != "dependency"}, name
        script = {"answer": "baselines.py", "plan_and_answer": "planpers.py"}.get(Path(job.file).stem)
        if script:  # what we say is what the scripts take for granted
            required = ["--model_addr", "m", "--inputs_addr", "i", "--output_addr", "o"]
            required += ["--planner_model", "p"] if script == "planpers.py" else []
            parsed = [parser_of(script).parse_args([*required, *flags]) for flags in (job.flags, same.flags)]
            assert {**vars(parsed[0]), "rag": None} == {**vars(parsed[1]), "rag": None}
            assert parsed[0].rag == parsed[1].rag or script == "planpers.py"
        else:
            assert job.flags == same.flags, name


def printed_jobs(text):
    """The printed commands: variables, options of sbatch, file and flags, by the job's name."""
    jobs = {}
    for line in text.splitlines():
        words = shlex.split(re.fullmatch(r"job\d+=\$\(env (.*)\)", line)[1])
        place = words.index("sbatch")
        file = next(i for i, word in enumerate(words) if word.startswith("utils/slurm/"))
        name = next(word.partition("=")[2] for word in words if word.startswith("--job-name="))
        variables = dict(word.partition("=")[::2] for word in words[:place])
        jobs[name.partition(".")[2]] = (variables, words[place + 1 : file], words[file], words[file + 1 :])
    return jobs


PYTHON = """#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word"; done >> "$COMMANDS"
printf '\\n' >> "$COMMANDS"
"""


def commands_of(job, tmp_path):
    """The commands that a job's file runs, with something in Python's place that writes them down."""
    variables, options, file, flags = job
    python, commands = tmp_path / "python", tmp_path / "commands"
    python.write_text(PYTHON)
    python.chmod(0o755)
    commands.unlink(missing_ok=True)
    slurm = {"SLURM_SUBMIT_DIR": ROOT, "SLURM_JOB_ID": 1, "SLURM_JOB_NAME": "job", "SLURM_GPUS_ON_NODE": 1}
    if array := next((word for word in options if word.startswith("--array=")), None):
        last = int(array.rpartition("-")[2])
        slurm |= {"SLURM_ARRAY_JOB_ID": 1, "SLURM_ARRAY_TASK_ID": last, "SLURM_ARRAY_TASK_COUNT": last + 1}
    environment = clean_environment(**slurm) | variables | {"PYTHON": str(python), "COMMANDS": str(commands)}
    done = subprocess.run(
        ["bash", file, *flags], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0 or "cat:" in done.stderr, done.stderr  # the table's file shows a table
    return [line.split("\0")[:-1] for line in commands.read_text().splitlines()]


@pytest.mark.slow
def test_every_printed_job_runs_commands_that_the_scripts_take(cluster_data):
    (cluster_data / "human.json").write_text('{"q1": "first"}')
    text = CLUSTER.format(folder=cluster_data).replace("[slurm]", "[slurm]\nanswer_shards = 2\njudge_shards = 3")
    path = write_study(
        cluster_data,
        f"openai_models = ['gpt']\nfigure = 4\nhuman_addr = '{cluster_data}/human.json'\n"
        "judges = ['Qwen/Qwen2.5-32B-Instruct', 'lab/small']\nmethods = ['none', 'rag', 'planpers', 'planpers_gold']\n"
        f"categories = ['{ART}', '{SOCIETY}']\nseeds = [0, 1]\n{text}",
    )
    done = sbatch("--study_addr", path, "--dry_run", environment=clean_environment(OPENAI_API_KEY="sk-test"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        f"note: jobs fetch no models; first: utils/slurm/prefetch.sh {cluster_data}/data facebook/contriever-msmarco "
        "Qwen/Qwen2.5-7B-Instruct Qwen/Qwen2.5-32B-Instruct lab/small\n"
    )
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True).returncode == 0
    jobs = printed_jobs(done.stdout)
    # 2 categories: 3 rankings, 1 training, 4 methods x 2 seeds answered and merged, 2 judges and merges; then tables, a
    # comparison of the judges and the figure.
    assert len(jobs) == len(done.stdout.splitlines()) == 2 * (3 + 1 + 4 * 2 * 2 + 2 * 2) + 2 + 1 + 1
    made = set()
    for job in jobs.values():
        for script, *words in (command for command in commands_of(job, cluster_data)):
            args = vars(parser_of(script).parse_args(words))
            if script in ("utils/merge_shards.py", "utils/make_table.py", "retrieval/rank_dataset.py"):
                made.add(args.get("output_addr") or args["output_dataset_addr"])
            if script == "utils/merge_shards.py":
                assert len(args["shard_addr"]) == (3 if "_scores" in args["output_addr"] else 2)
            if script in ("utils/make_figures.py", "utils/compare_evaluators.py"):
                made.add(args["output_addr"])
            if script == "train_planner.py":
                made.add(f"{args['output_dir']}/best")
                assert args["gradient_accumulation_steps"] == 32
            if script == "planpers.py":
                assert bool(args["planner_model"]) != args["gold_plan"]
    steps = plan_study(read_study(path))
    assert made == {output for step in steps for output in step.outputs}
    no_gpu = {name for name, job in jobs.items() if "--gres=none" in job[1]}
    assert all(len([word for word in job[1] if "gres" in word]) <= 1 for job in jobs.values())
    wanted = {name for name in jobs if name.startswith("answer.gpt.") and ".planpers" not in name}
    assert no_gpu == wanted | {name for name in jobs if name.startswith("answer.gpt.") and ".planpers_gold" in name}


def test_sbatch_is_called_from_the_root_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^--sbatch: run it from the root of the repository, "):
        run_study.main(["--study_addr", "study.toml", "--sbatch"])


def test_no_cluster_and_one_that_refuses(cluster_data):
    path = write_study(cluster_data, CLUSTER.format(folder=cluster_data))
    done = sbatch("--study_addr", path, environment=clean_environment(PATH="/nowhere"))
    assert done.returncode == 2
    assert done.stderr.endswith("error: --sbatch: there is no sbatch here; run it on a login node of the cluster\n")
    (cluster_data / "bin").mkdir()
    (cluster_data / "bin/sbatch").write_text("#!/bin/sh\necho 'invalid account' >&2; exit 1\n")
    (cluster_data / "bin/sbatch").chmod(0o755)
    done = sbatch("--study_addr", path, environment=clean_environment(PATH=f"{cluster_data}/bin:{os.environ['PATH']}"))
    assert done.returncode == 2
    assert f"error: sbatch refuses rank.{ART}.test: invalid account\n  0 jobs are submitted; " in done.stderr


def test_folders_are_not_fetched(tmp_path, monkeypatch):
    """Nor an encoder that ranking does not need, nor what is behind an API."""

    def fetched(text):
        study = study_of(tmp_path, text)
        return prefetch_command(study, find_pending(run_study.check_commands(study, plan_study(study))))

    monkeypatch.chdir(tmp_path)
    for name in ("m", "j", "e"):
        Path(name).mkdir()
    here = "models = ['m']\njudges = ['j']\nencoder = 'e'\nplanner_base = 'm'\n"
    assert fetched(here) is None
    assert fetched(here.replace("['j']", "['lab/j']")) == "utils/slurm/prefetch.sh data lab/j"
    bm25 = here.replace("'e'", "'lab/e'") + "[arguments]\nrank = ['--ranker', 'bm25']"
    assert fetched(bm25) is None
    api = "openai_judges = ['j2']\nopenai_models = ['m2']\nmethods = ['none']"
    assert fetched(api) is None


def test_where_nothing_is_to_be_fetched_nothing_is_said_of_it(work, monkeypatch, capsys):
    monkeypatch.setattr(run_study, "ROOT", work.folder)
    forget(work.folder / FOLDER / ART / "none.json")
    assert work.run("--sbatch", "--dry_run") == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    arrays = [options for _, options, _, _ in printed_jobs(printed.out).values() if any("array" in o for o in options)]
    assert len(arrays) == 2  # all of an API: said once, and no GPU asked for beside it
    assert all([o for o in options if "gres" in o] == ["--gres=none"] for options in arrays)


def test_only_what_is_missing_is_submitted(work, monkeypatch, capsys):
    """And what may change: its merge may replace what is there, as the scripts may."""
    monkeypatch.setattr(run_study, "ROOT", work.folder)
    path = work.folder / f"data/{ART}_test.json"
    path.write_text(path.read_text() + "\n")
    assert work.run("--sbatch", "--dry_run") == 0
    jobs = printed_jobs(capsys.readouterr().out)
    names = [
        f"{kind}.tiny.{ART}.test.{m}" for m in ("none", "rag_random", "planpers_gold") for kind in ("answer", "merge")
    ]
    assert list(jobs) == [
        f"rank.{ART}.test", f"rank.{ART}.test_random", *names, f"judge.tiny.{ART}.test",
        f"merge.tiny.{ART}.test.scores", "table.tiny.test.study",
    ]  # fmt: skip
    for name, (variables, _, _, flags) in jobs.items():
        if name.startswith("merge"):
            assert variables["OVERWRITE"] == "1"
        else:
            assert ("--overwrite" in flags) == (not name.startswith("table"))  # which is made again without


def leave_a_shard(work):
    """Of the study's first answers nothing stays but a shard, as of an earlier submission."""
    answers = work.folder / FOLDER / ART / "none.json"
    for suffix in ("", ".manifest.json"):
        shutil.copy(f"{answers}{suffix}", f"{answers.with_suffix('')}.0_of_4.json{suffix}")
    forget(answers)


def test_shards_of_an_earlier_submission_are_replaced(work, monkeypatch, capsys):
    """The output is gone, but not the shards that were made from another dataset."""
    monkeypatch.setattr(run_study, "ROOT", work.folder)
    leave_a_shard(work)
    for change, expected in (("", False), ("\n", True)):
        path = work.folder / f"data/{ART}_test.json"
        path.write_text(path.read_text() + change)
        assert work.run("--sbatch", "--dry_run") == 0
        jobs = printed_jobs(capsys.readouterr().out)
        assert ("--overwrite" in jobs[f"answer.tiny.{ART}.test.none"][3]) == expected
        assert (jobs[f"merge.tiny.{ART}.test.none"][0]["OVERWRITE"] == "1") == expected


def test_shards_with_other_settings_are_refused_and_redone_on_demand(work, monkeypatch, capsys):
    monkeypatch.setattr(run_study, "ROOT", work.folder)
    leave_a_shard(work)
    work.edit("[arguments]", '[arguments]\nanswer = ["--temperature", "0.5"]')
    for other in work.folder.glob(f"{FOLDER}/*/*"):
        if not other.name.startswith("none.0_of_4"):
            other.unlink()
    with pytest.raises(
        UserError, match=r"none\.0_of_4\.json: was made with other settings: temperature: 0\.1, now 0\.5"
    ):
        work.run("--sbatch", "--dry_run")
    capsys.readouterr()
    assert work.run("--sbatch", "--dry_run", "--overwrite") == 0
    jobs = printed_jobs(capsys.readouterr().out)
    assert "--overwrite" in jobs[f"answer.tiny.{ART}.test.none"][3]
    assert jobs[f"merge.tiny.{ART}.test.none"][0]["OVERWRITE"] == "1"


# With a planner


PLANNER_TEXT = """
output = "out"
planner_base = "chat"
openai_models = ["tiny"]
api_key_addr = "key.txt"
base_url = "{url}"
methods = ["planpers", "planpers_gold"]
categories = ["Society_and_Culture"]
figure = 3
[arguments]
rank = ["--ranker", "bm25"]
train = ["--max_steps", "2", "--save_steps", "1", "--gradient_accumulation_steps", "1", "--eval_generate", "0"]
answer = ["--max_model_len", "4096", "--max_tokens", "512"]
planpers = ["--max_tokens_plan", "64"]
judge = ["--openai", "--api_key_addr", "key.txt", "--base_url", "{url}"]
"""


@pytest.mark.slow
def test_a_study_that_trains_its_planner(server, tmp_path, monkeypatch, capsys):
    """On a tiny random model; the plans are drawn by the server that answers them, in vLLM's place."""
    (tmp_path / "data").mkdir()
    for split in ("train", "validation", "test"):
        records = sample_records(split, 4, category="history")
        (tmp_path / f"data/{SOCIETY}_{split}.json").write_text(json.dumps(records))
    (tmp_path / "key.txt").write_text("sk-test")
    save_tiny_chat(tmp_path / "chat")
    write_study(tmp_path, PLANNER_TEXT.format(url=server.url))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("planpers.VLLMEngine", ServerPlanner)
    ran = []
    monkeypatch.setattr(run_study, "run", lambda words: ran.append(words) or run_here(words))
    work = Work(tmp_path, server, ran)

    assert work.run() == 0
    assert work.scripts() == [
        *["rank_dataset.py"] * 3, "train_planner.py", *["planpers.py"] * 2, "evaluate_responses.py", "make_table.py",
        "make_figures.py",
    ]  # fmt: skip
    assert work.run() == 0 and work.ran == []
    pictures = [tmp_path / f"{FOLDER}/study.{kind}" for kind in ("png", "pdf")]
    assert all(path.stat().st_size for path in pictures)
    pictures[1].unlink()
    assert work.run() == 0 and work.scripts() == ["make_figures.py"]

    planner = tmp_path / "out/planner" / SOCIETY
    (planner / "best").unlink()
    assert work.run() == 0 and work.scripts() == ["train_planner.py"]  # which only links it again
    shutil.rmtree(planner / "checkpoint-2")
    assert work.run() == 0 and work.scripts() == ["train_planner.py"]  # on from its first checkpoint, to the same
    manifest = read_folder_manifest(planner / "checkpoint-2")
    write_folder_manifest(planner / "checkpoint-2", {**manifest, "unevaluated": True})  # killed in its last evaluation
    assert work.run() == 0 and work.scripts() == ["train_planner.py"]
    assert read_folder_manifest(planner / "checkpoint-2") == manifest

    work.edit('"--max_steps", "2"', '"--max_steps", "3"')
    with pytest.raises(
        UserError, match=rf"^out/planner/{SOCIETY}/best: was made with other settings: max_steps: 2, now 3"
    ):
        work.run()
    capsys.readouterr()
    assert work.run("--overwrite", "--dry_run") == 0
    printed = capsys.readouterr().out
    assert f"# if out/planner/{SOCIETY}/best changes: {FOLDER}/{SOCIETY}/planpers.json\n" in printed
    assert "planpers_gold.json\n" not in printed
    work.edit('"--max_steps", "3"', '"--max_steps", "2"')

    for old, new, message in (
        ('planner_base = "chat"', 'planner_base = "chat2"', f"{SOCIETY}/best: was made with other settings: model: "),
        (
            '"--max_tokens_plan", "64"',
            '"--max_tokens_plan", "65"',
            "planpers.json: was made with other settings: plan_max",
        ),
        (
            '"--gradient_accumulation_steps", "1"',
            '"--gradient_accumulation_steps", "2"',
            "effective_batch_size: 1, now 2",
        ),
    ):
        work.edit(old, new)
        with pytest.raises(UserError) as refused:
            work.run()
        assert message in str(refused.value)
        work.edit(new, old)

    adapter = planner / "checkpoint-1/adapter_config.json"
    (planner / "best").unlink()
    (planner / "best").symlink_to("checkpoint-1")
    adapter.write_text(json.dumps({**json.loads(adapter.read_text()), "lora_alpha": 99}))
    assert work.run() == 0
    assert work.scripts()[0] == "planpers.py" and "--overwrite" in work.ran[0]  # another planner by its content
    assert work.run() == 0 and work.ran == []


ON_A_CLUSTER = """
data = "{folder}/data"
output = "{folder}/out"
encoder = "{folder}/encoder"
openai_models = ["tiny"]
api_key_addr = "{folder}/key.txt"
base_url = "{url}"
methods = ["rag"]
categories = ["Society_and_Culture"]
[arguments]
judge = ["--openai", "--api_key_addr", "{folder}/key.txt", "--base_url", "{url}"]
[slurm]
answer_shards = 2
judge_shards = 2
"""


@on_a_cluster
def test_a_study_on_a_cluster(server, tmp_path):
    """Once, and again when the dataset has changed: then every job replaces what the first ones made."""
    folder = make_data(tmp_path / "study", server.url)
    save_tiny_encoder(folder / "encoder")
    path = write_study(folder, ON_A_CLUSTER.format(folder=folder, url=server.url))
    with start_cluster() as cluster:
        environment = cluster.environment | {"PYTHON": sys.executable}
        for _ in range(2):
            done = sbatch("--study_addr", path, environment=environment)
            assert done.returncode == 0, done.stderr
            jobs = [line.split()[0] for line in done.stdout.splitlines()]
            assert len(jobs) == 6  # ranking, answers, their merge, verdicts, their merge, table
            cluster.wait(*jobs)
            logs = "".join(log.read_text() for log in (folder / "out/logs").iterdir())
            assert {state for job in jobs for state in cluster.states(job)} == {"COMPLETED"}, logs
            assert sbatch("--study_addr", path).stdout == (f"everything is there: 4 outputs; table: {folder}/{TABLE}\n")
            dataset = folder / f"data/{SOCIETY}_test.json"
            records = json.loads(dataset.read_text())
            assert len(json.loads((folder / f"{FOLDER}/{SOCIETY}/rag.json").read_text())) == len(records)
            dataset.write_text(json.dumps(records[:-1]))
