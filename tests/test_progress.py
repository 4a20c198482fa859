import sys

import pytest

from utils import progress as progress_module
from utils.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = {"seconds": 100.0}
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now["seconds"])
    return now


def test_lines_come_every_30_seconds_and_at_the_end(clock, capsys):
    progress = Progress(10, "texts")
    progress.update(2)
    clock["seconds"] += 29.9
    progress.update(2)
    assert capsys.readouterr().err == ""
    clock["seconds"] += 0.1
    progress.update(2)  # 6 texts in 30 s: 0.2 a second, the other 4 take 20 s
    assert capsys.readouterr().err == "6/10 texts, 0.2/s, ETA 0:00:20\n"
    clock["seconds"] += 20
    progress.update(4)
    assert capsys.readouterr().err == ""
    progress.close()
    assert capsys.readouterr().err == "10/10 texts, 0.2/s, took 0:00:50\n"


def test_what_an_earlier_run_did_is_not_this_ones_speed(clock, capsys):
    progress = Progress(100, "questions", initial=90)
    clock["seconds"] += 3600
    progress.update(5, retries=2, failed=0)
    progress.close()  # 5 in 3,600 s, 5 left: another hour
    line = "95/100 questions, 0.0/s, ETA 1:00:00, retries 2, failed 0\n"
    assert capsys.readouterr().err == line * 2  # one for the update, one at the end


def test_nothing_done_yet_has_no_eta(clock, capsys):
    Progress(3, "texts").close()
    assert capsys.readouterr().err == "0/3 texts, 0.0/s\n"


def test_a_terminal_gets_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = Progress(4, "texts", initial=1)
    progress.update(3, failed=1)
    progress.close()
    bar = capsys.readouterr().err
    assert "\r" in bar
    assert "4/4" in bar
    assert "failed=1" in bar
