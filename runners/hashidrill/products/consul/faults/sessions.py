"""Ends sessions as if their TTL had expired, which frees their locks."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, ClassVar
from urllib.parse import quote

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import BaseFault, Cases
from hashidrill.core.protocols.abc import Evidence, Observer, Target, Undo
from hashidrill.core.protocols.capabilities import AgentApi
from hashidrill.core.protocols.rights import Right
from hashidrill.core.util.wait import all_at_once
from hashidrill.products.consul import api, rights

_MOST = 10_000
"""Sessions of one node: more than a drill makes, and what a journal entry still holds."""
_AT_ONCE = 50
_STORE_WITHIN_S = 30.0


class ExpireParams(Strict):
    """Whose sessions: those of the host's node whose name begins so; empty for all."""

    prefix: str = ""
    """Only sessions whose name begins so; without it, all."""


class SessionExpire(BaseFault[ExpireParams]):
    """Destroys all sessions of a node, or those with a name, at once: the same effect as an expired TTL.

    Limits: for Consul's state, destroying a session through the API equals an expired TTL, but no timer runs out, so
    this says nothing about the precision of TTLs. To find the keys they hold, the fault reads the whole KV store.
    """

    kind: ClassVar[str] = "consul.session.expire"
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi})
    observer: ClassVar[Observer] = Observer(
        "another server's own copy of the sessions and locks",
        "nothing, if there is another server; a single server is read through the API that took the write",
    )
    once: ClassVar[bool] = True
    Params: ClassVar[type[Strict]] = ExpireParams
    cases: ClassVar[Cases] = Cases(
        each=({}, {"prefix": "lock"}),
        on=(("host:client-1", {"prefix": "lock"}), ("host:client-1", {})),
        momentary=True,
        overlaps="it needs sessions on its host, which end with the agents that others stop",
    )

    def rights(self) -> Sequence[Right]:
        return (*rights.READS, rights.SESSIONS, rights.keys("", "read"))

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """The sessions and what they lock. Raises FaultError when there are none: then nothing would happen."""
        host = self.hosts.host(target.host)
        found = await api.get(host, f"/v1/session/node/{host.name}", {"consistent": ""})
        sessions = {one["ID"]: one["Name"] for one in found if one["Name"].startswith(self.params.prefix)}
        if not sessions:
            named = f" with a name that begins with {self.params.prefix!r}" if self.params.prefix else ""
            raise FaultError(f"{host.name}: its node has no session{named}, so nothing could expire")
        if len(sessions) > _MOST:
            raise FaultError(f"{host.name}: its node has {len(sessions)} sessions, more than {_MOST}; name a prefix")
        return {"sessions": sessions, "locks": await self._locks(target.host, sessions)}

    async def _locks(self, host: str, sessions: Mapping[str, str]) -> dict[str, str]:
        """Key -> the session that holds it, for those that any of these holds. Reads the whole store: nothing else
        says it.
        """
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
        """Destroying one is what Consul's leader does when a TTL has run out: the same Raft entry."""
        answer = await api.when_led(self._host(undo), "PUT", f"/v1/session/destroy/{session}")
        if answer.status != 200:
            raise FaultError(f"{undo['host']}: session {session} was not ended: {api.said(answer)}")

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """In force: in another server's copy, none of the sessions exists and none holds a key."""
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
            f"none of {total} sessions, none of their {locks} locks",
            f"{len(left)} of the sessions, {len(held)} of the locks",
            {"sessions": total, "locks": locks, "left": len(left), "held": len(held)},
        )

    async def _look(self, undo: Undo, key: str, held: list[str]) -> None:
        """Adds the key to `held` when one of the old sessions holds it; who else claimed it since does not count."""
        answer = await api.ask_another(self.hosts, self._host(undo), f"/v1/kv/{quote(key)}")
        if answer.status not in (200, 404):  # a session of behaviour `delete` takes its keys with it
            raise FaultError(f"{undo['host']}: the lock {key} could not be read: {api.said(answer)}")
        if answer.status == 200 and answer.json()[0].get("Session") in undo["prior"]["sessions"]:
            held.append(key)

    async def _takes_sessions(self, undo: Undo) -> Evidence:
        """Makes a session of its own on that node, and ends it."""
        host, asked = self._host(undo), "a session can be made on that node"
        made = await host.use(AgentApi).api(
            "PUT", "/v1/session/create", body=json.dumps({"Name": undo["fault_id"]}).encode(), agent=api.AGENT
        )
        if made.status != 200:
            return Evidence(False, asked, api.said(made))
        session = made.json()["ID"]
        await host.use(AgentApi).api("PUT", f"/v1/session/destroy/{session}", agent=api.AGENT)
        return Evidence(True, asked, f"made {session} and ended it")

    async def revert(self, undo: Undo) -> None:
        """Does nothing: a client that lost its session makes a new one, or has a bug."""


async def _each(calls: Iterable[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Makes the calls, a few at a time."""
    rest = iter(calls)
    while some := list(islice(rest, _AT_ONCE)):
        await all_at_once(some)
