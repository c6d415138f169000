"""What all faults of Chaos Mesh share."""

from __future__ import annotations

from typing import ClassVar

from hashidrill.core.faults.base import P
from hashidrill.kubernetes.chaos_mesh.vocabulary import CHAOS_MESH
from hashidrill.kubernetes.injected import InjectedFault
from hashidrill.kubernetes.kubernetes.plurals import System

NO_NETEM = (
    "it needs netem in the kernel of the node, and services.kubernetes.netem of the attach file does not say that it is"
    " there: without it the object fails, cannot be deleted, and blocks the recovery of other faults on that pod; run"
    " `modprobe sch_netem` on the nodes, and say `netem: true`"
)


class ChaosMeshFault(InjectedFault[P]):
    """One object of Chaos Mesh. `injector` is ChaosPod or ChaosMachine."""

    system: ClassVar[System] = CHAOS_MESH
    seen_within_s: ClassVar[float] = 30.0
    """A controller takes some seconds to take an object up, and so does a kubelet to report."""
    no_netem: ClassVar[str] = NO_NETEM
