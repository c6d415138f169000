"""A rehearsal is judged from its recording, reported and remembered: planted successes pass, planted lies do not."""

import datetime as dt
import json

import pytest
from typer.testing import CliRunner

from hashidrill.core.errors import RecordingError, UsageError
from hashidrill.core.experiment.conditions import Condition
from hashidrill.core.judging.judge import read_verdict
from hashidrill.core.judging.measure import SECOND
from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.core.recording.reader import Recording
from hashidrill.faces.cli import rehearse as command
from hashidrill.faces.cli.app import app
from hashidrill.gamedays.history.from_recording import record_run, run_from
from hashidrill.gamedays.history.store import Store, history_file, opened
from hashidrill.gamedays.runbooks.judge import as_verdict, ever_sick, judge_drill, rehearsal_verdict, users
from hashidrill.gamedays.runbooks.rehearsal import Rehearsal, badge_of, write_badge
from hashidrill.reports.timeline import timeline
from hashidrill.reports.write import report_of
from hashidrill.testing.recordings import RecordingBuilder
from rehearsals import ACT, DONE, EVERY, LEFT, PAGER, Drilled
from runbook_pages import page, text

pytestmark = pytest.mark.long


@pytest.fixture
def drilled(tmp_path):
    return lambda **changes: Drilled(tmp_path / "run", **changes).build()


def test_a_runbook_that_helps_passes(drilled):
    drill = drilled()
    assert (drill.verdict, drill.wrong, drill.harm, drill.invalid) == (Verdict.PASS, [], [], [])
    assert (drill.reached, drill.diagnosed_s, drill.acted_s, drill.exit_code) == ("slow-disk", 3, 7.5, 0)
    assert drill.back_s == pytest.approx(8, abs=1)


def test_hands_off_is_right_where_it_is_another_illness(drilled):
    drill = drilled(look_alike=True)
    assert (drill.verdict, drill.wrong, drill.harm, drill.invalid) == (Verdict.PASS, [], [], [])


@pytest.mark.lie
@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        # although users are back
        ({"reached": "lost-quorum"}, ["wrong diagnosis: lost-quorum, expected slow-disk (seen: commit_ms = 812.5)"]),
        # a diagnosis that nothing in the recording shows is a claim
        ({"observed": False}, ["slow-disk rests on commit_ms, which was not observed in this run"]),
        (
            {"held": True},
            [
                "the confirm in line 34 succeeds before anything was done: it confirms nothing",
                "no confirm failed before the act, so the confirms prove nothing",
            ],
        ),
        (
            {"throughout_held": False},
            ["the confirm in line 38 must hold throughout, but fails before the act"],
        ),
        (
            {"outcome": "act-failed", "said": "line 30: the act on consul-1 ended with 1: no", "act_code": 1},
            ["line 30: the act on consul-1 ended with 1: no"],
        ),
    ],
)
def test_what_is_wrong_fails(drilled, changes, wrong):
    drill = drilled(**changes)
    assert drill.verdict is Verdict.FAIL
    assert drill.wrong == wrong


@pytest.mark.lie
def test_users_who_are_not_back_are_seen_whatever_the_runbook_says(drilled):
    drill = drilled(well_from=LEFT + 1)  # as soon as the fault is really gone
    assert (drill.verdict, drill.back_s) == (Verdict.FAIL, None)
    assert all("users are not back" in text for text in drill.wrong)
    assert len(drill.wrong) == 2  # by the steady state, and by what the experiment expects of the recovery


@pytest.mark.lie
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gone": ["0-disk.latency-consul-1"]}, "ended by itself before the runbook acted"),
        ({"sick_from": 99}, "users were well before the runbook acted: there was nothing to get back"),
        *(({"end": end}, "") for end in ("crashed", "fault", "steady-state", "interrupted")),
    ],
)
def test_what_is_nobodys_success_and_a_run_that_did_not_end_as_planned_prove_nothing(drilled, changes, why):
    drill = drilled(**changes)
    assert drill.verdict is Verdict.INVALID
    assert why in drill.invalid[0]


@pytest.mark.lie
def test_an_observer_that_was_silent_before_the_act_spoils_nothing(tmp_path):
    """The fault was held by the engine until the end; only a fault that was seen gone is."""
    made = Drilled(tmp_path / "run")
    made.built.event(
        "fault.faded",
        at=ACT - 2,
        fault_id="disk.latency-0",
        evidence={"ok": False, "asked": "disk.latency", "measured": "the observer never answered", "figures": {}},
    )
    drill = made.build()
    assert (drill.verdict, drill.invalid) == (Verdict.PASS, [])


@pytest.mark.lie
@pytest.mark.parametrize("sick", [True, False])
def test_a_slow_load_hides_no_users_who_were_sick_before_somebody_acted_at_once(tmp_path, sick):
    """Its windows are 20 s long, and whoever follows a short runbook acts after a second."""
    made = Drilled(tmp_path / "run", sick_from=PAGER - 5 if sick else 99)
    made.built.load("batch", rate=0.5, start=4, end=58)
    made.build()
    recording = Recording(tmp_path / "run")
    recording.experiment.steady_state.require.append(Condition.parse("kv-writes.errors < 1%"))  # beside the slow one
    begin_ns, end_ns = round(PAGER * SECOND), round((PAGER + 1) * SECOND)
    assert ever_sick(recording, begin_ns, end_ns) is sick
    assert users(recording, begin_ns, end_ns).looks[0].end_ns > end_ns  # none of these says anything about before


def test_where_redundancy_is_what_is_lost_users_may_be_well_before_and_have_to_be_afterwards(drilled, tmp_path):
    assert drilled(sick_from=99, users="well").verdict is Verdict.PASS
    assert Drilled(tmp_path / "other", well_from=LEFT + 1, users="well").build().verdict is Verdict.FAIL


@pytest.mark.lie
def test_users_who_no_longer_come_are_not_back(drilled):
    drill = drilled(comes_until=ACT)
    assert drill.verdict is not Verdict.PASS
    assert any("kv-writes stopped: 0.5/s instead of 50.0/s" in text for text in drill.wrong)


def test_what_was_lost_is_harm(drilled):
    drill = drilled(lost=True)
    assert drill.verdict is Verdict.FAIL
    assert "data was lost" in drill.harm[0]


SERVERS = {f"consul-{n}/consul": "" for n in (1, 2, 3)}
RESTARTED = "a healthy server was restarted: consul-{}/consul"


@pytest.mark.lie
@pytest.mark.parametrize(
    ("agents", "harm"),
    [
        # the sick server, and a client agent
        ([(ACT + 0.2, {"consul-1/consul": ""}), (ACT + 1, {"consul-1/consul": "1@2"})], []),
        ([(ACT + 0.2, {"client-1/consul": "9@2"})], []),
        ([(ACT + 0.2, {"consul-2/consul": ""}), (ACT + 1, {"consul-2/consul": "2@2"})], [RESTARTED.format(2)]),
        # between two looks: seen by its process
        ([(ACT + 0.2, {"consul-3/consul": "3@2"})], [RESTARTED.format(3)]),
        # all servers: a lost quorum too
        (
            [(ACT + 0.2, SERVERS), (ACT + 2, dict.fromkeys(SERVERS, "7@7"))],
            ["the quorum of consul was lost by hand: 0 of 3 servers ran", RESTARTED.format(2), RESTARTED.format(3)],
        ),
        # by nobody, before the act
        ([(PAGER + 1, {"consul-2/consul": "2@2"})], []),
        # without a quorum: that is how a lost one is repaired, peers.json is read at the start
        (
            [
                (PAGER + 1, {"consul-1/consul": "", "consul-2/consul": ""}),
                (ACT + 0.2, {"consul-3/consul": ""}),
                (ACT + 1, {"consul-3/consul": "3@2"}),
            ],
            [],
        ),
    ],
)
def test_a_restart_of_a_healthy_server_is_harm(drilled, agents, harm):
    drill = drilled(agents=agents)
    assert drill.harm == harm
    if harm:
        assert (drill.verdict, drill.exit_code) == (Verdict.FAIL, 1)


def test_in_a_look_alike_an_act_is_harm_even_if_nothing_came_of_it_and_the_wrong_word_fails(drilled, tmp_path):
    drill = drilled(look_alike=True, acts=True)
    assert drill.verdict is Verdict.FAIL
    assert drill.harm == [
        (
            "it acted on consul-1, where it should have changed nothing: this fault is not the one "
            "that the runbook treats"
        )
    ]
    assert Drilled(tmp_path / "other", look_alike=True, reached="slow-disk").build().verdict is Verdict.FAIL


def test_a_fault_that_was_not_reverted_exits_with_4(drilled):
    assert drilled(end="revert").exit_code == 4


def test_a_recording_that_is_none_of_a_rehearsal_is_refused(tmp_path):
    plain = RecordingBuilder(tmp_path / "run").fault("disk.latency", at=10, until=30).load("kv-writes").build()
    with pytest.raises(RecordingError, match="not the recording of a rehearsal"):
        judge_drill(plain.path)


# what a rehearsal comes to


def test_the_worst_run_decides(drilled, tmp_path):
    bad = Drilled(tmp_path / "other", look_alike=True, acts=True).build()
    rehearsal = Rehearsal(page(), [drilled(), bad], tmp_path)
    assert (rehearsal.verdict, rehearsal.exit_code) == (Verdict.FAIL, 1)
    said = list(rehearsal.lines())
    assert said[0].startswith("PASS    raft/slow-leader-disk: slow-disk after 3s, acted after 8s, users back after")
    assert said[1].startswith("FAIL    healthy (look-alike): not-this after 3s")
    assert "        harm: it acted on consul-1" in "\n".join(said)


def test_one_without_look_alikes_says_what_it_does_not_show(drilled, tmp_path):
    assert "leaves other faults alone" in Rehearsal(page(), [drilled()], tmp_path).notes[0]


def test_a_badge_takes_two_look_alikes(drilled, tmp_path):
    day = dt.date(2026, 11, 23)
    good, off = drilled(), Drilled(tmp_path / "off", look_alike=True).build()
    with pytest.raises(UsageError, match="no badge"):
        badge_of(Rehearsal(page(), [good, off], tmp_path), day)
    other = Drilled(tmp_path / "two", look_alike=True).build()
    other.experiment = "raft/slow-follower-disk"
    line = badge_of(Rehearsal(page(), [good, off, other], tmp_path), day)
    alikes = "look-alikes healthy, raft/slow-follower-disk."
    assert line == f"> Rehearsed 2026-11-23 with Consul 1.22.2: raft/slow-leader-disk; {alikes}"
    file = tmp_path / "runbook-slow.md"
    file.write_text("---\n---\n\n# Runbook: slow\n\n> Never rehearsed.\n\ntext\n")
    write_badge(file, line)
    write_badge(file, line.replace("2026", "2027"))
    assert file.read_text() == f"---\n---\n\n# Runbook: slow\n\n{line.replace('2026', '2027')}\n\ntext\n"


QUORUM = {"agents": [(30.5, {"consul-2/consul": "", "consul-3/consul": ""}), (31.5, EVERY)]}
NOBODY_BACK, WRONG_WORD = {"well_from": LEFT + 1}, {"reached": "lost-quorum"}
ENDED = {"gone": ["0-disk.latency-consul-1"]}
HELD, BROKEN, INVALID = Finding.HELD, Finding.BROKEN, Finding.INVALID


def judgements(drill):
    assert as_verdict(drill).verdict is drill.verdict
    return {each.hypothesis: each for each in as_verdict(drill).judgements}


def findings(drill):
    return {name: each.finding for name, each in judgements(drill).items()}


@pytest.mark.parametrize(
    ("changes", "diagnosis", "back", "harm"),
    [
        ({}, HELD, HELD, HELD),
        (WRONG_WORD, BROKEN, HELD, HELD),
        (NOBODY_BACK, HELD, BROKEN, HELD),
        (QUORUM, HELD, HELD, BROKEN),
        (ENDED, INVALID, INVALID, INVALID),
    ],
)
def test_the_verdict_says_what_did_not_hold(tmp_path, changes, diagnosis, back, harm):
    drill = Drilled(tmp_path / "run", **changes).build()
    assert findings(drill) == {"right_diagnosis": diagnosis, "users_are_back": back, "no_harm": harm}


def test_harm_in_a_run_that_proves_nothing_else_is_harm(tmp_path):
    drill = Drilled(tmp_path / "run", **ENDED, **QUORUM).build()
    assert drill.verdict is as_verdict(drill).verdict is Verdict.FAIL


def test_in_a_look_alike_nobody_has_to_be_brought_back(tmp_path):
    drill = Drilled(tmp_path / "run", look_alike=True).build()
    assert findings(drill) == {"right_diagnosis": HELD, "no_harm": HELD}
    drill = Drilled(tmp_path / "acts", look_alike=True, acts=True).build()
    assert (findings(drill)["no_harm"], drill.verdict) == (BROKEN, Verdict.FAIL)


def test_what_was_right_says_what_it_rests_on_and_how_long_it_took(tmp_path):
    found = judgements(Drilled(tmp_path / "run").build())
    assert found["right_diagnosis"].text == "slow-disk (commit_ms = 812.5)"
    assert found["right_diagnosis"].figures == {"diagnosed_s": 3.0}
    assert found["users_are_back"].figures["acted_s"] == 7.5
    never = judgements(Drilled(tmp_path / "never", **NOBODY_BACK).build())
    assert never["users_are_back"].figures["back_s"] == "never"


@pytest.mark.lie
def test_check_judges_the_runbook_and_not_the_experiment(tmp_path):
    """The method was cut short by the runbook: what the experiment expects of it means nothing."""
    Drilled(tmp_path / "run", **WRONG_WORD).build()
    done = CliRunner().invoke(app, ["check", str(tmp_path / "run"), "--json"], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert "wrong diagnosis: lost-quorum" in done.stdout
    verdict = read_verdict(tmp_path / "run")
    assert verdict == rehearsal_verdict(Recording(tmp_path / "run"))
    assert [each.hypothesis for each in verdict.judgements] == ["right_diagnosis", "users_are_back", "no_harm"]
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "run")], env={"COLUMNS": "200"}).stdout
    assert "users_are_back" in shown


def test_the_report_shows_the_runbook_step_by_step(tmp_path):
    Drilled(tmp_path / "run", said="<script>alert(1)</script>").build()
    recording = Recording(tmp_path / "run")
    page = report_of(recording, rehearsal_verdict(recording))[1].read_text()
    assert "The runbook, step by step" in page
    summary = (tmp_path / "run" / "summary.md").read_text()
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "run")]).stdout
    for told in ("observe commit", "on consul-1 (line 21)", "act on consul-1 (line 30)", "writes take seconds"):
        assert told in page
        assert told in summary
        assert told in shown
    assert "<script>alert(1)" not in page
    assert "right_diagnosis" in summary


def test_the_steps_are_on_the_clock_of_the_run(tmp_path):
    Drilled(tmp_path / "run").build()
    drawn = timeline(Recording(tmp_path / "run"))
    [lane] = [each for each in drawn["lanes"] if each["title"] == "runbook"]
    assert [(each["label"], each["end"]) for each in lane["segments"]] == [("observe", PAGER + 2), ("act", ACT)]
    marks = [(each["t"], each["label"]) for each in drawn["marks"] if each["kind"] == "runbook"]
    assert marks == [(PAGER, "pager"), (PAGER + 3, "decided: slow-disk"), (DONE, "done")]
    assert {panel["of"] for panel in drawn["panels"] if panel.get("chosen")}


def test_a_rehearsal_is_a_series_of_its_own_in_the_history(tmp_path):
    """It never counts among the runs of its experiment, whose expectations it was not judged by."""
    Drilled(tmp_path / "run").build()
    run = run_from(Recording(tmp_path / "run"))
    assert str(run.series) == "runbook-slow (raft/slow-leader-disk)"
    assert run.verdict is Verdict.PASS
    assert run.figures["users_are_back.acted_s"].value == 7.5


def test_a_runbook_that_no_longer_helps_is_a_turn(tmp_path):
    Drilled(tmp_path / "one").build()
    Drilled(tmp_path / "two", **NOBODY_BACK).build()
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
            about = {"look_alike": course.look_alike, "diagnosis": course.against.diagnosis}
            Drilled(path, **about, info=course.info(runbook), **do.planted).build()
            return path

        return play

    def do(*words):
        ran.clear()
        full = ["rehearse", str(page), "--runs", str(tmp_path / "runs"), *map(str, words)]
        done = CliRunner().invoke(app, full, env={"COLUMNS": "200"})
        told = done.output + str(done.exception or "")
        return getattr(done.exception, "exit_code", done.exit_code), " ".join(told.split()), list(ran)

    do.planted, do.page = {}, page
    monkeypatch.setattr(command, "player", player)
    return do


def folders(tmp_path):
    return sorted((tmp_path / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)


def test_the_command_reports_and_remembers_each_run(rehearse, tmp_path):
    code, said, ran = rehearse("--look-alike", "healthy")
    assert (code, ran) == (0, ["raft/slow-leader-disk", "healthy"]), said
    [folder] = folders(tmp_path)
    assert len(list(folder.glob("*/report.html"))) == 2
    for name in ("report.html", "report.md"):
        report = (folder / name).read_text()
        for told in (
            "the runbook led to slow-disk 3 s after the pager, and users were back after 8 s",
            "It changed nothing on healthy, where nothing had to be changed",
            "Not proven: that it helps with other versions",
            "act on consul-1 (line 30)",
        ):
            assert told in report.replace("\\", "")
        assert "raft-slow-leader-disk/report.html" in report or name == "report.md"
    found = json.loads((folder / "rehearsal.json").read_text())
    assert [step["what"] for step in found["drills"][0]["steps"]] == [
        "pager",
        "observe",
        "decided",
        "proof",
        "act",
        "done",
    ]
    assert "report.html" in said
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
    rehearse.planted = WRONG_WORD
    rehearse("--look-alike", "none")
    [failed] = folders(tmp_path)
    rehearse.planted = {}
    assert rehearse("--with", failed)[0] == 1
    rehearse.planted = ENDED
    rehearse("--look-alike", "none")
    rehearse.planted = {}
    code, _, ran = rehearse("--with", folders(tmp_path)[-1])
    assert (code, ran[0]) == (0, "raft/slow-leader-disk")


@pytest.mark.lie
def test_the_report_of_a_rehearsal_that_failed_or_proves_nothing_claims_nothing(rehearse, tmp_path):
    for planted, told in (
        (WRONG_WORD, "wrong diagnosis: lost-quorum, expected slow-disk"),
        (ENDED, "this run proves nothing: the fault had ended by itself"),
    ):
        rehearse.planted = planted
        rehearse("--look-alike", "none")
        report = (folders(tmp_path)[-1] / "report.md").read_text().replace("\\", "")
        assert told in report
        assert "the runbook led to" not in report
        assert "no look-alike was rehearsed" in report


@pytest.mark.lie
def test_runs_of_other_blocks_count_for_nothing(rehearse, tmp_path):
    rehearse("--look-alike", "none")
    [first] = folders(tmp_path)
    rehearse.page.write_text(text(("commit_ms > 300 ", "commit_ms > 400 ")))
    code, said, ran = rehearse("--with", first)
    assert (code, ran) == (2, [])
    assert "has been changed since" in said
    assert rehearse("--with", tmp_path)[0] == 2
