"""The probe of the machine tells the run's own work from other work."""

import pytest

from hashidrill.core.probes import hosts
from hashidrill.core.probes.base import SickError
from hashidrill.core.probes.hosts import CpuTimes, MachineProbe, cpu_times
from virtual_time import run


def sampled(*readings, limits=()):
    """Sample once a second for each (busy, idle, own)."""
    times, clock = iter(readings), iter(range(100))
    probe = MachineProbe(limits, read=lambda: CpuTimes(*next(times)), now_s=lambda: float(next(clock)))

    async def main():
        return [{sample.signal: sample.value for sample in await probe.sample()} for _ in readings]

    return run(main())


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
