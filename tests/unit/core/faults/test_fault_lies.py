"""What an observer must not be taken in by: each of these was once taken for a proof."""

import errno
import re
import signal

import anyio
import pytest

from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import FaultError
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import Timing
from hashidrill.testing.fakes import FakeDatacenter


class Case:
    """One fault on consul-1, step by step."""

    def __init__(self, kind, world=None, host="consul-1", fault_id="0-x", **params):
        self.world = world or FakeDatacenter()
        cls = registry.fault(kind)
        self.fault = cls(
            cls.Params.model_validate({key.rstrip("_"): value for key, value in params.items()}), self.world
        )
        self.host = self.world.hosts[host]
        self.undo = anyio.run(lambda: planned(self.fault, self.world.target(host), fault_id))

    def apply(self):
        anyio.run(self.fault.apply, self.undo)
        return self

    def revert(self):
        anyio.run(self.fault.revert, self.undo)
        return self

    def present(self):
        return anyio.run(lambda: self.fault.verify(self.undo, present=True)).ok

    def gone(self):
        return anyio.run(lambda: self.fault.verify(self.undo, present=False)).ok


@pytest.mark.lie
@pytest.mark.parametrize("kind", ["disk.latency", "disk.error"])
@pytest.mark.parametrize("percent", ["5%", "10%", "23%", "30%"])
def test_a_share_of_a_disk_is_proven_gone_when_it_is_gone(kind, percent):
    delay = {"delay": "200ms"} if kind == "disk.latency" else {}
    case = Case(kind, percent=percent, **delay).apply()
    assert case.present()
    assert not case.gone()
    case.revert()
    assert case.gone()
    assert not case.present()


@pytest.mark.lie
@pytest.mark.parametrize("share", [0.1, 0.6, 1.0])
def test_a_disk_that_is_still_slow_for_another_share_is_not_proven_gone(share):
    case = Case("disk.latency", delay="200ms", percent="30%").apply()
    [rule] = case.host.disk_rules.values()
    rule["share"] = share
    assert not any(case.gone() for _ in range(20))


@pytest.mark.lie
def test_a_jitter_of_the_whole_delay_is_not_proven_by_a_quick_disk():
    case = Case("disk.latency", delay="200ms", jitter="200ms")
    assert not case.present()
    assert case.apply().present()
    assert case.revert().gone()


@pytest.mark.lie
def test_all_operations_are_tried_and_not_fsync_alone():
    for kind, params in (("disk.latency", {"delay": "100ms"}), ("disk.error", {})):
        case = Case(kind, op="all", **params).apply()
        [rule] = case.host.disk_rules.values()
        rule["operations"] = ("fsync",)
        assert not case.present(), kind
        rule["operations"] = ("write",)
        assert not case.gone(), kind


@pytest.mark.lie
def test_a_delay_below_the_disks_own_is_refused_with_the_one_that_could_be():
    world = FakeDatacenter()
    world.noise.disk_s = 0.02
    with pytest.raises(FaultError, match=r"a delay of 10ms is within this disk's usual fsync times; use 27ms or more"):
        Case("disk.latency", world, delay="10ms")


@pytest.mark.lie
@pytest.mark.parametrize(
    "params", [{"delay": "1ms"}, {"delay": "3ms"}, {"delay": "5ms"}, {"delay": "9ms", "jitter": "4ms"}]
)
def test_a_delay_that_disks_have_by_themselves_is_refused_at_once(params):
    with pytest.raises(ValueError, match=r"must be longer than 5ms: a disk's latency changes by as much"):
        Case("disk.latency", **params)


@pytest.mark.lie
@pytest.mark.parametrize("op", ["fsync", "all"])
def test_a_disk_that_becomes_slower_by_itself_is_not_proven_slow(op):
    """Something else begins to write after the baseline, and every fsync takes 4 ms."""
    world = FakeDatacenter()
    world.noise.disk_s = 0.0003
    case = Case("disk.latency", world, delay="6ms", op=op)
    world.noise.disk_s = 0.004
    assert not case.present()
    assert case.apply().present()
    assert case.revert().gone()
    with pytest.raises(FaultError, match=r"a delay of 6ms is within this disk's usual fsync times; use \d+ms or more"):
        Case("disk.latency", world, delay="6ms")


def test_a_disk_that_becomes_slower_by_itself_has_no_limited_bandwidth():
    with pytest.raises(
        FaultError, match=r"900MB/s is too close to this disk's usual bandwidth for write; use \S+ or less"
    ) as no:
        Case("disk.bandwidth", rate="900MB/s")
    could = re.search(r"use (\S+) or less", str(no.value))[1]
    assert Case("disk.bandwidth", rate=could).apply().present()


@pytest.mark.lie
def test_a_bandwidth_above_the_disks_own_is_refused_with_the_one_that_could_be():
    world = FakeDatacenter()
    world.noise.disk_bytes_per_s = 10e6
    with pytest.raises(
        FaultError, match=r"50MB/s is too close to this disk's usual bandwidth for write; use .*/s or less"
    ):
        Case("disk.bandwidth", world, rate="50MB/s")


def test_a_full_disk_with_much_left_free_is_proven():
    case = Case("disk.full", leave="20MB").apply()
    assert case.present()
    assert case.revert().gone()


@pytest.mark.lie
def test_a_disk_that_is_full_already_is_not_filled():
    world = FakeDatacenter()
    anyio.run(world.hosts["consul-1"].fill_disk, "somebody", 0)
    with pytest.raises(FaultError, match=r"nothing was applied: .* is already full"):
        Case("disk.full", world)


@pytest.mark.lie
@pytest.mark.parametrize(
    ("kind", "params"),
    [("cpu.throttle", {"cores": cores}) for cores in (0.75, 0.9, 1.2)]
    + [("network.loss", {"percent": percent}) for percent in ("0.5%", "1%", "3%")],
)
def test_little_of_it_is_not_proven_by_nothing_of_it(kind, params):
    case = Case(kind, **params)
    assert not case.present()
    assert case.apply().present()
    assert not case.gone()
    assert case.revert().gone()


def test_as_many_cores_as_the_machine_has_are_refused():
    with pytest.raises(FaultError, match=r"a throttle to 2 cores cannot be proven here.*; throttle to 1\.\d+ or less"):
        Case("cpu.throttle", cores=2)


@pytest.mark.lie
def test_a_throttle_that_is_far_too_hard_is_not_the_one_that_was_asked_for():
    case = Case("cpu.throttle", cores=0.5).apply()
    case.host.limits = dict.fromkeys(case.host.limits, 0.02)
    assert not case.present()


@pytest.mark.lie
def test_a_loss_that_only_one_peer_suffers_is_not_proven():
    case = Case("network.loss", percent="30%").apply()
    [rules] = case.host.tables.values()
    first = case.world.hosts["consul-2"].address
    for rule in rules:
        object.__setattr__(rule, "addresses", frozenset({first}))
    assert not case.present()
    for rule in rules:
        object.__setattr__(rule, "addresses", frozenset({case.world.hosts["consul-3"].address}))
    assert not case.gone()


@pytest.mark.lie
def test_an_agent_that_is_stopped_already_is_not_paused():
    world = FakeDatacenter()
    target = world.target("consul-1")
    anyio.run(world.hosts["consul-1"].signal, target.reference, signal.SIGSTOP)
    with pytest.raises(FaultError, match="is already stopped"):
        Case("process.pause", world)


@pytest.mark.lie
def test_refused_connections_are_no_partition():
    case = Case("network.partition", from_="host:consul-2")
    for host in (case.host, case.world.hosts["consul-2"]):

        async def refused(address, port, timeout_s):
            return Timing(0.001, errno.ECONNREFUSED)

        host.connect = refused
    assert not case.present()


@pytest.mark.lie
@pytest.mark.parametrize("params", [{"delay": "5ms"}, {"delay": "100ms", "jitter": "100ms"}])
def test_a_quick_link_is_not_slow(params):
    """The canaries' connection alone: whatever the rule and the proxy say of the port itself."""
    case = Case("network.latency", port=8300, **params).apply()
    for proxy in case.host.proxies.values():
        if proxy is case.host.proxies[case.undo["table"] + "_canary"]:
            proxy.toxics.clear()
    assert not case.present()


def test_a_delay_below_the_links_own_is_refused_with_the_one_that_could_be():
    with pytest.raises(FaultError, match=r"consul-\d to consul-1: a round trip of 1ms cannot .*; use 4ms or more"):
        Case("network.latency", port=8300, delay="1ms")
    assert Case("network.latency", port=8300, delay="4ms").apply().present()


@pytest.mark.lie
def test_a_link_that_becomes_slower_by_itself_is_not_proven_slow():
    world = FakeDatacenter()
    world.noise.link_s = 0.0003
    with pytest.raises(FaultError, match="a round trip of 2ms cannot be distinguished from this link"):
        Case("network.latency", world, port=8300, delay="2ms")
    case = Case("network.latency", world, port=8300, delay="3ms")
    world.noise.link_s = 0.002
    assert not case.present()
    assert case.apply().present()


@pytest.mark.lie
def test_partitions_of_several_hosts_that_overlap_are_each_proven_gone():
    world = FakeDatacenter()
    one = Case("network.partition", world, "consul-1", "0-x").apply()
    two = Case("network.partition", world, "consul-2", "1-x").apply()
    assert one.present()
    assert two.present()
    assert one.revert().gone()
    assert two.present()
    assert two.revert().gone()


@pytest.mark.lie
def test_a_partition_that_stays_is_not_excused_by_another():
    world = FakeDatacenter()
    one = Case("network.partition", world, "consul-1", "0-x").apply()
    two = Case("network.partition", world, "consul-2", "1-x").apply()
    assert not one.gone()
    assert two.revert().gone()
    assert not one.gone()
