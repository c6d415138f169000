"""Which failure modes count as drilled: proven ones, of runs that counted, for a while."""

from dataclasses import replace

import pytest

from hashidrill.core.experiment.library import experiments
from hashidrill.core.judging.judge import judge
from hashidrill.core.recording.reader import Recording
from hashidrill.gamedays.history.coverage import badge, coverage
from hashidrill.gamedays.history.from_recording import run_from
from hashidrill.gamedays.history.store import Drilled
from hashidrill.testing.recordings import RecordingBuilder
from history_runs import BEGAN_S, planted, recorded

DAY_S = 86_400
NOW_S = BEGAN_S + 100 * DAY_S
SLOW_DISK = Drilled("disk.latency", "consul:leader")
NAMES = ("raft/slow-leader-disk", "raft/killed-leader", "stack/full-restart", "vault/killed-active")
LIBRARY = {name: path for name, path in experiments().items() if name in NAMES}


def drilled(number, days_ago, *modes, verdict="PASS", **more):
    run = planted(number, verdict)
    return replace(run, ended_s=NOW_S - days_ago * DAY_S, drilled=modes or (SLOW_DISK,), **more)


def covered(*runs, days=90, **how):
    return coverage(LIBRARY, runs, NOW_S, days, **how)


def row_of(found, mode=SLOW_DISK):
    [row] = [each for each in found.rows if each.mode == mode]
    return row


def test_every_failure_mode_of_the_experiments_is_there_with_the_shortest_one_that_has_it():
    found = covered()
    assert {str(row.mode): row.experiment for row in found.rows} == {
        "disk.latency on consul:leader": "raft/slow-leader-disk",
        "process.kill on consul:leader": "raft/killed-leader",
        "process.kill on consul:all": "stack/full-restart",
        "process.kill on nomad:clients": "stack/full-restart",
        "process.kill on nomad:servers": "stack/full-restart",
        "process.kill on vault:servers": "stack/full-restart",
        "process.kill on vault:active": "vault/killed-active",
    }
    assert (found.drilled, found.failing, found.unread) == (0, 0, ())


@pytest.mark.parametrize(
    ("runs", "counts"),
    [
        ([drilled(1, 1)], True),
        ([drilled(1, 1, verdict="FAIL")], True),
        ([drilled(1, 89)], True),
        ([drilled(1, 91)], False),
        ([drilled(1, 1, verdict="INVALID")], False),
        ([drilled(1, 1, verdict="FAIL", invalid=("fault x was not proven in force",))], False),
        ([drilled(1, 1, Drilled("disk.latency", "consul:one-follower"))], False),
        ([planted(1)], False),
        ([drilled(1, 200), drilled(2, 2), drilled(3, 1, verdict="INVALID")], True),
    ],
)
@pytest.mark.lie
def test_only_a_proof_of_a_run_that_counted_and_is_not_too_old_counts(runs, counts):
    assert row_of(covered(*runs)).drilled is counts


def test_the_last_run_that_counted_is_named_with_its_age():
    found = covered(drilled(2, 3, verdict="FAIL"), drilled(1, 20))
    assert row_of(found).last.id == "run-0002"
    assert row_of(found).age_days(NOW_S) == pytest.approx(3)
    assert found.text(90) == (
        "1 of 7 failure modes were drilled with proof in the last 90 days; 1 broke an expectation"
    )
    assert badge(found) == {
        "schemaVersion": 1,
        "label": "drilled",
        "message": "1 of 7 failure modes, 1 broken",
        "color": "red",
    }


def test_what_was_never_drilled_comes_first_then_the_longest_ago_then_what_broke():
    kill, restart = Drilled("process.kill", "consul:leader"), Drilled("process.kill", "consul:all")
    vault = Drilled("process.kill", "vault:active")
    runs = [drilled(1, 200, kill), drilled(2, 120, restart), drilled(3, 5), drilled(4, 1, vault, verdict="FAIL")]
    rows = covered(*runs).rows
    assert [row.last is None for row in rows] == [True, True, True, False, False, False, False]
    assert [row.mode for row in rows[3:]] == [kill, restart, vault, SLOW_DISK]


def test_what_was_tried_and_is_invalid_is_said_until_a_run_counts():
    invalid = drilled(1, 5, verdict="INVALID")
    assert row_of(covered(invalid)).tried.id == "run-0001"
    assert row_of(covered(invalid, drilled(2, 1))).tried is None
    assert row_of(covered(drilled(2, 9), invalid)).tried.id == "run-0001"


def test_of_what_was_never_drilled_the_first_is_what_most_experiments_have():
    every = coverage(experiments(), [], NOW_S, 90).rows
    assert [row.weight for row in every] == sorted((row.weight for row in every), reverse=True)
    assert every[0].weight > 5


def test_of_some_products_only_experiments_that_need_no_other_are_asked_for():
    assert {str(row.mode) for row in covered(products={"consul"}).rows} == {
        "disk.latency on consul:leader",
        "process.kill on consul:leader",
    }
    other = drilled(1, 1, Drilled("vault.seal", "vault:active"))
    assert len(covered(other, products={"consul"}).rows) == 2


def test_a_mode_that_no_experiment_has_any_more_counts_as_long_as_its_proof():
    gone = Drilled("disk.full", "consul:leader")
    assert row_of(covered(drilled(1, 1, gone)), gone).experiment == ""
    assert gone not in {row.mode for row in covered(drilled(1, 91, gone)).rows}


def test_an_experiment_with_an_error_is_named_and_the_others_are_counted(tmp_path):
    broken = tmp_path / "broken.yaml"
    broken.write_text("apiVersion: hashidrill/v1\nkind: Experiment\n")
    assert coverage({**LIBRARY, "mine": broken}, [], NOW_S, 90).unread == ("mine",)


@pytest.mark.lie
@pytest.mark.parametrize(("how", "modes"), [({}, [Drilled("disk.latency", "host:consul-1")]), ({"invalid": True}, [])])
def test_a_recording_says_what_was_proven(tmp_path, how, modes):
    recording = Recording(recorded(tmp_path, "one", **how).path)
    assert [*run_from(recording, judge(recording)).drilled] == modes


@pytest.mark.lie
def test_a_fault_that_faded_or_was_never_seen_gone_was_not_drilled(tmp_path):
    for name, how in {"faded": {"faded": True}, "stuck": {"gone": False}}.items():
        builder = RecordingBuilder(tmp_path / name).fault("disk.latency", at=10, until=30, **how)
        recording = Recording(builder.load("kv-writes").final_reads("kv-writes").healthy().build().path)
        assert not run_from(recording, judge(recording)).drilled
