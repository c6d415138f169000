"""How a reader of metrics finds the servers, and what counts as read."""

import base64

import pytest

from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.base import LoadContext
from hashidrill.products.consul.loads.metrics import MetricsRead
from load_clients import Scripted, runs_for
from virtual_time import VirtualClock, ran

SERVERS = ["http://10.73.0.1:8500", "http://10.73.0.2:8500"]
METRICS = Answer(200, b"# HELP consul_raft_leader ...\n# TYPE consul_raft_leader gauge\nconsul_raft_leader 1\n")
IN_JSON = {"Timestamp": "2026-01-01 00:00:00 +0000 UTC", "Gauges": []}
NO_LEADER = Answer(500, b"No cluster leader")


@ran
async def looked(answer, seconds=1.9, **params):
    """The operations of a reader that looks for that long, and what it asked."""
    clock = VirtualClock()
    asked_for = {"rate": "2/s", "format": "prometheus", **params}
    it = MetricsRead("metrics", MetricsRead.Params.model_validate(asked_for), LoadContext(SERVERS, clock=clock))
    client = Scripted(lambda _method, url, *_: answer(url))
    it.client = lambda: client
    await it.prepare()
    operations = await runs_for(it, seconds)
    return operations, [(method, url.removeprefix("http://"), body) for method, url, body in client.asked]


def test_a_reader_with_fixed_targets_asks_nobody_where_they_are():
    operations, asked = looked(lambda _: METRICS)
    assert {op.outcome for op in operations} == {"ok"}
    assert [op.value for op in operations] == ["10.73.0.1", "10.73.0.2", "10.73.0.1", "10.73.0.2"]
    assert all("/v1/agent/metrics" in url for _, url, _ in asked)


def test_it_reads_them_in_the_form_that_it_is_told_to():
    _, asked = looked(lambda _: METRICS)
    assert {url.partition("/")[2] for _, url, _ in asked} == {"v1/agent/metrics?format=prometheus"}
    operations, asked = looked(lambda _: IN_JSON, format="json")
    assert {op.outcome for op in operations} == {"ok"}
    assert {url.partition("/")[2] for _, url, _ in asked} == {"v1/agent/metrics"}


def test_one_form_in_place_of_the_other_is_not_read():
    assert {op.outcome for op in looked(lambda _: IN_JSON)[0]} == {"fail"}
    assert {op.outcome for op in looked(lambda _: METRICS, format="json")[0]} == {"fail"}


def test_an_empty_answer_says_what_consul_lacks():
    operations, _ = looked(lambda _: Answer(200, b""))
    assert operations[0].outcome == "fail"
    assert "prometheus_retention_time" in operations[0].error


def instances(*addresses):
    return [{"Service": {"Address": address}, "Node": {"Address": "10.73.0.99"}} for address in addresses]


def test_a_reader_by_service_discovery_reads_what_consul_names():
    operations, asked = looked(
        lambda url: METRICS if "metrics" in url else instances("10.73.0.8", "10.73.0.7"), find="health"
    )
    assert [op.value for op in operations][:2] == ["10.73.0.7", "10.73.0.8"]
    assert asked[0] == ("GET", "10.73.0.1:8500/v1/health/service/consul", None)


def test_without_a_leader_it_finds_nothing_and_says_why():
    operations, asked = looked(lambda url: METRICS if "metrics" in url else NO_LEADER, find="health")
    assert {(op.outcome, op.status) for op in operations} == {("fail", 500)}
    assert "no server found: HTTP 500: No cluster leader" in operations[0].error
    assert not [url for _, url, _ in asked if "metrics" in url]


@pytest.mark.parametrize(("remember", "outcome"), [(True, "ok"), (False, "fail")])
def test_one_that_remembers_reads_on_where_it_cannot_ask(remember, outcome):
    answers = iter([instances("10.73.0.7"), *[NO_LEADER] * 9])
    operations, _ = looked(lambda url: METRICS if "metrics" in url else next(answers), find="health", remember=remember)
    assert operations[0].outcome == "ok"
    assert {op.outcome for op in operations[1:]} == {outcome}


def test_stale_lets_any_server_answer():
    _, asked = looked(lambda url: METRICS if "metrics" in url else instances("10.73.0.7"), find="health", stale=True)
    assert asked[0][1].endswith("/v1/health/service/consul?stale")


def test_a_reader_by_kv_lists_the_servers_beforehand_and_reads_the_list():
    listed = [{"Value": base64.b64encode(b'["10.73.0.7"]').decode()}]
    put = []

    def answer(url):
        if url.endswith("/v1/status/peers"):
            return ["10.73.0.7:8300"]
        if "/v1/kv/" in url:
            put.append(url)
            return Answer(200, b"true") if len(put) == 1 else listed
        return METRICS

    operations, asked = looked(answer, find="kv")
    assert asked[1] == ("PUT", "10.73.0.1:8500/v1/kv/hashidrill-targets/metrics", b'["10.73.0.7"]')
    assert {op.value for op in operations} == {"10.73.0.7"}


@pytest.mark.lie
@pytest.mark.parametrize(
    "answer", [Answer(200, b"<html>"), Answer(200, b"{}"), Answer(503, b"busy"), Answer(0, error="no answer within 2s")]
)
def test_what_is_no_metrics_is_not_read(answer):
    operations, _ = looked(lambda _: answer)
    assert {op.outcome for op in operations} == {"fail"}
    assert operations[0].value == "10.73.0.1"
    assert operations[0].error
