"""`hashidrill gameday`: exit codes, what is refused before anything starts, resuming, and reports."""

import contextlib
import io
import json
import termios
from pathlib import Path

import pytest
import typer
from rich.console import Console

from folded import unfolded
from game_days import DAY, day_file, planned
from hashidrill.core.errors import HashidrillError
from hashidrill.core.protocols.events import Audience
from hashidrill.faces.cli import gameday
from hashidrill.faces.cli.remembering import Memory
from hashidrill.gamedays.gameday.journal import DAY_JOURNAL
from hashidrill.gamedays.history.store import Store, opened
from hashidrill.gamedays.warroom.room import Room
from hashidrill.lab.runs.heal import Healed
from hashidrill.reports.live.display import folded
from played_days import UNATTENDED, Machine, called, the_day

pytestmark = pytest.mark.long


@pytest.fixture
def machine(monkeypatch, tmp_path):
    planted = Machine()
    real = gameday.play
    monkeypatch.setattr(gameday, "play", lambda *a, **named: real(*a, **named, runner=planted.run))
    monkeypatch.setattr(gameday, "look_at", lambda *_: (True, "planted"))
    monkeypatch.setattr(gameday.time, "sleep", lambda _: None)
    monkeypatch.setenv("HASHIDRILL_HISTORY", str(tmp_path / "history.sqlite"))
    monkeypatch.chdir(tmp_path)
    return planted


@pytest.mark.parametrize(
    ("planted", "verdict", "code"),
    [
        ({}, "PASS", 0),
        ({"killed-leader": {"slow_until": 40.0}}, "FAIL", 1),
        ({"slow-follower-disk": {"proven": False}}, "INVALID", 3),
    ],
)
def test_the_exit_code_is_the_worst_verdict_of_the_day(machine, tmp_path, planted, verdict, code):
    machine.planted = planted
    found = called("run", day_file(tmp_path, **UNATTENDED), "--yes", "--json")
    assert found[0] == code, found
    data = json.loads(found[1])
    assert (data["verdict"], data["exit_code"]) == (verdict, code)
    folder = the_day(tmp_path)
    written = {*(f"report.{kind}" for kind in ("html", "md", "json")), "actions.json", "actions.md"}
    assert written | {DAY_JOURNAL, "day.yaml", "runs"} <= {path.name for path in folder.iterdir()}
    for run in data["runs"]:
        assert (folder / run["recording"] / "report.html").is_file()
    assert folder.stat().st_mode & 0o077 == 0


def test_the_day_and_its_runs_are_in_the_history(machine, tmp_path):
    del machine
    called("run", day_file(tmp_path, **UNATTENDED), "--yes")
    with opened(tmp_path / "history.sqlite") as database:
        store = Store(database)
        assert [day.gameday for day in store.days()] == ["a-day"]
        assert len(store.runs()) == 2


def test_what_happened_is_read_from_the_recording(machine, tmp_path):
    del machine
    code, said, _ = called("run", day_file(tmp_path, **UNATTENDED), "--yes", "--json")
    [question] = [each for each in json.loads(said)["runs"][0]["questions"] if each["name"] == "stop"]
    assert code == 0
    assert question["happened"].startswith("3")  # acknowledgements stand still for as long as the first slow one takes


@pytest.mark.lie
def test_what_needs_a_person_is_refused_on_a_scheduled_day_before_anything_starts(machine, tmp_path):
    path = day_file(tmp_path, before=[{"confirm": "Nobody deploys"}])
    code, _, said = called("run", path, "--yes")
    assert code == 2
    assert "a person must confirm: Nobody deploys" in said
    assert "unattended: true" in said
    assert machine.ran == []
    assert not (tmp_path / ".hashidrill").exists()


def test_json_without_yes_is_refused(machine, tmp_path):
    code, _, said = called("run", day_file(tmp_path), "--json")
    assert (code, machine.ran) == (2, [])
    assert "use it with --yes" in said


def test_a_file_that_is_not_right_starts_nothing(machine, tmp_path):
    code, _, said = called("run", day_file(tmp_path, people={"a": {"role": "scribe"}}), "--yes")
    assert (code, machine.ran) == (2, [])
    assert "no person is the lead" in unfolded(said)
    assert called("run", tmp_path / "none.yaml")[0] == 2
    assert not (tmp_path / ".hashidrill").exists()


def test_a_no_go_is_exit_code_3_and_runs_nothing(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(gameday, "look_at", lambda *_: (False, "no memory"))
    code, said, _ = called("run", day_file(tmp_path), "--yes")
    assert (code, machine.ran) == (3, [])
    assert "No-go: a check before the day did not hold, so nothing was started." in said


def test_an_interrupted_day_is_resumed_and_the_interrupted_run_is_named(machine, tmp_path):
    machine.planted = {"slow-follower-disk": {"stops": True, "outcome": "interrupted"}}
    code, said, _ = called("run", day_file(tmp_path, **UNATTENDED), "--yes")
    assert code == 130
    folder = the_day(tmp_path)
    assert f"hashidrill gameday resume {folder} --yes" in unfolded(said)
    assert json.loads((folder / "report.json").read_text())["outcome"] == "unfinished"
    with opened(tmp_path / "history.sqlite") as found:
        assert [each.word for each in Store(found).runs()] == ["PASS", "interrupted"]
        assert [each.outcome for each in Store(found).days()] == ["unfinished"]
    machine.planted = {}
    code, said, _ = called("resume", "--yes", "--json")
    found = json.loads(said)
    assert (code, found["outcome"]) == (0, "done")
    assert machine.ran == ["killed-leader", "slow-follower-disk", "slow-follower-disk"]
    assert [entry["step"] for entry in found["interrupted"]] == ["run:second:1"]
    assert len(found["sessions"]) == 2


def test_ctrl_c_while_a_run_is_judged_costs_no_second_run(machine, tmp_path, monkeypatch):
    with monkeypatch.context() as judging:
        judging.setattr("hashidrill.gamedays.gameday.player.judge_and_report", interrupted)
        assert called("run", day_file(tmp_path, **UNATTENDED), "--yes")[0] == 130
    code, said, err = called("resume", "--yes", "--json")
    found = json.loads(said)
    assert (code, found["outcome"], found["verdict"], found["interrupted"]) == (0, "done", "PASS", [])
    assert machine.ran == ["killed-leader", "slow-follower-disk"]
    assert "first: it had ended before the day was interrupted, and is judged now: PASS" in unfolded(err)
    assert all(run["questions"] and run["report"] for run in found["runs"])
    with opened(tmp_path / "history.sqlite") as database:
        assert len(Store(database).runs()) == 2


@pytest.mark.lie
def test_a_recording_of_a_run_that_had_ended_counts_only_as_a_whole(machine, tmp_path, monkeypatch):
    """Planted: somebody changed it meanwhile."""
    with monkeypatch.context() as judging:
        judging.setattr("hashidrill.gamedays.gameday.player.judge_and_report", interrupted)
        called("run", day_file(tmp_path, **UNATTENDED), "--yes")
    [left] = (the_day(tmp_path) / "runs").iterdir()
    (left / "run.json").write_text("{}")
    code, _, _ = called("resume", "--yes")
    assert (code, machine.ran) == (0, ["killed-leader", "killed-leader", "slow-follower-disk"])


def test_a_day_interrupted_with_a_fault_that_stays_is_exit_code_4(machine, tmp_path):
    machine.planted = {"killed-leader": {"stops": True, "outcome": "revert"}}
    assert called("run", day_file(tmp_path, **UNATTENDED), "--yes")[0] == 4


@pytest.mark.lie
def test_nothing_begins_again_while_a_fault_of_an_interrupted_run_may_be_in_force(machine, tmp_path, monkeypatch):
    machine.planted = {"killed-leader": {"stops": True, "outcome": "revert"}}
    called("run", day_file(tmp_path, **UNATTENDED), "--yes")
    healed, swept = [], []
    still = {"stuck": ["disk.latency-0"]}

    async def heal_run(path):
        healed.append(path)
        return Healed(path, died=False, **still)

    monkeypatch.setattr(gameday, "heal_run", heal_run)
    monkeypatch.setattr(gameday, "sweep", lambda: swept.append(1))
    machine.planted = {}
    code, _, said = called("resume", "--yes")
    assert (code, machine.ran) == (4, ["killed-leader"])
    [left] = (the_day(tmp_path) / "runs").iterdir()
    assert healed == [left]
    assert f"{left}: a fault may still be in force: disk.latency-0; `hashidrill heal {left}`" in said
    still = {"refused": "it ran on another machine"}
    code, _, said = called("resume", "--yes")
    assert (code, machine.ran) == (4, ["killed-leader"])
    assert "may still be in force: it ran on another machine" in said
    still = {"ended": ["disk.latency-0"]}
    code, said, _ = called("resume", "--yes", "--json")
    assert (code, json.loads(said)["outcome"], swept) == (0, "done", [1])
    assert machine.ran == ["killed-leader", "killed-leader", "slow-follower-disk"]


@pytest.mark.lie
def test_ctrl_c_while_the_webhook_is_told_keeps_the_verdict_and_stops_the_day(machine, tmp_path, monkeypatch):
    path = day_file(tmp_path, **UNATTENDED)
    called("run", path, "--yes")
    machine.planted = {"killed-leader": {"slow_until": 40.0}}

    with monkeypatch.context() as waiting:
        waiting.setattr("hashidrill.gamedays.history.on_turn_red.send", interrupted)
        code, said, _ = called("run", path, "--yes", "--notify", "https://hooks.example.org/x")
    assert code == 130
    assert "turned from PASS to FAIL" in unfolded(said)
    assert machine.ran[2:] == ["killed-leader"]
    code, said, _ = called("resume", "--yes", "--json")
    found = json.loads(said)
    assert (code, found["verdict"], found["interrupted"]) == (1, "FAIL", [])
    assert machine.ran[2:] == ["killed-leader", "slow-follower-disk"]


def interrupted(*_, **__):
    raise KeyboardInterrupt


class Keyboard(io.StringIO):
    """Standard input that is a terminal, or is none."""

    def __init__(self, *, terminal=True):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.mark.lie
@pytest.mark.parametrize(("terminal", "asks", "times"), [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_keys_typed_during_a_run_answer_no_question(machine, tmp_path, monkeypatch, *, terminal, asks, times):
    forgotten, keyboard = [], Keyboard(terminal=terminal)
    monkeypatch.setattr(gameday.termios, "tcflush", lambda *how: forgotten.append((*how, list(machine.ran))))
    monkeypatch.setattr(gameday.sys, "stdin", keyboard)
    plan = planned(tmp_path)
    go = gameday._Day(plan, None, Console(file=io.StringIO()), Memory(), None, yes=not asks, plain=True)._play
    go(plan.runs[0], tmp_path / "runs")
    assert forgotten == [(keyboard, termios.TCIFLUSH, ["killed-leader"])] * times


def test_a_terminal_that_is_closed_during_a_run_costs_no_result(machine, tmp_path, monkeypatch):
    keyboard = Keyboard()
    keyboard.close()
    keyboard.isatty = lambda: True
    monkeypatch.setattr(gameday.sys, "stdin", keyboard)
    plan = planned(tmp_path)
    go = gameday._Day(plan, None, Console(file=io.StringIO()), Memory(), None, yes=False, plain=True)._play
    assert go(plan.runs[0], tmp_path / "runs")["verdict"] == "PASS"
    assert machine.ran == ["killed-leader"]


def test_a_day_that_stops_at_an_error_says_how_to_go_on(machine, tmp_path):
    machine.planted = {"killed-leader": {"error": HashidrillError("planted: the binary is gone")}}
    code, said, error = called("run", day_file(tmp_path, **UNATTENDED), "--yes")
    assert code == 2
    assert "the binary is gone" in error
    assert "once this is fixed, go on with: hashidrill gameday resume" in unfolded(said)
    machine.planted = {}
    assert called("resume", the_day(tmp_path), "--yes")[0] == 0


def test_a_day_is_led_from_a_pipe_and_resumed_where_the_pipe_ended(machine, tmp_path):
    path = day_file(tmp_path)
    code, said, _ = called("run", path, typed="y\ny\nanother\n2s\n")
    assert code == 130
    assert "Step 2 of 4" in said
    rest = "same\n30s\n\nnotes\n\n\n\n\n\ny\n\n\n\ny\n"
    code, said, _ = called("resume", typed=rest)
    assert code == 0, said
    assert machine.ran == ["killed-leader", "slow-follower-disk"]
    found = json.loads((the_day(tmp_path) / "report.json").read_text())
    answers = [answer["answer"] for question in found["runs"][0]["questions"] for answer in question["answers"]]
    assert answers == ["another", "same", "2s", "30s"]


def my_own(tmp_path):
    """An experiment that may change, and a day with it."""
    text = Path(__file__).resolve().parents[4] / "experiments"
    mine = tmp_path / "mine.yaml"
    mine.write_text((text / "raft/frozen-leader.yaml").read_text().replace("../bases/", f"{text}/bases/"))
    experiments = [{"experiment": "raft/killed-leader", "name": "first"}, {"experiment": "mine.yaml", "name": "second"}]
    return mine, experiments


@pytest.mark.lie
def test_no_report_tells_of_an_experiment_that_changed_since_it_ran(machine, tmp_path):
    del machine
    mine, experiments = my_own(tmp_path)
    assert called("run", day_file(tmp_path, **UNATTENDED, experiments=experiments), "--yes")[0] == 0
    folder = the_day(tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    as_it_was = mine.read_text()
    mine.write_text(as_it_was.replace("title: ", "title: Another one, not "))
    code, _, said = called("report")
    assert code == 2
    assert "second changed since this day began" in said
    assert f"the earlier report is still there ({folder / 'report.html'})" in said
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    mine.write_text(as_it_was)
    assert called("report")[0] == 0


@pytest.mark.lie
def test_an_experiment_that_changed_since_the_day_began_is_not_run(machine, tmp_path):
    mine, experiments = my_own(tmp_path)
    machine.planted = {"killed-leader": {"stops": True}}
    assert called("run", day_file(tmp_path, **UNATTENDED, experiments=experiments), "--yes")[0] == 130
    mine.write_text(mine.read_text() + "# changed\n")
    code, _, said = called("resume", "--yes")
    assert (code, machine.ran) == (2, ["killed-leader"])
    assert "second changed since this day began" in said


@pytest.mark.lie
def test_a_day_whose_own_file_was_edited_does_not_go_on_and_is_not_reported(machine, tmp_path):
    """A run that FAILED, taken out of it, left a day that PASSED."""
    machine.planted = {"killed-leader": {"stops": True}}
    assert called("run", day_file(tmp_path, **UNATTENDED), "--yes")[0] == 130
    own = the_day(tmp_path) / "day.yaml"
    own.write_text(own.read_text() + "# changed\n")
    for command in (["resume", "--yes"], ["report"]):
        code, _, said = called(*command)
        assert code == 2
        assert "day.yaml changed since this day began" in said


def test_a_report_is_written_again_from_the_journal(machine, tmp_path):
    del machine
    called("run", day_file(tmp_path, **UNATTENDED), "--yes")
    folder = the_day(tmp_path)
    before = (folder / "report.html").read_text()
    for name in ("report.html", "report.md", "report.json"):
        (folder / name).unlink()
    for day in ([], ["last"], [folder], [folder.name]):
        assert called("report", *day)[0] == 0
        assert (folder / "report.html").read_text() == before
    assert json.loads(called("report", "--json")[1])["name"] == DAY["metadata"]["name"]


@pytest.mark.parametrize("command", ["resume", "report"])
def test_a_day_that_is_not_there_is_said(machine, tmp_path, command):
    del machine, tmp_path
    code, _, said = called(command)
    assert code == 2
    assert "begin one with `hashidrill gameday run FILE`" in said
    code, _, said = called(command, "last-week")
    assert code == 2
    assert "there is no day 'last-week'" in said


@pytest.mark.parametrize("width", [10, 40, 80])
def test_lines_are_folded_between_words_on_a_terminal_and_never_in_a_log(width):
    line = f"    {'a word ' * 30}and hashidrill gameday resume /a/path/that/is/longer/than/any/terminal/is/wide --yes"
    terminal = Console(file=io.StringIO(), force_terminal=True, width=width)
    found = folded(line, terminal)
    assert " ".join(part.strip() for part in found).split() == line.split()
    assert all(part.startswith("    ") for part in found)
    assert max(len(part) for part in found if "/" not in part) <= max(width, 30)
    assert folded(line, Console(file=io.StringIO(), width=width)) == [line]


def test_bytes_that_are_no_text_are_asked_for_again(machine, tmp_path):
    code, said, _ = called("run", day_file(tmp_path), typed=b"\xff\xfe\ny\n")
    assert (code, machine.ran) == (130, [])
    assert "type it again" in said


def test_there_is_nothing_to_resume_after_the_end(machine, tmp_path):
    del machine
    called("run", day_file(tmp_path, **UNATTENDED), "--yes")
    code, _, said = called("resume", "--yes")
    assert code == 2
    assert "no unfinished day" in said


# with a page


class Led:
    """A room without a network, whose lead answers on the page: `clicks` are labels, or what is typed there."""

    def __init__(self, *clicks):
        self.room, self.left = Room(), list(clicks)
        self.room.lead_url = self.room.watch_url = "http://127.0.0.1:1/token/"
        self.room.on_change = self.answer

    @contextlib.contextmanager
    def serve(self, port, *, elsewhere=""):
        assert port == 8800
        yield self.room

    def tree(self, audience=Audience.OPERATOR):
        return json.loads(self.room.since(audience, None).data)

    def answer(self):
        question = self.tree()["question"]
        if question is not None and self.left:
            buttons = {each["label"]: each["answer"] for each in question["choices"]}
            said = self.left.pop(0)
            assert self.room.answer(question["id"], buttons.get(said, said))


def test_a_day_without_a_terminal_is_led_on_its_page(machine, monkeypatch, tmp_path, capsys):
    first = ["Yes", "Yes", "ada", "another", "soon", "4s", "grace", "same", "", "", "Go", "seen", "Go on"]
    led = Led(*first, "", "Yes", "Skip it", "", "Yes")
    monkeypatch.setattr("hashidrill.gamedays.warroom.serving.serve", led.serve)
    with Path("/dev/null").open() as nobody:
        monkeypatch.setattr(gameday.sys, "stdin", nobody)
        with pytest.raises(typer.Exit) as ended:
            gameday.run(day_file(tmp_path), serve=True, port=8800, plain=True)
    assert led.left == []
    found = json.loads((the_day(tmp_path) / "report.json").read_text())
    assert ended.value.exit_code == found["exit_code"]
    assert [run["state"] for run in found["runs"]][1] == "skipped"
    assert machine.ran == ["killed-leader"]
    shown, watched = led.tree(), led.tree(Audience.TRAINEE)
    assert [run["verdict"] for run in shown["runs"]] == [found["runs"][0]["verdict"], ""]
    assert [each["answer"] for each in shown["predictions"]] == ["another", "4s", "same"]
    assert "killed-leader" not in json.dumps(watched)
    assert "http://127.0.0.1:1/token/" in capsys.readouterr().out
