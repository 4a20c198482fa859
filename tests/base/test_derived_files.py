"""The overwrite rule for tables, comparisons, reports and figures, for every script that writes one."""

import errno
import hashlib
import importlib
import json
import os
from pathlib import Path

import pytest

from utils.base import made
from utils.base.errors import UserError
from utils.base.made import State, derived
from utils.base.manifest import describe_run, manifest_of, publish, read_manifest

SAMPLE = Path(__file__).parents[1] / "data/mini_lampqa"
NOT_OURS = (
    "exists, and was not written by this script or was changed since\n  choose another output, or add --overwrite to "
)
SYSTEMS = "--system RAG rag_scores.json --system Plan plan_scores.json"
COMMANDS = {  # what is written, and by what
    "t.md": f"make_table {SYSTEMS} --output_addr t.md",
    "c.json": "compare_evaluators --human_addr human.json --evaluator Aspects plan_scores.json rag_scores.json "
    "--output_addr c.json",
    "r.html": "report --inputs_addr data.json --system RAG rag.json rag_scores.json --output_addr r.html",
    "f.png": f"make_figures --figure 3 {SYSTEMS} --output_addr f",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """All inputs of the commands: three questions with different answers."""
    monkeypatch.chdir(tmp_path)
    everything = json.loads((SAMPLE / "test.json").read_text(encoding="utf-8"))
    records = list({record["category"]: record for record in everything}.values())
    write("data.json", records)
    for name, verdict in (("rag", 0), ("plan", 2)):
        write(f"{name}.json", {record["id"]: [{"output": "An answer."}] for record in records})
        write(
            f"{name}_scores.json", {"num_unanswered": 0, "per_question_scores": [judged(r, verdict) for r in records]}
        )
    write("plans.json", {record["id"]: [{"aspects": ["cost"]}] for record in records})
    write("human.json", {record["id"]: "first" for record in records})
    return tmp_path


def write(name, content):
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(json.dumps(content), encoding="utf-8")


def judged(record, verdict):
    details = [{"aspect": aspect["aspect"], "score": verdict} for aspect in record["rubric_aspects"]]
    entry = {"id": record["id"], "category": record["category"], "question_sha256": record["id"]}
    return {**entry, "answered": True, "score": verdict / 2, "details": details}


def run(name, *flags):
    script, *words = [*COMMANDS[name].split(), *flags]
    return importlib.import_module(f"utils.{script}").main(words)


def refusal(name):
    with pytest.raises(UserError) as refused:
        run(name)
    return str(refused.value)


def snapshot(folder):
    """Return every file with its inode and content."""
    return {path: (path.stat().st_ino, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_script_replaces_its_own_files(folder, name):
    """With the same command, and again after its inputs changed."""
    assert run(name) == 0
    first, inode = Path(name).read_bytes(), Path(name).stat().st_ino
    assert run(name) == 0
    assert Path(name).read_bytes() == first and Path(name).stat().st_ino != inode  # renamed, not written into
    for path in ("rag_scores.json", "human.json", "plans.json", "data.json"):
        text = Path(path).read_text(encoding="utf-8")
        changed = text.replace('"score": 0', '"score": 1').replace('"score": 0.0', '"score": 0.5')
        changed = changed.replace('"first"', '"tie"').replace("cost", "price")
        Path(path).write_text(changed.replace('"score": 1.0', '"score": 0.5'), encoding="utf-8")
    assert run(name) == 0
    assert Path(name).read_bytes() != first
    assert read_manifest(name)["output_sha256"] == hashlib.sha256(Path(name).read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("name", "how"),
    [*((name, "own") for name in COMMANDS), *(("t.md", how) for how in ("edited", "another script's", "no manifest"))],
)
def test_other_files_are_refused_and_replaced_with_overwrite(folder, name, how, capsys):
    """A user's own file, a file changed by hand, and another script's file."""
    path = Path(name)
    if how == "own":
        path.write_text("my own notes")
    elif how == "another script's":
        publish(path, {"a": 1}, describe_run({}, {"script": "utils/download_datasets.py"}, None))
    else:
        run(name)
        if how == "edited":
            path.write_bytes(path.read_bytes() + b"\n")
        else:
            Path(f"{name}.manifest.json").unlink()
    before = snapshot(folder)
    capsys.readouterr()
    assert refusal(name).startswith(f"{name}: {NOT_OURS}")
    assert snapshot(folder) == before and capsys.readouterr().out == ""
    assert run(name, "--overwrite") == run(name) == 0
    assert derived(path, read_manifest(path)["settings"]["script"]).state is not State.FOREIGN


def test_a_full_disk_leaves_each_file_of_a_figure_whole(folder, monkeypatch):
    """The first file is replaced, the second one is not; the next run replaces both."""
    run("f.png")
    Path("rag_scores.json").write_bytes(Path("plan_scores.json").read_bytes())
    before, whole = snapshot(folder), made.open_whole
    first, second = folder / "f.png", folder / "f.pdf"

    def full(path, mode):
        if second.name in path.name:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return whole(path, mode)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(made, "open_whole", full)
        run("f.png")
    after = snapshot(folder)
    assert after.keys() == before.keys() and after[second] == before[second] and after[first] != before[first]
    assert manifest_of(first) and manifest_of(second)
    assert run("f.png") == 0 and snapshot(folder)[second] != before[second]


def test_the_next_run_replaces_what_a_run_that_died_before_the_renaming_left(folder):
    """Again and again: the file is the first run's, the manifest the last one's."""
    run("t.md")
    older, names, rename = Path("t.md").read_bytes(), snapshot(folder).keys(), os.replace
    for name in ("plan", "rag"):
        Path("rag_scores.json").write_bytes(Path(f"{name}_scores.json").read_bytes())
        if child := os.fork():
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        else:
            os.replace = lambda staged, path: os._exit(9) if Path(path).name == "t.md" else rename(staged, path)
            run("t.md")
        assert Path("t.md").read_bytes() == older and len(list(folder.glob("t.md.*.tmp"))) == 1
        assert derived("t.md", "utils/make_table.py").state is State.STALE and manifest_of("t.md") is None
    assert run("t.md") == 0
    assert Path("t.md").read_bytes() != older and manifest_of("t.md") and snapshot(folder).keys() == names
