"""Packet rules on a host in memory: data is acted out, nft text of a plug-in's fault is taken as it is."""

from __future__ import annotations

import errno

import anyio
import pytest

from hashidrill import packets
from hashidrill.capabilities import NetworkCanary, PacketFilter
from hashidrill.errors import FaultError
from hashidrill.faults.base import table_of
from hashidrill.packets import Block, Cut, Redirect
from hashidrill.testing.fakes import FakeDatacenter

TABLE = table_of("x")
PLUGIN = f"""\
add table inet {TABLE}
add chain inet {TABLE} mine {{ type filter hook postrouting priority 0; policy accept; }}
add rule inet {TABLE} mine udp dport {{ 8301, 8302 }} limit rate over 10/second drop
"""


@pytest.fixture
def world():
    return FakeDatacenter()


def run(host, name, *arguments):
    return anyio.run(getattr(host.use(PacketFilter), name), *arguments)


def connects(here, there, port=8500):
    return anyio.run(here.use(NetworkCanary).connect, there.address, port, 1.0).errno


def test_nft_text_of_a_plug_in_is_not_refused_and_its_table_is_there_until_it_is_deleted(world):
    host = world.hosts["consul-1"]
    run(host, "nft", PLUGIN)
    assert run(host, "nft_tables") == [TABLE]
    assert host.rules.scripts == [PLUGIN]
    run(host, "nft", packets.clearing(TABLE))
    assert run(host, "nft_tables") == []


def test_a_table_that_is_not_there_cannot_be_deleted(world):
    """As with the real nft; `destroy table` minds nothing."""
    host = world.hosts["consul-1"]
    run(host, "nft", f"destroy table inet {TABLE}\n")
    with pytest.raises(FaultError, match="no such table"):
        run(host, "nft", f"delete table inet {TABLE}\n")


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
        assert run(host, "nft_packets", TABLE) == {"link": 0}
        connects(other, host)
        assert run(host, "nft_packets", TABLE) == {"link": 1}
    run(host, "suspend_packet_rules", TABLE)
    assert run(host, "nft_packets", TABLE) == {}
    assert run(host, "nft_tables") == [TABLE]


def test_the_share_of_packets_is_in_the_script_in_millionths():
    assert "numgen random mod 1000000 < 5000 drop" in packets.script("t", [Block("input", ("10.0.0.1",), share=0.005)])
    assert "numgen" not in packets.script("t", [Block("input", ("10.0.0.1",), share=1.0)])


@pytest.mark.parametrize(
    "address", ["10.0.0.1 } drop; flush ruleset; #", "consul-1", "fe80::1%x } drop", "10.0.0.0/8", ""]
)
@pytest.mark.parametrize("rule", [
    lambda address: Block("input", ("10.0.0.1", address)), lambda address: Redirect((address,), 8500, 22_000),
    lambda address: Cut("cut", (address,), (8300,), (1,)),
])  # fmt: skip
def test_what_a_catalog_calls_an_address_and_is_none_gets_into_no_script(rule, address):
    """Others register nodes there: the text would be rules of theirs, run as root."""
    with pytest.raises(FaultError, match="is no IPv4 address"):
        packets.script("t", [rule(address)])
