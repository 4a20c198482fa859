"""Controls against wording: on files with options of given lengths, scores and statistics are the shares by hand."""

import json
from pathlib import Path

import pytest
import test_personamem_v2 as v2
from test_personamem import ROWS, download, save
from test_personamem_scores import PERSONAS, interval_of, run, score, write

from utils import dataset_statistics, make_controls, make_table
from utils.base.errors import UserError
from utils.base.json_files import read_json
from utils.base.manifest import file_hash, publish
from utils.benchmarks.personamem.task import CANONICAL, TYPES

SAMPLE = Path(__file__).resolve().parents[1] / "data/mini_lampqa/test.json"
NAMES = {"longest": "Longest option", "shortest": "Shortest option", "first": "First option"}
# Of question n, by n % 6: the options' lengths, and the right option: the longest, the shortest, or one of two longest.
KINDS = [((10, 12, 30, 14), 2), ((10, 12, 14, 5), 3), ((14, 14, 10, 10), 1)]
KINDS += [*KINDS[:2], ((14, 14, 10, 10), 0)]


def question(number):
    lengths, place = KINDS[number % 6]
    return [letter * length for letter, length in zip("rstu", lengths, strict=True)], place


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder, rows = tmp_path_factory.mktemp("options"), []
    for number, (key, row) in enumerate(ROWS.items()):
        options, place = question(number)
        options = [f"({letter}) {text}" for letter, text in zip("abcd", options, strict=True)]
        right = {"all_options": repr(options), "correct_answer": f"({'abcd'[place]})", "persona_id": PERSONAS[key]}
        rows.append(row | right)
    return download(save(folder / "source", rows), folder)


def score_controls(dataset, folder):
    run(make_controls, "--inputs_addr", dataset, "--output_dir", folder)
    return {name: score(dataset, folder / f"{name}.json", folder / f"{name}_scores.json")["score"] for name in NAMES}


def test_controls_and_statistics_have_the_known_shares(dataset, tmp_path, capsys):
    assert score_controls(dataset, tmp_path) == {"longest": 12 / 24, "shortest": 8 / 24, "first": 4 / 24}
    said = capsys.readouterr().out
    for name, letters in {"longest": "cca", "shortest": "adc", "first": "aaa"}.items():
        outputs = {key: output["output"] for key, [output] in read_json(tmp_path / f"{name}.json").items()}
        assert outputs == {key: letters[number % 3] for number, key in enumerate(ROWS)}
        tied = "" if name == "first" else ", 8 chosen as the first of several options of the same length"
        assert f"{name}.json: 24 answers{tied}\n" in said
    run(dataset_statistics, "--inputs_addr", dataset)
    lines = capsys.readouterr().out.splitlines()
    head = next(place for place, line in enumerate(lines) if line.startswith(f"| {dataset.name} | Questions |"))
    for line, name in zip(lines[head + 2 :], [*TYPES, "All questions"], strict=False):
        rows = [(n % 3, row) for n, row in enumerate(ROWS.values())]
        rows = [(kind, row) for kind, row in rows if name in (CANONICAL[row["question_type"]], "All questions")]
        cells = [name, str(len(rows))]
        for right in (0, 1):
            unique = [{"id": row["question_id"], "score": int(kind == right)} for kind, row in rows if kind < 2]
            share, limits = sum(entry["score"] for entry in unique) / len(unique), interval_of(unique)
            cells += [str(len(unique)), f"{share:.4f}", "[{:.4f}, {:.4f}]".format(*limits) if limits else "–"]
        assert line == f"| {' | '.join(cells)} |"
    assert "only one option has" in lines[head + 11] and "Questions with the same persona_id" in lines[head + 11]
    run(dataset_statistics, "--inputs_addr", dataset, "--format", "latex")
    assert r"& \multicolumn{1}{c}{} & \multicolumn{3}{c}{Longest option} & " in capsys.readouterr().out


def test_version_2(tmp_path, capsys):
    rows = []
    for number, row in enumerate(v2.ROWS):
        options, place = question(number)
        right = options.pop(place)
        rows.append(row | {"correct_answer": right, "incorrect_answers": json.dumps(options)})
    dataset = v2.download(v2.save(tmp_path / "source", rows), tmp_path)
    records, scores = read_json(dataset), score_controls(dataset, tmp_path)
    for name, extreme in {"longest": max, "shortest": min}.items():  # which return the first of several
        right = [record["options"].index(extreme(record["options"], key=len)) for record in records]
        right = [record["target"] == "abcd"[place] for record, place in zip(records, right, strict=True)]
        assert scores[name] == sum(right) / 14 and 5 <= sum(right) <= 9
    capsys.readouterr()
    run(dataset_statistics, "--inputs_addr", dataset)
    said = capsys.readouterr().out
    both, longest, shortest = "| 2 | 0.5000 | [0.0945, 0.9055] ", "| 1 | 1.0000 | ", "| 1 | 0.0000 | "
    for name, cells in zip(v2.TYPES, (both * 2, shortest, longest, both * 2, shortest, longest, both * 2), strict=True):
        assert f"| {name} | 2 {cells}" in said
    assert "| All questions | 14 | 10 | 0.5000 | [" in said


def test_a_table_names_the_best_control_and_counts_none_as_a_system(dataset, tmp_path, capsys):
    score_controls(dataset, tmp_path)
    right = {record["id"]: record["target"] for record in read_json(dataset)[:9]}
    content = {key: [{"output": right.get(key)}] for key in ROWS}
    publish(tmp_path / "whole.json", content, {"settings": {"inputs": file_hash(dataset)}})
    score(dataset, tmp_path / "whole.json", tmp_path / "whole_scores.json")
    names = {**NAMES, "whole": "Whole"}
    systems = [word for key, name in names.items() for word in ("--system", name, tmp_path / f"{key}_scores.json")]
    capsys.readouterr()
    run(make_table, *systems, "--baseline", "Shortest option", "--intervals", "--holm")
    said = capsys.readouterr().out
    best = "the best control, Longest option, has 0.5000; the best system, Whole, 0.3750."
    assert f"- In the column All questions, {best}\n" in said and "**" not in said  # no other system to be better than
    assert "- First option: control; it has neither bold nor daggers, and is compared only as a baseline.\n" in said
    assert "| Whole | Shortest option (control) | All questions | +0.0417 |" in said
    assert "| Longest option (control) |" in said and "(control) | Shortest option" not in said
    run(make_table, *systems[:9])
    assert "best control" not in capsys.readouterr().out


def test_controls_that_cannot_be_made_are_refused(dataset, tmp_path):
    title = write(tmp_path / "title.json", [{"task": "LaMP-5", "id": "1", "question": "x", "profile": []}])
    for words, problem in (
        ([dataset, "--response_addr", dataset], "--response_addr: no effect for PersonaMem-32k; remove"),
        ([SAMPLE], "--response_addr: required for LaMP-QA, whose controls are made from a system's responses"),
        ([title], "title.json: LaMP-5 has no controls: no text that its judge must score highest, and no options"),
    ):
        with pytest.raises(UserError, match=problem):
            run(make_controls, "--output_dir", tmp_path / "out", "--inputs_addr", *words)
