"""The part of Consul's KV store and sessions that interlocks need: a key, its holder, a session.

Reads that decide something are consistent reads: a lagging follower could show a revoked arming.
"""

import base64
import binascii
import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

from hashidrill.core.errors import FaultError, InterlockError
from hashidrill.core.protocols.abc import ApiAnswer
from hashidrill.core.protocols.service import Calls

_WITHIN_S = 5.0


class SilentError(InterlockError):
    """Consul did not answer, or had no leader: a retry may succeed."""


@dataclass(frozen=True)
class Entry:
    """One key: its value, the session that holds it ("" for none), and the index of its last change."""

    value: str
    session: str
    modified: int


class Kv:
    """Every method raises InterlockError if the token lacks a right, and SilentError without an answer."""

    def __init__(self, calls: Calls, *, within_s: float = _WITHIN_S) -> None:
        self._calls = calls
        self._within_s = within_s
        self.date: dt.datetime | None = None
        """The time of Consul's last answer, by Consul's clock; None until an answer has a time."""

    async def get(self, key: str) -> Entry | None:
        """None if the key does not exist."""
        answer = await self._ask("GET", f"/v1/kv/{quote(key)}", f"read the key {key}", params={"consistent": ""})
        if answer.status == 404:
            return None
        [entry] = _list(answer)
        return Entry(_text(entry.get("Value")), entry.get("Session") or "", int(entry["ModifyIndex"]))

    async def put(
        self, key: str, value: str, *, acquire: str = "", release: str = "", unchanged: int | None = None
    ) -> bool:
        """False if `acquire` or `release` names a session and another session holds the key, or if the key has changed
        since the index `unchanged`, which is 0 for a missing key.
        """
        params = {"acquire": acquire} if acquire else {"release": release} if release else None
        if unchanged is not None:
            params = {"cas": str(unchanged)}
        path, body = f"/v1/kv/{quote(key)}", value.encode()
        answer = await self._ask("PUT", path, f"write the key {key}", params=params, body=body)
        return answer.body.strip() == b"true"

    async def delete(self, key: str, *, below: bool = False, unchanged: int | None = None) -> None:
        """Deletes the key, or with `below` all keys that begin with it; with `unchanged`, only if that is its index."""
        params = {"recurse": ""} if below else None if unchanged is None else {"cas": str(unchanged)}
        await self._ask("DELETE", f"/v1/kv/{quote(key)}", f"delete the key {key}", params=params)

    async def keys(self, prefix: str, *, folders: bool = False) -> Sequence[str]:
        """The names that begin with `prefix`, sorted; with `folders`, a folder stands for the keys in it."""
        params = {"keys": "", "consistent": "", **({"separator": "/"} if folders else {})}
        answer = await self._ask("GET", f"/v1/kv/{quote(prefix)}", f"list the keys below {prefix}", params=params)
        return [] if answer.status == 404 else sorted(str(key) for key in _list(answer))

    async def new_session(self, name: str, ttl_s: float) -> str:
        """The id of a new session. No health check ends it, because it must outlive the faults of its run."""
        about = {"Name": name, "TTL": f"{ttl_s:.0f}s", "Behavior": "delete", "Checks": [], "NodeChecks": []}
        body = json.dumps(about).encode()
        answer = await self._ask("PUT", "/v1/session/create", "make a session", body=body)
        return str(answer.json()["ID"])

    async def renew(self, session: str) -> bool:
        """Returns False if the session is gone."""
        answer = await self._ask("PUT", f"/v1/session/renew/{session}", "renew the session")
        return answer.status != 404

    async def end_session(self, session: str) -> None:
        """Ends the session, and deletes the keys that it holds."""
        await self._ask("PUT", f"/v1/session/destroy/{session}", "end the session")

    async def _ask(
        self, method: str, path: str, what: str, *, params: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> ApiAnswer:
        try:
            answer = await self._calls.request(method, path, params=params, body=body, timeout_s=self._within_s)
        except FaultError as error:
            raise SilentError(f"could not {what}: {error}") from None
        self.date = _date(answer.headers.get("date", "")) or self.date
        if answer.status in {200, 404}:
            return answer
        said = f"HTTP {answer.status} {answer.body[:200].decode(errors='replace').strip()}"
        if answer.status == 403:
            raise InterlockError(
                f"the token may not {what}: {said}; `hashidrill staging acl consul` prints the policy it needs"
            )
        raise (SilentError if answer.status >= 500 else InterlockError)(f"could not {what}: {said}")


def _list(answer: ApiAnswer) -> list[Any]:
    try:
        found = answer.json()
    except FaultError as error:
        raise SilentError(f"Consul's answer makes no sense: {error}") from None
    if not isinstance(found, list):
        raise SilentError("Consul's answer makes no sense: it is not a list")
    return found


def _text(value: Any) -> str:
    try:
        return base64.b64decode(value or "").decode(errors="replace")
    except (ValueError, binascii.Error, TypeError):
        return ""


def _date(text: str) -> dt.datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    return date if date.tzinfo is not None else None
