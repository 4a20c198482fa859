"""Scripts on small data, for tests that kill them, fill their disk or damage their files."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiny_chat import save_tiny_chat
from tiny_encoder import save_tiny_encoder
from zygote import ROOT, SECONDS, Run, Zygote

# Late imports of the runs, done once in zygotes. A process with fewer imports forks and ends faster.
ZYGOTES = {
    "api": ("openai.resources.chat", "anyio._backends._asyncio", "bm25s", "retrieval.rankers"),
    "planner": (
        "openai.resources.chat", "anyio._backends._asyncio", "transformers.models.auto.tokenization_auto",
        "transformers.models.auto.configuration_auto", "jinja2.sandbox",
    ),
    "encoder": (
        "transformers.models.auto", "transformers.models.bert.modeling_bert", "retrieval.encoder",
        "retrieval.rankers",
    ),
}  # fmt: skip
NUM_QUESTIONS = 24
UNDER_WAY = 4  # concurrent requests: the maximum cost of a kill

BEFORE, AFTER = "before the first piece", "after the last piece"


class Zygotes(dict):
    """The zygotes by name, each started at its first use."""

    def __init__(self, folder: Path):
        self._folder = folder

    def __missing__(self, name: str) -> Zygote:
        self[name] = Zygote(self._folder, *ZYGOTES[name])
        return self[name]

    def __enter__(self) -> "Zygotes":
        return self

    def __exit__(self, *_: object) -> None:
        for zygote in self.values():
            zygote.close()


@dataclass
class Case:
    """A script with its flags and outputs.

    Attributes:
        stages: the outputs of each stage in order, with the number of pieces that each requests.
        units: the model roles of each stage's pieces, as in the store.
        setup: functions of zygote.py that change a run before it begins.
        zygote: the key in `ZYGOTES` of its parent process.
        asks: whether it sends requests to the API server.
    """

    name: str
    module: str
    arguments: list[str]
    stages: list[dict[Path, int]]
    units: list[str]
    setup: dict[str, Any] = field(default_factory=dict)
    zygote: str = "api"
    asks: bool = True

    @property
    def outputs(self) -> list[Path]:
        return [output for stage in self.stages for output in stage]

    @property
    def folder(self) -> Path:
        """The folder that has only the outputs."""
        return self.outputs[0].parent

    def start(self, zygotes: Zygotes, *more: object, **setup: Any) -> Run:
        return zygotes[self.zygote].start(self.module, [*self.arguments, *more], **self.setup, **setup)

    def start_plain(self) -> subprocess.Popen:
        """Start it as a new process, `python script.py`."""
        return subprocess.Popen(
            [sys.executable, self.module.replace(".", "/") + ".py", *self.arguments],
            cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
        )  # fmt: skip

    def finish(self, zygotes: Zygotes, *more: object) -> None:
        run = self.start(zygotes, *more)
        assert run.wait() == 0, run.errors

    def clear(self) -> None:
        shutil.rmtree(self.folder)
        self.folder.mkdir()

    def stored(self) -> list[dict[str, Any]]:
        """Return the complete lines of the store beside the outputs, without the first line of each file."""
        lines = [line for path in self.folder.glob("*/*/*.jsonl") for line in path.read_bytes().split(b"\n")[:-1]]
        return [its for its in map(json.loads, lines) if int(its["key"], 16)]

    def finished(self) -> dict[str, set[str]]:
        """Return the keys in the store, by unit; none is repeated."""
        stored = self.stored()
        assert len({its["key"] for its in stored}) == len(stored)
        return {unit: {its["key"] for its in stored if its.get("role", unit) == unit} for unit in self.units}

    @property
    def size(self) -> int:
        """The total number of pieces of all outputs."""
        return sum(sum(stage.values()) for stage in self.stages)

    def pieces(self) -> int:
        """The number of pieces with a first try in the store."""
        return sum(self._begun().values())

    def _begun(self) -> Counter:
        return Counter(its.get("role", self.units[0]) for its in self.stored() if its.get("try", 1) == 1)

    def wait_for(self, pieces: int) -> None:
        """Block until a run has this many pieces in its store."""
        end = time.monotonic() + SECONDS
        while self.pieces() < pieces:
            assert time.monotonic() < end, f"{self.name}: {self.pieces()} of {pieces} pieces"
            time.sleep(0.001)

    def place(self) -> str:
        """Return how far a run has come, one of `places`."""
        begun = self._begun()
        if not begun:
            return BEFORE
        for number, (unit, stage) in enumerate(zip(self.units, self.stages, strict=True)):
            if begun[unit] < sum(stage.values()):
                return f"in stage {number}"
        return AFTER

    @property
    def places(self) -> set[str]:
        return {BEFORE, AFTER, *(f"in stage {number}" for number in range(len(self.stages)))}


def manifest_path(output: Path) -> Path:
    return Path(f"{output}.manifest.json")


# The files of a finished run


@dataclass(frozen=True)
class Whole:
    """An uninterrupted run's final files, manifests without the parts that may differ, names of all files, and duration
    in seconds."""

    contents: dict[Path, bytes]
    manifests: dict[Path, dict[str, Any]]
    names: set[str]
    seconds: float


def read_whole(case: Case, seconds: float = 0) -> Whole:
    contents = {output: output.read_bytes() for output in case.outputs}
    manifests = {output: read_manifest(output) for output in case.outputs}
    return Whole(contents, manifests, {path.name for path in case.folder.iterdir()}, seconds)


def read_manifest(output: Path) -> dict[str, Any]:
    """Return a manifest without the figures of its run: duration, remaining work and device.

    Also without the commit, which may change while the tests run.
    """
    manifest = json.loads(manifest_path(output).read_text(encoding="utf-8"))
    for name in ("wall_seconds", "device", "git_commit"):
        del manifest[name]
    manifest.pop("batch_invariant", None)  # ranking has none
    for name in ("texts_embedded", "texts_cut"):
        manifest["counts"].pop(name, None)
    return manifest


def run_whole(case: Case, zygotes: Zygotes) -> Whole:
    """Run a case without interruption, and delete its files."""
    started = time.monotonic()
    case.finish(zygotes)
    whole = read_whole(case, time.monotonic() - started)
    case.clear()
    return whole


def check_whole(case: Case, whole: Whole) -> None:
    """Check that a finished run's files equal those of the uninterrupted one, with nothing left over."""
    assert read_whole(case, whole.seconds) == whole


# The cases


def make_data(folder: Path) -> None:
    """Write a dataset, two systems' responses, an API key, and two models."""
    posts = [{"id": f"p{i}", "text": f"A post about chess {i} — 猫", "category": "law"} for i in range(30)]
    aspects = [{"aspect": f"Aspect {i}", "evidence": "é", "reason": "r"} for i in range(3)]
    records = [
        {
            "id": f"q{i}", "question": f"Why {i} — 猫?", "narrative": "n", "category": "law",
            "rubric_aspects": aspects, "profile": [posts[(7 * i + k) % 30] for k in range(4)],
        }
        for i in range(NUM_QUESTIONS)
    ]  # fmt: skip
    (folder / "data.json").write_text(json.dumps(records), encoding="utf-8")
    for system in ("one", "two"):
        responses = {record["id"]: [{"output": f"{system} {record['id']}"}] for record in records}
        (folder / f"{system}.json").write_text(json.dumps(responses))
    (folder / "key.txt").write_text("sk-test")
    save_tiny_chat(folder / "chat")
    save_tiny_encoder(folder / "encoder")


def make_case(name: str, data: Path, folder: Path, url: str) -> Case:
    """Return a case on `make_data`'s files in `data`; its outputs go to `folder`/out, which is created."""
    (folder / "out").mkdir()
    return CASES[name](name, data, folder / "out", url)


def baselines_case(name: str, data: Path, out: Path, url: str) -> Case:
    output = out / "answers.json"
    words = ["--model_addr", "some-model", "--output_addr", str(output)]
    return api_case(name, "baselines", data, url, [{output: NUM_QUESTIONS}], ["generator"], *words)


def evaluation_case(name: str, data: Path, out: Path, url: str) -> Case:
    outputs = [out / "one_scores.json", out / "two_scores.json"]
    words = ["--evaluator_llm", "some-judge", "--response_addr", f"{data}/one.json", f"{data}/two.json", "--limit", "4"]
    words += ["--score_addr", *map(str, outputs)]
    stages = [dict.fromkeys(outputs, 4 * 3)]  # of 3 aspects each
    return api_case(name, "evaluate_responses", data, url, stages, ["judge"], *words)


def planpers_case(name: str, data: Path, out: Path, url: str) -> Case:
    output = out / "answers.json"
    stages = [{Path(f"{output}.plans.json"): 14}, {output: 14}]
    words = ["--model_addr", "some-model", "--planner_model", f"{data}/chat", "--limit", "14", "--unranked"]
    words += ["--output_addr", str(output), "--max_model_len", "4096", "--max_tokens", "512", "--max_tokens_plan", "64"]
    setup = {"plan_by_server": {"base_url": url, "api_key_addr": f"{data}/key.txt"}}
    more = {"setup": setup, "zygote": "planner"}
    return api_case(name, "planpers", data, url, stages, ["planner", "generator"], *words, **more)


def gold_case(name: str, data: Path, out: Path, url: str) -> Case:
    """Return a case of planpers.py that needs no planner."""
    output = out / "answers.json"
    stages = [{Path(f"{output}.plans.json"): 0, output: NUM_QUESTIONS}]
    words = ["--model_addr", "some-model", "--gold_plan", "--unranked", "--output_addr", str(output)]
    return api_case(name, "planpers", data, url, stages, ["generator"], *words)


def ranking_case(name: str, data: Path, out: Path, url: str) -> Case:
    output = out / "ranked.json"
    words = ["--input_dataset_addr", f"{data}/data.json", "--output_dataset_addr", str(output)]
    more: dict[str, Any] = {"setup": {"take_time": 0.003}}
    if name == "rank_dataset":
        words += ["--model_name", f"{data}/encoder"]
        more = {"setup": {"embed_in_blocks": 12, "take_time": 0.003}, "zygote": "encoder"}
    else:
        words += ["--ranker", "bm25"]
    return Case(name, "retrieval.rank_dataset", words, [{output: NUM_QUESTIONS}], ["orders"], asks=False, **more)


CASES: dict[str, Callable[[str, Path, Path, str], Case]] = {
    "baselines": baselines_case,
    "evaluate_responses": evaluation_case,
    "planpers": planpers_case,
    "planpers gold": gold_case,
    "rank_dataset": ranking_case,
    "rank_dataset bm25": ranking_case,
}


def api_case(
    name: str, module: str, data: Path, url: str, stages: list[dict[Path, int]], units: list[str], *words: str, **more
) -> Case:
    """Return a case of a script that sends requests to the server; `words` names its outputs."""
    shared = ["--inputs_addr", f"{data}/data.json", "--openai", "--api_key_addr", f"{data}/key.txt"]
    shared += ["--base_url", url, "--max_concurrency", str(UNDER_WAY)]
    return Case(name, module, [*shared, *words], stages, units, **more)
