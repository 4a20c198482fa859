"""Answers as files for LaMP's leaderboard and scorers: what they read, what is refused, what never gets there."""

import json
import zipfile
from pathlib import Path

import pytest
from lamp_samples import CONFIGS, LAMP, read_sample

import evaluate_responses
from utils import export_predictions
from utils.benchmarks import tasks
from utils.cli import UserError
from utils.records.originals import read_golds

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
    """Dataset and responses of a task; every answer names its question."""

    def write_sample(name, split="test", answer="an answer to {}: é 漢"):
        records = read_sample(name, split)
        responses = {record["id"]: [{"output": answer.format(record["id"])}, {"output": "x"}] for record in records}
        return write(f"{name}_{split}.json", records), write(f"{name}_{split}_responses.json", responses), responses

    return write_sample


def export(folder, inputs, responses, *more):
    arguments = ["--inputs_addr", *inputs, "--response_addr", *responses, "--output_dir", str(folder), *more]
    return export_predictions.main(arguments)


@pytest.mark.parametrize(("name", "split"), [*((name, "test") for name in [*LAMP, *CONFIGS]), ("LaMP-4", "dev")])
def test_what_is_exported_is_read_as_the_benchmark_s_own_file(name, split, sample, tmp_path, capsys):
    dataset, addr, responses = sample(name, split)
    assert export(tmp_path / "export", [dataset], [addr]) == 0
    path = tmp_path / "export" / f"{name.replace('-', '_')}.json"
    assert capsys.readouterr().out == f"{path}: {len(responses)} answers, 0 of them empty\n"
    assert read_golds(tasks()[name], path) == {key: outputs[0]["output"] for key, outputs in responses.items()}
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content.keys() == {"task", "golds"} and content["task"] == path.stem
    assert all(gold.keys() == {"id", "output"} for gold in content["golds"])
    assert [gold["id"] for gold in content["golds"]] == list(responses)


def test_an_answer_that_is_missing_is_empty_and_counted(sample, write, tmp_path, capsys):
    dataset, _, responses = sample("LaMP-3", "dev")
    first, second, third, *_ = responses
    responses[first], responses[second] = [{"output": None, "reason": "no rating"}], [{"output": " "}]
    del responses[third]
    export(tmp_path, [dataset], [write("gaps.json", responses)])
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'LaMP_3.json'}: 6 answers, 3 of them empty\n"
    assert captured.err.endswith(f"gaps.json: has no response to 1 of the 6 questions: {third!r}\n")
    exported = read_golds(tasks()["LaMP-3"], tmp_path / "LaMP_3.json")
    assert [exported[one] for one in (first, second, third)] == ["", " ", ""]
    assert len(exported) == 6


def test_what_was_selected_by_its_score_says_so_when_it_is_read_again(sample, write, tmp_path, capsys):
    dataset, _, responses = sample("LaMP-4", "dev")
    for number, [first, *_] in enumerate(responses.values()):
        first |= {"sample": 3, "score": 0.5} if number else {"sample": 3}  # a sample alone was not selected
    export(tmp_path, [dataset], [write("best.json", responses)])
    assert capsys.readouterr().out.endswith("0 of them empty, 5 selected by their scores: no fair system's\n")
    flags = ["--inputs_addr", dataset, "--response_addr", tmp_path / "LaMP_4.json", "--score_addr", tmp_path / "s.json"]
    assert evaluate_responses.main(list(map(str, flags))) == 0
    assert json.loads((tmp_path / "s.json").read_text())["num_selected"] == 5


def test_the_right_answers_never_get_there(sample, write, tmp_path):
    for name in ("LaMP-4", "LongLaMP-topic"):
        _, addr, _ = sample(name, "dev")
        records = [record | {"target": "c0ffee", "more": "c0ffee"} for record in read_sample(name)]
        export(tmp_path / "export", [write("marked.json", records)], [addr])
    assert [path for path in (tmp_path / "export").iterdir() if b"c0ffee" in path.read_bytes()] == []


def test_all_seven_make_the_zip_the_same_each_time(sample, tmp_path, capsys):
    datasets, addrs, responses = zip(*map(sample, LAMP), strict=True)
    export(tmp_path / "six", datasets[:6], addrs[:6])
    assert not (tmp_path / "six/LaMP.zip").exists()
    export(tmp_path / "one", datasets, addrs)
    export(tmp_path / "two", datasets[::-1], addrs[::-1])
    assert f"{tmp_path / 'two/LaMP.zip'}: all 7 of them" in capsys.readouterr().out
    assert (tmp_path / "one/LaMP.zip").read_bytes() == (tmp_path / "two/LaMP.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one/LaMP.zip") as archive:
        assert archive.namelist() == [f"LaMP_{number}.json" for number in range(1, 8)]
        archive.extractall(tmp_path / "unpacked")
    for name, its_responses in zip(LAMP, responses, strict=True):
        golds = read_golds(tasks()[name], tmp_path / "unpacked" / f"{name.replace('-', '_')}.json")
        assert golds == {key: outputs[0]["output"] for key, outputs in its_responses.items()}


def test_what_is_refused(sample, write, tmp_path):
    dataset, addr, _ = sample("LaMP-4")
    _, of_dev, _ = sample("LaMP-4", "dev")
    folder = tmp_path / "export"
    with pytest.raises(UserError, match=r"dev_responses\.json: its ids are not the dataset's"):
        export(folder, [dataset], [of_dev])
    with pytest.raises(UserError, match="2 --inputs_addr, 1 --response_addr: give as many of each"):
        export(folder, [dataset, dataset], [addr])
    with pytest.raises(UserError, match=r"LaMP-4_test\.json: of the same task as one before it"):
        export(folder, [dataset, dataset], [addr, addr])
    own = write("LaMP_4.json", read_sample("LaMP-4", "test"))
    with pytest.raises(UserError, match=r"LaMP_4\.json: is an input too"):
        export(tmp_path, [own], [addr])
    lampqa = str(ROOT / "tests/data/mini_lampqa/test.json")
    with pytest.raises(UserError, match=r"test\.json: LaMP-QA has no file for answers but the responses themselves$"):
        export(folder, [lampqa], ["none.json"])
    assert not folder.exists()
    other, *_ = sample("LaMP-5", "dev")
    export(tmp_path, [sample("LaMP-4", "dev")[0]], [of_dev], "--overwrite")
    flags = ["--inputs_addr", other, "--response_addr", tmp_path / "LaMP_4.json", "--score_addr", tmp_path / "s.json"]
    with pytest.raises(UserError, match=r"LaMP_4\.json: answers of task 'LaMP_4', not of LaMP-5"):
        evaluate_responses.main([*map(str, flags), "--allow_partial"])
