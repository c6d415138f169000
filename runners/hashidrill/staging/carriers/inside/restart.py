"""How an agent that was killed comes back: by its service manager, or by the command that it was."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import stat
from pathlib import Path
from typing import Any

from hashidrill.core.util import trusted_paths
from hashidrill.staging.carriers.inside.system import RefusedError, System, parted

_SYSTEMD = Path("/run/systemd/system")
"""It exists where systemd runs the host (sd_booted(3)); what is below it is gone after a restart of the host."""
_DROP_IN = "99-hashidrill.conf"


def remembered(system: System, reference: str, units: Path = _SYSTEMD) -> dict[str, Any]:
    """How to start that process again: `{"unit"}`, or its command and all that it ran with.

    Raises RefusedError where that is not sure, as it is below a supervisor or in a container.
    """
    pid, _ = parted(reference)
    home = system.proc / str(pid)
    try:
        if units.is_dir() and (unit := _unit((home / "cgroup").read_text())):
            if (main := _main_pid(system, unit)) != pid:
                raise RefusedError(
                    "cannot-restart",
                    f"process {pid} is not the main process of {unit} ({main or 'none'} is), so systemd cannot start it"
                    " again; run the agent as a service of its own",
                )
            return {"unit": unit}
        if not all(_shared(home, system.proc / "self", what) for what in ("ns/mnt", "root")):
            raise RefusedError(
                "cannot-restart",
                f"process {pid} sees other files than this host's, as in a container: its command cannot be started"
                " again from here",
            )
        status = (home / "status").read_text()
        return {
            "argv": system.command(pid),
            "cwd": _link(home / "cwd"),
            "exe": _link(home / "exe").replace(" (deleted)", ""),
            "environment": (home / "environ").read_bytes().decode(errors="surrogateescape").split("\0")[:-1],
            "uid": _ids(status, "Uid")[1],
            "gid": _ids(status, "Gid")[1],
            "groups": _ids(status, "Groups"),
            "output": [_log(home, 1), _log(home, 2)],
            "files": resource.prlimit(pid, resource.RLIMIT_NOFILE),
            "net": (home / "ns" / "net").stat().st_ino,
        }
    except OSError as error:
        raise RefusedError(
            "cannot-restart", f"how to start process {pid} again cannot be read: {error.strerror}"
        ) from None


def _unit(cgroup: str) -> str:
    """The systemd service of a process; "" for none."""
    for line in cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (number == "0" and not controllers) or controllers == "name=systemd":
            found = re.findall(r"([^/]+\.service)(?:/|$)", path)
            if found and not found[-1].startswith("user@"):
                return str(found[-1])
    return ""


def _main_pid(system: System, unit: str) -> int:
    """0 for none."""
    _, said, _ = system.run(["systemctl", "show", "--property=MainPID", "--value", unit])
    return int(said.strip() or 0)


def _shared(home: Path, own: Path, what: str) -> bool:
    """Whether two processes, by their folders in /proc, have the same namespace or folder."""
    return os.path.samestat((home / what).stat(), (own / what).stat())


def _ids(status: str, key: str) -> list[int]:
    return [int(one) for one in re.search(rf"^{key}:[ \t]*(.*)$", status, re.MULTILINE).group(1).split()]  # type: ignore[union-attr]


def _link(path: Path) -> str:
    return os.readlink(path)  # noqa: PTH115 - Path.readlink is of Python 3.9


def _log(home: Path, fd: int) -> dict[str, Any] | None:
    """The file that its output goes into, by its path and by itself; None for a pipe, a socket or a terminal.

    None too for one that it cannot write: root opens it again to write, as its process did.
    """
    path, found = _link(home / "fd" / str(fd)), (home / "fd" / str(fd)).stat()
    flags = int((home / "fdinfo" / str(fd)).read_text().partition("flags:")[2].split()[0], 8)
    writes = flags & os.O_ACCMODE != os.O_RDONLY
    return {"path": path, "file": _which(found)} if stat.S_ISREG(found.st_mode) and writes else None


def _which(found: os.stat_result) -> list[int]:
    return [found.st_dev, found.st_ino]


def keep_down(system: System, memo: dict[str, Any], units: Path = _SYSTEMD) -> None:
    """Has the service manager leave it down. Raises RefusedError."""
    if "unit" in memo:
        folder = units / f"{memo['unit']}.d"
        folder.mkdir(exist_ok=True)
        (folder / _DROP_IN).write_text("[Service]\nRestart=no\n")
        _systemctl(system, "daemon-reload")


def come_back(system: System, memo: dict[str, Any], units: Path = _SYSTEMD) -> None:
    """Starts it unless it runs. Raises RefusedError."""
    if "unit" not in memo:
        if not running(system, memo):
            start(memo)
        return
    folder = units / f"{memo['unit']}.d"
    with contextlib.suppress(FileNotFoundError):
        (folder / _DROP_IN).unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()  # unless somebody else's file is in it
    _systemctl(system, "daemon-reload")
    system.run(["systemctl", "reset-failed", memo["unit"]])
    _systemctl(system, "start", memo["unit"])


def _systemctl(system: System, *words: str) -> None:
    code, _, errors = system.run(["systemctl", *words])
    if code:
        raise RefusedError("systemctl", f"systemctl {' '.join(words)}: {errors}")


def running(system: System, memo: dict[str, Any]) -> list[str]:
    """The processes that are what was killed, as `PID@START`, zombies left out."""
    if "unit" in memo:
        reference = system.reference(_main_pid(system, memo["unit"]))
        return [reference] if reference else []
    found = []
    for pid in system.pids():
        if system.command(pid) == memo["argv"]:
            with contextlib.suppress(OSError):
                net = (system.proc / str(pid) / "ns" / "net").stat().st_ino
                reference = system.reference(pid)
                if net == memo["net"] and system.state(reference) not in {"Z", "X", ""}:
                    found.append(reference)
    return found


def _reopened(log: dict[str, Any] | None, *, same: bool) -> int:
    """A log, to append to; 0 for none. `same`: only the very file that the process had open.

    As root, that file alone: the agent's user may have put another one, or a link, in its place meanwhile. Without
    root's rights, whatever that user may open, as after a rotation.
    """
    if log is None:
        return 0
    try:
        opened = trusted_paths.open_file(log["path"], os.O_WRONLY | os.O_APPEND)
    except OSError:
        return 0
    if same and _which(os.fstat(opened)) != log["file"]:
        os.close(opened)
        return 0
    os.set_blocking(opened, True)
    return opened


def start(memo: dict[str, Any]) -> None:
    """The command again, in a session of its own, and a child of nobody's who could end with it."""
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        _become(memo)
    finally:
        os._exit(127)


def _become(memo: dict[str, Any]) -> None:
    nothing = os.open("/dev/null", os.O_RDWR)
    outputs = [_reopened(log, same=True) for log in memo["output"]]
    soft, hard = memo["files"]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    os.chdir(memo["cwd"])
    if os.geteuid() == 0:
        if sorted(os.getgroups()) != sorted(memo["groups"]):
            os.setgroups(memo["groups"])
        os.setgid(memo["gid"])
        os.setuid(memo["uid"])
    for fd, output, log in zip((1, 2), outputs, memo["output"]):  # noqa: B905 - of one length; Python 3.8
        os.dup2(output or _reopened(log, same=False) or nothing, fd)
    os.dup2(nothing, 0)
    os.closerange(3, 1024)
    environment = dict(one.partition("=")[::2] for one in memo["environment"])
    os.execve(memo["exe"], memo["argv"], environment)  # noqa: S606 - the very command that ran before
