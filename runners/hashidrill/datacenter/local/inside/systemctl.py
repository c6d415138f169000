"""`systemctl` on a host of ours: start, stop, restart, reload, kill, is-active and status of its agents.

It runs without site-packages, as a person's command: asks the host's init (hostd), and sends signals by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket as sockets
import sys
import time
from typing import Any

STOPPED_WITHIN_S = 20.0
"""Then it is killed, as by systemd, which waits for 90 s."""
_LOOK_S = 0.05
_NOT_RUNNING, _NO_SUCH_UNIT = 3, 5
_VERBS = ("start", "stop", "restart", "reload", "kill", "is-active", "show", "status")
_QUIET = ("--quiet", "-q")
_MAIN_PID = ("-pMainPID", "-p", "MainPID", "--property=MainPID")
_FLAGS = ("--no-pager", "-l", "--full", "--now", "--value", *_QUIET, *_MAIN_PID)


class RefusedError(Exception):
    """The host's init said no."""


def ask(path: str, request: dict[str, Any]) -> dict[str, Any]:
    """One request to hostd. Raises RefusedError, OSError."""
    with sockets.socket(sockets.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(path)
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as lines:
            answer: dict[str, Any] = json.loads(lines.readline() or b'{"error": "no answer"}')
    if answer.get("error"):
        raise RefusedError(answer["error"])
    return answer


def main(words: list[str], *, socket: str, logs: str) -> int:
    """Exit codes as systemctl's: 0, 1 for what went wrong, 3 not running, 5 no such unit."""
    number = signal.SIGTERM
    if "-s" in words[:-1]:
        at = words.index("-s")
        name = "SIG" + words[at + 1].removeprefix("SIG")
        if name not in signal.Signals.__members__:
            sys.stderr.write(f"systemctl: there is no signal {words[at + 1]}; -s takes a name, like TERM or CONT\n")
            return 1
        number = signal.Signals[name]
        words = words[:at] + words[at + 2 :]
    verb, *units = [word for word in words if word not in _FLAGS] or [""]
    if verb not in _VERBS or not units:
        sys.stderr.write(f"systemctl: this host knows: systemctl {'|'.join(_VERBS)} UNIT...\n")
        return 1
    quiet = any(word in _QUIET for word in words)
    codes = [_one(verb, unit.removesuffix(".service"), socket, logs, number, quiet=quiet) for unit in units]
    return max(codes)


def _one(verb: str, agent: str, socket: str, logs: str, number: int, *, quiet: bool) -> int:
    try:
        process = ask(socket, {"op": "agent", "agent": agent})
        if verb in {"is-active", "show", "status"}:
            return _status(verb, agent, process, "" if quiet else logs)
        if verb in {"reload", "kill"}:
            if process["pid"] is None:
                sys.stderr.write(f"{agent}.service is not active.\n")
                return 1
            os.kill(process["pid"], signal.SIGHUP if verb == "reload" else number)
            return 0
        if verb in {"stop", "restart"}:
            _stop(agent, process, socket)
        if verb in {"start", "restart"}:
            ask(socket, {"op": "start", "agent": agent})
    except RefusedError as error:
        known = "never started" not in str(error)
        sys.stderr.write(f"{error}\n" if known else f"Unit {agent}.service not found.\n")
        return 1 if known else _NO_SUCH_UNIT
    except OSError as error:
        sys.stderr.write(f"systemctl: {agent}: {error}\n")
        return 1
    return 0


def _stop(agent: str, process: dict[str, Any], socket: str) -> None:
    """By SIGTERM, and SIGKILL where that does not end it."""
    pid = process["pid"]
    killed_at = time.monotonic() + STOPPED_WITHIN_S
    for number in (signal.SIGTERM, signal.SIGCONT):  # one that is stopped takes it once it goes on
        if pid is not None:
            _signal(pid, number)
    while pid is not None and ask(socket, {"op": "agent", "agent": agent})["pid"] == pid:
        if time.monotonic() > killed_at:
            _signal(pid, signal.SIGKILL)
        time.sleep(_LOOK_S)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _status(verb: str, agent: str, process: dict[str, Any], logs: str) -> int:
    active = process["pid"] is not None
    if verb == "show":  # of all its properties, the one that people look up: show -p MainPID --value UNIT
        sys.stdout.write(f"{process['pid'] or 0}\n")
        return 0
    if verb == "is-active":
        if logs:
            sys.stdout.write("active\n" if active else "inactive\n")
        return 0 if active else _NOT_RUNNING
    state = "active (running)" if active else f"inactive (dead), exit code {process.get('exit')}"
    sys.stdout.write(f"{agent}.service\n     Active: {state}\n")
    if active:
        sys.stdout.write(f"   Main PID: {process['pid']} (state {process['state']})\n")
    sys.stdout.write("\n" + "".join(last_lines(f"{logs}/{agent}.log", 10)))
    return 0 if active else _NOT_RUNNING


def last_lines(path: str, count: int) -> list[str]:
    """Of a log; none where there is none."""
    try:
        with open(path, errors="replace") as file:  # noqa: PTH123 - no pathlib in here
            return file.readlines()[-count:]
    except OSError:
        return []
