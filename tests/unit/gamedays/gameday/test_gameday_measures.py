"""What happened, as answers with units: read from planted recordings whose truth is known."""

import math

import pytest

from hashidrill.core.experiment.conditions import Condition
from hashidrill.core.judging.verdict import RunVerdict
from hashidrill.gamedays.gameday.answers import (
    Measured,
    answers_of,
    compared,
    how_to_answer,
    in_words,
    passed_limits,
    read_answer,
)
from hashidrill.gamedays.gameday.plan import Limit, Question
from hashidrill.testing.recordings import RecordingBuilder

STOP = Question(measure="stop", load="kv-writes", ask="?")
LATENCY = Question(measure="latency", load="kv-writes", ask="?")
ERRORS = Question(measure="errors", load="kv-writes", ask="?")
LEADER = Question(measure="leader", ask="?")
ALERTS = Question(measure="alerts", ask="?")
VERDICT = Question(measure="verdict", ask="?")


def recorded(folder, **load):
    """A fault from 10 to 20 s, in a run whose method begins at 10 and whose loads end at 50."""
    run = RecordingBuilder(folder / "run").fault("process.kill", "consul-1", at=10, until=20)
    return run.load("kv-writes", **load)


def answer(recording, question, alerts=None, invalid=()):
    texts = {name: Condition.parse(text) for name, text in (alerts or {}).items()}
    return answers_of(recording, RunVerdict(list(invalid), []), {"q": question}, texts)["q"]


@pytest.mark.parametrize("stopped_s", [0.5, 3.0, 8.0])
def test_how_long_writes_stopped_is_the_time_without_an_acknowledgement(tmp_path, stopped_s):
    run = recorded(tmp_path, outcome=lambda t: "fail" if 12 <= t < 12 + stopped_s else "ok", latency=0.01).build()
    found = answer(run, STOP)
    assert found.value == pytest.approx(stopped_s, abs=0.05)
    assert "into the run" in found.text


def test_writes_that_never_stopped_are_told_by_the_gap_between_two(tmp_path):
    assert answer(recorded(tmp_path, latency=0.01, rate=50).build(), STOP).value == pytest.approx(0.02, abs=0.02)


def test_writes_that_never_came_back_stopped_to_the_end(tmp_path):
    run = recorded(tmp_path, outcome=lambda t: "fail" if t >= 15 else "ok", latency=0.01).build()
    assert answer(run, STOP).value == pytest.approx(35, abs=0.1)


def test_latency_and_errors_are_those_under_fault_alone(tmp_path):
    run = recorded(tmp_path, latency=lambda t: 2.0 if 10 <= t < 20 else 0.01).build()
    assert answer(run, LATENCY).value == pytest.approx(2.0, abs=0.05)
    assert answer(run, ERRORS).value == 0
    failing = recorded(tmp_path / "b", outcome=lambda t: "fail" if 10 <= t < 15 else "ok", latency=0.01).build()
    assert answer(failing, ERRORS).value == pytest.approx(0.5, abs=0.02)
    assert answer(failing, ERRORS).text.startswith("50%")


@pytest.mark.parametrize(
    ("leaders", "said"),
    [
        ([(4, "consul-1"), (13, "consul-2")], "another"),
        ([(4, "consul-1")], "same"),
        ([(4, "consul-1"), (12, ""), (14, "consul-1")], "same"),
        ([(4, "consul-1"), (12, "")], "nobody"),
    ],
)
def test_who_leads_afterwards(tmp_path, leaders, said):
    run = recorded(tmp_path, latency=0.01)
    for second in range(4, 52):
        host = [name for at, name in leaders if at <= second][-1]
        run.sample("raft.leader", at=second, value=1.0 if host else 0.0, text=host, ok=bool(host))
    assert answer(run.build(), LEADER).value == said


def test_alerts_fire_as_their_conditions_say_and_not_otherwise(tmp_path):
    alerts = {
        "slow": "kv-writes.latency.p50 > 300ms for 5s",
        "slower": "kv-writes.latency.p50 > 3s for 5s",
        "failing": "kv-writes.errors > 5% for 5s",
        "quiet": "kv-writes.rate < 1/s for 2s",
    }
    slow = recorded(tmp_path, latency=lambda t: 1.0 if 10 <= t < 20 else 0.01).build()
    assert answer(slow, ALERTS, alerts).value == ["slow"]
    stopped = recorded(tmp_path / "b", outcome=lambda t: "fail" if 10 <= t < 20 else "ok", latency=0.01).build()
    assert answer(stopped, ALERTS, alerts).value == ["failing", "quiet", "slow", "slower"]  # a failure is never served
    calm = recorded(tmp_path / "c", latency=0.01).build()
    found = answer(calm, ALERTS, alerts)
    assert (found.value, found.text) == ([], "none")


def test_an_alert_before_the_fault_or_too_short_for_its_window_does_not_fire(tmp_path):
    alerts = {"slow": "kv-writes.latency.p50 > 300ms for 5s"}
    early = recorded(tmp_path, latency=lambda t: 1.0 if t < 4.5 else 0.01).build()
    assert answer(early, ALERTS, alerts).value == []
    brief = recorded(tmp_path / "b", latency=lambda t: 1.0 if 12 <= t < 13 else 0.01).build()
    assert answer(brief, ALERTS, alerts).value == []


@pytest.mark.lie
def test_an_alert_over_what_was_not_sampled_is_not_called_silent(tmp_path):
    found = answer(recorded(tmp_path, latency=0.01).build(), ALERTS, {"a": "raft.commit_time > 1s"})
    assert found.value is None
    assert "no samples" in found.text


@pytest.mark.lie
@pytest.mark.parametrize("question", [STOP, LATENCY, ERRORS, LEADER, ALERTS])
def test_an_invalid_run_answers_nothing(tmp_path, question):
    found = answer(recorded(tmp_path, latency=0.01).build(), question, invalid=["the generator fell behind"])
    assert found.value is None
    assert "the generator fell behind" in found.text


def test_the_verdict_is_an_answer_whatever_it_is(tmp_path):
    run = recorded(tmp_path, latency=0.01).build()
    assert answer(run, VERDICT, invalid=["x"]).value == "INVALID"


def test_a_load_that_the_run_does_not_have_is_said(tmp_path):
    other = Question(measure="stop", load="mail", ask="?")
    found = answer(recorded(tmp_path, latency=0.01).build(), other)
    assert found.value is None
    assert "mail" in found.text


def test_a_limit_of_the_day_is_passed_or_not(tmp_path):
    run = recorded(tmp_path, outcome=lambda t: "fail" if 12 <= t < 17 else "ok", latency=0.01).build()
    limit = lambda above: Limit(measure="stop", load="kv-writes", above=above)  # noqa: E731
    assert passed_limits(run, [limit("10s")]) == []
    [said] = passed_limits(run, [limit("3s"), Limit(measure="stop", load="other", above="1s")])
    assert said.startswith("stop of kv-writes was ")
    assert said.endswith(": above 3s")


# answers


@pytest.mark.parametrize(
    ("question", "written", "value", "words"),
    [
        (STOP, "2s", 2.0, "2s"),
        (STOP, " 500 ms ", 0.5, "500ms"),
        (LATENCY, "1m", 60.0, "1m"),
        (ERRORS, "30%", 0.3, "30%"),
        (LEADER, "same", "same", "same"),
        (LEADER, "N", "nobody", "nobody"),
        (VERDICT, "fail", "FAIL", "FAIL"),
        (ALERTS, "none", [], "none"),
        (ALERTS, "b, A", ["a", "b"], "a, b"),
    ],
)
def test_an_answer_is_read(question, written, value, words):
    found = read_answer(question, written, ("a", "b"))
    assert found == pytest.approx(value) if isinstance(value, float) else found == value
    assert in_words(question, found) == words


@pytest.mark.parametrize(
    ("question", "written", "said"),
    [
        (STOP, "2", "has no unit"),
        (STOP, "5%", "is not a duration"),
        (STOP, "-1s", "is negative"),
        (STOP, "two seconds", "is not a duration"),
        (ERRORS, "2s", "is not a percentage"),
        (ERRORS, "150%", "over 100%"),
        (LEADER, "consul-1", "answer one of same, another, nobody"),
        (LEADER, "", "answer one of"),
        (ALERTS, "c", "not one of the alerts"),
        (ALERTS, "none, a", "not one of the alerts"),
        (STOP, "\x1b[31m", "duration"),
        (STOP, "9" * 10_000 + "s", "is not a duration"),
    ],
)
def test_an_answer_with_a_wrong_unit_or_none_is_refused_in_words(question, written, said):
    with pytest.raises(ValueError, match=said) as refused:
        read_answer(question, written, ("a", "b"))
    assert len(str(refused.value)) < 400
    assert "\x1b" not in str(refused.value)


def test_what_an_answer_looks_like_is_said():
    assert how_to_answer(STOP, ()) == "a duration, like 500ms or 10s or 2m"
    assert how_to_answer(ALERTS, ("a", "b")) == "a, b; separate several with commas; or none"
    assert how_to_answer(LEADER, ()) == "same, another, nobody"


@pytest.mark.parametrize(
    ("question", "answered", "measured", "came"),
    [
        (STOP, 2.0, 3.9, "right"),
        (STOP, 2.0, 4.1, "surprise"),
        (STOP, 0.0, 0.9, "right"),
        (STOP, 0.0, 1.1, "surprise"),
        (STOP, 10.0, 5.0, "right"),
        (STOP, 10.0, 4.9, "surprise"),
        (LATENCY, 0.1, 3.0, "surprise"),
        (LATENCY, 0.01, 0.1, "right"),
        (LATENCY, 60.0, math.inf, "surprise"),
        (ERRORS, 0.0, 0.02, "right"),
        (ERRORS, 0.0, 0.03, "surprise"),
        (LEADER, "same", "same", "right"),
        (LEADER, "same", "another", "surprise"),
        (ALERTS, ["a"], ["a"], "right"),
        (ALERTS, [], [], "right"),
        (ALERTS, ["a"], ["a", "b"], "surprise"),
        (ALERTS, [], ["a"], "surprise"),
        (VERDICT, "PASS", "FAIL", "surprise"),
        (STOP, None, 3.0, "not asked"),
        (STOP, 2.0, None, "not measured"),
    ],
)
def test_what_is_a_surprise(question, answered, measured, came):
    assert compared(question, answered, Measured(measured, "")) == came


def test_what_was_measured_survives_json():
    for value in (math.inf, 2.0, "same", ["a"], None):
        assert Measured.from_data(Measured(value, "text").to_data()) == Measured(value, "text")
