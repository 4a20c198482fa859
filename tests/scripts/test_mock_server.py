"""The README's mock server: it answers any client in the benchmark's format, and describes errors."""

import http.client
import json
from urllib.parse import urlparse

import openai
import pytest
from api_server import default_reply, serve
from lamp_samples import DATA, read_sample

import baselines
import evaluate_responses
import planpers


@pytest.fixture
def api(tmp_path):
    """A server that gets no seed, and flags for it."""
    (tmp_path / "key.txt").write_text("any")
    with serve(lambda request: default_reply({name: one for name, one in request.items() if name != "seed"})) as server:
        yield ["--openai", "--base_url", server.url, "--api_key_addr", f"{tmp_path}/key.txt", "--max_retries", "0"]


def answered(output):
    return [one for [one] in json.loads(output.read_text()).values()]


@pytest.mark.parametrize("name", ["LaMP-1", "LaMP-3", "LongLaMP-topic"])
def test_answers_to_lamp_are_parsed_and_scored(name, api, tmp_path):
    data, output, scores = (tmp_path / f"{one}.json" for one in ("data", "output", "scores"))
    data.write_text(json.dumps(read_sample(name)))
    files = ["--model_addr", "m", "--inputs_addr", str(data), "--output_addr", str(output)]
    assert baselines.main([*api, *files, "--rag", "--unranked"]) == 0
    assert len(answered(output)) == 6 and all(one["parsed"] == "strict" for one in answered(output))
    words = ["--inputs_addr", str(data), "--response_addr", str(output), "--score_addr", str(scores)]
    assert evaluate_responses.main(words) == 0


def test_plans_and_each_way_of_judging_are_answered(api, tmp_path):
    data, outputs = str(DATA / "mini_lampqa/test.json"), [str(tmp_path / f"{i}.json") for i in range(2)]
    planner = ["--planner_model", "p", "--planner_base_url", api[2], "--planner_api_key_addr", api[4]]
    for seed, output in enumerate(outputs):
        words = ["--model_addr", "m", "--unranked", "--inputs_addr", data, "--output_addr", output]
        assert planpers.main([*api, *planner, *words, "--seed", str(seed), "--num_contexts", str(seed + 1)]) == 0
    plans = json.loads((tmp_path / "0.json.plans.json").read_text()).values()
    assert all(len(plan["aspects"]) == 2 for [plan] in plans)
    judge = [*api, "--evaluator_llm", "j", "--inputs_addr", data, "--response_addr", *outputs, "--score_addr"]
    scores = [tmp_path / f"scores_{i}.json" for i in range(5)]
    for strategy, files in (("aspect", scores[:2]), ("direct", scores[2:4]), ("pairwise", scores[4:])):
        assert evaluate_responses.main([*judge, *map(str, files), "--strategy", strategy]) == 0
        assert all(json.loads(path.read_text())["num_unscored"] == 0 for path in files)


def ask(server, content, path="/v1/chat/completions", method="POST", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", urlparse(server.url).port, timeout=600)
    body = content if isinstance(content, bytes) or content is None else json.dumps(content).encode()
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


ASKED = {"model": "m", "messages": [{"role": "user", "content": "Hello?"}]}


def test_answers_are_repeatable_and_there_are_no_batches():
    with serve() as server:
        first = ask(server, ASKED)
        assert first[0] == 200 and first == ask(server, ASKED)
        with openai.OpenAI(api_key="any", base_url=server.url, max_retries=0) as client:
            parts = [{"role": "user", "content": [{"type": "text", "text": "Hello?"}]}]
            found = client.chat.completions.create(model="m", messages=parts, logit_bias={}, user="me")
            assert found.choices[0].message.content and found.usage.prompt_tokens == 1
            for ask_for in (client.batches.list, client.models.list):
                with pytest.raises(openai.NotFoundError):
                    ask_for()
        assert ask(server, None, "/requests", "GET")[1][0] == ASKED
