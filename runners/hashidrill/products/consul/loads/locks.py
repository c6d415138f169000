"""`consul.lock`: contenders that claim, renew and release locks, each with a session of its own.

The locks are the leases of juju-2021, built on Consul's sessions. A contender creates a session with a TTL and claims a
key with it (`?acquire`). It renews the session on schedule, whatever the result of the last renewal, and gives the
lock back (`?release`). It believes that it holds the lock until one TTL after it *sent* the last acknowledged renewal:
Consul expires a session no sooner than that, and perhaps as late as two TTLs after the renewal.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, model_validator

from hashidrill.core.errors import DatacenterError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer, read_error
from hashidrill.core.loads.base import LoadContext, Timeout
from hashidrill.core.loads.http_client import HttpClient, for_each, insist
from hashidrill.core.loads.schedule import Agenda, Reply, detail_as
from hashidrill.core.protocols.abc import Detail, EmitOperation, Operation
from hashidrill.core.protocols.rights import Left, Right
from hashidrill.core.units import Duration, positive
from hashidrill.core.util.safe_json import parse
from hashidrill.products.consul import rights
from hashidrill.products.consul.loads.base import ConsulLoad, left, write_reply
from hashidrill.products.consul.loads.kv import PREFIX, PREPARE_WITHIN_S, Via

GONE = "the session is gone"
SESSION_GONE = "consul.session-gone"
"""The reason of an operation that Consul refused because it does not know the session."""
TABLE = "lock"


@dataclass(frozen=True, slots=True)
class Action:
    """What one operation of a lock load did: its `Operation.detail`. The operation's key is the lock's key.

    | op | means, with the outcome `ok` |
    |---|---|
    | session | a session was created, with a TTL of `ttl_s` seconds |
    | claim | the lock was acquired |
    | refused | a claim was refused: another session holds the lock, or its lock-delay is not over |
    | renew | the session's TTL starts again |
    | release | the lock was given back |
    | fence | the key was read: `lock_index` is its LockIndex, `session` the holder's session (empty: not held) |
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
        """Raises ValueError if the detail is not an action of a lock load."""
        return detail_as(cls, detail, TABLE, "consul.lock")


@dataclass(frozen=True)
class Pacing:
    """How a contender behaves, in seconds. A retry is sent `backoff_s` after the end of the failed try."""

    ttl_s: float
    renew_s: float
    claim_every_s: float
    hold_s: float | None = None
    claim_retries: int = 0
    renew_retries: int = 0
    backoff_s: float = 0.2


class Contender:
    """Claims its lock at even intervals while it does not hold it, and renews its session at even intervals.

    Claims and renewals are open loop: they are sent on schedule, whatever the earlier answers, so a slow answer does
    not hide demand. A contender creates only one session at a time, because a second session would be useless.
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
        """How often the contender believed that it held the lock, and then lost it without a release."""
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
        """Whether the contender believes that it holds the lock now."""
        return self._acquired and self._now_ns() < self._renewed_ns + _ns(self._pacing.ttl_s)

    async def run(self, first_ns: int) -> None:
        due_ns = first_ns
        while not self._left:
            await self._agenda.until(due_ns)
            if not self._left:
                self._tick(due_ns)
            due_ns += _ns(self._pacing.claim_every_s)

    def leave(self) -> None:
        """Stops all requests, and ends the session."""
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
            # from now on the contender does not rely on the lock, whatever the request's result
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
        # a claim sent before a release may have been applied before that release, and then proves nothing
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
    """The action with what its answer says, for `Reply.detail`."""
    return replace(action, **learned).detail()


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


LONGEST_TTL = Duration("24h")
"""Consul's own limit. The shortest TTL is the servers' `session_ttl_min`, by default 10 s."""
LONGEST_LOCK_DELAY = Duration("60s")
"""Consul shortens longer delays to this."""
MOST_PER_S = 5000
_LOOK_EVERY_S = 0.25
_LEAVE_WITHIN_S, _ANSWERS_WITHIN_S = 4.0, 1.0
_SAMPLE_EVERY = 4


def _sane_ttl(ttl: Duration) -> Duration:
    if not 1 <= ttl <= LONGEST_TTL:
        raise ValueError(f"a session's TTL is 1s to {LONGEST_TTL}, not {ttl}")
    return ttl


Positive = Annotated[Duration, AfterValidator(positive)]


class Lock(ConsulLoad):
    """Runs `holders` clients that compete for `locks` locks, evenly spread.

    The load also writes the signals `LOAD.held` (locks that a contender believes it holds), `LOAD.lost` (how often a
    contender lost that belief without a release) and `LOAD.moved` (how often a contender went on to another agent).
    """

    kind: ClassVar[str] = "consul.lock"
    signals: ClassVar[Mapping[str, None]] = {"held": None, "lost": None, "moved": None}

    class Params(Strict):
        """How many contenders claim how many locks, how often, and what they do if no answer comes.

        The incident's leases: `{ttl: 5s, renew: 4.5s}` (abusive), `{ttl: 10s, renew: 5s}` (its test tool's default),
        `{ttl: 60s, renew: 30s}` (normal). Consul accepts TTLs under 10s only if its configuration lowers
        `session_ttl_min`. The incident's bad clients: `{claim_retries: 10, renew_retries: 10}`; its good clients:
        `{claim_retries: 0, renew_retries: 3}`.
        """

        holders: Annotated[
            int, Field(ge=1, le=20_000, description="How many contenders, each with its own session")
        ] = 30
        locks: Annotated[int, Field(ge=1, le=20_000, description="How many locks they contend for")] = 10
        ttl: Annotated[
            Duration, AfterValidator(_sane_ttl), Field(description="How long a session lives without a renewal")
        ] = Duration("10s")
        renew: Annotated[Positive, Field(description="How often a session is renewed")] = Duration("5s")
        claim_every: Annotated[Positive, Field(description="How often a contender without a lock claims it")] = (
            Duration("1s")
        )
        hold: Annotated[Positive, Field(description="How long a lock is kept; none: for ever")] | None = None
        """How long to keep a lock before releasing it; none: for ever."""
        lock_delay: Annotated[
            Duration,
            Field(
                ge=0, le=LONGEST_LOCK_DELAY, description="How long a lock cannot be claimed after its session was lost"
            ),
        ] = Duration("15s")
        claim_retries: Annotated[int, Field(ge=0, le=100, description="How often a failed claim is sent again")] = 0
        renew_retries: Annotated[int, Field(ge=0, le=100, description="How often a failed renewal is sent again")] = 3
        backoff: Annotated[Duration, Field(ge=0, description="How long a retry waits")] = Duration("200ms")
        move_on: Annotated[bool, Field(description="Use the next agent when one does not answer")] = False
        via: Via = "consul:clients"
        timeout: Timeout = Duration("3s")

        @model_validator(mode="after")
        def _sensible(self) -> Lock.Params:
            if self.renew >= self.ttl:
                raise ValueError(f"renew ({self.renew}) must be shorter than ttl ({self.ttl}), or every lock is lost")
            if self.holders < self.locks:
                raise ValueError(f"{self.locks} locks for {self.holders} holders: some locks would have no contender")
            per_s = self.holders * (1 / self.claim_every + 1 / self.renew)
            if per_s > MOST_PER_S:
                raise ValueError(f"{per_s:.0f} operations per second are too many: one process can do {MOST_PER_S}")
            return self

        def pacing(self) -> Pacing:
            return Pacing(
                ttl_s=self.ttl,
                renew_s=self.renew,
                claim_every_s=self.claim_every,
                hold_s=self.hold,
                claim_retries=self.claim_retries,
                renew_retries=self.renew_retries,
                backoff_s=self.backoff,
            )

    params: Params

    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:  # noqa: ARG003 - the signature of all loads
        return (rights.keys(f"{PREFIX}/{name}/"), rights.SESSIONS)

    @classmethod
    def leaves(cls, name: str, params: Any, run_id: str) -> Sequence[Left]:  # noqa: ARG003 - the signature of all loads
        """The keys of the locks. If the run dies, its sessions expire after their TTL."""
        return (left(f"{PREFIX}/{name}/"),)

    def __init__(self, name: str, params: Params, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self._contenders: list[Contender] = []
        self._lost_by_those_who_left = 0
        self._moves: Counter[int] = Counter()
        """How often each contender went on to the next agent."""
        self._sessions: set[str] = set()
        """Sessions that were created and have not been ended."""

    async def prepare(self, *, within_s: float = PREPARE_WITHIN_S) -> None:
        """Creates a session and ends it, to check that Consul accepts the TTL.

        Raises DatacenterError if Consul refuses the TTL, WaitTimeoutError if it does not answer in `within_s` seconds.
        """
        async with self.client() as http:
            session = await insist(
                http,
                self.context.endpoints,
                "PUT",
                "/v1/session/create",
                self._made,
                within_s=within_s,
                body=self._session_body("prepare"),
            )
            await insist(
                http, self.context.endpoints, "PUT", f"/v1/session/destroy/{session}", _true, within_s=within_s
            )

    def _made(self, answer: Answer) -> str | None:
        if b"Invalid Session TTL" in answer.body:
            raise DatacenterError(
                f"load {self.name!r}: Consul refuses sessions with a TTL of {self.params.ttl}: {read_error(answer)};"
                " use a longer ttl, or set `session_ttl_min` under datacenter.consul.config"
            )
        return _session_id(answer)

    async def run(self, emit: EmitOperation) -> None:
        async with self.client() as http:
            agenda = Agenda(self.name, self.context.clock, emit, lag=self.context.lag, waiting=self.context.waiting)
            async with asyncio.TaskGroup() as tasks:
                looks = 0
                while True:
                    self._meet(agenda, http, tasks)
                    if looks % _SAMPLE_EVERY == 0:
                        self._sample()
                    looks += 1
                    await asyncio.sleep(_LOOK_EVERY_S)

    def _meet(self, agenda: Agenda, http: HttpClient, tasks: asyncio.TaskGroup) -> None:
        now_ns = self.context.clock.now_ns()
        wanted = round(self.params.holders * self.context.course.at(now_ns))
        while len(self._contenders) > wanted:
            leaving = self._contenders.pop()
            self._lost_by_those_who_left += leaving.lost
            leaving.leave()
        new = wanted - len(self._contenders)
        for place in range(new):
            number = len(self._contenders)

            async def send(key: str, action: Action, number: int = number) -> Reply:
                return await self._send(http, number, key, action)

            holder, key = f"{self.name}/{number}", self._key(number)
            contender = Contender(holder, key, self.params.pacing(), agenda=agenda, send=send, tasks=tasks)
            self._contenders.append(contender)
            spread_ns = round(place / new * self.params.claim_every * 1e9)
            tasks.create_task(contender.run(now_ns + spread_ns))

    def _sample(self) -> None:
        self.context.sample("held", sum(contender.holds for contender in self._contenders))
        lost = self._lost_by_those_who_left + sum(contender.lost for contender in self._contenders)
        self.context.sample("lost", lost)
        self.context.sample("moved", self._moves.total())

    async def _send(self, http: HttpClient, number: int, key: str, action: Action) -> Reply:
        endpoints, moves = self.context.endpoints, self._moves[number]
        base = endpoints[(number + moves) % len(endpoints)].rstrip("/")
        timeout_s = float(self.params.timeout)
        kv = f"{base}/v1/kv/{key}"
        if action.op == "fence":
            answer = await http.request("GET", kv, params={"consistent": ""}, timeout_s=timeout_s)
        elif action.op in {"claim", "release"}:
            params = {"acquire" if action.op == "claim" else "release": action.session}
            answer = await http.request("PUT", kv, params=params, body=action.holder.encode(), timeout_s=timeout_s)
        else:
            path = {"session": "create", "renew": f"renew/{action.session}", "end": f"destroy/{action.session}"}[
                action.op
            ]
            body = self._session_body(action.holder) if action.op == "session" else None
            answer = await http.request("PUT", f"{base}/v1/session/{path}", body=body, timeout_s=timeout_s)
            self._note_session(action, answer)
        # several requests may get no answer from one agent; only the first of them moves the contender on
        if self.params.move_on and not answer.status and self._moves[number] == moves:
            self._moves[number] += 1
        return reply_to(action, answer)

    def _note_session(self, action: Action, answer: Answer) -> None:
        if action.op == "session" and answer.status == 200 and (made := _session_id(answer)) is not None:
            self._sessions.add(made)
        elif action.op == "end" and answer.status == 200:
            self._sessions.discard(action.session)

    async def clean_up(self) -> None:
        """Ends the sessions. Gives up after 4 s, because the sessions of a sick agent expire after their TTL."""
        endpoints = self.context.endpoints
        try:
            async with asyncio.timeout(_LEAVE_WITHIN_S), self.client() as http:

                async def end(session: str) -> None:
                    for endpoint in endpoints:
                        url = f"{endpoint.rstrip('/')}/v1/session/destroy/{session}"
                        if (await http.request("PUT", url, timeout_s=_ANSWERS_WITHIN_S)).status == 200:
                            self._sessions.discard(session)
                            return

                await for_each(sorted(self._sessions), end)
        except TimeoutError:
            pass
        if many := len(self._sessions):
            self.context.sample("left", float(many), f"{many} sessions were not ended: each ends by its TTL")

    def _session_body(self, holder: str) -> bytes:
        times = {"TTL": _go(self.params.ttl), "LockDelay": _go(self.params.lock_delay)}
        return json.dumps({"Name": holder, **times, "Behavior": "release"}).encode()

    def _key(self, number: int) -> str:
        return f"{PREFIX}/{self.name}/{number % self.params.locks}"


def reply_to(action: Action, answer: Answer) -> Reply:
    """The outcome of an action. The reply's detail holds what the answer says."""
    if _session_is_unknown(action, answer):
        return Reply("fail", status=answer.status, error=f"{GONE}: {read_error(answer)}", reason=SESSION_GONE)
    if action.op == "fence":
        return _fence_reply(action, answer)
    if answer.status != 200:
        return write_reply(answer)
    if action.op == "claim" and answer.body.strip() == b"false":
        return Reply("ok", status=200, detail=answered(action, op="refused"))
    if action.op == "session":
        return _session_reply(action, answer)
    return Reply("ok", status=200) if action.op == "renew" else write_reply(answer)


def _session_reply(action: Action, answer: Answer) -> Reply:
    session = _session_id(answer)
    if session is None:
        return Reply("unknown", status=200, error="no session id in the answer", reason=answer.why)
    return Reply("ok", status=200, detail=answered(action, session=session))


def _session_is_unknown(action: Action, answer: Answer) -> bool:
    """If Consul does not know the session, it answers a renewal with 404, and a claim with 500 and these words."""
    return (action.op == "renew" and answer.status == 404) or (
        answer.status == 500 and b"invalid session" in answer.body
    )


def _fence_reply(action: Action, answer: Answer) -> Reply:
    if answer.status == 404:
        return Reply("ok", status=404, detail=answered(action, session=""))
    if answer.status != 200:
        return Reply("fail", status=answer.status, error=read_error(answer), reason=answer.why)
    try:
        [entry] = parse(answer.body)
        seen = answered(action, session=str(entry.get("Session", "")), lock_index=int(entry["LockIndex"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Reply("fail", status=200, error=f"not a KV entry: {error!r}", reason=answer.why)
    return Reply("ok", status=200, detail=seen)


def _session_id(answer: Answer) -> str | None:
    if answer.status != 200:
        return None
    try:
        return str(parse(answer.body)["ID"])
    except (ValueError, KeyError, TypeError):
        return None


def _true(answer: Answer) -> bool | None:
    return True if answer.status == 200 else None


def _go(duration: Duration) -> str:
    return f"{round(duration * 1000)}ms"
