"""What a person does on a slow host is as slow as what its agents do: the disk by system call, the CPU by cgroup."""

import os
import struct

import pytest

from hashidrill.core.util import syscalls as sc
from hashidrill.lab.local.inside import diskd


class Released:
    """A host's disk whose answers are kept."""

    def __init__(self, rule, *, of_a_person, monkeypatch, fdinfo="flags:\t0100001\n", path="/hosts/consul-1/data/x"):
        self.disk = diskd.Disk(0, "/hosts/consul-1/data", {"slow": rule}, of_a_person=of_a_person)
        self.waits, self.let_go = [], []
        monkeypatch.setattr(diskd.Disk, "release", lambda _, notification, number=0: self.let_go.append(number))
        monkeypatch.setattr(diskd, "_is_synced", lambda *_: diskd.is_synced(fdinfo))
        monkeypatch.setattr(diskd.os, "readlink", lambda _: path)
        self.daemon = diskd.DiskDaemon.__new__(diskd.DiskDaemon)
        self.daemon._operations = sc.operation_of()
        self.daemon._random = diskd.random.Random(1)
        self.daemon._waiting = self

    def add(self, *_):
        self.waits.append(True)

    def calls(self, name, fd=3):
        number = sc._NUMBERS[os.uname().machine][name]
        self.daemon._decide(self.disk, bytearray(diskd._NOTIFICATION.pack(1, 9, 0, number, 0, 0, fd, 0, 4096, 0, 0, 0)))
        return bool(self.waits)


FSYNC, WRITE = (diskd.Rule(frozenset({each}), delay_s=0.5) for each in ("fsync", "write"))
SYNCED = "pos:\t0\nflags:\t0110001\nmnt_id:\t7\n"


@pytest.mark.lie
@pytest.mark.parametrize("call", ["fsync", "fdatasync", "sync", "syncfs"])
def test_every_way_to_sync_waits_for_a_slow_disk(call, monkeypatch):
    assert Released(FSYNC, of_a_person=True, monkeypatch=monkeypatch).calls(call)


def test_a_sync_of_everything_waits_wherever_its_caller_is(monkeypatch):
    """It names no file."""
    assert Released(FSYNC, of_a_person=True, monkeypatch=monkeypatch, path="/dev/null").calls("sync")
    assert not Released(FSYNC, of_a_person=True, monkeypatch=monkeypatch, path="/tmp/x").calls("syncfs")


@pytest.mark.lie
@pytest.mark.parametrize(
    ("of_a_person", "fdinfo", "waits"),
    [(True, SYNCED, True), (True, "flags:\t0100001\n", False), (False, SYNCED, False)],
)
def test_a_write_to_a_file_that_is_synced_each_time_is_an_fsync_too(of_a_person, fdinfo, waits, monkeypatch):
    """As `dd oflag=dsync`; agents are not asked, as that would cost each of their writes."""
    slow = Released(FSYNC, of_a_person=of_a_person, monkeypatch=monkeypatch, fdinfo=fdinfo)
    assert slow.calls("write") is waits
    assert len(slow.let_go) == (not waits)


def test_where_writes_are_slow_a_sync_is_not(monkeypatch):
    slow = Released(WRITE, of_a_person=True, monkeypatch=monkeypatch, fdinfo=SYNCED)
    assert not slow.calls("sync")
    assert slow.calls("write")


def figures(disk):
    return {operation: (each[0], each[1]) for operation, each in disk.done.operations.items()}


def test_a_disk_counts_what_is_done_on_it_and_how_long_that_waited(monkeypatch):
    slow = Released(FSYNC, of_a_person=False, monkeypatch=monkeypatch)
    for call in ("write", "fsync", "fsync"):
        slow.calls(call)
    assert figures(slow.disk) == {"read": (0, 0), "write": (1, 4096), "fsync": (2, 0)}
    assert slow.disk.done.operations["write"][2] == 0
    assert 0.9 < slow.disk.done.operations["fsync"][2] < 1.1
    assert 0.4 < slow.disk.done.busy_s < 0.6, "both waited at the same time"


@pytest.mark.lie
def test_what_a_connection_carries_is_not_done_on_the_disk(monkeypatch):
    slow = Released(FSYNC, of_a_person=False, monkeypatch=monkeypatch, path="socket:[7]")
    slow.calls("write")
    assert figures(slow.disk)["write"] == (0, 0)


@pytest.mark.parametrize(
    ("fdinfo", "synced"),
    [(SYNCED, True), ("flags:\t04110001\n", True), ("flags:\t0100001\n", False), ("pos:\t0\n", False), ("", False)],
)
def test_the_flags_of_an_open_file_are_read_as_the_kernel_writes_them(fdinfo, synced):
    assert diskd.is_synced(fdinfo) is synced


def test_a_shell_asks_before_it_syncs_a_whole_disk_and_an_agent_does_not(monkeypatch):
    seen = []
    monkeypatch.setattr(sc, "_filter", lambda _, trapped: seen.append(trapped) or struct.pack("=Q", 0))
    monkeypatch.setattr(sc, "_check", lambda result, _: result)
    monkeypatch.setattr(sc, "_libc", type("Libc", (), {"prctl": lambda *_: 0, "syscall": lambda *_: 5})())
    sc.notify_on(["fsync"])
    sc.notify_on(["fsync"], whole_disk=True)
    agent, shell = seen
    numbers = sc._NUMBERS[os.uname().machine]
    assert set(shell) - set(agent) == {numbers["sync"], numbers["syncfs"]}
