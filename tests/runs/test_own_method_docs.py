"""The methods in README.md and docs/your_own_method.md run unchanged."""

import json
import re
from pathlib import Path

import pytest
from api_server import Reply, serve

import baselines

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs/your_own_method.md"]
METHODS = [code for page in PAGES for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]
SAMPLE = ROOT / "tests/data/mini_lampqa/test.json"


def reply(request):
    text = str(request["messages"])
    if "Write only the number" in text:
        return Reply(str(request["seed"] % 10 + 1))
    if "personalized_answer" in text:
        return Reply(json.dumps({"personalized_answer": f"Answer {request['seed']}."}))
    return Reply("They care about cost.")


@pytest.mark.parametrize(("number", "calls"), enumerate((2, 1, 6, 2)))
def test_the_methods_on_the_page(number, calls, tmp_path):
    (tmp_path / "mine.py").write_text(METHODS[number])
    (tmp_path / "key.txt").write_text("sk-test")
    with serve(reply) as server:
        flags = ["--openai", "--api_key_addr", f"{tmp_path}/key.txt", "--base_url", server.url, "--model_addr", "m"]
        flags += ["--inputs_addr", str(SAMPLE), "--unranked", "--output_addr", f"{tmp_path}/answers.json"]
        more = ["--model", "critic=other"] if number == 2 else []
        assert baselines.main([*flags, "--method", f"{tmp_path}/mine.py", *more]) == 0
        answers = json.loads((tmp_path / "answers.json").read_text())
        assert len(server.requests) == calls * len(answers)
    assert all(answer["output"] for [answer] in answers.values())
    assert len(METHODS) == 4


def test_the_page_lists_what_ask_offers(tmp_path):
    listed = re.findall(r"ask\.(\w+)", PAGES[1].read_text().split("## Searching")[0])
    method = "async def answer(record, ask):\n    return ' '.join(name for name in dir(ask) if name[0] != '_')\n"
    (tmp_path / "mine.py").write_text(method)
    (tmp_path / "key.txt").write_text("sk-test")
    flags = ["--openai", "--model_addr", "m", "--inputs_addr", str(SAMPLE), "--unranked", "--limit", "1"]
    flags += ["--api_key_addr", f"{tmp_path}/key.txt"]
    with serve(reply) as server:
        more = ["--base_url", server.url, "--method", f"{tmp_path}/mine.py"]
        assert baselines.main([*flags, *more, "--output_addr", f"{tmp_path}/answers.json"]) == 0
    [[answer]] = json.loads((tmp_path / "answers.json").read_text()).values()
    assert {*answer["output"].split()} == {*listed, "steps"}
