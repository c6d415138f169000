"""Loads, also those that hold things open, and probes, against real Consul servers: the newest and the oldest one."""

import asyncio
import contextlib
import json
import signal
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict

import anyio
import pytest

from hashidrill.core.engine.load_generator import LoadGenerator, LoadSpecification
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.probes.base import run_probes
from hashidrill.core.probes.hosts import ProcessProbe
from hashidrill.core.protocols.abc import AgentProcess, CleansUp
from hashidrill.core.protocols.capabilities import Capable, Processes
from hashidrill.core.recording.journal import Clock
from hashidrill.core.util.wait import wait_until
from hashidrill.products.consul.loads.churn import ServiceChurn
from hashidrill.products.consul.loads.kv import ONCE_PREFIX, KvRead, KvWrite
from hashidrill.products.consul.loads.streams import Streams
from hashidrill.products.consul.loads.views import Views, Watch
from hashidrill.products.consul.probes import consul_probes
from polled import wait

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


def asked(url):
    """Once a leader is there to answer: on a busy machine an election may be on."""
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                return json.load(reply)
        except urllib.error.HTTPError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


class Offered:
    """Loads that run side by side: their operations and samples."""

    def __init__(self, servers, **loads):
        self.operations, self.samples, clock = [], defaultdict(list), Clock()
        self.loads = {
            name: kind(name, kind.Params.model_validate(params), self.context(name, servers, clock))
            for name, (kind, params) in loads.items()
        }

    def context(self, name, servers, clock):
        emit = lambda what, value, _text: self.samples[f"{name}.{what}"].append(value)  # noqa: E731
        return LoadContext(servers.urls, clock=clock, run_id="run", emit_sample=emit)

    async def __aenter__(self):
        self.tasks = [asyncio.create_task(load.run(self.operations.append)) for load in self.loads.values()]
        return self

    async def __aexit__(self, *_):
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def clean_up(self):
        for load in self.loads.values():
            if isinstance(load, CleansUp):
                await load.clean_up()

    async def until(self, what, enough):
        async def check():
            for task in self.tasks:
                if task.done():
                    task.result()
            return await asyncio.to_thread(
                enough
            ) or None, f"{self.outcomes}, { {k: v[-1:] for k, v in self.samples.items()} }"

        await wait_until(what, check, within_s=60, gap_s=0.2)

    @property
    def outcomes(self):
        return Counter((op.load, op.outcome, op.error[:80]) for op in self.operations)


CHURN = (ServiceChurn, {"rate": "5/s", "services": 6, "service": "web"})


def test_every_stream_stands_and_sees_every_change(consul_servers):
    port = asked(f"{consul_servers.urls[0]}/v1/agent/self")["DebugConfig"]["ServerPort"]
    streams = (Streams, {"count": 60, "service": "web", "port": port, "connections": 2})

    async def main():
        async with Offered(consul_servers, streams=streams, churn=CHURN) as offered:
            samples = offered.samples
            await offered.until("all streams", lambda: samples["streams.open"][-1:] == [60])
            await offered.until(
                "events and their lag", lambda: samples["streams.lag"] and max(samples["streams.events"]) >= 60
            )
            return offered

    offered = asyncio.run(main())
    assert offered.outcomes[("streams", "ok", "")] == 60
    assert min(offered.samples["streams.lag"]) < 5
    asyncio.run(offered.clean_up())
    web = f"{consul_servers.urls[0]}/v1/health/service/web"
    wait("an empty catalog", lambda: not asked(web))  # agents tell it a moment later


async def test_views_stand_in_the_agents_cache(consul_servers):
    views = (Views, {"count": 40, "service": "viewed"})

    async with Offered(consul_servers, views=views) as offered:
        await offered.until("all views", lambda: offered.samples["views.open"][-1:] == [120])
    assert offered.outcomes == {("views", "ok", ""): 120}
    with urllib.request.urlopen(f"{consul_servers.urls[0]}/v1/health/service/viewed?cached&tag=t7", timeout=5) as reply:
        assert reply.headers["X-Cache"] == "HIT"


async def test_watchers_of_keys_and_of_a_service_are_told_and_end_with_what_is_there(consul_servers):
    loads = {
        "writes": (KvWrite, {"rate": "10/s", "keys": 5, "once": "0%"}),
        "keys": (Watch, {"count": 10, "keys_of": "writes", "keys": 5}),
        "service": (Watch, {"count": 6, "service": "web"}),
        "churn": CHURN,
    }

    async with Offered(consul_servers, **loads) as offered:
        await offered.until("many wake-ups", lambda: len([op for op in offered.operations if op.load == "keys"]) > 60)
        told = len([op for op in offered.operations if op.load == "service"])
    keys, service = [await offered.loads[name].final_reads() for name in ("keys", "service")]
    await offered.clean_up()
    assert told > 12
    woken = [op for op in offered.operations if op.load == "keys" and op.value]
    written = {op.value for op in offered.operations if op.load == "writes"}
    assert {op.value for op in woken} <= written
    assert all(0 <= op.end_ns - op.intended_ns < 10e9 for op in woken)
    assert set(keys) == {f"hashidrill/writes/{n}" for n in range(5)}
    assert set(keys.values()) <= written
    assert list(service) == ["web"]
