"""One line for each action: who did what, where, until when. The lines go to Consul, to the recording, and to a
webhook.

A line in Consul is one key, `PREFIX/RUN/0001` (from heal: `PREFIX/RUN/heal-TIME-0001`); the folders of older runs are
removed. A line that cannot be written is tried again, and a line that a restore of Consul's state removed is written
again. No line delays a revert: a separate task writes the lines of reverts. `written` waits for the line of an apply,
for a bounded time.

A webhook gets each line once by POST, as `application/json` (`Line.data()`), without delaying anything.
"""

import datetime as dt
import json
import os
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio

from hashidrill.core.errors import HashidrillError, InterlockError
from hashidrill.core.recording.journal import UNSIGNED, LineKey, signed_lines
from hashidrill.core.util.redaction import Redactor
from hashidrill.core.util.wait import pause
from hashidrill.staging.interlocks.kv import Kv

_RETRY_S = 0.5
_FLUSHED_WITHIN_S = 10.0
_WEBHOOK_WITHIN_S = 5.0
_WAITING = 1000
"""The most lines that may wait for a webhook; further lines are dropped, with a message."""

Post = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Sends JSON to a URL. Raises HashidrillError or OSError."""


@dataclass(frozen=True)
class Line:
    """One action. `until`: its planned end, RFC 3339; "" if it does not last."""

    number: int
    at: str
    run: str
    experiment: str
    who: str
    verb: str
    """begin, load, apply, gone, stuck, stop, clean-up, left, end; from `hashidrill heal` also heal and revert."""
    what: str = ""
    where: str = ""
    until: str = ""
    note: str = ""

    def data(self) -> dict[str, Any]:
        """The entry as Consul and the webhook receive it."""
        return {"hashidrill": "audit/v1", **{key: value for key, value in vars(self).items() if value != ""}}

    def __str__(self) -> str:
        parts = [self.what, f"on {self.where}" if self.where else "", f"until {self.until}" if self.until else ""]
        said = " ".join(["audit:", self.verb, *(part for part in parts if part), f"by {self.who}"])
        return f"{said}: {self.note}" if self.note else said


class Audit:
    """The lines of one run. Every text passes through `redactor`, so that no line has a secret."""

    def __init__(
        self,
        kv: Kv,
        prefix: str,
        run: str,
        experiment: str,
        who: str,
        *,
        now: Callable[[], dt.datetime],
        tell: Callable[[str], None],
        redactor: Redactor,
        file: Path | None = None,
        key: LineKey = UNSIGNED,
        webhook: str | None = None,
        post: Post | None = None,
        series: str = "",
    ) -> None:
        """`file`, in the recording, gets a line of JSON for each, signed like the lines of the journal, so that
        changed, added and removed lines are noticed. `series` begins the names of keys, so that another process's
        lines about the same run do not overwrite existing ones.
        """
        self._kv, self._prefix, self._run, self._experiment, self._who = kv, prefix, run, experiment, who
        self._now, self._tell, self._redactor = now, tell, redactor
        self._file, self._webhook, self._post, self._series = file, webhook, post, series
        self._key, self._first = key, 0
        if file is not None and file.is_file():  # heal adds to the run's file
            signed, missing = signed_lines(file, key)
            self._first = len(signed) + missing
        self.lines: list[Line] = []
        self._unwritten: dict[int, Line] = {}
        self._changed = anyio.Event()
        self._to_send: deque[Line] = deque()
        self._told: set[str] = set()

    def note(self, verb: str, what: str = "", where: str = "", *, lasts_s: float | None = None, note: str = "") -> Line:
        """Adds a line to the recording at once, and to Consul and the webhook soon. Neither waits nor raises."""
        now, clean = self._now(), self._redactor.text
        line = Line(
            len(self.lines) + 1,
            _shown(now),
            self._run,
            clean(self._experiment),
            clean(self._who),
            verb,
            clean(what),
            clean(where),
            "" if lasts_s is None else _shown(now + dt.timedelta(seconds=lasts_s)),
            clean(note),
        )
        self.lines.append(line)
        self._tell(str(line))
        self._keep(line)
        self._unwritten[line.number] = line
        if self._webhook is not None:
            if len(self._to_send) < _WAITING:
                self._to_send.append(line)
            else:
                self._once("the audit webhook is too slow: some lines are not sent to it")
        self._wake()
        return line

    async def written(self, line: Line, within_s: float) -> bool:
        """Whether Consul has that line, within that time."""
        with anyio.move_on_after(within_s):
            while line.number in self._unwritten:
                await self._changed.wait()
        return line.number not in self._unwritten

    async def keep(self) -> None:
        """Writes and sends lines as they come, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._write)
            if self._webhook is not None:
                group.start_soon(self._send)

    async def finish(self) -> None:
        """Writes to Consul the lines that it lacks, for a bounded time. Reports the lines that stay unwritten."""
        if not self.lines:
            return
        with anyio.move_on_after(_FLUSHED_WITHIN_S, shield=True):
            while True:
                try:
                    there = set(await self._kv.keys(f"{self._prefix}/{self._run}/"))
                    missing = [line for line in self.lines if self._place(line) not in there]
                    if not missing:
                        self._unwritten.clear()
                        break
                    self._unwritten = {line.number: line for line in missing}
                    await self._write_all()
                except InterlockError as error:
                    self._once(f"audit lines could not be written to Consul: {error}")
                    await pause(_RETRY_S)
        if self._unwritten:
            self._tell(f"{len(self._unwritten)} of {len(self.lines)} audit lines are in this recording alone")
        with anyio.move_on_after(_WEBHOOK_WITHIN_S, shield=True):
            await self._send_all()

    async def prune(self, runs: int) -> None:
        """Removes the lines of older runs: `runs` runs are left, including this one. Raises InterlockError."""
        folders = [each for each in await self._kv.keys(f"{self._prefix}/", folders=True) if each.endswith("/")]
        others = [each for each in folders if each != f"{self._prefix}/{self._run}/"]
        for folder in others[: max(0, len(others) - (runs - 1))]:
            await self._kv.delete(folder, below=True)

    async def _write(self) -> None:
        while True:
            try:
                await self._write_all()
            except InterlockError as error:
                self._once(f"an audit line could not be written to Consul, and is tried again: {error}")
                await pause(_RETRY_S)
                continue
            if not self._unwritten:
                await self._changed.wait()

    async def _write_all(self) -> None:
        for line in list(self._unwritten.values()):
            await self._kv.put(self._place(line), json.dumps(line.data()))
            self._unwritten.pop(line.number, None)
            self._wake()

    async def _send(self) -> None:
        while True:
            await self._send_all()
            await self._changed.wait()

    async def _send_all(self) -> None:
        while self._to_send:
            await self._send_one(self._to_send.popleft())

    async def _send_one(self, line: Line) -> None:
        if self._webhook is None or self._post is None:
            return
        try:
            with anyio.fail_after(_WEBHOOK_WITHIN_S):
                await self._post(self._webhook, line.data())
        except (HashidrillError, OSError, TimeoutError) as error:
            host = urlsplit(self._webhook).hostname  # its path is often a secret
            self._once(
                f"the audit webhook at {host} failed: {self._redactor.text(type(error).__name__)}; the run goes on"
            )

    def _keep(self, line: Line) -> None:
        """Writes the line to the recording at once: if Consul is down, this is the only copy."""
        if self._file is None:
            return
        try:
            fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            text, number = json.dumps(line.data()) + "\n", self._first + line.number - 1
            with os.fdopen(fd, "wb") as file:
                file.write(self._key.signed(text.encode(), self._file.name, number))
        except OSError as error:
            self._once(f"audit lines could not be written to {self._file}: {error.strerror}")

    def _place(self, line: Line) -> str:
        return f"{self._prefix}/{self._run}/{self._series}{line.number:04d}"

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(self._redactor.text(text))


def _shown(time: dt.datetime) -> str:
    return time.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
