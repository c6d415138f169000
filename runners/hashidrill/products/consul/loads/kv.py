"""Loads on Consul's KV store: `consul.kv.write` and `consul.kv.read`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer, Request, read_error, shown_body
from hashidrill.core.loads.base import Keys, LoadContext, LoadRate, Timeout
from hashidrill.core.loads.http_client import HttpClient, for_each, insist
from hashidrill.core.loads.schedule import Reply, Turns, stamp
from hashidrill.core.protocols.abc import EmitOperation
from hashidrill.core.protocols.rights import Left, Right
from hashidrill.core.units import Duration, Percent, Size
from hashidrill.core.util.safe_json import parse
from hashidrill.products.consul import rights
from hashidrill.products.consul.loads.base import ConsulLoad, left, mark, write_reply

PREFIX = "hashidrill"
ONCE_PREFIX = "hashidrill-once"
"""The prefix of keys that are written once. It differs from PREFIX, so watches and reads do not see these keys."""
MAX_VALUE_BYTES = 512 * 1024
"""Consul's own default limit on a value, `limits.kv_max_value_size`."""
MAX_TXN = 64
"""Consul's limit on the operations of a transaction."""
ONCE_KEYS = 20_000
ONCE_BYTES = 32_000_000
"""After this many keys that are written once, or this many bytes, the share of such writes shrinks (`Turns`)."""
FINAL_READS_WITHIN_S = 60.0
PREPARE_WITHIN_S = 60.0

_SEPARATOR = ";"
_RECURSE_LIMIT_BYTES = 16_000_000
_FOLDER_BYTES = 1_000_000
"""Bytes of values in one folder of keys that are written once: one recursive read returns one folder."""
_LEAVE_WITHIN_S = 5.0
_SEED_BYTES = 64


def _sane_value(size: Size) -> Size:
    if not 64 <= size <= MAX_VALUE_BYTES:
        raise ValueError(f"a value is 64B (it must identify its write) to 512KiB (Consul's limit), not {size}")
    return size


Via = Annotated[
    str, Field(description="Selector of the agents to send to, in turn; the servers if there are no client agents")
]


def padded(identity: str, size_bytes: int, sent: str = "") -> bytes:
    """The value to write: the identity, a separator, its send time (`base.mark`), and filler."""
    return f"{identity}{_SEPARATOR}{sent}".ljust(size_bytes, "x").encode()


def identify(value: bytes) -> str:
    """The identity in a value, as recorded with its write."""
    return value.partition(_SEPARATOR.encode())[0].decode(errors="replace")


def _path(key: str) -> str:
    return f"/v1/kv/{key}"


class _KvLoad(ConsulLoad):
    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:
        once = bool(getattr(params, "once", 0))
        return (rights.keys(f"{PREFIX}/{name}/"), *([rights.keys(f"{ONCE_PREFIX}/{name}/")] if once else []))

    @classmethod
    def leaves(cls, name: str, params: Any, run_id: str) -> Sequence[Left]:
        """The load's keys. In a local datacenter, the keys written in turn stay for the next run."""
        once = bool(getattr(params, "once", 0))
        return (left(f"{PREFIX}/{name}/"), *([left(f"{ONCE_PREFIX}/{name}/{run_id}/")] if once else []))

    def __init__(self, name: str, params: Any, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self._keys: int = params.keys

    def _key(self, n: int) -> str:
        return f"{PREFIX}/{self.name}/{n % self._keys}"

    def _plan(self, n: int) -> tuple[str, str]:
        return self._key(n), ""


class _Batch:
    """Writes that are sent as one transaction: the first write of the batch sends it; the others wait for the reply."""

    def __init__(self) -> None:
        self.sets: list[dict[str, Any]] = []
        self.full = asyncio.Event()
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()


class Batches:
    """Collects writes, and sends a batch when it holds `most` writes or its first write has waited for `linger_s`."""

    def __init__(self, send: Callable[[list[dict[str, Any]]], Awaitable[Reply]], most: int, linger_s: float) -> None:
        self._send, self._most, self._linger_s = send, most, linger_s
        self._open: _Batch | None = None

    async def write(self, key: str, value: bytes) -> Reply:
        """The reply to the transaction that this write was in."""
        first = self._open is None
        batch = self._open = self._open or _Batch()
        batch.sets.append({"KV": {"Verb": "set", "Key": key, "Value": base64.b64encode(value).decode()}})
        if len(batch.sets) == self._most:
            self._open = None
            batch.full.set()
        if not first:
            return await batch.reply
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._linger_s):
                await batch.full.wait()
        if self._open is batch:
            self._open = None
        reply = await self._send(batch.sets)
        if not batch.reply.done():  # the cancellation of a waiting write cancels the future too
            batch.reply.set_result(reply)
        return reply


def txn_reply(answer: Answer, writes: int) -> Reply:
    """The outcome of each write of a transaction: all of them were applied, or none."""
    if answer.status != 200:
        return write_reply(answer)
    with contextlib.suppress(ValueError, TypeError, KeyError):
        if len(parse(answer.body)["Results"]) == writes:
            return Reply("ok", status=200)
    return Reply("unknown", status=200, error=f"not the results of {writes} writes: {shown_body(answer.body)}")


class KvWrite(_KvLoad):
    """Writes unique values and reads back at the end what the datacenter kept.

    With `batch`, writes are sent in transactions. Under load a transaction holds many writes; a lone write is sent
    once it has waited for `linger`, as the leases of juju-2021 did (200 ms).

    At the end the load reads its keys, 1 MB at a time, and deletes those that were written once; if the agents do not
    answer within 5 s, the signal `LOAD.left` says how many keys remain.
    """

    kind: ClassVar[str] = "consul.kv.write"
    divides: ClassVar[bool] = True

    class Params(Strict):
        """`rate` writes a second, each with a value of `value` bytes that is unique in the run.

        `once` is the share of writes to keys that nothing overwrites; the other writes go to `keys` keys in turn.
        """

        rate: LoadRate
        keys: Keys = 500
        value: Annotated[Size, AfterValidator(_sane_value)] = Size("512B")
        """Size of each value."""
        once: Annotated[
            Percent,
            Field(ge=0, le=1, description="Share of writes to keys that are written only once, which reveal a loss"),
        ] = Percent("90%")
        batch: Annotated[
            int, Field(ge=1, le=MAX_TXN, description="Maximum writes in a transaction; 1: each write is sent alone")
        ] = 1
        linger: Annotated[
            Duration, Field(ge=0, le=60, description="How long the first write of a batch waits for others")
        ] = Duration("5ms")
        via: Via = "consul:clients"
        timeout: Timeout = Duration("30s")

        @model_validator(mode="after")
        def _fits(self) -> KvWrite.Params:
            if self.batch > 1 and self.batch * self.value > MAX_VALUE_BYTES / 2:
                raise ValueError(
                    f"{self.batch} values of {self.value} are over {Size(MAX_VALUE_BYTES // 2)}: Consul accepts no"
                    " larger transaction"
                )
            return self

    params: Params

    def __init__(self, name: str, params: Params, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self._turns = Turns(params.once, params.keys, max(1, min(ONCE_KEYS, int(ONCE_BYTES / params.value))))
        self._folder_keys = max(1, int(_FOLDER_BYTES / params.value))
        self._sent = -1

    async def run(self, emit: EmitOperation) -> None:
        size_bytes = int(self.params.value)
        async with self.client() as http:

            def sent(value: str) -> bytes:
                return padded(value, size_bytes, mark(self.context.clock.now_ns()))

            if self.params.batch == 1:

                def put(n: int, key: str, value: str) -> Request:
                    return "PUT", self.endpoint(n) + _path(key), sent(value)

                await self.request_loop(http, self._plan, put, write_reply).run(emit)
                return

            async def send(sets: list[dict[str, Any]]) -> Reply:
                self._sent += 1
                url, body = self.endpoint(self._sent) + "/v1/txn", json.dumps(sets).encode()
                timeout_s = float(self.params.timeout)
                return txn_reply(await http.request("PUT", url, body=body, timeout_s=timeout_s), len(sets))

            batches = Batches(send, self.params.batch, self.params.linger)
            await self.open_loop(self._plan, lambda _n, key, value: batches.write(key, sent(value))).run(emit)

    def _plan(self, n: int) -> tuple[str, str]:
        self._turns.skip_to(n)
        once, number = self._turns.next()
        return self._once_key(number) if once else self._key(number), stamp(self.context.run_id, n)

    def _once_folder(self, folder: int | None = None) -> str:
        place = f"{ONCE_PREFIX}/{self.name}/{self.context.run_id}/"
        return place if folder is None else f"{place}{folder}/"

    def _once_key(self, number: int) -> str:
        return f"{self._once_folder(number // self._folder_keys)}{number}"

    def reached(self, n: int) -> None:
        self._turns.skip_to(n)

    async def final_reads(self, *, within_s: float = FINAL_READS_WITHIN_S) -> Mapping[str, str | None]:
        """For each key that the load tried to write, the identity of its value now (None: absent), by consistent reads.

        Retries until `within_s` seconds are over, then raises WaitTimeoutError with the last answer.
        """
        in_turn = [self._key(n) for n in range(min(self._turns.in_turn, self._keys))]
        found: dict[str, str | None] = {}
        async with self.client() as http:
            if len(in_turn) * self.params.value > _RECURSE_LIMIT_BYTES:
                found.update(await self._read_each(http, in_turn, within_s))
            elif in_turn:
                found.update(await self._read_below(http, f"{PREFIX}/{self.name}/", in_turn, within_s))

            async def read(folder: int) -> None:
                first = folder * self._folder_keys
                numbers = range(first, min(first + self._folder_keys, self._turns.once))
                keys = [self._once_key(number) for number in numbers]
                found.update(await self._read_below(http, self._once_folder(folder), keys, within_s))

            await for_each(range(-(-self._turns.once // self._folder_keys)), read)
        return found

    async def _read_below(
        self, http: HttpClient, prefix: str, keys: list[str], within_s: float
    ) -> Mapping[str, str | None]:
        params = {"recurse": "", "consistent": ""}
        found = await insist(
            http, self.context.endpoints, "GET", _path(prefix), _entries, within_s=within_s, params=params
        )
        return {key: found.get(key) for key in keys}

    async def _read_each(self, http: HttpClient, keys: list[str], within_s: float) -> Mapping[str, str | None]:
        found: dict[str, str | None] = {}
        params = {"raw": "", "consistent": ""}

        async def read(key: str) -> None:
            values = await insist(
                http, self.context.endpoints, "GET", _path(key), _entry, within_s=within_s, params=params
            )
            found[key] = values[0] if values else None

        await for_each(keys, read)
        return found

    async def clean_up(self) -> None:
        """Deletes the keys that were written once. Gives up after 5 s, so that it does not wait for a sick agent.

        Otherwise these keys would accumulate in a permanent datacenter. The next run uses the other keys again.
        """
        if not self._turns.once:
            return
        try:
            async with asyncio.timeout(_LEAVE_WITHIN_S), self.client() as http:
                for endpoint in self.context.endpoints:
                    url = endpoint.rstrip("/") + _path(self._once_folder())
                    answer = await http.request("DELETE", url, params={"recurse": ""}, timeout_s=_LEAVE_WITHIN_S)
                    if _accepted(answer):
                        return
        except TimeoutError:
            pass
        many = self._turns.once
        self.context.sample("left", float(many), f"{many} keys below {self._once_folder()} were not deleted")


class SeededLoad(_KvLoad):
    """A load that reads keys: they exist before it starts, so a missing key is an error."""

    async def prepare(self, *, within_s: float = PREPARE_WITHIN_S) -> None:
        async with self.client() as http:

            async def seed(n: int) -> None:
                body = padded(stamp(self.context.run_id, n), _SEED_BYTES)
                path = _path(self._key(n))
                await insist(http, self.context.endpoints, "PUT", path, _accepted, within_s=within_s, body=body)

            await for_each(range(self._keys), seed)


class KvRead(SeededLoad):
    """Reads `keys` keys round robin. The keys exist before the load starts, so a missing key is an error."""

    kind: ClassVar[str] = "consul.kv.read"
    divides: ClassVar[bool] = True

    class Params(Strict):
        """`rate` reads a second over `keys` keys; `mode` is Consul's consistency mode."""

        rate: LoadRate
        keys: Keys = 500
        mode: Literal["default", "stale", "consistent"] = "default"
        """Consul's consistency modes."""
        via: Via = "consul:clients"
        timeout: Timeout = Duration("30s")

    params: Params

    async def run(self, emit: EmitOperation) -> None:
        query = "?raw" if self.params.mode == "default" else f"?raw&{self.params.mode}"
        async with self.client() as http:

            def get(n: int, key: str, value: str) -> Request:  # noqa: ARG001 - a read has no value
                return "GET", self.endpoint(n) + _path(key) + query, None

            await self.request_loop(http, self._plan, get, read_reply).run(emit)


def read_reply(answer: Answer) -> Reply:
    """`ok` is 200; any other answer is `fail`, because a read changes nothing."""
    if answer.status == 200:
        return Reply("ok", status=200, value=identify(answer.body))
    return Reply("fail", status=answer.status, error=read_error(answer), reason=answer.why)


def _accepted(answer: Answer) -> bool | None:
    return True if answer.status == 200 and answer.body.strip() == b"true" else None


def _entry(answer: Answer) -> list[str] | None:
    if answer.status == 404:
        return []
    return [identify(answer.body)] if answer.status == 200 else None


def _entries(answer: Answer) -> dict[str, str] | None:
    if answer.status == 404:
        return {}
    if answer.status != 200:
        return None
    try:
        return {entry["Key"]: identify(base64.b64decode(entry["Value"] or "")) for entry in parse(answer.body)}
    except (ValueError, KeyError, TypeError):
        return None
