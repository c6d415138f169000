"""Several workers as one generator, in virtual time: what comes out, and each way in which a worker may lie."""

import asyncio
import re

import pytest

from generator_fleet import NS, Fleet, Lies
from hashidrill.core.experiment.load_levels import Course, Pace
from hashidrill.staging.generators.conductor import DivisionError
from hashidrill.staging.generators.link import StreamError
from hashidrill.staging.generators.remote import ClockError, LostError
from virtual_time import ran

TRUE = (Lies(), Lies(), Lies())


@ran
async def played(*lies, seconds=10, meanwhile=None, **options):
    """The run, and its fleet."""
    fleet = Fleet(lies or TRUE, **options)
    await fleet.play(seconds, meanwhile)
    return fleet


def refused(kind, *lies, **options):
    """The error that ended the run, which nobody heard to be over."""
    fleet = played(*lies, **options)
    assert isinstance(fleet.played.error, kind), fleet.played.error
    assert not fleet.played.has("final_reads_done")
    return str(fleet.played.error)


def test_the_operations_of_all_are_those_of_one_in_the_order_in_which_they_ended():
    fleet = played()
    operations, starts_ns = fleet.played.operations, fleet.conductor.starts_ns
    assert fleet.played.error is None
    pace = Pace(Course(), 40, starts_ns)
    # each on its own clock, 100, 200 and 300 s from the runner's; what a worker rounds is far below a millisecond
    for n, line in enumerate(operations):
        assert abs(line[1] - pace.due_ns(n)) < NS / 1000
        assert line[5] == f"key-{n}"
    assert len(operations) == pytest.approx(401, abs=1)
    assert [line[3] for line in operations] == sorted(line[3] for line in operations)


def test_one_worker_goes_the_same_way():
    fleet = played(Lies())
    assert [line[5] for line in fleet.played.operations] == [f"key-{n}" for n in range(len(fleet.played.operations))]
    [sample] = fleet.played.samples("workers.kv.offered")
    assert sample[2] == len(fleet.played.operations)


def test_the_sums_and_clocks_are_in_the_recording():
    fleet = played()
    [sample] = fleet.played.samples("workers.kv.offered")
    assert "(134 + 134 + 134), 402 asked for" in sample[3] or "(134 + 134 + 133), 401 asked for" in sample[3]
    for name in ("w1", "w2", "w3"):
        offsets, uncertainties = (fleet.played.samples(f"workers.{name}.{what}") for what in ("offset", "uncertainty"))
        assert len(offsets) >= 9
        assert max(abs(sample[2]) for sample in offsets) < 0.001
        assert max(sample[2] for sample in uncertainties) < 0.001
        assert f"{100 * int(name[1])}.0000" in offsets[0][3]


def test_all_start_at_one_instant():
    fleet = played(ahead_s=(0.0, 5000.0, -700.0))
    began = [world.child.began_s for world in fleet.worlds.values()]
    assert began == pytest.approx([1000 + fleet.conductor.starts_ns / NS] * 3, abs=0.003)


@pytest.mark.long
@pytest.mark.lie
def test_a_clock_that_drifts_is_followed():
    fleet = played(Lies(), Lies(drift=150e-6), Lies(drift=-150e-6), seconds=120)
    assert fleet.played.error is None
    operations = fleet.played.operations
    pace = Pace(Course(), 40, fleet.conductor.starts_ns)
    assert len(operations) == pytest.approx(4801, abs=3)
    # 36 ms apart at the end, if nobody looked
    by_name = {line[5]: line[1] for line in operations}
    assert max(abs(due_ns - pace.due_ns(int(key[4:]))) for key, due_ns in by_name.items()) < 1000
    for name in fleet.worlds:
        assert max(abs(sample[2]) for sample in fleet.played.samples(f"workers.{name}.offset")) < 0.001


class TestLies:
    @pytest.mark.lie
    @pytest.mark.parametrize(
        ("kind", "lies", "options", "said"),
        [
            (DivisionError, (Lies(), Lies(drops=100), Lies()), {}, r"worker w2: \d+ operations of kv arrived, but"),
            (DivisionError, (Lies(), Lies(), Lies(twice=200)), {}, "worker w3: "),
            (DivisionError, (Lies(rate=0.9), Lies(), Lies()), {}, "worker w1 offered"),
            (
                ClockError,
                (Lies(), Lies(jumps_s=((6.0, 0.02),)), Lies()),
                {},
                r"worker w2 on host-w2: its clock jumped: it is \+20\.0 ms",
            ),
            (
                LostError,
                (Lies(), Lies(), Lies(dies_s=3)),
                {"seconds": 30},
                "worker w3 on host-w3: nothing was heard from it for 10",
            ),
            (LostError, (Lies(), Lies(), Lies(dies_s=9.5)), {}, "worker w3"),
            (
                LostError,
                (Lies(), Lies(busy_from_s=4), Lies()),
                {"seconds": 20},
                "worker w2 on host-w2: its generator has reported nothing for 10s",
            ),
        ],
        ids=["dropped", "twice", "less", "clock", "death", "death in the last second", "hangs"],
    )
    def test_what_is_wrong_with_one_worker_ends_the_run(self, kind, lies, options, said):
        assert re.search(said, refused(kind, *lies, **options))

    def test_a_generator_that_exits(self):
        async def exits(fleet):
            fleet.worlds["w2"].child._on_end(1, "Killed")

        assert "worker w2 on host-w2: its generator exited with 1 Killed" in refused(LostError, *TRUE, meanwhile=exits)

    def test_a_generator_that_fails(self):
        async def fails(fleet):
            fleet.worlds["w1"].child.tell(error="no agent answers")

        assert "worker w1 on host-w1: no agent answers" in refused(LostError, *TRUE, meanwhile=fails)

    def test_another_process_at_the_workers_address(self):
        async def replaced(fleet):
            world = fleet.worlds["w2"]
            world.worker._session = "another"
            world.cut()

        error = played(*TRUE, meanwhile=replaced).played.error
        assert isinstance(error, (StreamError, LostError))


class TestDrops:
    @pytest.mark.parametrize("every_s", [0.13, 0.7, 3.1])
    def test_connections_that_drop_lose_nothing_and_double_nothing(self, every_s):
        async def drops(fleet):
            until_s = asyncio.get_running_loop().time() + 8
            while asyncio.get_running_loop().time() < until_s:
                await asyncio.sleep(every_s)
                for world in fleet.worlds.values():
                    world.cut()

        fleet = played(*TRUE, meanwhile=drops, delay_s=0.004)
        assert fleet.played.error is None
        assert fleet.worlds["w1"].dials > 2
        keys = [line[5] for line in fleet.played.operations]
        assert keys == [f"key-{n}" for n in range(len(keys))]
        assert len(keys) == pytest.approx(401, abs=2)

    def test_what_a_dropped_connection_took_along_commands_too_comes_again(self):
        async def drops(fleet):
            for world in fleet.worlds.values():
                world.cut()
            fleet.conductor._tell("begin 123")

        fleet = played(*TRUE, meanwhile=drops)
        assert [world.child.heard.count("begin 123") for world in fleet.worlds.values()] == [1, 1, 1]


class TestMemory:
    def test_an_engine_that_reads_slowly_is_waited_for_and_nothing_is_lost(self):
        async def slow(fleet):
            fleet.slow_engine_s = 0.02
            await asyncio.sleep(5)
            fleet.slow_engine_s = 0.0

        fleet = played(*TRUE, meanwhile=slow, rate="2000/s")
        assert fleet.played.error is None
        assert len(fleet.played.operations) == pytest.approx(20001, abs=10)

    def test_a_worker_whose_runner_does_not_take_what_it_has_fails_and_says_so(self):
        """Bounded: it never slows down, and never keeps more than it may."""

        async def stuck(fleet):
            for world in fleet.worlds.values():
                world.wires[1].write = lambda _data: None  # nothing reaches the runner

        fleet = played(*TRUE, meanwhile=stuck, rate="2000/s", kept_bytes=100_000)
        assert isinstance(fleet.played.error, LostError)
        assert max(world.worker._link.kept_bytes for world in fleet.worlds.values()) <= 100_000
        assert "has not acknowledged" in fleet.worlds["w1"].worker.why


class TestLease:
    async def test_a_worker_whose_runner_is_silent_ends_by_itself(self):
        fleet = Fleet(TRUE, lease_s=15.0)
        commands = asyncio.StreamReader()
        conducting = asyncio.create_task(fleet.conductor.conduct(commands))
        fleet.conducting = conducting
        await fleet.until("ready")
        conducting.cancel()  # as a SIGKILL: nobody says goodbye
        for world in fleet.worlds.values():
            world.cut()
        began_s = asyncio.get_running_loop().time()
        codes = [await world.watching for world in fleet.worlds.values()]
        await asyncio.wait([conducting])
        took_s = asyncio.get_running_loop().time() - began_s
        assert codes == [3, 3, 3]
        assert 14.5 <= took_s <= 16, "from what was heard last"
        assert all(task.cancelled() or task.done() for world in fleet.worlds.values() for task in world.child.tasks)

    async def test_the_end_of_the_engine_ends_all_workers_at_once(self):
        """Its pipe closes while loads are offered: what was in flight is still reported."""
        fleet = Fleet(TRUE)
        commands = asyncio.StreamReader()
        fleet.conducting = asyncio.create_task(fleet.conductor.conduct(commands))
        await fleet.until("ready")
        await asyncio.sleep(2)
        commands.feed_eof()
        await fleet.conducting
        codes = [await world.watching for world in fleet.worlds.values()]
        assert codes == [0, 0, 0]
        assert len(fleet.played.operations) == pytest.approx(81, abs=4)
