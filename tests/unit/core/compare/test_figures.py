"""Figures of one recording: what was measured validly, and what two sides are compared by."""

import math
from pathlib import Path

import numpy as np
import pytest

from hashidrill.core.compare.comparison import fair
from hashidrill.core.compare.figures import Figure, Measured, figure, figures, paired
from hashidrill.core.errors import UsageError
from hashidrill.core.protocols.abc import Reason
from hashidrill.core.recording.reader import Recording
from hashidrill.testing.recordings import RecordingBuilder


def a_run(path: Path, *, under_fault: float = 0.5, recovered_after: float = 0.0, **more: object) -> RecordingBuilder:
    """A slow disk from 10 to 30, with that latency, and the same for a while after it."""

    def latency(t: float) -> float:
        return under_fault if 10 <= t < 30 + recovered_after else 0.01

    built = RecordingBuilder(path).fault("disk.latency", at=10, until=30)
    built.load("kv-writes", latency=latency, **more).healthy()
    return built.expect("no_acknowledged_write_lost", load="kv-writes").final_reads("kv-writes")


def measured(recording: Recording, name: str) -> Measured:
    return figure(name, recording.experiment).of(recording)


def test_every_figure_of_an_experiment_is_measured(tmp_path: Path) -> None:
    built = a_run(tmp_path / "run", recovered_after=3.0)
    for host in ("consul-1", "consul-2"):
        built.series("process.cpu", 0.1, host=host)
        built.series("process.rss", lambda t: 100e6 if t < 20 else 120e6, host=host)
        built.series("process.write_rate", 0.0, host=host)
        built.series("process.wchar_rate", 1e5, host=host)
    recording = built.build()
    found = {each.name: each.of(recording) for each in figures(recording.experiment)}
    assert {name: each.why for name, each in found.items() if math.isnan(each.number)} == {}
    assert found["kv-writes.latency.p50"].number == pytest.approx(0.5)
    assert found["kv-writes.latency.p99"].number == pytest.approx(0.5)
    assert found["kv-writes.steady.p50"].number == pytest.approx(0.01)
    assert found["kv-writes.errors"].number == 0
    assert found["kv-writes.recovery"].number == pytest.approx(2.6, abs=0.3)
    assert found["kv-writes.lost"].number == 0
    assert found["cpu"].number == pytest.approx(2 * 0.1 * 40)
    assert found["memory"].number == 240e6
    assert found["written"].number == pytest.approx(2 * 1e5 * 40)


def test_latency_has_a_series_by_second_of_the_fault(tmp_path: Path) -> None:
    found = measured(a_run(tmp_path / "run").build(), "kv-writes.latency.p50")
    assert found.intervals is not None
    assert len(found.intervals) == 20
    assert np.allclose(found.intervals, 0.5)


def test_latency_is_that_of_the_mark_which_an_expectation_on_the_load_names(tmp_path: Path) -> None:
    """Writes that are slow for the last quarter of a fault do not move the p50 of all of it."""

    def peak(name: str, *, judged: str) -> Recording:
        built = RecordingBuilder(tmp_path / name).fault("disk.latency", at=10, until=30).mark("peak", at=25, until=30)
        built.load("kv-writes", latency=lambda t: 0.5 if 25 <= t < 30 else 0.01)
        built.load("kv-reads", latency=lambda t: 0.5 if 25 <= t < 30 else 0.01).healthy()
        return built.expect("latency_stays", load=judged, fault="peak", p50_below="300ms").build()

    assert measured(peak("judged", judged="kv-writes"), "kv-writes.latency.p50").number == pytest.approx(0.5)
    assert measured(peak("not-judged", judged="kv-reads"), "kv-writes.latency.p50").number == pytest.approx(0.01)


def test_what_was_not_acknowledged_never_came(tmp_path: Path) -> None:
    recording = a_run(tmp_path / "run", outcome=lambda t: "fail" if 12 <= t < 28 else "ok").build()
    assert measured(recording, "kv-writes.latency.p50").number == math.inf
    assert measured(recording, "kv-writes.errors").number == pytest.approx(0.4)


def test_a_load_that_never_recovers_took_at_least_as_long_as_was_looked(tmp_path: Path) -> None:
    found = measured(a_run(tmp_path / "run", recovered_after=99).build(), "kv-writes.recovery")
    assert found.number == math.inf
    assert found.at_most == pytest.approx(20, abs=0.1)


def test_lost_writes_are_counted(tmp_path: Path) -> None:
    built = a_run(tmp_path / "run").final_reads("kv-writes", {"kv-writes/7": None, "kv-writes/8": None})
    assert measured(built.build(), "kv-writes.lost").number == 2


@pytest.mark.lie
def test_a_generator_that_fell_behind_is_no_figure_of_the_product(tmp_path: Path) -> None:
    late = measured(a_run(tmp_path / "run", lag=lambda t: 0.6 if t >= 10 else 0).build(), "kv-writes.latency.p50")
    assert math.isnan(late.number)
    assert "fell behind" in late.why


@pytest.mark.lie
def test_a_machine_that_others_kept_busy_is_no_figure_of_the_product(tmp_path: Path) -> None:
    built = a_run(tmp_path / "run").run_info(machine={"cpus": 2})
    built.series("machine.others", lambda t: 1.8 if 12 <= t < 29 else 0.0, every=1.0)
    built.series("machine.idle", lambda t: 0.0 if 12 <= t < 29 else 1.0, every=1.0)
    busy = measured(built.build(), "kv-writes.latency.p50")
    assert math.isnan(busy.number)
    assert "other work" in busy.why


def test_a_few_seconds_in_doubt_are_left_out(tmp_path: Path) -> None:
    """Three seconds of 20 were slow because the generator was: the figure is that of the others."""
    recording = a_run(tmp_path / "run", lag=lambda t: 0.7 if 15 <= t < 18 else 0).build()
    found = measured(recording, "kv-writes.latency.p99")
    assert found.number == pytest.approx(0.5)
    seconds = measured(recording, "kv-writes.latency.p50").intervals
    assert seconds is not None
    assert np.isnan(seconds).sum() >= 3


def test_a_run_without_a_method_measures_nothing_and_says_so(tmp_path: Path) -> None:
    built = RecordingBuilder(tmp_path / "run").phase("start", at=0).phase("steady", at=4).load("kv-writes", end=9)
    recording = built.build()
    assert "never reached its method" in figures(recording.experiment)[0].of(recording).why


@pytest.mark.lie
def test_agents_that_were_sampled_before_the_method_alone_have_no_cost(tmp_path: Path) -> None:
    built = a_run(tmp_path / "run")
    for signal in ("process.cpu", "process.rss", "process.write_rate"):
        built.series(signal, 1.0, host="consul-1", end=9)
    recording = built.build()
    for name in ("cpu", "memory", "written"):
        assert measured(recording, name).why
        assert math.isnan(measured(recording, name).number)


COSTS = ("cpu", "memory", "written")


def with_agents(path: Path, *, gone: dict[str, float], factor: float = 1.0) -> Recording:
    """Three agents; of each of `gone`, there is no process from then on."""
    built = a_run(path)
    for host in ("consul-1", "consul-2", "consul-3"):
        for signal, value in (("process.cpu", 0.5), ("process.rss", 100e6), ("process.write_rate", 1e6)):
            for half in range(8, 100):
                there = half / 2 < gone.get(host, 50.0)
                built.sample(signal, value * factor if there else None, at=half / 2, host=host, ok=there)
    return built.build()


@pytest.mark.lie
@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("dies_at", [8.0, 12.0, 35.0])
def test_an_agent_that_is_gone_makes_no_side_cheaper(tmp_path: Path, name: str, dies_at: float) -> None:
    whole = with_agents(tmp_path / "whole", gone={})
    lacks = with_agents(tmp_path / "lacks", gone={"consul-3": dies_at})
    found = figure(name, whole.experiment)
    one, other = found.of(whole), found.of(lacks)
    assert paired(found, one, other) is None
    back = paired(found, other, one)
    assert back is None or back.log == 0  # as much as the least that the other side takes is no more than that
    missed = fair(one, other)[1]
    assert math.isnan(missed.number)
    assert "consul-3 the longest" in missed.why


@pytest.mark.parametrize("name", ["cpu", "written"])
def test_what_costs_more_without_one_of_its_agents_costs_more(tmp_path: Path, name: str) -> None:
    whole = with_agents(tmp_path / "whole", gone={})
    found = figure(name, whole.experiment)
    assert ratio_of(found, found.of(whole), found.of(with_agents(tmp_path / "x", gone={"consul-3": 30}, factor=3))) > 2


def test_an_agent_that_both_sides_lack_as_long_keeps_nothing_from_being_compared(tmp_path: Path) -> None:
    """As in an experiment that kills one."""
    runs = [with_agents(tmp_path / f"{factor}", gone={"consul-3": 20}, factor=factor) for factor in (1.0, 0.5)]
    for name in COSTS:
        found = figure(name, runs[0].experiment)
        assert ratio_of(found, found.of(runs[0]), found.of(runs[1])) == pytest.approx(0.5, abs=0.1)


def shedding(path: Path, seconds: float, *, generator: float = 0.2) -> Recording:
    """From 12 on, for so many seconds, as many operations again could not be started."""
    built = a_run(path).series("generator.cpu", lambda t: generator if 11 <= t < 33 else 0.2, every=1.0)
    for number in range(round(seconds * 50)):
        at = 12 + number / 50
        built.write("kv-writes", f"shed/{number}", "x", start=at, end=at, outcome="fail", reason=Reason.OVERLOADED)
    return built.build()


@pytest.mark.lie
@pytest.mark.parametrize("seconds", [3, 9])
def test_operations_that_were_not_started_are_demand_that_was_not_served(tmp_path: Path, seconds: float) -> None:
    """A product that stalls until the generator can keep no more waiting made them."""
    served, shed = shedding(tmp_path / "served", 0), shedding(tmp_path / "shed", seconds)
    errors = figure("kv-writes.errors", served.experiment)
    assert errors.of(shed).number == pytest.approx(seconds * 50 / (2000 + seconds * 50))
    assert ratio_of(errors, errors.of(served), errors.of(shed)) > 1.5
    tail = figure("kv-writes.latency.p99", served.experiment)
    assert tail.of(shed).number == math.inf


def test_operations_that_a_generator_without_any_cpu_left_did_not_start_say_nothing(tmp_path: Path) -> None:
    busy = measured(shedding(tmp_path / "busy", 9, generator=0.99), "kv-writes.latency.p50")
    assert math.isnan(busy.number)
    assert "used up its core" in busy.why


def test_a_load_that_is_too_much_for_the_generator_on_both_sides_compares_nothing(tmp_path: Path) -> None:
    runs = [shedding(tmp_path / f"{seconds}", seconds) for seconds in (16, 18)]
    found = figure("kv-writes.errors", runs[0].experiment)
    one, other = fair(*(found.of(run) for run in runs))
    assert math.isnan(one.number)
    assert "lower the load's rate" in other.why
    served = shedding(tmp_path / "served", 0)
    assert ratio_of(found, found.of(served), found.of(runs[1])) > 1


def test_a_name_that_is_unknown_gets_the_names_that_are_near(tmp_path: Path) -> None:
    experiment = a_run(tmp_path / "run").build().experiment
    with pytest.raises(UsageError, match=r"kv-writes\.latency\.p50"):
        figure("kv-writes.latency.p5", experiment)


KV = Figure("kv.latency.p50", "s", 5e-4, 1.2, True, lambda _: Measured(0.0))
LOSSES = Figure("kv.lost", "", 1.0, 1.5, True, lambda _: Measured(0.0))
RECOVERY = Figure("kv.recovery", "s", 1.0, 1.5, True, lambda _: Measured(0.0))


def ratio_of(figure: Figure, baseline: Measured, candidate: Measured) -> float:
    found = paired(figure, baseline, candidate)
    assert found is not None
    return math.exp(found.log)


def test_a_round_is_the_ratio_of_its_sides() -> None:
    assert ratio_of(KV, Measured(1.0), Measured(1.5)) == pytest.approx(1.5, rel=1e-3)


def test_none_against_none_is_no_difference_and_none_against_many_is_one() -> None:
    assert ratio_of(LOSSES, Measured(0.0), Measured(0.0)) == 1
    assert ratio_of(LOSSES, Measured(0.0), Measured(200.0)) == pytest.approx(201)
    assert ratio_of(RECOVERY, Measured(0.0), Measured(0.1)) < 1.2


def test_never_on_both_sides_is_no_difference_and_on_one_it_is_longer_than_either_run() -> None:
    never, soon = Measured(math.inf, at_most=20.0), Measured(0.1, at_most=30.0)
    quick = Figure("kv.latency.p50", "s", 1e-6, 1.2, True, lambda _: Measured(0.0))
    assert ratio_of(RECOVERY, never, never) == 1
    assert ratio_of(quick, soon, never) == pytest.approx(300, rel=0.01)
    assert ratio_of(quick, never, soon) == pytest.approx(1 / 300, rel=0.01)
    assert ratio_of(RECOVERY, Measured(9.0), never) == pytest.approx(100), "as if nothing that was measured was longer"
    assert ratio_of(KV, Measured(0.5), Measured(math.inf)) == pytest.approx(100)


def test_seconds_that_one_side_did_not_measure_count_for_neither() -> None:
    one = np.full(12, 0.5)
    other = one * 1.5
    one[:4] = math.nan
    other[-3:] = 40.0
    other[2] = math.nan
    found = paired(KV, Measured(0.5, one, 20.0), Measured(0.75, other, 20.0))
    assert found is not None
    assert math.exp(found.log) < 4


def test_what_was_not_measured_on_one_side_is_no_round() -> None:
    assert paired(KV, Measured(0.5), Measured(math.nan, why="silent")) is None


def test_figures_are_shown_with_their_units() -> None:
    assert KV.shown(0.016) == "16ms"
    assert KV.shown(math.inf) == "never"
    assert KV.shown(math.nan) == "not measured"
    assert LOSSES.shown(3.0) == "3"


def test_what_the_experiment_allows_says_which_difference_in_latency_is_none(tmp_path: Path) -> None:
    """7 ms against 10 of 300 that are allowed are no matter of a bad day, and 100 against 200 are."""
    experiment = (
        RecordingBuilder(tmp_path / "run")
        .load("kv-writes")
        .expect("writes_recover", load="kv-writes", p50_below="300ms", within="10s")
        .build()
        .experiment
    )
    p50 = figure("kv-writes.latency.p50", experiment)
    assert p50.floor == pytest.approx(0.03)
    seven, ten, hundred, two_hundred = p50.log(np.array([0.007, 0.010, 0.1, 0.2]))
    assert ten - seven < math.log(1.2)
    assert two_hundred - hundred > math.log(1.5)
    without = RecordingBuilder(tmp_path / "other").load("kv-writes").build().experiment
    assert figure("kv-writes.latency.p50", without).floor == pytest.approx(5e-4)
