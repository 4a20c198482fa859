"""Failures in a method: whatever its `except` and `finally` do, no answer is invented and no work is lost."""

import gc
import inspect
import json
import resource
import signal
import subprocess
import sys
import time

import psutil
import pytest
from api_server import Reply, serve
from method_runs import IDS, ROOT, SAMPLE, Failing, Scripted, failing_generator, reply

import baselines
from utils.base.errors import UserError
from utils.base.manifest import read_manifest
from utils.runs.ask import Ask
from utils.runs.rendering import TAKEN

# Of a method whose bare `except` outlives its run.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CATCHING = {
    "except Exception": """
    try:
        return await ask("rag", items=posts)
    except Exception:
        return "made up"
""",
    "a loop over a bare except": """
    while True:
        try:
            return await ask("rag", items=posts)
        except:
            pass
""",
    "a loop and then an answer": """
    for _ in range(3):
        try:
            return await ask("rag", items=posts)
        except:
            pass
    return "made up"
""",
    "finally": """
    value = "made up"
    try:
        value = await ask("rag", items=posts)
    finally:
        return value
""",
    "a TaskGroup": """
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(ask("rag", items=posts))
        return task.result()
    except BaseException:
        return "made up"
""",
    "a task of its own": """
    task = asyncio.create_task(ask("rag", items=posts))
    await asyncio.wait({task})
    return "made up" if task.cancelled() or task.exception() else task.result()
""",
    "a task that is left": """
    task = asyncio.create_task(ask("rag", items=posts))
    try:
        return await asyncio.shield(task)
    except BaseException:
        return "made up"
""",
    "a question in finally": """
    value = None
    try:
        value = await ask("rag", items=posts)
    finally:
        return value or await ask("Say {question}") or "made up"
""",
    "a time limit": """
    try:
        return await asyncio.wait_for(ask("rag", items=posts), 600)
    except BaseException:
        return "made up"
""",
}
every_kind = pytest.mark.parametrize("kind", CATCHING)


def catching(kind):
    return "import asyncio\n\nasync def answer(record, ask):\n    posts = record.best(3)" + CATCHING[kind]


@every_kind
def test_an_outage(runs, kind):
    runs.write(catching(kind))
    runs.server.reply = lambda request: reply(request) if len(runs.server.requests) <= 6 else Reply("no", status=503)
    runs.run("--max_retries", 0, code=1)
    assert 0 < len(runs.answers) < len(IDS) and "made up" not in runs.output.read_text()
    missing = len(IDS) - len(runs.answers)
    assert read_manifest(runs.output)["missing"] == missing
    runs.server.reply = reply
    assert runs.run("--max_retries", 0) == missing and set(runs.answers) == set(IDS)


@pytest.mark.parametrize("both", [False, True])
def test_one_of_two_servers_is_gone(runs, capsys, both):
    """Questions that do not need it are answered; if both are gone, the run ends."""
    runs.write("""
async def answer(record, ask):
    said = await ask("Say {question}")
    if record["id"] in ask.settings["ids"].split():
        said += await ask("Judge {question}", model="critic")
    return said
""")
    needing, answered = [IDS[0], *IDS[3:7]], []

    def fail(request):
        earlier = [other["model"] for other in runs.server.requests]
        is_gone = request["model"] == "other" and earlier.count("other") > 1
        if is_gone or (both and len(earlier) > 20):
            return Reply("boom", status=503)
        answered.append(request)
        return reply(request)

    runs.server.reply = fail
    flags = ["--model", "critic=other", "--set", f"ids={' '.join(needing)}", "--max_retries", 0]
    flags += ["--max_concurrency", 1]
    runs.run(*flags, code=1)
    told = capsys.readouterr().err
    assert told.count("sending no more requests to this model") == 1 + both
    others = [question_id for question_id in IDS if question_id not in needing[1:]]
    assert list(runs.answers) == (others[: len(runs.answers)] if both else others)
    assert [request["model"] for request in runs.server.requests].count(
        "other"
    ) == 1 + 3 * 4  # each request is repeated three times
    runs.server.reply = reply
    assert runs.run(*flags) == len(IDS) + len(needing) - len(answered) and list(runs.answers) == IDS


def test_a_server_is_gone_before_another_models_engine_is_opened(runs, monkeypatch):
    runs.write(f"""
async def answer(record, ask):
    return await ask("Say {{question}}", model="critic" if record["id"] == {IDS[-1]!r} else None)
""")
    failing_generator(monkeypatch, lambda log: len(log) >= 1)
    assert baselines.main(runs.flags("--model", "critic=other-model")) == 1
    assert list(runs.answers) == [IDS[0], IDS[-1]]


@every_kind
def test_an_engine_that_raises(runs, monkeypatch, kind):
    """Like an engine whose process died, or a store on a full disk."""
    runs.write(catching(kind))
    error = OSError(28, "No space left on device")
    engine = Failing("generator", [], lambda log: len(log) >= 6, error)
    monkeypatch.setattr("utils.runs.runner.open_engines", lambda *_: {"generator": engine})
    with pytest.raises(type(error)) as raised:
        runs.run()
    assert raised.value is error and not runs.output.exists()
    error.__traceback__ = error.__context__ = raised = None
    gc.collect()  # what the error held open
    monkeypatch.undo()
    assert runs.run() == len(IDS) - 6 and "made up" not in runs.output.read_text()


SEARCHING = """
async def answer(record, ask):
    try:
        return str([(await ask.search(f"{record['question']} {number}")).ids for number in range(9)])
    except BaseException:
        return "made up"
"""
LONG = """
async def answer(record, ask):
    return await ask("rag", items=record.best(9) * 9)
"""


@pytest.mark.parametrize(
    ("method", "flags", "file"),
    [
        (catching("a loop over a bare except"), [], "completions/some-model"),
        (SEARCHING, [], "completions/search-bm25"),
        (LONG, ["--trace"], "answers.json.trace.jsonl"),
    ],
)
def test_a_full_disk(runs, method, flags, file):
    """Simulated with a file size limit, which this file reaches first."""
    runs.write(method)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    command = [sys.executable, "baselines.py", *runs.flags(*flags)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, preexec_fn=limit)
    assert done.returncode == 2 and file in done.stderr and "Traceback" not in done.stderr
    assert not runs.output.exists()
    assert runs.run(*flags) < len(IDS) and set(runs.answers) == set(IDS)
    assert "made up" not in runs.output.read_text()


@pytest.mark.engine
def test_a_real_engine_whose_process_is_killed(tmp_path):
    (tmp_path / "mine.py").write_text(catching("a loop and then an answer"))
    output = tmp_path / "answers.json"
    command = [sys.executable, "baselines.py", "--model_addr", "demo/models/chat", "--method", f"{tmp_path}/mine.py"]
    command += ["--inputs_addr", str(SAMPLE), "--unranked", "--output_addr", str(output), "--max_model_len", "3072"]
    command += ["--limit", "5", "--max_tokens", "60", "--constrained_decoding", "never", "--max_retries", "0"]
    env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=env)
    for line in process.stderr:
        if line.startswith("loaded on"):
            break
    deadline = time.monotonic() + 600
    while not list(tmp_path.glob("completions/*/*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    for child in psutil.Process(process.pid).children(recursive=True):
        child.send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 1 and not output.exists()
    assert "\nerror: vLLM's engine process died: killed by signal 9" in errors and "Traceback" not in errors
    assert all("made up" not in path.read_text() for path in tmp_path.glob("completions/*/*.jsonl"))


def test_a_call_that_cannot_be_answered_raises_once(runs):
    """Whoever asks again waits until the question's run is ended; with the engine, nothing is raised."""
    runs.write(f"""
async def answer(record, ask):
    for number in range(3):
        try:
            return await ask("Say {{question}}")
        except BaseException as error:
            with open("{runs.folder}/raised.txt", "a") as file:
                file.write(f"{{record['id']}} {{number}} {{type(error).__name__}}\\n")
""")
    assert runs.run() == len(IDS)
    raised = {line.split(" ", 1)[1] for line in (runs.folder / "raised.txt").read_text().splitlines()}
    assert {"0 NotNow"} < raised <= {"0 NotNow", "1 CancelledError", "2 CancelledError"}


def test_an_endless_loop_ends(runs, monkeypatch, capsys):
    monkeypatch.setattr("utils.runs.ask.MOST_CALLS", 20)
    runs.write("""
async def answer(record, ask):
    number = 0
    while True:
        await ask("Number {number} of {question}", number=number)
        number += 1
""")
    assert runs.run("--limit", 2, code=1) == 40
    errors = capsys.readouterr().err
    assert "more than 20 calls and searches; check the method for an endless loop" in errors and "calls 40" in errors


# The same on every run


CHAINS = """
import asyncio

async def chain(record, ask, first, second):
    first_text = await ask("First {first}: {question}", first=first, model=first)
    return await ask("Then {first_text}", first_text=first_text, model=second)

async def answer(record, ask):
    parts = await asyncio.gather(chain(record, ask, "generator", "critic"), chain(record, ask, "critic", "generator"))
    return " ".join(parts)
"""


@pytest.mark.parametrize("shared", [False, True])
def test_parallel_chains_with_two_engines(runs, monkeypatch, shared):
    runs.write(CHAINS)
    log = []

    def open_scripted(roles, asked):
        return dict.fromkeys(roles if shared else asked[:1], Scripted(asked[0], log))

    monkeypatch.setattr("utils.runs.runner.open_engines", open_scripted)
    assert runs.run("--model", "critic=other-model") == 0
    assert (log.count("some-model"), log.count("other-model")) == (26, 26) and list(runs.answers) == IDS


# What an output keeps


def test_notes_and_figures_have_their_own_fields(runs):
    runs.write(r"""
async def answer(record, ask):
    seen = ["before"]
    ask.note(truncated="mine", output="too", seen=seen, half="\ud83d")
    seen.append("after")
    answer = await ask("rag", items=record.best(3))
    mark = await ask("How good is {answer}? Write a number.", answer=answer, max_tokens=4)
    return answer + "\ud83d" if record["id"] == ask.settings["id"] else answer
""")
    runs.server.reply = lambda request: Reply("7") if "How good" in str(request["messages"]) else reply(request)
    runs.run("--set", f"id={IDS[0]}")
    first, second = (runs.answers[one][0] for one in IDS[:2])
    assert second["notes"] == {"truncated": "mine", "output": "too", "seen": ["before"], "half": "\ufffd"}
    assert json.loads(second["raw"])["personalized_answer"] == second["output"] and second["truncated"] is False
    assert "raw" not in first and first["output"].endswith("\ufffd")  # no call returned it, so there is no text for it
    assert second["calls"]["generator"]["num_calls"] == 2


# One identity for each model


CRITIC = """
async def answer(record, ask):
    draft = await ask("none")
    return await ask("Revise {draft}", draft=draft, model="critic")
"""


def test_each_model_has_its_own_address_key_and_prices(runs, tmp_path):
    runs.write(CRITIC)
    (tmp_path / "other.txt").write_text("sk-other")
    prices = "price_in=1000000,price_out=0"
    with serve(lambda request: Reply("Revised.")) as other:
        critic = f"critic=org-b/some-model@{other.url},api_key_addr={tmp_path}/other.txt,model_id=B,{prices}"
        assert runs.run("--model", critic) == len(IDS)
        assert {request["model"] for request in other.requests} == {"org-b/some-model"}
        assert set(other.keys) == {"sk-other"} and set(runs.server.keys) == {"sk-test"}
    manifest = read_manifest(runs.output)
    address = runs.server.url.removeprefix("http://")
    assert manifest["settings"]["models"] == {"generator": f"some-model at {address}", "critic": "B"}
    assert manifest["cost_usd"] == manifest["calls"]["critic"]["prompt_tokens"] > 0
    assert len(list((runs.output.parent / "completions").iterdir())) == 2
    assert "sk-" not in runs.output.with_name("answers.json.manifest.json").read_text()


def test_calls_at_the_same_time_are_numbered_as_calls_one_after_the_other(runs):
    runs.write("""
async def answer(record, ask):
    first = await ask("Say {question}")
    return first + await ask("Say {question}")
""")
    assert runs.run() == 2 * len(IDS)
    in_turn = runs.output.read_text()
    for texts in (
        "await asyncio.gather(ask('Say {question}'), ask('Say {question}'))",
        "[await asyncio.wait_for(ask('Say {question}'), timeout=300) for _ in range(2)]",
        "await ask('Say {question}', n=2)",
    ):
        runs.write(f"import asyncio\n\nasync def answer(record, ask):\n    return ''.join({texts})\n")
        assert runs.run("--overwrite") == 0
        assert runs.output.read_text() == in_turn


# A method that would disturb the run: its question fails, and the others continue

HARM = {
    "asyncio.current_task().get_loop().stop()": "RuntimeError: a method cannot stop the event loop",
    "[task.cancel() for task in asyncio.all_tasks()]": "RuntimeError: a method can cancel only its own tasks",
    "raise GeneratorExit": "GeneratorExit",
    "raise asyncio.CancelledError": "the method was cancelled: by itself",
    "await asyncio.to_thread(lambda: asyncio.run(ask('Say it')))": "RuntimeError: ask: called in another event loop",
    "await ask('Say it', parse=lambda text: asyncio.get_running_loop().stop())": "a method cannot stop the event loop",
    "await ask('Say it', parse=lambda text: [task.cancel() for task in asyncio.all_tasks()])": "only its own tasks",
    "await ask('Say it', temperature=float('nan'))": "ValueError: ask: temperature is nan; it must be a number",
    "await ask('Say it', temperature=float('inf'))": "ValueError: ask: temperature is inf; it must be a number",
    "await ask('Say it', stop=['\\ud800'])": r"ValueError: ask: stop is ['\ud800']; it must be a list of texts",
    "await ask('Say \\ud800')": "UnicodeEncodeError: 'utf-8' codec can't encode character '\\ud800'",
}


@pytest.mark.parametrize("harm", HARM)
def test_a_method_cannot_disturb_the_run(runs, capsys, harm):
    runs.write(f"""
import asyncio

async def answer(record, ask):
    said = await ask("Say {{question}}")
    if record["id"] == {IDS[4]!r}:
        {harm}
    await asyncio.sleep(0.01)
    return said
""")
    runs.run(code=1)
    assert list(runs.answers) == [question_id for question_id in IDS if question_id != IDS[4]]
    told = capsys.readouterr().err
    assert HARM[harm] in told and "the method failed on 1 record" in told and "Traceback" not in told


ENDLESS = {  # what a method leaves behind; the signal cancels the run's own tasks, which a method could not
    "task": """
import asyncio
tasks = set()

async def beat():
    while True:
        try:
            await asyncio.sleep(0.01)
        except BaseException:
            pass

async def answer(record, ask):
    tasks.add(asyncio.create_task(beat()))
    return await ask("Say {question}")
""",
    "thread": """
import asyncio, time

async def answer(record, ask):
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 10**6)
    return await ask("Say {question}")
""",
    "signal": """
import signal

async def answer(record, ask):
    await ask("Say {question}")
    signal.raise_signal(signal.SIGTERM)
""",
}


@pytest.mark.parametrize("left", ENDLESS)
def test_nothing_outlives_the_run(runs, left):
    runs.write(ENDLESS[left])
    command = [sys.executable, "baselines.py", *runs.flags()]
    done = subprocess.run(command, cwd=ROOT, timeout=300, capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "RuntimeError" not in done.stderr
    if left == "signal":
        assert done.returncode == 130
        assert done.stderr.endswith("interrupted; finished work is kept, run the same command again to resume\n")
    else:
        assert done.returncode == 0 and list(runs.answers) == IDS


ALLOWED = {  # what a method may do, and its number of requests per question
    "ask two roles of one model the same": ("""
    both = await asyncio.gather(*(ask("Say {question}", model=one) for one in ("generator", "critic")))
    return both[0]
""", 1),
    "use a thread, whose errors it gets": ("""
    text = await asyncio.to_thread(str.upper, "say")
    try:
        await asyncio.to_thread(int, "x")
    except ValueError:
        return await ask(text + " {question}")
""", 1),
    "change the record and the settings, which are its own": ("""
    ask.random.shuffle(record["profile"])
    ask.settings["n"] = ask.settings.get("n", 0) + 1
    first = record["profile"][0]["text"] if record["profile"] else ""
    return await ask("{times} {first} {question}", times=ask.settings["n"], first=first)
""", 1),
    "catch a parser's error; the call counts": ("""
    try:
        await ask("Say {question}", parse=int, max_tokens=3)
    except ValueError:
        return await ask("Say again {question}")
""", 2),
}  # fmt: skip


@pytest.mark.parametrize("what", ALLOWED)
def test_what_a_method_may_do(runs, what):
    body, calls = ALLOWED[what]
    runs.write(f"import asyncio\n\nasync def answer(record, ask):{body}")
    assert runs.run("--model", "critic=some-model") == calls * len(IDS) and list(runs.answers) == IDS
    if "critic" not in body:
        assert read_manifest(runs.output)["calls"]["generator"]["num_calls"] == calls * len(IDS)


SHARED_TASK = """
import asyncio

tasks = []

async def answer(record, ask):
    if not tasks:
        tasks.append(asyncio.create_task(ask("Say it")))
    return await WAIT
"""


@pytest.mark.parametrize("wait", ["tasks[0]", "asyncio.shield(tasks[0])", "asyncio.wait_for(tasks[0], 1000)"])
def test_a_task_that_questions_share_fails_instead_of_hanging(runs, capsys, wait):
    runs.write(SHARED_TASK.replace("WAIT", wait))
    runs.run(code=1)
    assert "the method was cancelled: by itself, or with another question's task" in capsys.readouterr().err


# What ask refuses


def test_no_placeholder_has_the_name_of_a_parameter_of_ask():
    assert set(inspect.signature(Ask.__call__).parameters) - {"values"} == TAKEN


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ('ask("rag", items="one text")', "ValueError: ask: items is a single text; pass a list"),
        ('ask("Rag", items=["a"])', "ValueError: ask: unknown prompt 'Rag'; the prompts are none, rag, "),
        ('ask("Say {question}", items=["a"])', "ValueError: ask: items need {profile}"),
        ('ask("Say {model}")', "ValueError: ask: {model} is a parameter of ask; rename the placeholder"),
        ('ask("none", parse=answer)', "ValueError: ask: parse is async; use a plain function"),
        ('ask("Say {question}", parse=lambda text: text.nothing)', "AttributeError: 'str' object has no attribute"),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--dry_run"]])
def test_mistakes_in_ask_are_refused(runs, call, told, flags, capsys):
    runs.write(f"async def answer(record, ask):\n    return await {call}\n")
    is_parser = "text.nothing" in call
    assert runs.run(*flags, code=0 if is_parser and flags else 1) == (len(IDS) if is_parser and not flags else 0)
    if not (is_parser and flags):
        errors = capsys.readouterr().err
        assert f"mine.py, line 2: {told}" in errors and "the method failed on 13 records" in errors


def test_greedy_stays_greedy_on_every_try(runs):
    runs.write("""
async def answer(record, ask):
    await ask("Say {question}", parse=lambda text: None, temperature=0.0)
    return "done"
""")
    runs.run("--constrained_decoding", "never", "--max_retries", 3)
    assert {request["temperature"] for request in runs.server.requests} == {0.0}


# Methods that hide what they do


@pytest.mark.parametrize("wait", ["wait_for(call, 0.05)", "wait({asyncio.ensure_future(call)}, timeout=0.05)"])
@pytest.mark.parametrize("prompt", ["Say {question}", "Say {question} {t}"])
def test_a_call_abandoned_while_waiting(runs, wait, prompt, capsys):
    """From the store, the same call returns at once; another one is abandoned again, so that there is no answer."""
    runs.server.delay = 0.3
    runs.write(f"""
import asyncio, time

async def answer(record, ask):
    call = ask("{prompt}", **({{"t": time.time_ns()}} if "{{t}}" in "{prompt}" else {{}}))
    try:
        done = await asyncio.{wait}
    except TimeoutError:
        done = "made up"
    return done if isinstance(done, str) else next((task.result() for task in done[0]), "made up")
""")
    assert runs.run(code=int("{t}" in prompt)) == len(IDS) * (1 + ("{t}" in prompt))
    assert "made up" not in runs.output.read_text()
    assert len(runs.answers) == (0 if "{t}" in prompt else len(IDS))
    assert ("the method did not wait for a call" in capsys.readouterr().err) == ("{t}" in prompt)


@pytest.mark.parametrize("line", ["sys.exit(0)", 'await ask("none", parse=lambda text: sys.exit(0))'])
def test_a_method_that_exits(runs, line):
    runs.write(f"import sys\n\nasync def answer(record, ask):\n    {line}\n")
    with pytest.raises(UserError, match=r"the method called sys\.exit"):
        runs.run()


def test_keys_stay_with_their_server_and_models_are_distinguished(runs):
    runs.write(CRITIC)
    with pytest.raises(UserError, match="needs a key: append ,api_key_addr=FILE"):
        runs.run("--model", "critic=m@http://127.0.0.1:9/v1")
    assert runs.server.requests == []
    key = f",api_key_addr={runs.folder}/key.txt"
    with serve(lambda request: Reply("Revised.")) as other:  # another model of the same name, by its address
        runs.run("--model", f"critic=some-model@{other.url}{key}")
        assert len(other.requests) == len(runs.server.requests) > 0


def test_an_abandoned_task_requests_nothing_more(runs):
    runs.write("""
import asyncio

async def forever(ask):
    number = 0
    while True:
        await ask("Number {number}", number=number)
        number += 1

async def answer(record, ask):
    asyncio.create_task(forever(ask))
    return await ask("none")
""")
    baselines.main(runs.flags())
    assert len(runs.server.requests) < 6 * len(IDS)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("async def answer(record, ask):\n    return 7\n", "TypeError: answer returned int, not a text or None"),
        (
            "async def answer(record, ask):\n    return await ask('{question} {mood}')\n",
            "mine.py, line 2: ValueError: ask: the prompt has {mood}, but no value was passed for it",
        ),
        ("async def answer(record, ask):\n    ask.note(a=object())\n", "is not JSON serializable"),
        ("async def answer(record):\n    return 'a'\n", "`answer` must take two arguments, record and ask"),
        (
            "async def answer(record, ask):\n    return await ask('none', n=0)\n",
            "ask: n is 0; it must be a whole number, 1 or more",
        ),
        (
            "async def answer(r, ask):\n    return await ask('none', max_tokens=-5)\n",
            "ask: max_tokens is -5; it must be",
        ),
        ("import re\n\nasync def answer(r, ask):\n    return await ask('Say', parse=re.compile('x').search)\n", ""),
        (
            "import asyncio\n\nasync def fail():\n    raise KeyError('deep')\n\nasync def answer(r, ask):\n"
            "    async with asyncio.TaskGroup() as group:\n        group.create_task(fail())\n",
            "mine.py, line 4: KeyError: 'deep'",
        ),
    ],
)
def test_mistakes_are_reported_with_their_line(runs, text, told, capsys):
    runs.write(text)
    try:
        runs.run(code=1)
    except UserError as error:
        assert told in str(error)
    else:
        assert told in capsys.readouterr().err


def test_a_run_that_a_method_ends_keeps_the_calls_under_way(runs):
    runs.write(f"""
import asyncio, sys

async def answer(record, ask):
    if record["id"] == {IDS[1]!r}:
        await asyncio.sleep(0.2)
        sys.exit(1)
    return await ask("Say {{question}}")
""")
    runs.server.delay = 0.5
    with pytest.raises(UserError, match=r"called sys\.exit"):
        runs.run()
    runs.write('async def answer(record, ask):\n    return await ask("Say {question}")\n')
    runs.server.delay = 0
    runs.run()
    assert len(runs.server.requests) == len(IDS)


IN_TASKS = {
    "sys.exit(0)": "called sys.exit",
    "await ask('Say {question}', parse=lambda text: {}['field'])": "KeyError: 'field'",
    "async with asyncio.timeout(0.05): await asyncio.sleep(300)": "TimeoutError",
}


@pytest.mark.parametrize("wait", ["await asyncio.gather(first(), second())", "await in_group(first(), second())"])
@pytest.mark.parametrize("what", IN_TASKS)
def test_the_error_of_one_of_several_tasks_is_told(runs, capsys, wait, what):
    runs.write(f"""
import asyncio, sys

async def in_group(*all_work):
    async with asyncio.TaskGroup() as group:
        [group.create_task(work) for work in all_work]

async def answer(record, ask):
    async def first():
        {what}
    async def second():
        for word in ("one", "two", "three"):
            await ask(word + " {{question}}")
    {wait}
""")
    try:
        runs.run(code=1)
        told = capsys.readouterr().err
    except UserError as error:
        told = str(error)
    assert IN_TASKS[what] in told


def test_a_task_that_is_left_changes_no_notes_and_a_kept_ask_is_refused(runs, capsys):
    runs.write("""
import asyncio
KEPT = []

async def answer(record, ask):
    async def late():
        try:
            await asyncio.sleep(300)
        finally:
            ask.note(late=True)
    KEPT.append((ask, asyncio.create_task(late())))
    await ask("Say {question}")
    return await KEPT[0][0]("Say it again")
""")
    runs.run(code=1)
    assert "late" not in runs.output.read_text()
    assert "ask: belongs to another question; use the `ask` that the method was called with" in capsys.readouterr().err
