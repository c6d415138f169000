"""Runs probes side by side, each on its own interval."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hashidrill.core.protocols.abc import Probe, Sample


async def run_probes(probes: Iterable[Probe], emit: Callable[[Sample], None]) -> None:
    """Until cancelled. A slow probe delays no other, and skips the samples that it was too late for.

    Closes probes that have an `aclose` in the end. An exception out of a probe is a bug of ours and propagates.
    """
    probes = list(probes)
    try:
        async with anyio.create_task_group() as tasks:
            for probe in probes:
                tasks.start_soon(_run_probe, probe, emit)
    finally:
        with anyio.CancelScope(shield=True):
            for probe in probes:
                if (aclose := getattr(probe, "aclose", None)) is not None:
                    await aclose()


async def _run_probe(probe: Probe, emit: Callable[[Sample], None]) -> None:
    start_s = anyio.current_time()
    while True:
        for sample in await probe.sample():
            emit(sample)
        done = math.floor((anyio.current_time() - start_s) / probe.interval_s + 1e-9)
        await anyio.sleep_until(start_s + (done + 1) * probe.interval_s)
