"""The studies of reinforcement learning from a ranked file to their rows, with vLLM and trainings, also when killed.

A model with random weights writes no query and no heading, so a tiny one first learns the form of each prompt's reply.
"""

import json
import os
import random
import re
import signal
import subprocess
import time

import pytest
from made_up_lessons import learn_rows
from test_studies import ROOT, SAMPLE, environment_with, server, small, trained, usable_reply  # noqa: F401 (fixtures)
from tiny_chat import save_tiny_chat
from tiny_encoder import save_tiny_encoder

from prompts import load_prompt, own_prompt
from utils.benchmarks.lampqa.answers import write_answer
from utils.data.datasets import read_dataset
from utils.methods import intent, search_then_answer
from utils.models.model_folder import ModelFolder

WORDS = ("garden", "music", "letters", "sleep", "paint", "bread", "rivers", "names")


def make_writer(folder, steps):
    """Train a tiny model to write turns of a search, answers as JSON, and an intent before the answer; return it."""
    import torch
    from transformers import AutoModelForCausalLM

    from utils.generation.chat import LocalChat

    save_tiny_chat(folder / "random", max_positions=8192)
    chat, drawn = LocalChat(ModelFolder(str(folder / "random"))), random.Random(0)
    model = AutoModelForCausalLM.from_pretrained(folder / "random", dtype=torch.float32)
    questions = [record for name in ("train", "validation", "test") for record in read_dataset(SAMPLE / f"{name}.json")]
    first = own_prompt(search_then_answer.FIRST)
    after = own_prompt(search_then_answer.FIRST + search_then_answer.NEXT.replace("#", "1"))

    def row(record):
        word, number = drawn.choice(WORDS), drawn.randrange(10, 18)
        query, answer = f"I see.\nSearch: {word}", write_answer(f"Look {number} steps away.")
        question, posts = record["question"], "\n\n".join(post["text"][:200] for post in record["profile"][:2])
        prompts = {
            (first, query): {"question": question},
            (after, drawn.choice([query, "I see.\nEnough"])):
                {"question": question, "said1": query, "posts1": posts},
            (load_prompt("lampqa/rag"), answer): {"question": question, "profile": posts},
            (load_prompt("lampqa/no_personalization"), answer): {"question": question},
            (own_prompt(intent.PROMPT), f"Thoughts: No.\nIntent: {word}\nApproach: yes\nAnswer: Look {number} steps."):
                {"question": question, "profile": posts},
        }  # fmt: skip
        (prompt, reply), values = drawn.choice(list(prompts.items()))
        return list(chat.render(prompt.messages(**values))), list(chat.render_reply(reply))

    loss = learn_rows(model, chat, lambda: list(map(row, drawn.sample(questions, 8))), steps, folder / "chat")
    return folder / "chat", loss


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    folder, loss = make_writer(tmp_path_factory.mktemp("writer"), 150)
    assert loss < 0.3
    return folder


@pytest.fixture
def round_of(trained, server, writer):
    """A function that runs a study of one round in a folder, in the background."""
    server.reply = usable_reply
    learning = "--gradient_accumulation_steps 8 --learning_rate 1e-3 --max_target_length 60"
    own = {
        "MODELS": writer, "N": 4, "ROUNDS": 1, "QUESTIONS": 4, "LEARN_FLAGS": learning, "PLANNER_BASE": writer,
        "PLANPERS_FLAGS": "--max_tokens_plan 48", "TRAIN_FLAGS": f"{trained['TRAIN_FLAGS']} --lora_rank 4",
    }  # fmt: skip

    def start(name, folder, **more):
        environment = environment_with(trained | own | {"OUT": folder} | more)
        words = ["bash", f"utils/studies/{name}.sh"]
        return subprocess.Popen(words, cwd=ROOT, env=environment, text=True, start_new_session=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip

    return start


def size(folder):
    """Return the bytes of all completions and logs."""
    kept = [*folder.rglob("completions/**/*.jsonl"), *folder.rglob("training_log.jsonl")]
    return sum(path.stat().st_size for path in kept)


def kill_in(study, stage, folder, is_quick):
    """Kill -9 a study and what it runs in a stage, once the stage has written something, or at once if it is quick."""
    lines = []
    for line in study.stdout:
        lines.append(line)
        if re.match(rf"# \S*/round_1/{stage}, after", line):
            break
    else:
        raise AssertionError("".join(lines))
    before = size(folder)
    while not is_quick and size(folder) == before and study.poll() is None:
        time.sleep(0.01)
    assert study.poll() is None
    os.killpg(study.pid, signal.SIGKILL)
    study.wait()


def finish(study):
    printed, _ = study.communicate(timeout=600)
    assert study.returncode == 0, printed
    return printed


def content_of(path):
    """Return a file's content without how much of a prompt was in the engine's cache, which depends on the kill."""
    if path.suffix != ".json":
        return path.read_bytes()
    content = json.loads(re.sub(r'"cached_tokens": \d+', '"cached_tokens": 0', path.read_text()))
    if path.name == "adapter_config.json":
        content["target_modules"].sort()  # PEFT writes a set
    return content


QUICK = {"samples_rewards"}
STAGES = {
    "pr2": ("samples", "samples_scores", "policy", "validation", "validation_scores"),
    "iap": ("plain", "samples_rewards"),  # the stages that only it has
    "planner_rl": ("samples", "policy"),  # samples are plans and answers
}


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.parametrize(
    ("name", "title"), [("pr2", "PR2"), ("iap", "IAP"), ("planner_rl", "PlanPers (planner by RL)")]
)
def test_a_round_killed_in_each_stage_is_the_whole_round(round_of, server, tmp_path, name, title):
    """The same samples and adapters, and no verdict is asked for twice, nor a finished step run again."""
    finish(round_of(name, tmp_path / "whole"))
    sent = sorted(json.dumps(request, sort_keys=True) for request in server.requests)
    assert len(sent) == len({*sent})
    server.requests.clear()
    folder = tmp_path / "killed"
    for stage in STAGES[name]:
        kill_in(round_of(name, folder), stage, folder, stage in QUICK)
    printed = finish(round_of(name, folder))
    again = sorted(json.dumps(request, sort_keys=True) for request in server.requests)
    in_flight = len(again) - len({*again})  # when the judge was killed
    assert {*again} == {*sent} and in_flight <= 8 * sum("scores" in stage for stage in STAGES[name])
    [round_1] = folder.glob(f"chat/train/*/{name}/round_1")
    whole = tmp_path / "whole" / round_1.relative_to(folder)
    names = [path.relative_to(round_1) for path in round_1.rglob("*")
             if path.suffix in (".json", ".safetensors") and "manifest" not in path.name]  # fmt: skip
    outputs = [path for path in names if "completions" not in path.parts and path.name != "trainer_state.json"]
    assert len(outputs) >= 8
    for path in outputs:
        assert content_of(whole / path) == content_of(round_1 / path), path
    for store in round_1.glob("completions/*"):
        kept = [json.loads(line) for path in store.glob("*.jsonl") for line in path.open()]
        keys = [entry["key"] for entry in kept if "model" not in entry]  # without the files' heads
        assert len(keys) == len({*keys}), store
    table = (folder / f"chat/test/{name}_judge.md").read_text()
    assert [line.split(" | ")[0] for line in table.replace("**", "").splitlines() if line.startswith("| ")][
        -1
    ] == f"| {title}"
    assert f"- {title}: saw narrative, rubric_aspects in training." in table
    assert (tmp_path / f"whole/chat/test/{name}_judge.md").read_text() == table
    before = size(folder)
    printed = finish(round_of(name, folder))
    assert "closing the engine" not in printed and size(folder) == before


OWN = """
from utils.methods.search_then_answer import FIRST
from utils.models.model_folder import ModelFolder

async def answer(record, ask):
    text = await ask(FIRST, model="search")
    return await ask("rag", items=await ask.search(text or record["question"], k=2))
"""


@pytest.mark.long
@pytest.mark.engine
def test_a_method_of_ones_own_learns_in_one_role(round_of, tmp_path):
    """By the judge's score and a reward of one's own; the answers are written by the model as it is."""
    method, reward, folder = tmp_path / "mine.py", tmp_path / "reward.py", tmp_path / "out"
    method.write_text(OWN)
    reward.write_text("def reward(response):\n    return len(response['output'] or '') % 7\n")
    flags = f"--score 0.5 --own 1 --own_addr {reward}"
    variables = {
        "METHOD": str(method),
        "ROLE": "search",
        "REWARD": flags,
        "ENCODER": str(save_tiny_encoder(tmp_path / "e")),
    }
    printed = finish(round_of("rl", folder, **variables))
    [rounds] = folder.glob("chat/train/*/mine_rl/rounds.md")
    table = folder / "chat/test/rl_mine_judge.md"
    assert printed.endswith(f"{rounds.read_text().rstrip()}\n{rounds}\n\n{table.read_text().rstrip()}\n{table}\n")
    [row] = re.findall(r"^\| 1 \|.*", rounds.read_text(), re.MULTILINE)
    assert re.fullmatch(r"\| 1 \| 4 \| 16 \| \d\.\d{4} \| \d+\.\d \| \d+ \| 0\.\d{4} \|", row)
    rows = re.findall(r"^\| ([^|]+) \|", table.read_text().replace("**", ""), re.MULTILINE)[1:]
    assert rows == ["No personalization", "RAG (asker's profile)", "mine, untrained", "mine, trained"]
    made = json.loads((rounds.parent / "best/manifest.json").read_text())
    assert made["settings"]["role"] == "search" and all(isinstance(note, str) for note in made["notes"])
    again = finish(round_of("rl", folder, **variables))
    assert "closing the engine" not in again
