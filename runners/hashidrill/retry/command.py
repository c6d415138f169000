"""Runs a stranger's command: in a process group of its own, with a deadline, with bounded output, gone afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hashidrill.errors import HashidrillError, UsageError

_FLOOD_BYTES = 8 * 1024 * 1024
_KEPT_BYTES = 4096
_READ_BYTES = 65536
_REAP_S = 5.0


class CommandError(HashidrillError):
    """The command cannot be measured: it hangs, floods its output, fails without any fault, or makes no request."""

    exit_code = 3


@dataclass(frozen=True)
class Ended:
    """How a command ended. `status` is None where it was stopped, and `stopped` says why."""

    status: int | None
    stopped: str
    start_ns: int
    end_ns: int
    output: str
    """The end of what it wrote, both streams."""

    @property
    def ok(self) -> bool:
        return self.status == 0

    @property
    def note(self) -> str:
        """For a person: `exit status 22`."""
        if self.status is None:
            return f"stopped {self.stopped}"
        return f"exit status {self.status}" if self.status >= 0 else f"killed by {signal.Signals(-self.status).name}"


def pointed_at(command: Sequence[str], url: str, environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The command and its environment with the tap's address in them: `{url}`, and the variables that clients read."""
    address = url.partition("://")[2]
    direct = f"127.0.0.1,localhost,{address.rpartition(':')[0]}"  # what is addressed itself needs no proxy
    values = {
        "CONSUL_HTTP_ADDR": url, "NOMAD_ADDR": url, "VAULT_ADDR": url, "HASHIDRILL_URL": url,
        "http_proxy": f"http://{address}", "HTTP_PROXY": f"http://{address}",
        "no_proxy": direct, "NO_PROXY": direct,
    }  # fmt: skip
    return [word.replace("{url}", url) for word in command], {**environment, **values}


async def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    within_s: float,
    stop_when: Callable[[], str] | None = None,
    started: Callable[[int], None] | None = None,
) -> Ended:
    """Run it until it ends, `within_s` seconds are over, or `stop_when` (asked now and then) gives a reason.

    `started` is called with its pid, which is that of its process group too.
    Nothing of its process group is left afterwards. Raises UsageError for a command that cannot be started,
    CommandError for one that floods its output.
    """
    start_ns = time.monotonic_ns()
    process = await start(command, environment)
    tails = [asyncio.create_task(_tail(stream)) for stream in (process.stdout, process.stderr) if stream is not None]
    try:
        stopped = await _watch(process, tails, within_s, stop_when)
        end_ns = time.monotonic_ns()
    finally:
        await end(process)
        for tail in tails:
            tail.cancel()
        kept = await asyncio.gather(*tails, return_exceptions=True)
    if any(isinstance(each, _FloodError) for each in kept):
        raise CommandError(
            f"{command[0]}: it wrote more than {_FLOOD_BYTES // 1024 // 1024} MiB of output and was stopped;"
            " let it write less (to a file, or nowhere)"
        )
    output = "\n".join(each.strip() for each in kept if isinstance(each, str) and each.strip())
    return Ended(None if stopped else process.returncode, stopped, start_ns, end_ns, output)


async def start(command: Sequence[str], environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    if not command:
        raise UsageError("there is no command: write it after --, like `hashidrill retry -- curl -s {url}/v1/kv/x`")
    try:
        return await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, env=dict(environment), start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError:
        raise UsageError(f"{command[0]}: there is no such command; is it installed, and on PATH?") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{command[0]}: it cannot be run: {reason}") from None


async def _watch(
    process: asyncio.subprocess.Process,
    tails: Sequence[asyncio.Task[str]],
    within_s: float,
    stop_when: Callable[[], str] | None,
) -> str:
    """Why it has to be stopped; empty when it ended."""
    deadline = time.monotonic() + within_s
    waiting = asyncio.create_task(process.wait())
    try:
        while True:
            left_s = deadline - time.monotonic()
            gap_s = min(left_s, 0.1) if stop_when is not None else left_s
            # a stream at its end says nothing; one that floods ends with an error
            open_tails = [tail for tail in tails if not tail.done()]
            await asyncio.wait({waiting, *open_tails}, timeout=max(gap_s, 0), return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return ""
            if any(tail.done() and tail.exception() is not None for tail in tails):
                return "for its output"
            if stop_when is not None and (reason := stop_when()):
                return reason
            if time.monotonic() >= deadline:
                return f"after {within_s:g}s"
    finally:
        waiting.cancel()


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill what is left of its group, which is ours alone: it was made with the process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _REAP_S)


class _FloodError(Exception):
    pass


async def _tail(stream: asyncio.StreamReader) -> str:
    """The end of a stream. Raises _FloodError."""
    kept, size = b"", 0
    try:
        while data := await stream.read(_READ_BYTES):
            size += len(data)
            kept = (kept + data)[-_KEPT_BYTES:]
            if size > _FLOOD_BYTES:
                raise _FloodError
    except asyncio.CancelledError:
        # a grandchild may hold the pipe open for ever; what came so far is all that is wanted
        return kept.decode(errors="replace")
    return kept.decode(errors="replace")
