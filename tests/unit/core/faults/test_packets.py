"""Packet rules on a host in memory, and as the nft script that is carried to others' hosts.
Which other fault explains that one host does not get through to another.
"""

import errno

import anyio
import pytest

import virtual_time
from hashidrill.core.errors import FaultError
from hashidrill.core.faults.base import table_of
from hashidrill.core.faults.network import Way, explanations
from hashidrill.core.protocols import packets
from hashidrill.core.protocols.abc import Barrier
from hashidrill.core.protocols.capabilities import NetworkCanary, PacketFilter
from hashidrill.core.protocols.packets import Block, Cut, Redirect
from hashidrill.testing.fakes import FakeDatacenter

TABLE = table_of("x")


@pytest.fixture
def world():
    return FakeDatacenter()


def run(host, name, *arguments):
    return anyio.run(getattr(host.use(PacketFilter), name), *arguments)


def connects(here, there, port=8500):
    return anyio.run(here.use(NetworkCanary).connect, there.address, port, 1.0).errno


@pytest.mark.parametrize(("refuse", "number"), [(False, errno.ETIMEDOUT), (True, errno.ECONNREFUSED)])
def test_a_block_is_acted_out_until_it_is_cleared(world, refuse, number):
    host, other = world.hosts["consul-1"], world.hosts["consul-2"]
    run(host, "set_packet_rules", TABLE, [Block("input", (other.address,), 8500, refuse=refuse)])
    assert [connects(other, host), connects(other, host, 8300), connects(host, other)] == [number, 0, 0]
    run(host, "clear_packet_rules", TABLE)
    run(host, "clear_packet_rules", TABLE)
    assert connects(other, host) == 0


def test_rules_that_are_set_again_replace_those_before_and_count_anew(world):
    host, other = world.hosts["consul-1"], world.hosts["consul-2"]
    redirect = Redirect((other.address,), 8500, 22_000, "link")
    for _ in range(2):
        run(host, "set_packet_rules", TABLE, [redirect])
        assert run(host, "packet_counts", TABLE) == {"link": 0}
        connects(other, host)
        assert run(host, "packet_counts", TABLE) == {"link": 1}
    run(host, "suspend_packet_rules", TABLE)
    assert run(host, "packet_counts", TABLE) == {}
    assert run(host, "packet_tables") == [TABLE]


def test_the_share_of_packets_is_in_the_script_in_millionths():
    assert "numgen random mod 1000000 < 5000 drop" in packets.script("t", [Block("input", ("10.0.0.1",), share=0.005)])
    assert "numgen" not in packets.script("t", [Block("input", ("10.0.0.1",), share=1.0)])


@pytest.mark.lie
@pytest.mark.parametrize(
    "address", ["10.0.0.1 } drop; flush ruleset; #", "consul-1", "fe80::1%x } drop", "10.0.0.0/8", ""]
)
@pytest.mark.parametrize(
    "rule",
    [
        lambda address: Block("input", ("10.0.0.1", address)),
        lambda address: Redirect((address,), 8500, 22_000),
        lambda address: Cut("cut", (address,), (8300,), (1,)),
    ],
)
@pytest.mark.parametrize("of", [lambda rule: packets.script("t", [rule]), lambda rule: packets.statements_of([rule])])
def test_what_a_catalog_calls_an_address_and_is_none_gets_into_no_rules(of, rule, address):
    """Others register nodes there: the text would be rules of theirs, run as root."""
    with pytest.raises(FaultError, match="is not an IPv4 address"):
        of(rule(address))


def test_rules_without_an_address_are_refused_because_they_match_nothing():
    with pytest.raises(FaultError, match="match no packet"):
        packets.statements_of([Block("input", ())])


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
