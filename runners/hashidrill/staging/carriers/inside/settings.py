"""One more file of settings beside those that an agent reads, and having the agent read them again.

Nothing of its owner's is changed: the file has a name of our own in the folder of the agent's `-config-dir`, which it
reads in the order of names, so that the last one wins.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashidrill.core.util import trusted_paths
from hashidrill.staging.carriers.inside import restart
from hashidrill.staging.carriers.inside.system import RefusedError, System, parted

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "zzz-hashidrill.json"
_FOLDER, _FILE = "config-dir", "config-file"
_CHECKS_WITHIN_S, _ENDS_WITHIN_S, _GAP_S = 6.0, 8.0, 0.1
_RESTARTS = 0.9
"""Of the time for its end, what SIGTERM has; SIGKILL has the rest."""


def places(system: System, pid: int) -> list[tuple[str, Path]]:
    """(`config-file` or `config-dir`, path) of all that an agent was told to read, in its order.

    Raises RefusedError where it reads no folder: then nothing can be added without a change of its owner's files.
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


def file_of(system: System, pid: int) -> Path:
    """Where our file is, or would be: in the last folder that it reads. Raises RefusedError."""
    return [path for name, path in places(system, pid) if name == _FOLDER][-1] / NAME


def held(path: Path) -> dict[str, Any]:
    """What our file says; empty where there is none. Raises RefusedError for one that is not ours."""
    try:
        with os.fdopen(trusted_paths.open_file(path, os.O_RDONLY)) as file:
            found = json.loads(file.read())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise RefusedError("settings", f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise RefusedError("settings", f"{path} is not ours: it holds no object")
    return found


def write(path: Path, said: dict[str, Any], owner: tuple[int, int]) -> None:
    """Whole or not at all, for the agent's own user alone. Raises RefusedError."""
    try:
        with trusted_paths.folder(path.parent) as folder:
            trusted_paths.replace(folder, path.name, json.dumps(said).encode(), owner)
    except OSError as error:
        raise RefusedError("settings", f"{path} cannot be written: {error.strerror}") from None


def remove(path: Path) -> None:
    """Nothing where there is none. Raises RefusedError."""
    try:
        with trusted_paths.folder(path.parent) as folder:
            os.unlink(path.name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RefusedError("settings", f"{path} cannot be removed: {error.strerror}") from None


def owner_of(system: System, pid: int) -> tuple[int, int]:
    """(uid, gid) that a process acts as. Raises RefusedError where it is gone."""
    try:
        lines = (system.proc / str(pid) / "status").read_text().splitlines()
    except OSError as error:
        raise RefusedError("process-gone", f"process {pid}: {error.strerror}") from None
    ids = {line.partition(":")[0]: line.split()[2:3] for line in lines}
    return int(ids["Uid"][0]), int(ids["Gid"][0])


def checked(system: System, pid: int, words: Sequence[str], owner: tuple[int, int]) -> None:
    """Has the agent's own program look at its files, ours among them. Raises RefusedError with what it says."""
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
    """By SIGHUP: for what it can reload. Raises RefusedError."""
    if not system.signal(reference, signal.SIGHUP):
        raise RefusedError("process-gone", f"process {reference} is gone: {memo.get('agent', '')}")


def restarted(system: System, memo: dict[str, Any], reference: str) -> None:
    """Ends that process and starts it again, as it was started before. Raises RefusedError."""
    if "unit" in memo:
        code, _, errors = system.run(["systemctl", "--no-block", "restart", str(memo["unit"])])
        if code:
            raise RefusedError("systemctl", f"systemctl restart {memo['unit']}: {errors}")
        return
    ended(system, reference)
    restart.come_back(system, memo)


def ended(system: System, reference: str) -> None:
    """SIGTERM, and at last SIGKILL. Raises RefusedError where neither helps."""
    for number, share in ((signal.SIGTERM, _RESTARTS), (signal.SIGKILL, 1 - _RESTARTS)):
        system.signal(reference, number)
        for _ in range(int(_ENDS_WITHIN_S * share / _GAP_S)):
            if system.state(reference) in {"", "Z", "X"}:
                return
            system.sleep(_GAP_S)
    raise RefusedError("process-stays", f"process {parted(reference)[0]} did not end")
