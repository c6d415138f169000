"""Over all that YAML can ask of a fault: proven when there, proven gone when gone, never both, never neither.

The datacenter is in memory and reacts to what the fault does. Without any fault it has a pace of its own, which varies,
loses datagrams now and then, and has other things to do. A fault that could not be told from that is refused before it
is applied, with a number where one helps; it must then be a fault that is weak beside what the machine does by itself.
"""

from __future__ import annotations

import re

import anyio
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import FaultError
from hashidrill.core.faults.disk_trials import DRIFT_S
from hashidrill.core.protocols import registry
from hashidrill.testing.fakes import FakeDatacenter
from hashidrill.testing.noise import Noise

LOOKS = 3
"""An observer may look again: inject asks it for some seconds."""


@pytest.fixture(scope="module", autouse=True)
def baselines_without_a_pause():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hashidrill.core.faults.base._GAP_S", 0.0)
        yield


def ms(low, high):
    return st.integers(low, high).map(lambda value: f"{value}ms")


def percent(low, high=100):
    return st.integers(low, high).map(lambda value: f"{value}%")


OP = st.sampled_from(["fsync", "write", "read", "all"])
PEERS = st.sampled_from(["all", "servers", "clients", "host:consul-2", "host:client-1"])
LINK = {"port": st.just(8300), "from": PEERS, "direction": st.sampled_from(["in", "out", "both"])}
TOXICS = st.sampled_from(
    [
        ("latency", {"latency": st.integers(1, 3000), "jitter": st.integers(0, 1500)}),
        ("bandwidth", {"rate": st.integers(1, 50_000)}),
        ("timeout", {"timeout": st.integers(0, 3_600_000)}),
        ("reset_peer", {"timeout": st.integers(0, 3000)}),
        ("slow_close", {"delay": st.integers(1, 3000)}),
        ("slicer", {"average_size": st.integers(1, 16_384), "delay": st.integers(1, 3_000_000)}),
        ("limit_data", {"bytes": st.integers(1, 4_000_000)}),
    ]
).flatmap(
    lambda each: st.fixed_dictionaries(
        {
            **LINK,
            "type": st.just(each[0]),
            "attributes": st.fixed_dictionaries(each[1]),
            "stream": st.sampled_from(["upstream", "downstream"]),
            "toxicity": percent(10),
        }
    )
)
SPACE = {
    "disk.latency": st.fixed_dictionaries(
        {"op": OP, "delay": ms(1, 5000), "jitter": ms(0, 5000), "percent": percent(1)}
    ),
    "disk.error": st.fixed_dictionaries(
        {"op": OP, "errno": st.sampled_from(["EIO", "ENOSPC", "EROFS"]), "percent": percent(1)}
    ),
    "disk.full": st.fixed_dictionaries({"leave": st.integers(0, 250_000).map(lambda value: f"{value}kB")}),
    "disk.bandwidth": st.fixed_dictionaries(
        {"rate": st.integers(1, 10**9).map(lambda value: f"{value}B/s"), "op": st.sampled_from(["write", "read"])}
    ),
    "cpu.throttle": st.fixed_dictionaries({"cores": st.floats(0.01, 10)}),
    "network.partition": st.fixed_dictionaries({"from": PEERS, "direction": st.sampled_from(["both", "in", "out"])}),
    "network.loss": st.fixed_dictionaries(
        {"from": PEERS, "percent": st.integers(1, 200).map(lambda value: f"{value / 2}%")}
    ),
    "network.block": st.fixed_dictionaries(
        {"from": PEERS, "port": st.sampled_from([8300, 8500]), "action": st.sampled_from(["drop", "reject"])}
    ),
    "network.latency": st.fixed_dictionaries({**LINK, "delay": ms(1, 3000), "jitter": ms(0, 3000)}),
    "network.bandwidth": st.fixed_dictionaries(
        {**LINK, "rate": st.integers(1, 50_000).map(lambda value: f"{value}kB/s")}
    ),
    "network.timeout": st.fixed_dictionaries({**LINK, "timeout": ms(0, 3_600_000)}),
    "network.reset": st.fixed_dictionaries({**LINK, "after": ms(0, 3000)}),
    "network.slow_close": st.fixed_dictionaries({**LINK, "delay": ms(1, 3000)}),
    "network.slicer": st.fixed_dictionaries(
        {**LINK, "size": st.integers(1, 16_384).map(lambda value: f"{value}B"), "delay": ms(1, 3000)}
    ),
    "network.limit_data": st.fixed_dictionaries(
        {**LINK, "bytes": st.integers(1, 4_000_000).map(lambda value: f"{value}B")}
    ),
    "toxiproxy.toxic": TOXICS,
    "process.pause": st.just({}),
    "process.kill": st.fixed_dictionaries({"signal": st.sampled_from(["KILL", "TERM", "INT"])}),
}
NOISE = st.builds(
    Noise,
    disk_s=st.floats(0.00005, 0.02),
    disk_bytes_per_s=st.floats(20e6, 2e9),
    link_s=st.floats(0.0001, 0.005),
    spread=st.floats(0.0, 0.7),
    lost=st.sampled_from([0.0, 0.0005, 0.002]),
    cpus=st.integers(1, 8),
    busy=st.floats(0.0, 0.4),
)


def weak(kind, params, noise):
    """Whether what is asked for is weak beside what the datacenter does by itself: then it may be refused."""
    text = str(params)
    slowest_s = max(noise.disk_s, noise.link_s) * (1 if not noise.spread else 2.72 ** (4.5 * noise.spread))
    if kind == "disk.bandwidth":
        size = float(params["rate"].removesuffix("B/s")) * 0.02
        return size / noise.disk_bytes_per_s + slowest_s + DRIFT_S >= 0.018
    if kind == "cpu.throttle":
        return params["cores"] * 1.35 + 0.05 >= noise.cpus * (1 - noise.busy)
    if kind == "network.loss":
        return noise.lost * 5 >= float(params["percent"].removesuffix("%")) / 100
    if kind == "disk.full":
        return float(params["leave"].removesuffix("kB")) > 200_000
    if kind.startswith(("disk.latency", "network.", "toxiproxy.")):
        shortest = min([int(number) for number in re.findall(r"'?(\d+)ms", text)] or [10**9])
        attributes = params.get("attributes", {})
        times = [attributes.get(name, 10**9) for name in ("latency", "delay")]
        # a bandwidth's or a slicer's figure says little about what its trial takes; a jitter of 0ms is no weakness
        mild = "rate" in text or "slicer" in text or kind == "network.slicer"
        return mild or "jitter" in text or min(shortest, *times) / 1000 <= slowest_s * 3 + DRIFT_S
    return False


class Looking:
    """A fault on consul-1 whose observer is asked as inject does it, a few times."""

    def __init__(self, kind, params, noise, seed):
        self.world = FakeDatacenter(clients=2, seed=seed)
        self.world.noise = noise
        cls = registry.fault(kind)
        try:
            self.fault = cls(cls.Params.model_validate(params), self.world)
        except ValidationError:
            assume(False)  # refused at validate
        self.undo = None

    async def plan(self):
        self.undo = await planned(self.fault, self.world.target("consul-1"), "0-x")

    async def says(self, *, present):
        return [(await self.fault.verify(self.undo, present=present)).ok for _ in range(LOOKS)]


@pytest.mark.lie
@pytest.mark.parametrize("kind", SPACE)
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(data=st.data())
def test_a_fault_is_proven_or_proven_gone_and_never_both_or_neither(kind, data):
    params, noise, seed = data.draw(SPACE[kind]), data.draw(NOISE), data.draw(st.integers(0, 10**6))
    looking = Looking(kind, params, noise, seed)

    async def go():
        try:
            await looking.plan()
        except FaultError as refused:
            assert weak(kind, params, noise), f"refused, and not weak: {refused}"  # noqa: PT017 - only where it is raised
            return
        assert not any(await looking.says(present=True)), "proven before it was applied"
        assert any(await looking.says(present=False)), "not proven absent before it was applied"
        await looking.fault.apply(looking.undo)
        assert any(await looking.says(present=True)), "in force, and not proven"
        assert not any(await looking.says(present=False)), "in force, and proven gone"
        await looking.fault.revert(looking.undo)
        assert any(await looking.says(present=False)), "gone, and not proven gone"
        assert not any(await looking.says(present=True)), "gone, and proven in force"

    anyio.run(go)


def test_the_space_has_every_fault_that_can_be_taken_back_of_a_host():
    of_services = {kind for service in registry.services().values() for kind in service.faults}
    of_others = ("chaos_mesh.", "litmus.")  # tests/unit/kubernetes
    of_services |= {kind for kind in registry.fault_kinds() if kind.startswith(of_others)}
    of_hosts = {kind for kind, fault in registry.faults().items() if kind not in of_services and not fault.on_client}
    assert set(SPACE) == of_hosts - {"noop", "process.restart"}
