"""Every table, figure and report on categories of one's own, on none, and on files with some of each."""

import csv
import io
import json
import re
import warnings
from itertools import chain
from statistics import mean

import pytest

from utils import compare_evaluators, dataset_statistics, make_figures, make_table, report
from utils.base.manifest import file_hash
from utils.benchmarks.task import ALL

PLACES = {  # the questions' categories, and the columns that they give
    "own": (["ice", "ships"], ["ice", "ships"]),
    "one": (["ice"], ["ice"]),
    "none": ([None], []),
    "own and none": (["ice", None], ["ice"]),
    "the paper's and none": (["rpg", "law", None], ["Arts & Entertainment", "Society & Culture"]),
    "all kinds": (["rpg", "ice", None], ["Arts & Entertainment", "ice"]),
}
NUMBER, MACRO = 12, "Average (macro)"
NAN = re.compile(r"\b(nan|None)\b")


class Study:
    """A dataset with 12 questions, and two systems with four samples and their scores."""

    def __init__(self, folder, places):
        self.folder, self.places = folder, [places[i % len(places)] for i in range(NUMBER)]
        aspects = [{"aspect": "cost", "evidence": "e", "reason": "r"}]
        self.records = [
            {"id": f"q{i}", "question": f"Why {i}?", "narrative": "n", "rubric_aspects": aspects, "profile": [],
             **({} if place is None else {"category": place})}
            for i, place in enumerate(self.places)
        ]  # fmt: skip
        self.data = self.write("data.json", self.records)
        samples = {f"q{i}": [{"output": f"Text {number}."} for number in range(4)] for i in range(NUMBER)}
        self.samples = self.write("samples.json", samples)
        self.scores = {name: [self.scored(name, number) for number in range(4)] for name in ("A", "B")}

    def write(self, name, content):
        path = self.folder / name
        path.write_text(json.dumps(content))
        return str(path)

    def value(self, name, number, i):
        return ((i + number + (name == "B")) * 7 // 3) % 3

    def scored(self, name, number, judge=""):
        """Write the scores of samples, from this number on, which a judge read as this system's; return their path."""
        entries = [
            {"id": record["id"], "category": place, "question_sha256": record["id"], "answered": True,
             "score": values[0] / 2, "details": [{"aspect": "cost", "score": values[0]}],
             "samples": [value / 2 for value in values]}
            for record, place, *values in zip(
                self.records, self.places, *(self.values(name, number + i) for i in range(4)), strict=True)
        ]  # fmt: skip
        content = {"score": 0.5, "num_unanswered": 0, "per_question_scores": entries}
        path = self.write(f"{name}{number}{judge}_scores.json", content)
        made = {
            "settings": {"responses": f"{number}" if judge else file_hash(self.samples)},
            "output_sha256": file_hash(path),
        }
        self.write(f"{name}{number}{judge}_scores.json.manifest.json", made)
        return path

    def values(self, name, number):
        return [self.value(name, number, i) for i in range(NUMBER)]

    def systems(self, *more):
        return ["--system", "A", self.scores["A"][0], "--system", "B", self.scores["B"][0], *more]

    def mean_of(self, name, number, places=None):
        """Return a mean score by hand, over questions of these categories, or of all."""
        values = zip(self.values(name, number), self.places, strict=True)
        return mean(value / 2 for value, place in values if places is None or place in places)


@pytest.fixture(params=PLACES)
def study(request, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as a layout that does not fit
        yield Study(tmp_path, PLACES[request.param][0]), *PLACES[request.param]


def expected_means(study, categories, columns, name, number=0):
    """Return a row's means by column, by hand."""
    named = dict(zip(columns, filter(None, categories), strict=True))
    means = {column: study.mean_of(name, number, [place]) for column, place in named.items()}
    means |= {MACRO: mean(means.values())} if len(means) > 1 else {}
    return means | {ALL: study.mean_of(name, number)}


def test_tables(study, capsys):
    files, categories, columns = study
    flags = files.systems("--baseline", "A", "--holm", "--intervals")
    flags += ["--system", "B, seed 1", files.scores["B"][1], "--seeds", "M", "B", "B, seed 1"]
    assert make_table.main([*flags, "--format", "csv"]) == 0
    rows = {row["System"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    for name in ("A", "B"):
        shown = expected_means(files, categories, columns, name)
        for column, value in shown.items():
            assert float(rows[name][column]) == pytest.approx(value), column
        assert int(rows[name]["Questions"]) == NUMBER
    seeds = [expected_means(files, categories, columns, "B", number) for number in range(2)]
    for column in seeds[0]:
        assert float(rows["M"][column]) == pytest.approx(mean(means[column] for means in seeds)), column
    for form in ("markdown", "latex"):
        assert make_table.main([*flags, "--format", form]) == 0
        printed = capsys.readouterr().out
        assert not NAN.search(printed)
        assert all(column.replace("&", r"\&" if form == "latex" else "&") in printed for column in columns)


def test_figures(study, capsys):
    files, _, _ = study
    out = ["--output_addr", str(files.folder / "figure")]
    by_number = [["--system", str(number), files.scores["A"][number]] for number in range(3)]
    kinds = {
        "2": [*chain(*by_number)], "16": [*chain(*by_number)], "3": files.systems(), "groups": files.systems(),
        "5": ["--inputs_addr", files.data],
        "best_of_n": ["--response_addr", files.samples, "--score_addr", files.scores["A"][0],
                      "--system", "Other", files.scores["B"][0]],
    }  # fmt: skip
    for kind, flags in kinds.items():
        assert make_figures.main(["--figure", kind, *flags, *out]) == 0, kind
        assert not NAN.search("".join(capsys.readouterr())), kind


def test_judges(study, capsys):
    files, _, columns = study
    compared = str(files.folder / "ranks.json")
    for kind in ("--systems", "--preferred"):
        words = []
        for judge in ("First", "Second"):
            number = 3 if kind == "--systems" else 2
            words += [kind, judge, *(files.scored("AB"[place % 2], place, judge) for place in range(number))]
        assert compare_evaluators.main([*words, "--output_addr", compared, "--overwrite"]) == 0
        printed = capsys.readouterr().out
        assert not NAN.search(printed)
        assert kind == "--systems" or all(column in printed for column in columns)


def test_report_and_statistics(study, capsys):
    files, categories, columns = study
    page = files.folder / "report.html"
    words = ["--inputs_addr", files.data, "--output_addr", str(page)]
    for name in ("A", "B"):
        words += ["--system", name, files.samples, files.scores[name][0]]
    assert report.main(words) == 0
    index = json.loads(page.read_text().split('id="index">')[1].split("</script>")[0])
    shown = [panel["group"] for panel in index["panels"]]
    assert shown[: len(columns)] == columns and shown[-1] == ALL
    for number, name in enumerate(("A", "B")):
        means = expected_means(files, categories, columns, name)
        drawn = {panel["group"]: panel["points"][number]["mean"] for panel in index["panels"]}
        assert drawn == pytest.approx(means)
    assert sum(row["questions"] for row in index["subgroups"]) == NUMBER
    assert dataset_statistics.main(["--inputs_addr", files.data]) == 0
    assert not NAN.search(capsys.readouterr().out)
