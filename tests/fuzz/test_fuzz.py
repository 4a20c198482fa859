"""300 cases of fuzz.py over all readers, and what it takes for a finding; `make fuzz` runs thousands."""

import pytest
from damages import Damage
from fuzz import Ran, judge, open_fuzz
from readers import READERS

pytestmark = pytest.mark.slow

READER = READERS[0]  # of data.json
GOOD = Ran(0, "2 answers\n", "", {"new/none.json": b'{"q0": 1}', "stdout": b"2 answers\n"}, "[]", 2, [])


def test_no_case_is_a_finding():
    with open_fuzz() as fuzz:
        cases = [fuzz.run(number) for number in range(300)]
    findings = [f"make fuzz CASE={case.number}: {case.reader.name}: {case.finding}" for case in cases if case.finding]
    assert findings == []
    codes = {case.ran.code for case in cases}
    assert codes >= {0, 2} and len({case.reader for case in cases}) == len(READERS)


def test_readers_have_names_of_their_own():
    assert len({reader.name for reader in READERS}) == len(READERS)


@pytest.mark.parametrize(
    ("changes", "is_same", "finding"),
    [
        ({}, True, None),
        ({"code": 2, "err": "error: data.json: record 0: field 'id' is null\n"}, False, None),
        ({"code": 2, "err": "error: field 'id' is null\n"}, False, "refused, and no file is named"),
        ({"code": 2, "err": "error: data.json: a\nb\nc\nd\n"}, False, "refused in 4 lines"),
        ({"code": 2, "err": "error: data.json: null\n", "changed": ["none.json"]}, False, "refused, and changed"),
        ({"code": None}, False, "runs for more than 120 s"),
        ({"code": 1, "err": "Traceback (most recent call last):\nKeyError: 'q0'\n"}, False, "exit code 1: KeyError"),
        ({"code": 130}, False, "exit code 130"),
        ({"outputs": {"new/none.json": b'{"q0": NaN}'}}, False, "new/none.json is no JSON"),
        ({"outputs": GOOD.outputs | {"new/none.json": b'{"q0": 2}'}}, True, "same content: "),
        ({"outputs": GOOD.outputs | {"new/none.json": b'{"q0": 2}'}}, False, "silent: "),
        ({"outputs": GOOD.outputs | {"new/none.json": b'{"q0": 1, "votes": 2}'}}, False, None),  # carried along
        ({"outputs": GOOD.outputs | {"new/none.json": b"{}"}, "err": "note: 1 is left out\n"}, False, None),
        ({"outputs": GOOD.outputs | {"new/none.json": b"{}"}, "counts": "[1]"}, False, None),
        ({"asked": 3}, False, "silent: "),
    ],
)
def test_what_is_a_finding(changes, is_same, finding):
    ran = Ran(**{**vars(GOOD), **changes})
    found = judge(READER, "data.json", Damage("null", "0.votes", False), is_same, ran, GOOD)
    assert found is finding is None or found.startswith(finding)
    replaced = judge(READER, "data.json", Damage("another value", "0.votes", True), is_same, ran, GOOD)
    assert replaced == (None if found and found.startswith("silent") else found)
