"""The open-loop schedule, in virtual time.
Things that stand open: how quickly they are opened, and what happens where the generator is busy with that.
"""

import asyncio
from collections import defaultdict

import pytest

import virtual_time
from hashidrill.core.experiment.load_levels import Course, Piece
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.loads.schedule import CANCELLED, OVERLOADED, CpuMeter, LagMeter, OpenLoop, Reply, RequestLoop
from hashidrill.core.protocols.abc import Reason
from hashidrill.products.consul.loads.views import Held
from tasks import raising, running
from virtual_time import VirtualClock, run

MS = 1_000_000


def with_tasks(perform, rate, clock, **options):
    return OpenLoop("load", rate, planned, perform, clock, **options)


def with_requests(perform, rate, clock, **options):
    """The same operations as requests of a client that answers when `perform` has ended."""
    tasks = set()

    def ask(request, done):
        async def answer():
            done(await perform(*request))

        tasks.add(asyncio.ensure_future(answer()))

    request = lambda n, key, value: (n, key, value)  # noqa: E731 - to give back what is given
    return RequestLoop("load", rate, planned, request, clock, reply=lambda reply: reply, ask=ask, **options)


def planned(n):
    return f"key-{n}", f"value-{n}"


BOTH = pytest.mark.parametrize("made", [with_tasks, with_requests])


def offer(perform, *, rate, seconds, lag=None, made=with_tasks, **options):
    """Run a loop for so long, then cancel it; the operations in the order in which they were emitted."""
    operations = []

    async def main():
        loop = made(perform, rate, VirtualClock(), lag=lag, **options)
        async with running(loop.run(operations.append)):
            await asyncio.sleep(seconds - 0.001)  # just before the next operation would be due

    run(main())
    return operations


async def answers_in_10_ms(n, key, value):
    await asyncio.sleep(0.010)
    return Reply("ok", status=200)


@BOTH
def test_operation_n_is_due_at_start_plus_n_over_rate(made):
    operations = offer(answers_in_10_ms, made=made, rate=3, seconds=100)
    assert len(operations) == 300
    assert [op.intended_ns for op in operations] == [round(n * 1e9 / 3) for n in range(300)]
    assert {op.outcome for op in operations} == {"ok"}


@pytest.mark.long
@BOTH
def test_nothing_starts_before_it_is_due_and_at_most_a_millisecond_after(made):
    lags = [op.start_ns - op.intended_ns for op in offer(answers_in_10_ms, made=made, rate=777, seconds=10)]
    assert min(lags) >= 0
    assert max(lags) <= 1.01 * MS


@BOTH
def test_a_stall_of_the_server_delays_no_later_operation(made):
    """A closed loop would send nothing for 2 s; here the 200 operations of that time start on time and wait."""

    async def stalls_for_2_s(n, key, value):
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.001, 1002.995 - loop.time() if 1000.995 <= loop.time() < 1002.995 else 0))
        return Reply("ok")

    operations = offer(stalls_for_2_s, made=made, rate=100, seconds=5)
    stalled = [op for op in operations if 1000 * MS <= op.intended_ns < 3000 * MS]
    assert len(stalled) == 200
    assert all(op.start_ns - op.intended_ns <= 1.01 * MS for op in stalled)
    assert all(abs(op.end_ns - 2995 * MS) <= 2 * MS for op in stalled)
    latencies = sorted(op.end_ns - op.intended_ns for op in stalled)
    assert latencies[100] == pytest.approx(1000 * MS, abs=12 * MS)


def test_a_generator_that_wakes_late_starts_all_overdue_operations_at_once_and_skips_none():
    async def stalls_the_generator_once(n, key, value):
        if n == 10:
            asyncio.get_running_loop().advance(0.5)
        return Reply("ok")

    lag = LagMeter()
    operations = offer(stalls_the_generator_once, rate=100, seconds=2, lag=lag)
    assert [op.intended_ns for op in operations] == [n * 10 * MS for n in range(len(operations))]
    assert len(operations) == 200
    overdue = [op for op in operations if op.start_ns - op.intended_ns > 2 * MS]
    assert 48 <= len(overdue) <= 51
    assert len({op.start_ns for op in overdue}) == 1
    assert lag.take_s() == pytest.approx(0.49, abs=0.02)
    assert lag.take_s() == 0


async def hangs(n, key, value):
    await asyncio.sleep(3600)
    return Reply("ok")


@BOTH
def test_operations_in_flight_when_the_load_is_stopped_are_unknown_and_emitted_once(made):
    operations = offer(hangs, made=made, rate=50, seconds=1)
    assert len(operations) == 50
    assert {op.outcome for op in operations} == {"unknown"}
    assert {op.error for op in operations} == {CANCELLED}
    assert len({op.key for op in operations}) == 50
    assert {op.end_ns for op in operations} == {999 * MS}


async def test_an_operation_that_is_cancelled_before_its_first_step_is_emitted_too():
    """A task that is cancelled before it ever ran does not even enter its body."""
    operations = []
    loop = OpenLoop("load", 1000, lambda n: ("k", "v"), hangs, VirtualClock())
    async with running(loop.run(operations.append)):
        await asyncio.sleep(0)  # the loop has made its first task, which has not run
    assert [op.outcome for op in operations] == ["unknown"]


def test_a_reply_that_arrives_while_the_load_is_being_stopped_counts_and_counts_once():
    async def finishes_all_the_same(n, key, value):
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return Reply("ok", status=200)

    operations = offer(finishes_all_the_same, rate=10, seconds=1)
    assert [op.outcome for op in operations] == ["ok"] * 10


@BOTH
def test_operations_over_the_bound_fail_as_generator_overload_and_are_not_sent(made):
    sent = []

    async def hangs_and_notes(n, key, value):
        sent.append(n)
        await asyncio.sleep(3600)

    operations = offer(hangs_and_notes, made=made, rate=10, seconds=5, max_in_flight=20)
    assert sent == list(range(20))
    overloaded = [op for op in operations if op.outcome == "fail"]
    assert len(overloaded) == 30
    assert all(op.reason == Reason.OVERLOADED and op.error.startswith(OVERLOADED) for op in overloaded)
    assert len(operations) == 50


@BOTH
def test_a_closed_loop_keeps_so_many_under_way_and_starts_the_next_when_one_ends(made):
    under_way = []

    async def takes_a_second(n, key, value):
        under_way.append(n)
        await asyncio.sleep(1)
        under_way.remove(n)
        most.append(len(under_way) + 1)
        return Reply("ok")

    most = []
    operations = offer(takes_a_second, made=made, rate=100, seconds=6, at_once=5)
    assert max(most) == 5
    assert {op.outcome for op in operations if op.end_ns < 5990 * MS} == {"ok"}
    assert sorted(op.key for op in operations) == sorted(f"key-{n}" for n in range(len(operations)))  # none is skipped
    assert len(operations) == 30
    assert max(op.start_ns - op.intended_ns for op in operations) <= 1.01 * MS
    busy_ns = sum(op.end_ns - op.start_ns for op in operations)
    assert busy_ns >= 0.98 * 5 * 6000 * MS


@pytest.mark.lie
def test_a_closed_loop_that_is_fast_enough_offers_its_rate_and_no_more():
    assert len(offer(answers_in_10_ms, rate=100, seconds=5, at_once=5)) == 500


def test_what_was_due_long_before_one_ended_is_not_made_up_for():
    """A level that is 0 % by now asks for none: only what was due within the last second is still wanted."""

    async def first_one_hangs(n, key, value):
        await asyncio.sleep(3 if n == 0 else 0.001)
        return Reply("ok")

    course = Course([Piece(1000 * MS, 0.0)])
    course.begin(0)
    assert len(offer(first_one_hangs, rate=10, seconds=5, at_once=1, course=course)) == 1


async def test_a_bug_in_a_load_ends_the_run_and_loses_no_operation():
    async def breaks_at_5(n, key, value):
        if n == 5:
            raise ZeroDivisionError
        await asyncio.sleep(3600)

    operations = []
    with pytest.raises(ExceptionGroup) as raised:
        await OpenLoop("load", 10, lambda n: (str(n), ""), breaks_at_5, VirtualClock()).run(operations.append)
    assert raised.group_contains(ZeroDivisionError)
    assert sorted(op.key for op in operations) == [str(n) for n in range(6)]
    assert {op.outcome for op in operations} == {"unknown"}


@pytest.mark.lie
async def test_a_bug_in_what_an_answer_means_ends_the_run_too():
    """It is raised in a callback of the event loop, which would print it and go on: the load, without operations."""
    asked, operations = [], []

    def ask(request, done):
        asked.append(request)
        asyncio.get_running_loop().call_later(0.01, done, "the answer")

    request = lambda n, key, value: (n, key, value)  # noqa: E731 - to give back what is given
    with pytest.raises(ExceptionGroup) as raised:
        await RequestLoop("load", 10, planned, request, VirtualClock(), reply=raising(ZeroDivisionError), ask=ask).run(
            operations.append
        )
    assert raised.group_contains(ZeroDivisionError)
    assert (len(asked), [op.outcome for op in operations]) == (1, ["unknown"])


def test_a_reply_may_name_the_value_that_was_read():
    async def reads(n, key, value):
        return Reply("ok", value="what was there")

    assert {op.value for op in offer(reads, rate=10, seconds=1)} == {"what was there"}


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
