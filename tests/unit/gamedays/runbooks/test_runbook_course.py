"""What a rehearsal runs of an experiment: what lasts when the pager goes, and nothing that would end it."""

import pytest
from typer.testing import CliRunner

from hashidrill.core.errors import ExperimentError, UnknownNameError, UsageError
from hashidrill.core.experiment.model import Mark
from hashidrill.faces.cli.app import app
from hashidrill.gamedays.runbooks.model import Against
from hashidrill.gamedays.runbooks.rehearsal import check_tools, course_of, courses_of
from runbook_pages import PAGE, page, text


def course(name, *, look_alike=False, **how):
    return course_of(page(), name, Against(diagnosis="slow-disk", **how), look_alike=look_alike)


def test_guardrails_would_end_the_fault_before_the_runbook_and_are_left_out():
    found = course("raft/slow-leader-disk")
    assert found.resolved.experiment.guardrails == []
    assert [step.fault for step in found.resolved.experiment.faults] == ["disk.latency"]
    assert found.at_s == 0


def test_users_are_watched_as_long_as_the_experiment_gives_them_to_recover():
    assert course("raft/slow-leader-disk").watch_s == 13  # writes_recover within 10s, and 3 s
    assert course("raft/leader-disk-full").watch_s == 11


def test_by_default_the_pager_goes_when_the_last_step_has_begun():
    found = course("raft/bloated-leader")
    assert found.at_s == 20
    assert [step.fault for step in found.resolved.experiment.faults] == [
        "consul.raft.bloat",
        "consul.leader.pin",
        "disk.bandwidth",
    ]


def test_later_steps_are_not_part_of_it():
    found = course("raft/bloated-leader", at="12s")
    assert [step.fault for step in found.resolved.experiment.faults] == ["consul.raft.bloat", "consul.leader.pin"]


def test_what_would_undo_the_repair_is_let_go():
    found = course("raft/bloated-leader", lets_go=["consul.leader.pin"])
    [pin] = [step for step in found.resolved.experiment.faults if step.fault == "consul.leader.pin"]
    assert pin.at + pin.for_ < found.at_s == 20
    [disks] = [step for step in found.resolved.experiment.faults if step.name == "ordinary-disks"]
    assert disks.at + disks.for_ > 20


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"lets_go": ["consul.leader.hold"]}, "the method has no such step"),
        ({"at": "35s"}, "no step of its method is in force then"),
        (
            {"at": "20s", "lets_go": ["consul.raft.bloat", "consul.leader.pin", "ordinary-disks"]},
            "no step of its method",
        ),
    ],
)
def test_a_moment_at_which_nothing_is_broken_is_refused(how, said):
    with pytest.raises(ExperimentError, match=said):
        course("raft/bloated-leader", **how)


def test_a_healthy_datacenter_is_the_first_experiments_without_its_faults():
    found = course("healthy", look_alike=True)
    assert found.resolved.name == "slow-leader-disk"
    [only] = found.resolved.experiment.method
    assert isinstance(only, Mark)
    with pytest.raises(UsageError, match="nothing to repair"):
        course("healthy")


def test_what_is_recorded_says_how_to_judge_it():
    found = course("raft/slow-follower-disk", look_alike=True)
    assert found.info(page())["rehearsal"] == {
        "runbook": "slow",
        "experiment": "raft/slow-follower-disk",
        "look_alike": True,
        "diagnosis": "slow-disk",
        "users": "sick",
    }
    assert found.given(page())["text"] == PAGE


def test_all_that_the_front_matter_names_is_rehearsed():
    names = [(each.name, each.look_alike) for each in courses_of(page(), [], [])]
    assert names == [("raft/slow-leader-disk", False), ("raft/slow-follower-disk", True), ("healthy", True)]


@pytest.mark.parametrize(
    ("experiments", "look_alikes", "names"),
    [
        (["raft/slow-leader-disk"], ["none"], ["raft/slow-leader-disk"]),
        (["none"], ["healthy"], ["healthy"]),
        ([], ["raft/killed-leader"], ["raft/slow-leader-disk", "raft/killed-leader"]),
    ],
)
def test_or_what_is_asked_for(experiments, look_alikes, names):
    assert [each.name for each in courses_of(page(), experiments, look_alikes)] == names


def test_what_it_says_nothing_of_is_refused():
    with pytest.raises(UsageError, match="does not say which diagnosis to reach in raft/frozen-leader"):
        courses_of(page(), ["raft/frozen-leader"], [])
    with pytest.raises(UsageError, match="nothing to rehearse"):
        courses_of(page(), ["none"], ["none"])
    with pytest.raises(UnknownNameError, match="there is no experiment 'raft/nowhere'"):
        courses_of(page(), [], ["raft/nowhere"])


def test_programs_that_are_missing_are_told_before_anything_starts(monkeypatch):
    from hashidrill.core.errors import MachineError
    from hashidrill.gamedays.runbooks import rehearsal

    monkeypatch.setattr(rehearsal.shutil, "which", lambda name: None if name == "jq" else f"/usr/bin/{name}")
    check_tools(page())
    with pytest.raises(MachineError, match="needs jq"):
        check_tools(page(("\nhow slow\n", "\nconsul info | jq .\n")))


# the command


def call(*words):
    return CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "200"})


def write(path, *changes):
    path.write_text(text(*changes))
    return path


def test_validate_reads_runbooks(tmp_path):
    good = call("validate", write(tmp_path / "runbook-slow.md"))
    assert (good.exit_code, good.stdout) == (0, f"ok  {tmp_path / 'runbook-slow.md'}\n")
    bad = call("validate", write(tmp_path / "runbook-slow.md", ("raft/slow-follower-disk", "raft/no-such")))
    assert bad.exit_code == 2
    assert "there is no experiment 'raft/no-such'" in " ".join(bad.stderr.split())


def test_rehearse_refuses_a_bad_runbook_with_2_and_starts_nothing(tmp_path, monkeypatch):
    from hashidrill.core.errors import HashidrillError

    path = write(tmp_path / "runbook-slow.md", ("sh observe leader", "sh look leader"))
    result = call("rehearse", path, "--runs", tmp_path / "runs")
    assert isinstance(result.exception, HashidrillError)
    assert result.exception.exit_code == 2
    assert "'look' is not a kind of block" in str(result.exception)
    assert not (tmp_path / "runs").exists()
