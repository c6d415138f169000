"""Consul's HTTP API in memory, for tests of faults: as much of it as the built-in faults and observers ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hashidrill.abc import ApiAnswer
from hashidrill.testing.snapshots import FakeKv

if TYPE_CHECKING:
    from hashidrill.testing.fakes import FakeHost


class FakeConsul:
    """One datacenter's Consul: what all agents know (KV, sessions, leader), and what each was started with."""

    def __init__(self, hosts: Mapping[str, FakeHost]) -> None:
        self._hosts = hosts
        self.leader: str | None = next(iter(hosts), None)
        self.kv = FakeKv()

    def started(self, host: FakeHost) -> None:
        """A host's agent was started."""

    def stopped(self, host: FakeHost) -> None:
        """A host's agent ended."""

    def answer(self, host: FakeHost, method: str, path: str, params: Mapping[str, str], body: bytes) -> ApiAnswer:
        """What that host's agent answers."""
        if (answer := self.kv.answer(method, path, params, body)) is not None:
            return answer
        return ApiAnswer(404, b"no such path in the fake")


def answered(value: Any, status: int = 200, **headers: str) -> ApiAnswer:
    """A JSON answer."""
    return ApiAnswer(status, json.dumps(value).encode(), headers)
