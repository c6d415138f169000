"""Which other fault explains that one host does not get through to another."""

import pytest

import virtual_time
from hashidrill.core.faults.network import Way, explanations
from hashidrill.core.protocols.abc import Barrier
from hashidrill.testing.fakes import FakeDatacenter

SERVER, CLIENT = "consul-2", "client-1"


def explained(monkeypatch, on, chain, port, *, addresses=None):
    """Whether a rule on that host explains that the client does not get to port 8300 of the server."""
    world = FakeDatacenter()
    other = world.hosts[CLIENT if on == SERVER else SERVER].address
    barrier = Barrier("other", chain, frozenset(addresses or [other]), port)
    for name, host in world.hosts.items():
        found = [barrier] if name == on else []
        monkeypatch.setattr(host, "packet_barriers", lambda found=found: _given(found))
    way = Way(CLIENT, SERVER, world.hosts[SERVER].address)
    return bool(virtual_time.run(_explanations(world, way)))


async def _given(value):
    return value


async def _explanations(world, way):
    return await explanations(world, [way], 8300, besides="mine")


@pytest.mark.lie
@pytest.mark.parametrize(
    ("on", "chain", "port", "why"),
    [
        (SERVER, "input", None, True),
        (SERVER, "input", 8300, True),
        (SERVER, "input", 8500, False),
        (CLIENT, "output", None, True),
        # consul.streams.gather: what is known as a stream is cut at the client; a connection can be made all the same
        (CLIENT, "streams", 8300, False),
    ],
)
def test_a_rule_explains_what_it_would_keep_from_being_made_and_nothing_else(monkeypatch, on, chain, port, why):
    assert explained(monkeypatch, on, chain, port) is why


def test_a_rule_for_other_addresses_explains_nothing(monkeypatch):
    assert not explained(monkeypatch, SERVER, "input", None, addresses=["10.73.0.99"])
