"""`consul.lock`: contenders that claim, renew and release locks, each with a session of its own.

The leases of juju-2021, made of Consul's sessions: a contender makes a session with a TTL, claims a key with it
(`?acquire`), renews the session at its time whatever became of the last renewal, and gives the lock back (`?release`).
It believes that it holds the lock until one TTL after it *sent* the last renewal that was acknowledged: Consul expires
a session no sooner than that (and as late as two TTLs after it).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, model_validator

from hashidrill.core.errors import DatacenterError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer, read_error
from hashidrill.core.loads.base import Timeout
from hashidrill.core.loads.context import LoadContext
from hashidrill.core.loads.http_client import HttpClient, for_each, insist
from hashidrill.core.loads.schedule import Agenda, Reply
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration
from hashidrill.core.util.foreign import parse
from hashidrill.products.consul import rights
from hashidrill.products.consul.loads.base import ConsulLoad, left
from hashidrill.products.consul.loads.contender import GONE, SESSION_GONE, Action, Contender, Pacing, answered
from hashidrill.products.consul.loads.kv import PREFIX, PREPARE_WITHIN_S, Via
from hashidrill.products.consul.loads.replies import write_reply

if TYPE_CHECKING:
    from hashidrill.core.protocols.abc import EmitOperation
    from hashidrill.core.protocols.rights import Left

LONGEST_TTL = Duration("24h")
"""Consul's own limit. The shortest is the servers' `session_ttl_min`, 10 s unless their configuration says less."""
LONGEST_LOCK_DELAY = Duration("60s")
"""Consul cuts longer ones down to this."""
MOST_PER_S = 5000
_LOOK_EVERY_S = 0.25
_LEAVE_WITHIN_S, _ANSWERS_WITHIN_S = 4.0, 1.0
_SAMPLE_EVERY = 4


def _sane_ttl(ttl: Duration) -> Duration:
    if not 1 <= ttl <= LONGEST_TTL:
        raise ValueError(f"a session's TTL is 1s to {LONGEST_TTL}, not {ttl}")
    return ttl


def _positive(duration: Duration) -> Duration:
    if duration <= 0:
        raise ValueError("it is longer than 0s")
    return duration


Positive = Annotated[Duration, AfterValidator(_positive)]


class Lock(ConsulLoad):
    """Runs `holders` clients that compete for `locks` locks, evenly spread.

    The load also writes the signals `LOAD.held` (locks that a contender believes it holds) and `LOAD.lost` (how often a
    contender lost that belief without a release).
    """

    kind: ClassVar[str] = "consul.lock"
    signals: ClassVar[Mapping[str, None]] = {"held": None, "lost": None}

    class Params(Strict):
        """Who contends for what, how often they ask, and what they do when they are not answered.

        The incident's leases: `{ttl: 5s, renew: 4.5s}` (abusive), `{ttl: 10s, renew: 5s}` (its test tool's default),
        `{ttl: 60s, renew: 30s}` (normal). Consul takes TTLs under 10s only with `session_ttl_min` in its configuration.
        Its bad clients: `{claim_retries: 10, renew_retries: 10}`; good ones: `{claim_retries: 0, renew_retries: 3}`.
        """

        holders: Annotated[int, Field(ge=1, le=5000, description="How many contend, each with its own session")] = 30
        locks: Annotated[int, Field(ge=1, le=5000, description="How many locks they contend for")] = 10
        ttl: Annotated[Duration, AfterValidator(_sane_ttl), Field(description="How long a session lives unrenewed")] = (
            Duration("10s")
        )
        renew: Annotated[Positive, Field(description="How often a session is renewed")] = Duration("5s")
        claim_every: Annotated[Positive, Field(description="How often who has no lock asks for it")] = Duration("1s")
        hold: Annotated[Positive, Field(description="How long a lock is kept; none: for ever")] | None = None
        """How long to keep a lock before releasing it; none: for ever."""
        lock_delay: Annotated[
            Duration,
            Field(ge=0, le=LONGEST_LOCK_DELAY, description="How long a lock stays shut after its session was lost"),
        ] = Duration("15s")
        claim_retries: Annotated[int, Field(ge=0, le=100, description="How often a claim is sent again")] = 0
        renew_retries: Annotated[int, Field(ge=0, le=100, description="How often a renewal is sent again")] = 3
        backoff: Annotated[Duration, Field(ge=0, description="What a retry waits")] = Duration("200ms")
        via: Via = "consul:clients"
        timeout: Timeout = Duration("3s")

        @model_validator(mode="after")
        def _sensible(self) -> Lock.Params:
            if self.renew >= self.ttl:
                raise ValueError(f"renew ({self.renew}) must be shorter than ttl ({self.ttl}), or every lock is lost")
            if self.holders < self.locks:
                raise ValueError(f"{self.locks} locks for {self.holders} holders: nobody would ask for some of them")
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
    def rights(cls, name: str, params: Any) -> Sequence[Right]:  # noqa: ARG003 - of all loads
        return (rights.keys(f"{PREFIX}/{name}/"), rights.SESSIONS)

    @classmethod
    def leaves(cls, name: str, params: Any, run_id: str) -> Sequence[Left]:  # noqa: ARG003 - of all loads
        """The locks. A session that nobody ended, because the run died, ends by its TTL."""
        return (left(f"{PREFIX}/{name}/"),)

    def __init__(self, name: str, params: Params, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self._contenders: list[Contender] = []
        self._lost_by_those_who_left = 0
        self._sessions: set[str] = set()
        """Those that were made, and not ended."""

    async def prepare(self, *, within_s: float = PREPARE_WITHIN_S) -> None:
        """Make a session and end it: Consul says now whether it takes the TTL.

        Raises DatacenterError when it does not, WaitTimeoutError when it does not answer within `within_s` seconds.
        """
        async with self._http() as http:
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
        """Until cancelled; every operation is emitted exactly once. The profile's level is that of `holders`."""
        async with self._http() as http:
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
        """As many contenders as there should be now; the last to come are the first to go."""
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

    async def _send(self, http: HttpClient, number: int, key: str, action: Action) -> Reply:
        endpoints = self.context.endpoints
        base = endpoints[number % len(endpoints)].rstrip("/")
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
        return reply_to(action, answer)

    def _note_session(self, action: Action, answer: Answer) -> None:
        if action.op == "session" and answer.status == 200 and (made := _session_id(answer)) is not None:
            self._sessions.add(made)
        elif action.op == "end" and answer.status == 200:
            self._sessions.discard(action.session)

    async def clean_up(self) -> None:
        """End the sessions, for a few seconds: those of an agent that is sick end by their TTL."""
        endpoints = self.context.endpoints
        try:
            async with asyncio.timeout(_LEAVE_WITHIN_S), self._http() as http:

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

    def _http(self) -> HttpClient:
        return self.context.http()


def reply_to(action: Action, answer: Answer) -> Reply:
    """The outcome of an action. What was learned is in the reply's detail."""
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
    """A renewal is answered 404 then, and a claim 500 with these words."""
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
    """As Go reads it."""
    return f"{round(duration * 1000)}ms"
