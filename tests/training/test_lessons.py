"""What is learnt from which file, what a method may see and when, the judge's reward, and the choice of a model."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from api_server import Reply, default_reply, serve
from method_runs import Runs
from safetensors.numpy import save_file
from test_baselines import sentences
from tiny_chat import save_tiny_chat

import baselines
import evaluate_responses
from prompts import load_prompt
from utils import make_table, select_model, train_generator
from utils.base.errors import UserError
from utils.base.manifest import describe_run, publish, settings_of
from utils.benchmarks import tasks
from utils.generation.chat import LocalChat
from utils.generation.fitting import Window
from utils.generation.model import Model, settings_by_scores
from utils.models.model_folder import ModelFolder
from utils.runs.own_method import settings_of_method
from utils.training.examples import Lesson, make_examples
from utils.training.lessons import judges_of_rewards, lessons_of, seen_in_training

TASK = tasks()["LaMP-QA"]
SAMPLE = Path(__file__).resolve().parents[1] / "data/mini_lampqa/test.json"
RECORDS = json.loads(SAMPLE.read_text())


@pytest.fixture
def server():
    with serve(default_reply) as server:
        yield server


@pytest.fixture
def runs(tmp_path, server):
    return Runs(tmp_path, server)


def flags(*more):
    words = ["--model_addr", "m", "--inputs_addr", SAMPLE, "--output_dir", "out", "--lora_rank", 16, *more]
    return train_generator.build_parser().parse_args(list(map(str, words)))


def texts_of(requests):
    return ["\n".join(message["content"] for message in request["messages"]) for request in requests]


# What a method sees


def reply(request):
    """Search once and then answer, or write an intent and an answer, as the included methods ask."""
    last = request["messages"][-1]["content"]
    if "Search:" in last:
        return Reply("Search: puppets" if len(request["messages"]) == 2 else "Enough")
    return Reply("Intent: a sound\nAnswer: Felt.") if "Intent:" in last else default_reply(request)


METHODS = "best_of_n draft_and_revise intent pathways search_then_answer summarize_then_answer vac teacher"


@pytest.mark.parametrize("name", METHODS.split())
def test_no_request_at_test_time_holds_what_only_the_scorer_may_see(runs, name, capsys):
    """Without --show_fields, methods that make training data fail instead."""
    runs.name, runs.server.reply = name, reply
    makes_data = name in ("vac", "teacher")
    runs.run(code=int(makes_data))
    sent = "\n".join(texts_of(runs.server.requests))
    assert all(record["question"] in sent for record in RECORDS) or name == "teacher"
    assert [text for record in RECORDS for text in sentences(record) if text in sent] == []
    assert makes_data == ("HiddenFieldError" in capsys.readouterr().err)


@pytest.mark.parametrize(
    ("name", "sampling", "learning"),
    [("search_then_answer", ["--set", "bare=first"], ["--advantage", "pr2"]), ("intent", [], ["--kl", 0.01])],
)
def test_a_round_shows_the_judge_alone_what_only_the_scorer_may_see(runs, tmp_path, capsys, name, sampling, learning):
    """Of PR2 and of IAP, whose public code would put the narrative into the policy's prompt."""
    records, data, scores = json.loads(SAMPLE.read_text())[:4], tmp_path / "planted.json", tmp_path / "scores.json"
    for record in records:
        record["narrative"] += " CANARY"
        record["rubric_aspects"] = [
            {field: f"{text} CANARY" for field, text in aspect.items()} for aspect in record["rubric_aspects"]
        ]
    data.write_text(json.dumps(records))
    drawn = lambda request: default_reply(request).text.strip(".")[-6:]  # noqa: E731
    runs.name = name
    runs.server.reply = lambda request: Reply(reply(request).text.replace("Felt.", f"Felt {drawn(request)}."))
    runs.run("--inputs_addr", data, "--num_generated_outputs", 3, "--temperature", 1, "--trace", *sampling)
    judging = ["--openai", "--base_url", runs.server.url, "--api_key_addr", f"{tmp_path}/key.txt"]
    judging += ["--evaluator_llm", "j", "--inputs_addr", str(data)]
    judging += ["--samples", "all", "--response_addr", str(runs.output), "--score_addr", str(scores)]
    assert evaluate_responses.main(judging) == 0
    trace = Path(f"{runs.output}.trace.jsonl")
    train_dry(tmp_path, "--inputs_addr", data, "--objective", "grpo", "--trace_addr", trace, "--score_addr", scores,
              *learning)  # fmt: skip
    assert " calls of " in capsys.readouterr().out and "CANARY" not in trace.read_text()
    runs.run("--inputs_addr", data, output=tmp_path / "test.json")
    texts = texts_of(runs.server.requests)
    assert {"CANARY" in text for text in texts if "match_score" in text} == {True}
    assert not any("CANARY" in text for text in texts if "match_score" not in text)


def test_vac_shows_the_narrative_to_the_feedback_model_alone(runs):
    runs.name = "vac"
    runs.run("--show_fields", "narrative", "--num_generated_outputs", 2, "--limit", 3)
    texts = texts_of(runs.server.requests)
    for record in RECORDS[:3]:
        with_narrative = [text for text in texts if record["narrative"] in text]
        assert len(with_narrative) == 2 and all("Your feedback:" in text for text in with_narrative)
    outputs = runs.answers[RECORDS[0]["id"]]
    assert len(outputs) == 2 and len({output["notes"]["answer"] for output in outputs}) == 2  # an API samples each


def test_a_feedback_model_learns_from_the_prompt_that_was_asked(runs, tmp_path):
    runs.name = "vac"
    runs.run("--show_fields", "narrative", "--limit", 3)
    sent = [request["messages"] for request in runs.server.requests if "Your feedback:" in str(request)]
    args, prompt = flags("--target_addr", runs.output, "--prompt", "feedback"), load_prompt("lampqa/feedback")
    lessons, left_out = lessons_of(args, TASK, RECORDS, prompt)
    assert len(lessons) == 3 and left_out == [f"{len(RECORDS) - 3} questions skipped: no target text"]
    for lesson in lessons:
        posts = TASK.join(TASK.best_items(lesson.record, 10))
        assert prompt.messages(profile=posts, **lesson.values) in sent
        assert lesson.target == runs.answers[lesson.record["id"]][0]["notes"]["feedback"]
    assert seen_in_training(args, TASK, prompt, ModelFolder(args.model_addr)) == ["narrative"]
    assert seen_in_training(args, TASK, load_prompt("lampqa/rag"), ModelFolder(args.model_addr)) == [
        "narrative"
    ]  # of a policy, by its revisions


def test_what_a_text_was_made_with_counts_as_seen(tmp_path, runs):
    """The feedback model's training, gold plans, and texts that were edited since."""
    target = tmp_path / "out/answers.json"
    runs.write('async def answer(record, ask):\n    return await ask("rag", items=record.best(1))')
    runs.run("--show_fields", "narrative", "--limit", 1)
    target.write_text(json.dumps({RECORDS[0]["id"]: [{"output": "edited"}]}))
    args, prompt = flags("--target_addr", target), load_prompt("lampqa/rag")
    assert seen_in_training(args, TASK, prompt, ModelFolder(args.model_addr)) == ["narrative"]
    manifest = json.loads((tmp_path / "out/answers.json.manifest.json").read_text())
    for saw, expected in (
        ({"when": "test", "fields": ["narrative"], "models_saw": ["rubric_aspects"]}, ["narrative", "rubric_aspects"]),
        ({"when": "training", "fields": ["rubric_aspects"]}, ["rubric_aspects"]),
    ):
        manifest["settings"]["saw"] = saw
        (tmp_path / "out/answers.json.manifest.json").write_text(json.dumps(manifest))
        assert seen_in_training(args, TASK, prompt, ModelFolder(args.model_addr)) == expected


def test_the_judges_that_rewarded_a_training_are_noted(tmp_path):
    """Of scores and rewards, of texts that were selected, and of the trainings before; the answers have them too."""

    def noted(name, settings, folder=False):
        path = tmp_path / name / "manifest.json" if folder else tmp_path / f"{name}.manifest.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"settings": settings, "output_sha256": "0"}))
        return tmp_path / name

    policy = noted("policy", {"script": "utils/train_generator.py", "rewarded_by": ["old"]}, folder=True)
    best = noted("best.json", {"selected_by": {"judges": ["j"]}, "rewarded_by": ["earlier"]})
    scores = noted("scores.json", {"judge": "j2"})
    none = ModelFolder("m")
    assert judges_of_rewards(flags(), none) == []
    assert judges_of_rewards(flags("--target_addr", best), none) == ["earlier", "j"]
    grpo = flags("--objective", "grpo", "--trace_addr", "x.json.trace.jsonl", "--score_addr", scores)
    assert judges_of_rewards(grpo, ModelFolder(str(policy))) == ["j2", "old"]
    roles = [SimpleNamespace(rewarded_by=names, trained_on=["d"]) for names in (["b"], [], ["a", "b"])]
    assert settings_by_scores(roles, "e", before=["c"]) == {"rewarded_by": ["a", "b", "c"]}
    assert settings_by_scores(roles[1:2], "d") == {"chose_checkpoint": True}


def test_a_methods_answers_note_what_its_models_saw_in_training():
    role = lambda *saw: SimpleNamespace(  # noqa: E731
        identity="m", saw_in_training=list(saw), gives_rewards=False, rewarded_by=list(saw), trained_on=[]
    )
    words = ["--inputs_addr", str(SAMPLE), "--output_addr", "o", "--model_addr", "m", "--method", "vac"]
    roles = {"generator": role(), "feedback": role("rubric_aspects")}
    settings_of = lambda *more, models=roles: settings_of_method(  # noqa: E731
        baselines.build_parser().parse_args([*words, *more]), TASK, models
    )
    assert settings_of()["saw"] == {"when": "training", "fields": ["rubric_aspects"]}
    assert settings_of()["rewarded_by"] == ["rubric_aspects"]
    shown = {"when": "test", "fields": ["narrative"], "models_saw": ["rubric_aspects"]}
    assert settings_of("--show_fields", "narrative")["saw"] == shown
    assert "saw" not in settings_of(models={"generator": role()})


def test_a_table_says_who_saw_the_rubric_and_when(runs, server, tmp_path, capsys):
    for name, more in (("rag", []), ("teacher", ["--show_fields", "rubric_aspects"])):
        runs.name = name if name == "teacher" else runs.name
        runs.run(*more, output=tmp_path / f"{name}.json")
    files = [tmp_path / f"{name}{end}" for end in (".json", "_scores.json") for name in ("rag", "teacher")]
    words = ["--openai", "--base_url", server.url, "--api_key_addr", tmp_path / "key.txt", "--evaluator_llm", "judge"]
    words += ["--inputs_addr", SAMPLE, "--response_addr", *files[:2], "--score_addr", *files[2:]]
    assert evaluate_responses.main(list(map(str, words))) == 0
    judged = capsys.readouterr().out
    make_table.main(["--system", "RAG", str(files[2]), "--system", "Teacher", str(files[3])])
    printed = capsys.readouterr().out
    assert "- Teacher: upper bound, sees rubric_aspects; it has neither bold nor daggers." in printed
    assert "| Teacher (upper bound, sees rubric_aspects) | " in printed and "RAG: upper" not in printed
    assert "teacher_scores.json: score" in judged and judged.count("an upper bound, because the system sees") == 1


# What is learnt


def test_pairs_and_left_out_questions(tmp_path):
    ids = [record["id"] for record in RECORDS]
    best = {key: [{"output": f"best {key}"}] for key in ids[:4]} | {ids[4]: [{"output": None}]}
    worst = {key: [{"output": f"worst {key}"}] for key in ids[1:6]}
    for name, content in (("best", best), ("worst", worst)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    args = flags("--objective", "dpo", "--target_addr", tmp_path / "best.json", "--worst_addr", tmp_path / "worst.json")
    lessons, left_out = lessons_of(args, TASK, RECORDS, load_prompt("lampqa/rag"))
    assert [lesson.record["id"] for lesson in lessons] == ids[1:4]
    assert left_out[0].startswith(f"{len(ids) - 3} questions")
    assert json.loads(lessons[0].target) == {"personalized_answer": f"best {ids[1]}"}
    assert json.loads(lessons[0].rejected) == {"personalized_answer": f"worst {ids[1]}"}
    assert TASK.output.parse(lessons[0].target, False).value == f"best {ids[1]}"
    (tmp_path / "best.json").write_text(json.dumps({"nobody": [{"output": "x"}]}))
    with pytest.raises(UserError, match=r"best\.json: 1 response to no question of the dataset: 'nobody'"):
        lessons_of(args, TASK, RECORDS, load_prompt("lampqa/rag"))


def train_dry(tmp_path, *more):
    save_tiny_chat(tmp_path / "chat", max_positions=16384)
    words = ["--model_addr", tmp_path / "chat", "--inputs_addr", SAMPLE, "--output_dir", tmp_path / "out", "--unranked"]
    return train_generator.main(list(map(str, [*words, "--lora_rank", 8, "--dry_run", *more])))


@pytest.mark.parametrize("objective", ["sft", "dpo"])
def test_a_text_that_was_cut_is_not_learnt_as_a_whole_one(tmp_path, capsys, objective):
    """Cut when it was written, or too long here; nor is an answer that was kept without a score."""
    ids = [record["id"] for record in RECORDS]
    best, worst = ({key: [{"output": f"{name} {key}"}] for key in ids} for name in ("best", "worst"))
    best[ids[0]][0]["finish_reason"], worst[ids[1]][0]["truncated"] = "length", True
    best[ids[4]][0] |= {"finish_reason": "stop", "truncated": False}
    best[ids[2]][0]["output"] = "far too long " * 30
    best[ids[3]][0]["score"] = None
    for name, content in (("best", best), ("worst", worst)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    more = ["--objective", objective, "--max_target_length", 80, "--target_addr", tmp_path / "best.json"]
    train_dry(tmp_path, *more, *(["--worst_addr", tmp_path / "worst.json"] if objective == "dpo" else []))
    num_cut, printed = 3 if objective == "dpo" else 2, capsys.readouterr().out
    assert f"test.json: {len(ids) - num_cut - 1} questions; " in printed
    assert "\n  1 question skipped: no target text\n" in printed
    assert f"\n  {num_cut} questions skipped: the text was cut, or exceeds --max_target_length" in printed


def test_feedback_that_was_cut_is_not_learnt_as_a_whole_one(runs, server, tmp_path, capsys):
    is_cut = lambda text: "Your feedback:" in text and RECORDS[0]["narrative"] in text  # noqa: E731
    how = lambda request: "length" if is_cut(texts_of([request])[0]) else "stop"  # noqa: E731
    server.reply = lambda request: Reply(default_reply(request).text, how(request))
    runs.name = "vac"
    runs.run("--show_fields", "narrative", "--limit", 3)
    assert [outputs[0].get("cut_notes") for outputs in runs.answers.values()] == [["feedback"], None, None]
    for more, num_cut in ((["--prompt", "feedback"], 1), ([], 0)):
        train_dry(tmp_path, "--target_addr", runs.output, *more)
        printed = capsys.readouterr().out
        assert f"test.json: {3 - num_cut} questions" in printed and printed.count("the text was cut") == num_cut


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--objective", "dpo", "--target_addr", "a"], "--objective dpo: needs --worst_addr"),
        (["--objective", "grpo"], "--objective grpo: needs --trace_addr and --score_addr"),
        (["--objective", "distill"], "--objective distill: needs --response_addr"),
        (["--objective", "distill", "--response_addr", "r", "--validation_addr", "v"], "only training on references"),
        (["--prompt", "feedback"], "--prompt: needs --target_addr"),
        (
            ["--objective", "distill", "--response_addr", "{samples}", "--per_device_train_batch_size", "2"],
            "must be 1 with --objective distill",
        ),
        (["--target_addr", "a", "--prompt", "nothing"], "the prompts of LaMP-QA are none, rag, planner"),
        ([], "LaMP-QA has no references to learn from\n  pass responses to learn as --target_addr"),
    ],
)
def test_flags_that_do_not_go_together(tmp_path, words, problem):
    (tmp_path / "samples.json").write_text("{}")
    words = [word.replace("{samples}", f"{tmp_path}/samples.json") for word in words]
    words = ["--model_addr", "m", "--inputs_addr", str(SAMPLE), "--output_dir", str(tmp_path), "--unranked", *words]
    with pytest.raises(UserError, match=problem):
        train_generator.main([*words, "--lora_rank", "16"])


@pytest.mark.parametrize(
    "words",
    [
        ["--target_addr", "{missing}"],
        ["--objective", "dpo", "--target_addr", str(SAMPLE), "--worst_addr", "{missing}"],
        ["--objective", "grpo", "--trace_addr", "{missing}", "--score_addr", str(SAMPLE)],
    ],
)
def test_a_missing_file_is_named(tmp_path, words):
    missing = f"{tmp_path}/missing.trace.jsonl"
    words = [word.replace("{missing}", missing) for word in words]
    flags = ["--model_addr", "demo/models/chat", "--inputs_addr", str(SAMPLE), "--unranked", "--lora_rank", "16"]
    with pytest.raises(UserError, match=f"^{missing}: no such file$"):
        train_generator.main([*flags, *words, "--output_dir", str(tmp_path / "out")])


def test_a_training_on_no_question_is_refused(tmp_path):
    (tmp_path / "nulls.json").write_text(json.dumps({record["id"]: [{"output": None}] for record in RECORDS}))
    problem = rf"test\.json: no question is left to learn from\n  {len(RECORDS)} questions skipped: no target text"
    with pytest.raises(UserError, match=problem):
        train_dry(tmp_path, "--target_addr", tmp_path / "nulls.json")


def test_an_adapter_keeps_its_rank(tmp_path):
    save_tiny_chat(tmp_path / "chat")
    (tmp_path / "adapter").mkdir()
    config = {"r": 8, "base_model_name_or_path": str(tmp_path / "chat"), "peft_type": "LORA"}
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(config))
    save_file({}, tmp_path / "adapter/adapter_model.safetensors")
    words = ["--model_addr", tmp_path / "adapter", "--inputs_addr", SAMPLE, "--output_dir", tmp_path, "--unranked"]
    words += ["--target_addr", write_samples(tmp_path), "--lora_rank", 16]
    with pytest.raises(UserError, match=r"--lora_rank 16: the adapter .* has rank 8"):
        train_generator.main(list(map(str, words)))


def write_samples(tmp_path, **settings):
    """Samples of the dataset's questions, made with these settings."""
    raw = json.dumps({"personalized_answer": "Yes."})
    samples = {record["id"]: [{"output": "Yes.", "raw": raw}] for record in RECORDS}
    path = tmp_path / "samples.json"
    publish(
        path, samples, describe_run({"temperature": 1.0, "top_p": 1.0} | settings.pop("arguments", {}), settings, None)
    )
    return path


def test_samples_of_another_model_or_prompt_are_not_taken_for_ones_own(tmp_path, capsys):
    """Another model or restricted sampling is noted; another prompt is refused."""
    path = write_samples(tmp_path, model="another", arguments={"temperature": 0.5, "top_k": 20})
    assert train_dry(tmp_path, "--objective", "distill", "--response_addr", path) == 0
    said = capsys.readouterr().err
    assert "samples.json: has calls of another, but the training starts from sha256:" in said
    assert "samples.json: sampled with --top_k 20 and --temperature 0.5, but training uses the full" in said
    for settings, problem in (({"num_contexts": 3}, "was sampled with 3 posts, not 10\n  use --num_contexts 3"),
                              ({"prompt": {"rag": "0"}}, "was sampled with another rag prompt")):  # fmt: skip
        with pytest.raises(UserError, match=problem):
            train_dry(tmp_path, "--objective", "distill", "--response_addr", write_samples(tmp_path, **settings))
    for settings, problem in (({"inputs": "0"}, "was sampled from another dataset than"),
                              ({"num_contexts": 10, "rag": False}, "was sampled with 0 posts, not 10")):  # fmt: skip
        with pytest.raises(UserError, match=problem):
            train_dry(tmp_path, "--objective", "distill", "--response_addr", write_samples(tmp_path, **settings))
    capsys.readouterr()
    path = write_samples(tmp_path, rag=False, num_contexts=10)
    assert train_dry(tmp_path, "--objective", "distill", "--num_contexts", 0, "--response_addr", path) == 0


def test_a_sample_whose_posts_do_not_fit_is_refused(tmp_path):
    path = write_samples(tmp_path)
    samples = json.loads(path.read_text())
    next(iter(samples.values()))[0]["num_contexts_used"] = 10
    path.write_text(json.dumps(samples))
    with pytest.raises(UserError, match=r"its sample's prompt had 10 posts, but \d fit here"):
        train_dry(tmp_path, "--objective", "distill", "--response_addr", path, "--max_input_length", 900)


def test_a_continued_training_knows_what_the_first_one_learnt_from(tmp_path):
    (tmp_path / "policy").mkdir()
    settings = {"script": "utils/train_generator.py", "inputs": "b", "trained_before_on": ["a"]}
    (tmp_path / "policy/manifest.json").write_text(json.dumps({"settings": settings, "output_sha256": "0"}))
    (tmp_path / "policy/chosen.json").write_text(json.dumps({"judges": ["j"], "inputs": ["c"]}))
    folder = ModelFolder(str(tmp_path / "policy"))
    assert (folder.trained_on, folder.rewarded_by) == (["a", "b", "c"], ["j"])
    for content in ("[]", '{"judges": 3}'):
        (tmp_path / "policy/chosen.json").write_text(content)
        with pytest.raises(UserError, match=r"chosen\.json: not a file of utils/select_model\.py"):
            ModelFolder(str(tmp_path / "policy")).rewarded_by  # noqa: B018


def test_a_cut_sample_is_learnt_without_the_end_of_a_turn(tmp_path):
    """Any beginning of a sample is learnt; a whole one with its end."""
    window = Window(LocalChat(ModelFolder(str(save_tiny_chat(tmp_path / "chat")))), 512, 8)
    chat, prompt, teacher = window.chat, load_prompt("lampqa/rag"), load_prompt("lampqa/teacher")
    texts = (("short", False), ("short", True), ("a text that is longer than the eight tokens of the window", False))
    lessons = [Lesson(RECORDS[0], {"question": "Why?"}, text, notes="n", is_cut=is_cut) for text, is_cut in texts]
    whole, cut, long = make_examples(TASK, lessons, prompt, window, 0, teacher=teacher)
    assert list(whole.target) == list(chat.render_reply("short")) == [*cut.target, chat.end_of_turn]
    assert list(long.target) == list(chat.render_reply(texts[2][0]))[:8]
    assert not any(example.is_cut for example in (whole, cut, long))


def test_a_dry_run_says_what_a_training_needs(tmp_path, capsys):
    assert train_dry(tmp_path, "--objective", "distill", "--response_addr", write_samples(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert "0 questions skipped: the profile has text that only the scorer may see" in printed
    assert "= 32 samples per step; 1 step per epoch" in printed
    assert "GB of weights per GPU, plus activations" in printed
    assert not (tmp_path / "out").exists()


def test_a_training_at_rate_0_is_refused(tmp_path):
    samples = write_samples(tmp_path)
    problem = r"0 in every step: --learning_rate 0.0, 1 step, 0 of them warm-up\n  use a higher rate, less warm-up or"
    with pytest.raises(UserError, match=problem):
        train_dry(tmp_path, "--objective", "distill", "--response_addr", samples, "--learning_rate", 0)


# The choice of a model


def write_scores(folder, name, verdict, ids="abc", but=(), category="cooking"):
    """A model's folder, and the score file of a question with one aspect per id; verdicts on some are others."""
    common = {"category": category, "question_sha256": "0", "answered": True}
    verdicts = dict.fromkeys(ids, verdict) | dict(but)
    entries = [
        {"id": key, **common, "score": score and score / 2, "details": [{"aspect": "A", "score": score}]}
        for key, score in verdicts.items()
    ]
    content = {"score": verdict / 2, "num_unanswered": 0, "per_question_scores": entries}
    (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / name).mkdir(exist_ok=True)


@pytest.fixture
def select(tmp_path, capsys):
    """Choose among these models by their score files; return what is printed."""

    def select(*names, link="best"):
        models, scores = [f"{tmp_path}/{name}" for name in names], [f"{tmp_path}/{name}.json" for name in names]
        words = ["--model_addr", *models, "--score_addr", *scores, "--link_addr", f"{tmp_path}/{link}"]
        assert select_model.main(words) == 0
        return capsys.readouterr().out

    return select


def test_the_best_model_is_linked(tmp_path, select):
    for name, verdict in (("one", 1), ("two", 2), ("three", 2)):
        write_scores(tmp_path, name, verdict)
    write_scores(tmp_path, "other", 1, ids="abd")
    printed = select("one", "two", "three")
    assert os.readlink(tmp_path / "best") == "two"  # the first of equal ones
    assert f"1.0000  {tmp_path}/two  <- {tmp_path}/best\n" in printed
    assert "3 of 3 questions with a score in every file; 2 models tie, and the first is chosen\n" in printed
    select("one", "three")
    assert os.readlink(tmp_path / "best") == "three"
    with pytest.raises(UserError, match=r"other\.json: has scores of different questions from"):
        select("one", "other")
    with pytest.raises(UserError, match=r"--link_addr .*one\.json: exists and is not a link"):
        select("one", "two", link="one.json")


def test_swapped_scores_are_refused(tmp_path, select):
    """The judged responses' manifests name their models."""
    for name, verdict in (("one", 1), ("two", 2)):
        folder = save_tiny_chat(tmp_path / name)
        (folder / "generation_config.json").write_text(json.dumps({"top_k": verdict}))  # another identity
        write_scores(tmp_path, name, verdict)
        responses = tmp_path / f"{name}_responses.json"
        settings = {"model": ModelFolder(str(folder)).checked(safetensors_only=True).identity, "inputs": "dataset"}
        publish(responses, {}, describe_run({}, settings, None))
        content = json.loads((tmp_path / f"{name}.json").read_text())
        scores = describe_run({}, {"judge": "j"}, None, judged=[str(responses)])
        publish(tmp_path / f"{name}.json", content, scores)
    assert f"1.0000  {tmp_path}/two  <- " in select("one", "two")
    identities = [settings_of(tmp_path / f"{name}_responses.json")["model"] for name in ("one", "two")]
    one, two = (ModelFolder(str(tmp_path / name)).checked(safetensors_only=True) for name in ("one", "two"))
    assert (one.rewarded_by, two.rewarded_by, [one.identity, two.identity]) == ([], ["j"], identities)
    model = Model(str(tmp_path / "two"), two.identity, flags(), None, two)
    assert settings_by_scores([model], "dataset") == {"chose_checkpoint": True, "rewarded_by": ["j"]}
    assert settings_by_scores([model], "another") == {"rewarded_by": ["j"]}
    for end in (".json", ".json.manifest.json"):
        one, two = tmp_path / f"one{end}", tmp_path / f"two{end}"
        first = one.read_bytes()
        one.write_bytes(two.read_bytes())
        two.write_bytes(first)
    with pytest.raises(UserError, match=r"one\.json: has scores of .*/two, not of .*/one\n  list both in"):
        select("one", "two")


def test_models_are_compared_as_a_table_compares_them(tmp_path, select):
    """By the macro average over the groups, and only where every model has a score."""
    write_scores(tmp_path, "easy", 2, but={"c": None})  # 1.0 over a and b
    write_scores(tmp_path, "hard", 2, but={"b": 1})  # (1 + 0.5 + 1) / 3, and 0.75 over a and b
    printed = select("hard", "easy")
    assert f"0.7500  {tmp_path}/hard\n1.0000  {tmp_path}/easy  <- " in printed
    assert "2 of 3 questions with a score in every file\n" in printed
    for name, cooking, law in (("more", 2, 0), ("even", 1, 1)):  # three questions on cooking, and one on law
        write_scores(tmp_path, name, cooking)
        write_scores(tmp_path, f"{name}_law", law, ids="d", category="law")
        content = json.loads((tmp_path / f"{name}.json").read_text())
        content["per_question_scores"] += json.loads((tmp_path / f"{name}_law.json").read_text())["per_question_scores"]
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    assert "2 models tie" in select("even", "more")  # both (1 + 0) / 2 and (0.5 + 0.5) / 2
    with pytest.raises(UserError, match="no question has a score in every file"):
        write_scores(tmp_path, "none", 2, but=dict.fromkeys("abc"))
        select("easy", "none")
