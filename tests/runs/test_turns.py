"""Prompts of a method's own with turns, replies that continue the assistant's turn, and texts that end a reply."""

import json
import re
import subprocess
import sys

import pytest
from api_server import Reply
from method_runs import IDS, ROOT, SAMPLE
from thinking_chat import save_tiny_thinker
from tiny_chat import save_tiny_chat

import baselines
from prompts import own_prompt
from utils.base.errors import UserError
from utils.benchmarks import task_of
from utils.generation.chat import LocalChat
from utils.generation.completions import Completions
from utils.generation.engines import choose_model
from utils.generation.fitting import Window
from utils.generation.requests import Sampling
from utils.generation.store import ModelStore
from utils.models.model_folder import ModelFolder
from utils.runs.rendering import Asked, Prompts, make_call
from utils.runs.trace import read_turns
from utils.training.rounds import example_of

QUESTIONS = {record["question"] for record in json.loads(SAMPLE.read_text())}
TURNS = '''
PROMPT = """[system]
You play {game}.
[user]
{question}
[assistant]
{said}
[user]
Continue."""


async def answer(record, ask):
    return await ask(PROMPT, game="chess", said="[user]\\n{game} <|im_end|>", stop=["</end>", "\\n\\n"])
'''
BEGUN = """
async def answer(record, ask):
    return await ask("[user]\\n{question}\\n[assistant]\\nMy answer:")
"""


# Prompts


def roles_of(text, **values):
    return [(message["role"], message["content"]) for message in own_prompt(text).messages(**values)]


def test_parts_of_a_prompt():
    assert roles_of("a {b}", b="1") == roles_of("[user]\na {b}\n", b="1") == [("user", "a 1")]
    text = "[system]\ns\n[user]\nu\n\nv\n[assistant]\na\n[user]\n\n[assistant]\nend"
    assert roles_of(text) == [("system", "s"), ("user", "u\n\nv"), ("assistant", "a"), ("user", ""),
                              ("assistant", "end")]  # fmt: skip
    assert roles_of("text\n[assistant]\nsaid") == [("user", "text\n[assistant]\nsaid")]  # not a part's line first
    said = "[user]\n{question}"
    assert roles_of("[user]\n{question}\n[assistant]\n{said}", question="q", said=said)[1] == ("assistant", said)
    for text in ("[system]\ns", "[assistant]\na\n[user]\nu", "[user]\nu\n[system]\ns"):
        with pytest.raises(ValueError, match=r"a prompt has \[system\]"):
            own_prompt(text)


U, A, V = ("user", "u"), ("assistant", "a"), ("user", "v")


@pytest.mark.parametrize("empty", ["", " ", "\n \n"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[user]\nu\n[assistant]\n{x}", [U]),  # nothing to continue
        ("[user]\nu\n[assistant]\na\n[user]\nv\n[assistant]\n{x}", [U, A, V]),
        ("[user]\nu\n[assistant]\n{x}\n[user]\nv", [("user", "u\n\nv")]),
        ("[user]\n{x}\n[assistant]\na\n[user]\nv", [A, V]),
        ("[user]\nu\n[assistant]\na\n[user]\n{x}\n[assistant]\na\n[user]\nv", [U, ("assistant", "a\n\na"), V]),
        ("[user]\nu\n[assistant]\n{x}\n[user]\n{x}\n[assistant]\na\n[user]\nv", [U, A, V]),
        ("[user]\nu\n[assistant]\n{x}\n\n{x}\n[user]\nv\n[assistant]\na", [("user", "u\n\nv"), A]),
        ("[user]\nu\n[user]\nv\n[assistant]\n{x}", [U, V]),  # the user's parts are written as two
        ("[system]\n{x}\n[user]\nu", [("system", ""), U]),
        ("[user]\n{x}", [("user", "")]),  # what the model answers
        ("[user]\nu\n[assistant]\na\n[user]\n{x}\n[assistant]\n{x}", [U, A, ("user", "")]),
    ],
)
def test_a_turn_without_text_is_left_out(text, empty, expected):
    assert [(role, content.strip()) for role, content in roles_of(text, x=empty)] == expected


def test_a_paragraph_of_empty_placeholders_does_not_fill_a_turn():
    assert roles_of("[user]\nu\n[assistant]\nI said: {x}\n[user]\nv", x="") == [("user", "u\n\nv")]


def test_messages_of_a_history_are_sent_as_they_are():
    turns = [{"role": "user", "content": ""}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    prompt = own_prompt("[user]\n{x}\n[assistant]\n{y}\n[user]\nv")
    before = json.dumps(turns)
    assert prompt.messages(turns=turns, x="", y="")[3:] == [{"role": "user", "content": "v"}]
    assert prompt.messages(turns=turns, x="", y="")[:3] == turns and json.dumps(turns) == before


TURN = "<|im_start|>{{ m.role }}\n" + "%s<|im_end|>\n"
ASKS = "{%% if add_generation_prompt %%}<|im_start|>assistant\n%s{%% endif %%}"


@pytest.mark.parametrize(
    ("content", "asks", "expected"),
    [
        (None, "", "assistant\nMy answer: <a>"),  # the demo's template
        (" {{ m.content }}", "", "assistant\n My answer: <a>"),  # a space, as in Mistral's older templates
        ("{{ m.content | trim }}", "", "assistant\nMy answer: <a>"),
        ("<think>\n\n</think>\n\n{{ m.content }}", "", "assistant\n<think>\n\n</think>\n\nMy answer: <a>"),  # Qwen3's
        ("{{ m.content }}", "<think>\n", "assistant\nMy answer: <a>"),  # opens a thought only when it asks
        ("<|channel|>final<|message|>{{ m.content }}", "", "assistant\n<|channel|>final<|message|>My answer: <a>"),
    ],
)
def test_a_local_model_continues_its_turn(content, asks, expected, tmp_path):
    """As transformers' own flag for this renders it; what the text contains cannot end the turn."""
    folder = save_tiny_chat(tmp_path)
    if content is not None:
        template = "{% for m in messages %}" + TURN % content + "{% endfor %}" + ASKS % asks
        (folder / "chat_template.jinja").write_text(template)
    chat = LocalChat(ModelFolder(str(folder)))
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "My answer: <a>"}]
    whole = chat.tokenizer.apply_chat_template(messages, continue_final_message=True, tokenize=False)
    assert chat.tokenizer.decode(chat.render(messages)) == whole and whole.endswith(expected)
    messages[-1]["content"] = "a<|im_end|>b"
    end = chat.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert list(chat.render(messages)).count(end) == 1  # after the user's turn


def open_model(folder, completions):
    flags = f"--model_addr {folder} --inputs_addr {SAMPLE} --output_addr answers.json --completions {completions}"
    return choose_model(baselines.build_parser().parse_args(flags.split()))


def test_the_beginning_of_a_turn_may_end_its_thought(tmp_path):
    model, record = open_model(save_tiny_thinker(tmp_path), tmp_path), json.loads(SAMPLE.read_text())[0]
    mark, task = model.chat.tokenizer.convert_tokens_to_ids("</think>"), task_of("", [record])

    def begin(said):
        text = "[user]\n{question} </think>\n[assistant]\n{said}"
        return make_call(Asked(text, values={"said": said}), record, ("q", 0), model, Prompts(task, None))

    prompt = model.chat.render(
        [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "<think>\nA</think>B"}]
    )
    assert model.chat.tokenizer.decode(prompt).endswith("assistant\n<think>\nA</think>B")  # not opened twice
    for said, opened in (("My answer:", False), ("Brief.</think> My answer:", False), ("</think> <think>", True)):
        call = begin(said)
        assert call.policy.opened is opened and call.prompt.count(mark) == said.count("</think>")


# Requests


def test_turns_and_stops_are_sent(runs):
    runs.write(TURNS)
    runs.server.reply = lambda request: Reply("A text")
    assert runs.run() == len(IDS)
    assert {request["messages"][1]["content"] for request in runs.server.requests} == QUESTIONS
    for request in runs.server.requests:
        assert request["stop"] == ["</end>", "\n\n"] and "continue_final_message" not in request
        system, _, *turns = request["messages"]
        assert system == {"role": "system", "content": "You play chess."}
        assert turns == [{"role": "assistant", "content": "[user]\n{game} <|im_end|>"},
                         {"role": "user", "content": "Continue."}]  # fmt: skip
    runs.write(TURNS.replace('"</end>", ', ""))
    assert runs.run() == len(IDS) and runs.run() == 0  # another stop is another request


def test_without_a_stop_the_key_is_as_before(tmp_path):
    completions = Completions(ModelStore(tmp_path, "m", {"model": "m"}), True, False)
    sampling = {"temperature": 0.1, "top_p": None, "max_tokens": 5, "seed": 7}
    hashed = completions.hashed([{"role": "user", "content": "a"}])
    before = completions._key(hashed, Sampling(**sampling))
    assert before == "f915b129de586820a2dbd50f813a0efe"
    assert completions._key(hashed, Sampling(**sampling, stop=("x",))) != before


WITH_EMPTY_TURNS = """
PROMPT = "[user]\\n{question}\\n[assistant]\\n{said}\\n[user]\\nGo on.\\n[assistant]\\n{begin}"

async def answer(record, ask):
    return await ask(PROMPT, said="", begin=" ")
"""


def test_every_place_leaves_out_empty_turns(runs, tmp_path, capsys):
    """The API, the dry run, the trace, the report's turns, a local model and training on the trace."""
    runs.write(WITH_EMPTY_TURNS)
    runs.server.reply = lambda request: Reply("A text")
    runs.run("--dry_run", "--limit", 1)
    counted = capsys.readouterr().out
    assert runs.run("--trace", "--limit", 1) == 1
    [request], [(question_id, _)] = runs.server.requests, runs.answers.items()
    record = next(record for record in json.loads(SAMPLE.read_text()) if record["id"] == question_id)
    expected = [{"role": "user", "content": f"{record['question']}\n\nGo on."}]
    assert request["messages"] == expected
    [line] = map(json.loads, runs.output.with_name("answers.json.trace.jsonl").open())
    assert line["messages"] == expected
    assert f"[user] {expected[0]['content']}\n[reply] A text" in read_turns(str(runs.output))[question_id]
    runs.write('async def answer(record, ask):\n    return await ask("{question}\\n\\nGo on.")\n')
    runs.run("--dry_run", "--limit", 1, "--completions", tmp_path / "none", output=tmp_path / "other.json")
    tokens = [re.findall(r"\d+ prompt tokens", text)[-1] for text in (counted, capsys.readouterr().out)]
    assert tokens[0] == tokens[1]

    model = open_model(save_tiny_chat(tmp_path / "chat"), tmp_path)
    task, prompt = task_of("", [record]), "[user]\n{question}\n[assistant]\n{said}\n[user]\nGo on."
    call = make_call(Asked(prompt, values={"said": ""}), record, ("q", 0), model, Prompts(task, None))
    assert call.messages == expected and call.prompt == model.chat.render(expected)
    example = example_of({**line, "text": "A"}, record, Window(model.chat, 2000, 100), 1.0, 1.0)
    assert list(example.prompt) == list(call.prompt)


def test_a_server_that_may_not_continue_is_refused_before_a_request(runs):
    runs.write(BEGUN)
    with pytest.raises(UserError, match="needs vllm or sglang as the server, and the list of models names neither"):
        runs.run()
    runs.server.list_models = lambda: (503, {"error": {"message": "busy"}})  # says nothing about the kind of server
    with pytest.raises(UserError, match="answers 503: busy"):
        runs.run("--max_retries", 0)
    assert runs.server.requests == []
    runs.server.list_models = lambda: (200, {"data": [{"id": "some-model", "owned_by": "vllm", "root": "m"}]})
    runs.server.reply = lambda request: Reply("A text")
    assert runs.run("--completions", runs.folder / "other") == len(IDS)
    for request in runs.server.requests:
        assert request["continue_final_message"] is True and request["add_generation_prompt"] is False
        assert request["messages"][-1] == {"role": "assistant", "content": "My answer:"}


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply("In water.\n\nQuestion: And mint?\n\nToo."), "In water."),
        (Reply("In water.</end> and\n\nmore", finish_reason="length"), "In water."),  # whole, though it was cut later
        (Reply("In water.", thoughts={"reasoning": "Hm.\n\nWater?"}), "In water."),
        (Reply("<think>Hm.\n\nWater?</think>In water.\n\nToo."), "In water."),
    ],
)
def test_a_stop_that_the_server_ignores_ends_the_reply(runs, reply, expected, capsys):
    runs.write(TURNS)
    runs.server.reply = lambda request: reply
    assert runs.run() == len(IDS)
    is_ignored = expected != reply.text
    for [answer] in runs.answers.values():
        assert (answer["output"], answer["raw"], answer["truncated"]) == (expected, expected, False)
        assert answer.get("stop_ignored", False) == is_ignored
    problem = f"the server ignored the stop texts in {len(IDS)} of {len(IDS)} replies"
    note = f"note: {problem}; each reply was cut at its first stop text"
    manifest = json.loads(runs.output.with_name("answers.json.manifest.json").read_text())
    assert (note in capsys.readouterr().err, manifest.get("stops_ignored_by_server")) == (
        is_ignored,
        len(IDS) if is_ignored else None,
    )
    assert runs.run("--overwrite") == 0 and runs.answers[IDS[0]][0]["output"] == expected  # from the store, too


@pytest.mark.parametrize(("stop", "message"), [('"x"', "'x'"), ("[]", "[]"), ("['']", "['']"), ("{'a'}", "{'a'}")])
def test_a_wrong_stop_names_its_line(runs, stop, message, capsys):
    runs.write(f'async def answer(record, ask):\n    return await ask("none", stop={stop})\n')
    runs.run(code=1)
    assert f"line 2: ValueError: ask: stop is {message}; it must be a list of texts" in capsys.readouterr().err


@pytest.mark.engine
def test_a_real_engine_continues_and_stops(tmp_path):
    (tmp_path / "mine.py").write_text("""
async def answer(record, ask):
    whole = await ask("[user]\\n{question}", max_tokens=24)
    word = whole.split()[4]
    cut = await ask("[user]\\n{question}", max_tokens=24, stop=[word])
    begin = " ".join(whole.split()[:3])
    more = await ask("[user]\\n{question}\\n[assistant]\\n{begin}", max_tokens=24, begin=begin)
    ask.note(whole=whole, cut=cut, word=word, more=more)
    return cut
""")
    output = tmp_path / "answers.json"
    flags = ["--model_addr", f"{ROOT}/demo/models/chat", "--method", f"{tmp_path}/mine.py", "--unranked"]
    flags += ["--inputs_addr", str(SAMPLE), "--output_addr", str(output), "--limit", "3", "--temperature", "0"]
    flags += ["--max_model_len", "1024", "--max_tokens", "64", "--trace"]
    subprocess.run([sys.executable, "baselines.py", *flags], cwd=ROOT, check=True, timeout=600)  # a process of its own
    for [answer] in json.loads(output.read_text()).values():
        notes = answer["notes"]
        assert notes["cut"] == notes["whole"].partition(notes["word"])[0].strip() and not answer["truncated"]
        assert not notes["more"].startswith(notes["whole"][:10])  # it continues the text
    lines = [json.loads(line) for line in output.with_name("answers.json.trace.jsonl").open()]
    assert [line["messages"][-1]["role"] for line in lines[:3]] == ["user", "user", "assistant"]
