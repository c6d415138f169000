"""Every command that judges a recording goes by the same doubts: what `check` calls INVALID bounds no search."""

import ast

import pytest

from hashidrill.core.compare.figures import figure
from hashidrill.core.experiment.conditions import Condition
from hashidrill.core.judging.judge import judge, write_verdict
from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.gamedays.runbooks.judge import judge_drill
from hashidrill.lab.runs.rounds import played
from hashidrill.rollouts.bisect import broken as bisect
from hashidrill.rollouts.bisect.trials import Outcome as Trial
from hashidrill.rollouts.capacity import Outcome
from hashidrill.rollouts.capacity import judged as capacity
from hashidrill.testing.recordings import RecordingBuilder
from places import ROOT

pytestmark = pytest.mark.lie

SLO = [Condition.parse("kv-writes.latency.p50 < 300ms")]
SOUND = {"end": 50.0}
SPOILT = {
    "a fault that faded": {"faded": True},
    "a fault that was not proven": {"proven": False},
    "a fault that was never seen gone": {"gone": False},
    "a step that was left out": {"left_out": True},
    "a file that was changed afterwards": {"damaged": True},
}
STOPPED = {"end": 20.0}


def recorded(path, *, end=50.0, left_out=False, damaged=False, **fault):
    built = RecordingBuilder(path).expect("latency_stays", load="kv-writes")
    built.fault("disk.latency", "consul-1", at=10, until=30, **fault).load("kv-writes", end=end)
    built.run_info(rehearsal={"experiment": "planted", "diagnosis": "slow-disk"})
    if left_out:
        built._method.append({"fault": "process.kill", "on": "host:consul-2", "at": "15s", "for": "1s"})
    recording = built.build()
    if damaged:
        with (recording.path / "run.json").open("a") as changed:
            changed.write(" ")
    return type(recording)(recording.path)


def of_check(recording):
    verdict = judge(recording)
    return verdict.verdict is Verdict.PASS and verdict.judgements[0].finding is Finding.HELD


def of_run_and_train(recording):
    return write_verdict(recording).verdict is Verdict.PASS


def of_capacity(recording):
    return capacity(recording, SLO)[0] is Outcome.HELD


def of_bisect(recording):
    return bisect.Expectations().trial(recording, recording.path).outcome is Trial.HELD


def of_bisect_by_a_figure(recording):
    worse = bisect.Worse.of("kv-writes.latency.p50", 1.5, recording.experiment)
    return worse.trial(recording, recording.path).outcome is Trial.MEASURED


def of_the_gate(recording):
    wanted = figure("kv-writes.latency.p50", recording.experiment)
    run = played("candidate", recording.path, [wanted])
    return not run.invalid and run.measured[wanted.name].number > 0


def of_a_rehearsal(recording):
    """It was followed by no one: only that it is INVALID for one reason alone says that the run was sound."""
    return judge_drill(recording.path).invalid == ["the pager never went: the runbook was not followed"]


CALLERS = [of_check, of_run_and_train, of_capacity, of_bisect, of_bisect_by_a_figure, of_the_gate]


@pytest.mark.parametrize("counts", [*CALLERS, of_a_rehearsal])
def test_a_sound_run_counts(tmp_path, counts):
    assert counts(recorded(tmp_path / "run"))


@pytest.mark.long
@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("counts", CALLERS)
def test_a_spoilt_run_counts_for_none_of_them(tmp_path, counts, spoilt):
    assert not counts(recorded(tmp_path / "run", **SPOILT[spoilt]))


@pytest.mark.parametrize("spoilt", [each for each in SPOILT if each != "a fault that faded"])
def test_nor_for_a_rehearsal(tmp_path, spoilt):
    """What its users had once the fault was over is judged as `check` judges it, faded faults included."""
    assert not of_a_rehearsal(recorded(tmp_path / "run", **SPOILT[spoilt]))


@pytest.mark.parametrize("counts", [of_check, of_run_and_train, of_capacity, of_bisect])
def test_a_load_that_stopped_bounds_nothing(tmp_path, counts):
    assert not counts(recorded(tmp_path / "run", **STOPPED))


def test_a_limit_that_broke_on_a_busy_machine_is_no_bound_of_the_datacenter(tmp_path):
    slow = RecordingBuilder(tmp_path / "run").fault("disk.latency", "consul-1", at=10, until=30)
    slow.load("kv-writes", latency=lambda at: 0.5 if 15 < at < 29 else 0.01)
    slow.series("machine.others", 1.8, every=1.0).series("machine.idle", 0.0, every=1.0)
    outcome, text = capacity(slow.run_info(machine={"cpus": 2}).build(), SLO)
    assert outcome is Outcome.INVALID
    assert "other work kept this machine busy" in text


@pytest.mark.long
def test_no_room_picks_doubts_by_itself():
    """`Validity` has all of them, so a new command that judges gets the new ones too."""
    own = {"doubts", "generator_doubts", "invalid_reasons"}
    for path in sorted((ROOT / "runners" / "hashidrill").rglob("*.py")):
        if path.parent.name == "judging":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hashidrill.core.judging"):
                assert not own & {each.name for each in node.names}, f"{path}: use Validity.of(recording)"
