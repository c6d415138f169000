"""Traces as a real OpenTelemetry collector takes them: its receiver reads OTLP over HTTP, its exporter writes a file.

tests/support/collector has its main program, which is built from its modules before the first of these tests.
"""

import json
import socket
import subprocess
import time

import pytest
from test_traces_sent import S, told

from clients.prepare import collector_binary
from hashidrill.reports.live.traces import trace_id
from ports import free_ports

pytestmark = [pytest.mark.collector, pytest.mark.needs("otel-collector")]
_UP_WITHIN_S, _DOWN_WITHIN_S = 30, 20


class Collector:
    """Runs on a port of the loopback. `spans` stops it, which writes what it got."""

    def __init__(self, folder):
        [port] = free_ports(1, ["127.0.0.1"])
        self.there, self.address, self.file = ("127.0.0.1", port), f"http://127.0.0.1:{port}", folder / "spans.jsonl"
        config = {
            "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
            "exporters": {"file": {"path": str(self.file)}},
            "service": {
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
            },
        }
        (folder / "config.yaml").write_text(json.dumps(config))
        command = [str(collector_binary()), "--config", f"file:{folder}/config.yaml"]
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        ends_s = time.monotonic() + _UP_WITHIN_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > ends_s:
                self.stop()
                pytest.fail((folder / "log").read_text()[-2000:])
            time.sleep(0.05)

    def _answers(self):
        with socket.socket() as one:
            return one.connect_ex(self.there) == 0

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(_DOWN_WITHIN_S)
        finally:
            self.process.kill()

    def spans(self):
        """Each span, with the attributes of its resource."""
        self.stop()
        resources = [each for line in self.file.read_text().splitlines() for each in json.loads(line)["resourceSpans"]]
        return [
            span | {"resource": attributes(each["resource"])}
            for each in resources
            for scope in each["scopeSpans"]
            for span in scope["spans"]
        ]


@pytest.fixture
def collector(tmp_path):
    running = Collector(tmp_path)
    yield running
    running.stop()


def attributes(of):
    return {one["key"]: next(iter(one["value"].values())) for one in of.get("attributes", [])}


def test_the_collector_has_the_whole_trace_of_a_run(collector, monkeypatch):
    line = told(monkeypatch, collector.address, SERVICE_NAME="game-days")
    assert line == f"trace {trace_id('one')}"
    spans = {span["name"]: span for span in collector.spans()}
    assert {span["traceId"] for span in spans.values()} == {trace_id("one")}
    assert len(spans) == 3
    run, phase, fault = spans["run raft/slow-leader-disk"], spans["phase method"], spans["disk.latency"]
    assert run["resource"]["service.name"] == "game-days"
    assert not run.get("parentSpanId")
    assert {phase["parentSpanId"], fault["parentSpanId"]} == {run["spanId"]}
    assert run["status"]["code"] == 2, "ERROR"
    assert int(fault["endTimeUnixNano"]) - int(fault["startTimeUnixNano"]) == 2 * S
    assert attributes(fault)["hashidrill.fault.proven"] is True
    assert [event["name"] for event in fault["events"]] == ["fault.proven", "fault.gone"]


@pytest.mark.lie
def test_what_a_collector_does_not_take_is_no_trace_that_was_sent(collector, monkeypatch):
    elsewhere = told(monkeypatch, f"{collector.address}/elsewhere")
    assert "could not be sent" in elsewhere
    assert "404" in elsewhere
    collector.stop()
    assert "could not be sent" in told(monkeypatch, collector.address, EXPORTER_OTLP_TIMEOUT="1")
