"""Runs a stranger's command in its own process group, with a deadline and bounded output, and leaves no process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hashidrill.core.errors import HashidrillError, UsageError
from hashidrill.core.util import syscalls as sc

_FLOOD_BYTES = 8 * 1024 * 1024
_KEPT_BYTES = 4096
_READ_BYTES = 65536
_LOOK_GAP_S = 0.1
_MISTAKE = re.compile(r"(?:Arithmetic|Attribute|Index|Key|Name|Overflow|Type|UnboundLocal|Value)Error\b")
_CRASH_LENGTH = 200


class CommandError(HashidrillError):
    """The command cannot be measured: it hangs, floods its output, fails without any fault, or makes no request."""

    exit_code = 3


@dataclass(frozen=True)
class Ended:
    """How a command ended. `status` is None if it was stopped, and `stopped` says why."""

    status: int | None
    stopped: str
    start_ns: int
    end_ns: int
    output: str
    """The last part of the command's output, of both streams."""
    cpu_s: float = 0.0
    """Processor time of the command and of the children that it waited for."""

    @property
    def ok(self) -> bool:
        return self.status == 0

    @property
    def note(self) -> str:
        """How it ended, as text: `exit status 22`."""
        if self.status is None:
            return f"stopped {self.stopped}"
        return f"exit status {self.status}" if self.status >= 0 else f"killed by {signal.Signals(-self.status).name}"

    @property
    def crash(self) -> str:
        """The last line of a Python traceback that ended the command, if it names an error in its code; otherwise "".

        An error that the client raises about an answer (`requests.HTTPError`, OSError) is not an error in its code.
        """
        traced = self.output.rpartition("Traceback (most recent call last):")
        lines = [line for line in traced[2].splitlines() if _MISTAKE.match(line)] if traced[1] and self.status else []
        return lines[-1][:_CRASH_LENGTH] if lines else ""


def pointed_at(command: Sequence[str], url: str, environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The command and its environment with the tap's address in them: `{url}`, and the variables that clients read."""
    address = url.partition("://")[2]
    direct = f"127.0.0.1,localhost,{address.rpartition(':')[0]}"  # a server that is addressed directly needs no proxy
    values = {
        "CONSUL_HTTP_ADDR": url,
        "NOMAD_ADDR": url,
        "VAULT_ADDR": url,
        "HASHIDRILL_URL": url,
        "http_proxy": f"http://{address}",
        "HTTP_PROXY": f"http://{address}",
        "no_proxy": direct,
        "NO_PROXY": direct,
    }
    return [word.replace("{url}", url) for word in command], {**environment, **values}


def unrunnable(program: str) -> str:
    """Why this program cannot be run, and a remedy; "" if it can be run."""
    if shutil.which(program) is not None:
        return ""
    if (found := shutil.which(program, os.F_OK)) is not None:
        return f"it is not executable; `chmod +x {found}`, or name the program that runs it first"
    return "there is no such command; is it installed, and on PATH?"


async def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    within_s: float,
    stop_when: Callable[[], str] | None = None,
    started: Callable[[int], None] | None = None,
    namespace: str | None = None,
) -> Ended:
    """Runs the command until it ends, `within_s` seconds are over, or `stop_when` (called regularly) gives a reason.

    `started` is called with its pid, which is also the id of its process group. `namespace` is the path of the network
    namespace to run it in. No process of its process group is left afterwards. Raises UsageError if the command cannot
    be started, CommandError if it floods its output.
    """
    start_ns = time.monotonic_ns()
    child = _Child(command, environment, namespace)
    try:
        if started is not None:
            started(child.pid)
        stopped = await _watch(child, within_s, stop_when)
        end_ns = time.monotonic_ns()
    finally:
        child.end()
    if child.flooded:
        raise CommandError(
            f"{command[0]}: it wrote more than {_FLOOD_BYTES // 1024 // 1024} MiB of output and was stopped;"
            " let it write less (to a file, or nowhere)"
        )
    return Ended(None if stopped else child.status, stopped, start_ns, end_ns, child.output, child.cpu_s)


async def _watch(child: _Child, within_s: float, stop_when: Callable[[], str] | None) -> str:
    """The reason to stop the command; empty if it ended."""
    deadline = time.monotonic() + within_s
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.news.wait(), left_s if stop_when is None else min(left_s, _LOOK_GAP_S))
        if child.flooded:
            return "for its output"
        if child.exited:
            return ""
        if stop_when is not None and (reason := stop_when()):
            return reason
        if time.monotonic() >= deadline:
            return f"after {within_s:g}s"


def _started(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        start_new_session=True,
    )


class _Child:
    """A process that leads its own process group, and the last part of its output.

    Does not use asyncio's subprocess, which does not finish before every grandchild has closed the pipes.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], namespace: str | None = None) -> None:
        """Raises UsageError if the command cannot be started."""
        if not command:
            raise UsageError("there is no command: write it after --, like `hashidrill retry -- curl -s {url}/v1/kv/x`")
        try:
            self._process = (
                _started(command, environment)
                if namespace is None
                else sc.in_network(namespace, lambda: _started(command, environment))
            )
        except FileNotFoundError:
            raise UsageError(f"{command[0]}: there is no such command; is it installed, and on PATH?") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"{command[0]} cannot be run: {reason}") from None
        self.pid = self._process.pid
        self.news = asyncio.Event()
        """Set when the process has exited or flooded its output."""
        self.exited = self.flooded = False
        self.status: int | None = None
        self.cpu_s = 0.0
        self._kept: dict[int, bytes] = {}
        self._size = 0
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._exit)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                self._kept[stream.fileno()] = b""
                self._loop.add_reader(stream.fileno(), self._read, stream.fileno())

    @property
    def output(self) -> str:
        texts = [kept.decode(errors="replace").strip() for kept in self._kept.values()]
        return "\n".join(text for text in texts if text)

    def end(self) -> None:
        """Kills the remaining processes of its own group, and reads the rest of its output."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._reap()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        for descriptor in self._kept:
            self._read(descriptor)
            self._loop.remove_reader(descriptor)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._reap()
        self.exited = True
        self.news.set()

    def _reap(self) -> None:
        if self.status is None:
            _, status, usage = os.wait4(self.pid, 0)
            self.status = self._process.returncode = os.waitstatus_to_exitcode(status)
            self.cpu_s = usage.ru_utime + usage.ru_stime

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(descriptor)
            return
        self._size += len(data)
        self._kept[descriptor] = (self._kept[descriptor] + data)[-_KEPT_BYTES:]
        if self._size > _FLOOD_BYTES:
            self.flooded = True
            self.news.set()
