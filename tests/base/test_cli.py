"""The command line of every script, and how a run ends."""

import argparse
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from zygote import LAUNCHED

import train_planner
from utils import make_table
from utils.base import cli
from utils.base.cli import VERSION, check_shard
from utils.base.errors import UserError, count_noun, count_plural

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = "tests/data/mini_lampqa/test.json"
FOLDERS = (ROOT, ROOT / "retrieval", ROOT / "utils")
SCRIPTS = sorted(
    str(path.relative_to(ROOT))
    for folder in FOLDERS
    for path in folder.glob("*.py")
    if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8")
    and path.name != "check_machine.py"  # `make setup` runs it, even with a Python that is too old for the others
)
HEAVY = ("torch", "vllm", "transformers", "openai", "trl", "peft", "numpy", "datasets", "huggingface_hub", "tiktoken",
         "matplotlib")  # fmt: skip


ARRAY = {"SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_ID": "7"}  # as in the third task of --array=5-8


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Outside of a SLURM array, even if the tests run in one."""
    for name in ARRAY:
        monkeypatch.delenv(name, raising=False)


def run(*command, **more):
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=600, **more)


# --help


# Runs each script as `python SCRIPT` does, but in one process, which keeps the modules of other packages.
EACH = """
import contextlib, io, json, os, runpy, sys

def run(script, *words):
    for name in [name for name in sys.modules if name.partition(".")[0] in ("prompts", "retrieval", "utils")]:
        del sys.modules[name]
    sys.path[0], sys.argv = os.path.dirname(os.path.abspath(script)), [script, *words]
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            return [end.code, *(stream.buffer.getvalue().decode() for stream in streams)]
        finally:
            sys.path[:] = paths

paths = [*sys.path]
words = [["--help"], ["--misspelt=sk-secret", "-x"]]
print(json.dumps({script: [run(script, *its) for its in words] for script in sys.argv[1:]}))
"""


@pytest.fixture(scope="module")
def without_heavy_packages(tmp_path_factory):
    """Return what each script does with --help and with wrong flags, where importing any of `HEAVY` fails."""
    folder = tmp_path_factory.mktemp("blocked")
    for name in HEAVY:
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} is blocked')")
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    import_all = f"for name in {HEAVY}:\n try: __import__(name)\n except ImportError as error: print(error)"
    blocked = run("-c", import_all, env=environment)
    assert blocked.stdout.splitlines() == [f"{name} is blocked" for name in HEAVY]
    done = run("-c", EACH, *SCRIPTS, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_imports_no_slow_packages(script, without_heavy_packages):
    (code, out, err), wrong = without_heavy_packages[script]
    assert (code, err) == (0, "") and out.startswith(f"usage: {Path(script).name} ")
    assert f"python {script}" in out  # a command to copy
    assert wrong[:2] == [2, ""] and wrong[2].count("\n") == 1
    assert wrong[2].startswith("error: unrecognized arguments: --misspelt, -x; did you mean --")


class Parsing(Exception):
    """Carries a script's parser out of its main()."""


@pytest.fixture
def parser_of(monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)

    def stop(parser, *args, **more):
        raise Parsing(parser)

    def read(script):
        module = importlib.import_module(script.removesuffix(".py").replace("/", "."))
        with monkeypatch.context() as patch, pytest.raises(Parsing) as stopped:
            patch.setattr(argparse.ArgumentParser, "parse_args", stop)
            module.main([])
        return stopped.value.args[0]

    return read


def options_of(parser):
    return {flag: action for action in parser._actions for flag in action.option_strings if flag != "-h"}


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_option_has_a_help_text_with_its_default(script, parser_of):
    parser = parser_of(script)
    assert all(action.option_strings for action in parser._actions)  # flags only
    for flag, action in options_of(parser).items():
        assert action.help, flag
        if action.default not in (None, False, argparse.SUPPRESS):
            assert ("(on)" if action.default is True else "%(default)s") in action.help, flag


def shared_parser():
    """Return a parser with every flag of utils/base/cli.py."""
    parser = cli.make_parser("")
    cli.add_engine_arguments(parser, "--model_addr", "")
    cli.add_sampling_arguments(parser, temperature_default=0.1, max_tokens=2048, max_model_len="")
    cli.add_run_arguments(parser)
    return parser


DERIVED = "combine_scores compare_evaluators export_predictions human_evaluation import_dataset make_controls"
DERIVED = [
    f"utils/{name}.py" for name in f"{DERIVED} make_figures make_table panel_scores report select_responses".split()
]
DIFFERENT_ON_PURPOSE = {
    "--model_addr": SCRIPTS,  # each script describes its own model
    "--max_model_len": SCRIPTS,  # and its default
    "--temperature": ["evaluate_responses.py", "utils/build_personamem.py"],  # only verdicts are greedy
    "--max_tokens": ["evaluate_responses.py", "utils/build_personamem.py"],  # verdicts are short, conversations long
    "--dtype": ["retrieval/rank_dataset.py"],  # an encoder's type changes the order of posts
    "--seed": [  # no text is sampled there
        "retrieval/rank_dataset.py", "utils/make_controls.py", "train_planner.py", "utils/train_generator.py",
        "utils/human_evaluation.py", "utils/draw_questions.py",
    ],
    "--cache_dir": ["utils/download_datasets.py"],  # its default is the folder in the paper's README
    "--overwrite": [  # each help text says what that script may replace
        *DERIVED, "train_planner.py", "utils/download_datasets.py", "utils/train_generator.py",
        "utils/draw_questions.py", "utils/rounds_table.py",
    ],
    "--per_device_train_batch_size": ["utils/train_generator.py"],  # another paper's settings
    "--gradient_accumulation_steps": ["utils/train_generator.py"],
    "--weight_decay": ["utils/train_generator.py"],
    "--lora_rank": ["utils/train_generator.py"],  # without it there is no adapter
    "--dry_run": ["train_planner.py", "utils/train_generator.py", "retrieval/rank_dataset.py"],  # no model is used
    "--planner_target": ["planpers.py"],  # what the planner was trained with
    "--ranker": ["retrieval/rank_dataset.py"],  # a method for ranking posts; elsewhere, a trained model
}  # fmt: skip


@pytest.mark.parametrize("flag", sorted(options_of(shared_parser())))
def test_a_shared_flag_is_the_same_in_every_script(flag, parser_of):
    expected = describe(options_of(shared_parser())[flag])
    actions = {script: options_of(parser_of(script)).get(flag) for script in SCRIPTS}
    exceptions = DIFFERENT_ON_PURPOSE.get(flag, [])
    for script, action in actions.items():
        if action is not None and script not in exceptions:
            assert describe(action) == expected, script
    assert any(actions.values())


def test_any_other_flag_of_several_scripts_has_one_type_and_default(parser_of):
    kinds = {}
    for script in SCRIPTS:
        for flag, action in options_of(parser_of(script)).items():
            if script not in DIFFERENT_ON_PURPOSE.get(flag, []):
                kinds.setdefault(flag, set()).add((action.default, action.type))
    shared = options_of(shared_parser())
    assert {flag: its for flag, its in kinds.items() if len(its) > 1 and flag not in shared} == {}


def describe(action):
    return {name: getattr(action, name) for name in ("default", "type", "choices", "nargs", "help", "metavar")}


# Values


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--temperature", "2.01"),
        ("--temperature", "nan"),
        ("--top_k", "-1"),
        ("--price_in", "inf"),
        ("--price_in", "1e999"),
        ("--price_in", "0,5"),
        ("--min_p", "1.1"),
        ("--presence_penalty", "-2.1"),
        ("--extra_body", "[1]"),
        ("--extra_body", '{"a": NaN}'),
        ("--extra_body", '{"a": 1e999}'),
        ("--extra_body", '{"a": "\\ud800"}'),
        ("--extra_body", "[" * 90_000),
        ("--extra_body", "{enable_thinking: false}"),
        ("--top_p", "0"),
        ("--top_p", "1.1"),
        ("--limit", "0"),
        ("--limit", "1.5"),
        ("--max_retries", "-1"),
        ("--seed", "-1"),
        ("--num_shards", "two"),
        ("--dtype", "int8"),
    ],
)
def test_a_bad_value_ends_with_exit_code_2_and_names_the_flag(flag, value, capsys):
    with pytest.raises(SystemExit) as ending:
        shared_parser().parse_args(["--model_addr", "m", flag, value])
    assert ending.value.code == 2
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert flag in last_line
    assert value[:50] in last_line.replace("\\\\", "\\")


@pytest.mark.parametrize(
    ("flag", "key", "why"),
    [
        *(("--extra_body", key, "is set by this program, or by the flag of that name")
          for key in ("temperature", "max_completion_tokens", "response_format", "stream", "chat_template_kwargs")),
        *(("--chat_template_kwargs", key, "is set by this program") for key in ("tokenize", "add_generation_prompt")),
    ],
)  # fmt: skip
def test_reserved_json_keys_are_refused(flag, key, why, capsys):
    message = refusal_of(shared_parser(), ["--model_addr", "m", flag, json.dumps({"mine": 1, key: 1})], capsys)
    assert message == f"error: argument {flag}: {key}: {why}; --help lists the flags\n"


# Mistakes in the command line of any script


def refusal_of(parser, words, capsys):
    """Return a parser's message on stderr; it must exit with code 2."""
    with pytest.raises(SystemExit) as ending:
        parser.parse_args(words)
    assert ending.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_misspelt_flag_gets_a_one_line_suggestion(script, parser_of, capsys):
    parser = parser_of(script)
    for number, flag in enumerate(options_of(parser)):
        words = ([f"{flag}x"], [f"{flag}x", "4"], [f"{flag}x=4"])[number % 3]  # alone: required ones are missing too
        expected = f"error: unrecognized arguments: {flag}x; did you mean {flag}?\n"
        assert refusal_of(parser, words, capsys) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max_token", "5"], "unrecognized arguments: --max_token; did you mean --max_tokens?"),
        (["--temp", "1"], "unrecognized arguments: --temp; did you mean --temperature?"),  # no abbreviations
        (["-seed", "1"], "unrecognized arguments: -seed; did you mean --seed?"),
        (["--limit", "3", "4"], "unrecognized arguments: 4; --help lists the flags"),
        (["--limit"], "argument --limit: expected one argument; --help lists the flags"),
        (["--limit", "-3"], "argument --limit: -3 is not a positive number; --help lists the flags"),
        (["--top_p", "-1e-9"], "argument --top_p: expected one argument; --help lists the flags"),
        (["--temprature", "1", "--seeds", "1", "--temprature", "2"],
         "unrecognized arguments: --temprature, --seeds; did you mean --temperature, --seed?"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_in_one_line(words, message, capsys):
    assert refusal_of(shared_parser(), ["--model_addr", "m", *words], capsys) == f"error: {message}\n"


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_wrong_value_or_missing_flag_is_named_in_one_line(script, parser_of, capsys):
    parser = parser_of(script)
    wrong = {flag: [flag, "no such value"] for flag, action in options_of(parser).items()
             if action.choices or action.type not in (None, str)}  # fmt: skip
    wrong |= {flag: [flag] for flag, action in options_of(parser).items() if action.nargs not in (0, "?")}
    for flag, words in wrong.items():
        message = refusal_of(parser, words, capsys)
        assert message.startswith(f"error: argument {name_of(options_of(parser)[flag])}: ")
        assert message.endswith("; --help lists the flags\n")
        assert message.count("\n") == 1
    if required := [name_of(action) for action in parser._actions if action.required]:
        message = refusal_of(parser, [], capsys)
        expected = f"error: the following arguments are required: {', '.join(required)}; --help lists the flags\n"
        assert message == expected


def name_of(action):
    """Return a flag with all its spellings, as argparse shows it."""
    return "/".join(action.option_strings)


# Flags without effect. By script: flags of a mode, flags without effect in it, and the message.

API = "--api_key_addr k --base_url http://h/v1 --model_id m"
API += ' --extra_body {"stop":"x"} --price_in 1 --price_out 2 --price_cached 0.5'
NO_API = "without --openai, because the model is local\n  add --openai, or remove {}"
ENCODER = (
    "--model_name m --max_length 9 --pooling cls --normalize --no-normalize --cache_dir d --batch_size 4"
    " --device cpu --dtype bfloat16 --keep_embeddings"
)
NO_ENCODER = "with a --ranker that needs no encoder\n  use --ranker dense or hybrid, or remove {}"

WITHOUT_EFFECT = [
    ("baselines.py", "--choose likelihood",
     "--asking open --temperature 1 --top_p 0.5 --top_k 2 --min_p 0.1 --presence_penalty 1 --max_tokens 9 --seed 4"
     " --max_retries 2"
     " --constrained_decoding never --num_generated_outputs 2",
     "with --choose, which generates no text\n  remove --choose, or remove {}"),
    ("baselines.py", "", "--num_contexts 4 --unranked --trim_items",
     "without --rag, because the prompt has no posts\n  add --rag, or remove {}"),
    ("baselines.py", "--method m.py", "--rag --choose likelihood --trim_items",
     "with --method, because the method itself decides what to ask\n  remove {}"),
    ("baselines.py", "", "--model critic=m --set n=4 --show_fields f --search dense",
     "without --method\n  add --method, or remove {}"),
    ("baselines.py", "--method m.py",
     "--model_name m --max_length 9 --pooling cls --normalize --no-normalize --search_device cuda",
     "without --search dense\n  use --search dense, or remove {}"),
    ("baselines.py", "", API, NO_API),
    ("planpers.py", "--gold_plan", API, NO_API),
    ("planpers.py", "--gold_plan", "--planner_base_url http://h/v1", "without --planner_model\n  remove {}"),
    ("planpers.py", "--planner_model p",
     "--planner_api_key_addr k --planner_price_in 1 --planner_price_out 2 --planner_price_cached 0.5",
     "without --planner_base_url, because the planner is local\n  add --planner_base_url, or remove {}"),
    ("evaluate_responses.py", "--strategy reward",
     "--temperature 1 --top_p 0.5 --top_k 2 --min_p 0.1 --presence_penalty 1 --max_tokens 9 --seed 4"
     " --constrained_decoding never", "with --strategy reward, which generates no text\n  remove {}"),
    ("evaluate_responses.py", "", API, NO_API),
    ("evaluate_responses.py", "--verdicts probability",
     "--num_verdicts 3 --temperature 1 --top_p 0.5 --top_k 2 --min_p 0.1 --presence_penalty 1 --max_tokens 9 --seed 4"
     " --max_retries 2 --constrained_decoding never",
     "with --verdicts, which generates no text\n  remove --verdicts, or remove {}"),
    ("utils/build_dataset.py", "", API, NO_API),
    ("utils/build_personamem.py", "", API, NO_API),
    ("utils/train_generator.py", "--objective grpo", "--num_contexts 5 --trim_items",
     "with --objective grpo, whose prompts are in the trace\n  remove {}"),
    ("utils/train_generator.py", "--num_contexts 0", "--fusion decoder --trim_items",
     "with --num_contexts 0: the prompt has no items\n  remove {}"),
    ("utils/train_generator.py", "", "--patience 3",
     "without --validation_addr\n  add --validation_addr, or remove {}"),
    *(("utils/train_generator.py", f"--objective {other}", flags,
       f"without --objective {name}\n  use --objective {name}, or remove {{}}")
      for other, name, flags in (
          ("sft", "dpo", "--worst_addr w --beta 0.3"), ("dpo", "sft", "--prompt feedback"),
          ("sft", "distill or grpo", "--response_addr r"),
          ("sft", "grpo", "--trace_addr t --score_addr s --role critic --advantage pr2 --kl 0.1 --keep_cut"),
          ("grpo", "sft or dpo or distill", "--target_addr t"))),
    ("utils/select_responses.py", "--ranker d s", "--worst_addr w --min_score 1", "with --ranker\n  remove {}"),
    ("utils/combine_scores.py", "", "--own_addr f", "without --own\n  add --own, or remove {}"),
    ("utils/combine_scores.py", "", "--contrast_addr f", "without --contrast\n  add --contrast, or remove {}"),
    ("utils/combine_scores.py", "", "--length_note n --length_over 3", "without --length_weight\n  remove {}"),
    ("utils/combine_scores.py", "", "--form_texts a", "without --form\n  add --form, or remove {}"),
    *(("retrieval/rank_dataset.py", f"--ranker {ranker}", ENCODER, NO_ENCODER)
      for ranker in ("bm25", "recency", "random")),
    ("utils/download_datasets.py", "--source_dir d", "--dataset_name d --source_url u",
     "with --source_dir\n  remove {}"),
    ("utils/download_datasets.py", "--dataset LaMP-4", "--dataset_name d --revision r",
     "for a dataset that is not on the hub\n  remove {}"),
    ("utils/download_datasets.py", "", "--source_url u", "for a dataset on the hub\n  remove {}"),
    ("utils/make_table.py", "", "--paper_table 3", "without --paper\n  add --paper, or remove {}"),
    ("utils/make_table.py", "--paper p", "--groups a=b", "with --paper, whose columns are the paper's\n  remove {}"),
    ("utils/make_table.py", "", "--holm", "without --baseline\n  add --baseline, or remove {}"),
    ("utils/show_answers.py", "", "--worst", "without --score_addr\n  add --score_addr, or remove {}"),
    ("utils/show_answers.py", "--score_addr s --ids a", "--worst",
     "with --ids, which are printed in the given order\n  remove {}"),
    ("utils/show_answers.py", "--ids a", "--num_questions 3", "with --ids, which are all printed\n  remove {}"),
    *(("utils/make_figures.py", f"--figure {other}", flags, f"except with --figure {figures}\n  remove {{}}")
      for other, flags, figures in (
          ("4", "--system x", "2 or 3 or 16 or groups or best_of_n"),
          ("4", "--allow_partial --unscored_as_zero --samples all --groups a=b", "2, 3, 16 or groups"),
          ("3", "--response_addr a --score_addr a", "best_of_n"),
          ("3", "--agreement_addr a", "4"),
          ("3", "--inputs_addr a", "5"), ("3", "--training_dir a", "training"), ("3", "--by a", "groups"))),
]  # fmt: skip


def flags_of(words):
    return [word for word in words.split() if word.startswith("--")]


def required_words(parser):
    """Return a value for each required flag of a parser."""
    required = [action for action in parser._actions if action.required]
    return [word for action in required for word in (action.option_strings[0], (action.choices or ["value"])[0])]


@pytest.mark.parametrize(("script", "mode", "flags", "message"), WITHOUT_EFFECT)
def test_a_flag_without_effect_is_refused(script, mode, flags, message, parser_of, capsys):
    parser = parser_of(script)
    command = [*required_words(parser), *mode.split()]
    parser.parse_args(command)
    groups = re.findall(r"--\w[\w-]*(?: [^- ]\S*)?", flags)
    assert [group.split()[0] for group in groups] == flags_of(flags)
    for group in groups:
        for words in (group.split(), [group.replace(" ", "=", 1)]):
            expected = f"error: {group.split()[0]}: has no effect {message.format(group.split()[0])}\n"
            assert refusal_of(parser, [*words, *command], capsys) == expected  # wherever they stand
    if len(groups) > 1:
        several = refusal_of(parser, [*command, *flags.split()], capsys)
        assert several == f"error: {', '.join(flags_of(flags))}: have no effect {message.format('these flags')}\n"


def test_every_without_effect_rule_is_tested_and_names_existing_flags(parser_of):
    ruled = {(script, flag) for script in SCRIPTS for flags, *_ in parser_of(script)._rules for flag in flags}
    assert ruled == {(script, flag) for script, _, flags, _ in WITHOUT_EFFECT for flag in flags_of(flags)}
    assert all(flag in options_of(parser_of(script)) for script, flag in ruled)


BUILTIN = {bool, int, float, str, list, tuple, dict, type(None)}


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("--model_addr m --inputs_addr i --output_addr o", {"model_addr", "inputs_addr", "output_addr"}),
        ("--model_addr=m --inputs_addr i --output_addr o --max_tokens 2048 --enforce_eager",
         {"model_addr", "inputs_addr", "output_addr", "max_tokens", "enforce_eager"}),
    ],
)  # fmt: skip
def test_given_flags_are_recorded_apart_from_the_values(words, given, parser_of):
    """vLLM's SamplingParams refuses a subclass of int, so the values carry no marker."""
    args = parser_of("baselines.py").parse_args(words.split())
    assert args.given == args.replaced(seed=3).given == given
    assert "given" not in vars(args) and args.replaced(seed=3).seed == 3 and args.seed == 0
    assert args.max_tokens == 2048 and {type(value) for value in vars(args).values()} <= BUILTIN


def test_flags_that_a_command_lacks_have_values_but_are_no_settings():
    parser = cli.make_parser("")
    args = parser.parse_args([])
    assert (args.trace, args.num_shards, args.max_retries, args.num_contexts, args.set) == (False, 1, 0, 0, None)
    assert vars(args) == vars(args.replaced()) == args.settings() == {}
    parser.add_argument("--num_shards", default=1)
    parser.add_argument("--num_contexts", default=10)
    args = parser.parse_args([])
    assert vars(args) == vars(args.replaced()) == args.settings() == {"num_shards": 1, "num_contexts": 10}


@pytest.mark.parametrize(("home", "expected"), [("~", "/home/me"), ("~root", "/root"), ("~nobody-here", None)])
@pytest.mark.parametrize(
    ("script", "flag"),
    [("baselines.py", "--inputs_addr"), ("retrieval/rank_dataset.py", "--cache_dir"),
     ("train_planner.py", "--output_dir"), ("utils/make_table.py", "--output_addr")],
)  # fmt: skip
def test_a_tilde_is_a_home(script, flag, home, expected, monkeypatch, parser_of, capsys):
    monkeypatch.setenv("HOME", "/home/me")
    parser = parser_of(script)
    for own in ([f"{flag}={home}/a"], [flag, f"{home}/a"]):
        words = [*required_words(parser), *own]
        if expected is None:
            message = f"error: {home}/a: no such user; if this is a folder, write ./{home}/a\n"
            assert refusal_of(parser, words, capsys) == message
        else:
            value = vars(parser.parse_args(words))[flag.removeprefix("--")]
            assert value in (f"{expected}/a", [f"{expected}/a"])


def test_the_api_address_can_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://here/v1")
    there = shared_parser().parse_args(["--model_addr", "m", "--openai", "--base_url", "http://there"])
    assert there.base_url == "http://there"
    for script in ("baselines.py", "evaluate_responses.py"):
        parser = importlib.import_module(script.removesuffix(".py")).build_parser()
        args = parser.parse_args(required_words(parser))
        assert (args.base_url, args.openai) == ("http://here/v1", False)  # it does not count as a given flag
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    assert shared_parser().parse_args(["--model_addr", "m"]).base_url is None


@pytest.mark.parametrize(
    ("num_shards", "shard_index", "last"), [(1, 1, 0), (4, 4, 3), (4, -1, 3), (0, 0, 0), (-2, -1, 0)]
)
def test_a_shard_out_of_range(num_shards, shard_index, last):
    said = f"^--shard_index {shard_index} is out of range: with --num_shards {num_shards} it must be from 0 to {last}$"
    with pytest.raises(UserError, match=said):
        check_shard(num_shards, shard_index)


# How a run ends


def script_of(body):
    return f"import os, sys; from utils.base.cli import *\ndef main():\n    {body}\nrun_script(main)"


@pytest.mark.parametrize(
    ("body", "code", "stderr"),
    [
        ("return 0", 0, ""),
        ("return 3", 3, ""),
        ("raise UserError('d.json: no such file')", 2, "error: d.json: no such file\n"),
        ("from utils.base.errors import EngineDiedError as E; raise E('it died')", 1, "error: it died\n"),
        ("raise UserError('d.json: exists\\n  --overwrite')", 2, "error: d.json: exists\n  --overwrite\n"),
        # Text from servers, files and models cannot control the terminal.
        (r"raise UserError('a\x1b[2J\x9b1m\r\x07é\n  b\u202e')", 2, "error: a\\x1b[2J\\x9b1m\\r\\x07é\n  b\\u202e\n"),
        (r"raise OSError(28, 'full', 'a\x1b[2J')", 2,
         f"error: a\\x1b[2J: full\n  free some space on its disk; {cli.RESUME_HINT.partition('; ')[2]}\n"),
        ("raise KeyboardInterrupt", 130, "interrupted; finished work is kept, run the same command again to resume\n"),
        ("raise KeyboardInterrupt('stopped after step 3')", 130, "stopped after step 3\n"),
    ],
)  # fmt: skip
def test_exit_codes(body, code, stderr):
    result = run("-c", script_of(body))
    assert (result.returncode, result.stdout, result.stderr) == (code, "", stderr)


def test_a_bug_shows_its_traceback():
    result = run("-c", script_of("return [][0]"))
    assert result.returncode == 1 and result.stderr.startswith("Traceback ")
    assert result.stderr.endswith("IndexError: list index out of range\n")


@pytest.mark.parametrize(
    ("body", "code", "stderr"),
    [
        ("print('x'); return 0", 141, b""),
        ("print('x\\n' * 100_000); return 0", 141, b""),
        ("print('x'); raise UserError('d.json: bad')", 2, b"error: d.json: bad\n"),
        ("print('x'); sys.exit(0)", 0, b""),  # as argparse's --help
    ],
)
def test_output_into_a_closed_pipe(body, code, stderr):
    read, write = os.pipe()
    os.close(read)
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    with open(write, "wb") as file:
        command = [sys.executable, "-c", script_of(body)]
        result = subprocess.run(command, cwd=ROOT, env=buffered, stdout=file, stderr=subprocess.PIPE)
    assert (result.returncode, result.stderr) == (code, stderr)


SHELLS = [
    ("{}", 0, "\\xe9 \\xd7 \\u2020"), ("{} 2>&-", 0, ""), ("{} >&- 2>&-", 0, ""), ("{} 2>&1 | head -c 1", 141, ""),
    ("{} 2>/dev/full", 2, ""), ("{} >/dev/full", 2, "error: No space left on device\n"),
]  # fmt: skip


@pytest.mark.parametrize(("shell", "code", "shown"), SHELLS)
def test_a_stream_that_cannot_be_written_ends_a_run_without_a_traceback(tmp_path, shell, code, shown):
    """A closed stream, or an encoding without some of the characters, does not end the run."""
    loop = "[print('é × †', file=file) for file in (sys.stdout, sys.stderr) for _ in range(30_000)]; "
    loop += f"open({str(tmp_path / 'done')!r}, 'w').close(); return 0"
    (tmp_path / "script.py").write_text(script_of(loop), encoding="utf-8")
    command = ["bash", "-o", "pipefail", "-c", shell.format(f"{sys.executable} {tmp_path}/script.py")]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, cwd=ROOT, env=ascii_only, capture_output=True, text=True, timeout=600)
    assert done.returncode == code and shown in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "done").exists() == (code == 0)


WAITING = """
import signal
from utils.base.errors import run_script
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start without it
def main():
    try:
        print("ready", flush=True)
        signal.pause()
    finally:
        print("closed", flush=True)
run_script(main)
"""
SWALLOWED = """
import os, signal, weakref
from utils.base import cli
class Thing: pass
def main():
    thing = Thing()
    weakref.finalize(thing, lambda: os.kill(os.getpid(), signal.SIGTERM))
    del thing
    print("went on")
    return 0
cli.run_script(main)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_closes_open_files_and_prints_how_to_resume(number):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WAITING], cwd=ROOT, text=True, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 130
    assert (stdout, stderr) == ("closed\n", f"{cli.RESUME_HINT}\n")


# SLURM arrays


@pytest.mark.parametrize("environment", [{}, ARRAY])
@pytest.mark.parametrize("words", ["", "--num_shards 4 --shard_index 2"])
def test_a_task_of_an_array_does_a_shard_only_if_asked(monkeypatch, capsys, words, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    parser = cli.make_parser("")
    cli.add_run_arguments(parser)
    args = parser.parse_args(words.split())
    assert (args.num_shards, args.shard_index) == ((4, 2) if words else (1, 0))
    cli.prepare_run(args, ["out.json"], [])
    out, err = capsys.readouterr()
    is_told = "add\n  --num_shards $SLURM_ARRAY_TASK_COUNT --shard_index $SLURM_ARRAY_TASK_ID" in err
    assert out == "" and is_told == bool(err) == bool(environment and not words)


# Several processes


@pytest.mark.parametrize(
    ("environment", "is_told"),
    [
        ({"RANK": "3"}, True),  # set by the user, not by a launcher
        ({"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "8", "SLURM_PROCID": "3"}, True),
        ({**LAUNCHED, "RANK": "15", "WORLD_SIZE": "16"}, False),
        ({**LAUNCHED, "WORLD_SIZE": "16"}, True),
    ],
)
def test_only_the_first_of_launched_processes_prints_the_error(environment, is_told, monkeypatch, capsys):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    training = ["train_planner.py", "--model_addr", "m", "--inputs_addr", "nowhere.json", "--output_dir", "o"]
    table = ["utils/make_table.py", "--system", "A", "nowhere.json"]
    for main, words, told in ((train_planner.main, training, is_told), (make_table.main, table, True)):
        monkeypatch.setattr("sys.argv", words)
        with pytest.raises(SystemExit) as ended:
            cli.run_script(lambda main=main, words=words: main(words[1:]))
        assert ended.value.code == 2
        assert capsys.readouterr() == ("", "error: nowhere.json: no such file\n" if told else "")


def test_a_signal_swallowed_by_a_finalizer_still_ends_the_process():
    done = run("-c", SWALLOWED)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"{cli.RESUME_HINT}\n")


# Numbers in messages


def test_a_noun_follows_its_number():
    assert [count_noun(1, "query"), count_noun(0, "query"), count_noun(2, "process", "processes")] == [
        "1 query", "0 queries", "2 processes"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "one"),
    [
        ("answers", "1 answer"),
        ("queries to embed", "1 query to embed"),
        ("messages or sessions left out", "1 message or session left out"),
        ("questions whose samples have equal scores", "1 question whose samples have equal scores"),
        *((name, f"1 {name}") for name in ("repaired", "without an answer", "chose (a)", "% of prompt tokens")),
    ],
)
def test_a_name_in_the_plural_follows_its_number(name, one):
    assert (count_plural(1, name), count_plural(0, name), count_plural(2, name)) == (one, f"0 {name}", f"2 {name}")


@pytest.mark.parametrize(
    "script", ["baselines.py", "retrieval/rank_dataset.py", "utils/batch.py", "utils/make_table.py"]
)
def test_outside_the_environment_one_line_says_what_to_do(script):
    """A Python without the packages."""
    command = [f"{sys.base_prefix}/bin/python3", "-S", script, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(
        r"error: this Python \(.*\) has no package '\w+'; run `source \.venv/bin/activate` first, or `make setup`\n",
        done.stderr,
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_command_prints_its_version(script, parser_of, capsys):
    with pytest.raises(SystemExit) as ended:
        parser_of(script).parse_args(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"LaMP-QA {VERSION}\n")


def test_the_version_has_one_number():
    """In the flag, the citation and the newest heading of the changelog."""
    [cited] = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    newest, *_ = re.findall(r"^## (.*)$", (ROOT / "docs/changelog.md").read_text(), re.MULTILINE)
    assert cited == newest == VERSION
