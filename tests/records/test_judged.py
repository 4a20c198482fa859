"""A score file matches the response files that it was made from."""

import json

import pytest
from api_server import Reply, serve

import evaluate_responses
from utils.files.manifest import read_manifest

QUESTIONS = [
    {"id": f"q{number}", "question": f"Number {number}?", "narrative": "N.", "category": "food",
     "rubric_aspects": [{"aspect": "cost", "reason": "r", "evidence": "e"}]}
    for number in range(3)
]  # fmt: skip


@pytest.fixture
def judge(tmp_path, monkeypatch):
    """Judge response files with one answer to all questions; return the judge's requests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    (tmp_path / "data.json").write_text(json.dumps(QUESTIONS))
    with serve(lambda request: Reply('{"match_score": 1, "better_response": 1}')) as server:

        def run(score, *names, **answers):
            for name, answer in answers.items():
                responses = {question["id"]: [{"output": answer}] for question in QUESTIONS}
                (tmp_path / f"{name}.json").write_text(json.dumps(responses))
            asked, flags = len(server.requests), ["--strategy", "pairwise"] if len(names) == 2 else []
            files = ["--inputs_addr", "data.json", "--response_addr", *(f"{name}.json" for name in names)]
            flags += ["--evaluator_llm", "j", "--openai", "--base_url", server.url, "--score_addr", *score.split()]
            assert evaluate_responses.main([*files, *flags]) == 0
            return len(server.requests) - asked

        yield run


def test_changed_answers_are_judged_again_and_nothing_else_is(judge):
    assert judge("one_s.json", "one", one="a") == 3
    assert judge("one_s.json", "one", one="b") == 3
    assert read_manifest("one_s.json")["judged"] == ["one.json"]
    assert judge("one_s.json", "one", one="a") == 0
