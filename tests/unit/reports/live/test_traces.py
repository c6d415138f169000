"""A run as one OpenTelemetry trace: what is in it, when it is sent, and what is told where it cannot be."""

import logging

import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from hashidrill.core.errors import UsageError
from hashidrill.core.protocols.events import (
    Began,
    Change,
    End,
    Expected,
    Guardrail,
    Intent,
    Judged,
    Phase,
    Proof,
    Seen,
    Tick,
    Where,
)
from hashidrill.reports.live.traces import RunTraces, sent, trace_id

S = 1_000_000_000
NAME = "raft/slow-leader-disk"
MEASURED = Seen("delay=500ms", "0.51 s")
BEGAN = Began(id="20261126-one", experiment=NAME)
ASKED = Intent(
    event="fault.intent",
    fault_id="0-disk",
    kind="disk.latency",
    target=Where("consul-1"),
    params={"delay": "500ms", "paths": ["/data"]},
    t_ns=2 * S,
)
PROVEN = Proof(event="fault.proven", fault_id="0-disk", evidence=MEASURED, t_ns=3 * S)
GONE = Proof(event="fault.gone", fault_id="0-disk", evidence=Seen("none", "0 s"), t_ns=5 * S)
END = End(outcome="done", t_ns=6 * S)


def judged(word="PASS", *findings, invalid=()):
    found = tuple(Expected(f"{each} one", "stays_fast", each, "why") for each in findings)
    return Judged(verdict=word, expectations=found, invalid=invalid, t_ns=6 * S)


class Collector(SpanExporter):
    def __init__(self, trouble=""):
        self.batches, self.trouble = [], trouble

    def export(self, spans):
        if self.trouble:
            logging.getLogger("opentelemetry.exporter").error(self.trouble)
            return SpanExportResult.FAILURE
        self.batches.append({span.name: span for span in spans})
        return SpanExportResult.SUCCESS


@pytest.fixture
def told():
    """`told(*events)`: the one batch that is sent, by the names of its spans."""

    def tell(*events):
        collector, said = Collector(), []
        traces = RunTraces(collector, said.append, wall_ns=lambda: 1000 * S)
        for event in events:
            traces.event(event)
        traces.close()
        [batch] = collector.batches
        assert said == [f"trace {trace_id('20261126-one')}"]
        assert {span.context.trace_id for span in batch.values()} == {int(trace_id("20261126-one"), 16)}
        return batch

    return tell


def test_phases_and_faults_are_spans_of_the_run_at_their_times(told):
    phases = (Phase(phase="start"), Phase(phase="method", t_ns=S))
    batch = told(BEGAN, *phases, ASKED, PROVEN, Tick(t_ns=4 * S), GONE, END, judged())
    run = batch.pop(f"run {NAME}")
    assert set(batch) == {"phase start", "phase method", "disk.latency"}
    assert {span.parent.span_id for span in batch.values()} == {run.context.span_id}
    spans = {name: (span.start_time / S - 1000, span.end_time / S - 1000) for name, span in batch.items()}
    assert spans == {"phase start": (0, 1), "phase method": (1, 6), "disk.latency": (2, 5)}
    assert (run.start_time, run.end_time) == (1000 * S, 1006 * S)


def test_a_fault_says_what_was_asked_measured_and_proven(told):
    fault = told(BEGAN, ASKED, PROVEN, GONE, END, judged())["disk.latency"]
    assert dict(fault.attributes) == {
        "hashidrill.fault.id": "0-disk",
        "hashidrill.fault.target": "consul-1",
        "hashidrill.fault.param.delay": "500ms",
        "hashidrill.fault.param.paths": '["/data"]',
        "hashidrill.fault.proven": True,
        "hashidrill.fault.asked": "delay=500ms",
        "hashidrill.fault.measured": "0.51 s",
    }
    assert [event.name for event in fault.events] == ["fault.proven", "fault.gone"]


@pytest.mark.lie
@pytest.mark.parametrize(
    "seen",
    [
        (),
        (Proof(event="fault.unproven", fault_id="0-disk", evidence=MEASURED),),
        (Change(event="fault.applied", fault_id="0-disk"), Change(event="fault.failed", fault_id="0-disk", error="no")),
    ],
)
def test_a_fault_that_was_asked_for_alone_is_not_proven(told, seen):
    fault = told(BEGAN, ASKED, *seen, END, judged("INVALID"))["disk.latency"]
    assert fault.attributes["hashidrill.fault.proven"] is False
    assert fault.status.status_code.name == ("ERROR" if seen else "UNSET")


@pytest.mark.parametrize(
    ("verdict", "status", "text"),
    [
        (judged("PASS", "held", "known"), "OK", None),
        (judged("FAIL", "held", "broken", "fixed"), "ERROR", "FAIL: broken one, fixed one"),
        (judged("INVALID", "invalid", invalid=("no steady state", "two")), "ERROR", "INVALID: no steady state"),
    ],
)
def test_the_verdict_is_the_status_of_the_run_and_each_expectation_an_event(told, verdict, status, text):
    run = told(BEGAN, Guardrail(condition="kv.errors > 50%", t_ns=4 * S), END, verdict)[f"run {NAME}"]
    assert (run.status.status_code.name, run.status.description) == (status, text)
    assert run.attributes["hashidrill.verdict"] == verdict.verdict
    assert run.events[0].name == "guardrail"
    assert [dict(event.attributes)["finding"] for event in run.events[1:]] == [
        each.finding for each in verdict.expectations
    ]


@pytest.mark.lie
def test_a_run_that_was_never_judged_is_sent_as_such_and_not_as_ok(told):
    batch = told(BEGAN, Phase(phase="method"), ASKED, PROVEN)
    assert batch[f"run {NAME}"].status.description == "the run was not judged"
    assert batch["disk.latency"].end_time == 1003 * S


def test_a_collector_that_does_not_answer_costs_one_line(capfd):
    said = []
    traces = RunTraces(Collector("Failed to export span batch: Connection refused"), said.append)
    for event in (BEGAN, END, judged()):
        traces.event(event)
    assert said == [
        f"trace {trace_id(BEGAN.id)} could not be sent: Failed to export span batch: Connection refused",
    ]
    assert capfd.readouterr() == ("", "")


def test_each_run_of_a_command_is_a_trace_of_its_own():
    collector = Collector()
    traces = RunTraces(collector, lambda _: None)
    for run in ("one", "two"):
        for event in (Began(id=run, experiment=NAME), END, judged()):
            traces.event(event)
    ids = [{span.context.trace_id for span in batch.values()} for batch in collector.batches]
    assert ids == [{int(trace_id("one"), 16)}, {int(trace_id("two"), 16)}]


def test_a_protocol_that_is_not_spoken_is_refused(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(UsageError, match=r"OTEL_EXPORTER_OTLP_PROTOCOL=grpc: .* by http/protobuf only"):
        sent(print).__enter__()
