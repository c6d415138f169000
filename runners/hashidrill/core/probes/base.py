"""What all probes share: a deadline for each sample, and failed samples if the target is sick."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

import anyio

from hashidrill.core.protocols.abc import Probe, Sample


class SickError(Exception):
    """The target gave no usable answer. BaseProbe turns this error into failed samples."""


class BaseProbe:
    """Samples `signals` of `host` (empty: of the datacenter) every `interval_s`, each time within `timeout_s` seconds.

    Subclasses write `measure`, which raises SickError (or OSError) when the target is sick.
    """

    signals: ClassVar[tuple[str, ...]] = ()
    interval_s: float = 1.0
    timeout_s: float = 1.0
    host: str = ""

    async def measure(self) -> Sequence[Sample]:
        raise NotImplementedError

    async def sample(self) -> Sequence[Sample]:
        """Never raises for a sick target: each of `signals` is then a failed sample with the reason."""
        try:
            with anyio.fail_after(self.timeout_s):
                return await self.measure()
        except TimeoutError:
            return self.failed(f"no answer within {self.timeout_s:g}s")
        except (SickError, OSError) as error:
            return self.failed(str(error) or type(error).__name__)

    def failed(self, reason: str) -> Sequence[Sample]:
        return [Sample(signal, None, reason, self.host, ok=False) for signal in self.signals]

    async def aclose(self) -> None:
        """Closes the probe's connections. Idempotent."""


async def run_probes(probes: Iterable[Probe], emit: Callable[[Sample], None], every_s: float | None = None) -> None:
    """Samples until cancelled, each probe at its own interval, or every `every_s` seconds. A slow probe does not delay
    others, and skips the samples that it missed.

    In the end, closes the probes that have an `aclose`. A probe that raises has a bug; its exception propagates.
    """
    probes = list(probes)
    try:
        async with anyio.create_task_group() as tasks:
            for probe in probes:
                tasks.start_soon(_run_probe, probe, emit, every_s or probe.interval_s)
    finally:
        with anyio.CancelScope(shield=True):
            for probe in probes:
                if (aclose := getattr(probe, "aclose", None)) is not None:
                    await aclose()


async def _run_probe(probe: Probe, emit: Callable[[Sample], None], every_s: float) -> None:
    start_s = anyio.current_time()
    while True:
        for sample in await probe.sample():
            emit(sample)
        done = math.floor((anyio.current_time() - start_s) / every_s + 1e-9)
        await anyio.sleep_until(start_s + (done + 1) * every_s)
