"""Clients that are services: commands that run all the time and can report their operations.

A report is one line on standard output, a JSON object; other lines are the service's own business.

    {"intended_ns": 100, "start_ns": 120, "end_ns": 950, "ok": true, "key": "orders/7"}

Times are nanoseconds of CLOCK_MONOTONIC (Python: time.monotonic_ns()); `ok` is true, false, or null for an unknown
outcome; `intended_ns` (when the operation was due) and `key` may be left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from hashidrill.core.errors import UsageError
from hashidrill.core.protocols.abc import Operation
from hashidrill.core.tap.command import Ended
from hashidrill.core.util.safe_json import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ENDED = "the service ended by itself"
"""The start of the error text of an operation that records the service's end."""
STOP_WITHIN_S = 1.0
_LONGEST_LINE_BYTES = 65536
_READ_BYTES = 65536
_CLOCKS_APART_NS = 1_000_000_000
_OUTCOMES = {True: "ok", False: "fail", None: "unknown"}


async def serve(command: Sequence[str], environment: Mapping[str, str], on_line: Callable[[bytes], None]) -> Ended:
    """Runs the command until it ends. If cancelled, sends SIGTERM and waits 1 s for reports of unfinished operations.

    Leaves no process of the command's process group. Raises UsageError if the command cannot be started, and what
    `on_line` raises.
    """
    start_ns = time.monotonic_ns()
    process = await _start(command, environment)
    if process.stdout is None or process.stderr is None:
        raise RuntimeError("the process has no pipes")
    said = _Tail()
    lines = asyncio.create_task(_lines(process.stdout, on_line))
    errors = asyncio.create_task(_lines(process.stderr, said.take))
    ended = asyncio.create_task(process.wait())
    try:
        await asyncio.wait({lines, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not lines.done() or lines.exception() is None:  # the process may close its output and continue
            await ended
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        await asyncio.wait({lines}, timeout=STOP_WITHIN_S)
        raise
    finally:
        await _end(process)
        # the last output is still in the pipe, which a grandchild may hold open for ever
        await asyncio.wait({lines, errors}, timeout=STOP_WITHIN_S)
        for task in (lines, errors, ended):
            task.cancel()
        left = await asyncio.gather(lines, errors, ended, return_exceptions=True)
    if isinstance(left[0], Exception):
        raise left[0]
    return Ended(process.returncode, "", start_ns, time.monotonic_ns(), said.text)


async def _start(command: Sequence[str], environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{command[0]} cannot be run: {reason}") from None


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kills the rest of the process group that was created with the process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), STOP_WITHIN_S)


class _Tail:
    """The last line that was written."""

    def __init__(self) -> None:
        self.text = ""

    def take(self, line: bytes) -> None:
        self.text = line.decode(errors="replace").strip() or self.text


async def _lines(stream: asyncio.StreamReader, on_line: Callable[[bytes], None]) -> None:
    rest = b""
    while data := await stream.read(_READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            on_line(line)
        if len(rest) > _LONGEST_LINE_BYTES:  # not a report; without a bound it would fill the memory
            rest = b""


def reported(client: str, line: bytes, *, origin_ns: int, now_ns: int) -> Operation | None:
    """The operation that a line reports; None if the line is not a report.

    `origin_ns` and `now_ns`: the zero of the run's clock, and now, on CLOCK_MONOTONIC. Raises UsageError for an invalid
    report, because its operation would be missing from the recording.
    """
    said = _object(line)
    if said is None or not {"start_ns", "end_ns", "ok"} <= said.keys():
        return None
    start_ns, end_ns = said["start_ns"], said["end_ns"]
    intended_ns = said.get("intended_ns", start_ns)
    times = (intended_ns, start_ns, end_ns)
    if not all(type(t) is int for t in times) or not isinstance(said["ok"], (bool, type(None))):
        raise _wrong(client, line, "the times are whole numbers, and ok is true, false or null")
    texts = said.get("key", ""), said.get("error", "")
    if not all(isinstance(text, (str, int, float)) for text in texts):
        raise _wrong(client, line, "key and error are text")
    if not 0 <= intended_ns <= start_ns <= end_ns:
        raise _wrong(client, line, "intended_ns, start_ns and end_ns must be in this order")
    if end_ns > now_ns + _CLOCKS_APART_NS or intended_ns < origin_ns:
        raise _wrong(client, line, f"times are nanoseconds of CLOCK_MONOTONIC, which shows {now_ns} now")
    return Operation(
        client,
        intended_ns - origin_ns,
        start_ns - origin_ns,
        end_ns - origin_ns,
        _OUTCOMES[said["ok"]],
        key=str(texts[0]),
        error=str(texts[1]),
    )


def _object(line: bytes) -> dict[str, Any] | None:
    if not line.lstrip().startswith(b"{"):
        return None
    with contextlib.suppress(ValueError):
        said = parse(line)
        return said if isinstance(said, dict) else None
    return None


def _wrong(client: str, line: bytes, right: str) -> UsageError:
    shown = line.decode(errors="replace")[:200]
    return UsageError(f"client {client}: its report of an operation is wrong: {right}; the report was {shown}")
