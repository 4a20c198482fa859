"""Disks of clusters: two commands with one output, with and without file locks; and a disk that fails for a while."""

import errno
import json

import pytest
from api_server import serve
from preload import library, start  # noqa: F401 (fixture)
from test_derived_files import SAMPLE, judged, write

from utils.base.manifest import file_hash, read_manifest

pytestmark = pytest.mark.slow
ROUNDS = 5


def commands(kind, folder):
    """Return two commands that write different content to one output, and that output."""
    records = json.loads((SAMPLE / "test.json").read_text(encoding="utf-8"))
    if kind == "rank":
        output = folder / "new/ranked.json"
        words = ["retrieval/rank_dataset.py", "--input_dataset_addr", SAMPLE / "test.json", "--output_dataset_addr"]
        return [[*words, output, "--overwrite", "--ranker", name] for name in ("bm25", "recency")], output
    output = folder / "table.md"
    for name, verdict in (("rag", 0), ("plan", 2)):
        scores = {"num_unanswered": 0, "per_question_scores": [judged(record, verdict) for record in records]}
        write(folder / f"{name}.json", scores)
    words = ["utils/make_table.py", "--system", "Plan", folder / "plan.json", "--output_addr", output, "--system"]
    return [[*words, name, folder / "rag.json"] for name in ("RAG", "Other")], output


@pytest.mark.parametrize("number", [0, errno.ENOSYS])
@pytest.mark.parametrize("kind", ["rank", "table"])
def test_of_two_commands_one_is_refused_or_the_last_one_wins(library, tmp_path, kind, number):
    both, output = commands(kind, tmp_path)
    for _ in range(ROUNDS):
        runs = [start(library, words, FLOCK_ERRNO=number) for words in both]
        errors = [run.communicate()[1] for run in runs]
        for run, error in zip(runs, errors, strict=True):
            assert run.returncode == 0 or (run.returncode == 2 and "is writing it; wait" in error), error
        assert 0 in [run.returncode for run in runs]
        assert read_manifest(output)["output_sha256"] == file_hash(output)
        assert not [path for path in output.parent.iterdir() if path.suffix in (".tmp", ".lock")]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("script", ["rank", "baselines"])
def test_a_disk_that_fails_for_a_while_loses_nothing(library, tmp_path, script, number):
    (tmp_path / "key").write_text("sk-test")
    refused, faults = 0, {"LOST_FOLDER": tmp_path, "LOST_ERRNO": number}
    with serve() as server:
        words = {
            "rank": commands("rank", tmp_path)[0][0],
            "baselines": ["baselines.py", "--openai", "--base_url", server.url, "--api_key_addr", tmp_path / "key",
                          "--model_addr", "m", "--inputs_addr", SAMPLE / "test.json",
                          "--output_addr", tmp_path / "new/answers.json", "--max_concurrency", "1"],
        }[script]  # fmt: skip
        for after in range(0, 40, 2):
            run = start(library, words, **faults, LOST_AFTER=after)
            error = run.communicate()[1]
            if run.returncode == 0:
                break
            refused += 1
            assert run.returncode == 1 and "Traceback" not in error, error
            assert error.endswith("\n  check its disk; finished work is kept, run the same command again to resume\n")
            assert f"error: {tmp_path}/" in error
        assert refused > 5
        again = start(library, words)
        assert again.communicate()[1].count("error") == 0 and again.returncode == 0
        assert len({json.dumps(body) for body in server.requests}) >= len(server.requests) - refused
