"""CSV and TSV files as spreadsheets, pandas and people write them."""

import codecs
import csv
import io
import re

import pytest

from utils.base.errors import UserError
from utils.base.json_files import read_json
from utils.data.datasets import stream_records
from utils.data.responses import read_responses
from utils.data.tables import table_rows

TWO = [{"id": "q1", "text": "Hi"}, {"id": "q2", "text": "Yo"}]


def read(folder, content, suffix=".csv"):
    path = folder / f"table{suffix}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [row for _, row in table_rows(path)]


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".csv", "id,text\nq1,Hi\nq2,Yo\n"),
        (".csv", "id;text\nq1;Hi\nq2;Yo\n"),
        (".csv", "id\ttext\nq1\tHi\nq2\tYo\n"),
        (".csv", "id|text\nq1|Hi\nq2|Yo\n"),
        (".csv", "sep=;\nid;text\nq1;Hi\nq2;Yo\n"),
        (".csv", 'sep=\t\r\n"id"\t"text"\r\n"q1"\t"Hi"\r\n"q2"\t"Yo"\r\n'),
        (".csv", '"sep=|"\nid|text\nq1|Hi\nq2|Yo\n'),
        (".csv", "sep=;;;\nid;text\nq1;Hi\nq2;Yo\n"),
        (".csv", "sep=,,\nid,text\nq1,Hi\nq2,Yo\n"),
        (".csv", codecs.BOM_UTF8 + b"id,text\nq1,Hi\nq2,Yo\n"),
        (".csv", codecs.BOM_UTF8 + b"sep=;\nid;text\nq1;Hi\nq2;Yo\n"),
        (".csv", "id;text\r\nq1;Hi\r\nq2;Yo\r\n".encode("utf-16")),  # with the mark of the machine's byte order
        (".csv", codecs.BOM_UTF16_BE + "id\ttext\nq1\tHi\nq2\tYo\n".encode("utf-16-be")),
        (".tsv", codecs.BOM_UTF16_LE + "id\ttext\nq1\tHi\nq2\tYo\n".encode("utf-16-le")),
        (".TSV", "id\ttext\nq1\tHi\nq2\tYo"),
        (".tsv", "id,text\nq1,Hi\nq2,Yo\n"),
        (".csv", "id,text\rq1,Hi\rq2,Yo\r"),
        (".csv", "\n\nid,text\n\nq1,Hi\n\n\nq2,Yo\n"),
        (".csv", " id ,text \nq1,Hi\nq2,Yo\n"),
        (".csv", "id,text,,\nq1,Hi,,\nq2,Yo,,\n,,,\n , ,,\n"),
        (".csv", "id,text\nq1,Hi,,\nq2,Yo\n,,,,,\n"),
        (".csv", "id,,text\nq1,,Hi\nq2,,Yo\n"),
    ],
)
def test_delimiter_encoding_and_empty_rows(suffix, content, tmp_path):
    assert read(tmp_path, content, suffix) == TWO


def test_values_stay_text(tmp_path):
    """pandas would read them as numbers, dates, or missing values."""
    values = ["007", "1.0", "NA", "null", "1e5", "TRUE", "", "\0", " x ", "2024-05-31", "-"]
    assert read(tmp_path, "\n".join(["a,b", *(f"{value},." for value in values)])) == [
        {"a": value, "b": "."} for value in values
    ]


def test_what_is_skipped_is_counted_in_a_note(tmp_path, capsys):
    read(tmp_path, "id,text,\nq1,Hi,\n,,\n,,\nq2,Yo,\n")
    path = tmp_path / "table.csv"
    assert capsys.readouterr().err == f"note: {path}: skipped 2 rows and 1 column without any value\n"
    read(tmp_path, "id,text\n\nq1,Hi\n")
    assert capsys.readouterr().err == f"note: {path}: skipped 1 row without any value\n"
    read(tmp_path, "id,text\nq1,Hi\n")
    assert capsys.readouterr().err == ""


def test_windows_1252_is_read_with_a_note(tmp_path, capsys):
    rows = read(tmp_path, "id;text\nq1;Hi\nq2;“café” – 5 €\n".encode("cp1252"))
    assert rows[1]["text"] == "“café” – 5 €"
    said = capsys.readouterr().err
    assert "table.csv: line 3 is not UTF-8, so the table is read as Windows-1252 (cp1252); if letters" in said


@pytest.mark.parametrize(
    ("text", "expected"),
    [  # two columns: id, and the one shown
        # Quotes enclose fields, as Excel, pandas and csv.writer write them.
        ('"a\tb"', "a\tb"),
        ('"It rains\na lot."', "It rains\na lot."),
        ('"He said ""no"""', 'He said "no"'),
        ('"plain"', "plain"),
        ('"two\nlines"\nq2\t"with ""quotes"""', "two\nlines"),
        # Quotes are characters, as in text/tab-separated-values.
        ('"Why" is it so?', '"Why" is it so?'),
        ('"Never closed', '"Never closed'),
        ('6" nails', '6" nails'),
        ('"a" or "b"', '"a" or "b"'),
        ('"He said \\"no\\""', '"He said \\"no\\""'),
        ('"Opened here\nq2\tclosed there"', '"Opened here'),
        ('"Opened here\nq2\tno\nq3\t"closed there', '"Opened here'),
        ('"Opened here\nq2\tno\nq3\tclosed there"\t', '"Opened here'),
    ],
)
def test_quotes_in_a_tsv(text, expected, tmp_path):
    rows = read(tmp_path, f"id\ttext\nq1\t{text}\n", ".tsv")
    assert rows[0]["text"] == expected
    assert len(rows) == 1 + len(re.findall(r"^q[23]\t", text, re.MULTILINE))  # no row is in another's field


def test_a_tsv_of_either_kind_keeps_every_row(tmp_path):
    """1,000 generated texts, written by csv.writer and plainly, where a text allows it."""
    texts = [
        f'{opening}word {i} "quoted"{closing}' for i in range(250) for opening in ('"', "") for closing in ('"', "")
    ]
    plain = "\n".join(["id\ttext", *(f"{i}\t{text}" for i, text in enumerate(texts))])
    file = io.StringIO()
    csv.writer(file, delimiter="\t").writerows([["id", "text"], *enumerate(texts)])
    for content in (plain, file.getvalue()):
        assert [row["text"] for row in read(tmp_path, content, ".tsv")] == texts


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("id,text\nq1,Hi,there\n", "row 2: has 3 cells, but the header has 2; is the file incomplete, or a quote"),
        (
            "id,text\nq1,Hi\nq2\n",
            "row 3: has 1 cell, but the header has 2; is the file incomplete, or a quote missing?",
        ),
        ("id,text,\nq1,Hi,x\n", "row 2: 'x' is in a column without a name; name the column"),
        ("id,text,text\nq1,Hi,x\n", "two columns have the same name, 'text'; names must be unique"),
        ('id,text\nq1,"Hi\nq2,Yo\nq3,So\n', "row 2: not valid in CSV: unexpected end of data"),
        ('id,text\nq1,Hi\nq2,"Yo\nq3,"So"\n', "row 3: not valid in CSV: ',' expected after '\"'"),
        ('id,text\nq1,"Hi" there\n', "row 2: not valid in CSV: ',' expected after '\"'"),
        (b"id,text\nq1,\xc3\xa9\nq2,\xe9\n", "line 3: not UTF-8, though other lines are; save the table as CSV UTF-8"),
        (b"id,text\nq1,\x81\n", "neither UTF-8 nor Windows-1252 text; save the table as CSV UTF-8"),
        ("id,text\nq1,Hi\n".encode("utf-16-le"), "UTF-16 text without a byte order mark; save the table as CSV UTF-8"),
        ("id,text\nq1,Hi\n".encode("utf-16-be"), "UTF-16 text without a byte order mark; save the table as CSV UTF-8"),
        (b"PK\x03\x04 and more", "an Excel workbook or another archive; in Excel, save the sheet as CSV UTF-8"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Excel workbook or another archive; in Excel, save the sheet"),
    ],
)
def test_a_table_that_would_lose_something_is_refused(content, problem, tmp_path):
    with pytest.raises(UserError) as error:
        read(tmp_path, content)
    assert f"table.csv: {problem}" in str(error.value)


def test_a_workbook_is_named_by_every_reader(tmp_path):
    path = tmp_path / "book.xlsx"
    path.write_bytes(b"PK\x03\x04\x14\x00")
    for reader in (read_json, read_responses, lambda path: list(stream_records(path))):
        with pytest.raises(UserError, match=r"book\.xlsx: an Excel workbook or another archive; in Excel, save"):
            reader(path)
