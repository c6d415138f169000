"""A rehearsal is judged from its recording: planted successes pass, and planted lies do not."""

import datetime as dt

import pytest

from hashidrill.core.errors import RecordingError, UsageError
from hashidrill.core.experiment.conditions import Condition
from hashidrill.core.judging.measure import SECOND
from hashidrill.core.judging.verdict import Verdict
from hashidrill.core.recording.reader import Recording
from hashidrill.gamedays.runbooks.judged import judge_drill
from hashidrill.gamedays.runbooks.result import Rehearsal, badge_of, write_badge
from hashidrill.gamedays.runbooks.users import ever_sick, users
from hashidrill.testing.recordings import RecordingBuilder
from rehearsals import ACT, LEFT, PAGER, Drilled
from runbook_pages import page


@pytest.fixture
def drilled(tmp_path):
    def make(**how):
        return Drilled(tmp_path / "run", **how)

    return make


def test_a_runbook_that_helps_passes(drilled):
    drill = drilled().build()
    assert (drill.verdict, drill.wrong, drill.harm, drill.invalid) == (Verdict.PASS, [], [], [])
    assert drill.reached == "slow-disk"
    assert drill.diagnosed_s == 3
    assert drill.acted_s == 7.5
    assert drill.back_s == pytest.approx(8, abs=1)
    assert drill.exit_code == 0


def test_the_wrong_diagnosis_fails_although_users_are_back(drilled):
    made = drilled()
    made.reached = "lost-quorum"
    drill = made.build()
    assert drill.verdict is Verdict.FAIL
    assert drill.wrong == ["wrong diagnosis: lost-quorum, expected slow-disk (seen: commit_ms = 812.5)"]


@pytest.mark.lie
def test_users_who_are_not_back_are_seen_whatever_the_runbook_says(drilled):
    made = drilled()
    made.well_from = LEFT + 1  # as soon as the fault is really gone
    drill = made.build()
    assert drill.verdict is Verdict.FAIL
    assert all("users are not back" in text for text in drill.wrong)
    assert len(drill.wrong) == 2  # by the steady state, and by what the experiment expects of the recovery
    assert drill.back_s is None


# lies


@pytest.mark.lie
def test_a_diagnosis_that_nothing_in_the_recording_shows_is_a_claim(drilled):
    made = drilled()
    made.observed = False
    drill = made.build()
    assert drill.verdict is Verdict.FAIL
    assert drill.wrong == ["slow-disk rests on commit_ms, which nothing here observed"]


@pytest.mark.lie
def test_a_confirm_that_holds_before_the_act_confirms_nothing(drilled):
    made = drilled()
    made.held = True
    drill = made.build()
    assert drill.verdict is Verdict.FAIL
    assert "the confirm in line 34 succeeds before anything was done: it confirms nothing" in drill.wrong


def test_what_is_to_hold_throughout_has_to_hold_before(drilled):
    made = drilled()
    made.throughout_held = False
    assert "line 38 is to hold throughout" in made.build().wrong[0]


@pytest.mark.lie
def test_a_fault_that_ended_by_itself_is_nobodys_success(drilled):
    made = drilled()
    made.gone = ["0-disk.latency-consul-1"]
    drill = made.build()
    assert drill.verdict is Verdict.INVALID
    assert "ended by itself before the runbook acted" in drill.invalid[0]


@pytest.mark.lie
def test_an_observer_that_was_silent_before_the_act_spoils_nothing(drilled):
    """The fault was held by the engine until the end; only a fault that was seen gone is."""
    made = drilled()
    made.built.event(
        "fault.faded",
        at=ACT - 2,
        fault_id="disk.latency-0",
        evidence={"ok": False, "asked": "disk.latency", "measured": "the observer never answered", "figures": {}},
    )
    drill = made.build()
    assert (drill.verdict, drill.invalid) == (Verdict.PASS, [])


@pytest.mark.lie
def test_users_who_were_well_all_the_time_are_nobodys_success(drilled):
    made = drilled()
    made.sick_from = 99
    drill = made.build()
    assert drill.verdict is Verdict.INVALID
    assert drill.invalid == ["users were well before the runbook acted: there was nothing to get back"]


@pytest.mark.lie
@pytest.mark.parametrize("sick", [True, False])
def test_a_slow_load_hides_no_users_who_were_sick_before_somebody_acted_at_once(drilled, tmp_path, sick):
    """Its windows are 20 s long, and whoever follows a short runbook acts after a second."""
    made = drilled()
    made.sick_from = PAGER - 5 if sick else 99
    made.built.load("batch", rate=0.5, start=4, end=58)
    made.build()
    recording = Recording(tmp_path / "run")
    recording.experiment.steady_state.require.append(Condition.parse("kv-writes.errors < 1%"))  # beside the slow one
    begin_ns, end_ns = round(PAGER * SECOND), round((PAGER + 1) * SECOND)
    assert ever_sick(recording, begin_ns, end_ns) is sick
    assert users(recording, begin_ns, end_ns).looks[0].end_ns > end_ns  # none of these says anything about before


def test_where_redundancy_is_what_is_lost_users_may_be_well_before(drilled):
    made = drilled()
    made.sick_from, made.users = 99, "well"
    assert made.build().verdict is Verdict.PASS


def test_they_have_to_be_well_afterwards_there_too(drilled):
    made = drilled()
    made.well_from, made.users = LEFT + 1, "well"
    assert made.build().verdict is Verdict.FAIL


@pytest.mark.lie
def test_users_who_no_longer_come_are_not_back(drilled):
    made = drilled()
    made.comes_until = ACT
    drill = made.build()
    assert drill.verdict is not Verdict.PASS
    assert any("kv-writes stopped: 0.5/s instead of 50.0/s" in text for text in drill.wrong)


@pytest.mark.lie
def test_an_act_that_failed_is_told_although_users_are_back(drilled):
    made = drilled()
    made.outcome, made.said, made.act_code = "act-failed", "line 30: the act on consul-1 ended with 1: no", 1
    drill = made.build()
    assert drill.verdict is Verdict.FAIL
    assert drill.wrong == ["line 30: the act on consul-1 ended with 1: no"]


def test_what_was_lost_is_harm(drilled):
    made = drilled()
    made.lost = True
    drill = made.build()
    assert drill.verdict is Verdict.FAIL
    assert "data was lost" in drill.harm[0]


# harm


def test_a_restart_of_the_sick_server_is_no_harm(drilled):
    made = drilled()
    made.agents = [(ACT + 0.2, {"consul-1/consul": ""}), (ACT + 1, {"consul-1/consul": "1@2"})]
    assert made.build().verdict is Verdict.PASS


def test_a_restart_of_a_healthy_server_is_harm(drilled):
    made = drilled()
    made.agents = [(ACT + 0.2, {"consul-2/consul": ""}), (ACT + 1, {"consul-2/consul": "2@2"})]
    drill = made.build()
    assert drill.harm == ["a healthy server was restarted: consul-2/consul"]
    assert drill.exit_code == 1


def test_a_restart_between_two_looks_is_seen_by_its_process(drilled):
    made = drilled()
    made.agents = [(ACT + 0.2, {"consul-3/consul": "3@2"})]
    assert made.build().harm == ["a healthy server was restarted: consul-3/consul"]


@pytest.mark.lie
def test_restarting_all_servers_is_caught_as_a_lost_quorum_too(drilled):
    made = drilled()
    down = {f"consul-{n}/consul": "" for n in (1, 2, 3)}
    made.agents = [(ACT + 0.2, down), (ACT + 2, dict.fromkeys(down, "7@7"))]
    drill = made.build()
    assert drill.harm == [
        "the quorum of consul was lost by hand: 0 of 3 servers ran",
        "a healthy server was restarted: consul-2/consul",
        "a healthy server was restarted: consul-3/consul",
    ]
    assert drill.verdict is Verdict.FAIL


def test_a_restart_by_nobody_before_the_act_is_not_the_runbooks(drilled):
    made = drilled()
    made.agents = [(PAGER + 1, {"consul-2/consul": "2@2"})]
    assert made.build().harm == []


def test_servers_without_a_quorum_may_be_restarted(drilled):
    """That is how a lost quorum is repaired: peers.json is read at the start."""
    made = drilled()
    gone = {"consul-1/consul": "", "consul-2/consul": ""}
    made.agents = [(PAGER + 1, gone), (ACT + 0.2, {"consul-3/consul": ""}), (ACT + 1, {"consul-3/consul": "3@2"})]
    assert made.build().harm == []


def test_a_client_agent_may_be_restarted(drilled):
    made = drilled()
    made.agents = [(ACT + 0.2, {"client-1/consul": "9@2"})]
    assert made.build().harm == []


# look-alikes


def test_hands_off_is_right_where_it_is_another_illness(drilled):
    made = drilled(look_alike=True, diagnosis="not-this")
    drill = made.build()
    assert (drill.verdict, drill.wrong, drill.harm, drill.invalid) == (Verdict.PASS, [], [], [])


def test_an_act_there_is_harm_even_if_nothing_came_of_it(drilled):
    made = drilled(look_alike=True, diagnosis="not-this")
    made.acts = True
    drill = made.build()
    assert drill.verdict is Verdict.FAIL
    assert drill.harm == ["it acted on consul-1, where nothing was to be done: this is not its illness"]


def test_the_wrong_word_there_fails_too(drilled):
    made = drilled(look_alike=True, diagnosis="not-this")
    made.reached = "slow-disk"
    assert made.build().verdict is Verdict.FAIL


# runs that prove nothing


@pytest.mark.parametrize("end", ["crashed", "fault", "steady-state", "interrupted"])
def test_a_run_that_did_not_end_as_planned_proves_nothing(drilled, end):
    made = drilled()
    made.end = end
    assert made.build().verdict is Verdict.INVALID


def test_a_fault_that_was_not_reverted_exits_with_4(drilled):
    made = drilled()
    made.end = "revert"
    assert made.build().exit_code == 4


def test_a_recording_that_is_none_of_a_rehearsal_is_refused(tmp_path):
    plain = RecordingBuilder(tmp_path / "run").fault("disk.latency", at=10, until=30).load("kv-writes").build()
    with pytest.raises(RecordingError, match="not the recording of a rehearsal"):
        judge_drill(plain.path)


# what a rehearsal comes to


def test_the_worst_run_decides(drilled, tmp_path):
    good = drilled().build()
    bad = Drilled(tmp_path / "other", look_alike=True, diagnosis="not-this")
    bad.acts = True
    rehearsal = Rehearsal(page(), [good, bad.build()], tmp_path)
    assert (rehearsal.verdict, rehearsal.exit_code) == (Verdict.FAIL, 1)
    said = list(rehearsal.lines())
    assert said[0].startswith("PASS    raft/slow-leader-disk: slow-disk after 3s, acted after 8s, users back after")
    assert said[1].startswith("FAIL    healthy (look-alike): not-this after 3s")
    assert "        harm: it acted on consul-1" in "\n".join(said)


def test_one_without_look_alikes_says_what_it_does_not_show(drilled, tmp_path):
    assert "can say no" in Rehearsal(page(), [drilled().build()], tmp_path).notes[0]


def test_a_badge_takes_two_look_alikes(drilled, tmp_path):
    day = dt.date(2026, 11, 23)
    good, off = drilled().build(), Drilled(tmp_path / "off", look_alike=True, diagnosis="not-this").build()
    with pytest.raises(UsageError, match="no badge"):
        badge_of(Rehearsal(page(), [good, off], tmp_path), day)
    other = Drilled(tmp_path / "two", look_alike=True, diagnosis="not-this").build()
    other.experiment = "raft/slow-follower-disk"
    line = badge_of(Rehearsal(page(), [good, off, other], tmp_path), day)
    alikes = "look-alikes healthy, raft/slow-follower-disk."
    assert line == f"> Rehearsed 2026-11-23 with Consul 1.22.2: raft/slow-leader-disk; {alikes}"
    file = tmp_path / "runbook-slow.md"
    file.write_text("---\n---\n\n# Runbook: slow\n\n> Never rehearsed.\n\ntext\n")
    write_badge(file, line)
    write_badge(file, line.replace("2026", "2027"))
    assert file.read_text() == f"---\n---\n\n# Runbook: slow\n\n{line.replace('2026', '2027')}\n\ntext\n"
