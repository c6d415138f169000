"""PID 1 of a sandbox: makes the namespaces, starts the sandbox's command, reaps processes, and ends with the command.

When this process ends, the kernel ends everything in the PID namespace and removes its mounts, network namespaces and
rules. The process is set to die with its parent, so nothing outlives the runner.

    python -I -S -c BOOT '{"command": [...], "parent": 123, "pid_file": "..."}'
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
from typing import Any

from hashidrill.core.util import syscalls as sc

_ENDING = (signal.SIGINT, signal.SIGTERM)
_INTERRUPTED = 130
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def main(spec: dict[str, Any]) -> int:
    """Sets up the namespaces, runs `spec["command"]`, returns its exit code. Raises OSError if the kernel refuses."""
    if os.getppid() != spec["parent"]:  # the parent was killed while this process started
        return _INTERRUPTED
    _enter_namespaces()
    sc.die_with_parent(spec["parent"])
    for number in _ENDING:  # the kernel drops signals that PID 1 does not handle: an early Ctrl-C would be lost
        signal.signal(number, lambda _number, _frame: os._exit(_INTERRUPTED))
    alive, held = os.pipe()  # only this process holds its write end: end of file means that it has ended
    first = os.fork()
    if first == 0:
        os.close(held)
        _as_pid_one(alive, spec)
    os.close(alive)
    _let_go_of_input()
    _write_atomically(spec["pid_file"], str(first))
    for number in _ENDING:
        signal.signal(number, lambda received, _frame: _forward(first, received))
    return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])


def _let_go_of_input() -> None:
    """Closes standard input, which only the command may read: if it were open here, /proc/PID/fd/0 would show it."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _forward(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _enter_namespaces() -> None:
    uid, gid = os.geteuid(), os.getegid()
    flags = sc.CLONE_NEWNS | sc.CLONE_NEWNET | sc.CLONE_NEWPID | sc.CLONE_NEWIPC
    if uid != 0:
        sc.unshare(flags | sc.CLONE_NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {uid} 1")
        _write("/proc/self/gid_map", f"0 {gid} 1")
    else:
        sc.unshare(flags)


def _as_pid_one(parent_alive: int, spec: dict[str, Any]) -> None:
    try:
        sc.die_with_parent(0)  # the parent is outside of this PID namespace: its pid is 0 here, dead or alive
        if select.select([parent_alive], [], [], 0)[0]:
            os._exit(1)
        sc.mount("none", "/", "", sc.MS_REC | sc.MS_PRIVATE)
        sc.mount("proc", "/proc", "proc", sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC)
        sc.mount("hashidrill", "/run", "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=755,size=16m")
        loopback_up()
        command = os.fork()
        if command == 0:
            sc.die_with_parent(1)
            environment = {**os.environ, **spec.get("environment", {})}
            os.execvpe(spec["command"][0], spec["command"], environment)  # noqa: S606 - our own command
        _let_go_of_input()
        os._exit(_reap_until(command))
    except OSError as error:
        sys.stderr.write(f"sandbox: {error}\n")
        sys.stderr.flush()
        os._exit(70)
    finally:
        os._exit(71)


def _reap_until(command: int) -> int:
    for number in _ENDING:
        signal.signal(number, lambda received, _frame: _forward(command, received))
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == command:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def loopback_up() -> None:
    """Brings up `lo` of the current network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _write_atomically(path: str, text: str) -> None:
    with open(path + ".new", "w") as file:  # noqa: PTH123 - pathlib costs an import here
        file.write(text)
    os.replace(path + ".new", path)  # noqa: PTH105 - as above


if __name__ == "__main__":
    try:
        sys.exit(main(json.loads(sys.argv[1])))
    except OSError as failure:
        sys.stderr.write(f"sandbox: {failure}\n")
        sys.exit(70)
