"""Traces over OTLP by HTTP, as a collector gets them: a small one of ours, with the protocol's own messages."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from hashidrill.core.protocols.events import Began, End, Intent, Judged, Phase, Proof, Seen, Where
from hashidrill.reports.live.traces import sent, trace_id

S = 1_000_000_000
RUN = (
    Began(id="one", experiment="raft/slow-leader-disk"),
    Phase(phase="method"),
    Intent(event="fault.intent", fault_id="0", kind="disk.latency", target=Where("consul-1"), t_ns=S),
    Proof(event="fault.proven", fault_id="0", evidence=Seen("500ms", "510 ms"), t_ns=2 * S),
    Proof(event="fault.gone", fault_id="0", t_ns=3 * S),
    End(outcome="done", t_ns=4 * S),
    Judged(verdict="FAIL", t_ns=4 * S),
)


class Collector:
    """`answer` says status and body for path, headers and body of a request."""

    def __init__(self, status=200, waits=None, answer=None):
        requests = self.requests = []

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                requests.append((self.path, dict(self.headers), body))
                if waits is not None:
                    waits.wait(30)
                said = answer(*requests[-1]) if answer else (status, b"")
                self.send_response(said[0])
                self.send_header("Content-Length", str(len(said[1])))
                self.end_headers()
                self.wfile.write(said[1])

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def told(monkeypatch, address, **environment):
    said = []
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    for name, value in environment.items():
        monkeypatch.setenv(f"OTEL_{name}", value)
    with sent(said.append) as subscriber:
        for event in RUN:
            subscriber(event)
    [line] = said
    return line


def test_a_collector_gets_one_request_with_the_whole_trace_under_the_names_that_the_variables_give(monkeypatch):
    with Collector() as collector:
        line = told(
            monkeypatch, collector.address, SERVICE_NAME="game-days", EXPORTER_OTLP_HEADERS="authorization=Bearer%20me"
        )
    assert line == f"trace {trace_id('one')}"
    [(path, headers, body)] = collector.requests
    assert (path, headers["authorization"]) == ("/v1/traces", "Bearer me")
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    assert ("service.name", "game-days") in [
        (each.key, each.value.string_value) for each in resource.resource.attributes
    ]
    [scope] = resource.scope_spans
    spans = {span.name: span for span in scope.spans}
    assert set(spans) == {"run raft/slow-leader-disk", "phase method", "disk.latency"}
    assert {span.trace_id.hex() for span in spans.values()} == {trace_id("one")}
    fault = spans["disk.latency"]
    assert fault.end_time_unix_nano - fault.start_time_unix_nano == 2 * S
    assert [event.name for event in fault.events] == ["fault.proven", "fault.gone"]
    assert spans["run raft/slow-leader-disk"].status.code == 2  # ERROR


@pytest.mark.lie
@pytest.mark.parametrize(("status", "reason"), [(401, "401"), (404, "404")])
def test_a_collector_that_refuses_is_told_and_is_no_trace_sent(monkeypatch, capfd, status, reason):
    with Collector(status) as collector:
        line = told(monkeypatch, collector.address)
    assert "could not be sent" in line
    assert reason in line
    assert capfd.readouterr() == ("", "")


@pytest.mark.lie
def test_a_collector_that_hangs_or_is_not_there_holds_a_run_up_for_the_time_that_is_given(monkeypatch):
    ends = threading.Event()
    with Collector(waits=ends) as collector:
        assert "could not be sent" in told(monkeypatch, collector.address, EXPORTER_OTLP_TIMEOUT="1")
        ends.set()
    assert "could not be sent" in told(monkeypatch, "http://127.0.0.1:1", EXPORTER_OTLP_TIMEOUT="1")
    assert "could not be sent" in told(monkeypatch, "http://h:abc", EXPORTER_OTLP_TIMEOUT="1")
