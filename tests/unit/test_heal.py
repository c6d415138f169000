"""What a dead run left is reverted from its journal alone, latest first; what lives, or has ended, is left alone."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import virtual_time

from hashidrill import heal, registry
from hashidrill.datacenter.sandbox import NAME_PREFIX
from hashidrill.errors import UsageError
from hashidrill.journal import JOURNAL_NAME, Clock, Journal, read_journal
from hashidrill.testing.fakes import FakeDatacenter

OUR_PID = os.getpid()


class DeadRun:
    """A journal as a run left it when it was killed, and the hosts that outlived it."""

    def __init__(self, path):
        self.path = path
        path.mkdir()
        self.world = FakeDatacenter()
        self.root = path / "no-such-sandbox"
        self._write("run", id="run-1", experiment="short", root=str(self.root))

    def _write(self, event, **data):
        with Journal(self.path / JOURNAL_NAME, Clock()) as journal:
            journal.write(event, sync=True, **data)

    def fault(self, fault_id, kind, host, params, *events):
        """An intent, then these events; the fault is really in force where it was `applied` and not `reverted`."""
        cls = registry.fault(kind)
        fault = cls(cls.Params.model_validate(params), self.world)
        target = self.world.target(host)
        undo = fault.plan(target, fault_id=fault_id)
        said = {"target": asdict(target), "params": undo["params"], "undo": undo}
        self._write("fault.intent", fault_id=fault_id, kind=kind, step=0, **said)
        for event in events:
            self._write(f"fault.{event}", fault_id=fault_id)
        if "applied" in events and "reverted" not in events:
            virtual_time.run(fault.apply(undo))
        return self

    def ends(self, outcome="complete"):
        self._write("end", outcome=outcome, error="")
        return self

    def healed(self, hosts=None):
        return virtual_time.run(heal.heal_run(self.path, hosts))

    @property
    def journal(self):
        return read_journal(self.path / JOURNAL_NAME)

    @property
    def events(self):
        return [(entry.event, entry.data.get("fault_id", "")) for entry in self.journal]


SLOW = ("disk.latency", "consul-1", {"delay": "500ms"})
CUT = ("network.partition", "consul-2", {})
PAUSED = ("process.pause", "consul-3", {})


@pytest.fixture
def dead(tmp_path):
    return DeadRun(tmp_path / "run")


def test_faults_in_force_are_reverted_from_the_journal_alone_latest_first(dead):
    dead.fault("0-slow", *SLOW, "applied", "proven").fault("1-cut", *CUT, "applied")
    dead.fault("2-paused", *PAUSED, "applied")
    world = dead.world
    assert world.hosts["consul-3"].process.state == "T"
    healed = dead.healed(world)
    assert (healed.reverted, healed.stuck) == (["2-paused", "1-cut", "0-slow"], [])
    assert world.hosts["consul-1"].disk_rules == {}
    assert world.hosts["consul-2"].tables == {}
    assert world.hosts["consul-3"].process.state == "S"
    reverted = [fault_id for event, fault_id in dead.events if event == "fault.reverted"]
    assert reverted == healed.reverted
    assert dead.events[-1] == ("end", "")
    assert dead.journal[-1].data["outcome"] == "crashed"


def test_an_intent_alone_is_reverted_too_for_apply_may_have_begun(dead):
    dead.fault("0-slow", *SLOW)
    assert dead.healed(dead.world).reverted == ["0-slow"]


def test_what_was_gone_already_is_left_alone(dead):
    dead.fault("0-slow", *SLOW, "applied", "proven", "reverted", "gone").fault("1-cut", *CUT, "applied")
    assert dead.healed(dead.world).reverted == ["1-cut"]


def test_what_was_reverted_and_never_proven_gone_is_proven_gone_now(dead):
    dead.fault("0-slow", *SLOW, "applied", "proven", "reverted")
    assert dead.healed(dead.world).reverted == ["0-slow"]
    assert ("fault.gone", "0-slow") in dead.events


def test_a_fault_that_does_not_come_off_is_stuck_and_the_others_are_reverted_all_the_same(dead, monkeypatch):
    dead.fault("0-slow", *SLOW, "applied").fault("1-cut", *CUT, "applied")

    async def broken(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(dead.world.hosts["consul-2"], "nft", broken)
    healed = dead.healed(dead.world)
    assert (healed.reverted, healed.stuck) == (["0-slow"], ["1-cut"])
    assert "Input/output error" in next(e for e in dead.journal if e.event == "fault.stuck").data["error"]
    assert dead.journal[-1].data["outcome"] == "revert"


def test_a_fault_of_a_package_that_is_not_here_is_stuck_and_named(dead):
    undo = {"fault_id": "0-theirs", "kind": "their.fault", "host": "consul-1", "params": {}}
    dead._write("fault.intent", fault_id="0-theirs", kind="their.fault", step=0, undo=undo)
    assert dead.healed(dead.world).stuck == ["0-theirs"]
    assert "there is no fault 'their.fault'" in next(e for e in dead.journal if e.event == "fault.stuck").data["error"]


def test_inside_of_a_sandbox_that_is_gone_there_is_only_the_journal_to_finish(dead):
    dead.fault("0-slow", *SLOW, "applied", "proven")
    healed = dead.healed()
    assert healed.reverted == ["0-slow"]
    assert [event for event, _ in dead.events[-3:]] == ["fault.reverted", "fault.gone", "end"]
    assert "the sandbox is gone" in dead.journal[-2].data["evidence"]["asked"]


def test_a_second_heal_has_nothing_to_do(dead):
    dead.fault("0-slow", *SLOW, "applied")
    assert dead.healed(dead.world) is not None
    before = dead.journal
    assert dead.healed(dead.world) is None
    assert dead.journal == before


def test_a_torn_journal_is_healed_up_to_its_tear_and_reads_afterwards(dead):
    dead.fault("0-slow", *SLOW, "applied")
    with (dead.path / JOURNAL_NAME).open("ab") as file:
        file.write(b'{"t_ns": 99, "wall": 1.0, "event": "fault.gone", "fault_id": "0-sl')
    assert dead.healed(dead.world).reverted == ["0-slow"]
    assert [event for event, _ in dead.events[-3:]] == ["fault.reverted", "fault.gone", "end"]
    assert dead.healed(dead.world) is None


def test_what_heal_writes_comes_after_what_was_there(dead):
    dead.fault("0-slow", *SLOW, "applied")
    dead.healed(dead.world)
    times = [entry.t_ns for entry in dead.journal]
    assert times[-3:] == sorted(times[-3:])
    assert times[-3] > times[-4]


def test_a_run_that_ended_is_left_alone(dead):
    dead.fault("0-slow", *SLOW, "applied").ends("revert")
    before = dead.journal
    assert dead.healed(dead.world) is None
    assert dead.journal == before
    assert dead.world.hosts["consul-1"].disk_rules  # for a person to look at: its own revert has failed


def test_a_run_that_goes_on_is_left_alone(dead, monkeypatch):
    dead.fault("0-slow", *SLOW, "applied")
    dead.root.mkdir()
    (dead.root / "pid").write_text(str(OUR_PID))
    real = Path.read_bytes
    names_it = f"python\0-c\0{dead.root}\0".encode()
    monkeypatch.setattr(Path, "read_bytes", lambda self: names_it if self.name == "cmdline" else real(self))
    assert dead.healed(dead.world) is None
    assert dead.world.hosts["consul-1"].disk_rules


def test_a_pid_that_was_taken_over_by_another_process_is_not_that_run(dead):
    """The pid file outlived its sandbox, and the number now belongs to these tests."""
    dead.fault("0-slow", *SLOW, "applied")
    dead.root.mkdir()
    (dead.root / "pid").write_text(str(OUR_PID))
    assert dead.healed(dead.world).reverted == ["0-slow"]


def test_a_journal_that_was_killed_before_its_first_line_has_nothing_to_heal(tmp_path):
    (tmp_path / JOURNAL_NAME).touch()
    assert virtual_time.run(heal.heal_run(tmp_path)) is None


def test_no_run_there_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no run there"):
        virtual_time.run(heal.heal_run(tmp_path))


# what even the janitor did not live to remove


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.setenv("HASHIDRILL_WORK", str(tmp_path))
    monkeypatch.setattr(heal, "_CGROUPS", (str(tmp_path / "cgroup"),))
    (tmp_path / "cgroup").mkdir()
    return tmp_path


def left(work, name, *, pid=None, age_s=0.0):
    root = work / f"{NAME_PREFIX}{name}"
    (root / "hosts" / "consul-1").mkdir(parents=True)
    if pid is not None:
        (root / "pid").write_text(str(pid))
    os.utime(root, (time.time() - age_s,) * 2)
    return root


def test_the_directory_of_a_dead_sandbox_is_removed(work):
    root = left(work, "dead", pid=OUR_PID)  # a number that is another process's by now
    assert heal.sweep() == [root]
    assert not root.exists()


def test_a_sandbox_that_is_just_starting_is_left_alone(work):
    root = left(work, "young")
    assert heal.sweep() == []
    assert root.exists()


def test_a_sandbox_that_never_got_its_first_process_is_removed_after_a_minute(work):
    assert heal.sweep() == []
    root = left(work, "old", age_s=61)
    assert heal.sweep() == [root]


def test_a_directory_of_another_name_is_not_ours(work):
    (work / "hashidril-x").mkdir()
    assert heal.sweep() == []


def test_a_cgroup_without_its_sandbox_is_removed_and_one_with_it_is_not(work):
    for name in ("dead", "young"):
        (work / "cgroup" / f"{NAME_PREFIX}{name}" / "consul-1").mkdir(parents=True)
    left(work, "young")
    assert heal.sweep() == [work / "cgroup" / f"{NAME_PREFIX}dead"]
    assert (work / "cgroup" / f"{NAME_PREFIX}young" / "consul-1").is_dir()
