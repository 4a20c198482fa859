"""The strategies to compare the aspect-based judge with: direct scoring and pairwise comparison."""

import json

import pytest
from api_server import Reply, serve

import evaluate_responses
from prompts import load_prompt
from utils import make_table
from utils.base.errors import UserError
from utils.benchmarks.choices import LEVEL_SCHEMA, PREFERENCE_SCHEMA, parse_level, parse_preference
from utils.benchmarks.lampqa.task import CATEGORIES

NO_LEVEL = "not 0, 0.25, 0.5, 0.75 or 1"


class Judging:
    """A folder with files, a judge behind a server, and runs of the script."""

    def __init__(self, folder, server):
        self.folder, self.server = folder, server
        (folder / "key.txt").write_text("sk-test")

    def write(self, name, value):
        (self.folder / name).write_text(json.dumps(value))
        return self.folder / name

    def data(self, *numbers, **fields):
        return self.write("data.json", [make_question(number, **fields) for number in numbers])

    def responses(self, name, **outputs):
        return self.write(f"{name}.json", {key: [{"output": output}] for key, output in outputs.items()})

    def run(self, strategy, responses, *more, to="scores.json", code=0):
        """Judge with a strategy; return the score file, None if there is none."""
        arguments = [
            "--openai", "--evaluator_llm", "judge", "--base_url", self.server.url,
            "--api_key_addr", self.folder / "key.txt", "--inputs_addr", self.folder / "data.json",
            *([] if strategy is None else ["--strategy", strategy]),
            "--response_addr", *responses, "--score_addr", self.folder / to, *more,
        ]  # fmt: skip
        assert evaluate_responses.main([str(argument) for argument in arguments]) == code
        return json.loads((self.folder / to).read_text()) if (self.folder / to).exists() else None

    def settings(self, name="scores.json"):
        return json.loads((self.folder / f"{name}.manifest.json").read_text())["settings"]


def make_question(number, **fields):
    return {
        "id": f"q{number}",
        "question": f"Question number {number}?",
        "narrative": f"The narrative of question {number}.",
        "category": "history",
        "profile": [],
        "rubric_aspects": [{"aspect": "Rules", "evidence": "e", "reason": "r"}],
        **fields,
    }


@pytest.fixture
def judging(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with serve() as server:
        yield Judging(tmp_path, server)


def levels(table):
    """Return a judge that gives each response its level in the table; a text is sent unchanged."""

    def reply(request):
        user = request["messages"][1]["content"]
        [level] = [level for response, level in table.items() if f"response:\n{response}\n" in user]
        return Reply(level if isinstance(level, str) else json.dumps({"score": level}))

    return reply


def shown(request):
    """Return the two responses in a pairwise prompt, in order."""
    _, first, second = request["messages"][1]["content"].split("\n\nresponse ")
    return first.removeprefix("1:\n"), second.removeprefix("2:\n").removesuffix("\n\noutput: ```json")


def prefers(choose):
    """Return a judge that prefers the response that `choose` returns; None for no verdict."""

    def reply(request):
        pair = shown(request)
        chosen = choose(*pair)
        return Reply("I can't say." if chosen is None else json.dumps({"better_response": pair.index(chosen) + 1}))

    return reply


# Direct scoring


def test_a_level_is_a_questions_score(judging, capsys):
    judging.server.reply = levels({"A1": 0.75, "A2": 0, "A3": 1.0, "A4": "Good, I think."})
    judging.data(1, 2, 3, 4, 5)
    found = judging.run("direct", [judging.responses("a", q1="A1", q2="A2", q3="A3", q4="A4", q5=None)])

    assert found["strategy"] == "direct"
    assert found["score"] == (0.75 + 0 + 1 + 0) / 4  # q4 has no level, so no score, not 0; q5 has no answer: 0
    assert (found["num_questions"], found["num_scored_questions"]) == (5, 4)
    assert (found["num_unanswered"], found["num_unscored"]) == (1, 1)
    assert found["score_unscored_as_zero"] == (0.75 + 0 + 1 + 0 + 0) / 5
    assert "partial" not in found
    entries = found["per_question_scores"]
    assert [(entry["id"], entry["score"]) for entry in entries] == [
        ("q1", 0.75), ("q2", 0), ("q3", 1), ("q4", None), ("q5", 0)
    ]  # fmt: skip
    detail = {"score": 0.75, "raw": '{"score": 0.75}', "parsed": "strict", "attempts": 1}
    assert entries[0].pop("question_sha256") != entries[1]["question_sha256"]
    told = {"id": "q1", "group": CATEGORIES[2], "subgroup": "history", "answered": True}
    assert entries[0] == {**told, "score": 0.75, "details": [detail], "words": 1}
    assert entries[3]["details"][0]["reason"] == "no score in the text"
    assert entries[3]["details"][0]["raw"] == "Good, I think."
    assert entries[4]["details"] == [{"score": 0, "reason": "no response to judge"}]
    said = capsys.readouterr().out
    assert "score 0.4375 over 4 questions; 1 of them without an answer, counted 0; 1 response unscored" in said


# Pairwise comparison


def three_pairs(judging):
    judging.data(1, 2, 3)
    first = judging.responses("first", q1="A1", q2="A2", q3="A3")
    return [first, judging.responses("second", q1="B1", q2="B2", q3="B3")]


def test_wins_ties_losses_and_what_is_unscored(judging, capsys):
    def choose(one, other):
        return {"1": "A1", "2": one, "3": "B3", "4": None, "5": "A5" if one == "A5" else None, "7": other}[one[1]]

    judging.server.reply = prefers(choose)
    judging.data(1, 2, 3, 4, 5, 6, 7)
    first = judging.responses("first", **{f"q{i}": f"A{i}" for i in range(1, 8)})
    second = judging.responses("second", **{f"q{i}": None if i == 6 else f"B{i}" for i in range(1, 8)})
    found = judging.run("pairwise", [first, second])

    # q1 a win, q2 (always the first) and q7 (always the second) flip, q3 a loss; q4 has no verdict, q5 one of two,
    # q6 lacks the second's response, so the first wins and neither order is asked.
    assert [entry["result"] for entry in found["per_question_scores"]] == [
        "win", "tie", "loss", None, None, "win", "tie"
    ]  # fmt: skip
    assert (found["wins"], found["ties"], found["losses"]) == (2, 2, 1)
    assert found["position_swap_rate"] == 2 / 4  # of what was asked
    assert (found["num_questions"], found["num_scored_questions"]) == (7, 5)
    assert (found["num_unanswered"], found["num_unscored"]) == ([0, 1], 2 + 1)
    said = capsys.readouterr().out
    assert "of 5 questions; position-swap rate 50%; not judged: 0 without the first system's answer, 1 without" in said
    assert "; 2 questions unscored, because 3 verdicts are missing" in said

    details = {entry["id"]: entry["details"] for entry in found["per_question_scores"]}
    kept = {"parsed": "strict", "attempts": 1}
    assert details["q3"] == [
        {"shown_first": "first", "better_response": 2, "preferred": "second", "raw": '{"better_response": 2}', **kept},
        {"shown_first": "second", "better_response": 1, "preferred": "second", "raw": '{"better_response": 1}', **kept},
    ]
    assert [(d["better_response"], d["preferred"]) for d in details["q2"]] == [(1, "first"), (1, "second")]
    assert [(d["better_response"], d["preferred"]) for d in details["q7"]] == [(2, "second"), (2, "first")]
    assert [(d["preferred"], d.get("reason")) for d in details["q5"]] == [
        ("first", None), (None, "no better_response in the text")
    ]  # fmt: skip
    assert details["q6"] == []
    asked = [shown(request) for request in judging.server.requests]
    assert asked.count(("A1", "B1")) == asked.count(("B1", "A1")) == 1


def test_a_file_against_itself_shows_the_judges_position_bias(judging):
    judging.server.reply = lambda request: Reply('{"better_response": 1}')
    judging.data(1, 2)
    same = judging.responses("same", q1="A1", q2="A2")
    found = judging.run("pairwise", [same, same])
    assert (found["wins"], found["ties"], found["losses"], found["position_swap_rate"]) == (0, 2, 0, 1)


@pytest.mark.parametrize(("num_responses", "num_scores"), [(1, 1), (3, 1), (2, 2)])
def test_pairwise_takes_two_systems_and_one_score_file(judging, num_responses, num_scores):
    files = [*three_pairs(judging), judging.responses("third", q1="C1")][:num_responses]
    more = ["--score_addr", *(judging.folder / f"{i}.json" for i in range(num_scores))]
    with pytest.raises(UserError, match="--score_addr: --strategy pairwise needs two response files"):
        judging.run("pairwise", files, *more)
    assert judging.server.requests == []


def test_partial_responses_are_those_of_both_systems(judging):
    judging.server.reply = prefers(min)
    judging.data(1, 2, 3)
    files = [judging.responses("a", q1="A1", q2="A2"), judging.responses("b", q2="B2", q3="B3")]
    with pytest.raises(UserError, match=r"a\.json: some questions have no response"):
        judging.run("pairwise", files)
    found = judging.run("pairwise", files, "--allow_partial")
    assert [entry["id"] for entry in found["per_question_scores"]] == ["q2"]
    assert found["partial"] == {"questions_in_dataset": 3, "questions_judged": 1}


# Runs: resuming


def test_a_table_does_not_mix_strategies(judging):
    files = three_pairs(judging)
    judging.server.reply = lambda request: Reply('{"match_score": 1, "score": 1, "better_response": 1}')
    for strategy in ("aspect", "direct", "pairwise"):
        judging.run(strategy, files if strategy == "pairwise" else files[:1], to=f"{strategy}.json")
    for other, message in (
        ("direct", r"direct\.json: judged differently from .*aspect\.json\n  strategy 'direct', not 'aspect'; prompt "),
        ("pairwise", r"pairwise\.json: its strategy is 'pairwise', which does not score a single system"),
    ):
        rows = [["--system", name, str(judging.folder / f"{name}.json")] for name in ("aspect", other)]
        with pytest.raises(UserError, match=message):
            make_table.main([*rows[0], *rows[1]])


# What a judge writes

LEVELS = [
    # (text, level, how)
    ('{"score": 0}', 0, "strict"),
    ('```json\n{"score": 0.5}\n```', 0.5, "strict"),
    ('{"why": "so", "score": 0.750}', 0.75, "strict"),
    ('{"score": 1.0}', 1, "strict"),
    ("{'score': .5}", 0.5, "repaired"),
    ('{"Score": 0.5, "why": "a "b" c"}', 0.5, "repaired"),
    ("Good.\n**Score:** 1.0\nIt has all.", 1, "repaired"),
    ("Score: 0.5\nScore: 1", 1, "repaired"),
    ("json\n\n0.75\n\njson", 0.75, "repaired"),
    ("0\n```", 0, "repaired"),
]
NO_LEVELS = [
    ("", "the text is empty"),
    ('{"score": 0.8}', f"score is 0.8, {NO_LEVEL}"),
    ('{"score": 75}', f"score is 75, {NO_LEVEL}"),
    ('{"score": "0.75"}', f'score is "0.75", {NO_LEVEL}'),
    ('{"score": true}', f"score is true, {NO_LEVEL}"),
    ('{"score": null}', f"score is null, {NO_LEVEL}"),
    ('{"score": 75%}', f"score is 75%, {NO_LEVEL}"),
    ("Score: 0.5 out of 1", f"score is 0.5 out of 1, {NO_LEVEL}"),
    ("Score: 0,5", f"score is 0,5, {NO_LEVEL}"),
    ("The score is 0.5", "no score in the text"),
    ("0.5 or 0.75", "no score in the text"),
    ('"0.5"', "no score in the text"),
]
PREFERENCES = [
    ('{"better_response": 1}', 1, "strict"),
    ('```json\n{"better_response": 2}\n```', 2, "strict"),
    ('{"better_response": "Response 1"}', 1, "strict"),
    ("{'Better Response': 'Response 2'}", 2, "repaired"),
    ('{"better_response": 1, "why": "a "b" c"}', 1, "repaired"),
    ("**Better response:** Response 1\nIt has more.", 1, "repaired"),
    ("{'betterResponse': 2}", 2, "repaired"),
    ("json\n\n2\nendif", 2, "repaired"),
    ('"Response 1"\n```', 1, "repaired"),
]
NO_PREFERENCES = [
    ("", "the text is empty"),
    ('{"better_response": 3}', "better_response is 3, not 1 or 2"),
    ('{"better_response": 1.0}', "better_response is 1.0, not 1 or 2"),
    ('{"better_response": "Response B"}', 'better_response is "Response B", not 1 or 2'),
    ('{"better_response": "1 and 2"}', 'better_response is "1 and 2", not 1 or 2'),
    ('{"better_response": true}', "better_response is true, not 1 or 2"),
    ("Better response: First, I look at both.", "better_response is First, I look at bot, not 1 or 2"),
    ('{"better_response": "The second response"}', 'better_response is "The second response", not 1 or 2'),
    ("Response 1 is better than response 2.", "no better_response in the text"),
    ("First", "no better_response in the text"),
    ("12", "no better_response in the text"),
]


@pytest.mark.parametrize(
    ("parse", "kind", "text", "value", "how"),
    [*((parse_level, float, *its) for its in LEVELS), *((parse_preference, int, *its) for its in PREFERENCES)],
)
def test_a_level_or_a_preference_is_read(parse, kind, text, value, how):
    found = parse(text)
    assert (found.value, found.how, found.reason) == (value, how, None)
    assert type(found.value) is kind


@pytest.mark.parametrize(
    ("parse", "text", "reason"),
    [*((parse_level, *its) for its in NO_LEVELS), *((parse_preference, *its) for its in NO_PREFERENCES)],
)
def test_invalid_levels_and_preferences(parse, text, reason):
    found = parse(text)
    assert (found.value, found.how, found.reason) == (None, "none", reason)


@pytest.mark.parametrize("parse", [parse_level, parse_preference])
@pytest.mark.parametrize("text", ["%s: 1", '{"%s": 1', "1", "%s: 0.", '{"%s": "first'])
def test_a_value_that_max_tokens_may_have_cut_is_none(parse, text):
    name = "score" if parse is parse_level else "better_response"
    assert parse(text.replace("%s", name), cut=True).value is None


@pytest.mark.parametrize("schema", [LEVEL_SCHEMA, PREFERENCE_SCHEMA])
def test_every_value_of_the_schema_is_the_prompts_and_read_back(schema):
    parse = parse_level if schema is LEVEL_SCHEMA else parse_preference
    [(name, field)] = schema["properties"].items()
    system = load_prompt(f"lampqa/{'direct' if schema is LEVEL_SCHEMA else 'pairwise'}_judge").system
    assert name in system
    for value in field["enum"]:
        found = parse(json.dumps({name: value}), cut=True)
        assert (found.value, found.how) == (value, "strict")
        assert schema is PREFERENCE_SCHEMA or f"\nScore {value}: " in system
    assert system.count("\nScore ") == (len(field["enum"]) if schema is LEVEL_SCHEMA else 0)


def test_missing_answers_tie_or_lose_without_a_judge(judging, capsys):
    judging.server.reply = prefers(lambda one, other: "A2" if "A2" in (one, other) else one)
    judging.data(1, 2, 3)
    files = [judging.responses("a", q1=None, q2="A2", q3=None), judging.responses("b", q1="", q2="B2", q3="B3")]
    found = judging.run("pairwise", files)
    assert [entry["result"] for entry in found["per_question_scores"]] == ["tie", "win", "loss"]
    assert [entry["answered"] for entry in found["per_question_scores"]] == [[False] * 2, [True] * 2, [False, True]]
    assert (found["position_swap_rate"], found["num_unanswered"]) == (0.0, [2, 1])
    assert len(judging.server.requests) == 2
    judging.data(1)  # nothing is left to compare
    found = judging.run("pairwise", [judging.responses("a", q1="A1"), judging.responses("b", q1=" \n")], to="none.json")
    assert (found["position_swap_rate"], found["num_unscored"], found["wins"]) == (None, 0, 1)
    assert "position-swap rate none" in capsys.readouterr().out and len(judging.server.requests) == 2


def test_aspects_are_the_default_and_scores_of_another_strategy_are_kept(judging):
    files = three_pairs(judging)
    judging.run("aspect", files[:1], to="aspect.json")
    judging.run(None, files[:1], to="default.json")
    assert judging.settings("default.json") == judging.settings("aspect.json")
    aspects = (judging.folder / "aspect.json").read_bytes()
    assert (judging.folder / "default.json").read_bytes() == aspects and "strategy" not in json.loads(aspects)
    with pytest.raises(UserError, match=r'made with other settings: strategy: "aspect", now "direct"'):
        judging.run("direct", files[:1], to="aspect.json")
    assert (judging.folder / "aspect.json").read_bytes() == aspects


@pytest.mark.parametrize("strategy", ["direct", "pairwise"])
def test_the_judge_sees_whole_responses_and_needs_no_aspects(judging, strategy):
    judging.server.reply = levels({"A1": 0.5}) if strategy == "direct" else prefers(min)
    question = make_question(1)
    del question["rubric_aspects"]
    judging.write("data.json", [question])
    files = [judging.responses("a", q1="A1"), judging.responses("b", q1="B1")]
    judging.run(strategy, files if strategy == "pairwise" else files[:1], "--max_concurrency", 1)
    shared = {"question": "Question number 1?", "details": "The narrative of question 1."}
    shown = [{"response_1": one, "response_2": other} for one, other in (("A1", "B1"), ("B1", "A1"))]
    prompt = load_prompt(f"lampqa/{strategy}_judge")
    assert [request["messages"] for request in judging.server.requests] == [
        prompt.messages(**shared, **its) for its in (shown if strategy == "pairwise" else [{"response": "A1"}])
    ]
