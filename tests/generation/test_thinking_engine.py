"""Thoughts with the real vLLM: its parsers on the demo's tokenizer, and a model that thinks for one sentence."""

import json
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from thinking_chat import save_thinking_chat, save_thinking_tokenizer
from transformers import AutoTokenizer

from utils.base.errors import UserError
from utils.benchmarks.choices import VERDICT_SCHEMA
from utils.benchmarks.lampqa.answers import ANSWER_SCHEMA
from utils.benchmarks.thoughts import Split
from utils.generation.requests import Sampling
from utils.generation.thinking import GPT_OSS, TAGS, ThoughtReader, harmony_tag

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.engine


class Output:
    def __init__(self, tokenizer, text, cut):
        self.text, self.finish_reason = text, "length" if cut else "stop"
        self.token_ids = tokenizer.encode(text, add_special_tokens=False)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return save_thinking_tokenizer(tmp_path_factory.mktemp("tokenizer"))


READ = [
    # (text, cut, opened, answer, reasoning, unfinished)
    ("a b</think>c", False, True, "c", "a b", False),
    ("a b", True, True, "", "a b", True),
    ("a b", False, True, "", "a b", True),
    ("", True, True, "", "", True),
    ("a</think>", True, True, "", "a", False),
    ("<think>a b</think>c", False, False, "c", "a b", False),
    ("<think>a b", True, False, "", "a b", True),
    ("c", True, False, "c", "", False),
    ('a</think>{"x": "<think>"}', False, True, '{"x": "<think>"}', "a", False),
]


@pytest.mark.parametrize("name", [TAGS, "qwen3"])
@pytest.mark.parametrize(("text", "cut", "opened", "answer", "reasoning", "unfinished"), READ)
def test_vllm_s_parsers(tokenizer, name, text, cut, opened, answer, reasoning, unfinished):
    reader = ThoughtReader(name, lambda: tokenizer)
    sampling = Sampling(0.0, 1.0, 9, 0, reasoning_parser=name, opened=opened)
    split, count = reader.read(Output(tokenizer, text, cut), sampling)
    assert split == Split(answer, reasoning, unfinished)
    assert (count > 0) == bool(reasoning)
    assert not reader.marks_are_special


def test_a_parser_that_does_not_fit_the_model_is_refused(tokenizer):
    with pytest.raises(UserError, match=r"--reasoning_parser deepsek_r1: unknown; vLLM has .*deepseek_r1"):
        ThoughtReader("deepsek_r1", lambda: tokenizer)
    with pytest.raises(UserError, match="--reasoning_parser mistral: not for this model: "):
        ThoughtReader("mistral", lambda: tokenizer)


def test_gpt_oss_is_constrained_only_in_its_final_channel():
    xgrammar = pytest.importorskip("xgrammar")
    from xgrammar.testing import _is_grammar_accept_string

    grammar = xgrammar.Grammar.from_structural_tag(json.loads(harmony_tag(VERDICT_SCHEMA)))
    analysis = '<|channel|>analysis<|message|>Is it {"match_score": 7}?<|end|><|start|>assistant'
    for begin in ("", analysis):
        final = begin + '<|channel|>final<|message|>{"match_score": %s}'
        assert [_is_grammar_accept_string(grammar, final % n) for n in (2, 7)] == [True, False]
    assert not _is_grammar_accept_string(grammar, '{"match_score": 2}')
    assert ThoughtReader(GPT_OSS, None).marks_are_special


@pytest.fixture(scope="module")
def completions(tmp_path_factory):
    """The model's outputs for one prompt: free, constrained to a schema or an expression, cut, and without a parser."""
    folder = save_thinking_chat(tmp_path_factory.mktemp("thinking"))
    requests = [[64, None], [64, VERDICT_SCHEMA], [64, "[1-5]"], [96, ANSWER_SCHEMA], [1, VERDICT_SCHEMA]]
    requests = [[*request, TAGS, True] for request in requests] + [[64, VERDICT_SCHEMA, None, False]]
    requests += [[64, VERDICT_SCHEMA, GPT_OSS, False]]
    command = [sys.executable, ROOT / "tests/thinking_chat.py", folder, json.dumps(requests)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    completions = [Namespace(**completion) for completion in json.loads(done.stdout.splitlines()[-1])]
    return completions, AutoTokenizer.from_pretrained(folder)


@pytest.mark.long
def test_a_schema_begins_after_the_thought(completions):
    (free, verdict, number, answer, *_), tokenizer = completions
    for held in (verdict, number, answer):
        assert held.reasoning == free.reasoning != "" and not held.unfinished
        assert held.reasoning_tokens == len(tokenizer.encode(held.reasoning, add_special_tokens=False))
        assert held.completion_tokens > held.reasoning_tokens + 1
    assert list(json.loads(verdict.text)) == ["match_score"] and re.fullmatch("[1-5]", number.text)
    assert re.match(r'\{\s*"personalized_answer"', answer.text)
    assert answer.finish_reason == "length" or list(json.loads(answer.text)) == ["personalized_answer"]


def test_a_thought_that_is_cut_is_unfinished(completions):
    cut = completions[0][4]
    assert (cut.text, cut.unfinished, cut.finish_reason, cut.reasoning_tokens) == ("", True, "length", 1)


def test_without_a_parser_a_schema_begins_at_once(completions):
    silenced = completions[0][5]
    assert list(json.loads(silenced.text)) == ["match_score"] and silenced.reasoning == ""
