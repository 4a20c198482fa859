"""Studies of LaMP and LongLaMP: what stands in their files, their commands, and whole ones on the samples."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from api_server import Reply, serve
from lamp_samples import read_sample
from slurm_cluster import start_cluster
from test_run_study import run_here
from test_slurm import on_a_cluster
from test_study import ROOT, outputs_of, study_of, write_study
from tiny_chat import save_tiny_chat
from tiny_encoder import save_tiny_encoder
from tiny_t5 import save_tiny_t5

from utils import run_study
from utils.benchmarks import tasks
from utils.checks.commands import parser_of, preflights_of
from utils.cli import UserError
from utils.files.manifest import read_manifest
from utils.studies.checks import check_disk
from utils.studies.jobs import make_jobs, prefetch_command
from utils.studies.plan import plan_study
from utils.studies.state import find_pending
from utils.studies.study import read_study

LAMP, LONGLAMP, FLANT5 = (str(ROOT / f"utils/studies/{name}.toml") for name in ("lamp", "longlamp", "lamp_flant5"))
OURS = 'tasks = ["LaMP-2"]\nsettings = ["user"]\nsplits = ["dev"]\n'


def save_sample(folder, name, settings, split):
    """The sample's records as utils/download_datasets.py names their files, for each setting."""
    records = read_sample(name, split)
    for setting in settings:
        path = folder / f"{name}_{setting}_{split}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(records, ensure_ascii=False), encoding="utf-8")


# The file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'tasks = ["LaMP-8"]\nsettings = ["user"]\nsplits = ["dev"]',
            "tasks: there is no 'LaMP-8'; did you mean 'LaMP-",
        ),
        (
            'tasks = ["PersonaMem-32k"]\nsettings = ["user"]\nsplits = ["dev"]',
            "tasks: found 'PersonaMem-32k', expected tasks of LaMP or LongLaMP: no study runs PersonaMem; docs/",
        ),
        (
            'tasks = ["LaMP-QA"]\nsettings = ["user"]\nsplits = ["dev"]',
            "tasks: there is no 'LaMP-QA'; did you mean 'LaMP-",
        ),
        (
            OURS.replace('"]', '", "LongLaMP-topic"]', 1),
            "tasks: found ['LaMP-2', 'LongLaMP-topic'], expected those of one",
        ),
        ('tasks = ["LaMP-2"]\nsplits = ["dev"]', "settings: found None, expected a list: they are in the names of the"),
        ('tasks = ["LaMP-2"]\nsettings = ["user"]', "splits: found None, expected a list"),
        (OURS + 'judges = ["j"]', "judges: found ['j'], expected nothing of the kind with tasks"),
        (OURS + "figure = 2", "figure: found 2, expected nothing of the kind with tasks"),
        (
            OURS + 'methods = ["planpers"]',
            "methods: found 'planpers', expected one of none, rag_random, rag: tasks have no",
        ),
        (OURS + 'methods = ["rags"]', "methods: there is no 'rags'; did you mean 'rag'?"),
        (OURS + 'rankers = ["bm"]', "rankers: there is no 'bm'; did you mean 'bm25'?"),
        (OURS + "rankers = []", "rankers: found [], expected at least one, or no such line for the default"),
        ('settings = ["user"]', "settings: found ['user'], expected them with tasks"),
        ('paper = "FlanT5-base"', "paper: found 'FlanT5-base', expected it with tasks"),
    ],
)
def test_a_mistake_in_the_file_is_named_in_one_line(tmp_path, text, message):
    path = write_study(tmp_path, text)
    with pytest.raises(UserError) as refused:
        run_study.main(["--study_addr", path])
    assert str(refused.value).startswith(f"{path}: {message}") and "\n" not in str(refused.value)


def test_a_ranker_is_the_studys_own_flag_where_it_names_any(tmp_path):
    text = OURS + 'rankers = ["bm25"]\n[arguments]\nrank = ["--ranker", "recency"]'
    with pytest.raises(UserError, match=r"arguments, rank_dataset\.py: found '--ranker', expected none of the flags"):
        run_study.main(["--study_addr", write_study(tmp_path, text), "--dry_run"])


def test_a_missing_file_is_named_with_what_fetches_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path, OURS)
    with pytest.raises(UserError) as refused:
        run_study.main(["--study_addr", "study.toml"])
    fetch = "the dataset is fetched by utils/download_datasets.py --dataset LaMP-2 --setting user"
    assert str(refused.value) == f"data/LaMP-2_user_dev.json: no such file; {fetch}"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('paper = "FlanT6"', "--paper 'FlanT6': the paper has no such model; its models are FlanT5-base"),
        ('paper = "FlanT5-base"\nmethods = ["rag"]', "--paper: no --system is named as a method of the paper"),
    ],
)
def test_a_paper_that_cannot_stand_in_the_table_is_told_first(tmp_path, monkeypatch, more, message):
    monkeypatch.chdir(tmp_path)
    save_sample(tmp_path / "data", "LaMP-2", ["user"], "dev")
    write_study(tmp_path, OURS + more)
    with pytest.raises(UserError) as refused:
        run_study.main(["--study_addr", "study.toml"])
    assert str(refused.value).startswith(message)


# The commands


def test_names_of_rankers_and_metrics(tmp_path):
    text = 'models = ["lab/m"]\noutput = "o"\nrankers = ["contriever", "random", "hybrid"]\nnum_contexts = [1, 10]\n'
    study = study_of(tmp_path, text + OURS + 'methods = ["none", "rag", "rag_random"]')
    ranked = [f"o/ranked/LaMP-2_user_dev{by}.json" for by in ("", "_by_random", "_by_hybrid", "_random_by_random")]
    assert outputs_of(study, "rank") == ranked
    folder = "o/m/user_dev/LaMP-2/"
    stems = ["none", *(f"rag{by}{k}" for by in ("", "_by_random", "_by_hybrid") for k in ("_k1", ""))]
    stems += ["rag_random_by_random_k1", "rag_random_by_random"]  # of another user's profile
    assert outputs_of(study, "answer") == [f"{folder}{stem}.json" for stem in stems]
    scores = [f"{folder}{stem}_scores_{metric}.json" for metric in ("accuracy", "f1") for stem in stems]
    assert outputs_of(study, "judge") == scores
    [table] = [step for step in plan_study(study) if step.kind == "table"]
    rows = {name: files for name, *files in parser_of(table.script).parse_args(table.flags).system}
    assert list(rows)[:4] == ["No personalization", "Contriever, k = 1", "Contriever, k = 10", "Random, k = 1"]
    assert rows["Contriever and recency, k = 10"] == [
        f"{folder}rag_by_hybrid_scores_{m}.json" for m in ("accuracy", "f1")
    ]
    encoded = {step.job: "--model_name" in step.named for step in plan_study(study) if step.kind == "rank"}
    assert list(encoded.values()) == [True, False, True, False]
    assert list(rows)[-2:] == ["Random, non-personalized, k = 1", "Random, non-personalized, k = 10"]
    [drawn] = [step.flags for step in plan_study(study) if step.job == "rank.LaMP-2.user_dev_random_by_random"]
    assert drawn == ["--ranker", "random", "--random_profile", "--seed", "0"]


def test_rankers_go_with_lamp_qa_too(tmp_path):
    text = (
        'methods = ["none", "rag", "planpers"]\nrankers = ["bm25"]\ncategories = ["Society_and_Culture"]\noutput = "o"'
    )
    study = study_of(tmp_path, text)
    ranked = [Path(output).stem.removeprefix("Society_and_Culture_") for output in outputs_of(study, "rank")]
    assert ranked == ["test_by_bm25", "test", "train", "validation"]  # the planner reads what the encoder ranks
    answers = [Path(output).stem for output in outputs_of(study, "answer")]
    assert answers == ["none", "rag_by_bm25", "planpers"]


@pytest.mark.parametrize(("path", "split"), [(LAMP, "dev"), (LONGLAMP, "test")])
def test_a_dry_run_of_a_shipped_study_prints_all_its_commands(path, split, tmp_path, monkeypatch, capsys):
    """With an encoder and models that are here, for nothing can be fetched."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    study = read_study(path)
    for name in study.tasks:
        save_sample(tmp_path / "data", name, study.settings, split)
    save_tiny_encoder(tmp_path / "encoder")
    with serve() as server:
        text = Path(path).read_text().replace("models =", f'base_url = "{server.url}"\nopenai_models =')
        write_study(tmp_path, text.replace('"facebook/contriever"', '"encoder"'))
        assert run_study.main(["--study_addr", "study.toml", "--dry_run"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\npython ") == len(plan_study(study))
    for name in study.tasks:
        for metric in tasks()[name].metric_names(official=False):
            pattern = rf"evaluate_responses\.py --inputs_addr data/{name}_\w+_{split}\.json --strategy {metric} "
            assert len(re.findall(pattern, printed)) == len(study.settings)
    assert f"--paper {study.paper} --paper_table {study.settings[1]}" in printed
    assert "--evaluator_llm" not in printed
    assert [one.name for one in tmp_path.iterdir() if one.name == "output"] == []


def test_on_a_cluster_scores_are_computed_without_a_gpu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = study_of(tmp_path, 'models = ["lab/m"]\n' + OURS + 'rankers = ["bm25", "contriever"]\nencoder = "lab/e"\n')
    pending = find_pending(run_study.check_commands(study, plan_study(study)))
    jobs = {job.name: job for job in make_jobs(study, pending)}
    scoring = jobs["judge.m.LaMP-2.user_dev.f1"]
    assert {"--gres=none", "--mem=16G", "--array=0-3"} <= set(scoring.resources)
    assert scoring.flags == ["--strategy", "f1"]
    assert scoring.variables["JUDGE"] == "" and scoring.variables["SUFFIX"] == "_scores_f1"
    assert jobs["rank.LaMP-2.user_dev_by_bm25"].variables["ENCODER"] == ""
    assert jobs["merge.m.LaMP-2.user_dev.scores_f1"].after == ["judge.m.LaMP-2.user_dev.f1"]
    assert prefetch_command(study, pending) == "DATASETS=LaMP-2:user utils/slurm/prefetch.sh data lab/e lab/m"
    words = ["evaluate_responses.py", "--inputs_addr", "d.json", "--strategy", "f1", "--response_addr", "a.json"]
    assert preflights_of([*words, "--score_addr", "s.json"]) == [["--inputs_addr", "d.json", "--output_addr", "s.json"]]


# Whole studies


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Runs a study of two tasks in this process; answers are a label, a number, or a word."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    ran = []

    def run(words):
        ran.append(words)
        return run_here(words)

    monkeypatch.setattr(run_study, "run", run)

    def reply(request):
        text = request["messages"][-1]["content"]
        return Reply("comedy" if "tags" in text else "4" if "review" in text else "A title.")

    for name in ("LaMP-2", "LaMP-3"):
        save_sample(tmp_path / "data", name, ["user", "time"], "dev")
        downloaded = {"fingerprint": {"setting": "time"}, "output_sha256": ""}
        (tmp_path / f"data/{name}_time_dev.json.manifest.json").write_text(json.dumps(downloaded))
    save_tiny_encoder(tmp_path / "encoder")
    with serve(reply) as server:
        text = Path(LAMP).read_text()
        text = re.sub(r"tasks = .*", 'tasks = ["LaMP-2", "LaMP-3"]', text).replace(
            "num_contexts = [1, 4]", "num_contexts = [1]"
        )
        text = text.replace("models =", f'base_url = "{server.url}"\nopenai_models =')
        write_study(tmp_path, text.replace('"facebook/contriever"', '"encoder"'))

        def start(*flags):
            ran.clear()
            return run_study.main(["--study_addr", "study.toml", *flags])

        start.ran, start.folder, start.server = ran, tmp_path, server
        yield start


def test_a_whole_study_of_two_tasks(study, capsys):
    assert study() == 0
    # For each of 2 tasks and settings: 4 rankings, 5 answers, 2 metrics; then a table a setting.
    assert len(study.ran) == 2 * 2 * (4 + 5 + 2) + 2
    text = (study.folder / "output/lamp/Qwen2.5-7B-Instruct/time_dev/study.md").read_text()
    heads, _, *lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert heads[1:5] == ["LaMP-2, accuracy", "LaMP-2, f1", "LaMP-3, MAE", "LaMP-3, RMSE"]
    rows = {name: cells for name, *cells in lines}
    ours = ["No personalization", *(f"{ranker}, k = 1" for ranker in ("Random", "BM25", "Contriever", "Recency"))]
    theirs = [f"{method} (paper)" for method in ("Random, non-personalized", "IPA, tuned", "FiD, k = 16")]
    assert list(rows) == [*ours, *theirs]
    assert [cells[4] for cells in rows.values()] == ["12"] * 5 + ["–"] * 3
    assert "(0.549, " in rows["Recency, k = 1"][0] and "(0.608, " in rows["Recency, k = 1"][3]
    assert "FlanT5-base: fine-tuned" in text
    by_ranker = {path.stem.partition("_by_")[2]: read_manifest(path)["fingerprint"].get("use_date")
                 for path in (study.folder / "output/lamp/ranked").glob("LaMP-3_time_dev*.json")
                 if read_manifest(path)}  # fmt: skip
    assert by_ranker == {"": True, "bm25-okapi": True, "random": None, "recency": None}
    capsys.readouterr()
    assert study() == 0
    assert study.ran == [] and "everything is there: " in capsys.readouterr().out


def test_it_goes_on_after_what_was_lost_and_sees_what_changed(study):
    assert study() == 0
    folder = study.folder / "output/lamp/Qwen2.5-7B-Instruct/user_dev/LaMP-3"
    before = (folder / "rag_by_recency_k1_scores_MAE.json").read_bytes()
    (folder / "rag_by_recency_k1_scores_MAE.json").unlink()
    assert study() == 0
    [words] = study.ran
    assert words[-1].endswith("user_dev/LaMP-3/rag_by_recency_k1_scores_MAE.json")
    assert (folder / "rag_by_recency_k1_scores_MAE.json").read_bytes() == before
    path = study.folder / "data/LaMP-3_user_dev.json"
    records = json.loads(path.read_text())
    records[0]["profile"][0]["date"] = "2099-01-01"
    path.write_text(json.dumps(records))
    assert study() == 0
    scripts = [Path(words[0]).name for words in study.ran]
    assert scripts.count("rank_dataset.py") == 4  # of this task in this setting
    assert "LaMP-2" not in " ".join(word for words in study.ran for word in words if "make_table" not in words[0])
    study_file = study.folder / "study.toml"
    study_file.write_text(study_file.read_text() + '[arguments]\nanswer = ["--temperature", "0.7"]\n')
    with pytest.raises(UserError, match=r"none\.json: was made with other settings: temperature"):
        study()


def test_a_changed_prompt_of_a_task_is_seen(study, tmp_path):
    assert study() == 0
    manifest = read_manifest(tmp_path / "output/lamp/Qwen2.5-7B-Instruct/user_dev/LaMP-3/none.json")
    assert list(manifest["fingerprint"]["prompt"]) == ["rating"]
    words = tmp_path / "words"
    words.mkdir()
    for prompt in (ROOT / "prompts/lamp").glob("*.txt"):
        text = prompt.read_text(encoding="utf-8")
        (words / prompt.name).write_text(text + "\n" if prompt.stem == "rating" else text, encoding="utf-8")
    study_file = tmp_path / "study.toml"
    study_file.write_text(study_file.read_text() + '[arguments]\nanswer = ["--prompts_dir", "words"]\n')
    with pytest.raises(UserError, match=r"LaMP-3/none\.json: was made with other settings: prompt"):
        study()


@pytest.mark.slow
def test_it_is_whole_in_processes_of_their_own_too(study):
    command = [sys.executable, ROOT / "utils/run_study.py", "--study_addr", "study.toml"]
    done = subprocess.run(command, cwd=study.folder, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    tables = [f"output/lamp/Qwen2.5-7B-Instruct/{setting}_dev/study.md" for setting in ("user", "time")]
    assert done.stdout.splitlines()[-1].endswith(f"; tables: {', '.join(tables)}")
    assert study() == 0 and study.ran == []


# Fine-tuned generators


@pytest.fixture
def fine_tuned(tmp_path, monkeypatch):
    """The shipped study of FlanT5 for LaMP-3 in one setting, with a tiny T5."""
    monkeypatch.chdir(tmp_path)
    for split in ("train", "dev"):
        save_sample(tmp_path / "data", "LaMP-3", ["user"], split)
    save_tiny_encoder(tmp_path / "encoder")
    save_tiny_t5(tmp_path / "t5")
    text = Path(FLANT5).read_text().replace('"facebook/contriever"', '"encoder"').replace("google/flan-t5-base", "t5")
    text = re.sub(r"tasks = .*", 'tasks = ["LaMP-3"]', text).replace('["user", "time"]', '["user"]')
    text = text.replace('"prompts/', f'"{ROOT}/prompts/')
    short = 'train = ["--epochs", "1", "--max_input_length", "150", "--max_target_length", "8", '
    return write_study(tmp_path, text.replace("train = [", short))


@pytest.mark.parametrize("train", ['["--lora_rank", "8"]', '["--lora_rank=8"]'])
def test_adapters_of_chat_models_are_scored_by_the_answers_as_they_were_read(tmp_path, train):
    text = "tasks = ['LaMP-3']\nsettings = ['user']\nsplits = ['dev']\nmethods = ['none']\nfine_tuned = true\n"
    steps = plan_study(study_of(tmp_path, f"{text}[arguments]\ntrain = {train}"))
    assert [step.flags for step in steps if step.kind == "judge"] == [["--strategy", "MAE"], ["--strategy", "RMSE"]]


def test_the_flant5_study_has_the_papers_rows_each_by_a_model_of_its_own(tmp_path):
    study = read_study(FLANT5)
    steps = plan_study(study)
    tables = [step for step in steps if step.kind == "table"]
    rows = [[name for name, *_ in parser_of(step.script).parse_args(step.flags).system] for step in tables]
    ours = ["No personalization", *(f"{name}, k = 1" for name in ("Random", "BM25", "Contriever", "Recency"))]
    ours.insert(1, "Random, non-personalized")
    assert rows == [[*ours, "IPA, k = 4", "FiD, k = 16"]] * 2
    scored = {step.flags[1] for step in steps if step.kind == "judge"}
    assert scored == {*(f"{metric}-official" for metric in ("accuracy", "f1", "MAE", "RMSE")), "rouge-1", "rouge-L"}
    trained = [output for step in steps if step.kind == "train" for output in step.outputs]
    asked = [step.named["--model_addr"] for step in steps if step.kind == "answer"]
    assert trained == asked and len(set(trained)) == 8 * 2 * 7
    fid = next(step for step in steps if step.kind == "train" and step.job.endswith("LaMP-3.user_dev.fid_k16"))
    assert fid.named["--inputs_addr"] == "output/lamp_flant5/ranked/LaMP-3_user_train.json"
    assert " ".join(fid.flags) == "--num_contexts 16 --trim_items --fusion decoder --seed 0"
    given = {(step.kind, *step.given) for step in steps if step.kind in ("train", "answer")}
    assert given == {(kind, "--prompts_dir", "prompts/lamp_flant5") for kind in ("train", "answer")}
    several = study_of(tmp_path, Path(FLANT5).read_text().replace("ipa_contexts = [4]", "ipa_contexts = [2, 4]"))
    [flags, _] = [step.flags for step in plan_study(several) if step.kind == "table"]
    assert {"IPA, k = 2", "IPA, k = 4"} < set(flags)


@pytest.mark.slow
def test_a_whole_study_of_fine_tuned_generators(fine_tuned, tmp_path, capsys):
    command = [sys.executable, ROOT / "utils/run_study.py", "--study_addr", fine_tuned]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "output/lamp_flant5/t5/user_dev/study.md").read_text()
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")][2:]
    assert {"IPA, k = 4", "IPA, tuned (paper)", "FiD, k = 16"} < set(rows)
    assert "(0.236, " in text  # the paper's MAE of FiD
    assert "optimistic, for these questions chose" in text and "another model" not in text
    assert run_study.main(["--study_addr", fine_tuned]) == 0
    assert "everything is there: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fine_tuned = true", "fine_tuned: found True, expected it with tasks"),
        (OURS + 'methods = ["fid"]', "methods: found 'fid', expected it with fine_tuned = true"),
        (
            OURS.replace("dev", "test") + "fine_tuned = true",
            "splits: found ['test'], expected one first that the best checkpoints may be chosen by, as dev and val",
        ),
        (
            OURS + 'fine_tuned = true\nopenai_models = ["gpt"]',
            "openai_models: found ['gpt'], expected models alone with fine_tuned = true",
        ),
    ],
)
def test_what_goes_not_with_fine_tuned_generators_is_told(text, message, tmp_path):
    with pytest.raises(UserError, match=re.escape(message)):
        run_study.main(["--study_addr", write_study(tmp_path, text)])


def test_a_generator_answers_all_splits_and_is_chosen_by_the_first(tmp_path):
    """Else each split would train it anew in the same folder, and the test set choose the checkpoint."""
    text = 'tasks = ["LongLaMP-topic"]\nsettings = ["user", "temporal"]\nsplits = ["val", "test"]\nmethods = ["none"]\n'
    steps = plan_study(study_of(tmp_path, text + 'models = ["t5"]\noutput = "o"\nfine_tuned = true'))
    trained = {step.named["--output_dir"]: step.named["--validation_addr"] for step in steps if step.kind == "train"}
    assert trained == {
        f"o/generator/t5/{setting}/LongLaMP-topic/none": f"data/LongLaMP-topic_{setting}_val.json"
        for setting in ("user", "temporal")
    }
    assert len([step for step in steps if step.kind == "train"]) == 2
    assert len([step for step in steps if step.kind == "answer"]) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"t5"', '"no/model"'), "study.toml: models: no/model: not cached"),
        (('"t5"', '"chat"'), "study.toml: models: --model_addr chat: no encoder-decoder, such as google/flan-t5-base"),
        (('["--epochs"', '["--lora_rank", "8", "--epochs"'), "study.toml: models: --lora_rank: t5 is an encoder-dec"),
    ],
)
def test_a_base_that_cannot_be_trained_is_told_before_the_first_command(change, message, fine_tuned, tmp_path):
    save_tiny_chat(tmp_path / "chat")
    Path(fine_tuned).write_text(Path(fine_tuned).read_text().replace(*change))
    with pytest.raises(UserError) as refused:
        run_study.main(["--study_addr", "study.toml"])
    assert str(refused.value).startswith(message) and "openai_models" not in str(refused.value)
    assert not (tmp_path / "output").exists()


@on_a_cluster
def test_generators_are_fine_tuned_and_answer_on_a_cluster(fine_tuned, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = re.sub(r'"(t5|encoder|output/\w+)"', rf'"{tmp_path}/\1"', Path(fine_tuned).read_text())
    text = re.sub("methods = .*", f'methods = ["rag_random", "fid"]\ndata = "{tmp_path}/data"', text)
    path = write_study(tmp_path, text + "[slurm]\nanswer_shards = 2\njudge_shards = 1\n")
    command = [sys.executable, "utils/run_study.py", "--study_addr", path, "--sbatch"]
    with start_cluster() as cluster:
        environment = cluster.environment | {"PYTHON": sys.executable, "SCRIPT": "none of ours"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600)
        assert done.returncode == 0, done.stderr
        jobs = [line.split()[0] for line in done.stdout.splitlines()]
        # Of train and dev two rankings; twice a training, answers and their merge; of two metrics verdicts, a merge.
        assert len(jobs) == 4 + 2 * 3 + 2 * 2 + 1
        cluster.wait(*jobs)
        logs = "".join(log.read_text() for log in (tmp_path / "output/lamp_flant5/logs").iterdir())
        assert {state for job in jobs for state in cluster.states(job)} == {"COMPLETED"}, logs
    assert "ok   model " in logs and ": an encoder-decoder, " in logs
    table = (tmp_path / "output/lamp_flant5/t5/user_dev/study.md").read_text()
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")][2:]
    assert rows[:2] == ["Random, non-personalized", "FiD, k = 16"] and "(0.286, " in table  # the paper's
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600)
    assert done.stdout.startswith("everything is there: "), done.stderr


# The disk


def test_the_disk_is_to_hold_what_112_trainings_leave_and_one_at_its_peak(monkeypatch, capsys):
    """Of FlanT5-base's 247,577,856 parameters: 8 bytes stay of each, 48 are there at a training's peak."""
    study = read_study(FLANT5)
    pending = find_pending(plan_study(study))
    trainings = [one for one in pending if one.step.kind == "train"]
    assert len(trainings) == 112
    needed = 112 * 8 * 247_577_856 + 40 * 247_577_856
    assert needed == 231_732_873_216
    monkeypatch.setattr("utils.checks.disk.find_headers", lambda *_: {"w": ([247_577_856], "F32")})
    monkeypatch.setattr("utils.studies.checks.free_bytes", lambda folder: needed - 1)
    with pytest.raises(UserError) as refused:
        check_disk(study, pending, is_submitted=False)
    told = "output/lamp_flant5: 112 trainings take up to 231.7 GB, and 231.7 GB are free there"
    assert str(refused.value) == f"{told}\n  free some, or give another output"
    monkeypatch.setattr("utils.studies.checks.free_bytes", lambda folder: needed)
    check_disk(study, pending, is_submitted=False)
    assert capsys.readouterr().err == ""
    check_disk(study, pending, is_submitted=True)
    told = "112 trainings take up to 1331.0 GB if all run at the same time, and 231.7 GB are free there"
    assert capsys.readouterr().err == f"note: output/lamp_flant5: {told}\n"
    monkeypatch.setattr("utils.checks.disk.find_headers", lambda *_: {})  # not cached, and no hub
    monkeypatch.setattr("utils.studies.checks.free_bytes", lambda folder: 0)
    check_disk(study, pending, is_submitted=False)


def test_a_study_is_refused_where_its_trainings_have_no_room(tmp_path, monkeypatch, small_study):
    run_study.main(["--study_addr", small_study, "--dry_run"])
    monkeypatch.setattr("utils.studies.checks.free_bytes", lambda folder: 1000)
    with pytest.raises(UserError, match=r"trainings take up to 0\.0 GB, and 0\.0 GB are free there"):
        run_study.main(["--study_addr", small_study, "--dry_run"])


@pytest.fixture
def small_study(tmp_path):
    save_tiny_t5(tmp_path / "t5")
    for split in ("train", "dev"):
        save_sample(tmp_path / "data", "LaMP-4", ["user"], split)
    text = f'models = ["{tmp_path}/t5"]\nfine_tuned = true\ntasks = ["LaMP-4"]\nsettings = ["user"]\nsplits = ["dev"]\n'
    text += f'methods = ["none"]\noutput = "{tmp_path}/out"\ndata = "{tmp_path}/data"\n'
    (tmp_path / "study.toml").write_text(text)
    return str(tmp_path / "study.toml")
