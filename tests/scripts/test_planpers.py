"""planpers.py: answers from the loopback API, plans from a scripted engine instead of vLLM; no weights are loaded."""

import asyncio
import hashlib
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from api_server import Reply, default_reply, serve
from safetensors.numpy import load_file, save_file
from test_baselines import KEY, answer, flags, make_question, output, sentences, server, write_json  # noqa: F401
from tiny_chat import save_tiny_chat

import baselines
import planpers
from prompts import load_prompt
from utils.base.errors import UserError
from utils.benchmarks.lampqa.answers import ANSWER_SCHEMA
from utils.benchmarks.lampqa.plans import PLAN_PATTERN
from utils.generation.model import Policy
from utils.generation.requests import Completion

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data/mini_lampqa"
SAMPLE = DATA / "test.json"
SPLITS = ["train", "validation", "test"]
RECORDS = json.loads(SAMPLE.read_text())
IDS = [record["id"] for record in RECORDS]
PLAN_HEADING = "Aspects expected in the answer:\n"
AFTER_PLAN = "\n\noutput: ```json"
POLICY = Policy(0.1, 0.95, 2048, 0, 3, "fallback", ANSWER_SCHEMA)  # the flags' defaults
ALL_POSTS = ["--num_contexts", "1000", "--max_model_len", "32768"]


# Models' replacements


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of tiny models: `copy` is `base` in another folder, `other` has other weights; `adapter` and `second` are
    LoRA adapters on `base`, `on_copy` has `copy` as its base; all share a tokenizer."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("models")
    base = save_tiny_chat(folder / "base", max_positions=32768)  # room for every post of the sample
    for name in ("copy", "other"):
        shutil.copytree(base, folder / name)
    others = {name: value + 1 for name, value in load_file(base / "model.safetensors").items()}
    save_file(others, folder / "other/model.safetensors", {"format": "pt"})
    for name, of, fill in [("adapter", "base", 0.5), ("second", "base", 0.25), ("on_copy", "copy", 0.5)]:
        save_adapter(folder / name, folder / of, fill)
    names = ("base", "copy", "other", "adapter", "second", "on_copy")
    folders = {name: str(folder / name) for name in names}
    return SimpleNamespace(**folders, tokenizer=AutoTokenizer.from_pretrained(base))


def save_adapter(folder, base, fill=0.5, width=128):
    """Save a LoRA adapter of rank 2 for a module with `width` inputs and 128 outputs."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 2, "base_model_name_or_path": str(base)}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    shapes = {"A": (2, width), "B": (128, 2)}
    tensors = {name.format(part): np.full(shape, fill, np.float32) for part, shape in shapes.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def is_answer(prompt):
    return "personalized_answer" in prompt


def scripted_reply(prompt, sampling):
    """Return a plan or an answer by a hash of prompt and seed; without a schema, one in four is unusable."""
    drawn = hashlib.sha256(f"{prompt}{sampling.seed}".encode()).hexdigest()
    if int(drawn[:8], 16) % 4 == 0 and sampling.schema is None:
        return "..."
    if is_answer(prompt):
        return json.dumps({"personalized_answer": f"Answer {drawn}."})
    return "\n".join(f"Aspect {drawn[i : i + 4]}" for i in (0, 4, 8))


class Engines:
    """Opens scripted engines, acts as each of them, and records events.

    Attributes:
        reply: returns the text for a prompt and its sampling.
        events: ("open", models), ("plan" or "answer", model) and ("close", models), in order.
        calls: (prompt, sampling) of each request.
    """

    concurrency, device = 3, "script"

    def __init__(self, tokenizer):
        self.tokenizer, self.reply, self.models = tokenizer, scripted_reply, None
        self.events, self.calls = [], []

    def open(self, args, models, max_model_len, gives_rewards):
        assert self.models is None  # one at a time
        self.models = [model.addr for model in models]
        self.events.append(("open", self.models))
        return self

    async def complete(self, model, prompt, sampling):
        assert model in self.models
        text = self.tokenizer.decode(list(prompt), clean_up_tokenization_spaces=False)
        self.events.append(("answer" if is_answer(text) else "plan", model))
        self.calls.append((text, sampling))
        await asyncio.sleep(0)  # the others get their turn
        reply = self.reply(text, sampling)
        return Completion(reply, "stop", len(prompt), 1, len(reply.split()))

    async def close(self):
        self.events.append(("close", self.models))
        self.models = None

    def prompts(self, answers):
        """Return the prompts of all answers, or of all plans."""
        return [prompt for prompt, _ in self.calls if is_answer(prompt) == answers]

    def steps(self):
        """Return the events, without consecutive repetitions."""
        return [event for before, event in zip([None, *self.events], self.events, strict=False) if event != before]


@pytest.fixture
def opened(models, monkeypatch):
    opened = Engines(models.tokenizer)
    monkeypatch.setattr("utils.generation.engines.VLLMEngine", opened.open)
    return opened


# Runs


@pytest.fixture
def api(flags):
    """Return the flags of an API model."""
    return flags


@pytest.fixture
def local(models):
    """Return the flags of a planner and a generator with the same base model."""
    return ["--planner_model", models.adapter, "--model_addr", models.base]


def arguments_of(flags, output, *more, data=SAMPLE):
    files = ["--inputs_addr", str(data), "--unranked", "--output_addr", str(output)]
    return [*map(str, flags), *files, *map(str, more)]


def run(flags, output, *more, data=SAMPLE, code=0):
    """Run the script in this process; return its answers."""
    assert planpers.main(arguments_of(flags, output, *more, data=data)) == code
    return json.loads(output.read_text())


def refusal(flags, output, *more, data=SAMPLE):
    """Return the message of a run that ends with a user error before any request."""
    message = stop(UserError, flags, output, *more, data=data)
    assert 1 <= len(message.splitlines()) <= 3
    return message


def stop(error, flags, output, *more, data=SAMPLE):
    """Run until `error` ends the run; return its message."""
    with pytest.raises(error) as raised:
        planpers.main(arguments_of(flags, output, *more, data=data))
    return str(raised.value)


def test_gold_plans_and_plans_of_a_file_in_the_reference_form(server, api, imported, output, tmp_path):
    questions = [
        make_question(1, rubric_aspects=[{"aspect": "Cost  of it "}, {"aspect": "Time"}]),
        make_question(2, rubric_aspects=[]),
        make_question(3, rubric_aspects=[{"aspect": "Time"}]),
    ]
    data = write_json(tmp_path / "data.json", questions)
    flags = [*api, "--gold_plan", "--planner_target", "reference", "--max_concurrency", 1]
    answers = run(flags, output, *imported, data=data)
    plan = f"{LEAD_IN}- Cost  of it \n- Time\n"  # titles as in the dataset
    assert server.users()[:2] == [f"\n\n? Question number 1?\n! {plan}\n", "\n\n? Question number 2?\n"]
    assert [answers[i][0]["plan"] for i in ("q1", "q2")] == [plan, None]
    assert answers["q2"][0]["no_plan"] == "the rubric has no aspects"
    assert json.loads(plans_path(output).read_text())["q1"] == [{"aspects": ["Cost of it", "Time"], "raw": plan}]
    plans = write_json(tmp_path / "plans.json", {"q1": [{"aspects": ["Cost", "Time"]}]})
    flags = [*api, "--plans_addr", plans, "--planner_target", "reference", "--limit", 1]
    answers = run(flags, output.with_name("given.json"), *imported, data=data)
    assert answers["q1"][0]["plan"] == f"{LEAD_IN}- Cost\n- Time\n"
    message = refusal(flags, output.with_name("ours.json"), data=data)
    assert message.startswith("--planner_target reference: planner.txt has no [assistant] part")


def saw(path):
    return manifest_of(path)["settings"].get("saw")


def test_answers_note_what_their_models_and_plans_saw(server, opened, models, trained, api, output, tmp_path):
    """Gold plans also where they come from a file, and a generator's training beside its planner's."""
    gold = output.with_name("gold.json")
    run([*api, "--gold_plan"], gold, "--limit", 2)
    again = output.with_name("again.json")
    run([*api, "--plans_addr", plans_path(gold)], again, "--limit", 2)
    assert saw(gold) == saw(again) == {"when": "test", "fields": ["rubric_aspects"]}
    policy = shutil.copytree(models.second, tmp_path / "policy")
    settings = {"script": "utils/train_generator.py", "saw_in_training": ["narrative"], "validation": None}
    settings["rewarded_by"] = ["judge"]
    (policy / "manifest.json").write_text(json.dumps({"settings": settings}))
    run(["--planner_model", trained[1][1], "--model_addr", policy], output, "--limit", 2)
    assert saw(output) == {"when": "training", "fields": ["narrative", "rubric_aspects"]}
    assert manifest_of(output)["settings"]["rewarded_by"] == ["judge"]
    own = output.with_name("own.json")
    run(["--planner_model", models.adapter, "--model_addr", policy], own, "--limit", 2)
    assert saw(own) == {"when": "training", "fields": ["narrative"]}


def plans_path(output):
    return Path(f"{output}.plans.json")


def manifest_of(path):
    return json.loads(Path(f"{path}.manifest.json").read_text())


def snapshot(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_plans(path, number=1, ids=IDS):
    """Write a file with `number` plans per question, all different."""
    plans = {i: [{"aspects": [f"First of {i} {n}", f"Second of {i} {n}"]} for n in range(number)] for i in ids}
    return write_json(path, plans)


def users_of(prompt):
    """Return the user's part of a prompt in the tiny models' chat format."""
    return prompt.split("<|im_start|>user\n")[1].removesuffix("<|im_end|>\n<|im_start|>assistant\n")


def as_text(messages):
    """Return messages in the tiny models' chat format, up to the beginning of the reply."""
    turns = [f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages]
    return "".join(turns) + "<|im_start|>assistant\n"


def plan_block(user):
    """Return the text under the heading of the aspects."""
    assert user.count(PLAN_HEADING) == 1 and user.endswith(AFTER_PLAN)
    return user.split(PLAN_HEADING)[1].removesuffix(AFTER_PLAN)


def assert_no_secret(records, prompts):
    secret = [sentence for record in records for sentence in sentences(record)]
    assert len(secret) > 15 * len(records)
    text = "\n".join(prompts)
    assert [sentence for sentence in secret if sentence in text] == []


# Plans in the public code's form

LEAD_IN = "Here (I think) is what counts:\n"
IMPORTED = {  # as utils/import_prompts.py writes them
    "planner": f"[system]\nList.\n[user]\n\n{{profile}}\n? {{question}}\n\n[assistant]\n{LEAD_IN}{{plan}}\n[end]\n",
    "planpers": "[system]\nReply as personalized_answer.\n[user]\n\n{profile}\n? {question}\n! {plan}\n\n[end]\n",
    "rag": "[system]\nReply as personalized_answer.\n[user]\n\n{profile}\n? {question}\n\n[end]\n",
}


@pytest.fixture
def imported(tmp_path):
    """The flags for a folder of prompts like that of utils/import_prompts.py."""
    folder = tmp_path / "prompts_paper"
    folder.mkdir()
    for name, text in IMPORTED.items():
        (folder / f"{name}.txt").write_text(text)
    return ["--prompts_dir", str(folder)]


@pytest.fixture
def trained(models, tmp_path):
    """The flags of two planners with recorded targets, `reference` and `paper`, and of the base model."""
    planners = []
    for target in ("reference", "paper"):
        folder = Path(shutil.copytree(models.adapter, tmp_path / target))
        remembered = {"planner_target": "reference", "lead_in": LEAD_IN} if target == "reference" else {}
        manifest = {"settings": {"script": "train_planner.py", **remembered}}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        planners.append(["--planner_model", str(folder), "--model_addr", models.base])
    return planners


def planning(text):
    """Return a scripted reply with this plan and an answer."""
    return lambda prompt, sampling: '{"personalized_answer": "Yes."}' if is_answer(prompt) else text


def expected_answer_prompt(record, plan):
    posts = "\n\n".join(post["text"] for post in record["profile"][:2])
    system = {"role": "system", "content": "Reply as personalized_answer."}
    user = f"\n{posts}\n? {record['question']}\n" + (f"! {plan}\n" if plan else "")
    return as_text([system, {"role": "user", "content": user}])


def test_a_planner_of_the_reference_form_passes_its_text_on_unchanged(opened, trained, imported, output):
    raw = f"{LEAD_IN}- Cost  of it\n- Time\n- time\n"
    opened.reply = planning(raw)
    answers = run(trained[0], output, "--limit", 2, "--num_contexts", 2, *imported)
    assert opened.prompts(answers=True) == [expected_answer_prompt(record, raw) for record in RECORDS[:2]]
    assert [answers[i][0]["plan"] for i in IDS[:2]] == [raw, raw]
    plans = json.loads(plans_path(output).read_text())
    assert [(plans[i][0]["aspects"], plans[i][0]["raw"]) for i in IDS[:2]] == [(["Cost of it", "Time"], raw)] * 2
    for path in (output, plans_path(output)):
        settings = manifest_of(path)["settings"]
        assert (settings["planner_target"], settings["lead_in"]) == ("reference", LEAD_IN)

    # Another run uses them, and knows their format.
    again = output.parent.parent / "again" / "again.json"
    opened.calls.clear()
    given = ["--plans_addr", plans_path(output), *trained[0][2:]]
    answers = run(given, again, "--limit", 2, "--num_contexts", 2, *imported)
    assert opened.prompts(answers=True) == [expected_answer_prompt(record, raw) for record in RECORDS[:2]]
    message = refusal([*given, "--planner_target", "paper"], output.with_name("other.json"), *imported)
    assert message == f"--planner_target paper: {plans_path(output)} was made with reference; remove the flag"


@pytest.mark.parametrize("target", ["reference", "paper"])
def test_a_flag_that_contradicts_the_checkpoint_is_refused(opened, trained, imported, output, target):
    planner = trained[target == "reference"]
    message = refusal(planner, output, "--planner_target", target, *imported)
    assert message.startswith(f"--planner_target {target}: {planner[1]} was made with ")
    assert opened.events == [] and not output.exists()


# Given plans in the prompt


@pytest.mark.parametrize("are_gold", [True, False])
def test_given_plans_add_only_themselves_to_the_prompt(server, api, output, tmp_path, are_gold):
    """Gold plans are the titles; of those in the other plans, the first is gold."""
    titles = {record["id"]: [aspect["aspect"] for aspect in record["rubric_aspects"]] for record in RECORDS}
    plans = titles if are_gold else {key: ["Something else", gold[0]] for key, gold in titles.items()}
    written = {key: [{"aspects": [plan[0].replace("g else", "g\n else"), *plan[1:]]}] for key, plan in plans.items()}
    flags = ["--gold_plan"] if are_gold else ["--plans_addr", write_json(tmp_path / "plans.json", written)]
    answers = run(api, output, *flags, "--max_concurrency", 1, *ALL_POSTS)
    assert list(answers) == IDS
    for record, request in zip(RECORDS, server.requests, strict=True):
        plan, posts = "\n".join(plans[record["id"]]), "\n\n".join(post["text"] for post in record["profile"])
        fields = {"question": record["question"], "profile": posts, "plan": plan}
        assert request["messages"] == load_prompt("lampqa/planpers").messages(**fields)
        assert answers[record["id"]][0]["plan"] == plan
        others = [title for title in titles[record["id"]] if title not in plans[record["id"]]]
        assert not [title for title in others if title in str(request["messages"])]
    assert_no_secret(RECORDS, [message["content"] for request in server.requests for message in request["messages"]])


# Without a plan

WITHOUT_A_PLAN = {
    "null": ({"aspects": None, "reason": "no aspect in the text"}, "no aspect in the text"),
    "no reason": ({"aspects": None, "reason": None}, "an empty plan"),
    "empty": ({"aspects": []}, "an empty plan"),
}


@pytest.mark.parametrize("k", [0, 2, 1000])
def test_prompts_hold_the_first_k_posts_and_nothing_of_narrative_or_rubric(opened, local, output, k):
    opened.reply = planning("Cost\nTime")
    run(local, output, "--num_contexts", k, "--max_model_len", 32768)
    planned, answered = opened.prompts(answers=False), opened.prompts(answers=True)
    for record, plan_prompt, answer_prompt in zip(RECORDS, planned, answered, strict=True):
        posts = [post["text"] for post in record["profile"]]
        fields = {"question": record["question"], "profile": "\n\n".join(posts[:k])}
        assert plan_prompt == as_text(load_prompt("lampqa/planner").messages(**fields))
        assert answer_prompt == as_text(load_prompt("lampqa/planpers").messages(**fields, plan="Cost\nTime"))
    titles = [aspect["aspect"] for record in RECORDS for aspect in record["rubric_aspects"]]
    assert [title for title in titles if title in "\n".join([*planned, *answered])] == []
    assert_no_secret(RECORDS, [*planned, *answered])


def test_questions_without_a_plan_are_answered_like_rag(server, api, output, tmp_path, capsys):
    plans = {question_id: [plan] for question_id, (plan, _) in zip(IDS, WITHOUT_A_PLAN.values(), strict=False)}
    plans |= {question_id: [{"aspects": ["Cost"]}] for question_id in IDS[3:5]}
    plans_addr = write_json(tmp_path / "plans.json", plans)
    words = arguments_of(api, output, "--plans_addr", plans_addr, "--limit", 5, "--max_concurrency", 1)
    assert planpers.main(words) == 1  # as if a planner had failed on most questions
    printed, answers = capsys.readouterr(), json.loads(output.read_text())
    assert ", 3 answered without a plan" in printed.out and "3 of 5 plans unusable" in printed.err
    assert manifest_of(output)["counts"]["answered without a plan"] == 3
    for question_id, (_, reason) in zip(IDS, WITHOUT_A_PLAN.values(), strict=False):
        sample = answers[question_id][0]
        assert (sample["output"], sample["plan"], sample["no_plan"]) == ("An answer.", None, reason)
    assert [answers[i][0]["plan"] for i in IDS[3:5]] == ["Cost", "Cost"]
    num_requests = len(server.requests)
    rag = arguments_of(api, tmp_path / "rag.json", "--rag", "--limit", 3, "--max_concurrency", 1)
    assert baselines.main(rag) == 0
    assert server.requests[:3] == server.requests[num_requests:]


# The planner


def test_files_of_a_planned_run(opened, local, output):
    def reply(prompt, sampling):
        if is_answer(prompt):
            return json.dumps({"personalized_answer": plan_block(users_of(prompt))})
        is_bad = sampling.seed == POLICY.sampling((IDS[1], 1), 0).seed
        return "..." if is_bad else f"1. Cost {sampling.seed}\n2. Time"

    opened.reply = reply
    answers = run(local, output, "--num_generated_outputs", 2)
    plans = json.loads(plans_path(output).read_text())
    assert list(plans) == list(answers) == IDS
    for question_id in IDS:
        assert [len(plans[question_id]), len(answers[question_id])] == [2, 2]
        for number, (plan, sample) in enumerate(zip(plans[question_id], answers[question_id], strict=True)):
            seed = POLICY.sampling((question_id, number), plan["attempts"] - 1).seed
            assert plan["aspects"] == [f"Cost {seed}", "Time"]
            assert sample["plan"] == sample["output"] == "\n".join(plan["aspects"])
    first = plans[IDS[0]][0]
    assert (first["raw"], first["parsed"]) == (f"1. {first['aspects'][0]}\n2. Time", "repaired")
    assert (first["num_contexts_used"], first["attempts"], first["completion_tokens"]) == (10, 1, 5)
    assert sum(plan["attempts"] for samples in plans.values() for plan in samples) == 27  # 26, and one again

    made = manifest_of(plans_path(output))
    assert made["counts"] == {"plans": 26, "without an aspect": 0, "aspects": 52, "posts left out for length": 0}
    assert (made["pieces"], made["tokens"]["completion_tokens"]) == (26, 26 * 5 + 1)
    settings = made["settings"]
    assert (settings["max_tokens_plan"], settings["num_contexts"], settings["temperature"]) == (512, 10, 0.1)
    assert settings["prompt"] == {name: load_prompt(f"lampqa/{name}").digest for name in ("planner", "planpers", "rag")}
    assert re.fullmatch(r"sha256:\w{64} on sha256:\w{64}", settings["planner"])
    made = manifest_of(output)
    assert (made["pieces"], made["counts"]["answered without a plan"]) == (26, 0)
    assert made["settings"]["planner"] == settings["planner"]
    assert made["settings"]["model"] == settings["planner"].split(" on ")[1]
    assert {sampling.max_tokens for prompt, sampling in opened.calls if is_answer(prompt)} == {2048}
    assert {sampling.max_tokens for prompt, sampling in opened.calls if not is_answer(prompt)} == {512}


@pytest.mark.parametrize("target", ["paper", "reference"])
def test_an_unusable_plan_is_retried_and_the_last_try_is_constrained(opened, local, trained, imported, output, target):
    plan = f"{LEAD_IN}- Cost\n- Time\n" if target == "reference" else "Cost\nTime"
    flags = [*trained[0], *imported] if target == "reference" else local
    opened.reply = lambda prompt, sampling: planning(plan if sampling.schema else "```\n```")(prompt, sampling)
    run(flags, output, "--limit", 1)
    samplings = [sampling for prompt, sampling in opened.calls if not is_answer(prompt)]
    assert [sampling.schema for sampling in samplings[:3]] == [None] * 3 and re.fullmatch(samplings[3].schema, plan)
    assert target == "reference" or samplings[3].schema == PLAN_PATTERN
    assert [sampling.seed for sampling in samplings] == [POLICY.sampling((IDS[0], 0), i).seed for i in range(4)]
    [made] = json.loads(plans_path(output).read_text())[IDS[0]]
    assert (made["aspects"], made["attempts"], made["constrained"]) == (["Cost", "Time"], 4, True)


# The stages' order


@pytest.mark.parametrize(("planner", "generator"), [
    ("adapter", "base"), ("adapter", "second"), ("base", "base"), ("on_copy", "base"),  # of one base
    ("other", "base"), ("adapter", "other"),
])  # fmt: skip
def test_one_engine_serves_models_of_one_base_and_else_the_planners_is_closed_first(
    opened, models, output, planner, generator
):
    have_one_base = "other" not in (planner, generator)
    planner, generator = getattr(models, planner), getattr(models, generator)
    run(["--planner_model", planner, "--model_addr", generator], output, "--limit", 4)
    both = list(dict.fromkeys([planner, generator]))
    change = [] if have_one_base else [("close", [planner]), ("open", [generator])]
    first, last = (both, both) if have_one_base else ([planner], [generator])
    assert opened.steps() == [("open", first), ("plan", planner), *change, ("answer", generator), ("close", last)]


def test_planner_is_closed_before_the_api_is_asked(server, opened, models, api, output):
    def reply(request):
        opened.events.append(("API", request["model"]))
        return default_reply(request)

    server.reply = reply
    # vLLM's server names a model by its folder, which is not one of this run.
    api[api.index("some-model")] = models.base
    answers = run([*api, "--planner_model", models.adapter], output)
    planner = models.adapter
    assert opened.steps() == [("open", [planner]), ("plan", planner), ("close", [planner]), ("API", models.base)]
    plans = json.loads(plans_path(output).read_text())
    for question_id, [sample] in answers.items():
        assert sample["plan"] == "\n".join(plans[question_id][0]["aspects"])
        assert any(user.endswith(PLAN_HEADING + sample["plan"] + AFTER_PLAN) for user in server.users())
    manifests = [manifest_of(path) for path in (plans_path(output), output)]
    devices = [(manifest["device"], manifest["batch_invariant"]) for manifest in manifests]
    assert devices == [("script", False), ("API at 127.0.0.1", None)]


# Stopped and resumed


@pytest.fixture
def reference(opened, local, tmp_path):
    """(answers, plans) of an uninterrupted run, as bytes."""
    path = tmp_path / "reference" / "answers.json"
    run(local, path)
    opened.calls.clear()
    opened.events.clear()
    return path.read_bytes(), plans_path(path).read_bytes()


@pytest.mark.parametrize("stage", ["plans", "answers"])
def test_a_stopped_run_resumes(opened, local, output, reference, stage):
    def reply(prompt, sampling):
        if is_answer(prompt) == (stage == "answers") and len(opened.prompts(stage == "answers")) > 8:
            raise KeyboardInterrupt
        return scripted_reply(prompt, sampling)

    opened.reply = reply
    stop(KeyboardInterrupt, local, output)
    assert not output.exists()
    assert plans_path(output).exists() == (stage == "answers")  # the plans are published as soon as all are made
    assert opened.events[-1][0] == "close"
    sent = [(prompt, sampling.seed) for prompt, sampling in opened.calls]

    opened.reply = scripted_reply
    opened.calls.clear()
    opened.events.clear()
    run(local, output)
    assert (output.read_bytes(), plans_path(output).read_bytes()) == reference
    again = {(prompt, sampling.seed) for prompt, sampling in opened.calls} & set(sent)
    assert len(again) <= Engines.concurrency < len(sent) - 3  # the requests in flight
    planner, generator = local[1], local[3]
    opened_models = [planner, generator] if stage == "plans" else [generator]
    assert [models for name, models in opened.events if name == "open"] == [opened_models]


def test_invalid_plans_and_planners_are_refused(server, opened, api, models, output, tmp_path):
    plans = {i: [{"aspects": ["Cost"]}] * (1 if i == IDS[3] else 2) for i in IDS}
    plans, wide = write_json(tmp_path / "one.json", plans), save_adapter(tmp_path / "wide", models.base, width=64)
    for words, message in (
        (["--plans_addr", plans, "--num_generated_outputs", 2], f"{plans}: lacks 1 of 26 plans of this run: '"),
        (["--planner_model", "./no/planner"], "no/planner: no such folder"),
        (["--planner_model", wide], f"{wide}: adapter does not match the architecture of {models.base}\n"),
        (["--planner_model", models.base, "--max_tokens_plan", 9000], "--max_tokens_plan 9000 leaves no room for the"),
        (["--planner_model", models.base, "--max_model_len", 40000], "--max_model_len 40000: the model supports at"),
    ):
        assert refusal(api, output, *words).startswith(message)
    assert server.requests == [] and opened.events == [] and not output.parent.exists()


# Existing outputs


OTHER_SETTINGS = {
    "planner": (["--planner_model", "second"], 'planner: "sha256:'),
    "gold plans": (["--gold_plan"], "gold_plan: false, now true; planner: "),
    "length of a plan": (["--max_tokens_plan", "256"], "max_tokens_plan: 512, now 256"),
}


@pytest.mark.parametrize("case", OTHER_SETTINGS)
def test_other_settings_are_named_and_nothing_is_lost(opened, models, local, output, case):
    run(local, output, "--limit", 2)
    before = snapshot(output.parent)
    opened.events.clear()
    (flag, *values), message = OTHER_SETTINGS[case]
    kept = local if flag == "--max_tokens_plan" else local[2:]
    said = refusal([*kept, flag, *(getattr(models, value, value) for value in values)], output, "--limit", 2)
    assert said.startswith(f"{output}.plans.json: was made with other settings: ") and message in said
    assert snapshot(output.parent) == before and opened.events == []


def test_answers_are_made_again_if_the_plans_file_changed(server, api, output, tmp_path):
    flags = [*api, "--plans_addr", write_plans(tmp_path / "plans.json")]
    run(flags, output, "--limit", 2)
    plans = json.loads((tmp_path / "plans.json").read_text())
    plans[IDS[1]][0]["aspects"] = ["Another one"]
    write_json(tmp_path / "plans.json", plans)
    assert run(flags, output, "--limit", 2)[IDS[1]][0]["plan"] == "Another one"
    assert len(server.requests) == 2 + 1
    assert "gold_plan: false, now true" in refusal([*api, "--gold_plan"], output, "--limit", 2)
    assert len(server.requests) == 2 + 1


# Bad input


def test_plans_that_would_replace_an_input(server, opened, local, api, tmp_path):
    data = write_json(tmp_path / "answers.json.plans.json", [make_question(1)])
    said = refusal(local, tmp_path / "answers.json", "--overwrite", data=data)
    assert said.endswith("answers.json.plans.json: is also an input; choose another output path")
    plans = write_plans(tmp_path / "given.json.plans.json")
    said = refusal([*api, "--plans_addr", plans], tmp_path / "." / "given.json", "--overwrite")
    assert said.endswith("given.json.plans.json: is also an input; choose another output path")
    assert json.loads(data.read_text()) == [make_question(1)] and opened.events == server.requests == []


# Commands


@pytest.fixture
def planner_api(tmp_path, api):
    """A separate server for the planner, and flags for it."""
    (tmp_path / "planner_key.txt").write_text("sk-planner\n")
    with serve(lambda request: Reply("Price of boats\nTime at sea")) as planner:
        flags = ["--planner_base_url", planner.url, "--planner_api_key_addr", f"{tmp_path}/planner_key.txt"]
        yield planner, ["--planner_model", "my-planner", *flags]


def usage_of(server, written):
    """Return the tokens of all prompts of a server and of its answers, as it counts them."""
    prompt = [sum(len(message["content"].split()) for message in request["messages"]) for request in server.requests]
    return sum(prompt), sum(count // 2 for count in prompt), written * len(prompt)


def test_planner_and_generator_have_a_server_a_key_and_prices_each(api, planner_api, server, opened, output, capsys):
    planner, flags = planner_api
    prices = ["--planner_price_in", 2, "--planner_price_out", 30, "--planner_price_cached", 0.5]
    prices += ["--price_in", 5, "--price_out", 7]
    assert planpers.main(arguments_of([*api, *flags], output, *prices, "--dry_run", "--limit", 3)) == 0
    plans, answers = [line for line in capsys.readouterr().out.splitlines() if "USD for the prompts" in line]
    assert float(re.search("at most (.+) with the outputs", plans)[1]) > 3 * 512 * 30 / 1e6
    assert float(re.search("at most (.+) with the outputs", answers)[1]) > 3 * 2048 * 7 / 1e6
    assert planpers.main(arguments_of([*api, *flags], output, *prices, "--limit", 3)) == 0
    assert opened.events == []  # nothing runs here
    assert {*server.keys} == {KEY} and {*planner.keys} == {"sk-planner"}
    assert len(server.requests) == len(planner.requests) == 3
    assert {request["model"] for request in planner.requests} == {"my-planner"}
    assert all("Price of boats\nTime at sea\n\noutput:" in user for user in server.users())
    manifests = [manifest_of(plans_path(output)), manifest_of(output)]
    prompt, cached, written = usage_of(planner, 6)
    assert manifests[0]["cost_usd"] == round(((prompt - cached) * 2 + cached * 0.5 + written * 30) / 1e6, 6) > 0
    prompt, _, written = usage_of(server, 3)
    assert manifests[1]["cost_usd"] == round((prompt * 5 + written * 7) / 1e6, 6) > 0
    name = "my-planner at " + planner.url.removeprefix("http://")
    assert [manifest["settings"]["planner"] for manifest in manifests] == [name] * 2
    printed = capsys.readouterr().out
    assert all(f"; {manifest['cost_usd']:.4f} USD\n" in printed for manifest in manifests)
    assert not any(b"sk-" in content for content in snapshot(output.parent).values())
    planner.reply = lambda request: Reply("Bad key $KEY.", status=401)
    with pytest.raises(UserError, match=r"answers 401: Bad key \*\*\*\."):
        planpers.main(arguments_of([*api, *flags], output.parent.with_name("other") / "answers.json"))


def test_dry_run_shows_both_stages_and_requests_and_writes_nothing(opened, local, output, capsys):
    assert planpers.main(arguments_of(local, output, "--dry_run", "--num_generated_outputs", 2)) == 0
    plans, planner, answers, generator, assumed, total, *_ = capsys.readouterr().out.splitlines()
    assert [plans, answers] == [f"{path}: 26 of 26 {unit} still need requests" for path, unit in (
        (f"{output}.plans.json", "plans"), (output, "answers"))]  # fmt: skip
    shared = r"26 requests, (\d+) prompt tokens \(the model's tokenizer\), longest prompt \d+; at most "
    planned = re.fullmatch(f"  planner: {shared}512 tokens per output, 104 requests with retries", planner)[1]
    more = re.fullmatch(f"  generator: {shared}2048 tokens per output, 104 requests with retries", generator)[1]
    assert assumed == "  with made-up plans of five aspects in place of those that do not exist yet"
    assert total == f"total: 52 requests, {int(planned) + int(more)} prompt tokens"
    assert opened.events == [] and not output.parent.exists()
