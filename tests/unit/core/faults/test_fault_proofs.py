"""Over all that YAML can ask of a fault: proven when there, proven gone when gone, never both, never neither.

The datacenter is in memory and reacts to what the fault does. Without any fault it has a pace of its own, which varies,
loses datagrams now and then, and has other things to do. A fault that could not be told from that is refused before it
is applied, with a number where one helps; it must then be a fault that is weak beside what the machine does by itself.
"""

import re

import anyio
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fault_cases import of_package
from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import FaultError
from hashidrill.core.faults.disk import DRIFT_S
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import OnTap
from hashidrill.testing.fakes import FakeDatacenter, Noise

LOOKS = 3
"""An observer may look again: inject asks it for some seconds."""


@pytest.fixture(scope="module", autouse=True)
def baselines_without_a_pause():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hashidrill.core.faults.base._GAP_S", 0.0)
        yield


def drawn(values):
    """The strategy of one value of `Cases.space`."""
    if isinstance(values, dict):
        return st.fixed_dictionaries({name: drawn(each) for name, each in values.items()})
    if isinstance(values, list):
        return st.sampled_from(values)
    bounds = re.fullmatch(r"([\d.]+?)([a-zA-Z/%]*)\.\.([\d.]+)\2", values) if isinstance(values, str) else None
    if bounds is None:
        return st.just(values)
    low, unit, high = bounds.groups()
    if "." in low:
        numbers = st.floats(float(low), float(high)).map(lambda value: round(value, 2))
    else:
        numbers = st.integers(int(low), int(high))
    return numbers.map(lambda value: f"{value}{unit}") if unit else numbers


SPACE = {
    kind: st.one_of([drawn(alternative) for alternative in cls.cases.space])
    for kind, cls in of_package("core.faults").items()
    if cls.cases.space
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
    if (declared := registry.fault(kind).cases.weak) is not None:
        return declared(params, noise)
    if kind.startswith(("disk.latency", "network.", "toxiproxy.")):
        shortest = min([int(number) for number in re.findall(r"'?(\d+)ms", text)] or [10**9])
        attributes = params.get("attributes", {})
        times = [attributes.get(name, 10**9) for name in ("latency", "delay")]
        # a bandwidth's or a slicer's figure says little about what its trial takes; a jitter of 0ms is no weakness
        mild = "rate" in text or "slicer" in text or kind == "network.slicer"
        return mild or "jitter" in text or min(shortest, *times) / 1000 <= noise.slowest_s * 3 + DRIFT_S
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


@pytest.mark.long
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
    of_hosts = {kind for kind, fault in of_package("core.faults").items() if not isinstance(fault, OnTap)}
    assert set(SPACE) == of_hosts - {"noop", "process.restart"}
