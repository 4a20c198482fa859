"""Several datasets in one command: each output equals that of a separate run, and each model is loaded once."""

import json
import shutil

import pytest
from api_server import Reply, serve
from method_runs import SAMPLE, reply
from tiny_chat import save_tiny_chat

import baselines
import planpers
from utils.base.errors import UserError
from utils.base.manifest import publish
from utils.generation.requests import Completion
from utils.generation.store import ModelStore


@pytest.fixture
def datasets(tmp_path):
    records = json.loads(SAMPLE.read_text())
    for name, part in (("a", records[:5]), ("b", records[5:])):
        (tmp_path / f"{name}.json").write_text(json.dumps(part))
    return tmp_path


@pytest.fixture
def api(datasets):
    (datasets / "key.txt").write_text("sk-test")
    with serve(reply) as server:
        flags = ["--openai", "--model_addr", "m", "--base_url", server.url, "--api_key_addr", str(datasets / "key.txt")]
        yield server, flags


def files(datasets, names, folder):
    outputs = [str(datasets / folder / f"{name}_out.json") for name in names]
    inputs = [str(datasets / f"{name}.json") for name in names]
    return ["--inputs_addr", *inputs, "--output_addr", *outputs]


@pytest.mark.parametrize(
    ("script", "flags"), [(baselines, ["--rag", "--unranked"]), (baselines, ["--num_generated_outputs", "2"]),
                          (planpers, ["--gold_plan", "--unranked"])]
)  # fmt: skip
def test_each_output_equals_a_separate_run(datasets, api, script, flags, capsys):
    server, common = api
    for name in "ab":
        assert script.main([*common, *flags, *files(datasets, [name], "alone")]) == 0
    requests = sorted(map(json.dumps, server.requests))
    server.requests.clear()
    assert script.main([*common, *flags, *files(datasets, ["a", "b"], "together")]) == 0
    assert sorted(map(json.dumps, server.requests)) == requests
    for path in (datasets / "alone").glob("*.json"):
        if not path.name.endswith(".manifest.json"):
            assert (datasets / "together" / path.name).read_bytes() == path.read_bytes()
    capsys.readouterr()
    assert script.main([*common, *flags, *files(datasets, ["a", "b"], "together")]) == 0
    assert capsys.readouterr().out.count("already finished; skipped") >= 2
    assert len(server.requests) == len(requests)


def test_a_finished_output_is_skipped(datasets, api):
    server, common = api
    assert baselines.main([*common, *files(datasets, ["a"], "out")]) == 0
    before = (datasets / "out/a_out.json.manifest.json").read_bytes()
    assert baselines.main([*common, *files(datasets, ["a", "b"], "out")]) == 0
    assert (datasets / "out/a_out.json.manifest.json").read_bytes() == before
    assert len(server.requests) == len(json.loads(SAMPLE.read_text()))


def test_each_model_is_loaded_once(datasets, monkeypatch):
    """All plans come before all answers, and both are published when complete."""
    chat, planner = (save_tiny_chat(datasets / name, seed) for name, seed in (("chat", 0), ("planner", 1)))
    opened = []

    class Engine:
        concurrency, device = 2, "script"

        def __init__(self, args, models, length, gives_rewards):
            opened.append([model.addr for model in models])

        async def complete(self, model, prompt, sampling):
            text = "Cost\nTime" if model == str(planner) else json.dumps({"personalized_answer": "Yes."})
            return Completion(text, "stop", len(prompt), 0, 3)

        async def close(self):
            pass

    monkeypatch.setattr("utils.generation.engines.VLLMEngine", Engine)
    flags = ["--model_addr", str(chat), "--planner_model", str(planner), "--unranked", "--max_tokens", "32"]
    assert planpers.main([*flags, "--max_tokens_plan", "32", *files(datasets, ["a", "b"], "out")]) == 0
    assert opened == [[str(planner)], [str(chat)]]
    for name in "ab":
        answers = json.loads((datasets / f"out/{name}_out.json").read_text())
        assert all(one["plan"] == "Cost\nTime" for [one] in answers.values())


def test_incompatible_inputs_are_refused(datasets, api, monkeypatch):
    _, common = api
    monkeypatch.setattr(ModelStore, "add", None)  # nothing is asked
    pair = files(datasets, ["a", "b"], "out")
    with pytest.raises(UserError, match=r"^2 --inputs_addr, 1 --output_addr: pass the same number of each"):
        baselines.main([*common, *pair[:-1]])
    with pytest.raises(UserError, match=r"^--output_addr: the same file appears twice; each output needs its own file"):
        baselines.main([*common, *pair[:-1], pair[-2]])
    with pytest.raises(UserError, match=r"^1 --plans_addr, 2 --inputs_addr: pass the same number of each"):
        planpers.main([*common, *pair, "--unranked", "--plans_addr", str(datasets / "a.json")])
    with pytest.raises(UserError, match=r"^--method: takes only one --inputs_addr and one --output_addr"):
        baselines.main([*common, *pair, "--method", "best_of_n"])
    other = [{**record, "task": "LaMP-1"} for record in json.loads((datasets / "b.json").read_text())]
    (datasets / "b.json").write_text(json.dumps(other))
    with pytest.raises(UserError, match=r"b\.json"):
        baselines.main([*common, *pair])


def test_parameters_refused_by_the_planner_still_reach_the_generator(datasets):
    def refuse(request):
        if "temperature" in request:
            return Reply("Unsupported parameter", status=400, code="unsupported_parameter", param="temperature")
        return Reply("Cost\nTime")

    (datasets / "key.txt").write_text("sk-test")
    with serve(reply) as server, serve(refuse) as planner:
        flags = ["--openai", "--model_addr", "m", "--base_url", server.url, "--unranked", "--planner_model", "p"]
        flags += ["--api_key_addr", str(datasets / "key.txt"), "--planner_api_key_addr", str(datasets / "key.txt")]
        words = [*flags, "--planner_base_url", planner.url, *files(datasets, ["a"], "out")]
        assert planpers.main(words) == 0
        assert all(request["temperature"] == 0.1 for request in server.requests) and len(server.requests) == 5


def test_plans_with_different_lead_ins_are_refused(datasets, api, tmp_path):
    _, common = api
    for name, its in (("a", {}), ("b", {"planner_target": "reference", "lead_in": "So:\n"})):
        ids = [record["id"] for record in json.loads((datasets / f"{name}.json").read_text())]
        content = {key: [{"aspects": ["Cost"]}] for key in ids}
        publish(datasets / f"{name}_plans.json", content, {"settings": {"script": "planpers.py", **its}})
    plans = [str(datasets / f"{name}_plans.json") for name in "ab"]
    with pytest.raises(UserError, match=r"--plans_addr: .* have different lead-ins; use a separate command for each"):
        planpers.main([*common, "--unranked", *files(datasets, ["a", "b"], "out"), "--plans_addr", *plans])


def test_an_outage_at_one_dataset_loses_no_answers_of_another(datasets, api):
    """The other's stored answers are read although no request can be made."""
    server, common = api
    flags = [*common, "--max_concurrency", "2", "--max_retries", "0", "--num_generated_outputs", "20"]
    lost, seeds = json.loads((datasets / "b.json").read_text())[0]["question"], []

    def lose_two(request):
        if lost in json.dumps(request["messages"]) and (request["seed"] in seeds or len(seeds) < 2):
            seeds.append(request["seed"])
            return Reply("no", status=500)
        return reply(request)

    server.reply = lose_two
    assert baselines.main([*flags, *files(datasets, ["b"], "out")]) == 1
    before = json.loads((datasets / "out/b_out.json").read_text())
    assert len(before) >= 7
    asked = len(server.requests)
    server.reply = lambda request: reply(request) if len(server.requests) == asked + 1 else Reply("no", status=500)
    assert baselines.main([*flags, *files(datasets, ["a", "b"], "out")]) == 1
    assert len(json.loads((datasets / "out/a_out.json").read_text())) == 1
    assert json.loads((datasets / "out/b_out.json").read_text()) == before


def test_a_trace_of_a_finished_output_is_refused_before_another_output_is_paid_for(datasets, api):
    server, common = api
    assert baselines.main([*common, *files(datasets, ["b"], "out")]) == 0
    shutil.rmtree(datasets / "out/completions")
    asked = len(server.requests)
    with pytest.raises(UserError, match=r"lacks completions for 8 of 8 answers of .*/b_out\.json, which is finished\n"):
        baselines.main([*common, "--trace", *files(datasets, ["a", "b"], "out")])
    assert len(server.requests) == asked
