"""A flag is a setting of an output, or declared not to be. Each flag is changed in turn."""

import argparse
import json
import re

import pytest
from api_server import ChatServer, default_reply, running
from test_readme import parser_of
from tiny_chat import sample_records

import baselines
import evaluate_responses
import planpers
from retrieval import rank_dataset
from utils.base.errors import UserError

SCRIPTS = {
    "baselines.py": baselines,
    "planpers.py": planpers,
    "evaluate_responses.py": evaluate_responses,
    "retrieval/rank_dataset.py": rank_dataset,
}
OTHERS = {
    "--openai": None,  # where the model runs: its identity is another, too
    "--dtype": None,  # has no effect with --openai, and --help says so
    "--reasoning_parser": ["deepseek_r1"],
    "--choose": None,  # no API can do it
    "--verdicts": None,
    "--temperature": ["0.5"],
    "--top_p": ["0.5"],
    "--min_p": ["0.5"],
    "--presence_penalty": ["0.5"],
    "--reasoning_effort": ["low"],
    "--chat_template_kwargs": ['{"a": 1}'],
    "--extra_body": ['{"a": 1}'],
    "--constrained_decoding": ["never"],
    "--strategy": ["direct"],
    "--num_verdicts": None,  # needs a --temperature, which is changed alone
    "--gold_plan": None,  # excludes --plans_addr
    "--max_tokens_plan": None,  # needs a planner: test_planpers.py
    "--method": None,  # tests/runs
    "--asking": None,  # LaMP-QA has one way
    "--show_fields": None,  # needs --method
    "--set": None,  # likewise
    "--trim_items": None,  # LaMP-QA's posts are whole
    "--unit": None,
    "--ranker": ["recency"],
    "--use_date": None,
    "--seed": ["7"],
}
WITH_ENCODER_ALONE = ("--max_length", "--pooling", "--normalize", "--dtype")  # refused with another --ranker


def flags_of(script):
    """Return each flag by its first name."""
    return {action.option_strings[0]: action for action in parser_of(script)._actions if action.option_strings}


@pytest.fixture
def finished(tmp_path):
    """The flags of a finished output, by script."""
    records = sample_records("test", 2)
    (tmp_path / "data.json").write_text(json.dumps(records))
    ids = [record["id"] for record in records]
    (tmp_path / "plans.json").write_text(json.dumps({key: [{"aspects": ["Cost"]}] for key in ids}))
    (tmp_path / "responses.json").write_text(json.dumps({key: [{"output": "An answer"}] for key in ids}))
    (tmp_path / "key.txt").write_text("sk-test")
    with running(ChatServer(default_reply)) as server:
        api = ["--openai", "--base_url", server.url, "--api_key_addr", str(tmp_path / "key.txt"), "--inputs_addr"]
        api += [str(tmp_path / "data.json"), "--max_retries", "0"]
        out = str(tmp_path / "out.json")
        answer = ["--model_addr", "m", "--unranked", "--output_addr", out]
        yield {
            "baselines.py": [*api, *answer, "--rag"],
            "planpers.py": [*api, *answer, "--plans_addr", str(tmp_path / "plans.json")],
            "evaluate_responses.py": [
                *api, "--evaluator_llm", "m", "--response_addr", str(tmp_path / "responses.json"), "--score_addr", out
            ],
            "retrieval/rank_dataset.py": [
                *("--input_dataset_addr", str(tmp_path / "data.json"), "--output_dataset_addr", out),
                *("--ranker", "random"),
            ],
        }  # fmt: skip


def other_value(action):
    """Return values other than a flag's default; None if it is not changed alone."""
    flag = action.option_strings[0]
    if flag in OTHERS:
        return OTHERS[flag]
    if isinstance(action, argparse._StoreTrueAction | argparse.BooleanOptionalAction):
        return []
    if action.choices:
        return [next(one for one in action.choices if one != action.default)]
    return [str((action.default or 0) + 1)]


@pytest.mark.parametrize("script", SCRIPTS)
def test_changing_any_setting_invalidates_a_finished_output(script, finished, capsys):
    module, words = SCRIPTS[script], [str(word) for word in finished[script]]
    assert module.main(words) in (0, 1)
    assert module.main(words) == 0 and "already finished" in capsys.readouterr().out
    for flag, action in flags_of(script).items():
        if (
            flag in parser_of(script).idle
            or action.dest in ("help", "version")
            or (values := other_value(action)) is None
        ):
            continue
        if flag == "--rag" or (script.startswith("retrieval") and flag in WITH_ENCODER_ALONE):
            continue
        try:
            module.main([*words, flag, *values])
        except UserError as error:
            assert "was made with other settings: " in str(error), flag
            assert re.search(rf"\b{action.dest}: ", str(error)), (flag, str(error))
        else:
            pytest.fail(f"{script} {flag} {values}: the finished output was taken for this one's")
