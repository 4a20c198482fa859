"""A dataset read one record at a time: the same records and errors as when read at once, in little memory."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from utils.base.errors import UserError
from utils.base.writing import write_array
from utils.data.datasets import DatasetFile, read_dataset, read_questions

ROOT = Path(__file__).resolve().parents[2]
# Not resource.getrusage, whose peak includes that of the parent process.
PRINT_PEAK = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
RANK = f"import sys; from retrieval.rank_dataset import main; main(sys.argv[1:]); {PRINT_PEAK}"
LETTERS = 'aé漢😀\u2028\x85"\\\n\t}],[{ '  # of one to four bytes, and those that look like the end of a record


def make_records(number, seed=0):
    rng = random.Random(seed)
    texts = iter(lambda: "".join(rng.choices(LETTERS, k=rng.randrange(1, 30))) + ".", None)
    return [
        {"id": n if n % 3 == 0 else f"q{n}", "question": next(texts), "profile": [{"text": next(texts)}] * (n % 3)}
        for n in range(number)
    ]


def as_array(indent, bom=False, ascii_only=True):
    def write(path, records):
        text = json.dumps(records, indent=indent, ensure_ascii=ascii_only)
        path.write_text(text, encoding="utf-8-sig" if bom else "utf-8")

    return write


def as_lines(newline, bom=False):
    def write(path, records):
        text = newline.join(json.dumps(record, ensure_ascii=False) for record in records)
        path.write_bytes((newline + text).encode("utf-8-sig" if bom else "utf-8"))

    return write


@pytest.mark.parametrize("chunk", [3, 1 << 20])
@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("d.json", as_array(None)),
        ("d.json", as_array(4, ascii_only=False)),
        ("d.json", as_array(2, bom=True, ascii_only=False)),
        ("d.jsonl", as_lines("\n")),
        ("d.jsonl", as_lines("\r\n", bom=True)),
    ],
)
def test_each_record_is_found_again(tmp_path, monkeypatch, name, write, chunk):
    monkeypatch.setattr("utils.data.datasets.CHUNK", chunk)
    write(tmp_path / name, make_records(20))
    dataset = DatasetFile(tmp_path / name)
    scanned = [dict(record) for record in dataset.scan(["profile"])]
    assert scanned == read_dataset(tmp_path / name, ["profile"])
    assert len(dataset) == 20
    assert dataset.ids[:4] == ["0", "q1", "q2", "3"]
    order = random.Random(1).sample(range(20), 20)
    assert [dataset[number] for number in order] == [scanned[number] for number in order]


@pytest.mark.parametrize("change", ["shorter", "another record there", "another profile", "gone"])
def test_a_file_that_is_changed_meanwhile_is_refused(tmp_path, change):
    path = tmp_path / "d.json"
    as_array(None)(path, make_records(9))
    dataset = DatasetFile(path)
    list(dataset.scan())
    if change == "shorter":
        path.write_text("[]")
    elif change == "gone":
        path.unlink()
    elif change == "another profile":  # of the same length, in a file that replaces this one
        path.with_name("new").write_text(path.read_text().replace('"text"', '"next"'))
        path.with_name("new").replace(path)
    else:
        path.write_text(path.read_text().replace('"q8"', '"x8"'))
    with pytest.raises(UserError, match="changed while it was read"):
        dataset[8]


@pytest.mark.parametrize("indent", [2, 4])
def test_an_array_is_written_as_json_writes_it(tmp_path, indent):
    records = [*make_records(5), [], {}, "a\nb", None]
    assert write_array(tmp_path / "a.json", iter(records), indent) == 9
    assert (tmp_path / "a.json").read_text() == json.dumps(records, ensure_ascii=False, indent=indent) + "\n"


def peak_of(code: str, *arguments: str | Path) -> int:
    """Return a program's peak memory in MB, including the interpreter."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1]) // 1000


def test_ranking_takes_no_more_memory_for_a_larger_file(tmp_path):
    posts = [{"id": str(n), "text": f"{n} " + "lorem ipsum " * 80} for n in range(100)]
    peaks = []
    for number in (10, 800):  # 1 and 78 MB
        source = tmp_path / f"{number}.json"
        write_array(source, ({"id": str(n), "question": "why?", "profile": posts} for n in range(number)), 1)
        output = tmp_path / f"ranked_{number}.json"
        options = ["--input_dataset_addr", source, "--output_dataset_addr", output, "--ranker", "random"]
        peaks.append(peak_of(RANK, *options))
    assert (tmp_path / "800.json").stat().st_size > 75e6
    assert peaks[1] < peaks[0] + 30


def test_a_step_holds_of_profiles_what_it_uses(tmp_path):
    path = tmp_path / "data.json"
    items = [{"id": f"p{number}", "text": "A post"} for number in range(5)]
    question = {"question": "Why?", "narrative": "n", "profile": items}
    path.write_text(json.dumps([{"id": "q0", **question}, {"id": "q1", **question}]))
    for needs, number, kept in ((["profile"], 2, 2), (["profile"], None, 5), ([], None, 0), (["narrative"], None, 0)):
        records = read_questions(path, needs, number)
        assert [record["profile"] for record in records] == [items[:kept]] * 2
        assert [record["id"] for record in records] == ["q0", "q1"]
    path.write_text(json.dumps([{"id": "q0", "question": "Why?", "profile": [*items, {"id": "p5"}]}]))
    with pytest.raises(UserError, match=r"record 0 \(id 'q0'\): field 'profile\[5\]': Object missing"):
        read_questions(path, ["profile"], 2)  # skipped records are checked too
