"""Variables of chat templates reach the prompt, its token count and the planner's training, and are settings."""

import json
import re
import shutil
from pathlib import Path

import pytest
from tiny_chat import TEMPLATE, save_tiny_chat

import baselines
import evaluate_responses
import planpers
import train_planner
from prompts import load_prompt
from utils.base.errors import UserError
from utils.base.manifest import file_hash, settings_of, write_folder_manifest
from utils.benchmarks.lampqa import task as lampqa
from utils.generation.chat import VERDICT_TOKENS, LocalChat
from utils.generation.requests import Completion, Sampling
from utils.generation.vllm_engine import sampling_params
from utils.models.model_folder import ModelFolder

ROOT = Path(__file__).resolve().parents[2]
CHAT = ROOT / "demo/models/chat"
SAMPLE = ROOT / "tests/data/mini_lampqa/test.json"
TRAIN = ROOT / "tests/data/mini_lampqa/train.json"
NOT_THINKING = "<think>\n\n</think>\n\n"  # as Qwen3's template has it for `enable_thinking` false
SWITCH = "{%- if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
SWITCH += "{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
OFF = '{"enable_thinking": false}'
MESSAGES = [{"role": "user", "content": "What now?"}]


def with_switch(folder):
    """The demo's tokenizer and config, with a switch in the chat template."""
    shutil.copytree(CHAT, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text() + SWITCH)
    return folder


@pytest.fixture(scope="module")
def switched(tmp_path_factory):
    """A tiny local model with the switch, and a variable for the effort."""
    folder = save_tiny_chat(tmp_path_factory.mktemp("models") / "switched", max_positions=16384)
    effort = "{%- if reasoning_effort is defined %}Reasoning: {{ reasoning_effort }}\n{%- endif %}"
    (folder / "chat_template.jinja").write_text(effort + TEMPLATE + SWITCH)
    return folder


@pytest.fixture
def asked(monkeypatch, switched):
    """The prompts as texts; vLLM is not loaded."""
    from transformers import AutoTokenizer

    tokenizer, texts = AutoTokenizer.from_pretrained(switched), []

    class Engine:
        concurrency, device = 3, "script"

        def __init__(self, args, models, max_model_len, gives_rewards):
            texts.append(max_model_len)

        async def complete(self, model, prompt, sampling):
            texts.append((tokenizer.decode(list(prompt)), sampling))
            judging = "match_score" in texts[-1][0]
            text = {"match_score": 1} if judging else {"personalized_answer": "x"}
            text = json.dumps(text) if judging or "personalized_answer" in texts[-1][0] else "An aspect"
            return Completion(text, "stop", len(prompt), 0, 3)

        async def close(self):
            pass

    monkeypatch.setattr("utils.generation.engines.VLLMEngine", Engine)
    return texts


def prompts(asked):
    found = [one for one in asked if isinstance(one, tuple)]
    asked.clear()
    return found


def refusal(main, *words):
    with pytest.raises(UserError) as raised:
        main([*map(str, words)])
    return str(raised.value)


def test_a_variable_reaches_the_demo_s_tokenizer_with_such_a_template(tmp_path):
    folder = str(with_switch(tmp_path / "chat"))
    plain, off = LocalChat(ModelFolder(folder)), LocalChat(ModelFolder(folder), {"enable_thinking": False})
    texts = [chat.tokenizer.decode(list(chat.render(MESSAGES))) for chat in (plain, off)]
    assert texts[0].endswith("<|im_start|>assistant\n") and texts[1] == texts[0] + NOT_THINKING
    expected = off.tokenizer.apply_chat_template(
        MESSAGES, add_generation_prompt=True, tokenize=True, return_dict=False, enable_thinking=False
    )
    assert list(off.render(MESSAGES)) == expected
    rendered = off.render(MESSAGES)
    assert list(rendered) == expected and off.length(rendered) == len(expected) > plain.length(plain.render(MESSAGES))
    assert list(LocalChat(ModelFolder(folder), {"enable_thinking": True}).render(MESSAGES)) == list(
        plain.render(MESSAGES)
    )
    assert off.end_of_turn == plain.end_of_turn


def test_a_variable_unknown_to_the_template_is_refused():
    said = refusal(
        baselines.main, "--model_addr", CHAT, "--inputs_addr", SAMPLE, "--output_addr", "x.json", "--dry_run",
        "--chat_template_kwargs", OFF,
    )  # fmt: skip
    assert said.startswith("--chat_template_kwargs: enable_thinking: ") and "has no such variable" in said
    words = ("--model_addr", CHAT, "--inputs_addr", SAMPLE, "--output_addr", "x.json", "--reasoning_effort", "low")
    assert refusal(baselines.main, *words).startswith("--reasoning_effort: ")
    more = ("--chat_template_kwargs", '{"reasoning_effort": "low"}')
    assert "set only one of them" in refusal(baselines.main, *words, *more)
    told = LocalChat(ModelFolder(str(CHAT)), {"enable_thinking": False}, only_known=True)
    assert told.variables == {}


def test_a_variable_is_in_every_prompt_and_is_a_setting(asked, switched, tmp_path):
    flags = ["--model_addr", switched, "--inputs_addr", SAMPLE, "--limit", "2", "--output_addr", tmp_path / "out.json"]
    assert baselines.main([*map(str, flags), "--chat_template_kwargs", OFF, "--reasoning_effort", "high"]) == 0
    for text, _ in prompts(asked):
        assert text.startswith("Reasoning: high") and text.endswith(f"<|im_start|>assistant\n{NOT_THINKING}")
    settings = settings_of(tmp_path / "out.json")
    assert settings["chat_template_kwargs"] == {"enable_thinking": False} and settings["reasoning_effort"] == "high"
    for other in (
        ["--chat_template_kwargs", OFF],
        ["--reasoning_effort", "high"],
        ["--reasoning_effort", "high", "--chat_template_kwargs", '{"enable_thinking": true}'],
    ):
        assert "was made with other settings" in refusal(baselines.main, *flags, *other)
    # Only in another order.
    words = ["--reasoning_effort", "high", "--chat_template_kwargs", '{"a": 1, "enable_thinking": false}']
    assert "a: " in refusal(baselines.main, *flags, *words)
    assert prompts(asked) == []


def test_sampling_flags_reach_the_engine(asked, switched, tmp_path):
    flags = ["--model_addr", switched, "--inputs_addr", SAMPLE, "--limit", "1", "--output_addr", tmp_path / "out.json"]
    more = {"--top_k": 20, "--min_p": 0.1, "--presence_penalty": -1, "--temperature": "default", "--top_p": "default"}
    assert baselines.main([*map(str, flags), *(str(word) for pair in more.items() for word in pair)]) == 0
    [(_, sampling)] = prompts(asked)
    assert sampling.further == {"top_k": 20, "min_p": 0.1, "presence_penalty": -1.0}
    assert (sampling.temperature, sampling.top_p) == (None, None)
    said = refusal(baselines.main, *flags[:-1], tmp_path / "other.json", "--seed", "none")
    assert said.startswith("--seed none: ") and said.count("\n") == 0


@pytest.mark.parametrize(
    ("own", "expected"), [({}, (1.0, 1.0)), ({"temperature": 0.6, "top_p": 0.95, "top_k": 20}, (0.6, 0.95))]
)
def test_sampling_parameters_of_vllm(own, expected):
    """A model's other settings are not used."""
    params = sampling_params(Sampling(None, None, 9, 5, further={"min_p": 0.1}), own)
    assert (params.temperature, params.top_p, params.top_k, params.min_p, params.seed) == (*expected, 0, 0.1, 5)
    given = sampling_params(Sampling(0.5, 0.8, 9, 5, further={"top_k": 7, "presence_penalty": 1.5}), own)
    assert (given.temperature, given.top_p, given.top_k, given.presence_penalty) == (0.5, 0.8, 7, 1.5)
    assert sampling_params(Sampling(None, 1, 9, 5), {"temperature": 0}).seed is None
    assert sampling_params(Sampling(0.5, 1, 9, 5, stop_token=7)).stop_token_ids == [7]


def test_a_judge_s_prompts_and_length_and_its_dry_run(asked, switched, tmp_path, capsys):
    responses = tmp_path / "responses.json"
    ids = [record["id"] for record in json.loads(SAMPLE.read_text())]
    responses.write_text(json.dumps({one: [{"output": "An answer."}] for one in ids}))
    long = json.dumps({"reasoning_effort": "very " * 200})  # so that the length tells it
    words = ["--evaluator_llm", switched, "--inputs_addr", SAMPLE, "--response_addr", responses]
    words = [*map(str, words), "--score_addr", f"{tmp_path}/scores.json", "--chat_template_kwargs", long]
    assert evaluate_responses.main(words) == 0
    assert asked[0] == -1  # what fits into the memory
    assert all(text.startswith("Reasoning: very very") for text, _ in prompts(asked))
    capsys.readouterr()
    (tmp_path / "scores.json").unlink()
    assert evaluate_responses.main([*words, "--dry_run", "--completions", f"{tmp_path}/others"]) == 0
    told = capsys.readouterr().out
    longest = int(re.search(r"longest prompt (\d+)", told)[1])
    assert f"the longest request, of {longest + VERDICT_TOKENS} tokens, takes" in told


# The planner


def planner_flags(*more, model="m"):
    named = ["--model_addr", model, "--inputs_addr", "train.json", "--unranked", "--output_dir", "planner"]
    return train_planner.build_parser().parse_args([*map(str, named), *more])


def plan_run(switched, planner, output, *more):
    words = ["--model_addr", switched, "--planner_model", planner, "--inputs_addr", SAMPLE, "--limit", "1"]
    return planpers.main([*map(str, [*words, "--output_addr", output]), "--unranked", *more])


def test_training_and_planning_render_alike(asked, switched, tmp_path):
    """The planner gets its training's variables, whatever the generator gets."""
    args = planner_flags("--max_seq_length", "8192", "--chat_template_kwargs", OFF, model=switched)
    chat = LocalChat(ModelFolder(args.model_addr), args.chat_template_kwargs)
    records = json.loads(SAMPLE.read_text())[:1]
    [example] = train_planner.build_examples(lampqa.TASK, records, "f", load_prompt("lampqa/planner"), chat, args)
    learnt = chat.tokenizer.decode(list(example.prompt))
    assert learnt.endswith(f"<|im_start|>assistant\n{NOT_THINKING}")
    planner = shutil.copytree(switched, tmp_path / "planner")
    args = args.replaced(inputs_addr=str(TRAIN))
    settings = train_planner.settings_of_training(args, load_prompt("lampqa/planner"), "m")
    assert settings["chat_template_kwargs"] == {"enable_thinking": False}
    write_folder_manifest(planner, {"settings": settings, "output_sha256": file_hash(TRAIN)})
    assert plan_run(switched, planner, tmp_path / "a.json", "--chat_template_kwargs", '{"enable_thinking": true}') == 0
    plan, answer = (text for text, _ in prompts(asked))
    assert plan == learnt and answer.endswith("<|im_start|>assistant\n")
    assert settings_of(tmp_path / "a.json")["chat_template_kwargs"] == {"enable_thinking": True}
