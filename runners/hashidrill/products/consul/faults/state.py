"""Consul's replicated state: unused keys that fill its KV store, and sessions that end as if their TTL had expired."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, ClassVar
from urllib.parse import quote

import anyio
from pydantic import Field, StringConstraints, model_validator

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import BaseFault, Cases
from hashidrill.core.protocols.abc import ApiAnswer, Claim, Evidence, Observer, Place, Target, Trouble, Undo
from hashidrill.core.protocols.capabilities import AgentApi
from hashidrill.core.protocols.claims import takes
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Size
from hashidrill.core.util.wait import all_at_once
from hashidrill.products.consul import api, rights
from hashidrill.products.consul.faults.declared import on_one_host

_BATCH = 64
"""Operations per transaction, Consul's maximum (1.10.3: maxTxnOps)."""
_BATCH_BYTES = 400_000
"""The body of one transaction; Consul's limit is 512 kB (limits.txn_max_req_len)."""
_AT_ONCE = 4
_WRITTEN_WITHIN_S = 30.0
_SAMPLES = 16
_MOST_BYTES = 2_000_000_000
"""Every server keeps the whole store in memory: three servers keep it three times on this machine."""


class BloatParams(Strict):
    """How many keys, how large, and their prefix, which must be empty."""

    keys: int = Field(ge=1, le=1_000_000)
    """Number of keys, up to 1000000."""
    value: Size = Size("512B")
    """Size of each value, up to 256kB; up to 2GB in all."""
    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$", max_length=100)] = (
        "hashidrill/obsolete"
    )
    """Prefix of the keys; no key may exist under it before."""

    @model_validator(mode="after")
    def _fits(self) -> BloatParams:
        if self.value > 256_000:
            raise ValueError(
                f"value {self.value} is too large: Consul accepts up to 512 kB per request; use at most 256kB"
            )
        if self.keys * self.value > _MOST_BYTES:
            raise ValueError(f"{self.keys} keys of {self.value} are over {Size(_MOST_BYTES)} in total; write fewer")
        return self


class KvBloat(BaseFault[BloatParams]):
    """Fills the KV store with `keys` unused keys and deletes them on revert.

    Limits: the keys are in the Raft log and in every server's memory. Their deletion does not shrink the log's file,
    and frees the memory only later.
    """

    kind: ClassVar[str] = "consul.kv.bloat"
    cases: ClassVar[Cases] = Cases(
        each=({"keys": 300, "value": "2kB"},),
        on=(("host:client-1", {"keys": 2000, "value": "4kB"}),),
        overlaps=({"keys": 100, "value": "1kB"},),
    )
    at_a_time: ClassVar[int | None] = 0
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi})
    observer: ClassVar[Observer] = Observer(
        "another server's own copy of the keys",
        "nothing, if there is another server; a single server is read through the API that accepted the write",
    )
    undone_by: ClassVar[frozenset[str]] = frozenset({"consul.snapshot.restore"})
    Params: ClassVar[type[Strict]] = BloatParams

    def uses(self, place: Place) -> Sequence[Claim]:
        prefix = frozenset({self.params.prefix})
        below = takes("a prefix of the KV store", "both write under the same prefix", where=prefix, local=False)
        return (below, *super().uses(place))

    def troubles(self, place: Place) -> Iterable[Trouble]:
        return on_one_host(self.kind, place)

    def rights(self) -> Sequence[Right]:
        return (*rights.READS, rights.keys(self._folder))

    @property
    def _folder(self) -> str:
        return f"{self.params.prefix}/"

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError for a prefix that holds keys: reverting would delete them."""
        keys = await self._keys(target.host)
        if keys:
            raise FaultError(f"{self._folder} already holds {len(keys)} keys, like {keys[0]}; use another prefix")
        return {"keys": 0}

    async def _keys(self, host: str) -> list[str]:
        path, params = f"/v1/kv/{self._folder}", {"keys": "", "consistent": ""}
        answer = await api.when_led(self.hosts.host(host), "GET", path, params=params, timeout_s=_WRITTEN_WITHIN_S)
        return self._listed(host, answer)

    async def _copied(self, undo: Undo) -> list[str]:
        answer = await api.ask_another(self.hosts, self._host(undo), f"/v1/kv/{self._folder}", {"keys": ""})
        return self._listed(f"a server other than {undo['host']}", answer)

    def _listed(self, host: str, answer: ApiAnswer) -> list[str]:
        if answer.status == 404:
            return []
        if answer.status != 200:
            raise FaultError(f"{host}: could not count the keys under {self._folder}: {api.said(answer)}")
        return list(answer.json())

    def _key(self, number: int) -> str:
        return f"{self._folder}{number:07d}"

    def _batches(self) -> Iterator[Sequence[int]]:
        encoded = self.params.value * 4 / 3 + 200
        size = max(1, min(_BATCH, int(_BATCH_BYTES // encoded)))
        for first in range(0, self.params.keys, size):
            yield range(first, min(first + size, self.params.keys))

    async def apply(self, undo: Undo) -> None:
        """Writes a few transactions at a time; if one is refused, revert deletes all keys that were written."""
        chance = random.Random(undo["fault_id"])
        limit = anyio.CapacityLimiter(_AT_ONCE)
        value = base64.b64encode(chance.randbytes(int(self.params.value))).decode()
        await all_at_once(partial(self._write, undo, batch, value, limit) for batch in self._batches())

    async def _write(self, undo: Undo, batch: Sequence[int], value: str, limit: anyio.CapacityLimiter) -> None:
        operations = [{"KV": {"Verb": "set", "Key": self._key(number), "Value": value}} for number in batch]
        async with limit:
            body = json.dumps(operations).encode()
            answer = await api.when_led(self._host(undo), "PUT", "/v1/txn", body=body, timeout_s=_WRITTEN_WITHIN_S)
        if answer.status != 200:
            raise FaultError(f"{undo['host']}: could not write {len(batch)} keys: {api.said(answer)}")

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Counts the keys in another server's copy, and checks the size of some values there."""
        keys = await self._copied(undo)
        if not present:
            return Evidence(not keys, f"no key under {self._folder}", f"{len(keys)} keys", {"keys": len(keys)})
        step = max(1, len(keys) // _SAMPLES)
        sampled = [f"/v1/kv/{key}" for key in keys[::step][:_SAMPLES]]
        answers = await api.ask_another_for(self.hosts, self._host(undo), sampled, {"raw": ""})
        sizes = [len(answer.body) if answer.status == 200 else 0 for answer in answers]
        middle = sorted(sizes)[len(sizes) // 2] if sizes else 0
        wanted = int(self.params.value)
        right = len(keys) == self.params.keys and all(size == wanted for size in sizes)
        return Evidence(
            right,
            f"{self.params.keys} keys of {self.params.value} under {self._folder}",
            f"{len(keys)} keys; {len(sizes)} of them checked: {min(sizes, default=0)} to {max(sizes, default=0)} bytes",
            {"keys": len(keys), "bytes": len(keys) * middle},
        )

    async def revert(self, undo: Undo) -> None:
        """Deletes the keys, if there are any."""
        if not await self._keys(undo["host"]):
            return
        answer = await api.when_led(
            self._host(undo), "DELETE", f"/v1/kv/{self._folder}", params={"recurse": ""}, timeout_s=_WRITTEN_WITHIN_S
        )
        if answer.status != 200:
            raise FaultError(f"{undo['host']}: could not delete the keys under {self._folder}: {api.said(answer)}")


_MOST = 10_000
"""The most sessions that one fault ends: more than a drill creates, and few enough for a journal entry."""
_SESSIONS_AT_ONCE = 50
_STORE_WITHIN_S = 30.0


class ExpireParams(Strict):
    """Which sessions of the host's node to end."""

    prefix: str = ""
    """Ends only sessions whose name begins with this; by default all."""


class SessionExpire(BaseFault[ExpireParams]):
    """Destroys a node's sessions at once, all or by a prefix of their names: the same effect as an expired TTL.

    Limits: no timer runs out, so this says nothing about the precision of TTLs. The fault reads the whole KV store to
    find the keys that these sessions hold.
    """

    kind: ClassVar[str] = "consul.session.expire"
    cases: ClassVar[Cases] = Cases(
        each=({}, {"prefix": "lock"}),
        on=(("host:client-1", {"prefix": "lock"}), ("host:client-1", {})),
        momentary=True,
        overlaps="it needs sessions on its host, which end with the agents that others stop",
    )
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi})
    observer: ClassVar[Observer] = Observer(
        "another server's own copy of the sessions and locks",
        "nothing, if there is another server; a single server is read through the API that accepted the write",
    )
    once: ClassVar[bool] = True
    Params: ClassVar[type[Strict]] = ExpireParams

    def rights(self) -> Sequence[Right]:
        return (*rights.READS, rights.SESSIONS, rights.keys("", "read"))

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """The sessions and their locks. Raises FaultError if there are no sessions: the fault would have no effect."""
        host = self.hosts.host(target.host)
        found = await api.get(host, f"/v1/session/node/{host.name}", {"consistent": ""})
        sessions = {one["ID"]: one["Name"] for one in found if one["Name"].startswith(self.params.prefix)}
        if not sessions:
            named = f" with a name that begins with {self.params.prefix!r}" if self.params.prefix else ""
            raise FaultError(f"{host.name}: its node has no session{named}, so nothing could expire")
        if len(sessions) > _MOST:
            raise FaultError(f"{host.name}: its node has {len(sessions)} sessions, more than {_MOST}; set `prefix`")
        return {"sessions": sessions, "locks": await self._locks(target.host, sessions)}

    async def _locks(self, host: str, sessions: Mapping[str, str]) -> dict[str, str]:
        """Key -> holding session, for the locks of these sessions. Reads the whole store; Consul has no other way."""
        path, params = "/v1/kv/", {"recurse": "", "consistent": ""}
        answer = await api.when_led(self.hosts.host(host), "GET", path, params=params, timeout_s=_STORE_WITHIN_S)
        if answer.status == 404:
            return {}
        if answer.status != 200:
            raise FaultError(f"{host}: the locks could not be read: {api.said(answer)}")
        return {one["Key"]: one["Session"] for one in answer.json() if one.get("Session") in sessions}

    async def apply(self, undo: Undo) -> None:
        await _each(partial(self._destroy, undo, session) for session in undo["prior"]["sessions"])

    async def _destroy(self, undo: Undo, session: str) -> None:
        """Destroys the session. Consul's leader writes the same Raft entry when a TTL expires."""
        answer = await api.when_led(self._host(undo), "PUT", f"/v1/session/destroy/{session}")
        if answer.status != 200:
            raise FaultError(f"{undo['host']}: session {session} was not ended: {api.said(answer)}")

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        if not present:
            return await self._takes_sessions(undo)
        prior = undo["prior"]
        answer = await api.ask_another(self.hosts, self._host(undo), "/v1/session/list")
        if answer.status != 200:
            raise FaultError(f"the sessions could not be listed: {api.said(answer)}")
        left = [one["ID"] for one in answer.json() if one["ID"] in prior["sessions"]]
        held: list[str] = []
        await _each(partial(self._look, undo, key, held) for key in prior["locks"])
        total, locks = len(prior["sessions"]), len(prior["locks"])
        return Evidence(
            not left and not held,
            f"none of the {total} sessions is left, and none of their {locks} locks is held",
            f"{len(left)} of the sessions are left, {len(held)} of the locks are held",
            {"sessions": total, "locks": locks, "left": len(left), "held": len(held)},
        )

    async def _look(self, undo: Undo, key: str, held: list[str]) -> None:
        """Adds the key to `held` if one of the old sessions holds it; a new holder does not count."""
        answer = await api.ask_another(self.hosts, self._host(undo), f"/v1/kv/{quote(key)}")
        if answer.status not in (200, 404):  # a session of behaviour `delete` takes its keys with it
            raise FaultError(f"{undo['host']}: the lock {key} could not be read: {api.said(answer)}")
        if answer.status == 200 and answer.json()[0].get("Session") in undo["prior"]["sessions"]:
            held.append(key)

    async def _takes_sessions(self, undo: Undo) -> Evidence:
        host, asked = self._host(undo), "a session can be created on that node"
        made = await host.use(AgentApi).api(
            "PUT", "/v1/session/create", body=json.dumps({"Name": undo["fault_id"]}).encode(), agent=api.AGENT
        )
        if made.status != 200:
            return Evidence(False, asked, api.said(made))
        session = made.json()["ID"]
        await host.use(AgentApi).api("PUT", f"/v1/session/destroy/{session}", agent=api.AGENT)
        return Evidence(True, asked, f"created {session} and ended it")

    async def revert(self, undo: Undo) -> None:
        """Does nothing: a client that lost its session creates a new one, or has a bug."""


async def _each(calls: Iterable[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    rest = iter(calls)
    while some := list(islice(rest, _SESSIONS_AT_ONCE)):
        await all_at_once(some)
