"""evaluate_responses.py through the real openai client, against a server on loopback."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from api_server import Reply, default_reply, serve

import evaluate_responses
from prompts import load_prompt
from utils.cli import UserError
from utils.parsing.choices import VERDICT_SCHEMA
from utils.runs import judging

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests/data/mini_lampqa/test.json"
KEY = "sk-test-0123456789abcdef"
RESPONSE = [{"output": "text"}]
GOOD = {"q1": RESPONSE}


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def make_question(number, num_aspects=2, **fields):
    """A question whose aspects are titled `1a`, `1b`, ... (number 1), which stand nowhere else."""
    aspects = [
        {"aspect": f"Aspect {number}{letter}", "evidence": f"evidence {number}{letter}", "reason": f"reason {letter}"}
        for letter in "abcdefg"[:num_aspects]
    ]
    return {
        "id": f"q{number}",
        "question": f"Question number {number}?",
        "narrative": f"The narrative of question {number}.",
        "category": "history",
        "rubric_aspects": aspects,
        "profile": [],
        **fields,
    }


def aspect_of(request):
    """`1a` for a request about "Aspect 1a"."""
    return re.search(r"\naspect:\nAspect (\w+)\n", request["messages"][1]["content"])[1]


def verdicts(table):
    """A judge that gives each aspect the verdict in the table; a text goes out as it is."""

    def reply(request):
        verdict = table[aspect_of(request)]
        return Reply(verdict if isinstance(verdict, str) else json.dumps({"match_score": verdict}))

    return reply


@pytest.fixture
def server():
    with serve() as server:
        yield server


@pytest.fixture
def flags(tmp_path, server, monkeypatch):
    """The engine's flags, and no key but the file's."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    (tmp_path / "key.txt").write_text(KEY)
    return ["--openai", "--evaluator_llm", "judge", "--base_url", server.url, "--api_key_addr", f"{tmp_path}/key.txt"]


@pytest.fixture
def scores(tmp_path):
    return tmp_path / "out" / "scores.json"


@pytest.fixture
def write(tmp_path):
    def write(name, value):
        path = tmp_path / name
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    return write


def respond(questions, **outputs):
    """Responses "Response to q1." and so on, or what `outputs` says."""
    return {q["id"]: [{"output": outputs.get(q["id"], f"Response to {q['id']}.")}] for q in questions}


def run(flags, data, responses, scores, *more, code=0):
    """Run the script in this process; the score file it wrote."""
    arguments = ["--inputs_addr", data, "--response_addr", responses, "--score_addr", scores, *more]
    assert evaluate_responses.main([*flags, *map(str, arguments)]) == code
    return json.loads(scores.read_text())


def run_process(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "evaluate_responses.py", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, **environment}, timeout=600,
    )  # fmt: skip


# Scores


def test_aspects_without_evidence_or_reason_are_counted(flags, scores, write, capsys):
    """Of five: the second has no reason, the third neither, the fourth an empty evidence."""
    asked = make_question(1, 5)
    del (
        asked["rubric_aspects"][1]["reason"],
        asked["rubric_aspects"][2]["reason"],
        asked["rubric_aspects"][2]["evidence"],
    )
    asked["rubric_aspects"][3]["evidence"] = ""
    for number, question in enumerate((make_question(1, 5), asked)):
        data, answers = write(f"{number}.json", [question]), write(f"r{number}.json", respond([question]))
        assert run(flags, data, answers, scores.with_name(f"{number}.json"))["num_unscored"] == 0
        lack = "lack a text that the judge is shown (such as evidence or reason)"
        told = f"note: {data}: 3 of 5 aspects {lack}\n" if number else ""
        assert [line for line in capsys.readouterr().err.splitlines(True) if "lack" in line] == [told] * number


@pytest.mark.parametrize(("tells", "said"), [(True, "; 50% of prompt tokens from the cache\n"), (False, "question\n")])
def test_the_caches_share_is_told_where_the_server_tells_it(server, flags, write, scores, capsys, tells, said):
    server.reply = lambda request: replace(default_reply(request), tells_cached=tells)
    questions = [make_question(1, 3)]
    run(flags, write("data.json", questions), write("responses.json", respond(questions)), scores)
    assert capsys.readouterr().out.endswith(said)
    tokens = json.loads(Path(f"{scores}.manifest.json").read_text())["tokens"]
    assert tokens["prompt_tokens"] > 0 and (tokens["cached_tokens"] is not None) is tells


def test_rendering_many_prompts_is_announced(server, flags, write, scores, capsys, monkeypatch):
    questions = [make_question(1, 3), make_question(2, 2)]
    data, responses = write("data.json", questions), write("responses.json", respond(questions))
    monkeypatch.setattr(judging, "MANY_PROMPTS", 6)
    run(flags, data, responses, scores)
    assert "rendering" not in capsys.readouterr().err
    monkeypatch.setattr(judging, "MANY_PROMPTS", 5)
    run(flags, data, responses, scores.parent / "elsewhere" / "scores.json")
    assert capsys.readouterr().err.startswith("rendering 5 prompts\n0/5 verdicts\n")


def test_scores_are_algorithm_1(server, flags, write, scores, capsys):
    questions = [make_question(1, 3), make_question(2, 2, category="law"), make_question(3), make_question(4, 0)]
    questions += [make_question(5), make_question(6, 1)]
    server.reply = verdicts({"1a": 2, "1b": 1, "1c": 0, "2a": 2, "2b": 2, "5a": 2, "5b": "I can't say.", "6a": 0})
    responses = respond(questions, q3=None, q5="Maybe.", q6="Nothing to the point.")
    responses["q1"][0]["truncated"] = responses["q3"][0]["truncated"] = True  # q3 has no answer to be counted as whole
    found = run(flags, write("data.json", questions), write("responses.json", responses), scores)

    # q1: (2 + 1 + 0) / (2 * 3) = 0.5, q2: (2 + 2) / (2 * 2) = 1, q6: 0 / 2 = 0;
    # q3 has no response: 0; q5 lacks a verdict: no score; q4 has no aspects: nowhere.
    assert found["score"] == (0.5 + 1 + 0 + 0) / 4
    assert (found["num_questions"], found["num_scored_questions"]) == (5, 4)
    assert (found["num_unanswered"], found["num_unscored"]) == (1, 1)
    assert found["num_truncated"] == 1 and "num_selected" not in found
    assert found["score_unscored_as_zero"] == (0.5 + 1 + 0 + 2 / 4 + 0) / 5
    assert found["questions_without_aspects"] == ["q4"]
    assert "partial" not in found
    entries = found["per_question_scores"]
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
    assert "score 0.3750 over 4 questions; 1 of them without an answer, counted 0; 1 cut at --max_tokens" in said
    assert ", scored like whole ones; 1 aspect unscored" in said
    assert "(as zeros: 0.4000); without aspects, left out: q4" in said


@pytest.mark.parametrize(
    ("communities", "said"),
    [
        # Over questions (2 + 2 + 1 + 0) / 4 / 2, over categories (1 + 1/2 + 0) / 3.
        (["law", "law", "diy", "rpg"], "score 0.6250 over 4 questions (macro: 0.5000 over 3 categories); "),
        (["law", "law", "diy", None], "score 0.6250 over 4 questions; "),  # a category has none
        (["law", "diy", "rpg", "hsm"], "(macro: 0.8333 over 3 categories, without 1 question of no known category); "),
        (["law"] * 4, "score 0.6250 over 4 questions; "),
    ],
)
def test_the_average_of_the_table_is_printed_where_there_is_one(
    server, flags, write, scores, capsys, communities, said
):
    questions = [make_question(i, 1, category=community) for i, community in enumerate(communities)]
    server.reply = verdicts({"0a": 2, "1a": 2, "2a": 1, "3a": 0})
    responses = write("responses.json", respond(questions))
    assert run(flags, write("data.json", questions), responses, scores)["score"] == 0.625
    assert said in capsys.readouterr().out


def test_manifest(server, flags, write, scores):
    data, responses = write("data.json", [make_question(1)]), write("responses.json", respond([make_question(1)]))
    server.reply = verdicts({"1a": 2, "1b": 1})
    run(flags, data, responses, scores)
    manifest = json.loads(Path(f"{scores}.manifest.json").read_text())
    assert manifest["settings"]["judge"] == "judge"
    assert manifest["settings"]["strategy"] == "aspect"
    assert manifest["settings"]["prompt"].keys() == {"aspect_judge"}
    assert manifest["counts"] == {"num_questions": 1, "num_scored_questions": 1, "num_unanswered": 0, "num_unscored": 0}
    assert manifest["tokens"]["completion_tokens"] == 2 * 2


def test_blank_response_is_not_judged(server, flags, write, scores):
    questions = [make_question(1), make_question(2, 1)]
    server.reply = verdicts({"2a": 1})
    responses = write("responses.json", respond(questions, q1=" \n"))
    found = run(flags, write("data.json", questions), responses, scores)
    assert [entry["score"] for entry in found["per_question_scores"]] == [0, 0.5]
    assert (found["num_unanswered"], found["num_unscored"], len(server.requests)) == (1, 0, 1)


def test_nothing_at_all_to_judge(server, flags, write, scores, capsys):
    questions = [make_question(1), make_question(2, 0)]
    responses = write("responses.json", respond(questions, q1=None))
    found = run(flags, write("data.json", questions), responses, scores)
    assert (found["score"], found["num_unanswered"], found["num_unscored"]) == (0.0, 1, 0)
    assert "score 0.0000 over 1 question; 1 of them without an answer, counted 0" in capsys.readouterr().out
    assert server.requests == []


def test_what_a_system_does_not_answer_lowers_its_mean_by_just_these_questions(server, flags, write, scores):
    questions = [make_question(i, 1) for i in range(40)]
    server.reply = verdicts({f"{i}a": 1 + i % 2 for i in range(40)})  # scores of 0.5 and 1
    whole = run(flags, write("data.json", questions), write("a.json", respond(questions)), scores)
    lost = respond(questions, **{f"q{i}": None for i in range(0, 40, 4)})  # ten, each of which scored 0.5
    found = run(flags, write("data.json", questions), write("b.json", lost), scores.with_name("b.json"))
    assert whole["score"] == 0.75 and found["score"] == 0.75 - 10 * 0.5 / 40
    assert (found["num_scored_questions"], found["num_unanswered"], found["num_unscored"]) == (40, 10, 0)


def test_what_the_judge_fails_on_changes_no_other_number(server, flags, write, scores):
    questions = [make_question(i, 1) for i in range(8)]
    table = {f"{i}a": 1 + i % 2 for i in range(8)}
    server.reply = verdicts(table)
    whole = run(flags, write("data.json", questions), write("a.json", respond(questions)), scores)
    server.reply = verdicts(table | {"0a": "I can't say.", "3a": "Nor here."})
    elsewhere = scores.parent.parent / "elsewhere.json"
    found = run(flags, write("data.json", questions), write("a.json", respond(questions)), elsewhere)
    assert (found["num_unscored"], found["num_unanswered"], found["num_scored_questions"]) == (2, 0, 6)
    assert found["score"] == (3 * 0.5 + 3 * 1) / 6  # of the other six
    for before, after in zip(whole["per_question_scores"], found["per_question_scores"], strict=True):
        assert after == before or (before["id"] in ("q0", "q3") and after["score"] is None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"match_score": 7}', "match_score is 7, not an integer 0-2"),
        ('{"match_score": -1}', "match_score is -1, not an integer 0-2"),
        ('{"match_score": 1.5}', "match_score is 1.5, not an integer 0-2"),
        ('{"match_score": "2"}', "match_score is the string '2', not an integer 0-2"),
        ('{"match_score": true}', "match_score is true, not an integer 0-2"),
        ('{"match_score": null}', "match_score is null, not an integer 0-2"),
        ('{"score": 2}', "no match_score in the text"),
        ("", "the text is empty"),
    ],
)
def test_what_is_no_verdict_is_unscored_and_never_a_zero(server, flags, write, scores, text, reason):
    questions = [make_question(1), make_question(2, 1)]
    server.reply = verdicts({"1a": 2, "1b": text, "2a": 1})
    found = run(flags, write("data.json", questions), write("responses.json", respond(questions)), scores)
    first, second = found["per_question_scores"]
    # The judge is greedy: a second free try would only repeat the first, so it is held to the schema at once.
    expected = {"aspect": "Aspect 1b", "score": None, "reason": reason, "raw": text, "parsed": "none", "attempts": 2}
    assert first["details"][1] == expected
    assert (first["details"][0]["score"], first["score"]) == (2, None)
    assert (found["score"], second["score"]) == (0.5, 0.5)
    assert (found["num_scored_questions"], found["num_unscored"]) == (1, 1)
    tries = [request for request in server.requests if aspect_of(request) == "1b"]
    assert ["response_format" in request for request in tries] == [False, True]
    assert tries[1]["response_format"]["json_schema"]["schema"] == VERDICT_SCHEMA
    assert {request["temperature"] for request in server.requests} == {0.0}


def test_never_constrained_takes_all_its_tries(server, flags, write, scores):
    server.reply = verdicts({"1a": '{"match_score": 3}'})
    questions = [make_question(1, 1)]
    more = ["--constrained_decoding", "never", "--max_retries", "2"]
    files = write("data.json", questions), write("responses.json", respond(questions))
    found = run(flags, *files, scores, *more, code=1)
    assert found["num_unscored"] == 1
    assert [request["temperature"] for request in server.requests] == [0.0, 0.1, 0.2]
    assert not any("response_format" in request for request in server.requests)


def test_verdict_that_breaks_off_in_its_number_is_asked_for_again(server, flags, write, scores):
    def reply(request):
        return Reply('{"match_score": 0}') if "response_format" in request else Reply('{"match_score": 1', "length")

    server.reply = reply
    questions = [make_question(1, 1)]
    found = run(flags, write("data.json", questions), write("responses.json", respond(questions)), scores)
    detail = found["per_question_scores"][0]["details"][0]
    assert (detail["score"], detail["attempts"]) == (0, 2)


def test_refused_prompt_is_unscored(server, flags, write, scores):
    refusal = Reply("no", status=400, code="content_filter")
    server.reply = lambda request: refusal if aspect_of(request) == "1a" else Reply('{"match_score": 2}')
    questions = [make_question(1), make_question(2, 1)]
    found = run(flags, write("data.json", questions), write("responses.json", respond(questions)), scores)
    assert found["per_question_scores"][0]["details"][0]["reason"] == "content_filter: no"
    assert (found["score"], found["num_unscored"]) == (1.0, 1)


def test_prompt_that_is_too_long_is_unscored(server, flags, write, scores):
    server.reply = verdicts({"1a": 2, "2a": 1})
    questions = [make_question(1, 1), make_question(2, 1)]
    responses = write("responses.json", respond(questions, q1="word " * 3000))
    found = run(flags, write("data.json", questions), responses, scores, "--max_model_len", 4000, code=1)
    detail = found["per_question_scores"][0]["details"][0]
    assert detail["score"] is None and re.fullmatch(r"a prompt of 5\d\d\d tokens is too long", detail["reason"])
    assert (found["score"], len(server.requests)) == (0.5, 1)


# What the judge reads


def test_judges_prompt(server, flags, write, scores):
    server.reply = verdicts({"1a": 2})
    questions = [make_question(1, 1, narrative="I like {aspect} and \\braces{}.")]
    run(flags, write("data.json", questions), write("responses.json", respond(questions)), scores)
    assert server.requests[0]["messages"] == load_prompt("lampqa/aspect_judge").messages(
        question="Question number 1?",
        details="I like {aspect} and \\braces{}.",
        response="Response to q1.",
        aspect="Aspect 1a",
        reason="reason a",
        evidence="evidence 1a",
    )
    assert (server.requests[0]["temperature"], server.requests[0]["max_tokens"]) == (0.0, 512)
    assert server.keys == [KEY]


def test_sample_narratives_and_aspects_reach_the_judge(server, flags, write, scores):
    """Which also shows that the search for them in the generators' prompts would find them."""
    records = json.loads(SAMPLE.read_text())
    run(flags, SAMPLE, write("responses.json", respond(records)), scores)
    prompts = "\n".join(server.users())
    assert len(server.requests) >= 74
    for record in records:
        assert record["narrative"] in prompts
        for aspect in record["rubric_aspects"]:
            assert aspect["evidence"] in prompts and aspect["reason"] in prompts


def test_aspects_stand_next_to_each_other_and_share_everything_before_them(server, flags, write, scores):
    questions = [make_question(1, 3), make_question(2, 2), make_question(3, 4)]
    server.reply = lambda request: Reply('{"match_score": 1}')
    first, second = write("r1.json", respond(questions)), write("r2.json", respond(questions, q2="Another one."))
    arguments = [
        *flags, "--inputs_addr", write("data.json", questions), "--response_addr", first, second,
        "--score_addr", scores, scores.with_name("2.json"), "--max_concurrency", 1,
    ]  # fmt: skip
    evaluate_responses.main([str(argument) for argument in arguments])
    order = [aspect_of(request) for request in server.requests]
    assert order == ["1a", "1b", "1c", "2a", "2b", "2a", "2b", "3a", "3b", "3c", "3d"]  # equal ones once
    assert len({request["messages"][0]["content"] for request in server.requests}) == 1
    for name, group in (("q2", server.users()[3:5]), ("q3", server.users()[7:11])):
        shared = common_start(group)
        number = name[1]
        assert shared.endswith(f"\n\naspect:\nAspect {number}")
        assert f"Question number {number}?" in shared and f"The narrative of question {number}." in shared
        assert f"Response to {name}." in shared
    assert "Another one." in common_start(server.users()[5:7])


def common_start(texts):
    for length, letters in enumerate(zip(*texts, strict=False)):
        if len(set(letters)) > 1:
            return texts[0][:length]
    raise AssertionError("one is the beginning of the others")


# Several systems, parts


def test_systems_judged_together_are_scored_as_alone(server, flags, write, scores, capsys):
    questions = [make_question(1, 3), make_question(2), make_question(3, 0)]
    data = write("data.json", questions)
    systems = [write(f"r{i}.json", respond(questions, q1=f"Answer of system {i}.")) for i in range(3)]
    together = [scores.with_name(f"together{i}.json") for i in range(3)]
    arguments = [*flags, "--inputs_addr", data, "--response_addr", *systems, "--score_addr", *together]
    evaluate_responses.main([str(argument) for argument in arguments])
    for system, path in zip(systems, together, strict=True):
        run(flags, data, system, scores, "--overwrite", "--completions", scores.parent / f"of_{path.name}")
        assert scores.read_bytes() == path.read_bytes()
    assert len({path.read_bytes() for path in together}) > 1
    # The lost one is made again, and nothing is asked.
    asked, lost = len(server.requests), together[1].read_bytes()
    together[1].unlink()
    capsys.readouterr()
    evaluate_responses.main([str(argument) for argument in arguments])
    assert together[1].read_bytes() == lost and len(server.requests) == asked
    assert capsys.readouterr().out.count("already finished, left alone") == 2


def test_only_the_first_response_is_judged(server, flags, write, scores, capsys):
    server.reply = verdicts({"1a": 1})
    responses = write("responses.json", {"q1": [{"output": "First.", "plan": "kept"}, {"output": "Second."}]})
    run(flags, write("data.json", [make_question(1, 1)]), responses, scores)
    assert "First." in server.users()[0] and len(server.requests) == 1
    assert "only the first response to each question is judged" in capsys.readouterr().err


def test_part_of_the_responses(server, flags, write, scores, capsys):
    questions = [make_question(1, 1), make_question(2, 1), make_question(3, 0)]
    server.reply = verdicts({"1a": 2, "2a": 1})
    data, responses = write("data.json", questions), write("responses.json", respond(questions[:1]))
    with pytest.raises(UserError) as raised:
        run(flags, data, responses, scores)
    assert str(raised.value) == (
        f"{responses}: only a part of the questions has a response; --allow_partial scores that part\n"
        "  2 questions without a response: 'q2', 'q3'"
    )
    assert server.requests == [] and not scores.exists()
    found = run(flags, data, responses, scores, "--allow_partial")
    assert (found["score"], found["num_questions"]) == (1.0, 1)
    assert found["partial"] == {"questions_in_dataset": 3, "questions_judged": 1}
    assert "a part: 1 of 3" in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--allow_partial"]])
def test_responses_of_another_dataset(server, flags, write, scores, more):
    responses = write("responses.json", {f"other{i}": [{"output": "text"}] for i in range(7)})
    with pytest.raises(UserError) as raised:
        run(flags, write("data.json", [make_question(1)]), responses, scores, *more)
    assert str(raised.value) == (
        f"{responses}: its ids are not the dataset's; give the dataset these responses were made from\n"
        "  1 questions without a response: 'q1'\n"
        "  7 responses to no question of the dataset: 'other0', 'other1', 'other2', 'other3', 'other4', ..."
    )
    assert server.requests == [] and not scores.exists()


def test_ids_may_be_numbers(server, flags, write, scores):
    server.reply = verdicts({"7a": 2})
    data, responses = write("data.json", [make_question(7, 1, id=7)]), write("r.json", {"7": RESPONSE})
    found = run(flags, data, responses, scores)
    assert found["per_question_scores"][0]["id"] == "7" and found["score"] == 1.0


def test_limit_then_all_asks_only_for_what_is_missing(server, flags, write, scores):
    questions = [make_question(1), make_question(2), make_question(3, 0)]
    data, responses = write("data.json", questions), write("responses.json", respond(questions))
    part = run(flags, data, responses, scores, "--limit", 1)
    assert part["partial"] == {"questions_in_dataset": 3, "questions_judged": 1}
    asked = len(server.requests)
    whole = run(flags, data, responses, scores)
    assert "partial" not in whole and whole["questions_without_aspects"] == ["q3"]
    assert {aspect_of(request)[0] for request in server.requests[asked:]} == {"2"}
    fresh = scores.parent.parent / "fresh" / "scores.json"
    run(flags, data, responses, fresh)
    assert fresh.read_bytes() == scores.read_bytes()
    asked = len(server.requests)
    assert run(flags, data, responses, scores) == whole and len(server.requests) == asked


def test_shards_cover_the_set(server, flags, write, scores):
    responses = write("responses.json", respond(json.loads(SAMPLE.read_text())))
    whole = run(flags, SAMPLE, responses, scores)
    asked, parts = len(server.requests), scores.parent.parent / "parts" / "scores.json"
    command = [*flags, "--inputs_addr", SAMPLE, "--response_addr", responses, "--score_addr", parts]
    for shard in range(3):
        evaluate_responses.main([str(word) for word in [*command, "--num_shards", 3, "--shard_index", shard]])
        assert [path.name for path in parts.parent.iterdir()] == ["completions"]
    assert sorted(map(str, server.requests[asked:])) == sorted(map(str, server.requests[:asked]))
    assert run(flags, SAMPLE, responses, parts, "--cached_only") == whole and len(server.requests) == 2 * asked


def test_dry_run_asks_and_writes_nothing(server, flags, write, scores, capsys):
    questions = [make_question(1, 3), make_question(2), make_question(3)]
    data, responses = write("data.json", questions), write("responses.json", respond(questions, q3=None))
    arguments = [*flags, "--inputs_addr", data, "--response_addr", responses, "--score_addr", scores, "--dry_run"]
    assert evaluate_responses.main([str(argument) for argument in arguments]) == 0
    assert "5 prompts" in capsys.readouterr().out
    assert server.requests == [] and not scores.parent.exists()


# Bad input


def without(field):
    question = make_question(1)
    del question[field]
    return [question]


def with_aspect(aspect):
    return [make_question(1, rubric_aspects=[{"aspect": "fine"}, aspect])]


ASPECT_1 = "data.json: record 0 (id 'q1'): field 'rubric_aspects', item 1"
BAD_FILES = {
    "no aspects field": (without("rubric_aspects"), GOOD, "record 0 (id 'q1'): field 'rubric_aspects' is missing"),
    "aspects are a text": ([make_question(1, rubric_aspects="x")], GOOD, "field 'rubric_aspects' is the text 'x'"),
    "a null aspect": (with_aspect(None), GOOD, f"{ASPECT_1} is missing or null, not an aspect"),
    "a text for an aspect": (with_aspect("rules"), GOOD, f"{ASPECT_1} is the text 'rules', not an aspect"),
    "an aspect without title": (with_aspect({"reason": "x"}), GOOD, f"{ASPECT_1}: field 'aspect' is missing or null"),
    "an empty title": (with_aspect({"aspect": " "}), GOOD, f"{ASPECT_1}: field 'aspect' is an empty text"),
    "a number for a reason": (with_aspect({"aspect": "a", "reason": 3}), GOOD, f"{ASPECT_1}: field 'reason' is 3"),
    "no narrative": (without("narrative"), GOOD, "record 0 (id 'q1'): field 'narrative' is missing or null"),
    "an empty narrative": ([make_question(1, narrative="")], GOOD, "field 'narrative' is an empty text"),
    "dataset empty": ("", GOOD, "data.json: the file is empty"),
    "responses empty": ([make_question(1)], "", "responses.json: the file is empty"),
    "responses not JSON": ([make_question(1)], "nonsense", "responses.json: not JSON: Expecting value at line 1"),
    "responses cut short": ([make_question(1)], '{"q1": [{"outp', "responses.json: the JSON breaks off at line 1"),
    "responses a list": ([make_question(1)], [GOOD], "responses.json: holds a list; responses are an object"),
    "no output": ([make_question(1)], {"q1": [{"text": "x"}]}, "id 'q1': response 0 has no field 'output'"),
    "a number for an output": ([make_question(1)], {"q1": [{"output": 4}]}, "response 0: 'output' is 4, not a text"),
    "no response in the list": ([make_question(1)], {"q1": []}, "id 'q1': an empty list where [{"),
    "a text for a response": ([make_question(1)], {"q1": ["x"]}, "id 'q1': response 0 has no field 'output'"),
    "an id twice": ([make_question(1)], '{"q1": [], "q1": []}', "responses.json: 'q1' stands twice in one object"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_file(server, flags, write, scores, name):
    data, responses, message = BAD_FILES[name]
    scores.parent.mkdir()
    scores.write_text("an older score file")
    with pytest.raises(UserError) as raised:
        run(flags, write("data.json", data), write("responses.json", responses), scores, "--overwrite")
    assert message in str(raised.value) and str(raised.value).count("\n") <= 2
    assert server.requests == []
    assert [path.read_text() for path in scores.parent.iterdir()] == ["an older score file"]


def test_aspects_may_lack_evidence_and_reason(server, flags, write, scores):
    server.reply = lambda request: Reply('{"match_score": 2}')
    questions = [make_question(1, rubric_aspects=[{"aspect": "Rules"}])]
    assert run(flags, write("data.json", questions), write("responses.json", GOOD), scores)["score"] == 1.0


def test_system_flags_that_do_not_match(server, flags, write, scores):
    data, responses = write("data.json", [make_question(1)]), write("responses.json", GOOD)
    common = [*flags, "--inputs_addr", str(data)]
    two = [str(responses), str(responses)]
    same = os.path.join(scores.parent, ".", scores.name)
    for more, message in [
        (["--response_addr", *two, "--score_addr", str(scores)], "2 --response_addr, 1 --score_addr: give as many"),
        (["--response_addr", *two, "--score_addr", str(scores), str(scores)], "--score_addr: the same file twice"),
        (["--response_addr", *two, "--score_addr", str(scores), same], "--score_addr: the same file twice"),
        (["--response_addr", "/nowhere.json", "--score_addr", str(scores)], "/nowhere.json: no such file"),
        (["--response_addr", *two[:1], "--score_addr", *two[:1], "--overwrite"], "responses.json: is an input too"),
    ]:
        with pytest.raises(UserError, match=re.escape(message)):
            evaluate_responses.main([*common, *more])
    assert server.requests == [] and not scores.parent.exists()


def test_scores_of_other_settings_are_named_and_kept(server, flags, write, scores):
    data, responses = write("data.json", [make_question(1)]), write("responses.json", GOOD)
    run(flags, data, responses, scores)
    before = files(scores.parent)
    asked = len(server.requests)
    with pytest.raises(UserError, match=r"made with other settings: seed: 0, now 1\n.*--overwrite"):
        run(flags, data, responses, scores, "--seed", 1)
    other = write("other.json", {"q1": [{"output": "another"}]})
    with pytest.raises(UserError, match=rf"was made from {responses}, not from {other}\n.*--overwrite"):
        run(flags, data, other, scores)
    assert files(scores.parent) == before and len(server.requests) == asked


def test_foreign_score_file_is_kept(server, flags, write, scores):
    scores.parent.mkdir()
    scores.write_text("my notes")
    with pytest.raises(UserError, match="was not written by this script or was changed since"):
        run(flags, write("data.json", [make_question(1)]), write("responses.json", GOOD), scores)
    assert [path.read_text() for path in scores.parent.iterdir()] == ["my notes"] and server.requests == []


# The process


def test_bad_input_ends_the_process_with_code_2_and_changes_nothing(server, flags, write, scores):
    scores.parent.mkdir()
    scores.write_text("an older score file")
    data, responses = write("data.json", with_aspect(None)), write("responses.json", GOOD)
    arguments = ["--inputs_addr", data, "--response_addr", responses, "--score_addr", scores, "--overwrite"]
    done = run_process(*flags, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    where = "record 0 (id 'q1'): field 'rubric_aspects', item 1"
    assert done.stderr == f"error: {data}: {where} is missing or null, not an aspect\n"
    assert [path.read_text() for path in scores.parent.iterdir()] == ["an older score file"]


def test_refused_key_ends_the_process_with_one_line(server, flags, write, scores):
    server.reply = lambda request: Reply("Incorrect API key provided: $KEY.", status=401)
    data, responses = write("data.json", [make_question(1)]), write("responses.json", GOOD)
    arguments = ["--inputs_addr", data, "--response_addr", responses, "--score_addr", scores, "--log_level", "debug"]
    done = run_process(*flags, *arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: the API at 127.0.0.1 answers 401: Incorrect API key provided: ***."
    assert KEY.encode() not in b"".join(files(scores.parent).values()) and KEY not in done.stdout + done.stderr
    assert not scores.exists()


def test_nothing_heavy_is_imported_for_an_api(server, flags, write, scores, tmp_path):
    server.reply = default_reply
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for name in ("torch", "transformers", "vllm", "pandas", "scipy", "datasets"):
        (blocked / f"{name}.py").write_text(f"raise RuntimeError('{name} was imported')\n")
    data, responses = write("data.json", [make_question(1)]), write("responses.json", GOOD)
    arguments = ["--inputs_addr", data, "--response_addr", responses, "--score_addr", scores]
    done = run_process(*flags, *arguments, PYTHONPATH=str(blocked))
    assert done.returncode == 0, done.stderr
    assert KEY.encode() not in b"".join(files(scores.parent).values()) and KEY not in done.stdout + done.stderr
