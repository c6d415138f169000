"""The lock that keeps a second game day out: a Consul key that a session with a TTL holds.

A dead runner stops renewing: within twice its TTL Consul ends the session, and with it the key. A runner that cannot
renew for a whole TTL counts the lock as lost and stops, because another run may hold it by then.
"""

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial

import anyio

from hashidrill.core.errors import InterlockError
from hashidrill.core.util.safe_json import parse
from hashidrill.core.util.wait import beside, pause
from hashidrill.staging.interlocks.kv import Kv, SilentError

_RELEASED_WITHIN_S = 10.0
_SHUT_S = 20.0
"""Consul does not let a key be locked for 15 s after the session that held it was lost."""
_LOOKS_S, _AGAIN_S = 10.0, 2.5
"""The longest pauses between two renewals, and after a failed one, however long the TTL is: a session that ended is
noticed before Consul gives its key to another run, which it does after 15 s."""


class ShutError(InterlockError):
    """No session holds the key, and Consul gives it to none yet: the session that held it last was lost."""


@dataclass(frozen=True)
class Holder:
    """Who holds the lock, for runs that find it taken."""

    held_by: str
    run: str
    experiment: str
    since: str

    def __str__(self) -> str:
        return f"{self.held_by}, with {self.experiment} ({self.run}), since {self.since}"


class Lock:
    """A held lock. `lost` is set, with `why`, when another run may hold it.

    Code that has a reason to doubt the lock sets `doubted`: the lock is then checked at once.
    """

    def __init__(self, session: str) -> None:
        self.session = session
        self.lost, self.doubted = anyio.Event(), anyio.Event()
        self.why = ""

    def lose(self, why: str) -> None:
        self.why = self.why or why
        self.lost.set()


async def alone(
    kv: Kv, key: str, ttl_s: float, holder: Holder, *, do: Callable[[], Awaitable[None]], tell: Callable[[str], None]
) -> None:
    """Calls `do` while no other run can be in progress: under the lock, or while the same dead run still holds it.

    Waits for a lock whose holder died a moment ago. Raises InterlockError that names the holder.
    """
    gives_up_s = anyio.current_time() + _SHUT_S
    while True:
        entry = await kv.get(key)
        if entry is not None and entry.session:
            if _run_of(entry.value) != holder.run:
                raise _taken(entry.value, key)
            await do()
            return
        try:
            async with held(kv, key, ttl_s, holder, tell):
                await do()
                return
        except InterlockError:
            if anyio.current_time() >= gives_up_s:
                raise
        await pause(1.0)


async def held_by_others(kv: Kv, key: str, run: str) -> bool:
    """Whether another run holds it now. Raises InterlockError if that is unknown."""
    entry = await kv.get(key)
    return entry is not None and bool(entry.session) and _run_of(entry.value) != run


def _run_of(value: str) -> str:
    try:
        return str(parse(value).get("run", ""))
    except (ValueError, AttributeError):
        return ""


async def check_free(kv: Kv, key: str) -> None:
    """Raises InterlockError that says who holds the lock. Only reads."""
    entry = await kv.get(key)
    if entry is not None and entry.session:
        raise _taken(entry.value, key)


@asynccontextmanager
async def held(kv: Kv, key: str, ttl_s: float, holder: Holder, tell: Callable[[str], None]) -> AsyncIterator[Lock]:
    """Holds the lock, renews it during the block, and releases it at the end. Raises InterlockError if it is taken."""
    lock = Lock(await _acquired(kv, key, ttl_s, holder))
    try:
        async with beside(partial(_renew, kv, key, ttl_s, holder, lock=lock, tell=tell)):
            yield lock
    finally:
        with anyio.move_on_after(_RELEASED_WITHIN_S, shield=True):
            try:
                await _release(kv, key, lock.session)
            except InterlockError as error:
                tell(f"the lock {key} could not be released: {error}; it ends by itself within {2 * ttl_s:g}s")


async def _acquired(kv: Kv, key: str, ttl_s: float, holder: Holder) -> str:
    """The session that holds the key now. If another one does, raises InterlockError that says whose it is."""
    session = await kv.new_session(f"hashidrill {holder.run}", ttl_s)
    try:
        if await kv.put(key, json.dumps(asdict(holder)), acquire=session):
            return session
        entry = await kv.get(key)
    except BaseException:
        await _ended(kv, session)
        raise
    await _ended(kv, session)
    if entry is None or not entry.session:
        raise ShutError(
            f"already locked: the holder of {key} died a moment ago, and Consul blocks the key for 15s; try again then"
        )
    raise _taken(entry.value, key)


async def _release(kv: Kv, key: str, session: str) -> None:
    """Releases the key, and then the session: a session that ends while it holds the key blocks it for another 15 s.

    The key is deleted unless another session took it in between.
    """
    entry = await kv.get(key)
    if entry is not None and entry.session == session and await kv.put(key, entry.value, release=session):
        left = await kv.get(key)
        if left is not None and not left.session:
            await kv.delete(key, unchanged=left.modified)
    await kv.end_session(session)


async def _ended(kv: Kv, session: str) -> None:
    with anyio.move_on_after(_RELEASED_WITHIN_S, shield=True), suppress(InterlockError):
        await kv.end_session(session)


async def _renew(kv: Kv, key: str, ttl_s: float, holder: Holder, *, lock: Lock, tell: Callable[[str], None]) -> None:
    """Runs until cancelled, or until the lock is lost.

    A session ends with its node: Consul deregisters a server that leaves, and its autopilot one that failed. While
    Consul gives the key to no session, no other run can begin, so this run goes on and then takes it again.
    """
    renewed_s, shut_s, error = anyio.current_time(), math.inf, ""
    while True:
        with anyio.move_on_after(min(ttl_s / 12, _AGAIN_S) if error else min(ttl_s / 3, _LOOKS_S)):
            await lock.doubted.wait()
        lock.doubted, error = anyio.Event(), ""
        try:
            there = await kv.renew(lock.session)
            if there and (entry := await kv.get(key)) is not None and entry.session == lock.session:
                renewed_s, shut_s = anyio.current_time(), math.inf
                continue
            # a snapshot from before this run was restored, or the session was ended
            lock.session = await _acquired(kv, key, ttl_s, holder)
            renewed_s, shut_s = anyio.current_time(), math.inf
            tell(f"the lock {key} was gone, and no other run had taken it: this run holds it again")
        except SilentError as silent:
            error = str(silent)
            if anyio.current_time() - renewed_s >= ttl_s:
                lock.lose(f"the lock {key} could not be renewed for {ttl_s:g}s: {error}")
                return
        except InterlockError as refused:
            error, shut_s = str(refused), min(shut_s, anyio.current_time())
            if not isinstance(refused, ShutError) or anyio.current_time() - shut_s >= _SHUT_S:
                lock.lose(f"the lock {key} was lost: {refused}")
                return


def _taken(value: str, key: str) -> InterlockError:
    try:
        said = str(Holder(**parse(value)))
    except (ValueError, TypeError):
        said = f"an unnamed person ({value[:100]!r})"
    return InterlockError(
        f"already locked: another game day holds {key}: {said}; wait for its end, or stop it with"
        " `hashidrill staging stop`; if its runner died, `hashidrill heal --attach FILE` reverts what is left, and"
        " the lock ends by itself within twice its TTL"
    )
