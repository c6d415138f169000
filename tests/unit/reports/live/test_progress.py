"""One line that renews on a terminal; piped, one line an item."""

import io

import pytest
from rich.console import Console

from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.protocols.events import Tick
from hashidrill.reports.live.display import LiveView
from hashidrill.reports.live.progress import Progress


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def out(*, terminal, width=80):
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, height=24)


def test_piped_each_item_is_one_line_with_elapsed_and_expected(clock):
    console = out(terminal=False, width=30)
    with Progress(console, 360.0, now_s=clock) as progress:
        progress.item("round 1: baseline")
        clock.now_s += 125
        progress.item("round 1: candidate, which has a name that is longer than the terminal is wide")
    assert console.file.getvalue().splitlines() == [
        "[0 s of about 6 min] round 1: baseline",
        "[2 min 5 s of about 6 min] round 1: candidate, which has a name that is longer than the terminal is wide",
    ]


def test_on_a_terminal_the_line_renews_and_leaves_nothing(clock):
    console = out(terminal=True)
    with Progress(console, now_s=clock) as progress:
        progress.item("building consul")
        clock.now_s += 5
        assert str(progress._line()) == "[5 s] building consul"
    shown = console.file.getvalue()
    assert "building consul" in shown
    assert "\x1b[2K" in shown, "the line is erased at the end"


def test_the_same_item_renews_the_line_and_is_one_line_where_it_is_piped(clock):
    for terminal, lines in ((True, ["[0 s] starting", "[2 s] starting"]), (False, ["[0 s] starting"])):
        console, clock.now_s = out(terminal=terminal), 0.0
        with Progress(console, now_s=clock) as progress:
            progress.item("starting")
            clock.now_s = 2.0
            progress.item("starting")
        assert [line for line in ("[0 s] starting", "[2 s] starting") if line in console.file.getvalue()] == lines


@pytest.mark.lie
def test_without_knowledge_only_the_elapsed_time_is_said(clock):
    progress = Progress(out(terminal=False), now_s=clock)
    clock.now_s += 90
    progress.item("run 3")
    assert str(progress) == "1 min 30 s"
    progress.item("starting", left_s=30.0)
    assert str(progress) == "1 min 30 s of about 2 min"


def test_what_is_done_of_many_tells_the_whole(clock):
    progress = Progress(out(terminal=False), now_s=clock)
    progress.item("1 of 4: a", done=0.0)
    assert str(progress) == "0 s"
    clock.now_s += 10
    progress.item("2 of 4: b", done=0.25)
    assert str(progress) == "10 s of about 40 s"


def test_a_run_says_how_long_it_and_the_whole_take(clock):
    console, whole = out(terminal=True), Progress(out(terminal=False), 600.0, now_s=clock)
    with LiveView(console, "a run", plain=False, expected_s=90.0, whole=whole) as view:
        clock.now_s += 200
        view.event(Tick(t_ns=12_000_000_000, phase="steady"))
        assert "12 s of about 1 min 30 s into the run" in console.file.getvalue()
        assert "all     3 min 20 s of about 10 min" in console.file.getvalue()


def test_piped_the_title_of_a_run_has_the_whole(clock):
    console = out(terminal=False)
    with LiveView(console, "run 2", plain=False, whole=Progress(console, now_s=clock)):
        pass
    assert console.file.getvalue() == "[0 s] run 2\n"


def test_a_runs_length_is_that_of_its_phases():
    from hashidrill.core.experiment.loader import resolve
    from hashidrill.lab.runs.rounds import STARTS_S, expected_s, total_s

    experiment = load_experiment(find_experiment("raft/slow-leader-disk"))
    method = max(step.at + step.for_ for step in experiment.method)
    assert expected_s(experiment) == STARTS_S + experiment.steady_state.for_ + method + experiment.recovery.for_
    assert total_s(resolve(find_experiment("raft/slow-leader-disk"))) == expected_s(experiment)
