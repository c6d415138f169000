"""The method's clock: it stands still while a step waits, and everything after that comes later by as much."""

import itertools

import anyio
import pytest

import virtual_time
from hashidrill.core.engine.run_state import MethodClock
from hashidrill.core.experiment.load_levels import Course, Pace, Piece
from tasks import raising

S = 1_000_000_000


async def nothing(*_):
    pass


async def stop(method, after_s, for_s):
    await anyio.sleep(after_s)
    async with method.stands_still(nothing, nothing):
        await anyio.sleep(for_s)


@virtual_time.ran
async def play(act):
    clock = virtual_time.VirtualClock()
    await anyio.sleep(2.0)  # the method begins some time after the run
    return await act(clock, MethodClock(clock))


def test_it_counts_from_the_beginning_of_the_method():
    async def act(clock, method):
        await method.until(3.0)
        return clock.now_ns() / S, method.now_s, method.ns(5.0) / S

    assert play(act) == (5.0, 3.0, 7.0)


def test_what_is_planned_after_a_stop_comes_later_and_what_came_before_does_not():
    async def act(clock, method):
        reached = {}

        async def reach(at_s):
            await method.until(at_s)
            reached[at_s] = clock.now_ns() / S

        async with anyio.create_task_group() as group:
            for at_s in (1.0, 4.0, 10.0):
                group.start_soon(reach, at_s)
            await method.until(3.0)
            async with method.stands_still(nothing, nothing):
                await anyio.sleep(20.0)
                assert method.now_s == 3.0
            assert method.now_s == 3.0
        return reached

    assert play(act) == {1.0: 3.0, 4.0: 26.0, 10.0: 32.0}


def test_two_that_wait_at_once_stop_it_once():
    said = []

    async def act(clock, method):
        async def stops():
            said.append(("stops", clock.now_ns() / S))

        async def goes(stood_ns):
            said.append(("goes", clock.now_ns() / S, stood_ns / S))

        async def wait(begins_s, for_s):
            await anyio.sleep(begins_s)
            async with method.stands_still(stops, goes):
                await anyio.sleep(for_s)

        async with anyio.create_task_group() as group:
            group.start_soon(wait, 1.0, 5.0)
            group.start_soon(wait, 3.0, 6.0)
        return method.now_s

    assert play(act) == 1.0
    assert said == [("stops", 3.0), ("goes", 11.0, 8.0)]


def test_what_lasts_lasts_longer_by_as_much():
    async def act(clock, method):
        async with anyio.create_task_group() as group:
            group.start_soon(stop, method, 1.0, 10.0)
            await method.lasts(5.0)
        return clock.now_ns() / S

    assert play(act) == 2.0 + 5.0 + 10.0


def test_an_event_ends_what_lasts_even_while_the_clock_stands_still():
    async def act(clock, method):
        over = anyio.Event()

        async def end():
            await anyio.sleep(4.0)
            over.set()

        async with anyio.create_task_group() as group:
            group.start_soon(stop, method, 1.0, 10.0)
            group.start_soon(end)
            await method.lasts(5.0, until=over)
            return clock.now_ns() / S

    assert play(act) == 2.0 + 4.0


def test_it_goes_again_when_what_was_waited_for_is_cancelled():
    async def act(_clock, method):
        said = []

        async def goes(stood_ns):
            said.append(stood_ns / S)

        with anyio.move_on_after(3.0):
            async with method.stands_still(nothing, goes):
                await anyio.sleep_forever()
        await anyio.sleep(1.0)
        return said, method.now_s

    assert play(act) == ([3.0], 1.0)


def test_what_was_to_be_over_ends_although_the_clock_stands_still():
    """Another fault waits for its host, and the clock stands still for that one: neither would ever come."""

    async def act(clock, method):
        ended = []

        async def last(planned_end_s):
            await method.lasts(6.0, planned_end_s=planned_end_s)
            ended.append((planned_end_s, clock.now_ns() / S))

        async with anyio.create_task_group() as group:
            await method.until(4.0)  # proven 4 s late
            group.start_soon(last, 6.0)
            group.start_soon(last, 9.0)
            await method.until(7.0)
            async with method.stands_still(nothing, nothing):
                await anyio.sleep(20.0)
        return ended

    assert play(act) == [(6.0, 2.0 + 10.0), (9.0, 2.0 + 10.0 + 20.0)]


class TestTheLevelOfALoad:
    def held(self, pieces, hold_s, go_s):
        course = Course(pieces)
        course.begin(0)
        course.hold(round(hold_s * S))
        course.go(round(go_s * S))
        return course

    def test_that_is_held_stays_and_what_was_to_come_comes_later(self):
        course = self.held([Piece(10 * S, 5.0), Piece(20 * S, 1.0)], 15, 45)
        assert [course.at(t * S) for t in (5, 12, 16, 44, 46, 49, 51)] == [1.0, 5.0, 5.0, 5.0, 5.0, 5.0, 1.0]

    def test_before_it_begins_begins_later(self):
        course = self.held([Piece(10 * S, 5.0)], 5, 8)
        assert [course.at(t * S) for t in (9, 12, 14)] == [1.0, 1.0, 5.0]

    def test_that_rises_rises_on_from_where_it_was(self):
        course = self.held([Piece(0, 1.0, 0.1), Piece(20 * S, 3.0)], 10, 30)
        assert [course.at(t * S) for t in (10, 29, 35, 41)] == pytest.approx([2.0, 2.0, 2.5, 3.0])

    def test_that_was_found_while_it_was_held_is_kept(self):
        course = Course()
        course.begin(0)
        course.hold(5 * S)
        course.set(7 * S, 4.0)
        course.go(9 * S)
        assert [course.at(t * S) for t in (6, 8, 10)] == [1.0, 4.0, 4.0]

    def test_no_operation_is_lost_or_offered_twice(self):
        course = Course([Piece(10 * S, 5.0), Piece(20 * S, 1.0)])
        pace = Pace(course, 1.0, 0)
        course.begin(0)
        due = [pace.due_ns(n) for n in range(20)]  # until 12 s: one a second, then five
        course.hold(12 * S)
        due += [pace.due_ns(n) for n in range(20, 120)]
        course.go(30 * S)
        due += [pace.due_ns(n) for n in range(120, 160)]
        gaps = [(before / S, round((after - before) / S, 9)) for before, after in itertools.pairwise(due)]
        assert {gap for at_s, gap in gaps if at_s < 9.5 or at_s >= 38} == {1.0}
        assert {gap for at_s, gap in gaps if 10 <= at_s < 38} == {0.2}


def test_it_goes_again_when_nobody_could_be_told_that_it_stopped():
    """The journal cannot be written, or the guardrail cancels just then: what is in force must not last for ever."""

    async def act(_clock, method):
        with pytest.raises(OSError, match="no space"):
            async with method.stands_still(raising(OSError("no space left on device")), nothing):
                raise AssertionError("it never gets here")
        before = method.now_s
        await anyio.sleep(3.0)
        return method.now_s - before

    assert play(act) == 3.0
