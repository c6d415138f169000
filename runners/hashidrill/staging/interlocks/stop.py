"""The events that end a run from outside: the stop button, an arming that ends or is revoked, a lost lock."""

import datetime as dt
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from hashidrill.core.errors import InterlockError
from hashidrill.core.util.safe_json import parse
from hashidrill.core.util.wait import pause
from hashidrill.staging.interlocks.kv import Kv, SilentError
from hashidrill.staging.interlocks.lock import Lock

_UNSEEN_S = 10.0
"""After this long without an answer, the operator is told that the button is not being watched."""


@dataclass(frozen=True)
class Pressed:
    """Who pressed the stop button, when, and why."""

    by: str
    at: str
    why: str = ""

    def text(self) -> str:
        return json.dumps({"stopped_by": self.by, "at": self.at, "why": self.why}, indent=2)

    def __str__(self) -> str:
        return f"by {self.by or 'somebody'} at {self.at or 'some time'}" + (f": {self.why}" if self.why else "")


def read(text: str) -> Pressed:
    """Reads any value of the key: a button pressed by hand counts too."""
    try:
        data = parse(text)
        return Pressed(*(str(data.get(key, "")) for key in ("stopped_by", "at", "why")))
    except (ValueError, AttributeError):
        return Pressed("", "", text.strip()[:200])


async def check_released(kv: Kv, key: str) -> None:
    """Raises InterlockError while the button is pressed: nothing starts then. Only reads."""
    entry = await kv.get(key)
    if entry is not None:
        raise InterlockError(
            f"the stop button is pressed ({key}, {read(entry.value)});"
            " release it with `hashidrill staging stop --release`"
        )


Disarmed = Callable[[Kv], Awaitable[str]]
"""Why the arming is no longer valid; "" while it is. Raises SilentError if that is unknown."""


async def look(kv: Kv, key: str, disarmed: Disarmed) -> str:
    """Why a run must stop now; "" if it need not. Raises SilentError if that is unknown."""
    try:
        entry = await kv.get(key)
        return await disarmed(kv) if entry is None else f"the stop button was pressed {read(entry.value)}"
    except SilentError:
        raise
    except InterlockError as error:
        return f"the stop button cannot be read any more: {error}"


async def watch(
    kv: Kv,
    key: str,
    within_s: float,
    lock: Lock,
    *,
    disarmed: Disarmed,
    until: dt.datetime,
    now: Callable[[], dt.datetime],
    tell: Callable[[str], None],
) -> str:
    """Returns why the run must stop: while Consul answers, at most `within_s` after the reason arose.

    While Consul is silent the button is not watched, and the operator is told; the arming's end and the lock's TTL
    still count. The arming ends by the earlier of two clocks, so setting one back prolongs nothing. `kv` must give
    up on an answer within half of `within_s`.
    """
    seen_s, told = anyio.current_time(), False
    ends_s = seen_s + (until - now()).total_seconds()
    while True:
        if now() >= until or anyio.current_time() >= ends_s:
            return f"the arming ended at {until.isoformat(timespec='seconds')}"
        if lock.lost.is_set():
            return lock.why
        try:
            if why := await look(kv, key, disarmed):
                return why
            seen_s, told = anyio.current_time(), False
        except SilentError as error:
            if not told and anyio.current_time() - seen_s >= _UNSEEN_S:
                told = True
                tell(f"the stop button could not be read for {_UNSEEN_S:g}s: {error}; Ctrl-C stops the run too")
        with anyio.move_on_after(within_s / 2):
            await lock.lost.wait()
        await pause(0)
