"""LaMP's and LongLaMP's own files: errors are described in one to three lines."""

import json

import pytest

from utils.base.errors import UserError
from utils.benchmarks import tasks
from utils.data.originals import read_originals, table_rows


def item(number):
    return {"id": f"p{number}", "title": f"Title {number}", "text": f"Text {number}", "date": "2020-01-01"}


def questions(*ids):
    ask = "Generate a headline for the following article: An article."
    return [{"id": key, "input": ask, "profile": [item(1), item(2)]} for key in ids]


def golds(*ids, task="LaMP_4"):
    return {"task": task, "golds": [{"id": key, "output": f" Headline {key}\n"} for key in ids]}


def read(folder, content_of_questions, answers=None, name="LaMP-4", rows=""):
    """Read records from two files with this content: a text unchanged, all else as JSON."""
    paths = []
    for file, content in (("questions.json", content_of_questions), ("outputs.json", answers)):
        paths.append(folder / file)
        paths[-1].write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return list(read_originals(tasks()[name], paths[0], None if answers is None else paths[1], rows))


def test_questions_and_outputs_become_records(tmp_path):
    given = questions("10", 11)
    given[1] |= {"user_id": "u7", "date": "2021-05-06"}
    record, other = read(tmp_path, given, golds("11", "10"))
    assert record == {
        "task": "LaMP-4",
        "id": "10",
        "question": given[0]["input"],
        "target": "Headline 10",
        "profile": given[0]["profile"],
    }
    assert (other["id"], other["target"], other["user_id"], other["date"]) == ("11", "Headline 11", "u7", "2021-05-06")


def test_questions_in_the_form_that_lamp_s_builder_of_emails_gives_its_test_set(tmp_path):
    """The builder wraps them as if they were answers."""
    email = {"id": "1", "input": "Generate a subject for the following email: Hi", "profile": []}
    [record] = read(tmp_path, {"task": "LaMP_6", "golds": [email]}, name="LaMP-6")
    assert (record["id"], record["question"]) == ("1", email["input"])


def test_emails_in_the_form_that_longlamp_s_builder_gives_them(tmp_path):
    """Title and first words are the input, the other words the answer; the answers are a plain list."""
    content, length = "Hi Bo,\n\nthe room:  2.14 is\tfree now.", 4
    words = content.split()
    ask = f"Complete the text of the following email. title: Room: 2.14. text: {' '.join(words[:length])}"
    item = {"id": "p1", "text": content, "title": "Re: room", "date": "2001-02-03"}
    given = [{"id": 7, "input": ask, "profile": [item], "user_id": "u7"}]
    [record] = read(tmp_path, given, [{"id": 7, "output": " ".join(words[length:])}], name="LongLaMP-email")
    assert (record["question"], record["target"], record["user_id"]) == (ask, "2.14 is free now.", "u7")
    assert tasks()["LongLaMP-email"].query(record) == "Room: 2.14. text: Hi Bo, the room:"
    assert record["profile"] == [item]
    with pytest.raises(UserError, match="a message's id instead of its text"):
        read(tmp_path, [{"id": 7, "input": "038-000512-EM", "content_length": 4, "profile": []}], name="LongLaMP-email")


def test_rows_without_ids_get_the_file_s_name_and_their_number(tmp_path):
    review = {"overall": 4.0, "summary": "S", "description": "D", "reviewText": "R"}
    row = {"reviewerId": "A1", "input": "Generate", "output": "Text", "profile": [review, review]}
    records = read(tmp_path, [row, row], name="LongLaMP-review", rows="product_review_user-val")
    assert [record["id"] for record in records] == ["product_review_user-val-0", "product_review_user-val-1"]
    assert [item["id"] for item in records[1]["profile"]] == [f"product_review_user-val-1-{i}" for i in (0, 1)]
    assert records[0]["reviewerId"] == "A1"
    with pytest.raises(UserError, match=r"questions\.json: record 0: field 'id' is missing or null"):
        read(tmp_path, [row], name="LongLaMP-review")


def test_a_byte_order_mark_and_json_lines_are_read(tmp_path):
    assert len(read(tmp_path, "\ufeff" + json.dumps(questions("1", "2")))) == 2
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in questions("1", "2", "3")))
    assert len(list(read_originals(tasks()["LaMP-4"], lines))) == 3


def changed(**fields):
    return [questions("1")[0] | fields]


BAD = {
    "another split": (
        questions("1", "2"),
        golds("1", "3"),
        r"record 1 \(id '2'\): .*outputs.json has no answer for it",
    ),
    "answers too many": (
        questions("1"),
        golds("1", "2", "3"),
        "2 answers without a question in .*: '2', '3'\n  use the",
    ),
    "another task": (questions("1"), golds("1", task="LaMP_5"), "answers of task 'LaMP_5', not LaMP-4"),
    "an answer twice": (questions("1"), golds("1", "1"), "two answers with id '1'; ids must be unique"),
    "an answer twice, as a number": (questions("1"), golds(1, "1"), "two answers with id '1'; ids must be unique"),
    "an answer with an invalid id": (questions("1"), golds(True), r"field 'golds\[0\].id': Expected"),
    "no golds": (questions("1"), {}, "outputs.json: Object missing required field `golds`"),
    "a gold without output": (questions("1"), {"golds": [{"id": "1"}]}, r"field 'golds\[0\]': Object missing required"),
    "a gold that is not a text": (questions("1"), {"golds": [{"id": "1", "output": 4}]}, r"'golds\[0\].output': Exp"),
    "half a gold": (questions("1"), golds("\ud800"), "outputs.json: has half a character"),
    "an id twice": (questions("1", "1"), None, "record 1: id '1' is also the id of record 0; ids must be unique"),
    "no questions": ([], None, "has no questions"),
    "an object": ({"a": 1}, None, "found an object, expected an array of questions"),
    "a number": ("7", None, "questions.json: found 7; a dataset must be a JSON array of questions"),
    "cut short": (json.dumps(questions("1", "2"))[:-20], None, "the JSON ends early at line 1"),
    "no input": (changed(input=None), None, r"record 0 \(id '1'\): field 'input': Expected `str`, got `null`"),
    "no anchor": (changed(input="Generate a headline"), None, r"\(id '1'\): field 'question' has no 'article:'"),
    "no profile": (changed(profile=None), None, r"\(id '1'\): field 'profile': Expected `array`, got `null`"),
    "an item that is none": (changed(profile=["x"]), None, r"field 'profile\[0\]': Expected `object`, got `str`"),
    "an item without its text": (
        changed(profile=[item(1), {"id": "p9", "title": "T"}]),
        None,
        r"record 0 \(id '1'\): field 'profile\[1\]': Object missing required field `text`",
    ),
    "half a character": (
        changed(profile=[item(1) | {"text": "\ud83d"}]),
        None,
        "field 'profile': has half a character",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_are_described(case, tmp_path):
    given, answers, match = BAD[case]
    with pytest.raises(UserError, match=match) as raised:
        read(tmp_path, given, answers)
    assert str(tmp_path) in str(raised.value)
    assert len(str(raised.value).splitlines()) <= 3


def test_the_old_news_categories_of_lamp_2_are_refused(tmp_path):
    news = {"id": "1", "text": "x", "title": "y", "category": "sports"}
    given = {"id": "1", "input": "Which category does this article relate to? article: x", "profile": [news]}
    with pytest.raises(UserError, match=r"record 0: is from the old version of LaMP-2 .*\n.* the folder LaMP_2/new"):
        read(tmp_path, [given], name="LaMP-2")


def test_an_invalid_lamp_2_profile_is_refused(tmp_path):
    given = {"id": "1", "input": "Which tag does this movie relate to? description: x", "profile": 2.5}
    with pytest.raises(UserError, match="field 'profile': Expected `array`, got `float`"):
        read(tmp_path, [given], name="LaMP-2")


def test_two_columns_with_the_same_name_are_refused(tmp_path):
    """Python's reader would keep only the last one."""
    (tmp_path / "table.csv").write_text("id,topic,topic\n1,food,law\n")
    with pytest.raises(UserError, match=r"table\.csv: two columns have the same name, 'topic'; names"):
        list(table_rows(tmp_path / "table.csv"))


def test_records_come_one_at_a_time(tmp_path):
    """A file may be larger than the memory: the first record is returned before the last is read."""
    path = tmp_path / "questions.json"
    path.write_text(json.dumps(questions("1"))[:-1] + ", " + " " * (1 << 21) + "oops]")
    records = read_originals(tasks()["LaMP-4"], path)
    assert next(records)["id"] == "1"
    with pytest.raises(UserError, match="not JSON"):
        next(records)
