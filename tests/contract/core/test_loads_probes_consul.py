"""Loads and probes against real Consul servers, in the newest version and in the oldest one that matters."""

import asyncio
import signal
from collections import Counter, defaultdict

import anyio
import pytest

from hashidrill.core.engine.load_generator import LoadGenerator, LoadSpecification
from hashidrill.core.probes.base import run_probes
from hashidrill.core.probes.hosts import ProcessProbe
from hashidrill.core.protocols.abc import AgentProcess
from hashidrill.core.protocols.capabilities import Capable, Processes
from hashidrill.core.recording.journal import Clock
from hashidrill.core.util.wait import wait_until
from hashidrill.products.consul.loads.kv import ONCE_PREFIX, KvRead, KvWrite
from hashidrill.products.consul.probes import consul_probes

pytestmark = [pytest.mark.live]


def answered(count):
    """Whether so many operations have come to a good end, however long a busy machine took over them."""
    return lambda operations: sum(op.outcome == "ok" for op in operations) >= count


async def loaded(specifications, enough):
    """Offer loads until there is enough of them; the operations, the samples, the final reads."""
    operations, samples = [], []

    async def check():
        signals = {sample.signal for sample in samples}  # the first ones of the generator come after a second
        outcomes = f"{Counter(op.outcome for op in operations)}, {signals}"
        return (enough(operations) and "generator.lag" in signals) or None, outcomes

    async with LoadGenerator(Clock(), "run") as loads:
        await loads.start(specifications, operations.append, lambda _t_ns, sample: samples.append(sample))
        await wait_until("enough operations", check, within_s=40)
        await loads.stop()
        final = await loads.final_reads()
        assert loads.final_read_errors == {}
    return operations, samples, final


def test_real_consul_takes_the_writes_and_holds_what_it_acknowledged(consul_servers):
    params = KvWrite.Params.model_validate({"rate": "200/s", "keys": 50, "once": "50%"})
    writes = LoadSpecification("kv-writes", "consul.kv.write", params, consul_servers.urls)
    operations, samples, final = asyncio.run(loaded([writes], answered(450)))
    assert {op.outcome for op in operations} <= {"ok", "unknown"}
    last = {op.key: op.value for op in sorted(operations, key=lambda op: op.intended_ns) if op.outcome == "ok"}
    once = [op for op in operations if op.key.startswith(ONCE_PREFIX)]
    assert len(last) == 50 + sum(op.outcome == "ok" for op in once)
    assert len(once) >= 200
    # those in turn are written every 0.5 s, by one write at a time: the last one acknowledged is what must be there
    unsure = {op.key for op in operations if op.outcome != "ok"}
    assert {key: final["kv-writes"][key] for key in last if key not in unsure} == {
        key: value for key, value in last.items() if key not in unsure
    }
    assert {sample.signal for sample in samples} == {"generator.cpu", "generator.lag", "kv-writes.level"}


@pytest.mark.parametrize("mode", ["default", "stale", "consistent"])
def test_real_consul_answers_the_reads_in_each_mode(consul_servers, mode):
    params = KvRead.Params.model_validate({"rate": "100/s", "keys": 20, "mode": mode})
    reads = LoadSpecification(f"{mode}-reads", "consul.kv.read", params, consul_servers.urls)
    operations, _, final = asyncio.run(loaded([reads], answered(90)))
    outcomes = Counter(op.outcome for op in operations)
    assert outcomes["fail"] == 0 or mode == "stale"  # a follower may not have the newest key yet
    assert {op.value for op in operations if op.outcome == "ok"} == {f"run.{n}" for n in range(20)}
    assert final == {}


class ProbedHost(Capable):
    """As much of a host as the process probe asks for."""

    def __init__(self, name, pid):
        super().__init__()
        self.parts[Processes] = self
        self.name, self.pid = name, pid

    async def agent_process(self, agent):
        return AgentProcess(self.pid, 1, "S")


async def probed(servers, enough, *, on_the_way=None, within_s=40):
    """Run all probes until `enough(samples)`; the samples by signal and host."""
    samples = defaultdict(list)
    probes = consul_probes(servers.hosts, port=servers.port)
    probes += [
        ProcessProbe(ProbedHost(name, process.pid), agent="consul") for name, process in servers.processes.items()
    ]

    async def check():
        return enough(samples) or None, f"{ {key: values[-1] for key, values in samples.items()} }"

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_probes, probes, lambda s: samples[s.signal, s.host].append(s))
        try:
            await wait_until("the samples", check, within_s=within_s)
            if on_the_way is not None:
                await on_the_way(samples)
        finally:
            tasks.cancel_scope.cancel()
    return samples


def last(samples, signal_name, host=""):
    values = samples.get((signal_name, host))
    return values[-1] if values else None


def last_value(samples, signal_name, host):
    """The last one that there was: an interval of the telemetry without a commit has none."""
    return next((s.value for s in reversed(samples.get((signal_name, host), [])) if s.value is not None), None)


def leads(samples, host=""):
    sample = last(samples, "raft.leader", host)
    return sample.text if sample is not None and sample.ok else ""


EVERYWHERE = ("raft.leader", "raft.state", "raft.term", "raft.commit_index", "process.cpu", "process.rss")
OF_A_LEADER = ("raft.commit_time", "raft.dispatch_log", "raft.last_contact", "raft.append_entries")


def complete(samples):
    leader = leads(samples)
    return (
        leader
        and all(samples.get((name, f"consul-{n}")) for name in EVERYWHERE for n in (1, 2, 3))
        and all(last_value(samples, name, leader) is not None for name in OF_A_LEADER)
        and (members := last(samples, "consul.members_alive")) is not None
        and members.value == 3
        and (health := last(samples, "consul.autopilot_healthy")) is not None
        and health.value == 1
    )


def test_all_signals_come_from_a_healthy_datacenter(consul_servers):
    samples = asyncio.run(probed(consul_servers, complete))
    leader = leads(samples)
    assert consul_servers.hosts[leader] == consul_servers.leader()
    assert {leads(samples, host) for host in consul_servers.hosts} == {leader}
    states = Counter(last(samples, "raft.state", host).text for host in consul_servers.hosts)
    assert states == {"Leader": 1, "Follower": 2}
    assert last(samples, "raft.state", leader).text == "Leader"
    assert all(0 < last_value(samples, name, leader) < 1 for name in OF_A_LEADER)
    assert last(samples, "process.rss", leader).value > 20_000_000
    assert last(samples, "consul.members_failed").value == 0


def test_a_frozen_leader_is_silent_and_the_majority_names_another(consul_servers):
    async def freeze_the_leader(samples):
        before = leads(samples)
        consul_servers.processes[before].send_signal(signal.SIGSTOP)

        async def moved():
            now, view = leads(samples), last(samples, "raft.leader", before)
            done = now not in {"", before} and not view.ok
            return (now if done else None), f"leader {now!r}, {before} says {view}"

        try:
            await wait_until("another leader", moved, within_s=20)
        finally:
            consul_servers.processes[before].send_signal(signal.SIGCONT)
        assert last(samples, "raft.leader", before).text == "no answer within 1s"
        # the others were sampled on time all the while
        others = [host for host in consul_servers.hosts if host != before]
        assert all(len(samples["raft.leader", host]) > 5 for host in others)

    asyncio.run(probed(consul_servers, complete, on_the_way=freeze_the_leader))
