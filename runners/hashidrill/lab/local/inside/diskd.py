"""The disks of the sandbox: answers every trapped disk operation of every host, at once if no rule is set.

The kernel stops a host's processes before fsync (and, if requested, before read and write) until this process lets them
continue: at once, after a delay, or with an error (seccomp user notification). With no rule in force, this costs about
ten microseconds per operation. Rules come over a Unix socket (see rpc.py):

    {"op": "set", "host", "rule_id", "rule": {"operations": ["fsync"], "delay_s", "jitter_s", "share",
                                              "errno", "bytes_per_s"}}
    {"op": "clear", "host", "rule_id"}          releases at once all operations that this rule delays
    {"op": "rules", "host"} {"op": "counts", "host"}
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from hashidrill.core.util import syscalls as sc
from hashidrill.lab.sandbox.rpc import Server

# <linux/seccomp.h>: struct seccomp_notif is {u64 id; u32 pid, flags; struct seccomp_data data}, and its data is
# {int nr; u32 arch; u64 instruction_pointer, args[6]}
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
_RESPONSE = struct.Struct("=QqiI")
_IOCTL_RECEIVE, _IOCTL_SEND, _IOCTL_FLAGS = 0xC050_2100, 0xC018_2101, 0x4008_2104
_CONTINUE, _SYNC_WAKE_UP = 1, 1
_FORGET_S = 1.0
_PLACES_S = 1.0
_SYNCED = os.O_DSYNC
"""The flag of an open file on which each write is also an fsync. O_SYNC has this bit too."""


@dataclass(frozen=True)
class Rule:
    """The effect on the named operations: a delay (with jitter), an error, or a bandwidth, for a share of them."""

    operations: frozenset[str]
    delay_s: float = 0.0
    jitter_s: float = 0.0
    share: float = 1.0
    errno: int = 0
    bytes_per_s: float = 0.0


@dataclass
class Done:
    """The disk's counters since the host started, for people who watch it as with `iostat`.

    They count the reads, writes and fsyncs of the host's processes, and the time that rules delayed them. The time of
    the machine's own disk is not included.
    """

    operations: dict[str, list[float]] = field(
        default_factory=lambda: {operation: [0, 0, 0.0] for operation in ("read", "write", "fsync")}
    )
    """For each operation: the count, the bytes, and the total seconds of waiting."""
    busy_s: float = 0.0
    """Seconds in which at least one operation waited."""
    busy_until: float = 0.0

    def add(self, operation: str, size: int, now: float, due: float) -> None:
        """Counts an operation that begins now and waits until `due`."""
        figures = self.operations[operation]
        figures[0] += 1
        figures[1] += size
        if due > now:
            figures[2] += due - now
            self.busy_s += max(0.0, due - max(now, self.busy_until))
            self.busy_until = max(due, self.busy_until)


@dataclass
class Disk:
    """One host's disk: its listener, its rules, and its waiting operations."""

    listener: int
    data: str
    rules: dict[str, Rule] = field(default_factory=dict)
    free_at: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    pending: dict[tuple[int, int], float] = field(default_factory=dict)
    of_a_person: bool = False
    """Whether a person's shell uses it: people sync a whole disk, and open files whose every write is synced."""
    done: Done = field(default_factory=Done)
    places: dict[tuple[int, int], bool] = field(default_factory=dict)
    """For each (pid, file descriptor): whether the file is on the disk; used for figures only. Kept for a second,
    because file descriptors are reused.
    """
    places_since: float = 0.0

    def release(self, notification: int, number: int = 0) -> bool:
        """Lets one operation continue, or fail. False if its process was interrupted meanwhile."""
        response = _RESPONSE.pack(notification, 0, -number, 0 if number else _CONTINUE)
        try:
            fcntl.ioctl(self.listener, _IOCTL_SEND, response)
        except OSError:
            return False
        return True


class Waiting:
    """Operations that wait for their time, earliest first; one thread releases them."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Disk, int, str, tuple[int, int]]] = []
        self._changed = threading.Condition()
        self._order = itertools.count()
        threading.Thread(target=self._run, name="waiting", daemon=True).start()

    def add(self, due: float, disk: Disk, notification: int, rule_id: str, caller: tuple[int, int]) -> None:
        with self._changed:
            heapq.heappush(self._heap, (due, next(self._order), disk, notification, rule_id, caller))
            self._changed.notify()

    def let_go(self, disk: Disk, rule_id: str) -> None:
        """Releases all operations that wait because of this rule."""
        with self._changed:
            freed = [item for item in self._heap if item[2] is disk and item[4] == rule_id]
            self._heap = [item for item in self._heap if not (item[2] is disk and item[4] == rule_id)]
            heapq.heapify(self._heap)
        for item in freed:
            disk.release(item[3])
            disk.pending.pop(item[5], None)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._heap or self._heap[0][0] > time.monotonic():
                    self._changed.wait(self._heap[0][0] - time.monotonic() if self._heap else None)
                _, _, disk, notification, _, caller = heapq.heappop(self._heap)
            if disk.release(notification):
                disk.pending.pop(caller, None)


class DiskDaemon:
    """All disks by host name."""

    def __init__(self) -> None:
        self._disks: dict[str, list[Disk]] = {}
        """The listeners by host: the first belongs to the host's init; later ones use the same disk."""
        self._waiting = Waiting()
        self._random = random.Random(2021)
        self._operations = sc.operation_of()

    def register(self, host: str, data: str, listener: int) -> None:
        disks = self._disks.setdefault(host, [])
        disk = Disk(listener, data, disks[0].rules if disks else {}, of_a_person=bool(disks))
        disk.done = disks[0].done if disks else disk.done
        disks.append(disk)
        with contextlib.suppress(OSError):  # from Linux 6.6: wake the supervisor on the same core
            fcntl.ioctl(listener, _IOCTL_FLAGS, _SYNC_WAKE_UP)
        threading.Thread(target=self._serve, args=(disk,), name=f"disk {host}", daemon=True).start()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        disks = self._disks[request["host"]]
        rules = dict(disks[0].rules)
        if request["op"] == "set":
            given = dict(request["rule"])
            operations = frozenset(given.pop("operations"))
            rules[request["rule_id"]] = Rule(operations, **given)
        elif request["op"] == "clear":
            rules.pop(request["rule_id"], None)
        for disk in disks:
            disk.rules = rules
            if request["op"] == "clear":
                disk.free_at.pop(request["rule_id"], None)
                self._waiting.let_go(disk, request["rule_id"])
        done = disks[0].done
        return {"rules": sorted(rules), "counts": disks[0].counts, "done": done.operations, "busy_s": done.busy_s}

    def _serve(self, disk: Disk) -> None:
        notification, empty = bytearray(_NOTIFICATION.size), bytes(_NOTIFICATION.size)
        hung_up = select.poll()
        hung_up.register(disk.listener, select.POLLHUP)
        while True:
            notification[:] = empty  # the kernel refuses a buffer that is not zeroed
            try:
                fcntl.ioctl(disk.listener, _IOCTL_RECEIVE, notification, True)
            except OSError:  # the caller was killed before its request was read, or no process of the host is left
                if any(event & select.POLLHUP for _, event in hung_up.poll(0)):
                    self._gone(disk)
                    return
                continue
            if not disk.rules:
                disk.release(int.from_bytes(notification[:8], "little"))
                self._note(disk, notification, 0.0)
                continue
            self._decide(disk, notification)

    def _gone(self, disk: Disk) -> None:
        """Forgets a later listener. The listener of the host's init stays, because it holds the rules."""
        for disks in self._disks.values():
            if disk in disks[1:]:
                disks.remove(disk)
                os.close(disk.listener)

    def _decide(self, disk: Disk, notification: bytearray) -> None:
        identity, pid, _, number, _, _, fd, _, count, *_ = _NOTIFICATION.unpack(notification)
        operation, name = self._operations[number]
        caller = (pid, number)
        rule_id, due = "", 0.0
        kinds = felt_as(operation, synced=disk.of_a_person and operation == "write" and _is_synced(pid, fd))
        for key, rule in disk.rules.items():
            if not kinds & rule.operations or not (name == "sync" or self._on_disk(disk, pid, fd)):
                continue
            if rule.share < 1 and self._random.random() >= rule.share:
                continue
            disk.counts[key] = disk.counts.get(key, 0) + 1
            if rule.errno:
                disk.release(identity, rule.errno)
                self._note(disk, notification, 0.0)
                return
            moment = self._due(disk, key, rule, count if "v" not in name else 4096)
            if moment > due:
                rule_id, due = key, moment
        if not rule_id:
            disk.release(identity)
            self._note(disk, notification, 0.0)
            return
        due = self._first_due(disk, caller, due)
        self._note(disk, notification, due)
        self._waiting.add(due, disk, identity, rule_id, caller)

    def _note(self, disk: Disk, notification: bytearray, due: float) -> None:
        """Counts an operation on the disk. If the operation need not wait, call this after its release."""
        _, pid, _, number, _, _, fd, _, count, *_ = _NOTIFICATION.unpack(notification)
        operation, name = self._operations[number]
        now = time.monotonic()
        if operation != "fsync":
            if now - disk.places_since > _PLACES_S:
                disk.places.clear()
                disk.places_since = now
            here = disk.places.get((pid, fd))
            if here is None:
                here = disk.places[pid, fd] = bool(due) or self._on_disk(disk, pid, fd)
            if not here:
                return
        size = 0 if operation == "fsync" else 4096 if "v" in name else count
        disk.done.add(operation, size, now, due)

    def _due(self, disk: Disk, key: str, rule: Rule, count: int) -> float:
        now = time.monotonic()
        if rule.bytes_per_s:
            free_at = max(disk.free_at.get(key, now), now) + count / rule.bytes_per_s
            disk.free_at[key] = free_at
            return free_at
        return now + max(0.0, rule.delay_s + self._random.uniform(-rule.jitter_s, rule.jitter_s))

    @staticmethod
    def _first_due(disk: Disk, caller: tuple[int, int], due: float) -> float:
        """Before Linux 5.19 a signal (Go sends itself signals) restarts the call, which then keeps its due time."""
        known = disk.pending.get(caller)  # left only by a call that was interrupted while it waited
        if known is not None and known > time.monotonic() - _FORGET_S:
            due = min(due, known)
        disk.pending[caller] = due
        return due

    @staticmethod
    def _on_disk(disk: Disk, pid: int, fd: int) -> bool:
        try:
            return os.readlink(f"/proc/{pid}/fd/{fd}").startswith(disk.data)  # noqa: PTH115 - no pathlib here
        except OSError:
            return False


def felt_as(operation: str, *, synced: bool) -> frozenset[str]:
    """The operations that a system call counts as for a rule: a write to a synced file is an fsync too."""
    return frozenset({operation, "fsync"} if operation == "write" and synced else {operation})


def is_synced(fdinfo: str) -> bool:
    """Whether /proc/PID/fdinfo/FD shows a file opened with O_SYNC or O_DSYNC."""
    flags = next((line.split()[1] for line in fdinfo.splitlines() if line.startswith("flags:")), "0")
    return bool(int(flags, 8) & _SYNCED)


def _is_synced(pid: int, fd: int) -> bool:
    try:
        with open(f"/proc/{pid}/fdinfo/{fd}") as file:  # noqa: PTH123 - no pathlib here
            return is_synced(file.read())
    except OSError:
        return False


def main(spec: dict[str, Any]) -> None:
    """spec: parent, socket (of rpc.py), registrations (the socket to which hostd sends its listener)."""
    sc.die_with_parent(spec["parent"])
    daemon = DiskDaemon()
    registrations = socket.socket(socket.AF_UNIX)
    registrations.bind(spec["registrations"] + ".new")
    registrations.listen(64)
    os.replace(spec["registrations"] + ".new", spec["registrations"])  # noqa: PTH105 - no pathlib here
    threading.Thread(target=Server(spec["socket"], daemon.answer).serve_forever, daemon=True).start()
    while True:
        connection, _ = registrations.accept()
        with connection:
            hello, fds, _, _ = socket.recv_fds(connection, 4096, 1)
            if fds:
                daemon.register(**json.loads(hello), listener=fds[0])
                connection.send(b"+")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
