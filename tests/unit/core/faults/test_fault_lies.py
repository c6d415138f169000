"""What an observer must not be taken in by: each of these was once taken for a proof.
What observers share with injectors: every kind says it, the report shows it, and what can be independent is.
"""

import copy
import errno
import re
import signal

import anyio
import pytest

import virtual_time
from fault_cases import fault_of
from hashidrill.core.engine.inject import noted, planned
from hashidrill.core.errors import FaultError
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import ApiAnswer, Evidence, Observer, Timing
from hashidrill.products.consul import api
from hashidrill.reports.html import fault_proofs
from hashidrill.testing.fakes import FakeDatacenter
from hashidrill.testing.recordings import RecordingBuilder


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


def built_in():
    return {kind: cls for kind, cls in registry.faults().items() if cls.__module__.startswith("hashidrill.")}


# what is said of it


@pytest.mark.lie
@pytest.mark.parametrize("kind", sorted(built_in()))
def test_every_kind_says_what_its_observer_looks_through_and_what_that_shares(kind):
    observer = vars(built_in()[kind]).get("observer")  # its own: what a base class says may not be so for this kind
    assert isinstance(observer, Observer)
    assert observer.through


def test_the_journal_and_the_report_have_it_with_the_proof(tmp_path):
    fault = fault_of(FakeDatacenter(), "consul.raft.compact")
    evidence = noted(fault, Evidence(True, "compacted", "another file"))
    assert evidence["measured"] == "another file"
    assert evidence["shares"] == "bbolt, which compacts the file as well"
    target = {"host": "consul-1", "address": "10.73.0.11", "agent": "consul"}
    intent = {"fault_id": "0", "kind": fault.kind, "step": 0, "params": {}, "undo": {}, "target": target}
    run = RecordingBuilder(tmp_path / "run").event("fault.intent", at=10, **intent)
    run.event("fault.applied", at=11, fault_id="0").event("fault.proven", at=12, fault_id="0", evidence=evidence)
    page = str(fault_proofs(run.load("kv-writes").build()))
    assert "shared with the injector: bbolt, which compacts the file as well" in page


# an agent that answers for itself alone


def answering_for_itself(world, name):
    """That host's agent goes on with a state of its own, which no other server ever hears of."""
    alone = FakeDatacenter(root=world.artifacts.parent)
    alone.consul.kv = copy.deepcopy(world.consul.kv)
    alone.consul.sessions = copy.deepcopy(world.consul.sessions)
    world.hosts[name].api = alone.hosts[name].api


async def seen(world, kind, host, *, lie, prepare=lambda _world: None, **params):
    """The first proof: by a sound agent, or by one that answers for itself alone from just before `apply` on."""
    prepare(world)
    fault = fault_of(world, kind, **params)
    undo = await planned(fault, world.target(host), "0")
    if lie:
        answering_for_itself(world, host)
    await fault.apply(undo)
    return await fault.verify(undo, present=True)


def with_sessions(world):
    world.consul.make_session("client-1", "lock", "hashidrill/leases/0")


CASES = [
    ("consul.kv.bloat", "client-1", {"keys": 200, "value": "1kB"}, lambda _world: None),
    ("consul.session.expire", "client-1", {}, with_sessions),
]


@pytest.mark.lie
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize("lie", [False, True])
def test_what_was_written_through_an_agent_is_looked_for_on_another_server(case, lie, tmp_path):
    kind, host, params, prepare = case
    evidence = virtual_time.run(seen(FakeDatacenter(root=tmp_path), kind, host, lie=lie, prepare=prepare, **params))
    assert evidence.ok is not lie, evidence


@pytest.mark.lie
@pytest.mark.parametrize("lie", [False, True])
async def test_a_restore_that_only_one_agent_knows_of_is_not_proven(lie, tmp_path):
    world = FakeDatacenter(root=tmp_path)
    save = fault_of(world, "consul.snapshot.save", name="before")
    await save.apply(await planned(save, world.target("consul-1"), "0"))
    evidence = await seen(world, "consul.snapshot.restore", "consul-1", lie=lie, snapshot="before")
    assert evidence.ok is not lie, evidence
    assert ("another server's own copy is not restored" in evidence.measured) is lie


@pytest.mark.lie
@pytest.mark.parametrize(
    ("kind", "host", "leads", "named"),
    [
        ("consul.leader.transfer", "consul-1", "consul-1", "consul-2"),
        ("consul.leader.pin", "consul-2", "consul-3", "consul-2"),
    ],
)
async def test_a_leader_that_others_name_and_that_does_not_lead_is_no_proof(kind, host, leads, named, monkeypatch):
    """Whom others take for the leader is what applying waits for: here all of them are mistaken alike."""

    world = FakeDatacenter()
    fault = fault_of(world, kind)
    undo = await planned(fault, world.target(host), "0")
    await fault.apply(undo)
    sound = await fault.verify(undo, present=True)

    async def mistaken(_hosts):
        return named

    monkeypatch.setattr(api, "leader_of", mistaken)
    world.consul.term += 1
    world.consul.leader = leads
    deceived = await fault.verify(undo, present=True)
    assert sound.ok, sound
    assert not deceived.ok
    assert f"{leads} leads" in deceived.measured


async def test_a_copy_that_knows_no_leader_and_a_server_that_does_not_answer_are_passed_over():
    world = FakeDatacenter(servers=5)
    fault = fault_of(world, "consul.kv.bloat", keys=10)
    undo = await planned(fault, world.target("consul-1"), "0")
    await fault.apply(undo)
    world.hosts["consul-2"].process = None

    async def out_of_date(method, path, **request):
        return ApiAnswer(404, b"", {"x-consul-knownleader": "false"})

    world.hosts["consul-3"].api = out_of_date
    assert (await fault.verify(undo, present=True)).ok
