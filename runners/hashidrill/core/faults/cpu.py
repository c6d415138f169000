"""Gives a host little CPU: by a cgroup quota, or, if not permitted, by stopping and continuing its processes."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import BaseFault, Cases, patient
from hashidrill.core.faults.significance import Counts, counts, most_before, trials_for
from hashidrill.core.protocols.abc import Claim, Evidence, Host, Observer, Place, Requires, Target, Undo
from hashidrill.core.protocols.capabilities import CpuCanary, CpuControl, Processes
from hashidrill.core.protocols.claims import CANARY_TIMES, CPU, PAUSED, START, spoils, takes

_LEAST = 0.01
"""The kernel refuses a quota below 1 ms in 100 ms."""
_WINDOW_S = 0.15
# a window of 150 ms overlaps at most two 100 ms periods, and the kernel enforces the quota some ticks late
_OVER, _LATE = 1.35, 0.05
_MEAN_OVER, _MEAN_LATE = 1.1, 0.01
_UNDER = 0.5
_HEADROOM = 1.5


def cores_for(cores: float) -> float:
    """How many cores a machine needs for a throttle to `cores` to be provable."""
    return cores * _OVER + _LATE


def provable_cores(own: float) -> float:
    """The largest provable `cores`, if a busy loop gets `own` cores without a throttle."""
    return math.floor((own - _LATE) / _OVER * 0.95 * 100) / 100


class ThrottleParams(Strict):
    """CPU seconds per second for all processes of the host together."""

    cores: float = Field(ge=_LEAST, le=64)
    """CPU seconds per second, at least 0.01, like 0.05."""


class CpuThrottle(BaseFault[ThrottleParams]):
    """Limits all processes on the host together to `cores` of CPU.

    The observer is a busy loop on that host with more threads than `cores`, measured in 18 windows of 150 ms. A hit is
    a window in which it gets no more than a quota of `cores` allows. While the fault is in force, the loop gets at most
    a tenth more than `cores`, and the loop and the agent together get at least half of `cores`.

    Limits: without permission to make cgroups (`hashidrill doctor` says so), agent and canary are stopped in each
    period of 100 ms once they have used their share. CPU that the host does not use is free for the other hosts.
    """

    kind: ClassVar[str] = "cpu.throttle"
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({CpuCanary, CpuControl, Processes})
    observer: ClassVar[Observer] = Observer("busy loops of the canary on that host, and the CPU time of the agent")
    Params: ClassVar[type[Strict]] = ThrottleParams
    observed_within_s = 20.0
    cases: ClassVar[Cases] = Cases(
        each=({"cores": 0.2},),
        space=({"cores": "0.01..10.0"},),
        weak=lambda params, noise: cores_for(params["cores"]) >= noise.cpus * (1 - noise.busy),
        overlaps=({"cores": 0.3},),
    )

    def requires(self) -> Requires:
        return replace(super().requires(), throttled_cores=self.params.cores)

    def uses(self, place: Place) -> Sequence[Claim]:
        return (
            *super().uses(place),
            takes(CPU),
            spoils(
                PAUSED,
                "if this machine allows no cgroups, a throttle stops and continues the host's processes and would "
                "wake the paused agent",
            ),
            spoils(START, "an agent that starts with so little CPU may not answer before its observer gives up"),
            spoils(CANARY_TIMES, "the throttle also slows down the observer, which measures the other fault"),
        )

    @property
    def _cut(self) -> float:
        return cores_for(self.params.cores)

    @property
    def _trials(self) -> int:
        return trials_for(1.0)

    def _counts(self, before: int) -> Counts | None:
        return counts(self._trials, 1.0, before)

    @patient
    async def prior(self, target: Target) -> Mapping[str, Any]:
        """The baseline. Raises FaultError if a busy loop gets no more CPU than `cores` even without the fault."""
        windows = await self._burn(self.hosts.host(target.host))
        hits = self._hits(windows)
        if self._counts(hits) is None:
            own = sorted(windows)[most_before(self._trials, 1.0)]
            could = provable_cores(own)
            raise FaultError(
                f"a throttle to {self.params.cores:g} cores cannot be proven here: without it a busy loop gets "
                f"{statistics.mean(windows):.2f} cores; "
                + (f"throttle to {could:g} or less" if could >= _LEAST else "this machine is too busy for any throttle")
            )
        return {"hits": hits, "trials": self._trials, "cores": statistics.mean(windows)}

    async def _burn(self, host: Host) -> Sequence[float]:
        threads = min(host.use(CpuCanary).cpus, math.ceil(self._cut * _HEADROOM))
        return await host.use(CpuCanary).canary_burn(threads, self._trials, _WINDOW_S)

    def _hits(self, windows: Sequence[float]) -> int:
        return sum(cores <= self._cut for cores in windows)

    async def apply(self, undo: Undo) -> None:
        await self._host(undo).use(CpuControl).limit_cpu(undo["fault_id"], self.params.cores)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        host, asked = self._host(undo), self.params.cores
        before = await host.use(Processes).cpu_seconds(undo["agent"])
        windows = await self._burn(host)
        agents = max(0.0, await host.use(Processes).cpu_seconds(undo["agent"]) - before) / (_WINDOW_S * self._trials)
        got, hits = statistics.mean(windows), self._hits(windows)
        needed = self._counts(undo.get("prior", {}).get("hits", 0))
        if present:
            ok = needed is not None and needed.shows(hits)
            ok = ok and got <= asked * _MEAN_OVER + _MEAN_LATE and got + agents >= asked * _UNDER
        else:
            ok = needed is not None and needed.is_free(hits)
        return Evidence(
            ok,
            f"at most {asked:g} cores, but at least half of that" if present else f"more than {asked:g} cores",
            f"a busy loop got {got:.2f} cores ({hits} of {len(windows)} times no more than {self._cut:.2f}), "
            f"the agent {agents:.2f}",
            {"asked_cores": asked, "measured_cores": got, "agent_cores": agents},
        )

    async def revert(self, undo: Undo) -> None:
        await self._host(undo).use(CpuControl).unlimit_cpu(undo["fault_id"])
