"""Which faults on links can be put on beside others, and what of them can be proven: said before anything starts."""

import pytest

import places
from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.loader import load_text

GOOD = places.GOOD.read_text()
[STEP] = [line for line in GOOD.splitlines() if "fault: disk.latency" in line]


def with_method(*steps):
    return GOOD.replace(STEP, "\n".join(f"  - {step}" for step in steps))


def refused(*steps):
    with pytest.raises(ExperimentError) as error:
        load_text(with_method(*steps), "x.yaml")
    return str(error.value)


def step(fault, on, at="0s", lasts="10s", **params):
    with_ = f", with: {{{', '.join(f'{key}: {value}' for key, value in params.items())}}}" if params else ""
    return f'{{fault: {fault}, on: "{on}"{with_}, at: {at}, for: {lasts}}}'


FAR = {"delay": "1s", "port": 8300}


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (step("network.latency", "consul:leader", **FAR), step("network.latency", "host:consul-2", at="9s", **FAR)),
        (step("network.latency", "consul:leader", **FAR), step("network.reset", "host:consul-2", port=8300)),
        (
            step("network.latency", "host:consul-1", **FAR),
            step("network.timeout", "host:consul-2", port=8300, direction="out"),
        ),
        (
            step("network.latency", "host:consul-1", direction="both", **FAR),
            step("network.slicer", "host:consul-2", port=8300),
        ),
        (step("network.latency", "host:consul-1", **FAR), step("network.block", "consul:servers", port=8300)),
        (step("network.latency", "host:consul-1", **FAR), step("network.partition", "host:client-1")),
        (step("network.loss", "host:client-1", percent="5%"), step("network.latency", "host:consul-1", **FAR)),
    ],
)
def test_two_faults_that_meet_on_one_connection_are_refused(one, two):
    message = refused(one, two)
    assert "x.yaml:18:5: method[1]: " in message
    assert "may be on the same connections" in message


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (step("network.latency", "consul:leader", **FAR), step("network.latency", "consul:leader", at="10s", **FAR)),
        (step("network.latency", "consul:leader", **FAR), step("network.reset", "consul:leader", port=8500)),
        (step("network.latency", "host:consul-1", **FAR), step("network.latency", "host:consul-2", **FAR)),
        (
            step("network.latency", "host:consul-1", **FAR),
            step("network.reset", "host:consul-1", port=8300, direction="out"),
        ),
        (step("network.latency", "host:consul-1", **FAR), step("network.block", "host:consul-1", port=8500)),
        (step("network.latency", "host:consul-1", **FAR), step("process.pause", "host:consul-1")),
    ],
)
def test_faults_on_different_connections_are_accepted(one, two):
    load_text(with_method(one, two))


@pytest.mark.parametrize(
    ("on", "params", "message"),
    [
        (
            "consul:servers",
            {**FAR, "direction": "both"},
            "method[0].with.direction: network.latency on consul:s",
        ),
        ("consul:leader", {**FAR, "port": 7007}, "hashidrill uses port 7007 for its own proxies"),
        ("consul:leader", {**FAR, "delay": "10s"}, "at most 3s"),
        ("consul:leader", {**FAR, "delay": "1500us"}, "whole milliseconds"),
        ("consul:leader", {**FAR, "jitter": "2s"}, "jitter (2s) must not be longer than delay (1s)"),
    ],
)
def test_a_link_fault_that_cannot_be_proven_is_refused(on, params, message):
    assert message in refused(step("network.latency", on, **params))


def test_the_other_side_of_any_toxic_is_checked_as_well():
    toxic = {"port": 8300, "type": "latency", "attributes": "{latency: 100}", "from": '"host:consul-9"'}
    assert "there is no host 'consul-9'" in refused(step("toxiproxy.toxic", "consul:leader", **toxic))
    toxic |= {"from": "all", "attributes": "{jitter: 100}"}
    assert "the toxic latency needs the attribute 'latency'" in refused(
        step("toxiproxy.toxic", "consul:leader", **toxic)
    )
