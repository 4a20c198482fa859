"""Reward models as judges: on vLLM, by the same numbers as transformers, and behind an API; what is not one."""

import csv
import io
import json
import signal
import time
from pathlib import Path

import pytest
from api_server import Reply, running, serve
from faulty_server import FaultyServer
from test_api_engine import quick  # noqa: F401 (a fixture)
from tiny_chat import SAMPLE, save_tiny_chat

import baselines
import evaluate_responses
from prompts import join_posts, load_prompt
from utils import make_figures, make_table, report, select_responses
from utils.base.errors import UserError
from utils.benchmarks.lampqa import task as lampqa
from utils.data.datasets import read_dataset
from utils.generation.chat import LocalChat
from utils.models.model_folder import ModelFolder
from utils.runs.judging import choose_judge, settings_of_judge
from utils.show.figure_style import score_limits
from utils.tables.columns import compare_pairs, point_of
from utils.tables.system_scores import System

DATA, POSTS = SAMPLE / "test.json", 3
RECORDS = read_dataset(DATA)


def dialogue(record, response, number=POSTS):
    posts = join_posts([post["text"] for post in record["profile"][:number]])
    prompt = load_prompt("lampqa/reward").messages(question=record["question"], profile=posts)
    return [*prompt, {"role": "assistant", "content": response}]


def save_classifier(folder, labels=1, weight=0.3, dtype=None):
    """Write a tiny classifier with a random head."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    save_tiny_chat(folder / "chat", max_positions=8192)
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_pretrained(folder / "chat", num_labels=labels, dtype=torch.float32)
    torch.nn.init.normal_(model.score.weight, std=weight)
    (model if dtype is None else model.to(dtype)).save_pretrained(folder / "reward")
    AutoTokenizer.from_pretrained(folder / "chat").save_pretrained(folder / "reward")
    return folder / "reward"


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """A folder with four responses per question, the last question's first one missing; `one.json` has the second."""
    folder = tmp_path_factory.mktemp("samples")
    content = {record["id"]: [{"output": f"Try {record['id']} {number} times."} for number in range(4)]
               for record in RECORDS}  # fmt: skip
    content[RECORDS[-1]["id"]][0] = {"output": None, "reason": "no text"}
    (folder / "samples.json").write_text(json.dumps(content))
    (folder / "one.json").write_text(json.dumps({key: answers[1:2] for key, answers in content.items()}))
    return folder


def flags_of(samples, output, *more):
    score_addr = output / "rewards.json"
    words = ["--strategy", "reward", "--samples", "all", "--inputs_addr", DATA, "--unranked", "--num_contexts", POSTS]
    words += ["--response_addr", samples / "samples.json", "--score_addr", score_addr, *more]
    return list(map(str, words)), score_addr


def rewards_in(path):
    """Return the rewards of each question's samples."""
    return [entry["samples"] for entry in json.loads(path.read_text())["per_question_scores"]]


@pytest.mark.engine
def test_rewards_are_those_of_transformers_and_are_paid_once(warm_engine, samples, tmp_path):
    """51 of 52 dialogues, killed on the way; responses to one question share its posts in the prefix cache."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = save_classifier(tmp_path)
    flags, score_addr = flags_of(samples, tmp_path, "--evaluator_llm", model)
    run = warm_engine.start("evaluate_responses.py", flags)
    store = tmp_path / "completions"
    for _ in range(6000):
        if any(path.stat().st_size > 2000 for path in store.rglob("*.jsonl")):
            break
        time.sleep(0.01)
    run.send(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL, run.errors
    done = warm_engine.run("evaluate_responses.py", flags)
    assert done.returncode == 0, done.errors
    lines = [json.loads(line) for path in store.rglob("*.jsonl") for line in path.open()]
    rewards = [line for line in lines if "reward" in line]
    assert len(rewards) == len({line["key"] for line in rewards}) == 51
    reference, tokenizer = AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32).eval(), None
    tokenizer = AutoTokenizer.from_pretrained(model)
    given = []
    answers = json.loads((samples / "samples.json").read_text())
    for record, rewards in zip(RECORDS, rewards_in(score_addr), strict=True):
        for response, reward in zip(answers[record["id"]], rewards, strict=True):
            if response["output"] is None:
                assert reward is None
                continue
            shown = dialogue(record, response["output"])
            tokens = tokenizer.apply_chat_template(shown, return_tensors="pt", return_dict=True)
            with torch.no_grad():
                given.append((reference(**tokens).logits.item(), reward))
    assert len(given) == 51 and all(abs(one - other) < 1e-4 for one, other in given)
    assert max(score for _, score in given) - min(score for _, score in given) > 0.01
    made = json.loads(Path(f"{score_addr}.manifest.json").read_text())
    assert made["tokens"]["cached_tokens"] > 0.3 * made["tokens"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("saved", "named", "wanted", "used"),
    [("float32", "dtype", "auto", "float32"), ("float32", "torch_dtype", "auto", "float32"),
     ("float32", None, "auto", "float32"), ("bfloat16", "dtype", "auto", "auto"), ("bfloat16", None, "auto", "auto"),
     ("float32", "dtype", "bfloat16", "bfloat16")],
)  # fmt: skip
def test_auto_keeps_a_reward_model_in_float32(samples, tmp_path, capsys, saved, named, wanted, used):
    """In the engine, the store, the settings and the memory; the config names the type, or the weights have it."""
    import torch

    model = save_classifier(tmp_path, dtype=getattr(torch, saved))
    config = json.loads((model / "config.json").read_text())
    assert config.pop("dtype") == saved
    (model / "config.json").write_text(json.dumps(config | ({named: saved} if named else {})))
    flags, _ = flags_of(samples, tmp_path, "--evaluator_llm", model, "--dtype", wanted, "--completions", tmp_path)
    args = evaluate_responses.build_parser().parse_args(flags)
    judge = choose_judge(args, lampqa.TASK.metrics["reward"].judge)
    assert judge.flags.dtype == judge.completions.store.described["dtype"] == used
    assert settings_of_judge(args, judge)["dtype"] == used and args.dtype == wanted
    assert evaluate_responses.main([*flags, "--dry_run"]) == 0
    assert f" takes 0.0{2 if used == 'float32' else 1} GB" in capsys.readouterr().out


@pytest.mark.engine
def test_an_adapter_on_a_reward_model_gives_transformers_number(warm_engine, samples, tmp_path):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    base, output = save_classifier(tmp_path), tmp_path / "out"
    output.mkdir()
    model = AutoModelForSequenceClassification.from_pretrained(base, dtype=torch.float32)
    config = LoraConfig(r=8, lora_alpha=32, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = get_peft_model(model, config).eval()
    model.save_pretrained(tmp_path / "adapter")
    flags, score_addr = flags_of(samples, output, "--evaluator_llm", tmp_path / "adapter", "--limit", 3)
    done = warm_engine.run("evaluate_responses.py", [*flags, "--dtype", "float32"])
    assert done.returncode == 0, done.errors
    tokenizer, answers = AutoTokenizer.from_pretrained(base), json.loads((samples / "samples.json").read_text())
    for record, rewards in zip(RECORDS[:3], rewards_in(score_addr), strict=True):
        shown = dialogue(record, answers[record["id"]][1]["output"])
        tokens = tokenizer.apply_chat_template(shown, return_tensors="pt", return_dict=True)
        with torch.no_grad():
            expected = model(**tokens).logits.item()
            with model.disable_adapter():
                assert abs(model(**tokens).logits.item() - expected) > 0.01
        assert rewards[1] == pytest.approx(expected, abs=1e-3)


TEMPLATE = "{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}"


@pytest.mark.parametrize(
    ("end", "pad"),
    [
        ("", "<|im_end|>"),
        ("{{ eos_token }}", "<|im_end|>"),  # two padding tokens
        ("{{ '\\n' }}", "<|im_end|>"),  # a line break after it
        ("", "<|endoftext|>"),
        ("<|endoftext|>", "<|endoftext|>"),
        ("", None),
    ],
)
def test_a_dialogue_ends_with_the_token_at_which_transformers_reads_the_reward(tmp_path, end, pad):
    """Also if the padding token is the one that ends each turn."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = save_classifier(tmp_path)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE + end
    model.config.pad_token_id = None if pad is None else tokenizer.convert_tokens_to_ids(pad)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    given = dialogue(RECORDS[0], "Put them in water.")
    whole = tokenizer.apply_chat_template(given, return_tensors="pt", return_dict=True)["input_ids"]
    rendered = LocalChat(ModelFolder(str(folder))).render_dialogue(given)
    with torch.no_grad():
        of_transformers = model.eval()(whole).logits.item()
        model.config.pad_token_id = None  # the last token is read, as by vLLM
        of_last_token = model(torch.tensor([list(rendered)])).logits.item()
        assert len(rendered) == whole.shape[1] or abs(model(whole).logits.item() - of_transformers) > 1e-3
    assert of_last_token == pytest.approx(of_transformers, abs=1e-5)
    assert len(rendered) == whole.shape[1] - {("", "<|im_end|>"): 1, ("{{ eos_token }}", "<|im_end|>"): 2}.get(
        (end, pad), int(end == pad)
    )


@pytest.mark.parametrize(
    ("fields", "padding"),
    [
        ({"pad_token_id": 2, "eos_token_id": 2}, "left off"),
        ({"pad_token_id": 2, "eos_token_id": None}, "left off"),
        ({"pad_token_id": 2, "eos_token_id": [0, 1]}, "left off"),  # the template's own end may be 2
        ({"pad_token_id": None, "text_config": {"pad_token_id": 2}}, "left off"),
        ({"pad_token_id": None, "text_config": {}}, None),
    ],
)
def test_rewards_that_were_read_at_the_padding_are_made_again(tmp_path, fields, padding):
    folder = save_classifier(tmp_path)
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))
    flags = ["--strategy", "reward", "--evaluator_llm", folder, "--inputs_addr", DATA, "--score_addr", tmp_path / "s"]
    flags += ["--completions", tmp_path / "completions"]
    args = evaluate_responses.build_parser().parse_args(list(map(str, [*flags, "--response_addr", tmp_path / "r"])))
    judge = choose_judge(args, lampqa.TASK.metrics["reward"].judge)
    assert settings_of_judge(args, judge).get("padding") == padding


@pytest.mark.parametrize("head", ["score", "classifier"])
def test_an_adapter_with_a_classifiers_head_is_served_once_it_is_merged(samples, tmp_path, head):
    import torch
    from peft import AutoPeftModelForSequenceClassification, LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    base = save_classifier(tmp_path).parent / "chat"
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.float32)
    config = LoraConfig(r=4, task_type="SEQ_CLS", modules_to_save=["score"], init_lora_weights=False)
    trained, ids = get_peft_model(model, config).eval(), torch.tensor([[5, 6, 7]])
    trained.save_pretrained(tmp_path / "adapter")
    path = tmp_path / "adapter/adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"modules_to_save": [head]}))
    flags, _ = flags_of(samples, tmp_path / "x", "--evaluator_llm", tmp_path / "adapter", "--dry_run")
    with pytest.raises(UserError) as refusal:
        evaluate_responses.main(flags)
    assert f"adapter with a classifier's head (modules_to_save ['{head}']) is not served; vLLM 0.32" in str(
        refusal.value
    )
    assert "AutoPeftModelForSequenceClassification.from_pretrained(…, num_labels=1).merge_and_unload()" in str(
        refusal.value
    )
    if head == "score":
        merged = AutoPeftModelForSequenceClassification.from_pretrained(tmp_path / "adapter", num_labels=1)
        merged.merge_and_unload().save_pretrained(tmp_path / "merged")
        AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "merged")
        assert evaluate_responses.main([word.replace("/adapter", "/merged") for word in flags]) == 0
        served = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
        assert served(ids).logits.item() == pytest.approx(trained(ids).logits.item(), rel=1e-3)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with serve() as server:
        server.classifies = True
        yield server


def reward(text):
    """A number on a scale of its own: the number that a response names, less 7."""
    return float(text.rpartition(" times.")[0].rpartition(" ")[2]) - 7


def api(server, name="rm"):
    return ["--evaluator_llm", name, "--openai", "--base_url", server.url, "--max_retries", 0]


def test_a_reward_model_behind_an_api_sees_posts_and_no_rubric(server, samples, tmp_path, capsys):
    server.reply = lambda request: Reply(json.dumps([reward(request["messages"][-1]["content"])]))
    flags, score_addr = flags_of(samples, tmp_path, *api(server, "padded"))
    assert evaluate_responses.main(flags) == 0
    printed = capsys.readouterr()
    assert printed.err.count("note: padded: if its padding token ends a dialogue, the server's rewards") == 1
    # A missing answer has no reward, but it does not lack one.
    assert "over 52 samples -5.4615 (1 without an answer)" in printed.out
    assert len(server.requests) == 51 and all(request["use_activation"] is False for request in server.requests)
    shown = {json.dumps(request["messages"]) for request in server.requests}
    answer = json.loads((samples / "samples.json").read_text())[RECORDS[0]["id"]][2]["output"]
    assert json.dumps(dialogue(RECORDS[0], answer)) in shown
    hidden = [record["narrative"] for record in RECORDS]
    hidden += [aspect["reason"] for record in RECORDS for aspect in record["rubric_aspects"]]
    assert not any(text in prompt for prompt in shown for text in hidden)
    assert evaluate_responses.main(flags) == 0 and len(server.requests) == 51  # paid once
    first = json.loads(score_addr.read_text())
    assert (first["strategy"], first["score"]) == ("reward", -7)
    assert rewards_in(score_addr) == [*([[-7, -6, -5, -4]] * 12), [None, -6, -5, -4]]
    assert (first["num_unanswered"], first["num_scored_questions"]) == (1, 12)

    # The best by rewards is not an upper bound: the model saw no rubric.
    best = tmp_path / "best.json"
    words = ["--response_addr", samples / "samples.json", "--score_addr", score_addr, "--output_addr", best]
    assert select_responses.main(list(map(str, words))) == 0
    chosen = json.loads(best.read_text())
    assert all(answers[0]["output"].endswith(" 3 times.") for answers in chosen.values())
    with pytest.raises(UserError, match="dropped, below --min_score: 13"):
        select_responses.main([*map(str, words), "--min_score", "-3.5", "--overwrite"])
    server.reply = lambda request: Reply(json.dumps({"match_score": 1}))
    words = ["--inputs_addr", DATA, "--response_addr", best, "--score_addr", tmp_path / "judged.json"]
    words += api(server, "j")
    assert evaluate_responses.main(list(map(str, words))) == 0
    capsys.readouterr()
    assert make_table.main(["--system", "Best of 4", str(tmp_path / "judged.json")]) == 0
    table = capsys.readouterr().out
    assert "| Best of 4 (best by reward) |" in table and "saw no rubric" in table and "bound" not in table
    # Tables refuse to mix the scales of two models.
    server.reply = lambda request: Reply("[1.5]")
    more, other = flags_of(samples, tmp_path / "other", *api(server, "rm2"))
    (tmp_path / "other").mkdir()
    assert evaluate_responses.main(more) == 0
    with pytest.raises(UserError, match="judged differently from"):
        make_table.main(["--system", "A", str(score_addr), "--system", "B", str(other)])


def test_rewards_below_0_in_tables_figures_and_the_report(server, samples, tmp_path, capsys):
    server.reply = lambda request: Reply(json.dumps([reward(request["messages"][-1]["content"])]))
    flags, score_addr = flags_of(samples, tmp_path, *api(server))
    words = ["--strategy", "reward", "--inputs_addr", DATA, "--unranked", "--num_contexts", POSTS, *api(server)]
    words += ["--response_addr", samples / "one.json", "--score_addr", tmp_path / "one.json"]
    assert evaluate_responses.main(flags) == evaluate_responses.main(list(map(str, words))) == 0
    assert len(server.requests) == 51  # the second sample's rewards are in the store
    capsys.readouterr()
    systems = ["--system", "A", str(score_addr), "--system", "B", str(tmp_path / "one.json")]
    assert make_table.main(systems) == 0
    head, _, first, *_ = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert (first[-4:], head[-1]) == (["-7.0000", "13", "1", "0 |"], "Unscored responses |")
    assert make_table.main([*systems[:3], "--samples", "all", "--format", "csv"]) == 0
    [row] = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["Unanswered"], row["Unscored samples"]) == ("0", "0")
    with pytest.raises(UserError, match="has rewards, and 0 is not the lowest reward"):
        make_table.main([*systems, "--unscored_as_zero"])
    output = str(tmp_path / "figure")
    with pytest.raises(UserError, match="a reward may be negative; use --figure groups"):
        make_figures.main(["--figure", "3", *systems, "--output_addr", output])
    assert make_figures.main(["--figure", "groups", *systems, "--output_addr", output]) == 0
    words = ["--inputs_addr", DATA, "--output_addr", tmp_path / "page.html"]
    words += ["--system", "A", samples / "one.json", tmp_path / "one.json"]
    assert report.main(list(map(str, words))) == 0
    page = (tmp_path / "page.html").read_text()
    assert '"limits": [null, null]' in page or '"limits":[null,null]' in page
    assert "reward on the reward model's own scale, the mean" in page and "from 0 to 1" not in page
    assert "Constrained decoding: judge no text" in page


def test_an_interval_of_rewards_is_not_cut_at_0_and_1():
    metric, place = lampqa.TASK.metrics["reward"], {"group": lampqa.TASK.groups[0], "answered": True}
    entries = [{**place, "id": str(n), "score": n - 9.0, "cluster": str(n // 2), "details": [{"score": n - 9.0}]}
               for n in range(6)]  # fmt: skip
    point = point_of(System("A", lampqa.TASK, "reward", {"a": {"per_question_scores": entries}}), [entries])
    assert point.interval[0] < point.mean == -6.5 < point.interval[1] < 0
    low, high = score_limits([point], metric)
    assert low < point.interval[0] and point.interval[1] < high
    figures = compare_pairs(metric, [[({**entry, "score": 20.0}, entry) for entry in entries]], True, True)
    assert 1 < figures["interval"][0] < figures["difference"] == 26.5 < figures["interval"][1]


def test_what_is_not_a_reward_model_is_named(server, samples, tmp_path):
    flags, _ = flags_of(samples, tmp_path, *api(server))
    server.reply = lambda request: Reply("[0.1, 0.9]")
    with pytest.raises(UserError, match="did not return one number: is it a reward model, with one label"):
        evaluate_responses.main(flags)
    server.reply = lambda request: Reply("[NaN]")
    assert evaluate_responses.main(flags) == 1  # none is usable
    content = json.loads((tmp_path / "rewards.json").read_text())
    assert (content["score"], content["num_unscored"]) == (None, 12)
    assert content["per_question_scores"][0]["details"][0]["reason"] == "the model returned no finite number"
    server.classifies = False
    with pytest.raises(UserError, match="has no /classify; serve the model with vLLM"):
        evaluate_responses.main([*flags, "--completions", str(tmp_path / "c"), "--overwrite"])
    for model, match in (
        (save_classifier(tmp_path, labels=2), "reward: has 2 labels, but a reward model must have exactly one"),
        (tmp_path / "chat", "chat: not a sequence classifier; use a reward model"),
        (tmp_path / "none", "none: no such folder"),
    ):
        with pytest.raises(UserError, match=match):
            evaluate_responses.main(flags_of(samples, tmp_path / "x", "--evaluator_llm", model, "--dry_run")[0])


WHOLE = b'{"data": [{"probs": [%s]}], "usage": {"prompt_tokens": %s}}'


@pytest.mark.parametrize("tokens", [b"null", b"1e400", b'"7"', b"-7", b"1" + b"0" * 30, None])
def test_a_reward_needs_no_plausible_count_of_tokens(odd, samples, tmp_path, tokens):
    odd.bodies = [WHOLE % (b"1.5", tokens) if tokens else b'{"data": [{"probs": [1.5]}]}'] * 13
    assert score_one(odd, samples, tmp_path) == (0, 1.5, 0)


@pytest.mark.parametrize(
    "body",
    [b"<html>Just a moment...</html>", b"", b"[" * 100_000, b"[]", b"5", b'{"data": []}', b'{"data": [{"probs": 1}]}',
     b'{"data": [{"probs": [1]}, {"probs": [2]}]}', WHOLE % (b"1" * 5000, b"7")],
)  # fmt: skip
def test_a_reply_without_a_reward_is_requested_again(odd, samples, tmp_path, quick, body):
    odd.bodies = [WHOLE % (b"1.5", b"7")] * 3 + [body] + [WHOLE % (b"1.5", b"7")] * 10
    assert score_one(odd, samples, tmp_path, "--max_retries", 1) == (0, 1.5, 0)
    assert len(odd.requests) == 14
    odd.bodies = [body] * 26
    with pytest.raises(UserError, match=r"(?s)returned no reward; check --base_url: .{0,300}\n  tried 2 times"):
        score_one(odd, samples, tmp_path / "never", "--max_retries", 1)


@pytest.mark.parametrize("logit", [b"NaN", b"1e400", b"1" + b"0" * 400])
def test_a_logit_that_is_no_finite_number_is_unscored(odd, samples, tmp_path, logit):
    odd.bodies = [WHOLE % (b"1.5", b"7")] * 12 + [WHOLE % (logit, b"7")]
    assert score_one(odd, samples, tmp_path) == (0, 1.5, 1)


@pytest.mark.parametrize("logits", [b"1, 2", b"", b'"1.5"', b"true", b'{"a": 1}'])
def test_a_server_that_returns_no_single_number_is_refused(odd, samples, tmp_path, logits):
    odd.bodies = [WHOLE % (logits, b"7")]
    with pytest.raises(UserError, match="did not return one number: is it a reward model, with one label"):
        score_one(odd, samples, tmp_path)


@pytest.fixture
def odd(monkeypatch):
    """A server whose replies are `bodies`, one after the other."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with running(FaultyServer(lambda request: Reply(""), lambda body, times: "other JSON")) as server:
        server.body = lambda _: server.bodies.pop(0)
        yield server


def score_one(server, samples, folder, *more):
    """Return the exit code of scoring one sample by rewards, the score and the number of unscored questions."""
    folder.mkdir(exist_ok=True)
    words = ["--strategy", "reward", "--inputs_addr", DATA, "--unranked", "--max_concurrency", 1]
    words += ["--response_addr", samples / "one.json", "--score_addr", folder / "scores.json"]
    code = evaluate_responses.main(list(map(str, [*words, *api(server), *more])))
    content = json.loads((folder / "scores.json").read_text())
    return code, content["score"], content["num_unscored"]


def test_a_classifier_does_not_write(samples, tmp_path):
    model, data = save_classifier(tmp_path), ["--inputs_addr", DATA, "--dry_run"]
    judge = ["--evaluator_llm", model, "--response_addr", samples / "one.json", "--score_addr"]
    generator = ["--model_addr", model, "--output_addr"]
    method = ["--method", "best_of_n", "--unranked", *generator]
    for script, flags in ((evaluate_responses, judge), (baselines, generator), (baselines, method)):
        with pytest.raises(UserError, match="reward: is a classifier and cannot generate text; use a chat model"):
            script.main(list(map(str, [*data, *flags, tmp_path / "output.json"])))


def test_a_method_asks_a_reward_model_behind_an_api(server, tmp_path):
    server.reply = lambda request: Reply("[-2.5]" if "use_activation" in request else "An answer.")
    method, output = tmp_path / "by_reward.py", tmp_path / "answers.json"
    method.write_text("""async def answer(record, ask):
    text = await ask("{question}")
    ask.note(mark=await ask.reward(text, model="judge"))
    return text
""")
    flags = ["--method", method, "--inputs_addr", DATA, "--unranked", "--limit", 2, "--model_addr", "writer"]
    flags += ["--openai", "--base_url", server.url, "--model", "judge=rm", "--num_contexts", 2, "--output_addr", output]
    assert baselines.main(list(map(str, flags))) == 0
    assert [answers[0]["notes"]["mark"] for answers in json.loads(output.read_text()).values()] == [-2.5, -2.5]
    prompts = [request["messages"] for request in server.requests if "use_activation" in request]
    assert dialogue(RECORDS[0], "An answer.", 2) in prompts


def test_a_dry_run_of_rewards_counts_no_text(server, samples, tmp_path, capsys):
    flags, _ = flags_of(samples, tmp_path, *api(server, "dry"))
    assert evaluate_responses.main([*flags, "--dry_run"]) == 0
    assert "; 51 dialogues to score, no text is generated\n" in capsys.readouterr().out and not server.requests


def test_posts_that_do_not_fit_are_left_out(server, samples, tmp_path):
    server.reply = lambda request: Reply("[0.5]")
    flags, score_addr = flags_of(samples, tmp_path, *api(server), "--max_model_len", 300)
    assert evaluate_responses.main(flags) == 0
    details = [entry["details"][0] for entry in json.loads(score_addr.read_text())["per_question_scores"]]
    used = [detail["num_contexts_used"] for detail in details if "num_contexts_used" in detail]
    assert len(used) == 12 and 0 < sum(used) < 12 * POSTS


def test_a_dialogue_that_is_too_long_has_no_reward(server, tmp_path):
    """By the window, without a request, or by the server, once: the others are scored."""
    words = dict.fromkeys((record["id"] for record in RECORDS), "Some words.")
    words |= {RECORDS[1]["id"]: "word " * 9000, RECORDS[2]["id"]: "word " * 900}
    response_addr, score_addr = tmp_path / "responses.json", tmp_path / "scores.json"
    response_addr.write_text(json.dumps({key: [{"output": text}] for key, text in words.items()}))
    refusal = Reply("This model's maximum context length is 512 tokens. Your request has 1600.", status=400)
    server.reply = lambda request: refusal if len(request["messages"][-1]["content"]) > 999 else Reply("[0.5]")
    flags = ["--strategy", "reward", "--inputs_addr", DATA, "--unranked", "--response_addr", response_addr]
    flags = list(map(str, [*flags, "--score_addr", score_addr, *api(server)]))
    for _ in range(2):
        assert evaluate_responses.main([*flags, "--overwrite"]) == 0
        assert len(server.requests) == len(RECORDS) - 1
        entries = json.loads(score_addr.read_text())["per_question_scores"]
        assert [entry["score"] for entry in entries] == [0.5, None, None] + [0.5] * (len(RECORDS) - 3)
        reasons = [entry["details"][0]["reason"] for entry in entries[1:3]]
        assert reasons[0] == "the prompt does not fit into the model's context"
        assert "maximum context length" in reasons[1]


@pytest.mark.engine
def test_a_method_chooses_by_a_reward_model(warm_engine, tmp_path):
    """Best of 3 by a classifier: the answer with the highest reward of the method's own calls."""
    model, output = save_classifier(tmp_path), tmp_path / "out" / "best.json"
    flags = ["--method", "best_of_n", "--set", "n=3", "--set", "judge=judge", "--inputs_addr", DATA, "--unranked"]
    flags += ["--model_addr", tmp_path / "chat", "--model", f"judge={model}", "--output_addr", output, "--limit", 2]
    flags += ["--num_contexts", 2, "--max_tokens", 60, "--constrained_decoding", "always", "--trace"]
    done = warm_engine.run("baselines.py", flags)
    assert done.returncode == 0, done.errors
    trace = list(map(json.loads, Path(f"{output}.trace.jsonl").read_text().splitlines()))
    for answers in json.loads(output.read_text()).values():
        judged = {line["messages"][-1]["content"]: line["value"] for line in trace if line["role"] == "judge"}
        assert answers[0]["output"] in judged and len(judged) > 2
        assert answers[0]["notes"]["mark"] == judged[answers[0]["output"]]
