"""Datasets and response files: what is read and matched; tests/scripts/test_bad_input.py has what is refused."""

import json
import re

import pytest

from utils.base.errors import UserError
from utils.base.manifest import publish
from utils.data.datasets import read_dataset, select_questions
from utils.data.responses import collect_responses, count_responses, match_responses, refuse_gaps

POST = {"id": "p1", "text": "an earlier post", "category": "food"}
ASPECT = {"aspect": "price", "evidence": "how much", "reason": "a small budget"}
EVERYTHING = ("profile", "narrative", "rubric_aspects")


def record(**changes):
    """Return a complete record; a field set to `...` is left out."""
    whole = {
        "id": "q1",
        "question": "Which bread?",
        "narrative": "I bake on Sundays.",
        "category": "food",
        "rubric_aspects": [ASPECT],
        "profile": [POST],
    }
    return {name: value for name, value in (whole | changes).items() if value is not ...}


def write(path, content):
    """Write a file with bytes, a text, or anything else as JSON."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        path.write_text(text, encoding="utf-8")
    return path


def message(call, *args, **more):
    with pytest.raises(UserError) as error:
        call(*args, **more)
    assert len(str(error.value).splitlines()) <= 3
    return str(error.value)


# Datasets


def test_a_dataset_is_read_unchanged(tmp_path):
    records = [record(posted={"year": 2014}), record(id="q2", rubric_aspects=[], profile=[], score=1.5)]
    assert read_dataset(write(tmp_path / "d.json", records), EVERYTHING) == records


def test_only_what_the_script_needs_is_checked(tmp_path):
    path = write(tmp_path / "d.json", [{"id": "q1", "question": "Which bread?", "profile": None}])
    assert read_dataset(path) == [{"id": "q1", "question": "Which bread?", "profile": None}]


def test_json_lines_are_read_in_a_jsonl_file(tmp_path):
    records = [record(), record(id="q2", question="U+2028 \u2028, U+0085 \u0085 and \x7f stay in the text: 日本語")]
    lines = [json.dumps(r, ensure_ascii=False) for r in records]
    for end in ("\n", "\r\n", "\n\n  \n"):
        assert read_dataset(write(tmp_path / "d.jsonl", (end.join(lines) + end).encode()), EVERYTHING) == records


def test_ids_that_are_numbers_become_strings(tmp_path):
    path = write(tmp_path / "d.json", [record(id=7), record(id=0), record(id="007")])
    assert [r["id"] for r in read_dataset(path)] == ["7", "0", "007"]


WHOLE = json.dumps([record()], indent=1)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([], "has no questions"),
        ({"data": [record()]}, "found an object; a dataset must be a JSON array of questions"),
        (
            '{"id": 1}\n{"id": 2}\n',
            "more than one JSON value (line 2, column 1); if it is JSON Lines, rename it to *.jsonl",
        ),
    ],
)
def test_a_file_that_is_not_a_dataset(tmp_path, content, expected):
    path = write(tmp_path / "d.json", content)
    assert message(read_dataset, path) == f"{path}: {expected}"


def test_a_file_cut_short_anywhere_is_refused_with_the_place(tmp_path):
    for length in range(1, len(WHOLE)):
        path = write(tmp_path / "d.json", WHOLE[:length])
        assert re.search(r"line \d+, column \d+", message(read_dataset, path)), WHOLE[:length][-20:]


def test_a_number_and_its_digits_are_the_same_id(tmp_path):
    path = write(tmp_path / "d.json", [record(id="7"), record(id="8"), record(id=7)])
    assert message(read_dataset, path) == f"{path}: records 0 and 2 both have id '7'; ids must be unique"


# Choosing questions


def ids_of(records):
    return [r["id"] for r in records]


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("limit", [None, 25])
def test_shards_are_disjoint_and_complete(num_shards, limit):
    records = [{"id": f"q{i}"} for i in range(60)]
    shards = [select_questions(records, limit, num_shards, index) for index in range(num_shards)]
    ids = [i for shard in shards for i in ids_of(shard)]
    assert len(ids) == len(set(ids))
    assert set(ids) == set(ids_of(records[:limit]))
    places = [[records.index(r) for r in shard] for shard in shards]
    assert places == [sorted(place) for place in places]  # each in file order


def test_a_shard_does_not_depend_on_the_files_order():
    records = [{"id": f"q{i}"} for i in range(60)]
    forward, backward = (select_questions(some, num_shards=3, shard_index=1) for some in (records, records[::-1]))
    assert 0 < len(forward) < 60
    assert forward == backward[::-1]


def test_named_questions_are_taken_in_the_files_order(tmp_path):
    records, path = [{"id": f"q{i}"} for i in range(5)], tmp_path / "ids.txt"
    path.write_text("q3 \n\nq1\nelsewhere\n")
    assert ids_of(select_questions(records, ids_addr=str(path))) == ["q1", "q3"]
    assert ids_of(select_questions(records, 1, ids_addr=str(path))) == ["q1"]
    path.write_text("elsewhere\n")
    with pytest.raises(UserError, match=r"ids\.txt: has none of the dataset's ids, such as 'q0'"):
        select_questions(records, ids_addr=str(path))


def test_limit_takes_the_first_of_the_file():
    records = [{"id": f"q{i}"} for i in range(5)]
    assert ids_of(select_questions(records, limit=2)) == ["q0", "q1"]
    assert ids_of(select_questions(records, limit=9)) == ids_of(select_questions(records)) == ids_of(records)


# Responses


def test_a_missing_response_is_not_replaced_by_another():
    answers = {
        ("q3", 0): {"value": "f"},
        ("q1", 0): {"value": "a"},
        ("q1", 2): {"value": "c"},
        ("q2", 1): {"value": "e"},
    }
    responses = collect_responses([{"id": "q1"}, {"id": "q2"}, {"id": "q3"}], answers)
    outputs = {key: [sample["output"] for sample in samples] for key, samples in responses.items()}
    assert list(outputs.items()) == [("q1", ["a"]), ("q3", ["f"])]  # in the dataset's order


def test_a_response_file_with_gaps_is_refused(tmp_path):
    path = tmp_path / "rag.json"
    refuse_gaps(path)  # its existence is checked elsewhere
    for missing, words in ((1, ("1 answer is", "it")), (1200, ("1200 answers are", "them"))):
        publish(path, {"q1": [{"output": "a"}]}, {"settings": {}, "missing": missing})
        with pytest.raises(UserError) as refused:
            refuse_gaps(path)
        assert str(refused.value) == (
            f"{path}: {words[0]} missing because the server failed\n"
            f"  run the command that made the file again to retry {words[1]}, or add --allow_partial to score the rest"
        )
    path.write_text('{"q1": [{"output": "mine"}]}')  # not the file of the manifest
    refuse_gaps(path)
    publish(path, {"q1": [{"output": "a"}]}, {"settings": {}, "missing": 0})
    refuse_gaps(path)
    publish(path, {"q1": [{"output": "a"}]}, {"settings": {}})  # as in versions before this count
    refuse_gaps(path)


def test_responses_are_counted():
    responses = {
        "q1": [{"output": "a", "parsed": "repaired", "truncated": True, "num_contexts_dropped": 3}, {"output": "b"}],
        "q2": [{"output": None, "num_contexts_dropped": 4}, {"output": "", "parsed": "strict", "truncated": False}],
    }
    assert count_responses(responses) == {
        "questions": 2,
        "answers": 3,
        "without an answer": 1,
        "repaired": 1,
        "truncated": 1,
        "posts left out for length": 7,
    }
    trimmed = [{"output": "a", "num_contexts_trimmed": number, "question_cut": number > 1} for number in range(4)]
    assert count_responses({"q": trimmed}).items() >= {("posts trimmed", 6), ("questions cut", 2)}


DATASET_IDS = [f"q{i}" for i in range(10)]
NOT_THE_DATASET = "r.json: its ids do not match the dataset; use the dataset that these responses were made from"
REMEDY = "use the dataset of these responses"
ONLY_A_PART = "r.json: some questions have no response; add --allow_partial to score the others"


def match(question_ids, response_ids, allow_partial):
    questions = [{"id": i} for i in question_ids]
    responses = {i: [{"output": "a"}] for i in response_ids}
    return match_responses(questions, responses, "r.json", DATASET_IDS, allow_partial)


@pytest.mark.parametrize("allow_partial", [False, True])
@pytest.mark.parametrize("question_ids", [DATASET_IDS, DATASET_IDS[2:4], []])
def test_a_response_to_every_question(question_ids, allow_partial):
    # Responses to other questions of the dataset are those of other shards.
    assert ids_of(match(question_ids, DATASET_IDS[::-1], allow_partial)) == question_ids


@pytest.mark.parametrize(
    ("response_ids", "allow_partial", "lines"),
    [
        (["q0", "q1"], False, [ONLY_A_PART, "  8 questions without a response: 'q2', 'q3', 'q4', 'q5', 'q6', ..."]),
        (DATASET_IDS[:9], False, [ONLY_A_PART, "  1 question without a response: 'q9'"]),
        ([], True, [NOT_THE_DATASET, "  10 questions without a response: 'q0', 'q1', 'q2', 'q3', 'q4', ..."]),
        ([*DATASET_IDS, "x"], True, [f"r.json: id 'x' is not in the dataset; remove it, or {REMEDY}"]),
        (["q1", "x", "y"], True, [f"r.json: ids 'x', 'y' are not in the dataset; remove them, or {REMEDY}"]),
        (
            [f"x{i}" for i in range(6)],
            False,
            [
                NOT_THE_DATASET,
                "  10 questions without a response: 'q0', 'q1', 'q2', 'q3', 'q4', ...",
                "  6 responses without a question in the dataset: 'x0', 'x1', 'x2', 'x3', 'x4', ...",
            ],
        ),
    ],
    ids=["a part", "all but one", "none", "one foreign", "two foreign", "all foreign"],
)
def test_ids_that_do_not_match(response_ids, allow_partial, lines):
    assert message(match, DATASET_IDS, response_ids, allow_partial) == "\n".join(lines)


@pytest.mark.parametrize("allow_partial", [False, True])
def test_answers_to_another_wording_are_refused(allow_partial):
    """A question that changed under its id, or its options; answers that do not say what was asked are taken."""
    old = [{"id": key, "question": f"Why {key}?", "options": ["a", "b"]} for key in ("q1", "q2", "q3")]
    responses = collect_responses(old, {(record["id"], 0): {"value": "a"} for record in old})
    new = [{**old[0], "question": "Why not?"}, {**old[1], "options": ["b", "a"]}, old[2]]
    refusal = message(match_responses, new, responses, "r.json", ["q1", "q2", "q3"], allow_partial)
    assert refusal.startswith("r.json: answers different questions from the dataset's with the same ids: 'q1', 'q2'\n")
    for samples in responses.values():
        del samples[0]["question_hash"]
    assert match_responses(new, responses, "r.json", ["q1", "q2", "q3"], allow_partial) == new


def test_a_shard_without_responses_scores_none_of_them():
    questions = [record()]
    assert match_responses(questions, {"q2": []}, "answers.json", ["q1", "q2"], allow_partial=True) == []
