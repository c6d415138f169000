"""`systemctl` on a local host: start, stop, restart, reload, kill, is-active and status of its agents.

People run it as a command, without site-packages; it sends requests to the host's init (hostd), and signals itself.
`parse` reads the command line once; checking and running use the same structure.
"""

from __future__ import annotations

import contextlib
import getopt
import json
import os
import signal
import socket as sockets
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TextIO

STOPPED_WITHIN_S = 20.0
"""An agent that has not stopped after this time is killed; systemd waits for 90 s."""
_LOOK_S = 0.05
_NOT_RUNNING, _NO_SUCH_UNIT = 3, 5
LOOKS = ("is-active", "show", "status")
"""Verbs that change nothing."""
_VERBS = ("start", "stop", "restart", "reload", "kill", *LOOKS)
_MAIN_PID = "MainPID"
_SHORT, _LONG = "s:p:ql", ("signal=", "property=", "quiet", "full", "no-pager", "now", "value")


class MisusedError(Exception):
    """The command line is not supported on this host."""


@dataclass(frozen=True)
class Systemctl:
    """A parsed command line."""

    verb: str
    units: tuple[str, ...]
    """Without `.service`."""
    signal: signal.Signals = signal.SIGTERM
    quiet: bool = False


class RefusedError(Exception):
    """The host's init refused the request."""


def ask(path: str, request: dict[str, Any]) -> dict[str, Any]:
    """Sends one request to hostd. Raises RefusedError, OSError."""
    with sockets.socket(sockets.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(path)
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as lines:
            answer: dict[str, Any] = json.loads(lines.readline() or b'{"error": "no answer"}')
    if answer.get("error"):
        raise RefusedError(answer["error"])
    return answer


def parse(words: Iterable[str]) -> Systemctl:
    """Raises MisusedError."""
    try:
        options, rest = getopt.gnu_getopt([*words], _SHORT, _LONG)
    except getopt.GetoptError as error:
        raise MisusedError(f"systemctl: {error.msg}; {_knows()}") from None
    number = signal.SIGTERM
    for option, value in options:
        if option in {"-s", "--signal"}:
            name = "SIG" + value.removeprefix("SIG")
            if name not in signal.Signals.__members__:
                raise MisusedError(f"systemctl: there is no signal {value}; -s takes a name, like TERM or CONT")
            number = signal.Signals[name]
        elif option in {"-p", "--property"} and value != _MAIN_PID:
            raise MisusedError(f"systemctl: the only property on this host is {_MAIN_PID}")
    verb, *units = rest or [""]
    if verb not in _VERBS or not units:
        raise MisusedError(f"systemctl: {_knows()}")
    quiet = any(option in {"-q", "--quiet"} for option, _ in options)
    return Systemctl(verb, units_of(units), number, quiet)


def _knows() -> str:
    return f"this host supports: systemctl {'|'.join(_VERBS)} UNIT..."


def units_of(names: Iterable[str]) -> tuple[str, ...]:
    """Names of units, without `.service`."""
    return tuple(name.removesuffix(".service") for name in names)


def main(words: list[str], *, socket: str, logs: str) -> int:
    """Returns systemctl's exit codes: 0, 1 for an error, 3 for not running, 5 for no such unit."""
    try:
        asked = parse(words)
    except MisusedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return run(asked, socket=socket, logs=logs)


def run(asked: Systemctl, *, socket: str, logs: str, out: TextIO | None = None, err: TextIO | None = None) -> int:
    """Carries out the command for each unit, and returns the greatest exit code."""
    host = _Host(socket, logs, out or sys.stdout, err or sys.stderr)
    return max(host.does(asked, unit) for unit in asked.units)


@dataclass(frozen=True)
class _Host:
    socket: str
    logs: str
    out: TextIO
    err: TextIO

    def does(self, asked: Systemctl, agent: str) -> int:
        verb = asked.verb
        try:
            process = ask(self.socket, {"op": "agent", "agent": agent})
            if verb in LOOKS:
                return self._status(asked, agent, process)
            if verb in {"reload", "kill"}:
                if process["pid"] is None:
                    self.err.write(f"{agent}.service is not active.\n")
                    return 1
                os.kill(process["pid"], signal.SIGHUP if verb == "reload" else asked.signal)
                return 0
            if verb in {"stop", "restart"}:
                _stop(agent, process, self.socket)
            if verb in {"start", "restart"}:
                ask(self.socket, {"op": "start", "agent": agent})
        except RefusedError as error:
            known = "never started" not in str(error)
            self.err.write(f"{error}\n" if known else f"Unit {agent}.service not found.\n")
            return 1 if known else _NO_SUCH_UNIT
        except OSError as error:
            self.err.write(f"systemctl: {agent}: {error}\n")
            return 1
        return 0

    def _status(self, asked: Systemctl, agent: str, process: dict[str, Any]) -> int:
        active = process["pid"] is not None
        if asked.verb == "show":  # only the property that people look up: show -p MainPID --value UNIT
            self.out.write(f"{process['pid'] or 0}\n")
            return 0
        if asked.verb == "is-active":
            if not asked.quiet:
                self.out.write("active\n" if active else "inactive\n")
            return 0 if active else _NOT_RUNNING
        state = "active (running)" if active else f"inactive (dead), exit code {process.get('exit')}"
        self.out.write(f"{agent}.service\n     Active: {state}\n")
        if active:
            self.out.write(f"   Main PID: {process['pid']} (state {process['state']})\n")
        self.out.write("\n" + "".join([] if asked.quiet else last_lines(f"{self.logs}/{agent}.log", 10)))
        return 0 if active else _NOT_RUNNING


def _stop(agent: str, process: dict[str, Any], socket: str) -> None:
    """Stops by SIGTERM, and by SIGKILL if the agent does not end."""
    pid = process["pid"]
    killed_at = time.monotonic() + STOPPED_WITHIN_S
    for number in (signal.SIGTERM, signal.SIGCONT):  # a stopped process handles SIGTERM once it continues
        if pid is not None:
            _signal(pid, number)
    while pid is not None and ask(socket, {"op": "agent", "agent": agent})["pid"] == pid:
        if time.monotonic() > killed_at:
            _signal(pid, signal.SIGKILL)
        time.sleep(_LOOK_S)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def last_lines(path: str, count: int) -> list[str]:
    """The last lines of a log; empty if it is missing."""
    try:
        with open(path, errors="replace") as file:  # noqa: PTH123 - no pathlib in here
            return file.readlines()[-count:]
    except OSError:
        return []
