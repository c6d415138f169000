"""Each run as one OpenTelemetry trace, sent when judged; the OTEL_* variables give the endpoint and its settings."""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hashidrill.core.errors import UsageError
from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.core.protocols.events import (
    Attended,
    Began,
    Change,
    End,
    Event,
    Guardrail,
    Intent,
    Judged,
    Level,
    Marked,
    Note,
    Phase,
    Proof,
    Steady,
    Waiting,
)
from hashidrill.core.util.extras import extra

SWITCH = "OTEL_TRACES_EXPORTER"

with extra("otel", f"{SWITCH}=otlp"):
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    from opentelemetry.trace import Span, Status, StatusCode, set_span_in_context

_ON_THE_RUN = (Attended, Guardrail, Level, Marked, Note, Steady, Waiting)
"""Events that do not belong to a fault."""
_ENDS = {"fault.gone", "fault.ended", "fault.failed"}
_GOES_WRONG = {"fault.unproven", "fault.failed", "fault.stuck"}


def trace_id(run: str) -> str:
    """The id of that run's trace, 32 hex digits, computed from the run's id."""
    return hashlib.sha256(run.encode()).hexdigest()[:32]


class _Ids(RandomIdGenerator):
    run = ""

    def generate_trace_id(self) -> int:
        return int(trace_id(self.run), 16)


class _Ended(SpanProcessor):
    """Keeps spans until they are sent."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class RunTraces:
    """Subscribes to the events of runs, one after the other. `tell` gets a line for each trace, sent or lost."""

    def __init__(
        self, exporter: SpanExporter, tell: Callable[[str], None], *, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._exporter, self._tell, self._wall_ns = exporter, tell, wall_ns
        self._ids, self._ended = _Ids(), _Ended()
        name = os.environ.get("OTEL_SERVICE_NAME", "hashidrill")
        provider = TracerProvider(
            resource=Resource.create({"service.name": name}), id_generator=self._ids, shutdown_on_exit=False
        )
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("hashidrill")
        self._run: Span | None = None
        self._phase: Span | None = None
        self._faults: dict[str, Span] = {}
        self._origin_ns = self._last_ns = 0

    def event(self, event: Event) -> None:
        """Processes one event; the verdict's event sends the trace, which takes up to OTEL_EXPORTER_OTLP_TIMEOUT."""
        if isinstance(event, Began):
            self.close()
            self._ids.run, self._origin_ns = event.id, self._wall_ns() - event.t_ns
            self._run = self._tracer.start_span(f"run {event.experiment}", start_time=self._at(event))
            self._run.set_attributes({"hashidrill.experiment": event.experiment, "hashidrill.run.id": event.id})
        if self._run is None:
            return
        self._last_ns = max(self._last_ns, self._at(event))
        match event:
            case Phase():
                self._end(self._phase)
                self._phase = self._child(f"phase {event.phase}", event)
            case Intent():
                self._faults[event.fault_id] = self._child(event.kind, event, _of_fault(event))
            case Proof() | Change() if event.fault_id in self._faults:
                self._seen(self._faults[event.fault_id], event)
            case End():
                self._run.set_attribute("hashidrill.outcome", event.outcome)
                self._all_end()
            case Judged():
                _judge(self._run, event, self._at(event))
                self._send()
            case _ if isinstance(event, _ON_THE_RUN):
                self._run.add_event(event.event, _flat(vars(event)), self._at(event))

    def close(self) -> None:
        """Sends the trace of a run that was never judged."""
        if self._run is not None:
            self._run.set_status(Status(StatusCode.ERROR, "the run was not judged"))
            self._send()

    def _at(self, event: Event) -> int:
        return self._origin_ns + event.t_ns

    def _child(self, name: str, event: Event, attributes: Mapping[str, Any] | None = None) -> Span:
        assert self._run is not None
        context = set_span_in_context(self._run)
        return self._tracer.start_span(name, context, attributes=attributes, start_time=self._at(event))

    def _seen(self, fault: Span, event: Proof | Change) -> None:
        fault.add_event(event.event, _flat(vars(event) | vars(event.evidence)), self._at(event))
        if event.event == "fault.proven":
            fault.set_attributes({"hashidrill.fault.proven": True, **_evidence(event)})
        if event.event in _GOES_WRONG:
            reason = getattr(event, "error", "") or event.evidence.measured
            fault.set_status(Status(StatusCode.ERROR, f"{event.event.removeprefix('fault.')}: {reason}"))
        if event.event in _ENDS:
            self._end(self._faults.pop(event.fault_id))

    def _end(self, span: Span | None) -> None:
        if span is not None:
            span.end(self._last_ns)

    def _all_end(self) -> None:
        for span in (self._phase, *self._faults.values()):
            self._end(span)
        self._phase, self._faults = None, {}

    def _send(self) -> None:
        self._all_end()
        self._end(self._run)
        self._run = None
        spans, self._ended.spans = self._ended.spans, []
        with _quiet() as errors:
            sent = self._exporter.export(spans) is SpanExportResult.SUCCESS
        what = f"trace {trace_id(self._ids.run)}"
        self._tell(what if sent else f"{what} could not be sent: {errors[-1] if errors else 'no reason was given'}")


def _of_fault(event: Intent) -> dict[str, Any]:
    params = {f"param.{name}": value for name, value in event.params.items()}
    return {
        f"hashidrill.fault.{name}": value
        for name, value in _flat({"id": event.fault_id, "target": event.target.host, "proven": False, **params}).items()
    }


def _evidence(event: Proof | Change) -> dict[str, str]:
    return {"hashidrill.fault.asked": event.evidence.asked, "hashidrill.fault.measured": event.evidence.measured}


def _judge(run: Span, judged: Judged, at_ns: int) -> None:
    for each in judged.expectations:
        found = {"title": each.title, "finding": each.finding, "text": each.text}
        run.add_event("expectation", found, at_ns)
    run.set_attribute("hashidrill.verdict", judged.verdict)
    if judged.verdict == Verdict.PASS:
        run.set_status(Status(StatusCode.OK))
        return
    broken = [each.title for each in judged.expectations if Finding(each.finding).verdict is Verdict.FAIL]
    reason = judged.invalid[0] if judged.invalid else ", ".join(broken)
    run.set_status(Status(StatusCode.ERROR, f"{judged.verdict}: {reason}"))


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes must be scalars: other values become JSON, and empty ones are left out."""
    return {
        name: value if isinstance(value, (bool, int, float, str)) else json.dumps(value, default=str)
        for name, value in fields.items()
        if name not in {"event", "t_ns", "evidence", "fault_id"} and value not in (None, "", ())
    }


@contextmanager
def _quiet() -> Iterator[list[str]]:
    """Collects the exporter's log messages, which then do not go to the terminal."""
    errors: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(record.getMessage())

    logger, kept = logging.getLogger("opentelemetry"), Kept(logging.WARNING)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(kept)
    try:
        yield errors
    finally:
        logger.removeHandler(kept)
        logger.propagate = propagates


@contextmanager
def sent(tell: Callable[[str], None]) -> Iterator[Callable[[Event], None]]:
    """The subscriber that sends a trace for each run. Raises UsageError if OTEL_* asks for another protocol."""
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL"))
    if protocol not in (None, "", "http/protobuf"):
        raise UsageError(f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol}: hashidrill sends traces by http/protobuf only")
    with _quiet():
        traces = RunTraces(OTLPSpanExporter(), tell)
    try:
        yield traces.event
    finally:
        traces.close()
