"""One contender for one lock: what it sends when, and what it believes. It does not know how requests are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from hashidrill.core.loads.operations import detail_as
from hashidrill.core.loads.schedule import Reply
from hashidrill.core.protocols.abc import Detail

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from hashidrill.core.loads.schedule import Agenda
    from hashidrill.core.protocols.abc import Operation

GONE = "the session is gone"
SESSION_GONE = "consul.session-gone"
"""The reason of an operation that Consul refused because it knows no such session (any more)."""
TABLE = "lock"


@dataclass(frozen=True, slots=True)
class Action:
    """What one operation of a lock load did: its `Operation.detail`. Its key is that of the lock.

    | op | means, with the outcome `ok` |
    |---|---|
    | session | a session was made, with a TTL of `ttl_s` seconds |
    | claim | the lock was acquired |
    | refused | a claim was answered: somebody else holds the lock, or its lock-delay is not over |
    | renew | the session's TTL starts again |
    | release | the lock was given back |
    | fence | the key was read: `lock_index` is its LockIndex, `session` who held it (empty: nobody) |
    | end | the session was destroyed |
    """

    op: str
    holder: str
    session: str = ""
    lock_index: int = 0
    ttl_s: float = 0.0

    def detail(self) -> Detail:
        return Detail(TABLE, asdict(self))

    @classmethod
    def of(cls, detail: Detail | None) -> Action:
        """Raises ValueError for what is not an action of a lock load."""
        return detail_as(cls, detail, TABLE, "consul.lock")


@dataclass(frozen=True)
class Pacing:
    """How a contender behaves, in seconds. A retry is sent `backoff_s` after the end of what failed."""

    ttl_s: float
    renew_s: float
    claim_every_s: float
    hold_s: float | None = None
    claim_retries: int = 0
    renew_retries: int = 0
    backoff_s: float = 0.2


class Contender:
    """Claims one lock at even distances while it has none, and renews its session at even distances.

    Both go on at their own times, whatever became of the last one: who waits for a slow answer does not show how many
    asked. Only sessions are made one after the other, as a second one would be of no use.
    """

    def __init__(
        self,
        holder: str,
        key: str,
        pacing: Pacing,
        *,
        agenda: Agenda,
        send: Callable[[str, Action], Awaitable[Reply]],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.holder = holder
        self.key = key
        self.session = ""
        self.lost = 0
        """How often it believed that it held the lock, and then did not any more, without having released it."""
        self._pacing = pacing
        self._agenda = agenda
        self._send = send
        self._tasks = tasks
        self._left = False
        self._creating = False
        self._acquired = False
        self._acquired_ns = 0
        self._released_ns = -1
        self._renewed_ns = 0

    @property
    def holds(self) -> bool:
        """Whether it believes that it holds the lock now."""
        return self._acquired and self._now_ns() < self._renewed_ns + _ns(self._pacing.ttl_s)

    async def run(self, first_ns: int) -> None:
        """Until it leaves or is cancelled; `first_ns` is when it first asks."""
        due_ns = first_ns
        while not self._left:
            await self._agenda.until(due_ns)
            if not self._left:
                self._tick(due_ns)
            due_ns += _ns(self._pacing.claim_every_s)

    def leave(self) -> None:
        """Ask for nothing any more, and end the session."""
        self._left = True
        self._end()

    def _tick(self, due_ns: int) -> None:
        if self._acquired and not self.holds:
            self._lose()
        if not self.session:
            if not self._creating:
                self._creating = True
                self._spawn(self._create(due_ns))
        elif not self.holds:
            self._spawn(self._claim(due_ns, self.session))
        elif self._pacing.hold_s is not None and due_ns >= self._acquired_ns + _ns(self._pacing.hold_s):
            # from here on it does not rely on the lock, whatever becomes of the request
            self._acquired, self._released_ns = False, self._now_ns()
            self._spawn(self._do(due_ns, Action("release", self.holder, self.session)))

    async def _create(self, due_ns: int) -> None:
        action = Action("session", self.holder, ttl_s=self._pacing.ttl_s)
        for _ in range(1 + self._pacing.claim_retries):
            done = await self._do(due_ns, action)
            if done.outcome == "ok":
                self.session, self._renewed_ns = Action.of(done.detail).session, done.start_ns
                self._spawn(self._renewals(self.session, done.start_ns))
                break
            due_ns = await self._back_off(done)
        self._creating = False
        if self._left:
            self._end()

    async def _claim(self, due_ns: int, session: str) -> None:
        for _ in range(1 + self._pacing.claim_retries):
            done = await self._do(due_ns, Action("claim", self.holder, session))
            if session != self.session:
                return
            if done.outcome == "ok":
                self._note_claim(done, session)
                return
            if done.reason == SESSION_GONE:
                self._forget(session)
                return
            due_ns = await self._back_off(done)
            if session != self.session or self.holds:
                return

    def _note_claim(self, done: Operation, session: str) -> None:
        # one that was sent before a release may have been applied before it, and then says nothing
        got = Action.of(done.detail).op == "claim" and done.start_ns > self._released_ns
        if got and not self._acquired:
            self._acquired, self._acquired_ns = True, done.end_ns
            self._spawn(self._do(done.end_ns, Action("fence", self.holder, session)))

    async def _renewals(self, session: str, made_ns: int) -> None:
        n = 1
        while True:
            due_ns = made_ns + _ns(n * self._pacing.renew_s)
            await self._agenda.until(due_ns)
            if session != self.session:
                return
            self._spawn(self._renew(due_ns, session))
            n += 1

    async def _renew(self, due_ns: int, session: str) -> None:
        for _ in range(1 + self._pacing.renew_retries):
            done = await self._do(due_ns, Action("renew", self.holder, session))
            if session != self.session:
                return
            if done.outcome == "ok":
                self._renewed_ns = max(self._renewed_ns, done.start_ns)
                return
            if done.reason == SESSION_GONE:
                self._forget(session)
                return
            due_ns = await self._back_off(done)
            if session != self.session:
                return

    def _forget(self, session: str) -> None:
        if session == self.session:
            self.session = ""
            if self._acquired:
                self._lose()

    def _lose(self) -> None:
        self._acquired = False
        self.lost += 1

    def _end(self) -> None:
        session, self.session, self._acquired = self.session, "", False
        if session:
            self._spawn(self._do(self._now_ns(), Action("end", self.holder, session)))

    async def _back_off(self, done: Operation) -> int:
        """When the retry is due, at that moment."""
        due_ns = done.end_ns + _ns(self._pacing.backoff_s)
        await self._agenda.until(due_ns)
        return due_ns

    async def _do(self, due_ns: int, action: Action) -> Operation:
        return await self._agenda.operation(due_ns, self.key, "", lambda: self._send(self.key, action), action.detail())

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        self._tasks.create_task(work)

    def _now_ns(self) -> int:
        return self._agenda.clock.now_ns()


def answered(action: Action, **learned: Any) -> Detail:
    """The action as it was answered, for `Reply.detail`."""
    return replace(action, **learned).detail()


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
