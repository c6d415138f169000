"""What a dead run left is reverted from its journal alone, latest first; what lives, or has ended, is left alone."""

import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import anyio
import psutil
import pytest

import virtual_time
from hashidrill.clients.retry.surroundings import Authority
from hashidrill.core.errors import FaultError, JournalHeldError, OthersFaultError, UsageError
from hashidrill.core.protocols import registry
from hashidrill.core.recording.journal import Clock, Entry, Journal, read_journal
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.files import JOURNAL_NAME, held_by_us
from hashidrill.core.util.run_origin import here
from hashidrill.lab.runs import heal
from hashidrill.lab.sandbox.sandbox import NAME_PREFIX, scratch_folder
from hashidrill.testing.fakes import FakeDatacenter
from tasks import raising

OUR_PID = os.getpid()


class DeadRun:
    """A journal as a run left it when it was killed, and the hosts that outlived it."""

    def __init__(self, path):
        self.path = path
        path.mkdir()
        self.world = FakeDatacenter()
        self.root = path / "no-such-sandbox"
        self._write("run", id="run-1", experiment="short", root=str(self.root), origin=here(), sandbox="pid:[1]")

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


@pytest.mark.parametrize("events", [(), ("applied", "proven", "reverted")])
def test_an_intent_alone_is_reverted_too_and_what_was_not_proven_gone_is_proven_now(dead, events):
    """Apply may have begun."""
    dead.fault("0-slow", *SLOW, *events)
    assert dead.healed(dead.world).reverted == ["0-slow"]
    assert ("fault.gone", "0-slow") in dead.events


def test_what_was_gone_already_is_left_alone(dead):
    dead.fault("0-slow", *SLOW, "applied", "proven", "reverted", "gone").fault("1-cut", *CUT, "applied")
    assert dead.healed(dead.world).reverted == ["1-cut"]


def test_a_fault_that_does_not_come_off_is_stuck_and_the_others_are_reverted_all_the_same(dead, monkeypatch):
    dead.fault("0-slow", *SLOW, "applied").fault("1-cut", *CUT, "applied")
    monkeypatch.setattr(dead.world.hosts["consul-2"], "clear_packet_rules", raising(OSError(5, "Input/output error")))
    healed = dead.healed(dead.world)
    assert (healed.reverted, healed.stuck) == (["0-slow"], ["1-cut"])
    assert "Input/output error" in next(e for e in dead.journal if e.event == "fault.stuck").data["error"]
    assert dead.journal[-1].data["outcome"] == "revert"


@pytest.mark.lie
@pytest.mark.parametrize(("answers_after_s", "ends"), [(45, "reverted"), (90, "stuck")])
def test_observers_of_a_host_that_has_just_restarted_have_a_minute_to_answer(dead, answers_after_s, ends, monkeypatch):
    dead.fault("0-paused", *PAUSED, "applied")
    host = dead.world.hosts["consul-3"]
    process_of, began = host.agent_process, []

    async def agent_process(agent):
        if host.process.state == "S" and not began:
            began.append(anyio.current_time())
        if began and anyio.current_time() - began[0] < answers_after_s:
            raise FaultError("consul-3: no way there")
        return await process_of(agent)

    monkeypatch.setattr(host, "agent_process", agent_process)
    assert getattr(dead.healed(dead.world), ends) == ["0-paused"]


@pytest.mark.lie
def test_a_fault_of_the_same_name_by_another_run_is_not_called_stuck_and_a_second_heal_does_nothing(dead, monkeypatch):
    dead.fault("0-paused", *PAUSED, "applied")
    host, verbs = dead.world.hosts["consul-3"], []
    monkeypatch.setattr(
        host,
        "signal",
        raising(OthersFaultError("consul-3: nothing of this run is left there: the note is of the run b")),
    )
    told = lambda verb, undo: verbs.append((verb, undo.get("why", "")))  # noqa: E731 - one line, used once
    healed = virtual_time.run(heal.heal_run(dead.path, dead.world, told=told))
    assert (healed.others, healed.stuck, healed.reverted) == (["0-paused"], [], [])
    assert host.process.state == "T", "it stays"
    [ended] = [entry.data for entry in dead.journal if entry.event == "fault.ended"]
    assert "of the run b; seen: " in ended["evidence"]["measured"]
    assert verbs[-1] == (
        "ended",
        "nothing of this run is left there; another run has such a fault in force, which stays",
    )
    assert dead.journal[-1].data["outcome"] == "crashed"
    assert dead.healed(dead.world) is None


@pytest.mark.lie
def test_a_fault_whose_parameters_are_others_by_now_is_stuck_with_one_message_and_the_others_are_reverted(dead):
    """A journal of another version of the package that has the fault."""
    dead.fault("0-slow", *SLOW, "applied").fault("1-cut", *CUT, "applied")
    path = dead.path / JOURNAL_NAME
    path.write_text(path.read_text().replace('"delay": "500ms"', '"slowness": "500ms"'))
    healed = dead.healed(dead.world)
    assert (healed.reverted, healed.stuck) == (["1-cut"], ["0-slow"])
    said = next(e for e in dead.journal if e.event == "fault.stuck").data["error"]
    assert said.startswith("disk.latency: its parameters do not fit the disk.latency that is installed here: ")
    assert "slowness: Extra inputs are not permitted" in said
    assert "\n" not in said


def test_a_fault_of_a_package_that_is_not_here_is_stuck_and_named(dead):
    undo = {"fault_id": "0-theirs", "kind": "their.fault", "host": "consul-1", "params": {}}
    dead._write("fault.intent", fault_id="0-theirs", kind="their.fault", step=0, undo=undo)
    assert dead.healed(dead.world).stuck == ["0-theirs"]
    assert "there is no fault 'their.fault'" in next(e for e in dead.journal if e.event == "fault.stuck").data["error"]


@pytest.mark.lie
def test_a_fault_of_a_sandbox_that_is_gone_ended_with_it_and_nobody_says_that_it_was_seen_to_go(dead):
    dead.fault("0-slow", *SLOW, "applied", "proven")
    healed = dead.healed()
    assert (healed.ended, healed.reverted, healed.stuck) == (["0-slow"], [], [])
    assert [event for event, _ in dead.events[-2:]] == ["fault.ended", "end"]
    assert dead.journal[-2].data["evidence"] == {
        "ok": True,
        "asked": f"no process of the sandbox {dead.root} is left",
        "measured": "none",
        "figures": {"processes": 0},
    }
    [window] = Recording(dead.path).faults
    assert window.reverted_ns is None
    assert window.gone_ns is None
    assert dead.healed() is None


@pytest.mark.long
@pytest.mark.lie
def test_a_process_of_the_sandbox_that_is_left_is_named_and_its_fault_is_stuck(dead):
    """Planted: this process is in the namespace that the journal names."""
    dead.fault("0-slow", *SLOW, "applied", "proven")
    lines = (dead.path / JOURNAL_NAME).read_text().replace("pid:[1]", str(here()["pid_namespace"]))
    (dead.path / JOURNAL_NAME).write_text(lines)
    healed = dead.healed()
    assert (healed.ended, healed.stuck) == ([], ["0-slow"])
    [stuck] = [entry for entry in dead.journal if entry.event == "fault.stuck"]
    assert f"(pid {OUR_PID})" in stuck.data["evidence"]["measured"]
    assert dead.journal[-1].data["outcome"] == "revert"


@pytest.mark.lie
def test_a_run_that_ended_with_a_fault_that_was_not_seen_to_go_is_healed_beside_its_sealed_journal(dead):
    """What exit code 4 advises. The journal is what the run said, and stays as it is."""
    dead.fault("0-slow", *SLOW, "applied", "proven", "stuck").ends("revert")
    before = (dead.path / JOURNAL_NAME).read_bytes()
    healed = dead.healed()
    assert (healed.ended, healed.died) == (["0-slow"], False)
    assert (dead.path / JOURNAL_NAME).read_bytes() == before
    assert [(e.event, e.data["fault_id"]) for e in read_journal(dead.path / heal.HEAL_NAME)] == [
        ("fault.ended", "0-slow")
    ]
    assert dead.healed() is None


ELSEWHERE = [
    ({}, "an older hashidrill wrote it"),
    ({"boot": "another", "host": "build-7"}, r"another machine \(build-7\)"),
    ({"boot": "another", "machine": "another"}, "another machine"),
    ({"pid_namespace": "pid:[2]"}, "another container of this machine"),
]


@pytest.mark.lie
@pytest.mark.parametrize(("other", "reason"), ELSEWHERE)
@pytest.mark.parametrize("outlived", [False, True])
def test_a_run_whose_processes_cannot_be_seen_from_here_is_refused(dead, other, reason, outlived):
    """It may go on: its pid file names a process of this machine that is not it, or none."""
    dead.fault("0-slow", *SLOW, "applied")
    origin = {**here(), **other} if other else {}
    first, *rest = (dead.path / JOURNAL_NAME).read_text().splitlines(keepends=True)
    began = json.dumps({**json.loads(first), "origin": origin}) + "\n"
    (dead.path / JOURNAL_NAME).write_text(began + "".join(rest))
    before = dead.journal
    healed = dead.healed(dead.world if outlived else None)
    assert re.search(reason, healed.refused)
    assert (healed.reverted, healed.ended, healed.stuck) == ([], [], [])
    assert dead.journal == before
    assert dead.world.hosts["consul-1"].disk_rules


def test_another_users_run_is_refused_except_to_root(dead, monkeypatch):
    dead.fault("0-slow", *SLOW, "applied")
    monkeypatch.setattr(os, "geteuid", lambda: here_before["user"] + 1)
    assert "belongs to the user" in dead.healed().refused
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert dead.healed().ended == ["0-slow"]


here_before = here()


@pytest.mark.lie
@pytest.mark.parametrize("stepped_s", [-3600, 0, 3600])
def test_a_clock_that_was_set_since_hides_no_process_that_is_left(monkeypatch, stepped_s):
    """This very process is in the namespace, and was there before the run's last line."""
    origin = here()
    began = Entry(0, time.time(), "run", {"origin": origin, "sandbox": origin["pid_namespace"], "root": "/x"})
    monkeypatch.setattr(time, "time", partial(lambda real: real() + stepped_s, time.time))
    monkeypatch.setattr(psutil, "boot_time", partial(lambda real: real() + stepped_s, psutil.boot_time))
    found = heal.nothing_left(began, before_s=heal._uptime_s(began, Entry(10**9, began.wall + 1, "note")))
    assert not found.ok
    assert f"(pid {os.getpid()})" in found.measured


def test_a_process_that_began_after_the_run_had_ended_is_not_one_of_it():
    origin = {**here(), "uptime_s": here()["uptime_s"] - 1000}
    began = Entry(0, 0.0, "run", {"origin": origin, "sandbox": origin["pid_namespace"], "root": "/x"})
    with subprocess.Popen(["sleep", "60"]) as later:
        measured = heal.nothing_left(began, before_s=heal._uptime_s(began, Entry(10**9, 1.0, "note"))).measured
        later.kill()
    assert f"(pid {later.pid})" not in measured


def test_a_machine_that_has_booted_since_has_nothing_left(dead):
    dead.fault("0-slow", *SLOW, "applied")
    text = (dead.path / JOURNAL_NAME).read_text()
    (dead.path / JOURNAL_NAME).write_text(text.replace(str(here()["boot"]), "an-earlier-boot"))
    assert dead.healed().ended == ["0-slow"]
    assert "has rebooted since: an-earlier-boot" in dead.journal[-2].data["evidence"]["measured"]


@pytest.mark.lie
def test_a_run_that_holds_its_journal_is_left_alone_whatever_its_pid_file_says(dead):
    dead.fault("0-slow", *SLOW, "applied")
    before = dead.journal
    with Journal(dead.path / JOURNAL_NAME, Clock()):
        assert "the run is in progress" in dead.healed(dead.world).refused
        with pytest.raises(JournalHeldError, match="another process writes to it"):
            Journal(dead.path / JOURNAL_NAME, Clock())
    assert dead.journal == before
    assert dead.healed(dead.world).reverted == ["0-slow"]


def test_a_journal_that_may_not_be_written_is_named(dead, monkeypatch):
    dead.fault("0-slow", *SLOW, "applied")
    opened = os.open

    def refused(path, flags, *more, **how):
        if str(path).endswith(JOURNAL_NAME) and flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *more, **how)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(UsageError, match="not writable: Permission denied; run `hashidrill heal` as its owner"):
        dead.healed()


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


def test_a_run_that_ended_with_its_faults_gone_is_left_alone(dead):
    dead.fault("0-slow", *SLOW, "applied", "proven", "reverted", "gone").ends()
    before = dead.journal
    assert dead.healed(dead.world) is None
    assert dead.journal == before


def test_a_fault_that_a_run_could_not_revert_is_reverted_on_a_host_that_outlived_it(dead):
    dead.fault("0-slow", *SLOW, "applied", "stuck").ends("revert")
    assert dead.healed(dead.world).reverted == ["0-slow"]
    assert dead.world.hosts["consul-1"].disk_rules == {}
    assert dead.healed(dead.world) is None


def test_a_run_that_goes_on_is_left_alone(dead, monkeypatch):
    dead.fault("0-slow", *SLOW, "applied")
    dead.root.mkdir()
    (dead.root / "pid").write_text(str(OUR_PID))
    real = Path.read_bytes
    names_it = f"python\0-c\0{dead.root}\0".encode()
    monkeypatch.setattr(Path, "read_bytes", lambda self: names_it if self.name == "cmdline" else real(self))
    assert "still runs" in dead.healed(dead.world).refused
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
    with pytest.raises(UsageError, match="is not a recording"):
        virtual_time.run(heal.heal_run(tmp_path))


# what even the janitor did not live to remove


@pytest.fixture
def work(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("w")  # short: Unix sockets are below it
    monkeypatch.setenv("HASHIDRILL_WORK", str(folder))
    (folder / "cgroup").mkdir()
    return folder


def swept(work):
    return heal.sweep([work / "cgroup"])


def left(work, name, *, pid=None, age_s=0.0):
    root = work / name
    (root / "hosts" / "consul-1").mkdir(parents=True)
    if pid is not None:
        (root / "pid").write_text(str(pid))
    os.utime(root, (time.time() - age_s,) * 2)
    return root


@pytest.mark.lie
@pytest.mark.parametrize("age_s", [0, 3600])
def test_the_folder_of_a_command_is_kept_while_it_goes_on_and_removed_once_it_was_killed(work, age_s):
    with scratch_folder() as folder:
        os.utime(folder, (time.time() - age_s,) * 2)
        assert (swept(work), folder.exists()) == ([], True)
        left_over = shutil.copytree(folder, folder.with_name(f"{NAME_PREFIX}killed"))
    assert not folder.exists()
    assert swept(work) == [left_over]


@pytest.mark.lie
def test_the_certificates_of_a_long_retry_battery_are_left_alone(work):
    with Authority() as authority:
        os.utime(authority.trusted.parent, (time.time() - 3600,) * 2)
        assert (swept(work), authority.trusted.exists()) == ([], True)


@pytest.mark.parametrize(
    ("name", "how", "removed"),
    [
        (f"{NAME_PREFIX}dead", {"pid": OUR_PID}, True),  # a number that is another process's by now
        (f"{NAME_PREFIX}young", {}, False),
        (f"{NAME_PREFIX}old", {"age_s": 61}, True),  # it never got its first process
        ("hashidril-x", {"age_s": 61}, False),
    ],
)
def test_the_directory_of_a_dead_sandbox_is_removed_and_no_other(work, name, how, removed):
    root = left(work, name, **how)
    assert swept(work) == ([root] if removed else [])
    assert root.exists() is not removed


@pytest.mark.lie
def test_a_sandbox_that_a_runner_holds_is_left_alone_though_its_pid_is_nobodys_here(work):
    """Another container's, below the same directory: its numbers of processes mean nothing here."""
    root = left(work, f"{NAME_PREFIX}theirs", pid=OUR_PID)
    fd = os.open(root, os.O_RDONLY)
    assert held_by_us(fd)
    assert swept(work) == []
    os.close(fd)
    assert swept(work) == [root]


def test_a_cgroup_without_its_sandbox_is_removed_and_one_with_it_is_not(work):
    for name in ("dead", "young"):
        (work / "cgroup" / f"{NAME_PREFIX}{name}" / "consul-1").mkdir(parents=True)
    left(work, f"{NAME_PREFIX}young")
    assert swept(work) == [work / "cgroup" / f"{NAME_PREFIX}dead"]
    assert (work / "cgroup" / f"{NAME_PREFIX}young" / "consul-1").is_dir()
