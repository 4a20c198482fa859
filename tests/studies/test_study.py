"""A study's file, what is refused in it, and the commands it stands for."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from utils import run_study
from utils.checks.commands import parser_of
from utils.cli import UserError
from utils.studies.plan import plan_study
from utils.studies.study import CATEGORIES, api_flags, read_study

ROOT = Path(__file__).resolve().parents[2]
STUDIES = sorted((ROOT / "utils/studies").glob("*.toml"))
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
        ("responses = 'a.json'", "responses: found 'a.json', expected a table, such as"),
        (
            "[responses]\n'A' = 'a.json'",
            "responses: A: found 'a.json', expected a path with {category}, and with {split}",
        ),
        (
            "splits = ['test', 'train']\n[responses]\n'A' = '{category}.json'",
            "responses: A: found '{category}.json', expected {split}",
        ),
        (
            "[responses]\n'A b' = '{category}.json'\n'A-b' = '{category}'",
            "responses: found 'A b', expected one name that becomes A_b",
        ),
        (
            "judges = []",
            "judges: found [], expected at least one, or no such line for the default; answers alone are made by",
        ),
        ("models = []", "models: found [], expected at least one, or no such line for the default"),
        ("openai_models = []", "openai_models: found [], expected at least one, or no such line"),
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
        ("servers = 'a'", "servers: found 'a', expected tables, such as"),
        (
            "[servers.m]\nprice_in = 1\nprice_out = 1",
            "servers: found 'm', expected a name of openai_models or openai_judg",
        ),
        ("openai_models = ['m']\n[servers]\nm = 'http://a'", "servers: m: found 'http://a', expected a table, such as"),
        ("openai_models = ['m']\n[servers.m]\nurl = ''", "servers: m: there is no 'url'; did you mean 'base_url'?"),
        ("openai_models = ['m']\n[servers.m]\nbase_url = 3", "servers: m: base_url: found 3, expected a text"),
        (
            "openai_models = ['m']\n[servers.m]\nprice_in = '3'",
            "servers: m: price_in: found '3', expected a number from",
        ),
        (
            "openai_models = ['m']\n[servers.m]\nprice_in = nan",
            "servers: m: price_in: found nan, expected a number from",
        ),
        (
            "openai_models = ['m']\n[servers.m]\nprice_in = 3",
            "servers: m: found ['price_in'], expected price_in and pric",
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


def test_the_studys_key_goes_to_no_address_of_a_models_own(tmp_path):
    text = 'openai_models = ["a", "b", "c"]\napi_key_addr = "k"\nbase_url = "http://s/v1"\n'
    study = study_of(tmp_path, f'{text}[servers.b]\nbase_url = "http://b/v1"\n[servers.c]\napi_key_addr = "own"')
    assert api_flags(study, "a") == ["--openai", "--api_key_addr", "k", "--base_url", "http://s/v1"]
    assert api_flags(study, "b") == ["--openai", "--base_url", "http://b/v1"]
    assert api_flags(study, "c") == ["--openai", "--api_key_addr", "own", "--base_url", "http://s/v1"]


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
        # 7 tasks x 2 settings, 4 rankers: none, and 2 numbers of items of each; 2 metrics a task. A table a setting.
        ("lamp", {"rank": 56, "answer": 126, "judge": 28, "table": 2}),
        # 4 tasks, 3 metrics.
        # Both splits by four rankers, and of another user; eight systems, each with a training.
        ("lamp_flant5", {"rank": 140, "train": 112, "answer": 112, "judge": 28, "table": 2}),
        ("longlamp", {"rank": 32, "answer": 72, "judge": 24, "table": 2}),
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
    assert len(STUDIES) == 10


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


def words_behind(flags, flag):
    """What stands behind each of a flag."""
    text = "\n".join(flags)
    return [part.split("\n--")[0].strip("\n").split("\n") for part in text.split(f"{flag}\n")[1:]]


def test_seeds_are_rows_and_their_spread_a_table(tmp_path):
    text = "methods = ['none', 'rag']\nnum_contexts = [4, 10]\nseeds = [0, 1, 5]"
    table = next(step for step in plan_study(study_of(tmp_path, text)) if step.kind == "table")
    rag = [f"RAG (asker's profile), k = {k}" for k in (4, 10)]
    assert words_behind(table.flags, "--seeds") == [
        [name, *(f"{name}, seed {seed}" for seed in (0, 1, 5))] for name in ("No personalization", *rag)
    ]
    rows = [name for name, *_ in words_behind(table.flags, "--system")]
    assert rows == [row for _, *its in words_behind(table.flags, "--seeds") for row in its] and len(rows) == 9
    one = next(step for step in plan_study(study_of(tmp_path, "methods = ['none', 'rag']")) if step.kind == "table")
    assert "--seeds" not in one.flags


def test_a_method_of_ones_own_is_judged_and_tabled_with_the_others(tmp_path):
    text = "models = ['lab/m', 'lab/n']\nmethods = ['none', 'rag']\nsplits = ['test', 'validation']\noutput = 'o'\n"
    text += "categories = ['Society_and_Culture']\n[responses]\n'My method' = 'mine/{split}/{category}.json'\n"
    steps = plan_study(study_of(tmp_path, text))
    mine = f"o/own/test/{SOCIETY}/My_method_scores.json"
    judged = [step for step in steps if mine in step.outputs]
    assert [step.kind for step in judged] == ["judge"]  # once, for the tables of both models
    assert judged[0].outputs[mine] == [f"data/{SOCIETY}_test.json", f"mine/test/{SOCIETY}.json"]
    tables = [step for step in steps if step.kind == "table" and step.job.endswith("test.study")]
    assert [words_behind(step.flags, "--system")[-1] for step in tables] == [["My method", mine]] * 2
    assert words_behind(tables[0].flags, "--baseline") == [["No personalization", "RAG (asker's profile)"]]
    with pytest.raises(UserError, match="responses: 'No personalization' is a row of the study itself"):
        plan_study(study_of(tmp_path, text.replace("My method", "No personalization")))


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


def test_the_planner_is_trained_on_a_validation_file_that_is_ranked_once(tmp_path):
    study = study_of(tmp_path, "splits = ['validation']\nmethods = ['planpers']\ncategories = ['Society_and_Culture']")
    steps = {step.job: step for step in plan_study(study)}
    ranked = [f"rank.{SOCIETY}.validation", f"rank.{SOCIETY}.train"]
    assert [job for job in steps if job.startswith("rank.")] == ranked
    (inputs,) = steps[f"train.{SOCIETY}"].outputs.values()
    assert set(inputs) == {output for job in ranked for output in steps[job].outputs}


def test_figure_2_has_a_system_for_each_number_of_posts():
    study = read_study(str(ROOT / "utils/studies/figure2.toml"))
    step = next(step for step in plan_study(study) if step.kind == "figure")
    args = parser_of(step.script).parse_args(step.words(list(step.outputs), False)[1:])
    assert [system[0] for system in args.system] == ["0", "2", "4", "6", "8", "10"]
    assert {len(system) for system in args.system} == {1 + 3}  # its name, and a file a category
    assert step.named["--output_addr"] == "output/table2/gemma-2-9b-it/test/figure2.png"
