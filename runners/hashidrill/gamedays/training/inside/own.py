"""Logs, CPU and disk of a host in a trainee's shell: only the host's own.

A process that breaks a link runs on the host like its agents, and its own log would reveal it.

It uses only the standard library: it runs next to the shell of a trainee.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from hashidrill.core.util import syscalls as sc

_MS_RDONLY, _MS_REMOUNT = 1, 32
_LOCKED = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC
"""These numbers are also the flags of a mount."""


def logs(new: str, host: Mapping[str, Any], mount: Callable[..., None] = sc.mount) -> None:
    """Mounts only the agents' logs of the host in the root `new`, read-only. Raises OSError.

    The logs show who told a server to leave (hashidrill.gamedays.training.harm), so a trainee must not write to them.
    """
    folder = f"{host['folder']}/logs"
    kept = [path for agent in host["agents"] if os.path.isfile(path := f"{folder}/{agent}.log")]  # noqa: PTH113 - no pathlib here
    mount("none", new + folder, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=755,size=64k")
    for path in kept:
        os.close(os.open(new + path, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(path, new + path, "", sc.MS_BIND)
        kept_flags = os.statvfs(path).f_flag & _LOCKED  # the kernel refuses a mount without its source's flags
        mount("none", new + path, "", sc.MS_BIND | _MS_REMOUNT | _MS_RDONLY | kept_flags)


_DISK = ("read", "write", "fsync")
_SECTOR = 512


def disk_figures(done: Mapping[str, Any], busy_s: float) -> str:
    """A line as in /proc/diskstats (Linux, Documentation/admin-guide/iostats.rst); an fsync counts as a flush."""
    (reads, read, read_s), (writes, wrote, write_s), (flushes, _, flush_s) = (done[each] for each in _DISK)
    first = [reads, 0, read // _SECTOR, read_s * 1000, writes, 0, wrote // _SECTOR, write_s * 1000]
    then = [0, busy_s * 1000, (read_s + write_s + flush_s) * 1000, 0, 0, 0, 0, flushes, flush_s * 1000]
    return f" 254       0 vda {' '.join(str(round(each)) for each in [*first, *then])}\n"


def write_disk_figures(spec: Mapping[str, Any], path: str) -> None:
    """Overwrites the file, which a shell sees as /proc/diskstats, with what the host's disk did so far."""
    line = disk_figures(dict.fromkeys(_DISK, (0, 0, 0)), 0)
    with contextlib.suppress(OSError, ValueError, LookupError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(f"{spec['root']}/s/diskd")
        connection.sendall(json.dumps({"op": "counts", "host": spec["host"]}).encode() + b"\n")
        with connection.makefile("rb") as lines:
            answer = json.loads(lines.readline())
        line = disk_figures(answer["done"], answer["busy_s"])
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    os.pwrite(fd, line.encode(), 0)  # never shorter than before: counters grow
    os.close(fd)


def enter(spec: Mapping[str, Any]) -> None:
    """Puts the calling process, the parent of a shell, on that host, so that it gets the host's share of the CPU."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(f"{spec['root']}/s/{spec['host']}.host")
        connection.sendall(json.dumps({"op": "enter", "pid": os.getpid()}).encode() + b"\n")
        connection.recv(64)
