"""CPU taken away from a machine's agents, by the chaosd that runs there and its stress-ng."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases, patient
from hashidrill.core.faults.significance import Counts, counts, trials_for
from hashidrill.core.protocols.abc import Claim, Evidence, Host, Hosts, Observer, Place, Target, Undo
from hashidrill.core.protocols.capabilities import ChaosMachine, CpuCanary
from hashidrill.core.protocols.claims import CANARY_TIMES, CPU, HOST, START, needs, spoils, takes
from hashidrill.core.units import Percent
from hashidrill.kubernetes.chaos_mesh.physical import OnMachine
from hashidrill.kubernetes.injected import OBJECT
from hashidrill.kubernetes.observing import Effect

_WINDOW_S = 0.15
_LEAST_DROP = 0.2
"""Less than this share of a busy loop's CPU, and a machine that is busy by itself looks the same."""
_HALF = 0.5


def _whole(value: Percent) -> Percent:
    if not 0.1 <= value <= 1 or round(value * 100) != round(value * 100, 6):
        raise ValueError(f"must be a whole percentage from 10% to 100%; not {value}")
    return value


class CpuParams(Strict):
    """How many workers of stress-ng, and how busy each is."""

    workers: Annotated[int, Field(ge=1, le=256)]
    """How many processes burn CPU."""
    load: Annotated[Percent, AfterValidator(_whole)] = Percent("100%")
    """How busy each is, from 10% in whole percent."""


@dataclass(frozen=True)
class Crowded:
    """Busy loops on the host, one for each CPU, get less than they did before.

    The kernel shares CPUs evenly: `workers` beside as many loops as there are CPUs leave the loops their share.
    """

    workers: int
    load: float

    def drop(self, cpus: int) -> float:
        """The share that the loops lose."""
        return min(self.workers * self.load / cpus, self.workers / (self.workers + cpus))

    @property
    def _trials(self) -> int:
        return trials_for(1.0)

    def _counts(self, before: int) -> Counts | None:
        return counts(self._trials, 1.0, before)

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        """The baseline. Raises FaultError where the loss could not be told from how busy the machine is."""
        host = hosts.host(target.host)
        drop = self.drop(host.use(CpuCanary).cpus)
        if drop < _LEAST_DROP:
            raise FaultError(
                f"{self.workers} workers with a load of {Percent(self.load)} take {Percent(round(drop, 2))} from busy"
                f" loops on the {host.use(CpuCanary).cpus} CPUs of {target.host}, and less than {Percent(_LEAST_DROP)}"
                " cannot be proven; ask for more workers"
            )
        windows = await self._burn(host)
        cores = statistics.mean(windows)
        hits = self._hits(windows, cores, drop)
        if self._counts(hits) is None:
            raise FaultError(
                f"busy loops on {target.host} got {min(windows):.2f} to {max(windows):.2f} cores without it: that they"
                f" lose {Percent(round(drop, 2))} of {cores:.2f} would not show; the machine is too busy"
            )
        return {"hits": hits, "cores": cores}

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence:
        host, before = hosts.host(undo["host"]), undo.get("prior", {})
        drop, own = self.drop(host.use(CpuCanary).cpus), float(before.get("cores", 0.0))
        windows = await self._burn(host)
        hits, needed = self._hits(windows, own, drop), self._counts(int(before.get("hits", 0)))
        ok = needed is not None and (needed.shows(hits) if present else needed.is_free(hits))
        got = statistics.mean(windows)
        cut = own * (1 - _HALF * drop)
        return Evidence(
            ok,
            f"busy loops get {'less' if present else 'more'} than {cut:.2f} cores",
            f"{got:.2f} cores ({hits} of {len(windows)} times no more than {cut:.2f}), {own:.2f} before",
            {"measured_cores": got, "cores_before": own},
        )

    async def _burn(self, host: Host) -> Sequence[float]:
        canary = host.use(CpuCanary)
        return await canary.canary_burn(canary.cpus, self._trials, _WINDOW_S)

    def _hits(self, windows: Sequence[float], own: float, drop: float) -> int:
        return sum(cores <= own * (1 - _HALF * drop) for cores in windows)


class Cpu(OnMachine[CpuParams]):
    """Runs stress-ng on the machine, through the chaosd that runs there.

    Limits: the whole machine is slower, for all that runs on it. Where agents have CPU guarantees of their own, the
    canary sees less than the workers take.
    """

    kind: ClassVar[str] = "chaos_mesh.physical.cpu"
    observer: ClassVar[Observer] = Observer("busy loops of the canary on that host")
    Params: ClassVar[type[Strict]] = CpuParams
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({ChaosMachine, CpuCanary})
    cases: ClassVar[Cases] = Cases(each=({"workers": 4}, {"workers": 2, "load": "50%"}))

    def uses(self, place: Place) -> Sequence[Claim]:
        return (
            needs(HOST),
            takes(CPU),
            takes(OBJECT),
            spoils(START, "an agent that starts with so little CPU may not answer before its observer gives up"),
            spoils(CANARY_TIMES, "it also slows down the observer, which measures the other one"),
        )

    @patient
    async def prior(self, target: Target) -> Mapping[str, Any]:
        return await super().prior(target)

    def spec(self, agent: str) -> Mapping[str, Any]:
        given = {"workers": self.params.workers, "load": round(self.params.load * 100)}
        return {"action": "stress-cpu", "stress-cpu": given}

    def effect(self, agent: str) -> Effect:
        return Crowded(self.params.workers, float(self.params.load))
