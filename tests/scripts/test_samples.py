"""--samples all: one file has the scores of all samples, each is judged only once, and a table shows their means."""

import csv
import io
from statistics import fmean

import pytest
from api_server import Reply
from lamp_samples import read_sample
from test_strategies import judging  # noqa: F401

import evaluate_responses
from utils import make_table
from utils.base.errors import UserError

VERDICTS = {"q1": [2, 0, 1], "q2": [1, "-", 2], "q3": ["-", 1], "q4": [2, None, 2]}  # "-": no answer; None: no verdict


@pytest.fixture
def judged(judging):
    """Four questions with samples, and a judge whose verdicts are those of VERDICTS."""
    texts = {f"{key} {n}": verdict for key, row in VERDICTS.items() for n, verdict in enumerate(row)}

    def reply(request):
        [verdict] = [texts[text] for text in texts if f"response:\n{text}\n" in request["messages"][1]["content"]]
        return Reply("no verdict" if verdict is None else f'{{"match_score": {verdict}}}')

    judging.server.reply = reply
    judging.data(1, 2, 3, 4)
    judging.samples = judging.write("samples.json", {
        key: [{"output": None if verdict == "-" else f"{key} {n}"} for n, verdict in enumerate(row)]
        for key, row in VERDICTS.items()
    })  # fmt: skip
    return judging


def test_every_sample_has_its_score_and_is_judged_once(judged, capsys):
    content = judged.run(None, [judged.samples], "--samples", "all", "--max_retries", 0)
    assert {entry["id"]: entry["samples"] for entry in content["per_question_scores"]} == {
        "q1": [1, 0, 0.5], "q2": [0.5, 0, 1], "q3": [0, 0.5], "q4": [1, None, 1]
    }  # fmt: skip
    assert [entry["score"] for entry in content["per_question_scores"]] == [1, 0.5, 0, 1]
    assert [entry.get("unanswered_samples") for entry in content["per_question_scores"]] == [None, 1, 1, None]
    assert (content["score"], content["num_unanswered"], len(judged.server.requests)) == (0.625, 1, 9)
    assert [(entry["words"], entry["sample_words"]) for entry in content["per_question_scores"]][1:3] == [
        (2, [2, None, 2]), (None, [None, 2])
    ]  # fmt: skip
    line = "score 0.6250 over 4 questions; 1 of them without an answer, counted 0; mean of the questions' means over "
    assert f"{line}11 samples 0.5625 (1 without a score, 2 without an answer)" in capsys.readouterr().out
    # Judging only the first samples, or the second ones in a file of their own, sends no further requests.
    first = judged.run(None, [judged.samples], "--max_retries", 0, to="first.json")
    assert (first["score"], "samples" in first["per_question_scores"][0]) == (0.625, False)
    assert "only the first response to each question is judged; --samples all judges" in capsys.readouterr().err
    second = judged.write("second.json", {key: [{"output": f"{key} 1"}] for key in ("q1", "q3", "q4")})
    scores = judged.run(None, [second], "--allow_partial", "--max_retries", 0, to="second_scores.json")
    assert [entry["score"] for entry in scores["per_question_scores"]] == [0, 0.5, None]
    assert len(judged.server.requests) == 9


def test_a_question_is_listed_when_all_its_samples_have_verdicts(judged):
    """The server fails for the first sample of q1 and the last one of q4; the next run asks only for these two."""
    reply, lost = judged.server.reply, ("response:\nq1 0\n", "response:\nq4 2\n")

    def fail(request):
        is_lost = any(text in request["messages"][1]["content"] for text in lost)
        return Reply("Down.", status=500) if is_lost else reply(request)

    judged.server.reply = fail
    flags = ["--samples", "all", "--max_retries", 0]
    content = judged.run(None, [judged.samples], *flags, code=1)
    assert [entry["id"] for entry in content["per_question_scores"]] == ["q2", "q3"]
    assert content["partial"] == {"questions_in_dataset": 4, "questions_judged": 2}
    judged.server.reply, before = reply, len(judged.server.requests)
    content = judged.run(None, [judged.samples], *flags)
    assert [entry["samples"] for entry in content["per_question_scores"]][0::3] == [[1, 0, 0.5], [1, None, 1]]
    assert "partial" not in content and len(judged.server.requests) == before + 2


def test_a_dry_run_counts_equal_samples_once(judged, capsys):
    same = judged.write("same.json", {key: [{"output": "q1 0"}] * 3 for key in ("q1", "q2", "q3", "q4")})
    judged.run(None, [same], "--samples", "all", "--dry_run")
    assert "total: 4 requests" in capsys.readouterr().out


def test_several_verdicts_per_sample(judged):
    """Each verdict is one request, with the seed that it would have if the sample were in a file of its own."""
    flags = ["--num_verdicts", 2, "--temperature", 1, "--max_retries", 0]
    content = judged.run(None, [judged.samples], "--samples", "all", *flags)
    assert [entry["samples"] for entry in content["per_question_scores"]][:2] == [[1, 0, 0.5], [0.5, 0, 1]]
    assert len(judged.server.requests) == 18
    assert len({(str(request["messages"]), request["seed"]) for request in judged.server.requests}) == 18
    third = judged.write("third.json", {key: [{"output": f"{key} 2"}] for key in ("q1", "q2", "q4")})
    judged.run(None, [third], "--allow_partial", *flags, to="third_scores.json")
    assert len(judged.server.requests) == 18


def test_pairwise_refuses_samples(judged):
    with pytest.raises(UserError, match="--samples: pairwise compares the first responses of two systems"):
        judged.run("pairwise", [judged.samples, judged.samples], "--samples", "all")


def test_a_table_over_samples(judged, capsys):
    judged.run(None, [judged.samples], "--samples", "all", "--max_retries", 0)
    judged.run(None, [judged.samples], "--max_retries", 0, to="first.json")
    systems = [("All", judged.folder / "scores.json"), ("First", judged.folder / "first.json")]
    systems = [word for name, path in systems for word in ("--system", name, str(path))]
    capsys.readouterr()
    assert make_table.main([*systems, "--samples", "all", "--format", "csv"]) == 0
    printed = capsys.readouterr()
    every, first = csv.DictReader(io.StringIO(printed.out))
    means = [float(row["Society & Culture"]) for row in (every, first)]
    assert means == pytest.approx([fmean([0.5, 0.5, 0.25, 1]), 0.625])
    assert (every["Questions"], every["Unanswered"], every["Unscored samples"]) == ("4", "0", "1")
    assert "All: the means over 11 samples of 4 questions; 2 of them without an answer, which count 0" in printed.err
    assert "All: 1 sample without a verdict, in 1 question; they are left out of their questions' means" in printed.err
    assert "First: the means over 4 samples of 4 questions; 1 of them without an answer, which count 0" in printed.err
    assert make_table.main([*systems, "--format", "csv"]) == 0
    every, first = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert every["Society & Culture"] == first["Society & Culture"] == "0.625"
    with pytest.raises(UserError, match="--unscored_as_zero: has no effect with --samples all"):
        make_table.main([*systems, "--samples", "all", "--unscored_as_zero"])


def test_rmse_is_not_a_mean_over_questions(judged, capsys):
    records = read_sample("LaMP-3", "dev")[:2]
    responses = judged.write("ratings.json", {record["id"]: [{"output": "1"}, {"output": "3"}] for record in records})
    words = ["--inputs_addr", judged.write("lamp3.json", records), "--strategy", "RMSE", "--samples", "all"]
    words += ["--response_addr", responses, "--score_addr", judged.folder / "rmse.json"]
    assert evaluate_responses.main(list(map(str, words))) == 0 and "mean score" not in capsys.readouterr().err
    with pytest.raises(UserError, match="--samples: RMSE is not a mean over questions"):
        make_table.main(["--system", "A", str(judged.folder / "rmse.json"), "--samples", "all"])
    with pytest.raises(UserError, match="--length: LaMP-3, RMSE is not a mean over questions"):
        make_table.main(["--system", "A", str(judged.folder / "rmse.json"), "--length"])
