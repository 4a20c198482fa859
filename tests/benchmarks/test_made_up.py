"""A benchmark in a single file, made_up/trivia.py with its prompts, works with all commands."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from api_server import Reply, serve

import baselines
import evaluate_responses
import utils.benchmarks
from retrieval import rank_dataset
from utils import dataset_statistics, make_table, report
from utils.base.errors import UserError
from utils.base.manifest import read_manifest
from utils.benchmarks import tasks

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent / "made_up"
KINDS = {"Colours": ["azure", "crimson", "ochre"], "Animals": ["badger", "heron"]}


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """Load the file as if it were in utils/benchmarks."""
    monkeypatch.setattr(utils.benchmarks, "__path__", [*utils.benchmarks.__path__, str(FOLDER)])
    tasks.cache_clear()
    yield
    monkeypatch.undo()
    tasks.cache_clear()


@pytest.fixture
def dataset(tmp_path):
    """Questions with the answer in one of the user's notes, which shares words with the question."""
    records = []
    for kind, words in KINDS.items():
        for word in words:
            notes = [f"Note {i} of no use." for i in range(4)] + [f"My name for thing {word[::-1]} is {word}."]
            profile = [{"id": f"{word}-{i}", "note": note} for i, note in enumerate(notes)]
            question = f"What is my name for thing {word[::-1]}?"
            records.append(
                {"task": "Trivia", "id": word, "kind": kind, "question": question, "answer": word}
                | {"profile": profile}
            )
    path = tmp_path / "trivia.json"
    path.write_text(json.dumps(records))
    return path


def reply(request):
    """Answer from the notes; without them, guess all answers but one."""
    text = request["messages"][1]["content"]
    told = [line.split()[-1][:-1] for line in text.splitlines() if line.startswith("My name for")]
    return Reply(told[0] if told else "Heron" if "noreh" in text else "no idea at all" if "erhco" in text else "grey")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Call a script; those with a model use a server on loopback."""
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    with serve(reply) as server:

        def run_script(script, *arguments):
            return script.main([str(argument) for argument in arguments])

        run_script.server = server
        run_script.api = ["--model_addr", "some-model", "--openai", "--base_url", server.url]
        yield run_script


def test_all_commands_work_with_it(run, dataset, tmp_path, capsys):
    ranked, none, rag = (tmp_path / name for name in ("ranked.json", "none.json", "rag.json"))
    run(rank_dataset, "--ranker", "bm25", "--input_dataset_addr", dataset, "--output_dataset_addr", ranked)
    for record in json.loads(ranked.read_text()):
        assert record["profile"][0]["note"].endswith(f"is {record['answer']}.")
    assert run(baselines, *run.api, "--inputs_addr", dataset, "--output_addr", none) == 0
    assert run(baselines, *run.api, "--rag", "--num_contexts", 2, "--inputs_addr", ranked, "--output_addr", rag) == 0
    asked = run.server.requests[-1]["messages"][1]["content"]
    assert asked.splitlines()[3].startswith("My name for thing")  # best last, as the task arranges them
    capsys.readouterr()

    scores = [tmp_path / "none_scores.json", tmp_path / "rag_scores.json"]
    judge = ["--inputs_addr", dataset, "--response_addr", none, rag, "--score_addr", *scores]
    assert run(evaluate_responses, *judge) == 0
    out = capsys.readouterr().out
    # Without notes, one of five is right and one gets no answer; with them, all are right.
    assert "score 0.2000 over 5 questions (macro: 0.2500 over 2 groups); 1 of them without an answer" in out
    assert "score 1.0000 over 5 questions (macro: 1.0000 over 2 groups)" in out
    found = json.loads(scores[0].read_text())
    assert (found["task"], found["num_unanswered"], found["num_unscored"]) == ("Trivia", 1, 0)
    assert [entry["score"] for entry in found["per_question_scores"]] == [0, 0, 0, 0, 1]
    assert read_manifest(scores[0])["settings"].keys() == {"script", "strategy", "inputs", "responses"}

    assert run(make_table, "--system", "No notes", scores[0], "--system", "RAG", scores[1]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].startswith("| System | Colours | Animals | Average (macro) |")
    assert table[2].startswith("| No notes | 0.0000 | 0.5000 | 0.2500 |")
    assert table[3].startswith("| RAG | **1.0000** | **1.0000** | **1.0000** |")
    page = tmp_path / "report.html"
    systems = ["--system", "No notes", none, scores[0], "--system", "RAG", rag, scores[1]]
    assert run(report, "--inputs_addr", ranked, *systems, "--output_addr", page) == 0
    text = page.read_text()
    assert all(shown in text for shown in ("Colours", "Animals", "What is my name for thing eruza?", "azure"))
    run(dataset_statistics, "--inputs_addr", dataset)
    captured = capsys.readouterr()
    assert "| Questions (users) | 5 |\n| Profile size (items) | 5.0 ± 0.0 |\n" in captured.out


@pytest.mark.parametrize("graded", [0.33, 1 / 3, 1])
def test_the_metric_of_the_docs_may_be_graded(run, dataset, tmp_path, capsys, monkeypatch, graded):
    """With `compute` replaced by one that gives any number from 0 to 1."""
    task = tasks()["Trivia"]
    metric = replace(task.metrics["exact_match"], compute=lambda record, response: graded)
    monkeypatch.setitem(task.metrics, "exact_match", metric)
    answers, scores, page = (tmp_path / name for name in ("answers.json", "scores.json", "report.html"))
    answers.write_text(json.dumps({record["id"]: [{"output": "x"}] for record in json.loads(dataset.read_text())}))
    assert run(evaluate_responses, "--inputs_addr", dataset, "--response_addr", answers, "--score_addr", scores) == 0
    capsys.readouterr()
    assert run(make_table, "--system", "Mine", scores) == 0
    assert f"| Mine | {graded:.4f} | {graded:.4f} | {graded:.4f} |" in capsys.readouterr().out
    assert run(report, "--inputs_addr", dataset, "--system", "Mine", answers, scores, "--output_addr", page) == 0
    content = json.loads(scores.read_text())
    for wrong in (1.01, -0.1, True, "0.5"):
        content["per_question_scores"][0]["details"][0]["score"] = wrong
        scores.write_text(json.dumps(content))
        with pytest.raises(UserError, match=r"is not a score: a number from 0 to 1, or null"):
            run(make_table, "--system", "Mine", scores)


def test_the_example_of_the_docs_is_this_file():
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/adding_a_benchmark.md").read_text(), re.DOTALL)
    ours = re.sub(r'str\(FOLDER / "(\w+)"\)', r'"trivia/\1"', (FOLDER / "trivia.py").read_text())
    ours = ours.replace("Files(facts=__file__)", 'Files(facts="docs/adding_a_benchmark.md")')
    missing = [line for line in ours.splitlines() if line not in example.splitlines()]
    assert [line.split()[0] for line in missing] == ['"""A', "from", "FOLDER"]  # where the tests keep the file


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "Plants"}, r"the group 'Plants' is not one of Colours, Animals"),
        ({"kind": None}, "no field 'kind'"),
        ({"kind": 5}, "field 'kind': Expected `str`, got `int`"),
    ],
)
def test_a_question_without_a_group_is_refused_before_scoring(dataset, changed, message, tmp_path):
    records = json.loads(dataset.read_text())
    records[1] = {key: value for key, value in (records[1] | changed).items() if value is not None}
    bad, answers = tmp_path / "bad.json", tmp_path / "answers.json"
    bad.write_text(json.dumps(records))
    answers.write_text(json.dumps({record["id"]: [{"output": "x"}] for record in records}))
    flags = ["--inputs_addr", str(bad), "--response_addr", str(answers), "--score_addr", f"{tmp_path}/scores.json"]
    with pytest.raises(UserError, match=message):
        evaluate_responses.main(flags)
    assert not (tmp_path / "scores.json").exists()
