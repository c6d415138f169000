"""The probe of a host's disk: how long an fsync next to the agent's data takes."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, ClassVar

from hashidrill.core.probes.base import BaseProbe, SickError
from hashidrill.core.protocols.abc import Sample
from hashidrill.core.protocols.capabilities import DiskCanary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hashidrill.core.protocols.abc import Host


class DiskProbe(BaseProbe):
    """`disk.fsync`: seconds that a canary fsync took, next to the agent's data; failed with the errno's name."""

    signals: ClassVar = ("disk.fsync",)
    # long, because a slow disk is to be measured and not to be called silent
    timeout_s = 10.0

    def __init__(self, host: Host) -> None:
        self.host = host.name
        self._host = host

    async def measure(self) -> Sequence[Sample]:
        timing = await self._host.use(DiskCanary).canary_fsync()
        if timing.errno:
            name = errno.errorcode.get(timing.errno, str(timing.errno))
            raise SickError(f"{name}: {os.strerror(timing.errno)} after {timing.seconds:.3f}s")
        return [Sample("disk.fsync", timing.seconds, "", self.host)]
