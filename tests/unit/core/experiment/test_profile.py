"""Load profiles: what YAML may say, the level over time, and the exact schedule that follows from it."""

import asyncio
import contextlib
import math
import re
from itertools import pairwise

import pytest
from pydantic import ValidationError

import virtual_time
from hashidrill.core.engine.levels import Steered, climb
from hashidrill.core.engine.monitor import Monitor
from hashidrill.core.engine.run_state import MethodClock
from hashidrill.core.errors import ExperimentError, UnfitError
from hashidrill.core.experiment.conditions import load_signals
from hashidrill.core.experiment.load_levels import Course, Pace, Piece, Profile
from hashidrill.core.experiment.loader import load_experiment, load_text, resolve
from hashidrill.core.loads.schedule import OpenLoop, Reply
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import Operation, Sample
from hashidrill.core.recording.journal import Journal, read_journal
from tasks import running
from virtual_time import VirtualClock

S = 1_000_000_000
STEPS = {"steps": ["10%", "50%", "200%"], "each": "10s"}
RECORDED = {"recorded": [(100, 30), (110, 90), (120, 30)], "over": "6s"}
RAMP = {"ramp": {"to": "300%", "over": "60s"}}
SEARCH = {
    "search": {
        "until": ["w.latency.p50 > 600ms"],
        "from": "200%",
        "to": "1000%",
        "by": "150%",
        "every": "5s",
        "at": "10s",
        "for": "100s",
    }
}
SPIKE = {"spike": {"to": "500%", "at": "10s", "for": "5s"}}
CLIMB = {"ramp": {"by": "50%", "every": "10s", "while": ["w.latency.p50 < 300ms"]}}


def profile(document):
    return Profile.model_validate(document)


def course(document, *, begins_s=0):
    made = Course(profile(document).pieces())
    made.begin(begins_s * S)
    return made


# what YAML may say


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "exactly one of steps, ramp, spike, search and recorded, not none"),
        ({**STEPS, **RAMP}, "exactly one of steps, ramp, spike, search and recorded, not steps and ramp"),
        ({"steps": ["10%"]}, "steps and each belong together"),
        ({**RAMP, "each": "10s"}, "steps and each belong together"),
        ({**RAMP, "repeat": 2}, "repeat works only with steps"),
        ({"steps": ["0%", "0%"], "each": "1s"}, "no load at all"),
        ({"steps": [], "each": "1s"}, "at least 1 item"),
        ({"steps": ["10"], "each": "1s"}, "has no unit: a level is written like 50% or 300%"),
        ({"steps": ["-10%"], "each": "1s"}, "is negative"),
        ({"steps": ["20000%"], "each": "1s"}, "a level may be at most 10000%"),
        ({"steps": ["10%"], "each": "0s"}, "longer than 0s"),
        ({"ramp": {"to": "300%"}}, "write a ramp either"),
        ({"ramp": {"to": "300%", "over": "60s", "by": "10%"}}, "write a ramp either"),
        ({"ramp": {"by": "10%", "every": "10s"}}, "write a ramp either"),
        ({"ramp": {"by": "0%", "every": "10s", "while": ["w.errors < 1%"]}}, "write a ramp either"),
        ({"ramp": {"by": "10%", "every": "10s", "while": ["quick"]}}, "'quick' is not a condition"),
        ({"ramp": {**CLIMB["ramp"], "over": "5s"}}, "write a ramp either"),
        ({"ramp": {"to": "300%", "over": "60s", "at": "5s"}}, "at, from and resume are for ramps in steps"),
        ({"ramp": {"to": "300%", "over": "60s", "resume": True}}, "at, from and resume are for ramps in steps"),
        ({"ramp": {**CLIMB["ramp"], "from": "200%", "to": "150%"}}, "must rise, but this one goes from 200% to 150%"),
        ({"spike": {"to": "500%"}}, "Field required"),
        ({"step": ["10%"]}, "Extra inputs"),
        ({"search": {**SEARCH["search"], "from": "1100%"}}, "goes from 1100% to 1000%"),
        ({"search": {**SEARCH["search"], "from": "0%"}}, "must rise from over 0%"),
        ({"search": {**SEARCH["search"], "by": "100%"}}, "each level must be over 100% of the one before"),
        ({"search": {**SEARCH["search"], "for": "49s"}}, "the search may take 50s (5 levels, each held up to twice 5s"),
        ({"search": {**SEARCH["search"], "until": []}}, "at least 1 item"),
        ({"recorded": "day.csv"}, "day.csv can be read only if the experiment is a file"),
        ({"recorded": [(0, 1)]}, "at least two lines, each later than the one before"),
        ({"recorded": [(0, 1), (0, 2)]}, "at least two lines, each later than the one before"),
        ({"recorded": [(0, 0), (1, 0)]}, "at least one must be more"),
        ({"recorded": [(n, float(n == 9)) for n in range(200)]}, "is 20000% of the mean rate; at most 10000%"),
        ({**RAMP, "over": "5s"}, "over works only with recorded"),
    ],
)
def test_a_wrong_profile_says_what_would_be_right(document, said):
    with pytest.raises(ValidationError, match=said.replace("(", r"\(")):
        profile(document)


@pytest.mark.parametrize("document", [STEPS, {**STEPS, "repeat": 2}, RAMP, SPIKE, CLIMB, SEARCH, RECORDED])
def test_a_profile_survives_the_way_to_the_load_process(document):
    once = profile(document)
    assert Profile.model_validate(once.model_dump(mode="json", by_alias=True)) == once


# the level over time


@pytest.mark.parametrize(
    ("document", "levels"),
    [
        (STEPS, {0: 0.1, 9.99: 0.1, 10: 0.5, 20: 2, 29.99: 2, 30: 1, 1000: 1}),
        ({**STEPS, "repeat": 2}, {29.9: 2, 30: 0.1, 59.9: 2, 60: 1}),
        (RAMP, {0: 1, 15: 1.5, 30: 2, 60: 3, 1000: 3}),
        ({"ramp": {"to": "50%", "over": "10s"}}, {0: 1, 5: 0.75, 10: 0.5, 11: 0.5}),
        (SPIKE, {0: 1, 9.99: 1, 10: 5, 14.99: 5, 15: 1}),
        (CLIMB, {0: 1, 1000: 1}),
        (SEARCH, {0: 1, 1000: 1}),
    ],
)
def test_the_level_counts_from_the_beginning_of_the_method(document, levels):
    made = course(document, begins_s=100)
    assert made.at(99 * S) == 1
    assert {at_s: pytest.approx(made.at((100 + at_s) * S)) for at_s in levels} == levels


def test_before_the_method_the_level_is_100_percent():
    made = Course(profile(STEPS).pieces())
    assert made.at(10_000 * S) == 1


def test_a_level_that_is_set_is_that_from_then_on():
    made = course(CLIMB, begins_s=10)
    made.set(20 * S, 1.5)
    made.set(30 * S, 2.0)
    assert [made.at(t * S) for t in (15, 20, 29, 30, 99)] == [1, 1.5, 1.5, 2.0, 2.0]


# the schedule: operation n is due when the integral of the rate is n


def integral(made, rate, start_s, end_s, steps=20_000):
    width = (end_s - start_s) / steps
    return sum(rate * made.at(round((start_s + (k + 0.5) * width) * S)) * width for k in range(steps))


@pytest.mark.parametrize(
    "document", [STEPS, {**STEPS, "repeat": 2}, RAMP, SPIKE, {"ramp": {"to": "0%", "over": "60s"}}]
)
@pytest.mark.parametrize("rate", [3.0, 7.77])
def test_operation_n_is_due_when_the_integral_of_the_rate_is_n(document, rate):
    made = course(document, begins_s=20)
    pace = Pace(made, rate, 5 * S)
    due = [pace.due_ns(n) for n in range(130)]
    assert all(early < late for early, late in pairwise(due))
    for n in (1, 44, 77, 129):
        assert integral(made, rate, 5, due[n] / S) == pytest.approx(n, abs=0.05)


def test_a_constant_rate_has_the_due_times_that_it_always_had():
    pace = Pace(Course(), 3.0, 7)
    assert [pace.due_ns(n) for n in range(5000)] == [7 + round(n * 1e9 / 3) for n in range(5000)]


def test_there_is_no_drift_over_millions_of_operations():
    """20,000/s over 100 sweeps: what is due at the end of all is the integral, to the operation."""
    made = course({"steps": ["33%", "77%", "190%"], "each": "1s", "repeat": 20})
    pace = Pace(made, 20_000.0, 0)
    count = round(20_000 * 20 * 3.0)
    assert pace.due_ns(count - 1) < 60 * S <= pace.due_ns(count)
    assert pace.due_ns(count) - pace.due_ns(count - 1) < 100_000


def test_nothing_is_due_at_level_0_and_the_schedule_goes_on_afterwards():
    made = course({"steps": ["100%", "0%", "100%"], "each": "10s"})
    pace = Pace(made, 1.0, 0)
    assert [pace.due_ns(n) for n in (9, 10, 11)] == [9 * S, 20 * S, 21 * S]


def test_a_load_that_ends_at_level_0_has_nothing_due_any_more():
    pace = Pace(course({"ramp": {"to": "0%", "over": "10s"}}), 1.0, 0)
    assert pace.due_ns(4) is not None
    assert pace.due_ns(6) is None


def test_a_change_that_is_heard_of_late_counts_from_when_it_was():
    """The engine's word comes some milliseconds after the method began."""
    late, known = Course([Piece(0, 10.0)]), Course([Piece(0, 10.0)])
    known.begin(10 * S)
    one, other = Pace(late, 100.0, 0), Pace(known, 100.0, 0)
    for n in range(1005):
        one.due_ns(n)
    late.begin(10 * S)
    assert [one.due_ns(n) for n in range(1005, 3000)] == [other.due_ns(n) for n in range(1005, 3000)]


def offered(made, *, rate, seconds, act=None):
    operations = []

    async def answer(n, key, value):
        return Reply("ok")

    async def main():
        loop = OpenLoop("w", rate, lambda n: (str(n), ""), answer, VirtualClock(), course=made)
        async with running(loop.run(operations.append)):
            if act is not None:
                await act()
            await asyncio.sleep(seconds - (0 if act is None else asyncio.get_running_loop().time() - 1000.0) - 0.001)

    virtual_time.run(main())
    return operations


def test_the_open_loop_follows_the_course_and_starts_everything_on_time():
    operations = offered(course(STEPS, begins_s=10), rate=100, seconds=50)
    count = lambda a, b: sum(a * S <= op.intended_ns < b * S for op in operations)  # noqa: E731
    assert [count(*span) for span in ((0, 10), (10, 20), (20, 30), (30, 40), (40, 50))] == [1000, 100, 500, 2000, 1000]
    assert max(op.start_ns - op.intended_ns for op in operations) <= 1_010_000


def test_a_slow_load_hears_of_a_spike_while_it_sleeps():
    made = Course(profile({"spike": {"to": "10000%", "for": "10s"}}).pieces())

    async def begin():
        await asyncio.sleep(5)
        made.begin(5 * S)

    operations = offered(made, rate=0.1, seconds=15, act=begin)
    assert sum(op.intended_ns >= 5 * S for op in operations) == 100
    assert max(op.start_ns - op.intended_ns for op in operations) <= 51_000_000


# ramps that go on while conditions hold


class Told:
    def __init__(self, breaks_at=math.inf):
        self.levels = [1.0]
        self.breaks_at = breaks_at

    async def level(self, load, level):
        assert load == "w"
        self.levels.append(round(level, 6))


@virtual_time.ran
async def climbed(told, document, *, within_s=1000):
    clock, monitor = VirtualClock(), Monitor(["w"])

    async def world():
        while True:
            await asyncio.sleep(0.1)
            now = clock.now_ns()
            sick = told.levels[-1] >= told.breaks_at
            monitor.operation(Operation("w", now - (S if sick else S // 100), now, now, "ok"))
            monitor.sample(now, Sample("w.held", 100 * told.levels[-1]))

    async with running(world()), asyncio.timeout(within_s):
        return await climb("w", profile(document).ramp, monitor, clock, told), clock.now_ns() / S


def test_a_ramp_goes_up_while_its_conditions_hold_and_takes_the_last_step_back():
    told = Told(breaks_at=2.5)
    level, took_s = climbed(told, CLIMB)
    assert told.levels == [1.0, 1.5, 2.0, 2.5, 2.0]
    assert level == 2.0
    assert took_s == pytest.approx(40, abs=1)


@pytest.mark.parametrize(
    ("breaks_at", "more", "levels"),
    [
        (2.5, {"step_back": False}, [1.0, 1.5, 2.0, 2.5]),
        (1.0, {}, [1.0, 1.0]),
        (math.inf, {"to": "200%"}, [1.0, 1.5, 2.0]),
    ],
    ids=["it may stay at what was too much", "it does not hold at 100 %", "it ends at its highest level"],
)
def test_a_ramp_ends_where_it_is_to(breaks_at, more, levels):
    told = Told(breaks_at)
    assert climbed(told, {"ramp": {**CLIMB["ramp"], **more}})[0] == levels[-1]
    assert told.levels == levels


def test_a_ramp_can_be_steered_by_a_loads_own_signal():
    told = Told()
    assert climbed(told, {"ramp": {**CLIMB["ramp"], "while": ["w.held < 190"]}})[0] == 1.5


BACK_IN = {
    "ramp": {
        "at": "5s",
        "from": "0%",
        "by": "10%",
        "to": "100%",
        "every": "10s",
        "resume": True,
        "while": ["w.latency.p50 < 300ms", "w.held < 75"],
    }
}


class Sickness(Told):
    """Sick at the given turns of the ramp, whatever its level."""

    def __init__(self, *turns):
        super().__init__()
        self.turns = turns

    async def level(self, load, level):
        await super().level(load, level)
        self.breaks_at = 0.0 if len(self.levels) in self.turns else math.inf


def resumed(told, turns, ramp=BACK_IN):
    """The levels of a ramp that never ends by itself, after so many of its turns."""
    with pytest.raises(TimeoutError):
        climbed(told, ramp, within_s=10.0 * turns + 5)
    return told.levels[1:]


def test_a_load_that_was_shut_out_is_let_in_in_steps_up_to_the_highest_and_no_further():
    ramp = {"ramp": {**BACK_IN["ramp"], "while": ["w.latency.p50 < 300ms"]}}
    assert resumed(Told(), 13, ramp) == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


@pytest.mark.lie
def test_a_ramp_that_resumes_takes_a_step_back_and_goes_on_once_its_conditions_hold_again():
    assert resumed(Sickness(4, 5), 7) == [0.0, 0.1, 0.2, 0.1, 0.0, 0.1, 0.2, 0.3]


def test_a_ramp_that_resumes_never_goes_below_where_it_starts():
    ramp = {"ramp": {**BACK_IN["ramp"], "from": "20%"}}
    assert resumed(Told(breaks_at=0.0), 3, ramp) == [0.2, 0.2, 0.2, 0.2]


def test_a_ramp_that_resumes_may_wait_at_its_level_for_better_times():
    ramp = {"ramp": {**BACK_IN["ramp"], "step_back": False, "while": ["w.held < 25"]}}
    assert resumed(Told(), 6, ramp) == [0.0, 0.1, 0.2, 0.3]


def test_a_load_that_is_shut_out_is_not_asked_how_it_is_but_all_others_are():
    silent = {"ramp": {**BACK_IN["ramp"], "while": ["w.never < 1", "w.held < 75"]}}
    assert resumed(Told(), 4, silent) == [0.0, 0.1, 0.0, 0.1, 0.0]
    others = {"ramp": {**BACK_IN["ramp"], "while": ["raft.leader >= 1"]}}
    assert resumed(Told(), 4, others) == [0.0, 0.0, 0.0, 0.0, 0.0]


async def test_a_ramp_in_steps_begins_at_its_time_and_not_before():
    told = Told()

    clock = VirtualClock()
    steered = Steered("w", Monitor(["w"]), clock, told, None, MethodClock(clock))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(4.9):
            await steered.by(profile(BACK_IN))
    before = list(told.levels)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1):
            await steered.by(profile(BACK_IN))
    assert before == [1.0]
    assert told.levels == [1.0, 0.0]


# searches for the level that it takes


@virtual_time.ran
async def searched(tmp_path, sick, *, generator=0.1, search=SEARCH):
    """(seconds and level told, error or None, the journal); `sick(level, seconds)` is the world."""
    told = [(0.0, 1.0)]
    clock, monitor = VirtualClock(), Monitor(["w"], 60)

    class Told:
        async def level(self, load, level):
            assert load == "w"
            told.append((round(clock.now_ns() / S, 1), round(level, 3)))

    async def world():
        while True:
            await asyncio.sleep(0.1)
            now = clock.now_ns()
            took = S if sick(told[-1][1], now / S) else S // 100
            monitor.operation(Operation("w", now - took, now, now, "ok"))
            monitor.sample(now, Sample("generator.cpu", generator))

    error = None
    try:
        with Journal(tmp_path / "journal.jsonl", clock) as journal:
            async with running(world()), asyncio.timeout(1000):
                await Steered("w", monitor, clock, Told(), journal, MethodClock(clock)).by(profile(search))
    except UnfitError as unfit:
        error = str(unfit)
    return told, error, [each.data for each in read_journal(tmp_path / "journal.jsonl")]


@pytest.mark.parametrize(("breaks_at", "kept"), [(0.5, 2.0), (4.0, 4.5), (9.0, 10.0)])
def test_a_search_finds_the_level_of_a_machine_whatever_that_is_keeps_it_and_ends_in_time(tmp_path, breaks_at, kept):
    told, error, [found] = searched(tmp_path, lambda level, _: level > breaks_at)
    assert error is None
    assert [level for _, level in told[:-1]][-1] == kept
    assert told[1][0] == 10
    assert told[-1] == (110.0, 1.0)
    assert (found["found"], found["level"]) == (True, kept)
    assert found["tried"][-1] == [kept, "measured w.latency.p50 1s"]
    assert f"w is kept at {kept * 100:g}%: w.latency.p50 > 600ms (measured w.latency.p50 1s)" in found["text"]
    assert ("less may be enough" in found["text"]) is (kept == 2.0)


@pytest.mark.lie
def test_one_slow_moment_is_no_sickness(tmp_path):
    told, error, [found] = searched(tmp_path, lambda level, s: 10 < s < 14 or level > 4)
    assert error is None
    assert found["level"] == 4.5
    assert [level for _, level in told] == [1.0, 2.0, 3.0, 4.5, 1.0]
    assert told[2][0] == pytest.approx(20, abs=0.3)


def test_a_machine_that_bears_all_that_may_be_asked_for_is_unfit_at_once_and_the_load_goes_back(tmp_path):
    told, error, [found] = searched(tmp_path, lambda level, _: False)
    assert error.startswith("w was raised to 1000%, and w.latency.p50 > 600ms did not hold (measured w.latency.p50")
    assert "and this machine can take more: raise `to` of w" in error
    assert [level for _, level in told] == [1.0, 2.0, 3.0, 4.5, 6.75, 10.0, 1.0]
    assert told[-1][0] == pytest.approx(35, abs=0.3)
    assert found["found"] is False


@pytest.mark.lie
def test_a_generator_that_comes_near_its_core_is_asked_for_no_more_and_is_named(tmp_path):
    told, error, _ = searched(tmp_path, lambda level, _: False, generator=0.85)
    assert "the generator used 0.85 of its one core: it cannot offer more load" in error
    assert [level for _, level in told] == [1.0, 2.0, 1.0]


# in an experiment

EXPERIMENT = """
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: x, title: x, why: x}
load:
  w: {kind: consul.kv.write, rate: 50/s, PROFILE}
steady_state: {for: 5s, require: ["w.errors < 1%", "w.level == 100%"]}
method: [{fault: noop, on: "consul:leader", for: 40s}]
recovery: {for: 20s}
expect: [{no_acknowledged_write_lost: {load: w}}]
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("profile: {steps: [10%], each: 5s, often: 3}", "load.w.profile: unknown key 'often'"),
        ("profile: {ramp: {to: 300%}}", "write a ramp either"),
        ("profile: {steps: [10%, 200%], each: 31s}", "the profile takes 62s, but the loads stop 1m after the method"),
        (
            "profile: {search: {until: [w.errors > 1%], from: 200%, to: 400%, every: 5s, for: 41s}}",
            "the search and its level take 41s, but the method ends after 40s",
        ),
        (
            "profile: {search: {until: [v.errors > 1%], from: 200%, to: 400%, every: 5s, for: 40s}}",
            "there is no load or probe 'v'",
        ),
        ("profile: {ramp: {by: 10%, every: 1s, while: [v.errors < 1%]}}", "there is no load or probe 'v'"),
        ("profile: {ramp: {by: 10%, every: 1s, while: [w.latency < 1s]}}", "a load has no 'latency'"),
        ("profile: {ramp: {by: 10%, every: 1s, while: [w.level < 5]}}", "has no unit: a level is written like"),
    ],
)
def test_a_profile_that_cannot_be_is_refused_with_its_place(text, said):
    with pytest.raises(ExperimentError) as refused:
        load_text(EXPERIMENT.replace("PROFILE", text), "x.yaml")
    assert said in str(refused.value).replace("\n    ", " ")
    assert "x.yaml:6:" in str(refused.value)


def test_a_profile_of_an_experiment_is_read():
    experiment = load_text(EXPERIMENT.replace("PROFILE", "profile: {steps: [10%, 200%], each: 30s}"))
    assert experiment.load["w"].profile.levels() == [(0, 30, 0.1), (30, 60, 2.0)]
    assert experiment.load["w"].params == {"rate": "50/s"}


@pytest.mark.lie
def test_a_recorded_load_keeps_its_shape_and_its_mean_in_whatever_time_it_is_replayed():
    assert profile(RECORDED).recorded_levels == [(0, 0.6), (2, 1.8), (4, 0.6)]
    whole = profile({"recorded": RECORDED["recorded"]})
    assert whole.length_s == 30
    replayed = course(RECORDED)
    assert [round(replayed.at(round(at * S)), 6) for at in (0.5, 2.5, 4.5, 6.5)] == [0.6, 1.8, 0.6, 1.0]
    pace = Pace(replayed, 50, 0)
    assert pace.due_ns(300) == 6 * S, "300 operations in 6 s are the mean of 50/s, whatever the shape"


def test_a_recorded_load_is_read_from_beside_the_experiment(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(EXPERIMENT.replace("PROFILE", "profile: {recorded: day.csv, over: 40s}"))
    day = tmp_path / "day.csv"
    day.write_text("seconds,rate_per_s\n0,100\n60,300.5\n120,100\n")
    resolved = resolve(file)
    assert resolved.experiment.load["w"].profile.recorded == [(0, 100), (60, 300.5), (120, 100)]
    assert list(resolved.provenance.extends) == [str(day)], "what was replayed is known"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (None, "day.csv: there is no such file (the path is relative to this one)"),
        ("0,1\n1,2,3\n", "line 2: expected two numbers, seconds and the rate from then on, got '1,2,3'"),
        ("0,1\n1,-2\n", "line 2: expected two numbers"),
        ("0,1\n1,nan\n", "line 2: expected two numbers"),
        ("0,1\n\n1,2\n", "line 2: expected two numbers"),
        ("".join(f"{n},1\n" for n in range(1002)), "over 1000 lines"),
        ("1,1\n0,2\n", "at least two lines, each later than the one before"),
    ],
)
def test_a_recorded_load_that_cannot_be_read_is_refused_with_its_place(tmp_path, rows, said):
    file = tmp_path / "x.yaml"
    file.write_text(EXPERIMENT.replace("PROFILE", "profile: {recorded: day.csv, over: 40s}"))
    if rows is not None:
        (tmp_path / "day.csv").write_text(rows)
    with pytest.raises(ExperimentError) as refused:
        load_experiment(file)
    assert said in str(refused.value).replace("\n    ", " ")


# signals of a load's own

HELD = EXPERIMENT.replace(
    "w: {kind: consul.kv.write, rate: 50/s, PROFILE}", "w: {kind: consul.watch, count: 5, service: x}"
)


@pytest.mark.parametrize("condition", ["w.open >= 5", "w.wakeups < 50/s", "w.streaming == 100%", "w.level == 100%"])
def test_a_condition_may_name_a_signal_that_the_loads_class_declares(condition):
    assert load_text(HELD.replace("w.errors < 1%", condition)).steady_state.require[0].text == condition


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("w.open >= 5s", "compare w.open with a plain number, not '5s'"),
        ("w.wakeups < 50", "has no unit: a rate"),
        ("w.streaming == 200%", "over 100%"),
        ("w.held > 3", "a load has no 'held'"),
    ],
)
def test_a_condition_on_a_loads_own_signal_has_the_unit_of_it(condition, said):
    with pytest.raises(ExperimentError) as refused:
        load_text(HELD.replace("w.errors < 1%", condition), "x.yaml")
    assert said in str(refused.value).replace("\n    ", " ")


@pytest.mark.parametrize("kind", sorted(registry.loads()))
def test_every_load_declares_signals_that_conditions_can_name(kind):
    assert all(re.fullmatch(r"[a-z][a-z_.]*", name) for name in load_signals(registry.load(kind)))
    assert "level" in load_signals(registry.load(kind))
