"""Declarations that Nomad's faults share, for its clients and for its servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hashidrill.core.faults.base import BaseFault, P
from hashidrill.core.protocols.abc import Claim, Place, Target, Trouble, Undo
from hashidrill.core.protocols.capabilities import AgentApi
from hashidrill.core.protocols.claims import EVERYWHERE, HOST, needs, takes
from hashidrill.products.nomad import api

if TYPE_CHECKING:
    from hashidrill.products.nomad.model import Nomad

LEADERSHIP = "Nomad's leadership"
SCHEDULING = "whether work is placed on the node"


def nomad_of(place: Place) -> Nomad | None:
    """`datacenter.nomad`; None if it could not be read."""
    nomad: Nomad | None = place.parts.get("nomad")
    return nomad


def not_among(kind: str, place: Place, role: str) -> Iterator[Trouble]:
    """Refuses hosts without an agent of that role (`server` or `client`)."""
    from hashidrill.products.nomad.service import NomadService  # noqa: PLC0415 - the service lists its faults

    nomad = nomad_of(place)
    if nomad is None:
        return
    rightly = {each.host for each in NomadService(nomad).places() if each.role == role}
    if place.hosts and not place.hosts & rightly:
        example = "nomad:leader or host:nomad-1" if role == "server" else "nomad:one-client or host:node-1"
        yield ("on",), f"{kind} targets {role}s of Nomad, but {place.on} has none; write {example}"


class OfNodes(BaseFault[P]):
    """Base of faults of one Nomad client. `undo["prior"]["node"]` is its id."""

    def uses(self, place: Place) -> Sequence[Claim]:
        return (needs(HOST), takes(SCHEDULING, "both decide whether work is placed on the node"))

    def troubles(self, place: Place) -> Iterable[Trouble]:
        yield from not_among(self.kind, place, "client")

    async def prior(self, target: Target) -> Mapping[str, Any]:
        return {"node": (await api.node_named(self.hosts, target.host))["ID"]}

    @staticmethod
    def _node(undo: Undo) -> str:
        return str(undo["prior"]["node"])


def work_of(job: str) -> Claim:
    """The tasks of a job, on any node."""
    return takes(f"what {job} runs", "both stop or end tasks of the same job", where=EVERYWHERE, local=False)


class OfWork(BaseFault[P]):
    """Base of faults of a job. All servers know the job, so the fault targets one server, never several hosts."""

    at_a_time: ClassVar[int | None] = 0
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi})

    def uses(self, place: Place) -> Sequence[Claim]:
        return (needs(HOST),)

    def troubles(self, place: Place) -> Iterable[Trouble]:
        yield from not_among(self.kind, place, "server")
        if place.many:
            yield (
                ("on",),
                f"{self.kind} changes state that all servers share, so one server is enough; write on: nomad:leader",
            )
