"""Settings that are added to an agent of somebody else, on a host in memory: what is read, and what an undo leaves."""

import json
import os
import signal

import pytest

from hashidrill.staging.carriers.inside import host_faults, restart
from hashidrill.staging.carriers.inside.host_faults import KINDS
from hashidrill.staging.carriers.inside.system import RefusedError, System

STREAMING = {"use_streaming_backend": False}


class Host(System):
    """One agent, process 7 at first. Each process has read what was in the folder as it began, or at its SIGHUP."""

    def __init__(self, folder, words=None):
        self.proc, self.folder = folder / "proc", folder / "conf"
        self.folder.mkdir()
        (self.folder / "agent.json").write_text("{}")
        self.words = words or ["consul", "agent", f"-config-dir={self.folder}"]
        self.states, self.read, self.deaf = {}, {}, False
        self.begins(7)

    def begins(self, pid):
        self.states[pid], self.read[pid] = ("S", 10 * pid), self.files()
        home = self.proc / str(pid)
        home.mkdir(parents=True)
        (home / "cwd").symlink_to(self.folder.parent)
        (home / "status").write_text(f"Uid:\t{os.getuid()}\t{os.getuid()}\nGid:\t{os.getgid()}\t{os.getgid()}\n")

    def files(self):
        return sorted(one.name for one in self.folder.iterdir())

    def is_root(self):
        return True

    def sleep(self, seconds):
        pass

    def stat(self, pid):
        return self.states.get(pid)

    def command(self, pid):
        return self.words if pid in self.states else []

    def signal(self, reference, number):
        if not self.state(reference):
            return False
        pid = int(reference.partition("@")[0])
        if number == signal.SIGHUP:
            self.read[pid] = self.files()
        elif not self.deaf:
            del self.states[pid]
        return True

    @property
    def now(self):
        """(the processes that run, what the last one has read)."""
        found = sorted(self.states)
        return found, self.read[found[-1]] if found else []


@pytest.fixture
def host(tmp_path, monkeypatch):
    one = Host(tmp_path)
    monkeypatch.setattr(restart, "remembered", lambda system, reference: {"argv": system.words})
    monkeypatch.setattr(restart, "running", lambda system, _: [system.reference(pid) for pid in sorted(system.states)])
    monkeypatch.setattr(restart, "start", lambda _: one.begins(max([7, *one.read]) + 1))
    monkeypatch.setattr(restart, "check_settings", lambda system, pid, words, owner: None)
    return one


def of(host, by="restart", memo=None):
    args = {"agent": "consul", "reference": "7@70", "settings": STREAMING, "by": by, "check": ["validate"]}
    return KINDS["settings"](args, {} if memo is None else memo, host)


OURS, THEIRS = ["agent.json", restart.NAME], ["agent.json"]


@pytest.mark.parametrize(("by", "pids"), [("restart", ([8], [9])), ("reload", ([7], [7]))])
def test_an_agent_reads_them_and_reads_again_without_them_and_its_own_files_stay(host, by, pids):
    fault = of(host, by)
    fault.check()
    assert fault.proof(present=False)[0]
    fault.apply()
    assert host.now == (pids[0], OURS)
    assert json.loads((host.folder / restart.NAME).read_text()) == STREAMING
    assert (host.folder / restart.NAME).stat().st_mode & 0o777 == 0o600
    assert fault.proof(present=True)[0]
    assert not fault.proof(present=False)[0]
    for _ in range(2):
        fault.undo()
        assert host.now == (pids[1], THEIRS)
        assert fault.proof(present=False)[0]


class DiedError(Exception):
    """The host's own agent, in the middle of something."""


@pytest.mark.parametrize("by", ["restart", "reload"])
@pytest.mark.parametrize("moment", ["noted", "written", "noted again", "read"])
def test_a_fresh_process_takes_them_away_by_its_note_alone_from_any_moment(host, monkeypatch, by, moment):
    fault, notes = of(host, by), []

    def dies(*_):
        raise DiedError

    def keep():
        notes.append(json.dumps(fault.memo))
        if (moment, len(notes)) in {("noted", 1), ("noted again", 2)}:
            dies()

    fault.keep = keep
    with monkeypatch.context() as patched:
        if moment == "written":
            patched.setattr(restart, "check_settings", dies)
        try:
            fault.apply()
        except DiedError:
            assert moment != "read"
    late = of(host, by, json.loads(notes[-1]))
    late.undo()
    assert late.proof(present=False)[0]
    assert host.now[1] == THEIRS
    late.undo()
    assert len(host.now[0]) == 1


def test_an_agent_that_does_not_run_any_more_is_started_without_them(host):
    fault = of(host)
    fault.apply()
    host.states.clear()
    fault.undo()
    assert host.now == ([9], THEIRS)
    assert fault.proof(present=False)[0]


@pytest.mark.lie
def test_an_undo_that_leaves_a_process_that_has_read_them_is_no_revert(host):
    fault = of(host)
    fault.apply()
    host.deaf = True
    with pytest.raises(RefusedError, match="process 8 did not end"):
        fault.undo()
    assert not fault.proof(present=False)[0]


def test_what_the_agents_own_program_rejects_is_never_read_and_nothing_is_left(host, monkeypatch):
    def rejects(system, pid, words, owner):
        assert (pid, words) == (7, ["validate"])
        raise RefusedError("settings", "the agent's own program rejects it: unknown key")

    monkeypatch.setattr(restart, "check_settings", rejects)
    fault = of(host)
    fault.check()
    with pytest.raises(RefusedError, match="unknown key"):
        fault.apply()
    fault.undo()
    assert host.now == ([7], THEIRS), "the same process, which nobody told anything"
    assert fault.proof(present=False)[0]
    assert host.files() == THEIRS


def test_other_settings_in_their_place_are_read_too(host):
    fault = of(host)
    fault.apply()
    fault.change({"log_level": "DEBUG"})
    assert json.loads((host.folder / restart.NAME).read_text()) == {"log_level": "DEBUG"}
    assert host.now == ([9], OURS)
    fault.undo()
    assert host.now == ([10], THEIRS)


def test_a_file_of_ours_without_a_note_is_refused(host):
    (host.folder / restart.NAME).write_text(json.dumps(STREAMING))
    with pytest.raises(RefusedError, match="exists already, and no note says whose it is") as refused:
        of(host).check()
    assert refused.value.name == "left-over"


def test_an_agent_that_reads_no_folder_is_refused(host):
    host.words = ["consul", "agent", "-config-file=/etc/consul.json"]
    with pytest.raises(RefusedError, match="process 7 reads no folder of configuration files") as refused:
        of(host).check()
    assert (refused.value.name, host.files()) == ("no-config-dir", THEIRS)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["-config-dir=/etc/a", "-config-dir", "/etc/b"], "/etc/b"),
        (["--config-dir=/etc/a", "-server"], "/etc/a"),
        (["-config-dir", "conf.d", "-config-file=/x.json"], "{here}/conf.d"),
    ],
)
def test_the_last_folder_that_an_agent_reads_is_where_they_go(host, words, found):
    """Later files win; a relative one is below the folder that the agent runs in."""
    host.words = ["consul", "agent", *words]
    here = os.path.realpath(host.folder.parent)
    assert str(restart.settings_file(host, 7)) == f"{found.format(here=here)}/{restart.NAME}"


def test_settings_are_a_kind_of_the_agents(host):
    assert host_faults.KINDS["settings"] is type(of(host))
