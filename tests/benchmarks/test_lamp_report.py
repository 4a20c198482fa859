"""The report over several tasks of one benchmark, each by its metrics; its page in Chromium where that is installed."""

import json
from pathlib import Path

import pytest
from browser import CHIPS, browser, needs_chromium, open_page  # noqa: F401 (fixtures)
from test_lamp import read_sample, save
from test_report import content

import evaluate_responses
from utils import report
from utils.benchmarks import tasks
from utils.cli import UserError
from utils.files.manifest import file_hash

ANSWERS = {  # of the dev sample's six records: by a system that is right, and one that is not and once silent
    "LaMP-2": (None, ["comedy"] * 5 + [None]),
    "LaMP-3": (None, ["1"] * 5 + [None]),
    "LaMP-4": (None, ["A title"] * 5 + [None]),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The report's arguments: datasets, and two systems with answers and scores by every metric."""
    folder = tmp_path_factory.mktemp("tasks")
    inputs, systems = [], {"Right": [], "Wrong": []}
    for name, answers in ANSWERS.items():
        records = read_sample(name)
        dataset = save(records, folder / f"{name}.json")
        inputs.append(str(dataset))
        for system, its in zip(systems, answers, strict=True):
            outputs = its or [record["target"] for record in records]
            pairs = zip(records, outputs, strict=True)
            path = save(
                {record["id"]: [{"output": output}] for record, output in pairs}, folder / f"{system}_{name}.json"
            )
            systems[system].append(str(path))
            for metric in tasks()[name].metric_names(official=False):
                scores = str(folder / f"{system}_{name}_{metric}.json")
                flags = ["--strategy", metric, "--inputs_addr", str(dataset), "--response_addr", str(path)]
                evaluate_responses.main([*flags, "--score_addr", scores])
                systems[system].append(scores)
    words = [word for name, paths in systems.items() for word in ("--system", name, *paths)]
    return ["--inputs_addr", *inputs, *words]


@pytest.fixture(scope="module")
def page_file(made, tmp_path_factory):
    output = tmp_path_factory.mktemp("report") / "report.html"
    assert report.main([*made, "--output_addr", str(output)]) == 0
    return output


def test_what_the_page_holds(page_file):
    index, texts = content(page_file)
    assert index["table"]["columns"][1:7] == [
        *("LaMP-2, accuracy", "LaMP-2, f1", "LaMP-3, MAE", "LaMP-3, RMSE", "LaMP-4, rouge-1", "LaMP-4, rouge-L")
    ]
    right, _ = index["table"]["rows"]
    assert [cell["text"] for cell in right[1:7]] == ["1.0000", "0.4000", "0.0000", "0.0000", "1.0000", "1.0000"]
    assert [cell["bold"] for cell in right[1:7]] == [True] * 6
    assert [panel["error"] for panel in index["panels"]] == [False, False, True, True, False, False]
    assert [question["task"] for question in index["questions"]] == [name for name in ANSWERS for _ in range(6)]
    missing = index["questions"][11]
    assert missing["failures"] == [[], ["no answer"]] and missing["scores"] == [0, 3]  # of the gold 4 the farthest is 1
    [first, second] = texts[0]["answers"]
    assert (first["level"], [verdict[0] for verdict in first["verdicts"]]) == (True, [1, 1])
    assert texts[0]["unseen"] == {"target": "comedy"} and second["verdicts"] == first["verdicts"]


@needs_chromium
def test_errors_have_an_axis_of_their_own_and_their_own_worst(page_file, open_page):
    page = open_page(page_file)
    ends = page.run("[...document.querySelectorAll('.panel')].map((one) => [...one.querySelectorAll('.axis text')]"
                    ".map((tick) => Number(tick.textContent)))")  # fmt: skip
    assert ends[2] == ends[3] and max(ends[2]) > 1.5
    assert ends[0] == ends[1] == ends[4] == ends[5] and max(ends[0]) == 1
    page.go(f"#{page.run('questions[11].id')}")
    farthest = "no answer, counts as the rating that is farthest off"
    assert page.run(CHIPS) == [
        ["MAE", "0.00|Right: 0.00", f"no answer|Wrong: {farthest}"],
        ["RMSE", "0.00|Right: 0.00", f"no answer|Wrong: {farthest}"],
    ]
    shown = page.run("$('main').innerText")
    assert "counts 0" not in shown and "judge" not in shown.lower() and page.complaints() == []


def test_ids_of_two_tasks_are_told_apart_or_refused(made, tmp_path):
    """The samples' tasks have the same ids; what an answer is to, a manifest tells: of the scores, or its own."""
    inputs = made[1:4]
    answers = next(word for word in made if word.endswith("Wrong_LaMP-3.json"))
    words = ["--inputs_addr", *inputs, "--output_addr", str(tmp_path / "r.html"), "--system", "A", answers]
    with pytest.raises(UserError, match=r"Wrong_LaMP-3\.json: its ids are of LaMP-2 and of LaMP-3, and nothing tells"):
        report.main(words)
    copy = tmp_path / "mine.json"
    copy.write_text(json.dumps(json.loads(Path(answers).read_text())))
    (tmp_path / "mine.json.manifest.json").write_text(
        json.dumps({"settings": {"inputs": file_hash(inputs[1])}, "output_sha256": file_hash(copy)})
    )
    assert report.main([*words[:-1], str(copy)]) == 0
    index, texts = content(tmp_path / "r.html")
    told = {question["id"]: bool(text["answers"][0]) for question, text in zip(index["questions"], texts, strict=True)}
    assert told["LaMP-3/20"] and not told["LaMP-2/20"]
