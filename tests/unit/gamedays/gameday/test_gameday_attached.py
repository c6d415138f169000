"""A game day against a datacenter that stands: looked at by its interlocks, run there, and reverted there."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

import virtual_time
from attached_estates import FakeEstate, consul_target
from folded import unfolded
from game_days import day_file
from hashidrill.core.errors import InterlockError
from hashidrill.core.experiment.attached import attached_to
from hashidrill.core.experiment.library import read_experiment
from hashidrill.faces.cli import gameday
from hashidrill.gamedays.gameday.journal import DAY_JOURNAL
from hashidrill.gamedays.history.store import Store, opened
from hashidrill.lab.runs.heal import Healed
from played_days import UNATTENDED, Machine, called, the_day

LOOKS = {"before": [{"check": "machine"}]}


class There:
    """The datacenter that stands; `refuses` names what its interlocks do not let in."""

    def __init__(self, folder):
        self.target = consul_target(folder)
        self.estate = virtual_time.run(FakeEstate().found(self.target))
        self.machine, self.refuses, self.healed, self.stuck = Machine(), set(), [], []

    def over(self, path):
        return attached_to(read_experiment(path), self.estate.as_datacenter(), name=self.target.name, path=path)

    def allowed(self, resolved):
        if resolved.name in self.refuses:
            raise InterlockError(f"{resolved.name} breaks the quorum")

    def run(self, resolved, *, runs_dir, events):
        assert resolved.experiment.datacenter.attached is not None
        return self.machine.run(resolved, runs_dir=runs_dir, events=events)

    async def heal(self, runs, tell):
        self.healed += runs
        return [Healed(run, stuck=list(self.stuck)) for run in runs]


@pytest.fixture
def there(monkeypatch, tmp_path):
    standing, read = There(tmp_path), []

    def attached(path):
        read.append(path)
        return standing

    def ours(*_, **__):
        raise AssertionError("nothing of ours is needed, or cleaned up")

    standing.read = read
    monkeypatch.setattr(gameday, "attached", attached)
    monkeypatch.setattr(gameday, "heal_run", ours)
    monkeypatch.setattr(gameday, "sweep", ours)
    monkeypatch.setattr(gameday, "time", SimpleNamespace(sleep=lambda _: None))
    monkeypatch.setenv("HASHIDRILL_HISTORY", str(tmp_path / "history.sqlite"))
    monkeypatch.chdir(tmp_path)
    return standing


def day(tmp_path, **changes):
    return called("run", day_file(tmp_path, **(LOOKS | changes)), "--yes", "--json", "--attach", "staging.yaml")


@pytest.mark.long
def test_its_experiments_run_there(there, tmp_path):
    code, said, _ = day(tmp_path)
    found = json.loads(said)
    assert (code, found["outcome"], found["verdict"], found["attached"]) == (0, "done", "PASS", there.target.name)
    assert there.machine.ran == ["killed-leader", "slow-follower-disk"]
    assert found["checks"][0]["text"] == "2 experiments, which the interlocks allow"


def test_what_the_interlocks_refuse_is_a_no_go_and_nothing_begins(there, tmp_path):
    there.refuses = {"slow-follower-disk"}
    code, said, _ = day(tmp_path)
    found = json.loads(said)
    assert (code, found["outcome"], there.machine.ran) == (3, "no-go", [])
    assert found["checks"][0]["text"] == "second: slow-follower-disk breaks the quorum"


@pytest.mark.long
def test_it_is_resumed_there_once_what_was_left_is_reverted_there(there, tmp_path):
    there.machine.planted = {"killed-leader": {"stops": True, "outcome": "interrupted"}}
    assert day(tmp_path)[0] == 130
    [left] = (the_day(tmp_path) / "runs").iterdir()
    there.machine.planted, there.stuck = {}, ["disk.latency-0"]
    code, _, said = called("resume", "--yes", "--attach", "staging.yaml")
    assert (code, there.machine.ran) == (4, ["killed-leader"])
    assert f"hashidrill heal --attach {there.target.path} {left}" in unfolded(said)
    there.stuck = []
    code, said, _ = called("resume", "--yes", "--json", "--attach", "staging.yaml")
    assert (code, json.loads(said)["outcome"]) == (0, "done")
    assert there.healed == [left, left]
    assert [str(path) for path in there.read] == ["staging.yaml"] * 3


@pytest.mark.lie
def test_the_folder_of_a_day_does_not_say_which_datacenter_is_broken(there, tmp_path):
    """The folder may be a stranger's: it would have his attach file used, with the operator's tokens."""
    there.machine.planted = {"killed-leader": {"stops": True, "outcome": "interrupted"}}
    assert day(tmp_path)[0] == 130
    code, _, said = called("resume", "--yes")
    assert (code, len(there.read)) == (2, 1)
    assert f"this day ran against {there.target.name}: name that datacenter's file again" in unfolded(said)
    there.target = replace(there.target, name="another")
    code, _, said = called("resume", "--yes", "--attach", "other.yaml")
    assert code == 2
    assert "other.yaml is another, and this day ran against" in unfolded(said)


@pytest.mark.lie
def test_a_run_that_is_stopped_from_outside_stops_the_day(there, tmp_path):
    """Somebody pressed the stop button of the datacenter: nothing more begins in it, not even the same run again."""
    there.machine.planted = {"killed-leader": {"outcome": "interrupted"}}
    assert day(tmp_path)[0] == 130
    assert there.machine.ran == ["killed-leader"]
    lines = (the_day(tmp_path) / DAY_JOURNAL).read_text().splitlines()
    assert json.loads(lines[-1])["event"] == "interrupted"


@pytest.mark.long
def test_its_report_is_written_again_without_the_datacenter(there, tmp_path, monkeypatch):
    day(tmp_path)
    before = json.loads((the_day(tmp_path) / "report.json").read_text())
    monkeypatch.setattr(gameday, "attached", None)
    code, said, _ = called("report", "--json")
    assert (code, json.loads(said)) == (0, before)


def test_it_is_another_series_in_the_history_than_the_same_day_of_ours(there, tmp_path):
    day(tmp_path)
    with opened(tmp_path / "history.sqlite") as database:
        assert [each.gameday for each in Store(database).days()] == [f"a-day at {there.target.name}"]


def test_a_day_of_ours_is_attached_to_nothing(there, tmp_path, monkeypatch):
    real = gameday.play
    monkeypatch.setattr(gameday, "play", lambda *a, **named: real(*a, **named, runner=there.machine.run))
    code, said, _ = called("run", day_file(tmp_path, **UNATTENDED), "--yes", "--json")
    assert (code, json.loads(said)["attached"], there.read) == (0, "", [])
