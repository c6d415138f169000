"""A comparison of variants as one step of a game day."""

import json

import pytest

from compared_runs import TEXT, planted
from folded import across_lines
from game_days import day_file, planned
from hashidrill.core.errors import ExperimentError
from hashidrill.core.util.files import COMPARISON_NAME
from hashidrill.faces.cli import gameday
from hashidrill.gamedays.gameday import player
from hashidrill.gamedays.gameday.journal import recordings_of
from hashidrill.gamedays.history.store import Store, opened
from hashidrill.lab.runs.heal import Healed
from played_days import Machine, called, the_day

pytestmark = pytest.mark.long

ONCE = TEXT.replace("rounds: 3", "rounds: 1").replace("latency.p50}", "latency.p50, or_below: 100ms}")
VERDICT = {"which": {"measure": "verdict", "ask": "Is the new one as good?"}}
LEADER = {"leader": {"measure": "leader", "ask": "Who leads afterwards?"}}
CHANGES = {
    "experiments": [
        {"experiment": "planted.yaml", "name": "both", "compare": True},
        {"experiment": "raft/slow-follower-disk", "name": "second"},
    ],
    "before": None,
    "messages": None,
    "questions": {**VERDICT, **LEADER},
}


def as_written(built):
    """With the parameters of the experiment's fault, which planted recordings lack."""
    built._method[0]["with"] = {"op": "fsync", "delay": "20ms"}
    return built


class Variants(Machine):
    """Each variant leaves a planted recording of it; `new_p50_s` is how slow the new one is."""

    new_p50_s, stops_in = 0.02, ""

    def run(self, resolved, *, runs_dir, events):
        if not resolved.variant:
            return super().run(resolved, runs_dir=runs_dir, events=events)
        self.ran.append(resolved.variant)
        p50_s = self.new_p50_s if resolved.variant == "new" else 0.02
        path = planted(
            runs_dir / f"{len(self.ran)}-{resolved.variant}", resolved.variant, p50_s=p50_s, change=as_written
        )
        if resolved.variant == self.stops_in:
            raise KeyboardInterrupt(path)
        return path


@pytest.fixture
def machine(monkeypatch, tmp_path):
    planted_ = Variants()
    play, alone = gameday.play, gameday.play_alone
    monkeypatch.setattr(gameday, "play", lambda *a, **named: play(*a, **named, runner=planted_.run))
    monkeypatch.setattr(gameday, "play_alone", lambda *a, **named: alone(*a, **named, runner=planted_.run))
    monkeypatch.setattr(gameday.time, "sleep", lambda _: None)
    compare = player.compare
    monkeypatch.setattr(gameday, "compare", lambda *a, **named: compare(*a, **named, prepare=lambda *_: None))
    monkeypatch.setenv("HASHIDRILL_HISTORY", str(tmp_path / "history.sqlite"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planted.yaml").write_text(ONCE)
    return planted_


def day(tmp_path, *words, **changes):
    return called("run", day_file(tmp_path, **(CHANGES | changes)), "--yes", "--json", *words)


def test_every_variant_runs_and_they_are_compared(machine, tmp_path):
    code, said, _ = day(tmp_path)
    found = json.loads(said)
    assert (code, found["outcome"], found["verdict"]) == (0, "done", "PASS"), found["runs"]
    assert machine.ran == ["old", "new", "slow-follower-disk"]
    both, second = found["runs"]
    assert (both["state"], both["verdict"], both["outcome"]) == ("run", "PASS", "complete")
    assert [each["title"].partition("(")[0] for each in both["expectations"]] == ["no_worse_than"]
    assert [each["name"] for each in both["questions"]] == ["which"]
    assert both["questions"][0]["happened"] == "PASS"
    assert [each["name"] for each in second["questions"]] == ["which", "leader"]
    assert (the_day(tmp_path) / both["recording"] / "report.html").is_file()
    page = (the_day(tmp_path) / "report.html").read_text()
    assert f"{both['recording']}/report.html" in page
    with opened(tmp_path / "history.sqlite") as database:
        assert {str(each) for each in Store(database).series()} >= {"planted (new)", "planted (old)"}


def test_a_worse_variant_fails_the_day(machine, tmp_path):
    machine.new_p50_s = 0.2
    (tmp_path / "planted.yaml").write_text(ONCE.replace("rounds: 1", "rounds: 3"))
    code, said, _ = day(tmp_path)
    found = json.loads(said)
    assert (code, found["verdict"], found["runs"][0]["verdict"]) == (1, "FAIL", "FAIL")
    assert found["runs"][0]["expectations"][0]["finding"] == "broken"


@pytest.mark.lie
def test_an_interrupted_comparison_is_healed_as_a_whole_and_made_again(machine, tmp_path, monkeypatch):
    healed = []

    async def heal_run(path):
        healed.append(path.name)
        return Healed(path, ended=["disk.latency-0"])

    monkeypatch.setattr(gameday, "heal_run", heal_run)
    monkeypatch.setattr(gameday, "sweep", lambda: None)
    machine.stops_in = "new"
    assert day(tmp_path)[0] == 130
    machine.stops_in = ""
    code, said, _ = called("resume", "--yes", "--json")
    found = json.loads(said)
    assert (code, found["outcome"], found["verdict"]) == (0, "done", "PASS")
    assert machine.ran == ["old", "new", "old", "new", "slow-follower-disk"]
    assert healed == ["1-old", "2-new"]
    [entry] = found["interrupted"]
    assert entry["step"] == "run:both:1"
    assert (the_day(tmp_path) / entry["recording"] / COMPARISON_NAME).is_file()


def test_a_runner_that_died_in_a_comparison_left_a_folder_of_recordings(machine, tmp_path):
    class Dies(BaseException):
        """As SIGKILL: nothing is written any more."""

    real, machine.stops_in = machine.run, ""

    def run(resolved, *, runs_dir, events):
        path = real(resolved, runs_dir=runs_dir, events=events)
        if resolved.variant == "new":
            raise Dies
        return path

    machine.run = run
    with pytest.raises(Dies):
        day(tmp_path)
    [left] = (the_day(tmp_path) / "runs").iterdir()
    assert [path.name for path in recordings_of(left)] == ["1-old", "2-new"]
    machine.run = real
    code, said, _ = called("resume", "--yes", "--json")
    found = json.loads(said)
    assert (code, found["verdict"]) == (0, "PASS")
    assert [entry["recording"] for entry in found["interrupted"]] == [f"runs/{left.name}"]
    assert found["runs"][1]["before"] == []


def test_after_a_comparison_an_interrupted_run_is_named_by_its_own_recording(machine, tmp_path):
    machine.planted = {"slow-follower-disk": {"stops": True, "outcome": "interrupted"}}
    assert day(tmp_path)[0] == 130
    found = json.loads((the_day(tmp_path) / "report.json").read_text())
    [entry] = found["interrupted"]
    assert (entry["step"], "planted-0000" in entry["recording"]) == ("run:second:1", True)


@pytest.mark.parametrize(
    ("experiment", "said"),
    [
        ({"compare": True, "variant": "old"}, "all of its variants are compared: leave out `variant`"),
        ({"experiment": "raft/killed-leader", "compare": True}, "lacks `variants` or `compare`: leave this out"),
        ({}, "has variants (old, new): name one with `variant`, or write `compare: true`"),
        ({"compare": True, "predict": ["leader"]}, "only the verdict of a comparison can be predicted"),
    ],
)
def test_what_cannot_be_compared_is_told_with_its_place(tmp_path, experiment, said):
    (tmp_path / "planted.yaml").write_text(ONCE)
    with pytest.raises(ExperimentError, match=across_lines(said)):
        planned(tmp_path, **(CHANGES | {"experiments": [{"experiment": "planted.yaml"} | experiment]}))
