"""A restart that the agent does not follow: it is killed after a while, as a service manager does it."""

import signal

import virtual_time
from hashidrill.core.faults.process import ProcessRestart, RestartParams
from hashidrill.testing.fakes import FakeDatacenter


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
