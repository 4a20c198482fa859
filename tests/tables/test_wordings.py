"""The origin of the prompts' wording behind a table, from the scripts' manifests."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

import baselines
import evaluate_responses
import planpers
from tests.api_server import serve
from utils import make_table, report
from utils.benchmarks.lampqa.task import PUBLIC_CODE

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = str(ROOT / "tests/data/mini_lampqa/test.json")
OURS = (
    "Wording of the judge's prompt: aspect_judge our own; of the answers': rag the paper's, planpers our own. "
    "Scores may not be comparable with the paper's. "
    "Constrained decoding: judge fallback, answers fallback; the paper's code has none."
)


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with responses of RAG and of PlanPers with gold plans, and a function that judges them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with serve() as server:
        api = ["--openai", "--base_url", server.url, "--inputs_addr", SAMPLE]
        answers = [*api, "--model_addr", "m", "--num_contexts", "2", "--unranked"]
        assert baselines.main([*answers, "--rag", "--output_addr", "rag.json"]) == 0
        assert planpers.main([*answers, "--gold_plan", "--output_addr", "gold.json"]) == 0

        def judge(*more):
            files = ["--response_addr", "rag.json", "gold.json", "--score_addr", "rag_s.json", "gold_s.json"]
            assert evaluate_responses.main([*api, "--evaluator_llm", "j", *files, *more]) == 0

        yield judge


SYSTEMS = ["--system", "RAG (asker's profile)", "rag_s.json", "--system", "PlanPers", "gold_s.json"]
PAPER = ["--paper", "Qwen 2.5 7B"]


def table(capsys, *arguments):
    capsys.readouterr()
    assert make_table.main([*SYSTEMS, *arguments]) == 0
    return capsys.readouterr().out


def change_manifest(path, change):
    manifest = Path(f"{path}.manifest.json")
    content = json.loads(manifest.read_text())
    change(content)
    manifest.write_text(json.dumps(content))


def test_a_table_beside_the_papers_names_the_prompt_wordings(work, capsys):
    work()
    assert f"- {OURS}\n" in table(capsys, *PAPER)
    assert "Wording" not in table(capsys)  # without the paper's numbers
    rag, gold = csv.DictReader(io.StringIO(table(capsys, *PAPER, "--format", "csv")))
    assert rag["Judge prompt"] == gold["Judge prompt"] == "aspect_judge our own"
    assert rag["Answer prompts"] == "rag the paper's"
    assert gold["Answer prompts"] == "planpers our own, rag the paper's"
    assert rag["Constrained decoding"] == "judge fallback, answers fallback"
    files = ["--system", "RAG", "rag.json", "rag_s.json", "--system", "Gold", "gold.json", "gold_s.json"]
    assert report.main(["--inputs_addr", SAMPLE, *files, "--output_addr", "report.html"]) == 0
    assert OURS.replace("'", "\\u0027") in Path("report.html").read_text() or OURS in Path("report.html").read_text()

    change_manifest("gold_s.json", lambda manifest: manifest["answers"][0]["prompt"].update(rag="another hash"))
    assert "rag the paper's (RAG (asker's profile)), another (PlanPers)" in table(capsys, *PAPER)

    def take_public(manifest):
        manifest["settings"]["prompt"] = {"aspect_judge": PUBLIC_CODE["aspect_judge"]}
        [origin] = manifest["answers"]
        origin["prompt"] = {name: PUBLIC_CODE[name] for name in origin["prompt"]}

    for path in ("rag_s.json", "gold_s.json"):
        change_manifest(path, take_public)
    note, public = table(capsys, *PAPER), "the public code's"
    assert f"aspect_judge {public}; of the answers': rag {public}, planpers {public}. Constrained" in note
    assert "may not be comparable" not in note


def test_other_and_unknown_wordings_are_reported(work, capsys, tmp_path):
    Path("rag.json.manifest.json").unlink()  # as of a method of one's own
    shutil.copytree(ROOT / "prompts/lampqa", tmp_path / "mine")
    with open(tmp_path / "mine/aspect_judge.txt", "a") as file:
        file.write("\nBe strict.\n")
    work("--prompts_dir", "mine", "--constrained_decoding", "never")
    note = table(capsys, *PAPER)
    assert "judge's prompt: aspect_judge another; of the answers': prompt not known, " in note
    assert "judge never, answers not known (RAG (asker's profile)), fallback (PlanPers);" in note
    Path("rag_s.json").write_text(Path("rag_s.json").read_text() + " ")
    assert "judge's prompt: prompt not known, aspect_judge another; " in table(capsys, *PAPER)
