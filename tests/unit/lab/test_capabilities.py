"""A host has a capability or lacks it: an error names the host and what is missing, and nothing is a stub."""

from pathlib import Path

import pytest

from hashidrill.core.errors import CapabilityError
from hashidrill.core.protocols import capabilities
from hashidrill.core.protocols.capabilities import CAPABILITIES, DiskControl, Proxies, described
from hashidrill.lab.local.hosts import LocalHost
from hashidrill.lab.local.inside import canary
from hashidrill.testing.fakes import FakeDatacenter


def local_host(*, toxiproxy: Path | None = None) -> LocalHost:
    return LocalHost("consul-1", "10.73.0.11", {"consul": "server"}, Path("/nowhere"), 1, toxiproxy=toxiproxy)


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda each: each.__name__)
def test_hosts_have_each_method_of_the_capabilities_that_they_say_they_have(capability: type) -> None:
    for host in (local_host(toxiproxy=Path("toxiproxy-server")), FakeDatacenter().hosts["consul-1"]):
        assert host.can(capability)
        missing = [name for name in vars(capability) if not name.startswith("_") and not hasattr(type(host), name)]
        assert [name for name in missing if not hasattr(host, name)] == []


@pytest.mark.lie
def test_a_missing_capability_is_an_error_that_names_the_host_and_what_it_lacks() -> None:
    host = FakeDatacenter().hosts["client-1"]
    del host.parts[DiskControl]
    assert not host.can(DiskControl)
    with pytest.raises(CapabilityError) as refused:
        host.use(DiskControl)
    assert str(refused.value) == (
        "client-1 lacks DiskControl (slow or fail the operations of the host's disk); put this on a host that has it"
    )


def test_a_local_host_without_a_toxiproxy_binary_lacks_proxies() -> None:
    assert not local_host().can(Proxies)
    assert local_host(toxiproxy=Path("toxiproxy-server")).can(Proxies)


def test_every_capability_says_what_it_is_for() -> None:
    for capability in CAPABILITIES:
        assert described(capability) != f"{capability.__name__} ()"


def test_the_port_of_the_observers_is_one():
    assert canary.ECHO_PORT == capabilities.ECHO_PORT  # the canary runs on hosts of others as one text
