"""Transfers the leadership of Nomad's servers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import StringConstraints

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.model import NAME_PATTERN
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import BaseFault, Cases
from hashidrill.core.protocols.abc import Claim, Evidence, Observer, Place, Target, Trouble, Undo
from hashidrill.core.protocols.capabilities import AgentApi
from hashidrill.core.protocols.claims import EVERYWHERE, HOST, needs, takes
from hashidrill.core.protocols.rights import Right
from hashidrill.products.nomad import api, rights
from hashidrill.products.nomad.faults.declared import LEADERSHIP, nomad_of, not_among


class TransferParams(Strict):
    """The new leader; by default, the first other voter by name."""

    to: Annotated[str, StringConstraints(pattern=NAME_PATTERN)] | None = None
    """A server's name, like nomad-2; by default, the first other voter by name."""


class LeaderTransfer(BaseFault[TransferParams]):
    """Moves the leadership of Nomad's servers once, by a transfer.

    Limits: an error if the server does not lead. Use `nomad:leader`.
    """

    kind: ClassVar[str] = "nomad.leader.transfer"
    Params: ClassVar[type[Strict]] = TransferParams
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi})
    observer: ClassVar[Observer] = Observer(
        "the Raft state and term that each server reports for itself",
        "Nomad's HTTP API",
    )
    once: ClassVar[bool] = True
    cases: ClassVar[Cases] = Cases(on=(("nomad:leader", {}),), momentary=True)

    def uses(self, place: Place) -> Sequence[Claim]:
        return (needs(HOST), takes(LEADERSHIP, "both decide who leads", where=EVERYWHERE, local=False))

    def troubles(self, place: Place) -> Iterable[Trouble]:
        yield from not_among(self.kind, place, "server")
        nomad = nomad_of(place)
        if nomad is not None and nomad.servers == 1:
            yield ("on",), f"{self.kind} needs another server that can lead (datacenter.nomad.servers is 1)"

    def rights(self) -> Sequence[Right]:
        """Raft's configuration, and a transfer, require a management token.

        https://developer.hashicorp.com/nomad/api-docs/operator/raft
        """
        return (*rights.READS, rights.STATE)

    async def prior(self, target: Target) -> Mapping[str, Any]:
        leader, term = await api.leader_of_terms(self.hosts)
        if leader != target.host:
            raise FaultError(f"{target.host} does not lead, but {leader or 'none'} does; use on: nomad:leader")
        voters = await api.raft_voters(self.hosts)
        others = sorted(name for name in voters if name != target.host)
        to = self.params.to or next(iter(others), None)
        if to not in others:
            raise FaultError(f"the leadership cannot go to {to}; the other voters are {', '.join(others) or 'none'}")
        return {"leader": leader, "term": term, "to": to, "id": voters[to]}

    async def apply(self, undo: Undo) -> None:
        prior = undo["prior"]
        path, params = "/v1/operator/raft/transfer-leadership", {"id": prior["id"]}
        answer = await api.call(self._host(undo), "PUT", path, params=params, timeout_s=20.0)
        if answer.status != 200:
            raise FaultError(f"{undo['host']}: the leadership was not transferred: {api.said(answer)}")
        await api.wait_for_leader(self.hosts, f"{prior['to']} to lead", [prior["to"]])

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """In force: another server leads, in a later term, by each server's own report. Gone: a server leads."""
        prior = undo["prior"]
        leader, term = await api.leader_of_terms(self.hosts)
        measured = f"{leader or 'no server'} leads in term {term}"
        if present:
            asked = f"{prior['to']} leads, after {prior['leader']} in term {prior['term']}"
            return Evidence(leader == prior["to"] and term > prior["term"], asked, measured, {"term": term})
        return Evidence(leader is not None, "a server leads", measured)

    async def revert(self, undo: Undo) -> None:
        return
