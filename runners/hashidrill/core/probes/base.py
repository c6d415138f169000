"""What all probes share: a deadline for each sample, and failed samples where the target is sick."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import anyio

from hashidrill.core.protocols.abc import Sample

if TYPE_CHECKING:
    from collections.abc import Sequence


class SickError(Exception):
    """The target did not answer, or not sensibly. It becomes failed samples and goes no further."""


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
        """Never raises for a sick target: each of `signals` is then a sample that failed, with the reason."""
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
        """Give back what the probe holds open. Idempotent."""
