"""A client's tap, which is in the load generator: controlled over its Unix socket, observed from here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio

from hashidrill.core.tap import observer
from hashidrill.core.util.wait import all_at_once
from hashidrill.lab.sandbox.asking import ask

_AT_ONCE = 100


class LocalTap:
    """`socket` is where the client listens (hashidrill.core.loads.clients); it is there as long as the client is."""

    def __init__(self, client: str, socket: Path) -> None:
        self.client = client
        self._socket = socket

    async def fail(self, fault_id: str, fault: str, share: float, seed: int) -> None:
        await ask(self._socket, {"op": "fail", "id": fault_id, "fault": fault, "share": share, "seed": seed})

    async def let_pass(self, fault_id: str) -> None:
        if self._socket.exists():
            await ask(self._socket, {"op": "pass", "id": fault_id})

    async def look(self, fault: str, tries: int) -> Sequence[str]:
        url = (await ask(self._socket, {"op": "observe"}))["url"]
        seen: list[str] = []

        room = anyio.Semaphore(_AT_ONCE)

        async def one() -> None:
            async with room:
                seen.append(await observer.exchange(url, fault))

        await all_at_once(partial(one) for _ in range(tries))
        return seen
