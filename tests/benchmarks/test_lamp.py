"""LaMP's and LongLaMP's tasks on the samples in their own formats: read, rank, answer, score, make a table."""

import hashlib
import json
import re
from pathlib import Path

import nltk.data
import pytest
from api_server import Reply, serve
from lamp_samples import CONFIGS, DATA, LAMP, lamp_scores, read_sample
from nltk_data import write_nltk_data
from scipy.stats import ttest_1samp

import baselines
import evaluate_responses
import planpers
import train_planner
from prompts import load_prompt
from retrieval import rank_dataset
from utils import make_table
from utils.base.errors import UserError
from utils.base.manifest import read_manifest
from utils.benchmarks import tasks
from utils.data.datasets import read_dataset

ROOT = Path(__file__).resolve().parents[2]

# Hashes of file names and texts, by folder. A changed prompt changes every number measured with it: see
# tests/prompts/test_prompts.py.
GOLDEN = {
    "lamp": "f1de6fb8d93069bce6bd4d938a034f61cc4f4426b9ed2ef9ec5bf997cb0891f8",
    "longlamp": "ca4c80cbb597f15c3e39235095babcb851cda15ca884c95a30a906d639480059",
    "lamp_flant5": "98762988d03f3950e3447b0f077a49b643d9730343111c53d234ae5146d1faa0",
}


each_task = pytest.mark.parametrize("name", [*LAMP, *CONFIGS])


def prompt_of(name, record, method="rag", number=10):
    """Both messages of a prompt as one text."""
    task = tasks()[name]
    items = task.best_items(record, number) if method == "rag" else []
    messages = load_prompt(task.prompts[method]).messages(profile=task.join(items), **task.values(record))
    return "\n".join(message["content"] for message in messages)


@pytest.mark.parametrize(
    ("name", "question", "query"),
    [
        ("LaMP-1", 'paper with the title "A "b"", which? [1] or [2]. [1]: "C" [2]: "D"', "C D"),
        ("LaMP-1", '[1]: "A "quoted" title" [2]: "One: "two""', 'A "quoted" title One: "two"'),
        ("LaMP-1", '"T"\n[1]: "A"\n[2]: "B"\n', "A B"),
        ("LaMP-2", "tags: [comedy] description: A description: of sorts", "A description: of sorts"),
        ("LaMP-3", "What? review:  Good", "Good"),
        ("LaMP-4", "Generate a headline for the following article: x: y", "x: y"),
        ("LaMP-5", "the following abstract of a paper: z", "z"),
        ("LaMP-6", "Generate a subject for the following email: Re: hi", "Re: hi"),
        ("LaMP-7", "before or after it: tweet", "tweet"),
        ("LongLaMP-abstract", 'for the title "x: y" using the following items: 1. a', "1. a"),
        ("LongLaMP-email", "Complete the following email: Re: hi", "Re: hi"),
        ("LongLaMP-topic", "Generate: the post", "Generate: the post"),
    ],
)
def test_the_query_is_the_text_after_the_anchor(name, question, query):
    assert tasks()[name].query({"id": "1", "question": question}) == query


def test_retrieval_compares_the_same_texts_as_lamp():
    item = {"id": "1", "date": "2020-01-02", "title": "T", "abstract": "A", "text": "X", "description": "D", "tag": "G"}
    item |= {"score": "5", "overall": 4.0, "summary": "S", "reviewText": "R", "content": "C"}
    compared = {"LaMP-1": "T A", "LaMP-2": "D", "LaMP-3": "X", "LaMP-4": "T X", "LaMP-5": "T A", "LaMP-6": "X"}
    compared |= {"LaMP-7": "X", "LongLaMP-abstract": "T A", "LongLaMP-review": "4.0 S D R", "LongLaMP-topic": "S C"}
    compared |= {"LongLaMP-email": "X"}
    assert {name: tasks()[name].item_text(item) for name in compared} == compared


@each_task
def test_a_prompt_has_its_items_but_never_the_target(name):
    task = tasks()[name]
    for record in read_sample(name):
        alone = prompt_of(name, record, "none")
        with_items = prompt_of(name, record)
        assert record["question"] in alone
        assert alone == prompt_of(name, record, number=0)  # the paragraph with the profile is dropped as a whole
        assert (with_items == alone) == (not record["profile"])
        for item in record["profile"]:
            assert task.item_template(item) in with_items
        shown = record | {"target": "c0ffee target"}
        assert "c0ffee" not in prompt_of(name, shown) + prompt_of(name, shown, "none")
    assert re.search(r"\{\w+\}", with_items) is None


# The text between statements and input in LaMP's code, in our words.
BETWEEN = dict.fromkeys(LAMP, ".") | {"LaMP-5": ". In the same style,"}
BETWEEN["LaMP-7"] = " all come from one author. In the same style,"


def flant5_input(record, number):
    task = tasks()[record["task"]]
    prompt = load_prompt(task.prompts["rag"], ROOT / "prompts/lamp_flant5")
    [_, user] = prompt.messages(profile=task.join(task.best_items(record, number)), **task.values(record))
    return user["content"]


@pytest.mark.parametrize("name", LAMP)
@pytest.mark.parametrize("number", [0, 3])
def test_the_input_of_flant5_has_the_form_of_lamps_templates(name, number):
    """Ignoring white space, which T5's tokenizer reads as one space."""
    for record in read_sample(name):
        question, items = record["question"], record["profile"][:number]
        if not items:
            expected = question
        elif name == "LaMP-1":
            titles = ", and ".join(f'"{item["title"]}"' for item in items)
            end = question.find("title") + len("title")
            expected = f"{question[:end]}, and {titles}{question[end:]}"
        else:
            expected = f"{', and '.join(map(tasks()[name].item_template, items))}{BETWEEN[name]} {question}"
        assert flant5_input(record, number).split() == expected.split()


def test_every_prompt_file_matches_its_pinned_hash():
    files = {folder: sorted((ROOT / "prompts" / folder).glob("*.txt")) for folder in GOLDEN}
    content = {
        folder: b"".join(path.name.encode() + path.read_bytes() for path in parts) for folder, parts in files.items()
    }
    assert {folder: hashlib.sha256(parts).hexdigest() for folder, parts in content.items()} == GOLDEN
    assert {f"lamp/{path.stem}" for path in files["lamp_flant5"]} == {tasks()[name].prompts["rag"] for name in LAMP}
    used = {prompt for name in [*LAMP, *CONFIGS] for prompt in tasks()[name].prompts.values()}
    assert used == {f"{folder}/{path.stem}" for folder in ("lamp", "longlamp") for path in files[folder]}


ANSWERS = {
    "LaMP-1": ["[1]", "The answer is [2].", "[1]", "[2]", "1", "[1]"],
    "LaMP-2": ["comedy", "Dark comedy!", "action", "horror", "romance", "thought-provoking"],
    "LaMP-3": ["3", "4.0", "five", "2", "1", "5"],
}


@pytest.fixture
def run(monkeypatch):
    """Call a script; --openai uses a server that answers by the number of the question, if there is one."""
    monkeypatch.setenv("OPENAI_API_KEY", "key")

    def reply(request):
        text = request["messages"][1]["content"]
        return Reply(next(answer for question, answer in run_script.answers.items() if text.strip().endswith(question)))

    with serve(reply) as server:

        def run_script(script, *arguments):
            return script.main([str(argument) for argument in arguments])

        run_script.server, run_script.answers = server, {}
        run_script.api = ["--model_addr", "m", "--openai", "--base_url", server.url, "--max_retries", 1]
        yield run_script


def save(records, path):
    path.write_text(json.dumps(records, ensure_ascii=False), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["LaMP-2", "LaMP-3", "LaMP-4", "LongLaMP-topic"])
def test_from_its_dataset_to_the_table(name, run, tmp_path, capsys):
    """tests/commands/test_download_originals.py makes the dataset from the benchmark's files."""
    dataset, ranked, answers, none = (tmp_path / f"{stem}.json" for stem in ("data", "ranked", "rag", "none"))
    records = read_dataset(save(read_sample(name), dataset), ["profile", "target"])
    run(rank_dataset, "--ranker", "bm25", "--input_dataset_addr", dataset, "--output_dataset_addr", ranked)
    written = ANSWERS.get(name, [f"{record['target']} and more" for record in records[:-1]] + [" "])
    run.answers = {record["question"].strip(): text for record, text in zip(records, written, strict=True)}
    rag = ["--rag", "--num_contexts", 2, "--inputs_addr", ranked, "--output_addr", answers]
    assert run(baselines, *run.api, *rag) == 0
    assert run(baselines, *run.api, "--inputs_addr", dataset, "--output_addr", none) == 0

    if name in CONFIGS:
        nltk.data.path.insert(0, str(write_nltk_data(tmp_path / "nltk")))
    for metric in tasks()[name].metrics:
        scores = tmp_path / f"{metric}.json"
        evaluate = ["--strategy", metric, "--inputs_addr", dataset, "--response_addr", answers, "--score_addr", scores]
        assert run(evaluate_responses, *evaluate) == 0
        scored = json.loads(scores.read_text())
        assert (scored["task"], scored["strategy"], scored["num_questions"]) == (name, metric, 6)
        read = [answer[0]["output"] for answer in json.loads(answers.read_text()).values()]
        assert scored["num_unanswered"] == (0 if metric.endswith("-official") else read.count(None))
        assert "judge" not in read_manifest(scores)["settings"]
    first = tmp_path / f"{next(iter(tasks()[name].metrics))}.json"
    judged = tmp_path / "none_scores.json"
    run(evaluate_responses, "--inputs_addr", dataset, "--response_addr", none, "--score_addr", judged)
    capsys.readouterr()
    assert run(make_table, "--system", "RAG", first, "--system", "none", judged) == 0
    table = capsys.readouterr().out.replace("**", "").splitlines()  # the best is bold: here both are
    assert table[0].startswith(f"| System | {name} | Questions |")
    assert table[2].startswith(f"| RAG | {json.loads(first.read_text())['score']:.4f} | 6 |")


# Right answers with a model's texts: right by one rule, both or none, or the distance from the rating.
WRITTEN = {
    "LaMP-1": {"[1]": ["[1]", "[1].", "1", "[3]"], "[2]": [" [2]\n", "The answer is [2]."]},
    "LaMP-2": {"comedy": ["Comedy", "comedy "], "sci-fi": ["sci fi"], "action": ["[1]"],
               "romance": ["romance", "none"]},
    "LaMP-3": {"4": ["4.5", "4 stars"], "1": ["6"], "3": ["0", "[1]"], "3.0": [" 3 "]},
}  # fmt: skip
UNREADABLE = {"LaMP-1": 4, "LaMP-2": 4, "LaMP-3": 2}


@pytest.mark.parametrize("name", WRITTEN)
def test_official_scores_follow_lamps_rule_on_the_raw_text(name, run, tmp_path, capsys):
    """LaMP's code gives other numbers than the answers parsed by the run."""
    golds, texts = zip(
        *((gold, text) for gold, texts_of_gold in WRITTEN[name].items() for text in texts_of_gold), strict=True
    )
    records = [{**record, "target": gold} for record, gold in zip(read_sample(name), golds, strict=True)]
    run.answers = {record["question"].strip(): text for record, text in zip(records, texts, strict=True)}
    dataset, answers = save(records, tmp_path / "dev.json"), tmp_path / "answers.json"
    run(baselines, *run.api, "--inputs_addr", dataset, "--output_addr", answers)
    files = []
    for metric, score in lamp_scores(name, golds, texts).items():
        scored = {}
        for more in ([], ["--reading", "official"]):
            scores = tmp_path / f"{metric}{len(more)}.json"
            capsys.readouterr()
            judge = ["--inputs_addr", dataset, "--response_addr", answers, "--score_addr", scores]
            run(evaluate_responses, "--strategy", metric, *judge, *more)
            files.append(scores)
            scored[len(more)] = json.loads(scores.read_text())
        assert scored[2]["strategy"] == f"{metric}-official" and scored[2]["num_unanswered"] == 0
        assert scored[2]["score"] == pytest.approx(score, abs=1e-9)
        assert abs(scored[0]["score"] - score) > 0.01  # they are told apart here
        worst = "as the rating that is farthest off" if name == "LaMP-3" else "0"
        line = f"score {score:.4f} over 6 questions; {UNREADABLE[name]} answers unreadable, counted {worst}\n"
        assert line in capsys.readouterr().out
    run(make_table, "--system", "No personalization", *files, "--paper", "FlanT5-base", "--paper_table", "user")
    table = capsys.readouterr().out
    assert f"No personalization: {UNREADABLE[name]} unreadable answers, which count {worst}." in table
    row = next(line for line in table.splitlines() if line.startswith("| No personalization"))
    assert ["(0." in cell for cell in row.split("|")[2:5]] == [False, False, True]  # the paper's, by its own rule


def test_intervals_and_tests_are_clustered_by_user(run, tmp_path, capsys):
    """Four users with three questions each. Without a user, each question is its own cluster."""
    records = [{**read_sample("LaMP-4", "train")[0], "id": str(i), "user_id": i // 3} for i in range(12)]
    right = records[0]["target"]
    other = f"{right} and more words than these"
    answers, p = {"good": [right] * 8 + [other] * 4, "bad": [right, *[other] * 11]}, {}
    for where in ("by user", "alone"):
        kept = [{k: v for k, v in record.items() if where == "by user" or k != "user_id"} for record in records]
        data, words = save(kept, tmp_path / f"{where}.json"), []
        for system, texts in answers.items():
            responses = save({str(i): [{"output": text}] for i, text in enumerate(texts)}, tmp_path / f"{system}.json")
            path = tmp_path / f"{system} {where}.json"
            flags = ["--inputs_addr", data, "--response_addr", responses, "--score_addr", path, "--strategy", "rouge-1"]
            assert run(evaluate_responses, *flags) == 0
            words += ["--system", system, path]
        capsys.readouterr()
        assert run(make_table, *words, "--baseline", "bad", "--intervals") == 0
        text = capsys.readouterr().out
        assert ("cluster-robust by user_id" in text) is (where == "by user")
        [line] = re.findall(r"^\| good \| bad \| .*$", text, re.MULTILINE)
        p[where] = line.split(" | ")[5:7]
    # Users' mean differences are 2, 3, 2 and 0 thirds of one number; of 16 ways to flip them 4 are as far from 0.
    assert float(p["by user"][0]) == pytest.approx(ttest_1samp([2, 3, 2, 0], 0).pvalue, abs=1e-4)
    assert p["by user"][1] == "0.2500"
    assert float(p["alone"][0]) == pytest.approx(ttest_1samp([1] * 7 + [0] * 5, 0).pvalue, abs=1e-4)


def test_planning_is_refused(run, tmp_path):
    name = "LaMP-2"
    dataset, out = save(read_sample(name), tmp_path / "dev.json"), tmp_path / "out.json"
    refusal = rf"{name} has no plans; use baselines\.py, or pass your own plans with --plans_addr$"
    with pytest.raises(UserError, match=refusal):
        run(planpers, *run.api, "--gold_plan", "--inputs_addr", dataset, "--output_addr", out)
    with pytest.raises(UserError, match=f"{name} has no plans to train on"):
        run(train_planner, "--model_addr", "m", "--inputs_addr", dataset, "--output_dir", tmp_path / "planner")
    judge = ["--inputs_addr", dataset, "--response_addr", dataset, "--score_addr", out, "--evaluator_llm", "j"]
    with pytest.raises(UserError, match=rf"{name}'s [\w-]+ needs no judge; remove the flag"):
        run(evaluate_responses, *judge)


def test_trim_items_trims_items(run, tmp_path, capsys):
    records, out = read_sample("LongLaMP-topic"), tmp_path / "out.json"
    dataset = save(records, tmp_path / "val.json")
    run.answers = {"": "A post."}
    flags = [*run.api, "--rag", "--unranked", "--inputs_addr", dataset, "--max_model_len", 680, "--max_tokens", 300]
    assert run(baselines, *flags, "--output_addr", tmp_path / "whole.json") == 0
    assert "posts trimmed" not in capsys.readouterr().out
    assert run(baselines, *flags, "--output_addr", out, "--trim_items") == 0
    whole, trimmed = (json.loads(path.read_text()) for path in (tmp_path / "whole.json", out))
    answers = [outputs[0] for outputs in trimmed.values()]
    number = sum(answer["num_contexts_trimmed"] for answer in answers)
    assert number > 5 and f", 0 posts left out for length, {number} posts trimmed" in capsys.readouterr().out
    assert [answer["num_contexts_used"] for answer in answers] == [len(record["profile"]) for record in records]
    assert sum(outputs[0]["num_contexts_dropped"] for outputs in whole.values()) > 5
    sample = DATA / "mini_lampqa/test.json"
    with pytest.raises(UserError, match="--trim_items: not supported for LaMP-QA; remove the flag"):
        run(baselines, *run.api, "--rag", "--trim_items", "--inputs_addr", sample, "--output_addr", out)


def test_own_plans_are_used(run, tmp_path):
    name = "LongLaMP-review"
    records, out = read_sample(name), tmp_path / "out.json"
    plans = {record["id"]: [{"aspects": [f"first {record['id']}", "second"]}] for record in records}
    plans[records[1]["id"]] = [{"aspects": None}]
    run.answers = {"": "comedy"}
    given = ["--plans_addr", save(plans, tmp_path / "plans.json"), "--num_contexts", 2, "--unranked"]
    dataset = save(records, tmp_path / "dev.json")
    assert run(planpers, *run.api, *given, "--inputs_addr", dataset, "--output_addr", out) == 0
    prompts = [request["messages"][1]["content"] for request in run.server.requests]
    for record in records:
        [prompt] = [text for text in prompts if record["question"] in text]
        assert (f"\nfirst {record['id']}\nsecond" in prompt) == (record is not records[1])
        assert all(tasks()[name].item_template(item) in prompt for item in record["profile"][:2])
    answers = json.loads(out.read_text())
    assert answers[records[0]["id"]][0]["plan"] == f"first {records[0]['id']}\nsecond"
    assert answers[records[1]["id"]][0]["no_plan"] == "an empty plan"
