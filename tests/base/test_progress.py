import sys

import pytest

from utils.base import progress as progress_module
from utils.base.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = {"seconds": 100.0}
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now["seconds"])
    return now


def test_lines_are_printed_at_the_start_every_30_seconds_and_at_the_end(clock, capsys):
    progress = Progress(10, "texts")
    assert capsys.readouterr().err == "0/10 texts\n"
    progress.update(2)
    clock["seconds"] += 29.9
    progress.update(2)
    assert capsys.readouterr().err == ""
    clock["seconds"] += 0.1
    progress.update(2)  # 6 texts in 30 s: 12 a minute, the other 4 take 20 s
    assert capsys.readouterr().err == "6/10 texts, 12/min, ETA 0:00:20\n"
    clock["seconds"] += 30
    progress.update(4)
    assert capsys.readouterr().err == ""  # close() prints the last line, which would otherwise appear twice
    progress.close()
    assert capsys.readouterr().err == "10/10 texts, 10/min, took 0:01:00\n"


def test_work_of_earlier_runs_does_not_count_toward_the_rate(clock, capsys):
    progress = Progress(100, "questions", initial=90)
    clock["seconds"] += 3600
    progress.update(5, retries=2, failed=0)
    progress.close()  # 5 in 3,600 s and 5 left: another hour
    line = "95/100 questions, 5.0/h, ETA 1:00:00, retries 2, failed 0\n"
    assert capsys.readouterr().err == "90/100 questions\n" + line * 2  # one for the update, one at the end


def test_no_eta_after_reading_the_store(clock, capsys):
    """An earlier run's pieces are read within a second, which says nothing about the rest."""
    progress = Progress(100, "verdicts", quiet=True)
    progress.update(60, failed=0)
    clock["seconds"] += 0.4
    progress.close()
    assert capsys.readouterr().err == "0/100 verdicts\n60/100 verdicts, failed 0\n"


def test_nothing_is_printed_about_no_pieces(capsys):
    Progress(0, "questions").close()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("pieces", "seconds", "rate"),
    [
        (30, 30, "1.0/s"),
        (29, 30, "58/min"),
        (1, 42, "1.4/min"),
        (1, 7200, "0.5/h"),
    ],
)
def test_a_rate_is_per_second_per_minute_or_per_hour(clock, capsys, pieces, seconds, rate):
    progress = Progress(100_000, "texts")
    clock["seconds"] += seconds
    progress.update(pieces)
    assert capsys.readouterr().err.splitlines()[-1].split(", ")[1] == rate


def test_no_eta_before_half_of_the_concurrent_work_is_finished(clock, capsys):
    """The first of 94 verdicts requested at once arrives after 30 s; extrapolated, all would take 47 minutes."""
    progress = Progress(94, "verdicts", at_once=256)
    clock["seconds"] += 30
    progress.update(1)
    assert capsys.readouterr().err == "0/94 verdicts\n1/94 verdicts, 2.0/min\n"
    clock["seconds"] += 120
    progress.update(45)
    assert capsys.readouterr().err == "46/94 verdicts, 18/min\n"
    clock["seconds"] += 30
    progress.update(1)  # half are finished: the work still hidden is at most as much as the work seen
    assert capsys.readouterr().err == "47/94 verdicts, 16/min, ETA 0:03:00\n"


def test_a_terminal_gets_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = Progress(4, "texts", initial=1)
    progress.update(3, failed=1)
    progress.close()
    bar = capsys.readouterr().err
    assert "\r" in bar and "4/4" in bar and "failed=1" in bar
    assert "ETA" not in bar and "?" not in bar  # no ETA, and not the "?" that tqdm shows for an unknown rate
