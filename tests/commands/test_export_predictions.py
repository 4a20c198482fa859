"""Answers as files for LaMP's leaderboard and scorers."""

import json
from pathlib import Path

import pytest
from lamp_samples import read_sample

import evaluate_responses
from utils import export_predictions
from utils.base.errors import UserError
from utils.benchmarks import tasks
from utils.data.originals import read_golds

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def write(tmp_path):
    """Write a file of JSON and return its name."""

    def write_json(name, content):
        path = tmp_path / name
        path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        return str(path)

    return write_json


@pytest.fixture
def sample(write):
    """Return dataset and responses of a task; every answer names its question."""

    def write_sample(name, split="test", answer="an answer to {}: é 漢"):
        records = read_sample(name, split)
        responses = {record["id"]: [{"output": answer.format(record["id"])}, {"output": "x"}] for record in records}
        return write(f"{name}_{split}.json", records), write(f"{name}_{split}_responses.json", responses), responses

    return write_sample


def export(folder, inputs, responses, *more):
    arguments = ["--inputs_addr", *inputs, "--response_addr", *responses, "--output_dir", str(folder), *more]
    return export_predictions.main(arguments)


@pytest.mark.parametrize(("name", "split"), [(name, "test") for name in ("LaMP-1", "LaMP-4", "LongLaMP-topic")])
def test_an_export_is_read_like_the_benchmarks_own_file(name, split, sample, tmp_path, capsys, write):
    dataset, addr, responses = sample(name, split)
    marked = write("marked.json", [record | {"target": "c0ffee", "more": "c0ffee"} for record in read(dataset)])
    assert export(tmp_path / "export", [marked], [addr]) == 0
    path = tmp_path / "export" / f"{name.replace('-', '_')}.json"
    assert capsys.readouterr().out == f"{path}: {len(responses)} answers, 0 of them empty\n"
    assert read_golds(tasks()[name], path) == {key: outputs[0]["output"] for key, outputs in responses.items()}
    content = read(path)
    assert content.keys() == {"task", "golds"} and content["task"] == path.stem
    assert all(gold.keys() == {"id", "output"} for gold in content["golds"])
    assert [gold["id"] for gold in content["golds"]] == list(responses)
    # The export never has the right answers.
    assert [path for path in (tmp_path / "export").iterdir() if b"c0ffee" in path.read_bytes()] == []


def read(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def test_invalid_input_is_refused(sample, write, tmp_path):
    dataset, addr, _ = sample("LaMP-4")
    _, of_dev, _ = sample("LaMP-4", "dev")
    folder = tmp_path / "export"
    lampqa = str(ROOT / "tests/data/mini_lampqa/test.json")
    own = write("LaMP_4.json", read_sample("LaMP-4", "test"))
    for where, inputs, responses, told in (
        (folder, [dataset], [of_dev], r"dev_responses\.json: its ids do not match the dataset"),
        (folder, [dataset, dataset], [addr], "2 --inputs_addr, 1 --response_addr: pass the same number of each"),
        (folder, [dataset, dataset], [addr, addr], r"LaMP-4_test\.json: has the same task as an earlier file"),
        (tmp_path, [own], [addr], r"LaMP_4\.json: is also an input"),
        (folder, [lampqa], ["none.json"], r"test\.json: LaMP-QA has no format for predictions; use the response"),
    ):
        with pytest.raises(UserError, match=told):
            export(where, inputs, responses)
    assert not folder.exists()


def test_a_missing_answer_is_exported_empty_and_counted(sample, write, tmp_path, capsys):
    dataset, _, responses = sample("LaMP-3", "dev")
    first, second, third, *_ = responses
    responses[first], responses[second] = [{"output": None, "reason": "no rating"}], [{"output": " "}]
    del responses[third]
    export(tmp_path, [dataset], [write("gaps.json", responses)])
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'LaMP_3.json'}: 6 answers, 3 of them empty\n"
    assert captured.err.endswith(f"gaps.json: no response to 1 of 6 questions, exported as empty: {third!r}\n")
    exported = read_golds(tasks()["LaMP-3"], tmp_path / "LaMP_3.json")
    assert [exported[one] for one in (first, second, third)] == ["", " ", ""]
    assert len(exported) == 6


def test_an_export_remembers_that_answers_were_selected(sample, write, tmp_path, capsys):
    dataset, _, responses = sample("LaMP-4", "dev")
    for number, [first, *_] in enumerate(responses.values()):
        first |= {"sample": 3, "score": 0.5} if number else {"sample": 3}  # a sample alone was not selected
    export(tmp_path, [dataset], [write("best.json", responses)])
    assert capsys.readouterr().out.endswith(
        "0 of them empty, 5 selected by their scores, so not comparable with other systems\n"
    )
    flags = ["--inputs_addr", dataset, "--response_addr", tmp_path / "LaMP_4.json", "--score_addr", tmp_path / "s.json"]
    assert evaluate_responses.main(list(map(str, flags))) == 0
    assert json.loads((tmp_path / "s.json").read_text())["num_selected"] == 5
