"""The real vLLM on this machine (no GPU needed) and the real openai client, through the real scripts.

The model is the demo's, made by `make models`. A run that starts vLLM like a user's takes half a minute, so each test
checks everything its run shows. Tests of answers alone fork a process that has imported vllm.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tiny_chat import save_tiny_chat

from utils.base.manifest import read_manifest
from utils.models.devices import has_bf16

ROOT = Path(__file__).resolve().parents[2]
CHAT = ROOT / "demo/models/chat"
SAMPLE = ROOT / "tests/data/mini_lampqa/test.json"

pytestmark = pytest.mark.engine


def run(*command: str | Path, **more) -> subprocess.CompletedProcess:
    assert (CHAT / "config.json").exists(), "the demo's models are missing: run `make models`"
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=3600, **more
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def free_run(tmp_path_factory):
    """Three answers by the demo's model, two samples each, free-form first."""
    output = tmp_path_factory.mktemp("free") / "answers.json"
    done = run(
        "baselines.py", "--model_addr", CHAT, "--inputs_addr", SAMPLE, "--output_addr", output,
        "--limit", "3", "--num_generated_outputs", "2", "--max_tokens", "48", "--max_retries", "1",
        "--rag", "--unranked",
    )  # fmt: skip
    return output, done


def test_a_users_first_run(free_run):
    """Answers in the dataset's order; stderr has the project's own lines only; a manifest."""
    output, done = free_run
    answers = json.loads(output.read_text())
    assert list(answers) == [record["id"] for record in json.loads(SAMPLE.read_text())[:3]]
    assert [len(samples) for samples in answers.values()] == [2] * 3
    for answer in (answer for samples in answers.values() for answer in samples):
        assert answer["output"] and 0 < answer["completion_tokens"] <= 48 * answer["attempts"]
        assert answer["constrained"] == (answer["attempts"] == 2)  # the last try is held to the schema
    dtype = "bfloat16" if has_bf16() else "float32"
    phases = [f"loading the tokenizer of {CHAT}", f"loading {CHAT} (this may take a minute or more)"]
    phases += [f"loaded on CPU, {len(os.sched_getaffinity(0))} cores, {dtype}", "closing the engine"]
    said = [line for line in done.stderr.splitlines() if ": not ranked: it has no manifest" not in line]
    assert [line for line in said if "/6 answers" not in line] == phases, done.stderr
    manifest = read_manifest(output)
    assert manifest["settings"]["model"].startswith("sha256:") and manifest["device"].endswith(f" cores, {dtype}")
    assert manifest["tokens"]["prompt_tokens"] > manifest["tokens"]["cached_tokens"] > 0


def test_constrained_verdicts_take_one_try_and_share_their_prompts(free_run, warm_engine, tmp_path):
    responses, _ = free_run
    scores = tmp_path / "scores.json"
    arguments = [
        "--evaluator_llm", CHAT, "--inputs_addr", SAMPLE, "--response_addr", responses, "--score_addr", scores,
        "--limit", "3", "--constrained_decoding", "always", "--max_tokens", "16",
    ]  # fmt: skip
    done = warm_engine.run("evaluate_responses", arguments, look_at_models=None)
    assert done.returncode == 0, done.errors
    result = json.loads(scores.read_text())
    details = [detail for entry in result["per_question_scores"] for detail in entry["details"]]
    assert result["num_unscored"] == 0 and len(details) == 5 + 5 + 6
    assert all(detail["attempts"] == 1 and detail["score"] in (0, 1, 2) for detail in details)
    assert result["partial"] == {"questions_in_dataset": 13, "questions_judged": 3}
    manifest = json.loads(Path(f"{scores}.manifest.json").read_text())
    assert manifest["batch_invariant"] is False
    tokens = manifest["tokens"]
    # 16 prompts share 3 responses: all but the aspect (the last 15% or so) comes from the cache for 13 of them.
    assert tokens["cached_tokens"] > 0.5 * tokens["prompt_tokens"]


def test_a_damaged_folder_is_named_in_the_last_line(warm_engine, tmp_path):
    path = save_tiny_chat(tmp_path / "model") / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hidden_size": 192}))
    words = ["--model_addr", tmp_path / "model", "--max_tokens", "8", "--inputs_addr", SAMPLE, "--limit", "1"]
    done = warm_engine.run("baselines.py", [*words, "--output_addr", tmp_path / "a.json"])
    said = "its weights do not match its config.json: model."
    assert done.returncode == 2 and done.errors.splitlines()[-1].startswith(f"error: {tmp_path}/model: {said}")
    assert not (tmp_path / "a.json").exists()


def save_on_embeddings(folder):
    """An adapter on the embeddings, which vLLM does not serve for Qwen 2."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = save_tiny_chat(folder / "base")
    model = AutoModelForCausalLM.from_pretrained(base)
    config = LoraConfig(r=8, target_modules=["q_proj", "embed_tokens"], task_type="CAUSAL_LM")
    get_peft_model(model, config).save_pretrained(folder / "model")
    return []


def save_long(folder):
    """A model whose longest sequence is longer than the KV cache."""
    save_tiny_chat(folder / "model", max_positions=2**22)
    return ["--max_model_len", 2**22]


@pytest.mark.parametrize(
    ("make", "said"), [(save_on_embeddings, "ValueError: While loading "), (save_long, "ValueError: To serve at least")]
)
def test_an_engine_that_dies_says_why_in_two_lines(warm_engine, tmp_path, make, said):
    """At its first request, or at its start."""
    model = ["--model_addr", tmp_path / "model", "--max_tokens", "8", *map(str, make(tmp_path))]
    files = ["--inputs_addr", SAMPLE, "--output_addr", tmp_path / "a.json", "--limit", "3"]
    done = warm_engine.run("baselines.py", [*model, *files])
    *_, error, remedy = done.errors.splitlines()
    assert done.returncode == 1 and error.startswith(f"error: vLLM's engine process died: {said}"), done.errors
    assert "run the same command again to resume" in remedy and "Traceback" not in done.printed + done.errors


def test_two_engines_write_what_one_writes(warm_engine, tmp_path):
    """Greedy in fp32, where the rest of the batch changes the rounding of log-probabilities, but not the text."""
    texts = []
    for engines in (1, 2):
        output = tmp_path / f"{engines}.json"
        arguments = [
            "--model_addr", CHAT, "--inputs_addr", SAMPLE, "--output_addr", output, "--limit", "4",
            "--temperature", "0", "--dtype", "float32", "--max_tokens", "24", "--data_parallel_size", engines,
        ]  # fmt: skip
        done = warm_engine.run("baselines", arguments, look_at_models=None)
        assert done.returncode == 0 and "interrupted" not in done.errors, done.errors
        texts.append([samples[0]["output"] for samples in json.loads(output.read_text()).values()])
    assert texts[0] == texts[1] and all(texts[0])


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_engine_behind(warm_engine, tmp_path, ending):
    """An engine that outlives its script would keep the GPU's memory from the next run."""
    words = ["--model_addr", CHAT, "--inputs_addr", SAMPLE, "--output_addr", tmp_path / "answers.json"]
    words += ["--max_tokens", "400", "--data_parallel_size", "2"]
    script = warm_engine.start("baselines", words, look_at_models=None, do="import os; os.setsid()")
    wait_for(lambda: len(engine_processes(script.pid)) >= 2, 600)
    engines = engine_processes(script.pid)
    # SIGTERM to the whole process group, like a scheduler's. Only the script must react.
    (os.killpg if ending == signal.SIGTERM else os.kill)(script.pid, ending)
    assert script.wait() == (130 if ending == signal.SIGTERM else -ending)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in engines), 600)
    if ending == signal.SIGTERM:
        assert script.errors.endswith("run the same command again to resume\n") and "Traceback" not in script.errors
        assert script.errors.count("interrupted") == 1  # by the script alone


def wait_for(condition, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def engine_processes(pid: int) -> list[int]:
    """Return the processes below `pid` with the names of vLLM's (engine core, worker)."""
    import psutil

    engines = []
    for child in psutil.Process(pid).children(recursive=True):
        # A short-lived child (a compiler, say) may be gone before its name is read.
        with contextlib.suppress(psutil.NoSuchProcess):
            if "VLLM::" in " ".join(child.cmdline()):
                engines.append(child.pid)
    return engines


SWITCH = "{% if add_generation_prompt and enable_thinking is defined %}<think></think>{% endif %}"
OFF = '{"enable_thinking": false}'


@pytest.fixture(scope="module")
def switched(tmp_path_factory):
    """The demo's model with a variable in its chat template, and sampling settings."""
    folder = shutil.copytree(CHAT, tmp_path_factory.mktemp("models") / "switched")
    template, sampling = folder / "chat_template.jinja", folder / "generation_config.json"
    template.write_text(template.read_text() + SWITCH)
    sampling.write_text(json.dumps({**json.loads(sampling.read_text()), "temperature": 0.6, "top_k": 20}))
    return folder


def check_variable(plain, told, folder):
    """Another engine counts the tokens, and another template ends the prompt."""
    from transformers import AutoTokenizer

    more = len(AutoTokenizer.from_pretrained(folder)("<think></think>")["input_ids"])
    assert [one["prompt_tokens"] + more for one in plain] == [one["prompt_tokens"] for one in told]


@pytest.mark.long
def test_vllms_own_server_behind_the_openai_client(switched, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OPENAI_API_KEY": "secret-1234",
    }  # fmt: skip
    server = subprocess.Popen(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(switched),
         "--served-model-name", "demo", "--host", "127.0.0.1", "--port", str(port),
         "--enforce-eager", "--max-model-len", "4096"],
        cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(lambda: is_up(f"http://127.0.0.1:{port}/health", server), 600)
        output, told = tmp_path / "answers.json", tmp_path / "told.json"
        flags = ["--model_addr", "demo", "--openai", "--base_url", f"http://127.0.0.1:{port}/v1", "--limit", "2",
                 "--inputs_addr", SAMPLE, "--max_tokens", "32", "--constrained_decoding", "always"]  # fmt: skip
        done = run("baselines.py", *flags, "--output_addr", output, env=environment)
        more = ["--top_k", "5", "--min_p", "0.1", "--presence_penalty", "1", "--chat_template_kwargs", OFF]
        run("baselines.py", *flags, *more, "--extra_body", '{"repetition_penalty": 1.1}', "--output_addr", told,
            env=environment)  # fmt: skip
    finally:
        server.terminate()
        server.wait()
    answers = json.loads(output.read_text())
    assert len(answers) == 2 and all(samples[0]["output"] for samples in answers.values())
    fingerprint = json.loads((tmp_path / "answers.json.manifest.json").read_text())["settings"]
    assert fingerprint["model"] == f"demo ({switched})"
    check_variable(*([one for [one] in json.loads(path.read_text()).values()] for path in (output, told)), switched)
    assert read_manifest(told)["refused_parameters"] == {}
    written = done.stdout + done.stderr + "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "secret-1234" not in written


def is_up(url: str, server: subprocess.Popen) -> bool:
    assert server.poll() is None, "vLLM's server does not start"
    try:
        urllib.request.urlopen(url, timeout=600).close()
    except OSError:
        return False
    return True
