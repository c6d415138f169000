"""Things that stand open: how quickly they are opened, and what happens where the generator is busy with that."""

import asyncio
from collections import defaultdict

import pytest

import virtual_time
from hashidrill.core.loads.context import LoadContext
from hashidrill.core.loads.schedule import CpuMeter
from hashidrill.products.consul.loads.views import Held
from tasks import running
from virtual_time import VirtualClock

S = 1_000_000_000


class Core:
    """The generator's CPU time, of which each opening costs `cost_s`; it cannot use more than there is."""

    def __init__(self, cost_s):
        self.cost_s, self.used_s = cost_s, 0.0


def opened(cost_s, *, count=2000, per_s=500, seconds=10.0, stalls_at=None):
    """(when each was opened, in seconds; the samples; cores used in each second) of things that stand for ever."""
    at, samples, cores = [], defaultdict(list), []

    async def main():
        clock, core = VirtualClock(), Core(cost_s)
        loop = asyncio.get_running_loop()
        meter = CpuMeter(clock_s=loop.time, cpu_s=lambda: core.used_s)
        context = LoadContext(
            ["x"], clock=clock, cpu=meter, emit_sample=lambda what, value, _: samples[what].append(value)
        )

        async def hold(slot, due_ns):
            core.used_s += core.cost_s
            at.append(clock.now_ns() / S)
            held.opened(slot)
            await asyncio.Event().wait()

        held = Held(context, count, per_s, hold)
        async with running(held.run()):
            for second in range(round(seconds)):
                before = core.used_s
                await asyncio.sleep(1)
                cores.append(core.used_s - before)
                if second == stalls_at:
                    loop.advance(3.0)

    virtual_time.run(main())
    return at, samples, cores


def test_what_is_cheap_is_opened_at_the_rate_that_was_asked_for():
    at, samples, _ = opened(0.0005)
    assert len(at) == 2000
    assert at[-1] == pytest.approx(4.0, abs=0.1)
    assert set(samples["establish"]) == {500.0}


@pytest.mark.lie
def test_what_is_dear_is_opened_as_quickly_as_the_generator_can_without_its_core_being_full():
    """3 ms each: 500 a second would be 1.5 cores, and 233 are 0.7 of one."""
    at, samples, cores = opened(0.003, count=100_000, seconds=30.0)
    assert max(cores[3:]) < 0.9
    assert min(cores[3:]) > 0.3
    assert 100 < min(samples["establish"][3:]) <= max(samples["establish"][3:]) < 300
    assert len(at) == pytest.approx(30 * 200, rel=0.3)


def test_the_pace_is_back_when_the_generator_is_calm_again():
    _, samples, _ = opened(0.003, count=1500, seconds=30.0)
    assert min(samples["establish"]) < 300
    assert samples["establish"][-1] == 500.0


def test_what_was_held_up_while_the_generator_was_busy_is_not_opened_all_at_once():
    _, _, cores = opened(0.003, count=100_000, seconds=12.0, stalls_at=6)
    assert max(cores[3:]) < 0.9
