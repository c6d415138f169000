"""What runs as root on a host and works below a folder of the agent's user: no link of that user leads it anywhere.

A folder that everybody may write stands for one of the agent's user: the tests need no second user for that.
"""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hashidrill.core.util import trusted_paths
from hashidrill.lab.local.inside import canary
from hashidrill.lab.local.inside.canary import Canary
from hashidrill.staging.carriers.inside import restart
from hashidrill.staging.carriers.inside.notes import Note
from hashidrill.staging.carriers.inside.observers import Observers
from hashidrill.staging.carriers.inside.system import RefusedError, System

ROOTS = "root's own"
ME = os.getuid(), os.getgid()


@pytest.fixture
def theirs(tmp_path):
    """A folder that the agent's user may write."""
    folder = tmp_path / "agent"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture
def victim(tmp_path):
    """A file of root's that nothing may touch."""
    file = tmp_path / "victim"
    file.write_text(ROOTS)
    return file


def everywhere(monkeypatch, folder, victim):
    """Links to the victim under every name that a file of ours may have."""
    for number in range(3):
        (folder / f".canary-{number}").symlink_to(victim)
    (folder / ".canary").symlink_to(victim)
    real = os.open

    def without_nameless_files(path, flags, *more, **named):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", without_nameless_files)


@pytest.mark.lie
@pytest.mark.parametrize("made", [Canary, lambda data: Observers(data, System())], ids=["canary", "observers"])
@pytest.mark.parametrize("op", [{"op": "write", "size": 4096}, {"op": "fsync"}, {"op": "read", "size": 10}])
def test_an_observer_writes_into_no_file_that_a_link_leads_to(monkeypatch, theirs, victim, made, op):
    everywhere(monkeypatch, theirs, victim)
    with contextlib.suppress(OSError):
        made(str(theirs)).answer(dict(op))
    assert victim.read_text() == ROOTS
    assert {one.name for one in theirs.iterdir()} == {".canary", ".canary-0", ".canary-1", ".canary-2"}


@pytest.mark.parametrize("op", [{"op": "write", "size": 4096}, {"op": "fsync"}])
def test_a_folder_that_is_a_link_of_others_is_not_tried(theirs, tmp_path, op):
    (tmp_path / "roots").mkdir()
    (theirs / "data").symlink_to(tmp_path / "roots")
    with pytest.raises(OSError, match="data in it is a link that a user other than root may have made"):
        Observers(str(theirs / "data"), System()).answer(dict(op))
    assert [*(tmp_path / "roots").iterdir()] == []


def test_the_canary_of_a_host_of_ours_leaves_no_new_file(tmp_path):
    one = Canary(str(tmp_path))
    assert one.answer({"op": "write", "size": 10})["errno"] == 0
    assert one.answer({"op": "fsync"})["errno"] == 0
    assert [path.name for path in tmp_path.iterdir()] == [canary._FILE]


@pytest.mark.lie
@pytest.mark.parametrize("link", [".zzz-hashidrill.json.new", "zzz-hashidrill.json"])
def test_settings_are_written_through_no_link(theirs, victim, link):
    (theirs / link).symlink_to(victim)
    restart.write_settings(theirs / restart.NAME, {"a": 1}, ME)
    assert victim.read_text() == ROOTS
    assert (theirs / restart.NAME).read_text() == '{"a": 1}'
    assert not (theirs / restart.NAME).is_symlink()
    assert [one.name for one in theirs.iterdir()] == [restart.NAME]


def conf(theirs, tmp_path):
    (tmp_path / "etc").mkdir()
    (theirs / "conf").symlink_to(tmp_path / "etc")
    return theirs / "conf" / restart.NAME


def test_settings_go_into_no_folder_that_a_link_of_others_leads_to(theirs, tmp_path):
    path = conf(theirs, tmp_path)
    with pytest.raises(RefusedError, match="conf in it is a link that a user other than root may have made"):
        restart.write_settings(path, {"a": 1}, ME)
    assert [*(tmp_path / "etc").iterdir()] == []


def test_settings_are_removed_and_read_through_no_link_of_others(theirs, tmp_path):
    path = conf(theirs, tmp_path)
    (tmp_path / "etc" / restart.NAME).write_text('{"secret": 1}')
    for act in (restart.remove_settings, restart.added_settings):
        with pytest.raises(RefusedError, match="conf in it is a link"):
            act(path)
    assert (tmp_path / "etc" / restart.NAME).exists()


def test_a_fifo_in_the_place_of_settings_holds_nothing_up(theirs):
    os.mkfifo(theirs / restart.NAME)
    with pytest.raises(RefusedError, match="not a regular file"):
        restart.added_settings(theirs / restart.NAME)


def test_a_note_is_written_below_no_link_of_others(theirs, tmp_path):
    (tmp_path / "roots").mkdir()
    (theirs / "x").symlink_to(tmp_path / "roots")
    with pytest.raises(RefusedError, match="x in it is a link that a user other than root may have made"):
        Note(theirs / "x" / "notes", "f").write({})
    assert [*(tmp_path / "roots").iterdir()] == []


def has_command(pid):
    """Waits for its command line: just after exec there is none yet."""
    while not System().command(pid):
        time.sleep(0.001)


class Started:
    """A process of ours whose output goes into a log, as `restart.remembered` has it."""

    def __init__(self, log, words, units):
        with log.open("ab") as out:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.system = System()
        has_command(self.process.pid)
        self.memo = restart.remembered(self.system, self.system.reference(self.process.pid), units)
        self.process.kill()
        self.process.wait()

    def again(self):
        """Starts it as the revert does, and ends it once it has spoken."""
        restart.start(self.memo)
        for _ in range(1500):
            found = restart.running(self.system, self.memo)
            if found and self._waits(int(found[0].partition("@")[0])):
                break
            time.sleep(0.02)
        for one in found:
            self.system.signal(one, signal.SIGKILL)
        assert found, "it did not come back"

    @staticmethod
    def _waits(pid):
        return bool((Path("/proc") / str(pid) / "task" / str(pid) / "children").read_text())


def started(log, tmp_path, number):
    """It lives until it is killed, however late that is seen, and at most a minute."""
    words = f"echo said; n=0; while [ $n -lt {600 + number} ]; do sleep 0.1; n=$((n+1)); done"
    return Started(log, ["sh", "-c", words], tmp_path / "none")


@pytest.mark.lie
def test_a_process_without_a_command_line_cannot_be_restarted(tmp_path, monkeypatch):
    """Every kernel thread has the same one: the revert found the agent running, and sent them its signals."""
    monkeypatch.setattr(System, "command", lambda _self, _pid: [])  # as just after exec
    with pytest.raises(RefusedError, match=f"process {os.getpid()} has no command line"):
        restart.remembered(System(), System().reference(os.getpid()), tmp_path / "none")


def test_the_log_of_a_process_that_comes_back_is_the_one_that_it_had(tmp_path, theirs):
    one = started(theirs / "log", tmp_path, 31)
    (theirs / "log").write_text("")
    one.again()
    deadline = time.monotonic() + 10
    while not (theirs / "log").read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (theirs / "log").read_text() == "said\n"


def led_away(log, victim):
    log.unlink()
    log.symlink_to(victim)


def led_away_above(log, victim):
    log.parent.rename(log.parent.with_name("moved"))
    log.parent.symlink_to(victim.parent)
    victim.rename(victim.with_name("log"))


@pytest.mark.lie
@pytest.mark.parametrize("swap", [led_away, led_away_above])
def test_a_log_that_has_become_a_link_of_others_is_not_written(tmp_path, theirs, victim, swap):
    (theirs / "logs").mkdir()
    (theirs / "logs").chmod(0o777)
    one = started(theirs / "logs" / "log", tmp_path, 32)
    swap(theirs / "logs" / "log", victim)
    one.again()
    assert (victim if victim.exists() else victim.with_name("log")).read_text() == ROOTS


@pytest.mark.lie
def test_a_file_that_a_process_only_reads_is_not_its_log(tmp_path, victim):
    """Otherwise an agent chooses by its standard output what root opens to write."""
    with victim.open() as out:
        process = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        has_command(process.pid)
        memo = restart.remembered(System(), System().reference(process.pid), tmp_path / "none")
    finally:
        process.kill()
        process.wait()
    assert memo["output"] == [None, None]


# what walks


def test_links_of_the_administrator_are_followed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")
    (tmp_path / "absolute").symlink_to(tmp_path / "a")
    (tmp_path / "relative").symlink_to("absolute/../a/.")
    (tmp_path / "a" / "link").symlink_to("file")
    os.close(trusted_paths.open_file(tmp_path / "relative" / "link", os.O_RDONLY))


def test_links_in_a_circle_end(tmp_path):
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(OSError, match="is a link"), trusted_paths.folder(tmp_path / "a"):
        pass


def test_no_descriptor_is_left_open(theirs, tmp_path):
    conf(theirs, tmp_path)
    open_ones = Path("/proc/self/fd")
    before = [*open_ones.iterdir()]
    for path in (theirs / "conf", theirs / "none" / "x", tmp_path / "etc"):
        with contextlib.suppress(OSError), trusted_paths.folder(path):
            pass
    assert [*open_ones.iterdir()] == before
