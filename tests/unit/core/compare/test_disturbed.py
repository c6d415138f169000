"""Whether other work on the machine spoiled a run: by the machine's own samples, whatever the experiment asks."""

import math
from pathlib import Path

import pytest

from hashidrill.core.compare.measured import Use, use_of
from hashidrill.core.errors import OTHER_WORK
from hashidrill.core.recording.reader import Recording
from hashidrill.testing.recordings import RecordingBuilder

pytestmark = pytest.mark.lie

LEAN = Use(own=0.5, starved=False)
"""A run that takes half a CPU, as an earlier one of either side did."""


class AsksForIdle(RecordingBuilder):
    """A run of an experiment whose steady state wants one CPU idle."""

    def experiment(self) -> dict:
        return {**super().experiment(), "steady_state": {"for": "5s", "require": ["machine.idle > 1"]}}


def a_run(
    path: Path, *, others: float, own: float, until: float = 50.0, steady: bool = True, asks: bool = False
) -> Recording:
    """On two CPUs; other work ends at `until`."""
    built = (AsksForIdle if asks else RecordingBuilder)(path).load("kv-writes").run_info(machine={"cpus": 2})
    built.series("machine.others", lambda t: others if t < until else 0.0, every=1.0)
    built.series("machine.idle", lambda t: max(0.0, 2 - own - (others if t < until else 0.0)), every=1.0)
    if not steady:
        built.phase("start", at=0).phase("ready", at=2).phase("steady", at=4)
        built.end("steady-state", error=f"it did not hold; {OTHER_WORK} uses {others:.1f} of its CPUs", at=50)
    return built.build()


def test_a_run_that_other_work_starved_says_so(tmp_path: Path) -> None:
    for number, before in enumerate([(), (LEAN,)]):
        found = use_of(a_run(tmp_path / f"{number}", others=1.6, own=0.4), before)
        assert found.why.startswith("other work on this machine took 1.6 of its 2 CPUs")


def test_a_few_seconds_of_it_are_left_to_the_figures(tmp_path: Path) -> None:
    found = use_of(a_run(tmp_path / "run", others=1.6, own=0.4, until=18), ())
    assert (found.why, found.starved) == ("", False)
    assert found.own == pytest.approx(0.4)


def test_other_work_that_leaves_enough_disturbs_nobody(tmp_path: Path) -> None:
    found = use_of(a_run(tmp_path / "run", others=1.2, own=0.5), ())
    assert found == Use(pytest.approx(0.5), starved=False, others=pytest.approx(0.6))


def test_two_runs_beside_as_much_other_work_were_disturbed_alike(tmp_path: Path) -> None:
    busy, busier, quiet, hardly = (
        use_of(a_run(tmp_path / f"{others}", others=others, own=0.3), ()) for others in (1.6, 1.68, 0.1, 0.8)
    )
    assert busy.alike(busier)
    assert not busy.alike(quiet)
    assert not quiet.alike(busy)
    assert quiet.alike(hardly), "neither was disturbed"


def test_a_run_that_starves_itself_is_not_disturbed_once_it_is_known_what_it_may_take(tmp_path: Path) -> None:
    recording = a_run(tmp_path / "run", others=0.6, own=1.4)
    assert use_of(recording, ()).why  # nobody knows yet
    found = use_of(recording, (LEAN, Use(1.4, starved=False), Use(math.nan, starved=True)))
    assert (found.why, found.starved) == ("", True)


@pytest.mark.parametrize(
    ("others", "own", "before", "disturbed"),
    [
        (0.7, 0.5, (LEAN,), True),
        (0.7, 0.5, (), True),
        (0.2, 1.6, (LEAN,), False),
        (0.0, 1.8, (), False),
    ],
)
def test_a_steady_state_that_asks_for_idle_cpus_blames_who_took_them(
    tmp_path: Path, others: float, own: float, before: tuple[Use, ...], disturbed: bool
) -> None:
    recording = a_run(tmp_path / "run", others=others, own=own, steady=False, asks=True)
    found = use_of(recording, before)
    assert bool(found.why) is disturbed
    assert ("machine.idle > 1 did not hold" in found.why) is disturbed


def test_a_machine_that_was_not_sampled_is_what_the_run_says_of_it(tmp_path: Path) -> None:
    """As in recordings of earlier versions."""
    quiet = RecordingBuilder(tmp_path / "quiet").load("kv-writes").build()
    assert use_of(quiet, ()).why == ""
    said = RecordingBuilder(tmp_path / "said").load("kv-writes").end("steady-state", error=f"no; {OTHER_WORK} uses 1.0")
    assert OTHER_WORK in use_of(said.build(), ()).why
