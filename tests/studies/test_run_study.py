"""utils/run_study.py: what of a study is up to date, and whole studies that run, stop and go on."""

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from api_server import Reply, default_reply, serve
from test_study import ART, ROOT, SOCIETY, study_of, write_study
from thinking_chat import save_tiny_thinker
from tiny_chat import sample_records, save_tiny_chat
from tiny_encoder import save_tiny_encoder
from zygote import ServerPlanner

import baselines
import evaluate_responses
from utils import run_study
from utils.benchmarks import tasks
from utils.benchmarks.lampqa import CATEGORIES as TITLES
from utils.benchmarks.lampqa import COMMUNITIES
from utils.checks.commands import module_of, parser_of
from utils.cli import UserError
from utils.files.fingerprints import UNTOLD
from utils.files.manifest import read_manifest
from utils.generation.engines import choose_generator
from utils.models.hub import model_fingerprint
from utils.records.datasets import read_dataset
from utils.studies.plan import Answers, answer_step, judge_step, plan_study, rank_steps, train_step
from utils.studies.state import differing_settings, parse
from utils.studies.study import ARGUMENTS, CATEGORIES, GENERATOR, Study

SAMPLE = ROOT / "tests/data/mini_lampqa"
DOCS = ROOT / "docs/studies_and_slurm.md"


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
        missing = (
            r"planpers_gold\.json: exists, and .* changed since: planpers_gold\.json\.manifest\.json is not beside it"
        )
        with pytest.raises(UserError, match=missing):
            work.run()
    assert (work.folder / FOLDER / ART / "planpers_gold.json.plans.json").exists()


def test_a_deleted_score_file_is_made_again_and_the_table_is_not(work, capsys):
    whole, asked = contents(work.folder), len(work.server.requests)
    (work.folder / FOLDER / ART / "none_scores.json").unlink()
    assert work.run() == 0
    assert work.outputs() == [f"{ART}/none_scores.json"]  # of the three that are judged together, one
    assert capsys.readouterr().out.count("# not needed: ") == 1  # its content is what it was
    assert contents(work.folder) == whole and len(work.server.requests) == asked
    assert work.run() == 0 and work.ran == []


def test_a_deleted_table_is_made_again_alone(work):
    (work.folder / TABLE).unlink()
    assert work.run() == 0
    assert work.scripts() == ["make_table.py"]


@pytest.mark.parametrize("manifest", ["", ".manifest.json"])
def test_a_table_that_was_edited_is_refused_before_anything_runs(work, manifest, capsys):
    """Or that has no manifest, as one of before it had any, of which nobody knows whether it is up to date."""
    path = work.folder / TABLE
    if manifest:
        Path(f"{path}{manifest}").unlink()
    else:
        path.write_text(path.read_text() + "\nMy notes.\n")
        assert work.run() == 0 and work.ran == []  # while it is up to date nobody minds
    edited = path.read_bytes()
    (work.folder / FOLDER / ART / "none_scores.json").unlink()
    with pytest.raises(UserError) as refused:
        work.run()  # what the table waits for is missing, so it will be made again
    absent = ": study.md.manifest.json is not beside it" if manifest else ""
    assert str(refused.value) == (
        f"{TABLE}: exists, and was not written by this script or was changed since{absent}\n"
        "  set the study back, give another output, or --overwrite to redo it"
    )
    assert work.ran == [] and path.read_bytes() == edited
    work.edit('methods = ["none", ', "methods = [")
    (work.folder / FOLDER / ART / "rag_random_scores.json").unlink()
    capsys.readouterr()
    assert work.run("--overwrite", "--dry_run") == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(" --overwrite")  # the table's command, as it will be run
    assert work.run("--overwrite") == 0
    assert work.outputs() == [f"{ART}/rag_random_scores.json", "study.md"]
    assert "My notes" not in path.read_text()
    assert work.run() == 0 and work.ran == []


def test_a_table_is_judged_by_contents_and_not_by_times(work):
    """The score files are younger than it, and so is the study, in which a comment is new."""
    (work.folder / "study.toml").write_text((work.folder / "study.toml").read_text() + "# mine\n")
    for path in (work.folder / FOLDER).glob("*/*_scores.json"):
        path.touch()
    assert work.run() == 0 and work.ran == []
    work.edit("base_url = ", "unscored_as_zero = true\nbase_url = ")
    assert work.run() == 0
    assert work.scripts() == ["make_table.py"] and "--overwrite" not in work.ran[0]
    assert work.run() == 0 and work.ran == []


def test_a_table_of_before_its_manifest_had_hashes_is_made_again_once(work):
    path = Path(f"{work.folder / TABLE}.manifest.json")
    manifest = json.loads(path.read_text())
    assert set(manifest["fingerprint"].pop("inputs")) == {
        f"{FOLDER}/{category}/{method}_scores.json"
        for category in (ART, SOCIETY) for method in ("none", "rag_random", "planpers_gold")
    }  # fmt: skip
    path.write_text(json.dumps(manifest))
    assert work.run() == 0
    assert work.scripts() == ["make_table.py"] and "--overwrite" not in work.ran[0]
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
        *(f"{ART}/{one}_scores.json" for one in ("none", "rag_random", "planpers_gold")),
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
            'gold.json: {} planner_target: null, now "reference"',
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
        (
            'judge = ["--openai"',
            'judge = ["--num_verdicts", "3", "--temperature", "0.7", "--openai"',
            ".json: {} temperature: 0.0, now 0.7; num_verdicts: null, now 3",
        ),
        ('rank = ["--ranker"', 'answer = ["--prompts_dir", "p"]\nrank = ["--ranker"', ".json: {} prompt: "),
        ('rank = ["--ranker"', 'answer = ["--max_concurrency", "2"]\nrank = ["--ranker"', None),  # changes no answer
    ],
)
def test_every_setting_that_counts_is_compared(work, old, new, message):
    (work.folder / "p").mkdir()
    text = (ROOT / "prompts/lampqa/no_personalization.txt").read_text()
    (work.folder / "p/no_personalization.txt").write_text(text.replace("[user]\n", "[user]\nPlease. "))
    save_reference_planner(work.folder / "p")
    work.edit(old, new)
    if message is None:
        assert work.run() == 0 and work.ran == []
    else:
        with pytest.raises(UserError) as refused:
            work.run()
        assert message.format("was made with other settings:") in str(refused.value)


def save_reference_planner(folder):
    text = "[system]\nList.\n[user]\n{profile}? {question}\n[assistant]\nPlan:{plan}\n[end]\n"
    (folder / "planner.txt").write_text(text)


def step_of(kind, *flags):
    """A step of a study with these flags in [arguments]."""
    arguments = {**{key: [] for key in ARGUMENTS}, **dict.fromkeys(ARGUMENTS & {kind: 0}.keys(), flags)}
    arguments["answer" if kind == "rag" else "planpers"] = list(flags)
    study = Study("study.toml", openai_models=("m",), encoder="encoder", methods=("rag",), arguments=arguments)
    answers = Answers("m", "test", ART, kind, 10, 0)
    if kind == "rank":
        return next(rank_steps(study, ART))
    if kind == "train":
        return train_step(study, ART)
    return judge_step(study, "j", [answers]) if kind == "judge" else answer_step(study, answers)


def made_by(step):
    """What a fingerprint of the step's output says, but for what files say."""
    made = module_of(step.script).make_fingerprint(parse(step, list(step.outputs)), tasks()[step.task])
    models = {"judge": "j", "model": "m"}
    if "encoder" in step.named.values():
        models = {"model": model_fingerprint("encoder")}
    elif step.kind == "train":
        models = {"model": f"{GENERATOR}@1"}
    made |= {name: models[name] for name in made.keys() & models.keys()}
    return {name: value for name, value in made.items() if value is not UNTOLD}


def seen(step, made):
    """The names of the settings in which a step differs from what was made."""
    differing = differing_settings(step, next(iter(step.outputs)), made)
    return {found.rpartition(": ")[0] for found in differing.split("; ") if found}


@pytest.fixture
def with_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p").mkdir()
    save_reference_planner(tmp_path / "p")
    save_tiny_encoder(tmp_path / "encoder")


PROMPTS = ["--prompts_dir", "p"]
REFERENCE = ["--planner_target", "reference", *PROMPTS]


@pytest.mark.parametrize(
    ("kind", "flags", "names"),
    [
        ("rank", ["--pooling", "cls", "--normalize"], {"pooling", "normalize"}),
        ("rank", ["--unit", "session"], {"unit"}),
        ("rag", ["--trim_items"], {"trim_items"}),
        ("judge", ["--verdicts", "probability"], {"temperature", "top_p", "max_tokens", "seed"}),
        ("judge", ["--num_verdicts", "3", "--temperature", "0.7"], {"num_verdicts", "temperature"}),
        ("judge", ["--max_model_len", "99"], {"max_model_len"}),
        ("rag", ["--chat_template_kwargs", '{"enable_thinking": false}'], {"chat_template_kwargs"}),
        ("planpers", ["--reasoning_effort", "low", "--top_k", "20"], {"reasoning_effort", "top_k"}),
        ("judge", ["--openai", "--extra_body", '{"a": 1}'], {"extra_body"}),
        ("judge", ["--temperature", "default", "--min_p", "0.1"], {"temperature", "min_p"}),
        ("train", ["--chat_template_kwargs", '{"enable_thinking": false}'], {"chat_template_kwargs"}),
        ("train", REFERENCE, {"planner_target", "lead_in"}),
        ("train", ["--warmup_steps", "7"], {"warmup_steps"}),
        ("planpers", ["--max_tokens_plan", "9"], {"plan_max_tokens"}),
        ("planpers", PROMPTS, {"plan_prompt: planner"}),
        ("planpers_gold", REFERENCE, {"planner_target", "lead_in"}),
    ],
)
def test_a_setting_is_seen_also_where_only_one_of_both_has_it(with_files, kind, flags, names):
    with_it, without = step_of(kind, *flags), step_of(kind)
    assert seen(with_it, made_by(with_it)) == seen(without, made_by(without)) == set()
    for step, made in ((with_it, made_by(without)), (without, made_by(with_it))):
        assert all(any(one.startswith(name) for one in seen(step, made)) for name in names)


PARSER = ["--reasoning_parser", "deepseek_r1"]


@pytest.mark.parametrize("script", ["baselines.py", "evaluate_responses.py"])
@pytest.mark.parametrize(
    ("opening", "flags", "parser"),
    [("<think>\n", PARSER, "deepseek_r1"), ("<think>\n\n</think>\n\n", PARSER, None), ("", [], None)],
    ids=["opened", "closed", "none"],
)
def test_a_parser_that_a_run_sets_aside_is_no_other_setting(tmp_path, monkeypatch, script, opening, flags, parser):
    """What a run settles is what its study expects; a parser that is given later, and is used, is another setting."""
    monkeypatch.chdir(tmp_path)
    model, inputs = str(save_tiny_thinker(tmp_path / "model", opening)), f"data/{ART}_test.json"
    (tmp_path / "data").mkdir()
    shutil.copy(SAMPLE / "test.json", inputs)
    given = {**{key: [] for key in ARGUMENTS}, "answer": flags, "judge": flags}
    study = Study("study.toml", models=(model,), judges=(model,), methods=("none",), arguments=given)
    [step] = [one for one in plan_study(replace(study, categories=(ART,))) if one.script == script]
    args, task = parse(step, list(step.outputs)), tasks()[step.task]
    if script == "baselines.py":
        made = baselines.make_fingerprint(args, task, choose_generator(args, task.output.schema))
    else:
        judging = evaluate_responses.choose_judge(args, task.metrics["aspect"].judge)
        made = evaluate_responses.make_fingerprint(args, task, "inputs") | judging.policy.thought_settings()
        made["judge"] = judging.identity
    assert made.get("reasoning_parser") == parser
    assert seen(step, made) == set()
    if not flags:
        assert seen(replace(step, given=PARSER), made) == {"reasoning_parser"}


def test_a_parser_for_a_model_that_is_not_here_any_more_is_no_other_setting(with_files):
    step, before = (replace(step_of("judge"), given=given) for given in (PARSER, []))
    assert seen(step, made_by(before)) == set()


def test_what_the_planner_or_the_model_decides_is_compared_where_a_flag_says_it(with_files):
    for kind, before, flags, name in (
        ("planpers", PROMPTS, REFERENCE, "planner_target"), ("rag", [], ["--max_model_len", "99"], "max_model_len")
    ):  # fmt: skip
        with_it, without = step_of(kind, *flags), step_of(kind, *before)
        known = made_by(without) | {name: "the planner's or the model's"}
        assert seen(without, known) == set() and name in seen(with_it, known)


def test_a_study_whose_encoder_has_sentence_transformers_files_is_up_to_date(work):
    encoder = save_tiny_encoder(work.folder / "encoder")
    modules = [
        {"type": "a.Transformer", "path": ""},
        {"type": "a.Pooling", "path": "1_Pooling"},
        {"type": "a.Normalize", "path": ""},
    ]
    (encoder / "modules.json").write_text(json.dumps(modules))
    (encoder / "1_Pooling").mkdir()
    (encoder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    work.edit('judges = ["Qwen', f'encoder = "{encoder}"\njudges = ["Qwen')
    work.edit('methods = ["none", "rag_random", "planpers_gold"]', 'methods = ["rag"]')
    work.edit('rank = ["--ranker", "bm25"]', "rank = []")
    assert work.run("--overwrite") == 0 and "rank_dataset.py" in work.scripts()
    assert work.run() == 0 and work.ran == []
    work.edit("rank = []", 'rank = ["--pooling", "cls"]')
    with pytest.raises(UserError, match='was made with other settings: pooling: "mean", now "cls"\n'):
        work.run()


def test_a_study_whose_servers_moved_is_up_to_date_and_asks_nobody(work):
    asked, lists = len(work.server.requests), work.server.lists_asked
    for key in ("base_url = ", '"--base_url", '):
        work.edit(f'{key}"{work.server.url}"', f'{key}"http://127.0.0.1:9/v1"')
    assert work.run() == 0 and work.ran == []
    assert (len(work.server.requests), work.server.lists_asked) == (asked, lists)


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


def test_seeds_and_a_method_of_ones_own_stand_in_the_table(work):
    for category in (ART, SOCIETY):
        (work.folder / f"mine_{category}.json").write_bytes(
            (work.folder / FOLDER / category / "none.json").read_bytes()
        )
    work.edit('methods = ["none", "rag_random", "planpers_gold"]', 'methods = ["none"]\nseeds = [0, 1]')
    work.edit("[arguments]", '[responses]\n"My method" = "mine_{category}.json"\n[arguments]')
    assert work.run() == 0
    table = (work.folder / TABLE).read_text()
    rows = dict(re.findall(r"^\| ([^|]+?) \| (.+)", table.replace("**", ""), re.MULTILINE))
    assert rows["My method"].replace("†", "") == rows["No personalization, seed 0"]  # the same answers
    assert re.fullmatch(r"(0\.\d{4} ± 0\.\d{4}|–)( \| (0\.\d{4} ± 0\.\d{4}|–)){3} \| 2 \|", rows["No personalization"])
    assert work.run() == 0 and work.ran == []
    (work.folder / f"mine_{ART}.json").unlink()
    work.edit("seeds = [0, 1]", "seeds = [0, 1, 2]")
    with pytest.raises(UserError, match=rf"^mine_{ART}\.json: no such file$"):
        work.run()


OWN = """
output = "out"
openai_models = ["near", "far"]
openai_judges = ["judge"]
api_key_addr = "key.txt"
base_url = "{near}"
methods = ["none"]
categories = ["Society_and_Culture"]
[servers.near]
price_in = 2000
price_out = 8500.5
price_cached = 500
[servers.far]
base_url = "{far}"
api_key_addr = "far.txt"
price_in = 1000
price_out = 4000
[servers.judge]
base_url = "{judge}"
api_key_addr = "judge.txt"
"""


def test_each_model_and_judge_has_its_address_key_and_prices(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_study, "run", run_here)
    with serve() as near, serve() as far, serve() as judge:
        make_data(tmp_path / "w", near.url)
        monkeypatch.chdir(tmp_path / "w")
        for name in ("far", "judge"):
            Path(f"{name}.txt").write_text(f"sk-{name}")
        write_study(Path(), OWN.format(near=near.url, far=far.url, judge=judge.url))
        assert run_study.main(["--study_addr", "study.toml"]) == 0
        for server, key, models in (
            (near, "sk-test", {"near"}),
            (far, "sk-far", {"far"}),
            (judge, "sk-judge", {"judge"}),
        ):
            assert {*server.keys} == {key} and {request["model"] for request in server.requests} == models

        def count(server, price_in, price_cached, price_out):
            cost = 0
            for request in server.requests:
                prompt = sum(len(one["content"].split()) for one in request["messages"])
                cost += (prompt - prompt // 2) * price_in + prompt // 2 * price_cached
                cost += len(server.reply(request).text.split()) * price_out
            return cost / 1e6

        cost = count(near, 2000, 500, 8500.5) + count(far, 1000, 1000, 4000)
        printed = capsys.readouterr().out
        assert printed.splitlines()[-1] == f"cost: {cost:.4f} USD" and cost > 0.1
        assert "sk-" not in printed
        assert not any(b"sk-" in content for _, _, content in snapshot(Path("out")).values())
        asked = len(near.requests)
        text = Path("study.toml").read_text().replace(far.url, "http://127.0.0.1:9/v1")  # no setting, nor are prices
        Path("study.toml").write_text(f"{text}price_in = 3000\nprice_out = 5000\n")
        assert run_study.main(["--study_addr", "study.toml"]) == 0 and len(near.requests) == asked
        cost += count(judge, 3000, 3000, 5000)
        printed = capsys.readouterr().out.splitlines()
        assert printed[0].startswith("everything is there") and printed[-1] == f"cost: {cost:.4f} USD"


def test_answers_of_which_most_are_unusable_end_the_study_once(work, monkeypatch, capsys):
    forget(work.folder / FOLDER / ART / "none.json")
    monkeypatch.setattr(work.server, "reply", lambda request: Reply("I'd rather not."))
    assert work.run() == 1 and work.scripts() == ["baselines.py"]
    errors = capsys.readouterr().err
    assert "none.json: 5 of 5 answers are unusable; --retry_failed asks" in errors and "  5: no personalized" in errors
    monkeypatch.setattr(work.server, "reply", default_reply)
    assert work.run() == 0 and work.scripts() == ["evaluate_responses.py", "make_table.py"]


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
    monkeypatch.setattr(
        run_study, "command_of", lambda one, num_gpus: ({}, one.words())
    )  # ROOT is not the scripts' here
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


def test_completions_of_all_steps_are_paid_once(work, capsys):
    """With the flags that the docs show."""
    [flags] = re.findall(r"\[arguments\]\n(.*--completions.*\n.*--completions.*)\n", DOCS.read_text(encoding="utf-8"))
    work.edit("[arguments]\n", "[arguments]\n" + flags.partition("\n")[0] + "\n")
    work.edit('judge = ["--openai"', flags.partition("\n")[2][:-1] + ', "--openai"')
    capsys.readouterr()
    assert work.run() == 0 and work.ran == []  # it is not a setting
    whole = contents(work.folder)
    shutil.rmtree("out")
    assert work.run("--dry_run") == 0
    asking = re.findall(r"python \S*(?:baselines|planpers|evaluate_responses)\.py.*", capsys.readouterr().out)
    assert len(asking) == 2 * (3 + 1)
    assert all("--completions output/completions" in command for command in asking)
    asked = len(work.server.requests)
    assert work.run() == 0 and len(work.server.requests) > asked
    shutil.rmtree("out")
    asked = len(work.server.requests)
    assert work.run() == 0 and len(work.server.requests) == asked
    assert contents(work.folder) == whole


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
    command = [sys.executable, ROOT / "utils/run_study.py", "--study_addr", "study.toml"]
    with subprocess.Popen(command, cwd=work.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            wait_until(lambda: len(work.server.requests) >= asked + 5 or process.poll() is not None)
            assert process.poll() is None, process.stderr.read()
            assert len(processes_in(work.folder)) == 2
            process.send_signal(signum)
            _, errors = process.communicate(timeout=600)
            wait_until(lambda: not processes_in(work.folder))
        finally:
            hold.set()  # else a run that failed here would wait for its answers, and its end be waited for
            work.server.reply = default_reply
    assert process.returncode == (-signum if signum == signal.SIGKILL else 130)
    if signum != signal.SIGKILL:
        assert errors.decode().count("interrupted; what is finished is kept, run the same command again\n") == 2
    assert not (work.folder / FOLDER / ART / place).exists()
    assert work.run() == 0
    expected = ["baselines.py", "evaluate_responses.py"] if place == "none.json" else ["evaluate_responses.py"]
    assert work.scripts() == expected  # the scores are what they were, and so is the table
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
        "import sys; from utils import cli, run_study; run_study.KILL_SECONDS = 1; "
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


SLOW = """
import os, signal, sys, time

def save(*_):
    time.sleep(10)
    print("saved", flush=True)
    sys.exit(130)

signal.signal(signal.SIGTERM, save)
print(os.environ["STUDY_SECONDS"], flush=True)
time.sleep(3600)
"""


def test_a_command_has_the_time_to_save_a_checkpoint(tmp_path):
    """More than the 8 seconds in which other scripts leave."""
    code = "import sys; from utils import cli, run_study; cli.run_script(lambda: run_study.run(['-c', sys.argv[1]]))"
    with subprocess.Popen([sys.executable, "-c", code, SLOW], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "60\n"
        process.terminate()
        assert process.communicate(timeout=600)[0] == "saved\n" and process.returncode == 130


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
    flags = {"base_url": server.url, "api_key_addr": str(tmp_path / "key.txt")}
    monkeypatch.setattr("utils.generation.engines.VLLMEngine", partial(ServerPlanner, flags))
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
    assert work.run() == 2  # its first checkpoint has no optimizer state to go on from
    shutil.rmtree(planner)
    assert work.run() == 0 and work.scripts() == ["train_planner.py"]  # to the same weights

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
