"""import_dataset.py: records written by hand, refusals, and the way from CSV to a table and a report."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from api_server import Reply, serve

import baselines
import evaluate_responses
from retrieval import rank_dataset
from utils import dataset_statistics, make_table, report
from utils.base.errors import UserError
from utils.base.manifest import read_manifest
from utils.data.datasets import read_dataset
from utils.import_dataset import main

QUESTIONS = """qid,user,title,details,topic,asked,rubric,device
q1,ann,How do I store herbs?,I have no fridge.,kitchen,2024-05-03,"[""No fridge"", {""aspect"": ""Cheap""}]",phone
q2,bob,"Which ""tent"", if any?","It rains
a lot.",,2024-05-03T10:00:00+02:00,,
"""
POSTS = """pid,user,body,date,likes
p3,ann,Third,2024-05-02T23:00:00Z,3
p2,ann,Second,2024-05-02T12:00:00,0
p1,ann,First,2024-05-01,1
q1,ann,The question,2024-04-01,0
p4,ann,Too late,2024-05-03,9
p5,bob,How do I store herbs?,2024-05-03T07:59:59Z,2
p6,bob,Eight o'clock,2024-05-03T08:00:00Z,2
p7,bob,Ha: It rains a   lot. Yes,2024-05-01,2
p8,bob,That day,2024-05-03,2
p9,bob, which: Which "tent"?,2024-05-01,2
"""
COLUMNS = (
    "--columns id=qid author=user question=title narrative=details category=topic date=asked rubric_aspects=rubric"
)
POST_COLUMNS = "--post_columns id=pid author=user text=body"
RECORDS = [
    {
        "id": "q1", "question": "How do I store herbs?", "author": "ann", "narrative": "I have no fridge.",
        "category": "kitchen", "date": "2024-05-03", "device": "phone",
        "rubric_aspects": [{"aspect": "No fridge"}, {"aspect": "Cheap"}],
        "profile": [
            {"id": "p1", "text": "First", "date": "2024-05-01", "likes": "1"},
            {"id": "p2", "text": "Second", "date": "2024-05-02T12:00:00", "likes": "0"},
            {"id": "p3", "text": "Third", "date": "2024-05-02T23:00:00Z", "likes": "3"},
        ],
    },
    {
        "id": "q2", "question": 'Which "tent", if any?', "author": "bob", "narrative": "It rains\na lot.",
        "date": "2024-05-03T10:00:00+02:00", "device": "",
        "profile": [
            {"id": "p9", "text": ' which: Which "tent"?', "date": "2024-05-01", "likes": "2"},
            {"id": "p5", "text": "How do I store herbs?", "date": "2024-05-03T07:59:59Z", "likes": "2"},
        ],
    },
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name, text):
    """Write a CSV text in the format that the file's name says, and return the name."""
    header, *rows = csv.reader(io.StringIO(text))
    objects = [dict(zip(header, row, strict=True)) for row in rows]
    with open(name, "w", encoding="utf-8-sig", newline="") as file:
        if name.endswith("sv"):
            csv.writer(file, delimiter="\t" if name.endswith(".tsv") else ",").writerows([header, *rows])
        else:
            file.write("\n".join(map(json.dumps, objects)) if name.endswith(".jsonl") else json.dumps(objects))
    return name


def run(questions="questions.csv", posts="posts.csv", columns=COLUMNS, post_columns=POST_COLUMNS):
    flags = f"--questions {questions} --posts {posts} --output_addr own.json {columns} {post_columns}"
    assert main(flags.split()) == 0
    return json.loads(Path("own.json").read_text())


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "json"])
def test_a_question_gets_its_users_earlier_posts(form, capsys):
    assert run(write(f"questions.{form}", QUESTIONS), write(f"posts.{form}", POSTS)) == RECORDS
    assert read_dataset("own.json", ["profile", "narrative"]) == RECORDS
    assert capsys.readouterr().out == (
        "own.json: 2 questions, 5 posts in profiles, 2 rows of questions read, 10 rows of posts read, 2 posts left out "
        "as the question itself, 3 posts left out as not older than their question\n"
    )
    assert {*read_manifest("own.json")["settings"]["inputs"]} == {f"questions.{form}", f"posts.{form}"}


def test_without_dates_a_profile_has_all_posts_but_the_question(capsys):
    undated = COLUMNS.replace(" date=asked", "")
    records = run(write("questions.csv", QUESTIONS), write("posts.csv", POSTS), undated)
    assert [[post["id"] for post in record["profile"]] for record in records] == [
        ["p1", "p2", "p3", "p4"],  # by date
        ["p9", "p5", "p6", "p8"],
    ]
    assert capsys.readouterr().out.endswith("2 questions without a date\n")
    write("posts.csv", POSTS.replace(",date,", ",written,"))
    records = run()
    assert [post["id"] for post in records[0]["profile"]] == ["p3", "p2", "p1", "p4"]  # in the order of the file
    assert ", 10 posts without a date, " in capsys.readouterr().out


def test_users_of_json_may_be_numbers(capsys):
    Path("q.jsonl").write_text('{"id": 5, "author": 7, "question": "Why?"}\n{"id": 6, "author": 8, "question": "Who?"}')
    records = run("q.jsonl", write("posts.csv", "author,text\n7,Because\n"), "", "")
    assert records == [
        {"id": "5", "author": "7", "question": "Why?", "profile": [{"text": "Because"}]},
        {"id": "6", "author": "8", "question": "Who?", "profile": []},
    ]
    assert "1 row of posts read, 1 post without a date, 1 question without posts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [  # the header is row 1
        ("questions", "qid,", "key,", "row 2: no column 'qid', only key, user, title, details, topic, asked, rubric, "
         "device\n  name the columns with --columns id=COLUMN question=COLUMN author=COLUMN"),
        ("questions", "topic", "theme", "row 2: no column 'topic', only qid, user,"),
        ("questions", "q2,", "q1,", "row 2 and questions.csv: row 3: both have id 'q1'; ids must be unique"),
        ("questions", "How do I store herbs?", " ", "row 2 (id 'q1'): field 'question': Expected `str` that is not"),
        ("questions", "q1,ann", "q1,", "row 2: field 'author' is an empty text; it must be a string or a whole number"),
        ("questions", "q1,", ",", "row 2: field 'id' is an empty text; every question needs a unique string as id"),
        ("questions", "q1,", "1.23457E+17,", "row 2: field 'id' is '1.23457E+17', a long number that was rounded\n  "
         "export it again, with this column as text"),
        ("posts", "p4,ann", 'p4,"1,23457E+17"', "row 6: field 'author' is '1,23457E+17', a long number that was"),
        ("questions", "2024-05-03T", "3 May", "row 3: field 'date' is the text '3 May10:00:00+02:00'; use 2024-05-31"),
        ("questions", '""aspect""', '""title""', "row 2 (id 'q1'): field 'rubric_aspects[1]': Object missing required"),
        ("questions", '""No fridge"",', "No fridge,", "row 2: field 'rubric_aspects' is the text '[No fridge, "),
        ("questions", "device", "task", "row 2: column 'task' has the name of another field of datasets; rename it"),
        ("posts", "2024-05-03,9", "2024-05-32,9", "row 6: field 'date' is the text '2024-05-32'; use 2024-05-31 or"),
        ("posts", "Too late", "", "row 6: field 'text': Expected `str` that is not empty"),
        ("posts", ",9", ",9,9", "row 6: has 6 cells, but the header has 5"),
        ("posts", "p4,ann,Too late", 'p4,ann,"Too" late', "row 6: not valid in CSV: ',' expected after"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_file_and_row(file, old, new, told, folder):
    texts = {"questions": QUESTIONS, "posts": POSTS}
    assert texts[file].count(old) == 1
    for name, text in (texts | {file: texts[file].replace(old, new)}).items():
        Path(f"{name}.csv").write_text(text)
    with pytest.raises(UserError, match=re.escape(f"{file}.csv: {told}")):
        run()
    assert sorted(path.name for path in folder.iterdir()) == ["posts.csv", "questions.csv"]


def test_a_file_that_cannot_be_a_table_or_an_output_is_refused():
    write("questions.csv", QUESTIONS)
    with pytest.raises(UserError, match=r"^posts\.csv: no such file$"):
        run()
    for content, told in ((b"author,text\n", "has no rows"), (b"author\nan\x81", "neither UTF-8 nor Windows-1252")):
        Path("posts.csv").write_bytes(content)
        with pytest.raises(UserError, match=rf"^posts\.csv: {told}"):
            run()
    with pytest.raises(UserError, match=r"^own\.jsonl: the dataset is a JSON array; its name must end in \.json$"):
        main(["--questions", "questions.csv", "--posts", "posts.csv", "--output_addr", "own.jsonl"])


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("question_id", "post_id", "user", "post_user"),
    [
        (101, 101.0, 7, 7.0),  # pandas writes whole numbers of a column with a gap as floats
        ("101.0", 101, "7", 7),
        (" 101", "101 ", "ann ", "\u00a0ann"),
        ("101.", "101.00", "7.0", " 7"),
        ("q101", "q101\n", "Ann B.", " Ann B."),
    ],
)
def test_the_type_of_an_id_does_not_decide_a_join(form, question_id, post_id, user, post_user):
    """Left out is the post that is the question itself, whose text differs."""
    tables = {
        "questions": [{"id": question_id, "author": user, "question": "Why?", "category": " ice "}],
        "posts": [
            {"id": post_id, "author": post_user, "text": "<p>Why?</p>"},
            {"id": "", "author": post_user, "text": "Other"},
        ],
    }
    for name, rows in tables.items():
        with open(f"{name}.{form}", "w", newline="") as file:
            if form == "csv":
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                writer.writerows(rows)
            else:
                file.writelines(json.dumps(row) + "\n" for row in rows)
    [record] = run(f"questions.{form}", f"posts.{form}", "", "")
    assert record["profile"] == [{"id": "", "text": "Other"}] and record["category"] == "ice"
    assert record["id"] == str(question_id).strip().removesuffix("0").removesuffix(".") or form == "jsonl"


ROUNDED = ["1.23457E+17", "1,23457E+17", "1.23457E17", "1.23457e17", "123E+15", "1.2345678901234568e+17"]


@pytest.mark.parametrize("rounded", [*ROUNDED, 1.2345678901234568e17, 2.0**60])
def test_a_rounded_id_of_a_post_is_refused(rounded):
    write("questions.csv", QUESTIONS)
    Path("posts.jsonl").write_text(json.dumps({"id": rounded, "author": "ann", "text": "Hi"}))
    with pytest.raises(UserError, match=r"posts\.jsonl: record 0: field 'id' is .*, a long number that was rounded\n"):
        run(posts="posts.jsonl", post_columns="")


def test_users_without_a_counterpart_are_counted_and_named(capsys):
    posts = "author,text\nann,Because\n" + "carl,Hi\n" * 2
    run(write("questions.csv", QUESTIONS), write("posts.csv", posts), post_columns="")
    out, err = capsys.readouterr()
    assert "1 question without posts, 2 posts by users without a question" in out
    assert err == (
        "note: 1 of 2 questions by users without a post, such as 'bob'; 2 of 3 posts by users without a question, such "
        "as 'carl'\n"
    )
    Path("own.json").unlink()
    with pytest.raises(UserError) as error:
        run(posts=write("posts.csv", posts.replace("ann", "Ann")), post_columns="")
    assert str(error.value) == (
        "no user has questions and posts: 2 of 2 questions by users without a post, such as 'ann'; 3 of 3 posts by "
        "users without a question, such as 'Ann'\n"
        "  name the columns: --columns author=COLUMN --post_columns author=COLUMN"
    )
    assert not Path("own.json").exists()


@pytest.mark.parametrize("user", ["", "  ", None])
def test_posts_without_a_user_are_counted(user, capsys):
    """Of deleted users; a question needs its user."""
    Path("q.jsonl").write_text(
        json.dumps({"id": "q", "author": "a", "question": "Why?", "category": 2.0, "date": 20240531})
    )
    posts = [{"author": "a", "text": "Kept"}, {"author": user, "text": "Lost"}]
    Path("p.jsonl").write_text("".join(json.dumps(post) + "\n" for post in posts))
    [record] = run("q.jsonl", "p.jsonl", "", "")
    assert [post["text"] for post in record["profile"]] == ["Kept"] and record["category"] == "2"
    assert ", 2 rows of posts read, " in (printed := capsys.readouterr().out) and ", 1 post without a user" in printed
    Path("p.jsonl").write_text(json.dumps(posts[1]))
    with pytest.raises(UserError, match="no post has a user"):
        run("q.jsonl", "p.jsonl", "", "")
    Path("q.jsonl").write_text(json.dumps({"id": "q", "author": user, "question": "Why?"}))
    with pytest.raises(UserError, match=r"q\.jsonl: record 0: field 'author' is"):
        run("q.jsonl", "p.jsonl", "", "")


@pytest.mark.parametrize(
    ("narrative", "text", "is_left_out"),
    [
        ("no", "There is no sun, no.", False),
        ("None of them", "None of them worked.", False),
        ("gluten-free", "gluten-free bread", False),
        ("  ", "There is no sun.", False),
        ("I have no balcony", "Hi! I have no balcony and", True),
        ("I have no balcony", "I have no balconyfurniture", False),
        ("I have no balcony", "Well (I have no balcony). Why?", True),
        ("I have no balcony.", "Alas, I have\nno  balcony.", True),
        ("没有", "我没有阳台", False),
        ("我家没有朝南阳台", "请问：我家没有朝南阳台，种什么？", True),
        ("ベランダがありません", "うちにはベランダがありません。", True),
    ],
)
def test_a_post_with_a_short_narrative_is_not_the_question(narrative, text, is_left_out):
    Path("q.jsonl").write_text(json.dumps({"id": "q", "author": "a", "question": "Why?", "narrative": narrative}))
    Path("p.jsonl").write_text("".join(json.dumps({"author": "a", "text": body}) + "\n" for body in (text, "Other")))
    [record] = run("q.jsonl", "p.jsonl", "", "")
    assert [post["text"] for post in record["profile"]] == [text, "Other"][is_left_out:]


def test_a_table_given_as_a_dataset_is_sent_to_this_command():
    """By commands that read all of a dataset, only its questions, or one record at a time."""
    path = write("questions.csv", QUESTIONS)
    for script, words in (
        (baselines, f"--model_addr m --inputs_addr {path} --output_addr a.json"),
        (report, f"--inputs_addr {path} --output_addr a.html --system A a.json"),
        (dataset_statistics, f"--inputs_addr {path}"),
        (rank_dataset, f"--ranker bm25 --input_dataset_addr {path} --output_dataset_addr r.json"),
    ):
        with pytest.raises(UserError) as error:
            script.main(words.split())
        assert str(error.value) == (
            "questions.csv: a CSV or TSV file, but a dataset is JSON; convert it: python utils/import_dataset.py "
            "--questions questions.csv --posts FILE --output_addr questions.json"
        )


def test_from_csv_to_a_table_with_own_groups_and_a_report(capsys):
    """Rank, answer with two systems, judge, compare. The judge prefers answers that had posts."""
    rows = [f"q{i},u{i % 4},Why {i}?,I need {i}.,{('ice', 'ice', 'sea')[i % 3]},2024-05-01" for i in range(12)]
    rows = "\n".join(
        ["id,author,question,narrative,category,date,rubric_aspects", *(f'{row},"[""a""]"' for row in rows)]
    )
    posts = "\n".join(["author,text,date", *(f"u{i % 4},Secret {i}: why?,2024-04-01" for i in range(12))])
    run(write("questions.csv", rows), write("posts.csv", posts), "", "")
    Path("key.txt").write_text("sk-test")

    def do(script, words):
        assert script.main(words.split()) == 0

    def reply(request):
        prompt = json.dumps(request["messages"])
        if "match_score" not in prompt:
            return Reply(json.dumps({"personalized_answer": "with posts" if "Secret" in prompt else "without"}))
        number = int(re.search(r"Why (\d+)", prompt)[1])
        score = 2 * (number != 5) if "with posts" in prompt else 1 * (number == 6)
        return Reply(json.dumps({"match_score": score}))

    do(rank_dataset, "--ranker bm25 --input_dataset_addr own.json --output_dataset_addr ranked.json")
    with serve(reply) as server:
        api = f"--openai --base_url {server.url} --api_key_addr key.txt"
        do(baselines, f"{api} --model_addr m --inputs_addr own.json --output_addr none.json")
        do(baselines, f"{api} --model_addr m --rag --inputs_addr ranked.json --output_addr rag.json")
        files = "--response_addr none.json rag.json --score_addr none_s.json rag_s.json"
        do(evaluate_responses, f"{api} --evaluator_llm m --inputs_addr own.json {files}")
    systems = "--system None none_s.json --system RAG rag_s.json --baseline None"
    capsys.readouterr()
    do(make_table, f"{systems} --format csv")
    table = {row.pop("System"): row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    columns = ["ice", "sea", "Average (macro)", "All questions"]
    assert list(table["RAG"])[:4] == columns
    # Of 8 questions of ice and 4 of sea, only question 6 (ice) scores 1/2 without posts, and all but 5 (sea) 1 with.
    for system, scores in (("None", [0.5 / 8, 0, 0.5 / 16, 0.5 / 12]), ("RAG", [1, 3 / 4, 7 / 8, 11 / 12])):
        assert [float(table[system][column]) for column in columns] == pytest.approx(scores)
    do(make_table, f"{systems} --format latex --output_addr table.tex")
    latex = Path("table.tex").read_text()
    assert "& {ice} & {sea} & {Average} & {All questions} &" in latex and r"{\textbf{1.0000}$^{\dag}$}" in latex
    pages = "--system None none.json none_s.json --system RAG rag.json rag_s.json"
    do(report, f"--inputs_addr ranked.json --output_addr report.html {pages}")
    assert "Secret 11" in Path("report.html").read_text()
