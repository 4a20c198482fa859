"""panel_scores.py: verdicts of several judges become a panel's, by hand; tables name the panel."""

import json
from types import SimpleNamespace

import pytest

from utils import make_table, report
from utils.base.errors import UserError
from utils.base.manifest import publish
from utils.panel_scores import main

# Verdicts of three judges on two aspects each of four questions; None: no verdict. The last has no answer.
VERDICTS = {
    "q1": ([2, 0], [2, 1], [1, 1]),
    "q2": ([0, 0], [1, None], [2, None]),
    "q3": ([1, None], [1, None], [1, None]),
    "q4": ([None, None],) * 3,
}
ANSWERED = {"q1", "q2", "q3"}


@pytest.fixture
def panel(tmp_path):
    def write(number, verdicts=VERDICTS, **settings):
        entries = []
        for key, judged in verdicts.items():
            of_judge = judged[number] if key in ANSWERED else [0, 0]
            score = None if None in of_judge else sum(of_judge) / 4
            details = [{"aspect": str(i), "score": value if key in ANSWERED else 0} for i, value in enumerate(of_judge)]
            place = {"id": key, "group": "Society & Culture", "question_sha256": "h", "answered": key in ANSWERED}
            entries.append({**place, "score": score, "details": details, "words": 5})
        content = {"num_unanswered": 1, "num_truncated": 1, "per_question_scores": entries}
        path = tmp_path / f"judge{number}.json"
        made = {"judge": f"sha256:{number}", "responses": "r", "prompt": {}} | settings
        origins = [{"prompt": {}, "constrained_decoding": "auto", "rewarded_by": ["sha256:1"]}]
        publish(path, content, {"settings": made, "arguments": {"evaluator_llm": f"org/J{number}"}, "answers": origins})
        return str(path)

    return write


def run(panel, tmp_path, *more):
    output = tmp_path / "panel.json"
    assert (
        main(["--score_addr", *(panel(i) for i in range(3)), "--output_addr", str(output), "--overwrite", *more]) == 0
    )
    return json.loads(output.read_text()), output


@pytest.mark.parametrize(
    ("merge", "first", "second"),
    [("mean", (5 / 3, 2 / 3), (1, 0)), ("majority", (2, 1), (1, 0)), ("least", (1, 0), (0, 0))],
)
def test_verdicts_are_merged_by_hand(panel, tmp_path, capsys, merge, first, second):
    content, output = run(panel, tmp_path, "--merge", merge)
    entries = {entry["id"]: entry for entry in content["per_question_scores"]}
    assert [detail["score"] for detail in entries["q1"]["details"]] == pytest.approx(first)
    assert [detail["score"] for detail in entries["q2"]["details"]] == pytest.approx(second)
    assert entries["q1"]["score"] == pytest.approx(sum(first) / 4) and entries["q3"]["score"] is None
    assert entries["q2"]["details"][1]["drawn"] == [0, None, None] and entries["q4"]["score"] == 0
    assert (content["num_unanswered"], content["num_truncated"], content["num_unscored"]) == (1, 1, 1)
    printed = capsys.readouterr().out
    assert f"{output}: score " in printed and f"over 3 questions; {merge} of J0 and J1 and J2" in printed
    assert "J0 and J2: weighted kappa " in printed and "Krippendorff's alpha of all judges: " in printed
    assert "differ most: q1 (0.25)" in printed
    shown = report.panel_note(SimpleNamespace(name="Ours", entries=content["per_question_scores"]))
    assert shown == "Ours: the judges' scores differ most on q1 (0.25)."
    assert make_table.main(["--system", "Ours", str(output), "--samples", "all"]) == 0
    table = capsys.readouterr().out
    assert f"Verdicts differ in kind from the paper's: aspect, {merge} of J0 and J1 and J2." in table
    assert "chosen by scores of the same judge that scores it here" in table  # one of the panel


def test_a_panel_shares_no_table_with_one_of_its_judges(panel, tmp_path):
    _, output = run(panel, tmp_path)
    with pytest.raises(UserError, match="judged differently"):
        make_table.main(["--system", "A", str(output), "--system", "B", panel(0)])


@pytest.mark.parametrize(
    ("settings", "verdicts", "told"),
    [
        ({"judge": "sha256:0"}, VERDICTS, "has the same judge as "),
        ({"responses": "other"}, VERDICTS, "has scores of different responses from "),
        ({}, {"q1": VERDICTS["q1"]}, "has different questions from "),
    ],
)
def test_what_is_no_panel_is_refused(panel, tmp_path, settings, verdicts, told):
    files = [panel(0), panel(1, verdicts, **settings)]
    with pytest.raises(UserError, match=told):
        main(["--score_addr", *files, "--output_addr", str(tmp_path / "out.json")])
    with pytest.raises(UserError, match="a panel needs score files of two or more judges"):
        main(["--score_addr", files[0], "--output_addr", str(tmp_path / "out.json")])
    assert not (tmp_path / "out.json").exists()
