"""Faults on two agents of one host: each is about its own agent, unless it is the host that they share."""

import pytest

from hashidrill.core.experiment.datacenter import together
from hashidrill.core.experiment.selectors import place_of
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.claims import clash


def claimed(kind, on, **params):
    specs = {name: registry.services()[name].Spec() for name in ("consul", "nomad")}
    place = place_of(on, 0.0, 10.0, together(specs), {})
    cls = registry.fault(kind)
    return place, cls(cls.Params.model_validate(params), None).uses(place)


@pytest.mark.parametrize("kind", ["process.kill", "process.pause", "process.restart"])
def test_the_agents_of_two_products_on_one_host_can_be_down_at_the_same_time(kind):
    assert clash(claimed("process.kill", "nomad:servers"), claimed(kind, "consul:clients")) is None


@pytest.mark.lie
@pytest.mark.parametrize(
    ("kind", "on"),
    [("process.kill", "nomad:servers"), ("process.pause", "nomad:leader"), ("process.restart", "host:nomad-1")],
)
def test_one_agent_is_down_only_once_at_a_time(kind, on):
    found = clash(claimed("process.kill", "nomad:servers"), claimed(kind, on))
    assert found is not None
    assert "same host" in found.said


def test_a_fault_of_the_other_product_needs_its_own_agent_alone():
    config = claimed("consul.config", "consul:clients", set={"log_level": "DEBUG"})
    assert clash(claimed("process.kill", "nomad:servers"), config) is None
    assert clash(claimed("process.kill", "consul:clients"), config) is not None


def test_what_is_the_hosts_is_still_shared_by_its_agents():
    slow = {"op": "fsync", "delay": "100ms"}
    nomads, consuls = (claimed("disk.latency", on, **slow) for on in ("nomad:servers", "consul:clients"))
    assert clash(nomads, consuls) is not None
