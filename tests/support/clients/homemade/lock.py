"""Consul's sessions and locks, the three calls that a lock holder needs."""

import json
import urllib.request

from attempt import send

PLACE = "/v1/kv/hashidrill/lock"
SESSION = {"Name": "lock holder", "TTL": "10s", "LockDelay": "0s", "Behavior": "release"}


def session(base: str) -> str | None:
    """A new session's id; None when it cannot be had now."""
    reply = send(_put(f"{base}/v1/session/create", json.dumps(SESSION).encode()))
    return json.loads(reply.body)["ID"] if reply.ok else None


def acquire(base: str, mine: str) -> bool:
    """Whether this session has the lock now."""
    reply = send(_put(f"{base}{PLACE}?acquire={mine}", b"mine"))
    return reply.ok and json.loads(reply.body) is True


def held(base: str, mine: str) -> bool:
    """Renews the session, and looks who has the lock. False as well when nobody can be asked: it may be lost."""
    renewed = send(_put(f"{base}/v1/session/renew/{mine}", b""))
    entry = send(urllib.request.Request(base + PLACE))
    return renewed.ok and entry.ok and json.loads(entry.body)[0].get("Session") == mine


def _put(url: str, body: bytes) -> urllib.request.Request:
    return urllib.request.Request(url, data=body, method="PUT")
