"""evaluate_responses.py with the real openai client and a loopback server."""

import json
import re

import pytest
from api_server import Reply
from test_strategies import judging  # noqa: F401 (a fixture)
from test_strategies import make_question as a_question

from prompts import load_prompt
from utils.base.errors import UserError
from utils.base.manifest import read_manifest
from utils.benchmarks.choices import VERDICT_SCHEMA


def make_question(number, num_aspects=2, **fields):
    """Return a question with aspects titled `1a`, `1b`, ... (number 1), which occur nowhere else."""
    aspects = [
        {"aspect": f"Aspect {number}{letter}", "evidence": f"evidence {number}{letter}", "reason": f"reason {letter}"}
        for letter in "abcdefg"[:num_aspects]
    ]
    return a_question(number, **{"rubric_aspects": aspects, **fields})


def aspect_of(request):
    """Return `1a` for a request about "Aspect 1a"."""
    return re.search(r"\naspect:\nAspect (\w+)\n", request["messages"][1]["content"])[1]


def verdicts(table):
    """Return a judge that gives each aspect its verdict in the table; a text is sent unchanged."""

    def reply(request):
        verdict = table[aspect_of(request)]
        return Reply(verdict if isinstance(verdict, str) else json.dumps({"match_score": verdict}))

    return reply


def respond(questions, **outputs):
    """Write responses: "Response to q1." and so on, or those in `outputs`."""
    return {q["id"]: [{"output": outputs.get(q["id"], f"Response to {q['id']}.")}] for q in questions}


def judge(judging, questions, responses, *more):
    """Judge a system's responses to these questions; return its score file."""
    judging.write("data.json", questions)
    return judging.run(None, [judging.write("responses.json", responses)], *more)


# Scores


def test_scores_follow_algorithm_1(judging, capsys):
    questions = [make_question(1, 3), make_question(2, 2, category="law"), make_question(3), make_question(4, 0)]
    questions += [make_question(5), make_question(6, 1)]
    table = {"1a": 2, "1b": 1, "1c": 0, "2a": 2, "2b": 2, "5a": 2, "5b": "I can't say.", "6a": 0}
    judging.server.reply = verdicts(table)
    responses = respond(questions, q3=" \n", q5="Maybe.", q6="Nothing to the point.")
    responses["q1"][0]["truncated"] = responses["q3"][0]["truncated"] = True  # q3 has no answer to be counted as whole
    scores = judge(judging, questions, responses)

    # q1: (2 + 1 + 0) / (2 * 3) = 0.5, q2: (2 + 2) / (2 * 2) = 1, q6: 0 / 2 = 0;
    # q3 has no response: 0; q5 lacks a verdict: no score; q4 has no aspects: nowhere.
    assert scores["score"] == (0.5 + 1 + 0 + 0) / 4
    assert (scores["num_questions"], scores["num_scored_questions"]) == (5, 4)
    assert (scores["num_unanswered"], scores["num_unscored"]) == (1, 1)
    assert scores["num_truncated"] == 1 and "num_selected" not in scores
    assert scores["score_unscored_as_zero"] == (0.5 + 1 + 0 + 2 / 4 + 0) / 5
    assert scores["questions_without_aspects"] == ["q4"]
    assert "partial" not in scores
    entries = scores["per_question_scores"]
    assert [(entry["id"], entry["score"]) for entry in entries] == [
        ("q1", 0.5), ("q2", 1.0), ("q3", 0.0), ("q4", None), ("q5", None), ("q6", 0.0)
    ]  # fmt: skip
    assert [entry["subgroup"] for entry in entries] == ["history", "law", "history", "history", "history", "history"]
    assert entries[0]["details"] == [
        {"aspect": f"Aspect 1{letter}", "score": verdict, "raw": f'{{"match_score": {verdict}}}', "parsed": "strict",
         "attempts": 1}
        for letter, verdict in zip("abc", (2, 1, 0), strict=True)
    ]  # fmt: skip
    assert [entry["answered"] for entry in entries] == [True, True, False, True, True, True]
    assert entries[2]["details"] == [
        {"aspect": f"Aspect 3{letter}", "score": 0, "reason": "no response to judge"} for letter in "ab"
    ]
    assert entries[3]["details"] == []
    assert [detail["score"] for detail in entries[4]["details"]] == [2, None]
    assert entries[4]["details"][1]["reason"] == "no match_score in the text"
    said = capsys.readouterr().out
    assert "score 0.3750 over 4 questions; 1 of them without an answer, counted 0; 1 cut off at --max_tokens" in said
    assert ", scored like complete ones; 1 aspect unscored" in said
    assert "(as zeros: 0.4000); without aspects, left out: q4" in said


def test_the_progress_shows_the_mean_so_far(judging, capsys):
    """Of questions whose verdicts are all there: not of q2, which has one that cannot be read, nor of q4."""
    questions = [make_question(1, 3), make_question(2, 2), make_question(3), make_question(4, 0)]
    judging.server.reply = verdicts({"1a": 2, "1b": 1, "1c": 0, "2a": 2, "2b": "?", "3a": 2, "3b": 1})
    scores = judge(judging, questions, respond(questions), "--max_retries", "0")
    last = capsys.readouterr().err.splitlines()[-1]
    assert scores["score"] == pytest.approx((1 / 2 + 3 / 4) / 2) and last.endswith("failed 1, mean score 0.625 of 2")


@pytest.mark.parametrize(
    ("communities", "said"),
    [
        # Over questions (2 + 2 + 1 + 0) / 4 / 2, over categories (1 + 1/2 + 0) / 3.
        (["law", "law", "diy", "rpg"], "score 0.6250 over 4 questions (macro: 0.5000 over 3 categories); "),
        (["law", "law", "diy", "law"], "score 0.6250 over 4 questions; "),  # a category has none
        (["law", "diy", "rpg", "hsm"], "(macro: 0.6250 over 4 categories); "),  # one is the user's own
    ],
)
def test_the_tables_average_is_printed(judging, capsys, communities, said):
    questions = [make_question(i, 1, category=community) for i, community in enumerate(communities)]
    judging.server.reply = verdicts({"0a": 2, "1a": 2, "2a": 1, "3a": 0})
    assert judge(judging, questions, respond(questions))["score"] == 0.625
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "reason"),
    [('{"match_score": 7}', "match_score is 7, not an integer 0-2"), ("", "the text is empty")],
)
def test_an_invalid_verdict_is_unscored_and_never_zero(judging, text, reason):
    questions = [make_question(1), make_question(2, 1)]
    judging.server.reply = verdicts({"1a": 2, "1b": text, "2a": 1})
    scores = judge(judging, questions, respond(questions))
    first, second = scores["per_question_scores"]
    # The judge is greedy: a second free try would only repeat the first, so it is held to the schema at once.
    expected = {"aspect": "Aspect 1b", "score": None, "reason": reason, "raw": text, "parsed": "none", "attempts": 2}
    assert first["details"][1] == expected
    assert (first["details"][0]["score"], first["score"]) == (2, None)
    assert (scores["score"], second["score"]) == (0.5, 0.5)
    assert (scores["num_scored_questions"], scores["num_unscored"]) == (1, 1)
    tries = [request for request in judging.server.requests if aspect_of(request) == "1b"]
    assert ["response_format" in request for request in tries] == [False, True]
    assert tries[1]["response_format"]["json_schema"]["schema"] == VERDICT_SCHEMA
    assert {request["temperature"] for request in judging.server.requests} == {0.0}


# The judge's prompt


def test_judges_prompt(judging):
    judging.server.reply = verdicts({"1a": 2})
    questions = [make_question(1, 1, narrative="I like {aspect} and \\braces{}.")]
    judge(judging, questions, respond(questions))
    shown = {"question": "Question number 1?", "details": questions[0]["narrative"], "response": "Response to q1."}
    shown |= {"aspect": "Aspect 1a", "reason": "reason a", "evidence": "evidence 1a"}
    assert judging.server.requests[0]["messages"] == load_prompt("lampqa/aspect_judge").messages(**shown)
    assert (judging.server.requests[0]["temperature"], judging.server.requests[0]["max_tokens"]) == (0.0, 512)
    assert judging.server.keys == ["sk-test"]


def test_aspects_are_adjacent_and_share_their_prefix(judging):
    questions = [make_question(1, 3), make_question(2, 2), make_question(3, 4)]
    judging.server.reply = lambda request: Reply('{"match_score": 1}')
    judging.write("data.json", questions)
    answers = {"r1.json": respond(questions), "r2.json": respond(questions, q2="Another.")}
    systems = [judging.write(name, its) for name, its in answers.items()]
    files = [judging.folder / name for name in ("1.json", "2.json")]
    judging.run(None, systems, "--score_addr", *files, "--max_concurrency", 1)
    order = [aspect_of(request) for request in judging.server.requests]
    assert order == ["1a", "1b", "1c", "2a", "2b", "2a", "2b", "3a", "3b", "3c", "3d"]  # equal ones once
    assert len({request["messages"][0]["content"] for request in judging.server.requests}) == 1
    for name, group in (("q2", judging.server.users()[3:5]), ("q3", judging.server.users()[7:11])):
        shared = common_start(group)
        number = name[1]
        assert shared.endswith(f"\n\naspect:\nAspect {number}")
        assert f"Question number {number}?" in shared and f"The narrative of question {number}." in shared
        assert f"Response to {name}." in shared
    assert "Another." in common_start(judging.server.users()[5:7])


def common_start(texts):
    for length, letters in enumerate(zip(*texts, strict=False)):
        if len(set(letters)) > 1:
            return texts[0][:length]
    raise AssertionError("one is the beginning of the others")


# Several systems, parts


def test_systems_judged_together_are_scored_like_single_ones(judging, capsys):
    questions = [make_question(1, 3), make_question(2), make_question(3, 0)]
    judging.write("data.json", questions)
    systems = [judging.write(f"r{i}.json", respond(questions, q1=f"Answer of system {i}.")) for i in range(3)]
    together = [judging.folder / f"together{i}.json" for i in range(3)]
    judging.run(None, systems, "--score_addr", *together)
    alone = judging.folder / "scores.json"
    for system, path in zip(systems, together, strict=True):
        judging.run(None, [system], "--overwrite", "--completions", judging.folder / f"of_{path.name}")
        assert alone.read_bytes() == path.read_bytes()
    assert len({path.read_bytes() for path in together}) > 1
    # The lost file is made again without requests.
    num_requests, lost = len(judging.server.requests), together[1].read_bytes()
    together[1].unlink()
    capsys.readouterr()
    judging.run(None, systems, "--score_addr", *together)
    assert together[1].read_bytes() == lost and len(judging.server.requests) == num_requests
    assert capsys.readouterr().out.count("already finished; skipped") == 2


def test_only_the_first_response_is_judged(judging, capsys):
    judging.server.reply = verdicts({"1a": 1})
    judge(judging, [make_question(1, 1)], {"q1": [{"output": "First.", "plan": "kept"}, {"output": "Second."}]})
    assert "First." in judging.server.users()[0] and len(judging.server.requests) == 1
    assert "only the first response to each question is judged" in capsys.readouterr().err


def test_partial_responses(judging, capsys):
    questions = [make_question(1, 1), make_question(2, 1), make_question(3, 0)]
    judging.server.reply = verdicts({"1a": 2, "2a": 1})
    with pytest.raises(UserError) as raised:
        judge(judging, questions, respond(questions[:1]))
    assert str(raised.value) == (
        f"{judging.folder}/responses.json: some questions have no response; add --allow_partial to score the others\n"
        "  2 questions without a response: 'q2', 'q3'"
    )
    assert judging.server.requests == [] and not (judging.folder / "scores.json").exists()
    scores = judge(judging, questions, respond(questions[:1]), "--allow_partial")
    assert (scores["score"], scores["num_questions"]) == (1.0, 1)
    assert scores["partial"] == {"questions_in_dataset": 3, "questions_judged": 1}
    assert "partial: 1 of 3" in capsys.readouterr().out


def test_changed_answers_are_judged_again_and_nothing_else_is(judging):
    judging.server.reply = lambda request: Reply('{"match_score": 1}')
    judging.data(1, 2, 3)
    for text, num_new in (("a", 3), ("b", 3), ("a", 0)):
        num_before = len(judging.server.requests)
        path = judging.responses("answers", q1=text, q2=text, q3=text)
        judging.run(None, [path])
        assert len(judging.server.requests) - num_before == num_new
        assert read_manifest(judging.folder / "scores.json")["judged"] == [str(path)]


def test_scores_whose_manifest_names_no_responses_are_not_replaced(judging):
    judging.data(1)
    path, beside = judging.responses("answers", q1="text"), judging.folder / "scores.json.manifest.json"
    judging.run(None, [path])
    made = json.loads(beside.read_text())
    del made["settings"]["responses"], made["judged"]
    beside.write_text(json.dumps(made))
    with pytest.raises(UserError, match=r"scores.json: was made from other responses, not from"):
        judging.run(None, [path])


# Bad input


def test_system_flags_that_do_not_match(judging):
    judging.data(1)
    answers, scores = judging.responses("a", q1="text"), judging.folder / "out/scores.json"
    for files, message in [
        ([scores], "2 --response_addr, 1 --score_addr: pass the same number"),
        ([scores, f"{scores.parent}/./scores.json"], "--score_addr: the same file appears twice"),
    ]:
        with pytest.raises(UserError, match=re.escape(message)):
            judging.run(None, [answers] * 2, "--score_addr", *files)
    assert judging.server.requests == [] and not scores.parent.exists()


# The process


def test_aspects_may_lack_evidence_and_reason_with_a_note(judging, capsys):
    judging.server.reply = lambda request: Reply('{"match_score": 2}')
    aspects = [{"aspect": "Rules"}, {"aspect": "Costs", "evidence": "", "reason": "r"}]
    questions = [make_question(1, rubric_aspects=aspects), make_question(2)]
    assert judge(judging, questions, respond(questions))["score"] == 1.0
    told = f"note: {judging.folder}/data.json: judged with a text missing, such as evidence: 2 of 4 aspects"
    assert told in capsys.readouterr().err


def test_a_refused_and_a_too_long_prompt_are_unscored(judging):
    refusal = Reply("no", status=400, code="content_filter")
    judging.server.reply = lambda request: refusal if aspect_of(request) == "1a" else Reply('{"match_score": 2}')
    questions = [make_question(1), make_question(2, 1), make_question(3, 1), make_question(4, 1)]
    scores = judge(judging, questions, respond(questions, q3="word " * 3000), "--max_model_len", 4000)
    details = [question["details"][0] for question in scores["per_question_scores"]]
    assert details[0]["reason"] == "content_filter: no"
    assert details[2]["score"] is None and re.fullmatch(r"a prompt of 5\d\d\d tokens is too long", details[2]["reason"])
    assert (scores["score"], scores["num_unscored"], len(judging.server.requests)) == (1.0, 2, 4)
