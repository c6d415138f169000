"""A rehearsal is judged, reported and remembered like any run: by what the runbook did, not by the experiment."""

import pytest
from typer.testing import CliRunner

from hashidrill.core.judging.judge import read_verdict
from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.core.recording.reader import Recording
from hashidrill.faces.cli import rehearse as command
from hashidrill.faces.cli.app import app
from hashidrill.gamedays.history.database import opened
from hashidrill.gamedays.history.place import history_file
from hashidrill.gamedays.history.store import Store, record_run
from hashidrill.gamedays.history.taken import taken
from hashidrill.gamedays.runbooks.verdict import as_verdict, rehearsal_verdict
from hashidrill.reports.write import report_of
from rehearsals import EVERY, LEFT, Drilled
from runbook_pages import text


def findings(drill):
    return {each.hypothesis: each.finding for each in as_verdict(drill).judgements}


def broken_quorum(made):
    made.agents = [(30.5, {"consul-2/consul": "", "consul-3/consul": ""}), (31.5, EVERY)]


def nobody_back(made):
    made.well_from = LEFT + 1


def wrong_word(made):
    made.reached = "lost-quorum"


def ended_by_itself(made):
    made.gone = ["0-disk.latency-consul-1"]


HELD, BROKEN, INVALID = Finding.HELD, Finding.BROKEN, Finding.INVALID


@pytest.mark.parametrize(
    ("change", "diagnosis", "back", "harm"),
    [
        (lambda _: None, HELD, HELD, HELD),
        (wrong_word, BROKEN, HELD, HELD),
        (nobody_back, HELD, BROKEN, HELD),
        (broken_quorum, HELD, HELD, BROKEN),
        (ended_by_itself, INVALID, INVALID, INVALID),
    ],
)
def test_the_verdict_says_what_did_not_hold(tmp_path, change, diagnosis, back, harm):
    made = Drilled(tmp_path / "run")
    change(made)
    drill = made.build()
    assert findings(drill) == {"right_diagnosis": diagnosis, "users_are_back": back, "no_harm": harm}
    assert as_verdict(drill).verdict is drill.verdict


def test_harm_in_a_run_that_proves_nothing_else_is_harm(tmp_path):
    made = Drilled(tmp_path / "run")
    ended_by_itself(made)
    broken_quorum(made)
    drill = made.build()
    assert drill.verdict is as_verdict(drill).verdict is Verdict.FAIL


def test_in_a_look_alike_nobody_has_to_be_brought_back(tmp_path):
    made = Drilled(tmp_path / "run", look_alike=True, diagnosis="not-this")
    drill = made.build()
    assert findings(drill) == {"right_diagnosis": HELD, "no_harm": HELD}
    made = Drilled(tmp_path / "acts", look_alike=True, diagnosis="not-this")
    made.acts = True
    drill = made.build()
    assert findings(drill)["no_harm"] is BROKEN
    assert drill.verdict is as_verdict(drill).verdict is Verdict.FAIL


def test_what_was_right_says_what_it_rests_on_and_how_long_it_took(tmp_path):
    judgements = {each.hypothesis: each for each in as_verdict(Drilled(tmp_path / "run").build()).judgements}
    assert judgements["right_diagnosis"].text == "slow-disk (commit_ms = 812.5)"
    assert judgements["right_diagnosis"].figures == {"diagnosed_s": 3.0}
    assert judgements["users_are_back"].figures["acted_s"] == 7.5


def test_users_who_never_come_back_are_a_figure_too(tmp_path):
    made = Drilled(tmp_path / "run")
    nobody_back(made)
    [back] = [each for each in as_verdict(made.build()).judgements if each.hypothesis == "users_are_back"]
    assert back.figures["back_s"] == "never"


@pytest.mark.lie
def test_check_judges_the_runbook_and_not_the_experiment(tmp_path):
    """The method was cut short by the runbook: what the experiment expects of it means nothing."""
    made = Drilled(tmp_path / "run")
    wrong_word(made)
    made.build()
    done = CliRunner().invoke(app, ["check", str(tmp_path / "run"), "--json"], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert "wrong diagnosis: lost-quorum" in done.stdout
    verdict = read_verdict(tmp_path / "run")
    assert verdict == rehearsal_verdict(Recording(tmp_path / "run"))
    assert [each.hypothesis for each in verdict.judgements] == ["right_diagnosis", "users_are_back", "no_harm"]
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "run")], env={"COLUMNS": "200"}).stdout
    assert "users_are_back" in shown


def test_the_report_shows_the_runbook_step_by_step(tmp_path):
    made = Drilled(tmp_path / "run")
    made.said = "<script>alert(1)</script>"
    made.build()
    recording = Recording(tmp_path / "run")
    page = report_of(recording, rehearsal_verdict(recording))[1].read_text()
    assert "The runbook, step by step" in page
    for told in ("observe (line 21)", "act (line 30)", "writes take seconds"):
        assert told in page
    assert "<script>alert(1)" not in page
    assert "right_diagnosis" in (tmp_path / "run" / "summary.md").read_text()


def test_a_rehearsal_is_a_series_of_its_own_in_the_history(tmp_path):
    """It never counts among the runs of its experiment, whose expectations it was not judged by."""
    Drilled(tmp_path / "run").build()
    run = taken(Recording(tmp_path / "run"))
    assert str(run.series) == "runbook-slow (raft/slow-leader-disk)"
    assert run.verdict is Verdict.PASS
    assert run.figures["users_are_back.acted_s"].value == 7.5


def test_a_runbook_that_no_longer_helps_is_a_turn(tmp_path):
    Drilled(tmp_path / "one").build()
    made = Drilled(tmp_path / "two")
    nobody_back(made)
    made.build()
    assert record_run(tmp_path / "one").turn is None
    assert record_run(tmp_path / "two").turn.now.verdict is Verdict.FAIL


@pytest.fixture
def rehearse(tmp_path, monkeypatch):
    """The command on planted recordings: `do(*words)` is (exit code, output, what was run)."""
    page = tmp_path / "runbook-slow.md"
    page.write_text(text())
    ran = []
    monkeypatch.setattr(command, "check_tools", lambda _: None)

    def player(runbook, folder, events):
        def play(course):
            ran.append(course.name)
            path = folder / course.name.replace("/", "-")
            made = Drilled(path, look_alike=course.look_alike, diagnosis=course.against.diagnosis)
            made.info = course.info(runbook)
            do.planted(made)
            made.build()
            return path

        return play

    def do(*words):
        ran.clear()
        full = ["rehearse", str(page), "--runs", str(tmp_path / "runs"), *map(str, words)]
        done = CliRunner().invoke(app, full, env={"COLUMNS": "200"})
        told = done.output + str(done.exception or "")
        return getattr(done.exception, "exit_code", done.exit_code), " ".join(told.split()), list(ran)

    do.planted, do.page = (lambda made: None), page
    monkeypatch.setattr(command, "player", player)
    return do


def folders(tmp_path):
    return sorted((tmp_path / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)


def test_the_command_reports_and_remembers_each_run(rehearse, tmp_path):
    code, said, ran = rehearse("--look-alike", "healthy")
    assert (code, ran) == (0, ["raft/slow-leader-disk", "healthy"]), said
    [folder] = folders(tmp_path)
    assert len(list(folder.glob("*/report.html"))) == 2
    with opened(history_file()) as database:
        known = [str(each) for each in Store(database).series()]
    assert known == ["runbook-slow (healthy)", "runbook-slow (raft/slow-leader-disk)"]


def test_a_rehearsal_is_made_in_parts_and_the_badge_names_all_of_them(rehearse, tmp_path):
    assert rehearse("--look-alike", "none")[2] == ["raft/slow-leader-disk"]
    [first] = folders(tmp_path)
    rehearse.page.write_text(text(("# Runbook: slow", "# Runbook: slow, with more to read")))
    code, said, ran = rehearse("--with", first, "--badge")
    assert (code, ran) == (0, ["raft/slow-follower-disk", "healthy"]), said
    assert "raft/slow-leader-disk; look-alikes raft/slow-follower-disk, healthy." in rehearse.page.read_text()


def test_what_failed_earlier_fails_the_whole_and_what_proved_nothing_is_run_again(rehearse, tmp_path):
    rehearse.planted = wrong_word
    rehearse("--look-alike", "none")
    [failed] = folders(tmp_path)
    rehearse.planted = lambda made: None
    assert rehearse("--with", failed)[0] == 1
    rehearse.planted = ended_by_itself
    rehearse("--look-alike", "none")
    rehearse.planted = lambda made: None
    code, _, ran = rehearse("--with", folders(tmp_path)[-1])
    assert (code, ran[0]) == (0, "raft/slow-leader-disk")


@pytest.mark.lie
def test_runs_of_other_blocks_count_for_nothing(rehearse, tmp_path):
    rehearse("--look-alike", "none")
    [first] = folders(tmp_path)
    rehearse.page.write_text(text(("commit_ms > 300 ", "commit_ms > 400 ")))
    code, said, ran = rehearse("--with", first)
    assert (code, ran) == (2, [])
    assert "has been changed since" in said
    assert rehearse("--with", tmp_path)[0] == 2
