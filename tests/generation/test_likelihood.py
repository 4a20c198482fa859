"""--choose likelihood: compared with transformers if vLLM runs, and complete runs otherwise."""

import asyncio
import json
import os
import subprocess
import sys
from array import array
from pathlib import Path
from types import SimpleNamespace

import pytest
from likelihoods import mean_log_probs
from tiny_chat import save_tiny_chat

import baselines
import utils.benchmarks
from prompts import join_posts, load_prompt
from utils.base.manifest import read_manifest
from utils.benchmarks import tasks
from utils.generation import scoring
from utils.generation.requests import Scored
from utils.generation.scoring import score_continuations

ROOT = Path(__file__).resolve().parents[2]
CHAT = ROOT / "demo/models/chat"
MADE_UP = ROOT / "tests/benchmarks/made_up"
NOTES = [f"Note {i}: on day {i} I walked by the river and saw {i + 2} badgers in the reeds." for i in range(50)]
LONG = "I would take the narrow path along the river at dawn, for the badgers come out of the reeds then, "
BLOCK = 128  # tokens that vLLM's cache has or has not, on a CPU
OPTIONS = {
    "one": "Badgers",
    "two": f"{LONG}and there is nobody else about.",
    "three": f"{LONG}but never in winter.",  # shares a prefix with the second one, longer than a block of the cache
    "four": "Perhaps you could write a poem about it?",
}


def make_records(number, words=0):
    """Return questions that get longer by a word; `words` are added to the first."""
    profile = [{"id": f"n{i}", "note": note} for i, note in enumerate(NOTES)]
    return [
        {"task": "Trivia", "id": f"q{i}", "kind": "Animals", "answer": "one", "profile": profile, "options": OPTIONS}
        | {"question": f"What should I do{' today' * (words + i)}?"}
        for i in range(number)
    ]


def write(path, records):
    path.write_text(json.dumps(records))
    return path


@pytest.fixture
def installed(monkeypatch):
    """Install the made-up benchmark, as if its file were in utils/benchmarks."""
    monkeypatch.setattr(utils.benchmarks, "__path__", [*utils.benchmarks.__path__, str(MADE_UP)])
    tasks.cache_clear()
    yield
    monkeypatch.undo()
    tasks.cache_clear()


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return save_tiny_chat(tmp_path_factory.mktemp("model") / "chat")


class Counting:
    """An engine for which longer texts are likelier, and that dies after a number of questions."""

    concurrency, device = 1, "none"

    def __init__(self, dies_after=None, scores=None):
        self.asked, self.dies_after, self.scores = [], dies_after, scores

    async def score(self, model, prompt, continuations):
        if len(self.asked) == self.dies_after:
            raise KeyboardInterrupt
        self.asked.append((prompt, continuations))
        return Scored(self.scores or [-1 / len(tokens) for tokens in continuations], 40, 30)

    async def close(self):
        pass


@pytest.fixture
def run(installed, model_folder, tmp_path, monkeypatch):
    def run_script(engine, *arguments, records=None):
        monkeypatch.setattr("utils.generation.engines.VLLMEngine", lambda *_: engine)
        inputs = write(tmp_path / "in.json", records or make_records(5))
        command = ["--model_addr", model_folder, "--inputs_addr", inputs, "--output_addr", tmp_path / "out.json"]
        return baselines.main([str(word) for word in (*command, "--choose", "likelihood", *arguments)])

    return run_script


def test_the_likeliest_option_is_the_answer(run, tmp_path, capsys):
    engine = Counting()
    assert run(engine) == 0
    answers = json.loads((tmp_path / "out.json").read_text())
    assert [outputs[0]["output"] for outputs in answers.values()] == ["two"] * 5
    lengths = [len(tokens) for tokens in engine.asked[0][1]]
    [first] = answers["q0"]
    assert first["mean_log_probs"] == {name: -1 / n for name, n in zip(OPTIONS, lengths, strict=True)}
    assert (first["prompt_tokens"], first["cached_tokens"], first["completion_tokens"]) == (40, 30, 0)
    manifest = read_manifest(tmp_path / "out.json")
    assert manifest["tokens"] == {"prompt_tokens": 200, "cached_tokens": 150, "completion_tokens": 0}
    assert manifest["settings"]["choose"] == "likelihood"
    assert "5 questions, 5 answers" in capsys.readouterr().out
    run(Counting(dies_after=0))
    assert "already finished; skipped" in capsys.readouterr().out


def test_ties_choose_the_first_option_and_invalid_numbers_none(run, tmp_path):
    run(Counting(scores=[-3.0, -2.0, -2.0, -4.0]))
    assert json.loads((tmp_path / "out.json").read_text())["q0"][0]["output"] == "two"
    more = ["--completions", tmp_path / "damaged", "--limit", 4, "--overwrite"]
    run(Counting(scores=[-3.0, float("nan"), -2.0, -4.0]), *more)
    [answer] = json.loads((tmp_path / "out.json").read_text())["q0"]
    assert answer["output"] is None and answer["reason"] == "the model returned no likelihood for an option"
    assert answer["mean_log_probs"] == {"one": -3.0, "two": None, "three": -2.0, "four": -4.0}


def test_a_prompt_leaves_room_for_the_longest_option(run, tmp_path):
    engine = Counting()
    run(engine, "--rag", "--unranked", "--num_contexts", 12, "--max_model_len", 250)
    prompt, options = engine.asked[0]
    assert 200 < len(prompt) + max(map(len, options)) < 250
    [answer] = json.loads((tmp_path / "out.json").read_text())["q0"]
    assert 0 < answer["num_contexts_used"] < 12


class Tokens:
    """A fake vLLM: a token's likelihood grows with its number, and cached tokens have no log-probability.

    With `others`, log-probabilities of prompts are those of other tokens, each time or every second time.
    """

    def __init__(self, block, others=None):
        self.block, self.others, self.cache, self.asked, self.wanted = block, others, set(), [], []

    async def ask(self, token_ids, params):
        blocks = [token_ids[:end] for end in range(self.block, len(token_ids), self.block)]
        cached = 0 if params.skip_reading_prefix_cache else max(map(len, self.cache & set(blocks)), default=0)
        self.cache |= set(blocks)
        if len(token_ids) % self.block == 0:
            self.cache.add(token_ids)
        self.asked.append((token_ids, cached))
        self.wanted.append(params.prompt_logprobs is not None)
        prompt = token_ids[1:]
        if self.others and len(self.asked) % self.others == 0:
            prompt = [*token_ids[2:], 0]
        values = [99.0 if i < cached else -float(token) for i, token in enumerate(prompt)]
        nexts = {token: SimpleNamespace(logprob=-float(token)) for token in params.logprob_token_ids or ()}
        outputs = [SimpleNamespace(logprobs=[nexts] if nexts else None)]  # as vLLM has it
        found = SimpleNamespace(logprobs=values, token_ids=list(prompt)) if self.wanted[-1] else None
        return SimpleNamespace(
            prompt_token_ids=token_ids, num_cached_tokens=cached, prompt_logprobs=found, outputs=outputs
        )


@pytest.mark.parametrize("by_token", [False, True])
@pytest.mark.parametrize("block", [1, 2, 3, 4, 16])
def test_continuations_with_a_common_prefix_are_scored_separately(block, by_token):
    """Numbers of cached tokens are not used, wherever the cache's blocks end."""
    pytest.importorskip("vllm")
    words = [[5], [5, 6, 7], [5, 6, 9], [5, 6, 7, 7, 3, 2], [8, 1], [8, 1], [4], [5, 6, 7, 7, 3, 1, 1]]
    continuations = [array("i", word) for word in words]
    engine, prompt = Tokens(block), array("i", [1, 2, 3, 4])
    scored = asyncio.run(score_continuations(engine.ask, prompt, continuations, by_token))
    assert scored.mean_log_probs == pytest.approx([-sum(word) / len(word) for word in words])
    assert len({token_ids for token_ids, _ in engine.asked}) == len(engine.asked)  # nothing is asked twice
    assert scored.prompt_tokens == sum(len(token_ids) for token_ids, _ in engine.asked)
    # The same again, as of another question: what the cache has of it is computed once more.
    again = asyncio.run(score_continuations(engine.ask, prompt, continuations, by_token))
    assert again.mean_log_probs == scored.mean_log_probs
    assert by_token == (not any(engine.wanted))


@pytest.mark.parametrize("others", [1, 2])
@pytest.mark.parametrize("block", [1, 3, 16])
def test_log_probabilities_of_wrong_tokens_are_not_used(block, others, capsys):
    pytest.importorskip("vllm")
    scoring._say_slower.cache_clear()
    words = [[5], [5, 6, 7], [5, 6, 9], [5, 6, 7, 7, 3, 2], [8, 1], [4], [5, 6, 7, 7, 3, 1, 1]]
    continuations = [array("i", word) for word in words]
    for _ in range(2):
        engine = Tokens(block, others)
        scored = asyncio.run(score_continuations(engine.ask, array("i", [1, 2, 3, 4]), continuations))
        assert scored.mean_log_probs == pytest.approx([-sum(word) / len(word) for word in words])
        assert scored.prompt_tokens == sum(len(token_ids) for token_ids, _ in engine.asked)
    assert capsys.readouterr().err == (
        "note: vLLM returned log-probabilities of the wrong tokens; the right ones are requested one by one, "
        "which is slower (set VLLM_USE_V2_MODEL_RUNNER=0 to avoid it)\n"
    )


RUN = (
    f"import sys; sys.path[:0] = [{str(ROOT)!r}]; import utils.benchmarks, baselines;"
    f"utils.benchmarks.__path__.append({str(MADE_UP)!r}); from utils.base import cli; cli.run_script(baselines.main)"
)


@pytest.mark.long
@pytest.mark.engine
def test_vllms_likelihoods_equal_those_of_transformers(tmp_path):
    records = make_records(4, words=5)
    inputs, output = write(tmp_path / "in.json", records), tmp_path / "out.json"
    command = [sys.executable, "-c", RUN, "--model_addr", CHAT, "--inputs_addr", inputs, "--output_addr", output]
    command += ["--rag", "--unranked", "--num_contexts", 50, "--choose", "likelihood", "--dtype", "float32"]
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stderr
    answers, manifest = json.loads(output.read_text()), read_manifest(output)
    lengths = set()
    for record, (expected, length) in zip(records, mean_log_probs(CHAT, asked_of(records)), strict=True):
        [answer] = answers[record["id"]]
        assert answer["mean_log_probs"] == pytest.approx(expected, abs=1e-3)
        assert answer["output"] == max(expected, key=expected.get)
        lengths.add(length % BLOCK)
    assert "requested one by one" not in done.stderr
    assert 0 in lengths  # else no prompt had a completely cached last block
    tokens = manifest["tokens"]
    assert tokens["cached_tokens"] > 0.8 * tokens["prompt_tokens"]


def asked_of(records, number=50):
    """Return each question's conversation and options."""
    prompt = load_prompt(str(MADE_UP / "ask_with_notes"))
    for record in records:
        notes = [item["note"] for item in record["profile"][:number]][::-1]
        yield prompt.messages(profile=join_posts(notes), question=record["question"]), record["options"]


QUESTIONS = [
    {
        "id": f"q{i}",
        "question": f"How do I keep {what} through the winter?",
        "narrative": f"My {what} died last year in the frost. I have a cold shed, no heating, and little time.",
        "category": "gardening",
        "profile": [],
        "rubric_aspects": [
            {"aspect": "Frost", "evidence": "died last year in the frost", "reason": "It is what went wrong."},
            {"aspect": "No heating", "evidence": "a cold shed, no heating", "reason": "Heaters are out."},
            {"aspect": "Little time", "evidence": "little time", "reason": "Daily care is out."},
        ],
    }
    for i, what in enumerate(["dahlias", "a lemon tree in a pot"])
]
ANSWER = "Dig them up before the frost, dry them for a day, and keep them dark in sand. Look in on them once a month. "


@pytest.mark.engine
def test_vllms_verdicts_equal_those_of_transformers(tmp_path):
    inputs, output = write(tmp_path / "in.json", QUESTIONS), tmp_path / "scores.json"
    answers = write(tmp_path / "a.json", {one["id"]: [{"output": ANSWER * (3 + i)}] for i, one in enumerate(QUESTIONS)})
    command = [sys.executable, "evaluate_responses.py", "--evaluator_llm", CHAT, "--inputs_addr", inputs]
    command += ["--response_addr", answers, "--score_addr", output, "--verdicts", "probability", "--dtype", "float32"]
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stderr
    entries = json.loads(output.read_text())["per_question_scores"]
    found = [detail for entry in entries for detail in entry["details"]]
    for detail, expected in zip(found, reference_verdicts(), strict=True):
        inside = sum(expected)
        shares = [one / inside for one in expected]
        assert list(detail["probabilities"].values()) == pytest.approx(shares, abs=1e-3)
        assert detail["outside"] == pytest.approx(1 - inside, abs=1e-3)
        assert detail["score"] == pytest.approx(shares[1] + 2 * shares[2], abs=1e-3)
    assert read_manifest(output)["tokens"]["cached_tokens"] > 0


def reference_verdicts():
    """Return how likely 0, 1 and 2 are as each aspect's verdict, by transformers in fp32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from prompts import load_prompt

    tokenizer = AutoTokenizer.from_pretrained(CHAT)
    model = AutoModelForCausalLM.from_pretrained(CHAT, dtype=torch.float32).eval()
    prompt = load_prompt("lampqa/aspect_judge")
    for i, record in enumerate(QUESTIONS):
        for aspect in record["rubric_aspects"]:
            shown = {"question": record["question"], "details": record["narrative"], "response": ANSWER * (3 + i)}
            text = tokenizer.apply_chat_template(
                prompt.messages(**shown, **aspect), add_generation_prompt=True, tokenize=False
            )
            *ids, _ = whole = tokenizer.encode(text + '{"match_score": 0', add_special_tokens=False)
            numbers = [tokenizer.encode(f'{text}{{"match_score": {n}', add_special_tokens=False) for n in range(3)]
            assert all(one[:-1] == ids for one in numbers) and numbers[0] == whole
            with torch.inference_mode():
                logits = model(torch.tensor([ids]), logits_to_keep=1).logits[0, -1]
            yield [logits.softmax(-1)[one[-1]].item() for one in numbers]
