"""A disk that fills up, by the chaosd on that machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases
from hashidrill.core.faults.disk import acts_on
from hashidrill.core.protocols.abc import Claim, Evidence, Hosts, Observer, Place, Target, Undo
from hashidrill.core.protocols.capabilities import ChaosMachine, DiskCanary
from hashidrill.core.protocols.claims import takes
from hashidrill.core.units import Size
from hashidrill.kubernetes.chaos_mesh.physical import OnMachine
from hashidrill.kubernetes.injected import OBJECT
from hashidrill.kubernetes.observing import Effect

_LEAST = Size("1MiB")
_SHARE, _LEFT = 0.9, 0.5
"""The agent writes and frees space meanwhile: in force, this share of `size` is missing, and gone, less than that."""


def _seen(value: Size) -> Size:
    if value < _LEAST:
        raise ValueError(f"must be at least {_LEAST}: the agent itself writes as much; not {value}")
    return value


class FillParams(Strict):
    """How much is taken, and where."""

    size: Annotated[Size, AfterValidator(_seen)]
    """How much is taken, at least 1MiB."""
    path: Annotated[str, Field(pattern=r"^/[^\n]*$", max_length=1000)]
    """A folder of the machine, for a file with a name of chaosd's, or a file that is not there yet; on the disk that
    the agent writes to.
    """


@dataclass(frozen=True)
class Filled:
    """The agent's disk has `size_bytes` less, by the file system's own count."""

    size_bytes: int

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        """Raises FaultError for a size that does not fit: chaosd would say AllInjected and fill nothing."""
        free = await hosts.host(target.host).use(DiskCanary).free_bytes()
        if free < self.size_bytes:
            raise FaultError(
                f"the disk of {target.host} has {Size(free)} free, and {Size(self.size_bytes)} do not fit: chaosd would"
                f" allocate nothing and report success; ask for at most {Size(free)}"
            )
        return {"free_bytes": free}

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence:
        free = await hosts.host(undo["host"]).use(DiskCanary).free_bytes()
        before = int(undo.get("prior", {}).get("free_bytes", free))
        missing = before - free
        ok = missing >= _SHARE * self.size_bytes if present else missing < _LEFT * self.size_bytes
        asked = f"{Size(self.size_bytes)} of the disk {'taken' if present else 'free again'}"
        figures = {"free_bytes": free, "free_before_bytes": before, "asked_bytes": self.size_bytes}
        return Evidence(ok, asked, f"{Size(free)} free, {Size(before)} before", figures)


class DiskFill(OnMachine[FillParams]):
    """Allocates a file of `size` in a folder of the machine, through the chaosd that runs there.

    Limits: a `size` that does not fit is refused: chaosd would allocate nothing and report success. Blocks are
    reserved, and nothing is written: the disk is full, and not slow.
    """

    kind: ClassVar[str] = "chaos_mesh.physical.disk_fill"
    observer: ClassVar[Observer] = Observer("what the file system of the agent's data says is free, asked on that host")
    Params: ClassVar[type[Strict]] = FillParams
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({ChaosMachine, DiskCanary})
    cases: ClassVar[Cases] = Cases(each=({"size": "20MB", "path": "/var/lib/consul"},))

    def uses(self, place: Place) -> Sequence[Claim]:
        return (*acts_on(self.kind, ("write",)), takes(OBJECT))

    def spec(self, agent: str) -> Mapping[str, Any]:
        """In bytes: chaosd takes a number without a unit for MiB. It allocates; it writes nothing."""
        filled = {"size": f"{int(self.params.size)}c", "path": self.params.path}
        return {"action": "disk-fill", "disk-fill": filled}

    def effect(self, agent: str) -> Effect:
        return Filled(int(self.params.size))
