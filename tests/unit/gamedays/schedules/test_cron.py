"""A cron expression means the same to all three, or is refused; the table says what systemd gets."""

import datetime as dt

import pytest

from hashidrill.core.errors import UsageError
from hashidrill.gamedays.schedules.jobs import cron, next_times, on_calendar

TABLE = [
    ("* * * * *", ["*-*-* *:*:00 UTC"]),
    ("17 2 * * *", ["*-*-* 02:17:00 UTC"]),
    ("*/15 * * * *", ["*-*-* *:00,15,30,45:00 UTC"]),
    ("0 9-17/4 * * *", ["*-*-* 09,13,17:00:00 UTC"]),
    ("0 9 * * MON-FRI", ["Mon,Tue,Wed,Thu,Fri *-*-* 09:00:00 UTC"]),
    ("0 9 * * 0", ["Sun *-*-* 09:00:00 UTC"]),
    ("0 9 * * 7", ["Sun *-*-* 09:00:00 UTC"]),
    ("0 9 * * 5-7", ["Sun,Fri,Sat *-*-* 09:00:00 UTC"]),
    ("30 1 1 * *", ["*-*-01 01:30:00 UTC"]),
    ("30 1 1,15 jan,JUL *", ["*-01,07-01,15 01:30:00 UTC"]),
    ("0 0 29 2 *", ["*-02-29 00:00:00 UTC"]),
    # either of the two days: systemd's line would want both
    ("0 4 1 * 1", ["*-*-01 04:00:00 UTC", "Mon *-*-* 04:00:00 UTC"]),
    ("0 0 * * */2", ["Sun,Tue,Thu,Sat *-*-* 00:00:00 UTC"]),
]


@pytest.mark.parametrize(("text", "lines"), TABLE, ids=[text for text, _ in TABLE])
def test_each_expression_has_its_calendar(text, lines):
    assert on_calendar(cron(text), "UTC") == lines


REFUSED = [
    ("", "expected 5 fields"),
    ("* * * *", "expected 5 fields"),
    ("0 0 2 * * *", "expected 5 fields"),
    ("@daily", "five fields"),
    ("60 * * * *", "is not from 0 to 59"),
    ("* 24 * * *", "is not from 0 to 23"),
    ("* * 0 * *", "is not from 1 to 31"),
    ("* * * 13 *", "is not from 1 to 12"),
    ("* * * * 8", "is not from 0 to 7"),
    ("0 0 L * *", "is not from 1 to 31"),
    ("0 0 15W * *", "is not from"),
    ("0 0 * * 5#3", "GitHub and systemd read"),
    ("0 0 * * 5L", "is not from"),
    ("0 0 ? * 1", "GitHub and systemd read"),
    ("0 22-2 * * *", "runs backwards"),
    ("5/15 * * * *", "a step needs a range"),
    ("*/0 * * * *", "is not from 1"),
    ("*/61 * * * *", "is not from 1 to 59"),
    ("1,,2 * * * *", "GitHub and systemd read"),
    ("-1 * * * *", "GitHub and systemd read"),
    ("1- * * * *", "GitHub and systemd read"),
    ("*-5 * * * *", "a range is from a number"),
    ("H * * * *", "is not from"),
    ("\u0663 * * * *", "is not from"),
    ("0 0 30 2 *", "never run"),
    ("0 0 31 4,6 *", "never run"),
    ("0 0 */2 * 1", "as either, others as both"),
    ("0 0 1-31 * 1", "as either, others as both"),
    ("0 0 1 * */2", "as either, others as both"),
    ("0 0 1 * 0-6", "as either, others as both"),
    ("* * * FEBRUARY *", "is not from 1 to 12, or JAN"),
]


@pytest.mark.lie
@pytest.mark.parametrize(("text", "says"), REFUSED, ids=[repr(text) for text, _ in REFUSED])
def test_what_is_not_read_alike_is_refused_with_what_would_be_right(text, says):
    with pytest.raises(UsageError, match="--cron") as refused:
        cron(text)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("17 2 * * *", "17 2 * * *"),
        ("*/15 1-5/2 * * *", "*/15 1-5/2 * * *"),
        ("0 9 * JAN 7", "0 9 * 1 0"),
        ("0 9 * * mon-fri", "0 9 * * 1,2,3,4,5"),
    ],
)
def test_names_and_the_second_sunday_are_written_as_numbers(text, written):
    """GitHub has no day 7."""
    assert str(cron(text)) == written


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("17 2 * * *", 1440), ("*/5 * * * *", 5), ("0,59 * * * *", 1), ("0 0,23 * * *", 60), ("58,1 3 * * *", 57)],
)
def test_the_shortest_gap_is_known(text, minutes):
    assert cron(text).shortest_gap_minutes == minutes


def test_the_next_runs_are_those_of_either_day():
    sunday = dt.datetime(2026, 11, 29, 12, 0, tzinfo=dt.UTC)
    days = [each.strftime("%a %d %H:%M") for each in next_times(cron("0 4 1 * 4"), sunday, 3)]
    assert days == ["Tue 01 04:00", "Thu 03 04:00", "Thu 10 04:00"]
    assert next_times(cron("0 0 29 2 *"), sunday, 1)[0].year == 2028
    assert next_times(cron("0 12 * * *"), sunday, 1)[0].day == 30  # not now again
