"""`consul.kv.cas`: clients that read, write and compare-and-set few keys, so that their history can be checked.

This is Jepsen's register test, with Consul's own compare-and-set: a client reads a key with `?consistent`, remembers
its ModifyIndex, and sends a new value with `?cas=INDEX`. Consul sets it only if the key still has that index. Every
value is written only once in a run, so a value that is read identifies its write.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer, read_error
from hashidrill.core.loads.base import LoadContext, LoadRate, Timeout
from hashidrill.core.loads.http_client import HttpClient, for_each, insist
from hashidrill.core.loads.schedule import Reply, detail_as, stamp
from hashidrill.core.protocols.abc import Detail, EmitOperation
from hashidrill.core.protocols.rights import Left, Right
from hashidrill.core.units import Duration, Percent
from hashidrill.core.util.safe_json import parse
from hashidrill.products.consul import rights
from hashidrill.products.consul.loads.base import ConsulLoad, left, write_reply
from hashidrill.products.consul.loads.kv import FINAL_READS_WITHIN_S, PREFIX, Via

TABLE = "cas"


@dataclass(frozen=True, slots=True)
class Step:
    """What one operation of this load did: its `Operation.detail`.

    | op | value | index | expected |
    |---|---|---|---|
    | read | what the key held (None: no such key) | its ModifyIndex (0: no such key) | None |
    | write | what is put, whatever the key holds | 0 | None |
    | cas | what is put if the key still has `index` | the ModifyIndex sent | the value read with that index |
    | miss | as cas | as cas | as cas; Consul answered that the key no longer has that index |

    A `miss` is recorded with the outcome `ok`: Consul did answer, and the answer says something about the key.
    A `cas` with the outcome `ok` did set the value. `expected` None with `index` 0 requires that the key is absent.
    """

    op: str
    value: str | None = None
    index: int = 0
    expected: str | None = None

    def detail(self) -> Detail:
        return Detail(TABLE, asdict(self))

    @classmethod
    def of(cls, detail: Detail | None) -> Step:
        """Raises ValueError for a detail that is not a step of this load."""
        return detail_as(cls, detail, TABLE, KvCas.kind)


class KvCas(ConsulLoad):
    """Runs `clients` clients that read, write and compare-and-set `keys` keys, new in each run."""

    kind: ClassVar[str] = "consul.kv.cas"

    class Params(Strict):
        """`rate` operations per second by all clients together, on few keys, so that they contend."""

        rate: LoadRate
        keys: Annotated[int, Field(ge=1, le=1000, description="How many keys the clients compete for")] = 4
        clients: Annotated[
            int, Field(ge=1, le=1000, description="How many clients; each one remembers its own reads")
        ] = 5
        reads: Annotated[Percent, Field(ge=0, le=1, description="Share of operations that only read")] = Percent("40%")
        writes: Annotated[Percent, Field(ge=0, le=1, description="Share that write unconditionally")] = Percent("10%")
        via: Via = "consul:clients"
        timeout: Timeout = Duration("10s")

        @model_validator(mode="after")
        def _leaves_room(self) -> KvCas.Params:
            if self.reads + self.writes > 1:
                raise ValueError(f"reads + writes ({self.reads} + {self.writes}) exceed 100 %")
            return self

    params: Params

    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:  # noqa: ARG003 - the signature of all loads
        return (rights.keys(f"{PREFIX}/{name}/"),)

    @classmethod
    def leaves(cls, name: str, params: Any, run_id: str) -> Sequence[Left]:  # noqa: ARG003 - the signature of all loads
        return (left(f"{PREFIX}/{name}/{run_id}/"),)

    def __init__(self, name: str, params: Params, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self._seen: dict[tuple[int, str], Step] = {}
        """For each client and key, the read that the client has not used yet."""
        self._used: set[str] = set()
        self._planned: dict[int, Step] = {}
        """The planned steps of operations that have not ended."""

    async def run(self, emit: EmitOperation) -> None:
        async with self.client() as http:

            async def perform(n: int, key: str, _value: str) -> Reply:
                step = self._planned[n]
                # a client stays with its agent, as an application does
                url = self.endpoint(n % self.params.clients) + _path(key)
                answer = await self._send(http, url, step)
                reply = reply_to(step, answer)
                if step.op == "read" and reply.outcome == "ok":
                    self._seen[n % self.params.clients, key] = Step.of(reply.detail)
                return reply

            await self.open_loop(self._plan, perform, detail=lambda n: self._planned.pop(n).detail()).run(emit)

    async def _send(self, http: HttpClient, url: str, step: Step) -> Answer:
        timeout_s = float(self.params.timeout)
        if step.op == "read":
            return await http.request("GET", url, params={"consistent": ""}, timeout_s=timeout_s)
        params = {"cas": str(step.index)} if step.op == "cas" else None
        body = (step.value or "").encode()
        return await http.request("PUT", url, params=params, body=body, timeout_s=timeout_s)

    def _plan(self, n: int) -> tuple[str, str]:
        key, step = self._step(n)
        self._planned[n] = step
        return key, step.value or ""

    def _step(self, n: int) -> tuple[str, Step]:
        """Draws the step, with the operation's number as the seed, so that runs can be compared."""
        draw = random.Random(f"{self.name}.{n}")
        key = self._key(draw.randrange(self.params.keys))
        self._used.add(key)
        share = draw.random()
        new = stamp(self.context.run_id, n)
        if share < self.params.writes:
            return key, Step("write", new)
        # a read serves one attempt: if that succeeds, the index that was read is out of date
        seen = None
        if share >= self.params.writes + self.params.reads:
            seen = self._seen.pop((n % self.params.clients, key), None)
        return key, Step("read") if seen is None else Step("cas", new, seen.index, seen.value)

    def _key(self, number: int) -> str:
        return f"{PREFIX}/{self.name}/{self.context.run_id}/{number}"

    async def final_reads(self, *, within_s: float = FINAL_READS_WITHIN_S) -> Mapping[str, str | None]:
        """One more consistent read of each key.

        Retries until `within_s` seconds are over, then raises WaitTimeoutError with the last answer.
        """
        found: dict[str, str | None] = {}
        async with self.client() as http:

            async def read(key: str) -> None:
                step = await insist(
                    http,
                    self.context.endpoints,
                    "GET",
                    _path(key),
                    _seen,
                    within_s=within_s,
                    params={"consistent": ""},
                )
                found[key] = step.value

            await for_each(sorted(self._used), read)
        return found


def reply_to(step: Step, answer: Answer) -> Reply:
    """The outcome. The reply's detail holds the value read, and says if a cas missed."""
    if step.op == "read":
        seen = _seen(answer)
        if seen is None:
            return Reply("fail", status=answer.status, error=read_error(answer), reason=answer.why)
        return Reply("ok", status=answer.status, value=seen.value or "", detail=seen.detail())
    if step.op == "cas" and answer.status == 200 and answer.body.strip() == b"false":
        return Reply("ok", status=200, detail=Step("miss", step.value, step.index, step.expected).detail())
    return write_reply(answer)


def _seen(answer: Answer) -> Step | None:
    if answer.status == 404 and not answer.body.strip():
        return Step("read")
    if answer.status != 200:
        return None
    try:
        [entry] = parse(answer.body)
        value = base64.b64decode(entry["Value"] or "", validate=True).decode()
        return Step("read", value, int(entry["ModifyIndex"]))
    except (ValueError, KeyError, TypeError):
        return None


def _path(key: str) -> str:
    return f"/v1/kv/{key}"
