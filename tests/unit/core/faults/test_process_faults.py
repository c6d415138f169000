"""A restart that the agent does not follow: it is killed after a while, as a service manager does it.
memory.pressure: what its observer believes, what it refuses, and what comes back; the contract is in Cases.
"""

import errno
import signal
from pathlib import Path

import anyio
import pytest

import places
import virtual_time
from hashidrill.core.engine.inject import planned
from hashidrill.core.errors import ExperimentError, FaultError
from hashidrill.core.experiment.loader import load_text
from hashidrill.core.faults.memory import MemoryPressure, PressureParams
from hashidrill.core.faults.process import ProcessRestart, RestartParams
from hashidrill.core.protocols.capabilities import MemoryControl
from hashidrill.lab.sandbox.cgroups import Group
from hashidrill.testing.fakes import FakeDatacenter
from tasks import raising


def deaf(host):
    """That host's agent does not hear SIGTERM; returns the signals that it was sent."""
    sent = []
    real = host.signal

    async def signal_it(reference, number):
        sent.append(signal.Signals(number).name)
        return True if number == signal.SIGTERM else await real(reference, number)

    host.signal = signal_it
    return sent


@virtual_time.ran
async def restart(world):
    fault = ProcessRestart(RestartParams(), world)
    undo = fault.plan(world.target("consul-1"), fault_id="0-process.restart-consul-1")
    await fault.apply(undo)
    return await fault.verify(undo, present=True)


def test_an_agent_that_does_not_end_is_killed_and_started_again():
    world = FakeDatacenter()
    sent = deaf(world.hosts["consul-1"])
    assert restart(world).ok
    assert sent == ["SIGTERM", "SIGKILL"]


def test_an_agent_that_ends_is_not_killed():
    world = FakeDatacenter()
    sent = []
    real = world.hosts["consul-1"].signal

    async def signal_it(reference, number):
        sent.append(signal.Signals(number).name)
        return await real(reference, number)

    world.hosts["consul-1"].signal = signal_it
    assert restart(world).ok
    assert sent == ["SIGTERM"]


@pytest.fixture
def world():
    return FakeDatacenter()


def in_force(world, **params):
    """(the fault, its undo), applied on consul-1."""
    fault = MemoryPressure(PressureParams.model_validate(params), world)

    async def applied():
        undo = await planned(fault, world.target("consul-1"), "0-memory")
        await fault.apply(undo)
        return undo

    return fault, anyio.run(applied)


def says(fault, undo, *, present=True):
    async def look():
        return await fault.verify(undo, present=present)

    return anyio.run(look)


@pytest.mark.lie
def test_a_neighbour_that_is_gone_is_no_pressure_although_the_limit_is_there(world):
    fault, undo = in_force(world, by="neighbour", leave="50%")
    assert says(fault, undo).ok
    world.hosts["consul-1"].takers.clear()
    assert not says(fault, undo).ok


@pytest.mark.lie
@pytest.mark.parametrize("params", [{"leave": "80%"}, {"leave": "60%", "by": "neighbour"}])
def test_a_limit_that_is_higher_than_asked_is_no_proof(world, params):
    fault, undo = in_force(world, **params)
    assert says(fault, undo).ok
    world.hosts["consul-1"].memory_limits["0-memory"] += 20 << 20
    assert not says(fault, undo).ok


@pytest.mark.lie
def test_it_is_not_gone_while_the_agent_that_the_kernel_ended_is_away(world):
    fault, undo = in_force(world, leave="50%")
    assert says(fault, undo).measured.endswith("consul was ended")
    anyio.run(world.hosts["consul-1"].free_memory, "0-memory")
    assert not says(fault, undo, present=False).ok
    anyio.run(fault.revert, undo)
    assert says(fault, undo, present=False).ok


@pytest.mark.lie
def test_a_refusal_before_the_fault_proves_nothing(world):
    world.hosts["consul-1"].refusals = 3
    fault, undo = in_force(world, leave="100%")
    assert undo["prior"]["refusals"] == 3
    assert says(fault, undo).ok
    anyio.run(world.hosts["consul-1"].free_memory, "0-memory")
    assert not says(fault, undo).ok


def test_agents_that_something_else_limits_are_refused(world):
    world.hosts["consul-1"].memory_limits["theirs"] = 90_000_000
    with pytest.raises(FaultError, match=r"without the fault a process can take .* find out what limits it"):
        in_force(world)


def test_a_host_without_a_cgroup_for_memory_is_named(world):
    del world.hosts["consul-1"].parts[MemoryControl]
    with pytest.raises(FaultError, match=r"consul-1.*MemoryControl \(limit the memory of the host's agents"):
        in_force(world)


FILES = {
    1: {"memory.usage_in_bytes": "70", "memory.stat": "cache 30\nrss 35\ntotal_rss 40\n", "memory.failcnt": "7"},
    2: {"memory.current": "70", "memory.stat": "anon 40\nfile 30\n", "memory.events": "low 0\nhigh 4\nmax 3\noom 1\n"},
}
LIMITS = {1: {"memory.limit_in_bytes": ("50", "-1")}, 2: dict.fromkeys(("memory.high", "memory.max"), ("50", "max"))}


@pytest.mark.parametrize("version", [1, 2])
def test_a_cgroup_of_either_version_is_measured_and_limited(tmp_path, version):
    for name, text in FILES[version].items():
        (tmp_path / name).write_text(text)
    group = Group(tmp_path, version)
    assert group.memory_in_use() == (70, 40)
    assert group.memory_refusals() == 7
    for moment, limit in enumerate((50, None)):
        assert group.limit_memory(limit)
        assert {name: (tmp_path / name).read_text() for name in LIMITS[version]} == {
            name: texts[moment] for name, texts in LIMITS[version].items()
        }


def test_a_limit_that_the_kernel_refuses_is_told_from_one_that_cannot_be_written(tmp_path, monkeypatch):
    def refuse(number):
        monkeypatch.setattr(Path, "write_text", raising(OSError(number, "no")))

    refuse(errno.EBUSY)
    assert not Group(tmp_path, 1).limit_memory(50)
    refuse(errno.EACCES)
    with pytest.raises(OSError, match="no"):
        Group(tmp_path, 1).limit_memory(50)


def validated(params):
    text = places.GOOD.read_text()
    [step] = [line for line in text.splitlines() if "fault: disk.latency" in line]
    memory = f'  - {{fault: memory.pressure, on: "host:consul-1", with: {params}, at: 0s, for: 20s}}'
    return load_text(text.replace(step, memory))


@pytest.mark.lie
def test_a_neighbour_that_would_take_nothing_is_refused_at_validate():
    with pytest.raises(ExperimentError, match="a neighbour that leaves 100% takes nothing: leave at most 99%") as told:
        validated("{leave: 100%, by: neighbour}")
    assert str(told.value).startswith("experiment.yaml:17:")


@pytest.mark.parametrize("params", ["{leave: 99%, by: neighbour}", "{leave: 100%}"])
def test_all_that_takes_something_is_valid(params):
    assert validated(params)
