"""What a dead run left is finished from its journal alone; what ended, or still goes on, is left alone."""

from __future__ import annotations

import json
import os

import anyio
import pytest

from hashidrill import heal
from hashidrill.errors import UsageError
from hashidrill.faults.disk import DiskLatency, LatencyParams
from hashidrill.faults.network import BlockParams, NetworkBlock
from hashidrill.journal import Clock, Journal, read_journal
from hashidrill.testing.fakes import FakeDatacenter
from hashidrill.units import Duration


@pytest.fixture
def world():
    return FakeDatacenter()


def dead_run(path, world, *, root="/nonexistent/hashidrill-0", gone=()):
    """A run that applied two faults and then died."""
    faults = {
        "slow": DiskLatency(LatencyParams(delay=Duration("500ms")), world),
        "shut": NetworkBlock(BlockParams(port=8500), world),
    }
    path.mkdir()
    with Journal(path / "journal.jsonl", Clock()) as journal:
        journal.write("run", id=path.name, experiment="x", root=str(root))
        for fault_id, fault in faults.items():
            undo = fault.plan(world.target("consul-1"), fault_id=fault_id)
            journal.write("fault.intent", fault_id=fault_id, kind=fault.kind, undo=undo)
            anyio.run(fault.apply, undo)
            journal.write("fault.applied", fault_id=fault_id)
            if fault_id in gone:
                anyio.run(fault.revert, undo)
                journal.write("fault.gone", fault_id=fault_id, evidence={})
    return path


def events(run):
    return [(entry.event, entry.data.get("fault_id")) for entry in read_journal(run / "journal.jsonl")]


def test_open_faults_are_reverted_latest_first(tmp_path, world):
    run = dead_run(tmp_path / "run", world)
    host = world.hosts["consul-1"]
    assert host.disk_rules
    assert host.tables
    healed = anyio.run(heal.heal_run, run, world)
    assert healed.reverted == ["shut", "slow"]
    assert not healed.stuck
    assert not host.disk_rules
    assert not host.tables
    said = ["fault.reverted", "fault.gone", "fault.reverted", "fault.gone", "end"]
    assert events(run)[-5:] == list(zip(said, ["shut", "shut", "slow", "slow", None], strict=True))


def test_times_go_on_after_the_last_entry_of_the_dead_run(tmp_path, world):
    run = dead_run(tmp_path / "run", world)
    anyio.run(heal.heal_run, run, world)
    times = [entry.t_ns for entry in read_journal(run / "journal.jsonl")]
    assert times == sorted(times)


def test_a_fault_that_was_proven_gone_is_not_touched_again(tmp_path, world):
    run = dead_run(tmp_path / "run", world, gone={"shut"})
    assert anyio.run(heal.heal_run, run, world).reverted == ["slow"]


def test_a_second_heal_has_nothing_to_do(tmp_path, world):
    run = dead_run(tmp_path / "run", world)
    assert anyio.run(heal.heal_run, run, world) is not None
    before = events(run)
    assert anyio.run(heal.heal_run, run, world) is None
    assert events(run) == before


def test_a_torn_last_line_does_not_hide_the_open_faults(tmp_path, world):
    run = dead_run(tmp_path / "run", world)
    with (run / "journal.jsonl").open("a") as journal:
        journal.write('{"t_ns": 12, "wall": 1.0, "event": "fault.go')
    assert anyio.run(heal.heal_run, run, world).reverted == ["shut", "slow"]
    assert anyio.run(heal.heal_run, run, world) is None


def test_a_fault_that_stays_is_reported_as_stuck(tmp_path, world, monkeypatch):
    run = dead_run(tmp_path / "run", world)

    async def no(self, undo):
        raise OSError("no way in")

    monkeypatch.setattr(DiskLatency, "revert", no)

    async def at_once(_seconds):
        return

    monkeypatch.setattr("hashidrill.inject.pause", at_once)
    healed = anyio.run(heal.heal_run, run, world)
    assert (healed.reverted, healed.stuck) == (["shut"], ["slow"])
    assert read_journal(run / "journal.jsonl")[-1].data["outcome"] == "revert"


def test_without_hosts_the_sandbox_took_them_away(tmp_path, world):
    run = dead_run(tmp_path / "run", world)
    assert anyio.run(heal.heal_run, run).reverted == ["shut", "slow"]
    gone = [entry for entry in read_journal(run / "journal.jsonl") if entry.event == "fault.gone"]
    assert "kernel" in gone[0].data["evidence"]["measured"]


def test_a_run_that_ended_is_left_alone(tmp_path, world):
    run = dead_run(tmp_path / "run", world)
    with Journal(run / "journal.jsonl", Clock()) as journal:
        journal.write("end", outcome="complete", error="")
    assert anyio.run(heal.heal_run, run, world) is None
    assert world.hosts["consul-1"].disk_rules


def test_a_run_whose_sandbox_lives_is_left_alone(tmp_path, world, monkeypatch):
    root = tmp_path / "hashidrill-1"
    root.mkdir()
    (root / "pid").write_text(str(os.getpid()))
    run = dead_run(tmp_path / "run", world, root=root)
    monkeypatch.setattr(heal, "_alive", lambda asked: asked == root)
    assert anyio.run(heal.heal_run, run, world) is None
    assert world.hosts["consul-1"].disk_rules


def test_a_directory_without_a_journal_is_no_run(tmp_path):
    with pytest.raises(UsageError, match=r"journal.jsonl is missing"):
        anyio.run(heal.heal_run, tmp_path)


def test_sweep_removes_what_a_dead_sandbox_left_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("HASHIDRILL_WORK", str(tmp_path))
    dead, alive, young = (tmp_path / f"hashidrill-{name}" for name in ("dead", "alive", "young"))
    other = tmp_path / "somebody-elses"
    for folder in (dead, alive, young, other):
        folder.mkdir()
    (dead / "pid").write_text("4194305")  # over the largest pid there can be
    (alive / "pid").write_text(str(os.getpid()))
    monkeypatch.setattr(heal, "_alive", lambda root: root == alive)
    assert heal.sweep() == [dead]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "hashidrill-alive",
        "hashidrill-young",
        "somebody-elses",
    ]


def test_the_journal_of_a_fault_names_all_that_a_revert_needs(tmp_path, world):
    run = dead_run(tmp_path / "run", world)
    for undo in heal.open_faults(read_journal(run / "journal.jsonl")):
        assert json.loads(json.dumps(undo)) == undo
        assert undo["kind"]
        assert undo["host"] == "consul-1"
