"""Restarts an agent, by its service manager or its own command, and adds settings to it.

Added settings are one more file in the folder of the agent's `-config-dir`. The agent reads that folder in the order
of names, so this last file wins. No file of the agent's owner is changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashidrill.core.util import trusted_paths
from hashidrill.staging.carriers.inside.system import RefusedError, System, parted

if TYPE_CHECKING:
    from collections.abc import Sequence

_SYSTEMD = Path("/run/systemd/system")
"""Exists if systemd runs the host (sd_booted(3)); its content vanishes at a restart of the host."""
_DROP_IN = "99-hashidrill.conf"


def remembered(system: System, reference: str, units: Path = _SYSTEMD) -> dict[str, Any]:
    """How to start that process again: `{"unit"}`, or its command with its environment.

    Raises RefusedError if that is not certain, for example below a supervisor or in a container.
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
        if not (command := system.command(pid)):  # kernel threads have an empty one too, and would match
            raise RefusedError("cannot-restart", f"process {pid} has no command line: it is starting, or has ended")
        return {
            "argv": command,
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
    _, said, _ = system.run(["systemctl", "show", "--property=MainPID", "--value", unit])
    return int(said.strip() or 0)


def _shared(home: Path, own: Path, what: str) -> bool:
    return os.path.samestat((home / what).stat(), (own / what).stat())


def _ids(status: str, key: str) -> list[int]:
    return [int(one) for one in re.search(rf"^{key}:[ \t]*(.*)$", status, re.MULTILINE).group(1).split()]  # type: ignore[union-attr]


def _link(path: Path) -> str:
    return os.readlink(path)  # noqa: PTH115 - Path.readlink is of Python 3.9


def _log(home: Path, fd: int) -> dict[str, Any] | None:
    """The regular file that receives the process's output.

    None for a pipe, a socket, a terminal, or a file that the process cannot write, because root opens the file
    again to write.
    """
    path, found = _link(home / "fd" / str(fd)), (home / "fd" / str(fd)).stat()
    flags = int((home / "fdinfo" / str(fd)).read_text().partition("flags:")[2].split()[0], 8)
    writes = flags & os.O_ACCMODE != os.O_RDONLY
    return {"path": path, "file": _which(found)} if stat.S_ISREG(found.st_mode) and writes else None


def _which(found: os.stat_result) -> list[int]:
    return [found.st_dev, found.st_ino]


def keep_down(system: System, memo: dict[str, Any], units: Path = _SYSTEMD) -> None:
    """Keeps the service manager from starting the process. Raises RefusedError."""
    if "unit" in memo:
        folder = units / f"{memo['unit']}.d"
        folder.mkdir(exist_ok=True)
        (folder / _DROP_IN).write_text("[Service]\nRestart=no\n")
        _systemctl(system, "daemon-reload")


def come_back(system: System, memo: dict[str, Any], units: Path = _SYSTEMD) -> None:
    """Starts the process unless it runs. Raises RefusedError."""
    if "unit" not in memo:
        if not running(system, memo):
            start(memo)
        return
    folder = units / f"{memo['unit']}.d"
    with contextlib.suppress(FileNotFoundError):
        (folder / _DROP_IN).unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()  # unless it holds a foreign file
    _systemctl(system, "daemon-reload")
    system.run(["systemctl", "reset-failed", memo["unit"]])
    _systemctl(system, "start", memo["unit"])


def _systemctl(system: System, *words: str) -> None:
    code, _, errors = system.run(["systemctl", *words])
    if code:
        raise RefusedError("systemctl", f"systemctl {' '.join(words)}: {errors}")


def running(system: System, memo: dict[str, Any]) -> list[str]:
    """The processes that match the killed one, as `PID@START`, without zombies."""
    if "unit" in memo:
        reference = system.reference(_main_pid(system, memo["unit"]))
        return [reference] if reference else []
    found = []
    for pid in system.pids():
        if system.command(pid) == memo["argv"]:
            with contextlib.suppress(OSError):
                net = (system.proc / str(pid) / "ns" / "net").stat().st_ino
                reference = system.reference(pid)
                if net == memo["net"] and not system.gone(reference):
                    found.append(reference)
    return found


def _reopened(log: dict[str, Any] | None, *, same: bool) -> int:
    """Opens a log to append to it; 0 for none.

    `same`: only the very file that the process had open, for root, because the agent's user may have replaced it.
    Otherwise any file there that the agent's user may open, for example after a log rotation.
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
    """Runs the command again, in a session of its own, detached from this process."""
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


NAME = "zzz-hashidrill.json"
_FOLDER, _FILE = "config-dir", "config-file"
_CHECKS_WITHIN_S, _ENDS_WITHIN_S, _GAP_S = 6.0, 8.0, 0.1
_RESTARTS = 0.9
"""The share of the time limit for SIGTERM; SIGKILL has the rest."""


def places(system: System, pid: int) -> list[tuple[str, Path]]:
    """(`config-file` or `config-dir`, path) of everything that an agent reads, in its order.

    Raises RefusedError if it reads no folder: adding a setting would change its owner's files.
    """
    words = system.command(pid)
    home = Path(os.path.realpath(system.proc / str(pid) / "cwd"))
    found = []
    for number, word in enumerate(words):
        flag, equals, value = word.partition("=")
        name = flag.lstrip("-")
        if flag.startswith("-") and name in (_FOLDER, _FILE):
            told = value if equals else "".join(words[number + 1 : number + 2])
            found.append((name, home / told))
    if not any(name == _FOLDER for name, _ in found):
        raise RefusedError(
            "no-config-dir",
            f"process {pid} reads no folder of configuration files (-config-dir), so no setting can be added to it",
        )
    return found


def settings_file(system: System, pid: int) -> Path:
    """The path of the additional file: in the last folder that the agent reads. Raises RefusedError."""
    return [path for name, path in places(system, pid) if name == _FOLDER][-1] / NAME


def added_settings(path: Path) -> dict[str, Any]:
    """The additional file's content; empty if it is missing. Raises RefusedError for a foreign file."""
    try:
        with os.fdopen(trusted_paths.open_file(path, os.O_RDONLY)) as file:
            found = json.loads(file.read())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise RefusedError("settings", f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise RefusedError("settings", f"{path} is not hashidrill's: it holds no JSON object")
    return found


def write_settings(path: Path, said: dict[str, Any], owner: tuple[int, int]) -> None:
    """Writes the file whole or not at all, for the agent's user alone. Raises RefusedError."""
    try:
        with trusted_paths.folder(path.parent) as folder:
            trusted_paths.replace(folder, path.name, json.dumps(said).encode(), owner)
    except OSError as error:
        raise RefusedError("settings", f"{path} cannot be written: {error.strerror}") from None


def remove_settings(path: Path) -> None:
    """Removes the file; ignores a missing one. Raises RefusedError."""
    try:
        with trusted_paths.folder(path.parent) as folder:
            os.unlink(path.name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RefusedError("settings", f"{path} cannot be removed: {error.strerror}") from None


def owner_of(system: System, pid: int) -> tuple[int, int]:
    """(uid, gid) that a process acts as. Raises RefusedError if it has ended."""
    try:
        lines = (system.proc / str(pid) / "status").read_text().splitlines()
    except OSError as error:
        raise RefusedError("process-gone", f"process {pid}: {error.strerror}") from None
    ids = {line.partition(":")[0]: line.split()[2:3] for line in lines}
    return int(ids["Uid"][0]), int(ids["Gid"][0])


def check_settings(system: System, pid: int, words: Sequence[str], owner: tuple[int, int]) -> None:
    """Makes the agent's own program check its files, with the additional one. Raises RefusedError with its output."""
    command = [os.path.realpath(system.proc / str(pid) / "exe"), *words]
    command += [str(path) for _, path in places(system, pid)]

    def become() -> None:
        if owner[0] != os.geteuid():
            os.setgroups([])
            os.setgid(owner[1])
            os.setuid(owner[0])

    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_CHECKS_WITHIN_S,
            check=False,
            stdin=subprocess.DEVNULL,
            preexec_fn=become,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise RefusedError("settings", f"`{' '.join(words)}` of its program could not be run: {error}") from None
    if done.returncode:
        said = " ".join((done.stderr + done.stdout).split())
        raise RefusedError("settings", f"the agent's own program rejects it: {said}")


def read_again(system: System, memo: dict[str, Any], reference: str) -> None:
    """Sends SIGHUP: the agent reads its configuration again, and changes reloadable settings. Raises RefusedError."""
    if not system.signal(reference, signal.SIGHUP):
        raise RefusedError("process-gone", f"process {reference} is gone: {memo.get('agent', '')}")


def restarted(system: System, memo: dict[str, Any], reference: str) -> None:
    """Restarts the agent: its systemd unit, or the process with its earlier command line. Raises RefusedError."""
    if "unit" in memo:
        code, _, errors = system.run(["systemctl", "--no-block", "restart", str(memo["unit"])])
        if code:
            raise RefusedError("systemctl", f"systemctl restart {memo['unit']}: {errors}")
        return
    ended(system, reference)
    come_back(system, memo)


def ended(system: System, reference: str) -> None:
    """Sends SIGTERM, then SIGKILL. Raises RefusedError if neither ends the process."""
    for number, share in ((signal.SIGTERM, _RESTARTS), (signal.SIGKILL, 1 - _RESTARTS)):
        system.signal(reference, number)
        for _ in range(int(_ENDS_WITHIN_S * share / _GAP_S)):
            if system.gone(reference):
                return
            system.sleep(_GAP_S)
    raise RefusedError("process-stays", f"process {parted(reference)[0]} did not end")
