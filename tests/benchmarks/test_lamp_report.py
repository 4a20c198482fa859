"""The report on a task with several metrics; its page in Chromium, if installed."""

import pytest
from browser import CHIPS, browser, needs_chromium, open_page  # noqa: F401 (fixtures)
from test_lamp import read_sample, save
from test_report import content

import evaluate_responses
from utils import report
from utils.base.errors import UserError
from utils.benchmarks import tasks

# For the dev sample's six records: a system that is right, and one that is wrong and once silent.
ANSWERS = {"LaMP-3": (None, ["1"] * 5 + [None])}


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


def test_page_content(page_file):
    index, texts = content(page_file)
    assert index["table"]["columns"][1:3] == ["LaMP-3, MAE", "LaMP-3, RMSE"]
    right, _ = index["table"]["rows"]
    assert [(cell["text"], cell["bold"]) for cell in right[1:3]] == [("0.0000", True)] * 2
    assert [panel["limits"] for panel in index["panels"]] == [[0.0, None]] * 2
    missing = index["questions"][5]
    assert missing["failures"] == [[], ["no answer"]] and missing["scores"] == [
        0,
        3,
    ]  # 1 is the farthest from the gold rating 4
    [first, second] = texts[0]["answers"]
    assert (first["level"], [verdict[0] for verdict in first["verdicts"]]) == (True, [0, 0])
    assert list(texts[0]["unseen"]) == ["target"] and len(second["verdicts"]) == 2


@needs_chromium
def test_errors_have_their_own_axis_and_worst_value(page_file, open_page):
    page = open_page(page_file)
    ends = page.run("[...document.querySelectorAll('.panel')].map((one) => [...one.querySelectorAll('.axis text')]"
                    ".map((tick) => Number(tick.textContent)))")  # fmt: skip
    assert ends[0] == ends[1] and max(ends[0]) > 1.5
    page.go(f"#{page.run('questions[5].id')}")
    farthest = "no answer, counts as the rating that is farthest off"
    assert page.run(CHIPS) == [
        ["MAE", "0.00|Right: 0.00", f"no answer|Wrong: {farthest}"],
        ["RMSE", "0.00|Right: 0.00", f"no answer|Wrong: {farthest}"],
    ]
    shown = page.run("$('main').innerText")
    assert "counts 0" not in shown and "judge" not in shown.lower() and page.complaints() == []


def test_datasets_of_two_tasks_are_refused(made, tmp_path):
    other = save(read_sample("LaMP-2"), tmp_path / "other.json")
    with pytest.raises(UserError, match="has records of 'LaMP-3' and 'LaMP-2'; use one file per task"):
        report.main([*made[:2], str(other), *made[2:], "--output_addr", str(tmp_path / "r.html")])
