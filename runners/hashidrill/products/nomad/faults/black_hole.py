"""A node that looks healthy and empty, and fails all that is placed on it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from hashidrill.core.errors import FaultError
from hashidrill.core.faults.base import Cases, NoParams
from hashidrill.core.protocols.abc import Claim, Evidence, Observer, Place, Target, Undo
from hashidrill.core.protocols.capabilities import AgentFiles
from hashidrill.core.protocols.claims import HOST, needs, takes
from hashidrill.core.protocols.rights import Right
from hashidrill.products.nomad import api, rights, trial_jobs
from hashidrill.products.nomad.agents import data_dir
from hashidrill.products.nomad.faults.declared import OfNodes

_READ_ONLY, _WRITABLE = 0o555, 0o200
_TRIED_WITHIN_S = 45.0


class NodeBlackHole(OfNodes[NoParams]):
    """The node's folder of allocations takes none: each new one fails at once, and the node stays ready and empty.

    What runs there already goes on. The agent heartbeats, answers, and reports its driver as healthy.

    Limits: each look takes a second or two: a task is started. A node on which tasks fail already is refused. It may be
    in force together with `nomad.node.eligibility`, which is the mitigation: begin that later, and end it earlier.
    """

    kind: ClassVar[str] = "nomad.node.black_hole"
    observer: ClassVar[Observer] = Observer(
        "how a task ends that Nomad runs on this node: a batch job that no other node can take; while the node is"
        " ineligible, the mode of its folder",
        "while the node is ineligible: the folder that the injector changes",
    )
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentFiles})
    cases: ClassVar[Cases] = Cases(on=(("nomad:one-client", {}),))

    def rights(self) -> Sequence[Right]:
        return (*rights.READS, *rights.JOBS)

    @property
    def observed_within_s(self) -> float:
        return _TRIED_WITHIN_S

    def uses(self, place: Place) -> Sequence[Claim]:
        """Not whether work is placed there: making the node ineligible meanwhile is what an operator would do."""
        return (needs(HOST), takes("the node's folder of allocations", "both decide whether it takes new ones"))

    def _folder(self, host: str) -> Path:
        return data_dir(self.hosts.host(host).use(AgentFiles).data) / "alloc"

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError for a node on which tasks fail already."""
        prior = await super().prior(target)
        ended = await trial_jobs.outcome(self.hosts, prior["node"], _trial(f"{target.host}-before"))
        if ended != "complete":
            raise FaultError(f"a task on {target.host} is {ended} already: the node takes no work without this fault")
        folder = self._folder(target.host)
        try:
            mode = folder.stat().st_mode & 0o777
        except OSError as error:
            raise FaultError(f"{target.host}: {folder}: {error.strerror}") from None
        return {**prior, "mode": mode}

    async def apply(self, undo: Undo) -> None:
        self._folder(undo["host"]).chmod(_READ_ONLY)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """By a trial. A node that somebody made ineligible meanwhile takes none: then by its folder."""
        node = self._node(undo)
        looks = await api.from_copy(self.hosts, f"/v1/node/{node}")
        if looks["Status"] == "ready" and looks["SchedulingEligibility"] == "ineligible":
            return self._by_its_folder(undo, present=present)
        ended = await trial_jobs.outcome(self.hosts, node, _trial(undo["fault_id"]))
        measured = f"a task there is {ended}; the node is {looks['Status']} and {looks['SchedulingEligibility']}"
        if present:
            fine = looks["Status"] == "ready" and looks["SchedulingEligibility"] == "eligible"
            return Evidence(
                fine and ended == "failed", "a task on the node fails, and the node looks ready and eligible", measured
            )
        return Evidence(ended == "complete", "a task on the node completes", measured)

    def _by_its_folder(self, undo: Undo, *, present: bool) -> Evidence:
        mode = self._folder(undo["host"]).stat().st_mode & 0o777
        takes_none = not mode & _WRITABLE
        said = "takes none" if takes_none else "takes some"
        return Evidence(
            takes_none is present,
            f"the node's folder of allocations takes {'none' if present else 'some'}",
            f"it {said} (mode {mode:o}); the node is ready and ineligible, so no task can be tried there",
        )

    async def revert(self, undo: Undo) -> None:
        self._folder(undo["host"]).chmod(int(undo.get("prior", {}).get("mode", 0o711)))


def _trial(of: str) -> str:
    """A name that tells nothing: whoever looks at Nomad's jobs and allocations reads it, a trainee too."""
    return f"{zlib.crc32(of.encode()):08x}"
