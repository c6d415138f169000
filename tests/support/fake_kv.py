"""Consul's KV store and sessions in memory, as interlocks ask for them, with virtual time and what can go wrong."""

import base64
import datetime as dt
import itertools
import json
from email.utils import format_datetime, parsedate_to_datetime
from urllib.parse import unquote

import anyio

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.abc import ApiAnswer


class FakeKv:
    """`writes` counts what changed anything; `silent`: nobody answers; `denied`: (method, start of a path) with 403."""

    def __init__(self, keys=None, *, date="Mon, 23 Nov 2026 13:00:00 GMT"):
        self.keys = {key: [value.encode(), "", 1] for key, value in (keys or {}).items()}
        self.sessions = {}
        self.shut = {}
        self.writes = []
        self.reads = []
        self.denied = set()
        self.silent = False
        self.date, self._began = date, None
        self._index = itertools.count(10)
        self._ids = itertools.count(1)

    def value(self, key):
        return self.keys[key][0].decode() if key in self.keys else None

    def put(self, key, value):
        """By somebody else."""
        self.keys[key] = [value.encode(), "", next(self._index)]

    def snapshot(self):
        return {key: list(entry) for key, entry in self.keys.items()}, dict(self.sessions)

    def restore(self, snapshot):
        self.keys, self.sessions = {key: list(entry) for key, entry in snapshot[0].items()}, dict(snapshot[1])

    def expire(self):
        """The sessions whose TTL has passed end, and their keys with them."""
        now = anyio.current_time()
        for session in [one for one, (ttl, renewed) in self.sessions.items() if now > renewed + ttl]:
            self._end(session)

    def _end(self, session):
        """What it holds goes with it, and stays shut for Consul's lock-delay."""
        self.sessions.pop(session, None)
        self.shut |= {key: anyio.current_time() + 15 for key, entry in self.keys.items() if entry[1] == session}
        self.keys = {key: entry for key, entry in self.keys.items() if entry[1] != session}

    async def request(self, method, path, *, params=None, body=None, timeout_s=5.0, **_):
        params = dict(params or {})
        if self.silent:
            await anyio.sleep(timeout_s)
            raise FaultError(f"http://consul: {method} {path}: no answer in time")
        if any(method == verb and path.startswith(start) for verb, start in self.denied):
            return ApiAnswer(403, b"Permission denied: token with AccessorID '7' lacks permission", {})
        self.expire()
        (self.reads if method == "GET" else self.writes).append((method, unquote(path)))
        answer = self._answer(method, unquote(path), params, body or b"")
        return ApiAnswer(answer.status, answer.body, {"date": self._now()})

    def _now(self):
        """Consul's clock goes on with the virtual one."""
        self._began = self._began if self._began is not None else anyio.current_time()
        gone = dt.timedelta(seconds=anyio.current_time() - self._began)
        return format_datetime(parsedate_to_datetime(self.date) + gone, usegmt=True)

    def _answer(self, method, path, params, body):
        if path.startswith("/v1/kv/"):
            return self._kv(method, path.removeprefix("/v1/kv/"), params, body)
        if path == "/v1/session/create":
            about = json.loads(body)
            assert about["Checks"] == about["NodeChecks"] == []
            session = f"session-{next(self._ids)}"
            self.sessions[session] = (float(about["TTL"].removesuffix("s")), anyio.current_time())
            return ApiAnswer(200, json.dumps({"ID": session}).encode())
        what, _, session = path.removeprefix("/v1/session/").partition("/")
        if what == "renew" and session not in self.sessions:
            return ApiAnswer(404, f"Session id '{session}' not found".encode())
        if what == "renew":
            self.sessions[session] = (self.sessions[session][0], anyio.current_time())
            return ApiAnswer(200, b"[{}]")
        assert what == "destroy", path
        self._end(session)
        return ApiAnswer(200, b"true")

    def _kv(self, method, key, params, body):
        if method == "PUT":
            return ApiAnswer(200, json.dumps(self._written(key, params, body)).encode())
        if method == "DELETE":
            if "cas" in params and str(self.keys.get(key, [0, 0, 0])[2]) != params["cas"]:
                return ApiAnswer(200, b"false")
            gone = [each for each in self.keys if each == key or ("recurse" in params and each.startswith(key))]
            for each in gone:
                del self.keys[each]
            return ApiAnswer(200, b"true")
        if "keys" in params:
            found = sorted(each for each in self.keys if each.startswith(key))
            if "separator" in params:
                cut = [each[: len(key)] + each[len(key) :].partition("/")[0] for each in found]
                found = sorted({c + "/" if c != each else each for c, each in zip(cut, found, strict=True)})
            return ApiAnswer(200, json.dumps(found).encode()) if found else ApiAnswer(404, b"")
        if key not in self.keys:
            return ApiAnswer(404, b"")
        value, session, index = self.keys[key]
        entry = {"Key": key, "Value": base64.b64encode(value).decode(), "ModifyIndex": index}
        return ApiAnswer(200, json.dumps([entry | ({"Session": session} if session else {})]).encode())

    def _written(self, key, params, body):
        held = self.keys[key][1] if key in self.keys else ""
        if "cas" in params and str(self.keys.get(key, [0, 0, 0])[2]) != params["cas"]:
            return False
        session, released = params.get("acquire", ""), params.get("release", "")
        shut = not held and anyio.current_time() < self.shut.get(key, 0)
        if session and (session not in self.sessions or held not in ("", session) or shut):
            return False
        if released and held != released:
            return False
        self.keys[key] = [body, "" if released else session or held, next(self._index)]
        return True
