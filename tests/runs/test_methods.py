"""baselines.py --method: a user's own method, over the API on loopback."""

import importlib
import json
import os
import re
import shutil
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
from api_server import Reply, serve
from method_runs import IDS, ROOT, SAMPLE, TWO_CALLS, Scripted, draw, failing_generator, reply

import baselines
import evaluate_responses
from utils import download_datasets, make_table
from utils.base.errors import UserError
from utils.base.manifest import file_hash, read_manifest
from utils.benchmarks import tasks
from utils.generation.chat import PAPER_LENGTH, APIChat
from utils.generation.thinking import OPENAI_TOKENS
from utils.runs.own_method import HiddenFieldError, Method, Question


def test_two_calls_per_question(runs, capsys):
    assert runs.run() == 2 * len(IDS)
    assert list(runs.answers) == IDS
    [first] = runs.answers[IDS[0]]
    assert first["output"].startswith("Answer ") and json.loads(first["raw"])["personalized_answer"] == first["output"]
    figures = first["calls"]["generator"]
    assert (figures["num_calls"], figures["attempts"]) == (2, 2) and first["notes"] == {}
    assert figures["prompt_tokens"] > 2 * first["num_contexts_used"] and first["parsed"] == "strict"
    seconds = [user for user in runs.server.users() if "cares about cost" in user]
    assert len(seconds) == len(IDS)  # each has the summary in the profile's place
    manifest = read_manifest(runs.output)
    assert manifest["missing"] == 0 and manifest["completions"] == {"requested": 26, "from_store": 0}
    assert manifest["settings"]["method"] == "mine" and manifest["calls"]["generator"]["num_calls"] == 26
    assert manifest["tokens"]["prompt_tokens"] == manifest["calls"]["generator"]["prompt_tokens"] > 0
    printed = capsys.readouterr().out
    assert "13 questions, 13 answers, 0 without an answer" in printed and "26 completions requested" in printed
    whole = runs.output.read_bytes()
    assert runs.run() == 0 and runs.output.read_bytes() == whole
    assert capsys.readouterr().out == f"{runs.output}: already finished; skipped\n"


def test_the_same_as_rag(runs, tmp_path):
    """A method with the requests of --rag gets the same answers."""
    runs.write('async def answer(record, ask):\n    return await ask("rag", items=record.best(ask.num_contexts))\n')
    runs.run()
    ours, requests = runs.answers, sorted(map(json.dumps, runs.server.requests))
    runs.server.requests.clear()
    flags = runs.flags("--rag", output=tmp_path / "rag.json")
    del flags[flags.index("--method") : flags.index("--method") + 2]
    assert baselines.main(flags) == 0
    rag = json.loads((tmp_path / "rag.json").read_text())
    assert {key: one["output"] for key, [one] in ours.items()} == {key: one["output"] for key, [one] in rag.items()}
    assert sorted(map(json.dumps, runs.server.requests)) == requests


def test_a_changed_method_requests_only_what_changed(runs):
    runs.run()
    runs.write(TWO_CALLS.replace("record.best(20), max_tokens=64", "record.best(20), max_tokens=65"))
    assert len(IDS) <= runs.run() <= 2 * len(IDS)  # a summary that stays the same makes the same second prompt
    runs.write(TWO_CALLS + "\n# a comment\n")
    assert runs.run() == 0  # made again, from the store
    runs.write(TWO_CALLS.replace("return await", "ask.note(summary=summary)\n    return await"))
    assert runs.run() == 0 and runs.answers[IDS[0]][0]["notes"]["summary"].endswith("cares about cost.")


def test_a_second_model_whose_server_is_gone_is_asked_no_more(runs, capsys):
    """The first model's answers do not show that the second one's server still answers."""
    runs.write(TWO_CALLS.replace("return await ask(", 'return await ask(model="critic", prompt='))
    with serve(lambda request: Reply("no", status=503)) as critic:
        more = ["--model", f"critic=c@{critic.url},api_key_addr={runs.folder}/key.txt,model_id=c", "--max_retries", "0"]
        more += ["--max_concurrency", "1"]
        with pytest.raises(UserError, match="answers 503: no\n  tried 1 times"):
            runs.run(*more)
        assert len({json.dumps(request["messages"]) for request in critic.requests}) == 3
        before = len(critic.requests)
        critic.reply = lambda request: reply(request) if len(critic.requests) <= before + 4 else Reply("", status=503)
        assert runs.run(*more, code=1) < len(IDS)
        assert "the server no longer answers" in capsys.readouterr().err and len(runs.answers) == 4
        critic.reply = reply
        runs.run(*more)
    assert list(runs.answers) == IDS


ONE_CALL = 'async def answer(record, ask):\n    return await ask("Say {question}")\n'
RAISING = TWO_CALLS.replace("return await", "assert record['id'] == 'rpg_17352'\n    return await")
NO_ANSWERS = f"{TWO_CALLS}    return None\n".replace("return await", "await")


@pytest.mark.parametrize(("changed", "number"), [(NO_ANSWERS, 0), (RAISING, 1)])
def test_a_changed_method_with_fewer_answers_replaces_nothing(runs, capsys, changed, number):
    runs.run("--trace")
    files = {path: path.read_bytes() for path in runs.output.parent.iterdir() if path.is_file()}
    runs.write(changed)
    assert runs.run("--trace", code=1) == 0
    kept = f"{runs.output}: kept with its 13 answers, because this run made only {number}\n  add --overwrite"
    assert kept in capsys.readouterr().err
    assert files == {path: path.read_bytes() for path in files}
    assert runs.run("--overwrite", code=1) == 0 and len(runs.answers) == (number or len(IDS))


def test_new_answers_do_not_make_up_for_old_ones(runs, capsys):
    runs.write(ONE_CALL)
    runs.run("--limit", "5")
    before = runs.output.read_bytes()
    runs.write(ONE_CALL.replace("    return", f"    assert record['id'] not in {IDS[:5]}\n    return"))
    runs.run(code=1)
    assert runs.output.read_bytes() == before
    assert "kept with its 5 answers, because this run made only 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("imports", "name", "late"),
    [
        *(("import helper", "helper.py", late) for late in (False, True)),
        *(("from of_mine import helper", "of_mine/helper.py", late) for late in (False, True)),
        ("import importlib; helper = importlib.import_module('helper')", "helper.py", False),
        ("import sys; sys.path.insert(0, __file__[:-7] + 'lib'); import helper", "lib/helper.py", False),
    ],
)
def test_a_changed_helper_is_noticed(runs, monkeypatch, capsys, imports, name, late):
    monkeypatch.setattr("sys.path", [*sys.path])
    file = runs.folder / name
    file.parent.mkdir(exist_ok=True)
    text = TWO_CALLS.replace("best(20)", "best(helper.NUMBER)")
    first = "    summary ="
    runs.write(text.replace(first, f"    {imports}\n{first}") if late else f"{imports}\n{text}")
    answers = []
    for number in (3, 4):
        file.write_text(f"NUMBER = {number}\n")
        runs.run()
        assert runs.run() == 0 and capsys.readouterr().out.endswith("already finished; skipped\n")
        answers.append(runs.answers)
        for module in ("helper", "of_mine", "of_mine.helper"):
            sys.modules.pop(module, None)
        importlib.invalidate_caches()
    assert answers[0] != answers[1]
    code = read_manifest(runs.output)["settings"]["code"]
    assert sorted(code) == sorted(["mine.py", name]) and code[name] == file_hash(file)


def test_a_finished_output_is_not_paid_for_again(runs, capsys):
    runs.run()
    shutil.rmtree(runs.output.parent / "completions")
    assert runs.run() == 0 and capsys.readouterr().out.endswith("already finished; skipped\n")
    with pytest.raises(UserError, match=r"lacks completions for 13 of 13 answers of .*, which is finished\n"):
        runs.run("--trace")
    runs.write(TWO_CALLS + "\n# a comment\n")
    told = "no longer exists, but .* must be made again from its completions\n  pass the folder that has them"
    for more in ([], ["--dry_run"]):
        with pytest.raises(UserError, match=told):
            runs.run(*more)
    assert runs.run("--overwrite") == 26


TWO_MODELS = """
async def answer(record, ask):
    first = await ask("Say {question}")
    return first + await ask("Judge {question}", model="critic")
"""


@pytest.mark.parametrize("role", [0, 1])
@pytest.mark.parametrize("is_emptied", [False, True])
def test_each_model_needs_its_completions(runs, role, is_emptied):
    store, other = runs.output.parent / "completions", ["--model", "critic=other"]
    runs.write(TWO_MODELS)
    runs.run(*other)
    folder = sorted(store.iterdir())[role]
    shutil.rmtree(folder)
    if is_emptied:
        folder.mkdir()
    runs.write(TWO_MODELS + "# a comment\n")
    with pytest.raises(UserError, match=f"{folder.name}: no longer exists, but {runs.output} must be made again"):
        runs.run(*other)
    assert len(runs.server.requests) == 26 and runs.run(*other, "--overwrite") == 13


def test_a_role_whose_calls_were_never_sent_needs_no_completions(runs):
    """Its prompts are too long, so its store is empty."""
    other = ["--model", "critic=other,max_model_len=4096"]
    text = """
async def answer(record, ask):
    await ask("Judge {text}", text="word " * 60000, model="critic")
    return await ask("Say {question}")
"""
    runs.write(text)
    runs.run(*other)
    runs.write(text + "# a comment\n")
    assert runs.run(*other) == 0 and list(runs.answers) == IDS


def test_a_server_that_refuses_prompts_is_not_gone(runs, capsys):
    """The first is answered; then outages and refusals take turns."""
    runs.write(ONE_CALL)

    def reply_in_turn(request):
        place = [record["question"] in str(request) for record in json.loads(SAMPLE.read_text())].index(True)
        return Reply("ok") if place == 0 or place > 8 else Reply("no", status=(503, 400)[place % 2])

    runs.server.reply = reply_in_turn
    runs.run("--max_concurrency", "1", "--max_retries", "0", code=1)
    assert "no longer answers" not in capsys.readouterr().err and len(runs.answers) == 9


def test_an_outage_without_the_store_replaces_nothing(runs, capsys):
    """A greater --max_retries makes a file with an unusable answer again; without completions, each is asked for."""
    runs.server.reply = lambda request: Reply("") if f"Say {IDS[0]}" in str(request) else reply(request)
    runs.write("async def answer(record, ask):\n    return await ask(f\"Say {record['id']}\") or None\n")
    runs.run("--max_retries", "0")
    assert sum(answer["output"] is None for [answer] in runs.answers.values()) == 1
    before = runs.output.read_bytes()
    [folder] = (runs.output.parent / "completions").iterdir()
    first = next(folder.glob("*.jsonl"))
    first.write_bytes(b"".join(first.read_bytes().splitlines(keepends=True)[:3]))
    runs.server.reply = lambda request: Reply("no", status=503)
    runs.run("--max_retries", "1", code=1)
    assert runs.output.read_bytes() == before
    assert "kept with its 12 answers, because this run made only" in capsys.readouterr().err


def test_a_server_that_is_gone_is_noticed_behind_stored_calls(runs, capsys):
    runs.write("""
async def answer(record, ask):
    first = await ask("Say {question}")
    return await ask("Judge {question} {first}", first=first)
""")
    flags = ["--max_retries", "0", "--max_concurrency", "2"]
    runs.server.reply = lambda request: reply(request) if "Say" in str(request) else Reply("no", status=503)
    runs.run(*flags, "--limit", "8", code=1)
    before = len(runs.server.requests)
    runs.server.reply = lambda request: Reply("no", status=503)
    runs.run(*flags, "--limit", "8", code=1)
    asked = {json.dumps(request["messages"]) for request in runs.server.requests[before:]}
    assert len(asked) <= 4 and "the server no longer answers" in capsys.readouterr().err


def test_pythons_own_modules_are_not_a_methods_code(runs, monkeypatch):
    """Python may be installed below the method's folder."""
    monkeypatch.setattr("sys.base_prefix", f"{runs.folder}/python")
    for name in ("python/lib/own.py", "helper.py"):
        file = runs.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
        monkeypatch.setitem(sys.modules, file.stem, SimpleNamespace(__file__=str(file)))
    assert [*Method(Path(runs.name), None).code()] == ["helper.py", "mine.py"]


ODD_IMPORTS = ["from ..common import X", f"from {'.' * 60}common import X", "import old"]


@pytest.mark.parametrize("imports", ODD_IMPORTS)
def test_an_import_that_fails_only_if_it_is_run_does_not_end_the_run(runs, imports):
    (runs.folder / "old.py").write_text("print 1\n")
    runs.write(f"def unused():\n    {imports}\n{TWO_CALLS}")
    runs.run()
    assert list(runs.answers) == IDS


def test_the_same_code_elsewhere_is_the_same_method(runs, tmp_path, capsys):
    runs.run()
    before = runs.output.read_bytes()
    (tmp_path / "elsewhere").mkdir()
    runs.name = str(tmp_path / "elsewhere/mine.py")
    Path(runs.name).write_text(TWO_CALLS)
    assert runs.run() == 0 and capsys.readouterr().out.endswith("already finished; skipped\n")
    Path(runs.name).write_text(TWO_CALLS + "\n# another method\n")
    with pytest.raises(UserError, match=r"was made from .*/mine\.py, not from .*/elsewhere/mine\.py\n"):
        runs.run()
    assert runs.output.read_bytes() == before


def test_a_method_that_gives_other_answers_gets_no_trace(runs, monkeypatch):
    runs.write("import os\n\n\nasync def answer(record, ask):\n    return os.environ['A_TEXT']\n")
    monkeypatch.setenv("A_TEXT", "one")
    runs.run()
    monkeypatch.setenv("A_TEXT", "two")
    with pytest.raises(UserError, match="the method now makes other answers\n  add --overwrite to replace the file"):
        runs.run("--trace")
    assert not list(runs.output.parent.glob("*.trace*")) and runs.answers[IDS[0]][0]["output"] == "one"


def test_more_outputs_and_a_limit(runs):
    assert runs.run("--limit", 4) == 8
    assert runs.run("--limit", 6, "--num_generated_outputs", 2) == 4 + 12  # another output has another seed
    assert [len(outputs) for outputs in runs.answers.values()] == [2] * 6
    for flags in ([], ["--dry_run"]):
        with pytest.raises(UserError, match="has 12 answers, but this command makes only 4\n  choose another output"):
            runs.run("--limit", 4, *flags)
    assert len(runs.answers) == 6
    assert runs.run("--limit", 4, "--overwrite") == 0 and len(runs.answers) == 4


def test_one_of_several_answers_is_chosen(runs):
    runs.write("""
async def answer(record, ask):
    answers = await ask("rag", items=record.best(3), n=5, temperature=1.0)
    assert len(set(answers)) == 5
    chosen = ask.random.choice(answers)
    ask.note(answers=answers, mode=ask.settings["mode"])
    return chosen
""")
    assert runs.run("--set", "mode=any") == 5 * len(IDS)
    first = runs.answers
    assert {request["temperature"] for request in runs.server.requests} == {1.0}
    assert all(one["output"] in one["notes"]["answers"] for [one] in first.values())
    assert {one["notes"]["mode"] for [one] in first.values()} == {"any"}
    runs.output.unlink()
    assert runs.run("--set", "mode=any") == 0 and runs.answers == first


@pytest.mark.parametrize("flags", [[], ["--dry_run"]])
def test_a_name_that_the_file_does_not_contain_is_reported(runs, capsys, flags):
    runs.write("async def answer(record, ask):\n    return ask.settings['a'] + ask.settings.get('b', '')\n")
    models = [word for role in ("critic", "judge") for word in ("--model", f"{role}=other-model")]
    runs.run("--set", "a=judge", "--set", "bb=2", *models, *flags)
    notes = [line for line in capsys.readouterr().err.splitlines() if "does not contain the name" in line]
    begin = f"note: {runs.name} does not contain the name"
    assert notes == [f"{begin} bb, given with --set", f"{begin} critic, given with --model"]


def test_an_own_parser_is_retried_until_it_finds_something(runs):
    runs.write("""
def number(text):
    return int(text) if text.isdigit() else None

async def answer(record, ask):
    found = await ask("Give a number for: {question}", parse=number)
    return None if found is None else f"number {found}"
""")
    runs.server.reply = lambda request: Reply("none here" if request["seed"] % 3 else "17")
    runs.run("--max_retries", 2)
    outputs = {one["output"] for [one] in runs.answers.values()}
    assert outputs == {"number 17", None}
    [unusable] = next(one for one in runs.answers.values() if one[0]["output"] is None)
    assert unusable["reason"] == "the method's parser found nothing usable" and unusable["attempts"] == 3


def test_a_method_that_raises_fails_only_its_record(runs, capsys):
    runs.write(
        TWO_CALLS
        + f"""
two_calls = answer

async def answer(record, ask):
    if record["id"] == {IDS[2]!r}:
        {{}}["missing"]
    return await two_calls(record, ask)
"""
    )
    assert runs.run(code=1) == 2 * len(IDS) - 2
    errors = capsys.readouterr().err
    assert f"mine.py, line 15: KeyError: 'missing' (id {IDS[2]!r})" in errors
    assert set(runs.answers) == set(IDS) - {IDS[2]}
    manifest = read_manifest(runs.output)
    assert (manifest["missing"], manifest["raised"]) == (1, 1) and "server" not in errors
    assert "the method failed on 1 record; fix it and run the command again" in errors
    words = ["--inputs_addr", SAMPLE, "--response_addr", runs.output, "--evaluator_llm", "j", "--openai"]
    words += ["--api_key_addr", runs.folder / "key.txt", "--score_addr", runs.folder / "s.json"]
    with pytest.raises(UserError, match=r"1 answer is missing because the method failed on 1 q.*\n  fix"):
        evaluate_responses.main(list(map(str, words)))
    runs.write(TWO_CALLS)
    assert runs.run() == 2 and set(runs.answers) == set(IDS)


def test_a_method_that_asks_otherwise_when_it_runs_again_pays_and_is_reported(runs, capsys):
    runs.write(
        """
import itertools
numbers = itertools.count()

async def answer(record, ask):
    first = await ask("Number {number}: {question}", number=next(numbers) if record["id"] == ID else 0)
    return await ask("rag", items=[first])
""".replace("ID", repr(IDS[3]))
    )
    assert runs.run() == 2 * len(IDS) and list(runs.answers) == IDS
    assert (
        f"note: {runs.name} is not deterministic: on 1 record its second run made different calls\n"
        in capsys.readouterr().err
    )
    assert read_manifest(runs.output)["asked_otherwise"] == 1


@pytest.mark.parametrize(
    ("folder", "files", "told"),
    [
        (ROOT, ["mine.py", "helper.py", "utils/runs/rendering.py"], 0),
        (ROOT, ["helper.py", "utils/runs/rendering.py"], 0),  # from a TaskGroup
        ("/other", ["mine.py", "lib/helper.py", ROOT / "utils/runs/rendering.py"], 0),
        ("/other", ["mine.py", "mine.py", "lib/helper.py"], 1),
        ("/other", ["lib/helper.py", "/others/x.py"], 0),
        ("/other", ["/x.py", "/y.py"], 1),
    ],
)
def test_an_error_is_told_by_the_methods_own_line(folder, files, told, monkeypatch):
    files = [str(Path(folder, file)) for file in files]
    frames = [traceback.FrameSummary(file, number, "f", lookup_line=False) for number, file in enumerate(files)]
    monkeypatch.setattr("traceback.extract_tb", lambda _: frames)
    assert Method(Path(folder, "mine.py"), None).place_of(KeyError()) == f"{files[told]}, line {told}"


def test_items_may_come_from_a_generator(runs):
    """Read once for the prompt and once for what was shown, and by each of several samples."""
    runs.write("""
async def answer(record, ask):
    texts = record.best(2)
    one = await ask("{profile} {question}", items=(text for text in texts))
    first, second = await ask("{profile} {question}", items=iter(texts), n=2)
    return f"{one} {first} {second}"
""")
    assert runs.run() == 3 * len(IDS)
    record = json.loads(SAMPLE.read_text())[0]
    prompts = [str(request["messages"]) for request in runs.server.requests if record["question"] in str(request)]
    assert len(prompts) == 3 and all(record["profile"][0]["text"][:20] in prompt for prompt in prompts)


CHAINS = """
import asyncio


async def chain(ask, name):
    await ask("First %s {question}" % name)
    return await ask("Same prompt {question}")


async def answer(record, ask):
    WAIT
    return " / ".join(texts)
"""
WAITS = {
    "gather": "texts = await asyncio.gather(chain(ask, 'A'), chain(ask, 'B'))",
    "tasks": "tasks = [asyncio.create_task(chain(ask, name)) for name in 'AB']; texts = [await task for task in tasks]",
    "as_completed": "texts = sorted([await one for one in asyncio.as_completed([chain(ask, 'A'), chain(ask, 'B')])])",
    "nested": "texts = await asyncio.gather(*(asyncio.wait_for(chain(ask, name), 60) for name in 'AB'))",
}


KINDS = {"dict": "{'n': n}", "list": "[n, {'n': n}]", "set": "{n, 'a', 'b'}", "text": "str(n)"}


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_that_differ_in_a_value_are_paid_for_once_in_any_order(runs, kind):
    runs.write(f"""
import asyncio

async def one(ask, value):
    return await ask("Say {{value}} {{question}}", value=str(sorted(map(str, value))))

async def answer(record, ask):
    works = [one(ask, {KINDS[kind]}) for n in range(6)]
    return " ".join(sorted([await work for work in asyncio.as_completed(works)]))
""")
    assert runs.run() == 6 * len(IDS)
    before = runs.output.read_bytes()
    runs.output.unlink()
    assert runs.run() == 0 and runs.output.read_bytes() == before


NOTES = """
import asyncio

async def first(ask, number, notes):
    notes.append(await ask("Say {number} {question}", number=number))

async def second(ask, number, notes):
    return await ask("Join {notes} {question} {number}", notes=" ".join(sorted(notes)), number=number)

async def answer(record, ask):
    notes = []
    await asyncio.gather(*(first(ask, number, notes) for number in "123"))
    return " ".join(await asyncio.gather(*(second(ask, number, notes) for number in "12")))
"""


def test_a_list_that_is_filled_in_order_of_arrival_does_not_tell_tasks_apart(runs):
    runs.write(NOTES)
    runs.server.reply = lambda request: time.sleep(int(draw(request), 16) % 50 / 1000) or Reply(draw(request))
    assert runs.run("--max_concurrency", "16") == 5 * len(IDS)
    before = runs.output.read_bytes()
    runs.output.unlink()
    assert runs.run() == 0 and runs.output.read_bytes() == before


@pytest.mark.parametrize("how", WAITS)
def test_network_time_does_not_decide_which_task_gets_which_text(runs, tmp_path, how):
    """Tasks that come to the same prompt in another order in each run: replies, files and traces are the same."""
    runs.write(CHAINS.replace("WAIT", WAITS[how]))
    made = []
    for number in range(3):

        def reply(request, slow="AB"[number % 2]):
            text = request["messages"][-1]["content"]
            time.sleep(0.03 * text.startswith(f"First {slow}"))
            return Reply(f"{text[:7]} {request['seed']}")

        runs.server.reply = reply
        store = ["--completions", tmp_path / str(number), "--overwrite", "--trace", "--limit", 4]
        assert runs.run(*store) == 16
        first = runs.output.read_bytes()
        assert runs.run(*store) == 0 and runs.output.read_bytes() == first  # from the store
        trace = Path(f"{runs.output}.trace.jsonl").read_text()
        made.append((first, trace if how != "as_completed" else None))  # which makes its tasks in any order
    assert made[0] == made[1] == made[2]
    assert all(len({*outputs[0]["output"].split(" / ")}) == 2 for outputs in runs.answers.values())


@pytest.mark.parametrize("read", ['record["narrative"]', 'record.get("rubric_aspects")', "peek(record)"])
def test_scorer_only_fields_are_hidden(runs, read, capsys):
    runs.write(f"""
def peek(record):
    return record["narrative"]

async def answer(record, ask):
    assert "narrative" not in dict(record) and "profile" in dict(record)
    return str({read})
""")
    assert runs.run(code=1) == 0
    assert "HiddenFieldError: record[" in (errors := capsys.readouterr().err)
    assert "only the scorer may see it; a method sees id, question, category, profile" in errors
    assert runs.answers == {}


def test_a_method_sees_all_other_fields_and_whole_posts(runs, tmp_path):
    """Whatever the dataset has: an author, a date, a country."""
    records = [{**record, "country": "Chile", "date": "2020-05-01"} for record in json.loads(SAMPLE.read_text())]
    for record in records:
        record["profile"] = [{**post, "date": "2019"} for post in record["profile"]]
    (tmp_path / "data.json").write_text(json.dumps(records))
    runs.write("""
async def answer(record, ask):
    assert "rubric_aspects" not in list(record) and len(record) == len(dict(record)) and record.get("city") is None
    dates = {post["date"] for post in record["profile"]}
    return f"{record['country']} {record['date']} {record['category']} {dates <= {'2019'}}"
""")
    runs.run("--inputs_addr", tmp_path / "data.json")
    expected = [f"Chile 2020-05-01 {record['category']} True" for record in records]
    assert [its[0]["output"] for its in runs.answers.values()] == expected


@pytest.mark.parametrize(("way", "is_hidden"), [(None, False), ("official", False), ("open", True)])
def test_options_are_hidden_from_a_method_that_answers_in_the_open(way, is_hidden):
    """One of them is the right answer, which the judge compares with."""
    task = tasks()["PersonaMem-v2-32k"]
    task = task.ways[way] if way else task
    record = {"id": "q", "question": "Why?", "options": ["a", "b", "c", "d"], "target": "a", "preference": "p"}
    question = Question(record, task)
    assert ("options" in list(question)) is not is_hidden and not {"target", "preference"} & {*question}
    if is_hidden:
        with pytest.raises(HiddenFieldError, match="'options'"):
            question["options"]


def test_annotations_of_the_evidence_are_hidden_too():
    record = {"id": "1", "question": "Q", "persona_id": "7", "topic": "books", "target": "a", "group": "g"}
    record |= {"question_type": "g", "distance_to_ref_in_tokens": "5", "profile": {}}
    assert [*Question(record, tasks()["PersonaMem-32k"])] == ["id", "question", "persona_id", "topic", "profile"]
    with pytest.raises(HiddenFieldError):
        Question(record, tasks()["PersonaMem-32k"])["group"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "no such file, and not one of the included methods: best_of_n, draft_and_revise, intent, memory, p"),
        ("async def answer(record, ask:\n", r"mine.py, line 1: SyntaxError"),
        ("import nowhere_at_all\n", "line 1: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("def answer(record, ask):\n    return 'a'\n", "has no `async def answer"),
    ],
)
def test_invalid_method_files(runs, text, problem):
    (runs.folder / "mine.py").unlink() if text is None else runs.write(text)
    with pytest.raises(UserError, match=rf"--method .*mine.py: .*{problem}"):
        runs.run()


def test_a_dry_run_leaves_no_file_of_the_store_open(searching):
    searching.run("--limit", 3)
    searching.run("--dry_run")
    opened = [os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.exists()]
    assert [path for path in opened if path.startswith(str(searching.folder))] == []


def test_a_dry_run_counts_first_calls(runs, capsys):
    assert runs.run("--dry_run") == 0
    printed = capsys.readouterr().out
    assert "13 of 13 answers still need requests\n  generator: at least 13 requests, " in printed
    assert "  requests that depend on the answers to these are not counted\n" in printed and "retries" not in printed
    assert not runs.output.parent.exists() or not list(runs.output.parent.iterdir())
    runs.run("--limit", 3)
    runs.run("--dry_run")
    assert "10 of 13 answers still need requests\n  generator: at least 10 requests, " in capsys.readouterr().out


def test_a_dry_run_says_the_least_that_a_method_with_dependent_calls_takes(runs, capsys):
    """All three figures, which a run with the same prices exceeds: the first calls have little to read and to write."""
    runs.write(TWO_CALLS.replace("max_tokens=64", "max_tokens=1"))
    runs.run("--price_in", 1, "--price_out", 10, "--dry_run")
    [total] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("total: ")]
    form = r"total: at least (\d+) requests, at least (\d+) prompt tokens, at least ([\d.]+) USD"
    requests, tokens, dollars = map(float, re.fullmatch(form, total).groups())
    runs.run("--price_in", 1, "--price_out", 10)
    lengths = [APIChat("m").length(request["messages"]) for request in runs.server.requests]
    summaries = [n for n, text in zip(lengths, runs.server.users(), strict=True) if text.startswith("Summarize")]
    assert (requests, tokens, len(lengths)) == (len(summaries), sum(summaries), 2 * requests)
    assert dollars == pytest.approx(tokens / 1e6, abs=1e-4)
    assert sum(lengths) > tokens + 10 * requests  # dearer than all first prompts with their longest outputs


# Included methods


def reply_to_shipped(request):
    user = request["messages"][-1]["content"]
    drawn = draw(request)
    if "Write only\nthe number" in user:
        return Reply(str(int(drawn, 16) % 10 + 1))
    if "personalized_answer" in str(request["messages"]):
        return Reply(json.dumps({"personalized_answer": f"Answer {drawn}."}))
    return Reply(f"Text {drawn}.")


INCLUDED = [
    ("summarize_then_answer", 2, ["summary"]),
    ("draft_and_revise", 3, ["draft", "critique"]),
    ("best_of_n", 10, ["num_candidates", "mark"]),
]


@pytest.mark.parametrize(("name", "calls", "noted"), INCLUDED)
def test_included_methods(runs, name, calls, noted):
    assert len((ROOT / f"utils/methods/{name}.py").read_text().splitlines()) <= 60
    runs.server.reply = reply_to_shipped
    runs.name = name
    assert runs.run("--set", "n=5") in (calls * len(IDS), calls * len(IDS) - 1)
    answers = [answer for [answer] in runs.answers.values()]
    assert all(answer["output"] for answer in answers)
    whole = [answer for answer in answers if answer["calls"]["generator"]["num_calls"] == calls]
    assert len(whole) >= len(IDS) - 1  # one has no posts
    assert all(set(noted) <= answer["notes"].keys() for answer in whole)
    if name == "best_of_n":
        marks = {answer["notes"]["mark"] for answer in answers}
        assert all(4 <= mark <= 10 for mark in marks) and len(marks) > 1  # the best of five
    runs.output.unlink()
    assert runs.run("--set", "n=5") == 0 and [answer for [answer] in runs.answers.values()] == answers
    assert not any("narrative" in json.dumps(request) for request in runs.server.requests)


# Several models


CRITIC = """
async def answer(record, ask):
    draft = await ask("rag", items=record.best(3))
    critique = await ask("Critique this answer to {question}: {draft}", draft=draft, model="critic", max_tokens=32)
    return await ask("Revise {draft} by {critique}", draft=draft, critique=critique)
"""


def test_an_unknown_model_is_reported(runs, capsys):
    runs.write(CRITIC)
    assert runs.run(code=1) == len(IDS)
    told = "unknown model 'critic'; the models are generator (add one with --model NAME=ADDRESS)"
    assert told in capsys.readouterr().err
    with pytest.raises(UserError, match="--model generator=x: the name is taken"):
        runs.run("--model", "generator=x")


def test_one_models_failure_does_not_block_another_model(runs, monkeypatch):
    """A request fails while all other records wait for the second model."""
    calls = iter(range(10**6))
    runs.write(CRITIC)
    failing_generator(monkeypatch, lambda log: next(calls) == 0)
    runs.run("--model", "critic=other-model", code=1)
    assert len(runs.answers) == len(IDS) - 1 and read_manifest(runs.output)["missing"] == 1


@pytest.mark.parametrize(("shared", "openings"), [(False, ["generator", "critic", "generator"]), (True, ["generator"])])
def test_each_engine_is_open_alone_and_no_more_often_than_calls_depend(runs, monkeypatch, shared, openings):
    """Drafts by one model, critiques by another, revisions by the first; on one base model, all in one load."""
    runs.write(CRITIC)
    opened, log = [], []

    def open_scripted(roles, asked):
        opened.append(asked[0])
        return dict.fromkeys(roles if shared else asked[:1], Scripted(asked[0], log))

    monkeypatch.setattr("utils.runs.runner.open_engines", open_scripted)
    assert runs.run("--model", "critic=other-model") == 0
    assert opened == openings and log.count("some-model") == 26 and log.count("other-model") == 13
    assert list(runs.answers) == IDS


def test_a_history_is_rendered_as_in_the_script(runs, tmp_path, capsys):
    """PersonaMem's history: turns of a conversation instead of texts."""
    folder = ["--source_dir", str(ROOT / "tests/data/mini_personamem"), "--output_dir", str(tmp_path / "data")]
    assert download_datasets.main(["--dataset", "PersonaMem-32k", *folder]) == 0
    inputs = tmp_path / "data/PersonaMem_32k.json"
    runs.write('async def answer(record, ask):\n    return await ask("none", items=record.best(None))\n')
    runs.server.reply = lambda request: Reply("(a)")
    flags = [str(inputs) if one == str(SAMPLE) else one for one in runs.flags()]
    assert baselines.main(flags) == 0
    ours, requests = runs.answers, sorted(json.dumps(one["messages"]) for one in runs.server.requests)
    runs.server.requests.clear()
    del flags[flags.index("--method") : flags.index("--method") + 2]
    flags.remove("--unranked")
    flags[flags.index("--output_addr") + 1] = str(tmp_path / "none.json")
    assert baselines.main(flags) == 0
    assert sorted(json.dumps(one["messages"]) for one in runs.server.requests) == requests
    none = json.loads((tmp_path / "none.json").read_text())
    assert {key: one["output"] for key, [one] in ours.items()} == {key: one["output"] for key, [one] in none.items()}
    runs.write('async def answer(record, ask):\n    return await ask("{profile}", items=record.best(2))\n')
    runs.run("--inputs_addr", inputs, "--overwrite", code=1)
    assert "mine.py, line 2: ValueError: ask: these items are turns of a history" in capsys.readouterr().err


@pytest.mark.parametrize(("length", "is_short"), [("", False), (",max_model_len=2112", True)])
def test_each_model_has_its_own_length(runs, length, is_short):
    """Posts that do not fit the critic's context are left out only for the critic."""
    runs.write("""
async def answer(record, ask):
    await ask("{profile}", items=record.best(10), model="critic")
    return await ask("rag", items=record.best(10))
""")
    runs.run("--model", f"critic=other-model{length}")
    calls = [output["calls"] for [output] in runs.answers.values()]
    assert (sum(one["critic"].get("num_contexts_dropped", 0) for one in calls) > 13) == is_short
    assert all(one["generator"].get("num_contexts_dropped", 0) == 0 for one in calls)


def test_a_forgotten_name_shows_no_password(runs, capsys):
    with pytest.raises(SystemExit):
        runs.run("--model", "https://user:hidden@host/v1")
    assert "hidden" not in capsys.readouterr().err


RATES_ITSELF = """
async def answer(record, ask):
    text = await ask("rag", items=record.best(3))
    await ask("Rate this from 1 to 10: {text}", text=text or "", max_tokens=8, parse=lambda text: int(text))
    return text
"""


def test_unusable_calls_are_counted_by_role_down_to_the_table(runs, tmp_path, capsys):
    runs.write(RATES_ITSELF.replace("int(text)", "None"))
    runs.run()
    told = f"; {len(IDS)} of {2 * len(IDS)} calls of generator unusable; "
    assert told in capsys.readouterr().out
    runs.server.reply = lambda request: Reply(json.dumps({"match_score": 1}))
    flags = ["--openai", "--base_url", runs.server.url, "--api_key_addr", f"{tmp_path}/key.txt", "--evaluator_llm", "j"]
    flags += ["--inputs_addr", SAMPLE, "--response_addr", runs.output, "--score_addr", tmp_path / "scores.json"]
    assert evaluate_responses.main([*map(str, flags)]) == 0
    assert make_table.main(["--system", "Mine", str(tmp_path / "scores.json")]) == 0
    told = f"Mine: {len(IDS)} of {2 * len(IDS)} calls to its generator unusable."
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "more", "limits"),
    [
        ("some-model", ["--max_tokens", "500"], {500, 8}),
        ("o3-mini", [], {2048 + OPENAI_TOKENS, 8 + OPENAI_TOKENS}),
        ("o3-mini", ["--max_tokens", "500"], {500, 8 + PAPER_LENGTH // 4}),
    ],
)
def test_a_limit_that_a_method_sets_leaves_room_for_thoughts(runs, model, more, limits):
    runs.write(RATES_ITSELF.replace("parse=lambda text: int(text)", "temperature=1.0"))
    flags = runs.flags("--limit", "1", *more)
    flags[flags.index("--model_addr") + 1] = model
    assert baselines.main(flags) == 0
    assert {body.get("max_tokens") for body in runs.server.requests} == limits


@pytest.mark.parametrize("returned", ["None", "'  '"])
def test_a_method_that_returns_nothing_gets_no_remedy_for_prompts(runs, capsys, returned):
    runs.write(f"async def answer(record, ask):\n    await ask('none')\n    return {returned}\n")
    runs.run(code=1)
    told = capsys.readouterr().err
    assert "13 × the method gave no answer, such as" in told and "try changing the method: it returned None" in told
    assert "fewer posts" not in told and "--max" not in told


def test_with_an_api_a_folder_is_no_further_model(runs, tmp_path):
    runs.write(CRITIC)
    with pytest.raises(UserError, match=f"^--model critic={tmp_path}: is a folder here, but with --openai"):
        runs.run("--model", f"critic={tmp_path}")
    address = f"critic={tmp_path}@{runs.server.url},api_key_addr={runs.folder / 'key.txt'},model_id=x"
    runs.run("--model", address)  # a server may call a model by its folder
    assert {request["model"] for request in runs.server.requests} == {"some-model", str(tmp_path)}


def test_the_posts_in_a_methods_prompts_are_noted(runs):
    """By their texts: as items of any call or within a text of its own, but not those left out."""
    runs.write("""
async def answer(record, ask):
    if not (posts := record.best(9)):
        return "No posts."
    await ask("Sum up: {profile}", items=posts[:1])
    await ask("And this: {post}", post=f"- {posts[-1]}")
    return await ask("rag", items=["A summary."])
""")
    runs.run()
    for record in json.loads(SAMPLE.read_text()):
        texts, last = [post["text"] for post in record["profile"]], min(9, len(record["profile"])) - 1
        shown = [i for i, text in enumerate(texts) if text in (texts[0], texts[last])]
        assert runs.answers[record["id"]][0]["posts_shown"] == shown, record["id"]


def test_another_setting_is_refused_and_a_changed_file_is_told(runs, capsys):
    """--set decides the answers as --temperature does; a changed file is run, and pays for its new calls."""
    runs.write(TWO_CALLS.replace("max_tokens=64", 'max_tokens=int(ask.settings["tokens"])'))
    runs.run("--set", "tokens=64")
    before, _ = runs.answers, capsys.readouterr()
    with pytest.raises(UserError, match=r"was made with other settings: set: tokens: \"64\", now \"32\"\n"):
        runs.run("--set", "tokens=32")
    assert runs.run("--set", "tokens=64") == 0 and "has changed" not in capsys.readouterr().err
    runs.write(TWO_CALLS.replace("max_tokens=64", 'max_tokens=int(ask.settings["tokens"])') + "\n# a comment\n")
    assert runs.run("--set", "tokens=64") == 0 and runs.answers == before
    calls = 2 * len(IDS)
    assert f"mine.py has changed: 0 of {calls} completions requested\n" in capsys.readouterr().err
    runs.write(TWO_CALLS.replace("max_tokens=64", 'max_tokens=int(ask.settings["tokens"]), temperature=0.5'))
    asked = runs.run("--set", "tokens=64")  # summaries, and answers to those that differ
    assert len(IDS) <= asked <= calls
    assert f"mine.py has changed: {asked} of {calls} completions requested\n" in capsys.readouterr().err
