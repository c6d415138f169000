"""prometheus, metrics and slo probes against a real Prometheus: a target that answers, is down, and starts again."""

import asyncio
import json
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from hashidrill.core.probes.declared import ProbeContext
from hashidrill.core.protocols import registry
from ports import free_ports

pytestmark = [pytest.mark.prometheus, pytest.mark.needs("prometheus")]


def source(query):
    return {"metricSource": {"type": "Prometheus", "spec": {"query": query}}}


SLO = {
    "apiVersion": "openslo/v1",
    "kind": "SLO",
    "metadata": {"name": "answered"},
    "spec": {
        "indicator": {"spec": {"ratioMetric": {"counter": True, "good": source("good_total"), "total": source("all")}}},
        "timeWindow": [{"duration": "1h", "isRolling": True}],
        "budgetingMethod": "Occurrences",
        "objectives": [{"target": 0.99}],
    },
}
PROBES = {
    "latency": ("prometheus", {"query": "latency # of the app", "labels": {"job": "app"}}),
    "rate": ("prometheus", {"query": "all", "counter": True}),
    "two": ("prometheus", {"query": '{job="app"}'}),
    "refused": ("prometheus", {"query": "sum("}),
    "contract": ("metrics", {"series": ['good_total{a=~"1|2"}', "not_a_number"], "each": {"job": ["app"]}}),
    "renamed": ("metrics", {"series": ["latency", "latency_seconds"]}),
    "slo": ("slo", {"slo": SLO}),
}


@pytest.fixture
def app():
    """A target that is scraped each second: at each scrape it had ten events, nine of them good."""
    state = SimpleNamespace(events=0, down=False)

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            state.events += 10
            good = state.events * 9 // 10
            text = f'good_total{{a="1"}} {good}\nall {state.events}\nlatency 0.25\nnot_a_number NaN\n'
            self.send_response(503 if state.down else 200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    state.port = server.server_port
    yield state
    server.shutdown()
    server.server_close()


@pytest.fixture
def prometheus(binary, app, tmp_path):
    [port] = free_ports(1, ["127.0.0.1"])
    scraped = [{"job_name": "app", "static_configs": [{"targets": [f"127.0.0.1:{app.port}"]}]}]
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": scraped}
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    options = {
        "config.file": tmp_path / "prometheus.yml",
        "storage.tsdb.path": tmp_path / "data",
        "web.listen-address": f"127.0.0.1:{port}",
    }
    command = [binary("prometheus").path, *(f"--{name}={value}" for name, value in options.items())]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        yield f"http://127.0.0.1:{port}"
        process.terminate()


@pytest.mark.lie
async def test_what_a_real_prometheus_says_of_a_target_that_is_up_down_and_up_again(app, prometheus):
    probes = {}
    for name, (kind, params) in PROBES.items():
        cls = registry.probe(kind)
        given = cls.Params.model_validate({"url": prometheus, **params})
        probes[name] = cls(name, given, ProbeContext(), timeout_s=5)

    async def seen():
        samples = [one for probe in probes.values() for one in await probe.sample()]
        return {one.signal: one.text if one.value is None else one.value for one in samples}

    async def until(holds):
        ends_s = time.monotonic() + 40
        while not holds(found := await seen()):
            assert time.monotonic() < ends_s, found
            await asyncio.sleep(1.2)
        return found

    up = await until(lambda found: isinstance(found["slo.good"], float) and found["slo.total"] > 0)
    app.down = True
    down = await until(lambda found: found["contract.ok"] == 0 and found["contract.lag"] > 3)
    app.down, app.events = False, 0
    again = await until(lambda found: found["contract.ok"] == 1)
    for probe in probes.values():
        await probe.aclose()
    assert (up["latency.value"], up["contract.ok"], up["renamed.ok"]) == (0.25, 1, 0)
    assert up["slo.good"] / up["slo.total"] == 0.9
    assert 0 <= up["contract.lag"] < 3
    assert "same labelset" in up["two.value"]
    assert "no arguments for aggregate" in up["refused.value"]
    assert all(isinstance(down[name], str) for name in ("latency.value", "rate.value", "slo.good", "renamed.lag"))
    assert isinstance(again["slo.total"], str) or again["slo.total"] <= 40, "the counter began again"
