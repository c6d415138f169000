"""Events: the same on both ends of a wire, for the eyes that may see them, and harmless to the run they tell of."""

import json
import math
import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hashidrill
from hashidrill.core.protocols.events import (
    KINDS,
    Audience,
    Bus,
    Change,
    End,
    Expected,
    Figures,
    Guardrail,
    InForce,
    Intent,
    Judged,
    Note,
    Phase,
    Proof,
    Steady,
    Tick,
    Waiting,
    Where,
    decode,
    encode,
    seen_by,
)
from hashidrill.core.recording.journal import EVENTS
from tasks import raising

NAMES = [name for kind in KINDS for name in kind.names]


# over the wire


times = st.integers(0, 10**18)
figure = st.none() | st.floats(allow_nan=False)
EVENTS_OF_RUNS = st.one_of(
    st.builds(Phase, t_ns=times, phase=st.text(), ends_ns=st.none() | times),
    st.builds(
        Intent,
        t_ns=times,
        fault_id=st.text(),
        kind=st.text(),
        target=st.builds(Where, st.text(), st.text()),
        params=st.dictionaries(st.text(), st.text() | st.integers() | st.booleans()),
        step=st.integers(-1, 99),
    ),
    st.builds(Proof, event=st.sampled_from(Proof.names), t_ns=times, fault_id=st.text()),
    st.builds(Change, event=st.sampled_from(Change.names), t_ns=times, fault_id=st.text(), error=st.text()),
    st.builds(Steady, t_ns=times, held=st.booleans(), evidence=st.text()),
    st.builds(
        Judged,
        t_ns=times,
        verdict=st.sampled_from(["PASS", "FAIL", "INVALID"]),
        report=st.text(),
        invalid=st.tuples(st.text()),
        expectations=st.tuples(
            st.builds(
                Expected,
                st.text(),
                st.text(),
                st.sampled_from(["held", "broken"]),
                st.text(),
                st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False) | st.text()),
                st.none() | st.text(),
            )
        ),
    ),
    st.builds(
        Waiting,
        t_ns=times,
        event=st.sampled_from(Waiting.names),
        at_s=st.floats(0, 1e6),
        text=st.text(),
        waits_for=st.tuples(st.text()),
        stood_ns=times,
    ),
    st.builds(
        Tick,
        t_ns=times,
        leaders=st.tuples(st.tuples(st.text(), st.text())),
        probes=st.tuples(st.tuples(st.text(), st.floats(0, 1e9))),
        faults=st.tuples(st.builds(InForce, st.text(), st.text(), st.text(), st.none() | times)),
        loads=st.dictionaries(st.text(), st.builds(Figures, figure, figure, figure, figure, times, figure)),
    ),
)


@given(EVENTS_OF_RUNS)
def test_what_arrives_is_what_was_sent(event):
    line = encode(event)
    assert "\n" not in line
    assert decode(line) == event


def test_a_line_is_json_as_any_reader_takes_it():
    """Python alone reads Infinity and NaN."""
    line = encode(Tick(loads={"kv-writes": Figures(p50_s=math.inf, p99_s=math.nan)}))
    json.loads(line, parse_constant=lambda found: pytest.fail(f"{found} is no JSON"))
    [load] = decode(line).loads.values()
    assert (load.p50_s, load.p99_s) == (math.inf, None)


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "drone.strike", "t_ns": 1}',  # of a newer engine
        '{"event": "phase", "phase": "met',  # torn
        '{"event": "phase", "phase": 7}',
        '{"event": "phase"}',
        '{"event": ["phase"]}',
        '{"event": "tick", "loads": {"kv-writes": "fast"}}',
        '{"event": "steady", "held": [], "t_ns": "soon"}',
        '{"t_ns": 1}',
        "[]",
        "7",
        "",
        "[" * 100_000,
    ],
)
def test_a_line_that_says_nothing_we_know_is_skipped(line):
    assert decode(line) is None
    assert decode(line.encode()) is None


def test_what_a_newer_engine_says_beside_what_we_know_is_left_out():
    assert decode('{"event": "phase", "phase": "method", "mood": "tense"}') == Phase(phase="method")


def test_every_kind_says_by_which_names_it_goes_and_no_two_share_one():
    assert len(NAMES) == len(set(NAMES))
    assert all(kind.names for kind in KINDS)


def test_all_that_the_journal_may_say_is_a_typed_event():
    """Else a subscriber would never hear of it."""
    assert set(EVENTS) == set(NAMES) - {"tick", "judged"}
    written = {
        name
        for file in Path(hashidrill.__file__).parent.rglob("*.py")
        for name in re.findall(r'journal\.write\(\s*"([^"]+)"', file.read_text())
    }
    assert {"phase", "fault.intent", "end"} < written <= set(EVENTS)


def test_a_line_of_a_journal_is_an_event_too():
    line = (
        '{"t_ns": 5, "wall": 1.5, "event": "fault.intent", "fault_id": "f1", "kind": "disk.latency", "step": 2,'
        ' "target": {"host": "consul-1", "agent": "consul", "pid": 7}, "params": {"delay": "1s"}, "undo": {"x": 1}}'
    )
    assert decode(line) == Intent(
        t_ns=5, fault_id="f1", kind="disk.latency", target=Where("consul-1", "consul"), params={"delay": "1s"}, step=2
    )


# who may see what


def test_an_operator_sees_all():
    event = Tick(leaders=(("leader", "consul-1"),), faults=(InForce("f1", "disk.latency", "consul-1"),))
    assert seen_by(event, Audience.OPERATOR) is event


def test_a_trainee_sees_phases_figures_and_guardrails():
    loads = {"kv-writes": Figures(rate=50.0)}
    for event in (
        Phase(phase="method"),
        Guardrail(condition="kv-writes.errors > 90%", evidence="measured 1"),
        Tick(phase="method", loads=loads),
        Steady(held=True, evidence="measured 0.01"),
        End(outcome="complete"),
    ):
        assert seen_by(event, Audience.TRAINEE) == event


def test_a_trainee_sees_neither_what_is_broken_nor_where():
    hidden = [kind for kind in KINDS if kind.audience is Audience.OPERATOR]
    assert {Intent, Proof, Change, Note} <= set(hidden)
    tick = Tick(
        leaders=(("leader", "consul-1"),),
        faults=(InForce("f1", "disk.latency", "consul-1"),),
        phase="method",
        probes=(("disk.fsync", 0.5),),
    )
    assert seen_by(tick, Audience.TRAINEE) == Tick(phase="method")
    judged = Judged(
        verdict="FAIL",
        invalid=("disk.latency",),
        doubts=("consul-1",),
        notes=("writes_recover",),
        expectations=(Expected("leadership_leaves(fault=disk.latency)", "leadership_leaves", "broken"),),
        recording="runs/slow-disk",
        report="runs/slow-disk/report.html",
    )
    assert seen_by(judged, Audience.TRAINEE) == Judged(verdict="FAIL")
    end = End(outcome="fault", error="disk.latency on consul-1: not proven in force")
    assert seen_by(end, Audience.TRAINEE) == End(outcome="fault")


def test_what_is_kept_back_can_be_left_out():
    for kind in KINDS:
        for each in fields(kind):
            if each.metadata:
                assert kind.audience is Audience.TRAINEE, "the whole event is kept back already"
                assert isinstance(each.default, (str, tuple)), f"{kind.__name__}.{each.name} needs a default"


# the bus


def test_each_subscriber_gets_each_event_in_order():
    first, second = [], []
    bus = Bus(first.append)
    bus.subscribe(second.append)
    sent = [Phase(phase="start"), Note(text="a"), Phase(phase="ready")]
    for event in sent:
        bus.publish(event)
    assert first == second == sent


def test_a_subscriber_gets_what_its_audience_may_see():
    seen = []
    bus = Bus()
    bus.subscribe(seen.append, Audience.TRAINEE)
    for event in (Note(text="consul-1 is slow"), Phase(phase="method"), End(outcome="fault", error="consul-1")):
        bus.publish(event)
    assert seen == [Phase(phase="method"), End(outcome="fault")]


def test_a_subscriber_that_raises_is_left_out_and_the_others_are_told_once():
    calls, seen = [], []

    def broken_view(event):
        calls.append(event)
        raise ValueError("no room on the screen")

    bus = Bus(broken_view, seen.append)
    bus.publish(Phase(phase="start", t_ns=5))
    bus.publish(Phase(phase="ready", t_ns=6))
    assert calls == [Phase(phase="start", t_ns=5)]
    [failure] = bus.failures
    assert "broken_view gets no more events: it failed with ValueError: no room on the screen" in failure
    assert seen == [Phase(phase="start", t_ns=5), Note(text=failure, t_ns=5), Phase(phase="ready", t_ns=6)]


def test_subscribers_that_all_raise_end_nothing():
    def broken(event):
        raise OSError(32, "Broken pipe")

    bus = Bus(broken, broken, broken)
    bus.publish(Phase(phase="start"))
    assert len(bus.failures) == 3
    bus.publish(Phase(phase="ready"))
    assert len(bus.failures) == 3


def test_an_interrupt_in_a_subscriber_is_no_failure_of_it():
    with pytest.raises(KeyboardInterrupt):
        Bus(raising(KeyboardInterrupt)).publish(Phase(phase="start"))
