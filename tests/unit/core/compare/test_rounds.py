"""Rounds of two sides: who plays when, what counts, when it ends, and what is left of an interrupted one."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hashidrill.core.compare import comparison
from hashidrill.core.compare.comparison import compared, is_sure, together
from hashidrill.core.compare.figures import Figure, Measured
from hashidrill.core.compare.statistics import Decision, Prior
from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.protocols.events import Bus, Note
from hashidrill.lab.runs.rounds import Played, Round, Series, Side, expected_s, play
from hashidrill.testing.recordings import RecordingBuilder

pytestmark = pytest.mark.long

A_RUN_S = 30.0


@pytest.fixture(scope="module")
def sides() -> tuple[Side, Side]:
    resolved = resolve(find_experiment("raft/slow-leader-disk"))
    return Side("baseline", resolved), Side("candidate", resolved)


class Runs:
    """Plays runs by writing what they would have left; each takes half a minute of a virtual clock."""

    def __init__(self, folder: Path, sides: tuple[Side, Side], *, slower: float = 1.0, noise: float = 0.05) -> None:
        self.folder, self.slower, self.noise = folder, slower, noise
        self.order: list[str] = []
        self.now = 0.0
        self.draw = np.random.default_rng(4)
        self.spoil: Callable[[int, str], bool] = lambda _number, _side: False
        self.ends: Callable[[str], str] = lambda _side: "complete"
        self.busy: Callable[[int], bool] = lambda _number: False
        self.interrupt_at = -1
        self.next_side = ""
        self.bus = Bus(self._note)

    def _note(self, event: object) -> None:
        if isinstance(event, Note):
            self.next_side = event.text.split(": ")[1]

    def __call__(self, resolved: ResolvedExperiment, *, runs_dir: Path, events: Bus) -> Path:
        number, side = len(self.order), self.next_side
        self.order.append(side)
        self.now += A_RUN_S
        if number == self.interrupt_at:
            raise KeyboardInterrupt(runs_dir)
        latency = 0.4 * (self.slower if side == "candidate" else 1.0) * math.exp(self.draw.normal(0, self.noise))
        built = RecordingBuilder(self.folder / f"run-{number}").fault("disk.latency", at=10, until=30)
        built.load("kv-writes", rate=10, latency=lambda t: latency if 10 <= t < 30 else 0.01)
        built.expect("no_acknowledged_write_lost", load="kv-writes").healthy().final_reads("kv-writes")
        if self.spoil(number, side):
            built.end("crashed", error="it was planted")
        elif self.ends(side) != "complete":
            built.end(self.ends(side), error="it was planted")
        if self.busy(number):
            built.run_info(machine={"cpus": 2})
            built.series("machine.others", 1.8, every=1.0).series("machine.idle", 0.0, every=1.0)
        return built.build().path

    def play(self, sides: tuple[Side, Side], **more: object) -> Series:
        return play(*sides, runs_dir=self.folder, run=self, events=self.bus, now_s=lambda: self.now, **more)


@pytest.fixture
def runs(tmp_path: Path, sides: tuple[Side, Side]) -> Runs:
    return Runs(tmp_path, sides)


def sure(series: Series) -> bool:
    return is_sure(compared(series.rounds, series.figures, priors={"kv-writes.latency.p50": Prior(0.07, 6)}))


@pytest.mark.lie
def test_the_sides_take_turns_and_who_is_first_alternates(runs: Runs, sides: tuple[Side, Side]) -> None:
    series = runs.play(sides, at_most=4)
    a, b = runs.order[:2]
    assert {a, b} == {"baseline", "candidate"}
    assert runs.order == [a, b, b, a, a, b, b, a]
    assert (series.stopped, len(series.rounds)) == ("rounds", 4)
    assert [run.side for run in series.rounds[1].sides] == ["baseline", "candidate"]


def test_who_is_first_is_drawn_from_the_seed(tmp_path: Path, sides: tuple[Side, Side]) -> None:
    first = set()
    for seed in range(6):
        runs = Runs(tmp_path / str(seed), sides)
        runs.play(sides, at_most=1, seed=seed)
        first.add(runs.order[0])
    assert first == {"baseline", "candidate"}


def test_a_regression_ends_it_early_and_is_named(tmp_path: Path, sides: tuple[Side, Side]) -> None:
    runs = Runs(tmp_path, sides, slower=1.8)
    series = runs.play(sides, at_most=8, enough=sure)
    found = compared(series.rounds, series.figures, priors={"kv-writes.latency.p50": Prior(0.07, 6)})
    assert series.stopped == "enough"
    assert len(series.rounds) < 8
    assert together(found) is Decision.WORSE
    [p50] = [each for each in found if each.figure.name == "kv-writes.latency.p50"]
    assert p50.interval.low < 1.8 < p50.interval.high
    assert str(p50).startswith("kv-writes.latency.p50: worse: ")
    assert p50.as_dict()["decision"] == "worse"


def test_equal_sides_are_no_worse_with_enough_rounds(runs: Runs, sides: tuple[Side, Side]) -> None:
    series = runs.play(sides, at_most=8)
    found = {each.figure.name: each for each in compared(series.rounds, series.figures)}
    assert found["kv-writes.latency.p50"].decision is Decision.NO_WORSE
    assert found["kv-writes.lost"].decision is Decision.NO_WORSE
    assert found["cpu"].decision is Decision.CANNOT_TELL
    assert "process.cpu" in found["cpu"].why
    assert together(list(found.values())) is Decision.NO_WORSE


@pytest.mark.lie
def test_an_invalid_run_spoils_its_round_which_is_counted(runs: Runs, sides: tuple[Side, Side]) -> None:
    runs.spoil = lambda number, _side: number == 0
    series = runs.play(sides, at_most=3)
    assert len(series.rounds) == 3
    assert len(series.played) == 4
    assert len(series.played[0].runs) == 1  # the second side of a spoilt round is not played
    assert "1 INVALID run was left out" in series.why()
    assert "it was planted" in series.why()


@pytest.mark.lie
def test_too_many_invalid_runs_end_it_with_the_reason(runs: Runs, sides: tuple[Side, Side]) -> None:
    runs.spoil = lambda _number, side: side == "candidate"
    series = runs.play(sides, at_most=8)
    assert series.stopped == "spoilt"
    assert len(series.played) == 4
    assert "candidate: the run crashed: it was planted" in series.why()
    assert together(compared(series.rounds, series.figures)) is Decision.CANNOT_TELL


def test_no_round_is_begun_that_would_not_end_in_time(runs: Runs, sides: tuple[Side, Side]) -> None:
    series = runs.play(sides, at_most=8, budget_s=3.5 * 2 * A_RUN_S)
    assert (series.stopped, len(series.rounds)) == ("budget", 3)
    assert series.took_s == 6 * A_RUN_S


def test_without_time_for_one_round_none_is_begun(runs: Runs, sides: tuple[Side, Side]) -> None:
    needed = 2 * expected_s(sides[0].resolved.experiment)
    assert runs.play(sides, budget_s=needed - 1).played == []
    assert runs.order == []


def test_an_interrupted_series_keeps_its_whole_rounds(runs: Runs, sides: tuple[Side, Side]) -> None:
    runs.interrupt_at = 3
    series = runs.play(sides, at_most=8)
    assert (series.stopped, len(series.rounds), len(series.played)) == ("interrupted", 1, 1)
    assert all(run.recording.exists() for run in series.rounds[0].runs)


def test_two_sides_of_one_name_are_refused(runs: Runs, sides: tuple[Side, Side]) -> None:
    with pytest.raises(UsageError, match="both sides are called baseline"):
        runs.play((sides[0], sides[0]))


def test_a_side_that_never_gets_steady_is_told_from_one_that_broke_down(runs: Runs, sides: tuple[Side, Side]) -> None:
    runs.ends = lambda side: "steady-state" if side == "baseline" else "crashed"
    series = runs.play(sides, at_most=2)
    assert {run.side for run in series.spoilt if run.unsteady} == {"baseline"}
    assert {run.side for run in series.spoilt if not run.unsteady} == {"candidate"}


def test_a_round_of_which_other_work_disturbed_one_run_alone_is_played_again(
    runs: Runs, sides: tuple[Side, Side]
) -> None:
    runs.busy = lambda number: number == 2
    series = runs.play(sides, at_most=3)
    assert [each.counts for each in series.played] == [True, False, True, True]
    assert [run.disturbed for run in series.spoilt] == [True]
    assert "other work on this machine took 1.8 of its 2 CPUs" in series.why()


def test_a_round_of_which_it_disturbed_both_runs_alike_counts_with_all_its_seconds(
    runs: Runs, sides: tuple[Side, Side]
) -> None:
    runs.busy = lambda _number: True
    series = runs.play(sides, at_most=2)
    assert [each.counts for each in series.played] == [True, True]
    assert all(run.disturbed for each in series.rounds for run in each.runs)
    p50s = [run.measured["kv-writes.latency.p50"].number for each in series.rounds for run in each.runs]
    assert not any(math.isnan(each) for each in p50s)


def test_a_disturbed_run_that_ended_early_is_not_followed_by_the_other_side(
    runs: Runs, sides: tuple[Side, Side]
) -> None:
    runs.busy = lambda number: number == 0
    runs.spoil = lambda number, _side: number == 0
    series = runs.play(sides, at_most=1)
    assert [len(each.runs) for each in series.played] == [1, 2]
    assert "other work on this machine" in series.spoilt[0].invalid


def test_rounds_that_other_work_spoils_are_played_again_while_there_is_time(
    runs: Runs, sides: tuple[Side, Side]
) -> None:
    runs.busy = lambda number: number % 2 == 0
    series = runs.play(sides, at_most=8, budget_s=6.5 * 2 * A_RUN_S)
    assert (series.stopped, len(series.played) >= 5, series.rounds) == ("budget", True, [])
    endless = runs.play(sides, at_most=2)
    assert (endless.stopped, len(endless.played)) == ("spoilt", 6)


def test_whether_it_is_enough_is_asked_after_a_spoilt_round_too(runs: Runs, sides: tuple[Side, Side]) -> None:
    """What agents report of themselves, a spoilt run says as well."""
    runs.busy = lambda number: number == 0
    series = runs.play(sides, at_most=8, enough=lambda series: len(series.played) == 1)
    assert (series.stopped, len(series.played), series.rounds) == ("enough", 1, [])


def planted(baseline: list[float], candidate: list[float], figure: Figure) -> list[Round]:
    """Rounds in which one figure was measured as these."""
    return [
        Round(
            number,
            [
                Played(
                    side, Path("x"), {figure.name: Measured(value, why="it was silent" if math.isnan(value) else "")}
                )
                for side, value in (("baseline", one), ("candidate", other))
            ],
            ("baseline", "candidate"),
        )
        for number, (one, other) in enumerate(zip(baseline, candidate, strict=True))
    ]


ERRORS = Figure("kv.errors", "share", 0.01, 1.5, True, lambda _: Measured(0.0))
COST = Figure("cpu", "CPU seconds", 0.5, 1.3, False, lambda _: Measured(0.0))


@pytest.mark.lie
def test_one_figure_that_is_worse_outvotes_all_that_are_better() -> None:
    """In a canary's mean of a group, it would drown."""
    worse = planted([1.0, 1.1, 0.9, 1.0, 1.05], [4.0, 4.4, 3.7, 4.1, 4.0], COST)
    fine = planted([0.3, 0.31, 0.29, 0.3, 0.3], [0.1, 0.11, 0.1, 0.1, 0.1], ERRORS)
    rounds = [
        Round(
            a.number,
            [Played(x.side, x.recording, {**x.measured, **y.measured}) for x, y in zip(a.runs, b.runs, strict=True)],
            a.names,
        )
        for a, b in zip(worse, fine, strict=True)
    ]
    found = compared(rounds, [COST, ERRORS])
    assert [each.decision for each in found] == [Decision.WORSE, Decision.BETTER]
    assert together(found) is Decision.WORSE


def test_a_figure_that_does_not_decide_may_stay_open() -> None:
    open_one = compared(planted([1, 5, 2, 9], [4, 1, 8, 2], COST), [COST])
    none_lost = compared(planted([0.0] * 4, [0.0] * 4, ERRORS), [ERRORS])
    assert open_one[0].decision is Decision.CANNOT_TELL
    assert together([*open_one, *none_lost]) is Decision.NO_WORSE
    assert together(open_one) is Decision.CANNOT_TELL


def test_what_it_cannot_tell_says_how_many_more_rounds_would() -> None:
    [found] = compared(
        planted([0.30, 0.30, 0.31, 0.29], [0.31, 0.34, 0.29, 0.30], ERRORS), [ERRORS], margins={"kv.errors": 1.12}
    )
    assert found.decision is Decision.CANNOT_TELL
    assert 0 < found.more_rounds < 30
    assert "more rounds would tell" in str(found)
    [noisy] = compared(planted([1, 5, 2, 9], [4, 1, 8, 2], COST), [COST])
    assert "the noise is too large" in str(noisy)


def test_a_figure_without_rounds_says_why() -> None:
    [found] = compared(planted([math.nan] * 3, [1.0] * 3, COST), [COST])
    assert "it was silent" in str(found)
    assert found.as_dict()["baseline"] is None
    assert comparison.together([]) is Decision.CANNOT_TELL


@pytest.mark.lie
def test_medians_ratio_and_count_are_of_the_same_pairs() -> None:
    """The baseline was quick in a round in which the candidate has no figure: it would look quicker than its pairs."""
    nan = math.nan
    [found] = compared(planted([0.1, 0.4, 0.4, 0.1, 0.4], [nan, 0.4, 0.4, nan, 0.4], COST), [COST])
    assert (found.interval.rounds, found.of) == (3, 5)
    assert (found.baseline, found.candidate, found.interval.ratio) == (0.4, 0.4, 1.0)
    assert [pair["round"] for pair in found.as_dict()["pairs"]] == [1, 2, 4]
    product = math.prod(pair.ratio for pair in found.pairs)
    assert product ** (1 / len(found.pairs)) == pytest.approx(found.interval.ratio)


RECOVERY = Figure("kv.recovery", "s", 1.0, 1.5, True, lambda _: Measured(0.0))
NEVER = math.inf


@pytest.mark.lie
@pytest.mark.parametrize(
    ("baseline", "candidate", "decision"),
    [
        ([8.0] * 4, [NEVER] * 4, Decision.WORSE),
        ([NEVER] * 4, [8.0] * 4, Decision.BETTER),
        ([NEVER] * 4, [NEVER] * 4, Decision.NO_WORSE),
        ([8.0] * 4, [8.0, 8.0, 8.0, NEVER], Decision.CANNOT_TELL),
        ([0.0] * 4, [NEVER] * 4, Decision.WORSE),
    ],
)
@pytest.mark.parametrize("margin", [1.5, 4.0])
def test_what_never_came_is_longer_than_all_that_did(
    baseline: list[float], candidate: list[float], decision: Decision, margin: float
) -> None:
    """A run of 10 s that never recovered took only 1.2 times the 8 s of one that did, were its length the figure."""
    rounds = planted(baseline, candidate, RECOVERY)
    for run in (run for each in rounds for run in each.runs):
        object.__setattr__(run.measured[RECOVERY.name], "at_most", 10.0)
    [found] = compared(rounds, [RECOVERY], margins={RECOVERY.name: margin})
    assert found.decision is decision


@pytest.mark.parametrize(("count", "said"), [(1, "the time was used up after 1 round"), (2, "used up after 2 rounds")])
def test_one_round_is_one(count, said):
    runs = [Played(side, Path(side), {}) for side in ("a", "b")]
    played = [Round(number, runs, ("a", "b")) for number in range(count)]
    assert Series([], played, "budget").why().endswith(said)
