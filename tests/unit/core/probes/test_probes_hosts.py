"""Probes of a host: its agent's process and its disk; and the runner, which keeps probes out of each other's way.
The probe of the machine tells the run's own work from other work.
"""

import asyncio
import contextlib
import errno
import os

import anyio
import pytest

from hashidrill.core.probes import hosts
from hashidrill.core.probes.base import BaseProbe, SickError, run_probes
from hashidrill.core.probes.hosts import CpuTimes, DiskProbe, MachineProbe, ProcessProbe, Usage, cpu_times, usage_of
from hashidrill.core.protocols.abc import AgentProcess, Sample, Timing
from hashidrill.core.protocols.capabilities import Capable, DiskCanary, Processes
from virtual_time import ran, run


class FakeHost(Capable):
    name = "consul-1"
    address = "10.73.0.11"

    def __init__(self):
        super().__init__()
        self.parts |= {Processes: self, DiskCanary: self}
        self.process = AgentProcess(42, 1000, "S")
        self.timing = Timing(0.004)

    async def agent_process(self, agent):
        assert agent == "consul"
        return self.process

    async def canary_fsync(self):
        if isinstance(self.timing, float):
            await asyncio.sleep(self.timing)
        return self.timing


def values(samples):
    return {sample.signal: sample.value for sample in samples}


@ran
async def process_samples(host, *readings, between=lambda _n: None):
    """Sample once for each (time, usage)."""
    clock, usages = iter([t for t, _ in readings]), iter([usage for _, usage in readings])
    probe = ProcessProbe(host, agent="consul", read=lambda _pid: next(usages), now_s=lambda: next(clock))
    taken = []
    for n in range(len(readings)):
        between(n)
        taken.append(await probe.sample())
    return taken


def test_rates_are_differences_over_time_and_need_two_samples():
    first, second = process_samples(
        FakeHost(), (10.0, Usage(5.0, 90_000_000, 1000, 2000)), (12.0, Usage(6.0, 91_000_000, 33_000, 66_000))
    )
    assert values(first) == {"process.rss": 90_000_000}
    assert values(second) == {
        "process.rss": 91_000_000,
        "process.cpu": 0.5,
        "process.write_rate": 16_000,
        "process.wchar_rate": 32_000,
    }
    assert {sample.host for sample in second} == {"consul-1"}


def test_a_restarted_agent_starts_its_rates_afresh_and_gives_no_negative_one():
    host = FakeHost()

    def restart(n):
        host.process = AgentProcess(42, 1000 + n, "S")  # the same pid, another process

    taken = process_samples(host, (10.0, Usage(50, 1, 9999, 9999)), (12.0, Usage(0, 1, 0, 0)), between=restart)
    assert values(taken[1]) == {"process.rss": 1}


def test_an_agent_that_does_not_run_is_a_failed_sample():
    host = FakeHost()
    host.process = None
    (samples,) = process_samples(host, (1.0, None))
    assert {(sample.ok, sample.value, sample.text) for sample in samples} == {(False, None, "consul does not run")}


def test_usage_is_read_from_proc():
    usage = usage_of(os.getpid())
    assert usage.cpu_s > 0
    assert usage.rss_bytes > 1_000_000
    with pytest.raises(SickError, match="is gone"):
        usage_of(2**22 + 1)  # over the largest pid that Linux gives out


def fsync_sample(timing):
    host = FakeHost()
    host.timing = timing
    (sample,) = run(DiskProbe(host).sample())
    return sample


def test_the_canary_fsync_is_measured_in_seconds():
    sample = fsync_sample(Timing(0.512))
    assert (sample.signal, sample.value, sample.host, sample.ok) == ("disk.fsync", 0.512, "consul-1", True)


def test_a_disk_that_answers_with_an_error_names_it():
    sample = fsync_sample(Timing(0.001, errno.EIO))
    assert (sample.ok, sample.value) == (False, None)
    assert sample.text.startswith("EIO: ")


def test_a_disk_that_hangs_is_a_failed_sample():
    sample = fsync_sample(3600.0)
    assert (sample.ok, sample.text) == (False, "no answer within 10s")


# --- the runner


class Ticking(BaseProbe):
    """Takes `takes_s` for each sample, and notes when each began."""

    signals = ("a.signal",)

    def __init__(self, interval_s, takes_s=0.0, host=""):
        self.interval_s, self.takes_s, self.host = interval_s, takes_s, host
        self.began, self.closed = [], 0

    async def measure(self):
        self.began.append(anyio.current_time() - 1000)
        await asyncio.sleep(self.takes_s)
        return [Sample("a.signal", 1.0, "", self.host)]

    async def aclose(self):
        self.closed += 1


def run_for(seconds, *probes):
    emitted = []

    async def main():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds - 0.001):
                await run_probes(probes, lambda s: emitted.append((round(anyio.current_time() - 1000, 3), s)))

    run(main())
    return emitted


def test_each_probe_has_its_own_interval():
    fast, slow = Ticking(0.5), Ticking(2.0)
    run_for(10, fast, slow)
    assert fast.began == pytest.approx([n * 0.5 for n in range(20)])
    assert slow.began == pytest.approx([n * 2.0 for n in range(5)])


def test_a_hung_probe_fails_within_its_timeout_and_delays_no_other():
    hung, well = Ticking(0.5, takes_s=3600, host="hung"), Ticking(0.5, host="well")
    emitted = run_for(10, hung, well)
    assert well.began == pytest.approx([n * 0.5 for n in range(20)])
    failed = [(t, s.text) for t, s in emitted if s.host == "hung"]
    assert failed[:2] == [(1.0, "no answer within 1s"), (2.5, "no answer within 1s")]
    assert all(not s.ok for _, s in emitted if s.host == "hung")


def test_a_late_probe_skips_what_it_missed_and_keeps_to_its_grid():
    late = Ticking(0.5, takes_s=0.7)
    run_for(10, late)
    assert late.began == pytest.approx([float(n) for n in range(10)])


def test_a_bug_in_a_probe_is_not_hidden_as_a_failed_sample():
    class Broken(Ticking):
        async def measure(self):
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as raised:
        run_for(10, Broken(1.0))
    assert raised.group_contains(ZeroDivisionError)


def test_probes_are_closed_in_the_end():
    probe = Ticking(1.0)
    run_for(3, probe)
    assert probe.closed == 1


@ran
async def sampled(*readings, limits=()):
    """Sample once a second for each (busy, idle, own)."""
    times, clock = iter(readings), iter(range(100))
    probe = MachineProbe(limits, read=lambda: CpuTimes(*next(times)), now_s=lambda: float(next(clock)))
    return [{sample.signal: sample.value for sample in await probe.sample()} for _ in readings]


def test_others_are_whoever_is_not_of_the_run():
    first, second, third = sampled((100, 50, 10), (101.5, 50.5, 10.4), (103.5, 50.5, 12.4))
    assert first == {}
    assert second == {"machine.others": pytest.approx(1.1), "machine.idle": pytest.approx(0.5)}
    assert third == {"machine.others": 0.0, "machine.idle": 0.0}


def test_a_process_that_ended_unseen_makes_nobody_negative():
    assert sampled((100, 50, 10), (100.1, 51.9, 9))[1] == pytest.approx({"machine.others": 0.1, "machine.idle": 1.9})


class Limit:
    """A group that may use so many CPUs, and has used so much at each sample."""

    def __init__(self, cores, *used_s):
        self.cores, self._used = cores, iter(used_s)

    def used_s(self):
        return next(self._used, None)


@pytest.mark.lie
@pytest.mark.parametrize(
    ("limit", "others", "idle"),
    [
        (Limit(8.0, 0.0, 1.5), 0.5, 6.0),  # wider than the machine's own
        (Limit(2.0, 0.0, 1.5), 0.0, 0.5),  # who works beyond it takes nothing from us
        (Limit(1.5, 0.0, 1.5), 0.0, 0.0),  # the run alone has used it up, on a machine that is idle
        (Limit(2.0, 0.0, 2.0), 0.5, 0.0),  # a neighbour within the same quota
        (Limit(2.0), 0.0, 0.5),  # nobody counts: at least what the run itself has used
        (Limit(0.15), 0.0, 0.0),
    ],
)
def test_idle_cpus_beyond_a_quota_are_not_for_us(limit, others, idle):
    said = sampled((100, 50, 10), (102, 56, 11.5), limits=[limit])[1]
    assert said == pytest.approx({"machine.others": others, "machine.idle": idle})


@pytest.fixture
def proc(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "_PROC", tmp_path)
    monkeypatch.setattr(hosts, "_TICKS_PER_S", 100)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 2})
    return tmp_path


def test_the_numbers_are_where_the_kernel_puts_them(proc):
    """Guest time is part of user time, steal is somebody else's work; a command may contain anything."""
    (proc / "stat").write_text(
        "cpu  9000 10 200 5000 300 20 30 40 999 999\n"
        "cpu0 600 10 100 3000 300 20 0 40 999 999\ncpu1 9 9 9 9 9 9 9 9 9 9\ncpu2 400 0 100 2000 0 0 30 0 9 9\n"
        "intr 5 6 7\nctxt 4\n"
    )
    process = proc / "42"
    process.mkdir()
    (process / "stat").write_text("42 (a b) S) S 1 42 42 0 -1 4194560 9 0 0 0 150 50 25 75 20 0 1 0 100 0 0\n")
    (proc / "43").mkdir()  # ended between two looks
    assert cpu_times() == CpuTimes(busy_s=13.0, idle_s=53.0, own_s=3.0)


@pytest.mark.parametrize("text", ["", "cpu 1 2", "cpu0 1 2", "cpu0 1 2 3 4 5 6 7 8", "intr 5"])
def test_a_machine_that_is_not_linux_is_sick_and_not_idle(proc, text):
    (proc / "stat").write_text(text)
    with pytest.raises(SickError, match="not readable"):
        cpu_times()
