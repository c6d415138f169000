"""The init of one host: its network namespace, its disk filter, its agents.

Everything that runs on the host is a child of this process, so the seccomp filter that makes the host's disk slow or
broken covers agents and canary alike. Requests come over a Unix socket (see rpc.py):

    {"op": "net", "address": "10.73.0.11", "prefix": 24}      configure eth0 and lo
    {"op": "start", "agent": "consul", "argv": [...], "log": "...", "environment": {...}, "as_root": true}
    {"op": "start", ..., "armed": true}                       with root's rights over this host, which others lose
    {"op": "start", "agent": "consul"}                        repeat the last start
    {"op": "agent", "agent": "consul"}                        -> {"pid", "start_time", "state"} or {"pid": null}
    {"op": "throttle", "name": "...", "cores": 0.1}           by stopping processes, where cgroups are unavailable
    {"op": "unthrottle", "name": "..."}
    {"op": "join", "files": ["/sys/fs/cgroup/.../cgroup.procs"]}   move all host processes, even shells, into a cgroup
    {"op": "hold", "files": [...]}                            the same for agents only, present and later ones
    {"op": "take", "name": "...", "size": N}                  start a process in the agents' cgroup that holds N bytes
    {"op": "release", "name": "..."}                          end that process
    {"op": "enter", "pid": 4711}                              move a process that is now on this host into its cgroup
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any

from hashidrill.core.util import syscalls as sc
from hashidrill.lab.local.inside import canary
from hashidrill.lab.sandbox.init import loopback_up
from hashidrill.lab.sandbox.rpc import Server

_LOOK_EVERY_S = 0.2


class Armed:
    """`processes` is the folder that shows the processes of this host's network namespace, as links into /proc."""

    def __init__(self, processes: str) -> None:
        self._folder = processes
        self._asked: queue.SimpleQueue[tuple[tuple[Any, ...], queue.SimpleQueue[Any]]] = queue.SimpleQueue()
        os.makedirs(processes, exist_ok=True)  # noqa: PTH103 - no pathlib here
        threading.Thread(target=self._serve, name="armed", daemon=True).start()

    def spawn(self, argv: list[str], null: int, output: int, environment: dict[str, str]) -> int:
        """Starts the program as a child of this process; returns its pid. Raises OSError."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asked.put(((argv, null, output, environment), answer))
        came = answer.get()
        if isinstance(came, OSError):
            raise came
        return int(came)

    def _serve(self) -> None:
        own = os.readlink("/proc/thread-self/ns/net")  # noqa: PTH115 - a namespace is no path
        while True:
            try:
                (argv, null, output, environment), answer = self._asked.get(timeout=_LOOK_EVERY_S)
            except queue.Empty:
                pass
            else:
                answer.put(_spawned(argv, null, output, environment))
            self._show(own)

    def _show(self, namespace: str) -> None:
        """Updates the folder: a new process appears here a moment later than in /proc."""
        shown = set(os.listdir(self._folder))  # noqa: PTH208 - no pathlib here
        there = {name for name in os.listdir("/proc") if name.isdigit() and _namespace(name) == namespace}  # noqa: PTH208 - as above
        for name in shown - there:
            with contextlib.suppress(OSError):
                os.unlink(f"{self._folder}/{name}")  # noqa: PTH108 - as above
        for name in there - shown:
            with contextlib.suppress(OSError):
                os.symlink(f"/proc/{name}", f"{self._folder}/{name}")  # noqa: PTH211 - as above


def _namespace(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")  # noqa: PTH115 - a namespace is no path
    except OSError:
        return ""


def _spawned(argv: list[str], null: int, output: int, environment: dict[str, str]) -> int | OSError:
    actions = [(os.POSIX_SPAWN_DUP2, null, 0), *((os.POSIX_SPAWN_DUP2, output, fd) for fd in (1, 2))]
    try:
        return os.posix_spawn(argv[0], argv, environment, file_actions=actions, setsigmask=[])
    except OSError as error:
        return error


_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8916, 0x891C, 0x8913, 0x8914, 1
_OPEN_FILES = 65_536
_DUTY_PERIOD_S, _DUTY_LOOK_S = 0.1, 0.001
_ENDS_WITHIN_S = 20.0
"""How long the kernel may take to end a killed agent; shorter than the caller's wait for an answer (30 s, hosts.py)."""
_DYING_LOOK_S = 0.01
_ANOTHER_NUMBER = 1
"""Neither 0 nor 65534: the kernel shows files of users without a number in here as owned by 65534. A Nomad client
with that number would mistake a `nomad.slice` of the machine's root for its own, and use cgroups (v2) that it may not
write to.
"""


_TAKER = """
import mmap, sys
sys.stdin.readline()
held = mmap.mmap(-1, int(sys.argv[1]))
for page in range(0, len(held), mmap.PAGESIZE):
    held[page] = 1
print("held", flush=True)
sys.stdin.read()
"""
"""Ends with this process, which holds the other end of its input."""


class _Spent:
    """CPU time that processes use between two calls."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {}

    def since_last(self, pids: list[int]) -> float:
        now = {pid: sc.cpu_seconds(pid) for pid in pids}
        used = sum(max(0.0, seconds - self._known.get(pid, seconds)) for pid, seconds in now.items())
        self._known = now
        return used


class HostDaemon:
    """The agents of one host. Thread-safe: requests come from several connections."""

    def __init__(
        self,
        canary_pid: int,
        ends_within_s: float = _ENDS_WITHIN_S,
        *,
        folder: str = "",
        user: list[int] | None = None,
        armed: Armed | None = None,
    ) -> None:
        """`user` is the [uid, gid] that agents run as; binaries that this user cannot read are mounted in `folder`."""
        self._armed = armed
        self._ends_within_s = ends_within_s
        self._folder, self._user = folder, user
        self._commands: dict[str, dict[str, Any]] = {}
        self._pids: dict[str, int] = {}
        self._exits: dict[str, int] = {}
        self._lock = threading.Lock()
        self._canary_pid = canary_pid
        self._cgroups: list[str] = []
        self._held: list[str] = []
        self._takers: dict[str, subprocess.Popen[bytes]] = {}
        self._mounted: dict[str, str] = {}
        self._throttles: dict[str, tuple[threading.Event, threading.Thread]] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        return dict(getattr(self, f"do_{request.pop('op')}")(**request) or {})

    def do_net(self, address: str, prefix: int) -> None:
        loopback_up()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            mask = socket.inet_ntoa(struct.pack(">I", (0xFFFF_FFFF << (32 - prefix)) & 0xFFFF_FFFF))
            for call, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, mask)):
                sockaddr = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
                fcntl.ioctl(sock, call, struct.pack("16s16s", b"eth0", sockaddr))
            flags = struct.unpack("16sh14x", fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("16sh14x", b"eth0", 0)))[1]
            fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"eth0", flags | _IFF_UP))

    def do_start(self, agent: str, **command: Any) -> dict[str, Any]:
        """Starts the agent unless it runs. Waits a limited time for an agent that is still ending."""
        ends = time.monotonic() + self._ends_within_s
        while True:
            with self._lock:  # released between two checks, so that other requests are answered meanwhile
                if command:
                    self._commands[agent] = command
                if agent not in self._commands:
                    return {"error": f"agent {agent} was never started here"}
                running = self._running(agent)
                if running is None:
                    self._pids[agent] = self._spawn(**self._commands[agent])
                    self._move([self._pids[agent]], [*self._cgroups, *self._held])
                elif running[0] == "Z" and time.monotonic() >= ends:
                    return {"error": self._still_ending(agent)}
                if running is None or running[0] != "Z":
                    break
            time.sleep(_DYING_LOOK_S)
        return self.do_agent(agent)

    def do_agent(self, agent: str) -> dict[str, Any]:
        with self._lock:
            state = self._running(agent)
            if state is None:
                return {"pid": None, "exit": self._exits.get(agent)}
            return {"pid": self._pids[agent], "state": state[0], "start_time": state[1]}

    def do_throttle(self, name: str, cores: float) -> None:
        """Stops and continues agents and canary so that together they use `cores` CPU seconds per second."""
        stop = threading.Event()
        with self._lock:
            if name in self._throttles:
                return
            thread = threading.Thread(target=self._cycle, args=(cores, stop), name=f"throttle {name}", daemon=True)
            self._throttles[name] = (stop, thread)
        thread.start()

    def do_unthrottle(self, name: str) -> None:
        with self._lock:
            stop, thread = self._throttles.pop(name, (None, None))
        if stop is not None and thread is not None:
            stop.set()
            thread.join()

    def _cycle(self, cores: float, stop: threading.Event) -> None:
        """In each period the processes run until they have used their share.

        Overuse is deducted from the next period. It continues only processes that it stopped itself.
        """
        stopped: set[int] = set()
        spent, allowed = _Spent(), 0.0
        while not stop.is_set():
            ends = time.monotonic() + _DUTY_PERIOD_S
            allowed = min(allowed, 0.0) + cores * _DUTY_PERIOD_S
            spent.since_last(self._all_pids())
            if allowed > 0:
                self._continue(stopped)
            while (left := ends - time.monotonic()) > 0 and not stop.is_set():
                if allowed > 0:
                    stop.wait(min(left, _DUTY_LOOK_S))
                    allowed -= spent.since_last(self._all_pids())
                else:
                    self._stop(stopped)
                    stop.wait(left)
        self._continue(stopped)

    def _all_pids(self) -> list[int]:
        with self._lock:
            return [*self._pids.values(), self._canary_pid]

    def _stop(self, stopped: set[int]) -> None:
        for pid in self._all_pids():
            state = sc.process_state(pid)
            if pid not in stopped and state is not None and state[0] != "T":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                stopped.add(pid)

    @staticmethod
    def _continue(stopped: set[int]) -> None:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        stopped.clear()

    def do_join(self, files: list[str]) -> None:
        with self._lock:
            self._cgroups = files
            self._move([*self._pids.values(), self._canary_pid, *_others_here()], files)

    def do_hold(self, files: list[str]) -> None:
        with self._lock:
            self._held = files
            self._move([*self._pids.values()], files)

    def do_take(self, name: str, size: int) -> dict[str, Any]:
        """Returns once a process holds `size` bytes, or the kernel has killed it."""
        command = [sys.executable, "-IS", "-c", _TAKER, str(size)]
        taker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with self._lock:
            self._takers[name] = taker
            self._move([taker.pid], [*self._cgroups, *self._held])
        assert taker.stdin is not None
        assert taker.stdout is not None
        with contextlib.suppress(OSError):
            taker.stdin.write(b"\n")
            taker.stdin.flush()
        return {"held": taker.stdout.readline() == b"held\n"}

    def do_release(self, name: str) -> None:
        with self._lock:
            taker = self._takers.pop(name, None)
        if taker is not None:
            with taker:
                taker.kill()

    def do_resident(self, name: str) -> dict[str, Any]:
        """Bytes that the process of that agent or taker holds outside of files."""
        with self._lock:
            pid = self._takers[name].pid if name in self._takers else self._pids.get(name)
        return {"bytes": 0 if pid is None else sc.own_bytes(pid)}

    def do_enter(self, pid: int) -> None:
        with self._lock:
            self._move([pid], self._cgroups)

    @staticmethod
    def _move(pids: list[int], files: list[str]) -> None:
        for path in files:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError), open(path, "w") as procs:  # noqa: PTH123 - no pathlib
                    procs.write(str(pid))

    def _running(self, agent: str) -> tuple[str, int] | None:
        """The state and start time of the agent; None, after reaping it, if it has ended."""
        pid = self._pids.get(agent)
        if pid is None:
            return None
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            self._exits[agent] = os.waitstatus_to_exitcode(status)
            del self._pids[agent]
            return None
        return sc.process_state(pid)

    def _still_ending(self, agent: str) -> str:
        """The message for an agent whose first thread has ended, while others still hold its ports and files."""
        pid = self._pids[agent]
        left: list[str] = []
        with contextlib.suppress(OSError):
            left = [tid for tid in os.listdir(f"/proc/{pid}/task") if tid != str(pid)]  # noqa: PTH208 - no pathlib
        return (
            f"agent {agent} (pid {pid}) was killed and has not ended within {self._ends_within_s:g}s:"
            f" {len(left)} of its threads are left, held by the kernel (`cat /proc/{pid}/task/*/stack` says where);"
            " it was not started again"
        )

    def _spawn(
        self,
        argv: list[str],
        log: str,
        environment: dict[str, str] | None = None,
        *,
        as_root: bool = True,
        armed: bool = False,
    ) -> int:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        surroundings = {**os.environ, **(environment or {})}
        try:
            if armed and self._armed is not None:
                # an armed agent may write files next to its program: not into a cache that all hosts share
                return self._armed.spawn([self._reachable(argv[0]), *argv[1:]], null, output, surroundings)
            if self._user is not None:
                given = {"TMPDIR": self._temporary(self._user), **(environment or {})}
                return self._spawn_as(self._user, argv, null, output, {**surroundings, **given})
            if not as_root:
                return _spawn_renumbered(argv, null, output, surroundings)
            return _spawn_plainly(argv, null, output, surroundings)
        finally:
            os.close(output)
            os.close(null)

    def _spawn_as(self, user: list[int], argv: list[str], null: int, output: int, environment: dict[str, str]) -> int:
        process = subprocess.Popen(
            [self._reachable(argv[0]), *argv[1:]],
            env={**environment, "HOME": self._folder},
            cwd=self._folder,  # that user may not enter the runner's folder, and Prometheus would not start there
            stdin=null,
            stdout=output,
            stderr=output,
            user=user[0],
            group=user[1],
            extra_groups=[],
        )
        process.returncode = 0  # this daemon reaps its agents by itself: Popen must neither wait nor warn
        return process.pid

    def _temporary(self, user: list[int]) -> str:
        """The folder for temporary files of that user's agents, such as snapshots, because the runner's TMPDIR may be
        writable only for root.
        """
        folder = os.path.join(self._folder, "tmp")  # noqa: PTH118 - no pathlib here
        if not os.path.isdir(folder):  # noqa: PTH112 - as above
            os.mkdir(folder, 0o700)  # noqa: PTH102 - as above
            os.chown(folder, *user)
        return folder

    def _reachable(self, program: str) -> str:
        """A path of that file that any user can open, because only root may read root's caches."""
        source = os.path.realpath(program)
        if source not in self._mounted:
            # one folder per program, because two versions have the same name
            folder = os.path.join(self._folder, "bin", str(len(self._mounted)))  # noqa: PTH118 - no pathlib here
            os.makedirs(folder)  # noqa: PTH103 - as above
            for each in (os.path.dirname(folder), folder):  # noqa: PTH120 - as above
                os.chmod(each, 0o755)  # noqa: PTH101, S103 - whatever root's umask is
            there = os.path.join(folder, os.path.basename(source))  # noqa: PTH118, PTH119 - as above
            os.close(os.open(there, os.O_CREAT | os.O_WRONLY, 0o644))
            sc.mount(source, there, "", sc.MS_BIND)
            self._mounted[source] = there
        return self._mounted[source]


def _spawn_plainly(argv: list[str], null: int, output: int, environment: dict[str, str]) -> int:
    actions = [(os.POSIX_SPAWN_DUP2, null, 0), *((os.POSIX_SPAWN_DUP2, output, fd) for fd in (1, 2))]
    return os.posix_spawn(argv[0], argv, environment, file_actions=actions, setsigmask=[])


def _others_here() -> list[int]:
    """All other processes in this host's network namespace, including those that a person started."""
    here, found = os.readlink("/proc/self/ns/net"), list[int]()  # noqa: PTH115 - no pathlib here
    for name in os.listdir("/proc"):  # noqa: PTH208 - as above
        if name.isdecimal() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{name}/ns/net") == here:  # noqa: PTH115 - as above
                    found.append(int(name))
    return found


def _spawn_renumbered(argv: list[str], null: int, output: int, environment: dict[str, str]) -> int:
    """Runs as this sandbox's user (0 in here) under another number. Raises SubprocessError, OSError."""
    process = subprocess.Popen(
        argv,
        env=environment,
        stdin=null,
        stdout=output,
        stderr=output,
        preexec_fn=_renumber,  # noqa: PLW1509 - a user namespace can only be entered between fork and exec
    )
    process.returncode = 0  # as above
    return process.pid


def _renumber() -> None:
    """Changes the number while this process still has capabilities, which the kernel requires."""
    uid, gid = os.geteuid(), os.getegid()
    sc.unshare(sc.CLONE_NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{_ANOTHER_NUMBER} {uid} 1"),
        ("gid_map", f"{_ANOTHER_NUMBER} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - no pathlib here
            file.write(text)


def main(spec: dict[str, Any]) -> None:
    """spec: name, data, size_bytes (or null), operations, diskd, socket, canary_socket, agent_user ([uid, gid])."""
    sc.die_with_parent(spec["parent"])
    sc.unshare(sc.CLONE_NEWNET)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_OPEN_FILES, hard), hard))
    os.makedirs(spec["data"], exist_ok=True)  # noqa: PTH103 - no pathlib here
    if spec["size_bytes"]:
        sc.mount("hashidrill", spec["data"], "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, f"size={spec['size_bytes']}")
    if spec["agent_user"]:
        os.chown(spec["data"], *spec["agent_user"])
    if spec["operations"]:
        _hand_over(sc.notify_on(spec["operations"]), spec)
    canary_pid = os.fork()
    if canary_pid == 0:
        sc.die_with_parent(os.getppid())
        canary.main(spec["data"], spec["canary_socket"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    armed = Armed(spec["processes"]) if spec.get("processes") else None
    sc.disarm_programs()  # agents are under test: their errors must not reach the machine
    folder = os.path.dirname(spec["data"])  # noqa: PTH120 - no pathlib here
    daemon = HostDaemon(canary_pid, folder=folder, user=spec["agent_user"], armed=armed)
    Server(spec["socket"], daemon.answer).serve_forever()


def _hand_over(listener: int, spec: dict[str, Any]) -> None:
    with socket.socket(socket.AF_UNIX) as registration:
        registration.connect(spec["diskd"])
        hello = json.dumps({"host": spec["name"], "data": os.path.realpath(spec["data"])}).encode()
        socket.send_fds(registration, [hello], [listener])
        registration.recv(1)
    os.close(listener)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
