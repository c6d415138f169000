"""Faults and loads that do not do what they say: hashidrill has to notice."""

import asyncio
import contextlib
from typing import ClassVar

import anyio

from hashidrill.core.errors import FaultError
from hashidrill.core.faults.disk import DiskLatency
from hashidrill.core.protocols.capabilities import DiskControl
from hashidrill.products.consul.loads.kv import KvWrite

LIES = 3


class Idle(DiskLatency):
    """Says that it slowed the disk down, and did nothing."""

    kind: ClassVar[str] = "planted.idle"

    async def apply(self, undo):
        return


class Stuck(DiskLatency):
    """Can be put in force, and never taken away."""

    kind: ClassVar[str] = "planted.stuck"

    async def revert(self, undo):
        raise FaultError(f"{undo['host']}: the planted fault stays")


class Reluctant(DiskLatency):
    """Takes its time to be reverted."""

    kind: ClassVar[str] = "planted.reluctant"

    async def revert(self, undo):
        await anyio.sleep(1)
        await super().revert(undo)


class Fading(DiskLatency):
    """Is in force for a second, and then nothing takes it away but time."""

    kind: ClassVar[str] = "planted.fading"

    async def apply(self, undo):
        await super().apply(undo)
        self._fading = asyncio.get_running_loop().create_task(self._fade(undo))

    async def _fade(self, undo):
        await anyio.sleep(1)
        await self._host(undo).use(DiskControl).clear_disk_rule(undo["fault_id"])


class Quitter(KvWrite):
    """Writes for some seconds, and then no more."""

    kind: ClassVar[str] = "planted.quitter"

    async def run(self, emit):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(8):
                await super().run(emit)
        await asyncio.Event().wait()


class Liar(KvWrite):
    """Claims one more write after each to its first few keys, acknowledged and never sent."""

    kind: ClassVar[str] = "planted.liar"

    async def run(self, emit):
        lied_about = {self._key(n) for n in range(LIES)}

        def claim(op):
            emit(op)
            if op.key in lied_about and op.outcome == "ok":
                began_ns = op.end_ns + 1
                emit(op._replace(intended_ns=began_ns, start_ns=began_ns, end_ns=began_ns + 1, value=f"{op.value}-no"))

        await super().run(claim)
