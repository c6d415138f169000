"""The observers on a host: the canary's own system calls and packets, and readings of /proc and nft.

Each line of standard input is a JSON object, answered on standard output with its `id`, in any order. The observers
end with standard input, and change nothing.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashidrill.core.util import trusted_paths
from hashidrill.lab.local.inside.canary import SWITCH_S, Canary, listen
from hashidrill.staging.carriers.inside import restart, slowdown
from hashidrill.staging.carriers.inside.system import RefusedError, System

if TYPE_CHECKING:
    from collections.abc import Iterator

_LISTEN = "0A"
_SYSCTL = Path("/proc/sys/net")
_ANY_PORT = 9
"""A port that never receives anything."""
_TICKS = os.sysconf("SC_CLK_TCK")


class Observers(Canary):
    """`data` is the folder for disk trials; "" for a process without them."""

    def __init__(self, data: str, system: System) -> None:
        super().__init__(data or "/nonexistent")
        self._folder, self._system = data, system

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        """A file without a name, so that no file is left in a foreign folder."""
        with trusted_paths.folder(self._folder) as folder:
            try:
                fd = os.open(".", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=folder)
            except OSError:  # a file system without such files
                name = self._new_name()
                fd = trusted_paths.create(folder, name)
                os.unlink(name, dir_fd=folder)
        try:
            yield fd
        finally:
            os.close(fd)

    _new = _open

    def do_facts(self) -> dict[str, Any]:
        """The capabilities of this host, and the reasons for missing ones."""
        lacks = {}
        for what, look in {"nft": self._nft, "strace": self._strace}.items():
            try:
                look()
            except RefusedError as error:
                lacks[what] = str(error)
        return {
            "root": self._system.is_root(),
            "lacks": lacks,
            "python": sys.version.split()[0],
            "cores": len(os.sched_getaffinity(0)),
        }

    def _nft(self) -> None:
        code, _, errors = self._system.run(["nft", "list", "tables"])
        if code:
            raise RefusedError("nft", f"nft: {errors}")

    def _strace(self) -> None:
        slowdown.check(self._system, [])

    def do_own(self, address: str) -> dict[str, Any]:
        """`why` this is not the host with that address or name; "" if it is."""
        try:
            found = sorted({str(one[4][0]) for one in socket.getaddrinfo(address, None, type=socket.SOCK_DGRAM)})
        except OSError as error:
            return {"why": f"{address} cannot be resolved there: {error.strerror}"}
        means = "" if found == [address] else f", which {address} means there,"
        for one in found:
            if ipaddress.ip_address(one).is_loopback:  # every host has it, so it identifies none
                return {"why": f"{one}{means} belongs to every host"}
            if not _is_own(one):
                return {"why": f"it does not have {one}{means and means[:-1]}"}
        return {"why": ""}

    def do_agent(self, words: list[str], address: str, port: int) -> dict[str, Any]:
        """The process whose command line begins with these words, wherever the program is.

        If several agents run in this network namespace, it is the one that listens at `address` and `port`. An agent
        that has just started may not listen yet: then it is the agent that does not listen on `port` at a
        different address.
        """
        found = [pid for pid in self._system.pids() if self._is(pid, words)]
        ours = [pid for pid in found if _net(pid) == _net(os.getpid())]
        if len(ours) > 1:
            ours = [pid for pid in ours if _parent(pid) not in ours]
        if len(ours) > 1:
            here, elsewhere = _listening(address, port)
            held = {pid: _sockets(pid) for pid in ours}
            ours = (
                [pid for pid in ours if held[pid] & here] or [pid for pid in ours if not held[pid] & elsewhere] or ours
            )
        if len(ours) > 1:
            return {"error": f"there are {len(ours)} processes `{' '.join(words)}`: {', '.join(map(str, ours))}"}
        stat = self._system.stat(ours[0]) if ours else None
        return {"pid": None} if stat is None else {"pid": ours[0], "state": stat[0], "start_time": stat[1]}

    def _is(self, pid: int, words: list[str]) -> bool:
        command = self._system.command(pid)
        if len(command) < len(words) or command[1 : len(words)] != words[1:]:
            return False
        name = os.path.basename(command[0])  # noqa: PTH119 - text, and no path of this machine's
        return name == words[0] or name.startswith(words[0] + "-")

    def do_state(self, reference: str) -> dict[str, Any]:
        return {"state": self._system.state(reference)}

    def do_cpu(self, pid: int) -> dict[str, Any]:
        """CPU seconds since the process started; 0 if it has ended."""
        try:
            fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return {"seconds": 0.0}
        return {"seconds": (int(fields[11]) + int(fields[12])) / _TICKS}

    def do_written(self, pid: int) -> dict[str, Any]:
        lines = (Path("/proc") / str(pid) / "io").read_text().splitlines()
        return {"bytes": int(dict(line.split(": ") for line in lines)["wchar"])}

    def do_data(self, pid: int) -> dict[str, Any]:
        """The folder of a file that a process writes and syncs: Raft's if it has one; "" for none."""
        found = []
        for fd in sorted((Path("/proc") / str(pid) / "fd").iterdir(), key=lambda one: int(one.name)):
            with contextlib.suppress(OSError):
                path = Path(os.readlink(fd))  # noqa: PTH115 - Path.readlink is of Python 3.9
                flags = (fd.parent.parent / "fdinfo" / fd.name).read_text()
                writes = int(flags.partition("flags:")[2].split()[0], 8) & os.O_ACCMODE
                if path.is_file() and writes and path.suffix != ".log" and path.parts[:3] != ("/", "var", "log"):
                    found.append(path.parent)
        raft = [folder for folder in found if "raft" in folder.parts]
        return {"folder": str((raft or found)[0]) if found else ""}

    def do_restarts(self, reference: str) -> dict[str, Any]:
        """`why` an ended process could not be started again; "" if it could."""
        try:
            restart.remembered(self._system, reference)
        except RefusedError as error:
            return {"why": str(error)}
        return {"why": ""}

    def do_settings(self, pid: int) -> dict[str, Any]:
        """The content of hashidrill's additional configuration file; `why` it cannot exist, or ""."""
        try:
            return {"why": "", "settings": restart.added_settings(restart.settings_file(self._system, pid))}
        except RefusedError as error:
            return {"why": str(error), "settings": {}}

    def do_traced(self, pid: int) -> dict[str, Any]:
        """The tracers of each thread of a process, and those of this one."""
        own = self._system.tracers(os.getpid())
        return {"tracers": sorted(self._system.tracers(pid)), "own": sorted(own)}

    def do_nft(self, words: list[str]) -> dict[str, Any]:
        code, said, errors = self._system.run(["nft", "-j", "list", *words])
        if code:
            return {"error": f"nft: {errors}"}
        return {"items": json.loads(said)["nftables"]}


def _is_own(address: str) -> bool:
    kind = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(kind, socket.SOCK_DGRAM) as bound, socket.socket(kind, socket.SOCK_DGRAM) as routed:
        try:
            bound.bind((address, 0))
            if not _binds_anything("ipv6" if ":" in address else "ipv4"):
                return True
            routed.connect((address, _ANY_PORT))  # packets to a host's own address come from it
            return bool(routed.getsockname()[0] == address)
        except OSError:
            return False


def _binds_anything(protocol: str) -> bool:
    """Whether sockets here may use addresses that the host does not own, as behind some load balancers."""
    try:
        return (_SYSCTL / protocol / "ip_nonlocal_bind").read_text().strip() != "0"
    except OSError:
        return False


def _net(pid: int) -> int:
    try:
        return (Path("/proc") / str(pid) / "ns" / "net").stat().st_ino
    except OSError:
        return 0


def _listening(address: str, port: int) -> tuple[set[str], set[str]]:
    """The sockets that listen on that port, as in /proc/PID/fd: at that IPv4 address or at all, and at others."""
    try:
        wanted = {socket.inet_aton(address)[::-1].hex().upper(), "0" * 8, "0" * 32}
    except OSError:
        return set(), set()
    found: tuple[set[str], set[str]] = set(), set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (Path("/proc/self/net") / table).read_text().splitlines()[1:]:
                fields = line.split()
                local, _, number = fields[1].partition(":")
                if int(number, 16) == port and fields[3] == _LISTEN:
                    found[local not in wanted].add(f"socket:[{fields[9]}]")
    return found


def _sockets(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for fd in (Path("/proc") / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(os.readlink(fd))  # noqa: PTH115 - as above
    return found


def _parent(pid: int) -> int:
    try:
        return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def main(told: dict[str, Any]) -> None:
    """Serves until standard input ends."""
    sys.setswitchinterval(SWITCH_S)
    observers, lock = Observers(told["data"], System()), threading.Lock()

    def say(answer: dict[str, Any]) -> None:
        with lock, contextlib.suppress(OSError):
            os.write(1, json.dumps(answer).encode() + b"\n")

    def answer(request: dict[str, Any]) -> None:
        number = request.pop("id")
        try:
            said = observers.answer(request)
        except OSError as error:
            said = {"error": f"{error.filename or ''} {error.strerror or error}".strip(), "errno": error.errno}
        except Exception as error:  # noqa: BLE001 - its caller gets it, and other callers are served
            said = {"error": f"{type(error).__name__}: {error}"}
        say({"id": number, **said})

    if told["listens"]:
        try:
            listen()
        except OSError as error:
            say({"event": "refused", "name": "port", "why": f"the canary's port cannot be used: {error.strerror}"})
            sys.exit(2)
    say({"event": "ready", "reference": System().reference(os.getpid())})
    for line in sys.stdin.buffer:
        threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()
