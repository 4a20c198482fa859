"""A thinking model, from its template to the table: a text that ends in a thought never becomes an answer."""

import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
from api_server import Reply, serve
from lamp_samples import CONFIGS, DATA, LAMP, read_sample
from test_baselines import flags, output, run, server  # noqa: F401 (fixtures)
from thinking_chat import save_tiny_thinker
from tiny_chat import SAMPLE, save_tiny_chat

import baselines
import evaluate_responses
import planpers
from utils import download_datasets, make_table
from utils.base.errors import UserError
from utils.base.manifest import read_manifest
from utils.benchmarks import task_of
from utils.benchmarks.thoughts import UNFINISHED, Split
from utils.generation.chat import APIChat, LocalChat
from utils.generation.requests import Completion, Sampling, Scored
from utils.generation.thinking import THOUGHT_TOKENS, ThoughtReader, Thoughts, end_thoughts, find_thoughts, own_parser
from utils.models.model_folder import ModelFolder

DRAFT = 'Okay, {"personalized_answer": "draft"} or {"match_score": 1}, [1], 3, comedy, <final_answer>(b)? Let me'
ANSWERS = {  # by the end of a prompt
    "Write only [1] or [2]": "[2]", "Write only one tag": "romance", "Write only 1, 2": "4",
    "personalized_answer": '{"personalized_answer": "real"}', "match_score": '{"match_score": 2}',
    "<final_answer>": "<final_answer>(c)",
}  # fmt: skip


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    return str(save_tiny_thinker(tmp_path_factory.mktemp("thinker") / "chat"))


# How it is recognised


def tokenizer_with(template, *tokens):
    return Namespace(chat_template=template, get_vocab=lambda: dict.fromkeys(tokens, 0))


@pytest.mark.parametrize(
    ("model_type", "template", "tokens", "parser"),
    [
        ("qwen3", "... <think>\n\n</think> ...", ["<think>", "</think>"], "deepseek_r1"),
        ("qwen2", "{{ x.split('</think>')[-1] }}", ["<think>", "</think>"], "deepseek_r1"),
        ("qwen3", "no thoughts", ["<think>", "</think>"], None),
        ("llama", "<think>", ["<think>"], None),
        ("mistral", "[THINK]", ["[THINK]", "[/THINK]", "[TOOL_CALLS]"], "mistral"),
        ("gpt_oss", "<|channel|>", [], "openai_gptoss"),
    ],
)
def test_a_model_s_parser_is_found_in_its_files(model_type, template, tokens, parser):
    assert own_parser(model_type, tokenizer_with(template, *tokens)) == parser


@pytest.mark.parametrize(
    ("end", "own", "flag", "expected"),
    [
        ("<think>\n", "deepseek_r1", None, Thoughts("deepseek_r1", True, True)),
        ("<think>\n", None, None, Thoughts(None, True, True)),  # marks that are not tokens
        ("<think>\n\n</think>\n\n", "deepseek_r1", None, Thoughts()),  # thinking is off
        ("", "deepseek_r1", None, Thoughts("deepseek_r1", False, True)),
        ("", "deepseek_r1", "none", Thoughts("none", None, False)),
        ("<think>\n", "deepseek_r1", "none", Thoughts("none", True, False)),
        ("", None, None, Thoughts()),
    ],
)
def test_the_end_of_a_prompt_shows_an_open_thought(end, own, flag, expected):
    chat = Namespace(prompt_end=end, own_parser=own)
    assert find_thoughts(Namespace(openai=False, reasoning_parser=flag), chat, "m", {}) == expected
    # It was trained to answer at once.
    trained = find_thoughts(Namespace(openai=False, reasoning_parser=flag), chat, "m", {"script": "train_planner.py"})
    assert trained == (expected if flag == "none" else Thoughts())


@pytest.mark.parametrize(
    ("model", "flag", "effort", "thinks", "opened"),
    [
        ("gpt-4o-mini", None, None, False, None), ("gpt-5-mini", None, None, True, None),
        ("o3", None, None, True, None),
        ("openai/gpt-oss-20b", None, None, True, None), ("olmo-2", None, None, False, None),
        ("deepseek-ai/DeepSeek-R1", None, None, True, None), ("GPT-5", None, None, True, None),
        ("some-model", "deepseek_r1", None, True, True),
        ("some-model", None, "low", True, None), ("some-model", None, "none", False, None),
    ],
)  # fmt: skip
def test_a_model_behind_an_api_thinks_by_its_name_or_by_flags(model, flag, effort, thinks, opened):
    thoughts = find_thoughts(
        Namespace(openai=True, reasoning_parser=flag, reasoning_effort=effort), APIChat("x"), model, {}
    )
    assert (thoughts.thinks, thoughts.opened, thoughts.parser) == (thinks, opened, flag)
    with pytest.raises(UserError, match="--reasoning_parser qwen3: with --openai the only parser is deepseek_r1"):
        find_thoughts(Namespace(openai=True, reasoning_parser="qwen3", reasoning_effort=None), None, model, {})


def test_thoughts_get_extra_tokens_unless_the_user_sets_them():
    thoughts = Thoughts("deepseek_r1", True, True)
    assert thoughts.room(False) == thoughts.room(False, None, 40960) == THOUGHT_TOKENS
    assert thoughts.room(False, 4096, None) == 1024
    assert thoughts.room(True) == Thoughts().room(False) == 0


# Its texts


class Partition:
    """Like vLLM's deepseek_r1, which tests/generation/test_thinking_engine.py uses."""

    reasoning_start_str, reasoning_end_str = "<think>", "</think>"

    def extract_reasoning(self, text, request):
        before, end, behind = text.partition("<think>")[2].partition("</think>")
        return (before, behind) if end else (before, None)

    def count_reasoning_tokens(self, ids):
        return 0


class Thinker:
    """An engine whose model thinks; `finished` depends on the prompt and the number of the try."""

    concurrency, device, finishes = 2, "none", staticmethod(lambda prompt, attempt: False)
    opened, tries = [], []

    def __init__(self, args, models, max_model_len, gives_rewards):
        self.opened.append((args.reasoning_parser, max_model_len))
        self.tokenizer = LocalChat(models[0]).tokenizer
        self.reader = ThoughtReader(None, lambda: self.tokenizer)
        self.reader._parser, self.reader._request = Partition(), None

    async def complete(self, model, prompt, sampling):
        prompt_text = self.tokenizer.decode(list(prompt))
        assert prompt_text.endswith("<think>\n")
        self.tries.append(sampling)
        answer = next((text for word, text in ANSWERS.items() if word in prompt_text), "Cost of the trip")
        text, reason = (
            (f"{DRAFT}</think>{answer}", "stop") if self.finishes(prompt_text, sampling.attempt) else (DRAFT, "length")
        )
        split, count = self.reader.read(SimpleNamespace(text=text, finish_reason=reason, token_ids=[]), sampling)
        figures = {"reasoning": split.reasoning, "reasoning_tokens": count, "unfinished": split.unfinished}
        return Completion(split.answer, reason, len(prompt), 0, 30, **figures)

    async def score(self, model, prompt, continuations):
        self.tries.append(self.tokenizer.decode(list(prompt)))
        return Scored([-float(len(tokens)) for tokens in continuations], 10, 0)

    async def close(self):
        pass


@pytest.fixture
def thinking(monkeypatch):
    class Engine(Thinker):
        opened, tries = [], []

    monkeypatch.setattr("utils.generation.engines.VLLMEngine", Engine)
    return Engine


@pytest.mark.parametrize(
    ("text", "schema", "answer", "reasoning", "unfinished"),
    [
        ("a b", None, "", "a b", True),
        ("a b</think>c", None, "c", "a b", False),
        ('{"x": 1}', None, "", '{"x": 1}', True),  # part of the thought
        ('{"x": 1}', {"type": "object"}, '{"x": 1}', "", False),  # held from its first token
        ("4", "[1-5]", "4", "", False),
    ],
)
def test_an_opened_thought_without_a_parser(thinker, text, schema, answer, reasoning, unfinished):
    """Also if the engine has one for another model."""
    for parser in (None, Partition()):
        reader = ThoughtReader("none", lambda: LocalChat(ModelFolder(thinker)).tokenizer)
        reader._parser = parser
        sampling = Sampling(0.0, 1.0, 9, 0, schema, reasoning_parser="none", opened=True)
        output = SimpleNamespace(text=text, finish_reason="stop", token_ids=[])
        split, _ = reader.read(output, sampling)
        assert split == Split(answer, reasoning, unfinished)


def write_records(path, records):
    path.write_text(json.dumps(records))
    return str(path)


def ask(script, *words, code=0):
    assert script.main([*map(str, words)]) == code


@pytest.mark.parametrize("name", ["LaMP-QA", *LAMP, *CONFIGS, "PersonaMem-32k"])
def test_a_text_cut_in_a_thought_is_not_an_answer(name, thinker, thinking, tmp_path, capsys):
    if name == "PersonaMem-32k":
        words = ["--dataset", name, "--source_dir", DATA / "mini_personamem", "--output_dir", tmp_path / "own"]
        ask(download_datasets, *words)
        data = tmp_path / "own/PersonaMem_32k.json"
    else:
        data = SAMPLE / "test.json"
        data = data if name == "LaMP-QA" else write_records(tmp_path / "data.json", read_sample(name))
    task, out = task_of("", json.loads(Path(data).read_text())), tmp_path / "out.json"
    words = ["--model_addr", thinker, "--inputs_addr", data, "--output_addr", out, "--temperature", "0.5", "--limit", 3]
    ask(baselines, *words, "--max_retries", "1", code=1)
    for [answer] in json.loads(out.read_text()).values():
        assert answer["output"] is None and answer["reason"] == UNFINISHED
        assert (answer["raw"], answer["reasoning"], answer["attempts"]) == ("", DRAFT, 2)
        assert answer["reasoning_tokens"] > 20
    manifest, said = read_manifest(out), capsys.readouterr()
    assert manifest["unfinished_thoughts"] == 3 and manifest["tokens"]["reasoning_tokens"] > 60
    assert "3 unfinished thoughts" in said.out and "--max_tokens" in said.out and "--max_model_len" in said.out
    assert manifest["reasoning_parser"] == "deepseek_r1"
    # Closed, it is read.
    thinking.finishes = staticmethod(lambda prompt, attempt: True)
    out = tmp_path / "closed/out.json"
    ask(baselines, *words, "--output_addr", out, "--max_retries", "0")
    for [answer] in json.loads(out.read_text()).values():
        assert answer["output"] is not None and answer["output"] == task.output.parse(answer["raw"], False).value
        assert answer["reasoning"] == DRAFT and DRAFT not in answer["raw"]
    assert "unfinished" not in capsys.readouterr().out and "unfinished_thoughts" not in read_manifest(out)


def test_plans_verdicts_and_the_table_s_note(thinker, thinking, tmp_path, capsys):
    records = json.loads((SAMPLE / "test.json").read_text())[:3]
    data, out = write_records(tmp_path / "data.json", records), tmp_path / "out.json"
    words = ["--model_addr", thinker, "--inputs_addr", data, "--max_retries", "0", "--unranked"]
    ask(planpers, *words, "--planner_model", thinker, "--output_addr", out, code=1)
    plans = json.loads((tmp_path / "out.json.plans.json").read_text())
    assert {plan["reason"] for [plan] in plans.values()} == {UNFINISHED}
    assert {answer["no_plan"] for [answer] in json.loads(out.read_text()).values()} == {UNFINISHED}
    last = records[-1]["question"]
    thinking.finishes = staticmethod(lambda prompt, attempt: last not in prompt)
    own = ["--completions", tmp_path / "some"]
    ask(planpers, *words, "--planner_model", thinker, "--output_addr", tmp_path / "some.json", *own)
    plans = json.loads((tmp_path / "some.json.plans.json").read_text())
    assert [plan["aspects"] for [plan] in plans.values()] == [["Cost of the trip"]] * 2 + [None]
    thinking.finishes = staticmethod(lambda prompt, attempt: records[0]["question"] in prompt)
    scores = tmp_path / "scores.json"
    judging = ["--evaluator_llm", thinker, "--inputs_addr", data, "--response_addr", tmp_path / "some.json"]
    before, retries = len(thinking.tries), ["--score_addr", scores]
    capsys.readouterr()
    ask(evaluate_responses, *judging, *retries, code=1)
    unfinished = read_manifest(scores)["unfinished_thoughts"]
    assert unfinished == len(records[1]["rubric_aspects"])
    assert f"{unfinished} unfinished thoughts" in capsys.readouterr().out
    # At temperature 0, it would only repeat the same thought.
    assert len(thinking.tries) - before == unfinished + len(records[0]["rubric_aspects"])
    ask(make_table, "--system", "Ours", scores)
    printed = capsys.readouterr()
    told = f"Ours: 1 answer and {unfinished} verdicts missing, because thoughts were unfinished."
    assert told in printed.out + printed.err


@pytest.mark.parametrize(
    ("flags", "max_tokens", "told"),
    [
        ([], 2048 + 1024, "--max_tokens 3072, including 1024 for its thoughts (a guess)\n"),
        (["--max_tokens", 100], 100, "--max_tokens 100, its thoughts included\n"),
        (["--max_tokens", 2048], 2048, "--max_tokens 2048, its thoughts included\n"),  # the default, but given
        (["--reasoning_parser", "none"], 2048, ""),
    ],
)
def test_tokens_grow_for_a_model_that_thinks(thinker, thinking, tmp_path, capsys, flags, max_tokens, told):
    data = write_records(tmp_path / "data.json", json.loads((SAMPLE / "test.json").read_text())[:1])
    words = ["--model_addr", thinker, "--inputs_addr", data, "--output_addr", tmp_path / "a.json", "--max_retries", "0"]
    ask(baselines, *words, *flags, code=1)
    assert thinking.opened == [("deepseek_r1" if told else "none", 4096)]
    assert thinking.tries[0].max_tokens == max_tokens
    said = capsys.readouterr().err
    assert (
        f"{thinker} is a reasoning model (--reasoning_parser deepseek_r1): {told}" in said
        if told
        else "reasoning" not in said
    )
    settings = read_manifest(tmp_path / "a.json")["settings"]
    assert settings["reasoning_parser"] == (None if told else "none")


def test_options_are_scored_after_the_thought(thinker, tmp_path):
    chat = LocalChat(ModelFolder(thinker))
    messages = [{"role": "user", "content": "q"}]
    open_end = chat.tokenizer.decode(list(chat.render(messages)))
    end_thoughts(chat, find_thoughts(Namespace(openai=False, reasoning_parser=None), chat, thinker, {}))
    assert chat.tokenizer.decode(list(chat.render(messages))) == open_end + "\n</think>\n\n"
    plain = LocalChat(ModelFolder(str(save_tiny_chat(tmp_path / "plain"))))
    end_thoughts(plain, find_thoughts(Namespace(openai=False, reasoning_parser=None), plain, "plain", {}))
    assert plain.behind == ""


# Behind an API

REAL = '{"personalized_answer": "real"}'
ENDED = "the reply ended inside its thought (finish_reason {}), at a stop text or by itself"
SENT = [
    # (reply, flags, output, reasoning, reasoning tokens)
    (Reply(REAL, thoughts={"reasoning": "Hm."}, reasoning_tokens=7), [], "real", "Hm.", 7),
    (Reply(f"<think>{DRAFT}</think>{REAL}"), [], "real", DRAFT, None),
    (Reply(f"{DRAFT}</think>{REAL}"), ["--reasoning_parser", "deepseek_r1"], "real", DRAFT, None),
    (Reply(f"[THINK]{DRAFT}[/THINK]{REAL}"), [], "real", DRAFT, None),
    (Reply(f"analysis{DRAFT}assistantfinal{REAL}"), [], "real", DRAFT, None),
    (Reply(REAL, thoughts={"reasoning": None}, reasoning_tokens=0), [], "real", None, None),
    (Reply("", "length", thoughts={"reasoning": DRAFT}), [], UNFINISHED, DRAFT, None),
    (Reply("", "length", reasoning_tokens=2048), [], UNFINISHED, None, 2048),  # as OpenAI's, which hide them
    # A thought that ended before a limit: more tokens would not help.
    (Reply("", "stop", thoughts={"reasoning_content": DRAFT}), [], ENDED.format("stop"), DRAFT, None),
    (Reply("", "end_turn", reasoning_tokens=20), [], ENDED.format("end_turn"), None, 20),
    (Reply(f"<think>{DRAFT}", "stop"), [], ENDED.format("stop"), DRAFT, None),
    (Reply(DRAFT, "eos"), ["--reasoning_parser", "deepseek_r1"], ENDED.format("eos"), DRAFT, None),
    (Reply(f"<think>{DRAFT}", "length"), [], UNFINISHED, DRAFT, None),
    (Reply(f"analysis{DRAFT}", "length"), [], UNFINISHED, DRAFT, None),
    (Reply(DRAFT, "length"), ["--reasoning_parser", "deepseek_r1"], UNFINISHED, DRAFT, None),
    # It has no marks, but breaks off in prose.
    (Reply(DRAFT, "length"), [], "the text breaks off in prose, so it may be a draft", None, None),
]


@pytest.mark.parametrize(("reply", "more", "expected", "reasoning", "tokens"), SENT)
def test_texts_of_a_server(flags, output, reply, more, expected, reasoning, tokens):
    with serve(lambda request: reply) as server:
        words = [*flags, *more, "--base_url", server.url, "--max_retries", "0", "--constrained_decoding", "never"]
        records = run(words, output, "--limit", "1", code=int(expected != "real"))
    [[answer]] = records.values()
    assert (answer["output"] or answer["reason"]) == expected
    assert (answer.get("reasoning"), answer.get("reasoning_tokens")) == (reasoning, tokens)
    manifest = read_manifest(output)
    assert manifest.get("unfinished_thoughts", 0) == int(expected == UNFINISHED)
    assert manifest["settings"].get("reasoning_parser") == (more[1] if more else None)


PROSE, IN_PROSE = "First, the user wants a text on gardens. Let me", "a text about gardens, which breaks off in the"


@pytest.mark.parametrize(
    ("model", "reply", "expected"),
    [
        ("deepseek-r1", Reply(PROSE, "length"), None), ("openai/gpt-oss-20b", Reply(PROSE, "length"), None),
        ("gpt-5", Reply("", "length"), None),
        ("gpt-5", Reply(IN_PROSE, "length", reasoning_tokens=7), IN_PROSE),
        ("deepseek-r1", Reply(IN_PROSE, "length", thoughts={"reasoning_content": "Hm."}), IN_PROSE),
        ("deepseek-r1", Reply(f"{PROSE}</think>{IN_PROSE}", "length"), IN_PROSE),
        ("deepseek-r1", Reply(IN_PROSE), IN_PROSE), ("gpt-4o", Reply(IN_PROSE, "length"), IN_PROSE),
    ],
)  # fmt: skip
def test_a_cut_text_of_a_thinking_family_needs_a_thought_mark(model, reply, expected, output, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    data = write_records(tmp_path / "data.json", read_sample("LongLaMP-review")[:1])
    with serve(lambda request: reply) as server:
        words = ["--model_addr", model, "--openai", "--base_url", server.url, "--max_retries", "0"]
        [[answer]] = run(words, output, data=data, code=int(expected is None)).values()
    assert (answer["output"], answer.get("reason")) == (expected, None if expected else UNFINISHED)
