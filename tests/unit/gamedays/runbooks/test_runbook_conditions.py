"""The lines of a decision: what holds, and what does not where something is missing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashidrill.gamedays.runbooks.conditions import parse_line

SEEN = {"ms": 812.5, "few": 3.0, "who": "consul-2", "text": "Error: No cluster leader", "gone": None, "yes": "true"}


def holds(when):
    return parse_line(f"{when} -> slow: why", 1).holds(SEEN)


@pytest.mark.parametrize(
    "when",
    [
        "ms > 300",
        "ms >= 812.5",
        "few < 5",
        "few <= 3",
        "few == 3",
        "ms != few",
        "ms > few",
        'who == "consul-2"',
        "who != 'consul-1'",
        'text contains "No cluster leader"',
        "who is there",
        "gone is missing",
        "never is missing",
        "yes == true",
        "yes != false",
        "ms > 300 and few < 5 and who is there",
        "otherwise",
    ],
)
def test_it_holds(when):
    assert holds(when)


@pytest.mark.parametrize(
    "when",
    [
        "ms > 900",
        "few == 4",
        "who == consul",
        'who == "consul-1"',
        'text contains "leader "',
        "gone is there",
        "who is missing",
        "ms > 300 and few > 5",
        "who > 3",
        "ms != ms",
    ],
)
def test_it_does_not_hold(when):
    assert not holds(when)


@pytest.mark.parametrize("op", ["<", "<=", ">", ">=", "==", "!=", "contains"])
def test_no_comparison_holds_with_what_is_missing(op):
    assert not holds(f"gone {op} 3")
    assert not holds(f"few {op} gone")


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_number_is_above_a_limit_or_not_and_never_both(number):
    above, below = (parse_line(f"x {op} 5 -> slow: w", 1).holds({"x": number}) for op in (">", "<="))
    assert above + below == (number - number == 0)


def test_it_tells_what_a_diagnosis_rests_on():
    line = parse_line("ms > few and gone is missing -> slow-disk: the leader's disk: its log store", 7)
    assert line.because(SEEN) == {"ms": 812.5, "few": 3.0, "gone": None}
    assert (line.diagnosis, line.text, line.line) == ("slow-disk", "the leader's disk: its log store", 7)
